"""Going through all keys in the order of hashes, some rows at a time: resumable, and from any hash on.

`View.scan` uses it. Cost: that of adding up the rows (`searching.add_up_ranges`); no lookups but those of `seek`.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.compiling import kernel
from riverrun.state.kernels.layout import HASHES, START, STOP
from riverrun.state.kernels.memory import load_u64
from riverrun.state.kernels.searching import (
    FULL_HASH,
    add_up_ranges,
    find_block,
    lower_bound,
    upper_bound,
)  # fmt: skip


@kernel
def seek(blocks: np.ndarray, runs: np.ndarray, h: np.uint64, positions: np.ndarray) -> None:
    """Write the start of a `scan` from hash `h` on: for each run, the block and the row."""
    for run in range(runs.shape[0] - 1):
        at = find_block(blocks, runs[run], runs[run + 1], h)
        positions[run, 0], positions[run, 1] = at, 0
        if at < runs[run + 1]:
            block = blocks[at]
            positions[run, 1] = lower_bound(block[HASHES], block[START], block[STOP], h)


@kernel
def scan(
    blocks: np.ndarray,
    runs: np.ndarray,
    visible: np.ndarray,
    flags: np.ndarray,
    end: int,
    positions: np.ndarray,
    out_rows: np.ndarray,
    out_counts: np.ndarray,
) -> int:
    """Add up from `positions` (block and row of each run) on, until the output may be full.

    Writes all rows of a hash or none; returns how many rows it wrote, or -n when the next hash alone
    needs room for n rows.
    """
    run_count = runs.shape[0] - 1
    where, low, high = (
        np.empty(run_count, np.int64),
        np.empty(run_count, np.int64),
        np.empty(run_count, np.int64),
    )
    owners = np.empty(run_count, np.int64)
    heads = np.empty(run_count, np.uint64)
    open_runs = np.zeros(run_count, np.bool_)
    for run in range(run_count):
        if positions[run, 0] < runs[run + 1]:
            open_runs[run] = True
            heads[run] = load_u64(blocks[positions[run, 0], HASHES] + positions[run, 1] * 8)
    out = 0
    while True:
        h, some = FULL_HASH, False
        for run in range(run_count):
            if open_runs[run]:
                some = True
                h = min(h, heads[run])
        if not some:
            return out
        count, rows = 0, 0
        for run in range(run_count):
            if open_runs[run] and heads[run] == h:
                at = positions[run, 0]
                owners[count], where[count], low[count] = run, at, positions[run, 1]
                high[count] = upper_bound(blocks[at, HASHES], low[count], blocks[at, STOP], h)
                rows += high[count] - low[count]
                count += 1
        if out + rows > out_rows.shape[0]:
            return out if out > 0 else -rows
        for at in range(count):
            run, next_row = owners[at], high[at]
            if next_row == blocks[where[at], STOP]:
                positions[run, 0] += 1
                open_runs[run] = positions[run, 0] < runs[run + 1]
                next_row = blocks[positions[run, 0], START] if open_runs[run] else np.int64(0)
            positions[run, 1] = next_row
            if open_runs[run]:
                heads[run] = load_u64(blocks[positions[run, 0], HASHES] + next_row * 8)
        out = add_up_ranges(
            blocks, visible, flags, where, low, high, count, 0, end, False, rows, False, False,
            out, out_rows, out_counts,
        )  # fmt: skip
