"""Law: an epoch that was never acknowledged and fails again is refused by who resumes; an acknowledged one stays.

The process dies at each point between the record of an epoch and what comes after: before anything of the epoch was
done, when it has failed, when its refusal is being written, when that is there; when it is complete and not
acknowledged, when it is acknowledged. Dying is `kill -9` in a process of its own, or a storage that is cut off here.
"""

from __future__ import annotations

import atexit
import logging
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.runtime.local import LocalCluster
from riverrun.storage.acknowledged import Note, note_name, put_note, read_notes
from riverrun.storage.store import open_storage
from tests.chaos.besieged import ProcessRun
from tests.runtime.launchers import Threads
from tests.soaking import some

ROOT = Path(__file__).parents[3]
DOWN: set[int] = set()
"""Rows for which a service outside is down: nothing of it is part of the program."""


def check(row: Any) -> Any:
    if row["k"] == 13 or row["k"] in DOWN:
        raise ValueError(f"{row['k']} is not allowed")
    return [row]


def program(name: str = "n") -> rr.Dataflow:
    flow = rr.Dataflow("poison")
    rows = flow.input("rows", {"k": pl.Int64}).flat_map(check, {"k": pl.Int64})
    flow.output("passed", rows)
    if name != "n":
        flow.output(name, rows.filter(pl.col("k") > 0))
    return flow


@pytest.fixture(autouse=True)
def service_up() -> Any:
    DOWN.clear()
    yield
    DOWN.clear()


def insert(run: Any, *keys: int) -> None:
    run.insert("rows", [(key,) for key in keys])


def abandon(run: Any) -> None:
    """The process is gone: nothing is closed or noted any more."""
    run._cluster._acknowledger = None
    run._cluster._lease.stop()


def refused(run: Any) -> list[int]:
    return [event["epoch"] for event in run.events("refused")]


DIE = """
import os, signal, sys
import riverrun.storage.log as log, riverrun.engine.coordinator.coordinator as c, riverrun.storage.acknowledged as a
from tests.run.durability.test_poison import program, insert

point, path, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
run = program().run(checkpoint=path, every=None, workers=workers)
insert(run, 1); run.commit()
encode, refuse = log.encode_record, c.Coordinator._refuse
append, note = log.Log.append, a.Acknowledger.note
def dying_encode(record):
    if record.header["kind"] == "refused" and point == "refusing": die()
    return encode(record)
def dying_append(self, position, header, inputs):
    append(self, position, header, inputs)
    if header["kind"] == point: die()
def dying_refuse(self, epoch, error):
    if point == "failed": die()
    refuse(self, epoch, error)
def dying_note(self, epoch):
    if point == "complete": die()
    note(self, epoch)
    if point == "noted": die()
log.encode_record, log.Log.append = dying_encode, dying_append
c.Coordinator._refuse, a.Acknowledger.note = dying_refuse, dying_note
if point in ("complete", "noted", "acknowledged"):
    insert(run, 2); run.commit(); die()
if point == "several":
    for keys in ((2,), (13,), (3,), (13,)):
        insert(run, *keys); run.commit(wait=False)
    die()
insert(run, 2, 13); run.commit(); print("not reached")
"""

POINTS = {  # what is there after the next start, and which epochs were refused then
    "epoch": ([(1,)], [1]),
    "failed": ([(1,)], [1]),
    "refusing": ([(1,)], [1]),
    "refused": ([(1,)], []),
    "several": ([(1,), (2,), (3,)], [2, 4]),
    "complete": ([(1,), (2,)], []),
    "noted": ([(1,), (2,)], []),
    "acknowledged": ([(1,), (2,)], []),
}


def killed(point: str, path: Path, workers: int = 1) -> None:
    """What a killed process leaves. A process takes a second to start, so that each is killed once, and then copied."""
    shutil.copytree(_killed_once(point, workers), path, dirs_exist_ok=True)


@cache
def _killed_once(point: str, workers: int) -> Path:
    path = Path(tempfile.mkdtemp(prefix="riverrun-killed-"))
    atexit.register(shutil.rmtree, path)
    done = subprocess.run(
        [sys.executable, "-c", DIE, point, str(path), str(workers)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == -9, done.stderr
    assert "not reached" not in done.stdout
    return path


@pytest.mark.sampled
@pytest.mark.parametrize("point", some(POINTS, 3))
def test_killed_at_each_point_between_record_and_refusal(
    point: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed(point, tmp_path, 2 if point in ("refusing", "several") else 1)
    rows, gone = POINTS[point]
    with caplog.at_level(logging.WARNING, "riverrun"), program().run(checkpoint=tmp_path) as run:
        assert run.read("passed").rows() == rows
        assert refused(run) == gone
        assert sum("never acknowledged" in line for line in caplog.messages) == len(gone)
        completed = run.completed
        insert(run, 5)
        run.commit()
        assert (5,) in run.read("passed").rows()
        insert(run, 13)
        with pytest.raises(rr.OperatorFailed):
            run.commit()
    with program().run(checkpoint=tmp_path) as run:  # the refusal is for good, and said once
        assert refused(run) == []
        assert run.completed == completed + 1
        assert run.read("passed").rows() == [*rows, (5,)]


@pytest.mark.parametrize("point", ["noted", "acknowledged"])
def test_an_epoch_that_was_acknowledged_and_now_fails_stops_the_start(
    point: str, tmp_path: Path
) -> None:
    """Also by the very same program, and though no record after it says that it was complete."""
    killed(point, tmp_path)
    DOWN.add(2)
    for _ in range(2):
        with pytest.raises(rr.CheckpointError) as caught:
            program().run(checkpoint=tmp_path)
        assert caught.value.code == "run.not_repeatable"
        assert caught.value.fields["epoch"] == 1
        assert "2 is not allowed" in str(caught.value)
    DOWN.clear()
    with program().run(checkpoint=tmp_path) as run:
        assert run.read("passed").rows() == [(1,), (2,)]


def test_one_that_was_complete_and_never_acknowledged_is_refused_where_it_fails(
    tmp_path: Path,
) -> None:
    killed("complete", tmp_path)
    DOWN.add(2)
    with program().run(checkpoint=tmp_path) as run:
        assert (run.completed, run.read("passed").rows(), refused(run)) == (1, [(1,)], [1])


@pytest.mark.parametrize("earlier", [False, True])
def test_who_says_so_drops_what_was_acknowledged_and_the_number_stays(
    tmp_path: Path, earlier: bool
) -> None:
    with program().run(checkpoint=tmp_path, every=None) as run:
        sink = run.write_parquet("passed", tmp_path / "sink")
        for key in (1, 2, 3):
            insert(run, key)
            run.commit()
        sink.wait()
    DOWN.add(2 if earlier else 3)
    with program().run(checkpoint=tmp_path, every=None, skip_failing=True) as run:
        assert run.read("passed").rows() == ([(1,), (3,)] if earlier else [(1,), (2,)])
        assert [event["acknowledged"] for event in run.events("refused")] == [True]
        assert run.completed == 3  # the sink, and whoever committed, know the epoch by its number
        insert(run, 4)
        run.commit()
        assert run.epoch == 3
    with program().run(checkpoint=tmp_path, every=None) as run:
        assert run.completed == 4
        sink = run.write_parquet("passed", tmp_path / "sink")
        sink.wait()
        files = sorted((tmp_path / "sink").glob("*.parquet"))
        # What was written of the epoch that was dropped stays; the epoch that follows is not taken for it.
        assert pl.concat(map(pl.read_parquet, files))["k"].to_list() == [1, 2, 3, 4]


def test_of_several_that_nobody_waited_for_each_is_refused_by_itself(tmp_path: Path) -> None:
    run = program().run(checkpoint=tmp_path, every=None)
    for keys in ((1,), (2, 13), (3,), (13,), (4,), (13,)):
        insert(run, *keys)
        run.commit(wait=False)
    abandon(run)
    with program().run(checkpoint=tmp_path, workers=2) as run:
        assert run.read("passed").rows() == [(1,), (3,), (4,)]
        assert refused(run) == [1, 3, 5]
        assert run.completed == 5  # the number of the last one is free, the others have followers


def test_a_refusal_that_is_not_there_does_not_make_those_before_it_doubtful(tmp_path: Path) -> None:
    killed("refusing", tmp_path)
    DOWN.add(1)
    with pytest.raises(rr.CheckpointError) as caught:
        program().run(checkpoint=tmp_path)
    assert caught.value.fields["epoch"] == 0


# ---- where no exact note is to be had


@pytest.mark.parametrize("changed", [False, True])
def test_in_doubt_the_same_program_refuses_and_another_one_stops(
    tmp_path: Path, changed: bool
) -> None:
    killed("refusing", tmp_path)
    storage = open_storage(tmp_path)
    (note,) = read_notes(storage)
    assert note.is_exact
    storage.delete([note_name(note.owner)])
    put_note(storage, Note(note.owner, note.epoch, "another start of the machine"))
    if not changed:
        with program().run(checkpoint=tmp_path) as run:
            assert refused(run) == [1]
        return
    with pytest.raises(rr.CheckpointError) as caught:
        program("more").run(checkpoint=tmp_path)
    assert caught.value.code == "run.not_repeatable"
    with program("more").run(checkpoint=tmp_path, skip_failing=True) as run:
        assert run.read("more").rows() == [(1,)]


def test_with_an_exact_note_another_program_refuses_too(tmp_path: Path) -> None:
    killed("refusing", tmp_path)
    with program("more").run(checkpoint=tmp_path) as run:
        assert (refused(run), run.read("more").rows()) == ([1], [(1,)])


@pytest.mark.parametrize("what", [b"", b"{}", b"\xff\xfe" * 20, b"null", b'{"owner": 0}'])
def test_a_damaged_note_tells_nothing(tmp_path: Path, what: bytes) -> None:
    killed("refusing", tmp_path)
    (file,) = (tmp_path / "acknowledged").iterdir()
    file.write_bytes(what)
    with program().run(checkpoint=tmp_path) as run:
        assert refused(run) == [1]


def test_a_run_that_is_closed_has_noted_all_it_has_acknowledged() -> None:
    """In an object store too, where notes are put in the background."""
    from obstore.store import MemoryStore

    from riverrun.storage.store import Storage

    storage = Storage(MemoryStore())
    flow = program()
    run = flow.run(checkpoint=storage, every=None)  # type: ignore[arg-type]
    insert(run, 1)
    run.commit()
    run.close()
    assert [note.epoch for note in read_notes(storage)] == [1]
    DOWN.add(1)
    with pytest.raises(rr.CheckpointError) as caught:
        flow.run(checkpoint=storage)  # type: ignore[arg-type]
    assert caught.value.code == "run.not_repeatable"


def test_workers_elsewhere_refuse_it_too(tmp_path: Path) -> None:
    killed("refusing", tmp_path)
    with ProcessRun(program().plan, Threads, checkpoint=tmp_path, workers=2) as run:
        assert (run.completed, run.read("passed").rows(), refused(run)) == (1, [(1,)], [1])
        insert(run, 2)
        run.commit()
    with program().run(checkpoint=tmp_path) as run:
        assert run.read("passed").rows() == [(1,), (2,)]


def test_streams_repeat_the_batch_of_an_epoch_that_is_refused_on_resume(tmp_path: Path) -> None:
    """What a stream logged with an epoch counts only with the epoch: the query brings the batch again."""
    cluster = program().run(checkpoint=tmp_path, every=None)._cluster
    assert isinstance(cluster, LocalCluster)
    import pyarrow as pa

    for number, key in enumerate((1, 13)):
        rows = pa.record_batch({"k": [key], "diff": [1]})
        cluster.submit({"rows": rows}, {"stream": ["query", number]})
    assert cluster._lease is not None
    cluster._lease.stop()
    with program().run(checkpoint=tmp_path) as run:
        assert run._cluster.offsets == {"stream": [["query", 0]]}
