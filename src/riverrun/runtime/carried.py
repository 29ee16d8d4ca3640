"""What a run asks of whatever carries it: the one seam between `run` and the places where workers live.

A carrier (`carriers`) starts a `CarriedRun`; `run.Run` calls it, and knows nothing else of the place where its workers
live. A server or a dashboard stands on the same seam. The members are grouped by what they are for, so that who only
looks can name the group: `Submits` takes epochs in, `Waits` says what became of them, `Reads` gives results, `Paces`
says how far epochs go, and `Serves` has what other processes and people need. Every carrier has the eleven abstract
members, and the attributes `events` and `rounds`. The others have the answer of a plain carrier, one that works while a
caller waits and has no log, no checkpoints and one worker. `cluster.Cluster`, the implementation that all carriers of
Riverrun share, answers all of them. Laws:

- **Logged first.** Where there is a log, `submit` returns when the input is in it; with ``logged=False`` it returns at
  once, and the caller waits for the log later (`await_log`).
- **Usable.** When an epoch is refused, `wait` raises the reason, and the run is as it was before the epoch. When the
  run is over, `closed` has the reason, and every call raises it.
- **Of one epoch.** Rows that `read` and `changes` return are of an epoch that is complete everywhere, and stay as they
  are while the run goes on.
- **Settled interrupt.** When a caller is interrupted while it waits for an epoch, `settle_interrupt` has the epoch
  *refused*, unless it is *complete* by then, or the storage does not answer. `standing` tells at any time which of
  these an epoch is.

`tests/runtime/test_carried.py` has a carrier of one page with these only, on which programs run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from time import monotonic
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from riverrun import interrupts
from riverrun.engine.events import Events
from riverrun.engine.loop_rounds import LoopRound
from riverrun.engine.messages import Inputs, Parcels
from riverrun.engine.reading import Portion
from riverrun.engine.round_history import RoundHistory
from riverrun.errors import PlanError
from riverrun.progress import Antichain
from riverrun.runtime.frames import Frames

END_LOOK = 0.1  # seconds between two looks whether a plain carrier's run is over


class Standing(Enum):
    """What became of an epoch that was submitted."""

    ACCEPTED = "accepted"
    """The epoch is worked on later."""
    COMPLETE = "complete"
    REFUSED = "refused"
    """Its rows are dropped."""
    REFUSING = "refusing"
    """Its rows are dropped here, and the refusal is not in the log yet."""


class ResultServer(Protocol):
    """Answers questions of processes that read results of a run without having the `Run` object."""

    def questions(self) -> Mapping[str, Callable[[Any], Any]]:
        """The questions that can be asked, by name, with the function that answers; called from any thread."""

    def rows(self, ticket: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Rows that this process has, for a holder of their ticket."""


class Submits(ABC):
    """Takes the input of epochs in."""

    @property
    @abstractmethod
    def epoch(self) -> int:
        """The number of the next epoch to be submitted."""

    @abstractmethod
    def submit(
        self,
        inputs: Inputs,
        offsets: Mapping[str, Any] | None = None,
        parcels: Parcels | None = None,
        *,
        logged: bool = True,
    ) -> int:
        """Accept the input of the next epoch; return the number of the epoch, with `logged` when the input is in the
        log.

        `offsets` have, for each stream with a batch in this epoch, the id of the query and the number of the batch,
        ``{"eu": ["1c9e", 7]}``; they are logged with the epoch. `parcels` name rows that workers have already.
        """

    @property
    def offsets(self) -> dict[str, Any]:
        """For each stream, its queries and the number of the last batch of each that was accepted, as pairs."""
        return {}

    def await_log(self, epoch: int) -> None:
        """Return when the input of an epoch is in the log, where there is one."""
        return

    @property
    def logged(self) -> int:
        """All epochs below this one are in the log, where there is one."""
        return self.epoch


class Waits(ABC):
    """Says what became of epochs, and of the run."""

    @property
    @abstractmethod
    def completed(self) -> int:
        """All epochs below this one are or were complete everywhere. After a loss some of them are done again."""

    @property
    @abstractmethod
    def closed(self) -> str | None:
        """Why the run is over; None while it is not."""

    @abstractmethod
    def wait(self, epoch: int) -> None:
        """Return when an epoch is complete everywhere; raise the reason if it is refused."""

    def settle(self, epoch: int) -> None:
        """Wait until an epoch is over, with its rows or, where it was refused, without them."""
        return

    def settle_interrupt(self, epoch: int, error: BaseException) -> None:
        """A caller was interrupted while it waited for an epoch: refuse the epoch, unless it is complete (the law
        settled interrupt)."""
        return

    def standing(self, epoch: int) -> Standing:
        """What became of an epoch that was submitted."""
        return Standing.COMPLETE if self.completed > epoch else Standing.ACCEPTED

    def refused_by_interrupt(self, first: int, end: int) -> list[int]:
        """The epochs from `first` up to, not including, `end` that were refused because a caller was interrupted."""
        return []

    def await_end(self, timeout: float | None = None) -> bool:
        """Wait until the run is over: True; or for `timeout` seconds: False. Raises the error that ended the run, if
        one did."""
        deadline = None if timeout is None else monotonic() + timeout
        while self.closed is None:
            if deadline is not None and monotonic() >= deadline:
                return False
            interrupts.sleep(END_LOOK)
        return True


class Reads(ABC):
    """Gives results."""

    @abstractmethod
    def read(self, name: str, epoch: int) -> Sequence[Portion]:
        """Each worker's part of an output as of an epoch."""

    @abstractmethod
    def changes(self, name: str, epoch: int) -> Sequence[Portion]:
        """Each worker's part of the changes of an output in an epoch."""

    @abstractmethod
    def frontier(self, probe: str) -> Antichain:
        """The times that can still come to a probe."""

    def still(self) -> AbstractContextManager[None]:
        """A block during which no epoch is worked on."""
        return nullcontext()

    @property
    def recovered(self) -> bool:
        """Whether all workers are there, and all reported epochs are complete on them."""
        return True

    def stats(self) -> Sequence[Mapping[str, Any]]:
        """How large each state is, on each worker."""
        return ()


class Paces(ABC):
    """Says how far epochs go, and with how many workers."""

    goes_on: ClassVar[bool] = False
    """Whether epochs are worked on while no caller waits for one."""

    @property
    @abstractmethod
    def released(self) -> int:
        """Workers are at the epochs below this one, or have completed them."""

    def hold_epochs(self) -> None:
        """From now on work on an epoch only when a caller waits for it, so that results can be read as of each
        epoch."""
        return

    def free_epochs(self) -> None:
        """Undo `hold_epochs`, where epochs are worked on while nobody waits."""
        return

    def checkpoint(self) -> int:
        """Make a checkpoint at the next boundary; return its number when it is published."""
        raise _not_here("make a checkpoint")

    def scale(self, workers: int) -> None:
        """Go on with another number of workers; return when they have taken over."""
        raise _not_here(f"go on with {workers} workers")


class Serves(ABC):
    """What people and other processes ask of the run, and its end."""

    events: Events
    """What has happened to the run."""
    rounds: RoundHistory
    """What the rounds of loops did in the last epochs that were submitted here."""
    frames: Frames | None = None
    """The engine of DataFrames that the workers live in, if they live in one."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """The state of the run, for people: at least `workers`, `next`, `completed`, and `checkpoint` with two keys: up
        to which `epoch` the last one goes, and the one that is `writing`; None where there is none."""

    def touched(self) -> int:
        """How many changes the present execution has made so far, as far as this process knows. Any thread may ask."""
        return 0

    def loops(self) -> Sequence[LoopRound]:
        """The loops that are going, as far as this process knows. Any thread may ask."""
        return ()

    @property
    def is_stepping(self) -> bool:
        """Whether a worker of this process is at work. Where the thread that works asks this, it is in a user's
        function."""
        return False

    def serve(self, server: ResultServer) -> None:
        """Have `server` answer questions of other processes, where they can reach this one."""
        return

    @abstractmethod
    def close(self) -> None:
        """End the run. May be called again."""


class CarriedRun(Submits, Waits, Reads, Paces, Serves):
    """A run as its carrier has it. Threads may share it."""


def _not_here(attempt: str) -> PlanError:
    return PlanError(
        "run.carrier",
        f"cannot {attempt}: the carrier of this run has no checkpoints, and always the same workers",
        hint='run in this process, on="processes" or on="spark"',
    )
