"""Membership: which incarnations take part in a run, which are about to, and which hashes each of them owns.

A part of the coordinator, sans I/O. *Members* are incarnations that own shards. A *change* gives the run another number
of workers, or the same workers other shares, at a boundary between epochs. *Newcomers* are incarnations that are
started for a change; they own nothing until the change is made. Laws:

- **No twins.** An incarnation that was dismissed never takes part again: its messages are refused from then on.
- **Ready first.** A change is made only when all its newcomers have joined, so no epoch waits for a worker to start.
- **Epochs first.** A *repair* is the change that makes up for a lost worker where the other workers share its shards.
  It holds up no epoch that was submitted before it, and is made in two steps. At the first boundary after the loss some
  epochs wait: once these are complete, the newcomers of the repair are started. At the first boundary at which all
  newcomers have joined some epochs wait again: once these are complete, the shards move to the newcomers.
- **Little moves.** A worker that stays gives away only what is beyond its new share (the law of `state.shards`).
- **Silent from the grant on.** As long as no process was granted the identity of an incarnation, the incarnation is not
  thought dead for its silence. From the grant on silence means death, also before the process has joined: a process
  that hangs on its way is replaced.

>>> sent = []
>>> membership = Membership(2, lambda to, message: sent.append(message))
>>> membership.members, sent
([1, 2], [Start(incarnation=1), Start(incarnation=2)])
>>> membership.want(MembershipChange(3))
>>> membership.change.newcomers, membership.is_there(membership.change)
([3], False)
>>> membership.join(3)
>>> membership.make(membership.change)
[]
>>> membership.members, [round(share, 2) for share in membership.shards.shares]
([1, 2, 3], [0.33, 0.33, 0.33])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from riverrun.engine.messages import CLIENT, SUPERVISOR, LeaveRun, Scaled, Start, Stop
from riverrun.errors import TransportError
from riverrun.state.shards import Shards

SILENCE = 30.0  # seconds: a worker that is silent for longer is thought dead
LOSSES = 3  # newcomers that may be lost before a change is given up

Policy: TypeAlias = Literal["replace", "spread"]
"""What becomes of the shards of a lost worker: with "replace" a new incarnation takes them; with "spread" the other
workers share them at once, and give a part to a new incarnation later."""


@dataclass(slots=True)
class MembershipChange:
    """Another number of workers, or other shares for the same workers, from a boundary on."""

    workers: int
    weights: tuple[float, ...] | None = None
    """The shares that the workers are to have, in proportion; None for even shares."""
    newcomers: list[int] = field(default_factory=list)
    losses: int = 0
    """How many newcomers were lost."""
    is_repair: bool = False
    """Whether it makes up for a lost worker, and nobody asked for it."""
    after: int | None = None
    """Of a repair: the epochs below this one come first; None where that is not settled yet."""


class Membership:
    """The members of a run, the change that is wanted, if any, and the shards of each member."""

    def __init__(
        self,
        workers: int,
        send: Callable[[int, Any], None],
        policy: Policy = "replace",
        deadline: int | None = None,
    ) -> None:
        """A member that has joined may be silent for `deadline` ticks; None: for ever."""
        self.shards = Shards.even(workers)
        self.change: MembershipChange | None = None
        self.policy = policy
        self._send = send
        self._deadline = deadline
        self._incarnations = 0
        self._ticks = 0
        self._heard: dict[int, int] = {}
        self._joined: set[int] = set()
        self._granted: dict[int, int] = {}
        self.members = [self._start() for _ in range(workers)]

    def __len__(self) -> int:
        return len(self.members)

    def knows(self, member: int) -> bool:
        """Whether an incarnation is a member or a newcomer, and was not dismissed."""
        return member in self._heard

    def hear(self, member: int) -> None:
        """An incarnation has given a sign of life."""
        self._heard[member] = self._ticks

    def grant(self, member: int, ticks: int) -> None:
        """A process was granted this identity; until it joins it may be silent for so many ticks."""
        assert self.knows(member), f"{member} is no member or newcomer any more"
        self._granted[member] = ticks
        self.hear(member)

    def join(self, member: int) -> None:
        """An incarnation has joined: its process is there."""
        self._joined.add(member)

    @property
    def complete(self) -> bool:
        """Whether all members have joined."""
        return self._joined.issuperset(self.members)

    def silent(self) -> list[int]:
        """A tick has passed; the incarnations that are silent for too long (*silent from the grant on*).

        One that has joined may be silent until the deadline; one on its way for as long as `grant` said.
        """
        self._ticks += 1
        if self._deadline is None:
            return []
        limits = self._granted | dict.fromkeys(self._joined, self._deadline)
        return [
            member
            for member in sorted(limits)
            if self._ticks - self._heard[member] > limits[member]
        ]

    def dismiss(self, member: int) -> None:
        """An incarnation is not needed any more, or is thought dead: have it leave and its process stopped."""
        del self._heard[member]
        self._joined.discard(member)
        self._granted.pop(member, None)
        self._send(member, LeaveRun())
        self._send(SUPERVISOR, Stop(member))

    def replace(self, member: int) -> None:
        """A member was lost and is dismissed: a new incarnation takes its place, or the others share its shards."""
        at, wanted = self.members.index(member), len(self.members)
        if self.policy == "replace" or wanted == 1:
            self.members[at] = self._replacement()
        else:
            del self.members[at]
            self.shards = self.shards.without(at)
        if self.change is not None or len(self.members) < wanted:
            self.want(self.change or MembershipChange(wanted, is_repair=True))

    def replace_newcomer(self, member: int, why: str) -> TransportError | None:
        """A newcomer was lost and is dismissed: start another one; after `LOSSES` losses, the error to give up with."""
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
        """Want a change, in place of any other; its newcomers are started now, those of a repair in their turn."""
        newcomers = [] if self.change is None else self.change.newcomers
        needed = max(change.workers - len(self.members), 0)
        for member in newcomers[needed:]:
            self.dismiss(member)
        change.newcomers = newcomers[:needed]
        self.change = change
        if not change.is_repair:
            self._start_newcomers(change)

    def take_turn(self, change: MembershipChange, completed: int, waiting: float) -> bool:
        """Whether a change may be made at this boundary: epochs below `completed` are complete.

        A repair first lets the epochs go that were submitted, those below `waiting`, and has its newcomers started when
        these are complete (*epochs first*). A change to what is there already is over at once.
        """
        is_started = self.is_started(change)
        if is_started and not self.is_there(change):
            return False
        if change.is_repair and not self._take_turn_of_repair(change, completed, waiting):
            return False
        if change.weights is None and change.workers == len(self):
            self.change = None
            self._send(CLIENT, Scaled(change.workers))
            return False
        return True

    def _take_turn_of_repair(
        self, change: MembershipChange, completed: int, waiting: float
    ) -> bool:
        if change.after is None or change.after > waiting:
            change.after = int(waiting)
        if completed < change.after:
            return False
        is_started = self.is_started(change)
        if not is_started:
            change.after = None
            self._start_newcomers(change)
        return is_started

    def not_saved(self) -> bool:
        """A checkpoint failed; whether to give up the change that is wanted: epochs wait for the change, and it needs
        the checkpoint. A repair is tried again after the epochs that wait."""
        change = self.change
        if change is None:
            return False
        if not change.is_repair and self.is_there(change):
            return True
        change.after = None
        return False

    def give_up(self) -> bool:
        """Want no change any more, and dismiss its newcomers; whether a change was wanted."""
        change, self.change = self.change, None
        for member in [] if change is None else change.newcomers:
            self.dismiss(member)
        return change is not None

    def is_there(self, change: MembershipChange) -> bool:
        """Whether all newcomers that a change needs have joined."""
        return self.is_started(change) and self._joined.issuperset(change.newcomers)

    def is_started(self, change: MembershipChange) -> bool:
        """Whether all newcomers that a change needs have been started."""
        return len(self.members) + len(change.newcomers) >= change.workers

    def make(self, change: MembershipChange) -> list[int]:
        """Make a change; return the incarnations that own nothing any more and are to be dismissed."""
        self.change = None
        gone = self.members[change.workers :]
        self.members = self.members[: change.workers] + change.newcomers
        if change.weights is not None and len(change.weights) == len(self.members):
            self.shards = self.shards.weighted(change.weights)
        else:
            self.shards = self.shards.resized(len(self.members))
        return gone

    def close(self) -> None:
        """The run is over: have all incarnations leave, and their processes stopped."""
        for member in sorted(self._heard):
            self._send(member, LeaveRun())
            self._send(SUPERVISOR, Stop(member))

    def _start_newcomers(self, change: MembershipChange) -> None:
        while not self.is_started(change):
            change.newcomers.append(self._start())

    def _start(self) -> int:
        self._incarnations += 1
        self._heard[self._incarnations] = self._ticks
        self._send(SUPERVISOR, Start(self._incarnations))
        return self._incarnations

    def _replacement(self) -> int:
        """An incarnation for the place of a lost member: a newcomer that has joined, or else a new one."""
        for member in [] if self.change is None else self.change.newcomers:
            if member in self._joined:
                assert self.change is not None
                self.change.newcomers.remove(member)
                return member
        return self._start()
