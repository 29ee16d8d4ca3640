"""PageRank with GraphX, whose jar comes with PySpark, on two cores: so many rounds, the graph loaded before."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

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
spark = session(CORES)
jvm = spark.sparkContext._jvm
with tempfile.TemporaryDirectory(prefix="riverrun-bench-") as folder:
    np.savetxt(f"{folder}/edges.txt", np.c_[src, dst], fmt="%d")
    in_memory = jvm.org.apache.spark.storage.StorageLevel.MEMORY_ONLY()
    graph = jvm.org.apache.spark.graphx.GraphLoader.edgeListFile(
        spark.sparkContext._jsc.sc(), f"{folder}/edges.txt", False, CORES, in_memory, in_memory
    )
    graph.edges().count()
    algorithm = getattr(jvm.org.apache.spark.graphx.lib, "PageRank$").__getattr__("MODULE$")
    kind = getattr(jvm.scala.reflect, "ClassTag$").__getattr__("MODULE$").Int()
    nobody = jvm.scala.Option.empty()

    def run(rounds):
        # Not divided by their sum in the end, as ours are not.
        ranks = algorithm.runWithOptions(graph, rounds, 0.15, nobody, False, kind, kind)
        vertices = ranks.vertices()
        vertices.count()
        return vertices

    figures = measure(run, options.rounds, options.fewer)
    run(options.fewer).saveAsTextFile(f"{folder}/out")
    lines = [
        line[1:-1].split(",")
        for part in Path(folder, "out").glob("part-*")
        for line in part.read_text().splitlines()
    ]
    ids = np.array([int(node) for node, _ in lines])
    ranks = np.array([float(rank) for _, rank in lines])
    check_ranks(ids, ranks, ranks_after(src, dst, nodes, options.fewer))
    spark.stop()
print(
    json.dumps({"version": f"graphx of pyspark {pyspark.__version__}", "cores": CORES, **figures})
)
