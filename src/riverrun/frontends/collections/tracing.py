"""Tracing: what the columns of rows inside a loop are made of.

A `Tracer` follows rows inside a loop back to the loop's variable and to rows from outside, by the notes of
`derivation`. A *shape* describes a loop in the form in which one node can run it on arrays. The modules that look for
shapes (`shapes`, `pull_shapes`) have a tracer each, which says what an expression of the variable's values becomes.
Law:

- **As written.** An expression that is put into another one is cast to the type that its column had, so the whole is
  computed as the parts would have been. Where that cannot be promised, there is no shape.

Polars reads some floats back from a tree with another last digit. `as_polars` writes such a float in another way, so
that the expression of the example comes back with the same value:

>>> as_polars(
...     read(pl.col("a") * 0.15000000000000002), pa.schema({"a": pa.float64()})
... ).meta.root_names()
['a']

Cost: linear in the steps that are followed and in their expressions.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from riverrun.errors import RiverrunError
from riverrun.frontends.collections.derivation import (
    Entered,
    Filtered,
    Paired,
    Projected,
    United,
    derivation_of,
    may_owe,
)
from riverrun.frontends.collections.expressions.tree import Node, kind_of, read, selects
from riverrun.frontends.collections.rows import Rows, one_line
from riverrun.plan.plan import Scope
from riverrun.state.types import share_layout

if TYPE_CHECKING:
    from riverrun.frontends.collection import Collection


MOST_PARTS = 32
"""So many parts may be put together in the body of a loop on arrays."""


class NoShape(Exception):
    """Why a loop does not have a shape, in words that finish the sentence "not on arrays, since ..."."""

    def __init__(self, reason: str, *, is_other: bool = False) -> None:
        super().__init__(reason)
        self.is_other = is_other
        """Whether the loop is of another kind altogether, so that some other shape may be nearer."""


@dataclass(frozen=True)
class OfConstant:
    """A column computed from the columns of the constant side: the tree of its expression."""

    tree: Node
    kind: Any = field(default=None, compare=False)
    """The Polars type, if it is known."""


@dataclass(frozen=True)
class OfKey:
    """A column of the key of the loop's variable."""

    name: str


@dataclass(frozen=True)
class Traced:
    """Rows inside a loop, column by column. Where `varies`, they are made of the loop's variable."""

    columns: Mapping[str, Any]
    """`OfConstant`, `OfKey`, or what the tracer makes of values."""
    varies: bool
    constant: Collection | None = None
    """The rows from outside of the loop that they are made of, if any."""
    filters: Sequence[Node] = field(default_factory=tuple)
    """Conditions on the columns of `constant`."""
    sources: Mapping[str, Any] = field(default_factory=dict)
    """Where rows of the loop were joined with `constant`: what the columns of their key are there."""

    def is_same(self, other: Traced) -> bool:
        """Whether two parts are the same rows, whatever the order of their columns."""
        if self.varies != other.varies or self.constant is None or other.constant is None:
            return False
        return (
            self.constant._port == other.constant._port
            and dict(self.columns) == dict(other.columns)
            and list(self.filters) == list(other.filters)
            and dict(self.sources) == dict(other.sources)
        )


class Tracer:
    """Follows rows inside a loop back to the loop's `variable` and to rows from outside."""

    def __init__(self, variable: Collection, key: tuple[str, ...]) -> None:
        self._variable = variable
        self._loop: Scope = variable.scope
        self._key = key

    def of_value(self, name: str) -> Any:
        """What a value of the variable is."""
        raise NotImplementedError

    def computed(self, tree: Node, columns: Mapping[str, Any], shown: pl.Expr, kind: Any) -> Any:
        """What an expression is that is made of values."""
        raise NotImplementedError

    def trace(self, rows: Rows) -> list[Traced]:
        """The parts that the rows consist of."""
        if rows._port == self._variable._port:
            columns = {
                name: OfKey(name) if name in self._key else self.of_value(name)
                for name in rows.columns
            }
            return [Traced(columns, True)]
        if not rows.scope.is_inside(self._loop):
            return [self.constant(rows)]
        made = derivation_of(rows)
        if isinstance(made, Entered):
            return self.trace(made.source)
        if isinstance(made, Projected):
            types = rows.polars_schema
            return [self.projected(part, made.wanted, types) for part in self.trace(made.source)]
        if isinstance(made, Filtered):
            return [self._filtered(part, made.predicate) for part in self.trace(made.source)]
        if isinstance(made, United):
            parts = [part for each in made.parts for part in self.trace(each)]
            if len(parts) > MOST_PARTS:
                raise NoShape(f"more than {MOST_PARTS} collections are put together in its body")
            return parts
        if isinstance(made, Paired):
            lefts, rights = self.trace(made.left), self.trace(made.right)
            return [self._paired(made, left, right) for left in lefts for right in rights]
        node = rows._builder.nodes[rows._port.node]
        raise NoShape(
            f"there is a step in its body that arrays do not know: {node.operator.describe()}"
        )

    def constant(self, rows: Rows) -> Traced:
        """Rows from outside of the loop: as columns of the rows that they were picked from, or widened."""
        made = derivation_of(rows)
        if isinstance(made, Projected) and all(map(is_picked, made.wanted.values())):
            picked = self.constant(made.source)
            with suppress(NoShape):  # of a cast that may fail, which these rows have passed
                return self.projected(picked, made.wanted, rows.polars_schema)
        if may_owe(rows):
            raise NoShape(
                "rows from outside of the loop come behind a negation, and might cancel others"
            )
        here: Any = rows
        kinds = rows.polars_schema
        named = {name: OfConstant({"Column": name}, kinds[name]) for name in rows.columns}
        return Traced(named, False, here)

    def projected(
        self, part: Traced, wanted: Mapping[str, Any], kinds: Mapping[str, Any] | None = None
    ) -> Traced:
        """The part with columns made of its columns, whose Polars types are `kinds`."""
        kinds = kinds or {}
        columns = {
            name: self._column(value, part.columns, kinds.get(name))
            for name, value in wanted.items()
        }
        return replace(part, columns=columns)

    def _column(self, value: Any, columns: Mapping[str, Any], kind: Any) -> Any:
        if isinstance(value, str):
            return columns[value]
        if not isinstance(value, pl.Expr):
            value = pl.lit(value, pl.Int64) if type(value) is int else pl.lit(value)
        return self.meaning(read(value), columns, value, kind)

    def meaning(
        self, tree: Node, columns: Mapping[str, Any], shown: pl.Expr, kind: Any = None
    ) -> Any:
        """What an expression of `columns` is: of the constant side, or made of values."""
        head, parts = kind_of(tree)
        if head == "Alias":
            return self.meaning(parts[0], columns, shown, kind)
        if head == "Column":
            return columns[parts]
        check_moves(tree, shown)
        if not named_in(tree) <= columns.keys():
            raise NoShape(f"an expression looks at elements: {one_line(shown)}")
        if all(isinstance(columns.get(name), OfConstant) for name in named_in(tree)):
            check_total(tree, columns, shown)
            return OfConstant(substituted(tree, columns), kind)
        return self.computed(tree, columns, shown, kind)

    def _filtered(self, part: Traced, predicate: Any) -> Traced:
        if not isinstance(predicate, pl.Expr):
            predicate = pl.lit(predicate)
        tree = read(predicate)
        check_moves(tree, predicate)
        if not all(isinstance(part.columns.get(name), OfConstant) for name in named_in(tree)):
            raise NoShape(f"rows are filtered by a value that changes: {one_line(predicate)}")
        if part.constant is None:
            raise NoShape(f"rows of the round are filtered: {one_line(predicate)}")
        check_total(tree, part.columns, predicate)
        return replace(part, filters=(*part.filters, substituted(tree, part.columns)))

    def _paired(self, made: Paired, left: Traced, right: Traced) -> Traced:
        if left.varies == right.varies:
            raise NoShape(
                "two collections that change in the loop are joined"
                if left.varies
                else "rows from outside of the loop are joined inside the loop; join them before it"
            )
        moving, still, moving_key, still_key = left, right, made.left_key, made.right_key
        if right.varies:
            moving, still, moving_key, still_key = right, left, made.right_key, made.left_key
        if moving.constant is not None:
            raise NoShape("messages are joined with more than one collection")
        by_key = {}
        for mine, its in zip(moving_key, still_key, strict=True):
            column = moving.columns[mine]
            if not isinstance(column, OfKey):
                raise NoShape(f"values are joined on {mine!r}, which is not the key")
            if column.name in by_key:
                raise NoShape(f"values are joined on their key {mine!r} twice")
            by_key[column.name] = still.columns[its]
        if set(by_key) != set(self._key):
            raise NoShape(f"values are joined on a part of their key {', '.join(self._key)}")
        sides = (left, right)
        columns: dict[str, Any] = {}
        for name, (side, inner) in made.names.items():
            column = sides[side].columns[inner]
            columns[name] = by_key[column.name] if isinstance(column, OfKey) else column
        filters = (*moving.filters, *still.filters)
        return Traced(columns, True, still.constant, filters, by_key)

    # -- out of the loop

    def outside(self, part: Traced, like: Collection) -> Collection:
        """Constant rows as a collection outside of the loop, with the columns and types of `like`."""
        rows = self.rows(part, {name: part.columns[name] for name in like.columns})
        for one in like.schema:
            if not share_layout(rows.schema.field(one.name).type, one.type):
                raise NoShape(f"column {one.name!r} is of two types")
        return rows

    def rows(self, part: Traced, wanted: Mapping[str, OfConstant]) -> Collection:
        """The constant rows of a part, outside of the loop, as some columns of the constant side."""
        rows = part.constant
        assert rows is not None
        try:
            for condition in part.filters:
                rows = rows.filter(as_polars(condition, rows.schema))
            return rows.select(
                **{name: expression_of(column, rows.schema) for name, column in wanted.items()}
            )
        except RiverrunError as error:
            raise NoShape(
                f"its messages cannot be computed outside of the loop: {error}"
            ) from error


# -- trees


def is_picked(value: Any) -> bool:
    """Whether a column is another one, or a cast of another one."""
    if isinstance(value, str):
        return True
    if not isinstance(value, pl.Expr):
        return False
    kind, parts = kind_of(read(value))
    return kind == "Cast" and kind_of(parts["expr"])[0] == "Column"


def named_of(value: Any) -> str:
    """The name of the column that is picked, or cast."""
    if isinstance(value, str):
        return value
    (name,) = named_in(read(value))
    return name


def named_in(tree: Any) -> set[str]:
    """The names of the columns in an expression."""
    if isinstance(tree, dict):
        names = {tree["Column"]} if isinstance(tree.get("Column"), str) else set()
        return names.union(*map(named_in, tree.values()))
    return set().union(*map(named_in, tree)) if isinstance(tree, list) else set()


def check_moves(tree: Node, shown: Any) -> None:
    """Refuse an expression whose meaning depends on what its columns are called, or that has Python functions."""
    if selects(tree):
        raise NoShape(f"columns are chosen by pattern or type: {one_line(shown)}")
    kinds = _kinds_in(tree)
    if "AnonymousFunction" in kinds:
        raise NoShape(f"a Python function is called: {one_line(shown)}")
    if kinds & {"AsStruct", "Field", "KeepName", "RenameAlias", "WithFields"}:
        raise NoShape(f"an expression depends on the names of columns: {one_line(shown)}")


_TOTAL = {
    *("Abs", "Negate", "FillNull", "Coalesce", "MinHorizontal", "MaxHorizontal", "Boolean"),
    *("LenChars", "LenBytes", "Lowercase", "Uppercase"),
}
"""The functions of Polars that arrays know to have a value for every row."""


def check_total(tree: Node, columns: Mapping[str, Any], shown: Any) -> None:
    """Refuse an expression that may fail for some row.

    Outside of the loop it is computed for all rows, and inside only for those that are reached.
    """
    kind, parts = kind_of(tree)
    if kind in ("Column", "Literal"):
        return
    if kind == "Alias":
        inner = [parts[0]]
    elif kind == "BinaryExpr":
        inner = [parts["left"], parts["right"]]
    elif kind == "Ternary":
        inner = [parts["predicate"], parts["truthy"], parts["falsy"]]
    elif kind == "Cast" and _is_total(parts, columns):
        inner = [parts["expr"]]
    elif kind == "Function" and _names_of(parts["function"]) & _TOTAL:
        inner = list(parts["input"])
    else:
        raise NoShape(f"an expression might fail for rows that are not reached: {one_line(shown)}")
    for each in inner:
        check_total(each, columns, shown)


def _names_of(function: Node) -> set[str]:
    """The kind of a function, and of the function within, such as those of strings."""
    kind, parts = kind_of(function)
    return {kind, parts} if isinstance(parts, str) else {kind}


def _is_total(cast: Mapping[str, Any], columns: Mapping[str, Any]) -> bool:
    """Whether a cast has a value for every row."""
    if cast["options"] != "Strict":
        return True
    kind, parts = kind_of(cast["expr"])
    if kind == "Literal":
        return True
    column = columns.get(parts) if kind == "Column" else None
    dtype = cast["dtype"].get("Literal") if isinstance(cast["dtype"], dict) else None
    given = getattr(column, "kind", None)
    if given is None or not isinstance(dtype, str) or not given.is_numeric():
        return False
    wanted = getattr(pl, dtype, None)
    if wanted in (pl.Float32, pl.Float64):
        return not given.is_decimal()
    if wanted is None or not (given.is_integer() and wanted.is_integer()):
        return False
    least, most = _range_of(given)
    return _range_of(wanted)[0] <= least and most <= _range_of(wanted)[1]


def _range_of(kind: Any) -> tuple[int, int]:
    bits = int("".join(filter(str.isdigit, str(kind))))
    return (
        (0, 2**bits - 1)
        if kind.is_unsigned_integer()
        else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )


def check_key(start: Rows, key: Sequence[str]) -> None:
    """Refuse a key that arrays do not know."""
    if not key:
        raise NoShape("it has no key")
    for name in key:
        if _has_words(start.schema.field(name).type):
            raise NoShape(f"the key {name!r} is an enum")


def _has_words(kind: pa.DataType) -> bool:
    """Whether some values of a type are kept as numbers of words."""
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_words(kind.field(at).type) for at in range(kind.num_fields))


def _kinds_in(tree: Any) -> set[str]:
    if isinstance(tree, dict):
        words = {value for value in tree.values() if isinstance(value, str)}
        return {*tree, *words}.union(*map(_kinds_in, tree.values()))
    return set().union(*map(_kinds_in, tree)) if isinstance(tree, list) else set()


def substituted(tree: Any, columns: Mapping[str, Any]) -> Any:
    """An expression, in which each column stands for what it is on the constant side."""
    if isinstance(tree, dict):
        if isinstance(tree.get("Column"), str):
            column = columns[tree["Column"]]
            assert isinstance(column, OfConstant)
            return typed(column.tree, column.kind)
        return {kind: substituted(parts, columns) for kind, parts in tree.items()}
    return [substituted(part, columns) for part in tree] if isinstance(tree, list) else tree


def typed(tree: Node, kind: Any) -> Node:
    """An expression whose type does not depend on what is made of it: that of the column it was."""
    if kind is None or kind_of(tree)[0] == "Column":
        return tree
    [(head, parts)] = dict(read(pl.col("x").cast(kind))).items()  # type: ignore[arg-type]
    return {head: {**parts, "expr": tree}}


def as_polars(tree: Node, schema: pa.Schema) -> pl.Expr:
    """The expression of a tree, of columns of `schema`; a `NoShape` if it does not come back as it was."""
    for attempt in (tree, _spelled(tree)):
        try:
            made = pl.Expr.deserialize(io.BytesIO(json.dumps(attempt).encode()), format="json")
        except pl.exceptions.PolarsError:
            break
        if read(made) == attempt:
            return made
        # Polars reads some floats back with another last digit; read from a string, they are right. But then they are
        # doubles, and no longer of the type of what they meet.
        named = named_in(tree)
        kinds = [each.type for each in schema if each.name in named]
        if "Float32" in _kinds_in(tree) or not all(map(_meets_doubles, kinds)):
            break
    raise NoShape("an expression cannot be taken out of the loop")


def _meets_doubles(kind: pa.DataType) -> bool:
    """Whether values of a type make doubles with a double as with a literal float."""
    return bool(pa.types.is_integer(kind) or pa.types.is_float64(kind))


def _spelled(tree: Any) -> Any:
    """An expression with literal floats as casts of strings."""
    if isinstance(tree, dict):
        value = tree.get("Literal")
        if isinstance(value, dict):
            [(kind, inner)] = value.items()
            if kind in ("Dyn", "Scalar") and isinstance(inner, dict):
                number = inner.get("Float", inner.get("Float64"))
                if isinstance(number, float):
                    return read(pl.lit(repr(number)).cast(pl.Float64))
            return tree
        return {kind: _spelled(parts) for kind, parts in tree.items()}
    return [_spelled(part) for part in tree] if isinstance(tree, list) else tree


def expression_of(column: OfConstant, schema: pa.Schema) -> Any:
    """What to select for a column of the constant side: its name where it is one."""
    kind, parts = kind_of(column.tree)
    return parts if kind == "Column" else as_polars(typed(column.tree, column.kind), schema)
