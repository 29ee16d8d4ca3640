"""Columns written as Spark writes them: our reader against Spark's own, for schemas drawn at random."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from riverrun.rows.schemas import as_schema
from riverrun.rows.types import TYPES, in_spark
from tests.rows.test_spellings import COLUMNS
from tests.rows.written import OF_SPARK, as_ddl, drawn_schema
from tests.soaking import draws, first_seed

WHAT = "declare input 'edges'"


def ours_of(columns: StructType) -> pa.Schema:
    """What Spark's columns are in Arrow, as Spark itself says."""
    return to_arrow_schema(columns, timezone="UTC")


def without_nullability(schema: pa.Schema) -> pa.Schema:
    """The same columns with nulls everywhere: `simpleString` does not tell."""

    def loose(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(kind):
            return pa.struct([pa.field(f.name, loose(f.type)) for f in kind])
        return pa.list_(loose(kind.value_type)) if pa.types.is_list(kind) else kind

    return pa.schema([pa.field(field.name, loose(field.type)) for field in schema])


@pytest.mark.drawn
def test_spark_and_we_read_the_same_columns(spark: SparkSession) -> None:
    draw = random.Random(first_seed())
    for _ in range(draws(60, soak=5_000)):
        schema = drawn_schema(draw, spark=True)
        text = as_ddl(schema)
        theirs = StructType.fromDDL(text)
        assert ours_of(theirs) == schema == as_schema(text, WHAT), text
        assert as_schema(theirs, WHAT) == schema, text  # by its JSON
        loose = without_nullability(schema)
        assert as_schema(theirs.simpleString(), WHAT) == loose, text
        assert as_schema(from_arrow_schema(schema).simpleString(), WHAT) == loose, text
        types = {field.name: field.dataType.simpleString() for field in theirs}
        assert as_schema(types, WHAT) == loose, text


@pytest.mark.parametrize("text", COLUMNS)
def test_what_we_read_spark_reads_alike(spark: SparkSession, text: str) -> None:
    if "größe" in text:
        text = text.replace("größe", "`größe`").replace(", _ int", ", `_` int")
    assert ours_of(StructType.fromDDL(text)) == as_schema(text, WHAT)


def test_every_name_of_spark_is_in_the_table(spark: SparkSession) -> None:
    for name, kind in OF_SPARK.items():
        assert ours_of(StructType.fromDDL(f"x {name}")).field("x").type == kind
    for alias in ("byte", "short", "integer", "long", "real", "dec", "numeric(5,2)", "timestamp_ltz",
                  "interval day", "interval hour to second", "string collate UTF8_LCASE",
                  "time", "time(3)"):  # fmt: skip
        assert ours_of(StructType.fromDDL(f"x {alias}")) == as_schema(f"x {alias}", WHAT), alias


def test_text_of_a_length_is_text(spark: SparkSession) -> None:
    for alias in ("char(3)", "varchar(9)"):  # which Spark itself does not bring to Arrow
        theirs = StructType.fromDDL(f"x {alias}")
        assert (
            as_schema(theirs, WHAT)
            == as_schema(f"x {alias}", WHAT)
            == pa.schema({"x": pa.string()})
        )


def test_spark_has_every_type_as_the_table_says(spark: SparkSession) -> None:
    for entry in TYPES:
        is_widest = entry.arrow == pa.decimal256(76, 0)  # Spark's decimals have 38 digits
        kind = in_spark(pa.decimal256(38, 2) if is_widest else entry.arrow)
        columns = from_arrow_schema(pa.schema({"x": kind}), prefer_timestamp_ntz=True)
        assert ours_of(columns).field("x").type == kind, entry
