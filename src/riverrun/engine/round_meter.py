"""The round meter: what the rounds of each loop did on one worker, until an epoch is complete.

An instance has a `RoundMeter`, and tells it of every turn (`ran`) where the plan has loops of nodes. At the boundary
the worker takes the figures of the epoch (`take`) and sends them with the news that the epoch is complete. Loops that
are one node tell their rounds themselves (`Actor.rounds`). Laws:

- **A turn belongs to its time.** What an actor does when it is run at a time counts for the round of that time, in each
  of the loops around the actor. The seconds of a turn are those since the turn before, so waiting for other workers
  counts for the round that had to wait, and rounds add up to the time that the loop took.
- **Rows.** A round touches as many rows as it adds changes to the states in the loop, and sends as many messages as
  there are changes that come to the way back to the start of the loop. In a loop by rounds, a round touches the rows
  that it gathers for its groups and joins, and sends those that it gives for the next round.
- **Bounded.** That of `plan.loop_figures`.

Cost: about half a microsecond for a turn in a loop, a tenth for another turn; nothing where no node is in a loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from riverrun.operators.loops import GoingAround
from riverrun.operators.rounds.gather import RoundActor, RoundBatches
from riverrun.plan.loop_figures import (
    MOST,
    LoopFigures,
    RoundFigures,
    loop_of,
    name_of,
    parts_of_loops,
    shortened,
)
from riverrun.plan.operator import Actor, Arranged, Arrangement
from riverrun.plan.plan import Plan, Scope
from riverrun.progress import Timestamp


class RoundMeter:
    """Notes what the rounds of the loops of a plan do on one worker. One thread uses it."""

    def __init__(self, plan: Plan, actors: Mapping[int, Actor]) -> None:
        loops: dict[int, _LoopSums] = {}
        parts = parts_of_loops(plan)
        self._places = {
            actor: _Place(actor, loops)
            for actor in actors.values()
            if actor.node.depth > 1 and actor.node.scope.number not in parts
        }
        self._loops = [loops[number] for number in sorted(loops)]
        self.follows = bool(loops)
        """Whether turns are to be told."""
        self._alone = [
            (loop, actors[node.number]) for node in plan.nodes if (loop := loop_of(node))
        ]
        """The actors that run a loop by themselves, each with the name of the loop."""
        self._last = 0.0

    def begin(self) -> None:
        """Work begins, or goes on after a pause: the time before does not count."""
        self._last = perf_counter()

    def ran(self, actor: Actor, time: Timestamp) -> None:
        """An actor has been run at a time."""
        now = perf_counter()
        seconds, self._last = now - self._last, now
        place = self._places.get(actor)
        if place is None:
            return
        touched = messages = 0
        arrangement = place.state
        if arrangement is not None:
            before, place.rows = place.rows, arrangement.rows
            touched = place.rows - before
        elif place.returning is not None and place.returning.going is not None:
            messages = place.returning.going[1]
        sums = place.inner.sums.get(time)
        if sums is None:
            place.inner.add(time, touched, messages, seconds)
        else:  # here and not in a call, since this is done for nearly all turns
            sums[0] += touched
            sums[1] += messages
            sums[2] += seconds
        for loop in place.outer:  # what goes back in a loop is no message of the loops around it
            loop.add(time[: loop.depth], touched, 0, seconds)

    def take(self) -> tuple[LoopFigures, ...]:
        """The figures since the last call, of the loops that did anything."""
        figures = [LoopFigures(loop.name, loop.take()) for loop in self._loops if loop.sums]
        for name, actor in self._alone:
            rounds = actor.rounds()
            if rounds:
                figures.append(LoopFigures(name, shortened(rounds)))
        return tuple(figures)


class _LoopSums:
    """A loop of nodes: what its rounds did so far in an epoch."""

    __slots__ = ("_later", "_latest", "depth", "name", "sums")

    def __init__(self, scope: Scope) -> None:
        self.name = name_of(scope)
        self.depth = scope.depth
        self.sums: dict[Timestamp, list[Any]] = {}
        """By time: rows touched, messages, seconds, and how many rounds these are of."""
        self._later: list[Any] | None = None
        """The same of all rounds beyond the first `MOST`."""
        self._latest: Timestamp = ()

    def add(self, time: Timestamp, touched: int, messages: int, seconds: float) -> None:
        """Add a turn to the figures of a round."""
        sums = self.sums.get(time)
        if sums is None:
            if len(self.sums) < MOST:
                self.sums[time] = [touched, messages, seconds, 1]
                return
            sums = self._later = self._later or [0, 0, 0.0, 0]
            if (
                time != self._latest
            ):  # turns come in the order of rounds, but for those of other workers
                self._latest = time
                sums[3] += 1
        sums[0] += touched
        sums[1] += messages
        sums[2] += seconds

    def take(self) -> tuple[RoundFigures, ...]:
        """The figures since the last call, in the order of rounds."""
        sums, later = self.sums, self._later
        self.sums, self._later, self._latest = {}, None, ()
        rounds = [RoundFigures(time[1:], *sums[time]) for time in sorted(sums)]
        if later is not None:
            rounds.append(RoundFigures((), *later))
        return tuple(rounds)


class _Place:
    """Where an actor is: in which loop, and in which loops around that one; and what of it is counted."""

    __slots__ = ("inner", "outer", "returning", "rows", "state")

    def __init__(self, actor: Actor, loops: dict[int, _LoopSums]) -> None:
        """`loops` has the loops that are known, by the numbers of their scopes, and takes new ones."""
        around: list[_LoopSums] = []
        scope: Scope | None = actor.node.scope
        while scope is not None and scope.parent is not None:
            if scope.number not in loops:
                loops[scope.number] = _LoopSums(scope)
            around.append(loops[scope.number])
            scope = scope.parent
        self.inner, *self.outer = around
        self.returning = actor if isinstance(actor, GoingAround) else None
        keeps = isinstance(actor, Arranged) and actor.node.operator.keeps_state
        self.state: Arrangement | RoundBatches | None = None
        if isinstance(actor, RoundActor):
            self.state = actor.rows
        elif keeps:
            self.state = actor.arrangement  # type: ignore[attr-defined]
        self.rows = 0 if self.state is None else self.state.rows
