"""Shared state through losses: what waits, and how far a state has come, is a function of the epochs alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from tests.soaking import Shown, first_seed


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
    """Nor on how many workers there are: behind a fetch neither counts, whether it has one request or several."""
    flow = chained(listed)
    with flow.run(workers=workers) as run:
        run.insert("moves", [(1, 200, 7)])
        run.commit()
        for at in range(100, 110):
            rows = [(key, at) for key in range(8)]
            run.insert("views", rows)
            run.delete("views", rows)
            run.commit()
            assert run.status()["states"]["second"]["update"] is None
        assert run.read("seen").rows() == []


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_request_that_is_deleted_when_its_time_comes_reports_nothing(
    listed: bool, workers: int
) -> None:
    """It waits until the epoch in which U passes it, and is deleted in that one."""
    flow = chained(listed)
    with flow.run(workers=workers) as run:
        run.insert("views", [(key, 150) for key in range(8)])
        run.insert("moves", [(1, 100, 7)])
        run.commit()
        run.delete("views", [(key, 150) for key in range(8)])
        run.insert("views", [(1, 120)])
        run.insert("moves", [(1, 200, 7)])
        run.commit()
        assert [row[:2] for row in run.read("seen").rows()] == [(1, 120)]
        assert run.status()["states"]["second"]["update"] == 120
        assert run.events("late") == []


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("when", ["it waits", "its time comes"])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_rule_does_not_see_a_request_that_was_deleted(
    workers: int, when: str, listed: bool
) -> None:
    def refuse(values: pl.DataFrame) -> pl.DataFrame:
        if (values["v"] == 13).any():
            raise ValueError("a value that no request is to find")
        return values.select("request", "v")

    flow = rr.Dataflow("refusing")
    moves = flow.input("moves", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64})
    views = flow.input("views", {"k": pl.Int64, "at": pl.Int64})
    state = flow.state("values", {"k": pl.Int64}, {"v": pl.Int64})
    moves.update(state)
    keys: dict[str, Any] = {"key": "k"}
    if listed:
        keys = {"requests": lambda row: [{"k": row["k"]}, {"k": row["k"] + 10}]}
    rule = rr.rules.fetch(refuse, {"v": pl.Int64})
    flow.output("found", views.fetch(state, at="at", rule=rule, **keys).select("k", "at"))
    with flow.run(workers=workers) as run:
        run.insert("moves", [(1, 100, 13), (2, 100, 7)])
        run.insert("views", [(1, 150), (1, 150), (2, 150)])
        run.commit()
        run.delete("views", [(1, 150), (1, 150)])
        if when == "it waits":
            run.commit()
        run.insert("moves", [(3, 200, 7)])
        run.commit()
        assert run.read("found").rows() == [(2, 150)]


def kept(options: dict[str, Any]) -> rr.Dataflow:
    """The entries of a state that is compacted, for everybody to see."""
    flow = rr.Dataflow("kept")
    moves = flow.input("moves", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64})
    views = flow.input("views", {"k": pl.Int64, "at": pl.Int64})
    key, value = {"k": pl.Int64}, {"v": pl.Int64}
    state = flow.state("campaigns", key, value, compact=rr.rules.keep_latest, **options)
    moves.update(state, late=5)
    flow.output("seen", views.fetch(state, key="k", at="at", late=5))
    flow.output("entries", state.entries())
    return flow


@pytest.mark.parametrize(
    "options",
    [
        {"compaction": "lazy", "sweep": 2},
        {"compaction": "active"},
        {"compaction": "lazy", "sweep": 2, "accelerate": False},
        {"compaction": "active", "accelerate": False},
    ],
)
def test_what_is_left_of_entries_is_a_function_of_the_epochs(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """Neither the number of workers nor losses show, so that what was told of an epoch stays true when it is redone."""
    flow = kept(options)
    seed = first_seed(0)
    runs = [flow.run(workers=1), flow.run(workers=3, checkpoint=str(tmp_path), every=None)]
    source = random.Random(seed)
    shown = Shown(compacted=3)
    for epoch in shown.turns(80):
        moves, views = [], []
        if source.random() < 0.6:
            moves = [(source.randrange(40), epoch + source.randrange(-4, 3), epoch)]
        if source.random() < 0.4:
            views = [(source.randrange(40), epoch - source.randrange(4))]
        for run in runs:
            run.insert("moves", moves)
            run.insert("views", views)
            run.commit()
        if source.random() < 0.15:
            runs[1].scale(source.choice((1, 2, 3, 4)))
        alone, together = (run.read("entries").rows() for run in runs)
        assert alone == together, (seed, epoch)
        shown["compacted"] += sum(diff < 0 for *_, diff in runs[0].changes("entries").rows())
    for run in runs:
        run.close()
