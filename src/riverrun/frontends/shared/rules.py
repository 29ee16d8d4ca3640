"""Rules of shared states, as users name them: `riverrun.rules`.

A state is told what an update makes of an entry (``rule=`` of `update`), what a fetch makes of the entries that it
finds (``rule=`` of `fetch`), and what compaction leaves (``compact=`` of `Dataflow.state`). What the rules do is in
`operators.shared.rules` and `operators.shared.fetch_rules`; here are their names, and rules made of a user's function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import polars as pl

from riverrun.frontends.arguments import (
    check_callable,
)
from riverrun.operators.shared.fetch_rules import (
    Distinct,
    FetchFunction,
    FetchRule,
    Latest,
    Total,
    Within,
)
from riverrun.operators.shared.rules import (
    Add,
    Append,
    CompactFunction,
    CompactRule,
    Fold,
    KeepLatest,
    Replace,
    UpdateFunction,
    UpdateRule,
)
from riverrun.rows.schemas import as_schema

Span = int | timedelta


replace = Replace()


append = Append()


add = Add()


latest = Latest()


within = Within()


distinct = Distinct()


total = Total()


keep_latest = KeepLatest()


fold = Fold()


@dataclass(frozen=True)
class drop_before:  # noqa: N801  (it is written like the other rules)
    """Compaction: values go that are older, by more than `span`, than any that a fetch could still be at."""

    span: Span


def update(function: Callable[[pl.DataFrame, pl.DataFrame], Any]) -> UpdateRule:
    """A rule of one's own for `Collection.update`: ``function(entries, updates)`` gives the entries as they are to be.

    It is given the entries of the keys that are updated, and the updates. Both are frames of the columns of the
    state: key, time, value.
    """
    check_callable(function, "rr.rules.update", "make a rule of updates", "entries, updates")
    return UpdateFunction(function)


def fetch(function: Callable[[pl.DataFrame], Any], schema: Any) -> FetchRule:
    """A rule of one's own for `Collection.fetch`: ``function(values)`` makes answers of the values that requests find.

    What it gives has the columns of `schema`. The frame has a column `request`, then the time and the value columns;
    what is given back keeps `request`.
    """
    check_callable(function, "rr.rules.fetch", "make a rule of fetches", "values")
    return FetchFunction(function, as_schema(schema, "declare what a fetch rule gives"))


def compact(function: Callable[[pl.DataFrame, Any], Any]) -> CompactRule:
    """A rule of one's own for `Dataflow.state`: ``function(entries, horizon)`` gives the entries that are left.

    Entries are a frame of key, time and value. What is at or after the horizon has to be given back as it is.
    """
    check_callable(function, "rr.rules.compact", "make a rule of compaction", "entries, horizon")
    return CompactFunction(function)
