"""Busy: for how long a thread has been at work, without the time in which others had its processor.

By the clock on the wall two workers with the same to do are busy for different times where processes compete
for processors: whoever is moved aside more often looks slow. So what counts is the time at work less that in which
the thread was ready and did not run, which Linux tells of every thread; elsewhere it is the time at work. Laws:

1. **Its own.** Of the time at work, what counts is what the thread computed or waited for something (a lock, a
   disk, a sleep); not that it waited for a processor.
2. **Between its bounds.** That is no more than the time at work, and no less than what it computed of it: a thread
   that is woken waits for a processor while it is not at work, and this is not told apart.
3. **Forward.** It never goes back, and a step that is under way counts when it is over.

>>> told = iter([(0.0, 0.0), (1.0, 3.0), (9.0, 3.0)])
>>> busy = Busy(lambda: next(told))
>>> busy.worked = 6.0  # of which it computed for one second, and stood in line for three
>>> busy.own()
3.0
>>> busy.worked = 14.0
>>> busy.own()
11.0

Cost: 20 microseconds when asked; nothing while it works.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import get_native_id

_NANO = 1e-9


class Busy:
    """How long the thread that makes this is at work."""

    def __init__(self, told: Callable[[], tuple[float, float]] | None = None) -> None:
        """`told` gives for how many seconds the thread has run, and stood in line for a processor."""
        self.worked = 0.0
        """Seconds at work, by the clock on the wall; the thread adds to it after each step."""
        self._told = told or _scheduled(get_native_id())
        self._own = 0.0
        self._seen = (0.0, *self._told())

    def own(self) -> float:
        """Seconds at work that count (law 1). Asked by one thread, be it another one."""
        before, ran, queued = self._seen
        worked = self.worked
        if worked > before:
            now_ran, now_queued = self._told()
            self._own += min(
                worked - before, max(now_ran - ran, worked - before - (now_queued - queued))
            )
            self._seen = worked, now_ran, now_queued
        return self._own


def _scheduled(thread: int) -> Callable[[], tuple[float, float]]:
    """What Linux tells of a thread of this process; zeros where nobody does, or it is over."""
    path = Path(f"/proc/self/task/{thread}/schedstat")

    def told() -> tuple[float, float]:
        try:
            ran, queued, _ = map(int, path.read_text().split())
        except (OSError, ValueError):
            return 0.0, 0.0
        return ran * _NANO, queued * _NANO

    return told
