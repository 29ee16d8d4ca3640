"""Files at a checkpoint path that no run wrote, or that somebody changed: named and passed over, or refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import riverrun as rr
from riverrun.cli import main
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.manifest import LAST
from riverrun.storage.store import checksum, open_storage

DEEP = b"[" * 100_000 + b"]" * 100_000
OWNER = {
    "identity": "x", "application": "a", "host": "h", "boot": "b", "namespace": "n", "pid": 1, "started": "1",
    "since": 3.0, "term": 1, "beat": 0, "version": 1,
}  # fmt: skip


def words() -> rr.Dataflow:
    flow = rr.Dataflow("words")
    flow.output("counts", flow.input("words", {"word": pl.String}).group_by("word").count())
    return flow


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A path with two checkpoints and an epoch that neither covers."""
    with words().run(checkpoint=tmp_path, every=None) as run:
        for at in range(3):
            run.insert("words", [("sea",)])
            run.commit()
            if at < 2:
                run.checkpoint()
    return tmp_path


def write(name: str | bytes, data: bytes) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        target = os.fsencode(path) + b"/" + os.fsencode(name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(data)

    return act


def owner(**changed: object) -> Callable[[Path], None]:
    return write("owner.json", json.dumps(OWNER | changed).encode())


PASSED_OVER: dict[str, Callable[[Path], None]] = {
    "owner: a list": write("owner.json", b"[]"),
    "owner: nested deep": write("owner.json", DEEP),
    "owner: not UTF-8": write("owner.json", b"\xff\xfe"),
    "owner: empty": write("owner.json", b""),
    "owner: pid": owner(pid="abc"),
    "owner: pid below": owner(pid=-1),
    "owner: pid above": owner(pid=1 << 70),
    "owner: since": owner(since=1e300),
    "owner: since, not a number": write(
        "owner.json", json.dumps(OWNER | {"since": float("nan")}).encode()
    ),
    "owner: term": owner(term="a"),
    "owner: identity": owner(identity={"a": []}),
    "owner: application": owner(application=None),
    "manifest: nested deep": write("manifests/000000000003.json", DEEP),
    "manifest: nested": write(
        "manifests/000000000003.json", b'{"checksum": "", "a": ' + b"[" * 900 + b"]" * 900 + b"}"
    ),
    "manifest: the last number": write("manifests/999999999999.json", b"{}"),
    "manifest: a longer number": write(f"manifests/{10**18}.json", b"{}"),
    "log: not UTF-8": write(b"log/\xff\xfe.record", b"x"),
    "log: not UTF-8, unfinished": write(b"log/\xff\xfe.record#1", b"x"),
    "log: a newline": write("log/a\nb", b"x"),
    "log: a folder": lambda path: (path / "log" / "0000000000000099.record").mkdir(),
    "log: a link in a circle": lambda path: (path / "log" / "loop").symlink_to("loop"),
    "log: a link to nowhere": lambda path: (path / "log" / "0000000000000099.record").symlink_to(
        "/nowhere"
    ),
    "log: a pipe": lambda path: os.mkfifo(path / "log" / "pipe"),
    "manifests: not UTF-8": write(b"manifests/\xff.json", b"x"),
    "blocks: not UTF-8": write(b"blocks/\xff.arrow", b"x"),
    "blocks: the last number": write(f"blocks/999999999999-{'a' * 32}.arrow", b"x"),
    "parcels: not UTF-8": write(b"parcels/1.\xff", b"x"),
    "the path: not UTF-8": write(b"\xff", b"x"),
}


@pytest.mark.parametrize("name", PASSED_OVER)
def test_what_is_not_ours_is_passed_over(
    kept: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    PASSED_OVER[name](kept)
    stored = rr.read_checkpoint(kept)
    assert stored.rows() in ([("sea", 2)], [("sea", 3)])
    with words().run(checkpoint=kept, every=None, retain=2) as run:
        assert run.read("counts").rows() == [("sea", 3)]
        for _ in range(3):
            run.insert("words", [("sea",)])
            run.commit()
            run.checkpoint()
        assert run.read("counts").rows() == [("sea", 6)]
        assert run.status()["checkpoint"]["error"] is None
    if name.startswith("owner: "):
        assert "owner.json" in caplog.text
    if name.startswith("manifest: "):
        assert "manifests/" in caplog.text
    with words().run(checkpoint=kept) as run:
        assert run.read("counts").rows() == [("sea", 6)]


@pytest.mark.parametrize(
    "name",
    ["manifest: nested deep", "manifest: the last number", "log: not UTF-8", "log: a newline"],
)
def test_looking_at_a_path_with_strangers_ends_well(kept: Path, name: str) -> None:
    PASSED_OVER[name](kept)
    assert main(["checkpoints", str(kept)]) == 0
    assert main(["checkpoints", str(kept), "--verify"]) == (name == "manifest: nested deep")


def test_an_owner_that_is_a_folder_is_refused_by_name(kept: Path) -> None:
    (kept / "owner.json").mkdir()
    with pytest.raises(rr.CheckpointError) as caught:
        words().run(checkpoint=kept)
    assert caught.value.code == "checkpoint.refused"
    assert "owner.json" in caught.value.message


def test_when_numbers_are_used_up_it_is_said(kept: Path) -> None:
    (kept / "manifests" / f"{LAST:012d}.json").write_text("{}")
    with (
        words().run(checkpoint=kept, every=None) as run,
        pytest.raises(rr.CheckpointError) as caught,
    ):
        run.checkpoint()
    assert caught.value.code == "checkpoint.numbers"
    assert f"manifests/{LAST:012d}.json" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "about",
    [
        [],
        {"epoch": "x"},
        {"epoch": -1},
        {"epoch": 1, "position": [], "owner": 0},
        {"fingerprint": 3},
        {"outputs": []},
        {"kept": 1.5},
    ],
    ids=str,
)
def test_a_manifest_that_says_strange_things_of_itself_is_left_out(
    kept: Path, about: object, caplog: pytest.LogCaptureFixture
) -> None:
    path = kept / "manifests" / "000000000002.json"
    body = json.loads(path.read_bytes())
    del body["checksum"]
    body["about"] = about if not isinstance(about, dict) else body["about"] | about
    body["checksum"] = checksum(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
    path.write_text(json.dumps(body))
    with words().run(checkpoint=kept, every=None) as run:
        assert run.read("counts").rows() == [("sea", 3)]
    assert "manifests/000000000002.json" in caplog.text


def test_a_torn_manifest_does_not_stop_the_collecting_of_the_log(kept: Path) -> None:
    (kept / "manifests" / "000000000003.json").write_text("torn")
    with words().run(checkpoint=kept, every=None, retain=2) as run:
        before = len(list((kept / "log").iterdir()))
        for _ in range(2):
            run.insert("words", [("sea",)])
            run.commit()
            run.checkpoint()
        assert run.status()["checkpoint"]["failures"] == 0
    assert len(list((kept / "log").iterdir())) <= before
    assert len(Checkpoints(open_storage(kept)).newest(9)) == 2
