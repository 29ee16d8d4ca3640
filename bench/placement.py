"""Where the edges of a graph lie: rows moved in a round by source, by target, or cut along a space-filling curve.

A simulation, by counting: nothing travels. In a round of PageRank each edge leads the value of its source to its
target, where parts are added up. The n nodes have a home among W workers, by hash. Edges are placed

- *by source*: at the home of their source. A worker adds up its parts for each target, and sends what is for targets
  that live elsewhere (scatter);
- *by target*: at the home of their target. A worker is sent the value of each source that lives elsewhere and that some
  edge of its needs (gather);
- *by range*: as by target, but nodes live in the order of their numbers, the first ones at the first worker and so on,
  cut so that as many edges reach each worker;
- along the *curve*: Hilbert's, through the square of (source, target), cut into W parts with the same number of edges.
  A worker is sent the values of its sources, and sends its parts for its targets. So that the curve has all that it can
  have, a node's home is here the worker with most of its edges. Where neighbours have near numbers, ranges and the
  curve find them, so the curve is tried with the numbers of the data, and with numbers drawn anew.

Rows are (node, number) pairs that leave a worker; bytes count 12 for a value and 28 for an exact part. `fullest` is the
number of edges on the fullest worker over the mean. One thread of NumPy does a round in `numpy_ms`.

Of the ratios, `curve_against_best` is the number of rows that the best of the others moves, over that of the curve, and
`bytes_against_best` the same of bytes: the curve moves less where they are above 1.

What came of it, at 16 workers, against the best of the others on each graph. Rows: the curve moves 1.1 to 1.6 times
fewer where few nodes have most of the edges (votes, mail, trust, zipf), and up to 4 times as many elsewhere
(packages, friends, roads). Bytes: about half of its rows are parts, so at best it moves 1.1 times fewer (packages,
votes), and 1.2 to 8 times as many elsewhere. Where it moves little, near nodes have near numbers, and ranges of these
move less. What it does have is equal shares, where by target one worker may have 6 times the mean. So edges along the
curve were not built.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.measure import ratio, scale, seconds
from bench.real_graphs import (
    DIRECTED,
    TRUST,
    Ints,
    both_ways,
    missing,
    number_of_nodes,
    real_graphs,
)

VALUE, PART = 12, 28  # bytes: a node's number, and a float or an exact sum of floats


def main() -> dict[str, Any]:
    size, workers = scale("edges", 1_000_000), scale("workers", 16)
    graphs = {name: figures(src, dst, workers) for name, src, dst in all_graphs(size)}
    ratios = {
        f"{name}_{word}": found[word]
        for name, found in graphs.items()
        for word in ("curve_against_best", "drawn_curve_against_best", "bytes_against_best")
    }
    return {
        "workers": workers,
        "graphs": graphs,
        "by_workers": by_workers(size),
        "asked": {},
        "peers": missing(),
        "ratios": ratios,
    }


def all_graphs(edges: int) -> Iterator[tuple[str, Ints, Ints]]:
    """The graphs, each node a number from 0 on: those of files as far as they are there, and random ones."""
    for name, src, dst in real_graphs():
        yield name, *((src, dst) if DIRECTED[name] else both_ways(src, dst))
    rng = np.random.default_rng(0)
    nodes = max(edges // 10, 2)
    yield "uniform", rng.integers(0, nodes, edges), rng.integers(0, nodes, edges)
    heavy = np.minimum(rng.zipf(1.5, (2, edges)) - 1, nodes - 1)
    mixed = rng.permutation(nodes)[heavy]
    yield "zipf", mixed[0], mixed[1]
    near = rng.integers(0, nodes, edges)
    yield "band", near, np.clip(near + rng.integers(-50, 51, edges), 0, nodes - 1)


def figures(src: Ints, dst: Ints, workers: int) -> dict[str, Any]:
    """Rows and bytes that each placement moves in a round of one graph."""
    nodes = number_of_nodes(src, dst)
    drawn = np.random.default_rng(1).permutation(nodes)
    found = {
        "by_source": placed(src, dst, nodes, workers, "src"),
        "by_target": placed(src, dst, nodes, workers, "dst"),
        "by_range": placed(src, dst, nodes, workers, "dst", ranges(dst, nodes, workers)),
        "curve": along_curve(src, dst, nodes, workers),
        "drawn_curve": along_curve(drawn[src], drawn[dst], nodes, workers),
    }
    others = [found[name] for name in ("by_source", "by_target", "by_range")]
    rows, size = (min(each[word] for each in others) for word in ("rows", "bytes"))
    drawn_rows = min(each["rows"] for each in others[:2])
    values = np.ones(nodes)
    return {
        "nodes": nodes,
        "edges": len(src),
        **found,
        "numpy_ms": round(seconds(lambda: np.bincount(dst, values[src], nodes), 3) * 1e3, 2),
        "curve_against_best": ratio(rows, max(found["curve"]["rows"], 1)),
        "drawn_curve_against_best": ratio(drawn_rows, max(found["drawn_curve"]["rows"], 1)),
        "bytes_against_best": ratio(size, max(found["curve"]["bytes"], 1)),
    }


def by_workers(edges: int) -> dict[str, dict[int, dict[str, int]]]:
    """Rows moved by 2 to 64 workers, on two of the graphs."""
    found: dict[str, dict[int, dict[str, int]]] = {}
    for name, src, dst in all_graphs(edges):
        if name in (TRUST, "zipf"):
            nodes = number_of_nodes(src, dst)
            found[name] = {
                workers: {
                    "by_source": placed(src, dst, nodes, workers, "src")["rows"],
                    "by_target": placed(src, dst, nodes, workers, "dst")["rows"],
                    "curve": along_curve(src, dst, nodes, workers)["rows"],
                }
                for workers in (2, 4, 8, 16, 32, 64)
            }
    return found


def placed(
    src: Ints, dst: Ints, nodes: int, workers: int, by: str, home: Ints | None = None
) -> dict[str, Any]:
    """Edges at the home of one end; a row for each worker and other end that lives elsewhere."""
    home = hashed(np.arange(nodes), workers) if home is None else home
    here, other = (src, dst) if by == "src" else (dst, src)
    at = home[here]
    rows = moved(at, other, home, nodes)
    return told(rows, rows * (PART if by == "src" else VALUE), at, workers)


def along_curve(src: Ints, dst: Ints, nodes: int, workers: int) -> dict[str, Any]:
    """Edges in the order of the curve, in equal parts; a row for each worker and end that lives elsewhere."""
    at = np.empty(len(src), np.int64)
    order = np.argsort(hilbert(src, dst, max(nodes - 1, 1).bit_length()), kind="stable")
    at[order] = np.arange(len(src)) * workers // len(src)
    # The home of a node is the worker with most of its edges, counted at both ends.
    pairs, counts = np.unique(
        np.concatenate([src, dst]) * workers + np.concatenate([at, at]), return_counts=True
    )
    home = np.zeros(nodes, np.int64)
    by_count = np.argsort(counts, kind="stable")
    home[pairs[by_count] // workers] = pairs[by_count] % workers
    values, parts = moved(at, src, home, nodes), moved(at, dst, home, nodes)
    return told(values + parts, values * VALUE + parts * PART, at, workers)


def moved(at: Ints, end: Ints, home: Ints, nodes: int) -> int:
    """How many pairs there are of a worker and an end of its edges that lives elsewhere."""
    away = at != home[end]
    return len(np.unique(at[away] * nodes + end[away]))


def told(rows: int, size: int, at: Ints, workers: int) -> dict[str, Any]:
    fullest = np.bincount(at, minlength=workers).max() * workers / len(at)
    return {"rows": rows, "bytes": size, "fullest": round(float(fullest), 2)}


def ranges(dst: Ints, nodes: int, workers: int) -> Ints:
    """The home of each node: ranges of numbers that about as many edges reach."""
    reached = np.cumsum(np.bincount(dst, minlength=nodes))
    return np.maximum(reached - 1, 0) * workers // len(dst)


def hashed(nodes: Ints, workers: int) -> Ints:
    """The home of each node."""
    mixed = nodes.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(40)) % np.uint64(workers)).astype(np.int64)


def hilbert(x: Ints, y: Ints, bits: int) -> Ints:
    """The place of each point along Hilbert's curve through a square of ``2**bits`` by ``2**bits``.

    >>> hilbert(np.array([0, 1, 1, 0]), np.array([0, 0, 1, 1]), 1).tolist()
    [0, 3, 2, 1]
    """
    x, y = x.copy(), y.copy()
    place = np.zeros(len(x), np.int64)
    for bit in range(bits - 1, -1, -1):
        side = np.int64(1) << bit
        right, up = (x & side) > 0, (y & side) > 0
        place += side * side * ((3 * right) ^ up)
        # Turn the quarter, so that the curve in it begins where the one before ended.
        flip = ~up & right
        x[flip], y[flip] = side - 1 - (x[flip] & (side - 1)), side - 1 - (y[flip] & (side - 1))
        swap = ~up
        x[swap], y[swap] = y[swap], x[swap]
    return place
