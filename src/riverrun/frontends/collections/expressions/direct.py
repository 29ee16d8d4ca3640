"""Simple expressions as a few NumPy calls, which cost less than a call of Polars where batches are small.

When `compiled` compiles an expression, it asks here for a *direct step*. An expression that has a direct step is
computed by the step for every batch, small or large; an expression without one is left to Polars. A step makes a
*vector* of columns: the values as a NumPy array, and a mask that tells which of them are not null, or None where no
value is null. Laws:

- **Exactly Polars.** A direct step gives the result that Polars gives: the same type and nulls; integers that wrap
  around; a NaN that equals itself and is greater than every number; ``and`` and ``or`` with true, false and null; a
  division by a literal as the product with its inverse. An expression for which that is not certain has no direct step.
  Only the sign of a zero may differ. Polars itself gives either sign, and states know one zero.
- **Few types.** There are direct steps for arithmetic, comparisons, logic, null tests, and filling and choosing, on
  columns of int64, float64 and bool; for the equality of strings with a literal; and for null tests of any column.

Cost: about a microsecond a node on ten rows, and two for the array around the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riverrun.frontends.collections.expressions.tree import Node, kind_of
from riverrun.state.columns import as_array, as_column

__all__ = ["Direct", "direct"]

Values: TypeAlias = Any  # an array, or the one value of a literal
Vector: TypeAlias = tuple[Values, Values | None]
Step: TypeAlias = Callable[[Sequence[pa.Array]], Vector]

INT, FLOAT, BOOL = pa.int64(), pa.float64(), pa.bool_()
_DTYPES = {INT: np.dtype(np.int64), FLOAT: np.dtype(np.float64)}
_WORDS = 1 << 63


@dataclass(frozen=True, slots=True)
class Direct:
    """A direct step and the type of the values it makes."""

    kind: pa.DataType
    step: Step
    loud: bool = False
    """Whether NumPy may warn of a division by zero, an overflow or a NaN. Polars never warns, so the warnings are
    off."""

    def vector(self, columns: Sequence[pa.Array]) -> Vector:
        if not self.loud:
            return self.step(columns)
        with np.errstate(all="ignore"):
            return self.step(columns)

    def array(self, columns: Sequence[pa.Array]) -> pa.Array:
        """The result as a column."""
        values, valid = self.vector(columns)
        return as_column(values, valid, self.kind)

    def mask(self, columns: Sequence[pa.Array]) -> Values:
        """The rows where the result is true: not false, not null."""
        values, valid = self.vector(columns)
        return values if valid is None else values & valid


@dataclass(frozen=True, slots=True)
class _Literal:
    kind: pa.DataType
    value: Any


def direct(tree: Node, positions: dict[str, int], kinds: Sequence[pa.DataType]) -> Direct | None:
    """The direct step of a checked expression, or None where Polars has to compute it.

    `positions` has the position of each column by its name, `kinds` the canonical type at each position.
    """
    compiled = _DirectCompiler(positions, kinds).make(tree)
    return compiled if isinstance(compiled, Direct) else None


class _DirectCompiler:
    def __init__(self, positions: dict[str, int], kinds: Sequence[pa.DataType]) -> None:
        self.positions = positions
        self.kinds = kinds

    def make(self, node: Node) -> Direct | _Literal | None:
        kind, parts = kind_of(node)
        if kind == "Column":
            return self._column(self.positions[parts])
        if kind == "Literal":
            return _literal(parts)
        if kind == "Alias":
            return self.make(parts[0])
        if kind == "BinaryExpr":
            return self._binary(parts["op"], parts["left"], parts["right"])
        if kind == "Ternary":
            return self._ternary(parts)
        if kind == "Cast":
            return self._cast(parts)
        if kind == "Function":
            return self._function(parts["function"], parts["input"])
        return None

    def _column(self, at: int) -> Direct | None:
        kind = self.kinds[at]
        if kind in (INT, FLOAT):
            # One object for each type: below, types are compared with `is`.
            kind = INT if kind == INT else FLOAT
            return Direct(kind, partial(_numbers, at, _DTYPES[kind]))
        return Direct(BOOL, partial(_flags, at)) if kind == BOOL else None

    def _binary(self, op: str, left: Node, right: Node) -> Direct | None:
        equal = self._string_equal(op, left, right)
        if equal is not None:
            return equal
        a, b = self.make(left), self.make(right)
        if a is None or b is None or (isinstance(a, _Literal) and isinstance(b, _Literal)):
            return None
        if op in _ARITHMETIC:
            return _arithmetic(op, a, b)
        if op in _COMPARISONS:
            return _comparison(op, a, b)
        if op not in _LOGIC or not isinstance(a, Direct) or not isinstance(b, Direct):
            return None
        if a.kind is not BOOL or b.kind is not BOOL:
            return None
        return Direct(BOOL, partial(_LOGIC[op], a.step, b.step), a.loud or b.loud)

    def _string_equal(self, op: str, left: Node, right: Node) -> Direct | None:
        if op not in ("Eq", "NotEq"):
            return None
        (kind, name), (other, value) = kind_of(left), kind_of(right)
        if kind == "Literal" and other == "Column":
            kind, name, other, value = other, value, kind, name
        if (
            kind != "Column"
            or other != "Literal"
            or self.kinds[self.positions[name]] != pa.large_string()
        ):
            return None
        form, scalar = kind_of(value)
        if form != "Scalar" or kind_of(scalar)[0] != "String":
            return None
        text = pa.scalar(kind_of(scalar)[1], pa.large_string())
        compare = pc.get_function("equal" if op == "Eq" else "not_equal")
        return Direct(BOOL, partial(_text_equal, self.positions[name], compare, text))

    def _ternary(self, parts: dict[str, Any]) -> Direct | None:
        test, yes, no = (self.make(parts[key]) for key in ("predicate", "truthy", "falsy"))
        # Between two literals Polars has types of its own: an int may be 32 bits wide.
        if not isinstance(test, Direct) or test.kind is not BOOL or yes is None or no is None:
            return None
        if isinstance(yes, _Literal) and isinstance(no, _Literal):
            return None
        kind = _common(yes, no)
        if kind is None:
            return None
        steps = test.step, _as(yes, kind), _as(no, kind)
        return Direct(kind, partial(_choose, *steps), _loud(test, yes, no))

    def _cast(self, parts: dict[str, Any]) -> Direct | None:
        inner = self.make(parts["expr"])
        to = kind_of(parts["dtype"])[1]
        if isinstance(inner, Direct):
            if inner.kind is INT and to == "Float64":
                return Direct(FLOAT, _as(inner, FLOAT), inner.loud)
            if inner.kind is BOOL and to == "Int64":
                return Direct(INT, partial(_cast, inner.step, np.dtype(np.int64)), inner.loud)
        return None

    def _function(self, function: Node, inputs: list[Node]) -> Direct | None:
        name, options = kind_of(function)
        if name == "Boolean":
            name = kind_of(options)[0]
        if name in ("IsNull", "IsNotNull"):
            return self._null_test(name == "IsNull", inputs[0])
        if name not in ("Not", "IsNan", "IsNotNan", "Negate", "FillNull"):
            return None
        inner = self.make(inputs[0])
        if not isinstance(inner, Direct):
            return None
        if name == "Not" and inner.kind is BOOL:
            return Direct(BOOL, partial(_map, np.logical_not, inner.step), inner.loud)
        if name == "Negate" and inner.kind is not BOOL:
            return Direct(inner.kind, partial(_map, np.negative, inner.step), inner.loud)
        if name in ("IsNan", "IsNotNan") and inner.kind is FLOAT:
            test = np.isnan if name == "IsNan" else _is_number
            return Direct(BOOL, partial(_map, test, inner.step), inner.loud)
        if name == "FillNull":
            other = self.make(inputs[1])
            if other is not None and _common(inner, other) is inner.kind:
                return Direct(
                    inner.kind,
                    partial(_fill, inner.step, _as(other, inner.kind)),
                    _loud(inner, other),
                )
        return None

    def _null_test(self, null: bool, node: Node) -> Direct | None:
        kind, name = kind_of(node)
        if kind == "Column":
            return Direct(BOOL, partial(_column_null, null, self.positions[name]))
        inner = self.make(node)
        if not isinstance(inner, Direct):
            return None
        return Direct(BOOL, partial(_step_null, null, inner.step), inner.loud)


def _literal(parts: Node) -> _Literal | None:
    form, inner = kind_of(parts)
    kind, value = kind_of(inner)
    # Polars writes NaN and the infinities as null, so such literals cannot be told apart and are left to Polars.
    if form == "Dyn" and kind == "Int" and -_WORDS <= value < _WORDS:
        return _Literal(INT, np.int64(value))
    if form == "Scalar" and kind == "Int64":
        return _Literal(INT, np.int64(value))
    if (form, kind) in (("Dyn", "Float"), ("Scalar", "Float64")) and value is not None:
        return _Literal(FLOAT, np.float64(value))
    return None


def _common(a: Direct | _Literal, b: Direct | _Literal) -> pa.DataType | None:
    """The type in which two numbers, or two flags, meet."""
    if a.kind is b.kind:
        return a.kind
    return None if BOOL in (a.kind, b.kind) else FLOAT


def _loud(*parts: Direct | _Literal) -> bool:
    return any(isinstance(part, Direct) and part.loud for part in parts)


def _as(part: Direct | _Literal, kind: pa.DataType) -> Step:
    """A step that gives a part in a type; a literal gives one value for all rows."""
    if isinstance(part, _Literal):
        value = part.value if part.kind is kind else np.float64(part.value)
        vector = (value, None)
        return lambda columns: vector
    return part.step if part.kind is kind else partial(_cast, part.step, np.dtype(np.float64))


def _arithmetic(op: str, a: Direct | _Literal, b: Direct | _Literal) -> Direct | None:
    kind = _common(a, b)
    if kind is None or kind is BOOL:
        return None
    if op == "TrueDivide":
        kind = FLOAT
        if isinstance(b, _Literal):
            # Polars divides by a literal in this way; the last digit may differ from that of a division.
            with np.errstate(divide="ignore", over="ignore"):
                op, b = "Multiply", _Literal(FLOAT, np.float64(1) / np.float64(b.value))
    elif op in ("Modulus", "FloorDivide") and (
        kind is not INT or not isinstance(b, _Literal) or b.value <= 0
    ):
        return None  # a divisor of zero gives null, and floats have rules of their own
    step = partial(_both, _ARITHMETIC[op], _as(a, kind), _as(b, kind))
    return Direct(kind, step, kind is FLOAT)


def _comparison(op: str, a: Direct | _Literal, b: Direct | _Literal) -> Direct | None:
    kind = _common(a, b)
    if kind is None or (kind is BOOL and op not in ("Eq", "NotEq")):
        return None
    compare = _COMPARISONS[op] if kind is not FLOAT else _WITH_NAN[op]
    return Direct(BOOL, partial(_both, compare, _as(a, kind), _as(b, kind)), _loud(a, b))


# All functions from here on run for every batch.


def _numbers(at: int, dtype: np.dtype[Any], columns: Sequence[pa.Array]) -> Vector:
    column = columns[at]
    values = np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * 8)
    return values, _bits(column, 0) if column.null_count else None


def _flags(at: int, columns: Sequence[pa.Array]) -> Vector:
    return _flags_of(columns[at])


def _flags_of(column: pa.Array) -> Vector:
    if not column.null_count:
        return as_array(column), None
    return _bits(column, 1), _bits(column, 0)


def _bits(column: pa.Array, buffer: int) -> Values:
    bits = [None, column.buffers()[buffer]]
    bare = pa.Array.from_buffers(BOOL, len(column), bits, 0, column.offset)
    return as_array(bare)


def _text_equal(at: int, compare: Any, text: pa.Scalar, columns: Sequence[pa.Array]) -> Vector:
    return _flags_of(compare.call([columns[at], text]))


def _column_null(null: bool, at: int, columns: Sequence[pa.Array]) -> Vector:
    column = columns[at]
    if not column.null_count:
        return np.full(len(column), not null), None
    test = column.is_null() if null else column.is_valid()
    return as_array(test), None


def _step_null(null: bool, step: Step, columns: Sequence[pa.Array]) -> Vector:
    values, valid = step(columns)
    if valid is None:
        return np.full(len(values), not null), None
    return ~valid if null else valid, None


def _map(function: Callable[[Values], Values], step: Step, columns: Sequence[pa.Array]) -> Vector:
    values, valid = step(columns)
    return function(values), valid


def _cast(step: Step, dtype: np.dtype[Any], columns: Sequence[pa.Array]) -> Vector:
    values, valid = step(columns)
    return values.astype(dtype), valid


def _both(
    function: Callable[[Values, Values], Values], a: Step, b: Step, columns: Sequence[pa.Array]
) -> Vector:
    left, left_valid = a(columns)
    right, right_valid = b(columns)
    return function(left, right), _meet(left_valid, right_valid)


def _meet(a: Values | None, b: Values | None) -> Values | None:
    if a is None:
        return b
    return a if b is None else a & b


def _and(a: Step, b: Step, columns: Sequence[pa.Array]) -> Vector:
    left, left_valid = a(columns)
    right, right_valid = b(columns)
    if left_valid is None and right_valid is None:
        return left & right, None
    # A false side decides, whatever the other one is.
    false = ~left if left_valid is None else left_valid & ~left
    false |= ~right if right_valid is None else right_valid & ~right
    return left & right & ~false, _known(left_valid, right_valid, false)


def _or(a: Step, b: Step, columns: Sequence[pa.Array]) -> Vector:
    left, left_valid = a(columns)
    right, right_valid = b(columns)
    if left_valid is None and right_valid is None:
        return left | right, None
    true = left if left_valid is None else left_valid & left
    true = true | (right if right_valid is None else right_valid & right)
    return true, _known(left_valid, right_valid, true)


def _known(left: Values | None, right: Values | None, decided: Values) -> Values | None:
    valid = _meet(left, right)
    return None if valid is None else valid | decided


def _choose(test: Step, yes: Step, no: Step, columns: Sequence[pa.Array]) -> Vector:
    flags, valid = test(columns)
    chosen = flags if valid is None else flags & valid
    left, left_valid = yes(columns)
    right, right_valid = no(columns)
    values = np.where(chosen, left, right)
    if left_valid is None and right_valid is None:
        return values, None
    return values, np.where(
        chosen,
        True if left_valid is None else left_valid,
        True if right_valid is None else right_valid,
    )


def _fill(step: Step, other: Step, columns: Sequence[pa.Array]) -> Vector:
    values, valid = step(columns)
    if valid is None:
        return values, None
    fill, fill_valid = other(columns)
    return np.where(valid, values, fill), None if fill_valid is None else valid | fill_valid


def _is_number(values: Values) -> Values:
    return ~np.isnan(values)


def _same(a: Values, b: Values) -> Values:
    return (a == b) | ((a != a) & (b != b))


def _less(a: Values, b: Values) -> Values:
    return (a < b) | ((a == a) & (b != b))


_ARITHMETIC: dict[str, Callable[[Values, Values], Values]] = {
    "Plus": np.add,
    "Minus": np.subtract,
    "Multiply": np.multiply,
    "TrueDivide": np.true_divide,
    "Modulus": np.mod,
    "FloorDivide": np.floor_divide,
}

_COMPARISONS: dict[str, Callable[[Values, Values], Values]] = {
    "Eq": np.equal,
    "NotEq": np.not_equal,
    "Lt": np.less,
    "LtEq": np.less_equal,
    "Gt": np.greater,
    "GtEq": np.greater_equal,
}

_WITH_NAN: dict[str, Callable[[Values, Values], Values]] = {
    "Eq": _same,
    "NotEq": lambda a, b: ~_same(a, b),
    "Lt": _less,
    "LtEq": lambda a, b: ~_less(b, a),
    "Gt": lambda a, b: _less(b, a),
    "GtEq": lambda a, b: ~_less(a, b),
}

_LOGIC: dict[str, Callable[[Step, Step, Sequence[pa.Array]], Vector]] = {"And": _and, "Or": _or}
