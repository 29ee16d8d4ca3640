"""Few rows written as one piece of memory by one call: small blocks, keys, and columns of rows picked from others.

A batch of ten rows must not cost ten calls. So `state.block` has small blocks made here (up to 4,096 rows and 1 MB),
`state.keys` the keys of a batch, and `state.columns` columns that are gathered from few rows. Each kernel does its
whole work and writes the result into one *slab*, an array of 64-bit words:

- For a block, `pack_rows` and its kind hash, sort and add up rows, and write the block descriptor and the table of
  nodes (the integers by which kernels see blocks and columns: `layout`), the hashes, the columns, and, where rows
  differ in them, their times as codes, and their diffs. A block of 64 rows or more also has a directory, which says
  where each bucket of hashes begins.
- For keys and columns, `pack_named` and its kind write only the table of nodes and the columns.

A few kernels only find rows, and give their numbers: `list_keys`, `distinct_rows`, `leading_rows`.

Law:

- **All in the slab.** The addresses that these kernels write point into the slab, so whoever holds the slab holds all
  of the block or the columns. (The address of the table of times is `state.block`'s to add, and to hold.)

Columns are of any type but lists and structs, whose children have other numbers of rows than the column itself.

Cost: 2 microseconds for a row of two integers, 50 to 100 ns for each further row.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.compiling import kernel
from riverrun.state.kernels.gathering import (
    gather_bytes,
    gather_cells,
    gather_offsets,
    gather_validity,
    list_rows_of_blocks,
)
from riverrun.state.kernels.layout import (
    BASE,
    BIT,
    BLOCK_FIELDS,
    BYTES,
    CODE_WIDTH,
    CODES,
    DATA,
    DESCENDING,
    DIFF,
    DIFF_WIDTH,
    DIFFS,
    DIRECTORY,
    FIRST,
    HASHED,
    HASHES,
    INT,
    KIND,
    LAST,
    NODE_FIELDS,
    NODES,
    NULL,
    OFFSETS,
    ORIGIN,
    ROW_BITS,
    ROW_MASK,
    SHIFT,
    SIZE,
    START,
    STOP,
    VALID,
    WIDTH,
)
from riverrun.state.kernels.memory import load_i64, load_u64, store_int
from riverrun.state.kernels.merging import merge_step
from riverrun.state.kernels.searching import BUCKET, FULL_HASH, fill_entries, key_stop
from riverrun.state.kernels.sorting import consolidate, order_words, sort_rows
from riverrun.state.kernels.values import U, compare_rows, field, hash_rows, is_null

DIRECTORY_ROWS = 64  # smaller blocks are searched without a directory
ALIGNED = 2  # words that a buffer's start is a multiple of: some types have cells of 16 bytes
NODES_WORD = (
    (BLOCK_FIELDS + ALIGNED - 1) // ALIGNED * ALIGNED
)  # where a block's table of nodes starts
NO_SLAB = 0
EVERYTHING = np.iinfo(np.int64).max


@kernel
def words_for(size: int) -> int:
    """Words that hold `size` bytes, up to where the next buffer may start."""
    return (size + 8 * ALIGNED - 1) // (8 * ALIGNED) * ALIGNED


@kernel
def bytes_of(tables: np.ndarray, node: int, rows: np.ndarray) -> int:
    """The bytes of a variable-width column in some rows."""
    total = 0
    for at in range(rows.shape[0]):
        table, row = tables[rows[at] >> ROW_BITS], rows[at] & ROW_MASK
        row += field(table, node, ORIGIN)
        if not is_null(table, node, row):
            offsets = field(table, node, OFFSETS) + row * 8
            total += load_i64(offsets + 8) - load_i64(offsets)
    return total


@kernel
def any_nulls(tables: np.ndarray, node: int) -> bool:
    for table in tables:
        if field(table, node, VALID) != 0:
            return True
    return False


@kernel
def columns_size(
    tables: np.ndarray, rows: np.ndarray, first: int, end: int, hashed: bool, totals: np.ndarray
) -> int:
    """Words for the columns at nodes `first` to `end`; `totals` takes the bytes of the variable-width columns."""
    count = rows.shape[0]
    size = 0
    for node in range(first, end):
        kind, width = field(tables[0], node, KIND), field(tables[0], node, WIDTH)
        if (hashed and node == 0) or kind == NULL:
            continue
        if any_nulls(tables, node):
            size += words_for((count + 7) // 8)
        if kind == BYTES:
            totals[node - first] = bytes_of(tables, node, rows)
            size += words_for((count + 1) * 8) + words_for(totals[node - first])
        elif kind == BIT:
            size += words_for((count + 7) // 8)
        else:
            size += words_for(count * width)
    return size


@kernel
def write_columns(
    tables: np.ndarray,
    rows: np.ndarray,
    first: int,
    end: int,
    hashed: bool,
    totals: np.ndarray,
    slab: np.ndarray,
    nodes: int,
    free: int,
    hashes: int,
) -> int:
    """Gather the columns into the slab from word `free` on, and describe them at word `nodes`."""
    count = rows.shape[0]
    base = np.int64(slab.ctypes.data)
    for node in range(first, end):
        kind, width = field(tables[0], node, KIND), field(tables[0], node, WIDTH)
        here = slab[nodes : nodes + NODE_FIELDS]
        nodes += NODE_FIELDS
        here[:] = 0
        here[KIND], here[WIDTH], here[SIZE] = kind, width, 1
        here[DESCENDING] = field(tables[0], node, DESCENDING)
        if hashed and node == 0:
            here[KIND], here[DATA] = HASHED, hashes
            continue
        if kind == NULL:
            continue
        if kind == HASHED:
            here[KIND] = INT
        if any_nulls(tables, node):
            valid = base + free * 8
            free += words_for((count + 7) // 8)
            if gather_validity(tables, node, rows, valid, 0) > 0:
                here[VALID] = valid
        if kind == BYTES:
            offsets = base + free * 8
            slab[free] = 0
            free += words_for((count + 1) * 8)
            gather_offsets(tables, node, rows, offsets, 0, 0)
            gather_bytes(tables, node, rows, offsets, 0, base + free * 8)
            here[OFFSETS], here[DATA] = offsets, base + free * 8
            free += words_for(totals[node - first])
        else:
            gather_cells(tables, node, rows, base + free * 8, 0)
            here[DATA] = base + free * 8
            free += words_for((count + 7) // 8 if kind == BIT else count * width)
    return free


@kernel
def code_width(codes: int) -> int:
    """Bytes of a code, where there are `count` different codes."""
    return 0 if codes <= 1 else (1 if codes <= 256 else (2 if codes <= 65536 else 4))


@kernel
def diff_width(diffs: np.ndarray) -> int:
    """Bytes of a cell that can hold any of these diffs; 0 when all diffs are the same."""
    lowest = highest = diffs[0]
    for diff in diffs:
        lowest, highest = min(lowest, diff), max(highest, diff)
    if lowest == highest:
        return 0
    for width in (1, 2, 4):
        top = np.int64(1) << (8 * width - 1)
        if -top <= lowest and highest < top:
            return width
    return 8


@kernel
def directory_shift(spread: int, rows: int) -> int:
    """By how many bits a hash is shifted to give its bucket, where `spread` lies between first and last hash."""
    bits, wanted = 0, 0
    while bits < 64 and spread >> U(bits) != U(0):
        bits += 1
    while (rows // BUCKET) >> wanted != 0:
        wanted += 1
    return max(0, bits - max(1, wanted))


@kernel
def write_block(
    tables: np.ndarray,
    rows: np.ndarray,
    hashes: np.ndarray,
    codes: np.ndarray,
    code_count: int,
    diffs: np.ndarray,
    end: int,
    invertible: bool,
    ordered: bool,
    most: int,
) -> np.ndarray:
    """The slab of a block of these rows; empty when it would exceed `most` bytes.

    `hashes` is by position, as are `codes` (which all occur) and `diffs`. Only rows that are
    `ordered` get a directory.
    """
    count = rows.shape[0]
    hashed = invertible and not any_nulls(tables, 0)
    totals = np.zeros(end, np.int64)
    nodes = NODES_WORD
    first = nodes + end * NODE_FIELDS
    widths = code_width(code_count), diff_width(diffs)
    shift, entries = 0, 0
    if ordered and count >= DIRECTORY_ROWS:
        spread = hashes[count - 1] - hashes[0]
        shift = directory_shift(spread, count)
        entries = np.int64(spread >> U(shift)) + 2
    size = first + words_for(count * 8) + columns_size(tables, rows, 0, end, hashed, totals)
    size += words_for(count * widths[0]) + words_for(count * widths[1]) + words_for(entries * 4)
    if size * 8 > most:
        return np.empty(NO_SLAB, np.int64)
    slab = np.empty(size, np.int64)
    base = np.int64(slab.ctypes.data)
    slab[:BLOCK_FIELDS] = 0
    slab[STOP] = count
    slab[NODES] = base + nodes * 8
    slab[HASHES] = base + first * 8
    slab[first : first + count] = hashes.view(np.int64)
    slab[FIRST], slab[LAST] = slab[first], slab[first + count - 1]
    free = first + words_for(count * 8)
    free = write_columns(tables, rows, 0, end, hashed, totals, slab, nodes, free, base + first * 8)
    if widths[0] > 0:
        slab[CODES], slab[CODE_WIDTH] = base + free * 8, widths[0]
        for at in range(count):
            store_int(slab[CODES], widths[0], at, np.int64(codes[at]))
        free += words_for(count * widths[0])
    if widths[1] == 0:
        slab[DIFF] = diffs[0]
    else:
        slab[DIFFS], slab[DIFF_WIDTH] = base + free * 8, widths[1]
        for at in range(count):
            store_int(slab[DIFFS], widths[1], at, diffs[at])
        free += words_for(count * widths[1])
    if entries > 0:
        slab[DIRECTORY], slab[SHIFT], slab[BASE] = base + free * 8, shift, slab[first]
        fill_entries(slab[HASHES], count, shift, slab[DIRECTORY], entries)
    return slab


@kernel
def close_ranks(codes: np.ndarray, code_count: int) -> tuple[np.ndarray, int]:
    """Renumber codes so that the codes that occur are consecutive.

    Returns the new number of each code (-1 if it does not occur), and how many occur.
    """
    used = np.zeros(code_count, np.int64)
    if code_count <= 1:
        return used, 1
    for code in codes:
        used[code] = 1
    left = 0
    for code in range(code_count):
        if used[code] != 0:
            used[code] = left
            left += 1
        else:
            used[code] = -1
    for at in range(codes.shape[0]):
        codes[at] = used[codes[at]]
    return used, left


@kernel
def sort_and_write(
    table: np.ndarray,
    hashes: np.ndarray,
    codes: np.ndarray,
    code_count: int,
    diffs: np.ndarray,
    diff: int,
    invertible: bool,
    most: int,
) -> tuple[np.ndarray, np.ndarray, int]:
    """The slab of the sorted and added up rows, the new number of each code (-1: none has it), and how many rows."""
    rows = hashes.shape[0]
    nodes, end = np.int64(table.ctypes.data), table.shape[0]
    # Where equal hashes are equal keys, the order inside a hash starts with the first value column.
    first = 1 if invertible and field(nodes, 0, VALID) == 0 else 0
    words = np.empty(0 if first == end else rows, np.uint64)
    alone = True
    if first < end:
        alone = order_words(nodes, first, rows, words) and first + 1 == end
    everything = np.empty(0, np.int64)
    keys, sorted_words, tags = sort_rows(
        hashes, everything, words, alone, nodes, first, end, codes, np.empty(4 * rows, np.uint64)
    )
    out_codes, out_diffs = np.empty(rows, np.int32), np.empty(rows, np.int64)
    rows_left = consolidate(
        keys, sorted_words, tags, alone, nodes, first, end, diffs, diff, out_codes, out_diffs
    )
    if rows_left == 0:
        return np.empty(NO_SLAB, np.int64), np.empty(0, np.int64), 0
    used, left = close_ranks(out_codes[:rows_left], code_count)
    tables = np.empty(1, np.int64)
    tables[0] = nodes
    slab = write_block(
        tables, tags[:rows_left], keys[:rows_left], out_codes, left, out_diffs[:rows_left], end,
        invertible, True, most,
    )  # fmt: skip
    return slab, used, rows_left


@kernel
def pack_rows(
    nodes: np.ndarray,
    key_end: int,
    rows: int,
    mask: np.uint64,
    codes: np.ndarray,
    code_count: int,
    diffs: np.ndarray,
    diff: int,
    invertible: bool,
    most: int,
) -> tuple[np.ndarray, np.ndarray, int]:
    """A block of fresh rows: see `sort_and_write`. Codes and diffs are empty where they are all the same."""
    hashes = np.empty(rows, np.uint64)
    hash_rows(np.int64(nodes.ctypes.data), key_end, rows, hashes)
    if mask != FULL_HASH:
        hashes &= mask
    return sort_and_write(nodes, hashes, codes, code_count, diffs, diff, invertible, most)


@kernel
def pack_blocks(
    blocks: np.ndarray,
    maps: np.ndarray,
    bases: np.ndarray,
    code_count: int,
    rows: int,
    end: int,
    invertible: bool,
    most: int,
) -> tuple[np.ndarray, np.ndarray, int]:
    """One block of the rows of several, with codes mapped as in `gathering.list_rows_of_blocks`."""
    written = np.empty((3, rows), np.int64)
    list_rows_of_blocks(blocks, maps, bases, written)
    names, diffs = written[0], written[2]
    codes = np.empty(rows if code_count > 1 else 0, np.int32)
    for at in range(codes.shape[0]):
        codes[at] = written[1, at]
    hashes = np.empty(rows, np.uint64)
    for at in range(rows):
        hashes[at] = load_u64(blocks[names[at] >> ROW_BITS, HASHES] + (names[at] & ROW_MASK) * 8)
    tables = np.empty(blocks.shape[0], np.int64)
    for at in range(blocks.shape[0]):
        tables[at] = blocks[at, NODES]
    # Rows of several tables are brought to one before they are sorted: they are few.
    together = write_block(
        tables, names, hashes, codes[:0], 1, diffs, end, invertible, False, EVERYTHING
    )
    # Passed on as an array rather than by its address, so that the slab outlives its last mention here.
    nodes = together[NODES_WORD : NODES_WORD + end * NODE_FIELDS].reshape(end, NODE_FIELDS)
    return sort_and_write(nodes, hashes, codes, code_count, diffs, 0, invertible, most)


@kernel
def pack_merged(
    a: np.ndarray,
    a_map: np.ndarray,
    b: np.ndarray,
    b_map: np.ndarray,
    code_count: int,
    end: int,
    invertible: bool,
    most: int,
) -> tuple[np.ndarray, np.ndarray, int]:
    """One block of the rows of two, with codes mapped as in `merging`: see `sort_and_write`."""
    a_nodes, b_nodes = a[NODES], b[NODES]
    first = 0
    if invertible and field(a_nodes, 0, KIND) == HASHED and field(b_nodes, 0, KIND) == HASHED:
        first = 1
    rows = (a[STOP] - a[START]) + (b[STOP] - b[START])
    room = rows + code_count + 1
    names, diffs = np.empty(room, np.int64), np.empty(room, np.int64)
    hashes, codes = np.empty(room, np.uint64), np.empty(room, np.int32)
    group = np.zeros((3, code_count), np.int64)
    _, _, rows_left = merge_step(
        (a, a[START], True, a_map), (b, b[START], True, b_map), first, end, rows, group,
        (names, hashes, codes, diffs),
    )  # fmt: skip
    if rows_left == 0:
        return np.empty(NO_SLAB, np.int64), np.empty(0, np.int64), 0
    tables = np.empty(2, np.int64)
    tables[0], tables[1] = a_nodes, b_nodes
    used, left = close_ranks(codes[:rows_left], code_count)
    slab = write_block(
        tables,
        names[:rows_left],
        hashes[:rows_left],
        codes,
        left,
        diffs[:rows_left],
        end,
        invertible,
        True,
        most,
    )
    return slab, used, rows_left


@kernel
def pack_named(tables: np.ndarray, rows: np.ndarray, first: int, end: int) -> np.ndarray:
    """A slab with only columns, those at nodes `first` to `end`: its first words are the table of nodes."""
    count = end - first
    totals = np.zeros(count, np.int64)
    free = words_for(count * NODE_FIELDS * 8)
    slab = np.empty(free + columns_size(tables, rows, first, end, False, totals), np.int64)
    write_columns(tables, rows, first, end, False, totals, slab, 0, free, 0)
    return slab


@kernel
def pack_picked(
    tables: np.ndarray,
    rows: np.ndarray,
    other_tables: np.ndarray,
    other_rows: np.ndarray,
    sides: np.ndarray,
    nodes: np.ndarray,
) -> np.ndarray:
    """`pack_named` of columns from two sides: column i is node nodes[i] of the second side where sides[i] is not 0."""
    count = nodes.shape[0]
    totals = np.zeros(count, np.int64)
    size = free = words_for(count * NODE_FIELDS * 8)
    for at in range(count):
        node, total = nodes[at], totals[at : at + 1]
        if sides[at] == 0:
            size += columns_size(tables, rows, node, node + 1, False, total)
        else:
            size += columns_size(other_tables, other_rows, node, node + 1, False, total)
    slab = np.empty(size, np.int64)
    for at in range(count):
        node, total, place = nodes[at], totals[at : at + 1], at * NODE_FIELDS
        if sides[at] == 0:
            free = write_columns(tables, rows, node, node + 1, False, total, slab, place, free, 0)
        else:
            free = write_columns(
                other_tables, other_rows, node, node + 1, False, total, slab, place, free, 0
            )
    return slab


@kernel
def tables_of(nodes: np.ndarray, count: int) -> np.ndarray:
    """The addresses of `count` tables of one size that lie one after the other."""
    tables = np.empty(count, np.int64)
    for at in range(count):
        tables[at] = np.int64(nodes.ctypes.data) + at * (nodes.shape[0] // count) * NODE_FIELDS * 8
    return tables


@kernel
def take_rows(nodes: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """`pack_named` of rows of one table."""
    return pack_named(tables_of(nodes, 1), rows, 0, nodes.shape[0])


@kernel
def pack_keys(blocks: np.ndarray, key_end: int) -> tuple[np.ndarray, int]:
    """The slab of the distinct keys of a batch, in its order, and how many there are."""
    total = 0
    tables = np.empty(blocks.shape[0], np.int64)
    for at in range(blocks.shape[0]):
        total += blocks[at, STOP] - blocks[at, START]
        tables[at] = blocks[at, NODES]
    rows = np.empty(total, np.int64)
    count = 0
    for at in range(blocks.shape[0]):
        hashes, nodes, row = blocks[at, HASHES], blocks[at, NODES], blocks[at, START]
        while row < blocks[at, STOP]:
            rows[count] = (at << ROW_BITS) | row
            count += 1
            row = key_stop(hashes, nodes, row, blocks[at, STOP], key_end)
    return pack_named(tables, rows[:count], 0, key_end), count


@kernel
def list_keys(blocks: np.ndarray, key_end: int) -> np.ndarray:
    """The first row of each distinct key of a batch: `pack_keys` without the packing."""
    total = 0
    for at in range(blocks.shape[0]):
        total += blocks[at, STOP] - blocks[at, START]
    rows = np.empty(total, np.int64)
    count = 0
    for at in range(blocks.shape[0]):
        hashes, nodes, row = blocks[at, HASHES], blocks[at, NODES], blocks[at, START]
        while row < blocks[at, STOP]:
            rows[count] = (at << ROW_BITS) | row
            count += 1
            row = key_stop(hashes, nodes, row, blocks[at, STOP], key_end)
    return rows[:count]


@kernel
def distinct_rows(nodes: np.ndarray, rows: int, mask: np.uint64) -> np.ndarray:
    """One row number for each distinct row of a table, in the order of their hashes."""
    hashes = np.empty(rows, np.uint64)
    address, end = np.int64(nodes.ctypes.data), nodes.shape[0]
    hash_rows(address, end, rows, hashes)
    if mask != FULL_HASH:
        hashes &= mask
    none, no_codes = np.empty(0, np.int64), np.empty(0, np.int32)
    no_words, scratch = np.empty(0, np.uint64), np.empty(4 * rows, np.uint64)
    # A single integer is its hash, unless the hash lost bits.
    alone = end == 1 and field(address, 0, KIND) == INT and field(address, 0, VALID) == 0
    alone = alone and mask == FULL_HASH
    keys, words, tags = sort_rows(hashes, none, no_words, alone, address, 0, end, no_codes, scratch)
    out_codes, out_diffs = np.empty(rows, np.int32), np.empty(rows, np.int64)
    rows_left = consolidate(
        keys, words, tags, alone, address, 0, end, none, 1, out_codes, out_diffs
    )
    return tags[:rows_left]


@kernel
def leading_rows(
    nodes: np.ndarray, key_end: int, rows: int, mask: np.uint64, invertible: bool
) -> np.ndarray:
    """The first row of each key, by the order of the columns after the key; keys in the order of a batch."""
    hashes = np.empty(rows, np.uint64)
    address, end = np.int64(nodes.ctypes.data), nodes.shape[0]
    hash_rows(address, key_end, rows, hashes)
    if mask != FULL_HASH:
        hashes &= mask
    exact = invertible and field(address, 0, VALID) == 0
    first = 1 if exact else 0
    words, everything = np.empty(rows, np.uint64), np.empty(0, np.int64)
    alone = order_words(address, first, rows, words) and first + 1 == end
    keys, words, tags = sort_rows(
        hashes, everything, words, alone, address, first, end, np.empty(0, np.int32),
        np.empty(4 * rows, np.uint64),
    )  # fmt: skip
    rows_left = 0
    for at in range(rows):
        if rows_left > 0 and keys[at] == keys[at - 1]:
            if (
                exact
                or compare_rows(address, tags[at], address, tags[rows_left - 1], 0, key_end) == 0
            ):
                continue
        tags[rows_left] = tags[at]
        rows_left += 1
    return tags[:rows_left].copy()


@kernel
def unite_keys(nodes: np.ndarray, sizes: np.ndarray, mask: np.uint64) -> tuple[np.ndarray, int]:
    """The slab of the distinct rows of several tables that lie one after the other, and how many there are."""
    tables, end = tables_of(nodes, sizes.shape[0]), nodes.shape[0] // sizes.shape[0]
    rows = np.empty(sizes.sum(), np.int64)
    count = 0
    for at in range(sizes.shape[0]):
        for row in range(sizes[at]):
            rows[count] = (at << ROW_BITS) | row
            count += 1
    together = pack_named(tables, rows, 0, end)
    table = together[: end * NODE_FIELDS].reshape(end, NODE_FIELDS)
    distinct = distinct_rows(table, count, mask)
    return take_rows(table, distinct), distinct.shape[0]
