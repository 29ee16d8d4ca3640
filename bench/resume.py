"""Resuming from a checkpoint of 4 GB, on Spark, with two workers and a memory budget: seconds to the first answer.

A run makes the state (a table with a key, 16 bytes a row) and is closed. Then another run is started at the path, in the
same Spark session: from the call of `run` to the first answer, one batch of changes committed and seen. `memory` is how
much state each worker may keep in memory; the most that a worker had of its own (not of mapped files) is measured. The
files are in the page cache of this machine as far as it has room.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.measure import at_most, scale
from bench.sessions import session
from bench.upserts import LOAD, ROW, WORKERS, program

BATCH = 1000


def main() -> dict[str, Any]:
    rows, budget = scale("state", 4e9) // ROW, scale("budget", 512 << 20)
    with session(WORKERS, "1g") as spark, tempfile.TemporaryDirectory() as folder:
        with program().run(on=spark, workers=WORKERS, checkpoint=folder, every=None) as run:
            for start in range(0, rows, LOAD):
                keys = np.arange(start, min(start + LOAD, rows))
                run.upsert("table", pa.table({"key": keys, "value": keys}))
                run.commit()
            run.checkpoint()
        size = sum(path.stat().st_size for path in Path(folder, "blocks").iterdir())
        keys = np.random.default_rng(0).choice(rows, BATCH, replace=False)
        start_ = time.perf_counter()
        with program().run(
            on=spark, workers=WORKERS, checkpoint=folder, every=None, memory=budget, timeout=120
        ) as run:
            there = time.perf_counter() - start_
            run.upsert("table", pa.table({"key": keys, "value": keys + rows}))
            run.commit()
            changed = run.changes("table").to_polars()
            spent = time.perf_counter() - start_
            assert changed.height == 2 * BATCH
            assert sorted(changed.filter(diff=-1)["value"]) == sorted(keys.tolist())
            own = [anonymous(process["pid"]) for process in run.status()["processes"]]
    return {
        "state_bytes": rows * ROW,
        "file_bytes": size,
        "workers": WORKERS,
        "seconds": round(spent, 2),
        "workers_ready_s": round(there, 2),
        "budget_bytes": budget,
        "most_own_memory_bytes": max(own),
        "asked": {"seconds": at_most(round(spent, 2), 10)},
    }


def anonymous(pid: int) -> int:
    """Memory of a process that is its own: neither shared nor mapped from files."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Anonymous")).split()[1]) * 1024
