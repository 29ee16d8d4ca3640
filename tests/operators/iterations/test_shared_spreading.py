"""Shared spreading against the reference of spreading: several workers, whose letters arrive in any order."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from riverrun.errors import OperatorFailed, PlanError
from riverrun.operators.iterations.ordinals import has_ordinals
from riverrun.operators.iterations.shared_spreading import (
    Letters,
    SharedSpreading,
    addressees,
)
from riverrun.operators.iterations.spreading import Message
from riverrun.state.changes import split_rows
from riverrun.state.columns import Ints, take_columns
from riverrun.state.kernels.iterations import cells
from riverrun.state.shards import Shards
from tests.operators.iterations.reference import Refused
from tests.operators.iterations.test_spreading import CASES, Drawn, key_of, numbers
from tests.soaking import seeds


class Crowd:
    """Several workers with a `SharedSpreading` each, in the place of one `Spreading`."""

    def __init__(self, draw: random.Random, workers: int, *arguments: Any, **options: Any) -> None:
        self.draw = draw
        self.shards = Shards.even(workers)
        self.kinds = arguments[0]
        self.members = [
            SharedSpreading(*arguments, own=at, shards=self.shards, **options)
            for at in range(workers)
        ]
        self.mail: list[list[list[Letters]]] = [[[] for _ in self.members] for _ in self.members]
        self.is_first = True

    def change_solution(self, keys: Sequence[pa.Array], values: pa.Array, diffs: Ints) -> None:
        for at, rows in self.parts(keys, len(diffs)):
            kept, part = take_columns([*keys, values], rows), diffs[rows]
            self.members[at].change_solution(kept[:-1], kept[-1], part)

    def change_workset(self, keys: Sequence[pa.Array], values: pa.Array, diffs: Ints) -> None:
        for at, rows in self.parts(keys, len(diffs)):
            kept, part = take_columns([*keys, values], rows), diffs[rows]
            self.members[at].change_workset(kept[:-1], kept[-1], part)

    def change_edges(
        self, sources: Sequence[pa.Array], targets: Sequence[pa.Array], weights: Any, diffs: Ints
    ) -> None:
        width = len(sources)
        for at, rows in self.parts(sources, len(diffs)):
            kept = take_columns([*sources, *targets], rows)
            some = None if weights is None else take_columns([weights], rows)[0]
            self.members[at].change_edges(kept[:width], kept[width:], some, diffs[rows])

    def parts(self, keys: Sequence[pa.Array], rows: int) -> list[tuple[int, Any]]:
        order, starts = split_rows(list(keys), rows, self.shards)
        ends = pairwise(starts)
        return [(at, order[a:b]) for at, (a, b) in enumerate(ends) if b > a]

    def converge(self) -> list[tuple[Any, Any, int]]:
        """An epoch, in steps that come in any order: the changes of keys."""
        waiting: list[Callable[[], list[Letters]]] = [each.lose for each in self.members]
        if not self.is_first:  # who has nothing to do need not do it
            waiting = [one for one in waiting if self.draw.random() < 0.9 or has_staged(one)]
        self.run_all(waiting, SharedSpreading.hear_losses)
        waiting = [each.turn for each in self.members]
        self.draw.shuffle(waiting)
        turned = [step() for step in waiting] if self.is_first else []
        for letters in turned:
            self.send(letters)
        self.run_all([] if self.is_first else waiting, SharedSpreading.hear)
        self.is_first = False
        changes = []
        for each in self.members:
            columns, diffs = each.settle().result()
            *keys, values = columns
            named = [key_of(key) for key in zip(*(key.to_pylist() for key in keys), strict=True)]
            changes += zip(named, numbers(values), diffs.tolist(), strict=True)
        return changes

    def run_all(
        self,
        waiting: list[Callable[[], list[Letters]]],
        take: Callable[[SharedSpreading, Letters], Any],
    ) -> None:
        """Run steps, deliver letters, and have workers work, as the dice fall; until nothing is left."""
        spreads = take is SharedSpreading.hear
        while True:
            acts: list[Callable[[], Any]] = [lambda: self.send(waiting.pop()())] if waiting else []
            for sender, row in enumerate(self.mail):
                for to, letters in enumerate(row):
                    if letters and not (waiting and spreads):
                        acts.append(lambda a=sender, b=to: self.deliver(a, b, take))  # type: ignore[misc]
            if spreads and not waiting:
                acts += [
                    lambda one=each: self.send(one.work()) for each in self.members if each.is_busy
                ]
            if not acts:
                return
            self.draw.choice(acts)()

    def send(self, written: list[Letters]) -> None:
        for letters in written:
            about = np.asarray(letters[-3])
            for to in np.unique(addressees(about)).tolist():
                rows = np.flatnonzero(addressees(about) == to)
                sender = int(about[rows[0]] >> 3) & ((1 << 21) - 1)
                self.mail[sender][to].append(tuple(take_columns(letters, rows)))

    def deliver(
        self, sender: int, to: int, take: Callable[[SharedSpreading, Letters], Any]
    ) -> None:
        letters = take(self.members[to], self.mail[sender][to].pop(0))
        self.send(letters or [])


def has_staged(step: Any) -> bool:
    return bool(step.__self__._changes or step.__self__._started)


class SharedDrawn(Drawn):
    """One loop on several workers and its reference, and random changes of both."""

    cases = tuple([name for name, case in CASES.items() if not has_ordinals(case.kind)])

    def __init__(self, seed: int, *, large: bool = False) -> None:
        self.workers = random.Random(seed).randint(1, 4)
        super().__init__(seed, large=large)

    def __repr__(self) -> str:
        return f"{self.workers} workers, {super().__repr__()}"

    def new(self) -> Any:
        if pa.types.is_floating(self.case.kind) and self.case.operation == "add":
            # A cycle may improve floats for longer than there is patience, before a letter with a better value ends it.
            self.options["best"], self.there.greatest = "least", False
            self.weights = [each for each in self.weights if each is None or not each < 0] or [0.0]
        copies = self.case.operation == "copy"
        constant = None if copies or self.case.weights else self.case.constant
        message = Message(self.case.operation, constant)
        return Crowd(self.random, self.workers, self.kinds, self.case.kind, message, **self.options)

    def epoch(self) -> str:
        before = self.there.copy()
        expected: Any
        changes, failed = None, None
        try:
            self.change()
            changes = self.spreading.converge()
        except OperatorFailed as error:
            failed = error
        try:
            expected = self.there.values()
        except Refused:
            expected = None
        if failed is not None:
            assert expected is None, (failed, expected)
        if expected is None:
            assert failed is not None, "no error"
            self.there = before
            self.renew()
            return "refused"
        assert changes is not None
        self.apply(changes)
        assert self.result == expected, (self.result, expected)
        self.check_rest()
        if self.random.random() < 0.05:
            self.renew()
            return "renewed"
        return "fine"

    def apply(self, changes: list[tuple[Any, Any, int]]) -> None:
        assert len({(key, diff) for key, _, diff in changes}) == len(changes)
        assert len({(key, value) for key, value, _ in changes}) == len(changes)  # net
        for key, value, diff in changes:
            if diff < 0:
                assert self.result.pop(key) == value
        for key, value, diff in changes:
            if diff > 0:
                assert key not in self.result
                self.result[key] = value

    def renew(self) -> None:
        """Go on with other instances, which take all rows again."""
        self.workers = self.random.randint(1, 4)
        self.spreading = self.new()
        for counts, give in (
            (self.there.edges, self.give_edges),
            (self.there.solution, self.give_solution),
            (self.there.workset, self.give_workset),
        ):
            give(self.spreading, list(counts.items()))
        self.result = {}
        self.apply(self.spreading.converge())
        assert self.result == self.there.values()

    def check_rest(self) -> None:
        for each in self.spreading.members:  # type: ignore[attr-defined]
            known = each._known
            assert (each._flags[cells.STATE, :known] == 0).all()
            assert (each._cells[cells.BUCKET, :known] == -1).all()
            assert (each._queues == -1).all()


@pytest.mark.drawn
def test_values_on_several_workers_are_those_from_scratch() -> None:
    outcomes: dict[str, int] = {}
    for seed in seeds(400, soak=6000):
        drawn = SharedDrawn(seed)
        for epoch in range(20):
            try:
                outcome = drawn.epoch()
            except Exception as error:
                error.add_note(f"seed {seed}, epoch {epoch}: {drawn}")
                raise
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert {*outcomes} == {"fine", "refused", "renewed"}


@pytest.mark.drawn
def test_values_of_large_graphs_on_several_workers_are_those_from_scratch() -> None:
    for seed in seeds(30, soak=600):
        drawn = SharedDrawn(seed, large=True)
        for epoch in range(20):
            try:
                drawn.epoch()
            except Exception as error:
                error.add_note(f"seed {seed}, epoch {epoch}: {drawn}")
                raise


def test_values_that_each_worker_would_number_are_refused() -> None:
    with pytest.raises(PlanError, match="number them in its own way"):
        SharedSpreading(
            [pa.int64()], pa.large_string(), Message("copy"), own=0, shards=Shards.even(2)
        )
