"""Deadlines: actions that a loop has to do at a given time, once or again and again, the earliest first.

`local.LocalCluster` uses them: its loop runs in the thread of whoever waits, and nobody else wakes it. Laws:

- **Not before.** No action is done before its time.
- **In order.** Due actions are done in the order of their times; those of the same time, in the order in which they
  were added.
- **One round.** An action that is added during a call of `meet` is not done in that call.

>>> deadlines, done = Deadlines(), []
>>> deadlines.once(5.0, lambda: done.append("later"))
>>> deadlines.once(2.0, lambda: done.append("soon"))
>>> deadlines.every(3.0, lambda: done.append("again"), start=0.0)
>>> deadlines.meet(4.0)
>>> done, deadlines.pending, deadlines.first
(['again', 'soon'], 1, 5.0)
>>> deadlines.meet(7.0)
>>> done, deadlines.pending
(['again', 'soon', 'later', 'again'], 0)

Cost: a comparison while nothing is due.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Deadlines:
    """Actions with their times, in a heap."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None], float | None]] = []
        self._numbers = count()
        self.pending = 0
        """How many actions of `once` are still to be done; repeated actions do not count."""

    @property
    def first(self) -> float:
        """The time of the earliest action; infinity where there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def once(self, at: float, act: Callable[[], None]) -> None:
        """Do `act` once, at the time `at`."""
        self.pending += 1
        heappush(self._heap, (at, next(self._numbers), act, None))

    def every(self, seconds: float, act: Callable[[], None], *, start: float) -> None:
        """Do `act` at the time `start`, and again whenever `seconds` have passed since it was done last."""
        heappush(self._heap, (start, next(self._numbers), act, seconds))

    def meet(self, now: float) -> None:
        """Do all actions whose time is not after `now`."""
        heap = self._heap
        if not heap or heap[0][0] > now:
            return
        due = []
        while heap and heap[0][0] <= now:
            due.append(heappop(heap))
        for _, _, act, seconds in due:
            if seconds is None:
                self.pending -= 1
            else:
                heappush(heap, (now + seconds, next(self._numbers), act, seconds))
            act()

    def clear(self) -> None:
        """Drop all actions."""
        self._heap.clear()
        self.pending = 0
