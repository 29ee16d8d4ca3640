"""Blocks as Arrow files, which are mapped when memory is short, and which checkpoints consist of.

`spine` spills blocks (`spill_block`) and `storage.checkpoint` writes and reads them (`write_block`, `read_block`). A
file is one Arrow IPC file with one record batch, without compression, so that mapping the file gives the columns where
they lie. Columns are named ``hash``, ``key.NAME`` (absent when the key is recovered from its hash), ``value.NAME``,
``time`` (a code) and ``diff`` (the last two absent when all rows have the same). The metadata of the Arrow schema has
the rest under ``riverrun``, as JSON. Anyone who reads Arrow can read such a file. Laws:

- **Round trip.** `read_block(write_block(b))` holds the rows of `b` and has the uid of `b`.
- **Refused by name.** A file that is not the file of a block is refused, and the refusal says which file and why.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from riverrun.errors import CheckpointError, TimeViolation, TransportError
from riverrun.progress.timestamp import as_timestamp
from riverrun.state.block import Block
from riverrun.state.columns import as_array
from riverrun.state.kernels import gathering
from riverrun.state.schema import FULL_MASK, Schema
from riverrun.state.soundness import UnsoundRows, read_file, read_json
from riverrun.state.times import Times
from riverrun.state.types import has_enums, type_text

FORMAT = 1
_METADATA = b"riverrun"


def block_record(block: Block) -> pa.RecordBatch:
    """All rows of a block, those outside [start, stop) included, as the one record batch of its file."""
    names, arrays = ["hash"], [block.hashes]
    for at, (field, column) in enumerate(zip(block.schema.columns, block.columns, strict=True)):
        if column is not None:
            names.append(f"{'key' if at < len(block.schema.key) else 'value'}.{field.name}")
            arrays.append(column)
    for name, column in (("time", block.codes), ("diff", block.diffs)):
        if column is not None:
            names.append(name)
            arrays.append(column)
    about = {
        "format": FORMAT,
        "uid": block.uid,
        "times": block.times,
        "diff": block.diff,
        "columns": _describe(block.schema),
    }
    record = pa.record_batch(arrays, names)
    return record.replace_schema_metadata({_METADATA: json.dumps(about).encode()})


def write_block(block: Block) -> pa.Buffer:
    """The file of a block, in memory."""
    record = block_record(block)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, record.schema) as writer:
        writer.write_batch(record)
    return sink.getvalue()


def read_block(
    source: pa.Buffer, schema: Schema, name: str, *, resident: bool, holder: Any = None
) -> Block:
    """The block in an Arrow file, over the memory of `source`; errors call the file `name`.

    `holder` is something that has to live as long as that memory.
    """
    try:
        batches = read_file(source)
    except UnsoundRows as error:
        raise _refuse(name, f"it is torn, or its rows are damaged: {error}") from error
    if len(batches) != 1:
        raise _refuse(name, f"it holds {len(batches)} record batches, not one")
    (record,) = batches
    try:
        about = read_json((record.schema.metadata or {})[_METADATA])
        uid, diff = str(about["uid"]), int(about["diff"])
        times = tuple(as_timestamp(time, f"read {name}") for time in about["times"])
        version, described = about["format"], about["columns"]
    except (KeyError, TypeError, ValueError, TimeViolation) as error:
        raise _refuse(name, "it does not carry Riverrun's metadata") from error
    if version != FORMAT:
        raise _refuse(name, f"its format is {version}, and this version reads format {FORMAT}")
    if described != _describe(schema):
        raise _refuse(name, f"its columns are {described}, and those asked for {_describe(schema)}")
    columns = _take_columns(record, schema, name)
    codes = _column(record, "time", {pa.uint8(), pa.uint16(), pa.uint32()}, name)
    diffs = _column(record, "diff", {pa.int8(), pa.int16(), pa.int32(), pa.int64()}, name)
    hashes = _column(record, "hash", {pa.uint64()}, name)
    if hashes is None or record.num_rows == 0:
        raise _refuse(name, "it has no rows, or no hashes")
    _check_sound(hashes, times, codes, diff, diffs, name)
    block = Block(
        schema, hashes, columns, times, codes, diff, diffs, uid, 0, record.num_rows,
        resident, holder,
    )  # fmt: skip
    _ = block.descriptor  # computed before threads share the block
    return block


def _check_sound(
    hashes: pa.Array,
    times: Times,
    codes: pa.Array | None,
    diff: int,
    diffs: pa.Array | None,
    name: str,
) -> None:
    """Refuse times, codes, diffs and hashes that kernels, which check no bounds, must never see.

    `soundness` has checked the rows themselves.
    """
    if not times or len({len(time) for time in times}) != 1 or not times[0]:
        raise _refuse(name, "its times are not of one depth")
    if (codes is None and len(times) != 1) or (diffs is None and diff == 0):
        raise _refuse(name, "it has neither one time and one diff for all rows, nor one for each")
    if any(column is not None and column.null_count for column in (hashes, codes, diffs)):
        raise _refuse(name, "a hash, time or diff is missing")
    words = as_array(hashes)
    if not gathering.is_ascending(words):
        raise _refuse(name, "its rows are not sorted by hash")
    if codes is not None and pc.max(codes).as_py() >= len(times):
        raise _refuse(name, "a row has a time that is not in its table")


def _describe(schema: Schema) -> list[str]:
    """The columns in physical order, in words: a file is read only if its words are those of the reader's schema.

    The columns of the record batch would not suffice for that: a key that is recovered from its hash is no column, and
    the order inside a key shows in nothing but the order of the rows.
    """
    ordered = len(schema.key) + len(schema.order)
    described = []
    for at, (field, kind) in enumerate(zip(schema.columns, schema.canonical, strict=True)):
        role = "key" if at < len(schema.key) else "order" if at < ordered else "value"
        enum = f" of {type_text(field.type)}" * has_enums(field.type)
        described.append(
            f"{role} {field.name}: {kind}{enum}{' descending' * schema.descending[at]}"
        )
    if schema.hash_mask != FULL_MASK:
        described.append(f"hash & {schema.hash_mask:#x}")
    return described


def _take_columns(record: pa.RecordBatch, schema: Schema, name: str) -> tuple[pa.Array | None, ...]:
    columns: list[pa.Array | None] = []
    for at, (field, kind) in enumerate(zip(schema.columns, schema.canonical, strict=True)):
        is_key = at < len(schema.key)
        label = f"{'key' if is_key else 'value'}.{field.name}"
        column = _column(record, label, {kind}, name)
        if column is None and not (is_key and schema.invertible):
            raise _refuse(name, f"it has no column {label!r}")
        columns.append(column)
    return tuple(columns)


def _column(
    record: pa.RecordBatch, label: str, kinds: set[pa.DataType], name: str
) -> pa.Array | None:
    at = record.schema.get_field_index(label)
    if at < 0:
        return None
    column = record.column(at)
    if column.type not in kinds:
        raise _refuse(name, f"column {label!r} is {column.type}")
    return column


def _refuse(name: str, why: str) -> CheckpointError:
    return CheckpointError(
        "checkpoint.foreign_file",
        f"cannot read {name} as a block: {why}",
        hint="the file was damaged, or another program wrote it; restore from an older checkpoint",
        file=name,
    )


def spill_block(block: Block, directory: Path) -> Block:
    """The same block in a mapped file. The file has no name any more, so it goes with the block, or with the
    process."""
    # Two spines may share a block and both spill it, and a mapped file must not be written to: hence a fresh name.
    path = directory / f"{block.uid}-{uuid4().hex}.arrow"
    record = block_record(block)
    try:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, record.schema) as writer:
            writer.write_batch(record)
        with pa.memory_map(str(path), "r") as mapping:
            mapped = mapping.read_buffer()
    except OSError as error:
        raise TransportError(
            "storage.spill",
            f"cannot move a block of {block.nbytes} bytes to {directory}: {error}",
            hint="nothing is lost, and the rows stay in memory: make room there, or raise the budget",
            directory=str(directory),
        ) from error
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)
    spilled = read_block(mapped, block.schema, str(path), resident=False)
    whole = (block.start, block.stop) == (0, len(block.hashes))
    return spilled if whole else spilled.restrict(block.start, block.stop)
