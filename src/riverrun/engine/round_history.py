"""The round history: what the rounds of the loops of a run did in its last epochs.

A cluster has one `RoundHistory`. It is told of an epoch once, when the epoch is complete on all workers; users read it
by `run.rounds`. A run that is resumed begins with an empty one. Laws:

- **Bounded.** For each loop the last `EPOCHS` epochs are kept in which it did anything, and of these no more than have
  `ROWS` rounds together, or the last one alone.
- **As one likes.** Any thread may read, at any time: what it gets does not change any more.

>>> history = RoundHistory()
>>> for epoch in range(200):
...     history.add(epoch, [LoopFigures("reach", (RoundFigures((0,), epoch, 1, 0.001),))])
>>> [epoch for epoch, _ in history.of("reach")][:2], history.last("reach")
([100, 101], (199, (RoundFigures(at=(0,), touched=199, messages=1, seconds=0.001, rounds=1),)))
>>> history.of("spread")
()
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TypeAlias

from riverrun.plan.loop_figures import MOST, LoopFigures, RoundFigures

EPOCHS = 100
ROWS = 2 * MOST
EpochFigures: TypeAlias = tuple[int, tuple[RoundFigures, ...]]
"""An epoch, and what the rounds of a loop did in it."""


class RoundHistory:
    """The figures of the last epochs, by the names of loops. One thread at a time may call `add`."""

    def __init__(self) -> None:
        self._loops: dict[str, deque[EpochFigures]] = {}
        self._rows: dict[str, int] = {}

    def add(self, epoch: int, figures: Iterable[LoopFigures]) -> None:
        """Take what loops did in an epoch."""
        for each in figures:
            epochs = self._loops.setdefault(each.loop, deque())
            epochs.append((epoch, each.rounds))
            rows = self._rows.get(each.loop, 0) + len(each.rounds)
            while len(epochs) > EPOCHS or (rows > ROWS and len(epochs) > 1):
                rows -= len(epochs.popleft()[1])
            self._rows[each.loop] = rows

    def of(self, loop: str) -> tuple[EpochFigures, ...]:
        """What a loop did, oldest epoch first."""
        return tuple(self._loops.get(loop, ()))

    def last(self, loop: str) -> EpochFigures | None:
        """What a loop did in the last epoch in which it did anything."""
        epochs = self._loops.get(loop)
        return epochs[-1] if epochs else None
