"""Columns declared in every language that has schemas."""

from __future__ import annotations

import datetime
import decimal
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NewType, Optional, TypedDict

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from riverrun.errors import SchemaError
from riverrun.rows.convert import as_table
from riverrun.rows.schemas import as_schema

WHAT = "declare input 'people'"
Id = NewType("Id", int)


class Point(NamedTuple):
    x: float
    y: float | None


@dataclass
class Person:
    id: Id
    name: Optional[str]  # noqa: UP045
    level: Annotated[int, pa.int8()]
    state: Literal["on", "off"]
    tags: list[str | None]
    where: Point
    path: tuple[Point, ...] | None


class PersonDict(TypedDict):
    id: int
    born: datetime.date | None


class SparkType:
    """As much of a Spark type as is used; pyspark need not be there."""

    def __init__(self, written: Any) -> None:
        self.written = written
        self.fields: list[Any] = []

    def __repr__(self) -> str:
        return f"SparkType({self.written})"

    def jsonValue(self) -> Any:  # noqa: N802
        return self.written


def spark(**types: Any) -> SparkType:
    fields = [
        {"name": name, "type": kind, "nullable": name != "id", "metadata": {}}
        for name, kind in types.items()
    ]
    return SparkType({"type": "struct", "fields": fields})


PLAIN = pa.schema({"id": pa.int64(), "score": pa.float64()})


@pytest.mark.parametrize(
    "declaration",
    [
        PLAIN,
        PLAIN.with_metadata({"k": "v"}),
        {"id": pa.int64(), "score": pa.float64()},
        {"id": pl.Int64, "score": pl.Float64()},
        {"id": int, "score": float},
        {"id": "long", "score": "double"},
        "id long, score double",
        [("id", "int64"), ("score", pl.Float64)],
        {"id": np.int64, "score": np.dtype("f8")},
        {"id": pa.field("other", pa.int64()), "score": float | None},
        pl.Schema({"id": pl.Int64, "score": pl.Float64}),
        PLAIN.empty_table(),
        pa.RecordBatch.from_pylist([], PLAIN),
        PLAIN.empty_table().to_reader(),
        pl.DataFrame({"id": [1], "score": [0.5]}),
        pl.LazyFrame({"id": [1], "score": [0.5]}),
        pd.DataFrame({"id": [1], "score": [0.5]}, index=[5]),
    ],
    ids=lambda declaration: type(declaration).__name__,
)
def test_a_schema_in_any_form_is_the_same_schema(declaration: Any) -> None:
    schema = as_schema(declaration, WHAT)
    assert schema.equals(PLAIN, check_metadata=True)


def test_python_types() -> None:
    types = {
        bool: pa.bool_(),
        str: pa.string(),
        bytes: pa.binary(),
        datetime.datetime: pa.timestamp("us"),
        datetime.date: pa.date32(),
        datetime.time: pa.time64("us"),
        datetime.timedelta: pa.duration("us"),
        Id: pa.int64(),
        list[int | None]: pa.list_(pa.int64()),
        np.str_: pa.string(),
    }
    for declaration, expected in types.items():
        assert as_schema({"x": declaration}, WHAT).field("x") == pa.field("x", expected), (
            declaration
        )


def test_polars_types() -> None:
    for declaration, expected in {
        pl.String: pa.large_string(),
        pl.Datetime("ms", "UTC"): pa.timestamp("ms", "UTC"),
        pl.List(pl.Int8): pa.large_list(pa.int8()),
        pl.Struct({"a": pl.Int8}): pa.struct({"a": pa.int8()}),
        pl.Decimal(10, 2): pa.decimal128(10, 2),
        pl.Date: pa.date32(),
    }.items():
        assert as_schema({"x": declaration}, WHAT).field("x").type == expected


def test_a_class_says_which_columns_may_be_null() -> None:
    point = pa.struct([pa.field("x", pa.float64(), False), pa.field("y", pa.float64())])
    assert as_schema(Person, WHAT) == pa.schema(
        [
            pa.field("id", pa.int64(), False),
            pa.field("name", pa.string()),
            pa.field("level", pa.int8(), False),
            pa.field("state", pa.string(), False),
            pa.field("tags", pa.list_(pa.string()), False),
            pa.field("where", point, False),
            pa.field("path", pa.list_(pa.field("item", point, False))),
        ]
    )
    assert as_schema(PersonDict, WHAT) == pa.schema(
        [pa.field("id", pa.int64(), False), pa.field("born", pa.date32())]
    )


class Model:
    """As much of a model of pydantic as is used; the package need not be there."""

    model_fields: ClassVar[dict[str, Any]] = {}
    model_config: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        cls.model_fields = dict.fromkeys(cls.__annotations__)

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    @classmethod
    def model_validate(cls, values: Any) -> Any:
        return cls(**values)


class Where(Model):
    x: float
    y: float | None


class Visit(Model):
    id: Annotated[int, pa.int32()]
    name: str | None
    where: Where


class Attrs:
    """As much of a class of attrs as is used."""

    __attrs_attrs__ = (SimpleNamespace(name="id"), SimpleNamespace(name="name"))
    id: int
    name: str | None
    other: ClassVar[int] = 5

    def __init__(self, id: int, name: str | None) -> None:
        self.id, self.name = id, name


def test_a_model_declares_columns_and_is_a_row() -> None:
    point = pa.struct([pa.field("x", pa.float64(), False), pa.field("y", pa.float64())])
    schema = as_schema(Visit, WHAT)
    assert schema == pa.schema(
        [
            pa.field("id", pa.int32(), False),
            pa.field("name", pa.string()),
            pa.field("where", point, False),
        ]
    )
    rows = [Visit(id=1, name=None, where=Where(x=0.5, y=None)), Visit(id=2, name="b", where=(1, 2))]
    assert as_table(rows[:1], schema, WHAT).to_pylist() == [
        {"id": 1, "name": None, "where": {"x": 0.5, "y": None}}
    ]
    with pytest.raises(SchemaError, match="row 1 has"):
        as_table(rows, schema, WHAT)


def test_a_class_of_attrs_declares_columns_and_is_a_row() -> None:
    schema = as_schema(Attrs, WHAT)
    assert schema == pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.string())])
    assert as_table([Attrs(1, None)], schema, WHAT).to_pylist() == [{"id": 1, "name": None}]


def test_nulls_alone_are_never_declared_away() -> None:
    @dataclass
    class Nothing:
        x: None

    nothing = pa.schema({"x": pa.null()})
    assert as_schema(Nothing, WHAT) == nothing
    written = {"name": "x", "type": "void", "nullable": False, "metadata": {}}
    assert as_schema(SparkType({"type": "struct", "fields": [written]}), WHAT) == nothing


def test_an_annotation_that_is_not_known_is_said() -> None:
    @dataclass
    class Lost:
        x: Nowhere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(SchemaError, match="annotation of Lost is not known") as refusal:
        as_schema(Lost, WHAT)
    assert refusal.value.code == "schema.malformed"


def test_a_spark_schema_is_known_by_its_shape() -> None:
    declaration = spark(
        id="long",
        name="string",
        price="decimal(10,2)",
        at="timestamp",
        local="timestamp_ntz",
        code="varchar(3)",
        tags={"type": "array", "elementType": "integer", "containsNull": False},
        where=spark(x="double").written,
    )
    expected = pa.schema(
        [
            pa.field("id", pa.int64(), False),
            pa.field("name", pa.string()),
            pa.field("price", pa.decimal128(10, 2)),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("local", pa.timestamp("us")),
            pa.field("code", pa.string()),
            pa.field("tags", pa.list_(pa.field("item", pa.int32(), False))),
            pa.field("where", pa.struct({"x": pa.float64()})),
        ]
    )
    assert as_schema(declaration, WHAT) == expected
    assert as_schema({"x": SparkType("long")}, WHAT) == pa.schema({"x": pa.int64()})


@pytest.mark.parametrize(
    ("code", "declaration"),
    [
        ("schema.malformed", 5),
        ("schema.malformed", "id"),
        ("schema.malformed", ["id", "name"]),
        ("schema.malformed", None),
        ("schema.malformed", int),
        ("schema.malformed", {1: int}),
        ("schema.type_unsupported", {"x": complex}),
        ("schema.type_unsupported", {"x": decimal.Decimal}),
        ("schema.type_unsupported", {"x": "int65"}),
        ("schema.type_unsupported", {"x": int | str}),
        ("schema.type_unsupported", {"x": dict[str, int]}),
        ("schema.type_unsupported", {"x": Literal[1, "a"]}),
        ("schema.type_unsupported", {"x": pl.Object}),
        ("schema.type_unsupported", {"x": pl.Int128}),
        ("schema.type_unsupported", {"x": np.complex128}),
        ("schema.type_unsupported", {"x": pa.map_(pa.string(), pa.int64())}),
        (
            "schema.type_unsupported",
            spark(x={"type": "map", "keyType": "string", "valueType": "long"}),
        ),
        ("schema.type_unsupported", spark(x="variant")),
        ("schema.column_twice", pa.schema([("x", pa.int64()), ("x", pa.int64())])),
    ],
    ids=str,
)
def test_what_declares_no_columns_is_said(code: str, declaration: Any) -> None:
    with pytest.raises(SchemaError) as caught:
        as_schema(declaration, WHAT)
    assert caught.value.code == code
    assert caught.value.hint
    assert caught.value.message.startswith("cannot declare ")
