"""Failures: the errors with which a lost worker, a failed epoch or an interrupt ends a run or an epoch.

The coordinator, the workers and the clusters make these errors here, so that one failure is told in the same words
wherever it is noticed. Laws:

- **Cause kept.** Where another error led to the failure, the error made here has it as its `__cause__`.
- **Way on.** The hint says what to do next, and whether committed rows are safe.

>>> error = closed_error(not_durable(1, "exit code 137"))
>>> error.message.partition(": it is closed, ")[2]
'since: cannot go on: worker 1 is lost, and with it its part of the states; its process said: exit code 137'
>>> error.__cause__.hint
'run with checkpoint=PATH: then lost workers are replaced'
"""

from __future__ import annotations

from typing import Any

from riverrun.engine.messages import INTERRUPTED
from riverrun.errors import CheckpointError, OperatorFailed, RiverrunError


def not_durable(index: int, why: str) -> CheckpointError:
    """The error that ends a run without checkpoints when it loses a worker."""
    return CheckpointError(
        "checkpoint.none",
        f"cannot go on: worker {index} is lost, and with it its part of the states"
        + (f"; its process said: {why}" if why else ""),
        hint="run with checkpoint=PATH: then lost workers are replaced",
        worker=index,
    )


def not_repeatable(epoch: int, error: RiverrunError) -> CheckpointError:
    """The error that ends a run when an epoch fails that was acknowledged before."""
    wrapped = CheckpointError(
        "run.not_repeatable",
        f"cannot do epoch {epoch} again: it was complete before, or may have been, and now fails: {error.message}",
        hint="nothing is lost: mend what fails and run again; functions that a run calls must give the same result "
        "for the same input. run(skip_failing=True) drops the rows of such an epoch for good",
        epoch=epoch,
    )
    wrapped.__cause__ = error
    return wrapped


def interrupted(epoch: int, error: BaseException, **fields: Any) -> OperatorFailed:
    """The error of an epoch that is refused because the user interrupted it."""
    wrapped = OperatorFailed(
        INTERRUPTED,
        f"epoch {epoch} was interrupted by {type(error).__name__} and is refused",
        hint="insert its rows again and commit; the run is as it was before",
        epoch=epoch,
        **fields,
    )
    wrapped.__cause__ = error
    return wrapped


def closed_error(reason: RiverrunError | None) -> RiverrunError:
    """The error of using a run that is over; `reason` is what ended the run, if it failed."""
    error = CheckpointError(
        "run.closed",
        "cannot use the run: it is closed" + (f", since: {reason.message}" if reason else ""),
        hint="start it again; with a checkpoint path it goes on from where it was",
    )
    error.__cause__ = reason
    return error
