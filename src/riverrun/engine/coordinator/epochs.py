"""Epochs that are open: they are still to be done, or may have to be done again.

A part of the coordinator, sans I/O. An epoch is *open* from when the client submits it, or from when a run takes over a
checkpoint path and finds the epoch in the log there, until no recovery can need it any more. Laws:

- **Bounded memory.** Of the epochs that were done, or that were found in the log, at most `keep` bytes of rows stay in
  memory: `drop_rows` keeps the rows of an epoch where this budget has room. Otherwise the rows are *dropped*: they are
  in the log only. When a dropped epoch is to be done, the coordinator tells the storage to read its rows again
  (`recall`), and `recalled` puts them back, outside of the budget. Of the recalled epochs that were not done yet only
  the last one has its rows: when the run goes back and another epoch is recalled, the rows of the one before are
  dropped again. Without a log no rows are dropped.
- **Refused offsets do not count.** An epoch may have offsets: for a stream that feeds an input, the id of the query
  that reads the stream, and the number of the query's batch. `offsets_before(epoch)` has the last batch of each query
  in the earlier epochs that were not refused, those that are open no more included. Of the queries of one stream,
  the `QUERIES` whose batches came last are known.

In the example the log has epochs 0 and 1, at the positions 1 and 2. The budget has room for the rows of epoch 0 only,
until those of epoch 1, the record at position 2, are recalled.

>>> import pyarrow as pa
>>> open_epochs = OpenEpochs(0, keep=20)
>>> for epoch in range(2):
...     rows = {"n": pa.record_batch({"n": [1, 2]})}
...     open_epochs.add(epoch, OpenEpoch(epoch + 1, rows, offsets={"s": ["query", epoch]}))
...     open_epochs.drop_rows(epoch)
>>> [open_epochs[epoch].dropped for epoch in range(2)], open_epochs.offsets_before(2)
([False, True], {'s': [['query', 1]]})
>>> open_epochs.recall(1), open_epochs.recall(1)  # once
(Recall(position=2), None)
>>> open_epochs.recalled(2, {"n": pa.record_batch({"n": [1, 2]})})
>>> open_epochs[1].dropped
False

Cost: an epoch is added and taken out in constant time; `offsets_before` and `recalled` look at every entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from riverrun.engine.messages import Inputs, Parcel, Parcels, Recall
from riverrun.state.shards import Shards
from riverrun.storage.replay import KEEP, PendingEpoch

QUERIES = 16
"""Of so many queries of a stream the last batch is known."""


@dataclass(slots=True)
class OpenEpoch:
    """An epoch that may have to be done, or done again."""

    position: int
    """The position of its record in the log."""
    inputs: Inputs
    parcels: Parcels = field(default_factory=dict)
    offsets: Mapping[str, Any] = field(default_factory=dict)
    """For each stream with a batch in the epoch: the id of the query, and the number of the batch."""
    refused: bool = False
    shares: tuple[Shards, list[Inputs]] | None = None
    """The rows of each worker, where they were cut already, and the shards by which they were cut."""
    dropped: bool = False
    """Whether the rows are in the log only."""
    input_names: tuple[str, ...] = ()
    """Of a dropped entry, the inputs whose rows count; its record may have rows of other inputs."""
    budgeted_bytes: int = 0
    """How much of the budget for rows its own rows take; 0 where they do not count against the budget."""

    @classmethod
    def from_log(cls, pending: PendingEpoch) -> OpenEpoch:
        """An epoch that an owner before us has logged."""
        parcels = _stored_parcels(pending.header.get("parcels", {}))
        offsets = pending.header.get("offsets", {})
        return cls(
            pending.position, pending.inputs, parcels, offsets, pending.refused,
            dropped=pending.dropped, input_names=pending.names,
        )  # fmt: skip

    def header(self, epoch: int, acknowledged: int) -> dict[str, Any]:
        """The header of its record: epochs below `acknowledged` may have been acknowledged when it was logged."""
        header: dict[str, Any] = {"kind": "epoch", "epoch": epoch, "reported": acknowledged}
        if self.offsets:
            header["offsets"] = dict(self.offsets)
        if self.parcels:
            header["parcels"] = {
                name: [asdict(parcel) for parcel in listed] for name, listed in self.parcels.items()
            }
        return header

    def drop(self) -> None:
        """Let go of the rows: from now on they are in the log only."""
        if self.inputs:
            self.input_names, self.inputs = tuple(self.inputs), {}
            self.shares, self.dropped = None, True

    def refuse(self) -> None:
        """Let go of the rows for good: they do not count."""
        self.inputs, self.parcels, self.shares = {}, {}, None
        self.refused, self.dropped = True, False


class OpenEpochs:
    """The open epochs of a run, by their numbers."""

    def __init__(
        self, epoch: int, offsets: Mapping[str, Any] | None = None, keep: int | None = None
    ) -> None:
        """Start at an epoch. `offsets` say how far each stream had come before it; `keep` is the budget of rows.

        Earlier versions kept the last query of a stream only, not a list: ``{"s": ["query", 1]}``.
        """
        self._entries: dict[int, OpenEpoch] = {}
        self._oldest = epoch
        self._settled: dict[str, list[Any]] = {}
        for stream, known in (offsets or {}).items():
            self._settled[stream] = [known] if known and isinstance(known[0], str) else list(known)
        self._keep = KEEP if keep is None else keep
        self._budgeted_bytes = 0
        self._recalled: OpenEpoch | None = None
        self._recalling: set[int] = set()
        """The positions of the records that the storage reads again."""

    def __getitem__(self, epoch: int) -> OpenEpoch:
        return self._entries[epoch]

    def get(self, epoch: int) -> OpenEpoch | None:
        return self._entries.get(epoch)

    def add(self, epoch: int, entry: OpenEpoch) -> None:
        self._entries[epoch] = entry

    def remove(self, epoch: int) -> None:
        """Take out a refused epoch whose number goes to the next epoch."""
        self._budgeted_bytes -= self._entries.pop(epoch).budgeted_bytes

    def forget(self, floor: int) -> None:
        """Take out the epochs below `floor`: they will not be done again."""
        while self._oldest < floor:
            entry = self._entries.pop(self._oldest)
            self._budgeted_bytes -= entry.budgeted_bytes
            if not entry.refused:
                _count_in(entry.offsets, self._settled)
            self._oldest += 1

    def offsets_before(self, epoch: int) -> dict[str, list[Any]]:
        """How far the queries of each stream had come before an epoch (*refused offsets do not count*), the query whose
        batch came last at the end."""
        offsets = dict(self._settled)
        for number in sorted(self._entries):
            entry = self._entries[number]
            if number < epoch and not entry.refused:
                _count_in(entry.offsets, offsets)
        return offsets

    def refused_before(self, epoch: int) -> tuple[int, tuple[int, ...]]:
        """The position of the oldest open epoch, and those of the refused ones before an epoch."""
        before = [self._entries[each] for each in sorted(self._entries) if each < epoch]
        first = self._entries[min(self._entries)].position
        return first, tuple([entry.position for entry in before if entry.refused])

    def drop_rows(self, epoch: int) -> None:
        """An epoch is in the log, and is not to be done now: keep its rows only where the budget has room."""
        entry = self._entries[epoch]
        entry.shares = None
        if self._recalled is entry:
            self._recalled = None
        size = sum(batch.nbytes for batch in entry.inputs.values())
        if entry.budgeted_bytes or not size:
            return
        if self._budgeted_bytes + size <= self._keep:
            self._budgeted_bytes += size
            entry.budgeted_bytes = size
        else:
            entry.drop()

    def recall(self, epoch: int) -> Recall | None:
        """The instruction to read the rows of a dropped epoch again; None while the storage is at it."""
        position = self._entries[epoch].position
        if position in self._recalling:
            return None
        self._recalling.add(position)
        return Recall(position)

    def not_recalled(self, position: int) -> None:
        """The storage could not read the record at a position: the next `recall` has it read again."""
        self._recalling.discard(position)

    def recalled(self, position: int, inputs: Inputs) -> None:
        """The storage has read the record at a position: put its rows back into the entry that waits for them."""
        self._recalling.discard(position)
        for entry in self._entries.values():
            if entry.position == position and entry.dropped:
                if self._recalled is not None and not self._recalled.budgeted_bytes:
                    self._recalled.drop()
                entry.inputs = {name: inputs[name] for name in entry.input_names}
                entry.dropped, entry.shares = False, None
                self._recalled = entry


def _count_in(news: Mapping[str, Any], offsets: dict[str, list[Any]]) -> None:
    """Add the offsets of one epoch to those of the epochs before."""
    for stream, (query, number) in news.items():
        others = [known for known in offsets.get(stream, []) if known[0] != query]
        offsets[stream] = [*others, [query, number]][-QUERIES:]


def _stored_parcels(stored: Mapping[str, list[dict[str, Any]]]) -> Parcels:
    """Parcels from a record of the log. The workers that held them are gone, so each has holder 0: nobody."""
    return {
        name: tuple(Parcel(**{**each, "holder": 0}) for each in listed)
        for name, listed in stored.items()
    }
