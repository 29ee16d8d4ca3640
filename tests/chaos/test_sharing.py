"""Shared state through losses: what waits, and how far a state has come, is a function of the epochs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import riverrun as rr


def chained(listed: bool) -> rr.Dataflow:
    """Answers from one state update another, and report its progress."""
    flow = rr.Dataflow("chained")
    moves = flow.input("moves", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64})
    views = flow.input("views", {"k": pl.Int64, "at": pl.Int64})
    key, value = {"k": pl.Int64}, {"v": pl.Int64}
    first, second = flow.state("first", key, value), flow.state("second", key, value)
    moves.update(first)
    if listed:

        def both(row: dict[str, Any]) -> list[dict[str, Any]]:
            return [{"k": row["k"]}, {"k": row["k"] + 1}]

        seen = views.fetch(first, requests=both, at="at")
        seen = seen.with_columns(v=pl.lit(1, pl.Int64))
    else:
        seen = views.fetch(first, key="k", at="at")
    seen.update(second, time="at")
    flow.output("seen", seen)
    return flow


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_request_that_is_deleted_while_it_waits_was_never_there(
    tmp_path: Path, listed: bool, scaled: bool
) -> None:
    flow = chained(listed)
    with flow.run(workers=2, checkpoint=str(tmp_path)) as run:
        run.insert("views", [(key, 100) for key in range(20)])
        run.commit()
        run.delete("views", [(key, 100) for key in range(20)])
        run.commit()
        if scaled:
            run.scale(3)  # all that waits is saved and restored
        run.insert("moves", [(1, 200, 7)])
        run.commit()
        assert run.read("seen").rows() == []
        assert run.status()["states"]["second"]["update"] is None
        run.insert("views", [(1, 150)])
        run.commit()
        assert run.status()["states"]["second"]["update"] == 150


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_what_a_record_and_its_deletion_report_does_not_depend_on_which_comes_first(
    listed: bool, workers: int
) -> None:
    """Nor on how many workers there are: those with one request go on both, of those with several none counts."""
    flow = chained(listed)
    with flow.run(workers=workers) as run:
        run.insert("moves", [(1, 200, 7)])
        run.commit()
        for at in range(100, 110):
            rows = [(key, at) for key in range(8)]
            run.insert("views", rows)
            run.delete("views", rows)
            run.commit()
            assert run.status()["states"]["second"]["update"] == (None if listed else at)
        assert run.read("seen").rows() == []
