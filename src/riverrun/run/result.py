"""A result: rows as of an epoch, to be taken in whatever form suits.

Reading copies nothing until rows are asked for, and what was read stays as it is while the run goes
on. Rows come in no particular order, but for ``rows()``, which sorts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import polars as pl
import pyarrow as pa

from riverrun.engine.reading import Portion
from riverrun.errors import SchemaError
from riverrun.interrupts import check, deferred

_SHOWN = 10


class Result:
    """The rows of an output as of an epoch, or what an epoch changed in it."""

    def __init__(self, name: str, epoch: int, schema: pa.Schema, read: Any) -> None:
        self.name = name
        self.epoch = epoch
        self.schema = schema
        self._read = read
        self.portions: Sequence[Portion] = ()
        """Where the rows are: each worker's part."""
        self.lent: Callable[[Result], Any] | None = None

    @classmethod
    def of(cls, name: str, schema: pa.Schema, portions: Sequence[Portion], epoch: int) -> Result:
        """What the portions of all workers give together."""

        def read() -> pa.Table:
            batches = []
            for portion in portions:
                for batch in portion.batches():
                    batches.append(batch)
                    check()
            return pa.Table.from_batches(batches, schema)

        result = cls(name, epoch, schema, read)
        result.portions = portions
        return result

    @cached_property
    def _table(self) -> pa.Table:
        with deferred():  # what is read is the run's own memory
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

    def to_spark(self, spark: Any = None) -> Any:
        """As a DataFrame of Spark. Where the run is on Spark, its tasks read from the workers, when it is evaluated."""
        if self.lent is not None:
            return self.lent(self)
        from riverrun.spark.frames import of_table

        return of_table(self._table, spark)

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
