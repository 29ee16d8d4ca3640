"""Storages: errors of the store are ours, and bytes are whole."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from riverrun.errors import TransportError
from riverrun.storage import directory
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.directory import Directory
from riverrun.storage.store import open_storage
from tests.storage.saving import contents, refused, state


def test_synced_files_are_the_same_files(tmp_path: Path) -> None:
    storage = open_storage(f"file://{tmp_path}/a/b", synced=True)
    view = state().view()
    Checkpoints(storage).save({"state": view})
    assert contents(Checkpoints(tmp_path / "a/b").restore("state")) == contents(view)


def test_errors_of_the_store_are_ours(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(lambda: open_storage(tmp_path / "file"), "checkpoint.refused")
    refused(lambda: open_storage("hdfs://host/path"), "checkpoint.refused")
    refused(lambda: open_storage("s3://bucket", no_such_setting=1), "checkpoint.refused")
    nobody = open_storage(
        "s3://bucket/path",
        endpoint="http://127.0.0.1:1",
        access_key_id="a",
        secret_access_key="b",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    actions: list[Callable[[], object]] = [
        lambda: nobody.get("x"),
        lambda: nobody.create("x", b""),
        lambda: nobody.names("x"),
    ]
    for action in actions:
        assert isinstance(refused(action, "storage.unreachable"), TransportError)
    for storage in (open_storage(tmp_path / "store"), open_storage("memory:///")):
        refused(lambda s=storage: s.get("nothing"), "checkpoint.missing")  # type: ignore[misc]
        refused(lambda s=storage: s.put("../above", b""), "checkpoint.refused")  # type: ignore[misc]
        storage.delete(["nothing"])
    local = open_storage(tmp_path / "store")
    for action in (lambda: local.map("../file"), lambda: local.delete(["../file"])):
        refused(action, "checkpoint.refused")
    assert (tmp_path / "file").exists()


@pytest.mark.parametrize("late", [False, True])
def test_a_directory_that_is_moved_meanwhile_is_not_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Moved before it is opened, nothing is written; after that, what is written is in it, wherever it is."""
    kept, away = tmp_path / "kept", tmp_path / "away"
    storage = open_storage(kept)
    owner, name = (directory, "_fill") if late else (Directory, "check")
    original = getattr(owner, name)

    def moving(*given: Any) -> None:
        original(*given)
        kept.rename(away)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, moving)
        if late:
            assert storage.create("manifests/1", b"one")
        else:
            refused(lambda: storage.create("manifests/1", b"one"), "storage.unreachable")
    assert not kept.exists()
    assert list(away.rglob("*#*")) == []
    away.rename(kept)
    assert storage.names("manifests") == ["manifests/1"] * late


def test_what_is_taken_away_while_it_is_written_is_no_file_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an outage, and tried again."""
    storage = open_storage(tmp_path / "kept")
    (tmp_path / "kept" / "blocks").symlink_to(tmp_path / "no disk")
    for action in (lambda: storage.put("blocks/1", b""), lambda: storage.create("blocks/1", b"")):
        assert isinstance(refused(action, "storage.unreachable"), TransportError)

    def gone(*given: Any) -> None:
        for path in (tmp_path / "kept").glob("*#*"):
            path.unlink()

    monkeypatch.setattr(directory, "_fill", gone)
    for action in (lambda: storage.put("owner", b""), lambda: storage.create("owner", b"")):
        assert isinstance(refused(action, "storage.unreachable"), TransportError)


@pytest.mark.parametrize("fresh", [True, False])
def test_readers_see_a_whole_file_or_none(tmp_path: Path, fresh: bool) -> None:
    place = Directory(tmp_path)
    whole = [bytes([n]) * 300_000 for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        wrote = list(pool.map(lambda data: place.write("a/b", data, fresh=fresh), whole))
        assert (tmp_path / "a/b").read_bytes() in whole
    assert sum(wrote) == (1 if fresh else 8)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b"]
    if fresh:
        assert (tmp_path / "a/b").read_bytes() == whole[wrote.index(True)]


def test_bytes_that_lie_crooked_are_set_straight(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage("memory:///")
    crooked = memoryview(bytes(8) + b"abcdefgh" * 4)[3:]

    class Answer:
        def bytes(self) -> memoryview:
            return crooked

    monkeypatch.setattr("riverrun.storage.store.obstore.get", lambda *_: Answer())
    data = storage.get("x")
    assert data.address % 8 == 0
    assert data.to_pybytes() == bytes(crooked)
