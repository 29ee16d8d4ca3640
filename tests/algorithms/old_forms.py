"""Graph algorithms as they were written before they ran on arrays: differential loops, oracles of the new forms.

Each is a function of edges, nodes and sources, with the rows of the function in `rr.graphs` that has its name.
"""

from __future__ import annotations

import polars as pl

import riverrun as rr

DISTANCE, RANK = pl.col("distance"), pl.col("rank")


def components(edges: rr.Collection, nodes: rr.Collection, _: rr.Collection) -> rr.Collection:
    both = rr.graphs.undirected(edges.select("src", "dst"))
    start = rr.graphs.nodes_of(edges, nodes).select("node", label="node")

    def least(labels: rr.Collection) -> rr.Collection:
        heard = labels.join(both, left_on="node", right_on="src").select(node="dst", label="label")
        return heard.concat(start).group_by("node").agg(label=rr.min("label"))

    return start.iterate(least, mode="differential").rename({"label": "component"})


def shortest_paths(edges: rr.Collection, _: rr.Collection, sources: rr.Collection) -> rr.Collection:
    weight = edges.polars_schema["weight"]
    start = sources.select("node", distance=pl.lit(0, weight))

    def nearer(known: rr.Collection) -> rr.Collection:
        further = known.join(edges, left_on="node", right_on="src").select(
            node="dst", distance=DISTANCE + pl.col("weight")
        )
        return further.concat(start).group_by("node").agg(distance=rr.min("distance"))

    return start.iterate(nearer, mode="differential")


def bfs(edges: rr.Collection, nodes: rr.Collection, sources: rr.Collection) -> rr.Collection:
    steps = edges.select("src", "dst", weight=pl.lit(1, pl.Int64))
    return shortest_paths(steps, nodes, sources)


def pagerank(edges: rr.Collection, nodes: rr.Collection, _: rr.Collection) -> rr.Collection:
    links = edges.select("src", "dst").distinct()
    everyone = rr.graphs.nodes_of(edges, nodes)
    degrees = links.group_by("src").count("degree")
    shares = links.join(degrees, on="src")
    idlers = everyone.anti_join(degrees, left_on="node", right_on="src")
    size = everyone.count("n")
    start = everyone.join(size, how="cross").select("node", rank=1.0 / pl.col("n"))

    def flow_on(ranks: rr.Collection) -> rr.Collection:
        sent = ranks.join(shares, left_on="node", right_on="src").select(
            node="dst", part=0.85 * (RANK / pl.col("degree"))
        )
        idle = ranks.join(idlers, on="node").select("rank").concat(size.select(rank=pl.lit(0.0)))
        total = idle.group_by().agg(idle=rr.sum("rank")).join(size, how="cross")
        rest = total.select(part=(1 - 0.85 + 0.85 * pl.col("idle")) / pl.col("n"))
        parts = sent.concat(everyone.join(rest, how="cross"))
        return parts.group_by("node").agg(rank=rr.sum("part"))

    return start.iterate(flow_on, rounds=7, mode="differential")
