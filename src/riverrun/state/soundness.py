"""Soundness: whether rows that came from storage or from another process may be looked at.

Arrow reads a file or a message without looking at most of it. An offset that points outside of its buffer shows only
when followed, and kernels, which check no bounds, would follow it into other memory. So every Arrow batch that is
mapped or decoded from storage, or that a peer sent, goes through this module before anything else sees it: the files of
blocks, the records of the log, uploads, and the bodies of packets.

`read_stream`, `read_file` and `read_body` (one message of a known schema) read bytes; `check_rows` checks a batch that
was read already, such as a mapped one. All of them raise `UnsoundRows`, which says what is wrong and in which column;
the caller adds the name of the file or of the peer. Laws:

- **Bounds.** In a batch that passes, every offset, length, code and size stays inside of the buffers of the batch;
  counts of nulls agree with the bitmaps, texts and names are UTF-8, decimals and times are in range. (This is Arrow's
  own full validation.)
- **Weight.** Rows take space. Compressed rows are refused before they are decompressed (Riverrun never compresses), and
  values that take no space at all (nulls, structs without fields) are bounded: few bytes cannot ask for terabytes.
- **Nulls.** A field that is declared without nulls has none, at any depth.
- **Kinds.** Types are those that rows can have. Unions, intervals, run-end encodings, views of lists and extensions are
  refused: Riverrun never writes them.
- **Places.** Buffers begin where kernels and NumPy may read words.

>>> rows = pa.record_batch({"word": ["tea", "ink"]})
>>> check_rows(rows) is rows
True
>>> ends = pa.py_buffer(np.array([0, 5000, 6], np.int32))
>>> wrong = pa.Array.from_buffers(pa.string(), 2, [None, ends, pa.py_buffer(b"teaink")])
>>> check_rows(pa.record_batch([wrong], ["word"]))
Traceback (most recent call last):
    ...
riverrun.state.soundness.UnsoundRows: column 'word': Offset invariant failure: offset for slot 1 out of bounds: 5000 > 6

Cost: one pass over offsets, texts and bitmaps, 4 GB/s for short texts and 14 GB/s for long ones. Numbers without nulls
are not looked at, since any bits are a number. A batch of a few rows costs some 3 microseconds a column, and 1 in a
body whose columns are looked at once for many bodies (`BodyReader`).
"""

from __future__ import annotations

import json
import struct
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

WEIGHTLESS = 1 << 24
"""So many values at most may take no space."""
WORD = 8
DIGITS = 76  # of the widest decimals
_BEGIN = b"ARROW1\0\0"
_RECORD_BATCH = 3  # kinds of messages in Arrow's format
_DICTIONARY_BATCH = 2

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


class UnsoundRows(ValueError):
    """Rows that must not be looked at, and why."""


def read_stream(data: pa.Buffer) -> list[pa.RecordBatch]:
    """The batches of an Arrow stream, each of them sound."""
    try:
        for message in pa.ipc.MessageReader.open_stream(data):
            _refuse_compressed(message.metadata)
        with pa.ipc.open_stream(data) as reader:
            batches = list(reader)
    except UnsoundRows:
        raise
    except _ARROW as error:
        raise UnsoundRows(f"no Arrow stream: {_brief(error)}") from error
    for batch in batches:
        check_rows(batch)
    return batches


def read_file(data: pa.Buffer) -> list[pa.RecordBatch]:
    """The batches of an Arrow file, where they lie, each of them sound.

    The footer is opened, as a file that is cut short has none, but the batches are those of the stream in front of it:
    a footer may point anywhere.
    """
    try:
        with pa.ipc.open_file(data) as reader:
            count = reader.num_record_batches
    except _ARROW as error:
        raise UnsoundRows(f"no Arrow file: {_brief(error)}") from error
    if data.slice(0, len(_BEGIN)).to_pybytes() != _BEGIN:
        raise UnsoundRows("no Arrow file: it does not begin like one")
    batches = read_stream(data.slice(len(_BEGIN)))
    if len(batches) != count:
        raise UnsoundRows(f"{len(batches)} batches, where the footer has {count}")
    return batches


def read_body(data: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in one Arrow message, whose columns are known; sound."""
    return BodyReader(schema).read(data)[0]


class BodyReader:
    """Reads the messages of one schema, each a batch. What the schema alone decides is looked at once, when the reader
    is made; so a message of a few rows costs 3 microseconds, and 1 for each column."""

    def __init__(self, schema: pa.Schema) -> None:
        _read_names(schema)
        for field in schema:
            with _named(field):
                _check_kind(field.type)
        self.schema = schema
        self._others = [
            (at, field)
            for at, field in enumerate(schema)
            if field.type.id not in _PLAIN or not field.nullable
        ]
        """The columns in which some value may break the laws of weight or of nulls."""

    def read(self, data: pa.Buffer) -> tuple[pa.RecordBatch, list[pa.Array]]:
        """The batch in a message, and its columns; sound."""
        try:
            message = pa.ipc.read_message(data)
            _refuse_compressed(message.metadata)
            batch = pa.ipc.read_record_batch(message, self.schema)
        except UnsoundRows:
            raise
        except _ARROW as error:
            raise UnsoundRows(f"no Arrow batch: {_brief(error)}") from error
        try:
            batch.validate(full=True)  # all columns at once
        except _ARROW as error:
            check_rows(batch)  # which says in which column
            raise UnsoundRows(_brief(error)) from error
        columns = batch.columns
        if not columns and batch.num_rows > WEIGHTLESS:
            raise UnsoundRows(f"{batch.num_rows} rows without a column")
        for column in columns:
            _check_places(column)
        for at, field in self._others:
            with _named(field):
                _check_values(columns[at], field)
        return batch, columns


def check_rows(rows: Rows) -> Rows:
    """The same rows, if every law of this module holds for them; otherwise `UnsoundRows`."""
    names = _read_names(rows.schema)
    if rows.num_rows > WEIGHTLESS and not names:
        raise UnsoundRows(f"{rows.num_rows} rows without a column")
    # The types before any column: PyArrow has no class for the columns of some types, and raises a KeyError.
    for field in rows.schema:
        with _named(field):
            _check_kind(field.type)
    for field, column in zip(rows.schema, rows.columns, strict=True):
        with _named(field):
            column.validate(full=True)
            for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
                _check_places(chunk)
                _check_values(chunk, field)
    try:
        rows.validate()
    except _ARROW as error:
        raise UnsoundRows(_brief(error)) from error
    return rows


def read_json(data: bytes) -> Any:
    """The value of a JSON text; a ValueError for any other text, also for JSON that is nested too deep to be read."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("its values are nested too deep") from None


def check_codes(codes: np.ndarray[Any, Any] | None, count: int, rows: int) -> None:
    """Refuse codes that are not positions in a table of `count` entries, one code for each row; None says that all rows
    have the only entry."""
    if codes is None:
        if count != 1 and rows:
            raise UnsoundRows(
                f"no codes for {rows} rows, where {count} entries are to be told apart"
            )
        return
    if codes.dtype.kind != "u" or codes.shape != (rows,):
        raise UnsoundRows(f"codes of type {codes.dtype} and shape {codes.shape} for {rows} rows")
    if rows and int(codes.max()) >= count:
        raise UnsoundRows(f"the code {int(codes.max())}, where there are {count} entries")


_ARROW = (pa.ArrowException, OSError, EOFError, ValueError)
_PLAIN = frozenset(
    kind.id
    for kind in [
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
        pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"),
        pa.timestamp("us"), pa.duration("us"), pa.string(), pa.large_string(), pa.binary(), pa.large_binary(),
    ]
)  # fmt: skip
"""Types whose values take space and have nothing inside: no law but that of nulls has a say in them."""
_FLAT = frozenset(kind.id for kind in [pa.null(), pa.binary(1), pa.string_view(), pa.binary_view()])
"""The other types without values inside."""


def _read_names(schema: pa.Schema) -> list[str]:
    try:
        return list(schema.names)  # bytes that are no text raise
    except _ARROW as error:
        raise UnsoundRows(_brief(error)) from error


class _named:  # noqa: N801 - a block
    """A ``with`` block that turns an error of Arrow's into `UnsoundRows` about a column."""

    __slots__ = ("_field",)

    def __init__(self, field: pa.Field) -> None:
        self._field = field

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _ARROW):
            name = self._field.name[:80]
            raise UnsoundRows(f"column {name!r}: {_brief(error)}") from error


def _check_kind(kind: pa.DataType) -> None:
    t = pa.types
    if kind.id in _PLAIN:
        return
    if t.is_dictionary(kind):
        _check_kind(kind.value_type)
    elif (
        t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind) or t.is_struct(kind)
    ):
        for at in range(kind.num_fields):
            _ = kind.field(at).name
            _check_kind(kind.field(at).type)
    elif t.is_map(kind):
        _check_kind(kind.key_type)
        _check_kind(kind.item_type)
    elif t.is_decimal(kind):
        if abs(kind.scale) > DIGITS:
            raise UnsoundRows(f"a decimal with {kind.scale} digits behind the point")
    elif kind.id not in _FLAT:
        raise UnsoundRows(f"rows have no values of type {str(kind)[:80]}")


def _check_places(array: pa.Array) -> None:
    for buffer in array.buffers():
        if buffer is not None and buffer.size and buffer.address % WORD:
            raise UnsoundRows("a buffer does not begin at a word")


def _check_values(array: pa.Array, field: pa.Field) -> None:
    """Check the laws of weight and of nulls, at any depth, for values that passed Arrow's validation."""
    t, kind = pa.types, array.type
    if not field.nullable and array.null_count:
        raise UnsoundRows(
            f"{array.null_count} nulls in {field.name[:80]!r}, which is declared without"
        )
    if kind.id in _PLAIN:
        return
    if t.is_dictionary(kind):
        _check_values(array.dictionary, pa.field("dictionary", kind.value_type))
    elif t.is_struct(kind):
        if not kind.num_fields:
            _check_weight(array)
        for at in range(kind.num_fields):
            inner, child = kind.field(at), array.field(at)
            if not inner.nullable and child.null_count and array.null_count:
                child = child.filter(array.is_valid())  # a null has nothing inside
            _check_values(child, inner)
    elif t.is_map(kind):
        entries = pa.StructArray.from_arrays(
            [array.keys, array.items], fields=[kind.key_field, kind.item_field]
        )
        _check_values(entries, pa.field("entries", entries.type))
    elif t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        inner = kind.value_field
        values = array.values
        if not inner.nullable and values.null_count:
            values = array.flatten()  # elements under a null list belong to no row
        _check_values(values, inner)
    elif t.is_null(kind) or (t.is_fixed_size_binary(kind) and not kind.byte_width):
        _check_weight(array)


def _check_weight(array: pa.Array) -> None:
    if len(array) > WEIGHTLESS:
        raise UnsoundRows(f"{len(array)} values that take no space; {WEIGHTLESS} at most can be")


def _refuse_compressed(metadata: pa.Buffer) -> None:
    """Refuse a message whose body is compressed, before anything of it is allocated. Arrow has verified the metadata, a
    FlatBuffers table: a table begins with the distance back to its list of slots, and a slot says where a field is."""
    data = metadata.to_pybytes()
    try:
        message = _position(data, 0)
        kind = data[_slot(data, message, 1)]
        if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
            return
        header = _position(data, _slot(data, message, 2))
        if kind == _DICTIONARY_BATCH:
            header = _position(data, _slot(data, header, 1))
        compressed = _slot(data, header, 3) != 0
    except (struct.error, IndexError) as error:
        raise UnsoundRows(f"no Arrow message: {error}") from error
    if compressed:
        raise UnsoundRows("the rows are compressed, and nobody of us compresses rows")


_unsigned = struct.Struct("<I").unpack_from
_signed = struct.Struct("<i").unpack_from
_short = struct.Struct("<H").unpack_from


def _position(data: bytes, at: int) -> int:
    return at + int(_unsigned(data, at)[0])


def _slot(data: bytes, table: int, number: int) -> int:
    """The position of a field of a table; 0 where the field is left out."""
    slots = table - int(_signed(data, table)[0])
    if slots < 0:
        raise struct.error("a table without slots")
    at = 4 + 2 * number
    if at >= _short(data, slots)[0]:
        return 0
    distance = int(_short(data, slots + at)[0])
    return table + distance if distance else 0


def _brief(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]
