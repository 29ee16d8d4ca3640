"""Pending: requests that wait for progress, in the order of the times they wait for.

They are kept as they came, in blocks; a block knows the least and the greatest time in it, so that as a
rule it is passed over or taken whole. Laws:

1. Blocks never change; what is taken out of one makes another.
2. `take` gives every request whose time is before the bound, and no other.
3. A request and its deletion, where both wait, are none: they do not count, and do not stay.

Cost: nothing per row while they wait; 5 to 10 ns a row of a block that is passed in part; where requests are deleted,
adding up all that waits whenever half of it may have gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from riverrun.progress import Timestamp
from riverrun.state.changes import Changes
from riverrun.state.columns import Ints

Rounds = tuple[int, ...]
"""Of a fetch in a loop that its state is not in: the round at which its requests came."""


@dataclass(frozen=True, eq=False, slots=True)
class WaitingBlock:
    """Requests of one round, and what each waits for."""

    rounds: Rounds
    changes: Changes
    waits: Ints
    least: int
    greatest: int
    count: int
    """How many there are, less those that were deleted."""
    needed: int | None
    """From which time on they need values that are told apart; None: they do not care."""


class WaitingRequests:
    """Blocks that wait; `waits` says of requests what each waits for, `needs` from which time on each needs values."""

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
        """Have requests wait."""
        self._blocks.append(self._block(rounds, changes, self._waits(changes)))
        if changes.diffs is not None or changes.diff < 0:
            self._deleted += int((changes.diff_array() < 0).sum())
            if 4 * self._deleted > sum(block.changes.rows for block in self._blocks):
                self._add_up()

    def _add_up(self) -> None:
        """Leave out what cancels (law 3)."""
        groups: dict[Rounds, list[Changes]] = {}
        for block in self._blocks:
            groups.setdefault(block.rounds, []).append(block.changes.map_times(_zero))
        self._blocks, self._deleted = [], 0
        for rounds, pieces in groups.items():
            left = Changes.concat(pieces).consolidate()
            if left.rows:
                self._blocks.append(self._block(rounds, left, self._waits(left)))

    def cancel(self, rounds: Rounds, deleted: Changes) -> Changes | None:
        """Take back requests of a round that wait; what is left of `deleted` is of others."""
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
        """All that waits; what comes after does not change it."""
        return tuple(self._blocks)

    def needing(self, bound: int) -> Changes | None:
        """The requests that need values before `bound` told apart, without those that are deleted."""
        found = []
        for block in self._blocks:
            if block.needed is not None and block.needed < bound:
                needs = self._needs(block.changes)
                assert needs is not None
                found.append(block.changes.filter(needs < bound).map_times(_zero))
        if not found:
            return None
        left = Changes.concat(found).consolidate()
        return left if left.rows else None

    def passed(self, bound: int) -> set[Rounds]:
        """The rounds of requests that wait for a time before `bound`."""
        return {block.rounds for block in self._blocks if block.least < bound}

    def take(self, rounds: Rounds, bound: int) -> list[Changes]:
        """The requests of a round that wait for a time before `bound`: they wait no more."""
        taken, kept = [], []
        for block in self._blocks:
            if block.rounds != rounds or block.least >= bound:
                kept.append(block)
            elif block.greatest < bound:
                taken.append(block.changes)
            else:
                ready = block.waits < bound
                taken.append(block.changes.filter(ready))
                later = np.flatnonzero(~ready)
                kept.append(self._block(rounds, block.changes.take(later), block.waits[later]))
        self._blocks = kept
        return taken


def _zero(time: Timestamp) -> Timestamp:
    return (0,) * len(time)
