"""Edges by target, in arrays: for each target the sources that send to it, how often, and words that the edge carries.

`pulling` uses it, for the constant edges of a loop and for its constant rows. Targets and sources are *slots*, numbers
from 0 on. The edges of one target are a *row*; rows lie one behind the other in a *pool*, so reading all of them reads
memory in order. Laws:

- **Net.** A `Compressed` holds the sum of all changes: equal edges (target, source and words) are one, with the number
  of times that it is there. That number is never negative: a change that would make it so is refused with `BelowZero`,
  and nothing is changed.
- **Order.** Edges of a row ascend by source and then by words, so the same edges are read in the same order, whatever
  changes led to them.

Cost: building sorts by counting, some 50 ns an edge. A change copies the rows of the targets that it touches, and finds
its edges in them by merging, so a hub costs its size once a change. A row that outgrows its room moves to the end of
the pool. A change of more than a tenth of the edges, or more holes than edges, builds anew.

>>> import numpy as np
>>> edges = Compressed(0)
>>> one = np.ones(3, np.int64)
>>> _ = edges.change(np.array([1, 1, 0]), np.array([2, 0, 1]), edges.no_words(3), one, slots=3)
>>> edges.size, edges.count.tolist(), edges.source[edges.start[1] : edges.start[1] + 2].tolist()
(3, [1, 2, 0], [0, 2])
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from riverrun.state.kernels.iterations import compressing

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Slots32: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]
SPARE = 16
"""A pool that is built gets room for one more edge in so many."""
_NO_TIMES = np.zeros(0, np.int64)


class BelowZero(Exception):
    """A change would leave an edge there a negative number of times."""

    def __init__(self, target: int, source: int) -> None:
        super().__init__(target, source)
        self.target = target
        self.source = source


@dataclass(frozen=True)
class EdgeChanges:
    """Changes of edges, each edge once, by target, source and words."""

    targets: Slots32
    sources: Slots32
    words: Ints
    diffs: Ints

    def __len__(self) -> int:
        return len(self.targets)

    def negated(self) -> EdgeChanges:
        return EdgeChanges(self.targets, self.sources, self.words, -self.diffs)


class Compressed:
    """Edges of `kinds` words each, by target."""

    SHARE: ClassVar[float] = 0.1
    """A change of a greater share of the edges builds anew."""

    def __init__(self, kinds: int) -> None:
        self.size = 0
        """How many edges there are, equal ones counted once."""
        self.start: Ints = np.zeros(0, np.int64)
        self.count: Ints = np.zeros(0, np.int64)
        self._room: Ints = np.zeros(0, np.int64)
        self.several = np.zeros(0, np.uint8)
        """For each target, 1 if one of its edges is there more than once."""
        self._end = 0
        self.source: Slots32 = np.zeros(0, np.uint32)
        self.words: Ints = np.zeros((kinds, 0), np.int64)
        """By kind and place in the pool."""
        self.times: Ints = _NO_TIMES
        """How often each edge is there; empty where each is there once."""
        self.built = 0
        """How often the pool was built anew."""

    def no_words(self, rows: int) -> Ints:
        return np.zeros((self.words.shape[0], rows), np.int64)

    def widen(self) -> None:
        """Give every edge one more word, zero."""
        self.words = np.concatenate([self.words, np.zeros((1, self.words.shape[1]), np.int64)])

    def _padded(self, words: Ints) -> Ints:
        """Words from before `widen`, with zeros for the newer ones."""
        missing = self.words.shape[0] - words.shape[0]
        if missing:
            words = np.concatenate([words, np.zeros((missing, words.shape[1]), np.int64)])
        return np.ascontiguousarray(words)

    def grow(self, slots: int) -> None:
        """Have a row for each of `slots` targets."""
        if slots > len(self.start):
            more = np.zeros(slots - len(self.start), np.int64)
            self.start = np.concatenate([self.start, more])
            self.count = np.concatenate([self.count, more])
            self._room = np.concatenate([self._room, more])
            self.several = np.concatenate([self.several, more.astype(np.uint8)])

    def change(
        self, targets: Any, sources: Any, words: Ints, diffs: Ints, *, slots: int
    ) -> EdgeChanges:
        """Add changes, in any order; return the net ones, whose negation takes them back."""
        changes = net_changes(targets, sources, words, diffs, slots)
        self.apply(changes, slots)
        return changes

    def apply(self, changes: EdgeChanges, slots: int) -> None:
        """Add net changes."""
        self.grow(slots)
        if not len(changes):
            return
        changes = replace(changes, words=self._padded(changes.words))
        if len(changes) > self.SHARE * self.size:
            self._build(changes, slots)
            return
        wrong, end, plain = self._merge(changes, self._end, False)
        if wrong >= 0:
            raise BelowZero(int(changes.targets[wrong]), int(changes.sources[wrong]))
        if end > 2 * self.size + 1024:
            self._build(changes, slots)
            return
        self._reserve(end)
        if not plain and not len(self.times):
            self.times = np.ones(len(self.source), np.int64)
        touched = np.unique(changes.targets)
        before = int(self.count[touched].sum())
        self._merge(changes, self._end, True)
        self._end = end
        self.size += int(self.count[touched].sum()) - before

    def _merge(self, changes: EdgeChanges, end: int, write: bool) -> tuple[int, int, bool]:
        wrong, end, plain = compressing.merge_rows(
            self.start,
            self.count,
            self._room,
            self.several,
            self.source,
            self.words,
            self.times,
            changes.targets,
            changes.sources,
            changes.words,
            changes.diffs,
            end,
            write,
        )
        return int(wrong), int(end), bool(plain)

    def _reserve(self, end: int) -> None:
        """Room in the pool up to `end`."""
        if end <= len(self.source):
            return
        more = end + end // 8 - len(self.source)
        self.source = np.concatenate([self.source, np.zeros(more, np.uint32)])
        self.words = np.concatenate([self.words, self.no_words(more)], axis=1)
        if len(self.times):
            self.times = np.concatenate([self.times, np.ones(more, np.int64)])

    def edges(self) -> EdgeChanges:
        """All edges."""
        return EdgeChanges(
            *compressing.list_edges(
                self.start, self.count, self.source, self.words, self.times, self.size
            )
        )

    def _build(self, changes: EdgeChanges, slots: int) -> None:
        """Sort all edges into a new pool without holes."""
        if self.size:
            old = self.edges()
            changes = net_changes(
                np.concatenate([old.targets, changes.targets]),
                np.concatenate([old.sources, changes.sources]),
                np.concatenate([old.words, changes.words], axis=1),
                np.concatenate([old.diffs, changes.diffs]),
                slots,
            )
            del old
        below = np.flatnonzero(changes.diffs < 0)
        if len(below):
            raise BelowZero(int(changes.targets[below[0]]), int(changes.sources[below[0]]))
        self.count = np.bincount(changes.targets, minlength=slots).astype(np.int64)
        self.start = np.cumsum(self.count) - self.count
        self._room = self.count.copy()
        self.size = self._end = len(changes)
        # Copies: changes belong to the caller, who may want to take them back.
        spare = len(changes) // SPARE
        self.source = np.concatenate([changes.sources, np.zeros(spare, np.uint32)])
        self.words = np.concatenate([changes.words, self.no_words(spare)], axis=1)
        self.times = _NO_TIMES
        self.several = np.zeros(slots, np.uint8)
        repeated = changes.diffs != 1
        if repeated.any():
            self.several[changes.targets[repeated]] = 1
            self.times = np.concatenate([changes.diffs, np.ones(spare, np.int64)])
        self.built += 1


def net_changes(targets: Any, sources: Any, words: Ints, diffs: Ints, slots: int) -> EdgeChanges:
    """Changes of edges, in any order, as each edge once, by target, source and words."""
    return EdgeChanges(
        *compressing.sort_edges(
            np.ascontiguousarray(targets, np.uint32),
            np.ascontiguousarray(sources, np.uint32),
            np.ascontiguousarray(words, np.int64),
            np.array(diffs, np.int64),
            slots,
        )
    )
