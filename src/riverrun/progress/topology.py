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

Cost: building takes time linear in the size of the graph, times the deepest nesting; ``ways`` looks at every
arc, once for each end and incomparable summary that it leads to: ``hubs`` keep those few.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from riverrun.errors import PlanError

from .summary import Summary
from .timestamp import Timestamp

__all__ = ["Location", "NodePorts", "Topology", "TopologyBuilder"]

Location: TypeAlias = int
"""A port: the number that the builder gave it."""

Following: TypeAlias = dict[Location, list[Location]]

Arcs: TypeAlias = Sequence[Sequence[tuple[Location, Summary]]]
"""For every port, those that come next, and what happens to time on the way there."""

Ways: TypeAlias = dict[Location, list[Summary]]
"""Ports, each with what paths between it and one port do to time."""


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

    def ways(self, ends: Collection[Location]) -> list[Ways]:
        """Return, for every port, the ``ends`` that paths from it come to first, and what they do to time.

        Of the summaries between two ports only the minimal ones are kept. An end comes to itself, and to no other.

        It is walked backwards, from the ends. That comes to an end: a summary is followed only if none found at its
        port is at or before it, and of numbers that only grow there is no infinite sequence in which none is at or
        before a later one.

        >>> builder = TopologyBuilder()
        >>> a, b = (builder.node(name, inputs=[1], outputs=[1]) for name in "ab")
        >>> builder.edge(a.outputs[0], b.inputs[0])
        >>> [sorted(ways) for ways in builder.build().ways({2})]
        [[2], [2], [2], []]
        """

        def before(step: Summary, summary: Summary) -> Summary:
            return step.followed_by(summary)

        return self._walk(ends, self.back, before)

    def ways_from(self, starts: Collection[Location]) -> list[Ways]:
        """Return, for every port, the ``starts`` from which paths come to it with no other start in between.

        The same as ``ways``, seen from the other end.

        >>> builder = TopologyBuilder()
        >>> a, b = (builder.node(name, inputs=[1], outputs=[1]) for name in "ab")
        >>> builder.edge(a.outputs[0], b.inputs[0])
        >>> [sorted(ways) for ways in builder.build().ways_from({1})]
        [[], [1], [1], [1]]
        """

        def behind(step: Summary, summary: Summary) -> Summary:
            return summary.followed_by(step)

        return self._walk(starts, self.arcs, behind)

    def _walk(
        self,
        ends: Collection[Location],
        arcs: Arcs,
        extended: Callable[[Summary, Summary], Summary],
    ) -> list[Ways]:
        found: list[Ways] = [{} for _ in self.depths]
        identities = {depth: Summary.identity(depth) for depth in set(self.depths)}
        queue = deque((end, end, identities[self.depths[end]]) for end in sorted(ends))
        while queue:
            location, end, summary = queue.popleft()
            if not _add_minimal(found[location].setdefault(end, []), summary):
                continue
            for onward, step in arcs[location]:
                if onward not in ends:
                    passes = step == identities[self.depths[onward]]
                    queue.append((onward, end, summary if passes else extended(step, summary)))
        return found

    def hubs(self, ends: Collection[Location], most: int) -> list[Location]:
        """Return ports that keep ``ways`` few when they are ends too: few ports have ways to more than ``most`` ends
        then, and these have an arc for each of them.

        Where n ports lead into one and that to n ends, there are n * n ways, and 2 * n with it.

        >>> builder = TopologyBuilder()
        >>> a, b, c = (builder.node(name, inputs=[1], outputs=[1]) for name in "abc")
        >>> for to in (b, c):
        ...     builder.edge(a.outputs[0], to.inputs[0])
        >>> ends = [*b.inputs, *c.inputs]
        >>> builder.build().hubs(ends, most=1), builder.build().hubs(ends, most=2)
        ([1], [])
        """
        return self._hubs(ends, most, self.arcs, last_first=True)

    def hubs_from(self, starts: Collection[Location], most: int) -> list[Location]:
        """Return ports that keep ``ways_from`` few when they are starts too."""
        return self._hubs(starts, most, self.back, last_first=False)

    def _hubs(
        self, ends: Collection[Location], most: int, arcs: Arcs, *, last_first: bool
    ) -> list[Location]:
        places = sorted(
            range(len(self.depths)),
            key=lambda at: self.order(at, (0,) * self.depths[at]),
            reverse=last_first,
        )
        found: list[Location] = []
        counts = dict.fromkeys(ends, 1)
        for location in places:
            if location in counts:
                continue
            # What is not counted yet is the way back around a loop.
            count = sum([counts.get(onward, 1) for onward, _ in arcs[location]])
            if count > most:
                found.append(location)
            counts[location] = count if count <= most else 1
        return sorted(found)

    def contracted(
        self,
        nodes: Sequence[NodePorts],
        hubs: Sequence[Location] = (),
        cut: Collection[Location] = (),
    ) -> Topology:
        """Return the graph of some of the nodes and ports alone, with the paths between them as arcs.

        Ports are numbered anew, in the order of the nodes, those that are ``hubs`` after them. What is outstanding at
        these ports can reach the same of them at the same times as in the whole, but for what passes on from ports
        that are ``cut``: all laws are kept, the order too.

        >>> builder = TopologyBuilder()
        >>> a, b, c = (builder.node(name, inputs=[1], outputs=[1]) for name in "abc")
        >>> builder.edge(a.outputs[0], b.inputs[0])
        >>> builder.edge(b.outputs[0], c.inputs[0])
        >>> builder.build().contracted([a, c]).arcs[1]
        ((2, Summary(input_depth=1, advance=(0,), append=())),)
        """
        ports = [port for node in nodes for port in (*node.inputs, *node.outputs)]
        ports += hubs
        number = {port: at for at, port in enumerate(ports)}
        kept = [
            NodePorts(
                node.name,
                tuple(number[port] for port in node.inputs),
                tuple(number[port] for port in node.outputs),
            )
            for node in nodes
        ]
        kept += [NodePorts(self.describe(port), (), (number[port],)) for port in hubs]
        ways = self.ways(number)
        arcs: list[tuple[tuple[Location, Summary], ...]] = []
        for port in ports:
            steps: Ways = {}
            for onward, step in () if port in cut else self.arcs[port]:
                for to, summaries in ways[onward].items():
                    for each in summaries:
                        _add_minimal(steps.setdefault(number[to], []), step.followed_by(each))
            arcs.append(
                tuple([(to, each) for to, summaries in steps.items() for each in summaries])
            )
        return Topology(
            nodes=tuple(kept),
            depths=tuple(self.depths[port] for port in ports),
            owners=tuple(node for node in kept for _ in (*node.inputs, *node.outputs)),
            is_input=tuple(
                at in node.inputs for node in kept for at in (*node.inputs, *node.outputs)
            ),
            arcs=tuple(arcs),
            back=_turned(arcs),
            ranks=tuple(self.ranks[port] for port in ports),
        )


def _add_minimal(summaries: list[Summary], summary: Summary) -> bool:
    """Add a summary, unless one that is there is at or before it; whether it was added."""
    if any(other.less_equal(summary) for other in summaries):
        return False
    summaries[:] = [other for other in summaries if not summary.less_equal(other)]
    summaries.append(summary)
    return True


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
