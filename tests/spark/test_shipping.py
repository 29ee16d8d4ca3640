"""What is shipped is unpacked once, and removed when nobody uses it any more. No Spark here."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import cloudpickle

import riverrun
from riverrun.spark import shipping
from riverrun.state.entries import labels
from riverrun.state.preparing import carry

PROGRAM = """
import sys, cloudpickle
load = cloudpickle.load(open(sys.argv[1], "rb"))
print(load("riverrun.version", "__file__"))
"""

COUNTING = """
import sys, cloudpickle
load, kernels = cloudpickle.load(open(sys.argv[1], "rb"))
load("riverrun.state.kernels.machine_code", "CARRIED").update(kernels)
import polars as pl, riverrun as rr
flow = rr.Dataflow("words")
words = flow.input("words", {"word": pl.String})
flow.output("counts", words.group_by("word").count())
with flow.run() as run:
    run.insert("words", [("sea",), ("sea",)])
    run.commit()
    assert run.read("counts").rows() == [("sea", 2)]
from riverrun.state.kernels import compiling
for kind in ("cache_hits", "cache_misses"):
    print(sum(sum(getattr(each.stats, kind).values()) for each in compiling.KERNELS.values()))
print(rr.__file__)
"""


def test_a_shipped_package_loads_the_kernels_that_came_along(tmp_path: Path) -> None:
    with mock.patch.object(riverrun, "__version__", "of another day"):
        shipped = cloudpickle.dumps((shipping.loader(ship=True), carry(labels())))
    (tmp_path / "load").write_bytes(shipped)
    ran = subprocess.run(
        [sys.executable, "-c", COUNTING, str(tmp_path / "load")],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    loaded, compiled, package = ran.stdout.split()
    assert int(loaded) > 5
    assert compiled == "0"
    assert Path(package).is_relative_to(tmp_path)
    assert list(tmp_path.rglob("*.kernel")) == []


def test_folders_of_other_versions_are_removed_when_nobody_uses_them(tmp_path: Path) -> None:
    with mock.patch.object(riverrun, "__version__", "of another day"):
        (tmp_path / "load").write_bytes(cloudpickle.dumps(shipping.loader(ship=True)))
    temporary = tmp_path / "temporary"
    mine = f"riverrun-code-{os.getuid()}-"
    used, unused, fresh, half = (
        temporary / name
        for name in (mine + "a" * 32, mine + "b" * 32, mine + "c" * 32, "riverrun-unpack-dead")
    )
    for folder in (used, unused, fresh, half):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
        if folder != fresh:
            os.utime(folder, (0, 0))
    (temporary / (mine + "d" * 32)).symlink_to(tmp_path)
    lock = os.open(used, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    environment = {**os.environ, "TMPDIR": str(temporary)}
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "load")],
            env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        shipped = Path(ran.stdout.strip()).parents[1]
        assert shipped.parent == temporary
        assert shipped.name == mine + shipping.package()[0]
    os.close(lock)
    left = {path.name for path in temporary.iterdir()}
    assert left == {used.name, fresh.name, shipped.name, mine + "d" * 32}
    assert tmp_path.exists()
