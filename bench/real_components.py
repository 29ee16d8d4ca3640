"""Components of real graphs: the load, one edge moved, and 1,000; and what each kind of iteration does for it.

The graphs are the roads of the USA, the social graph of Epinions (as far as these files are there:
`bench.real_graphs`), a random one, and paths whose nodes are in random order. `rr.graphs.components` keeps the
components, on arrays; beside it the same in a differential loop, prioritised (small labels set out first), with fewer
changes, as each may take seconds; and one thread of NumPy, which spreads least labels from scratch, round by round. A
differential loop does not end in hours on a long path, so it has a short one. Where NumPy needs more than
BENCH_SCRATCH_ROUNDS rounds (on the path), what it takes is reckoned from so many.

`work` is what loops do, as in the figure of "Differential dataflow" (McSherry and others, 2013): rounds, rows touched,
messages and milliseconds of the load in *bulk* (every node hears its neighbours in every round), *incrementally* (by
rounds in which only nodes that changed send), and *prioritised* (microsteps, best first); and of a *change of one
second*, where the edges are those of a day, so that one in 86,400 is moved (the mean of some seconds). The long path
is left out.

Figures are of the processor (`cpu`) and by the clock (`wall`); those that are asked for are of the processor. All ways
give the labels of a search. differential-dataflow in Rust is not run here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

import riverrun as rr
from bench.iterations import LOOP, check_components, components_program, of_rounds
from bench.measure import at_least, at_most, granted, ratio, scale, spread_of, version
from bench.moving import MovingGraph, warmed
from bench.real_graphs import (
    ROADS,
    TRUST,
    Ints,
    missing,
    number_of_nodes,
    permuted_path,
    random_graph,
    real_graphs,
)

GRAPHS = (ROADS, TRUST)
LONG, SHORT = "path", "short_path"
WORK = {
    "bulk": "bulk",
    "incremental": "incremental_by_rounds",
    "prioritised": "microstep",
}
DAY = 86_400
ONE_EDGE = {ROADS: 3.0, "random": 0.6}
"""Milliseconds asked for."""


def graphs() -> Iterator[tuple[str, Ints, Ints]]:
    yield from real_graphs(GRAPHS)
    yield "random", *random_graph(scale("nodes", 100_000), scale("edges", 200_000))
    yield LONG, *permuted_path(scale("path", 200_000))
    yield SHORT, *permuted_path(scale("short_path", 400))


def program(prioritised: bool | None) -> rr.Dataflow:
    flow = rr.Dataflow("components")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    flow.output("components", rr.graphs.components(edges, prioritised=prioritised))
    return flow


def kept(
    prioritised: bool | None, src: Ints, dst: Ints, loads: int, singles: int, moved: int, many: int
) -> dict[str, Any]:
    """The figures of one of our programs."""
    graph, taken = MovingGraph(src, dst), []
    warmed(program(prioritised), graph)
    for last in range(loads - 1, -1, -1):
        run = program(prioritised).run()
        taken.append(graph.load(run))
        if last:
            run.close()
    with run:
        one = graph.moves(run, 1, singles)
        thousand = graph.moves(run, moved, many)
        check_components(run, *graph.ends, column="component")
    return {"load": spread_of(taken), "one_edge": spread_of(one), "many_edges": spread_of(thousand)}


def from_scratch(src: Ints, dst: Ints, most: int) -> dict[str, Any]:
    """Least labels in NumPy, in one thread: what all rounds take, and how many there are."""
    labels = np.arange(number_of_nodes(src, dst))
    begin, clock, rounds = time.thread_time(), time.perf_counter(), 0
    while rounds < most:
        heard = labels.copy()
        np.minimum.at(heard, src, labels[dst])
        np.minimum.at(heard, dst, labels[src])
        rounds += 1
        if np.array_equal(heard, labels):
            break
        labels = heard
    cpu, wall = time.thread_time() - begin, time.perf_counter() - clock
    if rounds < most:
        return {"rounds": rounds, "cpu_ms": round(cpu * 1e3, 3), "wall_ms": round(wall * 1e3, 3)}
    along = np.append(src, dst[-1])  # of a path: the least label goes to both ends
    least = int(along.argmin())
    needed = max(least, len(along) - 1 - least) + 1
    times = 1e3 * needed / rounds
    return {
        "rounds": needed,
        "reckoned_from": rounds,
        "cpu_ms": round(cpu * times, 1),
        "wall_ms": round(wall * times, 1),
    }


def work(src: Ints, dst: Ints) -> dict[str, Any]:
    """What the loop does for a load in each way, and for a change of one second."""
    figures: dict[str, Any] = {}
    seconds, edges_of_second = scale("seconds", 20), -(-len(src) // DAY)
    for name, way in WORK.items():
        graph = MovingGraph(src, dst)
        warmed(components_program(way), graph)
        with components_program(way).run() as run:
            graph.load(run)
            figures[name] = of_rounds(run, LOOP)
            if name == "prioritised":
                changes = []
                for _ in range(seconds):
                    epochs = len(run.rounds(LOOP).epochs)
                    graph.move(run, edges_of_second)
                    if len(run.rounds(LOOP).epochs) > epochs:  # otherwise there was nothing to do
                        changes.append(of_rounds(run, LOOP))
                figures["one_second"] = {
                    what: round(sum(each[what] for each in changes) / seconds, 3)
                    for what in ("touched", "messages", "ms")
                } | {"edges": edges_of_second}
            check_components(run, *graph.ends)
        del figures[name]["by_round"]
    return figures


def main() -> dict[str, Any]:
    loads, singles, moved = scale("loads", 3), scale("singles", 200), scale("moved", 1000)
    many, slow = scale("many", 5), scale("slow_singles", 5)
    most = scale("scratch_rounds", 3_000)
    found: dict[str, dict[str, Any]] = {}
    asked, ratios = {}, {}
    for name, src, dst in graphs():
        ours = kept(None, src, dst, loads, singles, moved, many)
        figures = found[name] = {"edges": len(src), "arrays": ours}
        figures["numpy"] = scratch = from_scratch(src, dst, most)
        load, one = ours["load"]["cpu_ms"], ours["one_edge"]
        ratios[f"{name}_numpy_load"] = ratio(scratch["cpu_ms"], load)
        ratios[f"{name}_numpy_one_edge"] = ratio(scratch["cpu_ms"], one["cpu_ms"])
        if name != SHORT:
            asked[f"{name}_slower_than_numpy"] = at_most(ratio(load, scratch["cpu_ms"]), 4)
        if name in ONE_EDGE:
            asked[f"{name}_one_edge_ms"] = at_most(one["cpu_ms"], ONE_EDGE[name])
        if name == "random":
            asked["random_many_edges_ms"] = at_most(ours["many_edges"]["cpu_ms"], 30)
        if name == LONG:
            continue
        before = figures["differential"] = kept(True, src, dst, 1, slow, moved, 1)
        for what in ("load", "one_edge", "many_edges"):
            ratios[f"{name}_differential_{what}"] = ratio(
                before[what]["cpu_ms"], ours[what]["cpu_ms"]
            )
        figures["work"] = work(src, dst)
    for name, least in ((ROADS, 20), ("random", 1.5)):
        if name in found:
            faster = ratios[f"{name}_differential_load"]
            asked[f"{name}_load_faster_than_differential"] = at_least(faster, least)
    return {
        "moved": moved,
        **found,
        "granted": granted(),
        "asked": asked,
        "peers": {
            "numpy": {"version": version("numpy")},
            "differential_dataflow": {"skipped": "no program for it here"},
            **missing(GRAPHS),
        },
        "ratios": ratios,
    }
