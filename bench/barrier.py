"""Latency on Spark, two workers: a round that all agree on, and an epoch of one row.

A *round*: a loop in which every worker asks to be notified of every round, and nothing else happens. A worker is
notified when no other worker can send to it in that round any more, so each worker has to hear of all others. (Naiad,
figure 2, "global barrier".) Times are taken in the vertex.
An *epoch*: one row of a keyed count of a thousand keys, from `commit()` to its return, when the result can be
read; without a log, and with one on a local disk (`checkpoint=`), written before the epoch counts.

Beside it Spark Structured Streaming, one row a batch, a count for each key, durable as every query is: the time
of a whole trigger, as Spark reports it. Ratios are of medians, to ours with a log.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import riverrun as rr
from bench.apart import run_apart
from bench.measure import at_most, ratio, scale
from bench.sessions import session

WORKERS = 2
KEYS = 1000
PUBLISHED = {
    "version": "published by Spark: real-time mode, state in the JVM, other hardware",
    "ms": [104, 141],
}  # a constant, not measured here, so there is no ratio to it


class Rounds(rr.Vertex):
    """Is notified of so many rounds, and then sends how long each took, in seconds."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def start(self) -> None:
        self._at: list[float] = []

    def on_recv(self, port: str, rows: pl.DataFrame, time: Any) -> None:
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        self._at.append(_clock())
        epoch, at = time
        if at < self._rounds:
            self.notify_at((epoch, at + 1))
            return
        taken, self._at = np.diff(self._at), []
        timings = pl.DataFrame({"worker": self.worker, "round": np.arange(at), "taken": taken})
        self.send(timings, output="timings")


_clock = time.perf_counter


def rounds_of(on: Any, rounds: int) -> dict[str, float]:
    """Microseconds of a round, as the first worker sees them."""
    flow = rr.Dataflow("barrier")
    start = flow.input("start", {"n": pl.Int64})
    loop = flow.loop()
    back = loop.feedback({"n": pl.Int64})
    outputs = flow.vertex(
        partial(Rounds, rounds),
        {"start": loop.enter(start), "back": back},
        {
            "back": {"n": pl.Int64},
            "timings": {"worker": pl.Int64, "round": pl.Int64, "taken": pl.Float64},
        },
        routes={"start": rr.TO_ALL, "back": rr.TO_ALL},
    )
    back.connect(outputs["back"])
    flow.output("timings", loop.leave(outputs["timings"]))
    with flow.run(on=on, workers=WORKERS) as run:
        run.insert("start", [(0,)])
        run.commit()
        timings = pl.DataFrame(run.read("timings").to_polars())
    assert len(timings) == WORKERS * rounds
    taken = timings.filter(pl.col("worker") == 0).sort("round")["taken"].to_numpy() * 1e6
    warm = taken[len(taken) // 10 :]
    return {
        "us_p50": round(float(np.median(warm)), 1),
        "us_p99": round(float(np.percentile(warm, 99)), 1),
        "us_mean": round(float(warm.mean()), 1),
    }


def epochs_of(on: Any, epochs: int, checkpoint: str | None) -> dict[str, float]:
    """Milliseconds from commit to complete."""
    flow = rr.Dataflow("epochs")
    rows = flow.input("rows", {"key": pl.Int64})
    flow.output("counts", rows.group_by("key").count())
    warm = max(epochs // 10, 1)
    drawn = np.random.default_rng(0).integers(0, KEYS, warm + epochs)
    keys = np.r_[np.arange(KEYS), drawn]
    tables = [pa.table({"key": keys[at : at + 1]}) for at in range(KEYS, len(keys))]
    taken = []
    with flow.run(on=on, workers=WORKERS, checkpoint=checkpoint) as run:
        run.insert("rows", pa.table({"key": keys[:KEYS]}))
        run.commit()
        for table in tables:
            run.insert("rows", table)
            start = time.perf_counter()
            run.commit()
            taken.append(time.perf_counter() - start)
        counts = dict(run.read("counts").rows())
    assert counts == dict(enumerate(np.bincount(keys).tolist()))
    measured = np.array(taken[warm:]) * 1e3
    return {
        "ms_p50": round(float(np.median(measured)), 2),
        "ms_p99": round(float(np.percentile(measured, 99)), 2),
        "ms_max": round(float(measured.max()), 1),
    }


def main() -> dict[str, Any]:
    rounds, epochs = scale("rounds", 10_000), scale("epochs", 2000)
    batches = scale("batches", 30)
    with session(WORKERS, "1g") as spark, tempfile.TemporaryDirectory() as folder:
        barrier = rounds_of(spark, rounds)
        unlogged = epochs_of(spark, epochs, None)
        logged = epochs_of(spark, epochs, folder)
    peers: dict[str, Any] = {"spark_real_time_jvm": PUBLISHED}
    for mode in ("count", "row", "pandas"):
        name = {"count": "spark_count"}.get(mode, f"spark_transform_with_state_{mode}")
        peers[name] = run_apart(
            "spark_latency", "pyspark", "google.protobuf", mode=mode, batches=batches
        )
    peers["spark_real_time"] = run_apart("spark_latency", "pyspark", mode="real_time")
    return {
        "workers": WORKERS,
        "rounds": rounds,
        "epochs": epochs,
        "barrier": barrier,
        "epoch": unlogged,
        "epoch_logged": logged,
        "asked": {
            "barrier_ms_p50": at_most(round(barrier["us_p50"] / 1e3, 3), 0.5),
            "epoch_ms_p50": at_most(unlogged["ms_p50"], 3),
            "epoch_ms_p99": at_most(unlogged["ms_p99"], 25),
            "epoch_logged_ms_p50": at_most(logged["ms_p50"], 8),
        },
        "peers": peers,
        "ratios": {
            "logged_to_unlogged": ratio(unlogged["ms_p50"], logged["ms_p50"]),
        }
        | {
            name: ratio(peer["p50_ms"], logged["ms_p50"])
            for name, peer in peers.items()
            if "p50_ms" in peer
        },
    }
