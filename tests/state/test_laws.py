"""Merging is invisible, by the law of `spine`: whatever is done to a state, reads as of a legal time stay the same.

A machine of Hypothesis' makes a state over random columns and does to it, in random order, all that
may be done to a state: append, compact, hold, spill, slice, write and read back. After every step
the state is compared with the reference, and so are views that were taken long before.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from riverrun.progress import Antichain
from riverrun.state import spine as spine_module
from riverrun.state.batch import Batch
from riverrun.state.block_files import read_block, write_block
from riverrun.state.schema import FULL_MASK, Order, Schema
from riverrun.state.spine import ReadHold, Spine
from riverrun.state.view import View
from tests.drawn_rows import arrow_types, cells, disguises, to_arrow
from tests.oracle import Reference, Row, before
from tests.soaking import draws
from tests.state.checks import (
    NEVER_FOLD,
    check_changes,
    check_ends,
    check_laws,
    check_lookup,
    check_scan,
    readable,
    reference_for,
    set_sizes,
)
from tests.state.hashing import hash_in

LARGEST = {1: 14, 2: 7, 3: 4}  # coordinates by depth, so that a box of times can be searched
MASKS = [FULL_MASK, FULL_MASK, 0, 1, 3, 0xFF, 0xFF << 56]


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    kinds = arrow_types()
    key = {f"k{at}": draw(kinds) for at in range(draw(st.sampled_from([1, 1, 0, 2, 3])))}
    value = {f"v{at}": draw(kinds) for at in range(draw(st.sampled_from([1, 2, 0, 3])))}
    names = draw(st.permutations(list(value)))
    order = [Order(n, draw(st.booleans())) for n in names[: draw(st.integers(0, len(names)))]]
    return Schema.of(key, value, order, draw(st.sampled_from(MASKS)))


class AnyState(RuleBasedStateMachine):
    """A spine, the reference, and what is known about both."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.folder = Path(tempfile.mkdtemp(prefix="riverrun-state-"))
        self.old: list[tuple[View, Reference]] = []

    def teardown(self) -> None:
        if hasattr(self, "spine"):
            self.check(self.spine.view(), self.reference, 12)
            for view, reference in self.old:
                self.check(view, reference, 4)
        self.patch.undo()
        shutil.rmtree(self.folder)

    @initialize(
        data=st.data(),
        schema=schemas(),
        depth=st.sampled_from([1, 1, 2, 3]),
        budget=st.sampled_from([None, None, 0, 300]),
        cut=st.sampled_from(
            [
                {},
                {},
                {"packed": 0},
                {"packed": 9},
                {"block": 1, "chunk": 1},
                {"block": 4, "chunk": 3},
            ]
        ),
        fold=st.sampled_from([None, NEVER_FOLD, NEVER_FOLD, (0, 2), (3, 2), (6, 4)]),
        fuel=st.sampled_from([None, 0, 0, 1, 7]),
    )
    def start(
        self,
        data: Any,
        schema: Schema,
        depth: int,
        budget: Any,
        cut: Any,
        fold: Any,
        fuel: int | None,
    ) -> None:
        set_sizes(self.patch, fold=fold, **cut)
        if fuel is not None:  # merges stay under way; mostly `work` moves them
            self.patch.setattr(Spine, "_fuel", lambda spine, rows: fuel)
            self.patch.setattr(spine_module, "WORTH_A_CALL", 7)
        self.disk = {} if budget is None else {"budget": budget, "directory": self.folder}
        self.schema, self.depth, self.largest = schema, depth, LARGEST[depth]
        self.reference = reference_for(schema)
        self.upper = Antichain.minimum(depth)
        self.own = self.upper
        self.holds: list[tuple[ReadHold, Antichain]] = []
        self.keys = self.pool(data, schema.key, 6)
        self.values = self.pool(data, schema.value, 8)
        self.spine = Spine("state", schema, depth=depth, **self.disk)
        self.append(data, 12, False)

    def pool(self, data: Any, columns: pa.Schema, most: int) -> list[Row]:
        """A few rows, so that changes meet and cancel."""
        row = st.tuples(*(cells(field.type) for field in columns))
        return data.draw(st.lists(row, min_size=2, max_size=most))  # type: ignore[no-any-return]

    def ahead(self, data: Any, old: Antichain) -> Antichain:
        """A frontier a little further: one time makes way for some of those right after it."""
        open_ = [t for t in old if max(t) + 2 < self.largest]
        if not open_:
            return old
        time = data.draw(st.sampled_from(open_))
        steps = st.lists(st.tuples(st.integers(0, self.depth - 1), st.integers(1, 2)), min_size=1)
        after = [
            (*time[:at], time[at] + by, *time[at + 1 :])
            for at, by in [*data.draw(steps), *((at, 1) for at in range(self.depth - 1))]
        ]
        return Antichain([*(t for t in old if t != time), *after])

    @rule(data=st.data(), count=st.integers(1, 4))
    def append_few(self, data: Any, count: int) -> None:
        self.append(data, count, True)

    @rule(data=st.data(), count=st.integers(5, 30), whole=st.booleans())
    def append_many(self, data: Any, count: int, whole: bool) -> None:
        self.append(data, count, whole)

    @rule(data=st.data(), count=st.integers(0, 12), whole=st.booleans())
    def append(self, data: Any, count: int, whole: bool) -> None:
        """Changes at a single time, or at a few, some of which cancel."""
        lower, upper = self.upper, self.ahead(data, self.upper)
        between = readable(View("", self.schema, (), lower, upper), self.largest)
        times = data.draw(
            st.lists(st.sampled_from(between), min_size=1, max_size=1 if whole else 4)
            if between
            else st.just([])
        )
        rng = random.Random(data.draw(st.integers(0, 2**16)))
        diffs = rng.choice([[1], [1, 1, -1], [1, -1], [1, 2, 300, -(2**40)]])
        changes = [
            (rng.choice(self.keys), rng.choice(self.values), rng.choice(times), rng.choice(diffs))
            for _ in range(count if times else 0)
        ]
        rows: Any = {}
        for at, field in enumerate([*self.schema.key, *self.schema.value]):
            column = [(*key, *value)[at] for key, value, _, _ in changes]
            rows[field.name] = data.draw(disguises(column, field.type))
        table = pa.table({**rows, "": pa.nulls(len(changes))}).select(list(rows))
        drawn_times: Any = [time for _, _, time, _ in changes]
        if len(set(drawn_times)) == 1 and whole:
            drawn_times = drawn_times[0]
        batch = Batch.build(
            self.schema,
            table,
            time=drawn_times,
            diffs=[diff for *_, diff in changes] if changes else 1,
            lower=lower,
            upper=upper,
        )
        self.spine.append(batch)
        self.reference.insert(changes)
        self.upper = upper

    @rule(data=st.data())
    def take_back(self, data: Any) -> None:
        """Delete all that is there: batches that cancel whole."""
        lower, upper = self.upper, self.ahead(data, self.upper)
        between = readable(View("", self.schema, (), lower, upper), self.largest)
        if not between or not self.reference.changes:
            return
        time = data.draw(st.sampled_from(between))
        there = self.reference.read(time)
        changes = [(key, value, time, -count) for (key, value), count in there.items()]
        rows = {
            field.name: to_arrow([(*key, *value)[at] for key, value, _, _ in changes], field.type)
            for at, field in enumerate([*self.schema.key, *self.schema.value])
        }
        table = pa.table({**rows, "": pa.nulls(len(changes))}).select(list(rows))
        diffs = [diff for *_, diff in changes] if changes else 1
        self.spine.insert(table, time, diffs, upper)
        self.reference.insert(changes)
        self.upper = upper

    @rule(data=st.data())
    def advance_upper(self, data: Any) -> None:
        self.upper = self.ahead(data, self.upper)
        self.spine.advance_upper(self.upper)

    @rule(data=st.data())
    def advance_since(self, data: Any) -> None:
        self.own = self.ahead(data, self.own).meet(self.upper)
        self.spine.advance_since(self.own)

    @rule()
    def forget(self) -> None:
        """As far as may be."""
        self.own = self.upper
        self.spine.advance_since(self.own)

    @rule(data=st.data(), here=st.booleans())
    def hold(self, data: Any, here: bool) -> None:
        frontier = self.since() if here else self.ahead(data, self.since())
        hold = self.spine.hold(None if here else frontier)
        assert hold.frontier == frontier
        self.holds.append((hold, frontier))

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def advance_hold(self, data: Any) -> None:
        at = data.draw(st.integers(0, len(self.holds) - 1))
        hold, frontier = self.holds[at]
        frontier = self.ahead(data, frontier)
        hold.advance(frontier)
        self.holds[at] = (hold, frontier)

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        hold, _ = self.holds.pop(data.draw(st.integers(0, len(self.holds) - 1)))
        hold.release()
        hold.release()  # once is enough, twice is no harm

    @rule(fuel=st.sampled_from([1, 1, 2, 3, 10, 1000]))
    def work(self, fuel: int) -> None:
        self.spine.work(fuel)

    @rule()
    def compact(self) -> None:
        self.spine.compact()
        assert len(self.spine.view().batches) <= 1

    @rule()
    def pin(self) -> None:
        self.old = [*self.old[-2:], (self.spine.view(), self.reference.copy())]

    @rule()
    def write_and_read(self) -> None:
        """Through files, as a checkpoint goes; the state goes on from what came back."""
        view = self.spine.view()
        batches = []
        for batch in view.batches:
            blocks = []
            for block in batch.blocks:
                fresh = read_block(write_block(block), self.schema, "here", resident=True)
                assert fresh.uid == block.uid
                blocks.append(fresh.restrict(block.start, block.stop))
            batches.append(replace(batch, blocks=tuple(blocks)))
        self.go_on_from(replace(view, batches=tuple(batches)))

    @rule()
    def rebuild(self) -> None:
        self.go_on_from(self.spine.view())

    def go_on_from(self, view: View) -> None:
        self.old = [*self.old[-2:], (self.spine.view(), self.reference.copy())]
        self.spine = Spine.from_view(view, **self.disk)
        self.own, self.holds = view.since, []

    @rule(data=st.data(), fuel=st.sampled_from([0, 1, 5, 1000, None]))
    def slice(self, data: Any, fuel: int | None) -> None:
        """Cut by hashes into states of their own; each has its keys and no others."""
        view = self.spine.view()
        known = [hash_in(self.schema, key) for key in self.keys]
        cut = st.sampled_from([h for k in known for h in (k, k + 1)]) | st.integers(0, 2**64 - 1)
        cuts = sorted(data.draw(st.lists(cut, max_size=3)))
        rows = 0
        for low, high in zip([0, *cuts], [*cuts, 2**64], strict=True):
            part = replace(view, batches=tuple(b.slice(low, high) for b in view.batches))
            spine = Spine.from_view(part, **self.disk)
            rows += sum(map(len, part.batches))
            if fuel is None:
                spine.compact()
            else:
                spine.work(fuel)
            check_laws(spine)
            hash_of = {key: hash_in(self.schema, key) for key in self.keys}.__getitem__
            reference = self.reference.slice(low, high, hash_of)
            self.check(spine.view(), reference, 1)
        assert rows == sum(map(len, view.batches))

    def since(self) -> Antichain:
        return reduce(Antichain.meet, [frontier for _, frontier in self.holds], self.own)

    @invariant()
    def laws_hold(self) -> None:
        if hasattr(self, "spine"):
            assert self.spine.upper == self.upper
            assert self.spine.since == self.since()
            check_laws(self.spine)
            self.check(self.spine.view(), self.reference, 2)

    def check(self, view: View, reference: Reference, most: int) -> None:
        """Some legal times, the edges first, each read in every way."""
        times = readable(view, self.largest)
        edges = [t for t in view.since if t in times]
        inner = [t for t in times if not any(t != u and before(t, u) for u in times)]  # maximal
        chosen = [*edges, *inner, *times[:: max(1, len(times) // most)]][:most]
        keys = [*self.keys, *self.keys[:2]]
        bounds = [value[reference.order[0][0]] for value in self.values] if reference.order else []
        note(f"reading as of {chosen}")
        for at, t in enumerate(chosen):
            check_lookup(view, reference, keys, t)
            check_ends(view, reference, keys, t, 1 + at % 3, bounds)
            check_scan(view, reference, t, 1 + 2 * at)
        check_changes(view, reference, keys[:3], chosen)


TestAnyState = pytest.mark.sampled(AnyState.TestCase)
TestAnyState.settings = settings(
    max_examples=draws(25, sample=100, soak=400),
    stateful_step_count=24,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
