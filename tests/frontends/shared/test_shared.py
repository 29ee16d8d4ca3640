"""Shared state gives the answers of a model in plain Python, whatever the order, the workers and the switches."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr
from riverrun.operators.shared.rules import Replace
from riverrun.operators.shared.waiting import WaitingRequests
from riverrun.state.changes import Changes
from riverrun.storage.checkpoint import Checkpoints
from tests.frontends.collections.reference import counted
from tests.frontends.shared.model import Fetch, Model, Reporting, Spec, Update
from tests.frontends.shared.playing import (
    Comparison,
    Program,
    Rows,
    answers_of,
    draw_program,
    play,
)
from tests.soaking import draws, first_seed, seeds

pytestmark = pytest.mark.drawn


@pytest.mark.parametrize("seed", seeds(30, soak=300))
def test_any_program_gives_what_the_model_gives(seed: int) -> None:
    play(seed)


@pytest.mark.parametrize("seed", seeds(20, soak=240, fixed=1000))
def test_epochs_that_are_refused_leave_nothing_behind(seed: int) -> None:
    play(seed, faults=True)


@pytest.mark.parametrize("seed", seeds(10, soak=60, fixed=2000))
def test_states_do_not_get_in_each_others_way(seed: int) -> None:
    play(seed, faults=True, states=2, epochs=5)


@pytest.mark.parametrize("seed", seeds(8, soak=96, fixed=3000))
def test_a_run_goes_on_where_it_was(seed: int, tmp_path: Path) -> None:
    """Checkpoints, other numbers of workers, refusals: waiting fetches, progress and entries are all there."""
    play(seed, faults=True, checkpoint=tmp_path)


@pytest.mark.parametrize("seed", seeds(10, soak=180, fixed=4000))
def test_equal_records_keep_what_each_of_them_found(seed: int, tmp_path: Path) -> None:
    """Several uncommitted requests of a record, equal records in several epochs; saved, scaled and resumed."""
    options: dict[str, Any] = {"faults": seed % 3 == 0, "epochs": 9, "most": 8}
    play(seed, copies=True, checkpoint=tmp_path, **options)


def test_all_that_can_happen_does(tmp_path: Path) -> None:
    """The programs above are no empty talk: they go on until each thing has happened: some 20, in a soak some 200."""
    wanted = {
        f"{rule} {read}": draws(6, soak=30)
        for rule in ("latest", "within", "total", "function")
        for read in (True, False)
    }
    for code in ("time_null", "answer_kept", "rule_deletes", "reaches_back"):
        wanted[f"state.{code}"] = 2
    wanted |= {"progress.went_back": 2, "late": 100, "pending": 100, "apart": draws(2, soak=8)}
    happened: Counter[str] = Counter()
    first = first_seed(5000)
    for seed in range(first, first + 400):
        happened.update(play(seed, faults=True, copies=seed % 3 == 0))
        if all(happened[what] >= least for what, least in wanted.items()):
            return
    raise AssertionError({what: happened[what] for what in wanted})


@pytest.mark.parametrize("seed", seeds(4, soak=48))
def test_no_switch_shows(seed: int) -> None:
    """One program, all positions of its switches: the same answers at every epoch."""
    first_answers: dict[Any, Any] = {}
    for switches in range(12):
        source = random.Random(seed)
        program = draw_program(source)
        program.options = {
            "accelerate": bool(switches & 1),
            "replies_first": bool(switches & 2),
            "compaction": "active" if switches & 4 else "lazy",
            "sweep": 1 if switches & 8 else 1 << 20,
        }
        flow = rr.Dataflow("switched")
        program.add(flow)
        rows, comparison = Rows(program, source, False), Comparison([program], f"seed={seed}")
        with flow.run(workers=1 + switches % 4) as run:
            for epoch in range(5):
                changes = rows.epoch(4 * epoch, 6, comparison.judged[0][1].fetch)
                if comparison.step(changes):
                    continue  # it would be refused
                comparison.give(run, changes)
                run.commit()
                rows.accepted(changes)
                for user in program.spec.of(Fetch):
                    answers = counted(run.read(answers_of(user)).rows())
                    same = first_answers.setdefault((epoch, user.name), answers)
                    assert answers == same, f"seed={seed}, switches={program.options}, {user}"


@pytest.mark.parametrize("seed", seeds(6, soak=36))
def test_how_rows_are_cut_into_epochs_shows_only_in_what_is_late(seed: int) -> None:
    """Rows none of which can be late: the same answers in the end, however they are cut and ordered."""
    source = random.Random(seed)
    spec = Spec("s", (Update("u", "append", Reporting(60)), Fetch("f"), Fetch("g", "within", since=True)))  # fmt: skip
    program = Program(spec, "int", "int64", {"compaction": "active"})
    rows = Rows(program, source, False)
    stream = [
        (name, change)
        for at in range(6)
        for name, listed in rows.epoch(4 * at, 8, None).items()
        for change in listed
        if change[1] > 0
    ]
    ends = [("u", (("p", 0, 200, 0, 0.0), 1))]
    outcomes = []
    for cuts in (1, 3, 8, len(stream)):
        flow = rr.Dataflow("cut")
        program.add(flow)
        shuffled = stream[:]
        source.shuffle(shuffled)
        with flow.run(workers=source.randint(1, 4)) as run:
            size = -(-len(shuffled) // cuts)
            for start in range(0, len(shuffled), size):
                for name, (row, _) in shuffled[start : start + size]:
                    run.insert(name, [row])
                run.commit()
            for name, (row, _) in ends:
                run.insert(name, [row])
            run.commit()
            assert not run.events("late")
            names = [answers_of(user) for user in spec.of(Fetch)]
            outcomes.append([counted(run.read(name).rows()) for name in names])
    assert all(each == outcomes[0] for each in outcomes), f"seed={seed}"
    assert outcomes[0][0].total() == sum(name == "f" for name, _ in stream), "all were answered"


# -- one thing at a time


def two_inputs(**options: Any) -> tuple[rr.Dataflow, Any, Any, Any]:
    flow = rr.Dataflow("small")
    ups = flow.input("ups", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64})
    asks = flow.input("asks", {"k": pl.Int64, "since": pl.Int64, "at": pl.Int64})
    return flow, ups, asks, flow.state("s", {"k": pl.Int64}, {"v": pl.Int64}, **options)


@pytest.mark.parametrize("compaction", ["lazy", "active"])
@pytest.mark.parametrize("compact", [rr.rules.drop_before(3), rr.rules.keep_latest])
def test_what_waits_holds_compaction_back(compact: Any, compaction: str) -> None:
    """The fetch of 1 to 50 came when all was there; it is answered when F has gone far beyond 1."""
    flow, ups, asks, state = two_inputs(compact=compact, compaction=compaction)
    ups.update(state, rule=rr.rules.append)
    flow.output(
        "o", asks.fetch(state, key="k", since="since", at="at", rule=rr.rules.within, how="inner")
    )
    flow.output("entries", state.entries())
    with flow.run(workers=2) as run:
        run.insert("asks", [(1, 1, 50)])
        run.insert("ups", [(1, time, time) for time in (1, 5, 9)])
        run.commit()
        for now in range(10, 60, 6):
            run.insert("ups", [(1, now, now), (2, now, now)])
            run.insert("asks", [(2, now, now)])
            run.commit()
        values = [row[3] for row in run.read("o").rows() if row[:3] == (1, 1, 50)]
        assert values == [1, 5, 9, 10, 16, 22, 28, 34, 40, 46]
        assert run.status()["states"]["s"]["fetch"] > 50
        run.insert("ups", [(1, 70, 0)])
        run.commit()
        run.insert("ups", [(1, 71, 0)])
        run.commit()
        left = {row[1] for row in run.read("entries").rows() if row[0] == 1}
        assert len(left) < 6, "and lets it go on afterwards"


def test_marks_of_many_sources_are_saved_once_and_everybody_has_them(tmp_path: Path) -> None:
    """The slowest source counts, also when its mark is known from a checkpoint of other workers only."""
    flow = rr.Dataflow("sensors")
    ups = flow.input("ups", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64, "source": pl.String})
    state = flow.state("s", {"k": pl.Int64}, {"v": pl.Int64})
    flow.output("o", ups.update(state, by="source").fetch(state, key="k", at="time"))
    marks = {f"sensor {n}": 0 for n in range(300)}
    source = random.Random(5)
    for now, workers in enumerate((2, 1, 3, 4, 2), 1):
        with flow.run(workers=workers, checkpoint=tmp_path, every=None) as run:
            silent = set(source.sample(sorted(marks), 3)) if now > 1 else set()
            rows = [
                (n, 10 * now + n % 7, 0, who) for n, who in enumerate(marks) if who not in silent
            ]
            marks |= {who: time for _, time, _, who in rows}
            run.insert("ups", rows)
            run.commit()
            assert run.status()["states"]["s"]["update"] == min(marks.values()), (now, workers)
            run.checkpoint()
            run.scale(1 + now % 4)
            run.insert("ups", [(0, 10 * now + 1, 0, "sensor 0")])
            run.commit()
            assert run.status()["states"]["s"]["update"] == min(marks.values()), (now, "scaled")
            run.checkpoint()
        saved = Checkpoints(tmp_path).restore("s:progress")
        assert (
            sum(map(len, saved.batches)) == len(marks) + 4
        )  # the fetch has one, and U, F, their moves


def test_compaction_may_become_lazy_or_active(tmp_path: Path) -> None:
    """What is kept is the same; only how it is gone through changes."""
    for now, compaction in enumerate(["active", "lazy", "active", "lazy"]):
        flow, ups, asks, state = two_inputs(compact=rr.rules.keep_latest, compaction=compaction)
        ups.update(state)
        flow.output("o", asks.fetch(state, key="k", at="at"))
        with flow.run(workers=1 + now % 2, checkpoint=tmp_path, every=None) as run:
            run.insert("ups", [(1, 10 * now + 5, now)])
            run.insert("asks", [(1, 0, 10 * now + 4)])
            run.commit()
            run.checkpoint()
            assert run.read("o").rows()[-1] == (1, 0, 10 * now + 4, now - 1 if now else None)


def test_a_state_is_saved_before_anything_came(tmp_path: Path) -> None:
    flow, ups, asks, state = two_inputs(compact=rr.rules.keep_latest, start=3)
    ups.update(state)
    flow.output("o", asks.fetch(state, key="k", at="at"))
    for workers in (2, 1):
        with flow.run(workers=workers, checkpoint=tmp_path, every=None) as run:
            run.checkpoint()
            assert run.status()["states"]["s"]["update"] == 3


def test_after_a_restart_updates_are_put_as_quickly_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those after all that is there replace nothing: that is known of what was restored, too."""
    quick: list[bool] = []
    nothing_replaced = Replace._nothing_replaced

    def watched(rule: Replace, *arguments: Any) -> bool:
        quick.append(nothing_replaced(rule, *arguments))
        return quick[-1]

    monkeypatch.setattr(Replace, "_nothing_replaced", watched)
    flow = rr.Dataflow("again")
    state = flow.state("s", {"k": pl.Int64}, {"v": pl.Int64}, time={"at": pl.Datetime("us")})
    ups = flow.input("ups", {"k": pl.Int64, "at": pl.Datetime("us"), "v": pl.Int64})
    ups.update(state, late=timedelta(days=9))
    flow.output("entries", state.entries())
    saved: dict[str, Any] = {"checkpoint": tmp_path, "every": None}
    expected: dict[tuple[int, datetime], int] = {}

    def put(run: rr.Run, day: int, value: int) -> list[bool]:
        quick.clear()
        at = datetime(2024, 1, day)
        run.insert("ups", [(k, at, value) for k in range(9)])
        run.commit()
        expected.update({(k, at): value for k in range(9)})
        assert run.read("entries").rows() == sorted((*key, v) for key, v in expected.items())
        return quick

    with flow.run(workers=2, **saved) as run:
        assert all(put(run, 3, 10))
        assert all(put(run, 5, 20))
        run.checkpoint()
        assert all(put(run, 6, 30))
    with flow.run(workers=3, **saved) as run:
        assert all(put(run, 7, 40))
        assert not any(put(run, 7, 41)), "these replace what came before them"
        assert not any(put(run, 5, 21)), "and these what was restored"
        run.scale(1)
        assert not any(put(run, 7, 42))
        assert all(put(run, 8, 50))
        run.insert("ups", [(1, None, 0)])
        with pytest.raises(rr.RiverrunError):
            run.commit()
        assert all(put(run, 9, 60)), "after an epoch that was refused"


@pytest.mark.parametrize("compaction", ["lazy", "active"])
def test_a_sweep_reaches_what_nobody_touches(compaction: str) -> None:
    flow, ups, asks, state = two_inputs(
        compact=rr.rules.keep_latest, compaction=compaction, sweep=20
    )
    ups.update(state, rule=rr.rules.append)
    flow.output("o", asks.fetch(state, key="k", at="at"))
    flow.output("entries", state.entries())
    with flow.run(workers=2) as run:
        run.insert("ups", [(k, time, 0) for k in range(30) for time in range(3)])
        run.commit()
        for now in range(10, 1000 if compaction == "lazy" else 13):
            if now % 16 == 0 and len(run.read("entries").rows()) <= 34:
                break
            run.insert("ups", [(99, now, 0)])
            run.insert("asks", [(99, 0, now)])
            run.commit()
        left = Counter(row[0] for row in run.read("entries").rows())
        assert {left[k] for k in range(30)} == {1}, left


def test_fetches_that_are_deleted_while_they_wait_do_not_stay() -> None:
    flow, ups, asks, state = two_inputs()
    ups.update(state)
    flow.output("o", asks.fetch(state, key="k", at="at"))
    with flow.run() as run:
        for turn in range(20):
            run.insert("asks", [(k, turn, 1000) for k in range(50)])
            run.commit()
            assert run.status()["states"]["s"]["pending"] == 50
            run.delete("asks", [(k, turn, 1000) for k in range(50)])
            run.commit()
            assert run.status()["states"]["s"]["pending"] == 0
        run.insert("ups", [(1, 2000, 0)])
        run.commit()
        assert run.read("o").rows() == []


def test_what_waits_is_taken_once_and_what_cancels_is_not_kept() -> None:
    pending = WaitingRequests(lambda changes: np.asarray(changes.columns[0]), lambda changes: None)
    for turn in range(40):
        some = Changes.of([pa.array(range(turn, turn + 50))], (turn,))
        pending.add((), some)
        pending.add((), some.negate())
        assert len(pending) == 0
    assert sum(block.changes.rows for block in pending.blocks()) < 500
    pending.add((), Changes.of([pa.array([7, 3, 5, 3])], (50,)))
    assert pending.passed(3) == set()
    taken = Changes.concat(pending.take((), 5)).map_times(lambda _: (0,)).consolidate()
    assert (taken.columns[0].to_pylist(), taken.diff_array().tolist()) == ([3], [2])
    assert len(pending) == 2


def test_sums_that_are_folded_are_exact() -> None:
    """What adds up to no number on the way, or needs more than one float, is as if it had never been folded."""
    values = {"x": pl.Float64, "n": pl.Int64}
    flow = rr.Dataflow("exact")
    ups = flow.input("ups", {"k": pl.Int64, "time": pl.Int64, **values})
    asks = flow.input("asks", {"k": pl.Int64, "at": pl.Int64})
    state = flow.state("s", {"k": pl.Int64}, values, compact=rr.rules.fold, compaction="active")
    ups.update(state, rule=rr.rules.add)
    flow.output("o", asks.fetch(state, key="k", at="at", rule=rr.rules.total))
    flow.output("entries", state.entries())
    parts = {
        1: [1e308, 1e308, -1e308, -1e308, 0.1],  # beyond all floats on the way
        2: [1e16, 1.0, -1e16, 1e-20],
        3: [0.1, None, 0.2, 0.3],
    }
    with flow.run() as run:
        for place in range(6):
            for k, listed in parts.items():
                if place < len(listed):
                    run.insert("ups", [(k, 10 * place, listed[place], 2**60)])
            run.insert("ups", [(9, 10 * place + 9, 0.0, 0)])
            run.insert("asks", [(9, 10 * place + 5)])
            run.commit()
        run.insert("ups", [(9, 200, 0.0, 0)])
        run.insert("asks", [(k, 100) for k in parts])
        run.commit()
        by_key = {row[0]: row[2:] for row in run.read("o").rows() if row[1] == 100}
        assert {k: x for k, (x, _) in by_key.items()} == {1: 0.1, 2: 1.0, 3: 0.6}
        assert {k: n for k, (_, n) in by_key.items()} == {
            k: 2**60 * len(v) for k, v in parts.items()
        }
        entry_counts = Counter(row[0] for row in run.read("entries").rows())
        assert all(entry_counts[k] <= 2 for k in parts), "one float, and what it does not say"


def test_sums_are_wide() -> None:
    flow = rr.Dataflow("wide")
    ups = flow.input("ups", {"k": pl.Int64, "time": pl.Int64, "a": pl.Int8, "b": pl.Float32})
    asks = flow.input("asks", {"k": pl.Int64, "at": pl.Int64})
    state = flow.state("s", {"k": pl.Int64}, {"a": pl.Int8, "b": pl.Float32})
    ups.update(state, rule=rr.rules.add)
    flow.output("o", asks.fetch(state, key="k", at="at", rule=rr.rules.total))
    with flow.run() as run:
        run.insert("ups", [(1, t, 100, 0.5) for t in range(5)])
        run.insert("asks", [(1, 3), (2, 3)])
        run.commit()
        assert run.read("o").rows() == [(1, 3, 400, 2.0), (2, 3, None, None)]


def test_a_total_of_a_range_of_what_is_folded_does_not_reach_back() -> None:
    flow, ups, asks, state = two_inputs(compact=rr.rules.fold, compaction="active")
    ups.update(state, rule=rr.rules.add)
    flow.output("o", asks.fetch(state, key="k", since="since", at="at", rule=rr.rules.total))
    with flow.run() as run:
        run.insert("ups", [(1, t, 1) for t in range(20)])
        run.insert("asks", [(2, 10, 10)])
        run.commit()
        run.insert("ups", [(1, 20, 1)])
        run.commit()  # all before 10 is one value now, at 9
        run.insert("asks", [(1, 9, 15)])
        with pytest.raises(rr.RiverrunError) as raised:
            run.commit()
        assert raised.value.code == "state.reaches_back"
        run.insert("asks", [(1, 10, 15)])
        run.commit()
        assert (1, 10, 15, 6) in run.read("o").rows()


def test_times_at_the_ends_of_what_can_be_said() -> None:
    first, last = -(2**63), 2**63 - 1
    flow, ups, asks, state = two_inputs(compact=rr.rules.drop_before(last), compaction="active")
    ups.update(state, rule=rr.rules.append, late=last)
    flow.output(
        "o",
        asks.fetch(
            state,
            key="k",
            since="since",
            at="at",
            closed="none",
            rule=rr.rules.within,
            how="inner",
            late=last,
        ),
    )
    with flow.run() as run:
        run.insert("ups", [(1, first, 1), (1, 0, 2), (1, 5, 3)])
        run.insert("asks", [(1, first, first), (1, first, -5), (1, -9, 3)])
        run.commit()
        assert run.status()["states"]["s"]["update"] == 5 - last
        run.insert("ups", [(1, last, 4)])
        run.commit()
        answers = [row[2:] for row in run.read("o").rows()]
        assert answers == []  # U is 0: what is at 0 may still change
        assert run.status()["states"]["s"]["pending"] == 1
        assert run.status()["states"]["s"]["update"] == 0


def test_the_model_never_misses_and_never_sees_too_much() -> None:
    """The judge itself: an update before the time of a committed fetch is seen, and none after."""
    model = Model(Spec("s", (Update("u", "append", Reporting(3)), Fetch("f", "within"))))
    model.step({"u": [(("", 1, 5, 1, 0.0), 1)], "f": [(("", 1, 0, 6, 0, 0), 1)]})
    model.step({"u": [(("", 1, 6, 2, 0.0), 1), (("", 1, 7, 3, 0.0), 1)]})
    assert model.pending == 1
    model.step({"u": [(("", 1, 4, 4, 0.0), 1), (("", 1, 12, 5, 0.0), 1)]})
    assert sorted(row[6:8] for row in model.answers["f"]) == [(4, 4), (5, 1), (6, 2)]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("null", [True, False])
def test_what_comes_and_goes_does_not_report_behind_a_fetch(
    workers: int, first: bool, null: bool
) -> None:
    """A fetch answers it when it comes, or not at all: neither that nor the number of workers shows behind it."""
    flow = rr.Dataflow("behind")
    key, value = {"k": pl.Int64}, {"v": pl.Int64}
    known = flow.state("known", key, value, replies_first=first)
    flow.input("given", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64}).update(known)
    asked = flow.input("asked", {"k": pl.Int64, "at": pl.Int64})
    answered = asked.fetch(known, key="k", at="at", progress=False)
    recorded = flow.state("kept", key, value)
    answered.update(recorded, key="k", time="at", value="v")
    flow.output("entries", recorded.entries())
    flow.output("recent", answered.expire("at", after=10))
    gone = [(1, 50), *([(3, None)] if null else [])]
    with flow.run(workers=workers) as run:
        run.insert("given", [(k, time, 0) for k in range(8) for time in (1, 100)])
        run.commit()
        run.insert("asked", [*gone, (1, 20)])
        run.delete("asked", gone)
        run.commit()
        assert run.status()["states"]["kept"]["update"] == 20
        assert run.read("recent").rows() == [(1, 20, 0)]
        run.insert("asked", [(1, 30)])
        run.commit()
        assert run.read("entries").rows() == [(1, 20, 0), (1, 30, 0)]
        assert run.events("late") == []


def test_a_loop_that_is_closed_later_reports_alike() -> None:
    """What a join puts in and takes out again is added up before it reports, whichever line is first."""
    kinds = []
    for early in (True, False):
        flow = rr.Dataflow("loop")
        updates = flow.input("given", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64})
        others = flow.input("others", {"k": pl.Int64})
        loop = flow.loop(name="around")
        start = loop.enter(updates)
        back = loop.feedback(start.schema, rounds=3)
        rows = start.concat(back)
        state = loop.state("state", key={"k": pl.Int64}, value={"v": pl.Int64})
        more = rows.join(loop.enter(others), "k").with_columns(time=pl.col("time") + 1)
        if early:
            back.connect(more)
        rows.update(state)
        if not early:
            back.connect(more)
        kinds.append(sorted(node.operator.kind for node in flow._builder.nodes))
    assert kinds[0] == kinds[1]
    assert "consolidate" in kinds[0]
