"""Better: which of two rows with one key a loop keeps.

Programs write ``better=rr.loops.least("distance")`` or ``rr.loops.greatest("width")``; or expressions alone, of which
the least is the best: ``better=pl.col("distance") + pl.col("toll")``. Laws:

- **Named first.** Rows are compared by the named columns or expressions, in their order; then by the other columns of
  the value, the smaller first, in the order of the schema. So two rows of one key are equally good only if they are
  equal.
- **Nulls and NaN.** A null is worse than every value, under `least` and under `greatest`. NaN is the greatest float.
- **Row by row.** An expression is computed of one row alone. It may be of any type that a column may have.

>>> least("distance")
least('distance')
>>> greatest(pl.col("width").abs(), "hops")
greatest(col("width").abs(), 'hops')
>>> as_better(pl.col("distance"))
least('distance')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from riverrun.frontends.collections.expressions import compile_columns
from riverrun.frontends.collections.rows import one_line
from riverrun.rows.column_names import checked_columns


@dataclass(frozen=True, eq=False)
class Better:
    """An order of the rows of one key: the best row is the first."""

    by: tuple[Any, ...]
    greatest: bool

    def __repr__(self) -> str:
        word = "greatest" if self.greatest else "least"
        shown = [repr(each) if isinstance(each, str) else str(each) for each in self.by]
        return f"{word}({', '.join(shown)})"

    def check(self, schema: pa.Schema, key: Sequence[str], attempt: str) -> None:
        """Refuse columns and expressions that the rows do not have."""
        attempt = f"{attempt}, better={self!r}"
        named = checked_columns(list(self.by), schema.names, attempt, expressions=True)
        computed = {one_line(each): each for each in named if not isinstance(each, str)}
        if computed:
            compile_columns(schema, computed, attempt)

    def order(self, columns: Sequence[str], key: Sequence[str]) -> tuple[list[Any], list[bool]]:
        """What the rows of a key are ordered by, the best first: columns and expressions, and which are descending."""
        named = [each for each in self.by if isinstance(each, pl.Expr) or each not in key]
        taken = {*key, *[each for each in named if isinstance(each, str)]}
        rest = [each for each in columns if each not in taken]
        return [*named, *rest], [self.greatest] * len(named) + [False] * len(rest)

    @property
    def text(self) -> str:
        """The order in words, on one line: for plans."""
        word = "greatest" if self.greatest else "least"
        return f"{word} {', '.join(one_line(each) if isinstance(each, pl.Expr) else each for each in self.by)}"


def least(*columns: Any) -> Better:
    """The better row is the one with the least value: in the first of `columns`, then in the second, and so on.

    `columns` are names or Polars expressions. For ``better=`` of `Collection.iterate_delta`.
    """
    return _better(columns, False, "least")


def greatest(*columns: Any) -> Better:
    """The better row is the one with the greatest value: in the first of `columns`, then in the second, and so on.

    `columns` are names or Polars expressions. For ``better=`` of `Collection.iterate_delta`.
    """
    return _better(columns, True, "greatest")


def as_better(better: Any) -> Any:
    """`better` as users give it, with expressions alone as an order: the least is the best."""
    if isinstance(better, pl.Expr):
        return least(better)
    if (
        isinstance(better, list | tuple)
        and better
        and all(isinstance(one, pl.Expr) for one in better)
    ):
        return least(*better)
    return better


def _better(columns: Sequence[Any], greatest: bool, word: str) -> Better:
    listed = (
        list(columns[0])
        if len(columns) == 1 and isinstance(columns[0], list | tuple)
        else list(columns)
    )
    return Better(
        checked_columns(listed, None, f"say what is better by {word}()", expressions=True), greatest
    )
