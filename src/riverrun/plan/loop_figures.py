"""Loop figures: what each round of a loop did in an epoch, and which loops a plan has, by name.

Whatever runs a loop on a worker notes its rounds as `RoundFigures`: the engine for a loop of nodes
(`engine.round_meter`), the actor for a loop that is one node (`Actor.rounds`). The figures travel with the news that
the epoch is complete, and `add_up` makes one list of those of all workers. Users see them by `run.rounds`. Laws:

- **Sums, and the greatest time.** Rows and messages of a round are the sums over workers; its time is that of the
  worker that took longest, since workers do a round at the same time.
- **Bounded.** A worker notes at most `MOST` rounds of a loop in an epoch, each by itself; all later rounds are one row.

>>> one = LoopFigures("reach", (RoundFigures((0,), 5, 9, 0.25), RoundFigures((1,), 1, 2, 0.125)))
>>> other = LoopFigures("reach", (RoundFigures((0,), 3, 1, 0.5),))
>>> for each in add_up([one, other])[0].rounds:
...     each
RoundFigures(at=(0,), touched=8, messages=10, seconds=0.5, rounds=1)
RoundFigures(at=(1,), touched=1, messages=2, seconds=0.125, rounds=1)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from riverrun.plan.plan import Node, Plan, Scope

MOST = 10_000
"""Rounds of a loop that are noted one by one in an epoch."""


class RoundFigures(NamedTuple):
    """What a round of a loop did. (A tuple, since making a dataclass costs four times as much.)"""

    at: tuple[int, ...]
    """The rounds of the loops around the loop, outermost first, and its own round. Empty for a row that is no single
    round: the rounds beyond `MOST` together, or work that has no rounds."""
    touched: int
    """How many rows it changed."""
    messages: int
    """How many rows or values it sent."""
    seconds: float
    rounds: int = 1
    """How many rounds these figures are of; 0 for work that has no rounds."""

    def with_another(self, other: RoundFigures) -> RoundFigures:
        """The figures of the same round on two workers together."""
        return RoundFigures(
            self.at,
            self.touched + other.touched,
            self.messages + other.messages,
            max(self.seconds, other.seconds),
            max(self.rounds, other.rounds),
        )


class LoopFigures(NamedTuple):
    """What the rounds of a loop did in an epoch, in their order."""

    loop: str
    rounds: tuple[RoundFigures, ...]


def add_up(figures: Sequence[LoopFigures]) -> tuple[LoopFigures, ...]:
    """Add up the figures of several workers."""
    if len(figures) < 2:
        return tuple(figures)
    loops: dict[str, list[tuple[RoundFigures, ...]]] = {}
    for each in figures:
        loops.setdefault(each.loop, []).append(each.rounds)
    return tuple([LoopFigures(loop, _together(parts)) for loop, parts in loops.items()])


def _together(parts: list[tuple[RoundFigures, ...]]) -> tuple[RoundFigures, ...]:
    if len(parts) == 1:
        return parts[0]
    rounds: dict[tuple[int, ...], RoundFigures] = {}
    for part in parts:
        for each in part:
            known = rounds.get(each.at)
            rounds[each.at] = each if known is None else known.with_another(each)
    return tuple(sorted(rounds.values(), key=lambda each: (not each.at, each.at)))


def shortened(rounds: Sequence[RoundFigures]) -> tuple[RoundFigures, ...]:
    """Rounds in their order, with those beyond `MOST` in one row (the *bounded* law)."""
    if len(rounds) <= MOST:
        return tuple(rounds)
    rest = rounds[MOST:]
    last = RoundFigures(
        (),
        sum(each.touched for each in rest),
        sum(each.messages for each in rest),
        sum(each.seconds for each in rest),
        sum(each.rounds for each in rest),
    )
    return (*rounds[:MOST], last)


def name_of(scope: Scope) -> str:
    """The name of a loop for people: the names of the loops around it, then its own, with slashes between them."""
    names: list[str] = []
    inner: Scope | None = scope
    while inner is not None and inner.parent is not None:
        names.append(inner.called)
        inner = inner.parent
    return "/".join(reversed(names))


def loop_of(node: Node) -> str | None:
    """The name of the loop that a node runs by itself, if it does (`Operator.runs_loop`)."""
    return node.name.rpartition(":")[0] if node.operator.runs_loop else None


def parts_of_loops(plan: Plan) -> set[int]:
    """The numbers of the scopes that are parts of a loop which one node tells of (`Operator.is_part_of_loop`)."""
    return {node.scope.number for node in plan.nodes if node.operator.is_part_of_loop}


def loops_of(plan: Plan) -> dict[str, tuple[str, ...]]:
    """The names of the loops of a plan, each with those of the loops around it, outermost first."""
    loops: dict[str, tuple[str, ...]] = {}
    parts = parts_of_loops(plan)
    paths: dict[int, tuple[str, ...]] = {}  # of each scope: the loops around its nodes
    for node in plan.nodes:
        if node.scope.number in parts:
            continue
        scopes, scope = [], node.scope
        while scope.number not in paths and scope.parent is not None:
            scopes.append(scope)
            scope = scope.parent
        around = paths.setdefault(scope.number, ())
        for inner in reversed(scopes):
            name = f"{around[-1]}/{inner.called}" if around else inner.called
            loops[name] = around
            around = paths[inner.number] = (*around, name)
        loop = loop_of(node)
        if loop is not None:
            loops[loop] = around
    return dict(sorted(loops.items()))
