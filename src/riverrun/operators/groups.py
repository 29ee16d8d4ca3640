"""Whole groups: parts of a reduce that see all rows of a group, for any Polars aggregation or Python function.

`operators.aggregates` has the cheaper parts and the interface (`GroupPart`). `operators.co_group`, whose functions see
the groups of two collections, reads groups (`read_groups`) and gathers answers (`Answers`) as the parts here do. Law:

- **Order of values.** The rows of a group are handed over in the order of their values. Polars computes some
  expressions in another way where there is one group only, so a group that is alone is evaluated beside a copy of
  itself. So a result depends neither on how rows arrived or were cut into batches nor on which other groups have
  changed.

Cost: the size of the groups touched, not of the change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from riverrun.errors import OperatorFailed, SchemaError, show
from riverrun.interrupts import exposed
from riverrun.operators.aggregates import Evaluated, GroupPart, Ints, queries_of
from riverrun.operators.kept import check_groups
from riverrun.plan.identity import code_of, left_out
from riverrun.plan.operator import failed_function
from riverrun.progress import Timestamp
from riverrun.rows.convert import as_table
from riverrun.rows.records import as_record_batch, canonical_columns
from riverrun.state.columns import take_columns
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
    """A frame grouped by a number for each row, in a column called `group`, which no selector sees.

    Rows of one number are of one key. Selectors leave out the columns of the key, as in Polars. So the numbers stand
    under the names of the key too: a column with the name of a computed key has other values than the key.
    """
    names = (*key, group)
    return frame.group_by(
        *[pl.Series(name, numbers, pl.Int64) for name in names], maintain_order=True
    )


@dataclass(frozen=True)
class Groups:
    """The rows of some groups: each as often as it is there, in the order of the groups and of the rows' values."""

    queries: Ints
    """For each row, the number of the key of its group."""
    frame: pl.DataFrame
    """The rows as users see them: the columns of the key first."""
    columns: tuple[pa.Array, ...]
    """The same columns in the canonical layout."""

    @property
    def numbers(self) -> Ints:
        """The numbers of the keys that have a row, in ascending order."""
        first = np.r_[len(self.queries) > 0, self.queries[1:] != self.queries[:-1]]
        return self.queries[np.flatnonzero(first)]

    def of_each(self, numbers: Ints) -> Iterator[pl.DataFrame]:
        """The rows of the keys with these numbers, key by key."""
        starts = np.searchsorted(self.queries, numbers)
        stops = np.searchsorted(self.queries, numbers, side="right")
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            yield self.frame.slice(start, stop - start)


def read_groups(
    view: View, keys: Keys, time: Timestamp, columns: Sequence[str], schema: pa.Schema
) -> Groups:
    """The groups of some keys as of a time, in some columns of a state; `schema` declares these columns."""
    selection = view.lookup(keys, time)
    if (selection.counts != 1).any():
        selection = replace(selection, counts=np.maximum(selection.counts, 0)).repeated()
    queries = queries_of(selection)
    positions = view.schema.positions
    canonical = tuple([selection.canonical(positions[name]) for name in columns])
    rows = as_record_batch(schema, canonical, len(queries))
    return Groups(queries, pl.DataFrame(pl.from_arrow(rows)), canonical)


@dataclass(frozen=True)
class _WholeGroups(GroupPart):
    input: int
    schema: pa.Schema
    columns: tuple[str, ...]
    """The columns of a group that are handed over, the columns of the key first."""
    input_schema: pa.Schema = field(repr=False)

    def _read(self, view: View, keys: Keys, time: Timestamp) -> Groups:
        return read_groups(view, keys, time, self.columns, self.input_schema)


@dataclass(frozen=True)
class PolarsGroups(_WholeGroups):
    """Polars aggregations over each group."""

    expressions: tuple[pl.Expr, ...] = ()
    key: tuple[str, ...] = ()
    """The columns with the name of a key, which selectors leave out, as in Polars; none where nothing selects."""

    @property
    def code(self) -> str:
        """The user's code in the expressions that their text leaves out."""
        return left_out(self.expressions)

    def evaluate(self, view: View, keys: Keys, time: Timestamp) -> Evaluated:
        groups = self._read(view, keys, time)
        queries, frame = groups.queries, groups.frame
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
    keeps: tuple[str, ...] = ()

    @property
    def code(self) -> str:
        return code_of(self.function)

    def evaluate(self, view: View, keys: Keys, time: Timestamp) -> Evaluated:
        groups = self._read(view, keys, time)
        numbers = groups.numbers
        answers = Answers(self.schema, self.text, _DICT_WITH_MANY)
        for number, group in zip(numbers.tolist(), groups.of_each(numbers), strict=True):
            try:
                answer = exposed(self._call, group)
            except Exception as error:
                raise failed_group(error, self.text, group.row(0)[: self.key]) from error
            if self.many:
                answers.add_many(number, answer, partial(self._key_of, group))
            else:
                answers.add_one(number, answer, partial(self._key_of, group))
        result = answers.evaluated(self.many)
        if self.keeps:
            places = [self.columns.index(name) for name in self.keeps]
            taken = [groups.columns[at] for at in (*range(self.key), *places)]
            key = [self.input_schema.field(at) for at in range(self.key)]
            check_answers(self.text, self.keeps, keys, result, self.schema, key, taken)
        return result

    def _call(self, group: pl.DataFrame) -> Any:
        return as_answer(self.function(group)) if self.many else self.function(group)

    def _key_of(self, group: pl.DataFrame) -> tuple[Any, ...]:
        return group.row(0)[: self.key]


Group = Callable[[], tuple[Any, ...]]
"""Gives the key of a group, for messages."""

_DICT_WITH_MANY = (
    "with many=True give a list of rows: [row] for one, [] for none; or leave out many=True"
)


class Answers:
    """What a function gives for some groups, gathered into the columns of a result."""

    def __init__(self, schema: pa.Schema, function: str, hint_for_dicts: str) -> None:
        self._schema = schema
        self._function = function
        self._hint_for_dicts = hint_for_dicts
        self._rows: list[Any] = []
        self._owners: list[int] = []
        self._pieces: list[pa.RecordBatch] = []

    def add_one(self, number: int, answer: Any, group: Group) -> None:
        """Add the one row of the group whose key has this number."""
        if is_frame(answer):
            raise SchemaError(
                "schema.rows",
                f"the function {self._function} gave a frame for the group {group()}, not one row",
                hint="apply(function, schema, many=True) takes a frame, or a list of rows, for each group",
            )
        if self._holds_rows(answer):
            raise SchemaError(
                "schema.rows",
                f"the function {self._function} gave a list of rows for the group {group()}, not one row",
                hint="apply(function, schema, many=True) takes a list of rows, or a frame, for each group",
            )
        self._rows.append(_as_row(self._schema, answer) if len(self._schema) == 1 else answer)
        self._owners.append(number)

    def add_many(self, number: int, answer: Any, group: Group) -> None:
        """Add the rows of the group whose key has this number, brought to one form by `as_answer`."""
        if isinstance(answer, Mapping):
            raise SchemaError(
                "schema.rows",
                f"the function {self._function} gave a dict for the group {group()}, not a list of "
                "rows",
                hint=self._hint_for_dicts,
            )
        if not is_frame(answer) and not isinstance(answer, list):
            raise SchemaError(
                "schema.rows",
                f"the function {self._function} gave {show(answer)} for the group {group()}, not a list of rows",
                hint="give a list or a frame: [row] for one row, [] for none",
            )
        if is_frame(answer):
            self._convert_rows()
            self._pieces.append(self._converted(answer))
            self._owners += [number] * self._pieces[-1].num_rows
        else:
            self._rows += answer
            self._owners += [number] * len(answer)

    def evaluated(self, many: bool) -> Evaluated:
        """The result of all groups."""
        self._convert_rows()
        if not self._owners:
            nothing = canonical_columns(empty_batch(self._schema), self._schema)
            return np.zeros(0, np.int64), nothing, None
        pieces = self._pieces
        batch = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
        counts = np.ones(len(self._owners), np.int64) if many else None
        return np.array(self._owners, np.int64), canonical_columns(batch, self._schema), counts

    def _convert_rows(self) -> None:
        if self._rows:
            self._pieces.append(self._converted(self._rows))
            self._rows = []

    def _converted(self, rows: Any) -> pa.RecordBatch:
        return as_table(rows, self._schema, "take what a function of a group gave")

    def _holds_rows(self, answer: Any) -> bool:
        """Whether an answer is a list of rows, where one row or value was asked for."""
        one_list = len(self._schema) == 1 and pa.types.is_nested(self._schema.field(0).type)
        return (
            isinstance(answer, list)
            and not one_list
            and any(isinstance(r, dict | tuple) for r in answer)
        )


def as_answer(answer: Any) -> Any:
    """The rows that a function gave for a group: a frame as it is, anything else as a list. A dict is refused later, as
    is what holds no rows, such as None."""
    if is_frame(answer) or isinstance(answer, Mapping) or not isinstance(answer, Iterable):
        return answer
    return list(answer)


def failed_group(error: Exception, function: str, group: tuple[Any, ...]) -> OperatorFailed:
    """The error of a user's function of a group."""
    return failed_function(error, f"the function {function} of the group {group}", group=group)


def check_answers(
    function: str,
    keeps: Sequence[str],
    keys: Keys,
    result: Evaluated,
    schema: pa.Schema,
    key_fields: Sequence[pa.Field],
    taken: Sequence[pa.Array],
) -> None:
    """Refuse rows of groups that break the promise of their function (`operators.kept`).

    `taken` has, of the rows of the groups, the columns of the key and the kept ones. `key_fields` declare the key, and
    `schema` the columns that the function gives.
    """
    queries, columns, _ = result
    given = [*take_columns(keys.columns, queries)] if keys.columns else []
    for name in keeps:
        given.append(columns[schema.get_field_index(name)])
    fields = [schema.field(name) for name in keeps]
    check_groups(function, keeps, fields, list(key_fields), taken, given)


def is_frame(value: Any) -> bool:
    """Whether a value is a frame of Polars, of pandas or of Arrow."""
    return isinstance(value, pl.DataFrame | pl.LazyFrame | pa.Table | pa.RecordBatch) or (
        type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "columns")
    )


def _as_row(schema: pa.Schema, value: Any) -> Any:
    return value if isinstance(value, dict) else {schema.names[0]: value}
