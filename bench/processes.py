"""Workers in one thread beside the same number of processes: the gain of a second core, and the cost of messages.

Three loads: a keyed count of Arrow strings, which is quick in itself, so that the way to the workers shows; components
of a random graph, a loop with many small messages; and a Python function on each row, at which one process is worst.
Each load is done by one worker and by `workers` workers in this process, and by as many processes. Starting has a
figure of its own. No run is durable here.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import riverrun as rr
from bench.components import program as components
from bench.components import random_graph
from bench.measure import ratio, scale

Load = list[dict[str, pa.Table]]
"""Of each epoch, the rows by input."""
PLACES: dict[str, dict[str, Any]] = {"one": {}, "thread": {}, "processes": {"on": "processes"}}


def main() -> dict[str, Any]:
    workers, repeats = scale("workers", 2), scale("repeats", 3)
    loads = {"counts": counts(), "components": graph(), "python": python_rows()}
    lines: dict[str, Any] = {"workers": workers}
    for name, (flow, output, load) in loads.items():
        spent: dict[str, list[float]] = {place: [] for place in PLACES}
        started: list[float] = []
        expected: Any = None
        for _ in range(repeats):  # in turns, so that a change of the machine's speed hits all alike
            for place, options in PLACES.items():
                number = 1 if place == "one" else workers
                begun, took, rows = work(flow, output, load, workers=number, **options)
                spent[place].append(took)
                expected = expected or rows
                assert rows == expected, (name, place)
                if place == "processes":
                    started.append(begun)
        median = {place: float(np.median(taken)) for place, taken in spent.items()}
        lines[name] = {
            **{f"{place}_s": round(taken, 3) for place, taken in median.items()},
            "start_s": round(float(np.median(started)), 2),
            "ratios": {
                "over_one_worker": ratio(median["one"], median["processes"]),
                "over_as_many_in_a_thread": ratio(median["thread"], median["processes"]),
            },
        }
    return lines


def work(
    flow: rr.Dataflow, output: str, load: Load, **options: Any
) -> tuple[float, float, list[Any]]:
    """Seconds until the run is there, seconds for all epochs but the first, which warms it up, and the result."""
    start = time.perf_counter()
    with flow.run(**options) as run:
        begun = time.perf_counter() - start
        for number, epoch in enumerate(load):
            if number == 1:
                start = time.perf_counter()
            for name, rows in epoch.items():
                run.insert(name, rows)
            run.commit()
        took = time.perf_counter() - start
        return begun, took, run.read(output).rows()


def counts() -> tuple[rr.Dataflow, str, Load]:
    words, distinct, batches = scale("words", 2e6), scale("distinct", 50_000), 20
    numbers = np.random.default_rng(0).integers(0, distinct, words)
    texts = np.array([f"w{number}" for number in range(distinct)], dtype=object)
    flow = rr.Dataflow("counts")
    flow.output("out", flow.input("words", {"word": pl.String}).group_by("word").count())
    parts = np.array_split(numbers, batches)
    return flow, "out", [{"words": pa.table({"word": pa.array(texts[part])})} for part in parts]


def graph() -> tuple[rr.Dataflow, str, Load]:
    nodes, edges, batches = scale("nodes", 1e5), scale("edges", 2e5), 5
    _, src, dst = random_graph(nodes, edges)
    load: Load = [{"nodes": pa.table({"node": np.arange(nodes)})}]
    parts = np.array_split(np.arange(edges), batches)
    load += [{"edges": pa.table({"src": src[part], "dst": dst[part]})} for part in parts]
    return components(False), "components", load


def python_rows() -> tuple[rr.Dataflow, str, Load]:
    rows, batches = scale("python_rows", 2e5), 10

    def spell(row: Any) -> Any:
        return [{"digits": sum(map(int, str(row["n"] ** 7)))}]

    flow = rr.Dataflow("python")
    spelled = flow.input("numbers", {"n": pl.Int64}).flat_map(spell, {"digits": pl.Int64})
    flow.output("out", spelled.group_by("digits").count())
    parts = np.array_split(np.arange(rows), batches)
    return flow, "out", [{"numbers": pa.table({"n": part})} for part in parts]
