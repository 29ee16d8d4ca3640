"""One row a batch with Spark Structured Streaming: a count for each key, by `--mode`, on two cores.

`count` is Spark's own aggregation, in the JVM; `row` and `pandas` are transformWithState in Python. The
source makes one row as soon as it is asked, so batches follow each other without a pause; figures are the
whole of a trigger as Spark reports it, without the first ones. `real_time` tries the real-time trigger.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time

import numpy as np
import pyspark
from local_spark import session
from pyspark.sql import functions

KEYS = 1000
parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="row", choices=["count", "row", "pandas", "real_time"])
parser.add_argument("--batches", type=int, default=30)
options = parser.parse_args()
WARM = 5


def summary(milliseconds: list[float]) -> dict[str, float | int | str]:
    return {
        "version": f"pyspark {pyspark.__version__}",
        "batches": len(milliseconds),
        "p50_ms": round(float(np.median(milliseconds)), 1),
        "p99_ms": round(float(np.percentile(milliseconds, 99)), 1),
    }


def counting(rows, mode: str):
    """The count for each key, as a streaming DataFrame."""
    grouped = rows.groupBy("key")
    if mode == "count":
        return grouped.count()
    from spark_states import CountFrames, CountRows

    if mode == "row":
        return grouped.transformWithState(CountRows(), "key long, count long", "Update", "None")
    return grouped.transformWithStateInPandas(
        CountFrames(), "key long, count long", "Update", "None"
    )


def triggers(spark, folder: str) -> dict:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1)
    rows = source.option("numPartitions", 1).load()
    counts = counting(rows.select((functions.col("value") % KEYS).alias("key")), options.mode)
    query = (
        counts.writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", folder)
        .start()
    )
    while query.isActive and len(query.recentProgress) < WARM + options.batches:
        time.sleep(0.2)
    if query.exception() is not None:
        raise SystemExit(str(query.exception()).splitlines()[0])
    progress = [each for each in query.recentProgress if each["numInputRows"] == 1]
    query.stop()
    return summary([each["durationMs"]["triggerExecution"] for each in progress[WARM:]])


def real_time(spark, folder: str) -> dict:
    """Which sources that Python can open, of those that come with PySpark, real-time mode takes.

    It wants Kafka, which does not come with PySpark. With a test source of the JVM, reached through py4j, a query
    without Python runs; one with a function in Python is refused, and one with state in Python fails.
    """
    refused = {}
    for source in ("rate", "rate-micro-batch", "socket"):
        source_options = (
            {"host": "127.0.0.1", "port": "9"} if source == "socket" else {"rowsPerBatch": "1"}
        )
        rows = spark.readStream.format(source).options(**source_options).load()
        writer = rows.writeStream.outputMode("update").foreach(print).trigger(realTime="5 seconds")
        try:
            query = writer.option("checkpointLocation", f"{folder}/{source}").start()
            query.awaitTermination(10)
            failed = query.exception()
            query.stop()
            if failed is None:
                return {"version": f"pyspark {pyspark.__version__}", "runs_with": source}
            refused[source] = str(failed)
        except Exception as error:
            refused[source] = str(error)
    why = {}
    for source, text in refused.items():
        _, _, said = " ".join(text.split()).rpartition("following limitation: ")
        why[source] = said.partition(" SQLSTATE")[0][:200]
    return {"version": f"pyspark {pyspark.__version__}", "real_time": why}


folder = tempfile.mkdtemp(prefix="riverrun-bench-")
spark = session()
try:
    measured = (real_time if options.mode == "real_time" else triggers)(spark, folder)
finally:
    spark.stop()
    shutil.rmtree(folder)
print(json.dumps(measured))
