"""Components: weak ones, in which paths join all nodes, and strong ones, in which all nodes reach each other.

Users find them as `rr.graphs.components` and `rr.graphs.strongly_connected_components`. Both are made of one step, the
spread of least labels: every node has a label, and passes the least label that it has received along its edges, until
no node receives a lesser label. Nodes are numbers, text, or of another type that has an order, and `components` runs on
arrays, which work on the least labels first; only lists and structs, strong components, and components inside another
loop run in differential loops.

**Prioritised.** When all labels set out at once in a differential loop, most nodes receive a lesser label in round
after round, and the state has to keep every one of these, since a deletion may bring it back. So labels enter the loop
in turn: labels with one more bit enter `SPACING` rounds later. The few small labels are everywhere before the many
large ones set out, and these then go nowhere. (Differential dataflow does the same.) The order changes only when a
label arrives, not the result. On a random graph of 100,000 nodes and 200,000 edges, with one worker, both loading (0.7
against 3.4 s) and changing one edge (median 1.7 against 7.8 ms) take a fifth of the time, and the state has a seventh
of the size.
"""

from __future__ import annotations

import polars as pl

import riverrun as rr
from riverrun.algorithms.graphs.graph import (
    _dtype,
    _reversed,
    nodes_of,
    of_collections,
    undirected,
)

SPACING = 256
"""How many rounds labels of n bits have to themselves before those of n + 1 bits enter."""


@of_collections
def components(
    edges: rr.Collection,
    nodes: rr.Collection | None = None,
    *,
    prioritised: bool | None = None,
) -> rr.Collection:
    """The weak component of each node, named by its least node. Rows: node, component.

    Two nodes are in one component when a path joins them, whatever the direction of its `edges`. Self loops and
    repeated edges change nothing; a node of `nodes` without edges is a component by itself. `prioritised` says
    how labels spread: if True, small labels, which have to be integers, set out before large ones in a differential
    loop; if False, all at once in such a loop; by default on arrays, or, where the edges belong to a loop, in the
    faster of the two.

    Cost: a change touches the nodes whose label it changes, and their edges.

    >>> flow = rr.Dataflow("g")
    >>> edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    >>> flow.output("components", components(edges))
    >>> with flow.run() as run:
    ...     run.insert("edges", [(1, 2), (3, 2), (4, 5)])
    ...     _ = run.commit()
    ...     run.read("components").rows()
    ...     run.delete("edges", [(3, 2)])
    ...     _ = run.commit()
    ...     run.changes("components").rows()
    [(1, 1), (2, 1), (3, 1), (4, 4), (5, 4)]
    [(3, 1, -1)]
    """
    if prioritised is not None and not isinstance(prioritised, bool):
        raise rr.PlanError(
            "plan.algorithm",
            f"cannot compute components with prioritised={prioritised!r}: that is True, False or None",
            hint="leave it out",
        )
    both = undirected(edges.select("src", "dst"))
    labels = _least_labels(both, nodes_of(edges, nodes), prioritised)
    return labels.rename({"label": "component"})


@of_collections
def strongly_connected_components(
    edges: rr.Collection, nodes: rr.Collection | None = None
) -> rr.Collection:
    """The strong component of each node, named by its least node. Rows: node, component.

    Two nodes are in one component when each reaches the other along `edges`. Self loops and repeated edges change
    nothing; a node on no cycle is a component by itself, also a node of `nodes` without edges.

    The program is a loop around two loops (Naiad's). The first inner loop labels every node at which an edge ends with
    the least such node that reaches it; then only edges whose ends have the same label stay. The second does the same
    against the direction of the edges. Both are repeated until all edges stay; these edges lie inside components.

    Cost: as many rounds of the outer loop as components hang behind each other in the order of their least nodes, few
    as a rule; a change touches the labels that it changes in each of these rounds.

    >>> flow = rr.Dataflow("g")
    >>> edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    >>> flow.output("components", strongly_connected_components(edges))
    >>> with flow.run() as run:
    ...     run.insert("edges", [(1, 2), (2, 3), (3, 1), (3, 4), (4, 5)])
    ...     _ = run.commit()
    ...     run.read("components").rows()
    ...     run.insert("edges", [(5, 4)])
    ...     _ = run.commit()
    ...     run.changes("components").rows()
    [(1, 1), (2, 1), (3, 1), (4, 4), (5, 5)]
    [(5, 4, 1), (5, 5, -1)]
    """
    edges = edges.select("src", "dst")

    def cut(left: rr.Collection) -> rr.Collection:
        ahead = _inside(edges, _least_labels(left, left.select(node="dst").distinct()))
        back = _reversed(ahead)
        return _inside(edges, _least_labels(back, back.select(node="dst").distinct()))

    inner = edges.iterate(cut)
    return _least_labels(inner, nodes_of(edges, nodes)).rename({"label": "component"})


def _inside(edges: rr.Collection, labels: rr.Collection) -> rr.Collection:
    """The edges whose ends have the same label."""
    return (
        edges.join(labels, left_on="src", right_on="node")
        .join(labels, left_on="dst", right_on="node", suffix="_dst")
        .filter(pl.col("label") == pl.col("label_dst"))
        .select("src", "dst")
    )


def _least_labels(
    edges: rr.Collection, nodes: rr.Collection, prioritised: bool | None = None
) -> rr.Collection:
    """For each node the least of `nodes` that reaches it along edges. Rows: node, label."""
    kind = _dtype(nodes, "node")
    on_arrays = prioritised is None and edges.scope.depth == nodes.scope.depth == 1
    if prioritised is None:
        prioritised = kind.is_integer()
    if prioritised and not kind.is_integer():
        raise rr.PlanError(
            "plan.type",
            f"cannot order labels by their size in bits: nodes are {kind}, not whole numbers",
            hint="leave out prioritised=True",
        )
    start = nodes.select("node", label="node")

    def heard(labels: rr.Collection) -> rr.Collection:
        return labels.join(edges, left_on="node", right_on="src").select(node="dst", label="label")

    def least(labels: rr.Collection, start: rr.Collection) -> rr.Collection:
        return heard(labels).concat(start).group_by("node").agg(label=rr.min("label"))

    if on_arrays:
        return start.iterate(lambda labels: least(labels, start))
    bits = 64 - pl.col("label").bitwise_leading_zeros().cast(pl.Int64)

    return start.iterate(least, at=bits * SPACING if prioritised else pl.lit(0))
