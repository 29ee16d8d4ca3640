"""Launching: workers as jobs of a session, started and stopped at any moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from riverrun.runtime.network.connection import Credentials
from riverrun.runtime.worker_process import Rendezvous
from riverrun.spark import launcher
from riverrun.spark.launcher import SparkLauncher
from riverrun.spark.session import Site
from tests.spark.programs import eventually


def idle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stands in for a worker that nobody has told to leave."""
    time.sleep(150)
    yield pa.record_batch({"why": ["it was left alone"]})


def test_a_worker_that_is_stopped_before_spark_knows_it_is_stopped(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparing, go_on = threading.Event(), threading.Event()

    def task(*given: Any, ship: bool) -> Any:
        preparing.set()
        assert go_on.wait(20)
        return idle

    monkeypatch.setattr(launcher, "task", task)
    over: list[tuple[int, str]] = []
    one = SparkLauncher(Site(spark, False, True, "127.0.0.1"), "idle", lambda *given: None)  # type: ignore[arg-type]
    one.open(Rendezvous("tcp://127.0.0.1:9", Credentials()), lambda *said: over.append(said))
    one.start(1)
    assert preparing.wait(20)
    one.stop(1)
    time.sleep(0.3)
    go_on.set()
    assert eventually(lambda: len(over) == 1, 60)
    one.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("riverrun-worker-1")]
