"""The laws of a sweep: a turn looks at a bounded number of rows, all rows have their turn, owners do not show."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from riverrun.operators.shared import sweep
from riverrun.operators.shared.sweep import Sweep
from riverrun.state import Order, Schema, Spine
from riverrun.state.kernels.values import mix
from riverrun.state.shards import CELL, CELLS, Shards
from riverrun.state.view import View
from tests.soaking import draws, seeds

SCHEMA = Schema.of({"k": pa.int64()}, {"t": pa.int64()}, order=[Order("t")])


class State:
    """Entries in two forms: in a spine, which merges them as it likes, and as a plain list."""

    def __init__(self, schema: Schema = SCHEMA) -> None:
        self.spine = Spine("entries", schema)
        self.there: Counter[tuple[int, int]] = Counter()
        self.epoch = 0

    def change(self, rows: list[tuple[int, int]], diff: int) -> None:
        ks, ts = zip(*rows, strict=True)
        table = pa.table({"k": pa.array(ks, pa.int64()), "t": pa.array(ts, pa.int64())})
        self.spine.insert(table, (self.epoch,), diff)
        for row in rows:
            self.there[row] += diff
        self.there = +self.there
        self.epoch += 1

    def anew(self) -> Spine:
        """The same entries in one batch."""
        spine = Spine("entries", self.spine.schema)
        rows = list(self.there.elements())
        ks, ts = zip(*rows, strict=True)
        spine.insert(pa.table({"k": list(ks), "t": list(ts)}), (self.epoch - 1,), 1)
        return spine


def turn(sweeps: list[Sweep], number: int, view: View, as_of: tuple[int, ...]) -> list[int]:
    """The keys of a turn on all workers."""
    swept = [keys for each in sweeps for keys in each.turn(number, view, as_of)]
    return sorted(k for keys in swept for k in keys.columns[0].to_pylist())


def handed_on(sweeps: list[Sweep], epoch: int, shards: Shards, rows: int) -> list[Sweep]:
    """The sweeps of the workers that go on, from the places that the `sweeps` before them saved."""
    views = [each.saved("swept", epoch, 1) for each in sweeps]
    saved = [view.to_batch((epoch,)) for view in _readable(views, epoch)]
    continued = []
    for index in range(shards.workers):
        ranges = shards.of(index)
        mine = [
            place
            for batch in saved
            for place in batch.column(0).to_pylist()
            if any(low <= int(mix(np.uint64(place % (1 << 64)))) < high for low, high in ranges)
        ]
        continued.append(
            Sweep(ranges, rows, pa.record_batch({"place": pa.array(mine, pa.int64())}))
        )
    return continued


def _readable(views: list[View], epoch: int) -> list[View]:
    later = Spine("later", sweep.PLACES)
    later.advance_upper(type(later.upper)([(epoch + 1,)]))
    return [view.with_frontiers(view.since, later.upper) for view in views]


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(6, soak=48))
def test_neither_workers_nor_batches_show(seed: int) -> None:
    """One worker that has all and lives on, and several that come and go: each turn looks at the same keys."""
    source = random.Random(seed)
    span, rows = source.choice([(16, 16), (512, 2000), (4096, 1), (1024, 8192)])
    print(f"seed={seed} span={span} rows={rows}")
    mask = source.choice([None, 0xF0F0 << 40])
    schema = SCHEMA if mask is None else Schema.of(SCHEMA.key, SCHEMA.value, SCHEMA.order, mask)
    state = State(schema)
    state.change([(k, t) for k in range(3000) for t in range(source.choice([1, 2]))], 1)
    with mock.patch.object(sweep, "SPAN", span):
        alone, several = [Sweep(((0, CELLS * CELL),), rows, None)], list[Sweep]()
        several = handed_on([], 1, Shards.even(3), rows)
        seen = 0
        for number in range(
            draws(8, soak=30) if rows == 1 else 60
        ):  # with more rows a turn takes long
            if source.random() < 0.5:
                state.change([(source.randrange(3000), source.randrange(50)) for _ in range(30)], 1)
            if source.random() < 0.3:
                some = source.sample(sorted(state.there), 20)
                state.change(some, -1)
            if source.random() < 0.2:
                weights = [source.random() + 0.1 for _ in range(source.randint(1, 4))]
                shards = Shards.even(len(weights)).weighted(weights)
                several = handed_on(several, state.epoch, shards, rows)
            as_of = (state.epoch - 1,)
            one = turn(alone, number, state.spine.view(), as_of)
            other = turn(several, number, state.anew().view(), as_of)
            assert one == other, f"seed={seed}, turn {number}"
            seen += len(one)
        assert seen > 20


@pytest.mark.parametrize(("rows", "passes"), [(1, 12), (4096, 2)])
def test_a_turn_is_bounded_and_all_have_their_turn(rows: int, passes: int) -> None:
    """The laws *bounded* and *complete*, with turns as they are outside of tests; one key has many more rows than a
    turn may look at."""
    state = State()
    state.change([(k, t) for k in range(6000) for t in range(3)], 1)
    state.change([(7, t) for t in range(3, 10_000)], 1)
    view, as_of = state.spine.view(), (1,)
    reached: Counter[int] = Counter()
    with mock.patch.object(sweep, "SPAN", 16):
        one = Sweep(((0, CELLS * CELL),), rows, None)
        for number in range(CELLS // 16 * passes):
            keys = turn([one], number, view, as_of)
            assert len(keys) == len(set(keys))
            assert 3 * len(keys) <= max(rows, 16) + 16 * 3
            reached.update(keys)
            if number == CELLS // 16 - 1 and rows == 4096:
                assert (
                    len(reached) >= 5990
                )  # all but those in one cell with the large one, and behind it
    assert len(reached) == 6000


def test_a_state_that_is_empty_or_gone_has_no_turn() -> None:
    state = State()
    state.change([(1, 1)], 1)
    state.change([(1, 1)], -1)
    with mock.patch.object(sweep, "SPAN", CELLS):
        one: Any = Sweep(((0, CELLS * CELL),), 1, None)
        for number in range(3):
            assert turn([one], number, state.spine.view(), (1,)) == []
