"""Which kernels a plan needs, so that they are ready before it runs.

Every plan sorts, arranges and reads rows; what its operators call besides goes by their kinds (`state.entries`). What a
plan calls and does not name here, for large batches say, is compiled or loaded when it is called.

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
