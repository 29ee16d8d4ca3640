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

from riverrun.engine.operators.linear import as_record_batch, canonical_columns, python_rows
from riverrun.engine.where import Where
from riverrun.errors import OperatorFailed
from riverrun.state.schema import free_name
from riverrun.state.shards import Range
from riverrun.state.types import (
    declared_schema,
    declared_type,
    has_dictionaries,
    shown_schema,
    spelled,
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


def undictionaried(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Rows as they travel, and their schema: dictionaries as their values."""
    kinds = [spelled(declared_type(f)) if has_dictionaries(f.type) else f.type for f in schema]
    if kinds == schema.types:
        return schema, batches
    plain = pa.schema(
        [f.with_type(k).remove_metadata() for f, k in zip(schema, kinds, strict=True)]
    )
    return plain, (
        pa.record_batch(
            [c.cast(k) for c, k in zip(batch.columns, kinds, strict=True)], schema=plain
        )
        for batch in batches
    )


def as_shown(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows that have travelled, in the types that they are shown in."""
    if batch.schema.types == schema.types:
        return batch
    declared = declared_schema(schema)
    return as_record_batch(declared, canonical_columns(batch, declared), batch.num_rows)


def narrowed(
    batch: pa.RecordBatch, columns: Sequence[str] | None, where: Sequence[Where]
) -> pa.RecordBatch:
    """The rows that satisfy all conditions, and the columns asked for."""
    for condition in where:
        batch = batch.filter(condition.mask(batch))
    return batch if columns is None else batch.select(list(columns))


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
