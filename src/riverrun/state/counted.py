"""Counted: where kernels add up diffs, a sum that does not fit is refused with an error of Riverrun's.

Every call of a kernel that adds up diffs stands in a ``with counted:`` block, in which `Beyond` of `kernels.adding`, a
sum that is not between -(2**63 - 1) and 2**63 - 1, becomes ``operator.overflow``. (Kernels know nothing of Riverrun's
errors: what they import is compiled, and is in the digest of their machine code.)

>>> try:
...     with counted:
...         raise Beyond  # by a kernel
... except OperatorFailed as refused:
...     print(refused.code)
operator.overflow

Cost: 100 ns a block.
"""

from __future__ import annotations

from types import TracebackType

from riverrun.errors import OperatorFailed
from riverrun.state.kernels.adding import Beyond


def too_often() -> OperatorFailed:
    """The error of a diff, or of a sum of diffs, that does not fit."""
    return OperatorFailed(
        "operator.overflow",
        "a row is there, or is taken back, more often than 64 bits can count",
        hint="a row can be there 2**63 - 1 times at the most: put a collection together with itself less often, or "
        "count with a column",
    )


class Counted:
    """A ``with`` block for calls of kernels. It has no state: there is one of it, `counted`."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and issubclass(kind, Beyond):
            raise too_often() from None


counted = Counted()
