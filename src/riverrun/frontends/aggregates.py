"""What can be asked of a group, by names that the engine sees through.

Counts, sums and means are kept as running amounts; min, max, first, last and top as orders; so a
change costs the same however large its group is. Any other Polars aggregation, or Python function,
can be given to ``agg`` too: it sees the whole group again whenever that changes.

>>> import polars as pl, riverrun as rr
>>> flow = rr.Dataflow("shop")
>>> sales = flow.input("sales", {"item": pl.String, "day": pl.Date, "price": pl.Float64})
>>> sales.group_by("item").agg(
...     sold=rr.count(),
...     paid=rr.sum("price"),
...     last=rr.last("price", by="day"),
...     median=pl.median("price"),
... ).columns
['item', 'sold', 'paid', 'last', 'median']
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from riverrun.errors import PlanError

__all__ = ["Aggregate", "count", "count_distinct", "first", "last", "max", "mean", "min", "sum"]


@dataclass(frozen=True)
class Aggregate:
    """An aggregate of ours: which one, of which column or expression, by which order."""

    kind: str
    column: Any = None
    by: Any = None


def count() -> Aggregate:
    """How many rows a group has."""
    return Aggregate("count")


def sum(column: Any) -> Aggregate:
    """The sum of a column, exactly; nulls are left out, and the sum of nothing is 0."""
    return Aggregate("sum", _given(column, "sum"))


def mean(column: Any) -> Aggregate:
    """The mean of a column; nulls are left out, and the mean of nothing is null."""
    return Aggregate("mean", _given(column, "mean"))


def min(column: Any) -> Aggregate:
    """The least value of a column; null when it has none. NaN is greater than all other numbers, as in Spark."""
    return Aggregate("min", _given(column, "min"))


def max(column: Any) -> Aggregate:
    """The greatest value of a column; null when it has none. NaN is greater than all other numbers, as in Spark."""
    return Aggregate("max", _given(column, "max"))


def first(column: Any, by: Any) -> Aggregate:
    """The value of a column in the row that is first by another; the least such value where several rows are."""
    return Aggregate("first", _given(column, "first"), _given(by, "first"))


def last(column: Any, by: Any) -> Aggregate:
    """The value of a column in the row that is last by another; the least such value where several rows are."""
    return Aggregate("last", _given(column, "last"), _given(by, "last"))


def count_distinct(column: Any) -> Aggregate:
    """How many different values a column has; nulls are left out."""
    return Aggregate("count_distinct", _given(column, "count_distinct"))


def _given(column: Any, what: str) -> Any:
    if column is None:
        raise PlanError(
            "plan.column",
            f"cannot take the {what} of {column!r}: a column is its name, or a Polars expression",
            hint=f'for instance rr.{what}("price")',
        )
    return column
