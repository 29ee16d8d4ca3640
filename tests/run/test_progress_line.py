"""The progress line: seen in a terminal when a commit takes long, and nowhere else."""

from __future__ import annotations

import sys
import time

import polars as pl
import pytest

import riverrun as rr
from riverrun.progress import Antichain
from riverrun.run import progress_line


@pytest.fixture
def slow(monkeypatch):
    monkeypatch.setattr(progress_line, "DELAY", 0.01)
    monkeypatch.setattr(progress_line, "EVERY", 0.01)

    def wait(frame):
        time.sleep(0.2)
        return frame

    flow = rr.Dataflow("slowly")
    numbers = flow.input("numbers", {"n": pl.Int64})
    flow.output("n", numbers.map_batches(wait, {"n": pl.Int64}))
    return flow


def test_a_long_commit_is_shown_in_a_terminal(slow, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with slow.run() as run:
        run.insert("numbers", [(1,), (2,)])
        run.commit()
    shown = capsys.readouterr().err
    assert "slowly: epoch 0, 2 rows in" in shown


def test_nothing_is_shown_elsewhere(slow, capsys):
    with slow.run() as run:
        run.insert("numbers", [(1,)])
        run.commit()
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.mark.parametrize("workers", [1, 3])
def test_a_probe_tells_which_times_can_still_come(workers):
    flow = rr.Dataflow("probed")
    numbers = flow.input("numbers", {"n": pl.Int64})

    def halve(current):
        inside = current.select(n=pl.col("n") // 2).probe("inside")
        return inside.concat(numbers).distinct()

    flow.output("n", numbers.iterate(halve).probe("outside"))
    with flow.run(workers=workers) as run:
        assert run.frontier("outside") == Antichain([(0,)])
        run.insert("numbers", [(100,), (7,)])
        commit = run.commit(wait=False)
        assert run.frontier("outside") == Antichain([(0,)])
        commit.wait()
        assert run.frontier("outside") == Antichain([(1,)])
        assert run.frontier("inside") == Antichain([(1, 0)])
        with pytest.raises(rr.PlanError) as caught:
            run.frontier("nowhere")
        assert caught.value.code == "plan.probe_unknown"


def test_a_run_is_drawn_in_notebooks(slow):
    assert slow._repr_svg_().startswith("<svg")
    with slow.run() as run:
        assert "<svg" in run._repr_html_()
        assert "epoch None" in run._repr_html_()
        run.insert("numbers", [(1,)])
        run.commit()
        assert "<table" in run.read("n")._repr_html_()
