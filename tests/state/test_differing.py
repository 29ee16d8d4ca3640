"""What leads from old rows to new ones, many equal rows, and many keys in order, against plain Python."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.errors import TimeViolation
from riverrun.progress import Antichain
from riverrun.state import Schema, Spine
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.keys import Keys
from riverrun.state.schema import FULL_MASK, conform_column
from riverrun.state.view import View
from tests.drawn_rows import to_arrow
from tests.state.checks import check_block, set_sizes
from tests.state.pieces import batch_of, changes_of, keyed_schemas, pools, rows_of


def check_batch(batch: Batch) -> None:
    """The laws of its blocks."""
    last = -1
    for block in batch.blocks:
        assert last < block.first
        last = block.last
        check_block(block, batch.lower)


def plain(batch: Batch) -> Counter[tuple[object, ...]]:
    """The rows of a batch and their diffs."""
    view = View("batch", batch.schema, (batch,), Antichain([(0,)]), Antichain())
    asked = view.scan((1 << 40,))
    counts_by_row: Counter[tuple[object, ...]] = Counter()
    for piece in asked:
        columns = [piece.canonical(at) for at in range(len(batch.schema.columns))]
        for row, count in zip(rows_of(columns, len(piece)), piece.counts.tolist(), strict=True):
            counts_by_row[row] += count
    return counts_by_row


@given(st.data(), st.sampled_from([None, 0]), st.sampled_from([None, 1, 3]))
def test_old_rows_and_a_difference_are_the_new_rows(
    data: st.DataObject, packed: int | None, block: int | None
) -> None:
    schema = data.draw(keyed_schemas())
    schema = Schema.of(schema.key, schema.value, (), schema.hash_mask)
    keys, values = data.draw(pools(schema.key)), data.draw(pools(schema.value))
    before = data.draw(changes_of(keys, values, [(0,)], 10))
    touched = data.draw(changes_of(keys, values, [(1,)], 6))
    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, block=block, packed=packed)
        old_batch = batch_of(schema, before, 1)
        only = Schema.of(schema.key, {}, (), schema.hash_mask)
        asked = Keys.of_batch(batch_of(only, [(key, (), (1,), 1) for key, *_ in touched], 1))
        view = View("old", schema, (old_batch,), Antichain([(0,)]), Antichain())
        old = view.lookup(asked, (0,))
        queries = np.flatnonzero([data.draw(st.booleans()) for _ in range(len(asked))])
        rows = [data.draw(st.sampled_from(values)) for _ in queries]
        new_values = [
            conform_column(to_arrow([row[at] for row in rows], field.type), field, kind, "test")
            for at, (field, kind) in enumerate(
                zip(schema.value, schema.canonical[len(schema.key) :], strict=True)
            )
        ]
        lower, upper = Antichain([(1,)]), Antichain([(2,)])
        batch = Batch.difference(schema, asked, queries, new_values, old, (1,), lower, upper)
        assert batch is not None
        check_batch(batch)
    named = rows_of(asked.take(queries).columns, len(queries))
    expected = Counter(
        (*key, *value) for key, value in zip(named, rows_of(new_values, len(queries)), strict=True)
    )
    columns = [old.canonical(at) for at in range(len(schema.columns))]
    for row, count in zip(rows_of(columns, len(old)), old.counts.tolist(), strict=True):
        expected[row] -= count
    assert plain(batch) == Counter({row: count for row, count in expected.items() if count})


def test_keys_in_no_order_are_left_to_others() -> None:
    schema = Schema.of({"k": pa.int64()}, {"v": pa.int64()})
    view = View("nothing", schema, (), Antichain([(0,)]), Antichain())
    keys = Keys((pa.array([5, 3, 9, 1]),), 4)
    lower, upper = Antichain([(1,)]), Antichain([(2,)])
    difference = (np.arange(4), [pa.array([1, 1, 1, 1])], view.lookup(keys, (0,)))
    assert Batch.difference(schema, keys, *difference, (1,), lower, upper) is None
    with pytest.raises(TimeViolation):
        Batch.difference(schema, keys, *difference, (2,), lower, upper)


@pytest.mark.parametrize("mask", [FULL_MASK, 0xFFF << 52, 0xFF])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.int32(), pa.float64()])
@pytest.mark.parametrize("values", [True, False])
def test_many_equal_rows_are_added_up(mask: int, kind: pa.DataType, values: bool) -> None:
    rng = np.random.default_rng(7)
    schema = Schema.of({"k": kind}, {"v": pa.int64()} if values else {}, (), mask)
    keys, cells = rng.integers(0, 700, 20_000), rng.integers(0, 4, 20_000)
    diffs, codes = rng.integers(-1, 3, 20_000), rng.integers(0, 2, 20_000).astype(np.int32)
    column = conform_column(
        pa.array([f"key {key}" for key in keys]) if kind == pa.string() else pa.array(keys).cast(kind),
        schema.key.field(0), schema.canonical[0], "test",
    )  # fmt: skip
    columns = (column, pa.array(cells)) if values else (column,)
    changes = Changes(columns, len(keys), ((0,), (1,)), codes, 0, diffs)
    batch = Batch.of(schema, changes, range(len(columns)), Antichain([(0,)]), Antichain([(2,)]))
    check_batch(batch)
    expected: Counter[tuple[object, ...]] = Counter()
    parts = (keys, cells, codes) if values else (keys, codes)
    for *row, diff in zip(*(part.tolist() for part in parts), diffs.tolist(), strict=True):
        expected[tuple(row)] += diff
    assert len(batch) == sum(diff != 0 for diff in expected.values())
    assert sum(plain(batch).values()) == sum(diffs.tolist())


@pytest.mark.parametrize("mask", [FULL_MASK, 0xFFF << 52])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_keys_in_order_are_found_as_others_are(mask: int, kind: pa.DataType) -> None:
    rng = np.random.default_rng(8)
    schema = Schema.of({"k": kind}, {"v": pa.int64()}, (), mask)
    spine = Spine("walked", schema)

    def cells(keys: np.ndarray) -> pa.Array:  # type: ignore[type-arg]
        return pa.array(keys) if kind == pa.int64() else pa.array([f"key {key}" for key in keys])

    for epoch, rows in enumerate([20_000, 6000, 1000, 300]):
        keys = rng.integers(0, 9000, rows)
        spine.insert(pa.table({"k": cells(keys), "v": keys + epoch}), (epoch,))
    asked = rng.permutation(12_000)[:3000]
    only = Schema.of(schema.key, {}, (), mask)
    table = pa.table({"k": cells(asked)})
    fresh = Batch.build(only, table, time=(0,), lower=Antichain([(0,)]), upper=Antichain([(1,)]))
    ordered = Keys.of_batch(fresh)
    view = spine.view()

    def rows_of_lookup(keys: object, names: list[object]) -> set[tuple[object, ...]]:
        got = view.lookup(keys, (3,))  # type: ignore[arg-type]
        assert got.queries is not None
        who = [names[query] for query in got.queries.tolist()]
        return set(zip(who, got.column("v").to_pylist(), got.counts.tolist(), strict=True))

    plain_keys = cells(asked).to_pylist()
    assert rows_of_lookup(ordered, ordered.columns[0].to_pylist()) == rows_of_lookup(
        table, plain_keys
    )
    assert len(rows_of_lookup(table, plain_keys)) > 1000
