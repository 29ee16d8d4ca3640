"""The backlog: epochs that are to be done, or may have to be done again.

A part of the coordinator, sans I/O. An epoch enters when it is submitted, or found in the log at the
start, and leaves when no recovery can need it any more. Laws:

1. **Bounded.** Of epochs that were done, or come from the log, `keep` bytes of rows stay in memory; of
   the others the rows are *dropped*, and read from the log when they are needed (`Recall`). Nothing
   is dropped where there is no log. Of those that were recalled and not done, one at a time is here:
   when the run goes back meanwhile, and another one is recalled, its rows are dropped again.
2. **Once.** How far streams have come is that of all epochs that were not refused, those that have left
   included.

>>> import pyarrow as pa
>>> backlog = Backlog(0, keep=20)
>>> for epoch in range(2):
...     backlog.add(
...         epoch, Entry(epoch + 1, {"n": pa.record_batch({"n": [1, 2]})}, offsets={"s": epoch})
...     )
...     backlog.drop_rows(epoch)
>>> [backlog[epoch].dropped for epoch in range(2)], backlog.offsets_before(2)
([False, True], {'s': 1})
>>> backlog.recalled(2, {"n": pa.record_batch({"n": [1, 2]})})
>>> backlog[1].dropped
False
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from riverrun.engine.messages import Inputs, Parcels
from riverrun.state.shards import Shards
from riverrun.storage.takeover import KEEP


@dataclass(slots=True)
class Entry:
    """An epoch that may have to be done, or done again."""

    position: int
    inputs: Inputs
    parcels: Parcels = field(default_factory=dict)
    offsets: Mapping[str, Any] = field(default_factory=dict)
    refused: bool = False
    shares: tuple[Shards, list[Inputs]] | None = None
    """What each worker gets, where that was made ready, and for which shards."""
    dropped: bool = False
    """Whether the rows are in the log only."""
    names: tuple[str, ...] = ()
    """Of a dropped one, the inputs that it has rows of; its record may have others that do not count."""
    kept: int = 0
    """Bytes of rows that count as kept."""

    def drop(self) -> None:
        """Its rows are in the log only, from now on."""
        if self.inputs:
            self.names, self.inputs, self.shares, self.dropped = tuple(self.inputs), {}, None, True

    def refuse(self) -> None:
        """Its rows do not count."""
        self.inputs, self.parcels, self.shares = {}, {}, None
        self.refused, self.dropped = True, False


class Backlog:
    """Entries by the numbers of their epochs."""

    def __init__(
        self, epoch: int, offsets: Mapping[str, Any] | None = None, keep: int | None = None
    ) -> None:
        """Starts at an epoch, to which streams had come as `offsets` say."""
        self._entries: dict[int, Entry] = {}
        self._oldest = epoch
        self._settled = dict(offsets or {})
        self._keep = KEEP if keep is None else keep
        self._kept = 0
        self._recalled: Entry | None = None

    def __getitem__(self, epoch: int) -> Entry:
        return self._entries[epoch]

    def get(self, epoch: int) -> Entry | None:
        return self._entries.get(epoch)

    def add(self, epoch: int, entry: Entry) -> None:
        self._entries[epoch] = entry

    def remove(self, epoch: int) -> None:
        """A refused epoch whose number is given to another."""
        self._kept -= self._entries.pop(epoch).kept

    def forget(self, floor: int) -> None:
        """Epochs below will not be done again."""
        while self._oldest < floor:
            entry = self._entries.pop(self._oldest)
            self._kept -= entry.kept
            if not entry.refused:
                self._settled.update(entry.offsets)
            self._oldest += 1

    def offsets_before(self, epoch: int) -> dict[str, Any]:
        """How far streams had come before an epoch (law 2)."""
        found = dict(self._settled)
        for number in sorted(self._entries):
            entry = self._entries[number]
            if number < epoch and not entry.refused:
                found.update(entry.offsets)
        return found

    def drop_rows(self, epoch: int) -> None:
        """An epoch is in the log, and is not to be done now: its rows stay only where there is room (law 1)."""
        entry = self._entries[epoch]
        entry.shares = None
        if self._recalled is entry:
            self._recalled = None
        size = sum(batch.nbytes for batch in entry.inputs.values())
        if entry.kept or not size:
            return
        if self._kept + size <= self._keep:
            self._kept += size
            entry.kept = size
        else:
            entry.drop()

    def recalled(self, position: int, inputs: Inputs) -> None:
        """The rows of an epoch, from its record."""
        for entry in self._entries.values():
            if entry.position == position and entry.dropped:
                if self._recalled is not None and not self._recalled.kept:
                    self._recalled.drop()
                entry.inputs = {name: inputs[name] for name in entry.names}
                entry.dropped, entry.shares = False, None
                self._recalled = entry
