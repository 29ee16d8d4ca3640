"""Benchmarks on Spark run, at sizes that say nothing, without their peers (tests/test_bench.py)."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.test_bench import check_benchmark

SIZES = {
    "campaigns": {
        "rate": 20_000,
        "updates": 200,
        "seconds": 1,
        "fast_seconds": 1,
        "peer_seconds": 1,
    },
    "barrier": {"rounds": 20, "epochs": 10},
    "cycles": {"nodes": 50, "window": 60, "seconds": 1, "fastest": 100, "repeats": 1},
    "exchange": {"chunk": 1000, "chunks": 2, "rows": 1000, "repeats": 1},
    "learning": {"examples": 20, "batches": 3, "seconds": 1, "rate": 20},
    "pagerank": {
        "edges": 2000,
        "spark_edges": 500,
        "rounds": 4,
        "pairs": 2,
        "shape_rounds": 2,
        "shape_pairs": 1,
    },
    "spark_components": {"nodes": 300, "edges": 600, "loads": 1, "singles": 3, "moved": 5},
    "spark_words": {"words": 2000, "distinct": 100, "batches": 4, "repeats": 1},
}


LONG = {"campaigns", "cycles", "learning"}  # seconds, whatever the sizes; `.ci/run` has them


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.soak if name in LONG else ()) for name in SIZES],
)
def test_a_benchmark_prints_one_line(
    name: str,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    capfd.readouterr()  # what the session said when it started
    check_benchmark(name, SIZES[name], monkeypatch, capfd)
