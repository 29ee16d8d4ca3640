"""Times of another depth: rounds 0 are added and left out again, and nothing else changes."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from riverrun.progress import Antichain
from riverrun.state import Schema, Spine
from riverrun.state.view import View

SCHEMA = Schema.of({"k": pa.int64()}, {"v": pa.string()})


def spine_of(seed: int) -> Spine:
    source = random.Random(seed)
    spine = Spine("some", SCHEMA)
    for epoch in range(12):
        count = source.choice((1, 3, 400))
        table = pa.table(
            {
                "k": [source.randrange(20) for _ in range(count)],
                "v": [source.choice(("a", "b", "")) for _ in range(count)],
            }
        )
        spine.insert(table, time=(epoch,))
    return spine


def rows(view: View, time: tuple[int, ...]) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in view.to_batch(time).to_pylist())


@pytest.mark.parametrize("seed", range(4))
def test_a_view_reads_the_same_at_another_depth(seed: int) -> None:
    outside = spine_of(seed).view()
    inside = outside.at_depth(3)
    again = inside.at_depth(1)
    assert inside.since == Antichain([(0, 0, 0)])
    assert inside.upper == Antichain([(12, 0, 0)])
    assert (again.since, again.upper) == (outside.since, outside.upper)
    for epoch in range(12):
        expected = rows(outside, (epoch,))
        assert rows(inside, (epoch, 0, 0)) == rows(inside, (epoch, 5, 1)) == expected
        assert rows(again, (epoch,)) == expected


def test_blocks_at_another_depth_are_other_blocks() -> None:
    """A checkpoint knows blocks by their identifiers, and their times are in their files."""
    for batch in spine_of(1).view().batches:
        for block, other in zip(batch.blocks, batch.at_depth(2).blocks, strict=True):
            assert block.uid != other.uid
            assert other.times == tuple((*time, 0) for time in block.times)


def test_rounds_after_the_first_are_not_left_out() -> None:
    spine = Spine("some", SCHEMA, depth=2)
    spine.insert(pa.table({"k": [1], "v": ["a"]}), time=(0, 1))
    with pytest.raises(ValueError, match="rounds after the first"):
        spine.view().at_depth(1)
