"""Reading: one worker's part of an output, as of an epoch, or of the changes of an epoch to the output.

To read an output, a run takes a `Portion` from each worker, and takes the rows out of the portions when somebody wants
rows: in the process of that worker (`ViewPortion`, `ChangesPortion`), or over the network from there
(`runtime.network.lending.Borrowed`). Laws:

- **Fixed.** A portion stays as it is while the run goes on: it holds views and batches, which are immutable.
- **Whole.** The portions of all workers together are the output, with every row as often as it is there.
- **One order.** Rows come in the order of their hashes, and rows of equal hashes in the order of keys and values. So as
  of an epoch, the rows of a range of hashes come in one order, whoever holds the rows and however they came there. A
  reader that has so many rows of the range can go on behind them with another holder. (Changes have no such order.)
- **Selection.** `columns` and `where` give the rows that selecting columns and filtering afterwards would give.
- **No dictionaries.** A stream of Arrow's has its dictionaries at its start, and a stream without rows has none. So
  between processes a column with dictionaries travels as its values (`undictionaried`, `as_shown` of `rows.records`).

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
    """One worker's part of the rows that are read."""

    schema: pa.Schema

    @abstractmethod
    def batches(
        self, columns: Sequence[str] | None = None, where: Sequence[Where] = ()
    ) -> Iterator[pa.RecordBatch]:
        """The rows, in pieces."""


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
        """With `ranges`, only the rows whose hashes are in these ranges."""
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
    """The changes of an epoch: the columns of the output, and a last column, `diff`."""

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
