"""Appending batches of 100,000 changes, and single rows, to a state of 50 million, merging included."""

from __future__ import annotations

import gc
import time
from typing import Any

import numpy as np
import pyarrow as pa

from bench.lookup import loaded
from bench.measure import scale
from bench.peers import each_store
from riverrun.progress import Antichain

UPSERTS = 50_000  # an upsert is two changes: the old value goes, the new one comes


def ours(rows: int, batches: int, rng: np.random.Generator) -> dict[str, Any]:
    spine = loaded(rows)
    # Python's collector walks every object of the process now and then, some 40 ms with Numba loaded. A long-lived
    # worker freezes what it starts with, and so do we; what a walk would have cost is in the figures.
    start = time.perf_counter()
    gc.collect()
    collection = time.perf_counter() - start
    gc.freeze()
    values = np.arange(rows) * 2
    epoch = next(iter(spine.since))[0]

    def upsert(keys: Any, fresh: Any) -> float:
        nonlocal epoch
        epoch += 1
        table = pa.table({"k": np.r_[keys, keys], "v": np.r_[values[keys], fresh]})
        diffs = np.repeat(np.array([-1, 1]), len(keys))
        values[keys] = fresh
        start = time.perf_counter()
        spine.insert(table, (epoch,), diffs)
        spine.advance_since(Antichain([(epoch,)]))
        return time.perf_counter() - start

    taken, changes = [], 0
    for _ in range(batches):
        keys = np.unique(rng.integers(0, rows, UPSERTS))
        taken.append(upsert(keys, rng.integers(0, 1 << 60, len(keys))))
        changes += 2 * len(keys)
    single, under_way = [], 0
    for key in rng.integers(0, rows, 20_000):
        under_way += spine.merging
        single.append(upsert(np.array([key]), np.array([key])))
    sample = rng.integers(0, rows, 100_000)
    read = spine.lookup(sample, (epoch,)).column("v").to_numpy()
    assert np.array_equal(read, values[sample])
    return {
        "changes_per_s": round(changes / sum(taken)),
        "upserts_per_s": round(changes / sum(taken) / 2),
        "batch_ms_p50": round(float(np.median(taken)) * 1e3, 2),
        "batch_ms_max": round(max(taken) * 1e3, 2),
        "single_us_p50": round(float(np.median(single)) * 1e6, 1),
        "single_us_p99": round(float(np.percentile(single, 99)) * 1e6, 1),
        "single_ms_max": round(max(single) * 1e3, 2),
        "singles_with_merges_under_way": under_way,
        "full_collection_ms": round(collection * 1e3, 1),
    }


def main() -> dict[str, Any]:
    rows, slow_rows = scale("rows", 50e6), scale("slow_rows", 50e6)
    rng = np.random.default_rng(2)
    figures = ours(rows, scale("batches", 400), rng)
    peers, ratios = {}, {}
    for name, store in each_store(rows, slow_rows):
        spent, upserts = 0.0, 0
        for _ in range(3 if name == "polars" else 10):
            keys = np.unique(rng.integers(0, store.rows, UPSERTS))
            start = time.perf_counter()
            store.upsert(keys, keys + 1)
            spent += time.perf_counter() - start
            upserts += len(keys)
        rate = upserts / spent
        peers[name] = {"version": store.version, "rows": store.rows, "upserts_per_s": round(rate)}
        ratios[name] = round(figures["upserts_per_s"] / rate, 2)
    return {"rows": rows, **figures, "peers": peers, "ratios": ratios}
