"""Topology: the shape of a dataflow graph, as far as time is concerned.

Nodes have input and output ports. Every port is a *location*, numbered in the order in which it was
added, so that workers who build the same plan mean the same port by the same number. Time passes
from an output to an input along an edge unchanged, and from an input to an output of the same node
as a :class:`~riverrun.progress.Summary` says, or not at all. Every loop is entered, gone around and
left through nodes that do just that.

Laws:

1. What an edge or a summary connects agrees in depth.
2. No cycle brings a message back at or before the time it started with. Then "a message here and
   now can cause one there and then" is a partial order, and a frontier is well defined.
3. ``order(location, time)`` is a linear extension of it that can be sorted: a tuple that grows
   strictly along every edge and summary, and with the time at one location.

Law 2 does not say that cycles advance in the product order. A message that leaves an inner loop,
goes around the outer one and comes in again has turned ``(e, 3, 7)`` into ``(e, 4, 0)``, and these
two are not comparable. What counts is that a coordinate that survives the whole cycle is advanced.

How laws 2 and 3 are had, without looking at cycles one by one: split the graph into strongly
connected components and number them along the arcs; an arc between components ends at a larger
number. Inside a component every arc has to keep coordinate 0, since one that forgets it is on a
cycle that keeps nothing. Now leave out the arcs that advance coordinate 0 and split again; inside
what remains connected every arc has to keep coordinate 1; and so on. When an arc does not keep what
it has to, it is on a cycle that advances none of the coordinates that survive it: law 2 is broken.
When all are split into single ports, a port's numbers put between the coordinates of a time
(``number, epoch, number, round, number, ...``) are the tuple of law 3: an arc either ends at a
larger number, or advances a coordinate further to the left than any number that falls.

>>> builder = TopologyBuilder()
>>> source = builder.node("source", outputs=[1])
>>> enter, leave = builder.enter("enter", 1), builder.leave("leave", 2)
>>> back = builder.feedback("back", 2)
>>> body = builder.node("body", inputs=[2, 2], outputs=[2])
>>> builder.edge(source.outputs[0], enter.inputs[0])
>>> builder.edge(enter.outputs[0], body.inputs[0])
>>> builder.edge(back.outputs[0], body.inputs[1])
>>> builder.edge(body.outputs[0], back.inputs[0])
>>> builder.edge(body.outputs[0], leave.inputs[0])
>>> topology = builder.build()
>>> topology.describe(body.inputs[1])
"input 1 of 'body'"
>>> topology.order(body.outputs[0], (0, 4)) < topology.order(leave.outputs[0], (0,))
True

Cost: building takes time linear in the size of the graph, times the deepest nesting; ``paths`` looks
at every arc behind a port, once for each incomparable summary that leads there; ``ways`` at every arc,
once for each end and incomparable summary that it leads to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from riverrun.errors import PlanError

from .summary import Summary
from .timestamp import Timestamp

__all__ = ["Location", "NodePorts", "Topology", "TopologyBuilder"]

Location: TypeAlias = int
"""A port: the number that the builder gave it."""

Following: TypeAlias = dict[Location, list[Location]]


@dataclass(frozen=True, slots=True)
class NodePorts:
    """A node's name and the locations of its ports."""

    name: str
    inputs: tuple[Location, ...]
    outputs: tuple[Location, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """A graph that keeps the laws; made by :class:`TopologyBuilder`.

    All fields but ``nodes`` have an entry for every location.
    """

    nodes: tuple[NodePorts, ...]
    depths: tuple[int, ...]
    owners: tuple[NodePorts, ...]
    is_input: tuple[bool, ...]
    arcs: tuple[tuple[tuple[Location, Summary], ...], ...]
    """Where time passes on to: from an output along its edges, from an input to the outputs."""
    back: tuple[tuple[tuple[Location, Summary], ...], ...]
    """The same arcs, seen from where they end."""
    ranks: tuple[tuple[tuple[int, int], ...], ...]
    """The numbers of law 3, each with the index of the coordinate that it stands before."""

    def describe(self, location: Location) -> str:
        """Return the name of a port, for people."""
        owner = self.owners[location]
        if self.is_input[location]:
            return f"input {owner.inputs.index(location)} of {owner.name!r}"
        return f"output {owner.outputs.index(location)} of {owner.name!r}"

    def order(self, location: Location, time: Timestamp) -> tuple[int, ...]:
        """Return a tuple that sorts a pointstamp after all that could result in it (law 3)."""
        rank = self.ranks[location]
        if len(rank) == 1:  # not in a loop
            return (rank[0][1], *time)
        if len(rank) == 2:  # in one loop
            (_, first), (cut, second) = rank
            return (first, *time[:cut], second, *time[cut:])
        mixed: list[int] = []
        start = 0
        for cut, number in rank:
            mixed += time[start:cut]
            mixed.append(number)
            start = cut
        mixed += time[start:]
        return tuple(mixed)

    def paths(
        self, start: Location, ends: Container[Location] = ()
    ) -> dict[Location, tuple[Summary, ...]]:
        """Return what the paths from a port do to time, for every port that they lead to.

        Of the summaries between two ports only the minimal ones are kept. The port itself is in it,
        reached by staying there. A path goes no further than the first of ``ends`` that it comes to.

        It ends: a summary is followed only if none found at its port is at or before it, and of
        numbers that only grow there is no infinite sequence in which none is at or before a later one.
        """
        found: dict[Location, list[Summary]] = {}
        queue = [(start, Summary.identity(self.depths[start]))]
        for location, summary in queue:
            here = found.setdefault(location, [])
            if any(other.less_equal(summary) for other in here):
                continue
            here[:] = [other for other in here if not summary.less_equal(other)]
            here.append(summary)
            if location not in ends:
                queue += [(to, summary.followed_by(step)) for to, step in self.arcs[location]]
        return {location: tuple(here) for location, here in found.items()}

    def ways(self, ends: Container[Location]) -> list[dict[Location, list[Summary]]]:
        """Return, for every port, the ``ends`` that paths from it come to first, and what they do to time.

        What ``paths(start, ends)`` says of the ends, for all starts at once: walked backwards, from the ends. An
        end comes to itself, and to no other.

        >>> builder = TopologyBuilder()
        >>> a, b = (builder.node(name, inputs=[1], outputs=[1]) for name in "ab")
        >>> builder.edge(a.outputs[0], b.inputs[0])
        >>> [sorted(ways) for ways in builder.build().ways({2})]
        [[2], [2], [2], []]
        """
        found: list[dict[Location, list[Summary]]] = [{} for _ in self.depths]
        identities = {depth: Summary.identity(depth) for depth in set(self.depths)}
        queue = deque(
            (end, end, identities[depth]) for end, depth in enumerate(self.depths) if end in ends
        )
        while queue:
            location, end, summary = queue.popleft()
            here = found[location].setdefault(end, [])
            if any(other.less_equal(summary) for other in here):
                continue
            here[:] = [other for other in here if not summary.less_equal(other)]
            here.append(summary)
            for source, step in self.back[location]:
                if source not in ends:
                    passes = step == identities[self.depths[source]]
                    queue.append((source, end, summary if passes else step.followed_by(summary)))
        return found

    def contracted(self, nodes: Sequence[NodePorts]) -> Topology:
        """Return the graph of some of the nodes alone, with the paths between them as arcs.

        Ports are numbered anew, in the order of the nodes. What is outstanding at these ports can
        reach the same of them at the same times as in the whole: all laws are kept, the order too.

        >>> builder = TopologyBuilder()
        >>> a, b, c = (builder.node(name, inputs=[1], outputs=[1]) for name in "abc")
        >>> builder.edge(a.outputs[0], b.inputs[0])
        >>> builder.edge(b.outputs[0], c.inputs[0])
        >>> builder.build().contracted([a, c]).arcs[1]
        ((2, Summary(input_depth=1, advance=(0,), append=())),)
        """
        ports = [port for node in nodes for port in (*node.inputs, *node.outputs)]
        number = {port: at for at, port in enumerate(ports)}
        kept = [
            NodePorts(
                node.name,
                tuple(number[port] for port in node.inputs),
                tuple(number[port] for port in node.outputs),
            )
            for node in nodes
        ]
        arcs: list[tuple[tuple[Location, Summary], ...]] = []
        for port in ports:
            steps: list[tuple[Location, Summary]] = []
            for onward, step in self.arcs[port]:
                for to, summaries in self.paths(onward, number).items():
                    if to in number:
                        steps += [(number[to], step.followed_by(each)) for each in summaries]
            arcs.append(tuple(steps))
        return Topology(
            nodes=tuple(kept),
            depths=tuple(self.depths[port] for port in ports),
            owners=tuple(node for node in kept for _ in (*node.inputs, *node.outputs)),
            is_input=tuple(self.is_input[port] for port in ports),
            arcs=tuple(arcs),
            back=_turned(arcs),
            ranks=tuple(self.ranks[port] for port in ports),
        )


class TopologyBuilder:
    """Collects nodes and edges, and checks them when the topology is built.

    >>> builder = TopologyBuilder()
    >>> a = builder.node("a", inputs=[1], outputs=[1])
    >>> b = builder.node("b", inputs=[1], outputs=[1])
    >>> builder.edge(a.outputs[0], b.inputs[0])
    >>> builder.edge(b.outputs[0], a.inputs[0])
    >>> builder.build()
    Traceback (most recent call last):
    ...
    riverrun.errors.PlanError: cannot build the topology: the cycle 'a' -> 'b' -> 'a' ...
    Hint: close the cycle through a feedback node of the loop that all of it is in
    """

    def __init__(self) -> None:
        self._nodes: list[NodePorts] = []
        self._depths: list[int] = []
        self._owners: list[NodePorts] = []
        self._is_input: list[bool] = []
        self._arcs: list[dict[Location, Summary]] = []

    def node(
        self,
        name: str,
        *,
        inputs: Sequence[int] = (),
        outputs: Sequence[int] = (),
        summaries: Mapping[tuple[int, int], Summary | None] | None = None,
    ) -> NodePorts:
        """Add a node with the given depths of its ports.

        ``summaries`` says, by index of the input and the output, what happens to time between
        them: ``None`` where nothing passes. Where it says nothing, time passes unchanged.

        >>> builder = TopologyBuilder()
        >>> builder.node("count", inputs=[1], outputs=[1, 1], summaries={(0, 1): None})
        NodePorts(name='count', inputs=(0,), outputs=(1, 2))
        """
        for depth in (*inputs, *outputs):
            if depth < 1:
                raise PlanError(
                    "plan.depth",
                    f"cannot add node {name!r}: a port of depth {depth}; every time has an epoch",
                    hint="the depth of a port is 1, and one more for each loop around it",
                    node=name,
                    depth=depth,
                )
        start = len(self._depths)
        middle = start + len(inputs)
        ports = NodePorts(
            name, tuple(range(start, middle)), tuple(range(middle, middle + len(outputs)))
        )
        given = dict(summaries or {})
        inner: list[dict[Location, Summary]] = [{} for _ in range(len(inputs) + len(outputs))]
        for i, depth in enumerate(inputs):
            for o, output_depth in enumerate(outputs):
                summary = given.pop((i, o)) if (i, o) in given else Summary.identity(depth)
                if summary is None:
                    continue
                if (summary.input_depth, summary.output_depth) != (depth, output_depth):
                    raise PlanError(
                        "plan.depth",
                        f"cannot add node {name!r}: a summary from depth {summary.input_depth} to "
                        f"{summary.output_depth} between input {i} of depth {depth} and output {o} "
                        f"of depth {output_depth}; they must agree",
                        hint="give a summary that enters or leaves, or None where nothing passes",
                        node=name,
                        input=i,
                        output=o,
                    )
                inner[i][middle + o] = summary
        if given:
            raise PlanError(
                "plan.port",
                f"cannot add node {name!r}: summaries for {sorted(given)}, but it has "
                f"{len(inputs)} inputs and {len(outputs)} outputs",
                hint="a summary is given for (index of an input, index of an output)",
                node=name,
                ports=sorted(given),
            )
        self._nodes.append(ports)
        self._depths += (*inputs, *outputs)
        self._owners += [ports] * len(inner)
        self._is_input += [True] * len(inputs) + [False] * len(outputs)
        self._arcs += inner
        return ports

    def enter(self, name: str, depth: int) -> NodePorts:
        """Add a node through which messages at ``depth`` enter a loop."""
        return self._passage(name, Summary.enter(depth))

    def leave(self, name: str, depth: int) -> NodePorts:
        """Add a node through which messages at ``depth`` leave the loop around them."""
        return self._passage(name, Summary.leave(depth))

    def feedback(self, name: str, depth: int, by: int = 1) -> NodePorts:
        """Add a node through which messages at ``depth`` start the next round."""
        return self._passage(name, Summary.feedback(depth, by))

    def _passage(self, name: str, summary: Summary) -> NodePorts:
        return self.node(
            name,
            inputs=[summary.input_depth],
            outputs=[summary.output_depth],
            summaries={(0, 0): summary},
        )

    def edge(self, source: Location, target: Location) -> None:
        """Connect an output to an input of the same depth.

        >>> builder = TopologyBuilder()
        >>> a, b = builder.node("a", outputs=[1]), builder.node("b", inputs=[2])
        >>> builder.edge(a.outputs[0], b.inputs[0])
        Traceback (most recent call last):
        ...
        riverrun.errors.PlanError: cannot connect output 0 of 'a', of depth 1, to input 0 ...
        Hint: enter or leave a loop in between
        """
        for location, is_input in ((source, False), (target, True)):
            if not 0 <= location < len(self._depths) or self._is_input[location] != is_input:
                raise PlanError(
                    "plan.port",
                    f"cannot connect port {source} to port {target}: an edge goes from an output "
                    f"to an input, and port {location} is not such a one",
                    hint="take the ports from what node() returned",
                    source=source,
                    target=target,
                )
        if self._depths[source] != self._depths[target]:
            describe = self._unchecked().describe
            raise PlanError(
                "plan.depth",
                f"cannot connect {describe(source)}, of depth {self._depths[source]}, to "
                f"{describe(target)}, of depth {self._depths[target]}: an edge changes no time",
                hint="enter or leave a loop in between",
                source=source,
                target=target,
            )
        self._arcs[source][target] = Summary.identity(self._depths[source])

    def build(self) -> Topology:
        """Check the laws and return the topology."""
        return self._unchecked(_ranks(self._arcs, self._owners))

    def _unchecked(self, ranks: Iterable[Sequence[tuple[int, int]]] = ()) -> Topology:
        arcs = tuple(tuple(arcs.items()) for arcs in self._arcs)
        return Topology(
            nodes=tuple(self._nodes),
            depths=tuple(self._depths),
            owners=tuple(self._owners),
            is_input=tuple(self._is_input),
            arcs=arcs,
            back=_turned(arcs),
            ranks=tuple(map(tuple, ranks)),
        )


def _turned(
    arcs: Sequence[Sequence[tuple[Location, Summary]]],
) -> tuple[tuple[tuple[Location, Summary], ...], ...]:
    """Return the arcs as seen from where they end."""
    back: list[list[tuple[Location, Summary]]] = [[] for _ in arcs]
    for source, steps in enumerate(arcs):
        for target, summary in steps:
            back[target].append((source, summary))
    return tuple(map(tuple, back))


def _ranks(
    arcs: Sequence[Mapping[Location, Summary]], owners: Sequence[NodePorts]
) -> list[list[tuple[int, int]]]:
    """Return the numbers of law 3 for every location, or raise where law 2 is broken."""
    ranks: list[list[tuple[int, int]]] = [[] for _ in arcs]
    parts = [(set(range(len(arcs))), 0)]
    while parts:
        members, level = parts.pop()
        # The arcs that stay in this part and advance no coordinate before `level`.
        following: Following = {
            location: [
                target
                for target, summary in arcs[location].items()
                if target in members and not any(summary.advance[:level])
            ]
            for location in sorted(members)
        }
        components = _components(following)
        for number, component in enumerate(components):
            if len(components) > 1 or level == 0:  # a number that all share decides nothing
                for location in component:
                    ranks[location].append((level, number))
            if len(component) == 1:  # no port is connected to itself
                continue
            inside = set(component)
            for source in component:
                for target in following[source]:
                    if target in inside and arcs[source][target].keep <= level:
                        raise _standing_still(_path(target, source, following), owners)
            parts.append((inside, level + 1))
    return ranks


def _components(following: Following) -> list[list[Location]]:
    """Return the strongly connected components, each before those it leads to (Tarjan's)."""
    found: list[list[Location]] = []
    index: dict[Location, int] = {}
    low: dict[Location, int] = {}
    open_: dict[Location, None] = {}  # an ordered set: the stack of what is not in a component yet
    for root in following:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        open_[root] = None
        walk = [(root, iter(following[root]))]
        while walk:
            location, targets = walk[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    open_[target] = None
                    walk.append((target, iter(following[target])))
                    break
                if target in open_:
                    low[location] = min(low[location], index[target])
            else:
                walk.pop()
                if walk:
                    parent = walk[-1][0]
                    low[parent] = min(low[parent], low[location])
                if low[location] == index[location]:
                    component: list[Location] = []
                    while not component or component[-1] != location:
                        component.append(open_.popitem()[0])
                    found.append(component)
    return found[::-1]


def _path(start: Location, end: Location, following: Following) -> list[Location]:
    """Return a shortest path from ``start`` to ``end``."""
    came: dict[Location, Location] = {start: start}
    queue = [start]
    for location in queue:
        for target in following[location]:
            if target not in came:
                came[target] = location
                queue.append(target)
    path = [end]
    while path[-1] != start:
        path.append(came[path[-1]])
    return path[::-1]


def _standing_still(cycle: list[Location], owners: Sequence[NodePorts]) -> PlanError:
    nodes: list[NodePorts] = []
    for location in cycle:
        if owners[location] not in nodes[-1:]:
            nodes.append(owners[location])
    if len(nodes) > 1 and nodes[0] == nodes[-1]:
        nodes.pop()
    first = min(range(len(nodes)), key=lambda i: nodes[i].name)  # a cycle is told in one way
    names = [node.name for node in nodes[first:] + nodes[:first]]
    told = " -> ".join(repr(name) for name in (*names, names[0]))
    return PlanError(
        "plan.cycle",
        f"cannot build the topology: the cycle {told} can bring a message back at or before the "
        "time it started with; every cycle must advance a coordinate that survives all of it",
        hint="close the cycle through a feedback node of the loop that all of it is in",
        nodes=names,
    )
