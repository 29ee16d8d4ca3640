"""Checkpoints: what is saved comes back, on local disk and in an object store; what is damaged does not."""

from __future__ import annotations

import json
import pickle
import random
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import LocalStore, MemoryStore

from riverrun.errors import CheckpointError, RiverrunError, TransportError
from riverrun.progress import Antichain
from riverrun.state import batch as batch_module
from riverrun.state import block as block_module
from riverrun.state import merge as merge_module
from riverrun.state import spine as spine_module
from riverrun.state.batch import Batch
from riverrun.state.checkpoint import Checkpoints, Part
from riverrun.state.joining import join_views
from riverrun.state.manifest import (
    END,
    Manifest,
    block_name,
    decode_manifest,
    encode_manifest,
    manifest_name,
)
from riverrun.state.schema import Order, Schema
from riverrun.state.spine import Spine
from riverrun.state.storage import Storage, checksum, open_storage
from riverrun.state.view import View
from tests.oracle import Row, Time
from tests.rows import TYPES, cells, plain_rows, to_arrow
from tests.state.checks import check_block, readable

KINDS = ("local", "memory")
SCHEMA = Schema.of(
    {"k": pa.string()},
    {"v": pa.list_(pa.int64()), "w": pa.float64()},
    order=[Order("w", descending=True)],
)


class Watched(Storage):
    """A storage that counts puts, and fails at the one it is told to."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage.store, storage.prefix)
        self.written: list[str] = []
        self.fail_at: int | None = None

    def put(self, name: str, data: Any) -> None:
        self._count(name)
        super().put(name, data)

    def create(self, name: str, data: Any) -> bool:
        self._count(name)
        return super().create(name, data)

    def _count(self, name: str) -> None:
        if self.fail_at is not None and len(self.written) >= self.fail_at:
            raise TransportError("storage.unreachable", f"cannot write {name}: told so")
        self.written.append(name)


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Watched:
    return Watched(storage_of(request.param, tmp_path))


def storage_of(kind: str, path: Path) -> Storage:
    return Storage(LocalStore(path, mkdir=True) if kind == "local" else MemoryStore(), "run/one")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    make_blocks_small(monkeypatch)


def make_blocks_small(patch: pytest.MonkeyPatch) -> None:
    """Many blocks of few rows; and merges that wait for `work`."""
    patch.setattr(block_module, "BLOCK_ROWS", 16)
    patch.setattr(batch_module, "CHUNK_ROWS", 8)
    patch.setattr(merge_module, "CHUNK_ROWS", 8)
    patch.setattr(spine_module, "LEAST_FUEL", 0)


def rows_of(rng: random.Random, count: int) -> pa.Table:
    return pa.table(
        {
            "k": [rng.choice([None, f"key {rng.randrange(80)}"]) for _ in range(count)],
            "v": pa.array(
                [rng.choice([None, [], [rng.randrange(3)] * 2]) for _ in range(count)],
                pa.list_(pa.int64()),
            ),
            "w": [rng.choice([None, 1.5, -0.0, float("nan")]) for _ in range(count)],
        }
    )


def grow(spine: Spine, rng: random.Random, epochs: int, rows: int = 40) -> Spine:
    """Some epochs more; merges are under way."""
    for _ in range(epochs):
        [(epoch,)] = spine.upper
        table = rows_of(rng, rows)
        spine.insert(table, (epoch,), [rng.choice([1, 1, 2, -1]) for _ in range(rows)])
        spine.work(rng.randrange(3 * rows))
    return spine


def state(seed: int = 0, epochs: int = 5) -> Spine:
    return grow(Spine("state", SCHEMA), random.Random(seed), epochs)


def contents(view: View, largest: int = 30) -> dict[Time, list[Row]]:
    """All that can be read of a view, at every time it can be read at."""
    names = [*view.schema.key.names, *view.schema.value.names, "count"]
    return {t: plain_rows(view.to_batch(t), names) for t in readable(view, largest)}


def check_chain(view: View) -> None:
    """Batches are adjacent up to the upper, and blocks keep their laws."""
    for a, b in pairwise(view.batches):
        assert a.upper == b.lower
    assert all(batch.upper == view.upper for batch in view.batches[-1:])
    for batch in view.batches:
        assert all(a.last < b.first for a, b in pairwise(batch.blocks))
        for block in batch.blocks:
            check_block(block, batch.lower)


def part_of(view: View, low: int, high: int, since: Antichain | None = None) -> View:
    batches = tuple(batch.slice(low, high) for batch in view.batches)
    return View(view.name, view.schema, batches, view.since if since is None else since, view.upper)


def ranges(workers: int) -> list[tuple[int, int]]:
    cuts = [END * at // workers for at in range(workers + 1)]
    return list(pairwise(cuts))


def refused(action: Callable[[], object], code: str) -> RiverrunError:
    """The error an action ends in, which crosses process borders as it is."""
    with pytest.raises(RiverrunError) as caught:
        action()
    error = caught.value
    assert error.code == code
    assert error.hint
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.fields) == (type(error), str(error), error.fields)
    return error


# Saving and restoring


@pytest.mark.usefixtures("small_blocks")
def test_what_is_saved_is_restored(storage: Watched) -> None:
    spine, other = state(1), state(2, epochs=3)
    spine.advance_since(Antichain([(2,)]))
    spine.work(25)
    views = {"one": replace(spine.view(), name="one"), "two": replace(other.view(), name="two")}
    assert sum(len(batch.blocks) > 1 for batch in views["one"].batches)
    manifest = Checkpoints(storage).save(views, about={"epoch": 5, "offsets": {"in": 17}})
    reader = Checkpoints(storage)
    assert reader.latest() == manifest
    assert reader.latest().about == {"epoch": 5, "offsets": {"in": 17}}  # type: ignore[union-attr]
    for name, view in views.items():
        restored = reader.restore(name)
        assert (restored.name, restored.schema) == (name, view.schema)
        assert (restored.since, restored.upper) == (view.since, view.upper)
        assert [(b.lower, b.upper, b.since, len(b)) for b in restored.batches] == [
            (b.lower, b.upper, b.since, len(b)) for b in view.batches
        ]
        assert [b.uid for b in restored.blocks] == [b.uid for b in view.blocks]
        assert all(block.resident for block in restored.blocks)
        assert contents(restored) == contents(view)
        check_chain(restored)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=3)
@given(data=st.data())
def test_every_type_comes_back(name: str, kind: str, data: st.DataObject) -> None:
    column = TYPES[name]
    keys, values = (data.draw(st.lists(cells(column), min_size=5, max_size=5)) for _ in range(2))
    spine = Spine("types", Schema.of({"k": column}, {"v": column}))
    for epoch in range(2):
        rows = pa.table({"k": to_arrow(keys, column), "v": to_arrow(values, column)})
        spine.insert(rows, (epoch,), [1, 2, -3, 4, 5])
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(storage_of(kind, Path(folder)))
        checkpoints.save({"types": spine.view()})
        restored = Checkpoints(checkpoints.storage).restore("types")
        assert restored.schema == spine.schema
        assert contents(restored) == contents(spine.view())


def test_schemas_with_all_they_carry_come_back(storage: Watched) -> None:
    key = pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())])
    value = pa.schema([pa.field("v", pa.timestamp("us", "UTC")), pa.field("w", pa.int8())])
    schema = Schema.of(key, value, [Order("w", True), "v"], hash_mask=7)
    checkpoints = Checkpoints(storage)
    checkpoints.save({"s": Spine("s", schema).view()})
    restored = Checkpoints(storage).restore("s")
    assert restored.schema == schema
    assert not restored.schema.key.field("a").nullable
    assert restored.batches == ()


def test_times_of_loops_and_frontiers_of_many_elements_come_back(storage: Watched) -> None:
    schema = Schema.of({"k": pa.int64()}, {})
    spine = Spine("loop", schema, depth=3)
    upper = Antichain([(0, 2, 0), (0, 1, 3), (1, 0, 0)])
    times = [(0, 0, 0), (0, 1, 2), (0, 0, 7)]
    rows = pa.table({"k": [1, 2, None]})
    spine.append(Batch.build(schema, rows, time=times, lower=spine.upper, upper=upper))
    spine.advance_since(Antichain([(0, 1, 0), (0, 0, 3), (1, 0, 0)]))
    Checkpoints(storage).save({"loop": spine.view()})
    restored = Checkpoints(storage).restore("loop")
    assert (restored.since, restored.upper) == (spine.since, upper)
    assert contents(restored, 8) == contents(spine.view(), 8)
    spine.advance_upper(Antichain())
    Checkpoints(storage).save({"loop": spine.view()})
    assert Checkpoints(storage).restore("loop").upper == Antichain()


@pytest.mark.usefixtures("small_blocks")
def test_a_restored_state_goes_on_as_if_nothing_had_happened(storage: Watched) -> None:
    never_stopped = state(3, epochs=4)
    Checkpoints(storage).save({"state": never_stopped.view()})
    resumed = Spine.from_view(Checkpoints(storage).restore("state"))
    for spine in (never_stopped, resumed):
        grow(spine, random.Random(9), 4)
        spine.advance_since(Antichain([(6,)]))
        spine.compact()
    assert contents(resumed.view()) == contents(never_stopped.view())


def test_a_mapped_state_stays_in_its_files(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    view = state(4).view()
    checkpoints.save({"state": view})
    restored = checkpoints.restore("state", mapped=True)
    assert not any(block.resident for block in restored.blocks)
    assert Spine.from_view(restored).nbytes == 0
    shutil.rmtree(tmp_path / "blocks")  # what is mapped stays readable
    assert contents(restored) == contents(view)


def test_only_local_files_are_mapped() -> None:
    checkpoints = Checkpoints("memory:///")
    checkpoints.save({"state": state().view()})
    refused(lambda: checkpoints.restore("state", mapped=True), "checkpoint.not_local")


# Shares: any number of workers writes, any number reads


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    writers=st.integers(1, 4),
    readers=st.integers(1, 4),
    kind=st.sampled_from(KINDS),
    mask=st.sampled_from([2**64 - 1, 2**64 - 1, 0xF << 60]),
)
def test_any_number_of_workers_restores_what_any_number_saved(
    seed: int, writers: int, readers: int, kind: str, mask: int
) -> None:
    rng = random.Random(seed)
    schema = replace(SCHEMA, hash_mask=mask)
    whole = Spine("state", schema)
    spines = [Spine("state", schema) for _ in range(writers)]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        make_blocks_small(patch)
        checkpoints = Checkpoints(storage_of(kind, Path(folder)))
        for epoch in range(rng.randrange(1, 7)):
            lower, upper = whole.upper, Antichain([(epoch + 1,)])
            size = rng.choice([0, 1, 30])
            table = rows_of(rng, size)
            batch = Batch.build(schema, table, time=(epoch,), lower=lower, upper=upper)
            whole.append(batch)
            for spine, (low, high) in zip(spines, ranges(writers), strict=True):
                spine.append(batch.slice(low, high))
                spine.work(rng.choice([0, 5, 1000]))  # each merges at its own pace
                if rng.random() < 0.3:
                    spine.advance_since(Antichain([(rng.randrange(epoch + 1),)]).join(spine.since))
                if rng.random() < 0.2:
                    spine.compact()
            if rng.random() < 0.5:
                save(checkpoints, spines)
        save(checkpoints, spines)
        since = reduce(Antichain.join, (spine.since for spine in spines))
        reader = Checkpoints(checkpoints.storage)
        for low, high in ranges(readers):
            restored = reader.restore("state", low, high, mapped=kind == "local")
            assert restored.upper == whole.upper
            assert restored.since.dominates(since)
            expected = part_of(whole.view(), low, high, restored.since)
            assert contents(restored) == contents(expected)
            check_chain(restored)
            spine = Spine.from_view(restored)
            spine.compact()
            assert contents(spine.view()) == contents(expected)


def save(checkpoints: Checkpoints, spines: list[Spine]) -> Manifest:
    """As workers and their coordinator do it."""
    number = checkpoints.next_number()
    parts = [
        Checkpoints(checkpoints.storage).write({"state": spine.view()}, number, low, high)
        for spine, (low, high) in zip(spines, ranges(len(spines)), strict=True)
    ]
    return checkpoints.publish(number, pickle.loads(pickle.dumps(parts[::-1])))


@pytest.mark.usefixtures("small_blocks")
def test_workers_that_share_a_block_share_its_file(storage: Watched) -> None:
    """After a rescale, one block counts in part on each of several workers."""
    view = state(5).view()
    first = Checkpoints(storage).save({"state": view})
    spines = [Spine.from_view(Checkpoints(storage).restore("state", *r)) for r in ranges(3)]
    storage.written.clear()
    second = save(Checkpoints(storage), spines)
    assert storage.written == [manifest_name(2)]  # nothing is written again
    assert second.files == first.files
    assert len(second.states["state"]) == 3
    assert contents(Checkpoints(storage).restore("state")) == contents(view)
    for low, high in ranges(4):
        restored = Checkpoints(storage).restore("state", low, high)
        assert contents(restored) == contents(part_of(view, low, high))


def test_shares_are_restored_one_by_one(storage: Watched) -> None:
    view = state(6).view()
    spines = [Spine.from_view(part_of(view, *r)) for r in ranges(3)]
    save(Checkpoints(storage), spines)
    found = Checkpoints(storage).restore_shares("state")
    assert [contents(v) for v in found] == [contents(spine.view()) for spine in spines]
    middle = END // 2
    found = Checkpoints(storage).restore_shares("state", 0, middle)
    assert [contents(v) for v in found] == [
        contents(part_of(view, *ranges(3)[0])),
        contents(part_of(view, ranges(3)[1][0], middle)),
    ]


def test_a_worker_reads_only_the_files_of_its_range(
    storage: Watched, small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spine = state(7)
    spine.compact()
    Checkpoints(storage).save({"state": spine.view()})
    read: list[str] = []
    get = Storage.get
    monkeypatch.setattr(Storage, "get", lambda s, name: (read.append(name), get(s, name))[1])
    low, high = ranges(8)[3]
    Checkpoints(storage).restore("state", low, high)
    blocks = [b for b in spine.view().blocks if b.first < high and low <= b.last]
    assert 0 < len(blocks) < len(spine.view().blocks)
    assert sorted(read) == sorted([manifest_name(1), *(block_name(1, b.uid) for b in blocks)])


def test_views_that_do_not_belong_together_are_not_joined() -> None:
    view = state(8).view()
    low, high = (part_of(view, *r) for r in ranges(2))
    assert contents(join_views([high, low])) == contents(view)
    for other in (
        replace(high, name="other"),
        replace(high, upper=Antichain([(9,)])),
        replace(high, schema=Schema.of({"k": pa.string()}, {})),
        view,
    ):
        with pytest.raises(ValueError, match="views that are joined"):
            join_views([low, other])


@pytest.mark.parametrize(("low", "high"), [(-1, 5), (5, 5), (6, 5), (0, END + 1)])
def test_a_range_is_a_range(low: int, high: int) -> None:
    checkpoints = Checkpoints("memory:///")
    for action in (
        lambda: checkpoints.write({}, 1, low, high),
        lambda: checkpoints.restore("state", low, high),
    ):
        with pytest.raises(ValueError, match="a range of hashes"):
            action()


# Incremental


@pytest.mark.usefixtures("small_blocks")
def test_a_block_is_written_once(storage: Watched) -> None:
    rng, spine = random.Random(10), Spine("state", SCHEMA)
    checkpoints, known = Checkpoints(storage), set[str]()
    for number in range(1, 9):
        grow(spine, rng, 1)
        if number == 5:
            checkpoints = Checkpoints(storage)  # a new process knows it from the manifest
        storage.written.clear()
        manifest = checkpoints.save({"state": spine.view()})
        uids = {block.uid for block in spine.view().blocks}
        fresh = {block_name(number, uid) for uid in uids - known}
        assert sorted(storage.written) == sorted([*fresh, manifest_name(number)])
        assert {name[-38:-6] for name in manifest.files} == uids
        known = uids
        assert contents(Checkpoints(storage).restore("state")) == contents(spine.view())


def test_a_spilled_block_is_saved_from_its_file(storage: Watched, tmp_path: Path) -> None:
    (tmp_path / "spill").mkdir()
    spine = Spine("state", SCHEMA, budget=0, directory=tmp_path / "spill")
    grow(spine, random.Random(11), 4)
    assert not any(block.resident for block in spine.view().blocks)
    Checkpoints(storage).save({"state": spine.view()})
    assert contents(Checkpoints(storage).restore("state")) == contents(spine.view())


# Publishing


def test_one_of_many_publishers_wins(storage: Watched) -> None:
    view = state(12).view()
    for number in range(1, 6):
        rivals = [Checkpoints(storage) for _ in range(6)]
        parts = [rival.write({"state": view}, number) for rival in rivals]

        def publish(at: int) -> int | str:
            try:
                return rivals[at].publish(number, [parts[at]], {"who": at}).about["who"]  # type: ignore[no-any-return]  # noqa: B023
            except CheckpointError as error:
                return error.code

        with ThreadPoolExecutor(6) as pool:
            outcomes = list(pool.map(publish, range(6)))
        winner = Checkpoints(storage).latest()
        assert winner is not None
        assert winner.number == number
        assert [at for at in outcomes if at != "checkpoint.conflict"] == [winner.about["who"]]
    assert contents(Checkpoints(storage).restore("state")) == contents(view)


def test_publishing_again_after_a_lost_answer_is_no_conflict(storage: Watched) -> None:
    checkpoints = Checkpoints(storage)
    part = checkpoints.write({"state": state().view()}, 1)
    manifest = checkpoints.publish(1, [part], {"epoch": 3})
    assert checkpoints.publish(1, [part], {"epoch": 3}) == manifest
    error = refused(lambda: checkpoints.publish(1, [part], {"epoch": 4}), "checkpoint.conflict")
    assert "checkpoint 1" in error.message


def test_a_number_that_was_taken_is_not_written_or_published(storage: Watched) -> None:
    ours, theirs = Checkpoints(storage), Checkpoints(storage)
    view = state().view()
    part = ours.write({"state": view}, 1)
    theirs.save({"state": state(1).view()})
    refused(lambda: ours.write({"state": view}, 1), "checkpoint.conflict")
    refused(lambda: ours.publish(1, [part]), "checkpoint.conflict")
    refused(lambda: ours.publish(2, [part]), "checkpoint.stale")
    refused(lambda: ours.write({"state": view}, 3), "checkpoint.gap")
    refused(lambda: ours.publish(3, [part]), "checkpoint.gap")
    theirs.save({"state": view})
    theirs.collect(retain=1)
    refused(lambda: ours.publish(1, [part]), "checkpoint.conflict")


def test_a_manifest_has_every_hash_once(storage: Watched) -> None:
    checkpoints, view = Checkpoints(storage), state().view()
    left, right = (checkpoints.write({"state": view}, 1, *r) for r in ranges(2))
    whole = checkpoints.write({"state": view}, 1)
    for parts in ([left], [right], [left, left, right], [left, whole], [whole, whole]):
        error = refused(lambda parts=parts: checkpoints.publish(1, parts), "checkpoint.incomplete")  # type: ignore[misc]
        assert error.fields["state"] == "state"
    later = checkpoints.write({"state": state(epochs=6).view()}, 1, *ranges(2)[1])
    refused(lambda: checkpoints.publish(1, [left, later]), "checkpoint.incompatible")
    foreign = replace(
        right, shares={"state": replace(right.shares["state"], schema=Schema.of({}, {}))}
    )
    refused(lambda: checkpoints.publish(1, [left, foreign]), "checkpoint.incompatible")
    assert checkpoints.latest() is None
    checkpoints.publish(1, [right, left])
    assert contents(checkpoints.restore("state")) == contents(view)


@pytest.mark.usefixtures("small_blocks")
def test_a_store_that_fails_leaves_the_checkpoint_before(storage: Watched) -> None:
    spine, checkpoints = state(13), Checkpoints(storage)
    checkpoints.save({"state": spine.view()})
    before = contents(spine.view())
    grow(spine, random.Random(14), 2)
    storage.written.clear()
    needed = len({block.uid for block in spine.view().blocks} - set(_uids(checkpoints))) + 1
    assert needed > 3
    for allowed in range(needed):
        storage.written.clear()
        storage.fail_at = allowed
        with pytest.raises(TransportError):
            checkpoints.save({"state": spine.view()})
        assert contents(Checkpoints(storage).restore("state")) == before
    storage.fail_at = None
    assert checkpoints.save({"state": spine.view()}).number == 2
    assert contents(Checkpoints(storage).restore("state")) == contents(spine.view())


def _uids(checkpoints: Checkpoints) -> list[str]:
    manifest = checkpoints.latest()
    assert manifest is not None
    return [name[-38:-6] for name in manifest.files]


def test_what_is_not_there_is_said(storage: Watched) -> None:
    checkpoints = Checkpoints(storage)
    assert checkpoints.latest() is None
    assert checkpoints.numbers() == []
    refused(lambda: checkpoints.restore("state"), "checkpoint.none")
    error = refused(lambda: checkpoints.restore("state", number=4), "checkpoint.missing")
    assert error.fields["file"] == manifest_name(4)
    checkpoints.save({"state": state().view(), "more": state().view()})
    error = refused(lambda: checkpoints.restore("stat"), "checkpoint.state_missing")
    assert "state, more" in error.message


# Damage


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
    "another format": (lambda b: b.update(format=2), "checkpoint.incompatible"),
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
    Storage.put(storage, manifest_name(2), remade(second, lambda body: body.update(format=2)))
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


# Collecting


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
        parts = [Checkpoints(storage).write({"state": view}, number, *r) for r in ranges(2)]
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


def _files(part: Part) -> list[Any]:
    return [block.file for share in part.shares.values() for block in share.blocks]


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


# Storage


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
