"""Oversight: deadlines and stragglers of a run on other processes, looked after once a tick.

A `RemoteCluster` has one `Overseer` and calls `look` with every tick of its clock, under the lock of the cluster. The
overseer looks at the coordinator, has the coordinator change the workers or their shares where that is due, and sends
no messages of its own. A *change* gives the run another number of workers, or other shares; the workers that are
started for a change are its *newcomers*. A *straggler* is a worker that is busy for much longer than the others
(`balance`). Laws:

- **Ready or not.** When not all workers have reported by the deadline, the run is to end. When the newcomers of a
  change have not reported by the deadline, the change is given up, and the run goes on. Either error has the launcher's
  advice. (`departures` asks for the same errors where processes end too early. Then the error also tells what the last
  process said.)
- **Allowed only.** Because of a straggler shards are moved, or a worker is added, only if the user allows that, and if
  there is a checkpoint path, through which shards can move. A worker is added only if there is room for it.

Cost: a few comparisons for each tick, and the search for a straggler.
"""

from __future__ import annotations

from collections.abc import Callable

from riverrun.engine.coordinator.coordinator import Coordinator
from riverrun.engine.coordinator.phases import Phase
from riverrun.errors import RiverrunError, TransportError
from riverrun.runtime.health.signs import Health


class Overseer:
    """Looks after a coordinator whose workers are other processes."""

    def __init__(
        self,
        coordinator: Coordinator,
        health: Health,
        timeout: float,
        check_room: Callable[[int], None],
        advice: Callable[[int, int], str],
    ) -> None:
        """`timeout` is the deadline, in seconds. `check_room` raises where there cannot be so many workers. `advice`
        says what to do when too few processes are present, given how many are and how many are wanted."""
        self._coordinator = coordinator
        self._health = health
        self._timeout = timeout
        self._check_room = check_room
        self._advice = advice
        self._gathering_since: float | None = None
        self._changing_since: float | None = None

    def look(self, now: float, present: int) -> RiverrunError | None:
        """Do what is due; the error that is to end the run, if it is to end. `present` members have reported."""
        self._see_to_change(now)
        self._see_to_balance(now)
        if self._coordinator.phase is not Phase.GATHERING:
            self._gathering_since = None
            return None
        self._gathering_since = self._gathering_since or now
        if now - self._gathering_since > self._timeout:
            return self.not_ready(present, f"within {self._timeout:g} s")
        return None

    def not_ready(self, present: int, when: str, said: str = "") -> TransportError:
        """The error of a run whose workers have not all reported; `said` is how the last process to end said it
        ended."""
        wanted = len(self._coordinator.members)
        return TransportError(
            "run.not_ready",
            f"cannot run: {present} of {wanted} workers reported {when}"
            + (f"; the last one said: {said}" if said else ""),
            hint=self._advice(present, wanted),
            present=present,
            workers=wanted,
        )

    def give_up(self, when: str, said: str = "") -> None:
        """Give up the change that is wanted, if any, since its newcomers have not reported."""
        membership = self._coordinator.membership
        if membership.change is None:
            return
        wanted, present = membership.change.workers, len(membership)
        error = TransportError(
            "run.no_newcomer",
            f"cannot go on with {wanted} workers: the new ones did not report {when}"
            + (f"; the last one said: {said}" if said else ""),
            hint=f"the run goes on with {present}; " + self._advice(present, wanted),
            workers=wanted,
        )
        self._coordinator.give_up(error)

    def _see_to_change(self, now: float) -> None:
        membership = self._coordinator.membership
        change = membership.change
        if change is None or not membership.is_started(change) or membership.is_there(change):
            self._changing_since = None
            return
        self._changing_since = self._changing_since or now
        if now - self._changing_since > self._timeout:
            self.give_up(f"within {self._timeout:g} s")

    def _see_to_balance(self, now: float) -> None:
        """Look for a straggler, and do about it what the user allows (*allowed only*)."""
        coordinator, health = self._coordinator, self._health
        membership = coordinator.membership
        if coordinator.phase is not Phase.RUNNING or self._changing_since is not None:
            return
        straggler = health.straggler(membership.members, membership.shards.shares, now)
        if straggler is None or coordinator.opening is None or membership.change is not None:
            return
        if health.balance == "move":
            shares = [round(share, 3) for share in straggler.shares]
            health.events.record("moved", away_from=straggler.index, shares=shares)
            coordinator.rebalance(straggler.shares)
            return
        try:
            self._check_room(len(membership) + 1)
        except RiverrunError as error:
            health.events.record("trouble", what="another worker", error=error.message)
            return
        coordinator.scale(len(membership) + 1)
