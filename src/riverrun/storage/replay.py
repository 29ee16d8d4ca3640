"""Replay: the epochs of the log from a checkpoint on, as they are to be done again.

`takeover` reads the log into a `Replay` before and after a run owns its path. Laws:

- **Deterministic replay.** The epochs are in order, each with the number that it had. A refused epoch is left out if
  the next epoch has its number; otherwise it stays, without rows.
- **Bounded.** Records are read one after the other, and at most `keep` bytes of rows are brought along. Rows of the
  other epochs are in the log only, as `PendingEpoch.dropped` says.
- **Torn at the end.** A torn record is left out if it is the last one of the log, and belongs to `void` then; or if the
  owner who wrote the next whole record has declared it void. Any other damage is refused.
- **Rows, not programs.** An input for which an epoch that is still to be done has rows must be what it was when the
  rows were logged (`check_inputs`).

Cost: each record is read once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from riverrun.errors import CheckpointError
from riverrun.storage.log import Log
from riverrun.storage.records import Record

KEEP = 256 << 20  # bytes of rows that are brought along

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PendingEpoch:
    """An epoch to be done again; a refused one has no rows."""

    position: int
    inputs: Mapping[str, pa.RecordBatch]
    refused: bool = False
    header: Mapping[str, Any] = field(default_factory=dict)
    dropped: bool = False
    """Whether the rows are in the log only (the law bounded)."""
    names: tuple[str, ...] = ()
    """The inputs that a dropped epoch has rows of."""


class Replay:
    """The epochs of the log from a checkpoint on (the law deterministic replay), and as many of their rows as fit (the
    law bounded)."""

    def __init__(
        self,
        epoch: int = 0,
        start: int = 0,
        program: Mapping[str, Any] | None = None,
        *,
        keep: int | None = None,
        compared: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin at an epoch, and at the position of its record; `program` is the fingerprint of the program that wrote
        it. With `compared`, records of a program with another fingerprint are refused."""
        self.epoch = epoch
        self.start = start
        self.position = start
        """The first record that was not read."""
        self.void: list[int] = []
        """Torn records before `position`, which the next owner declares void."""
        self._program = program or {}
        """The fingerprint of the program that logged the records that are read now."""
        self._compared = compared
        self._programs: dict[int, Mapping[str, Any]] = {}
        self.pending: list[PendingEpoch] = []
        self.reported = epoch
        self.whole_from: int | None = None
        """The log was promised to be kept whole from this epoch on."""
        self.owner = -1
        """The position of the last ``opened`` record."""
        self._room = KEEP if keep is None else keep

    def read_on(self, log: Log, last: int) -> None:
        """Read the records up to position `last`."""
        while self.position <= last:
            self._read(log, last)
            self.position += 1

    def _read(self, log: Log, last: int) -> None:
        """Read one record. A torn one is left out if it is the last, or if the owner behind it has declared it void."""
        position = self.position
        try:
            record = log.read(position)
        except CheckpointError as error:
            if error.code == "checkpoint.missing":
                raise log_gap(position, last) from error
            if error.code != "log.corrupt":
                raise
            following = _next_whole(log, position, last)
            if following is None:
                self._leave_out(error, last)
            elif position not in following.header.get("void", ()):
                raise
            return
        if record.header["kind"] == "opened":
            self._program = record.header.get("fingerprint", {})
            if self._compared is not None:
                check_fingerprint(self._program, self._compared, f"the log from {position} on")
        self.take(position, record)
        self.void = []

    def _leave_out(self, error: CheckpointError, last: int) -> None:
        """The log ends with a damaged record: leave it out if it is torn, as after a power cut."""
        if not error.fields.get("torn"):
            if self.position < last:
                raise error
            raise _last_damaged(error) from error
        _LOG.warning("the log ends with a torn record, which is left out: %s", error.message)
        self.void = [*self.void, self.position]

    def take(self, position: int, record: Record) -> None:
        """Take a record in."""
        header = record.header
        if header["kind"] == "epoch":
            if header["epoch"] == self.epoch + len(self.pending) - 1:
                self.close()
            expected = self.epoch + len(self.pending)
            if header["epoch"] != expected:
                raise CheckpointError(
                    "log.order",
                    f"cannot replay record {position} of the log: it is epoch {header['epoch']}, "
                    f"and epoch {expected} comes next",
                    hint="files of another run were put here, or removed; use another path",
                    position=position,
                )
            self.pending.append(
                self._limit_rows(PendingEpoch(position, record.inputs, header=header))
            )
            self._programs[position] = self._program
            self.reported = max(self.reported, int(header.get("reported", 0)))
        elif header["kind"] == "opened":
            self.owner = position
            self.whole_from = header.get("kept", self.whole_from)
        elif header["kind"] == "refused" and header["refused"] >= self.start:
            at = header["epoch"] - self.epoch
            self._room += _size(self.pending[at].inputs)
            refused = PendingEpoch(self.pending[at].position, {}, refused=True, header=header)
            self.pending[at] = refused
            self.reported = max(self.reported, int(header.get("reported", 0)))

    def program_of(self, pending: PendingEpoch) -> Mapping[str, Any]:
        """The fingerprint of the program that logged an epoch."""
        return self._programs[pending.position]

    def _limit_rows(self, pending: PendingEpoch) -> PendingEpoch:
        """The epoch with its rows where there is room for them, otherwise as a dropped one."""
        size = _size(pending.inputs)
        if size <= self._room:
            self._room -= size
            return pending
        return replace(pending, inputs={}, dropped=True, names=tuple(pending.inputs))

    def check_inputs(self, fingerprint: Mapping[str, Any], done: int) -> None:
        """Refuse a program in which an input with rows is not what it was (the law rows, not programs). Epochs below
        `done` are in a checkpoint: there, rows of inputs that are gone are left out."""
        for at, pending in enumerate(self.pending):
            program, parcels = self._programs[pending.position], pending.header.get("parcels", {})
            if not program or pending.refused:
                continue
            names = {*pending.inputs, *pending.names, *parcels}
            for name in sorted(names):
                was, now = program.get(name), fingerprint.get(name)
                if was != now and (now is not None or self.epoch + at >= done):
                    raise _other_input(name, was, now)
            if not names <= fingerprint.keys():
                header = {**pending.header}
                header["parcels"] = {n: p for n, p in parcels.items() if n in fingerprint}
                inputs = {n: rows for n, rows in pending.inputs.items() if n in fingerprint}
                left = tuple(n for n in pending.names if n in fingerprint)
                self.pending[at] = replace(pending, inputs=inputs, header=header, names=left)

    def close(self) -> None:
        """Leave out a refused epoch that is the last one: its number is free. An epoch that was refused while later
        ones waited behind it keeps its number (`keeps_number`), and stays."""
        last = self.pending[-1] if self.pending else None
        if last is not None and last.refused and not last.header.get("keeps_number"):
            self.pending.pop()


def _next_whole(log: Log, position: int, last: int) -> Record | None:
    for later in range(position + 1, last + 1):
        try:
            return log.read(later)
        except CheckpointError as error:
            if error.code != "log.corrupt":
                raise
    return None


def _size(inputs: Mapping[str, pa.RecordBatch]) -> int:
    return sum(batch.nbytes for batch in inputs.values())


def check_fingerprint(theirs: Mapping[str, Any], ours: Mapping[str, Any], where: str) -> None:
    """Refuse a path that another program wrote to. Fingerprints are compared as JSON, the form they are stored in."""
    ours = json.loads(json.dumps(dict(ours)))
    differ = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
    if not differ:
        return
    said = "; ".join(
        f"{key!r} was {theirs.get(key, 'not there')!r} and is {ours.get(key, 'not there')!r}"
        for key in differ
    )
    raise CheckpointError(
        "checkpoint.incompatible",
        f"cannot resume from {where}: it is of another program: {said}",
        hint="run the program that wrote it, or use another checkpoint path",
        differ=differ,
    )


def _other_input(name: str, was: str | None, now: str | None) -> CheckpointError:
    return CheckpointError(
        "checkpoint.incompatible",
        f"cannot resume: the log has rows for the input {name!r} that are still to be worked on, and it has changed"
        f"\n    was: {was or 'not there'}\n    is:  {now or 'not there'}",
        hint="run the program that wrote them up to its next checkpoint (run.checkpoint()), or use another path",
        differ=[name],
    )


def _last_damaged(error: CheckpointError) -> CheckpointError:
    """The error for a last record that is damaged otherwise than by a power cut."""
    return CheckpointError(
        "log.corrupt",
        f"{error.message}; it is the last record, and was written whole: its epoch may have been acknowledged",
        hint="put a copy of the file there; or delete the file, if its rows may be lost or can be inserted again: the "
        "log then ends with the record before",
        **error.fields,
    )


def log_gap(position: int, last: int) -> CheckpointError:
    """The error for a record that is missing, where there are later ones."""
    return CheckpointError(
        "log.gap",
        f"cannot replay the log: record {position} is missing, and there are records up to {last}",
        hint="records were removed by hand, or the checkpoint that covers them was",
        position=position,
    )
