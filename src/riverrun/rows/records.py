"""Records: columns as the engine keeps them, converted to rows in the declared types, and back.

The engine keeps *canonical* columns (`Schema.canonical`: one layout for each type); users declare, and are shown, Arrow
types of their choice. Operators convert where they call functions of users; results, sinks and Spark convert where rows
leave. The law:

- **Round trip.** ``canonical_columns(as_record_batch(schema, columns, rows), schema)`` equals `columns`, for all
  canonical `columns`.

Cost: some microseconds a batch where no type differs. The layouts of a schema are worked out once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from riverrun.rows.conditions import Where
from riverrun.state import Schema
from riverrun.state.changes import Changes
from riverrun.state.columns import as_column
from riverrun.state.schema import conform_column, declared_column, free_name
from riverrun.state.types import (
    declared_schema,
    declared_type,
    has_dictionaries,
    shown_schema,
    spelled,
)

Columns = Sequence[pa.Array]


_KNOWN: dict[int, tuple[pa.Schema, tuple[pa.DataType, ...], pa.Schema]] = {}
"""For a schema, by its id: the schema itself (held, so that no other schema gets its id), the canonical types, and the
schema that users are shown."""


_MOST_KNOWN = 1024


def as_record_batch(schema: pa.Schema, columns: Columns, rows: int) -> pa.RecordBatch:
    """Canonical columns as a batch in the types that users are shown."""
    if not len(schema):
        return pa.record_batch({"": pa.nulls(rows)}).select([])
    declared = [declared_column(c, f) for c, f in zip(columns, schema, strict=True)]
    return pa.record_batch(declared, schema=_known(schema)[2])


def _known(schema: pa.Schema) -> tuple[pa.Schema, tuple[pa.DataType, ...], pa.Schema]:
    known = _KNOWN.get(id(schema))
    if known is None or known[0] is not schema:
        while len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.pop(next(iter(_KNOWN)), None)
        known = schema, Schema.of({}, schema).canonical, shown_schema(schema)
        _KNOWN[id(schema)] = known
    return known


def canonical_columns(batch: pa.RecordBatch, schema: pa.Schema) -> tuple[pa.Array, ...]:
    """The columns of a batch in the canonical layout."""
    return tuple(
        [
            conform_column(batch.column(at), field, kind, "take rows in")
            for at, (field, kind) in enumerate(zip(schema, _known(schema)[1], strict=True))
        ]
    )


def with_times(schema: pa.Schema, changes: Changes) -> pa.RecordBatch:
    """Changes as rows with two more columns, `time` (a list of integers) and `diff`."""
    batch = as_record_batch(schema, changes.columns, changes.rows)
    codes = np.zeros(changes.rows, np.int64) if changes.codes is None else changes.codes
    times = pa.array([list(time) for time in changes.times], pa.list_(pa.int64()))
    columns: Mapping[str, Any] = {
        **{field.name: batch.column(at) for at, field in enumerate(schema)},
        free_name("time", schema.names): times.take(as_column(codes)),
        free_name("diff", schema.names): as_column(changes.diff_array()),
    }
    return pa.record_batch(columns)


def python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as dicts for an error. A column that Python cannot hold (dates after the year 9999) becomes text."""
    columns: list[list[Any]] = []
    for column in batch.columns:
        try:
            columns.append(column.to_pylist())
        except (OverflowError, ValueError):
            texts = [
                column.slice(at, 1).to_string(skip_new_lines=True) for at in range(len(column))
            ]
            columns.append([text.removeprefix("[").removesuffix("]").strip() for text in texts])
    names = batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def undictionaried(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Batches as they travel between processes, and their schema: dictionaries replaced by their values."""
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
    """A batch that has travelled, back in the types that users are shown."""
    if batch.schema.types == schema.types:
        return batch
    declared = declared_schema(schema)
    return as_record_batch(declared, canonical_columns(batch, declared), batch.num_rows)


def narrowed(
    batch: pa.RecordBatch, columns: Sequence[str] | None, where: Sequence[Where]
) -> pa.RecordBatch:
    """The rows that satisfy all conditions, with the chosen columns alone; None: all columns."""
    for condition in where:
        batch = batch.filter(condition.mask(batch))
    return batch if columns is None else batch.select(list(columns))
