"""Shared state on Spark: frames and streams update and fetch, workers die while fetches wait, entries are read."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import DataFrame, SparkSession

import riverrun as rr
from tests.soaking import first_seed
from tests.spark.programs import eventually

Row = tuple[Any, ...]


def campaigns() -> rr.Dataflow:
    flow = rr.Dataflow("campaigns")
    moves = flow.input("moves", {"ad": pl.Int64, "time": pl.Int64, "campaign": pl.Int64})
    views = flow.input("views", {"view": pl.Int64, "ad": pl.Int64, "at": pl.Int64})
    state = flow.state(
        "campaigns",
        key={"ad": pl.Int64},
        value={"campaign": pl.Int64},
        compact=rr.rules.keep_latest,
    )
    moves.update(state, late=5)
    flow.output("seen", views.fetch(state, key="ad", at="at", late=5))
    flow.output("entries", state.entries())
    return flow


class Story:
    """Moves and views with times that grow, each up to four behind; and what a view has seen, from scratch."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._now = self._views = 0
        self.moves: list[Row] = []
        self.views: list[Row] = []

    def go_on(self, size: int) -> tuple[list[Row], list[Row]]:
        draw, moves, views = self._draw, [], []
        for _ in range(size):
            self._now += draw.randrange(3)
            ad, time = draw.randrange(8), self._now - draw.randrange(5)
            moves.append((ad, time, (31 * ad + 7 * time) % 100))  # one campaign at a time
            self._views += 1
            views.append((self._views, draw.randrange(8), self._now - draw.randrange(5)))
        self.moves += moves
        self.views += views
        return moves, views

    @property
    def passed(self) -> int:
        """Update progress."""
        return max(time for _, time, _ in self.moves) - 5

    def seen(self) -> list[Row]:
        """The views that are answered, each with the campaign at its time."""
        found = []
        for view, ad, at in self.views:
            if at < self.passed:
                known = [
                    (time, name) for moved, time, name in self.moves if moved == ad and time <= at
                ]
                found.append((view, ad, at, max(known)[1] if known else None))
        return sorted(found)


def as_frame(spark: SparkSession, rows: list[Row], columns: str) -> DataFrame:
    return spark.createDataFrame(rows, columns).repartition(3)


def rows_of(frame: DataFrame) -> list[Row]:
    return sorted(map(tuple, frame.collect()), key=repr)


def test_frames_update_and_fetch(spark: SparkSession) -> None:
    seed = first_seed()
    story = Story(seed)
    with campaigns().run(on=spark, workers=2) as run:
        for _ in range(4):
            moves, views = story.go_on(30)
            run.insert("moves", as_frame(spark, moves, "ad long, time long, campaign long"))
            run.insert("views", as_frame(spark, views, "view long, ad long, at long"))
            run.commit()
            assert sorted(run.read("seen").rows()) == story.seen()
            status = run.status()["states"]["campaigns"]
            assert status["update"] == story.passed
            assert status["pending"] == len(story.views) - len(story.seen())
        entries = run.read("entries")
        kept = {(ad, time, name) for ad, time, name in entries.rows()}
        assert kept <= set(story.moves)
        assert rows_of(entries.to_spark()) == sorted(kept, key=repr)
        assert rows_of(spark.read.format("riverrun").load("entries")) == sorted(kept, key=repr)
        recent = {row for row in story.moves if row[1] >= story.passed}
        late = max(time for _, time, _ in story.moves)
        assert {row for row in recent if row[1] == late} & kept  # what may change is there


@pytest.mark.parametrize("recovery", ["replace", "spread"])
def test_fetches_that_wait_outlive_their_worker(
    spark: SparkSession, tmp_path: Path, recovery: str
) -> None:
    seed = first_seed()
    story = Story(seed)
    told: Counter[Row] = Counter()
    options: dict[str, Any] = {"checkpoint": tmp_path, "every": 2, "recovery": recovery}
    with campaigns().run(on=spark, workers=2, **options) as run:
        for turn in range(6):
            moves, views = story.go_on(25)
            run.insert("moves", moves)
            run.insert("views", views)
            if turn in (2, 5):
                victims = run.status()["processes"]
                os.kill(victims[turn % len(victims)]["pid"], signal.SIGKILL)
            run.commit()
            assert sorted(run.read("seen").rows()) == story.seen(), turn
            for *row, diff in run.changes("seen").rows():
                told[tuple(row)] += diff
        assert sorted(told.elements()) == story.seen()  # each answer once
        assert run.status()["states"]["campaigns"]["pending"] == len(story.views) - len(
            story.seen()
        )
        run.checkpoint()
    stored = spark.read.format("riverrun").option("name", "seen").load(str(tmp_path))
    assert rows_of(stored) == sorted(story.seen(), key=repr)
    with campaigns().run(workers=3, checkpoint=tmp_path) as here:  # another number, and no Spark
        moves, views = story.go_on(25)
        here.insert("moves", moves)
        here.insert("views", views)
        here.commit()
        assert sorted(here.read("seen").rows()) == story.seen()


def test_streams_update_and_fetch(spark: SparkSession, tmp_path: Path) -> None:
    seed = first_seed()
    story, folders = Story(seed), {name: tmp_path / name for name in ("moves", "views")}
    columns = {
        "moves": "ad long, time long, campaign long",
        "views": "view long, ad long, at long",
    }
    for folder in folders.values():
        folder.mkdir()
    with campaigns().run(on=spark, workers=2) as run:
        queries = [
            run.stream(name, spark.readStream.schema(columns[name]).parquet(str(folder)))
            for name, folder in folders.items()
        ]
        for turn in range(3):
            for name, rows in zip(folders, story.go_on(20), strict=True):
                frame = pl.DataFrame(
                    rows, [c.split()[0] for c in columns[name].split(", ")], orient="row"
                )
                frame.write_parquet(folders[name] / f"{turn}.parquet")
            assert eventually(
                lambda: run.epoch is not None and sorted(run.read("seen").rows()) == story.seen()
            )
        for query in queries:
            query.stop()
