"""Workers that hang, are slow, or have too much to do: found out by signs of life, in real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr
from riverrun.engine.instance import Maker
from riverrun.errors import CheckpointError
from riverrun.plan.kernels_needed import kernels_of
from riverrun.runtime import worker_process
from riverrun.runtime.health import signs
from riverrun.runtime.health.balance import Balancer
from riverrun.runtime.health.busy import BusyTime
from riverrun.runtime.remote import RemoteCluster
from riverrun.state.kernels import compiling
from riverrun.state.shards import CELLS
from tests.engine.flows import Model, check, graph_maker
from tests.runtime.launchers import Processes, Threads
from tests.soaking import some

MAKER = graph_maker()


def until(so: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def commit(cluster: Any, model: Model) -> None:
    cluster.wait(cluster.submit(model.draw()))


@pytest.mark.sampled
@pytest.mark.parametrize("policy", some(["replace", "spread"], 1))
def test_survivors_of_a_kill_are_not_restarted_and_read_nothing(
    tmp_path: Path, policy: str
) -> None:
    launcher, model = Processes(MAKER), Model(41)
    with RemoteCluster(
        launcher, 3, checkpoint=tmp_path, every=None, timeout=60, policy=policy
    ) as cluster:
        for _ in range(3):
            commit(cluster, model)
        cluster.checkpoint()
        commit(cluster, model)
        before = [each["pid"] for each in cluster.status()["processes"]]
        read = {pid: _bytes_read(pid) for pid in before}
        os.kill(before[1], signal.SIGKILL)
        commit(cluster, model)
        check(cluster, model)
        after = {each["pid"] for each in cluster.status()["processes"]}
        assert {before[0], before[2]} <= after
        if (
            policy == "replace"
        ):  # a block is some kilobytes; Python's own files may be read meanwhile
            assert _opened(before[0], tmp_path) == _opened(before[2], tmp_path) == []
            assert all(_bytes_read(pid) - read[pid] < 1 << 20 for pid in (before[0], before[2]))
        until(lambda: cluster.status()["workers"] == 3)
        commit(cluster, model)
        check(cluster, model)
        shares = cluster.status()["shares"]
        assert shares == pytest.approx([1 / 3] * 3, abs=1 / CELLS)
        kinds = Counter(event["kind"] for event in cluster.events.list())
        assert kinds["lost"] == kinds["recovered"] == 1
        (lost,) = cluster.events.list("lost")
        assert lost["pid"] == before[1]
        assert lost["why"], "something is always said of why"
        until(lambda: "signal 9" in cluster.events.list("lost")[0]["why"])


def _bytes_read(pid: int) -> int:
    text = Path(f"/proc/{pid}/io").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("rchar")).split()[1])


def _opened(pid: int, folder: Path) -> list[str]:
    found = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    return [name for name in found if name.startswith(str(folder))]


def test_a_process_that_hangs_is_replaced_and_refused_when_it_wakes_up(tmp_path: Path) -> None:
    launcher, model = Processes(MAKER), Model(42)
    with RemoteCluster(
        launcher, 2, checkpoint=tmp_path, every=2, timeout=60, silence=3.0
    ) as cluster:
        for _ in range(3):
            commit(cluster, model)
        hung = cluster.status()["processes"][1]["pid"]
        ticket = next(t for t, process in launcher.processes.items() if process.pid == hung)
        os.kill(hung, signal.SIGSTOP)
        started = time.monotonic()
        commit(cluster, model)
        assert time.monotonic() - started > 2
        check(cluster, model)
        (lost,) = cluster.events.list("lost")
        assert (lost["worker"], lost["pid"]) == (1, hung)
        assert "no sign of life" in lost["why"]
        assert len(cluster.events.list("recovered")) == 1
        assert hung not in {each["pid"] for each in cluster.status()["processes"]}
        if launcher.processes[ticket].poll() is None:
            os.kill(hung, signal.SIGCONT)
        for _ in range(3):
            commit(cluster, model)
            check(cluster, model)
        until(lambda: launcher.processes[ticket].poll() is not None)


def sleeping_maker(folder: Path) -> Maker:
    """A program whose code sleeps for the number that a row has."""

    def slowly(row: dict[str, Any]) -> list[dict[str, Any]]:
        time.sleep(row["seconds"])
        return [row]

    flow = rr.Dataflow("slow")
    rows = flow.input("rows", {"key": pl.Int64, "seconds": pl.Float64})
    slow = rows.flat_map(slowly, {"key": pl.Int64, "seconds": pl.Float64})
    flow.output("counts", slow.group_by("key").count())
    return Maker(flow.plan, 2)


def test_slow_code_is_reported_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(signs, "SLOW_CALL", 1.5)
    launcher = Processes(sleeping_maker(tmp_path))
    with RemoteCluster(
        launcher, 2, checkpoint=tmp_path, every=None, timeout=60, silence=2.5
    ) as cluster:
        pids = [each["pid"] for each in cluster.status()["processes"]]
        batch = pa.record_batch({"key": [1], "seconds": [6.0], "diff": [1]})
        epoch = cluster.submit({"rows": batch})
        seen = []
        while cluster.completed <= epoch:
            seen += [each for each in cluster.status()["processes"] if each["doing"]]
            time.sleep(0.2)
        assert [
            each["pid"] for each in cluster.status()["processes"]
        ] == pids  # nobody was thought dead
        assert {each["doing"] for each in seen} == {"flat-map-1"}
        assert max(each["for"] for each in seen) > 3
        assert cluster.events.list("lost") == []
        assert {event["node"] for event in cluster.events.list("slow code")} == {"flat-map-1"}
        assert "it lives, and is waited for" in caplog.text


class Hampered(Maker):
    """Makes instances of which that of the first worker takes its time."""

    def __call__(self, index: int, shards: Any, epoch: int, states: Any) -> Any:
        made = super().__call__(index, shards, epoch, states)
        if index == 0:
            work, share = made.work, shards.shares[0]

            def slowly() -> bool:
                did = work()
                if did:
                    time.sleep(0.02 * share)  # it is as slow as it has keys
                return did

            made.work = slowly  # type: ignore[method-assign]
        return made


def test_keys_move_away_from_a_straggler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("riverrun.runtime.health.balance.WINDOW", 1.5)
    monkeypatch.setattr(worker_process, "BEAT", 0.3)
    model, maker = Model(43), Hampered(MAKER.plan, 2)
    with RemoteCluster(
        Threads(maker), 2, checkpoint=tmp_path, every=None, timeout=60, balance="move"
    ) as cluster:
        deadline = time.monotonic() + 60
        while cluster.status()["shares"][0] > 0.4:
            assert time.monotonic() < deadline
            commit(cluster, model)
        check(cluster, model)
        (first, *_) = cluster.events.list("slow worker")
        assert first["worker"] == 0
        assert first["busy"] > 1.5 * first["others"]
        assert cluster.events.list("moved")[0]["away_from"] == 0
        commit(cluster, model)
        check(cluster, model)


def test_a_straggler_gets_a_colleague(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("riverrun.runtime.health.balance.WINDOW", 1.5)
    monkeypatch.setattr(worker_process, "BEAT", 0.3)
    model, maker = Model(44), Hampered(MAKER.plan, 2)
    with RemoteCluster(
        Threads(maker), 2, checkpoint=tmp_path, every=None, timeout=60, balance="grow", most=3
    ) as cluster:
        deadline = time.monotonic() + 60
        while cluster.status()["workers"] < 3:
            assert time.monotonic() < deadline
            commit(cluster, model)
        check(cluster, model, changes=False)
        assert cluster.events.list("scaled")[-1]["workers"] == 3


def test_a_change_whose_newcomers_do_not_come_is_given_up(tmp_path: Path) -> None:
    class Few(Threads):
        def start(self, ticket: int) -> None:
            if ticket <= 2:
                super().start(ticket)

    model = Model(45)
    with RemoteCluster(Few(MAKER), 2, checkpoint=tmp_path, every=None, timeout=2) as cluster:
        commit(cluster, model)
        with pytest.raises(rr.RiverrunError, match="cannot go on with 3 workers") as caught:
            cluster.scale(3)
        assert caught.value.code == "run.no_newcomer"
        commit(cluster, model)
        check(cluster, model)
        assert cluster.status()["workers"] == 2


def test_epochs_go_on_until_newcomers_are_there(tmp_path: Path) -> None:
    class Late(Threads):
        waiting = 0

        def start(self, ticket: int) -> None:
            if ticket <= 2:
                super().start(ticket)
            else:
                self.waiting = ticket

    launcher, model = Late(MAKER), Model(46)
    with RemoteCluster(launcher, 2, checkpoint=tmp_path, every=None, timeout=60) as cluster:
        commit(cluster, model)
        with cluster._changed:
            cluster._ask(lambda: cluster._coordinator.scale(3))
        for _ in range(3):
            commit(cluster, model)
            check(cluster, model)
        assert cluster.status()["workers"] == 2
        assert cluster.status()["becoming"] == 3
        Threads.start(launcher, launcher.waiting)
        until(lambda: cluster.status()["workers"] == 3 and cluster._recovered())
        commit(cluster, model)
        check(cluster, model)


# ---- between the grant and taking part


class Hanging:
    """Has the process that is granted an identity as the `at`-th one hang before it takes part, until it is woken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.woken, self.granted = threading.Event(), list[int]()
        made = worker_process.Worker

        def hang(incarnation: int, make: Any) -> Any:
            self.granted.append(incarnation)
            if len(self.granted) == at:
                self.woken.wait(60)
            return made(incarnation, make)

        monkeypatch.setattr(worker_process, "Worker", hang)


@pytest.mark.parametrize("durable", [True, False])
def test_a_process_that_hangs_before_it_takes_part_is_replaced_and_refused_when_it_wakes_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    hanging, launcher, model = Hanging(monkeypatch, 1), Threads(MAKER), Model(47)
    with RemoteCluster(
        launcher, 2, checkpoint=tmp_path if durable else None, timeout=30, silence=2.0
    ) as cluster:
        commit(cluster, model)
        assert len(hanging.granted) == 3
        (lost,) = cluster.events.list("lost")
        assert "no sign of life" in lost["why"]
        members = list(cluster._coordinator.members)
        assert hanging.granted[0] not in members
        assert launcher.why == {}
        hanging.woken.set()
        until(lambda: len(launcher.why) == 1)  # it was told that it is nobody any more
        commit(cluster, model)
        check(cluster, model)
        assert cluster._coordinator.members == members
        assert len(cluster.events.list("lost")) == 1


def test_a_silence_that_is_long_leaves_time_for_another_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hanging, model = Hanging(monkeypatch, 2), Model(48)
    with RemoteCluster(Threads(MAKER), 2, timeout=6, silence=60.0) as cluster:
        hanging.woken.set()
        commit(cluster, model)
        check(cluster, model)


def test_a_newcomer_that_hangs_before_it_takes_part_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, model = Hanging(monkeypatch, 3), Model(49)
    with RemoteCluster(
        Threads(MAKER), 2, checkpoint=tmp_path, every=None, timeout=30, silence=2.0
    ) as cluster:
        commit(cluster, model)
        cluster.scale(3)
        assert len(hanging.granted) == 4
        hanging.woken.set()
        commit(cluster, model)
        check(cluster, model)
        assert cluster.status()["workers"] == 3


def test_a_process_that_waits_for_the_storage_before_it_takes_part_is_not_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, back = worker_process.open_storage, time.monotonic() + 6

    def away(*given: Any, **options: Any) -> Any:
        if time.monotonic() < back:
            raise CheckpointError("storage.away", "it is away", hint="")
        return opened(*given, **options)

    monkeypatch.setattr(worker_process, "open_storage", away)
    launcher, model = Threads(MAKER), Model(50)
    with RemoteCluster(launcher, 2, checkpoint=tmp_path, timeout=30, silence=2.0) as cluster:
        commit(cluster, model)
        check(cluster, model)
        assert cluster.events.list("lost") == []
        assert len(launcher.threads) == 2


# ---- who is slow, and who only looks it


def named(paces: list[float], done: list[int] | None) -> int | None:
    """Who is named when workers are busy for such parts of the time, and do so much in a second."""
    balancer = Balancer()
    for second in range(20):
        for member, pace in enumerate(paces):
            touched = 0 if done is None else done[member] * second
            balancer.observe(member, pace * second, second, touched)
        slow = balancer.look(range(len(paces)), [1 / len(paces)] * len(paces), second)
        if slow is not None:
            return slow.index
    return None


@pytest.mark.parametrize(
    ("paces", "done", "slow"),
    [
        ([0.9, 0.5], [100, 100], None),  # as much to do, and half of a core: a neighbour
        ([0.5, 0.9, 0.5], [110, 100, 90], None),
        ([0.95, 0.4], [100, 100], 0),  # no neighbour takes more than half
        ([0.9, 0.5], [180, 100], 0),  # more to do
        ([0.9, 0.5], [60, 100], 0),  # less to do, after shares have moved, and slow all the same
        ([0.9, 0.5], None, 0),  # nobody knows what was done
        ([0.6, 0.5], [180, 100], None),
    ],
)
def test_a_neighbour_on_the_same_core_makes_no_straggler(
    paces: list[float], done: list[int] | None, slow: int | None
) -> None:
    assert named(paces, done) == slow


SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print("up", flush=True)
while True:
    pass
"""


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="only Linux tells")
def test_time_in_which_others_have_the_processor_is_not_busy() -> None:
    core, seconds, told = min(os.sched_getaffinity(0)), 2.0, list[float]()

    def compete() -> None:
        os.sched_setaffinity(0, {core})  # of this thread alone
        busy = BusyTime()
        began = time.monotonic()
        while time.monotonic() - began < seconds / 2:
            pass
        time.sleep(seconds / 4)  # this is its own
        busy.worked = time.monotonic() - began
        told.extend((busy.worked, busy.own()))

    spin = [sys.executable, "-c", SPIN, str(core)]
    with ExitStack() as others:
        for _ in range(2):
            other = others.enter_context(subprocess.Popen(spin, stdout=subprocess.PIPE, text=True))
            others.callback(other.kill)
            assert other.stdout is not None
            assert other.stdout.readline() == "up\n"
        thread = threading.Thread(target=compete)
        thread.start()
        thread.join()
    worked, own = told
    assert worked >= seconds * 3 / 4
    assert seconds / 4 < own < 0.8 * worked


def test_a_newcomer_loads_the_kernels_that_others_have_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[list[str]] = []
    monkeypatch.setattr(compiling, "load", lambda names: loaded.append(list(names)))
    monkeypatch.setattr(worker_process, "BEAT", 0.1)
    launcher, model = Threads(MAKER), Model(45)
    with RemoteCluster(launcher, 1, checkpoint=tmp_path, every=None, timeout=60) as cluster:
        commit(cluster, model)
        called = compiling.used()
        until(lambda: set(called) <= set(cluster._admission.kernels))
        cluster.scale(2)
        until(lambda: len(loaded) == 2)
        commit(cluster, model)
        check(cluster, model)
    assert loaded[0] == []
    assert set(called) <= set(loaded[1])
    assert all(name.startswith("riverrun.state.kernels.") for name in called)


def test_the_first_worker_loads_the_kernels_that_the_plan_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[list[str]] = []
    monkeypatch.setattr(compiling, "load", lambda names: loaded.append(list(names)))
    model = Model(46)
    with RemoteCluster(Threads(MAKER), 1, timeout=60, plan=MAKER.plan) as cluster:
        commit(cluster, model)
        check(cluster, model)
        until(lambda: len(loaded) == 1)
    assert loaded == [kernels_of(MAKER.plan)]
