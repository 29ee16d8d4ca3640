"""Finding the row of each key in a state in which a key has one row at most: the newest batch that changed it tells.

`View.present` uses it. Law:

- **Newest decides.** The changes of a key in a run (the blocks of one batch) lead from its row before the run to its
  row after it. So the newest run in which the changes of the key do not cancel has its row, or shows that it has none;
  older runs are not searched.

Cost: a lookup for each key in the newest runs, until each key is decided.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.adding import added
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
    """The row of each key after all changes, where a key never has more than one row (the newest-decides law).

    Keys come in the order of a batch; the result has the form of that of `searching.look_up`.
    """
    heads = hash_keys(nodes, rows, mask)
    names = np.full(rows, -1, np.int64)
    left, count = np.arange(rows), rows
    for run in range(runs.shape[0] - 2, -1, -1):
        place, remaining = 0, 0
        for at in range(runs[run], runs[run + 1]):
            first, last = U(blocks[at, FIRST]), U(blocks[at, LAST])
            while place < count and heads[place] < first:
                heads[remaining], left[remaining] = heads[place], left[place]
                place += 1
                remaining += 1
            stop = place
            while stop < count and heads[stop] <= last:
                stop += 1
            remaining = find_in_block(
                blocks, at, nodes, exact, end, heads, left, place, stop, remaining, names
            )
            place = stop
        while place < count:
            heads[remaining], left[remaining] = heads[place], left[place]
            place += 1
            remaining += 1
        count = remaining
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
    remaining: int,
    names: np.ndarray,
) -> int:
    """`find_present` of queries [place, stop) in one block. Queries that the block does not decide move to `remaining`.

    Returns the new `remaining`. Queries are handled in groups, as in `searching.find_hashed`: each step prefetches the
    memory that the next step reads.
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
                # All rows of the bucket are read: no branch then waits for a load.
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
                heads[remaining], left[remaining] = h, name
                remaining += 1
    return remaining


@kernel
def present_row(block: np.ndarray, low: int, high: int, first: int, end: int) -> tuple[int, bool]:
    """A row of the value that a key has after its changes [low, high) at several times, or `high` if it has none.

    Returns too whether the changes decide: values that came and went again leave the key as it was.
    """
    some = False
    while low < high:
        row, total = low, np.int64(0)
        while low < high and compare_rows(block[NODES], row, block[NODES], low, first, end) == 0:
            total = added(total, diff_at(block, low))
            low += 1
        if total > 0:
            return row, True
        some = some or total < 0
    return high, some
