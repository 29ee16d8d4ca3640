"""Results as DataFrames: whole, as of an epoch, filtered where the rows are, and as streams of changes."""

from __future__ import annotations

import datetime
import os
import random
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import riverrun as rr
from riverrun.errors import RiverrunError
from tests.spark.programs import Rows, change, counting, eventually, upserting


def source(spark: SparkSession, **options: Any) -> Any:
    return spark.read.format("riverrun").options(**options)


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.collect()), key=repr)


# ---- results


def test_a_result_is_a_dataframe(spark: SparkSession) -> None:
    program, known, seed = counting(), Rows(), random.Random(11)
    with program.flow.run(on=spark, workers=2, history=10) as run:
        frames = []
        for _ in range(4):
            change(run, program, known, seed, 30)
            run.commit()
            result = run.read("out")
            frames.append((result.to_spark(), program.oracle(known)))
            assert frames[-1][0].dtypes == [("k", "bigint"), ("n", "bigint"), ("total", "bigint")]
            told = run.changes("out")
            assert rows_of(told.to_spark()) == sorted(told.rows(), key=repr)
            assert told.to_spark().columns == ["k", "n", "total", "diff"]
        for epoch, (frame, expected) in enumerate(frames):  # each as of its epoch
            assert rows_of(frame) == sorted(expected, key=repr)
            assert rows_of(source(spark, epoch=epoch).load("out")) == rows_of(frame)
            as_changes = source(spark, changes="true", epoch=epoch).load("out")
            assert as_changes.columns == ["k", "n", "total", "diff", "epoch"]
            told = run.changes("out", epoch).rows()
            assert rows_of(as_changes) == sorted(((*row, epoch) for row in told), key=repr)
            assert rows_of(as_changes.select("epoch", "diff").distinct()) == sorted(
                {(epoch, row[-1]) for row in told}, key=repr
            )
        assert rows_of(source(spark).load("out")) == rows_of(frames[-1][0])
        assert frames[0][0].join(frames[-1][0], "k").count() > 0


@pytest.mark.parametrize("recovery", ["replace", pytest.param("spread", marks=pytest.mark.soak)])
def test_a_dataframe_outlives_the_workers_that_lend_its_rows(
    spark: SparkSession, tmp_path: Path, recovery: str
) -> None:
    program, known, seed = counting(), Rows(), random.Random(17)
    path = str(tmp_path / "run")
    with program.flow.run(on=spark, workers=2, checkpoint=path, recovery=recovery) as run:
        for _ in range(3):
            change(run, program, known, seed, 200)
            run.commit()
        whole, changed = run.read("out"), run.changes("out")
        told = sorted(changed.rows(), key=repr)
        frames = whole.to_spark(), changed.to_spark(), source(spark).load("out")
        for frame in frames:
            victim = next(each["pid"] for each in run.status()["processes"] if each)
            os.kill(victim, signal.SIGKILL)
            expected = told if frame is frames[1] else sorted(program.oracle(known), key=repr)
            assert rows_of(frame) == expected
            assert eventually(lambda: run._cluster.recovered, 60)
        assert len(run.events("lost")) >= 3


def test_what_was_read_stays_with_the_shortest_history(spark: SparkSession) -> None:
    program, known, seed = counting(), Rows(), random.Random(12)
    with program.flow.run(on=spark, workers=2) as run:
        change(run, program, known, seed, 30)
        run.commit()
        frame, expected = run.read("out").to_spark(), program.oracle(known)
        live = source(spark).load("out")
        for _ in range(5):
            change(run, program, known, seed, 30)
            run.commit()
        assert rows_of(frame) == sorted(expected, key=repr)
        assert rows_of(live) == sorted(program.oracle(known), key=repr)
        with pytest.raises(PySparkException, match="only the last 1 of 6 are kept"):
            source(spark, epoch=0).load("out").collect()


def test_columns_are_chosen_by_option_or_schema(spark: SparkSession) -> None:
    with counting().flow.run(on=spark, workers=2) as run:
        run.insert("a", [(1, 5), (2, 6)])
        run.commit()
        assert rows_of(source(spark, columns="total, k").load("out")) == [(5, 1), (6, 2)]
        assert rows_of(source(spark).schema("total long").load("out")) == [(5,), (6,)]
        assert rows_of(source(spark).load("out").select("n")) == [(1,), (1,)]
        assert source(spark).load("out").where("k > 1").count() == 1
        with pytest.raises(PySparkException, match="cannot read columns w: there are: k, n, total"):
            source(spark, columns="k,w").load("out")
        with pytest.raises(PySparkException):
            source(spark).schema("k string").load("out").collect()


def test_names_that_are_taken_make_way(spark: SparkSession) -> None:
    flow = rr.Dataflow("names")
    flow.output("out", flow.input("a", {"Diff": pl.Int64, "epoch": pl.Int64}))
    with flow.run(on=spark, workers=2) as run:
        run.insert("a", [(1, 2)])
        run.commit()
        frame = source(spark, changes="true").load("out")
        assert frame.columns == ["Diff", "epoch", "diff_", "epoch_"]
        assert rows_of(frame) == [(1, 2, 1, 0)]
        assert run.changes("out").to_arrow().column_names == ["Diff", "epoch", "diff_"]


def test_types_that_spark_does_not_have_are_widened(spark: SparkSession) -> None:
    noon = datetime.datetime(2026, 7, 1, 12)
    columns: list[tuple[pa.DataType, Any, Any]] = [
        (pa.uint8(), 255, 255),
        (pa.uint16(), 65535, 65535),
        (pa.uint32(), 2**32 - 1, 2**32 - 1),
        (pa.uint64(), 2**64 - 1, 2**64 - 1),
        (pa.timestamp("ms"), noon, noon),
        (pa.timestamp("ns"), noon, noon),
        (pa.timestamp("s"), noon, noon),
        (pa.duration("ms"), datetime.timedelta(seconds=5), datetime.timedelta(seconds=5)),
        (pa.large_string(), "sea", "sea"),
        (pa.list_(pa.uint8()), [1, None], [1, None]),
        (pa.struct([("t", pa.timestamp("ms"))]), {"t": noon}, (noon,)),
    ]
    flow = rr.Dataflow("types")
    schema = pa.schema([(f"c{at}", kind) for at, (kind, _, _) in enumerate(columns)])
    flow.output("out", flow.input("a", schema))
    with flow.run(on=spark, workers=1) as run:
        run.insert("a", [tuple(value for _, value, _ in columns), (None,) * len(columns)])
        run.commit()
        for frame in (run.read("out").to_spark(), source(spark).load("out")):
            rows = [tuple(row) for row in frame.collect()]
            assert sorted(rows, key=repr) == sorted(
                [tuple(value for _, _, value in columns), (None,) * len(columns)], key=repr
            )
        here = run.read("out").to_arrow()
    from riverrun.spark.frames import of_table

    assert len(of_table(here, spark).collect()) == 2


# ---- several runs, and errors


def test_runs_are_told_apart_by_name(spark: SparkSession) -> None:
    first, second, third = counting().flow, upserting().flow, counting().flow
    with first.run(on=spark) as one, second.run(on=spark) as two:
        one.insert("a", [(1, 1)])
        two.insert("a", [(2, 2)])
        one.commit()
        two.commit()
        assert rows_of(source(spark, run="counting").load("out")) == [(1, 1, 1)]
        assert rows_of(source(spark, run="upserting").load("out")) == [(2, 2)]
        assert rows_of(one.read("out").to_spark()) == [(1, 1, 1)]
        with third.run(on=spark) as three:
            three.insert("a", [(3, 3)])
            three.commit()
            assert rows_of(source(spark, run="counting-2").load("out")) == [(3, 1, 3)]
            assert rows_of(source(spark, run="counting").load("out")) == [(1, 1, 1)]
        for options, told in (
            ({}, "which run to read: those alive are: 'counting', 'upserting'"),
            ({"run": "counting-2"}, "from run 'counting-2': those alive are"),
            ({"run": "none"}, "from run 'none': those alive are"),
        ):
            with pytest.raises(PySparkException, match=told):
                source(spark, **options).load("out")
        two.close()
        assert rows_of(source(spark).load("out")) == [(1, 1, 1)]
    with pytest.raises(PySparkException, match="those alive are: none"):
        source(spark).load("out")


def test_what_cannot_be_read_is_told(spark: SparkSession) -> None:
    with counting().flow.run(on=spark) as run:
        with pytest.raises(PySparkException, match="no epoch is complete yet"):
            source(spark).load("out").collect()
        run.insert("a", [(1, 1)])
        run.commit()
        for load, told in (
            (lambda: source(spark).load("count"), "the outputs are: out"),
            (lambda: source(spark).load(), "not said which output"),
            (
                lambda: source(spark, epoch="yesterday").load("out"),
                "that is the number of an epoch",
            ),
            (lambda: source(spark, epoch=7).load("out").collect(), "the last complete one is 0"),
            (lambda: source(spark, lent="999").load(), "others were read since"),
        ):
            with pytest.raises(PySparkException, match=told) as refused:
                load()
            first = str(refused.value).splitlines()[0]
            assert told in first, "what we say comes first"
            assert "Traceback" not in str(refused.value)
            assert "At: " not in str(refused.value), "no line of the user's was there"
            assert "Hint: " in str(refused.value)
        frame = run.read("out").to_spark()
    with pytest.raises(PySparkException):
        frame.collect()
    with pytest.raises(RiverrunError, match="is closed"):
        run.read("out")


def test_reads_see_one_epoch_while_commits_go_on(spark: SparkSession) -> None:
    flow = rr.Dataflow("moving")
    flow.output("out", flow.input("a", {"k": pl.Int64, "v": pl.Int64}, key="k"))
    stop = threading.Event()
    with flow.run(on=spark, workers=2) as run:

        def commit(value: int) -> None:
            run.upsert("a", pl.DataFrame({"k": range(100), "v": [value] * 100}))
            run.commit()

        def go_on() -> None:
            value = 0
            while not stop.is_set():
                value += 1
                commit(value)
                stop.wait(0.005)

        commit(0)
        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            last, seen = -1, set()
            for turn in range(8):
                frame = run.read("out").to_spark() if turn % 2 else source(spark).load("out")
                ((value, count),) = frame.groupBy("v").count().collect()
                assert count == 100
                assert value >= last
                last = value
                seen.add(value)
            assert len(seen) > 2
        finally:
            stop.set()
            thread.join()


# ---- streams of changes


class Collected:
    """What a stream of changes has brought, and whether it was right at every batch."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.results: dict[int, Counter[tuple[Any, ...]]] = {}
        self.batches: dict[str, dict[int, list[tuple[Any, ...]]]] = {}
        """By name and number: one that Spark repeats counts once."""

    def commit(self) -> None:
        self.run.commit()
        self.results[self.run.epoch] = Counter(self.run.read("out").rows())

    def start(
        self, spark: SparkSession, path: Path | None = None, name: str = "s", **how: Any
    ) -> Any:
        batches = self.batches.setdefault(name, {})

        def take(frame: DataFrame, number: int) -> None:
            rows = sorted((tuple(row) for row in frame.collect()), key=repr)
            assert batches.get(number, rows) == rows
            batches[number] = rows

        frame = spark.readStream.format("riverrun").option("changes", "true").load("out")
        writer = frame.writeStream.foreachBatch(take)
        if path is not None:
            writer = writer.option("checkpointLocation", str(path))
        return writer.trigger(**how or {"processingTime": "50 milliseconds"}).start()

    def caught_up(self, name: str = "s") -> bool:
        return self.sum(name) == self.results[max(self.results)]

    def sum(self, name: str) -> Counter[tuple[Any, ...]]:
        """All diffs added up; each batch must bring the result as of an epoch."""
        total: Counter[tuple[Any, ...]] = Counter()
        for _, batch in sorted(self.batches[name].items()):
            for *row, diff, _ in batch:
                total[tuple(row)] += diff
            if batch:
                assert (
                    Counter({row: n for row, n in total.items() if n})
                    == self.results[max(row[-1] for row in batch)]
                )
        return Counter({row: n for row, n in total.items() if n})


def test_a_stream_of_changes_adds_up_to_the_result(spark: SparkSession) -> None:
    program, known, seed = counting(), Rows(), random.Random(21)
    with program.flow.run(on=spark, workers=2) as run:
        collected = Collected(run)
        for _ in range(3):  # before it: told as one
            change(run, program, known, seed, 20)
            collected.commit()
        query = collected.start(spark)
        try:
            for turn in range(6):
                change(run, program, known, seed, 20 if turn != 3 else 0)
                collected.commit()
                if turn % 2:
                    assert eventually(collected.caught_up, 40)
            assert eventually(collected.caught_up, 40)
            late = collected.start(spark, name="late")  # another one, from the start
            change(run, program, known, seed, 20)
            collected.commit()
            for name in ("s", "late"):
                assert eventually(lambda: collected.caught_up(name), 40)  # noqa: B023
            late.stop()
            change(run, program, known, seed, 20)
            collected.commit()
            assert eventually(collected.caught_up, 40)
            assert query.exception() is None
        finally:
            query.stop()
        assert program.oracle(known) == sorted(collected.sum("s").elements())


def test_a_stream_of_changes_that_is_restarted_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    program, known, seed = counting(), Rows(), random.Random(22)
    with program.flow.run(on=spark, workers=2) as run:
        collected = Collected(run)
        for turn in range(3):
            change(run, program, known, seed, 20)
            collected.commit()
            query = collected.start(spark, tmp_path / "stream")
            try:
                change(run, program, known, seed, 20)
                collected.commit()
                assert eventually(collected.caught_up), (turn, query.exception())
                assert query.exception() is None
            finally:
                query.stop()


def test_a_stream_that_is_not_of_changes_is_refused(spark: SparkSession) -> None:
    with counting().flow.run(on=spark) as run:
        run.commit()
        frame = spark.readStream.format("riverrun").load("out")
        with pytest.raises(PySparkException, match="what streams is its changes") as refused:
            frame.writeStream.foreachBatch(lambda batch, number: None).start().awaitTermination(30)
        assert "Traceback" not in str(refused.value)
        assert "what streams is its changes" in str(refused.value).splitlines()[0]


def test_changes_can_be_streamed_into_another_run(spark: SparkSession) -> None:
    """Rows of one run feed another, by Spark in between."""
    first, second = counting(), rr.Dataflow("second")
    rows = second.input("rows", {"k": int, "n": int, "total": int, "diff": int, "epoch": int})
    second.output("n", rows.group_by("k").agg(n=rr.sum(pl.col("n") * pl.col("diff"))))
    known, seed = Rows(), random.Random(23)
    with first.flow.run(on=spark) as one, second.run(on=spark) as two:
        changes = spark.readStream.format("riverrun").option("changes", "true")
        query = two.stream("rows", changes.option("run", "counting").load("out"))
        try:
            for _ in range(3):
                change(one, first, known, seed, 15)
                one.commit()
            expected = [(k, n) for k, n, _ in first.oracle(known)]

            def arrived() -> bool:
                return (
                    bool(two.completed)
                    and [row for row in two.read("n").rows() if row[1]] == expected
                )

            assert eventually(arrived, 40)
        finally:
            query.stop()
