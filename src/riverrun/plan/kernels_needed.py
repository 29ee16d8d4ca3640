"""Which kernels a plan needs, so that they are ready before the plan runs.

Every plan sorts, arranges and reads rows. The other kernels that it needs follow from the kinds of its operators
(`state.entries`). A kernel that a plan calls and that is not named here, for large batches say, is compiled or loaded
at its first call.

>>> from riverrun.plan.plan import Plan
>>> len(kernels_of(Plan("nothing", (), ()))) > 10
True
"""

from __future__ import annotations

from riverrun.plan.plan import Plan
from riverrun.state.entries import labels


def kernels_of(plan: Plan) -> list[str]:
    """The labels of the kernels that a plan calls."""
    return labels("rows", *dict.fromkeys(node.operator.kind for node in plan.nodes))
