"""The laws of summaries, against applying them one after another to sampled times."""

from __future__ import annotations

import itertools
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.errors import PlanError
from riverrun.progress import Summary, less_equal
from tests.strategies import depths, summaries, times


@given(st.data(), depths)
def test_following_is_applying_one_after_the_other(data: st.DataObject, depth: int) -> None:
    first = data.draw(summaries(depth))
    second = data.draw(summaries(first.output_depth))
    third = data.draw(summaries(second.output_depth))
    time = data.draw(times(depth))
    both = first.followed_by(second)
    assert both.results_in(time) == second.results_in(first.results_in(time))
    assert (both.input_depth, both.output_depth) == (depth, second.output_depth)
    assert both.followed_by(third) == first.followed_by(second.followed_by(third))
    assert Summary.identity(depth).followed_by(first) == first
    assert first.followed_by(Summary.identity(first.output_depth)) == first


@given(st.data(), st.integers(1, 3), st.integers(1, 4))
def test_the_order_is_that_of_all_results(data: st.DataObject, depth: int, ends: int) -> None:
    a, b = data.draw(summaries(depth, ends)), data.draw(summaries(depth, ends))
    # Advances and constants are at most 2, so 0 and 9 show every way of differing.
    everywhere = list(itertools.product((0, 1, 9), repeat=depth))
    assert a.less_equal(b) == all(less_equal(a.results_in(t), b.results_in(t)) for t in everywhere)
    assert (a == b) == all(a.results_in(t) == b.results_in(t) for t in everywhere)


@given(st.data(), depths)
def test_summaries_are_monotone(data: st.DataObject, depth: int) -> None:
    summary = data.draw(summaries(depth))
    a, b = data.draw(times(depth)), data.draw(times(depth))
    if less_equal(a, b):
        assert less_equal(summary.results_in(a), summary.results_in(b))


def test_summaries_between_other_depths_are_not_ordered() -> None:
    assert not Summary.identity(1).less_equal(Summary.enter(1))
    assert not Summary.leave(2).less_equal(Summary.identity(1))


@given(depths.flatmap(summaries))
def test_a_summary_survives_pickling(summary: Summary) -> None:
    again = pickle.loads(pickle.dumps(summary))
    assert again == summary
    assert hash(again) == hash(summary)
    time = tuple(range(summary.input_depth))
    assert again.results_in(time) == summary.results_in(time)


@pytest.mark.parametrize(("advance", "append"), [((0, 0, 0), ()), ((-1, 0), ()), ((0,), (-1,))])
def test_what_cannot_be_a_summary_is_refused(
    advance: tuple[int, ...], append: tuple[int, ...]
) -> None:
    with pytest.raises(PlanError) as caught:
        Summary(2, advance, append)
    assert caught.value.code == "plan.summary"
    assert caught.value.fields["advance"] == advance


def test_paths_that_do_not_meet_are_refused() -> None:
    with pytest.raises(PlanError) as caught:
        Summary.enter(1).followed_by(Summary.leave(1))
    assert caught.value.code == "plan.depth"
