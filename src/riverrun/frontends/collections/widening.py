"""Widening: where columns of two collections meet, both are brought to the type that holds the values of both.

Joins, co-groups, `concat`, loops and shared state widen. The law of `state.types` holds: widening loses no value, no
order and no equality. Columns are widened before rows are sent to the worker that owns their hash, so equal values meet
there. Types without a common type are refused when the program is built; the hint is the cast to write.

>>> import riverrun as rr
>>> flow = rr.Dataflow("g")
>>> a, b = flow.input("a", {"n": pa.int32()}), flow.input("b", {"n": pa.uint64()})
>>> a.concat(flow.input("c", {"n": pa.uint32()}))
<Collection of n: int64>
>>> a.concat(b)
Traceback (most recent call last):
    ...
riverrun.errors.PlanError: cannot concat 'a' and 'b': column 'n' is int32 in one and uint64 in the other
At: ...
Hint: no integer type holds all values of both: with_columns(n=pl.col('n').cast(pl.Int64)) of the one that is ...

Cost: a side with columns to widen gets one more linear step, with a cast for each of these columns; a side whose types
are the common ones already gets none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import polars as pl
import pyarrow as pa

from riverrun.errors import PlanError
from riverrun.frontends.collections.derivation import Projected, noted
from riverrun.frontends.collections.rows import Rows
from riverrun.operators.reshape import Widen
from riverrun.rows.types import family
from riverrun.state.types import common_type, share_layout, type_text

Kind = TypeVar("Kind", bound=Rows)


def widened(collection: Kind, kinds: Mapping[str, pa.DataType]) -> Kind:
    """The collection with some columns in wider types; unchanged where states keep both types alike."""
    schema, changed, fields = collection.schema, [], []
    for at, field in enumerate(schema):
        kind = kinds.get(field.name, field.type)
        if not share_layout(field.type, kind):
            changed.append((at, field.type, kind))
            field = field.with_type(kind)
        fields.append(field)
    if not changed:
        return collection
    wide = collection._add(
        Widen(tuple(changed), tuple(schema.names)), [collection], pa.schema(fields)
    )
    if not all(_is_number(kind) for _, *kinds in changed for kind in kinds):
        return wide
    types, columns = wide.polars_schema, {at for at, *_ in changed}
    casts = {
        name: pl.col(name).cast(types[name]) if at in columns else name
        for at, name in enumerate(schema.names)
    }
    return noted(wide, Projected(collection, casts))


def _is_number(kind: pa.DataType) -> bool:
    """Whether widening to or from a type is what a cast of Polars does."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def common_kind(mine: pa.Field, its: pa.Field, words: tuple[str, str, str]) -> pa.DataType:
    """The type that holds the values of both columns. Where there is none, the message is `words`, with the two types
    in their gaps."""
    kind = common_type(mine.type, its.type)
    if kind is None:
        raise PlanError(
            "plan.types_differ",
            f"{words[0]}{type_text(mine.type)}{words[1]}{type_text(its.type)}{words[2]}",
            hint=cast_to_write(mine, its),
            column=mine.name,
        )
    return kind


def cast_to_write(mine: pa.Field, its: pa.Field) -> str:
    """Advice for two columns without a common type: the cast to write, as code."""
    for one, other in ((mine, its), (its, mine)):
        cast = _cast(one.type, other.type)
        if cast is not None:
            why, call, then = cast
            name = one.name
            code = f"with_columns({name}=pl.col({name!r}).{call})"
            return f"{why}: {code} of the one that is {type_text(one.type)}{then}"
    return f"cast one of them: with_columns({its.name}=pl.col({its.name!r}).cast(...))"


def _cast(one: pa.DataType, other: pa.DataType) -> tuple[str, str, str] | None:
    """Why two types have no common type, the method to call on the first, and the effect; None: nothing known."""
    mine, its = family(one), family(other)
    if mine == its == "enum":
        return (
            "the categories of the two enums are not in one order",
            "cast(pl.String)",
            ", and of the other too; or cast both to one enum",
        )
    if mine == "enum" and its == "text":
        return (
            "an enum and text are not ordered alike",
            "cast(pl.String)",
            "; or cast the text to the enum",
        )
    if one == pa.uint64() and pa.types.is_signed_integer(other):
        return (
            "no integer type holds all values of both",
            "cast(pl.Int64)",
            "; an epoch with a value beyond that is refused",
        )
    if (mine, its) == ("integer", "float"):
        return "whole numbers and floats do not mix", "cast(pl.Float64)", ""
    if (mine, its) == ("integer", "decimal"):
        return (
            "whole numbers and decimals do not mix",
            f"cast(pl.Decimal({other.precision}, {other.scale}))",
            "",
        )
    if (mine, its) == ("float", "decimal"):
        cast = f"cast(pl.Decimal({other.precision}, {other.scale}))"
        return "floats and decimals do not mix", cast, ", which rounds"
    if mine == "boolean" and its in ("integer", "float"):
        return "true and false are no numbers", "cast(pl.Int64)", ""
    if mine == its == "decimal":
        return (
            "no decimal of 38 digits holds all values of both",
            f"cast(pl.Decimal({other.precision}, {other.scale}))",
            "; an epoch with a value beyond that is refused",
        )
    if (mine, its) == ("date", "timestamp"):
        return "a date is a day and no instant", f'cast(pl.Datetime("{other.unit}"))', ": its midnight"  # fmt: skip
    if mine == its == "timestamp" and bool(one.tz) != bool(other.tz):
        if one.tz:
            return None
        return (
            "one has a time zone and the other has none",
            f'dt.replace_time_zone("{other.tz}")',
            " says which zone its times are in",
        )
    if mine == its == "timestamp" and one.unit == "ns":
        return "nanoseconds end in the year 2262", f'cast(pl.Datetime("{other.unit}"))', ""
    if mine == its == "duration" and one.unit == "ns":
        return "nanoseconds do not reach as far", f'cast(pl.Duration("{other.unit}"))', ""
    if its == "text" and mine in ("integer", "float", "decimal"):
        return "numbers and text do not mix", "cast(pl.String)", ""
    return None
