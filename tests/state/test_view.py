"""Views are values: what is made from one owes nothing to it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from riverrun.errors import SchemaError, TimeViolation
from riverrun.progress import Antichain
from riverrun.state import Batch, Order, Schema, Spine

SCHEMA = Schema.of({"k": pa.int64()}, {"v": pa.int64()})


def filled(epochs: int, rows: int) -> Spine:
    spine = Spine("s", SCHEMA)
    for epoch in range(epochs):
        keys = np.arange(rows) + epoch * rows
        spine.insert(pa.table({"k": keys, "v": keys}), (epoch,))
    return spine


def test_a_slice_of_a_view_that_was_read_knows_its_own_times():
    view = filled(20, 300).view()
    whole = view.to_batch((7,))  # the view now remembers what is visible at 7, block by block
    for low, high in ((0, 1 << 61), (1 << 61, 1 << 63), (1 << 63, 1 << 64)):
        part = replace(view, batches=tuple(batch.slice(low, high) for batch in view.batches))
        alone = Spine.from_view(part).to_batch((7,))
        assert part.to_batch((7,)).equals(alone)
        assert 0 < part.to_batch((7,)).num_rows < whole.num_rows


def test_a_chain_with_empty_batches_compacts():
    spine = filled(12, 40)
    view = spine.view()
    nothing = tuple(batch.slice(0, 1) for batch in view.batches)
    empty = Spine.from_view(replace(view, batches=nothing))
    empty.compact()
    assert len(empty) == 0
    some = (*nothing[:-1], view.batches[-1])
    spine = Spine.from_view(replace(view, batches=some))
    spine.advance_since(Antichain([(11,)]))
    spine.compact()
    assert len(spine.view().batches) == 1
    assert len(spine) == len(view.batches[-1])


def test_a_batch_of_one_since_is_rewritten_when_since_moves():
    spine = filled(1, 10)
    spine.insert(pa.table({"k": np.arange(10), "v": np.arange(10)}), (1,), -1)
    spine.compact()
    assert len(spine) == 20  # both epochs can be read
    spine.advance_since(Antichain([(1,)]))
    spine.compact()
    assert len(spine) == 0
    assert spine.to_batch((1,)).num_rows == 0


def test_a_masked_key_matches_nothing():
    view = filled(1, 10).view()
    keys = np.ma.array([1, 2], mask=[False, True])
    assert view.lookup(keys, (0,)).column("v").to_pylist() == [1]


def test_numpy_integers_are_times_and_bare_numbers_are_not():
    spine = filled(2, 10)
    spine.insert(pa.table({"k": [99], "v": [1]}), (np.int64(2),))
    assert spine.lookup(np.array([99]), (np.int64(2),)).column("v").to_pylist() == [1]
    for wrong in (0, None, 0.5, (0.5,), (-1,), "0"):
        with pytest.raises(TimeViolation, match="is not a timestamp"):
            spine.lookup(np.array([99]), wrong)
        with pytest.raises(TimeViolation, match="is not a timestamp"):
            spine.insert(pa.table({"k": [99], "v": [1]}), wrong)


def test_keys_and_rows_of_other_kinds_are_refused():
    spine = filled(1, 10)
    for wrong in ([1, 2], 1, "a", np.zeros((2, 2)), np.array([1, "x", None], object)):
        with pytest.raises(SchemaError):
            spine.lookup(wrong, (0,))
    for rows in ({"k": [1], "v": [2]}, [(1, 2)], None):
        with pytest.raises(SchemaError, match="not an Arrow table"):
            spine.insert(rows, (1,))
    with pytest.raises(SchemaError):
        spine.lookup(pa.table([pa.array([1]), pa.array([2])], names=["k", "k"]), (0,))


def test_a_batch_of_another_schema_is_not_appended():
    spine = filled(1, 10)
    other = Schema.of({"k": pa.string()}, {"v": pa.int64()})
    rows = pa.table({"k": ["a"], "v": [1]})
    batch = Batch.build(other, rows, time=(1,), lower=Antichain([(1,)]), upper=Antichain([(2,)]))
    with pytest.raises(SchemaError, match="the batch has the columns"):
        spine.append(batch)
    assert spine.upper == Antichain([(1,)])


def test_diffs_that_no_count_holds_are_refused():
    spine = filled(1, 10)
    with pytest.raises(SchemaError, match="64-bit"):
        spine.insert(pa.table({"k": [1], "v": [1]}), (1,), np.array([2**63 + 5], np.uint64))


def test_slices_reach_no_further_than_hashes_do():
    (batch,) = filled(1, 100).view().batches
    assert len(batch.slice(-5, 1 << 70)) == 100
    assert len(batch.slice(1 << 64, 1 << 65)) == len(batch.slice(7, 7)) == 0
    assert len(batch.slice(0, 1 << 63)) + len(batch.slice(1 << 63, 1 << 64)) == 100


def test_compacting_keeps_to_the_budget(tmp_path, monkeypatch):
    monkeypatch.setattr("riverrun.state.spine.BLOCK_ROWS", 1000)
    monkeypatch.setattr("riverrun.state.block.BLOCK_ROWS", 1000)
    monkeypatch.setattr("riverrun.state.block.CHUNK_ROWS", 1000)
    spine = Spine("s", SCHEMA, budget=50_000, directory=tmp_path / "made")
    for epoch in range(20):
        keys = np.arange(1000) + epoch * 1000
        spine.insert(pa.table({"k": keys, "v": keys}), (epoch,))
    spine.compact()
    assert spine.nbytes <= 50_000 + 40_000  # a block or two more than the budget at any time
    assert spine.to_batch((19,)).num_rows == 20_000


def test_blocks_are_cut_by_bytes_too(monkeypatch):
    monkeypatch.setattr("riverrun.state.block.BLOCK_BYTES", 20_000)
    monkeypatch.setattr("riverrun.state.block.CHUNK_ROWS", 50)
    monkeypatch.setattr("riverrun.state.merge.CHUNK_ROWS", 50)
    spine = Spine("s", Schema.of({"k": pa.string()}, {"v": pa.string()}))
    for epoch in range(3):
        keys = [f"{epoch} {row}" for row in range(500)]
        spine.insert(pa.table({"k": keys, "v": [key * 20 for key in keys]}), (epoch,))
    spine.compact()
    (batch,) = spine.view().batches
    assert len(batch.blocks) > 5
    assert all(a.last < b.first for a, b in pairwise(batch.blocks))
    rows = spine.to_batch((2,)).to_pylist()
    assert len(rows) == 1500
    assert all(row["v"] == row["k"] * 20 for row in rows)


def test_a_bad_time_is_refused_whatever_was_read_before():
    view = filled(3, 10).view()
    view.lookup(np.array([1]), (2,))
    with pytest.raises(TimeViolation, match="is not a timestamp"):
        view.lookup(np.array([1]), (2.0,))


def test_a_tuple_is_no_frontier():
    spine = filled(2, 10)
    for attempt in (
        lambda: spine.advance_since((1,)),
        lambda: spine.hold((1,)),
        lambda: spine.advance_upper((9,)),
        lambda: spine.insert(pa.table({"k": [1], "v": [1]}), (2,), upper=(5,)),
        lambda: Spine("s", SCHEMA, lower=(3,)),
    ):
        with pytest.raises(TimeViolation, match="is not a frontier"):
            attempt()


def test_what_is_printed_is_short():
    spine = filled(2, 10)
    view = spine.view()
    (batch, *_) = view.batches
    shown = [spine, view, batch, batch.blocks[0], view.lookup(np.array([1]), (0,))]
    assert all(len(repr(thing)) < 120 for thing in shown)
    assert repr(view) == "<View of 's': 20 changes, readable from {(0,)} up to {(2,)}>"


def test_first_and_last_of_a_spine_are_those_of_its_view():
    schema = Schema.of({"k": pa.int64()}, {"v": pa.int64()}, order=Order("v", descending=True))
    spine = Spine("s", schema)
    spine.insert(pa.table({"k": [1, 1, 1, 2], "v": [5, 9, 7, 3]}), (0,))
    keys = np.array([1, 2])
    assert spine.first(keys, (0,), 2).column("v").to_pylist() == [9, 7, 3]
    assert spine.last(keys, (0,), 2).column("v").to_pylist() == [5, 7, 3]
    assert spine.last(keys, (0,), at=[6, 3]).column("v").to_pylist() == [7, 3]
    with pytest.raises(SchemaError, match="values of each key"):
        spine.first(keys, (0,), -1)


def test_malformed_declarations_are_refused():
    for attempt in (
        lambda: Schema.of({"k": int}, {}),
        lambda: Schema.of(["k"], {}),
        lambda: Schema.of({}, {"v": pa.int64()}, order=[("v", "desc")]),
        lambda: Spine("s", {"k": pa.int64()}),
        lambda: filled(1, 3).insert(pa.table({"k": [1], "v": [1]}), (1,), 2**70),
    ):
        with pytest.raises(SchemaError):
            attempt()


def test_nulls_inside_a_column_declared_without_are_refused():
    kind = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    given = pa.array([{"x": 1}, None, {"x": None}], pa.struct([("x", pa.int64())]))
    spine = Spine("s", Schema.of({}, {"v": kind}))
    with pytest.raises(SchemaError, match="1 nulls in 'x'"):
        spine.insert(pa.table({"v": given}), (0,))
    spine.insert(pa.table({"v": given.slice(0, 2)}), (0,))
    assert spine.to_batch((0,)).column("v").to_pylist() == [{"x": 1}, None]
