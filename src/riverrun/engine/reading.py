"""Reading: one worker's part of an output, as of an epoch or of what an epoch changed.

A `Portion` is that part, to be read when somebody wants the rows: here (`ViewPortion`,
`ChangesPortion`), or on the worker that has it, over the network (`borrowing.Borrowed`). Laws:

1. A portion stays as it is while the run goes on: it holds views and batches, which are immutable.
2. The portions of all workers together are the output, every row as often as it is there.
3. **One order.** Rows come in the order of their hashes, and equal hashes in the order of keys and values: the rows of
   a range of hashes as of an epoch come in one order, whoever holds them and however they came there. So whoever has
   so many of them can go on with another holder behind these. (Changes have no such order.)
4. `columns` and `where` give the rows that a selection of columns and a filter afterwards would.
5. Dictionaries do not travel: a stream of Arrow's has its dictionaries at its start, and one without rows has none. On
   the way between processes a column with dictionaries is its values (`undictionaried`, `as_shown`).

Cost: taking a portion is some microseconds; reading is by pieces of some 100,000 rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from riverrun.errors import OperatorFailed
from riverrun.rows.conditions import Where
from riverrun.rows.records import narrowed, python_rows
from riverrun.state.schema import free_name
from riverrun.state.shards import Range
from riverrun.state.types import (
    shown_schema,
)
from riverrun.state.view import SCAN_ROWS, View

PIECE = SCAN_ROWS  # about so many rows are read at a time


class Portion(ABC):
    """One worker's part of what is read."""

    schema: pa.Schema

    @abstractmethod
    def batches(
        self, columns: Sequence[str] | None = None, where: Sequence[Where] = ()
    ) -> Iterator[pa.RecordBatch]:
        """The rows, in no particular order."""


class ViewPortion(Portion):
    """The rows of a view as of an epoch."""

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        view: View,
        epoch: int,
        ranges: Sequence[Range] | None = None,
    ) -> None:
        """With `ranges`, only the rows whose hashes are in there."""
        self.schema = shown_schema(schema)
        self._name = name
        self._views = [view] if ranges is None else [view.slice(*each) for each in ranges]
        self._epoch = epoch

    def batches(
        self, columns: Sequence[str] | None = None, where: Sequence[Where] = ()
    ) -> Iterator[pa.RecordBatch]:
        pieces = (
            piece
            for view in self._views
            if view.batches
            for piece in view.scan((self._epoch,), PIECE)
        )
        for piece in pieces:
            counts = np.asarray(piece.counts)
            if (counts != 1).any():
                if (counts < 0).any():
                    raise _negative(self._name, piece.to_batch().select(self.schema.names), counts)
                piece = piece.repeated()
            rows = piece.to_batch().select(self.schema.names)
            yield narrowed(pa.record_batch(rows.columns, schema=self.schema), columns, where)


class ChangesPortion(Portion):
    """What an epoch changed: the columns, and a last one, `diff`."""

    def __init__(self, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> None:
        diff = free_name("diff", schema.names, any_case=True)
        self.schema = shown_schema(schema).append(pa.field(diff, pa.int64()))
        self._batches = batches

    def batches(
        self, columns: Sequence[str] | None = None, where: Sequence[Where] = ()
    ) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            yield narrowed(pa.record_batch(batch.columns, schema=self.schema), columns, where)


def _negative(name: str, rows: pa.RecordBatch, counts: Any) -> OperatorFailed:
    at = int(np.argmin(counts))
    (row,) = python_rows(rows.slice(at, 1))
    return OperatorFailed(
        "operator.negative",
        f"cannot read {name!r}: the row {row} is there {counts[at]} times: more of it was deleted or subtracted "
        "than inserted",
        hint="delete only rows that were inserted; insert the row to make up for it",
        row=row,
        count=int(counts[at]),
    )
