"""Processes: workers as processes of this machine, without Spark and without Java.

``flow.run(on="processes", workers=4)`` leads here. Each worker is a Python process of its own, with a core of its own
where there is one. As on Spark, a `RemoteCluster` in this process leads the workers, here over connections of the
loopback interface; so recovery, rescaling, balance and memory budgets are the same. Laws:

- **The same program.** A worker is started by the interpreter of this process, with its ``sys.path``, and in the
  working folder that this process had when the run began. The plan travels by cloudpickle: what is defined in
  ``__main__`` or in a notebook travels as code, what is in a module is imported there.
- **Secret.** The token of the run, and the program, go through a socket that this process and the worker share.
  They are in no file, on no command line and in no environment, where other users of the machine could read them.
- **No orphan.** A worker does not outlive its driver, however the driver ends. When the socket's other end closes, or
  the worker has another parent, the worker ends within seconds; on Linux the kernel kills the worker at once, whatever
  it is doing.
- **Undisturbed.** Workers have process groups of their own and ignore SIGINT: Ctrl-C in a terminal reaches the driver
  only.
- **Replaced.** When a worker's process dies, the run records the signal or exit code and the last words of the process,
  and another process takes its place.

What workers print goes where the driver's output goes.

>>> import polars as pl, riverrun as rr
>>> flow = rr.Dataflow("words")
>>> words = flow.input("words", {"word": pl.String})
>>> flow.output("counts", words.group_by("word").count())
>>> with flow.run(on="processes", workers=2) as run:
...     run.insert("words", [("sea",), ("sky",), ("sea",)])
...     run.commit()
...     run.read("counts").rows()
<Commit of epoch 0: done>
[('sea', 2), ('sky', 1)]

Cost: a second or two until the workers are there, some 200 MB of memory for each, and the cost that `remote` tells.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.spawn import get_executable
from threading import Lock, Thread
from typing import Any

from riverrun.engine.instance import Maker
from riverrun.engine.messages import MakeInstance
from riverrun.errors import PlanError
from riverrun.forks import ProcessMark
from riverrun.runtime.carried import CarriedRun
from riverrun.runtime.carriers import Carrier, ClusterRequest
from riverrun.runtime.machine import available_cores, available_memory
from riverrun.runtime.program import pack_program, unpack_program
from riverrun.runtime.remote import RemoteCluster
from riverrun.runtime.worker_process import Rendezvous, host_worker

_LOG = logging.getLogger(__name__)
_LOOPBACK = "127.0.0.1"
_LAST_WORDS = 2000  # bytes of the reason that a worker gives for its end
_PARENT_LOOK = 1.0  # seconds after which a worker looks who its parent is
_LEAVING = 3.0  # seconds that a worker without a driver has to leave in order
_PR_SET_PDEATHSIG = 1
_THREADS = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS")
"""Variables of the environment by which Polars and Arrow know how many threads to begin in a process."""
_PROGRAM = """\
import marshal, sys
with open(int(sys.argv[1]), "rb", closefd=False) as program:
    sys.path[:], length = marshal.load(program)
    from riverrun.runtime.processes import work
    work(program.read(length), int(sys.argv[1]))
"""
"""What a worker runs. Until ``sys.path`` is the driver's, it imports what is built into the interpreter only."""


class ProcessLauncher:
    """Starts workers as processes of this machine: a `remote.Launcher`."""

    def __init__(self, make_instance: MakeInstance, *, workers: int = 1) -> None:
        """`workers` is the number of workers expected to run at a time: the threads of libraries share the cores."""
        self._make = pack_program(make_instance)
        self._path = [_absolute(os.fspath(folder)) for folder in sys.path]
        self._folder = os.getcwd()
        self._threads = str(max(available_cores() // workers, 1))
        self._lock = Lock()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._waiting: dict[int, Thread] = {}
        self._stopped: set[int] = set()
        self._over = False

    def open(self, rendezvous: Rendezvous, ended: Callable[[int, str], None]) -> None:
        self._rendezvous = rendezvous
        self._ended = ended

    def start(self, ticket: int) -> None:
        thread = Thread(
            target=self._work, args=(ticket,), name=f"riverrun-worker-{ticket}", daemon=True
        )
        with self._lock:
            self._waiting[ticket] = thread
        thread.start()

    def _work(self, ticket: int) -> None:
        """In a thread: one process, from its start to its end.

        The kernel kills a process when the thread that started the process ends, so this thread waits for the process
        (the *no orphan* law).
        """
        why = "it ended"
        try:
            ours, theirs = socket.socketpair()
            with ours:
                with theirs:
                    process = self._begin(ticket, theirs.fileno())
                with suppress(OSError):  # the process is gone already, and its exit code says more
                    ours.sendall(self._message(ticket))
                code = process.wait()
                ours.setblocking(False)
                last_words = b""
                with suppress(OSError):
                    last_words = ours.recv(_LAST_WORDS)
            why = last_words.decode(errors="replace") or _ending(code)
            if code and not self._over and ticket not in self._stopped:
                _LOG.warning("worker process %d ended: %s", process.pid, why)
        except OSError as error:
            why = f"its process could not be started: {error}"
        finally:
            with self._lock:
                self._processes.pop(ticket, None)
                self._waiting.pop(ticket, None)
                self._stopped.discard(ticket)
            self._ended(ticket, why)

    def _begin(self, ticket: int, descriptor: int) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [get_executable(), "-P", "-c", _PROGRAM, str(descriptor)],
            stdin=subprocess.DEVNULL,
            pass_fds=[descriptor],
            cwd=self._folder,
            env={**dict.fromkeys(_THREADS, self._threads), **os.environ},
            process_group=0,
        )
        with self._lock:
            self._processes[ticket] = process
            is_wanted = not self._over and ticket not in self._stopped
        if not is_wanted:
            process.kill()
        return process

    def _message(self, ticket: int) -> bytes:
        """What a worker is sent on its socket: ``sys.path``, and what `work` takes."""
        packed = pack_program((os.getpid(), replace(self._rendezvous, ticket=ticket), self._make))
        return marshal.dumps((self._path, len(packed))) + packed

    def stop(self, ticket: int) -> None:
        with self._lock:
            if ticket not in self._waiting:
                return
            self._stopped.add(ticket)
            process = self._processes.get(ticket)
        if process is not None:
            process.kill()

    def advice(self, present: int, wanted: int) -> str:
        return (
            "what a worker said last is on the standard error of this process; a lack of memory, or a limit on "
            f"processes (ulimit -u), ends them; run with fewer workers than {wanted}, or give them longer: timeout="
        )

    def close(self) -> None:
        with self._lock:
            self._over = True
            processes, threads = list(self._processes.values()), list(self._waiting.values())
        for process in processes:
            process.kill()
        for thread in threads:
            thread.join(10)


def _absolute(folder: str) -> str:
    """An entry of ``sys.path`` as an absolute path, where it is a folder; some entries are none."""
    return os.path.abspath(folder) if not folder or os.path.exists(folder) else folder


def _ending(code: int) -> str:
    """How a process ended, in words, where the process itself has not said why."""
    if code < 0:
        with suppress(ValueError):
            return f"signal {-code} ({signal.Signals(-code).name})"
        return f"signal {-code}"
    return f"exit code {code}; its standard error may say more"


# ---- in the process of a worker


def work(program: bytes, descriptor: int) -> None:
    """Be a worker, until the process ends. The driver is at the other end of the socket `descriptor`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    driver = socket.socket(fileno=descriptor)
    driver.set_inheritable(False)
    try:
        parent, rendezvous, make = unpack_program(program)
        _end_with(parent, driver)
        why = host_worker(rendezvous, unpack_program(make))
    except BaseException as error:
        traceback.print_exc()
        why = f"{type(error).__name__}: {error}"
        _say_why(driver, why)
        sys.exit(1)
    _say_why(driver, why)


def _say_why(driver: socket.socket, why: str) -> None:
    """Tell the driver why this worker ends."""
    with suppress(OSError):
        driver.sendall(why.encode()[:_LAST_WORDS])


def _end_with(parent: int, driver: socket.socket) -> None:
    """End this process when its driver ends."""
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the driver ended before the kernel was asked
        os._exit(1)
    Thread(target=_watch, args=(parent, driver), name="riverrun-driver", daemon=True).start()


def _watch(parent: int, driver: socket.socket) -> None:
    """In a thread: notice that the driver is gone, by its socket or by this process's parent.

    A process that the driver has forked may keep the socket open, but is not the parent of this one.
    """
    while os.getppid() == parent:
        there, _, _ = select.select([driver], [], [], _PARENT_LOOK)
        if there:  # the driver sends nothing any more, so the socket has ended
            break
    # The connections are closed too: meanwhile the worker leaves in order, and deletes its folders.
    time.sleep(_LEAVING)
    os._exit(1)


# ---- the carrier


class ProcessCluster(RemoteCluster):
    """A run whose workers are processes of this machine."""

    def __init__(self, request: ClusterRequest) -> None:
        self._memory = request.memory
        self._mark = ProcessMark()
        self._check_room(request.workers)
        # Epochs go on while a result is read, so one epoch more is kept than the user asks for.
        make = Maker(request.plan, request.history + 1, request.memory)
        launcher = ProcessLauncher(make, workers=request.workers)
        atexit.register(self._end_with_python)
        try:
            super().__init__(
                launcher,
                request.workers,
                host=_LOOPBACK,
                timeout=request.timeout,
                silence=request.silence,
                balance=request.balance,
                most=request.most_workers,
                plan=request.plan,
                **request.durability,
            )
        except BaseException:
            atexit.unregister(self._end_with_python)
            raise

    def scale(self, workers: int) -> None:
        self._check_room(workers)
        super().scale(workers)

    def _check_room(self, workers: int) -> None:
        """Refuse memory budgets that together exceed the memory there is."""
        room = available_memory()
        if self._memory is None or room is None or self._memory * workers <= room:
            return
        raise PlanError(
            "processes.memory",
            f"cannot give each of {workers} workers {self._memory >> 20} MiB: this process and its workers have "
            f"{room >> 20} MiB together",
            hint=f"run with fewer workers, or give each less: memory='{room * 4 // 5 // workers >> 20}m'",
            memory=self._memory,
            room=room,
        )

    def close(self) -> None:
        try:
            super().close()
        finally:
            atexit.unregister(self._end_with_python)

    def _end_with_python(self) -> None:
        """At the end of Python: close a run that nobody has closed, so workers leave in order and the path is free."""
        if self._mark.is_ours:
            with suppress(Exception):
                self.close()


class ProcessCarrier(Carrier):
    """The carrier for ``on="processes"``."""

    place = "in processes of this machine"
    takes = frozenset({"balance", "silence"})

    def start(self, request: ClusterRequest) -> CarriedRun:
        return ProcessCluster(request)

    def suitable_workers(self, on: Any) -> int:
        """One worker for each core that this process may use."""
        return available_cores()


CARRIER = ProcessCarrier()
