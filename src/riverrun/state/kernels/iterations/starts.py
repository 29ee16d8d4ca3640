"""Start values: the rows of the solution and of the workset, and the best of them for each slot.

`operators.iterations.starts` keeps the arrays. A row is known by its slot, its side, its rank and its word
(`messages`), and has a number, its *id*. The rows of a slot are a list with links in both directions. Law:

- **Best.** START and START_RANK of a slot are the best word of its rows with a count above 0, of both sides; but a slot
  without such a row of the solution is `CLOSED`, if keys have to be in the solution.

Cost: adding and removing a row is constant work, by a table of rows. Where the best row of a slot goes, its other rows
are looked at.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.adding import added
from riverrun.state.kernels.compiling import kernel
from riverrun.state.kernels.iterations.cells import (
    FIRST_ROW,
    OLD_START,
    OLD_START_RANK,
    SOLUTIONS,
    START_RANK,
    START_VALUE,
    STARTED,
)
from riverrun.state.kernels.iterations.messages import (
    ABSENT,
    BEST,
    CLOSED,
    VALUE,
    WORST,
    turns_round,
)
from riverrun.state.kernels.values import STRIDE, U, mix

# Rows of `rows`: int32 by id. NEXT of a free row is the next free one.
SLOT = 0  # -1: free
TAG = 1  # twice the rank, and one for a row of the workset
NEXT = 2
BEFORE = 3
ROW_FIELDS = 4

# Rows of `amounts`: int64 by id.
WORD = 0
COUNT = 1
AMOUNT_FIELDS = 2

# Fields of `sizes`.
RECORDS = 0
FIRST_FREE = 1
TURNING = 2  # live rows that make products better than their factor
SIZE_FIELDS = 3

SOLUTION = 0
WORKSET = 1


@kernel
def hash_row(slot: int, tag: int, word: int) -> int:
    return mix(U((slot << 3) | tag) ^ (U(word) * STRIDE))


@kernel
def note_start(
    slot: int, words: np.ndarray, flags: np.ndarray, started: np.ndarray, count: int
) -> int:
    """Keep the start value that a slot has had in the last epoch; the number of such slots."""
    if flags[STARTED, slot] == 0:
        flags[STARTED, slot] = 1
        words[OLD_START, slot] = words[START_VALUE, slot]
        flags[OLD_START_RANK, slot] = flags[START_RANK, slot]
        started[count] = slot
        return count + 1
    return count


@kernel
def find_best(
    slot: int, words: np.ndarray, cells: np.ndarray, flags: np.ndarray, rows: np.ndarray,
    amounts: np.ndarray, closes: bool,
) -> None:  # fmt: skip
    """Work out the start value of a slot from all its rows."""
    if closes and cells[SOLUTIONS, slot] == 0:
        words[START_VALUE, slot], flags[START_RANK, slot] = BEST, CLOSED
        return
    best, best_rank = np.int64(WORST), np.int64(ABSENT)
    row = np.int64(cells[FIRST_ROW, slot])
    while row >= 0:
        word, rank = amounts[WORD, row], np.int64(rows[TAG, row]) >> 1
        if amounts[COUNT, row] > 0 and (word < best or (word == best and rank < best_rank)):
            best, best_rank = word, rank
        row = np.int64(rows[NEXT, row])
    words[START_VALUE, slot], flags[START_RANK, slot] = best, best_rank


@kernel
def change_starts(
    slots: np.ndarray, row_words: np.ndarray, ranks: np.ndarray, diffs: np.ndarray, sign: int, side: int,
    table: np.ndarray, rows: np.ndarray, amounts: np.ndarray, sizes: np.ndarray, words: np.ndarray,
    cells: np.ndarray, flags: np.ndarray, started: np.ndarray, count: int, how: np.ndarray, closes: bool,
) -> int:  # fmt: skip
    """Add diffs to the counts of rows; `started` takes the slots whose start value may differ. There is room for all.

    Returns the number of slots in `started`, of which there are `count` already.
    """
    mask = U(table.shape[0] - 1)
    for at_row in range(slots.shape[0]):
        slot, word = np.int64(slots[at_row]), row_words[at_row]
        rank = np.int64(ranks[at_row])
        tag = 2 * rank + side
        at = hash_row(slot, tag, word) & mask
        row = np.int64(table[at])
        while row >= 0 and not (
            rows[SLOT, row] == slot and amounts[WORD, row] == word and rows[TAG, row] == tag
        ):
            at = (at + U(1)) & mask
            row = np.int64(table[at])
        if row < 0:
            row = sizes[FIRST_FREE]
            if row < 0:
                row = sizes[RECORDS]
                sizes[RECORDS] += 1
            else:
                sizes[FIRST_FREE] = rows[NEXT, row]
            table[at] = row
            rows[SLOT, row], rows[TAG, row] = slot, tag
            amounts[WORD, row], amounts[COUNT, row] = word, 0
            following = np.int64(cells[FIRST_ROW, slot])
            rows[NEXT, row], rows[BEFORE, row] = following, -1
            if following >= 0:
                rows[BEFORE, following] = row
            cells[FIRST_ROW, slot] = row
        before = amounts[COUNT, row] > 0
        amounts[COUNT, row] = added(amounts[COUNT, row], sign * diffs[at_row])
        after = amounts[COUNT, row] > 0
        if before != after:
            count = note_start(slot, words, flags, started, count)
            turning = rank == VALUE and turns_round(how[0], how[1], how[2], word)
            step = 1 if after else -1
            sizes[TURNING] += step * turning
            opened = False
            if side == SOLUTION:
                cells[SOLUTIONS, slot] += step
                opened = closes and cells[SOLUTIONS, slot] == step * after
            start, start_rank = words[START_VALUE, slot], np.int64(flags[START_RANK, slot])
            if opened or (
                not after and start_rank != CLOSED and start == word and start_rank == rank
            ):
                find_best(slot, words, cells, flags, rows, amounts, closes)
            elif after and start_rank != CLOSED:
                if word < start or (word == start and rank < start_rank):
                    words[START_VALUE, slot], flags[START_RANK, slot] = word, rank
        if amounts[COUNT, row] == 0:
            release_row(row, table, rows, amounts, sizes, cells)
    return count


@kernel
def release_row(
    row: int, table: np.ndarray, rows: np.ndarray, amounts: np.ndarray, sizes: np.ndarray, cells: np.ndarray
) -> None:  # fmt: skip
    """Free a row: out of the list of its slot, and out of the table, whose gap is closed."""
    slot, tag = np.int64(rows[SLOT, row]), np.int64(rows[TAG, row])
    before, following = np.int64(rows[BEFORE, row]), np.int64(rows[NEXT, row])
    if before >= 0:
        rows[NEXT, before] = following
    else:
        cells[FIRST_ROW, slot] = following
    if following >= 0:
        rows[BEFORE, following] = before
    mask = U(table.shape[0] - 1)
    at = hash_row(slot, tag, amounts[WORD, row]) & mask
    while table[at] != row:
        at = (at + U(1)) & mask
    hole = at
    while True:
        at = (at + U(1)) & mask
        other = np.int64(table[at])
        if other < 0:
            break
        home = hash_row(
            np.int64(rows[SLOT, other]), np.int64(rows[TAG, other]), amounts[WORD, other]
        )
        if (at - home) & mask >= (at - hole) & mask:
            table[hole] = other
            hole = at
    table[hole] = -1
    rows[SLOT, row] = -1
    rows[NEXT, row] = sizes[FIRST_FREE]
    sizes[FIRST_FREE] = row


@kernel
def fill_rows(table: np.ndarray, rows: np.ndarray, amounts: np.ndarray, sizes: np.ndarray) -> None:
    """Fill an empty table with all rows."""
    table[:] = -1
    mask = U(table.shape[0] - 1)
    for row in range(sizes[RECORDS]):
        if rows[SLOT, row] >= 0:
            at = hash_row(np.int64(rows[SLOT, row]), np.int64(rows[TAG, row]), amounts[WORD, row])
            at &= mask
            while table[at] >= 0:
                at = (at + U(1)) & mask
            table[at] = row
