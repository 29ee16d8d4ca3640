"""Cycles of 3 to 5 nodes that new edges close: query time by update rate, and after kill -9; on Spark, two workers.

Edges are drawn to be like messages of a college (CollegeMsg: 1,899 people, at most some 2,500 messages in 48 hours):
few people write most messages, and two of five messages are answers. An edge falls due every 1/rate seconds; all edges
that are due are committed as one epoch as soon as the epoch before is done. The time of a query is from the moment at
which its edge fell due until the cycles that the edge closes have been read, with the wait for the epoch before. A rate
is *held* when the feeder is not behind by more than a second in the end.

Then checkpoints are on, and a worker is killed in the middle: seconds from the kill until the next edges have their
cycles. At the end of every part all cycles are compared with those of the peer: adjacency in Python dicts, one thread,
nothing durable, edges in order, a search from each new edge.
"""

from __future__ import annotations

import os
import platform
import signal
import tempfile
import time
from collections import Counter, defaultdict, deque
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl

import riverrun as rr
from bench.measure import ratio, scale
from bench.sessions import session
from riverrun.graphs import cycles

WORKERS = 2
LENGTHS = (3, 4, 5)
RATES = (100, 200, 400, 800, 1600, 3200, 6400, 12800)
BEHIND = 1.0  # seconds
Edge = tuple[int, int, int]


def main() -> dict[str, Any]:
    nodes, window = scale("nodes", 1899), scale("window", 2500)
    span, repeats = scale("seconds", 6), scale("repeats", 3)
    rates = [rate for rate in RATES if rate <= scale("fastest", RATES[-1])]
    most = max(rates[-1] * span, rates[0] * span * repeats) + 2 * window
    edges = messages(nodes, window, most)
    expected = Plain(edges, window)
    alone = expected.figures
    with session(WORKERS, "1g") as spark:
        held: dict[int, dict[str, Any]] = {}
        for rate in rates:
            held[rate] = at_rate(spark, edges, window, rate, span, expected)
            if not held[rate]["held"]:
                break
        killed = [kill(spark, edges, window, rates[0], span, expected) for _ in range(repeats)]
    best = max([rate for rate, each in held.items() if each["held"]], default=0)
    taken = sorted(killed)[len(killed) // 2]
    return {
        "nodes": nodes,
        "edges_in_window": window,
        "lengths": LENGTHS,
        "cycles_per_edge": round(len(expected.rows) / len(edges), 2),
        "workers": WORKERS,
        "by_rate": held,
        "highest_rate_held_per_s": best,
        "killed": {
            "seconds": round(taken, 2),
            "all": [round(each, 2) for each in killed],
            "rate_per_s": rates[0],
        },
        "peers": {"plain": alone},
        "ratios": {"highest_rate_to_plain": ratio(best, alone["edges_per_s"])},
        "asked": {},
    }


def messages(nodes: int, window: int, count: int, seed: int = 0) -> list[Edge]:
    """Who writes to whom, and when: 1, 2, 3, ..., so that `window` of them are in a window."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, nodes + 1) ** 0.7
    drawn = rng.choice(nodes, (count, 2), p=weights / weights.sum())
    answers, which = rng.random(count) < 0.4, rng.random(count)
    edges: list[Edge] = []
    for at in range(count):
        src, dst = map(int, drawn[at])
        if answers[at] and edges:
            dst, src, _ = edges[-1 - int(which[at] * min(len(edges), window // 10 + 1))]
        if src == dst:
            dst = (src + 1) % nodes
        edges.append((src, dst, at + 1))
    return edges


class Plain:
    """The cycles that edges close, found with dicts: `rows` as ours are, and how many there are up to each edge."""

    def __init__(self, edges: list[Edge], window: int) -> None:
        after: dict[int, Counter[int]] = defaultdict(Counter)
        recent: deque[Edge] = deque()
        taken = []
        self.rows: list[tuple[int, list[int]]] = []
        self.sums = [0]
        for src, dst, at in edges:
            start = time.perf_counter()
            while recent and recent[0][2] < at - window:
                old_src, old_dst, _ = recent.popleft()
                after[old_src][old_dst] -= 1
                if not after[old_src][old_dst]:
                    del after[old_src][old_dst]
            paths = search(after, src, [dst])
            after[src][dst] += 1
            recent.append((src, dst, at))
            taken.append(time.perf_counter() - start)
            self.rows += sorted((at, nodes) for nodes in map(turned, paths))
            self.sums.append(len(self.rows))
        taken = taken[window:]
        self.figures = {
            "version": f"Python {platform.python_version()}, dicts",
            "edges_per_s": round(len(taken) / sum(taken)),
            "p50_ms": round(float(np.percentile(taken, 50)) * 1e3, 3),
            "p99_ms": round(float(np.percentile(taken, 99)) * 1e3, 3),
        }


def turned(cycle: list[int]) -> list[int]:
    """A cycle from its least node on."""
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]


def search(after: dict[int, Counter[int]], src: int, path: list[int]) -> list[list[int]]:
    """The cycles of `src` that begin with a path."""
    paths = []
    for node in after.get(path[-1], ()):
        if node == src:
            if len(path) >= 2:
                paths.append([src, *path])
        elif len(path) < LENGTHS[-1] - 1 and node not in path:
            paths += search(after, src, [*path, node])
    return paths


def program(window: int) -> rr.Dataflow:
    flow = rr.Dataflow("cycles")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64, "time": pl.Int64})
    flow.output("found", cycles(flow, edges, window, lengths=LENGTHS))
    return flow


class Feeder:
    """Feeds edges at a rate: each epoch has the edges that have fallen due since the epoch before."""

    def __init__(self, run: rr.Run, edges: list[Edge], window: int) -> None:
        self.run, self.edges = run, edges
        self.circles, self.fed = 0, 0
        for _ in range(10):
            self.feed(window // 10)
        for _ in range(20):  # so that nothing is compiled or started later
            self.feed(2)

    def feed(self, count: int) -> None:
        self.run.insert("edges", self.edges[self.fed : self.fed + count])
        self.run.commit()
        self.fed += count
        self.circles += self.run.changes("found").to_arrow().num_rows

    def check(self, expected: Plain) -> None:
        """Check that the changes of the output add up to its rows, and that these are the expected cycles."""
        rows = expected.rows[: expected.sums[self.fed]]
        assert self.circles == len(rows), (self.fed, self.circles, len(rows))
        read_rows = self.run.read("found").rows()
        assert sorted((row[0], row[4]) for row in read_rows) == rows, self.fed

    def go(self, rate: int, seconds: float) -> dict[str, Any]:
        first, count = self.fed, int(rate * seconds)
        waits, sizes, began = [], [], time.perf_counter()
        while self.fed - first < count:
            due = int((time.perf_counter() - began) * rate) + 1
            size = min(due, count) - (self.fed - first)
            if size <= 0:
                time.sleep(max(0.0, (self.fed - first) / rate - (time.perf_counter() - began)))
                continue
            at = self.fed - first
            self.feed(size)
            now = time.perf_counter() - began
            waits += [now - each / rate for each in range(at, at + size)]
            sizes.append(size)
        behind = time.perf_counter() - began - count / rate
        return {
            "p50_ms": round(float(np.percentile(waits, 50)) * 1e3, 1),
            "p99_ms": round(float(np.percentile(waits, 99)) * 1e3, 1),
            "edges_an_epoch": round(float(np.mean(sizes)), 1),
            "behind_s": round(behind, 2),
            "held": behind < BEHIND,
        }


def at_rate(
    on: Any, edges: list[Edge], window: int, rate: int, seconds: float, expected: Plain
) -> dict[str, Any]:
    with program(window).run(on=on, workers=WORKERS) as run:
        feeder = Feeder(run, edges, window)
        figures = feeder.go(rate, seconds)
        feeder.check(expected)
    return figures


def kill(
    on: Any, edges: list[Edge], window: int, rate: int, seconds: float, expected: Plain
) -> float:
    """Seconds from the kill of a worker until the next edges have their cycles. Checks all cycles."""
    with (
        tempfile.TemporaryDirectory() as folder,
        program(window).run(
            on=on, workers=WORKERS, checkpoint=folder, every=timedelta(seconds=2), timeout=120
        ) as run,
    ):
        feeder = Feeder(run, edges, window)
        feeder.go(rate, seconds / 2)
        feeder.check(expected)
        start = time.perf_counter()
        os.kill(run.status()["processes"][0]["pid"], signal.SIGKILL)
        feeder.feed(5)
        taken = time.perf_counter() - start
        feeder.check(expected)
        feeder.go(rate, seconds / 2)
        feeder.check(expected)
        assert len(run.events("recovered")) == 1
    return taken
