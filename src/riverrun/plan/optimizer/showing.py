"""Showing: an output reads the arrangement of a result although it has the columns in another order.

An output reads the arrangement that a group or a keyed input keeps anyway. Where a `select` only puts the columns in
another order, as `top` does to give rows the columns that they had, the rows would be arranged once more for the
output. But who reads an output takes columns by name, so the optimizer has the output read the first arrangement. Law:

- **Same rows.** An output has the rows, the changes and the order of columns that it had.

Names stay: an output whose columns are renamed keeps an arrangement of its own. So does one with fewer columns, in
which changes could cancel.
"""

from __future__ import annotations

from dataclasses import replace

from riverrun.plan.operator import Role
from riverrun.plan.optimizer.draft import Draft
from riverrun.plan.plan import Node, Plan, Port, Reason


def shown(plan: Plan) -> Plan:
    """The plan in which outputs read arrangements that there are, if only the order of columns differs."""
    draft = Draft(plan)
    for output in plan.nodes:
        if output.operator.role is not Role.OUTPUT:
            continue
        copy = plan.nodes[output.inputs[0].node]
        source = _reordered(plan, copy)
        if source is None:
            continue
        draft.put(replace(draft.nodes[output.number], inputs=(Port(source.number),)))
        draft.leave_out(copy.number)
        draft.say(
            Reason(
                "shown",
                (source.name,),
                "read by an output, which has the columns in another order",
                "a copy of the rows for the output",
            )
        )
    return draft.plan()


def _reordered(plan: Plan, copy: Node) -> Node | None:
    """The node that keeps the rows of which an arrangement has a copy, with the columns in another order."""
    if copy.operator.copied_by is None:
        return None
    exchange = plan.nodes[copy.inputs[0].node]
    by_content = exchange.operator.as_exchange
    if by_content is None or not by_content.goes_by_content:
        return None
    port = exchange.inputs[0]
    while (linear := plan.nodes[port.node].operator.as_linear) is not None:
        node = plan.nodes[port.node]
        if linear.picked is None or len(node.inputs) != 1:
            return None
        before = plan.nodes[node.inputs[0].node].schemas[node.inputs[0].output].names
        picked = [None if at is None else before[at] for at in linear.picked]
        if picked != node.schemas[0].names or len(picked) != len(before):
            return None
        port = node.inputs[0]
    source = plan.nodes[port.node]
    is_kept = source.operator.arranged_by is not None and port.output == 0
    return source if is_kept and source.scope is copy.scope else None
