"""The example of payments runs as its docstring says, and finds what was hidden and no more than there is."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from examples import cycles as example
from tests.algorithms.temporal import cycles

ROOT = Path(__file__).resolve().parent.parent


def test_it_runs_and_finds_every_circle() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.cycles"],
        check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=120,
    )  # fmt: skip
    *circle_lines, last = done.stdout.splitlines()
    arriving, hidden = example.payments()
    edges = [(src, dst, time) for src, dst, time, _ in arriving]
    expected = cycles(edges, example.SPAN)  # type: ignore[arg-type]
    for circle in hidden:
        first = circle.index(min(circle))
        assert circle[first:] + circle[:first] in [row[4] for row in expected]
    assert sorted(line.split(": ")[1] for line in circle_lines) == sorted(
        " > ".join([*row[4], row[4][0]]) for row in expected
    )
    assert f"{len(expected)} are there" in last
    assert any(a[2] > b[2] for a, b in pairwise(edges))  # out of order
