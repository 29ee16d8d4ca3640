"""Commands: rows as an input is fed them, and what an input with a key is told to do with them.

An input without a key is fed its columns and `diff`: 1 for a row that is inserted, -1 for one that is deleted. An input
with a key is fed *commands*: its columns, the sequence number of the command, whether the row with that key is deleted
rather than put, and `diff`, which is 1. `Dataflow.input` declares commands, `run.inputs` and the tasks of
`spark.ingest` make them, and `operators.upsert` obeys them; all of them have their columns and numbers from here.

Laws:

- **Last counts.** Of several commands for a key in one epoch the one with the greatest number counts (`LAST_FIRST`), so
  neither cutting nor order of arrival shows.
- **No two numbers.** No two commands of an input have one number in one epoch. There are `NUMBERS` of them. Rows that
  are given in this process have one each, in the order in which they were given. A DataFrame has `FRAME` numbers set
  aside, of which each of its partitions has as many as `partition_numbers` says. Whoever runs out of numbers is
  refused.
- **Keys only.** A deletion says the key and nothing else: whatever other columns it was given are null. A key has no
  nulls.

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
from riverrun.state.types import canonical

SEQUENCE, DELETED, DIFF = "__sequence__", "__deleted__", "diff"
RESERVED = (SEQUENCE, DELETED)
"""Names that the columns of an input with a key do not have."""
LAST_FIRST = Order(SEQUENCE, descending=True)
"""The order of the commands for a key: the one that counts comes first."""
NUMBERS = 1 << 63
"""How many commands an input may have in an epoch."""
FRAME = 1 << 52
"""How many commands a DataFrame may have: so many numbers are set aside for it."""
PARTITION = 1 << 32
"""How many commands a partition of a DataFrame may have."""
_FORMS = ("schema.column_missing", "schema.column_unknown", "schema.ragged", "schema.not_rows")
"""What rows are refused for whose form is another one, whatever their values."""
_SMALL = 64  # rows of one batch whose diffs are not written anew
_DIFFS = {diff: pa.array(np.full(_SMALL, diff, np.int64)) for diff in (1, -1)}


def commands_schema(columns: pa.Schema) -> pa.Schema:
    """The columns of commands about rows with these columns, which may be null in a deletion."""
    nullable = [pa.field(field.name, field.type) for field in columns]
    return pa.schema([*nullable, pa.field(SEQUENCE, pa.int64()), pa.field(DELETED, pa.bool_())])


def partition_numbers(first: int, partition: int) -> range:
    """The numbers for a partition of a DataFrame, whose own begin with `first`; none for one partition too many."""
    start = first + partition * PARTITION
    return range(start, min(start + PARTITION, first + FRAME))


def too_many_commands(partition: int, attempt: str) -> OperatorFailed:
    """The refusal of a partition of a DataFrame for whose commands there are no numbers."""
    return OperatorFailed(
        "spark.commands",
        f"cannot {attempt}: the rows of partition {partition} cannot be numbered",
        hint=f"for an input with a key a DataFrame has at most {FRAME // PARTITION} partitions, of {PARTITION} rows: "
        "repartition it",
        partition=partition,
    )


@dataclass(frozen=True)
class InputRows:
    """What the rows of an input are: its columns, and the key by which rows replace each other, if there is one."""

    schema: pa.Schema
    """The declared columns."""
    key: tuple[str, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns that the input is fed."""
        return (*self.schema.names, *(RESERVED if self.key else ()), DIFF)

    @cached_property
    def _keys(self) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in self.key])

    def conform(self, given: Any, attempt: str) -> pa.RecordBatch:
        """Rows in any form as the declared columns; `attempt` says what for: "insert into 'edges'"."""
        return self._conformed(given, self.schema, attempt)

    def deletion(self, given: Any, attempt: str) -> pa.RecordBatch:
        """What is to be deleted: rows; or, with a key, keys or rows with it, of which only the key is taken."""
        if not self.key:
            return self._conformed(given, self.schema, attempt)
        if isinstance(given, Iterator):
            given = list(given)
        try:
            keys = self._conformed(_as_keys(given, self.key), self._keys, attempt)
        except SchemaError as error:
            try:
                keys = self._conformed(given, self.schema, attempt)
            except (
                SchemaError
            ) as whole:  # which says more, where the rows do not have the form of keys
                raise (
                    whole if error.code in _FORMS and whole.code not in _FORMS else error
                ) from None
        columns = [
            keys.column(field.name)
            if field.name in self.key
            else pa.nulls(keys.num_rows, canonical(field.type))
            for field in self.schema
        ]
        return pa.record_batch(columns, names=self.schema.names)

    def fed(self, rows: pa.RecordBatch, *, delete: bool = False, first: int = 0) -> pa.RecordBatch:
        """Rows, or a deletion, as the input is fed them; `first` is the number of the first command."""
        columns, count = rows.columns, rows.num_rows
        diff = -1 if delete and not self.key else 1
        if self.key:
            columns.append(pa.array(np.arange(first, first + count, dtype=np.int64)))
            columns.append(pa.repeat(delete, count))
        small = count <= _SMALL
        columns.append(
            _DIFFS[diff].slice(0, count) if small else pa.array(np.full(count, diff, np.int64))
        )
        return pa.RecordBatch.from_arrays(columns, names=list(self.names))

    def _conformed(self, given: Any, schema: pa.Schema, attempt: str) -> pa.RecordBatch:
        """Rows of some of the columns; a null in the key is refused as such."""
        try:
            return as_table(given, schema, attempt)
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


def _as_keys(given: Any, key: tuple[str, ...]) -> Any:
    """Keys as rows: where the key is one column, bare values are keys."""
    is_bare = isinstance(given, list) and given and not isinstance(given[0], dict | tuple)
    if len(key) == 1 and is_bare:
        return [value if hasattr(value, "__dict__") else (value,) for value in given]
    return given
