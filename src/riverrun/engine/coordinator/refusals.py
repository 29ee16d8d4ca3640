"""Refusals: which epochs may be refused, who keeps the number of a refused epoch, and what the log still has to say.

A part of the coordinator, sans I/O. An epoch is refused when its work raises an error, or when a user interrupts it.
`begin` gives the record of the refusal; when the log has the record, `end` gives the news for the client. Laws:

- **Acknowledged epochs stay.** An epoch is acknowledged when it is reported; a note says so for the next owner of the
  path (`Acknowledge`). An epoch of the log may fail when it is done again. An epoch that was never acknowledged is then
  refused, as the owner that logged it would have refused it. If the epoch was acknowledged, or may have been, the run
  ends with the error. With `skip_failing` the run refuses such an epoch too, unless it has reported the epoch itself.
- **Numbers without gaps.** The epoch that is submitted next gets the number of a refused epoch. A refused epoch keeps
  its number, and is done without rows, where later epochs were submitted already, where it still waited behind others,
  where an owner before us may have acknowledged it, or where the client knows epochs by their numbers (`keep_numbers`).
- **Refused once.** A refused epoch has no rows. If it fails all the same, nothing is left to refuse: the run ends.

In the example nobody owned the path before, and epoch 0 was reported. Epoch 1 is refused at boundary 1, and the epoch
that is submitted next gets its number.

>>> refusals = Refusals(None, inherited=0)
>>> [refusals.kind_of_work(epoch, reported=1, is_refused=False).name for epoch in (0, 1)]
['ACKNOWLEDGED', 'OPEN']
>>> error = RiverrunError("operator.raised", "it fails", hint="")
>>> refusals.begin(1, error, position=7, boundary=1, reported=1)
{'kind': 'refused', 'epoch': 1, 'refused': 7, 'reported': 1}
>>> 1 in refusals, len(refusals)
(True, 1)
>>> refused, number_is_free = refusals.end(1, submitted=2)
>>> refused.epoch, number_is_free, len(refusals)
(1, True, 0)

Cost: constant time for each refusal.
"""

from __future__ import annotations

from typing import Any

from riverrun.engine.coordinator.failures import not_repeatable
from riverrun.engine.coordinator.phases import Work
from riverrun.engine.coordinator.resume import not_rebuilt
from riverrun.engine.messages import Refused
from riverrun.errors import CheckpointError, RiverrunError
from riverrun.storage.takeover import Opening


class Refusals:
    """The refusals that are on their way to the log, and the rules of refusing."""

    def __init__(
        self,
        opening: Opening | None,
        inherited: int,
        *,
        skip_failing: bool = False,
        keep_numbers: bool = False,
    ) -> None:
        """Epochs below `inherited` were logged by owners before us."""
        self._inherited = inherited
        self.acknowledged_before = 0 if opening is None else opening.reported
        """Epochs below may have been acknowledged by owners before us."""
        builds_anew = opening is not None and opening.epoch == opening.done - 1
        self._rebuilt = opening.epoch if opening is not None and builds_anew else None
        self._skip_failing = skip_failing
        self._keep_numbers = keep_numbers
        self._under_way: dict[int, tuple[RiverrunError, bool]] = {}
        """Epochs whose refusals are on their way to the log: why, and whether they keep their numbers."""

    def __len__(self) -> int:
        """How many refusals are on their way to the log."""
        return len(self._under_way)

    def __contains__(self, epoch: int) -> bool:
        """Whether the refusal of an epoch is on its way to the log."""
        return epoch in self._under_way

    def acknowledged(self, reported: int) -> int:
        """Epochs below this one were acknowledged by us, those below `reported`, or may have been by earlier owners."""
        return max(reported, self.acknowledged_before)

    def kind_of_work(self, epoch: int, reported: int, *, is_refused: bool) -> Work:
        """Whether an epoch that is not complete may be refused (*acknowledged epochs stay*)."""
        if epoch == self._rebuilt:
            return Work.REBUILT
        if epoch < reported or is_refused:
            return Work.ACKNOWLEDGED
        if epoch < self.acknowledged_before:
            return Work.SKIPPABLE if self._skip_failing else Work.ACKNOWLEDGED
        return Work.OPEN

    def begin(
        self, epoch: int, error: RiverrunError, position: int, boundary: int, reported: int
    ) -> dict[str, Any]:
        """Refuse an epoch, whose record is at `position`, while the run is at a boundary; return the header of the
        record that says so."""
        # At most one number in a row goes to another epoch: otherwise the log would not tell which.
        keeps_number = self._is_known(epoch) or epoch > max(boundary, reported)
        self._under_way[epoch] = error, keeps_number
        header = {
            "kind": "refused", "epoch": epoch, "refused": position,
            "reported": self.acknowledged(reported),
        }  # fmt: skip
        return {**header, "keeps_number": True} if keeps_number else header

    def end(self, epoch: int, submitted: int) -> tuple[Refused, bool]:
        """The log has the refusal of an epoch. Return the news for the client, and whether the number of the epoch goes
        to the next one (*numbers without gaps*); the epochs below `submitted` were submitted."""
        error, keeps_number = self._under_way.pop(epoch)
        refused = Refused(epoch, error, epoch < self._inherited, epoch < self.acknowledged_before)
        number_is_free = submitted == epoch + 1 and not keeps_number
        if number_is_free:
            self._inherited = min(self._inherited, epoch)
        return refused, number_is_free

    def _is_known(self, epoch: int) -> bool:
        """Whether somebody may know an epoch by its number, so that no other epoch may get the number."""
        if (
            epoch < self._inherited
        ):  # nobody knows of an inherited epoch that was never acknowledged
            return epoch < self.acknowledged_before
        return self._keep_numbers


def ending_error(work: Work, epoch: int | None, error: RiverrunError) -> RiverrunError:
    """The error that ends a run when work fails that cannot be refused."""
    if epoch is None or work not in (Work.REBUILT, Work.ACKNOWLEDGED):
        return error
    if work is Work.REBUILT:
        return not_rebuilt(error)
    # The error of a damaged file says so itself: the rows would be missing the next time too.
    return error if isinstance(error, CheckpointError) else not_repeatable(epoch, error)
