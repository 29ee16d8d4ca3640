"""A block: a bounded, immutable, sorted piece of a batch, and the writer that makes blocks.

A batch is cut into blocks of about a million rows or 64 MB, so that memory is given back, written
to disk, checkpointed and mapped in pieces whose size does not depend on the state's. Laws:

1. Rows are sorted by (hash, key, declared order, value, time code) and no two agree in all of
   these.
2. No diff is zero.
3. The blocks of a batch ascend by hash, and no hash stands in two of them: a key is in one block.
4. What is the same for every row is not stored: a single time, a single diff, an integer key beside
   its hash.

Memory for int64 keys and values with one time and one diff: 16 bytes a row, and half a byte for the
directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

from riverrun.state.columns import Cells, ColumnWriter, Ints, node_count, node_table
from riverrun.state.kernels import gathering, layout, searching
from riverrun.state.schema import Schema
from riverrun.state.slabs import empty
from riverrun.state.times import Codes, Times

BLOCK_ROWS = 1 << 20
BLOCK_BYTES = 64 << 20
CHUNK_ROWS = 1 << 16  # rows that are written at once
DIRECTORY_ROWS = 64  # smaller blocks are searched without a directory

_SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}


@dataclass(frozen=True, eq=False, repr=False)
class Block:
    """Rows [start, stop) of sorted columns. `columns` has None for a key that is kept as its hash."""

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
    """What must outlive the buffers: a mapped file, for instance."""

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
        """The hashes, all of them, as an array."""
        return self.hashes.to_numpy(zero_copy_only=True)  # type: ignore[no-any-return]

    @cached_property
    def directory(self) -> tuple[np.ndarray[Any, np.dtype[np.uint32]], int] | None:
        """First rows by bucket of hashes, and the shift that makes a hash a bucket."""
        rows = len(self.hashes)
        if rows < DIRECTORY_ROWS:
            return None
        spread = int(self.words[-1]) - int(self.words[0])
        shift = max(0, spread.bit_length() - max(1, (rows // searching.BUCKET).bit_length()))
        directory = empty((spread >> shift) + 2, np.uint32)
        searching.fill_directory(self.hashes.buffers()[1].address, rows, shift, directory)
        return directory, shift

    @cached_property
    def descriptor(self) -> Ints:
        """The row of integers that kernels know this block by (`kernels.layout`)."""
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
        return row

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
    def inverts(self) -> bool:
        """Whether equal hashes are equal keys here, because the key is its hash."""
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
        part = replace(self, start=start, stop=stop)
        # What belongs to the buffers rather than to the rows is shared, and not made again.
        part.__dict__.update(nodes=self.nodes, words=self.words, directory=self.directory)
        return part


class BlockWriter:
    """Writes sorted rows of other blocks into new blocks, cutting between hashes (law 3)."""

    def __init__(self, schema: Schema, times: Times, rows: int) -> None:
        self._schema = schema
        self._times = times
        self.expected = rows
        """About how many rows are still to come: what a new block reserves memory for."""
        self._length = 0

    def _open(self) -> None:
        capacity = min(self.expected, BLOCK_ROWS + CHUNK_ROWS)  # a block is cut after a chunk
        self._hashes = Cells()
        self._hashes.reserve(capacity * 8)
        self._columns = [ColumnWriter(kind, 0) for kind in self._schema.canonical]
        self._stored = [True] * len(self._columns)
        if self._schema.invertible:
            self._stored[0] = False
        for writer, stored in zip(self._columns, self._stored, strict=True):
            if stored and writer.width:
                writer.cells.reserve(capacity * writer.width)
        self._codes = _Narrow(_UNSIGNED, capacity)
        self._diffs = _Narrow(_SIGNED, capacity)

    def append(
        self, addresses: Ints, tables: Ints, rows: Ints, codes: Codes, diffs: Ints
    ) -> list[Block]:
        """Append the named rows; return the blocks that this completed.

        `addresses` and `tables` are those of the hashes and nodes of the blocks that the rows are
        named after.
        """
        if len(rows) == 0:
            return []
        completed = []
        if self._length >= BLOCK_ROWS or self._nbytes() >= BLOCK_BYTES:
            last = self._hashes.array(np.uint64, self._length)[-1]
            more = gathering.leading(addresses, rows, last)
            if more < len(rows):  # the rows of the last hash belong here, the others to a new block
                self._write(addresses, tables, rows[:more], codes[:more], diffs[:more])
                completed.append(self._cut())
                rows, codes, diffs = rows[more:], codes[more:], diffs[more:]
        self._write(addresses, tables, rows, codes, diffs)
        return completed

    def _write(self, addresses: Ints, tables: Ints, rows: Ints, codes: Codes, diffs: Ints) -> None:
        if len(rows) == 0:
            return
        if self._length == 0:
            self._open()
        start, self._length = self._length, self._length + len(rows)
        self._hashes.reserve(self._length * 8)
        gathering.gather_words(addresses, rows, self._hashes.address + start * 8)
        node = 0
        for at, writer in enumerate(self._columns):
            if not self._stored[at] and gathering.any_validity(tables, node):
                self._store_key(start)
            if self._stored[at]:
                node = writer.append(tables, node, rows)
            else:
                node += node_count(writer.type)
        self._codes.append(codes, start)
        self._diffs.append(diffs, start)

    def _store_key(self, rows: int) -> None:
        """A null key has no place in its hash: from here on this block stores the key column."""
        self._stored[0] = True
        if rows:
            hashes = self._hashes.address
            table = node_table([None], [False], hashes, self._columns[0].width)
            self._columns[0].append(np.array([table.ctypes.data]), 0, np.arange(rows))

    def _nbytes(self) -> int:
        if self._length == 0:
            return 0
        return 8 * self._length + sum(writer.nbytes for writer in self._columns)

    def _cut(self) -> Block:
        self.expected = max(0, self.expected - self._length)
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
        _ = (
            block.descriptor
        )  # made now, a block at a time, rather than for all blocks at the first read
        return block

    def finish(self) -> Iterator[Block]:
        """The last block, if there is one; the writer is spent."""
        if self._length:
            yield self._cut()


class _Narrow:
    """Integers, most of them alike: one constant while it lasts, then the narrowest cells that hold them all."""

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
        """The times that occur, and codes into them."""
        if self.width == 0:
            return (times[self.constant],), None
        used = np.zeros(len(times), np.int64)
        count = gathering.renumber(self.cells.address, self.width, rows, used)
        if count < len(times):
            times = tuple(times[code] for code in np.flatnonzero(used))
        return times, self.finish(rows)[1]


def resident_bytes(blocks: Sequence[Block]) -> int:
    """Memory that the blocks hold, each counted once."""
    return sum({block.uid: block.nbytes for block in blocks if block.resident}.values())
