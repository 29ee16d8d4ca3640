"""The times at which the values of some keys may change after a given time t: the joins of t with the times of those
changes of the keys that are not at or before t.

`View.later` uses it, by which a reduce in a loop looks ahead. `find_later` gives the joins, and for each key which of
them are its own; `group_later` turns that around. The view's blocks come in *runs*: a run is the blocks of one batch.
Only the runs that have a change not at or before t are searched, and only the times of the changes of the keys are
looked at: in a loop a view has dozens of times, and a key a few of them.

Cost: a lookup for each key in each such run, and two or three comparisons for each change of the keys there.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.compiling import kernel
from riverrun.state.kernels.layout import TIME_COUNT, TIMES
from riverrun.state.kernels.memory import load_i64
from riverrun.state.kernels.merging import code_at
from riverrun.state.kernels.searching import find, is_past


@kernel
def later_runs(blocks: np.ndarray, runs: np.ndarray, time: np.ndarray) -> np.ndarray:
    """The numbers of the runs with some change that is not at or before `time`."""
    numbers = np.empty(runs.shape[0] - 1, np.int64)
    count = 0
    for run in range(runs.shape[0] - 1):
        for at in range(runs[run], runs[run + 1]):
            if not is_past(blocks[at, TIMES], 0, time):
                numbers[count] = run
                count += 1
                break
    return numbers[:count]


@kernel
def find_later(
    blocks: np.ndarray,
    runs: np.ndarray,
    nodes: np.ndarray,
    rows: int,
    mask: np.uint64,
    exact: bool,
    time: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The changes of some keys that are not at or before `time`: for each its query and the number of its time.

    The number of a time is its position in the third array, which has the join of `time` with each time that
    occurs. No two changes have the same query and number, and queries ascend.
    """
    depth = time.shape[0]
    chosen = later_runs(blocks, runs, time)
    size = 0
    for run in chosen:
        size += runs[run + 1] - runs[run]
    part = np.empty((size, blocks.shape[1]), np.int64)
    cuts, bases = np.zeros(chosen.shape[0] + 1, np.int64), np.empty(size, np.int64)
    out = codes = 0
    for number in range(chosen.shape[0]):
        for at in range(runs[chosen[number]], runs[chosen[number] + 1]):
            part[out], bases[out] = blocks[at], codes
            codes += blocks[at, TIME_COUNT]
            out += 1
        cuts[number + 1] = out
    places = np.empty((3, rows, chosen.shape[0]), np.int64)
    total = 0 if size == 0 else find(part, cuts, nodes, mask, exact, places)
    who, which = np.empty(total, np.int64), np.empty(total, np.int64)
    if total == 0:
        return who, which, np.empty((0, depth), np.int64)
    # Of each time: its number, -2 if it was not looked at, -1 if it is at or before `time`; and the last query with it.
    numbers, last = np.full(codes, -2, np.int64), np.full(codes, -1, np.int64)
    joins = np.empty((codes, depth), np.int64)
    pairs = used = 0
    for query in range(rows):
        for run in range(places.shape[2]):
            at = places[0, query, run]
            if at < 0:
                continue
            for row in range(places[1, query, run], places[2, query, run]):
                code = bases[at] + code_at(part[at], row)
                if last[code] == query or numbers[code] == -1:
                    continue
                if numbers[code] == -2:
                    times, here = part[at, TIMES], code - bases[at] + 1
                    if is_past(times, here, time):
                        numbers[code] = -1
                        continue
                    numbers[code] = used
                    for place in range(depth):
                        coordinate = load_i64(times + (here * depth + place) * 8)
                        joins[used, place] = max(coordinate, time[place])
                    used += 1
                last[code] = query
                who[pairs], which[pairs] = query, numbers[code]
                pairs += 1
    return who[:pairs], which[:pairs], joins[:used]


@kernel
def group_later(
    who: np.ndarray, which: np.ndarray, codes: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """For each of `count` codes the queries with that code, once each, and where the queries of each code start.

    `codes` has the code of each time number of `find_later`.
    """
    seen = np.full(count, -1, np.int64)
    starts = np.zeros(count + 1, np.int64)
    is_first = np.zeros(who.shape[0], np.bool_)
    for pair in range(who.shape[0]):
        code = codes[which[pair]]
        if seen[code] != who[pair]:
            seen[code] = who[pair]
            is_first[pair] = True
            starts[code + 1] += 1
    for code in range(count):
        starts[code + 1] += starts[code]
    places = starts.copy()
    out = np.empty(starts[count], np.int64)
    for pair in range(who.shape[0]):
        if is_first[pair]:
            code = codes[which[pair]]
            out[places[code]] = who[pair]
            places[code] += 1
    return out, starts
