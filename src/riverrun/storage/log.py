"""The log of a run: the input of each epoch, written before the epoch is worked on.

A log is a sequence of records, one file each, named by its position (`records`). The coordinator appends them, and
`takeover` reads them when the next run begins at the path. A record is created and never changed: `Storage.create`
lets one caller have a position, and the next position is used only when this one is known to be there. There are three
kinds of records:

- ``opened``: a run owns the path from here on; with the promises that were made at its start;
- ``epoch``: the input of an epoch, an Arrow batch for each input;
- ``refused``: the epoch at that position failed, and its rows do not count.

Laws:

- **In order.** From the position at which the oldest checkpoint ends, or from 0, records stand without a gap.
- **Whole or refused.** A damaged record is an error that names its file, except a torn record at the very end: the next
  owner leaves that one out with a warning, and declares it void. A record that has its full length was written whole,
  and its epoch may have been acknowledged, so it is never left out.
- **Repeatable.** Appending the same record again does nothing, so an append whose answer was lost is just repeated. A
  different record at the position means that the path has another owner.
- **One owner.** The run whose ``opened`` record is the last one owns the path. A former owner would append its next
  record where the ``opened`` record of its successor stands, and is refused. ``opened`` records are never deleted:
  otherwise a position would become free for a former owner that has slept for long. There is one for each start of a
  run. A run that takes over also looks at the newest checkpoint after it has created its record. If that checkpoint
  covers the position of the record, the position had been used and collected, and the end of the log is elsewhere. (The
  checkpoint was published before that collection, and later checkpoints cover no less.)
- **Going back.** The log is kept from the position at which the oldest checkpoint ends: whoever collects
  (`runtime.storage_calls`) deletes the manifests of older checkpoints first, and records then. So all epochs since any
  listed checkpoint can be done again, also when newer checkpoints are damaged. A checkpoint that a run goes back to is
  published once more, as the newest one, though the damaged ones cover more of the log. That is safe: the law one
  owner, and collections that are carried out late, need only a newest checkpoint that covers every record which anybody
  has decided to delete. Every listed checkpoint does.
- **Promised at the start.** Promises that later runs rely on are in the ``opened`` record, so they are durable before
  the first epoch is: whether the log is kept whole (``kept``: the first epoch that it has), and what the program and
  its inputs are (``fingerprint``). The last ``opened`` record counts before anything that a checkpoint says.

>>> from riverrun.storage import Checkpoints
>>> from riverrun.storage.store import open_storage
>>> from riverrun.storage.takeover import take_over
>>> storage = open_storage("memory:///")
>>> log = Log(storage)
>>> opening = take_over(Checkpoints(storage), log, identity="a")
>>> rows = pa.record_batch({"n": [1, 2]})
>>> log.append(1, {"kind": "epoch", "epoch": 0, "owner": opening.owner}, {"numbers": rows})
>>> again = take_over(Checkpoints(storage), Log(storage), identity="b")
>>> again.owner, again.next, [pending.inputs["numbers"].num_rows for pending in again.pending]
(2, 3, [2])
>>> log.append(2, {"kind": "epoch", "epoch": 1, "owner": opening.owner}, {})
Traceback (most recent call last):
    ...
riverrun.errors.CheckpointError: cannot append record 2 to the log: another run has written there
Hint: one run at a time owns a checkpoint path; stop the other one, or give this one its own path

Cost: one put for each record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from riverrun.errors import CheckpointError
from riverrun.state.soundness import read_json
from riverrun.storage.records import (
    _BODY,
    _LENGTH,
    _OLD,
    _PARCEL,
    _SUM,
    LOG,
    MAGIC,
    PARCELS,
    Record,
    _check_header,
    _corrupt,
    decode_record,
    encode_record,
    record_name,
)
from riverrun.storage.store import Storage

_NAME = re.compile(rf"{LOG}/(\d{{16}})\.record")
_UNFINISHED = re.compile(rf"{LOG}/(\d{{16}})\.record#\d+")
_HEAD = 1 << 14  # a header is rarely longer


class Log:
    """The log in a storage."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._opened: set[int] = set()  # positions of `opened` records
        self._others: set[int] = set()  # positions of records of another kind, as far as known
        self._unreadable: set[int] = set()  # positions of damaged records, which stay
        self._files: dict[int, list[str]] = {}  # parcels with rows of an epoch, by position
        self._owner: int | None = None
        self.acknowledged = 0
        """Epochs below this one were acknowledged, as the records say that were appended here."""

    def append(
        self, position: int, header: Mapping[str, Any], inputs: Mapping[str, pa.RecordBatch]
    ) -> None:
        """Append a record at the next position; safe to repeat."""
        data = encode_record(Record(header, inputs))
        if not self.create(position, data):
            raise CheckpointError(
                "log.taken",
                f"cannot append record {position} to the log: another run has written there",
                hint="one run at a time owns a checkpoint path; stop the other one, or give this one its own path",
                position=position,
            )
        self._note(position, header)
        self.acknowledged = max(self.acknowledged, int(header.get("reported", 0)))

    def _note(self, position: int, header: Mapping[str, Any]) -> None:
        (self._opened if header["kind"] == "opened" else self._others).add(position)
        files = [
            parcel["file"]
            for listed in header.get("parcels", {}).values()
            for parcel in listed
            if parcel["file"]
        ]
        if files:
            self._files[position] = files

    def create(self, position: int, data: bytes) -> bool:
        """Put these bytes at a position; False when other bytes are there."""
        name = record_name(position)
        if self.storage.create(name, data):
            return True
        return bool(self.storage.get(name).to_pybytes() == data)

    def positions(self) -> list[int]:
        """The positions of all records, in order."""
        matches = map(_NAME.fullmatch, self.storage.names(LOG))
        return [int(match[1]) for match in matches if match]

    def read(self, position: int) -> Record:
        """The record at a position."""
        name = record_name(position)
        record = decode_record(name, self.storage.get(name))
        self._note(position, record.header)
        return record

    def header(self, position: int, size: int) -> Mapping[str, Any]:
        """The header of the record at a position, without its rows. `size` is that of the file; no checksum is looked
        at."""
        name = record_name(position)
        data = self.storage.head(name, min(size, _HEAD))
        start = (len(_OLD) + _SUM if data.startswith(_OLD) else _BODY) + _LENGTH
        length = int.from_bytes(data[start - _LENGTH : start], "little")
        if not data.startswith((MAGIC, _OLD)) or start + length > size:
            raise _corrupt(name, "it does not begin like one, or ends too early")
        if start + length > len(data):
            data = self.storage.head(name, start + length)
        try:
            return _check_header(read_json(data[start : start + length])["header"])
        except (ValueError, LookupError, TypeError) as error:
            raise _corrupt(name, f"it has another shape: {error}") from error

    def collect(self, floor: int) -> list[int]:
        """Delete the records below a position, except ``opened`` records (the law one owner). An owner that has a
        successor deletes nothing (the *someone runs* law of `takeover`). Returns the deleted positions."""
        gone: list[int] = []
        positions = self.positions()
        if self.has_successor(positions):
            return gone
        for position in positions:
            if position >= floor:
                break
            if not any(
                position in known for known in (self._opened, self._others, self._unreadable)
            ):
                try:
                    self.read(position)
                except CheckpointError as error:
                    if error.code != "log.corrupt":
                        raise
                    self._unreadable.add(position)  # it may be an `opened` record
            if position not in self._opened and position not in self._unreadable:
                gone.append(position)
        # Records first: the files that a record names are there as long as the record is.
        self.storage.delete(map(record_name, gone))
        self.storage.delete([file for at in gone for file in self._files.pop(at, ())])
        # Unfinished files of killed owners: the living owner is past these positions.
        left = map(_UNFINISHED.fullmatch, self.storage.unfinished(LOG))
        self.storage.delete([match[0] for match in left if match and int(match[1]) < floor])
        self._others.difference_update(gone)
        return gone

    def has_successor(self, positions: Sequence[int] | None = None) -> bool:
        """Whether another run has taken the path over since the run that uses this log did."""
        ours = self._owner
        if ours is None:
            return False
        if positions is None:
            positions = self.positions()
        # A record that cannot be read is being written, by this run or by the other.
        return any(self.is_opened(position) for position in positions if position > ours)

    def own(self, position: int) -> None:
        """Note that the run that uses this log owns the path, by its ``opened`` record at a position."""
        self._owner = position
        self._opened.add(position)

    def is_opened(self, position: int) -> bool:
        """Whether the record at a position is an ``opened`` record."""
        if position not in self._opened and position not in self._others:
            with suppress(CheckpointError):
                self.read(position)
        return position in self._opened

    def sweep(self, owner: int) -> list[str]:
        """Delete parcels that were handed in to earlier owners than this one, and that no record names; return their
        names."""
        left = [
            name
            for name in (*self.storage.names(PARCELS), *self.storage.unfinished(PARCELS))
            if (match := _PARCEL.fullmatch(name)) and int(match[1]) < owner
        ]
        if left:
            for position in self.positions():
                if position not in self._opened:
                    self.read(position)
            named = {file for files in list(self._files.values()) for file in files}
            left = [name for name in left if name not in named]
            self.storage.delete(left)
        return left


def is_logs_own(name: str) -> bool:
    """Whether a file may be a leftover of a log, by its name: a parcel, or a record that was not finished."""
    return any(pattern.fullmatch(name) is not None for pattern in (_PARCEL, _UNFINISHED))
