"""Shapes of loops that pull: which loops make all their rows anew in each round of parts that come along edges.

In each round each row of such a loop sends a part along each of its edges, the parts that come to a key are combined
(sum, least, greatest, how many), and a row-wise expression finishes the row: PageRank, sums along paths. Such a loop
has a faster executor (`operators.iterations.pull`) than the nodes of a loop. `pull_of_body` looks at how the
collections of a loop were made (`tracing`), and gives a `PullShape`, or raises a `NoShape`. Laws:

- **Same result.** The operator of a `PullShape` gives the rows of the loop, bit for bit, after as many rounds.
- **One row a key.** A loop has a shape only if no key can have two rows at the start.

Cost: linear in the steps of the loop's body, when the program is built.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from riverrun.errors import RiverrunError
from riverrun.frontends.collections.derivation import (
    Aggregated,
    Projected,
    derivation_of,
    has_one_row,
    may_owe,
)
from riverrun.frontends.collections.expressions import Projection, canonical, compile_columns
from riverrun.frontends.collections.expressions.tree import Node, kind_of
from riverrun.frontends.collections.tracing import (
    NoShape,
    OfConstant,
    OfKey,
    Traced,
    Tracer,
    as_polars,
    check_key,
    named_in,
    typed,
)
from riverrun.operators.iterations.pull import EXTRAS, PullRounds
from riverrun.operators.iterations.pull_loop import Combine, Formula, PullLoop, Tolerance
from riverrun.operators.rounds.stops import Closeness
from riverrun.rows.values import listed
from riverrun.state.types import empty_batch, share_layout

if TYPE_CHECKING:
    from riverrun.frontends.collection import Collection

SOURCE, TARGET, CONSTANT, PART = "source", "target", "constant", "part"
"""Columns of the sides of a `PullShape`, with a number behind."""

_VALUE, _KEY, _EDGE = "value:", "key:", "edge:"
"""How columns are called in the tree of a message: a value or a column of the key by its name, a column of the constant
side by its tree."""


@dataclass(frozen=True)
class PullShape:
    """A loop in which keys pull parts along edges. All collections are of the scope that the loop is in."""

    edges: Collection
    """`SOURCE` and `TARGET` columns, one for each column of the key, then `CONSTANT` columns."""
    start: Collection
    extras: Collection | None
    """Parts that come in each round: `TARGET` columns, then `PART` columns."""
    key: tuple[str, ...]
    values: tuple[str, ...]
    message: Projection
    """The parts, of the values and the constants."""
    own: Projection | None
    """The parts that a row sends to itself, of its values."""
    finish: Projection | None
    """The values of the next round, of the combined columns, behind the columns of the key if `finish_keys`."""
    finish_keys: bool
    combine: tuple[Combine, ...]
    formula: Formula | None

    @property
    def adds_up(self) -> bool:
        """Whether a round adds parts up."""
        return any(each.how == "sum" for each in self.combine)


@dataclass(frozen=True)
class _OfValues:
    """A column computed from values of the loop's variable, and perhaps from constants."""

    tree: Node
    kind: Any = field(default=None, compare=False)


def pull_on_arrays(
    shape: PullShape,
    rounds: int | None,
    patience: int,
    loop: str,
    closeness: Closeness | None = None,
) -> Collection:
    """The result of a loop of this shape, from one node that runs the loop on arrays. `loop` is the loop's name."""
    start = shape.start
    within = None
    if closeness is not None:
        if {*closeness.key} != {*shape.key}:
            raise NoShape(
                f"its rounds are compared by {listed(closeness.key)}, and its groups are by {listed(shape.key)}"
            )
        within = Tolerance(shape.values.index(closeness.column), closeness.most)
    result = pa.schema(
        [start.schema.field(name).with_nullable(True) for name in (*shape.key, *shape.values)]
    )
    keys = range(len(shape.key))
    edges = shape.edges.filter(*[pl.col(f"{SOURCE}{at}").is_not_null() for at in keys])
    sides = [edges, start.select(*result.names)]
    if shape.extras is not None:
        assert len(sides) == EXTRAS
        sides.append(shape.extras)
    operator = PullRounds(
        len(shape.key),
        shape.message,
        shape.combine,
        shape.own,
        shape.finish,
        shape.finish_keys,
        shape.formula,
        rounds,
        patience,
        within,
    )
    arranged = [side._arranged(()) for side in sides]
    return start._add(operator, arranged, result, f"{loop}:pull").select(*start.columns)


def pull_of_body(start: Collection, variable: Collection, result: Collection) -> PullShape:
    """The shape of a loop whose body makes `result`, in the types of `start`, of the rows of a round, `variable`."""
    chain: list[tuple[Mapping[str, Any], Any]] = []
    rows: Any = result
    made = derivation_of(rows)
    while isinstance(made, Projected):
        chain.append((made.wanted, rows.polars_schema))
        rows = made.source
        made = derivation_of(rows)
    if not isinstance(made, Aggregated):
        raise NoShape("its body does not end with aggregates of each group")
    if not made.key:
        raise NoShape("its body makes one group of all rows")
    other = [name for name, (kind, _) in made.wanted.items() if kind == "other"]
    if other:
        raise NoShape(f"{other[0]!r} is no sum, min, max or count")
    finished = _Finished.of(start, made, rows, chain)
    check_key(start, finished.key)
    if may_owe(start):
        raise NoShape("the rows at the start come behind a negation, and might be owed")
    tracer = _PullTracer(variable, finished.key)
    parts, combine = _parts(made)
    kinds = compile_columns(made.source.schema, parts, "combine parts").schema
    groups = {f"{TARGET}{at}": name for at, name in enumerate(finished.groups)}
    types = pl.DataFrame(empty_batch(kinds)).schema
    traced = [
        tracer.projected(part, {**groups, **parts}, types) for part in tracer.trace(made.source)
    ]
    sending = [part for part in traced if part.varies and part.constant is not None]
    if not sending:
        raise NoShape("nothing is sent along rows from outside of the loop")
    values = pa.schema([start.schema.field(name) for name in finished.values])
    edges, message, formula = tracer.edges(sending, start, values, kinds)
    own = tracer.own([part for part in traced if part.varies and part.constant is None], values, kinds)  # fmt: skip
    extras = [tracer.extra(part, start, kinds) for part in traced if not part.varies]
    shape = PullShape(
        edges,
        start,
        _together(extras) if extras else None,
        finished.key,
        finished.values,
        message,
        own,
        *finished.projection(rows.schema, values),
        combine,
        formula,
    )
    _check(shape, values, kinds, rows.schema, made)
    if not has_one_row(start, finished.key):
        raise NoShape("the rows at the start may have several rows for one key")
    return shape


def _parts(made: Aggregated) -> tuple[dict[str, Any], tuple[Combine, ...]]:
    """The parts that are combined, and how."""
    parts: dict[str, Any] = {}
    combine: list[Combine] = []
    for kind, column in made.wanted.values():
        if column is None:
            combine.append(Combine("count"))
            continue
        combine.append(Combine("valid" if kind == "count" else kind, len(parts)))  # type: ignore[arg-type]
        parts[f"{PART}{len(parts)}"] = column
    return parts, tuple(combine)


def _check(
    shape: PullShape, values: pa.Schema, parts: pa.Schema, combined: pa.Schema, made: Aggregated
) -> None:
    """Refuse types that arrays do not know."""
    loop = PullLoop(
        keys=_kinds([shape.start.schema.field(name) for name in shape.key]),
        values=_kinds(values),
        parts=_kinds(parts),
        message=shape.message.apply,
        combine=shape.combine,
    )
    refusal = loop.refusal()
    if refusal is not None:
        raise NoShape(f"arrays do not know {refusal}" if refusal.startswith("a ") else refusal)
    for combine, name in zip(shape.combine, made.wanted, strict=True):
        if loop.kind_of(combine) != canonical(combined.field(name).type, name):
            raise NoShape(f"{name!r} is {combined.field(name).type} otherwise than on arrays")


def _together(rows: Sequence[Collection]) -> Collection:
    return rows[0].concat(*rows[1:]) if len(rows) > 1 else rows[0]


def _kinds(schema: Any) -> tuple[pa.DataType, ...]:
    return tuple([canonical(each.type, each.name) for each in schema])


@dataclass(frozen=True)
class _Finished:
    """What becomes of the aggregates at the end of a body."""

    key: tuple[str, ...]
    """The columns of the loop that are its key."""
    groups: tuple[str, ...]
    """The columns that these are in the group."""
    values: tuple[str, ...]
    columns: Mapping[str, Any]
    """By name of a value: what it is, where `OfKey` is a column of the group."""
    combined: tuple[str, ...]

    @classmethod
    def of(
        cls,
        start: Collection,
        made: Aggregated,
        rows: Collection,
        chain: Sequence[tuple[Mapping[str, Any], Any]],
    ) -> _Finished:
        tracer = _PullTracer(rows, made.key)
        traced = Traced(
            {
                name: OfKey(name) if name in made.key else tracer.of_value(name)
                for name in rows.columns
            },
            True,
        )
        for wanted, kinds in reversed(chain):
            traced = tracer.projected(traced, wanted, kinds)
        groups: dict[str, str] = {}
        for name in start.columns:
            column = traced.columns[name]
            if isinstance(column, OfKey) and column.name not in groups:
                groups[column.name] = name
        if len(groups) < len(made.key):
            raise NoShape("its body does not give the key of its groups")
        key = tuple([groups[name] for name in made.key])
        values = tuple([name for name in start.columns if name not in key])
        if not values:
            raise NoShape("there is no column beside the key")
        return cls(key, made.key, values, traced.columns, tuple(made.wanted))

    def projection(self, schema: pa.Schema, values: pa.Schema) -> tuple[Projection | None, bool]:
        """The values of the next round, of the combined columns; and whether of those of the key too, before these."""
        columns = [self.columns[name] for name in self.values]
        plain = [_OfValues({"Column": f"{_VALUE}{name}"}) for name in self.combined]
        if columns == plain:
            return None, False
        fields: list[pa.Field] = []
        keys = any(name.startswith(_KEY) for each in columns for name in named_in(_leaf(each)))
        if keys:
            fields = [schema.field(name).with_name(f"{_KEY}{name}") for name in self.groups]
        fields += [schema.field(name).with_name(f"{_VALUE}{name}") for name in self.combined]
        made = _compiled(pa.schema(fields), dict(zip(self.values, columns, strict=True)), "finish")
        for name in self.values:
            if not share_layout(made.schema.field(name).type, values.field(name).type):
                raise NoShape(f"the value {name!r} is of two types")
        return made, keys


class _PullTracer(Tracer):
    """Follows parts that are made of values and constants."""

    def of_value(self, name: str) -> _OfValues:
        return _OfValues({"Column": f"{_VALUE}{name}"})

    def computed(
        self, tree: Node, columns: Mapping[str, Any], shown: pl.Expr, kind: Any
    ) -> _OfValues:
        return _OfValues(self._mixed(tree, columns), kind)

    def _mixed(self, tree: Any, columns: Mapping[str, Any]) -> Any:
        if isinstance(tree, dict):
            if isinstance(tree.get("Column"), str):
                return _leaf(columns[tree["Column"]])
            return {kind: self._mixed(parts, columns) for kind, parts in tree.items()}
        return [self._mixed(part, columns) for part in tree] if isinstance(tree, list) else tree

    def edges(
        self, sending: Sequence[Traced], start: Collection, values: pa.Schema, kinds: pa.Schema
    ) -> tuple[Collection, Projection, Formula | None]:
        """The edges, the parts that are sent along them, and a quicker form of these."""
        listed: list[Collection] = []
        messages: list[list[Node]] = []
        for part in sending:
            trees = [_leaf(part.columns[name]) for name in kinds.names]
            if any(name.startswith(_KEY) for tree in trees for name in named_in(tree)):
                raise NoShape("a message is computed from the key before it is joined")
            leaves: dict[str, str] = {}
            messages.append([_numbered(tree, leaves) for tree in trees])
            wanted = {f"{SOURCE}{at}": part.sources[name] for at, name in enumerate(self._key)}
            for at in range(len(self._key)):
                target = part.columns[f"{TARGET}{at}"]
                if not isinstance(target, OfConstant):
                    raise NoShape("the target of a message is computed from a value that changes")
                wanted[f"{TARGET}{at}"] = target
            for leaf, name in leaves.items():
                wanted[name] = OfConstant(json.loads(leaf.removeprefix(_EDGE)))
            listed.append(self.rows(part, wanted))
            self._check_key(listed[-1], start, (SOURCE, TARGET))
        first = listed[0]
        for rows, trees in zip(listed, messages, strict=True):
            same = rows.columns == first.columns and all(
                share_layout(a.type, b.type) for a, b in zip(rows.schema, first.schema, strict=True)
            )
            if trees != messages[0] or not same:
                raise NoShape("messages of several kinds are sent")
        edges = _together(listed)
        constants = [each for each in first.schema if each.name.startswith(CONSTANT)]
        fields = [each.with_name(f"{_VALUE}{each.name}") for each in values]
        schema = pa.schema([*fields, *constants])
        named = dict(zip(kinds.names, messages[0], strict=True))
        message = _compiled(schema, {name: _OfValues(tree) for name, tree in named.items()}, "send")
        _check_parts(message.schema, kinds)
        formula = None
        if len(named) == 1:
            (tree,) = named.values()
            formula = _formula(tree, schema, len(fields))
        return edges, message, formula

    def own(self, parts: Sequence[Traced], values: pa.Schema, kinds: pa.Schema) -> Any:
        """The parts that a row sends to its own key."""
        if len(parts) > 1:
            raise NoShape("its body takes the rows of the round several times")
        for part in parts:
            for at, name in enumerate(self._key):
                if part.columns[f"{TARGET}{at}"] != OfKey(name):
                    raise NoShape(
                        "its body takes rows of the round with another key; only a join leads to other keys"
                    )
            wanted = {name: part.columns[name] for name in kinds.names}
            for column in wanted.values():
                if any(name.startswith(_KEY) for name in named_in(_leaf(column))):
                    raise NoShape("its body computes with the key of the rows of the round")
            fields = [each.with_name(f"{_VALUE}{each.name}") for each in values]
            own = _compiled(pa.schema(fields), wanted, "keep")
            _check_parts(own.schema, kinds)
            return own
        return None

    def extra(self, part: Traced, start: Collection, kinds: pa.Schema) -> Collection:
        """Constant rows as parts."""
        wanted = {f"{TARGET}{at}": part.columns[f"{TARGET}{at}"] for at in range(len(self._key))}
        rows = self.rows(part, {**wanted, **{name: part.columns[name] for name in kinds.names}})
        self._check_key(rows, start, (TARGET,))
        _check_parts(pa.schema([rows.schema.field(name) for name in kinds.names]), kinds)
        return rows

    def _check_key(self, rows: Collection, start: Collection, ends: Sequence[str]) -> None:
        for at, name in enumerate(self._key):
            for end in ends:
                mine = rows.schema.field(f"{end}{at}").type
                if not share_layout(mine, start.schema.field(name).type):
                    raise NoShape(f"the key {name!r} is of two types")


def _check_parts(made: pa.Schema, kinds: pa.Schema) -> None:
    for mine, its in zip(made, kinds, strict=True):
        if not share_layout(mine.type, its.type):
            raise NoShape(f"a part is {mine.type} in one place and {its.type} in another")


def _leaf(column: Any) -> Node:
    """What a column is in an expression of values."""
    if isinstance(column, OfKey):
        return {"Column": f"{_KEY}{column.name}"}
    tree = typed(column.tree, column.kind)
    if isinstance(column, OfConstant) and named_in(tree):
        return {"Column": f"{_EDGE}{json.dumps(tree)}"}
    return tree


def _numbered(tree: Any, leaves: dict[str, str]) -> Any:
    """An expression in which columns of the constant side are called by numbers. `leaves` has these names."""
    if isinstance(tree, dict):
        name = tree.get("Column")
        if isinstance(name, str):
            if not name.startswith(_EDGE):
                return tree
            return {"Column": leaves.setdefault(name, f"{CONSTANT}{len(leaves)}")}
        return {kind: _numbered(parts, leaves) for kind, parts in tree.items()}
    return [_numbered(part, leaves) for part in tree] if isinstance(tree, list) else tree


def _compiled(schema: pa.Schema, columns: Mapping[str, Any], what: str) -> Projection:
    """The projection that makes some columns of values, keys and constants."""
    wanted: dict[str, Any] = {}
    for name, column in columns.items():
        tree = _leaf(column)
        head, parts = kind_of(tree)
        wanted[name] = parts if head == "Column" else as_polars(tree, schema)
    try:
        return compile_columns(schema, wanted, f"{what} parts")
    except RiverrunError as error:
        raise NoShape(f"its parts cannot be computed on arrays: {error}") from error


# -- formulas


@dataclass(frozen=True)
class _Term:
    """An expression of doubles: of which form, of which value, constant and number."""

    form: str
    value: int = 0
    constant: int | None = None
    factor: float = 1.0
    is_double: bool = True


def _formula(tree: Node, schema: pa.Schema, values: int) -> Formula | None:
    """The formula that an expression is, if it is one. The first so many columns of `schema` are values."""
    term = _term(tree, schema, values)
    if term is None or not term.is_double:
        return None
    forms = ("value", "times", "over", "factor over", "factor times over")
    if term.form not in forms:
        return None
    return Formula(term.form, term.value, term.constant, term.factor)  # type: ignore[arg-type]


def _term(tree: Node, schema: pa.Schema, values: int) -> _Term | None:
    head, parts = kind_of(tree)
    if head == "Column":
        at = schema.names.index(parts)
        kind = schema.field(at).type
        is_double = pa.types.is_float64(kind)
        if not is_double and not pa.types.is_integer(kind):
            return None
        if at < values:
            return _Term("value", value=at, is_double=is_double)
        return _Term("constant", constant=at - values, is_double=is_double)
    if head == "Literal" and isinstance(parts, dict):
        [(_, inner)] = parts.items()
        number = inner.get("Float", inner.get("Float64")) if isinstance(inner, dict) else None
        return _Term("number", factor=number) if isinstance(number, float) else None
    if head == "Cast" and parts["dtype"] == {"Literal": "Float64"}:
        term = _term(parts["expr"], schema, values)
        return None if term is None else replace(term, is_double=True)
    if head != "BinaryExpr":
        return None
    left = _term(parts["left"], schema, values)
    right = _term(parts["right"], schema, values)
    if left is None or right is None or not (left.is_double or right.is_double):
        return None
    if parts["op"] == "TrueDivide" and right.form == "constant":
        form = {"value": "over", "scaled": "factor times over"}.get(left.form)
        return None if form is None else replace(left, form=form, constant=right.constant, is_double=True)  # fmt: skip
    if parts["op"] != "Multiply":
        return None
    for one, other in ((left, right), (right, left)):
        if one.form == "value" and other.form == "constant":
            return _Term("times", one.value, other.constant)
        if one.form == "number" and other.form == "value" and other.is_double:
            return replace(other, form="scaled", factor=one.factor)
        if one.form == "number" and other.form == "over":
            return replace(other, form="factor over", factor=one.factor)
    return None
