"""Temporary folders: gone with their process, or collected by the next one; nobody else's are touched."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl
import pytest

import riverrun as rr
from riverrun.storage import scratch
from riverrun.storage.scratch import Scratch, collect_abandoned

HELD = """
import os, signal, sys
from riverrun.storage.scratch import Scratch
folder = Scratch()
(folder.path / "spilled.arrow").write_bytes(b"x" * 1000)
print(folder.path, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(scratch, "_SWEPT", [])
    return tmp_path


def started(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_a_folder_is_collected_when_its_process_was_killed_and_not_before(temporary: Path) -> None:
    child = started(HELD)
    try:
        assert child.stdout is not None
        folder = Path(child.stdout.readline().strip())
        assert folder.parent == temporary
        assert collect_abandoned() == []
        assert (folder / "spilled.arrow").exists()
        child.kill()
        child.wait()
        assert (folder / "spilled.arrow").exists()
        assert collect_abandoned() == [folder]
        assert list(temporary.iterdir()) == []
    finally:
        child.kill()
        child.communicate()


def test_a_folder_goes_with_its_object_and_at_the_end(temporary: Path) -> None:
    folder = Scratch()
    (folder.path / "sub").mkdir()
    (folder.path / "sub" / "file").write_text("x")
    del folder
    gc.collect()
    assert list(temporary.iterdir()) == []
    closed = Scratch()
    closed.close()
    closed.close()
    child = started(HELD)
    child.communicate("\n", timeout=120)
    assert child.returncode == 0
    assert list(temporary.iterdir()) == []


def test_a_forked_child_removes_nothing_and_keeps_the_folder_alive(temporary: Path) -> None:
    folder = Scratch()
    pid = os.fork()
    if pid == 0:
        folder.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert folder.path.is_dir()
    assert collect_abandoned() == []
    folder.close()


def test_what_is_not_a_folder_of_ours_is_left_alone(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, host = scratch._machine()
    elsewhere = temporary / "riverrun-scratch-0123456789ab-ba9876543210-x"
    elsewhere.mkdir()  # of another machine, in a folder that both see
    victim = temporary / "victim"
    victim.mkdir()
    (victim / "file").write_text("precious")
    link = temporary / f"riverrun-scratch-{kernel}-{host}-link"
    link.symlink_to(victim)
    plain = temporary / f"riverrun-scratch-{kernel}-{host}-file"
    plain.write_text("x")
    other = temporary / "riverrun-something"
    other.mkdir()
    fresh = temporary / "riverrun-making-abc"
    fresh.mkdir()  # about to be locked
    assert collect_abandoned() == []
    assert {path.name for path in temporary.iterdir()} == {
        elsewhere.name, "victim", link.name, plain.name, other.name, fresh.name,
    }  # fmt: skip
    assert (victim / "file").read_text() == "precious"
    os.utime(fresh, (0, 0))
    assert collect_abandoned() == [fresh]
    strange = temporary / f"riverrun-scratch-{kernel}-{host}-strange"
    strange.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert collect_abandoned() == []  # it belongs to somebody else


def test_a_link_inside_is_removed_and_not_followed(temporary: Path) -> None:
    kernel, host = scratch._machine()
    victim = temporary / "victim"
    victim.mkdir()
    (victim / "file").write_text("precious")
    left = temporary / f"riverrun-scratch-{kernel}-{host}-x"
    left.mkdir()
    (left / "link").symlink_to(victim)
    assert collect_abandoned() == [left]
    assert (victim / "file").read_text() == "precious"


def test_without_locks_folders_work_and_are_not_collected(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    folder = Scratch()
    assert collect_abandoned() == []
    folder.close()
    assert list(temporary.iterdir()) == []


SPILLS = """
import os, signal, sys
import polars as pl, riverrun as rr
flow = rr.Dataflow("s")
flow.output("a", flow.input("a", {"k": pl.Int64, "v": pl.String}))
run = flow.run(checkpoint=sys.argv[1], memory="100k", every=None)
run.insert("a", pl.DataFrame({"k": range(20_000), "v": ["x" * 200] * 20_000}))
run.commit()
print("spilled", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_killed_run_leaves_next_to_nothing_and_the_next_run_collects_it(temporary: Path) -> None:
    (temporary / "t").mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary / "t")}
    command = [sys.executable, "-c", SPILLS, str(temporary / "kept")]
    killed = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert b"spilled" in killed.stdout
    left = list((temporary / "t").iterdir())
    assert len(left) == 1
    assert size(temporary / "t") == 0  # what was spilled has no name, and went with the process
    tempfile.tempdir = str(temporary / "t")
    (left[0] / "half.arrow").write_bytes(b"x" * 100)  # what was being spilled has one
    flow = rr.Dataflow("other")
    flow.output("a", flow.input("a", {"k": pl.Int64}))
    with flow.run():
        deadline = time.monotonic() + 60
        while list((temporary / "t").iterdir()) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert list((temporary / "t").iterdir()) == []
