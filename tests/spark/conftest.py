"""Sessions for tests.

``spark`` is a local session, the same for all tests; ``standalone`` a cluster of two workers, for
driver programs in processes of their own (tests/spark/standalone.py). Tests on a cluster are marked
``@pytest.mark.cluster``: ``make test`` leaves them out. With several test processes, all of this
folder runs in one of them (tools/one_jvm.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.spark.standalone import Standalone, session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session in this process, with slots for two runs of two workers, and for jobs beside them."""
    local = session("local[6]", spark_sql_python_filterPushdown_enabled="true")
    yield local
    local.stop()


@pytest.fixture(scope="session")
def standalone() -> Iterator[Standalone]:
    """A master and two workers; a test that kills one starts a cluster of its own."""
    with Standalone() as cluster:
        yield cluster
