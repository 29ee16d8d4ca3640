"""A remote cluster: the coordinator in this process, its workers in other processes, connections between them.

Runs on Spark and on processes of this machine use it. The coordinator works all the time, whether a caller waits or
not: it is driven by calls of the user, by threads that bring messages of workers, and by a clock. Workers are started
by a `Launcher`, which knows where processes come from (this machine, Spark, or a test). A started process asks the
*rendezvous*, the endpoint of this process, which worker it is. This module routes messages between the coordinator and
what knows the processes: `starts` those that are on their way, `admission` how they become workers, `peers` the
connections with workers, `departures` how workers are lost, and `questions` asks all of them. Laws:

- **Ready or not.** When not all workers have reported by the deadline, the run ends with the launcher's advice. The run
  also ends when the replacement of a worker does not come, and when workers are lost again and again at one epoch
  (`engine.coordinator.losses`). Nothing waits for ever.
- **Bounded queue.** Epochs that are submitted and not worked on take memory here: beyond a bound `submit` waits.

The laws of `cluster`, `admission` and `departures` hold too.

Cost: about 0.3 ms for an epoch, besides the work of the workers.

"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from threading import Event, Thread
from typing import Any, Protocol

import pyarrow as pa

from riverrun import interrupts
from riverrun.engine.coordinator.membership import SILENCE
from riverrun.engine.messages import (
    CLIENT,
    COORDINATOR,
    STORAGE,
    SUPERVISOR,
    Acknowledge,
    Beat,
    Begin,
    Broken,
    Completed,
    Credit,
    Failed,
    Feed,
    Forget,
    Heartbeat,
    Inputs,
    JoinRun,
    Kernels,
    Loops,
    NotReady,
    NotSaved,
    Outcome,
    Outputs,
    Parcels,
    Peers,
    Ready,
    Release,
    RoundWritten,
    Scaled,
    Start,
    Wrote,
)
from riverrun.engine.reading import Portion
from riverrun.errors import BadMessage, CheckpointError, RiverrunError, TransportError
from riverrun.plan.kernels_needed import kernels_of
from riverrun.progress import Antichain
from riverrun.runtime.admission import Admission, WorkerTerms
from riverrun.runtime.carried import ResultServer
from riverrun.runtime.carriers import Durability
from riverrun.runtime.cluster import Cluster
from riverrun.runtime.codec.fragments import Fragment
from riverrun.runtime.crew import Crew
from riverrun.runtime.departures import GRACE, Departures
from riverrun.runtime.health.oversight import Overseer
from riverrun.runtime.health.signs import Balance, Health
from riverrun.runtime.network.connection import Credentials
from riverrun.runtime.network.endpoint import Endpoint
from riverrun.runtime.network.link import WINDOW
from riverrun.runtime.peers import ConnectedPeers
from riverrun.runtime.questions import Audience, Questions, began_again
from riverrun.runtime.starts import Starts
from riverrun.runtime.storage_calls import StorageThreads
from riverrun.runtime.worker_process import Rendezvous
from riverrun.storage.store import Storage

_LOG = logging.getLogger(__name__)
TICK = 0.5  # seconds
QUEUE = 256 << 20  # bytes of epochs that were submitted and wait


class Launcher(Protocol):
    """Where processes for workers come from. No method waits."""

    def open(self, rendezvous: Rendezvous, ended: Callable[[int, str], None]) -> None:
        """Called once, before any start. The launcher calls `ended(ticket, why)` for every process that is over."""

    def start(self, ticket: int) -> None:
        """Start a process that hosts a worker."""

    def stop(self, ticket: int) -> None:
        """End the process with that ticket: it is not needed any more."""

    def advice(self, present: int, wanted: int) -> str:
        """What to do when too few processes come up."""

    def close(self) -> None:
        """End all processes that are left."""


class RemoteCluster(Cluster):
    """A run whose workers are processes of their own."""

    goes_on = True

    def __init__(
        self,
        launcher: Launcher,
        workers: int = 1,
        *,
        host: str = "127.0.0.1",
        credentials: Credentials | None = None,
        timeout: float = 60.0,
        window: int = WINDOW,
        silence: float = SILENCE,
        balance: Balance = "report",
        most: int = 0,
        **durability: Any,
    ) -> None:
        """`host` is the address at which workers reach this process; `timeout`, in seconds, the deadline.

        A worker that was silent for `silence` seconds is thought dead. `balance` says what to do about stragglers;
        "grow" adds workers, up to `most`.
        """
        options = Durability(**durability)
        # Workers open the storage themselves: `run.options` refuses an opened one.
        assert not isinstance(options.checkpoint, Storage)
        super().__init__(workers, options, deadline=math.ceil(silence / TICK), keep_numbers=True)
        health = Health(self.events, balance, most)
        self._overseer = Overseer(
            self._coordinator, health, timeout, self._check_room, launcher.advice
        )
        self.path = None if options.checkpoint is None else str(options.checkpoint)
        self._credentials = credentials or Credentials()
        self._launcher = launcher
        self._window = window
        self._crew = Crew(
            self._coordinator,
            self._changed,
            self.events,
            self._loops,
            health,
            Starts(launcher),
            ConnectedPeers(),
            carry=self._carry,
            tell_peers=self._tell_peers,
            is_closed=lambda: self._closed,
        )
        self._departures = Departures(self._crew, self._overseer, durable=self._durable)
        self._admission = Admission(
            self._crew,
            self._departures,
            self._credentials,
            WorkerTerms(self.path, options.synced, window, options.storage_timeout, silence),
            # Less than the timeout, so that a replacement has time.
            starting=math.ceil(min(silence, timeout / 2) / TICK),
            kernels=() if options.plan is None else kernels_of(options.plan),
        )
        self._uploads = 0
        self._questions = Questions(
            self._credentials, self._audience, lambda: self._coordinator.execution, self._gone
        )
        self._served: ResultServer | None = None
        """Answers questions that are for the run, and not for the cluster."""
        self._answers_of_run: Mapping[str, Callable[[Any], Any]] = {}
        self.garbage = 0
        self._elsewhere = {"refused": 0, "garbage": 0}  # at the workers, when they were last asked
        self._queued: deque[tuple[int, int]] = deque()
        self._stopped = Event()
        self._storage_threads = StorageThreads(self._execute, self._outcome, self._stopped)
        self._sweep(self._storage_threads.store)
        self._endpoint = self._listen(host)
        self.address = self._endpoint.address
        where = Rendezvous(self.address, self._credentials, resume=self._resume)
        launcher.open(where, self._departures.process_ended)
        self._clock = Thread(target=self._tick_on, name="riverrun-clock", daemon=True)
        self._clock.start()
        try:
            with self._changed:
                self._carry()
                self._pump(self._caught_up)
        except BaseException:
            self.close()
            raise

    def _listen(self, host: str) -> Endpoint:
        try:
            return Endpoint(host, self, self._credentials)
        except OSError as error:
            self._let_go()
            raise TransportError(
                "run.address",
                f"cannot listen on {host}, where workers are to reach this process: {error}",
                hint="on a cluster that is spark.driver.host: an address of this machine that executors reach",
                host=host,
            ) from error

    # ---- what a client does

    def free_epochs(self) -> None:
        with self._changed:
            if not self._closed:
                self._ask(lambda: self._coordinator.allow(math.inf))

    def serve(self, answers: ResultServer) -> None:
        self._served, self._answers_of_run = answers, answers.questions()

    @property
    def credentials(self) -> Credentials:
        """The token, and with TLS the key and certificate, of this run."""
        return self._credentials

    def submit(
        self,
        inputs: Inputs,
        offsets: Mapping[str, Any] | None = None,
        parcels: Parcels | None = None,
        *,
        logged: bool = True,
    ) -> int:
        size = sum(batch.nbytes for batch in inputs.values())
        with interrupts.deferred(), self._changed:
            coordinator = self._coordinator

            def room() -> bool:
                while self._queued and self._queued[0][0] < coordinator.released:
                    self._queued.popleft()
                waiting = sum(each for _, each in self._queued)
                fits = not self._queued or waiting + size <= QUEUE
                return fits or coordinator.limit <= coordinator.released

            self._check_open()
            self._pump(room)  # the law bounded queue
            epoch = coordinator.next
            try:
                return super().submit(inputs, offsets, parcels, logged=logged)
            finally:
                if coordinator.next > epoch:  # also where the wait for the log was interrupted
                    self._queued.append((epoch, size))

    def read(self, name: str, epoch: int) -> list[Portion]:
        return self._questions.borrow("read", name, epoch)

    def changes(self, name: str, epoch: int) -> list[Portion]:
        return self._questions.borrow("changes", name, epoch)

    def frontier(self, probe: str) -> Antichain:
        frontier = Antichain()
        for _, answer in self._questions.ask_all("frontier", probe):
            frontier = frontier.meet(answer)
        return frontier

    def stats(self) -> list[Mapping[str, Any]]:
        answers = [answer for _, answer in self._questions.ask_all("stats")]
        self._elsewhere = {
            what: sum(answer[what] for answer in answers) for what in ("refused", "garbage")
        }
        return [answer["states"] for answer in answers]

    def touched(self) -> int:
        return self._crew.health.touched

    def scale(self, workers: int) -> None:
        if self.path is None:
            raise CheckpointError(
                "checkpoint.no_path",
                f"cannot go on with {workers} workers: what changes hands does so through the checkpoint path, "
                "and there is none",
                hint="run with checkpoint=PATH, one that all workers can reach",
            )
        super().scale(workers)

    def status(self) -> dict[str, Any]:
        """The state of the run and of its processes, for people."""
        with interrupts.deferred(), self._changed:
            status = super().status()
            status["address"] = self.address
            status["refused"] = self._endpoint.refused + self._elsewhere["refused"]
            status["garbage"] = self.garbage + self._endpoint.garbage + self._elsewhere["garbage"]
            status["processes"] = [
                {**self._crew.peers.process(member), **self._crew.health.about(member)}
                if member in self._crew.peers
                else {}  # it is being started
                for member in self._coordinator.members
            ]
            return status

    def members(self, *, wait: bool = True) -> tuple[int, list[tuple[int, str]]]:
        """The number of the execution, and each worker's incarnation and address, for uploads of rows."""
        with interrupts.deferred(), self._changed:
            self._check_open()
            if wait:
                self._pump(self._recovered)
            elif not self._recovered():
                raise began_again("hand rows in")
            coordinator = self._coordinator
            return coordinator.execution, [
                (member, self._crew.peers.process(member)["address"])
                for member in coordinator.members
            ]

    def new_upload(self) -> str:
        """A name for rows that are to be handed in."""
        with self._changed:
            self._uploads += 1
            owner = 0 if self._coordinator.opening is None else self._coordinator.opening.owner
            return f"{owner}.{self._uploads}"

    def forget_upload(self, name: str, but: Sequence[str]) -> None:
        """Have workers drop the parcels of an upload, except those named in `but`; more rows of the upload are
        refused."""
        self._tell_workers(Forget(name, tuple(but)))

    def kill(self, index: int) -> None:
        with self._changed:
            self._check_open()
            member = self._coordinator.members[index]
            self._ask(lambda: self._coordinator.lost(member))

    def close(self) -> None:
        """End the run, without a checkpoint that is under way. Workers have some seconds to leave."""
        with interrupts.deferred():
            self._close()

    def _close(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
            links = self._crew.peers.links
            self._coordinator.close()
            with suppress(RiverrunError):
                self._carry()
            self._changed.notify_all()
        with ExitStack() as ending:  # each of these is called, in reverse order
            ending.callback(self._shut_down)
            ending.callback(self._let_go)
            ending.callback(self._storage_threads.close)
            for line in self._crew.peers.lines:
                ending.callback(line.close)
            ending.callback(self._launcher.close)
            ending.callback(self._await_leaving)
            for link in links:
                ending.callback(link.close)
            self._stopped.set()

    def _await_leaving(self) -> None:
        """Wait until the processes have left, for some seconds, and at most until an interrupt is due."""
        with self._changed:
            deadline = time.monotonic() + GRACE
            while len(self._crew.starts) and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(min(left, interrupts.SLICE))
                if interrupts.is_due():
                    break

    def _shut_down(self) -> None:
        stopping = Thread(target=self._endpoint.shutdown, daemon=True)
        stopping.start()
        stopping.join(GRACE)

    # ---- questions to workers

    def _audience(self) -> Audience:
        """Wait until all workers are there, and return them."""
        with self._changed:
            self._check_open()
            self._pump(self._recovered)
            coordinator = self._coordinator
            lines = [self._crew.peers.line(member) for member in coordinator.members]
            return Audience(coordinator.execution, coordinator.membership.shards, lines)

    @contextmanager
    def still(self) -> Iterator[None]:
        """A block during which no epoch is worked on: all workers stand at one boundary."""
        coordinator = self._coordinator
        with self._changed:
            self._check_open()
            limit, coordinator.limit = coordinator.limit, self.completed
            try:
                self._pump(
                    lambda: self._recovered() and coordinator.released == coordinator.completed
                )
            except BaseException:
                coordinator.limit = limit
                raise
        try:
            yield
        finally:
            with self._changed:
                self._ask(lambda: coordinator.allow(limit))

    def _gone(self, address: str) -> bool:
        """Whether no worker is at an address any more."""
        with self._changed:
            members = self._coordinator.members
            return self._closed or all(
                self._crew.peers.address(each) != address for each in members
            )

    def _send_released(self) -> None:
        for address, lease in self._questions.released():
            member = self._crew.peers.incarnation_at(address)
            if member is not None:  # a worker that is gone has no loans
                self._send_to(member, Release(lease))

    # ---- the loop

    def _pump(self, done: Callable[[], bool]) -> None:
        coordinator = self._coordinator
        while not done():
            if coordinator.is_over:
                if coordinator.error is not None and not self._closed:
                    raise coordinator.error
                self._check_open()
                return
            self._changed.wait(interrupts.SLICE if interrupts.can_raise() else TICK)
            interrupts.check()

    def _before_waiting(self) -> None:
        pass

    def _settle(self, done: Callable[[], bool], deadline: float) -> None:
        coordinator = self._coordinator
        while not done() and not coordinator.is_over:
            left = min(deadline - time.monotonic(), interrupts.SLICE)
            if left <= 0 or interrupts.is_due():
                return
            self._changed.wait(left)

    def _tick_on(self) -> None:
        while not self._stopped.wait(TICK):
            try:
                self._tick()
            except Exception:  # signs of life and deadlines must go on
                _LOG.exception("looking after the run failed")

    def _tick(self) -> None:
        with self._changed:
            if self._coordinator.is_over:
                return
            now = time.monotonic()
            members = list(self._coordinator.members)
            for member in self._coordinator.tick(now):
                self._departures.note(member, members, "it gave no sign of life")
                self._crew.forget(member)
            over = self._departures.too_many() or self._overseer.look(now, self._crew.present)
            self._carry()
            if over is not None:
                self._crew.end(over)
            self._send_released()
        self._tell_workers(Beat())

    def _check_room(self, workers: int) -> None:
        """Raise where there is no room for so many workers. A cluster with a limit overrides this."""

    def _carry(self) -> None:
        """Carry the messages that the coordinator sends."""
        self._send(COORDINATOR, self._coordinator.take())

    def _hear(self, sender: int, message: Any) -> None:
        """Give the coordinator a message, and carry the messages that it sends in answer."""
        self._coordinator.receive(sender, message)
        self._carry()

    def _send(self, sender: int, out: Outputs) -> None:
        for to, message in out:
            if to > COORDINATOR:
                if type(message) is Begin:
                    self._departures.took_part(message, to)
                self._send_to(to, message)
            elif to == CLIENT:
                self._tell(message)
            elif to == STORAGE:
                if type(message) is Acknowledge:
                    self._acknowledge(message)
                else:
                    self._storage_threads.submit(message)
            elif to == SUPERVISOR:
                self._supervise(message)
        if out:
            self._changed.notify_all()
        if any(type(message) is Feed for _, message in out):
            self._coordinator.make_ready()
        if self._departures.is_recovering and self._recovered():
            self._departures.recovered(caught_up=self._caught_up())

    def _send_to(self, member: int, message: Any) -> None:
        link = self._crew.peers.link(member)
        if link is None:
            return
        try:
            link.send([message])
        except TransportError:
            self._broke(member)

    def _give(self, member: int, size: int) -> None:
        link = self._crew.peers.link(member)
        if link is not None:
            try:
                link.give(size)
            except TransportError as error:
                self._departures.lose(member, sign=f"it cannot be written to: {error.message}")

    def _tell_workers(self, message: Any) -> None:
        with self._changed:
            for member in self._crew.peers.linked:
                self._send_to(member, message)

    def _broke(self, member: int) -> None:
        """The connection of a member broke while something was sent."""
        self._crew.forget(member)
        self._departures.suspect(member)

    def _note(self, message: Any) -> None:
        super()._note(message)
        if isinstance(message, Scaled) and message.error is not None:
            self._departures.bear()  # the newcomers were not needed after all

    def _tell_peers(self) -> None:
        """Send the list of workers to all of them: they talk to these, and close their links to all others."""
        for member in self._crew.peers.linked:  # sending to a worker may show that it is gone
            self._send_to(member, Peers(self._crew.peers.linked))

    def _supervise(self, message: Any) -> None:
        if isinstance(message, Start):
            self._crew.starts.call(message.incarnation)
        else:
            self._departures.dismiss(message.incarnation)

    def _outcome(self, outcome: Outcome) -> None:
        with self._changed:
            self._hear(STORAGE, outcome)

    # ---- called by the endpoint, in the thread of a connection

    def receive(self, sender: int, stream: object, fragments: list[Fragment], size: int) -> None:
        incoming = self._crew.peers.incoming(stream)
        try:
            messages = [
                incoming.decoder.decode(fragment.head, fragment.body) for fragment in fragments
            ]
        except BadMessage:
            self.garbage += 1
            raise
        with self._changed:
            if sender not in self._crew.peers:
                return
            if not self._crew.peers.claim(sender, stream):
                self.garbage += 1
                raise BadMessage(f"somebody else says that it is worker {sender}")
            for message in messages:
                if message is not None:
                    self._take(sender, message)
            due = incoming.owe(size, self._window)
            if due:
                self._give(sender, due)

    def _take(self, sender: int, message: Any) -> None:
        match message:
            case Beat(touched, busy, doing, seconds):
                self._crew.health.beat(sender, touched, busy, doing, seconds, time.monotonic())
                self._hear(sender, Heartbeat())
            case Loops(rounds):
                self._loops.hear(sender, rounds, time.monotonic())
            case Kernels(names):
                self._admission.kernels.update(dict.fromkeys(names))
            case Credit(size):
                link = self._crew.peers.link(sender)
                if link is not None:
                    try:
                        link.credit(size)
                    except TransportError:
                        self._broke(sender)
            case Failed():
                about = self._crew.peers.process(sender)
                where = f"this was on worker {message.error.fields.get('worker', sender)}, "
                where += f"process {about['pid']} on {about['host']}"
                message.error.story = (*message.error.story, where)
                self._hear(sender, message)
            case Completed() | Ready() | NotReady() | Broken() | Wrote() | JoinRun():
                self._hear(sender, message)
            case RoundWritten() | NotSaved():
                self._hear(sender, message)
            case _:
                self.garbage += 1

    def ended(self, sender: int, stream: object, cleanly: bool) -> None:
        self._crew.peers.stream_ended(stream)
        with self._changed:
            its_own = self._crew.peers.is_from(sender, stream)
            if self._crew.peers.link(sender) is not None and its_own and not self._closed:
                self._departures.suspect(sender)

    def answer(self, question: str, argument: Any) -> Any:
        if question == "join":
            return self._admission.join(argument)
        if question == "members":
            return self.members(wait=False)
        if question in self._answers_of_run:
            return self._answers_of_run[question](argument)
        raise TransportError(
            "transport.question", f"cannot answer {question!r}: this process has no such question"
        )

    def rows(self, ticket: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        if self._served is None:
            raise TransportError("transport.question", "cannot give rows: they are at the workers")
        return self._served.rows(ticket)

    def take_upload(self, about: Any, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Any:
        raise TransportError("transport.question", "cannot take rows: hand them to the workers")
