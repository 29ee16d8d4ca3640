"""What must hold of every spine and view, whatever was done to it, checked against the reference."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from riverrun.progress import Antichain
from riverrun.state import block as block_module
from riverrun.state import columns as columns_module
from riverrun.state import merge as merge_module
from riverrun.state import spine as spine_module
from riverrun.state.block import Block
from riverrun.state.schema import Schema
from riverrun.state.spine import Spine
from riverrun.state.view import Selection, View
from tests.drawn_rows import plain_rows, to_arrow, to_plain
from tests.oracle import Reference, Row, Time, before, rank
from tests.state.hashing import hash_in


def set_sizes(
    patch: pytest.MonkeyPatch,
    *,
    block: int | None = None,
    chunk: int | None = None,
    fuel: int | None = None,
    fold: tuple[int, int] | None = None,
    packed: int | None = None,
) -> None:
    """Make large things small: rows of a block and of a chunk, least fuel, (rows, batches) folded, rows packed."""
    if block is not None:
        patch.setattr(block_module, "BLOCK_ROWS", block)
    if chunk is not None:
        for module in (block_module, merge_module):
            patch.setattr(module, "CHUNK_ROWS", chunk)
    if packed is not None:
        patch.setattr(block_module, "PACKED_ROWS", packed)
        patch.setattr(columns_module, "_FEW", packed)
    if fuel is not None:
        patch.setattr(spine_module, "LEAST_FUEL", fuel)
        patch.setattr(spine_module, "WORTH_A_CALL", 2 * fuel)
    if fold is not None:
        patch.setattr(spine_module, "FOLD_ROWS", fold[0])
        patch.setattr(spine_module, "FOLD_BATCHES", fold[1])


NEVER_FOLD = (-1, 2)


def reference_for(schema: Schema) -> Reference:
    names = schema.value.names
    return Reference(tuple((names.index(o.column), o.descending) for o in schema.order))


def key_table(schema: Schema, keys: Sequence[Row]) -> pa.RecordBatch:
    """Query keys; a record batch counts its rows even where the key has no columns."""
    whole = {"": pa.nulls(len(keys))} | {
        field.name: to_arrow([key[at] for key in keys], field.type)
        for at, field in enumerate(schema.key)
    }
    return pa.record_batch(whole).select(schema.key.names)


def readable(view: View, largest: int) -> list[Time]:
    """Every time in [since, upper) with coordinates up to `largest`, by the definition."""
    depth = next((len(t) for t in (*view.since, *view.upper)), 1)
    box = itertools.product(range(largest + 1), repeat=depth)
    return [
        t
        for t in box
        if any(before(s, t) for s in view.since) and not any(before(u, t) for u in view.upper)
    ]


def answers(schema: Schema, selection: Selection, queries: int) -> list[list[tuple[Row, int]]]:
    """Per query, the values found and their counts, in the order in which they came."""
    values = plain_rows(_values(selection, schema), schema.value.names)
    values_by_query: list[list[tuple[Row, int]]] = [[] for _ in range(queries)]
    assert selection.queries is not None
    assert list(selection.queries) == sorted(selection.queries)
    for query, value, count in zip(selection.queries, values, selection.counts, strict=True):
        values_by_query[query].append((value, int(count)))
    return values_by_query


def _values(selection: Selection, schema: Schema) -> pa.RecordBatch:
    columns = {"": pa.nulls(len(selection))}
    for field in schema.value:
        columns[field.name] = selection.column(field.name)
        assert columns[field.name].type.equals(field.type)
    return pa.record_batch(columns)


def check_lookup(view: View, reference: Reference, keys: Sequence[Row], as_of: Time) -> None:
    schema = view.schema
    got = view.lookup(key_table(schema, keys), as_of)
    assert answers(schema, got, len(keys)) == [reference.lookup(key, as_of) for key in keys]
    if schema.key.names:
        key_columns = {name: got.column(name) for name in schema.key.names}
        asked = [keys[query] for query in got.queries]  # type: ignore[union-attr]
        assert plain_rows(pa.record_batch(key_columns), schema.key.names) == asked


def check_ends(
    view: View, reference: Reference, keys: Sequence[Row], as_of: Time, k: int, bounds: list[Any]
) -> None:
    """`first` and `last`, with and without nulls, and up to bounds where an order is declared."""
    schema, table, n = view.schema, key_table(view.schema, keys), len(keys)
    for skip in (False, True):
        got = view.first(table, as_of, k, skip_null=skip)
        expected = [reference.first(key, as_of, k, skip) for key in keys]
        assert answers(schema, got, n) == expected
        got = view.last(table, as_of, k, skip_null=skip)
        expected = [reference.last(key, as_of, k, skip_null=skip) for key in keys]
        assert answers(schema, got, n) == expected
    if schema.order and bounds:
        chosen = [bounds[at % len(bounds)] for at in range(n)]
        kind = schema.value.field(schema.order[0].column).type
        for closed in (True, False):
            got = view.last(table, as_of, k, at=to_arrow(chosen, kind), closed=closed)
            expected = [
                reference.last(key, as_of, k, at, closed)
                for key, at in zip(keys, chosen, strict=True)
            ]
            assert answers(schema, got, n) == expected


def check_scan(view: View, reference: Reference, as_of: Time, piece: int) -> None:
    schema = view.schema
    counts_by_row: dict[tuple[Row, Row], int] = {}
    hashes = []
    for selection in view.scan(as_of, piece):
        assert len(selection) > 0
        columns = {"": pa.nulls(len(selection))} | {
            field.name: selection.column(field.name) for field in [*schema.key, *schema.value]
        }
        rows = pa.record_batch(columns)
        keys, values = plain_rows(rows, schema.key.names), plain_rows(rows, schema.value.names)
        for key, value, count in zip(keys, values, selection.counts, strict=True):
            assert (key, value) not in counts_by_row
            counts_by_row[key, value] = int(count)
            hashes.append(hash_in(schema, key))
    assert counts_by_row == reference.read(as_of)
    assert hashes == sorted(hashes)


def check_changes(
    view: View, reference: Reference, keys: Sequence[Row], times: Iterable[Time]
) -> None:
    """Added up over the times at or before t, changes are what is there as of t."""
    schema = view.schema
    got = view.changes(key_table(schema, keys))
    values = plain_rows(_values(got, schema), schema.value.names)
    assert got.codes is not None
    assert got.queries is not None
    changes = [
        (int(query), value, got.times[code], int(diff))
        for query, value, code, diff in zip(got.queries, values, got.codes, got.counts, strict=True)
    ]
    assert all(diff != 0 for *_, diff in changes)
    for t in times:
        for query, key in enumerate(keys):
            counts: dict[Row, int] = {}
            for at, value, time, diff in changes:
                if at == query and before(time, t):
                    counts[value] = counts.get(value, 0) + diff
            here = {(key, value): count for value, count in counts.items() if count != 0}
            assert here == reference.read(t, key)


def check_laws(spine: Spine) -> None:
    """The chain of batches, and the laws that `block` states."""
    view = spine.view()
    at = spine.lower
    for batch in view.batches:
        assert batch.lower == at
        at = batch.upper
        last_hash = -1
        for block in batch.blocks:
            assert last_hash < block.first <= block.last  # the whole-hashes law
            last_hash = block.last
            check_block(block, batch.lower)
    assert at == spine.upper
    assert view.since == spine.since
    assert view.upper == spine.upper
    assert len(spine) == sum(map(len, view.blocks))


def block_rows(block: Block) -> list[tuple[int, Row, Row, int, int]]:
    """(hash, key, value, code, diff) of all rows; columns in physical order."""
    schema, count = block.schema, len(block.hashes)
    cut = len(schema.key)
    hashes = block.hashes.to_pylist()
    columns = [
        keys_with_hashes(hashes) if column is None else to_plain(column) for column in block.columns
    ]
    keys = list(zip(*columns[:cut], strict=True)) if cut else [()] * count
    values = list(zip(*columns[cut:], strict=True)) if len(columns) > cut else [()] * count
    codes = [0] * count if block.codes is None else block.codes.to_pylist()
    diffs = [block.diff] * count if block.diffs is None else block.diffs.to_pylist()
    return list(zip(hashes, keys, values, codes, diffs, strict=True))


def keys_with_hashes(hashes: list[int]) -> list[int]:
    """The integers of which these are the hashes."""
    word = (1 << 64) - 1
    keys = []
    for x in hashes:
        x ^= x >> 31 ^ x >> 62
        x = x * pow(0x94D049BB133111EB, -1, 1 << 64) & word
        x ^= x >> 27 ^ x >> 54
        x = x * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & word
        x ^= x >> 30 ^ x >> 60
        x = (x - 0x9E3779B97F4A7C15) & word
        keys.append(x - (1 << 64) if x >> 63 else x)
    return keys


def check_block(block: Block, lower: Antichain) -> None:
    schema = block.schema
    all_rows = block_rows(block)
    rows = all_rows[block.start : block.stop]
    assert 0 < len(rows) == len(block)
    judge = Reference(
        tuple((at, o.descending) for at, o in enumerate(schema.order))
    )  # physical order: the declared columns come first
    keys = [
        (h, tuple(map(rank, key)), judge.value_rank(value), code) for h, key, value, code, _ in rows
    ]
    assert all(a < b for a, b in itertools.pairwise(keys))  # the sorted law
    assert all(diff != 0 for *_, diff in rows)  # the no-zeros law
    assert all(h == hash_in(schema, key) for h, key, *_ in rows)
    assert list(block.times) == sorted(set(block.times))
    assert all(0 <= code < len(block.times) for *_, code, _ in all_rows)
    assert all(any(before(x, t) for x in lower) for t in block.times)
    # The constants-left-out law, over all rows: a slice shares the columns of the block it was cut from.
    assert (block.codes is None) == (len({code for *_, code, _ in all_rows}) == 1)
    assert {code for *_, code, _ in all_rows} == set(range(len(block.times)))
    assert (block.diffs is None) == (len({diff for *_, diff in all_rows}) == 1)
    if block.columns and block.columns[0] is None:
        assert schema.invertible
    elif schema.invertible:
        assert block.columns[0].type.equals(schema.canonical[0])
    for array in (block.hashes, *block.columns, block.codes, block.diffs):
        if array is not None:
            array.validate(full=True)
