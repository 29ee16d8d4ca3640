"""Blocks as Arrow files: to be mapped when memory is short, and to be checkpointed.

A file is one Arrow IPC file with one record batch, without compression, so that mapping it gives
the columns where they lie. Columns are named ``hash``, ``key.NAME`` (absent when the key is kept as
its hash), ``value.NAME``, ``time`` (a code) and ``diff`` (both absent when they are the same for
every row). The metadata of its schema holds the rest under ``riverrun``, as JSON. Anyone who reads
Arrow can read it.

Law: `read_block(write_block(b))` holds the rows of `b` and has its uid. What is not such a file is
refused and named.
"""

from __future__ import annotations

import json
import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from riverrun.errors import CheckpointError
from riverrun.state.block import Block
from riverrun.state.schema import Schema

FORMAT = 1
_METADATA = b"riverrun"


def block_record(block: Block) -> pa.RecordBatch:
    """All rows of a block, those outside its slice included, as the one record batch of its file."""
    names, arrays = ["hash"], [block.hashes]
    for at, (field, column) in enumerate(zip(block.schema.columns, block.columns, strict=True)):
        if column is not None:
            names.append(f"{'key' if at < len(block.schema.key) else 'value'}.{field.name}")
            arrays.append(column)
    for name, column in (("time", block.codes), ("diff", block.diffs)):
        if column is not None:
            names.append(name)
            arrays.append(column)
    about = {"format": FORMAT, "uid": block.uid, "times": block.times, "diff": block.diff}
    record = pa.record_batch(arrays, names)
    return record.replace_schema_metadata({_METADATA: json.dumps(about).encode()})


def write_block(block: Block) -> pa.Buffer:
    """The file of a block, in memory."""
    record = block_record(block)
    # Twice the size is never needed; growing would copy.
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, record.schema) as writer:
        writer.write_batch(record)
    return sink.getvalue()


def read_block(
    source: Any, schema: Schema, name: str, *, resident: bool, holder: Any = None
) -> Block:
    """The block in an Arrow file, over the memory of `source`; `name` is what errors call the file."""
    try:
        with pa.ipc.open_file(source) as reader:
            if reader.num_record_batches != 1:
                raise _refuse(name, f"it holds {reader.num_record_batches} record batches, not one")
            record = reader.get_batch(0)
    except (pa.ArrowInvalid, OSError, EOFError) as error:
        raise _refuse(name, f"it is torn, or no Arrow file: {error}") from error
    try:
        about = json.loads((record.schema.metadata or {})[_METADATA])
        uid, diff = str(about["uid"]), int(about["diff"])
        times = tuple(tuple(map(int, time)) for time in about["times"])
        version = about["format"]
    except (KeyError, TypeError, ValueError) as error:
        raise _refuse(name, "it does not carry Riverrun's metadata") from error
    if version != FORMAT:
        raise _refuse(name, f"its format is {version}, and this version reads format {FORMAT}")
    columns = _take_columns(record, schema, name)
    codes = _column(record, "time", {pa.uint8(), pa.uint16(), pa.uint32()}, name)
    diffs = _column(record, "diff", {pa.int8(), pa.int16(), pa.int32(), pa.int64()}, name)
    hashes = _column(record, "hash", {pa.uint64()}, name)
    if hashes is None or record.num_rows == 0:
        raise _refuse(name, "it has no rows, or no hashes")
    return Block(
        schema,
        hashes,
        columns,
        times,
        codes,
        diff,
        diffs,
        uid,
        0,
        record.num_rows,
        resident,
        holder,
    )


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
    """The same block in a mapped file, which goes when the block does."""
    path = directory / f"{block.uid}.arrow"
    record = block_record(block)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, record.schema) as writer:
        writer.write_batch(record)
    mapped = pa.memory_map(str(path), "r")
    holder = _SpilledFile(path)
    fresh = read_block(mapped, block.schema, str(path), resident=False, holder=holder)
    whole = (block.start, block.stop) == (0, len(block.hashes))
    return fresh if whole else fresh.restrict(block.start, block.stop)


class _SpilledFile:
    """Removes a file when the last block that reads it is gone. Mapped pages stay readable until then."""

    def __init__(self, path: Path) -> None:
        self._finalizer = weakref.finalize(self, _unlink, str(path))


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
