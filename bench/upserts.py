"""Upserts by key, durable: int64 keys and values in batches of 100,000, on Spark, two workers, checkpoints and log on.

A table with a key is loaded until its state has so many bytes (a row is 16: its hash, which is the key, and its
value), and a checkpoint of it is made. Then batches of random keys replace rows, each batch an epoch of its own that is
in the log before it counts, with a checkpoint every 10 seconds. The speed is over whole seconds, from the first insert
to the last result, checkpoints included. Write amplification is the number of bytes that all processes wrote to disk
(as the kernel counts them), divided by the bytes of the rows. A few keys are read at the end, and compared.

Beside it, with the smaller state: Redis with and without its append-only file (pipelined MSET from Python), RocksDB
from Python with its log, a Python dict, and Spark's own state in Python (applyInPandasWithState).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import riverrun as rr
from bench import redis_server
from bench.apart import run_apart
from bench.measure import at_least, installed, ratio, scale
from bench.peers import DictStore, RocksStore
from bench.sessions import session

WORKERS = 2
ROW = 16
LOAD = 4_000_000
PEER_SECONDS = 5


def main() -> dict[str, Any]:
    batch, span = scale("batch", 100_000), scale("seconds", 30)
    sizes = {"small": scale("small", 100e6), "large": scale("large", 4e9)}
    by_kind: dict[str, dict[str, Any]] = {}
    with session(WORKERS, "1g") as spark:
        for kind, size in sizes.items():
            by_kind[kind] = ours(spark, size // ROW, batch, span)
    fast, peers = by_kind["small"]["upserts_per_s"], beside(sizes["small"] // ROW, batch)
    return {
        "batch": batch,
        "workers": WORKERS,
        **by_kind,
        "peers": peers,
        "ratios": {
            name: ratio(fast, peer["upserts_per_s"])
            for name, peer in peers.items()
            if "upserts_per_s" in peer
        },
        "asked": {
            "small_per_s": at_least(by_kind["small"]["upserts_per_s"], 1_000_000),
            "large_per_s": at_least(by_kind["large"]["upserts_per_s"], 1_000_000),
            "large_to_small": at_least(
                ratio(by_kind["large"]["upserts_per_s"], by_kind["small"]["upserts_per_s"]), 0.7
            ),
        },
    }


def beside(rows: int, batch: int) -> dict[str, dict[str, Any]]:
    """The peers with the smaller state, each for some seconds."""
    peers: dict[str, dict[str, Any]] = {}

    def measure(name: str, version: str, upsert: Callable[[Any, Any], None]) -> None:
        rng, count, began = np.random.default_rng(0), 0, time.perf_counter()
        spent = 0.0
        while time.perf_counter() - began < PEER_SECONDS:
            keys = rng.integers(0, rows, batch)
            start = time.perf_counter()
            upsert(keys, keys + count)
            spent += time.perf_counter() - start
            count += 1
        peers[name] = {"version": version, "upserts_per_s": round(count * batch / spent)}

    for name, append_only in (("redis", False), ("redis_append_only", True)):
        if not redis_server.installed():
            peers[name] = {"skipped": "not installed: redis-server"}
            continue
        with redis_server.Redis(append_only=append_only) as redis:
            for start in range(0, rows, batch):
                keys = np.arange(start, min(start + batch, rows))
                redis.upsert(keys, keys)
            measure(name, redis.version, redis.upsert)
    if installed("rocksdict"):
        with tempfile.TemporaryDirectory() as folder:
            rocks = RocksStore(rows, folder, logged=True)
            measure("rocksdb", rocks.version, rocks.upsert)
    else:
        peers["rocksdb"] = {"skipped": "not installed: rocksdict"}
    cells = DictStore(rows)
    measure("dict", cells.version, cells.upsert)
    peers["spark_apply_in_pandas_with_state"] = run_apart("spark_upserts", "pyspark", rows=rows)
    return peers


def program() -> rr.Dataflow:
    flow = rr.Dataflow("upserts")
    table = flow.input("table", {"key": pl.Int64, "value": pl.Int64}, key="key")
    flow.output("table", table)
    return flow


def ours(on: Any, rows: int, batch: int, span: float) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    every = timedelta(seconds=10)
    with (
        tempfile.TemporaryDirectory() as folder,
        program().run(on=on, workers=WORKERS, checkpoint=folder, every=every) as run,
    ):
        for start in range(0, rows, LOAD):
            keys = np.arange(start, min(start + LOAD, rows))
            run.upsert("table", pa.table({"key": keys, "value": keys}))
            run.commit()
        started = time.perf_counter()
        run.checkpoint()
        saved = time.perf_counter() - started
        tables = []
        for at in range(64):
            keys = rng.integers(0, rows, batch)
            tables.append(pa.table({"key": keys, "value": keys + rows * (at + 1)}))
        for table in tables[:5]:
            run.upsert("table", table)
            run.commit()
        pids = [process["pid"] for process in run.status()["processes"]]
        before, count, times = written(pids), 0, []
        began = time.perf_counter()
        while time.perf_counter() - began < span:
            at = time.perf_counter()
            run.upsert("table", tables[count % len(tables)])
            last = run.commit(wait=False)
            times.append(time.perf_counter() - at)
            count += 1
        last.wait()
        spent = time.perf_counter() - began
        wrote = written(pids) - before
        status = run.status()
        checkpoints = len(run.events("checkpoint"))
    return {
        "state_bytes": rows * ROW,
        "kept_bytes": sum(state["bytes"] for state in status["states"].values()),
        "rows": rows,
        "upserts_per_s": round(count * batch / spent),
        "batches": count,
        "checkpoints": checkpoints,
        "checkpoint_of_all_s": round(saved, 2),
        "slowest_batches_s": [round(taken, 2) for taken in sorted(times)[-3:]],
        "write_amplification": ratio(wrote, count * batch * ROW),
    }


def written(pids: list[int]) -> int:
    """Bytes that processes have written to disk so far, this one included."""
    total = 0
    for pid in [*map(str, pids), "self"]:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        total += int(next(line for line in lines if line.startswith("write_bytes")).split()[1])
    return total
