"""The input log: what a run was given and has in no checkpoint yet. `takeover` reads it when a run begins.

A log is a sequence of records, one file each, named by its position (`records`). A record is created and never changed:
`Storage.create` lets one caller have a position, and the next position is used only when this one is known to be there.
Three kinds:

- ``opened``: a run owns the path from here on; with what it was promised at its start;
- ``epoch``: the input of an epoch, an Arrow batch for each input;
- ``refused``: the epoch at that position failed, and its rows do not count.

Laws:

- **In order.** Records stand without a gap, from the first that is kept up to the last.
- **Whole or refused.** A damaged record is named and refused, except a torn one at the very end: the next owner
  declares that one void, with a warning. A record that has its full length was written whole, and its epoch may have
  been answered for.
- **Repeatable.** Appending the same record again does nothing: that is how a lost answer is found out. Somebody else's
  record at the position means that the path has another owner.
- **One owner.** The run whose ``opened`` record is last owns the path. An owner before it appends next where that
  record stands, and is refused. ``opened`` records are never deleted, since otherwise a position would become free
  again under somebody who has slept for long; there is one for each start of the run. And whoever takes over looks at
  the newest checkpoint once more: if that covers the position of the new record, the position had been used and
  collected, and the end of the log is elsewhere. (The checkpoint that covers it was published before, and later ones
  cover no less.)
- **Going back.** The log is kept from where the oldest checkpoint that is there ends: whoever collects
  (`runtime.storage_calls`) deletes the manifests of older ones first, and records then. So from every checkpoint that
  can be listed all epochs can be done again, also when newer ones are damaged. The one that was gone back to is
  published once more, as the newest, though it covers less of the log than the damaged ones: the one-owner law, and
  those who collect late, need only that it covers every record that anybody has decided to delete, and that holds for
  all that are listed.
- **Promised at the start.** What later runs at the path rely on, and a user says once, is in the ``opened`` record, so
  it is durable before the first epoch is: whether the log is kept whole (``kept``), and what the program and its inputs
  are (``fingerprint``). The last ``opened`` record counts; what a checkpoint says is older.

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
        self._opened: set[int] = set()  # positions below which nothing else is kept
        self._others: set[int] = set()  # positions that are known to hold another kind
        self._unreadable: set[int] = set()  # positions that are kept, whatever they hold
        self._files: dict[int, list[str]] = {}  # what the rows of an epoch are in besides
        self._owner: int | None = None
        self.acknowledged = 0
        """Epochs below were acknowledged, by the word of a record that was appended here."""

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
        """Put some bytes at a position; False when it has others."""
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
        """The header of the record at a position, a file of so many bytes, without its rows; unverified."""
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
        """Delete the records below a position, but those that say who owned the path ("One owner"); none by who is not
        the owner any more ("Someone runs")."""
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
                    self._unreadable.add(position)  # it cannot be told what it was
            if position not in self._opened and position not in self._unreadable:
                gone.append(position)
        # The records first: one that is there names files that are there.
        self.storage.delete(map(record_name, gone))
        self.storage.delete([file for at in gone for file in self._files.pop(at, ())])
        # What killed owners left: the one that lives is past these positions.
        left = map(_UNFINISHED.fullmatch, self.storage.unfinished(LOG))
        self.storage.delete([match[0] for match in left if match and int(match[1]) < floor])
        self._others.difference_update(gone)
        return gone

    def has_successor(self, positions: Sequence[int] | None = None) -> bool:
        """Whether somebody has taken the path over since whoever uses this did."""
        ours = self._owner
        if ours is None:
            return False
        if positions is None:
            positions = self.positions()
        # One that cannot be read is being written, by us or by the other.
        return any(self.is_opened(position) for position in positions if position > ours)

    def own(self, position: int) -> None:
        """Whoever uses this owns the path, by the record at a position."""
        self._owner = position
        self._opened.add(position)

    def is_opened(self, position: int) -> bool:
        """Whether the record at a position says that a run owns the path."""
        if position not in self._opened and position not in self._others:
            with suppress(CheckpointError):
                self.read(position)
        return position in self._opened

    def sweep(self, owner: int) -> list[str]:
        """Delete rows that were handed in to owners before this one, and that no record names."""
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
    """Whether a log makes files of such names that may be left over: rows handed in, and records cut short."""
    return any(pattern.fullmatch(name) is not None for pattern in (_PARCEL, _UNFINISHED))
