"""Collecting deletes what nothing names, and never what somebody will."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from riverrun.errors import TransportError
from riverrun.storage.checkpoint import Checkpoints, StatePart
from riverrun.storage.manifest import Manifest, block_name, manifest_name
from riverrun.storage.store import Storage
from tests.oracle import Row, Time
from tests.storage.saving import Watched, contents, grow, ranges, state


@pytest.mark.usefixtures("small_blocks")
def test_collect_deletes_what_nothing_names_and_nothing_else(storage: Watched) -> None:
    rng, spine, checkpoints = random.Random(20), state(20, epochs=1), Checkpoints(storage)
    saved: dict[int, tuple[Manifest, dict[Time, list[Row]]]] = {}
    storage.put("blocks/readme.txt", b"not ours")
    storage.put("manifests/readme.txt", b"not ours")
    storage.put("else/000000000001.json", b"not ours")
    for number in range(1, 10):
        grow(spine, rng, 1)
        saved[number] = (checkpoints.save({"state": spine.view()}), contents(spine.view()))
    files = set(storage.names("blocks"))
    kept = saved[9][0].files | saved[8][0].files | saved[7][0].files
    gone = files - set(kept) - {"blocks/readme.txt"}
    assert gone
    deleted = Checkpoints(storage).collect(retain=3)
    assert set(deleted) == gone | {manifest_name(n) for n in range(1, 7)}
    assert set(storage.names("blocks")) == {*kept, "blocks/readme.txt"}
    assert Checkpoints(storage).numbers() == [7, 8, 9]
    assert "manifests/readme.txt" in storage.names("manifests")
    assert storage.names("else") == ["else/000000000001.json"]
    for number in (7, 8, 9):
        assert contents(Checkpoints(storage).restore("state", number=number)) == saved[number][1]
    assert Checkpoints(storage).collect(retain=3) == []
    with pytest.raises(ValueError, match="at least one"):
        checkpoints.collect(retain=0)


@pytest.mark.usefixtures("small_blocks")
def test_a_checkpoint_being_written_loses_nothing(storage: Watched) -> None:
    spine, coordinator = state(21), Checkpoints(storage)
    rng = random.Random(22)
    for _ in range(12):
        grow(spine, rng, 1)
        number = coordinator.next_number()
        view = spine.view()
        parts = [Checkpoints(storage).write({"state": view}, number, [r]) for r in ranges(2)]
        coordinator.collect(retain=1)
        Checkpoints(storage).collect(retain=2)
        coordinator.publish(number, parts)
        coordinator.collect(retain=1)
        assert coordinator.numbers() == [number]
        assert contents(Checkpoints(storage).restore("state")) == contents(view)


def test_what_was_written_and_never_published_is_not_taken_for_saved(storage: Watched) -> None:
    """A worker outlives a coordinator that gave up; its successor collected what it had not heard of."""
    worker, coordinator = Checkpoints(storage), Checkpoints(storage)
    old, view = state(23).view(), state(24).view()
    coordinator.save({"state": old})
    abandoned = worker.write({"state": view}, 2)
    coordinator.save({"state": old})
    assert set(coordinator.collect()) >= {f.name for f in _files(abandoned)}
    third = coordinator.publish(3, [worker.write({"state": view}, 3)])
    assert all(name.startswith("blocks/000000000003-") for name in third.files)
    assert contents(Checkpoints(storage).restore("state")) == contents(view)


def _files(part: StatePart) -> list[Any]:
    return [
        block.file for shares in part.shares.values() for share in shares for block in share.blocks
    ]


def test_a_state_that_went_back_is_saved_again(storage: Watched) -> None:
    """Blocks of an old checkpoint, in use again, are written again: their files may be collected."""
    checkpoints = Checkpoints(storage)
    checkpoints.save({"state": state(25).view()})
    for seed in (26, 27):
        checkpoints.save({"state": state(seed).view()})
    back = Checkpoints(storage).restore("state", number=1)
    part = checkpoints.write({"state": back}, 4)
    checkpoints.collect(retain=1)
    checkpoints.publish(4, [part])
    assert contents(Checkpoints(storage).restore("state")) == contents(back)


def test_torn_manifests_are_collected_when_they_are_old(storage: Watched) -> None:
    spine, checkpoints = state(28, epochs=1), Checkpoints(storage)
    for _ in range(4):
        grow(spine, random.Random(1), 1)
        checkpoints.save({"state": spine.view()})
    for number in (2, 4):
        Storage.put(storage, manifest_name(number), b"{")
    deleted = Checkpoints(storage).collect(retain=1)
    assert {name for name in deleted if "manifests" in name} == {manifest_name(1), manifest_name(2)}
    assert Checkpoints(storage).numbers() == [3, 4]
    # Of 4, which is torn, nothing is known; its files go with the next that is published.
    assert any(name.startswith("blocks/000000000004-") for name in storage.names("blocks"))
    latest = Checkpoints(storage).save({"state": spine.view()})
    Checkpoints(storage).collect(retain=1)
    assert storage.names("blocks") == sorted(latest.files)
    Storage.put(storage, manifest_name(5), b"{")
    assert Checkpoints(storage).collect() == []  # none is whole: nothing is known to be unused


def test_a_collector_that_is_interrupted_leaves_no_manifest_without_its_files(
    storage: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(storage)
    for seed in range(4):
        checkpoints.save({"state": state(seed).view()})
    delete, allowed = Storage.delete, 5

    def stop(self: Storage, names: Any) -> None:
        nonlocal allowed
        for name in names:
            if allowed == 0:
                raise TransportError("storage.unreachable", "cannot delete: told so")
            allowed -= 1
            delete(self, [name])

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "delete", stop)
        with pytest.raises(TransportError):
            checkpoints.collect(retain=1)
    for number in Checkpoints(storage).numbers():
        assert Checkpoints(storage).restore("state", number=number)
    checkpoints.collect(retain=1)
    assert len(storage.names("blocks")) == len(checkpoints.load(4).files)


def test_what_a_killed_process_left_on_disk_is_collected(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    manifest = checkpoints.save({"state": state().view()})
    names = {number: f"{block_name(number, 'a' * 32)}#1" for number in (1, 2)}
    for name in names.values():
        (tmp_path / name).write_bytes(b"half a fi")
    assert checkpoints.collect() == [names[1]]
    assert (tmp_path / names[2]).exists()  # it may be on its way
    assert not (tmp_path / names[1]).exists()
    assert all((tmp_path / name).exists() for name in manifest.files)


def test_a_reader_finds_the_newest_while_others_publish_and_collect(storage: Watched) -> None:
    checkpoints = Checkpoints(storage)
    view = state().view()
    checkpoints.save({"state": view})
    reader = Checkpoints(storage)
    numbers = reader.numbers

    def late() -> list[int]:
        """As seen by a reader who looked before three others were published and it was collected."""
        seen = numbers()
        reader.numbers = numbers  # type: ignore[method-assign]
        for _ in range(3):
            checkpoints.save({"state": view})
        checkpoints.collect(retain=1)
        return seen

    reader.numbers = late  # type: ignore[method-assign]
    latest = reader.latest()
    assert latest is not None
    assert latest.number == 4
