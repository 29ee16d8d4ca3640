"""The worker: one share of a run, driven by messages. Sans I/O: no clock, socket, thread or storage inside.

A runtime has one `Worker` for each incarnation, and carries its messages. A worker lives through *executions*. Each
execution has an instance (`InstanceInterface`), made at `Begin` from the states as of an epoch, and thrown away at the
next `Begin`. In between the worker feeds the instance the rows that the coordinator sends, and carries messages between
the instance and its peers. At each boundary between epochs the worker *pins* the states: a pin is a set of views, which
are immutable, so a pin costs nothing, and can be written or gone back to at any time. Laws:

- **Fenced.** No message of another execution reaches the instance: older messages are dropped, newer ones are held
  until their `Begin` has come. So whatever an old incarnation, a late peer or a broken connection still delivers, the
  instance sees one execution.
- **A prefix.** Of the messages that a peer sent in an execution the instance receives a prefix, in order, each message
  once. `Data` is numbered: after a gap the worker takes nothing more from that peer and reports the gap (`Broken`), and
  in the next execution all work is done again.
- **Boundaries are kept.** A pin is dropped only when nobody can ask for it any more. The `Feed` of epoch e says that
  all epochs before e are complete everywhere. From then on the coordinator goes back to e, to the published checkpoint,
  or to nothing: the worker keeps these pins, and the pin that is being written. Before that `Feed` boundary e may be
  known to this worker alone, so the pin of the boundary before stays too.
- **No reload.** To go back, a worker slices its pinned states to the ranges of hashes that it owns now, and reads only
  the other ranges from the storage. States that every worker has all of are pinned whole. A read under way serves every
  later execution that lacks the same ranges: when several members notice one loss and `Begin` comes again and again, a
  worker reads once. From one start of an instance to the next, a checkpoint's number stands for one checkpoint.
- **One failure, one answer.** An instance that has raised is dropped, and nothing more is done in the execution, so
  nobody ever sees its half-done work. An exception that is no `Exception` (Ctrl-C in a user's function,
  `sys.exit()`) is a failure of that epoch too. It is also handed to the driver of the worker (`interrupted`), to be
  raised where nothing is half done.

Why nobody has to answer `Ready` with a message that starts the work: an instance may send as soon as it is made, since
a peer that has not begun holds the messages (*fenced*). Rows are fed when all workers are ready, since the coordinator
waits for every `Ready`.

>>> class Sum:  # an instance with one peer: itself
...     def __init__(self, index, shards, epoch, states):
...         self.completed, self.sum = epoch, 0
...
...     def feed(self, epoch, inputs):
...         self.sum += inputs["n"]
...         self.completed = epoch + 1
...
...     receive = work = lambda self, *_: False
...     take = pin = lambda self: {}
...     notes = lambda self: ()
>>> from riverrun.state.shards import Shards
>>> worker = Worker(7, Sum)
>>> worker.receive(COORDINATOR, Begin(1, 0, source=0, index=0, shards=Shards.even(1), peers=(7,)))
>>> worker.take()  # messages, each behind its address
[(0, JoinRun()), (0, Ready(execution=1))]
>>> worker.receive(COORDINATOR, Feed(1, 0, {"n": 5}))
>>> worker.work(), worker.take(), worker.instance.sum
(False, [(0, Completed(execution=1, epoch=1, notes=(), rounds=()))], 5)

Cost: some microseconds for each epoch and for each message, besides the work of the instance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn
from zlib import crc32

from riverrun.engine.coordinator.failures import interrupted
from riverrun.engine.messages import (
    COORDINATOR,
    NO_EPOCH,
    ORIGIN,
    PINNED,
    STORAGE,
    Announce,
    Begin,
    Broken,
    Completed,
    Data,
    Failed,
    Feed,
    Heartbeat,
    InstanceInterface,
    JoinRun,
    LeaveRun,
    MakeInstance,
    NotReady,
    NotSaved,
    Outcome,
    Outputs,
    Published,
    Read,
    ReadRounds,
    Ready,
    RoundWritten,
    SaveRounds,
    States,
    Write,
    WriteRound,
    Wrote,
)
from riverrun.errors import BadMessage, CheckpointError, OperatorFailed, RiverrunError
from riverrun.plan.loop_figures import LoopFigures
from riverrun.plan.saved_rounds import RoundSaves
from riverrun.retry import is_outage
from riverrun.state.shards import Range, intersect, subtract
from riverrun.state.view import join_views


@dataclass(frozen=True, slots=True)
class Pin:
    """The states of some ranges of hashes as of an epoch; None where the run starts from nothing."""

    ranges: tuple[Range, ...]
    states: States | None


@dataclass(slots=True)
class _Assembly:
    """The states of an execution that is about to begin: slices of pinned ones, and ranges that are being read."""

    begin: Begin
    pinned: list[States]
    missing: tuple[Range, ...]

    def lacks(self, read: Read) -> bool:
        """Whether a read brings the ranges that are missing here."""
        return (read.source, read.ranges) == (self.begin.source, self.missing)


class Worker:
    """One incarnation of a worker."""

    def __init__(
        self,
        incarnation: int,
        make_instance: MakeInstance,
        interrupted: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.incarnation = incarnation
        self._interrupted = _raise if interrupted is None else interrupted
        self._interrupt: BaseException | None = None
        self.execution = 0
        self.instance: InstanceInterface | None = None
        self.left = False
        self._make = make_instance
        self._begin: Begin | None = None
        self._assembly: _Assembly | None = None
        self._reading: Read | None = None
        self._indices: dict[int, int] = {}
        self._sent: list[int] = []
        self._expected: list[int] = []
        self._fed = 0
        self._boundary = 0  # the newest boundary that is known to be complete everywhere
        self._reported = 0
        self._pins: dict[int, Pin] = {}
        self._published: int | None = None
        self._writing: tuple[int, int] | None = None  # an attempt and its epoch
        self._waiting: Feed | None = None
        """A feed that waits for the rows with which saved loops begin."""
        self._saving: SaveRounds | None = None
        """The last request of this execution to save loops."""
        self._held: list[tuple[int, Any]] = []
        self._out: Outputs = [(COORDINATOR, JoinRun())]
        self._handlers: dict[type, Callable[[int, Any], None]] = {
            Data: self._on_data,
            Feed: self._on_feed,
            Begin: self._on_begin,
            Announce: self._on_announce,
            SaveRounds: self._on_save_rounds,
            Published: self._on_published,
            LeaveRun: self._on_leave,
            Outcome: self._on_outcome,
        }

    def __repr__(self) -> str:
        return f"<Worker {self.incarnation} in execution {self.execution}>"

    def receive(self, sender: int, message: Any) -> None:
        """Take a message in."""
        if not self.left:
            self._handlers[type(message)](sender, message)

    def work(self) -> bool:
        """Do one bounded step of the instance, and return whether there was anything to do."""
        instance = self.instance
        if instance is None:
            return False
        try:
            if self._interrupt is not None and self._fed > self._reported:
                raise self._interrupt
            busy = instance.work()
            for peer, payload in instance.take():
                self._send(peer, payload)
            if self._saving is not None:
                self._save_rounds(self._saving, instance)
            if instance.completed > self._reported:
                self._complete(instance)
        except BaseException as error:
            self._fail(error)
            return True
        return busy

    def take(self) -> Outputs:
        """The messages that are to be sent, oldest first."""
        out = self._out
        if out:
            self._out = []
        return out

    def tick(self) -> None:
        """Say that this worker is alive."""
        if not self.left:
            self._out.append((COORDINATOR, Heartbeat()))

    def interrupt(self, error: BaseException | None) -> None:
        """Have the epoch under way, or else the next one, fail with this error at the next step; None: call it off."""
        self._interrupt = error

    def disconnected(self, peer: int) -> None:
        """The transport lost the connection from a peer, and maybe messages with it."""
        if self.left:
            return
        # Reported even where nothing of this execution is missing: the lost message may be of the next one.
        index = self._indices.get(peer)
        if index is not None:
            self._expected[index] = -1
        self._out.append((COORDINATOR, Broken(self.execution, peer)))

    @property
    def epoch(self) -> int:
        """The epoch whose rows were fed last."""
        return self._fed - 1

    @property
    def pinned(self) -> list[int]:
        """The epochs whose states are pinned."""
        return sorted(self._pins)

    # ---- in an execution

    def _on_data(self, sender: int, message: Data) -> None:
        if not self._is_current(sender, message, message.execution):
            return
        index = self._indices.get(sender)
        if index is None:
            return
        expected = self._expected[index]
        if message.number != expected:
            if message.number > expected >= 0:
                self.disconnected(sender)
            return
        self._expected[index] = expected + 1
        assert self.instance is not None
        try:
            self.instance.receive(index, message.payload)
        except BadMessage:  # the instance took nothing of this message in: it counts as lost
            self.disconnected(sender)
        except BaseException as error:
            self._fail(error)

    def _on_feed(self, sender: int, message: Feed) -> None:
        if not self._is_current(sender, message, message.execution):
            return
        epoch = message.epoch
        if epoch < self._fed:
            return
        self._boundary = epoch
        self._fed = epoch + 1
        if len(self._pins) > 1:
            self._drop_pins()
        self._saving = None
        if message.saved:
            self._waiting = message
            self._out.append((STORAGE, ReadRounds(message.execution, epoch, message.saved)))
        else:
            self._feed(message)

    def _feed(self, message: Feed) -> None:
        assert self.instance is not None
        try:
            if self._interrupt is not None:
                raise self._interrupt
            self.instance.feed(message.epoch, message.inputs)
        except BaseException as error:
            self._fail(error)

    def _is_current(self, sender: int, message: Any, execution: int) -> bool:
        """Whether a message is for this execution; a message for a later one is held (*fenced*)."""
        if execution == self.execution and self.instance is not None:
            return True
        if execution > self.execution or (
            execution == self.execution and self._assembly is not None
        ):
            self._held.append((sender, message))
        return False

    def _send(self, peer: int, payload: Any) -> None:
        assert self._begin is not None
        number = self._sent[peer]
        self._sent[peer] = number + 1
        self._out.append((self._begin.peers[peer], Data(self.execution, number, payload)))

    def _complete(self, instance: InstanceInterface) -> None:
        completed = instance.completed
        if completed != self._fed:
            return  # a later epoch was fed already: wait until that one is complete
        assert self._begin is not None
        self._pins[completed] = Pin(_ranges(self._begin), instance.pin())
        self._reported = completed
        rounds: tuple[LoopFigures, ...] = getattr(instance, "rounds", tuple)()
        news = Completed(self.execution, completed, instance.notes(), rounds)
        self._out.append((COORDINATOR, news))

    def _fail(self, error: BaseException) -> None:
        """The instance raised, or a user interrupted it: drop it, and tell the coordinator."""
        self.instance = self._interrupt = self._waiting = self._saving = None
        said = error if isinstance(error, RiverrunError) else _unexpected(error, self)
        if self._begin is not None:
            said.fields.setdefault("worker", self._begin.index)
        self._out.append((COORDINATOR, Failed(self.execution, self._fed - 1, said)))
        if _is_interrupt(error):
            self._interrupted(error)

    # ---- from one execution to the next

    def _on_begin(self, sender: int, message: Begin) -> None:
        if message.execution <= self.execution:
            return
        self.execution = message.execution
        self.instance = self._interrupt = None
        if message.source > ORIGIN:  # a checkpoint: recovery goes back to it
            self._published = message.epoch
        self._waiting = self._saving = None
        self._begin = message
        self._indices = {peer: index for index, peer in enumerate(message.peers)}
        self._sent = [0] * len(message.peers)
        self._expected = [0] * len(message.peers)
        self._fed = self._reported = self._boundary = message.epoch
        # Later epochs are done again: their pins do not count.
        self._pins = {epoch: pin for epoch, pin in self._pins.items() if epoch <= message.epoch}
        if self._writing is not None and self._writing[1] > message.epoch:
            self._writing = None
        pin = self._pins.get(message.epoch)
        if pin is not None and (pin.states is None or pin.ranges == _ranges(message)):
            self._start(message, pin.states)
        elif message.source == ORIGIN:
            self._start(message, None)
        else:
            self._assemble(message, pin)

    def _assemble(self, begin: Begin, pin: Pin | None) -> None:
        """Put the states of this worker's ranges together from pins and from the storage (*no reload*)."""
        wanted = missing = _ranges(begin)
        pieces: list[States] = []
        if pin is not None and pin.states is not None:
            missing = subtract(wanted, pin.ranges)
            for low, high in intersect(wanted, pin.ranges):
                piece = {}
                for name, view in pin.states.items():
                    piece[name] = view if view.schema.everywhere else view.slice(low, high)
                pieces.append(piece)
        self._assembly = _Assembly(begin, pieces, missing)
        if missing and begin.source == PINNED:
            error = _not_pinned(begin, self.pinned)
            self._out.append((COORDINATOR, NotReady(begin.execution, error)))
        elif missing:
            if self._reading is None or not self._assembly.lacks(self._reading):
                self._reading = Read(begin.execution, begin.source, missing)
                self._out.append((STORAGE, self._reading))
        else:
            self._assembled([])

    def _assembled(self, read: list[States]) -> None:
        assembly, self._assembly = self._assembly, None
        assert assembly is not None
        pieces = [*assembly.pinned, *read]
        states = {}
        for name, first in pieces[0].items():
            others = [] if first.schema.everywhere else [piece[name] for piece in pieces[1:]]
            states[name] = join_views([first, *others])
        self._start(assembly.begin, states)

    def _start(self, begin: Begin, states: States | None) -> None:
        self._assembly = self._reading = None
        self._pins[begin.epoch] = Pin(_ranges(begin), states)
        try:
            self.instance = self._make(begin.index, begin.shards, begin.epoch, states)
        except BaseException as error:
            said = error if isinstance(error, RiverrunError) else _unexpected(error, self)
            self._out.append((COORDINATOR, Failed(begin.execution, None, said)))
            if _is_interrupt(error):
                self._interrupted(error)
            return
        self._out.append((COORDINATOR, Ready(begin.execution)))
        held, self._held = self._held, []
        for sender, message in held:
            self.receive(sender, message)

    def _on_leave(self, sender: int, message: LeaveRun) -> None:
        self.left = True
        self.instance = self._assembly = None
        self._pins.clear()
        self._held.clear()

    # ---- checkpoints

    def _on_announce(self, sender: int, message: Announce) -> None:
        if message.execution != self.execution:
            return
        if self._writing is not None and self._writing[0] >= message.attempt:
            return
        pin = self._pins[message.epoch]
        states = pin.states
        assert self._begin is not None
        if message.epoch == self._begin.epoch and getattr(self._make, "resume", None) is not None:
            # The pin has the states of another program's checkpoint, which lacks some of this program.
            states = None
        if (
            states is None
        ):  # no epoch is complete yet, and the pin has not all states: ask the instance
            if self.instance is None:  # it raised, and its states are lost with it
                wrote = Wrote(message.attempt, None, _nothing_to_write(message, self))
                self._out.append((COORDINATOR, wrote))
                return
            states = self.instance.pin()
        self._writing = (message.attempt, message.epoch)
        write = Write(message.attempt, message.number, states, pin.ranges)
        self._out.append((STORAGE, write))

    def _on_published(self, sender: int, message: Published) -> None:
        if message.epoch == NO_EPOCH:
            self._published = self._writing = None
        elif self._published is None or message.epoch > self._published:
            self._published = message.epoch
        self._drop_pins()

    def _drop_pins(self) -> None:
        """Forget the pins that nobody can ask for any more (*boundaries are kept*)."""
        writing = None if self._writing is None else self._writing[1]
        self._pins = {
            epoch: pin
            for epoch, pin in self._pins.items()
            if epoch >= self._boundary or epoch == self._published or epoch == writing
        }

    # ---- rounds of loops (`plan.saved_rounds`)

    def _on_save_rounds(self, sender: int, message: SaveRounds) -> None:
        if self._is_current(sender, message, message.execution):
            saves = _saves_of(self.instance)
            if saves is not None and self._reported <= message.epoch == self.epoch:
                saves.asked = message.number
                self._saving = message

    def _save_rounds(self, request: SaveRounds, instance: InstanceInterface) -> None:
        """Have the rows written that loops have handed out."""
        saves = _saves_of(instance)
        assert saves is not None
        for rows in saves.take(request.number):
            loop = crc32(rows.loop.encode())
            name = f"{request.name}-{rows.asked}-{loop:08x}-{rows.round}-{self.incarnation}"
            self._out.append((STORAGE, WriteRound(self.execution, rows, name)))

    def _written(self, instruction: WriteRound, outcome: Outcome) -> None:
        rows = instruction.rows
        written = RoundWritten(
            instruction.execution, rows.epoch, rows.asked, rows.loop, rows.round,
            outcome.result or (), outcome.error,
        )  # fmt: skip
        self._out.append((COORDINATOR, written))

    def _bring(self, instruction: ReadRounds, outcome: Outcome) -> None:
        """The rows have come with which saved loops begin, or cannot be used: then all workers begin again."""
        feed = self._waiting
        if feed is None or (feed.execution, feed.epoch) != (
            instruction.execution,
            instruction.epoch,
        ):
            return
        self._waiting, error = None, outcome.error
        if error is None:
            try:
                saves = _saves_of(self.instance)
                assert saves is not None
                saves.bring(outcome.result)
            except RiverrunError as unfit:
                error = unfit
        if error is None:
            self._feed(feed)
        else:
            self._out.append((COORDINATOR, NotSaved(feed.execution, feed.epoch, error)))

    def _on_outcome(self, sender: int, message: Outcome) -> None:
        instruction, error = message.instruction, message.error
        if type(instruction) is WriteRound:
            self._written(instruction, message)
            return
        if type(instruction) is ReadRounds:
            self._bring(instruction, message)
            return
        if type(instruction) is Write:
            wrote = Wrote(instruction.attempt, None if error else message.result, error)
            self._out.append((COORDINATOR, wrote))
            return
        if instruction != self._reading:
            return
        assembly, self._reading = self._assembly, None
        if assembly is None or not assembly.lacks(instruction):
            return
        if error is None:
            translate = getattr(self._make, "translate", None)
            pieces = message.result
            if translate is not None:
                pieces = [translate(instruction.source, piece) for piece in pieces]
            self._assembled(pieces)
            return
        self._out.append((COORDINATOR, NotReady(assembly.begin.execution, error)))
        if is_outage(error):  # the carrier of messages waits a little before it executes this
            self._reading = instruction
            self._out.append((STORAGE, instruction))


def _saves_of(instance: object) -> RoundSaves | None:
    """The saved rounds of an instance, if it has loops."""
    return getattr(instance, "saves", None)


def _ranges(begin: Begin) -> tuple[Range, ...]:
    return begin.shards.of(begin.index)


def _not_pinned(begin: Begin, pinned: list[int]) -> CheckpointError:
    return CheckpointError(
        "run.not_pinned",
        f"cannot go back to epoch {begin.epoch}: worker {begin.index} has pinned {pinned}",
        hint="this is a defect of Riverrun: please report it; a run with checkpoints can be resumed",
        epoch=begin.epoch,
    )


def _nothing_to_write(announce: Announce, worker: Worker) -> CheckpointError:
    return CheckpointError(
        "checkpoint.not_begun",
        f"cannot write checkpoint {announce.number}: worker {worker.incarnation} failed before the first epoch",
        hint="the run begins again by itself; ask for the checkpoint once more",
        number=announce.number,
    )


def _is_interrupt(error: BaseException) -> bool:
    """Whether an exception means that a user ends the work. (A panic of Polars is no `Exception` either.)"""
    return not isinstance(error, Exception) and type(error).__name__ != "PanicException"


def _raise(error: BaseException) -> NoReturn:
    raise error


def _unexpected(error: BaseException, worker: Worker) -> OperatorFailed:
    if _is_interrupt(error):
        return interrupted(worker.epoch, error, worker=worker.incarnation)
    wrapped = OperatorFailed(
        "operator.raised",
        f"worker {worker.incarnation} stopped in execution {worker.execution}: "
        f"{type(error).__name__}: {error}",
        hint="the cause has the traceback; the epoch is not counted, and the run goes on",
        worker=worker.incarnation,
    )
    wrapped.__cause__ = error
    return wrapped
