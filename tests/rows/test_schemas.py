"""Columns declared in every language that has schemas."""

from __future__ import annotations

import datetime
import decimal
import enum
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Required,
    TypedDict,
    TypeVar,
)

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from typing_extensions import TypeAliasType

import riverrun as rr
from riverrun.errors import SchemaError
from riverrun.rows.convert import as_table
from riverrun.rows.schemas import as_schema
from riverrun.rows.values import without_optional
from riverrun.state.types import EnumType

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


class Note(TypedDict):
    text: str
    by: NotRequired[str]


class Order(TypedDict, total=False):
    item: Required[str]
    price: float
    notes: list[Note]
    first: Note


class PaidOrder(Order):
    paid: bool
    card: Annotated[NotRequired[int], "the last digits"]


class Plain:
    a: int


class Color(enum.Enum):
    RED = "red"
    GREEN = "it's green"


class Size(enum.StrEnum):
    SMALL = "s"
    LARGE = "l"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


class Knot(TypedDict):
    inside: list[Knot]


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
        datetime.time: pa.time64("ns"),
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


def test_a_key_that_need_not_be_there_is_a_column_that_may_be_null() -> None:
    note = pa.struct([pa.field("text", pa.string(), False), pa.field("by", pa.string())])
    assert as_schema(Note, WHAT) == pa.schema(list(note))
    assert as_schema(PaidOrder, WHAT) == pa.schema(
        [
            pa.field("item", pa.string(), False),
            pa.field("price", pa.float64()),
            pa.field("notes", pa.list_(pa.field("item", note, False))),
            pa.field("first", note),
            pa.field("paid", pa.bool_(), False),
            pa.field("card", pa.int64()),
        ]
    )


def test_a_dict_leaves_out_keys_that_need_not_be_there() -> None:
    schema = as_schema(Order, WHAT)
    absent = {"price": None, "notes": None, "first": None}
    rope = {**absent, "item": "rope"}
    assert as_table([{"item": "rope"}], schema, WHAT).to_pylist() == [rope]
    assert as_table({"item": "rope"}, schema, WHAT).to_pylist() == [rope]
    rows = [
        {"item": "rope"},
        {"item": "nail", "notes": [{"text": "a", "by": "b"}, {"text": "c"}], "price": 1.5},
        {"item": "saw", "first": {"text": "d"}},
    ]
    assert as_table(rows, schema, WHAT).to_pylist() == [
        rope,
        {
            "item": "nail",
            "price": 1.5,
            "notes": [{"text": "a", "by": "b"}, {"text": "c", "by": None}],
            "first": None,
        },
        {**absent, "item": "saw", "first": {"text": "d", "by": None}},
    ]


def test_results_say_nothing_of_keys_that_need_not_be_there() -> None:
    flow = rr.Dataflow("orders")
    orders = flow.input("orders", Order)
    flow.output("orders", orders)
    flow.output("keyed", flow.input("keyed", Order, key="item"))
    flow.output("mapped", orders.flat_map(lambda row: [{"item": row["item"]}], Order))
    with flow.run() as run:
        run.insert("orders", [{"item": "rope"}, {"item": "nail", "first": {"text": "a"}}])
        run.upsert("keyed", [{"item": "rope", "price": 1.0}])
        run.upsert("keyed", {"item": "rope"})
        run.commit()
        run.delete("orders", {"item": "nail", "first": {"text": "a"}})
        run.commit()
        for name in ("orders", "keyed", "mapped"):
            result = run.read(name)
            assert result.rows() == [("rope", None, None, None)]
            schema = result.to_arrow().schema
            assert schema.equals(without_optional(as_schema(Order, WHAT)), check_metadata=True)


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([{"price": 1.0}], "schema.column_missing"),
        ([{"item": "a"}, {"price": 1.0}], "schema.column_missing"),
        ([{"item": "a", "prise": 1.0}], "schema.column_unknown"),
        ([{"item": "a"}, {"item": "a", "prise": 1.0}], "schema.column_unknown"),
        ([("a",)], "schema.ragged"),
        ({"item": ["a", "b"]}, "schema.column_missing"),
        (pl.DataFrame({"item": ["a"]}), "schema.column_missing"),
        ([{"item": "a", "first": {}}], "schema.value"),
    ],
    ids=str,
)
def test_other_rows_and_other_keys_are_complete(rows: Any, code: str) -> None:
    with pytest.raises(SchemaError) as refusal:
        as_table(rows, as_schema(Order, WHAT), WHAT)
    assert refusal.value.code == code


T = TypeVar("T")


# As `type UserId = int` of Python 3.12 makes them.
UserId = TypeAliasType("UserId", int)
AgainUserId = TypeAliasType("AgainUserId", UserId)
MaybeName = TypeAliasType("MaybeName", Optional[str])  # noqa: UP045
Several = TypeAliasType("Several", list[T], type_params=(T,))  # type: ignore[valid-type]

MEANT: list[tuple[Any, pa.Field]] = [
    (Annotated[int, pl.Int32], pa.field("x", pa.int32(), False)),
    (Annotated[int, pl.Int32()], pa.field("x", pa.int32(), False)),
    (Annotated[int, pa.int8()], pa.field("x", pa.int8(), False)),
    (Annotated[int, np.int16], pa.field("x", pa.int16(), False)),
    (Annotated[int, np.dtype("i2")], pa.field("x", pa.int16(), False)),
    (Annotated[int, "int"], pa.field("x", pa.int32(), False)),
    (Annotated[int, "smallint not null"], pa.field("x", pa.int16(), False)),
    (Annotated[decimal.Decimal, "decimal(10,2)"], pa.field("x", pa.decimal128(10, 2), False)),
    (Annotated[decimal.Decimal, pl.Decimal(10, 2)], pa.field("x", pa.decimal128(10, 2), False)),
    (Annotated[int, "the age, in years", object(), 3], pa.field("x", pa.int64(), False)),
    (Annotated[int, "the age, in years", pl.Int8], pa.field("x", pa.int8(), False)),
    (Annotated[str, "title"], pa.field("x", pa.string(), False)),
    (Annotated[str, "date of birth"], pa.field("x", pa.string(), False)),
    (Annotated[int | None, "short"], pa.field("x", pa.int16())),
    (Annotated[int, "short"] | None, pa.field("x", pa.int16())),
    (
        list[Annotated[int | None, pl.Int8]],
        pa.field("x", pa.list_(pa.field("item", pa.int8(), True)), False),
    ),
    (UserId, pa.field("x", pa.int64(), False)),
    (UserId | None, pa.field("x", pa.int64())),
    (Annotated[UserId, pl.Int16], pa.field("x", pa.int16(), False)),
    (AgainUserId, pa.field("x", pa.int64(), False)),
    (MaybeName, pa.field("x", pa.string())),
    (Several[int], pa.field("x", pa.list_(pa.field("item", pa.int64(), False)), False)),
    (list[MaybeName], pa.field("x", pa.list_(pa.string()), False)),
    (Literal["a", None], pa.field("x", pa.string())),
    (Literal["a", "b"], pa.field("x", pa.string(), False)),
    (Annotated[Size, pl.Enum(["s", "l"])], pa.field("x", EnumType(["s", "l"]), False)),
]


@pytest.mark.parametrize(("annotation", "expected"), MEANT, ids=lambda each: str(each)[:40])
def test_what_an_annotation_means(annotation: Any, expected: pa.Field) -> None:
    row_class = dataclass(type("Row", (), {"__annotations__": {"x": annotation}}))
    assert as_schema(row_class, WHAT).field("x").equals(expected)
    as_value = as_schema({"x": annotation}, WHAT).field("x")
    assert as_value.equals(expected.with_nullable(True))


def test_a_time_is_one_type_in_every_spelling() -> None:
    for declaration in (datetime.time, "time", "time64[ns]", pl.Time, "time(6)"):
        assert as_schema({"x": declaration}, WHAT).field("x").type == pa.time64("ns")
    frame = pl.DataFrame({"x": [datetime.time(1, 2, 3, 4)]})
    table = as_table(frame, as_schema({"x": datetime.time}, WHAT), WHAT)
    assert table.to_pylist() == frame.to_dicts()


@pytest.mark.parametrize(
    ("declaration", "said", "hint"),
    [
        (namedtuple("Old", "a b"), "namedtuple", "class Old(NamedTuple): a: int"),
        ({"x": Color}, "Color", """pl.Enum(['red', "it's green"]); rows have Color.RED.value"""),
        ({"x": Size}, "Size", "pl.Enum(['s', 'l']); rows have Size.SMALL or its text"),
        (
            {"x": Level},
            "Level",
            "int, and rows have Level.LOW or its number; or pl.Enum(['LOW', 'HIGH'])",
        ),
        ({"x": Mixed}, "Mixed", "pl.Enum(['ONE', 'TWO']); rows have Mixed.ONE.name"),
        ({"x": Literal[Size.SMALL]}, "Size", "pl.Enum(['s', 'l'])"),
        (Size, "Size is an enum", "{\"column\": pl.Enum(['s', 'l'])}"),
        (Plain, "no dataclass", "@dataclasses.dataclass above class Plain"),
        ({"x": Plain}, "Plain", "@dataclasses.dataclass above class Plain"),
        ({"x": list[Plain]}, "Plain", "@dataclasses.dataclass above class Plain"),
        (Knot, "contains itself", "keys"),
        ({"x": Annotated[int, "in32"]}, "'in32'", "'int32'"),
        ({"x": Annotated[int, "decimal(99, 2)"]}, "1 to 38 digits", "decimal(38, 2)"),
    ],
    ids=str,
)
def test_a_class_that_is_no_declaration_has_a_hint(declaration: Any, said: str, hint: str) -> None:
    with pytest.raises(SchemaError) as refusal:
        as_schema(declaration, WHAT)
    assert said in refusal.value.message
    assert hint in str(refusal.value.hint)


def test_the_hints_for_enums_can_be_followed() -> None:
    """The hints for enums as their code, and rows as they say."""
    for declaration, value, cell in (
        (pl.Enum(["red", "it's green"]), Color.RED.value, "red"),
        (pl.Enum(["s", "l"]), Size.SMALL, "s"),
        (pl.Enum(["s", "l"]), "s", "s"),
        (int, Level.LOW, 1),
        (pl.Enum(["LOW", "HIGH"]), Level.LOW.name, "LOW"),
        (pl.Enum(["ONE", "TWO"]), Mixed.ONE.name, "ONE"),
    ):
        schema = as_schema({"x": declaration}, WHAT)
        for rows in ([(value,)], [(value,), (value,)]):
            read = as_table(rows, schema, WHAT)
            assert read.num_rows == len(rows)
        if not isinstance(declaration, pl.Enum):
            assert read.to_pylist() == [{"x": cell}] * 2
