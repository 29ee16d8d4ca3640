"""Ctrl-C on Spark: the epoch that is waited for is refused, workers go on, and Spark's own handler cancels no job."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

import riverrun as rr


@pytest.fixture
def cancelled() -> Iterator[list[int]]:
    """A handler like the one that a session installs; what it was called with."""
    calls: list[int] = []

    def signal_handler(number: int, frame: Any) -> None:
        calls.append(number)
        raise KeyboardInterrupt

    signal_handler.__module__ = "pyspark.core.context"
    before = signal.signal(signal.SIGINT, signal_handler)
    yield calls
    assert signal.getsignal(signal.SIGINT) is signal_handler
    signal.signal(signal.SIGINT, before)


def _slow(row: dict[str, Any]) -> list[dict[str, Any]]:
    if row["k"] == 99:
        time.sleep(3)
    return [row]


def _interrupt_after(seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


def test_an_interrupted_commit_and_an_interrupted_dataframe(
    spark: SparkSession, cancelled: list[int]
) -> None:
    flow = rr.Dataflow("interrupted")
    rows = flow.input("a", {"k": pl.Int64})
    flow.output("n", rows.flat_map(_slow, {"k": pl.Int64}).group_by("k").count("n"))
    with flow.run(on=spark, workers=1, timeout=240) as run:
        run.insert("a", [(99,)])
        timer = _interrupt_after(0.5)
        with pytest.raises(KeyboardInterrupt):
            run.commit()
        timer.join()
        assert run.status()["commit"]["outcome"] == "refused"
        frame = spark.range(1).selectExpr("id k").mapInArrow(_late, "k long")
        timer = _interrupt_after(1.0)
        with pytest.raises(KeyboardInterrupt):
            run.insert("a", frame)
        timer.join()
        run.insert("a", [(7,)])
        run.commit()
        assert run.read("n").rows() == [(7, 1)]
        assert not run.events("lost")
    assert not cancelled


def _late(batches: Any) -> Any:
    time.sleep(5)
    yield from batches
