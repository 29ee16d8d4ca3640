"""A graph that changes at random, and a run that has to keep up with it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl

import riverrun as rr

CASES = [(1, 11, pl.Int64), (2, 12, pl.String), (3, 13, pl.Int64), (4, 14, pl.String)]
"""Workers, seed, type of the nodes."""

EPOCHS = 8
NODES = 12


@dataclass
class Graph:
    """Bags of rows: edges (src, dst, weight), nodes and sources. What is in them is what was committed."""

    edges: Counter[tuple[Any, Any, int]] = field(default_factory=Counter)
    nodes: Counter[tuple[Any]] = field(default_factory=Counter)
    sources: Counter[tuple[Any]] = field(default_factory=Counter)

    @property
    def links(self) -> set[tuple[Any, Any]]:
        return {(src, dst) for src, dst, _ in self.edges}

    @property
    def everyone(self) -> set[Any]:
        return {end for link in self.links for end in link} | {node for (node,) in self.nodes}

    @property
    def weights(self) -> dict[tuple[Any, Any], int]:
        least: dict[tuple[Any, Any], int] = {}
        for src, dst, weight in self.edges:
            least[src, dst] = min(weight, least.get((src, dst), weight))
        return least


def changes(
    seed: int, kind: Any, weight: Callable[[int], Any] = int
) -> Iterator[tuple[Graph, dict]]:
    """Epoch after epoch, rows to insert and delete in each bag, and the graph that they lead to.

    Edges come and go in numbers from one to many; there are self loops, repeated edges, edges in both
    directions and nodes without any; in one epoch everything goes, and the next begins anew.
    """
    chance = random.Random(seed)
    graph = Graph()
    node = (lambda n: n) if kind == pl.Int64 else (lambda n: f"n{n}")

    def draw(name: str) -> tuple[Any, ...]:
        pick = [node(chance.randrange(NODES)) for _ in range(2)]
        return (*pick, weight(chance.randrange(6))) if name == "edges" else (pick[0],)

    for epoch in range(EPOCHS):
        commands: dict[str, tuple[list, list]] = {}
        for name, size in (("edges", 16), ("nodes", 3), ("sources", 1)):
            bag: Counter[Any] = getattr(graph, name)
            there = sorted(bag.elements())
            if epoch == EPOCHS - 2:
                gone = there
            else:
                share = chance.choice((0, 1, len(there) // 3))
                gone = chance.sample(there, min(share, len(there)))
            new = [draw(name) for _ in range(chance.choice((1, size)))]
            if epoch == EPOCHS - 2:
                new = []
            if new and chance.random() < 0.5:
                new.append(chance.choice(new))
            bag.subtract(gone)
            bag.update(new)
            setattr(graph, name, +bag)
            commands[name] = new, gone
        yield graph, commands


def check(
    algorithm: Callable[[rr.Collection, rr.Collection, rr.Collection], rr.Collection],
    expected: Callable[[Graph], Any],
    case: tuple[int, int, Any],
    *,
    near: float | None = None,
    weight: Callable[[int], Any] = int,
) -> None:
    """Run `algorithm` of edges, nodes and sources while they change; compare with `expected` at each epoch.

    `expected` gives a dict of nodes to values, or a list of rows. `near` allows for rounding.
    """
    workers, seed, kind = case
    flow = rr.Dataflow("check")
    cost = pl.Int64 if weight is int else pl.Float64
    edges = flow.input("edges", {"src": kind, "dst": kind, "weight": cost})
    nodes = flow.input("nodes", {"node": kind})
    sources = flow.input("sources", {"node": kind})
    flow.output("found", algorithm(edges, nodes, sources))
    with flow.run(workers=workers, seed=seed) as run:
        for graph, commands in changes(seed, kind, weight):
            for name, (new, gone) in commands.items():
                run.insert(name, new)
                run.delete(name, gone)
            run.commit()
            rows = run.read("found").rows()
            wanted = expected(graph)
            wanted = sorted(wanted.items() if isinstance(wanted, dict) else wanted)
            where = f"epoch {run.epoch} of workers={workers} seed={seed}: {sorted(graph.edges)}"
            if near is None:
                assert rows == wanted, where
            else:
                assert [row[0] for row in rows] == [row[0] for row in wanted], where
                worst = max(
                    (abs(a[1] - b[1]) for a, b in zip(rows, wanted, strict=True)), default=0
                )
                assert worst <= near, f"off by {worst} in {where}"
