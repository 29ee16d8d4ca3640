"""Status: where a run stands, for people: the status of its cluster, in the names of the plan.

``run.status()`` comes here. Laws:

- **Addresses.** Outputs, states and sinks are called by the names by which they are read.
- **Last, not next.** A cluster counts epochs; people are told the number of the last one, and None where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from riverrun.operators.shared.rules import as_time
from riverrun.plan.plan import Plan


def described(
    plan: Plan, status: Mapping[str, Any], stats: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The `status` of a cluster with the sizes of states and outputs, from the `stats` of its workers."""
    states = _sizes_of_states(plan, stats)
    kept_in = {name: plan.arranged(node).name for name, node in plan.outputs.items()}
    checkpoint, completed = status["checkpoint"], status["completed"]
    ends = {name: checkpoint[name] for name in ("epoch", "writing")}
    return {
        **status,
        "states": states,
        "epoch": completed - 1 if completed else None,
        "checkpoint": checkpoint
        | {name: end - 1 if end and end > 0 else None for name, end in ends.items()},
        "outputs": {
            name: {figure: states[kept][figure] for figure in ("rows", "bytes")}
            for name, kept in kept_in.items()
            if kept in states
        },
    }


def _sizes_of_states(plan: Plan, stats: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """How large each state is on all workers together."""
    states: dict[str, dict[str, Any]] = {}
    common = {name for node in plan.nodes for name in node.operator.common_figures}
    for of_worker in stats:
        for name, sizes in of_worker.items():
            total = states.setdefault(name, {"rows": 0, "bytes": 0})
            for what, size in sizes.items():
                total[what] = size if what in common else total.get(what, 0) + size
    for node in plan.nodes:
        column = node.operator.time_column
        if column is not None and node.name in states:
            kind, figures = node.schemas[0].field(column).type, states[node.name]
            known = {what: figures[what] for what in common & figures.keys()}
            figures |= {what: t if t is None else as_time(t, kind) for what, t in known.items()}
    return states
