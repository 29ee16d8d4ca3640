"""What follows a failure: every row of the table of `phases`, and that the coordinator goes by the table."""

from __future__ import annotations

from itertools import product

import pytest

from riverrun.engine.coordinator.phases import REACTIONS, Phase, Reaction, Work, decide_reaction
from riverrun.engine.messages import INTERRUPTED, Failed, Outcome, Ready
from riverrun.errors import CheckpointError, OperatorFailed, RiverrunError
from riverrun.storage.takeover import Opening, PendingEpoch
from tests.engine.coordinator.test_coordinator import Bench

RAISED = OperatorFailed("operator.poison", "poison", hint="")
DAMAGED = CheckpointError("checkpoint.corrupt", "damaged", hint="")
BROKEN_OFF = OperatorFailed(INTERRUPTED, "interrupted", hint="")
ALL = list(product(Phase, Work, (False, True)))


def expected(phase: Phase, work: Work, interrupted: bool) -> Reaction:
    """The table once more, as conditions."""
    is_at_work = phase in (Phase.STARTING, Phase.RUNNING)
    if phase is Phase.CLOSED:
        return Reaction.IGNORE
    if interrupted and not (phase is Phase.RUNNING and work is Work.OPEN):
        return Reaction.RESTART if is_at_work else Reaction.IGNORE
    if work is Work.INSTANCE or phase is Phase.STARTING:
        return Reaction.CLOSE
    if phase is not Phase.RUNNING:
        return Reaction.IGNORE
    if work is Work.IDLE:
        return Reaction.RETRY
    return Reaction.REFUSE if work in (Work.SKIPPABLE, Work.OPEN) else Reaction.CLOSE


@pytest.mark.parametrize(("phase", "work", "interrupted"), ALL)
def test_the_table_has_every_case(phase: Phase, work: Work, interrupted: bool) -> None:
    assert len(REACTIONS[phase]) == len(Work)
    assert decide_reaction(phase, work, interrupted=interrupted) is expected(
        phase, work, interrupted
    )


def running(work: Work) -> tuple[Bench, int | None]:
    """A run whose only worker is at this work, and the epoch that the worker is at."""
    if work in (Work.INSTANCE, Work.IDLE):
        return Bench(1), None if work is Work.INSTANCE else -1
    if work is Work.OPEN:
        bench = Bench(1)
        bench.submit()
        return bench, 0
    pending = (PendingEpoch(1, {}), PendingEpoch(2, {}))
    if work is Work.REBUILT:
        return Bench(1, Opening(4, 1, 6, 0, 1, 5, pending, reported=7, done=7)), 6
    skips = work is Work.SKIPPABLE
    return Bench(1, Opening(4, 0, 0, 0, 0, 5, pending, reported=1), skip_failing=skips), 0


def in_phase(phase: Phase, work: Work) -> tuple[Bench, int | None]:
    """A run in a phase that came to it from that work; in the phases between executions nothing is under way."""
    if phase is Phase.RUNNING:
        return running(work)
    bench = Bench(1)
    bench.submit()
    coordinator = bench.coordinator
    if phase is Phase.GATHERING:
        coordinator.lost(1)
    elif phase is Phase.REFUSING:
        bench.tell(1, Failed(1, 0, RAISED))
    elif phase is Phase.STARTING:
        bench.tell(1, Failed(1, 0, BROKEN_OFF))
        bench.tell(*_logged(bench))
    else:
        coordinator.close()
    bench.turn()
    return bench, None if work is Work.INSTANCE else coordinator.completed


def _logged(bench: Bench) -> tuple[int, Outcome]:
    to, record = next(pair for pair in reversed(bench.log) if hasattr(pair[1], "header"))
    return to, Outcome(record)


REACHABLE = [
    (phase, work, interrupted)
    for phase, work, interrupted in ALL
    if phase is Phase.RUNNING or work in (Work.INSTANCE, Work.IDLE)
]


@pytest.mark.parametrize(("phase", "work", "interrupted"), REACHABLE)
def test_the_coordinator_goes_by_the_table(phase: Phase, work: Work, interrupted: bool) -> None:
    bench, epoch = in_phase(phase, work)
    coordinator = bench.coordinator
    assert coordinator.phase is phase
    before = coordinator.execution
    member = coordinator.members[-1]
    error = BROKEN_OFF if interrupted else RAISED
    bench.tell(member, Failed(before, epoch, error))
    reaction = expected(phase, work, interrupted)
    if reaction is Reaction.IGNORE:
        assert (coordinator.phase, coordinator.execution) == (phase, before)
    elif reaction in (Reaction.RESTART, Reaction.RETRY):
        assert (coordinator.phase, coordinator.execution) == (Phase.STARTING, before + 1)
    elif reaction is Reaction.REFUSE:
        assert coordinator.phase is Phase.REFUSING
        assert epoch in coordinator.refusals
    else:
        assert coordinator.phase is Phase.CLOSED
        assert _root(coordinator.error) is error


def _root(error: RiverrunError | None) -> BaseException | None:
    return error if error is None or error.__cause__ is None else error.__cause__


@pytest.mark.parametrize(
    ("work", "error", "code"),
    [
        (Work.REBUILT, RAISED, "checkpoint.not_rebuilt"),
        (Work.REBUILT, DAMAGED, "checkpoint.not_rebuilt"),
        (Work.ACKNOWLEDGED, RAISED, "run.not_repeatable"),
        (Work.ACKNOWLEDGED, DAMAGED, "checkpoint.corrupt"),
        (Work.INSTANCE, RAISED, "operator.poison"),
    ],
)
def test_the_error_says_what_could_not_be_done(work: Work, error: RiverrunError, code: str) -> None:
    bench, epoch = running(work)
    bench.tell(1, Failed(1, epoch, error))
    assert bench.coordinator.error is not None
    assert bench.coordinator.error.code == code


def test_a_refused_epoch_that_fails_again_ends_the_run() -> None:
    bench = Bench(1)
    bench.submit()
    bench.submit()
    bench.tell(1, Failed(1, 0, RAISED))
    bench.tell(*_logged(bench))
    bench.ready()
    assert bench.coordinator.released == 1
    bench.tell(1, Failed(2, 0, RAISED))
    assert bench.coordinator.error is not None
    assert bench.coordinator.error.code == "run.not_repeatable"


def test_the_third_failure_in_a_row_with_nothing_under_way_closes() -> None:
    bench = Bench(1)
    for execution in (1, 2):
        bench.tell(1, Failed(execution, -1, RAISED))
        bench.tell(1, Ready(execution + 1))
    bench.tell(1, Failed(3, -1, BROKEN_OFF))  # an interrupt does not count
    bench.tell(1, Ready(4))
    assert bench.coordinator.phase is Phase.RUNNING
    bench.tell(1, Failed(4, -1, RAISED))
    assert bench.coordinator.error is RAISED


def test_what_failed_in_an_older_execution_is_dropped() -> None:
    for work in (Work.INSTANCE, Work.OPEN):
        bench, epoch = running(work)
        bench.tell(1, Failed(0, epoch, RAISED))
        assert bench.coordinator.phase is Phase.RUNNING
