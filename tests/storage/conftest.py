"""Fixtures for states that are saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.saving import KINDS, Watched, make_blocks_small, storage_of


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Watched:
    return Watched(storage_of(request.param, tmp_path))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    make_blocks_small(monkeypatch)
