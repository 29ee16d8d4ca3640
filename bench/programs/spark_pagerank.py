"""PageRank with PySpark DataFrames on two cores: a join and a sum in each round, cut off from its history by
`localCheckpoint`. The edges are in memory before, placed by their source, and each has the part of its source's rank
that it carries; adaptive planning is off, with which rounds are slower.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import pyarrow as pa
import pyspark
from local_spark import session
from loops import CORES, check_ranks, graph_of, measure, ranks_after
from pyspark.sql import functions

parser = argparse.ArgumentParser()
parser.add_argument("--graph", required=True)
for option, size in {"rounds": 10, "fewer": 3}.items():
    parser.add_argument(f"--{option}", type=int, default=size)
options = parser.parse_args()

src, dst, nodes = graph_of(options.graph)
spark = session(CORES, spark_sql_adaptive_enabled="false")
shares = 0.85 / np.bincount(src, minlength=nodes)[src]
edges = spark.createDataFrame(pa.table({"src": src, "dst": dst, "share": shares}))
edges = edges.repartition(CORES, "src").persist()
edges.count()
everyone = spark.range(0, nodes, 1, CORES).repartition(CORES, "id").persist()
everyone.count()
by_round = []


def run(rounds):
    by_round.clear()
    ranks = everyone.withColumn("rank", functions.lit(1.0))
    for _ in range(rounds):
        begin = time.perf_counter()
        heard = edges.join(ranks, edges.src == ranks.id).groupBy("dst")
        sums = heard.agg(functions.sum(functions.col("rank") * functions.col("share")).alias("sum"))
        joined = everyone.join(sums, everyone.id == sums.dst, "left")
        rank = functions.lit(0.15) + functions.coalesce("sum", functions.lit(0.0))
        before, ranks = ranks, joined.select("id", rank.alias("rank")).localCheckpoint()
        before.unpersist()
        by_round.append(round((time.perf_counter() - begin) * 1e3, 2))
    return ranks


figures = measure(run, options.rounds, options.fewer)
ms_by_round = list(by_round)
rows = run(options.fewer).toArrow()
known = ranks_after(src, dst, nodes, options.fewer)
check_ranks(rows["id"].to_numpy(), rows["rank"].to_numpy(), known)
spark.stop()
version = f"pyspark {pyspark.__version__}"
print(json.dumps({"version": version, "cores": CORES, **figures, "ms": ms_by_round}))
