"""Components with PySpark DataFrames on two cores: a join and a minimum in each round, cut off from its history by
`localCheckpoint`, until no label changes. From scratch, the edges in memory before; adaptive planning as Spark has it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import pyarrow as pa
import pyspark
from local_spark import session
from pyspark.sql import functions

CORES = 2
parser = argparse.ArgumentParser()
for option, size in {"nodes": 100_000, "edges": 200_000, "repeats": 2}.items():
    parser.add_argument(f"--{option}", type=int, default=size)
options = parser.parse_args()

rng = np.random.default_rng(0)
src = rng.integers(0, options.nodes, options.edges)
dst = rng.integers(0, options.nodes, options.edges)
spark = session(CORES)
both = pa.table({"src": np.r_[src, dst], "dst": np.r_[dst, src]})
edges = spark.createDataFrame(both).repartition(CORES, "src").persist()
edges.count()


def spread():
    labels = spark.range(0, options.nodes, 1, CORES).select(
        "id", functions.col("id").alias("label")
    )
    total, rounds = None, 0
    while True:
        heard = labels.join(edges, labels.id == edges.src).select(
            functions.col("dst").alias("id"), "label"
        )
        least = labels.unionAll(heard).groupBy("id").agg(functions.min("label").alias("label"))
        least = least.localCheckpoint()
        before, total = total, least.agg(functions.sum("label")).first()[0]
        if rounds:
            labels.unpersist()
        labels, rounds = least, rounds + 1
        if total == before:  # labels only sink
            return labels, rounds


taken = []
for _ in range(options.repeats + 1):
    start = time.perf_counter()
    labels, rounds = spread()
    taken.append(time.perf_counter() - start)
rows = labels.toArrow()
label_of = np.empty(options.nodes, np.int64)
label_of[rows["id"].to_numpy()] = rows["label"].to_numpy()
assert (label_of[src] == label_of[dst]).all()
assert (label_of[label_of] == label_of).all()
assert (label_of <= np.arange(options.nodes)).all()
spark.stop()
print(
    json.dumps(
        {
            "version": f"pyspark {pyspark.__version__}",
            "cores": CORES,
            "rounds": rounds,
            "first_s": round(taken[0], 2),
            "load_s": round(statistics.median(taken[1:] or taken), 2),
        }
    )
)
