"""What nodes take from their neighbours, a fixed number of rounds: ranks and labels."""

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
    """How much a node is linked to by nodes that are linked to. Rows: node, rank; ranks sum to 1.

    As LDBC Graphalytics defines it: all of the n nodes, those of `edges` and of `nodes`, start with 1/n, and in each
    round ::

        rank(v) = (1 - damping)/n + damping * (sum of rank(u)/out(u) over edges u -> v + idle/n)

    where out(u) is the number of edges from u, and idle the sum of the ranks of nodes without any.
    Repeated edges count once; a self loop is an edge like any other. Sums are exact before they are
    rounded, so the ranks are the same to the last bit however the graph came to be as it is.

    With `decimals`, ranks are rounded to that many in each round, and what does not change them goes
    no further; on average a rank is then off by at most ``10**-decimals / (1 - damping)``.

    Cost: every rank depends on n, on idle, and on whoever reaches the node in `rounds` steps, so a
    change touches nearly all nodes in all rounds, and takes about twice as long as a run from scratch.
    With `decimals` it touches the nodes that it moves by so much, and their edges.

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

    return start.iterate(flow_on, limit=rounds)


@of_collections
def label_propagation(
    edges: rr.Collection, nodes: rr.Collection | None = None, *, rounds: int = 10
) -> rr.Collection:
    """Communities: the label most frequent among a node's neighbours, again and again. Rows: node, label.

    As LDBC Graphalytics defines CDLP: every node, of `edges` and of `nodes`, starts with itself as its label; in each
    of `rounds` rounds all take, at once, the label that most of their neighbours have, the least of several. An edge
    lets both of its ends hear each other, so neighbours joined by edges in both directions count twice; to have
    undirected edges, give each once or give all in both directions. Repeated edges count once, self loops not at all,
    and a node without neighbours keeps its label.

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

    return start.iterate(vote, limit=rounds)
