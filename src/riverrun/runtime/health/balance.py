"""Balance: which worker is slow, and which shares would make the work even.

Every worker says with its signs of life for how long it was busy (`busy`) and how much it did; `signs` passes this to a
`Balancer` and asks it for a straggler. A worker is a *straggler* when it is busy for much longer than the others, for a
part of the time that matters, time after time: its machine may be slower, or its shards may have more to do. Pure: no
clock, no messages. Laws:

- **Patient.** A straggler is named only after `LOOKS` looks in a row have found the same worker, each over a window of
  some seconds.
- **Half way.** The new shares are half way between the present shares and those by which all workers would be busy
  alike, so that noise does not make shares swing.
- **Not in vain.** When moving shares has not helped, the cost is in a few keys or elsewhere: for a while nothing more
  is moved, and the straggler says so.
- **Not for its neighbour.** Two processes on one core (hyperthreads) have at worst half of it each. So a worker that
  does about as much as the others, or less, is a straggler only when it takes more than twice as long for the same
  work.

>>> balancer = Balancer()
>>> for second in range(9):
...     balancer.observe(1, busy=0.2 * second, now=second)
...     balancer.observe(2, busy=0.9 * second, now=second)
...     straggler = balancer.look([1, 2], [0.5, 0.5], now=second)
...     if straggler:
...         print(second, straggler.index, [round(share, 2) for share in straggler.shares])
7 1 [0.66, 0.34]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

WINDOW = 5.0  # seconds
LOOKS = 3
MUCH_BUSIER = 1.5  # times as busy as the others
SHARED_CORE = 2.0  # times as long for the same work: so slow may a core be that two processes share
MUCH_MORE_DONE = 1.25  # times as much done as by the others: a shared core is no reason for that
LEAST_BUSY = 0.25  # of the time: a worker that is busy for less is no straggler
HELPED = 0.9  # where the ratio is above this part of the ratio before, moving was in vain
REST = 60.0  # seconds for which nothing is moved after moving was in vain


@dataclass(frozen=True, slots=True)
class Straggler:
    """A worker that the others wait for, by its index."""

    index: int
    busy: float
    """For which part of the time it is busy."""
    others: float
    """For which part of the time the others are busy: the median."""
    shares: tuple[float, ...]
    """The shares of all workers that would be better."""
    in_vain: bool
    """Whether moving shares has been tried, and has not helped."""


class Balancer:
    """Follows how busy workers are, by their incarnations."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[tuple[float, float, int]]] = {}
        self._touched: dict[int, int] = {}
        self._suspect: tuple[int, int] | None = None
        self._looked = 0.0
        self._ratio_before: float | None = None
        """How many times as busy as the others the last straggler was, before shares were moved; None: nothing
        moved."""
        self._rests_until = 0.0

    def observe(self, member: int, busy: float, now: float, touched: int = 0) -> None:
        """A worker has been busy for so many seconds since it began, and made `touched` changes in this execution."""
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
        """Workers or shares have changed: forget what was seen, since it says nothing about these."""
        self._seen.clear()
        self._touched.clear()
        self._suspect = None

    def busy(self, member: int) -> float | None:
        """For which part of the last seconds a worker was busy; None while that is not known."""
        seen = self._seen.get(member)
        if not seen or seen[-1][0] - seen[0][0] < WINDOW:
            return None
        return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])

    def look(self, members: Sequence[int], shares: Sequence[float], now: float) -> Straggler | None:
        """The straggler, if there has been one for a while; at most one look a second counts."""
        if len(members) < 2 or now - self._looked < 1.0:
            return None
        self._looked = now
        busy_parts = [self.busy(member) for member in members]
        busy = [part for part in busy_parts if part is not None]
        if len(busy) < len(members):
            return None
        index = max(range(len(busy)), key=busy.__getitem__)
        others = median(busy[:index] + busy[index + 1 :])
        ratio = busy[index] / max(others, 1e-3)
        if (
            busy[index] < LEAST_BUSY
            or ratio < MUCH_BUSIER
            or self._shares_a_core(members, index, ratio)
        ):
            self._suspect = None
            return None
        member, times = self._suspect or (members[index], 0)
        self._suspect = (members[index], times + 1 if member == members[index] else 1)
        if self._suspect[1] < LOOKS:
            return None
        self._suspect = None
        if self._ratio_before is not None and ratio > self._ratio_before * HELPED:
            self._rests_until, self._ratio_before = now + REST, None
        return Straggler(index, busy[index], others, _evened(shares, busy), now < self._rests_until)

    def _shares_a_core(self, members: Sequence[int], index: int, ratio: float) -> bool:
        """Whether sharing a core explains why a worker is `ratio` times as busy as the others (*not for its
        neighbour*)."""
        done = [self._seen[member][-1][2] - self._seen[member][0][2] for member in members]
        others = median(done[:index] + done[index + 1 :])
        if not others or not done[index]:
            return False
        more = done[index] / others
        return more < MUCH_MORE_DONE and ratio <= SHARED_CORE * more

    def moved(self, straggler: Straggler) -> None:
        """Shares were moved, or a worker added, because of this straggler."""
        self._ratio_before = straggler.busy / max(straggler.others, 1e-3)
        self.forget()


def _evened(shares: Sequence[float], busy: Sequence[float]) -> tuple[float, ...]:
    """Shares half way between these and those by which all workers would be busy alike."""
    speeds = [share / max(part, 0.02) for share, part in zip(shares, busy, strict=True)]
    total = sum(speeds)
    return tuple((share + speed / total) / 2 for share, speed in zip(shares, speeds, strict=True))
