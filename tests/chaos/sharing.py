"""Programs with shared state: the program itself, random rows for each epoch, and a judge.

A judge is the sequential model of the program (`model`): it takes the rows of each accepted epoch in order, and gives
the output. It is exact, since lateness depends only on how rows were cut into epochs. Times grow with the number of the
epoch; some rows are late, and some fetches ask for times that are passed only some epochs later. These wait meanwhile,
through checkpoints, losses and other numbers of workers.

Answers are counted, so outputs stay small however long a program runs. Functions that programs use are defined inside
functions, so that they travel to workers by value.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

import polars as pl

import riverrun as rr
from tests.chaos.model import Reporter, State, Waiting

Row = tuple[Any, ...]
Fed = Mapping[str, list[tuple[Row, int]]]
"""The rows of an epoch, by input, each with how often it comes."""
PACE = 4  # how far times go on in an epoch
KEYS = 6
VALUES = 9
NONE = -1


class Judge:
    """What an output has come to."""

    def __init__(self) -> None:
        self.out: Counter[Row] = Counter()

    def apply(self, epoch: int, fed: Fed) -> None:
        raise NotImplementedError

    def count(self, rows: list[tuple[Row, int]]) -> None:
        """Answers are counted: the output is one row for each different one, with its number."""
        for row, diff in rows:
            self.out[row] += diff

    def rows(self) -> list[Row]:
        """The rows of the output, sorted."""
        return sorted((*row, count) for row, count in self.out.items() if count)


class Sharing:
    """A program; the base has what is usual: keys, times and values."""

    name: ClassVar[str]
    inputs: ClassVar[dict[str, tuple[str, ...]]]
    """The columns of each input; all are integers."""
    deleted: ClassVar[tuple[str, ...]] = ()
    """The inputs that rows are deleted from."""
    by_epoch: ClassVar[bool] = False
    """Whether epochs without rows count: then it is for the simulation, which knows them all."""

    def build(self, flow: rr.Dataflow, inputs: dict[str, Any]) -> Any:
        """The output."""
        raise NotImplementedError

    def judge(self) -> Judge:
        raise NotImplementedError

    def fresh(self, name: str, source: random.Random, number: int) -> Row:
        """A row for an input."""
        return tuple(self.value(column, source, number) for column in self.inputs[name])

    def value(self, column: str, source: random.Random, number: int) -> int:
        now = PACE * number
        if column == "time":
            return now + source.choice((-7, -3, -1, 0, 0, 1, 2, 3))
        if column == "at":
            return now + source.choice((-9, -6, -4, -2, 0, 2, 5, 8, 14, 30))
        if column == "tick":
            return now + source.randrange(PACE)
        return source.randrange(VALUES if column == "v" else KEYS)

    def draw(
        self,
        source: random.Random,
        number: int,
        there: Mapping[str, list[Row]],
        sizes: tuple[int, ...],
    ) -> tuple[dict[str, list[Row]], dict[str, list[Row]]]:
        """What comes and what goes in the epoch with a number, given the rows that are there, sorted."""
        new, old = {}, {}
        for name in self.inputs:
            size = min(1, source.choice(sizes)) if name == "ticks" else source.choice(sizes)
            new[name] = [self.fresh(name, source, number) for _ in range(size)]
            gone = min(len(there[name]), size // 2 + (source.random() < 0.3))
            old[name] = source.sample(there[name], gone) if name in self.deleted else []
        return new, old

    def dataflow(self) -> rr.Dataflow:
        flow = rr.Dataflow(self.name)
        shapes = {name: dict.fromkeys(columns, pl.Int64) for name, columns in self.inputs.items()}
        inputs = {name: flow.input(name, shape) for name, shape in shapes.items()}
        flow.output("out", self.build(flow, inputs))
        return flow


def counted(answers: Any, *columns: str, **computed: Any) -> Any:
    """How often there is each answer."""
    rows = answers.select(
        *columns, **{name: each.fill_null(NONE) for name, each in computed.items()}
    )
    return rows.group_by(*columns, *computed).agg(n=rr.count())


class AsOf(Sharing):
    """Three ways to report the progress of updates, fetches that are deleted, compaction that keeps the latest."""

    name = "asof"
    inputs: ClassVar = {
        "moves": ("k", "time", "v"),
        "more": ("k", "time", "v"),
        "ticks": ("tick",),
        "views": ("k", "at"),
    }
    deleted = ("moves", "views")
    options: ClassVar[dict[str, Any]] = {"compaction": "lazy", "sweep": 2}

    def build(self, flow: rr.Dataflow, inputs: dict[str, Any]) -> Any:
        key, value = {"k": pl.Int64}, {"v": pl.Int64}
        state = flow.state("campaigns", key, value, compact=rr.rules.keep_latest, **self.options)
        inputs["moves"].update(state, late=4)
        inputs["more"].update(state, progress=False)
        inputs["ticks"].progress(state, "update", at="tick")
        return counted(inputs["views"].fetch(state, key="k", at="at", late=9), "k", v=pl.col("v"))

    def judge(self) -> Judge:
        class Its(Judge):
            def __init__(self) -> None:
                super().__init__()
                reporters = {"moves": Reporter(4), "ticks": Reporter()}
                self.state = State(reporters, {"views": Reporter(9)}, compacted=True)
                self.views = Waiting(self.state)

            def apply(self, epoch: int, fed: Fed) -> None:
                for name in ("moves", "more"):
                    self.state.update([(*row, diff) for row, diff in fed[name]])
                marks = {name: times(fed[name], 1) for name in ("moves", "views")}
                self.state.settle(epoch, {**marks, "ticks": times(fed["ticks"], 0)})
                asked = [(at, (k, at), diff) for (k, at), diff in fed["views"]]
                for (k, at), diff in self.views.take(asked):
                    self.count([((k, or_none(self.state.latest(k, at))), diff)])

        return Its()


class AsOfSlowly(AsOf):
    """The same with everything switched the other way."""

    name = "asof-slowly"
    options: ClassVar[dict[str, Any]] = {
        "compaction": "active",
        "accelerate": False,
        "replies_first": False,
    }


class Sources(Sharing):
    """Sources that fall silent, on both sides; two streams that fetch."""

    name = "sources"
    inputs: ClassVar = {
        "readings": ("k", "time", "v", "s"),
        "asks": ("k", "at", "s"),
        "others": ("k", "at"),
    }
    by_epoch = True

    def value(self, column: str, source: random.Random, number: int) -> int:
        if column == "s":
            return (number // 3 + source.randrange(2)) % 3
        return super().value(column, source, number)

    def build(self, flow: rr.Dataflow, inputs: dict[str, Any]) -> Any:
        key, value = {"k": pl.Int64}, {"v": pl.Int64}
        state = flow.state("air", key, value, compact=rr.rules.keep_latest, compaction="active")
        inputs["readings"].update(state, late=2, by="s", idle=2)
        asks = inputs["asks"].fetch(state, key="k", at="at", late=6, by="s", idle=3)
        others = inputs["others"].fetch(state, key="k", at="at", late=8, idle=1)
        both = asks.select("k", "v").concat(others.select("k", "v"))
        return counted(both, "k", v=pl.col("v"))

    def judge(self) -> Judge:
        class Its(Judge):
            def __init__(self) -> None:
                super().__init__()
                asking = {"asks": Reporter(6, 3), "others": Reporter(8, 1)}
                self.state = State({"readings": Reporter(2, 2)}, asking, compacted=True)
                self.waiting = {name: Waiting(self.state) for name in asking}

            def apply(self, epoch: int, fed: Fed) -> None:
                self.state.update([(*row[:3], diff) for row, diff in fed["readings"]])
                marks = {name: times(fed[name], 1, by) for name, by in (("readings", 3), ("asks", 2))}  # fmt: skip
                self.state.settle(epoch, {**marks, "others": times(fed["others"], 1)})
                for name, waiting in self.waiting.items():
                    asked = [(row[1], row[:2], diff) for row, diff in fed[name]]
                    for (k, at), diff in waiting.take(asked):
                        self.count([((k, or_none(self.state.latest(k, at))), diff)])

        return Its()


class Ranges(Sharing):
    """Sums and ranges: increments that are folded, values that are dropped, reads that are not committed."""

    name = "ranges"
    inputs: ClassVar = {
        "sales": ("k", "time", "v"),
        "ask": ("k", "at"),
        "peek": ("k", "at"),
        "look": ("k",),
    }
    deleted = ("sales", "ask")

    def build(self, flow: rr.Dataflow, inputs: dict[str, Any]) -> Any:
        key, value = {"k": pl.Int64}, {"v": pl.Int64, "w": pl.Float64}
        sold = flow.state("sold", key, value, compact=rr.rules.fold, compaction="active")
        tenths = pl.col("v").cast(pl.Float64) / 10
        inputs["sales"].update(sold, value={"v": "v", "w": tenths}, rule=rr.rules.add, late=4)
        span = flow.state("recent", key, {"v": pl.Int64}, compact=rr.rules.drop_before(12), sweep=1)
        inputs["sales"].update(span, rule=rr.rules.append, late=2)

        totals = inputs["ask"].fetch(sold, key="k", at="at", rule=rr.rules.total, late=9)
        peeked = inputs["peek"].fetch_uncommitted(
            sold, key="k", wait="at", rule=rr.rules.total, progress=False
        )
        since = pl.col("at") - 7
        ranges = inputs["ask"].fetch(
            span, key="k", at="at", since=since, rule=rr.rules.within, closed="right", late=5
        )
        looked = inputs["look"].fetch_uncommitted(sold, key="k", rule=rr.rules.total)
        tens = (pl.col("w") * 10).round().cast(pl.Int64)
        answers = [
            totals.select("k", what=pl.lit(0), v=pl.col("v") % 7, w=tens % 5),
            peeked.select("k", what=pl.lit(1), v=pl.col("v") % 7, w=tens % 5),
            looked.select("k", what=pl.lit(2), v=pl.col("v") % 7, w=tens % 5),
            ranges.select("k", what=pl.lit(3), v="v", w=pl.col("at") - pl.col("time")),
        ]
        rows = answers[0].concat(*answers[1:])
        return counted(rows, "k", "what", v=pl.col("v"), w=pl.col("w"))

    def judge(self) -> Judge:
        class Its(Judge):
            def __init__(self) -> None:
                super().__init__()
                self.sold = State({"sales": Reporter(4)}, {"ask": Reporter(9)}, compacted=True)
                self.recent = State({"sales": Reporter(2)}, {"ask": Reporter(5)}, compacted=True)
                self.totals, self.ranges = Waiting(self.sold), Waiting(self.recent)
                self.peeked = Waiting(self.sold)

            def total(self, what: int, k: int, at: int | None, diff: int) -> None:
                values = [value for _, value in self.sold.within(k, None, at)]
                row = (k, what, NONE, NONE)
                if values:
                    tenths = math.fsum(value / 10 for value in values)
                    row = (k, what, sum(values) % 7, round(tenths * 10) % 5)
                self.count([(row, diff)])

            def apply(self, epoch: int, fed: Fed) -> None:
                marks = {"sales": times(fed["sales"], 1), "ask": times(fed["ask"], 1)}
                for state in (self.sold, self.recent):
                    state.update([(*row, diff) for row, diff in fed["sales"]], "append")
                    state.settle(epoch, marks)
                asked = [(at, (k, at), diff) for (k, at), diff in fed["ask"]]
                for (k, at), diff in self.totals.take(asked):
                    self.total(0, k, at, diff)
                waits = [(at, (k, at), diff) for (k, at), diff in fed["peek"]]
                for (k, _), diff in self.peeked.take(waits, at={}):
                    self.total(1, k, None, diff)
                for (k,), diff in fed["look"]:
                    self.total(2, k, None, diff)
                for (k, at), diff in self.ranges.take(asked):
                    values = self.recent.within(k, at - 6, at)
                    rows = [((k, 3, v, at - time), diff) for time, v in values]
                    self.count(rows or [((k, 3, NONE, NONE), diff)])

        return Its()


def times(rows: list[tuple[Row, int]], column: int, by: int | None = None) -> list[tuple[str, int]]:
    """Which source brought which times: a deletion brings none."""
    return [("" if by is None else str(row[by]), row[column]) for row, diff in rows if diff > 0]


def added_up(rows: list[tuple[Row, int]]) -> list[tuple[Row, int]]:
    """The answers of an epoch, as they report.

    A request that is deleted in the epoch in which U passes it, or that goes as it comes, was never there (the
    deletions-take-back law of a fetch): it brings no time.
    """
    net: Counter[Row] = Counter()
    for row, diff in rows:
        net[row] += diff
    return list(net.items())


def or_none(value: Any) -> int:
    return NONE if value is None else int(value)
