"""Appending batches of 100,000 changes, and single rows, to a state of 50 million, merging included."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa

from bench.lookup import loaded
from bench.measure import scale
from bench.peers import stores
from riverrun.progress import Antichain


def main() -> dict[str, Any]:
    rows, slow_rows = scale("rows", 50e6), scale("slow_rows", 10e6)
    batches = scale("batches", 300)
    spine = loaded(rows)
    rng = np.random.default_rng(2)
    values = np.arange(rows) * 2
    epoch = next(iter(spine.since))[0]

    def append(table: pa.Table, diffs: Any) -> float:
        nonlocal epoch
        epoch += 1
        start = time.perf_counter()
        spine.insert(table, (epoch,), diffs)
        spine.advance_since(Antichain([(epoch,)]))
        return time.perf_counter() - start

    taken, changes = [], 0
    for _ in range(batches):
        # An upsert of a key is two changes: the old value goes, the new one comes.
        keys = np.unique(rng.integers(0, rows, 50_000))
        fresh = rng.integers(0, 1 << 60, len(keys))
        table = pa.table({"k": np.r_[keys, keys], "v": np.r_[values[keys], fresh]})
        diffs = np.repeat(np.array([-1, 1]), len(keys))
        values[keys] = fresh
        taken.append(append(table, diffs))
        changes += 2 * len(keys)
    one_row, under_way = [], 0
    for key in rng.integers(0, rows, 20_000):
        table = pa.table({"k": [key, key], "v": [values[key], values[key] + 1]})
        values[key] += 1
        under_way += spine.merging
        one_row.append(append(table, np.array([-1, 1])))
    sample = rng.integers(0, rows, 100_000)
    found = spine.lookup(sample, (epoch,)).column("v").to_numpy()
    assert np.array_equal(found, values[sample])
    ours = changes / sum(taken)
    del spine
    peers, ratios = {}, {}
    with stores(rows, slow_rows) as makers:
        for name, make in makers:
            store = make()
            spent, upserts = 0.0, 0
            for _ in range(3 if name == "polars" else 10):
                keys = np.unique(rng.integers(0, store.rows, 50_000))
                start = time.perf_counter()
                store.upsert(keys, keys + 1)
                spent += time.perf_counter() - start
                upserts += len(keys)
            rate = upserts / spent
            peers[name] = {
                "version": store.version,
                "rows": store.rows,
                "upserts_per_s": round(rate),
            }
            ratios[name] = round(ours / 2 / rate, 2)
            del store
    return {
        "rows": rows,
        "changes_per_s": round(ours),
        "upserts_per_s": round(ours / 2),
        "batch_ms_p50": round(float(np.median(taken)) * 1e3, 2),
        "batch_ms_max": round(max(taken) * 1e3, 2),
        "one_row_us_p50": round(float(np.median(one_row)) * 1e6, 1),
        "one_row_ms_max": round(max(one_row) * 1e3, 2),
        "one_row_appends_with_merges_under_way": under_way,
        "peers": peers,
        "ratios": ratios,
    }
