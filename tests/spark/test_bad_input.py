"""What goes wrong while a run is on Spark: it is told, and the run goes on, or ends, but never hangs."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import polars as pl
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import riverrun as rr
from riverrun.errors import OperatorFailed, PlanError, RiverrunError, TransportError
from riverrun.runtime.network.client import Asker
from riverrun.runtime.network.connection import Credentials
from tests.soaking import first_seed
from tests.spark.programs import Program, Rows, change, counting, eventually, looping
from tests.spark.test_cluster import active


def raising() -> rr.Dataflow:
    def complain(value: int) -> int:
        if value == 13:
            raise ValueError(f"I do not like {value}")
        return value

    def careful(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(v=pl.Series([complain(value) for value in frame["v"]], dtype=int))

    flow = rr.Dataflow("raising")
    rows = flow.input("a", {"k": pl.Int64, "v": pl.Int64})
    checked = rows.map_batches(careful, {"k": pl.Int64, "v": pl.Int64})
    flow.output("out", checked.group_by("k").agg(total=rr.sum("v")))
    return flow


def test_what_a_function_raises_is_told_with_its_traceback(spark: SparkSession) -> None:
    with raising().run(on=spark, workers=2) as run:
        pids = [each["pid"] for each in run.status()["processes"]]
        run.insert("a", [(1, 1)])
        run.commit()
        for _ in range(2):
            run.insert("a", [(1, 13), (2, 2)])
            with pytest.raises(OperatorFailed) as caught:
                run.commit()
            error = caught.value
            assert "I do not like 13" in error.message
            assert "careful" in str(error)
            assert error.fields["worker"] in (0, 1)
            assert error.fields["node"] in str(error)
            assert f"process {pids[error.fields['worker']]} on" in str(error)
            told = "".join(_texts(error))
            assert "ValueError: I do not like 13" in told
            assert "in complain" in told
            assert Path(__file__).name in told
        assert run.read("out").rows() == [(1, 1)]
        run.insert("a", [(2, 5)])
        run.commit()
        assert run.read("out").rows() == [(1, 1), (2, 5)]
        assert run.status()["closed"] is None


def _texts(error: BaseException | None) -> list[str]:
    """All that an error and its causes say, and the notes on them."""
    texts = []
    while error is not None:
        texts += [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
        error = error.__cause__
    return texts


def test_a_group_a_vertex_and_an_expression_that_raise_are_told_apart(spark: SparkSession) -> None:
    class Fragile(rr.Vertex):
        def on_recv(self, port: str, rows: pl.DataFrame, time: Any) -> None:
            if (rows["v"] == 1).any():
                raise KeyError("vertex one")
            self.send(rows)

    def group(frame: pl.DataFrame) -> int:
        if (frame["v"] == 2).any():
            raise ArithmeticError("group two")
        return len(frame)

    def element(value: int) -> int:
        if value == 3:
            raise RuntimeError("element three")
        return value

    flow = rr.Dataflow("fragile")
    columns = {"k": pl.Int64, "v": pl.Int64}
    rows = flow.input("a", columns)
    flow.output("vertex", flow.vertex(Fragile, {"rows": rows}, columns, name="my vertex"))
    flow.output("group", rows.group_by("k").apply(group, {"n": pl.Int64}))
    mapped = pl.col("v").map_elements(element, return_dtype=pl.Int64)
    flow.output("element", rows.select(w=mapped))
    with flow.run(on=spark, workers=2) as run:
        for value, told in ((1, "vertex one"), (2, "group two"), (3, "element three")):
            run.insert("a", [(0, value)])
            with pytest.raises(OperatorFailed, match=told) as caught:
                run.commit()
            assert {"node", "worker"} <= set(caught.value.fields), told
        run.insert("a", [(0, 4)])
        run.commit()
        assert run.read("vertex").rows() == [(0, 4)]
        assert run.read("group").rows() == [(0, 1)]


def test_a_result_that_cannot_be_read_is_told(spark: SparkSession) -> None:
    flow = rr.Dataflow("negative")
    flow.output("out", flow.input("a", {"k": pl.Int64}))
    with flow.run(on=spark, workers=2) as run:
        run.delete("a", [(7,)])
        run.commit()
        with pytest.raises(OperatorFailed, match="more of it was deleted") as caught:
            run.read("out").rows()
        assert caught.value.code == "operator.negative"
        with pytest.raises(PySparkException, match="more of it was deleted"):
            run.read("out").to_spark().collect()
        run.insert("a", [(7,), (8,)])
        run.commit()
        assert run.read("out").rows() == [(8,)]


def addresses(run: Any) -> list[str]:
    status = run.status()
    return [status["address"], *(each["address"] for each in status["processes"])]


def test_a_wrong_token_is_refused_and_counted(spark: SparkSession) -> None:
    with counting().flow.run(on=spark, workers=2) as run:
        run.insert("a", [(1, 1)])
        run.commit()
        assert run.status()["refused"] == 0
        for at, address in enumerate(addresses(run)):
            asker = Asker(address, Credentials())
            for question in ("stats", "join"):
                with pytest.raises(TransportError) as caught:
                    asker.ask(question, {}, within=10)
                assert caught.value.code == "transport.token"
            with pytest.raises(TransportError) as caught:
                list(asker.rows((1, None, ())))
            assert caught.value.code == "transport.token"
            asker.close()
            assert run.status()["refused"] == 3 * (at + 1)
        run.insert("a", [(1, 1)])
        run.commit()
        assert run.read("out").rows() == [(1, 2, 2)]


def test_options_and_triggers_that_are_not_there_are_refused(spark: SparkSession) -> None:
    with counting().flow.run(on=spark, workers=1) as run:
        run.insert("a", [(1, 1)])
        run.commit()
        reader = spark.read.format("riverrun")
        for name, value, said in (
            ("changes", "maybe", "that is true or false"),
            ("pushFilters", "yes", "that is true or false"),
            ("chnages", "true", "did you mean .*changes"),
            ("asOf", "0", "epoch"),
            ("colour", "red", "the options are run, name, epoch"),
        ):
            with pytest.raises(PySparkException, match=said):
                spark.read.format("riverrun").option(name, value).load("out").collect()
        assert reader.option("EPOCH", 0).option("Changes", "FALSE").load("out").count() == 1
        stream = spark.readStream.format("rate").load().selectExpr("value as k", "value as v")
        for trigger, said in (
            ({"proccessingTime": "1 second"}, "did you mean processingTime=?"),
            ({"chekpoint": "/x"}, "did you mean checkpoint=?"),
            ({"once": True, "availableNow": True}, "one trigger"),
        ):
            with pytest.raises(PlanError, match="cannot stream into 'a'") as caught:
                run.stream("a", stream, **trigger)
            assert said in str(caught.value)


@pytest.mark.parametrize("tls", [False, True])
def test_garbage_is_dropped(spark: SparkSession, tls: bool) -> None:
    seed = random.Random(31)
    with counting().flow.run(on=spark, workers=2, tls=tls) as run:
        run.insert("a", [(1, 1)])
        run.commit()
        for address in addresses(run):
            place = urlsplit(address)
            for kind in (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b""):
                with socket.create_connection((place.hostname, place.port), 10) as garbage:
                    garbage.sendall(kind + seed.randbytes(5000))
            with socket.create_connection((place.hostname, place.port), 10):
                pass
        for n in range(3):
            run.insert("a", [(1, n)])
            run.commit()
        assert run.read("out").rows() == [(1, 4, 4)]
        assert len(run.status()["processes"]) == 2


def test_garbage_with_the_right_token_is_dropped(spark: SparkSession) -> None:
    with counting().flow.run(on=spark, workers=2) as run:
        run.insert("a", [(1, 1)])
        run.commit()
        for address in addresses(run):
            asker = Asker(address, run._cluster.credentials)
            for question, argument in (("nonsense", 1), ("__init__", None), ("", None)):
                with pytest.raises((RiverrunError, AttributeError)):
                    asker.ask(question, argument, within=20)
            with pytest.raises(Exception):  # noqa: B017, PT011
                list(asker.rows("nonsense"))
            with pytest.raises(Exception):  # noqa: B017, PT011
                list(asker.rows((12345, None, ())))
            asker.close()
        run.insert("a", [(1, 1)])
        run.commit()
        assert run.read("out").rows() == [(1, 2, 2)]


# ---- workers that die


def kill(run: Any, index: int) -> int:
    pid: int = run.status()["processes"][index]["pid"]
    os.kill(pid, signal.SIGKILL)
    return pid


def test_a_worker_that_dies_without_a_checkpoint_path_ends_the_run(spark: SparkSession) -> None:
    with counting().flow.run(on=spark, workers=2) as run:
        run.insert("a", [(1, 1)])
        run.commit()
        kill(run, 1)
        with pytest.raises(RiverrunError, match="checkpoint") as caught:
            run.await_termination(600)  # it raises, and does not wait until then
        assert caught.value.hint
        assert run.status()["closed"] if not run._cluster.closed else run._cluster.closed
        for call in (
            lambda: run.insert("a", [(2, 2)]),
            run.commit,
            lambda: run.read("out"),
            lambda: run.insert("a", spark.range(3).selectExpr("id k", "id v")),
        ):
            with pytest.raises(RiverrunError) as told:
                call()
            assert "worker" in str(told.value)
    assert eventually(lambda: not active(spark))
    assert spark.range(5).count() == 5
    with counting().flow.run(on=spark, workers=2) as run:
        run.insert("a", [(1, 1)])
        run.commit()
        assert run.read("out").rows() == [(1, 1, 1)]


def test_a_worker_that_dies_while_an_epoch_is_under_way_is_told_of(spark: SparkSession) -> None:
    def slow(frame: pl.DataFrame) -> pl.DataFrame:
        time.sleep(600)
        return frame

    flow = rr.Dataflow("slow")
    flow.output("out", flow.input("a", {"k": int}).map_batches(slow, {"k": int}))
    with flow.run(on=spark, workers=2) as run:
        pids = [each["pid"] for each in run.status()["processes"]]
        run.insert("a", [(n,) for n in range(50)])
        commit = run.commit(wait=False)
        time.sleep(0.5)
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(RiverrunError):
            commit.wait()  # not for the minutes that the other worker sleeps


@pytest.mark.parametrize("make", [counting, pytest.param(looping, marks=pytest.mark.soak)])
def test_a_worker_that_dies_is_replaced(spark: SparkSession, tmp_path: Path, make: Any) -> None:
    seed = first_seed()
    source, known = random.Random(seed), Rows()
    program: Program = make()
    with program.flow.run(on=spark, workers=2, checkpoint=tmp_path, every=3) as run:
        gone = set()
        for turn in range(6):
            change(run, program, known, source, 12)
            if turn % 2:
                run.insert("a", spark.range(5).selectExpr("id k", "id v"))
                known["a"].update((n, n) for n in range(5))
            if turn in (1, 4):
                gone.add(kill(run, turn % 2))  # with rows handed in, and before they are committed
            run.commit()
            assert run.read("out").rows() == program.oracle(known)
            if turn == 2:
                gone.add(kill(run, 0))
                assert run.read("out").rows() == program.oracle(known)
        status = run.status()
        assert len(status["processes"]) == 2
        assert not gone & {each["pid"] for each in status["processes"]}
        assert status["execution"] >= 4
        frame = run.read("out").to_spark()
        assert sorted(map(tuple, frame.collect())) == program.oracle(known)
    with program.flow.run(checkpoint=tmp_path) as run:
        assert run.read("out").rows() == program.oracle(known)


def test_all_workers_that_die_at_once_are_replaced(spark: SparkSession, tmp_path: Path) -> None:
    program, known, source = counting(), Rows(), random.Random(5)
    with program.flow.run(on=spark, workers=2, checkpoint=tmp_path) as run:
        for _ in range(2):
            change(run, program, known, source, 12)
            run.commit()
            for index in range(2):
                os.kill(run._cluster.status()["processes"][index]["pid"], signal.SIGKILL)
            change(run, program, known, source, 12)
            run.commit()
            assert run.read("out").rows() == program.oracle(known)


def test_streams_go_on_after_a_worker_died(spark: SparkSession, tmp_path: Path) -> None:
    flow = rr.Dataflow("rates")
    rows = flow.input("rows", {"timestamp": pl.Datetime("us", "UTC"), "value": pl.Int64})
    flow.output("out", rows.select("value"))
    with flow.run(on=spark, workers=2, checkpoint=tmp_path) as run:
        frame = spark.readStream.format("rate").option("rowsPerSecond", 40).load()
        query = run.stream("rows", frame, processingTime="100 milliseconds")
        assert eventually(lambda: run.completed > 1, 30)
        kill(run, 0)
        before = run.completed
        assert eventually(lambda: run.completed > before + 4, 60), query.exception()
        query.stop()
        found = sorted(run.read("out")["value"])
        assert found == list(range(len(found)))
