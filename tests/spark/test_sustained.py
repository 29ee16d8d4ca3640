"""Streams, readers and all others get on while workers, or whole executors, are killed every few seconds."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.chaos.besieged import parent
from tests.chaos.sustained import Sustained
from tests.chaos.test_sustained import say
from tests.soaking import SOAK, draws, first_seed
from tests.spark.standalone import Standalone, session


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(draws(1, soak=2)))
def test_everybody_gets_on_in_a_local_session(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    path = str(tmp_path / "run")
    report = Sustained(first_seed() + seed, draws(20, soak=120), path, spark=spark, say=say).go()
    print(report)
    assert report.kills >= 2
    assert report.finished["stream"] >= 3


def executors(workers: list[int]) -> list[int]:
    """The JVMs that have these workers."""
    found = set()
    for worker in workers:
        with suppress(OSError, ValueError):  # gone in between
            found.add(parent(parent(worker)))
    return sorted(found)


def live(seed: int, seconds: float, path: str) -> None:
    """What a driver does on the cluster: its executors are killed, one after the other."""
    with session(spark_log_level="OFF") as spark:
        report = Sustained(
            seed, seconds, path, spark=spark, interval=10.0, least=2, kills=2, stall=240.0,
            say=lambda text: print(text, flush=True), victims=lambda workers: executors(workers)[:1],
        ).go()  # fmt: skip
    print(json.dumps(vars(report)), flush=True)


@pytest.mark.cluster
@pytest.mark.soak
@pytest.mark.skipif(SOAK == "sample", reason="make test-cluster runs it, and a whole soak")
def test_everybody_gets_on_while_executors_are_killed(tmp_path: Path) -> None:
    seconds = draws(30, soak=120)
    with Standalone(cores=4) as cluster:
        said = cluster.run(
            live, first_seed(), seconds, str(tmp_path / "run"), timeout=seconds + 500
        )
    report = json.loads(said.strip().splitlines()[-1])
    print(report)
    assert report["kills"] >= 2
    assert report["finished"]["stream"] >= 2
