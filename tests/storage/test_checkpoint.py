"""Checkpoints: what is saved comes back, on local disk and in an object store, on any number of workers."""

from __future__ import annotations

import random
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.errors import CheckpointError, TransportError
from riverrun.progress import Antichain
from riverrun.state.batch import Batch
from riverrun.state.schema import Order, Schema
from riverrun.state.shards import END, Shards
from riverrun.state.spine import Spine
from riverrun.state.view import join_views
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.manifest import block_name, manifest_name
from riverrun.storage.store import Storage, open_storage
from tests.drawn_rows import TYPES, cells, to_arrow
from tests.soaking import seeds
from tests.storage.saving import (
    KINDS,
    SCHEMA,
    Watched,
    check_chain,
    contents,
    grow,
    make_blocks_small,
    part_of,
    ranges,
    refused,
    rows_of,
    save,
    state,
    storage_of,
)

# Saving and restoring


@pytest.mark.usefixtures("small_blocks")
def test_what_is_saved_is_restored(storage: Watched) -> None:
    spine, other = state(1), state(2, epochs=3)
    spine.advance_since(Antichain([(2,)]))
    spine.work(25)
    views = {"one": replace(spine.view(), name="one"), "two": replace(other.view(), name="two")}
    assert sum(len(batch.blocks) > 1 for batch in views["one"].batches)
    manifest = Checkpoints(storage).save(views, about={"epoch": 5, "workers": 17})
    reader = Checkpoints(storage)
    assert reader.latest() == manifest
    assert reader.latest().about == {"epoch": 5, "workers": 17}  # type: ignore[union-attr]
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


@pytest.mark.parametrize("place", ["local", "memory"])
def test_a_state_larger_than_memory_is_kept_in_files_of_our_own(tmp_path: Path, place: str) -> None:
    where, scratch = tmp_path / "there", tmp_path / "scratch"
    scratch.mkdir()
    storage = open_storage(where if place == "local" else "memory:///")
    view = state().view()
    Checkpoints(storage).save({"state": view})
    restored = Checkpoints(storage, scratch=scratch).restore("state")
    assert not any(block.resident for block in restored.blocks)
    assert list(scratch.iterdir()) == []  # nothing stays when this process is killed
    if place == "local":  # nobody can take it away, or change it
        for file in (where / "blocks").iterdir():
            file.unlink()
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
        lambda: checkpoints.write({}, 1, [(low, high)]),
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
    left, right = (checkpoints.write({"state": view}, 1, [r]) for r in ranges(2))
    whole = checkpoints.write({"state": view}, 1)
    for parts in ([left], [right], [left, left, right], [left, whole], [whole, whole]):
        error = refused(lambda parts=parts: checkpoints.publish(1, parts), "checkpoint.incomplete")  # type: ignore[misc]
        assert error.fields["state"] == "state"
    later = checkpoints.write({"state": state(epochs=6).view()}, 1, [ranges(2)[1]])
    refused(lambda: checkpoints.publish(1, [left, later]), "checkpoint.incompatible")
    (share,) = right.shares["state"]
    foreign = replace(right, shares={"state": (replace(share, schema=Schema.of({}, {})),)})
    refused(lambda: checkpoints.publish(1, [left, foreign]), "checkpoint.incompatible")
    assert checkpoints.latest() is None
    checkpoints.publish(1, [right, left])
    assert contents(checkpoints.restore("state")) == contents(view)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(4, soak=16))
def test_a_worker_may_have_several_ranges(storage: Watched, seed: int) -> None:
    rng, view = random.Random(seed), state(seed).view()
    shards = Shards.even(3).without(rng.randrange(3)).resized(4).weighted([1, 3, 2, rng.random()])
    assert len(shards.owners) > shards.workers
    checkpoints = Checkpoints(storage)
    parts = [checkpoints.write({"state": view}, 1, shards.of(at)) for at in range(4)]
    rng.shuffle(parts)
    checkpoints.publish(1, parts)
    written = [name for name in storage.written if name.startswith("blocks/")]
    assert len(written) >= len({block.uid for block in view.blocks})
    assert contents(checkpoints.restore("state")) == contents(view)
    low, high = sorted(rng.randrange(END) for _ in range(2))
    assert contents(checkpoints.restore("state", low, high)) == contents(view.slice(low, high))


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


def test_what_is_no_view_is_not_saved() -> None:
    checkpoints = Checkpoints("memory:///")
    spine = Spine("s", Schema.of({"k": pa.int64()}, {}))
    for wrong in ({"s": spine}, spine.view(), None):
        with pytest.raises(CheckpointError, match="mapping from names to views"):
            checkpoints.save(wrong)
    with pytest.raises(CheckpointError, match="is not JSON"):
        checkpoints.save({"s": spine.view()}, about={"when": object()})
    with pytest.raises(CheckpointError, match="no path or URL"):
        Checkpoints(None)
