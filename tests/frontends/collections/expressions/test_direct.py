"""The direct steps of simple expressions give what Polars gives: types, nulls, NaN, wrap-around."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from riverrun.errors import PlanError
from riverrun.frontends.collections.expressions import compile_columns, compile_filter
from riverrun.frontends.collections.expressions.direct import direct
from riverrun.frontends.collections.expressions.tree import read
from tests.frontends.collections.arrays import assert_same, shown

INTS = st.one_of(st.sampled_from([0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63)]), st.integers(-20, 20))
FLOATS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.5, 1e308, -1e308, 2.0**53, 5e-324]),
    st.floats(allow_nan=True, allow_infinity=True),
)
NUMERIC = pa.schema(
    {
        "a": pa.int64(),
        "b": pa.int64(),
        "x": pa.float64(),
        "y": pa.float64(),
        "p": pa.bool_(),
        "q": pa.bool_(),
    }
)
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv]
COMPARING = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
LITERALS = st.one_of(INTS, FLOATS.filter(np.isfinite))


def numbers(depth: int) -> st.SearchStrategy[pl.Expr]:
    leaves = st.sampled_from([pl.col(name) for name in "abxy"])
    if not depth:
        return leaves
    inner = numbers(depth - 1)
    return st.one_of(
        leaves,
        st.builds(lambda op, a, b: op(a, b), st.sampled_from(ARITHMETIC), inner, inner),
        st.builds(lambda op, a, b: op(a, b), st.sampled_from(ARITHMETIC), inner, LITERALS),
        st.builds(lambda op, a, b: op(pl.lit(a), b), st.sampled_from(ARITHMETIC), LITERALS, inner),
        st.builds(lambda a, b: a % b, inner, st.integers(1, 9)),
        st.builds(lambda a, b: a // b, inner, st.integers(1, 9)),
        st.builds(lambda a: -a, inner),
        st.builds(lambda a, b: a.fill_null(b), inner, st.one_of(LITERALS, inner)),
        st.builds(lambda a: a.cast(pl.Float64), inner),
        st.builds(
            lambda test, a, b: pl.when(test).then(a).otherwise(b),
            flags(depth - 1),
            inner,
            st.one_of(inner, LITERALS),
        ),
    )


def flags(depth: int) -> st.SearchStrategy[pl.Expr]:
    leaves = st.sampled_from([pl.col(name) for name in "pq"])
    if not depth:
        return leaves
    inner, number = flags(depth - 1), numbers(depth - 1)
    return st.one_of(
        leaves,
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a, b: a == b, inner, inner),
        st.builds(lambda a: ~a, inner),
        st.builds(lambda op, a, b: op(a, b), st.sampled_from(COMPARING), number, number),
        st.builds(lambda op, a, b: op(a, b), st.sampled_from(COMPARING), number, LITERALS),
        st.builds(lambda a: a.is_null(), st.one_of(number, inner)),
        st.builds(lambda a: a.is_not_null(), st.one_of(number, inner)),
        st.builds(lambda a: a.is_nan(), number),
    )


@st.composite
def numeric_columns(draw: st.DrawFn) -> list[pa.Array]:
    rows = draw(st.integers(2, 12))  # of one row Polars makes a scalar
    offset = draw(st.integers(0, 3))
    nulls = draw(st.booleans())
    columns = []
    for field in NUMERIC:
        values: st.SearchStrategy[Any] = (
            st.booleans()
            if field.type == pa.bool_()
            else INTS
            if field.type == pa.int64()
            else FLOATS
        )
        cells = st.none() | values if nulls else values
        size = rows + offset
        columns.append(pa.array(draw(st.lists(cells, min_size=size, max_size=size)), field.type))
    return [column.slice(offset) for column in columns]


@given(st.one_of(numbers(3), flags(3)), numeric_columns())
def test_direct_steps_give_what_polars_gives(expression: pl.Expr, columns: list[pa.Array]) -> None:
    frame = pl.DataFrame(pa.RecordBatch.from_arrays(columns, NUMERIC.names))
    expected = frame.select(expression).to_series()
    try:
        projection = compile_columns(NUMERIC, {"z": expression}, "select")
    except PlanError as error:
        if error.fields.get("function") == "a division of a choice by a literal":
            reject()  # that is not row-wise, and refused
        raise
    [computed] = projection.apply(columns, frame.height)
    assert_same(computed, expected, expression)
    for at in range(frame.height):
        [alone] = projection.apply([column.slice(at, 1) for column in columns], 1)
        assert_same(alone, computed.slice(at, 1), expression)
    if expected.dtype == pl.Boolean:
        mask = compile_filter(NUMERIC, expression, "filter").mask(columns, frame.height)
        assert mask.dtype == np.bool_
        assert mask.tolist() == expected.fill_null(False).to_list()


A, X, P = pl.col("a"), pl.col("x"), pl.col("p")


@pytest.mark.parametrize(
    "expression",
    [
        A + 1,
        X * 0.85 + 0.15,
        A * X,
        X / A,
        (A > 3) & (X <= 5) | ~P,
        A.is_null(),
        A.fill_null(0),
        A % 8,
        pl.when(P).then(X).otherwise(0.0),
        (A + 1).alias("other"),
        pl.lit(3, pl.Int64) == A,
    ],
    ids=shown,
)
def test_simple_expressions_are_direct(expression: pl.Expr) -> None:
    positions = {name: at for at, name in enumerate(NUMERIC.names)}
    assert direct(read(expression), positions, NUMERIC.types) is not None


@pytest.mark.parametrize(
    "expression",
    [
        A + float("nan"),
        X.gt(float("inf")),
        A % 0,
        A // pl.col("b"),
        A + 2**64,
        X % 2,
        pl.lit(1) + 1,
        P < True,
    ],
    ids=shown,
)
def test_where_the_result_is_not_certain_polars_does_the_work(expression: pl.Expr) -> None:
    positions = {name: at for at, name in enumerate(NUMERIC.names)}
    assert direct(read(expression), positions, NUMERIC.types) is None


@given(st.lists(st.none() | st.sampled_from(["", "a", "ab", "é"]), min_size=1))
def test_strings_are_compared_directly(words: list[str | None]) -> None:
    column = pa.array(words, pa.large_string())
    for expression in (pl.col("s") == "a", pl.col("s") != "", pl.lit("é") == pl.col("s")):
        step = direct(read(expression), {"s": 0}, [pa.large_string()])
        assert step is not None
        frame = pl.DataFrame({"s": words}, schema={"s": pl.String})
        assert_same(step.array([column]), frame.select(expression).to_series())
