"""Sessions for tests.

``spark`` is a local session, the same for all tests. ``printed`` has the output of the programs that need sessions of
their own (tests/spark/own_sessions.py). ``standalone`` is a cluster of two workers, for driver programs in processes of
their own (tests/spark/standalone.py). Tests on a cluster are marked ``@pytest.mark.cluster``: ``make test`` leaves them
out. With several test processes, all tests of this folder run in one of them (tools/one_jvm.py).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.programs import Rows, change, counting
from tests.spark.standalone import Standalone, in_another_process, session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session in this process, with slots for two runs of two workers, and for jobs beside them."""
    local = session("local[6]", spark_sql_python_filterPushdown_enabled="true")
    yield local
    local.stop()


@pytest.fixture(scope="session")
def sessions_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs of tests/spark/own_sessions.py work: with a checkpoint in ``stored``."""
    folder = tmp_path_factory.mktemp("sessions")
    program, rows, source = counting(), Rows(), random.Random(10)
    with program.flow.run(workers=2, checkpoint=folder / "stored", every=None) as run:
        for _ in range(4):
            change(run, program, rows, source, 12)
            run.commit()
            run.checkpoint()
    return folder


@pytest.fixture(scope="session")
def printed(sessions_folder: Path) -> dict[str, str]:
    """The output of each program of tests/spark/own_sessions.py, by name."""
    program = "import sys; from tests.spark.own_sessions import main; main(sys.argv[1])"
    said: dict[str, str] = json.loads(in_another_process(program, str(sessions_folder)))
    return said


@pytest.fixture(scope="session")
def standalone() -> Iterator[Standalone]:
    """A master and two workers; a test that kills one starts a cluster of its own."""
    with Standalone() as cluster:
        yield cluster
