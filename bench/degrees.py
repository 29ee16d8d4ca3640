"""Out-degrees of a graph of 50 million edges: batches of 100,000 changes, half deletes, and single changes.

The peers keep no versions and count dense integers only (NumPy), or rebuild the counts with each batch
(Polars). Reading the result is not part of a change.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import riverrun as rr
from bench.measure import at_least, at_most, peak_resident_bytes, ratio, scale, seconds, version

LOADED = 5_000_000  # edges in an epoch of the load
POLARS_BATCHES = 3


def main() -> dict[str, Any]:
    nodes, edges = scale("nodes", 10e6), scale("edges", 50e6)
    batches, half = scale("batches", 20), scale("changes", 100_000) // 2
    singles = scale("singles", 1000)
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, nodes, edges), rng.integers(0, nodes, edges)
    flow = rr.Dataflow("degrees")
    links = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    flow.output("degrees", links.group_by(node="src").count("degree"))
    with flow.run() as warm:
        change(warm, np.arange(100), np.arange(100), np.arange(0), np.arange(0))
        change(warm, np.arange(50), np.arange(50), np.arange(50, 100), np.arange(50, 100))
    run = flow.run()
    loading = 0.0
    nothing = np.empty(0, np.int64)
    for first in range(0, edges, LOADED):
        some = slice(first, first + LOADED)
        loading += change(run, nothing, nothing, src[some].copy(), dst[some].copy())

    counts = np.bincount(src, minlength=nodes)
    frame = pl.DataFrame({"node": np.arange(nodes), "degree": counts.copy()})
    taken: dict[str, list[float]] = {"ours": [], "numpy": [], "polars": []}
    for number in range(batches):
        places = rng.choice(edges, half, replace=False)
        old = src[places], dst[places]
        new = rng.integers(0, nodes, half), rng.integers(0, nodes, half)
        src[places], dst[places] = new
        taken["ours"].append(change(run, *old, *new))

        def with_numpy(gone: Any = old[0], come: Any = new[0]) -> None:
            np.subtract.at(counts, gone, 1)
            np.add.at(counts, come, 1)

        def with_polars(gone: Any = old[0], come: Any = new[0]) -> None:
            nonlocal frame
            changed = pl.DataFrame(
                {"node": np.r_[gone, come], "degree": np.repeat([-1, 1], len(gone))}
            )
            frame = pl.concat([frame, changed]).group_by("node").agg(pl.col("degree").sum())

        taken["numpy"].append(seconds(with_numpy, 1))
        if number < POLARS_BATCHES:
            taken["polars"].append(seconds(with_polars, 1))
    single = []
    for place in range(singles // 2):  # one comes, and goes again
        row = src[[place % edges]], dst[[place % edges]]
        single.append(change(run, nothing, nothing, *row))
        single.append(change(run, *row, nothing, nothing))
    result = run.read("degrees").to_arrow()
    degrees = np.zeros(nodes, np.int64)
    degrees[result["node"].to_numpy()] = result["degree"].to_numpy()
    assert np.array_equal(degrees, counts)
    run.close()
    speed = {name: 2 * half / float(np.median(each)) for name, each in taken.items() if each}
    single_us = round(float(np.median(single)) * 1e6, 1)
    return {
        "nodes": nodes,
        "edges": edges,
        "load_edges_per_s": round(edges / loading),
        "changes_per_s": round(speed["ours"]),
        "batch_ms_max": round(max(taken["ours"]) * 1e3, 1),
        "single_us": single_us,
        "single_us_p99": round(float(np.percentile(single, 99)) * 1e6, 1),
        "peak_resident_MB": round(peak_resident_bytes() / 1e6),
        "asked": {
            "changes_per_s": at_least(round(speed["ours"]), 1_000_000),
            "single_us": at_most(single_us, 500),
        },
        "peers": {
            name: {"version": version(name), "changes_per_s": round(speed[name])}
            for name in ("numpy", "polars")
        },
        "ratios": {name: ratio(speed["ours"], speed[name]) for name in ("numpy", "polars")},
    }


def change(run: rr.Run, gone_src: Any, gone_dst: Any, src: Any, dst: Any) -> float:
    """Seconds that a commit takes."""
    gone, come = pa.table({"src": gone_src, "dst": gone_dst}), pa.table({"src": src, "dst": dst})
    start = time.perf_counter()
    run.delete("edges", gone)
    run.insert("edges", come)
    run.commit()
    return time.perf_counter() - start
