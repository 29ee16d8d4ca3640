"""Types by operations: order and equality are the declared type's, whatever it is stored as.

Each case is a type, values that people give for it, and a rank: a Python key that says which values are equal and
which is greater. Every operation that compares values (keys, joins, distinct, top, min, max, first, last, the order of
rows) is recomputed from the bag of rows by rank, after every epoch of random insertions and deletions, with 1 to 3
workers. What is deleted is spelled another way where one value has several spellings: 0.0 for -0.0, an instant in
another zone.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cached_property
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr
from tests.soaking import draws, first_seed

NAN = float("nan")
OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
INF = float("inf")
LEVELS = ["low", "mid", "high", "a"]
LEVEL = pl.Enum(LEVELS)
MANY = [f"c{n * 7 % 307}" for n in range(307)]
EAST = timezone(timedelta(hours=5, minutes=30))

Rank = Callable[[Any], Any]
GREATEST = (1,)


def by_value(value: Any) -> Any:
    return (0, value)


def by_number(value: float) -> Any:
    """NaN is one value, and greater than all others; zero has no sign."""
    return GREATEST if value != value else (0, value + 0.0)


def by_place(categories: list[str]) -> Rank:
    return lambda value: (0, categories.index(value))


def nulls_last(rank: Rank) -> Rank:
    return lambda value: (1, ()) if value is None else (0, rank(value))


def each(rank: Rank) -> Rank:
    inner = nulls_last(rank)
    return lambda value: [inner(one) for one in value]


def fields(**ranks: Rank) -> Rank:
    inner = {name: nulls_last(rank) for name, rank in ranks.items()}
    return lambda value: [rank(value[name]) for name, rank in inner.items()]


@dataclass(frozen=True)
class Case:
    name: str
    kind: Any
    values: list[Any]
    rank: Rank = by_value

    def __str__(self) -> str:
        return self.name

    @cached_property
    def key(self) -> Rank:
        """A key of which equality is that of values, and order theirs, nulls last."""
        return nulls_last(self.rank)

    def spelled(self, value: Any, source: random.Random) -> Any:
        """The same value, spelled one of the ways there are."""
        return source.choice([each for each in self.values if self.key(each) == self.key(value)])


FLOATS = [0.0, -0.0, 1.5, -2.25, NAN, OTHER_NAN, INF, -INF, None]
MOMENT = datetime(2024, 3, 1, 12, 0, 0, 5)
CASES = [
    Case("enum", LEVEL, [*LEVELS, None], by_place(LEVELS)),
    Case("enum of 307", pl.Enum(MANY), ["c0", "c7", "c300", "c1", None], by_place(MANY)),
    Case("categorical", pl.Categorical, [*LEVELS, "", None]),
    Case("string", pa.string(), ["b", "a", "", "ab", "é", "z" * 20, None]),
    Case("string view", pa.string_view(), ["b", "a", "", "ab", None]),
    Case("binary", pl.Binary, [b"", b"\x00", b"\xff", b"a\x00", None]),
    Case("fixed binary", pa.binary(2), [b"ab", b"\x00\x01", b"\xff\x00", None]),
    Case("boolean", pl.Boolean, [True, False, None]),
    Case("int8", pl.Int8, [-128, 127, 0, None]),
    Case("int64", pl.Int64, [-(2**63), 2**63 - 1, 0, -1, None]),
    Case("uint8", pl.UInt8, [0, 200, 255, None]),
    Case("uint64", pl.UInt64, [0, 2**63, 2**64 - 1, 5, None]),
    Case("float32", pl.Float32, FLOATS, by_number),
    Case("float64", pl.Float64, FLOATS, by_number),
    Case("decimal", pl.Decimal(10, 2), [Decimal("1.10"), Decimal("1.1"), Decimal("-2"), 3, None]),
    Case("decimal256", pa.decimal256(50, 1), [Decimal(10**40), Decimal("-1.5"), Decimal(0), None]),
    Case("date", pl.Date, [date(1, 1, 1), date(2024, 2, 29), date(1969, 12, 31), None]),
    Case("time", pl.Time, [time(0), time(23, 59, 59, 999999), time(12), None]),
    Case("datetime", pl.Datetime("us"), [MOMENT, datetime(1, 1, 1), datetime(9999, 1, 1), None]),
    Case(
        "datetime in a zone",
        pl.Datetime("us", "Europe/Paris"),
        [
            MOMENT.replace(tzinfo=UTC),
            MOMENT.replace(tzinfo=UTC).astimezone(EAST),
            MOMENT.replace(tzinfo=ZoneInfo("Asia/Tokyo")),
            datetime(1960, 1, 1, tzinfo=UTC),
            None,
        ],
    ),
    Case("duration", pl.Duration("ms"), [timedelta(0), timedelta(days=-1), timedelta(1), None]),
    Case("null", pa.null(), [None]),
    Case(
        "list", pl.List(pl.Int64), [[], [1], [1, 2], [None], [1, None], [2], None], each(by_value)
    ),
    Case(
        "list of floats",
        pl.List(pl.Float64),
        [[0.0], [-0.0], [NAN], [OTHER_NAN], [None], [-0.0, NAN], [0.0, NAN], [INF], None],
        each(by_number),
    ),
    Case(
        "list of enums",
        pl.List(LEVEL),
        [[], ["high"], ["low", "high"], [None], ["a"], ["mid", None], None],
        each(by_place(LEVELS)),
    ),
    Case(
        "struct",
        pl.Struct({"x": pl.Float64, "e": LEVEL}),
        [
            {"x": 0.0, "e": "low"},
            {"x": -0.0, "e": "low"},
            {"x": 0.0, "e": "a"},
            {"x": NAN, "e": None},
            {"x": OTHER_NAN, "e": None},
            {"x": None, "e": "mid"},
            {"x": None, "e": None},
            None,
        ],
        fields(x=by_number, e=by_place(LEVELS)),
    ),
    Case(
        "list of structs",
        pl.List(pl.Struct({"e": LEVEL, "x": pl.Float32})),
        [
            [{"e": "high", "x": -0.0}],
            [{"e": "high", "x": 0.0}, None],
            [{"e": "high", "x": 0.0}],
            [{"e": "a", "x": NAN}],
            [],
            [None],
            None,
        ],
        each(fields(e=by_place(LEVELS), x=by_number)),
    ),
    Case(
        "struct of lists",
        pl.Struct({"l": pl.List(LEVEL), "d": pl.Date}),
        [
            {"l": ["a", "low"], "d": date(2024, 1, 1)},
            {"l": ["a"], "d": None},
            {"l": None, "d": date(2024, 1, 1)},
            {"l": [], "d": date(2023, 1, 1)},
            None,
        ],
        fields(l=each(by_place(LEVELS)), d=by_value),
    ),
]
COLUMNS = ["g", "x", "v"]


def program(case: Case) -> rr.Dataflow:
    flow = rr.Dataflow("types")
    rows = flow.input("rows", {"g": pl.Int64, "x": case.kind, "v": pl.Int64})
    others = flow.input("others", {"x": case.kind, "w": pl.Int64})
    groups = rows.group_by("g")
    flow.output("rows", rows)
    flow.output("keys", rows.group_by("x").agg(n=rr.count(), s=rr.sum("v")))
    flow.output("distinct", rows.select("x").distinct())
    flow.output(
        "aggregates",
        groups.agg(
            least=rr.min("x"),
            most=rr.max("x"),
            first=rr.first("v", by="x"),
            last=rr.last("v", by="x"),
            different=rr.count_distinct("x"),
        ),
    )
    flow.output("top", groups.top(2, by="x"))
    flow.output("bottom", groups.top(2, by="x", descending=False))
    flow.output("joined", rows.join(others, on="x"))
    flow.output("alone", rows.join(others, on="x", how="anti"))
    return flow


def expected(case: Case, rows: list[Any], others: list[Any]) -> dict[str, list[Any]]:
    """Each output from scratch; values are given as their keys."""
    key = case.key
    there = [(g, key(x), v) for g, x, v in rows]
    null = key(None)
    partners = [(key(x), w) for x, w in others if x is not None]
    groups: dict[int, list[Any]] = {}
    for row in there:
        groups.setdefault(row[0], []).append(row)

    def down(x: Any) -> Any:
        return (x == null, _Reversed(x))

    outputs: dict[str, list[Any]] = {"rows": there, "aggregates": [], "top": [], "bottom": []}
    counts = Counter(_frozen(x) for _, x, _ in there)
    outputs["keys"] = [
        (x, count, sum(v for _, y, v in there if _frozen(y) == x)) for x, count in counts.items()
    ]
    outputs["distinct"] = [(x,) for x in counts]
    for g, members in groups.items():
        known = sorted(x for _, x, _ in members if x != null)
        last = min(members, key=lambda row: (down(row[1]), row[2]))
        outputs["aggregates"].append(
            (
                g,
                known[0] if known else null,
                known[-1] if known else null,
                min((x, v) for _, x, v in members)[1],
                last[2],
                len({_frozen(x) for x in known}),
            )
        )
        outputs["top"] += sorted(members, key=lambda row: (down(row[1]), row[2]))[:2]
        outputs["bottom"] += sorted(members, key=lambda row: (row[1], row[2]))[:2]
    outputs["joined"] = [(g, x, v, w) for g, x, v in there for y, w in partners if x == y]
    outputs["alone"] = [row for row in there if all(row[1] != y for y, _ in partners)]
    return outputs


class _Reversed:
    def __init__(self, key: Any) -> None:
        self.key = key

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.key < self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and self.key == other.key

    def __hash__(self) -> int:
        return hash(_frozen(self.key))


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _values_at(name: str) -> list[int]:
    return {"keys": [0], "distinct": [0], "aggregates": [1, 2]}.get(name, [1])


def check_outputs(case: Case, run: rr.Run, rows: list[Any], others: list[Any], said: str) -> None:
    for name, wanted in expected(case, rows, others).items():
        result = run.read(name)
        read_rows = [
            tuple(case.key(v) if at in _values_at(name) else v for at, v in enumerate(row))
            for row in result.rows()
        ]
        assert Counter(map(_frozen, read_rows)) == Counter(map(_frozen, wanted)), f"{said}, {name}"
        assert read_rows == sorted(read_rows), f"{said}, {name}: the order of rows()"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_order_and_equality_are_those_of_the_declared_type(case: Case) -> None:
    play(case, "7")


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES, ids=str)
def test_order_and_equality_of_many_draws(case: Case) -> None:
    seed = first_seed(8)
    for turn in range(draws(1, sample=2, soak=16)):
        play(case, f"{seed} {turn}")


def play(case: Case, seed: str) -> None:
    """Random epochs, each compared with what the rows that are there give."""
    source = random.Random(f"{seed} {case}")
    workers = source.randint(1, 3)
    rows: list[Any] = []
    others: list[Any] = []
    with program(case).run(workers=workers) as run:
        for epoch in range(4):
            for name, bag, at in (("rows", rows, 1), ("others", others, 0)):
                fresh = [draw_row(case, name, source) for _ in range(source.randint(0, 8))]
                run.insert(name, fresh)
                bag += fresh
                gone = source.sample(bag, source.randint(0, len(bag) // 2))
                for row in gone:
                    bag.remove(row)
                spelled = [
                    (*row[:at], case.spelled(row[at], source), *row[at + 1 :]) for row in gone
                ]
                run.delete(name, spelled)
            run.commit()
            said = f"SEED={seed}, {case}, {workers} workers, epoch {epoch}"
            check_outputs(case, run, rows, others, said)


def draw_row(case: Case, name: str, source: random.Random) -> tuple[Any, ...]:
    value = source.choice(case.values)
    if name == "others":
        return (value, source.randint(0, 1))
    return (source.randint(0, 2), value, source.randint(0, 3))


EXACT = [case for case in CASES if case.name not in ("decimal256", "null", "fixed binary")]


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_polars_sees_the_declared_type(case: Case) -> None:
    """Expressions, whole groups and results have the type that was declared."""
    flow = rr.Dataflow("types")
    kind = case.kind if not isinstance(case.kind, pa.DataType) else None
    rows = flow.input("rows", {"g": pl.Int64, "x": case.kind})
    flow.output("some", rows.filter(pl.col("x").is_not_null()).with_columns(y=pl.col("x")))
    flow.output("whole", rows.group_by("g").agg(all=pl.col("x")))
    frame = None
    if kind is not None:
        frame = pl.DataFrame(flow_rows(case), {"g": pl.Int64, "x": kind}, orient="row")
    with flow.run(workers=2) as run:
        run.insert("rows", flow_rows(case))
        if frame is not None:
            run.insert("rows", frame)
        run.commit()
        from_run = run.read("some").to_polars()
        if kind is not None and kind != pl.Categorical:
            assert from_run.schema == {"g": pl.Int64, "x": kind, "y": kind}
            assert run.read("whole").to_polars().schema == {"g": pl.Int64, "all": pl.List(kind)}
        times = 1 if frame is None else 2
        keys = [_frozen(case.key(x)) for x in case.values if x is not None] * times
        assert Counter(_frozen(case.key(x)) for x in from_run["y"].to_list()) == Counter(keys)


def flow_rows(case: Case) -> list[tuple[int, Any]]:
    return [(0, value) for value in case.values]


class Latest(rr.Vertex):
    """Keeps the last number of each key in a table, and tells how many keys the table has."""

    deterministic = True

    def start(self) -> None:
        self.waiting: dict[Any, list[pl.DataFrame]] = {}

    def on_recv(self, port: str, rows: pl.DataFrame, time: Any) -> None:
        if time not in self.waiting:
            self.waiting[time] = []
            self.notify_at(time)
        self.waiting[time].append(rows)

    def on_notify(self, time: Any) -> None:
        for rows in self.waiting.pop(time):
            for row in rows.select("x", "n").to_dicts():
                before = self.table("last").read([{"x": row["x"]}])
                assert before.height <= 1
                self.table("last").write([row])
        self.send([{"keys": self.table("last").scan().height, "epoch": time[0]}])


@pytest.mark.parametrize("case", EXACT, ids=str)
@pytest.mark.parametrize("central", [False, True])
def test_tables_of_a_vertex_tell_keys_apart_as_states_do(case: Case, central: bool) -> None:
    flow = rr.Dataflow("types")
    rows = flow.input("rows", {"x": case.kind, "n": pl.Int64})
    counted = flow.vertex(
        Latest,
        inputs={"rows": rows},
        outputs={"keys": pl.Int64, "epoch": pl.Int64},
        routes={"rows": rr.TO_ONE if central else "x"},
        tables={"last": ({"x": case.kind}, {"n": pl.Int64})},
    )
    flow.output("made", counted)
    different = len({_frozen(case.key(x)) for x in case.values})
    with flow.run() as run:
        for epoch in range(2):
            run.insert("rows", [(x, epoch) for x in case.values])
            run.commit()
            assert run.changes("made").rows() == [(different, epoch, 1)]
