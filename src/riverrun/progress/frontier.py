"""Frontiers: which times can still come.

A frontier is an antichain, a set of times none of which is before another. A frontier *lets through*
all times at or after one of its elements: these times can still come, all others cannot. As work
finishes the frontier moves on, and when it is empty nothing can come any more. ``Antichain`` is a
frontier as a value, ``CountedFrontier`` a frontier that follows counts as they change; trackers use the
second. State is described by two antichains: ``upper`` says which changes can still come, ``since``
which versions can no longer be told apart.

Laws:

- **Minimal elements.** An ``Antichain`` made from some times holds the minimal elements of these times.
  It lets a time t through exactly when one of these times is at or before t. Two antichains are equal
  exactly when they hold the same set of times.
- **Order of frontiers.** ``dominates`` is a partial order of frontiers, with the empty frontier last.
  ``meet`` is the greatest frontier that dominates two frontiers: it lets a time through if either of
  them does. ``join`` is the least frontier that both dominate: it lets a time through if both do.
- **Representatives.** ``advance`` gives the representative of a time t under a ``since`` frontier: for
  every time s that the frontier lets through, ``less_equal(t, s)`` exactly when
  ``less_equal(advance(t), s)``; and times that no such s can tell apart have the same representative.
  (If f is an element, ``f <= s`` and ``t <= s``, then ``join(t, f) <= s``. So the meet of these joins
  over all f is at or before s as well; and it is never before t.)
- **Counted.** A ``CountedFrontier`` is the antichain of the times whose count is positive, whatever
  the order in which the counts came; the changes that it returns sum up to the difference between the
  frontier before and after.

>>> frontier = Antichain([(0, 3), (1, 0), (1, 2)])
>>> frontier
Antichain([(0, 3), (1, 0)])
>>> frontier.less_equal((0, 2)), frontier.less_equal((1, 1))
(False, True)
>>> counted = CountedFrontier([((0,), 1), ((1,), 2)])
>>> counted.change((0,), -1)  # (1,) was behind (0,), and is the frontier now
[((0,), -1), ((1,), 1)]

Cost: an antichain of n times answers in O(n), and n is nearly always 1. A counted frontier handles a
change in O(n); only when an element leaves the frontier while other times wait behind it does the
counted frontier look through all the times that it counts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeAlias, TypeVar

from riverrun.errors import TimeViolation

from .timestamp import Timestamp, as_timestamp, check_depth, join, less_equal, meet

__all__ = ["Antichain", "CountedFrontier", "Counts", "FrontierChange", "as_antichain"]

FrontierChange: TypeAlias = tuple[Timestamp, int]
"""A time and +1 where it joins a frontier, -1 where it leaves."""

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Antichain:
    """A set of mutually incomparable times, in canonical order.

    >>> Antichain([(1, 0), (0, 1), (1, 1)]) == Antichain([(0, 1), (1, 0)])
    True
    >>> list(Antichain([(1, 0), (0, 1)])), len(Antichain())
    ([(0, 1), (1, 0)], 0)
    """

    elements: tuple[Timestamp, ...]

    def __init__(self, times: Iterable[Timestamp] = ()) -> None:
        object.__setattr__(self, "elements", _minimal(times))

    @staticmethod
    def minimum(depth: int) -> Antichain:
        """Return the frontier of a place where nothing has happened yet.

        >>> Antichain.minimum(2)
        Antichain([(0, 0)])
        """
        return Antichain([(0,) * depth])

    @staticmethod
    @lru_cache(maxsize=64)  # every state asks for the boundary of the same epoch
    def boundary(epoch: int, depth: int = 1) -> Antichain:
        """Return the frontier of a place where all epochs before ``epoch`` are complete.

        >>> Antichain.boundary(3, depth=2)
        Antichain([(3, 0)])
        """
        return Antichain([(epoch, *(0,) * (depth - 1))])

    def __repr__(self) -> str:
        return f"Antichain({list(self.elements)})"

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.elements)) + "}"

    def __iter__(self) -> Iterator[Timestamp]:
        return iter(self.elements)

    def __len__(self) -> int:
        return len(self.elements)

    def __contains__(self, time: Timestamp) -> bool:
        return time in self.elements

    def less_equal(self, time: Timestamp) -> bool:
        """Whether ``time`` can still come: some element is at or before it.

        >>> Antichain([(0, 2), (1, 0)]).less_equal((0, 2)), Antichain().less_equal((9, 9))
        (True, False)
        """
        elements = self.elements
        if elements and len(elements[0]) != len(time):
            check_depth([time], len(elements[0]), "compare with a frontier")
        return any(less_equal(element, time) for element in elements)

    def less_than(self, time: Timestamp) -> bool:
        """Whether some element is strictly before ``time``.

        >>> Antichain([(0, 2)]).less_than((0, 2)), Antichain([(0, 2)]).less_than((1, 2))
        (False, True)
        """
        return any(element != time and less_equal(element, time) for element in self.elements)

    def dominates(self, other: Antichain) -> bool:
        """Whether this frontier lets through all that ``other`` lets through; the order of frontiers.

        ``a.dominates(b)``: every element of b is at or after some element of a; b is a, or has moved on.

        >>> Antichain([(0, 2)]).dominates(Antichain([(0, 3), (1, 2)]))
        True
        >>> Antichain([(0, 2)]).dominates(Antichain()), Antichain().dominates(Antichain([(9, 9)]))
        (True, False)
        """
        return all(self.less_equal(time) for time in other.elements)

    def meet(self, other: Antichain) -> Antichain:
        """Return the lower envelope: the frontier that lets through what either lets through.

        >>> Antichain([(0, 2)]).meet(Antichain([(1, 0), (1, 3)]))
        Antichain([(0, 2), (1, 0)])
        """
        if len(self.elements) == len(other.elements) == 1:  # nearly all frontiers
            (mine,), (theirs,) = self.elements, other.elements
            if len(mine) == len(theirs):
                if less_equal(mine, theirs):
                    return self
                if less_equal(theirs, mine):
                    return other
        return Antichain(self.elements + other.elements)

    def join(self, other: Antichain) -> Antichain:
        """Return the upper envelope: the frontier that lets through what both let through.

        >>> Antichain([(0, 2)]).join(Antichain([(1, 0)])), Antichain([(0, 2)]).join(Antichain())
        (Antichain([(1, 2)]), Antichain([]))
        """
        return Antichain(join(a, b) for a in self.elements for b in other.elements)

    def advance(self, time: Timestamp) -> Timestamp:
        """Return the representative of ``time`` for readers who ask only as of times that this frontier lets through.

        Nobody asks under the empty frontier; the time is then left as it is.

        >>> since = Antichain([(2, 0)])
        >>> since.advance((0, 5)), since.advance((1, 5)), since.advance((3, 1))
        ((2, 5), (2, 5), (3, 1))
        >>> Antichain([(0, 3), (2, 0)]).advance((1, 1))
        (1, 1)
        """
        elements = self.elements
        if not elements:
            return time
        result = join(time, elements[0])
        for element in elements[1:]:
            result = meet(result, join(time, element))
        return result


def as_antichain(frontier: object, attempt: str) -> Antichain:
    """Return ``frontier`` if it is an ``Antichain``, and raise otherwise; ``attempt`` is what the caller was doing.

    >>> as_antichain((1,), "compact the state")
    Traceback (most recent call last):
    ...
    riverrun.errors.TimeViolation: cannot compact the state: (1,) is not a frontier
    Hint: a frontier is a set of times: Antichain([(1,)])
    """
    if isinstance(frontier, Antichain):
        return frontier
    shown = frontier if isinstance(frontier, tuple) else (1,)
    raise TimeViolation(
        "time.not_a_frontier",
        f"cannot {attempt}: {frontier!r} is not a frontier",
        hint=f"a frontier is a set of times: Antichain([{shown}])",
    )


def _minimal(times: Iterable[Timestamp]) -> tuple[Timestamp, ...]:
    """Return the minimal elements of ``times``, sorted."""
    if times.__class__ is list and len(times) == 1:  # nearly all antichains
        (time,) = times
        if type(time) is tuple and min(time, default=0) >= 0:
            return (time,)
    ordered = sorted(
        time
        if type(time) is tuple and min(time, default=0) >= 0
        else as_timestamp(time, "make an antichain")
        for time in set(times)
    )
    if len(ordered) <= 1:
        return tuple(ordered)
    check_depth(ordered, len(ordered[0]), "make an antichain")
    minimal: list[Timestamp] = []
    for time in ordered:  # in lexicographic order: all times before `time` have been looked at
        if not any(less_equal(element, time) for element in minimal):
            minimal.append(time)
    return tuple(minimal)


class Counts(Generic[T]):
    """Counts of items: changes are added up, and an item whose count is zero is forgotten.

    >>> counts = Counts([("a", 1), ("b", 2)])
    >>> counts.add("a", -1)
    >>> counts.add("c", -3)
    >>> sorted(counts), counts["c"], counts["a"], len(counts)
    ([('b', 2), ('c', -3)], -3, 0, 2)
    >>> counts.drain()
    [('b', 2), ('c', -3)]
    >>> bool(counts)
    False
    """

    __slots__ = ("_counts",)

    def __init__(self, changes: Iterable[tuple[T, int]] = ()) -> None:
        self._counts: dict[T, int] = {}
        self.extend(changes)

    def add(self, item: T, delta: int) -> None:
        """Add ``delta`` to the count of ``item``."""
        count = self._counts.get(item, 0) + delta
        if count:
            self._counts[item] = count
        else:
            self._counts.pop(item, None)

    def extend(self, changes: Iterable[tuple[T, int]]) -> None:
        """Add all of ``changes``."""
        for item, delta in changes:
            self.add(item, delta)

    def drain(self) -> list[tuple[T, int]]:
        """Return all counts, and forget them."""
        changes = list(self._counts.items())
        self._counts.clear()
        return changes

    def __getitem__(self, item: T) -> int:
        return self._counts.get(item, 0)

    def __iter__(self) -> Iterator[tuple[T, int]]:
        return iter(self._counts.items())

    def __len__(self) -> int:
        return len(self._counts)

    def __repr__(self) -> str:
        return f"Counts({list(self)})"


class CountedFrontier:
    """A frontier held by counts: the minimal times whose count is positive.

    A count may be negative for a while, since a worker may hear of the end of something before its beginning. Only
    times with a positive count are in the frontier, or keep later times out of it.

    >>> counted = CountedFrontier()
    >>> counted.change((1,), 2)
    [((1,), 1)]
    >>> counted.change((0,), -1)  # the end is heard of before the beginning
    []
    >>> counted.change((0,), 1)
    []
    >>> counted.frontier
    Antichain([(1,)])
    """

    __slots__ = ("_counts", "_elements", "_frontier", "_positive")

    def __init__(self, changes: Iterable[tuple[Timestamp, int]] = ()) -> None:
        self._counts: dict[Timestamp, int] = {}
        self._elements: list[Timestamp] = []
        self._positive = 0  # how many times have a positive count
        self._frontier: Antichain | None = None  # built when it is first asked for
        self.update(changes)

    def change(self, time: Timestamp, delta: int) -> Sequence[FrontierChange]:
        """Add ``delta`` to the count of ``time``; return which times join or leave the frontier.

        >>> counted = CountedFrontier([((0, 1), 1), ((1, 0), 1)])
        >>> counted.change((0, 0), 1)
        [((0, 0), 1), ((0, 1), -1), ((1, 0), -1)]
        >>> counted.change((5, 5), 1)
        []
        """
        counts = self._counts
        before = counts.get(time, 0)
        after = before + delta
        if after:
            counts[time] = after
        else:
            counts.pop(time, None)
        if after > 0:
            return [] if before > 0 else self._appear(time)
        return self._disappear(time) if before > 0 else []

    def _appear(self, time: Timestamp) -> list[FrontierChange]:
        """The count of ``time`` has become positive."""
        self._positive += 1
        elements = self._elements
        changes = [(time, 1)]
        for element in elements:
            if less_equal(element, time):
                return []
            if less_equal(time, element):
                changes.append((element, -1))
        if len(changes) > 1:
            self._elements = elements = [e for e in elements if not less_equal(time, e)]
        elements.append(time)
        self._frontier = None
        return changes

    def _disappear(self, time: Timestamp) -> list[FrontierChange]:
        """The count of ``time`` is no longer positive."""
        self._positive -= 1
        elements = self._elements
        if time not in elements:
            return []
        elements.remove(time)
        self._frontier = None
        changes = [(time, -1)]
        if self._positive > len(elements):  # times wait behind the frontier, perhaps behind `time`
            waiting = [t for t, n in self._counts.items() if n > 0 and less_equal(time, t)]
            if len(waiting) > 1:
                waiting.sort()  # a time comes after all times before it
            for other in waiting:
                for element in elements:
                    if less_equal(element, other):
                        break
                else:
                    elements.append(other)
                    changes.append((other, 1))
        return changes

    def update(self, changes: Iterable[tuple[Timestamp, int]]) -> list[FrontierChange]:
        """Apply all of ``changes``; return which times join or leave the frontier, after all of them.

        >>> counted = CountedFrontier([((0,), 1)])
        >>> counted.update([((0,), -1), ((1,), 1), ((2,), 1)])
        [((0,), -1), ((1,), 1)]
        """
        net: Counts[Timestamp] = Counts()
        for time, delta in changes:
            net.extend(self.change(time, delta))
        return net.drain()

    def hold(self, times: Iterable[Timestamp]) -> None:
        """Replace all counts: each of ``times`` is counted once. None of ``times`` may be before another.

        >>> counted = CountedFrontier([((0,), 2)])
        >>> counted.hold([(3,)])
        >>> counted
        CountedFrontier([((3,), 1)])
        """
        self._counts = dict.fromkeys(times, 1)
        self._elements = list(self._counts)
        self._positive = len(self._elements)
        self._frontier = None

    @property
    def frontier(self) -> Antichain:
        """The frontier now, as a value.

        >>> CountedFrontier([((0, 1), 1), ((1, 0), 3), ((0, 2), 1), ((0, 0), -1)]).frontier
        Antichain([(0, 1), (1, 0)])
        """
        if self._frontier is None:
            self._frontier = Antichain(self._elements)
        return self._frontier

    @property
    def elements(self) -> Sequence[Timestamp]:
        """The elements of the frontier, in no order: the list itself, which later changes alter or replace.

        >>> CountedFrontier([((0, 1), 1), ((1, 0), 3), ((0, 2), 1)]).elements
        [(0, 1), (1, 0)]
        """
        return self._elements

    def less_equal(self, time: Timestamp) -> bool:
        """Whether ``time`` can still come: some element of the frontier is at or before it.

        >>> CountedFrontier([((3,), 1)]).less_equal((2,))
        False
        """
        for element in self._elements:  # noqa: SIM110 (a generator costs more than all the rest)
            if less_equal(element, time):
                return True
        return False

    def count(self, time: Timestamp) -> int:
        """Return the count of ``time`` itself.

        >>> CountedFrontier([((3,), 1), ((3,), 1)]).count((3,))
        2
        """
        return self._counts.get(time, 0)

    def __iter__(self) -> Iterator[tuple[Timestamp, int]]:
        """Iterate over every time with its count, positive or not.

        >>> sorted(CountedFrontier([((3,), 2), ((5,), 1), ((4,), -1)]))
        [((3,), 2), ((4,), -1), ((5,), 1)]
        """
        return iter(self._counts.items())

    def __len__(self) -> int:
        return len(self._counts)

    def __repr__(self) -> str:
        return f"CountedFrontier({sorted(self)})"
