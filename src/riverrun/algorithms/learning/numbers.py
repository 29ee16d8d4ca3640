"""Columns of numbers: how fits name them, check them, and compute with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import polars as pl

import riverrun as rr
from riverrun.algorithms.graphs.graph import check_columns


def check_numbers(rows: rr.Collection, columns: Sequence[str], what: str) -> None:
    """Refuse columns of a fit that are no numbers, and a fit without columns."""
    if not columns:
        raise rr.PlanError(
            "plan.algorithm",
            f"cannot fit {what} by no columns",
            hint='name the columns with the numbers: columns=["width", "height"]',
        )
    check_columns(rows, *columns)
    for name in columns:
        kind = rows.polars_schema[name]
        if not kind.is_numeric() or kind.is_decimal():
            raise rr.PlanError(
                "plan.type",
                f"cannot fit {what} by {name!r}: that is {kind}, not a number",
                hint=f"cast it: with_columns({name}=pl.col({name!r}).cast(pl.Float64))",
                column=name,
            )


@dataclass(frozen=True)
class OnlyNumbers:
    """Refuses rows in which a number is null, infinite or NaN, with which no distance and no sum can be computed; and,
    with a `label`, rows whose label is not 0 or 1."""

    what: str
    columns: tuple[str, ...]
    label: str | None = None

    def __call__(self, passing: Any) -> None:
        """Raise for the first column with such a number."""
        frame = pl.from_arrow(passing)
        assert isinstance(frame, pl.DataFrame)
        for name in self.columns:
            self._refuse(
                frame, name, ~pl.col(name).cast(pl.Float64).is_finite(), "no finite number"
            )
        if self.label is not None:
            number = pl.col(self.label).cast(pl.Float64)
            self._refuse(frame, self.label, (number != 0) & (number != 1), "neither 0 nor 1")

    def _refuse(self, frame: pl.DataFrame, name: str, wrong: pl.Expr, words: str) -> None:
        bad = frame.filter(wrong.fill_null(True))
        if len(bad):
            raise rr.SchemaError(
                "schema.number",
                f"cannot fit {self.what}: in {len(bad)} of {len(frame)} rows {name!r} is {words}, for instance "
                f"{bad[name][0]!r}",
                hint=f"leave these rows out: filter(pl.col({name!r})...)",
                column=name,
            )


def fit_mode(decimals: int | None, *rows: rr.Collection) -> str:
    """How the loop of a fit runs: by rounds, since a change moves nearly everything in all of them, except where
    rounding stops it soon. A loop inside another one is never by rounds."""
    inside = any(each.scope.depth > 1 for each in rows)
    return "auto" if inside or decimals is not None else "rounds"


def added(terms: Sequence[pl.Expr]) -> pl.Expr:
    """The sum of some expressions, from left to right."""
    return reduce(add, terms)
