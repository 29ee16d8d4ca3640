"""Components by the least label with PySpark DataFrames on two cores, round by round.

In bulk (``--changed 0``) all labels are joined with edges in each round. With ``--changed 1`` an incremental iteration
is simulated: a column says which labels changed in the round before, and only these are joined with edges; the others
go on to the next round all the same. Each round is cut off from its history by `localCheckpoint`. The loop ends after
`rounds` rounds, or with a round in which nothing changes.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import pyarrow as pa
import pyspark
from local_spark import session
from loops import CORES, graph_of, labels_after
from pyspark.sql import functions

parser = argparse.ArgumentParser()
parser.add_argument("--graph", required=True)
for option, size in {"rounds": 20, "changed": 0}.items():
    parser.add_argument(f"--{option}", type=int, default=size)
options = parser.parse_args()

src, dst, nodes = graph_of(options.graph)
spark = session(CORES, spark_sql_adaptive_enabled="false")
both = pa.table({"src": np.r_[src, dst], "dst": np.r_[dst, src]})
edges = spark.createDataFrame(both).repartition(CORES, "src").persist()
edges.count()
degrees = np.bincount(np.r_[src, dst], minlength=nodes)


def run(rounds):
    """The labels after so many rounds, the milliseconds and messages of each, and whether nothing changes any more."""
    node = functions.col("id")
    labels = spark.range(0, nodes, 1, CORES).select(
        "id", node.alias("label"), functions.lit(True).alias("changed")
    )
    labels = labels.repartition(CORES, "id").persist()
    labels.count()
    taken, sent, sending = [], [], int(degrees.sum())
    for _ in range(rounds):
        begin = time.perf_counter()
        senders = labels.filter("changed") if options.changed else labels
        heard = senders.join(edges, senders.id == edges.src)
        candidates = heard.select(functions.col("dst").alias("id"), "label")
        own = labels.select("id", "label", functions.col("label").alias("before"))
        none = functions.lit(None).cast("bigint").alias("before")
        rows = own.unionAll(candidates.select("id", "label", none)).groupBy("id")
        least = rows.agg(
            functions.min("label").alias("label"), functions.max("before").alias("before")
        )
        changed = (functions.col("label") < functions.col("before")).alias("changed")
        following = least.select("id", "label", changed).localCheckpoint()
        still = following.filter("changed").count()
        labels.unpersist()
        labels = following
        taken.append(round((time.perf_counter() - begin) * 1e3, 2))
        sent.append(sending)
        if not still:
            return labels, taken, sent, True
        if options.changed:  # counted between rounds, as what will be joined
            rows = labels.filter("changed").select("id").toArrow()
            sending = int(degrees[rows["id"].to_numpy()].sum())
    return labels, taken, sent, False


run(2)
labels, taken, sent, ended = run(options.rounds)
rows = labels.toArrow()
found = np.empty(nodes, np.int64)
found[rows["id"].to_numpy()] = rows["label"].to_numpy()
assert np.array_equal(found, labels_after(src, dst, nodes, len(taken)))
spark.stop()
report = {
    "version": f"pyspark {pyspark.__version__}",
    "cores": CORES,
    "ms": taken,
    "messages": sent,
}
if not ended:
    report["until"] = f"after {options.rounds} rounds"
print(json.dumps(report))
