"""Runs whose workers are tasks of a session: the same answers, side by side, and gone when closed."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import riverrun as rr
from riverrun.errors import PlanError, RiverrunError, TransportError
from riverrun.spark import session as sessions
from tests.soaking import first_seed
from tests.spark.programs import PROGRAMS, Program, Rows, change, counting, eventually
from tests.spark.standalone import in_another_process


def active(spark: SparkSession) -> list[int]:
    return list(spark.sparkContext.statusTracker().getActiveJobsIds())


# ---- answers


@pytest.mark.parametrize("make", PROGRAMS)
def test_a_run_on_spark_gives_what_one_here_and_recomputation_give(
    spark: SparkSession, make: Callable[[], Program]
) -> None:
    seed = first_seed()
    source, program, rows = random.Random(seed), make(), Rows()
    with program.flow.run(on=spark, workers=2) as there, program.flow.run() as here:
        assert there.spark is spark
        assert here.spark is None
        for size in (8, 20, 3, 0, 15):
            state, before = source.getstate(), {name: +kept for name, kept in rows.items()}
            change(there, program, rows, source, size)
            there.commit()
            source.setstate(state)
            change(here, program, before, source, size)
            here.commit()
            assert before == rows
            expected = program.oracle(rows)
            assert there.read("out").rows() == expected
            assert there.changes("out").rows() == here.changes("out").rows()
        assert there.epoch == here.epoch == 4


def test_every_worker_has_a_share(spark: SparkSession) -> None:
    class Where(rr.Vertex):
        deterministic = True

        def on_recv(self, port: str, rows: pl.DataFrame, time: Any) -> None:
            self.send(rows.select(pid=pl.lit(os.getpid(), pl.Int64), diff="diff"))

    flow = rr.Dataflow("shares")
    numbers = flow.input("n", {"n": pl.Int64})
    pids = flow.vertex(Where, {"n": numbers}, {"pid": pl.Int64}, routes={"n": "n"})
    flow.output("pids", pids.group_by("pid").count())
    with flow.run(on=spark, workers=3) as run:
        run.insert("n", [(n,) for n in range(300)])
        run.commit()
        counts = dict(run.read("pids").rows())
        assert set(counts) == {each["pid"] for each in run.status()["processes"]}
        assert os.getpid() not in counts
        assert sum(counts.values()) == 300
        assert min(counts.values()) > 50


def test_status_tells_where_a_run_stands(spark: SparkSession) -> None:
    with counting().flow.run(on=spark, workers=2) as run:
        run.insert("a", [(1, 2), (1, 3)])
        assert run.status()["waiting_rows"] == {"a": 2}
        run.commit()
        status = run.status()
        assert (status["workers"], status["completed"], status["closed"]) == (2, 1, None)
        assert status["waiting_rows"] == {"a": 0}
        assert (status["refused"], status["garbage"]) == (0, 0)
        assert status["address"].startswith("tcp://127.0.0.1:")
        assert len({each["pid"] for each in status["processes"]}) == 2
        assert sum(state["rows"] for state in status["states"].values()) > 0
    assert "it was closed" in repr(run)


def test_commits_that_nobody_waits_for_are_worked_on(spark: SparkSession) -> None:
    with counting().flow.run(on=spark, workers=2) as run:
        commits = []
        for n in range(20):
            run.insert("a", [(n % 3, n)])
            commits.append(run.commit(wait=False))
        commits[-1].wait()
        assert all(commit.done for commit in commits)
        expected = [(k, len(range(k, 20, 3)), sum(range(k, 20, 3))) for k in range(3)]
        assert run.read("out").rows() == expected


# ---- beside others


def test_two_runs_and_a_job_of_the_users_live_in_one_session(spark: SparkSession) -> None:
    first, second = counting(), counting()
    started, release = threading.Event(), threading.Event()
    found: list[int] = []

    def job() -> None:
        frame = spark.range(0, 200_000, numPartitions=2)
        while not release.is_set():
            found.append(frame.selectExpr("sum(id % 7)").first()[0])
            started.set()

    thread = threading.Thread(target=job)
    with first.flow.run(on=spark, workers=2) as one, second.flow.run(on=spark, workers=2) as two:
        thread.start()
        try:
            assert started.wait(60)
            for n in range(5):
                one.insert("a", [(1, n)])
                two.insert("a", [(2, -n)])
                one.commit()
                two.commit()
            one.insert("a", spark.range(10).selectExpr("id k", "id v"))
            one.commit()
            assert {k: n for k, n, _ in one.read("out").rows()}[1] == 6
            assert two.read("out").rows() == [(2, 5, -10)]
            one.close()
            assert two.read("out").rows() == [(2, 5, -10)]
            two.insert("a", [(2, 1)])
            two.commit()
            assert two.read("out").rows() == [(2, 6, -9)]
        finally:
            release.set()
            thread.join()
    assert set(found) == {sum(n % 7 for n in range(200_000))}


def test_a_second_run_leaves_slots_for_data(spark: SparkSession) -> None:
    with counting().flow.run(on=spark, workers=4):
        with pytest.raises(PlanError, match="4 of them are kept by other runs") as caught:
            counting().flow.run(on=spark, workers=2)
        assert caught.value.code == "spark.slots"
        assert spark.range(10).count() == 10


def test_closing_ends_the_tasks_and_leaves_the_session(spark: SparkSession) -> None:
    python = spark.sparkContext.pythonExec
    tags = spark.getTags()
    assert eventually(lambda: not active(spark))
    run = counting().flow.run(on=spark, workers=2)
    assert len(active(spark)) == 2
    pids = [each["pid"] for each in run.status()["processes"]]
    run.close()
    assert eventually(lambda: not active(spark))
    run.close()
    assert spark.range(100).selectExpr("sum(id)").first()[0] == 4950
    assert spark.sparkContext.pythonExec == python
    assert spark.getTags() == tags
    with pytest.raises(RiverrunError) as caught:
        run.insert("a", [(1, 1)])
    assert caught.value.code == "run.closed"
    assert pids


def test_a_run_that_is_closed_while_an_epoch_is_under_way_ends(spark: SparkSession) -> None:
    def slow(frame: pl.DataFrame) -> pl.DataFrame:
        time.sleep(600)
        return frame

    flow = rr.Dataflow("slow")
    flow.output("out", flow.input("a", {"k": int}).map_batches(slow, {"k": int}))
    run = flow.run(on=spark, workers=2)
    run.insert("a", [(1,)])
    run.commit(wait=False)
    time.sleep(0.5)
    start = time.monotonic()
    run.close()
    assert time.monotonic() - start < 300  # half of what the worker sleeps
    assert eventually(lambda: not active(spark))


def test_termination_is_awaited(spark: SparkSession) -> None:
    run = counting().flow.run(on=spark, workers=1)
    start = time.monotonic()
    assert run.await_termination(timeout=0.3) is False
    assert time.monotonic() - start > 0.2
    threading.Timer(0.5, run.close).start()
    assert run.await_termination(timeout=30) is True


def test_without_a_session_a_local_one_is_made_and_stopped(printed: dict[str, str]) -> None:
    lines = printed["without"].splitlines()
    assert lines == ["[('sea', 2), ('sky', 1)] local[4]", "[('sea', 2)]", "None"]


# ---- security and memory


def test_with_tls_all_of_it_is_encrypted(spark: SparkSession) -> None:
    program, rows = counting(), Rows()
    source = random.Random(5)
    with program.flow.run(on=spark, workers=2, tls=True) as run:
        assert run.status()["address"].startswith("tls://")
        for _ in range(3):
            change(run, program, rows, source, 10)
            run.insert("a", spark.createDataFrame([(1, 1), (2, 2)], "k long, v long"))
            rows["a"].update([(1, 1), (2, 2)])
            run.commit()
            expected = program.oracle(rows)
            assert run.read("out").rows() == expected
            assert sorted(map(tuple, run.read("out").to_spark().collect())) == expected


def test_certificates_may_be_given_as_files(spark: SparkSession, tmp_path: Path) -> None:
    from riverrun.spark.security import secured

    made = secured(True)
    files = tmp_path / "certificate.pem", tmp_path / "key.pem"
    files[0].write_bytes(made.certificate or b"")
    files[1].write_bytes(made.key or b"")
    with counting().flow.run(on=spark, tls=files) as run:
        run.insert("a", [(1, 1)])
        run.commit()
        assert run.read("out").rows() == [(1, 1, 1)]
    with pytest.raises(PlanError) as caught:
        counting().flow.run(on=spark, tls=(tmp_path / "none", files[1]))
    assert caught.value.code == "spark.tls"
    files[0].write_bytes(b"nonsense")
    with pytest.raises(PlanError) as caught:
        counting().flow.run(on=spark, tls=files)
    assert caught.value.code == "spark.tls"
    assert not active(spark)


def test_state_beyond_the_memory_is_in_files(spark: SparkSession) -> None:
    size, others = 3_000_000, ["v", "w", "x", "y", "z"]  # 84 MB on each worker
    flow = rr.Dataflow("large")
    flow.output("out", flow.input("a", dict.fromkeys(["k", *others], pl.Int64), key="k"))
    with flow.run(on=spark, workers=2, memory="64m") as run:
        rows = spark.range(size).selectExpr("id k", *(f"id * 3 {name}" for name in others))
        run.insert("a", rows)
        run.commit()
        run.delete("a", spark.range(0, size, 2).selectExpr("id k"))
        run.commit()
        pids = [each["pid"] for each in run.status()["processes"]]
        mapped = [
            line
            for pid in pids
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
            if ".arrow" in line  # perhaps deleted, while it is mapped
        ]
        assert mapped
        frame = run.read("out").to_spark()
        assert frame.selectExpr("count(*)", "sum(k)", "sum(z)").first() == (
            size // 2,
            sum(range(1, size, 2)),
            3 * sum(range(1, size, 2)),
        )


# ---- starts that are refused


def refused(code: str, flow: rr.Dataflow | None = None, **options: Any) -> RiverrunError:
    with pytest.raises(RiverrunError) as caught:
        (flow or counting().flow).run(**options).close()
    assert caught.value.code == code, str(caught.value)
    assert caught.value.hint
    return caught.value


def test_too_few_slots_are_refused(spark: SparkSession) -> None:
    error = refused("spark.slots", on=spark, workers=6)
    assert "local[6]" in error.message
    assert error.hint is not None
    assert "local[8]" in error.hint


class Context:
    """As much of a SparkContext as is looked at."""

    def __init__(self, master: str = "spark://host:7077", **conf: str) -> None:
        self.master = master
        self._conf = {name.replace("_", "."): value for name, value in conf.items()}

    def getConf(self) -> dict[str, str]:  # noqa: N802
        return self._conf


@pytest.mark.parametrize(
    ("master", "conf", "most"),
    [
        ("local", {}, 0),
        ("local[2]", {}, 1),
        ("local[4, 3]", {}, 3),
        ("local[4]", {"spark_task_cpus": "2"}, 1),
        ("local-cluster[2, 3, 1024]", {}, 5),
        ("spark://host:7077", {"spark_cores_max": "3"}, 2),
    ],
)
def test_slots_are_counted(master: str, conf: dict[str, str], most: int) -> None:
    if most:
        sessions.check_slots(Context(master, **conf), most)
    with pytest.raises(PlanError) as caught:
        sessions.check_slots(Context(master, **conf), most + 1)
    assert caught.value.code == "spark.slots"
    sessions.check_slots(Context("spark://host:7077"), 1000)  # not known


def test_memory_that_executors_do_not_have_is_refused() -> None:
    def check(memory: str, workers: int = 2, local: bool = False, **conf: str) -> None:
        sessions._check_memory(Context(**conf), local, workers, sessions._bytes(memory, 1))

    check("384m")
    check("100g", local=True)
    check("2g", spark_executor_memoryOverhead="2g")
    check("2g", spark_executor_memoryOverhead="2048")
    check("1g", spark_executor_memory="10g")
    check("1g", spark_executor_cores="4", workers=1, spark_executor_memoryOverhead="1g")
    for memory, conf in [
        ("385m", {}),
        ("1g", {"spark_executor_cores": "2", "spark_executor_memoryOverhead": "1g"}),
        ("2g", {"spark_executor_memory": "10g"}),
        ("1g", {"spark_executor_pyspark_memory": "512m"}),
    ]:
        with pytest.raises(PlanError, match="memory overhead") as caught:
            check(memory, **conf)
        assert caught.value.code == "spark.memory"
        assert "spark.executor.memoryOverhead=" in str(caught.value.hint)
    check("1g", spark_executor_cores="2", spark_executor_memoryOverhead="2560m")


@pytest.mark.parametrize("on", ["local[2]", 5, object, "Spark"])
def test_what_is_no_session_is_refused(on: Any) -> None:
    assert "SparkSession" in refused("plan.run", on=on).message


def test_spark_connect_is_refused() -> None:
    connected = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    assert "Connect" in refused("spark.connect", on=connected).message


def test_options_that_do_not_fit_are_refused(spark: SparkSession) -> None:
    refused("plan.run", on=spark, seed=1)
    refused("plan.run", on=spark, timeout=0)
    refused("plan.run", on=spark, memory="lots")
    refused("plan.run", tls=True)


def test_a_stopped_session_is_refused(printed: dict[str, str]) -> None:
    assert printed["stopped"].splitlines() == ["checkpoint.none", "spark.stopped"]


OLD_JAVA = """\
#!/bin/sh
echo 'openjdk version "11.0.2" 2019-01-15' >&2
"""


@pytest.mark.parametrize("told", ["older ones only", "there is none"])
def test_java_that_is_missing_or_too_old_is_refused(tmp_path: Path, told: str) -> None:
    if told != "there is none":
        (tmp_path / "java").write_text(OLD_JAVA)
        (tmp_path / "java").chmod(0o755)
    found = in_another_process(
        """
        from pathlib import Path
        import riverrun as rr
        import riverrun.spark.session
        Path.glob = lambda self, pattern: iter(())  # nothing in /usr/lib/jvm
        flow = rr.Dataflow("words")
        flow.output("out", flow.input("a", {"k": str}).group_by("k").count())
        try:
            flow.run(on="spark")
        except rr.errors.RiverrunError as error:
            print(error.code, error.message)
        """,
        PATH=str(tmp_path),
        JAVA_HOME="",
    )
    assert found.startswith("spark.java ")
    assert told in found
    assert "17" in found


def test_a_java_home_that_is_too_old_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in (("old", "11"), ("new", "21")):
        java = tmp_path / name / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(OLD_JAVA.replace("11", version))
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", f"{tmp_path}/new/bin:{os.environ['PATH']}")
    assert sessions.java_home() == str(tmp_path / "new")
    assert os.environ.get("JAVA_HOME") in (None, str(tmp_path / "new"))


def test_workers_that_do_not_come_up_are_not_waited_for_for_ever(spark: SparkSession) -> None:
    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        time.sleep(600)

    def held() -> None:
        spark.sparkContext.addJobTag("held")
        try:
            spark.range(0, 5, numPartitions=5).mapInArrow(hold, "id long").collect()
        except Exception as error:
            said.append(str(error))

    said: list[str] = []
    thread = threading.Thread(target=held)
    thread.start()
    try:
        assert eventually(lambda: active(spark))
        time.sleep(1)
        start = time.monotonic()
        with pytest.raises(TransportError) as caught:
            counting().flow.run(on=spark, workers=3, timeout=3)
        assert time.monotonic() - start > 2
        assert thread.is_alive()  # the slots are still taken: nobody waited for them
    finally:
        spark.sparkContext.cancelJobsWithTag("held")
        thread.join()
    assert caught.value.code == "run.not_ready"
    assert "of 3 workers reported within 3 s" in caught.value.message
    assert "slots" in str(caught.value.hint)
    assert eventually(lambda: not active(spark))


def test_versions_that_differ_are_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from riverrun.runtime import admission

    ours = admission.versions()
    monkeypatch.setattr(admission, "versions", lambda: {**ours, "polars": "0.0.1"})
    error = refused("run.versions", on=spark, workers=2)
    assert "polars" in error.message
    assert "0.0.1" in error.message
    assert eventually(lambda: not active(spark))


def test_more_workers_than_slots_are_refused_when_scaling(
    spark: SparkSession, tmp_path: Path
) -> None:
    program, rows, source = counting(), Rows(), random.Random(3)
    with program.flow.run(on=spark, workers=1, checkpoint=tmp_path) as run:
        for workers in (2, 3, 1):
            change(run, program, rows, source, 10)
            run.commit()
            run.scale(workers)
            assert run.status()["workers"] == workers
            assert run.read("out").rows() == program.oracle(rows)
        with pytest.raises(PlanError) as caught:
            run.scale(6)
        assert caught.value.code == "spark.slots"
        change(run, program, rows, source, 10)
        run.commit()
        assert run.read("out").rows() == program.oracle(rows)
    with program.flow.run(on=spark, workers=1) as run, pytest.raises(RiverrunError) as refusal:
        run.scale(2)
    assert refusal.value.code == "checkpoint.no_path"


def test_a_process_that_spark_keeps_gives_the_memory_of_states_back(spark: SparkSession) -> None:
    flow = rr.Dataflow("large")
    rows = flow.input("rows", {"key": pl.Int64, "value": pl.Int64}, key="key")
    flow.output("rows", rows)
    with flow.run(on=spark, workers=1) as run:
        keys = np.arange(8_000_000)
        run.upsert("rows", pa.table({"key": keys, "value": keys}))
        run.commit()
        (process,) = run.status()["processes"]
        before = _own_memory(process["pid"])
    deadline = time.monotonic() + 30
    while (left := _own_memory(process["pid"])) > before - (100 << 20):
        assert time.monotonic() < deadline, (before, left)
        time.sleep(0.1)


def _own_memory(pid: int) -> int:
    """Bytes that a process has for itself alone; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return int(next(line for line in lines if line.startswith("Anonymous")).split()[1]) * 1024
