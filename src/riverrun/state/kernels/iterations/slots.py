"""Slots: small numbers for keys, found by open addressing.

`operators.iterations.slots` keeps the arrays. The table holds slots; its size is a power of two, and less than half of
it is in use. There are two forms:

- *Words*: keys of one integer column. `keys` has the integer of each slot.
- *Rows*: all other keys. `hashes` has the hash of each slot, `names` says where its key lies: the number of a piece of
  columns, and the row in it (`layout.ROW_BITS`).
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.compiling import kernel
from riverrun.state.kernels.layout import DATA, INT, KIND, ORIGIN, ROW_BITS, ROW_MASK, SIZE, WIDTH
from riverrun.state.kernels.memory import load_int, prefetch
from riverrun.state.kernels.values import U, compare_rows, field, is_null, mix

AHEAD = 16  # rows whose place in the table is asked for early


@kernel
def find_words(
    nodes: np.ndarray, first: int, stop: int, table: np.ndarray, keys: np.ndarray, counts: np.ndarray,
    out: np.ndarray,
) -> None:  # fmt: skip
    """The slots of rows `first` to `stop` of a column of integers.

    counts[0] is the number of slots, counts[1] the slot of null, or -1.
    """
    address = nodes.ctypes.data
    data, width, origin = nodes[0, DATA], nodes[0, WIDTH], nodes[0, ORIGIN]
    signed = nodes[0, KIND] == INT
    mask = U(table.shape[0] - 1)
    keep = (np.int64(1) << (8 * width)) - 1 if width < 8 and not signed else np.int64(-1)
    count = counts[0]
    where = table.ctypes.data
    large = table.shape[0] > 1 << 16
    for row in range(first, stop):
        if is_null(address, 0, row + origin):
            if counts[1] < 0:
                counts[1] = count
                keys[count] = 0
                count += 1
            out[row] = counts[1]
            continue
        if large and row + AHEAD < stop:
            later = load_int(data, width, row + origin + AHEAD) & keep
            prefetch(where + 4 * np.int64(mix(U(later)) & mask))
        word = load_int(data, width, row + origin) & keep
        at = mix(U(word)) & mask
        slot = np.int64(table[at])
        while slot >= 0 and keys[slot] != word:
            at = (at + U(1)) & mask
            slot = np.int64(table[at])
        if slot < 0:
            slot = count
            table[at] = slot
            keys[slot] = word
            count += 1
        out[row] = slot
    counts[0] = count


@kernel
def find_rows(
    nodes: np.ndarray, first: int, stop: int, row_hashes: np.ndarray, table: np.ndarray, hashes: np.ndarray,
    names: np.ndarray, tables: np.ndarray, counts: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    """The slots of rows `first` to `stop` of columns.

    A new slot is named as a row of the last piece in `tables`, the columns themselves. counts[0] is the number of
    slots.
    """
    address, end = nodes.ctypes.data, nodes.shape[0]
    piece = tables.shape[0] - 1
    mask = U(table.shape[0] - 1)
    count = counts[0]
    for row in range(first, stop):
        word = row_hashes[row]
        at = word & mask
        slot = np.int64(table[at])
        while slot >= 0:
            if hashes[slot] == word:
                name = names[slot]
                if (
                    compare_rows(tables[name >> ROW_BITS], name & ROW_MASK, address, row, 0, end)
                    == 0
                ):
                    break
            at = (at + U(1)) & mask
            slot = np.int64(table[at])
        if slot < 0:
            slot = count
            table[at] = slot
            hashes[slot] = word
            names[slot] = (piece << ROW_BITS) | row
            count += 1
        out[row] = slot
    counts[0] = count


@kernel
def fill_table(
    table: np.ndarray, keys: np.ndarray, hashes: np.ndarray, count: int, null_slot: int
) -> None:
    """Fill an empty table with slots 0 to `count`; `keys` is empty for slots of rows."""
    table[:] = -1
    mask = U(table.shape[0] - 1)
    words = keys.shape[0] > 0
    for slot in range(count):
        if slot == null_slot:
            continue
        at = (mix(U(keys[slot])) if words else hashes[slot]) & mask
        while table[at] >= 0:
            at = (at + U(1)) & mask
        table[at] = slot


@kernel
def has_nulls(nodes: np.ndarray, rows: int, out: np.ndarray) -> int:
    """Mark the rows where some column is null; the number of them."""
    address = nodes.ctypes.data
    total = 0
    for row in range(rows):
        node, null = 0, False
        while node < nodes.shape[0]:
            null |= is_null(address, node, row + nodes[node, ORIGIN])
            node += field(address, node, SIZE)
        out[row] = null
        total += null
    return total
