"""Processes for workers, without Spark: threads of this process, or Python started by hand."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle

from riverrun.engine.hosting import Rendezvous, host

ROOT = Path(__file__).parents[2]


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
            self.why[ticket] = host(where, self.make_instance)
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


class Processes(Threads):
    """Every worker is a Python process; it can be killed."""

    def __init__(self, make_instance: Any) -> None:
        super().__init__(make_instance)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def _live(self, ticket: int) -> None:
        where = replace(self.rendezvous, ticket=ticket)
        program = (
            "import sys, cloudpickle; from riverrun.engine.hosting import host; "
            "print(host(*cloudpickle.load(sys.stdin.buffer)))"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT,
        )  # fmt: skip
        self.processes[ticket] = process
        said, _ = process.communicate(cloudpickle.dumps((where, self.make_instance)))
        code = process.returncode
        self.why[ticket] = said.decode().strip() or (f"signal {-code}" if code < 0 else "")
        self.ended(ticket, self.why[ticket])

    def stop(self, ticket: int) -> None:
        if ticket in self.processes:
            self.processes[ticket].kill()

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
        super().close()
