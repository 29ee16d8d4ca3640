"""The cost of one row: processor time of a commit of one row, of an insert, and of a read, in microseconds.

A count of a thousand keys, in this process. `one` is a run with one worker, `two` a run with two. `durable` is a run
with one worker and a checkpoint path; another thread writes its log, and the time of that thread is not counted. All
runs are alive and take turns, row by row, so that a change of the machine's speed hits all alike. The figures are
medians of the time of this thread. `insert` and `read` are those of the first run: an insert of an Arrow table, and a
`read` of all keys that looks at no row.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import riverrun as rr
from bench.measure import at_most, ratio, scale

KEYS = 1000


def counting() -> rr.Dataflow:
    flow = rr.Dataflow("commits")
    flow.output("counts", flow.input("rows", {"key": pl.Int64}).group_by("key").count())
    return flow


def main() -> dict[str, Any]:
    commits = scale("commits", 2000)
    keys = np.random.default_rng(0).integers(0, KEYS, commits)
    rows = [pa.table({"key": keys[at : at + 1]}) for at in range(commits)]
    with tempfile.TemporaryDirectory(prefix="riverrun-bench-") as folder:
        runs = {
            "one": counting().run(),
            "two": counting().run(workers=2),
            "durable": counting().run(checkpoint=folder),
        }
        spent = {name: np.empty(commits) for name in (*runs, "insert", "read")}
        for run in runs.values():
            run.insert("rows", pa.table({"key": np.arange(KEYS)}))
            run.commit()
        clock = time.thread_time
        for at, row in enumerate(rows):
            for name, run in runs.items():
                start = clock()
                run.insert("rows", row)
                middle = clock()
                run.commit()
                spent[name][at] = clock() - middle
                if name == "one":
                    spent["insert"][at] = middle - start
            start = clock()
            runs["one"].read("counts")
            spent["read"][at] = clock() - start
        expected = dict(enumerate((np.bincount(keys, minlength=KEYS) + 1).tolist()))
        for run in runs.values():
            assert dict(run.read("counts").rows()) == expected
            run.close()
    figures = {name: round(float(np.median(each)) * 1e6, 1) for name, each in spent.items()}
    return {
        "commits": commits,
        "cpu_us": figures,
        "asked": {"insert_to_commit": at_most(ratio(figures["insert"], figures["one"]), 0.2)},
        "peers": {},
        "ratios": {
            "two_to_one": ratio(figures["one"], figures["two"]),
            "durable_to_one": ratio(figures["one"], figures["durable"]),
        },
    }
