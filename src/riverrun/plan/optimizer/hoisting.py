"""Hoisting: an arrangement that does not depend on a loop is made once, outside of the loop.

A collection from outside that a loop joins with, or groups, is the same in all rounds. As it is written, it enters the
loop and is arranged inside, once for every loop. The optimizer arranges it outside, and all readers, in whatever loops
and outside of all, read that arrangement (`Operator.over_arrangement` says how a loop reads it). Where the collection
is arranged so already, as the result of a group by the same key, or as an input with that key, that arrangement is
read. Laws:

- **Same rows.** Readers are given the same batches, at the same times. The arrangement outside has as of t what the one
  inside had as of t and every round.
- **Same states.** A checkpoint in which the state is inside a loop serves a plan that has it outside, since the rows
  are the same and all in round 0 (`plan.diff`, `View.at_depth`).
- **One side in the loop.** A node all of whose arrangements are from outside keeps them inside. (In a backfill each of
  them would be announced as a whole, and pairs would be made twice.)

Cost: in place of a state for each loop, some microseconds for each batch that is appended outside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from riverrun.plan.operator import Operator
from riverrun.plan.optimizer.draft import Draft
from riverrun.plan.plan import Node, Plan, Port, Reason


def hoisted(plan: Plan) -> Plan:
    """The plan in which no loop arranges what comes from outside of it."""
    while True:
        draft = Draft(plan)
        found = _constant(draft)
        if not found:
            return plan
        # The innermost first: what has left an inner loop may leave the next one too.
        depth = max(each.index.depth for each in found)
        for each in found:
            if each.index.depth == depth:
                _hoist(draft, each)
        plan = draft.plan()


@dataclass(frozen=True, slots=True)
class _Constant:
    """An arrangement inside a loop of rows from outside: the rows enter, are exchanged, and are arranged."""

    enter: Node
    exchange: Node
    index: Node
    inside: Operator
    """The operator by which the loop reads the arrangement outside."""


def _constant(draft: Draft) -> list[_Constant]:
    """The arrangements that can be made outside of the loop around them."""
    found: dict[int, _Constant] = {}
    for node in draft.nodes.values():
        if node.depth > 1 and node.operator.copied_by is not None and not node.named:
            constant = _entered(draft, node)
            if constant is not None:
                found[node.number] = constant
    outside = {
        *found,
        *(node.number for node in draft.nodes.values() if node.operator.passes_arrangement),
    }
    return [
        each
        for number, each in found.items()
        if not any(
            len(reader.inputs) > 1 and all(port.node in outside for port in reader.inputs)
            for reader, _ in draft.takers(Port(number))
        )
    ]


def _entered(draft: Draft, index: Node) -> _Constant | None:
    """The way by which the rows of an arrangement come into the loop; None where they are made inside."""
    exchange = draft.nodes[index.inputs[0].node]
    by_content = exchange.operator.as_exchange
    if by_content is None or not by_content.goes_by_content or by_content.may_pass:
        return None
    enter = draft.nodes[exchange.inputs[0].node]
    inside = enter.operator.over_arrangement() if enter.operator.steps_out < 0 else None
    return None if inside is None else _Constant(enter, exchange, index, inside)


def _hoist(draft: Draft, constant: _Constant) -> None:
    """Arrange outside, or find the arrangement there, and have the loop read that."""
    enter, exchange, index = constant.enter, constant.exchange, constant.index
    (source,) = enter.inputs
    there = _arranged_already(draft, source, index.operator)
    if there is None:
        scope = draft.nodes[source.node].scope
        moved = replace(
            exchange, scope=scope, inputs=(source,), written=exchange.written or exchange.name
        )
        moved = replace(moved, name=draft.free_name(scope, exchange.operator.kind))
        kept = replace(index, scope=scope, written=index.written or index.name)
        kept = replace(kept, name=draft.free_name(scope, index.operator.kind))
        port = draft.put_before(index.number, moved)
        there = draft.put_before(index.number, replace(kept, inputs=(port,)))
    name = draft.free_name(index.scope, constant.inside.kind)
    draft.put(replace(index, name=name, operator=constant.inside, inputs=(there,), written=None))
    draft.leave_out(exchange.number)
    by = ", ".join(index.operator.copied_by or ()) or "nothing"
    draft.say(
        Reason(
            "hoisted",
            (draft.nodes[there.node].name,),
            f"by {by}, outside of the loops that read it",
            "arranged once more in each loop",
        )
    )


def _arranged_already(draft: Draft, source: Port, operator: Operator) -> Port | None:
    """Where the rows that leave a port are arranged as `operator` would arrange them."""
    wanted = operator.arranged_by
    node = draft.nodes[source.node]
    if source.output == 0 and wanted is not None and _same(node.operator, wanted):
        return source
    for exchange, _ in draft.takers(source):
        by_content = exchange.operator.as_exchange
        if by_content is None or not by_content.goes_by_content or exchange.depth != node.depth:
            continue
        for index, _ in draft.takers(Port(exchange.number)):
            if index.operator == operator and not index.operator.reads_arrangements:
                return Port(index.number)
    return None


def _same(operator: Operator, wanted: object) -> bool:
    given = operator.arranged_by
    return given is not None and (tuple(given[0]), tuple(given[1])) == wanted
