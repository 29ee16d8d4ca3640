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

PROGRAM = """
import sys, cloudpickle
load = cloudpickle.load(open(sys.argv[1], "rb"))
print(load("riverrun.version", "__file__"))
"""


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
