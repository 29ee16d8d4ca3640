"""Sums of floats are exact: against fractions, whatever the order, the repetitions and the sizes."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from riverrun.state.sums import NAN_SLOT, NEGATIVE_SLOT, POSITIVE_SLOT, limbs, total

TINY, HUGE = 5e-324, 1.7976931348623157e308
FINITE = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, 0.1, TINY, -TINY, 2.0**-1022, 2.0**-1022 - TINY, HUGE, -HUGE, 2.0**53]
)
DIFFS = st.sampled_from([1, 1, -1, 2, 255, 256, -256, -255, 2**31, -(2**31), 2**40 + 1])
ANY_DIFF = DIFFS | st.integers(-(2**63) + 1, 2**63 - 1)


def nearest(exact: Fraction) -> float:
    """The double nearest to a fraction, infinite where it is too large."""
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def sum_of(values: list[float], diffs: list[int]) -> float:
    rows, slots, amounts = limbs(np.array(values), None, np.array(diffs, np.int64))
    assert (np.abs(amounts) < 1 << 40).all()
    return float(total(np.zeros(len(rows), np.int64), slots, amounts, 1)[0])


@given(st.lists(st.tuples(FINITE, ANY_DIFF), max_size=12))
def test_a_sum_is_the_nearest_double(changes: list[tuple[float, int]]) -> None:
    values, diffs = [v for v, _ in changes], [d for _, d in changes]
    exact = sum((Fraction(v) * d for v, d in changes), Fraction(0))
    assert sum_of(values, diffs) == nearest(exact)


@given(st.lists(FINITE, max_size=40))
def test_a_sum_is_what_fsum_says(values: list[float]) -> None:
    try:
        expected = math.fsum(values)
    except OverflowError:
        return  # fsum gives up on sums that are too large on the way
    assert sum_of(values, [1] * len(values)) == expected


@given(st.lists(FINITE, max_size=12), st.integers(-60, 60), st.integers(0, 2**53))
def test_ties_go_to_even(values: list[float], exponent: int, word: int) -> None:
    """Half of the last place, with and without something far below it."""
    base = math.ldexp(word | 1 << 52, exponent)
    half = math.ldexp(1, exponent - 1)
    for rest in (0.0, TINY, -TINY):
        exact = Fraction(base) + Fraction(half) + Fraction(rest)
        assert sum_of([rest, half, base], [1, 1, 1]) == float(exact)


@given(st.lists(st.tuples(FINITE, DIFFS), min_size=1, max_size=8), st.randoms())
def test_what_is_deleted_leaves_what_was_there(changes: list[tuple[float, int]], rng) -> None:  # type: ignore[no-untyped-def]
    before = sum_of([0.1, 0.2], [3, 1])
    more = [*changes, *((v, -d) for v, d in changes), (0.1, 3), (0.2, 1)]
    rng.shuffle(more)
    assert sum_of([v for v, _ in more], [d for _, d in more]) == before


def test_limbs_are_few_and_cancel_row_by_row() -> None:
    values = np.array([1e300, 1.5, -TINY, 0.0, -0.0, 3.0])
    valid = np.array([True, True, True, True, True, False])
    rows, slots, amounts = limbs(values, valid, np.full(6, 7))
    assert set(rows.tolist()) == {0, 1, 2}
    assert np.bincount(rows).max() <= 3
    back = limbs(values, valid, np.full(6, -7))
    assert (rows == back[0]).all()
    assert (slots == back[1]).all()
    assert (amounts == -back[2]).all()
    assert slots.dtype == np.int16


def test_many_repetitions() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=20_000) * 10.0 ** rng.integers(-300, 300, 20_000)
    queries = np.sort(rng.integers(0, 50, 20_000))
    rows, slots, amounts = limbs(values, None, np.ones(20_000, np.int64))
    got = total(queries[rows], slots, amounts, 51)
    expected = [math.fsum(values[queries == query]) for query in range(51)]
    assert got.tolist() == expected
    assert expected[50] == 0.0


def test_a_state_adds_limbs_up() -> None:
    """The amounts of one slot may come added up already."""
    values = np.array([0.1] * 1000 + [1e9] * 1000)
    _, slots, amounts = limbs(values, None, np.ones(2000, np.int64))
    kinds = np.unique(slots)
    added = np.array([amounts[slots == slot].sum() for slot in kinds])
    got = total(np.zeros(len(kinds), np.int64), kinds, added, 1)
    assert got.tolist() == [math.fsum(values)]


def test_numbers_that_are_none() -> None:
    inf, nan = math.inf, math.nan
    for values, diffs, expected in (
        ([inf, 1.0], [1, 1], inf),
        ([-inf, 1.0], [2, 1], -inf),
        ([inf, -inf], [1, 1], nan),
        ([nan, inf], [1, 1], nan),
        ([inf, 1.0, inf], [1, 1, -1], 1.0),
        ([nan, 2.0, nan, -inf], [1, 1, -1, 1], -inf),
        ([HUGE, HUGE], [1, 1], inf),
        ([HUGE, HUGE, -HUGE], [1, 1, 1], HUGE),
        ([], [], 0.0),
    ):
        got = sum_of(values, diffs)
        assert got == expected or (math.isnan(got) and math.isnan(expected))
    _, slots, amounts = limbs(np.array([nan, inf, -inf]), None, np.array([1, 2, 3]))
    assert slots.tolist() == [NAN_SLOT, POSITIVE_SLOT, NEGATIVE_SLOT]
    assert amounts.tolist() == [1, 2, 3]
