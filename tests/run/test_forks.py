"""A run in a forked process: refused with a reason, and harmless."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soaking import some

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")

PROGRAM = """
import faulthandler, gc, glob, os, signal, sys, tempfile, time
import polars as pl, riverrun as rr

mode, path = sys.argv[1:]
tempfile.tempdir = path + "-spilled"
os.makedirs(tempfile.tempdir)


def program():
    flow = rr.Dataflow("forked")
    rows = flow.input("rows", {"k": pl.Int64})
    keyed = flow.input("keyed", {"id": pl.Int64, "v": pl.Int64}, key="id")
    flow.output("n", rows.group_by("k").count("n"))
    flow.output("v", keyed)
    return flow


run = program().run(checkpoint=path, memory="64 KB")
run.insert("rows", pl.DataFrame({"k": range(5000)}))
first = run.commit()
sink = run.for_each_epoch("n", lambda changes, epoch: None)
result = run.read("n")
CALLS = {
    "insert": lambda: run.insert("rows", [(1,)]),
    "delete": lambda: run.delete("rows", [(1,)]),
    "upsert": lambda: run.upsert("keyed", [(1, 2)]),
    "commit": run.commit,
    "accept": lambda: run.commit(wait=False),
    "wait": first.wait,
    "read": lambda: run.read("n"),
    "changes": lambda: run.changes("n"),
    "status": run.status,
    "events": run.events,
    "rounds": lambda: run.rounds("none"),
    "checkpoint": run.checkpoint,
    "scale": lambda: run.scale(2),
    "rollback": run.rollback,
    "follow": lambda: run.for_each_epoch("n", print),
    "write": lambda: run.write_parquet("n", path + "-sink"),
    "await": lambda: run.await_termination(1),
    "sink": lambda: sink.wait(timeout=1),
    "frontier": lambda: run.frontier("none"),
}
sys.stdout.flush()
pid = os.fork()
if not pid:
    faulthandler.dump_traceback_later(200, exit=True)
    if mode == "calls":
        for name, call in CALLS.items():
            try:
                call()
                print("not refused:", name)
            except rr.RiverrunError as error:
                if error.code != "run.forked" or str(os.getppid()) not in error.message:
                    print("another reason:", name, error)
        sink.close()
        run.close()
        print("copied rows:", len(result), repr(run)[:4])
        sys.stdout.flush()
        os._exit(0)
    if mode == "exit":
        sys.exit(0)
    if mode == "with":
        with run:
            raise SystemExit(0)
    del run, first, sink, result, CALLS
    gc.collect()
    time.sleep(0.3)
    sys.exit(0)
begun = time.monotonic()
_, status = os.waitpid(pid, 0)
print("child:", status, time.monotonic() - begun < 150, os.path.exists(path + "/owner.json"))
run.insert("rows", [(3,)])
run.commit()
print(dict(run.read("n").rows())[3], run.read("n")["n"].count(1))
run.close()
run = program().run(checkpoint=path)
print(dict(run.read("n").rows())[3])
run.close()
"""


@pytest.mark.sampled
@pytest.mark.parametrize("mode", some(["calls", "exit", "with", "del"], 2))
def test_a_forked_child(mode: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, mode, str(tmp_path / "path")],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    if mode == "calls":
        assert lines.pop(0) == "copied rows: 5000 <Run"
    assert lines == ["child: 0 True True", "2 4999", "2"], done.stdout + done.stderr
