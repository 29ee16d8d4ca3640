"""The difference between the old rows and the new rows of some keys, as sorted changes.

`Batch.difference` calls these kernels (by way of `state.block`) for reduce and upsert. These operators have the old
rows of some keys from a state, and at most one new row for each key. Laws:

- **Sorted.** Keys come in the order of a batch, by hash and then by key, and the old rows of a key come sorted. So the
  difference comes out in the order of a batch, and nothing is sorted: for each key the old rows with their counts
  negated, and among them, in its place, the new row with the diff 1. Where the new row equals an old row, their diffs
  are added up, and a row whose diff is then 0 is left out.
- **Disorder is noticed.** Where the keys are not in the order of a batch, the number of rows is -1, and there is no
  difference.

Cost: at most one exact comparison for each old row.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.compiling import kernel
from riverrun.state.kernels.layout import DATA, NODES, OFFSETS, ORIGIN, ROW_BITS, ROW_MASK, WIDTH
from riverrun.state.kernels.memory import prefetch
from riverrun.state.kernels.packing import NO_SLAB, write_block
from riverrun.state.kernels.searching import FULL_HASH
from riverrun.state.kernels.values import compare_rows, field, hash_rows

AHEAD = 16  # rows whose values are asked for before they are compared


@kernel
def prefetch_cell(nodes: int, node: int, row: int) -> None:
    """Prefetch a cell of a column; of a variable-width column, its offset."""
    row += field(nodes, node, ORIGIN)
    width = field(nodes, node, WIDTH)
    prefetch(
        field(nodes, node, DATA) + row * width if width else field(nodes, node, OFFSETS) + row * 8
    )


@kernel
def ascend(hashes: np.ndarray, keys: int, key_end: int) -> bool:
    """Whether rows are in the order of a batch: by hash, then by key."""
    for at in range(1, hashes.shape[0]):
        if hashes[at] < hashes[at - 1]:
            return False
        if hashes[at] == hashes[at - 1] and compare_rows(keys, at - 1, keys, at, 0, key_end) >= 0:
            return False
    return True


@kernel
def list_difference(
    keys: np.ndarray,
    count: int,
    mask: np.uint64,
    new_rows: np.ndarray,
    queries: np.ndarray,
    blocks: np.ndarray,
    old_queries: np.ndarray,
    old_names: np.ndarray,
    old_counts: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """Names, hashes and diffs of the rows of the difference, the tables to which the names refer, and how many rows.

    `keys` is the table of nodes of the keys, `new_rows` that of the new rows: new row i is the row of key
    queries[i]. The names of old rows refer to `blocks`. The number of rows is -1 when the keys are not in order.
    """
    key_end, end = keys.shape[0], new_rows.shape[0]
    hashes = np.empty(count, np.uint64)
    hash_rows(np.int64(keys.ctypes.data), key_end, count, hashes)
    if mask != FULL_HASH:
        hashes &= mask
    room = queries.shape[0] + old_queries.shape[0]
    names, diffs = np.empty(room, np.int64), np.empty(room, np.int64)
    out_hashes = np.empty(room, np.uint64)
    fresh = np.int64(new_rows.ctypes.data)
    tables = np.empty(blocks.shape[0] + 1, np.int64)
    tables[0] = fresh
    for at in range(blocks.shape[0]):
        tables[at + 1] = blocks[at, NODES]
    if not ascend(hashes, np.int64(keys.ctypes.data), key_end):
        return names, out_hashes, diffs, tables, -1
    i, j, out = 0, 0, 0
    while i < queries.shape[0] or j < old_queries.shape[0]:
        query = np.int64(count)
        if i < queries.shape[0]:
            query = queries[i]
        if j < old_queries.shape[0]:
            query = min(query, old_queries[j])
        is_new = i < queries.shape[0] and queries[i] == query
        if key_end < end and j + AHEAD < old_names.shape[0]:
            name = old_names[j + AHEAD] + (np.int64(1) << ROW_BITS)
            prefetch_cell(tables[name >> ROW_BITS], key_end, name & ROW_MASK)
        while j < old_queries.shape[0] and old_queries[j] == query:
            name, diff = old_names[j] + (np.int64(1) << ROW_BITS), -old_counts[j]
            j += 1
            if is_new:
                table, row = tables[name >> ROW_BITS], name & ROW_MASK
                order = compare_rows(fresh, i, table, row, key_end, end)
                if order <= 0:
                    is_new = False
                    if order == 0:
                        diff += 1
                    else:
                        names[out], out_hashes[out], diffs[out] = i, hashes[query], 1
                        out += 1
                    i += 1
            if diff != 0:
                names[out], out_hashes[out], diffs[out] = name, hashes[query], diff
                out += 1
        if is_new:
            names[out], out_hashes[out], diffs[out] = i, hashes[query], 1
            out += 1
            i += 1
    return names[:out], out_hashes[:out], diffs[:out], tables, out


@kernel
def pack_difference(
    keys: np.ndarray,
    count: int,
    mask: np.uint64,
    new_rows: np.ndarray,
    queries: np.ndarray,
    blocks: np.ndarray,
    old_queries: np.ndarray,
    old_names: np.ndarray,
    old_counts: np.ndarray,
    invertible: bool,
    most: int,
) -> tuple[np.ndarray, int]:
    """The slab of a block of the difference, and how many rows it has."""
    names, hashes, diffs, tables, rows = list_difference(
        keys, count, mask, new_rows, queries, blocks, old_queries, old_names, old_counts
    )
    if rows <= 0:
        return np.empty(NO_SLAB, np.int64), rows
    codes = np.empty(0, np.int32)
    end = new_rows.shape[0]
    slab = write_block(tables, names, hashes, codes, 1, diffs, end, invertible, True, most)
    return slab, rows
