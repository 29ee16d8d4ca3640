"""Keys, the times at which they change later, and pairs of equal keys, against loops over all changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.errors import OperatorFailed
from riverrun.progress import Antichain
from riverrun.state import Schema, Spine
from riverrun.state.keys import Keys
from riverrun.state.matching import match
from riverrun.state.view import View
from tests.oracle import Change, Row, Time, before
from tests.state.checks import answers, key_table, reference_for, set_sizes
from tests.state.hashing import hash_in
from tests.state.pieces import (
    added_up,
    batch_of,
    box,
    changes_of,
    fresh,
    keyed_schemas,
    pools,
    rows_of,
)


def join(a: Time, b: Time) -> Time:
    return tuple(map(max, a, b))


def view_of(schema: Schema, pieces: list[list[Change]], depth: int) -> View:
    """A view with one batch a piece. Frontiers play no part in what is tested here."""
    batches = tuple(batch_of(schema, piece, depth) for piece in pieces)
    return View("state", schema, batches, Antichain.minimum(depth), Antichain())


@st.composite
def states(draw: st.DrawFn) -> tuple[Schema, list[list[Change]], int, list[Row]]:
    schema = draw(keyed_schemas())
    depth = draw(st.integers(1, 3))
    keys, values = draw(pools(schema.key)), draw(pools(schema.value))
    few = draw(st.lists(st.sampled_from(box(depth)), min_size=1, max_size=3))
    pieces = draw(st.lists(changes_of(keys, values, few, 8), max_size=4))
    return schema, pieces, depth, keys


def keys_of(schema: Schema, keys: list[Row]) -> Keys:
    distinct = list(dict.fromkeys(keys))
    changes = [(key, (None,) * len(schema.value), (0,), 1) for key in distinct]
    only = Schema.of(schema.key, {}, (), schema.hash_mask)
    return Keys(
        fresh(only, [(key, (), time, 1) for key, _, time, _ in changes], 2).columns, len(distinct)
    )


@given(states(), st.sampled_from([None, 1, 3]))
def test_keys_of_a_batch_are_distinct_and_whole(state, block) -> None:
    schema, pieces, depth, keys = state
    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, block=block, chunk=block)
        batches = [batch_of(schema, piece, depth) for piece in pieces]
    keys_of_batches = []
    for batch, piece in zip(batches, pieces, strict=True):
        got = Keys.of_batch(batch)
        rows = rows_of(got.columns, len(got))
        left = {key for key, _, _ in added_up(piece)}
        assert set(rows) == left
        assert len(rows) == len(left)
        hashes = [hash_in(schema, row) for row in rows]
        assert hashes == sorted(hashes)
        keys_of_batches.append(got)
        order = np.arange(len(rows))[::-1].copy()
        taken = got.take(order)
        assert rows_of(taken.columns, len(taken)) == rows[::-1]
    asked = keys_of(schema, keys)
    whole = Keys.union(schema, [*keys_of_batches, asked])
    rows = rows_of(whole.columns, len(whole))
    assert set(rows) == set(keys)
    assert len(rows) == len(set(keys))
    assert len(Keys.union(schema, keys_of_batches)) == len(
        {key for p in pieces for key, _, _ in added_up(p)}
    )


@given(states(), st.data())
def test_keys_are_looked_up_like_tables(state, data) -> None:
    schema, pieces, depth, keys = state
    view = view_of(schema, pieces, depth)
    asked = keys_of(schema, keys)
    rows = rows_of(asked.columns, len(asked))
    reference = reference_for(schema)
    reference.insert([change for piece in pieces for change in piece])
    table = key_table(schema, rows)
    for as_of in data.draw(st.lists(st.sampled_from(box(depth)), max_size=3)):
        got = view.lookup(asked, as_of)
        assert answers(schema, got, len(rows)) == [reference.lookup(key, as_of) for key in rows]
        got = view.first(asked, as_of, 2)
        assert answers(schema, got, len(rows)) == [reference.first(key, as_of, 2) for key in rows]
        got = view.last(asked, as_of, 2)
        assert answers(schema, got, len(rows)) == [reference.last(key, as_of, 2) for key in rows]
        for at, field in enumerate(schema.columns):
            column = got.canonical(at)
            assert column.type.equals(schema.canonical[at])
            plain = got.column(field.name)
            assert rows_of([column], len(got)) == rows_of([plain], len(got))
    assert len(view.changes(asked)) == len(view.changes(table))


@given(states(), st.data())
def test_later_gives_the_joins_of_later_times(state, data) -> None:
    schema, pieces, depth, keys = state
    view = view_of(schema, pieces, depth)
    asked = keys_of(schema, keys)
    rows = rows_of(asked.columns, len(asked))
    time = data.draw(st.sampled_from(box(depth)))
    expected: dict[Time, set[int]] = {}
    for piece in pieces:
        for key, _, other in added_up(piece):
            if not before(other, time):
                expected.setdefault(join(other, time), set()).add(rows.index(key))
    got = view.later(asked, time)
    assert [some for some, _ in got] == sorted(expected)
    assert {some: queries.tolist() for some, queries in got} == {
        some: sorted(queries) for some, queries in expected.items()
    }


@settings(max_examples=200)
@given(
    states(),
    st.data(),
    st.sampled_from([1, 2, 5, 1 << 20]),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([1, 2, 1 << 16]),
)
def test_every_pair_of_equal_keys_comes_once(state, data, rows, block, looked_up) -> None:
    schema, pieces, depth, keys = state
    left = data.draw(keyed_schemas(schema.key))
    values = data.draw(pools(left.value))
    times = data.draw(st.lists(st.sampled_from(box(depth)), min_size=1, max_size=2))
    changes = data.draw(changes_of(keys, values, times, 10))
    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, block=block, chunk=block)
        patch.setattr("riverrun.state.matching.LOOKED_UP", looked_up)
        patch.setattr("riverrun.state.matching.MARKED", data.draw(st.sampled_from([0, 1 << 22])))
        view = view_of(schema, pieces, depth)
        batch = batch_of(left, changes, depth)
        try:
            matches = list(match(batch, view, rows))
        except OperatorFailed as refused:
            assert refused.code == "operator.overflow"  # noqa: PT017  (it may well not be refused)
            matches = None
    expected = [
        (key, value, other_value, join(time, other_time), diff * other)
        for (key, value, time), diff in added_up(changes).items()
        for piece in pieces
        for (other_key, other_value, other_time), other in added_up(piece).items()
        if key == other_key
    ]
    assert (matches is None) == any(not -(2**63) <= diff < 2**63 for *_, diff in expected)
    got = []
    if matches is None:
        return
    for pairs in matches:
        assert 0 < len(pairs) == pairs.rows <= rows
        assert list(pairs.times) == sorted(set(pairs.times))
        assert (pairs.codes is None) == (len(pairs.times) == 1)
        codes = [0] * pairs.rows if pairs.codes is None else pairs.codes.tolist()
        assert set(codes) == set(range(len(pairs.times)))
        sides = []
        for one, column in ((left, pairs.left), (schema, pairs.right)):
            columns = [column(at) for at in range(len(one.columns))]
            for array, kind in zip(columns, one.canonical, strict=True):
                assert array.type.equals(kind)
            names = [field.name for field in one.columns]
            declared = [columns[names.index(n)] for n in [*one.key.names, *one.value.names]]
            sides.append(rows_of(declared, pairs.rows))
        count = len(left.key)
        for mine, other, code, diff in zip(*sides, codes, pairs.diffs.tolist(), strict=True):
            assert mine[:count] == other[:count]
            got.append((mine[:count], mine[count:], other[count:], pairs.times[code], diff))
    assert Counter(got) == Counter(expected)


def test_a_slice_of_a_view_holds_its_hashes() -> None:
    spine = Spine("s", Schema.of({"k": pa.int64()}, {"v": pa.int64()}))
    for epoch in range(5):
        spine.insert(pa.table({"k": np.arange(300), "v": np.arange(300) + epoch}), (epoch,))
    view = spine.view()
    parts = [view.slice(low, low + (1 << 62)) for low in range(0, 1 << 64, 1 << 62)]
    assert sum(part.to_batch((4,)).num_rows for part in parts) == view.to_batch((4,)).num_rows
    assert all(0 < part.to_batch((4,)).num_rows < 600 for part in parts)
    assert len(view.slice(5, 5).batches[0]) == 0
    assert replace(view, batches=()).slice(0, 5).batches == ()


def test_large_pieces_match() -> None:
    rng = np.random.default_rng(3)
    spine = Spine("s", Schema.of({"k": pa.int64()}, {"v": pa.string()}))
    keys = rng.integers(0, 2000, 20_000)
    spine.insert(pa.table({"k": keys, "v": [str(i) for i in range(20_000)]}), (0,))
    asked = rng.integers(0, 4000, 6000)
    left = Schema.of({"k": pa.int64()}, {"w": pa.int64()})
    changes = [((int(k),), (i,), (1,), 1) for i, k in enumerate(asked)]
    matches = list(match(batch_of(left, changes, 1), spine.view(), 10_000))
    expected = sorted(
        (i, str(j)) for i, k in enumerate(asked.tolist()) for j in np.flatnonzero(keys == k)
    )
    got = [
        pair
        for p in matches
        for pair in zip(p.left(1).to_pylist(), p.right(1).to_pylist(), strict=True)
    ]
    assert sorted(got) == expected
    assert len(matches) > 3
