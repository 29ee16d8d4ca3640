"""Edges kept by target: sorting them, adding equal ones up, and changing a few rows in place.

`operators.iterations.compressed` calls these kernels. An *edge* is a target, a source, some *words* (of 64 bits; what
else the edge carries) and how often the edge is there. The edges of one target are a *row*, in ascending order of
source and then of words; rows lie in a *pool*, each with room for some more edges.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.compiling import kernel
from riverrun.state.kernels.layout import INT, KIND, VALID
from riverrun.state.kernels.values import compare_rows, field, hash_rows

SLACK = 4
"""A row that moves gets room for a quarter more edges, and for so many."""


@kernel
def place_rows(
    asked: np.ndarray,
    rows: int,
    known: np.ndarray,
    first: int,
    hashes: np.ndarray,
    table: np.ndarray,
    slots: np.ndarray,
) -> tuple[np.ndarray, int]:
    """Write the slot of each of `rows` keys to `slots`; keys that have none get the next slots, from `first` on.

    `known` are the nodes of the keys that have slots, `hashes` has room for all, and `table` is open addressing, with
    more than `first + rows` cells, -1 where free. Returns the rows of the new keys, in the order of their slots.
    """
    a, k, end = np.int64(asked.ctypes.data), np.int64(known.ctypes.data), asked.shape[0]
    mine = np.empty(rows, np.uint64)
    hash_rows(a, end, rows, mine)
    # The hash of a single integer is a bijection.
    exact = end == 1 and field(a, 0, KIND) == INT and field(a, 0, VALID) == 0
    exact = exact and (first == 0 or field(k, 0, VALID) == 0)
    mask = np.uint64(table.shape[0] - 1)
    fresh, count = np.empty(rows, np.int64), np.int64(0)
    for row in range(rows):
        h = mine[row]
        at = np.int64(h & mask)
        slot = np.int64(table[at])
        while slot >= 0:
            if hashes[slot] == h:
                if exact:
                    break
                if slot < first:
                    if compare_rows(a, row, k, slot, 0, end) == 0:
                        break
                elif compare_rows(a, row, a, fresh[slot - first], 0, end) == 0:
                    break
            at = np.int64(np.uint64(at + 1) & mask)
            slot = np.int64(table[at])
        if slot < 0:
            slot = first + count
            table[at], hashes[slot], fresh[count] = slot, h, row
            count += 1
        slots[row] = slot
    return fresh[:count].copy(), count


@kernel
def fill_table(hashes: np.ndarray, count: int, table: np.ndarray) -> None:
    """Enter slots 0 to `count` into an empty table."""
    mask = np.uint64(table.shape[0] - 1)
    for slot in range(count):
        at = np.int64(hashes[slot] & mask)
        while table[at] >= 0:
            at = np.int64(np.uint64(at + 1) & mask)
        table[at] = slot


@kernel
def compare_words(a: np.ndarray, i: int, b: np.ndarray, j: int) -> int:
    """The order of the words of two edges."""
    for at in range(a.shape[0]):
        if a[at, i] != b[at, j]:
            return np.int64(-1) if a[at, i] < b[at, j] else np.int64(1)
    return np.int64(0)


@kernel
def sink(order: np.ndarray, low: int, at: int, size: int, words: np.ndarray) -> None:
    """Restore the heap order[low : low + size] below its element `at`."""
    moving = order[low + at]
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if (
            child + 1 < size
            and compare_words(words, order[low + child], words, order[low + child + 1]) < 0
        ):
            child += 1
        if compare_words(words, moving, words, order[low + child]) >= 0:
            break
        order[low + at] = order[low + child]
        at = child
    order[low + at] = moving


@kernel
def count_into(keys: np.ndarray, order: np.ndarray, some: bool, slots: int) -> np.ndarray:
    """A stable counting sort: the rows of `order` (all rows, in turn, unless `some`) by ascending key."""
    rows = keys.shape[0]
    place = np.zeros(slots + 1, np.int64)
    for row in range(rows):
        place[keys[row] + 1] += 1
    for slot in range(slots):
        place[slot + 1] += place[slot]
    sorted_rows = np.empty(rows, np.int64)
    for at in range(rows):
        row = order[at] if some else at
        key = keys[row]
        sorted_rows[place[key]] = row
        place[key] += 1
    return sorted_rows


@kernel
def sort_edges(
    targets: np.ndarray,
    sources: np.ndarray,
    words: np.ndarray,
    diffs: np.ndarray,
    slots: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Edges by target, source and words; equal ones are added up, and left out where they come to nothing."""
    rows = targets.shape[0]
    order = np.empty(0, np.int64)
    ascending = True
    for row in range(1, rows):
        if sources[row] < sources[row - 1]:
            ascending = False
            break
    if not ascending:
        order = count_into(sources, order, False, slots)
    order = count_into(targets, order, not ascending, slots)
    kinds = words.shape[0]
    if kinds > 0:
        low = 0
        while low < rows:
            high = low + 1
            t, s = targets[order[low]], sources[order[low]]
            while high < rows and targets[order[high]] == t and sources[order[high]] == s:
                high += 1
            size = high - low
            if size > 1:
                for at in range(size // 2 - 1, -1, -1):
                    sink(order, low, at, size, words)
                for last in range(size - 1, 0, -1):
                    order[low], order[low + last] = order[low + last], order[low]
                    sink(order, low, 0, last, words)
            low = high
    out_targets, out_sources = np.empty(rows, np.uint32), np.empty(rows, np.uint32)
    out_words, out_diffs = np.empty((kinds, rows), np.int64), np.empty(rows, np.int64)
    count, at = 0, 0
    while at < rows:
        row = order[at]
        t, s, total = targets[row], sources[row], diffs[row]
        at += 1
        while at < rows:
            other = order[at]
            if targets[other] != t or sources[other] != s:
                break
            if compare_words(words, other, words, row) != 0:
                break
            total += diffs[other]
            at += 1
        if total != 0:
            out_targets[count], out_sources[count], out_diffs[count] = t, s, total
            for kind in range(kinds):
                out_words[kind, count] = words[kind, row]
            count += 1
    return (
        out_targets[:count].copy(),
        out_sources[:count].copy(),
        np.ascontiguousarray(out_words[:, :count]),
        out_diffs[:count].copy(),
    )


@kernel
def list_edges(
    start: np.ndarray,
    count: np.ndarray,
    source: np.ndarray,
    words: np.ndarray,
    times: np.ndarray,
    edges: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """All edges, row by row, in the form that `sort_edges` takes and gives."""
    kinds = words.shape[0]
    out_targets, out_sources = np.empty(edges, np.uint32), np.empty(edges, np.uint32)
    out_words, out_diffs = np.empty((kinds, edges), np.int64), np.ones(edges, np.int64)
    some = times.shape[0] > 0
    at = 0
    for target in range(count.shape[0]):
        for edge in range(start[target], start[target] + count[target]):
            out_targets[at], out_sources[at] = target, source[edge]
            for kind in range(kinds):
                out_words[kind, at] = words[kind, edge]
            if some:
                out_diffs[at] = times[edge]
            at += 1
    return out_targets, out_sources, out_words, out_diffs


@kernel
def merge_rows(
    start: np.ndarray,
    count: np.ndarray,
    room: np.ndarray,
    several: np.ndarray,
    source: np.ndarray,
    words: np.ndarray,
    times: np.ndarray,
    targets: np.ndarray,
    sources: np.ndarray,
    new_words: np.ndarray,
    diffs: np.ndarray,
    end: int,
    write: bool,
) -> tuple[int, int, bool]:
    """Add changes, in the form that `sort_edges` gives, to the rows of their targets.

    A row that outgrows its room moves to `end`, the end of the pool. Returns the change that would leave an edge a
    negative number of times, or -1; the new end of the pool; and whether all edges that were touched are there once.
    Without `write` nothing changes, so the caller learns all this beforehand.
    """
    changes, kinds, some = targets.shape[0], words.shape[0], times.shape[0] > 0
    plain = True
    low = 0
    while low < changes:
        target = targets[low]
        high = low + 1
        while high < changes and targets[high] == target:
            high += 1
        begin, size = start[target], count[target]
        most = size + high - low
        new_source = np.empty(most if write else 0, np.uint32)
        new_times = np.empty(most if write else 0, np.int64)
        kept_words = np.empty((kinds, most if write else 0), np.int64)
        at, change, made = begin, low, 0
        while at < begin + size or change < high:
            order = np.int64(0)
            if at == begin + size:
                order = 1
            elif change == high:
                order = -1
            elif source[at] != sources[change]:
                order = -1 if source[at] < sources[change] else 1
            else:
                order = compare_words(words, at, new_words, change)
            total = np.int64(0)
            if order <= 0:
                total += times[at] if some else 1
            if order >= 0:
                total += diffs[change]
            if total < 0:
                return np.int64(change), end, plain
            if total > 0:
                plain = plain and (total == 1)
                if write:
                    new_times[made] = total
                    if order <= 0:
                        new_source[made] = source[at]
                        for kind in range(kinds):
                            kept_words[kind, made] = words[kind, at]
                    else:
                        new_source[made] = sources[change]
                        for kind in range(kinds):
                            kept_words[kind, made] = new_words[kind, change]
                made += 1
            if order <= 0:
                at += 1
            if order >= 0:
                change += 1
        moves = made > room[target]
        if write:
            if moves:
                begin = end
                start[target], room[target] = end, made + made // 4 + SLACK
            count[target] = made
            several[target] = 0
            for at in range(made):
                several[target] |= new_times[at] > 1
                source[begin + at] = new_source[at]
                for kind in range(kinds):
                    words[kind, begin + at] = kept_words[kind, at]
                if some:
                    times[begin + at] = new_times[at]
        if moves:
            end += made + made // 4 + SLACK
        low = high
    return np.int64(-1), end, plain


@kernel
def is_in_turn(start: np.ndarray, count: np.ndarray, first: int, last: int) -> bool:
    """Whether the rows of targets [first, last) lie one behind the other."""
    for target in range(first + 1, last):
        if start[target] != start[target - 1] + count[target - 1]:
            return False
    return True


@kernel
def agree_by_source(
    start: np.ndarray,
    count: np.ndarray,
    source: np.ndarray,
    words: np.ndarray,
    marked: np.ndarray,
    seen: np.ndarray,
    of_source: np.ndarray,
) -> bool:
    """Whether all edges of each `marked` source have the same words, which are then written to `of_source`.

    `seen`, all zero at first, gets 1 for each marked source with an edge.
    """
    kinds = words.shape[0]
    for target in range(count.shape[0]):
        for edge in range(start[target], start[target] + count[target]):
            s = source[edge]
            if marked[s] == 0:
                continue
            if seen[s] == 0:
                seen[s] = 1
                for kind in range(kinds):
                    of_source[kind, s] = words[kind, edge]
            else:
                for kind in range(kinds):
                    if of_source[kind, s] != words[kind, edge]:
                        return False
    return True
