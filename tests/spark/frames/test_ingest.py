"""DataFrames as input: what Spark's tasks hand to workers counts once, whole or not at all."""

from __future__ import annotations

import datetime
import json
import random
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import riverrun as rr
from riverrun.errors import OperatorFailed, PlanError, RiverrunError, SchemaError
from riverrun.rows import commands
from riverrun.rows.commands import InputRows
from riverrun.spark import ingest
from riverrun.spark.frames import of_table
from tests.spark.programs import Rows, counting, eventually, joining


def copying(schema: Any, **options: Any) -> rr.Dataflow:
    """What goes in comes out."""
    flow = rr.Dataflow("copying")
    flow.output("out", flow.input("a", schema, **options))
    return flow


def parcels(run: Any) -> int:
    """How many parcels the workers of a run hold."""
    cluster = run._cluster
    return sum(answer["parcels"] for _, answer in cluster._questions.ask_all("stats"))


# ---- whole DataFrames


def test_dataframes_are_inserted_and_deleted(spark: SparkSession) -> None:
    program = counting()
    with program.flow.run(on=spark, workers=2) as run:
        frame = spark.range(0, 1000, numPartitions=7).selectExpr("id % 10 k", "id v")
        rows = [(n % 10, n) for n in range(1000)]
        run.insert("a", frame)
        run.insert("a", [(3, 5)])
        run.insert("a", frame)
        assert run.status()["waiting_rows"] == {"a": 2001}
        run.commit()
        known: Rows = {"a": Counter([*rows, *rows, (3, 5)])}
        assert run.read("out").rows() == program.oracle(known)
        run.delete("a", frame.where("v < 700"))
        run.delete("a", frame.repartition(3))
        run.commit()
        for row in rows:
            known["a"][row] -= 2 if row[1] < 700 else 1
        known["a"] = +known["a"]
        assert run.read("out").rows() == program.oracle(known)


def test_a_dataframe_may_be_empty_or_have_empty_partitions(spark: SparkSession) -> None:
    with counting().flow.run(on=spark, workers=2) as run:
        frame = spark.range(0, 100, numPartitions=8).selectExpr("id k", "id v")
        run.insert("a", frame.where("false"))
        assert run.commit().epoch == 0
        assert run.read("out").rows() == []
        run.insert("a", frame.where("k = 50"))
        run.delete("a", spark.createDataFrame([], "k long, v long"))
        run.commit()
        assert run.read("out").rows() == [(50, 1, 50)]


def test_columns_go_by_name(spark: SparkSession) -> None:
    with counting().flow.run(on=spark) as run:
        run.insert("a", spark.createDataFrame([(7, 1)], "v long, k int"))
        run.commit()
        assert run.read("out").rows() == [(1, 1, 7)]


UTC = datetime.UTC
TYPES: list[tuple[str, pa.DataType, list[Any]]] = [
    ("boolean", pa.bool_(), [True, False]),
    ("byte", pa.int8(), [-128, 127]),
    ("short", pa.int16(), [-32768, 32767]),
    ("int", pa.int32(), [-(2**31), 2**31 - 1]),
    ("long", pa.int64(), [-(2**63), 2**63 - 1]),
    ("float", pa.float32(), [0.5, float("inf")]),
    ("double", pa.float64(), [1e300, -0.1]),
    ("string", pa.string(), ["", "blåbær"]),
    ("binary", pa.binary(), [b"", b"\x00\xff"]),
    ("date", pa.date32(), [datetime.date(1, 1, 1), datetime.date(2026, 2, 28)]),
    (
        "timestamp",
        pa.timestamp("us", "UTC"),
        [
            datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
            datetime.datetime(2026, 7, 1, 12, tzinfo=UTC),
        ],
    ),
    ("timestamp_ntz", pa.timestamp("us"), [datetime.datetime(2026, 7, 1, 12, 0, 0, 1)]),
    ("decimal(20,3)", pa.decimal128(20, 3), [Decimal("-12345678901234567.891"), Decimal("0.001")]),
    ("interval day to second", pa.duration("us"), [datetime.timedelta(days=-3, microseconds=7)]),
    ("array<long>", pa.list_(pa.int64()), [[], [1, None, 3]]),
    ("array<array<string>>", pa.list_(pa.list_(pa.string())), [[["a"], []], [None]]),
    (
        "struct<x:int,y:array<double>>",
        pa.struct([("x", pa.int32()), ("y", pa.list_(pa.float64()))]),
        [{"x": 1, "y": [0.5]}, {"x": None, "y": None}],
    ),
]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
def test_every_type_that_both_know_goes_in_and_out(spark: SparkSession, zone: str) -> None:
    schema = pa.schema([(f"c{at}", kind) for at, (_, kind, _) in enumerate(TYPES)])
    declared = ", ".join(f"c{at} {told}" for at, (told, _, _) in enumerate(TYPES))
    rows = [
        tuple(
            values[n % len(values)] if (n + at) % 3 else None
            for at, (_, _, values) in enumerate(TYPES)
        )
        for n in range(6)
    ]
    given = pa.table(list(map(pa.array, zip(*rows, strict=True), schema.types)), schema=schema)
    doubled = texts(as_rows(given) * 2)
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = spark.createDataFrame(given, declared)
        assert texts(as_rows(in_utc(frame.toArrow()))) == texts(as_rows(given))
        with copying(schema).run(on=spark, workers=2) as run:
            run.insert("a", frame)
            run.insert("a", rows)
            run.commit()
            assert texts(run.read("out").rows()) == doubled
            out = run.read("out").to_spark()
            assert out.dtypes == frame.dtypes
            assert texts(as_rows(in_utc(out.toArrow()))) == doubled
            local = of_table(run.read("out").to_arrow(), spark)
            assert local.dtypes == frame.dtypes
            assert texts(as_rows(in_utc(local.toArrow()))) == doubled
            assert out.exceptAll(frame).count() == len(rows)
            run.delete("a", out)
            run.commit()
            assert run.read("out").rows() == []
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def in_utc(table: pa.Table) -> pa.Table:
    """The same instants: Spark shows them in the zone of the session."""
    utc = pa.timestamp("us", "UTC")
    return table.cast(
        pa.schema(
            [
                field.with_type(utc) if getattr(field.type, "tz", None) else field
                for field in table.schema
            ]
        )
    )


def texts(rows: list[tuple[Any, ...]]) -> list[str]:
    """Rows that may hold anything, in some order."""
    return sorted(map(repr, rows))


def as_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_nulls_are_values(spark: SparkSession) -> None:
    with counting().flow.run(on=spark, workers=2) as run:
        run.insert("a", spark.createDataFrame([(None, 1), (1, None), (None, 2)], "k long, v long"))
        run.commit()
        found = {row["k"]: (row["n"], row["total"]) for row in run.read("out").to_dicts()}
        assert found[None] == (2, 3)
        assert found[1][0] == 1


# ---- inputs with a key


def test_upserts_apply_in_the_order_in_which_they_were_given(spark: SparkSession) -> None:
    def frame(value: int, keys: range) -> Any:
        listed = spark.range(keys.start, keys.stop, numPartitions=4)
        return listed.selectExpr("id k", f"cast({value} as long) v")

    with copying({"k": pl.Int64, "v": pl.Int64}, key="k").run(on=spark, workers=2) as run:
        run.upsert("a", [(1, 0), (2, 0)])
        run.upsert("a", frame(1, range(10)))
        run.upsert("a", [(3, 2)])
        run.delete("a", frame(0, range(4, 6)).select("k"))
        run.upsert("a", frame(3, range(5, 6)))
        run.delete("a", [(6,)])
        run.commit()
        expected = dict.fromkeys(range(10), 1) | {3: 2, 5: 3}
        del expected[4], expected[6]
        assert dict(run.read("out").rows()) == expected

        run.delete("a", frame(99, range(8, 20)))  # whole rows will do: the key counts
        run.upsert("a", frame(4, range(8, 9)))
        run.upsert("a", [(8, 5)])
        run.commit()
        del expected[9]
        assert dict(run.read("out").rows()) == expected | {8: 5}


def test_of_equal_keys_in_one_dataframe_the_last_counts(spark: SparkSession) -> None:
    with copying({"k": pl.Int64, "v": pl.Int64}, key="k").run(on=spark, workers=2) as run:
        run.upsert("a", spark.range(0, 1000, numPartitions=5).selectExpr("id % 3 k", "id v"))
        run.commit()
        assert run.read("out").rows() == [(0, 999), (1, 997), (2, 998)]


def test_a_null_key_is_refused(spark: SparkSession) -> None:
    with copying({"k": pl.Int64, "v": pl.Int64}, key="k").run(on=spark, workers=2) as run:
        with pytest.raises(SchemaError):
            run.upsert("a", spark.createDataFrame([(1, 1), (None, 1)], "k long, v long"))
        run.upsert("a", [(2, 2)])
        run.commit()
        assert run.read("out").rows() == [(2, 2)]


# ---- what does not fit, or fails


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (["id k"], "v"),
        (["id k", "id v", "id w"], "w"),
        (["id k", "cast(id as string) v"], "v"),
        (["id k", "cast(id as double) v"], "v"),
        (["id k", "array(id) v"], "v"),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_anything_runs(
    spark: SparkSession, columns: list[str], told: str
) -> None:
    ran = spark.sparkContext.accumulator(0)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ran.add(1)
        yield from batches

    frame = spark.range(10).mapInArrow(count, "id long").selectExpr(*columns)
    with counting().flow.run(on=spark, workers=1) as run:
        for act, word in ((run.insert, "insert into"), (run.delete, "delete from")):
            with pytest.raises(SchemaError, match=f"cannot {word} 'a'") as caught:
                act("a", frame)
            assert repr(told) in caught.value.message
        with pytest.raises(SchemaError, match="declared without a key"):
            run.upsert("a", frame)
        with pytest.raises(PlanError, match="the inputs are: a"):
            run.insert("b", frame)
        assert ran.value == 0
        run.commit()
        assert run.read("out").rows() == []


def test_a_dataframe_that_fails_halfway_applies_nothing(spark: SparkSession) -> None:
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if 777 in batch["k"].to_pylist():
                yield batch.slice(0, batch.num_rows // 2)
                raise ValueError("seven hundred and seventy-seven")
            yield batch

    frame = spark.range(0, 1000, numPartitions=5).selectExpr("id k", "id v")
    with counting().flow.run(on=spark, workers=2) as run:
        run.insert("a", [(1, 1)])
        with pytest.raises(OperatorFailed, match="nothing of it is applied") as caught:
            run.insert("a", frame.mapInArrow(fail, "k long, v long"))
        assert caught.value.code == "spark.dataframe"
        assert "seven hundred and seventy-seven" in caught.value.message
        assert caught.value.__cause__ is not None
        assert eventually(lambda: parcels(run) == 0)
        run.commit()
        assert run.read("out").rows() == [(1, 1, 1)]
        run.insert("a", frame)
        run.commit()
        assert len(run.read("out")) == 1000


def test_a_task_that_is_retried_neither_doubles_nor_loses_a_row(
    printed: dict[str, str], sessions_folder: Path
) -> None:
    values_json, held = printed["retried"].splitlines()
    assert sorted(json.loads(values_json)) == sorted([*range(400), *range(400)])
    marks = {mark.name for mark in (sessions_folder / "marks").iterdir()}
    assert marks >= {"1-0", "1-1", "3-0", "3-1"}
    assert int(held) <= 8  # those of the last epoch: four tasks, two workers


def test_rows_of_an_attempt_that_nobody_names_do_not_count(spark: SparkSession) -> None:
    """What speculation does, by hand: two attempts hand the same rows in, one is named."""
    import cloudpickle

    from riverrun.runtime.codec.plain import unpack
    from riverrun.spark import ingest

    with copying({"n": pl.Int64}).run(on=spark, workers=2) as run:
        cluster = run._cluster.frames
        target = run._inputs["a"].target("insert into")
        name = cluster.new_upload()
        order = ingest._TaskOrder(target, name, cluster.address, cluster.credentials)
        batches = [pa.record_batch({"n": [1, 2, 3]}), pa.record_batch({"n": [4, 5]})]
        told = [ingest._send(order, iter(batches), 0, attempt) for attempt in (11, 12)]
        assert [sum(parcel.rows for parcel in each) for each in told] == [5, 5]
        assert not {p.name for p in told[0]} & {p.name for p in told[1]}
        cluster.forget_upload(name, [parcel.name for parcel in told[1]])
        run._inputs["a"].add_parcels(0, told[1])
        run.commit()
        assert sorted(run.read("out")["n"]) == [1, 2, 3, 4, 5]
        (late,) = ingest.send(cloudpickle.dumps(order), iter(batches))
        assert unpack(late["outcome"][0].as_py())["code"] == "transport.late"
        assert eventually(lambda: parcels(run) <= 2)


def test_rollback_drops_what_was_handed_in(spark: SparkSession) -> None:
    with counting().flow.run(on=spark, workers=2) as run:
        run.insert("a", spark.range(0, 1000, numPartitions=4).selectExpr("id k", "id v"))
        run.insert("a", [(1, 1)])
        assert parcels(run) > 0
        run.rollback()
        assert run.status()["waiting_rows"] == {"a": 0}
        assert eventually(lambda: parcels(run) == 0)
        run.insert("a", spark.range(3).selectExpr("id k", "id v"))
        run.commit()
        assert len(run.read("out")) == 3
        run.commit()
        assert eventually(lambda: parcels(run) == 0)


def test_a_run_in_this_process_takes_dataframes(spark: SparkSession) -> None:
    frame = spark.range(0, 10, numPartitions=3).selectExpr("id k", "id * 2 v")
    with copying({"k": pl.Int64, "v": pl.Int64}, key="k").run() as run:
        run.upsert("a", frame)
        run.delete("a", frame.where("k > 2").select("k"))
        run.upsert("a", frame.where("k = 7"))
        run.commit()
        assert run.read("out").rows() == [(0, 0), (1, 2), (2, 4), (7, 14)]
        assert sorted(map(tuple, run.read("out").to_spark().collect())) == run.read("out").rows()
        with pytest.raises(SchemaError, match="cannot insert into 'a'"):
            run.insert("a", frame.select("k"))
        with pytest.raises(PlanError, match="run on Spark"):
            run.stream("a", frame)


def test_threads_hand_dataframes_in_at_once(spark: SparkSession) -> None:
    from concurrent.futures import ThreadPoolExecutor

    program = joining()
    with program.flow.run(on=spark, workers=2) as run, ThreadPoolExecutor(4) as threads:
        done = [
            threads.submit(
                run.insert,
                "ab"[at % 2],
                spark.range(0, 50).selectExpr("id % 5 k", f"id + {at} v"),
            )
            for at in range(6)
        ]
        for each in done:
            each.result()
        run.commit()
        assert len(run.read("out")) == 5 * 30 * 30


def test_dataframes_survive_a_resume(spark: SparkSession, tmp_path: Path) -> None:
    program, source = counting(), random.Random(7)
    known: Rows = {"a": Counter()}
    for turn in range(3):
        with program.flow.run(on=spark, workers=1 + turn % 2, checkpoint=tmp_path, every=2) as run:
            if turn:
                assert run.read("out").rows() == program.oracle(known)
            for _ in range(3):
                step = source.randrange(1, 9)
                run.insert("a", spark.range(0, 90, step).selectExpr("id % 4 k", "id v"))
                known["a"].update((n % 4, n) for n in range(0, 90, step))
                run.commit()
                assert run.read("out").rows() == program.oracle(known)
            run.insert("a", spark.range(5).selectExpr("id k", "id v"))  # never committed
    with program.flow.run(checkpoint=tmp_path) as run:
        assert run.read("out").rows() == program.oracle(known)


def test_a_failing_epoch_of_a_dataframe_is_refused_whole(spark: SparkSession) -> None:
    def check(frame: pl.DataFrame) -> pl.DataFrame:
        if (frame["n"] == 13).any():
            raise RiverrunError("mine", "no thirteen", hint="none")
        return frame

    flow = rr.Dataflow("refusing")
    checked = flow.input("a", {"n": pl.Int64}).map_batches(check, {"n": pl.Int64})
    flow.output("out", checked)
    with flow.run(on=spark, workers=2) as run:
        run.insert("a", spark.range(0, 10, numPartitions=2).selectExpr("id n"))
        run.commit()
        run.insert("a", spark.range(10, 20, numPartitions=2).selectExpr("id n"))
        with pytest.raises(OperatorFailed, match="no thirteen"):
            run.commit()
        run.insert("a", spark.range(20, 23).selectExpr("id n"))
        run.commit()
        assert sorted(run.read("out")["n"]) == [*range(10), *range(20, 23)]


def test_commands_that_cannot_be_numbered_apart_are_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.record_batch({"k": [1, 2, 3], "v": [1, 2, 3]})
    target = ingest.Target(InputRows(rows.schema, ("k",)), False, "upsert into 'a'")
    nobody: Any = [(None, None)]
    with pytest.raises(OperatorFailed, match="partition 1048576 cannot be numbered"):
        ingest._hand_out(target, iter([rows]), 1 << 20, nobody)
    with pytest.raises(AttributeError):  # it is numbered, and nobody is there to take it
        ingest._hand_out(target, iter([rows]), (1 << 20) - 1, nobody)
    monkeypatch.setattr(commands, "PARTITION", 2)
    with pytest.raises(OperatorFailed, match="partition 0 cannot be numbered"):
        ingest._hand_out(target, iter([rows]), 0, nobody)


def test_an_enum_is_text_to_spark_and_keeps_its_order(spark: SparkSession) -> None:
    level = pl.Enum(["low", "mid", "high"])
    flow = rr.Dataflow("levels")
    rows = flow.input("rows", {"n": pl.Int64, "e": level, "l": pl.List(level)})
    keyed = flow.input("keyed", {"e": level, "n": pl.Int64}, key="e")
    flow.output("rows", rows)
    flow.output("keyed", keyed)
    flow.output("most", rows.group_by().agg(e=rr.max("e"), l=rr.max("l"), n=rr.last("n", by="e")))
    columns = "n long, e string, l array<string>"
    given = [(1, "low", ["high"]), (2, "high", [None]), (3, "mid", None)]
    with flow.run(on=spark, workers=2) as run:
        run.insert("rows", spark.createDataFrame(given, columns))
        run.upsert("keyed", spark.createDataFrame([("low", 1), ("mid", 2)], "e string, n long"))
        run.commit()
        run.delete("keyed", spark.createDataFrame([("low",)], "e string"))
        run.commit()
        assert run.read("keyed").rows() == [("mid", 2)]
        assert run.read("most").rows() == [("high", [None], 2)]
        assert run.read("rows").to_polars().schema["e"] == level
        frame = run.read("rows").to_spark()
        assert frame.schema.simpleString() == "struct<n:bigint,e:string,l:array<string>>"
        assert sorted(map(tuple, frame.collect())) == given
        assert [row.n for row in frame.where("e > 'low'").collect()] == [3]  # by text, as in Spark
        assert [row.n for row in frame.where("e in ('high', 'x')").collect()] == [2]
        with pytest.raises(rr.RiverrunError, match="'none'"):
            run.insert("rows", spark.createDataFrame([(1, "none", [])], columns))
