"""Waiting: requests that wait for progress, in blocks with the times that they wait for.

Used by `fetch`, one `WaitingRequests` for each fetch and worker. Requests are kept as they came, in blocks. The
requests of a block came in one round (of the loops that the fetch is in and its state is not; outside of such loops
there is one round only). A block knows the least and the greatest time that its requests wait for, so most blocks are
passed over or taken whole. Laws:

- **Blocks never change.** Taking some requests out of a block makes another block of the rest. So a checkpoint can keep
  the `blocks` as they are, and they stay so.
- **Exact bound.** `take` gives every request of a round that waits for a time before the bound, and no other.
- **Deleted requests are gone.** Where a request and its deletion both wait, neither counts, and neither stays for long.

Cost: nothing per row while requests wait; 5 to 10 ns a row of a block that is passed in part; where requests are
deleted, adding up all that waits, whenever half of it may have gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from riverrun.progress import Timestamp
from riverrun.state.changes import Changes
from riverrun.state.columns import Ints

Rounds = tuple[int, ...]
"""The rounds at which requests came, of the loops that the fetch is in and its state is not."""


@dataclass(frozen=True, eq=False, slots=True)
class WaitingBlock:
    """Requests of one round, and the time that each of them waits for."""

    rounds: Rounds
    changes: Changes
    waits: Ints
    least: int
    greatest: int
    count: int
    """How many requests there are, less the deletions."""
    needed: int | None
    """The least time from which on they need values told apart; None: they need none."""


class WaitingRequests:
    """All requests of a fetch that wait, in blocks.

    `waits` gives the time that each request waits for, `needs` the time from which on each needs values told apart.
    """

    def __init__(
        self, waits: Callable[[Changes], Ints], needs: Callable[[Changes], Ints | None]
    ) -> None:
        self._waits, self._needs = waits, needs
        self._blocks: list[WaitingBlock] = []
        self._deleted = 0
        """How many rows were deletions since equal ones were added up."""

    def __len__(self) -> int:
        return sum(block.count for block in self._blocks)

    def add(self, rounds: Rounds, changes: Changes) -> None:
        """Put requests to wait."""
        self._blocks.append(self._block(rounds, changes, self._waits(changes)))
        if changes.diffs is not None or changes.diff < 0:
            self._deleted += int((changes.diff_array() < 0).sum())
            if 4 * self._deleted > sum(block.changes.rows for block in self._blocks):
                self._add_up()

    def _add_up(self) -> None:
        """Leave out requests that deletions cancel (deleted requests are gone)."""
        groups: dict[Rounds, list[Changes]] = {}
        for block in self._blocks:
            groups.setdefault(block.rounds, []).append(block.changes.map_times(_zero))
        self._blocks, self._deleted = [], 0
        for rounds, pieces in groups.items():
            left = Changes.concat(pieces).consolidate()
            if left.rows:
                self._blocks.append(self._block(rounds, left, self._waits(left)))

    def cancel(self, rounds: Rounds, deleted: Changes) -> Changes | None:
        """Cancel waiting requests of a round by deletions; the deletions that cancel nothing are given back."""
        mine = [block.changes for block in self._blocks if block.rounds == rounds]
        if not mine:
            return deleted
        both = Changes.concat([piece.map_times(_zero) for piece in (*mine, deleted)]).consolidate()
        self._blocks = [block for block in self._blocks if block.rounds != rounds]
        diffs = both.diff_array()
        wait = both.filter(diffs > 0)
        if wait.rows:
            self._blocks.append(self._block(rounds, wait, self._waits(wait)))
        left = both.filter(diffs < 0)
        return left.map_times(lambda _: deleted.times[0]) if left.rows else None

    def _block(self, rounds: Rounds, changes: Changes, waits: Ints) -> WaitingBlock:
        count = changes.rows * changes.diff if changes.diffs is None else int(changes.diffs.sum())
        least, greatest = int(waits.min()), int(waits.max())
        needs = self._needs(changes)
        needed = None if needs is None else int(needs.min())
        return WaitingBlock(rounds, changes, waits, least, greatest, count, needed)

    def blocks(self) -> tuple[WaitingBlock, ...]:
        """All blocks that wait now; later calls do not change them."""
        return tuple(self._blocks)

    def needing(self, bound: int) -> Changes | None:
        """The requests that need values before `bound` told apart, less those that are deleted."""
        pieces = []
        for block in self._blocks:
            if block.needed is not None and block.needed < bound:
                needs = self._needs(block.changes)
                assert needs is not None
                pieces.append(block.changes.filter(needs < bound).map_times(_zero))
        if not pieces:
            return None
        left = Changes.concat(pieces).consolidate()
        return left if left.rows else None

    def passed(self, bound: int) -> set[Rounds]:
        """The rounds of requests that wait for a time before `bound`."""
        return {block.rounds for block in self._blocks if block.least < bound}

    def take(self, rounds: Rounds, bound: int) -> list[Changes]:
        """Take out the requests of a round that wait for a time before `bound`."""
        taken, waiting = [], []
        for block in self._blocks:
            if block.rounds != rounds or block.least >= bound:
                waiting.append(block)
            elif block.greatest < bound:
                taken.append(block.changes)
            else:
                ready = block.waits < bound
                taken.append(block.changes.filter(ready))
                later = np.flatnonzero(~ready)
                waiting.append(self._block(rounds, block.changes.take(later), block.waits[later]))
        self._blocks = waiting
        return taken


def _zero(time: Timestamp) -> Timestamp:
    return (0,) * len(time)
