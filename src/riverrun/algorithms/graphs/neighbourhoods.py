"""Neighbourhoods: how dense a graph is around its nodes, by triangles, clustering coefficients and k-cores.

Users find them in `rr.graphs`. Two nodes are neighbours when an edge joins them, in either direction or both. Only
`clustering_coefficient` tells directions apart, unless ``directed=False``: between two neighbours it counts each
direction that has an edge. Self loops are left out, and repeated edges count once.
"""

from __future__ import annotations

from typing import Any

import polars as pl

import riverrun as rr
from riverrun.algorithms.graphs.graph import nodes_of, of_collections, undirected

_LOW = pl.when(pl.col("src") < pl.col("dst")).then(pl.col("src")).otherwise(pl.col("dst"))
_HIGH = pl.when(pl.col("src") < pl.col("dst")).then(pl.col("dst")).otherwise(pl.col("src"))


@of_collections
def triangles(edges: rr.Collection) -> rr.Collection:
    """Three nodes, each a neighbour of the other two. Rows: a, b, c, with a < b < c, each once.

    ``triangles(edges).count()`` is the number of triangles (no row while there are none).

    Cost: for every node, the state holds the pairs of neighbours that both have no fewer neighbours than the node
    itself. Every node, even a hub, has at most about as many such neighbours as the square root of the number of edges;
    a change of an edge touches about as many rows.

    >>> flow = rr.Dataflow("g")
    >>> edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    >>> flow.output("triangles", triangles(edges))
    >>> with flow.run() as run:
    ...     run.insert("edges", [(1, 2), (2, 3), (3, 1), (1, 3), (3, 4), (2, 2)])
    ...     _ = run.commit()
    ...     run.read("triangles").rows()
    [(1, 2, 3)]
    """
    a, b, c = pl.col("a"), pl.col("b"), pl.col("c")
    return _closed(_pairs(edges)).select(
        a=pl.when(a < b).then(a).otherwise(b),
        b=pl.when(a < b).then(b).when(a < c).then(a).otherwise(c),
        c=pl.when(a < c).then(c).otherwise(a),
    )


@of_collections
def triangle_counts(edges: rr.Collection, nodes: rr.Collection | None = None) -> rr.Collection:
    """For each node of `edges` and of `nodes`, the number of triangles it is in, from 0 on. Rows: node, triangles.

    Cost: that of :func:`triangles`.

    >>> flow = rr.Dataflow("g")
    >>> edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    >>> flow.output("counts", triangle_counts(edges))
    >>> with flow.run() as run:
    ...     run.insert("edges", [(1, 2), (2, 3), (3, 1), (3, 4), (4, 1)])
    ...     _ = run.commit()
    ...     run.read("counts").rows()
    [(1, 2), (2, 1), (3, 2), (4, 1)]
    """
    all_triangles = triangles(edges)
    corners = [all_triangles.select(node=corner, triangles=pl.lit(1)) for corner in ("a", "b", "c")]
    none = nodes_of(edges, nodes).select("node", triangles=pl.lit(0))
    return none.concat(*corners).group_by("node").agg(triangles=rr.sum("triangles"))


@of_collections
def clustering_coefficient(
    edges: rr.Collection, nodes: rr.Collection | None = None, *, directed: bool = True
) -> rr.Collection:
    """The share of the possible edges between a node's neighbours that the graph has. Rows: node, coefficient.

    As LDBC Graphalytics defines LCC: for a node with k neighbours, in either direction, the number of directed `edges`
    between neighbours, divided by k (k - 1); 0 when k < 2. With ``directed=False`` an edge counts in both directions,
    whether it is given in one or both. Self loops are left out, repeated edges count once. `nodes` adds nodes without
    edges.

    Cost: that of :func:`triangles`.

    >>> flow = rr.Dataflow("g")
    >>> edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    >>> flow.output("clustering", clustering_coefficient(edges))
    >>> with flow.run() as run:
    ...     run.insert("edges", [(1, 2), (1, 3), (2, 3), (4, 1)])
    ...     _ = run.commit()
    ...     [(node, round(value, 3)) for node, value in run.read("clustering").rows()]
    [(1, 0.167), (2, 0.5), (3, 0.5), (4, 0.0)]
    """
    pairs = _pairs(edges, directed)
    closed = _closed(pairs)

    def amounts(rows: rr.Collection, node: str, links: str | int, degree: int) -> rr.Collection:
        amount = pl.col(links) if isinstance(links, str) else pl.lit(links, pl.Int64)
        return rows.select(node=node, links=amount, degree=pl.lit(degree, pl.Int64))

    between = [amounts(closed, *corner, 0) for corner in (("a", "bc"), ("b", "ac"), ("c", "ab"))]
    ends = [amounts(pairs, end, 0, 1) for end in ("a", "b")]
    none = amounts(nodes_of(edges, nodes), "node", 0, 0)
    totals = none.concat(*between, *ends).group_by("node").agg(rr.sum("links"), rr.sum("degree"))
    most = pl.col("degree") * (pl.col("degree") - 1)
    ratio = pl.when(most > 0).then(pl.col("links") / most).otherwise(0.0)
    return totals.select("node", coefficient=ratio)


@of_collections
def k_core(edges: rr.Collection, k: int) -> rr.Collection:
    """The nodes of `edges` that stay when nodes with fewer than `k` neighbours are taken out, again and again.

    That is the largest set of nodes each of which has at least `k` neighbours inside the set. Rows: node, degree, the
    number of these neighbours. Self loops are left out; an edge and its reverse are one.

    Cost: a change touches the nodes that leave in another round than before, and their edges.

    >>> flow = rr.Dataflow("g")
    >>> edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    >>> flow.output("core", k_core(edges, 2))
    >>> with flow.run() as run:
    ...     run.insert("edges", [(1, 2), (2, 3), (3, 1), (3, 4), (4, 5)])
    ...     _ = run.commit()
    ...     run.read("core").rows()
    [(1, 2), (2, 2), (3, 2)]
    """
    count: Any = k
    if type(count) is not int or count < 0:
        raise rr.PlanError(
            "plan.algorithm",
            f"cannot take the {k!r}-core: that is a whole number of neighbours from 0 on",
            hint="k_core(edges, 2)",
        )
    links = undirected(edges.select("src", "dst").filter(pl.col("src") != pl.col("dst"))).distinct()

    def peel(left: rr.Collection) -> rr.Collection:
        degrees = left.group_by(node="src").count("degree")
        stay = degrees.filter(pl.col("degree") >= k).select("node")
        from_core = links.join(stay, left_on="src", right_on="node")
        return from_core.join(stay, left_on="dst", right_on="node")

    core = links.iterate(peel)
    return core.group_by(node="src").count("degree")


def _pairs(edges: rr.Collection, directed: bool = True) -> rr.Collection:
    """Pairs of neighbours, each with the number of directions in which edges join them. Rows: a, b, ways; a < b."""
    links = edges.select("src", "dst").filter(pl.col("src") != pl.col("dst"))
    if directed:
        return links.distinct().select(a=_LOW, b=_HIGH).group_by("a", "b").count("ways")
    return links.select(a=_LOW, b=_HIGH).distinct().with_columns(ways=pl.lit(2, pl.Int64))


def _closed(pairs: rr.Collection) -> rr.Collection:
    """Triangles, and the ways between each two corners. Rows: a, b, c, ab, ac, bc; b < c, any a.

    a is the corner with the fewest neighbours. Numbers of neighbours are compared by their count of bits alone, so that
    a change of the graph seldom makes another corner the first.
    """
    ends = pairs.select(node="a").concat(pairs.select(node="b"))
    bits = 64 - pl.col("degree").bitwise_leading_zeros().cast(pl.Int64)
    sizes = ends.group_by("node").count("degree").select("node", size=bits)
    sized = pairs.join(sizes, left_on="a", right_on="node").join(
        sizes, left_on="b", right_on="node", suffix="_b"
    )
    ahead = pl.col("size") <= pl.col("size_b")
    sides = sized.select(
        "ways",
        a=pl.when(ahead).then(pl.col("a")).otherwise(pl.col("b")),
        b=pl.when(ahead).then(pl.col("b")).otherwise(pl.col("a")),
    )
    corners = sides.join(sides, on="a", suffix="_c").filter(pl.col("b") < pl.col("b_c"))
    return corners.select("a", "b", c="b_c", ab="ways", ac="ways_c").join(
        pairs.select(b="a", c="b", bc="ways"), on=("b", "c")
    )
