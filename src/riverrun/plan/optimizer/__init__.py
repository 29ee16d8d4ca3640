"""The optimizer: from the plan that a program was written as to a plan that gives the same rows, sooner.

Rewriting is from plan to plan, before a run starts, and depends on the plan alone: so all workers, and a run that
resumes, do the same. The rewrites, in their order, each a module:

- `ways` takes one of several ways to the same rows;
- `hoisting` makes an arrangement of what a loop does not change once, outside, for all loops that read it;
- `showing` has outputs read arrangements that there are, where only the order of columns differs;
- `unread` does not keep results that nobody reads;
- `adding` adds equal rows up before they travel.

A run that stores no state has its plan rewritten further:

- `narrowing` drops columns that nobody reads.

(`plan.placement` leaves out exchanges that move nothing, when it is known how many workers there are.) Laws:

- **Same rows.** Every output has the same rows at every epoch, with any number of workers.
- **Same states.** Identities are those of the program as it was written (`Plan.written`). So a checkpoint serves a
  program that was not changed, whichever rewrites there were when it was made and are now: a state in another scope is
  taken over, a state that is not needed any more is dropped.
- **Reasons.** Each change of a plan is noted with its reason, and with what was not chosen (`Plan.reasons`);
  `plan.explain` shows these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from riverrun.plan.optimizer.adding import adding_before
from riverrun.plan.optimizer.hoisting import hoisted
from riverrun.plan.optimizer.narrowing import narrowed
from riverrun.plan.optimizer.showing import shown
from riverrun.plan.optimizer.unread import without_unread
from riverrun.plan.optimizer.ways import with_ways_taken
from riverrun.plan.plan import Plan

__all__ = ["REWRITES", "narrowed", "optimized"]

REWRITES: Mapping[str, Callable[[Plan], Plan]] = {
    "hoisted": hoisted,
    "shown": shown,
    "unread": without_unread,
    "added up": adding_before,
}
"""The rewrites that keep the identities of a program, by the kind of their reasons, in the order in which they are
done."""


def optimized(plan: Plan, rewrites: Mapping[str, Callable[[Plan], Plan]] = REWRITES) -> Plan:
    """The plan with one way for each choice, after all rewrites."""
    written = with_ways_taken(plan)
    if written.expected:  # the numbers of nodes, which the rewrites change
        written = replace(written, expected={})
    plan = replace(written, written=written)
    for rewrite in rewrites.values():
        plan = rewrite(plan)
    return plan if plan.reasons != written.reasons else written
