"""The laws of a footprint have teeth: what a run holds too much of is named."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.besieged import ProcessRun, Siege, temporary_folder
from tests.chaos.footprint import SETTLE, Footprint, port_of
from tests.chaos.sustained import program
from tests.runtime.launchers import Processes


@contextmanager
def sockets(port: int, count: int) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        yield


@contextmanager
def thread(name: str) -> Iterator[None]:
    over = threading.Event()
    made = threading.Thread(target=over.wait, name=name)
    made.start()
    try:
        yield
    finally:
        over.set()
        made.join()


@contextmanager
def folder(path: Path) -> Iterator[None]:
    path.mkdir()
    yield
    path.rmdir()


@contextmanager
def opened(path: Path) -> Iterator[None]:
    with path.open():
        yield


@contextmanager
def keeping(what: Any) -> Iterator[None]:
    yield
    del what


def await_law(said: str, broken: Callable[[], list[str]]) -> None:
    """Return when a broken law says this. A connection counts only once the driver's own thread has accepted it, which
    may be some time after the connection was made."""
    deadline = time.monotonic() + SETTLE
    while not re.search(said, found := "; ".join(broken())):
        assert time.monotonic() < deadline, (said, found)
        time.sleep(0.02)


def test_what_is_held_too_much_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "run")
    with temporary_folder(Siege(1, 0, "processes", path=path)) as scratch, ExitStack() as stack:
        assert scratch is not None
        footprint = Footprint(path, scratch)
        run = stack.enter_context(ProcessRun(program().plan, Processes, workers=1, checkpoint=path))
        run.insert("given", [(1, 1)])
        run.commit()
        footprint.settled(run, children=True)
        (worker,) = run._cluster.status()["processes"]
        driver, there = port_of(run._cluster.address), port_of(worker["address"])
        with socket.create_server(("127.0.0.1", 0)) as listening:
            gone = listening.getsockname()[1]  # as if a worker had been there
            footprint.ports.add(gone)
            cases: list[tuple[str, Callable[[], Any]]] = [
                ("connections from the driver to 1 workers", lambda: sockets(there, 4)),
                ("connections to the driver", lambda: sockets(driver, 5)),
                ("connections to worker", lambda: sockets(there, 9)),
                ("workers that are gone", lambda: sockets(gone, 1)),
                ("threads called riverrun-line", lambda: thread("riverrun-line")),
                ("threads called riverrun-fetch", lambda: thread("riverrun-fetch")),
                ("threads called closing", lambda: thread("Thread-7 (close)")),
                ("threads called riverrun-clock", lambda: thread("riverrun-clock")),
                ("temporary folders", lambda: folder(scratch / "riverrun-left")),
                ("open files of the checkpoint path", lambda: opened(Path(path, "owner.json"))),
                ("loans at the workers", lambda: keeping(run.read("out"))),
            ]
            for said, hold in cases:
                footprint.settled(run, children=True)  # what the case before held is let go of
                with hold():
                    await_law(said, lambda: footprint.broken(run, children=True))
        footprint.ports.discard(gone)
        footprint.settled(run, children=True)
        with sockets(driver, 1):
            stack.close()
            with pytest.raises(AssertionError, match="a connection"):
                footprint.gone(run._cluster.address, seconds=0.5)
        footprint.gone(run._cluster.address)
