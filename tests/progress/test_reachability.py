"""The tracker, against following every message wherever it can go; and what a ledger refuses."""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, given, settings

from riverrun.errors import PlanError, TimeViolation
from riverrun.progress import Antichain, Ledger, NodePorts, Timestamp, TopologyBuilder, Tracker
from tests.progress.model import at_or_before, earliest, everything
from tests.strategies import Graph, graphs_without_loops, nested_graph, nested_graphs, seeds

MORE = settings(max_examples=4 * settings.default.max_examples)


def random_time(rng: random.Random, depth: int, largest: int = 3) -> Timestamp:
    return tuple(rng.randint(0, largest) for _ in range(depth))


@given(seeds)
def test_the_model_is_all_that_can_be_reached(seed: int) -> None:
    """``earliest`` against plain enumeration, on graphs small enough for it."""
    rng = random.Random(seed)
    graph = nested_graph(seed, size=2, max_depth=3)
    locations = range(len(graph.depths))
    places = [(at, random_time(rng, graph.depths[at], 1)) for at in rng.choices(locations, k=3)]
    # A path to a minimal element goes around each loop once at most: rounds stay small.
    reached = everything(graph, places, largest=8)
    for location, frontier in enumerate(earliest(graph, places)):
        assert frontier == Antichain(time for at, time in reached if at == location)


@MORE
@given(seeds, nested_graphs | graphs_without_loops)
def test_a_tracker_knows_what_can_be_reached(seed: int, graph: Graph) -> None:
    rng = random.Random(seed)
    tracker = Tracker(graph.topology)
    counts: dict[tuple[int, Timestamp], int] = {}
    frontiers = [Antichain() for _ in graph.depths]
    for _ in range(12):
        for _ in range(rng.choice((1, 1, 2, 5))):
            positive = [place for place, count in counts.items() if count > 0]
            if positive and rng.random() < 0.5:  # ends are as common as beginnings
                location, time = rng.choice(positive)
                delta = -counts[location, time]
            else:
                location = rng.randrange(len(graph.depths))
                time = random_time(rng, graph.depths[location])
                delta = rng.choice((-1, 1, 1, 1, 2))
            counts[location, time] = counts.get((location, time), 0) + delta
            tracker.update(location, time, delta)
        changed = tracker.propagate()
        expected = earliest(graph, [place for place, count in counts.items() if count > 0])
        for location, frontier in enumerate(expected):
            assert tracker.frontier(location) == frontier, graph.topology.describe(location)
            moved = {
                t: 1 if t in frontier else -1 for t in set(frontier) ^ set(frontiers[location])
            }
            assert dict(changed.get(location, [])) == moved
            time = random_time(rng, graph.depths[location])
            assert tracker.could_arrive(location, time) == any(
                at_or_before(t, time) for t in frontier
            )
        frontiers = expected
        assert tracker.outstanding() == {place: n for place, n in counts.items() if n}
        assert tracker.propagate() == {}


@given(seeds, nested_graphs)
def test_how_updates_are_cut_and_ordered_does_not_show(seed: int, graph: Graph) -> None:
    rng = random.Random(seed)
    updates = []
    for _ in range(20):
        location = rng.randrange(len(graph.depths))
        updates.append((location, random_time(rng, graph.depths[location]), rng.choice((-1, 1, 1))))
    at_once, one_by_one = Tracker(graph.topology), Tracker(graph.topology)
    at_once.apply(updates)
    rng.shuffle(updates)
    for update in updates:
        one_by_one.apply([update])
    for location in range(len(graph.depths)):
        assert at_once.frontier(location) == one_by_one.frontier(location)
    assert at_once.outstanding() == one_by_one.outstanding()


@given(seeds, graphs_without_loops)
def test_one_walk_finds_what_turns_find(seed: int, graph: Graph) -> None:
    """Where there is no loop there are two ways to propagate; both find the same, change by change."""
    rng = random.Random(seed)
    walking, turning = Tracker(graph.topology), Tracker(graph.topology)
    assume(walking._walk is not None)
    turning._walk = None
    for _ in range(15):
        for _ in range(rng.choice((1, 2, 5))):
            location = rng.randrange(len(graph.depths))
            update = location, random_time(rng, 1), rng.choice((-2, -1, 1, 1, 2))
            walking.update(*update)
            turning.update(*update)
        changed, expected = walking.propagate(), turning.propagate()
        assert {at: sorted(changes) for at, changes in changed.items()} == {
            at: sorted(changes) for at, changes in expected.items()
        }


def test_a_long_loop_does_not_chase_its_tail() -> None:
    """The end of a message in a loop is settled in a walk around it, not one for every round."""
    builder = TopologyBuilder()
    back = builder.feedback("back", 2)
    ports: list[NodePorts] = [back]
    for i in range(20):
        ports.append(builder.node(f"step {i}", inputs=[2], outputs=[2]))
        builder.edge(ports[-2].outputs[0], ports[-1].inputs[0])
    builder.edge(ports[-1].outputs[0], back.inputs[0])
    tracker = Tracker(builder.build(), initial=[(ports[1].inputs[0], (0, 0))])
    for turn in range(200):
        at = ports[1].inputs[0]
        changed = tracker.apply([(at, (0, turn), -1), (at, (0, turn + 1), 1)])
        assert changed[at] == [((0, turn), -1), ((0, turn + 1), 1)]
    assert tracker.frontier(back.outputs[0]) == Antichain([(0, 201)])
    tracker.apply([(ports[1].inputs[0], (0, 200), -1)])
    assert not any(tracker.frontier(location) for location in range(len(tracker.topology.depths)))


def test_a_count_below_zero_holds_nothing_and_hides_nothing() -> None:
    graph = nested_graph(0, size=1)
    (source,) = graph.nodes[0].outputs
    tracker = Tracker(graph.topology, initial=[(source, (1,))])
    assert tracker.apply([(source, (0,), -1)]) == {}
    assert tracker.frontier(source) == Antichain([(1,)])
    assert tracker.apply([(source, (0,), 1)]) == {}
    assert tracker.outstanding() == {(source, (1,)): 1}


def test_a_time_of_another_depth_is_refused() -> None:
    graph = nested_graph(0, size=1)
    (source,) = graph.nodes[0].outputs
    for attempt in (
        lambda: Tracker(graph.topology).update(source, (0, 0), 1),
        lambda: Ledger(graph.topology, [(source, (0, 0))]),
        lambda: Ledger(graph.topology, [(source, (0,))]).record([(source, (), 1)]),
    ):
        with pytest.raises(TimeViolation, match="output 0 of 'n0'") as caught:
            attempt()
        assert caught.value.code == "time.depth"


def small() -> tuple[NodePorts, NodePorts, NodePorts, Ledger]:
    """source -> delay (two outputs: one epoch later, and never) -> sink; one capability at 2."""
    builder = TopologyBuilder()
    source = builder.node("source", outputs=[1])
    back = builder.feedback("delay", 1)
    sink = builder.node("sink", inputs=[1, 1])
    builder.edge(source.outputs[0], back.inputs[0])
    builder.edge(back.outputs[0], sink.inputs[0])
    return source, back, sink, Ledger(builder.build(), [(source.outputs[0], (2,))])


def test_a_ledger_accepts_what_is_held_and_adds_it_up() -> None:
    source, delay, sink, ledger = small()
    out, into, later, end = source.outputs[0], delay.inputs[0], delay.outputs[0], sink.inputs[0]
    ledger.record([(into, (2,), 1), (into, (5,), 2)])  # sends
    ledger.record([(out, (2,), -1), (out, (4,), 1)])  # moves on
    ledger.record([(into, (2,), -1), (end, (3,), 1), (later, (6,), 1)])  # handles, sends, keeps
    assert ledger.held() == [(out, (4,)), (later, (6,))]
    ledger.record([(later, (6,), -1), (end, (7,), 1)])
    assert sorted(ledger.take()) == sorted(
        [(into, (5,), 2), (out, (2,), -1), (out, (4,), 1), (end, (3,), 1), (end, (7,), 1)]
    )
    assert ledger.take() == ()


def test_a_ledger_refuses_what_nothing_held_reaches() -> None:
    source, delay, sink, ledger = small()
    out, into, later, end = source.outputs[0], delay.inputs[0], delay.outputs[0], sink.inputs[0]
    refused = [
        [(into, (1,), 1)],  # before the capability
        [(end, (9,), 1)],  # the capability is for another output
        [(out, (1,), 1)],  # back in time
        [(later, (2,), 1)],  # no message handled
        [(into, (2,), -1), (end, (2,), 1)],  # the node delays by one
        [(into, (2,), -1), (later, (2,), 1)],
        [(sink.inputs[1], (9,), 1)],  # nobody sends there
        [(out, (2,), -2)],  # ends more than there is
        [(later, (3,), -1)],
        [(into, (2,), 1), (out, (3,), -1)],  # nothing of a refused event is written
    ]
    for event in refused:
        with pytest.raises(TimeViolation) as caught:
            ledger.record(event)
        assert caught.value.code == "time.not_held"
        assert caught.value.hint
        assert caught.value.fields["held"] == {"output 0 of 'source'": (2,)}
    assert ledger.take() == ()
    ledger.record([(out, (2,), -1)])
    with pytest.raises(TimeViolation, match="cannot send to input 0 of 'delay' at"):
        ledger.record([(into, (2,), 1)])


def test_a_time_of_another_depth_is_never_finished_nor_unfinished() -> None:
    builder = TopologyBuilder()
    back = builder.feedback("back", 2)
    body = builder.node("body", inputs=[2], outputs=[2])
    builder.edge(body.outputs[0], back.inputs[0])
    builder.edge(back.outputs[0], body.inputs[0])
    topology = builder.build()
    tracker = Tracker(topology, [(body.outputs[0], (0, 3))])
    for wrong in ((0,), (0, 3, 0)):
        with pytest.raises(TimeViolation):
            tracker.could_arrive(body.inputs[0], wrong)
        with pytest.raises(TimeViolation):
            tracker.frontier(body.inputs[0]).less_equal(wrong)
    for port in (-1, 99, body):
        with pytest.raises(PlanError, match="cannot find port"):
            tracker.frontier(port)  # type: ignore[arg-type]
    for time in ((0, -1), (0, 1.5)):
        with pytest.raises(TimeViolation):
            Ledger(topology, [(body.outputs[0], time)])  # type: ignore[list-item]
