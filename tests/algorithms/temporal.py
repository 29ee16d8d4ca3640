"""Cycles of a graph with times, found by search from scratch; and such graphs at random."""

from __future__ import annotations

import gzip
import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Edge = tuple[Any, ...]
"""src, dst, time; in graphs whose edges end, the end too, or None"""


def lasting_cycles(
    edges: Iterable[Edge], spans: Mapping[int, int], until: int | None = None
) -> list[tuple[Any, ...]]:
    """The same for spans by length, and edges that may end: each length and each edge by itself, over all others."""
    proper = [(*edge, None)[:4] for edge in edges if edge[0] != edge[1]]
    proper = [edge for edge in proper if edge[3] is None or edge[3] > edge[2]]
    closed: list[tuple[Any, ...]] = []
    for length, span in spans.items():
        for src, dst, time, _ in proper:
            if until is not None and time > until:
                continue
            after = defaultdict(set)
            for a, b, at, end in proper:
                if time - span <= at < time and (end is None or end > time):
                    after[a].add(b)
            paths = [[src, dst]]
            for _ in range(length - 2):
                paths = [[*path, n] for path in paths for n in after[path[-1]] if n not in path]
            for path in paths:
                if src in after[path[-1]]:
                    first = path.index(min(path))
                    closed.append((time, src, dst, length, path[first:] + path[:first]))
    return sorted(closed)


def cycles(
    edges: Iterable[Edge], span: int, lengths: Iterable[int] = (3, 4, 5), until: int | None = None
) -> list[tuple[Any, ...]]:
    """For every edge, up to a time, the cycles that it closes: depth first, over the edges in [T - span, T).

    Rows: time, src, dst, length, nodes from the least one on.
    """
    proper = [edge for edge in edges if edge[0] != edge[1]]
    after: dict[Any, list[tuple[int, Any]]] = defaultdict(list)
    for src, dst, time in proper:
        after[src].append((time, dst))
    times = {}
    for src, those in after.items():
        those.sort(key=lambda each: each[0])
        times[src] = [time for time, _ in those]
    longest, closed = max(lengths), []

    def follow(path: list[Any], time: int) -> None:
        here = path[-1]
        low, high = (bisect_left(times.get(here, ()), at) for at in (time - span, time))
        for node in {dst for _, dst in after.get(here, ())[low:high]}:
            if node == path[0]:
                if len(path) in lengths:
                    first = path.index(min(path))
                    turned = path[first:] + path[:first]
                    closed.append((time, path[0], path[1], len(path), turned))
            elif node not in path and len(path) < longest:
                follow([*path, node], time)

    for src, dst, time in proper:
        if until is None or time <= until:
            follow([src, dst], time)
    return sorted(closed)


def drawn(
    chance: random.Random, edges: int, nodes: int, late: int, *, steps: float = 2.0
) -> list[Edge]:
    """Edges in the order in which they arrive, none more than `late` behind one before it.

    There are self loops, equal times, edges that are there several times, and edges given twice.
    """
    now, sent = 0, []
    for _ in range(edges):
        now += int(chance.expovariate(1 / steps)) if chance.random() < 0.7 else 0
        edge = (chance.randrange(nodes), chance.randrange(nodes), now)
        sent += [edge] * (2 if chance.random() < 0.05 else 1)
    return sorted(sent, key=lambda edge: edge[2] + chance.uniform(0, late))


def epochs(chance: random.Random, edges: list[Edge], most: int) -> list[list[Edge]]:
    """Edges cut into epochs of 1 to `most`."""
    cut, at = [], 0
    while at < len(edges):
        size = chance.randint(1, most)
        cut.append(edges[at : at + size])
        at += size
    return cut


class Received:
    """What has come so far, and what counts of it: an edge before U, as it was before its epoch, does not."""

    def __init__(self, late: int) -> None:
        self.late = late
        self.edges: list[Edge] = []
        self.update: int | None = None
        self.dropped = 0

    def take(self, epoch: list[Edge]) -> None:
        proper = [edge for edge in epoch if edge[0] != edge[1]]
        in_time = [edge for edge in proper if self.update is None or edge[2] >= self.update]
        self.dropped += len(proper) - len(in_time)
        self.edges += in_time
        if epoch:  # a self loop's time is seen too
            seen = max(edge[2] for edge in epoch) - self.late
            self.update = seen if self.update is None else max(self.update, seen)

    def cycles(self, span: int, lengths: Iterable[int] = (3, 4, 5)) -> list[tuple[Any, ...]]:
        return [] if self.update is None else cycles(self.edges, span, lengths, until=self.update)

    def lasting_cycles(self, spans: Mapping[int, int]) -> list[tuple[Any, ...]]:
        return [] if self.update is None else lasting_cycles(self.edges, spans, until=self.update)


def load(path: Path) -> list[Edge]:
    """A file of SNAP's: src, dst, time in every line; in the order of time."""
    with gzip.open(path, "rt") as lines:
        rows = [tuple(map(int, line.split())) for line in lines if not line.startswith("#")]
    return sorted(rows, key=lambda row: row[2])
