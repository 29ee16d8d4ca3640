"""Finding keys in the blocks of a view, and adding up their rows.

`state.view` uses it. For kernels a view is a list of block descriptors, run after run. A *run* is the blocks of one
batch; their hashes ascend and no two blocks share one, so at most one block of a run can hold a key. The directory of a
block has the first row of each bucket of hashes. Hashes are uniform, so a bucket holds a few rows. There are two ways
to read, over the same ranges of rows (`scanning` and `presence` have two more):

- `add_up`: per key, each distinct value with the sum of its diffs over the times that are visible,
  in declared order from either end, at most `limit` live values: all values, the least, the
  greatest, the first k;
- `list_changes`: per key, every change with its time.

Law:

- **Exact.** Values are compared exactly (`values`), so two keys of one hash are never mixed.

Cost: a lookup of a key in a block is two cache misses.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.adding import added
from riverrun.state.kernels.compiling import kernel
from riverrun.state.kernels.layout import (
    BASE,
    CODE_WIDTH,
    DATA,
    DESCENDING,
    DIRECTORY,
    FIRST,
    HASHED,
    HASHES,
    INT,
    KIND,
    LAST,
    NODES,
    ORIGIN,
    ROW_BITS,
    SHIFT,
    START,
    STOP,
    TIME_COUNT,
    TIMES,
    VALID,
    WIDTH,
)
from riverrun.state.kernels.memory import load_i64, load_u32, load_u64, prefetch, store_32
from riverrun.state.kernels.merging import code_at, diff_at
from riverrun.state.kernels.values import U, compare_rows, field, hash_rows, is_null

PIECE = 1024  # queries that are searched for before their rows are added up
GROUP = 128  # queries that are looked up side by side
WALKED = 16  # a run with up to so many rows for each key is walked, rather than searched
BUCKET = 8  # rows a directory bucket holds on average
FULL_HASH = U(0xFFFFFFFFFFFFFFFF)


@kernel
def fill_directory(hashes: int, rows: int, shift: int, directory: np.ndarray) -> None:
    """directory[b] = the first row whose bucket is b or later; the last entry is the number of rows."""
    fill_entries(hashes, rows, shift, np.int64(directory.ctypes.data), directory.shape[0])


@kernel
def fill_entries(hashes: int, rows: int, shift: int, target: int, entries: int) -> None:
    """`fill_directory` at an address: each row says that the bucket after its own starts behind it."""
    base = load_u64(hashes)
    for entry in range(entries):
        store_32(target + entry * 4, np.int64(0))
    for row in range(rows):
        bucket = np.int64((load_u64(hashes + row * 8) - base) >> U(shift))
        store_32(target + bucket * 4 + 4, row + 1)
    start = np.int64(0)
    for entry in range(entries):
        start = max(start, load_u32(target + entry * 4))
        store_32(target + entry * 4, start)


@kernel
def lower_bound(hashes: int, low: int, high: int, h: int) -> int:
    """The first row in [low, high) whose hash is `h` or greater."""
    while high - low > BUCKET:
        middle = (low + high) >> 1
        if load_u64(hashes + middle * 8) < h:
            low = middle + 1
        else:
            high = middle
    while low < high and load_u64(hashes + low * 8) < h:
        low += 1
    return low


@kernel
def upper_bound(hashes: int, low: int, high: int, h: int) -> int:
    """The first row in [low, high) whose hash is greater than `h`, near `low` as a rule."""
    step = 1
    while low + step < high and load_u64(hashes + (low + step) * 8) == h:
        low += step
        step *= 2
    high = min(high, low + step)
    while low < high:
        middle = (low + high) >> 1
        if load_u64(hashes + middle * 8) <= h:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def find_block(blocks: np.ndarray, low: int, high: int, h: int) -> int:
    """The first block of a run whose last hash is `h` or greater; `high` when there is none."""
    if high - low > 2 and U(blocks[low, FIRST]) <= h <= U(blocks[high - 1, LAST]):
        # Hashes are uniform and blocks alike in size: a guess is right, or off by a block or two.
        base, spread = U(blocks[low, FIRST]), U(blocks[high - 1, LAST]) - U(blocks[low, FIRST])
        share = np.float64(h - base) / (np.float64(spread) + 1.0)
        guess = min(low + np.int64(share * (high - low)), high - 1)
        if U(blocks[guess, LAST]) < h:
            low = guess + 1
            if U(blocks[low, LAST]) >= h:
                return low
        else:
            high = guess + 1
            if guess == low or U(blocks[guess - 1, LAST]) < h:
                return guess
            high = guess
    while low < high:
        middle = (low + high) >> 1
        if U(blocks[middle, LAST]) < h:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def key_range(
    block: np.ndarray, low: int, high: int, keys: int, query: int, key_end: int
) -> tuple[int, int]:
    """The rows of one key among the rows [low, high) of one hash, in which other keys may be."""
    nodes = block[NODES]
    if (
        compare_rows(nodes, low, keys, query, 0, key_end) == 0
        and compare_rows(nodes, high - 1, keys, query, 0, key_end) == 0
    ):
        return low, high
    start, stop = low, high
    while start < stop:
        middle = (start + stop) >> 1
        if compare_rows(nodes, middle, keys, query, 0, key_end) < 0:
            start = middle + 1
        else:
            stop = middle
    first = start
    stop = high
    while start < stop:
        middle = (start + stop) >> 1
        if compare_rows(nodes, middle, keys, query, 0, key_end) <= 0:
            start = middle + 1
        else:
            stop = middle
    return first, start


@kernel
def key_stop(hashes: int, nodes: int, row: int, stop: int, key_end: int) -> int:
    """One past the last row before `stop` with the key of `row`, in a block."""
    exact = key_end == 1 and field(nodes, 0, KIND) == HASHED
    h = load_u64(hashes + row * 8)
    at = row + 1
    while at < stop and load_u64(hashes + at * 8) == h:
        if not exact and compare_rows(nodes, at, nodes, row, 0, key_end) != 0:
            break
        at += 1
    return at


@kernel
def find(
    blocks: np.ndarray,
    runs: np.ndarray,
    nodes: np.ndarray,
    mask: np.uint64,
    exact: bool,
    places: np.ndarray,
) -> int:
    """Write for each query and run the block and the rows [low, high) of the key; return the number of rows.

    The keys are the columns of `nodes`; `exact` says that equal hashes are equal keys. `places`
    holds, for each query and run, the block (-1 where the run does not hold the key), the first
    row, and one past the last.
    """
    queries = places.shape[1]
    hashes = hash_keys(nodes, queries, mask)
    own = np.empty(0, np.int64)
    cursors = start_cursors(blocks, runs, hashes)
    return find_hashed(
        blocks,
        runs,
        np.int64(nodes.ctypes.data),
        nodes.shape[0],
        own,
        0,
        hashes,
        exact,
        cursors,
        places,
    )


@kernel
def hash_keys(nodes: np.ndarray, rows: int, mask: np.uint64) -> np.ndarray:
    """The hashes of the rows of a table, cut by `mask`."""
    hashes = np.empty(rows, np.uint64)
    hash_rows(np.int64(nodes.ctypes.data), nodes.shape[0], rows, hashes)
    if mask != FULL_HASH:
        hashes &= mask
    return hashes


@kernel
def start_cursors(blocks: np.ndarray, runs: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """For each run, where to start walking (block and row), or -1 where searching is better; empty if it always is.

    A run is walked along with the keys if the keys are in the order of a batch and not much fewer
    than the rows of the run.
    """
    queries = hashes.shape[0]
    if queries < GROUP:
        return np.empty((0, 2), np.int64)
    for query in range(1, queries):
        if hashes[query] < hashes[query - 1]:
            return np.empty((0, 2), np.int64)
    cursors = np.empty((runs.shape[0] - 1, 2), np.int64)
    for run in range(runs.shape[0] - 1):
        rows = 0
        for at in range(runs[run], runs[run + 1]):
            rows += blocks[at, STOP] - blocks[at, START]
        walks = 0 < rows <= WALKED * queries
        cursors[run, 0] = runs[run] if walks else -1
        cursors[run, 1] = blocks[runs[run], START] if walks else 0
    return cursors


@kernel
def find_hashed(
    blocks: np.ndarray,
    runs: np.ndarray,
    keys: int,
    key_end: int,
    rows: np.ndarray,
    base: int,
    hashes: np.ndarray,
    exact: bool,
    cursors: np.ndarray,
    places: np.ndarray,
) -> int:
    """`find` of keys whose hashes are known; query q is row rows[q] of the keys, or q + base where `rows` is empty.

    Queries go through three steps in groups, and each step prefetches the memory that the next step
    reads: so cache misses overlap. A run that has a cursor is walked instead, and its cursor moved
    on.
    """
    block_of, lows, highs = places[0], places[1], places[2]
    queries, renamed = hashes.shape[0], rows.shape[0] > 0
    total = 0
    for begin in range(0, queries, GROUP):
        end = min(begin + GROUP, queries)
        for run in range(runs.shape[0] - 1):
            if cursors.shape[0] > 0 and cursors[run, 0] >= 0:
                walk(blocks, runs[run + 1], begin, end, hashes, run, cursors, places)
            else:
                for query in range(begin, end):
                    block_of[query, run] = find_bucket(
                        blocks, runs[run], runs[run + 1], hashes[query], query, run, lows, highs
                    )
                for query in range(begin, end):
                    at = block_of[query, run]
                    if at >= 0:
                        directory = blocks[at, DIRECTORY]
                        if directory != 0:
                            bucket = lows[query, run]
                            low = max(blocks[at, START], load_u32(directory + bucket * 4))
                            high = min(blocks[at, STOP], load_u32(directory + bucket * 4 + 4))
                            lows[query, run], highs[query, run] = low, high
                            address = blocks[at, HASHES] + low * 8
                            prefetch(address)
                            prefetch(address + 64)
                for query in range(begin, end):
                    at = block_of[query, run]
                    if at >= 0:
                        h, address = hashes[query], blocks[at, HASHES]
                        low = lower_bound(address, lows[query, run], highs[query, run], h)
                        if low >= blocks[at, STOP] or load_u64(address + low * 8) != h:
                            block_of[query, run] = -1
                        lows[query, run] = low
            for query in range(begin, end):
                at = block_of[query, run]
                if at < 0:
                    continue
                low = lows[query, run]
                high = upper_bound(blocks[at, HASHES], low, blocks[at, STOP], hashes[query])
                if not exact:
                    row = rows[query] if renamed else query + base
                    low, high = key_range(blocks[at], low, high, keys, row, key_end)
                    if low == high:
                        block_of[query, run] = -1
                        continue
                lows[query, run], highs[query, run] = low, high
                total += high - low
    return total


@kernel
def walk(
    blocks: np.ndarray,
    stop: int,
    begin: int,
    end: int,
    hashes: np.ndarray,
    run: int,
    cursors: np.ndarray,
    places: np.ndarray,
) -> None:
    """Find the first row of each of some hashes, which ascend, in a run, from its cursor on."""
    block_of, lows = places[0], places[1]
    at, row = cursors[run, 0], cursors[run, 1]
    for query in range(begin, end):
        h = hashes[query]
        while at < stop and U(blocks[at, LAST]) < h:
            at += 1
            row = blocks[at, START] if at < stop else np.int64(0)
        block_of[query, run] = -1
        if at == stop:
            continue
        address, high = blocks[at, HASHES], blocks[at, STOP]
        step = 1
        while row + step < high and load_u64(address + (row + step) * 8) < h:
            row += step
            step *= 2
        row = lower_bound(address, row, min(row + step, high), h)
        if row < high and load_u64(address + row * 8) == h:
            block_of[query, run], lows[query, run] = at, row
    cursors[run, 0], cursors[run, 1] = at, row


@kernel
def find_bucket(
    blocks: np.ndarray,
    low: int,
    high: int,
    h: int,
    query: int,
    run: int,
    lows: np.ndarray,
    highs: np.ndarray,
) -> int:
    """The block of a run that may hold `h`, or -1. `lows` takes the bucket, or the rows if there is no directory."""
    at = find_block(blocks, low, high, h)
    if at == high or U(blocks[at, FIRST]) > h:
        return np.int64(-1)
    directory = blocks[at, DIRECTORY]
    if directory != 0:
        bucket = np.int64((h - U(blocks[at, BASE])) >> U(blocks[at, SHIFT]))
        lows[query, run] = bucket
        prefetch(directory + bucket * 4)
    else:
        lows[query, run], highs[query, run] = blocks[at, START], blocks[at, STOP]
    return at


@kernel
def is_past(times: int, number: int, as_of: np.ndarray) -> bool:
    """Whether row `number` of a table of times is at or before `as_of`; row 0 is the join of all others."""
    depth = as_of.shape[0]
    for at in range(depth):
        if load_i64(times + (number * depth + at) * 8) > as_of[at]:
            return False
    return True


@kernel
def flag_visible(blocks: np.ndarray, as_of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The flags of the times that are visible as of a time, and for each block where its flags start (-1: all are
    visible)."""
    places = np.empty(blocks.shape[0], np.int64)
    total = 0
    for at in range(blocks.shape[0]):
        if is_past(blocks[at, TIMES], 0, as_of):
            places[at] = -1
        elif at > 0 and blocks[at, TIMES] == blocks[at - 1, TIMES]:
            places[at] = places[at - 1]  # blocks of a batch share tables
        else:
            places[at] = total
            total += blocks[at, TIME_COUNT]
    flags = np.empty(total, np.bool_)
    for at in range(blocks.shape[0]):
        if places[at] >= 0:
            for code in range(blocks[at, TIME_COUNT]):
                flags[places[at] + code] = is_past(blocks[at, TIMES], code + 1, as_of)
    return places, flags


@kernel
def visible_diff(block: np.ndarray, row: int, place: int, flags: np.ndarray) -> int:
    if place >= 0 and not flags[place + code_at(block, row)]:
        return np.int64(0)
    return diff_at(block, row)


@kernel
def add_up_ranges(
    blocks: np.ndarray,
    visible: np.ndarray,
    flags: np.ndarray,
    where: np.ndarray,
    lows: np.ndarray,
    highs: np.ndarray,
    count: int,
    first: int,
    end: int,
    backward: bool,
    limit: int,
    live_only: bool,
    skip_null: bool,
    out: int,
    out_rows: np.ndarray,
    out_counts: np.ndarray,
) -> int:
    """Merge `count` sorted ranges value by value, writing each value whose visible diffs do not cancel.

    `visible` and `flags` are those of `flag_visible`.
    `live_only` leaves out negative sums too, `skip_null` values whose first order column is null.
    """
    if count == 1 and highs[0] - lows[0] == 1 and not live_only:  # nothing to merge
        total = visible_diff(blocks[where[0]], lows[0], visible[where[0]], flags)
        if total != 0:
            out_rows[out] = (where[0] << ROW_BITS) | lows[0]
            out_counts[out] = total
            out += 1
        return out
    live = 0
    while live < limit:
        least = -1
        for at in range(count):
            if lows[at] >= highs[at]:
                continue
            if least < 0:
                least = at
                continue
            i = highs[at] - 1 if backward else lows[at]
            j = highs[least] - 1 if backward else lows[least]
            order = compare_rows(
                blocks[where[at], NODES], i, blocks[where[least], NODES], j, first, end
            )
            if (order > 0) if backward else (order < 0):
                least = at
        if least < 0:
            break
        row = highs[least] - 1 if backward else lows[least]
        nodes = blocks[where[least], NODES]
        name = (where[least] << ROW_BITS) | row
        total = np.int64(0)
        for at in range(count):
            block = blocks[where[at]]
            while lows[at] < highs[at]:
                here = highs[at] - 1 if backward else lows[at]
                fresh = at == least and here == row
                if not fresh:
                    # One time in the block and the same block: consolidated, so another value.
                    if at == least and block[CODE_WIDTH] == 0:
                        break
                    if compare_rows(block[NODES], here, nodes, row, first, end) != 0:
                        break
                total = added(total, visible_diff(block, here, visible[where[at]], flags))
                if backward:
                    highs[at] -= 1
                else:
                    lows[at] += 1
        if total == 0 or (live_only and total < 0):
            continue
        if skip_null and is_null(nodes, first, row + field(nodes, first, ORIGIN)):
            continue
        out_rows[out] = name
        out_counts[out] = total
        out += 1
        live += 1
    return out


@kernel
def word_cells(
    blocks: np.ndarray, first: int, end: int, backward: bool, cells: np.ndarray
) -> tuple[bool, int]:
    """Whether the only value column is of int64 without nulls; then `cells` takes its address in each block.

    Returns too a number: cells xored with it ascend in the order of reading.
    """
    if first + 1 != end:
        return False, np.int64(0)
    flip = np.int64(-1) if backward else np.int64(0)
    for at in range(blocks.shape[0]):
        nodes = blocks[at, NODES]
        if field(nodes, first, KIND) != INT or field(nodes, first, WIDTH) != 8:
            return False, np.int64(0)
        if field(nodes, first, VALID) != 0:
            return False, np.int64(0)
        cells[at] = field(nodes, first, DATA) + field(nodes, first, ORIGIN) * 8
        if at == 0 and field(nodes, first, DESCENDING) != 0:
            flip = ~flip
    return True, flip


@kernel
def add_up_words(
    blocks: np.ndarray,
    visible: np.ndarray,
    flags: np.ndarray,
    cells: np.ndarray,
    flip: int,
    where: np.ndarray,
    lows: np.ndarray,
    highs: np.ndarray,
    heads: np.ndarray,
    count: int,
    backward: bool,
    limit: int,
    live_only: bool,
    out: int,
    out_rows: np.ndarray,
    out_counts: np.ndarray,
) -> int:
    """`add_up_ranges` for values of one word; `heads` has room for a word for each range."""
    for at in range(count):
        row = highs[at] - 1 if backward else lows[at]
        heads[at] = load_i64(cells[where[at]] + row * 8) ^ flip
    live = 0
    while live < limit:
        least, best = -1, np.int64(0)
        for at in range(count):
            if lows[at] < highs[at] and (least < 0 or heads[at] < best):
                least, best = at, heads[at]
        if least < 0:
            break
        row = highs[least] - 1 if backward else lows[least]
        name = (where[least] << ROW_BITS) | row
        total = np.int64(0)
        for at in range(least, count):
            low, high = lows[at], highs[at]
            if low >= high or heads[at] != best:
                continue
            block, place, address = blocks[where[at]], visible[where[at]], cells[where[at]]
            head = best
            while head == best:
                total = added(
                    total, visible_diff(block, high - 1 if backward else low, place, flags)
                )
                if backward:
                    high -= 1
                else:
                    low += 1
                if low >= high:
                    break
                head = load_i64(address + (high - 1 if backward else low) * 8) ^ flip
            lows[at], highs[at], heads[at] = low, high, head
        if total > 0 or (total < 0 and not live_only):
            out_rows[out] = name
            out_counts[out] = total
            out += 1
            live += 1
    return out


@kernel
def add_up(
    blocks: np.ndarray,
    visible: np.ndarray,
    flags: np.ndarray,
    places: np.ndarray,
    queries: int,
    base: int,
    first: int,
    end: int,
    backward: bool,
    limit: int,
    live_only: bool,
    skip_null: bool,
    written: np.ndarray,
    out: int,
) -> int:
    """Per query, the values whose visible diffs do not cancel, in declared order, written from `out` on.

    `written` takes for each value the query (counted from `base`), the row and the sum. Returns
    the new `out`.
    """
    block_of, lows, highs = places[0], places[1], places[2]
    out_queries, out_rows, out_counts = written[0], written[1], written[2]
    runs = block_of.shape[1]
    where = np.empty(runs, np.int64)
    low, high = np.empty(runs, np.int64), np.empty(runs, np.int64)
    heads, cells = np.empty(runs, np.int64), np.empty(blocks.shape[0], np.int64)
    words, flip = word_cells(blocks, first, end, backward, cells)
    for query in range(queries):
        count = 0
        for run in range(runs):
            if block_of[query, run] >= 0:
                where[count] = block_of[query, run]
                low[count], high[count] = lows[query, run], highs[query, run]
                count += 1
        if count == 0 or limit == 0:
            continue
        begin = out
        # Most keys of most states have one row, or no value columns. A call with all these arrays would cost more
        # than adding up here.
        if first == end or (count == 1 and high[0] - low[0] == 1 and not skip_null):
            total = np.int64(0)
            for at in range(count):
                block, place = blocks[where[at]], visible[where[at]]
                for row in range(low[at], high[at]):
                    total = added(total, visible_diff(block, row, place, flags))
            if total > 0 or (total < 0 and not live_only):
                out_rows[out] = (where[0] << ROW_BITS) | low[0]
                out_counts[out] = total
                out += 1
        elif words:
            out = add_up_words(
                blocks, visible, flags, cells, flip, where, low, high, heads, count, backward,
                limit, live_only, out, out_rows, out_counts,
            )  # fmt: skip
        else:
            out = add_up_ranges(
                blocks, visible, flags, where, low, high, count, first, end, backward, limit,
                live_only, skip_null, out, out_rows, out_counts,
            )  # fmt: skip
        for at in range(begin, out):
            out_queries[at] = base + query
    return out


@kernel
def look_up(
    blocks: np.ndarray,
    runs: np.ndarray,
    nodes: np.ndarray,
    rows: int,
    mask: np.uint64,
    exact: bool,
    as_of: np.ndarray,
    end: int,
    backward: bool,
    limit: int,
    live_only: bool,
    skip_null: bool,
) -> tuple[np.ndarray, int]:
    """`find` and `add_up`, some queries at a time. Returns `written`, and how many columns of it are used."""
    hashes = hash_keys(nodes, rows, mask)
    visible, flags = flag_visible(blocks, as_of)
    cursors = start_cursors(blocks, runs, hashes)
    places = np.empty((3, min(rows, PIECE), runs.shape[0] - 1), np.int64)
    own = np.empty(0, np.int64)
    written = np.empty((3, 0), np.int64)
    count = 0
    for base in range(0, rows, PIECE):
        stop = min(base + PIECE, rows)
        total = find_hashed(
            blocks, runs, np.int64(nodes.ctypes.data), nodes.shape[0], own, base, hashes[base:stop], exact,
            cursors, places,
        )  # fmt: skip
        most = min(limit, total)
        need = count + (min(total, most * (stop - base)) if live_only else total)
        if need > written.shape[1]:
            # As a rule, the pieces to come need as much room for each query as those so far.
            room = need if stop == rows else max(need * rows // stop + PIECE, need)
            grown = np.empty((3, room), np.int64)
            grown[:, :count] = written[:, :count]
            written = grown
        count = add_up(
            blocks, visible, flags, places, stop - base, base, nodes.shape[0], end, backward, most,
            live_only, skip_null, written, count,
        )  # fmt: skip
    return written, count


@kernel
def list_changes(
    blocks: np.ndarray,
    bases: np.ndarray,
    places: np.ndarray,
    written: np.ndarray,
) -> int:
    """Write every change of each query: the query, the row, the diff, and the time.

    A time is written as its code in the block, plus the entry of the block in `bases`.
    """
    block_of, lows, highs = places[0], places[1], places[2]
    out_queries, out_rows, out_diffs, out_times = written[0], written[1], written[2], written[3]
    out = 0
    for query in range(block_of.shape[0]):
        for run in range(block_of.shape[1]):
            at = block_of[query, run]
            if at < 0:
                continue
            block = blocks[at]
            for row in range(lows[query, run], highs[query, run]):
                out_queries[out] = query
                out_rows[out] = (at << ROW_BITS) | row
                out_times[out] = bases[at] + code_at(block, row)
                out_diffs[out] = diff_at(block, row)
                out += 1
    return out
