"""Clusters: the coordinator, the workers and the storage of a run, whatever carries messages between them.

`Cluster` is the implementation of `carried.CarriedRun`, the seam to `run.Run`, that all carriers of Riverrun share: it
has what does not depend on how messages travel. There are two kinds. `local.LocalCluster` carries messages in the
caller's thread, while the caller waits. `remote.RemoteCluster` carries them over connections between processes, all the
time. The laws of `carried` hold, and:

- **Interrupted between steps.** An exception of a signal's handler that comes during one of these calls is raised where
  nothing is half done (`interrupts`). A request that was accepted and not carried out yet is carried out in a later
  call.
- **Settled interrupt.** When a caller is interrupted while it waits for an epoch, the epoch is *refused* before the
  interrupt is raised (`settle_interrupt`): its rows are dropped, in the log too. An epoch that is *complete* by then
  stays. Three things can prevent the refusal: the storage does not answer, a second interrupt ends the wait for the
  storage, or another thread is at work. Then the epoch either is still *accepted*, and is worked on later or now; or it
  is *refusing*: its refusal is on its way to the log, and no later epoch can get there before the refusal.
"""

from __future__ import annotations

import json
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from threading import Condition, RLock
from typing import Any, Self
from uuid import uuid4

from riverrun import interrupts
from riverrun.engine.coordinator.coordinator import Coordinator
from riverrun.engine.coordinator.failures import closed_error, interrupted
from riverrun.engine.coordinator.phases import Phase
from riverrun.engine.coordinator.resume import Resume, decide
from riverrun.engine.coordinator.shares import routes_of
from riverrun.engine.events import Events
from riverrun.engine.loop_rounds import LongLoops, LoopRound
from riverrun.engine.messages import (
    COORDINATOR,
    INTERRUPTED,
    Acknowledge,
    Closed,
    Inputs,
    Logged,
    LoopSaved,
    Notice,
    Outcome,
    Outputs,
    Parcels,
    Refused,
    Reported,
    Saved,
    Scaled,
)
from riverrun.engine.round_history import RoundHistory
from riverrun.errors import CheckpointError, RiverrunError, TransportError
from riverrun.plan.lineage import lineage_of
from riverrun.plan.plan import BY_ROUNDS, Plan
from riverrun.runtime.carried import CarriedRun, Standing
from riverrun.runtime.carriers import Durability
from riverrun.runtime.storage_calls import execute
from riverrun.storage.acknowledged import Acknowledger
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.lease import Lease
from riverrun.storage.log import Log
from riverrun.storage.saved_rounds import SavedEpoch, newest
from riverrun.storage.scratch import sweep
from riverrun.storage.store import Storage, open_storage
from riverrun.storage.takeover import Opening, take_over
from riverrun.storage.threads import SerialThread
from riverrun.version import __version__

SETTLING = 5.0  # seconds that the storage has to settle what was interrupted
RECOVERING = 1.0  # seconds that workers have to go back behind it
_LOG = logging.getLogger("riverrun")


class Cluster(CarriedRun):
    """The coordinator, workers and storage of a run. Threads may share it."""

    def __init__(
        self,
        workers: int,
        durability: Durability,
        *,
        deadline: int | None = None,
        keep_numbers: bool = False,
    ) -> None:
        self._checkpoints: Checkpoints | None = None
        self._log: Log | None = None
        self._changed = Condition(RLock())
        """The lock of the coordinator; notified of every message that the coordinator sends."""
        self._lease: Lease | None = None
        self._acknowledger: Acknowledger | None = None
        sweep()
        opening: Opening | None = None
        plan = durability.plan
        fingerprint = durability.fingerprint if plan is None else plan.fingerprint
        if durability.checkpoint is not None:
            opening = self._open(durability)
        self._resume: Resume | None = None if opening is None else opening.resume
        """How instances go on from the checkpoint, where it is of another program."""
        self._durable = durable = opening is not None
        program = None if plan is None or not durable else _word_of_loops(plan)
        saved = None if program is None else self._saved_rounds()
        self._coordinator = Coordinator(
            workers,
            opening=opening,
            every=durability.every if durable else None,
            retain=durability.retain,
            fingerprint=fingerprint,
            lineage=None if plan is None or not durable else lineage_of(plan),
            about=_about(durability),
            policy=durability.policy,
            deadline=deadline,
            skip_failing=durability.skip_failing,
            keep_numbers=keep_numbers,
            routes=None if plan is None else routes_of(plan),
            storage_timeout=durability.storage_timeout,
            program=program,
            saved=saved,
        )
        self._errors: dict[int, RiverrunError] = {}
        self._answers: dict[type, Any] = {}
        self.events = Events()
        self.rounds = RoundHistory()
        self._inherited = self._coordinator.next
        """The epochs below this one were submitted to earlier owners of the path."""
        self._loops = LongLoops(self.events)
        self._logged = -1
        self._closed = False

    def _open(self, durability: Durability) -> Opening:
        """Acquire the lease of the path, and take over its checkpoints and log."""
        place = durability.checkpoint
        assert place is not None
        if not isinstance(place, Storage):
            place = open_storage(place, synced=durability.synced)
        self._checkpoints = Checkpoints(place)
        self._log = Log(self._checkpoints.storage)
        identity, plan = uuid4().hex, durability.plan
        fingerprint = durability.fingerprint if plan is None else plan.fingerprint
        try:
            self._lease = Lease.acquire(
                self._checkpoints.storage,
                identity,
                application=durability.application,
                take_over=durability.take_over,
            )
            opening = take_over(
                self._checkpoints,
                self._log,
                identity=identity,
                fingerprint=fingerprint,
                number=durability.from_checkpoint,
                decide=None if plan is None else partial(decide, plan, rebuild=durability.rebuild),
                keep_inputs=durability.keep_inputs,
            )
            self._acknowledger = Acknowledger(
                self._checkpoints.storage, opening.owner, opening.reported,
                doubtful=opening.doubtful, logged=partial(getattr, self._log, "acknowledged"),
            )  # fmt: skip
            if opening.resume is None:
                return opening
            # A checkpoint that the run goes back to has got a new number.
            return replace(opening, resume=replace(opening.resume, number=opening.number))
        except TransportError as error:
            self._let_go()
            raise _unusable(self._checkpoints.storage, error) from error
        except BaseException:
            self._let_go()
            raise

    def _saved_rounds(self) -> SavedEpoch | None:
        """Where the loops of an epoch were that the owner before has left under way: a hint, and no more."""
        assert self._checkpoints is not None
        with suppress(RiverrunError):
            return newest(self._checkpoints.storage)
        return None

    def _let_go(self) -> None:
        """Release the path for other runs."""
        if self._acknowledger is not None:
            self._acknowledger.close()
        if self._lease is not None:
            self._lease.release()

    def _sweep(self, thread: SerialThread) -> None:
        """Have parcels of earlier owners deleted that no record names."""
        log, opening = self._log, self._coordinator.opening

        def sweep() -> None:
            assert log is not None
            assert opening is not None
            with suppress(RiverrunError):  # else the next owner deletes them
                log.sweep(opening.owner)

        if opening is not None:
            thread.submit(sweep)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        workers = len(self._coordinator.members)
        return f"<{type(self).__name__} of {workers} workers at epoch {self.epoch}>"

    # ---- what a client does

    @property
    def epoch(self) -> int:
        return self._coordinator.next

    @property
    def logged(self) -> int:
        with self._changed:
            return self._coordinator.next - self._coordinator.log.epochs

    @property
    def completed(self) -> int:
        coordinator = self._coordinator
        return max(coordinator.completed, coordinator.reported)

    @property
    def closed(self) -> str | None:
        if self._coordinator.error is not None:
            return self._coordinator.error.message
        return "it was closed" if self._closed else None

    @property
    def application(self) -> Mapping[str, Any]:
        """JSON that checkpoints store for the application. After a resume, the value in the checkpoint."""
        return self._coordinator.publisher.application

    @application.setter
    def application(self, fields: Mapping[str, Any]) -> None:
        self._coordinator.publisher.application = fields

    @property
    def offsets(self) -> dict[str, Any]:
        return dict(self._coordinator.offsets)

    def submit(
        self,
        inputs: Inputs,
        offsets: Mapping[str, Any] | None = None,
        parcels: Parcels | None = None,
        *,
        logged: bool = True,
    ) -> int:
        coordinator = self._coordinator
        with interrupts.deferred(), self._changed:
            self._check_open()
            if self._durable:
                coordinator.clock(time.monotonic())
            epoch = coordinator.submit(inputs, offsets, parcels)
            self._errors.pop(epoch, None)
            self._logged = min(self._logged, epoch - 1)
            self._send(COORDINATOR, coordinator.take())
            if logged:
                self.await_log(epoch)
            return epoch

    def await_log(self, epoch: int) -> None:
        with interrupts.deferred(), self._changed:
            if self._coordinator.opening is not None:
                self._pump(lambda: self._logged >= epoch)
            if self._coordinator.error is not None:
                raise self._coordinator.error

    @property
    def recovered(self) -> bool:
        return self._recovered()

    def wait(self, epoch: int) -> None:
        coordinator, errors = self._coordinator, self._errors

        def done() -> bool:
            return (coordinator.completed > epoch or epoch in errors) and self._recovered()

        with interrupts.deferred(), self._changed:
            self._check_open()
            if epoch >= coordinator.next and epoch not in errors:
                raise ValueError(
                    f"epoch {epoch} was not submitted; the next one is {coordinator.next}"
                )
            self._before_waiting()
            # Later epochs wait, so that results can be read as of this one.
            if coordinator.limit <= epoch:
                coordinator.allow(epoch + 1)
            self._send(COORDINATOR, coordinator.take())
            try:
                self._pump(done)
            except BaseException as error:
                if interrupts.is_interrupt(error):
                    self.settle_interrupt(epoch, error)
                raise
            if epoch in errors:
                self._hold()
                raise errors[epoch]

    def standing(self, epoch: int) -> Standing:
        if epoch in self._errors:
            return Standing.REFUSED
        if epoch in self._coordinator.refusals:
            return Standing.REFUSING
        return Standing.COMPLETE if self.completed > epoch else Standing.ACCEPTED

    def refused_by_interrupt(self, first: int, end: int) -> list[int]:
        errors = ((epoch, self._errors.get(epoch)) for epoch in range(first, end))
        return [epoch for epoch, error in errors if error is not None and error.code == INTERRUPTED]

    def settle_interrupt(self, epoch: int, error: BaseException) -> None:
        with interrupts.deferred():
            if not interrupts.try_acquire(self._changed, SETTLING):
                return  # another thread is at work, and may complete the epoch
            try:
                self._see_refused(epoch, error)
            finally:
                self._changed.release()

    def _see_refused(self, epoch: int, error: BaseException) -> None:
        coordinator, log = self._coordinator, self._coordinator.log
        if self._torn() or coordinator.is_over:
            return
        deadline = time.monotonic() + SETTLING
        self._stop_work(error)
        # A storage that is away gets no new instruction: an epoch that waits for it stays accepted, and is done later.
        if self._durable:
            self._settle(lambda: self._is_logged(epoch) or log.outage.error is not None, deadline)
        if self._is_logged(epoch) and self.standing(epoch) is Standing.ACCEPTED:
            coordinator.refuse(epoch, interrupted(epoch, error))
            self._send(COORDINATOR, coordinator.take())
        if self._durable:
            self._settle(lambda: not coordinator.refusals or log.outage.error is not None, deadline)
        if not coordinator.refusals:
            self._go_back(time.monotonic() + RECOVERING)

    def _is_logged(self, epoch: int) -> bool:
        return not self._durable or self._logged >= epoch

    def checkpoint(self) -> int:
        with interrupts.deferred(), self._changed:
            self._check_open()
            self._need_storage("make a checkpoint")
            answers, least = self._answers, self._coordinator.completed
            while True:
                answers.pop(Saved, None)
                self._ask(self._coordinator.checkpoint)
                self._pump(lambda: Saved in answers)
                saved: Saved = answers[Saved]
                if saved.epoch >= least:
                    break
                # The run went back, and this answer is of an earlier boundary.
                self._pump(self._recovered)
            if saved.error is not None:
                raise saved.error
            return saved.number

    def scale(self, workers: int) -> None:
        with interrupts.deferred(), self._changed:
            self._check_open()
            answers = self._answers
            answers.pop(Scaled, None)
            self._ask(lambda: self._coordinator.scale(workers))
            self._pump(lambda: Scaled in answers and self._recovered())
            scaled: Scaled = answers[Scaled]
            if scaled.error is not None:
                raise scaled.error

    def status(self) -> dict[str, Any]:
        """The state of the run, for people."""
        with interrupts.deferred(), self._changed:
            if self._durable and not self._closed:
                self._coordinator.clock(time.monotonic())
            return self._status()

    def _status(self) -> dict[str, Any]:
        coordinator = self._coordinator
        return {**coordinator.status(), "loops": self._loops.status(coordinator.completed)}

    def loops(self) -> list[LoopRound]:
        """The loops that are going, as far as the coordinator knows. May be called from any thread."""
        return self._loops.going(self._coordinator.completed)

    def await_end(self, timeout: float | None = None) -> bool:
        with interrupts.deferred(), self._changed:
            over = interrupts.wait_for(self._changed, lambda: self.closed is not None, timeout)
            if self._coordinator.error is not None:
                raise self._coordinator.error
            return over

    @property
    def released(self) -> int:
        return self._coordinator.released

    def hold_epochs(self) -> None:
        with self._changed:
            self._coordinator.limit = min(self._coordinator.limit, self.completed)

    def settle(self, epoch: int) -> None:
        with interrupts.deferred(), self._changed:
            self._pump(lambda: self.completed > epoch)

    # ---- what the kinds do differently, besides the members of the port that are abstract

    @abstractmethod
    def kill(self, index: int) -> None:
        """Lose the worker at an index with all it has in memory, as a test of the recovery."""

    @abstractmethod
    def _pump(self, done: Callable[[], bool]) -> None:
        """Wait until `done()`; raise if the run ends before."""

    @abstractmethod
    def _send(self, sender: int, out: Outputs) -> None:
        """Carry messages to their receivers."""

    @abstractmethod
    def _before_waiting(self) -> None:
        """Called when a caller is about to wait for an epoch."""

    @abstractmethod
    def _settle(self, done: Callable[[], bool], deadline: float) -> None:
        """Wait until `done()`, or the deadline, or another interrupt is due, which is not raised here."""

    def _hold(self) -> None:
        """Work on no epoch that nobody waits for. Does nothing where work goes on by itself."""
        return

    def _stop_work(self, error: BaseException) -> None:
        """A caller that waits for an epoch was interrupted: end the step that runs in this thread."""
        return

    def _go_back(self, deadline: float) -> None:
        """An epoch was refused: have the workers of this process go back to the boundary before it."""
        return

    def _torn(self) -> bool:
        """Whether a step in this process ended halfway."""
        return False

    # ---- for both

    def _recovered(self) -> bool:
        """Whether the run goes on, and all reported epochs are complete in the present execution."""
        coordinator = self._coordinator
        return coordinator.phase is Phase.RUNNING and coordinator.completed >= coordinator.reported

    def _caught_up(self) -> bool:
        """Whether all epochs of the log are done again."""
        coordinator = self._coordinator
        return coordinator.phase is Phase.RUNNING and coordinator.completed == coordinator.next

    def _ask(self, question: Callable[[], None]) -> None:
        question()
        self._send(COORDINATOR, self._coordinator.take())

    def _tell(self, message: Any) -> None:
        """Take a message of the coordinator to the client."""
        kind = type(message)
        if kind is Reported:
            for note in message.notes:
                self.events.add(**note)
            if message.rounds and message.epoch >= self._inherited:
                self.rounds.add(message.epoch, message.rounds)
        elif kind is Refused:
            self._errors[message.epoch] = message.error
            if message.inherited:
                self._say_refused(message)
        elif kind is Logged:
            self._logged = message.epoch
        elif kind is Saved or kind is Scaled:
            self._answers[kind] = message
            self._note(message)
        elif kind is LoopSaved:
            what = "loop resumed" if message.again else "loop saved"
            loop = message.loop.rstrip("/").removesuffix(BY_ROUNDS)
            self.events.record(what, epoch=message.epoch, loop=loop, round=message.round)
        elif kind is Notice:
            _LOG.log(message.level, "%s", message.text)
        elif kind is Closed and self._lease is not None:
            self._lease.stop()

    def _say_refused(self, refused: Refused) -> None:
        """Warn that an epoch fails that an earlier run has logged, and is refused."""
        standing = "acknowledged" if refused.acknowledged else "never acknowledged"
        _LOG.warning(
            "epoch %d was logged, %s, and fails now: it is refused, and none of its rows count: %s",
            refused.epoch, standing, refused.error.message,
        )  # fmt: skip
        self.events.record(
            "refused",
            epoch=refused.epoch,
            acknowledged=refused.acknowledged,
            error=refused.error.message,
        )

    def _acknowledge(self, instruction: Acknowledge) -> None:
        """Note that epochs are about to be acknowledged (`storage.acknowledged`)."""
        if self._acknowledger is not None:
            self._acknowledger.note(instruction.epoch)

    def _note(self, message: Saved | Scaled) -> None:
        error = None if message.error is None else message.error.message
        if isinstance(message, Scaled):
            self.events.record("scaled", workers=message.workers, error=error)
            return
        last = message.epoch - 1 if message.epoch else None
        if error is None:
            self.events.record("checkpoint", number=message.number, epoch=last)
        else:
            self.events.record("trouble", what="a checkpoint", epoch=last, error=error)

    def _execute(self, instruction: Any) -> Outcome:
        """Execute an instruction to the storage."""
        assert self._checkpoints is not None
        assert self._log is not None
        return execute_and_catch(instruction, self._checkpoints, self._log)

    def _need_storage(self, what: str) -> None:
        if self._coordinator.opening is None:
            raise CheckpointError(
                "checkpoint.no_path",
                f"cannot {what}: the run has no checkpoint path",
                hint="start it with checkpoint=PATH",
            )

    def _check_open(self) -> None:
        if self._coordinator.error is not None:
            raise self._coordinator.error
        if self._closed:
            raise closed_error(None)


def _about(durability: Durability) -> Mapping[str, Any] | None:
    """The `about` of checkpoints: also the code of the program's functions, so that refusals can name what differs."""
    if durability.plan is None or durability.checkpoint is None:
        return durability.about
    return {**(durability.about or {}), "code": dict(durability.plan.code.words)}


def _word_of_loops(plan: Plan) -> str | None:
    """A word for a program that has loops which can be saved while an epoch is under way; None for others."""
    if not plan.saved_loops:
        return None
    parts = [
        __version__,
        plan.fingerprint,
        dict(plan.code.words),
        [node.name for node in plan.nodes],
    ]
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _unusable(storage: Storage, error: RiverrunError) -> CheckpointError:
    return CheckpointError(
        "checkpoint.unusable",
        f"cannot run with {storage.where}: {error.message}",
        hint="nothing was started: make room there, make it writable and reachable, or give another path",
        story=error.story,
    )


def execute_and_catch(instruction: Any, checkpoints: Checkpoints, log: Log) -> Outcome:
    """Execute an instruction; every exception becomes part of the outcome: a `SerialThread` must not meet one."""
    try:
        return execute(instruction, checkpoints, log)
    except Exception as error:
        wrapped = CheckpointError(
            "checkpoint.raised",
            f"cannot {type(instruction).__name__.lower()}: {type(error).__name__}: {error}",
            hint="the cause has the traceback",
        )
        wrapped.__cause__ = error
        return Outcome(instruction, error=wrapped)
