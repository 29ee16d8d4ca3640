"""Whole groups: parts of a reduce that see all rows of a group, for any Polars aggregation or Python function.

`operators.aggregates` has the cheaper parts and the interface (`GroupPart`). Law:

- **Order of values.** The rows of a group are handed over in the order of their values. Polars computes some
  expressions in another way where there is one group only, so a group that is alone is evaluated beside a copy of
  itself. So a result depends neither on how rows arrived or were cut into batches nor on which other groups have
  changed.

Cost: the size of the groups touched, not of the change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from riverrun.errors import SchemaError
from riverrun.interrupts import exposed
from riverrun.operators.aggregates import Evaluated, GroupPart, queries_of
from riverrun.plan.identity import code_of, left_out
from riverrun.plan.operator import failed_function
from riverrun.progress import Timestamp
from riverrun.rows.convert import as_table
from riverrun.rows.records import as_record_batch, canonical_columns
from riverrun.state.keys import Keys
from riverrun.state.schema import free_name
from riverrun.state.types import empty_batch
from riverrun.state.view import View


def group_name(frame: pl.DataFrame, new_names: Iterable[str]) -> str:
    """A name for the column of group numbers that neither the frame nor its aggregates have."""
    return free_name("_group", [*frame.columns, *new_names])


def grouped(
    frame: pl.DataFrame, key: Iterable[str], group: str, numbers: np.ndarray[Any, Any]
) -> Any:
    """A frame grouped by the key and by a number for each row. The numbers are no column that a selector could see."""
    return frame.group_by(*key, pl.Series(group, numbers, pl.Int64), maintain_order=True)


@dataclass(frozen=True)
class _WholeGroups(GroupPart):
    input: int
    schema: pa.Schema
    columns: tuple[str, ...]
    """The columns of a group that are handed over, the columns of the key first."""
    input_schema: pa.Schema = field(repr=False)

    def _read(
        self, view: View, keys: Keys, time: Timestamp
    ) -> tuple[np.ndarray[Any, Any], pl.DataFrame]:
        selection = view.lookup(keys, time)
        if (selection.counts != 1).any():
            selection = replace(selection, counts=np.maximum(selection.counts, 0)).repeated()
        queries = queries_of(selection)
        positions = view.schema.positions
        columns = [selection.canonical(positions[name]) for name in self.columns]
        rows = as_record_batch(self.input_schema, columns, len(queries))
        frame = pl.DataFrame(pl.from_arrow(rows))
        return queries, frame


@dataclass(frozen=True)
class PolarsGroups(_WholeGroups):
    """Polars aggregations over each group."""

    expressions: tuple[pl.Expr, ...] = ()
    key: tuple[str, ...] = ()
    """The columns of the key among `columns` that selectors leave out, as in Polars; none where nothing selects."""

    @property
    def code(self) -> str:
        """The user's code in the expressions that their text leaves out."""
        return left_out(self.expressions)

    def evaluate(self, view: View, keys: Keys, time: Timestamp) -> Evaluated:
        queries, frame = self._read(view, keys, time)
        group = group_name(frame, self.schema.names)
        numbers = queries
        if len(queries) and queries[0] == queries[-1]:
            # Polars takes a column of one row for a scalar, and then rounds x / 3.7 another way. By the order-of-values
            # law a group is never evaluated alone: a copy goes along, and is dropped below.
            frame = pl.concat([frame, frame])
            numbers = np.concatenate([queries, np.full(len(queries), -1, queries.dtype)])
        aggregated = exposed(grouped(frame, self.key, group, numbers).agg, *self.expressions)
        aggregated = aggregated.filter(pl.col(group) >= 0)
        present = aggregated[group].to_numpy()
        rows = as_table(
            aggregated.select(self.schema.names), self.schema, "take what an aggregation gave"
        )
        return present.astype(np.int64), canonical_columns(rows, self.schema), None


@dataclass(frozen=True)
class PythonGroups(_WholeGroups):
    """A Python function of the rows of one group: a value, a dict, or with `many` any number of rows."""

    function: Callable[[pl.DataFrame], Any] = field(default=None)  # type: ignore[assignment]
    many: bool = False
    key: int = 0
    text: str = ""

    @property
    def code(self) -> str:
        return code_of(self.function)

    def evaluate(self, view: View, keys: Keys, time: Timestamp) -> Evaluated:
        queries, frame = self._read(view, keys, time)
        first = np.r_[len(queries) > 0, queries[1:] != queries[:-1]]
        starts: list[int] = np.flatnonzero(first).tolist()
        stops = [*starts[1:], len(queries)] if len(starts) else []
        rows: list[Any] = []
        owners: list[int] = []
        pieces: list[pa.RecordBatch] = []
        for start, stop in zip(starts, stops, strict=True):
            group = frame.slice(start, stop - start)
            try:
                answer = exposed(self._call, group)
            except Exception as error:
                shown = group.row(0)[: self.key]
                raise failed_function(
                    error, f"the function {self.text} of the group {shown}", group=shown
                ) from error
            if not self.many and is_frame(answer[0]):
                raise SchemaError(
                    "schema.rows",
                    f"the function {self.text} gave a frame for the group {group.row(0)[: self.key]}, not one row",
                    hint="apply(function, schema, many=True) takes a frame, or a list of rows, for each group",
                )
            if not self.many and self._holds_rows(answer[0]):
                raise SchemaError(
                    "schema.rows",
                    f"the function {self.text} gave a list of rows for the group {group.row(0)[: self.key]}, not one "
                    "row",
                    hint="apply(function, schema, many=True) takes a list of rows, or a frame, for each group",
                )
            if self.many and isinstance(answer, Mapping):
                raise SchemaError(
                    "schema.rows",
                    f"the function {self.text} gave a dict for the group {group.row(0)[: self.key]}, not a list of "
                    "rows",
                    hint="with many=True give a list of rows: [row] for one, [] for none; or leave out many=True",
                )
            if self.many and is_frame(answer):
                if rows:
                    pieces.append(self._converted(rows))
                    rows = []
                pieces.append(self._converted(answer))
                owners += [int(queries[start])] * pieces[-1].num_rows
                continue
            rows += (
                answer
                if len(self.schema) != 1 or self.many
                else [_as_row(self.schema, r) for r in answer]
            )
            owners += [int(queries[start])] * len(answer)
        if rows:
            pieces.append(self._converted(rows))
        if not owners:
            nothing = canonical_columns(empty_batch(self.schema), self.schema)
            return np.zeros(0, np.int64), nothing, None
        batch = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
        counts = np.ones(len(owners), np.int64) if self.many else None
        return np.array(owners, np.int64), canonical_columns(batch, self.schema), counts

    def _converted(self, rows: Any) -> pa.RecordBatch:
        return as_table(rows, self.schema, "take what a function of a group gave")

    def _call(self, group: pl.DataFrame) -> Any:
        answer = self.function(group)
        if not self.many:
            return [answer]
        return answer if is_frame(answer) or isinstance(answer, Mapping) else list(answer)

    def _holds_rows(self, answer: Any) -> bool:
        """Whether an answer is a list of rows, where one row or value was asked for."""
        one_list = len(self.schema) == 1 and pa.types.is_nested(self.schema.field(0).type)
        return (
            isinstance(answer, list)
            and not one_list
            and any(isinstance(r, dict | tuple) for r in answer)
        )


def is_frame(value: Any) -> bool:
    """Whether a value is a frame of Polars, of pandas or of Arrow."""
    return isinstance(value, pl.DataFrame | pl.LazyFrame | pa.Table | pa.RecordBatch) or (
        type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "columns")
    )


def _as_row(schema: pa.Schema, value: Any) -> Any:
    return value if isinstance(value, dict) else {schema.names[0]: value}
