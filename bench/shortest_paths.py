"""Shortest paths from one node of the social graph of Epinions: from scratch, one edge moved, and one in a hundred.

The edges have weights from 1 to 100, drawn, and go both ways; where the file is not there, the graph is a random one.
`rr.graphs.shortest_paths` keeps the distances, on arrays. Beside it the same loop as differential dataflow, with fewer
changes, and from scratch in one thread: NumPy, in which each round looks at all edges (Bellman and Ford), and the
search of SciPy (Dijkstra). Moved edges are drawn with a seed. Figures are of the processor (`cpu`) and by the clock
(`wall`); those that are asked for are of the processor. All ways give the same distances.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import polars as pl

import riverrun as rr
from bench.measure import (
    at_most,
    granted,
    installed,
    ratio,
    scale,
    spread_of,
    timed,
    version,
)
from bench.moving import MovingGraph, warmed
from bench.real_graphs import (
    TRUST,
    Ints,
    both_ways,
    missing,
    number_of_nodes,
    random_graph,
    real_graphs,
)

GRAPHS = (TRUST,)
HEAVIEST = 100
SOURCE = [(0,)]
FAR = np.iinfo(np.int64).max // 2
Weighted: TypeAlias = tuple[Ints, Ints, Ints]


def graph() -> tuple[str, Weighted]:
    """The name of the graph, and its edges."""
    found = [*real_graphs(GRAPHS)]
    if not found:
        found = [("random", *random_graph(scale("nodes", 75_000), scale("edges", 400_000)))]
    name, src, dst = found[0]
    return name, (src, dst, np.random.default_rng(3).integers(1, HEAVIEST + 1, len(src)))


def program(mode: str) -> rr.Dataflow:
    """Distances from the nodes of an input `sources`: in mode ``auto`` those of `rr.graphs`."""
    flow = rr.Dataflow("paths")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64, "weight": pl.Int64})
    sources = flow.input("sources", {"node": pl.Int64})
    both = rr.graphs.undirected(edges)
    if mode == "auto":
        flow.output("distances", rr.graphs.shortest_paths(both, sources))
        return flow
    start = sources.select("node", distance=pl.lit(0, pl.Int64))

    def step(near: rr.Collection) -> rr.Collection:
        further = near.join(both, left_on="node", right_on="src").select(
            node="dst", distance=pl.col("distance") + pl.col("weight")
        )
        return further.concat(start).group_by("node").agg(distance=rr.min("distance"))

    flow.output("distances", start.iterate(step, mode=mode))
    return flow


def distances_of(run: rr.Run, nodes: int) -> Ints:
    rows = run.read("distances").to_arrow()
    distances = np.full(nodes, FAR)
    distances[rows["node"].to_numpy()] = rows["distance"].to_numpy()
    return distances


def nearest(src: Ints, dst: Ints, weights: Ints, nodes: int) -> Ints:
    """The distance of each node from node 0, in rounds over all edges."""
    src, dst = both_ways(src, dst)
    weights, distances = np.concatenate([weights, weights]), np.full(nodes, FAR)
    distances[0] = 0
    while True:
        nearer = distances.copy()
        np.minimum.at(nearer, dst, distances[src] + weights)
        if np.array_equal(nearer, distances):
            return distances
        distances = nearer


def searched(src: Ints, dst: Ints, weights: Ints, nodes: int) -> Ints:
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra

    src, dst = both_ways(src, dst)
    weights = np.concatenate([weights, weights])
    order = np.lexsort((weights, dst, src))  # of edges between the same nodes, the lightest counts
    src, dst, weights = src[order], dst[order], weights[order]
    first = np.append(True, (np.diff(src) != 0) | (np.diff(dst) != 0))
    shape = nodes, nodes
    matrix = csr_matrix((weights[first].astype(float), (src[first], dst[first])), shape=shape)
    found = dijkstra(matrix, indices=0)
    distances, reached = np.full(nodes, FAR), np.isfinite(found)
    distances[reached] = found[reached]
    return distances


def kept(
    mode: str, edges: Weighted, nodes: int, loads: int, singles: int, moved: int, many: int
) -> dict[str, Any]:
    """The figures of one of our programs."""
    graph, taken = MovingGraph(*edges), []
    warmed(program(mode), graph, [("sources", SOURCE)])
    for last in range(loads - 1, -1, -1):
        run = program(mode).run()
        run.insert("sources", SOURCE)
        taken.append(graph.load(run))
        if last:
            run.close()
    with run:
        one = graph.moves(run, 1, singles)
        part = graph.moves(run, moved, many)
        known = nearest(*graph.ends, graph.columns["weight"], nodes)
        assert np.array_equal(distances_of(run, nodes), known)
    return {"load": spread_of(taken), "one_edge": spread_of(one), "many_edges": spread_of(part)}


def main() -> dict[str, Any]:
    name, edges = graph()
    nodes = number_of_nodes(*edges[:2])
    loads, singles, many = scale("loads", 3), scale("singles", 200), scale("many", 5)
    slow, repeats = scale("slow_singles", 20), scale("repeats", 3)
    moved = max(len(edges[0]) // 100, 1)
    arrays = kept("auto", edges, nodes, loads, singles, moved, many)
    differential = kept("differential", edges, nodes, 1, slow, moved, 1)
    peers: dict[str, Any] = {"numpy": {"version": version("numpy")}, **missing(GRAPHS)}
    peers["numpy"] |= spread_of([timed(lambda: nearest(*edges, nodes)) for _ in range(repeats)])
    if installed("scipy"):
        assert np.array_equal(searched(*edges, nodes), nearest(*edges, nodes))
        taken = [timed(lambda: searched(*edges, nodes)) for _ in range(repeats)]
        peers["scipy"] = {"version": version("scipy"), **spread_of(taken)}
    else:
        peers["scipy"] = {"skipped": "not installed"}
    ratios = {}
    for what in ("load", "one_edge", "many_edges"):
        ours = arrays[what]["cpu_ms"]
        ratios[f"differential_{what}"] = ratio(differential[what]["cpu_ms"], ours)
        for peer in ("numpy", "scipy"):  # from scratch, whatever changed
            if "cpu_ms" in peers[peer]:
                ratios[f"{peer}_{what}"] = ratio(peers[peer]["cpu_ms"], ours)
    return {
        "graph": name,
        "nodes": nodes,
        "edges": len(edges[0]),
        "moved": moved,
        "arrays": arrays,
        "differential": differential,
        "granted": granted(),
        "asked": {
            "one_edge_ms": at_most(arrays["one_edge"]["cpu_ms"], 2),
            "one_edge_ms_p99": at_most(arrays["one_edge"]["cpu_ms_p99"], 20),
            "many_edges_ms": at_most(arrays["many_edges"]["cpu_ms"], 300),
            "slower_than_numpy": at_most(
                ratio(arrays["load"]["cpu_ms"], peers["numpy"]["cpu_ms"]), 4
            ),
        },
        "peers": peers,
        "ratios": ratios,
    }
