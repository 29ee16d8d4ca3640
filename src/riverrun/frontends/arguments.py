"""Arguments of the methods of collections: columns in any form, functions, spans of time, other collections.

All modules of the front ends that take such arguments use these functions. A function here either brings an argument to
one form (`named_columns`, `as_ticks`), or refuses a wrong argument (`check_callable`, `not_a_collection`), or tests or
names a value (`is_count`, `type_in_words`). The error of a refusal says what the user attempted ("cannot select ...")
and the value, and its hint says what to write. `RowsOf` works later, in the run: it wraps the user's function of
``flat_map``, and refuses a result that is not rows. Names of existing columns are checked in `rows.column_names`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial, wraps
from typing import Any, TypeVar, cast

import polars as pl
import pyarrow as pa

from riverrun.errors import PlanError, SchemaError, with_article
from riverrun.rows.column_names import checked_columns, flat
from riverrun.rows.values import fields_of, show

Method = TypeVar("Method", bound=Callable[..., Any])

MOST = 1 << 62
"""Counts are less than this; lengths of windows are at most this."""


def is_time(kind: pa.DataType) -> bool:
    """Whether values of a type are points in time, or whole numbers that may stand for them."""
    temporal = pa.types.is_temporal(kind) and not pa.types.is_interval(kind)
    return bool(pa.types.is_signed_integer(kind) or temporal)


def named_columns(
    positional: Sequence[Any],
    named: Mapping[str, Any],
    columns: Sequence[str],
    what: str,
    attempt: str,
) -> dict[str, Any]:
    """Columns by the names of the results. A column given by position has the name that its expression outputs.

    `what` is the name of the method, for hints.
    """
    chosen: dict[str, Any] = {}
    for column in checked_columns(
        list(flat(positional)), columns, attempt, least=0, expressions=True
    ):
        name = column if isinstance(column, str) else output_name(column, what)
        if name in chosen:
            raise _twice(name, what)
        chosen[name] = column
    for name, value in named.items():
        if name in chosen:
            raise _twice(name, what)
        chosen[name] = value
    return chosen


_EACH = (
    'name each: select("a", "b"), or select(collection.columns); or give one a name: .alias("c")'
)


def output_name(expression: pl.Expr, what: str, hint: str = _EACH) -> str:
    """The name of the column that an expression outputs; refused where it may output several."""
    try:
        return expression.meta.output_name()
    except pl.exceptions.ComputeError as error:
        raise PlanError(
            "plan.expression",
            f"cannot {what} {expression}: it can stand for several columns",
            hint=hint,
        ) from error


def _twice(name: str, what: str) -> PlanError:
    return PlanError(
        "plan.column_twice",
        f"cannot {what} two columns called {name!r}",
        hint="name them apart: new=pl.col(...)",
        column=name,
    )


def by_one_mapping(method: Method) -> Method:
    """Mark a method that takes one mapping of old names to new ones and nothing else: any other call is refused, and
    the hint writes the mapping to use."""

    what = method.__name__

    @wraps(method)
    def call(collection: Any, /, *given: Any, **named: Any) -> Any:
        if len(given) == 1 and not named and isinstance(given[0], Mapping):
            return method(collection, given[0])
        if named:
            said = ", ".join(f"{name}=" for name in named)
        else:
            said = " and ".join(map(type_in_words, given)) or "nothing"
        wanted = _meant_mapping(collection.columns, given, named) or {"old": "new"}
        shown = ", ".join(f'"{old}": "{new}"' for old, new in wanted.items())
        raise PlanError(
            "plan.column",
            f"cannot {what} columns of {collection._name} by {said}: names are given as one mapping, of old names to "
            "new ones",
            hint=f"{what}({{{shown}}})",
        )

    return cast(Method, call)


def _meant_mapping(
    columns: Sequence[str], given: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, str]:
    """The old and new names that a call means, as far as it can be told: in pandas the mapping is an argument called
    columns, in Spark old and new name are two arguments, and ``select(new="old")`` names the new column first."""
    wanted: dict[str, str] = {}
    if len(given) == 2 and all(isinstance(each, str) for each in given):
        wanted[given[0]] = given[1]
    for mapping in (*given, *named.values()):
        if isinstance(mapping, Mapping):
            wanted |= {old: new for old, new in mapping.items() if isinstance(old, str)}
    for new, old in named.items():
        if isinstance(old, str):
            swapped = new in columns and old not in columns
            wanted |= {new: old} if swapped else {old: new}
    return wanted


def type_in_words(value: object) -> str:
    """The type of a value in words, in place of a repr that can fill the screen.

    >>> type_in_words(pl.DataFrame({"a": [1]})), type_in_words([(1, 2)])
    ('a polars DataFrame', 'a list')
    """
    module, name = type(value).__module__.partition(".")[0], type(value).__name__
    if value is None:
        return "None"
    return with_article(
        name if module in ("builtins", "riverrun", "__main__") else f"{module} {name}"
    )


def not_a_collection(code: str, attempt: str, value: object) -> PlanError:
    """The refusal of a value that is no collection where a collection belongs."""
    if hasattr(value, "agg") and type(value).__module__.startswith("riverrun"):
        hint = "call .agg() or .count() on it: groups are no rows yet"
    elif isinstance(value, str):
        hint = "give the collection itself, not its name"
    elif hasattr(value, "entries"):
        hint = "state.entries() is a collection of what it holds; stream.fetch(state, ...) asks it"
    elif isinstance(value, list | tuple) and any(
        hasattr(each, "group_by") or isinstance(each, list | tuple) for each in value
    ):
        hint = "one list is enough: concat([a, b]), or concat(a, b)"
    else:
        hint = "rows from outside are an input: flow.input(name, schema), and insert(name, rows) into the run"
    return PlanError(
        code, f"cannot {attempt}: {type_in_words(value)} is not a collection", hint=hint
    )


def is_count(value: object, least: int = 1) -> bool:
    """Whether a value is a whole number from `least` on, and below `MOST`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < MOST


def is_one_of(value: object, choices: Iterable[str]) -> bool:
    """Whether a value is one of some words."""
    return isinstance(value, str) and value in choices


def as_ticks(
    span: int | timedelta,
    field: pa.Field,
    what: str,
    least: int | None = 1,
    most: int = (1 << 63) - 1,
) -> int:
    """A span as a number of units of a column, refused below `least` and above `most`; `what` names it for errors."""
    kind = field.type
    ticks: int | None = None
    if isinstance(span, int) and not isinstance(span, bool) and pa.types.is_integer(kind):
        ticks = span
    elif isinstance(span, timedelta) and pa.types.is_date(kind):
        units = timedelta(days=1) if pa.types.is_date32(kind) else timedelta(milliseconds=1)
        ticks = span // units if span % units == timedelta(0) else None
    elif isinstance(span, timedelta) and pa.types.is_temporal(kind):
        per = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
        micros = span // timedelta(microseconds=1)
        ticks = micros * per // 10**6 if micros * per % 10**6 == 0 else None
    elif isinstance(span, int) and span == 0 and least != 1:
        ticks = 0
    if ticks is None:
        raise PlanError(
            "plan.span",
            f"cannot take {show(span)} as {what}: column {field.name!r} is {kind}",
            hint="give a timedelta for dates and times, a whole number for integers, of whole units of the column",
            column=field.name,
        )
    if abs(ticks) > most:
        raise PlanError(
            "plan.span",
            f"cannot take {span!r} as {what}: that is longer than all times of column {field.name!r}",
            hint="give a shorter one",
            column=field.name,
        )
    if least is not None and ticks < least:
        raise PlanError(
            "plan.span",
            f"cannot take {span!r} as {what}: it must {'be positive' if least else 'not be negative'}",
            hint="for instance 60, or timedelta(minutes=1)",
            column=field.name,
        )
    return ticks


def function_name(function: Any) -> str:
    """The name of a function in plans."""
    return getattr(function, "__qualname__", None) or type(function).__name__


def check_callable(
    function: object, what: str, attempt: str | None = None, parameters: str = "rows"
) -> None:
    """Refuse a value that cannot be called. `parameters` are those of the call, for the hint."""
    if not callable(function):
        raise PlanError(
            "plan.function",
            f"cannot {attempt or what} with {show(function)}: that is not a function",
            hint=f"give a function: {what}(lambda {parameters}: ...)",
        )


class RowsOf(partial[Any]):
    """A user's function of one row, which raises an error where the user's function does not give a list of rows.

    This class is a partial, so that its identity (`plan.identity.code_of`) is that of the user's function.
    """

    def __call__(self, row: dict[str, Any], /) -> Iterable[Any]:
        result = super().__call__(row)
        if type(result) is list:
            return result
        if isinstance(result, pl.DataFrame):
            return result.iter_rows(named=True)
        if (
            isinstance(result, str | bytes)
            or fields_of(result) is not None
            or not _is_iterable(result)
        ):
            raise SchemaError(
                "schema.rows",
                f"the function gave {show(result)} for the row {show(row)}, not a list of rows",
                hint="give a list of rows: [row] for one, [] for none; or a Polars frame",
            )
        rows: Iterable[Any] = result
        return rows


def _is_iterable(value: object) -> bool:
    return isinstance(value, Iterable)
