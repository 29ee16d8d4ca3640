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

from typing import NamedTuple

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


class MergeSide(NamedTuple):
    """One of two blocks that are merged, and where to go on in it."""

    block: np.ndarray
    row: int
    """The next row to be read."""
    is_last: bool
    """Whether the block is the last of its batch, so that the other side goes on alone when this one ends."""
    code_map: np.ndarray
    """For each code of the block the code in the result, or -1."""


class MergeOutput(NamedTuple):
    """Where the rows of the result are written to, each at the same place of the four arrays."""

    rows: np.ndarray
    """The name of each row: its side and its row number there."""
    hashes: np.ndarray
    codes: np.ndarray
    diffs: np.ndarray


class ComparedRows(NamedTuple):
    """The rows of a block, as far as comparing them goes."""

    hashes: int
    """The address of the hashes."""
    nodes: int
    """The address of the table of columns."""
    words: int
    """The answer of `only_words`."""
    stop: int
    groups: int
    """The end of the rows that may make groups: rows of one time make none, since consolidation left one row for each
    key and value."""


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
def rows_of(block: np.ndarray, first: int, end: int) -> ComparedRows:
    """The rows of a block; `first` and `end` bound the columns in which rows of one hash may differ."""
    words, stop = only_words(block[NODES], first, end), block[STOP]
    groups = stop if block[CODE_WIDTH] != 0 else 0
    return ComparedRows(block[HASHES], block[NODES], words, stop, groups)


@kernel
def group_end(rows: ComparedRows, row: int, first: int, end: int) -> int:
    """One past the last row with the same key and value as `row`, where rows make groups."""
    hashes, words, stop = rows.hashes, rows.words, rows.groups
    at = row + 1
    h = load_u64(hashes + row * 8)
    while at < stop and load_u64(hashes + at * 8) == h:
        if words != 0:
            if load_i64(words + at * 8) != load_i64(words + row * 8):
                break
        elif compare_rows(rows.nodes, row, rows.nodes, at, first, end) != 0:
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
    output: MergeOutput,
) -> int:
    """Write the sums of `group` that are not zero in the order of their codes, and clear them."""
    sums, seen, touched = group[SUMS], group[SEEN], group[TOUCHED]
    out_rows, out_codes, out_diffs = output.rows, output.codes, output.diffs
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
    a: ComparedRows, i: int, b: ComparedRows, j: int, limit: int, out: int, output: MergeOutput
) -> tuple[int, int, int]:
    """Merge rows while hashes differ and i + j is less than `limit`, without branches that the data decides."""
    a_hashes, a_stop, b_hashes, b_stop = a.hashes, a.stop, b.hashes, b.stop
    out_rows, out_hashes = output.rows, output.hashes
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
    blocks: tuple[np.ndarray, np.ndarray],
    a: ComparedRows,
    i: int,
    b: ComparedRows,
    j: int,
    equal: bool,
    limit: int,
    out: int,
    output: MergeOutput,
) -> tuple[int, int, int]:
    """Merge rows of two blocks of one time each until i + j is `limit`, and add up their diffs.

    With `equal` it goes on over equal hashes: rows of one hash are then equal if their words are (always, if there
    are no words), and equal rows have one code. Without `equal` it stops at equal hashes.
    """
    side, pair = np.int64(1) << ROW_BITS, np.int64(1) << 62
    block, other = blocks
    out_rows, out_hashes, out_diffs = output.rows, output.hashes, output.diffs
    start, pairs = out, 0
    while True:
        i, j, out = merge_hashes(a, i, b, j, limit, out, output)
        if not equal or i + j >= limit or i >= a.stop or j >= b.stop:
            break
        order = np.int64(0)
        if a.words != 0:
            order = compare_ints(load_i64(a.words + i * 8), load_i64(b.words + j * 8))
        out_hashes[out] = load_u64(a.hashes + i * 8)
        if order == 0:
            out_rows[out], out_diffs[out] = i | pair, j
            pairs += 1
        else:
            out_rows[out] = i if order < 0 else j | side
        i += order <= 0
        j += order >= 0
        out += 1
    a_width, b_width = block[DIFF_WIDTH], other[DIFF_WIDTH]
    if pairs > 0:
        rows_left, beyond = start, np.int64(0)
        for at in range(start, out):
            name = out_rows[at]
            row = name & ROW_MASK
            if name >= pair:
                diff, more = diff_at(block, row), diff_at(other, out_diffs[at])
                beyond |= leaves(diff, more)
                diff += more
                name = row
            else:
                diff = diff_at(block, row) if name < side else diff_at(other, row)
            out_rows[rows_left], out_hashes[rows_left], out_diffs[rows_left] = (
                name,
                out_hashes[at],
                diff,
            )
            rows_left += diff != 0
        refuse(beyond)
        out = rows_left
    elif a_width == 0 and b_width == 0 and block[DIFF] == other[DIFF]:
        out_diffs[start:out] = block[DIFF]
    elif a_width == b_width and a_width > 0:
        a_diffs, b_diffs = block[DIFFS], other[DIFFS]
        for at in range(start, out):
            name = out_rows[at]
            diffs = a_diffs if name < side else b_diffs
            out_diffs[at] = load_int(diffs, a_width, name & ROW_MASK)
    else:
        for at in range(start, out):
            row = out_rows[at] & ROW_MASK
            out_diffs[at] = diff_at(block, row) if out_rows[at] < side else diff_at(other, row)
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
def compare_heads(a: ComparedRows, i: int, b: ComparedRows, j: int, first: int, end: int) -> int:
    """Which of two rows is first: -1, 1, or 0 where they have the same key and value."""
    x, y = load_u64(a.hashes + i * 8), load_u64(b.hashes + j * 8)
    if x != y:
        return -1 if x < y else 1
    if a.words != 0 and b.words != 0:
        return compare_ints(load_i64(a.words + i * 8), load_i64(b.words + j * 8))
    return compare_rows(a.nodes, i, b.nodes, j, first, end)


@kernel
def merge_step(
    left: tuple, right: tuple, first: int, end: int, fuel: int, group: np.ndarray, output: tuple
) -> tuple[int, int, int]:
    """Merge from the rows of both sides on; return the new rows and how many rows were written.

    `left` and `right` are the fields of a `MergeSide`, `output` those of a `MergeOutput`: Numba knows the types of a
    plain tuple quicker. Stops after `fuel` rows, when the output is full, or when a block ends that is not the last of
    its batch (the next block of that batch is needed to go on). A code is written where there are several. Rows of one
    hash are compared from column `first` on: past the key where equal hashes are equal keys.
    """
    here, there, to = MergeSide(*left), MergeSide(*right), MergeOutput(*output)
    block, i, a_map = here.block, here.row, here.code_map
    other, j, b_map = there.block, there.row, there.code_map
    a, b = rows_of(block, first, end), rows_of(other, first, end)
    side, codes = np.int64(1) << ROW_BITS, group.shape[1]
    room = to.rows.shape[0] - codes
    a_code, b_code = a_map[0], b_map[0]
    plain = block[CODE_WIDTH] == 0 and other[CODE_WIDTH] == 0 and a_code >= 0 and b_code >= 0
    together = plain and a_code == b_code
    equal = together and (first == end or (a.words != 0 and b.words != 0))
    out, begin = 0, i + j
    while out <= room and i + j - begin < fuel:
        if plain and i < a.stop and j < b.stop:  # the common case: one time in each block
            limit = min(begin + fuel, i + j + room - out + 1)
            start = out
            i, j, out = merge_plainly((block, other), a, i, b, j, equal, limit, out, to)
            if codes > 1:
                for at in range(start, out):
                    to.codes[at] = a_code if to.rows[at] < side else b_code
            if i + j >= limit:
                continue
        if i < a.stop and j < b.stop:
            order = compare_heads(a, i, b, j, first, end)
        elif i < a.stop and there.is_last:
            order = -1
        elif j < b.stop and here.is_last:
            order = 1
        else:
            break
        before = out
        i_end = group_end(a, i, first, end) if order <= 0 else i
        j_end = group_end(b, j, first, end) if order >= 0 else j
        source = i if order <= 0 else side | j
        h = load_u64(a.hashes + i * 8) if order <= 0 else load_u64(b.hashes + j * 8)
        if together or i_end - i + j_end - j == 1:
            code, diff = -1, 0
            if order <= 0:
                code, diff = a_map[code_at(block, i)], diff_at(block, i)
            if order >= 0:
                code, diff = b_map[code_at(other, j)], added(diff, diff_at(other, j))
            if code >= 0 and diff != 0:
                to.rows[out], to.codes[out], to.diffs[out] = source, code, diff
                out += 1
        else:
            count = gather_group(block, i, i_end, a_map, group, 0)
            count = gather_group(other, j, j_end, b_map, group, count)
            out = emit_group(source, group, count, out, to)
        for at in range(before, out):
            to.hashes[at] = h
        i, j = i_end, j_end
    return i, j, out
