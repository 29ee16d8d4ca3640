"""Checkpointing: which checkpoint is published, which is being written, and when the next one is due.

The coordinator's part of a checkpoint, sans I/O. At a boundary between epochs the coordinator *announces* a checkpoint:
an *attempt* begins, every worker writes its part from the state it has pinned at the boundary, and when all parts are
written the storage publishes the manifest. Epochs go on meanwhile. Laws:

- **One boundary.** An attempt publishes only parts that were written for this attempt, one from each worker that owned
  shards at the boundary. So parts name their attempt, and an attempt ends when it fails, when a worker that has not
  written its part is lost, or when the run goes back before the epoch of the attempt.
- **Outlives an execution.** An attempt survives a new execution that begins at or after the epoch of the attempt: all
  workers had completed the boundary, from input in the log, so what the boundary holds does not depend on the
  execution.
- **Covers no less.** A checkpoint with a greater number covers at least as much of the log. An attempt starts from a
  *base*, the newest checkpoint that the coordinator knows, which covers no more of the log than the attempt. Parts that
  were written on another base are not published, and publishing itself refuses them. So whoever decides late which log
  records the retained checkpoints need never deletes too many. (An older checkpoint that a run went back to is
  published once more, and covers less than the damaged ones before it: the *going back* law of `storage.log` has why.)
- **Never in the way.** A write that fails is tried again at a later boundary or some seconds later, whichever is first,
  and processing goes on. Users see it by `failures`, by the distance between `epoch` and the present, and by `behind`.
  So after an outage of the storage the checkpoint comes about even if no further epoch is submitted.

>>> saver = CheckpointSaver(every=10)
>>> saver.is_due(completed=9, now=0.0), saver.is_due(completed=10, now=0.0)
(False, True)

When somebody else has published a checkpoint at the path, the coordinator has the storage survey the path before the
next attempt (`take_survey`). If that checkpoint is by an owner before us, who may have been about to publish when we
took the path over, only the numbers change, and a checkpoint that a user asked for is tried again (`is_tried_again`).
If it is by an owner after us, the path was taken over, and the run ends.
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
RETRY_EPOCHS = 64  # a checkpoint that failed is tried again after so many epochs at most
RETRY_SECONDS = 30.0  # or after so many seconds at most

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
    """Whether a user, or the coordinator for a change of members, asked for it."""
    parts: dict[int, StatePart] = field(default_factory=dict)
    publishing: Publish | None = None
    tries: int = 0


class CheckpointSaver:
    """Follows the checkpoints of a run.

    `number` and `epoch` are those of the checkpoint that recovery goes back to; where `number` is 0, recovery starts
    from nothing at `epoch`.
    """

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
        """`base` is the newest checkpoint at the path, by default `number`; it covers the log up to `position`.

        `top` is the greatest number that a manifest at the path has, a torn one included.
        """
        self.every = every
        self.number = number
        self.epoch = epoch
        self.attempt: Attempt | None = None
        self.wanted = False
        self.failures = 0
        self.error: RiverrunError | None = None
        self.unsure = False
        """Whether somebody else may have published a checkpoint at the path."""
        self.surveying = False
        self.now: float | None = None
        self._published_at: float | None = None
        self._base = number if base is None else base
        self._covered = position
        self._top = max(top, number)  # torn manifests have numbers too
        self._owner = owner
        self._ids = 0
        self._last_epoch = epoch
        self._last_time: float | None = None
        self._retry_epoch = 0  # a checkpoint that failed is tried again from this epoch on,
        self._retry_at: float | None = None  # or from this time on

    def is_due(self, completed: int, now: float | None) -> bool:
        """Whether a checkpoint should be announced at this boundary."""
        if self.attempt is not None or self.surveying:
            return False
        if self.wanted:
            return True
        if self.every is None or completed <= self.epoch:
            return False
        if self._retry_at is not None and now is not None and now >= self._retry_at:
            return True
        if completed < self._retry_epoch:
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
        if self._published_at is None:
            self._published_at = now

    @property
    def behind(self) -> float | None:
        """Seconds since this run published its last checkpoint, or since it began."""
        if self.now is None or self._published_at is None:
            return None
        return self.now - self._published_at

    def covers(self, position: int) -> bool:
        """Whether the log up to a position is at least what the base covers (*covers no less*)."""
        return position >= self._covered

    def is_at(self, epoch: int) -> bool:
        """Whether a checkpoint of this boundary is being written, or may be soon: the path is surveyed first."""
        return self.surveying or (self.attempt is not None and self.attempt.epoch == epoch)

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
        self._retry_at = None
        self.wanted = False
        return self.attempt

    def wrote(self, sender: int, message: Wrote, about: Mapping[str, Any]) -> Publish | None:
        """A worker has written its part, or could not; the instruction to publish, when it was the last part."""
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
        """The storage has published a manifest; whether it is that of the attempt under way."""
        attempt = self.attempt
        if attempt is None or attempt.id != instruction.attempt:
            # The attempt was given up, and its checkpoint came about after all.
            self.unsure = True
            return False
        self.number = self._base = self._top = attempt.number
        self.epoch, self._covered = attempt.epoch, attempt.position
        self.attempt = self.error = None
        self.failures = 0
        self._retry_epoch, self._published_at = 0, self.now
        return True

    def not_published(self, instruction: Publish, error: RiverrunError) -> Publish | None:
        """The storage could not publish; the instruction to try again, None when the attempt is given up."""
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
        """Give the attempt up though nothing of it failed; if it was asked for, another one is due at once."""
        attempt, self.attempt = self.attempt, None
        if attempt is None:
            return
        self.wanted |= attempt.wanted
        self._last_epoch = self.epoch
        if attempt.publishing is not None:
            self.unsure = True

    def lost(self, member: int) -> None:
        """A worker is lost: give the attempt up, unless the part of that worker is written."""
        attempt = self.attempt
        if attempt and member in attempt.members and member not in attempt.parts:
            self.abort()

    def take_survey(
        self, survey: SurveyResult, reported: int, *, of_use: bool = True
    ) -> CheckpointError | None:
        """The storage has surveyed the path; an error when an owner after us has published there.

        A checkpoint that an owner before us has published is the one to go back to from now on, if it is `of_use`: one
        of another program is not.
        """
        self.surveying = self.unsure = False
        self._top = max(self._top, survey.top)
        if survey.number == 0:
            return None
        owner = int(survey.about.get("owner", -1))
        if owner > self._owner:
            return taken_over(f"checkpoint {survey.number}")
        self._base = survey.number
        self._covered = int(survey.about["position"])
        if of_use and self.epoch <= int(survey.about["epoch"]) <= reported:
            self.number, self.epoch = survey.number, int(survey.about["epoch"])
        return None

    def forget(self) -> None:
        """From now on there is no checkpoint to go back to, and no storage that had one."""
        self.number = self._base = self._top = self._covered = 0
        self.epoch = NO_EPOCH

    def not_surveyed(self, completed: int, error: RiverrunError) -> None:
        """The storage could not survey the path; it is asked again before the next attempt."""
        self.surveying = self.wanted = False
        self._wait(completed, error)

    def _wait(self, epoch: int, error: RiverrunError) -> None:
        self.error = error
        self.failures += 1
        self._last_epoch = self.epoch
        self._retry_epoch = epoch + min(1 << min(self.failures, 16), RETRY_EPOCHS)
        if self.now is not None:
            self._retry_at = self.now + min(0.5 * (1 << min(self.failures, 16)), RETRY_SECONDS)

    @property
    def is_tried_again(self) -> bool:
        """Whether a checkpoint that was asked for failed at a checkpoint of another owner, and is due after a survey.

        An owner before us meets our checkpoints, surveys the path itself and ends. So ours are not overtaken for ever.
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
