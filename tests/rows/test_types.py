"""The table of types: complete, without two meanings of a name, and in agreement with Polars, Spark and Delta."""

from __future__ import annotations

import datetime
from collections import Counter
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest

from riverrun.errors import SchemaError
from riverrun.rows.schemas import arrow_type, as_schema
from riverrun.rows.types import (
    BY_NAME,
    FAMILIES,
    POLARS,
    PYTHON,
    TYPES,
    column_type,
    family,
    in_delta,
    in_spark,
    named_type,
)
from riverrun.rows.values import ValueConverter
from riverrun.state.types import EnumType, canonical
from tests import drawn_rows

ENUM = EnumType(["low", "high"])
KINDS = {**drawn_rows.TYPES, "enum": ENUM, "list_of_enum": pa.list_(ENUM)}
STRANGERS = [
    pa.map_(pa.string(), pa.int64()),
    pa.month_day_nano_interval(),
    pa.list_view(pa.int64()),
    pa.dense_union([pa.field("a", pa.int64())]),
    pa.run_end_encoded(pa.int32(), pa.int64()),
    pa.uuid(),
]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_type_that_states_hold_is_in_the_table(kind: pa.DataType) -> None:
    entry = column_type(kind)
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    assert entry.arrow.id == plain.id
    assert entry.family == family(kind) in FAMILIES
    assert family(canonical(plain)) == ("integer" if kind == ENUM else entry.family)


@pytest.mark.parametrize("kind", STRANGERS, ids=str)
def test_no_other_type_is_in_the_table(kind: pa.DataType) -> None:
    for ask in (canonical, column_type, family, in_spark, in_delta):
        with pytest.raises(SchemaError) as refusal:
            ask(kind)
        assert refusal.value.code == "schema.type_unsupported"


def test_nothing_stands_twice() -> None:
    assert max(Counter(entry.arrow.id for entry in TYPES).values()) == 1
    names = Counter(name for entry in TYPES for name in entry.names)
    assert max(names.values()) == 1
    assert sum(names.values()) < len(BY_NAME)  # Arrow's names are there too
    assert max(Counter(kind for entry in TYPES for kind in entry.python).values()) == 1
    assert all(name == name.lower() for name in BY_NAME)


def test_polars_has_the_types_that_the_table_says() -> None:
    for entry in TYPES:
        if not entry.polars:
            continue
        dtype = eval(entry.polars)  # what hints tell people to write
        kind = arrow_type(dtype)
        assert family(kind) == entry.family, entry
        assert POLARS[dtype if isinstance(dtype, type) else type(dtype)] is entry
        if entry.family in ("integer", "float", "boolean", "null", "date"):
            assert kind == entry.arrow, entry


def test_no_other_type_of_polars_declares_a_column() -> None:
    others = {
        each
        for each in vars(pl).values()
        if isinstance(each, type) and issubclass(each, pl.DataType) and not each.__subclasses__()
    } - set(POLARS)
    assert pl.Categorical in others  # which is kept as its text
    for each in others - {pl.Categorical}:
        with pytest.raises(SchemaError):
            as_schema({"x": each}, "declare x")


VALUES = {
    bool: True,
    int: 5,
    float: 0.5,
    str: "a",
    bytes: b"a",
    datetime.date: datetime.date(2024, 2, 29),
    datetime.datetime: datetime.datetime(2024, 2, 29, 1, 2, 3, 4),
    datetime.time: datetime.time(1, 2, 3, 4),
    datetime.timedelta: datetime.timedelta(days=1, microseconds=1),
    type(None): None,
}


@pytest.mark.parametrize("python_class", PYTHON, ids=str)
def test_a_class_declares_a_type_that_takes_its_values(python_class: type) -> None:
    cells = ValueConverter.of(pa.field("x", PYTHON[python_class]))
    assert cells.array([VALUES[python_class]], "try").to_pylist() == [VALUES[python_class]]


def test_what_a_family_takes_exactly_it_takes() -> None:
    for name, values in FAMILIES.items():
        assert values.exact <= set(values.taken), name
    assert FAMILIES["decimal"].taken == (Decimal, int)


DELTA = {
    **{str(kind): kind for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{str(kind): kind for kind in (pa.bool_(), pa.float32(), pa.float64())},
    "date32": pa.date32(),
    "uint8": pa.int16(),
    "uint16": pa.int32(),
    "uint32": pa.int64(),
    **{str(kind): pa.string() for kind in (pa.string(), pa.large_string(), pa.string_view())},
    **{str(kind): pa.binary() for kind in (pa.binary(), pa.large_binary(), pa.binary_view())},
    "fixed_binary_3": pa.binary(),
    "fixed_binary_9": pa.binary(),
    "dictionary": pa.string(),
    "dictionary_large": pa.string(),
    "enum": pa.string(),
    "list_of_enum": pa.list_(pa.string()),
    "decimal128": pa.decimal128(38, 10),
    "decimal128_0": pa.decimal128(20, 0),
    **{f"timestamp_{unit}": pa.timestamp("us") for unit in ("s", "ms", "us")},
    **{f"timestamp_{unit}_tz": pa.timestamp("us", "UTC") for unit in ("s", "ms", "us")},
    "list": pa.list_(pa.int64()),
    "large_list": pa.list_(pa.float32()),
    "fixed_list": pa.list_(pa.int16()),
    "list_of_bool": pa.list_(pa.bool_()),
    "list_of_list": pa.list_(pa.list_(pa.string())),
    "list_of_struct": pa.list_(pa.struct({"a": pa.int32(), "b": pa.string()})),
    "list_of_dictionary": pa.list_(pa.string()),
    "struct": pa.struct({"x": pa.int64(), "y": pa.string()}),
    "struct_of_dictionary": pa.struct({"d": pa.string()}),
    "empty_struct": pa.struct([]),
}
"""The types that Delta has; for the others it has none."""


@pytest.mark.parametrize("name", KINDS)
def test_delta_and_spark_hold_values_exactly(name: str) -> None:
    kind = KINDS[name]
    assert in_delta(kind) == DELTA.get(name)
    column = pa.nulls(3, kind.storage_type if kind == ENUM else kind)
    for target in (in_delta(kind), in_spark(kind)):
        if target is not None and name not in ("enum", "list_of_enum"):  # shown as dictionaries
            assert column.cast(target).cast(kind).equals(column) or name == "list_of_dictionary"


def test_names_have_one_meaning_in_any_case() -> None:
    assert (
        named_type("Int64", []) == named_type("bigint", []) == named_type("LONG", []) == pa.int64()
    )
    assert named_type("float", []) == pa.float32()  # what Spark and Arrow mean by it
    assert named_type("int", []) == pa.int32()
    assert named_type("nothing", []) is None
