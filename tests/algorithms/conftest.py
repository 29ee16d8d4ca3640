"""Where the public data are: $RIVERRUN_DATA, or shared/data beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA = Path(
    os.environ.get("RIVERRUN_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data"
)


@pytest.fixture(scope="session")
def ldbc() -> Path:
    return _folder("ldbc-validation")


@pytest.fixture(scope="session")
def graphs() -> Path:
    return _folder("graphs")


@pytest.fixture(scope="session")
def temporal_graphs() -> Path:
    return _folder("temporal")


@pytest.fixture(scope="session")
def ctr() -> Path:
    return _folder("ctr")


def _folder(name: str) -> Path:
    if not (DATA / name).is_dir():
        pytest.skip(f"no {name} in {DATA}: set RIVERRUN_DATA")
    return DATA / name
