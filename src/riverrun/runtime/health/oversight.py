"""Overseeing: what a run on other processes looks after from time to time.

Called by the clock, under the lock of the cluster; it asks the coordinator for what is to be done,
and has no messages of its own. Laws:

1. **Ready or not.** When not all workers have reported by the deadline, the run is to end, with what the
   launcher knows about why; a change whose newcomers do not come is given up, and the run goes on.
2. **Allowed only.** Nothing is moved or added because of a straggler unless the user said so, and not where
   there is no path through which it could move, or no room for another worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from riverrun.engine.coordinator.coordinator import Coordinator, Phase
from riverrun.errors import RiverrunError, TransportError
from riverrun.runtime.health.signs import Health

if TYPE_CHECKING:
    from riverrun.runtime.remote import Launcher


class Overseer:
    """Looks after a coordinator whose workers are other processes."""

    def __init__(
        self,
        coordinator: Coordinator,
        launcher: Launcher,
        health: Health,
        timeout: float,
        check_room: Callable[[int], None],
    ) -> None:
        """`check_room` raises where there cannot be so many workers."""
        self._coordinator = coordinator
        self._launcher = launcher
        self._health = health
        self._timeout = timeout
        self._check_room = check_room
        self._gathering: float | None = None
        self._changing: float | None = None

    def look(self, now: float, present: int) -> RiverrunError | None:
        """See to what is due; why the run is to end, if it is. `present` members have reported."""
        self._see_to_change(now)
        self._see_to_balance(now)
        if self._coordinator.phase is not Phase.GATHERING:
            self._gathering = None
            return None
        self._gathering = self._gathering or now
        if now - self._gathering > self._timeout:
            return self.not_ready(present, f"within {self._timeout:g} s")
        return None

    def not_ready(self, present: int, when: str, said: str = "") -> TransportError:
        """The error of a run whose workers do not come."""
        wanted = len(self._coordinator.members)
        return TransportError(
            "run.not_ready",
            f"cannot run: {present} of {wanted} workers reported {when}"
            + (f"; the last one said: {said}" if said else ""),
            hint=self._launcher.advice(present, wanted),
            present=present,
            workers=wanted,
        )

    def give_up(self, when: str, said: str = "") -> None:
        """Go on without newcomers that do not come."""
        roster = self._coordinator.roster
        if roster.change is None:
            return
        wanted, present = roster.change.workers, len(roster)
        error = TransportError(
            "run.no_newcomer",
            f"cannot go on with {wanted} workers: the new ones did not report {when}"
            + (f"; the last one said: {said}" if said else ""),
            hint=f"the run goes on with {present}; " + self._launcher.advice(present, wanted),
            workers=wanted,
        )
        self._coordinator.give_up(error)

    def _see_to_change(self, now: float) -> None:
        roster = self._coordinator.roster
        change = roster.change
        if change is None or not roster.is_called(change) or roster.is_there(change):
            self._changing = None
            return
        self._changing = self._changing or now
        if now - self._changing > self._timeout:
            self.give_up(f"within {self._timeout:g} s")

    def _see_to_balance(self, now: float) -> None:
        """Look for a straggler, and do about it what the user allows (law 2)."""
        coordinator, health = self._coordinator, self._health
        roster = coordinator.roster
        if coordinator.phase is not Phase.RUNNING or self._changing is not None:
            return
        slow = health.straggler(roster.members, roster.shards.shares, now)
        if slow is None or coordinator.opening is None or roster.change is not None:
            return
        if health.balance == "move":
            shares = [round(share, 3) for share in slow.shares]
            health.events.record("moved", away_from=slow.index, shares=shares)
            coordinator.rebalance(slow.shares)
            return
        try:
            self._check_room(len(roster) + 1)
        except RiverrunError as error:
            health.events.record("trouble", what="another worker", error=error.message)
            return
        coordinator.scale(len(roster) + 1)
