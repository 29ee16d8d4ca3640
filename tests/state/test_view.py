"""Views are values: what is made from one owes nothing to it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from riverrun.progress import Antichain
from riverrun.state import Schema, Spine

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
