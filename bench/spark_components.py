"""Components of a random graph on Spark: one worker in this process, one on Spark, two on Spark; then edges moved.

The load is from `commit()` to a result that is complete; the rows have been handed in before. A move deletes
one edge and inserts another, in one commit, or a thousand of each. Answers are checked at the end of every run. A few
edges have gone in and out before: workers are warm, as peers are.

Peers compute from scratch on two cores, the graph in memory before: a loop over PySpark DataFrames, and GraphX,
whose code is in the JVM. They are not durable, and neither are we, but for two workers once more with the log and
checkpoints. Ratios are to ours with two workers on Spark.
BENCH_NODES=1e6 BENCH_EDGES=2e6 is the larger size.
"""

from __future__ import annotations

import tempfile
import time
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

import riverrun as rr
from bench.apart import run_apart
from bench.components import MANY, Ints, least_labels, program, random_graph
from bench.measure import at_least, ratio, scale
from bench.sessions import session

LARGE = 500_000
FEW = 1000


def loaded(
    flow: rr.Dataflow, nodes: int, src: Ints, dst: Ints, **where: Any
) -> tuple[rr.Run, float]:
    """A run with a graph in it, and how long that took."""
    run = flow.run(**where)
    few = pa.table({"src": src[:FEW], "dst": dst[:FEW]})
    for change in (run.insert, run.delete):  # to be warm: these workers may be new processes
        change("edges", few)
        change("nodes", pa.table({"node": np.arange(min(nodes, FEW))}))
        run.commit()
    run.insert("nodes", pa.table({"node": np.arange(nodes)}))
    run.insert("edges", pa.table({"src": src.copy(), "dst": dst.copy()}))
    start = time.perf_counter()
    run.commit()
    return run, time.perf_counter() - start


def moves(run: rr.Run, nodes: int, edges: int, singles: int, moved: int) -> dict[str, float]:
    """Move edges of the graph that is loaded, and check the answer."""
    rng, src, dst = random_graph(nodes, edges)

    def move(count: int) -> float:
        places = rng.choice(edges, count, replace=False)
        run.delete("edges", pa.table({"src": src[places], "dst": dst[places]}))
        src[places], dst[places] = rng.integers(0, nodes, (2, count))
        run.insert("edges", pa.table({"src": src[places], "dst": dst[places]}))
        start = time.perf_counter()
        run.commit()
        return time.perf_counter() - start

    one = [move(1) for _ in range(singles)]
    many = [move(moved) for _ in range(MANY)]
    result = run.read("components").to_arrow()
    labels = np.empty(nodes, np.int64)
    labels[result["node"].to_numpy()] = result["component"].to_numpy()
    assert np.array_equal(labels, least_labels(nodes, src, dst))
    return {
        "one_edge_ms": round(float(np.median(one)) * 1e3, 2),
        "one_edge_ms_p99": round(float(np.percentile(one, 99)) * 1e3, 2),
        "many_edges_ms": round(float(np.median(many)) * 1e3, 1),
    }


def main() -> dict[str, Any]:
    nodes, edges = scale("nodes", 100_000), scale("edges", 200_000)
    large = nodes > LARGE
    loads, singles = scale("loads", 2 if large else 5), scale("singles", 100)
    moved = scale("moved", 1000)
    _, src, dst = random_graph(nodes, edges)
    flow = program(prioritised=True)
    ours: dict[str, dict[str, float]] = {}
    with session(2, "1g") as spark:
        places: dict[str, dict[str, Any]] = {
            "in_process": {},
            "one_worker": {"on": spark, "workers": 1},
            "two_workers": {"on": spark, "workers": 2},
            "two_durable": {"on": spark, "workers": 2, "every": timedelta(seconds=2)},
        }
        taken: dict[str, list[float]] = {name: [] for name in places}
        for turn in range(
            loads
        ):  # in turns, so that a change of the machine's speed hits all alike
            for name, where in places.items():
                with tempfile.TemporaryDirectory() as folder:
                    path = {"checkpoint": folder} if "every" in where else {}
                    run, spent = loaded(flow, nodes, src, dst, **where, **path)
                    taken[name].append(spent)
                    with run:
                        if turn == loads - 1:
                            ours[name] = moves(run, nodes, edges, singles, moved)
    for name, spents in taken.items():
        ours[name] = {"load_s": round(float(np.median(spents)), 3), **ours[name]}
    size = {"nodes": nodes, "edges": edges, "repeats": 1 if large else 2}
    peers = {
        "spark_dataframes": run_apart("spark_components", "pyspark", **size),
        "graphx": run_apart("graphx_components", "pyspark", **size),
    }
    two, one = ours["two_workers"], ours["one_worker"]
    durable = ours["two_durable"]
    ratios = {
        "one_worker_load_s": ratio(one["load_s"], two["load_s"]),
        "durable_load": ratio(two["load_s"], durable["load_s"]),
        "durable_many_edges": ratio(two["many_edges_ms"], durable["many_edges_ms"]),
    }
    for name, peer in peers.items():
        if "skipped" not in peer:
            ratios[f"{name}_load_s"] = ratio(peer["load_s"], two["load_s"])
            for figure in ("one_edge_ms", "many_edges_ms"):  # it computes the result again
                ratios[f"{name}_{figure}"] = ratio(peer["load_s"] * 1e3, two[figure])
    asked = {
        "two_workers_to_one": at_least(ratios["one_worker_load_s"], 1.5),
        "durable_load": at_least(ratios["durable_load"], 0.8),
    }
    for name, limit in {"spark_dataframes": 8, "graphx": 1}.items():
        if f"{name}_load_s" in ratios:
            asked[f"faster_than_{name}"] = at_least(ratios[f"{name}_load_s"], limit)
    return {
        "nodes": nodes,
        "edges": edges,
        "moved": moved,
        **ours,
        "asked": asked,
        "peers": peers,
        "ratios": ratios,
    }
