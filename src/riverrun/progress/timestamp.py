"""Timestamps: when something happens, as a tuple of counters.

A timestamp is a plain tuple of integers >= 0: the epoch, then one round counter for each loop
around the place where it is used. The number of coordinates is its *depth*; a port has one depth,
and only times of one depth are compared.

Times are ordered coordinate by coordinate (the product order), so two times may be incomparable.
That is what lets round 7 of epoch 0 and round 0 of epoch 1 go on side by side.

Laws:

1. ``less_equal`` is a partial order: reflexive, antisymmetric, transitive.
2. ``join(a, b)`` is the least time at or after both; ``meet(a, b)`` the greatest at or before both;
   they make a distributive lattice.
3. Python's own order of tuples (lexicographic) extends it: ``less_equal(a, b)`` implies ``a <= b``.
   So sorting by it visits a time after everything before it. It says nothing else about time,
   hence the name: order on timestamps is ``less_equal``, never ``<``.

>>> less_equal((0, 7), (1, 7))
True
>>> less_equal((0, 7), (1, 0)), less_equal((1, 0), (0, 7))
(False, False)
>>> join((0, 7), (1, 0)), meet((0, 7), (1, 0))
((1, 7), (0, 0))

Cost: 0.1 to 0.3 us each. These functions are called for every message, so they do not check that
depths agree; ``Tracker``, ``Ledger`` and ``Antichain`` do, where times come in.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index, le
from typing import TypeAlias

from riverrun.errors import TimeViolation

__all__ = ["Timestamp", "as_timestamp", "check_depth", "join", "less_equal", "less_than", "meet"]

Timestamp: TypeAlias = tuple[int, ...]


def less_equal(a: Timestamp, b: Timestamp) -> bool:
    """Whether ``a`` is at or before ``b``, in every coordinate.

    >>> less_equal((2,), (3,)), less_equal((2, 1), (3, 0)), less_equal((2, 1), (2, 1))
    (True, False, True)
    """
    depth = len(a)
    # One and two coordinates are nearly all that runs; spelled out, they cost half.
    if depth == 1:
        return a <= b
    if depth == 2:
        return a[0] <= b[0] and a[1] <= b[1]
    return all(map(le, a, b))


def less_than(a: Timestamp, b: Timestamp) -> bool:
    """Whether ``a`` is before ``b``: ``less_equal`` and not the same.

    >>> less_than((2, 1), (2, 2)), less_than((2, 1), (2, 1))
    (True, False)
    """
    return a != b and less_equal(a, b)


def join(a: Timestamp, b: Timestamp) -> Timestamp:
    """Return the least time at or after both.

    >>> join((2, 1), (0, 4))
    (2, 4)
    """
    return tuple(map(max, a, b))


def meet(a: Timestamp, b: Timestamp) -> Timestamp:
    """Return the greatest time at or before both.

    >>> meet((2, 1), (0, 4))
    (0, 1)
    """
    return tuple(map(min, a, b))


def as_timestamp(time: object, attempt: str) -> Timestamp:
    """Return ``time`` as a tuple of Python integers, or say what it is instead.

    >>> as_timestamp([0, 3], "read the state")
    (0, 3)
    >>> as_timestamp(0, "read the state")
    Traceback (most recent call last):
    ...
    riverrun.errors.TimeViolation: cannot read the state: 0 is not a timestamp, a tuple of integers from 0 on
    Hint: an epoch alone is written (0,), and round 3 of a loop in it (0, 3)
    """
    try:
        found = tuple(map(index, time))  # type: ignore[call-overload]
    except TypeError:
        found = (-1,)
    if any(coordinate < 0 for coordinate in found):
        raise TimeViolation(
            "time.malformed",
            f"cannot {attempt}: {time!r} is not a timestamp, a tuple of integers from 0 on",
            hint="an epoch alone is written (0,), and round 3 of a loop in it (0, 3)",
            time=time,
        )
    return found


def check_depth(times: Iterable[Timestamp], depth: int, attempt: str) -> None:
    """Refuse a time that has not ``depth`` coordinates; ``attempt`` says what was being done.

    >>> check_depth([(0, 1), (2,)], 2, "make an antichain")
    Traceback (most recent call last):
    ...
    riverrun.errors.TimeViolation: cannot make an antichain: the time (2,) has 1 coordinates, not 2
    Hint: a time has a coordinate for the epoch and one for each loop around the place
    """
    for time in times:
        if len(time) != depth:
            raise TimeViolation(
                "time.depth",
                f"cannot {attempt}: the time {time} has {len(time)} coordinates, not {depth}",
                hint="a time has a coordinate for the epoch and one for each loop around the place",
                time=time,
                depth=depth,
            )
