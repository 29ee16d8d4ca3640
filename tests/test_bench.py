"""Benchmarks run, at sizes that say nothing, and print one line each. They are never timed here.

Those on Spark: tests/spark/test_benchmarks.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from bench.__main__ import main, names
from bench.apart import run_apart

SIZES = {
    "commits": {"commits": 20},
    "components": {"nodes": 300, "edges": 600, "loads": 2, "singles": 3, "moved": 5},
    "degrees": {"nodes": 200, "edges": 1000, "changes": 100, "batches": 2, "singles": 4},
    "epochs": {"epochs": 20},
    "link": {"chunk": 2000, "chunks": 3, "messages": 10, "repeats": 1},
    "microsteps": {
        "graphs": "/nowhere",
        "path": 60,
        "shared_path": 30,
        "hops": 20,
        "moves": 2,
        "repeats": 1,
    },
    "plans": {"nodes": 96, "workers": 1},
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
