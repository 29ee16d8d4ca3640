"""Components of a random graph by min-label propagation: the load, then edges moved.

The same loop runs on arrays, which is what `rr.graphs.components` does, and as a differential loop, plain and
prioritised. A move deletes one edge and inserts another, in one commit. Rows touched are the rows that were appended to
states inside a differential loop; they are counted in `Spine.append`, after equal changes were added up. Reading the
result is not part of a change.

Peers: NumPy does the same rounds from scratch, in one thread; SciPy and igraph search the graph instead; these three
compute again from scratch at every change. Pathway keeps its result up to date, with one thread, as ours has one
worker; its changes only add edges, which is less work. GraphX computes from scratch on two cores, and reading the graph
is not counted. No system is durable here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import riverrun as rr
from bench.apart import run_apart
from bench.measure import (
    alone,
    at_least,
    at_most,
    granted,
    installed,
    peak_resident_bytes,
    ratio,
    scale,
    seconds,
    version,
)
from riverrun.graphs import components
from riverrun.state import Spine

Ints = np.ndarray[Any, Any]
FROM_SCRATCH = 5  # repetitions
MANY = 5  # changes of many edges


def random_graph(nodes: int, edges: int) -> tuple[np.random.Generator, Ints, Ints]:
    rng = np.random.default_rng(0)
    return rng, rng.integers(0, nodes, edges), rng.integers(0, nodes, edges)


def least_labels(nodes: int, src: Ints, dst: Ints) -> Ints:
    """The same rounds in NumPy: every node takes the least label it hears of, until none is less."""
    labels = np.arange(nodes)
    while True:
        heard = labels.copy()
        np.minimum.at(heard, src, labels[dst])
        np.minimum.at(heard, dst, labels[src])
        if np.array_equal(heard, labels):
            return labels
        labels = heard


def program(prioritised: bool | None) -> rr.Dataflow:
    flow = rr.Dataflow("components")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    nodes = flow.input("nodes", {"node": pl.Int64})
    flow.output("components", components(edges, nodes, prioritised=prioritised))
    return flow


@contextmanager
def counting_rows_of_loops() -> Iterator[list[int]]:
    """The rows that are appended to states inside loops from now on, as a list of one number."""
    appended, append = [0], Spine.append

    def counted(spine: Spine, batch: Any) -> None:
        if "/" in spine.name:  # loop-1/arrange-1
            appended[0] += len(batch)
        append(spine, batch)

    Spine.append = counted  # type: ignore[method-assign]
    try:
        yield appended
    finally:
        Spine.append = append  # type: ignore[method-assign]


def loaded(flow: rr.Dataflow, nodes: int, src: Ints, dst: Ints) -> tuple[rr.Run, float]:
    """A run with a graph in it, and how long that took."""
    run = flow.run()
    start = time.perf_counter()
    run.insert("nodes", pa.table({"node": np.arange(nodes)}))
    run.insert("edges", pa.table({"src": src.copy(), "dst": dst.copy()}))
    run.commit()
    return run, time.perf_counter() - start


def measure(
    prioritised: bool | None, nodes: int, edges: int, loads: int, singles: int, moved: int
) -> Any:
    """Our figures for one of the programs; called in a process of its own, for its memory."""
    rng, src, dst = random_graph(nodes, edges)
    flow = program(prioritised)
    warm, _ = loaded(flow, 100, src[:200] % 100, dst[:200] % 100)
    warm.close()
    taken = []
    for last in range(loads - 1, -1, -1):
        run, spent = loaded(flow, nodes, src, dst)
        taken.append(spent)
        if last:
            run.close()

    def move(count: int) -> float:
        places = rng.choice(edges, count, replace=False)
        old = pa.table({"src": src[places], "dst": dst[places]})
        src[places], dst[places] = rng.integers(0, nodes, (2, count))
        new = pa.table({"src": src[places], "dst": dst[places]})
        start = time.perf_counter()
        run.delete("edges", old)
        run.insert("edges", new)
        run.commit()
        return time.perf_counter() - start

    with counting_rows_of_loops() as touched:
        one = [move(1) for _ in range(singles)]
        rows_of_one = touched[0] / singles
        many, rows_of_many = [], []
        for _ in range(MANY):
            touched[0] = 0
            many.append(move(moved))
            rows_of_many.append(touched[0])
    result = run.read("components").to_arrow()
    labels = np.empty(nodes, np.int64)
    labels[result["node"].to_numpy()] = result["component"].to_numpy()
    assert np.array_equal(labels, least_labels(nodes, src, dst))
    states = run.status()["states"].values()
    run.close()
    return {
        "load_s": round(float(np.median(taken)), 3),
        "one_edge_ms": round(float(np.median(one)) * 1e3, 2),
        "one_edge_ms_p99": round(float(np.percentile(one, 99)) * 1e3, 2),
        "one_edge_rows": round(rows_of_one),
        "many_edges_ms": round(float(np.median(many)) * 1e3, 1),
        "many_edges_rows": round(float(np.median(rows_of_many))),
        "us_per_row_touched": round(
            float(np.median(np.divide(many, np.maximum(rows_of_many, 1)))) * 1e6, 2
        )
        if any(rows_of_many)
        else None,
        "state_rows": sum(state["rows"] for state in states),
        "state_MB": round(sum(state["bytes"] for state in states) / 1e6, 1),
        "peak_resident_MB": round(peak_resident_bytes() / 1e6),
        "granted": granted(),
    }


def from_scratch(nodes: int, src: Ints, dst: Ints) -> dict[str, dict[str, Any]]:
    """Peers in this process."""

    def search_scipy() -> Any:
        from scipy.sparse import coo_matrix
        from scipy.sparse.csgraph import connected_components

        ones = np.ones(len(src), np.int8)
        matrix = coo_matrix((ones, (src, dst)), shape=(nodes, nodes)).tocsr()
        return connected_components(matrix, directed=False)

    def search_igraph() -> Any:
        import igraph

        return igraph.Graph(n=nodes, edges=np.c_[src, dst]).connected_components(mode="weak")

    peers: dict[str, Callable[[], Any]] = {
        "numpy": lambda: least_labels(nodes, src, dst),
        "scipy": search_scipy,
        "igraph": search_igraph,
    }
    measures: dict[str, dict[str, Any]] = {}
    for name, run in peers.items():
        if not installed(name):
            measures[name] = {"skipped": "not installed"}
            continue
        run()
        measures[name] = {"version": version(name), "load_s": round(seconds(run, FROM_SCRATCH), 5)}
    return measures


def main() -> dict[str, Any]:
    nodes, edges = scale("nodes", 100_000), scale("edges", 200_000)
    large = nodes > 500_000
    loads, singles = scale("loads", 1 if large else 3), scale("singles", 200)
    moved = scale("moved", 1000)
    sizes = f"{nodes}, {edges}, {loads}, {singles}, {moved}"
    arrays = alone(f"bench.components.measure(None, {sizes})")
    prioritised = alone(f"bench.components.measure(True, {sizes})")
    plain = alone(f"bench.components.measure(False, {sizes})")
    _, src, dst = random_graph(nodes, edges)
    peers = from_scratch(nodes, src, dst)
    if large:  # minutes, and nobody asked
        peers |= {name: {"skipped": "too large"} for name in ("pathway", "graphx")}
    else:
        peers["pathway"] = run_apart(
            "pathway_components", "pathway", nodes=nodes, edges=edges, moved=moved
        )
        peers["graphx"] = run_apart("graphx_components", "pyspark", nodes=nodes, edges=edges)
    ratios = {}
    for name, peer in peers.items():
        for figure in ("load_s", "one_edge_ms", "many_edges_ms"):
            if "skipped" in peer:
                continue
            # Who cannot change a result computes it again, whatever changed.
            theirs = peer.get(figure, peer["load_s"] * 1e3)
            ratios[f"{name}_{figure}"] = ratio(theirs, arrays[figure])
    for name, loop in (("prioritised", prioritised), ("plain", plain)):
        for figure in ("load_s", "one_edge_ms", "many_edges_ms"):
            ratios[f"{name}_{figure}"] = ratio(loop[figure], arrays[figure])
    asked = {
        "one_edge_ms": at_most(arrays["one_edge_ms"], 0.6),
        "many_edges_ms": at_most(arrays["many_edges_ms"], 30),
        "faster_than_prioritised": at_least(ratios["prioritised_load_s"], 1.5),
        "us_per_row_touched": at_most(prioritised["us_per_row_touched"], 1),
        "slower_than_numpy": at_most(ratio(arrays["load_s"], peers["numpy"]["load_s"]), 4),
    }
    if "pathway_load_s" in ratios:
        asked["faster_than_pathway"] = at_least(ratios["pathway_load_s"], 20)
    if "graphx_load_s" in ratios:
        asked["faster_than_graphx"] = at_least(ratios["graphx_load_s"], 1)
    if large:
        asked = {
            "load_s": at_most(arrays["load_s"], 40),
            "peak_resident_MB": at_most(arrays["peak_resident_MB"], 6000),
        }
    return {
        "nodes": nodes,
        "edges": edges,
        "moved": moved,
        "arrays": arrays,
        "prioritised": prioritised,
        "plain": plain,
        "asked": asked,
        "peers": peers,
        "ratios": ratios,
    }
