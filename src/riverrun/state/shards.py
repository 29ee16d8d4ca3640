"""Shards: which worker owns which hashes.

A *shard* is a range of hashes, from one number up to, not including, another. The shards of a run cover all hashes, and
each has one owner, the index of a worker. Exchanges send rows by them, workers restore their states by them, and the
coordinator cuts them anew when workers come, go, or get other shares. Laws:

- **Whole.** Every hash has one owner.
- **Little moves.** When workers come, go, or get other shares, a worker gives away only hashes beyond its new share.
  These, and the hashes of owners who have left, go to workers that have too little. So a worker whose share stays or
  grows keeps all its hashes.
- **Repeatable.** The same shards and the same wish give the same new shards.
- **Whole cells.** All hashes are cut into 4,096 *cells* of one size, and each cell has one owner (unless there are more
  workers than cells). So work that goes cell by cell does not depend on the owners.

>>> two = Shards.even(2)
>>> [[hex(low) for low, _ in two.of(index)] for index in range(2)]
[['0x0'], ['0x8000000000000000']]
>>> three = two.resized(3)
>>> [round(share, 2) for share in three.shares], round(three.moved_from(two, (0, 1, 2)), 2)
([0.33, 0.33, 0.33], 0.33)
>>> three.without(1).owners  # the others share the hashes of worker 1, and keep their own
(0, 1, 0, 1)

Cost: some microseconds. There are at most `PIECES` shards for each worker: when moving has cut them more often, all
shards are cut anew, and the little-moves law does not hold for that once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

END = 1 << 64  # the end of the range of hashes
PIECES = 16  # shards for each worker, at most
CELLS = 4096
CELL = END // CELLS

Range: TypeAlias = tuple[int, int]
"""Hashes from the first number up to, not including, the second."""


@dataclass(frozen=True)
class Shards:
    """The cuts between shards, from 0 up to 2**64, and the owner of each shard."""

    bounds: tuple[int, ...]
    owners: tuple[int, ...]
    workers: int

    @classmethod
    def even(cls, workers: int) -> Shards:
        """One shard for each worker, all of one size."""
        return cls(_even(workers), tuple(range(workers)), workers)

    @property
    def first(self) -> int:
        """The owner of hash 0, which is the hash of a key of no columns."""
        return self.owners[0]

    def of(self, index: int) -> tuple[Range, ...]:
        """The ranges that a worker owns, in order; no two of them touch."""
        return self._owned[index]

    def runs(self, ranges: Sequence[Range]) -> dict[int, list[list[Range]]]:
        """The owners of these ranges: for each owner its parts of them, in runs with no other owner's part between.

        >>> shards = Shards.even(2).resized(3)
        >>> {index: len(runs) for index, runs in shards.runs([(0, END)]).items()}
        {0: 1, 2: 2, 1: 1}
        """
        owned = sorted(
            (low, high, index)
            for index in range(self.workers)
            for low, high in intersect(ranges, self.of(index))
        )
        runs_by_owner: dict[int, list[list[Range]]] = {}
        last = None
        for low, high, index in owned:
            if index != last:
                runs_by_owner.setdefault(index, []).append([])
            runs_by_owner[index][-1].append((low, high))
            last = index
        return runs_by_owner

    @property
    def shares(self) -> list[float]:
        """The fraction of all hashes that each worker owns."""
        return [sum(high - low for low, high in self.of(at)) / END for at in range(self.workers)]

    def without(self, index: int) -> Shards:
        """The shards after a worker has left: the others take over its hashes, and later indices move up by one."""
        renumbered = [at - (at > index) for at in range(self.workers)]
        return self._moved(
            [None if at == index else renumbered[at] for at in range(self.workers)],
            _sizes([1.0] * (self.workers - 1)),
        )

    def resized(self, workers: int) -> Shards:
        """The shards for another number of workers: the last workers go, or new ones come."""
        owners = [at if at < workers else None for at in range(self.workers)]
        return self._moved(owners, _sizes([1.0] * workers))

    def weighted(self, weights: Sequence[float]) -> Shards:
        """The same workers, with shares in proportion to these weights."""
        return self._moved(list(range(self.workers)), _sizes(weights))

    def moved_from(self, before: Shards, indices: Sequence[int | None]) -> float:
        """The fraction of all hashes that has changed owners; `indices` has the new index of each former worker."""
        unmoved = 0
        for old, new in enumerate(indices):
            if new is not None and old < before.workers and new < self.workers:
                unmoved += sum(high - low for low, high in intersect(before.of(old), self.of(new)))
        return 1 - unmoved / END

    def _moved(self, indices: Sequence[int | None], sizes: Sequence[int]) -> Shards:
        """New shards: `indices` has the new index of each owner, None for one that left; `sizes` the hashes that each
        worker is to have."""
        left = list(sizes)
        pieces: list[tuple[int, int, int | None]] = []
        for low, high, owner in zip(self.bounds, self.bounds[1:], self.owners, strict=False):
            now = indices[owner]
            stays = 0 if now is None else min(high - low, left[now])
            if now is not None and stays:
                left[now] -= stays
                pieces.append((low, low + stays, now))
            if low + stays < high:
                pieces.append((low + stays, high, None))
        dealt: list[tuple[int, int, int]] = []
        short = [at for at, missing in enumerate(left) if missing]
        for low, high, keeper in pieces:
            if keeper is not None:
                dealt.append((low, high, keeper))
                continue
            while low < high:
                taker = short[0]
                size = min(high - low, left[taker])
                dealt.append((low, low + size, taker))
                left[taker] -= size
                low += size
                if not left[taker]:
                    short.pop(0)
        merged: list[list[int]] = []
        for low, high, taker in dealt:
            if merged and merged[-1][2] == taker:
                merged[-1][1] = high
            else:
                merged.append([low, high, taker])
        if len(merged) > PIECES * len(sizes):
            bounds = [0]
            for size in sizes:
                bounds.append(bounds[-1] + size)
            merged = [
                [low, high, at] for at, (low, high) in enumerate(pairwise(bounds)) if low < high
            ]
        return Shards(
            (0, *(high for _, high, _ in merged)),
            tuple(taker for _, _, taker in merged),
            len(sizes),
        )

    @cached_property
    def _owned(self) -> tuple[tuple[Range, ...], ...]:
        owned: list[list[Range]] = [[] for _ in range(self.workers)]
        for low, high, owner in zip(self.bounds, self.bounds[1:], self.owners, strict=False):
            mine = owned[owner]
            if mine and mine[-1][1] == low:
                mine[-1] = (mine[-1][0], high)
            else:
                mine.append((low, high))
        return tuple(map(tuple, owned))


def intersect(some: Sequence[Range], others: Sequence[Range]) -> tuple[Range, ...]:
    """The hashes that are in ranges of both lists.

    >>> intersect([(0, 10), (20, 30)], [(5, 25)])
    ((5, 10), (20, 25))
    """
    common = []
    for low, high in some:
        for start, stop in others:
            if max(low, start) < min(high, stop):
                common.append((max(low, start), min(high, stop)))
    return tuple(sorted(common))


def subtract(some: Sequence[Range], others: Sequence[Range]) -> tuple[Range, ...]:
    """The hashes that are in ranges of the first list and not of the second.

    >>> subtract([(0, 10), (20, 30)], [(5, 25)])
    ((0, 5), (25, 30))
    """
    left = list(some)
    for start, stop in others:
        cut = []
        for low, high in left:
            cut += [(low, min(high, start)), (max(low, stop), high)]
        left = [(low, high) for low, high in cut if low < high]
    return tuple(sorted(left))


def _even(workers: int) -> tuple[int, ...]:
    """Cuts into ranges of one size, as far as whole cells allow."""
    if workers > CELLS:
        return tuple(index * END // workers for index in range(workers + 1))
    return tuple(index * CELLS // workers * CELL for index in range(workers + 1))


def _sizes(weights: Sequence[float]) -> list[int]:
    """How many hashes each worker is to have, in proportion to weights, in whole cells."""
    total, bounds, so_far = sum(weights), [0], 0.0
    if len(set(weights)) == 1:
        bounds = list(_even(len(weights)))
    else:
        for weight in weights:
            so_far += weight
            bounds.append(round(so_far / total * CELLS) * CELL)
        bounds[-1] = END
    sizes = [high - low for low, high in pairwise(bounds)]
    while 0 in sizes:  # everybody has a cell at the least
        sizes[sizes.index(max(sizes))] -= CELL
        sizes[sizes.index(0)] += CELL
    return sizes
