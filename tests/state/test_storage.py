"""Storages: errors of the store are ours, and bytes are whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from riverrun.errors import TransportError
from riverrun.state.checkpoint import Checkpoints
from riverrun.state.storage import open_storage
from tests.state.saving import contents, refused, state


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


def test_bytes_that_lie_crooked_are_set_straight(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage("memory:///")
    crooked = memoryview(bytes(8) + b"abcdefgh" * 4)[3:]

    class Answer:
        def bytes(self) -> memoryview:
            return crooked

    monkeypatch.setattr("riverrun.state.storage.obstore.get", lambda *_: Answer())
    data = storage.get("x")
    assert data.address % 8 == 0
    assert data.to_pybytes() == bytes(crooked)
