"""Calls of a cluster whose workers are elsewhere, interrupted at any instruction: epochs go on, and nothing is lost."""

from __future__ import annotations

import copy
import faulthandler
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from riverrun import interrupts
from riverrun.engine.remote import RemoteCluster
from tests.engine.flows import Model, check, graph_maker
from tests.engine.launchers import Threads, gone_by
from tests.interrupting import HANG, Alarm, traced, watched_handlers
from tests.soaking import Shown, draws, first_seed

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


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    with watched_handlers():
        yield


def _start(workers: int, path: Path | None) -> RemoteCluster:
    durable: dict[str, Any] = {} if path is None else {"checkpoint": path, "every": None}
    return RemoteCluster(Threads(MAKER), workers, timeout=60, **durable)


def _act(
    name: str,
    cluster: RemoteCluster,
    inputs: Any,
    epoch: int,
    source: random.Random,
    path: Path | None,
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
                    started = _start(2, path)
                return started
            except BaseException:
                if started is not None:
                    started.close()
                raise
    return None


@pytest.mark.parametrize("durable", [False, True])
def test_calls_of_a_remote_cluster(durable: bool, tmp_path: Path) -> None:
    _interrupt_calls(durable, tmp_path, 12, 5 + durable)


@pytest.mark.soak
@pytest.mark.parametrize("durable", [False, True])
def test_many_calls_of_a_remote_cluster(durable: bool, tmp_path: Path) -> None:
    _interrupt_calls(durable, tmp_path, draws(12, sample=40, soak=1500), first_seed(50 + durable))


def _interrupt_calls(durable: bool, tmp_path: Path, trials: int, seed: int) -> None:
    source = random.Random(seed)
    path = tmp_path / "path" if durable else None
    before = set(threading.enumerate())
    model, shown = Model(seed), Shown(hits=3)
    cluster = _start(2, path)
    for trial in shown.turns(trials):
        faulthandler.dump_traceback_later(HANG, exit=True)
        name = source.choice(CALLS)
        if path is None and name in ("scale", "checkpoint", "close", "start"):
            name = "commit"
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
                    made = _act(name, cluster, inputs, epoch, source, path)
                except RAISED:
                    shown["hits"] += 1
            assert interrupts._gate.nesting == 0
            if made is not None:
                made.close()
            if name in ("close", "start"):
                cluster.close()
                cluster = _start(source.randrange(1, 4), path)
            if cluster.epoch > epoch:  # accepted, whether or not anybody waited
                model = later
                cluster.wait(epoch)
            if cluster.completed:
                check(cluster, model, changes=False)
            cluster.wait(cluster.submit(model.draw()))
            check(cluster, model)
        except BaseException as error:
            error.add_note(f"trial {trial}: {name} at {at}, SEED={seed}")
            raise
    cluster.close()
    gone_by(before, 30)
