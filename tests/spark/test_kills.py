"""Real kills of workers that are Spark's, in brief; KILLS=200 takes longer (docs/testing.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riverrun.engine.coordinator.losses import advice_on_exit
from riverrun.spark.launcher import _said
from tests.chaos.besieged import Siege
from tests.chaos.kills import suite
from tests.chaos.loads import PROGRAMS
from tests.chaos.test_kills import LONG, drawn, held, say
from tests.soaking import draws
from tests.spark.standalone import Standalone


@pytest.mark.sampled
@pytest.mark.parametrize("program", PROGRAMS if LONG else ["components"])
def test_workers_in_a_local_session_are_killed(
    spark: SparkSession, tmp_path: Path, program: str
) -> None:
    kills = LONG or draws(2, sample=5, soak=12)
    siege = Siege(
        drawn(), kills, "spark", program, str(tmp_path / "run"), most=3, stream=True, frames=True,
        kinds=() if LONG else ("kill", "two", "replacement", "reading"),
    )  # fmt: skip
    held(suite(siege, LONG // 50, spark=spark, say=say), kills)


@pytest.mark.cluster
def test_workers_and_executors_of_a_cluster_are_killed(tmp_path: Path) -> None:
    kills = LONG or 5
    with Standalone(cores=3) as cluster:
        siege = Siege(
            drawn(), kills, "standalone", "scc", str(tmp_path / "run"), most=3,
            stream=bool(LONG), frames=True, first=("executor",),
            kinds=() if LONG else ("kill", "replacement", "reading"),
        )  # fmt: skip
        report = suite(siege, LONG // 50, cluster=cluster, say=say)
    held(report, kills)
    assert report.kills["executor"]


def test_what_spark_says_of_a_killed_worker_is_told_and_explained() -> None:
    java = (
        "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times: Lost task 0.0\n"
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider something.\n"
        "\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1136)\n"
        "Caused by: java.io.EOFException\n"
        "\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:398)\n"
    )
    said = _said(RuntimeError(java))
    assert "Python worker exited unexpectedly" in said
    assert "lack of memory" in advice_on_exit(said)
