"""What a bulk loop over arrays does, and what a run of it says.

A front end or a planner makes a `PullLoop` from the body of a loop; `pulling` runs it.

>>> (
...     Combine("sum"),
...     PullLoop(
...         (pa.int64(),), (pa.int8(),), (pa.large_string(),), list, (Combine("min"),)
...     ).refusal(),
... )
(Combine(how='sum', part=0), 'a min of large_string')
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa

from riverrun.operators.iterations.words import FLOAT64, has_words

Columns: TypeAlias = Sequence[pa.Array]
Evaluate: TypeAlias = Callable[[list[pa.Array], int], Sequence[pa.Array]]
"""Columns computed from columns of so many rows, row by row: `Projection.apply`."""
How: TypeAlias = Literal["sum", "min", "max", "count", "valid"]
FORMS = ("value", "times", "over", "factor over", "factor times over")
"""The forms of a `Formula`, by their number in `kernels.iterations.pulling`."""
_T = pa.types


class SeveralRows(Exception):
    """The loop starts with more than one row for a key."""


@dataclass(frozen=True)
class Combine:
    """One column of what a key gets: the sum, the least or the greatest of a part, how many parts, or how many not null
    (``valid``)."""

    how: How
    part: int = 0


@dataclass(frozen=True)
class Formula:
    """A part that a kernel computes, with the operations in this order: value, value * w, value / w, c * (value / w) or
    (c * value) / w, where w is a constant of the edge. All are doubles, or integers taken as doubles."""

    form: Literal["value", "times", "over", "factor over", "factor times over"]
    value: int = 0
    constant: int | None = None
    factor: float = 1.0

    @property
    def number(self) -> int:
        return FORMS.index(self.form)


@dataclass(frozen=True)
class PullLoop:
    """What a loop does. Types are canonical."""

    keys: tuple[pa.DataType, ...]
    values: tuple[pa.DataType, ...]
    parts: tuple[pa.DataType, ...]
    message: Evaluate
    """The parts, from the values of the source and the constants of the edge."""
    combine: tuple[Combine, ...]
    constants: tuple[pa.DataType, ...] = ()
    finish: Evaluate | None = None
    """The values of the next round, from the combined columns; behind the columns of the key if `finish_keys`. None
    where they are the combined columns."""
    finish_keys: bool = False
    own: Evaluate | None = None
    """The parts that a row sends to its own key, from its values."""
    formula: Formula | None = None
    """A quicker way to the only part; `message` still computes it where there are nulls."""

    def refusal(self) -> str | None:
        """Why arrays cannot run this loop; None if they can."""
        for kind in self.values:
            if not has_words(kind):
                return f"values are {kind}, which has no fixed width"
        for combine in self.combine:
            if combine.how == "count":
                continue
            kind = self.parts[combine.part]
            if combine.how == "sum" and not _is_summed(kind):
                return f"a sum of {kind}"
            if combine.how in ("min", "max") and not has_words(kind):
                return f"a {combine.how} of {kind}"
        return None

    def kind_of(self, combine: Combine) -> pa.DataType:
        """The type of a combined column."""
        if combine.how in ("count", "valid"):
            return pa.int64()
        kind = self.parts[combine.part]
        if combine.how != "sum" or _T.is_duration(kind):
            return kind
        if _T.is_floating(kind):
            return FLOAT64
        return pa.uint64() if _T.is_unsigned_integer(kind) else pa.int64()


def _is_summed(kind: pa.DataType) -> bool:
    floats = _T.is_float32(kind) or _T.is_float64(kind)
    ints = _T.is_integer(kind) and not _T.is_uint64(kind)
    return bool(floats or ints or _T.is_duration(kind))


@dataclass(frozen=True)
class Tolerance:
    """A stop: the keys are those of the round before, and no value of a column differs by more than `tolerance`."""

    column: int
    tolerance: float


@dataclass(frozen=True)
class Round:
    """One round: how many rows differ from the round before, come or go; how long it took; how many sums of floats were
    not sure at first; how many parts were sent along edges."""

    changed: int
    milliseconds: float
    unsure: int = 0
    messages: int = 0


@dataclass(frozen=True)
class Pulled:
    """How a run went."""

    rounds: int
    stopped: bool
    """Whether the loop came to its stop; False where it ran out of rounds."""
    history: tuple[Round, ...]


@dataclass(frozen=True)
class NetRows:
    """The rows that differ from those of the last epoch: columns of the key, then values."""

    old: tuple[pa.Array, ...]
    new: tuple[pa.Array, ...]
