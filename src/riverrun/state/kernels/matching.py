"""Pairing the changes of a sorted batch with those of a view that have the same key.

`state.matching` uses it. The batch gives one query for each of its keys, whose hashes it has already; `searching` finds
the rows of the view; every row of one side with every row of the other is a pair. Listing pairs stops when the output
is full, in the middle of a key if need be, and goes on from there.

Cost: a lookup for each key, 3 to 5 ns a pair.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.compiling import kernel
from riverrun.state.kernels.layout import (
    CODE_WIDTH,
    DIFF_WIDTH,
    HASHED,
    HASHES,
    KIND,
    NODES,
    ROW_BITS,
)
from riverrun.state.kernels.memory import load_u64
from riverrun.state.kernels.merging import code_at, diff_at
from riverrun.state.kernels.searching import FULL_HASH, find_hashed, key_stop, start_cursors
from riverrun.state.kernels.values import field, hash_rows

SMALL = 1 << 31
"""The product of two numbers below this fits 64 bits."""
MOST = (1 << 63) - 1


@kernel
def find_matches(
    block: np.ndarray,
    start: int,
    stop: int,
    key_end: int,
    stored: bool,
    mask: np.uint64,
    blocks: np.ndarray,
    runs: np.ndarray,
    exact: bool,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Look up the keys of rows [start, stop) of a block, which is cut between keys.

    Returns where the rows of each key start (and the rows of the last key end), the places of each key
    as `searching.find` has them, and how many pairs there are. `stored` says that the hashes of the
    block, cut by `mask`, are those of the view.
    """
    hashes, nodes = block[HASHES], block[NODES]
    starts = np.empty(stop - start + 1, np.int64)
    count, row = 0, start
    while row < stop:
        starts[count] = row
        count += 1
        row = key_stop(hashes, nodes, row, stop, key_end)
    starts[count] = stop
    wanted = np.empty(count, np.uint64)
    if stored:
        for query in range(count):
            wanted[query] = load_u64(hashes + starts[query] * 8) & mask
    else:
        fresh = np.empty(stop, np.uint64)
        hash_rows(nodes, key_end, stop, fresh)
        for query in range(count):
            wanted[query] = fresh[starts[query]] & mask
    exact = exact and key_end == 1 and field(nodes, 0, KIND) == HASHED and mask == FULL_HASH
    places = np.empty((3, count, runs.shape[0] - 1), np.int64)
    cursors = start_cursors(blocks, runs, wanted)
    find_hashed(blocks, runs, nodes, key_end, starts, 0, wanted, exact, cursors, places)
    pairs = 0
    for query in range(count):
        rows = 0
        for run in range(places.shape[2]):
            if places[0, query, run] >= 0:
                rows += places[2, query, run] - places[1, query, run]
        pairs += rows * (starts[query + 1] - starts[query])
    return starts[: count + 1], places, pairs


@kernel
def is_beyond(one: int, other: int) -> bool:
    """Whether the product of two numbers leaves 64 bits."""
    if -SMALL < one < SMALL and -SMALL < other < SMALL:
        return False
    if one == 0 or other == 0:
        return False
    least = np.int64(-1) << 63
    if one == least or other == least:
        return one != 1 and other != 1
    return abs(one) > np.int64(MOST) // abs(other)


@kernel
def list_matches(
    block: np.ndarray,
    at: int,
    starts: np.ndarray,
    places: np.ndarray,
    blocks: np.ndarray,
    bases: np.ndarray,
    stride: int,
    position: np.ndarray,
    room: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The next pairs, at most `room`: their rows on both sides, and diffs; and codes, where `stride` is not 0.

    `position` is the query, the run, and the rows on both sides from which to go on (-1: the first), and is moved on.
    Its last entry becomes 1 when some product of diffs leaves 64 bits; the pairs must then not be used. The code of a
    pair is the left code times `stride`, plus the right code, plus the base of the right block.
    """
    out = np.empty((3, room), np.int64)
    codes = np.empty(room if stride > 0 else 0, np.int64)
    block_of, lows, highs = places[0], places[1], places[2]
    query, run, i, j = position[0], position[1], position[2], position[3]
    side = np.int64(at) << ROW_BITS
    count = 0
    while query < block_of.shape[0] and count < room:
        where = np.int64(-1) if run >= block_of.shape[1] else block_of[query, run]
        if where >= 0:
            other = blocks[where]
            low, high = lows[query, run], highs[query, run]
            if i < 0:
                i, j = starts[query], low
            other_side = where << ROW_BITS
            plain = other[DIFF_WIDTH] == 0
            while i < starts[query + 1] and count < room:
                diff = diff_at(block, i)
                code = code_at(block, i) * stride + bases[where]
                steps = min(high - j, room - count)
                constant = diff * diff_at(other, j)
                if is_beyond(diff, diff_at(other, j)):
                    position[4] = 1
                for step in range(steps):
                    out[0, count + step] = side | i
                    out[1, count + step] = other_side | (j + step)
                    out[2, count + step] = constant if plain else diff * diff_at(other, j + step)
                    if not plain and is_beyond(diff, diff_at(other, j + step)):
                        position[4] = 1
                if stride > 0:
                    single = other[CODE_WIDTH] == 0
                    for step in range(steps):
                        codes[count + step] = code + (0 if single else code_at(other, j + step))
                count += steps
                j += steps
                if j == high:
                    i, j = i + 1, low
            if i < starts[query + 1]:
                break
        i, j = np.int64(-1), np.int64(0)
        run += 1
        if run >= block_of.shape[1]:
            query, run = query + 1, 0
    position[0], position[1], position[2], position[3] = query, run, i, j
    return out, codes


@kernel
def mark_codes(codes: np.ndarray, count: int) -> np.ndarray:
    """Which of `count` codes occur."""
    used = np.zeros(count, np.bool_)
    for code in codes:
        used[code] = True
    return used


@kernel
def cut_rows(block: np.ndarray, start: int, stop: int, limit: int, key_end: int) -> int:
    """About `limit` rows from `start` on, up to the end of a key: one past the last."""
    if stop - start <= limit:
        return stop
    return key_stop(block[HASHES], block[NODES], start + limit - 1, stop, key_end)
