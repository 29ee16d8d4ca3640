"""Pacing: which epoch of a run is worked on next, and that all who follow the run are given each of them.

A run whose results nobody follows has its epochs done in one go: whoever waits for an epoch has all before it done
too. Where somebody follows, a sink say, each epoch is completed by itself, and what it changed is read at its own
boundary, before the next one begins. Laws:

- **Each at its own boundary.** While somebody follows, no epoch is released before what the one before it changed is
  handed out.
- **Room first.** Nobody is given an epoch while they are far behind: whoever commits or waits, waits for them, and
  not in turn, so that what they write may use the run.
- **Onward.** Where epochs go on while nobody waits (`Cluster.goes_on`), they do so while somebody follows, too: a
  thread waits for them in place of the user.

Cost: a comparison for each epoch that nobody follows.
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
        """`changes` reads what an epoch changed in an output; `turn` is held by whoever has the turn."""
        self._cluster = cluster
        self._followers = followers
        self._turn = turn
        self._changes = changes
        self._line = ProgressLine(name, cluster.touched, cluster.loops)
        self._driver: Thread | None = None

    def wait(self, epoch: int, rows: int = 0) -> None:
        """Return when an epoch is complete, and handed out to all who follow; raise what it failed with."""
        with deferred():
            while not self._advance_in_turn(epoch, rows):
                self._followers.wait_for_room()  # not in turn: what is written may use the run

    def _advance_in_turn(self, epoch: int, rows: int) -> bool:
        with held(self._turn):
            return self.advance(epoch, rows)

    def advance(self, epoch: int, rows: int) -> bool:
        """In turn: complete an epoch; where somebody follows, only the next one on the way to it: each is seen at its
        own boundary. Whether it was the one asked for."""
        cluster, followers = self._cluster, self._followers
        self.hand_out()
        at = min(epoch, followers.next) if followers else epoch
        try:
            with self._line.watching(at, rows):
                cluster.wait(at)
        except BaseException as error:
            if cluster.closed or (
                isinstance(error, Exception) and not isinstance(error, RiverrunError)
            ):
                raise
            # Refused, as whoever waits for it is told. Where later ones keep their numbers, it is run without its rows,
            # and that has a boundary too.
            refused = isinstance(error, RiverrunError)
            if refused and followers and cluster.epoch > at:
                cluster.settle(at)
                self.hand_out()
            if followers:
                cluster.hold_epochs()
            if (
                at == epoch or not refused
            ):  # whoever is interrupted: the next call that waits has its boundary
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
        """In turn: give all who follow what is complete."""
        self._followers.hand_out(self._cluster.completed, self._changes)

    def follow(self, sink: Sink, completed: int) -> None:
        """In turn, at a boundary: one more follows from here on, and was given all before."""
        self._followers.add(sink, completed)
        if self._cluster.goes_on and self._driver is None:
            self._driver = Thread(target=self._drive, name="riverrun-followers", daemon=True)
            self._driver.start()

    def _drive(self) -> None:
        """In a thread: while somebody follows, see to it that epochs go on, whether or not they are waited for."""
        while not self._cluster.closed:
            if not self._followers:
                with self._turn:
                    if not self._followers:
                        self._driver = None
                        with suppress(RiverrunError):
                            self._cluster.free_epochs()
                        return
            epoch = self._cluster.logged  # for the others it would wait in turn
            if epoch > self._cluster.completed:
                with suppress(RiverrunError):  # whoever committed it is told
                    self.wait(epoch - 1)
            sleep(PAUSE)
