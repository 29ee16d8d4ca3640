"""Graphs: functions of collections of edges to collections that are kept up to date.

A graph is a collection `edges` with columns `src` and `dst`, of one type: integers, strings, anything that has an
order. Other columns are ignored, and an edge that is there twice counts once. A node is never null: an epoch with an
edge, a node or a source that is null is refused (``schema.null_node``). The nodes are the ends of the edges; where
nodes without edges matter, a collection `nodes` with a column `node` adds them. Edges are directed unless the
function says otherwise: :func:`undirected` gives each in both directions.

| what | functions |
|---|---|
| the graph | `undirected`, `nodes_of`; `Graph`: nodes with values, for algorithms of your own |
| programs of a vertex | `pregel`: messages along edges, combined, superstep by superstep |
| components | `components`, `strongly_connected_components` |
| paths | `bfs`, `shortest_paths` |
| neighbourhoods | `triangles`, `triangle_counts`, `clustering_coefficient`, `k_core` |
| ranks | `pagerank`, `adaptive_pagerank`, `label_propagation` |
| cycles | `cycles`: of edges with times, those that each new edge closes |

>>> import polars as pl, riverrun as rr
>>> flow = rr.Dataflow("social")
>>> edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
>>> flow.output("components", rr.graphs.components(edges))
>>> with flow.run() as run:
...     run.insert("edges", [(1, 2), (2, 3), (7, 8)])
...     _ = run.commit()
...     run.read("components").rows()
[(1, 1), (2, 1), (3, 1), (7, 7), (8, 7)]
"""

from riverrun.algorithms.graphs.along_edges import Graph
from riverrun.algorithms.graphs.components import components, strongly_connected_components
from riverrun.algorithms.graphs.cycles import cycles
from riverrun.algorithms.graphs.graph import nodes_of, undirected
from riverrun.algorithms.graphs.neighbourhoods import (
    clustering_coefficient,
    k_core,
    triangle_counts,
    triangles,
)
from riverrun.algorithms.graphs.paths import bfs, shortest_paths
from riverrun.algorithms.graphs.pregel import pregel
from riverrun.algorithms.graphs.ranks import adaptive_pagerank, label_propagation, pagerank

__all__ = [
    "Graph",
    "adaptive_pagerank",
    "bfs",
    "clustering_coefficient",
    "components",
    "cycles",
    "k_core",
    "label_propagation",
    "nodes_of",
    "pagerank",
    "pregel",
    "shortest_paths",
    "strongly_connected_components",
    "triangle_counts",
    "triangles",
    "undirected",
]
