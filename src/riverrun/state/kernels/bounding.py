"""Reading between bounds on the first order column: the as-of reads of an application's own time.

`View.last` with `at`, `View.latest` and `View.between` use it. `searching.find` says where a key is in each run. There
the rows of the key are in the declared order, so a bound is a binary search. Queries are handled a piece at a time: the
ranges of a piece are then still in the cache when they are cut and added up. Where that pays, queries are handled in
the order of their hashes, so that runs are walked along rather than searched.

Cost: for 100,000 keys, each at random among as many, 15 ns to order them, and 10 to 20 ns a query and run.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.compiling import kernel
from riverrun.state.kernels.layout import NODE_BYTES, NODES
from riverrun.state.kernels.searching import (
    PIECE,
    add_up,
    find_hashed,
    flag_visible,
    hash_keys,
    start_cursors,
)
from riverrun.state.kernels.sorting import order_by_top_bits
from riverrun.state.kernels.values import compare_cells

ORDERED = 512  # from so many queries on they are ordered


@kernel
def cut(
    blocks: np.ndarray,
    bounds: int,
    node: int,
    upper: bool,
    closed: bool,
    own: np.ndarray,
    base: int,
    count: int,
    places: np.ndarray,
) -> None:
    """Cut each range to the rows whose first order column comes before the bound of its query, after it, or at it.

    Query q has the bound of row own[q], or of q + base where `own` is empty.
    """
    # The place is behind all rows before the bound, and behind those at it where these belong to the lower side.
    limit = 1 if closed == upper else 0
    block_of, lows, highs = places[0], places[1], places[2]
    shifted = bounds - node * NODE_BYTES  # the bound is the only node of its own table
    renamed = own.shape[0] > 0
    for query in range(count):
        row = own[query] if renamed else query + base
        for run in range(block_of.shape[1]):
            if block_of[query, run] < 0:
                continue
            nodes = blocks[block_of[query, run], NODES]
            low, high = lows[query, run], highs[query, run]
            while low < high:
                middle = (low + high) >> 1
                if compare_cells(nodes, middle, shifted, row, node) < limit:
                    low = middle + 1
                else:
                    high = middle
            if upper:
                highs[query, run] = low
            else:
                lows[query, run] = low
            if lows[query, run] >= highs[query, run]:
                block_of[query, run] = -1


@kernel
def in_order(hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hashes in ascending order, and the former position of each."""
    count = hashes.shape[0]
    scratch = np.empty(4 * count, np.uint64)
    half = order_by_top_bits(hashes, np.empty(0, np.int64), 3, scratch)
    begin = half * 2 * count
    keys = scratch[begin : begin + count].copy()
    rows = scratch[begin + count : begin + 2 * count].astype(np.int64)
    for at in range(1, count):  # what agrees in the bits that were looked at stands together
        key, row = keys[at], rows[at]
        to = at
        while to > 0 and keys[to - 1] > key:
            keys[to], rows[to] = keys[to - 1], rows[to - 1]
            to -= 1
        keys[to], rows[to] = key, row
    return keys, rows


@kernel
def find_last(
    blocks: np.ndarray,
    runs: np.ndarray,
    nodes: np.ndarray,
    rows: int,
    mask: np.uint64,
    exact: bool,
    as_of: np.ndarray,
    end: int,
    until: int,
    closed: bool,
    node: int,
    names: np.ndarray,
) -> int:
    """For each query the last live row whose first order column comes before its bound; -1 where there is no such row.

    Returns the number of queries that have one.
    """
    hashes = hash_keys(nodes, rows, mask)
    own = np.empty(0, np.int64)
    if rows >= ORDERED:
        hashes, own = in_order(hashes)
    visible, flags = flag_visible(blocks, as_of)
    cursors = start_cursors(blocks, runs, hashes)
    places = np.empty((3, min(rows, PIECE), runs.shape[0] - 1), np.int64)
    written = np.empty((3, min(rows, PIECE)), np.int64)
    names[:] = -1
    total = 0
    for base in range(0, rows, PIECE):
        stop = min(base + PIECE, rows)
        mine = own[base:stop]
        find_hashed(
            blocks, runs, np.int64(nodes.ctypes.data), nodes.shape[0], mine, base, hashes[base:stop], exact,
            cursors, places,
        )  # fmt: skip
        cut(blocks, until, node, True, closed, mine, base, stop - base, places)
        count = add_up(
            blocks, visible, flags, places, stop - base, 0, nodes.shape[0], end, True, 1, True,
            False, written, 0,
        )  # fmt: skip
        for at in range(count):
            query = written[0, at]
            names[own[base + query] if own.shape[0] > 0 else base + query] = written[1, at]
        total += count
    return total


@kernel
def find_between(
    blocks: np.ndarray,
    runs: np.ndarray,
    nodes: np.ndarray,
    rows: int,
    mask: np.uint64,
    exact: bool,
    as_of: np.ndarray,
    end: int,
    since: int,
    since_closed: bool,
    until: int,
    until_closed: bool,
    node: int,
    backward: bool,
    limit: int,
) -> tuple[np.ndarray, int]:
    """For each query its live rows between two bounds, at most `limit` of them. A bound of 0 stands for no bound.

    Returns an array with the query, the name and the count of each row, and the number of rows.
    """
    hashes = hash_keys(nodes, rows, mask)
    visible, flags = flag_visible(blocks, as_of)
    cursors = start_cursors(blocks, runs, hashes)
    places = np.empty((3, min(rows, PIECE), runs.shape[0] - 1), np.int64)
    own = np.empty(0, np.int64)
    written = np.empty((3, 0), np.int64)
    count = 0
    for base in range(0, rows, PIECE):
        stop = min(base + PIECE, rows)
        find_hashed(
            blocks, runs, np.int64(nodes.ctypes.data), nodes.shape[0], own, base, hashes[base:stop], exact,
            cursors, places,
        )  # fmt: skip
        if since != 0:
            cut(blocks, since, node, False, since_closed, own, base, stop - base, places)
        if until != 0:
            cut(blocks, until, node, True, until_closed, own, base, stop - base, places)
        total = 0
        for query in range(stop - base):
            for run in range(places.shape[2]):
                if places[0, query, run] >= 0:
                    total += places[2, query, run] - places[1, query, run]
        most = min(limit, total)
        need = count + min(total, most * (stop - base))
        if need > written.shape[1]:
            room = need if stop == rows else max(need * rows // stop + PIECE, need)
            grown = np.empty((3, room), np.int64)
            grown[:, :count] = written[:, :count]
            written = grown
        count = add_up(
            blocks, visible, flags, places, stop - base, base, nodes.shape[0], end, backward, most,
            True, False, written, count,
        )  # fmt: skip
    return written, count
