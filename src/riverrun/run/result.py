"""A result: rows as of an epoch, or the changes of an epoch, taken as Arrow, Polars, pandas, Spark, dicts or tuples.

``run.read`` and ``rr.read_checkpoint`` give the rows of an output or shared state as of an epoch. ``run.changes`` gives
the rows that an epoch added and removed, with a last column `diff`; a sink gets them as `EpochChanges`, a result that
may be of several epochs. A result copies nothing until its rows are asked for, and stays as it is while the run goes
on. ``rows()`` sorts the rows; otherwise they come in no particular order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from riverrun.attributes import missing_attribute
from riverrun.engine.reading import Portion
from riverrun.errors import SchemaError
from riverrun.interrupts import check, deferred
from riverrun.rows.column_names import one_column
from riverrun.runtime.carriers import spark_frame
from riverrun.state.types import EnumType, declared_type

_SHOWN = 10


_ELSEWHERE = dict.fromkeys(
    ("head", "tail", "limit", "show", "filter", "sort", "select", "group_by", "join", "describe"),
    "to_polars() gives a frame that has it; rows() is a sorted list",
) | {
    "collect": "rows(), to_polars(), to_arrow()",
    "count": "len(result)",
    "toPandas": "to_pandas()",
}


class Result:
    """The rows of an output as of an epoch, or what an epoch changed in it."""

    if not TYPE_CHECKING:  # a checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, "result", name, _ELSEWHERE)

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
        """The result that the portions of all workers make together."""

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
        with deferred():  # the rows lie in the run's own memory
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
        try:
            return self._table.to_pandas()
        except (OverflowError, ValueError, pa.ArrowException) as error:
            raise SchemaError(
                "schema.not_python",
                f"cannot give the rows of {self.name!r} as pandas does: {error}",
                hint="to_arrow() and to_polars() hold every value",
            ) from error

    def to_spark(self, spark: Any = None) -> Any:
        """As a DataFrame of Spark. Where the run is on Spark, Spark's tasks read the rows from the workers when the
        DataFrame is evaluated.

        `spark` is the session to make the DataFrame in, by default the session of the run, or the active one.
        """
        if self.lent is not None:
            return self.lent(self)
        return spark_frame(self._table, spark)

    def to_dicts(self) -> list[dict[str, Any]]:
        """As a list of dicts."""
        if not self.schema.names:
            return [{}] * len(self)
        columns = [self._values(name) for name in self.schema.names]
        return [
            dict(zip(self.schema.names, row, strict=True)) for row in zip(*columns, strict=True)
        ]

    def rows(self) -> list[tuple[Any, ...]]:
        """As a list of tuples, sorted by their columns as states order them: nulls last, NaN before them, values of an
        enum in its declared order."""
        columns = [self._values(name) for name in self.schema.names]
        ranks = [_rank(declared_type(field)) for field in self.schema]
        keys = [map(rank, column) for rank, column in zip(ranks, columns, strict=True)]
        rows = list(zip(*columns, strict=True))
        order = sorted(range(len(rows)), key=list(zip(*keys, strict=True)).__getitem__)
        return [rows[at] for at in order]

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.to_dicts())

    def __getitem__(self, column: str) -> list[Any]:
        column = one_column(
            column, self.schema.names, f"take a column of {self.name!r}", room="schema"
        )
        return self._values(column)

    def _values(self, column: str) -> list[Any]:
        """The values of a column as Python's, which has no year after 9999 and none before 1."""
        try:
            values: list[Any] = self._table.column(column).to_pylist()
        except (OverflowError, ValueError) as error:
            raise SchemaError(
                "schema.not_python",
                f"cannot give the rows of {self.name!r} as Python's: a value in column {column!r}, "
                f"{self.schema.field(column).type}, is beyond what Python's type holds: {error}",
                hint="to_arrow() and to_polars() hold every value; Python's dates end with the year 9999, in the zone "
                "of the column",
                column=column,
            ) from error
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


_NULL = (2, 0)
_NAN = (1, 0)


def _rank(kind: pa.DataType) -> Callable[[Any], tuple[int, Any]]:
    """For a type, the function that gives each value a sort key; keys compare as states order the values."""
    if isinstance(kind, EnumType):
        codes = {category: code for code, category in enumerate(kind.categories)}
        return lambda value: _NULL if value is None else (0, codes[value])
    if pa.types.is_struct(kind):
        ranks = [(field.name, _rank(field.type)) for field in kind]
        return lambda value: (
            _NULL if value is None else (0, [rank(value[name]) for name, rank in ranks])
        )
    if pa.types.is_nested(kind):
        rank = _rank(kind.value_type)
        return lambda value: _NULL if value is None else (0, [rank(each) for each in value])
    if pa.types.is_floating(kind):
        return lambda value: _NULL if value is None else _NAN if value != value else (0, value)
    return lambda value: _NULL if value is None else (0, value)
