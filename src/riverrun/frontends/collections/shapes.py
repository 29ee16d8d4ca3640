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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from riverrun.errors import RiverrunError
from riverrun.frontends.collections.best import Better
from riverrun.frontends.collections.derivation import (
    Filtered,
    Paired,
    Projected,
    United,
    best_of,
    derivation_of,
)
from riverrun.frontends.collections.expressions import compile_columns
from riverrun.frontends.collections.expressions.tree import Node, kind_of
from riverrun.frontends.collections.rows import Rows, one_line
from riverrun.frontends.collections.shared_spreads import on_all_workers
from riverrun.frontends.collections.tracing import (
    NoShape,
    OfConstant,
    OfKey,
    Traced,
    Tracer,
    check_key,
    is_picked,
    named_of,
    typed,
)
from riverrun.operators.iterations.ordinals import has_ordinals
from riverrun.operators.iterations.spread import SpreadLoop
from riverrun.plan.plan import Port, Scope, Shortcut
from riverrun.state.types import EnumType, canonical, common_type, share_layout, type_text

if TYPE_CHECKING:
    from riverrun.frontends.collection import Collection

SOURCE, TARGET, WEIGHT, VALUE = "source", "target", "weight", "value"
"""Columns of a `SpreadShape`: the first two with the number of the key column behind."""


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
class _OfValue:
    """The value of the loop's variable, or a message made of it and of an expression of the constant side."""

    message: str = "copy"
    weight: Node | None = None


def on_arrays(
    shape: SpreadShape, patience: int, loop: str, over: str, *, supersteps: bool = False
) -> list[Shortcut]:
    """The ways to run a loop of this shape on arrays: on one worker, in one node, or on all workers, as `over` says.

    `loop` is the loop's name. With ``over="auto"`` there are both ways if it is known how many rows to expect;
    otherwise there is nothing to choose by.
    """
    solution, over = shape.solution, _check_over(shape, over)
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
    operator = SpreadLoop(
        len(keys), shape.message, shape.greatest, shape.adds_keys, patience, supersteps
    )
    ways, columns = [], solution.columns
    if over != "all":
        arranged = [side._arranged(()) for side in sides]
        alone = solution._add(operator, arranged, result, f"{loop}:spread")
        ways.append(Shortcut(alone.select(*columns)._port, over="one", edges=shape.edges._port))
    if over == "all" or (over == "auto" and solution._builder.expected):
        shared, loops = on_all_workers(operator, sides, result, loop)
        ways.append(Shortcut(shared.select(*columns)._port, (), "all", loops, shape.edges._port))
    return ways


def _check_over(shape: SpreadShape, over: str) -> str:
    """The workers that a loop may run on: values without a fixed width are numbered by one of them."""
    kind = shape.solution.schema.field(shape.value).type
    if _is_word(kind):
        return over
    if over == "all":
        raise NoShape(
            f"the value {shape.value!r} is {type_text(kind)}: such values are numbered by one worker"
        )
    return "one"


def check_unseen(loop: Scope, result: Collection) -> None:
    """Refuse a loop whose rounds are looked at."""
    if loop.depth > 2:
        raise NoShape("it is inside another loop")
    for node in result._builder.nodes:
        if node.scope.is_inside(loop) and (node.operator.public_name or node.operator.passes_all):
            raise NoShape(f"rows are looked at inside of it, by {node.operator.describe()}")


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
    check_key(solution, key)
    tracer = _SpreadTracer(accepted, key, value)
    parts = tracer.trace(sent)
    at_start = _StartTracer(solution, key, value).trace(workset)
    if len(parts) != len(at_start) or not all(map(Traced.is_same, parts, at_start)):
        raise NoShape("its workset is not what the rows of the solution send")
    edges, message = tracer.edges(parts, solution)
    _check_copied(solution, value, message)
    _check_floats(solution, value, message, better.greatest)
    return SpreadShape(edges, solution, None, key, value, message, better.greatest, adds_keys)


def spread_of_body(start: Collection, variable: Collection, result: Collection) -> SpreadShape:
    """The shape of a loop whose body makes `result` of the rows of a round, `variable`."""
    names = {name: name for name in result.columns}
    made = derivation_of(result)
    while isinstance(made, Projected) and all(isinstance(one, str) for one in made.wanted.values()):
        names = {name: made.wanted[inner] for name, inner in names.items()}
        made = derivation_of(made.source)
    best = best_of(made)
    if best is None:
        raise NoShape(
            "its body does not end with the least or greatest value of each group", is_other=True
        )
    if best.whole and len(best.columns) > 1:
        raise NoShape("its body takes the best row by several columns", is_other=True)
    if len(set(names.values())) < len(names):
        raise NoShape("its body gives a column twice")
    key = tuple([name for name in result.columns if names[name] in best.key])
    check_key(start, key)
    if len(key) != len(best.key) or len(names) != len(key) + 1:
        raise NoShape("its body does not give a key and one value", is_other=True)
    value = _only_value(start, key)
    tracer = _SpreadTracer(variable, key, value)
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
    identity = {**{name: OfKey(name) for name in key}, value: _OfValue()}
    for part in own:
        if dict(part.columns) != identity or part.filters:
            raise NoShape("its body takes rows of the round as they are, but in other columns")
    whole = tracer.constant(start)
    starts = [part for part in constant if part.is_same(whole)]
    if not own and not starts:
        raise NoShape(
            "its body puts in neither the rows of the round nor the rows at the start, so values may get worse"
        )
    others = [tracer.outside(part, start) for part in constant if not part.is_same(whole)]
    workset = others[0].concat(*others[1:]) if others else None
    edges, message = tracer.edges(sending, start)
    _check_copied(start, value, message)
    if message in ("min", "max") and workset is not None and workset.schema.field(value).nullable:
        raise NoShape(f"a message is the {message} of two columns, and one of them may be null")
    _check_floats(start, value, message, best.greatest)
    return SpreadShape(edges, start, workset, key, value, message, best.greatest, adds_keys=True)


def _check_floats(start: Collection, value: str, message: str, greatest: bool) -> None:
    """Refuse the greatest of floats that are added up: infinities add up to NaN, which is greater than both."""
    is_float = pa.types.is_floating(start.schema.field(value).type)
    if is_float and greatest and message == "add":
        raise NoShape("the greatest of floats that are added up may be NaN")


def _only_value(rows: Collection, key: Sequence[str]) -> str:
    """The only column beside the key."""
    values = [name for name in rows.columns if name not in key]
    if len(values) != 1:
        raise NoShape(
            f"there are {len(values)} columns beside the key, and not one value", is_other=True
        )
    kind = rows.schema.field(values[0]).type
    if not (_is_word(kind) or has_ordinals(canonical(kind))):
        raise NoShape(f"the value {values[0]!r} is {type_text(kind)}, which arrays do not know")
    return values[0]


def _check_copied(rows: Collection, value: str, message: str) -> None:
    """Refuse to compute with values that arrays can only compare."""
    kind = rows.schema.field(value).type
    if message != "copy" and (isinstance(kind, EnumType) or not _is_word(kind)):
        raise NoShape(
            f"a message is computed from the value {value!r}, and arrays only copy {type_text(kind)}"
        )


def _is_word(kind: pa.DataType) -> bool:
    """Whether values of a type are words of 64 bits; of other types they may be numbered (`ordinals`)."""
    kinds = pa.types
    return bool(
        isinstance(kind, EnumType)
        or kinds.is_time(kind)
        or kinds.is_integer(kind)
        or kinds.is_float32(kind)
        or kinds.is_float64(kind)
        or kinds.is_boolean(kind)
        or kinds.is_date(kind)
        or kinds.is_timestamp(kind)
        or kinds.is_duration(kind)
    )


class _SpreadTracer(Tracer):
    """Follows messages that are made of one value."""

    def __init__(self, variable: Collection, key: tuple[str, ...], value: str) -> None:
        super().__init__(variable, key)
        self._value = value

    def of_value(self, name: str) -> _OfValue:
        return _OfValue()

    def computed(
        self, tree: Node, columns: Mapping[str, Any], shown: pl.Expr, kind: Any
    ) -> _OfValue:
        head, parts = kind_of(tree)
        operands, message = [], ""
        if head == "BinaryExpr" and parts["op"] == "Plus":
            operands, message = [parts["left"], parts["right"]], "add"
        elif head == "Function" and parts["function"] in ("MinHorizontal", "MaxHorizontal"):
            operands, message = list(parts["input"]), str(parts["function"])[:3].lower()
        if len(operands) == 2:
            meanings = [self.meaning(one, columns, shown) for one in operands]
            if meanings[0] != _OfValue():
                meanings.reverse()
            first, second = meanings
            if first == _OfValue() and isinstance(second, OfConstant):
                return _OfValue(message, typed(second.tree, second.kind))
        raise NoShape(
            f"a message is {one_line(shown)}: not the value itself, the value plus a constant, or the smaller or "
            "greater of both"
        )

    def edges(self, parts: Sequence[Traced], solution: Collection) -> tuple[Collection, str]:
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

    def _edges(self, part: Traced, message: _OfValue, solution: Collection) -> Collection:
        wanted: dict[str, OfConstant] = {
            f"{SOURCE}{at}": part.sources[name] for at, name in enumerate(self._key)
        }
        for at, name in enumerate(self._key):
            target = part.columns[name]
            if not isinstance(target, OfConstant):
                raise NoShape(
                    f"the target {name!r} of a message is computed from a value that changes"
                )
            wanted[f"{TARGET}{at}"] = target
        if message.weight is not None:
            wanted[WEIGHT] = OfConstant(message.weight)
        rows = self.rows(part, wanted)
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


class _StartTracer(_SpreadTracer):
    """Follows rows outside of the loop back to the rows of the solution at the start, before they were widened or
    after."""

    def __init__(self, solution: Collection, key: tuple[str, ...], value: str) -> None:
        super().__init__(solution, key, value)
        self._starts = {solution._port}
        made = derivation_of(solution)
        while isinstance(made, Projected) and _is_widening(made):
            self._starts.add(made.source._port)
            made = derivation_of(made.source)

    def trace(self, rows: Rows) -> list[Traced]:
        if rows._port in self._starts:
            return super().trace(self._variable)
        if not _comes_of(rows, self._starts):
            return [self.constant(rows)]
        return super().trace(rows)


def _is_widening(made: Projected) -> bool:
    """Whether all columns are the same ones, or casts of the same ones."""
    same = all(is_picked(each) and named_of(each) == name for name, each in made.wanted.items())
    return same and len(made.wanted) == len(made.source.columns)


def _comes_of(rows: Rows, ports: set[Port]) -> bool:
    """Whether rows were made of the rows of some port, by steps that were noted."""
    waiting, seen = [rows], {rows._port}
    while waiting:
        made = derivation_of(waiting.pop())
        if isinstance(made, Paired):
            sources: Sequence[Rows] = (made.left, made.right)
        elif isinstance(made, United):
            sources = made.parts
        elif isinstance(made, Projected | Filtered):
            sources = (made.source,)
        else:
            continue
        for source in sources:
            if source._port in ports:
                return True
            if source._port not in seen:
                seen.add(source._port)
                waiting.append(source)
    return False
