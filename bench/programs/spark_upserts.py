"""Upserts by key with Spark Structured Streaming and applyInPandasWithState: the last value of each key is kept.

Batches are Parquet files, one a trigger, the first of which is not in the figures. The sink takes results and forgets
them. Durable, as every query is; its state is in RocksDB.
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
from local_spark import session

parser = argparse.ArgumentParser()
for option, size in {"rows": 1_000_000, "batch": 20_000, "batches": 3}.items():
    parser.add_argument(f"--{option}", type=int, default=size)
options = parser.parse_args()


def keep_last(key, frames, state):
    for frame in frames:
        last = int(frame["value"].iloc[-1])
    state.update((last,))
    yield pd.DataFrame({"key": [key[0]], "value": [last]})


folder, rng = Path(tempfile.mkdtemp(prefix="riverrun-bench-")), np.random.default_rng(0)
try:
    (folder / "in").mkdir()
    for at in range(options.batches):
        keys = rng.integers(0, options.rows, options.batch)
        file = folder / "in" / f"{at:04}.parquet"
        pq.write_table(pa.table({"key": keys, "value": keys + at}), file)
        os.utime(file, (at, at))  # read in this order
    spark = session()
    source = spark.readStream.schema("key long, value long").option("maxFilesPerTrigger", 1)
    query = (
        source.parquet(str(folder / "in"))
        .groupBy("key")
        .applyInPandasWithState(
            keep_last, "key long, value long", "value long", "update", "NoTimeout"
        )
        .writeStream.outputMode("update")
        .foreachBatch(lambda frame, _: frame.write.format("noop").mode("overwrite").save())
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress = [each for each in query.recentProgress if each["numInputRows"]][1:]
    spark.stop()
finally:
    shutil.rmtree(folder)
taken = sum(each["durationMs"]["triggerExecution"] / 1e3 for each in progress)
rows = sum(each["numInputRows"] for each in progress)
print(
    json.dumps({"version": f"pyspark {pyspark.__version__}", "upserts_per_s": round(rows / taken)})
)
