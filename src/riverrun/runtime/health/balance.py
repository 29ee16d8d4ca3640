"""Balancing: which worker is slow, and which shares would make it even.

Workers tell how long they were busy (time in which they had something to do and did it, and others
did not have their processor: `busy`), and how much they did. A worker is *slow* when it is busy for
much longer than the others, long enough to matter, time after time: be it that its machine is
slower, or that its shards have more to do. Pure: no clock, no messages. Laws:

1. **Patient.** One look is not enough: `LOOKS` in a row name the same worker, over a window of some
   seconds each.
2. **Half way.** Shares move half of the way to where all would be busy alike, so that noise does
   not make them swing.
3. **Not in vain.** When moving has not helped, the cost is in a few keys or elsewhere: nothing is
   moved for a while, and that is said.
4. **Not for its neighbour.** Two processes on one core (hyperthreads) have half of it each, at worst. So who does
   about as much as the others, or less, is slow when it takes more than twice as long for it.

>>> balancer = Balancer()
>>> for second in range(9):
...     balancer.observe(1, busy=0.2 * second, now=second)
...     balancer.observe(2, busy=0.9 * second, now=second)
...     slow = balancer.look([1, 2], [0.5, 0.5], now=second) or None
...     if slow:
...         print(second, slow.index, [round(share, 2) for share in slow.shares])
7 1 [0.66, 0.34]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

WINDOW = 5.0  # seconds
LOOKS = 3
MUCH = 1.5  # times as busy as the others
SHARED = 2.0  # times as long for the same: so slow may a core be that two share
MORE = 1.25  # times as much done as by the others: that is no neighbour
MATTERS = 0.25  # of the time
HELPED = 0.9  # where the ratio is above this part of what it was, moving was in vain
REST = 60.0  # seconds for which nothing is moved after it was in vain


@dataclass(frozen=True, slots=True)
class Slow:
    """A worker that the others wait for."""

    index: int
    busy: float
    """Which part of the time it works."""
    others: float
    """The same of the others, the one in the middle."""
    shares: tuple[float, ...]
    """What would be better."""
    in_vain: bool
    """Whether moving shares has been tried, and has not helped."""


class Balancer:
    """Follows how busy workers are."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[tuple[float, float, int]]] = {}
        self._touched: dict[int, int] = {}
        self._suspect: tuple[int, int] | None = None
        self._looked = 0.0
        self._moved: float | None = None
        """The ratio before shares were moved last."""
        self._rests_until = 0.0

    def observe(self, member: int, busy: float, now: float, touched: int = 0) -> None:
        """A worker has been busy for so many seconds since it began, and has done so much in this execution."""
        seen = self._seen.setdefault(member, deque())
        if seen and busy < seen[-1][1]:
            seen.clear()
        done = seen[-1][2] if seen else 0
        done += max(touched - self._touched.get(member, 0), 0)
        self._touched[member] = touched
        seen.append((now, busy, done))
        while len(seen) > 2 and now - seen[1][0] >= WINDOW:
            seen.popleft()

    def forget(self) -> None:
        """Workers or shares are others now: what was seen says nothing about these."""
        self._seen.clear()
        self._touched.clear()
        self._suspect = None

    def busy(self, member: int) -> float | None:
        """Which part of the time a worker was busy lately; None while that is not known."""
        seen = self._seen.get(member)
        if not seen or seen[-1][0] - seen[0][0] < WINDOW:
            return None
        return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])

    def look(self, members: Sequence[int], shares: Sequence[float], now: float) -> Slow | None:
        """The slow worker, if there has been one for a while; at most one look a second counts."""
        if len(members) < 2 or now - self._looked < 1.0:
            return None
        self._looked = now
        found = [self.busy(member) for member in members]
        busy = [part for part in found if part is not None]
        if len(busy) < len(members):
            return None
        index = max(range(len(busy)), key=busy.__getitem__)
        others = median(busy[:index] + busy[index + 1 :])
        ratio = busy[index] / max(others, 1e-3)
        if busy[index] < MATTERS or ratio < MUCH or self._shares_a_core(members, index, ratio):
            self._suspect = None
            return None
        member, times = self._suspect or (members[index], 0)
        self._suspect = (members[index], times + 1 if member == members[index] else 1)
        if self._suspect[1] < LOOKS:
            return None
        self._suspect = None
        if self._moved is not None and ratio > self._moved * HELPED:
            self._rests_until, self._moved = now + REST, None
        return Slow(index, busy[index], others, _evened(shares, busy), now < self._rests_until)

    def _shares_a_core(self, members: Sequence[int], index: int, ratio: float) -> bool:
        """Whether a neighbour is enough of a reason for a worker to be so many times as busy as the others (law 4)."""
        done = [self._seen[member][-1][2] - self._seen[member][0][2] for member in members]
        others = median(done[:index] + done[index + 1 :])
        if not others or not done[index]:
            return False
        more = done[index] / others
        return more < MORE and ratio <= SHARED * more

    def moved(self, slow: Slow) -> None:
        """Shares were moved because of it."""
        self._moved = slow.busy / max(slow.others, 1e-3)
        self.forget()


def _evened(shares: Sequence[float], busy: Sequence[float]) -> tuple[float, ...]:
    """Shares half way to where all are busy alike (law 2)."""
    speeds = [share / max(part, 0.02) for share, part in zip(shares, busy, strict=True)]
    total = sum(speeds)
    return tuple((share + speed / total) / 2 for share, speed in zip(shares, speeds, strict=True))
