"""Parts that all graph algorithms share: a graph's nodes, its edges in both directions, and checks of the arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import polars as pl

import riverrun as rr

NODES = {"edges": ("src", "dst"), "nodes": ("node",), "sources": ("node",)}
"""For each argument, the columns that hold nodes."""
MORE = {("cycles", "edges"): ("time",), ("shortest_paths", "edges"): ("weight",)}
"""For an argument of an algorithm, the other columns that it has to have."""
_inside_algorithm: ContextVar[bool] = ContextVar("_inside_algorithm", default=False)
"""Whether an algorithm is being built. If it calls another algorithm, its arguments were checked already."""
P = ParamSpec("P")
R = TypeVar("R")


def of_collections(function: Callable[P, R]) -> Callable[P, R]:
    """Make an algorithm refuse rows that are no collections, and a flow that is none."""
    signature = inspect.signature(function)
    called = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    @wraps(function)
    def checked(*arguments: P.args, **named: P.kwargs) -> R:
        values = signature.bind(*arguments, **named).arguments
        flow = values.get("flow")
        if "flow" in values and not isinstance(flow, rr.Dataflow):
            raise rr.PlanError(
                "plan.algorithm",
                f"cannot take {_one_of(flow)} as flow of {called}: that is not a dataflow",
                hint=f"the dataflow comes first: {called}(flow, collection, ...)",
            )
        for name in ("edges", "nodes", "sources", "examples", "points", "centres"):
            rows = values.get(name)
            missing = name == "nodes" and rows is None
            if name in values and not missing and not isinstance(rows, rr.Collection):
                raise rr.PlanError(
                    "plan.algorithm",
                    f"cannot take {_one_of(rows)} as {name} of {called}: that is not a collection",
                    hint='rows from outside are an input: flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})',
                )
        if _inside_algorithm.get():
            return function(*arguments, **named)
        bound = signature.bind(*arguments, **named)
        kinds: list[tuple[str, pl.DataType]] = []
        for name, columns in NODES.items():
            rows = values.get(name)
            if isinstance(rows, rr.Collection):
                _check_argument(rows, name, called, (*columns, *MORE.get((called, name), ())))
                kinds += [
                    (f"{column!r} of {name}", rows.polars_schema[column]) for column in columns
                ]
                _check_alike(kinds, called)
                check = NullNodes(called, name, columns)
                bound.arguments[name] = rows.inspect(check, times=False)
        token = _inside_algorithm.set(True)
        try:
            return function(*bound.args, **bound.kwargs)
        finally:
            _inside_algorithm.reset(token)

    return checked


@dataclass(frozen=True)
class NullNodes:
    """Refuses rows in which a node is null: null is not the name of a node, and has no place in the order of nodes."""

    algorithm: str
    rows: str
    columns: tuple[str, ...]

    def __call__(self, passing: Any) -> None:
        """Raise for the first column that has a null."""
        for column in self.columns:
            count = passing.column(column).null_count
            if count:
                raise rr.SchemaError(
                    "schema.null_node",
                    f"cannot take {self.rows} of {self.algorithm}: {count} of {passing.num_rows} rows have null in "
                    f"{column!r}, and a node is never null",
                    hint=f"leave these rows out: {self.rows}.filter(pl.col({column!r}).is_not_null())",
                    column=column,
                )


@of_collections
def nodes_of(edges: rr.Collection, nodes: rr.Collection | None = None) -> rr.Collection:
    """The nodes of a graph, each once: the ends of its `edges`, and those in `nodes`. Rows: node.

    >>> flow = rr.Dataflow("g")
    >>> edges = flow.input("edges", {"src": pl.String, "dst": pl.String})
    >>> flow.output("nodes", nodes_of(edges))
    >>> with flow.run() as run:
    ...     run.insert("edges", [("a", "b"), ("c", "a")])
    ...     _ = run.commit()
    ...     run.read("nodes").rows()
    [('a',), ('b',), ('c',)]
    """
    ends = edges.select(node="src").concat(edges.select(node="dst"))
    if nodes is not None:
        ends = ends.concat(nodes.select("node"))
    return ends.distinct()


@of_collections
def undirected(edges: rr.Collection) -> rr.Collection:
    """Every edge in both directions, with its other columns. Rows: those of edges.

    An edge and its reverse in `edges` give two of each; a self loop is there twice.

    >>> edges = rr.Dataflow("g").input("edges", {"src": pl.Int64, "dst": pl.Int64, "w": pl.Float64})
    >>> undirected(edges).columns
    ['src', 'dst', 'w']
    """
    return edges.concat(_reversed(edges))


def _one_of(value: Any) -> str:
    """A value by its class, in words: ``an int``."""
    name = type(value).__name__
    return f"{'an' if name[:1] in set('aeioAEIO') else 'a'} {name}"


def _reversed(edges: rr.Collection) -> rr.Collection:
    swapped = {"src": "dst", "dst": "src"}
    return edges.select(**{name: swapped.get(name, name) for name in edges.columns})


def _check_argument(rows: rr.Collection, name: str, called: str, columns: tuple[str, ...]) -> None:
    """Refuse the rows of an argument that lack a column of the algorithm, in words that say which columns it takes."""
    missing = [column for column in columns if column not in rows.columns]
    if missing:
        given = ", ".join(f'{column}="..."' for column in missing)
        raise rr.PlanError(
            "plan.column_unknown",
            f"cannot take {name} of {called}: column {missing[0]!r} does not exist; there are: "
            f"{', '.join(rows.columns)}",
            hint=f"the {name} of {called} have the columns {', '.join(columns)}: "
            f"{name}.with_columns({given}), or rename(...)",
            column=missing[0],
        )


def _check_alike(kinds: list[tuple[str, pl.DataType]], called: str) -> None:
    """Refuse columns of nodes of which some are numbers and others are not: no node would be in two of them."""
    (first, one), *others = kinds
    for column, kind in others:
        if kind.is_numeric() != one.is_numeric():
            raise rr.PlanError(
                "plan.types_differ",
                f"cannot compute {called}: {first} is {one} and {column} is {kind}, and both are nodes",
                hint=f"nodes have one type: {column.rpartition(' ')[2]}.with_columns(...=pl.col(...).cast(pl.{one}))",
            )


def check_columns(rows: rr.Collection, *columns: str) -> None:
    """Refuse rows that lack one of the columns, as `select` does; add nothing to the plan otherwise."""
    if not set(columns) <= set(rows.columns):
        rows.select(*columns)


def _dtype(collection: rr.Collection, column: str) -> pl.DataType:
    check_columns(collection, column)
    return collection.polars_schema[column]
