"""A loop that outlasts `every=` is saved between two rounds, and goes on there after a loss or a resume."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.errors import OperatorFailed
from riverrun.storage.saved_rounds import newest
from riverrun.storage.store import open_storage
from tests.run.durability.test_bad_storage import HOW, truncated

ROUNDS, NODES = 20, 60
EVERY = timedelta(milliseconds=100)
Rows = list[tuple[int, ...]]


def slowly(frame: pl.DataFrame) -> pl.DataFrame:
    """What the test says, by the environment: rounds that take time, and a deed in a late one."""
    if frame["round"].max() is None:
        return frame
    time.sleep(float(os.environ.get("ROUND", "0")))
    if frame["round"].max() >= int(os.environ.get("DEED_IN", "99")):
        deed, flag = os.environ["DEED"], Path(os.environ["FLAG"])
        if not flag.exists():
            flag.touch()
            if deed == "die":
                os._exit(9)
            raise ValueError("a deed")
    return frame


def bulk(edges: rr.Collection) -> rr.Collection:
    start = edges.select(node="src", v=pl.col("src") + 0.1, round=pl.lit(0, pl.Int64)).distinct()

    def step(now: rr.Collection) -> rr.Collection:
        moved = now.join(edges, left_on="node", right_on="src")
        parts = moved.select(node="dst", v=pl.col("v") * 0.37 + 0.1, round=pl.col("round") + 1)
        seen = parts.map_batches(slowly, {"node": int, "v": float, "round": int})
        return seen.group_by("node").agg(v=rr.sum("v"), round=rr.max("round"))

    return start.iterate(step, rounds=ROUNDS, mode="rounds", name="steps")


def delta(edges: rr.Collection) -> rr.Collection:
    """How far a node is from 0, along a path, by supersteps."""
    nodes = edges.select(node="src").concat(edges.select(node="dst")).distinct()
    start = nodes.select("node", far=pl.lit(999, pl.Int64), round=pl.lit(0, pl.Int64))
    first = edges.filter(pl.col("src") == 0)
    workset = first.select(node="dst", far=pl.lit(1, pl.Int64), round=pl.lit(1, pl.Int64))

    def step(solution: rr.Collection, heard: rr.Collection) -> Any:
        seen = heard.map_batches(slowly, {"node": int, "far": int, "round": int})
        best = seen.group_by("node").agg(far=rr.min("far"), round=rr.min("round"))
        known = best.join(solution.rename({"round": "then"}), on="node", suffix="_now")
        better = known.filter(pl.col("far") < pl.col("far_now")).select("node", "far", "round")
        moved = better.join(edges, left_on="node", right_on="src")
        return better, moved.select(
            node="dst", far=pl.col("far") + pl.col("node") % 3, round=pl.col("round") + 1
        )

    return start.iterate_delta(
        workset, key="node", body=step, mode="superstep", maintain="restart", name="steps"
    )


LOOPS = {"bulk": bulk, "delta": delta}


def program(loop: str) -> rr.Dataflow:
    flow = rr.Dataflow("saved")
    edges = flow.input("edges", {"src": int, "dst": int})
    flow.output("out", LOOPS[loop](edges))
    return flow


def edges_of(loop: str) -> Rows:
    if loop == "delta":
        return [(at, at + 1) for at in range(ROUNDS + 3)]
    return [(at, (at * by + 1) % NODES) for at in range(NODES) for by in (3, 7)]


def first_epoch(run: Any, loop: str) -> None:
    """An epoch before the one with the loop that takes long: it changes nothing in the end."""
    run.insert("edges", [(1, 0)])
    run.commit()
    run.delete("edges", [(1, 0)])


def expected(loop: str) -> Rows:
    with program(loop).run() as run:
        run.insert("edges", edges_of(loop))
        run.commit()
        return sorted(run.read("out").rows())


def live(loop: str, path: str) -> None:
    """What a process does that dies in a round of its second epoch."""
    with program(loop).run(checkpoint=path, every=EVERY, workers=2) as run:
        first_epoch(run, loop)
        run.insert("edges", edges_of(loop))
        run.commit()
    raise AssertionError("it was to die")


@pytest.fixture(scope="module")
def died(tmp_path_factory: Any) -> Callable[[str], Path]:
    """Makes a path at which a process has died in round 15 of 20, on two workers."""
    paths: dict[str, Path] = {}

    def die(loop: str) -> Path:
        if loop not in paths:
            path = tmp_path_factory.mktemp("died") / "path"
            said = f"from {__name__} import live; live({loop!r}, {str(path)!r})"
            environment = {
                **os.environ, "ROUND": "0.06", "DEED": "die", "DEED_IN": "15", "FLAG": f"{path}.flag"
            }  # fmt: skip
            ended = subprocess.run(
                [sys.executable, "-c", said],
                env=environment, check=False, capture_output=True, timeout=120,
            )  # fmt: skip
            assert ended.returncode == 9, ended.stderr.decode()
            paths[loop] = path
        return paths[loop]

    return die


@pytest.fixture
def kept(died: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of such a path."""

    def copied(loop: str) -> Path:
        shutil.copytree(died(loop), tmp_path / "path")
        return tmp_path / "path"

    return copied


def resumed(run: Any) -> list[int]:
    return [event["round"] for event in run.events("loop resumed")]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_run_that_resumes_goes_on_in_the_round_that_was_saved(
    kept: Callable[[str], Path], loop: str, workers: int
) -> None:
    path = kept(loop)
    saved = newest(open_storage(path))
    assert saved is not None
    (at,) = [each.round for each in saved.loops.values()]
    assert 1 <= at <= 15
    with program(loop).run(checkpoint=path, every=EVERY, workers=workers) as run:
        assert resumed(run) == [at]
        assert sorted(run.read("out").rows()) == expected(loop)
    assert not list((path / "rounds").iterdir())


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("which", ["record", "part"])
def test_what_is_damaged_is_not_used(
    kept: Callable[[str], Path], how: Callable[[Path], None], which: str, caplog: Any
) -> None:
    path = kept("bulk")
    records = sorted((path / "rounds").glob("*.json"))
    saved = newest(open_storage(path))
    assert saved is not None
    files = [each for loop in saved.loops.values() for worker in loop.workers for each in worker]
    for file in records if which == "record" else [path / files[-1].file]:
        how(file)
    with (
        caplog.at_level(logging.WARNING),
        program("bulk").run(checkpoint=path, every=EVERY, workers=2) as run,
    ):
        assert sorted(run.read("out").rows()) == expected("bulk")
        assert len(resumed(run)) == (which == "part")  # it was tried
    if which == "part":
        assert "epoch 1 begins its loops anew" in caplog.text
    assert not list((path / "rounds").iterdir())


def test_the_record_before_serves_where_the_last_one_is_torn(
    kept: Callable[[str], Path],
) -> None:
    path = kept("bulk")
    *others, last = sorted((path / "rounds").glob("*.json"))
    assert others, "a record replaces the files of the one before, but does not delete them"
    saved = newest(open_storage(path))
    assert saved is not None
    truncated(last)
    with program("bulk").run(checkpoint=path, every=EVERY, workers=2) as run:
        (at,) = resumed(run)
        assert at < saved.loops["steps:rounds/"].round
        assert sorted(run.read("out").rows()) == expected("bulk")


def test_an_epoch_that_is_refused_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ROUND": "0.06", "DEED": "raise", "DEED_IN": "15"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FLAG", str(tmp_path / "flag"))
    with program("bulk").run(checkpoint=tmp_path / "path", every=EVERY, workers=2) as run:
        first_epoch(run, "bulk")
        run.insert("edges", [(at, at) for at in range(9)])
        with pytest.raises(OperatorFailed, match="a deed"):
            run.commit()
        assert run.events("loop saved")
        monkeypatch.setenv("ROUND", "0")
        run.delete("edges", [(1, 0)])
        run.insert("edges", edges_of("bulk"))
        run.commit()
        assert not resumed(run)
        assert sorted(run.read("out").rows()) == expected("bulk")
    assert not list((tmp_path / "path" / "rounds").iterdir())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_worker_that_dies_in_a_round_does_not_cost_the_rounds_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    want = expected(loop)
    for name, value in {"ROUND": "0.2", "DEED": "die", "DEED_IN": "15"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FLAG", str(tmp_path / "flag"))
    with program(loop).run(
        on="processes", checkpoint=tmp_path / "path", every=EVERY, workers=2
    ) as run:
        first_epoch(run, loop)
        run.insert("edges", edges_of(loop))
        run.commit()
        assert run.events("lost")
        (at,) = resumed(run)
        assert at >= 2
        assert sorted(run.read("out").rows()) == want
        last = run.rounds("steps").to_polars()
        assert last.filter(pl.col("epoch") == 1)["round"].min() >= at - 1


def test_another_program_does_not_go_on_there(kept: Callable[[str], Path]) -> None:
    path = kept("bulk")
    flow = rr.Dataflow("saved")
    edges = flow.input("edges", {"src": int, "dst": int})
    flow.output("out", bulk(edges.filter(pl.col("src") > 3)))
    with flow.run(checkpoint=path, every=EVERY, rebuild=True) as run:
        assert not resumed(run)
    assert not list((path / "rounds").iterdir())


def test_a_distance_in_epochs_saves_no_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUND", "0.05")
    with program("bulk").run(checkpoint=tmp_path / "path", every=1) as run:
        run.insert("edges", edges_of("bulk"))
        run.commit()
        assert not run.events("loop saved")
