"""More programs with shared state: records with several requests, several states, loops, and compacted entries.

`SHARING` has all programs with shared state by name.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

import polars as pl

import riverrun as rr
from riverrun.algorithms.graphs.components import components
from tests.algorithms import reference
from tests.chaos.model import Reporter, State, Waiting
from tests.chaos.sharing import (
    KEYS,
    NONE,
    VALUES,
    AsOf,
    AsOfSlowly,
    Fed,
    Judge,
    Ranges,
    Row,
    Sharing,
    Sources,
    added_up,
    counted,
    or_none,
    times,
)


class Gathered(Sharing):
    """Records with several requests: of a list, and of a function, whose requests have times of their own; and two
    states, the second of which is updated with what is fetched from the first."""

    name = "gathered"
    inputs: ClassVar = {
        "moves": ("k", "time", "v"),
        "orders": ("k", "b", "at"),
        "baskets": ("k", "b", "at", "size"),
    }
    deleted = ("orders",)

    def value(self, column: str, source: random.Random, number: int) -> int:
        if column == "size":
            return source.choice((0, 1, 2, 3))
        return super().value(column, source, number)

    def build(self, flow: rr.Dataflow, inputs: dict[str, Any]) -> Any:
        key, value = {"k": pl.Int64}, {"v": pl.Int64}
        prices = flow.state("prices", key, value)
        moved = flow.state("kept", key, value, compact=rr.rules.keep_latest, sweep=1)
        inputs["moves"].update(prices, late=3)
        inputs["moves"].update(moved, late=3)

        def ask(row: dict[str, Any]) -> list[dict[str, Any]]:
            return [{"k": (row["k"] + n) % 6, "at": row["at"] + 3 * n} for n in range(row["size"])]

        def listed(row: dict[str, Any]) -> list[dict[str, Any]]:
            return [{**row, "keys": [row["k"], row["b"], row["k"]]}]

        def folded(row: dict[str, Any]) -> list[dict[str, Any]]:
            values = [50 if each is None else each for each in row["v"]]
            hashed = sum((n + 1) * each for n, each in enumerate(values)) % 13
            return [{"k": row["k"], "at": row["at"], "v": hashed}]

        shape = {"k": pl.Int64, "at": pl.Int64, "v": pl.Int64}
        lists = {"k": pl.Int64, "b": pl.Int64, "at": pl.Int64, "keys": pl.List(pl.Int64)}
        orders = inputs["orders"].flat_map(listed, lists).fetch(prices, key="keys", at="at")
        orders = orders.flat_map(folded, shape)
        baskets = inputs["baskets"].fetch(moved, requests=ask, at="at", late=12)
        baskets = baskets.flat_map(folded, shape)

        second = flow.state("second", key, value)
        orders.update(second, time="at", rule=rr.rules.append, late=5)
        echoed = inputs["orders"].fetch(second, key="b", at="at", rule=rr.rules.latest)
        answers = [
            orders.select("k", what=pl.lit(0), v="v"),
            baskets.select("k", what=pl.lit(1), v="v"),
            echoed.select("k", what=pl.lit(2), v="v"),
        ]
        rows = answers[0].concat(*answers[1:])
        return counted(rows, "k", "what", v=pl.col("v"))

    def judge(self) -> Judge:
        def hashed(values: list[Any]) -> int:
            filled = [50 if each is None else each for each in values]
            return sum((n + 1) * each for n, each in enumerate(filled)) % 13

        class Its(Judge):
            def __init__(self) -> None:
                super().__init__()
                self.prices = State({"moves": Reporter(3)})
                self.moved = State(
                    {"moves": Reporter(3)}, {"baskets": Reporter(12)}, compacted=True
                )
                self.second = State({"orders": Reporter(5)})
                self.orders, self.baskets = Waiting(self.prices), Waiting(self.moved)
                self.echoed = Waiting(self.second)

            def apply(self, epoch: int, fed: Fed) -> None:
                moves = {"moves": times(fed["moves"], 1)}
                self.prices.update([(*row, diff) for row, diff in fed["moves"]])
                self.prices.settle(epoch, moves)
                self.moved.update([(*row, diff) for row, diff in fed["moves"]])
                asked = {
                    row: [((row[0] + n) % 6, row[2] + 3 * n) for n in range(row[3])]
                    for row, _ in fed["baskets"]
                }
                ticks = [("", at) for each in asked.values() for _, at in each]
                self.moved.settle(epoch, {**moves, "baskets": ticks})

                orders = [(row[2], row, diff) for row, diff in fed["orders"]]
                ready = []
                for (k, b, at), diff in self.orders.take(orders):
                    v = hashed([self.prices.latest(each, at) for each in (k, b, k)])
                    self.count([((k, 0, v), diff)])
                    ready.append(((k, at, v), diff))
                self.second.update([(*row, diff) for row, diff in ready], "append")
                self.second.settle(epoch, {"orders": times(added_up(ready), 1)})
                for (k, b, at), diff in self.echoed.take(orders):
                    self.count([((k, 2, or_none(self.second.latest(b, at))), diff)])

                self._fill(fed, asked)

            def _fill(self, fed: Fed, asked: Mapping[Row, list[Row]]) -> None:
                some = [(row, diff) for row, diff in fed["baskets"] if asked[row]]
                for row, diff in fed["baskets"]:
                    if not asked[row]:
                        self.count([((row[0], 1, hashed([])), diff)])
                last = [(max(at for _, at in asked[row]), row, diff) for row, diff in some]
                first = {row: min(at for _, at in asked[row]) for row, _ in some}
                for row, diff in self.baskets.take(last, at=first):
                    every = [((row[0] + n) % 6, row[2] + 3 * n) for n in range(row[3])]
                    v = hashed([self.moved.latest(k, at) for k, at in every])
                    self.count([((row[0], 1, v), diff)])

        return Its()


class Chained(Sharing):
    """Answers update another state, and report its progress."""

    name = "chained"
    inputs: ClassVar = {"moves": ("k", "time", "v"), "views": ("k", "b", "at")}
    deleted = ("views",)

    def build(self, flow: rr.Dataflow, inputs: dict[str, Any]) -> Any:
        key, value = {"k": pl.Int64}, {"v": pl.Int64}
        first, second = flow.state("first", key, value), flow.state("second", key, value)
        inputs["moves"].update(first, late=3)
        seen = inputs["views"].fetch(first, key="k", at="at")
        seen.update(second, key="b", time="at", rule=rr.rules.append, late=4)
        again = inputs["views"].fetch(second, key="k", at="at", rule=rr.rules.within)
        return counted(again, "k", "b", v=pl.col("v"), time=pl.col("at") - pl.col("time"))

    def judge(self) -> Judge:
        class Its(Judge):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = (
                    State({"moves": Reporter(3)}),
                    State({"seen": Reporter(4)}),
                )
                self.seen, self.again = Waiting(self.first), Waiting(self.second)

            def apply(self, epoch: int, fed: Fed) -> None:
                self.first.update([(*row, diff) for row, diff in fed["moves"]])
                self.first.settle(epoch, {"moves": times(fed["moves"], 1)})
                asked = [(row[2], row, diff) for row, diff in fed["views"]]
                answers = [
                    ((b, at, self.first.latest(k, at)), diff)
                    for (k, b, at), diff in self.seen.take(asked)
                ]
                self.second.update([(*row, diff) for row, diff in answers], "append")
                self.second.settle(epoch, {"seen": times(added_up(answers), 1)})
                for (k, b, at), diff in self.again.take(asked):
                    values = self.second.within(k, None, at)
                    rows = [((k, b, or_none(v), at - time), diff) for time, v in values]
                    self.count(rows or [((k, b, NONE, NONE), diff)])

        return Its()


class Kept(Sharing):
    """What active compaction leaves of a state: of an epoch that is done again, the same."""

    name = "kept"
    inputs: ClassVar = {"moves": ("k", "time", "v"), "views": ("k", "at")}

    def build(self, flow: rr.Dataflow, inputs: dict[str, Any]) -> Any:
        key, value = {"k": pl.Int64}, {"v": pl.Int64}
        state = flow.state("kept", key, value, compact=rr.rules.keep_latest, compaction="active")
        inputs["moves"].update(state, late=4)
        answers = inputs["views"].fetch(state, key="k", at="at", late=9)
        both = state.entries().concat(answers.select("k", time=pl.lit(0, pl.Int64), v="v"))
        return counted(both, "k", "time", v=pl.col("v"))

    def judge(self) -> Judge:
        class Its(Judge):
            def __init__(self) -> None:
                super().__init__()
                self.state = State({"moves": Reporter(4)}, {"views": Reporter(9)}, compacted=True)
                self.views = Waiting(self.state)
                self.left: dict[int, set[tuple[int, int]]] = {}

            def apply(self, epoch: int, fed: Fed) -> None:
                state = self.state
                before = state.update_progress, state.fetch_progress
                floor = -(1 << 60) if before[0] is None else before[0]
                touched = {k for (k, time, _), _ in fed["moves"] if time >= floor}
                state.update([(*row, diff) for row, diff in fed["moves"]])
                marks = {name: times(fed[name], 1) for name in self.inputs}
                state.settle(epoch, marks)
                moved = (state.update_progress, state.fetch_progress) != before
                self._compact(touched, moved, before[1], floor)
                asked = [(at, (k, at), diff) for (k, at), diff in fed["views"]]
                for (k, at), diff in self.views.take(asked):
                    self.count([((k, 0, or_none(state.latest(k, at))), diff)])

            inputs = Kept.inputs

            def _compact(
                self, touched: set[int], moved: bool, bound: int | None, floor: int
            ) -> None:
                for k in touched:  # what is from U on is as it is in the state
                    old = {each for each in self.left.get(k, ()) if each[0] < floor}
                    self.left[k] = old | set(self.state.within(k, floor))
                if bound is None:
                    return
                for k in self.left if moved else touched:
                    past = sorted(each for each in self.left[k] if each[0] < bound)
                    self.left[k] -= set(past[:-1])

            def rows(self) -> list[Row]:
                entries = Counter((k, *each) for k, left in self.left.items() for each in left)
                both = self.out + entries
                return sorted((*row, count) for row, count in both.items())

        return Its()


class Hops(Sharing):
    """A fetch in a loop: each hop asks for a later time than the one before, and waits at its round."""

    name = "hops"
    inputs: ClassVar = {"links": ("k", "b", "time"), "asked": ("k", "at")}
    deleted = ("asked", "links")

    def build(self, flow: rr.Dataflow, inputs: dict[str, Any]) -> Any:
        graph = flow.state("graph", key={"k": pl.Int64}, value={"b": pl.Int64})
        inputs["links"].update(graph, rule=rr.rules.append, late=3)
        loop = flow.loop(name="hops")
        first = loop.enter(inputs["asked"].select("at", start="k", here="k", hop=pl.lit(1)))
        back = loop.feedback(first.schema, rounds=3)
        hops = first.concat(back).fetch(
            graph, key="here", at="at", since=pl.col("at") - 20, rule=rr.rules.within, how="inner"
        )
        back.connect(
            hops.select(at=pl.col("at") + 4, start="start", here="b", hop=pl.col("hop") + 1)
        )
        reached = loop.leave(hops.select("start", "hop", node="b"))
        return counted(reached, "start", "hop", node=pl.col("node"))

    def judge(self) -> Judge:
        class Its(Judge):
            def __init__(self) -> None:
                super().__init__()
                self.graph = State({"links": Reporter(3)})
                self.walkers = Waiting(self.graph)

            def apply(self, epoch: int, fed: Fed) -> None:
                links = [(k, time, b, diff) for (k, b, time), diff in fed["links"]]
                self.graph.update(links, "append")
                self.graph.settle(epoch, {"links": times(fed["links"], 2)})
                walking = [(at, (at, k, k, 1), diff) for (k, at), diff in fed["asked"]]
                while ready := self.walkers.take(walking):
                    walking = []
                    for (at, start, here, hop), diff in ready:
                        for _, b in self.graph.within(here, at - 20, at):
                            self.count([((start, hop, b), diff)])
                            if hop < 3:
                                walking.append((at + 4, (at + 4, start, b, hop + 1), diff))

        return Its()


class Learning(Sharing):
    """A state in a loop: step n fetches what the steps before it made, and updates it; steps come in any order."""

    name = "learning"
    inputs: ClassVar = {"steps": ("step", "k", "v")}

    def value(self, column: str, source: random.Random, number: int) -> int:
        if column == "step":
            return max(1, number + source.choice((-3, -1, -1, 0, 0, 0, 1, 2, 4)))
        return super().value(column, source, number)

    def draw(self, source: random.Random, number: int, *arguments: Any) -> Any:
        new, old = super().draw(source, number, *arguments)
        for step in (number - 1, number - 3):  # so that no step is left out for ever, as a rule
            if step > 0 and source.random() < 0.8:
                row = (step, source.randrange(KEYS), source.randrange(VALUES))
                new["steps"].append(row)
        return new, old

    def build(self, flow: rr.Dataflow, inputs: dict[str, Any]) -> Any:
        loop = flow.loop(name="learning")
        model = loop.state("model", {"k": pl.Int64}, {"w": pl.Int64}, start=1)
        before = pl.col("step") - 1
        steps = loop.enter(inputs["steps"]).fetch(model, key="k", at=before)
        updated = steps.select("k", "step", w=(pl.col("w").fill_null(1) * 3 + pl.col("v")) % 11)
        updated.update(model, time="step", progress=False)
        updated.progress(model, "update", at=pl.col("step") + 1, late=0)
        return counted(loop.leave(updated), "k", w=pl.col("w"))

    def judge(self) -> Judge:
        class Its(Judge):
            def __init__(self) -> None:
                super().__init__()
                self.model = State({"steps": Reporter()}, start=1)
                self.steps = Waiting(self.model)

            def apply(self, epoch: int, fed: Fed) -> None:
                asked = [(row[0] - 1, row, diff) for row, diff in fed["steps"]]
                while ready := self.steps.take(asked):
                    asked = []
                    updated = []
                    for (step, k, v), diff in ready:
                        w = self.model.latest(k, step - 1)
                        updated.append((k, step, ((1 if w is None else w) * 3 + v) % 11, diff))
                    self.count([((k, w), diff) for k, _, w, diff in updated])
                    self.model.update(updated)
                    self.model.settle(epoch, {"steps": [("", step + 1) for _, step, *_ in updated]})

        return Its()


class FixedPoint(Sharing):
    """Fetches from the result of a loop, as of the epoch of who asks."""

    name = "fixedpoint"
    inputs: ClassVar = {"edges": ("k", "b"), "asked": ("k",)}
    deleted = ("edges",)

    def build(self, flow: rr.Dataflow, inputs: dict[str, Any]) -> Any:
        groups = components(inputs["edges"].rename({"k": "src", "b": "dst"}))
        (label,) = (name for name in groups.columns if name != "node")
        answers = inputs["asked"].lookup(groups, left_on="k", right_on="node")
        return counted(answers, "k", label=pl.col(label))

    def judge(self) -> Judge:
        class Its(Judge):
            def __init__(self) -> None:
                super().__init__()
                self.edges: Counter[Row] = Counter()

            def apply(self, epoch: int, fed: Fed) -> None:
                for row, diff in fed["edges"]:
                    self.edges[row] += diff
                there = {row for row, n in self.edges.items() if n > 0}
                nodes = {end for row in there for end in row}
                labels: dict[Any, Any] = dict(reference.components(nodes, there))
                for (k,), diff in fed["asked"]:
                    self.count([((k, labels.get(k, NONE)), diff)])

        return Its()


SHARING: dict[str, type[Sharing]] = {
    program.name: program
    for program in (
        *(AsOf, AsOfSlowly, Sources, Ranges, Gathered),
        *(Chained, Kept, Hops, Learning, FixedPoint),
    )
}
