"""Hypothesis strategies shared by the tests.

Times have 1 to 4 coordinates: three nested rounds reach cases that two do not. Random graphs are drawn from a seed, so
that a failure can be repeated from the numbers that Hypothesis prints. Each graph comes with a second description, in
plain tuples, for models that must not rely on the code under test.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import strategies as st

from riverrun.progress import (
    Antichain,
    Location,
    NodePorts,
    Summary,
    Timestamp,
    Topology,
    TopologyBuilder,
)

MAX_DEPTH = 4

depths = st.integers(1, MAX_DEPTH)


def times(depth: int, largest: int = 4) -> st.SearchStrategy[Timestamp]:
    return st.tuples(*[st.integers(0, largest)] * depth)


def time_lists(
    depth: int, *, min_size: int = 0, max_size: int = 6
) -> st.SearchStrategy[list[Timestamp]]:
    return st.lists(times(depth), min_size=min_size, max_size=max_size)


def antichains(depth: int, *, min_size: int = 0) -> st.SearchStrategy[Antichain]:
    return time_lists(depth, min_size=min_size).map(Antichain)


def summaries(depth: int, output_depth: int | None = None) -> st.SearchStrategy[Summary]:
    """Any summary from ``depth``, to ``output_depth`` if given."""

    @st.composite
    def draw_summary(draw: st.DrawFn) -> Summary:
        ends = draw(depths) if output_depth is None else output_depth
        keep = draw(st.integers(0, min(depth, ends)))
        return Summary(depth, draw(times(keep, 2)), draw(times(ends - keep, 2)))

    return draw_summary()


# The effect of an arc on a time, in plain words: ("same",), ("enter",), ("leave",) or ("advance", index, by).
Step = tuple[str] | tuple[str, int, int]


def take_step(step: Step, time: Timestamp) -> Timestamp:
    match step:
        case ("same",):
            return time
        case ("enter",):
            return (*time, 0)
        case ("leave",):
            return time[:-1]
        case ("advance", index, by):
            return (*time[:index], time[index] + by, *time[index + 1 :])
    raise AssertionError(step)


def summary_of(step: Step, depth: int) -> Summary:
    match step:
        case ("enter",):
            return Summary.enter(depth)
        case ("leave",):
            return Summary.leave(depth)
        case ("advance", index, by):
            return Summary(depth, (*(0,) * index, by, *(0,) * (depth - index - 1)))
    return Summary.identity(depth)


@dataclass
class Graph:
    """A topology, and its plain description: (location, location, step) for every arc."""

    builder: TopologyBuilder = field(default_factory=TopologyBuilder)
    nodes: list[NodePorts] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    steps: dict[Location, list[tuple[Location, Step]]] = field(default_factory=dict)
    topology: Topology = field(init=False)

    def node(
        self, inputs: list[int], outputs: list[int], inner: dict[tuple[int, int], Step | None]
    ) -> NodePorts:
        """``inner`` maps every pair of an input and an output to its step; None where there is no path."""
        ports = self.builder.node(
            f"n{len(self.nodes)}",
            inputs=inputs,
            outputs=outputs,
            summaries={
                (i, o): None if step is None else summary_of(step, inputs[i])
                for (i, o), step in inner.items()
            },
        )
        self.nodes.append(ports)
        self.depths += inputs + outputs
        for (i, o), step in inner.items():
            if step is not None:
                self.steps.setdefault(ports.inputs[i], []).append((ports.outputs[o], step))
        return ports

    def edge(self, source: Location, target: Location) -> None:
        arcs = self.steps.setdefault(source, [])
        if (target, ("same",)) not in arcs:
            self.builder.edge(source, target)
            arcs.append((target, ("same",)))

    def build(self) -> Graph:
        self.topology = self.builder.build()
        return self

    @property
    def inputs(self) -> list[Location]:
        return [location for node in self.nodes for location in node.inputs]

    @property
    def outputs(self) -> list[Location]:
        return [location for node in self.nodes for location in node.outputs]


def nested_graph(seed: int, size: int = 4, max_depth: int = MAX_DEPTH) -> Graph:
    """A random graph: loops in loops, several at a level, acyclic edges between.

    Some ports are not connected, some have many edges, some pairs of an input and an output have
    no path, and some nodes advance time without being on a cycle.
    """
    rng = random.Random(seed)
    graph = Graph()

    def connect(available: list[Location], target: Location, least: int = 0) -> None:
        for _ in range(max(least, rng.choice((0, 1, 1, 2, 2, 3)))):
            # Mostly the latest node: then chains are long, and cycles pass through inner loops.
            graph.edge(rng.choice(available[-3:] if rng.random() < 0.8 else available), target)

    def plain(available: list[Location], depth: int) -> None:
        inputs, outputs = rng.choice(
            ((0, 1), (1, 1), (1, 1), (1, 1), (2, 1), (2, 1), (1, 2), (2, 2), (1, 0))
        )
        inner: dict[tuple[int, int], Step | None] = {}
        for i in range(inputs):
            for o in range(outputs):
                kind = rng.random()
                inner[i, o] = ("same",) if kind < 0.8 else None
                if kind > 0.9:
                    inner[i, o] = ("advance", rng.randrange(depth), rng.choice((1, 1, 2)))
        ports = graph.node([depth] * inputs, [depth] * outputs, inner)
        for target in ports.inputs:
            connect(available, target)
        available += ports.outputs

    def loop(available: list[Location], depth: int, size: int) -> None:
        inside: list[Location] = []
        for _ in range(rng.choice((1, 1, 2))):
            ports = graph.node([depth], [depth + 1], {(0, 0): ("enter",)})
            connect(available, ports.inputs[0])
            inside += ports.outputs
        backs = []
        for _ in range(rng.choice((1, 1, 2))):
            # Mostly the innermost round, at times an outer one.
            index = depth if rng.random() < 0.85 else rng.randrange(depth + 1)
            step = ("advance", index, rng.choice((1, 1, 1, 2)))
            ports = graph.node([depth + 1], [depth + 1], {(0, 0): step})
            backs.append(ports.inputs[0])
            inside += ports.outputs
        rng.shuffle(inside)
        scope(inside, depth + 1, size)
        for target in backs:
            connect(inside, target, least=1)
        for _ in range(rng.choice((1, 1, 2))):
            ports = graph.node([depth + 1], [depth], {(0, 0): ("leave",)})
            connect(inside, ports.inputs[0])
            available += ports.outputs

    def scope(available: list[Location], depth: int, size: int) -> None:
        for _ in range(rng.randint((size + 1) // 2, max(1, size))):
            if depth < max_depth and size > 0 and rng.random() < 0.6:
                loop(available, depth, size - 1)
            else:
                plain(available, depth)

    source = graph.node([], [1], {})
    scope(list(source.outputs), 1, size)
    return graph.build()


seeds = st.integers(0, 2**32 - 1)
nested_graphs = st.builds(nested_graph, seeds, st.integers(1, 5))
graphs_without_loops = st.builds(nested_graph, seeds, st.integers(1, 8), st.just(1))
