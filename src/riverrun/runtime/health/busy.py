"""Busy time: for how long a thread has been at work, without the time in which others had its processor.

The process of every worker has a `BusyTime`, whose seconds it sends to the driver with its signs of life (`balance`).
Measured by the clock on the wall, two workers with the same work are busy for different times where processes compete
for processors: the worker that is moved aside more often looks slow. So busy time is the time at work (`worked`, to
which the thread adds each of its steps), less the time in which the thread was ready and had no processor. Linux tells
that of every thread; on other systems all of the time at work counts. Laws:

- **Own time.** Of the time at work, the time counts in which the thread computed or waited for something (a lock, a
  disk, a sleep), and not the time in which it waited for a processor.
- **Bounded.** Busy time is never more than the time at work, and never less than the time that the thread computed. (A
  thread that is woken waits for a processor before it is at work. Linux counts such waits with the others, so too much
  would be taken off without the bounds.)
- **Forward.** Busy time never decreases. A step that is under way counts when it is over.

In the example `schedule` says for how many seconds the thread has computed, and has waited for a processor. Of its
first 6 seconds at work the thread waited for 3, of the next 8 for none.

>>> schedule = iter([(0.0, 0.0), (1.0, 3.0), (9.0, 3.0)])
>>> busy = BusyTime(lambda: next(schedule))
>>> busy.worked = 6.0
>>> busy.own()
3.0
>>> busy.worked = 14.0
>>> busy.own()
11.0

Cost: 20 microseconds for each question; nothing while the thread works.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import get_native_id

_NANO = 1e-9


class BusyTime:
    """For how long the thread that makes this object has been at work."""

    def __init__(self, read_schedule: Callable[[], tuple[float, float]] | None = None) -> None:
        """`read_schedule` gives for how many seconds the thread has run, and has waited for a processor."""
        self.worked = 0.0
        """Seconds at work, by the clock on the wall; the thread adds to it after each step."""
        self._read_schedule = read_schedule or _schedule_reader(get_native_id())
        self._own = 0.0
        self._seen = (0.0, *self._read_schedule())

    def own(self) -> float:
        """The seconds at work that count (*own time*). One thread may ask, which need not be the one at work."""
        before, ran, queued = self._seen
        worked = self.worked
        if worked > before:
            now_ran, now_queued = self._read_schedule()
            self._own += min(
                worked - before, max(now_ran - ran, worked - before - (now_queued - queued))
            )
            self._seen = worked, now_ran, now_queued
        return self._own


def _schedule_reader(thread: int) -> Callable[[], tuple[float, float]]:
    """What reads the seconds of a thread of this process from Linux; it gives zeros elsewhere, or for a dead thread."""
    path = Path(f"/proc/self/task/{thread}/schedstat")

    def read_schedule() -> tuple[float, float]:
        try:
            ran, queued, _ = map(int, path.read_text().split())
        except (OSError, ValueError):
            return 0.0, 0.0
        return ran * _NANO, queued * _NANO

    return read_schedule
