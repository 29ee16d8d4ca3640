"""Equal records with several uncommitted requests: each keeps the answers of the time at which it was answered."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.engine import instance
from tests.frontends.collections.reference import Row, counted
from tests.soaking import seeds


def copies(**options: Any) -> rr.Dataflow:
    """Rows that ask for what is there when U has passed one time, and for what is there when it has passed another."""
    flow = rr.Dataflow("copies")
    state = flow.state("s", {"k": pl.Int64}, {"v": pl.Int64}, **options)
    flow.input("ups", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64}).update(state)
    rows = flow.input("rows", {"id": pl.Int64, "soon": pl.Int64, "later": pl.Int64})
    flow.output("o", rows.fetch_uncommitted(state, requests=two, wait="soon"))
    return flow


def two(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"k": 1, "wait": row["soon"]}, {"k": 1, "wait": row["later"]}]


def step(run: rr.Run, *rows: Any, up: tuple[int, int], deleted: Any = ()) -> list[Any]:
    """An epoch with an update of key 1, and what there is after it."""
    time, value = up
    run.insert("ups", [(1, time, value)])
    run.insert("rows", list(rows))
    run.delete("rows", list(deleted))
    run.commit()
    return sorted(run.read("o").rows())


@contextmanager
def refused(run: rr.Run) -> Iterator[None]:
    with pytest.raises(rr.RiverrunError) as raised:
        yield
    assert raised.value.code == "state.answer_kept"
    assert raised.value.hint


ROW = (7, 0, 20)


@pytest.mark.parametrize("replies_first", [True, False])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_each_copy_keeps_what_it_found(workers: int, replies_first: bool) -> None:
    with copies(replies_first=replies_first).run(workers=workers) as run:
        assert step(run, ROW, up=(1, 10)) == []
        assert step(run, ROW, up=(2, 11)) == []
        assert step(run, up=(3, 12)) == []
        assert step(run, ROW, ROW, up=(4, 13)) == []
        three = [(*ROW, [10, 30]), (*ROW, [11, 30]), (*ROW, [13, 30]), (*ROW, [13, 30])]
        assert step(run, up=(30, 30)) == three
        five = sorted([*three, (*ROW, [31, 31])])
        assert step(run, ROW, up=(31, 31)) == five, "it does not wait any more"


def test_copies_that_came_before_anything_was_answered_are_alike() -> None:
    row = (7, 5, 20)
    with copies().run(workers=2) as run:
        assert step(run, row, row, up=(1, 10)) == []
        assert step(run, row, up=(2, 11), deleted=[row]) == []
        assert step(run, up=(3, 12), deleted=[row]) == [], "it waits with all its requests"
        assert step(run, up=(6, 13)) == []
        assert step(run, row, up=(7, 14)) == []
        assert step(run, up=(30, 30)) == [(*row, [13, 30]), (*row, [14, 30])]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_record_of_which_a_request_is_answered_is_not_taken_back(workers: int) -> None:
    with copies().run(workers=workers) as run:
        step(run, ROW, up=(1, 10))
        with refused(run):
            step(run, up=(2, 11), deleted=[ROW])
        step(run, ROW, ROW, up=(2, 12), deleted=[ROW])  # of those that come and go in one epoch
        step(run, ROW, up=(3, 13), deleted=[ROW])
        with refused(run):
            step(run, ROW, up=(4, 14), deleted=[ROW, ROW])
        assert step(run, up=(30, 30)) == [(*ROW, [10, 30]), (*ROW, [12, 30])]
        with refused(run):
            step(run, up=(31, 31), deleted=[ROW])


def waiting_for_three() -> rr.Dataflow:
    """Rows that ask for what there is from each of some times on, when U has passed it."""
    flow = rr.Dataflow("three")
    state = flow.state("s", {"k": pl.Int64}, {"v": pl.Int64})
    flow.input("ups", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64}).update(state)
    rows = flow.input("rows", {"since": pl.List(pl.Int64)})

    def asks(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"k": 1, "since": since} for since in row["since"]]

    since = pl.lit(0, pl.Int64)
    answered = rows.fetch_uncommitted(state, requests=asks, since=since)
    flow.output("o", answered.select("v"))
    return flow


@pytest.mark.parametrize("workers", [(1, 3), (2, 1), (4, 2)])
@pytest.mark.parametrize("cut", range(1, 6))
def test_the_first_copy_has_the_first_reply_of_each_request(
    cut: int, workers: tuple[int, int], tmp_path: Path
) -> None:
    """What is there goes down, and up again, so that it does not say what came first; nor does where it is saved."""
    flow = waiting_for_three()
    saved: dict[str, Any] = {"checkpoint": tmp_path, "every": None}
    run = flow.run(workers=workers[0], **saved)
    row = ([20, 10, 0],)
    for epoch, (time, value) in enumerate([(1, 94), (5, 92), (11, 95), (15, 91), (16, 93)]):
        if epoch == cut:
            run.checkpoint()
            run.close()
            run = flow.run(workers=workers[1], **saved)
        assert step(run, row, up=(time, value)) == []
    if cut == 5:
        run.scale(workers[1])
    each = [[90, 95, 94], [90, 95, 92], [90, 95, 95], [90, 91, 91], [90, 93, 93]]
    assert step(run, up=(30, 90)) == sorted((v,) for v in each)
    run.close()


def some_late() -> rr.Dataflow:
    """The first request of a row is late once F has passed `at`, the others never are; the last waits longer."""
    flow = rr.Dataflow("late")
    state = flow.state("s", {"k": pl.Int64}, {"v": pl.Int64}, compact=rr.rules.keep_latest)
    flow.input("ups", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64}).update(state)
    rows = flow.input("rows", {"at": pl.Int64, "soon": pl.Int64, "later": pl.Int64})

    def asks(row: dict[str, Any]) -> list[dict[str, Any]]:
        others = [{"k": 1, "at": 90, "wait": row[each]} for each in ("soon", "later")]
        return [{"k": 1, "wait": row["soon"]}, *others[row["at"] % 2 :]]

    options: dict[str, Any] = {"at": "at", "wait": "soon", "progress": False}
    flow.output("o", rows.fetch_uncommitted(state, requests=asks, **options))
    flow.input("marks", {"at": pl.Int64}).progress(state, "fetch", at="at")
    return flow


@pytest.mark.parametrize("workers", [1, 3])
def test_late_copies_are_behind_those_that_came_in_time(workers: int) -> None:
    row = (6, 0, 20)
    with some_late().run(workers=workers) as run:
        step(run, row, up=(2, 12))
        run.insert("marks", [(7,)])
        step(run, row, up=(7, 17))
        assert run.status()["states"]["s"]["fetch"] == 7
        step(run, row, up=(8, 18))
        assert sum(event["rows"] for event in run.events("late")) == 1
        assert step(run, up=(30, 30)) == [(*row, [12, 12, 30]), (*row, [12, 17, 30])]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_record_that_waits_is_taken_back_when_what_was_answered_is_late(workers: int) -> None:
    row = (5, 0, 20)
    with some_late().run(workers=workers) as run:
        step(run, row, up=(2, 12))
        step(run, row, up=(4, 14))
        run.insert("marks", [(6,)])
        step(run, up=(6, 16))
        assert run.status()["states"]["s"]["pending"] == 2
        step(run, up=(7, 17), deleted=[row])
        assert run.status()["states"]["s"]["pending"] == 1
        assert step(run, up=(30, 30)) == [(*row, [12, 30])], "the younger of two goes"


@pytest.mark.parametrize("workers", [1, 3])
def test_no_late_copy_takes_the_place_of_one_that_was_taken_back(
    workers: int, tmp_path: Path
) -> None:
    row = (5, 0, 20)
    flow, saved = some_late(), {"checkpoint": tmp_path, "every": None}
    with flow.run(workers=workers, **saved) as run:
        step(run, row, up=(2, 12))
        step(run, row, up=(4, 14))
        run.insert("marks", [(6,)])
        step(run, up=(6, 16))
        step(run, up=(7, 17), deleted=[row])
        run.checkpoint()
    with flow.run(workers=4 - workers, **saved) as run:
        step(run, row, up=(8, 18))
        assert run.status()["states"]["s"]["pending"] == 2
        assert step(run, up=(30, 30)) == [(*row, [12, 30])]


# -- in loops


@pytest.mark.parametrize("asking", ["a list", "a function"])
@pytest.mark.parametrize("way", ["loop", "iterate"])
def test_in_a_loop_that_the_state_is_not_in_several_requests_are_refused(
    way: str, asking: str
) -> None:
    """Of equal rows, one that a round gave and one that another round takes back could not be told from each other."""
    flow = rr.Dataflow("rounds")
    state = flow.state("s", {"k": pl.Int64}, {"v": pl.Int64})
    rows = flow.input("rows", {"ks": pl.List(pl.Int64), "soon": pl.Int64, "later": pl.Int64})
    how: dict[str, Any] = {"key": "ks"} if asking == "a list" else {"requests": two}

    def body(stream: rr.Collection) -> rr.Collection:
        stream.fetch(state, at="soon", **how)  # is answered alike, whenever that is
        stream.select("soon").fetch_uncommitted(state, key="soon")
        return stream.fetch_uncommitted(state, wait="soon", **how).select(*stream.columns)

    with pytest.raises(rr.PlanError, match="in a loop that the state is not in") as raised:
        body(flow.loop(name="rounds").enter(rows)) if way == "loop" else rows.iterate(body)
    assert raised.value.code == "state.loop"
    assert "fetch(...)" in str(raised.value.hint)
    assert body(rows).columns == rows.columns


def test_rounds_of_a_state_in_a_loop_are_told_apart(tmp_path: Path) -> None:
    """Equal records of two rounds of one epoch: what the second found was left by the first round."""
    flow = rr.Dataflow("inside")
    loop = flow.loop(name="inside")
    state = loop.state("s", {"k": pl.Int64}, {"v": pl.Int64}, start=0)
    ups = loop.enter(flow.input("ups", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64}))
    late = loop.feedback(ups.schema, rounds=3)
    late.connect(ups.with_columns(v=pl.col("v") + 100))
    ups.concat(late).update(state, progress=False)
    ups.progress(state, "update", at="time")
    first = loop.enter(flow.input("rows", {"id": pl.Int64, "soon": pl.Int64, "later": pl.Int64}))
    back = loop.feedback(first.schema, rounds=2)
    back.connect(first)
    answered = first.concat(back).fetch_uncommitted(state, requests=two, wait="soon")
    flow.output("o", loop.leave(answered))
    saved: dict[str, Any] = {"checkpoint": tmp_path, "every": None}
    row = (7, -1, 20)
    with flow.run(workers=2, **saved) as run:
        step(run, row, up=(1, 10))
        run.checkpoint()
    with flow.run(workers=3, **saved) as run:
        step(run, row, up=(2, 5))
        assert [each[3][0] for each in step(run, up=(30, 30))] == [5, 10, 105, 110]


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(12, soak=48))
def test_rounds_of_a_state_in_a_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens go around ahead of the state, and each asks at every round: two keys at once, a third when U has come."""
    monkeypatch.setattr(instance, "STEPS", 1)  # messages come between any two turns
    source = random.Random(seed)
    flow, last = rr.Dataflow("tokens"), 5
    loop = flow.loop(name="round")
    first = loop.enter(flow.input("tokens", {"id": pl.Int64, "epoch": pl.Int64, "wait": pl.Int64}))
    first = first.with_columns(r=pl.lit(0, pl.Int64))
    back = loop.feedback(first.schema, rounds=last)
    here = first.concat(back)
    back.connect(here.with_columns(r=pl.col("r") + 1))
    state = loop.state("s", {"k": pl.Int64}, {"v": pl.Int64}, start=0)
    now = pl.col("epoch") * 10 + pl.col("r")
    for key in range(3):
        ups = here.filter(pl.col("id") == 0).select(k=pl.lit(key, pl.Int64), time=now, v=now)
        ups.update(state, progress=False)
    here.filter(pl.col("id") == 0).select(at=now).progress(state, "update", at="at", late=0)

    def asks(row: dict[str, Any]) -> list[dict[str, Any]]:
        waits = [(0, -1), (1, -1), (2, row["wait"])]
        return [{"k": key, "wait": wait} for key, wait in waits]

    rows = here.filter(pl.col("id") > 0).select("id", "wait")
    flow.output("o", loop.leave(rows.fetch_uncommitted(state, requests=asks, wait="wait")))
    expected: Counter[Row] = Counter()
    waiting: list[tuple[int, int, int]] = []
    said = f"seed={seed}"
    with flow.run(workers=source.randint(2, 4), seed=seed) as run:
        for epoch in range(4):
            waits = [10 * epoch + source.randint(-2, 12) for _ in range(2)] + [21]
            tokens = [(source.randint(1, 2), epoch, source.choice(waits)) for _ in range(3)]
            run.insert("tokens", [(0, epoch, 0), *tokens])
            run.commit()
            for r in range(last):
                waiting += [(each, wait, 10 * epoch + r) for each, _, wait in tokens]
                expected += Counter(
                    (each, wait, (came, came, 10 * epoch + r)) for each, wait, came in waiting if wait < 10 * epoch + r
                )  # fmt: skip
                waiting = [each for each in waiting if each[1] >= 10 * epoch + r]
            counts = counted(run.read("o").rows())
            wrong = f"missing {expected - counts}, too many {counts - expected}"
            assert counts == expected, f"{said}, epoch {epoch}: {wrong}"


def test_of_a_collection_a_row_makes_one_request() -> None:
    """So that each row is answered in its epoch, and has nothing to wait for."""
    flow = rr.Dataflow("collection")
    there = flow.input("there", {"k": pl.Int64, "v": pl.Int64}, key="k")
    asks = flow.input("asks", {"k": pl.Int64, "ks": pl.List(pl.Int64)})
    with pytest.raises(rr.RiverrunError):
        asks.lookup(there, left_on="ks", right_on="k")
    flow.output("o", asks.lookup(there, "k").drop("ks"))
    with flow.run(workers=2) as run:
        for value in (10, 11):
            run.insert("there", [(1, value)])
            run.insert("asks", [(1, []), (1, [])])
            run.commit()
        assert counted(run.read("o").rows()) == {(1, 10): 2, (1, 11): 2}
