"""Fetches in loops, states in loops, and fetches from collections, against brute force."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.algorithms.graphs.components import components
from riverrun.engine import instance
from tests.frontends.collections.checking import feed
from tests.frontends.collections.reference import Row, counted
from tests.soaking import seeds

LINKS = {"src": pl.Int64, "dst": pl.Int64, "at": pl.Int64}
ASKED = {"start": pl.Int64, "at": pl.Int64}


class Graph:
    """Links that come out of order, and questions that are deleted now and then."""

    def __init__(self, source: random.Random, nodes: int = 7) -> None:
        self.source, self.nodes = source, nodes
        self.links: list[Row] = []
        self.asked: Counter[Row] = Counter()
        self.update: int | None = None

    def node(self) -> int:
        return self.source.randrange(self.nodes)

    def epoch(self, now: int) -> dict[str, list[tuple[Row, int]]]:
        source, before = self.source, self.update
        fresh = [
            (self.node(), self.node(), now + source.randint(-4, 4)) for _ in range(source.randint(0, 6))
        ]  # fmt: skip
        self.links += [link for link in fresh if before is None or link[2] >= before]
        if fresh:
            mark = max(link[2] for link in fresh) - 4
            self.update = mark if before is None else max(mark, before)
        asked = [
            ((self.node(), now + source.randint(-9, 5)), 1) for _ in range(source.randint(0, 3))
        ]
        if source.random() < 0.3 and self.asked:
            asked.append((source.choice(sorted(self.asked.elements())), -1))
        for row, n in asked:
            self.asked[row] += n
        self.asked = +self.asked
        return {"links": [(link, 1) for link in fresh], "asked": asked}

    def ready(self) -> list[Row]:
        return [row for row in self.asked.elements() if self.update is not None and row[1] < self.update]  # fmt: skip

    def after(self, nodes: set[int], at: int) -> set[int]:
        return {dst for src, dst, time in self.links if src in nodes and time <= at}

    def within(self, start: int, at: int, hops: int) -> set[int]:
        reached: set[int] = set()
        here = {start}
        for _ in range(hops):
            here = self.after(here, at)
            reached |= here
        return reached

    def closure(self, start: int, at: int) -> set[int]:
        reached = {start}
        while not self.after(reached, at) <= reached:
            reached |= self.after(reached, at)
        return reached


def played(seed: int, flow: rr.Dataflow, graph: Graph, judge: Any, epochs: int = 6) -> None:
    source = graph.source
    workers, turns = source.randint(1, 4), source.choice([None, seed])
    with flow.run(workers=workers, seed=turns) as run:
        for epoch in range(epochs):
            for name, rows in graph.epoch(3 * epoch).items():
                feed(run, name, rows)
            run.commit()
            for name, expected in judge().items():
                counts = counted(run.read(name).rows())
                said = f"seed={seed}, workers={workers}, turns={turns}, epoch {epoch}, {name}"
                assert counts == expected, (
                    f"{said}: missing {expected - counts}, too many {counts - expected}"
                )
            if source.random() < 0.2:
                run.scale(source.randint(1, 4))


def graph_state(flow: rr.Dataflow, source: random.Random) -> rr.State:
    state = flow.state(
        "graph", key={"src": pl.Int64}, value={"dst": pl.Int64}, time={"at": pl.Int64},
        accelerate=source.random() < 0.5, replies_first=source.random() < 0.5,
    )  # fmt: skip
    flow.input("links", LINKS).update(state, rule=rr.rules.append, late=4)
    return state


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(10, soak=40))
def test_neighbours_of_neighbours(seed: int) -> None:
    """A loop by hand: one row a round, some links away."""
    source = random.Random(seed)
    graph, flow, hops = Graph(source), rr.Dataflow("hops"), source.randint(1, 3)
    state = graph_state(flow, source)
    loop = flow.loop(name="hops")
    first = loop.enter(flow.input("asked", ASKED).select("start", "at", here="start"))
    back = loop.feedback(first.schema, rounds=hops)
    hop = first.concat(back).fetch(state, key="here", at="at", rule=rr.rules.within, how="inner")
    back.connect(hop.select("start", "at", here="dst"))
    flow.output("reached", loop.leave(hop.select("start", "at", node="dst")).distinct())

    def judge() -> Any:
        return {
            "reached": Counter(
                {(*row, node): 1 for row in graph.ready() for node in graph.within(*row, hops)}
            )
        }

    played(seed, flow, graph, judge)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(8, soak=32))
def test_a_fixed_point_of_fetches(seed: int) -> None:
    """Rounds take back what rounds before them gave: answers follow."""
    source = random.Random(seed)
    graph, flow = Graph(source), rr.Dataflow("closure")
    state = graph_state(flow, source)
    asked = flow.input("asked", ASKED).select("start", "at", here="start")

    def body(rows: rr.Collection) -> rr.Collection:
        hop = rows.fetch(state, key="here", at="at", rule=rr.rules.within, how="inner")
        return rows.concat(hop.select("start", "at", here="dst")).distinct()

    flow.output("reached", asked.iterate(body))

    def judge() -> Any:
        ready = graph.ready()
        answers = {(*row, row[0]): 1 for row in graph.asked}
        return {
            "reached": Counter(
                answers | {(*row, node): 1 for row in ready for node in graph.closure(*row)}
            )
        }

    played(seed, flow, graph, judge)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(6, soak=24))
def test_a_fetch_in_a_loop_in_a_loop(seed: int) -> None:
    """Inside, all that can be reached; outside, again from the doubles of that."""
    source = random.Random(seed)
    graph, flow = Graph(source), rr.Dataflow("nested")
    state = graph_state(flow, source)
    asked = flow.input("asked", ASKED).select("start", "at", here="start")

    def inner(rows: rr.Collection) -> rr.Collection:
        hop = rows.fetch(state, key="here", at="at", rule=rr.rules.within, how="inner")
        return rows.concat(hop.select("start", "at", here="dst")).distinct()

    def outer(rows: rr.Collection) -> rr.Collection:
        doubles = rows.select("start", "at", here=pl.col("here") * 2).filter(pl.col("here") < 7)
        return rows.iterate(inner).concat(doubles).distinct()

    flow.output("reached", asked.iterate(outer))

    def reach(row: Row, is_ready: bool) -> set[int]:
        reached = {row[0]}
        while True:
            more = reached | {2 * node for node in reached if 2 * node < 7}
            more |= graph.after(reached, row[1]) if is_ready else set()
            if more == reached:
                return reached
            reached = more

    def judge() -> Any:
        ready = set(graph.ready())
        return {
            "reached": Counter(
                {(*row, node): 1 for row in graph.asked for node in reach(row, row in ready)}
            )
        }

    played(seed, flow, graph, judge, epochs=5)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(5, soak=20))
def test_records_with_several_requests_in_a_loop(seed: int) -> None:
    """All neighbours in one request list a round: the set goes around, not its members."""
    source = random.Random(seed)
    graph, flow = Graph(source, 5), rr.Dataflow("sets")
    state = graph_state(flow, source)
    rows = flow.input("asked", ASKED).with_columns(here=pl.concat_list(pl.col("start")))
    loop = flow.loop(name="sets")
    first = loop.enter(rows)
    back = loop.feedback(first.schema, rounds=3)
    asked = first.concat(back).fetch(state, key="here", at="at", rule=rr.rules.within, suffix="_of")

    def merged(row: dict[str, Any]) -> list[dict[str, Any]]:
        nodes = sorted({node for each in row["dst"] for node in each})
        return [{"start": row["start"], "at": row["at"], "here": nodes}]

    hop = asked.flat_map(merged, {**ASKED, "here": pl.List(pl.Int64)})
    back.connect(hop)
    flow.output("reached", loop.leave(hop))

    def judge() -> Any:
        expected: Counter[Row] = Counter()
        for start, at in graph.ready():
            here = {start}
            for _ in range(3):
                here = graph.after(here, at)
                expected[start, at, tuple(sorted(here))] += 1
        return {"reached": expected}

    played(seed, flow, graph, judge)


# -- a state in a loop


def learning(source: random.Random) -> rr.Dataflow:
    """Task i of a key reads what tasks before i left, and leaves more; i + 1 may go on when some task i has."""
    flow = rr.Dataflow("learning")
    tasks = flow.input("tasks", {"i": pl.Int64, "k": pl.Int64, "n": pl.Int64})
    begin = flow.input("begin", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64})
    loop = flow.loop(name="learning")
    state = loop.state(
        "model", key={"k": pl.Int64}, value={"v": pl.Int64}, start=0,
        accelerate=source.random() < 0.5, replies_first=source.random() < 0.5,
        compact=source.choice([None, rr.rules.keep_latest]), compaction=source.choice(["lazy", "active"]),
    )  # fmt: skip
    loop.enter(begin).update(state, rule=rr.rules.append, progress=False)
    done = loop.enter(tasks).fetch(state, key="k", at="i", closed="left")
    left = done.select("k", time="i", v=pl.col("v").fill_null(0) * 2 + pl.col("n"))
    left.update(state, rule=rr.rules.append, progress=False)
    done.progress(state, "update", at=pl.col("i") + 1, late=0)
    done.progress(state, "fetch", at=pl.col("i"), late=0)
    flow.output("done", loop.leave(done))
    flow.output("entries", loop.leave(state.entries()))
    return flow


class Learning:
    """The same, round by round."""

    def __init__(self) -> None:
        self.update, self.late = 0, 0
        self.entries: list[Row] = []
        self.waiting: list[Row] = []
        self.done: Counter[Row] = Counter()

    def epoch(self, begin: list[Row], tasks: list[Row]) -> None:
        updates, marks = list(begin), [0]
        self.waiting += tasks
        while True:
            self.late += sum(time < self.update for _, time, _ in updates)
            self.entries += [row for row in updates if row[1] >= self.update]
            self.update = max(self.update, *marks)
            ready = [task for task in self.waiting if task[0] <= self.update]
            if not ready:
                return
            self.waiting = [task for task in self.waiting if task[0] > self.update]
            updates, marks = [], []
            for i, k, n in ready:
                greatest = max(
                    ((t, v) for key, t, v in self.entries if key == k and t < i), default=(0, None)
                )[1]
                self.done[i, k, n, greatest] += 1
                updates.append((k, i, (greatest or 0) * 2 + n))
                marks.append(i + 1)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(16, soak=64))
def test_updates_that_come_from_fetches(seed: int) -> None:
    source = random.Random(seed)
    flow, model = learning(source), Learning()
    workers, turns = source.randint(1, 4), source.choice([None, seed])
    said = f"seed={seed}, workers={workers}, turns={turns}"
    compacts = "keep latest" in flow.explain()
    back = 0 if compacts else -2
    with flow.run(workers=workers, seed=turns) as run:
        for epoch in range(5):
            begin = [
                (source.randrange(3), source.randint(0, 9), source.randint(0, 5))
                for _ in range(source.randint(0, 2))
            ]
            tasks = [
                (
                    max(0, model.update + source.randint(back, 4)),
                    source.randrange(3),
                    source.randrange(6),
                )
                for _ in range(source.randint(0, 6))
            ]
            model.epoch(begin, tasks)
            run.insert("begin", begin)
            run.insert("tasks", tasks)
            run.commit()
            counts = counted(run.read("done").rows())
            wrong = f"missing {model.done - counts}, too many {counts - model.done}"
            assert counts == model.done, f"{said}, epoch {epoch}: {wrong}"
            figures = run.status()["states"]["learning/model"]
            assert figures["update"] == model.update, f"{said}, epoch {epoch}"
            assert figures["pending"] == len(model.waiting), f"{said}, epoch {epoch}"
            if not compacts:
                assert counted(run.read("entries").rows()) == Counter(model.entries), said
            late = sum(event["rows"] for event in run.events("late"))
            assert late == model.late, f"{said}, epoch {epoch}: {late} late and not {model.late}"
            if source.random() < 0.3:
                run.scale(source.randint(1, 4))


@pytest.mark.parametrize("accelerate", [True, False])
@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(10, soak=96))
def test_a_round_sees_all_that_was_updated_before_it(
    seed: int, accelerate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens go around without waiting for anything, ahead of the state; each asks for what is before its round."""
    monkeypatch.setattr(instance, "STEPS", 1)  # messages come between any two turns
    source = random.Random(seed)
    flow, keys, rounds = rr.Dataflow("tokens"), 5, 5
    tokens = flow.input("tokens", {"id": pl.Int64})
    loop = flow.loop(name="round")
    state = loop.state("s", {"k": pl.Int64}, {"v": pl.Int64}, accelerate=accelerate, start=0)
    first = loop.enter(tokens.with_columns(r=pl.lit(0, pl.Int64)))
    back = loop.feedback(first.schema, rounds=rounds)
    here = first.concat(back)
    back.connect(here.select("id", r=pl.col("r") + 1))
    key = (pl.col("id") * 7 + pl.col("r")) % keys
    here.select(k=key, time=pl.col("r") * 10, v="id").update(
        state, rule=rr.rules.append, progress=False
    )
    late = here.filter(pl.col("r") > 0).select(k=key, time=pl.col("r") * 10 - 5, v="id")
    late.update(
        state, rule=rr.rules.append, progress=False
    )  # U is past that since the round before
    here.select(at=pl.col("r") * 10 + 10).progress(state, "update", at="at", late=0)
    asked = here.select("id", "r", k=(pl.col("id") * 7 + pl.col("r") - 1) % keys, at=pl.col("r") * 10 - 5)  # fmt: skip
    asked = asked.filter(pl.col("r") > 0)
    flow.output("o", loop.leave(asked.fetch(state, key="k", at="at", rule=rr.rules.within)))
    # These take the longer way, and have to be woken by what was reported before they came.
    slow = first.select("id", at=pl.col("r") + 25)
    for turn in range(3):
        slow = slow.with_columns(way=pl.lit(turn, pl.Int64)).distinct().drop("way")
    flow.output("slow", loop.leave(slow.fetch(state, key=pl.lit(99, pl.Int64), at="at")))
    ids = source.sample(range(40), source.randint(2, 8))
    workers = source.randint(2, 4)
    entries = [((i * 7 + r) % keys, 10 * r, i) for i in ids for r in range(rounds)]
    expected: Counter[Row] = Counter()
    for i in ids:
        for r in range(1, rounds):
            k, at = (i * 7 + r - 1) % keys, r * 10 - 5
            expected.update((i, r, k, at, time, v) for key, time, v in entries if key == k and time <= at)  # fmt: skip
    with flow.run(workers=workers, seed=seed) as run:
        run.insert("tokens", [(i,) for i in ids])
        run.commit()
        counts = counted(run.read("o").rows())
        said = f"seed={seed}, workers={workers}, accelerate={accelerate}"
        assert counts == expected, (
            f"{said}: missing {expected - counts}, too many {counts - expected}"
        )
        assert sorted(run.read("slow").rows()) == [(i, 25, None) for i in sorted(ids)], said
        assert run.status()["states"]["round/s"]["pending"] == 0, said
        assert sum(event["rows"] for event in run.events("late")) == len(ids) * (rounds - 1), said


# -- from a collection


def labels(edges: Counter[Row]) -> dict[int, int]:
    label = {node: node for edge in edges for node in edge}
    for _ in label:
        for a, b in edges:
            label[a] = label[b] = min(label[a], label[b])
    return label


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(6, soak=24))
def test_a_fetch_from_a_fixed_point(seed: int) -> None:
    source = random.Random(seed)
    flow = rr.Dataflow("friends")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    asked = flow.input("asked", {"node": pl.Int64, "n": pl.Int64})
    flow.output("answers", asked.lookup(components(edges), "node"))
    workers = source.randint(1, 4)
    there: Counter[Row] = Counter()
    expected: Counter[Row] = Counter()
    with flow.run(workers=workers, seed=seed) as run:
        for epoch in range(6):
            fresh = [
                (source.randrange(8), source.randrange(8)) for _ in range(source.randint(0, 4))
            ]
            gone = source.sample(sorted(there.elements()), min(there.total(), source.randint(0, 3)))
            there = there + Counter(fresh) - Counter(gone)
            nodes = [(source.randrange(9), source.randrange(2)) for _ in range(3)]
            label = labels(there)
            expected += Counter((node, n, label.get(node)) for node, n in nodes)
            run.insert("edges", fresh)
            run.delete("edges", gone)
            run.insert("asked", nodes)
            run.commit()
            counts = counted(run.read("answers").rows())
            assert counts == expected, f"seed={seed}, workers={workers}, epoch {epoch}"
            if source.random() < 0.3:
                run.scale(source.randint(1, 4))
