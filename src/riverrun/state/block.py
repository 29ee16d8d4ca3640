"""A block: a bounded, sorted piece of a batch that never changes; and the writer that makes blocks.

A batch is a list of blocks of about a million rows or 64 MB, so memory is given back, written to disk, checkpointed and
mapped in pieces whose size does not depend on the size of the state. `batch` and `merge` write blocks, `block_files`
writes them to files, and kernels read them through their *descriptors*: one row of integers for each block, most of
them addresses (`kernels.layout`). A small block of flat columns is one piece of memory (`PackedBlock`), a larger one is
Arrow arrays. Laws:

- **Sorted.** Rows ascend by (hash, key, declared order, value, time code), and no two rows agree in all of these. (The
  declared order is that of the value columns which the schema orders, `state.schema.Order`. The time code is the place
  of the row's time in the block's table of times.)
- **No zeros.** No diff is zero.
- **Whole hashes.** The blocks of a batch ascend by hash, and no hash stands in two of them; so a key is in one block.
- **Constants left out.** What is the same for every row is stored once, not for each row: a single time, a single diff.
  A key that is one signed integer, or one date or time, is not stored beside its hash, from which it can be recovered,
  unless some key of the block is null.

Memory for int64 keys and values with one time and one diff: 16 bytes a row, and half a byte for the directory, which
says where each bucket of hashes begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

from riverrun.cached import cached_property
from riverrun.progress import Timestamp
from riverrun.state.buffers import empty
from riverrun.state.columns import (
    Cells,
    ColumnWriter,
    Ints,
    as_array,
    flat_table,
    node_count,
    node_table,
    slab_columns,
)
from riverrun.state.counted import counted
from riverrun.state.kernels import differing, gathering, layout, packing, searching
from riverrun.state.schema import FULL_MASK, Schema
from riverrun.state.times import (
    Codes,
    Times,
    addressed_table,
    codes_in,
    time_at_depth,
    time_table,
)

Words = np.ndarray[Any, np.dtype[np.uint64]]

BLOCK_ROWS = 1 << 20
BLOCK_BYTES = 64 << 20
CHUNK_ROWS = 1 << 16  # rows that are written by one call
PACKED_ROWS = 4096  # up to so many rows, without lists and structs, are packed by one kernel
PACKED_BYTES = 1 << 20

_SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}


@dataclass(frozen=True, eq=False, repr=False)
class Block:
    """Rows [start, stop) of sorted columns. `columns` has None for a key that is recovered from its hash."""

    schema: Schema
    hashes: pa.Array
    columns: tuple[pa.Array | None, ...]
    times: Times
    codes: pa.Array | None
    diff: int
    diffs: pa.Array | None
    uid: str
    start: int
    stop: int
    resident: bool = True
    """Whether the buffers are in memory of our own, rather than in a mapped file."""
    holder: Any = None
    """Something that has to live as long as the buffers: a mapped file, for instance."""

    def __len__(self) -> int:
        return self.stop - self.start

    def __repr__(self) -> str:
        place = "memory" if self.resident else "a file"
        return f"<Block {self.uid} of {len(self)} changes in {place}>"

    @cached_property
    def nodes(self) -> Ints:
        width = self.schema.canonical[0].bit_width // 8 if self.schema.invertible else 8
        return node_table(
            self.columns, self.schema.descending, self.hashes.buffers()[1].address, width
        )

    @cached_property
    def words(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """The hashes of all rows, those outside [start, stop) included, as an array."""
        return as_array(self.hashes)

    @cached_property
    def directory(self) -> tuple[np.ndarray[Any, np.dtype[np.uint32]], int] | None:
        """The first row of each bucket of hashes, and the shift that makes a hash the number of its bucket."""
        rows = len(self.hashes)
        if rows < packing.DIRECTORY_ROWS:
            return None
        spread = int(self.words[-1]) - int(self.words[0])
        shift = max(0, spread.bit_length() - max(1, (rows // searching.BUCKET).bit_length()))
        directory = empty((spread >> shift) + 2, np.uint32)
        searching.fill_directory(self.hashes.buffers()[1].address, rows, shift, directory)
        return directory, shift

    @cached_property
    def descriptor(self) -> Ints:
        """The row of integers by which kernels know this block (`kernels.layout`)."""
        row = np.zeros(layout.BLOCK_FIELDS, np.int64)
        row[layout.HASHES] = self.hashes.buffers()[1].address
        row[layout.START], row[layout.STOP] = self.start, self.stop
        words = self.words.view(np.int64)
        row[layout.FIRST], row[layout.LAST] = words[self.start], words[self.stop - 1]
        if self.directory is not None:
            directory, row[layout.SHIFT] = self.directory
            row[layout.DIRECTORY] = directory.ctypes.data
            row[layout.BASE] = words[0]
        if self.codes is not None:
            row[layout.CODES] = self.codes.buffers()[1].address
            row[layout.CODE_WIDTH] = self.codes.type.bit_width // 8
        if self.diffs is not None:
            row[layout.DIFFS] = self.diffs.buffers()[1].address
            row[layout.DIFF_WIDTH] = self.diffs.type.bit_width // 8
        row[layout.DIFF] = self.diff
        row[layout.NODES] = self.nodes.ctypes.data
        row[layout.TIMES] = self.time_table.ctypes.data
        row[layout.TIME_COUNT] = len(self.times)
        return row

    @cached_property
    def time_table(self) -> Ints:
        """The times as kernels see them."""
        return time_table(self.times)

    @property
    def first(self) -> int:
        """The least hash."""
        return int(self.words[self.start])

    @property
    def last(self) -> int:
        """The greatest hash."""
        return int(self.words[self.stop - 1])

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all rows, those outside [start, stop) included, and of the directory."""
        arrays = (self.hashes, *self.columns, self.codes, self.diffs)
        directory = 0 if self.directory is None else self.directory[0].nbytes
        return directory + sum(int(array.nbytes) for array in arrays if array is not None)

    @property
    def hashes_suffice(self) -> bool:
        """Whether equal hashes are equal keys in this block, because the key is recovered from its hash."""
        return len(self.schema.key) == 1 and self.columns[0] is None

    def slice(self, low: int, high: int) -> Block | None:
        """The rows whose hash is in [low, high), over the same buffers; None when there are none."""
        rows = self.words[self.start : self.stop]
        start = self.start + int(np.searchsorted(rows, np.uint64(low)))
        stop = self.stop
        if high <= self.last:
            stop = self.start + int(np.searchsorted(rows, np.uint64(high)))
        if start >= stop:
            return None
        if (start, stop) == (self.start, self.stop):
            return self
        return self.restrict(start, stop)

    def restrict(self, start: int, stop: int) -> Block:
        """Rows [start, stop) over the same buffers; the cut is between hashes."""
        part = Block(
            self.schema, self.hashes, self.columns, self.times, self.codes, self.diff, self.diffs,
            self.uid, start, stop, self.resident, self.holder,
        )  # fmt: skip
        # These depend on the buffers and not on the rows, so the part shares them.
        part.__dict__.update(
            nodes=self.nodes, words=self.words, directory=self.directory, time_table=self.time_table
        )
        return part

    def at_depth(self, depth: int) -> Block:
        """The same rows at times of `depth` coordinates (`View.at_depth`): another block over the same buffers."""
        if any(any(time[depth:]) for time in self.times):
            raise ValueError(f"{self!r} has changes in rounds after the first")
        times = tuple([time_at_depth(time, depth) for time in self.times])
        table, address = addressed_table(times)
        descriptor = self.descriptor.copy()
        descriptor[layout.TIMES] = address
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.__dict__.update(times=times, time_table=table, descriptor=descriptor, uid=uuid4().hex)
        return other


_SIGNED_ARROW = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}
_UNSIGNED_ARROW = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32()}


class PackedBlock(Block):
    """A small block in one piece of memory (`kernels.packing`); Arrow arrays over it are made on first use."""

    def __init__(self, schema: Schema, slab: Ints, times: Times, rows: int) -> None:
        table, slab[layout.TIMES] = addressed_table(times)
        slab[layout.TIME_COUNT] = len(times)
        self.__dict__.update(
            schema=schema, slab=slab, times=times, start=0, stop=rows, resident=True, holder=None,
            descriptor=slab[: layout.BLOCK_FIELDS], time_table=table,
        )  # fmt: skip

    slab: Ints

    @cached_property
    def diff(self) -> int:
        return 0 if self.slab[layout.DIFF_WIDTH] else int(self.slab[layout.DIFF])

    @cached_property
    def uid(self) -> str:
        # Two threads may ask at once, and must get the same identifier.
        return self.__dict__.setdefault("uid", uuid4().hex)  # type: ignore[no-any-return]

    def _array(self, kind: pa.DataType, field: int) -> pa.Array:
        size = self.stop * kind.bit_width // 8
        buffer = pa.foreign_buffer(int(self.slab[field]), size, self.slab)
        return pa.Array.from_buffers(kind, self.stop, [None, buffer], 0)

    @cached_property
    def hashes(self) -> pa.Array:
        return self._array(pa.uint64(), layout.HASHES)

    @cached_property
    def codes(self) -> pa.Array | None:
        width = int(self.slab[layout.CODE_WIDTH])
        return self._array(_UNSIGNED_ARROW[width], layout.CODES) if width else None

    @cached_property
    def diffs(self) -> pa.Array | None:
        width = int(self.slab[layout.DIFF_WIDTH])
        return self._array(_SIGNED_ARROW[width], layout.DIFFS) if width else None

    @cached_property
    def nodes(self) -> Ints:
        count = len(self.schema.canonical)
        first = packing.NODES_WORD
        table = self.slab[first : first + count * layout.NODE_FIELDS]
        return table.reshape(count, layout.NODE_FIELDS)

    @cached_property
    def columns(self) -> tuple[pa.Array | None, ...]:
        first, kinds = packing.NODES_WORD, self.schema.canonical
        if not self.hashes_suffice:
            return tuple(slab_columns(self.slab, first, kinds, self.stop))
        values = slab_columns(self.slab, first + layout.NODE_FIELDS, kinds[1:], self.stop)
        return (None, *values)

    @cached_property
    def directory(self) -> tuple[np.ndarray[Any, np.dtype[np.uint32]], int] | None:
        if self.slab[layout.DIRECTORY] == 0:
            return None
        shift = int(self.slab[layout.SHIFT])
        entries = ((self.last - self.first) >> shift) + 2
        memory = pa.foreign_buffer(int(self.slab[layout.DIRECTORY]), entries * 4, self.slab)
        return np.frombuffer(memory, np.uint32), shift

    @property
    def first(self) -> int:
        return int(self.slab[layout.FIRST]) & FULL_MASK

    @property
    def last(self) -> int:
        return int(self.slab[layout.LAST]) & FULL_MASK

    @property
    def nbytes(self) -> int:
        return int(self.slab.nbytes)

    @property
    def hashes_suffice(self) -> bool:
        return (
            self.schema.invertible
            and int(self.slab[packing.NODES_WORD + layout.KIND]) == layout.HASHED
        )


NO_CODES = np.zeros(0, np.int32)
NO_DIFFS = np.zeros(0, np.int64)


def pack_rows(
    schema: Schema,
    arrays: Sequence[pa.Array],
    rows: int,
    times: Times,
    codes: Codes,
    diff: int,
    diffs: Ints,
) -> tuple[Block, ...] | None:
    """Sort unsorted columns, add up equal changes, and write them as one block, if the rows are few and flat.

    None when they are not; no block when all changes cancel.
    """
    template = schema.flat
    if template is None or rows > PACKED_ROWS or rows > BLOCK_ROWS:
        return None
    nodes = flat_table(template, arrays)
    with counted:
        slab, used, rows_left = packing.pack_rows(
            nodes, schema.key_end, rows, schema.hash_word, codes, len(times), diffs, diff,
            schema.invertible, min(PACKED_BYTES, BLOCK_BYTES),
        )  # fmt: skip
    return _packed(schema, slab, used, rows_left, times, codes)


def pack_blocks(
    schema: Schema, blocks: Sequence[Block], tables: Sequence[Times], times: Times
) -> tuple[Block, ...] | None:
    """`pack_rows` of the rows of several blocks: time i of block b becomes `tables[b][i]`."""
    rows = sum(map(len, blocks))
    if schema.flat is None or rows > PACKED_ROWS or rows > BLOCK_ROWS:
        return None
    many = len(times) > 1
    if many:
        maps = np.concatenate([codes_in(table, times) for table in tables])
        bases = np.cumsum([0, *map(len, tables)])
    else:
        maps = np.zeros(max(map(len, tables)), np.int32)
        bases = np.zeros(len(blocks), np.int64)
    descriptors = np.concatenate([block.descriptor for block in blocks])
    with counted:
        slab, used, rows_left = packing.pack_blocks(
            descriptors.reshape(len(blocks), layout.BLOCK_FIELDS), maps, bases, len(times), rows,
            schema.starts[-1], schema.invertible, min(PACKED_BYTES, BLOCK_BYTES),
        )  # fmt: skip
    return _packed(schema, slab, used, rows_left, times, used if many else NO_CODES)


def pack_merged(
    schema: Schema, a: Block, b: Block, tables: Sequence[Times], times: Times
) -> tuple[Block, ...] | None:
    """`pack_blocks` of two blocks, which are merged rather than sorted."""
    if schema.flat is None or len(a) + len(b) > min(PACKED_ROWS, BLOCK_ROWS):
        return None
    maps = [codes_in(table, times) for table in tables]
    with counted:
        slab, used, rows_left = packing.pack_merged(
            a.descriptor, maps[0], b.descriptor, maps[1], len(times), schema.starts[-1],
            schema.invertible, min(PACKED_BYTES, BLOCK_BYTES),
        )  # fmt: skip
    return _packed(schema, slab, used, rows_left, times, used if len(times) > 1 else NO_CODES)


def pack_difference(
    schema: Schema,
    keys: Ints,
    count: int,
    new_values: Ints,
    queries: Ints,
    blocks: Ints,
    old: tuple[Ints, Ints, Ints],
    time: Timestamp,
) -> tuple[Block, ...] | None:
    """The changes that replace old rows of some keys by new ones, as blocks; None when the keys are not in order.

    `kernels.differing` explains the arguments; `old` are the queries, names and counts of the old rows.
    """
    rows = len(queries) + len(old[0])
    arguments = (keys, count, schema.hash_word, new_values, queries, blocks, *old)
    if schema.flat is not None and rows <= min(PACKED_ROWS, BLOCK_ROWS):
        slab, rows_left = differing.pack_difference(
            *arguments, schema.invertible, min(PACKED_BYTES, BLOCK_BYTES)
        )
        if rows_left <= 0:
            return None if rows_left < 0 else ()
        if len(slab):
            return (PackedBlock(schema, slab, (time,), rows_left),)
    names, hashes, diffs, tables, rows_left = differing.list_difference(*arguments)
    if rows_left < 0:
        return None
    return BlockWriter(schema, (time,), rows_left).append_all(
        tables, names, hashes, NO_CODES, diffs
    )


def _packed(
    schema: Schema,
    slab: Ints,
    used: Ints,
    rows_left: int,
    times: Times,
    codes: np.ndarray[Any, Any],
) -> tuple[Block, ...] | None:
    if len(slab) == 0:
        return () if rows_left == 0 else None
    if len(codes) and used.min() < 0:
        times = tuple(times[code] for code in np.flatnonzero(used >= 0))
    return (PackedBlock(schema, slab, times, rows_left),)


class BlockWriter:
    """Writes sorted rows of other blocks into new blocks, cut between hashes (the *whole hashes* law).

    Where there is one time, the codes of the rows are ignored.
    """

    def __init__(self, schema: Schema, times: Times, rows: int) -> None:
        self._schema = schema
        self._times = times
        self._expected = rows
        self._length = 0
        kinds = schema.canonical
        self._rows_are_words = len(times) == 1 and schema.invertible and kinds[1:] == (pa.int64(),)

    def expect(self, rows: int) -> None:
        """Say about how many rows are still to come: a new block reserves memory for so many."""
        self._expected = self._length + rows

    def _open(self) -> None:
        capacity = min(self._expected, BLOCK_ROWS + CHUNK_ROWS)  # a block is cut after a chunk
        self._hashes = Cells()
        self._hashes.reserve(capacity * 8)
        self._columns = [ColumnWriter(kind, 0) for kind in self._schema.canonical]
        self._stored = [True] * len(self._columns)
        if self._schema.invertible:
            self._stored[0] = False
        for writer, stored in zip(self._columns, self._stored, strict=True):
            if stored and writer.width:
                writer.cells.reserve(capacity * writer.width)
        self._codes = _NarrowInts(_UNSIGNED, capacity)
        self._diffs = _NarrowInts(_SIGNED, capacity)

    def append(
        self, tables: Ints, rows: Ints, hashes: Words, codes: Codes, diffs: Ints
    ) -> list[Block]:
        """Append rows, in order, and return the blocks that this completed.

        `rows` are names of rows (`kernels.layout`): each says a block and a row in there. `tables` are the addresses of
        the tables of nodes of these blocks.
        """
        if len(rows) == 0:
            return []
        completed = []
        if self._full():
            last = self._hashes.array(np.uint64, self._length)[-1]
            more = int(np.searchsorted(hashes, last, "right"))
            if more < len(rows):  # the rows of the last hash belong here, the others to a new block
                self._write(tables, rows[:more], hashes[:more], codes[:more], diffs[:more])
                completed.append(self._cut())
                rows, hashes = rows[more:], hashes[more:]
                codes, diffs = codes[more:], diffs[more:]
        self._write(tables, rows, hashes, codes, diffs)
        return completed

    def reserve_words(self, rows: int) -> tuple[int, int] | None:
        """Reserve memory for `rows` more rows; return the addresses for their hashes and for their values.

        The caller writes there, and says with `append_reserved` how many rows it wrote. None where a row is more than a
        hash and one value of 64 bits, and where the block is full.
        """
        if not self._rows_are_words or self._full():
            return None
        if self._length == 0:
            self._open()
        values, size = self._columns[1], (self._length + rows) * 8
        if self._stored[0] or values.valid is not None:
            return None
        self._hashes.reserve(size)
        values.cells.reserve(size)
        written = self._length * 8
        return self._hashes.address + written, values.cells.address + written

    def append_reserved(self, diffs: Ints) -> None:
        """Count in the rows, with these diffs, that the caller wrote where `reserve_words` said."""
        if len(diffs):
            self._diffs.append(diffs, self._length)
            self._length += len(diffs)
            self._columns[1].length += len(diffs)

    def append_all(
        self, tables: Ints, rows: Ints, hashes: Words, codes: Codes, diffs: Ints
    ) -> tuple[Block, ...]:
        """`append` any number of rows, and `finish`."""
        blocks: list[Block] = []
        for start in range(0, len(rows), CHUNK_ROWS):
            piece = slice(start, min(start + CHUNK_ROWS, len(rows)))
            blocks += self.append(tables, rows[piece], hashes[piece], codes[piece], diffs[piece])
        return (*blocks, *self.finish())

    def _write(self, tables: Ints, rows: Ints, hashes: Words, codes: Codes, diffs: Ints) -> None:
        if len(rows) == 0:
            return
        if self._length == 0:
            self._open()
        start, self._length = self._length, self._length + len(rows)
        self._hashes.reserve(self._length * 8)
        self._hashes.array(np.uint64, self._length)[start:] = hashes
        node = 0
        for at, writer in enumerate(self._columns):
            if not self._stored[at] and gathering.any_validity(tables, node):
                self._store_key(start)
            if self._stored[at]:
                node = writer.append(tables, node, rows)
            else:
                node += node_count(writer.type)
        if len(self._times) > 1:
            self._codes.append(codes, start)
        self._diffs.append(diffs, start)

    def _store_key(self, rows: int) -> None:
        """Store the key column in this block from here on: a null key cannot be recovered from its hash."""
        self._stored[0] = True
        if rows:
            hashes = self._hashes.address
            table = node_table([None], [False], hashes, self._columns[0].width)
            self._columns[0].append(np.array([table.ctypes.data]), 0, np.arange(rows))

    def _full(self) -> bool:
        if self._length == 0:
            return False
        size = 8 * self._length + sum(writer.nbytes for writer in self._columns)
        return self._length >= BLOCK_ROWS or size >= BLOCK_BYTES

    def _cut(self) -> Block:
        self._expected = max(0, self._expected - self._length)
        hashes = pa.Array.from_buffers(
            pa.uint64(), self._length, [None, self._hashes.finish(self._length * 8)]
        )
        columns = tuple(
            writer.finish() if stored else None
            for writer, stored in zip(self._columns, self._stored, strict=True)
        )
        times, codes = self._codes.finish_codes(self._times, self._length)
        diff, diffs = self._diffs.finish(self._length)
        block = Block(
            self._schema, hashes, columns, times, codes, diff, diffs,
            uuid4().hex, 0, self._length,
        )  # fmt: skip
        self._length = 0
        _ = block.descriptor  # made here, block by block, rather than for all at the first read
        return block

    def finish(self) -> Iterator[Block]:
        """The last block, if there are rows in it; the writer cannot be used afterwards."""
        if self._length:
            yield self._cut()


class _NarrowInts:
    """A growing column of integers in little memory: a constant as long as all are equal, then the narrowest cells."""

    __slots__ = ("capacity", "cells", "constant", "highest", "lowest", "types", "width")

    def __init__(self, types: dict[int, Any], capacity: int) -> None:
        self.types = types
        self.capacity = capacity
        self.cells = Cells()
        self.width = 0
        self.constant = 0
        self.lowest = self.highest = 0

    def append(self, values: np.ndarray[Any, Any], start: int) -> None:
        lowest, highest = gathering.extent(values)
        if start == 0:
            self.constant, self.lowest, self.highest = int(values[0]), lowest, highest
        self.lowest, self.highest = min(self.lowest, lowest), max(self.highest, highest)
        if self.lowest == self.highest:
            return
        width = next(
            width
            for width, kind in self.types.items()
            if np.iinfo(kind).min <= self.lowest and self.highest <= np.iinfo(kind).max
        )
        if width != self.width:
            self._widen(width, start)
        self.cells.reserve((start + len(values)) * width)
        gathering.narrow(values, width, self.cells.address, start)

    def _widen(self, width: int, rows: int) -> None:
        old = self.constant if self.width == 0 else self.cells.array(self.types[self.width], rows)
        cells = Cells()
        cells.reserve(max(rows, self.capacity) * width)
        cells.array(self.types[width], rows)[:] = old
        self.cells, self.width = cells, width

    def finish(self, rows: int) -> tuple[int, pa.Array | None]:
        if self.width == 0:
            return self.constant, None
        kind = pa.from_numpy_dtype(self.types[self.width])
        return 0, pa.Array.from_buffers(kind, rows, [None, self.cells.finish(rows * self.width)])

    def finish_codes(self, times: Times, rows: int) -> tuple[Times, pa.Array | None]:
        """The times that occur, and the code of each row in that table; None where there is one time."""
        if self.width == 0:
            return (times[self.constant],), None  # the constant is 0 where no codes were given
        used = np.zeros(len(times), np.int64)
        count = gathering.renumber(self.cells.address, self.width, rows, used)
        if count < len(times):
            times = tuple(times[code] for code in np.flatnonzero(used))
        return times, self.finish(rows)[1]


def resident_bytes(blocks: Sequence[Block]) -> int:
    """Bytes of memory that the blocks hold; blocks that share buffers count once."""
    return sum({block.uid: block.nbytes for block in blocks if block.resident}.values())
