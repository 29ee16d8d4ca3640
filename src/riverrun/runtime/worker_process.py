"""Hosting: a worker in a process of its own, and how it is reached.

`host` is what runs in a Spark task, or anywhere else: it asks the rendezvous who it is, opens an
endpoint, and drives a `Worker` until that is told to leave. All I/O of a worker is here. Laws:

1. **Identity is granted.** Who a process is (its incarnation) it learns from the rendezvous, so one
   that was started twice gets another name, or none, and then it ends.
2. **Always listening.** What comes in is taken in even while nothing may be sent: a worker whose
   links are full does no step, but receives, and gives credit. Links to peers are opened by threads: one that is cut
   off is not waited for. So two workers, or a loop, that wait for each other always go on; and a slow worker slows
   those who send to it. (The storage is waited for where the rows of an epoch lie there, in parcels.)
3. **Asked between steps.** Questions are answered by the thread that works, between two steps; rows
   are read from views, by other threads, while it goes on.
4. **Not alone.** When the coordinator cannot be reached or heard any more, the process ends.
5. **Signs of life.** A worker gives them from a thread of its own, whatever it is in. On its way from the grant to
   taking part, where nobody's code is run, it gives them itself, between one step and the next: there a
   storage that is away is no silence, and a call that does not return is.
6. **Warm.** The coordinator names the kernels that the plan needs, and those that workers say they have called besides.
   A newcomer loads them while it reads its states, and not when rows are waiting for them.
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
)
from riverrun.engine.reading import Portion
from riverrun.engine.worker import Worker
from riverrun.errors import BadMessage, CheckpointError, RiverrunError, TransportError
from riverrun.retry import is_outage, pause, persist
from riverrun.runtime.cluster import execute_and_catch, freeze
from riverrun.runtime.codec.frames import Decoder, Frame
from riverrun.runtime.health.busy import BusyTime
from riverrun.runtime.network.client import Asker
from riverrun.runtime.network.connection import Security
from riverrun.runtime.network.endpoint import Endpoint
from riverrun.runtime.network.link import WINDOW, Link
from riverrun.runtime.uploads import ParcelStore
from riverrun.state.buffers import SLABS
from riverrun.state.kernels import compiling
from riverrun.state.preparing import make_ready
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.log import Log
from riverrun.storage.scratch import Scratch, sweep
from riverrun.storage.store import Storage, open_storage
from riverrun.storage.threads import Lane

BEAT = 1.0  # seconds between signs of life
LEFT_ALONE = 2 * SILENCE
"""Seconds without any from the coordinator, after which it is thought gone, at least."""
ANSWER = 600.0
_DRAIN = 256
PROMPT = (
    16 << 10
)  # so many bytes taken in are told with the next messages, more of them by themselves
_FROM_COORDINATOR = (Begin, Feed, Announce, Published, LeaveRun)
_FOR_THE_PROCESS = (Credit, Beat, Peers, Release, Forget)


@dataclass(frozen=True)
class Rendezvous:
    """Where a worker reports, and what it shows there."""

    address: str
    security: Security = field(repr=False)
    ticket: int = 0
    """Which start this is, for whoever started it; it says nothing about who one will be."""
    resume: Resume | None = field(default=None, repr=False)
    """How to go on from the states of another program."""


def versions() -> dict[str, str]:
    """What has to be the same in all processes of a run."""
    from importlib.metadata import version

    found = {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "riverrun": sys.modules["riverrun"].__version__,
    }
    return found | {name: version(name) for name in ("pyarrow", "polars", "numpy")}


def host_worker(
    rendezvous: Rendezvous, make_instance: MakeInstance, address: str | None = None
) -> str:
    """Be a worker until told to leave; return why it ended."""
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
    """What comes from one sender."""

    sender: int
    decoder: Decoder = field(default_factory=Decoder)


class _WorkerHost:
    def __init__(self, rendezvous: Rendezvous, make: MakeInstance, address: str) -> None:
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._streams: dict[object, _Stream] = {}
        self._taken: dict[int, int] = {}
        """Of each sender, the bytes for which no credit was given yet."""
        self._leader: object = None  # the stream of the coordinator: the first that says it is
        self._links: dict[int, Link] = {}
        self._addresses: dict[int, str] = {}
        self._leases: dict[int, Portion] = {}
        self._named: dict[int, list[str]] = {}  # the parcels of an epoch
        self._why = ""
        self._over = Event()
        self._heard = time.monotonic()
        self._busy = BusyTime()
        self._silence = LEFT_ALONE
        self._security = rendezvous.security
        self._make = make
        self._staging: ParcelStore | None = None
        self.garbage = 0
        self._worker: Worker | None = None
        self._window = WINDOW
        self._lane = Lane("riverrun-checkpoint")
        self._warm = Lane("riverrun-kernels")
        self._failures = 0  # of the storage, in a row
        self._checkpoints: Checkpoints | None = None
        self._log: Log | None = None
        self._scratch: Scratch | None = None
        self._endpoint = Endpoint(address, self, rendezvous.security)

    def join(self, rendezvous: Rendezvous) -> None:
        """Learn who one is, and be it; or that there is nobody to be."""
        asker = Asker(rendezvous.address, rendezvous.security)
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
                if not is_outage(error):  # that of the storage was waited for
                    raise
                self._why = f"the coordinator cannot be reached: {error.message}"
                return
            self._checkpoints = Checkpoints(storage, scratch=scratch)
            self._log = Log(self._checkpoints.storage)
        self._staging = ParcelStore(
            self._worker.incarnation,
            None if self._checkpoints is None else self._checkpoints.storage,
            storage_timeout=granted.get("storage_timeout"),
            over=self._over,
        )
        Thread(target=self._beat, name="riverrun-heartbeat", daemon=True).start()
        self._warm.submit(lambda: _warm_up(granted.get("kernels", ())))  # law 6

    def _link(self, address: str, broken: Callable[[Link], None] | None = None) -> Link:
        assert self._worker is not None
        return Link(
            address,
            self._worker.incarnation,
            self._security,
            window=self._window,
            silence=self._silence,
            broken=broken,
        )

    # ---- the loop

    def live(self) -> str:
        """Work until told to leave, or left alone (law 4)."""
        worker = self._worker
        if worker is None:
            return self._why
        busy = True
        try:
            self._carry(worker.take())
            while not worker.left and not self._why:
                self._take_in(wait=not busy)
                if any(link.full for link in self._links.values()):
                    busy = False  # law 2
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
        """Send messages, those to one receiver together."""
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
        """Use the link to a peer; make it, where there is none. The peer may be cut off: it is not waited for."""

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
        """On the way to taking part: this thread goes on (law 5)."""
        self._links[COORDINATOR].send([Beat()])

    def _beat(self) -> None:
        """In a thread: say that this process is alive, and how far it is."""
        worker = self._worker
        assert worker is not None
        call, since, touched, told, looped = -1, 0.0, 0, 0, False
        while not self._over.wait(BEAT):
            instance: Any = worker.instance
            doing = getattr(instance, "doing", None)
            with suppress(AttributeError, RuntimeError):  # it may change while it is counted
                touched = 0 if instance is None else instance.touched
                if doing is None or instance.calls != call:
                    call, since = getattr(instance, "calls", -1), time.monotonic()
            seconds = time.monotonic() - since if doing is not None else 0.0
            loops: list[LoopRound] = getattr(instance, "loops", list)()
            try:
                if loops or looped:  # once more when there is none any more
                    looped = bool(loops)
                    self._links[COORDINATOR].send([Loops(tuple(loops))])
                self._links[COORDINATOR].send([Beat(touched, self._busy.own(), doing, seconds)])
                if len(kernels := compiling.used()) > told:
                    told = len(kernels)
                    self._links[COORDINATOR].send([Kernels(tuple(kernels))])
            except (TransportError, KeyError):
                return

    # ---- what comes in, in the thread of whoever brings it

    def receive(self, sender: int, stream: object, frames: list[Frame], size: int) -> None:
        if stream is self._leader:
            self._heard = time.monotonic()
        self._inbox.put(lambda: self._frames(sender, stream, frames, size))

    def ended(self, sender: int, stream: object, cleanly: bool) -> None:
        self._inbox.put(lambda: self._ended(sender, stream, cleanly))

    def answer(self, question: str, argument: Any) -> Any:
        future: Future[Any] = Future()

        def reply() -> None:
            if (
                not future.set_running_or_notify_cancel()
            ):  # nobody would hear the answer, nor give loans back
                return
            try:
                future.set_result(getattr(self, f"_answer_{question}")(argument))
            except Exception as error:
                future.set_exception(error)

        if not question.isidentifier() or not hasattr(self, f"_answer_{question}"):
            raise TransportError(
                "transport.question", f"cannot answer {question!r}: nobody knows it"
            )
        self._inbox.put(reply)
        deadline = time.monotonic() + ANSWER
        while not self._over.is_set() and time.monotonic() < deadline:
            wait([future], BEAT)
            if future.done():
                return future.result()
        if not future.cancel() and not self._over.is_set():  # it is being answered at this moment
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
        worker, staging = self._worker, self._staging
        if worker is None or staging is None or incarnation != worker.incarnation:
            raise _moved(name)

        def watched() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if worker.execution != execution or worker.left:
                    raise _moved(name)
                yield batch

        return staging.take_in(name, watched())

    # ---- the same, in the thread that works

    def _frames(self, sender: int, stream: object, frames: list[Frame], size: int) -> None:
        assert self._worker is not None
        from_whom = self._streams.get(stream)
        if from_whom is None:
            from_whom = self._streams[stream] = _Stream(sender)
            if sender == COORDINATOR and self._leader is None:
                self._leader = stream
        try:
            if sender == COORDINATOR and stream is not self._leader:
                raise BadMessage("somebody else says that it is the coordinator")
            for frame in frames:
                message = from_whom.decoder.decode(frame.head, frame.body)
                if message is not None:
                    self._hear(sender, message)
        except BadMessage:
            self.garbage += 1
            if stream is self._leader:
                self._why = "what the coordinator said cannot be read"
            elif sender in self._addresses:  # a peer: what was lost may matter
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
        """What another process says to this one."""
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
                    # It may be stopped, or cut off, and never answer.
                    Thread(target=self._links.pop(gone).close, daemon=True).start()
            case Release(lease):
                self._leases.pop(lease, None)
            case Forget(upload, but):
                assert self._staging is not None
                self._staging.close_upload(upload, but)

    def _unpacked(self, feed: Feed) -> Feed | None:
        """A feed with all its rows; parcels of the epoch before are let go of."""
        assert self._worker is not None
        assert self._staging is not None
        for done in [epoch for epoch in self._named if epoch < feed.epoch]:
            self._staging.forget(self._named.pop(done))
        if not feed.parcels:
            return feed
        named = self._named.setdefault(feed.epoch, [])
        named += [parcel.name for parcels in feed.parcels.values() for parcel in parcels]
        try:
            filled = self._staging.filled(feed)
        except RiverrunError as error:  # an outage: later, then; nothing of the epoch comes before
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
            told = self._worker is not None and self._worker.left  # what it said last came with it
            if not other and not told:
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

        self._lane.submit(execute)

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
        """Lend what is read: all of it as one loan, or a loan for each of `runs`, ranges by first and last hash."""
        ranges = [None if run is None else [(low, last + 1) for low, last in run] for run in runs]
        portions = [read(name, epoch, each) for each in ranges]
        schema = portions[0].schema.serialize().to_pybytes()
        leases = [secrets.randbits(62) for _ in portions]  # no other worker has one like these
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
            "parcels": 0 if self._staging is None else len(self._staging),
            "pid": os.getpid(),
        }

    def close(self) -> None:
        self._over.set()
        for link in self._links.values():
            link.close()
        self._lane.close()
        self._warm.close()
        if self._staging is not None:
            self._staging.close()
        if self._scratch is not None:
            self._scratch.close()
        # A peer may hold its stream open for a while longer: do not wait for it.
        Thread(target=self._endpoint.shutdown, daemon=True).start()
        self._give_back()

    def _give_back(self) -> None:
        """The process may be used for something else: Spark keeps it. Give the memory of the states back."""
        if self._worker is not None:
            self._worker.receive(COORDINATOR, LeaveRun())
        self._leases.clear()
        self._streams.clear()
        while not self._inbox.empty():
            self._inbox.get()
        gc.collect()
        SLABS.release()
        pa.default_memory_pool().release_unused()


def _warm_up(kernels: Iterable[str]) -> None:
    """Kernels that were compiled for other machines than this one are compiled first."""
    kernels = list(kernels)
    make_ready(kernels)
    compiling.load(kernels)


def _opened(place: str, synced: bool, show_life: Callable[[], None]) -> Storage:
    """The storage of the run. A path that is not there is away: made anew, it would be another one."""

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
