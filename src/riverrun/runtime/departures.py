"""Departures: how workers of a remote cluster are lost or dismissed, and what is done about their processes.

`remote.RemoteCluster` tells this module of each sign that a worker is gone: its connection broke (`suspect`), its
process ended (`process_ended`), it was silent for too long (`note`), or the coordinator dismisses it (`dismiss`). This
module tells the coordinator, keeps the events of people, and counts losses (`engine.coordinator.losses`). Laws:

- **Seen to die.** A worker is lost as soon as its process ends, or was silent for longer than `silence`, also before
  the worker takes part. Where the run can go on without it, a broken connection means the same. Where there is no
  checkpoint path, so that the loss ends the run, the process first has a second to say why it died.
- **Leaves or is ended.** The process of a worker that was dismissed has `GRACE` seconds to leave, or to become another
  worker; then its launcher ends it.
- **Explained.** The event of a loss names the sign; what the process says when it ends later is added to the event.

Everything is called under the lock of the crew, except `process_ended`, which acquires the lock.

Cost: nothing while no worker is lost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Thread, Timer
from typing import Any

from riverrun.engine.coordinator.losses import Losses
from riverrun.engine.messages import Begin
from riverrun.errors import TransportError
from riverrun.runtime.crew import Crew
from riverrun.runtime.health.oversight import Overseer

LAST_WORDS = 1.0  # seconds that a process has to say why it died
GRACE = 5.0  # seconds that workers have to leave


class Departures:
    """The workers of a run that were lost, and those that are to leave."""

    def __init__(self, crew: Crew, overseer: Overseer, *, durable: bool) -> None:
        """`durable` says whether the run has a log, from which it goes on without a worker."""
        self._crew = crew
        self._overseer = overseer
        self._durable = durable
        self._losses = Losses(logged=durable)
        self._events: dict[int, dict[str, Any]] = {}
        """Of members that were lost and whose process has not ended yet: what people are told."""
        self._lost_at: float | None = None

    # ---- signs that a worker is gone

    def lose(self, member: int, why: str = "", *, sign: str = "its connection broke") -> None:
        """A member is lost. `why` is what its process has said; without that, `sign` says how the loss was noticed."""
        coordinator = self._crew.coordinator
        self.note(member, coordinator.members, why or sign)
        self._crew.forget(member)
        coordinator.lost(member, why)
        self._crew.carry()

    def note(self, member: int, members: Sequence[int], why: str) -> None:
        """Record the loss of one of `members`, which the coordinator knows of."""
        if member in members:
            pid = self._crew.peers.process(member).get("pid")
            self._events[member] = self._crew.events.record(
                "lost", worker=members.index(member), pid=pid, why=why
            )
            self._lost_at = self._lost_at or time.monotonic()

    def suspect(self, member: int) -> None:
        """The connection of a member broke. Where its loss ends the run, the process has a moment to say why it
        died."""
        if self._durable:
            self.lose(member)
            return

        def lose() -> None:
            with self._crew.changed:
                if not self._crew.is_closed() and self._crew.knows(member):
                    self.lose(member)

        waiting = Timer(LAST_WORDS, lose)
        waiting.daemon = True
        waiting.start()

    def process_ended(self, ticket: int, why: str) -> None:
        """The launcher says that a process is over, whether it was granted an identity or not."""
        crew = self._crew
        with crew.changed:
            granted = crew.starts.ended(ticket)
            crew.changed.notify_all()
            if crew.is_closed() or crew.is_over:
                return
            if granted is not None:
                self._worker_ended(granted, why)
            elif crew.starts.is_short:
                self._start_again(why)

    def _worker_ended(self, member: int, why: str) -> None:
        self._losses.ended(member, why)
        if self._crew.knows(member):
            self.lose(member, why, sign="its process ended, and has not said why")
        else:
            self._crew.forget(member)
            if why and member in self._events:
                self._events[member]["why"] += f"; its process ended with: {why}"
        self._events.pop(member, None)

    def _start_again(self, why: str) -> None:
        """A process ended before it was granted an identity, and too few others are on their way."""
        crew = self._crew
        if crew.starts.try_again():
            crew.starts.call_again()
            return
        when = "before their processes ended"
        if any(each in crew.coordinator.members for each in crew.starts.ungranted):
            crew.end(self._overseer.not_ready(crew.present, when, why))
        else:
            self._overseer.give_up(when, why)
            crew.carry()

    # ---- workers that are to leave

    def dismiss(self, member: int) -> None:
        """The coordinator needs an incarnation no longer, or thinks it dead: see to it that its process leaves."""
        crew, coordinator = self._crew, self._crew.coordinator
        if not crew.is_over and not coordinator.changing:
            about = crew.peers.process(member)
            self._losses.lost(member, about, coordinator.completed, coordinator.reported)
        crew.peers.end_questions(member)
        crew.starts.call_off(member)
        for ticket in crew.starts.tickets_of(member):
            Thread(target=self._stop, args=(ticket, member), daemon=True).start()

    def _stop(self, ticket: int, member: int) -> None:
        """Wait for a process to leave; end it if it does not leave and has not become another worker meanwhile."""
        crew = self._crew
        with crew.changed:
            deadline = time.monotonic() + GRACE
            while (
                crew.starts.incarnation_of(ticket) == member
                and (left := deadline - time.monotonic()) > 0
            ):
                crew.changed.wait(left)
            if crew.starts.incarnation_of(ticket) != member:
                return
            crew.forget(member)
        crew.starts.stop(ticket)

    # ---- what comes after losses

    def took_part(self, begin: Begin, member: int) -> None:
        """The coordinator has an incarnation begin an execution."""
        self._losses.took_part(begin.execution, begin.index, member)

    @property
    def is_recovering(self) -> bool:
        """Whether the run has lost workers and has not recovered yet."""
        return self._lost_at is not None

    def recovered(self, *, caught_up: bool) -> None:
        """The run has recovered; `caught_up` says whether every submitted epoch is complete."""
        assert self._lost_at is not None
        seconds, self._lost_at = time.monotonic() - self._lost_at, None
        self._crew.events.record("recovered", seconds=round(seconds, 3))
        self._crew.health.changed()
        if caught_up:
            self._losses.reset()

    def bear(self) -> None:
        """The workers that were lost were not needed after all: they do not count."""
        self._losses.reset()

    def too_many(self) -> TransportError | None:
        """The error that is to end the run, since it loses workers again and again; None while it may go on."""
        return self._losses.too_many(self._crew.coordinator.reported)
