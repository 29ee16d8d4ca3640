"""Loads: programs under random input, and their expected outputs. A commit is a function of a seed and its number.

A `Load` is that of a program over collections, judged by recomputation over the rows that are there. A `SharedLoad` is
that of a program with shared state, judged by its sequential model over the commits that count, in their order.

A process that resumes a run can tell which rows another process has fed: every commit upserts its number into the input
`marks`, in the epoch of its rows, and the rows are drawn from the seed and that number. So a driver process can be
killed at any moment, and the next one can still compare.

>>> load = Load("count", seed=7)
>>> first = load.draw()
>>> other = Load("count", seed=7)
>>> other.draw() == first and other.expected() == load.expected()
True
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import polars as pl

import riverrun as rr
from riverrun.algorithms.graphs.components import components, strongly_connected_components
from tests.algorithms import reference
from tests.chaos.loops import EVERY, answers, together
from tests.chaos.relaying import SHARING
from tests.spark.programs import Program, Rows, counting, joining, upserting

Row = tuple[Any, ...]
POISON = -1
STREAMED = 1000
"""Where the keys of streamed rows begin: nobody deletes those."""


def _graph(name: str, make: Callable[[Any], Any], judge: Callable[[Any, Any], Any]) -> Program:
    flow = rr.Dataflow(name)
    edges = flow.input("a", {"k": pl.Int64, "v": pl.Int64}).rename({"k": "src", "v": "dst"})
    flow.output("out", make(edges))

    def oracle(rows: Rows) -> list[Row]:
        pairs = set(rows["a"])
        return sorted(judge({end for pair in pairs for end in pair}, pairs).items())

    return Program(flow, oracle)


def _loops() -> Program:
    """Loops of every kind, in one program: so each kill strikes all of them."""
    flow = rr.Dataflow("loops")
    edges = flow.input("a", {"k": pl.Int64, "v": pl.Int64}).rename({"k": "src", "v": "dst"})
    flow.output("out", together(EVERY, edges))
    return Program(flow, lambda rows: sorted(answers(EVERY, rows["a"])))


PROGRAMS: dict[str, Callable[[], Program]] = {
    "count": counting,
    "join": joining,
    "upsert": upserting,
    "components": lambda: _graph("components", components, reference.components),
    "scc": lambda: _graph(
        "scc", strongly_connected_components, reference.strongly_connected_components
    ),
    "loops": _loops,
}
SHARED = {name: program for name, program in SHARING.items() if not program.by_epoch}
NAMES = (*PROGRAMS, *SHARED)
KEYS = {"count": 200, "join": 60, "upsert": 200, "components": 40, "scc": 24, "loops": 24}
MOST = {"count": 3000, "join": 150, "upsert": 200, "components": 60, "scc": 40, "loops": 40}
"""About how many rows an input has."""


def program_with_marks(name: str) -> Program:
    """A program that also keeps the number of the last commit. A mark below zero makes its epoch fail."""

    program = PROGRAMS[name]()
    add_marks(program.flow)
    return program


def add_marks(flow: rr.Dataflow) -> None:
    def refuse(row: dict[str, Any]) -> list[dict[str, Any]]:
        if row["n"] < 0:
            raise ValueError("poison was found")
        return [row]

    shape = {"id": pl.Int64, "n": pl.Int64}
    marks = flow.input("marks", shape, key="id")
    flow.output("passed marks", marks.flat_map(refuse, shape))


@dataclass(frozen=True)
class Change:
    """What one commit does."""

    number: int
    new: dict[str, list[Row]]
    old: dict[str, list[Row]]
    poison: bool = False


@dataclass
class Load:
    """What was committed so far, and what comes next."""

    name: str
    seed: int
    poison: float = 0.0
    """The share of commits that are to fail."""
    number: int = 0
    """How many were drawn."""
    mark: int = POISON
    """The last one that counts."""
    rows: Rows = field(default_factory=dict)
    streamed: Counter[Row] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.program = program_with_marks(self.name)
        self.inputs = [each for each in self.program.flow.inputs if each != "marks"]
        self.rows = {name: Counter() for name in self.inputs}

    def draw(self) -> Change:
        """The next commit; it is counted unless it is to fail."""
        source = random.Random(f"{self.seed}/{self.number}")
        poison = source.random() < self.poison
        new: dict[str, list[Row]] = {}
        old: dict[str, list[Row]] = {}
        after: Rows = {}
        for name in self.inputs:
            present, size = self.rows[name], source.choice((0, 1, 5, 30, 30, 100))
            size = min(size, MOST[self.name] // 4)
            keys = KEYS[self.name]
            graph = self.name in ("components", "scc", "loops")
            new[name] = [
                (source.randrange(keys), source.randrange(keys if graph else 50))
                for _ in range(size)
            ]
            there = sorted(present.elements())
            gone = size // 2 + max(0, len(there) - MOST[self.name])
            old[name] = source.sample(there, min(gone, len(there)))
            if self.program.keyed:
                deleted = {k for k, _ in old[name]}
                latest = {k: v for k, v in present if k not in deleted} | dict(new[name])
                after[name] = Counter(latest.items())
            else:
                after[name] = Counter(present)
                after[name].subtract(old[name])
                after[name].update(new[name])
                after[name] = +after[name]
        change = Change(self.number, new, old, poison)
        if not poison:
            self.rows, self.mark = after, self.number
        self.number += 1
        return change

    def draw_until(self, mark: int) -> None:
        """Count what somebody else has committed, up to a mark; what fails right behind it may come again."""
        while self.mark < mark:
            self.draw()

    def expected(self) -> list[Row]:
        """The rows of the output, from scratch."""
        rows = dict(self.rows)
        rows["a"] = rows["a"] + self.streamed
        return self.program.oracle(rows)

    def columns(self, name: str) -> list[str]:
        """The names of the columns of an input."""
        return ["k", "v"]

    def expected_later(self) -> Callable[[], list[Row]]:
        """A function that gives, whenever it is called, the output that is expected now."""
        rows = self.rows
        return lambda: self.program.oracle(rows)

    def batch_of_stream(self, number: int) -> list[Row]:
        """The rows of a file that is streamed in."""
        return [(STREAMED + number, number), (STREAMED + number, STREAMED + number // 2)][
            : 1 if self.program.keyed else 2
        ]


RECENT = 60
"""The number of rows of an input that may still be deleted."""


@dataclass
class SharedLoad(Load):
    """Commits of a program with shared state, as they are counted."""

    def __post_init__(self) -> None:
        self.sharing = SHARED[self.name]()
        flow = self.sharing.dataflow()
        add_marks(flow)
        self.program = Program(flow, lambda rows: [])
        self.judge = self.sharing.judge()
        self.recent: dict[str, list[Row]] = {name: [] for name in self.sharing.inputs}
        self.counted = 0

    def draw(self) -> Change:
        source = random.Random(f"{self.seed}/{self.number}")
        poison = source.random() < self.poison
        there = {name: sorted(rows) for name, rows in self.recent.items()}
        new, old = self.sharing.draw(source, self.number, there, (0, 1, 2, 5, 10))
        if not poison:
            self.mark = self.number
            fed = {
                name: [*((row, 1) for row in new[name]), *((row, -1) for row in old[name])]
                for name in new
            }
            self.judge.apply(self.counted, fed)
            self.counted += 1
            for name in self.sharing.deleted:
                left = Counter([*self.recent[name], *new[name]])
                left.subtract(old[name])
                rows = [row for row in dict.fromkeys([*self.recent[name], *new[name]]) if left[row]]
                self.recent[name] = [row for row in rows for _ in range(left[row])][-RECENT:]
        change = Change(self.number, new, old, poison)
        self.number += 1
        return change

    def expected(self) -> list[Row]:
        return self.judge.rows()

    def columns(self, name: str) -> list[str]:
        return list(self.sharing.inputs[name])

    def expected_later(self) -> Callable[[], list[Row]]:
        rows = self.judge.rows()
        return lambda: rows


def load_of(name: str, seed: int, poison: float = 0.0) -> Load:
    """The load of a program."""
    return (SharedLoad if name in SHARED else Load)(name, seed, poison)
