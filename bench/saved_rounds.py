"""A process dies in round 15 of 20 of a loop: how long until the result is there, with and without saved rounds.

Sums along random edges, by rounds, in the first epoch of a run whose checkpoints are `BENCH_EVERY_MS` apart. A process
does this and ends itself in round `BENCH_KILL`. Then the run is resumed twice, from copies of what it left: as it is,
and without the rounds that were saved, so that the loop begins at its first round. Times are from the call of `run` on
until all rounds are done; in both, the rows of the epoch are read from the log and arranged first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import riverrun as rr
from bench.measure import at_least, ratio, scale

ROUNDS = 20
REPEATS = 3
ASKED = 1.5  # times as fast: 20 rounds against the last ones


def seen(frame: pl.DataFrame) -> pl.DataFrame:
    """End this process in the round that the environment names, if it names one."""
    last = int(os.environ.get("SAVED_ROUNDS_KILL", "0"))
    if last and frame.height and frame["round"][0] >= last:
        os._exit(9)
    return frame


def program() -> rr.Dataflow:
    flow = rr.Dataflow("saved rounds")
    edges = flow.input("edges", {"src": int, "dst": int})
    start = edges.select(node="src", x=pl.lit(1.0), round=pl.lit(0, pl.Int64)).distinct()

    def step(now: rr.Collection) -> rr.Collection:
        moved = now.join(edges, left_on="node", right_on="src")
        parts = moved.select(node="dst", x=pl.col("x") * 0.17 + 0.1, round=pl.col("round") + 1)
        sums = parts.group_by("node").agg(x=rr.sum("x"), round=rr.max("round"))
        return sums.map_batches(seen, {"node": int, "x": float, "round": int})

    flow.output("sums", start.iterate(step, rounds=ROUNDS, mode="rounds", name="steps"))
    return flow


def distance() -> timedelta:
    return timedelta(milliseconds=scale("every_ms", 200))


def die(path: str) -> None:
    """What the process does that ends itself."""
    nodes, edges = scale("nodes", 50_000), scale("edges", 500_000)
    ends = np.random.default_rng(1).integers(0, nodes, (2, edges))
    with program().run(checkpoint=path, every=distance()) as run:
        run.insert("edges", pa.table({"src": ends[0], "dst": ends[1]}))
        run.commit()


def resume(path: Path, folder: str, *, saved: bool) -> tuple[float, int, float]:
    """Seconds until a copy of the run has gone on to the end, its first round, and a sum of the result."""
    copy = Path(folder) / f"copy-{saved}"
    shutil.copytree(path, copy)
    if not saved:
        shutil.rmtree(copy / "rounds", ignore_errors=True)
    begun = time.perf_counter()
    with program().run(checkpoint=copy, every=timedelta(hours=1)) as run:
        total = float(run.read("sums").to_polars().sort("node")["x"].sum())
        took = time.perf_counter() - begun
        resumed = [event["round"] for event in run.events("loop resumed")]
    shutil.rmtree(copy)
    return took, resumed[0] if resumed else 0, total


def main() -> dict[str, Any]:
    kill = scale("kill", 15)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "path"
        died = subprocess.run(
            [sys.executable, "-c", f"from bench.saved_rounds import die; die({str(path)!r})"],
            env={**os.environ, "SAVED_ROUNDS_KILL": str(kill)}, check=False,
        )  # fmt: skip
        assert died.returncode == 9, "the process was to end itself"
        times: dict[bool, list[float]] = {True: [], False: []}
        first, totals = 0, set()
        for _ in range(REPEATS):
            for saved in (True, False):
                took, at, total = resume(path, folder, saved=saved)
                times[saved].append(took)
                totals.add(total)
                first = at if saved else first
        assert len(totals) == 1, totals
    on, anew = min(times[True]), min(times[False])
    return {
        "rounds": ROUNDS,
        "killed_in": kill,
        "goes_on_in": first,
        "goes_on_s": round(on, 3),
        "from_scratch_s": round(anew, 3),
        "peers": {},
        "ratios": {"from scratch": ratio(anew, on)},
        "asked": {"going on": at_least(ratio(anew, on), ASKED)},
    }
