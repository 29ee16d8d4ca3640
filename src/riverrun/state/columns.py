"""Columns as kernels see them, and columns being written.

`node_table` turns Arrow arrays into the table of nodes of `kernels.layout`. `ColumnWriter` gathers
rows of other columns into buffers of its own that grow by doubling, and gives an Arrow array at the
end.

Law: a table of nodes is valid as long as the arrays it was made from are alive; whoever keeps one
keeps both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from riverrun.state.kernels import gathering, layout
from riverrun.state.slabs import LEAST, SLABS, Bytes, empty

Ints = np.ndarray[Any, np.dtype[np.int64]]

_T = pa.types


@lru_cache(maxsize=1024)
def kind_of(kind: pa.DataType) -> int:
    """The kind of node for a canonical Arrow type."""
    if _T.is_null(kind):
        return layout.NULL
    if _T.is_boolean(kind):
        return layout.BIT
    if _T.is_signed_integer(kind) or _T.is_temporal(kind):
        return layout.INT
    if _T.is_unsigned_integer(kind):
        return layout.UINT
    if _T.is_floating(kind):
        return layout.FLOAT
    if _T.is_decimal(kind):
        return layout.DECIMAL
    if _T.is_fixed_size_binary(kind):
        return layout.FIXED
    if _T.is_large_list(kind):
        return layout.LIST
    if _T.is_struct(kind):
        return layout.STRUCT
    return layout.BYTES


_WIDE = frozenset({layout.INT, layout.UINT, layout.FLOAT, layout.DECIMAL, layout.FIXED})


@lru_cache(maxsize=1024)
def cell_width(kind: pa.DataType) -> int:
    """Bytes of one cell of a fixed-width type; 0 for bits, bytes and nested types."""
    return int(kind.bit_width) // 8 if kind_of(kind) in _WIDE else 0


def _address(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else int(buffer.address)


def _add_nodes(array: pa.Array, descending: bool, parent: int, rows: list[list[int]]) -> None:
    kind = kind_of(array.type)
    buffers = array.buffers()
    valid = 0 if kind == layout.NULL or buffers[0] is None else _address(buffers[0])
    if valid and array.null_count == 0:
        valid = 0
    width = cell_width(array.type)
    row = [kind, width, 0, 0, valid, 1, int(descending), array.offset - parent]
    rows.append(row)
    if kind in _WIDE or kind == layout.BIT:
        row[layout.DATA] = _address(buffers[1])
    elif kind == layout.BYTES:
        row[layout.OFFSETS], row[layout.DATA] = _address(buffers[1]), _address(buffers[2])
    elif kind == layout.LIST:
        row[layout.OFFSETS] = _address(buffers[1])
        here = len(rows)
        _add_nodes(array.values, False, 0, rows)
        row[layout.SIZE] += len(rows) - here
    elif kind == layout.STRUCT:
        here = len(rows)
        for at in range(array.type.num_fields):
            # A child is indexed by the struct's own row number, its offset included; `field` counted it in already.
            _add_nodes(array.field(at), False, array.offset, rows)
        row[layout.SIZE] += len(rows) - here


def node_table(
    arrays: Sequence[pa.Array | None], descending: Sequence[bool], hashes: int = 0, width: int = 8
) -> Ints:
    """The table of nodes of some columns; None is an integer key of `width` bytes kept as its hash at `hashes`."""
    rows: list[list[int]] = []
    for array, down in zip(arrays, descending, strict=True):
        if array is None:
            rows.append([layout.HASHED, width, hashes, 0, 0, 1, int(down), 0])
        else:
            _add_nodes(array, down, 0, rows)
    return np.array(rows, np.int64).reshape(len(rows), layout.NODE_FIELDS)


def word_table(words: Ints) -> Ints:
    """The table of nodes of one column, given as an array of int64 in one piece."""
    address = words.__array_interface__["data"][0]
    return np.array([[layout.INT, 8, address, 0, 0, 1, 0, 0]], np.int64)


def gather_fixed(tables: Ints, node: int, rows: Ints, type_: pa.DataType) -> pa.Array:
    """The named rows of a fixed-width column in which nothing is null: the short way round `ColumnWriter`."""
    cells = empty(len(rows) * cell_width(type_), np.uint8)
    gathering.gather_cells(tables, node, rows, cells.__array_interface__["data"][0], 0)
    return pa.Array.from_buffers(type_, len(rows), [None, pa.py_buffer(cells)], 0)


@lru_cache(maxsize=1024)
def node_count(kind: pa.DataType) -> int:
    """How many nodes a column of this canonical type takes."""
    if _T.is_large_list(kind):
        return 1 + node_count(kind.value_type)
    if _T.is_struct(kind):
        return 1 + sum(node_count(field.type) for field in kind)
    return 1


class Cells:
    """A buffer that grows: `address` is valid until the next `reserve`."""

    __slots__ = ("address", "capacity", "memory")

    def __init__(self) -> None:
        self.memory: Bytes | pa.Buffer | None = None
        self.capacity = 0
        self.address = 0

    def reserve(self, size: int) -> None:
        """Have room for `size` bytes; grows to twice the room at least, so that appending is linear in all."""
        if size <= self.capacity:
            return
        old, used = self.memory, self.capacity
        size = max(size, 2 * self.capacity)
        if size >= LEAST:
            slab = SLABS.take(size)
            self.memory, self.capacity, self.address = slab, len(slab), slab.ctypes.data
        else:
            buffer = pa.allocate_buffer(size)
            self.memory, self.capacity, self.address = buffer, size, buffer.address
        if old is not None:
            self.array(np.uint8, used)[:] = np.frombuffer(old, np.uint8, used)

    def finish(self, size: int) -> pa.Buffer:
        """The first `size` bytes; much more than these is not kept."""
        if self.memory is None:
            return pa.py_buffer(b"")
        if self.capacity - size > self.capacity // 4:
            kept = empty(size, np.uint8)
            kept[:] = self.array(np.uint8, size)
            return pa.py_buffer(kept)
        return pa.py_buffer(self.memory).slice(0, size)

    def array(self, dtype: Any, size: int) -> np.ndarray[Any, Any]:
        """The first `size` cells as a NumPy array over the same memory."""
        if self.memory is None:
            return np.empty(0, dtype)
        return np.frombuffer(self.memory, dtype, size)


class ColumnWriter:
    """Gathers rows of other columns of one canonical type into one new column."""

    __slots__ = (
        "cells",
        "children",
        "kind",
        "length",
        "nulls",
        "offsets",
        "total",
        "type",
        "valid",
        "width",
    )

    def __init__(self, type_: pa.DataType, capacity: int = 0) -> None:
        self.type = type_
        self.kind = kind_of(type_)
        self.width = cell_width(type_)
        self.length = self.nulls = self.total = 0
        self.cells = Cells()
        self.offsets = Cells()
        self.valid: Cells | None = None
        self.children: list[ColumnWriter] = []
        if self.kind in _WIDE:
            self.cells.reserve(capacity * self.width)
        if self.kind in (layout.BYTES, layout.LIST):
            self.offsets.reserve((capacity + 1) * 8)
            self.offsets.array(np.int64, 1)[0] = 0
        if self.kind == layout.LIST:
            self.children = [ColumnWriter(type_.value_type)]
        elif self.kind == layout.STRUCT:
            self.children = [ColumnWriter(field.type, capacity) for field in type_]

    def append(self, tables: Ints, node: int, rows: Ints) -> int:
        """Append the named rows of the column at `node`; return the node of the next column."""
        start, self.length = self.length, self.length + len(rows)
        self._append_validity(tables, node, rows, start)
        after = node + 1
        if self.kind in _WIDE:
            self.cells.reserve(self.length * self.width)
            gathering.gather_cells(tables, node, rows, self.cells.address, start)
        elif self.kind == layout.BIT:
            self.cells.reserve((self.length + 7) // 8)
            gathering.gather_cells(tables, node, rows, self.cells.address, start)
        elif self.kind in (layout.BYTES, layout.LIST):
            self.offsets.reserve((self.length + 1) * 8)
            offsets = self.offsets.address
            self.total = gathering.gather_offsets(tables, node, rows, offsets, start, self.total)
            if self.kind == layout.BYTES:
                self.cells.reserve(self.total)
                gathering.gather_bytes(tables, node, rows, offsets, start, self.cells.address)
            else:
                inner = gathering.list_rows(tables, node, rows, offsets, start)
                after = self.children[0].append(tables, after, inner)
        elif self.kind == layout.STRUCT:
            inner = gathering.shift_origin(tables, node, rows)
            for child in self.children:
                after = child.append(tables, after, inner)
        return after

    def _append_validity(self, tables: Ints, node: int, rows: Ints, start: int) -> None:
        if self.kind == layout.NULL:
            return
        if self.valid is None:
            if not gathering.any_validity(tables, node):
                return
            self.valid = Cells()
            self.valid.reserve((max(self.length, 64) + 7) // 8)
            self.valid.array(np.uint8, (start + 7) // 8)[:] = 255
        self.valid.reserve((self.length + 7) // 8)
        self.nulls += gathering.gather_validity(tables, node, rows, self.valid.address, start)

    @property
    def nbytes(self) -> int:
        """The bytes written so far."""
        own = self.length * self.width + self.total * (self.kind == layout.BYTES)
        return own + sum(child.nbytes for child in self.children)

    def finish(self) -> pa.Array:
        """The column as an Arrow array; the writer is spent."""
        if self.kind == layout.NULL:
            return pa.nulls(self.length)
        valid = None
        if self.valid is not None and self.nulls:
            valid = self.valid.finish((self.length + 7) // 8)
        if self.kind in (layout.BYTES, layout.LIST):
            offsets = self.offsets.finish((self.length + 1) * 8)
            if self.kind == layout.BYTES:
                buffers = [valid, offsets, self.cells.finish(self.total)]
            else:
                buffers = [valid, offsets]
        elif self.kind == layout.STRUCT:
            buffers = [valid]
        else:
            size = self.length * self.width if self.width else (self.length + 7) // 8
            buffers = [valid, self.cells.finish(size)]
        children = [child.finish() for child in self.children] or None
        return pa.Array.from_buffers(self.type, self.length, buffers, self.nulls, 0, children)
