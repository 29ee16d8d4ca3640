"""Changes between operators, against lists of (row, time, diff)."""

from __future__ import annotations

import random
from bisect import bisect
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.errors import OperatorFailed, TimeViolation
from riverrun.progress import Antichain
from riverrun.state import Schema
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.shards import Shards
from tests.oracle import Change, rank
from tests.state.checks import block_rows, check_block, set_sizes
from tests.state.hashing import hash_key
from tests.state.pieces import (
    added_up,
    batch_of,
    box,
    changes_of,
    fresh,
    keyed_schemas,
    listed,
    physical,
    pools,
    with_times,
)


@st.composite
def drawn(draw: st.DrawFn, most: int = 12) -> tuple[Schema, list[Change], int]:
    schema = draw(keyed_schemas())
    depth = draw(st.integers(1, 3))
    times = draw(st.lists(st.sampled_from(box(depth)), min_size=1, max_size=3))
    keys, values = draw(pools(schema.key)), draw(pools(schema.value))
    return schema, draw(changes_of(keys, values, times, most)), depth


@given(drawn(), st.data())
def test_rows_are_chosen(drawn_changes, data) -> None:
    schema, plain, _ = drawn_changes
    changes, expected = fresh(schema, plain, 2), physical(schema, plain)
    assert listed(changes) == expected
    rows = data.draw(st.lists(st.integers(0, max(len(plain) - 1, 0)), max_size=6))
    rows = rows if plain else []
    taken = changes.take(np.array(rows, np.int64))
    assert listed(taken) == [expected[row] for row in rows]
    mask = np.array([row % 3 != 1 for row in range(len(plain))], np.bool_)
    chosen = [change for change, keep in zip(expected, mask, strict=True) if keep]
    assert listed(changes.filter(mask)) == chosen
    assert listed(changes.negate()) == [(row, time, -diff) for row, time, diff in expected]
    swapped = changes.with_columns(changes.columns[::-1])
    assert listed(swapped) == [(row[::-1], time, diff) for row, time, diff in expected]


@given(drawn())
def test_times_are_moved_and_told_apart(drawn_changes) -> None:
    schema, plain, depth = drawn_changes
    changes, expected = fresh(schema, plain), physical(schema, plain)
    for function in (
        lambda time: (*time, 0),
        lambda time: time[:-1],
        lambda time: time[::-1],
        lambda time: (max(time),),
    ):
        moved = listed(changes.map_times(function))
        assert moved == [(row, function(time), diff) for row, time, diff in expected]
    for time in box(depth):
        alone = [change for change in expected if change[1] == time]
        assert listed(changes.at(time)) == alone
        assert (changes.at(time) is None) == (not alone)
        done, left = changes.split(lambda some, time=time: some <= time)
        assert listed(done) == [change for change in expected if change[1] <= time]
        assert listed(left) == [change for change in expected if change[1] > time]
        assert (done is None) == (not listed(done))
        assert (left is None) == (not listed(left))


@given(drawn(), st.data())
def test_pieces_become_one(drawn_changes, data) -> None:
    schema, plain, _ = drawn_changes
    cuts = sorted(data.draw(st.lists(st.integers(0, len(plain)), max_size=3)))
    bounds = [0, *cuts, len(plain)]
    pieces = [fresh(schema, plain[a:b]) for a, b in pairwise(bounds)]
    assert listed(Changes.concat(pieces)) == physical(schema, plain)


@given(drawn(), st.data())
def test_each_worker_gets_its_hashes(drawn_changes, data) -> None:
    schema, plain, _ = drawn_changes
    changes, expected = fresh(schema, plain), physical(schema, plain)
    positions = data.draw(
        st.lists(st.sampled_from(range(len(schema.columns)))) if schema.columns else st.just([])
    )
    kinds = [schema.columns[at].type for at in positions]
    hashes = [hash_key(tuple(row[at] for at in positions), kinds) for row, _, _ in expected]
    some = st.integers(0, 1 << 64) | st.sampled_from([0, 1 << 64, *hashes])
    inner = sorted(data.draw(st.lists(some, max_size=4)))
    bounds = (0, *sorted({*inner} - {0, 1 << 64}), 1 << 64)
    workers = data.draw(st.integers(1, 4))
    owners = tuple(data.draw(st.integers(0, workers - 1)) for _ in bounds[1:])
    parts = changes.partition(positions, Shards(bounds, owners, workers))
    assert len(parts) == workers
    for at, part in enumerate(parts):
        mine = [
            c for c, h in zip(expected, hashes, strict=True) if owners[bisect(bounds, h) - 1] == at
        ]
        assert listed(part) == mine
        assert (part is None) == (not mine)


@given(drawn(most=40))
def test_equal_changes_are_added_up(drawn_changes) -> None:
    schema, plain, _ = drawn_changes
    got = listed(fresh(schema, plain).consolidate())
    assert added_up(got) == added_up(physical(schema, plain))
    keys = [(tuple(map(rank, row)), time) for row, time, _ in got]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)


@given(drawn(most=40), st.sampled_from([None, 1, 4]), st.sampled_from([None, 0]))
def test_a_batch_of_changes_keeps_the_laws(drawn_changes, block, packed) -> None:
    schema, plain, depth = drawn_changes
    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, block=block, chunk=block, packed=packed)
        batch = batch_of(schema, plain, depth)
    lower = Antichain.minimum(depth)
    got = []
    for piece in batch.blocks:
        check_block(piece, lower)
        for _, key, value, code, diff in block_rows(piece):
            got.append(((*key, *value), piece.times[code], diff))
    assert added_up(got) == added_up(physical(schema, plain))
    assert len(got) == len(batch) == len(added_up(got))
    hashes = [(piece.first, piece.last) for piece in batch.blocks]
    assert all(a[1] < b[0] for a, b in pairwise(hashes))


def test_many_rows_are_treated_as_few() -> None:
    """What is done by one kernel for few rows and otherwise for many gives the same."""
    rng = random.Random(5)
    schema = Schema.of({"k": pa.int64()}, {"v": pa.string(), "f": pa.float64()})
    plain = [
        ((rng.randrange(50),), (rng.choice("abc"), rng.choice([0.0, 1.5])), (rng.randrange(3),), 1)
        for _ in range(9000)
    ]
    changes, expected = fresh(schema, plain), physical(schema, plain)
    rows = np.array([rng.randrange(9000) for _ in range(8000)])
    assert listed(changes.take(rows)) == [expected[row] for row in rows]
    assert added_up(listed(changes.consolidate())) == added_up(expected)
    batch = batch_of(schema, plain, 1)
    assert len(batch) == len(added_up(expected)) == len(changes.consolidate())
    parts = changes.partition([0], Shards((0, 1 << 62, 1 << 63, 1 << 64), (1, 0, 1), 2))
    assert sorted(change for part in parts for change in listed(part)) == sorted(expected)


def test_choosing_rows_keeps_every_bit_of_a_float() -> None:
    odd = np.array([-0.0, 0.0, np.nan, -np.nan])
    changes = Changes.of([pa.array(odd), pa.array(odd.astype(np.float32))], (0,))
    taken = changes.take(np.array([3, 2, 1, 0]))
    assert taken.columns[0].to_numpy().tobytes() == odd[::-1].tobytes()
    assert taken.columns[1].to_numpy().tobytes() == odd.astype(np.float32)[::-1].tobytes()
    assert changes.consolidate().diff_array().tolist() == [2, 2]


def test_times_outside_a_batch_are_refused() -> None:
    schema = Schema.of({"k": pa.int64()}, {})
    lower, upper = Antichain([(1, 0), (0, 2)]), Antichain([(2, 0)])
    for time, fits in (((0, 1), False), ((0, 2), True), ((1, 5), True), ((2, 0), False)):
        changes = Changes.of([pa.array([1])], time)
        if fits:
            assert len(Batch.of(schema, changes, [0], lower, upper)) == 1
        else:
            with pytest.raises(TimeViolation, match="outside the batch"):
                Batch.of(schema, changes, [0], lower, upper)


def test_columns_are_found_where_positions_say() -> None:
    schema = Schema.of({"k": pa.int64()}, {"v": pa.int64(), "w": pa.int64()}, order=["w"])
    changes = with_times([pa.array([1]), pa.array([2]), pa.array([3])], [(0,)], [5])
    batch = Batch.of(schema, changes, [2, 0, 1], Antichain([(0,)]), Antichain([(1,)]))
    [(_, key, value, _, diff)] = block_rows(batch.blocks[0])
    assert (key, value, diff) == ((3,), (1, 2), 5)


def test_a_diff_without_an_opposite_is_refused() -> None:
    least = -(1 << 63)
    for changes in (
        Changes.of([pa.array([1])], (0,), least),
        Changes((pa.array([1, 2]),), 2, ((0,),), None, 0, np.array([1, least])),
    ):
        with pytest.raises(OperatorFailed) as refused:
            changes.negate()
        assert refused.value.code == "operator.overflow"
    nothing = Changes((pa.array([], pa.int64()),), 0, ((0,),), None, 0, np.zeros(0, np.int64))
    assert nothing.negate().rows == 0
