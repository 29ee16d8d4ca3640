"""Hypothesis profiles, and a seed in the header that repeats the run.

``HYPOTHESIS_PROFILE=long make test`` searches longer. A run is repeated with the seed its header
names: ``make test ARGS=--hypothesis-seed=N``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import settings

from riverrun.engine.operators.shared import sweeping
from riverrun.state.shards import CELLS

settings.register_profile("ci", max_examples=100, deadline=None, print_blob=True, derandomize=False)
settings.register_profile("long", settings.get_profile("ci"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads the option
def pytest_configure(config: pytest.Config) -> None:
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))


def pytest_report_header(config: pytest.Config) -> str:
    profile = settings.get_current_profile_name()
    return f"hypothesis: profile {profile}, --hypothesis-seed={config.option.hypothesis_seed}"


@pytest.fixture(scope="session", autouse=True)
def small_states() -> Iterator[None]:
    """States are small here, and runs short: a turn of a sweep goes through all cells (`tests/engine/test_sweeping.py`
    has turns that do not)."""
    with mock.patch.object(sweeping, "SPAN", CELLS):
        yield
