"""Rules of shared states, under the names that users write: `riverrun.rules`.

There are three kinds of rules. An update rule says what an update makes of the entries of its key (``rule=`` of
`Collection.update`). A fetch rule says what a fetch makes of the values that it finds (``rule=`` of
`Collection.fetch`). A compaction rule says what is left of old values (``compact=`` of `Dataflow.state`). The rules
themselves are in `operators.shared.rules` and `operators.shared.fetch_rules`. This module names the ready-made ones,
and makes rules of users' functions.
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
    """Compaction: drops values that are older, by more than `span`, than every time at which a fetch can still come."""

    span: Span


def update(function: Callable[[pl.DataFrame, pl.DataFrame], Any]) -> UpdateRule:
    """An update rule of your own, for `Collection.update`: the `function` gives the new entries of the updated keys.

    It is called as ``function(entries, updates)``: the entries of all keys that are updated, and the updates. Both are
    Polars frames with the columns of the state: key, time, value.
    """
    check_callable(function, "rr.rules.update", "make a rule of updates", "entries, updates")
    return UpdateFunction(function)


def fetch(function: Callable[[pl.DataFrame], Any], schema: Any) -> FetchRule:
    """A fetch rule of your own, for `Collection.fetch`: the `function` makes answers of the values that requests find.

    It is called as ``function(values)`` for many requests at once. The frame `values` has a column `request`, which
    tells the requests apart, and then the time and the value columns of the state. The result is a frame with the
    column `request` and the columns of `schema`.
    """
    check_callable(function, "rr.rules.fetch", "make a rule of fetches", "values")
    return FetchFunction(function, as_schema(schema, "declare what a fetch rule gives"))


def compact(function: Callable[[pl.DataFrame, Any], Any]) -> CompactRule:
    """A compaction rule of your own, for `Dataflow.state`: the `function` gives the entries that are left.

    It is called as ``function(entries, horizon)``. The frame `entries` has the columns of the state: key, time, value.
    Entries at or after the horizon have to be given back as they are.
    """
    check_callable(function, "rr.rules.compact", "make a rule of compaction", "entries, horizon")
    return CompactFunction(function)
