"""Lookups of 100,000 random keys, and of one, in a state of 50 million int64 keys and values."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa

from bench.measure import scale, seconds
from bench.peers import stores
from riverrun.progress import Antichain
from riverrun.state.schema import Schema
from riverrun.state.spine import Spine

SCHEMA = Schema.of({"k": pa.int64()}, {"v": pa.int64()})


def loaded(rows: int, first_key: int = 0) -> Spine:
    """`rows` keys, each with twice itself as its value, merged into one batch."""
    spine = Spine("bench", SCHEMA)
    for epoch, start in enumerate(range(0, rows, 2_000_000)):
        keys = np.arange(start, min(start + 2_000_000, rows)) + first_key
        spine.insert(pa.table({"k": keys, "v": keys * 2}), time=(epoch,))
        spine.advance_since(Antichain([(epoch,)]))
    spine.compact()
    return spine


def main() -> dict[str, Any]:
    rows, slow_rows = scale("rows", 50e6), scale("slow_rows", 10e6)
    spine = loaded(rows)
    now = next(iter(spine.since))
    rng = np.random.default_rng(1)
    batches = [rng.integers(0, rows, 100_000) for _ in range(20)]

    def look_up(keys: Any) -> Any:
        return spine.lookup(keys, now).column("v")

    checked = look_up(batches[0]).to_numpy()
    assert np.array_equal(checked, batches[0] * 2)
    each = iter(batches * 10)
    ours = 100_000 / seconds(lambda: look_up(next(each)), 60)
    singles = []
    for key in rng.integers(0, rows, 5000):
        one = np.array([key])
        start = time.perf_counter()
        look_up(one)
        singles.append(time.perf_counter() - start)
    del spine
    peers, ratios = {}, {}
    with stores(rows, slow_rows) as makers:
        for name, make in makers:
            store = make()
            keys = rng.integers(0, store.rows, 100_000)
            store.lookup(keys)
            rate = 100_000 / seconds(lambda s=store, k=keys: s.lookup(k), 3)  # type: ignore[misc]
            peers[name] = {
                "version": store.version,
                "rows": store.rows,
                "keys_per_s": round(rate),
            }
            ratios[name] = round(ours / rate, 1)
            del store
    return {
        "rows": rows,
        "keys_per_s": round(ours),
        "single_us_p50": round(float(np.median(singles)) * 1e6, 1),
        "single_us_p99": round(float(np.percentile(singles, 99)) * 1e6, 1),
        "peers": peers,
        "ratios": ratios,
    }
