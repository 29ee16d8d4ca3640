"""Saving: which checkpoint is published, which is being written, and when the next one is due.

The coordinator's part of a checkpoint, sans I/O. At an epoch boundary a checkpoint is *announced*:
an attempt begins, every worker writes its part from its pin, and when all parts are there the
manifest is published. Epochs go on meanwhile. Laws:

1. **One boundary.** An attempt publishes parts that were written for this attempt only, one from
   each worker that held shards at the boundary: parts name their attempt, and an attempt ends when
   it fails, when a worker that owes a part is lost, or when the run goes back before its epoch.
2. **A boundary is a fact.** All workers had completed it, from input in the log, so it does not
   depend on the execution: an attempt survives a new execution that begins at or after its epoch.
3. **Behind none.** Checkpoints with greater numbers cover at least as much of the log. An attempt
   starts from a *base*, the newest checkpoint it knows, which covers no more of the log than the
   attempt; parts that met another base are not published, and publishing itself refuses them. So
   whoever decides late which log records the retained checkpoints need never deletes too many. (One
   that was gone back to covers less than the damaged ones before it: law 6 of `state.log` has why.)
4. **Never in the way.** A write that fails is tried again, at a later boundary or some seconds later,
   whichever is first, and processing goes on; `failures`, the distance between `epoch` and the present,
   and `behind` show it. So when a storage was away, the checkpoint comes about also if nothing else
   happens any more.

>>> saver = Saver(every=10)
>>> saver.is_due(completed=9, now=0.0), saver.is_due(completed=10, now=0.0)
(False, True)

When somebody else has published a checkpoint here, the next attempt is preceded by a survey
(`found`): an owner before us, who may have been about to publish, changes only the numbers, and a
checkpoint that somebody asked for is tried again (`is_tried_again`); an owner after us means that the
path was taken over, which ends the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from riverrun.engine.messages import NO_EPOCH, Publish, SurveyResult, Wrote
from riverrun.errors import CheckpointError, RiverrunError, TransportError
from riverrun.state.shards import Shards
from riverrun.storage.checkpoint import StatePart

PUBLISH_TRIES = 5
PATIENCE = 64  # epochs: so long at most waits a checkpoint that failed
SECONDS = 30.0  # or so long

_SOMEBODY_ELSE = ("checkpoint.conflict", "checkpoint.gap", "checkpoint.stale")


@dataclass(slots=True)
class Attempt:
    """A checkpoint that is being written."""

    id: int
    number: int
    epoch: int
    position: int
    shards: Shards
    members: tuple[int, ...]
    wanted: bool
    """Whether somebody asked for it."""
    parts: dict[int, StatePart] = field(default_factory=dict)
    publishing: Publish | None = None
    tries: int = 0


class Saver:
    """Follows the checkpoints of a run. Where `number` is 0, recovery starts from nothing at `epoch`."""

    def __init__(
        self,
        *,
        every: int | timedelta | None = None,
        number: int = 0,
        epoch: int = 0,
        position: int = 0,
        top: int = 0,
        owner: int = 0,
        base: int | None = None,
    ) -> None:
        """`base` is the newest checkpoint, which covers the log up to `position`, where that is not `number`."""
        self.every = every
        self.number = number
        self.epoch = epoch
        self.attempt: Attempt | None = None
        self.wanted = False
        self.failures = 0
        self.error: RiverrunError | None = None
        self.unsure = False
        """Whether somebody else may have published here."""
        self.surveying = False
        self.now: float | None = None
        self._published: float | None = None
        self._base = number if base is None else base
        self._covered = position
        self._top = max(top, number)  # torn manifests have numbers too
        self._owner = owner
        self._ids = 0
        self._last_epoch = epoch
        self._last_time: float | None = None
        self._not_before = 0
        self._again: float | None = None  # when the one that failed is tried again

    def is_due(self, completed: int, now: float | None) -> bool:
        """Whether a checkpoint should be announced at this boundary."""
        if self.attempt is not None or self.surveying:
            return False
        if self.wanted:
            return True
        if self.every is None or completed <= self.epoch:
            return False
        if self._again is not None and now is not None and now >= self._again:
            return True
        if completed < self._not_before:
            return False
        if isinstance(self.every, int):
            return completed - self._last_epoch >= self.every
        if now is None:
            return False
        if self._last_time is None:
            self._last_time = now
        return now - self._last_time >= self.every.total_seconds()

    def clock(self, now: float) -> None:
        """What time it is, in seconds."""
        self.now = now
        if self._published is None:
            self._published = now

    @property
    def behind(self) -> float | None:
        """Seconds since the last one was published here, or since the beginning."""
        if self.now is None or self._published is None:
            return None
        return self.now - self._published

    def covers(self, position: int) -> bool:
        """Whether the log up to a position is at least what the base covers (law 3)."""
        return position >= self._covered

    def announce(
        self,
        epoch: int,
        position: int,
        shards: Shards,
        members: tuple[int, ...],
        now: float | None,
    ) -> Attempt:
        """Begin an attempt at this boundary."""
        assert self.attempt is None
        self._ids += 1
        self.attempt = Attempt(
            self._ids, self._top + 1, epoch, position, shards, members, self.wanted
        )
        self._last_epoch, self._last_time = epoch, now
        self._again = None
        self.wanted = False
        return self.attempt

    def wrote(self, sender: int, message: Wrote, about: Mapping[str, Any]) -> Publish | None:
        """A part has come, or could not be written; what to publish when it was the last."""
        attempt = self.attempt
        if attempt is None or message.attempt != attempt.id or sender not in attempt.members:
            return None
        if attempt.publishing is not None:
            return None
        if message.part is None:
            assert message.error is not None
            self._failed(message.error)
            return None
        if message.part.base != self._base:
            self.unsure = True
            self._failed(_overtaken(attempt.number))
            return None
        attempt.parts[sender] = message.part
        if len(attempt.parts) < len(attempt.members):
            return None
        attempt.publishing = Publish(
            attempt.id,
            attempt.number,
            tuple(attempt.parts[member] for member in attempt.members),
            about,
        )
        return attempt.publishing

    def published(self, instruction: Publish) -> bool:
        """The manifest is there; whether it is that of the attempt under way."""
        attempt = self.attempt
        if attempt is None or attempt.id != instruction.attempt:
            # It was given up, and came about after all.
            self.unsure = True
            return False
        self.number = self._base = self._top = attempt.number
        self.epoch, self._covered = attempt.epoch, attempt.position
        self.attempt = self.error = None
        self.failures = 0
        self._not_before, self._published = 0, self.now
        return True

    def not_published(self, instruction: Publish, error: RiverrunError) -> Publish | None:
        """What to try again; None when the attempt is given up."""
        attempt = self.attempt
        if attempt is None or attempt.id != instruction.attempt:
            self.unsure = True
            return None
        attempt.tries += 1
        if isinstance(error, TransportError):
            if attempt.tries < PUBLISH_TRIES:
                return instruction
            self.unsure = True  # the answer may have been lost
        self._failed(error)
        return None

    def abort(self) -> None:
        """Give the attempt up, through no fault of its own."""
        attempt, self.attempt = self.attempt, None
        if attempt is None:
            return
        self.wanted |= attempt.wanted
        self._last_epoch = self.epoch
        if attempt.publishing is not None:
            self.unsure = True

    def lost(self, member: int) -> None:
        """A worker is gone: the attempt is too, unless its part is there."""
        attempt = self.attempt
        if attempt and member in attempt.members and member not in attempt.parts:
            self.abort()

    def found(
        self, found: SurveyResult, reported: int, *, of_use: bool = True
    ) -> CheckpointError | None:
        """Somebody has published; an error when that was somebody who came after us.

        What an owner before us has published is gone back to if it is `of_use`: another program's is not.
        """
        self.surveying = self.unsure = False
        self._top = max(self._top, found.top)
        if found.number == 0:
            return None
        owner = int(found.about.get("owner", -1))
        if owner > self._owner:
            return taken_over(f"checkpoint {found.number}")
        self._base = found.number
        self._covered = int(found.about["position"])
        if of_use and self.epoch <= int(found.about["epoch"]) <= reported:
            self.number, self.epoch = found.number, int(found.about["epoch"])
        return None

    def forget(self) -> None:
        """There is no checkpoint, and no storage that had one."""
        self.number = self._base = self._top = self._covered = 0
        self.epoch = NO_EPOCH

    def not_surveyed(self, completed: int, error: RiverrunError) -> None:
        """The storage did not answer; it is asked again before the next attempt."""
        self.surveying = self.wanted = False
        self._wait(completed, error)

    def _wait(self, epoch: int, error: RiverrunError) -> None:
        self.error = error
        self.failures += 1
        self._last_epoch = self.epoch
        self._not_before = epoch + min(1 << min(self.failures, 16), PATIENCE)
        if self.now is not None:
            self._again = self.now + min(0.5 * (1 << min(self.failures, 16)), SECONDS)

    @property
    def is_tried_again(self) -> bool:
        """Whether a checkpoint that somebody asked for failed at one of another owner, and comes after a survey.

        An owner before us meets ours and ends at its own survey, so a checkpoint is not overtaken for ever.
        """
        return self.wanted and self.unsure

    def _failed(self, error: RiverrunError) -> None:
        attempt, self.attempt = self.attempt, None
        assert attempt is not None
        self._wait(attempt.epoch, error)
        if error.code in _SOMEBODY_ELSE:
            self.unsure = True
            self.wanted |= attempt.wanted


def taken_over(by: str) -> CheckpointError:
    """The error of a run whose path has another owner now."""
    return CheckpointError(
        "checkpoint.taken_over",
        f"cannot go on: another run has taken over the checkpoint path; it wrote {by}",
        hint="one run at a time owns a checkpoint path; stop the other one, or give this one its own path",
        by=by,
    )


def _overtaken(number: int) -> CheckpointError:
    return CheckpointError(
        "checkpoint.stale",
        f"cannot publish checkpoint {number}: a part of it builds on a checkpoint that we did not publish",
        hint="it is tried again at a later epoch",
        number=number,
    )
