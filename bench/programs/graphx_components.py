"""Components with GraphX, whose jar comes with PySpark, on two cores: from scratch, the graph loaded before."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyspark
from pyspark import SparkConf, SparkContext

CORES = 2
parser = argparse.ArgumentParser()
for option, size in {"nodes": 100_000, "edges": 200_000, "repeats": 3}.items():
    parser.add_argument(f"--{option}", type=int, default=size)
options = parser.parse_args()
os.environ["PYSPARK_PYTHON"] = sys.executable

rng = np.random.default_rng(0)
src = rng.integers(0, options.nodes, options.edges)
dst = rng.integers(0, options.nodes, options.edges)
settings = {
    "spark.default.parallelism": str(CORES),
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "4g",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
folder = tempfile.mkdtemp(prefix="riverrun-bench-")
try:
    everyone = np.arange(options.nodes)  # an edge to itself, so that a node without edges is there
    lines = np.c_[np.r_[src, everyone], np.r_[dst, everyone]]
    np.savetxt(f"{folder}/edges.txt", lines, fmt="%d")
    conf = SparkConf().setMaster(f"local[{CORES}]").setAll(list(settings.items()))
    spark = SparkContext(conf=conf)
    jvm = spark._jvm
    in_memory = jvm.org.apache.spark.storage.StorageLevel.MEMORY_ONLY()
    graph = jvm.org.apache.spark.graphx.GraphLoader.edgeListFile(
        spark._jsc.sc(), f"{folder}/edges.txt", False, CORES, in_memory, in_memory
    )
    algorithm = getattr(jvm.org.apache.spark.graphx.lib, "ConnectedComponents$")
    kind = getattr(jvm.scala.reflect, "ClassTag$").__getattr__("MODULE$").Int()
    taken = []
    for _ in range(options.repeats + 1):
        start = time.perf_counter()
        vertices = algorithm.__getattr__("MODULE$").run(graph, kind, kind).vertices()
        vertices.count()
        taken.append(time.perf_counter() - start)
    vertices.saveAsTextFile(f"{folder}/out")
    labels = np.full(options.nodes, -1)
    for part in Path(folder, "out").glob("part-*"):
        for line in part.read_text().splitlines():
            node, label = line[1:-1].split(",")
            labels[int(node)] = int(label)
    assert (labels[src] == labels[dst]).all()
    assert (labels <= everyone).all()
    spark.stop()
finally:
    shutil.rmtree(folder)
print(
    json.dumps(
        {
            "version": f"pyspark {pyspark.__version__}",
            "cores": CORES,
            "first_s": round(taken[0], 2),
            "load_s": round(statistics.median(taken[1:]), 2),
        }
    )
)
