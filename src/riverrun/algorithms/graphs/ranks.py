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

    Cost: every rank depends on n, on idle, and on all nodes that reach the node in `rounds` steps. So the loop runs on
    arrays, all rounds again in each epoch that changes something. With `decimals` it does not, and a change touches
    only the nodes whose rounded rank it changes, and their edges.

    >>> flow = rr.Dataflow("g")
    >>> edges = flow.input("edges", {"src": pl.String, "dst": pl.String})
    >>> flow.output("ranks", pagerank(edges, rounds=30))
    >>> with flow.run() as run:
    ...     run.insert("edges", [("a", "b"), ("b", "a"), ("c", "a"), ("a", "d")])
    ...     _ = run.commit()
    ...     [(node, round(rank, 3)) for node, rank in run.read("ranks").rows()]
    [('a', 0.391), ('b', 0.258), ('c', 0.092), ('d', 0.258)]
    """
    _check_damping(damping)
    links = edges.select("src", "dst").distinct()
    everyone = nodes_of(edges, nodes)
    if decimals is None:
        return _by_hub(links, everyone, rounds, damping)
    return _rounded(links, everyone, rounds, damping, decimals)


def _by_hub(
    links: rr.Collection, everyone: rr.Collection, rounds: int, damping: float
) -> rr.Collection:
    """Ranks by sums along edges alone, so that the loop runs on arrays: idle ranks reach all nodes by way of a *hub*.

    The hub is one more node. It hears all that nodes without edges hear, so its rank is the sum of theirs, and it links
    to all n nodes. As n of these edges leave it, each node gets the nth part of its rank.
    """
    degrees = links.group_by("src").count("degree")
    idlers = everyone.anti_join(degrees, left_on="node", right_on="src")
    # The name of the hub is that of the least node, and a second column of the key tells the two apart.
    graph = everyone.group_by().agg(n=rr.count(), hub=rr.min("node"))

    def heard_by_hub(rows: rr.Collection, node: str, mark: str) -> rr.Collection:
        idle = rows.join(idlers, left_on=node, right_on="node").join(
            graph.select("hub"), how="cross"
        )
        others = [name for name in rows.columns if name != node]
        to_hub = idle.select(*others, **{node: "hub", mark: pl.lit(True)})
        return rows.with_columns(**{mark: pl.lit(False)}).concat(to_hub)

    sized = everyone.join(graph, how="cross")
    from_hub = sized.select(src="hub", dst="node", degree="n", of_hub=pl.lit(True))
    shares = links.join(degrees, on="src").with_columns(of_hub=pl.lit(False)).concat(from_hub)
    shares = heard_by_hub(shares, "dst", "to_hub")
    sizes = heard_by_hub(sized.select("node", "n"), "node", "is_hub")
    base = sizes.select("node", "is_hub", part=(1 - damping) / pl.col("n"))
    start = sizes.group_by("node", "is_hub").agg(rank=rr.sum(1.0 / pl.col("n")))

    def flow_on(ranks: rr.Collection) -> rr.Collection:
        sent = ranks.join(shares, left_on=["node", "is_hub"], right_on=["src", "of_hub"]).select(
            node="dst", is_hub="to_hub", part=damping * (pl.col("rank") / pl.col("degree"))
        )
        return sent.concat(base).group_by("node", "is_hub").agg(rank=rr.sum("part"))

    ranks = start.iterate(flow_on, rounds=rounds)
    return ranks.filter(~pl.col("is_hub")).select("node", "rank")


def _rounded(
    links: rr.Collection, everyone: rr.Collection, rounds: int, damping: float, decimals: int
) -> rr.Collection:
    """Ranks that are rounded in each round, in a differential loop, which a small change soon leaves."""
    degrees = links.group_by("src").count("degree")
    shares = links.join(degrees, on="src")
    idlers = everyone.anti_join(degrees, left_on="node", right_on="src")
    size = everyone.count("n")
    start = everyone.join(size, how="cross").select("node", rank=1.0 / pl.col("n"))

    def flow_on(ranks: rr.Collection) -> rr.Collection:
        sent = ranks.join(shares, left_on="node", right_on="src").select(
            node="dst", part=damping * (pl.col("rank") / pl.col("degree"))
        )
        idle = ranks.join(idlers, on="node").select("rank").concat(size.select(rank=pl.lit(0.0)))
        total = idle.group_by().agg(idle=rr.sum("rank")).join(size, how="cross")
        rest = (1 - damping + damping * pl.col("idle")) / pl.col("n")
        parts = sent.concat(everyone.join(total.select(part=rest.round(decimals)), how="cross"))
        ranks = parts.group_by("node").agg(rank=rr.sum("part"))
        return ranks.with_columns(rank=pl.col("rank").round(decimals))

    return start.iterate(flow_on, rounds=rounds)


@of_collections
def adaptive_pagerank(
    edges: rr.Collection,
    nodes: rr.Collection | None = None,
    *,
    damping: float = 0.85,
    tolerance: float = 1e-6,
    normalised: bool = True,
) -> rr.Collection:
    """The ranks that `pagerank` converges to, where nodes that have converged rest. Rows: node, rank; ranks sum to 1.

    Added up over all nodes of `edges` and of `nodes`, the ranks differ from the limit of ``pagerank(damping=...)`` by
    at most `tolerance` (and by the rounding of floats). Repeated edges count once; a self loop is an edge like any
    other.

    A node keeps what it hears until that is worth passing on, and passes on a multiple of a smallest amount. So nodes
    come to rest one after the other, and the loop ends when all of them rest. There are no idle ranks in the loop: the
    limit is the same, up to a factor, if a node without edges passes on nothing, and ranks are divided by their sum in
    the end. Without that division (``normalised=False``) the ranks are n times as large or larger, and so may their
    error be; but then a change of the graph changes only the ranks of nodes that hear of it.

    Cost: the loop runs on arrays, all rounds again in each epoch that changes something: some 20 for each decimal of
    `tolerance`, with the usual `damping`.

    >>> flow = rr.Dataflow("g")
    >>> edges = flow.input("edges", {"src": pl.String, "dst": pl.String})
    >>> flow.output("ranks", adaptive_pagerank(edges))
    >>> with flow.run() as run:
    ...     run.insert("edges", [("a", "b"), ("b", "a"), ("c", "a"), ("a", "d")])
    ...     _ = run.commit()
    ...     [(node, round(rank, 3)) for node, rank in run.read("ranks").rows()]
    [('a', 0.391), ('b', 0.258), ('c', 0.092), ('d', 0.258)]
    """
    _check_damping(damping)
    far: Any = tolerance
    if damping == 1 or type(far) not in (int, float) or not 0 < far < 1:
        raise rr.PlanError(
            "plan.algorithm",
            f"cannot rank with damping={damping!r} and tolerance={tolerance!r}: the first is below 1, the other the "
            "sum of all errors, between 0 and 1",
            hint="adaptive_pagerank(edges, tolerance=1e-6)",
        )
    # What rests is less than `least` at each of n nodes. Passed on for ever, it would add up to 1 / (1 - damping) times
    # as much; the ranks themselves, to n or more. To divide by a sum that is wrong by as much doubles the error.
    least = tolerance * (1 - damping) / 2
    links = edges.select("src", "dst").distinct()
    everyone = nodes_of(edges, nodes)
    shares = links.join(links.group_by("src").count("degree"), on="src")
    rank, rest = pl.col("rank"), pl.col("rest")
    passed = (rest / least).floor() * least

    def step(ranks: rr.Collection) -> rr.Collection:
        kept = ranks.select("node", rank=rank + passed, rest=rest - passed)
        sent = ranks.join(shares, left_on="node", right_on="src").select(
            node="dst", rank=pl.lit(0.0), rest=damping * (passed / pl.col("degree"))
        )
        both = kept.concat(sent).group_by("node")
        return both.agg(rank=rr.sum("rank"), rest=rr.sum("rest"))

    start = everyone.select("node", rank=pl.lit(0.0), rest=pl.lit(1.0))
    ranks = start.iterate(step).select("node", "rank")
    if not normalised:
        return ranks
    total = ranks.group_by().agg(total=rr.sum("rank"))
    return ranks.join(total, how="cross").select("node", rank=rank / pl.col("total"))


def _check_damping(damping: Any) -> None:
    if type(damping) not in (int, float) or not 0 <= damping <= 1:
        raise rr.PlanError(
            "plan.algorithm",
            f"cannot rank with damping={damping!r}: it is the chance to follow an edge, between 0 and 1",
            hint="the usual value is 0.85",
        )


@of_collections
def label_propagation(
    edges: rr.Collection,
    nodes: rr.Collection | None = None,
    *,
    rounds: int = 10,
    mode: str = "auto",
) -> rr.Collection:
    """Communities: the label most frequent among a node's neighbours, again and again. Rows: node, label.

    As LDBC Graphalytics defines CDLP: every node, of `edges` and of `nodes`, starts with itself as its label. In each
    of `rounds` rounds all nodes, at once, take the label that most of their neighbours have; the least label, where
    several are as frequent. An edge passes labels in both directions, so neighbours joined by edges in both directions
    count twice; for undirected edges, give each edge once, or give all edges in both directions. Repeated edges count
    once, self loops not at all, and a node without neighbours keeps its label.

    Cost: a change touches the nodes within `rounds` edges whose labels it changes in some round. `mode` is as in
    `Collection.iterate`: with ``mode="rounds"``, a whole graph takes a sixth of the time to load, and an epoch that
    changes anything takes as long again.

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

    return start.iterate(vote, rounds=rounds, mode=mode)
