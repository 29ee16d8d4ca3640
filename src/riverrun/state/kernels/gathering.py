"""Copying chosen rows of blocks into new buffers, one column at a time.

A row is named by the position of its block in a list and its row number (`layout`); `tables` holds
the address of each block's table of nodes, so rows of many blocks, in any order, become one column.
Nested columns are gathered by their children: for a list, `list_rows` names the rows of the child.

Cost: 1 to 3 ns a row for a fixed-width column whose rows lie in order; a cache miss each where they
do not.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.compiling import kernel
from riverrun.state.kernels.layout import (
    BIT,
    DATA,
    FLOAT,
    HASHED,
    KIND,
    OFFSETS,
    ORIGIN,
    ROW_BITS,
    ROW_MASK,
    START,
    STOP,
    VALID,
    WIDTH,
)
from riverrun.state.kernels.memory import (
    bit,
    copy_bytes,
    load_i64,
    load_u64,
    load_uint,
    set_bit,
    store_64,
    store_int,
)
from riverrun.state.kernels.merging import code_at, diff_at
from riverrun.state.kernels.values import field, float_bits, is_null, unmix


@kernel
def gather_cells(tables: np.ndarray, node: int, rows: np.ndarray, target: int, start: int) -> None:
    """Copy fixed-width cells to `target` from cell `start` on; a cell that is null may hold anything."""
    kind, width = field(tables[0], node, KIND), field(tables[0], node, WIDTH)
    if kind == BIT:
        for at in range(rows.shape[0]):
            table, row = tables[rows[at] >> ROW_BITS], rows[at] & ROW_MASK
            row += field(table, node, ORIGIN)
            set_bit(target, start + at, bit(field(table, node, DATA), row))
        return
    if width == 8 and kind != FLOAT:
        # The common case: only where the cells of each table start differs.
        cells, hashed = np.empty(tables.shape[0], np.int64), False
        for at in range(tables.shape[0]):
            cells[at] = field(tables[at], node, DATA) + field(tables[at], node, ORIGIN) * 8
            hashed = hashed or field(tables[at], node, KIND) == HASHED
        if not hashed:
            target += start * 8
            for at in range(rows.shape[0]):
                name = rows[at]
                cell = cells[name >> ROW_BITS] + (name & ROW_MASK) * 8
                store_64(target + at * 8, load_i64(cell))
            return
    for at in range(rows.shape[0]):
        table, row = tables[rows[at] >> ROW_BITS], rows[at] & ROW_MASK
        row += field(table, node, ORIGIN)
        data = field(table, node, DATA)
        cell = target + (start + at) * width
        if field(table, node, KIND) == HASHED:
            store_int(cell, width, 0, np.int64(unmix(load_u64(data + row * 8))))
        elif kind == FLOAT:
            store_int(cell, width, 0, float_bits(data, width, row))
        elif width == 8:
            store_64(cell, load_i64(data + row * 8))
        else:
            copy_bytes(cell, data + row * width, width)


@kernel
def gather_validity(
    tables: np.ndarray, node: int, rows: np.ndarray, target: int, start: int
) -> int:
    """Write validity bits from bit `start` on; return how many rows are null."""
    nulls = 0
    for at in range(rows.shape[0]):
        table, row = tables[rows[at] >> ROW_BITS], rows[at] & ROW_MASK
        null = is_null(table, node, row + field(table, node, ORIGIN))
        set_bit(target, start + at, 0 if null else 1)
        nulls += null
    return nulls


@kernel
def any_validity(tables: np.ndarray, node: int) -> bool:
    """Whether some block has nulls in this column."""
    for table in tables:
        if field(table, node, VALID) != 0:
            return True
    return False


@kernel
def gather_offsets(
    tables: np.ndarray, node: int, rows: np.ndarray, target: int, start: int, total: int
) -> int:
    """Write the end offset of each row after `start`, counting on from `total`; return the new total."""
    for at in range(rows.shape[0]):
        table, row = tables[rows[at] >> ROW_BITS], rows[at] & ROW_MASK
        row += field(table, node, ORIGIN)
        if not is_null(table, node, row):
            offsets = field(table, node, OFFSETS) + row * 8
            total += load_i64(offsets + 8) - load_i64(offsets)
        store_64(target + (start + at + 1) * 8, total)
    return total


@kernel
def gather_bytes(
    tables: np.ndarray, node: int, rows: np.ndarray, offsets: int, start: int, target: int
) -> None:
    """Copy the bytes of each row to where `offsets`, written before, says."""
    for at in range(rows.shape[0]):
        table, row = tables[rows[at] >> ROW_BITS], rows[at] & ROW_MASK
        row += field(table, node, ORIGIN)
        here = load_i64(offsets + (start + at) * 8)
        size = load_i64(offsets + (start + at + 1) * 8) - here
        if size > 0:
            begin = load_i64(field(table, node, OFFSETS) + row * 8)
            copy_bytes(target + here, field(table, node, DATA) + begin, size)


@kernel
def list_rows(
    tables: np.ndarray, node: int, rows: np.ndarray, offsets: int, start: int
) -> np.ndarray:
    """The names of the rows of the child column that belong to `rows`, whose offsets were written before."""
    first = load_i64(offsets + start * 8)
    out = np.empty(load_i64(offsets + (start + rows.shape[0]) * 8) - first, np.int64)
    for at in range(rows.shape[0]):
        block, row = rows[at] >> ROW_BITS, rows[at] & ROW_MASK
        table = tables[block]
        row += field(table, node, ORIGIN)
        here = load_i64(offsets + (start + at) * 8)
        size = load_i64(offsets + (start + at + 1) * 8) - here
        if size > 0:
            begin = load_i64(field(table, node, OFFSETS) + row * 8)
            for element in range(size):
                out[here - first + element] = (block << ROW_BITS) | (begin + element)
    return out


@kernel
def shift_origin(tables: np.ndarray, node: int, rows: np.ndarray) -> np.ndarray:
    """Row numbers as the children of a struct count them: from the origin of the struct."""
    out = np.empty_like(rows)
    for at in range(rows.shape[0]):
        table = tables[rows[at] >> ROW_BITS]
        out[at] = rows[at] + field(table, node, ORIGIN)
    return out


@kernel
def extent(values: np.ndarray) -> tuple[int, int]:
    """The least and the greatest of some integers, one at least."""
    lowest = highest = values[0]
    for at in range(values.shape[0]):
        lowest = min(lowest, values[at])
        highest = max(highest, values[at])
    return np.int64(lowest), np.int64(highest)


@kernel
def list_rows_of_blocks(
    blocks: np.ndarray, code_maps: np.ndarray, bases: np.ndarray, written: np.ndarray
) -> None:
    """Write the name, the code and the diff of every row of some blocks. Code c of a block becomes maps[base + c]."""
    out = 0
    for at in range(blocks.shape[0]):
        block = blocks[at]
        for row in range(block[START], block[STOP]):
            written[0, out] = (at << ROW_BITS) | row
            written[1, out] = code_maps[bases[at] + code_at(block, row)]
            written[2, out] = diff_at(block, row)
            out += 1


@kernel
def is_ascending(words: np.ndarray) -> bool:
    """Whether no word is less than the one before it."""
    for at in range(1, words.shape[0]):
        if words[at] < words[at - 1]:
            return False
    return True


@kernel
def renumber(codes: int, width: int, rows: int, used: np.ndarray) -> int:
    """Renumber codes so that the codes that occur are consecutive; mark them in `used`; return how many occur."""
    for row in range(rows):
        used[load_uint(codes, width, row)] = 1
    numbers = np.cumsum(used) - 1
    count = numbers[-1] + 1
    if count < used.shape[0]:
        for row in range(rows):
            store_int(codes, width, row, numbers[load_uint(codes, width, row)])
    return count


@kernel
def narrow(values: np.ndarray, width: int, target: int, start: int) -> None:
    """Write integers as cells of `width` bytes from cell `start` on."""
    for at in range(values.shape[0]):
        store_int(target, width, start + at, values[at])
