"""Columns as kernels see them, and the writer of new columns.

Kernels take columns as a *table of nodes* (`kernels.layout`). A node is a row of integers for one Arrow array, mostly
the addresses of the array's buffers. `node_table` and `column_table` make such tables from Arrow arrays. The
`gather_...` functions and `take_columns` make new columns from rows of old columns: up to 4,096 rows of flat columns by
one call of a kernel, more rows by `ColumnWriter`, whose buffers grow by doubling. A row of some block has a *name*:
an integer that holds the number of the block and the number of the row in the block. Law:

- **Owners stay alive.** A table of nodes is valid as long as the arrays are alive from which it was made; an object
  that holds the table holds the arrays too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from riverrun.state.buffers import BUFFERS, LEAST, Bytes, empty
from riverrun.state.kernels import gathering, layout, packing

Ints = np.ndarray[Any, np.dtype[np.int64]]

_T = pa.types
_INT64 = pa.int64()
_KIND_OF = {
    char: pa.from_numpy_dtype(np.dtype(char)) for char in "?" + np.typecodes["AllInteger"] + "efd"
}
"""The type of a column of numbers, by NumPy's character for theirs."""
_DTYPE_OF = {kind.id: np.dtype(char) for char, kind in _KIND_OF.items()}
_BIT_ID = pa.bool_().id


_WIDE = frozenset({layout.INT, layout.UINT, layout.FLOAT, layout.DECIMAL, layout.FIXED})
_DEEP = frozenset({layout.LIST, layout.STRUCT})


def _kinds() -> tuple[dict[int, int], dict[int, int]]:
    """The kind of node and the width of a cell, by the id of an Arrow type: asking for an id is cheap, hashing is
    not."""
    integers = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.date32(), pa.date64()]
    integers += [pa.time32("s"), pa.time64("us"), pa.timestamp("s"), pa.duration("s")]
    decimals = [pa.decimal32(1), pa.decimal64(1), pa.decimal128(1), pa.decimal256(1)]
    listed = {
        layout.NULL: [pa.null()],
        layout.BIT: [pa.bool_()],
        layout.INT: integers,
        layout.UINT: [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()],
        layout.FLOAT: [pa.float16(), pa.float32(), pa.float64()],
        layout.DECIMAL: decimals,
        layout.FIXED: [pa.binary(1)],
        layout.BYTES: [pa.large_string(), pa.large_binary()],
        layout.LIST: [pa.large_list(pa.null())],
        layout.STRUCT: [pa.struct([])],
    }
    numbers = {kind.id: node for node, kinds in listed.items() for kind in kinds}
    wide = [kind for node in _WIDE for kind in listed[node]]
    return numbers, dict.fromkeys(numbers, 0) | {kind.id: kind.bit_width // 8 for kind in wide}


_KINDS, _WIDTHS = _kinds()
_FIXED_ID = pa.binary(1).id


def kind_of(kind: pa.DataType) -> int:
    """The kind of node for a canonical Arrow type."""
    return _KINDS[kind.id]


def cell_width(kind: pa.DataType) -> int:
    """Bytes of one cell of a fixed-width type; 0 for bits, bytes and nested types."""
    return int(kind.bit_width) // 8 if _KINDS[kind.id] in _WIDE else 0


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
            # Kernels index a child by the row number of the struct with the offset of the struct added, and the array
            # that `field` returns has that offset added already.
            _add_nodes(array.field(at), False, array.offset, rows)
        row[layout.SIZE] += len(rows) - here


def node_table(
    arrays: Sequence[pa.Array | None], descending: Sequence[bool], hashes: int = 0, width: int = 8
) -> Ints:
    """The table of nodes of some columns.

    None in place of an array stands for an integer key of `width` bytes that is recovered from the hashes at address
    `hashes`.
    """
    rows: list[list[int]] = []
    for array, down in zip(arrays, descending, strict=True):
        if array is None:
            rows.append([layout.HASHED, width, hashes, 0, 0, 1, int(down), 0])
        else:
            _add_nodes(array, down, 0, rows)
    return np.array(rows, np.int64).reshape(len(rows), layout.NODE_FIELDS)


def flat_table(template: Ints, arrays: Sequence[pa.Array]) -> Ints:
    """`node_table` of columns without lists and structs: `template` has everything except the addresses."""
    nodes = template.copy()
    for at, array in enumerate(arrays):
        buffers = array.buffers()
        if array.null_count and buffers[0] is not None:
            nodes[at, layout.VALID] = buffers[0].address
        if array.offset:
            nodes[at, layout.ORIGIN] = array.offset
        if len(buffers) == 2:
            if buffers[1] is not None:
                nodes[at, layout.DATA] = buffers[1].address
        elif len(buffers) == 3:
            nodes[at, layout.OFFSETS] = _address(buffers[1])
            nodes[at, layout.DATA] = _address(buffers[2])
    return nodes


def flat_template(kinds: Sequence[pa.DataType], descending: Sequence[bool]) -> Ints | None:
    """The template for `flat_table`; None when some column is a list or a struct."""
    if any(kind_of(kind) in _DEEP for kind in kinds):
        return None
    rows = [
        [kind_of(kind), cell_width(kind), 0, 0, 0, 1, int(down), 0]
        for kind, down in zip(kinds, descending, strict=True)
    ]
    return np.array(rows, np.int64).reshape(len(rows), layout.NODE_FIELDS)


def int64_column(values: Ints) -> pa.Array:
    """Integers as a column over the same memory: the same as `pa.array`, in half the time."""
    return pa.Array.from_buffers(_INT64, len(values), [None, pa.py_buffer(values)], 0)


def as_column(
    values: np.ndarray[Any, Any],
    valid: np.ndarray[Any, np.dtype[np.bool_]] | None = None,
    kind: pa.DataType | None = None,
) -> pa.Array:
    """Numbers or truths as a column, numbers over the same memory; null where they are not `valid`.

    `kind` is a type whose cells are those numbers; otherwise it follows from them. The first `pa.array` of a process
    imports pandas where pandas is installed, which takes as long as all else that a worker imports; this does not.
    """
    kind = _KIND_OF[values.dtype.char] if kind is None else kind
    cells = np.packbits(values, bitorder="little") if values.dtype == bool else values
    nulls = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(
        kind, len(values), [nulls, pa.py_buffer(np.ascontiguousarray(cells))]
    )


def as_array(column: pa.Array) -> np.ndarray[Any, Any]:
    """The numbers of a column over its memory, or its truths: the inverse of `as_column`. Nulls have any cell."""
    data, kind, rows = column.buffers()[1], column.type, len(column)
    if data is None:
        return np.empty(0, kind.to_pandas_dtype())
    if kind.id == _BIT_ID:
        end = column.offset + rows
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=end, bitorder="little")
        return bits[column.offset :].view(np.bool_)
    return np.frombuffer(data, _DTYPE_OF[kind.id], rows, column.offset * kind.byte_width)


def slab_columns(slab: Ints, first: int, kinds: Sequence[pa.DataType], rows: int) -> list[pa.Array]:
    """The columns that the nodes at word `first` of a slab describe, over the memory of the slab
    (`kernels.packing`)."""
    fields = slab[first : first + len(kinds) * layout.NODE_FIELDS].tolist()
    columns = []
    for at, type_ in enumerate(kinds):
        here = at * layout.NODE_FIELDS
        kind, data, valid = fields[here], fields[here + layout.DATA], fields[here + layout.VALID]
        if kind == layout.NULL:
            columns.append(pa.nulls(rows))
            continue
        buffers = [pa.foreign_buffer(valid, (rows + 7) // 8, slab) if valid else None]
        if kind == layout.BYTES:
            offsets = pa.foreign_buffer(fields[here + layout.OFFSETS], (rows + 1) * 8, slab)
            size = int(np.frombuffer(offsets, np.int64)[rows])
            buffers.append(offsets)
        else:
            width = fields[here + layout.WIDTH]
            size = (rows + 7) // 8 if kind == layout.BIT else rows * width
        buffers.append(pa.foreign_buffer(data, size, slab))
        columns.append(pa.Array.from_buffers(type_, rows, buffers, -1 if valid else 0))
    return columns


def word_table(words: Ints) -> Ints:
    """The table of nodes of one column: a contiguous array of int64."""
    address = words.__array_interface__["data"][0]
    return np.array([[layout.INT, 8, address, 0, 0, 1, 0, 0]], np.int64)


def gather_column(tables: Ints, node: int, rows: Ints, type_: pa.DataType) -> pa.Array:
    """The rows with the names `rows`, of the column at `node` of some blocks; `tables` are the addresses of their
    tables."""
    kind = _KINDS[type_.id]
    count = len(rows)
    if count == 0:
        return ColumnWriter(type_).finish()
    if kind not in _DEEP and count <= _FEW:
        slab = packing.pack_named(tables, rows, node, node + 1)
        return slab_columns(slab, 0, (type_,), count)[0]
    if kind in _WIDE and not gathering.any_validity(tables, node):
        return gather_fixed(tables, node, rows, type_)
    writer = ColumnWriter(type_, count)
    writer.append(tables, node, rows)
    return writer.finish()


def gather_columns(
    tables: Ints, rows: Ints, starts: Sequence[int], kinds: Sequence[pa.DataType], indices: Sequence[int]
) -> list[pa.Array]:  # fmt: skip
    """`gather_column` of the columns at some indices, by one kernel call where rows are few."""
    picked = [kinds[at] for at in indices]
    if 0 < len(rows) <= _FEW and indices and _are_flat(picked):
        nodes = np.array([starts[at] for at in indices])
        slab = packing.pack_picked(
            tables, rows, tables, rows, np.zeros(len(nodes), np.int64), nodes
        )
        return slab_columns(slab, 0, picked, len(rows))
    return [gather_column(tables, starts[at], rows, kinds[at]) for at in indices]


def gather_pairs(
    left: tuple[Ints, Ints],
    right: tuple[Ints, Ints],
    sides: Ints,
    nodes: Ints,
    kinds: Sequence[pa.DataType],
) -> list[pa.Array]:
    """Columns of pairs of rows. A side is the tables of its blocks and the names of its rows.

    Column i of the result is the column at nodes[i]: of the right side where sides[i] is 1, else of the left side.
    """
    rows = len(left[1])
    if 0 < rows <= _FEW and kinds and _are_flat(kinds):
        slab = packing.pack_picked(*left, *right, sides, nodes)
        return slab_columns(slab, 0, kinds, rows)
    columns = []
    for side, node, kind in zip(sides.tolist(), nodes.tolist(), kinds, strict=True):
        tables, names = right if side else left
        columns.append(gather_column(tables, node, names, kind))
    return columns


def _are_flat(kinds: Sequence[pa.DataType]) -> bool:
    return _DEEP.isdisjoint([_KINDS[kind.id] for kind in kinds])


def gather_fixed(tables: Ints, node: int, rows: Ints, type_: pa.DataType) -> pa.Array:
    """`gather_column` of a fixed-width column without nulls, which needs no `ColumnWriter`."""
    cells = empty(len(rows) * cell_width(type_), np.uint8)
    gathering.gather_cells(tables, node, rows, cells.__array_interface__["data"][0], 0)
    return pa.Array.from_buffers(type_, len(rows), [None, pa.py_buffer(cells)], 0)


def take_columns(
    arrays: Sequence[pa.Array], rows: Ints, exact: bool = True
) -> tuple[pa.Array, ...]:
    """The rows with these numbers, of some columns.

    `exact` keeps the sign of zero and the bits of NaN; otherwise floats come out as states keep them, without either.
    """
    count = len(rows)
    kinds = [array.type for array in arrays]
    if count <= _FEW or not exact:
        nodes = _quick_table(arrays, exact)
        if nodes is not None:
            return tuple(slab_columns(packing.take_rows(nodes, rows), 0, kinds, count))
    if exact:
        chosen = as_column(rows)
        return tuple(array.take(chosen) for array in arrays)
    nodes = node_table(arrays, [False] * len(arrays))
    tables = np.array([nodes.__array_interface__["data"][0]])
    taken, node = [], 0
    for kind in kinds:
        writer = ColumnWriter(kind, count)
        node = writer.append(tables, node, rows)
        taken.append(writer.finish())
    return tuple(taken)


def column_table(arrays: Sequence[pa.Array]) -> Ints:
    """`node_table` of columns in ascending order, quickly where there are no lists and structs."""
    nodes = _quick_table(arrays, False)
    return node_table(arrays, [False] * len(arrays)) if nodes is None else nodes


def _quick_table(arrays: Sequence[pa.Array], exact: bool) -> Ints | None:
    template = _template(tuple([array.type.id for array in arrays]), exact)
    if template is None:
        return None
    nodes = flat_table(template, arrays)
    for at, array in enumerate(arrays):
        if array.type.id == _FIXED_ID:
            nodes[at, layout.WIDTH] = array.type.byte_width
    return nodes


@lru_cache(maxsize=1024)
def _template(ids: tuple[int, ...], exact: bool) -> Ints | None:
    """The template for `flat_table`, for types known by their ids; the width of fixed-size binary is left out."""
    kinds = [_KINDS[number] for number in ids]
    if not _DEEP.isdisjoint(kinds):
        return None
    nodes = np.zeros((len(ids), layout.NODE_FIELDS), np.int64)
    nodes[:, layout.SIZE] = 1
    nodes[:, layout.WIDTH] = [_WIDTHS[number] for number in ids]
    # Rows that are only copied are neither compared nor hashed: bits of floats are copied as integers.
    nodes[:, layout.KIND] = [
        layout.INT if exact and kind == layout.FLOAT else kind for kind in kinds
    ]
    return nodes


_FEW = 4096  # up to so many rows, one kernel call for all columns beats a call of Arrow for each


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
        """Have room for `size` bytes. The buffer at least doubles when it grows, so appending costs linear time in
        all."""
        if size <= self.capacity:
            return
        old, used = self.memory, self.capacity
        size = max(size, 2 * self.capacity)
        if size >= LEAST:
            slab = BUFFERS.take(size)
            self.memory, self.capacity, self.address = slab, len(slab), slab.ctypes.data
        else:
            buffer = pa.allocate_buffer(size)
            self.memory, self.capacity, self.address = buffer, size, buffer.address
        if old is not None:
            self.array(np.uint8, used)[:] = np.frombuffer(old, np.uint8, used)

    def finish(self, size: int) -> pa.Buffer:
        """The first `size` bytes; copied where more than a quarter of the buffer would be wasted."""
        if self.memory is None:
            return pa.py_buffer(b"")
        if self.capacity - size > self.capacity // 4:
            trimmed = empty(size, np.uint8)
            trimmed[:] = self.array(np.uint8, size)
            return pa.py_buffer(trimmed)
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
        """Append the rows with these names, of the column at `node`; return the node of the next column."""
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
        """The column as an Arrow array; the writer cannot be used afterwards."""
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
