"""The example learns, is surprised when people change their minds, and learns again."""

from __future__ import annotations

import pytest

from examples import online_learning


def test_the_example_learns_and_follows(capsys: pytest.CaptureFixture[str]) -> None:
    losses = online_learning.main()
    first, learned, surprised, last = losses[0], losses[19], losses[20], losses[-1]
    assert first == pytest.approx(0.693, abs=0.001)
    assert learned < 0.6
    assert surprised > 1.0
    assert last < 0.75
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert lines[-1].startswith("least liked: ")
