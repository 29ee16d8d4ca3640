"""The roster: who takes part in a run, who is about to, and who owns which hashes.

A part of the coordinator, sans I/O. *Members* are incarnations that own shards; *newcomers* are
started for a change that is wanted, and own nothing until it is made, at a boundary. Laws:

1. **Never again.** An incarnation that was dismissed is unknown from then on.
2. **Ready first.** A change is made when all its newcomers are there, so nobody waits for a start.
3. **Epochs first.** A change that nobody asked for, because it makes up for a loss, holds up no epoch
   that was there before it: its newcomers are started when what waited at the first boundary after the
   loss is complete, and it is made when what waited at the first one with them is.
4. **Little moves.** Who stays keeps what it had, as far as it is to have as much (`state.shards`).
5. **Silent from the grant on.** Nobody is waited for by the clock until a process was told that it is them. From
   then on silence means death, also before they are there: one that hangs on its way is replaced.

>>> sent = []
>>> roster = Roster(2, lambda to, message: sent.append(message))
>>> roster.members, sent
([1, 2], [Start(incarnation=1), Start(incarnation=2)])
>>> roster.want(MembershipChange(3))
>>> roster.change.newcomers, roster.is_there(roster.change)
([3], False)
>>> roster.join(3)
>>> roster.make(roster.change)
[]
>>> roster.members, [round(share, 2) for share in roster.shards.shares]
([1, 2, 3], [0.33, 0.33, 0.33])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from riverrun.engine.messages import SUPERVISOR, LeaveRun, Start, Stop
from riverrun.errors import TransportError
from riverrun.state.shards import Shards

SILENCE = 30.0  # seconds after which a silent worker is thought dead
LOSSES = 3  # newcomers that may be lost before a change is given up

Policy: TypeAlias = Literal["replace", "spread"]
"""What becomes of a lost worker's shards: a new incarnation takes them; or the others share them at once, and give to
a new one when it is there."""


@dataclass(slots=True)
class MembershipChange:
    """Other workers, or other shares of the same, from a boundary on."""

    workers: int
    weights: tuple[float, ...] | None = None
    newcomers: list[int] = field(default_factory=list)
    losses: int = 0
    own: bool = False
    """Whether nobody asked for it: it makes up for a loss."""
    after: int | None = None
    """Of such a one, the epoch that is waited for: those below come first."""


class Roster:
    """Who takes part."""

    def __init__(
        self,
        workers: int,
        send: Callable[[int, Any], None],
        policy: Policy = "replace",
    ) -> None:
        self.shards = Shards.even(workers)
        self.change: MembershipChange | None = None
        self.policy = policy
        self._send = send
        self._incarnations = 0
        self._ticks = 0
        self._heard: dict[int, int] = {}
        self._joined: set[int] = set()
        self._granted: dict[int, int] = {}
        self.members = [self._start() for _ in range(workers)]

    def __len__(self) -> int:
        return len(self.members)

    def knows(self, member: int) -> bool:
        """Whether somebody is a member or a newcomer, and not dismissed."""
        return member in self._heard

    def hear(self, member: int) -> None:
        """Somebody has given a sign of life."""
        self._heard[member] = self._ticks

    def grant(self, member: int, ticks: int) -> None:
        """A process was told that it is somebody; until it is there, it may be silent for so many ticks (law 5)."""
        assert self.knows(member), f"{member} is not to be anybody any more"
        self._granted[member] = ticks
        self.hear(member)

    def join(self, member: int) -> None:
        """Somebody is there."""
        self._joined.add(member)

    @property
    def complete(self) -> bool:
        """Whether all members are there."""
        return self._joined.issuperset(self.members)

    def silent(self, ticks: int | None) -> list[int]:
        """Time has passed; who was there, or on its way, and has given no sign for so many ticks."""
        self._ticks += 1
        if ticks is None:
            return []
        limits = self._granted | dict.fromkeys(self._joined, ticks)
        return [who for who in sorted(limits) if self._ticks - self._heard[who] > limits[who]]

    def dismiss(self, member: int) -> None:
        """Somebody is not needed any more, or is thought dead."""
        del self._heard[member]
        self._joined.discard(member)
        self._granted.pop(member, None)
        self._send(member, LeaveRun())
        self._send(SUPERVISOR, Stop(member))

    def replace(self, member: int) -> None:
        """A member was lost, and dismissed: its shards get a new owner, or several."""
        at, wanted = self.members.index(member), len(self.members)
        if self.policy == "replace" or wanted == 1:
            self.members[at] = self._newcomer()
        else:
            del self.members[at]
            self.shards = self.shards.without(at)
        if self.change is not None or len(self.members) < wanted:
            self.want(self.change or MembershipChange(wanted, own=True))

    def replace_newcomer(self, member: int, why: str) -> TransportError | None:
        """A newcomer was lost, and dismissed; why not to try again, after some tries."""
        change = self.change
        if change is None or member not in change.newcomers:
            return None
        change.newcomers.remove(member)
        change.losses += 1
        if change.losses < LOSSES:
            self.want(change)
            return None
        return TransportError(
            "run.no_newcomer",
            f"cannot go on with {change.workers} workers: new ones end before they take part"
            + (f": {why}" if why else ""),
            hint="the run goes on with those that there are; run.scale() tries again",
            workers=change.workers,
        )

    def want(self, change: MembershipChange) -> None:
        """Wish for a change, in place of any other; its newcomers are started now, or in their turn (law 3)."""
        there = [] if self.change is None else self.change.newcomers
        needed = max(change.workers - len(self.members), 0)
        for member in there[needed:]:
            self.dismiss(member)
        change.newcomers = there[:needed]
        self.change = change
        if not change.own:
            self._call(change)

    def take_turn(self, change: MembershipChange, completed: int, waiting: float) -> bool:
        """Whether a change may be made, at a boundary where epochs below `waiting` have been submitted.

        One that nobody asked for lets them go first, and has its newcomers started when they are done (law 3).
        """
        called = self.is_called(change)
        if called and not self.is_there(change):
            return False
        if not change.own:
            return True
        if change.after is None or change.after > waiting:
            change.after = int(waiting)
        if completed < change.after:
            return False
        if not called:
            change.after = None
            self._call(change)
        return called

    def give_up(self) -> bool:
        """Want no change any more; whether one was wanted."""
        change, self.change = self.change, None
        for member in [] if change is None else change.newcomers:
            self.dismiss(member)
        return change is not None

    def is_there(self, change: MembershipChange) -> bool:
        """Whether all that a change needs are there."""
        return self.is_called(change) and self._joined.issuperset(change.newcomers)

    def is_called(self, change: MembershipChange) -> bool:
        """Whether all that a change needs have been started."""
        return len(self.members) + len(change.newcomers) >= change.workers

    def make(self, change: MembershipChange) -> list[int]:
        """Make a change; return who has no part any more, to be dismissed."""
        self.change = None
        gone = self.members[change.workers :]
        self.members = self.members[: change.workers] + change.newcomers
        if change.weights is not None and len(change.weights) == len(self.members):
            self.shards = self.shards.weighted(change.weights)
        else:
            self.shards = self.shards.resized(len(self.members))
        return gone

    def close(self) -> None:
        """Nobody is needed any more."""
        for member in sorted(self._heard):
            self._send(member, LeaveRun())
            self._send(SUPERVISOR, Stop(member))

    def _call(self, change: MembershipChange) -> None:
        while not self.is_called(change):
            change.newcomers.append(self._start())

    def _start(self) -> int:
        self._incarnations += 1
        self._heard[self._incarnations] = self._ticks
        self._send(SUPERVISOR, Start(self._incarnations))
        return self._incarnations

    def _newcomer(self) -> int:
        """Somebody for a place: one who is there and has no part yet, or else a new one."""
        for member in [] if self.change is None else self.change.newcomers:
            if member in self._joined:
                assert self.change is not None
                self.change.newcomers.remove(member)
                return member
        return self._start()
