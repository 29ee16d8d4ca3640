"""Comparing columns with the results of Polars."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from riverrun.rows.schemas import arrow_type
from riverrun.state.types import encode


def assert_same(array: pa.Array, expected: pl.Series | pa.Array, why: object = "") -> None:
    """Assert the same type, nulls and values, to the last bit. All NaNs count as equal, and so do the two zeros."""
    if isinstance(expected, pl.Series):
        kind, expected = arrow_type(expected.dtype), expected.to_arrow()
    else:
        kind = expected.type
    expected = encode(expected, kind)
    assert array.type == expected.type, why
    assert text_of(array) == text_of(expected), why
    array.validate(full=True)


def text_of(column: pa.Array) -> str:
    """The values in a form in which NaN equals itself."""
    if pa.types.is_floating(column.type):
        return repr([None if value is None else value + 0.0 for value in column.to_pylist()])
    return repr(column.to_pylist()).replace("-0.0,", "0.0,").replace("-0.0]", "0.0]")


def shown(value: object) -> str | None:
    """The name, for pytest, of a test of an expression."""
    return str(value)[:60] if isinstance(value, pl.Expr) else None
