"""Types and columns written as text: all spellings that people use, and the refusal of others."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from riverrun.errors import SchemaError
from riverrun.rows.schemas import as_schema
from riverrun.rows.types import BY_NAME
from riverrun.state.types import EnumType
from tests.rows.written import as_ddl, as_name, drawn_schema
from tests.soaking import seeds

WHAT = "declare input 'edges'"

NAMES: dict[str, pa.DataType] = {
    "int8": pa.int8(), "byte": pa.int8(), "tinyint": pa.int8(),
    "int16": pa.int16(), "short": pa.int16(), "smallint": pa.int16(),
    "int32": pa.int32(), "int": pa.int32(), "integer": pa.int32(), "INT": pa.int32(),
    "int64": pa.int64(), "long": pa.int64(), "bigint": pa.int64(), "Int64": pa.int64(), "BIGINT": pa.int64(),
    "uint8": pa.uint8(), "UInt64": pa.uint64(),
    "halffloat": pa.float16(), "float16": pa.float16(),
    "float": pa.float32(), "float32": pa.float32(), "real": pa.float32(), "FLOAT": pa.float32(),
    "double": pa.float64(), "float64": pa.float64(), "Float64": pa.float64(),
    "bool": pa.bool_(), "boolean": pa.bool_(), "Boolean": pa.bool_(),
    "string": pa.string(), "str": pa.string(), "utf8": pa.string(), "String": pa.string(), "Utf8": pa.string(),
    "large_string": pa.large_string(), "string_view": pa.string_view(),
    "varchar(20)": pa.string(), "char(3)": pa.string(), "string collate UTF8_LCASE": pa.string(),
    "string[pyarrow]": pa.string(), "string[python]": pa.string(), "int64[pyarrow]": pa.int64(),
    "timestamp[us][pyarrow]": pa.timestamp("us"),
    "binary": pa.binary(), "bytes": pa.binary(), "large_binary": pa.large_binary(),
    "fixed_size_binary[16]": pa.binary(16),
    "date": pa.date32(), "date32": pa.date32(), "date32[day]": pa.date32(),
    "date64": pa.date64(), "date64[ms]": pa.date64(),
    "timestamp": pa.timestamp("us", "UTC"), "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"), "datetime": pa.timestamp("us"),
    "timestamp[us]": pa.timestamp("us"), "timestamp[ns]": pa.timestamp("ns"),
    "timestamp[us, UTC]": pa.timestamp("us", "UTC"), "timestamp[us, tz=UTC]": pa.timestamp("us", "UTC"),
    "timestamp[ms, tz=Europe/Rome]": pa.timestamp("ms", "Europe/Rome"),
    "timestamp[us, tz=+02:00]": pa.timestamp("us", "+02:00"),
    "datetime64[us]": pa.timestamp("us"), "datetime64[ns, UTC]": pa.timestamp("ns", "UTC"),
    "time": pa.time64("ns"), "time(6)": pa.time64("ns"), "time64[us]": pa.time64("us"), "time32[s]": pa.time32("s"),
    "duration": pa.duration("us"), "duration[ms]": pa.duration("ms"), "timedelta64[ns]": pa.duration("ns"),
    "interval day to second": pa.duration("us"), "INTERVAL HOUR": pa.duration("us"),
    "decimal": pa.decimal128(10, 0), "decimal(12)": pa.decimal128(12, 0), "numeric(10,2)": pa.decimal128(10, 2),
    "decimal(10, 2)": pa.decimal128(10, 2), "DEC(10,2)": pa.decimal128(10, 2),
    "decimal128(10, 2)": pa.decimal128(10, 2), "decimal256(60, 2)": pa.decimal256(60, 2),
    "decimal32(9, 2)": pa.decimal32(9, 2),
    "null": pa.null(), "void": pa.null(),
    "list<int64>": pa.list_(pa.int64()), "array<bigint>": pa.list_(pa.int64()),
    "list<item: int64>": pa.list_(pa.int64()), "ARRAY<STRING>": pa.list_(pa.string()),
    "list<item: int64 not null>": pa.list_(pa.field("item", pa.int64(), False)),
    "large_list<item: float>": pa.large_list(pa.float32()),
    "fixed_size_list<item: float>[3]": pa.list_(pa.float32(), 3),
    "array<array<decimal(10,2)>>": pa.list_(pa.list_(pa.decimal128(10, 2))),
    "struct<a: int64, b: string>": pa.struct({"a": pa.int64(), "b": pa.string()}),
    "struct<a:bigint,b:array<string>>": pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())}),
    "struct<a int not null comment 'x', `b c`: date>": pa.struct(
        [pa.field("a", pa.int32(), False), pa.field("b c", pa.date32())]
    ),
    "struct<>": pa.struct([]),
    "enum<'low', 'it''s', \"high\">": EnumType(["low", "it's", "high"]),
    "dictionary<values=string, indices=int32, ordered=0>": pa.dictionary(pa.int32(), pa.string()),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_a_type(name: str) -> None:
    expected = pa.schema({"x": NAMES[name]})
    assert as_schema({"x": name}, WHAT) == expected
    assert as_schema([("x", name)], WHAT) == expected
    assert as_schema(f"x {name}", WHAT) == expected
    if NAMES[name] != pa.null():
        without = pa.schema([pa.field("x", NAMES[name], False)])
        assert as_schema(f"`x`: {name} NOT NULL", WHAT) == without
        assert as_schema({"x": f"{name} not null"}, WHAT) == without


def test_every_name_of_the_table_is_tried() -> None:
    tried = {name.lower().replace("<", "[").replace("(", "[").partition("[")[0] for name in NAMES}
    missing = set(BY_NAME) - tried
    assert missing == {
        "binary_view", "half", "large_utf8", "utf8_view", "decimal64", "dec", "timedelta", "uint16", "uint32",
    } - tried  # fmt: skip


COLUMNS: dict[str, pa.Schema] = {
    "src long, dst long": pa.schema({"src": pa.int64(), "dst": pa.int64()}),
    "src: long, dst: long": pa.schema({"src": pa.int64(), "dst": pa.int64()}),
    "struct<src:bigint,dst:bigint>": pa.schema({"src": pa.int64(), "dst": pa.int64()}),
    "  Src\tLONG\n,\n dst   Long NOT NULL  ": pa.schema(
        [pa.field("Src", pa.int64()), pa.field("dst", pa.int64(), False)]
    ),
    "id int not null comment 'the \\'one\\'', -- of the row\n at timestamp /* an\ninstant */": pa.schema(
        [pa.field("id", pa.int32(), False), pa.field("at", pa.timestamp("us", "UTC"))]
    ),
    "`my column` string, `a``b` date": pa.schema({"my column": pa.string(), "a`b": pa.date32()}),
    "date date, timestamp timestamp_ntz, struct struct<struct: int>": pa.schema(
        {
            "date": pa.date32(),
            "timestamp": pa.timestamp("us"),
            "struct": pa.struct({"struct": pa.int32()}),
        }
    ),
    "größe double, 2nd int, _ int": pa.schema(
        {"größe": pa.float64(), "2nd": pa.int32(), "_": pa.int32()}
    ),
    "lines array<struct<item: string, price: decimal(10,2)>>, tags array<string>": pa.schema(
        {
            "lines": pa.list_(pa.struct({"item": pa.string(), "price": pa.decimal128(10, 2)})),
            "tags": pa.list_(pa.string()),
        }
    ),
}


@pytest.mark.parametrize("text", COLUMNS)
def test_columns_in_text(text: str) -> None:
    assert as_schema(text, WHAT) == COLUMNS[text]


def test_comment_and_not_null_stand_in_any_order() -> None:
    assert as_schema("id int comment 'the one' not null", WHAT) == pa.schema(
        [pa.field("id", pa.int32(), False)]
    )


REFUSED: list[tuple[Any, str, str, str]] = [
    ("src long, dst lnog", "schema.type_unsupported", "column 'dst' is declared as 'lnog'", "'long'"),
    ({"dst": "strin"}, "schema.type_unsupported", "column 'dst' is declared as 'strin'", "'string'"),
    ("l array<struct<a: integr>>", "schema.type_unsupported", "column 'l.item.a'", "'integer'"),
    ("x zzzz", "schema.type_unsupported", "'zzzz', which is no type", "known are"),
    ("m map<string, int>, n int", "schema.type_unsupported", "as 'map<string, int>'", "structs"),
    ("x object", "schema.type_unsupported", "'object'", "string"),
    ("x category", "schema.type_unsupported", "'category'", "enum<"),
    ("x interval month", "schema.type_unsupported", "'interval'", "DAY TO SECOND"),
    ("x array", "schema.type_unsupported", "does not say of what", "array<long>"),
    ("x decimal(40, 2)", "schema.type_unsupported", "1 to 38 digits", "decimal(38, 2)"),
    ("x decimal(a)", "schema.type_unsupported", "1 to 38 digits", "decimal(38, 2)"),
    ("x timestamp[h]", "schema.type_unsupported", "one of s, ms, us, ns", "timestamp[ns]"),
    ("x timestamp[us, UTV]", "schema.type_unsupported", "no time zone is called 'UTV'", "'UTC'"),
    ("x timestamp_ntz(6)", "schema.type_unsupported", "has no parameters", "timestamp_ntz"),
    ("x datetime64", "schema.type_unsupported", "its unit is one of", "datetime64[ns]"),
    ("x time64", "schema.type_unsupported", "its unit is one of us, ns", "time64[ns]"),
    ("x int(3)", "schema.type_unsupported", "int has no parameters", "write int"),
    ("x fixed_size_binary", "schema.type_unsupported", "how many bytes", "[16]"),
    ({"x": "dictionary<values=string, ordered=1>"}, "schema.type_unsupported", "order", "pl.Enum"),
    ("src", "schema.malformed", "'src' of 'src' cannot be read: a type is expected at", "src long"),
    ("src long,", "schema.malformed", "name of a column is expected at character 10", "src long"),
    ("src long dst long", "schema.malformed", "at character 10, where 'dst long' stands", "src long"),
    ("a-b long", "schema.malformed", "at character 2, where '-b long' stands", "backquotes"),
    ("`a long", "schema.malformed", "at character 1", "backquotes"),
    ("x int not", "schema.malformed", "NULL is expected behind NOT", "src long"),
    ("x void not null", "schema.malformed", "a column of nulls", "src long"),
    ("x int comment", "schema.malformed", "text of a comment", "src long"),
    ("x array<int", "schema.malformed", "a comma or > is expected at character 12", "src long"),
    ("x fixed_size_list<int>", "schema.malformed", "has a size", "src long"),
    ("x enum<'a', 'a'>", "schema.malformed", "twice", "src long"),
    ("x enum<'a', ...>", "schema.malformed", "a value of the enum", "src long"),
    ("x dictionary<int>", "schema.malformed", "dictionary<values=string", "src long"),
    ("x " + "array<" * 200 + "int" + ">" * 200, "schema.malformed", "nested more than", "src long"),
    ("", "schema.malformed", "declares no column", "src long"),
    (" -- nothing", "schema.malformed", "declares no column", "src long"),
    ({"x": "int64, y int64"}, "schema.malformed", "nothing more is expected at character 6", "one type"),
    ({"x": ""}, "schema.malformed", "a type is expected at character 1", "one type"),
    ("a text", "schema.type_unsupported", "'text', which is no type", "string"),
    ("a uuid", "schema.type_unsupported", "'uuid', which is no type", "string"),
    ("a double precision", "schema.malformed", "character 10, where 'precision' stands", "one word: double"),
    ({"a": "double precision"}, "schema.malformed", "character 8", "one word: double"),
    ("a timestamp with time zone", "schema.malformed", "'with time zone' stands", "WITH TIME ZONE"),
    ("a timestamp without time zone", "schema.malformed", "character 13", "timestamp_ntz"),
    ("a int DEFAULT 3", "schema.malformed", "'DEFAULT 3' stands", "no defaults"),
    ("a int NULL, b int", "schema.malformed", "'NULL, b int' stands", "leave out NULL"),
    ("a int PRIMARY KEY", "schema.malformed", "'PRIMARY KEY' stands", "key="),
    ("s struct<a: int unsigned>", "schema.malformed", "'unsigned>' stands", "uint32"),
    ("x int, x int", "schema.column_twice", "column 'x' is declared twice", "rename"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("declaration", "code", "said", "hint"), REFUSED, ids=lambda each: str(each)[:30]
)
def test_what_is_refused_is_named(declaration: Any, code: str, said: str, hint: str) -> None:
    with pytest.raises(SchemaError) as refusal:
        as_schema(declaration, WHAT)
    assert refusal.value.code == code
    assert said in refusal.value.message
    assert refusal.value.message.startswith(f"cannot {WHAT}: ")
    assert hint in str(refusal.value.hint)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(200, soak=1_000))
def test_a_schema_that_was_written_is_read_back(seed: int) -> None:
    schema = drawn_schema(random.Random(seed))
    assert as_schema(as_ddl(schema), WHAT) == schema
    assert as_schema({field.name: as_name(field) for field in schema}, WHAT) == schema


PIECES = [
    "int", "long", "a", "`b`", "struct", "array", "<", ">", ",", ":", "(", ")", "[", "]", "3", "us", "'x'", "not",
    "null", "comment", "timestamp", "decimal", "enum", "dictionary", "values", "=", "--", "/*", "*/", "\n", "`", '"',
    "interval", "day", "to", "collate", "list", "fixed_size_list", "\\", "é", "\x00", "-",
]  # fmt: skip


def refusal_of(declaration: Any) -> SchemaError | None:
    try:
        assert len(as_schema(declaration, WHAT))
    except SchemaError as refusal:
        return refusal
    return None


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(50, soak=1_000))
def test_any_text_is_read_or_refused(seed: int) -> None:
    draw = random.Random(seed)
    codes = ("schema.malformed", "schema.type_unsupported", "schema.column_twice")
    for _ in range(20):
        text = draw.choice(["", " "]).join(draw.choices(PIECES, k=draw.randrange(1, 14)))
        for declaration in (text, {"x": text}):
            refusal = refusal_of(declaration)
            if refusal is not None:
                assert refusal.hint
                assert refusal.code in codes
