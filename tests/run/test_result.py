"""Results: taken by column, in an order or none."""

from __future__ import annotations

import polars as pl
import pytest

import riverrun as rr
from tests.frontends.collections.checking import build


@pytest.fixture
def result():
    with build(lambda rows: rows, {"rows": {"a": pl.Int64, "b": pl.String}}).run() as run:
        run.insert("rows", [(2, "x"), (1, "y")])
        run.commit()
        yield run.read("result")


def test_a_column(result):
    assert sorted(result["a"]) == [1, 2]
    assert result.rows() == [(1, "y"), (2, "x")]


@pytest.mark.parametrize("column", ["zz", 0])
def test_a_column_that_there_is_not(result, column):
    with pytest.raises(rr.SchemaError, match=r"column of 'result'.*there are: a, b") as told:
        result[column]
    assert told.value.code == ("schema.column_unknown" if column == "zz" else "schema.column")
    assert repr(column) in str(told.value)
