"""Runs a program twice, in the engine and from scratch, and compares them at every epoch.

A program is a function of inputs, by name, that gives a collection, or several by name. It is called once with
collections, and at every epoch with bags (`tests.frontends.collections.reference`). The changes of an output must also
add up to the rows that are read.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

import riverrun as rr
from tests.frontends.collections.reference import Bag, Row, counted

Program = Callable[..., Any]
MakeRow = Callable[[random.Random], Row]

VALUES: dict[Any, list[Any]] = {
    pl.Int64: [0, 1, 2, 3, None],
    pl.String: ["a", "b", "", None],
    pl.Float64: [0.0, 1.5, -2.25, float("nan"), None],
    pl.Boolean: [True, False, None],
}


def any_row(schema: Mapping[str, Any]) -> MakeRow:
    """Rows of few different values."""
    return lambda source: tuple(source.choice(VALUES[kind]) for kind in schema.values())


class Rows:
    """The rows of an input: random insertions and deletions, some of which cancel, and rows that come back."""

    def __init__(self, make: MakeRow) -> None:
        self.make = make
        self.there: Counter[Row] = Counter()
        self.gone: list[Row] = []

    def epoch(self, source: random.Random, most: int) -> list[tuple[Row, int]]:
        changes: list[tuple[Row, int]] = []
        kind = source.random()
        if kind < 0.1:
            return []
        if kind < 0.18:  # delete all rows
            changes = [(row, -1) for row in self.there.elements()]
        else:
            for _ in range(source.randint(0, most)):
                row = source.choice(self.gone) if self.gone and source.random() < 0.3 else None
                changes.append((self.make(source) if row is None else row, 1))
            here = list((self.there + Counter(row for row, _ in changes)).elements())
            for row in source.sample(here, min(len(here), source.randint(0, most * 2 // 3))):
                changes.append((row, -1))
            source.shuffle(changes)
        for row, diff in changes:
            self.there[row] += diff
            if diff < 0:
                self.gone.append(row)
        self.there = +self.there
        return changes


def build(program: Program, schemas: Mapping[str, Any], name: str = "checked") -> rr.Dataflow:
    """The program as a dataflow; one result is called ``result``."""
    flow = rr.Dataflow(name)
    outputs = program(**{each: flow.input(each, schema) for each, schema in schemas.items()})
    for each, collection in (outputs if isinstance(outputs, dict) else {"result": outputs}).items():
        flow.output(each, collection)
    return flow


def from_scratch(
    program: Program, schemas: Mapping[str, Any], rows: Mapping[str, Any]
) -> dict[str, Bag]:
    """The results of the program for these rows, computed from scratch."""
    bags = {name: Bag.of(schema, Counter(rows[name]).items()) for name, schema in schemas.items()}
    outputs = program(**bags)
    return outputs if isinstance(outputs, dict) else {"result": outputs}


def feed(run: rr.Run, name: str, changes: Sequence[tuple[Row, int]]) -> None:
    """Insert and delete rows of a run, in the order of `changes`."""
    at = 0
    while at < len(changes):
        stop = at
        while stop < len(changes) and changes[stop][1] == changes[at][1]:
            stop += 1
        rows = [row for row, _ in changes[at:stop]]
        (run.insert if changes[at][1] > 0 else run.delete)(name, rows)
        at = stop


class Comparison:
    """A run under comparison, and the rows that the changes of each output have added up to."""

    def __init__(self, said: str) -> None:
        self.said = said
        self.added_up: dict[str, Counter[Row]] = {}

    def compare(self, run: rr.Run, expected: Mapping[str, Bag], again: bool = False) -> None:
        for name, bag in expected.items():
            said = f"{self.said}, epoch {run.epoch}, output {name!r}"
            result = run.read(name)
            assert result.schema.names == bag.columns, said
            counts = counted(zip(*(result[column] for column in bag.columns), strict=True))
            assert counts == bag.rows, f"{said}: {_differences(counts, bag.rows)}"
            if again:
                continue
            sums = self.added_up.setdefault(name, Counter())
            for *row, diff in run.changes(name).rows():
                assert diff != 0, said
                sums[next(iter(counted([row])))] += diff
            left = {row: count for row, count in sums.items() if count}
            assert left == bag.rows, (
                f"{said}: the changes do not add up: {_differences(left, bag.rows)}"
            )


def _differences(counts: Mapping[Row, int], expected: Mapping[Row, int]) -> str:
    rows = sorted({*counts, *expected}, key=repr)
    wrong = [row for row in rows if counts.get(row, 0) != expected.get(row, 0)]
    shown = [f"{row}: {counts.get(row, 0)} and not {expected.get(row, 0)}" for row in wrong[:8]]
    return f"{len(wrong)} rows differ; " + "; ".join(shown)


def check(
    program: Program,
    schemas: Mapping[str, Any],
    *,
    seed: int,
    epochs: int = 5,
    most: int = 8,
    workers: int | None = None,
    make: Mapping[str, MakeRow] | None = None,
    scale: bool = False,
) -> None:
    """Feed random rows, and compare after every epoch."""
    source = random.Random(seed)
    count = workers or source.choice([1, 1, 2, 3, 4])
    turns = source.choice([None, seed])
    said = f"seed={seed}, workers={count}, turns={turns}"
    flow = build(program, schemas)
    inputs = {name: Rows((make or {}).get(name) or any_row(s)) for name, s in schemas.items()}
    comparison = Comparison(said)
    with flow.run(workers=count, seed=turns) as run:
        for _ in range(epochs):
            for name, rows in inputs.items():
                feed(run, name, rows.epoch(source, most))
            expected = from_scratch(program, schemas, {n: r.there for n, r in inputs.items()})
            run.commit()
            comparison.compare(run, expected)
            if scale and source.random() < 0.5:
                run.scale(source.randint(1, 4))
                comparison.compare(run, expected, again=True)
