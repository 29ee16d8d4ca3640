"""``riverrun kernels`` where its output goes to a file: what happens is told line by line, while it happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from riverrun.cli import kernels
from riverrun.plan.kernels_needed import kernels_of
from riverrun.state.entries import LABELS


def test_off_a_terminal_progress_is_told_in_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names, left, now = list(LABELS)[:3], [3], [0.0]

    def make_ready(labels: Iterable[str], *, progress: Callable[[int, int], None]) -> None:
        for done, seconds in ((0, 0.0), (1, 3.0), (2, 11.0), (3, 12.0)):
            now[0] = seconds
            progress(done, 3)
        left[0] = 0

    monkeypatch.setattr(kernels, "missing", lambda labels, *, anew: names[: left[0]])
    monkeypatch.setattr(kernels, "make_ready", make_ready)
    monkeypatch.setattr(kernels.time, "monotonic", lambda: now[0])
    assert kernels.prepare() == 0
    begun, later, ended = capsys.readouterr().out.splitlines()
    assert begun.startswith("compiling kernels for ")
    assert begun.endswith(": 0 of 3, after 0 s")
    assert later.endswith(": 2 of 3, after 11 s")
    assert f"{len(LABELS)} of {len(LABELS)} kernels are ready" in ended
    assert ", after 12 s" in ended


def test_the_first_program_needs_common_kernels_only() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    program, _, _ = readme.partition("```python\n")[2].partition("with flow.run()")
    names: dict[str, Any] = {}
    exec(program, names)
    assert set(kernels_of(names["flow"].plan)) <= set(kernels.common())
    assert len(kernels.common()) < len(LABELS) / 2
