"""PageRank with PySpark RDDs on two cores, as in Spark's own example: links of each node in memory before, and Python
functions in each round.
"""

from __future__ import annotations

import argparse
import json
from operator import add

import numpy as np
import pyspark
from local_spark import session
from loops import CORES, check_ranks, graph_of, measure, ranks_after

parser = argparse.ArgumentParser()
parser.add_argument("--graph", required=True)
for option, size in {"rounds": 10, "fewer": 3}.items():
    parser.add_argument(f"--{option}", type=int, default=size)
options = parser.parse_args()

src, dst, nodes = graph_of(options.graph)
session_of_spark = session(CORES)
spark = session_of_spark.sparkContext
pairs = list(zip(src.tolist(), dst.tolist(), strict=True))
links = spark.parallelize(pairs, CORES).groupByKey(CORES).mapValues(list).cache()
links.count()
nothing = spark.range(0, nodes, numSlices=CORES).map(lambda node: (node, 0.0))
nothing = nothing.partitionBy(CORES).cache()
nothing.count()


def sent(node_and_links):
    targets, rank = node_and_links[1]
    part = rank / len(targets)
    return [(target, part) for target in targets]


def run(rounds):
    ranks = nothing.mapValues(lambda _: 1.0)
    for _ in range(rounds):
        parts = nothing.union(links.join(ranks, CORES).flatMap(sent))
        ranks = parts.reduceByKey(add, CORES).mapValues(lambda total: 0.15 + 0.85 * total)
    return ranks.collect()


figures = measure(run, options.rounds, options.fewer)
ids, ranks = map(np.array, zip(*run(options.fewer), strict=True))
check_ranks(ids, ranks, ranks_after(src, dst, nodes, options.fewer))
session_of_spark.stop()
print(json.dumps({"version": f"pyspark {pyspark.__version__}", "cores": CORES, **figures}))
