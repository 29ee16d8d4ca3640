"""Which kernels a plan needs, so that they are ready before the plan runs.

Every plan sorts, arranges and reads rows. The other kernels that a plan needs are named by its operators
(`Operator.kernels`). A kernel that a plan calls and that is not named, for large batches say, is compiled or loaded at
its first call.

>>> from riverrun.plan.plan import Plan
>>> len(kernels_of(Plan("nothing", (), ()))) > 10
True
"""

from __future__ import annotations

from riverrun.plan.plan import Plan
from riverrun.state.entries import ROWS, labels


def kernels_of(plan: Plan) -> list[str]:
    """The labels of the kernels that a plan calls."""
    return labels(*ROWS, *(kernel for node in plan.nodes for kernel in node.operator.kernels))
