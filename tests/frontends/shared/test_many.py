"""Records that make several requests go on once, when all replies are there; updates of lists are updates each."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr
from riverrun.operators.shared.complete import find_complete
from riverrun.operators.shared.gather import _with_diffs
from riverrun.state.changes import Changes
from tests.frontends.collections.checking import feed
from tests.frontends.collections.reference import Row, counted
from tests.frontends.shared.model import Fetch, Model, Report, Reporting, Spec, Update
from tests.soaking import seeds

ROWS = {"id": pl.Int64, "keys": pl.List(pl.Int64), "at": pl.Int64}
LATEST, RANGE = Fetch("latest"), Fetch("range", "within", since=True)
ASKED = Fetch("asked")


def shifted(row: dict[str, Any]) -> list[dict[str, Any]]:
    """A request for each key, each a little before the one before, and one at the time of the record."""
    times = [{"k": key, "at": row["at"] - place} for place, key in enumerate(row["keys"] or ())]
    return [*times, {"k": row["id"]}]


def build(source: random.Random) -> rr.Dataflow:
    flow = rr.Dataflow("many")
    state = flow.state(
        "s",
        key={"k": pl.Int64},
        value={"v": pl.Int64},
        accelerate=source.random() < 0.5,
        replies_first=source.random() < 0.5,
    )
    flow.input("ups", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64}).update(state, late=2)
    lists = flow.input(
        "lists", {"ks": pl.List(pl.Int64), "time": pl.Int64, "vs": pl.List(pl.Int64)}
    )
    lists.update(state, key="ks", value="vs", rule=rr.rules.append, late=2, idle=2)
    flow.input("said", {"at": pl.Int64}).progress(state, "update", at="at", late=0, idle=1)
    rows = flow.input("rows", ROWS)
    flow.output("latest", rows.fetch(state, key="keys", at="at"))
    since = pl.col("at") - 5
    flow.output(
        "range",
        rows.fetch(state, key="keys", since=since, at="at", rule=rr.rules.within, time="of"),
    )
    flow.output("asked", rows.fetch(state, requests=shifted, at="at"))
    return flow


class Records:
    """The model of records with several requests, above that of the state."""

    def __init__(self) -> None:
        self.spec = Spec(
            "s",
            (
                Update("ups", "replace", Reporting(2)),
                Update("lists", "append", Reporting(2, idle=2)),
                Report("said", "update", Reporting(0, idle=1)),
            ),
        )
        self.state = Model(self.spec)
        self.waiting: dict[str, Counter[Row]] = {each: Counter() for each in REQUESTS}
        self.answers: dict[str, Counter[Row]] = {each: Counter() for each in REQUESTS}

    def step(self, changes: dict[str, list[tuple[Row, int]]]) -> None:
        flat = [
            ((k, time, v), n)
            for (ks, time, vs), n in changes["lists"]
            for k, v in zip(ks or (), vs or (), strict=True)
        ]
        plain = {"ups": changes["ups"], "lists": flat, "said": changes["said"]}
        self.state.step({name: [(("", *row), n) for row, n in rows] for name, rows in plain.items()})  # fmt: skip
        for name, requests in REQUESTS.items():
            for (ident, keys, at), n in changes["rows"]:
                self.waiting[name][ident, None if keys is None else tuple(keys), at] += n
            for record, n in list(self.waiting[name].items()):
                asked = requests(record)
                if n and all(self.state._is_ready(user, row) for user, row in asked):
                    replies = [self._reply(user, row) for user, row in asked]
                    columns = tuple(zip(*replies, strict=True)) or ((),) * (
                        2 if name == "range" else 1
                    )
                    self.answers[name][(*record, *columns)] += n
                    self.waiting[name][record] = 0

    def _reply(self, user: Fetch, row: Row) -> Row:
        answers = list(self.state._answer(user, row))
        if user.rule == "within":
            listed = [answer for answer, n in answers for _ in range(n)]
            return tuple(zip(*listed, strict=True)) or ((), ())
        return answers[0][0][1:] if answers else (None,)


def _row(key: Any, at: int, since: int = 0) -> Row:
    return "", key, since, at, 0, 0


REQUESTS: dict[str, Any] = {
    "latest": lambda r: [(LATEST, _row(key, r[2])) for key in r[1] or ()],
    "range": lambda r: [(RANGE, _row(key, r[2], r[2] - 5)) for key in r[1] or ()],
    "asked": lambda r: [
        *((ASKED, _row(key, r[2] - place)) for place, key in enumerate(r[1] or ())),
        (ASKED, _row(r[0], r[2])),
    ],
}


class Stream:
    """Random rows, out of order; of records some are deleted, whether they wait or have gone on."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.there: Counter[Row] = Counter()

    def epoch(self, now: int) -> dict[str, list[tuple[Row, int]]]:
        source = self.source

        def some(most: int) -> range:
            return range(source.randint(0, most))

        ups = [
            ((self.key(), now + source.randint(-4, 5), source.randint(0, 9)), 1) for _ in some(5)
        ]
        lists = []
        for _ in some(2):
            keys = source.choice([None, [], [1, 2], [0, 0, 3]])
            values = None if keys is None else [source.randint(0, 9) for _ in keys]
            lists.append(((keys, now + source.randint(-4, 5), values), 1))
        rows = [(self.record(now), 1) for _ in some(5)]
        rows += [(row, 1) for row, _ in rows if source.random() < 0.2]
        rows = [((r[0], None if r[1] is None else tuple(r[1]), r[2]), n) for r, n in rows]
        there = sorted((self.there + Counter(row for row, _ in rows)).elements(), key=repr)
        rows += [(row, -1) for row in source.sample(there, min(len(there), source.randint(0, 3)))]
        source.shuffle(rows)
        for row, n in rows:
            self.there[row] += n
        said = [((now + source.randint(-3, 1),), 1) for _ in some(1)]
        return {"ups": ups, "lists": lists, "said": said, "rows": rows}

    def key(self) -> int | None:
        return self.source.choice([0, 1, 2, 3, None])

    def record(self, now: int) -> Row:
        keys = self.source.choice([None, [], [self.key()], [self.key(), self.key(), self.key()]])
        return self.source.randint(0, 3), keys, now + self.source.randint(-5, 6)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(10, soak=96))
def test_records_with_several_requests(seed: int) -> None:
    source = random.Random(seed)
    flow, model, stream = build(source), Records(), Stream(source)
    workers, turns = source.randint(1, 4), source.choice([None, seed])
    said = f"seed={seed}, workers={workers}, turns={turns}"
    added: dict[str, Counter[Row]] = {name: Counter() for name in REQUESTS}
    with flow.run(workers=workers, seed=turns) as run:
        for epoch in range(7):
            changes = stream.epoch(3 * epoch)
            model.step(changes)
            for name, rows in changes.items():
                lists = [
                    (tuple(list(c) if isinstance(c, tuple) else c for c in row), n)
                    for row, n in rows
                ]
                feed(run, name, lists)
            run.commit()
            for name, answers in model.answers.items():
                expected = Counter({row: n for row, n in answers.items() if n})
                counts = counted(run.read(name).rows())
                assert counts == expected, (
                    f"{said}, epoch {epoch}, {name}: missing {expected - counts}, too many {counts - expected}"
                )
                for *row, diff in run.changes(name).rows():
                    added[name][next(iter(counted([row])))] += diff
                assert {row: n for row, n in added[name].items() if n} == expected, said
            assert run.status()["states"]["s"]["update"] == model.state.update, said
            if source.random() < 0.3:
                run.scale(source.randint(1, 4))


# -- one thing at a time


def asking(**options: Any) -> rr.Dataflow:
    flow = rr.Dataflow("asking")
    state = flow.state("s", {"k": pl.Int64}, {"v": pl.Int64}, **options)
    flow.input("ups", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64}).update(state)
    rows = flow.input("rows", {"id": pl.Int64, "early": pl.Int64, "late": pl.Int64})

    def two(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"k": 1, "at": row["early"]}, {"k": 2, "at": row["late"]}]

    flow.output("o", rows.fetch(state, requests=two))
    marks = flow.input("marks", {"at": pl.Int64})
    marks.fetch(state, key=pl.lit(0, pl.Int64), at="at")
    return flow


@pytest.mark.parametrize("replies_first", [True, False])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_record_that_is_deleted_while_it_waits_leaves_nothing(
    workers: int, replies_first: bool
) -> None:
    with asking(replies_first=replies_first).run(workers=workers) as run:
        run.insert("ups", [(1, 5, 50), (2, 5, 51), (1, 10, 52)])
        row = (7, 6, 20)
        for _ in range(3):
            run.insert("rows", [row])
            run.commit()
            assert run.read("o").rows() == []
            run.delete("rows", [row])
            run.commit()
        run.insert("rows", [row, (8, 6, 7)])
        run.commit()
        assert run.read("o").rows() == [(8, 6, 7, [50, 51])], "it does not wait for those before it"
        run.insert("ups", [(2, 15, 53), (1, 30, 0)])
        run.commit()
        assert run.read("o").rows() == [(7, 6, 20, [50, 53]), (8, 6, 7, [50, 51])]
        run.delete("rows", [row])
        run.commit()
        assert run.read("o").rows() == [(8, 6, 7, [50, 51])]


@pytest.mark.parametrize("replies_first", [True, False])
@pytest.mark.parametrize("workers", [1, 3])
def test_of_equal_records_some_may_be_late(workers: int, replies_first: bool) -> None:
    flow = asking(replies_first=replies_first, compact=rr.rules.keep_latest)
    with flow.run(workers=workers) as run:
        run.insert("ups", [(1, 5, 50), (2, 5, 51), (1, 12, 52)])
        run.insert("rows", [(7, 6, 20)])
        run.insert("marks", [(6,)])
        run.commit()
        run.insert("marks", [(10,)])
        run.commit()
        assert run.status()["states"]["s"]["fetch"] == 10
        run.insert("rows", [(7, 6, 20), (9, 6, 7), (9, 10, 11)])
        run.commit()
        assert run.read("o").rows() == [(9, 10, 11, [50, 51])]
        assert sum(event["rows"] for event in run.events("late")) == 3, "one and two requests"
        run.insert("ups", [(2, 30, 0)])
        run.commit()
        assert run.read("o").rows() == [(7, 6, 20, [50, 51]), (9, 10, 11, [50, 51])]
        run.delete("rows", [(7, 6, 20)])  # one request of it is late now: the answer stays
        run.commit()
        assert len(run.read("o").rows()) == 2


ROW = (7, 6, 20)
LATER: dict[str, tuple[int, list[int], int]] = {
    "taken_back_then_late": (2, [-1, 1], 1),
    "late_then_taken_back": (2, [1, -1], 1),
    "all_taken_back_then_late": (2, [-2, 1], 0),
    "all_that_came_in_time": (1, [1, -1], 0),
    "all_that_there_is": (1, [1, -2], 0),
    "one_by_one": (3, [-1, 1, -1, 1], 1),
    "at_once": (2, [0], 2),
}
"""How many equal records come in time, how many come (or go) late, epoch by epoch, and how many go on."""


@pytest.mark.parametrize("replies_first", [True, False])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", LATER)
def test_no_late_record_takes_the_place_of_one_that_was_taken_back(
    name: str, workers: int, replies_first: bool
) -> None:
    in_time, late, left = LATER[name]
    flow = asking(replies_first=replies_first, compact=rr.rules.keep_latest)
    with flow.run(workers=workers) as run:
        run.insert("ups", [(1, 5, 50), (2, 5, 51), (1, 12, 52)])
        run.insert("rows", [ROW] * in_time)
        run.insert("marks", [(6,)])
        run.commit()
        run.insert("marks", [(10,)])
        run.commit()
        assert run.status()["states"]["s"]["fetch"] == 10
        for count in late:
            run.insert("rows", [ROW] * max(count, 1))
            run.delete("rows", [ROW] * (max(count, 1) - count))
            run.commit()
        assert run.status()["states"]["s"]["pending"] == in_time + sum(late)
        assert sum(event["rows"] for event in run.events("late")) == sum(map(abs, late))
        run.insert("ups", [(2, 30, 0)])
        run.commit()
        assert run.read("o").rows() == [(*ROW, [50, 51])] * left


def replies(rows: list[tuple[int, int, int]]) -> Changes:
    """Of record, place, diff."""
    ids, places, diffs = zip(*rows, strict=True)
    columns = (pa.array(ids), pa.array(ids), pa.array(places), pa.array([0] * len(rows)))
    return Changes(columns, len(rows), ((0,),), None, 0, np.array(diffs))


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(5, soak=20))
def test_what_is_left_of_records_and_replies(seed: int) -> None:
    """In whatever order records and replies come, in the end all that is complete has gone on, and nothing is left."""
    source = random.Random(seed)
    records = [(1, 2, 1), (1, 2, 1), (2, 1, 1), (3, 2, 1), (3, 2, -1), (4, 2, -1)]
    arrivals = [(1, 0, 2), (1, 1, 1), (1, -2, 1), (2, 0, 1), (3, 0, 1), (3, 0, -1), (4, 0, -1), (4, 1, -1)]  # fmt: skip
    arrivals += [(3, 1, 1), (3, 1, -1)]
    events = [(0, each) for each in records] + [(1, each) for each in arrivals]
    source.shuffle(events)
    waiting = [replies([(9, 0, 0)]).filter(np.zeros(1, bool)) for _ in range(2)]
    sent: Counter[int] = Counter()
    for port, event in events:
        both = [
            Changes.concat([waiting[at], replies([event])]) if at == port else waiting[at]
            for at in range(2)
        ]
        complete = find_complete(*both)
        for row, diff in zip(complete.rows, complete.diffs, strict=True):
            sent[both[0].columns[0][int(row)].as_py()] += int(diff)
        left = [
            (both[0], complete.records_left, complete.record_diffs),
            (both[1], complete.replies_left, complete.reply_diffs),
        ]
        waiting = [_with_diffs(changes.take(rows), diffs) for changes, rows, diffs in left]
    assert {record: n for record, n in sent.items() if n} == {1: 1, 2: 1, 4: -1}, f"seed={seed}"
    assert [changes.rows for changes in waiting] == [0, 0], f"seed={seed}"


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("time", [None, "of"])
def test_replies_have_the_times_that_an_answer_has(time: str | None, listed: bool) -> None:
    """Whether a row makes one request or several, and whether they are a list or given by a function."""
    flow = rr.Dataflow("times")
    state = flow.state("s", {"k": pl.Int64}, {"v": pl.Int64})
    flow.input("ups", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64}).update(state)
    rows = flow.input("rows", {"k": pl.Int64, "ks": pl.List(pl.Int64), "at": pl.Int64})
    many: dict[str, Any] = {"key": "ks"} if listed else {"requests": lambda r: [{"k": r["k"]}]}

    def spans(values: pl.DataFrame) -> pl.DataFrame:
        return values.group_by("request").agg(span=pl.col("time").max() - pl.col("time").min())

    span = rr.rules.fetch(spans, {"span": pl.Int64})
    for rule in (rr.rules.within, rr.rules.latest, rr.rules.distinct, span):
        named = None if rule is rr.rules.distinct else time
        one = rows.fetch(state, key="k", at="at", rule=rule, time=named)
        several = rows.fetch(state, at="at", rule=rule, time=named, **many)
        assert several.columns == one.columns
    flow.output("o", rows.fetch(state, at="at", rule=rr.rules.within, time=time, **many).drop("ks"))
    flow.output("spans", rows.fetch(state, at="at", rule=span, **many).drop("ks"))
    with flow.run(workers=2) as run:
        run.insert("ups", [(1, 2, 20), (1, 5, 50), (9, 99, 0)])
        run.insert("rows", [(1, [1], 7), (2, [2], 7)])
        run.commit()
        assert run.read("o").rows() == [(1, 7, [[2, 5]], [[20, 50]]), (2, 7, [[]], [[]])]
        assert run.read("spans").rows() == [(1, 7, [[3]]), (2, 7, [[]])]


def test_lists_of_different_lengths_are_refused() -> None:
    flow = build(random.Random(1))
    with flow.run() as run:
        run.insert("lists", [([1, 2], 5, [3])])
        with pytest.raises(rr.RiverrunError) as raised:
            run.commit()
        assert raised.value.code == "schema.lists_differ"
        assert raised.value.hint


@pytest.mark.parametrize("workers", [1, 2])
def test_a_null_list_has_no_elements_whatever_lies_under_it(workers):
    flow = rr.Dataflow("masked")
    pairs = flow.input("pairs", {"id": pl.Int64, "ks": pl.List(pl.Int64), "at": pl.Int64})
    rows = flow.input("rows", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64})
    masked = pairs.with_columns(ks=pl.when(pl.col("id") != 1).then("ks"))
    state = flow.state("s", key={"k": pl.Int64}, value={"v": pl.Int64})
    rows.update(state)
    flow.output("got", masked.fetch(state, key="ks", at="at").select("id", "v"))
    flow.output("exploded", masked.select("id", "ks").explode("ks"))
    spread = flow.state(
        "spread", key={"ks": pl.Int64}, value={"id": pl.Int64}, time={"at": pl.Int64}
    )
    masked.update(spread)
    flow.output("spread out", spread.entries().select("ks", "id"))
    with flow.run(workers=workers) as run:
        run.insert("rows", [(k, 1, 10 * k) for k in range(1, 7)] + [(9, 99, 0)])
        run.insert("pairs", [(1, [1, 2], 5), (2, [3, 4], 5), (3, [5, 6], 5)])
        run.commit()
        assert run.read("got").rows() == [(1, []), (2, [30, 40]), (3, [50, 60])]
        assert run.read("exploded").rows() == [(2, 3), (2, 4), (3, 5), (3, 6)]
        assert run.read("spread out").rows() == [(3, 2), (4, 2), (5, 3), (6, 3)]


@pytest.mark.parametrize("listed", [False, True])
def test_what_waits_is_taken_back_however_far_fetches_have_come(listed):
    flow = rr.Dataflow("back")
    kind = pl.List(pl.Int64) if listed else pl.Int64
    rows = flow.input("rows", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64})
    asks = flow.input("asks", {"k": kind, "since": pl.Int64, "at": pl.Int64})
    others = flow.input("others", {"k": pl.Int64, "at": pl.Int64})
    state = flow.state(
        "s", key={"k": pl.Int64}, value={"v": pl.Int64}, compact=rr.rules.drop_before(5)
    )
    rows.update(state)
    answered = asks.fetch(
        state, key="k", since="since", at="at", rule=rr.rules.within, progress=False
    )
    flow.output("found", answered)
    flow.output("other", others.fetch(state, key="k", since="at", at="at"))
    with flow.run(workers=2) as run:
        asked = ([1] if listed else 1, 0, 100)
        run.insert("rows", [(1, 1, 10)])
        run.insert("asks", [asked])
        run.commit()
        run.insert("others", [(1, 50)])
        run.insert("rows", [(1, 60, 11)])
        run.commit()
        assert run.status()["states"]["s"]["fetch"] == 50
        run.delete("asks", [asked])
        run.commit()
        assert run.status()["states"]["s"]["pending"] == 0
        run.insert("rows", [(1, 200, 12)])
        run.commit()
        assert run.read("found").rows() == []
