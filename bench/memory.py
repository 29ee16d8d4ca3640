"""Memory of a state of int64 keys and values, at rest, and while two batches of it merge."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pyarrow as pa

from bench.lookup import loaded
from bench.measure import resident_bytes, scale, version
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


def measure_dict(rows: int) -> dict[str, int]:
    before = resident_bytes()
    kept = dict(zip(range(rows), range(0, 2 * rows, 2), strict=True))
    return {"rest": resident_bytes() - before, "rows": len(kept)}


def alone(what: str, rows: int) -> dict[str, Any]:
    """Measure in a process of its own, so that nothing else is counted."""
    code = f"import json, bench.memory as m; print(json.dumps(m.measure_{what}({rows})))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> dict[str, Any]:
    rows, slow_rows = scale("rows", 50e6), scale("slow_rows", 10e6)
    ours = alone("ours", rows)
    peer = alone("dict", slow_rows)
    rest = ours["rest"] / (rows * 16)
    dict_rest = peer["rest"] / (slow_rows * 16)
    return {
        "rows": rows,
        "rest_per_raw_byte": round(rest, 3),
        "peak_while_merging_per_level_byte": round(ours["peak"] / ours["level"], 3),
        "peers": {
            "dict": {
                "version": f"python {sys.version.split()[0]}",
                "rest_per_raw_byte": round(dict_rest, 2),
            }
        },
        "ratios": {"dict": round(dict_rest / rest, 1)},
        "numpy": version("numpy"),
    }
