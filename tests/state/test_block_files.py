"""Blocks as files: what is written comes back, and what is no such file is refused by name."""

from __future__ import annotations

import gc
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.errors import CheckpointError
from riverrun.progress import Antichain
from riverrun.state.block import Block
from riverrun.state.block_files import read_block, spill_block, write_block
from riverrun.state.schema import Order, Schema
from riverrun.state.spine import Spine
from tests.drawn_rows import TYPES, cells, to_arrow
from tests.soaking import first_seed
from tests.state.checks import block_rows

SCHEMA = Schema.of({"k": pa.string()}, {"v": pa.list_(pa.int64()), "w": pa.float64()})
HASHED = Schema.of({"k": pa.int64()}, {"v": pa.int64()})


def some_block() -> Block:
    spine = Spine("files", SCHEMA)
    rows = {
        "k": ["a", "b", None] * 10,
        "v": [[1, 2], None, []] * 10,
        "w": [float(n) for n in range(30)],
    }
    spine.insert(pa.table(rows), (0,), list(range(1, 31)))
    spine.insert(pa.table(rows), (1,))
    spine.compact()
    return spine.view().blocks[0]


def hashed_block() -> Block:
    spine = Spine("files", HASHED)
    spine.insert(pa.table({"k": [1, 2, 3], "v": [4, 5, 6]}), (0,))
    return spine.view().blocks[0]


def refused(source: Any, schema: Schema = SCHEMA) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read_block(source, schema, "state/x.arrow", resident=True)
    error = caught.value
    assert error.code == "checkpoint.foreign_file"
    assert "state/x.arrow" in error.message
    assert error.fields["file"] == "state/x.arrow"
    assert error.hint
    return error


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=4)
@given(data=st.data())
def test_what_is_written_is_read(name: str, data: st.DataObject) -> None:
    kind = TYPES[name]
    keys, values = (data.draw(st.lists(cells(kind), min_size=5, max_size=5)) for _ in range(2))
    schema = Schema.of({"k": kind}, {"v": kind})
    spine = Spine("files", schema)
    for at in range(2):
        rows = pa.table({"k": to_arrow(keys, kind), "v": to_arrow(values, kind)})
        spine.insert(rows, (at,), [1, 2, 3, 4, 5])
    spine.compact()
    [block] = spine.view().blocks
    again = read_block(write_block(block), schema, "here", resident=True)
    assert again.uid == block.uid
    assert again.times == block.times
    assert len(again) == len(block)
    assert again.resident
    assert block_rows(again) == block_rows(block)


def test_anyone_can_read_the_file() -> None:
    with pa.ipc.open_file(write_block(some_block())) as reader:
        assert reader.num_record_batches == 1
        record = reader.get_batch(0)
    assert record.schema.names == ["hash", "key.k", "value.v", "value.w", "time", "diff"]
    about = json.loads(record.schema.metadata[b"riverrun"])
    assert about["format"] == 1
    assert about["times"] == [[0], [1]]
    with pa.ipc.open_file(write_block(hashed_block())) as reader:
        assert reader.get_batch(0).schema.names == ["hash", "value.v"]  # the key is its hash


def test_a_file_that_ends_early_is_refused() -> None:
    whole = write_block(some_block())
    for size in [*range(0, whole.size, 61), whole.size - 1]:
        refused(whole.slice(0, size))


def test_a_file_whose_beginning_is_missing_is_refused() -> None:
    whole = write_block(some_block())
    for start in range(61, whole.size, 61):
        refused(whole.slice(start))


def test_a_damaged_file_is_read_or_refused_and_nothing_else() -> None:
    """Damage to cells is for checksums to find; damage to what describes them is refused here."""
    whole = write_block(some_block()).to_pybytes()
    seed = first_seed()
    rng = random.Random(seed)
    outcomes = set()
    for trial in range(1500):
        damaged = bytearray(whole)
        at = rng.randrange(len(damaged))
        if trial % 2:
            damaged[at] ^= 1 << rng.randrange(8)
        else:
            damaged[at : at + 64] = bytes(min(64, len(damaged) - at))
        try:
            read_block(pa.py_buffer(bytes(damaged)), SCHEMA, "x", resident=True)
            outcomes.add("read")
        except CheckpointError:
            outcomes.add("refused")
        except Exception as error:
            raise AssertionError(f"seed {seed}, trial {trial}: {error!r}") from error
    assert outcomes == {"read", "refused"}


def file_of(record: pa.RecordBatch, batches: int = 1) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, record.schema) as writer:
        for _ in range(batches):
            writer.write_batch(record)
    return sink.getvalue()


def altered(block: Block, about: dict[str, Any], **columns: pa.Array | None) -> pa.Buffer:
    """The file of a block with other metadata or columns; None leaves a column out."""
    with pa.ipc.open_file(write_block(block)) as reader:
        record = reader.get_batch(0)
    arrays = {name: record.column(name) for name in record.schema.names} | columns
    metadata = json.loads(record.schema.metadata[b"riverrun"]) | about
    fresh = pa.record_batch({n: c for n, c in arrays.items() if c is not None})
    return file_of(fresh.replace_schema_metadata({b"riverrun": json.dumps(metadata).encode()}))


def test_what_is_no_such_file_is_refused() -> None:
    refused(pa.py_buffer(b""))
    refused(pa.py_buffer(b"not an Arrow file" * 100))
    refused(file_of(pa.record_batch({"hash": pa.array([1], pa.uint64())})))
    refused(file_of(pa.record_batch({"hash": pa.array([1], pa.uint64())}), batches=2))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("a", pa.int64())])):
        pass
    refused(sink.getvalue())


ALTERED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another format": ({"format": 2}, {}),
    "no uid": ({"uid": None, "times": 3}, {}),
    "no times": ({"times": []}, {}),
    "no diff": ({"diff": None}, {}),
    "no hashes": ({}, {"hash": None}),
    "other hashes": ({}, {"hash": pa.array([1, 2, 3], pa.int64())}),
    "hashes with nulls": ({}, {"hash": pa.array([1, None, 3], pa.uint64())}),
    "no such value": ({}, {"value.v": None}),
    "a value of another type": ({}, {"value.v": pa.array([1, 2, 3], pa.int32())}),
    "codes of another type": ({}, {"time": pa.array([0, 0, 0], pa.int64())}),
    "codes past the table": ({}, {"time": pa.array([0, 200, 0], pa.uint8())}),
    "codes with nulls": ({}, {"time": pa.array([0, None, 0], pa.uint8())}),
    "diffs of another type": ({}, {"diff": pa.array([1, 1, 1], pa.float32())}),
    "diffs with nulls": ({}, {"diff": pa.array([1, None, 1], pa.int8())}),
    "one diff, of zero": ({"diff": 0}, {}),
}


@pytest.mark.parametrize("what", ALTERED)
def test_a_file_that_only_looks_like_a_block_is_refused(what: str) -> None:
    about, columns = ALTERED[what]
    refused(altered(hashed_block(), about, **columns), HASHED)


OTHER_SCHEMAS = {
    "a narrower key": Schema.of({"k": pa.int32()}, {"v": pa.int64()}),
    "a key of another type": Schema.of({"k": pa.timestamp("us")}, {"v": pa.int64()}),
    "a string key": Schema.of({"k": pa.string()}, {"v": pa.int64()}),
    "a key of another name": Schema.of({"other": pa.int64()}, {"v": pa.int64()}),
    "no key": Schema.of({}, {"v": pa.int64()}),
    "a value of another type": Schema.of({"k": pa.int64()}, {"v": pa.int32()}),
    "a value of another name": Schema.of({"k": pa.int64()}, {"w": pa.int64()}),
    "a value more": Schema.of({"k": pa.int64()}, {"v": pa.int64(), "w": pa.int64()}),
    "a value less": Schema.of({"k": pa.int64()}, {}),
    "another order": Schema.of({"k": pa.int64()}, {"v": pa.int64()}, [Order("v", True)]),
    "another hash": Schema.of({"k": pa.int64()}, {"v": pa.int64()}, hash_mask=3),
}


@pytest.mark.parametrize("what", OTHER_SCHEMAS)
def test_a_block_of_another_schema_is_refused(what: str) -> None:
    refused(write_block(hashed_block()), OTHER_SCHEMAS[what])


def mapped_files(folder: Path) -> int:
    """How many files of a folder this process reads; none of them has a name there, so they go with the process."""
    assert list(folder.iterdir()) == []
    maps = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[4] for line in maps if f" {folder}/" in line})


def test_a_spilled_block_is_read_from_its_file_which_goes_with_it(tmp_path: Path) -> None:
    block = some_block()
    spilled = spill_block(block, tmp_path)
    assert not spilled.resident
    assert spilled.uid == block.uid
    assert mapped_files(tmp_path) == 1
    part = spilled.restrict(3, 9)
    assert block_rows(spilled) == block_rows(block)
    del spilled
    gc.collect()
    assert mapped_files(tmp_path) == 1  # a slice of it is alive
    assert block_rows(part) == block_rows(block)
    del part
    gc.collect()
    assert mapped_files(tmp_path) == 0


def test_a_slice_is_spilled_as_a_slice(tmp_path: Path) -> None:
    block = some_block().restrict(3, 9)
    spilled = spill_block(block, tmp_path)
    assert (spilled.start, spilled.stop) == (3, 9)
    assert block_rows(spilled) == block_rows(block)


def test_a_budget_is_kept_and_files_go_when_nobody_reads_them(tmp_path: Path) -> None:
    schema = Schema.of({"k": pa.int64()}, {"v": pa.string()})
    spine = Spine("spilled", schema, budget=20_000, directory=tmp_path)
    for epoch in range(40):
        keys = list(range(epoch * 100, epoch * 100 + 200))
        spine.insert(pa.table({"k": keys, "v": [f"value {key}" for key in keys]}), (epoch,))
        assert spine.nbytes <= 20_000
    assert spine.nbytes == sum(b.nbytes for b in spine.view().blocks if b.resident)
    assert any(not block.resident for block in spine.view().blocks)
    assert mapped_files(tmp_path) > 0
    pinned = spine.view()
    spine.advance_since(Antichain([(39,)]))
    spine.compact()
    assert sum(pinned.to_batch((0,)).column("count").to_pylist()) == 200
    assert sum(spine.to_batch((39,)).column("count").to_pylist()) == 8000
    del spine, pinned
    gc.collect()
    assert mapped_files(tmp_path) == 0


def test_a_block_spilled_twice_has_two_files(tmp_path: Path) -> None:
    """Two states over the same blocks spill them both; what one drops, the other still reads."""
    block = some_block()
    one, two = spill_block(block, tmp_path), spill_block(block, tmp_path)
    assert mapped_files(tmp_path) == 2
    del one
    gc.collect()
    assert mapped_files(tmp_path) == 1
    assert block_rows(two) == block_rows(block)
    del two
    gc.collect()
    assert mapped_files(tmp_path) == 0
