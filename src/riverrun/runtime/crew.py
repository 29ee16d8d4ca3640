"""The crew: the processes of a run as the driver knows them, and the coordinator that leads them.

`remote.RemoteCluster` makes the crew of a run, and shares it with `admission`, through which processes become workers,
and `departures`, through which they are lost. All three use the crew under its lock, `changed`.

Cost: a look into a dict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition

from riverrun.engine.coordinator.coordinator import Coordinator
from riverrun.engine.events import Events
from riverrun.engine.loop_rounds import LongLoops
from riverrun.errors import RiverrunError
from riverrun.runtime.health.signs import Health
from riverrun.runtime.peers import ConnectedPeers
from riverrun.runtime.starts import Starts


@dataclass(frozen=True, slots=True)
class Crew:
    """What is known of the processes of a run."""

    coordinator: Coordinator
    changed: Condition
    """The lock of all of this; notified of every change."""
    events: Events
    loops: LongLoops
    health: Health
    starts: Starts
    peers: ConnectedPeers
    carry: Callable[[], None]
    """Carry the messages that the coordinator sends."""
    tell_peers: Callable[[], None]
    """Send the list of workers to all of them."""
    is_closed: Callable[[], bool]
    """Whether the user has closed the run."""

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, by an error or by being closed."""
        return self.coordinator.is_over

    @property
    def present(self) -> int:
        """How many members have a process."""
        return sum(member in self.peers for member in self.coordinator.members)

    def knows(self, incarnation: int) -> bool:
        """Whether an incarnation is a member or a newcomer, and was not dismissed."""
        return self.coordinator.membership.knows(incarnation)

    def end(self, error: RiverrunError) -> None:
        """End the run."""
        self.coordinator.close(error)
        self.carry()

    def forget(self, member: int) -> None:
        """Close all that connects with a process, and forget its signs of life."""
        if self.peers.part(member):
            self.tell_peers()
        self.health.forget(member)
        self.loops.forget(member)
