"""Workers without Spark: threads of this process, or processes of the public launcher."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from riverrun.engine.instance import Maker
from riverrun.runtime.carriers import Carrier, ClusterRequest
from riverrun.runtime.processes import ProcessLauncher
from riverrun.runtime.remote import RemoteCluster
from riverrun.runtime.worker_process import Rendezvous, host_worker


def gone_by(before: set[threading.Thread], seconds: float = 60) -> None:
    """All threads that were not there before end, but those of gRPC."""
    deadline = time.monotonic() + seconds
    while left := {
        thread
        for thread in set(threading.enumerate()) - before
        if not isinstance(thread, threading._DummyThread)
    }:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


class Threads:
    """Every worker is a thread: all the wire, none of the processes."""

    def __init__(self, make_instance: Any) -> None:
        self.make_instance = make_instance
        self.threads: list[threading.Thread] = []
        self.why: dict[int, str] = {}

    def open(self, rendezvous: Rendezvous, ended: Callable[[int, str], None]) -> None:
        self.rendezvous, self.ended = rendezvous, ended

    def start(self, ticket: int) -> None:
        thread = threading.Thread(target=self._live, args=(ticket,), daemon=True)
        self.threads.append(thread)
        thread.start()

    def _live(self, ticket: int) -> None:
        where = replace(self.rendezvous, ticket=ticket)
        try:
            self.why[ticket] = host_worker(where, self.make_instance)
        except Exception as error:
            self.why[ticket] = f"{type(error).__name__}: {error}"
        self.ended(ticket, self.why[ticket])

    def stop(self, ticket: int) -> None:
        pass

    def advice(self, present: int, wanted: int) -> str:
        return "nothing helps"

    def close(self) -> None:
        for thread in self.threads:
            thread.join(5)


class Processes(ProcessLauncher):
    """The public launcher, which remembers its processes, and how each of them ended."""

    def __init__(self, make_instance: Any) -> None:
        super().__init__(make_instance)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.why: dict[int, str] = {}

    def open(self, rendezvous: Rendezvous, ended: Callable[[int, str], None]) -> None:
        def note(ticket: int, why: str) -> None:
            self.why[ticket] = why
            ended(ticket, why)

        super().open(rendezvous, note)

    def _begin(self, ticket: int, descriptor: int) -> subprocess.Popen[bytes]:
        process = self.processes[ticket] = super()._begin(ticket, descriptor)
        return process


@dataclass(frozen=True)
class Launched(Carrier):
    """Has a run's workers started by a launcher of the tests: ``flow.run(on=Launched(Threads))``."""

    launcher: Callable[[Any], Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    """What `RemoteCluster` is told in place of what the run says."""
    place = "by a launcher of the tests"
    takes = frozenset({"balance"})

    def start(self, request: ClusterRequest) -> RemoteCluster:
        options: dict[str, Any] = {
            "timeout": request.timeout,
            "silence": request.silence,
            "balance": request.balance,
            "most": request.most_workers,
            "plan": request.plan,
            **request.durability,
            **self.options,
        }
        launcher = self.launcher(Maker(request.plan, request.history + 1, request.memory))
        cluster = RemoteCluster(launcher, request.workers, **options)
        cluster.launcher = launcher  # type: ignore[attr-defined]
        return cluster

    def suitable_workers(self, on: Any) -> int:
        return 2
