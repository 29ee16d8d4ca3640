"""Paths from sources: the least number of edges to each node, and the least cost.

Users find them as `rr.graphs.bfs` and `rr.graphs.shortest_paths`. Both are one loop, in which every node has a
distance: in each round a node offers its neighbours its distance plus the weight of the edge between, and a node takes
the least of its offers. Laws:

- **One row a node.** A node that a source reaches has one row, with its least distance from any source. A node that no
  source reaches has no row.
- **No weight below 0.** The weights that users give are not negative: a cycle of negative cost has no least path.

Cost: a change touches the nodes whose best path it changes, and the edges of these nodes.
"""

from __future__ import annotations

import polars as pl

import riverrun as rr
from riverrun.algorithms.graphs.graph import _dtype, of_collections


@of_collections
def bfs(edges: rr.Collection, sources: rr.Collection) -> rr.Collection:
    """The least number of edges from any source to each node that a source reaches. Rows: node, distance.

    `sources` has a column `node`; a source has distance 0, with or without edges. The result lacks nodes that no source
    reaches. Edges are followed from src to dst (``undirected(edges)`` for both ways); self loops, repeated edges and
    repeated sources change nothing.

    Cost: a change touches the nodes whose distance it changes, and their edges.

    >>> flow = rr.Dataflow("g")
    >>> edges = flow.input("edges", {"src": pl.String, "dst": pl.String})
    >>> sources = flow.input("sources", {"node": pl.String})
    >>> flow.output("distances", bfs(edges, sources))
    >>> with flow.run() as run:
    ...     run.insert("sources", [("a",)])
    ...     run.insert("edges", [("a", "b"), ("b", "c"), ("a", "c"), ("d", "a")])
    ...     _ = run.commit()
    ...     run.read("distances").rows()
    ...     run.delete("edges", [("a", "c")])
    ...     _ = run.commit()
    ...     run.changes("distances").rows()
    [('a', 0), ('b', 1), ('c', 1)]
    [('c', 1, -1), ('c', 2, 1)]
    """
    steps = edges.select("src", "dst", weight=pl.lit(1, pl.Int64))
    return _nearest(steps, sources.select("node", distance=pl.lit(0, pl.Int64)))


@of_collections
def shortest_paths(edges: rr.Collection, sources: rr.Collection) -> rr.Collection:
    """The least cost of a path from any source to each node that a source reaches. Rows: node, distance.

    `edges` has a third column `weight`, whole numbers or floats, none negative (a cycle of negative
    cost has no least path: the loop would not come to rest). The distance is a 64-bit number of the
    same kind: the weights added up from the source on, so floats are the same on every run. A node whose least
    distance does not fit 64 bits is an error (``operator.overflow``). Of
    repeated edges the cheapest counts; `sources` and directions are as in :func:`bfs`.

    Cost: a change touches the nodes for which it changes the best path of some number of edges.

    >>> flow = rr.Dataflow("g")
    >>> edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64, "weight": pl.Float64})
    >>> sources = flow.input("sources", {"node": pl.Int64})
    >>> flow.output("distances", shortest_paths(edges, sources))
    >>> with flow.run() as run:
    ...     run.insert("sources", [(1,)])
    ...     run.insert("edges", [(1, 2, 0.5), (2, 3, 0.25), (1, 3, 1.0)])
    ...     _ = run.commit()
    ...     run.read("distances").rows()
    [(1, 0.0), (2, 0.5), (3, 0.75)]
    """
    kind = _dtype(edges, "weight")
    if not kind.is_numeric() or kind.is_decimal():
        raise rr.PlanError(
            "plan.type",
            f"cannot add up weights: they are {kind}, not numbers",
            hint="cast them: edges.with_columns(weight=pl.col('weight').cast(pl.Float64))",
        )
    wide = pl.Float64 if kind.is_float() else pl.Int64
    steps = edges.select("src", "dst", weight=pl.col("weight").cast(wide))
    start = sources.select("node", distance=pl.lit(0, wide))
    if wide == pl.Float64:
        return _nearest(steps, start)
    nearest = _nearest_whole(steps, start).consolidate()
    why = "the least distance of a node does not fit 64 bits, or a weight is null"
    beyond = nearest.select("node", "distance", beyond=pl.col("distance").is_null())
    hint = "make the weights floats, or give them in a larger unit"
    return beyond._fitting({"beyond": why}, hint, shown=["node"])


_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def _nearest_whole(steps: rr.Collection, start: rr.Collection) -> rr.Collection:
    """The least distance of each node in whole numbers; null where only distances beyond 64 bits lead to a node.

    While all weights are so small that no path without a cycle is longer than 64 bits, the loop runs on arrays, which
    refuse what does not fit; otherwise differentially, where such a path is null. Null sorts after all numbers, so any
    path that fits is nearer.
    """
    distance, weight = pl.col("distance"), pl.col("weight")
    fits = (weight <= 0) | (distance <= _MOST - weight)
    fits &= (weight >= 0) | (distance >= _LEAST - weight)
    longer = pl.when(fits).then(distance + weight).otherwise(None)
    if steps.scope.depth > 1 or start.scope.depth > 1:
        return _nearest(steps, start, longer)
    size = pl.when(weight < 0).then(-1 - weight).otherwise(weight)
    sizes = steps.select(bits=_bits(size)).group_by("bits").count("n")
    whole = sizes.group_by().agg(bits=rr.max("bits"), n=rr.sum("n"))
    # A path without a cycle has at most n edges, each shorter than 2**bits.
    too_long = whole.filter(pl.col("bits") + _bits(pl.col("n")) > 62).select(mark=pl.lit(True))
    marked = start.with_columns(mark=pl.lit(True))
    short = marked.anti_join(too_long, on="mark").drop("mark")
    long = marked.semi_join(too_long, on="mark").drop("mark")
    return _nearest(steps, short).concat(_nearest(steps, long, longer))


def _bits(number: pl.Expr) -> pl.Expr:
    return 64 - number.bitwise_leading_zeros().cast(pl.Int64)


def _nearest(
    edges: rr.Collection,
    start: rr.Collection,
    longer: pl.Expr = pl.col("distance") + pl.col("weight"),  # noqa: B008
) -> rr.Collection:
    """The least distance of each node: the distance in `start`, or `longer`, made of a neighbour's distance and the
    weight of the edge between."""

    def step(known: rr.Collection) -> rr.Collection:
        further = known.join(edges, left_on="node", right_on="src").select(
            node="dst", distance=longer
        )
        return further.concat(start).group_by("node").agg(distance=rr.min("distance"))

    return start.iterate(step)
