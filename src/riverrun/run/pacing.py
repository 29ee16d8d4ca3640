"""Pacing: which epoch of a run is worked on next, and when sinks are given its changes.

A `Run` has one `Pacing`, by which every wait for an epoch goes on. Without sinks, epochs are done in one go: a wait
for an epoch completes all epochs up to it. With sinks, each epoch is completed by itself, and its changes are
read at its own boundary, before the next epoch begins. Laws:

- **Each at its own boundary.** While a run has sinks, no epoch is released before the changes of the epoch before it
  are handed out.
- **In turn.** `advance`, `finish_released`, `hand_out` and `at_boundary` are called by the thread that has the run's
  turn (`turn`); a `Pacing` never takes the turn itself.
- **Onward.** Where epochs go on while nobody waits for them (`Paces.goes_on`), they also go on with sinks: a thread
  waits for them in place of the user.

Cost: a comparison for each epoch of a run without sinks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Thread
from time import sleep

from riverrun.errors import RiverrunError
from riverrun.run.progress_line import ProgressLine
from riverrun.run.result import Result
from riverrun.run.sinks.queue import Sink, SinkQueues
from riverrun.runtime.carried import CarriedRun

PAUSE = 0.01  # seconds between two looks for an epoch that was committed


class Pacing:
    """Paces the epochs of one run."""

    def __init__(
        self,
        name: str,
        cluster: CarriedRun,
        sinks: SinkQueues,
        changes: Callable[[str, int], Result],
        wait: Callable[[int], None],
    ) -> None:
        """`changes` reads what an epoch changed in an output; `wait` returns when an epoch is complete, and handed out
        to all sinks."""
        self._cluster = cluster
        self._sinks = sinks
        self._changes = changes
        self._wait = wait
        self.line = ProgressLine(name, cluster.touched, cluster.loops, cluster.rounds)
        """What a terminal shows."""
        self._driver: Thread | None = None
        self._beginning = False  # whether a sink is about to be added
        self._driving = Lock()
        """Of the two above: the thread ends only where no sink is there, or about to be."""

    def advance(self, epoch: int, rows: int) -> bool:
        """In turn: complete `epoch`, and return True. With sinks, complete only the next epoch on the way to `epoch`,
        since each is seen at its own boundary; return whether that was `epoch` itself."""
        cluster, sinks = self._cluster, self._sinks
        self.hand_out()
        at = min(epoch, sinks.next) if sinks else epoch
        try:
            with self.line.watching(at, rows):
                cluster.wait(at)
        except BaseException as error:
            if cluster.closed or (
                isinstance(error, Exception) and not isinstance(error, RiverrunError)
            ):
                raise
            # A refused epoch: the waiting caller gets the error. Where later epochs keep their numbers, the refused
            # one is run without its rows, and that run of it has a boundary too.
            refused = isinstance(error, RiverrunError)
            if refused and sinks and cluster.epoch > at:
                cluster.settle(at)
                self.hand_out()
            if sinks:
                cluster.hold_epochs()
            if (
                at == epoch or not refused
            ):  # after an interrupt, the next call that waits sees the boundary
                raise
        self.hand_out()
        return at == epoch

    def finish_released(self) -> None:
        """In turn: complete the epoch that workers were left at, and hand it out while they can still tell its changes.

        An interrupt leaves such an epoch. Workers that are about to be replaced by others would complete it unseen."""
        epoch = self._sinks.next
        if self._sinks and not self._cluster.goes_on and self._cluster.released > epoch:
            with suppress(RiverrunError):  # whoever committed the epoch is told
                self.advance(epoch, 0)

    def hand_out(self) -> None:
        """In turn: give all sinks the epochs that are complete."""
        self._sinks.hand_out(self._cluster.completed, self._changes)

    @contextmanager
    def at_boundary(self) -> Iterator[None]:
        """In turn: a block during which no epoch is worked on, so that a sink can begin. Epochs are held from then on,
        as long as the run has sinks."""
        with self._driving:
            self._beginning = True
        try:
            self._cluster.hold_epochs()
            with self._cluster.still():
                yield
        finally:
            with self._driving:
                self._beginning = False

    def follow(self, sink: Sink, completed: int) -> None:
        """At a boundary: add a sink, which follows from here on and was given all earlier epochs."""
        self._sinks.add(sink, completed)
        with self._driving:
            if self._cluster.goes_on and self._driver is None:
                self._driver = Thread(target=self._drive, name="riverrun-pacing", daemon=True)
                self._driver.start()

    def _drive(self) -> None:
        """In a thread: while the run has sinks, see to it that epochs go on, whether or not they are waited for."""
        while not self._cluster.closed:
            with self._driving:
                if not self._sinks and not self._beginning:
                    self._driver = None
                    with suppress(RiverrunError):
                        self._cluster.free_epochs()
                    return
            # A wait for an epoch that is not logged yet would keep the turn.
            epoch = self._cluster.logged
            if epoch > self._cluster.completed:
                with suppress(RiverrunError):  # the caller who committed the epoch gets the error
                    self._wait(epoch - 1)
            sleep(PAUSE)
