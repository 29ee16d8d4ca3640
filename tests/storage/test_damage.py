"""What is torn, truncated, foreign or missing is named and refused, and the checkpoint before remains."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from riverrun.errors import CheckpointError
from riverrun.progress import Antichain
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.manifest import (
    FORMAT,
    Manifest,
    block_name,
    decode_manifest,
    encode_manifest,
    manifest_name,
)
from riverrun.storage.store import Storage, checksum
from tests.storage.saving import Watched, contents, grow, refused, state


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def foreign(_: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    rows = pa.record_batch({"hash": pa.array([1], pa.uint64())})
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "one byte short": lambda data: data[:-1],
    "one byte long": lambda data: data + b"\0",
    "first byte flipped": lambda data: flip(data, 0),
    "middle byte flipped": lambda data: flip(data, len(data) // 2),
    "last byte flipped": lambda data: flip(data, len(data) - 1),
    "zeroed": lambda data: bytes(len(data)),
    "emptied": lambda data: b"",
    "foreign": foreign,
    "missing": lambda data: None,
}


def damage(storage: Storage, name: str, how: str) -> None:
    changed = DAMAGE[how](storage.get(name).to_pybytes())
    if changed is None:
        storage.delete([name])
    else:
        Storage.put(storage, name, changed)


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_block_is_named_and_refused(storage: Watched, how: str) -> None:
    spine = state(15, epochs=2)
    Checkpoints(storage).save({"state": spine.view()})
    before = contents(spine.view())
    spine.advance_since(Antichain([(1,)]))
    spine.compact()
    manifest = Checkpoints(storage).save({"state": spine.view()})
    [name] = manifest.files
    damage(storage, name, how)
    code = "checkpoint.missing" if how == "missing" else "checkpoint.corrupt"
    for mapped in (False, True) if storage.root else (False,):
        error = refused(lambda m=mapped: Checkpoints(storage).restore("state", mapped=m), code)  # type: ignore[misc]
        assert isinstance(error, CheckpointError)
        assert name in error.message
        assert error.fields["file"] == name
        assert ("bytes" in error.message) == (
            how in ("truncated", "one byte short", "one byte long", "emptied", "foreign")
        )
    assert contents(Checkpoints(storage).restore("state", number=1)) == before


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_manifest_is_passed_over_and_named(storage: Watched, how: str) -> None:
    spine = state(16, epochs=2)
    Checkpoints(storage).save({"state": spine.view()})
    before = contents(spine.view())
    grow(spine, random.Random(1), 1)
    Checkpoints(storage).save({"state": spine.view()})
    damage(storage, manifest_name(2), how)
    checkpoints = Checkpoints(storage)
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.number == 1
    if how == "missing":
        assert latest.skipped == ()
    else:
        assert [error.fields["file"] for error in latest.skipped] == [manifest_name(2)]
        refused(lambda: checkpoints.load(2), "checkpoint.corrupt")
    assert contents(checkpoints.restore("state")) == before
    # Life goes on, under a number that was never used.
    number = checkpoints.save({"state": spine.view()}).number
    assert number == (2 if how == "missing" else 3)
    assert Checkpoints(storage).latest().skipped == ()  # type: ignore[union-attr]
    assert contents(Checkpoints(storage).restore("state")) == contents(spine.view())


def test_every_byte_of_a_manifest_counts() -> None:
    manifest = Checkpoints("memory:///").save({"state": state(epochs=1).view()}, {"a": [1, None]})
    name, data = manifest_name(1), encode_manifest(manifest)
    assert decode_manifest(name, data) == manifest
    for at in range(len(data)):
        refused(lambda at=at: decode_manifest(name, data[:at]), "checkpoint.corrupt")  # type: ignore[misc]
        try:
            changed = decode_manifest(name, flip(data, at))
        except CheckpointError:
            continue
        assert changed == manifest, "only white space may change and not be seen"


def remade(manifest: Manifest, change: Callable[[dict[str, Any]], None]) -> bytes:
    """A manifest with a change somebody made on purpose, the checksum along with it."""
    body = json.loads(encode_manifest(manifest))
    del body["checksum"]
    change(body)
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps(body | {"checksum": checksum(canonical)}).encode()


def _block(body: dict[str, Any]) -> dict[str, Any]:
    return body["states"]["state"]["shares"][0]["batches"][0]["blocks"][0]  # type: ignore[no-any-return]


TRICKS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a path above": (lambda b: _block(b).update(file="../secret"), "checkpoint.corrupt"),
    "a path inside": (
        lambda b: _block(b).update(file=f"blocks/../{'0' * 32}.arrow"),
        "checkpoint.corrupt",
    ),
    "a file not finished": (
        lambda b: _block(b).update(file=_block(b)["file"] + "#1"),
        "checkpoint.corrupt",
    ),
    "a file with a line more": (
        lambda b: _block(b).update(file=_block(b)["file"] + "\n"),
        "checkpoint.corrupt",
    ),
    "no schema": (lambda b: b["states"]["state"].pop("schema"), "checkpoint.corrupt"),
    "no states": (lambda b: b.update(states=[]), "checkpoint.corrupt"),
    "no number": (lambda b: b.update(number=None), "checkpoint.corrupt"),
    "another number": (lambda b: b.update(number=7), "checkpoint.corrupt"),
    "times of other lengths": (
        lambda b: b["states"]["state"].update(upper=[[1], [0, 1]]),
        "checkpoint.corrupt",
    ),
    "another format": (lambda b: b.update(format=FORMAT + 1), "checkpoint.incompatible"),
    "another hash": (lambda b: b.update(hash=2), "checkpoint.incompatible"),
    "a share missing": (
        lambda b: b["states"]["state"]["shares"].clear(),
        "checkpoint.incomplete",
    ),
    "rows missing": (lambda b: _block(b).update(rows=3), "checkpoint.corrupt"),
    "hashes missing": (lambda b: _block(b).update(high=_block(b)["low"]), "checkpoint.corrupt"),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_a_manifest_with_tricks_is_refused(storage: Watched, trick: str) -> None:
    change, code = TRICKS[trick]
    manifest = Checkpoints(storage).save({"state": state(epochs=1).view()})
    Storage.put(storage, manifest_name(1), remade(manifest, change))
    refused(lambda: Checkpoints(storage).restore("state", number=1), code)


def test_a_newer_format_is_not_passed_over(storage: Watched) -> None:
    """Falling back silently from what a newer Riverrun wrote would lose data."""
    Checkpoints(storage).save({"state": state().view()})
    second = Checkpoints(storage).save({"state": state().view()})
    Storage.put(
        storage, manifest_name(2), remade(second, lambda body: body.update(format=FORMAT + 1))
    )
    refused(Checkpoints(storage).latest, "checkpoint.incompatible")


def test_the_right_bytes_under_the_name_of_another_block_are_refused(storage: Watched) -> None:
    manifest = Checkpoints(storage).save({"state": state(epochs=1).view()})
    [name] = manifest.files
    other = block_name(1, "0" * 32)
    storage.put(other, storage.get(name).to_pybytes())
    changed = remade(manifest, lambda body: _block(body).update(file=other))
    Storage.put(storage, manifest_name(1), changed)
    error = refused(lambda: Checkpoints(storage).restore("state"), "checkpoint.corrupt")
    assert error.fields["file"] == other


@pytest.mark.parametrize("uid", ["", "../" + "0" * 29, "0" * 31, "G" * 32, "0" * 32 + "\n"])
def test_the_name_of_a_block_is_checked(uid: str) -> None:
    with pytest.raises(ValueError, match="32 hex digits"):
        block_name(1, uid)
    with pytest.raises(ValueError, match="12 digits"):
        block_name(10**12, "0" * 32)
