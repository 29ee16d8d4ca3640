"""Edges of a graph that is loaded, moved: what each commit takes. `real_components` and `shortest_paths` use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import riverrun as rr
from bench.measure import timed
from bench.real_graphs import Ints

Times = list[tuple[float, float]]


class MovingGraph:
    """A graph in the input `edges` of a run. An edge is moved by giving it the target of another one, drawn."""

    def __init__(self, src: Ints, dst: Ints, *weights: Ints, seed: int = 1) -> None:
        self.columns = {"src": src.copy(), "dst": dst.copy()}
        self.columns |= {
            name: each.copy() for name, each in zip(("weight",), weights, strict=False)
        }
        self._rng = np.random.default_rng(seed)

    @property
    def ends(self) -> tuple[Ints, Ints]:
        """The ends of the edges now."""
        return self.columns["src"], self.columns["dst"]

    def load(self, run: rr.Run) -> tuple[float, float]:
        """Insert all edges; the time of that, by the clock and of the processor."""
        rows = self._rows(np.arange(len(self.columns["src"])))

        def insert() -> None:
            run.insert("edges", rows)
            run.commit()

        return timed(insert)

    def move(self, run: rr.Run, count: int) -> tuple[float, float]:
        """Move so many edges in one commit."""
        dst = self.columns["dst"]
        places = self._rng.choice(len(dst), min(count, len(dst)), replace=False)
        old = self._rows(places)
        dst[places] = dst[self._rng.integers(0, len(dst), len(places))]
        new = self._rows(places)

        def change() -> None:
            run.delete("edges", old)
            run.insert("edges", new)
            run.commit()

        return timed(change)

    def moves(self, run: rr.Run, count: int, times: int) -> Times:
        return [self.move(run, count) for _ in range(times)]

    def _rows(self, places: Ints) -> pa.Table:
        return pa.table({name: each[places] for name, each in self.columns.items()})


def warmed(flow: rr.Dataflow, graph: MovingGraph, others: Sequence[tuple[str, Any]] = ()) -> None:
    """Load the kernels of a program, by a run over a few edges."""
    few = MovingGraph(*(each[:50] for each in graph.columns.values()))
    with flow.run() as run:
        for name, rows in others:
            run.insert(name, rows)
        few.load(run)
        few.moves(run, 1, 2)
