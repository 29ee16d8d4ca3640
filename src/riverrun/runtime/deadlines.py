"""Deadlines: what a loop has to do at some time, once or again and again, the earliest first.

Used by `local.LocalCluster`, whose loop has nobody else to wake it. Laws:

- **Not before.** Nothing is done before its time.
- **In order.** What is due is done in the order of its times; of one time, in the order in which it was added.
- **One round.** What is added while something is being done is not done in the same round.

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
    """A heap of deadlines."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None], float | None]] = []
        self._numbers = count()
        self.pending = 0
        """How many are to be met once: while there are any, something is still to come."""

    @property
    def first(self) -> float:
        """The time of the earliest."""
        return self._heap[0][0] if self._heap else math.inf

    def once(self, at: float, act: Callable[[], None]) -> None:
        """Do something at a time."""
        self.pending += 1
        heappush(self._heap, (at, next(self._numbers), act, None))

    def every(self, seconds: float, act: Callable[[], None], *, start: float) -> None:
        """Do something from a time on, again and again: so many seconds after it was done."""
        heappush(self._heap, (start, next(self._numbers), act, seconds))

    def meet(self, now: float) -> None:
        """Do what is due."""
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
        """Nothing is to be done any more."""
        self._heap.clear()
        self.pending = 0
