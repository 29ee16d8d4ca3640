"""A path that is full, read-only, damaged, in use, of another version: said, and mended where it can be."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.engine.messages import Parcel
from riverrun.errors import CheckpointError, PlanError, RiverrunError, TransportError
from riverrun.runtime.uploads import Uploads
from riverrun.storage.acknowledged import note_name
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.log import Log
from riverrun.storage.manifest import FORMAT
from riverrun.storage.store import checksum, open_storage
from tests.engine.weather import Weather
from tests.soaking import first_seed

Damage = Callable[[Path], None]


def words(name: str = "words") -> rr.Dataflow:
    flow = rr.Dataflow(name)
    flow.output("counts", flow.input("words", {"word": pl.String}).group_by("word").count())
    return flow


def say(run: Any, *given: str) -> None:
    run.insert("words", [(word,) for word in given])
    run.commit()


def counts(run: Any) -> dict[str, int]:
    return dict(run.read("counts").rows())


def truncated(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def deleted(path: Path) -> None:
    path.unlink()


HOW = [truncated, flipped, deleted]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A path with three checkpoints, and two epochs that none of them covers."""
    with words().run(checkpoint=tmp_path, every=None, retain=3) as run:
        for at in range(3):
            say(run, "sea", f"only-{at}")
            say(run, "sky")
            run.checkpoint()
        say(run, "sea")
        say(run, "end")
    return tmp_path


EXPECTED = {"sea": 4, "sky": 3, "only-0": 1, "only-1": 1, "only-2": 1, "end": 1}


def refused(path: Path, **options: Any) -> RiverrunError:
    with pytest.raises(RiverrunError) as caught:
        words().run(checkpoint=path, **options).close()
    return caught.value


def new_blocks(path: Path, number: int) -> list[Path]:
    """The files that a checkpoint has and those before it do not."""
    checkpoints = Checkpoints(path)
    older = {
        file for n in checkpoints.numbers() if n < number for file in checkpoints.load(n).files
    }
    return [path / name for name in checkpoints.load(number).files if name not in older]


# ---- blocks


@pytest.mark.parametrize("damage", HOW)
def test_a_damaged_block_is_named_and_the_checkpoint_before_is_offered(
    kept: Path, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    bad = new_blocks(kept, 3)[0]
    damage(bad)
    for _ in range(2):  # nothing is started, and nothing is made worse
        error = refused(kept)
        assert error.code == "checkpoint.corrupt"
        assert f"blocks/{bad.name}" in error.message
        assert "checkpoint 3" in error.message
        assert "from_checkpoint=2" in (error.hint or "")
        assert "riverrun checkpoints PATH --verify" in (error.hint or "")
    with words().run(checkpoint=kept, from_checkpoint=2, every=None) as run:
        assert counts(run) == EXPECTED
        assert "checkpoint 2 is taken in place of 3" in caplog.text
        say(run, "more")
    with words().run(checkpoint=kept, every=None) as run:  # and from then on as always
        assert counts(run) == EXPECTED | {"more": 1}
        for at in range(3):
            say(run, f"later-{at}")
            run.checkpoint()
    with words().run(checkpoint=kept, workers=2) as run:
        assert counts(run) == EXPECTED | {"more": 1} | {f"later-{at}": 1 for at in range(3)}
    assert not bad.exists()
    assert unreferenced(kept) == []


def test_going_back_twice_and_further(kept: Path) -> None:
    damaged: set[Path] = set()
    for number, offered in ((3, 2), (2, 1)):
        flipped(new_blocks(kept, number)[0])
        damaged.add(new_blocks(kept, number)[0])
        error = refused(kept)
        assert f"from_checkpoint={offered}" in (error.hint or ""), error
        if number == 3:
            with words().run(checkpoint=kept, from_checkpoint=2, every=None, retain=9) as run:
                assert counts(run) == EXPECTED
    # Number 4 is number 2 once more, and is as damaged.
    with words().run(checkpoint=kept, from_checkpoint=1, every=None, retain=9) as run:
        assert counts(run) == EXPECTED
        say(run, "more")
        assert run.checkpoint() == 6
    assert not damaged & {kept / name for name in Checkpoints(kept).load(6).files}
    with words().run(checkpoint=kept) as run:
        assert counts(run) == EXPECTED | {"more": 1}


def test_a_block_that_all_checkpoints_need(tmp_path: Path) -> None:
    with words().run(checkpoint=tmp_path, every=None) as run:
        say(run, "sea")
        run.checkpoint()
    flipped(new_blocks(tmp_path, 1)[0])
    error = refused(tmp_path)
    assert "no other checkpoint here does without it" in (error.hint or "")


def test_going_back_to_what_is_not_there(kept: Path) -> None:
    error = refused(kept, from_checkpoint=7)
    assert error.code == "checkpoint.missing"
    assert "cannot go back to checkpoint 7: there are: 1, 2, 3" in error.message
    with words().run(checkpoint=kept, from_checkpoint=3) as run:  # the newest: nothing special
        assert counts(run) == EXPECTED
    assert Checkpoints(kept).numbers()[-1] == 3


def test_a_run_whose_worker_is_lost_offers_it_too(kept: Path) -> None:
    with words().run(checkpoint=kept, every=None) as run:
        flipped(new_blocks(kept, 3)[0])
        run._cluster.kill(0)
        with pytest.raises(CheckpointError, match="cannot go on from checkpoint 3") as caught:
            say(run, "more")
        assert "from_checkpoint=2" in str(caught.value)
    with words().run(checkpoint=kept, from_checkpoint=2) as run:
        assert counts(run).items() >= EXPECTED.items()


# ---- manifests, the log, rows


@pytest.mark.parametrize("damage", [truncated, flipped])
def test_a_damaged_manifest_is_left_out_with_a_warning(
    kept: Path, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    damage(kept / "manifests" / "000000000003.json")
    with words().run(checkpoint=kept, every=None) as run:
        assert counts(run) == EXPECTED
        assert "manifests/000000000003.json" in caplog.text
        assert "goes on from checkpoint 2" in caplog.text
        say(run, "more")
        assert run.checkpoint() == 4
    with words().run(checkpoint=kept) as run:
        assert counts(run) == EXPECTED | {"more": 1}


def test_no_manifest_is_whole(kept: Path) -> None:
    with words().run(checkpoint=kept, every=None, retain=2) as run:
        run.checkpoint()
    assert 1 not in Checkpoints(kept).numbers()  # nor is what the log had up to it
    for manifest in (kept / "manifests").iterdir():
        truncated(manifest)
    error = refused(kept)
    assert error.code == "checkpoint.corrupt"
    assert "manifests/000000000003.json" in error.message
    assert "the log does not go back to the beginning" in error.message


@pytest.mark.parametrize("damage", HOW)
def test_a_damaged_record_in_the_middle_of_the_log_is_named_and_refused(
    kept: Path, damage: Damage
) -> None:
    before = sorted((kept / "log").iterdir())
    epochs = [
        path
        for path in before
        if Log(open_storage(kept)).read(number(path)).header["kind"] == "epoch"
    ]
    damage(epochs[-2])
    error = refused(kept)
    assert str(number(epochs[-2])) in error.message
    assert error.code in ("log.corrupt", "log.gap")
    assert error.hint
    assert len(sorted((kept / "log").iterdir())) >= len(before) - 1  # nothing else is touched


def number(record: Path) -> int:
    return int(record.name.partition(".")[0])


def test_a_torn_record_at_the_end_of_the_log_is_left_out_with_a_warning(
    kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    last = max((kept / "log").iterdir())
    truncated(last)
    with words().run(checkpoint=kept) as run:
        assert counts(run) == {word: n for word, n in EXPECTED.items() if word != "end"}
    assert f"log/{last.name}" in caplog.text


def test_a_flipped_bit_in_the_last_record_of_the_log_is_refused(kept: Path) -> None:
    last = max((kept / "log").iterdir())
    flipped(last)
    for _ in range(2):
        error = refused(kept)
        assert error.code == "log.corrupt"
        assert f"log/{last.name}" in error.message
        assert "may have been acknowledged" in error.message
        assert "delete the file" in (error.hint or "")
    last.unlink()  # as the hint says
    with words().run(checkpoint=kept) as run:
        assert counts(run) == {word: n for word, n in EXPECTED.items() if word != "end"}


@pytest.mark.parametrize("damage", HOW)
def test_rows_that_were_handed_in_and_are_damaged_are_named(tmp_path: Path, damage: Damage) -> None:
    flow = words()
    with flow.run(checkpoint=tmp_path) as run:
        say(run, "sea")
        run_input = run._inputs["words"]
        run.insert("words", [("sky",)])
        batch, _ = run_input.gathered()
        run_input.drop()
        (parcel,) = Uploads(9, open_storage(tmp_path)).take_in("0.1", [batch])
        run._cluster.wait(run._cluster.submit({}, parcels={"words": (replace(parcel, holder=0),)}))
        assert isinstance(parcel, Parcel)
        assert counts(run) == {"sea": 1, "sky": 1}
    (file,) = (tmp_path / "parcels").iterdir()
    data = file.read_bytes()
    damage(file)
    error = refused(tmp_path)
    assert f"parcels/{file.name}" in error.message
    assert isinstance(error, CheckpointError)
    file.write_bytes(data)  # a copy was found
    with flow.run(checkpoint=tmp_path) as run:
        assert counts(run) == {"sea": 1, "sky": 1}


# ---- versions, and what else may lie there


def test_a_manifest_of_another_version(kept: Path) -> None:
    path = kept / "manifests" / "000000000003.json"
    body = json.loads(path.read_bytes())
    del body["checksum"]
    body["format"] = FORMAT + 1
    body["checksum"] = checksum(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
    path.write_text(json.dumps(body))
    error = refused(kept)
    assert error.code == "checkpoint.incompatible"
    assert f"has version {FORMAT + 1}, and this Riverrun (" in error.message
    assert "version of Riverrun that wrote it" in (error.hint or "")


def test_a_log_of_another_version(kept: Path) -> None:
    last = max((kept / "log").iterdir())
    last.write_bytes(last.read_bytes().replace(b"riverrun log 2\n", b"riverrun log 12\n", 1))
    error = refused(kept)
    assert error.code == "checkpoint.incompatible"
    assert f"log/{last.name}" in error.message
    assert "version 12, and this Riverrun reads version 2" in error.message
    assert "version of Riverrun that wrote it" in (error.hint or "")


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    for name in ("notes.txt", "data/part-0.parquet", "log/readme", "blocks/x.arrow"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("not ours")
    with words().run(checkpoint=tmp_path, every=None, retain=1) as run:
        for _ in range(3):
            say(run, "sea")
            run.checkpoint()
    with words().run(checkpoint=tmp_path) as run:
        assert counts(run) == {"sea": 3}
    for name in ("notes.txt", "data/part-0.parquet", "log/readme", "blocks/x.arrow"):
        assert (tmp_path / name).read_text() == "not ours"


# ---- one run at a time


def test_a_path_that_is_in_use_is_refused_and_can_be_taken(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    first = words("first").run(checkpoint=tmp_path)
    say(first, "sea")
    threads = set(threading.enumerate())
    error = refused(tmp_path)
    assert error.code == "checkpoint.in_use"
    assert "'first'" in error.message
    assert set(threading.enumerate()) <= threads  # nothing was started
    say(first, "sea")  # and the first one did not notice
    with words().run(checkpoint=tmp_path, take_over=True) as second:
        assert counts(second) == {"sea": 2}
        with pytest.raises(CheckpointError, match="another run has written there"):
            say(first, "sky")
        say(second, "sky")
    first.close()
    with words().run(checkpoint=tmp_path) as run:
        assert counts(run) == {"sea": 2, "sky": 1}
    deadline = time.monotonic() + 10
    while not set(threading.enumerate()) <= before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_run_that_has_ended_does_not_keep_its_path(tmp_path: Path) -> None:
    first = words().run(checkpoint=tmp_path)
    second = words().run(checkpoint=tmp_path, take_over=True)
    with pytest.raises(CheckpointError):
        say(first, "sea")
    second.close()
    words().run(checkpoint=tmp_path).close()  # nobody has closed the first


def test_a_run_that_could_not_start_does_not_keep_its_path(kept: Path) -> None:
    flipped(new_blocks(kept, 3)[0])
    try:
        words().run(checkpoint=kept)
    except CheckpointError:
        words().run(checkpoint=kept, from_checkpoint=2).close()
    else:
        pytest.fail("it starts")


# ---- options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retain": 0}, "retain=0"),
        ({"retain": True}, "retain=True"),
        ({"storage_timeout": 0}, "storage_timeout=0"),
        ({"storage_timeout": "long"}, "storage_timeout='long'"),
        ({"storage_timeout": timedelta(-1)}, "storage_timeout="),
        ({"storage_timeout": float("nan")}, "storage_timeout=nan"),
        ({"take_over": "yes"}, "take_over='yes'"),
        ({"from_checkpoint": 0}, "from_checkpoint=0"),
    ],
)
def test_options_are_looked_at(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match="cannot run with") as caught:
        words().run(checkpoint=tmp_path / "new", **options)
    assert said in caught.value.message
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "option",
    [
        {"storage_timeout": 1},
        {"take_over": True},
        {"from_checkpoint": 1},
        {"every": 5},
        {"every": timedelta(seconds=1)},
        {"retain": 3},
    ],
    ids=str,
)
def test_options_that_need_a_path(option: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="no checkpoint path"):
        words().run(**option)


def test_as_many_checkpoints_are_kept_as_are_wanted(tmp_path: Path) -> None:
    for retain in (4, 1):
        with words().run(checkpoint=tmp_path, every=None, retain=retain) as run:
            for _ in range(6):
                say(run, "sea")
                run.checkpoint()
        assert len(Checkpoints(tmp_path).numbers()) == retain
        assert unreferenced(tmp_path) == []


# ---- disks


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    path = tmp_path / "disk"
    path.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(path)]
    try:
        mounted = subprocess.run(mounting, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"there is no mount: {error}")
    if mounted.returncode:
        pytest.skip(f"no right to mount: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    return ballast


def read_only(disk: Path, yes: bool) -> None:
    how = "remount,ro" if yes else "remount,rw"
    subprocess.run(["mount", "-o", how, str(disk)], check=True)


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_disk_that_cannot_be_written_is_refused_at_the_start(disk: Path, how: str) -> None:
    path = disk / "run"
    path.mkdir()
    ballast = fill(disk) if how == "full" else None
    if how != "full":
        read_only(disk, True)
    error = refused(path)
    assert error.code == "checkpoint.unusable"
    assert str(path) in error.message
    assert "make room there, make it writable" in (error.hint or "")
    if ballast is None:
        read_only(disk, False)
    else:
        ballast.unlink()
    with words().run(checkpoint=path) as run:
        say(run, "sea")


def test_a_path_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    error = refused(tmp_path / "file" / "run")
    assert isinstance(error, CheckpointError)
    assert str(tmp_path / "file" / "run") in error.message


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_disk_that_cannot_be_written_for_a_while(
    disk: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "riverrun")
    with words().run(checkpoint=disk / "run", every=2) as run:
        for at in range(5):
            say(run, "sea", f"word-{at}")
        ballast = fill(disk) if how == "full" else None
        if how != "full":
            read_only(disk, True)

        def mend() -> None:
            deadline = time.monotonic() + 30
            while "the log cannot be written" not in caplog.text and time.monotonic() < deadline:
                time.sleep(0.01)
            if ballast is None:
                read_only(disk, False)
            else:
                ballast.unlink()

        mending = threading.Thread(target=mend)
        mending.start()
        say(run, "sea", "x" * 10_000)  # waits until there is room
        mending.join()
        assert "the log cannot be written" in caplog.text
        assert "it is over" in caplog.text
        assert counts(run)["sea"] == 6
        deadline = time.monotonic() + 40
        while run.status()["checkpoint"]["lag"] > 1:
            assert time.monotonic() < deadline, run.status()
            time.sleep(0.05)
    with words().run(checkpoint=disk / "run") as run:
        assert counts(run)["sea"] == 6


def test_a_full_disk_and_a_storage_timeout(disk: Path) -> None:
    with words().run(checkpoint=disk / "run", storage_timeout=0.5) as run:
        say(run, "sea")
        ballast = fill(disk)
        with pytest.raises(TransportError, match=r"No space left.*") as caught:
            say(run, "x" * 10_000)
        assert caught.value.code == "storage.timeout"
        with pytest.raises(RiverrunError, match="closed"):
            say(run, "sea")
    ballast.unlink()
    with words().run(checkpoint=disk / "run") as run:
        assert counts(run) == {"sea": 1}


# ---- what is left over


def unreferenced(path: Path) -> list[str]:
    """Files at a path that no retained checkpoint needs, and no owner."""
    checkpoints, log = Checkpoints(path), Log(open_storage(path))
    manifests = [checkpoints.load(number) for number in checkpoints.numbers()]
    used = {name for manifest in manifests for name in manifest.files}
    used |= {f"manifests/{manifest.number:012d}.json" for manifest in manifests}
    floor = min(int(manifest.about["position"]) for manifest in manifests)
    for position in log.positions():
        record = log.read(position)
        if record.header["kind"] == "opened":
            last = position
        if position >= floor or record.header["kind"] == "opened":
            used.add(f"log/{position:016d}.record")
        for listed in record.header.get("parcels", {}).values():
            used |= {parcel["file"] for parcel in listed}
    used.add(note_name(last))  # those of owners before are gone
    found = [str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()]
    return sorted(set(found) - used)


WRITER = """
import sys
from tests.run.durability.test_bad_storage import say, words
seed = int(sys.argv[2])
run = words().run(workers=1 + seed % 2, checkpoint=sys.argv[1], every=1 + seed % 3)
print("started", flush=True)
at = 0
while True:
    say(run, "sea", *(f"{seed}-{at}-{n}" for n in range(500)))
    at += 1
    print(at, flush=True)
"""


def test_killed_writers_leave_nothing_behind(tmp_path: Path) -> None:
    seed = first_seed()
    draw, path, committed = random.Random(seed), tmp_path / "run", Counter[str]()
    for life in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(life)],
            stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3],
        )  # fmt: skip
        assert writer.stdout is not None
        assert writer.stdout.readline() == "started\n"
        for _ in range(draw.randint(1, 12)):
            last = writer.stdout.readline()
        time.sleep(draw.random() * 0.05)
        os.kill(writer.pid, signal.SIGKILL)
        committed["sea"] += int(last) + sum(1 for _ in writer.stdout)
        writer.wait()
        writer.stdout.close()
    # What a kill inside a put leaves, and what owners before had been handed and nobody took.
    with words().run(checkpoint=path, every=None) as run:
        ours = Log(open_storage(path)).positions()[-1]
    for name in (
        "manifests/000000000001.json#1", "blocks/000000000001-" + "a" * 32 + ".arrow#1",
        "blocks/000000000001-" + "b" * 32 + ".arrow", f"log/{1:016d}.record#1",
        f"parcels/{ours}.1-0-0-3.arrow", f"parcels/{ours}.2-0-0-3.arrow#1",
    ):  # fmt: skip
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(b"torn")
    with words().run(checkpoint=path, every=None) as run:
        seen = counts(run)["sea"]
        assert seen >= committed["sea"]  # what was answered for, and maybe what was about to be
        assert seen <= committed["sea"] + 3
        for _ in range(3):
            say(run, "end")
            run.checkpoint()
    assert unreferenced(path) == []
    with words().run(checkpoint=path) as run:
        assert counts(run)["end"] == 3


def test_status_is_told_while_another_thread_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weather = Weather(monkeypatch)
    with words().run(checkpoint=tmp_path) as run:
        say(run, "sea")
        assert run.status()["states"]
        weather.away("create", folders=["log/"])
        waiting = threading.Thread(target=lambda: say(run, "sky"))
        waiting.start()
        deadline = time.monotonic() + 30
        while not (status := run.status())["log"]["error"]:
            assert time.monotonic() < deadline
        assert status["log"]["lag"] == 1
        assert waiting.is_alive()
        weather.fine()
        waiting.join()
        assert counts(run) == {"sea": 1, "sky": 1}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_directory_that_goes_away_is_waited_for(tmp_path: Path, workers: int) -> None:
    """As when it is not mounted for a while. Nothing is made in its place, and nothing is lost."""
    kept, away = tmp_path / "kept", tmp_path / "away"
    flow = rr.Dataflow("numbers")
    numbers = flow.input("numbers", {"n": pl.Int64})
    flow.output("counts", numbers.group_by("n").count())
    with flow.run(workers=workers, checkpoint=kept, every=1) as run:
        for _ in range(3):
            run.insert("numbers", [(1,)])
            run.commit()
        kept.rename(away)
        back = threading.Timer(1.5, lambda: away.rename(kept))
        started = time.monotonic()
        back.start()
        run.insert("numbers", [(2,)])
        run.commit()
        assert time.monotonic() - started > 1
        back.join()
        run.insert("numbers", [(3,)])
        run.commit()
        run.checkpoint()
        assert run.read("counts").rows() == [(1, 3), (2, 1), (3, 1)]
    assert not away.exists()
    with flow.run(checkpoint=kept) as run:
        assert run.completed == 5
        assert run.read("counts").rows() == [(1, 3), (2, 1), (3, 1)]


def test_the_log_goes_on_to_keep_all_rows_until_told_otherwise(tmp_path: Path) -> None:
    def program(least: int) -> rr.Dataflow:
        flow = rr.Dataflow("numbers")
        numbers = flow.input("numbers", {"n": pl.Int64})
        flow.output("counts", numbers.filter(pl.col("n") >= least).group_by("n").count())
        return flow

    for keep in (True, None):
        with program(0).run(checkpoint=tmp_path, every=1, keep_inputs=keep) as run:
            for n in range(4):
                run.insert("numbers", [(n,)])
                run.commit()
                run.checkpoint()
    with program(2).run(checkpoint=tmp_path, rebuild=True) as run:
        assert run.read("counts").rows() == [(2, 2), (3, 2)]
    with program(2).run(checkpoint=tmp_path, every=1, keep_inputs=False) as run:
        for n in range(3):
            run.insert("numbers", [(n,)])
            run.commit()
            run.checkpoint()
    with pytest.raises(rr.CheckpointError, match="the log does not have them"):
        program(1).run(checkpoint=tmp_path, rebuild=True)
