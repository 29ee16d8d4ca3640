"""The parts of a simulation: a storage that fails, workers, and whole applications with their client.

`simulation` does harm to these parts. This module carries messages and instructions, decides what is lost with a worker
or a connection, and has the knowledge of a client: the input that counts (`truth`) and the epochs that were confirmed
(`logged`), which the next life of the run has to have.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from riverrun.engine import messages as m
from riverrun.engine.coordinator.coordinator import Coordinator
from riverrun.engine.coordinator.phases import Phase
from riverrun.engine.messages import CLIENT, COORDINATOR, STORAGE
from riverrun.engine.worker import Worker
from riverrun.errors import RiverrunError
from riverrun.runtime.storage_calls import execute
from riverrun.storage.acknowledged import Note, put_note
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.log import Log
from riverrun.storage.saved_rounds import newest
from riverrun.storage.store import Storage
from riverrun.storage.takeover import Opening

if TYPE_CHECKING:
    from tests.chaos.simulation import Simulation


# What may end a run: its path was taken over.
ENDS = ("log.taken", "checkpoint.taken_over")
EVERY = (1, 2, 3, None, timedelta(seconds=60))
"""Distances of checkpoints. The clock shows steps."""
SAVING = (2, timedelta(0), timedelta(0), timedelta(seconds=4))


class Violation(AssertionError):
    """The run did what it must not."""


class Disk(Storage):
    """A storage that fails, and that lets others act while it is busy."""

    def __init__(self, simulation: Simulation, store: Any) -> None:
        super().__init__(store)
        self.simulation = simulation

    def put(self, name: str, data: Any) -> None:
        def torn() -> None:
            super(Disk, self).put(name, memoryview(data).cast("B")[: len(data) // 2])

        with self.simulation.request("put", name, torn):
            super().put(name, data)

    def create(self, name: str, data: Any) -> bool:
        with self.simulation.request("create", name):
            return super().create(name, data)

    def get(self, name: str) -> pa.Buffer:
        with self.simulation.request("get", name):
            return super().get(name)

    def names(self, folder: str) -> list[str]:
        with self.simulation.request("names", folder):
            return super().names(folder)

    def delete(self, names: Any) -> None:
        for name in names:
            with self.simulation.request("delete", name):
                super().delete([name])


class Sequential(Checkpoints):
    """Checkpoints without threads, so that a seed is a seed."""

    def _in_parallel(self, function: Any, items: Any) -> Any:
        return [function(item) for item in items]


class Process:
    """A worker, where it runs."""

    def __init__(self, worker: Worker, disk: Disk) -> None:
        self.worker = worker
        self.checkpoints = Sequential(disk)
        self.paused_until = 0
        self.awake = True


class Life:
    """One life of the whole application: a coordinator, its workers, and what is under way between them."""

    def __init__(
        self, simulation: Simulation, name: str, opening: Opening, log: Log, workers: int
    ) -> None:
        draw = simulation.random
        self.simulation, self.name = simulation, name
        self.checkpoints = Sequential(simulation.disk)
        self.log = log
        program = simulation.program
        self.coordinator = Coordinator(
            workers,
            opening=opening,
            every=draw.choice(SAVING if program.saves_rounds else EVERY),
            retain=draw.choice((1, 2, 2, 3)),
            policy=draw.choice(("replace", "spread")),
            deadline=draw.choice((None, 8, 20)),
            keep=draw.choice((None, 0, 100)),
            program=program.name if program.saves_rounds else None,
            saved=newest(Storage(simulation.disk.store)) if program.saves_rounds else None,
        )
        self.workers: dict[int, Process] = {}
        self.links: dict[tuple[int, int], deque[Any]] = {}
        self.lanes: dict[tuple[int, str], deque[Any]] = {}
        self.busy: set[tuple[int, str]] = set()
        self.notices: list[tuple[str, int, int]] = []
        self.echoes: list[tuple[int, int, Any]] = []
        self.truth: dict[int, m.Inputs] = {}
        self.submitted: dict[int, list[m.Inputs]] = {}
        self.logged: set[int] = set()
        self.last_reported = -1
        self.until: float = float("inf")
        self.successor: Life | None = None
        self.send(COORDINATOR, self.coordinator.take())

    def __repr__(self) -> str:
        return self.name

    @property
    def closed(self) -> bool:
        return self.coordinator.phase is Phase.CLOSED

    @property
    def was_put_out(self) -> bool:
        """Whether the log has the record of a later owner."""
        assert self.coordinator.opening is not None
        ours, log = self.coordinator.opening.owner, Log(Storage(self.simulation.disk.store))
        later = [position for position in log.positions() if position > ours]
        return any(log.is_opened(position) for position in later)

    # ---- carrying

    def send(self, sender: int, out: m.Outputs) -> None:
        for to, message in out:
            if to >= COORDINATOR:
                if to == COORDINATOR or to in self.workers:
                    self.links.setdefault((sender, to), deque()).append(message)
            elif to == CLIENT:
                self.tell(message)
            elif to == STORAGE:
                if type(message) is m.Acknowledge:
                    known = self.simulation.acknowledged
                    self.simulation.acknowledged = max(known, message.epoch)
                lane = "log" if type(message) is m.AppendRecord else "files"
                self.lanes.setdefault((sender, lane), deque()).append(message)
            elif type(message) is m.Start:
                self.notices.append(("start", message.incarnation, 0))
            else:
                self.notices.append(("stop", message.incarnation, 0))

    def deliver(self, link: tuple[int, int]) -> None:
        sender, to = link
        queue = self.links[link]
        message = queue.popleft()
        if not queue:
            del self.links[link]
        simulation = self.simulation
        often = 0.2 if type(message) is m.Completed else 0.02
        if simulation.harmful and simulation.random.random() < often:
            self.echoes.append((sender, to, message))
            self.notices.append(("echo", len(self.echoes) - 1, 0))
        simulation.trace(self, "deliver", sender, "->", to, message)
        self.hand(sender, to, message)

    def hand(self, sender: int, to: int, message: Any) -> None:
        if to == COORDINATOR:
            self.coordinator.receive(sender, message)
            self.send(COORDINATOR, self.coordinator.take())
        elif to in self.workers:
            self.workers[to].awake = True
            worker = self.workers[to].worker
            worker.receive(sender, message)
            self.send(to, worker.take())

    def work(self, incarnation: int) -> None:
        process = self.workers[incarnation]
        process.awake = process.worker.work()
        self.send(incarnation, process.worker.take())

    def store(self, lane: tuple[int, str]) -> None:
        sender, simulation = lane[0], self.simulation
        instruction = self.lanes[lane].popleft()
        if not self.lanes[lane]:
            del self.lanes[lane]
        if sender != COORDINATOR and sender not in self.workers:
            return
        checkpoints = (
            self.checkpoints if sender == COORDINATOR else self.workers[sender].checkpoints
        )
        self.busy.add(lane)
        if (
            type(instruction) is m.Acknowledge
        ):  # as `Acknowledger` notes it in an object store: nobody is answered
            with suppress(RiverrunError):
                put_note(simulation.disk, Note(instruction.owner, instruction.epoch))
            self.busy.discard(lane)
            simulation.trace(self, "storage", sender, instruction)
            return
        outcome = execute(instruction, checkpoints, self.log)
        self.busy.discard(lane)
        if type(instruction) is m.AppendRecord:
            failures = simulation.failures_in_a_row + 1 if outcome.error else 0
            simulation.failures_in_a_row = failures
            simulation.longest_outage = max(simulation.longest_outage, failures)
        simulation.trace(self, "storage", sender, instruction, "=>", outcome.error or "done")
        self.links.setdefault((STORAGE, sender), deque()).append(outcome)

    def notice(self, at: int) -> None:
        kind, who, other = self.notices.pop(at)
        late = kind in ("stop", "echo") and self.simulation.harmful
        stays = 0.7 if kind != "echo" or self._is_untimely(self.echoes[who][2]) else 0.1
        if late and self.simulation.random.random() < stays:
            self.notices.append((kind, who, other))  # a zombie lives on for a while
            return
        self.simulation.trace(self, "notice", kind, who, other)
        if kind == "start":
            self.workers[who] = Process(
                Worker(who, self.simulation.program.make_instance), self.simulation.disk
            )
            self.send(who, self.workers[who].worker.take())
        elif kind == "stop":
            self.remove(who)
        elif kind == "echo":
            self.hand(*self.echoes[who])
        elif kind == "lost":
            self.coordinator.lost(who)
            self.send(COORDINATOR, self.coordinator.take())
        elif who in self.workers:
            worker = self.workers[who].worker
            worker.disconnected(other)
            self.send(who, worker.take())

    def _is_untimely(self, message: Any) -> bool:
        """Whether a message is of no use to who gets it now: a repeated completion does harm at its own epoch only,
        in another execution, and that is a short while."""
        current = self.coordinator
        return type(message) is not m.Completed or (
            message.epoch != current.released or message.execution == current.execution
        )

    # ---- harm

    def remove(self, incarnation: int) -> None:
        """A worker is gone, with what was on its way to it and a suffix of what it had sent."""
        if self.workers.pop(incarnation, None) is None:
            return
        for link in list(self.links):
            if link[1] == incarnation:
                del self.links[link]
            elif link[0] == incarnation:
                self.cut(link)
        for lane in [lane for lane in self.lanes if lane[0] == incarnation]:
            del self.lanes[lane]
        self.notices.append(("lost", incarnation, 0))
        for peer in self.workers:
            self.notices.append(("broken", peer, incarnation))

    def cut(self, link: tuple[int, int]) -> None:
        queue = self.links.get(link)
        if queue:
            for _ in range(self.simulation.random.randint(1, len(queue))):
                queue.pop()
            if not queue:
                del self.links[link]

    def disconnect(self, a: int, b: int) -> None:
        """A connection breaks, in both directions."""
        self.cut((a, b))
        self.cut((b, a))
        for sender, to in ((a, b), (b, a)):
            if COORDINATOR not in (a, b):
                self.notices.append(("broken", to, sender))
            elif to == COORDINATOR:
                self.notices.append(("lost", sender, 0))

    # ---- the client

    def submit(self) -> None:
        simulation = self.simulation
        past = [self.truth[epoch] for epoch in sorted(self.truth)]
        inputs = simulation.program.draw(simulation.random, past)
        epoch = self.coordinator.submit(inputs)
        simulation.trace(self, "submit", epoch, simulation.program.fails(inputs) and "to fail")
        self.truth[epoch] = inputs
        self.submitted.setdefault(epoch, []).append(inputs)
        self.logged.discard(epoch)
        self.send(COORDINATOR, self.coordinator.take())

    def tell(self, message: Any) -> None:
        simulation = self.simulation
        simulation.trace(self, "client", message)
        kind = type(message)
        if kind is m.Logged:
            self.logged.add(message.epoch)
            if self.successor is not None:
                self._check_inherited(message.epoch, self.successor)
        elif kind is m.Refused:
            if not simulation.program.fails(self.truth[message.epoch]):
                raise Violation(f"epoch {message.epoch} was refused: {message.error}")
            self.logged.discard(message.epoch)
            if self.coordinator.next == message.epoch:
                del self.truth[message.epoch]
            else:
                self.truth[message.epoch] = {}
        elif kind is m.Reported:
            self._check_reported(message.epoch)
        elif kind is m.LoopSaved:
            simulation.resumed += message.again
        elif kind is m.Closed and message.error.code not in ENDS:
            # One that was put out, and does not know it, may miss what its successor has collected.
            gone = message.error.code == "checkpoint.missing" and self.was_put_out
            if not gone:
                raise Violation(f"{self} ends: {message.error}")

    def _check_reported(self, epoch: int) -> None:
        if epoch <= self.last_reported:
            raise Violation(f"epoch {epoch} is reported again, after {self.last_reported}")
        self.last_reported = epoch
        if epoch >= self.simulation.acknowledged:
            raise Violation(f"epoch {epoch} is reported, and nobody was told to note it")
        if epoch not in self.logged:
            raise Violation(f"epoch {epoch} is reported and was never logged")
        if self.simulation.program.fails(self.truth[epoch]):
            raise Violation(f"epoch {epoch} is reported, and should have failed")
        self.simulation.check_result(self, epoch)

    def _check_inherited(self, epoch: int, heir: Life) -> None:
        """Check that a confirmed epoch is in the next life, unless the epoch was refused."""
        (*_, inputs) = self.submitted[epoch]
        truth = heir.inherited_truth.get(epoch)
        if truth is not None and same(truth, inputs):
            return
        if self.simulation.program.fails(inputs):
            return  # the log may have known that it was refused
        raise Violation(f"epoch {epoch} was logged by {self}, and {heir} does not have it")

    inherited_truth: dict[int, m.Inputs]

    def inherit(self, old: Life | None, opening: Opening) -> None:
        """Take over the input that counts from the opening, and compare it with that of the life before."""
        for epoch in range(opening.epoch):
            if old is None or epoch not in old.truth:
                raise Violation(f"{self} starts at {opening.epoch}, and nobody submitted {epoch}")
            self.truth[epoch] = old.truth[epoch]
        for at, pending in enumerate(opening.pending):
            epoch = opening.epoch + at
            submitted = old.submitted.get(epoch, []) if old is not None else []
            inputs = pending.inputs
            if pending.dropped:
                record = Log(Storage(self.simulation.disk.store)).read(pending.position)
                inputs = {name: record.inputs[name] for name in pending.names}
            if pending.refused:
                known = old is None or not old.truth.get(epoch, {})  # by the life before
                if not known and not any(map(self.simulation.program.fails, submitted)):
                    raise Violation(f"epoch {epoch} is refused in {self}, for no reason")
                inputs = {}
            elif old is not None and not any(same(inputs, some) for some in submitted):
                old_inputs = old.truth.get(epoch)
                if old_inputs is None or not same(old_inputs, inputs):
                    raise Violation(f"epoch {epoch} has other rows in {self}")
            self.truth[epoch] = inputs
        self.submitted = {epoch: [inputs] for epoch, inputs in self.truth.items()}
        self.inherited_truth = dict(self.truth)
        self.logged = set(self.truth)
        self.last_reported = opening.epoch - 1
        if opening.reported > self.simulation.acknowledged:
            raise Violation(f"{self} takes {opening.reported} epochs for acknowledged")
        if old is not None:
            old.successor = self
            for epoch in sorted(old.logged):
                old._check_inherited(epoch, self)


def same(a: m.Inputs, b: m.Inputs) -> bool:
    """Whether two inputs have the same rows."""
    return a is b or (a.keys() == b.keys() and all(a[name].equals(b[name]) for name in a))
