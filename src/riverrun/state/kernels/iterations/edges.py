"""Edges: how often each is there, and for each slot the lists of its edges out and in.

`operators.iterations.adjacency` keeps the arrays. The ends of an edge are *slots*, the small numbers of keys
(`operators.iterations.slots`). An edge is known by its source, its target and its weight, and has a number, its *id*.
The message along an edge with a null weight is null. Such an edge has the complement of its target (`~target`) in place
of the target, and the complement of its source in the list of its target, so kernels know the edge by a sign. Laws:

- **Counts.** `counts` has the sum of the diffs of each edge. An edge is *live*, and in the lists, while its sum is
  above 0. An edge whose sum is below 0 is in no list, and keeps its record.
- **Constant work.** On average, the work to add or remove an edge does not depend on how many edges its ends have. The
  record of an edge has its places in both lists, and the last edge of a list takes the place of a removed one. A list
  that is full is copied to twice the room, and a pool that is full is written anew with more room: both are rare.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.adding import added
from riverrun.state.kernels.compiling import kernel
from riverrun.state.kernels.iterations.messages import is_forbidden, is_improving
from riverrun.state.kernels.memory import prefetch
from riverrun.state.kernels.values import STRIDE, U, mix

# Rows of `edges`, the records: int32 by id. TARGET of a free record is the next free one.
SOURCE = 0  # -1: free
TARGET = 1
PLACE = 2  # and PLACE + 1: where in the list of the source, and of the target; -1: not live
EDGE_FIELDS = 4
FREE = -1

# Sides, and rows of `lists`: int64 by side and slot.
OUT = 0
IN = 1
START = 0
COUNT = 1
ROOM = 2
LIST_FIELDS = 3

# Fields of `sizes`.
RECORDS = 0  # ids in use or free
FIRST_FREE = 1
POOL = 2  # and POOL + 1: cells of the pool that are taken, by side
IMPROVING = 4  # live edges along which a message may be better than the value
LIVE = 5
SIZE_FIELDS = 6

AHEAD = 16


@kernel
def hash_edge(source: int, target: int, weight: int) -> int:
    return mix(U((source << 32) ^ target) ^ (U(weight) * STRIDE))


@kernel
def tally(
    sources: np.ndarray, targets: np.ndarray, weights: np.ndarray, diffs: np.ndarray, sign: int,
    table: np.ndarray, edges: np.ndarray, edge_weights: np.ndarray, counts: np.ndarray, sizes: np.ndarray,
    ids: np.ndarray,
) -> None:  # fmt: skip
    """Add diffs to the counts of edges, and give their ids. New edges get records; there is room for all of them."""
    mask = U(table.shape[0] - 1)
    weighted = weights.shape[0] > 0
    rows = sources.shape[0]
    weight = np.int64(0)
    place = table.ctypes.data
    record_sources, record_targets = edges[SOURCE], edges[TARGET]
    large = table.shape[0] > 1 << 16
    for row in range(rows):
        if large and row + AHEAD < rows:
            later = row + AHEAD
            if weighted:
                weight = weights[later]
            at = hash_edge(np.int64(sources[later]), np.int64(targets[later]), weight) & mask
            prefetch(place + 4 * np.int64(at))
        source, target = np.int64(sources[row]), np.int64(targets[row])
        if weighted:
            weight = weights[row]
        at = hash_edge(source, target, weight) & mask
        edge = np.int64(table[at])
        while edge >= 0 and not (
            record_sources[edge] == source
            and record_targets[edge] == target
            and (not weighted or edge_weights[edge] == weight)
        ):
            at = (at + U(1)) & mask
            edge = np.int64(table[at])
        if edge < 0:
            edge = sizes[FIRST_FREE]
            if edge < 0:
                edge = sizes[RECORDS]
                sizes[RECORDS] += 1
            else:
                sizes[FIRST_FREE] = record_targets[edge]
            table[at] = edge
            record_sources[edge], record_targets[edge] = source, target
            edges[PLACE, edge] = edges[PLACE + 1, edge] = -1
            counts[edge] = 0
            if weighted:
                edge_weights[edge] = weight
        counts[edge] = added(counts[edge], sign * diffs[row])
        ids[row] = edge


@kernel
def release(
    edge: int, table: np.ndarray, edges: np.ndarray, edge_weights: np.ndarray, sizes: np.ndarray
) -> None:
    """Free the record of an edge, and close the gap that it leaves in the table."""
    mask = U(table.shape[0] - 1)
    weighted = edge_weights.shape[0] > 0
    weight = edge_weights[edge] if weighted else np.int64(0)
    at = hash_edge(np.int64(edges[SOURCE, edge]), np.int64(edges[TARGET, edge]), weight) & mask
    while table[at] != edge:
        at = (at + U(1)) & mask
    hole = at
    while True:
        at = (at + U(1)) & mask
        other = np.int64(table[at])
        if other < 0:
            break
        weight = edge_weights[other] if weighted else np.int64(0)
        home = hash_edge(np.int64(edges[SOURCE, other]), np.int64(edges[TARGET, other]), weight)
        if (at - home) & mask >= (at - hole) & mask:
            table[hole] = other
            hole = at
    table[hole] = -1
    edges[SOURCE, edge] = FREE
    edges[TARGET, edge] = sizes[FIRST_FREE]
    sizes[FIRST_FREE] = edge


@kernel
def fill_edges(
    table: np.ndarray, edges: np.ndarray, edge_weights: np.ndarray, sizes: np.ndarray
) -> None:
    """Fill an empty table with all records."""
    table[:] = -1
    mask = U(table.shape[0] - 1)
    weighted = edge_weights.shape[0] > 0
    for edge in range(sizes[RECORDS]):
        if edges[SOURCE, edge] != FREE:
            weight = edge_weights[edge] if weighted else np.int64(0)
            at = hash_edge(np.int64(edges[SOURCE, edge]), np.int64(edges[TARGET, edge]), weight)
            at &= mask
            while table[at] >= 0:
                at = (at + U(1)) & mask
            table[at] = edge


@kernel
def build_lists(
    edges: np.ndarray, edge_weights: np.ndarray, counts: np.ndarray, sizes: np.ndarray, lists: np.ndarray,
    slots: int, ends: np.ndarray, numbers: np.ndarray, weights: np.ndarray,
) -> None:  # fmt: skip
    """Write both lists of all slots anew, without gaps, from the records."""
    weighted = edge_weights.shape[0] > 0
    for side in range(2):
        starts, lengths, rooms = lists[side, START], lists[side, COUNT], lists[side, ROOM]
        own, other = edges[side], edges[1 - side]
        side_ends, side_numbers, places = ends[side], numbers[side], edges[PLACE + side]
        side_weights = weights[side]
        lengths[:slots] = 0
        for edge in range(sizes[RECORDS]):
            if edges[SOURCE, edge] != FREE and counts[edge] > 0:
                slot = np.int64(own[edge])
                lengths[slot if slot >= 0 else ~slot] += 1
        total = np.int64(0)
        for slot in range(slots):
            starts[slot] = total
            rooms[slot] = lengths[slot]
            total += lengths[slot]
            lengths[slot] = 0
        sizes[POOL + side] = total
        for edge in range(sizes[RECORDS]):
            if edges[SOURCE, edge] == FREE or counts[edge] <= 0:
                continue
            slot, end = np.int64(own[edge]), np.int64(other[edge])
            if slot < 0:
                slot, end = ~slot, ~end
            place = lengths[slot]
            lengths[slot] = place + 1
            places[edge] = place
            at = starts[slot] + place
            side_ends[at], side_numbers[at] = end, edge
            if weighted:
                side_weights[at] = edge_weights[edge]


@kernel
def list_edges(
    ids: np.ndarray, first: int, table: np.ndarray, edges: np.ndarray, edge_weights: np.ndarray,
    counts: np.ndarray, sizes: np.ndarray, lists: np.ndarray, ends: np.ndarray, numbers: np.ndarray,
    weights: np.ndarray, how: np.ndarray, built: bool, fresh: np.ndarray, gone: np.ndarray, found: np.ndarray,
) -> int:  # fmt: skip
    """Bring edges into the lists or out of them, as their counts say, from `first` on; the number of edges done.

    Stops early where the pool is full. `built`: the lists were written by `build_lists`. `fresh` takes the ids of edges
    that became live, `gone` source, target and weight of those that went; found[0] and found[1] count them. found[2] is
    an edge of a weight that is forbidden, or -1.
    """
    weighted = edge_weights.shape[0] > 0
    for row in range(first, ids.shape[0]):
        edge = np.int64(ids[row])
        if edges[SOURCE, edge] == FREE:
            continue
        live = counts[edge] > 0
        if live == (edges[PLACE, edge] >= 0) and not built:
            if counts[edge] == 0:
                release(edge, table, edges, edge_weights, sizes)
            continue
        source, target = np.int64(edges[SOURCE, edge]), np.int64(edges[TARGET, edge])
        null = target < 0
        slot = ~target if null else target
        weight = edge_weights[edge] if weighted else np.int64(0)
        improving = weighted and not null and is_improving(how[0], how[1], how[2], weight)
        if built and not live:
            if counts[edge] == 0:
                release(edge, table, edges, edge_weights, sizes)
            continue
        if live:
            if weighted and not null and is_forbidden(how[0], how[1], weight):
                found[2] = edge
            if not built:
                full = False
                for side in range(2):
                    own = source if side == OUT else slot
                    length = lists[side, COUNT, own]
                    if length == lists[side, ROOM, own]:
                        full |= sizes[POOL + side] + max(4, 2 * length) > ends.shape[1]
                if full:
                    return row
                for side in range(2):
                    own = source if side == OUT else slot
                    end = target if side == OUT else (~source if null else source)
                    add_to_list(
                        side, own, end, edge, weight, edges, sizes, lists, ends, numbers, weights
                    )
            sizes[IMPROVING] += improving
            sizes[LIVE] += 1
            fresh[found[0]] = edge
            found[0] += 1
            continue
        for side in range(2):
            own = source if side == OUT else slot
            take_from_list(side, own, edge, edges, lists, ends, numbers, weights)
        sizes[IMPROVING] -= improving
        sizes[LIVE] -= 1
        gone[found[1], 0], gone[found[1], 1], gone[found[1], 2] = source, target, weight
        found[1] += 1
        if counts[edge] == 0:
            release(edge, table, edges, edge_weights, sizes)
    return ids.shape[0]


@kernel
def add_to_list(
    side: int, own: int, end: int, edge: int, weight: int, edges: np.ndarray, sizes: np.ndarray,
    lists: np.ndarray, ends: np.ndarray, numbers: np.ndarray, weights: np.ndarray,
) -> None:  # fmt: skip
    """Append an edge to the list of a slot; the pool has room."""
    length = lists[side, COUNT, own]
    if length == lists[side, ROOM, own]:
        room, old, new = max(4, 2 * length), lists[side, START, own], sizes[POOL + side]
        for at in range(length):
            ends[side, new + at] = ends[side, old + at]
            numbers[side, new + at] = numbers[side, old + at]
            if weights.shape[1] > 0:
                weights[side, new + at] = weights[side, old + at]
        lists[side, START, own] = new
        lists[side, ROOM, own] = room
        sizes[POOL + side] = new + room
    at = lists[side, START, own] + length
    ends[side, at], numbers[side, at] = end, edge
    if weights.shape[1] > 0:
        weights[side, at] = weight
    edges[PLACE + side, edge] = length
    lists[side, COUNT, own] = length + 1


@kernel
def take_from_list(
    side: int, own: int, edge: int, edges: np.ndarray, lists: np.ndarray, ends: np.ndarray,
    numbers: np.ndarray, weights: np.ndarray,
) -> None:  # fmt: skip
    """Remove an edge from the list of a slot; the last edge of the list takes its place."""
    last = lists[side, COUNT, own] - 1
    start, place = lists[side, START, own], np.int64(edges[PLACE + side, edge])
    moved = numbers[side, start + last]
    ends[side, start + place] = ends[side, start + last]
    numbers[side, start + place] = moved
    if weights.shape[1] > 0:
        weights[side, start + place] = weights[side, start + last]
    edges[PLACE + side, moved] = place
    edges[PLACE + side, edge] = -1
    lists[side, COUNT, own] = last
