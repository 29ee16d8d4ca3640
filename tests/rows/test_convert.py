"""Rows and schemas in every form of users, and the errors for those that do not fit."""

from __future__ import annotations

import datetime
import decimal
import enum
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import riverrun as rr
from riverrun.errors import SchemaError
from riverrun.rows.convert import as_table
from riverrun.rows.schemas import as_schema

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64())])
ROWS = [(1, "a", 0.5), (2, None, 1.5), (3, "c", None)]
INTO = "insert into 'people'"


@dataclass
class Person:
    id: int
    name: str | None
    score: float | None


class PersonTuple(NamedTuple):
    score: float | None
    name: str | None
    id: int


class Colour(enum.StrEnum):
    RED = "red"


class Stream:
    """A foreign frame: all it has is the Arrow protocol."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


def dicts() -> list[dict[str, Any]]:
    return [dict(zip(SCHEMA.names, row, strict=True)) for row in ROWS]


def table() -> pa.Table:
    return pa.Table.from_pylist(dicts(), schema=SCHEMA)


def tuples() -> Iterator[tuple[Any, ...]]:
    yield from ROWS


FORMS: dict[str, Any] = {
    "table": table,
    "batch": lambda: table().to_batches()[0],
    "chunked": lambda: pa.concat_tables([table().slice(0, 1), table().slice(1)]),
    "reader": lambda: table().to_reader(),
    "stream": lambda: Stream(table()),
    "other order": lambda: table().select(["score", "id", "name"]),
    "dictionary": lambda: table().set_column(1, "name", table()["name"].dictionary_encode()),
    "narrow": lambda: table().set_column(0, "id", table()["id"].cast(pa.int8())),
    "polars": lambda: pl.DataFrame(dicts()),
    "lazy": lambda: pl.DataFrame(dicts()).lazy(),
    "categorical": lambda: pl.DataFrame(dicts()).cast({"name": pl.Categorical}),
    "pandas": lambda: pd.DataFrame(dicts(), index=[7, 8, 9]),
    "pandas objects": lambda: pd.DataFrame(dicts()).astype(object),
    "pandas nullable": lambda: pd.DataFrame(dicts()).convert_dtypes(),
    "pandas arrow": lambda: table().to_pandas(types_mapper=pd.ArrowDtype),
    "pandas category": lambda: pd.DataFrame(dicts()).astype({"name": "category"}),
    "columns": lambda: {name: [row[name] for row in dicts()] for name in SCHEMA.names},
    "arrays": lambda: {
        "id": np.array([1, 2, 3], np.int32),
        "name": pa.array(["a", None, "c"]),
        "score": pl.Series([0.5, 1.5, None]),
    },
    "series": lambda: dict(pd.DataFrame(dicts()).items()),
    "mixed columns": lambda: {
        "id": range(1, 4),
        "name": ("a", None, "c"),
        "score": [0.5, 1.5, None],
    },
    "dicts": dicts,
    "tuples": lambda: list(ROWS),
    "lists": lambda: [list(row) for row in ROWS],
    "generator": tuples,
    "dataclasses": lambda: [Person(*row) for row in ROWS],
    "named tuples": lambda: [PersonTuple(*reversed(row)) for row in ROWS],
    "numpy scalars": lambda: [
        (np.int32(1), np.str_("a"), np.float32(0.5)),
        (np.uint8(2), None, 1.5),
        (pa.scalar(3), Colour.RED.replace("red", "c"), None),
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_in_any_form_are_the_same_rows(form: str) -> None:
    batch = as_table(FORMS[form](), SCHEMA, INTO)
    assert isinstance(batch, pa.RecordBatch)
    assert batch.schema.names == SCHEMA.names
    assert batch.schema.types == [pa.int64(), pa.large_string(), pa.float64()]
    assert [tuple(row.values()) for row in batch.to_pylist()] == ROWS
    batch.validate(full=True)


@pytest.mark.parametrize(
    "row",
    [
        (1, "a", 0.5),
        {"id": 1, "name": "a", "score": 0.5},
        {"score": 0.5, "name": "a", "id": 1},
        Person(1, "a", 0.5),
        PersonTuple(0.5, "a", 1),
        np.array([(0.5, "a", 1)], [("score", "f8"), ("name", "U1"), ("id", "i4")]),
        np.array([(0.5, "a", 1)], [("score", "f8"), ("name", "U1"), ("id", "i4")])[0],
    ],
    ids=lambda row: type(row).__name__,
)
def test_one_row_is_a_row(row: Any) -> None:
    assert as_table(row, SCHEMA, INTO).to_pylist() == [{"id": 1, "name": "a", "score": 0.5}]


@pytest.mark.parametrize(
    "nothing",
    [
        [],
        {"id": [], "name": [], "score": []},
        pl.DataFrame(schema={"id": pl.Int64, "name": pl.String, "score": pl.Float64}),
        iter(()),
    ],
    ids=lambda n: type(n).__name__,
)
def test_no_rows_are_rows(nothing: Any) -> None:
    batch = as_table(nothing, SCHEMA, INTO)
    assert (batch.num_rows, batch.schema.types[1]) == (0, pa.large_string())


def test_a_frame_in_the_canonical_layout_is_not_copied() -> None:
    table = pa.table({"id": pa.array([1, 2]), "score": pa.array([0.5, 1.5])})
    batch = as_table(table, table.schema, INTO)
    for name in table.schema.names:
        assert batch[name].buffers()[1].address == table[name].chunk(0).buffers()[1].address
    frame = pl.DataFrame({"id": [1, 2]})
    batch = as_table(frame, pa.schema({"id": pa.int64()}), INTO)
    assert batch["id"].buffers()[1].address == frame["id"].to_arrow().buffers()[1].address


LISTS = pa.schema([("tags", pa.list_(pa.string())), ("sizes", pa.list_(pa.int64()))])


def test_lists_are_values_or_columns_by_what_is_inside() -> None:
    one = {"tags": ["a", "b"], "sizes": [1]}
    assert as_table(one, LISTS, INTO).to_pylist() == [one]
    columns = {"tags": [["a", "b"], None], "sizes": [[1], []]}
    assert as_table(columns, LISTS, INTO).to_pydict() == columns
    mixed = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])
    row = {"id": 1, "tags": ["a", "b"]}
    assert as_table(row, mixed, INTO).to_pylist() == [row]
    assert as_table((1, ["a", "b"]), mixed, INTO).to_pylist() == [row]
    assert as_table({"id": [1], "tags": [["a", "b"]]}, mixed, INTO).to_pylist() == [row]


def test_structs_are_dicts_dataclasses_and_named_tuples() -> None:
    schema = pa.schema(
        [("who", pa.struct([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64())]))]
    )
    plain = {"id": 1, "name": "a", "score": 0.5}
    for who in (plain, Person(1, "a", 0.5), PersonTuple(0.5, "a", 1)):
        assert as_table([(who,)], schema, INTO).to_pylist() == [{"who": plain}]
    for wrong, why in (
        ({"id": 1}, "'name' is missing"),
        (plain | {"x": 1}, "'x' is not declared"),
        (5, "int"),
    ):
        with pytest.raises(SchemaError, match=why):
            as_table([(wrong,)], schema, INTO)


UTC = datetime.UTC
MOMENT = datetime.datetime(2024, 1, 2, 3, 4, 5)

FITS: list[tuple[pa.DataType, Any]] = [
    (pa.int8(), -128),
    (pa.uint64(), 2**64 - 1),
    (pa.float64(), 3),
    (pa.float64(), float("inf")),
    (pa.float32(), 0.5),
    (pa.float32(), np.float32(0.1)),
    (pa.float16(), 0.5),
    (pa.bool_(), np.True_),
    (pa.string(), ""),
    (pa.string(), Colour.RED),
    (pa.binary(), b""),
    (pa.binary(), bytearray(b"x")),
    (pa.binary(2), b"xy"),
    (pa.date32(), datetime.date(2024, 1, 1)),
    (pa.timestamp("us"), MOMENT.replace(microsecond=1)),
    (pa.timestamp("s"), MOMENT),
    (pa.timestamp("ms"), np.datetime64("2024-01-02T03:04:05.006")),
    (pa.timestamp("us", "UTC"), MOMENT.replace(tzinfo=UTC)),
    (pa.timestamp("us"), pd.Timestamp(MOMENT)),
    (pa.time64("us"), datetime.time(1, 2, 3, 4)),
    (pa.time32("s"), datetime.time(1, 2, 3)),
    (pa.duration("us"), datetime.timedelta(microseconds=1)),
    (pa.duration("ms"), datetime.timedelta(seconds=1)),
    (pa.decimal128(5, 2), decimal.Decimal("1.5")),
    (pa.decimal128(5, 2), 3),
    (pa.list_(pa.int64()), [1, None]),
    (pa.list_(pa.int64()), np.array([1, 2])),
    (pa.list_(pa.list_(pa.float64())), [[1], [0.5]]),
    (pa.null(), None),
    (pa.dictionary(pa.int32(), pa.string()), "x"),
]

MISFITS: list[tuple[pa.DataType, Any, str]] = [
    (pa.int64(), "1", "it is a str"),
    (pa.int64(), 1.0, "it is a float"),
    (pa.int64(), True, "it is a bool"),
    (pa.int64(), 2**63, "out of range"),
    (pa.int8(), 128, "out of range"),
    (pa.uint8(), -1, "out of range"),
    (pa.int8(), np.int64(1000), "out of range"),
    (pa.int64(), [1], "it is a list"),
    (pa.float64(), "1", "it is a str"),
    (pa.float64(), False, "it is a bool"),
    (pa.float64(), 2**53 + 1, "exactly"),
    (pa.float64(), decimal.Decimal(1), "it is a Decimal"),
    (pa.float32(), 2**24 + 1, "no float has exactly this value"),
    (pa.float32(), 1e300, "beyond all numbers of float"),
    (pa.float16(), 1e10, "beyond all numbers of halffloat"),
    (pa.bool_(), 1, "it is an int"),
    (pa.string(), 1, "it is an int"),
    (pa.string(), b"x", "it is a bytes"),
    (pa.string(), "\ud800", "UTF-8"),
    (pa.binary(), "x", "it is a str"),
    (pa.binary(2), b"x", "length"),
    (pa.date32(), MOMENT, "it is a datetime"),
    (pa.date32(), 5, "it is an int"),
    (pa.timestamp("us"), MOMENT.date(), "it is a date"),
    (pa.timestamp("us"), 5, "it is an int"),
    (pa.timestamp("s"), MOMENT.replace(microsecond=1), "finer than s"),
    (pa.timestamp("us"), MOMENT.replace(tzinfo=UTC), "it has a time zone"),
    (pa.timestamp("us", "UTC"), MOMENT, "the column has a time zone"),
    (pa.timestamp("us"), pd.Timestamp("2024-01-01T00:00:00.000000001"), "finer than us"),
    (pa.timestamp("us"), np.datetime64("2024-01-01T00:00:00.000000001"), "finer than us"),
    (pa.time64("us"), datetime.time(1, tzinfo=UTC), "time zone"),
    (pa.time32("ms"), datetime.time(1, 2, 3, 4), "finer than ms"),
    (pa.duration("s"), datetime.timedelta(microseconds=1), "finer than s"),
    (pa.decimal128(5, 2), decimal.Decimal("1.234"), "2 behind it"),
    (pa.decimal128(5, 2), 1.5, "it is a float"),
    (pa.list_(pa.int64()), [1, "2"], "it is a str"),
    (pa.list_(pa.string()), "ab", "it is a str"),
    (pa.null(), 1, "nulls only"),
]


@pytest.mark.parametrize(("kind", "value"), FITS, ids=str)
def test_a_value_of_the_declared_type_fits(kind: pa.DataType, value: Any) -> None:
    column = as_table([(value,), (None,)], pa.schema([("x", kind)]), INTO).column(0)
    assert column.null_count == 2 - (value is not None)
    if value is not None:
        held = column[0].as_py()
        assert held == (value.tolist() if isinstance(value, np.ndarray | np.generic) else value)


@pytest.mark.parametrize(("kind", "value", "why"), MISFITS, ids=str)
def test_a_value_that_does_not_fit_is_named(kind: pa.DataType, value: Any, why: str) -> None:
    schema = pa.schema([("n", pa.int64()), ("x", kind)])
    with pytest.raises(SchemaError) as caught:
        as_table([(1, None), (2, None), (3, value)], schema, INTO)
    error = caught.value
    assert error.code == "schema.value"
    assert (error.fields["row"], error.fields["column"]) == (2, "x")
    assert error.message.startswith(
        f"cannot {INTO}: row 2 has {value!r} in column 'x', declared as {kind}"
    )
    assert why in error.message
    assert str(error.hint).startswith("give ")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.floats(),
            st.none() | st.text(st.characters(codec="utf-8")),
        )
    )
)
def test_python_rows_come_back_as_they_were(rows: list[tuple[Any, ...]]) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.float64()), ("c", pa.string())])
    batch = as_table(rows, schema, INTO)
    assert repr([tuple(row.values()) for row in batch.to_pylist()]) == repr(rows)
    again = [as_table(row, schema, INTO) for row in rows]
    assert repr([tuple(one.to_pylist()[0].values()) for one in again]) == repr(rows)


STRICT = pa.schema([pa.field("id", pa.int64(), nullable=False)])

REFUSED: list[tuple[str, str, str, Any]] = [
    ("schema.column_missing", "'score'", "row 0 has: id, name", {"id": 1, "name": "a"}),
    (
        "schema.column_missing",
        "'score'",
        "row 1 has: id, name",
        [*dicts()[:1], {"id": 1, "name": "a"}],
    ),
    ("schema.column_missing", "'score'", "the rows have: id, name", table().select(["id", "name"])),
    (
        "schema.column_missing",
        "'score'",
        "the rows have: id, name",
        pd.DataFrame({"id": [1], "name": ["a"]}),
    ),
    ("schema.column_missing", "'score'", "the rows have", {"id": [1], "name": ["a"]}),
    ("schema.column_unknown", "'x'", "row 1 has", [dicts()[0], dicts()[0] | {"x": 1}]),
    ("schema.column_unknown", "'x'", "", pl.DataFrame(dicts()).with_columns(x=1)),
    ("schema.column_unknown", "'id'", "", pd.concat([pd.DataFrame(dicts())] * 2, axis=1)),
    (
        "schema.column_unknown",
        "0",
        "",
        pd.DataFrame(dicts()).assign().join(pd.Series([1, 2, 3], name=0)),
    ),
    ("schema.ragged", "row 1", "2 values", [ROWS[0], (1, "a")]),
    ("schema.ragged", "row 0", "1 values", (1,)),
    ("schema.ragged", "'name'", "1 rows", {"id": [1, 2], "name": ["a"], "score": [0.5, 1.5]}),
    (
        "schema.type_mismatch",
        "'id'",
        "declared as int64",
        table().set_column(0, "id", pa.array(["1", "2", "3"])),
    ),
    ("schema.type_mismatch", "'id'", "", {"id": np.array([1.0]), "name": ["a"], "score": [0.5]}),
    ("schema.value", "one value", "columns", {"id": [1], "name": "a", "score": 0.5}),
    ("schema.not_rows", "a str", "", "rows"),
    ("schema.not_rows", "an int", "", 5),
    ("schema.not_rows", "a NoneType", "", None),
    ("schema.not_rows", "a ndarray", "", np.zeros((2, 3))),
    ("schema.not_rows", "row 0", "1", [1, "a", 0.5]),
    ("schema.not_rows", "row 1", "", [ROWS[0], "abc"]),
    ("schema.not_rows", "row 1", "", [dicts()[0], ROWS[0]]),
    ("schema.not_rows", "a set", "", {1, 2}),
]


@pytest.mark.parametrize(("code", "names", "says", "rows"), REFUSED)
def test_what_are_no_such_rows_is_said(code: str, names: str, says: str, rows: Any) -> None:
    with pytest.raises(SchemaError) as caught:
        as_table(rows, SCHEMA, INTO)
    error = caught.value
    assert error.code == code
    assert error.message.startswith(f"cannot {INTO}: ")
    assert names in error.message
    assert says in error.message
    assert error.hint


@pytest.mark.parametrize(
    "rows",
    [(None,), [(None,)], {"id": None}, {"id": [None]}, pa.table({"id": pa.nulls(1, pa.int64())})],
)
def test_a_null_where_none_is_declared_is_refused(rows: Any) -> None:
    with pytest.raises(SchemaError) as caught:
        as_table(rows, STRICT, INTO)
    assert caught.value.code == "schema.null"
    assert "'id'" in caught.value.message


def test_integers_that_pandas_turned_into_floats_are_refused_with_a_hint() -> None:
    frame = pd.DataFrame({"id": [1, None]})
    assert frame["id"].dtype == "float64"
    schema = pa.schema({"id": pa.int64()})
    with pytest.raises(SchemaError, match="pandas turns integers into floats") as caught:
        as_table(frame, schema, INTO)
    assert "Int64" in str(caught.value.hint)
    assert as_table(frame.astype("Int64"), schema, INTO).to_pylist() == [{"id": 1}, {"id": None}]


def test_missing_values_of_pandas_are_nulls() -> None:
    schema = pa.schema([("x", pa.float64()), ("s", pa.string()), ("t", pa.timestamp("us"))])
    frame = pd.DataFrame(
        {
            "x": [1.0, float("nan")],
            "s": pd.Series(["a", pd.NA], dtype=object),
            "t": [pd.Timestamp(MOMENT), pd.NaT],
        }
    )
    converted = as_table(frame, schema, INTO).to_pylist()
    assert converted == [{"x": 1.0, "s": "a", "t": MOMENT}, {"x": None, "s": None, "t": None}]
    objects = frame.astype(object)
    assert as_table(objects, schema, INTO).to_pylist() == converted


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_datetimes_of_pandas_may_have_any_unit(unit: str) -> None:
    frame = pd.DataFrame({"t": pd.Series([MOMENT]).astype(f"datetime64[{unit}]")})
    schema = pa.schema({"t": pa.timestamp("us")})
    assert as_table(frame, schema, INTO).to_pylist() == [{"t": MOMENT}]
    fine = pd.DataFrame({"t": [pd.Timestamp("2024-01-01T00:00:00.000000001")]})
    with pytest.raises(SchemaError) as caught:
        as_table(fine, schema, INTO)
    assert caught.value.code == "schema.type_mismatch"


def test_a_wrong_object_in_a_pandas_column_is_named() -> None:
    frame = pd.DataFrame({"id": pd.Series([1, "2"], dtype=object)})
    with pytest.raises(SchemaError, match="row 1 has '2' in column 'id'"):
        as_table(frame, pa.schema({"id": pa.int64()}), INTO)


def test_many_schemas_do_not_pile_up() -> None:
    from riverrun.rows import convert

    for at in range(600):
        schema = pa.schema({f"c{at}": pa.int64()})
        assert as_table((at,), schema, INTO).to_pylist() == [{f"c{at}": at}]
    assert len(convert._KNOWN) <= convert._MOST_KNOWN


def test_rows_are_read_where_pandas_is_not_installed() -> None:
    program = """if True:
        import sys
        class Without:
            def find_spec(self, name, path=None, target=None):
                if name == "pandas":
                    raise ModuleNotFoundError(name)
        sys.meta_path.insert(0, Without())
        from riverrun.rows.schemas import as_schema
        from riverrun.rows.convert import as_table
        schema = as_schema({"a": int}, "declare")
        for rows in ((1,), {"a": 1}, [{"a": 1}], {"a": [1]}):
            assert as_table(rows, schema, "insert").to_pylist() == [{"a": 1}]
    """
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


FIXED = pl.Array(pl.Int64, 2)


def fixed_in(way: str, value: object) -> tuple[dict[str, object], object]:
    """The declared columns, and rows in which a list of a fixed length is `value`."""
    nested = {
        "list": pl.List(FIXED),
        "struct": pl.Struct({"x": FIXED}),
        "array": pl.Array(FIXED, 1),
    }
    inside = {"list": [value], "struct": {"x": value}, "array": [value]}
    if way in nested:
        return {"a": nested[way]}, [(inside[way],)]
    rows: dict[str, object] = {
        "tuple": [(value,)],
        "tuples": [([1, 2],), (value,)],
        "dict": [{"a": value}],
        "columns": {"a": [value, [1, 2]]},
        "numpy": [(np.array(value, np.int64),)],
        "polars": pl.DataFrame({"a": [[1, 2], value]}, schema={"a": pl.List(pl.Int64)}),
        "arrow": pa.table({"a": pa.array([[3, 4], value], pa.list_(pa.int64()))}),
        "series": {"a": pl.Series([value], dtype=pl.List(pl.Int64))},
    }
    return {"a": FIXED}, rows[way]


@pytest.mark.parametrize("value", [[1], [], [1, 2, 3], [1, 2, 3, 4]], ids=str)
@pytest.mark.parametrize(
    "way",
    [
        "tuple",
        "tuples",
        "dict",
        "columns",
        "numpy",
        "polars",
        "arrow",
        "series",
        "list",
        "struct",
        "array",
    ],
)
def test_a_list_of_a_fixed_length_has_that_length(way: str, value: list[int]) -> None:
    schema, rows = fixed_in(way, value)
    flow = rr.Dataflow("fixed")
    flow.output("o", flow.input("c", schema))
    with flow.run() as run:
        with pytest.raises(
            rr.SchemaError, match=f"a list of {len(value)} values in place of 2"
        ) as refused:
            run.insert("c", rows)
        assert refused.value.code == "schema.value"
        assert refused.value.hint
        schema, rows = fixed_in(way, [5, 6])
        run.insert("c", rows)
        run.commit()
        assert run.read("o").to_polars().height
        assert "5, 6" in str(run.read("o").rows())


@pytest.mark.parametrize("make", ["flat_map", "map_batches", "apply"])
def test_a_function_gives_lists_of_the_fixed_length(make: str) -> None:
    flow = rr.Dataflow("fixed")
    rows = flow.input("c", {"k": pl.Int64})
    computed = {
        "flat_map": lambda: rows.flat_map(lambda row: [([1] * row["k"],)], {"a": FIXED}),
        "map_batches": lambda: rows.map_batches(
            lambda frame: frame.select(a=pl.lit(1).repeat_by("k").cast(pl.List(pl.Int64))),
            {"a": FIXED},
        ),
        "apply": lambda: rows.group_by("k").apply(
            lambda group: {"a": [1] * group["k"][0]}, {"a": FIXED}
        ),
    }[make]()
    flow.output("o", computed.select("a"))
    with flow.run() as run:
        run.insert("c", [(2,)])
        run.commit()
        assert run.read("o").rows() == [([1, 1],)]
        run.insert("c", [(3,)])
        with pytest.raises(rr.RiverrunError, match="a list of 3 values in place of 2"):
            run.commit()


NUMPY_TIMES = [
    np.timedelta64(1, "ns"), np.timedelta64(3, "Y"), np.timedelta64(3), np.timedelta64(2, "us"),
    np.datetime64(5, "ns"), np.datetime64(5, "us"), np.datetime64("2020-01-01"), np.datetime64(5, "as"),
]  # fmt: skip


@pytest.mark.parametrize("value", NUMPY_TIMES, ids=repr)
@pytest.mark.parametrize(
    "kind",
    [
        pl.Int8,
        pl.Int64,
        pl.UInt64,
        pl.Float64,
        pl.Decimal(20, 1),
        pl.String,
        pl.Boolean,
        pl.List(pl.Int64),
    ],
)
def test_times_of_numpy_are_no_numbers(kind: pl.DataType, value: object) -> None:
    schema = as_schema({"a": kind}, "declare")
    cell = [value] if kind == pl.List(pl.Int64) else value
    listed = [np.array([value])] if kind == pl.List(pl.Int64) else []
    for row in [cell, *listed]:
        with pytest.raises(rr.SchemaError, match=r"it is a (date|datetime|timedelta)") as refused:
            as_table([(row,)], schema, "insert into 'c'")
        assert refused.value.code == "schema.value"


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pl.Duration("ns"), np.timedelta64(7, "ns"), 7),
        (pl.Duration("us"), np.timedelta64(7000, "ns"), 7),
        (pl.Duration("us"), np.timedelta64(7, "ns"), "it is finer than us"),
        (pl.Duration("us"), np.timedelta64(7, "Y"), "it is a timedelta64[Y]"),
        (pl.Duration("us"), np.datetime64(7, "ns"), "it is a datetime64[ns]"),
        (pl.Datetime("us"), np.datetime64("1970-01-01T01"), 3_600_000_000),
        (pl.Datetime("ns"), np.datetime64(7, "ns"), 7),
        (pl.Datetime("us"), np.datetime64("2020-01-01"), "it is a datetime64[D], and no instant"),
        (pl.Datetime("us"), np.datetime64("2020"), "it is a datetime64[Y], and no instant"),
    ],
)
def test_times_of_numpy_are_times(kind: pl.DataType, value: object, expected: object) -> None:
    schema = as_schema({"a": kind}, "declare")
    if isinstance(expected, str):
        with pytest.raises(rr.SchemaError) as refused:
            as_table([(value,)], schema, "insert into 'c'")
        assert refused.value.message.endswith(f": {expected}")
    else:
        batch = as_table([(value,)], schema, "insert into 'c'")
        assert batch.column(0).cast(pa.int64()).to_pylist() == [expected]


def test_a_loop_that_gives_lists_of_other_lengths_holds_lists() -> None:
    flow = rr.Dataflow("fixed")
    start, other = flow.input("c", {"a": FIXED}), flow.input("d", {"a": pl.List(pl.Int64)})
    flow.output("o", start.iterate(lambda rows: rows.concat(other).distinct()))
    with flow.run() as run:
        run.insert("c", [([1, 2],)])
        run.insert("d", [([1],), ([1, 2],)])
        run.commit()
        assert run.read("o").rows() == [([1],), ([1, 2],)]
        assert run.read("o").to_polars().schema == {"a": pl.List(pl.Int64)}
