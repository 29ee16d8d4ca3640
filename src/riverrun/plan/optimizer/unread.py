"""Unread results: a count whose result nobody reads as an arrangement sends it, and does not keep it.

A group keeps its result as an arrangement, which joins, further groups by the same key, and outputs read in place of an
arrangement of their own. Where there is no such reader, the arrangement would only tell the group which result it gave
before. Counts, and `distinct`, know that without it (`Operator.without_state`). Law:

- **Same changes.** Takers are given the same changes at the same times.

Results stay kept in loops, where changes of several rounds meet, and of groups that a user has named, whose states the
user looks at.
"""

from __future__ import annotations

from dataclasses import replace

from riverrun.plan.optimizer.draft import Draft
from riverrun.plan.plan import Plan, Port, Reason


def without_unread(plan: Plan) -> Plan:
    """The plan in which results are kept where somebody reads them."""
    draft = Draft(plan)
    for node in plan.nodes:
        if node.depth > 1 or node.named or not node.operator.keeps_state:
            continue
        operator = node.operator.without_state()
        takers = plan.consumers.get(Port(node.number), [])
        if operator is None or any(taker.operator.reads(at) for taker, at in takers):
            continue
        draft.put(replace(node, operator=operator))
        draft.say(
            Reason(
                "unread",
                (node.name,),
                "nobody reads the result, so that its changes are sent, and it is not kept",
                "a row for each group",
            )
        )
    return draft.plan()
