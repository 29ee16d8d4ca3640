"""A pytest plugin: with ``-n``, the tests that run Spark share one process, and so one JVM.

The tests that run Spark are one piece of work for xdist, handed out first; every other test is a piece by itself. The
marker ``xdist_group`` would say the same, but with pytest 9.2 xdist 3.8 does not heed it (pytest-xdist issue 1386).
``make test`` loads this plugin: ``python -m pytest -p tools.one_jvm -n 2``.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

WITH_JVM = (
    "src/riverrun/spark/",
    "tests/spark/",
    # With the session of tests/spark.
    "tests/test_docs.py::test_the_code_of_a_page_runs[docs/from-structured-streaming.md]",
    "tests/test_docs.py::test_the_code_of_a_page_runs[docs/spark.md]",
)


def piece(test: str) -> str:
    """The piece of work that a test, named by its node id, belongs to."""
    return "spark" if test.startswith(WITH_JVM) else test


class OneJvm(LoadScopeScheduling):
    """Hands out the tests under WITH_JVM together."""

    def _split_scope(self, nodeid: str) -> str:
        return piece(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneJvm:
    """Takes the place of ``--dist``."""
    return OneJvm(config, log)
