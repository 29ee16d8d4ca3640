"""Executors: how a loop is run, of the ways that there are for it.

A loop is written as differential nodes, and perhaps once more or twice: on arrays, on one worker or on all, or by
rounds (`collections.rounds`). `choose` decides while the program is written: it writes a loop again where the rule
below takes that way, and the plan notes a `Choice`. The optimizer then puts a way in place of the differential nodes
(`plan.optimizer.ways`). Where somebody looks at rows inside the loop, the differential nodes stay; or the program is
refused, where the loop cannot be differential or another way was asked for. The rule, for ``mode="auto"``:

1. on arrays, where the loop has a shape that arrays know (`shapes`, `pull_shapes`) and gains by it: a pull that adds
   nothing up gains only where it runs from its start in each epoch; on one worker or on all, by what costs less
   (`plan.optimizer.costs`);
2. otherwise by rounds, if the loop cannot be differential (its last round depends on its rows, or it is to run from its
   start in each epoch: ``maintain="restart"``), or if `LONG` rounds or more are expected: differential loops keep the
   changes of every round, and look at all of them again wherever a change comes;
3. otherwise differentially: a change costs what differs by it.

A delta iteration in supersteps runs on arrays, if these know its shape, and otherwise by rounds; in microsteps it runs
on arrays, or as a node that takes rows one by one (`collections.microsteps`).

Laws:

- **Same rows.** The rule never changes a result; only in microsteps, where they are asked for, it may depend on the
  order of work.
- **Said.** `explain` says which way a loop takes, and why.
- **As asked.** What is asked for by ``mode=``, ``spread_over=`` or ``maintain=`` is taken, or refused with the reason.

Cost: that of building the loop again, once for each other way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from riverrun.errors import PlanError
from riverrun.frontends.collections.rounds import ByRounds, LoopEnd, NoRounds, Solution
from riverrun.frontends.collections.shapes import check_unseen
from riverrun.frontends.collections.tracing import NoShape
from riverrun.plan.plan import Choice, Shortcut

if TYPE_CHECKING:
    from riverrun.frontends.collection import Collection
    from riverrun.frontends.collections.loops import ClosedVariable, Way

ON_ARRAYS = ("auto", "arrays", "superstep", "microstep")
"""The modes in which arrays are tried first."""
BY_ROUNDS = ("rounds", "superstep")
LONG = 64
"""From so many expected rounds on, a loop runs by rounds."""


def choose(
    closed: Sequence[ClosedVariable],
    left: list[Collection],
    way: Way,
    stop: LoopEnd,
    fast: Callable[[str], list[Shortcut]],
    solution: Solution | None = None,
) -> list[Collection]:
    """Offer the optimizer other ways to run a loop, and give its results.

    `left` are the results of the differential nodes, of the first variables of the loop. `fast` gives the ways to have
    the result of the loop on arrays, by nodes whose names begin with a word that it is given; or it raises a `NoShape`.
    """
    builder, loop = left[0]._builder, closed[0].variable.loop
    called = loop.path.rstrip("/")
    for asked in ("mode", "maintain"):
        if getattr(way, asked) == "differential":
            _check_spread_over(called, way, f"{asked}='differential'")
            builder.differential[loop.number] = f"{asked}='differential'"
            return left
    must, no_arrays = _why_not_differential(way, stop), ""
    if way.mode in ON_ARRAYS:
        try:
            with builder.whole_or_not():
                check_unseen(loop, left[0])
                ways = fast(called)
        except NoShape as reason:
            no_arrays = f"not on arrays: {reason}"
            if way.mode in ("arrays", "microstep") or way.spread_over != "auto":
                raise _no_arrays(called, way, reason) from None
        else:
            builder.choices.append(
                Choice(loop, left[0]._port, tuple(ways), way.spread_over, must=must)
            )
            return left
    _check_spread_over(called, way, f"mode={way.mode!r}")
    is_long = way.expect is not None and way.expect >= LONG
    if not (must or is_long):
        builder.differential[loop.number] = no_arrays
        return left
    try:
        with builder.whole_or_not():
            if way.at is not None:
                raise NoRounds("rows enter it by priority")
            rounds = ByRounds(closed, stop, way.rounds, way.patience, solution)
            results = rounds.build(len(left))
    except NoRounds as reason:
        if must:
            besides = f"; and {no_arrays}" if no_arrays else ""
            raise PlanError(
                "plan.no_rounds",
                f"cannot run the loop {called!r} by rounds ({way.line}): {reason}{besides}",
                hint="a loop runs by rounds where no other loop is around it or in it, and each of its steps can be "
                "done on the rows of one round; other loops run differentially: until nothing changes, or rounds=",
            ) from None
        builder.differential[loop.number] = f"{no_arrays}; not by rounds: {reason}"
        return left
    leave, *also = [each._port for each in left]
    port, *others = [each._port for each in results]
    by_rounds = Shortcut(port, tuple(others), "all", (rounds.scope,))
    builder.choices.append(Choice(loop, leave, (by_rounds,), also=tuple(also), must=must))
    builder.by_rounds[rounds.scope.number] = (
        f"{stop.text}{'' if way.rounds is None else f', at most {way.rounds} rounds'}; by rounds, {_why(way, stop)}"
    )
    return results if must else left


def _why_not_differential(way: Way, stop: LoopEnd) -> str:
    """Why a loop must not be differential, in words; empty if it may be."""
    for name in ("mode", "spread_over", "maintain"):
        asked = getattr(way, name)
        if asked != "auto":
            return f"since {name}={asked!r} is asked for"
    if stop.proceed is not None or stop.closeness is not None:
        return "since which round is the last depends on the rows"
    return ""


def _no_arrays(loop: str, way: Way, reason: NoShape) -> PlanError:
    """The refusal of a loop that is to run on arrays, and cannot."""
    attempt, otherwise = f"run the loop {loop!r} on arrays", "mode='auto'"
    if way.mode == "microstep":
        attempt = f"run the loop {loop!r} in microsteps"
    elif way.mode != "arrays":
        attempt = f"spread the loop {loop!r} over {way.spread_over!r}, as it does not run on arrays"
        otherwise = "the loop without spread_over="
    return PlanError(
        "plan.no_arrays",
        f"cannot {attempt} ({way.line}): {reason}",
        hint=f"{otherwise} runs on arrays where that can be, and otherwise by rounds or differentially",
        line=way.line,
    )


def _check_spread_over(loop: str, way: Way, asked: str) -> None:
    """Refuse to spread a loop that is not on arrays over some workers."""
    if way.spread_over != "auto":
        raise PlanError(
            "plan.no_arrays",
            f"cannot spread the loop {loop!r} over {way.spread_over!r} with {asked} ({way.line}): its rows are on all "
            "workers",
            hint=f"leave out spread_over=, or {asked}",
            line=way.line,
        )


def _why(way: Way, stop: LoopEnd) -> str:
    """Why a loop runs by rounds, for people."""
    if way.mode in BY_ROUNDS:
        return f"mode={way.mode!r}"
    if stop.proceed is not None or stop.closeness is not None:
        return "since which round is the last depends on the rows"
    if way.maintain == "restart":
        return "maintain='restart'"
    return f"since {way.expect} rounds are expected"
