"""Arguments that name columns: one check for all of them.

Every method that takes names of columns has :func:`checked_columns` read them: methods of collections, groups, joins
and states, inputs with a key, and tables that mirror an output by a key. Laws:

- **Names.** A column is named by a string, or by ``pl.col("a")``, which means the same. Where expressions are allowed,
  a Polars expression may stand in place of a name. Nothing else names a column: no number, no None, no dict.
- **Lists.** Several columns are named one by one, in a list, or both, and their order counts; so a set, which has no
  order, is refused. Where one column is wanted, a list is refused, also where the argument could be a constant: a list
  stands for columns, and never for a value.
- **Existence.** Every name is that of an existing column, and no name stands twice. A refusal lists the columns that
  exist, and suggests those with a similar name. (Where the columns are not known yet, only the form is checked.)

>>> checked_columns(["src", pl.col("dst")], ["src", "dst", "weight"], "group 'edges'")
('src', 'dst')
>>> checked_columns("wieght", ["src", "dst", "weight"], "group 'edges'")
Traceback (most recent call last):
    ...
riverrun.errors.PlanError: cannot group 'edges': column 'wieght' does not exist; there are: src, dst, weight
At: <doctest riverrun.rows.column_names[1]>:1: checked_columns("wieght", ["src", "dst", "weight"], "group 'edges'")
Hint: did you mean 'weight'?

Cost: a pass over the names; similar names are looked for in a refusal only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal

import polars as pl

from riverrun.errors import PlanError, RiverrunError, SchemaError
from riverrun.rows.values import listed, show

Room = Literal["plan", "schema"]
"""The class and codes of a refusal: "plan" while a program is built, "schema" where rows are read."""
_KINDS: dict[Room, type[RiverrunError]] = {"plan": PlanError, "schema": SchemaError}


def checked_columns(
    named: Any,
    columns: Sequence[str] | None,
    attempt: str,
    *,
    least: int = 1,
    most: int | None = None,
    expressions: bool = False,
    room: Room = "plan",
) -> tuple[Any, ...]:
    """The columns that an argument names, in their order: strings, and Polars expressions if `expressions` allows them.

    `columns` are the existing columns; None: not known yet, so that only the form of the argument is checked. `attempt`
    is the purpose, for errors: "join 'edges'". At least `least` columns have to be named. With `most=1` a list is
    refused.
    """
    kind = _KINDS[room]
    if most == 1 and is_list(named):
        raise kind(
            f"{room}.column",
            f"cannot {attempt}: {show(named)} is a list, and one column is wanted here{_there_are(columns)}",
            hint=_one_hint(named),
        )
    chosen = [
        _name_or_expression(each, attempt, expressions, columns, room) for each in flat([named])
    ]
    if len(chosen) < least:
        raise kind(
            f"{room}.column",
            f"cannot {attempt}: no column is given" + _there_are(columns),
            hint='name at least one: "a", or ["a", "b"]',
        )
    existing: Collection[str] | None = columns
    if (
        columns is not None and len(chosen) > 1
    ):  # for one name, building a set costs more than it saves
        existing = set(columns)
    seen = set[str]()
    for name in (each for each in chosen if isinstance(each, str)):
        if columns is not None and existing is not None and name not in existing:
            raise unknown_column(columns, name, attempt, room=room)
        if name in seen:
            raise kind(
                f"{room}.column_twice",
                f"cannot {attempt}: column {show(name)} is given twice",
                hint="name each column once",
                column=name,
            )
        seen.add(name)
    return tuple(chosen)


def one_column(
    named: Any,
    columns: Sequence[str] | None,
    attempt: str,
    *,
    expressions: bool = False,
    room: Room = "plan",
) -> Any:
    """The one column that an argument names."""
    (column,) = checked_columns(named, columns, attempt, most=1, expressions=expressions, room=room)
    return column


def new_name(name: Any, attempt: str) -> str:
    """The name of a new column, which has to be a string."""
    if not isinstance(name, str):
        raise PlanError(
            "plan.column",
            f"cannot {attempt}: {show(name)} is not a name",
            hint='the name of what is made is a string: "a"',
        )
    return name


def check_suffix(suffix: Any, attempt: str) -> None:
    """Refuse a suffix that is not text, or is empty: two columns of one name would stay alike."""
    new_name(suffix, f"{attempt} with suffix=")
    if not suffix:
        raise PlanError(
            "plan.column",
            f"cannot {attempt} with suffix='': an empty one does not tell two columns of one name apart",
            hint='for instance suffix="_right"; it is added where a name is taken, and nowhere else',
        )


def flat(columns: Iterable[Any]) -> Iterator[Any]:
    """Columns that are named one by one, in lists, or both, one after the other.

    >>> list(flat(["a", ["b", "c"], ("d",)]))
    ['a', 'b', 'c', 'd']
    """
    for column in columns:
        if is_list(column):
            yield from column
        else:
            yield column


def is_list(value: Any) -> bool:
    """Whether a value is several values in an order. A generator is; a string, a dict and a set are not."""
    return isinstance(value, Iterable) and not isinstance(
        value, str | bytes | Mapping | pl.Expr | set | frozenset
    )


def unknown_column(
    columns: Sequence[str],
    column: str,
    attempt: str,
    user: str | None = None,
    hint: str | None = None,
    room: Room = "plan",
) -> RiverrunError:
    """The refusal of a column that does not exist; `user` is the expression that uses the column, if one does."""
    close = get_close_matches(column, columns, n=3, cutoff=0.6)
    said = f"column {show(column)} does not exist"
    if user is not None:
        said = f"{user} uses column {show(column)}, which does not exist"
    return _KINDS[room](
        f"{room}.column_unknown",
        f"cannot {attempt}: {said}{_there_are(columns)}",
        hint=f"did you mean {' or '.join(map(show, close))}?"
        if close
        else hint or "name one of the columns",
        column=column,
        columns=list(columns),
        close=close,
    )


def _name_or_expression(
    named: Any, attempt: str, expressions: bool, columns: Sequence[str] | None, room: Room
) -> str | pl.Expr:
    kind = _KINDS[room]
    if isinstance(named, str):
        return named
    if isinstance(named, pl.Expr):
        if named.meta.is_column():
            return named.meta.output_name()
        if expressions:
            return named
        raise kind(
            f"{room}.column",
            f"cannot {attempt}: {show(str(named))} is computed, and the name of a column is wanted here"
            + _there_are(columns),
            hint='make it a column first, with_columns(new=...), and name that: "new"',
        )
    if isinstance(named, set | frozenset):
        raise kind(
            f"{room}.column",
            f"cannot {attempt}: {show(named)} is a set, which has no order",
            hint='give a list: ["a", "b"]',
        )
    raise kind(
        f"{room}.column",
        f"cannot {attempt}: {show(named)} is not the name of a column"
        + (", and not a Polars expression" if expressions else "")
        + _there_are(columns),
        hint='a column is its name, "a"'
        + (', or an expression: pl.col("a") + 1' if expressions else ""),
    )


def _one_hint(listed: Any) -> str:
    names = (
        [each for each in list(listed)[:2] if isinstance(each, str)]
        if isinstance(listed, list | tuple)
        else []
    )
    return f"give one name, not in a list: {names[0]!r}" if names else 'give one name: "a"'


def _there_are(columns: Sequence[str] | None) -> str:
    if columns is None:
        return ""
    return f"; there are: {listed(columns) or 'none'}"
