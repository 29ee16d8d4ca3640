"""Kernels write only into memory that was reserved for them (the law of `kernels.memory`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.progress import Antichain
from riverrun.state.block import PackedBlock
from riverrun.state.columns import Cells
from riverrun.state.kernels import layout
from riverrun.state.schema import Schema
from riverrun.state.spine import Spine
from tests.drawn_rows import LEAVES, TYPES, cells, to_arrow, to_plain
from tests.state.checks import set_sizes

GUARD = 64


@contextmanager
def guarded() -> Iterator[None]:
    """Every buffer being written ends with bytes that nobody may touch."""
    checked = []
    reserve, finish = Cells.reserve, Cells.finish

    def guard(cells: Any) -> Any:
        return np.frombuffer(cells.memory, np.uint8)[cells.capacity : cells.capacity + GUARD]

    def check(cells: Any) -> None:
        if cells.capacity:
            checked.append(cells.capacity)
            touched = (guard(cells) != 0xA5).sum()
            assert touched == 0, f"{touched} bytes written past {cells.capacity}"

    def guarded_reserve(cells: Any, size: int) -> None:
        if size > cells.capacity:
            check(cells)
            reserve(cells, size + GUARD)
            cells.capacity -= GUARD
            guard(cells)[:] = 0xA5

    def guarded_finish(cells: Any, size: int) -> Any:
        check(cells)
        assert size <= cells.capacity
        return finish(cells, size)

    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, packed=0)  # what is packed is measured before it is written
        patch.setattr(Cells, "reserve", guarded_reserve)
        patch.setattr(Cells, "finish", guarded_finish)
        yield
    assert checked


NARROW_KEYS = ["int8", "int16", "int32", "int64", "date32", "time32_s", "timestamp_ns"]


@pytest.mark.parametrize("name", NARROW_KEYS)
@pytest.mark.parametrize("count", [1, 8, 16, 64])
def test_a_key_kept_as_its_hash_is_read_back_within_its_column(name: str, count: int) -> None:
    kind = TYPES[name]
    keys = to_arrow(range(count), kind)
    spine = Spine("guarded", Schema.of({"k": kind}, {}))
    with guarded():
        spine.insert(pa.table({"k": keys}), (0,))
        assert spine.lookup(keys, (0,)).column("k").equals(keys)
        spine.insert(pa.table({"k": to_arrow([None], kind)}), (1,))
        spine.advance_since(Antichain([(1,)]))
        spine.compact()  # with a null among them, keys are stored after all
        assert spine.lookup(keys, (1,)).column("k").equals(keys)


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=4)
@given(data=st.data())
def test_every_type_is_written_within_its_buffers(name: str, data: st.DataObject) -> None:
    kind = TYPES[name]
    few = data.draw(st.lists(cells(kind), min_size=1, max_size=20))
    spine = Spine("guarded", Schema.of({}, {"v": kind}))
    with guarded():
        spine.insert(pa.table({"v": to_arrow(few, kind)}), (0,))
        spine.insert(pa.table({"v": to_arrow(few * 8, kind)}), (1,))
        spine.compact()
        got = spine.to_batch((1,))
    counts = dict(zip(to_plain(got.column("v")), got.column("count").to_pylist(), strict=True))
    assert counts == {cell: 9 * few.count(cell) for cell in few}


def extents(block: PackedBlock) -> list[tuple[int, int]]:
    """Where the parts of a packed block begin and end, as its descriptor and nodes say."""
    rows, row = len(block), block.descriptor.tolist()
    parts = [(row[layout.HASHES], rows * 8), (row[layout.NODES], block.nodes.nbytes)]
    parts.append((row[layout.CODES], rows * row[layout.CODE_WIDTH]))
    parts.append((row[layout.DIFFS], rows * row[layout.DIFF_WIDTH]))
    if block.directory is not None:
        parts.append((row[layout.DIRECTORY], block.directory[0].nbytes))
    for column in block.columns:
        if column is not None:
            parts += [(b.address, b.size) for b in column.buffers() if b is not None]
    return sorted((start, start + size) for start, size in parts if size)


@pytest.mark.parametrize("name", LEAVES)
@settings(max_examples=4)
@given(data=st.data())
def test_the_parts_of_a_packed_block_lie_in_its_slab(name: str, data: st.DataObject) -> None:
    kind = LEAVES[name]
    few = data.draw(st.lists(cells(kind), min_size=1, max_size=20))
    count = data.draw(st.sampled_from([1, 70])) * len(few)
    spine = Spine("packed", Schema.of({"k": kind}, {"n": pa.int64(), "v": kind}))
    column = (few * count)[:count]
    table = pa.table(
        {"k": to_arrow(column, kind), "n": range(count), "v": to_arrow(few[:1] * count, kind)}
    )
    spine.insert(table, (0,), [at % 300 + 1 for at in range(count)])
    [block] = spine.view().blocks
    assert isinstance(block, PackedBlock)
    base = block.slab.ctypes.data
    parts = [(base, base + layout.BLOCK_FIELDS * 8), *extents(block)]
    assert parts[-1][1] <= base + block.slab.nbytes
    assert all(a[1] <= b[0] for a, b in pairwise(parts))
