"""Losses: how often in a row a run has lost workers without getting on, and when that is too often.

A lost worker is replaced, and the epoch it worked on is done again, in a new *execution* of the run. Where that epoch
itself kills workers, say because it does not fit into memory, the run would go on losing workers for ever. `Losses`
ends that. The cluster of a run on other processes (`runtime.remote`) tells `Losses` when a worker process begins an
execution (`took_part`), when a worker is lost (`lost`) and how its process ended (`ended`), and asks at each tick of
its clock whether the run has to end (`too_many`). Laws:

- **Bounded.** `too_many` gives an error when more than `RECOVERIES` losses came in a row, that is, while no further
  epoch was reported to the user as complete. Losses of workers that took part in an execution are counted apart from
  losses of processes that had connected and were lost before they took part. Workers of one execution that are lost
  together count as one loss. Both counts start anew when an epoch is reported, and by `reset`.
- **Explained.** The error names the epoch, the worker that was lost last, its process, and how that process ended, as
  far as anybody knows. Where the run has a log, the hint says that nothing committed is lost.

In the example two losses in a row are borne, and worker 0 is lost four times, each time as another process (`member` is
its incarnation). The epochs below 7 were reported, so epoch 7 is the one that does not become complete.

>>> losses = Losses(most=2)
>>> for execution in range(1, 5):
...     losses.took_part(execution, index=0, member=execution)
...     losses.lost(execution, {"pid": 40 + execution, "host": "here"}, epoch=7, reported=7)
...     losses.ended(execution, "exit code 137")
...     error = losses.too_many(reported=7)
...     print(error.message.partition(". ")[0] if error else None)
None
None
cannot go on: 3 times in a row a worker was lost before epoch 7 was complete
cannot go on: 4 times in a row a worker was lost before epoch 7 was complete
>>> error.message.partition(". ")[2]
'The last one was worker 0, process 44 on here, which ended with: exit code 137'

Cost: nothing while no worker is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from riverrun.errors import TransportError

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
    """Counts the losses of a run, and keeps what is known of the last one."""

    def __init__(self, most: int | None = None, *, logged: bool = True) -> None:
        """`most` losses in a row are borne; `logged` says whether there is a log, from which a later run can go on."""
        self._most = RECOVERIES if most is None else most
        self._logged = logged
        self._reported = -1
        self._execution = 0
        self._recoveries = 0
        self._early = 0
        self._indices: dict[int, int] = {}
        self._last: tuple[int | None, Mapping[str, Any], int] | None = None
        self._exits: dict[int, str] = {}

    def took_part(self, execution: int, index: int, member: int) -> None:
        """The coordinator has an incarnation begin an execution, as the worker at an index."""
        if execution > self._execution:
            self._execution = execution
            self._indices.clear()
        self._indices[member] = index

    def lost(self, member: int, process: Mapping[str, Any], epoch: int, reported: int) -> None:
        """An incarnation is lost: `epoch` was to be completed next, and all epochs below `reported` were reported."""
        self._note_reported(reported)
        if member in self._indices:
            if self._execution:  # several of one execution are one recovery
                self._recoveries += 1
                self._execution = 0
        elif process:
            self._early += 1
        self._last = self._indices.get(member), process, epoch

    def ended(self, member: int, why: str) -> None:
        """The process of an incarnation ended in this way."""
        if why:
            self._exits = {member: why}  # the error tells of the last process only

    def reset(self) -> None:
        """Count from 0 again: every submitted epoch is complete, or the lost workers were not needed after all."""
        self._recoveries = self._early = 0

    def too_many(self, reported: int) -> TransportError | None:
        """The error that is to end the run; None while the run may go on."""
        self._note_reported(reported)
        times = max(self._recoveries, self._early)
        if times <= self._most or self._last is None:
            return None
        index, process, epoch = self._last
        early = self._early > self._recoveries
        who = f"worker {index}" if index is not None else "one that had not begun"
        if process:
            who += f", process {process['pid']} on {process['host']}"
        why = next(iter(self._exits.values()), "")
        return TransportError(
            "run.losing",
            f"cannot go on: {times} times in a row a worker was lost "
            + ("before it took part" if early else f"before epoch {epoch} was complete")
            + f". The last one was {who}, "
            + (f"which ended with: {why}" if why else "whose process has not said why"),
            hint=advice_on_exit(why) + (_LOGGED if self._logged else ""),
            epoch=epoch,
            worker=index,
            recoveries=times - 1,
        )

    def _note_reported(self, reported: int) -> None:
        """Count from 0 again when an epoch has become complete since the last call."""
        if reported != self._reported:
            self._reported = reported
            self._recoveries = self._early = 0


def advice_on_exit(why: str) -> str:
    """What a user can do about a process that ended in this way."""
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
