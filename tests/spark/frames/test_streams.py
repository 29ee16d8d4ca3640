"""Streaming DataFrames as input: every batch an epoch, each counted once, whatever is repeated."""

from __future__ import annotations

import math
import os
import re
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType, _parse_datatype_string

import riverrun as rr
from riverrun import retry
from riverrun.errors import OperatorFailed, PlanError, SchemaError, TransportError
from riverrun.runtime.codec.plain import describe, pack
from riverrun.spark import ingest
from riverrun.spark.streams import in_brief
from tests.spark.programs import counting, eventually, joining

DDL = "k long, v long"


def files(spark: SparkSession, folder: Path, each: int = 1) -> DataFrame:
    """A stream of the JSON files in a folder, so many in a batch."""
    reader = spark.readStream.schema(DDL).option("maxFilesPerTrigger", each)
    return reader.json(str(folder))


def put(folder: Path, name: str, rows: list[tuple[int, int]]) -> None:
    folder.mkdir(exist_ok=True)
    text = "".join(f'{{"k": {k}, "v": {v}}}\n' for k, v in rows)
    scratch = folder / f".{name}"  # Spark does not look at those with a dot
    scratch.write_text(text)
    at = time.time() - 1000 + len(list(folder.iterdir()))  # Spark takes the oldest first
    os.utime(scratch, (at, at))
    scratch.rename(folder / f"{name}.json")


def counts(rows: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    return counting().oracle({"a": Counter(rows)})


def finish(query: Any) -> None:
    """Wait for a query that ends by itself."""
    assert query.awaitTermination(90)
    assert query.exception() is None


class Grabbed:
    """Stands in for a streaming DataFrame: keeps the function that Spark would call."""

    isStreaming = True  # noqa: N815

    def __init__(self, checkpoint: list[str]) -> None:
        self.checkpoint = checkpoint

    @property
    def writeStream(self) -> Grabbed:  # noqa: N802
        return self

    def foreachBatch(self, function: Any) -> Grabbed:  # noqa: N802
        self.take = function
        return self

    def queryName(self, name: str) -> Grabbed:  # noqa: N802
        return self

    def option(self, name: str, value: str) -> Grabbed:
        assert name == "checkpointLocation"
        self.checkpoint.append(value)
        return self

    def trigger(self, **options: Any) -> Grabbed:
        return self

    def start(self) -> Grabbed:
        return self

    isActive = False  # noqa: N815

    @property
    def sparkSession(self) -> SparkSession:  # noqa: N802
        active = SparkSession.getActiveSession()
        assert active is not None
        return active

    @property
    def schema(self) -> StructType:
        return _parse_datatype_string(DDL)  # type: ignore[return-value]


def test_every_batch_is_an_epoch(spark: SparkSession, tmp_path: Path) -> None:
    source, given = tmp_path / "in", []
    with counting().flow.run(on=spark, workers=2) as run:
        for n in range(3):
            rows = [(n, 1), (0, n)]
            put(source, f"{n}", rows)
            given += rows
        query = run.stream("a", files(spark, source), availableNow=True)
        finish(query)
        assert run.completed == 3
        assert run.read("out").rows() == counts(given)
        assert not query.isActive


def test_a_stream_goes_on_while_rows_come(spark: SparkSession, tmp_path: Path) -> None:
    source, given = tmp_path / "in", []
    source.mkdir()
    with counting().flow.run(on=spark, workers=2) as run:
        query = run.stream("a", files(spark, source), processingTime="50 milliseconds")
        try:
            for n in range(4):
                put(source, f"{n}", [(n, n), (7, n)])
                given += [(n, n), (7, n)]
                run.insert("a", [(9, n)])  # beside it
                run.commit()
                given.append((9, n))
                expected = counts(given)
                assert eventually(lambda: run.read("out").rows() == expected, 40)  # noqa: B023
            assert query.exception() is None
        finally:
            query.stop()
        run.insert("a", [(1, 1)])
        run.commit()
        assert run.read("out").rows() == counts([*given, (1, 1)])


def test_rates_can_be_streamed(spark: SparkSession) -> None:
    flow = rr.Dataflow("rates")
    rows = flow.input("rows", {"timestamp": pl.Datetime("us", "UTC"), "value": pl.Int64})
    flow.output("out", rows.select("value"))
    with flow.run(on=spark, workers=1) as run:
        frame = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
        query = run.stream("rows", frame, processingTime="100 milliseconds")
        assert eventually(lambda: run.completed and len(run.read("out")) > 100, 40)
        query.stop()
        found = sorted(run.read("out")["value"])
        assert found == list(range(len(found)))


def test_several_streams_feed_one_input_and_two(spark: SparkSession, tmp_path: Path) -> None:
    program = joining()
    given: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
    with program.flow.run(on=spark, workers=2) as run:
        for n in range(6):
            for folder, name in (("one", "a"), ("two", "a"), ("three", "b")):
                rows = [(n, len(folder)), (n + 1, n)]
                put(tmp_path / folder, f"{n}", rows)
                given[name] += rows
        queries = [
            run.stream("a", files(spark, tmp_path / "one"), availableNow=True),
            run.stream("a", files(spark, tmp_path / "two"), stream="other", availableNow=True),
            run.stream("b", files(spark, tmp_path / "three"), availableNow=True),
        ]
        for query in queries:
            finish(query)
        assert run.completed == 18
        expected = program.oracle({name: Counter(rows) for name, rows in given.items()})
        assert run.read("out").rows() == expected


def test_two_streams_of_one_name_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with counting().flow.run(on=spark, workers=1) as run:
        query = run.stream("a", files(spark, tmp_path / "in"))
        try:
            with pytest.raises(PlanError, match="stream=") as caught:
                run.stream("a", files(spark, tmp_path / "in"))
            assert caught.value.code == "spark.stream"
        finally:
            query.stop()
        finish(run.stream("a", files(spark, tmp_path / "in"), availableNow=True))


def test_streams_upsert_and_delete(spark: SparkSession, tmp_path: Path) -> None:
    flow = rr.Dataflow("latest")
    flow.output("out", flow.input("a", {"k": pl.Int64, "v": pl.Int64}, key="k"))
    put(tmp_path / "up", "0", [(1, 1), (2, 1), (3, 1)])
    put(tmp_path / "up", "1", [(1, 2)])
    put(tmp_path / "down", "0", [(2, 99)])
    with flow.run(on=spark, workers=2) as run:
        up = files(spark, tmp_path / "up")
        finish(run.stream("a", up, mode="upsert", availableNow=True))
        down = files(spark, tmp_path / "down")
        finish(run.stream("a", down, mode="delete", stream="gone", availableNow=True))
        assert run.read("out").rows() == [(1, 2), (3, 1)]


def test_what_cannot_be_streamed_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    frame = files(spark, tmp_path / "in")
    with counting().flow.run(on=spark, workers=1) as run:
        with pytest.raises(PlanError, match="no streaming DataFrame"):
            run.stream("a", spark.range(3).selectExpr("id k", "id v"))
        with pytest.raises(PlanError, match="one of: insert, upsert, delete"):
            run.stream("a", frame, mode="append")
        with pytest.raises(PlanError, match="the inputs are: a"):
            run.stream("b", frame)
        with pytest.raises(SchemaError, match="declared without a key"):
            run.stream("a", frame, mode="upsert")
        with pytest.raises(SchemaError, match="'v'"):
            run.stream("a", frame.select("k"))
        assert not spark.streams.active
    with counting().flow.run() as here, pytest.raises(PlanError, match="run on Spark"):
        here.stream("a", frame)


# ---- repetitions


def test_a_batch_that_comes_again_is_recognised(spark: SparkSession, tmp_path: Path) -> None:
    def batch(*keys: int) -> DataFrame:
        return spark.createDataFrame([(key, 1) for key in keys], DDL)

    def query(name: str) -> None:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", name)

    path = tmp_path / "run"
    try:
        with counting().flow.run(on=spark, workers=2, checkpoint=path) as run:
            seen: list[str] = []
            take = run.stream("a", Grabbed(seen)).take
            assert seen == [f"{path}/streams/a"]
            query("one")
            for number, keys in ((0, (1, 2)), (1, (3,)), (1, (3,)), (0, (1, 2)), (2, (4,))):
                take(batch(*keys), number)
            assert run.completed == 3
            assert run.read("out").rows() == counts([(k, 1) for k in (1, 2, 3, 4)])
            query("two")  # another query is not a repetition
            take(batch(1), 0)
            assert run.completed == 4
            query("one")  # its folder is in use again
            take(batch(4), 2)
            assert run.completed == 4
            query("two")
        with counting().flow.run(on=spark, workers=1, checkpoint=path) as run:
            take = run.stream("a", Grabbed([]), checkpoint=tmp_path / "mine").take
            take(batch(1), 0)  # logged before
            assert run.completed == 4
            take(batch(5), 1)
            query("one")
            take(batch(4), 2)
            assert run.completed == 5
            expected = counts([(1, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1)])
            assert run.read("out").rows() == expected
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)


def test_a_query_that_is_restarted_goes_on_with_a_resumed_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, path, given = tmp_path / "in", tmp_path / "run", []
    for turn in range(3):
        with counting().flow.run(on=spark, workers=2, checkpoint=path, every=2) as run:
            for n in range(3):
                rows = [(n, turn), (turn, n)]
                put(source, f"{turn}-{n}", rows)
                given += rows
            finish(run.stream("a", files(spark, source), availableNow=True))
            assert run.read("out").rows() == counts(given)
            assert run.completed == 3 * (turn + 1)
        # Spark forgets that it committed the last batch, as when the driver dies before it could.
        commits = sorted((path / "streams" / "a" / "commits").glob("[0-9]*"))
        commits[-1].unlink()
        for left in (path / "streams" / "a" / "commits").glob(f".{commits[-1].name}*"):
            left.unlink()
    with counting().flow.run(on=spark, workers=1, checkpoint=path) as run:
        query = run.stream("a", files(spark, source), availableNow=True)
        finish(query)
        assert run.read("out").rows() == counts(given)
        assert run.completed == 9  # the last batch came again, and was left out


def test_a_refused_batch_fails_the_query_and_comes_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    allow = tmp_path / "allowed"

    def check(frame: pl.DataFrame) -> pl.DataFrame:
        if (frame["k"] == 13).any() and not allow.exists():
            raise ValueError("no thirteen here")
        return frame

    flow = rr.Dataflow("checking")
    rows = flow.input("a", {"k": pl.Int64, "v": pl.Int64})
    checked = rows.map_batches(check, {"k": pl.Int64, "v": pl.Int64})
    flow.output("out", checked.group_by("k").count())
    source = tmp_path / "in"
    for n, k in enumerate((1, 13, 2)):
        put(source, f"{n}", [(k, n)])
    with flow.run(on=spark, workers=2, checkpoint=tmp_path / "run") as run:
        query = run.stream("a", files(spark, source), availableNow=True)
        with pytest.raises(Exception, match="no thirteen here"):
            query.awaitTermination(60)
        assert not query.isActive
        assert run.read("out").rows() == [(1, 1)]
        run.insert("a", [(1, 1)])  # the run goes on
        run.commit()
        assert run.read("out").rows() == [(1, 2)]
        allow.touch()
        finish(run.stream("a", files(spark, source), availableNow=True))
        assert run.read("out").rows() == [(1, 2), (2, 1), (13, 1)]


class Losing:
    """Tasks that find workers lost, so many times in a row; then those that hand rows in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: float) -> None:
        self.times, self.calls = times, 0
        self._task = ingest.task
        monkeypatch.setattr(ingest, "task", self)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls > self.times:
            return self._task(*arguments, **named)
        lost = pack(describe(TransportError("transport.moved", "a worker was lost", hint="")))

        def fail(batches: Any) -> Any:
            import pyarrow as pa

            list(batches)
            yield pa.record_batch({"told": [lost]})

        return fail


def test_a_stream_outlives_more_losses_than_anybody_counts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "DELAYS", (0.01,))
    losing = Losing(monkeypatch, 12)
    put(tmp_path / "in", "0", [(1, 1), (2, 5)])
    with counting().flow.run(on=spark, workers=1) as run:
        query = run.stream("a", files(spark, tmp_path / "in"), availableNow=True)
        finish(query)
        assert losing.calls == 13
        assert run.read("out").rows() == counts([(1, 1), (2, 5)])


def test_a_stream_that_gets_nowhere_ends_at_the_deadline_and_says_how_often_it_tried(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "DEADLINE", 1.0)
    Losing(monkeypatch, math.inf)
    put(tmp_path / "in", "0", [(1, 1)])
    with counting().flow.run(on=spark, workers=1) as run:
        query = run.stream("a", files(spark, tmp_path / "in"), availableNow=True)
        with pytest.raises(Exception, match=r"cannot insert into 'a': tried \d+ times in"):
            finish(query)
        assert run.status()["closed"] is None


def test_a_stream_that_is_stopped_while_it_tries_again_stops(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing = Losing(monkeypatch, math.inf)
    put(tmp_path / "in", "0", [(1, 1)])
    with counting().flow.run(on=spark, workers=1) as run:
        query = run.stream("a", files(spark, tmp_path / "in"))
        assert eventually(lambda: losing.calls > 3, 60)
        begun = time.monotonic()
        query.stop()
        assert not query.isActive
        assert time.monotonic() - begun < 240  # and not the five minutes of the deadline
        run.insert("a", [(2, 2)])
        run.commit()
        assert run.read("out").rows() == counts([(2, 2)])


def test_a_stream_that_is_stopped_while_its_rows_are_sent_stops_cleanly(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark looks for the interrupt in what the batch failed with, and not in a trace as long as its stack."""

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        Path(begun).touch()
        time.sleep(30)
        yield from batches

    begun = str(tmp_path / "begun")
    put(tmp_path / "in", "0", [(1, 1)])
    with counting().flow.run(on=spark, workers=1) as run:
        for _ in range(2):
            query = run.stream("a", files(spark, tmp_path / "in").mapInArrow(slow, DDL))
            assert eventually(lambda: Path(begun).exists(), 60)
            query.stop()
            Path(begun).unlink()
            assert not query.isActive
            assert query.exception() is None
    told = [
        "".join(traceback.format_exception(record.exc_info[1]))
        for record in caplog.records
        if record.name.startswith("py4j") and record.exc_info and record.exc_info[1]
    ]  # what Py4J gives to Spark
    assert told
    for text in told:
        _, calls, rest = text.partition("Py4JJavaError: An error occurred while calling")
        # the thread that waits for the job is interrupted, or the job is cancelled first
        assert "InterruptedException" in rest if calls else "SPARK_JOB_CANCELLED" in text
        assert len(rest) < 1000


def test_what_fails_a_batch_is_told_without_a_trace_of_java() -> None:
    def failed(trace: str) -> Exception:
        try:
            try:
                raise Py4JJavaError(
                    f"An error occurred while calling o7.collectToPython.\n: {trace}"
                )
            except Exception as cause:
                raise OperatorFailed(
                    "spark.dataframe", "cannot insert: the DataFrame failed"
                ) from cause
        except OperatorFailed as error:
            return error

    class Py4JJavaError(Exception):
        __module__ = "py4j.protocol"
        __qualname__ = "Py4JJavaError"

    trace = "\n".join(["\tat org.apache.spark.Something"] * 3000)
    brief = in_brief(failed(f"org.apache.spark.SparkException: away\n{trace}"), "take it")
    assert isinstance(brief, OperatorFailed)
    assert brief.code == "spark.dataframe"
    stopped = in_brief(failed(f"java.lang.InterruptedException\n{trace}"), "take it")
    assert re.search(
        r"py4j.protocol.Py4JJavaError: An error occurred while calling((.|\r\n|\r|\n)*)"
        r"(java.lang.InterruptedException)",
        str(stopped),
    )
    assert len(str(stopped)) < 500
    bare = in_brief(failed("java.lang.IllegalStateException: no\n" + trace).__cause__, "take it")  # type: ignore[arg-type]
    assert isinstance(bare, OperatorFailed)
    assert "java.lang.IllegalStateException: no" in str(bare)
    assert len(str(bare)) < 500
    assert in_brief(ValueError("of another kind"), "take it") is None


def test_a_stream_ends_when_its_run_does(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    put(source, "0", [(1, 1)])
    run = counting().flow.run(on=spark, workers=1)
    query = run.stream("a", files(spark, source), processingTime="50 milliseconds")
    assert eventually(lambda: run.completed == 1, 30)
    run.close()
    assert not query.isActive
    assert query.exception() is None
