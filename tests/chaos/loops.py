"""Loops of every kind, drawn: differential, by rounds, on arrays of one worker and of all, in microsteps, that pull.

The simulation draws a program with some of them (`DrawnLoops`), and `loads` has a program with one of each kind
(`EVERY`). A `Loop` makes rows of node and value from edges; its `answer` gives the same in plain Python.

>>> loops = [draw_loop(random.Random(seed)) for seed in range(300)]
>>> {loop.values for loop in loops} == {"labels", "names", "thirds", "far", "walks"}
True
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import polars as pl

import riverrun as rr
from tests.chaos.programs import Result

WALKS = 3
Edges = Iterable[tuple[int, int]]

BULK: list[dict[str, Any]] = [
    {"mode": "arrays"}, {"mode": "rounds"}, {"mode": "differential"}, {"maintain": "restart"}
]  # fmt: skip
DELTA: list[dict[str, Any]] = [
    {"mode": "microstep"}, {"mode": "superstep"}, {"mode": "superstep", "maintain": "restart"}, {"mode": "differential"}
]  # fmt: skip
OVER_ALL: list[dict[str, Any]] = [{"spread_over": "all"}]
STEPPED: list[dict[str, Any]] = [{"mode": "superstep", "spread_over": "all"}]
FORMS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "labels": {"bulk": BULK + OVER_ALL, "delta": DELTA + OVER_ALL + STEPPED},
    "names": {"bulk": BULK, "delta": DELTA},
    "thirds": {"delta": DELTA},
    "far": {"bulk": BULK + OVER_ALL, "delta": DELTA + OVER_ALL + STEPPED},
    "walks": {"bulk": BULK},
}
"""By what the values of a loop are: how the loop may be written, and run."""


@dataclass(frozen=True)
class Loop:
    """A loop over the edges of a graph. It works on `values`:

    - ``labels``: the least node from which a node can be reached; ``names``: the same of nodes that are text;
      ``thirds``: the node that is best by an expression;
    - ``far``: the length of the way to a node from those with an edge to 0;
    - ``walks``: how many walks of a few edges end at a node, each weighed by where it came from.
    """

    values: str
    form: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.values, self.form, *map(str, self.options.values())])

    def rows(self, edges: Any) -> Any:
        """The loop over edges with the columns src and dst: its rows, node and value."""
        if self.values == "walks":
            return self._walks(edges)
        start = self._start(edges)
        if self.form == "bulk":
            found = start.iterate(lambda near: self._round(near, start, edges), **self.options)
        else:
            better = pl.col("value") % 3 if self.values == "thirds" else rr.loops.least("value")
            send = lambda near: self._sent(near, edges)  # noqa: E731
            found = start.iterate_delta(
                send(start), key="node", send=send, better=better, missing="add", **self.options
            )
        value = pl.col("value")
        return found.select("node", value=value.cast(pl.Int64) if self.values == "names" else value)

    def _start(self, edges: Any) -> Any:
        if self.values == "far":
            ends = edges.filter(pl.col("dst") == 0).select(node="src").distinct()
            return ends.select("node", value=pl.lit(0, pl.Int64))
        nodes = edges.select(node="src").concat(edges.select(node="dst")).distinct()
        value = pl.col("node")
        return nodes.select(
            "node", value=value.cast(pl.String) if self.values == "names" else value
        )

    def _sent(self, near: Any, edges: Any) -> Any:
        there = near.join(edges, left_on="node", right_on="src")
        if self.values == "far":
            return there.select(node="dst", value=pl.col("value") + pl.col("node") % 3)
        return there.select(node="dst", value="value")

    def _round(self, near: Any, start: Any, edges: Any) -> Any:
        sent = self._sent(near, edges)
        return sent.concat(start).group_by("node").agg(value=rr.min("value"))

    def _walks(self, edges: Any) -> Any:
        ends = edges.select(node="src").concat(edges.select(node="dst")).distinct()
        start = ends.select("node", value=pl.lit(1, pl.Int64))

        def step(rows: Any) -> Any:
            moved = rows.join(edges, left_on="node", right_on="src")
            sent = moved.select(node="dst", value=pl.col("value") * (pl.col("node") % 3))
            return sent.concat(start).group_by("node").agg(value=rr.sum("value"))

        return start.iterate(step, rounds=WALKS, **self.options)

    def answer(self, edges: Edges) -> dict[int, int]:
        """The value of each node; an edge that is there twice counts twice."""
        edges = list(edges)
        nodes = {node for edge in edges for node in edge}
        if self.values == "walks":
            walks = dict.fromkeys(nodes, 1)
            for _ in range(WALKS):
                after = dict.fromkeys(nodes, 1)
                for src, dst in edges:
                    after[dst] += walks[src] * (src % 3)
                walks = after
            return walks
        rank: Callable[[int], Any] = {
            "names": str, "thirds": lambda value: (value % 3, value)
        }.get(self.values, lambda value: value)  # fmt: skip
        is_far = self.values == "far"
        values = {src: 0 for src, dst in edges if dst == 0} if is_far else {n: n for n in nodes}
        changed = True
        while changed:
            changed = False
            for src, dst in edges:
                if src in values:
                    value = values[src] + src % 3 if is_far else values[src]
                    if dst not in values or rank(value) < rank(values[dst]):
                        values[dst], changed = value, True
        return values


ALL = [
    Loop(values, form, options)
    for values, forms in FORMS.items()
    for form, listed in forms.items()
    for options in listed
]
EVERY = [
    Loop("labels", "bulk", {"mode": "differential"}),
    Loop("labels", "bulk", {"mode": "rounds"}),
    Loop("labels", "delta", {"mode": "superstep", "spread_over": "all"}),
    Loop("names", "delta", {"mode": "microstep"}),
    Loop("thirds", "delta", {"mode": "microstep"}),
    Loop("far", "delta", {"mode": "superstep", "maintain": "restart"}),
    Loop("far", "delta", {"spread_over": "all"}),
    Loop("walks", "bulk", {"mode": "arrays"}),
]
"""A loop of each kind."""


def draw_loop(source: random.Random) -> Loop:
    """Any loop."""
    return source.choice(ALL)


def together(loops: Iterable[Loop], edges: Any) -> Any:
    """The rows of some loops: the number of the loop, node and value."""
    parts = [
        loop.rows(edges).select(loop=pl.lit(at, pl.Int64), node="node", value="value")
        for at, loop in enumerate(loops)
    ]
    return parts[0].concat(*parts[1:]) if len(parts) > 1 else parts[0]


def answers(loops: Iterable[Loop], edges: Counter[tuple[int, int]]) -> Result:
    """The same rows in plain Python, each once."""
    every = sorted(edges.elements())
    return {
        (at, node, value): 1
        for at, loop in enumerate(loops)
        for node, value in loop.answer(every).items()
    }
