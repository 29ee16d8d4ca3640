"""Shards: every hash has one owner, and little moves."""

from __future__ import annotations

import random
from functools import partial
from itertools import pairwise

import pytest

from riverrun.state.shards import CELL, CELLS, END, Shards, intersect, subtract
from tests.soaking import seeds


def check(shards: Shards) -> None:
    assert (shards.bounds[0], shards.bounds[-1]) == (0, END)
    assert all(low < high for low, high in pairwise(shards.bounds))
    assert not any(bound % CELL for bound in shards.bounds)
    assert len(shards.owners) == len(shards.bounds) - 1
    owned = sorted(each for at in range(shards.workers) for each in shards.of(at))
    assert [low for low, _ in owned] == [0, *(high for _, high in owned[:-1])]
    assert owned[-1][1] == END
    assert shards.first == next(at for at in range(shards.workers) if 0 in dict(shards.of(at)))


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(30, soak=300))
def test_every_hash_has_one_owner_and_who_gains_loses_nothing(seed: int) -> None:
    rng = random.Random(seed)
    shards = Shards.even(rng.randint(1, 6))
    for _ in range(8):  # less than the cuts that make it begin anew
        before, indices = shards, list[int | None](range(shards.workers))
        kind = rng.choice(["without", "resized", "weighted"])
        if kind == "without" and shards.workers > 1:
            gone = rng.randrange(shards.workers)
            shards = before.without(gone)
            indices = [None if at == gone else at - (at > gone) for at in range(before.workers)]
        elif kind == "weighted":
            shards = before.weighted([rng.random() + 0.05 for _ in range(before.workers)])
        else:
            workers = rng.randint(1, 6)
            shards = before.resized(workers)
            indices = [at if at < workers else None for at in range(before.workers)]
        check(shards)
        gained = 0.0
        for old, new in enumerate(indices):
            if new is None:
                continue
            had, has = before.shares[old], shards.shares[new]
            lost = sum(high - low for low, high in subtract(before.of(old), shards.of(new))) / END
            assert lost == pytest.approx(max(had - has, 0), abs=1e-9)
            gained += max(has - had, 0)
        newcomers = set(range(shards.workers)) - set(indices)
        gained += sum(shards.shares[at] for at in newcomers)
        assert shards.moved_from(before, indices) == pytest.approx(gained, abs=1e-9)


def test_shares_are_what_was_asked_for() -> None:
    near = partial(pytest.approx, abs=1 / CELLS)
    assert Shards.even(3).without(1).shares == near([0.5, 0.5])
    assert Shards.even(2).resized(5).shares == near([0.2] * 5)
    assert Shards.even(3).weighted([1, 2, 1]).shares == near([0.25, 0.5, 0.25])
    assert Shards.even(CELLS + 1).shares == pytest.approx([1 / (CELLS + 1)] * (CELLS + 1))


def test_who_has_little_has_a_cell_at_the_least() -> None:
    for weights in ([1, 1e-9, 1], [1e-9, 1e-9, 1], [1.0] + [1e-7] * 63, [0.5, 1e-5, 0.5, 1e-5]):
        shards = Shards.even(len(weights)).weighted(weights)
        check(shards)
        assert min(shards.shares) >= 1 / CELLS


def test_shards_that_were_cut_too_often_are_cut_anew() -> None:
    rng, shards = random.Random(1), Shards.even(3)
    for _ in range(300):
        shards = shards.weighted([rng.random() + 0.1 for _ in range(3)])
        check(shards)
        assert len(shards.owners) <= 16 * 3


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(20, soak=200))
def test_ranges_are_cut_as_sets(seed: int) -> None:
    rng = random.Random(seed)

    def some() -> list[tuple[int, int]]:
        cuts = sorted(rng.sample(range(40), 6))
        return list(zip(cuts[::2], cuts[1::2], strict=True))

    def numbers(ranges: object) -> set[int]:
        return {n for low, high in ranges for n in range(low, high)}  # type: ignore[attr-defined]

    one, other = some(), some()
    assert numbers(intersect(one, other)) == numbers(one) & numbers(other)
    assert numbers(subtract(one, other)) == numbers(one) - numbers(other)
