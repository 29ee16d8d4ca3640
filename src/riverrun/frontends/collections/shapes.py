"""Shapes of loops: which loops spread a best value along edges, and so can run on arrays.

A loop *spreads* if each key has one value, each edge carries a message made of the value of its source to its target,
and a key keeps the best of what it has heard: components by their least label, shortest and widest paths. Such a loop
has a faster executor (`operators.iterations.spread`) than the nodes of a loop. `spread_of_send` and `spread_of_body`
look at how the collections of a loop were made (`derivation`), and give a `SpreadShape`, or raise a `NoShape` that says
in words what does not fit. The answer depends on the program alone. Laws:

- **Same result.** The value that a `SpreadShape` describes for each key is the result of the loop: the best of what the
  key starts with and of the messages along all walks that lead to it.
- **Order kept.** A message of a better value is no worse: it is the value itself, the value plus a constant of the
  edge, or the smaller or greater of both. So the order in which messages are sent does not show.

Cost: linear in the steps of the loop's body, when the program is built.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from riverrun.errors import PlanError, RiverrunError
from riverrun.frontends.collections.best import Better
from riverrun.frontends.collections.derivation import (
    Best,
    Entered,
    Filtered,
    Paired,
    Projected,
    United,
    Widened,
    derivation_of,
)
from riverrun.frontends.collections.expressions import compile_columns
from riverrun.frontends.collections.expressions.tree import Node, kind_of, read
from riverrun.frontends.collections.rows import Rows, one_line
from riverrun.operators.iterations.spread import SpreadLoop
from riverrun.plan.plan import Choice, Scope
from riverrun.state.types import common_type, empty_batch, share_layout, type_text

if TYPE_CHECKING:
    from riverrun.frontends.collection import Collection

SOURCE, TARGET, WEIGHT, VALUE = "source", "target", "weight", "value"
"""Columns of a `SpreadShape`: the first two with the number of the key column behind."""


class NoShape(Exception):
    """Why a loop does not have a shape, in words that finish the sentence "not on arrays, since ..."."""


@dataclass(frozen=True)
class SpreadShape:
    """A loop that spreads a best value along edges. All collections are of the scope that the loop is in."""

    edges: Collection
    """`SOURCE` and `TARGET` columns, one for each column of the key, and `WEIGHT` unless the message is a copy."""
    solution: Collection
    """The rows at the start: the columns of the key, then the value."""
    workset: Collection | None
    """Messages that are there from the start, in the same columns."""
    key: tuple[str, ...]
    value: str
    message: str
    """What a message is made of value and weight: copy, add, min or max."""
    greatest: bool
    """Whether the greatest value is the best, or the least."""
    adds_keys: bool
    """Whether a message to a key that the solution does not have adds the key."""


@dataclass(frozen=True)
class _OfConstant:
    """A column computed from the columns of the constant side: the tree of its expression."""

    tree: Node


@dataclass(frozen=True)
class _OfKey:
    """A column of the key of the loop's variable."""

    name: str


@dataclass(frozen=True)
class _OfValue:
    """The value of the loop's variable, or a message made of it and of an expression of the constant side."""

    message: str = "copy"
    weight: Node | None = None


_Column = _OfConstant | _OfKey | _OfValue


@dataclass(frozen=True, eq=False)
class _Traced:
    """Rows inside a loop, column by column. Where `varies`, they are made of the loop's variable."""

    columns: Mapping[str, _Column]
    varies: bool
    constant: Collection | None = None
    """The rows from outside of the loop that they are made of, if any."""
    filters: Sequence[Node] = field(default_factory=tuple)
    """Conditions on the columns of `constant`."""
    sources: Mapping[str, _Column] = field(default_factory=dict)
    """Where rows of the loop were joined with `constant`: what the columns of their key are there."""

    def is_same(self, other: _Traced) -> bool:
        """Whether two constant parts are the same rows, whatever the order of their columns."""
        if self.varies or other.varies or self.constant is None or other.constant is None:
            return False
        same_rows = self.constant._port == other.constant._port
        columns = dict(self.columns) == dict(other.columns)
        return same_rows and columns and list(self.filters) == list(other.filters)


def on_arrays(shape: SpreadShape, patience: int, name: str) -> Collection:
    """The result of a loop of this shape, from one node that runs the loop on arrays. `name` is that node's."""
    solution = shape.solution
    keys = [solution.schema.field(one).with_nullable(True) for one in shape.key]
    result = pa.schema([*keys, solution.schema.field(shape.value).with_nullable(True)])
    ends = [(SOURCE, True), (TARGET, not shape.adds_keys)]
    edges = shape.edges.filter(
        *[
            pl.col(f"{end}{at}").is_not_null()
            for end, is_checked in ends
            if is_checked
            for at in range(len(keys))
        ]
    )
    sides = [edges, solution.select(*result.names)]
    if shape.workset is not None:
        sides.append(shape.workset.select(*result.names))
    operator = SpreadLoop(len(keys), shape.message, shape.greatest, shape.adds_keys, patience)
    arranged = [side._arranged(()) for side in sides]
    return solution._add(operator, arranged, result, name).select(*solution.columns)


def offer_arrays(
    shape: Callable[[], SpreadShape],
    loop: Scope,
    result: Collection,
    patience: int,
    mode: str,
    line: str,
) -> None:
    """Offer the optimizer to run a loop on arrays, whose rows leave it as `result`; or note why that cannot be."""
    builder = result._builder
    if mode == "differential":
        builder.differential[loop.number] = "mode='differential'"
        return
    try:
        with builder.whole_or_not():
            fast = _fast(shape, loop, result, patience)
    except NoShape as reason:
        if mode == "arrays":
            raise PlanError(
                "plan.no_arrays",
                f"cannot run the loop {loop.path.rstrip('/')!r} on arrays ({line}): {reason}",
                hint="mode='auto' runs it on arrays if it can, and differentially otherwise",
            ) from None
        builder.differential[loop.number] = f"not on arrays: {reason}"
        return
    builder.choices.append(Choice(loop, result._port, fast._port))


def _fast(
    shape: Callable[[], SpreadShape], loop: Scope, result: Collection, patience: int
) -> Collection:
    if loop.depth > 2:
        raise NoShape("it is inside another loop")
    for node in result._builder.nodes:
        if node.scope.is_inside(loop) and (node.operator.public_name or node.operator.passes_all):
            raise NoShape(f"rows are looked at inside of it, by {node.operator.describe()}")
    return on_arrays(shape(), patience, f"{loop.path.rstrip('/')}:spread")


def spread_of_send(
    solution: Collection,
    workset: Collection,
    key: tuple[str, ...],
    better: Better | None,
    adds_keys: bool,
    accepted: Collection,
    sent: Collection,
) -> SpreadShape:
    """The shape of a delta iteration that sends messages `sent`, made of the rows that were `accepted`."""
    value = _only_value(solution, key)
    if better is None:
        raise NoShape("nothing says which of two values is better")
    if len(better.by) > 1 or not isinstance(better.by[0], str) or better.by[0] != value:
        raise NoShape(f"better is not the least or greatest {value}, but {better!r}")
    tracer = _Tracer(accepted, key, value)
    parts = tracer.trace(sent)
    edges, message = tracer.edges(parts, solution)
    return SpreadShape(edges, solution, workset, key, value, message, better.greatest, adds_keys)


def spread_of_body(start: Collection, variable: Collection, result: Collection) -> SpreadShape:
    """The shape of a loop whose body makes `result` of the rows of a round, `variable`."""
    names = {name: name for name in result.columns}
    best = derivation_of(result)
    while isinstance(best, Projected) and all(isinstance(one, str) for one in best.wanted.values()):
        names = {name: best.wanted[inner] for name, inner in names.items()}
        best = derivation_of(best.source)
    if not isinstance(best, Best):
        raise NoShape("its body does not end with the least or greatest value of each group")
    key = tuple([name for name in result.columns if names[name] in best.key])
    if len(key) != len(best.key) or len(names) != len(key) + 1:
        raise NoShape("its body does not give a key and one value")
    value = _only_value(start, key)
    tracer = _Tracer(variable, key, value)
    wanted: dict[str, Any] = {name: names[name] for name in key}
    wanted[value] = best.columns.get(names[value])
    if wanted[value] is None:
        raise NoShape(f"its body does not give the best {value} of each group")
    parts = [tracer.projected(part, wanted) for part in tracer.trace(best.source)]
    sending = [part for part in parts if part.varies and part.constant is not None]
    own = [part for part in parts if part.varies and part.constant is None]
    constant = [part for part in parts if not part.varies]
    if not sending:
        raise NoShape("nothing is sent along rows from outside of the loop")
    identity = {**{name: _OfKey(name) for name in key}, value: _OfValue()}
    for part in own:
        if dict(part.columns) != identity or part.filters:
            raise NoShape("its body takes rows of the round as they are, but in other columns")
    whole = tracer.constant(start)
    starts = [part for part in constant if part.is_same(whole)]
    if not own and not starts:
        raise NoShape(
            "its body puts in neither the rows of the round nor the rows at the start, so values may get worse"
        )
    others = [tracer.outside(part, start) for part in constant if part not in starts]
    workset = others[0].concat(*others[1:]) if others else None
    edges, message = tracer.edges(sending, start)
    return SpreadShape(edges, start, workset, key, value, message, best.greatest, adds_keys=True)


def _only_value(rows: Collection, key: Sequence[str]) -> str:
    """The only column beside the key: a value of fixed width."""
    values = [name for name in rows.columns if name not in key]
    if len(values) != 1:
        raise NoShape(f"there are {len(values)} columns beside the key, and not one value")
    kind = rows.schema.field(values[0]).type
    if not _is_word(kind):
        raise NoShape(f"the value {values[0]!r} is {type_text(kind)}, which has no fixed width")
    return values[0]


def _is_word(kind: pa.DataType) -> bool:
    kinds = pa.types
    return bool(
        kinds.is_integer(kind)
        or kinds.is_float32(kind)
        or kinds.is_float64(kind)
        or kinds.is_boolean(kind)
        or kinds.is_date(kind)
        or kinds.is_timestamp(kind)
        or kinds.is_duration(kind)
    )


class _Tracer:
    """Follows rows inside a loop back to the loop's `variable` and to rows from outside."""

    def __init__(self, variable: Collection, key: tuple[str, ...], value: str) -> None:
        self._variable = variable
        self._loop: Scope = variable.scope
        self._key = key
        self._value = value

    def trace(self, rows: Rows) -> list[_Traced]:
        """The parts that the rows consist of."""
        if rows._port == self._variable._port:
            columns: dict[str, _Column] = {name: _OfKey(name) for name in self._key}
            columns[self._value] = _OfValue()
            return [_Traced({name: columns[name] for name in rows.columns}, True)]
        made = derivation_of(rows)
        if not rows.scope.is_inside(self._loop):
            return [self.constant(rows)]
        if isinstance(made, Entered):
            return self.trace(made.source)
        if isinstance(made, Projected):
            return [self.projected(part, made.wanted) for part in self.trace(made.source)]
        if isinstance(made, Filtered):
            return [self._filtered(part, made.predicate) for part in self.trace(made.source)]
        if isinstance(made, Widened):
            return [self._widened(part, made.kinds) for part in self.trace(made.source)]
        if isinstance(made, United):
            return [part for each in made.parts for part in self.trace(each)]
        if isinstance(made, Paired):
            lefts, rights = self.trace(made.left), self.trace(made.right)
            return [self._paired(made, left, right) for left in lefts for right in rights]
        node = rows._builder.nodes[rows._port.node]
        raise NoShape(
            f"there is a step in its body that arrays do not know: {node.operator.describe()}"
        )

    def constant(self, rows: Rows) -> _Traced:
        """Rows from outside of the loop: columns of the rows that these columns were picked from."""
        made = derivation_of(rows)
        if isinstance(made, Widened):
            return self._widened(self.constant(made.source), made.kinds)
        if isinstance(made, Projected) and all(
            isinstance(one, str) for one in made.wanted.values()
        ):
            return self.projected(self.constant(made.source), made.wanted)
        here: Any = rows
        return _Traced({name: _OfConstant({"Column": name}) for name in rows.columns}, False, here)

    def _widened(self, part: _Traced, kinds: Mapping[str, pa.DataType]) -> _Traced:
        """The rows, with some columns in wider types."""
        columns = dict(part.columns)
        for name, kind in kinds.items():
            column = columns[name]
            if not isinstance(column, _OfConstant):
                raise NoShape(f"column {name!r} is of two types, in rows that change in the loop")
            as_polars = pl.DataFrame(empty_batch(pa.schema({name: kind}))).schema[name]
            wider = read(pl.col(name).cast(as_polars))
            columns[name] = _OfConstant(_substituted(wider, {name: column}))
        return replace(part, columns=columns)

    def projected(self, part: _Traced, wanted: Mapping[str, Any]) -> _Traced:
        columns = {name: self._column(value, part.columns) for name, value in wanted.items()}
        return replace(part, columns=columns)

    def _column(self, value: Any, columns: Mapping[str, _Column]) -> _Column:
        if isinstance(value, str):
            return columns[value]
        if not isinstance(value, pl.Expr):
            value = pl.lit(value, pl.Int64) if type(value) is int else pl.lit(value)
        return self._meaning(read(value), columns, value)

    def _meaning(self, tree: Node, columns: Mapping[str, _Column], shown: pl.Expr) -> _Column:
        """What an expression of `columns` is: of the constant side, or a message made of the value."""
        if all(isinstance(columns.get(name), _OfConstant) for name in _named(tree)):
            return _OfConstant(_substituted(tree, columns))
        kind, parts = kind_of(tree)
        if kind == "Column":
            return columns[parts]
        if kind == "Alias":
            return self._meaning(parts[0], columns, shown)
        operands, message = [], ""
        if kind == "BinaryExpr" and parts["op"] == "Plus":
            operands, message = [parts["left"], parts["right"]], "add"
        elif kind == "Function" and parts["function"] in ("MinHorizontal", "MaxHorizontal"):
            operands, message = list(parts["input"]), str(parts["function"])[:3].lower()
        if len(operands) == 2:
            meanings = [self._meaning(one, columns, shown) for one in operands]
            if meanings[0] != _OfValue():
                meanings.reverse()
            first, second = meanings
            if first == _OfValue() and isinstance(second, _OfConstant):
                return _OfValue(message, second.tree)
        raise NoShape(
            f"a message is {one_line(shown)}: not the value itself, the value plus a constant, or the smaller or "
            "greater of both"
        )

    def _filtered(self, part: _Traced, predicate: Any) -> _Traced:
        tree = read(predicate)
        if not all(isinstance(part.columns.get(name), _OfConstant) for name in _named(tree)):
            raise NoShape(f"rows are filtered by a value that changes: {one_line(predicate)}")
        if part.constant is None:
            raise NoShape(f"rows of the round are filtered: {one_line(predicate)}")
        return replace(part, filters=(*part.filters, _substituted(tree, part.columns)))

    def _paired(self, made: Paired, left: _Traced, right: _Traced) -> _Traced:
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
            if not isinstance(column, _OfKey):
                raise NoShape(f"values are joined on {mine!r}, which is not the key")
            by_key[column.name] = still.columns[its]
        if set(by_key) != set(self._key):
            raise NoShape(f"values are joined on a part of their key {', '.join(self._key)}")
        sides = (left, right)
        columns: dict[str, _Column] = {}
        for name, (side, inner) in made.names.items():
            column = sides[side].columns[inner]
            columns[name] = by_key[column.name] if isinstance(column, _OfKey) else column
        filters = (*moving.filters, *still.filters)
        return _Traced(columns, True, still.constant, filters, by_key)

    # -- out of the loop

    def outside(self, part: _Traced, like: Collection) -> Collection:
        """Constant rows as a collection outside of the loop, with the columns and types of `like`."""
        assert part.constant is not None
        wanted = {name: _expression(part.columns[name]) for name in like.columns}
        rows = self._rows(part, wanted)
        for one in like.schema:
            if not share_layout(rows.schema.field(one.name).type, one.type):
                raise NoShape(f"column {one.name!r} is of two types")
        return rows

    def edges(self, parts: Sequence[_Traced], solution: Collection) -> tuple[Collection, str]:
        """The edges along which messages are sent, and what a message is."""
        listed, messages = [], set()
        for part in parts:
            if not part.varies or part.constant is None:
                raise NoShape("the messages of a round are not all made of the values of the round")
            message = part.columns[self._value]
            if not isinstance(message, _OfValue):
                raise NoShape("a message does not depend on the value of its sender")
            messages.add(message.message)
            listed.append(self._edges(part, message, solution))
        if len(messages) > 1:
            raise NoShape("messages of several kinds are sent")
        return listed[0].concat(*listed[1:]) if len(listed) > 1 else listed[0], messages.pop()

    def _edges(self, part: _Traced, message: _OfValue, solution: Collection) -> Collection:
        wanted: dict[str, Any] = {
            f"{SOURCE}{at}": _expression(part.sources[name]) for at, name in enumerate(self._key)
        }
        for at, name in enumerate(self._key):
            target = part.columns[name]
            if not isinstance(target, _OfConstant):
                raise NoShape(
                    f"the target {name!r} of a message is computed from a value that changes"
                )
            wanted[f"{TARGET}{at}"] = _expression(target)
        if message.weight is not None:
            wanted[WEIGHT] = _expression(_OfConstant(message.weight))
        rows = self._rows(part, wanted)
        for at, name in enumerate(self._key):
            kind = solution.schema.field(name).type
            for end in (SOURCE, TARGET):
                if not share_layout(rows.schema.field(f"{end}{at}").type, kind):
                    raise NoShape(f"the key {name!r} is of two types")
        if message.weight is not None:
            rows = self._weighted(rows, message.message, solution)
        return rows

    def _weighted(self, rows: Collection, message: str, solution: Collection) -> Collection:
        """The edges, with weights in the type of the value."""
        kind = solution.schema.field(self._value).type
        weight = rows.schema.field(WEIGHT).type
        if common_type(kind, weight) is None or not share_layout(common_type(kind, weight), kind):
            raise NoShape(
                f"a message is made of {type_text(kind)} and {type_text(weight)}, which is no {type_text(kind)}"
            )
        if message != "add":
            # The smaller or greater of both passes over a null and, as the greater of floats, over a NaN.
            values = solution.schema.field(self._value)
            if values.nullable or rows.schema.field(WEIGHT).nullable:
                raise NoShape(
                    f"a message is the {message} of two columns, and one of them may be null"
                )
            if pa.types.is_floating(kind):
                raise NoShape(f"a message is the {message} of floats, and one of them may be NaN")
        if not share_layout(kind, weight):
            as_value = solution.polars_schema[self._value]
            rows = rows.with_columns(**{WEIGHT: pl.col(WEIGHT).cast(as_value)})
        schema = pa.schema({VALUE: kind, WEIGHT: kind})
        value, other = pl.col(VALUE), pl.col(WEIGHT)
        made = {
            "add": value + other,
            "min": pl.min_horizontal(value, other),
            "max": pl.max_horizontal(value, other),
        }[message]
        try:
            result = compile_columns(schema, {VALUE: made}, "make a message").schema.field(0).type
        except RiverrunError as error:
            raise NoShape(f"a message cannot be computed: {error}") from error
        if not share_layout(result, kind):
            raise NoShape(f"a message is {type_text(result)}, and the value {type_text(kind)}")
        return rows

    def _rows(self, part: _Traced, wanted: Mapping[str, Any]) -> Collection:
        rows = part.constant
        assert rows is not None
        for condition in part.filters:
            rows = rows.filter(_as_polars(condition))
        try:
            return rows.select(**wanted)
        except RiverrunError as error:
            raise NoShape(
                f"its messages cannot be computed outside of the loop: {error}"
            ) from error


def _named(tree: Any) -> set[str]:
    """The names of the columns in an expression."""
    if isinstance(tree, dict):
        names = {tree["Column"]} if isinstance(tree.get("Column"), str) else set()
        return names.union(*map(_named, tree.values()))
    return set().union(*map(_named, tree)) if isinstance(tree, list) else set()


def _substituted(tree: Any, columns: Mapping[str, _Column]) -> Any:
    """An expression, in which each column stands for what it is on the constant side."""
    if isinstance(tree, dict):
        if isinstance(tree.get("Column"), str):
            column = columns[tree["Column"]]
            assert isinstance(column, _OfConstant)
            return column.tree
        return {kind: _substituted(parts, columns) for kind, parts in tree.items()}
    return [_substituted(part, columns) for part in tree] if isinstance(tree, list) else tree


def _as_polars(tree: Node) -> pl.Expr:
    return pl.Expr.deserialize(io.BytesIO(json.dumps(tree).encode()), format="json")


def _expression(column: _Column) -> Any:
    """What to select for a column of the constant side: its name where it is one."""
    assert isinstance(column, _OfConstant)
    kind, parts = kind_of(column.tree)
    return parts if kind == "Column" else _as_polars(column.tree)
