"""A keyed count of words with Spark Structured Streaming, by `--mode`, on two cores; durable, as every query is.

`count` is Spark's own aggregation, in the JVM, `apply` is applyInPandasWithState, `row` and `pandas` are
transformWithState in Python. Words come from Parquet files, one a batch; `--used` batches are fed, of which
the first tenth (at least one) is not in the figures. The sink takes results and forgets them; counts are
checked in a short run of their own, so that collecting them is not part of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from local_spark import STATE, session

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="count", choices=["count", "apply", "row", "pandas"])
parser.add_argument("--used", type=int, default=0, help="batches to feed; 0 for all")
for option, size in {"words": 5_000_000, "distinct": 100_000, "batches": 50}.items():
    parser.add_argument(f"--{option}", type=int, default=size)
options = parser.parse_args()
SCHEMA = "key string, count long"


def count_frames(key, frames, state):
    count = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
    state.update((count,))
    yield pd.DataFrame({"key": [key[0]], "count": [count]})


def counting(words):
    grouped = words.groupBy("key")
    if options.mode == "count":
        return grouped.count()
    if options.mode == "apply":
        return grouped.applyInPandasWithState(
            count_frames, SCHEMA, "count long", "update", "NoTimeout"
        )
    from spark_states import CountFrames, CountRows

    if options.mode == "row":
        return grouped.transformWithState(CountRows(), SCHEMA, "Update", "None")
    return grouped.transformWithStateInPandas(CountFrames(), SCHEMA, "Update", "None")


def run(spark, folder: Path, files: str, take) -> list[dict]:
    """What Spark says of each batch."""
    source = spark.readStream.schema("key string").option("maxFilesPerTrigger", 1)
    query = (
        counting(source.parquet(str(folder / files)))
        .writeStream.outputMode("update")
        .foreachBatch(take)
        .option("checkpointLocation", tempfile.mkdtemp(dir=folder))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [each for each in query.recentProgress if each["numInputRows"]]


weights = 1 / np.arange(1, options.distinct + 1)
numbers = np.random.default_rng(0).choice(
    options.distinct, options.words, p=weights / weights.sum()
)
texts = np.array([f"w{number}" for number in range(options.distinct)], dtype=object)
parts = np.array_split(numbers, options.batches)
used = parts[: options.used or None]
few = [parts[0][:1000], parts[0][1000:2000]]
counts: dict[str, int] = {}
folder = Path(tempfile.mkdtemp(prefix="riverrun-bench-"))
try:
    for files, listed in {"all": used, "few": few}.items():
        (folder / files).mkdir()
        for at, part in enumerate(listed):
            file = folder / files / f"{at:04}.parquet"
            pq.write_table(pa.table({"key": texts[part].tolist()}), file)
            os.utime(file, (at, at))  # read in this order
    provider = "HDFSBacked" if options.mode == "count" else "RocksDB"
    spark = session(
        spark_sql_streaming_stateStore_providerClass=f"{STATE}.{provider}StateStoreProvider"
    )
    run(spark, folder, "few", lambda frame, _: counts.update(map(tuple, frame.collect())))
    expected = np.bincount(parts[0][:2000], minlength=options.distinct)
    assert all(counts.get(text, 0) == count for text, count in zip(texts, expected, strict=True))
    progress = run(
        spark,
        folder,
        "all",
        lambda frame, _: frame.write.format("noop").mode("overwrite").save(),
    )
    spark.stop()
finally:
    shutil.rmtree(folder)
warm = max(len(progress) // 10, 1) if len(progress) > 1 else 0
taken = [each["durationMs"]["triggerExecution"] / 1e3 for each in progress[warm:]]
words = sum(each["numInputRows"] for each in progress[warm:])
print(
    json.dumps(
        {
            "version": f"pyspark {pyspark.__version__}",
            "batches": len(taken),
            "batch_s": round(float(np.median(taken)), 2),
            "words_per_s": round(words / sum(taken)),
        }
    )
)
