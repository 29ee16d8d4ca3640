"""Random changes in both forms: plain tuples for the reference, and columns for the library."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from riverrun.progress import Antichain
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.schema import FULL_MASK, Order, Schema, conform_column
from riverrun.state.times import codes_in
from tests.drawn_rows import arrow_types, cells, to_arrow, to_plain
from tests.oracle import Change, Row, Time

MASKS = [FULL_MASK, FULL_MASK, 0, 1, 3, 0xFF << 56]
PLAIN = st.sampled_from([pa.int64(), pa.int64(), pa.int32(), pa.string(), pa.float64()])


@st.composite
def keyed_schemas(draw: st.DrawFn, key: pa.Schema | None = None) -> Schema:
    """A schema, over the key columns given if they are."""
    kinds = PLAIN | arrow_types()
    if key is None:
        count = draw(st.sampled_from([1, 1, 1, 0, 2]))
        key = pa.schema([(f"k{at}", draw(kinds)) for at in range(count)])
    value = {f"v{at}": draw(kinds) for at in range(draw(st.sampled_from([1, 1, 2, 0])))}
    order = [Order(name, draw(st.booleans())) for name in value if draw(st.booleans())]
    return Schema.of(key, value, order, draw(st.sampled_from(MASKS)))


@st.composite
def pools(draw: st.DrawFn, columns: pa.Schema, most: int = 5) -> list[Row]:
    """A few rows, so that changes meet."""
    row = st.tuples(*(cells(field.type) for field in columns))
    return draw(st.lists(row, min_size=1, max_size=most))


@st.composite
def changes_of(
    draw: st.DrawFn, keys: list[Row], values: list[Row], times: list[Time], most: int = 12
) -> list[Change]:
    one = st.tuples(
        st.sampled_from(keys),
        st.sampled_from(values),
        st.sampled_from(times),
        st.sampled_from([1, 1, -1, 2, 300, -(2**40)]),
    )
    return draw(st.lists(one, max_size=most))


def fresh(schema: Schema, changes: list[Change], slack: int = 0) -> Changes:
    """The changes with columns in physical order; `slack` rows before them show nowhere."""
    columns = []
    for field, kind in zip(schema.columns, schema.canonical, strict=True):
        declared = [*schema.key.names, *schema.value.names].index(field.name)
        plain = [(*key, *value)[declared] for key, value, _, _ in changes]
        array = to_arrow(plain[:1] * slack + plain, field.type)
        column = conform_column(array, field, kind, "test")
        columns.append(column.slice(len(column) - len(plain)))
    return with_times(columns, [time for *_, time, _ in changes], [diff for *_, diff in changes])


def with_times(columns: list[pa.Array], times: list[Time], diffs: list[int]) -> Changes:
    table = tuple(sorted(set(times))) or ((0,),)
    codes = codes_in(tuple(times), table) if len(table) > 1 else None
    diff = diffs[0] if len(set(diffs)) == 1 else 1
    many = np.array(diffs, np.int64) if len(set(diffs)) > 1 else None
    return Changes(tuple(columns), len(times), table, codes, diff, many)


def batch_of(schema: Schema, changes: list[Change], depth: int) -> Batch:
    """A batch of all times."""
    positions = range(len(schema.columns))
    return Batch.of(
        schema, fresh(schema, changes, 3), positions, Antichain.minimum(depth), Antichain()
    )


def rows_of(columns: list[pa.Array] | tuple[pa.Array, ...], rows: int) -> list[Row]:
    for column in columns:
        column.validate(full=True)
        assert len(column) == rows
    return list(zip(*map(to_plain, columns), strict=True)) if columns else [()] * rows


def listed(changes: Changes | None) -> list[tuple[Row, Time, int]]:
    """The changes as (row, time, diff), in their order, after a look at their laws."""
    if changes is None:
        return []
    assert list(changes.times) == sorted(set(changes.times))
    assert len(changes.times) >= 1
    assert (changes.codes is None) == (len(changes.times) == 1) == changes.single
    codes = [0] * changes.rows if changes.codes is None else changes.codes.tolist()
    if changes.codes is not None:
        assert changes.codes.dtype == np.int32
        assert set(codes) == set(range(len(changes.times)))
    diffs = changes.diff_array()
    assert diffs.dtype == np.int64
    rows = rows_of(changes.columns, changes.rows)
    times = [changes.times[code] for code in codes]
    return list(zip(rows, times, diffs.tolist(), strict=True))


def added_up(changes: Any) -> dict[Any, int]:
    """What is left of (what, ..., diff) when equal ones are added up."""
    counts: Counter[Any] = Counter()
    for *what, diff in changes:
        counts[tuple(what)] += diff
    return {what: count for what, count in counts.items() if count}


def box(depth: int, largest: int = 2) -> list[Time]:
    return list(itertools.product(range(largest + 1), repeat=depth))


def physical(schema: Schema, changes: list[Change]) -> list[tuple[Row, Time, int]]:
    """(row, time, diff) with rows in physical order."""
    names = [*schema.key.names, *schema.value.names]
    order = [names.index(field.name) for field in schema.columns]
    return [
        (tuple((*key, *value)[at] for at in order), time, diff)
        for key, value, time, diff in changes
    ]
