"""Everybody gets on while workers are killed every few seconds, in brief; a soak takes longer (docs/testing.md)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.chaos.sustained import Commits, Sustained
from tests.soaking import SOAK, draws, first_seed


def say(text: str) -> None:
    print(text, file=sys.stderr)


def test_everybody_gets_on_while_processes_are_killed(tmp_path: Path) -> None:
    report = Sustained(first_seed(), 5, str(tmp_path / "run"), least=1, kills=1, say=say).go()
    print(report)
    assert report.kills


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(draws(1, soak=2)))
@pytest.mark.parametrize("takeovers", [False, True] if SOAK == "all" else [True])
def test_everybody_gets_on_for_long(tmp_path: Path, seed: int, takeovers: bool) -> None:
    seconds = draws(15, soak=120)
    report = Sustained(
        first_seed() + seed, seconds, str(tmp_path / "run"), takeovers=takeovers, say=say
    ).go()
    print(report)
    assert report.kills >= 3


def test_what_is_expected_is_a_function_of_the_seed() -> None:
    commits = Commits(3)
    assert commits.expected(9) == Commits(3).expected(9) != Commits(4).expected(9)
    assert max(last for *_, last in commits.expected(9)) == 9
    assert any(old for _, old in map(commits.change, range(9)))
