"""A remote cluster: the coordinator in this process, its workers in other processes, connections between them.

Runs on Spark and on processes of this machine use it. The coordinator works all the time, whether a caller waits or
not: it is driven by calls of the user, by threads that bring messages of workers, and by a clock. Workers are started
by a `Launcher`, which knows where processes come from (this machine, Spark, or a test). A started process asks the
*rendezvous*, the endpoint of this process, which worker it is. `starts` knows the processes that are on their way,
`peers` the connections with those that are workers, and `questions` asks all workers; this module connects the three
with the coordinator. Laws:

- **Told to leave.** A process that comes when no incarnation is waiting for one waits for a moment, and is then told to
  leave. A process that was started as a copy of a worker waits as long as that worker lives, and may become any worker
  that is missing.
- **Ready or not.** When not all workers have reported by the deadline, the run ends with the launcher's advice. The run
  also ends when the replacement of a worker does not come, and when workers are lost again and again at one epoch
  (`engine.coordinator.failures`). Nothing waits for ever.
- **Seen to die.** A worker is lost as soon as its process ends, or was silent for longer than `silence`, also before
  the worker takes part. Where the run can go on without it, a broken connection means the same. Where there is no
  checkpoint path, so that the loss ends the run, the process first has a second to say why it died.
- **Bounded queue.** Epochs that are submitted and not worked on take memory here: beyond a bound `submit` waits.

The laws of `cluster` hold too.

Cost: about 0.3 ms for an epoch, besides the work of the workers.

"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from threading import Event, Thread, Timer
from typing import Any, Protocol

import pyarrow as pa

from riverrun import interrupts
from riverrun.engine.coordinator.failures import Losses
from riverrun.engine.coordinator.membership import SILENCE
from riverrun.engine.coordinator.phases import Phase
from riverrun.engine.messages import (
    CLIENT,
    COORDINATOR,
    STORAGE,
    SUPERVISOR,
    Acknowledge,
    AppendRecord,
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
    Outcome,
    Outputs,
    Parcels,
    Peers,
    Publish,
    Ready,
    Recall,
    Release,
    Scaled,
    Start,
    Wrote,
)
from riverrun.engine.reading import Portion
from riverrun.errors import BadMessage, CheckpointError, RiverrunError, TransportError
from riverrun.plan.kernels_needed import kernels_of
from riverrun.progress import Antichain
from riverrun.retry import pause
from riverrun.runtime.cluster import Cluster, Durability, ResultServer
from riverrun.runtime.codec.frames import Frame
from riverrun.runtime.health.oversight import Overseer
from riverrun.runtime.health.signs import Balance, Health
from riverrun.runtime.network.client import Asker, QuestionLine
from riverrun.runtime.network.connection import Credentials
from riverrun.runtime.network.endpoint import Endpoint
from riverrun.runtime.network.link import WINDOW, Link
from riverrun.runtime.peers import ConnectedPeers
from riverrun.runtime.questions import Audience, Questions, began_again
from riverrun.runtime.starts import Starts
from riverrun.runtime.worker_process import Rendezvous, versions
from riverrun.storage.store import Storage
from riverrun.storage.threads import Lane

_LOG = logging.getLogger(__name__)
TICK = 0.5  # seconds
GRANT = 10.0  # seconds that a process waits for an identity
LAST_WORDS = 1.0  # seconds that a process has to say why it died
GRACE = 5.0  # seconds that workers have to leave
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
        if isinstance(options.checkpoint, Storage):
            raise TypeError("workers open the storage themselves: give a path or URL")
        super().__init__(workers, options, deadline=math.ceil(silence / TICK), keep_numbers=True)
        self._health = Health(self.events, balance, most)
        self._silence = silence
        # Less than the timeout, so that a replacement has time.
        self._starting = math.ceil(min(silence, timeout / 2) / TICK)
        self._lost_at: float | None = None
        self._overseer = Overseer(
            self._coordinator, self._health, timeout, self._check_room, launcher.advice
        )
        self.path = None if options.checkpoint is None else str(options.checkpoint)
        self._synced = options.synced
        self._credentials = credentials or Credentials()
        self._launcher = launcher
        self._window = window
        self._peers = ConnectedPeers()
        self._starts = Starts(launcher)
        self._losses = Losses(logged=self._durable)
        # Of members that were lost and whose process has not ended yet.
        self._loss_events: dict[int, dict[str, Any]] = {}
        # The kernels that the plan calls, and others that workers have called.
        self._kernels = dict.fromkeys(() if options.plan is None else kernels_of(options.plan))
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
        self._failures: Counter[type] = Counter()  # of instructions to the storage, in a row
        self._stopped = Event()
        self._storage_timeout = options.storage_timeout
        self._log_thread = Lane("riverrun-log")
        self._store_thread = Lane("riverrun-checkpoint")
        self._sweep(self._store_thread)
        self._endpoint = self._listen(host)
        self.address = self._endpoint.address
        where = Rendezvous(self.address, self._credentials, resume=self._resume)
        launcher.open(where, self._process_ended)
        self._clock = Thread(target=self._tick_on, name="riverrun-clock", daemon=True)
        self._clock.start()
        try:
            with self._changed:
                self._send(COORDINATOR, self._coordinator.take())
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
        return self._health.touched

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
                {**self._peers.process(member), **self._health.about(member)}
                if member in self._peers
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
                (member, self._peers.process(member)["address"]) for member in coordinator.members
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
            links = self._peers.links
            self._coordinator.close()
            with suppress(RiverrunError):
                self._send(COORDINATOR, self._coordinator.take())
            self._changed.notify_all()
        with ExitStack() as ending:  # each of these is called, in reverse order
            ending.callback(self._shut_down)
            ending.callback(self._let_go)
            ending.callback(self._store_thread.close)
            ending.callback(self._log_thread.close)
            for line in self._peers.lines:
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
            while len(self._starts) and (left := deadline - time.monotonic()) > 0:
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
            lines = [self._peers.line(member) for member in coordinator.members]
            return Audience(coordinator.execution, coordinator.roster.shards, lines)

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
            return self._closed or all(self._peers.address(each) != address for each in members)

    def _send_released(self) -> None:
        for address, lease in self._questions.released():
            member = self._peers.incarnation_at(address)
            if member is not None:  # a worker that is gone has no loans
                self._send_to(member, Release(lease))

    # ---- the loop

    def _pump(self, done: Callable[[], bool]) -> None:
        coordinator = self._coordinator
        while not done():
            if coordinator.phase is Phase.CLOSED:
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
        while not done() and coordinator.phase is not Phase.CLOSED:
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
            if self._coordinator.phase is Phase.CLOSED:
                return
            now = time.monotonic()
            members = list(self._coordinator.members)
            for member in self._coordinator.tick(now):
                self._note_loss(member, members, "it gave no sign of life")
                self._forget(member)
            losing = self._losses.too_many(self._coordinator.reported)
            over = losing or self._overseer.look(now, self._present)
            self._send(COORDINATOR, self._coordinator.take())
            if over is not None:
                self._end(over)
            self._send_released()
        self._tell_workers(Beat())

    @property
    def _present(self) -> int:
        return sum(member in self._peers for member in self._coordinator.members)

    def _check_room(self, workers: int) -> None:
        """Raise where there is no room for so many workers. A cluster with a limit overrides this."""

    def _end(self, error: RiverrunError) -> None:
        self._coordinator.close(error)
        self._send(COORDINATOR, self._coordinator.take())

    def _hear(self, sender: int, message: Any) -> None:
        """Give the coordinator a message, and carry the messages that it sends in answer."""
        self._coordinator.receive(sender, message)
        self._send(COORDINATOR, self._coordinator.take())

    def _send(self, sender: int, out: Outputs) -> None:
        client_heard = False
        for to, message in out:
            if to > COORDINATOR:
                if type(message) is Begin:
                    self._losses.took_part(message.execution, message.index, to)
                self._send_to(to, message)
            elif to == CLIENT:
                self._tell(message)
                client_heard = True
            elif to == STORAGE:
                self._instruct(message)
            elif to == SUPERVISOR:
                self._supervise(message)
        if client_heard or out:
            self._changed.notify_all()
        if any(type(message) is Feed for _, message in out):
            self._coordinator.make_ready()
        if self._lost_at is not None and self._recovered():
            seconds, self._lost_at = time.monotonic() - self._lost_at, None
            self.events.record("recovered", seconds=round(seconds, 3))
            self._health.changed()
            if self._caught_up():
                self._losses.reset()

    def _send_to(self, member: int, message: Any) -> None:
        link = self._peers.link(member)
        if link is None:
            return
        try:
            link.send([message])
        except TransportError:
            self._forget(member)
            self._suspect(member)

    def _give(self, member: int, size: int) -> None:
        link = self._peers.link(member)
        if link is not None:
            try:
                link.give(size)
            except TransportError as error:
                self._lose(member, sign=f"it cannot be written to: {error.message}")

    def _tell_workers(self, message: Any) -> None:
        with self._changed:
            for member in self._peers.linked:
                self._send_to(member, message)

    def _lose(self, member: int, why: str = "", *, sign: str = "its connection broke") -> None:
        """A member is lost. `why` is what its process has said; without that, `sign` says how the loss was noticed."""
        self._note_loss(member, self._coordinator.members, why or sign)
        self._forget(member)
        self._coordinator.lost(member, why)
        self._send(COORDINATOR, self._coordinator.take())

    def _note_loss(self, member: int, members: Sequence[int], why: str) -> None:
        if member in members:
            pid = self._peers.process(member).get("pid")
            self._loss_events[member] = self.events.record(
                "lost", worker=members.index(member), pid=pid, why=why
            )
            self._lost_at = self._lost_at or time.monotonic()

    def _note(self, message: Any) -> None:
        super()._note(message)
        if isinstance(message, Scaled) and message.error is not None:
            self._losses.reset()  # the newcomers were not needed after all

    def _suspect(self, member: int) -> None:
        """The connection of a member broke. Where its loss ends the run, the process has a moment to say why it
        died."""
        if self._coordinator.opening is not None:
            self._lose(member)
            return

        def lose() -> None:
            with self._changed:
                if not self._closed and self._coordinator.roster.knows(member):
                    self._lose(member)

        waiting = Timer(LAST_WORDS, lose)
        waiting.daemon = True
        waiting.start()

    def _forget(self, member: int) -> None:
        if self._peers.part(member):
            self._tell_peers()
        self._health.forget(member)
        self._loops.forget(member)

    def _tell_peers(self) -> None:
        """Send the list of workers to all of them: they talk to these, and close their links to all others."""
        for member in self._peers.linked:  # sending to a worker may show that it is gone
            self._send_to(member, Peers(self._peers.linked))

    def _supervise(self, message: Any) -> None:
        if isinstance(message, Start):
            self._starts.call(message.incarnation)
            return
        member, coordinator = message.incarnation, self._coordinator
        if coordinator.phase is not Phase.CLOSED and not coordinator.changing:
            about = self._peers.process(member)
            self._losses.lost(member, about, coordinator.completed, coordinator.reported)
        self._peers.end_questions(member)
        self._starts.call_off(member)
        for ticket in self._starts.tickets_of(member):
            Thread(target=self._stop, args=(ticket, member), daemon=True).start()

    def _stop(self, ticket: int, member: int) -> None:
        """Wait for a process to leave; end it if it does not leave and has not become another worker meanwhile."""
        with self._changed:
            deadline = time.monotonic() + GRACE
            while (
                self._starts.incarnation_of(ticket) == member
                and (left := deadline - time.monotonic()) > 0
            ):
                self._changed.wait(left)
            if self._starts.incarnation_of(ticket) != member:
                return
            self._forget(member)
        self._launcher.stop(ticket)

    def _process_ended(self, ticket: int, why: str) -> None:
        """The launcher says that a process is over, whether it was granted an identity or not."""
        with self._changed:
            granted = self._starts.ended(ticket)
            self._changed.notify_all()
            if self._closed or self._coordinator.phase is Phase.CLOSED:
                return
            if granted is not None:
                self._losses.ended(granted, why)
                if self._coordinator.roster.knows(granted):
                    self._lose(granted, why, sign="its process ended, and has not said why")
                else:
                    self._forget(granted)
                    if why and granted in self._loss_events:
                        self._loss_events[granted]["why"] += f"; its process ended with: {why}"
                self._loss_events.pop(granted, None)
                return
            if self._starts.is_short:
                self._start_again(why)

    def _start_again(self, why: str) -> None:
        """A process ended before it was granted an identity, and too few others are on their way."""
        if self._starts.try_again():
            self._starts.call_again()
            return
        when = "before their processes ended"
        if any(each in self._coordinator.members for each in self._starts.ungranted):
            self._end(self._overseer.not_ready(self._present, when, why))
        else:
            self._overseer.give_up(when, why)
            self._send(COORDINATOR, self._coordinator.take())

    def _instruct(self, instruction: Any) -> None:
        if type(instruction) is Acknowledge:
            self._acknowledge(instruction)
            return
        thread = self._store_thread
        if type(instruction) in (AppendRecord, Recall):
            thread = self._log_thread

        def execute() -> None:
            outcome = self._execute(instruction)
            kind = type(instruction)
            if kind in (AppendRecord, Recall, Publish):
                self._failures[kind] = 0 if outcome.error is None else self._failures[kind] + 1
                self._stopped.wait(pause(self._failures[kind]))
            self._outcome(outcome)

        thread.submit(execute)

    def _outcome(self, outcome: Outcome) -> None:
        with self._changed:
            self._hear(STORAGE, outcome)

    # ---- called by the endpoint, in the thread of a connection

    def receive(self, sender: int, stream: object, frames: list[Frame], size: int) -> None:
        incoming = self._peers.incoming(stream)
        try:
            messages = [incoming.decoder.decode(frame.head, frame.body) for frame in frames]
        except BadMessage:
            self.garbage += 1
            raise
        with self._changed:
            if sender not in self._peers:
                return
            if not self._peers.claim(sender, stream):
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
                self._health.beat(sender, touched, busy, doing, seconds, time.monotonic())
                self._hear(sender, Heartbeat())
            case Loops(rounds):
                self._loops.hear(sender, rounds, time.monotonic())
            case Kernels(names):
                self._kernels.update(dict.fromkeys(names))
            case Credit(size):
                link = self._peers.link(sender)
                if link is not None:
                    try:
                        link.credit(size)
                    except TransportError:
                        self._forget(sender)
                        self._suspect(sender)
            case Failed():
                about = self._peers.process(sender)
                where = f"this was on worker {message.error.fields.get('worker', sender)}, "
                where += f"process {about['pid']} on {about['host']}"
                message.error.story = (*message.error.story, where)
                self._hear(sender, message)
            case Completed() | Ready() | NotReady() | Broken() | Wrote() | JoinRun():
                self._hear(sender, message)
            case _:
                self.garbage += 1

    def ended(self, sender: int, stream: object, cleanly: bool) -> None:
        self._peers.stream_ended(stream)
        with self._changed:
            its_own = self._peers.is_from(sender, stream)
            if self._peers.link(sender) is not None and its_own and not self._closed:
                self._suspect(sender)

    def answer(self, question: str, argument: Any) -> Any:
        if question == "join":
            return self._join(argument)
        if question == "members":
            return self.members(wait=False)
        if question in self._answers_of_run:
            return self._answers_of_run[question](argument)
        raise TransportError(
            "transport.question", f"cannot answer {question!r}: this process has no such question"
        )

    def _has_twin(self, ticket: int) -> bool:
        """Whether another process of the same start is a worker, so that this process is a copy of it and waits as a
        spare.

        If the copy ended, Spark would take the task for done, and end the worker.
        """
        granted = self._starts.incarnation_of(ticket)
        return granted is not None and self._coordinator.roster.knows(granted)

    def _join(self, applicant: Mapping[str, Any]) -> dict[str, Any]:
        """Grant a process the identity of a worker, or tell it to leave (the law told to leave)."""
        with self._changed:
            differ, where = _different(applicant["versions"]), applicant["host"]
            if differ:
                self._end(
                    TransportError(
                        "run.versions",
                        f"cannot run: versions differ between this process and a worker on {where}: {differ}",
                        hint="install the same versions everywhere: pip install with one lock file",
                    )
                )
            deadline = time.monotonic() + GRANT
            while not self._starts.ungranted and self._coordinator.phase is not Phase.CLOSED:
                if self._has_twin(applicant["ticket"]):
                    deadline = time.monotonic() + GRANT
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            incarnation = None
            if self._coordinator.phase is not Phase.CLOSED:
                incarnation = self._starts.grant(applicant["ticket"])
            if incarnation is None:
                return {"leave": "there is no worker to be"}
            self._coordinator.roster.grant(incarnation, self._starting)
            process = {key: applicant[key] for key in ("pid", "host", "address")}
            self._peers.enter(incarnation, process)
        try:
            link = Link(
                applicant["address"],
                COORDINATOR,
                self._credentials,
                window=self._window,
                silence=self._silence,
            )
        except TransportError as error:
            with self._changed:
                self._lose(incarnation, sign=f"it cannot be connected to: {error.message}")
            raise
        with self._changed:
            # It was lost meanwhile.
            if self._closed or not self._coordinator.roster.knows(incarnation):
                Thread(target=link.close, daemon=True).start()
                return {"leave": "it was applicant up before it began"}
            line = QuestionLine(Asker(applicant["address"], self._credentials))
            self._peers.connect(incarnation, link, line)
            self._tell_peers()
        return {
            "incarnation": incarnation,
            "checkpoint": self.path,
            "synced": self._synced,
            "window": self._window,
            "storage_timeout": self._storage_timeout,
            "silence": self._silence,
            "kernels": list(self._kernels),
        }

    def rows(self, ticket: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        if self._served is None:
            raise TransportError("transport.question", "cannot give rows: they are at the workers")
        return self._served.rows(ticket)

    def take_upload(self, about: Any, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Any:
        raise TransportError("transport.question", "cannot take rows: hand them to the workers")


def _different(theirs: Mapping[str, str]) -> str:
    ours = versions()
    return ", ".join(
        f"{name} {ours[name]} here and {theirs.get(name)} there"
        for name in ours
        if theirs.get(name) != ours[name]
    )
