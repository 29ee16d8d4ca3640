"""Short and long tables of times are handled alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.progress import Antichain
from riverrun.state import times

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
            flags = times.visible(table, as_of)
            return None if flags is None else flags.tolist(), times.advance(table, since)

    assert both(0) == both(1000)
