"""Phases: what a run waits for, and what the coordinator does in each phase when the work of a member fails.

A part of the coordinator, sans I/O. Laws:

- **Decided by a table.** What follows a failure depends on three things only: the phase of the run, the work that
  failed, and whether the work raised an error or a user has interrupted it. The table has an entry for each case:

  ===================  ===================  =========  ===============
  phase                work                 it raised  was interrupted
  ===================  ===================  =========  ===============
  running              no instance made     close      restart
  running              idle                 retry      restart
  running              rebuilt              close      restart
  running              acknowledged         close      restart
  running              skippable            refuse     restart
  running              open                 refuse     refuse
  starting             any                  close      restart
  gathering, refusing  no instance made     close      ignore
  gathering, refusing  any other            ignore     ignore
  closed               any                  ignore     ignore
  ===================  ===================  =========  ===============

- **Awaited or late.** What members say of an execution is taken in if it is of the present one, and if it is awaited in
  the phase (`AWAITED`). All else is late, and dropped: the execution begins anew, or has begun anew.
- **An interrupt ends no run.** Nothing is wrong with work that was interrupted. An epoch that nobody was told of is
  refused, as the user wants; all other work is done again.
- **A failure is answered once.** While members are gathered, or a refusal is on its way to the log, another execution
  is about to begin, in which the work is done again or the epoch has no rows. So further failures of this execution
  are ignored, except that no instance can be made: no execution mends that.

>>> decide_reaction(Phase.RUNNING, Work.OPEN, interrupted=False)
<Reaction.REFUSE: 'refuse'>
>>> decide_reaction(Phase.STARTING, Work.IDLE, interrupted=True)
<Reaction.RESTART: 'restart'>

Cost: nothing while no work fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from riverrun.engine.messages import Completed, Failed, NotReady, NotSaved, Ready, RoundWritten


class Phase(Enum):
    """What the coordinator waits for."""

    GATHERING = "gathering"
    STARTING = "starting"
    RUNNING = "running"
    REFUSING = "refusing"
    CLOSED = "closed"


AWAITED: Mapping[type, frozenset[Phase]] = {
    Ready: frozenset({Phase.STARTING}),
    NotReady: frozenset({Phase.STARTING, Phase.RUNNING, Phase.REFUSING}),
    Completed: frozenset({Phase.RUNNING}),
    RoundWritten: frozenset({Phase.RUNNING}),
    NotSaved: frozenset({Phase.RUNNING}),
    Failed: frozenset(Phase),  # what follows is for `REACTIONS` to say
}
"""For each kind of message that members send of an execution, the phases in which it is awaited."""


class Work(Enum):
    """What a member was at when its work failed."""

    INSTANCE = "no instance made"
    """The member could not make its part of the plan, or restore the states of it."""
    IDLE = "idle"
    """No epoch is under way, or the failure names one that is complete."""
    REBUILT = "rebuilt"
    """The states that a checkpoint did not have are built anew."""
    ACKNOWLEDGED = "acknowledged"
    """An epoch that is never refused: it was acknowledged, or may have been; or it is refused already."""
    SKIPPABLE = "skippable"
    """An epoch that owners before us may have acknowledged, and that the user lets be refused where it fails."""
    OPEN = "open"
    """An epoch that nobody was told of as complete."""


class Reaction(Enum):
    """What the coordinator does about a failure."""

    IGNORE = "ignore"
    RESTART = "restart"
    """Begin another execution where the present one began, or at the last boundary."""
    RETRY = "retry"
    """Restart; after several failures in a row, close."""
    REFUSE = "refuse"
    """Refuse the epoch."""
    CLOSE = "close"
    """End the run with the error."""


_BOTH_IGNORED = (Reaction.IGNORE, Reaction.IGNORE)
_BETWEEN_EXECUTIONS = {
    **dict.fromkeys(Work, _BOTH_IGNORED),
    Work.INSTANCE: (Reaction.CLOSE, Reaction.IGNORE),
}

REACTIONS: Mapping[Phase, Mapping[Work, tuple[Reaction, Reaction]]] = {
    Phase.RUNNING: {
        Work.INSTANCE: (Reaction.CLOSE, Reaction.RESTART),
        Work.IDLE: (Reaction.RETRY, Reaction.RESTART),
        Work.REBUILT: (Reaction.CLOSE, Reaction.RESTART),
        Work.ACKNOWLEDGED: (Reaction.CLOSE, Reaction.RESTART),
        Work.SKIPPABLE: (Reaction.REFUSE, Reaction.RESTART),
        Work.OPEN: (Reaction.REFUSE, Reaction.REFUSE),
    },
    Phase.STARTING: dict.fromkeys(Work, (Reaction.CLOSE, Reaction.RESTART)),
    Phase.GATHERING: _BETWEEN_EXECUTIONS,
    Phase.REFUSING: _BETWEEN_EXECUTIONS,
    Phase.CLOSED: dict.fromkeys(Work, _BOTH_IGNORED),
}
"""What follows when work raises an error, and what when a user interrupts it (*decided by a table*)."""


def decide_reaction(phase: Phase, work: Work, *, interrupted: bool) -> Reaction:
    """What the coordinator does when work fails in a phase."""
    raised, after_interrupt = REACTIONS[phase][work]
    return after_interrupt if interrupted else raised
