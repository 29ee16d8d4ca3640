"""The laws of timestamps: a lattice under the product order, extended by Python's order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.errors import TimeViolation
from riverrun.progress import Timestamp, join, less_equal, less_than, meet
from riverrun.progress.timestamp import check_depth
from tests.strategies import depths, times

pairs = depths.flatmap(lambda n: st.tuples(times(n), times(n)))
triples = depths.flatmap(lambda n: st.tuples(times(n), times(n), times(n)))


@given(pairs)
def test_the_order_is_coordinate_by_coordinate(pair: tuple[Timestamp, Timestamp]) -> None:
    a, b = pair
    assert less_equal(a, b) == all(a[i] <= b[i] for i in range(len(a)))
    assert less_than(a, b) == (less_equal(a, b) and a != b)


@given(triples)
def test_it_is_a_partial_order(triple: tuple[Timestamp, Timestamp, Timestamp]) -> None:
    a, b, c = triple
    assert less_equal(a, a)
    assert not (less_equal(a, b) and less_equal(b, a)) or a == b
    assert not (less_equal(a, b) and less_equal(b, c)) or less_equal(a, c)


@given(triples)
def test_join_and_meet_are_least_and_greatest(
    triple: tuple[Timestamp, Timestamp, Timestamp],
) -> None:
    a, b, c = triple
    assert less_equal(join(a, b), c) == (less_equal(a, c) and less_equal(b, c))
    assert less_equal(c, meet(a, b)) == (less_equal(c, a) and less_equal(c, b))


@given(triples)
def test_it_is_a_distributive_lattice(triple: tuple[Timestamp, Timestamp, Timestamp]) -> None:
    a, b, c = triple
    for up, down in ((join, meet), (meet, join)):
        assert up(a, b) == up(b, a)
        assert up(a, up(b, c)) == up(up(a, b), c)
        assert up(a, a) == a
        assert up(a, down(a, b)) == a
        assert up(a, down(b, c)) == down(up(a, b), up(a, c))


@given(pairs)
def test_the_order_of_tuples_extends_it(pair: tuple[Timestamp, Timestamp]) -> None:
    a, b = pair
    assert a <= b or not less_equal(a, b)


def test_a_time_of_another_depth_is_refused() -> None:
    with pytest.raises(TimeViolation) as caught:
        check_depth([(0, 0), (0, 0, 0)], 2, "do it")
    assert caught.value.code == "time.depth"
    assert caught.value.fields == {"time": (0, 0, 0), "depth": 2}
