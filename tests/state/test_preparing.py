"""What is missing is compiled by several processes before a plan runs, said once, and not compiled again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import riverrun as rr
from riverrun.operators.join import Join
from riverrun.plan.kernels_needed import kernels_of
from riverrun.state import entries, preparing
from riverrun.state.entries import ROWS, labels
from riverrun.state.preparing import carry, compiled_files, missing

# Small ones. Bounds are checked, so that files that are there already do not fit.
FEW = """
import json, logging, sys
from riverrun.state import preparing
from riverrun.state.entries import labels
from riverrun.state.kernels import compiling, gathering, values
logging.basicConfig(format="%(message)s", level=logging.WARNING)
FEW = [each for each in labels() if each.rpartition("-")[0].endswith(("is_ascending", "values.mix", "values.unmix"))]
"""


def run(code: str, cache: Path, **environment: str) -> tuple[list[str], str]:
    done = subprocess.run(
        [sys.executable, "-c", FEW + code],
        env={
            **os.environ,
            "NUMBA_CACHE_DIR": str(cache),
            "NUMBA_BOUNDSCHECK": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


PREPARE = "print(len(preparing.make_ready(FEW)), len(preparing.missing(FEW)))\n"


def test_what_is_missing_is_compiled_by_helpers_once(tmp_path: Path) -> None:
    here = "print(sum(len(each.overloads) for each in compiling.KERNELS.values()))\n"
    assert run("print(len(preparing.missing(FEW)))", tmp_path)[0] == ["3"]
    out, said = run(PREPARE + here, tmp_path)
    assert out == ["3", "0", "0"]  # nothing was compiled in this process
    begun, ended = said.splitlines()
    assert begun.startswith("compiling 3 kernels for this machine, once")
    assert ended.startswith("kernels are ready, after ")
    called = "values.mix(__import__('numpy').uint64(3))\nprint(sum(values.mix.stats.cache_hits.values()))\n"
    out, said = run(PREPARE + called, tmp_path)
    assert out == ["0", "0", "1"]
    assert said == ""


def test_a_file_that_is_damaged_is_compiled_again_by_whoever_looks(tmp_path: Path) -> None:
    run(PREPARE, tmp_path)
    (file, *_) = tmp_path.glob("riverrun/*/*.kernel")
    file.write_bytes(file.read_bytes()[:-1])
    anew = "print(len(preparing.missing(FEW)), len(preparing.missing(FEW, anew=True)))\n"
    again = "preparing.make_ready(FEW, progress=lambda done, of: None)\n"
    assert run(anew + again + anew, tmp_path)[0] == ["0", "1", "0", "0"]


def test_where_nothing_can_be_kept_it_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    (tmp_path / "cache").mkdir(mode=0o777)
    (tmp_path / "cache").chmod(0o777)
    out, said = run(PREPARE, tmp_path / "cache")
    assert out == ["3", "3"] or out == ["3", "0"]
    assert said.startswith("each process compiles its kernels for itself")


def test_without_helpers_kernels_are_compiled_when_they_are_called(tmp_path: Path) -> None:
    code = "sys.executable = '/nothing/here'\n" + PREPARE
    call = "print(int(values.unmix(__import__('numpy').uint64(values.mix(__import__('numpy').uint64(3))))))\n"
    out, _ = run(code + call, tmp_path)
    assert out[-1] == "3"


def test_a_kernel_that_is_not_ready_is_said_once(tmp_path: Path) -> None:
    call = (
        "import numpy\nx = numpy.uint64(values.mix(numpy.uint64(3)))\nprint(int(values.unmix(x)))\n"
    )
    out, said = run(call, tmp_path)
    assert out == ["3"]
    assert said.count("compiling kernels that are not ready") == 1


def test_the_interrupted_ends_its_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    class Helper:
        def poll(self) -> None:
            return None

        def terminate(self) -> None:
            ended.append("told")

        def wait(self, timeout: float | None = None) -> int:
            ended.append("waited for")
            return 0

    def interrupt(done: int, of: int) -> None:
        raise KeyboardInterrupt

    label = labels()[0]
    monkeypatch.setattr(preparing, "_start", lambda absent: Helper())
    monkeypatch.setattr(preparing, "_cores", lambda: 2)
    with pytest.raises(KeyboardInterrupt):
        preparing._compile([label, label], interrupt)
    assert sorted(ended) == ["told", "told", "waited for", "waited for"]


def test_all_are_ready_before_tests_start() -> None:
    """`make test` has compiled them: test processes that compile the same ones would wait for each other."""
    assert missing(labels()) == []
    assert len(compiled_files()) == len(entries.LABELS)
    carried = carry(labels(*Join.kernels))
    assert len(carried) == len(labels(*Join.kernels))
    assert all(name.endswith(".kernel") and "/" in name for name in carried)


def test_a_run_calls_what_its_plan_names() -> None:
    """What a plan names is enough for a first answer: nothing is compiled in the middle of it."""
    code = """
import json, polars as pl, riverrun as rr
from riverrun.plan.kernels_needed import kernels_of
from riverrun.state.kernels import compiling
flow = rr.Dataflow("pairs")
left = flow.input("left", {"k": pl.Int64, "a": pl.String})
right = flow.input("right", {"k": pl.Int64, "b": pl.Float64})
both = left.join(right, on="k")
flow.output("both", both)
flow.output("sums", both.group_by("a").agg(total=rr.sum("b"), least=rr.min("b"), number=rr.count()))
with flow.run() as run:
    for epoch in range(12):
        run.insert("left", [(k, f"a{k % 3}") for k in range(epoch, epoch + 5)])
        run.insert("right", [(k, k / 2) for k in range(epoch, epoch + 5)])
        run.commit()
        rows = run.read("sums").rows(), run.changes("both").rows()
print(json.dumps([sorted(set(compiling.used()) - set(kernels_of(run.plan)))]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[[]]\n"


def test_a_plan_of_few_operators_needs_less() -> None:
    flow = rr.Dataflow("words")
    words = flow.input("words", {"word": pl.String})
    flow.output("all", words)
    few = kernels_of(flow.plan)
    assert set(labels(*ROWS)) <= set(few) < set(labels())
