"""Programs for clusters: a plan, random input, and what should come out, from scratch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

import riverrun as rr
from riverrun.engine.instance import Maker
from riverrun.engine.messages import Inputs

POISON = -1
NODES = 9

Rows = Counter[tuple[Any, ...]]


def refuse_poison(row: dict[str, Any]) -> list[dict[str, Any]]:
    if row["src"] == POISON:
        raise ValueError("poison was found")
    return [row]


def graph_flow() -> rr.Dataflow:
    """Edges that come and go, and names by key: a count, a join, a loop, an input with a key."""
    flow = rr.Dataflow("graph")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    names = flow.input("names", {"node": pl.Int64, "name": pl.String}, key="node")
    edges = edges.flat_map(refuse_poison, {"src": pl.Int64, "dst": pl.Int64}).probe("edges")
    flow.output("degrees", edges.group_by("src").count())
    flow.output("named", edges.join(names, left_on="dst", right_on="node"))
    once = edges.distinct()
    steps = once.rename({"src": "a", "dst": "b"})

    def longer(reached: Any) -> Any:
        further = reached.join(steps, left_on="dst", right_on="a")
        return once.concat(further.select(src=pl.col("src"), dst=pl.col("b"))).distinct()

    flow.output("reached", once.iterate(longer))
    return flow


OUTPUTS = ("degrees", "named", "reached")


class Model:
    """What was accepted so far, and what follows from it."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.edges: Rows = Counter()
        self.names: dict[int, str] = {}
        self.before: dict[str, Rows] = {name: Counter() for name in OUTPUTS}

    def draw(self, rows: int = 6) -> Inputs:
        """Random input of an epoch; it is counted."""
        source, edges, commands = self.source, [], []
        there = sorted(self.edges.elements())
        for _ in range(source.randint(0, rows)):
            if there and source.random() < 0.45:
                edges.append((*there.pop(source.randrange(len(there))), -1))
            else:
                edges.append((source.randrange(NODES), source.randrange(NODES), 1))
        for _ in range(source.randint(0, 3)):
            node, gone = source.randrange(NODES), source.random() < 0.3
            commands.append((node, None if gone else source.choice("abcdef"), gone))
        inputs = {"edges": edge_rows(edges), "names": name_rows(commands)}
        self.count(inputs)
        return inputs

    def count(self, inputs: Mapping[str, pa.RecordBatch]) -> None:
        self.before = {name: self.rows(name) for name in OUTPUTS}
        if "edges" in inputs:
            for *edge, diff in zip(*inputs["edges"].to_pydict().values(), strict=True):
                self.edges[tuple(edge)] += diff
            self.edges = +self.edges
        if "names" in inputs:
            for node, name, _, gone, _ in zip(*inputs["names"].to_pydict().values(), strict=True):
                if gone:
                    self.names.pop(node, None)
                else:
                    self.names[node] = name

    def rows(self, output: str) -> Rows:
        rows: Rows = Counter()
        if output == "degrees":
            sums: Counter[int] = Counter()
            for (src, _), count in self.edges.items():
                sums[src] += count
            rows.update(sums.items())
        elif output == "named":
            for (src, dst), count in self.edges.items():
                if dst in self.names:
                    rows[src, dst, self.names[dst]] += count
        else:
            pairs = set(self.edges)
            while more := {(a, d) for a, b in pairs for c, d in self.edges if b == c} - pairs:
                pairs |= more
            rows.update(pairs)
        return rows


def edge_rows(rows: Iterable[Sequence[int]]) -> pa.RecordBatch:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    arrays = [pa.array(column, pa.int64()) for column in columns]
    return pa.record_batch(arrays, names=["src", "dst", "diff"])


def name_rows(commands: Sequence[tuple[int, str | None, bool]]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "node": pa.array([node for node, _, _ in commands], pa.int64()),
            "name": pa.array([name for _, name, _ in commands], pa.string()),
            "__sequence__": pa.array(range(len(commands)), pa.int64()),
            "__deleted__": pa.array([gone for _, _, gone in commands], pa.bool_()),
            "diff": pa.array([1] * len(commands), pa.int64()),
        }
    )


def contents(portions: Iterable[Any]) -> Rows:
    """The rows of all workers, and how often each is there."""
    rows: Rows = Counter()
    for portion in portions:
        for batch in portion.batches():
            rows.update(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return rows


def changed(portions: Iterable[Any]) -> dict[tuple[Any, ...], int]:
    """What changed, added up."""
    sums: Counter[tuple[Any, ...]] = Counter()
    for portion in portions:
        for batch in portion.batches():
            for *row, diff in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                sums[tuple(row)] += diff
    return {row: diff for row, diff in sums.items() if diff}


def check(cluster: Any, model: Model, *, changes: bool = True) -> None:
    """Everything is as if made from scratch."""
    epoch = cluster.status()["reported"] - 1
    for output in OUTPUTS:
        wanted = model.rows(output)
        assert contents(cluster.read(output, epoch)) == wanted, output
        if changes:
            differ = Counter(wanted)
            differ.subtract(model.before[output])
            got = changed(cluster.changes(output, epoch))
            assert got == {row: diff for row, diff in differ.items() if diff}, output


def graph_maker() -> Maker:
    return Maker(graph_flow().plan)
