"""Ways: where parts of a plan give the same rows, one of them is kept.

A front end that knows several ways to the same rows writes all of them, and notes a `Choice` in the plan. A loop is one
way; one node that runs the whole loop on arrays is another way, and some nodes that do so on all workers are a third
one. `costs` says which of the others is taken. Laws:

- **Same rows.** All consumers of the loop take from the way that is taken, and nothing else changes.
- **As written.** A loop into which somebody looks runs as it is written. Where it must not (`Choice.must`: the program
  asks for another way, or the last round depends on the rows), the program is refused.
- **Nothing idle.** No node of a way that was not taken is left, unless something else takes from it.

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
from riverrun.plan.optimizer.costs import cheapest
from riverrun.plan.plan import Choice, Node, Plan, Port, Reason, Shortcut


def with_ways_taken(plan: Plan) -> Plan:
    """The plan with one way for each choice."""
    while plan.choices:
        plan = _taken(plan, plan.choices[0])  # which renumbers what is left
    return plan


def _taken(plan: Plan, choice: Choice) -> Plan:
    """The plan in which consumers of `choice.loop` take from another way, and the loop is gone."""
    others = tuple(each for each in plan.choices if each is not choice)
    viewer = _viewer(plan, choice)
    if viewer is not None:
        if choice.must:
            raise _seen(choice, viewer)
        gone = _idle(plan.nodes, _nodes_of(plan, choice.ways))
        why = f"as {_looking(viewer)} looks into it"
        differential = {**plan.differential, choice.loop.number: why}
        return without(replace(plan, choices=others, differential=differential), gone)
    way, why, others_cost = cheapest(plan, choice)
    ends = choice.ends(way)
    nodes = list(plan.nodes)
    for node in plan.nodes:
        if not ends.keys().isdisjoint(node.inputs):
            inputs = tuple([ends.get(port, port) for port in node.inputs])
            nodes[node.number] = replace(node, inputs=inputs)
    inside = {node.number for node in nodes if node.scope.is_inside(choice.loop)}
    left = _nodes_of(plan, [each for each in choice.ways if each is not way])
    gone = _idle(nodes, {*inside, *left} | {port.node for port in choice.leaves})
    kept = [number for number in inside if nodes[number].operator.keeps_state]
    text = f"in place of the nodes of {choice.loop.path.rstrip('/')!r}"
    reason = Reason(
        "loops",
        (nodes[way.port.node].name,),
        f"{text}, {why}" if why else text,
        f"{others_cost}{len(inside)} nodes in each round, {len(kept)} of which keep the changes of all rounds",
    )
    reasons = (*plan.reasons, reason)
    return without(replace(plan, nodes=tuple(nodes), choices=others, reasons=reasons), gone)


def _nodes_of(plan: Plan, ways: Iterable[Shortcut]) -> set[int]:
    """The nodes at the ends of some ways, and those in loops of the ways."""
    nodes = {port.node for way in ways for port in way.ports}
    loops = [loop for way in ways for loop in way.loops]
    nodes |= {
        node.number for node in plan.nodes if any(node.scope.is_inside(loop) for loop in loops)
    }
    return nodes


def _viewer(plan: Plan, choice: Choice) -> Node | None:
    """A node that looks into the loop, or takes rows of it from elsewhere than where they leave."""
    for node in plan.nodes:
        if node.scope.is_inside(choice.loop):
            if node.operator.public_name or node.operator.passes_all:
                return node
        elif all(node.number != port.node for port in choice.leaves) and any(
            plan.nodes[port.node].scope.is_inside(choice.loop) for port in node.inputs
        ):
            return node
    return None


def _looking(viewer: Node) -> str:
    return f"{viewer.name!r} ({viewer.line})"


def _seen(choice: Choice, viewer: Node) -> PlanError:
    loop = choice.loop.path.rstrip("/")
    return PlanError(
        "plan.loop_seen",
        f"cannot look into the loop {loop!r}, as {_looking(viewer)} does: it does not run as the nodes that its body "
        f"made, {choice.must}",
        hint="take what leaves the loop: the result of iterate",
        loop=loop,
        node=viewer.name,
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
    choices = []
    for each in plan.choices:
        ways = tuple([_way(way, places) for way in each.ways if way.port.node in places])
        if each.leave.node in places and ways:
            leave, *also = [_moved(port, places) for port in each.leaves]
            choices.append(replace(each, leave=leave, also=tuple(also), ways=ways))
    expected = {places[at]: rows for at, rows in plan.expected.items() if at in places}
    return replace(plan, nodes=nodes, choices=tuple(choices), expected=expected)


def _way(way: Shortcut, places: Mapping[int, int]) -> Shortcut:
    edges = None if way.edges is None else _moved(way.edges, places)
    port, *also = [_moved(port, places) for port in way.ports]
    return replace(way, port=port, also=tuple(also), edges=edges)


def _moved(port: Port, places: Mapping[int, int]) -> Port:
    return Port(places[port.node], port.output)
