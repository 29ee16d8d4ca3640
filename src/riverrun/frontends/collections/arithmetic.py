"""Checked arithmetic of aggregates: a result on integers or times that does not fit 64 bits refuses the epoch.

``agg`` (`frontends.collections.groups`) turns the user's expressions of aggregates into Polars expressions. Polars
wraps around where a result leaves its type; here, such a result is an error. Laws:

- **Exact integers.** An operation on integers (+ - * // % ** abs, and the sign) gives the exact number, as Int64; as
  UInt64 where one operand is UInt64 and none is signed. Durations and datetimes are computed as Polars does.
- **No silent overflow.** Besides the result there is an *overflow*, an expression of the same row, which is true where
  the exact result does not fit. The engine refuses an epoch with a true overflow.
- **Other types as in Polars.** Floats, decimals and all other types are left to Polars, which raises an error for
  decimals of more than 38 digits.

Cost: Polars computes such an operation in 128 bits, at about 80 microseconds a batch.

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
"""Polars takes exponents of integers below this."""
_PER_SECOND = {"ms": 10**3, "us": 10**6, "ns": 10**9}
_RANGES = {pl.Int64: (-(1 << 63), 1 << 63), pl.UInt64: (0, 1 << 64)}


@dataclass
class Arithmetic:
    """Turns expressions of aggregates into Polars expressions, and collects the overflows of their operations."""

    groups: pl.DataFrame
    """The columns that the aggregates are in, without rows."""
    overflows: list[pl.Expr] = field(default_factory=list)
    """Each is true in the rows where some operation left its type; null counts as false."""

    def to_polars(self, expression: Expression, column: Callable[[Any], str]) -> Any:
        """A Polars expression for an expression of aggregates; `column` is the column that holds an aggregate."""
        return expression.of(column, self._computed)

    def _computed(self, expression: Expression, operands: list[Any]) -> Any:
        """The Polars expression of one operation."""
        plain = self._plain(expression, operands)
        if expression.symbol not in _ARITHMETIC:
            return plain
        if expression.symbol == "**" and _is_beyond_exponents(operands[1]):
            return self._far_power(operands[0], operands[1], plain)
        try:
            kinds = [self._kind(operand) for operand in operands]
            kind = self._kind(plain)
        except pl.exceptions.PolarsError:
            return plain  # refused where it is compiled, with a better message
        if all(each.is_integer() or each == pl.Boolean for each in kinds) and kind.is_integer():
            exact = self._whole(expression, operands, kinds)
            return plain if exact is None else exact
        if isinstance(kind, pl.Duration | pl.Datetime) and expression.symbol in _TIMES:
            self._time(expression, operands, kinds, kind, plain)
        return plain

    def _plain(self, expression: Expression, operands: list[Any]) -> Any:
        """The operation as Polars does it, but in 128 bits in two cases that Polars does not do in 64: the negation of
        unsigned integers, and integers with a literal beyond 64 bits, which would give null.
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
        """An operation on integers: computed in 128 bits, given in 64."""
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
        narrow: pl.Expr = exact.cast(type_, strict=False)
        overflow = narrow.is_null() & exact.is_not_null()
        if expression.symbol == "*" and (pl.UInt64 in kinds or _WIDE in kinds):
            size = wide[0].cast(pl.Float64) * wide[1].cast(pl.Float64)
            overflow |= size.abs() >= 2.0**100  # it may leave 128 bits
        self.overflows.append(overflow)
        return narrow

    def _power(self, operands: list[Any], wide: list[pl.Expr], type_: Any) -> pl.Expr | None:
        """A power of integers. Exponents below zero are left to Polars."""
        least, end = _RANGES[type_]
        base = wide[0].cast(type_, strict=False)
        exponent = operands[1] if isinstance(operands[1], pl.Expr) else pl.lit(operands[1])
        power = (base**exponent).cast(type_, strict=False)
        # The only power of an exponent from 2 on that lies nearer to an end than a float can tell is the end itself.
        size = wide[0].cast(pl.Float64) ** wide[1].cast(pl.Float64)
        beyond = (size >= float(end)) | (size < float(least))
        self.overflows.append((beyond & (wide[1] > 1)) | (base.is_null() & wide[0].is_not_null()))
        return power

    def _far_power(self, base: Any, exponent: int, plain: Any) -> Any:
        """A power with an exponent that Polars does not take: exact for the bases -1, 0 and 1, else an overflow."""
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
        """Add the overflow of an operation on durations and times: true where Polars' result differs from that in
        128 bits, in units of the result.
        """
        unit = kind.time_unit
        assert unit is not None
        wide = []
        for operand, operand_kind in zip(operands, kinds, strict=True):
            value = operand if isinstance(operand, pl.Expr) else pl.lit(operand)
            if isinstance(operand_kind, pl.Duration | pl.Datetime):
                assert operand_kind.time_unit is not None
                per, finer = _PER_SECOND[unit], _PER_SECOND[operand_kind.time_unit]
                if finer > per:
                    value = value.dt.cast_time_unit(unit)
                ticks = value.to_physical().cast(_WIDE)
                wide.append(ticks * pl.lit(per // finer, _WIDE) if finer < per else ticks)
            elif operand_kind == pl.Date:
                wide.append(
                    value.to_physical().cast(_WIDE) * pl.lit(86400 * _PER_SECOND[unit], _WIDE)
                )
            elif operand_kind.is_integer() and expression.symbol == "*":
                wide.append(value.cast(_WIDE))
            else:
                return
        self.overflows.append(_in_128_bits(expression, wide) != plain.to_physical().cast(_WIDE))


def _is_beyond_64_bits(operand: Any) -> bool:
    return isinstance(operand, int) and not -(1 << 63) <= operand < 1 << 64


def _is_beyond_exponents(operand: Any) -> bool:
    return isinstance(operand, int) and operand >= _POLARS_EXPONENTS


def _in_128_bits(expression: Expression, wide: list[pl.Expr]) -> pl.Expr:
    """An operation on numbers of 128 bits. The sign and abs are built from others: Polars has neither for 128 bits."""
    if len(wide) == 2:
        computed: pl.Expr = expression.function(*wide)
        return computed
    (number,) = wide
    negated = pl.lit(0, _WIDE) - number
    return negated if expression.symbol == "-" else pl.max_horizontal(number, negated)
