"""Where two types meet: the answers are those that Python's own equality gives, and nothing is lost.

Each pair has two types, values of each that are partly equal, and the type that both become. `concat`, all joins,
loops, inserted frames, keyed inputs and shared state are compared with a recomputation in plain Python after every
epoch of insertions and deletions, with 1 to 3 workers: equal values of two types have to reach one worker.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr
from riverrun.state.types import common_type, fits, share_layout
from tests.soaking import draws, first_seed

DAY = datetime(2024, 5, 6, 7, 8, 9)
LEVELS = pl.Enum(["low", "mid", "high"])
PARIS, TOKYO = ZoneInfo("Europe/Paris"), ZoneInfo("Asia/Tokyo")


@dataclass(frozen=True)
class Pair:
    left: Any
    right: Any
    common: Any
    lefts: list[Any]
    rights: list[Any]

    def __str__(self) -> str:
        return f"{self.left} and {self.right}"


def pair(left: Any, right: Any, common: Any, lefts: list[Any], rights: list[Any]) -> Pair:
    return Pair(left, right, common, lefts, rights)


PAIRS = [
    pair(pl.Int32, pl.Int64, pl.Int64, [-1, 0, 5], [-1, 5, 2**40]),
    pair(pl.UInt32, pl.Int64, pl.Int64, [0, 2**32 - 1], [-1, 0, 2**32 - 1]),
    pair(pl.UInt8, pl.Int8, pl.Int16, [0, 100, 255], [-1, 0, 100]),
    pair(pl.UInt16, pl.UInt64, pl.UInt64, [0, 9], [9, 2**64 - 1]),
    pair(pl.Float32, pl.Float64, pl.Float64, [0.5, -0.0, 0.25], [0.5, 0.0, 0.1]),
    pair(pl.Datetime("ms"), pl.Datetime("us"), pl.Datetime("us"), [DAY, datetime(9999, 1, 1)],
         [DAY, DAY.replace(microsecond=1), datetime(9999, 1, 1)]),
    pair(pa.timestamp("s"), pl.Datetime("ms"), pl.Datetime("ms"), [DAY], [DAY, DAY.replace(microsecond=1000)]),
    pair(pl.Datetime("ms", "Europe/Paris"), pl.Datetime("us", "Asia/Tokyo"), pl.Datetime("us", "Europe/Paris"),
         [DAY.replace(tzinfo=UTC)], [DAY.replace(tzinfo=UTC).astimezone(TOKYO), DAY.replace(tzinfo=PARIS)]),
    pair(pl.Duration("ms"), pl.Duration("us"), pl.Duration("us"), [timedelta(1), timedelta(0)],
         [timedelta(1), timedelta(microseconds=1)]),
    pair(pa.time32("s"), pa.time64("us"), pa.time64("us"), [time(1, 2, 3)], [time(1, 2, 3), time(1, 2, 3, 4)]),
    pair(pl.Decimal(10, 2), pl.Decimal(12, 4), pl.Decimal(12, 4), [Decimal("1.5"), Decimal("99999999.99")],
         [Decimal("1.5000"), Decimal("0.0001")]),
    pair(pl.Decimal(10, 2), pl.Decimal(10, 4), pl.Decimal(12, 4), [Decimal("1.5")],
         [Decimal("1.5"), Decimal("2.0001")]),
    pair(pa.string(), pa.large_string(), pa.string(), ["a", ""], ["a", "b"]),
    pair(pa.string_view(), pa.string(), pa.string_view(), ["a", ""], ["a", "b"]),
    pair(pl.Categorical, pl.String, pa.large_string(), ["a", ""], ["a", "b"]),
    pair(pa.binary(2), pl.Binary, pa.large_binary(), [b"ab"], [b"ab", b"a"]),
    pair(pa.null(), pl.Int64, pl.Int64, [None], [1, 2]),
    pair(pl.Enum(["low", "high"]), LEVELS, LEVELS, ["low", "high"], ["low", "mid", "high"]),
    pair(pl.List(pl.Int32), pl.List(pl.Int64), pl.List(pl.Int64), [[1], [], [None]], [[1], [2**40], [None]]),
    pair(pl.List(pl.Enum(["low"])), pl.List(LEVELS), pl.List(LEVELS), [["low"], [None]], [["low"], ["mid"]]),
    pair(pl.Struct({"a": pl.Int8, "b": pl.Float32}), pl.Struct({"a": pl.Int64, "b": pl.Float64}),
         pl.Struct({"a": pl.Int64, "b": pl.Float64}), [{"a": 1, "b": 0.5}], [{"a": 1, "b": 0.5}, {"a": 1, "b": 0.1}]),
]  # fmt: skip


def kind_of(declared: Any) -> pa.DataType:
    """A declared type as collections have it."""
    return rr.Dataflow("t").input("x", {"x": declared}).schema.field("x").type


def plain(value: Any) -> Any:
    """A value that hashes, and is equal to equal values of other types."""
    if isinstance(value, dict):
        return tuple((name, plain(inner)) for name, inner in value.items())
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def program(pair: Pair) -> rr.Dataflow:
    flow = rr.Dataflow("widening")
    left = flow.input("left", {"k": pair.left, "v": pl.Int64})
    right = flow.input("right", {"k": pair.right, "w": pl.Int64})
    both = left.select("k").concat(right.select("k"))
    flow.output("both", both)
    flow.output("counted", both.group_by("k").count())
    for how in ("inner", "left", "right", "full", "semi", "anti"):
        flow.output(f"{how} join", left.join(right, on="k", how=how))
    for name, start, more in (("narrow loop", left, right), ("wide loop", right, left)):
        grown = start.select("k").iterate(
            lambda x, more=more: x.concat(more._into(x.scope).select("k")).distinct()
        )
        flow.output(name, grown)
    # The body gives the other's type as it is: the start has to become it, or it the start's.
    flow.output("other loop", left.select("k").iterate(lambda x: right.select("k").distinct()))
    return flow


def expected(left: list[Any], right: list[Any]) -> dict[str, list[Any]]:
    pairs = [(k, v, w) for k, v in left for j, w in right if k is not None and k == j]
    met, its = {plain(k) for k, _, _ in pairs}, list(right)
    alone = [row for row in left if plain(row[0]) not in met]
    others = [row for row in its if plain(row[0]) not in met]
    both = [(k,) for k, _ in left + right]
    counts = Counter(plain(k) for (k,) in both)
    everything = [(k,) for k in counts]
    padded = [(k, v, None) for k, v in alone]
    return {
        "both": both,
        "counted": [(k, n) for k, n in counts.items()],
        "inner join": pairs,
        "left join": pairs + padded,
        "right join": [(v, k, w) for k, v, w in pairs] + [(None, k, w) for k, w in others],
        "full join": pairs + padded + [(k, None, w) for k, w in others],
        "semi join": [row for row in left if plain(row[0]) in met],
        "anti join": alone,
        "narrow loop": everything,
        "wide loop": everything,
        "other loop": [(k,) for k in {plain(k) for k, _ in right}],
    }


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_columns_that_meet_are_widened(pair: Pair) -> None:
    play(pair, "3")


@pytest.mark.soak
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_columns_that_meet_in_many_draws(pair: Pair) -> None:
    seed = first_seed(4)
    for turn in range(draws(1, sample=2, soak=16)):
        play(pair, f"{seed} {turn}")


def play(pair: Pair, seed: str) -> None:
    """Random epochs, each compared with what the rows that are there give."""
    source = random.Random(f"{seed} {pair}")
    workers = source.randint(1, 3)
    sides: dict[str, list[Any]] = {"left": [], "right": []}
    pools = {"left": [*pair.lefts, None], "right": [*pair.rights, None]}
    with program(pair).run(workers=workers) as run:
        for epoch in range(3):
            for name, rows in sides.items():
                fresh = [
                    (source.choice(pools[name]), source.randint(0, 2))
                    for _ in range(source.randint(1, 6))
                ]
                rows += fresh
                run.insert(name, fresh)
                gone = source.sample(rows, source.randint(0, len(rows) // 2))
                for row in gone:
                    rows.remove(row)
                run.delete(name, gone)
            run.commit()
            for name, wanted in expected(sides["left"], sides["right"]).items():
                said = f"SEED={seed}, {pair}, {workers} workers, epoch {epoch}, {name}"
                counts = Counter(map(plain, run.read(name).rows()))
                assert counts == Counter(map(plain, wanted)), said


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_the_common_type_holds_both_whichever_comes_first(pair: Pair) -> None:
    left, right, common = map(kind_of, (pair.left, pair.right, pair.common))
    straight, turned = common_type(left, right), common_type(right, left)
    assert straight is not None
    assert turned is not None
    assert share_layout(straight, common), straight
    for kind in (straight, turned):
        assert fits(left, kind)
        assert fits(right, kind)
    flow = rr.Dataflow("t")
    a, b = flow.input("a", {"k": pair.left}), flow.input("b", {"k": pair.right})
    for one in (a.concat(b), a.join(b, on="k"), a.join(b, on="k", how="full")):
        assert share_layout(one.schema.field("k").type, common)
    for how in ("semi", "anti"):
        assert a.join(b, on="k", how=how).schema.field("k").type == left
    assert a.select("k").join(b.rename({"k": "j"}), left_on="k", right_on="j").columns == ["k"]


REFUSED = [
    (pl.UInt64, pl.Int64),
    (pl.Int8, pl.UInt64),
    (pl.Int64, pl.Float64),
    (pl.Int64, pl.Decimal(12, 2)),
    (pl.Float64, pl.Decimal(12, 2)),
    (pl.Boolean, pl.Int64),
    (pl.Date, pl.Datetime("us")),
    (pl.Datetime("us"), pl.Datetime("us", "UTC")),
    (pl.Datetime("ns"), pl.Datetime("us")),
    (pl.Duration("us"), pl.Duration("ns")),
    (pl.Decimal(38, 0), pl.Decimal(38, 10)),
    (LEVELS, pl.String),
    (pl.Categorical, LEVELS),
    (pl.Int64, pl.String),
]


@pytest.mark.parametrize(("left", "right"), REFUSED, ids=str)
def test_what_has_no_common_type_is_refused_with_the_cast_to_write(left: Any, right: Any) -> None:
    flow = rr.Dataflow("t")
    sides = {"a": flow.input("a", {"k": left}), "b": flow.input("b", {"k": right})}
    texts = {name: str(one.schema.field("k").type) for name, one in sides.items()}
    for combine in (
        lambda a, b: a.concat(b),
        lambda a, b: a.join(b, on="k"),
    ):
        with pytest.raises(rr.PlanError) as caught:
            combine(**sides)
        assert caught.value.code == "plan.types_differ"
        assert all(text in caught.value.message for text in texts.values())
        written = re.search(
            r"(with_columns\(.*\)) of the one that is (.*)$", caught.value.hint or ""
        )
        assert written is not None
        call, rest = written.groups()
        cast = next(name for name, text in texts.items() if rest.startswith(text))
        mended = {**sides, cast: eval(f"one.{call}", {"pl": pl, "one": sides[cast]})}
        combine(**mended)  # what the hint says is enough


def test_two_enums_of_other_orders_are_refused() -> None:
    flow = rr.Dataflow("t")
    a = flow.input("a", {"k": pl.Enum(["low", "high"])})
    b = flow.input("b", {"k": pl.Enum(["high", "low"])})
    with pytest.raises(rr.PlanError, match=r"enum<'low', 'high'>.*enum<'high', 'low'>") as caught:
        a.join(b, on="k")
    assert "cast(pl.String)" in (caught.value.hint or "")
    text = pl.col("k").cast(pl.String)
    a.with_columns(k=text).join(b.with_columns(k=text), on="k")


NARROWER = [each for each in PAIRS if fits(kind_of(each.left), kind_of(each.right))]


@pytest.mark.parametrize("pair", NARROWER, ids=str)
def test_frames_of_narrower_types_are_taken(pair: Pair) -> None:
    """Inserted, upserted, and deleted by key."""
    flow = rr.Dataflow("t")
    flow.output("bag", flow.input("bag", {"k": pair.right, "v": pl.Int64}))
    flow.output("keyed", flow.input("keyed", {"k": pair.right, "v": pl.Int64}, key="k"))
    rows = [(value, 1) for value in pair.lefts if value is not None]
    narrow = _table(pair.left, rows)
    with flow.run(workers=2) as run:
        for name in ("bag", "keyed"):
            run.insert(name, [(value, 0) for value in pair.rights])
        run.insert("bag", narrow)
        run.upsert("keyed", narrow)
        run.commit()
        there = {plain(value): 0 for value in pair.rights}
        both = Counter(plain([*there.items(), *rows]))
        assert Counter(map(plain, run.read("bag").rows())) == both
        there |= {plain(value): 1 for value, _ in rows}
        assert Counter(map(plain, run.read("keyed").rows())) == Counter(there.items())
        run.delete("bag", narrow)
        run.delete("keyed", narrow.select(["k"]))
        run.commit()
        assert len(run.read("bag")) == len(pair.rights)
        for value, _ in rows:
            there.pop(plain(value))
        assert Counter(map(plain, run.read("keyed").rows())) == Counter(there.items())


def _table(kind: Any, rows: list[Any]) -> pa.Table:
    """Rows as a frame of exactly this type."""
    flow = rr.Dataflow("t")
    flow.output("x", flow.input("x", {"k": kind, "v": pl.Int64}))
    with flow.run() as run:
        run.insert("x", rows)
        run.commit()
        return run.read("x").to_arrow()


def test_times_beyond_the_range_of_a_finer_unit_are_refused_by_name() -> None:
    flow = rr.Dataflow("t")
    a = flow.input("a", {"k": pa.timestamp("ms")})
    flow.output("both", a.concat(flow.input("b", {"k": pa.timestamp("us")})))
    flow.output("fine", flow.input("fine", {"k": pa.timestamp("ns")}))
    far = pa.table({"k": pa.array([2**62], pa.timestamp("ms"))})
    with flow.run() as run:
        run.insert("a", far)
        with pytest.raises(rr.OperatorFailed, match="'k'") as failed:
            run.commit()
        assert failed.value.code == "operator.range"
        with pytest.raises(rr.SchemaError, match="'k'"):
            run.insert(
                "fine", pa.table({"k": pa.array([datetime(9999, 1, 1)], pa.timestamp("us"))})
            )
        run.insert("fine", pa.table({"k": pa.array([DAY], pa.timestamp("ms"))}))
        run.insert("a", [(DAY,)])
        run.commit()
        assert run.read("both").rows() == [(DAY,)]
        assert len(run.read("fine")) == 1


@pytest.mark.parametrize("workers", [1, 3])
def test_shared_state_takes_narrower_keys_times_and_values(workers: int) -> None:
    flow = rr.Dataflow("t")
    prices = flow.state(
        "prices",
        key={"item": pl.Int64},
        value={"price": pl.Float64},
        time={"at": pl.Datetime("us")},
    )
    updates = flow.input("given", {"item": pl.Int32, "at": pl.Datetime("ms"), "price": pl.Float32})
    updates.update(prices)
    orders = flow.input("orders", {"item": pl.Int16, "when": pl.Datetime("ms")})
    flow.output("priced", orders.fetch(prices, key="item", at="when"))
    baskets = flow.input("baskets", {"items": pl.List(pl.Int16), "when": pl.Datetime("ms")})
    flow.output("sums", baskets.fetch(prices, key="items", at="when"))
    ticks = flow.input("ticks", {"at": pl.Datetime("ms")})
    ticks.progress(prices, "update", at="at")
    with flow.run(workers=workers) as run:
        run.insert("given", [(n, DAY + timedelta(hours=n), n / 2) for n in range(20)])
        run.insert("orders", [(n, DAY + timedelta(days=1)) for n in range(0, 20, 3)])
        run.insert("baskets", [([1, 2, 19], DAY + timedelta(days=1))])
        run.insert("ticks", [(DAY + timedelta(days=2),)])
        run.insert("given", [(99, DAY + timedelta(days=2), 1.0)])
        run.commit()
        wanted = [(n, DAY + timedelta(days=1), n / 2) for n in range(0, 20, 3)]
        assert run.read("priced").rows() == wanted
        assert run.read("sums").rows() == [([1, 2, 19], DAY + timedelta(days=1), [0.5, 1.0, 9.5])]
        assert run.read("priced").to_polars().schema["item"] == pl.Int16


def test_what_does_not_fit_a_state_is_refused() -> None:
    flow = rr.Dataflow("t")
    state = flow.state("s", key={"item": pl.Int32}, value={"price": pl.Float64})
    wide = flow.input("wide", {"item": pl.Int64, "time": pl.Int64, "price": pl.Float64})
    with pytest.raises(
        rr.PlanError, match="'item' is int32 in the state, and int64 here"
    ) as caught:
        wide.update(state)
    assert "int64, which holds both" in (caught.value.hint or "")


def test_a_loop_whose_types_grow_for_ever_is_refused() -> None:
    flow = rr.Dataflow("t")
    start = flow.input("start", {"k": pl.Decimal(4, 1)})
    calls: list[int] = []

    def body(x: rr.Collection) -> rr.Collection:
        calls.append(len(calls))
        return x.select(k=pl.col("k").cast(pl.Decimal(8 + len(calls), 2 + len(calls))))

    with pytest.raises(rr.PlanError) as caught:
        start.iterate(body)
    assert caught.value.code == "plan.columns_differ"
    assert len(calls) == 4


def test_dates_stay_dates() -> None:
    assert common_type(pa.date32(), pa.timestamp("us")) is None
    flow = rr.Dataflow("t")
    flow.input("x", {"d": pl.Datetime("us")})
    flow.output("z", flow.input("y", {"d": pl.Datetime("us")}))
    with flow.run() as run, pytest.raises(rr.SchemaError):
        run.insert("y", pl.DataFrame({"d": [date(2024, 1, 1)]}))


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_that_go_back_may_be_narrower_than_the_loop_declared(workers: int) -> None:
    flow = rr.Dataflow("t")
    start = flow.input("start", {"n": pl.Int64})
    loop = flow.loop(start)
    back = loop.feedback({"n": pl.Int64})
    fewer = loop.enter(start).concat(back).filter(pl.col("n") > 0)
    fewer = fewer.select(n=(pl.col("n") - 1).cast(pl.Int32))
    back.connect(fewer)
    flow.output("seen", loop.leave(fewer))
    with flow.run(workers=workers) as run:
        run.insert("start", [(4,), (2,)])
        run.commit()
        run.delete("start", [(2,)])
        run.commit()
        assert run.read("seen").rows() == [(0,), (1,), (2,), (3,)]
    narrow = flow.loop(start).feedback({"n": pl.Int32})
    with pytest.raises(rr.PlanError):
        narrow.connect(narrow.select(n=pl.col("n").cast(pl.Int64)))


def test_a_collection_is_fetched_from_by_narrower_keys() -> None:
    flow = rr.Dataflow("t")
    nodes = flow.input("nodes", {"node": pl.Int64, "name": pl.String})
    asked = flow.input("asked", {"node": pl.UInt16})
    flow.output("answers", asked.lookup(nodes, "node"))
    with flow.run(workers=3) as run:
        run.insert("nodes", [(n, str(n)) for n in range(50)])
        run.commit()
        run.insert("asked", [(n,) for n in range(0, 60, 7)])
        run.commit()
        wanted = [(n, str(n) if n < 50 else None) for n in range(0, 60, 7)]
        assert run.read("answers").rows() == wanted


@pytest.mark.parametrize("narrow", ["start", "body"])
def test_a_loop_by_priority_is_widened_too(narrow: str) -> None:
    kinds = [pl.Int16, pl.Int64] if narrow == "start" else [pl.Int64, pl.Int16]
    flow = rr.Dataflow("t")
    start = flow.input("start", {"n": kinds[0]})

    def body(x: rr.Collection, entered: rr.Collection) -> rr.Collection:
        halves = x.filter(pl.col("n") > 0).select(n=(pl.col("n") // 2).cast(kinds[1]))
        return entered.concat(halves).distinct()

    flow.output("halves", start.iterate(body, at=pl.col("n") % 3))
    with flow.run(workers=2) as run:
        run.insert("start", [(40,), (7,), (12,)])
        run.commit()
        run.delete("start", [(12,)])
        run.commit()
        assert [n for (n,) in run.read("halves").rows()] == [0, 1, 2, 3, 5, 7, 10, 20, 40]
        assert run.read("halves").to_polars().schema == {"n": pl.Int64}
