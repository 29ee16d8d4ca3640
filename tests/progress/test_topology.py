"""Topologies: which graphs are refused, and the order of pointstamps in those that are not."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings

from riverrun.errors import PlanError
from riverrun.progress import Antichain, Summary, TopologyBuilder, Tracker
from tests.progress.model import at_or_before, earliest
from tests.strategies import Graph, Step, nested_graphs, seeds, take_step


@given(nested_graphs)
def test_the_order_grows_along_every_arc_and_with_time(graph: Graph) -> None:
    rng = random.Random(len(graph.depths))
    order = graph.topology.order
    for location, depth in enumerate(graph.depths):
        a, b = (tuple(rng.randrange(4) for _ in range(depth)) for _ in range(2))
        assert (order(location, a) < order(location, b)) == (a < b)
        for target, step in graph.steps.get(location, ()):
            assert order(location, a) < order(target, take_step(step, a))


@given(nested_graphs)
def test_different_pointstamps_have_different_turns(graph: Graph) -> None:
    turns = [
        graph.topology.order(location, time)
        for location, depth in enumerate(graph.depths)
        for time in itertools.product((0, 1), repeat=depth)
    ]
    assert len(set(turns)) == len(turns)


@given(nested_graphs)
def test_a_topology_tells_what_was_built(graph: Graph) -> None:
    topology = graph.topology
    assert list(topology.depths) == graph.depths
    for location in range(len(graph.depths)):
        node = topology.owners[location]
        assert node in topology.nodes
        ports = node.inputs if topology.is_input[location] else node.outputs
        side = "input" if topology.is_input[location] else "output"
        assert topology.describe(location) == f"{side} {ports.index(location)} of {node.name!r}"
        arcs = graph.steps.get(location, [])
        assert sorted(to for to, _ in topology.arcs[location]) == sorted(to for to, _ in arcs)
        for target, summary in topology.arcs[location]:
            assert (location, summary) in topology.back[target]


def any_graph(seed: int) -> Graph:
    """A small graph without structure: nodes that do anything to time, edges wherever they fit."""
    rng = random.Random(seed)
    graph = Graph()
    deepest = rng.randint(1, 3)
    for _ in range(rng.randint(1, 6)):
        depth = rng.randint(1, deepest)
        steps: list[Step] = [("same",), ("enter",), ("advance", rng.randrange(depth), 1)]
        if depth > 1:
            steps.append(("leave",))
        step = rng.choice(steps)
        graph.node([depth], [depth + {"enter": 1, "leave": -1}.get(step[0], 0)], {(0, 0): step})
    for source, target in itertools.product(graph.outputs, graph.inputs):
        if graph.depths[source] == graph.depths[target] and rng.random() < 0.4:
            graph.edge(source, target)
    return graph


def standing_cycles(graph: Graph) -> list[set[str]]:
    """The nodes of every simple cycle that can end at or before the time it started with.

    A cycle that comes back after its start from times as large as this does so from every time:
    coordinates are kept, advanced, or forgotten and begun again from less than that.
    """
    owner = {port: node for node in graph.nodes for port in (*node.inputs, *node.outputs)}
    cycles = []
    for start in range(len(graph.depths)):
        time = (50,) * graph.depths[start]
        walks = [([start], time)]
        for path, now in walks:
            for target, step in graph.steps.get(path[-1], ()):
                after = take_step(step, now)
                if target == start and at_or_before(after, time):
                    cycles.append({owner[port].name for port in path})
                elif target > start and target not in path:
                    walks.append(([*path, target], after))
    return cycles


@settings(max_examples=10 * settings.default.max_examples)
@given(seeds)
def test_exactly_graphs_with_a_standing_cycle_are_refused(seed: int) -> None:
    graph = any_graph(seed)
    standing = standing_cycles(graph)
    if not standing:
        graph.build()
        return
    with pytest.raises(PlanError) as caught:
        graph.build()
    assert caught.value.code == "plan.cycle"
    assert set(caught.value.fields["nodes"]) in standing


def test_the_search_for_standing_cycles_sees_both_kinds() -> None:
    kinds = {bool(standing_cycles(any_graph(seed))) for seed in range(50)}
    assert kinds == {True, False}


def nested(*, outer_feedback: bool) -> TopologyBuilder:
    """An inner loop inside an outer cycle that advances, or does not."""
    builder = TopologyBuilder()
    enter, leave = builder.enter("enter", 2), builder.leave("leave", 3)
    inner = builder.feedback("inner", 3)
    body = builder.node("body", inputs=[3], outputs=[3])
    again = (
        builder.feedback("again", 2)
        if outer_feedback
        else builder.node("again", inputs=[2], outputs=[2])
    )
    for source, target in (
        (enter, body),
        (body, inner),
        (inner, body),
        (body, leave),
        (leave, again),
        (again, enter),
    ):
        builder.edge(source.outputs[0], target.inputs[0])
    return builder


def test_leaving_and_coming_in_again_is_an_advance_only_through_the_outer_feedback() -> None:
    assert nested(outer_feedback=True).build().ranks
    with pytest.raises(PlanError) as caught:
        nested(outer_feedback=False).build()
    assert caught.value.fields["nodes"] == ["again", "enter", "body", "leave"]
    assert "the cycle 'again' -> 'enter' -> 'body' -> 'leave' -> 'again'" in str(caught.value)


def test_a_round_that_is_forgotten_on_the_way_is_no_advance() -> None:
    builder = TopologyBuilder()
    enter, back, leave = (
        builder.enter("in", 1),
        builder.feedback("back", 2),
        builder.leave("out", 2),
    )
    builder.edge(enter.outputs[0], back.inputs[0])
    builder.edge(back.outputs[0], leave.inputs[0])
    assert builder.build().ranks
    builder.edge(leave.outputs[0], enter.inputs[0])
    with pytest.raises(PlanError) as caught:
        builder.build()
    assert caught.value.fields["nodes"] == ["back", "out", "in"]


def test_a_node_that_feeds_itself_is_named() -> None:
    builder = TopologyBuilder()
    node = builder.node("selfish", inputs=[1], outputs=[1])
    builder.edge(node.outputs[0], node.inputs[0])
    with pytest.raises(PlanError, match="the cycle 'selfish' -> 'selfish'"):
        builder.build()


def test_nothing_passes_where_the_summary_is_none() -> None:
    builder = TopologyBuilder()
    node = builder.node("cut", inputs=[1], outputs=[1], summaries={(0, 0): None})
    builder.edge(node.outputs[0], node.inputs[0])
    assert builder.build().arcs[node.inputs[0]] == ()


@pytest.mark.parametrize(
    ("inputs", "outputs", "summaries", "code"),
    [
        ([1], [2], {}, "plan.depth"),  # time cannot pass unchanged
        ([1], [1], {(0, 0): Summary.enter(1)}, "plan.depth"),
        ([1], [1], {(0, 1): None}, "plan.port"),
        ([0], [1], {}, "plan.depth"),
    ],
)
def test_a_node_that_does_not_fit_is_refused(
    inputs: list[int],
    outputs: list[int],
    summaries: dict[tuple[int, int], Summary | None],
    code: str,
) -> None:
    builder = TopologyBuilder()
    with pytest.raises(PlanError) as caught:
        builder.node("odd", inputs=inputs, outputs=outputs, summaries=summaries)
    assert caught.value.code == code
    assert caught.value.fields["node"] == "odd"
    assert builder.node("next", inputs=[1]).inputs == (0,)  # nothing of it stayed


def test_an_edge_goes_from_an_output_to_an_input_of_the_same_depth() -> None:
    builder = TopologyBuilder()
    a = builder.node("a", inputs=[1], outputs=[1])
    b = builder.node("b", inputs=[2], outputs=[2])
    for source, target, code in (
        (a.outputs[0], b.inputs[0], "plan.depth"),
        (a.inputs[0], a.inputs[0], "plan.port"),
        (a.outputs[0], b.outputs[0], "plan.port"),
        (a.outputs[0], 99, "plan.port"),
        (-1, a.inputs[0], "plan.port"),
    ):
        with pytest.raises(PlanError) as caught:
            builder.edge(source, target)
        assert caught.value.code == code
        assert (caught.value.fields["source"], caught.value.fields["target"]) == (source, target)


@given(seeds, nested_graphs)
def test_ways_say_what_can_be_reached_and_when(seed: int, graph: Graph) -> None:
    rng = random.Random(seed)
    count = len(graph.depths)
    ends = set(rng.sample(range(count), rng.choice((1, count // 4, count))))
    time = {
        port: tuple(rng.randrange(4) for _ in range(graph.depths[port])) for port in range(count)
    }
    ways, ways_from = graph.topology.ways(ends), graph.topology.ways_from(ends)
    for start in rng.sample(range(count), min(count, 5)):
        # The first port of a path may be an end itself, and is left; or a path stays there.
        for first, summaries_by_end in (
            (False, lambda start=start: ways[start]),
            (True, lambda start=start: {to: ways_from[to].get(start, []) for to in range(count)}),
        ):
            if first is not (start in ends):
                continue
            steps = {a: s for a, s in graph.steps.items() if a not in ends or a == start}
            if first:  # no path leads into an end
                steps = {
                    a: [(to, step) for to, step in s if to not in ends] for a, s in steps.items()
                }
            reached = earliest(Graph(depths=graph.depths, steps=steps), [(start, time[start])])
            for to, summaries in summaries_by_end().items():
                assert Antichain(each.results_in(time[start]) for each in summaries) == reached[to]
                assert not any(a is not b and a.less_equal(b) for a in summaries for b in summaries)
            if not first:
                assert {to for to in ends if reached[to]} == {
                    to for to in ways[start] if ways[start][to]
                }


@given(seeds, nested_graphs)
def test_hubs_keep_ways_few(seed: int, graph: Graph) -> None:
    rng = random.Random(seed)
    topology, most = graph.topology, rng.randint(1, 3)
    ends = rng.sample(range(len(graph.depths)), len(graph.depths) // 3)
    for hubs, arcs in (
        (topology.hubs(ends, most), topology.arcs),
        (topology.hubs_from(ends, most), topology.back),
    ):
        assert not set(hubs) & set(ends)
        for hub in hubs:
            assert len(arcs[hub]) > 1 or most == 1


@given(seeds, nested_graphs)
def test_a_contracted_graph_reaches_the_same(seed: int, graph: Graph) -> None:
    rng = random.Random(seed)
    nodes = rng.sample(graph.nodes, rng.randint(0, len(graph.nodes)))
    ports = [port for node in nodes for port in (*node.inputs, *node.outputs)]
    others = [port for port in range(len(graph.depths)) if port not in ports]
    hubs = rng.sample(others, rng.randint(0, len(others)))
    cut = set(rng.sample(ports, rng.choice((0, 0, len(ports) // 4))))
    small = graph.topology.contracted(nodes, hubs, cut)
    assert [small.describe(at) for at in range(len(ports))] == [
        graph.topology.describe(port) for port in ports
    ]
    ports += hubs
    time = {port: tuple(rng.randrange(3) for _ in range(graph.depths[port])) for port in ports}
    for at, port in enumerate(ports):
        assert small.order(at, time[port]) == graph.topology.order(port, time[port])
        for target, summary in small.arcs[at]:
            assert small.order(at, time[port]) < small.order(target, summary.results_in(time[port]))
            assert (at, summary) in small.back[target]
    chosen = rng.sample(range(len(ports)), len(ports) // 3)
    tracker = Tracker(small, [(at, time[ports[at]]) for at in chosen])
    whole = Graph(depths=graph.depths, steps={a: s for a, s in graph.steps.items() if a not in cut})
    reached = earliest(whole, [(ports[at], time[ports[at]]) for at in chosen])
    assert [tracker.frontier(at) for at in range(len(ports))] == [reached[port] for port in ports]
