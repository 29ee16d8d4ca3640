"""Frames: results as DataFrames of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from riverrun.errors import PlanError
from riverrun.spark.source import live_format, plainer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def of_table(table: pa.Table, session: Any = None) -> DataFrame:
    """Rows of this process as a DataFrame, of the active session by default."""
    from pyspark.sql import SparkSession
    from pyspark.sql.pandas.types import from_arrow_schema

    session = session or SparkSession.getActiveSession()
    if session is None:
        raise PlanError(
            "spark.none",
            "cannot make a DataFrame: there is no Spark session",
            hint="make one, or give it: result.to_spark(spark)",
        )
    plain = pa.Table.from_batches(
        [plainer(batch) for batch in table.to_batches()] or [plainer(_empty(table.schema))]
    )
    columns = from_arrow_schema(plain.schema, prefer_timestamp_ntz=True)
    frame: DataFrame = session.createDataFrame(plain, columns)
    return frame


def of_lent(session: SparkSession, run: str, number: str) -> DataFrame:
    """A result that workers hold, read by Spark's tasks directly."""
    return session.read.format(live_format()).option("run", run).option("lent", number).load()


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.nulls(0, field.type) for field in schema], schema=schema)
