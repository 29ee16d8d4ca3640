"""Algorithms: functions of collections to collections, written with the public API alone.

A graph is a collection `edges` with columns `src` and `dst`, of one type: integers, strings, anything
that has an order. Other columns are ignored, and an edge that is there twice counts once. A node is
never null: an epoch with an edge, a node or a source that is null is refused (``schema.null_node``).
The nodes are the ends of the edges; where nodes without edges matter, a collection `nodes` with a
column `node` adds them. Edges are directed unless the function says otherwise: :func:`undirected`
gives each in both directions.

Every function gives a collection that is kept up to date: rows of its inputs may come and go.

| module | functions |
|---|---|
| `graph` | `undirected`, `nodes_of` |
| `components` | `components`, `strongly_connected_components` |
| `paths` | `bfs`, `shortest_paths` |
| `neighbourhoods` | `triangles`, `triangle_counts`, `clustering_coefficient`, `k_core` |
| `ranks` | `pagerank`, `label_propagation` |
| `cycles` | `cycles`: of edges with times, those that each new edge closes |

Besides graphs there is online learning on shared state: `ftrl` (`learning`), which gives a `Model`, of mini-batches
(`minibatches`).
"""

from riverrun.algorithms.components import components, strongly_connected_components
from riverrun.algorithms.cycles import cycles
from riverrun.algorithms.graph import nodes_of, undirected
from riverrun.algorithms.learning import Model, ftrl
from riverrun.algorithms.neighbourhoods import (
    clustering_coefficient,
    k_core,
    triangle_counts,
    triangles,
)
from riverrun.algorithms.paths import bfs, shortest_paths
from riverrun.algorithms.ranks import label_propagation, pagerank

__all__ = [
    "Model",
    "bfs",
    "clustering_coefficient",
    "components",
    "cycles",
    "ftrl",
    "k_core",
    "label_propagation",
    "nodes_of",
    "pagerank",
    "shortest_paths",
    "strongly_connected_components",
    "triangle_counts",
    "triangles",
    "undirected",
]
