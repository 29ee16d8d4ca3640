"""Derivations: how collections were made of others, kept while a program is written.

The plan knows what each node does, but not the expressions in it. Who looks for the shape of a loop
(`frontends.collections.shapes`) needs these: so the methods of collections that shapes are made of note what they did
(`noted`), and `derivation_of` tells. A port without a note was made in some other way. `has_one_row` follows the notes
to prove that a key is unique. Law:

- **Certain.** What `has_one_row` says of rows holds in every epoch. What it cannot prove, it denies.

>>> import polars as pl, riverrun as rr
>>> edges = rr.Dataflow("g").input("edges", {"src": int, "dst": int})
>>> derivation_of(edges.select("dst")).wanted
{'dst': 'dst'}
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from riverrun.frontends.collections.expressions.tree import kind_of, read
from riverrun.plan.operator import Role

if TYPE_CHECKING:
    from riverrun.frontends.collections.rows import Rows

Made = TypeVar("Made", bound="Rows")


@dataclass(frozen=True)
class Projected:
    """New columns of the columns of a row: names, or Polars expressions."""

    source: Rows
    wanted: Mapping[str, Any]


@dataclass(frozen=True)
class Filtered:
    """The rows for which a Polars expression is true."""

    source: Rows
    predicate: Any


@dataclass(frozen=True)
class Paired:
    """The pairs of rows with equal keys. `names` has for each column of a pair its side (0: left, 1: right), and its
    name there."""

    left: Rows
    left_key: tuple[str, ...]
    right: Rows
    right_key: tuple[str, ...]
    names: Mapping[str, tuple[int, str]]


@dataclass(frozen=True)
class United:
    """The rows of several collections with the same columns."""

    parts: Sequence[Rows]


@dataclass(frozen=True)
class Entered:
    """The rows of a collection outside of a loop, inside the loop."""

    source: Rows


@dataclass(frozen=True)
class Unique:
    """Rows of which at most one is there for each key, once, however they were made."""

    key: tuple[str, ...]


@dataclass(frozen=True)
class Aggregated:
    """One row for each key, with aggregates: for each column the kind of the aggregate, and the name or Polars
    expression that it is of (None for all rows). The kind is ``other`` for aggregates by order, or of Polars."""

    source: Rows
    key: tuple[str, ...]
    wanted: Mapping[str, tuple[str, Any]]


@dataclass(frozen=True)
class Best:
    """One row for each key: the least or greatest value of each of some columns, by their names in the result.

    `columns` are names or Polars expressions of the source. There are no other columns than those of the key and these;
    with `whole`, the values are those of one row, and otherwise each column has its own best value.
    """

    source: Rows
    key: tuple[str, ...]
    columns: Mapping[str, Any]
    greatest: bool
    whole: bool


@dataclass(frozen=True)
class Subset:
    """Some of the rows of a collection, each no more often than there."""

    source: Rows


Derivation = Projected | Filtered | Paired | United | Entered | Unique | Aggregated | Best | Subset


def noted(made: Made, derivation: Derivation) -> Made:
    """The collection `made`, of which it is noted how it was made."""
    made._builder.shared["derivation", made._port] = derivation
    return made


def derivation_of(rows: Rows) -> Derivation | None:
    """How a collection was made, if that was noted."""
    derivation: Derivation | None = rows._builder.shared.get(("derivation", rows._port))
    return derivation


def may_owe(rows: Rows) -> bool:
    """Whether a row may be there less than no times, as far as is known: behind a negation."""
    builder = rows._builder
    seen, waiting = {rows._port}, [rows._port]
    while waiting:
        port = waiting.pop()
        made = builder.shared.get(("derivation", port))
        if isinstance(made, Unique | Aggregated | Best):
            continue
        node = builder.nodes[port.node]
        if node.operator.role is Role.NEGATE:
            return True
        sources = {made.source._port} if isinstance(made, Subset) else {*node.inputs}
        waiting += sources - seen
        seen |= sources
    return False


def best_of(derivation: Derivation | None) -> Best | None:
    """The best values of each key, where that is what was made: by order, or as aggregates."""
    if isinstance(derivation, Aggregated):
        kinds = {kind for kind, _ in derivation.wanted.values()}
        if kinds not in ({"min"}, {"max"}):
            return None
        columns = {name: column for name, (_, column) in derivation.wanted.items()}
        return Best(derivation.source, derivation.key, columns, kinds == {"max"}, whole=False)
    return derivation if isinstance(derivation, Best) else None


def has_one_row(rows: Rows, key: Collection[str]) -> bool:
    """Whether it is certain that there is at most one row, once, for each value of some columns."""
    made, columns = derivation_of(rows), {*key}
    if isinstance(made, Projected):
        taken = [_picked(made.wanted[name]) for name in columns]
        return has_one_row(made.source, [name for name in taken if name is not None])
    if isinstance(made, Filtered | Entered):
        return has_one_row(made.source, columns)
    if isinstance(made, Unique | Aggregated | Best):
        return columns >= {*made.key}
    if isinstance(made, Paired):
        named = [made.names[name] for name in columns]
        left = {inner for side, inner in named if side == 0}
        right = {inner for side, inner in named if side == 1}
        for mine, its in zip(made.left_key, made.right_key, strict=True):
            if mine in left or its in right:  # they are equal
                left.add(mine)
                right.add(its)
        return (
            has_one_row(made.left, left) and has_one_row(made.right, {*right, *made.right_key})
        ) or (has_one_row(made.right, right) and has_one_row(made.left, {*left, *made.left_key}))
    return False


def key_of(rows: Rows) -> tuple[str, ...] | None:
    """Columns by which rows lie together as the last group made them; None if that is not known.

    >>> import polars as pl, riverrun as rr
    >>> sales = rr.Dataflow("s").input("sales", {"item": pl.String, "price": pl.Float64})
    >>> key_of(sales.group_by("item").agg(paid=rr.sum("price")).select("paid", what="item"))
    ('what',)
    """
    names: Mapping[str, str] = {name: name for name in rows.columns}
    while True:
        made = derivation_of(rows)
        if isinstance(made, Projected):
            taken = {outer: _picked(made.wanted[name]) for outer, name in names.items()}
            names = {outer: name for outer, name in taken.items() if name is not None}
            rows = made.source
            continue
        if not isinstance(made, Aggregated | Best | Unique):
            return None
        places = {inner: outer for outer, inner in names.items()}
        if not made.key or not all(name in places for name in made.key):
            return None
        return tuple([places[name] for name in made.key])


def _picked(value: Any) -> str | None:
    """The column that a name or an expression picks as it is."""
    if not isinstance(value, pl.Expr):
        return value if isinstance(value, str) else None
    kind, parts = kind_of(read(value))
    return parts if kind == "Column" else None
