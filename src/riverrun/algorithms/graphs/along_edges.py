"""Graphs as people write them: nodes with values, edges, and steps in which values travel along edges.

Users find it as `rr.graphs.Graph`. A graph is two collections: `nodes`, with a column `node` and columns of values, and
`edges`, with columns `src` and `dst` and perhaps others. Three steps make the algorithms (GraphLINQ's):

- **graph-join** (`Graph.join`): the values of nodes beside the edges that leave them, or that reach them;
- **node-aggregate** (`Graph.aggregate`): what comes along edges, put together for each node;
- **iterate** (`Graph.iterate`): a step from the nodes of one round to those of the next.

All of them are compositions of joins, groups and loops of collections, so all that holds for these holds here: rows
come and go in every epoch, and a loop runs on arrays where it has a shape that they know. Laws:

- **One row a node.** The nodes of a graph are the ends of its edges and the rows of `nodes`, each node once.
- **Edges as given.** An edge that is there twice is two edges: it carries values twice, and counts twice in degrees.

Cost: that of the collections: `join` is a join by one end of the edges, `aggregate` a group by one end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal

import polars as pl

import riverrun as rr
from riverrun.algorithms.graphs.graph import (
    _one_of,
    _reversed,
    check_columns,
    nodes_of,
    of_collections,
)

End = Literal["src", "dst"]


@dataclass(frozen=True, init=False)
class Graph:
    """Nodes with values, and edges between them: two collections, and the steps in which values travel along edges.

    `edges` has columns `src` and `dst`, and perhaps others. `nodes` has a column `node`, of the same type, and perhaps
    columns of values; it may be None. The nodes of the graph are the ends of the edges and those of `nodes`: an end
    that `nodes` lacks has null values, and of several rows for one node the least counts. A node is never null. The
    collections of the graph are its attributes `nodes` and `edges`.

    PageRank in nine lines:

    >>> def pagerank(nodes, edges):
    ...     graph = Graph(nodes, edges).with_out_degrees()
    ...     base = graph.nodes.select("node", part=pl.lit(0.15))
    ...
    ...     def step(graph):
    ...         part = 0.85 * pl.col("rank") / pl.col("out_degree")
    ...         sent = graph.join().select("dst", part=part)
    ...         return graph.aggregate(sent, also=base, rank=rr.sum("part"))
    ...
    ...     start = graph.with_values(rank=pl.lit(1.0))
    ...     return start.iterate(step, rounds=20)
    >>> flow = rr.Dataflow("web")
    >>> links = flow.input("links", {"src": pl.String, "dst": pl.String})
    >>> flow.output("ranks", pagerank(None, links))
    >>> with flow.run() as run:
    ...     run.insert("links", [("a", "b"), ("c", "b"), ("b", "a")])
    ...     _ = run.commit()
    ...     [(node, round(rank, 2)) for node, rank in run.read("ranks").rows()]
    [('a', 1.41), ('b', 1.44), ('c', 0.15)]
    """

    nodes: rr.Collection
    edges: rr.Collection

    @of_collections
    def __init__(self, nodes: rr.Collection | None, edges: rr.Collection) -> None:
        ends = nodes_of(edges, nodes)
        if nodes is not None and len(nodes.columns) > 1:
            kinds = nodes.polars_schema
            values = [name for name in nodes.columns if name != "node"]
            bare = ends.select("node", **{name: pl.lit(None, kinds[name]) for name in values})
            # A row with values comes before the row without, since nulls are last.
            ends = nodes.select("node", *values).concat(bare).distinct("node")
        object.__setattr__(self, "nodes", ends)
        object.__setattr__(self, "edges", edges)

    def __repr__(self) -> str:
        return (
            f"Graph(nodes: {', '.join(self.nodes.columns)}; edges: {', '.join(self.edges.columns)})"
        )

    def _with(
        self, nodes: rr.Collection | None = None, edges: rr.Collection | None = None
    ) -> Graph:
        """The graph with other nodes or other edges, which were checked."""
        graph = object.__new__(Graph)
        object.__setattr__(graph, "nodes", self.nodes if nodes is None else nodes)
        object.__setattr__(graph, "edges", self.edges if edges is None else edges)
        return graph

    # -- other graphs

    def with_values(self, *columns: Any, **named: Any) -> Graph:
        """The graph whose nodes have these values: `columns` that they have, and `named` ones that are computed.

        Both are as in `Collection.select`; the column `node` stays.

        >>> edges = rr.Dataflow("g").input("edges", {"src": pl.Int64, "dst": pl.Int64})
        >>> Graph(None, edges).with_values(label="node", rank=pl.lit(1.0))
        Graph(nodes: node, label, rank; edges: src, dst)
        """
        return self._with(nodes=self.nodes.select("node", *columns, **named))

    def with_edges(self, edges: rr.Collection) -> Graph:
        """The graph with the same nodes and other `edges`: those that a `join` has given values, or some of them.

        Their ends are nodes of this graph.
        """
        _check_rows(edges, "edges", "with_edges")
        check_columns(edges, "src", "dst")
        return self._with(edges=edges)

    def with_out_degrees(self, name: str = "out_degree") -> Graph:
        """The graph in which each edge has a column `name`: how many edges leave its source.

        >>> edges = rr.Dataflow("g").input("edges", {"src": pl.Int64, "dst": pl.Int64})
        >>> Graph(None, edges).with_out_degrees().edges.columns
        ['src', 'dst', 'out_degree']
        """
        return self._with(edges=self.edges.join(self.edges.group_by("src").count(name), on="src"))

    def undirected(self) -> Graph:
        """The graph with every edge in both directions, with its other columns; a self loop is there twice."""
        return self._with(edges=self.edges.concat(_reversed(self.edges)))

    def reverse(self) -> Graph:
        """The graph with every edge the other way round."""
        return self._with(edges=_reversed(self.edges))

    # -- degrees

    def out_degrees(self) -> rr.Collection:
        """How many edges leave each node. Rows: node, degree; 0 for a node that no edge leaves."""
        return self._degrees("src")

    def in_degrees(self) -> rr.Collection:
        """How many edges reach each node. Rows: node, degree; 0 for a node that no edge reaches."""
        return self._degrees("dst")

    def degrees(self) -> rr.Collection:
        """How many ends of edges are at each node. Rows: node, degree; a self loop counts twice.

        >>> flow = rr.Dataflow("g")
        >>> edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
        >>> graph = Graph(None, edges)
        >>> for name in ("degrees", "in_degrees", "out_degrees"):
        ...     flow.output(name, getattr(graph, name)())
        >>> with flow.run() as run:
        ...     run.insert("edges", [(1, 2), (1, 3)])
        ...     _ = run.commit()
        ...     run.read("degrees").rows()
        ...     run.read("in_degrees").rows()
        ...     run.read("out_degrees").rows()
        [(1, 2), (2, 1), (3, 1)]
        [(1, 0), (2, 1), (3, 1)]
        [(1, 2), (2, 0), (3, 0)]
        """
        return self._degrees("src", "dst")

    def _degrees(self, *ends: str) -> rr.Collection:
        none = self.nodes.select("node", degree=pl.lit(0, pl.Int64))
        one = [self.edges.select(node=end, degree=pl.lit(1, pl.Int64)) for end in ends]
        return none.concat(*one).group_by("node").agg(degree=rr.sum("degree"))

    # -- values along edges

    def join(self, by: End = "src", *, suffix: str = "_node") -> rr.Collection:
        """Graph-join: every edge beside the values of one of its nodes. Rows: those of edges, then the values.

        `by` says which node: the one that the edge leaves (``"src"``), or the one that it reaches (``"dst"``). A value
        whose name an edge has too gets the `suffix`.

        >>> flow = rr.Dataflow("g")
        >>> edges = flow.input("edges", {"src": pl.String, "dst": pl.String, "length": pl.Int64})
        >>> towns = flow.input("towns", {"node": pl.String, "people": pl.Int64})
        >>> flow.output("towards", Graph(towns, edges).join("dst"))
        >>> with flow.run() as run:
        ...     run.insert("towns", [("mill", 40)])
        ...     run.insert("edges", [("home", "mill", 2), ("home", "lake", 5)])
        ...     _ = run.commit()
        ...     run.read("towards").rows()
        [('home', 'lake', 5, None), ('home', 'mill', 2, 40)]
        """
        _check_end(by, "join a graph")
        return self.edges.join(self.nodes, left_on=by, right_on="node", suffix=suffix)

    def aggregate(
        self,
        rows: rr.Collection,
        *aggregates: Any,
        by: End = "dst",
        also: rr.Collection | None = None,
        **named: Any,
    ) -> rr.Collection:
        """Node-aggregate: what came along edges, put together for each node. Rows: node, and the aggregates.

        `rows` have a column `dst` (or `src`, as `by` says) with the node that each row is for: they are what `join`
        gave, as a rule. `aggregates` and `named` are as in `Grouped.agg`. The result has the nodes that some row is
        for. `also` are more rows, with a column `node` and columns that `rows` have: a value for nodes that hear
        nothing, or the value that each node has already; then `rows` are taken with these columns alone.

        >>> flow = rr.Dataflow("g")
        >>> edges = flow.input("edges", {"src": pl.String, "dst": pl.String})
        >>> ages = flow.input("ages", {"node": pl.String, "age": pl.Int64})
        >>> graph = Graph(ages, edges)
        >>> flow.output("oldest", graph.aggregate(graph.join(), oldest=rr.max("age"), n=rr.count()))
        >>> with flow.run() as run:
        ...     run.insert("ages", [("ann", 40), ("bob", 50), ("eve", 30)])
        ...     run.insert("edges", [("ann", "eve"), ("bob", "eve"), ("eve", "ann")])
        ...     _ = run.commit()
        ...     run.read("oldest").rows()
        [('ann', 30, 1), ('eve', 50, 2)]
        """
        _check_end(by, "aggregate by the nodes of a graph")
        _check_rows(rows, "rows", "aggregate")
        check_columns(rows, by)
        if also is None:
            return rows.group_by(node=by).agg(*aggregates, **named)
        _check_rows(also, "also", "aggregate")
        check_columns(also, "node")
        rest = [name for name in also.columns if name != "node"]
        both = rows.select(*rest, node=by).concat(also)
        return both.group_by("node").agg(*aggregates, **named)

    def iterate(
        self,
        step: Callable[[Graph], rr.Collection],
        *,
        start: rr.Collection | None = None,
        rounds: int | None = None,
        **options: Any,
    ) -> rr.Collection:
        """The nodes after a `step` was applied again and again, until nothing changes, or `rounds` times.

        `step` takes the graph of a round: this graph with the nodes of the round. It gives the nodes of the next round,
        with the same columns. The first round has the nodes of this graph, or the rows `start`, if these are given;
        they have a column `node`. `options` are the other arguments of `Collection.iterate`, such as `until`,
        `mode` and `name`. Where the step is a `join`, an expression of the values, and an `aggregate`, the loop runs on
        arrays (``flow.explain()`` says so).

        >>> def components(edges):
        ...     graph = Graph(None, edges).undirected().with_values(label="node")
        ...
        ...     def step(graph):
        ...         return graph.aggregate(graph.join(), also=graph.nodes, label=rr.min("label"))
        ...
        ...     return graph.iterate(step)
        >>> flow = rr.Dataflow("g")
        >>> edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
        >>> flow.output("components", components(edges))
        >>> with flow.run() as run:
        ...     run.insert("edges", [(1, 2), (3, 2), (4, 5)])
        ...     _ = run.commit()
        ...     run.read("components").rows()
        [(1, 1), (2, 1), (3, 1), (4, 4), (5, 4)]
        """
        first = self.nodes
        if start is not None:
            _check_rows(start, "start", "iterate")
            check_columns(start, "node")
            first = start
        body: Any = step
        if callable(step):

            @wraps(step)
            def body(rows: rr.Collection) -> rr.Collection:
                return step(self._with(nodes=rows))

        return first.iterate(body, rounds=rounds, **options)


def _check_end(by: Any, attempt: str) -> None:
    if by not in ("src", "dst"):
        raise rr.PlanError(
            "plan.end_of_edge",
            f"cannot {attempt} by {by!r}: an edge leaves its 'src' and reaches its 'dst'",
            hint='by="src" or by="dst"',
        )


def _check_rows(rows: Any, what: str, method: str) -> None:
    if not isinstance(rows, rr.Collection):
        raise rr.PlanError(
            "plan.algorithm",
            f"cannot take {_one_of(rows)} as {what} of Graph.{method}: that is not a collection",
            hint="rows along edges are what graph.join() gives; those of a node have a column 'node'",
        )
