"""Runs on processes of one machine: right answers, whatever is killed; nobody left; nothing told to others."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.errors import PlanError, RiverrunError, TransportError
from riverrun.runtime import processes
from riverrun.runtime.machine import available_cores, available_memory
from riverrun.storage.store import open_storage
from tests.runtime.launchers import Launched, Threads, gone_by
from tests.soaking import SOAK, draws, first_seed, some
from tests.spark.programs import (
    PROGRAMS,
    Program,
    Rows,
    change,
    eventually,
    looping,
    with_vertex,
)


def pids(run: Any) -> list[int]:
    return [each["pid"] for each in run.status()["processes"] if each]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def counting(name: str = "counting") -> rr.Dataflow:
    flow = rr.Dataflow(name)
    flow.output("out", flow.input("a", {"k": pl.Int64}).group_by("k").count())
    return flow


# ---- answers


def _scale(run: Any, source: random.Random) -> None:
    run.scale(source.randrange(1, 4))


def _kill(run: Any, source: random.Random) -> None:
    os.kill(source.choice(pids(run)), signal.SIGKILL)


def _checkpoint(run: Any, source: random.Random) -> None:
    run.checkpoint()


@pytest.mark.drawn
@pytest.mark.parametrize("make", PROGRAMS if SOAK else [looping, with_vertex])
def test_programs_give_what_they_give_from_scratch(
    make: Callable[[], Program], tmp_path: Path
) -> None:
    """Over one to three workers: a kill, another number of workers, a checkpoint, a second life on the path."""
    before = set(threading.enumerate())
    for seed in range(first_seed(), first_seed() + draws(1, soak=4)):
        source, program, rows = random.Random(f"{make.__name__} {seed}"), make(), Rows()
        place = tmp_path / str(seed)
        for life in range(2):
            with program.flow.run(
                on="processes",
                workers=source.randrange(1, 4) if life == 0 else 1,
                checkpoint=place,
                every=2,
                recovery=source.choice(("replace", "spread")),
                memory=source.choice((None, 1 << 20)),
            ) as run:
                for act in source.sample([_scale, _kill, _checkpoint], 3 if life == 0 else 0):
                    change(run, program, rows, source, 12)
                    run.commit()
                    assert run.read("out").rows() == program.oracle(rows)
                    act(run, source)
                change(run, program, rows, source, 12)
                run.commit()
                assert run.read("out").rows() == program.oracle(rows)
                living = pids(run)
            assert not any(map(is_alive, living))
    gone_by(before)


def test_a_killed_worker_is_replaced_and_its_end_is_told(tmp_path: Path) -> None:
    with counting().run(on="processes", workers=2, checkpoint=tmp_path / "run") as run:
        run.insert("a", [(k % 5,) for k in range(100)])
        run.commit()
        doomed = pids(run)[1]
        os.kill(doomed, signal.SIGKILL)
        assert eventually(lambda: len(pids(run)) == 2 and doomed not in pids(run))
        assert eventually(lambda: bool(run.events("recovered")))
        assert run.read("out").rows() == [(k, 20) for k in range(5)]
        assert eventually(lambda: "SIGKILL" in run.events("lost")[0]["why"])
        (lost,) = run.events("lost")
        assert lost["pid"] == doomed


def test_without_a_path_a_killed_worker_ends_the_run_and_says_so() -> None:
    with counting().run(on="processes", workers=2) as run:
        os.kill(pids(run)[0], signal.SIGKILL)
        with pytest.raises(rr.CheckpointError, match=r"worker 0 is lost.*SIGKILL"):
            run.await_termination(60)


def test_two_runs_at_once_and_a_user_of_the_first_inside_a_sink() -> None:
    with (
        counting("one").run(on="processes", workers=1) as one,
        counting("two").run(on="processes", workers=2) as two,
    ):
        assert not set(pids(one)) & set(pids(two))
        two.for_each_epoch("out", lambda changes, epoch: one.insert("a", [(epoch,)])).wait()
        for run in (two, one):
            run.insert("a", [(1,), (1,)])
        two.commit()
        assert eventually(lambda: one.status()["waiting_rows"] == {"a": 3})
        one.commit()
        assert two.read("out").rows() == [(1, 2)]
        assert one.read("out").rows() == [(0, 1), (1, 2)]


def test_states_beyond_the_budget_are_in_files(tmp_path: Path) -> None:
    """Each worker has the budget of its own, as on Spark."""
    flow = rr.Dataflow("large")
    flow.output("out", flow.input("a", {"k": pl.Int64, "text": pl.String}).distinct())
    rows = [(k, f"{k:0200}") for k in range(20_000)]
    with flow.run(on="processes", workers=2, memory="1m") as run:
        for start in range(0, len(rows), 5_000):
            run.insert("a", rows[start : start + 5_000])
            run.commit()
        held = [list(Path(f"/proc/{pid}/maps").read_text().splitlines()) for pid in pids(run)]
        assert all(any("riverrun-scratch" in line for line in lines) for lines in held)
        assert run.read("out").rows() == rows


def test_a_refused_epoch_leaves_the_workers_as_they_are() -> None:
    def check(row: Any) -> Any:
        if row["k"] == 13:
            raise ValueError("13 is refused")
        return [row]

    flow = rr.Dataflow("refusing")
    flow.output("out", flow.input("a", {"k": pl.Int64}).flat_map(check, {"k": pl.Int64}))
    with flow.run(on="processes", workers=2) as run:
        before = pids(run)
        run.insert("a", [(13,)])
        with pytest.raises(rr.OperatorFailed, match="13 is refused"):
            run.commit()
        run.insert("a", [(1,)])
        run.commit()
        assert run.read("out").rows() == [(1,)]
        assert pids(run) == before


def test_a_worker_does_not_import_pandas() -> None:
    """Importing pandas takes as long as all else that a worker imports, and rows in frames do not need it."""

    def look(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.select("k", imported=pl.lit("pandas" in sys.modules))

    flow = rr.Dataflow("imports")
    rows = flow.input("a", {"k": pl.Int64, "when": pl.Datetime("us"), "size": pl.Float64})
    names = flow.input("names", {"k": pl.Int64, "name": pl.String})
    grouped = rows.group_by("k").agg(
        rr.count(), rr.sum("size").alias("size"), last=rr.last("size", by="when")
    )
    steps = rows.select("k").iterate(
        lambda x: x.with_columns(k=pl.min_horizontal(pl.col("k") + 1, 4)).distinct()
    )
    joined = names.join(grouped, on="k", how="left").join(steps, on="k", how="anti")
    flow.output("out", joined.map_batches(look, {"k": pl.Int64, "imported": pl.Boolean}))
    data = pl.DataFrame({"k": [1, 2, 2], "when": [0, 1, 2], "size": [0.5, 1.0, None]})
    with flow.run(on="processes", workers=2) as run:
        for _ in range(2):
            run.insert("a", data.with_columns(pl.col("when").cast(pl.Datetime("us"))))
            run.insert("names", pl.DataFrame({"k": [1, 2, 3], "name": ["one", "two", "three"]}))
            run.commit()
        assert set(run.read("out").rows()) == {(k, False) for k in (1, 2, 3)}


# ---- drivers of their own

DRIVER = """
import os, signal, sys, time
import polars as pl, riverrun as rr

signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal: jobs in the background ignore it

class Odd:
    def __init__(self, n):
        self.n = n

def remainder(row):
    time.sleep(row["pause"])
    return [{"k": row["k"] % Odd(3).n}]

flow = rr.Dataflow("driver")
rows = flow.input("a", {"k": pl.Int64, "pause": pl.Float64})
flow.output("out", rows.flat_map(remainder, {"k": pl.Int64}).group_by("k").count())
run = flow.run(on="processes", workers=2)
pids = [each["pid"] for each in run.status()["processes"]]
print(*pids, flush=True)
run.insert("a", [(k, 0.0) for k in range(10)])
run.commit()
assert run.read("out").rows() == [(0, 4), (1, 3), (2, 3)]
"""


class Driver:
    """A program in a process of its own, in a session of its own, as one started from a terminal has."""

    def __init__(self, code: str, folder: Path, *, piped: bool = False, **environment: str) -> None:
        self.scratch = folder / "temporary"
        self.scratch.mkdir(exist_ok=True)
        (folder / "program.py").write_text(code)
        self.process = subprocess.Popen(
            [sys.executable, "-" if piped else "program.py"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder, start_new_session=True,
            env={**os.environ, "TMPDIR": str(self.scratch), **environment},
        )  # fmt: skip
        assert self.process.stdin is not None
        if piped:
            self.process.stdin.write(code)
        self.process.stdin.close()
        self.pids = [int(word) for word in self.line().split()]

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> int:
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def all_gone(self) -> bool:
        return not any(map(is_alive, self.pids))


@pytest.mark.sampled
@pytest.mark.parametrize(
    "piped", some([False, True], 1), ids={False: "file", True: "no file, as in a notebook"}.get
)
def test_a_program_that_does_not_close_its_run_ends_and_leaves_nothing(
    tmp_path: Path, piped: bool
) -> None:
    driver = Driver(DRIVER, tmp_path, piped=piped)
    assert len(driver.pids) == 2
    assert driver.end() == 0
    assert eventually(driver.all_gone, 10)
    assert not list(driver.scratch.glob("riverrun-scratch-*"))


def test_no_worker_outlives_a_driver_that_is_killed(tmp_path: Path) -> None:
    """Not even one that is in a function for long, nor where a forked child keeps the driver's sockets open."""
    code = DRIVER.replace("workers=2", "workers=2, memory=1 << 20") + (
        "run.insert('a', [(k, 1000.0) for k in range(2)])\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    time.sleep(1000)\n"
        "print(child, flush=True)\n"
        "run.commit()\n"
    )
    driver = Driver(code, tmp_path)
    child = int(driver.line())
    try:
        time.sleep(0.5)
        driver.process.kill()
        assert driver.end() == -signal.SIGKILL
        assert eventually(driver.all_gone, 20)
    finally:
        os.kill(child, signal.SIGKILL)
    after = Driver(DRIVER, tmp_path)  # it collects what they left
    assert after.end() == 0
    assert eventually(lambda: not list(driver.scratch.glob("riverrun-scratch-*")), 10)


def test_ctrl_c_is_the_drivers(tmp_path: Path) -> None:
    """A terminal sends it to the whole group: the epoch is refused, and workers that Ctrl-C reaches go on."""
    code = DRIVER + (
        "run.insert('a', [(k, 2.0) for k in range(2)])\n"
        "try:\n"
        "    print('waiting', flush=True)\n"
        "    run.commit()\n"
        "except KeyboardInterrupt:\n"
        "    run.insert('a', [(0, 0.0)])\n"
        "    run.commit()\n"
        "    assert [each['pid'] for each in run.status()['processes']] == pids\n"
        "    print(run.read('out').rows(), flush=True)\n"
        "run.close()\n"
    )
    driver = Driver(code, tmp_path)
    assert driver.line() == "waiting"
    time.sleep(0.5)
    for pid in driver.pids:
        os.kill(pid, signal.SIGINT)
    os.killpg(driver.process.pid, signal.SIGINT)
    assert driver.line() == "[(0, 5), (1, 3), (2, 3)]"
    assert driver.end() == 0


def test_modules_beside_a_program_are_there(tmp_path: Path) -> None:
    """`sys.path` is the driver's, and a replacement has it too, wherever the driver is by then."""
    (tmp_path / "beside.py").write_text("def double(row):\n    return [{'k': 2 * row['k']}]\n")
    code = (
        "import os, signal, sys, time\n"
        "import polars as pl, riverrun as rr\n"
        "from beside import double\n"
        "flow = rr.Dataflow('beside')\n"
        "rows = flow.input('a', {'k': pl.Int64})\n"
        "flow.output('out', rows.flat_map(double, {'k': pl.Int64}))\n"
        "with flow.run(on='processes', workers=1, checkpoint='kept') as run:\n"
        "    pids = [each['pid'] for each in run.status()['processes']]\n"
        "    print(*pids, flush=True)\n"
        "    os.chdir('/')\n"
        "    os.kill(pids[0], signal.SIGKILL)\n"
        "    run.insert('a', [(1,)])\n"
        "    run.commit()\n"
        "    print(run.read('out').rows(), flush=True)\n"
    )
    driver = Driver(code, tmp_path)
    assert driver.line() == "[(2,)]"
    assert driver.end() == 0


# ---- secrets


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc")
def test_the_token_is_nowhere_that_others_can_read() -> None:
    with counting().run(on="processes", workers=1) as run:
        credentials = run._cluster.credentials  # type: ignore[attr-defined]
        token = (
            credentials.token.encode() if isinstance(credentials.token, str) else credentials.token
        )
        assert len(token) >= 16
        (pid,) = pids(run)
        for name in ("cmdline", "environ"):
            seen = Path(f"/proc/{pid}/{name}").read_bytes()
            assert b"python" in seen.lower()
            assert token not in seen
            assert token.hex().encode() not in seen
        assert run.status()["address"].startswith("tcp://127.0.0.1:")
        assert run.status()["processes"][0]["address"].startswith("tcp://127.0.0.1:")


# ---- what cannot start


def test_what_does_not_go_together_is_refused() -> None:
    flow = counting()
    for options, said in (
        ({"on": "proceses"}, "did you mean on='processes'"),
        ({"on": 3}, "`on` is one of .*a SparkSession"),
        ({"on": "processes", "seed": 1}, "with a seed in processes of this machine"),
        ({"on": "processes", "tls": True}, "with tls in processes of this machine"),
        ({"on": "processes", "workers": 0}, "workers=0"),
        ({"on": "processes", "workers": "many"}, "workers='many'"),
        ({"on": "processes", "workers": 4, "memory": 1 << 50}, "run with fewer workers"),
    ):
        with pytest.raises(PlanError, match=said):
            flow.run(**options)


@pytest.mark.parametrize(
    "on", ["processes", "spark", Launched(Threads)], ids=["processes", "spark", "own"]
)
def test_an_opened_storage_is_refused_where_workers_open_it_themselves(on: object) -> None:
    """Before a process, a file or a Spark session is made."""
    storage = open_storage("memory:///")
    checkpoint: Any
    for checkpoint in (storage, rr.options.Checkpoint(storage, every=1)):
        with pytest.raises(PlanError) as caught:
            counting().run(on=on, checkpoint=checkpoint)
        assert caught.value.code == "plan.run"
        assert "each worker opens the storage itself" in caught.value.message
        assert "MemoryStore" in caught.value.message
        assert "checkpoint='s3://bucket/path'" in str(caught.value)


def test_streams_are_sparks() -> None:
    with counting().run(on="processes") as run:
        assert run.spark is None
        with pytest.raises(PlanError, match="the run is not on Spark"):
            run.stream("a", object())


def test_a_program_that_cannot_travel_is_refused() -> None:
    lock, before = threading.Lock(), set(threading.enumerate())

    def locked(row: Any) -> Any:
        with lock:
            return [row]

    flow = rr.Dataflow("locked")
    flow.output("out", flow.input("a", {"k": pl.Int64}).flat_map(locked, {"k": pl.Int64}))
    with pytest.raises(PlanError, match="cannot send the program to workers"):
        flow.run(on="processes")
    gone_by(before)


def test_workers_that_do_not_come_up_end_the_run_with_what_they_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = set(threading.enumerate())
    monkeypatch.setattr(processes, "get_executable", lambda: "/nowhere/python")
    with pytest.raises(TransportError, match=r"could not be started: .*/nowhere/python"):
        counting().run(on="processes")
    monkeypatch.undo()
    monkeypatch.setattr(sys, "path", ["/nowhere"])
    with pytest.raises(RiverrunError, match="0 of 1 workers reported"):
        counting().run(on="processes")
    gone_by(before)


# ---- as many as there is room for


def test_auto_is_as_many_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with counting().run(workers="auto") as run:
        assert run.status()["workers"] == 1
    monkeypatch.setattr(processes, "available_cores", lambda: 2)
    with counting().run(on="processes", workers="auto") as run:
        assert run.status()["workers"] == 2


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 8), ("250000 100000", 3), ("50000 100000", 1), ("1600000 100000", 8)],
)
def test_the_least_of_cores_and_shares_counts(
    quota: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/outer/inner\n")
    for group, text in (("outer", quota), ("outer/inner", "max 100000")):
        (tmp_path / "sys/fs/cgroup" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys/fs/cgroup" / group / "cpu.max").write_text(text + "\n")
    assert available_cores(tmp_path) == expected


def test_control_groups_of_the_first_version_count_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("5:cpu,cpuacct:/job\n6:memory:/job\n7:pids:/job\n")
    (tmp_path / "proc/meminfo").write_text("MemFree: 1 kB\nMemTotal:       16384 kB\n")
    for name, text in (
        ("cpu,cpuacct/cpu.cfs_quota_us", "-1"),
        ("cpu,cpuacct/cpu.cfs_period_us", "100000"),
        ("cpu,cpuacct/job/cpu.cfs_quota_us", "400000"),
        ("cpu,cpuacct/job/cpu.cfs_period_us", "100000"),
        ("memory/memory.limit_in_bytes", "9223372036854771712"),
        ("memory/job/memory.limit_in_bytes", "8000000"),
    ):
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert available_cores(tmp_path) == 4
    assert available_memory(tmp_path) == 8_000_000
    (tmp_path / "sys/fs/cgroup/memory/job/memory.limit_in_bytes").unlink()
    assert available_memory(tmp_path) == 16384 << 10
    assert available_memory(tmp_path / "nowhere") is None
    assert available_cores(tmp_path / "nowhere") == 8
