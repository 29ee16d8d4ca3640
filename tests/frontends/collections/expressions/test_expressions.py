"""Expressions: what is row-wise, what is refused and how, and that the short cuts give Polars' results."""

from __future__ import annotations

import datetime
import json
import operator
import pickle
import random
import sys
import threading
import tomllib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from riverrun.errors import PlanError
from riverrun.frontends.collections.expressions import (
    canonical,
    compile_columns,
    compile_filter,
    tree,
)
from riverrun.frontends.collections.expressions.tree import kind_of, read
from riverrun.plan.expression_text import written_apart
from tests.frontends.collections.arrays import assert_same, shown

SCHEMA = pa.schema(
    {
        "i": pa.int64(),
        "j": pa.int64(),
        "f": pa.float64(),
        "s": pa.string(),
        "b": pa.bool_(),
        "d": pa.date32(),
        "t": pa.timestamp("us"),
        "l": pa.list_(pa.int64()),
        "w": pa.list_(pa.string()),
        "r": pa.struct({"x": pa.int64(), "y": pa.string()}),
        "y": pa.binary(),
    }
)
KINDS = [canonical(field.type) for field in SCHEMA]

N, J, F, S, B, D, T, L, W, R, Y = (pl.col(name) for name in SCHEMA.names)
ELEMENT = pl.element()
DAY = datetime.date(2024, 2, 29)


def columns_of(rows: int, seed: int) -> list[pa.Array]:
    """Columns of every kind, with nulls, repeated values and extremes."""
    chance = random.Random(seed)

    def some(make: Callable[[], Any]) -> list[Any]:
        return [None if chance.random() < 0.2 else make() for _ in range(rows)]

    def word() -> str:
        return chance.choice(["", "a", "Ab", "a,b", "x=1", "é", "2024-01-02", '{"x": 1}', "12"])

    def number() -> int:
        return chance.choice([0, 1, 2, 3, -1, -7, 12, 2**62, -(2**63)])

    def small() -> int:
        return chance.randint(0, 4)

    def fraction() -> float:
        return chance.choice([0.0, -0.0, 1.5, -2.25, 1e300, float("nan"), float("inf"), 3.0])

    cells = [
        some(number),
        some(small),
        some(fraction),
        some(word),
        some(lambda: chance.random() < 0.5),
        some(lambda: DAY + datetime.timedelta(days=chance.randint(-400, 400))),
        some(lambda: datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=small() * 7)),
        some(lambda: [small() for _ in range(small())]),
        some(lambda: [word() for _ in range(small())]),
        some(lambda: {"x": small(), "y": word()}),
        some(lambda: word().encode()),
    ]
    return [pa.array(values, kind) for values, kind in zip(cells, KINDS, strict=True)]


ACCEPTED: list[pl.Expr] = [
    # columns, names, literals, casts
    pl.col("i"),
    pl.col("i").alias("other"),
    pl.col("i").name.suffix("_"),
    pl.col("i").name.keep(),
    pl.lit(1),
    pl.lit(None),
    pl.lit([1, 2]),
    pl.lit("x").str.to_uppercase(),
    N.cast(pl.Float64),
    N.cast(pl.Int8, strict=False),
    S.cast(pl.Int64, strict=False),
    S.replace_strict({"a": "a"}, default="other").cast(pl.Enum(["a", "other"])),
    pl.sql_expr("i + j"),
    # arithmetic, comparisons, logic
    N + 1,
    1 - N,
    N * J,
    N / J,
    N // J,
    N % 3,
    F**2,
    F.abs() ** J,
    F / 3.7,
    F / 49,
    (F / 3.7).round(9) / 7,
    pl.when(N > 1).then(F).otherwise(1.1) / 49,
    pl.when(S == "a").then(F / 49).otherwise(1.1),
    -F,
    N.abs(),
    N == J,
    F > 1.5,
    N.eq_missing(J),
    N.ne_missing(None),
    B & (N > 1),
    B | (N > 1),
    B ^ (N > 1),
    ~B,
    N & 3,
    N.is_between(0, 3),
    F.is_close(1.5),
    N.is_in([1, 2]),
    N.is_in([1, None], nulls_equal=True),
    J.is_in(L),
    S.is_in(["a", "b"]),
    # nulls, choices
    N.is_null(),
    N.is_not_null(),
    F.is_nan(),
    F.is_not_nan(),
    F.is_finite(),
    F.is_infinite(),
    N.fill_null(0),
    N.fill_null(J + 1),
    N.fill_null(strategy="zero"),
    F.fill_nan(0.0),
    pl.coalesce(N, J, 0),
    pl.when(N > 1).then(J).otherwise(N),
    pl.when(N > 1).then(J).when(B).then(1).otherwise(None),
    N.replace({1: 10}),
    N.replace_strict({1: 10}, default=J),
    J.clip(1, 3),
    # mathematics
    F.floor(),
    F.ceil(),
    F.round(1),
    F.round_sig_figs(2),
    F.truncate(),
    F.sqrt(),
    F.cbrt(),
    F.exp(),
    F.log(),
    F.log(2),
    F.log1p(),
    F.sin(),
    F.arctan(),
    F.sign(),
    F.degrees(),
    pl.arctan2(F, J),
    J.bitwise_count_ones(),
    N.reinterpret(signed=False),
    J.bin_intervals([1, 2], labels=["a", "b", "c"]),
    pl.min_horizontal(N, J),
    pl.max_horizontal(N, J, 3),
    pl.sum_horizontal(N, J),
    pl.mean_horizontal(N, J),
    pl.all_horizontal(B, N > 1),
    pl.any_horizontal(B, N > 1),
    pl.sum_horizontal(pl.col("i", "j")),
    pl.sum_horizontal(pl.col("^[ij]$")),
    J.hash(7),
    # strings
    S.str.to_uppercase(),
    S.str.len_chars(),
    S.str.contains("a"),
    S.str.contains_any(["a", "b"]),
    S.str.starts_with("a"),
    S.str.extract(r"(\d+)"),
    S.str.extract_all(r"\d"),
    S.str.extract_groups(r"(\w)=(\d)"),
    S.str.replace("a", "z"),
    S.str.replace_all("a", "z", literal=True),
    S.str.replace_many(["a"], ["z"]),
    S.str.split(","),
    S.str.split_exact(",", 1),
    S.str.splitn(",", 2),
    S.str.slice(1, 2),
    S.str.head(2),
    S.str.strip_chars(),
    S.str.strip_prefix("a"),
    S.str.pad_start(4),
    S.str.zfill(4),
    S.str.reverse(),
    S.str.to_integer(strict=False),
    S.str.to_date("%Y-%m-%d", strict=False),
    S.str.encode("hex"),
    S.str.find("b"),
    S.str.count_matches("a"),
    pl.concat_str(S, "s"),
    pl.format("{}-{}", S, N),
    # dates and times
    D.dt.year(),
    D.dt.weekday(),
    D.dt.month_start(),
    D.dt.offset_by("1mo"),
    D.dt.truncate("1mo"),
    D.dt.strftime("%d/%m"),
    D.dt.add_business_days(0, roll="forward"),
    D.dt.is_business_day(),
    T.dt.date(),
    T.dt.hour(),
    T.dt.timestamp(),
    T.dt.replace_time_zone("UTC"),
    T - pl.lit(datetime.datetime(2024, 1, 1)),
    (T - T).dt.total_seconds(),
    pl.duration(days=J),
    pl.date(2024, 1, J + 1),
    D + datetime.timedelta(days=1),
    # lists, structs, binary
    L.list.len(),
    L.list.sum(),
    L.list.max(),
    L.list.mean(),
    L.list.sort(),
    L.list.reverse(),
    L.list.get(0, null_on_oob=True),
    L.list.first(),
    L.list.head(2),
    L.list.slice(1, 1),
    L.list.contains(J),
    L.list.count_matches(1),
    L.list.unique(maintain_order=True),
    L.list.n_unique(),
    L.list.drop_nulls(),
    L.list.diff(),
    L.list.shift(),
    L.list.eval(ELEMENT + 1),
    L.list.eval(ELEMENT.rank()),
    L.list.eval(ELEMENT.cum_sum()),
    L.list.eval(ELEMENT.sort(descending=True).head(2)),
    L.list.agg(ELEMENT.sum()),
    L.list.filter(ELEMENT > 1),
    L.list.eval(ELEMENT > 1).list.any(),
    L.list.set_union([1, 9]),
    L.list.set_intersection(L),
    L.list.to_struct(fields=["p", "q"]),
    W.list.join("+"),
    W.list.eval(ELEMENT.str.to_uppercase()),
    pl.concat_list(N, J),
    J.repeat_by(2),
    pl.int_ranges(0, J),
    pl.struct(N, S),
    R.struct.field("x"),
    R.struct.rename_fields(["a", "b"]),
    R.struct.with_fields(pl.field("x") + 1, z=N),
    R.struct.json_encode(),
    Y.bin.size(),
    Y.bin.starts_with(b"a"),
    Y.bin.encode("hex"),
    # functions of a row
    J.map_elements(lambda x: x * 3 if x else -1, return_dtype=pl.Int64),
    J.map_batches(lambda s: s * 2, return_dtype=pl.Int64, is_elementwise=True),
    pl.struct(N, J).map_elements(lambda row: str(row["j"]), return_dtype=pl.String),
]

REFUSED: list[tuple[str, str, pl.Expr]] = [
    # aggregates
    ("sum", "group_by", N.sum()),
    ("mean", "group_by", F / F.mean()),
    ("min", "group_by", N - N.min()),
    ("max", "group_by", pl.when(N.max() == N).then(1).otherwise(0)),
    ("count", "group_by", N.count()),
    ("len", "group_by", pl.len()),
    ("count", "group_by", N.len()),
    ("n_unique", "group_by", N.n_unique()),
    ("std", "group_by", F.std()),
    ("median", "group_by", F.median()),
    ("quantile", "group_by", F.quantile(0.5)),
    ("first", "group_by", N.first()),
    ("last", "group_by", pl.struct(N.last(), J)),
    ("implode", "group_by", N.implode()),
    ("any", "group_by", B.any()),
    ("all", "group_by", B.all()),
    ("null_count", "group_by", N.null_count()),
    ("product", "group_by", N.product()),
    ("sum", "group_by", F.dot(J)),
    ("arg_max", "group_by", N.arg_max()),
    ("str.join", "group_by", S.str.join()),
    ("value_counts", "group_by", N.value_counts()),
    ("mode", "group_by", N.mode()),
    ("top_k", "group_by", N.top_k(2)),
    ("bitwise_and", "group_by", N.bitwise_and()),
    ("correlation", "group_by", pl.corr("i", "j")),
    ("max_by", "group_by", N.max_by("j")),
    # order
    ("cum_sum", "order", N.cum_sum()),
    ("cum_sum", "order", pl.col("i").cum_sum().alias("x").cast(pl.Float64) + 1),
    ("cum_count", "order", N.cum_count()),
    ("shift", "order", N.shift()),
    ("diff", "order", N.diff()),
    ("pct_change", "order", F.pct_change()),
    ("rank", "order", N.rank()),
    ("sort", "order", N.sort()),
    ("sort_by", "order", N.sort_by("j")),
    ("arg_sort", "order", N.arg_sort()),
    ("reverse", "order", N.reverse()),
    ("over", "order", N.sum().over("j")),
    ("over", "order", (N + 1).over("j")),
    ("rolling_mean", "order", F.rolling_mean(2)),
    ("rolling_max_by", "order", F.rolling_max_by("t", "1d")),
    ("rolling", "order", N.sum().rolling("t", period="1d")),
    ("ewm_mean", "order", F.ewm_mean(com=1)),
    ("interpolate", "order", F.interpolate()),
    ("int_range", "order", pl.int_range(pl.len())),
    ("int_range", "order", pl.row_index()),
    ("rle_id", "order", N.rle_id()),
    ("peak_max", "order", N.peak_max()),
    ('fill_null(strategy="forward")', "order", N.forward_fill()),
    ('fill_null(strategy="mean")', "order", F.fill_null(strategy="mean")),
    # length
    ("explode", "flat_map", L.explode()),
    ("explode", "flat_map", L.list.explode()),
    ("filter", "filter", N.filter(J > 1)),
    ("drop_nulls", "filter", N.drop_nulls()),
    ("slice", "filter", N.head(2)),
    ("gather", "filter", N.gather([0])),
    ("gather", "filter", N.get(0)),
    ("unique", "distinct", N.unique()),
    ("is_unique", "distinct", N.is_unique()),
    ("is_first_distinct", "distinct", N.is_first_distinct()),
    ("is_duplicated", "distinct", N.is_duplicated()),
    ("append", "map_batches", N.append(J)),
    ("extend_constant", "map_batches", N.extend_constant(1, 2)),
    ("reshape", "map_batches", N.reshape((1, -1))),
    ("repeat", "map_batches", pl.repeat(1, 3)),
    ("lit(a Series)", "list", pl.lit(pl.Series([1, 2]))),
    ("lit(a Series)", "list", N + pl.Series([1, 2])),
    # what options hide
    ("bin_quantiles", "breaks", F.bin_quantiles([0.5], labels=["a", "b"])),
    ("str.strptime(format=None)", "format", S.str.to_date()),
    ("str.strptime(format=None)", "format", S.str.to_datetime(strict=False)),
    ("cast(pl.Categorical)", "Enum", S.cast(pl.Categorical)),
    ("cast(pl.Categorical)", "Enum", W.cast(pl.List(pl.Categorical)).list.len()),
    ("is_in(an expression)", "join", N.is_in(J)),
    ("is_in(an expression)", "join", N.is_in(J + 1)),
    ("implode", "group_by", N.fill_null(J.implode().list.first())),
    ("str.contains_any with values from an expression", "join", S.str.contains_any(W)),
    ("set_sorted", "map_batches", N.set_sorted()),
    ("search_sorted", "map_batches", N.search_sorted(1)),
    ("index_of", "map_batches", N.index_of(1)),
    ("hist", "group_by", F.hist()),
    ("cumulative_eval", "order", N.cumulative_eval(ELEMENT.sum())),
    # chance
    ("sample", "hash", N.sample(1)),
    ("shuffle", "hash", N.shuffle(seed=1)),
    ("list.sample", "hash", L.list.sample(1)),
    ("shuffle", "hash", L.list.eval(ELEMENT.shuffle())),
    ('rank(method="random")', "hash", L.list.eval(ELEMENT.rank("random"))),
    ("unique", "maintain_order", L.list.unique()),
    # what Polars computes otherwise for one item than for several
    ("a division inside a list", "inverse", L.list.eval(ELEMENT / 3.7)),
    ("a division inside a list", "inverse", L.list.agg((ELEMENT / (pl.lit(1) + 2)).sum())),
    (
        "a division of a choice by a literal",
        "inverse",
        pl.when(S.str.contains("a")).then(J).otherwise(1.1) / 49,
    ),
    (
        "a division of a choice by a literal",
        "inverse",
        pl.coalesce(J.cast(pl.Float32), 1.1).abs() / 49,
    ),
    ("a power of a choice", "choose", F ** pl.when(S == "a").then(2.5).otherwise(J)),
    ("a power inside a list", "literal", L.list.eval(ELEMENT**ELEMENT)),
    # functions of whole columns
    ("map_batches", "map_elements", N.map_batches(lambda s: s, return_dtype=pl.Int64)),
    ("map_batches", "map_elements", N.map_batches(operator.neg, return_dtype=pl.Int64) + 1),
    ("fold", "functools.reduce", pl.fold(pl.lit(0), lambda a, b: a + b, [N, J])),
    ("reduce", "functools.reduce", pl.reduce(lambda a, b: a + b, [N, J])),
    ("pipe_with_dtype", "map_batches", N.pipe_with_dtype(lambda e, _: e)),
    ("rolling_map", "order", F.rolling_map(lambda s: s.sum(), 2)),
    # where they hide
    ("sum", "group_by", L.list.eval(ELEMENT + 1).list.len() + N.sum()),
    ("sum", "group_by", R.struct.with_fields(z=N.sum())),
    ("mean", "group_by", pl.struct(N, F.mean()).struct.field("i")),
    ("cum_sum", "order", N.map_elements(abs, return_dtype=pl.Int64).cum_sum()),
    ("element", "list.eval", ELEMENT + 1),
]


def polars(columns: list[pa.Array], expression: pl.Expr) -> pl.Series:
    """What Polars gives for all rows at once."""
    frame = pl.DataFrame(pa.RecordBatch.from_arrays(columns, SCHEMA.names))
    series = frame.select(expression).to_series()
    constant = not expression.meta.root_names() and not expression.meta.has_multiple_outputs()
    return series.new_from_index(0, frame.height) if constant else series


def taken(columns: list[pa.Array], at: list[int]) -> list[pa.Array]:
    return [column.take(pa.array(at, pa.int64())) for column in columns]


@pytest.mark.filterwarnings("ignore::polars.exceptions.PolarsInefficientMapWarning")
@pytest.mark.parametrize("expression", ACCEPTED, ids=shown)
def test_what_is_accepted_gives_the_same_however_rows_are_cut(expression: pl.Expr) -> None:
    projection = compile_columns(SCHEMA, {"x": expression}, "select")
    for seed in range(3):
        rows = 24
        columns = columns_of(rows, seed)
        [whole] = projection.apply(columns, rows)
        assert_same(whole, polars(columns, expression), expression)
        assert whole.type == canonical(projection.schema.field("x").type)
        order = list(range(rows))
        chance = random.Random(seed)
        chance.shuffle(order)
        cuts = sorted({0, rows, *(chance.randrange(rows) for _ in range(seed * 4))})
        for low, high in pairwise(cuts):
            picked = order[low:high]
            [part] = projection.apply(taken(columns, picked), high - low)
            assert_same(part, whole.take(pa.array(picked)), expression)
            slices = [column.slice(low, high - low) for column in columns]
            assert_same(projection.apply(slices, high - low)[0], whole.slice(low, high - low))
        [empty] = projection.apply([column.slice(0, 0) for column in columns], 0)
        assert empty.type == whole.type
        assert len(empty) == 0


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=8), st.floats(0.1, 100))
def test_a_row_alone_gives_what_it_gives_among_others(values: list[float], by: float) -> None:
    """Polars itself divides a frame of one row in another way than a longer one."""
    schema = pa.schema({"x": pa.float64(), "s": pa.string()})
    columns = [pa.array(values), pa.array(["a"] * len(values), pa.large_string())]
    divided = pl.col("x") / by
    for expression in (divided, divided.abs(), divided + pl.col("s").str.len_chars()):
        projection = compile_columns(schema, {"x": expression}, "select")
        [whole] = projection.apply(columns, len(values))
        for at in range(len(values)):
            [alone] = projection.apply([column.slice(at, 1) for column in columns], 1)
            assert_same(alone, whole.slice(at, 1))


@given(st.data())
def test_accepted_expressions_compose(data: st.DataObject) -> None:
    numbers: list[pl.Expr] = [
        N + 1,
        J % 3,
        N.fill_null(J),
        S.str.len_chars(),
        L.list.sum(),
        D.dt.year(),
    ]
    first, second = (data.draw(st.sampled_from(numbers)) for _ in range(2))
    joined = data.draw(st.sampled_from([operator.add, operator.mul, operator.lt, operator.eq]))
    expression = pl.when(B).then(joined(first, second)).otherwise(None)
    columns = columns_of(16, data.draw(st.integers(0, 50)))
    projection = compile_columns(SCHEMA, {"x": expression}, "select")
    order = data.draw(st.permutations(range(16)))
    cut = data.draw(st.integers(0, 16))
    parts = [projection.apply(taken(columns, at), len(at))[0] for at in (order[:cut], order[cut:])]
    [whole] = projection.apply(columns, 16)
    assert_same(pa.concat_arrays(parts), whole.take(pa.array(order)))


@pytest.mark.filterwarnings("ignore::polars.exceptions.PolarsInefficientMapWarning")
@pytest.mark.parametrize(("function", "hint", "expression"), REFUSED, ids=shown)
def test_what_is_not_row_wise_is_refused(function: str, hint: str, expression: pl.Expr) -> None:
    with pytest.raises(PlanError) as caught:
        compile_columns(SCHEMA, {"x": expression}, "select from 'things'")
    error = caught.value
    assert error.code == "plan.not_row_wise"
    assert (error.fields["function"], error.fields["column"]) == (function, "x")
    assert str(error).startswith("cannot select from 'things': column 'x' uses ")
    assert function in error.message
    assert error.hint is not None
    assert hint in error.hint
    if expression.meta.has_multiple_outputs() is False:
        with pytest.raises(PlanError, match="the condition uses"):
            compile_filter(SCHEMA, expression, "filter 'things'")


def test_an_unknown_kind_of_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "riverrun.frontends.collections.expressions.compiled.read",
        lambda expression: {"Function": {"input": [{"Column": "i"}], "function": "FutureThing"}},
    )
    with pytest.raises(PlanError, match=r"uses future_thing\(\)") as caught:
        compile_columns(SCHEMA, {"x": N}, "select")
    assert "map_batches" in str(caught.value.hint)


# Projections and predicates.


def test_picked_columns_cost_nothing_and_keep_their_types() -> None:
    schema = pa.schema(
        [
            pa.field("src", pa.int64(), nullable=False),
            pa.field("name", pa.dictionary(pa.int32(), pa.string())),
            pa.field("at", pa.timestamp("s")),
        ]
    )
    projection = compile_columns(schema, {"n": "name", "s": pl.col("src"), "at": "at"}, "select")
    assert projection.sources == (1, 0, 2)
    assert projection.used == (0, 1, 2)
    assert projection.schema == pa.schema(
        [
            pa.field("n", pa.dictionary(pa.int32(), pa.string())),
            pa.field("s", pa.int64(), nullable=False),
            pa.field("at", pa.timestamp("s")),
        ]
    )
    columns = [pa.array([1]), pa.array(["x"], pa.large_string()), pa.nulls(1, pa.timestamp("s"))]
    picked = projection.apply(columns, 1)
    assert all(column is columns[at] for column, at in zip(picked, (1, 0, 2), strict=True))


def test_all_the_ways_of_making_a_column_meet_in_one_projection() -> None:
    projection = compile_columns(
        SCHEMA,
        {
            "i": "i",
            "one": 1,
            "more": N + 1,
            "up": S.str.to_uppercase(),
            "long": S.str.len_chars() > 1,
        },
        "select",
    )
    assert projection.sources is None
    assert projection.used == (0, 3)
    columns: list[Any] = columns_of(10, 0)
    expected = [polars(columns, e) for e in (N, N + 1, S.str.to_uppercase(), S.str.len_chars() > 1)]
    unused = [column if at in projection.used else None for at, column in enumerate(columns)]
    picked, one, *computed = projection.apply(unused, 10)
    assert one.to_pylist() == [1] * 10
    for array, series in zip([picked, *computed], expected, strict=True):
        assert_same(array, series)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1, pa.int64()),
        (1.5, pa.float64()),
        (True, pa.bool_()),
        (None, pa.null()),
        (b"x", pa.large_binary()),
        (DAY, pa.date32()),
        (datetime.timedelta(1), pa.duration("us")),
        ([1, 2], pa.large_list(pa.int64())),
        ({"x": "y"}, pa.struct({"x": pa.large_string()})),
    ],
)
def test_a_python_value_is_a_literal(value: Any, kind: pa.DataType) -> None:
    projection = compile_columns(SCHEMA, {"x": value}, "select")
    assert projection.used == ()
    [column] = projection.apply([None] * len(SCHEMA), 3)
    assert column.type == kind
    assert column.to_pylist() == [value] * 3


def test_a_string_names_a_column_and_pl_lit_is_a_value() -> None:
    projection = compile_columns(SCHEMA, {"x": pl.lit("s"), "y": "s"}, "select")
    columns = columns_of(2, 0)
    results = projection.apply(columns, 2)
    assert results[0].to_pylist() == ["s", "s"]
    assert results[1] is columns[3]


@pytest.mark.parametrize(
    "condition",
    [
        B,
        N > 1,
        S.str.contains("a"),
        pl.lit(True),
        pl.lit(False),
        True,
        pl.lit(None),
        L.list.len() > 1,
    ],
)
def test_a_filter_keeps_rows_where_the_condition_is_true(condition: Any) -> None:
    predicate = compile_filter(SCHEMA, condition, "filter")
    columns = columns_of(30, 4)
    mask = predicate.mask(columns, 30)
    assert mask.dtype == np.bool_
    expression = condition if isinstance(condition, pl.Expr) else pl.lit(condition)
    assert mask.tolist() == [value is True for value in polars(columns, expression).to_list()]
    assert predicate.mask([column.slice(0, 0) for column in columns], 0).tolist() == []


def test_used_names_the_columns_that_are_looked_at() -> None:
    assert compile_filter(SCHEMA, (J > 1) & (S == "a"), "filter").used == (1, 3)
    assert compile_columns(SCHEMA, {"x": R.struct.with_fields(z=N)}, "select").used == (0, 9)
    everything = compile_columns(SCHEMA, {"x": pl.struct(pl.all())}, "select")
    assert everything.used == tuple(range(len(SCHEMA)))


def test_projections_and_predicates_can_be_pickled() -> None:
    columns = columns_of(10, 0)
    projection = compile_columns(SCHEMA, {"x": N + 1, "y": S.str.len_chars()}, "select")
    again = pickle.loads(pickle.dumps(projection))
    assert again.schema == projection.schema
    assert again.apply(columns, 10) == projection.apply(columns, 10)
    predicate = compile_filter(SCHEMA, N > 1, "filter")
    assert (
        pickle.loads(pickle.dumps(predicate)).mask(columns, 10) == predicate.mask(columns, 10)
    ).all()


# Errors.


def test_an_unknown_column_is_named_with_what_is_close() -> None:
    schema = pa.schema({"source": pa.int64(), "target": pa.int64()})
    for column in ("sauce", pl.col("sauce") + 1, pl.col("sauce"), pl.col("sauce").str.len_chars()):
        with pytest.raises(PlanError) as caught:
            compile_columns(schema, {"x": column}, "select from 'edges'")
        error = caught.value
        assert error.code == "plan.column_unknown"
        assert error.fields["column"] == "sauce"
        assert error.fields["columns"] == ["source", "target"]
        assert "there are: source, target" in error.message
        assert error.hint == "did you mean 'source'?"
    with pytest.raises(PlanError, match=r"pl.lit\(...\) a value"):
        compile_columns(schema, {"x": "zzz"}, "select from 'edges'")
    with pytest.raises(PlanError, match="the condition uses column 'nothing'"):
        compile_filter(schema, pl.col("nothing") > 1, "filter 'edges'")


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        (N + S, "i64 and str"),
        (S.dt.year(), "dt"),
        (R.struct.field("nope"), "nope"),
        (pl.all(), "made of 11 columns"),
        (pl.col("i", "j"), "made of 2 columns"),
        (pl.lit(2**70), "cannot be made"),
        (object(), "object"),
        (L.list.eval(ELEMENT + J), "element"),
    ],
    ids=lambda expression: str(expression).partition(" at 0x")[0],
)
def test_an_expression_that_polars_refuses_is_a_plan_error(expression: Any, says: str) -> None:
    with pytest.raises(PlanError) as caught:
        compile_columns(SCHEMA, {"x": expression}, "select from 'things'")
    assert caught.value.code == "plan.expression"
    assert says in caught.value.message
    assert caught.value.message.startswith("cannot select from 'things': column 'x'")


@pytest.mark.parametrize("condition", ["b", 1, None, N, S], ids=str)
def test_a_condition_is_an_expression_that_is_true_or_false(condition: Any) -> None:
    with pytest.raises(PlanError) as caught:
        compile_filter(SCHEMA, condition, "filter 'things'")
    assert caught.value.code == "plan.expression"


def test_a_failure_while_running_is_polars_own() -> None:
    projection = compile_columns(SCHEMA, {"x": S.cast(pl.Int64)}, "select")
    columns = [*columns_of(1, 0)[:3], pa.array(["no"], pa.large_string()), *columns_of(1, 0)[4:]]
    with pytest.raises(pl.exceptions.InvalidOperationError):
        projection.apply(columns, 1)


def test_a_function_that_changes_its_type_is_refused() -> None:
    kinds: list[Any] = [pl.Int64]
    fickle = J.map_batches(lambda s: s.cast(kinds[0]), pl.Int64, is_elementwise=True)
    projection = compile_columns(SCHEMA, {"x": fickle}, "select")
    kinds[0] = pl.String
    with pytest.raises(pl.exceptions.SchemaError):
        projection.apply(columns_of(3, 0), 3)


def test_a_tree_is_read_without_pickling_the_functions_in_it() -> None:
    lock = threading.Lock()  # which nobody can pickle
    with_lock = J.map_elements(lambda x: x if lock else None, return_dtype=pl.Int64)
    assert kind_of(read(with_lock + 1))[0] == "BinaryExpr"


@pytest.mark.parametrize(
    ("written", "other"),
    [
        ('"Column"', '"Col"'),
        ('"TrueDivide"', '"Divide"'),
        ("ROW_SEPARABLE", "ROWS_APART"),
        ("{", ""),
    ],
)
def test_a_polars_that_writes_other_trees_is_refused(
    written: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(expression: pl.Expr, form: Any) -> tuple[str, list[object]]:
        text, functions = written_apart(expression, form)
        return str(text).replace(written, other), functions

    tree._check_form.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(tree, "written_apart", write)
        for _ in range(2):
            with pytest.raises(PlanError, match=f"Polars {pl.__version__} writes") as caught:
                compile_columns(SCHEMA, {"x": J + 1}, "select")
            assert caught.value.code == "plan.polars_form"
            assert f"tested with, {tree.TESTED}" in str(caught.value.hint)
    assert compile_columns(SCHEMA, {"x": J + 1}, "select").apply(columns_of(3, 0), 3)


def test_a_polars_that_does_not_write_trees_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(expression: pl.Expr, form: Any) -> tuple[str, list[object]]:
        raise pl.exceptions.ComputeError("no JSON any more")

    tree._check_form.cache_clear()
    monkeypatch.setattr(tree, "written_apart", write)
    with pytest.raises(PlanError, match='as "ComputeError: no JSON any more", and') as caught:
        compile_filter(SCHEMA, J > 1, "filter")
    assert caught.value.code == "plan.polars_form"


def test_the_tested_versions_of_polars_are_those_that_are_asked_for() -> None:
    project = Path(__file__).resolve().parents[4] / "pyproject.toml"
    asked = tomllib.loads(project.read_text())["project"]["dependencies"]
    [polars] = [each for each in map(Requirement, asked) if each.name == "polars"]
    assert all(polars.specifier.contains(each) for each in tree.TESTED.split(" to "))
    assert not polars.specifier.contains("1.44.2")
    assert polars.specifier.contains(pl.__version__)


def test_other_threads_pickle_while_a_tree_is_read() -> None:
    """Also those that pickle functions by cloudpickle, as launchers do. Here each of them does at the worst moment."""
    modules = {"pickle": pickle, "cloudpickle": cloudpickle}
    lock, pickled = threading.Lock(), []

    def pickles() -> None:
        pickled.extend(sys.modules[module].dumps(len) for module in modules)
        pickled.append(cloudpickle.loads(cloudpickle.dumps(lambda: 3))())

    class Written:
        """An expression with a function that nobody can pickle, which another thread interrupts while it is written."""

        @property
        def meta(self) -> Any:
            return self

        def serialize(self, *, format: str) -> str:
            thread = threading.Thread(target=pickles)
            thread.start()
            thread.join()
            for module in modules:  # as Polars does
                try:
                    return json.dumps({"Column": str(sys.modules[module].dumps(lock))})
                except TypeError:
                    pass
            raise pl.exceptions.ComputeError("cannot pickle the function")

    assert read(Written()) == {"Column": "b''"}  # type: ignore[arg-type]
    assert set(pickled) == {pickle.dumps(len), cloudpickle.dumps(len), 3}
    assert {name: sys.modules[name] for name in modules} == modules
