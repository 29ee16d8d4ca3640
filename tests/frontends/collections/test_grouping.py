"""Groups: every aggregate, alone and mixed, against the program run from scratch."""

from __future__ import annotations

import datetime
import itertools
import math
import random
from decimal import Decimal

import polars as pl
import polars.selectors as cs
import pytest

import riverrun as rr
from tests.frontends.collections.checking import build, check
from tests.frontends.collections.reference import counted, exact_sum
from tests.soaking import seeds

ROWS = {"rows": {"a": pl.Int64, "b": pl.String, "x": pl.Int64}}
a, b, x = pl.col("a"), pl.col("b"), pl.col("x")

AGGREGATES = {
    "count": {"n": rr.count()},
    "sum": {"s": rr.sum("x")},
    "sum_of_expression": {"s": rr.sum(x * a - 1)},
    "sum_of_bools": {"s": rr.sum(x > 1)},
    "sum_of_key": {"s": rr.sum("a"), "m": rr.mean("a")},
    "mean": {"m": rr.mean("x")},
    "min": {"m": rr.min("x")},
    "max": {"m": rr.max("x")},
    "min_of_strings": {"m": rr.min("b"), "n": rr.max("b")},
    "min_of_key": {"m": rr.min("a"), "n": rr.max("a")},
    "min_of_expression": {"m": rr.min(-x), "n": rr.max(x + a)},
    "first": {"f": rr.first("b", by="x"), "g": rr.first("x", by="b")},
    "last": {"l": rr.last("b", by="x"), "k": rr.last("x", by="x")},
    "first_by_expression": {"f": rr.first(x * 2, by=-x), "g": rr.last(b, by=x % 2)},
    "count_of_column": {
        "n": rr.count("x"), "k": rr.count("a"), "e": rr.count(b.str.len_bytes() % 2), "all": rr.count(),
    },
    "first_by_several": {
        "f": rr.first("b", by=["x", "b"]), "l": rr.last("x", by=["b", -x]), "k": rr.last("b", by=("a", "x")),
    },
    "count_distinct_of_several": {
        "d": rr.count_distinct(["x", "b"]), "e": rr.count_distinct("b", x % 2), "k": rr.count_distinct(["a", "x"]),
    },
    "count_distinct": {"d": rr.count_distinct("x"), "e": rr.count_distinct(x % 2)},
    "polars": {"p": x.median(), "q": b.first(), "r": x.filter(x > 0).sum(), "s": pl.len()},
    "polars_lists": {"l": x.sort()},
    "all_at_once": {
        "n": rr.count(), "s": rr.sum("x"), "m": rr.mean("x"), "lo": rr.min("b"), "hi": rr.max("x"),
        "f": rr.first("b", by="x"), "l": rr.last("b", by="x"), "d": rr.count_distinct("b"),
        "p": x.median(), "q": b.last(), "t": rr.sum(x % 2),
    },
    "quotients": {
        "q": rr.sum("x") / rr.count(), "w": rr.sum("x") // rr.count("x"), "m": rr.sum("x") % 2,
        "z": rr.count() / rr.sum("x"),
    },
    "constants": {
        "c": 100 * rr.mean("x") - 1, "p": 2 ** rr.max("x"), "h": 1 / rr.count(), "r": 3 // rr.min("x"),
        "s": 5 - rr.count(), "t": 7 % rr.count(), "u": 1 + rr.sum("x"),
    },
    "nested": {
        "d": (rr.max("x") - rr.min("x")) / (rr.count("x") - 1) + rr.sum("x") * 2, "n": -rr.count(),
        "abs": abs(rr.min("x") - 2),
    },
    "mean_of_difference": {
        "m": rr.mean(x - a) - rr.mean("x") + rr.mean("a"), "v": rr.mean(x * x) - rr.mean("x") ** 2,
    },
    "conditions": {
        "c": (rr.count() > 1) & (rr.sum("x") <= 4), "e": rr.max("x") == rr.min("x"), "n": ~(rr.count() != 2),
        "o": (rr.count() < 2) | (rr.sum("x") >= 4) ^ True,
    },
    "of_orders": {
        "d": rr.last("x", by=["b", "x"]) - rr.first("x", by="b"), "u": rr.count_distinct("b", "x") / rr.count(),
    },
    "with_polars": {
        "d": rr.max("x") - x.median(), "s": rr.count() + x.drop_nulls().len(), "lit": rr.count() * pl.lit(3),
        "l": x.median() - rr.max("x"), "m": x.sum() / rr.count(), "c": x.min() == rr.min("x"),
        "g": x.sum() > rr.count(),
    },
    "filled": {
        "f": rr.max("x").fill_null(rr.count()), "r": (rr.mean("x") / 3).round(2), "c": rr.sum("x").cast(pl.String),
    },
    "beside": {"s": rr.sum("x"), "n": rr.count(), "q": rr.sum("x") / rr.count(), "p": x.median(), "h": x.median() * 2},
    "polars_first": {"p": x.std().round(9), "n": rr.count(), "lo": rr.min("x")},
    "order_of_results": {"z": rr.max("x"), "y": pl.len(), "w": rr.count(), "v": rr.count_distinct("x")},
}  # fmt: skip

SELECTING = {
    "last": pl.last().max(), "first": pl.first().max(), "nth": pl.nth(1).min(), "of_type": pl.col(pl.Float64).sum(),
    "horizontal": pl.sum_horizontal(cs.integer()).max(), "text": pl.concat_str(pl.all(), ignore_nulls=True).max(),
    "inside": x.filter(cs.float() > 1).sum(), "listed": pl.max_horizontal(pl.col("x", "y")).max(),
    "float": cs.float().max(),
    "pattern": pl.max_horizontal(pl.col("^(x|a)$")).max(), "all_but": pl.exclude("x", "b", "z").max(),
    "string": cs.string().max(),
    "all": pl.all().max(), "numeric": cs.numeric().max(), "by_name": cs.by_name("b").max(),
    "struct": pl.struct(pl.all()).n_unique(),
}  # fmt: skip
GROUPINGS = {
    "first": ["a"], "middle": ["b"], "last": ["z"], "two": ["b", "a"], "expression": [(a % 2).alias("k")],
    "added": [(a % 2).alias("k"), "b"], "over_a_column": [a % 2], "over_two": [(x > 2).alias("b"), a % 2],
    "over_another": [x.alias("z"), "b"],
}  # fmt: skip


@pytest.mark.parametrize("key", GROUPINGS)
@pytest.mark.parametrize("name", SELECTING)
def test_selectors_are_those_of_polars(name, key):
    """What a selector stands for in a named aggregation is what Polars' own group_by says, or it is refused."""
    schema = {"a": pl.Int64, "b": pl.String, "x": pl.Int64, "y": pl.Float64, "z": pl.String}
    rows = [(n % 3, "uv"[n % 2], n * 7 % 5, n / 2, "pqr"[n * n % 3]) for n in range(12)]
    rows += [(None, None, None, None, None), (0, None, 4, math.nan, "p")]
    by, wanted = GROUPINGS[key], {"lo": x.min(), "q": SELECTING[name]}
    try:
        frame = pl.DataFrame(rows, schema=schema, orient="row")
        expected = frame.group_by(*by).agg(**wanted)
    except pl.exceptions.DuplicateError:
        with pytest.raises(rr.PlanError, match="'q' has more than one occurrence") as refused:
            build(lambda rows: rows.group_by(*by).agg(**wanted), {"rows": schema})
        assert "a selector that stands for several columns" in refused.value.hint
        return
    if "q" not in expected.columns:
        with pytest.raises(
            rr.PlanError, match=r"into 'q': the selector in .* stands for no column"
        ):
            build(lambda rows: rows.group_by(*by).agg(**wanted), {"rows": schema})
        return
    flow = build(lambda rows: rows.group_by(*by).agg(n=rr.count(), **wanted), {"rows": schema})
    with flow.run() as run:
        for row in rows:  # one by one: groups of one row too
            run.insert("rows", [row])
            run.commit()
        result = run.read("result").to_polars().drop("n")
    keys = list(result.columns[: len(by)])
    assert result.sort(keys).equals(expected.sort(keys))


KEYS = {
    "a": lambda rows: rows.group_by("a"),
    "two": lambda rows: rows.group_by("b", "a"),
    "nothing": lambda rows: rows.group_by(),
    "expression": lambda rows: rows.group_by(a % 2, k=b.str.len_bytes()),
}


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(3, soak=12))
@pytest.mark.parametrize("name", AGGREGATES)
def test_each_aggregate(name, seed):
    check(lambda rows: rows.group_by("a").agg(**AGGREGATES[name]), ROWS, seed=seed)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(2, soak=12))
@pytest.mark.parametrize("name", AGGREGATES)
def test_each_aggregate_sees_the_column_and_not_the_key_of_its_name(name, seed):
    check(lambda rows: rows.group_by(a % 2, x="b").agg(**AGGREGATES[name]), ROWS, seed=seed)


def test_a_key_with_the_name_of_a_column_is_the_key_of_polars():
    schema, rows = {"shop": pl.Int64, "v": pl.Int64}, [(1, 10), (1, 20), (2, 30), (4, 40)]
    shop, by = pl.col("shop"), {"shop": pl.col("shop") % 2}
    wanted = {
        "total": shop.sum(),
        "key shop": shop.max(),
        "all": pl.all().sum(),
        "q": shop.max() * 2,
    }
    ours = {"total": rr.sum("shop"), "key shop": rr.max("shop"), "q": 2 * rr.max("shop")}
    expected = pl.DataFrame(rows, schema=schema, orient="row").group_by(**by).agg(**wanted)

    def program(rows):
        groups = rows.group_by(**by)
        named = rows.group_by(shop % 2).named("keys")
        return {
            "ours": groups.agg(**ours),
            "polars": named.agg(**wanted),
            "keys": groups.agg(),
            "n": groups.count(),
        }

    with build(program, {"rows": schema}).run() as run:
        run.insert("rows", rows)
        run.commit()
        read = {
            name: run.read(name).to_polars().sort("shop")
            for name in ("ours", "polars", "keys", "n")
        }
    assert read["polars"].equals(expected.sort("shop"))
    assert read["ours"].equals(expected.sort("shop").select("shop", *ours))
    assert read["keys"].rows() == [(0,), (1,)]
    assert read["n"].rows() == [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda groups: groups.top(1, by="v"),
        lambda groups: groups.apply(len, {"n": pl.Int64}),
    ],
)
def test_rows_of_a_group_do_not_have_two_columns_of_one_name(wrong):
    rows = rr.Dataflow("two").input("rows", {"shop": pl.Int64, "v": pl.Int64})
    for groups in (rows.group_by(shop=pl.col("shop") % 2), rows.group_by(shop="v")):
        with pytest.raises(rr.PlanError, match="the key 'shop' is computed") as refused:
            wrong(groups)
        assert refused.value.hint == "give the key a name of its own: group_by(shop_key=...)"


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(3, soak=12))
@pytest.mark.parametrize("key", KEYS)
def test_each_kind_of_key(key, seed):
    def program(rows):
        grouped = KEYS[key](rows)
        return {
            "mixed": grouped.agg(n=rr.count(), s=rr.sum("x"), lo=rr.min("x"), p=x.max()),
            "none": grouped.agg() if key != "nothing" else grouped.count(),
            "count": grouped.count("how_many"),
            "unnamed": grouped.agg(rr.count(), rr.sum("x"), x.max().alias("y")),
        }

    check(program, ROWS, seed=seed)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(3, soak=12))
@pytest.mark.parametrize("k", [1, 2, 5])
def test_top(k, seed):
    def program(rows):
        return {
            "largest": rows.group_by("a").top(k, by="x"),
            "least": rows.group_by("a").top(k, by="x", descending=False),
            "by_two": rows.group_by("b").top(k, by=["x", "a"]),
            "of_all": rows.group_by().top(k, by="b"),
            "by_key": rows.group_by("a", "b").top(k, by="a"),
            "by_expression": rows.group_by(k=x.is_null()).top(k, by="a"),
        }

    check(program, ROWS, seed=seed, most=12)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(3, soak=12))
@pytest.mark.parametrize("k", [1, 2, 4])
def test_top_by_several_in_both_directions(k, seed):
    def program(rows):
        return {
            "down_up": rows.group_by("a").top(k, by=["x", "b"], descending=[True, False]),
            "up_down": rows.group_by("a").top(k, by=["x", "b"], descending=[False, True]),
            "tuple": rows.group_by("b").top(k, by=("a", "x"), descending=(False, True)),
            "with_the_key": rows.group_by("a").top(
                k, by=["a", "x", "b"], descending=[True, False, True]
            ),
            "expressions": rows.with_columns(y=x % 2)
            .group_by()
            .top(k, by=["y", "b", "x"], descending=[True, True, False]),
        }

    check(program, ROWS, seed=seed, most=12)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(4, soak=16))
def test_distinct_of_some_columns(seed):
    def program(rows):
        return {
            "one": rows.distinct("a"),
            "two": rows.distinct("x", "b"),
            "listed": rows.distinct(["b"]),
            "all": rows.distinct("x", "a", "b"),
            "whole": rows.distinct(),
            "on_the_way": rows.distinct("b", name="firsts").group_by("x").count(),
        }

    check(program, ROWS, seed=seed, most=12, scale=True)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(2, soak=8))
def test_distinct_of_some_columns_in_a_loop(seed):
    def program(rows):
        def step(known):
            return known.concat(rows, known.with_columns(x=(x + 1) % 4)).distinct("a", "x")

        return rows.iterate(step, rounds=6)

    check(program, ROWS, seed=seed)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(2, soak=8))
def test_aggregates_named_by_position(seed):
    def program(rows):
        return rows.group_by("a").agg(
            rr.sum("x").alias("total"),
            rr.count("x"),
            (rr.max("x") / 2).alias("half"),
            [rr.count()],
            low=rr.min("x"),
        )

    check(program, ROWS, seed=seed)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(3, soak=12))
def test_arithmetic_of_floats_and_of_aggregates_of_groups_of_groups(seed):
    def program(rows):
        inner = rows.group_by("a", "b").agg(q=rr.sum("f") / rr.count(), d=rr.max("f") - rr.min("f"))
        return {
            "inner": inner,
            "outer": inner.group_by("a").agg(s=rr.sum("q") * rr.mean("d"), n=rr.count("q")),
        }

    schema = {"rows": {"a": pl.Int64, "b": pl.String, "f": pl.Float64}}
    floats = [0.0, 1.5, -2.25, 0.1, None]
    make = {
        "rows": lambda source: (source.choice([0, 1]), source.choice("ab"), source.choice(floats))
    }
    check(program, schema, seed=seed, make=make, epochs=6)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(3, soak=12))
def test_top_of_floats(seed):
    check(
        lambda rows: {
            "down": rows.group_by("k").top(2, by="f"),
            "up": rows.group_by("k").top(2, by="f", descending=False),
            "ends": rows.group_by("k").agg(lo=rr.min("f"), hi=rr.max("f"), l=rr.last("f", by="f")),
        },
        {"rows": {"k": pl.Int64, "f": pl.Float64}},
        seed=seed,
        most=10,
    )


APPLIED = {
    "value": lambda rows: rows.group_by("a").apply(lambda g: g["x"].sum(), {"s": pl.Int64}),
    "dict": lambda rows: rows.group_by("a", "b").apply(
        lambda g: {"n": g.height, "s": g["x"].sum()}, {"s": pl.Int64, "n": pl.Int64}
    ),
    "all_columns": lambda rows: rows.group_by("b").apply(
        lambda g: ",".join(g.columns), {"names": pl.String}
    ),
    "many": lambda rows: rows.group_by("a").apply(
        lambda g: [(v,) for v in g["x"].drop_nulls()], {"v": pl.Int64}, many=True
    ),
    "many_of_two": lambda rows: rows.group_by("a").apply(
        lambda g: [{"v": v, "w": "w"} for v in g["x"]], {"v": pl.Int64, "w": pl.String}, many=True
    ),
    "many_equal": lambda rows: rows.group_by("a").apply(
        lambda g: [(1,)] * g.height, {"one": pl.Int64}, many=True
    ),
    "many_none": lambda rows: rows.group_by("a").apply(lambda g: [], {"v": pl.Int64}, many=True),
    "nothing": lambda rows: rows.group_by().apply(lambda g: g.height, {"n": pl.Int64}),
    "null": lambda rows: rows.group_by("a").apply(lambda g: None, {"n": pl.Int64}),
    "in_order": lambda rows: rows.group_by("b").apply(
        lambda g: str(g.rows()), {"text": pl.String}
    ),
}  # fmt: skip


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(3, soak=12))
@pytest.mark.parametrize("name", APPLIED)
def test_apply(name, seed):
    check(APPLIED[name], ROWS, seed=seed)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(3, soak=12))
def test_groups_of_groups(seed):
    def program(rows):
        first = rows.group_by("a", "b").agg(s=rr.sum("x"), n=rr.count())
        return {
            "second": first.group_by("a").agg(m=rr.max("s"), n=rr.sum("n")),
            "counts": first.group_by("n").count("how_many").group_by().top(2, by="how_many"),
            "kept": first.filter(pl.col("s") > 2).select("a", "s").distinct().count(),
        }

    check(program, ROWS, seed=seed, scale=True)


# -- sums are exact


FLOATS = [0.1, -0.1, 1e16, -1e16, 1e300, 1e-300, 5e-324, 1.7e308, math.pi, -2.5, 0.0, -0.0]
STRANGE = [*FLOATS, math.nan, math.inf, -math.inf, None]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("values", [FLOATS, STRANGE], ids=["finite", "strange"])
def test_float_sums_are_exact(values, workers):
    schema = {"rows": {"k": pl.Int64, "f": pl.Float64}}
    make = {"rows": lambda source: (source.randrange(2), source.choice(values))}
    for seed in range(4):
        check(
            lambda rows: rows.group_by("k").agg(s=rr.sum("f"), m=rr.mean("f"), n=rr.count()),
            schema,
            seed=seed,
            make=make,
            workers=workers,
            most=12,
        )


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(4, soak=16))
def test_sums_of_rows_that_are_there_several_times(seed):
    """Changes with diffs other than one and minus one."""

    def program(rows):
        wanted = {
            "s": rr.sum("f"),
            "i": rr.sum("v"),
            "m": rr.mean("f"),
            "n": rr.count(),
            "j": rr.mean("v"),
        }
        return {
            "added_up": rows.consolidate().group_by("k").agg(**wanted),
            "topped": rows.group_by("k").top(5, by="f").group_by("k").agg(**wanted),
            "joined": rows.join(rows.select("k"), on="k").group_by("k").agg(**wanted),
        }

    values = [0.1, -2.5, 1e16, None]
    check(
        program,
        {"rows": {"k": pl.Int64, "f": pl.Float64, "v": pl.Int64}},
        seed=seed,
        make={"rows": lambda source: (1, source.choice(values), source.choice([3, -(2**40)]))},
        most=15,
    )


def test_what_is_deleted_gives_the_old_sum_back():
    flow = build(lambda rows: rows.group_by().agg(s=rr.sum("f")), {"rows": {"f": pl.Float64}})
    source = random.Random(3)
    values = [source.uniform(-1, 1) for _ in range(50)]
    with flow.run(workers=2) as run:
        run.insert("rows", [(value,) for value in values])
        run.commit()
        before = run.read("result").rows()
        assert before == [(math.fsum(values),)]
        for strange in ([1e17, 1e-17], [math.inf], [math.nan, -math.inf], [1e308] * 3):
            run.insert("rows", [(value,) for value in strange])
            run.commit()
            (total,) = run.read("result").rows()
            assert counted([total]) == counted([(exact_sum([*values, *strange]),)]), strange
            run.delete("rows", [(value,) for value in strange])
            run.commit()
            assert run.read("result").rows() == before
            assert run.changes("result").rows()[0][-1] in (-1, 1)


def test_the_order_of_arrival_does_not_show():
    values = [1e16, 1.0, -1e16, 3.0]
    flow = build(lambda rows: rows.group_by().agg(s=rr.sum("f")), {"rows": {"f": pl.Float64}})
    for order in itertools.permutations(values):
        with flow.run() as run:
            for value in order:
                run.insert("rows", [(value,)])
                run.commit()
            assert run.read("result").rows() == [(4.0,)], order


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pl.Int8, [127, -128, 1, None]),
        (pl.Int64, [2**62, -(2**62), 2**31, -(2**31), 2**32 - 1, -1, 0, None]),
        (pl.UInt8, [255, 0, 7, None]),
        (pl.UInt64, [2**61, 2**32, 2**31, 1, None]),
        (pl.Boolean, [True, False, None]),
        (pl.Float32, [0.5, -1.25, math.inf, None]),
    ],
)
def test_sums_of_every_type(kind, values):
    make = {"rows": lambda source: (source.choice(values),)}
    for seed in range(2):
        check(
            lambda rows: rows.group_by().agg(s=rr.sum("v"), n=rr.count()),
            {"rows": {"v": kind}},
            seed=seed,
            make=make,
            most=3,
        )


def test_decimals_and_durations():
    hour = datetime.timedelta(hours=1)
    flow = build(
        lambda rows: rows.group_by("k").agg(d=rr.sum("d"), t=rr.sum("t"), lo=rr.min("d")),
        {"rows": {"k": pl.Int64, "d": pl.Decimal(12, 2), "t": pl.Duration("us")}},
    )
    with flow.run() as run:
        run.insert(
            "rows", [(1, Decimal("1.10"), hour), (1, Decimal("2.25"), hour), (2, None, None)]
        )
        run.commit()
        by_key = {row["k"]: (row["d"], row["t"], row["lo"]) for row in run.read("result")}
        assert by_key[1] == (Decimal("3.35"), 2 * hour, Decimal("1.10"))
        assert by_key[2][2] is None
        run.delete("rows", [(1, Decimal("1.10"), hour)])
        run.commit()
        by_key = {row["k"]: (row["d"], row["t"], row["lo"]) for row in run.read("result")}
        assert by_key[1] == (Decimal("2.25"), hour, Decimal("2.25"))


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("kind", "value"), [(pl.Int64, 2**62), (pl.Int64, -(2**62) - 1), (pl.UInt64, 2**63)]
)
def test_a_sum_that_does_not_fit_is_said(kind, value, workers):
    flow = build(
        lambda rows: rows.group_by("k").agg(s=rr.sum("v")), {"rows": {"k": pl.Int64, "v": kind}}
    )
    with flow.run(workers=workers) as run:
        run.insert("rows", [(1, value), (2, 5)])
        run.commit()
        run.insert("rows", [(1, value)])
        with pytest.raises(rr.OperatorFailed) as raised:
            run.commit()
        assert raised.value.code == "operator.overflow"
        assert str(2 * value) in str(raised.value)
        assert run.read("result").rows() == [(1, value), (2, 5)]
        run.insert("rows", [(1, 1)])
        run.commit()
        assert run.read("result").rows() == [(1, value + 1), (2, 5)]
