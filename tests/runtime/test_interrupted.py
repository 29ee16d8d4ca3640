"""Calls of a cluster whose workers are elsewhere, interrupted at any instruction: epochs go on, and nothing is lost.

Workers are threads of this process, with all of the wire; in some runs they are real processes, which an interrupt of
this one does not reach, and which end with their cluster.
"""

from __future__ import annotations

import copy
import faulthandler
import random
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from riverrun import interrupts
from riverrun.runtime.carried import Standing
from riverrun.runtime.remote import RemoteCluster
from tests.engine.flows import Model, check, graph_maker
from tests.interrupting import HANG, Alarm, traced, watched_handlers
from tests.runtime.launchers import Processes, Threads, gone_by
from tests.soaking import Shown, draws, first_seed, some

MAKER = graph_maker()
RAISED = (KeyboardInterrupt, Alarm, SystemExit)
CALLS = (
    "commit",
    "commit",
    "submit",
    "wait",
    "read",
    "checkpoint",
    "scale",
    "status",
    "close",
    "start",
)
STARTING = ("scale", "close", "start")


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    with watched_handlers():
        yield


@dataclass
class Starter:
    """Starts clusters of one kind, and knows the launchers of all of them."""

    launcher: type[Threads]
    path: Path | None
    launchers: list[Threads] = field(default_factory=list)

    def __call__(self, workers: int) -> RemoteCluster:
        durable: dict[str, Any] = (
            {} if self.path is None else {"checkpoint": self.path, "every": None}
        )
        self.launchers.append(self.launcher(MAKER))
        return RemoteCluster(self.launchers[-1], workers, timeout=60, **durable)

    def check_all_ended(self) -> None:
        """No process is left, however its cluster was interrupted."""
        for launcher in self.launchers:
            if isinstance(launcher, Processes):
                for process in launcher.processes.values():
                    process.wait(timeout=30)


def _act(
    name: str,
    cluster: RemoteCluster,
    inputs: Any,
    epoch: int,
    source: random.Random,
    start: Starter,
) -> RemoteCluster | None:
    """A call by its name; the cluster that it starts, if it does."""
    match name:
        case "commit":
            cluster.wait(cluster.submit(inputs))
        case "submit":
            cluster.submit(inputs)
        case "wait":
            cluster.wait(epoch)
        case "read" if cluster.completed:
            for part in cluster.read("degrees", cluster.completed - 1):
                with interrupts.deferred():
                    list(part.batches())
        case "checkpoint":
            cluster.checkpoint()
        case "scale":
            cluster.scale(source.randrange(1, 4))
        case "status":
            cluster.status()
            cluster.stats()
        case "close":
            cluster.close()
        case "start":  # as a run does it
            started: RemoteCluster | None = None
            try:
                with interrupts.deferred():
                    started = start(2)
                return started
            except BaseException:
                if started is not None:
                    started.close()
                raise
    return None


@pytest.mark.parametrize("durable", [False, True])
def test_calls_of_a_remote_cluster(durable: bool, tmp_path: Path) -> None:
    _interrupt_calls(Threads, durable, tmp_path, 12, 5 + durable)


@pytest.mark.soak
@pytest.mark.parametrize("durable", [False, True])
def test_many_calls_of_a_remote_cluster(durable: bool, tmp_path: Path) -> None:
    trials = draws(12, sample=40, soak=300)
    _interrupt_calls(Threads, durable, tmp_path, trials, first_seed(50 + durable))


@pytest.mark.sampled
@pytest.mark.parametrize("durable", some([True, False], 1))
def test_calls_of_a_cluster_of_processes(durable: bool, tmp_path: Path) -> None:
    _interrupt_calls(Processes, durable, tmp_path, 8, 7 + durable, restarts=1)


@pytest.mark.soak
@pytest.mark.parametrize("durable", [False, True])
def test_many_calls_of_a_cluster_of_processes(durable: bool, tmp_path: Path) -> None:
    trials = draws(8, sample=15, soak=100)
    _interrupt_calls(
        Processes, durable, tmp_path, trials, first_seed(70 + durable), restarts=trials // 5
    )


def _interrupt_calls(
    launcher: type[Threads],
    durable: bool,
    tmp_path: Path,
    trials: int,
    seed: int,
    restarts: int | None = None,
) -> None:
    """Interrupt so many calls. Of those that start processes, which takes seconds, there are `restarts` at most."""
    source = random.Random(seed)
    path = tmp_path / "path" if durable else None
    before = set(threading.enumerate())
    model, shown = Model(seed), Shown(hits=3)
    start = Starter(launcher, path)
    cluster = start(2)
    for trial in shown.turns(trials):
        faulthandler.dump_traceback_later(HANG, exit=True)
        name = source.choice(CALLS)
        if path is None and name in ("scale", "checkpoint", "close", "start"):
            name = "commit"
        if name in STARTING and restarts is not None:
            restarts -= 1
            name = name if restarts >= 0 else "commit"
        later = copy.deepcopy(model)
        inputs, epoch = later.draw(), cluster.epoch
        if name == "wait":
            cluster.submit(inputs)
        if name == "start":
            cluster.close()
        made: Any = None
        at = source.randrange(1, 60 if source.random() < 0.4 else 900)
        number = source.choice([signal.SIGINT, signal.SIGTERM, signal.SIGALRM])
        try:
            again = source.choice([0, 40]) if number == signal.SIGINT else 0
            with traced(at, number, fine=source.random() < 0.3, again=again):
                try:
                    made = _act(name, cluster, inputs, epoch, source, start)
                except RAISED:
                    shown["hits"] += 1
            assert interrupts._gate.nesting == 0
            if made is not None:
                made.close()
            if name in ("close", "start"):
                cluster.close()
                cluster = start(source.randrange(1, 4))
            if cluster.epoch > epoch and cluster.standing(epoch) in (
                Standing.ACCEPTED,
                Standing.COMPLETE,
            ):  # whether or not anybody waited
                model = later
                cluster.wait(epoch)
            if cluster.completed:
                check(cluster, model, changes=False)
            execution = cluster.status()["execution"]
            cluster.wait(cluster.submit(model.draw()))
            # Where a slow worker was presumed lost, the epoch may be older than what the run can look back to.
            check(cluster, model, changes=cluster.status()["execution"] == execution)
        except BaseException as error:
            error.add_note(f"trial {trial}: {name} at {at}, SEED={seed}")
            raise
    cluster.close()
    start.check_all_ended()
    gone_by(before, 30)
