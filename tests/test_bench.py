"""Benchmarks run, at sizes that say nothing, and print one line each. They are never timed here.

Those on Spark: tests/spark/test_benchmarks.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pytest

from bench.__main__ import main, names
from bench.apart import run_apart
from bench.placement import hashed, hilbert, placed

SIZES = {
    "commits": {"commits": 20},
    "components": {"nodes": 300, "edges": 600, "loads": 2, "singles": 3, "moved": 5},
    "degrees": {"nodes": 200, "edges": 1000, "changes": 100, "batches": 2, "singles": 4},
    "epochs": {"epochs": 20},
    "iterations": {"real": 0, "nodes": 300, "edges": 600, "rounds": 4},
    "link": {"chunk": 2000, "chunks": 3, "messages": 10, "repeats": 1},
    "microsteps": {
        "real": 0,
        "path": 60,
        "shared_path": 30,
        "hops": 20,
        "moves": 2,
        "repeats": 1,
    },
    "placement": {"edges": 2000, "workers": 4, "real": 0},
    "plans": {"nodes": 96, "workers": 1},
    "real_components": {
        "real": 0,
        "nodes": 300,
        "edges": 600,
        "path": 200,
        "short_path": 30,
        "scratch_rounds": 40,
        "loads": 2,
        "singles": 3,
        "slow_singles": 2,
        "moved": 5,
        "many": 1,
        "seconds": 2,
    },
    "shortest_paths": {
        "real": 0,
        "nodes": 300,
        "edges": 600,
        "loads": 2,
        "singles": 3,
        "slow_singles": 2,
        "many": 1,
        "repeats": 1,
    },
    "words": {"words": 2000, "distinct": 100, "batches": 4, "repeats": 1},
}


@pytest.mark.parametrize("name", SIZES)
def test_a_benchmark_prints_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    check_benchmark(name, SIZES[name], monkeypatch, capfd)


def check_benchmark(
    name: str,
    sizes: Mapping[str, object],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Runs a benchmark, without the peers in other processes, and looks at the line that it prints."""
    # Peers in other environments are not ours to test, and nor is what is installed in this one.
    monkeypatch.setattr(f"bench.{name}.run_apart", lambda *_, **__: {"skipped": ""}, raising=False)
    for what, size in sizes.items():
        monkeypatch.setenv(f"BENCH_{what.upper()}", str(size))
    assert main([name]) == 0
    (line,) = capfd.readouterr().out.splitlines()
    printed = json.loads(line)
    assert printed["name"] == name
    assert printed["hardware"]["cores"] >= 1
    for figure in printed["asked"].values():
        assert figure.keys() == {"ours", "asked", "met"}
    for peer in printed["peers"].values():
        assert "version" in peer or "skipped" in peer
    assert printed["ratios"]


def test_the_curve_of_a_placement_goes_through_every_point_from_neighbour_to_neighbour() -> None:
    side = 16
    x, y = np.divmod(np.arange(side * side), side)
    places = hilbert(x, y, 4)
    assert sorted(places) == list(range(side * side))
    steps = np.abs(np.diff(x[np.argsort(places)])) + np.abs(np.diff(y[np.argsort(places)]))
    assert set(steps) == {1}


def test_what_a_placement_moves_is_counted() -> None:
    """A star on two workers: by source each sends one part of the hub's sum, by target the hub needs all values."""
    nodes, hub = np.arange(100), np.full(100, 100)
    home = hashed(np.arange(101), 2)
    away = int((home[:100] != home[100]).sum())
    assert 30 < away < 70
    assert placed(nodes, hub, 101, 2, "src")["rows"] == 1
    assert placed(nodes, hub, 101, 2, "dst")["rows"] == away


def test_all_benchmarks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert set(SIZES) < set(names())
    assert all(f"  {name}" in printed for name in names())


def test_a_peer_that_is_not_installed_is_skipped_and_named() -> None:
    report = run_apart("pathway_words", "a_package_that_is_not_there", words=1)
    assert "a_package_that_is_not_there" in report["skipped"]


def test_a_peer_that_fails_is_skipped_and_told() -> None:
    report = run_apart("no_such_program", "json")
    assert report["skipped"].startswith("failed: ")
