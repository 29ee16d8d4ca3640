"""A round of PageRank: on one worker beside Numba and SciPy, and on Spark beside GraphX and loops of PySpark.

The graph is random, with ten times as many edges as nodes, and the program is that of docs/graphs.md. An edge is moved,
and the commit runs all rounds again, on arrays. Beside each commit one thread runs as many rounds from scratch, as a
Numba loop that scatters along the edges as they come, and as SciPy's product with a sparse matrix, so that a change of
the machine's speed hits all alike. Times are medians of these pairs, of the processor (on Spark: of this process and
all that it started) and by the clock. There are two figures of ours:

- *commit* is a whole commit over its rounds, with all that it does besides: the edge is moved, and new ranks go out;
- *round* is the difference of such commits in two runs, of `rounds` and of a quarter as many, over the rounds between.
  Those of peers are differences, too. On graphs so small that the difference is noise there is no such figure.

On Spark there are two workers; on arrays one of them does the work, as everywhere in these loops. GraphX, a loop over
PySpark DataFrames and one over RDDs have two cores, and the graph in memory before; ratios to them are by the clock.
Ranks are checked: ours and those of peers agree up to 1e-9 of their size.

The paper has two plans for PageRank, which trade places between two shapes: many nodes that link to few, and few nodes
that link to many. We do not have these two: on arrays all edges are on one worker, so that no plan sends parts or
ranks, and by rounds every row goes to the worker of its key. What can be forced is arrays or rounds, and `shapes` has
both, beside what ``auto`` takes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numba
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
    ratio,
    scale,
    spread_of,
    timed,
    version,
)
from bench.programs.processor import processor_seconds
from bench.real_graphs import Ints, number_of_nodes, random_graph
from bench.sessions import session

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Figures: TypeAlias = dict[str, dict[str, float]]
NODES = 10
"""So many edges has a node."""
TOLERANCE = 1e-9
"""How far ranks of peers, which add up in another order, may be from ours, as a part of them."""
WORKERS = 2
CLEAR = 0.1
"""By such a part at least, commits of more rounds take longer; otherwise their difference is noise, and not told."""
TICK = 10
"""Milliseconds: the time of the processor of other processes is known so exactly."""
MODES = ("auto", "arrays", "rounds")


def program(rounds: int, mode: str = "auto") -> rr.Dataflow:
    flow = rr.Dataflow("pagerank")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    graph = rr.graphs.Graph(None, edges).with_out_degrees()
    base = graph.nodes.select("node", part=pl.lit(0.15))

    def step(graph: rr.graphs.Graph) -> rr.Collection:
        part = 0.85 * pl.col("rank") / pl.col("out_degree")
        sent = graph.join().select("dst", part=part)
        return graph.aggregate(sent, also=base, rank=rr.sum("part"))

    start = graph.with_values(rank=pl.lit(1.0))
    flow.output("ranks", start.iterate(step, rounds=rounds, mode=mode, name="ranks"))
    return flow


@numba.njit(cache=False, nogil=True)  # type: ignore[untyped-decorator]
def scattered(src: Ints, dst: Ints, degrees: Ints, rounds: int) -> Floats:
    """The ranks after so many rounds, in each of which every edge adds to the rank of its target."""
    ranks = np.ones(len(degrees))
    for _ in range(rounds):
        shares = 0.85 * ranks / np.maximum(degrees, 1)
        ranks = np.full(len(degrees), 0.15)
        for edge in range(len(src)):
            ranks[dst[edge]] += shares[src[edge]]
    return ranks


def matrix_of(src: Ints, dst: Ints, degrees: Ints) -> Any:
    from scipy.sparse import csr_matrix

    size = len(degrees), len(degrees)
    return csr_matrix((0.85 / degrees[src], (dst, src)), shape=size)


def multiplied(matrix: Any, rounds: int) -> Floats:
    ranks: Floats = np.ones(matrix.shape[0])
    for _ in range(rounds):
        ranks = 0.15 + matrix @ ranks
    return ranks


def check(run: rr.Run, src: Ints, dst: Ints, ranks: Floats) -> None:
    """The ranks of a run are these."""
    rows = run.read("ranks").to_arrow()
    nodes = rows["node"].to_numpy()
    assert np.array_equal(np.sort(nodes), np.unique(np.concatenate([src, dst])))
    np.testing.assert_allclose(rows["rank"].to_numpy(), ranks[nodes], rtol=TOLERANCE)


def pairs_of_commits(
    where: dict[str, Any],
    graph: tuple[Ints, Ints],
    rounds: int,
    pairs: int,
    *,
    mode: str = "auto",
    processor: Callable[[], float],
) -> Figures:
    """A run of so many rounds, and edges moved in it; beside each commit the same rounds by peers, in one thread."""
    src, dst = (ends.copy() for ends in graph)
    rng, nodes = np.random.default_rng(1), number_of_nodes(src, dst)
    degrees = np.bincount(src, minlength=nodes)
    scattered(src[:1], dst[:1], degrees, 1)  # compiled
    matrix = matrix_of(src, dst, degrees) if installed("scipy") else None
    taken: dict[str, list[tuple[float, float]]] = {"ours": [], "numba": [], "scipy": []}
    with program(rounds, mode).run(**where) as run:
        run.insert("edges", pa.table({"src": src.copy(), "dst": dst.copy()}))
        load = timed(run.commit, processor)
        for pair in range(pairs + 1):
            at = rng.integers(0, len(src), 1)
            run.delete("edges", pa.table({"src": src[at], "dst": dst[at]}))
            dst[at] = dst[rng.integers(0, len(src), 1)]
            run.insert("edges", pa.table({"src": src[at], "dst": dst[at]}))
            ours = timed(run.commit, processor)
            theirs = timed(lambda: scattered(src, dst, degrees, rounds))
            if pair:  # the first commit is slower
                taken["ours"].append(ours)
                taken["numba"].append(theirs)
                if matrix is not None:
                    taken["scipy"].append(timed(lambda: multiplied(matrix, rounds)))
        ranks = scattered(src, dst, degrees, rounds)
        check(run, src, dst, ranks)
        if matrix is not None:
            of_matrix = multiplied(matrix_of(src, dst, degrees), rounds)
            np.testing.assert_allclose(of_matrix, ranks, rtol=TOLERANCE)
        history = run.rounds("ranks").to_polars()
        last = history.filter(pl.col("epoch") == pl.col("epoch").max())
        assert len(last) == rounds
    figures = {name: spread_of(each) for name, each in taken.items() if each}
    figures["ours"]["load_s"] = round(load[0], 3)
    figures["ours"]["load_cpu_s"] = round(load[1], 3)
    if last["ms"].sum():
        figures["ours"]["rounds_ms"] = round(float(last["ms"].median()), 3)  # type: ignore[arg-type]
    return figures


def on_one_worker(nodes: int, edges: int, rounds: int, pairs: int) -> Figures:
    """In a process of its own, for its memory."""
    return pairs_of_commits(
        {}, random_graph(nodes, edges), rounds, pairs, processor=time.process_time
    )


def by_round(many: Figures, few: Figures, rounds: int, fewer: int) -> Figures:
    """For each system, what a commit takes over its rounds, and what a round more takes, where that can be told."""
    told = {}
    for name, each in many.items():
        told[name] = {what: figure for what, figure in each.items() if what.endswith("_s")}
        for clock in ("wall", "cpu"):
            whole, part = each[f"{clock}_ms"], few[name][f"{clock}_ms"]
            told[name][f"commit_{clock}_ms"] = round(max(whole / rounds, 1e-3), 3)
            if whole - part > CLEAR * part:
                told[name][f"round_{clock}_ms"] = round((whole - part) / (rounds - fewer), 3)
        if "rounds_ms" in each:
            told[name]["run_rounds_ms"] = each["rounds_ms"]
    return told


def shaped(shape: str, edges: int) -> tuple[Ints, Ints]:
    """The ends of edges between many nodes and a hundredth as many, which are nodes of the many, too."""
    many, rng = edges, np.random.default_rng(2)
    few = max(edges // 100, 2)
    ends = rng.integers(0, many, edges), rng.integers(0, few, edges)
    return ends if shape == "many_to_few" else ends[::-1]


def all_shapes(spark: Any, edges: int, rounds: int, pairs: int) -> dict[str, Any]:
    """Each shape in each mode, on two workers."""
    return {
        shape: {
            mode: pairs_of_commits(
                {"on": spark, "workers": WORKERS},
                shaped(shape, edges),
                rounds,
                pairs,
                mode=mode,
                processor=processor_seconds,
            )["ours"]
            for mode in MODES
        }
        for shape in ("many_to_few", "few_to_many")
    }


def on_spark_alone(src: Ints, dst: Ints, rounds: int, fewer: int) -> dict[str, Any]:
    """Peers that run on Spark, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder, "graph.npz"), src=src, dst=dst)
        options: dict[str, int | str] = {
            "graph": str(Path(folder, "graph.npz")),
            "rounds": rounds,
            "fewer": fewer,
        }
        return {
            "graphx": run_apart("graphx_pagerank", "pyspark", **options),
            "spark_dataframes": run_apart("spark_pagerank", "pyspark", **options),
            "spark_rdds": run_apart("spark_rdd_pagerank", "pyspark", **options),
        }


def main() -> dict[str, Any]:
    edges, fewer_edges = scale("edges", 10e6), scale("spark_edges", 1e6)
    rounds, pairs = scale("rounds", 20), scale("pairs", 11)
    shape_rounds, shape_pairs = scale("shape_rounds", 5), scale("shape_pairs", 3)
    fewer = max(rounds // 4, 1)
    one = [
        alone(f"bench.pagerank.on_one_worker({edges // NODES}, {edges}, {each}, {pairs})")
        for each in (rounds, fewer)
    ]
    one_worker = by_round(one[0], one[1], rounds, fewer)
    graph = random_graph(fewer_edges // NODES, fewer_edges)
    with session(WORKERS, "1g") as spark:
        where = {"on": spark, "workers": WORKERS}
        two = [
            pairs_of_commits(where, graph, each, pairs, processor=processor_seconds)
            for each in (rounds, fewer)
        ]
        shapes = all_shapes(spark, fewer_edges, shape_rounds, shape_pairs)
    two_workers = by_round(two[0], two[1], rounds, fewer)
    peers: dict[str, Any] = {
        name: {"version": version(name)} if installed(name) else {"skipped": "not installed"}
        for name in ("numba", "scipy")
    }
    peers |= on_spark_alone(*graph, scale("peer_rounds", 10), scale("peer_fewer_rounds", 3))
    ratios, asked = {}, {}
    most = {"one_worker": {"numba": 1.5, "scipy": 3.0}, "two_workers": {"numba": 4.0}}
    for place, figures in (("one_worker", one_worker), ("two_workers", two_workers)):
        for name in figures.keys() - {"ours"}:
            for what in ("round", "commit"):
                word = f"{what}_cpu_ms"
                if not (word in figures["ours"] and word in figures[name]):
                    continue
                ours, theirs = figures["ours"][word], figures[name][word]
                ratios[f"{place}_{what}_{name}"] = ratio(theirs, ours)
                if name in most[place]:
                    asked[f"{place}_{what}_to_{name}"] = at_most(
                        ratio(ours, theirs), most[place][name]
                    )
    for name, least in (("graphx", 50), ("spark_dataframes", 100), ("spark_rdds", 100)):
        if "skipped" not in peers[name]:
            for what in ("round", "commit"):
                word = f"{what}_wall_ms"
                if word in peers[name] and word in two_workers["ours"]:
                    faster = ratio(peers[name][word], two_workers["ours"][word])
                    ratios[f"two_workers_{what}_{name}"] = faster
                    asked[f"two_workers_{what}_faster_than_{name}"] = at_least(faster, least)
    for shape, by_mode in shapes.items():
        best = min(by_mode[mode]["cpu_ms"] for mode in MODES)
        asked[f"{shape}_auto"] = at_most(ratio(by_mode["auto"]["cpu_ms"], max(best, TICK)), 1.5)
        ratios[f"{shape}_rounds_to_arrays"] = ratio(
            by_mode["rounds"]["wall_ms"], by_mode["arrays"]["wall_ms"]
        )
    return {
        "edges": edges,
        "edges_on_spark": fewer_edges,
        "rounds": [rounds, fewer],
        "pairs": pairs,
        "one_worker": one_worker,
        "two_workers": two_workers,
        "shapes": shapes,
        "granted": granted(),
        "asked": asked,
        "peers": peers,
        "ratios": ratios,
    }
