"""Footprint: the connections, threads, processes, folders and loans that a recovered run holds of its machine.

`settled` waits, for a limited time, until the laws hold. They are about a run at rest, whichever workers were killed
before. Laws:

- **Nobody gone.** No connection leads to a process that is gone, and no child of the driver is a zombie.
- **A few for each.** There are so many connections, threads and processes for each worker, and no more however often
  workers were lost.
- **Nothing open.** No file of the checkpoint path is open. Where no state is spilled, there is no temporary folder.
- **Nothing lent.** No worker keeps rows that nobody can ask for any more. (On Spark, DataFrames can for a while.)
"""

from __future__ import annotations

import gc
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from riverrun.storage.lease import OWNER

SETTLE = 30.0  # seconds; the machine may be busy with others
OF_A_WORKER = ("riverrun-link", "riverrun-line", "riverrun-worker")
PASSING = ("riverrun-fetch",)
CLOSING = re.compile(r"Thread-\d+ \((close|_stop|shutdown)\)")
NATIVE = 80
"""Threads of a worker process, at most: Arrow and Polars have pools of their own, bounded ones."""


def port_of(address: str) -> int:
    port = urlsplit(address).port
    assert port is not None
    return port


def connections(pid: int) -> list[tuple[int, int]]:
    """The local and the remote port of every TCP socket of a process; 0 is remote where it listens."""
    table = {}
    for file in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{file}").read_text().splitlines()[1:]:
            fields = line.split()
            ports = [int(fields[at].rpartition(":")[2], 16) for at in (1, 2)]
            table[fields[9]] = (ports[0], ports[1])
    pairs = []
    for name in opened(pid):
        inode = name.removeprefix("socket:[").removesuffix("]")
        if name.startswith("socket:") and inode in table:
            pairs.append(table[inode])
    return pairs


def opened(pid: int) -> list[str]:
    """What the descriptors of a process are of."""
    names = []
    with suppress(OSError):  # it is gone
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                names.append(os.readlink(descriptor))
    return names


def children(pid: int) -> dict[int, str]:
    """The processes that a process has started, and the state of each."""
    states = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid:
                states[int(stat.parent.name)] = state
    return states


class Footprint:
    """The laws for one run. Made before it starts; `folder` is where temporary files go, if that is its own."""

    def __init__(self, path: str, folder: Path | None = None) -> None:
        self.path, self.folder = path, folder
        self.before = set(threading.enumerate())
        self.children = set(children(os.getpid()))
        self.ports: set[int] = set()
        """Those of all workers that there were."""

    def settled(self, run: Any, *, children: bool, seconds: float = SETTLE) -> None:
        """Return when all laws hold; raise which do not after so many seconds. `children` tells whether workers are
        processes that this one has started."""
        self._await(lambda: self.broken(run, children=children), "at rest", seconds)

    def gone(self, address: str, seconds: float = SETTLE) -> None:
        """Return when nothing is left of a run that was at an address and is closed."""
        self.ports.add(port_of(address))
        self._await(self._left, "after its end", seconds)

    def _await(self, broken: Callable[[], list[str]], when: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while said := broken():
            if time.monotonic() > deadline:
                raise AssertionError(f"{seconds:g} s {when}: {'; '.join(said)}")
            time.sleep(0.1)

    def _left(self) -> list[str]:
        gc.collect()
        said = [
            f"a connection from {near} to {far}"
            for near, far in connections(os.getpid())
            if {near, far} & self.ports
        ]
        said += [name for name in opened(os.getpid()) if name.startswith(self.path)]
        if Path(self.path, OWNER).exists():
            said.append("the lease")
        if self.folder is not None:
            said += sorted(os.listdir(self.folder))
        threads = set(threading.enumerate()) - self.before
        said += [thread.name for thread in threads if thread.name.startswith("riverrun-")]
        return said

    def broken(self, run: Any, *, children: bool) -> list[str]:
        """What is not as it should be now."""
        gc.collect()
        cluster = run._cluster
        status = cluster.status()
        there = [each for each in status["processes"] if each]
        if status["phase"] != "running" or len(there) < status["workers"]:
            return [f"it is not at rest: {status['phase']}, {len(there)} of {status['workers']}"]
        count = len(cluster._crew.starts)
        ports = {port_of(each["address"]) for each in there}
        self.ports |= ports
        said = self._driver(cluster, ports, count)
        if children:
            said += self._children(count)
        for each in there:
            said += self._worker(each["pid"], port_of(each["address"]), ports, count)
        if self.folder is not None and (left := sorted(os.listdir(self.folder))):
            said.append(f"temporary folders: {left}")
        with cluster._changed:
            cluster._send_released()  # what is not needed is given back; the clock goes on at its own pace
        lent = [answer["leases"] for _, answer in cluster._questions.ask_all("stats")]
        serving = getattr(run, "_serving", None)
        lists = [] if serving is None else list(serving._lent.values())
        asked_for = sum(len(portion.loans) for portions in lists for portion in portions)
        if sum(lent) > asked_for:
            said.append(f"loans at the workers: {lent}, of which {asked_for} can be asked for")
        return said

    def _driver(self, cluster: Any, ports: set[int], count: int) -> list[str]:
        said, own = [], port_of(cluster.address)
        pairs = connections(os.getpid())
        to_workers = [remote for _, remote in pairs if remote in ports]
        if len(to_workers) > 3 * count:  # a link, a line, and one that is being made or ended
            said.append(f"{len(to_workers)} connections from the driver to {count} workers")
        here = [local for local, _ in pairs if local == own]
        if len(here) > 1 + 3 * count:
            said.append(f"{len(here)} connections to the driver, of {count} workers")
        if gone := [far for near, far in pairs if near != own and far in self.ports - ports]:
            said.append(f"connections of the driver to workers that are gone: {gone}")
        if files := [name for name in opened(os.getpid()) if name.startswith(self.path)]:
            said.append(f"open files of the checkpoint path: {files}")
        stems: Counter[str] = Counter()
        for thread in set(threading.enumerate()) - self.before:
            name = thread.name
            stems["closing" if CLOSING.match(name) else "-".join(name.split("-")[:2])] += 1
        limits = dict.fromkeys(OF_A_WORKER, count) | dict.fromkeys((*PASSING, "closing"), 0)
        limits["riverrun-guest"] = len(here) - 1  # one for each connection, none without
        for stem, many in stems.items():
            most = limits.get(stem, 1 if stem.startswith("riverrun-") else None)
            if stem.startswith("riverrun-sink"):
                most = None  # one for each sink, which are the user's
            if most is not None and many > most:
                said.append(f"{many} threads called {stem}, where {most} are needed")
        return said

    def _children(self, count: int) -> list[str]:
        said = []
        ours = {
            pid: state for pid, state in children(os.getpid()).items() if pid not in self.children
        }
        if dead := [pid for pid, state in ours.items() if state == "Z"]:
            said.append(f"children that are dead and not buried: {dead}")
        if len(ours) > count:
            said.append(f"{len(ours)} processes for {count} workers")
        return said

    def _worker(self, pid: int, own: int, ports: set[int], count: int) -> list[str]:
        said = []
        try:
            pairs = connections(pid)
            native = len(os.listdir(f"/proc/{pid}/task"))
        except OSError:
            return [f"worker {pid} is gone"]
        here = sum(local == own for local, _ in pairs)
        if here > 1 + 3 + 2 * count:  # it listens; the driver's; its peers'
            said.append(f"{here} connections to worker {pid}, with {count} workers")
        peers = [remote for _, remote in pairs if remote in ports - {own}]
        if len(peers) > 2 * count:
            said.append(f"{len(peers)} connections from worker {pid} to its peers")
        if gone := [far for near, far in pairs if near != own and far in self.ports - ports]:
            said.append(f"connections of worker {pid} to peers that are gone: {gone}")
        if native > NATIVE:
            said.append(f"{native} threads in worker {pid}")
        if files := [name for name in opened(pid) if name.startswith(self.path)]:
            said.append(f"open files of the checkpoint path in worker {pid}: {files}")
        return said
