"""The table of column types: the names of each type, and its counterparts in Python, Polars, Arrow, Spark and Delta.

A type has one entry in `TYPES`: its Arrow type, its *family* (the kind of its values: "integer", "text", ...), the
Polars class, the Python classes that declare the type, the names by which people write it, and the Arrow types in which
Spark and Delta hold its values. A family says which Python values it has (`FAMILIES`). Readers of the table are
declarations (`schemas`, `spellings`), values (`values`), Spark (`spark.source`), Delta (`run.sinks.delta`), and the
front ends' rules about types.

The table does not say how a state keeps values: files and kernels depend on that, so `state.types` has it as two laws.
`canonical` is the one layout of a type in a state, whose order is the order of the type (**the storage law**), and
`common_type` is the type that holds the values of two types (**the widening law**). The types with a canonical layout
are exactly those with an entry here.

Laws:

- **One meaning.** A name means one type wherever it is written: ``long`` is Spark's, ``int64`` is that of Arrow, NumPy
  and Polars. Upper and lower case are the same. As names, ``float`` is float32 (so in Spark and Arrow) and ``int`` is
  int32 (so in Spark); the Python classes `float` and `int` declare 64 bits.
- **No loss.** Spark and Delta hold the values of a column exactly, with one exception: Spark's timestamps and durations
  have microseconds and nothing finer. For a type of which a Delta table cannot hold every value, `in_delta` is None.

>>> print(
...     family(pa.large_string()),
...     family(pa.dictionary(pa.int32(), pa.string())),
...     family(EnumType(["low"])),
... )
text text enum
>>> print(in_spark(pa.large_list(pa.uint8())), in_delta(pa.uint64()), named_type("bigint", []))
list<item: int16> None int64

Cost: a question is one or two lookups in a dict by the number that Arrow has for a type.
"""

from __future__ import annotations

import datetime
import decimal
import re
import zoneinfo
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

import polars as pl
import pyarrow as pa

from riverrun.state.types import EnumType, canonical

Family = Literal[
    "null", "boolean", "integer", "float", "decimal", "text", "enum", "binary", "date", "time", "timestamp",
    "duration", "list", "struct",
]  # fmt: skip
"""What the values of a type are. A dictionary of Arrow's (a categorical) is of the family of its values."""
DIGITS = 38
"""The most digits of a decimal that Polars or a name declares."""
Arguments = Sequence[str]
"""What stands in brackets behind the name of a type: ``("us", "UTC")`` of ``timestamp[us, UTC]``."""
Elsewhere = Callable[[pa.DataType], pa.DataType | None]
"""The type in which another system holds the values of a type; None where that system has none."""


class UnknownParameters(Exception):
    """A type was written with parameters that it does not have. Says which parameters it has, and what to write."""

    def __init__(self, rule: str, hint: str) -> None:
        super().__init__(rule)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Values:
    """Which Python values a family has."""

    expected: str
    """A value in words, for hints."""
    taken: tuple[type, ...] = ()
    """Classes whose instances are values of the family; empty where the class alone does not decide."""
    exact: frozenset[type] = frozenset()
    """Classes whose every instance Arrow either converts exactly or refuses, whatever the width of the type."""


FAMILIES: dict[Family, Values] = {
    "null": Values("nothing"),
    "boolean": Values("True or False", (bool,), frozenset({bool})),
    "integer": Values("an int", (int,), frozenset({int})),
    "float": Values("a float", (float, int)),
    "decimal": Values(
        "a decimal.Decimal or an int",
        (decimal.Decimal, int),
        frozenset({decimal.Decimal, int}),
    ),
    "text": Values("a str", (str,), frozenset({str})),
    "enum": Values("a str", (str,), frozenset({str})),
    "binary": Values("bytes", (bytes, bytearray, memoryview), frozenset({bytes})),
    "date": Values("a datetime.date", (datetime.date,), frozenset({datetime.date})),
    "time": Values("a datetime.time without a time zone", (datetime.time,)),
    "timestamp": Values("a datetime.datetime", (datetime.datetime,)),
    "duration": Values("a datetime.timedelta", (datetime.timedelta,)),
    "list": Values("a list", (list, tuple)),
    "struct": Values("a dict with the declared fields"),
}


def _same(kind: pa.DataType) -> pa.DataType:
    return kind


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type of columns."""

    family: Family
    arrow: pa.DataType
    """The Arrow type; of a type with parameters, an example."""
    polars: str = ""
    """The type as Polars writes it; empty where Polars has no class of its own for the type."""
    names: tuple[str, ...] = ()
    """Names of the type in lower case, besides Arrow's name."""
    python: tuple[type, ...] = ()
    """Python classes that declare the type."""
    spark: Elsewhere = _same
    """The type in which Spark holds the values."""
    delta: Elsewhere = _same
    """The type in which a Delta table holds the values exactly, or None."""
    build: Callable[[str, Arguments], pa.DataType] | None = None
    """Builds the type from a name and its parameters, for parameters that are not types. Raises `UnknownParameters` for
    parameters that the type does not have."""


# -- parameters


def _decimals(make: Callable[[int, int], pa.DataType], most: int) -> Any:
    def build(name: str, arguments: Arguments) -> pa.DataType:
        refusal = UnknownParameters(
            f"a decimal has 1 to {most} digits, and says how many of them are behind the point",
            f"for instance {name}({most}, 2), or double where digits may be lost",
        )
        if not arguments and name in ("decimal", "dec", "numeric"):  # as in SQL
            arguments = ("10",)
        if len(arguments) not in (1, 2) or not all(
            re.fullmatch(r"-?\d+", each) for each in arguments
        ):
            raise refusal
        digits, behind = int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 0
        if not 1 <= digits <= most or abs(behind) > most:
            raise refusal
        return make(digits, behind)

    return build


def _unit(name: str, arguments: Arguments, units: Sequence[str]) -> str:
    if len(arguments) != 1 or arguments[0] not in units:
        raise UnknownParameters(
            f"its unit is one of {', '.join(units)}", f"for instance {name}[{units[-1]}]"
        )
    return arguments[0]


def _with_unit(
    make: Callable[[str], pa.DataType], units: Sequence[str], plain: Sequence[str] = ()
) -> Any:
    """A builder of a type with a unit. A name in `plain` may stand without brackets, and then means a fixed unit."""

    def build(name: str, arguments: Arguments) -> pa.DataType:
        if not arguments and name in plain:
            return make(units[-1] if name == "time" else "us")
        if name == "time" and len(arguments) == 1 and arguments[0].isdigit():
            return make("ns")  # time(6) as Spark writes it: the number of digits of a second
        return make(_unit(name, arguments, units))

    return build


UNITS = ("s", "ms", "us", "ns")


def _timestamp(name: str, arguments: Arguments) -> pa.DataType:
    if not arguments and name in ("timestamp_ltz"):  # Spark's are instants
        return pa.timestamp("us", "UTC")
    if not arguments and name in ("timestamp_ntz", "datetime"):
        return pa.timestamp("us")
    if name.startswith("timestamp_"):
        raise _no_parameters(name)
    unit = _unit(name, arguments[:1], UNITS)
    if len(arguments) == 1:
        return pa.timestamp(unit)
    zone = arguments[1].removeprefix("tz=")
    if len(arguments) > 2 or not is_zone(zone):
        raise unknown_zone(zone)
    return pa.timestamp(unit, zone)


def is_zone(name: str) -> bool:
    """Whether there is a time zone of this name."""
    return bool(re.fullmatch(r"[+-]\d\d:\d\d", name)) or name in zoneinfo.available_timezones()


def unknown_zone(name: str) -> UnknownParameters:
    """The refusal of a name that is not a time zone's."""
    close = get_close_matches(name, sorted(zoneinfo.available_timezones()), n=1)
    return UnknownParameters(
        f"no time zone is called {name!r}",
        f"did you mean {close[0]!r}?"
        if close
        else 'zones are called like "Europe/Berlin" and "UTC"',
    )


def _no_parameters(name: str) -> UnknownParameters:
    return UnknownParameters(f"{name} has no parameters", f"write {name}")


def _fixed(kind: pa.DataType, word: str) -> Any:
    """A builder of a type without parameters. Arrow alone prints one, which is always the same `word`: date32[day]."""

    def build(name: str, arguments: Arguments) -> pa.DataType:
        if arguments and tuple(arguments) != (word,):
            raise UnknownParameters(f"its unit is {word}", f"write {name}")
        return kind

    return build


def _fixed_binary(name: str, arguments: Arguments) -> pa.DataType:
    if len(arguments) != 1 or not arguments[0].isdigit():
        raise UnknownParameters(
            "it says how many bytes its values have", f"for instance {name}[16]"
        )
    return pa.binary(int(arguments[0]))


def _text(name: str, arguments: Arguments) -> pa.DataType:
    """Text. The length n of Spark's char(n) and varchar(n) is read and not enforced."""
    if arguments and not (name in ("char", "varchar") and re.fullmatch(r"\d+", arguments[0])):
        raise _no_parameters(name)
    return pa.string()


# -- counterparts in Spark and Delta


def _as(kind: pa.DataType | None) -> Elsewhere:
    """One counterpart for all types of an entry; None: no counterpart."""
    return lambda _: kind


def _spark_instant(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", kind.tz)


def _spark_decimal(kind: pa.DataType) -> pa.DataType:
    return pa.decimal128(kind.precision, kind.scale) if kind.precision <= DIGITS else kind


def _delta_instant(kind: pa.DataType) -> pa.DataType | None:
    return None if kind.unit == "ns" else pa.timestamp("us", "UTC" if kind.tz else None)


_NOT_IN_DELTA = _as(None)
_TEXT: dict[str, Any] = {"spark": _as(pa.string()), "delta": _as(pa.string())}
_BYTES: dict[str, Any] = {"spark": _as(pa.binary()), "delta": _as(pa.binary())}
_INT16: dict[str, Any] = {"spark": _as(pa.int16()), "delta": _as(pa.int16())}
_INT32: dict[str, Any] = {"spark": _as(pa.int32()), "delta": _as(pa.int32())}
_INT64: dict[str, Any] = {"spark": _as(pa.int64()), "delta": _as(pa.int64())}
_TIME: dict[str, Any] = {"spark": _as(pa.time64("ns")), "delta": _NOT_IN_DELTA}


def _decimal(make: Callable[[int, int], pa.DataType], most: int, **others: Any) -> ColumnType:
    build = _decimals(make, most)
    return ColumnType("decimal", make(most, 0), spark=_spark_decimal, build=build, **others)


TYPES: tuple[ColumnType, ...] = (
    ColumnType("null", pa.null(), "pl.Null", ("void",), (type(None),), delta=_NOT_IN_DELTA),
    ColumnType("boolean", pa.bool_(), "pl.Boolean", ("boolean",), (bool,)),
    ColumnType("integer", pa.int8(), "pl.Int8", ("tinyint", "byte")),
    ColumnType("integer", pa.int16(), "pl.Int16", ("smallint", "short")),
    ColumnType("integer", pa.int32(), "pl.Int32", ("int", "integer")),
    ColumnType("integer", pa.int64(), "pl.Int64", ("bigint", "long"), (int,)),
    ColumnType("integer", pa.uint8(), "pl.UInt8", **_INT16),
    ColumnType("integer", pa.uint16(), "pl.UInt16", **_INT32),
    ColumnType("integer", pa.uint32(), "pl.UInt32", **_INT64),
    ColumnType(
        "integer", pa.uint64(), "pl.UInt64", spark=_as(pa.decimal128(20, 0)), delta=_NOT_IN_DELTA
    ),
    ColumnType(
        "float", pa.float16(), "pl.Float16", ("float16", "half"), spark=_as(pa.float32()),
        delta=_NOT_IN_DELTA,
    ),
    ColumnType("float", pa.float32(), "pl.Float32", ("float32", "real")),
    ColumnType("float", pa.float64(), "pl.Float64", ("float64",), (float,)),
    _decimal(pa.decimal32, 9, delta=_NOT_IN_DELTA),
    _decimal(pa.decimal64, 18, delta=_NOT_IN_DELTA),
    _decimal(
        pa.decimal128, DIGITS, polars="pl.Decimal(12, 2)", names=("decimal", "dec", "numeric")
    ),
    _decimal(pa.decimal256, 76, delta=_NOT_IN_DELTA),
    ColumnType(
        "text", pa.string(), "pl.String", ("str", "utf8", "char", "varchar"), (str,), **_TEXT,
        build=_text,
    ),
    ColumnType("text", pa.large_string(), names=("large_utf8",), **_TEXT),
    ColumnType("text", pa.string_view(), names=("utf8_view",), **_TEXT),
    ColumnType("enum", EnumType([]), 'pl.Enum(["low", "high"])', **_TEXT),
    ColumnType("binary", pa.binary(), "pl.Binary", ("bytes",), (bytes,), **_BYTES),
    ColumnType("binary", pa.large_binary(), **_BYTES),
    ColumnType("binary", pa.binary_view(), **_BYTES),
    ColumnType("binary", pa.binary(16), **_BYTES, build=_fixed_binary),
    ColumnType(
        "date", pa.date32(), "pl.Date", ("date",), (datetime.date,),
        build=_fixed(pa.date32(), "day"),
    ),
    ColumnType(
        "date", pa.date64(), spark=_as(pa.date32()), delta=_NOT_IN_DELTA,
        build=_fixed(pa.date64(), "ms"),
    ),
    ColumnType("time", pa.time32("ms"), **_TIME, build=_with_unit(pa.time32, UNITS[:2])),
    ColumnType(
        "time", pa.time64("ns"), "pl.Time", ("time",), (datetime.time,), **_TIME,
        build=_with_unit(pa.time64, UNITS[2:], plain=("time",)),
    ),
    ColumnType(
        "timestamp", pa.timestamp("us"), 'pl.Datetime("us")',
        ("timestamp_ltz", "timestamp_ntz", "datetime", "datetime64"), (datetime.datetime,),
        _spark_instant, _delta_instant, _timestamp,
    ),
    ColumnType(
        "duration", pa.duration("us"), 'pl.Duration("us")', ("timedelta", "timedelta64"),
        (datetime.timedelta,), _as(pa.duration("us")), _NOT_IN_DELTA,
        _with_unit(pa.duration, UNITS, plain=("duration", "timedelta")),
    ),
    ColumnType("list", pa.list_(pa.null()), "pl.List(pl.Int64)", ("array",)),
    ColumnType("list", pa.large_list(pa.null())),
    ColumnType("list", pa.list_(pa.null(), 1), "pl.Array(pl.Float32, 3)"),
    ColumnType("struct", pa.struct([]), 'pl.Struct({"a": pl.Int64})'),
)  # fmt: skip
"""All types that a column can have."""

_BY_ID = {each.arrow.id: each for each in TYPES}
_ENUM = next(each for each in TYPES if each.family == "enum")
PYTHON: dict[Any, pa.DataType] = {each: entry.arrow for entry in TYPES for each in entry.python}
"""The type that a Python class declares."""
POLARS: dict[Any, ColumnType] = {
    getattr(pl, entry.polars.removeprefix("pl.").partition("(")[0]): entry
    for entry in TYPES
    if entry.polars
}
"""The entry of a class of Polars."""
BY_NAME: dict[str, ColumnType] = {
    name: entry for entry in TYPES for name in (re.split(r"\W", str(entry.arrow))[0], *entry.names)
}
"""The entry of a name, in lower case; Arrow's own names among them."""


def named_type(name: str, arguments: Arguments) -> pa.DataType | None:
    """The type of a name and of the parameters behind the name, which are not types; None for an unknown name.

    Raises `UnknownParameters` for parameters that the type does not have.
    """
    entry = BY_NAME.get(name.lower())
    if entry is None:
        return None
    if entry.build is not None:
        return entry.build(name.lower(), arguments)
    if arguments:
        raise _no_parameters(name)
    return entry.arrow


def column_type(kind: pa.DataType) -> ColumnType:
    """The entry of a type. Raises `SchemaError` for a type that no column can have."""
    entry = _BY_ID.get(kind.id)
    if entry is not None and entry is not _ENUM:
        return entry
    if isinstance(kind, EnumType):
        return _ENUM
    if pa.types.is_dictionary(kind):
        return column_type(kind.value_type)
    canonical(kind)  # raises the SchemaError
    raise AssertionError(f"{kind} has a layout and no entry")


def family(kind: pa.DataType) -> Family:
    """The family of the values of a type."""
    return column_type(kind).family


def in_spark(kind: pa.DataType) -> pa.DataType:
    """The type in which Spark holds the values of a type: 32-bit offsets, no dictionaries."""
    if pa.types.is_dictionary(kind):
        return in_spark(kind.value_type)
    entry = column_type(kind)
    if entry.family == "list":
        return pa.list_(kind.value_field.with_type(in_spark(kind.value_type)))
    if entry.family == "struct":
        return pa.struct([field.with_type(in_spark(field.type)) for field in kind])
    return entry.spark(kind)


def in_delta(kind: pa.DataType) -> pa.DataType | None:
    """The type in which a Delta table holds the values of a type exactly; None where there is none."""
    if pa.types.is_dictionary(kind):
        return in_delta(kind.value_type)
    entry = column_type(kind)
    if entry.family == "list":
        inner = in_delta(kind.value_type)
        return None if inner is None else pa.list_(inner)
    if entry.family == "struct":
        fields = [(field.name, in_delta(field.type)) for field in kind]
        return None if any(inner is None for _, inner in fields) else pa.struct(fields)
    return entry.delta(kind)
