"""A worker in a process of its own: its loop, its connections, its threads.

`host_worker` runs in a Spark task, or in a process of this machine. It asks the rendezvous which worker this process
is, opens an endpoint, and drives a `Worker` until the coordinator tells the worker to leave. All I/O of a worker is
here. Laws:

- **Identity is granted.** The rendezvous tells a process its incarnation. Of two processes that were started for one
  worker, each gets an incarnation of its own, or one is told to leave and ends.
- **Always listening.** Messages are received also while nothing may be sent: a worker whose links are full does no
  step, but receives, and gives credit. Threads open the links to peers, so a peer that is cut off holds nobody up. So
  two workers that wait for each other, or a loop of workers, always go on; and a slow worker slows its senders. (One
  wait is left: for the storage, where the rows of an epoch are in parcels there.)
- **Asked between steps.** The thread that works answers questions, between two steps; other threads read rows from
  views, while work goes on.
- **Not alone.** When the coordinator cannot be reached, or was not heard for too long, the process ends.
- **Signs of life.** A thread of its own sends a worker's signs of life, whatever the worker is doing. Between the grant
  and taking part, where no user's code runs, the working thread sends them itself, between one step and the next: there
  a worker that waits for a storage still shows life, and one that hangs in a call does not.
- **Warm.** The coordinator names the kernels that the plan needs, and others that workers have called. A newcomer loads
  these kernels while it reads its states, before rows wait for them.

"""

from __future__ import annotations

import gc
import os
import platform
import queue
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import pyarrow as pa

from riverrun.engine.coordinator.membership import SILENCE
from riverrun.engine.coordinator.resume import Resume, make_resuming
from riverrun.engine.loop_rounds import LoopRound
from riverrun.engine.messages import (
    COORDINATOR,
    STORAGE,
    Announce,
    Beat,
    Begin,
    Credit,
    Data,
    Failed,
    Feed,
    Forget,
    Kernels,
    LeaveRun,
    Loops,
    MakeInstance,
    NotReady,
    Outputs,
    Peers,
    Published,
    Read,
    Release,
    SaveRounds,
)
from riverrun.engine.reading import Portion
from riverrun.engine.worker import Worker
from riverrun.errors import BadMessage, CheckpointError, RiverrunError, TransportError
from riverrun.retry import is_outage, pause, persist
from riverrun.runtime.cluster import execute_and_catch
from riverrun.runtime.codec.fragments import Decoder, Fragment
from riverrun.runtime.health.busy import BusyTime
from riverrun.runtime.machine import freeze
from riverrun.runtime.network.client import Asker
from riverrun.runtime.network.connection import Credentials
from riverrun.runtime.network.endpoint import Endpoint
from riverrun.runtime.network.link import WINDOW, Link
from riverrun.runtime.uploads import Uploads
from riverrun.state.buffers import BUFFERS
from riverrun.state.kernels import compiling
from riverrun.state.preparing import make_ready
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.log import Log
from riverrun.storage.scratch import Scratch, sweep
from riverrun.storage.store import Storage, open_storage
from riverrun.storage.threads import SerialThread

BEAT = 1.0  # seconds between signs of life
LEFT_ALONE = 2 * SILENCE
"""Seconds of silence after which the coordinator is thought gone, at least."""
ANSWER = 600.0  # seconds that a question may wait for the thread that works
_DRAIN = 256
PROMPT = 16 << 10  # from so many bytes on, credit travels with the next messages to the sender
_FROM_COORDINATOR = (Begin, Feed, Announce, SaveRounds, Published, LeaveRun)
_FOR_THE_PROCESS = (Credit, Beat, Peers, Release, Forget)


@dataclass(frozen=True)
class Rendezvous:
    """Where a process asks which worker it is, and the credentials that it shows there."""

    address: str
    credentials: Credentials = field(repr=False)
    ticket: int = 0
    """The start that this process belongs to, for the launcher; it does not say which worker the process becomes."""
    resume: Resume | None = field(default=None, repr=False)
    """How to go on from the states of another program."""


def versions() -> dict[str, str]:
    """The versions that must be the same in all processes of a run."""
    from importlib.metadata import version

    running = {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "riverrun": sys.modules["riverrun"].__version__,
    }
    return running | {name: version(name) for name in ("pyarrow", "polars", "numpy")}


def host_worker(
    rendezvous: Rendezvous, make_instance: MakeInstance, address: str | None = None
) -> str:
    """Be a worker until the coordinator says to leave; return why this ended."""
    freeze()
    host_address = address or _own_address(rendezvous.address)
    worker = _WorkerHost(rendezvous, make_resuming(make_instance, rendezvous.resume), host_address)
    try:
        worker.join(rendezvous)
        return worker.live()
    finally:
        worker.close()


def _own_address(towards: str) -> str:
    """The address of this machine on the network that leads to another."""
    import socket
    from urllib.parse import urlsplit

    parts = urlsplit(towards)
    family, kind, _, _, target = socket.getaddrinfo(
        parts.hostname, parts.port, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


@dataclass(slots=True)
class _Stream:
    """A stream of fragments from one sender."""

    sender: int
    decoder: Decoder = field(default_factory=Decoder)


class _WorkerHost:
    def __init__(self, rendezvous: Rendezvous, make: MakeInstance, address: str) -> None:
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._streams: dict[object, _Stream] = {}
        self._taken: dict[int, int] = {}
        """The bytes of each sender for which no credit was given yet."""
        self._leader: object = None  # the stream of the coordinator: the first one that says so
        self._links: dict[int, Link] = {}
        self._addresses: dict[int, str] = {}
        self._leases: dict[int, Portion] = {}
        self._named: dict[int, list[str]] = {}  # the parcels of an epoch
        self._why = ""
        self._over = Event()
        self._heard = time.monotonic()
        self._busy = BusyTime()
        self._silence = LEFT_ALONE
        self._credentials = rendezvous.credentials
        self._make = make
        self._uploads: Uploads | None = None
        self.garbage = 0
        self._worker: Worker | None = None
        self._window = WINDOW
        self._storage_thread = SerialThread("riverrun-checkpoint")
        self._kernel_thread = SerialThread("riverrun-kernels")
        self._failures = 0  # of the storage, in a row
        self._checkpoints: Checkpoints | None = None
        self._log: Log | None = None
        self._scratch: Scratch | None = None
        self._endpoint = Endpoint(address, self, rendezvous.credentials)

    def join(self, rendezvous: Rendezvous) -> None:
        """Ask the rendezvous which worker this process is, and set it up. If no worker is missing, the process ends."""
        asker = Asker(rendezvous.address, rendezvous.credentials)
        try:
            granted = asker.ask(
                "join",
                {
                    "address": self._endpoint.address,
                    "pid": os.getpid(),
                    "host": platform.node(),
                    "ticket": rendezvous.ticket,
                    "versions": versions(),
                },
            )
        finally:
            asker.close()
        if granted.get("leave"):
            self._why = granted["leave"]
            return
        sweep()
        self._worker = Worker(granted["incarnation"], self._make)
        self._window = granted.get("window", WINDOW)
        self._silence = max(LEFT_ALONE, 2 * granted.get("silence", 0.0))
        self._links[COORDINATOR] = self._link(rendezvous.address)
        scratch: Path | None = None
        if granted["checkpoint"] is not None:
            if getattr(self._make, "memory", None) is not None:
                self._scratch = Scratch()
                scratch = self._scratch.path
            try:
                storage = _opened(
                    granted["checkpoint"], granted.get("synced", False), self._show_life
                )
            except TransportError as error:
                if not is_outage(error):  # the storage: its outage was waited for
                    raise
                self._why = f"the coordinator cannot be reached: {error.message}"
                return
            self._checkpoints = Checkpoints(storage, scratch=scratch)
            self._log = Log(self._checkpoints.storage)
        self._uploads = Uploads(
            self._worker.incarnation,
            None if self._checkpoints is None else self._checkpoints.storage,
            storage_timeout=granted.get("storage_timeout"),
            over=self._over,
        )
        Thread(target=self._beat, name="riverrun-heartbeat", daemon=True).start()
        self._kernel_thread.submit(lambda: _warm_up(granted.get("kernels", ())))  # the law warm

    def _link(self, address: str, broken: Callable[[Link], None] | None = None) -> Link:
        assert self._worker is not None
        return Link(
            address,
            self._worker.incarnation,
            self._credentials,
            window=self._window,
            silence=self._silence,
            broken=broken,
        )

    # ---- the loop

    def live(self) -> str:
        """Work until the coordinator says to leave or is gone (the law not alone); return why this ended."""
        worker = self._worker
        if worker is None:
            return self._why
        busy = True
        try:
            self._carry(worker.take())
            while not worker.left and not self._why:
                self._take_in(wait=not busy)
                if any(link.full for link in self._links.values()):
                    busy = False  # the law always listening
                else:
                    started = time.monotonic()
                    busy = worker.work()
                    if busy:
                        self._busy.worked += time.monotonic() - started
                self._carry(worker.take())
        except TransportError as error:
            self._why = f"the coordinator cannot be reached: {error.message}"
        return self._why or "it was told to leave"

    def _take_in(self, *, wait: bool) -> None:
        try:
            first = self._inbox.get(block=wait, timeout=BEAT if wait else None)
            started = time.monotonic()
            first()
            with suppress(queue.Empty):
                for _ in range(_DRAIN):
                    self._inbox.get_nowait()()
            self._busy.worked += time.monotonic() - started
        except queue.Empty:
            pass
        if time.monotonic() - self._heard > self._silence:
            self._why = f"the coordinator was not heard for {self._silence:.0f} s"

    def _carry(self, out: Outputs) -> None:
        """Send messages, all messages to one receiver together."""
        by_receiver: dict[int, list[Any]] = {}
        for to, message in out:
            if to == STORAGE:
                self._instruct(message)
            else:
                by_receiver.setdefault(to, []).append(message)
        for to, messages in by_receiver.items():
            self._send(to, messages)

    def _send(self, to: int, messages: list[Any]) -> None:
        taken = self._taken.get(to, 0)
        if taken >= PROMPT:
            self._taken[to] = 0
        else:
            taken = 0
        if to == COORDINATOR:
            self._links[COORDINATOR].send(messages, taken)
            return
        self._to(to, lambda link: link.send(messages, taken))

    def _to(self, to: int, act: Callable[[Link], None]) -> None:
        """Use the link to a peer, which is made where there is none. A peer that is cut off is not waited for."""

        def broke(link: Link) -> None:
            self._inbox.put(lambda: self._link_broke(to, link))

        try:
            link = self._links.get(to)
            if link is None:
                link = self._links[to] = self._link(self._addresses[to], broke)
            act(link)
        except (TransportError, KeyError):
            self._broken(to)

    def _link_broke(self, peer: int, link: Link) -> None:
        if self._links.get(peer) is link:
            self._broken(peer)

    def _broken(self, peer: int) -> None:
        link = self._links.pop(peer, None)
        if link is not None:
            link.close(cleanly=False)
        assert self._worker is not None
        self._worker.disconnected(peer)

    def _show_life(self) -> None:
        """Send a sign of life from this thread, before it takes part (the law signs of life)."""
        self._links[COORDINATOR].send([Beat()])

    def _beat(self) -> None:
        """In a thread: send signs of life, with how far the work is."""
        worker = self._worker
        assert worker is not None
        call, since, touched, reported, looped = -1, 0.0, 0, 0, False
        while not self._over.wait(BEAT):
            instance: Any = worker.instance
            doing = getattr(instance, "doing", None)
            with suppress(AttributeError, RuntimeError):  # the instance may change during the count
                touched = 0 if instance is None else instance.touched
                if doing is None or instance.calls != call:
                    call, since = getattr(instance, "calls", -1), time.monotonic()
            seconds = time.monotonic() - since if doing is not None else 0.0
            loops: list[LoopRound] = getattr(instance, "loops", list)()
            try:
                if loops or looped:  # once more when the last loop is over
                    looped = bool(loops)
                    self._links[COORDINATOR].send([Loops(tuple(loops))])
                self._links[COORDINATOR].send([Beat(touched, self._busy.own(), doing, seconds)])
                if len(kernels := compiling.used()) > reported:
                    reported = len(kernels)
                    self._links[COORDINATOR].send([Kernels(tuple(kernels))])
            except (TransportError, KeyError):
                return

    # ---- called by the endpoint, in the thread of a connection

    def receive(self, sender: int, stream: object, fragments: list[Fragment], size: int) -> None:
        if stream is self._leader:
            self._heard = time.monotonic()
        self._inbox.put(lambda: self._fragments(sender, stream, fragments, size))

    def ended(self, sender: int, stream: object, cleanly: bool) -> None:
        self._inbox.put(lambda: self._ended(sender, stream, cleanly))

    def answer(self, question: str, argument: Any) -> Any:
        future: Future[Any] = Future()

        def reply() -> None:
            if not future.set_running_or_notify_cancel():
                return  # nobody would hear the answer, nor give loans back
            try:
                future.set_result(getattr(self, f"_answer_{question}")(argument))
            except Exception as error:
                future.set_exception(error)

        if not question.isidentifier() or not hasattr(self, f"_answer_{question}"):
            raise TransportError(
                "transport.question", f"cannot answer {question!r}: a worker has no such question"
            )
        self._inbox.put(reply)
        deadline = time.monotonic() + ANSWER
        while not self._over.is_set() and time.monotonic() < deadline:
            wait([future], BEAT)
            if future.done():
                return future.result()
        # The question is being answered at this moment.
        if not future.cancel() and not self._over.is_set():
            return future.result()
        raise TransportError(
            "transport.left",
            f"cannot answer {question!r}: this worker has left, or is busy for very long",
            hint="ask again",
        )

    def rows(self, ticket: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        lease, columns, where = ticket
        portion = self._leases.get(lease)
        if portion is None:
            raise TransportError(
                "transport.lease",
                f"cannot read result {lease}: this worker does not have it any more",
                hint="read it again",
            )
        schema = portion.schema
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        return schema, portion.batches(columns, where)

    def take_upload(self, about: Any, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Any:
        name, incarnation, execution = about
        worker, uploads = self._worker, self._uploads
        if worker is None or uploads is None or incarnation != worker.incarnation:
            raise _moved(name)

        def watched() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if worker.execution != execution or worker.left:
                    raise _moved(name)
                yield batch

        return uploads.take_in(name, watched())

    # ---- messages, in the thread that works

    def _fragments(self, sender: int, stream: object, fragments: list[Fragment], size: int) -> None:
        assert self._worker is not None
        from_whom = self._streams.get(stream)
        if from_whom is None:
            from_whom = self._streams[stream] = _Stream(sender)
            if sender == COORDINATOR and self._leader is None:
                self._leader = stream
        try:
            if sender == COORDINATOR and stream is not self._leader:
                raise BadMessage("somebody else says that it is the coordinator")
            for fragment in fragments:
                message = from_whom.decoder.decode(fragment.head, fragment.body)
                if message is not None:
                    self._hear(sender, message)
        except BadMessage:
            self.garbage += 1
            if stream is self._leader:
                self._why = "what the coordinator said cannot be read"
            elif sender in self._addresses:  # a peer: the lost message may matter
                self._broken(sender)
            return
        taken = self._taken[sender] = self._taken.get(sender, 0) + size
        if taken * 4 >= self._window:
            self._taken[sender] = 0
            self._to(sender, lambda link: link.give(taken))

    def _hear(self, sender: int, message: Any) -> None:
        assert self._worker is not None
        if sender == COORDINATOR:
            self._heard = time.monotonic()
        if type(message) in _FOR_THE_PROCESS:
            self._heed(sender, message)
            return
        expected = _FROM_COORDINATOR if sender == COORDINATOR else (Data,)
        if type(message) not in expected:
            raise BadMessage(f"{sender} has no business to say {type(message).__name__}")
        if isinstance(message, Feed):
            message = self._unpacked(message)
            if message is None:
                return
        self._worker.receive(sender, message)

    def _heed(self, sender: int, message: Any) -> None:
        """Take a message to the process, and not to its worker."""
        match message:
            case Credit(size):
                link = self._links.get(sender)
                if link is not None:
                    try:
                        link.credit(size)
                    except TransportError:
                        self._broken(sender)
            case Beat():
                pass
            case _ if sender != COORDINATOR:
                raise BadMessage(f"{sender} has no business to say {type(message).__name__}")
            case Peers(addresses):
                self._addresses = dict(addresses)
                for gone in [to for to in self._links if to and to not in addresses]:
                    # The process may be stopped, or cut off, and never answer.
                    Thread(target=self._links.pop(gone).close, daemon=True).start()
            case Release(lease):
                self._leases.pop(lease, None)
            case Forget(upload, but):
                assert self._uploads is not None
                self._uploads.close_upload(upload, but)

    def _unpacked(self, feed: Feed) -> Feed | None:
        """The feed with the rows of its parcels; None where they cannot be had now. Drops parcels of earlier epochs."""
        assert self._worker is not None
        assert self._uploads is not None
        for done in [epoch for epoch in self._named if epoch < feed.epoch]:
            self._uploads.forget(self._named.pop(done))
        if not feed.parcels:
            return feed
        named = self._named.setdefault(feed.epoch, [])
        named += [parcel.name for parcels in feed.parcels.values() for parcel in parcels]
        try:
            filled = self._uploads.filled(feed)
        except RiverrunError as error:  # an outage: the feed is taken again later
            self._failures += 1
            self._send(COORDINATOR, [NotReady(feed.execution, error)])
            again = Timer(
                pause(self._failures),
                lambda: self._inbox.put(lambda: self._hear(COORDINATOR, feed)),
            )
            again.daemon = True
            again.start()
            return None
        self._failures = 0
        if isinstance(filled, Failed):
            self._send(COORDINATOR, [filled])
            return None
        return filled

    def _ended(self, sender: int, stream: object, cleanly: bool) -> None:
        self._streams.pop(stream, None)
        if not any(other.sender == sender for other in self._streams.values()):
            self._taken.pop(sender, None)
        if sender == COORDINATOR:
            other = self._leader is not None and stream is not self._leader
            # The worker has read the message that says to leave.
            is_leaving = self._worker is not None and self._worker.left
            if not other and not is_leaving:
                self._why = self._why or "the coordinator has closed the connection"
        elif not cleanly and sender in self._addresses:
            self._broken(sender)

    def _instruct(self, instruction: Any) -> None:
        checkpoints, log, worker = self._checkpoints, self._log, self._worker
        assert checkpoints is not None
        assert log is not None
        assert worker is not None

        def execute() -> None:
            outcome = execute_and_catch(instruction, checkpoints, log)
            if type(instruction) is Read:
                self._failures = 0 if outcome.error is None else self._failures + 1
                self._over.wait(pause(self._failures))
            self._inbox.put(lambda: worker.receive(STORAGE, outcome))

        self._storage_thread.submit(execute)

    # ---- questions

    def _instance(self) -> Any:
        assert self._worker is not None
        if self._worker.instance is None:
            raise TransportError(
                "transport.not_ready",
                "cannot answer: this worker is going back to a checkpoint",
                hint="ask again",
            )
        return self._worker.instance

    def _answer_read(self, argument: Any) -> Any:
        return self._lend(self._instance().read, *argument)

    def _answer_changes(self, argument: Any) -> Any:
        return self._lend(self._instance().changes, *argument)

    def _lend(
        self, read: Callable[..., Portion], name: str, epoch: int, runs: Any
    ) -> tuple[list[int], bytes]:
        """Lend rows of an output: a loan for each of `runs`, which are ranges by first and last hash, or None for
        all."""
        ranges = [None if run is None else [(low, last + 1) for low, last in run] for run in runs]
        portions = [read(name, epoch, each) for each in ranges]
        schema = portions[0].schema.serialize().to_pybytes()
        leases = [
            secrets.randbits(62) for _ in portions
        ]  # random, so that no other worker has the same
        self._leases.update(zip(leases, portions, strict=True))
        return leases, schema

    def _answer_frontier(self, argument: Any) -> Any:
        return self._instance().frontier(argument)

    def _answer_stats(self, argument: Any) -> Any:
        return {
            "states": dict(self._instance().stats()),
            "touched": self._instance().touched,
            "sent": sum(link.sent for link in self._links.values()),
            "waiting": sum(link.waiting for link in self._links.values()),
            "refused": self._endpoint.refused,
            "garbage": self.garbage + self._endpoint.garbage,
            "leases": len(self._leases),
            "parcels": 0 if self._uploads is None else len(self._uploads),
            "pid": os.getpid(),
        }

    def close(self) -> None:
        self._over.set()
        for link in self._links.values():
            link.close()
        self._storage_thread.close()
        self._kernel_thread.close()
        if self._uploads is not None:
            self._uploads.close()
        if self._scratch is not None:
            self._scratch.close()
        # A peer may hold its stream open for a while longer; it is not waited for.
        Thread(target=self._endpoint.shutdown, daemon=True).start()
        self._give_back()

    def _give_back(self) -> None:
        """Release the memory of the states: Spark goes on to use the process for other tasks."""
        if self._worker is not None:
            self._worker.receive(COORDINATOR, LeaveRun())
        self._leases.clear()
        self._streams.clear()
        while not self._inbox.empty():
            self._inbox.get()
        gc.collect()
        BUFFERS.release()
        pa.default_memory_pool().release_unused()


def _warm_up(kernels: Iterable[str]) -> None:
    """Load kernels; where there is no machine code for this machine, compile them first."""
    kernels = list(kernels)
    make_ready(kernels)
    compiling.load(kernels)


def _opened(place: str, synced: bool, show_life: Callable[[], None]) -> Storage:
    """The storage of the run. A path that is not there is not made: it counts as an outage, such as a disk that is not
    mounted."""

    def act() -> Storage:
        show_life()
        try:
            return open_storage(place, synced=synced, make=False)
        except CheckpointError as error:
            raise TransportError("storage.unreachable", error.message, hint=error.hint) from error

    def wait(seconds: float) -> None:
        show_life()
        time.sleep(min(seconds, BEAT))

    return persist(act, f"open {place}", deadline=LEFT_ALONE, wait=wait)


def _moved(name: str) -> TransportError:
    return TransportError(
        "transport.moved",
        f"cannot take rows of {name!r} in: the run has begun another execution since",
        hint="this is repeated by itself; if not, insert the rows again",
    )
