"""Shared state says what a page of plain Python says, whatever the order, the workers and the switches."""

from __future__ import annotations

import os

import pytest

from tests.frontends.shared_playing import play

MORE = int(os.environ.get("SHARED_SEEDS", "1"))


@pytest.mark.parametrize("seed", range(60 * MORE))
def test_any_program_gives_what_the_model_gives(seed: int) -> None:
    play(seed)
