"""Pregel: programs as a vertex sees them. It hears messages, computes its values, and sends messages along its edges.

Users find it as `rr.graphs.pregel`. It is a composition of the steps of `Graph`: a superstep is a graph-join that makes
the messages, a node-aggregate that combines them with the node's own values, and a row-wise step for the vertex.

**Halting.** A vertex need not vote to halt. A superstep whose nodes are those of the superstep before is the last one,
since the same nodes send the same messages for ever; so a program without any message ends after one superstep. What a
superstep costs is what differs from the one before, in a differential loop, or a pass over the edges, on arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

import riverrun as rr
from riverrun.algorithms.graphs.along_edges import Graph
from riverrun.algorithms.graphs.graph import _one_of

COMBINERS = ("sum", "min", "max", "mean", "count")


def pregel(
    graph: Graph,
    vertex: Mapping[str, Any] | Callable[[pl.DataFrame], Any],
    *,
    send: Mapping[str, Any],
    combine: Mapping[str, rr.Aggregate],
    aggregators: Mapping[str, Any] | None = None,
    rounds: int | None = None,
    **options: Any,
) -> rr.Collection:
    """The nodes of a `graph` after supersteps in which each node hears messages, computes its values, and sends more.

    In a superstep,

    1. every node sends a message along each edge that leaves it: `send` has columns of the message, expressions of the
       node's values and of the columns of the edge. A message that is null is not sent;
    2. what comes to a node is combined: `combine` has columns that are ``rr.sum``, ``rr.min``, ``rr.max``, ``rr.mean``
       or ``rr.count`` of a column of the message. They are null, or a count of 0, where nothing came;
    3. every node computes its new values: `vertex` has those that change, as expressions of the node's values and of
       what was combined. Or it is a Python function that takes a Polars frame with these columns, a row for each of
       some nodes, and gives a frame with the column `node` and the new values, row by row.

    `aggregators` are aggregates of the values of all nodes, as they are before the superstep; `vertex` sees them as
    columns too. Supersteps go on until no node changes any more, or `rounds` times. `options` are the other arguments
    of `Collection.iterate`, such as `until`, `mode` and `name`. Rows: node, and its values.

    A program runs on arrays if it adds messages up (``rr.sum``), has no aggregators, and its `vertex` has expressions
    of values of fixed width; one that adds nothing up does so with ``mode="arrays"``.

    >>> flow = rr.Dataflow("paths")
    >>> roads = flow.input("roads", {"src": pl.String, "dst": pl.String, "km": pl.Float64})
    >>> start = flow.input("start", {"node": pl.String, "far": pl.Float64})
    >>> nearest = pregel(
    ...     rr.graphs.Graph(start, roads),
    ...     vertex={"far": pl.min_horizontal("far", "heard")},
    ...     send={"far": pl.col("far") + pl.col("km")},
    ...     combine={"heard": rr.min("far")},
    ... )
    >>> flow.output("nearest", nearest)
    >>> with flow.run() as run:
    ...     run.insert("start", [("home", 0.0)])
    ...     run.insert(
    ...         "roads", [("home", "mill", 2.5), ("mill", "lake", 1.0), ("sea", "lake", 1.0)]
    ...     )
    ...     _ = run.commit()
    ...     run.read("nearest").rows()
    [('home', 0.0), ('lake', 3.5), ('mill', 2.5), ('sea', None)]
    """
    values = _checked(graph, vertex, send, combine, aggregators)
    kinds = graph.nodes.polars_schema
    own = {name: f"own {name}" for name in values}
    none = {own[name]: pl.lit(None, kinds[name]) for name in values}

    def superstep(graph: Graph) -> rr.Collection:
        sent = graph.join().select("dst", **none, **send)
        columns = sent.polars_schema
        silent = {name: pl.lit(None, columns[name]) for name in send}
        mine = graph.nodes.select("node", **{own[name]: name for name in values}, **silent)
        kept = [rr.max(own[name]).alias(name) for name in values]  # of one row
        combined = [each.alias(name) for name, each in combine.items()]
        heard = graph.aggregate(sent, *kept, *combined, also=mine)
        if aggregators:
            heard = heard.join(graph.nodes.group_by().agg(**aggregators), how="cross")
        if isinstance(vertex, Mapping):
            return heard.select("node", **{name: vertex.get(name, name) for name in values})
        schema = {name: kinds[name] for name in ("node", *values)}
        return heard.map_batches(vertex, schema, keeps="node")

    return graph.iterate(superstep, rounds=rounds, **options)


def _checked(graph: Any, vertex: Any, send: Any, combine: Any, aggregators: Any) -> list[str]:
    """The columns of the graph's values. Refuses what is no program of a vertex."""
    if not isinstance(graph, Graph):
        raise rr.PlanError(
            "plan.algorithm",
            f"cannot take {_one_of(graph)} as graph of pregel: that is not a graph",
            hint="rr.graphs.Graph(nodes, edges), with the values that the nodes start with",
        )
    values = [name for name in graph.nodes.columns if name != "node"]
    if not values:
        raise _refusal(
            "the nodes of the graph have no values",
            "Graph(nodes, edges).with_values(rank=pl.lit(1.0))",
        )
    for what, given in (("send", send), ("combine", combine), ("aggregators", aggregators or {})):
        if not isinstance(given, Mapping) or not (given or what == "aggregators"):
            raise _refusal(
                f"{what} has no columns"
                if given == {}
                else f"{what} is {_one_of(given)}, and no columns by name",
                'send={"part": pl.col("rank") / 2}, combine={"heard": rr.sum("part")}',
            )
    for name, combined in combine.items():
        kind = getattr(combined, "kind", None)
        if not isinstance(combined, rr.Aggregate) or kind not in COMBINERS or not combined.columns:
            raise _refusal(
                f"messages cannot be combined into {name!r} by {combined}",
                f"by {', '.join(f'rr.{word}' for word in COMBINERS)} of a column of the message; vertex can compute "
                "with what comes out",
            )
    for name in send:
        if name in ("src", "dst", "node"):
            raise _refusal(
                f"a message has a column {name!r}",
                "it goes along the edges; give the column another name",
            )
    taken = ["node", *values]
    for what, given in (("combined column", combine), ("aggregator", aggregators or {})):
        for name in given:
            if name in taken:
                raise _refusal(
                    f"the {what} {name!r} has the name of another column", "give it another name"
                )
            taken.append(name)
    if isinstance(vertex, Mapping):
        for name in vertex:
            if name not in values:
                raise _refusal(
                    f"vertex computes {name!r}, which is no value of the nodes",
                    f"they have {', '.join(values)}; start with it: graph.with_values(..., {name}=...)",
                )
    elif not callable(vertex):
        raise _refusal(
            f"vertex is {_one_of(vertex)}, neither columns by name nor a function of a frame",
            'vertex={"rank": 0.15 + pl.col("heard").fill_null(0.0)}',
        )
    return values


def _refusal(why: str, hint: str) -> rr.PlanError:
    return rr.PlanError("plan.pregel", f"cannot run pregel: {why}", hint=hint)
