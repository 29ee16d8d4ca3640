"""The sessions that tests use: a local one, and a real cluster that leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.standalone import ROOT, Standalone, session


def eventually(holds: Callable[[], bool], patience: float = 120) -> bool:
    deadline = time.monotonic() + patience
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()


def status(pid: int) -> list[str]:
    """The fields of /proc/pid/stat after the name: state, parent, group, session, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["gone"]


def none_runs(pids: set[int]) -> bool:
    return all(status(pid)[0] in ("gone", "Z") for pid in pids)


def test_the_local_session_runs_this_interpreter(spark: SparkSession) -> None:
    def told(tables: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(table.num_rows for table in tables)
        yield pa.RecordBatch.from_pydict({"python": [sys.prefix], "rows": [rows]})

    found = spark.range(0, 100, numPartitions=4).mapInArrow(told, "python string, rows long")
    assert [tuple(row) for row in found.collect()] == [(sys.prefix, 25)] * 4


def sums_of(rows: int, marks: Path, awaited: int) -> None:
    """A driver program: the sum of each of four partitions, and the executor that made it.

    Every task leaves a mark, its process id, and stays until there are as many as are awaited.
    """

    def sums(tables: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        total = sum(sum(table["id"].to_pylist()) for table in tables)
        daemon = int(status(os.getpid())[1])  # which forked this process for the executor
        executor = int(status(daemon)[1])
        (marks / str(os.getpid())).touch()
        assert eventually(lambda: len(list(marks.iterdir())) >= awaited)
        yield pa.RecordBatch.from_pydict({"executor": [executor], "total": [total]})

    with session() as spark:
        numbers = spark.range(0, rows, numPartitions=4)
        found = numbers.mapInArrow(sums, "executor long, total long").collect()
    print(json.dumps([tuple(row) for row in found]))


@pytest.mark.cluster
def test_a_job_runs_on_two_executors(standalone: Standalone, tmp_path: Path) -> None:
    found = json.loads(standalone.run(sums_of, 1000, tmp_path, 4))
    assert len(found) == 4
    assert sum(total for _, total in found) == sum(range(1000))
    assert len({executor for executor, _ in found}) == 2


@pytest.mark.cluster
def test_source_and_files_get_their_arguments(standalone: Standalone, tmp_path: Path) -> None:
    source = "import os, sys; print(os.environ['SPARK_MASTER'], *sys.argv[1:])"
    file = tmp_path / "program.py"
    file.write_text(source)
    assert standalone.run(source, 1, "two") == f"{standalone.url} 1 two\n"
    assert standalone.run(file, 1, "two") == f"{standalone.url} 1 two\n"


def fails() -> None:
    raise ValueError("on purpose")


@pytest.mark.cluster
def test_a_program_that_fails_tells_why(standalone: Standalone) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)ended with 1.*ValueError: on purpose"):
        standalone.run(fails)


HANGS = """
import subprocess, time
print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
time.sleep(600)
"""


@pytest.mark.cluster
def test_a_program_that_hangs_is_ended_with_its_children(standalone: Standalone) -> None:
    with pytest.raises(TimeoutError, match="no end within 5 s") as told:
        standalone.run(HANGS, timeout=5)
    assert none_runs({int(str(told.value).split()[-1])})


@pytest.mark.cluster
def test_a_job_outlives_a_worker_that_leaves_nothing_behind(tmp_path: Path) -> None:
    with Standalone() as cluster, ThreadPoolExecutor(1) as thread:
        run = thread.submit(cluster.run, sums_of, 1000, tmp_path, 5)
        assert eventually(lambda: run.done() or len(list(tmp_path.iterdir())) == 4)
        [lost, *_] = cluster.workers
        doomed = {pid for pid in cluster.processes() if int(status(pid)[3]) == lost}
        tasks = {int(mark.name) for mark in tmp_path.iterdir()}
        assert len(doomed & tasks) == 2
        cluster.kill_worker(0)
        (tmp_path / "killed").touch()
        assert none_runs(doomed)
        assert not doomed & cluster.processes()

        found = json.loads(run.result())
        assert sum(total for _, total in found) == sum(range(1000))
        assert len({executor for executor, _ in found}) == 1

        assert cluster.add_worker() == 2
        everything = cluster.processes()
    assert everything
    assert none_runs(everything)
    assert not cluster.directory.exists()


@pytest.mark.cluster
def test_only_loopback_is_listened_on(standalone: Standalone) -> None:
    open_files = (
        os.readlink(file)
        for pid in standalone.processes()
        for file in Path(f"/proc/{pid}/fd").iterdir()
        if file.is_symlink()
    )
    sockets = {name.removeprefix("socket:[").rstrip("]") for name in open_files if "socket" in name}
    listening = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and inode in sockets:
                listening.add(local.partition(":")[0])
    assert listening
    assert all(re.fullmatch("(0{16}FFFF0000)?0[123]00007F", each) for each in listening), listening


STARTS_A_CLUSTER = """
import time
from tests.spark.standalone import Standalone
with Standalone(workers=1) as cluster:
    print(*cluster.processes(), cluster.directory, flush=True)
    time.sleep(600)
"""


@pytest.mark.cluster
def test_the_cluster_dies_with_the_process_that_started_it() -> None:
    command = [sys.executable, "-c", STARTS_A_CLUSTER]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            *pids, directory = process.stdout.readline().split()
            started = set(map(int, pids))
            assert len(started) == 2
            assert not none_runs(started)
        finally:
            process.send_signal(signal.SIGKILL)
    assert eventually(lambda: none_runs(started))
    shutil.rmtree(directory)
