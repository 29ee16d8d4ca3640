"""Lookups of 100,000 random keys, and of one, in a state of 50 million int64 keys and values."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa

from bench.measure import scale, seconds
from bench.peers import each_store
from riverrun.progress import Antichain
from riverrun.state import Schema, Spine

SCHEMA = Schema.of({"k": pa.int64()}, {"v": pa.int64()})
ASKED = 100_000


def loaded(rows: int, first_key: int = 0) -> Spine:
    """`rows` keys, each with twice itself as its value, merged into one batch."""
    spine = Spine("bench", SCHEMA)
    for epoch, start in enumerate(range(0, rows, 2_000_000)):
        keys = np.arange(start, min(start + 2_000_000, rows)) + first_key
        spine.insert(pa.table({"k": keys, "v": keys * 2}), time=(epoch,))
        spine.advance_since(Antichain([(epoch,)]))
    spine.compact()
    return spine


def ours(rows: int, rng: np.random.Generator) -> dict[str, Any]:
    spine = loaded(rows)
    now = next(iter(spine.since))
    batches = iter([rng.integers(0, rows, ASKED) for _ in range(60)])

    def look_up(keys: Any) -> Any:
        return spine.lookup(keys, now).column("v")

    checked = rng.integers(0, rows, ASKED)
    assert np.array_equal(look_up(checked).to_numpy(), checked * 2)
    rate = ASKED / seconds(lambda: look_up(next(batches)), 60)
    singles = []
    for key in rng.integers(0, rows, 5000):
        one = np.array([key])
        start = time.perf_counter()
        look_up(one)
        singles.append(time.perf_counter() - start)
    return {
        "keys_per_s": round(rate),
        "single_us_p50": round(float(np.median(singles)) * 1e6, 1),
        "single_us_p99": round(float(np.percentile(singles, 99)) * 1e6, 1),
    }


def main() -> dict[str, Any]:
    rows, slow_rows = scale("rows", 50e6), scale("slow_rows", 50e6)
    rng = np.random.default_rng(1)
    figures = ours(rows, rng)
    peers, ratios = {}, {}
    for name, store in each_store(rows, slow_rows):
        keys = rng.integers(0, store.rows, ASKED)
        store.lookup(keys)
        rate = ASKED / seconds(lambda s=store, k=keys: s.lookup(k), 3)
        peers[name] = {"version": store.version, "rows": store.rows, "keys_per_s": round(rate)}
        ratios[name] = round(figures["keys_per_s"] / rate, 1)
    return {"rows": rows, **figures, "peers": peers, "ratios": ratios}
