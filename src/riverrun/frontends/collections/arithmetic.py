"""Checked arithmetic of aggregates: what is computed with integers and times of groups fits 64 bits, or is said not to.

``agg`` (`frontends.grouping`) makes Polars expressions of what users compute with aggregates. Polars wraps around where
a result leaves its type. The fitting law of aggregate arithmetic:

1. An operation on integers (+ - * // % ** abs, and the sign) gives the exact number, as Int64; as UInt64 where one
   operand is UInt64 and none is signed. An operation on durations and datetimes gives what Polars gives.
2. Where the exact result does not fit, an *overflow* is true: an expression of the same row, which refuses the epoch.
3. Floats, decimals and all other types are Polars' matter: decimals that leave 38 digits are its error.

Cost: such an operation is done in 128 bits by Polars, at about 80 microseconds a batch.

>>> import polars as pl, riverrun as rr
>>> groups = pl.DataFrame(schema={"low": pl.Int8, "high": pl.Int8})
>>> arithmetic = Arithmetic(groups)
>>> spread = arithmetic.to_polars(
...     rr.max("v") - rr.min("v"), lambda one: "high" if one.kind == "max" else "low"
... )
>>> pl.DataFrame({"low": [-128], "high": [127]}, schema=groups.schema).select(spread).rows()
[(255,)]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from riverrun.frontends.collections.aggregates import Expression
from riverrun.rows.values import show

_ARITHMETIC = frozenset(["+", "-", "*", "//", "%", "**", "abs"])
_TIMES = frozenset(["+", "-", "*", "abs"])
_WIDE = pl.Int128
_POLARS_EXPONENTS = 1 << 32
"""Exponents of integers are below this in Polars."""
_PER_SECOND = {"ms": 10**3, "us": 10**6, "ns": 10**9}
_RANGES = {pl.Int64: (-(1 << 63), 1 << 63), pl.UInt64: (0, 1 << 64)}


@dataclass
class Arithmetic:
    """Polars expressions of what is computed with aggregates, and where they leave their types."""

    groups: pl.DataFrame
    """The columns that the aggregates are in, without rows."""
    overflows: list[pl.Expr] = field(default_factory=list)
    """Each is true in the rows where some operation left its type; null counts as false."""

    def to_polars(self, expression: Expression, column: Callable[[Any], str]) -> Any:
        """A Polars expression; `column` says which column an aggregate is in."""
        return expression.of(column, self._computed)

    def _computed(self, expression: Expression, operands: list[Any]) -> Any:
        """The expression of one operation."""
        plain = self._plain(expression, operands)
        if expression.symbol not in _ARITHMETIC:
            return plain
        if expression.symbol == "**" and _is_beyond_exponents(operands[1]):
            return self._far_power(operands[0], operands[1], plain)
        try:
            kinds = [self._kind(operand) for operand in operands]
            kind = self._kind(plain)
        except pl.exceptions.PolarsError:
            return (
                plain  # what Polars cannot compute is refused where it is compiled, in other words
            )
        if all(each.is_integer() or each == pl.Boolean for each in kinds) and kind.is_integer():
            exact = self._whole(expression, operands, kinds)
            return plain if exact is None else exact
        if isinstance(kind, pl.Duration | pl.Datetime) and expression.symbol in _TIMES:
            self._time(expression, operands, kinds, kind, plain)
        return plain

    def _plain(self, expression: Expression, operands: list[Any]) -> Any:
        """The operation as Polars does it; in 128 bits where it does not in 64: of unsigned integers it turns no sign,
        and what is computed with integers and a literal beyond 64 bits would be null.
        """
        if expression.symbol == "-" and len(operands) == 1 and self._is_unsigned(operands[0]):
            return pl.lit(0, _WIDE) - operands[0].cast(_WIDE)
        beyond = [each for each in operands if _is_beyond_64_bits(each)]
        for each in beyond:
            if not -(1 << 127) <= each < 1 << 127:
                raise ValueError(
                    f"{show(each)} has more than 128 bits, the widest integers there are"
                )
        if not beyond or not all(
            self._is_integer(each) for each in operands if isinstance(each, pl.Expr)
        ):
            return expression.function(*operands)
        wide = [pl.lit(each, _WIDE) if _is_beyond_64_bits(each) else each for each in operands]
        return expression.function(*wide)

    def _is_integer(self, operand: pl.Expr) -> bool:
        try:
            kind = self._kind(operand)
        except pl.exceptions.PolarsError:
            return False
        return kind.is_integer() or kind == pl.Boolean

    def _is_unsigned(self, operand: Any) -> bool:
        try:
            return self._kind(operand).is_unsigned_integer()
        except pl.exceptions.PolarsError:
            return False

    def _kind(self, operand: Any) -> pl.DataType:
        value = operand if isinstance(operand, pl.Expr) else pl.lit(operand)
        return self.groups.select(value.alias("x")).schema["x"]

    def _whole(
        self, expression: Expression, operands: list[Any], kinds: list[pl.DataType]
    ) -> pl.Expr | None:
        """An operation on integers in 128 bits, as a number of 64; None where it is left to Polars."""
        literals = [each for each in operands if not isinstance(each, pl.Expr)]
        signed = any(
            kind.is_signed_integer()
            for operand, kind in zip(operands, kinds, strict=True)
            if isinstance(operand, pl.Expr)
        ) or any(each < 0 for each in literals)
        signed |= expression.symbol == "-" and len(operands) == 1
        type_ = pl.UInt64 if pl.UInt64 in kinds and not signed else pl.Int64
        wide = [
            each.cast(_WIDE) if isinstance(each, pl.Expr) else pl.lit(int(each), _WIDE)
            for each in operands
        ]
        if expression.symbol == "**":
            return self._power(operands, wide, type_)
        exact = _in_128_bits(expression, wide)
        made: pl.Expr = exact.cast(type_, strict=False)
        overflow = made.is_null() & exact.is_not_null()
        if expression.symbol == "*" and (pl.UInt64 in kinds or _WIDE in kinds):
            size = wide[0].cast(pl.Float64) * wide[1].cast(pl.Float64)
            overflow |= size.abs() >= 2.0**100  # it may leave 128 bits
        self.overflows.append(overflow)
        return made

    def _power(self, operands: list[Any], wide: list[pl.Expr], type_: Any) -> pl.Expr | None:
        """A power; that of an exponent below zero is Polars' matter."""
        least, end = _RANGES[type_]
        base = wide[0].cast(type_, strict=False)
        exponent = operands[1] if isinstance(operands[1], pl.Expr) else pl.lit(operands[1])
        made = (base**exponent).cast(type_, strict=False)
        # The only power of an exponent from 2 on that lies nearer to an end than a float can tell is the end itself.
        size = wide[0].cast(pl.Float64) ** wide[1].cast(pl.Float64)
        beyond = (size >= float(end)) | (size < float(least))
        self.overflows.append((beyond & (wide[1] > 1)) | (base.is_null() & wide[0].is_not_null()))
        return made

    def _far_power(self, base: Any, exponent: int, plain: Any) -> Any:
        """A power of an exponent that Polars does not take: that of 0, 1 or -1, or beyond all numbers of 64 bits."""
        if (
            not isinstance(base, pl.Expr)
            or not self._is_integer(base)
            or self._kind(base) == pl.Boolean
        ):
            return plain
        type_ = pl.UInt64 if self._kind(base) == pl.UInt64 else pl.Int64
        wide = base.cast(_WIDE)
        small = wide.is_between(-1, 1)
        self.overflows.append(~small)
        return pl.when(small).then(wide if exponent % 2 else wide * wide).cast(type_)

    def _time(
        self,
        expression: Expression,
        operands: list[Any],
        kinds: list[pl.DataType],
        kind: pl.Duration | pl.Datetime,
        plain: pl.Expr,
    ) -> None:
        """Say where an operation on durations and times, in units of the result, is not what it is in 128 bits."""
        unit = kind.time_unit
        assert unit is not None
        wide = []
        for operand, given in zip(operands, kinds, strict=True):
            value = operand if isinstance(operand, pl.Expr) else pl.lit(operand)
            if isinstance(given, pl.Duration | pl.Datetime):
                assert given.time_unit is not None
                per, finer = _PER_SECOND[unit], _PER_SECOND[given.time_unit]
                if finer > per:
                    value = value.dt.cast_time_unit(unit)
                ticks = value.to_physical().cast(_WIDE)
                wide.append(ticks * pl.lit(per // finer, _WIDE) if finer < per else ticks)
            elif given == pl.Date:
                wide.append(
                    value.to_physical().cast(_WIDE) * pl.lit(86400 * _PER_SECOND[unit], _WIDE)
                )
            elif given.is_integer() and expression.symbol == "*":
                wide.append(value.cast(_WIDE))
            else:
                return
        self.overflows.append(_in_128_bits(expression, wide) != plain.to_physical().cast(_WIDE))


def _is_beyond_64_bits(operand: Any) -> bool:
    return isinstance(operand, int) and not -(1 << 63) <= operand < 1 << 64


def _is_beyond_exponents(operand: Any) -> bool:
    return isinstance(operand, int) and operand >= _POLARS_EXPONENTS


def _in_128_bits(expression: Expression, wide: list[pl.Expr]) -> pl.Expr:
    """An operation on numbers of 128 bits, of which Polars knows neither the sign nor the size."""
    if len(wide) == 2:
        made: pl.Expr = expression.function(*wide)
        return made
    (number,) = wide
    negated = pl.lit(0, _WIDE) - number
    return negated if expression.symbol == "-" else pl.max_horizontal(number, negated)
