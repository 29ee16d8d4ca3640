"""Aggregates of a group: those that the engine maintains change by change, and expressions of them.

The functions here describe aggregates for ``agg``. The engine keeps counts, sums and means as running amounts, and min,
max, first, last and top as orders, so a change costs the same however large its group is. ``agg`` also takes any other
Polars aggregation or Python function; these see the whole group again whenever the group changes.

Aggregates can be computed with: ``rr.sum("price") / rr.count()`` is a column like any other. Its arithmetic is that of
Polars (division by zero, nulls), except that integers are computed in 64 bits, and a result beyond 64 bits is an error
(`frontends.collections.arithmetic`). Each aggregate of such an expression is kept by itself, and the expression is
computed again for the groups that change; so the expression costs as much as its aggregates.

>>> import polars as pl, riverrun as rr
>>> flow = rr.Dataflow("shop")
>>> sales = flow.input("sales", {"item": pl.String, "day": pl.Date, "price": pl.Float64})
>>> sales.group_by("item").agg(
...     rr.sum("price").alias("paid"),
...     sold=rr.count(),
...     each=rr.sum("price") / rr.count(),
...     last=rr.last("price", by="day"),
...     median=pl.median("price"),
... ).columns
['item', 'paid', 'sold', 'each', 'last', 'median']
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Self

import polars as pl

from riverrun.errors import PlanError
from riverrun.rows.column_names import checked_columns, new_name, one_column
from riverrun.rows.values import show

__all__ = ["Aggregate", "count", "count_distinct", "first", "last", "max", "mean", "min", "sum"]


class Value(pl.Expr):
    """An aggregate, or an expression of aggregates.

    The class derives from Polars' `Expr`, so that Python lets our operators handle ``pl.col("a") + rr.sum("b")``. But
    Polars cannot compute a value that the engine keeps, so all methods of `Expr` that are not defined here are refused.
    """

    called: str | None

    @property
    def _pyexpr(self) -> Any:  # type: ignore[override]
        raise PlanError(
            "plan.aggregate",
            f"cannot take {self} as an expression of Polars: it is an aggregate of a group",
            hint="agg(x=...) takes it, and what is computed with it: + - * / // % ** < > == & |, abs, round, cast, "
            "fill_null, alias; the rest goes with the column that it makes: agg(x=...).with_columns(y=pl.col('x')...)",
        )

    def __getstate__(self) -> Any:
        return dict(self.__dict__)

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        return repr(self)

    def alias(self, name: str) -> Self:
        """The same under a `name`: ``agg(rr.sum("price").alias("paid"))`` is ``agg(paid=rr.sum("price"))``."""
        return replace(self, called=new_name(name, f"call {self} otherwise"))  # type: ignore[type-var]

    def abs(self) -> Expression:
        """The absolute value."""
        return Expression("abs", operator.abs, (self,))

    def round(self, decimals: int = 0) -> Expression:  # type: ignore[override]
        """Rounded to a number of `decimals`."""
        return Expression("round", lambda value: value.round(decimals), (self,), (decimals,))

    def cast(self, dtype: Any) -> Expression:  # type: ignore[override]
        """As `dtype`, another Polars type."""
        return Expression("cast", lambda value: value.cast(dtype), (self,), (dtype,))

    def fill_null(self, value: Any) -> Expression:  # type: ignore[override]
        """With a `value`, or another aggregate, where it is null."""
        return Expression("fill_null", lambda mine, other: mine.fill_null(other), (self, value))

    def __add__(self, other: Any) -> Expression:
        return Expression("+", operator.add, (self, other))

    def __radd__(self, other: Any) -> Expression:
        return Expression("+", operator.add, (other, self))

    def __sub__(self, other: Any) -> Expression:
        return Expression("-", operator.sub, (self, other))

    def __rsub__(self, other: Any) -> Expression:
        return Expression("-", operator.sub, (other, self))

    def __mul__(self, other: Any) -> Expression:
        return Expression("*", operator.mul, (self, other))

    def __rmul__(self, other: Any) -> Expression:
        return Expression("*", operator.mul, (other, self))

    def __truediv__(self, other: Any) -> Expression:
        return Expression("/", operator.truediv, (self, other))

    def __rtruediv__(self, other: Any) -> Expression:
        return Expression("/", operator.truediv, (other, self))

    def __floordiv__(self, other: Any) -> Expression:
        return Expression("//", operator.floordiv, (self, other))

    def __rfloordiv__(self, other: Any) -> Expression:
        return Expression("//", operator.floordiv, (other, self))

    def __mod__(self, other: Any) -> Expression:
        return Expression("%", operator.mod, (self, other))

    def __rmod__(self, other: Any) -> Expression:
        return Expression("%", operator.mod, (other, self))

    def __pow__(self, other: Any) -> Expression:
        return Expression("**", operator.pow, (self, other))

    def __rpow__(self, other: Any) -> Expression:
        return Expression("**", operator.pow, (other, self))

    def __and__(self, other: Any) -> Expression:
        return Expression("&", operator.and_, (self, other))

    def __rand__(self, other: Any) -> Expression:
        return Expression("&", operator.and_, (other, self))

    def __or__(self, other: Any) -> Expression:
        return Expression("|", operator.or_, (self, other))

    def __ror__(self, other: Any) -> Expression:
        return Expression("|", operator.or_, (other, self))

    def __xor__(self, other: Any) -> Expression:
        return Expression("^", operator.xor, (self, other))

    def __rxor__(self, other: Any) -> Expression:
        return Expression("^", operator.xor, (other, self))

    def __lt__(self, other: Any) -> Expression:
        return Expression("<", operator.lt, (self, other))

    def __le__(self, other: Any) -> Expression:
        return Expression("<=", operator.le, (self, other))

    def __gt__(self, other: Any) -> Expression:
        return Expression(">", operator.gt, (self, other))

    def __ge__(self, other: Any) -> Expression:
        return Expression(">=", operator.ge, (self, other))

    def __eq__(self, other: Any) -> Expression:  # type: ignore[override]
        return Expression("==", operator.eq, (self, other))

    def __ne__(self, other: Any) -> Expression:  # type: ignore[override]
        return Expression("!=", operator.ne, (self, other))

    def __neg__(self) -> Expression:
        return Expression("-", operator.neg, (self,))

    def __invert__(self) -> Expression:
        return Expression("~", operator.invert, (self,))

    def __abs__(self) -> Expression:
        return self.abs()

    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise PlanError(
            "plan.aggregate",
            f"cannot tell whether {self} is true: it is a description, and has no value while the program is written",
            hint="combine conditions by & and |; keep groups by what they amount to: "
            "agg(n=rr.count()).filter(pl.col('n') > 1)",
        )


@dataclass(frozen=True, eq=False, repr=False)
class Aggregate(Value):
    """One aggregate: its kind, the column or expression it is of, the order it goes by, and its name if it has one."""

    kind: str
    column: Any = None
    by: Any = None
    called: str | None = None

    @property
    def columns(self) -> tuple[Any, ...]:
        """The columns or expressions that are aggregated."""
        return () if self.column is None else _as_tuple(self.column)

    @property
    def order(self) -> tuple[Any, ...]:
        """The columns or expressions by whose order the aggregate goes."""
        return () if self.by is None else _as_tuple(self.by)

    def __repr__(self) -> str:
        by = f" by {', '.join(map(str, self.order))}" if self.order else ""
        return f"{self.kind}({', '.join(map(str, self.columns))}{by})"


@dataclass(frozen=True, eq=False, repr=False)
class Expression(Value):
    """An operation on aggregates, expressions of aggregates, and constants."""

    symbol: str
    function: Callable[..., Any]
    operands: tuple[Any, ...]
    options: tuple[Any, ...] = ()
    called: str | None = None

    def __post_init__(self) -> None:
        for operand in self.operands:
            if isinstance(operand, str | list | tuple | dict | set):
                raise PlanError(
                    "plan.aggregate",
                    f"cannot compute {self}: {show(operand)} is no aggregate and no number",
                    hint='the sum of a column is rr.sum("v"); a string that is a value is pl.lit("v")',
                )

    def aggregates(self) -> list[Any]:
        """The aggregates of ours and of Polars in this expression, from left to right."""
        listed: list[Any] = []
        for operand in self.operands:
            if isinstance(operand, Expression):
                listed += operand.aggregates()
            elif is_aggregation(operand):
                listed.append(operand)
        return listed

    def of(
        self,
        column: Callable[[Any], str],
        compute: Callable[[Expression, list[Any]], Any] | None = None,
    ) -> Any:
        """This expression as a Polars expression of columns; `column` is the column that holds an aggregate.

        `compute` makes the expression of an operation and its operands; without `compute`, Polars' own operation is
        used.
        """
        operands = []
        for operand in self.operands:
            if isinstance(operand, Expression):
                operands.append(operand.of(column, compute))
            else:
                operands.append(pl.col(column(operand)) if is_aggregation(operand) else operand)
        return self.function(*operands) if compute is None else compute(self, operands)

    def __repr__(self) -> str:
        shown = [
            show(each) if not isinstance(each, pl.Expr) else str(each) for each in self.operands
        ]
        if self.symbol.isalpha():
            more = [*shown[1:], *map(str, self.options)]
            return f"{shown[0]}.{self.symbol}({', '.join(more)})"
        return (
            f"({self.symbol}{shown[0]})"
            if len(shown) == 1
            else f"({f' {self.symbol} '.join(shown)})"
        )


def is_aggregation(value: Any) -> bool:
    """Whether a value is an aggregate of ours or of Polars. A literal of Polars is a constant, not an aggregate."""
    if isinstance(value, Value):
        return isinstance(value, Aggregate)
    return isinstance(value, pl.Expr) and not value.meta.is_literal()


def count(column: Any = None) -> Aggregate:
    """How many rows a group has; with a `column`, how many rows in which that column is not null.

    >>> import polars as pl
    >>> from riverrun.testing import once
    >>> rows = [{"k": 1, "v": 5}, {"k": 1, "v": None}]
    >>> once(
    ...     lambda rows: rows.group_by("k").agg(all=count(), known=count("v")), rows=rows
    ... ).to_dicts()
    [{'k': 1, 'all': 2, 'known': 1}]
    """
    return Aggregate("count", None if column is None else _one(column, "count"))


def sum(column: Any) -> Aggregate:
    """The sum of a `column`, exactly; nulls are left out, and the sum of nothing is 0."""
    return Aggregate("sum", _one(column, "sum"))


def mean(column: Any) -> Aggregate:
    """The mean of a `column`; nulls are left out, and the mean of nothing is null."""
    return Aggregate("mean", _one(column, "mean"))


def min(column: Any) -> Aggregate:
    """The least value of a `column`; null when it has none. NaN is greater than all other numbers, as in Spark."""
    return Aggregate("min", _one(column, "min"))


def max(column: Any) -> Aggregate:
    """The greatest value of a `column`; null when it has none. NaN is greater than all other numbers, as in Spark."""
    return Aggregate("max", _one(column, "max"))


def first(column: Any, by: Any = None) -> Aggregate:
    """The value of a `column` in the first row in the order of another column, or of several: ``by=["day", "hour"]``.

    Where several rows are first, the least of their values. A row whose `by` is null comes after all others; of several
    columns one is compared after the other, and in each a null is after all values.
    """
    return Aggregate("first", _one(column, "first"), _order(by, "first"))


def last(column: Any, by: Any = None) -> Aggregate:
    """The value of a `column` in the last row in the order of another column, or of several: ``by=["day", "hour"]``.

    Where several rows are last, the least of their values. Rows whose `by` is null are passed over, unless all are. Of
    several columns one is compared after the other, and in each a null is before all values.
    """
    return Aggregate("last", _one(column, "last"), _order(by, "last"))


def count_distinct(*columns: Any) -> Aggregate:
    """How many different values a column has, or several `columns` together. Rows with a null in them do not count."""
    listed = checked_columns(
        list(columns[0])
        if len(columns) == 1 and isinstance(columns[0], list | tuple)
        else list(columns),
        None,
        "take the count_distinct",
        expressions=True,
    )
    return Aggregate("count_distinct", listed[0] if len(listed) == 1 else listed)


def _one(column: Any, kind: str) -> Any:
    if isinstance(column, Value):
        raise PlanError(
            "plan.aggregate",
            f"cannot take the {kind} of {column}: that is an aggregate already",
            hint="compute inside: rr.sum(pl.col('a') - pl.col('b')); or group again: agg(x=...).group_by(...).agg(...)",
        )
    return one_column(column, None, f"take the {kind}", expressions=True)


def _order(by: Any, kind: str) -> Any:
    if by is None:
        raise PlanError(
            "plan.column",
            f"cannot take the {kind} value of a group: rows have no order but that of their values",
            hint=f'say by which column: rr.{kind}("price", by="day"), or by=["day", "hour"]',
        )
    listed = checked_columns(by, None, f"take the {kind} by", expressions=True)
    return listed[0] if len(listed) == 1 else listed


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
