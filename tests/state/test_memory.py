"""Kernels write only into memory that was reserved for them (the law of `kernels.memory`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.progress import Antichain
from riverrun.state.columns import Cells
from riverrun.state.schema import Schema
from riverrun.state.spine import Spine
from tests.rows import TYPES, cells, to_arrow, to_plain

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
