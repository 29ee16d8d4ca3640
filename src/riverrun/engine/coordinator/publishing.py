"""Publishing: what the coordinator tells members, the storage and the client about checkpoints.

A part of the coordinator, sans I/O. `checkpointing` decides when a checkpoint is due and what becomes of an attempt;
this module sends the messages that follow from that, and knows what a checkpoint says of the program. Laws:

- **Said once.** Whoever asked for a checkpoint hears of it once: `Saved` with its number when it is published, or when
  the boundary has one already; `Saved` with the error when it cannot be written.
- **A checkpoint of its own.** A boundary has a checkpoint already only if this program wrote it. Where the run goes on
  from a checkpoint of another program, another one is published (`resume`).

>>> sent = []
>>> saver = CheckpointSaver()
>>> publisher = Publisher(saver, None, lambda to, message: sent.append(message))
>>> publisher.announce(Boundary(1, 5, 9, Shards.even(1), (1,)))
>>> sent
[Announce(execution=1, attempt=1, number=1, epoch=5)]

Cost: a message to each member for each checkpoint, and one to the storage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from riverrun.engine.coordinator.checkpointing import Attempt, CheckpointSaver
from riverrun.engine.messages import (
    CLIENT,
    NO_EPOCH,
    STORAGE,
    Announce,
    Collect,
    Publish,
    Published,
    Saved,
    Survey,
    SurveyResult,
    Wrote,
)
from riverrun.errors import CheckpointError, RiverrunError
from riverrun.state.shards import Shards
from riverrun.storage.takeover import Opening


@dataclass(frozen=True, slots=True)
class Boundary:
    """A boundary at which a checkpoint may be announced, and who has the states."""

    execution: int
    epoch: int
    position: int
    """The position in the log up to which the checkpoint covers the log."""
    shards: Shards
    members: tuple[int, ...]


class Publisher:
    """Carries out what the `CheckpointSaver` of a run decides."""

    def __init__(
        self,
        saver: CheckpointSaver,
        opening: Opening | None,
        send: Callable[[int, Any], None],
        *,
        retain: int = 2,
        fingerprint: Mapping[str, Any] | None = None,
        about: Mapping[str, Any] | None = None,
        lineage: Mapping[str, str] | None = None,
    ) -> None:
        self.application: Mapping[str, Any] = {} if opening is None else opening.application
        """What a checkpoint keeps for the application: JSON."""
        self._saver = saver
        self._opening = opening
        self._send = send
        self._retain = retain
        self._fingerprint = dict(fingerprint or {})
        self._program = dict(about or {})
        self._foreign = self._of_another_program()
        self._keeps_whole = opening is not None and opening.whole_from is not None
        if opening is not None and self._keeps_whole:
            self._program["kept"] = opening.whole_from
        if lineage is not None:
            self._program["lineage"] = lineage

    def _of_another_program(self) -> int:
        """The number of the checkpoint that the run goes on from if another program wrote it, otherwise 0."""
        if self._opening is None or not self._opening.about:
            return 0
        program = {"fingerprint": self._fingerprint, **self._program}
        same = all(self._opening.about.get(key) == word for key, word in program.items())
        return 0 if same else self._opening.number

    def announce(self, at: Boundary) -> None:
        """Begin a checkpoint at a boundary, or have the path surveyed first; a boundary that has one is enough."""
        saver = self._saver
        if saver.unsure:
            saver.surveying = True
            self._send(STORAGE, Survey())
        elif saver.epoch == at.epoch and saver.number and saver.number != self._foreign:
            saver.wanted = False
            self._send(CLIENT, Saved(saver.number, at.epoch))
        elif saver.covers(at.position):
            attempt = saver.announce(at.epoch, at.position, at.shards, at.members, saver.now)
            for member in at.members:
                self._send(member, Announce(at.execution, attempt.id, attempt.number, at.epoch))

    def wrote(
        self, sender: int, message: Wrote, offsets_before: Callable[[int], Mapping[str, Any]]
    ) -> Attempt | None:
        """A member has written its part, or could not: publish when it was the last part. Return the attempt if it
        failed by that. `offsets_before` says how far streams had come before an epoch."""
        attempt = self._saver.attempt
        if attempt is None:
            return None
        about = self._about(attempt, offsets_before(attempt.epoch))
        publish = self._saver.wrote(sender, message, about)
        if publish is not None:
            self._send(STORAGE, publish)
        return attempt if self._saver.attempt is None else None

    def published(self, publish: Publish, members: Sequence[int]) -> bool:
        """The storage has published a checkpoint; whether it is the one that was being written."""
        saver = self._saver
        if not saver.published(publish):
            return False
        self._send(CLIENT, Saved(saver.number, saver.epoch))
        for member in members:
            self._send(member, Published(saver.epoch))
        self._send(STORAGE, Collect(self._retain, self._keeps_whole))
        return True

    def not_published(self, publish: Publish, error: RiverrunError) -> Attempt | None:
        """The storage could not publish a checkpoint: try again. Return the attempt if it is given up."""
        attempt = self._saver.attempt
        again = self._saver.not_published(publish, error)
        if again is not None:
            self._send(STORAGE, again)
        return attempt if self._saver.attempt is None else None

    def not_saved(self, number: int, epoch: int) -> RiverrunError | None:
        """A checkpoint could not be written: tell the client why, and return that; None if it is tried again."""
        if self._saver.is_tried_again:
            return None
        self._send(CLIENT, Saved(number, epoch, self._saver.error))
        return self._saver.error

    def surveyed(self, survey: SurveyResult, reported: int) -> CheckpointError | None:
        """The storage has surveyed the path; the error that ends the run when the path has another owner."""
        of_use = survey.about.get("fingerprint") == self._fingerprint
        return self._saver.take_survey(survey, reported, of_use=of_use)

    def forget(self, members: Sequence[int]) -> None:
        """The checkpoint served to move shards, and nothing else: from now on there is none."""
        self._saver.forget()
        for member in members:
            self._send(member, Published(NO_EPOCH))

    def _about(self, attempt: Attempt, offsets: Mapping[str, Any]) -> dict[str, Any]:
        """What a checkpoint says of itself and of the program."""
        bounds = zip(attempt.shards.bounds, attempt.shards.owners, strict=False)
        return {
            **self._program,
            "epoch": attempt.epoch,
            "position": attempt.position,
            "owner": 0 if self._opening is None else self._opening.owner,
            "workers": len(attempt.members),
            "shards": [[f"{low:x}", owner] for low, owner in bounds],
            "fingerprint": self._fingerprint,
            "application": dict(self.application),
            "offsets": offsets,
        }

    def status(self, completed: int) -> dict[str, Any]:
        """Which checkpoint there is, and how far it is behind the boundary `completed`."""
        saver, attempt = self._saver, self._saver.attempt
        return {
            "number": saver.number,
            "epoch": saver.epoch,
            "lag": None if self._opening is None else completed - saver.epoch,
            "behind": None if self._opening is None else saver.behind,
            "writing": None if attempt is None else attempt.epoch,
            "failures": saver.failures,
            "error": None if saver.error is None else saver.error.message,
        }
