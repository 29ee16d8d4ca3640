"""A cluster: a coordinator, its workers and a storage, as whoever uses a run sees them.

What is the same however messages travel is here: epochs are submitted and waited for, checkpoints
and another number of workers asked for, errors told. The two kinds differ in how messages are
carried: `transport.LocalCluster` does it in this thread while somebody waits, `remote.RemoteCluster`
over Arrow Flight, all the time. Laws:

1. **Logged first.** With a checkpoint path, `submit` returns when the input is in the log.
2. **Usable.** When an epoch is refused, `wait` raises why, and the run is as it was before it. When
   the run is over, `closed` says why, and every call raises it.
3. **Of one epoch.** What `read` and `changes` give is of an epoch that is complete everywhere, and
   stays as it is while the run goes on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Condition, RLock
from typing import Any, Self
from uuid import uuid4

from riverrun.engine.coordinator import Coordinator, Phase, closed_error
from riverrun.engine.events import Events
from riverrun.engine.messages import (
    COORDINATOR,
    Inputs,
    Logged,
    Outcome,
    Outputs,
    Parcels,
    Refused,
    Saved,
    Scaled,
)
from riverrun.engine.reading import Portion
from riverrun.engine.roster import Policy
from riverrun.engine.storing import execute
from riverrun.errors import CheckpointError, RiverrunError
from riverrun.progress import Antichain
from riverrun.state.checkpoint import Checkpoints
from riverrun.state.log import Log, Opening, take_over
from riverrun.state.storage import Storage

EVERY = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Durability:
    """Where a run is kept, and how often."""

    checkpoint: str | Path | Storage | None = None
    every: int | timedelta | None = EVERY
    """The distance of checkpoints, in epochs or time; None for only those asked for."""
    retain: int = 2
    policy: Policy = "replace"
    skip_failing: bool = False
    fingerprint: Mapping[str, Any] | None = None
    about: Mapping[str, Any] | None = None
    """What checkpoints say besides: JSON."""


class Cluster(ABC):
    """What a run stands on. Threads may share it."""

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
        """Holds the coordinator still; told of whatever it says."""
        opening: Opening | None = None
        if durability.checkpoint is not None:
            self._checkpoints = Checkpoints(durability.checkpoint)
            self._log = Log(self._checkpoints.storage)
            opening = take_over(
                self._checkpoints,
                self._log,
                identity=uuid4().hex,
                fingerprint=durability.fingerprint,
            )
        durable = opening is not None
        self._coordinator = Coordinator(
            workers,
            opening=opening,
            every=durability.every if durable else None,
            retain=durability.retain,
            fingerprint=durability.fingerprint,
            about=durability.about,
            policy=durability.policy,
            deadline=deadline,
            skip_failing=durability.skip_failing,
            keep_numbers=keep_numbers,
        )
        self._timed = durable and isinstance(durability.every, timedelta)
        self._errors: dict[int, RiverrunError] = {}
        self._answers: dict[type, Any] = {}
        self.events = Events()
        self._logged = -1
        self._closed = False

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
        """The number of the next epoch to be submitted."""
        return self._coordinator.next

    @property
    def completed(self) -> int:
        """All epochs below are complete everywhere; some may be about to be done again."""
        coordinator = self._coordinator
        return max(coordinator.completed, coordinator.reported)

    @property
    def closed(self) -> str | None:
        """Why the run is over; None while it is not."""
        if self._coordinator.error is not None:
            return self._coordinator.error.message
        return "it was closed" if self._closed else None

    @property
    def application(self) -> Mapping[str, Any]:
        """What checkpoints keep for the application: JSON. After a resume, what the checkpoint had."""
        return self._coordinator.application

    @application.setter
    def application(self, fields: Mapping[str, Any]) -> None:
        self._coordinator.application = fields

    @property
    def offsets(self) -> dict[str, Any]:
        """Of each stream that is an input, how far it was accepted."""
        return dict(self._coordinator.offsets)

    def submit(
        self,
        inputs: Inputs,
        offsets: Mapping[str, Any] | None = None,
        parcels: Parcels | None = None,
    ) -> int:
        """Accept the input of the next epoch; return its number when it is in the log.

        `offsets` say how far streams have come with this epoch: JSON, kept with the epoch. `parcels`
        are rows that workers have already.
        """
        coordinator = self._coordinator
        with self._changed:
            self._check_open()
            epoch = coordinator.submit(inputs, offsets, parcels)
            self._errors.pop(epoch, None)
            self._logged = min(self._logged, epoch - 1)
            self._send(COORDINATOR, coordinator.take())
            if coordinator.opening is not None:
                self._pump(lambda: self._logged >= epoch)
            if coordinator.error is not None:
                raise coordinator.error
            return epoch

    def wait(self, epoch: int) -> None:
        """Return when an epoch is complete everywhere; raise why, if it is refused."""
        coordinator, errors = self._coordinator, self._errors

        def done() -> bool:
            return (coordinator.completed > epoch or epoch in errors) and self._recovered()

        with self._changed:
            self._check_open()
            if epoch >= coordinator.next and epoch not in errors:
                raise ValueError(
                    f"epoch {epoch} was not submitted; the next one is {coordinator.next}"
                )
            self._before_waiting()
            if coordinator.limit <= epoch:  # those after it wait, so that results are read as of it
                coordinator.allow(epoch + 1)
            self._send(COORDINATOR, coordinator.take())
            try:
                self._pump(done)
            except KeyboardInterrupt:
                self._interrupted(done)
                raise
            if epoch in errors:
                raise errors[epoch]

    def checkpoint(self) -> int:
        """Make a checkpoint at the next boundary; return its number when it is published."""
        with self._changed:
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
                self._pump(self._recovered)  # it went back to one from before, and told of that
            if saved.error is not None:
                raise saved.error
            return saved.number

    def scale(self, workers: int) -> None:
        """Go on with another number of workers; return when they have taken over."""
        with self._changed:
            self._check_open()
            answers = self._answers
            answers.pop(Scaled, None)
            self._ask(lambda: self._coordinator.scale(workers))
            self._pump(lambda: Scaled in answers and self._recovered())
            scaled: Scaled = answers[Scaled]
            if scaled.error is not None:
                raise scaled.error

    def status(self) -> dict[str, Any]:
        """Where the run stands."""
        with self._changed:
            return self._coordinator.status()

    def await_end(self, timeout: float | None = None) -> bool:
        """Return when the run is over: True; or after so many seconds: False. Raise what it died of, if it did."""
        with self._changed:
            over = self._changed.wait_for(lambda: self.closed is not None, timeout)
            if self._coordinator.error is not None:
                raise self._coordinator.error
            return over

    def hold_epochs(self) -> None:
        """From now on an epoch is worked on only when somebody waits for it, so that each can be read as of it."""
        with self._changed:
            self._coordinator.limit = min(self._coordinator.limit, self.completed)

    def free_epochs(self) -> None:
        """Epochs need not be waited for any more, where they go on by themselves."""
        return

    def still(self) -> AbstractContextManager[None]:
        """No epoch is worked on meanwhile."""
        return nullcontext()

    def settle(self, epoch: int) -> None:
        """Return when an epoch is over, be it that it was refused and is run without its rows."""
        with self._changed:
            self._pump(lambda: self.completed > epoch)

    # ---- what the kinds do differently

    @abstractmethod
    def read(self, name: str, epoch: int) -> Sequence[Portion]:
        """Each worker's part of an output as of an epoch."""

    @abstractmethod
    def changes(self, name: str, epoch: int) -> Sequence[Portion]:
        """Each worker's part of what an epoch changed in an output."""

    @abstractmethod
    def frontier(self, probe: str) -> Antichain:
        """The times that can still come to a probe."""

    @abstractmethod
    def stats(self) -> Sequence[Mapping[str, Any]]:
        """How large each state is, on each worker."""

    @abstractmethod
    def touched(self) -> int:
        """How many changes the present execution has made so far, as far as is known here."""

    @abstractmethod
    def kill(self, index: int) -> None:
        """Lose the worker at an index with all it has in memory, as a test of what comes after."""

    @abstractmethod
    def close(self) -> None:
        """End the run. May be called again."""

    @abstractmethod
    def _pump(self, done: Callable[[], bool]) -> None:
        """Return when something is so; raise if the run ends before."""

    @abstractmethod
    def _send(self, sender: int, out: Outputs) -> None:
        """Carry messages to where they go."""

    @abstractmethod
    def _before_waiting(self) -> None:
        """Somebody is about to wait for an epoch."""

    @abstractmethod
    def _interrupted(self, done: Callable[[], bool]) -> None:
        """Whoever waits was interrupted."""

    # ---- for both

    def _recovered(self) -> bool:
        """Whether all that was reported is there."""
        coordinator = self._coordinator
        return coordinator.phase is Phase.RUNNING and coordinator.completed >= coordinator.reported

    def _caught_up(self) -> bool:
        """Whether all that was in the log is done again."""
        coordinator = self._coordinator
        return coordinator.phase is Phase.RUNNING and coordinator.completed == coordinator.next

    def _ask(self, question: Callable[[], None]) -> None:
        question()
        self._send(COORDINATOR, self._coordinator.take())

    def _tell(self, message: Any) -> None:
        """The coordinator says something to the client."""
        kind = type(message)
        if kind is Refused:
            self._errors[message.epoch] = message.error
        elif kind is Logged:
            self._logged = message.epoch
        elif kind is Saved or kind is Scaled:
            self._answers[kind] = message
            self._note(message)

    def _note(self, message: Saved | Scaled) -> None:
        error = None if message.error is None else message.error.message
        if isinstance(message, Scaled):
            self.events.record("scaled", workers=message.workers, error=error)
        elif error is None:
            self.events.record("checkpoint", number=message.number, epoch=message.epoch)
        else:
            self.events.record("trouble", what="a checkpoint", epoch=message.epoch, error=error)

    def _execute(self, instruction: Any) -> Outcome:
        """Do what the storage is asked for."""
        assert self._checkpoints is not None
        assert self._log is not None
        return carefully(instruction, self._checkpoints, self._log)

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


def carefully(instruction: Any, checkpoints: Checkpoints, log: Log) -> Outcome:
    """Execute an instruction in a thread that has nobody to raise to."""
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
