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


def rounds() -> rr.Dataflow:
    """Of the rows that come at round 0, some are taken back at round 1, and others given there."""
    flow = rr.Dataflow("rounds")
    state = flow.state("s", {"k": pl.Int64}, {"v": pl.Int64})
    flow.input("ups", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64}).update(state)
    columns = {"id": pl.Int64, "soon": pl.Int64, "later": pl.Int64}
    loop = flow.loop(name="rounds")
    first = loop.enter(flow.input("rows", columns))
    back = loop.feedback(first.schema, rounds=2)
    added, taken = flow.input("given", columns), flow.input("taken", columns)
    back.connect(loop.enter(added).concat(loop.enter(taken).negate()))
    answered = first.concat(back).fetch_uncommitted(state, requests=two, wait="soon")
    flow.output("o", loop.leave(answered))
    return flow


@pytest.mark.parametrize("workers", [1, 3])
def test_a_round_takes_back_what_was_found_in_the_same_epoch(workers: int, tmp_path: Path) -> None:
    saved: dict[str, Any] = {"checkpoint": tmp_path, "every": None}
    flow = rounds()
    with flow.run(workers=workers, **saved) as run:
        run.insert("taken", [ROW])
        step(run, ROW, ROW, up=(1, 10))
        step(run, ROW, up=(2, 11))
        run.insert("taken", [ROW, ROW])
        step(run, ROW, ROW, ROW, up=(3, 12))
        run.checkpoint()
    with flow.run(workers=3 - workers // 2, **saved) as run:
        run.insert("taken", [ROW])
        with refused(run):
            step(run, up=(4, 13))
        assert step(run, up=(30, 30)) == [(*ROW, [v, 30]) for v in (10, 11, 12)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_round_does_not_take_back_and_give_with_other_replies(workers: int) -> None:
    with rounds().run(workers=workers) as run:
        run.insert("taken", [ROW])
        step(run, ROW, up=(1, 10))
        run.insert("given", [ROW])
        with refused(run):  # it would be one of 11 at round 1, and one of 10 at round 0
            step(run, up=(2, 11))
        run.insert("given", [ROW])
        assert step(run, up=(2, 10)) == [], "what is alike need not be told apart"
        assert step(run, up=(30, 30)) == [(*ROW, [10, 30])]


class Rounds:
    """What `rounds` should give: each change of a record by itself, whatever others there are."""

    def __init__(self) -> None:
        self.ups: list[tuple[int, int]] = []
        self.changes: list[tuple[int, int, Row, int]] = []
        """Epoch, round, row and diff."""

    def value(self, came: int, wait: int) -> int | None:
        """What a request that came in an epoch has found, if it is answered."""
        passed = [epoch for epoch, (time, _) in enumerate(self.ups) if time > wait]
        return self.ups[max(came, passed[0])][1] if passed else None

    def answers(self) -> Counter[Row]:
        answers: Counter[Row] = Counter()
        for came, _, row, diff in self.changes:
            values = [self.value(came, wait) for wait in row[1:]]
            if None not in values:
                answers[(*row, tuple(values))] += diff
        return Counter({row: n for row, n in answers.items() if n})

    def is_plain(self) -> bool:
        """Whether no round takes back what it did not give in the epoch, or gives at times and takes back at times."""
        sums: Counter[tuple[int, int, Row]] = Counter()
        for came, at, row, diff in self.changes:
            sums[came, at, row] += diff
        balanced = all(
            sums[came, 0, row] >= max(0, -sums[came, 1, row]) for came, _, row in list(sums)
        )
        signs = {(at, row, n > 0) for (_, at, row), n in sums.items() if n}
        return balanced and not any((at, row, not sign) in signs for at, row, sign in signs)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(20, soak=80))
def test_rounds_and_epochs(seed: int, tmp_path: Path) -> None:
    """An epoch that is refused might be unclear; one that is not gives what it should."""
    source = random.Random(seed)
    flow, model = rounds(), Rounds()
    saved: dict[str, Any] = {"checkpoint": tmp_path, "every": None}
    run = flow.run(workers=source.randint(1, 4), seed=seed, **saved)
    faults = seed % 2
    for now in range(0, 20, 2):
        said = f"seed={seed}, now={now}, {model.changes}"
        came = len(model.ups)
        there = [
            (source.randint(0, 1), source.choice([0, now - 2]), source.choice([now + 1, now + 4, 12]))
            for _ in range(source.randint(0, 3))
        ] + [row for *_, row, _ in source.sample(model.changes, min(2, len(model.changes)))]  # fmt: skip
        taken = [row for row in there if source.random() < 0.4]
        if faults:
            taken += [row for *_, row, _ in source.sample(model.changes, min(1, len(model.changes)))]  # fmt: skip
        added = [row for row in there if source.random() < 0.2 * faults]
        fresh = [
            *((came, 0, row, 1) for row in there),
            *((came, 1, row, 1) for row in added),
            *((came, 1, row, -1) for row in taken),
        ]
        up = (now, source.randint(0, 2))
        before = list(model.ups), list(model.changes)
        model.ups.append(up)
        model.changes += fresh
        run.insert("taken", taken)
        run.insert("given", added)
        try:
            answers = step(run, *there, up=up)
        except rr.RiverrunError as error:
            if error.code != "state.answer_kept" or model.is_plain():
                raise AssertionError(said) from error
            model.ups, model.changes = before
            continue
        assert counted(answers) == model.answers(), said
        if source.random() < 0.3:
            run.checkpoint()
            run.close()
            run = flow.run(workers=source.randint(1, 4), seed=seed, **saved)
    run.close()


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
