"""Finding the one row of each key, where a key has one at the most: the newest batch that changed it tells."""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.compiling import kernel
from riverrun.state.kernels.layout import (
    BASE,
    CODE_WIDTH,
    DIFF,
    DIFF_WIDTH,
    DIFFS,
    DIRECTORY,
    FIRST,
    HASHES,
    LAST,
    NODES,
    ROW_BITS,
    SHIFT,
    START,
    STOP,
)  # fmt: skip
from riverrun.state.kernels.memory import load_int, load_u32, load_u64, prefetch
from riverrun.state.kernels.merging import diff_at
from riverrun.state.kernels.searching import BUCKET, hash_keys, key_range, lower_bound
from riverrun.state.kernels.values import U, compare_rows

ABREAST = 16  # keys that are looked for side by side in one block


@kernel
def find_present(
    blocks: np.ndarray,
    runs: np.ndarray,
    nodes: np.ndarray,
    rows: int,
    mask: np.uint64,
    exact: bool,
    end: int,
) -> tuple[np.ndarray, int]:
    """Of each key the row that is there once all changes count, where a key never has more than one.

    The changes of a key in a run lead from the row that it had before to the one that it had after. So the newest
    run in which they do not cancel tells, and older ones are not looked into. Keys come in the order of a batch;
    what is written is as in `look_up`.
    """
    heads = hash_keys(nodes, rows, mask)
    names = np.full(rows, -1, np.int64)
    left, count = np.arange(rows), rows
    for run in range(runs.shape[0] - 2, -1, -1):
        place, kept = 0, 0
        for at in range(runs[run], runs[run + 1]):
            first, last = U(blocks[at, FIRST]), U(blocks[at, LAST])
            while place < count and heads[place] < first:
                heads[kept], left[kept] = heads[place], left[place]
                place += 1
                kept += 1
            stop = place
            while stop < count and heads[stop] <= last:
                stop += 1
            kept = find_in_block(
                blocks, at, nodes, exact, end, heads, left, place, stop, kept, names
            )
            place = stop
        while place < count:
            heads[kept], left[kept] = heads[place], left[place]
            place += 1
            kept += 1
        count = kept
    written, count = np.empty((3, rows), np.int64), 0
    for query in range(rows):
        written[0, count], written[1, count], written[2, count] = query, names[query], 1
        count += names[query] >= 0
    return written, count


@kernel
def find_in_block(
    blocks: np.ndarray,
    at: int,
    nodes: np.ndarray,
    exact: bool,
    end: int,
    heads: np.ndarray,
    left: np.ndarray,
    place: int,
    stop: int,
    kept: int,
    names: np.ndarray,
) -> int:
    """`find_present` of queries [place, stop), in one block; those that it has no changes of move on to `kept`.

    In groups, as in `find_hashed`: each step asks ahead for the memory that the next one reads.
    """
    block = blocks[at]
    hashes, directory, base, shift = (
        block[HASHES],
        block[DIRECTORY],
        U(block[BASE]),
        U(block[SHIFT]),
    )
    diffs, width, diff, codes = block[DIFFS], block[DIFF_WIDTH], block[DIFF], block[CODE_WIDTH]
    first_row, last_row = block[START], block[STOP]
    lows, highs = np.empty(ABREAST, np.int64), np.empty(ABREAST, np.int64)
    for begin in range(place, stop, ABREAST):
        size = min(ABREAST, stop - begin)
        if directory != 0:
            for query in range(size):
                bucket = np.int64((heads[begin + query] - base) >> shift)
                lows[query] = directory + bucket * 4
                prefetch(lows[query])
            for query in range(size):
                low = max(load_u32(lows[query]), first_row)
                highs[query] = min(load_u32(lows[query] + 4), last_row)
                lows[query] = low
                prefetch(hashes + low * 8)
                prefetch(hashes + low * 8 + 64)
                prefetch(diffs + low * width)
        else:
            lows[:], highs[:] = first_row, last_row
        for query in range(begin, begin + size):
            h, low, high = heads[query], lows[query - begin], highs[query - begin]
            if high - low > 2 * BUCKET:
                low = lower_bound(hashes, low, high, h)
            else:
                # All are looked at, so that where to go on does not wait for what is read.
                less = np.int64(0)
                for row in range(low, high):
                    less += load_u64(hashes + row * 8) < h
                low += less
            high = low
            while high < last_row and load_u64(hashes + high * 8) == h:
                high += 1
            name = left[query]
            if low < high and not exact:
                low, high = key_range(
                    block, low, high, np.int64(nodes.ctypes.data), name, nodes.shape[0]
                )
            row, some = low, low < high
            if codes == 0:
                while row < high and (diff if width == 0 else load_int(diffs, width, row)) < 0:
                    row += 1
            else:
                row, some = present_row(block, low, high, nodes.shape[0], end)
            if row < high:
                names[name] = (at << ROW_BITS) | row
            if not some:
                heads[kept], left[kept] = h, name
                kept += 1
    return kept


@kernel
def present_row(block: np.ndarray, low: int, high: int, first: int, end: int) -> tuple[int, bool]:
    """Of the changes [low, high) of a key at several times, one of the value that is there after them, or `high`.

    And whether they change anything: a value that came and went again adds up to nothing.
    """
    some = False
    while low < high:
        row, total = low, np.int64(0)
        while low < high and compare_rows(block[NODES], row, block[NODES], low, first, end) == 0:
            total += diff_at(block, low)
            low += 1
        if total > 0:
            return row, True
        some = some or total < 0
    return high, some
