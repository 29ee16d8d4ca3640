"""Derivations: how collections were made of others, kept while a program is written.

The plan knows what each node does, but not the expressions in it. Who looks for the shape of a loop
(`frontends.collections.shapes`) needs these: so the methods of collections that shapes are made of note what they did
(`noted`), and `derivation_of` tells. A port without a note was made in some other way.

>>> import polars as pl, riverrun as rr
>>> edges = rr.Dataflow("g").input("edges", {"src": int, "dst": int})
>>> derivation_of(edges.select("dst")).wanted
{'dst': 'dst'}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

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
class Widened:
    """The same rows, with the columns `kinds` in wider types of Arrow."""

    source: Rows
    kinds: Mapping[str, Any]


Derivation = Projected | Filtered | Paired | United | Entered | Best | Widened


def noted(made: Made, derivation: Derivation) -> Made:
    """The collection `made`, of which it is noted how it was made."""
    made._builder.shared["derivation", made._port] = derivation
    return made


def derivation_of(rows: Rows) -> Derivation | None:
    """How a collection was made, if that was noted."""
    derivation: Derivation | None = rows._builder.shared.get(("derivation", rows._port))
    return derivation
