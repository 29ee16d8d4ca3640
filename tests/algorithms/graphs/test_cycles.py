"""Cycles in graphs whose edges have times: against a search from scratch, on random graphs and real ones."""

from __future__ import annotations

import os
import random
from datetime import datetime, timedelta

import polars as pl
import pytest

import riverrun as rr
from riverrun.algorithms.graphs.cycles import cycles
from tests.algorithms import temporal
from tests.chaos.besieged import ProcessRun
from tests.runtime.launchers import Processes
from tests.soaking import Shown, draws, first_seed, seeds

EDGES = {"src": pl.Int64, "dst": pl.Int64, "time": pl.Int64}
HOUR = 3600
SEEDS = seeds(1, soak=12)

pytestmark = pytest.mark.drawn


def program(span, late=0, lengths=(3, 4, 5), schema=EDGES):
    flow = rr.Dataflow("rings")
    edges = flow.input("edges", schema)
    flow.output("found", cycles(flow, edges, span, lengths=lengths, late=late))
    return flow


def feed(run, epochs, received=None):
    for epoch in epochs:
        run.insert("edges", epoch)
        run.commit()
        if received is not None:
            received.take(epoch)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_graphs_epoch_by_epoch(workers, seed):
    """Every epoch tells the cycles of the edges whose window is complete, no more and no fewer; some edges are late."""
    chance = random.Random(f"{workers} {seed}")
    span, late = chance.choice([5, 20, 60]), chance.choice([0, 3, 10])
    edges = temporal.drawn(chance, 150, chance.choice([6, 10, 20]), late + seed % 2 * 3)
    received = temporal.Received(late)
    with program(span, late).run(workers=workers, seed=seed) as run:
        for epoch in temporal.epochs(chance, edges, chance.choice([3, 12])):
            run.insert("edges", epoch)
            run.commit()
            received.take(epoch)
            said = f"workers={workers} seed={seed} span={span} late={late} epoch={run.epoch}"
            assert run.read("found").rows() == received.cycles(span), said
        late_rows = [e["rows"] for e in run.events("late") if e["what"] == "update"]
    assert sum(late_rows) == 2 * received.dropped  # edges are kept by either end


def test_random_graphs_have_what_is_to_be_found():
    """The graphs above are not empty of cycles, and some of their edges are late."""
    shown = Shown(length_3=1, length_4=1, length_5=1, dropped=11)
    for turn in shown.turns(2):
        seed = SEEDS.start + turn
        for workers in (1, 2, 3, 4):
            chance = random.Random(f"{workers} {seed}")
            span, late = chance.choice([5, 20, 60]), chance.choice([0, 3, 10])
            edges = temporal.drawn(chance, 150, chance.choice([6, 10, 20]), late + seed % 2 * 3)
            received = temporal.Received(late)
            for epoch in temporal.epochs(chance, edges, chance.choice([3, 12])):
                received.take(epoch)
            for row in received.cycles(span):
                shown[f"length_{row[3]}"] += 1
            shown["dropped"] += received.dropped


@pytest.mark.parametrize("lengths", [(3,), (4,), (5,), (3, 6), (7,)])
def test_other_lengths(lengths):
    shown = Shown(**{f"length_{length}": 1 for length in lengths})
    for turn in shown.turns(1, limit=20):
        chance = random.Random(f"{lengths} {turn}")
        edges = temporal.drawn(chance, 120, 8, 0)
        with program(12, 0, lengths).run(workers=2) as run:
            feed(run, temporal.epochs(chance, edges, 20))
            found = run.read("found").rows()
        assert found == temporal.cycles(edges, 12, lengths), f"{turn=}"
        for row in found:
            shown[f"length_{row[3]}"] += 1


ENDING = {**EDGES, "end": pl.Int64}


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("ends", [False, True])
def test_each_length_has_its_span_and_edges_end(workers, ends):
    """Epoch by epoch against a search for each length by itself; some edges end, some before they begin."""
    found, shown = set(), Shown(lengths=2)
    for seed in shown.seeds(1, sample=5, soak=20, limit=20):
        chance = random.Random(f"{workers} {ends} {seed}")
        spans = chance.choice([{3: 40, 4: 20, 5: 10}, {3: 5, 5: 25}, {4: 15, 3: 15, 6: 8}])
        late = chance.choice([0, 6])
        edges = temporal.drawn(chance, 110, 7, late)
        if ends:
            drawn = (-1, 0, 3, 8, 15, 30, None, None)
            lasts = [chance.choice(drawn) for _ in edges]
            edges = [
                (*e, None if d is None else e[2] + d) for e, d in zip(edges, lasts, strict=True)
            ]
        flow = rr.Dataflow("rings")
        given = flow.input("edges", ENDING if ends else EDGES)
        made = cycles(flow, given, spans=spans, late=late, end="end" if ends else None)
        flow.output("found", made)
        received = temporal.Received(late)
        with flow.run(workers=workers, seed=seed) as run:
            for epoch in temporal.epochs(chance, edges, 12):
                feed(run, [epoch], received)
                said = f"{workers=} {ends=} {seed=} {spans=} {late=} epoch={run.epoch}"
                assert run.read("found").rows() == received.lasting_cycles(spans), said
            assert [name for name in run.status()["states"] if name.endswith("graph")] == [
                "cycles graph"
            ]
        found |= {row[3] for row in received.lasting_cycles(spans)}
        shown["lengths"] = len(found)


def test_one_span_for_all_lengths_is_spans_of_one_kind():
    chance = random.Random(11)
    edges = temporal.drawn(chance, 150, 8, 0)
    assert temporal.lasting_cycles(edges, {3: 20, 4: 20}) == temporal.cycles(edges, 20, (3, 4))
    assert temporal.lasting_cycles(edges, {3: 20, 4: 20}) != temporal.lasting_cycles(
        edges, {3: 20, 4: 5}
    )


def test_the_time_of_a_self_loop_is_seen():
    """An edge is answered when a time of T + late was seen, whoever has it."""
    with program(10, late=5).run() as run:
        feed(run, [[(1, 2, 0), (2, 3, 1), (3, 1, 2)]])
        assert run.read("found").rows() == []
        feed(run, [[(4, 4, 7)]])
        assert run.read("found").rows() == [(2, 3, 1, 3, [1, 2, 3])]


def test_an_edge_counts_while_it_is_there():
    ring = [(1, 2, 0, 10), (2, 3, 1, None)]

    def found(*edges):
        flow = rr.Dataflow("rings")
        flow.output("found", cycles(flow, flow.input("edges", ENDING), 20, end="end"))
        with flow.run(workers=2) as run:
            feed(run, [[*ring, *edges]])
            return run.read("found").rows()

    assert found((3, 1, 9, None)) == [(9, 3, 1, 3, [1, 2, 3])]
    assert found((3, 1, 10, None)) == []  # at its end an edge is not there any more
    assert found((1, 2, 0, 12), (3, 1, 10, None)) == [
        (10, 3, 1, 3, [1, 2, 3])
    ]  # another one still is
    assert found((3, 1, 9, 9)) == []
    assert found((3, 1, 9, 10)) == [(9, 3, 1, 3, [1, 2, 3])]


def test_spans_and_ends_that_are_none():
    flow = rr.Dataflow("rings")
    edges = flow.input("edges", EDGES)
    wrong = [
        ({}, "plan.spans"),
        ({"span": 5, "spans": {3: 4}}, "plan.spans"),
        ({"spans": 4}, "plan.spans"),
    ]
    wrong += [({"spans": {2: 4}}, "plan.lengths"), ({"spans": {}}, "plan.spans")]
    wrong += [
        ({"span": 5, "end": "until"}, "plan.column_unknown"),
        ({"span": 5, "end": "no"}, "plan.column_unknown"),
    ]
    for arguments, code in wrong:
        with pytest.raises(rr.PlanError) as told:
            cycles(flow, edges, **arguments)
        assert told.value.code == code


@pytest.mark.parametrize("seed", SEEDS)
def test_how_edges_are_cut_into_epochs_changes_nothing(seed):
    """Of edges that arrive out of order within the lateness, in epochs of any size."""
    chance = random.Random(seed)
    edges = [*temporal.drawn(chance, 150, 8, 9), (0, 1, 10_000)]
    expected = temporal.cycles([e for e in edges if e[2] < 9_000], 25)
    assert len(expected) > 20
    for most in (1, 7, 50, len(edges)):
        with program(25, 9).run(workers=1 + seed % 3) as run:
            feed(run, temporal.epochs(chance, edges, most))
            assert run.read("found").rows() == expected, f"seed={seed} most={most}"
            assert run.events("late") == []


def test_the_window_and_ties():
    """The window is closed at its start and open at its end; edges of one time do not see each other."""
    ring = [(1, 2), (2, 3), (3, 1)]

    def found(*times, span=10):
        with program(span).run() as run:
            run.insert("edges", [(*edge, time) for edge, time in zip(ring, times, strict=True)])
            run.commit()
            return run.read("found").rows()

    assert found(0, 5, 10) == [(10, 3, 1, 3, [1, 2, 3])]
    assert found(5, 10, 0) == [(10, 2, 3, 3, [1, 2, 3])]  # told by the latest, wherever it is
    assert found(0, 5, 11) == []
    assert found(0, 10, 10) == []
    assert found(0, 0, 10) == [(10, 3, 1, 3, [1, 2, 3])]


def test_parallel_edges_self_loops_and_edges_given_twice():
    edges = [(1, 2, 0), (1, 2, 1), (1, 2, 1), (2, 2, 1), (2, 3, 2), (2, 3, 3)]
    edges += [(3, 1, 5), (3, 1, 5), (1, 1, 6)]
    with program(10).run(workers=2) as run:
        feed(run, [edges])
        assert run.read("found").rows() == [(5, 3, 1, 3, [1, 2, 3])] * 2


def test_names_and_points_in_time():
    kinds = {"src": pl.String, "dst": pl.String, "time": pl.Datetime("us"), "amount": pl.Float64}
    start = datetime(2026, 1, 1)
    with program(timedelta(hours=1), timedelta(minutes=5), schema=kinds).run(workers=2) as run:
        for minute, (src, dst) in enumerate([("c", "a"), ("a", "b"), ("b", "c"), ("x", "y")]):
            run.insert("edges", [(src, dst, start + timedelta(minutes=10 * minute), 9.5)])
            run.commit()
        found = run.read("found").rows()
    assert found == [(start + timedelta(minutes=20), "b", "c", 3, ["a", "b", "c"])]


def test_lengths_that_are_none():
    flow = rr.Dataflow("rings")
    edges = flow.input("edges", EDGES)
    for lengths in ((), (2, 3), (3.5,)):
        with pytest.raises(rr.PlanError, match="lengths") as told:
            cycles(flow, edges, 10, lengths=lengths)
        assert told.value.code == "plan.lengths"


def test_what_is_older_than_the_window_goes():
    """The states hold the edges of a window and a bounded number more, however long the stream is."""
    chance = random.Random(5)
    edges = [(*chance.sample(range(40), 2), time) for time in range(draws(2000, soak=4000))]
    with program(50).run(workers=2) as run:
        feed(run, [edges[at : at + 20] for at in range(0, len(edges), 20)])
        assert run.read("found").rows() == temporal.cycles(edges, 50)
        held = {name: state["rows"] for name, state in run.status()["states"].items()}
    assert 100 <= held["cycles graph"] < 2000, held
    assert held["cycles halves"] < 1000, held


@pytest.mark.parametrize(
    ("file", "part", "span", "late"),
    [
        ("CollegeMsg.txt.gz", slice(4_000, 9_000), 48 * HOUR, 0),
        ("email-Eu-core-temporal.txt.gz", slice(100_000, 104_000), 24 * HOUR, 600),
    ],
    ids=["messages", "mails"],
)
@pytest.mark.parametrize("workers", [1, 3])
def test_real_graphs(temporal_graphs, file, part, span, late, workers):
    edges = temporal.load(temporal_graphs / file)[part]
    expected = temporal.cycles(edges, span)
    assert {row[3] for row in expected} == {3, 4, 5}
    chance = random.Random(file)
    arriving = sorted(edges, key=lambda edge: edge[2] + chance.uniform(0, late))
    end = (0, 1, edges[-1][2] + late + 1)  # nobody waits behind the last one
    with program(span, late).run(workers=workers) as run:
        feed(run, [*temporal.epochs(chance, arriving, 800), [end]])
        found = run.read("found").rows()
    if late == 0:
        expected = temporal.cycles([*edges, end], span)
    assert [row for row in found if row[0] != end[2]] == expected
    print(f"{len(edges)} edges, {len(expected)} cycles")


@pytest.mark.parametrize("seed", SEEDS)
def test_resumed_with_another_number_of_workers(seed, tmp_path):
    """Edges that wait are part of a checkpoint; the graph is split anew among other workers."""
    chance = random.Random(seed)
    span, late = 30, 12
    epochs = temporal.epochs(chance, temporal.drawn(chance, 200, 8, late), 10)
    received, at = temporal.Received(late), 0
    for workers in (2, 3, 1, 4):
        path, every = tmp_path / "run", chance.choice([1, 3, None])
        with program(span, late).run(workers=workers, checkpoint=path, every=every) as run:
            size = len(epochs) // 4 + 1
            if at:
                assert run.read("found").rows() == received.cycles(span)
            feed(run, epochs[at : at + size], received)
            at += size
            assert run.read("found").rows() == received.cycles(span), f"seed={seed} {workers=}"
    assert at >= len(epochs)
    assert len(received.cycles(span)) > 20


def test_a_worker_is_killed(tmp_path):
    """kill -9 of real processes, with edges waiting and epochs under way: the same cycles as if nothing happened."""
    seed = first_seed()
    chance = random.Random(seed)
    span, late = 40, 8
    epochs = temporal.epochs(chance, temporal.drawn(chance, 400, 12, late), 8)
    received = temporal.Received(late)
    kills = {len(epochs) // 3, 2 * len(epochs) // 3}
    flow = program(span, late)
    with ProcessRun(flow.plan, Processes, workers=2, checkpoint=tmp_path, every=10) as run:
        for at, epoch in enumerate(epochs):
            run.insert("edges", epoch)
            run.commit(wait=at % 4 == 0)
            received.take(epoch)
            if at in kills:
                victim = chance.choice(run.status()["processes"])
                os.kill(victim["pid"], 9)
        run.commit()
        assert run.read("found").rows() == received.cycles(span), f"seed={seed}"
        assert len(run.events("recovered")) == len(kills)
    assert len(received.cycles(span)) > 20, f"seed={seed}"
