"""A state treats columns by their family, not by their Arrow type: all lists are lists, all text is text."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr

ROWS = [(1, 1, 10, "x"), (2, 2, 20, "y"), (1, 5, 11, "x"), (1, 6, 11, "y")]


@pytest.mark.parametrize("lists", [pl.List(pl.Int64), pl.Array(pl.Int64, 2)], ids=str)
@pytest.mark.parametrize(
    "text", [pl.String, pl.Categorical, pa.string_view(), pa.string()], ids=str
)
def test_sources_by_any_text_and_keys_in_any_list(text: Any, lists: Any) -> None:
    flow = rr.Dataflow("kinds")
    rows = flow.input("rows", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64, "source": text})
    asks = flow.input("asks", {"k": lists, "at": pl.Int64})
    state = flow.state("s", {"k": pl.Int64}, {"v": pl.Int64})
    rows.update(state, by="source")
    flow.output("answers", asks.fetch(state, key="k", at="at"))
    with flow.run() as run:
        run.insert("rows", ROWS)
        run.insert("asks", [([1, 2], 3)])
        run.commit()
        assert run.read("answers").rows() == [([1, 2], 3, [10, 20])]


def test_an_array_of_keys_updates_each() -> None:
    flow = rr.Dataflow("kinds")
    rows = flow.input("rows", {"k": pl.Array(pl.Int64, 2), "time": pl.Int64, "v": pl.Int64})
    asks = flow.input("asks", {"k": pl.Int64, "at": pl.Int64})
    state = flow.state("s", {"k": pl.Int64}, {"v": pl.Int64})
    rows.update(state)
    flow.output("answers", asks.fetch(state, key="k", at="at"))
    with flow.run() as run:
        run.insert("rows", [([1, 2], 1, 10), (None, 2, 3), ([1, 3], 3, 5)])
        run.insert("asks", [(1, 2), (2, 2), (3, 2)])
        run.commit()
        assert run.read("answers").rows() == [(1, 2, 10), (2, 2, 10), (3, 2, None)]
