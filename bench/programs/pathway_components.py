"""Components by min-label propagation with ``pw.iterate``: the load, then changes of one edge and of many.

A step is over when the result is right, so every change must show in the result: a change of one edge adds an edge to a
node that had none. (Ours are moves of any edge.) One thread, nothing durable.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time

parser = argparse.ArgumentParser()
for option, size in {"nodes": 100_000, "edges": 200_000, "singles": 20, "moved": 1000}.items():
    parser.add_argument(f"--{option}", type=int, default=size)
options = parser.parse_args()
os.environ["PATHWAY_THREADS"] = "1"

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import pathway as pw  # noqa: E402

rng = np.random.default_rng(0)
src = rng.integers(0, options.nodes, options.edges)
dst = rng.integers(0, options.nodes, options.edges)
isolated = np.setdiff1d(np.arange(options.nodes), np.r_[src, dst])
singles = min(options.singles, len(isolated) - 1)
# Then edges that are added one by one, each to a node that had none, and many at once.
src = np.r_[src, isolated[: singles + 1], rng.integers(0, options.nodes, options.moved - 1)]
dst = np.r_[dst, rng.integers(0, options.nodes, len(src) - options.edges)]


def least_labels(src, dst):
    labels = np.arange(options.nodes)
    while True:
        heard = labels.copy()
        np.minimum.at(heard, src, labels[dst])
        np.minimum.at(heard, dst, labels[src])
        if (heard == labels).all():
            return labels
        labels = heard


class Edge(pw.Schema):
    number: int = pw.column_definition(primary_key=True)
    src: int
    dst: int


class Edges(pw.io.python.ConnectorSubject):
    """Feeds a step, and the next one when the result of the last is there."""

    def run(self):
        fed = options.edges
        self._feed("load", 0, fed)
        for _ in range(singles):
            self._feed("one", fed, fed + 1)
            fed += 1
        self._feed("many", fed, len(src))

    def _feed(self, what, first, last):
        wanted = least_labels(src[:last], dst[:last])
        start = time.perf_counter()
        for number in range(first, last):
            here, there = int(src[number]), int(dst[number])
            self.next(number=2 * number, src=here, dst=there)
            self.next(number=2 * number + 1, src=there, dst=here)
        self.commit()
        with arrived:
            arrived.wait_for(lambda: np.array_equal(label_of, wanted))
            taken.setdefault(what, []).append(ended_at[0] - start)


taken: dict[str, list[float]] = {}
ended_at = [0.0]
arrived = threading.Condition()
label_of = np.full(options.nodes, -1)


def changed(key, row, time, is_addition):
    if is_addition:
        label_of[row["node"]] = row["label"]


def ended(_):
    with arrived:
        ended_at[0] = time.perf_counter()
        arrived.notify_all()


edges = pw.io.python.read(Edges(), schema=Edge, autocommit_duration_ms=None)
everyone = np.arange(options.nodes)
nodes = pw.debug.table_from_pandas(pd.DataFrame({"node": everyone, "label": everyone}))
nodes = nodes.with_id_from(pw.this.node)
edges = edges.select(edges.dst, at=nodes.pointer_from(edges.src))


def spread(nodes, edges):
    heard = edges.select(node=edges.dst, label=nodes.ix(edges.at).label)
    everything = pw.Table.concat_reindex(heard, nodes.select(nodes.node, nodes.label))
    least = everything.groupby(everything.node).reduce(
        everything.node, label=pw.reducers.min(everything.label)
    )
    return {"nodes": least.with_id_from(pw.this.node).with_universe_of(nodes)}


result = pw.iterate(spread, nodes=nodes, edges=edges).nodes
pw.io.subscribe(result, on_change=changed, on_time_end=ended)
pw.run(monitoring_level=pw.MonitoringLevel.NONE)
print(
    json.dumps(
        {
            "version": f"pathway {pw.__version__}",
            "load_s": round(taken["load"][0], 2),
            "one_edge_ms": round(statistics.median(taken["one"]) * 1e3, 2),
            "many_edges_ms": round(taken["many"][0] * 1e3, 1),
        }
    )
)
