"""Which kernels a plan needs, so that they are ready before the plan runs.

A kernel is a compiled loop (`state.kernels.compiling`). A run makes the kernels of its plan ready before it starts, and
clusters tell their worker processes which kernels to load. Every plan needs the kernels that sort, arrange and read
rows; the other kernels are those that the operators of the plan name (`Operator.kernels`). Law:

- **Only a hint.** No result depends on this list. A kernel that is not on it is compiled or loaded at its first call;
  those for large batches, nested columns and checkpoints are left out on purpose.

>>> from riverrun.plan.plan import Plan
>>> names = {label.partition("-")[0] for label in kernels_of(Plan("nothing", (), ()))}
>>> [name for name in names if name.endswith(("pack_rows", "find_matches"))]  # sorts; joins
['riverrun.state.kernels.packing.pack_rows']

Cost: one lookup for each kernel that a node names.
"""

from __future__ import annotations

from riverrun.plan.plan import Plan
from riverrun.state.entries import ROWS, labels


def kernels_of(plan: Plan) -> list[str]:
    """The labels of the kernels that a plan calls."""
    return labels(*ROWS, *(kernel for node in plan.nodes for kernel in node.operator.kernels))
