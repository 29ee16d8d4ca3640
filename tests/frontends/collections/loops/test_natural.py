"""Loops over graphs as people write them: their answers, and which of them run on arrays."""

from __future__ import annotations

import pytest

import riverrun as rr
from tests.frontends.collections.loops.natural import SPELLINGS
from tests.frontends.collections.loops.trying import check
from tests.soaking import seeds

RUNNABLE = [name for name, spelling in SPELLINGS.items() if spelling.can_run]
ON_ARRAYS = {
    "cc_labels_first",
    "cc_edges_first",
    "cc_clashing_names",
    "cc_two_column_key",
    "cc_greatest_both_ways_in_the_body",
    "cc_partial_with_ranks",
    "path_textbook",
    "path_levels_from_zero",
    "path_roads_with_speed",
    "delta_cc_greatest_of_text",
    "delta_cc_send",
    "delta_cc_two_column_key",
    "delta_path_send",
    "rank_textbook",
    "rank_until_four_decimals_rest",
    "rank_in_millionths",
    "rank_personalised",
    "rank_by_weight",
    "until_rank_within_tolerance",
    "until_cc_unchanged",
}
BY_ROUNDS = {"until_rank_total_of_changes"}


@pytest.mark.drawn
@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("seed", seeds(2, soak=40))
def test_answers_are_those_of_the_oracle(name: str, seed: int) -> None:
    check(SPELLINGS[name], seed, 1 + seed % 3)


@pytest.mark.parametrize("name", RUNNABLE)
def test_a_loop_runs_on_arrays_or_explain_says_why_not(name: str) -> None:
    flow = rr.Dataflow(name)
    flow.output("answer", SPELLINGS[name].build(flow))
    text = flow.explain()
    on_arrays = "spread the" in text or "pull parts" in text
    assert on_arrays == (name in ON_ARRAYS)
    by_rounds = "; by rounds, since which round is the last depends on the rows" in text
    assert by_rounds == (name in BY_ROUNDS)
    assert (on_arrays or by_rounds) != ("differential, not on arrays: " in text)
