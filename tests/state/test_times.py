"""Short and long tables of times are handled alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.progress import Antichain, less_equal
from riverrun.state import times
from riverrun.state.kernels import layout, searching

coordinates = st.integers(0, 5)


@pytest.mark.parametrize("depth", [1, 2, 3])
@given(data=st.data())
def test_arrays_and_tuples_agree(depth: int, data: st.DataObject) -> None:
    time = st.tuples(*[coordinates] * depth)
    table = tuple(sorted(data.draw(st.sets(time, min_size=1, max_size=20))))
    since = Antichain(data.draw(st.lists(time, min_size=1, max_size=3)))
    as_of = data.draw(time)

    def both(long: int) -> tuple[object, object]:
        patch = pytest.MonkeyPatch()
        with patch.context() as context:
            context.setattr(times, "LONG", long)
            return times.time_table(table).tolist(), times.advance(table, since)

    assert both(0) == both(1000)
    block = np.zeros((1, layout.BLOCK_FIELDS), np.int64)
    address_table = times.time_table(table)
    block[0, layout.TIMES], block[0, layout.TIME_COUNT] = address_table.ctypes.data, len(table)
    (place,), flags = searching.flag_visible(block, np.array(as_of))
    seen = [less_equal(time, as_of) for time in table]
    assert seen == ([True] * len(table) if place < 0 else flags[place:].tolist())
    assert all(seen) == (place < 0)
