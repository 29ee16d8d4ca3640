"""Ranks and labels: values that nodes take over from their neighbours, in a fixed number of rounds."""

from __future__ import annotations

from typing import Any

import polars as pl

import riverrun as rr
from riverrun.algorithms.graphs.graph import nodes_of, of_collections, undirected


@of_collections
def pagerank(
    edges: rr.Collection,
    nodes: rr.Collection | None = None,
    *,
    rounds: int = 20,
    damping: float = 0.85,
    decimals: int | None = None,
) -> rr.Collection:
    """The rank of each node: high for nodes to which nodes of high rank link. Rows: node, rank; ranks sum to 1.

    As LDBC Graphalytics defines PageRank: all n nodes, of `edges` and of `nodes`, start with 1/n, and in each round ::

        rank(v) = (1 - damping)/n + damping * (sum of rank(u)/out(u) over edges u -> v + idle/n)

    where out(u) is the number of edges from u, and idle the sum of the ranks of nodes without such edges. Repeated
    edges count once; a self loop is an edge like any other. Sums are exact before they are rounded, so ranks are the
    same to the last bit whatever order edges came and went in.

    With `decimals`, ranks are rounded to that many decimals in each round, and changes too small to change a rounded
    rank go no further; on average a rank is then off by at most ``10**-decimals / (1 - damping)``.

    Cost: every rank depends on n, on idle, and on all nodes that reach the node in `rounds` steps. So a change touches
    nearly all nodes in all rounds, and takes about twice as long as a run from scratch. With `decimals`, a change
    touches only the nodes whose rounded rank it changes, and their edges.

    >>> flow = rr.Dataflow("g")
    >>> edges = flow.input("edges", {"src": pl.String, "dst": pl.String})
    >>> flow.output("ranks", pagerank(edges, rounds=30))
    >>> with flow.run() as run:
    ...     run.insert("edges", [("a", "b"), ("b", "a"), ("c", "a"), ("a", "d")])
    ...     _ = run.commit()
    ...     [(node, round(rank, 3)) for node, rank in run.read("ranks").rows()]
    [('a', 0.391), ('b', 0.258), ('c', 0.092), ('d', 0.258)]
    """
    chance: Any = damping
    if type(chance) not in (int, float) or not 0 <= chance <= 1:
        raise rr.PlanError(
            "plan.algorithm",
            f"cannot rank with damping={damping!r}: it is the chance to follow an edge, between 0 and 1",
            hint="the usual value is 0.85",
        )
    links = edges.select("src", "dst").distinct()
    everyone = nodes_of(edges, nodes)
    degrees = links.group_by("src").count("degree")
    shares = links.join(degrees, on="src")
    idlers = everyone.anti_join(degrees, left_on="node", right_on="src")
    size = everyone.count("n")
    start = everyone.join(size, how="cross").select("node", rank=1.0 / pl.col("n"))

    def rounded(value: pl.Expr) -> pl.Expr:
        return value if decimals is None else value.round(decimals)

    def flow_on(ranks: rr.Collection) -> rr.Collection:
        sent = ranks.join(shares, left_on="node", right_on="src").select(
            node="dst", part=damping * (pl.col("rank") / pl.col("degree"))
        )
        idle = ranks.join(idlers, on="node").select("rank").concat(size.select(rank=pl.lit(0.0)))
        total = idle.group_by().agg(idle=rr.sum("rank")).join(size, how="cross")
        rest = total.select(part=rounded((1 - damping + damping * pl.col("idle")) / pl.col("n")))
        parts = sent.concat(everyone.join(rest, how="cross"))
        return (
            parts.group_by("node")
            .agg(rank=rr.sum("part"))
            .with_columns(rank=rounded(pl.col("rank")))
        )

    return start.iterate(flow_on, rounds=rounds)


@of_collections
def label_propagation(
    edges: rr.Collection, nodes: rr.Collection | None = None, *, rounds: int = 10
) -> rr.Collection:
    """Communities: the label most frequent among a node's neighbours, again and again. Rows: node, label.

    As LDBC Graphalytics defines CDLP: every node, of `edges` and of `nodes`, starts with itself as its label. In each
    of `rounds` rounds all nodes, at once, take the label that most of their neighbours have; the least label, where
    several are as frequent. An edge passes labels in both directions, so neighbours joined by edges in both directions
    count twice; for undirected edges, give each edge once, or give all edges in both directions. Repeated edges count
    once, self loops not at all, and a node without neighbours keeps its label.

    Cost: a change touches the nodes within `rounds` edges whose labels it changes in some round.

    >>> flow = rr.Dataflow("g")
    >>> edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    >>> flow.output("labels", label_propagation(edges, rounds=5))
    >>> with flow.run() as run:
    ...     run.insert("edges", [(1, 2), (2, 3), (3, 1), (1, 4), (7, 8), (8, 9), (9, 7)])
    ...     _ = run.commit()
    ...     run.read("labels").rows()
    [(1, 1), (2, 1), (3, 1), (4, 1), (7, 7), (8, 7), (9, 7)]
    """
    links = edges.select("src", "dst").filter(pl.col("src") != pl.col("dst")).distinct()
    both = undirected(links)
    start = nodes_of(edges, nodes).select("node", label="node")
    alone = start.anti_join(both, left_on="node", right_on="src")

    def vote(labels: rr.Collection) -> rr.Collection:
        heard = labels.join(both, left_on="node", right_on="src").select(node="dst", label="label")
        votes = heard.group_by("node", "label").count("votes")
        won = votes.group_by("node").agg(label=rr.last("label", by="votes"))
        return won.concat(alone)

    return start.iterate(vote, rounds=rounds)
