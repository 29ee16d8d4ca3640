"""Rows that are handed in before an epoch names them."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from riverrun.engine.messages import Parcel
from riverrun.errors import CheckpointError, RiverrunError, TransportError
from riverrun.runtime.uploads import Uploads
from riverrun.storage.records import PARCELS
from riverrun.storage.store import Storage, open_storage


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def numbers(uploads: Uploads, parcels: list[Parcel]) -> list[int]:
    return [
        number
        for parcel in parcels
        for batch in uploads.rows(parcel)
        for number in batch.column(0).to_pylist()
    ]


@pytest.fixture(params=[None, "memory:///"])
def storage(request: pytest.FixtureRequest) -> Storage | None:
    return None if request.param is None else open_storage(request.param)


@pytest.mark.parametrize("parcel", [1, 20, 1 << 20])
@pytest.mark.parametrize("budget", [0, 40, 1 << 20])
def test_rows_come_out_as_they_went_in(storage: Storage | None, parcel: int, budget: int) -> None:
    uploads = Uploads(3, storage, parcel=parcel, budget=budget)
    handed = [rows(1, 2), rows(), rows(3), rows(4, 5, 6)]
    parcels = uploads.take_in("1-0-0", handed)
    assert len(parcels) == {1: 3, 20: 2, 1 << 20: 1}[parcel]
    assert sum(each.rows for each in parcels) == 6
    assert {each.holder for each in parcels} == {3}
    assert len({each.name for each in parcels}) == len(parcels)
    for _ in range(2):  # an epoch may be done again
        assert numbers(uploads, parcels) == [1, 2, 3, 4, 5, 6]
    uploads.close()


def test_nothing_is_no_parcel(storage: Storage | None) -> None:
    uploads = Uploads(1, storage)
    assert uploads.take_in("1-0-0", [rows(), rows()]) == []
    assert uploads.take_in("1-0-1", []) == []
    uploads.close()


@pytest.mark.parametrize("budget", [0, 30, 1 << 20])
def test_many_senders_that_come_and_go(storage: Storage | None, budget: int) -> None:
    """A model: by name, what was handed in and not let go of."""
    source = random.Random(budget + 5)
    uploads = Uploads(1, storage, parcel=1, budget=budget)
    model: dict[str, tuple[Parcel, list[int]]] = {}
    for step in range(120):
        if source.random() < 0.6:
            wanted = [source.randrange(1000) for _ in range(source.randint(1, 4))]
            for parcel in uploads.take_in(f"{step}-0-0", [rows(*wanted)]):
                model[parcel.name] = (parcel, wanted)
        elif model:
            name = source.choice(sorted(model))
            uploads.forget([name], stored=True)
            parcel, _ = model.pop(name)
            with pytest.raises(RiverrunError):
                uploads.rows(parcel)
        for parcel, wanted in list(model.values()) if step % 8 == 7 else ():
            assert numbers(uploads, [parcel]) == wanted
    uploads.forget(list(model), stored=True)
    assert uploads._bytes == 0
    assert storage is None or not storage.names(PARCELS)
    uploads.close()


def test_forgotten_memory_can_still_be_read_from_the_storage() -> None:
    storage = open_storage("memory:///")
    uploads = Uploads(1, storage)
    parcels = uploads.take_in("1-0-0", [rows(7)])
    uploads.forget([each.name for each in parcels])
    assert numbers(uploads, parcels) == [7]
    another = Uploads(2, storage)
    assert numbers(another, parcels) == [7]


def test_only_the_holder_has_what_is_not_stored() -> None:
    uploads = Uploads(1)
    parcels = uploads.take_in("1-0-0", [rows(7)])
    successor = Uploads(2)
    successor.take_in("1-0-0", [rows(8)])  # of the same name, and not the same rows
    with pytest.raises(TransportError, match="worker 1 had them") as caught:
        successor.rows(parcels[0])
    assert caught.value.code == "transport.parcel_lost"
    assert "checkpoint=PATH" in str(caught.value)


def test_damage_is_named() -> None:
    storage = open_storage("memory:///")
    (parcel,) = Uploads(1, storage).take_in("1-0-0", [rows(7)])
    assert parcel.file is not None
    storage.put(parcel.file, b"something else")
    with pytest.raises(CheckpointError, match=r"checksum differs") as caught:
        Uploads(2, storage).rows(parcel)
    assert caught.value.fields["file"] == parcel.file


def test_the_losing_attempts_are_let_go_of(storage: Storage | None) -> None:
    uploads = Uploads(1, storage, parcel=1)
    won = uploads.take_in("5-0-1", [rows(1), rows(2)])
    lost = uploads.take_in("5-0-0", [rows(1), rows(2)])
    other = uploads.take_in("55-0-0", [rows(9)])
    uploads.close_upload("5", [each.name for each in won])
    assert numbers(uploads, won) == [1, 2]
    assert numbers(uploads, other) == [9]
    for parcel in lost:
        with pytest.raises(RiverrunError):
            uploads.rows(parcel)
    assert uploads._bytes == sum(rows(1).nbytes for _ in range(3))
    if storage is not None:
        assert len(storage.names(PARCELS)) == 3
    with pytest.raises(TransportError, match="not waited for any more"):
        uploads.take_in("5-0-2", [rows(3)])
    assert uploads._bytes == sum(rows(1).nbytes for _ in range(3))
    if storage is not None:
        assert len(storage.names(PARCELS)) == 3
    uploads.close()


def test_a_sender_that_fails_halfway_leaves_nothing(storage: Storage | None) -> None:
    def halfway() -> object:
        yield rows(1)
        yield rows(2)
        raise OSError("gone")

    uploads = Uploads(1, storage, parcel=1)
    with pytest.raises(OSError, match="gone"):
        uploads.take_in("1-0-0", halfway())  # type: ignore[arg-type]
    assert uploads._bytes == 0
    assert storage is None or not storage.names(PARCELS)
    uploads.close()


def test_handed_in_again_under_one_name_counts_its_memory_once() -> None:
    uploads = Uploads(1)
    uploads.take_in("1-0-0", [rows(1)])
    parcels = uploads.take_in("1-0-0", [rows(2)])
    assert numbers(uploads, parcels) == [2]
    uploads.forget([each.name for each in parcels])
    assert uploads._bytes == 0


def test_files_go_when_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    uploads = Uploads(1, budget=0)
    uploads.take_in("1-0-0", [rows(1)])
    assert len(list(tmp_path.iterdir())) == 1
    uploads.close()
    assert not list(tmp_path.iterdir())
