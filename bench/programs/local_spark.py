"""A local session for programs of peers on Spark, with as many slots as they say, quiet, and closed to the outside."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

STATE = "org.apache.spark.sql.execution.streaming.state"


def session(cores: int = 2, **more: str) -> SparkSession:
    """``spark_sql_adaptive_enabled="true"`` sets an option."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # tasks import what stands beside this
    settings = {
        "spark.default.parallelism": str(cores),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.log.level": "OFF",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.sql.streaming.stateStore.providerClass": f"{STATE}.RocksDBStateStoreProvider",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    builder = SparkSession.builder.master(f"local[{cores}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
