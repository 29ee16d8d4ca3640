"""Ten thousand epochs of one row each: latency and memory of the first thousand and of the last.

A keyed count of a thousand keys. Figures that do not grow with the number of epochs are flat.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import riverrun as rr
from bench.measure import at_most, ratio, resident_bytes, scale

KEYS = 1000


def main() -> dict[str, Any]:
    epochs = scale("epochs", 10_000)
    tenth = max(epochs // 10, 1)
    flow = rr.Dataflow("epochs")
    rows = flow.input("rows", {"key": pl.Int64})
    flow.output("counts", rows.group_by("key").count())
    run = flow.run()
    keys = np.r_[np.arange(KEYS), np.random.default_rng(0).integers(0, KEYS, epochs)]
    tables = [pa.table({"key": keys[at : at + 1]}) for at in range(len(keys))]
    # The keys are all there before anything is measured: what grows then is not the result.
    run.insert("rows", pa.concat_tables(tables[:KEYS]))
    run.commit()
    taken, resident = np.empty(epochs), np.empty(epochs)
    for at, table in enumerate(tables[KEYS:]):
        start = time.perf_counter()
        run.insert("rows", table)
        run.commit()
        taken[at] = time.perf_counter() - start
        resident[at] = resident_bytes()
    counts = dict(run.read("counts").rows())
    assert counts == dict(enumerate(np.bincount(keys).tolist()))
    state_rows = sum(state["rows"] for state in run.status()["states"].values())
    run.close()

    def summary(some: slice) -> dict[str, float]:
        return {
            "us_p50": round(float(np.median(taken[some])) * 1e6, 1),
            "us_p99": round(float(np.percentile(taken[some], 99)) * 1e6, 1),
            "resident_MB": round(float(np.median(resident[some])) / 1e6, 1),
        }

    first, last = summary(slice(0, tenth)), summary(slice(epochs - tenth, epochs))
    slower = round(last["us_p50"] / first["us_p50"], 2)
    larger = round(last["resident_MB"] / first["resident_MB"], 3)
    return {
        "epochs": epochs,
        "first": first,
        "last": last,
        "ms_max": round(float(taken.max()) * 1e3, 2),
        "state_rows": state_rows,
        "asked": {"slower": at_most(slower, 1.2), "larger": at_most(larger, 1.05)},
        "peers": {},
        "ratios": {"first_to_last": ratio(first["us_p50"], last["us_p50"])},
    }
