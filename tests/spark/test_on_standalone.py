"""Runs on a cluster: workers on two executors, which may lack the package, be killed, or be slow."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.programs import Rows, change, counting, eventually
from tests.spark.standalone import Standalone, session
from tests.spark.test_standalone import status


def parent(pid: int) -> int:
    return int(status(pid)[1])


def executor_of(pid: int) -> int:
    """The executor whose daemon forked a Python worker."""
    return parent(parent(pid))


def lives(path: str) -> None:
    """A driver program: rows in, results out, and workers that are killed in between."""
    program, known, source = counting(), Rows(), random.Random(9)
    with session(spark_sql_python_filterPushdown_enabled="true") as spark:
        with program.flow.run(on=spark, workers=2, checkpoint=path, timeout=120) as run:
            pids = [each["pid"] for each in run.status()["processes"]]
            assert len({*pids, os.getpid()}) == 3
            for turn in range(4):
                change(run, program, known, source, 20)
                frame = spark.range(0, 40, numPartitions=2).selectExpr("id % 7 k", "id v")
                run.insert("a", frame)
                known["a"].update((n % 7, n) for n in range(40))
                if turn == 2:
                    os.kill(pids[0], signal.SIGKILL)
                run.commit()
                expected = program.oracle(known)
                assert run.read("out").rows() == expected
                assert sorted(map(tuple, run.read("out").to_spark().collect())) == expected
                read = spark.read.format("riverrun").load("out")
                few = [row for row in expected if row[0] > 3]
                assert sorted(map(tuple, read.where("k > 3").collect())) == few
            now = [each["pid"] for each in run.status()["processes"]]
            assert pids[0] not in now
            print(json.dumps([executor_of(pid) for pid in now]))
        assert not spark.sparkContext.statusTracker().getActiveJobsIds()
        assert spark.range(10).count() == 10


@pytest.mark.cluster
def test_a_run_lives_on_a_cluster(standalone: Standalone, tmp_path: Path) -> None:
    executors = json.loads(standalone.run(lives, str(tmp_path)))
    assert len(executors) == 2
    assert set(executors) <= standalone.processes() | set(executors)


def interpreter(folder: Path) -> Path:
    """This interpreter, without what is installed by a .pth file: it has all but riverrun."""
    packages = Path(pa.__file__).parents[1]
    wrapper = folder / "python"
    wrapper.write_text(
        "#!/bin/sh\n"
        f'PYTHONPATH="$PYTHONPATH:{packages}" TMPDIR="{folder}" exec "{sys.executable}" -S "$@"\n'
    )
    wrapper.chmod(0o755)
    return wrapper


def ships() -> None:
    """A driver program: executors get the package with the task."""

    def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib.util

        found = importlib.util.find_spec("riverrun")
        yield pa.record_batch({"there": [found is not None]})

    def where(frame: Any) -> Any:
        import polars as pl

        import riverrun

        return pl.DataFrame({"place": [riverrun.__file__] * len(frame)})

    import riverrun as rr

    flow = rr.Dataflow("shipped")
    flow.output("out", flow.input("a", {"n": int}).map_batches(where, {"place": str}))
    with session() as spark:
        present = spark.range(2).mapInArrow(told, "there boolean").collect()
        assert not any(row.there for row in present)
        with flow.run(on=spark, workers=2, timeout=120) as run:
            run.insert("a", spark.range(2).selectExpr("id n"))
            run.commit()
            frame = spark.read.format("riverrun").load("out")
            print(json.dumps(sorted(row.place for row in frame.collect())))


@pytest.mark.cluster
def test_executors_without_the_package_get_it(standalone: Standalone, tmp_path: Path) -> None:
    python = interpreter(tmp_path)
    places = json.loads(standalone.run(ships, PYSPARK_PYTHON=str(python)))
    assert len(places) == 2
    assert all(place.startswith(f"{tmp_path}/riverrun-code-{os.getuid()}-") for place in places)
    left = [each.name for each in tmp_path.iterdir() if "unpack" in each.name]
    assert not left
    # Kernels came along with the tasks: what a worker compiles would lie beside the sources that it unpacked.
    assert list(tmp_path.glob("riverrun-code-*/riverrun/state/kernels/*.py"))
    assert not list(tmp_path.glob("riverrun-code-*/**/*.kernel"))


def speculates(marks: str) -> None:
    """A driver program: Spark starts tasks a second time, since the first is slow."""

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        Path(marks, f"{partition}-{attempt}").touch()
        for at, batch in enumerate(batches):
            if partition == 1 and attempt == 0 and at == 2:
                time.sleep(25)  # Spark waits 4 s before it starts another one
            yield batch

    import riverrun as rr

    flow = rr.Dataflow("copying")
    flow.output("out", flow.input("a", {"n": int}))
    options = {
        "spark_speculation": "true",
        "spark_speculation_interval": "50ms",
        "spark_speculation_multiplier": "1.1",
        "spark_speculation_quantile": "0.3",
        "spark_speculation_minTaskRuntime": "4s",
        "spark_sql_execution_arrow_maxRecordsPerBatch": "20",
    }
    # One worker, so that on either host a slot is free: a second attempt goes to another host.
    with session(**options) as spark, flow.run(on=spark, workers=1, timeout=120) as run:
        known = spark.sparkContext._jsc.sc().getExecutorMemoryStatus
        assert eventually(lambda: known().size() == 3, 60)  # the driver, and both executors
        frame = spark.range(0, 400, numPartitions=2).selectExpr("id n").mapInArrow(slow, "n long")
        run.insert("a", frame)
        run.commit()
        print(json.dumps(run.read("out")["n"]))


@pytest.mark.cluster
def test_speculation_neither_doubles_nor_loses_a_row(
    standalone: Standalone, tmp_path: Path
) -> None:
    for attempt in range(3):  # Spark does not always run a task twice
        marks = tmp_path / str(attempt)
        marks.mkdir()
        assert sorted(json.loads(standalone.run(speculates, str(marks)))) == list(range(400))
        seen = {mark.name for mark in marks.iterdir()}
        if seen >= {"1-0", "1-1"}:
            break
    assert seen >= {"0-0", "1-0", "1-1"}


def outlives(folder: str) -> None:
    """A driver program: goes on after an executor, and whatever was on it, is gone."""
    program, known, source = counting(), Rows(), random.Random(10)
    signs = Path(folder)
    with (
        session() as spark,
        program.flow.run(
            on=spark, workers=2, checkpoint=signs / "run", timeout=120, every=2
        ) as run,
    ):
        for turn in range(6):
            change(run, program, known, source, 20)
            if turn == 3:
                pids = [each["pid"] for each in run.status()["processes"]]
                (signs / "scratch").write_text(json.dumps(pids))
                (signs / "scratch").rename(signs / "pids")
                assert eventually((signs / "killed").exists, 60)
            run.commit()
            assert run.read("out").rows() == program.oracle(known), turn
        frame = spark.range(0, 40, numPartitions=2).selectExpr("id % 7 k", "id v")
        run.insert("a", frame)
        known["a"].update((n % 7, n) for n in range(40))
        run.commit()
        assert run.read("out").rows() == program.oracle(known)
        now = [each["pid"] for each in run.status()["processes"]]
        print(json.dumps([pids, now]))


@pytest.mark.cluster
def test_a_run_outlives_a_machine(tmp_path: Path) -> None:
    with Standalone(cores=3) as cluster, ThreadPoolExecutor(1) as thread:
        run = thread.submit(cluster.run, outlives, str(tmp_path))
        assert eventually(lambda: run.done() or (tmp_path / "pids").exists(), 180)
        if run.done():
            run.result()
        victim = json.loads((tmp_path / "pids").read_text())[0]
        lost = cluster.workers.index(int(status(victim)[3]))
        cluster.kill_worker(lost)
        assert status(victim)[0] in ("gone", "Z")
        (tmp_path / "killed").touch()
        before, after = json.loads(run.result())
    assert victim in before
    assert victim not in after
    assert len(set(after)) == 2
