"""Memory of a state of int64 keys and values, at rest, and while two batches of it merge."""

from __future__ import annotations

import tempfile
from typing import Any

import pyarrow as pa

from bench.lookup import loaded
from bench.measure import alone, resident_bytes, scale
from bench.peers import makers
from riverrun.progress import Antichain
from riverrun.state.batch import Batch
from riverrun.state.merge import Merger


def measure_ours(rows: int) -> dict[str, int]:
    """Bytes that this process grew by: at rest, and at most while two batches of `rows` rows merge."""
    loaded(10_000)  # kernels are loaded before anything is measured
    before = resident_bytes()
    spine = loaded(rows)
    pa.default_memory_pool().release_unused()
    rest = resident_bytes() - before
    (a,) = spine.view().batches
    (b,) = loaded(rows, first_key=rows).view().batches
    after = Batch(b.schema, b.blocks, a.upper, Antichain([(1 << 40,)]), a.upper)
    del spine, b
    pa.default_memory_pool().release_unused()
    merger = Merger(a, after, a.since)
    peak = 0
    while merger.remaining:
        merger.work(500_000)
        peak = max(peak, resident_bytes() - before)
    return {"rest": rest, "peak": peak, "level": 2 * rows * 16}


def measure_store(name: str, rows: int) -> dict[str, Any]:
    """Bytes that this process grew by when a peer holds `rows` rows. RocksDB has most of its own on disk."""
    with tempfile.TemporaryDirectory() as folder:
        make = dict(makers(rows, rows, folder))[name]
        make(1000)
        before = resident_bytes()
        store = make(rows)
        return {"rest": resident_bytes() - before, "version": store.version, "rows": rows}


def main() -> dict[str, Any]:
    rows, slow_rows = scale("rows", 50e6), scale("slow_rows", 50e6)
    ours = alone(f"bench.memory.measure_ours({rows})")
    rest = ours["rest"] / (rows * 16)
    peers, ratios = {}, {}
    for name in ("dict", "polars", "duckdb", "rocksdb"):
        held = alone(f"bench.memory.measure_store({name!r}, {slow_rows})")
        theirs = held["rest"] / (slow_rows * 16)
        peers[name] = {
            "version": held["version"],
            "rows": slow_rows,
            "rest_per_raw_byte": round(theirs, 2),
        }
        ratios[name] = round(theirs / rest, 2)
    return {
        "rows": rows,
        "rest_per_raw_byte": round(rest, 3),
        "peak_while_merging_per_level_byte": round(ours["peak"] / ours["level"], 3),
        "peers": peers,
        "ratios": ratios,
    }
