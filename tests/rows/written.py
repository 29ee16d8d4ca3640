"""Schemas for tests, drawn at random and written as text: the inverse of the readers under test."""

from __future__ import annotations

import random
import re

import pyarrow as pa

from riverrun.state.types import EnumType

ZONES = ("UTC", "Europe/Rome", "America/Argentina/Buenos_Aires", "+05:30")
OF_SPARK: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "interval day to second": pa.duration("us"),
    "void": pa.null(),
}
"""Spark's names of its types without parameters."""
_WORDS = [
    "id",
    "Name",
    "date",
    "struct",
    "not",
    "null",
    "comment",
    "array",
    "größe",
    "x1",
    "_",
    "2nd",
]
_ODD = ["two words", "a`b", "a,b", "a:b", "<x>", "it's", "-", "-- x", " "]


def drawn_schema(draw: random.Random, *, spark: bool = False) -> pa.Schema:
    """Some columns of any types, nested up to three deep; with `spark`, only types and names that Spark has."""
    return pa.schema(_fields(draw, 3, spark, least=1))


def _fields(draw: random.Random, depth: int, spark: bool, least: int = 0) -> list[pa.Field]:
    words = [word for word in _WORDS if word.isascii() and word != "_"] if spark else _WORDS + _ODD
    names = draw.sample(words, draw.randrange(least, 5))
    return [
        _field(draw, f"{name}_{at}" if spark else name, _kind(draw, depth, spark))
        for at, name in enumerate(names)
    ]


def _field(draw: random.Random, name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, draw.random() < 0.7 or pa.types.is_null(kind))


def _kind(draw: random.Random, depth: int, spark: bool) -> pa.DataType:
    choice = draw.randrange(5)
    if depth and choice == 0:
        kind = _kind(draw, depth - 1, spark)
        inner = pa.field("item", kind) if spark else _field(draw, "item", kind)
        makes = [pa.list_] if spark else [pa.list_, pa.large_list, lambda item: pa.list_(item, 3)]
        return draw.choice(makes)(inner)
    if depth and choice == 1:
        return pa.struct(_fields(draw, depth - 1, spark, least=1))
    digits = draw.randrange(1, 39)
    if choice == 2:
        return pa.decimal128(digits, draw.randrange(digits + 1))
    if spark:
        return draw.choice(list(OF_SPARK.values()))
    units = ("s", "ms", "us", "ns")
    return draw.choice(
        [
            *OF_SPARK.values(),
            *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float16()),
            *(pa.large_string(), pa.string_view(), pa.large_binary(), pa.binary_view()),
            *(pa.binary(draw.randrange(1, 99)), pa.date64(), pa.time32(draw.choice(units[:2]))),
            *(pa.time64(draw.choice(units[2:])), pa.duration(draw.choice(units))),
            *(pa.timestamp(draw.choice(units)), pa.timestamp("ms", draw.choice(ZONES))),
            *(pa.decimal32(9, 2), pa.decimal64(18, 0), pa.decimal256(76, 5)),
            pa.dictionary(pa.int16(), pa.string()),
            EnumType(draw.sample(["low", "it's", 'a "b"', "x, y", "\\", "é"], 3)),
        ]
    )


def as_ddl(schema: pa.Schema) -> str:
    """Columns in Spark's DDL: with Spark's name of a type, or Arrow's name where Spark lacks the type."""
    return ", ".join(f"{_name(field.name)} {_written(field, ddl=True)}" for field in schema)


def as_name(field: pa.Field) -> str:
    """The type of a column as Arrow prints it, names in backquotes."""
    return _written(field, ddl=False)


def _written(field: pa.Field, *, ddl: bool) -> str:
    return _type(field.type, ddl) + ("" if field.nullable else " NOT NULL" if ddl else " not null")


def _type(kind: pa.DataType, ddl: bool) -> str:
    if isinstance(kind, EnumType):
        listed = ", ".join(
            "'" + each.replace("\\", "\\\\").replace("'", "''") + "'" for each in kind.categories
        )
        return f"enum<{listed}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{_name(f.name)}: {_written(f, ddl=ddl)}' for f in kind)}>"
    if pa.types.is_nested(kind):
        word = re.split(r"\W", str(kind))[0]
        inner = _written(kind.value_field, ddl=ddl)
        if ddl and word == "list":
            return f"array<{inner}>"
        size = f"[{kind.list_size}]" if pa.types.is_fixed_size_list(kind) else ""
        return f"{word}<item: {inner}>{size}"
    if ddl and pa.types.is_decimal128(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    named = {other: name for name, other in OF_SPARK.items()}
    return named.get(kind, str(kind)).upper() if ddl and kind in named else str(kind)


def _name(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else "`" + name.replace("`", "``") + "`"
