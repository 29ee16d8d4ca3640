"""Commands: the batches that an input is fed, with or without a key.

An input without a key is fed its columns and `diff`: 1 for an inserted row, -1 for a deleted row. An input with a key
is fed *commands*. A command either puts a row, which replaces the row with the same key, or deletes the row with a key;
it has the columns of the input, a sequence number, whether it deletes, and `diff`, which is always 1.

`Dataflow.input` declares commands, `run.inputs` and the tasks of `spark.ingest` make them, and `operators.upsert` obeys
them. All four take the columns and numbers of commands from here.

Laws:

- **Last counts.** Of several commands for a key in one epoch, the command with the greatest number counts
  (`LAST_FIRST`). So neither the cutting of batches nor their order of arrival shows.
- **No two numbers.** No two commands of an input in one epoch have the same number. Numbers are below `NUMBERS`. Rows
  inserted in this process are numbered in their order. A DataFrame takes `FRAME` numbers, and each of its partitions
  takes those of `partition_numbers`. Commands for which no number is left are refused.
- **Keys only.** A deletion has the key alone: its other columns are null. A key has no nulls.

>>> edges = InputRows(pa.schema({"id": pa.int64(), "name": pa.string()}), ("id",))
>>> put = edges.conform([(1, "Oslo"), (2, "Rome")], "upsert into 'cities'")
>>> edges.fed(put, first=7).to_pylist()[1]
{'id': 2, 'name': 'Rome', '__sequence__': 8, '__deleted__': False, 'diff': 1}
>>> edges.fed(edges.deletion([1], "delete from 'cities'"), delete=True, first=9).to_pylist()
[{'id': 1, 'name': None, '__sequence__': 9, '__deleted__': True, 'diff': 1}]

Cost: some microseconds a batch, and 17 bytes a command.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from riverrun.errors import OperatorFailed, SchemaError
from riverrun.rows.convert import as_table
from riverrun.state import Order
from riverrun.state.columns import as_column
from riverrun.state.types import canonical

SEQUENCE, DELETED, DIFF = "__sequence__", "__deleted__", "diff"
RESERVED = (SEQUENCE, DELETED)
"""Names that no column of an input with a key may have."""
LAST_FIRST = Order(SEQUENCE, descending=True)
"""The order of the commands for a key: the command that counts comes first."""
NUMBERS = 1 << 63
"""The most commands of an input in one epoch."""
FRAME = 1 << 52
"""The most commands of a DataFrame, and the numbers it takes."""
PARTITION = 1 << 32
"""The most commands of one partition of a DataFrame."""
_FORMS = ("schema.column_missing", "schema.column_unknown", "schema.ragged", "schema.not_rows")
"""Codes of refusals of rows because of their form, whatever their values."""
_SMALL = 64  # up to so many rows, the column of diffs is a slice of one in _DIFFS
_DIFFS = {diff: as_column(np.full(_SMALL, diff, np.int64)) for diff in (1, -1)}


def commands_schema(columns: pa.Schema) -> pa.Schema:
    """The columns of commands for rows with these columns. All are nullable: a deletion has nulls outside the key."""
    nullable = [pa.field(field.name, field.type) for field in columns]
    return pa.schema([*nullable, pa.field(SEQUENCE, pa.int64()), pa.field(DELETED, pa.bool_())])


def partition_numbers(first: int, partition: int) -> range:
    """The numbers of a partition of a DataFrame whose numbers begin at `first`; empty where `FRAME` is used up."""
    start = first + partition * PARTITION
    return range(start, min(start + PARTITION, first + FRAME))


def too_many_commands(partition: int, attempt: str) -> OperatorFailed:
    """The refusal of a partition of a DataFrame for whose commands no numbers are left."""
    return OperatorFailed(
        "spark.commands",
        f"cannot {attempt}: the rows of partition {partition} cannot be numbered",
        hint=f"for an input with a key a DataFrame has at most {FRAME // PARTITION} partitions, of {PARTITION} rows: "
        "repartition it",
        partition=partition,
    )


@dataclass(frozen=True)
class InputRows:
    """The declaration of an input: its columns, and its key if it has one, by which rows replace each other."""

    schema: pa.Schema
    """The declared columns."""
    key: tuple[str, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that the input is fed."""
        return (*self.schema.names, *(RESERVED if self.key else ()), DIFF)

    @cached_property
    def _keys(self) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in self.key])

    def conform(self, rows: Any, attempt: str) -> pa.RecordBatch:
        """Rows in any form as a batch of the declared columns; `attempt` is for errors: "insert into 'edges'"."""
        return self._conformed(rows, self.schema, attempt)

    def deletion(self, rows_or_keys: Any, attempt: str) -> pa.RecordBatch:
        """A batch of rows to delete. With a key: from keys or whole rows, of which only the key stays."""
        if not self.key:
            return self._conformed(rows_or_keys, self.schema, attempt)
        if isinstance(rows_or_keys, Iterator):
            rows_or_keys = list(rows_or_keys)
        try:
            keys = self._conformed(_as_keys(rows_or_keys, self.key), self._keys, attempt)
        except SchemaError as error:
            try:
                keys = self._conformed(rows_or_keys, self.schema, attempt)
            except SchemaError as whole:
                # Where the rows do not have the form of keys, the refusal of them as whole rows says more.
                says_more = error.code in _FORMS and whole.code not in _FORMS
                raise (whole if says_more else error) from None
        columns = [
            keys.column(field.name)
            if field.name in self.key
            else pa.nulls(keys.num_rows, canonical(field.type))
            for field in self.schema
        ]
        return pa.record_batch(columns, names=self.schema.names)

    def fed(self, rows: pa.RecordBatch, *, delete: bool = False, first: int = 0) -> pa.RecordBatch:
        """A batch of `conform` or `deletion` as the input is fed it; `first` is the number of the first command."""
        columns, count = rows.columns, rows.num_rows
        diff = -1 if delete and not self.key else 1
        if self.key:
            columns.append(as_column(np.arange(first, first + count, dtype=np.int64)))
            columns.append(pa.repeat(delete, count))
        small = count <= _SMALL
        columns.append(
            _DIFFS[diff].slice(0, count) if small else as_column(np.full(count, diff, np.int64))
        )
        return pa.RecordBatch.from_arrays(columns, names=list(self.names))

    def _conformed(self, rows: Any, schema: pa.Schema, attempt: str) -> pa.RecordBatch:
        """Rows as a batch of `schema`; a null in the key gets a refusal of its own."""
        try:
            return as_table(rows, schema, attempt)
        except SchemaError as error:
            if error.code != "schema.null" or error.fields.get("column") not in self.key:
                raise
            raise self._null_key(error, attempt) from None

    def _null_key(self, error: SchemaError, attempt: str) -> SchemaError:
        column, row = error.fields["column"], error.fields.get("row")
        where = "there is a null" if row is None else f"row {row} has None"
        key = "which is the key: a key has no nulls"
        if len(self.key) > 1:
            key = f"which is part of the key ({', '.join(self.key)}): a key has no nulls"
        return SchemaError(
            "schema.null_key",
            f"cannot {attempt}: {where} in column {column!r}, {key}",
            hint="leave these rows out, or give the column a value that stands for nothing; an input without a key "
            "takes nulls",
            **{**error.fields, "key": self.key},
        )


def _as_keys(rows_or_keys: Any, key: tuple[str, ...]) -> Any:
    """Keys as rows of one column each, where the key is one column and the keys are bare values; else unchanged."""
    is_bare = (
        isinstance(rows_or_keys, list)
        and rows_or_keys
        and not isinstance(rows_or_keys[0], dict | tuple)
    )
    if len(key) == 1 and is_bare:
        return [value if hasattr(value, "__dict__") else (value,) for value in rows_or_keys]
    return rows_or_keys
