"""Ways: where parts of a plan give the same rows, one of them is kept.

A front end that knows two ways to the same rows writes both, and notes a `Choice` in the plan. A loop is one way; one
node that runs the whole loop on arrays is another way. Laws:

- **Same rows.** All consumers of the one way take from the other, and nothing else changes.
- **Nothing idle.** No node of the way that was not taken is left, unless something else takes from it.

>>> import polars as pl, riverrun as rr
>>> flow = rr.Dataflow("components")
>>> edges = rr.graphs.undirected(flow.input("edges", {"src": int, "dst": int}))
>>> labels = edges.select(node="src", label="src").distinct()
>>> send = lambda near: near.join(edges, left_on="node", right_on="src").select(
...     node="dst", label="label"
... )
>>> best = rr.loops.least("label")
>>> flow.output("labels", labels.iterate_delta(send(labels), key="node", send=send, better=best))
>>> written = flow._builder.build()
>>> taken = with_ways_taken(written)
>>> len(written.scopes), {node.scope.path for node in taken.nodes}
(2, {''})
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from riverrun.errors import PlanError
from riverrun.plan.plan import Choice, Node, Plan, Port, Reason


def with_ways_taken(plan: Plan) -> Plan:
    """The plan with one way for each choice."""
    while plan.choices:
        plan = _taken(plan, plan.choices[0])  # which renumbers what is left
    return plan


def _taken(plan: Plan, choice: Choice) -> Plan:
    """The plan in which consumers of `choice.loop` take from `choice.instead`, and the loop is gone."""
    if _is_seen(plan, choice):
        others = tuple(each for each in plan.choices if each is not choice)
        if choice.must:
            raise _seen(choice)
        gone = _idle(plan.nodes, {port.node for port in choice.ends.values()})
        return without(replace(plan, choices=others), gone)
    nodes = list(plan.nodes)
    for node in plan.nodes:
        if not choice.ends.keys().isdisjoint(node.inputs):
            inputs = tuple([choice.ends.get(port, port) for port in node.inputs])
            nodes[node.number] = replace(node, inputs=inputs)
    inside = {node.number for node in nodes if node.scope.is_inside(choice.loop)}
    gone = _idle(nodes, inside | {port.node for port in choice.ends})
    kept = [number for number in inside if nodes[number].operator.keeps_state]
    instead = nodes[choice.instead.node]
    reason = Reason(
        "loops",
        (instead.name,),
        f"in place of the nodes of {choice.loop.path.rstrip('/')!r}",
        f"{len(inside)} nodes in each round, {len(kept)} of which keep the changes of all rounds",
    )
    reasons = (*plan.reasons, reason)
    return without(replace(plan, nodes=tuple(nodes), reasons=reasons), gone)


def _is_seen(plan: Plan, choice: Choice) -> bool:
    """Whether somebody looks into the loop, or takes rows of it from elsewhere than where they leave."""
    for node in plan.nodes:
        if node.scope.is_inside(choice.loop):
            if node.operator.public_name or node.operator.passes_all:
                return True
        elif all(node.number != port.node for port in choice.ends) and any(
            plan.nodes[port.node].scope.is_inside(choice.loop) for port in node.inputs
        ):
            return True
    return False


def _seen(choice: Choice) -> PlanError:
    loop = choice.loop.path.rstrip("/")
    return PlanError(
        "plan.loop_seen",
        f"cannot look into the loop {loop!r}: it does not run as the nodes that its body made",
        hint="take what leaves the loop: the result of iterate",
        loop=loop,
    )


def _idle(nodes: Iterable[Node], gone: set[int]) -> set[int]:
    """The nodes in `gone`, and those that only they take from."""
    nodes = list(nodes)
    takers: dict[int, set[int]] = {}
    for node in nodes:
        for port in node.inputs:
            takers.setdefault(port.node, set()).add(node.number)
    gone, waiting = set(gone), list(gone)
    while waiting:
        for port in nodes[waiting.pop()].inputs:
            source = nodes[port.node]
            kept = source.operator.public_name or source.operator.passes_all
            if port.node not in gone and takers[port.node] <= gone and not kept:
                gone.add(port.node)
                waiting.append(port.node)
    return gone


def without(plan: Plan, gone: set[int]) -> Plan:
    """The plan without some nodes, from which no other node takes; the others are numbered anew."""
    places: dict[int, int] = {}
    for node in plan.nodes:
        if node.number not in gone:
            places[node.number] = len(places)
    nodes = tuple(
        replace(
            node,
            number=places[node.number],
            operator=node.operator.renumbered(places),
            inputs=tuple([_moved(port, places) for port in node.inputs]),
        )
        for node in plan.nodes
        if node.number not in gone
    )
    choices = tuple(
        replace(
            each,
            leave=_moved(each.leave, places),
            instead=_moved(each.instead, places),
            also=tuple([(_moved(one, places), _moved(two, places)) for one, two in each.also]),
        )
        for each in plan.choices
        if each.leave.node in places and each.instead.node in places
    )
    return replace(plan, nodes=nodes, choices=choices)


def _moved(port: Port, places: Mapping[int, int]) -> Port:
    return Port(places[port.node], port.output)
