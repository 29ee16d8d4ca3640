"""Names that are long, and lists of names: a message shows the first ones, and stays one that can be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr
from riverrun.errors import listed, show

LONG = "x" * 50_000
MANY = {f"column_{at}": pl.Int64 for at in range(3000)}
READABLE = 3000
"""Characters of a message: two lists of 40 names with their types, and some words."""

INSERTED: dict[str, tuple[str, Any]] = {
    "a dict with a long name": ("rows", [{LONG: 1}]),
    "a dict with a long name besides": ("rows", [{"k": 1, "v": 2, LONG: 1}]),
    "columns with a long name": ("rows", {LONG: [1]}),
    "a frame with a long name": ("rows", pl.DataFrame({LONG: [1]})),
    "a table with a long name besides": ("rows", pa.table({"k": [1], "v": [1], LONG: [1]})),
    "a dict with many names": ("rows", [dict.fromkeys(MANY, 1)]),
    "a frame with many names": ("rows", pl.DataFrame({name: [1] for name in MANY})),
    "few of many columns": ("wide", [{"k": 1}]),
    "a frame of few of many columns": ("wide", pl.DataFrame({"k": [1]})),
    "a row that is too short": ("wide", [(1,)]),
    "no rows": ("wide", 5),
    "an input with a long name": (LONG, []),
}


@pytest.mark.parametrize(("name", "rows"), INSERTED.values(), ids=INSERTED)
def test_rows_are_refused_in_few_words(name: str, rows: Any) -> None:
    flow = rr.Dataflow("names")
    flow.output("a", flow.input("rows", {"k": pl.Int64, "v": pl.Int64}))
    flow.output("b", flow.input("wide", MANY))
    with flow.run() as run, pytest.raises(rr.RiverrunError) as refused:
        run.insert(name, rows)
    assert len(str(refused.value)) < READABLE


BUILT: dict[str, Callable[[rr.Dataflow, rr.Collection, rr.Collection], Any]] = {
    "an unknown column": lambda f, r, w: w.select("nix"),
    "a long name": lambda f, r, w: w.select(LONG),
    "a long name in an expression": lambda f, r, w: w.filter(pl.col(LONG) > 0),
    "a long name of a result": lambda f, r, w: w.select(**{LONG: pl.col("column_1").cum_sum()}),
    "a long key": lambda f, r, w: r.join(w, left_on="k", right_on=LONG),
    "other columns": lambda f, r, w: w.concat(r),
    "other columns the other way": lambda f, r, w: r.concat(w),
    "other columns in a loop": lambda f, r, w: w.iterate(lambda x: x.select("column_1")),
    "an unknown type": lambda f, r, w: f.input("z", {LONG: object}),
    "a long output": lambda f, r, w: f.output(LONG, r),
    "an unknown output": lambda f, r, w: f.schema(LONG),
}


@pytest.mark.parametrize("built", BUILT.values(), ids=BUILT)
def test_programs_are_refused_in_few_words(
    built: Callable[[rr.Dataflow, rr.Collection, rr.Collection], Any],
) -> None:
    flow = rr.Dataflow("names")
    rows, wide = flow.input("rows", {"k": pl.Int64, "v": pl.Int64}), flow.input("wide", MANY)
    with pytest.raises(rr.RiverrunError) as refused:
        built(flow, rows, wide)
    assert len(str(refused.value)) < READABLE
    assert len(repr(wide)) < READABLE


def test_names_are_cut_and_counted() -> None:
    assert listed([]) == ""
    assert listed(["a", "b"]) == "a, b"
    assert listed(f"c{at}" for at in range(42)).endswith("c38, c39, and 2 more")
    assert listed([LONG]) == "x" * 60 + "... (50000 characters)"
    assert len(show(LONG)) < 100
