"""Operators of a collection, one by one and composed at random, against the program run from scratch."""

from __future__ import annotations

import datetime
import random
from collections import Counter
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr
from tests.frontends.collections.checking import build, check, feed
from tests.frontends.collections.reference import counted
from tests.soaking import seeds

ROWS = {"rows": {"a": pl.Int64, "b": pl.String, "x": pl.Int64}}
a, b, x = pl.col("a"), pl.col("b"), pl.col("x")


def repeated(row):
    return [(row["a"], number) for number in range(row["x"] or 0)]


def named_rows(row):
    yield {"b": row["b"], "n": 1}
    if row["a"] is None:
        yield {"n": 2, "b": None}


PROGRAMS = {
    "select": lambda rows: rows.select("b", sum=a + x, a="x"),
    "select_expressions": lambda rows: rows.select(a * 2, b.str.len_bytes(), one=pl.lit(1)),
    "select_same": lambda rows: rows.select("a", "b", "x"),
    "with_columns": lambda rows: rows.with_columns(a=a * 2, missing=x.is_null()),
    "rename_and_drop": lambda rows: rows.rename({"a": "q", "x": "a"}).drop("b"),
    "filter": lambda rows: rows.filter((a > 1) | b.is_null()),
    "filter_all": lambda rows: rows.filter(pl.lit(False)),
    "flat_map_tuples": lambda rows: rows.flat_map(repeated, {"a": pl.Int64, "n": pl.Int64}),
    "flat_map_dicts": lambda rows: rows.flat_map(named_rows, {"b": pl.String, "n": pl.Int64}),
    "explode": lambda rows: rows.select("b", list=pl.concat_list("a", "x")).explode("list"),
    "explode_empty": lambda rows: rows.flat_map(
        lambda row: [(row["b"], [row["x"]] * (row["a"] or 0) if row["a"] != 2 else None)],
        {"b": pl.String, "list": pl.List(pl.Int64)},
    ).explode("list"),
    "map_batches": lambda rows: rows.map_batches(
        lambda frame: frame.select(a + 1, y=b.fill_null("?")), {"a": pl.Int64, "y": pl.String}
    ),
    "concat": lambda rows: rows.concat(rows.select("x", "b", "a"), rows.filter(a == 1)),
    "negate": lambda rows: rows.concat(rows.filter(a == 1).negate()),
    "negate_twice": lambda rows: rows.negate().negate(),
    "consolidate": lambda rows: rows.concat(rows.filter(a == 1).negate()).consolidate(),
    "distinct": lambda rows: rows.distinct(),
    "distinct_of_some": lambda rows: rows.select("a").distinct().concat(rows.select("a")).distinct(),
    "count": lambda rows: {"all": rows.count(), "named": rows.select("a").count("how_many")},
    "count_distinct": lambda rows: {"all": rows.count_distinct(), "some": rows.count_distinct("a", "b")},
    "two_outputs_of_one": lambda rows: {"these": rows.distinct(), "those": rows.distinct().count()},
    "unchanged": lambda rows: rows,
}  # fmt: skip


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(5, soak=20))
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_operator(name, seed):
    check(PROGRAMS[name], ROWS, seed=seed)


def test_rescaled_between_epochs():
    def several(rows):
        return {"kinds": rows.select("a", "b").distinct(), "all": rows, "count": rows.count()}

    for seed in range(4):
        check(several, ROWS, seed=seed, scale=True)


@pytest.mark.parametrize("workers", [1, 3])
def test_inspect_sees_every_change_once(workers):
    seen = Counter()

    def look(batch):
        for row in batch.to_pylist():
            seen[(row["a"], tuple(row["time"]))] += row["diff"]

    flow = build(lambda rows: rows.inspect(look).distinct(), {"rows": {"a": pl.Int64}})
    with flow.run(workers=workers) as run:
        run.insert("rows", [(1,), (1,), (2,)])
        run.commit()
        run.delete("rows", [(1,)])
        run.commit()
        assert run.read("result").rows() == [(1,), (2,)]
    assert seen == {(1, (0,)): 2, (2, (0,)): 1, (1, (1,)): -1}


def test_consolidate_lets_nothing_pass_that_cancels():
    seen = []
    flow = build(
        lambda rows: rows.concat(rows.negate()).consolidate().inspect(seen.append).distinct(),
        {"rows": {"a": pl.Int64}},
    )
    with flow.run(workers=2, seed=1) as run:
        run.insert("rows", [(1,), (2,)])
        run.commit()
        assert run.read("result").rows() == []
    assert seen == []


def test_names_that_we_use_ourselves():
    """Columns may have any name, also those that the engine uses for itself."""
    names = [
        "diff",
        "time",
        "slot",
        "count",
        "__due__",
        "mark",
        "shard",
        "epoch",
        "__group__",
        "round",
    ]
    schema = dict.fromkeys(names, pl.Int64)
    row = tuple(range(len(names)))

    def program(rows):
        grouped = rows.group_by(*names[:3])
        return {
            "all": rows,
            "kinds": rows.distinct(),
            "grouped": grouped.agg(
                n=rr.sum("count"), m=rr.min("shard"), p=pl.col("__group__").sum()
            ),
            "applied": rows.group_by("slot").apply(lambda group: group.height, {"n": pl.Int64}),
            "joined": rows.join(rows, on=names[:4]).select(*names),
            "young": rows.expire("epoch", after=5),
            "looped": rows.iterate(lambda inner: inner.concat(rows).distinct()),
            "early": rows.iterate(lambda inner, seeds: inner.concat(seeds).distinct(), at="round"),
        }

    flow = build(program, {"rows": schema})
    with flow.run(workers=2) as run:
        run.insert("rows", [row, row])
        run.commit()
        for name in ("all", "young"):
            assert run.read(name).rows() == [row, row], name
        for name in ("kinds", "looped", "early"):
            assert run.read(name).rows() == [row], name
        assert run.read("grouped").rows() == [(0, 1, 2, 6, 6, 16)]
        assert run.read("applied").rows() == [(2, 2)]
        assert run.read("joined").rows() == [row] * 4
        assert run.changes("all").rows() == [(*row, 2)]
        run.delete("rows", [row, row])
        run.commit()
        assert all(run.read(name).rows() == [] for name in flow.outputs)


def test_aggregates_beside_keys_with_their_inner_names():
    def program(rows):
        return rows.group_by("v__", "v_by__").agg(
            v=rr.sum("w"), w=rr.min("w"), u=rr.first("w", by="t"), d=rr.count_distinct("t")
        )

    check(program, {"rows": dict.fromkeys(["v__", "v_by__", "w", "t"], pl.Int64)}, seed=1)


ALL_TYPES = {
    "int8": (pa.int8(), [1, -128]),
    "uint64": (pa.uint64(), [2**64 - 1, 0]),
    "float32": (pa.float32(), [0.5, float("inf")]),
    "float64": (pa.float64(), [float("nan"), -0.0]),
    "bool": (pa.bool_(), [True, False]),
    "string": (pa.string(), ["", "é" * 40]),
    "large_string": (pa.large_string(), ["x", "y"]),
    "binary": (pa.binary(), [b"\x00", b""]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["p", "q"]),
    "date32": (pa.date32(), [datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)]),
    "timestamp": (pa.timestamp("us"), [datetime.datetime(1969, 1, 1), datetime.datetime(2024, 1, 1)]),
    "zoned": (pa.timestamp("us", "UTC"), [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)]),
    "time": (pa.time64("us"), [datetime.time(1, 2, 3), datetime.time(23)]),
    "duration": (pa.duration("us"), [datetime.timedelta(days=-1), datetime.timedelta(0)]),
    "decimal": (pa.decimal128(12, 2), [Decimal("1.50"), Decimal("-2.25")]),
    "list": (pa.list_(pa.int64()), [[1, None], []]),
    "struct": (pa.struct({"p": pa.int64(), "q": pa.string()}), [{"p": 1, "q": None}]),
}  # fmt: skip


@pytest.mark.parametrize("name", ALL_TYPES)
def test_every_type_passes_through(name):
    kind, values = ALL_TYPES[name]
    schema = pa.schema({"k": pa.int64(), "v": kind})

    def program(rows):
        ordered = name not in ("list", "struct")
        outputs = {
            "all": rows.filter(pl.col("k") >= 0),
            "kinds": rows.select("v").distinct(),
            "counts": rows.group_by("v").count("n"),
            "joined": rows.join(rows.select("v", j="k").distinct(), on="v"),
            "left": rows.join(rows.filter(pl.col("k") > 0).select("v", "k"), on="k", how="left"),
            "looped": rows.select("v").iterate(lambda inner: inner.distinct()),
        }
        if ordered:
            outputs["least"] = rows.group_by("k").agg(v=rr.min("v"), w=rr.max("v"), n=rr.count())
            outputs["top"] = rows.group_by("k").top(1, by="v")
        return outputs

    flow = build(program, {"rows": schema})
    with flow.run(workers=2, seed=3) as run:
        rows = [(at % 2, value) for at, value in enumerate([*values, None, *values])]
        run.insert("rows", rows)
        run.commit()
        assert run.read("all").schema == schema
        assert counted(run.read("all").rows()) == counted(rows)
        kinds = counted((value,) for _, value in rows)
        assert counted(run.read("kinds").rows()) == Counter(dict.fromkeys(kinds, 1))
        assert counted(run.read("looped").rows()) == Counter(dict.fromkeys(kinds, 1))
        assert counted(run.read("counts").rows()) == counted(
            (value, count) for (value,), count in kinds.items()
        )
        assert len(run.read("joined")) == sum(
            count * len({k for k, v in rows if counted([[v]]) == counted([value])})
            for value, count in kinds.items()
            if value != (None,)
        )
        run.insert("rows", [(5, values[0])])
        run.delete("rows", rows[:2])
        run.commit()
        assert counted(run.read("all").rows()) == counted([*rows[2:], (5, values[0])])
        if "least" in flow.outputs:
            assert {k: n for k, _, _, n in run.read("least").rows()} == Counter(
                k for k, _ in [*rows[2:], (5, 0)]
            )
            assert (5, frozenset(counted([[values[0]]]))) in [
                (k, frozenset(counted([[v]]))) for k, v in run.read("top").rows()
            ]


def test_what_may_be_null_is_known_after_a_concat():
    """A null key matches nothing, also where one of the collections was declared without nulls."""
    whole = pa.schema([pa.field("k", pa.int64(), nullable=False)])
    flow = rr.Dataflow("nulls")
    left, right = flow.input("left", whole), flow.input("right", {"k": pl.Int64})
    flow.output("pairs", left.concat(right).join(left.concat(right), on="k"))
    looped = left.iterate(lambda rows: rows.concat(right).distinct())
    flow.output("looped", looped.join(right, on="k"))
    with flow.run() as run:
        run.insert("left", [(1,)])
        run.insert("right", [(None,), (None,)])
        run.commit()
        assert run.read("pairs").rows() == [(1,)]
        assert run.read("looped").rows() == []


def test_rows_only_deleted_are_said_when_read_and_may_come_later():
    flow = build(
        lambda rows: {"all": rows, "count": rows.distinct().count()}, {"rows": {"a": pl.Int64}}
    )
    with flow.run(workers=2) as run:
        run.delete("rows", [(1,)])
        run.commit()
        with pytest.raises(rr.OperatorFailed) as raised:
            run.read("all").rows()
        assert raised.value.code == "operator.negative"
        assert raised.value.fields == {"row": {"a": 1}, "count": -1}
        assert run.read("count").rows() == []
        run.insert("rows", [(1,), (1,)])
        run.commit()
        assert run.read("all").rows() == [(1,)]
        assert run.read("count").rows() == [(1,)]


# -- random programs


def random_program(shape: int):
    """A pipeline of a few operators on rows of two inputs; the same for the same number."""

    def normal(collection, draw):
        """Whatever the columns are: a, b and x again."""
        numbers = [n for n in collection.columns if n not in ("b", "b_right", "lists")]
        words = [n for n in collection.columns if n.startswith("b")]
        pick = {"a": draw.choice(numbers), "x": draw.choice(numbers)}
        return collection.select(a=pick["a"], b=draw.choice(words), x=pick["x"])

    def program(left, right):
        draw = random.Random(shape)
        collections = [left, right, left]
        for _ in range(draw.randint(2, 5)):
            one, two = draw.choice(collections), draw.choice(collections)
            collections.append(normal(step(draw, one, two), draw))
        return {"last": collections[-1], "kinds": collections[-2].distinct()}

    def step(draw, one, two):
        kind = draw.randrange(14)
        if kind == 0:
            return one.filter(draw.choice([a > 0, x.is_null(), b == "a", a != x]))
        if kind == 1:
            return one.select(a=draw.choice([a, x, (a + x) % 4, -a % 3]), b="b", x="a")
        if kind == 2:
            return one.concat(two)
        if kind == 3:
            return one.distinct()
        if kind == 4:
            return one.join(two, on=draw.choice(["a", "b", ["a", "b"]])).distinct()
        if kind == 5:
            how = draw.choice(["semi", "anti", "left", "right", "full"])
            return one.distinct().join(two.distinct(), on=draw.choice(["a", ["a", "b"]]), how=how)
        if kind == 6:
            aggregate = draw.choice([rr.sum(x % 3), rr.min("x"), rr.max("x"), rr.count()])
            return one.group_by("a", "b").agg(x=aggregate)
        if kind == 7:
            return one.group_by(draw.choice(["a", "b"])).top(draw.randint(1, 3), by="x")
        if kind == 8:
            return one.group_by("b").agg(a=rr.first("x", by="a"), x=rr.last("a", by="x"))
        if kind == 9:
            return one.concat(one.filter(a > 1).negate())
        if kind == 10:
            return one.group_by("b").agg(a=x.max(), x=rr.count_distinct("a"))
        if kind == 11:
            return one.group_by("b").apply(
                lambda g: (g.height % 3, 1), {"a": pl.Int64, "x": pl.Int64}
            )
        if kind == 12:
            return one.flat_map(
                lambda row: [(row["x"], row["b"], n) for n in range((row["a"] or 0) % 3)],
                {"a": pl.Int64, "b": pl.String, "x": pl.Int64},
            )
        return one.distinct().iterate(
            lambda rows: (
                rows.join(two, left_on="x", right_on="a", suffix="_2")
                .select("a", b="b_2", x="x_2")
                .concat(rows, one)
                .distinct()
            )
        )

    return program


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(60, soak=240))
def test_random_programs(seed):
    schemas = {"left": ROWS["rows"], "right": ROWS["rows"]}
    check(random_program(seed), schemas, seed=seed, most=6, epochs=4, scale=seed % 5 == 0)


@pytest.mark.parametrize("workers", [1, 4])
def test_empty_epochs_and_empty_inputs(workers):
    def program(rows):
        return {
            "all": rows,
            "count": rows.count(),
            "joined": rows.join(rows, on="a", how="full"),
            "looped": rows.iterate(lambda r: r.distinct()),
        }

    flow = build(program, ROWS)
    with flow.run(workers=workers) as run:
        for _ in range(3):
            run.commit()
            assert all(run.read(name).rows() == [] for name in flow.outputs)
        run.insert("rows", [])
        run.commit()
        assert run.read("all").rows() == []
        feed(run, "rows", [((1, "a", None), 1), ((1, "a", None), -1)])
        run.commit()
        assert all(run.read(name).rows() == [] for name in flow.outputs)
        assert all(run.changes(name).rows() == [] for name in flow.outputs)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("copies", [2, 3])
def test_a_collection_beside_itself_costs_what_it_costs_once(copies: int, workers: int) -> None:
    """Nested ``concat`` of a collection with itself is linear in the depth, and right up to 64 bits."""
    depth = 50 if copies == 2 else 31
    flow = rr.Dataflow("doubled")
    rows = flow.input("rows", {"a": pl.Int64})
    other = flow.input("other", {"a": pl.Int64})
    doubled = rows
    for _ in range(depth):
        doubled = doubled.concat([doubled] * (copies - 1))
    flow.output("n", doubled.group_by("a").count())
    flow.output("mixed", rows.concat(other, rows, other, other).group_by("a").count())
    with flow.run(workers=workers) as run:
        run.insert("rows", [(1,), (1,), (2,)])
        run.insert("other", [(1,)])
        run.commit()
        assert run.read("n").rows() == [(1, 2 * copies**depth), (2, copies**depth)]
        assert run.read("mixed").rows() == [(1, 7), (2, 2)]
        run.delete("rows", [(1,)])
        run.commit()
        assert run.read("n").rows() == [(1, copies**depth), (2, copies**depth)]
        assert run.read("mixed").rows() == [(1, 5), (2, 2)]


def test_a_collection_beside_itself_in_a_loop_and_in_other_types() -> None:
    flow = rr.Dataflow("doubled")
    narrow, wide = flow.input("narrow", {"a": pl.Int8}), flow.input("wide", {"a": pl.Int64})
    flow.output("types", narrow.concat(wide, narrow).group_by("a").count())
    flow.output(
        "loop",
        wide.iterate(lambda x: x.concat(x, wide, wide).filter(pl.col("a") < 5).distinct()),
    )
    with flow.run() as run:
        run.insert("narrow", [(1,)])
        run.insert("wide", [(1,), (7,)])
        run.commit()
        assert run.read("types").rows() == [(1, 3), (7, 1)]
        assert run.read("loop").rows() == [(1,)]


def test_a_row_is_there_as_often_as_fits_64_bits() -> None:
    flow = rr.Dataflow("doubled")
    rows = flow.input("rows", {"a": pl.Int64})
    doubled = rows
    for _ in range(62):
        doubled = doubled.concat(doubled)
    flow.output("most", doubled.group_by("a").count())
    flow.output("beyond", doubled.concat(doubled).filter(pl.col("a") > 5).group_by("a").count())
    with flow.run() as run:
        run.commit()
        run.insert("rows", [(1,)])
        with pytest.raises(rr.OperatorFailed, match="does not fit 64 bits") as refused:
            run.commit()
        assert refused.value.code == "operator.overflow"
        assert "2**63 - 1 times" in refused.value.hint
        assert run.read("most").rows() == []
