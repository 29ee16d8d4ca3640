"""Hypothesis profiles, and a seed in the header that repeats the run (`tests/soaking.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

from riverrun.operators.shared import sweep
from riverrun.state import kernels
from riverrun.state.entries import LABELS
from riverrun.state.kernels.compiling import called, label, spelled
from riverrun.state.shards import CELLS
from tests.soaking import SOAK, first_seed

# No limit of time anywhere: a test must not fail because the machine is busy.
settings.register_profile(
    "test",
    max_examples=100,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("soak", settings.get_profile("test"), max_examples=400)
settings.load_profile("soak" if SOAK == "all" else "test")


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads the option
def pytest_configure(config: pytest.Config) -> None:
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(first_seed())


_LOOKED_AT = 0


def pytest_runtest_teardown() -> None:
    """Fail where a kernel was called with types that are not listed: users would wait for its compilation in a run."""
    global _LOOKED_AT  # noqa: PLW0603
    calls = called()[_LOOKED_AT:]
    _LOOKED_AT += len(calls)
    unlisted = [
        f'"{name.removeprefix(kernels.__name__ + ".")}": ("{spelled(signature)}",),'
        for name, signature in calls
        if name.startswith(kernels.__name__) and label(name, signature) not in LABELS
    ]
    assert not unlisted, "riverrun.state.entries.CALLS lacks\n    " + "\n    ".join(unlisted)


def pytest_report_header(config: pytest.Config) -> str:
    return f"SEED={config.option.hypothesis_seed} SOAK={SOAK or 'no'}"


@pytest.fixture(scope="session", autouse=True)
def small_states() -> Iterator[None]:
    """Have a turn of a sweep go through all cells, since states are small here and runs short. In
    `tests/operators/shared/test_sweep.py` turns are as outside of tests."""
    with mock.patch.object(sweep, "SPAN", CELLS):
        yield
