"""No crash at any file operation loses what was answered for, counts it twice, or leaves the path unusable."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow.parquet as pq
import pytest
from deltalake.table import TableMerger

import riverrun as rr
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.inspect import look, verify
from tests.chaos.storage.crashes import Disk, Snapshot, bury
from tests.soaking import SOAK, draws, first_seed

EPOCHS = 6


def program() -> rr.Dataflow:
    flow = rr.Dataflow("crashing")
    rows = flow.input("rows", {"k": pl.Int64, "v": pl.Int64})
    flow.output("sums", rows.group_by("k").agg(total=rr.sum("v"), count=rr.count()))
    return flow


def fed(epoch: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """What an epoch inserts, and what it deletes."""
    inserted = [(at % 3, 10 * epoch + at) for at in range(3)]
    deleted = [(0, 10 * (epoch - 2))] if epoch >= 2 else []
    return inserted, deleted


def oracle(epochs: int) -> Counter[tuple[int, ...]]:
    """The result as of so many epochs, from scratch."""
    live: Counter[tuple[int, int]] = Counter()
    for epoch in range(epochs):
        inserted, deleted = fed(epoch)
        live.update(inserted)
        live.subtract(deleted)
    keys = {k for (k, _), n in live.items() if n}
    return Counter(
        (
            k,
            sum(v * n for (key, v), n in live.items() if key == k),
            sum(n for (key, _), n in live.items() if key == k),
        )
        for k in keys
    )


def feed(run: rr.Run, epoch: int) -> None:
    inserted, deleted = fed(epoch)
    run.insert("rows", inserted)
    if deleted:
        run.delete("rows", deleted)
    run.commit()


def live(root: Path, disk: Disk, **options: Any) -> None:
    """The program whose file operations are enumerated: epochs, checkpoints, collection, a sink, a clean end."""
    disk.answered = disk.answered or 0
    with program().run(checkpoint=root / "kept", every=None, retain=1, **options) as run:
        sink = None if options else run.write_parquet("sums", root / "out")
        for epoch in range(run.completed, EPOCHS):
            feed(run, epoch)
            disk.answered = epoch + 1
            if epoch % 2:
                run.checkpoint()
        if sink is not None:
            sink.wait(timeout=60)


FEW_EPOCHS = 4
TABLES: tuple[tuple[str, dict[str, str]], ...] = (
    ("changes", {}),
    ("rewritten", {"mode": "mirror"}),
    ("merged", {"mode": "mirror", "key": "k"}),
)


def into_tables(root: Path, disk: Disk) -> None:
    """The same with sinks to Delta tables, of all kinds; each epoch is written before the next one comes."""
    disk.answered = 0
    calls = (
        (deltalake, ("write_deltalake",)),
        (deltalake.DeltaTable, ("create", "merge", "update_incremental")),
        (TableMerger, ("execute",)),
    )
    with ExitStack() as watching:
        for owner, names in calls:
            watching.enter_context(disk.around(owner, *names))
        run = watching.enter_context(program().run(checkpoint=root / "kept", every=None, retain=1))
        sinks = [run.write_delta("sums", root / name, **how) for name, how in TABLES]
        for epoch in range(run.completed, FEW_EPOCHS):
            feed(run, epoch)
            disk.answered = epoch + 1
            if epoch == 1:
                run.checkpoint()
            if epoch != 2:  # then two epochs wait to be written
                for sink in sinks:
                    sink.wait(timeout=60)


def check_tables(path: Path, answered: int, told: str) -> None:
    """Whatever the crash left: sinks go on in their tables, which come to the result, each epoch once."""
    if (path / "kept").is_dir():
        bury(path / "kept")
    with program().run(checkpoint=path / "kept", every=None, retain=1) as run:
        done = run.completed
        assert answered <= done <= answered + 1, told
        for epochs in (done, FEW_EPOCHS + 2):
            sinks = [run.write_delta("sums", path / name, **how) for name, how in TABLES]
            for epoch in range(run.completed, epochs):
                feed(run, epoch)
            for sink, (name, how) in zip(sinks, TABLES, strict=True):
                sink.wait(timeout=60)
                sink.close()
                table = deltalake.DeltaTable(path / name).to_pyarrow_table().to_pylist()
                found: Counter[tuple[int, ...]] = Counter()
                for row in table:
                    found[row["k"], row["total"], row["count"]] += row.get("diff", 1)
                    assert how or row["epoch"] < epochs, told
                assert Counter({row: n for row, n in found.items() if n}) == oracle(epochs), (
                    told,
                    name,
                )


def taken_over(root: Path, disk: Disk) -> None:
    """The same by two runs: the second takes the path away from the first, which is alive."""
    disk.answered = 0
    first = program().run(checkpoint=root / "kept", every=None, retain=1)
    for epoch in range(3):
        feed(first, epoch)
        disk.answered = epoch + 1
        if epoch == 1:
            first.checkpoint()
    with program().run(checkpoint=root / "kept", every=None, retain=1, take_over=True) as second:
        with pytest.raises(rr.RiverrunError):
            feed(first, 99)
        for epoch in range(second.completed, EPOCHS):
            feed(second, epoch)
            disk.answered = epoch + 1
            if epoch % 2:
                second.checkpoint()
        first.close()


def summed(folder: Path) -> Counter[tuple[int, ...]]:
    total: Counter[tuple[int, ...]] = Counter()
    for path in folder.glob("*.parquet"):
        for row in pq.read_table(path).to_pylist():
            total[row["k"], row["total"], row["count"]] += row["diff"]
    return +total


def check(path: Path, answered: int, told: str, *, sink: bool = True) -> None:
    """Whatever the crash left: the path is usable, has what was answered for and at most one epoch more, once each."""
    if (path / "kept").is_dir():
        bury(path / "kept")
    with program().run(checkpoint=path / "kept", every=None, retain=1) as run:
        done = run.completed
        assert answered <= done <= answered + 1, told
        assert Counter(run.read("sums").rows()) == oracle(done) if done else True, told
        writing = run.write_parquet("sums", path / "out") if sink else None
        for epoch in range(done, EPOCHS + 2):
            feed(run, epoch)
            run.checkpoint()
        assert Counter(run.read("sums").rows()) == oracle(EPOCHS + 2), told
        if writing is not None:
            writing.wait(timeout=60)
            assert summed(path / "out") == oracle(EPOCHS + 2), told
    left = sorted(str(each.relative_to(path)) for each in path.rglob("*"))
    assert not [name for name in left if "#" in name or name.endswith(".tmp")], (told, left)
    checkpoints = Checkpoints(path / "kept")
    assert look(checkpoints).unreferenced == (), told
    assert verify(checkpoints).damages == (), told


def chosen(snapshots: list[Snapshot], count: int, seed: int) -> list[Snapshot]:
    """All snapshots, or so many of them, drawn."""
    if count >= len(snapshots):
        return snapshots
    drawn = random.Random(seed).sample(range(len(snapshots)), count)
    return [snapshots[at] for at in sorted(drawn)]


def enumerate_crashes(
    tmp_path: Path,
    play: Any,
    count: int,
    *,
    power: bool = False,
    checked: Any = None,
    **options: Any,
) -> list[Snapshot]:
    root, copies = tmp_path / "root", tmp_path / "copies"
    root.mkdir()
    copies.mkdir()
    disk = Disk(root, copies, power=power)
    with disk.watched():
        play(root, disk, **options)
    seed, sink = first_seed(3), (root / "out").is_dir()
    for snapshot in chosen(disk.snapshots, count, seed):
        told = f"SEED={seed}: {snapshot.when} operation {snapshot.operation}, {snapshot.what}"
        shutil.rmtree(root)
        snapshot.path.rename(root)  # a run is known by its path
        if checked is None:
            check(root, snapshot.answered, told, sink=sink)
        else:
            checked(root, snapshot.answered, told)
    return disk.snapshots


ALL = 1_000_000


def test_a_crash_at_any_file_operation(tmp_path: Path) -> None:
    snapshots = enumerate_crashes(tmp_path, live, draws(40, sample=150, soak=ALL))
    kinds = {snapshot.what.partition(" ")[0] for snapshot in snapshots}
    assert kinds >= {"open", "write", "link", "replace", "unlink", "mkdir"}
    assert {snapshot.when for snapshot in snapshots} == {"before", "torn", "after"}
    assert any("out/" in snapshot.what for snapshot in snapshots)


def test_a_crash_around_any_call_that_writes_delta_tables(tmp_path: Path) -> None:
    count = draws(5, sample=25, soak=ALL)
    snapshots = enumerate_crashes(tmp_path, into_tables, count, checked=check_tables)
    calls = {(s.what, s.when) for s in snapshots if s.what.endswith("called")}
    for name in ("create", "write_deltalake", "execute"):
        assert {when for what, when in calls if what == f"{name} called"} == {
            "before",
            "halfway",
            "after",
        }
    assert any("kept/log" in snapshot.what for snapshot in snapshots)


def test_a_crash_at_any_file_operation_of_a_takeover(tmp_path: Path) -> None:
    enumerate_crashes(tmp_path, taken_over, draws(30, sample=100, soak=ALL))


def test_a_power_cut_at_any_file_operation(tmp_path: Path) -> None:
    """Only what was synced survives, and that is enough: bytes before names, names before answers."""
    snapshots = enumerate_crashes(
        tmp_path, live, draws(40, sample=150, soak=ALL), power=True, synced=True
    )
    assert any(snapshot.what.startswith("fsync kept/log/") for snapshot in snapshots)
    assert any(snapshot.what == "fsync kept/log" for snapshot in snapshots)


def test_without_synced_a_power_cut_loses_what_was_answered_for(tmp_path: Path) -> None:
    """The harness sees what it should: without fsync, nothing is left of the log."""
    root, copies = tmp_path / "root", tmp_path / "copies"
    root.mkdir()
    copies.mkdir()
    disk = Disk(root, copies, power=True)
    with disk.watched():
        live(root, disk, rebuild=False)
    last = disk.snapshots[-1]
    assert last.answered == EPOCHS
    assert not (last.path / "kept" / "log").exists()


DIES = """
import sys
from pathlib import Path
from tests.chaos.storage.crashes import Disk
from tests.chaos.storage.test_crashes import live
root = Path(sys.argv[1])
disk = Disk(root, root, crash=(int(sys.argv[2]), sys.argv[3]))
try:
    with disk.watched():
        live(root, disk)
finally:
    print(len(disk.operations), flush=True)
"""


@pytest.mark.soak
def test_processes_that_die_at_file_operations(tmp_path: Path) -> None:
    """The same with real deaths: a process ends in the middle of an operation, and others take its path."""
    seed = first_seed(5)
    drawn = random.Random(seed)
    counted = subprocess.run(
        [sys.executable, "-c", DIES, str(tmp_path / "whole"), "-1", "before"],
        capture_output=True, text=True, timeout=600, check=False, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    operations = int(counted.stdout.split()[-1])
    assert operations > 50
    cases = [(at, when) for at in range(operations) for when in ("before", "torn", "after")]
    died = 0
    for at, when in drawn.sample(cases, draws(3, sample=6, soak=min(80, len(cases)))):
        root = tmp_path / f"{at}-{when}"
        root.mkdir()
        ended = subprocess.run(
            [sys.executable, "-c", DIES, str(root), str(at), when],
            capture_output=True, text=True, timeout=600, check=False, cwd=Path(__file__).parents[3],
        )  # fmt: skip
        assert ended.returncode in (0, 9), ended.stderr
        died += ended.returncode == 9
        done = EPOCHS if ended.returncode == 0 else 0
        check_after(root, done, f"SEED={seed}: {when} operation {at}")
        shutil.rmtree(root)
    assert died or SOAK == ""


def check_after(root: Path, answered: int, told: str) -> None:
    """As `check`, where nobody could tell what had been answered for."""
    with program().run(checkpoint=root / "kept", every=None, retain=1) as run:
        done = run.completed
        assert answered <= done <= EPOCHS, told
        assert not done or Counter(run.read("sums").rows()) == oracle(done), told
    check(root, done, told)


def test_oracle_and_program_agree(tmp_path: Path) -> None:
    with program().run() as run:
        for epoch in range(EPOCHS):
            feed(run, epoch)
            assert Counter(run.read("sums").rows()) == oracle(epoch + 1)
    assert os.listdir(tmp_path) == []
