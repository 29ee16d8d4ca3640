"""Microsteps, supersteps and bulk rounds of one loop, on one worker and on two.

Components by their least label on three graphs: the roads of the USA, the social graph of Epinions (as far as these
files are there: `bench.real_graphs`), and a path whose nodes are in random order. *Loop only* is the loop alone, in one
thread, from the start values to the end: a bulk round looks at every edge, as a Numba loop does; bulk rounds beyond the
first few are reckoned. *Workers* is the whole of a load and of one edge moved, with processes, commit included. An
*almost-empty round* is a round in which one value goes on: along a path, on two workers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import polars as pl
import pyarrow as pa

import riverrun as rr
from bench.measure import at_least, at_most, granted, ratio, scale
from bench.programs.processor import processor_seconds
from bench.real_graphs import ROADS, TRUST, Ints, missing, permuted_path, real_graphs
from riverrun.operators.iterations.spreading import Message, Spreading

BULK_ROUNDS = 20
WAYS = [
    ("auto", "auto", 1),
    ("auto", "auto", 2),
    ("microstep", "one", 2),
    ("microstep", "all", 2),
    ("superstep", "all", 2),
]


def graphs(path: int) -> Iterator[tuple[str, Ints, Ints]]:
    """The ends of the edges of each graph that is there."""
    yield from real_graphs((ROADS, TRUST))
    yield "path", *permuted_path(path)


@numba.njit(cache=False, nogil=True)  # type: ignore[untyped-decorator]
def bulk_round(starts: Ints, targets: Ints, labels: Ints, after: Ints) -> int:
    """One round in which every node looks at all its neighbours; how many labels differ."""
    changed = 0
    for node in range(len(labels)):
        best = labels[node]
        for at in range(starts[node], starts[node + 1]):
            best = min(best, labels[targets[at]])
        after[node] = best
        changed += best != labels[node]
    return changed


def bulk_seconds(src: Ints, dst: Ints, rounds: int) -> float:
    """What bulk rounds take until nothing changes, in one thread. The first ones are measured; if there are more, there
    are `rounds` of them, or some more, as supersteps see values of their own round."""
    names, ends = np.unique(np.concatenate([src, dst]), return_inverse=True)
    a, b = ends[: len(src)], ends[len(src) :]
    sources, targets = np.concatenate([a, b]), np.concatenate([b, a])
    order = np.argsort(sources, kind="stable")
    starts = np.searchsorted(sources[order], np.arange(len(names) + 1))
    targets, labels = targets[order], names.copy()
    after = labels.copy()
    bulk_round(starts[:1], targets, labels[:0], after[:0])  # compiled
    begin = time.thread_time()
    for _ in range(BULK_ROUNDS):
        if not bulk_round(starts, targets, labels, after):
            return time.thread_time() - begin
        labels, after = after, labels
    return (time.thread_time() - begin) / BULK_ROUNDS * max(rounds, BULK_ROUNDS)


def loop_only(src: Ints, dst: Ints, repeats: int) -> dict[str, Any]:
    """The loop alone, of `Spreading`: seconds of the processor, rounds and messages, by order."""
    nodes = pa.array(np.unique(np.concatenate([src, dst])))
    ones, many = np.ones(len(nodes), np.int64), np.ones(2 * len(src), np.int64)
    a, b = pa.array(np.concatenate([src, dst])), pa.array(np.concatenate([dst, src]))
    figures: dict[str, Any] = {}
    for name, order in (("microstep", "best"), ("superstep", "superstep")):
        taken = []
        for _ in range(repeats):
            spreading = Spreading([pa.int64()], pa.int64(), Message("copy"), order=order)
            spreading.change_solution([nodes], nodes, ones)
            spreading.change_edges([a], [b], None, many)
            begin = time.thread_time()
            settled = spreading.converge()
            taken.append(time.thread_time() - begin)
        figures[f"{name}_ms"] = round(statistics.median(taken) * 1e3, 2)
        figures[f"{name}_messages"] = settled.messages
    figures["rounds"] = settled.rounds
    figures["bulk_ms"] = round(bulk_seconds(src, dst, settled.rounds) * 1e3, 2)
    return figures


def program(mode: str, over: str, edges: int) -> rr.Dataflow:
    flow = rr.Dataflow("components")
    links = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64}, expect=edges)
    both = links.concat(links.select(src="dst", dst="src"))
    labels = both.select(node="src", label="src").distinct()

    def send(near: rr.Collection) -> rr.Collection:
        return near.join(both, left_on="node", right_on="src").select(node="dst", label="label")

    best = rr.loops.least("label")
    found = labels.iterate_delta(
        send(labels), key="node", send=send, better=best, mode=mode, spread_over=over
    )
    flow.output("components", found)
    return flow


def whole(
    src: Ints, dst: Ints, mode: str, over: str, workers: int, moves: int
) -> tuple[dict[str, Any], Any]:
    """A load, then edges moved; the figures, and what the labels add up to."""
    rng = np.random.default_rng(1)
    src, dst = src.copy(), dst.copy()
    options: dict[str, Any] = {} if workers == 1 else {"on": "processes", "workers": workers}
    with program(mode, over, len(src)).run(**options) as run:
        for change in (run.insert, run.delete):  # which loads kernels
            change("edges", pa.table({"src": src[:9], "dst": dst[:9]}))
            run.commit()
        begin = time.perf_counter()
        run.insert("edges", pa.table({"src": src, "dst": dst}))
        run.commit()
        load = time.perf_counter() - begin
        taken = []
        for _ in range(moves):
            at = rng.integers(0, len(src), 1)
            old = pa.table({"src": src[at], "dst": dst[at]})
            dst[at] = dst[rng.integers(0, len(src), 1)]
            begin = time.perf_counter()
            run.delete("edges", old)
            run.insert("edges", pa.table({"src": src[at], "dst": dst[at]}))
            run.commit()
            taken.append(time.perf_counter() - begin)
        labels = run.read("components").to_arrow()
        total = labels.num_rows, int(np.asarray(labels["label"]).sum())
        states = run.status()["states"].values()
    figures = {
        "load_s": round(load, 3),
        "one_edge_ms": round(statistics.median(taken) * 1e3, 2),
        "letters": sum(state.get("letters", 0) for state in states),
    }
    return figures, total


def empty_round(mode: str, nodes: int, repeats: int) -> dict[str, float]:
    """Milliseconds for a hop on two workers, by the clock and of both processors: one value goes along a path."""
    src = np.arange(nodes)
    taken = []
    for _ in range(repeats):
        flow = rr.Dataflow("path")
        edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
        start = flow.input("start", {"node": pl.Int64, "far": pl.Int64})

        def send(near: rr.Collection, edges: rr.Collection = edges) -> rr.Collection:
            there = near.join(edges, left_on="node", right_on="src")
            return there.select(node="dst", far=pl.col("far") + 1)

        best = rr.loops.least("far")
        found = start.iterate_delta(
            send(start), key="node", send=send, better=best, missing="add", mode=mode, spread_over="all"
        )  # fmt: skip
        flow.output("far", found)
        with flow.run(on="processes", workers=2) as run:
            run.insert("edges", pa.table({"src": src, "dst": src + 1}))
            run.commit()
            run.insert("start", [(nodes // 2, 0)])
            run.commit()
            begin, used = time.perf_counter(), processor_seconds(own=False)
            run.insert("start", [(0, -nodes)])
            run.commit()
            wall = time.perf_counter() - begin
            taken.append((wall, processor_seconds(own=False) - used))
    walls, cpus = (statistics.median(each) * 1e3 / nodes for each in zip(*taken, strict=True))
    return {"wall_ms": round(walls, 3), "cpu_ms": round(cpus, 3)}


def main() -> dict[str, Any]:
    path, repeats, moves = scale("path", 200_000), scale("repeats", 3), scale("moves", 30)
    hops, shared_path = scale("hops", 1000), scale("shared_path", 2_000)
    loops, workers, ratios, asked = {}, {}, {}, {}
    for name, src, dst in graphs(path):
        figures = loops[name] = loop_only(src, dst, repeats)
        for way in ("microstep", "superstep"):
            ratios[f"{name}_{way}"] = ratio(figures["bulk_ms"], max(figures[f"{way}_ms"], 1e-6))
        if name == "path":  # a round for each hop of it
            src, dst = (each[:shared_path] for each in (src, dst))
        workers[name], results = {}, []
        for mode, over, count in WAYS:
            figures, total = whole(src, dst, mode, over, count, moves)
            workers[name][f"{mode}_{over}_{count}"] = figures
            results.append(total)
        assert len(set(results)) == 1, results
        two = {way: each["load_s"] for way, each in workers[name].items() if way.endswith("_2")}
        asked[f"{name}_auto_load"] = at_most(ratio(two["auto_auto_2"], min(two.values())), 1.5)
    for name, least in ((TRUST, 4), (ROADS, 50)):
        if name in loops:
            asked[f"{name}_microstep"] = at_least(ratios[f"{name}_microstep"], least)
    asked["path_superstep"] = at_least(ratios["path_superstep"], 50)
    rounds = {mode: empty_round(mode, hops, repeats) for mode in ("superstep", "microstep")}
    # Of both workers together, which on an idle machine is more than the clock says.
    asked["empty_round_ms"] = at_most(rounds["superstep"]["cpu_ms"], 1)
    return {
        "loop_only": loops,
        "workers": workers,
        "empty_round": rounds,
        "granted": granted(),
        "asked": asked,
        "peers": missing((ROADS, TRUST)),
        "ratios": ratios,
    }
