"""Losses: how often a run had to go back since an epoch was last complete, and when that is enough.

A worker that is lost is replaced, and what it was at is done again. Where that is what kills it, an
epoch that does not fit into memory say, this would go on for ever. Laws:

1. **Bounded.** After `RECOVERIES` recoveries in a row with no new epoch complete, or as many processes
   that died after they had reported and before they took part, the run is to end.
2. **Told.** The error names the epoch, the worker that was lost last, its process, and how it ended, as far
   as anybody knows. Nothing is lost by it where there is a log: the epoch is in there.

>>> losses = Losses(most=2)
>>> for execution in range(1, 5):
...     losses.began(execution, index=0, member=execution)
...     losses.went(execution, {"pid": 40 + execution, "host": "here"}, epoch=7, reported=7)
...     losses.said(execution, "exit code 137")
...     error = losses.too_many(reported=7)
...     print(error.message.partition(". ")[0] if error else None)
None
None
cannot go on: 3 times in a row a worker was lost before epoch 7 was complete
cannot go on: 4 times in a row a worker was lost before epoch 7 was complete
>>> error.message.partition(". ")[2]
'The last one was worker 0, process 44 on here, which ended with: exit code 137'

Cost: nothing while nobody is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from riverrun.engine.messages import INTERRUPTED
from riverrun.errors import CheckpointError, OperatorFailed, RiverrunError, TransportError

RECOVERIES = 8

_MEMORY = (
    "Python worker exited unexpectedly",
    "Connection reset",
    "signal 9",
    "code 137",
    "code 143",
    "OutOfMemory",
    "MemoryError",
    "killed by",
)
_LOGGED = (
    "; nothing is lost: the log has all that was committed, and a run that is started on the same path goes on "
    "with it"
)
_CRASH = ("signal 11", "code 139", "Segmentation", "signal 6", "code 134")


class Losses:
    """What is known of the workers that a run has lost."""

    def __init__(self, most: int | None = None, *, logged: bool = True) -> None:
        """`logged` says whether there is a log, from which a later run can go on."""
        self._most = RECOVERIES if most is None else most
        self._logged = logged
        self._reported = -1
        self._execution = 0
        self._recoveries = 0
        self._early = 0
        self._indices: dict[int, int] = {}
        self._last: tuple[int | None, Mapping[str, Any], int] | None = None
        self._why: dict[int, str] = {}

    def began(self, execution: int, index: int, member: int) -> None:
        """A worker takes part in an execution."""
        if execution > self._execution:
            self._execution = execution
            self._indices.clear()
        self._indices[member] = index

    def went(self, member: int, process: Mapping[str, Any], epoch: int, reported: int) -> None:
        """A worker is lost, when an epoch was to be completed next and so many were reported."""
        self._look(reported)
        if member in self._indices:
            if self._execution:  # several of one execution are one recovery
                self._recoveries += 1
                self._execution = 0
        elif process:
            self._early += 1
        self._last = self._indices.get(member), process, epoch

    def said(self, member: int, why: str) -> None:
        """How the process of a worker ended."""
        if why:
            self._why = {member: why}  # of the others nobody will ask

    def calm(self) -> None:
        """All is done that was to be done, or what was lost was not needed: nothing kills its worker."""
        self._recoveries = self._early = 0

    def too_many(self, reported: int) -> TransportError | None:
        """Why the run is to end; None while it may go on."""
        self._look(reported)
        times = max(self._recoveries, self._early)
        if times <= self._most or self._last is None:
            return None
        index, process, epoch = self._last
        early = self._early > self._recoveries
        who = f"worker {index}" if index is not None else "one that had not begun"
        if process:
            who += f", process {process['pid']} on {process['host']}"
        why = next(iter(self._why.values()), "")
        return TransportError(
            "run.losing",
            f"cannot go on: {times} times in a row a worker was lost "
            + ("before it took part" if early else f"before epoch {epoch} was complete")
            + f". The last one was {who}, "
            + (f"which ended with: {why}" if why else "whose process has not said why"),
            hint=explained(why) + (_LOGGED if self._logged else ""),
            epoch=epoch,
            worker=index,
            recoveries=times - 1,
        )

    def _look(self, reported: int) -> None:
        if reported != self._reported:
            self._reported = reported
            self._recoveries = self._early = 0


def explained(why: str) -> str:
    """What to do about a process that ended in some way."""
    if any(sign in why for sign in _CRASH):
        return "signals 11 and 6 (exit codes 139 and 134) are a crash of native code in an operator or a library"
    memory = (
        "signal 9 (exit code 137; Spark only says that the Python worker exited unexpectedly) is as a rule a lack of "
        "memory: give workers a budget (run(memory=)), on Spark executors more (spark.executor.memoryOverhead), or "
        "commit fewer rows at a time"
    )
    if not why or any(sign in why for sign in _MEMORY):
        return memory
    return "what ends it is in the log of that process; " + memory


def not_durable(index: int, why: str) -> CheckpointError:
    """What ends a run that loses a worker and has no checkpoints."""
    return CheckpointError(
        "checkpoint.none",
        f"cannot go on: worker {index} is lost, and with it its part of the states"
        + (f"; its process said: {why}" if why else ""),
        hint="run with checkpoint=PATH: then lost workers are replaced",
        worker=index,
    )


def not_repeatable(epoch: int, error: RiverrunError) -> CheckpointError:
    """What ends a run in which an epoch fails that was acknowledged before."""
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
    """Why an epoch is refused that did not fail by itself."""
    wrapped = OperatorFailed(
        INTERRUPTED,
        f"epoch {epoch} was interrupted by {type(error).__name__} and is refused",
        hint="insert its rows again and commit; the run is as it was before",
        epoch=epoch,
        **fields,
    )
    wrapped.__cause__ = error
    return wrapped
