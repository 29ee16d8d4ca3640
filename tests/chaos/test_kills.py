"""Real kills, in brief; ``KILLS=200`` takes longer, and so does a soak (docs/testing.md)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.chaos.besieged import Report, Siege
from tests.chaos.kills import suite
from tests.chaos.loads import NAMES, SHARED, load_of
from tests.soaking import SOAK, draws, first_seed

LONG = int(os.environ.get("KILLS", "0"))
SOAKED = draws(4, sample=4, soak=30)  # kills of each program in a soak


def held(report: Report, kills: int) -> None:
    """What a suite must have done to have shown anything."""
    print(report.summed())
    assert report.killed >= kills
    assert report.comparisons >= 4
    assert report.epochs > 0


def drawn() -> int:
    """The same in every `make test`; another one in each soak; ``SEED=`` says which."""
    return first_seed(fixed=244801)


def say(text: str) -> None:
    print(text, file=sys.stderr)


@pytest.mark.sampled
@pytest.mark.parametrize("program", NAMES if LONG else ["scc", "loops"])
def test_processes_are_killed_and_their_driver_too(tmp_path: Path, program: str) -> None:
    kills = LONG or draws(2, sample=7, soak=7)
    siege = Siege(
        drawn(), kills, "processes", program, str(tmp_path / "run"), most=3, poison=0.03,
        kinds=() if LONG else ("kill", "two", "replacement", "newborn", "reading"),
    )  # fmt: skip
    held(suite(siege, max(1, LONG // 50), say=say), kills + 1)


@pytest.mark.soak
@pytest.mark.parametrize("program", NAMES if SOAK == "all" else ["join"])
def test_processes_of_every_program_are_killed(tmp_path: Path, program: str) -> None:
    siege = Siege(
        drawn(), SOAKED, "processes", program, str(tmp_path / "run"), most=3, poison=0.03
    )  # fmt: skip
    held(suite(siege, max(1, SOAKED // 50), say=say), SOAKED + 1)


def test_workers_that_are_threads_are_lost(tmp_path: Path) -> None:
    siege = Siege(drawn(), LONG or 8, "threads", "join", str(tmp_path / "run"), poison=0.03)
    held(suite(siege, say=say), LONG or 8)


@pytest.mark.parametrize("program", ["gathered"])
def test_workers_that_share_state_are_lost(tmp_path: Path, program: str) -> None:
    siege = Siege(drawn(), LONG or 6, "threads", program, str(tmp_path / "run"), poison=0.03)
    held(suite(siege, say=say), LONG or 6)


@pytest.mark.parametrize("name", NAMES)
def test_a_load_is_a_function_of_its_seed(name: str) -> None:
    """One that takes up what another has committed knows what it was, poison included."""
    one, other = load_of(name, 3, poison=0.2), load_of(name, 3, poison=0.2)
    changes = [one.draw() for _ in range(30)]
    assert any(change.poison for change in changes)
    deletes = name not in SHARED or bool(SHARED[name].deleted)
    assert any(any(change.old.values()) for change in changes) == deletes
    other.draw_until(one.mark)
    assert other.mark == one.mark
    assert other.expected() == one.expected() != []
    assert load_of(name, 4).draw().new != changes[0].new
