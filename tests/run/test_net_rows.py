"""Rows that an epoch inserts and deletes as often: no function of the user's sees them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from tests.soaking import Shown, draws, first_seed

BAD = range(90, 100)
K = {"k": pl.Int64}


class Bad(Exception):
    """What the functions raise."""


def _look(k: int) -> int:
    if k in BAD:
        raise Bad(k)
    return k


def by_frames(rows: pl.DataFrame) -> pl.DataFrame:
    return pl.DataFrame({"k": [_look(k) for k in rows["k"]]}, schema=K)


def by_rows(row: dict[str, Any]) -> list[dict[str, int]]:
    return [{"k": _look(row["k"])}]


def by_groups(group: pl.DataFrame) -> int:
    return _look(group["k"][0])


def by_groups_many(group: pl.DataFrame) -> list[dict[str, int]]:
    return [{"seen": _look(k)} for k in group["k"]]


def by_requests(row: dict[str, Any]) -> list[dict[str, int]]:
    return [{"k": _look(row["k"]), "at": 0}]


class Passing(rr.Vertex):
    def on_recv(self, name: str, rows: pl.DataFrame, time: tuple[int, ...]) -> None:
        for k in rows["k"]:
            _look(k)
        self.send(rows)


def _strict(k: str = "k") -> pl.Expr:
    """An expression that fails for bad rows."""
    return pl.when(pl.col(k) >= BAD.start).then(pl.lit("bad")).otherwise(pl.lit("1")).cast(pl.Int64)


def _state(flow: rr.Dataflow) -> rr.State:
    """A state that nobody has to wait for."""
    state = flow.state("known", key=K, value={"v": pl.Int64}, start=1)
    flow.input("updates", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64}).update(state)
    return state


FLOWS: dict[str, Any] = {
    "flat_map": lambda flow, rows: rows.flat_map(by_rows, K),
    "group_apply": lambda flow, rows: (
        rows.group_by("k").apply(by_groups, {"seen": pl.Int64}).select("k")
    ),
    "select": lambda flow, rows: rows.select("k", one=_strict()).select("k"),
    "filter": lambda flow, rows: rows.filter(_strict() == 1),
    "inspect": lambda flow, rows: rows.inspect(
        lambda batch: [_look(k.as_py()) for k in batch["k"]]
    ),
    "distinct": lambda flow, rows: rows.distinct().flat_map(by_rows, K),
    "map_batches": lambda flow, rows: rows.map_batches(by_frames, K),
    "group_apply_many": lambda flow, rows: (
        rows.group_by("k").apply(by_groups_many, {"seen": pl.Int64}, many=True).select(k="seen")
    ),
    "with_columns": lambda flow, rows: rows.with_columns(one=_strict()).select("k"),
    "group_by": lambda flow, rows: (
        rows.group_by(k=_strict() * 0 + pl.col("k")).count("n").select("k")
    ),
    "aggregate": lambda flow, rows: rows.group_by("k").agg(n=rr.sum(_strict())).select("k"),
    "vertex": lambda flow, rows: flow.vertex(Passing, {"rows": rows}, K, name="passing"),
    "requests": lambda flow, rows: rows.fetch(
        _state(flow), at=pl.lit(0), progress=False, requests=by_requests, name="fetched"
    ).select("k"),
    "chained": lambda flow, rows: (
        rows.flat_map(by_rows, K)
        .map_batches(by_frames, K)
        .filter(_strict() == 1)
        .flat_map(by_rows, K)
    ),
}
ONCE = ("group_apply", "distinct", "group_by", "aggregate")  # a row for each key


def _program(kind: str) -> rr.Dataflow:
    flow = rr.Dataflow(kind)
    rows = flow.input("rows", K)
    flow.output("seen", FLOWS[kind](flow, rows))
    return flow


@pytest.mark.parametrize("kind", FLOWS)
def test_an_epoch_is_refused_only_for_rows_that_are_left(kind: str) -> None:
    """Law *net rows*: an epoch is refused exactly when a function fails for a row that the epoch changes, added up."""
    _commit_rows_that_cancel(kind, 3, 1)


@pytest.mark.soak
@pytest.mark.parametrize("kind", FLOWS)
def test_many_epochs_are_refused_only_for_rows_that_are_left(kind: str) -> None:
    _commit_rows_that_cancel(kind, draws(3, sample=10, soak=60), first_seed(2))


def _commit_rows_that_cancel(kind: str, programs: int, seed: int) -> None:
    source = random.Random(f"{seed} {kind}")
    shown = Shown(refused=1, cancelled=1)
    for _ in shown.turns(programs, limit=10):
        workers = source.randrange(1, 4)
        content: Counter[int] = Counter()
        with _program(kind).run(workers=workers) as run:
            for epoch in range(8):
                given: list[tuple[int, int]] = []
                for _ in range(source.randrange(6)):
                    key = source.choice([source.randrange(5), source.choice(BAD)])
                    given.append((key, 1))
                    if source.random() < (0.85 if key in BAD else 0.3):
                        given.append((key, -1))
                given += [(key, -1) for key in content if source.random() < 0.2]
                source.shuffle(given)
                for key, diff in given:
                    (run.insert if diff > 0 else run.delete)("rows", [(key,)])
                net: Counter[int] = Counter()
                for key, diff in given:
                    net[key] += diff
                fails = any(key in BAD and count for key, count in net.items())
                shown["refused"] += fails
                shown["cancelled"] += not fails and any(key in BAD for key, _ in given)
                told = f"{kind}, epoch {epoch} of {workers} workers: {given}, SEED={seed}"
                if fails:
                    with pytest.raises(rr.OperatorFailed):
                        run.commit()
                    continue
                try:
                    run.commit()
                except rr.OperatorFailed as error:
                    raise AssertionError(f"refused though nothing fails: {told}") from error
                content.update(net)
                content = +content
                expected = sorted(content.keys() if kind in ONCE else content.elements())
                assert [k for (k,) in run.read("seen").rows()] == expected, told


def test_rows_that_cancel_are_not_given_to_the_rules_of_a_state() -> None:
    """Rules that update, fetch and compact see no key of a row that was inserted and deleted."""

    def update(entries: pl.DataFrame, updates: pl.DataFrame) -> pl.DataFrame:
        by_frames(updates)
        return pl.concat([entries, updates])

    def answer(values: pl.DataFrame) -> pl.DataFrame:
        by_frames(values.select(k="v"))
        return values.select("request", "v")

    def compact(entries: pl.DataFrame, horizon: Any) -> pl.DataFrame:
        by_frames(entries)
        return entries

    flow = rr.Dataflow("rules")
    rows = flow.input("rows", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64})
    asked = flow.input("asked", {"k": pl.Int64, "at": pl.Int64})
    state = flow.state("known", key=K, value={"v": pl.Int64}, compact=rr.rules.compact(compact))
    rows.update(state, rule=rr.rules.update(update))
    rule = rr.rules.fetch(answer, {"v": pl.Int64})
    flow.output("seen", asked.fetch(state, key="k", at="at", rule=rule))
    for workers in (1, 2, 3):
        with flow.run(workers=workers) as run:
            for time in (1, 2, 3):
                run.insert("rows", [(95, time, 95), (1, time, time)])
                run.delete("rows", [(95, time, 95)])
                run.insert("asked", [(95, time), (1, time)])
                run.delete("asked", [(95, time)])
                run.commit()
            assert run.read("seen").rows() == [(1, 1, 1), (1, 2, 1), (1, 2, 2)]  # 3 is not passed
            run.insert("rows", [(95, 4, 95)])
            with pytest.raises(rr.OperatorFailed):
                run.commit()


def test_rows_keep_their_order_where_none_cancels() -> None:
    seen: list[int] = []
    flow = rr.Dataflow("order")
    rows = flow.input("rows", K)
    flow.output("seen", rows.inspect(lambda batch: seen.extend(k.as_py() for k in batch["k"])))
    with flow.run() as run:
        run.insert("rows", [(3,), (1,), (2,)])
        run.commit()
        run.delete("rows", [(3,)])
        run.insert("rows", [(9,), (4,)])
        run.commit()
    assert seen == [3, 1, 2, 3, 9, 4]


def test_types_are_kept_when_rows_are_added_up() -> None:
    schema = {
        "s": pl.String,
        "c": pl.Categorical,
        "d": pl.Datetime("us", "UTC"),
        "l": pl.List(pl.Int32),
    }
    flow = rr.Dataflow("types")
    flow.output("seen", flow.input("rows", schema))
    at = pl.datetime(2024, 1, 2, time_zone="UTC")
    frame = pl.select(
        s=pl.lit("a"), c=pl.lit("b", pl.Categorical), d=at, l=pl.lit([1, None], pl.List(pl.Int32))
    )
    other = frame.with_columns(s=pl.lit(None, pl.String))
    with flow.run() as run, rr.Dataflow.run(flow) as plain:
        run.insert("rows", frame)
        run.insert("rows", other)
        run.insert("rows", other)
        run.delete("rows", frame)
        run.commit()
        plain.insert("rows", other)
        plain.insert("rows", other)
        plain.commit()
        assert run.read("seen").to_arrow() == plain.read("seen").to_arrow()
