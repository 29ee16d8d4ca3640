"""On Spark too: a changed program that goes on at once is read, followed and streamed before its first epoch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tests.run.durability.test_going_on import EPOCHS, MORE, from_scratch, play, program


def counted(frame: DataFrame, columns: int) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row)[:columns] for row in frame.collect())


def test_an_output_that_was_added_is_read_before_the_first_epoch(
    spark: SparkSession, tmp_path: Path
) -> None:
    kind = "keyed input shown"
    expected = from_scratch(kind, len(EPOCHS))
    path = str(tmp_path / "path")
    with program().run(checkpoint=path, every=None) as run:
        for epoch in EPOCHS:
            play(run, epoch)
        run.checkpoint()
    with program(kind).run(checkpoint=path, every=None, on=spark, workers=2) as run:
        for name, rows in expected.items():
            assert Counter(run.read(name).rows()) == rows
            assert counted(spark.read.format("riverrun").load(name), 2) == rows
            asked = spark.read.format("riverrun").options(epoch=run.epoch).load(name)
            assert counted(asked, 2) == rows
        streamed = tmp_path / "streamed"
        query = (
            spark.readStream.format("riverrun").option("changes", "true").load("items")
            .writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "query"))
            .start(str(streamed))
        )  # fmt: skip
        play(run, MORE)
        query.processAllAvailable()
        query.stop()
        total: Counter[tuple[Any, ...]] = Counter()
        for *row, diff, _ in spark.read.parquet(str(streamed)).collect():
            total[tuple(row)] += diff
        assert +total == from_scratch(kind, len(EPOCHS), True)["items"]
        number = run.checkpoint()
        stored = spark.read.format("riverrun").options(checkpoint=path, number=number)
        assert counted(stored.load("items"), 2) == from_scratch(kind, len(EPOCHS), True)["items"]
