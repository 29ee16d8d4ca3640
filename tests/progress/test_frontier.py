"""The laws of antichains and counted frontiers, against definitions over small boxes of times."""

from __future__ import annotations

import itertools
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.errors import TimeViolation
from riverrun.progress import (
    Antichain,
    CountedFrontier,
    Counts,
    Timestamp,
    less_equal,
    less_than,
)
from tests.strategies import antichains, depths, time_lists, times


def lets_through(frontier: Antichain, depth: int) -> set[Timestamp]:
    """What a frontier means, by its definition; times drawn are at most 4, so 0..5 tells all."""
    box = itertools.product(range(6), repeat=depth)
    return {t for t in box if any(less_equal(f, t) for f in frontier)}


@given(depths.flatmap(time_lists))
def test_an_antichain_is_the_minimal_elements(chosen: list[Timestamp]) -> None:
    antichain = Antichain(chosen)
    assert set(antichain) == {t for t in chosen if not any(less_than(o, t) for o in chosen)}
    assert list(antichain) == sorted(antichain)
    assert Antichain(reversed(chosen)) == antichain
    assert hash(Antichain(reversed(chosen))) == hash(antichain)
    assert pickle.loads(pickle.dumps(antichain)) == antichain
    assert len(antichain) == len(list(antichain))
    assert all(t in antichain for t in antichain)


@given(st.data(), depths)
def test_what_an_antichain_lets_through(data: st.DataObject, depth: int) -> None:
    chosen, time = data.draw(time_lists(depth)), data.draw(times(depth))
    antichain = Antichain(chosen)
    assert antichain.less_equal(time) == any(less_equal(t, time) for t in chosen)
    assert antichain.less_than(time) == any(less_than(t, time) for t in chosen)


@given(st.data(), st.integers(1, 2))
def test_meet_join_and_the_order_are_those_of_sets(data: st.DataObject, depth: int) -> None:
    a, b = data.draw(antichains(depth)), data.draw(antichains(depth))
    through_a, through_b = lets_through(a, depth), lets_through(b, depth)
    assert lets_through(a.meet(b), depth) == through_a | through_b
    assert lets_through(a.join(b), depth) == through_a & through_b
    assert a.dominates(b) == (through_a >= through_b)
    assert (a == b) == (through_a == through_b)


@given(st.data(), depths)
def test_frontiers_are_a_distributive_lattice(data: st.DataObject, depth: int) -> None:
    a, b, c = (data.draw(antichains(depth)) for _ in range(3))
    assert (a.dominates(c) and b.dominates(c)) == a.join(b).dominates(c)
    assert (c.dominates(a) and c.dominates(b)) == c.dominates(a.meet(b))
    assert a.join(b.meet(c)) == a.join(b).meet(a.join(c))
    assert a.meet(b.join(c)) == a.meet(b).join(a.meet(c))
    assert a.join(a.meet(b)) == a == a.meet(a.join(b))
    assert Antichain.minimum(depth).dominates(a)
    assert a.dominates(Antichain())


@given(st.data(), depths)
def test_a_representative_cannot_be_told_apart(data: st.DataObject, depth: int) -> None:
    since = data.draw(antichains(depth, min_size=1))
    time, asked = data.draw(times(depth)), data.draw(times(depth, 6))
    representative = since.advance(time)
    assert since.advance(representative) == representative
    assert less_equal(time, representative)
    if since.less_equal(asked):
        assert less_equal(time, asked) == less_equal(representative, asked)


@given(st.data(), st.integers(1, 3))
def test_what_cannot_be_told_apart_has_one_representative(data: st.DataObject, depth: int) -> None:
    since = data.draw(antichains(depth, min_size=1))
    a, b = data.draw(times(depth)), data.draw(times(depth))
    # Times are at most 4, so all ways of asking are in 0..5.
    asked = [t for t in itertools.product(range(6), repeat=depth) if since.less_equal(t)]
    same = all(less_equal(a, t) == less_equal(b, t) for t in asked)
    assert same == (since.advance(a) == since.advance(b))


def test_under_the_empty_frontier_a_time_stays() -> None:
    assert Antichain().advance((3, 1)) == (3, 1)


def test_times_of_different_depths_are_refused() -> None:
    with pytest.raises(TimeViolation):
        Antichain([(0, 0), (1,)])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-2, 2)), max_size=20))
def test_counts_sum_up_and_forget_zeros(changes: list[tuple[str, int]]) -> None:
    counts = Counts(changes)
    expected = {x: sum(d for y, d in changes if y == x) for x in "abc"}
    assert dict(counts) == {x: n for x, n in expected.items() if n}
    assert all(counts[x] == n for x, n in expected.items())
    assert bool(counts) == any(expected.values())
    assert dict(counts.drain()) == {x: n for x, n in expected.items() if n}
    assert not counts
    assert counts.drain() == []


def changes_of_counts(depth: int) -> st.SearchStrategy[list[tuple[Timestamp, int]]]:
    return st.lists(st.tuples(times(depth, 3), st.sampled_from((-2, -1, -1, 1, 1, 1, 2))))


@given(depths.flatmap(changes_of_counts), st.integers(1, 4))
def test_a_counted_frontier_is_the_positive_times(
    changes: list[tuple[Timestamp, int]], together: int
) -> None:
    counted = CountedFrontier()
    counts: dict[Timestamp, int] = {}
    elements: set[Timestamp] = set()
    for start in range(0, len(changes), together):
        group = changes[start : start + together]
        for time, delta in group:
            counts[time] = counts.get(time, 0) + delta
        if len(group) == 1:
            moved = list(counted.change(*group[0]))
        else:
            moved = counted.update(group)
        assert len({time for time, _ in moved}) == len(moved)
        for time, sign in moved:
            assert sign == (-1 if time in elements else 1)
            elements ^= {time}
        expected = Antichain(time for time, count in counts.items() if count > 0)
        assert counted.frontier == expected == Antichain(elements)
        assert dict(counted) == {time: count for time, count in counts.items() if count}
        assert len(counted) == len(dict(counted))
        for time, count in counts.items():
            assert counted.count(time) == count
            assert counted.less_equal(time) == expected.less_equal(time)
