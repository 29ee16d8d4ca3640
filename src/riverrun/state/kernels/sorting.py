"""Sorting fresh rows by (hash, key, value, time code), and adding up what is equal.

`sort_plainly` does the same without hashes, in the order of the values themselves.

Hashes are uniform, so two or three counting passes over their top bits leave buckets of a few rows,
which an insertion sort finishes; buckets that stay large (many rows of one key, or hashes that
collide) are merge-sorted, so the worst case is O(n log n) comparisons. A comparison looks at the
hash, then at the *word* of the first column that can differ, a 64-bit integer in the order of its
values (`order_words`), and only then at the columns themselves.

Cost: 30 to 40 ns a row for 100,000 rows with one integer column.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.compiling import kernel
from riverrun.state.kernels.layout import (
    BIT,
    BYTES,
    DATA,
    DECIMAL,
    DESCENDING,
    FLOAT,
    INT,
    KIND,
    OFFSETS,
    ORIGIN,
    UINT,
    VALID,
    WIDTH,
)
from riverrun.state.kernels.memory import bit, load_i64, load_int, load_u8, load_u64
from riverrun.state.kernels.values import U, compare_rows, field, float_bits, hash_rows

PASS_BITS = 11
SMALL = 24  # buckets up to this size are sorted by insertion


@kernel
def order_words(nodes: int, node: int, rows: int, words: np.ndarray) -> bool:
    """Write a word for each cell of a column, in the order of its values; return whether words decide alone.

    They do not where values are longer than a word, or null: equal words are then compared in full.
    """
    kind, width, data = (
        field(nodes, node, KIND),
        field(nodes, node, WIDTH),
        field(nodes, node, DATA),
    )
    origin, valid = field(nodes, node, ORIGIN), field(nodes, node, VALID)
    flip = U(0xFFFFFFFFFFFFFFFF) if field(nodes, node, DESCENDING) != 0 else U(0)
    top = U(1) << U(63)
    if kind == INT and width == 8 and valid == 0:
        for row in range(rows):
            words[row] = (load_u64(data + (row + origin) * 8) ^ top) ^ flip
        return True
    alone = valid == 0 and width <= 8
    for row in range(rows):
        at = row + origin
        if valid != 0 and bit(valid, at) == 0:
            words[row] = U(0xFFFFFFFFFFFFFFFF)
            continue
        if kind == INT or (kind == DECIMAL and width <= 8):
            word = U(load_int(data, width, at)) ^ top
        elif kind == UINT:
            word = U(load_int(data, width, at)) & (U(0xFFFFFFFFFFFFFFFF) >> U(64 - 8 * width))
        elif kind == FLOAT:
            bits = float_bits(data, width, at)
            word = ~U(bits) if bits < 0 else U(bits) ^ top
        elif kind == BIT:
            word = U(bit(data, at))
        elif kind == BYTES:
            alone = False
            offsets = field(nodes, node, OFFSETS) + at * 8
            start = load_i64(offsets)
            size = min(load_i64(offsets + 8) - start, 8)
            word = U(0)
            for step in range(size):
                word |= U(load_u8(data + start + step)) << U(56 - 8 * step)
        else:
            alone = False
            word = U(0)
        words[row] = word ^ flip
    return alone


@kernel
def compare_at(
    words: np.ndarray,
    alone: bool,
    nodes: int,
    first: int,
    end: int,
    codes: np.ndarray,
    i: int,
    j: int,
) -> int:
    """The order of two fresh rows of one hash: word, columns, time code."""
    if words[i] != words[j]:
        return -1 if words[i] < words[j] else 1
    if not alone:
        order = compare_rows(nodes, i, nodes, j, first, end)
        if order != 0:
            return order
    if codes.shape[0] > 0:
        return np.int64(codes[i]) - np.int64(codes[j])
    return np.int64(0)


@kernel
def order_by_top_bits(
    hashes: np.ndarray, passes: int, scratch: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Hashes and their row numbers, ordered by the top `passes * PASS_BITS` bits, stably."""
    rows = hashes.shape[0]
    size = 1 << PASS_BITS
    mask = U(size - 1)
    keys, order = scratch[:rows], scratch[rows : 2 * rows].view(np.int64)
    next_keys = scratch[2 * rows : 3 * rows]
    next_order = scratch[3 * rows : 4 * rows].view(np.int64)
    for row in range(rows):
        keys[row] = hashes[row]
        order[row] = row
    for step in range(passes):
        shift = U(64 - PASS_BITS * (passes - step))
        starts = np.zeros(size, np.int64)
        for row in range(rows):
            starts[(keys[row] >> shift) & mask] += 1
        total = 0
        for bucket in range(size):
            count = starts[bucket]
            starts[bucket] = total
            total += count
        for row in range(rows):
            bucket = (keys[row] >> shift) & mask
            at = starts[bucket]
            starts[bucket] = at + 1
            next_keys[at] = keys[row]
            next_order[at] = order[row]
        keys, next_keys = next_keys, keys
        order, next_order = next_order, order
    return keys, order


@kernel
def sort_bucket(
    keys: np.ndarray,
    order: np.ndarray,
    start: int,
    stop: int,
    words: np.ndarray,
    alone: bool,
    nodes: int,
    first: int,
    end: int,
    codes: np.ndarray,
) -> None:
    """Sort positions [start, stop) of hashes and row numbers: runs by insertion, then merged bottom up."""
    for low in range(start, stop, SMALL):
        high = min(low + SMALL, stop)
        for at in range(low + 1, high):
            key, row = keys[at], order[at]
            hole = at
            while hole > low:
                before = keys[hole - 1]
                if before < key:
                    break
                if before == key:
                    if (
                        compare_at(words, alone, nodes, first, end, codes, order[hole - 1], row)
                        <= 0
                    ):
                        break
                keys[hole], order[hole] = before, order[hole - 1]
                hole -= 1
            keys[hole], order[hole] = key, row
    length = stop - start
    if length <= SMALL:
        return
    old_keys, old_order = np.empty(length, np.uint64), np.empty(length, np.int64)
    width = SMALL
    while width < length:
        for low in range(start, stop, 2 * width):
            middle, high = min(low + width, stop), min(low + 2 * width, stop)
            if middle >= high:
                continue
            size = middle - low
            old_keys[:size] = keys[low:middle]
            old_order[:size] = order[low:middle]
            left, right, at = 0, middle, low
            while left < size and right < high:
                take = old_keys[left] < keys[right]
                if old_keys[left] == keys[right]:
                    row = old_order[left]
                    take = (
                        compare_at(words, alone, nodes, first, end, codes, row, order[right]) <= 0
                    )
                if take:
                    keys[at], order[at] = old_keys[left], old_order[left]
                    left += 1
                else:
                    keys[at], order[at] = keys[right], order[right]
                    right += 1
                at += 1
            while left < size:
                keys[at], order[at] = old_keys[left], old_order[left]
                left += 1
                at += 1
        width *= 2


@kernel
def sort_rows(
    hashes: np.ndarray,
    words: np.ndarray,
    alone: bool,
    nodes: int,
    first: int,
    end: int,
    codes: np.ndarray,
    scratch: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Hashes and row numbers in the order of (hash, columns from `first` on, code).

    `codes` is empty when all rows have one time. `scratch` has four words a row, and holds what is returned.
    """
    rows = hashes.shape[0]
    if rows <= SMALL:
        keys, order = order_by_top_bits(hashes, 0, scratch)
        sort_bucket(keys, order, 0, rows, words, alone, nodes, first, end, codes)
        return keys, order
    passes = 1
    while passes < 4 and rows >> (passes * PASS_BITS) > 2:
        passes += 1
    keys, order = order_by_top_bits(hashes, passes, scratch)
    shift = U(64 - passes * PASS_BITS)
    start = 0
    while start < rows:
        top = keys[start] >> shift
        stop = start + 1
        while stop < rows and keys[stop] >> shift == top:
            stop += 1
        if stop - start > 1:
            sort_bucket(keys, order, start, stop, words, alone, nodes, first, end, codes)
        start = stop
    return keys, order


@kernel
def consolidate(
    keys: np.ndarray,
    order: np.ndarray,
    words: np.ndarray,
    alone: bool,
    nodes: int,
    first: int,
    end: int,
    codes: np.ndarray,
    diffs: np.ndarray,
    diff: int,
    out_rows: np.ndarray,
    out_codes: np.ndarray,
    out_diffs: np.ndarray,
) -> int:
    """Add up the diffs of equal (row, code); write what is not zero; return how many rows were written.

    `keys` and `order` are what `sort_rows` gave; `diffs` is empty when every row has the diff
    `diff`.
    """
    rows = order.shape[0]
    many_codes, many_diffs = codes.shape[0] > 0, diffs.shape[0] > 0
    out = at = 0
    while at < rows:
        key, row = keys[at], order[at]
        total = diffs[row] if many_diffs else diff
        at += 1
        while at < rows and keys[at] == key:
            other = order[at]
            if compare_at(words, alone, nodes, first, end, codes, row, other) != 0:
                break
            total += diffs[other] if many_diffs else diff
            at += 1
        if total != 0:
            out_rows[out] = row
            out_codes[out] = codes[row] if many_codes else 0
            out_diffs[out] = total
            out += 1
    return out


@kernel
def sort_plainly(
    table: np.ndarray, rows: int, codes: np.ndarray, diffs: np.ndarray, diff: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Rows in the order of their columns and codes, equal ones added up.

    Returns row numbers, codes, diffs, and whether all diffs are the same.
    """
    nodes, end = table.ctypes.data, table.shape[0]
    keys, words = np.zeros(rows, np.uint64), np.zeros(rows, np.uint64)
    first, alone = 0, end == 0
    if end > 0 and order_words(nodes, 0, rows, keys):
        first = 1  # the word of the first column takes the place of the hash
        alone = True if end == 1 else order_words(nodes, 1, rows, words) and end == 2
    sorted_keys, order = sort_rows(
        keys, words, alone, nodes, first, end, codes, np.empty(4 * rows, np.uint64)
    )
    out_rows, out_diffs = np.empty(rows, np.int64), np.empty(rows, np.int64)
    out_codes = np.empty(rows, np.int32)
    kept = consolidate(
        sorted_keys, order, words, alone, nodes, first, end, codes, diffs, diff,
        out_rows, out_codes, out_diffs,
    )  # fmt: skip
    alike = True
    for at in range(1, kept):
        alike = alike and out_diffs[at] == out_diffs[0]
    return out_rows[:kept], out_codes[:kept], out_diffs[:kept], alike


@kernel
def split_by_hash(
    table: np.ndarray, rows: int, bounds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers in the order of the range their hash is in, each range's in order, and where ranges start.

    Range i is from bounds[i - 1] up to bounds[i], the first from 0, the last without end.
    """
    hashes = np.empty(rows, np.uint64)
    hash_rows(table.ctypes.data, table.shape[0], rows, hashes)
    ranges = np.empty(rows, np.int64)
    starts = np.zeros(bounds.shape[0] + 2, np.int64)
    for row in range(rows):
        low, high = 0, bounds.shape[0]
        while low < high:
            middle = (low + high) >> 1
            if bounds[middle] <= hashes[row]:
                low = middle + 1
            else:
                high = middle
        ranges[row] = low
        starts[low + 1] += 1
    for at in range(1, starts.shape[0]):
        starts[at] += starts[at - 1]
    places = starts.copy()
    order = np.empty(rows, np.int64)
    for row in range(rows):
        order[places[ranges[row]]] = row
        places[ranges[row]] += 1
    return order, starts
