"""Merging two sorted blocks: order kept, times advanced, equal changes added up.

`state.merge` calls the kernels here for two blocks (sorted pieces of a state: `state.block`), again and again; each
call stops after a number of rows that the caller gives, or where a block ends:

- `merge_step` merges any two blocks. For each row of the result, `merge_step` writes from which block and row it comes,
  its hash, its diff, and where the result has several times its code; the caller copies the columns. `kernels.packing`
  merges small blocks with `merge_step`.
- `merge_words` merges two blocks whose changes have one and the same time in the result, small diffs, and differ in one
  int64 column only, and writes hashes and column to their place at once. Given other blocks, it does nothing.

A *group* is the changes of one (key, value), which differ only in time; no call stops inside a group. Each block has a
table of times, and the *code* of a change is the position of its time in that table. For each block, `merge_step` takes
a *map* from the block's codes to codes of the result, -1 for changes to be left out. Several codes may become one: that
is compaction. Law:

- **Sums stay.** For every time t that the maps keep apart, the sum of diffs per (key, value) over the codes at or
  before t is unchanged: each group is gathered whole from both blocks, and diffs are added up only within one new code.

Cost: 3 ns a row where hashes differ, one exact comparison where they are equal.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.adding import added, is_small, leaves, refuse
from riverrun.state.kernels.compiling import kernel
from riverrun.state.kernels.layout import (
    CODE_WIDTH,
    CODES,
    DATA,
    DESCENDING,
    DIFF,
    DIFF_WIDTH,
    DIFFS,
    HASHES,
    INT,
    KIND,
    NODES,
    ORIGIN,
    ROW_BITS,
    ROW_MASK,
    STOP,
    VALID,
    WIDTH,
)
from riverrun.state.kernels.memory import load_i64, load_int, load_u64, load_uint, store_64
from riverrun.state.kernels.values import compare_ints, compare_rows, field

# The rows of a `group`, the space for the group at hand: the sum of the diffs by new code, whether the code occurred,
# and a list of the codes that did. Empty between two groups.
SUMS, SEEN, TOUCHED = range(3)


@kernel
def code_at(block: np.ndarray, row: int) -> int:
    return load_uint(block[CODES], block[CODE_WIDTH], row)


@kernel
def diff_at(block: np.ndarray, row: int) -> int:
    width = block[DIFF_WIDTH]
    return block[DIFF] if width == 0 else load_int(block[DIFFS], width, row)


@kernel
def has_large_diffs(block: np.ndarray) -> bool:
    """Whether a sum of two diffs may not fit 64 bits, as far as the width of their cells tells."""
    return block[DIFF_WIDTH] == 8 or (block[DIFF_WIDTH] == 0 and not is_small(block[DIFF]))


@kernel
def only_words(nodes: int, first: int, end: int) -> int:
    """The address of the cells if rows differ only in one ascending int64 column without nulls; otherwise 0."""
    if nodes == 0 or first + 1 != end:
        return np.int64(0)
    plain = (
        field(nodes, first, KIND) == INT
        and field(nodes, first, WIDTH) == 8
        and field(nodes, first, VALID) == 0
        and field(nodes, first, DESCENDING) == 0
    )
    return field(nodes, first, DATA) + field(nodes, first, ORIGIN) * 8 if plain else np.int64(0)


@kernel
def group_end(
    hashes: int, nodes: int, words: int, row: int, stop: int, first: int, end: int
) -> int:
    """One past the last row before `stop` with the same key and value as `row`; `words` is the answer of
    `only_words`."""
    at = row + 1
    h = load_u64(hashes + row * 8)
    while at < stop and load_u64(hashes + at * 8) == h:
        if words != 0:
            if load_i64(words + at * 8) != load_i64(words + row * 8):
                break
        elif compare_rows(nodes, row, nodes, at, first, end) != 0:
            break
        at += 1
    return at


@kernel
def gather_group(
    block: np.ndarray,
    row: int,
    stop: int,
    code_map: np.ndarray,
    group: np.ndarray,
    count: int,
) -> int:
    """Add the diffs of rows [row, stop) to the sums of `group` by new code; `count` codes have occurred, before and
    after."""
    sums, seen, touched = group[SUMS], group[SEEN], group[TOUCHED]
    for at in range(row, stop):
        code = code_map[code_at(block, at)]
        if code >= 0:
            if not seen[code]:
                seen[code] = 1
                touched[count] = code
                count += 1
            sums[code] = added(sums[code], diff_at(block, at))
    return count


@kernel
def emit_group(
    source: int,
    group: np.ndarray,
    count: int,
    out: int,
    out_rows: np.ndarray,
    out_codes: np.ndarray,
    out_diffs: np.ndarray,
) -> int:
    """Write the sums of `group` that are not zero in the order of their codes, and clear them."""
    sums, seen, touched = group[SUMS], group[SEEN], group[TOUCHED]
    if count > 32:
        touched[:count] = np.sort(touched[:count])
    for at in range(1, min(count, 33)):
        code = touched[at]
        hole = at
        while hole > 0 and touched[hole - 1] > code:
            touched[hole] = touched[hole - 1]
            hole -= 1
        touched[hole] = code
    for at in range(count):
        code = touched[at]
        seen[code] = 0
        if sums[code] != 0:
            out_rows[out] = source
            out_codes[out] = code
            out_diffs[out] = sums[code]
            sums[code] = 0
            out += 1
    return out


@kernel
def merge_hashes(
    a_hashes: int,
    i: int,
    a_stop: int,
    b_hashes: int,
    j: int,
    b_stop: int,
    limit: int,
    out: int,
    out_rows: np.ndarray,
    out_hashes: np.ndarray,
) -> tuple[int, int, int]:
    """Merge rows while hashes differ and i + j is less than `limit`, without branches that the data decides."""
    side = np.int64(1) << ROW_BITS
    while i + j < limit and i < a_stop and j < b_stop:
        x, y = load_u64(a_hashes + i * 8), load_u64(b_hashes + j * 8)
        if x == y:
            break
        take = x < y
        out_rows[out] = i if take else j | side
        out_hashes[out] = min(x, y)
        i += take
        j += not take
        out += 1
    return i, j, out


@kernel
def merge_plainly(
    a: np.ndarray,
    i: int,
    a_words: int,
    b: np.ndarray,
    j: int,
    b_words: int,
    equal: bool,
    limit: int,
    out: int,
    out_rows: np.ndarray,
    out_hashes: np.ndarray,
    out_diffs: np.ndarray,
) -> tuple[int, int, int]:
    """Merge rows of two blocks of one time each until i + j is `limit`, and add up their diffs.

    With `equal` it goes on over equal hashes: rows of one hash are then equal if their words are (always, if there
    are no words), and equal rows have one code. Without `equal` it stops at equal hashes.
    """
    side, pair = np.int64(1) << ROW_BITS, np.int64(1) << 62
    a_hashes, b_hashes, a_stop, b_stop = a[HASHES], b[HASHES], a[STOP], b[STOP]
    start, pairs = out, 0
    while True:
        i, j, out = merge_hashes(
            a_hashes, i, a_stop, b_hashes, j, b_stop, limit, out, out_rows, out_hashes
        )
        if not equal or i + j >= limit or i >= a_stop or j >= b_stop:
            break
        order = np.int64(0)
        if a_words != 0:
            order = compare_ints(load_i64(a_words + i * 8), load_i64(b_words + j * 8))
        out_hashes[out] = load_u64(a_hashes + i * 8)
        if order == 0:
            out_rows[out], out_diffs[out] = i | pair, j
            pairs += 1
        else:
            out_rows[out] = i if order < 0 else j | side
        i += order <= 0
        j += order >= 0
        out += 1
    a_width, b_width = a[DIFF_WIDTH], b[DIFF_WIDTH]
    if pairs > 0:
        rows_left, beyond = start, np.int64(0)
        for at in range(start, out):
            name = out_rows[at]
            row = name & ROW_MASK
            if name >= pair:
                diff, more = diff_at(a, row), diff_at(b, out_diffs[at])
                beyond |= leaves(diff, more)
                diff += more
                name = row
            else:
                diff = diff_at(a, row) if name < side else diff_at(b, row)
            out_rows[rows_left], out_hashes[rows_left], out_diffs[rows_left] = (
                name,
                out_hashes[at],
                diff,
            )
            rows_left += diff != 0
        refuse(beyond)
        out = rows_left
    elif a_width == 0 and b_width == 0 and a[DIFF] == b[DIFF]:
        out_diffs[start:out] = a[DIFF]
    elif a_width == b_width and a_width > 0:
        a_diffs, b_diffs = a[DIFFS], b[DIFFS]
        for at in range(start, out):
            name = out_rows[at]
            diffs = a_diffs if name < side else b_diffs
            out_diffs[at] = load_int(diffs, a_width, name & ROW_MASK)
    else:
        for at in range(start, out):
            row = out_rows[at] & ROW_MASK
            out_diffs[at] = diff_at(a, row) if out_rows[at] < side else diff_at(b, row)
    return i, j, out


@kernel
def merge_words(
    a: np.ndarray,
    i: int,
    b: np.ndarray,
    j: int,
    first: int,
    end: int,
    fuel: int,
    hashes: int,
    cells: int,
    out_diffs: np.ndarray,
) -> tuple[int, int, int]:
    """`merge_step` for blocks of one time whose rows differ in one column of words only; does nothing for other blocks.

    Hashes and cells are written to the two addresses, where they belong in the result. Stops where a block ends too. No
    branch depends on the data.
    """
    a_words, b_words = only_words(a[NODES], first, end), only_words(b[NODES], first, end)
    if a_words == 0 or b_words == 0 or a[CODE_WIDTH] != 0 or b[CODE_WIDTH] != 0:
        return i, j, 0
    if has_large_diffs(a) or has_large_diffs(
        b
    ):  # sums of others fit: nothing has to be looked at row by row
        return i, j, 0
    a_hashes, b_hashes, a_stop, b_stop = a[HASHES], b[HASHES], a[STOP], b[STOP]
    a_diffs, a_width, a_diff = a[DIFFS], a[DIFF_WIDTH], a[DIFF]
    b_diffs, b_width, b_diff = b[DIFFS], b[DIFF_WIDTH], b[DIFF]
    out, limit = 0, i + j + fuel - 1  # a step may take a row of each
    while i < a_stop and j < b_stop and i + j < limit:
        x, y = load_u64(a_hashes + i * 8), load_u64(b_hashes + j * 8)
        u, v = load_i64(a_words + i * 8), load_i64(b_words + j * 8)
        mine = (x < y) | ((x == y) & (u <= v))
        yours = (x > y) | ((x == y) & (u >= v))
        diff = (a_diff if a_width == 0 else load_int(a_diffs, a_width, i)) * mine
        diff += (b_diff if b_width == 0 else load_int(b_diffs, b_width, j)) * yours
        store_64(hashes + out * 8, np.int64(x if mine else y))
        store_64(cells + out * 8, u if mine else v)
        out_diffs[out] = diff
        i += mine
        j += yours
        out += diff != 0
    return i, j, out


@kernel
def compare_heads(
    a_hashes: int,
    a_nodes: int,
    a_words: int,
    i: int,
    b_hashes: int,
    b_nodes: int,
    b_words: int,
    j: int,
    first: int,
    end: int,
) -> int:
    """Which of two rows is first: -1, 1, or 0 where they have the same key and value."""
    x, y = load_u64(a_hashes + i * 8), load_u64(b_hashes + j * 8)
    if x != y:
        return -1 if x < y else 1
    if a_words != 0 and b_words != 0:
        return compare_ints(load_i64(a_words + i * 8), load_i64(b_words + j * 8))
    return compare_rows(a_nodes, i, b_nodes, j, first, end)


@kernel
def merge_step(
    a: np.ndarray,
    i: int,
    a_last: bool,
    a_map: np.ndarray,
    b: np.ndarray,
    j: int,
    b_last: bool,
    b_map: np.ndarray,
    first: int,
    end: int,
    fuel: int,
    group: np.ndarray,
    out_rows: np.ndarray,
    out_hashes: np.ndarray,
    out_codes: np.ndarray,
    out_diffs: np.ndarray,
) -> tuple[int, int, int]:
    """Merge from rows `i` and `j` on; return the new positions and how many rows were written.

    Stops after `fuel` rows, when the output is full, or when a block ends that is not the last of
    its batch (the next block of that batch is needed to go on). The name of a written row has the
    side and the row number; its hash is written too, and its code where there are several codes. Rows
    of one hash are compared from column `first` on: past the key where equal hashes are equal keys.
    """
    a_stop, b_stop = a[STOP], b[STOP]
    a_hashes, b_hashes, a_nodes, b_nodes = a[HASHES], b[HASHES], a[NODES], b[NODES]
    a_words, b_words = only_words(a_nodes, first, end), only_words(b_nodes, first, end)
    # Rows of one time make no groups: consolidation left one row for each key and value.
    a_groups = a_stop if a[CODE_WIDTH] != 0 else 0
    b_groups = b_stop if b[CODE_WIDTH] != 0 else 0
    side, codes = np.int64(1) << ROW_BITS, group.shape[1]
    room = out_rows.shape[0] - codes
    a_code, b_code = a_map[0], b_map[0]
    plain = a[CODE_WIDTH] == 0 and b[CODE_WIDTH] == 0 and a_code >= 0 and b_code >= 0
    together = plain and a_code == b_code
    equal = together and (first == end or (a_words != 0 and b_words != 0))
    out, begin = 0, i + j
    while out <= room and i + j - begin < fuel:
        if plain and i < a_stop and j < b_stop:  # the common case: one time in each block
            limit = min(begin + fuel, i + j + room - out + 1)
            start = out
            i, j, out = merge_plainly(
                a, i, a_words, b, j, b_words, equal, limit, out, out_rows, out_hashes, out_diffs
            )
            if codes > 1:
                for at in range(start, out):
                    out_codes[at] = a_code if out_rows[at] < side else b_code
            if i + j >= limit:
                continue
        if i < a_stop and j < b_stop:
            order = compare_heads(
                a_hashes, a_nodes, a_words, i, b_hashes, b_nodes, b_words, j, first, end
            )
        elif i < a_stop and b_last:
            order = -1
        elif j < b_stop and a_last:
            order = 1
        else:
            break
        before = out
        i_end = group_end(a_hashes, a_nodes, a_words, i, a_groups, first, end) if order <= 0 else i
        j_end = group_end(b_hashes, b_nodes, b_words, j, b_groups, first, end) if order >= 0 else j
        source = i if order <= 0 else side | j
        h = load_u64(a_hashes + i * 8) if order <= 0 else load_u64(b_hashes + j * 8)
        if together or i_end - i + j_end - j == 1:
            code, diff = -1, 0
            if order <= 0:
                code, diff = a_map[code_at(a, i)], diff_at(a, i)
            if order >= 0:
                code, diff = b_map[code_at(b, j)], added(diff, diff_at(b, j))
            if code >= 0 and diff != 0:
                out_rows[out], out_codes[out], out_diffs[out] = source, code, diff
                out += 1
        else:
            count = gather_group(a, i, i_end, a_map, group, 0)
            count = gather_group(b, j, j_end, b_map, group, count)
            out = emit_group(source, group, count, out, out_rows, out_codes, out_diffs)
        for at in range(before, out):
            out_hashes[at] = h
        i, j = i_end, j_end
    return i, j, out
