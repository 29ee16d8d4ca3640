"""The cost of checkpoints, on Spark, two workers: upserts with none, with incremental ones, and stopping the world.

Batches of 100,000 upserts (int64 key and value) go into a table that has been loaded, for so many seconds in each of
four ways, in turns: without a path; with the log alone; with the log and a checkpoint every few seconds, written in the
background; and with the log, where the feeder waits until each checkpoint is whole ("stop the world"; the same
increments, not the whole state). Throughput is over all batches, which are not waited for one by one; then one-row
epochs are waited for, and their latencies measured, with checkpoints of the state going on.
"""

from __future__ import annotations

import tempfile
import time
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from bench.measure import at_least, at_most, ratio, scale
from bench.sessions import session
from bench.upserts import LOAD, ROW, WORKERS, program

WAYS = ("none", "log", "checkpoints", "stop_the_world")


def main() -> dict[str, Any]:
    rows = scale("state", 400e6) // ROW
    span, repeats, batch = scale("seconds", 10), scale("repeats", 3), scale("batch", 100_000)
    every = scale("every", 4)
    speed: dict[str, list[float]] = {way: [] for way in WAYS}
    late: dict[str, list[float]] = {way: [] for way in WAYS}
    with session(WORKERS, "1g") as spark:
        for _ in range(repeats):
            for way in WAYS:
                rate, waits = ours(spark, way, rows, batch, span, every)
                speed[way].append(rate)
                late[way] += waits
    per_s = {way: round(float(np.median(each))) for way, each in speed.items()}
    p99 = {way: round(float(np.percentile(each, 99)) * 1e3, 2) for way, each in late.items()}
    p50 = {way: round(float(np.percentile(each, 50)) * 1e3, 2) for way, each in late.items()}
    return {
        "state_bytes": rows * ROW,
        "batch": batch,
        "checkpoint_every_s": every,
        "workers": WORKERS,
        "upserts_per_s": per_s,
        "all": {way: [round(each) for each in some] for way, some in speed.items()},
        "one_row_p50_ms": p50,
        "one_row_p99_ms": p99,
        "ratios": {f"{way}_to_none": ratio(per_s[way], per_s["none"]) for way in WAYS[1:]},
        "asked": {
            "checkpoints_to_log": at_least(ratio(per_s["checkpoints"], per_s["log"]), 0.95),
            "checkpoints_to_none": at_least(ratio(per_s["checkpoints"], per_s["none"]), 0.95),
            "p99_to_none": at_most(ratio(p99["checkpoints"], p99["none"]), 2),
        },
    }


def ours(
    on: Any, way: str, rows: int, batch: int, span: float, every: float
) -> tuple[float, list[float]]:
    """Upserts a second, and the latencies of one-row epochs."""
    rng = np.random.default_rng(0)
    tables = [
        pa.table({"key": rng.integers(0, rows, batch), "value": rng.integers(0, rows, batch)})
        for _ in range(32)
    ]
    step = timedelta(seconds=every) if way == "checkpoints" else None
    with tempfile.TemporaryDirectory() as folder:
        path = None if way == "none" else folder
        with program().run(on=on, workers=WORKERS, checkpoint=path, every=step) as run:
            for start in range(0, rows, LOAD):
                keys = np.arange(start, min(start + LOAD, rows))
                run.upsert("table", pa.table({"key": keys, "value": keys}))
                run.commit()
            if path is not None:
                run.checkpoint()
            for table in tables[:5]:
                run.upsert("table", table)
                run.commit()
            count, began = 0, time.perf_counter()
            due = began + every
            while time.perf_counter() - began < span:
                run.upsert("table", tables[count % len(tables)])
                last = run.commit(wait=False)
                count += 1
                if way == "stop_the_world" and time.perf_counter() > due:
                    last.wait()
                    run.checkpoint()
                    due += every
            last.wait()
            spent = time.perf_counter() - began
            waits, began, due = [], time.perf_counter(), time.perf_counter() + every
            while time.perf_counter() - began < span:
                key = int(rng.integers(0, rows))
                at = time.perf_counter()
                run.upsert("table", [(key, key)])
                run.commit()
                if way == "stop_the_world" and time.perf_counter() > due:
                    run.checkpoint()
                    due += every
                waits.append(time.perf_counter() - at)
    return count * batch / spent, waits
