"""Arguments that name columns: one check for all of them.

Whoever takes the names of columns, a collection, a group, a join, a state, an input with a key, a table that is
mirrored, asks :func:`checked_columns` for them. Laws:

- **Names.** A column is named by a string, or by ``pl.col("a")``, which is the same. Where expressions are taken, any
  Polars expression of one column may stand for it. Nothing else names a column: no number, no None, no dict.
- **Lists.** Several columns are given one by one, in a list, or both; the order is kept, and a set, which has none, is
  refused. Where one column is wanted, a list is refused. A list is never a constant.
- **Existence.** Every name is that of a column that exists, and no name stands twice. What is refused is told which
  columns there are, and which one it resembles.

>>> checked_columns(["src", pl.col("dst")], ["src", "dst", "weight"], "group 'edges'")
('src', 'dst')
>>> checked_columns("wieght", ["src", "dst", "weight"], "group 'edges'")
Traceback (most recent call last):
    ...
riverrun.errors.PlanError: cannot group 'edges': column 'wieght' does not exist; there are: src, dst, weight
At: <doctest riverrun.rows.column_names[1]>:1: checked_columns("wieght", ["src", "dst", "weight"], "group 'edges'")
Hint: did you mean 'weight'?
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal

import polars as pl

from riverrun.errors import PlanError, RiverrunError, SchemaError
from riverrun.rows.values import show

Room = Literal["plan", "schema"]
"""Whose codes a refusal has: those of a program that is being built, or of rows that are read."""
_KINDS: dict[Room, type[RiverrunError]] = {"plan": PlanError, "schema": SchemaError}


def checked_columns(
    given: Any,
    columns: Sequence[str] | None,
    attempt: str,
    *,
    least: int = 1,
    most: int | None = None,
    expressions: bool = False,
    room: Room = "plan",
) -> tuple[Any, ...]:
    """The columns that an argument names, in the order given: strings, and where they are taken `expressions`.

    `columns` are those that exist; with None that is not known yet, and only the form is looked at. `attempt` says what
    the columns are for: "join 'edges'". There have to be `least`, and `most` at the most: with 1, a list is refused.
    """
    kind = _KINDS[room]
    if most == 1 and is_list(given):
        raise kind(
            f"{room}.column",
            f"cannot {attempt}: {show(given)} is a list, and one column is wanted here{_there_are(columns)}",
            hint=_one_hint(given),
        )
    chosen = [
        _name_or_expression(each, attempt, expressions, columns, room) for each in flat([given])
    ]
    if len(chosen) < least:
        raise kind(
            f"{room}.column",
            f"cannot {attempt}: no column is given" + _there_are(columns),
            hint='name at least one: "a", or ["a", "b"]',
        )
    existing: Collection[str] | None = columns
    if columns is not None and len(chosen) > 1:  # for one of them a set is not worth its while
        existing = set(columns)
    seen = set[str]()
    for name in (each for each in chosen if isinstance(each, str)):
        if columns is not None and existing is not None and name not in existing:
            raise unknown_column(columns, name, attempt, room=room)
        if name in seen:
            raise kind(
                f"{room}.column_twice",
                f"cannot {attempt}: column {name!r} is given twice",
                hint="name each column once",
                column=name,
            )
        seen.add(name)
    return tuple(chosen)


def one_column(
    given: Any,
    columns: Sequence[str] | None,
    attempt: str,
    *,
    expressions: bool = False,
    room: Room = "plan",
) -> Any:
    """The one column that an argument names."""
    (column,) = checked_columns(given, columns, attempt, most=1, expressions=expressions, room=room)
    return column


def new_name(given: Any, attempt: str) -> str:
    """A name for something that is to be made."""
    if not isinstance(given, str):
        raise PlanError(
            "plan.column",
            f"cannot {attempt}: {show(given)} is not a name",
            hint='the name of what is made is a string: "a"',
        )
    return given


def check_suffix(given: Any, attempt: str) -> None:
    """Refuse what does not tell columns of one name apart: a suffix is text, and not empty."""
    new_name(given, f"{attempt} with suffix=")
    if not given:
        raise PlanError(
            "plan.column",
            f"cannot {attempt} with suffix='': an empty one does not tell two columns of one name apart",
            hint='for instance suffix="_right"; it is added where a name is taken, and nowhere else',
        )


def flat(columns: Iterable[Any]) -> Iterator[Any]:
    """Columns given one by one, in lists, or both.

    >>> list(flat(["a", ["b", "c"], ("d",)]))
    ['a', 'b', 'c', 'd']
    """
    for column in columns:
        if is_list(column):
            yield from column
        else:
            yield column


def is_list(given: Any) -> bool:
    """Whether something is several things in an order; a generator is, a string, a dict and a set are not."""
    return isinstance(given, Iterable) and not isinstance(
        given, str | bytes | Mapping | pl.Expr | set | frozenset
    )


def unknown_column(
    columns: Sequence[str],
    column: str,
    attempt: str,
    user: str | None = None,
    hint: str | None = None,
    room: Room = "plan",
) -> RiverrunError:
    """The refusal of a column that does not exist; `user` is what uses it, when that is an expression."""
    close = get_close_matches(column, columns, n=3, cutoff=0.6)
    said = f"column {column!r} does not exist"
    if user is not None:
        said = f"{user} uses column {column!r}, which does not exist"
    return _KINDS[room](
        f"{room}.column_unknown",
        f"cannot {attempt}: {said}{_there_are(columns)}",
        hint=f"did you mean {' or '.join(map(repr, close))}?"
        if close
        else hint or "name one of the columns",
        column=column,
        columns=list(columns),
        close=close,
    )


def _name_or_expression(
    given: Any, attempt: str, expressions: bool, columns: Sequence[str] | None, room: Room
) -> str | pl.Expr:
    kind = _KINDS[room]
    if isinstance(given, str):
        return given
    if isinstance(given, pl.Expr):
        if given.meta.is_column():
            return given.meta.output_name()
        if expressions:
            return given
        raise kind(
            f"{room}.column",
            f"cannot {attempt}: {show(str(given))} is computed, and the name of a column is wanted here"
            + _there_are(columns),
            hint='make it a column first, with_columns(new=...), and name that: "new"',
        )
    if isinstance(given, set | frozenset):
        raise kind(
            f"{room}.column",
            f"cannot {attempt}: {show(given)} is a set, which has no order",
            hint='give a list: ["a", "b"]',
        )
    raise kind(
        f"{room}.column",
        f"cannot {attempt}: {show(given)} is not the name of a column"
        + (", and not a Polars expression" if expressions else "")
        + _there_are(columns),
        hint='a column is its name, "a"'
        + (', or an expression: pl.col("a") + 1' if expressions else ""),
    )


def _one_hint(given: Any) -> str:
    names = (
        [each for each in list(given)[:2] if isinstance(each, str)]
        if isinstance(given, list | tuple)
        else []
    )
    return f"give one name, not in a list: {names[0]!r}" if names else 'give one name: "a"'


def _there_are(columns: Sequence[str] | None) -> str:
    if columns is None:
        return ""
    shown = list(columns[:40])
    more = f", and {len(columns) - len(shown):,} more" if len(columns) > len(shown) else ""
    return f"; there are: {', '.join(shown) or 'none'}{more}"
