"""Topology: the shape of a dataflow graph, as far as time is concerned.

``plan.plan`` builds the topology of a program; trackers and ledgers (``reachability``) and borders
(``crossing``) count progress on it. Nodes have input and output ports. Every port is a *location*,
numbered in the order in which the ports were added, so workers that build the same plan mean the same
port by the same number. An *arc* leads from a port to the next: from an output to an input along an
edge, where time stays as it is; or from an input to an output of the same node, where time changes as
a :class:`~riverrun.progress.Summary` says. (A node need not have an arc from each input to each
output.) A loop is entered, gone around and left through nodes that do nothing else.

Laws:

- **Depths agree.** The ports that an edge or a summary connects have the depths that it needs.
- **No early return.** No cycle brings a message back at or before the time with which the message
  set out. Then "a message at this port and time could cause a message at that port and time" is a
  partial order (*could-result-in*), and frontiers are well defined.
- **Sortable order.** ``order(location, time)`` gives tuples that extend could-result-in to a linear
  order: the tuple grows strictly along every arc, and with the time at one location.

The *no early return* law does not say that cycles advance in the product order. A message that
leaves an inner loop, goes around the outer loop and enters the inner loop again has turned
``(e, 3, 7)`` into ``(e, 4, 0)``; these two times are not comparable. The law asks that every cycle
advances a coordinate that survives the whole cycle.

How the builder checks *no early return* and finds the tuples of *sortable order*, without looking at
cycles one by one: Split the graph into strongly connected components and number the components along
the arcs; an arc between components ends at a larger number. Inside a component every arc has to keep
coordinate 0, since an arc that forgets coordinate 0 is on a cycle that keeps nothing. Now leave out
the arcs that advance coordinate 0, and split each component again; inside each new component every
arc has to keep coordinate 1; and so on. An arc that fails to keep its coordinate is on a cycle
that advances no coordinate which survives the cycle: then *no early return* is broken.
When all components are single ports, the tuple of a port and time puts the port's numbers between
the coordinates of the time: ``number, epoch, number, round, number, ...``. An arc either ends at a
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

Cost: building takes time linear in the size of the graph, times the deepest nesting. ``ways`` finds the paths from
every port to some ports, the *ends*. It looks at an arc once for each end to which a path leads on from the arc, and
for each summary of such a path, of which only the least are kept. Where that would be many, ``hubs`` names ports on
these paths that make them few when they are added to the ends.
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

Successors: TypeAlias = dict[Location, list[Location]]
"""For each port of a part of the graph, the ports of that part to which arcs lead from it."""

Arcs: TypeAlias = Sequence[Sequence[tuple[Location, Summary]]]
"""For every port, the ports to which arcs lead from it, and how time changes on the way."""

Ways: TypeAlias = dict[Location, list[Summary]]
"""For one port, the ports at the other end of paths, each with the summaries of these paths."""


@dataclass(frozen=True, slots=True)
class NodePorts:
    """A node's name and the locations of its ports."""

    name: str
    inputs: tuple[Location, ...]
    outputs: tuple[Location, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """A graph that keeps the laws of this module; :class:`TopologyBuilder` builds it.

    All fields but ``nodes`` have an entry for every location.
    """

    nodes: tuple[NodePorts, ...]
    depths: tuple[int, ...]
    owners: tuple[NodePorts, ...]
    is_input: tuple[bool, ...]
    arcs: tuple[tuple[tuple[Location, Summary], ...], ...]
    """The arcs that begin at a location: of an output its edges, of an input those to outputs of its node."""
    back: tuple[tuple[tuple[Location, Summary], ...], ...]
    """The same arcs by the location at which they end, each with the location at which it begins."""
    ranks: tuple[tuple[tuple[int, int], ...], ...]
    """The numbers in tuples of the *sortable order*, each after the index of the coordinate that it stands before."""

    def describe(self, location: Location) -> str:
        """Return the name of a port, for people."""
        owner = self.owners[location]
        if self.is_input[location]:
            return f"input {owner.inputs.index(location)} of {owner.name!r}"
        return f"output {owner.outputs.index(location)} of {owner.name!r}"

    def order(self, location: Location, time: Timestamp) -> tuple[int, ...]:
        """Return a tuple that sorts a pointstamp after all that could result in it (the *sortable order* law)."""
        rank = self.ranks[location]
        if len(rank) == 1:  # not in a loop
            return (rank[0][1], *time)
        if len(rank) == 2:  # in one loop
            (_, first), (cut, second) = rank
            return (first, *time[:cut], second, *time[cut:])
        interleaved: list[int] = []
        start = 0
        for cut, number in rank:
            interleaved += time[start:cut]
            interleaved.append(number)
            start = cut
        interleaved += time[start:]
        return tuple(interleaved)

    def ways(self, ends: Collection[Location]) -> list[Ways]:
        """Return, for every port, the ``ends`` that paths from the port come to first, with the paths' summaries.

        Of the summaries between two ports only the minimal ones are kept. From an end the only path is the empty one,
        to that end itself.

        The search walks the arcs backwards from the ends. It terminates: a summary is followed only if no summary
        already at the same port is at or before it; and summaries consist of numbers >= 0, of which there is no
        infinite sequence in which no member is at or before a later one.

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
        """Return, for every port, the ``starts`` from which paths lead to the port with no other start in between.

        The same as ``ways``, with all arcs reversed.

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
        """The search of ``ways`` and ``ways_from``: along ``arcs``, from the ports in ``ends``.

        ``extended`` gives the summary of a path that is longer by one arc.
        """
        ways_by_port: list[Ways] = [{} for _ in self.depths]
        identities = {depth: Summary.identity(depth) for depth in set(self.depths)}
        queue = deque((end, end, identities[self.depths[end]]) for end in sorted(ends))
        while queue:
            location, end, summary = queue.popleft()
            if not _add_minimal(ways_by_port[location].setdefault(end, []), summary):
                continue
            for onward, step in arcs[location]:
                if onward not in ends:
                    unchanged = step == identities[self.depths[onward]]
                    queue.append((onward, end, summary if unchanged else extended(step, summary)))
        return ways_by_port

    def hubs(self, ends: Collection[Location], max_ways: int) -> list[Location]:
        """Return *hubs*: ports that keep the ``ways`` few when they are added to the ends.

        With the hubs among the ends, few ports have ways to more than ``max_ways`` ends, and such a port has an arc
        for each of its ways. Where n ports lead into one port, and that port leads to n ends, there are n * n ways;
        with that port as a hub there are 2 * n.

        >>> builder = TopologyBuilder()
        >>> a, b, c = (builder.node(name, inputs=[1], outputs=[1]) for name in "abc")
        >>> for to in (b, c):
        ...     builder.edge(a.outputs[0], to.inputs[0])
        >>> ends = [*b.inputs, *c.inputs]
        >>> builder.build().hubs(ends, max_ways=1), builder.build().hubs(ends, max_ways=2)
        ([1], [])
        """
        return self._hubs(ends, max_ways, self.arcs, last_first=True)

    def hubs_from(self, starts: Collection[Location], max_ways: int) -> list[Location]:
        """Return ports that keep the ``ways_from`` few when they are added to the starts; see ``hubs``."""
        return self._hubs(starts, max_ways, self.back, last_first=False)

    def _hubs(
        self, ends: Collection[Location], max_ways: int, arcs: Arcs, *, last_first: bool
    ) -> list[Location]:
        places = sorted(
            range(len(self.depths)),
            key=lambda at: self.order(at, (0,) * self.depths[at]),
            reverse=last_first,
        )
        hubs: list[Location] = []
        counts = dict.fromkeys(ends, 1)
        for location in places:
            if location in counts:
                continue
            # A port that is not counted yet is reached by the way back around a loop.
            count = sum([counts.get(onward, 1) for onward, _ in arcs[location]])
            if count > max_ways:
                hubs.append(location)
            counts[location] = count if count <= max_ways else 1
        return sorted(hubs)

    def contracted(
        self,
        nodes: Sequence[NodePorts],
        hubs: Sequence[Location] = (),
        cut: Collection[Location] = (),
    ) -> Topology:
        """Return a smaller graph: only these nodes and ``hubs``, with the paths between their ports as arcs.

        Ports are numbered anew: the ports of the nodes in the order of the nodes, then the hubs. Between these ports
        the same pointstamps could result in the same as in the whole graph, except that nothing passes on from the
        ports in ``cut``. So the smaller graph keeps all laws, and the tuples of the *sortable order* stay the same.

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
        contracted_nodes = [
            NodePorts(
                node.name,
                tuple(number[port] for port in node.inputs),
                tuple(number[port] for port in node.outputs),
            )
            for node in nodes
        ]
        contracted_nodes += [NodePorts(self.describe(port), (), (number[port],)) for port in hubs]
        ways = self.ways(number)
        arcs: list[tuple[tuple[Location, Summary], ...]] = []
        for port in ports:
            steps: Ways = {}
            for onward, step in () if port in cut else self.arcs[port]:
                for to, summaries in ways[onward].items():
                    for summary in summaries:
                        _add_minimal(steps.setdefault(number[to], []), step.followed_by(summary))
            arcs.append(
                tuple([(to, summary) for to, summaries in steps.items() for summary in summaries])
            )
        return Topology(
            nodes=tuple(contracted_nodes),
            depths=tuple(self.depths[port] for port in ports),
            owners=tuple(node for node in contracted_nodes for _ in (*node.inputs, *node.outputs)),
            is_input=tuple(
                at in node.inputs
                for node in contracted_nodes
                for at in (*node.inputs, *node.outputs)
            ),
            arcs=tuple(arcs),
            back=_reversed_arcs(arcs),
            ranks=tuple(self.ranks[port] for port in ports),
        )


def _add_minimal(summaries: list[Summary], summary: Summary) -> bool:
    """Add ``summary``, unless a listed summary is at or before it, and drop later ones; return whether it was added."""
    if any(other.less_equal(summary) for other in summaries):
        return False
    summaries[:] = [other for other in summaries if not summary.less_equal(other)]
    summaries.append(summary)
    return True


class TopologyBuilder:
    """Collects nodes and edges; ``build`` checks the laws and returns the topology.

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
        """Add a node. ``inputs`` and ``outputs`` are the depths of its ports.

        ``summaries`` says, by (index of an input, index of an output), how time changes between
        the two; ``None`` means that nothing passes. For pairs that are not in ``summaries`` time
        passes unchanged.

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
        unused = dict(summaries or {})  # the summaries of pairs that were not looked at yet
        inner: list[dict[Location, Summary]] = [{} for _ in range(len(inputs) + len(outputs))]
        for i, depth in enumerate(inputs):
            for o, output_depth in enumerate(outputs):
                summary = unused.pop((i, o)) if (i, o) in unused else Summary.identity(depth)
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
        if unused:
            raise PlanError(
                "plan.port",
                f"cannot add node {name!r}: summaries for {sorted(unused)}, but it has "
                f"{len(inputs)} inputs and {len(outputs)} outputs",
                hint="a summary is given for (index of an input, index of an output)",
                node=name,
                ports=sorted(unused),
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
            back=_reversed_arcs(arcs),
            ranks=tuple(map(tuple, ranks)),
        )


def _reversed_arcs(arcs: Arcs) -> tuple[tuple[tuple[Location, Summary], ...], ...]:
    """Return, for every port, the arcs that end there, each with the port at which it begins."""
    back: list[list[tuple[Location, Summary]]] = [[] for _ in arcs]
    for source, steps in enumerate(arcs):
        for target, summary in steps:
            back[target].append((source, summary))
    return tuple(map(tuple, back))


def _ranks(
    arcs: Sequence[Mapping[Location, Summary]], owners: Sequence[NodePorts]
) -> list[list[tuple[int, int]]]:
    """Return the numbers of the *sortable order* for every location; raise if *no early return* is broken.

    The head of this module describes the method. Here ``level`` is the coordinate that arcs have to keep.
    """
    ranks: list[list[tuple[int, int]]] = [[] for _ in arcs]
    parts = [(set(range(len(arcs))), 0)]
    while parts:
        members, level = parts.pop()
        # The arcs that stay in this part and advance no coordinate before `level`.
        successors: Successors = {
            location: [
                target
                for target, summary in arcs[location].items()
                if target in members and not any(summary.advance[:level])
            ]
            for location in sorted(members)
        }
        components = _components(successors)
        for number, component in enumerate(components):
            if len(components) > 1 or level == 0:  # a number that all ports share decides nothing
                for location in component:
                    ranks[location].append((level, number))
            if len(component) == 1:  # no port is connected to itself
                continue
            inside = set(component)
            for source in component:
                for target in successors[source]:
                    if target in inside and arcs[source][target].keep <= level:
                        raise _early_return(_shortest_path(target, source, successors), owners)
            parts.append((inside, level + 1))
    return ranks


def _components(successors: Successors) -> list[list[Location]]:
    """Return the strongly connected components, each before those to which it leads (Tarjan's algorithm)."""
    components: list[list[Location]] = []
    index: dict[Location, int] = {}
    low: dict[Location, int] = {}
    open_: dict[Location, None] = {}  # an ordered set: the stack of ports in no component yet
    for root in successors:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        open_[root] = None
        walk = [(root, iter(successors[root]))]
        while walk:
            location, targets = walk[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    open_[target] = None
                    walk.append((target, iter(successors[target])))
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
                    components.append(component)
    return components[::-1]


def _shortest_path(start: Location, end: Location, successors: Successors) -> list[Location]:
    """Return a shortest path from ``start`` to ``end``."""
    came_from: dict[Location, Location] = {start: start}
    queue = [start]
    for location in queue:
        for target in successors[location]:
            if target not in came_from:
                came_from[target] = location
                queue.append(target)
    path = [end]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    return path[::-1]


def _early_return(cycle: list[Location], owners: Sequence[NodePorts]) -> PlanError:
    """Return the error that names the nodes of a cycle that breaks the *no early return* law."""
    nodes: list[NodePorts] = []
    for location in cycle:
        if owners[location] not in nodes[-1:]:
            nodes.append(owners[location])
    if len(nodes) > 1 and nodes[0] == nodes[-1]:
        nodes.pop()
    first = min(range(len(nodes)), key=lambda i: nodes[i].name)  # one text for one cycle
    names = [node.name for node in nodes[first:] + nodes[:first]]
    shown = " -> ".join(repr(name) for name in (*names, names[0]))
    return PlanError(
        "plan.cycle",
        f"cannot build the topology: the cycle {shown} can bring a message back at or before the "
        "time it started with; every cycle must advance a coordinate that survives all of it",
        hint="close the cycle through a feedback node of the loop that all of it is in",
        nodes=names,
    )
