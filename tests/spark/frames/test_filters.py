"""Filters on the data source: applied where the rows are, with what Spark itself would give."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import riverrun as rr
from tests.soaking import first_seed


def fetched(frame: DataFrame) -> tuple[list[int], int]:
    """The numbers of the rows of a frame, and how many rows its scan had from the workers."""
    rows = sorted(row.n for row in frame.collect())
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    if leaves.apply(0).metrics().get("numOutputRows").isEmpty():
        return rows, 0  # nothing is scanned
    return rows, int(leaves.apply(0).metrics().get("numOutputRows").get().value())


def random_rows(seed: random.Random, count: int) -> pa.Table:
    def some(values: list[Any]) -> list[Any]:
        return [seed.choice(values) if seed.random() > 0.15 else None for _ in range(count)]

    nan = float("nan")
    days = [datetime.date(2026, 1, day) for day in range(1, 9)]
    return pa.table(
        {
            "i": pa.array(some(list(range(8))), pa.int64()),
            "s": pa.array(some(["", "a", "ab", "ba", "Ab", "b_b", "å", "m%"]), pa.string()),
            "f": pa.array(some([nan, 0.0, -0.0, 1.5, -2.5, float("inf")]), pa.float64()),
            "b": pa.array(some([True, False]), pa.bool_()),
            "y": pa.array(some([b"", b"\x00", b"\x00\xff", b"z"]), pa.binary()),
            "u": pa.array(some([0, 1, 200, 255]), pa.uint8()),
            "d": pa.array(some(days), pa.date32()),
            "n": pa.array(range(count), pa.int64()),
        }
    )


PUSHED = [
    "i = 3", "i > 3", "i >= 3", "i < 3", "i <= 3", "i in (1, 3, 5)", "i not in (1, 3)", "i != 3", "i <=> 3",
    "i is null", "i is not null", "s = 'ab'", "s > 'ab'", "s <= 'ba'", "s like 'a%'", "s like '%b'",
    "s like '%b%'", "s in ('', 'a')", "s not like 'a%'", "s != ''", "b = true", "b = false", "f = 1.5D", "f = 0.0D",
    "f != 1.5D", "f in (0.0D, 1.5D)", "f not in (0.0D, 1.5D)", "y = X'00FF'", "u > 100", "u = 200", "u < 0",
    "u > 300", "u != 300", "u in (1, 300)", "u in (-1, 300)", "i > 1 and s like 'a%'", "i > 1 and i < 5 and b = true",
]  # fmt: skip
OTHERS = [
    "f > 1.5D", "f <= 1.5D", "f = double('NaN')", "f >= double('inf')", "not (i <=> 3)", "i > 3 or s = 'a'",
    "i + 1 > 3", "d > date'2026-01-04'", "d = date'2026-01-04'", "length(s) = 1", "false", "i is null and i = 3",
]  # fmt: skip


@pytest.fixture(scope="module")
def filtered(spark: SparkSession) -> Iterator[tuple[DataFrame, DataFrame]]:
    """The same rows, from a run and from Spark itself."""
    seed = first_seed()
    rows = random_rows(random.Random(seed), 300)
    flow = rr.Dataflow("filtered")
    flow.output("rows", flow.input("a", rows.schema))
    with flow.run(on=spark, workers=2) as run:
        run.insert("a", rows)
        run.commit()
        frame = spark.read.format("riverrun").option("pushFilters", "true").load("rows")
        own = spark.createDataFrame(rows.set_column(5, "u", rows["u"].cast(pa.int16())))
        yield frame, own


@pytest.mark.parametrize("condition", [*PUSHED, *OTHERS])
def test_a_filter_gives_what_spark_itself_gives(
    filtered: tuple[DataFrame, DataFrame], condition: str
) -> None:
    ours, own = filtered
    expected = sorted(row.n for row in own.where(condition).collect())
    found, rows = fetched(ours.where(condition))
    assert found == expected
    if condition in PUSHED:
        assert rows == len(expected)
        assert rows < 300


def test_a_frame_is_used_again_without_its_filter(filtered: tuple[DataFrame, DataFrame]) -> None:
    """Spark keeps how a frame was planned: a condition of one query must not be in the next, nor beside itself."""
    ours = filtered[0].sparkSession.read.format("riverrun").load("rows")
    assert 0 < ours.where("i > 3").count() < 300
    assert ours.count() == 300
    assert ours.where("n > 297").union(ours).count() == 302
    assert ours.crossJoin(ours.where("n > 297").selectExpr("n as m")).count() == 600
