"""A result: rows as of an epoch, to be taken in whatever form suits.

Reading copies nothing until rows are asked for, and what was read stays as it is while the run goes
on. Rows come in no particular order, but for ``rows()``, which sorts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from riverrun.errors import OperatorFailed, SchemaError
from riverrun.state.view import View

_SHOWN = 10


class Result:
    """The rows of an output as of an epoch, or what an epoch changed in it."""

    def __init__(self, name: str, epoch: int, schema: pa.Schema, read: Any) -> None:
        self.name = name
        self.epoch = epoch
        self.schema = schema
        self._read = read

    @classmethod
    def of_views(cls, name: str, schema: pa.Schema, views: Sequence[View], epoch: int) -> Result:
        """The rows of an output, read from each worker's part."""
        return cls(name, epoch, schema, lambda: _rows_of_views(name, schema, views, epoch))

    @classmethod
    def of_changes(
        cls, name: str, schema: pa.Schema, batches: Sequence[pa.RecordBatch], epoch: int
    ) -> Result:
        """What an epoch changed, with a last column `diff`."""
        diff = "diff"
        while diff in schema.names:
            diff += "_"
        whole = schema.append(pa.field(diff, pa.int64()))
        renamed = [pa.record_batch(batch.columns, schema=whole) for batch in batches]
        return cls(name, epoch, whole, lambda: pa.Table.from_batches(renamed, whole))

    @cached_property
    def _table(self) -> pa.Table:
        table = self._read()
        assert isinstance(table, pa.Table)
        return table

    def to_arrow(self) -> pa.Table:
        """As an Arrow table."""
        return self._table

    def to_polars(self) -> pl.DataFrame:
        """As a Polars frame."""
        return pl.DataFrame(pl.from_arrow(self._table))

    def to_pandas(self) -> Any:
        """As a pandas frame."""
        return self._table.to_pandas()

    def to_dicts(self) -> list[dict[str, Any]]:
        """As a list of dicts."""
        rows: list[dict[str, Any]] = self._table.to_pylist()
        return rows

    def rows(self) -> list[tuple[Any, ...]]:
        """As a sorted list of tuples."""
        found = list(zip(*(column.to_pylist() for column in self._table.columns), strict=True))
        return sorted(found, key=lambda row: [_sortable(value) for value in row])

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.to_dicts())

    def __getitem__(self, column: str) -> list[Any]:
        if column not in self.schema.names:
            raise SchemaError(
                "schema.column_unknown",
                f"cannot take column {column!r} of {self.name!r}: there are: {', '.join(self.schema.names) or 'none'}",
                hint="rows() gives all of them, as tuples",
                column=column,
            )
        values: list[Any] = self._table.column(column).to_pylist()
        return values

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<Result {self.name!r} as of epoch {self.epoch}: {len(self)} rows>\n{self._shown()}"

    def _shown(self) -> str:
        return str(self.to_polars().head(_SHOWN))

    def _repr_html_(self) -> str:
        html: str = self.to_polars()._repr_html_()
        return f"<p>{self.name} as of epoch {self.epoch}: {len(self)} rows</p>{html}"


def _rows_of_views(name: str, schema: pa.Schema, views: Sequence[View], epoch: int) -> pa.Table:
    """Every row as often as it is there."""
    batches = []
    for view in views:
        if not view.batches:
            continue
        for piece in view.scan((epoch,)):
            rows = piece.to_batch().select(schema.names)
            counts = np.asarray(piece.counts)
            if (counts != 1).any():
                if (counts < 0).any():
                    raise _negative(name, rows, counts)
                rows = rows.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
            batches.append(pa.record_batch(rows.columns, schema=schema))
    return pa.Table.from_batches(batches, schema)


def _negative(name: str, rows: pa.RecordBatch, counts: Any) -> OperatorFailed:
    at = int(np.argmin(counts))
    row = rows.slice(at, 1).to_pylist()[0]
    return OperatorFailed(
        "operator.negative",
        f"cannot read {name!r}: the row {row} is there {counts[at]} times: more of it was deleted or subtracted "
        "than inserted",
        hint="delete only rows that were inserted; insert the row to make up for it",
        row=row,
        count=int(counts[at]),
    )


def _sortable(value: Any) -> tuple[int, Any]:
    """A key under which any values of one column compare: nulls last, the rest by value."""
    if value is None:
        return (1, "")
    if isinstance(value, dict):
        return (0, [(key, _sortable(inner)) for key, inner in value.items()])
    if isinstance(value, list):
        return (0, [_sortable(inner) for inner in value])
    if isinstance(value, float) and value != value:
        return (0, float("inf"))
    return (0, value)
