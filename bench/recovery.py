"""A worker is killed (-9) with a gigabyte of state on it: seconds until answers are right again; on Spark.

A table with a key, and per 1,000 keys the number of rows and the sum of values, are kept by workers that checkpoint.
Then batches are committed, workers are killed, and a further batch is committed and waited for: from the kill to its
result, which is compared with NumPy. In m-n, m workers are lost, and n workers restore their state (a gigabyte in all):
with "replace" the workers that are started in their place, with "spread" the survivors, at once. The time includes the
replay of the log from the checkpoint on.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import riverrun as rr
from bench.measure import at_most, scale
from bench.sessions import session
from bench.upserts import LOAD, ROW

BUCKET = 1000
BATCH = 100_000
# workers, of which so many are lost, and what becomes of their shards
CASES = {
    "1-1": (2, 1, "replace"),
    "1-2": (3, 1, "spread"),
    "2-1": (3, 2, "spread"),
    "2-2": (3, 2, "replace"),
}


def main() -> dict[str, Any]:
    lost, repeats = scale("lost", 1 << 30), scale("repeats", 3)
    cases = os.environ.get("BENCH_CASES", ",".join(CASES)).split(",")
    by_case = {}
    with session(3, "1g") as spark:
        for case in cases:
            workers, killed, recovery = CASES[case]
            rows = lost // ROW * workers // killed
            by_case[case] = ours(spark, rows, workers, killed, recovery, repeats)
    return {
        "lost_bytes": lost,
        "seconds": {case: each["seconds"] for case, each in by_case.items()},
        "cases": by_case,
        "asked": {
            case: at_most(each["seconds"], 5) for case, each in by_case.items() if case == "1-1"
        },
    }


def program() -> rr.Dataflow:
    flow = rr.Dataflow("recovery")
    table = flow.input("table", {"key": pl.Int64, "value": pl.Int64}, key="key")
    flow.output("table", table)
    buckets = table.select(bucket=pl.col("key") // BUCKET, value="value")
    flow.output("buckets", buckets.group_by("bucket").agg(rows=rr.count(), total=rr.sum("value")))
    return flow


def ours(
    on: Any, rows: int, workers: int, killed: int, recovery: str, repeats: int
) -> dict[str, Any]:
    rng, values = np.random.default_rng(0), np.arange(rows)
    taken, stages = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        program().run(
            on=on, workers=workers, checkpoint=folder, every=timedelta(seconds=10),
            recovery=recovery, timeout=120,
        ) as run,
    ):  # fmt: skip

        def commit(wait: bool = True) -> None:
            keys = rng.choice(rows, BATCH, replace=False)
            values[keys] = rng.integers(0, 1 << 30, BATCH)
            run.upsert("table", pa.table({"key": keys, "value": values[keys]}))
            run.commit(wait=wait)

        for start in range(0, rows, LOAD):
            keys = np.arange(start, min(start + LOAD, rows))
            run.upsert("table", pa.table({"key": keys, "value": keys}))
            run.commit()
        run.checkpoint()
        for _ in range(repeats):
            for _ in range(5):
                commit()
            run.checkpoint()
            for _ in range(10):  # what the log has since
                commit(wait=False)
            while run.status()["becoming"] is not None or run.status()["workers"] < workers:
                commit()
            victims = run.status()["processes"][:killed]
            start = time.perf_counter()
            for victim in victims:
                os.kill(victim["pid"], signal.SIGKILL)
            commit()
            buckets = run.read("buckets").to_polars().sort("bucket")
            taken.append(time.perf_counter() - start)
            starts = np.arange(0, rows, BUCKET)
            assert buckets["total"].to_list() == np.add.reduceat(values, starts).tolist()
            stages.append(run.events("recovered")[-1]["seconds"])
    return {
        "seconds": round(statistics.median(taken), 2),
        "all": [round(each, 2) for each in taken],
        "back_at_the_log_s": [round(each, 2) for each in stages],
        "workers": workers,
        "recovery": recovery,
        "state_rows": rows,
    }
