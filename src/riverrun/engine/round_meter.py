"""The round meter: what the rounds of each loop did on one worker, until an epoch is complete.

An instance has a `RoundMeter`, and tells it of every turn (`ran`) where the plan has loops of nodes. At the boundary
the worker takes the figures of the epoch (`take`) and sends them with the news that the epoch is complete. Loops that
are one node tell their rounds themselves (`Actor.rounds`). Laws:

- **A turn belongs to its time.** What an actor does when it is run at a time counts for the round of that time, in each
  of the loops around the actor. The seconds of a turn are those since the turn before, so waiting for other workers
  counts for the round that had to wait, and rounds add up to the time that the loop took.
- **Rows.** A round touches as many rows as it adds changes to the states in the loop, and sends as many messages as
  there are changes that come to the way back to the start of the loop.
- **Bounded.** That of `plan.loop_figures`.

Cost: about half a microsecond for a turn in a loop, a tenth for another turn; nothing where no node is in a loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from time import perf_counter

from riverrun.operators.loops import Returning
from riverrun.plan.loop_figures import MOST, LoopFigures, RoundFigures, loop_of, name_of, shortened
from riverrun.plan.operator import Actor, Arranged, Arrangement
from riverrun.plan.plan import Node, Plan, Scope
from riverrun.progress import Timestamp


class RoundMeter:
    """Notes what the rounds of the loops of a plan do on one worker. One thread uses it."""

    def __init__(self, plan: Plan, actors: Mapping[int, Actor]) -> None:
        loops: dict[int, _LoopSums] = {}
        self._around = {
            number: _around(actor.node, loops)
            for number, actor in actors.items()
            if actor.node.depth > 1
        }
        self._loops = [loops[number] for number in sorted(loops)]
        self.follows = bool(loops)
        """Whether turns are to be told."""
        self._states = {
            number: _Growing(actor.arrangement)
            for number, actor in actors.items()
            if number in self._around
            and isinstance(actor, Arranged)
            and actor.node.operator.keeps_state
        }
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
        number = actor.node.number
        around = self._around.get(number)
        if around is None:
            return
        state = self._states.get(number)
        touched = 0 if state is None else state.added()
        messages = 0
        if type(actor) is Returning and actor.going is not None:
            messages = actor.going[1]
        for loop in around:
            loop.add(time[1 : loop.depth], touched, messages, seconds)
            messages = 0  # what goes back in a loop is no message of the loops around it

    def take(self) -> tuple[LoopFigures, ...]:
        """The figures since the last call, of the loops that did anything."""
        taken = [(loop.name, loop.take()) for loop in self._loops]
        taken += [(name, shortened(actor.rounds())) for name, actor in self._alone]
        return tuple([LoopFigures(name, rounds) for name, rounds in taken if rounds])


class _LoopSums:
    """A loop of nodes: what its rounds did so far in an epoch."""

    __slots__ = ("_later", "_rounds", "depth", "name")

    def __init__(self, scope: Scope) -> None:
        self.name = name_of(scope)
        self.depth = scope.depth
        self._rounds: dict[Timestamp, _RoundSums] = {}
        self._later: _RoundSums | None = None
        """All rounds beyond the first `MOST`."""

    def add(self, at: Timestamp, touched: int, messages: int, seconds: float) -> None:
        """Add a turn to the figures of a round."""
        sums = self._rounds.get(at)
        if sums is None:
            if len(self._rounds) < MOST:
                sums = self._rounds[at] = _RoundSums(at)
            else:
                sums = self._later = self._later or _RoundSums(at, 0)
                sums.rounds += sums.rounds == 0 or sums.at != at  # times come in order, as a rule
                sums.at = at
        sums.touched += touched
        sums.messages += messages
        sums.seconds += seconds

    def take(self) -> tuple[RoundFigures, ...]:
        """The figures since the last call, in the order of rounds."""
        rounds, later = self._rounds, self._later
        self._rounds, self._later = {}, None
        figures = [sums.figures(at) for at, sums in sorted(rounds.items(), key=itemgetter(0))]
        return tuple(figures) if later is None else (*figures, later.figures(()))


class _RoundSums:
    """The figures of a round, or of several, as they grow."""

    __slots__ = ("at", "messages", "rounds", "seconds", "touched")

    def __init__(self, at: Timestamp, rounds: int = 1) -> None:
        self.at = at
        self.rounds = rounds
        self.touched = self.messages = 0
        self.seconds = 0.0

    def figures(self, at: Timestamp) -> RoundFigures:
        return RoundFigures(at, self.touched, self.messages, self.seconds, self.rounds)


class _Growing:
    """The state of a node in a loop."""

    __slots__ = ("_arrangement", "_rows")

    def __init__(self, arrangement: Arrangement) -> None:
        self._arrangement = arrangement
        self._rows = arrangement.rows

    def added(self) -> int:
        """How many changes were added since the last call."""
        before, self._rows = self._rows, self._arrangement.rows
        return self._rows - before


def _around(node: Node, loops: dict[int, _LoopSums]) -> tuple[_LoopSums, ...]:
    """The loops around a node, innermost first; `loops` has those that are known, and takes new ones."""
    around: list[_LoopSums] = []
    scope: Scope | None = node.scope
    while scope is not None and scope.parent is not None:
        if scope.number not in loops:
            loops[scope.number] = _LoopSums(scope)
        around.append(loops[scope.number])
        scope = scope.parent
    return tuple(around)
