"""Rows that are handed in before an epoch names them."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from riverrun.engine.messages import Parcel
from riverrun.errors import CheckpointError, RiverrunError, TransportError
from riverrun.runtime.uploads import ParcelStore
from riverrun.storage.records import PARCELS
from riverrun.storage.store import Storage, open_storage


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def numbers(parcel_store: ParcelStore, parcels: list[Parcel]) -> list[int]:
    return [
        number
        for parcel in parcels
        for batch in parcel_store.rows(parcel)
        for number in batch.column(0).to_pylist()
    ]


@pytest.fixture(params=[None, "memory:///"])
def storage(request: pytest.FixtureRequest) -> Storage | None:
    return None if request.param is None else open_storage(request.param)


@pytest.mark.parametrize("parcel", [1, 20, 1 << 20])
@pytest.mark.parametrize("budget", [0, 40, 1 << 20])
def test_rows_come_out_as_they_went_in(storage: Storage | None, parcel: int, budget: int) -> None:
    parcel_store = ParcelStore(3, storage, parcel=parcel, budget=budget)
    handed = [rows(1, 2), rows(), rows(3), rows(4, 5, 6)]
    parcels = parcel_store.take_in("1-0-0", handed)
    assert len(parcels) == {1: 3, 20: 2, 1 << 20: 1}[parcel]
    assert sum(each.rows for each in parcels) == 6
    assert {each.holder for each in parcels} == {3}
    assert len({each.name for each in parcels}) == len(parcels)
    for _ in range(2):  # an epoch may be done again
        assert numbers(parcel_store, parcels) == [1, 2, 3, 4, 5, 6]
    parcel_store.close()


def test_nothing_is_no_parcel(storage: Storage | None) -> None:
    parcel_store = ParcelStore(1, storage)
    assert parcel_store.take_in("1-0-0", [rows(), rows()]) == []
    assert parcel_store.take_in("1-0-1", []) == []
    parcel_store.close()


@pytest.mark.parametrize("budget", [0, 30, 1 << 20])
def test_many_senders_that_come_and_go(storage: Storage | None, budget: int) -> None:
    """A model: by name, what was handed in and not let go of."""
    source = random.Random(budget + 5)
    parcel_store = ParcelStore(1, storage, parcel=1, budget=budget)
    model: dict[str, tuple[Parcel, list[int]]] = {}
    for step in range(120):
        if source.random() < 0.6:
            wanted = [source.randrange(1000) for _ in range(source.randint(1, 4))]
            for parcel in parcel_store.take_in(f"{step}-0-0", [rows(*wanted)]):
                model[parcel.name] = (parcel, wanted)
        elif model:
            name = source.choice(sorted(model))
            parcel_store.forget([name], stored=True)
            parcel, _ = model.pop(name)
            with pytest.raises(RiverrunError):
                parcel_store.rows(parcel)
        for parcel, wanted in list(model.values()) if step % 8 == 7 else ():
            assert numbers(parcel_store, [parcel]) == wanted
    parcel_store.forget(list(model), stored=True)
    assert parcel_store._bytes == 0
    assert storage is None or not storage.names(PARCELS)
    parcel_store.close()


def test_forgotten_memory_can_still_be_read_from_the_storage() -> None:
    storage = open_storage("memory:///")
    parcel_store = ParcelStore(1, storage)
    parcels = parcel_store.take_in("1-0-0", [rows(7)])
    parcel_store.forget([each.name for each in parcels])
    assert numbers(parcel_store, parcels) == [7]
    another = ParcelStore(2, storage)
    assert numbers(another, parcels) == [7]


def test_only_the_holder_has_what_is_not_stored() -> None:
    parcel_store = ParcelStore(1)
    parcels = parcel_store.take_in("1-0-0", [rows(7)])
    successor = ParcelStore(2)
    successor.take_in("1-0-0", [rows(8)])  # of the same name, and not the same rows
    with pytest.raises(TransportError, match="worker 1 had them") as caught:
        successor.rows(parcels[0])
    assert caught.value.code == "transport.parcel_lost"
    assert "checkpoint=PATH" in str(caught.value)


def test_damage_is_named() -> None:
    storage = open_storage("memory:///")
    (parcel,) = ParcelStore(1, storage).take_in("1-0-0", [rows(7)])
    assert parcel.file is not None
    storage.put(parcel.file, b"something else")
    with pytest.raises(CheckpointError, match=r"checksum differs") as caught:
        ParcelStore(2, storage).rows(parcel)
    assert caught.value.fields["file"] == parcel.file


def test_the_losing_attempts_are_let_go_of(storage: Storage | None) -> None:
    parcel_store = ParcelStore(1, storage, parcel=1)
    won = parcel_store.take_in("5-0-1", [rows(1), rows(2)])
    lost = parcel_store.take_in("5-0-0", [rows(1), rows(2)])
    other = parcel_store.take_in("55-0-0", [rows(9)])
    parcel_store.close_upload("5", [each.name for each in won])
    assert numbers(parcel_store, won) == [1, 2]
    assert numbers(parcel_store, other) == [9]
    for parcel in lost:
        with pytest.raises(RiverrunError):
            parcel_store.rows(parcel)
    assert parcel_store._bytes == sum(rows(1).nbytes for _ in range(3))
    if storage is not None:
        assert len(storage.names(PARCELS)) == 3
    with pytest.raises(TransportError, match="not waited for any more"):
        parcel_store.take_in("5-0-2", [rows(3)])
    assert parcel_store._bytes == sum(rows(1).nbytes for _ in range(3))
    if storage is not None:
        assert len(storage.names(PARCELS)) == 3
    parcel_store.close()


def test_a_sender_that_fails_halfway_leaves_nothing(storage: Storage | None) -> None:
    def halfway() -> object:
        yield rows(1)
        yield rows(2)
        raise OSError("gone")

    parcel_store = ParcelStore(1, storage, parcel=1)
    with pytest.raises(OSError, match="gone"):
        parcel_store.take_in("1-0-0", halfway())  # type: ignore[arg-type]
    assert parcel_store._bytes == 0
    assert storage is None or not storage.names(PARCELS)
    parcel_store.close()


def test_handed_in_again_under_one_name_counts_its_memory_once() -> None:
    parcel_store = ParcelStore(1)
    parcel_store.take_in("1-0-0", [rows(1)])
    parcels = parcel_store.take_in("1-0-0", [rows(2)])
    assert numbers(parcel_store, parcels) == [2]
    parcel_store.forget([each.name for each in parcels])
    assert parcel_store._bytes == 0


def test_files_go_when_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    parcel_store = ParcelStore(1, budget=0)
    parcel_store.take_in("1-0-0", [rows(1)])
    assert len(list(tmp_path.iterdir())) == 1
    parcel_store.close()
    assert not list(tmp_path.iterdir())
