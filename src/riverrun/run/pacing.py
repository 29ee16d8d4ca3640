"""Pacing: which epoch of a run is worked on next, and when sinks are given its changes.

A `Run` has one `Pacing`, which every wait for an epoch goes through. Without sinks, epochs are done in one go: a wait
for an epoch completes all epochs up to it. With sinks, each epoch is completed by itself, and its changes are
read at its own boundary, before the next epoch begins. Laws:

- **Each at its own boundary.** While a run has sinks, no epoch is released before the changes of the epoch before it
  are handed out.
- **Room first.** No epoch is handed to a sink that is far behind: a thread that commits or waits first waits for
  the sink. It does so without the run's lock, so that the sink's function may use the run.
- **Onward.** Where epochs go on while nobody waits for them (`Cluster.goes_on`), they also go on with sinks: a thread
  waits for them in place of the user.

Cost: a comparison for each epoch of a run without sinks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import RLock, Thread
from time import sleep

from riverrun.errors import RiverrunError
from riverrun.interrupts import deferred, held
from riverrun.run.progress_line import ProgressLine
from riverrun.run.result import Result
from riverrun.run.sinks.queue import Followers, Sink
from riverrun.runtime.cluster import Cluster

PAUSE = 0.01  # seconds between two looks for an epoch that was committed


class Pacing:
    """Paces the epochs of one run. Threads that share the run take turns, by its lock."""

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        followers: Followers,
        turn: RLock,
        changes: Callable[[str, int], Result],
    ) -> None:
        """`changes` reads what an epoch changed in an output; `turn` is the lock of the thread that has the turn."""
        self._cluster = cluster
        self._followers = followers
        self._turn = turn
        self._changes = changes
        self.line = ProgressLine(name, cluster.touched, cluster.loops, cluster.rounds)
        """What a terminal shows."""
        self._driver: Thread | None = None

    def wait(self, epoch: int, rows: int = 0) -> None:
        """Return when an epoch is complete, and handed out to all sinks; raise its error, if the epoch failed."""
        with deferred():
            while not self._advance_in_turn(epoch, rows):
                self._followers.wait_for_room()  # not in turn: a sink's function may use the run

    def _advance_in_turn(self, epoch: int, rows: int) -> bool:
        with held(self._turn):
            return self.advance(epoch, rows)

    def advance(self, epoch: int, rows: int) -> bool:
        """In turn: complete `epoch`, and return True. With sinks, complete only the next epoch on the way to `epoch`,
        since each is seen at its own boundary; return whether that was `epoch` itself."""
        cluster, followers = self._cluster, self._followers
        self.hand_out()
        at = min(epoch, followers.next) if followers else epoch
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
            if refused and followers and cluster.epoch > at:
                cluster.settle(at)
                self.hand_out()
            if followers:
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
        epoch = self._followers.next
        if self._followers and not self._cluster.goes_on and self._cluster.released > epoch:
            with suppress(RiverrunError):  # whoever committed the epoch is told
                self.advance(epoch, 0)

    def hand_out(self) -> None:
        """In turn: give all sinks the epochs that are complete."""
        self._followers.hand_out(self._cluster.completed, self._changes)

    def follow(self, sink: Sink, completed: int) -> None:
        """In turn, at a boundary: add a sink, which follows from here on and was given all earlier epochs."""
        self._followers.add(sink, completed)
        if self._cluster.goes_on and self._driver is None:
            self._driver = Thread(target=self._drive, name="riverrun-followers", daemon=True)
            self._driver.start()

    def _drive(self) -> None:
        """In a thread: while the run has sinks, see to it that epochs go on, whether or not they are waited for."""
        while not self._cluster.closed:
            if not self._followers:
                with self._turn:
                    if not self._followers:
                        self._driver = None
                        with suppress(RiverrunError):
                            self._cluster.free_epochs()
                        return
            epoch = (
                self._cluster.logged
            )  # a wait for an epoch that is not logged yet would keep the turn
            if epoch > self._cluster.completed:
                with suppress(RiverrunError):  # the caller who committed the epoch gets the error
                    self.wait(epoch - 1)
            sleep(PAUSE)
