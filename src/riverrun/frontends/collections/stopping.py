"""Stopping: when a loop ends, as programs say it by ``until=`` of `Collection.iterate`.

``rr.loops.unchanged`` is the default. ``rr.loops.tolerance("rank", 1e-9)`` ends a loop whose values hardly move. A
function of the rows before and after a round gives rows of which none is left at the end. Laws:

- **First round.** A loop ends at the first round after which its stop holds, with the rows that this round gave.
- **Tolerance.** The rows before and after a round have the same keys, each as often, and in no row the value of the
  column differs by more than the bound: differences are taken as doubles. Equal values never differ, also where they
  are NaN or infinite; null differs from every value.

>>> unchanged, tolerance("rank", 1e-9)
(unchanged, tolerance('rank', 1e-09))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from riverrun.errors import PlanError
from riverrun.frontends.collections.derivation import key_of
from riverrun.frontends.collections.rows import Rows
from riverrun.operators.rounds.stops import Closeness
from riverrun.rows.column_names import checked_columns, one_column
from riverrun.rows.values import show
from riverrun.state.types import type_text


@dataclass(frozen=True)
class Unchanged:
    """The loop ends when a round gives the rows that it began with, as it does without `until`.

    For ``until=`` of `Collection.iterate`.
    """

    def __repr__(self) -> str:
        return "unchanged"


@dataclass(frozen=True)
class LittleMoved:
    """A stop: a round in which no value of a column moves by more than a bound."""

    column: str
    most: float

    def __repr__(self) -> str:
        return f"tolerance({self.column!r}, {self.most!r})"

    def closeness(self, rows: Rows, key: Any, line: str) -> Closeness:
        """What is compared, for the rows that a round gives. Without a `key`, it is that of their groups."""
        attempt, schema = f"iterate until {self!r}", rows.schema
        key = key_of(rows) if key is None else key
        if key is None:
            raise PlanError(
                "plan.until",
                f"cannot {attempt} ({line}): nothing says which row of a round is to be compared with which row before",
                hint='say by which columns: key="node"',
            )
        keys: tuple[str, ...] = checked_columns(key, schema.names, attempt)
        column = one_column(self.column, schema.names, attempt)
        kind = schema.field(column).type
        if column in keys or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            what = "a column of the key" if column in keys else type_text(kind)
            raise PlanError(
                "plan.until",
                f"cannot {attempt} ({line}): {column!r} is {what}, and not a number that moves",
                hint="name a column of numbers beside the key",
            )
        return Closeness(keys, column, self.most)


Until = Unchanged | LittleMoved | Callable[[Any, Any], Any] | None

unchanged = Unchanged()


def tolerance(column: str, most: float) -> LittleMoved:
    """The loop ends when no value of `column` moves by more than `most`, and no row comes or goes.

    For ``until=`` of `Collection.iterate`, together with ``key=``, by which the rows before and after a round are
    compared. Where the body ends with a group, ``key=`` may be left out: then it is the key of the group.
    """
    attempt = "say when a loop ends by tolerance()"
    name = one_column(column, None, attempt)
    is_number = type(most) in (int, float)
    if not is_number or math.isnan(most) or most < 0:
        raise PlanError(
            "plan.until",
            f"cannot {attempt} of {show(most)}: that is how far a value may move, a number from 0 on",
            hint='for instance tolerance("rank", 1e-9)',
        )
    return LittleMoved(name, float(most))


def check_until(until: Any, line: str) -> None:
    """Refuse what says nothing about the end of a loop."""
    if until is None or isinstance(until, Unchanged | LittleMoved) or callable(until):
        return
    raise PlanError(
        "plan.until",
        f"cannot iterate until {show(until)} ({line}): that does not say when a loop ends",
        hint='until=rr.loops.unchanged, until=rr.loops.tolerance("rank", 1e-9) with key="node", or a function of the '
        "rows before and after a round that gives rows; the loop ends when it gives none",
    )
