"""Looking at checkpoints: what is there is listed, what is damaged is named, what is whole is read as of each epoch."""

from __future__ import annotations

import json
import logging
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from riverrun.progress import Antichain
from riverrun.state.schema import Schema
from riverrun.state.shards import END
from riverrun.state.spine import Spine
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.inspect import look, verify
from riverrun.storage.log import Log
from riverrun.storage.manifest import FORMAT, block_name, manifest_name
from riverrun.storage.reader import choose, held, look_into
from riverrun.storage.records import record_name
from riverrun.storage.store import Storage, checksum
from riverrun.storage.takeover import take_over
from tests.oracle import Reference
from tests.soaking import seeds
from tests.storage.saving import Watched, grow, ranges, refused, state
from tests.storage.test_damage import DAMAGE, damage

ABOUT = {"epoch": 3, "position": 2, "owner": 0, "workers": 2, "riverrun": "0.1.0"}


def saved(storage: Storage, count: int = 2, **about: Any) -> list[Any]:
    """Some checkpoints of a state that grows."""
    spine, rng = Spine("state", state().schema), random.Random(7)
    manifests = []
    for _ in range(count):
        grow(spine, rng, 2)
        manifests.append(Checkpoints(storage).save({"state": spine.view()}, {**ABOUT, **about}))
    return manifests


def test_checkpoints_are_listed(storage: Watched, small_blocks: None) -> None:
    manifests = saved(storage, 3)
    contents = look(Checkpoints(storage))
    assert [each.number for each in contents.checkpoints] == [1, 2, 3]
    for each, manifest in zip(contents.checkpoints, manifests, strict=True):
        sizes = {name: storage.get(name).size for name in manifest.files}
        own = [
            size for name, size in sizes.items() if name.startswith(f"blocks/{each.number:012d}")
        ]
        assert (each.bytes, each.fresh) == (sum(sizes.values()), sum(own))
        assert each.rows == sum(b.rows for share in manifest.states["state"] for b in share.blocks)
        assert (each.epoch, each.workers, each.states, each.version) == (2, 2, 1, "0.1.0")
        assert each.published is not None
        assert each.error is None
    assert 0 < contents.checkpoints[2].fresh < contents.checkpoints[2].bytes
    assert contents.unreferenced == ()
    assert not contents.empty


def test_a_torn_checkpoint_is_named(storage: Watched) -> None:
    saved(storage)
    damage(storage, manifest_name(2), "truncated")
    first, second = look(Checkpoints(storage)).checkpoints
    assert first.error is None
    assert second.error is not None
    assert manifest_name(2) in second.error.message
    verified = verify(Checkpoints(storage))
    assert verified.whole == (1,)
    [bad] = verified.damages
    assert (bad.file, bad.checkpoints) == (manifest_name(2), (2,))


def test_nothing_is_made_by_looking(tmp_path: Path) -> None:
    refused(lambda: look_into(tmp_path / "no" / "such"), "checkpoint.nothing")
    assert not (tmp_path / "no").exists()
    (tmp_path / "empty").mkdir()
    refused(lambda: look_into(tmp_path / "empty"), "checkpoint.nothing")
    assert look(Checkpoints(tmp_path / "empty")).empty
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_block_is_named(storage: Watched, how: str, small_blocks: None) -> None:
    first, second = saved(storage)
    names = sorted(set(second.files) - set(first.files))
    name = random.Random(how).choice(names)
    assert verify(Checkpoints(storage)).whole == (1, 2)
    damage(storage, name, how)
    verified = verify(Checkpoints(storage))
    assert (verified.whole, verified.newest_whole, verified.numbers) == ((1,), 1, (1, 2))
    [bad] = verified.damages
    assert (bad.file, bad.checkpoints) == (name, (2,))
    assert bad.why
    assert (bad.why == "it is missing") == (how == "missing")
    assert verify(Checkpoints(storage), 1).damages == ()
    assert verify(Checkpoints(storage), 2).whole == ()


def test_a_file_of_two_checkpoints_hurts_both(storage: Watched, small_blocks: None) -> None:
    first, second = saved(storage)
    name = sorted(set(first.files) & set(second.files))[0]
    damage(storage, name, "zeroed")
    verified = verify(Checkpoints(storage))
    assert [bad.checkpoints for bad in verified.damages] == [(1, 2)]
    assert verified.newest_whole is None


def test_files_that_nobody_names(storage: Watched) -> None:
    saved(storage)
    left = [block_name(2, "0" * 32), "parcels/0.a-0-1.arrow", "manifests/notes.txt"]
    for name in left:
        Storage.put(storage, name, b"12345")
    if storage.root is not None:
        left.append(f"blocks/{'0' * 12}-{'1' * 32}.arrow#1")
        (storage.root / left[-1]).write_bytes(b"123")
    contents = look(Checkpoints(storage))
    assert {file.name for file in contents.unreferenced} == set(left)
    assert {file.size for file in contents.unreferenced if "#" not in file.name} == {5}
    assert verify(Checkpoints(storage)).unreferenced == contents.unreferenced
    assert verify(Checkpoints(storage)).damages == ()
    assert (contents.parcels.files, contents.parcels.bytes) == (1, 5)


def test_an_unknown_number_is_refused(storage: Watched) -> None:
    saved(storage)
    error = refused(lambda: verify(Checkpoints(storage), 7), "checkpoint.unknown")
    assert "there are: 1, 2" in error.message


# ---- the log


def logged(storage: Storage) -> Log:
    """Records 0 to 5: opened, three epochs, a refused one, and an epoch with a parcel."""
    log = Log(storage)
    owner = take_over(Checkpoints(storage), log, identity="a").owner
    rows = pa.record_batch({"n": [1, 2]})
    for at in (1, 2, 3):
        log.append(at, {"kind": "epoch", "epoch": at - 1, "owner": owner}, {"numbers": rows})
    log.append(4, {"kind": "refused", "epoch": 2, "refused": 3, "owner": owner}, {})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    data = sink.getvalue()
    file = "parcels/0.up-0-0-1.arrow"
    storage.put(file, data)
    parcel = {"name": "x", "holder": 1, "rows": 2, "file": file, "checksum": checksum(data)}
    header = {"kind": "epoch", "epoch": 2, "owner": owner, "parcels": {"numbers": [parcel]}}
    log.append(5, header, {})
    return log


def test_the_log_is_listed(storage: Watched) -> None:
    logged(storage)
    contents = look(Checkpoints(storage))
    log = contents.log
    assert (log.records, log.first, log.last, log.epochs, log.refused) == (6, 0, 5, (0, 2), 1)
    assert (log.owner, log.identity, log.torn) == (0, "a", ())
    assert log.bytes == sum(storage.get(record_name(at)).size for at in range(6))
    assert contents.unreferenced == ()
    assert contents.parcels.files == 1
    checked = verify(Checkpoints(storage))
    assert (checked.records, checked.parcels, checked.damages) == (6, 1, ())


def test_a_long_header_is_read(storage: Watched) -> None:
    log = Log(storage)
    take_over(Checkpoints(storage), log, identity="a", fingerprint={"node": "x" * 100_000})
    assert look(Checkpoints(storage)).log.identity == "a"


@pytest.mark.parametrize("how", ["missing", "truncated", "middle byte flipped", "emptied"])
def test_a_damaged_record_is_named(storage: Watched, how: str) -> None:
    logged(storage)
    damage(storage, record_name(2), how)
    [bad] = verify(Checkpoints(storage)).damages
    assert (bad.file, bad.checkpoints) == (record_name(2), ())
    assert bad.why
    # A checkpoint that ends later needs it no more.
    saved(storage, 1, position=3)
    assert [bad.file for bad in verify(Checkpoints(storage)).damages] == (
        [] if how == "missing" else [record_name(2)]
    )


def test_the_last_record_may_be_torn_and_is_void_later(storage: Watched) -> None:
    logged(storage)
    damage(storage, record_name(5), "truncated")
    [bad] = verify(Checkpoints(storage)).damages
    assert bad.file == record_name(5)
    assert "the next run leaves it out" in bad.why
    take_over(Checkpoints(storage), Log(storage), identity="b")
    assert verify(Checkpoints(storage)).damages == ()
    assert look(Checkpoints(storage)).log.identity == "b"


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_parcel_is_named(storage: Watched, how: str) -> None:
    logged(storage)
    damage(storage, "parcels/0.up-0-0-1.arrow", how)
    [bad] = verify(Checkpoints(storage)).damages
    assert bad.file == "parcels/0.up-0-0-1.arrow"


def test_a_run_that_goes_on_meanwhile_is_no_damage(storage: Watched, small_blocks: None) -> None:
    """While we verify, what we look at is published over and collected."""

    class Busy(Checkpoints):
        left = 1

        def check(self, *arguments: Any) -> None:
            if Busy.left:
                Busy.left -= 1
                spine = Spine("state", state().schema)
                grow(spine, random.Random(1), 1)
                Checkpoints(storage).save({"state": spine.view()}, ABOUT)
                Checkpoints(storage).collect(1)
            super().check(*arguments)

    saved(storage, 1)
    verified = verify(Busy(storage))
    assert verified.damages == ()
    assert verified.whole == (2,)


# ---- another version


def test_another_format_is_said(storage: Watched) -> None:
    saved(storage, 1, riverrun="9.9")
    body = json.loads(storage.get(manifest_name(1)).to_pybytes())
    body.pop("checksum")
    body["format"] = FORMAT + 1
    sum_ = checksum(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
    Storage.put(storage, manifest_name(1), json.dumps({**body, "checksum": sum_}).encode())
    [summary] = look(Checkpoints(storage)).checkpoints
    assert summary.error is not None
    assert summary.error.code == "checkpoint.incompatible"
    assert f"format has version {FORMAT + 1}" in summary.error.message
    assert "(9.9)" in str(summary.error)
    assert verify(Checkpoints(storage)).whole == ()


def test_another_version_is_said_when_it_is_read(
    storage: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    saved(storage, 1, riverrun="0.0.9")
    assert look(Checkpoints(storage)).checkpoints[0].version == "0.0.9"
    with caplog.at_level(logging.WARNING):
        choose(Checkpoints(storage), "state")
    assert "written by riverrun 0.0.9" in caplog.text


# ---- rows


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(8, soak=32))
def test_a_state_is_read_as_of_each_epoch_it_holds(
    storage: Watched, small_blocks: None, seed: int
) -> None:
    rng = random.Random(seed)
    workers, depth = rng.randrange(1, 4), rng.randrange(1, 3)
    schema = Schema.of({"k": pa.int64()}, {"v": pa.int64()})
    reference = Reference()
    spine = Spine("state", schema, depth=depth)
    epochs = rng.randrange(2, 7)
    for epoch in range(epochs):
        for round_ in range(1 if depth == 1 else 3):
            time = (epoch, round_)[:depth]
            rows = [(rng.randrange(30), rng.randrange(3)) for _ in range(25)]
            diffs = [rng.choice([1, 1, -1]) for _ in rows]
            reference.insert(((k,), (v,), time, d) for (k, v), d in zip(rows, diffs, strict=True))
            table = pa.table({"k": [k for k, _ in rows], "v": [v for _, v in rows]})
            spine.insert(table, time, diffs)
    upper = Antichain([(epochs, 0)[:depth]])
    spine.advance_upper(upper)
    since = rng.randrange(epochs + 1)  # epochs below are not told apart; all of them, now and then
    spine.advance_since(Antichain([(since, 0)[:depth]]))
    spine.work(rng.randrange(400))
    parts = [
        Checkpoints(storage).write({"state": spine.view().slice(low, high)}, 1, [(low, high)])
        for low, high in ranges(workers)
    ]
    Checkpoints(storage).publish(1, parts, {"epoch": epochs})

    checkpoints = Checkpoints(storage)
    expected = range(min(since, epochs - 1), epochs)
    assert held(checkpoints.load(1).states["state"]) == expected
    for epoch in range(epochs + 1):
        if epoch not in expected:
            error = refused(lambda e=epoch: choose(checkpoints, "state", epoch=e), "time.not_held")  # type: ignore[misc]
            shown = f"{expected[0]} to {expected[-1]}" if len(expected) > 1 else f"{expected[0]}"
            assert f"checkpoint 1: epoch{'s' * (len(expected) > 1)} {shown}" in error.message
            continue
        stored = choose(checkpoints, "state", epoch=epoch)
        cuts = stored.cuts(rng.choice([1, 20, 10_000]))
        assert [cuts[0][0], cuts[-1][1]] == [0, END]
        assert all(a[1] == b[0] for a, b in pairwise(cuts))
        assert len(cuts) >= workers
        counts: dict[Any, int] = {}
        for low, high in cuts:
            view, time = stored.open(checkpoints, low, high)
            for k, v, count in zip(*view.to_batch(time).to_pydict().values(), strict=True):
                assert ((k,), (v,)) not in counts, f"seed {seed}"
                counts[(k,), (v,)] = count
        last = 1 << 40
        assert counts == reference.read((epoch, last)[:depth]), f"seed {seed}, epoch {epoch}"


def test_the_newest_checkpoint_that_holds_an_epoch_is_taken(storage: Watched) -> None:
    spine = Spine("state", Schema.of({"k": pa.int64()}, {}))
    for epoch in range(3):
        spine.insert(pa.table({"k": [epoch]}), (epoch,))
        Checkpoints(storage).save({"state": spine.view()})
    spine.advance_since(Antichain([(2,)]))
    spine.compact()
    Checkpoints(storage).save({"state": spine.view()})
    taken = {e: choose(Checkpoints(storage), "state", epoch=e).number for e in range(3)}
    assert taken == {0: 3, 1: 3, 2: 4}
    assert choose(Checkpoints(storage), "state").epoch == 2
    assert choose(Checkpoints(storage), "state", number=2).epoch == 1
    damage(storage, manifest_name(4), "truncated")
    assert choose(Checkpoints(storage), "state").number == 3


def test_a_state_that_older_checkpoints_have_not(storage: Watched) -> None:
    spine = Spine("old", Schema.of({"k": pa.int64()}, {}))
    spine.insert(pa.table({"k": [1]}), (0,))
    Checkpoints(storage).save({"old": spine.view()})
    Checkpoints(storage).save({"new": spine.view()})
    error = refused(lambda: choose(Checkpoints(storage), "new", epoch=4), "time.not_held")
    assert "the checkpoints hold: checkpoint 2: epoch 0" in error.message
    error = refused(lambda: choose(Checkpoints(storage), "old"), "checkpoint.output_unknown")
    assert "there are: new" in error.message
