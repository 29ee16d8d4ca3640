"""A keyed count of 5 million words of a Zipf distribution in 50 batches, on Spark, with two workers.

Ours is fed Arrow strings by the driver and gives, after each batch, a result that can be read as of it: without a log,
and with one on a local disk (`checkpoint=`), written before an epoch counts, and a checkpoint every second. The time is
that of all batches, from the first insert to the last commit; the counts are checked. A few words have gone in and out
before: workers are warm.

Beside it Spark Structured Streaming on two cores, which reads Parquet files and is durable: its own aggregation over
all words, applyInPandasWithState and transformWithState in Python over a few batches, which are as large as ours.
Ratios are to ours with a log.
"""

from __future__ import annotations

import tempfile
import time
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import riverrun as rr
from bench.apart import run_apart
from bench.measure import at_least, ratio, scale
from bench.sessions import session

WORKERS = 2


def main() -> dict[str, Any]:
    words, distinct = scale("words", 5e6), scale("distinct", 100_000)
    batches, repeats = scale("batches", 50), scale("repeats", 3)
    used = scale("used", 3)
    weights = 1 / np.arange(1, distinct + 1)
    numbers = np.random.default_rng(0).choice(distinct, words, p=weights / weights.sum())
    texts = pa.array([f"w{number}" for number in range(distinct)])
    tables = [
        pa.table({"word": texts.take(pa.array(part))}) for part in np.array_split(numbers, batches)
    ]
    counted = np.bincount(numbers, minlength=distinct)
    expected = {f"w{at}": count for at, count in enumerate(counted.tolist()) if count}
    taken: dict[str, list[float]] = {"unlogged": [], "logged": []}
    with session(WORKERS, "1g") as spark:
        for _ in range(repeats):  # in turns, so that a change of the machine's speed hits all alike
            for kind, each in taken.items():
                with tempfile.TemporaryDirectory() as folder:
                    spent, counts = ours(spark, tables, folder if kind == "logged" else None)
                assert counts == expected, kind
                each.append(spent)
    speed = {kind: round(words / float(np.median(each))) for kind, each in taken.items()}
    sizes = {"words": words, "distinct": distinct, "batches": batches}
    peers = {}
    for mode, name in {
        "count": "spark_count",
        "apply": "spark_apply_in_pandas_with_state",
        "row": "spark_transform_with_state_row",
        "pandas": "spark_transform_with_state_pandas",
    }.items():
        fed = 0 if mode == "count" else used
        peers[name] = run_apart(
            "spark_words", "pyspark", "google.protobuf", mode=mode, used=fed, **sizes
        )
    ratios = {
        name: ratio(speed["logged"], peer["words_per_s"])
        for name, peer in peers.items()
        if "words_per_s" in peer
    }
    asked = {
        "words_per_s": at_least(speed["unlogged"], 3_000_000),
        "durable": at_least(ratio(speed["logged"], speed["unlogged"]), 0.8),
    }
    limits = {"spark_count": 15, "spark_apply_in_pandas_with_state": 300}
    limits |= {f"spark_transform_with_state_{mode}": 200 for mode in ("row", "pandas")}
    for name, limit in limits.items():
        if name in ratios:
            asked[f"faster_than_{name}"] = at_least(ratios[name], limit)
    return {
        **sizes,
        "workers": WORKERS,
        "words_per_s": speed["unlogged"],
        "logged_words_per_s": speed["logged"],
        "asked": asked,
        "peers": peers,
        "ratios": {"logged_to_unlogged": ratio(speed["logged"], speed["unlogged"]), **ratios},
    }


def ours(on: Any, tables: list[pa.Table], checkpoint: str | None) -> tuple[float, dict[str, int]]:
    """Seconds for all batches, and the counts."""
    flow = rr.Dataflow("words")
    words = flow.input("words", {"word": pl.String})
    flow.output("counts", words.group_by("word").count())
    few = tables[0].slice(0, 1000)
    kept = (
        None
        if checkpoint is None
        else rr.options.Checkpoint(checkpoint, every=timedelta(seconds=1))
    )
    with flow.run(on=on, workers=WORKERS, checkpoint=kept) as run:
        for change in (run.insert, run.delete):  # to be warm: these workers may be new processes
            change("words", few)
            run.commit()
        start = time.perf_counter()
        for table in tables:  # the next batch is made ready while workers are at this one
            run.insert("words", table)
            last = run.commit(wait=False)
        last.wait()
        spent = time.perf_counter() - start
        return spent, dict(run.read("counts").rows())
