"""Times inside a batch: a short sorted table of distinct times, and for each row a code, its place in the table.

A batch holds few distinct times (epochs times rounds) and many rows. So kernels never see how deep the loops are:
which rows are visible at a time, and to which time compaction advances a time, are questions about the table, answered
once for all rows. Law:

- **Sorted tables.** Tables are sorted lexicographically, which is one linear extension of the product order. So the
  codes of one table sort rows by time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from riverrun.progress import Antichain, Timestamp, less_equal
from riverrun.progress.timestamp import join

Times = tuple[Timestamp, ...]
LONG = 64  # tables longer than this are handled as arrays
Codes = np.ndarray[Any, np.dtype[np.int32]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


def advance(times: Times, since: Antichain) -> Times:
    """Each time advanced to `since`, in the same order: times that can no longer be told apart become equal."""
    if len(times) > LONG and len(since):
        many = np.array(times)
        joined = [np.maximum(many, np.array(element)) for element in since]
        return tuple(map(tuple, np.minimum.reduce(joined).tolist()))
    return tuple(since.advance(time) for time in times) if len(since) else times


def time_at_depth(time: Timestamp, depth: int) -> Timestamp:
    """A time as it is seen at another depth: with rounds 0 added, or without its rounds."""
    return (*time, *(0,) * (depth - len(time)))[:depth]


def frontier_at_depth(frontier: Antichain, depth: int) -> Antichain:
    """A frontier as it is seen at another depth."""
    return Antichain([time_at_depth(time, depth) for time in frontier])


def union(*tables: Times) -> Times:
    """One table with the times of all."""
    return tuple(sorted(set().union(*tables)))


def codes_in(times: Times, table: Times) -> Codes:
    """The code of each time in `table`; -1 for a time that is not in it."""
    where = {time: code for code, time in enumerate(table)}
    return np.array([where.get(time, -1) for time in times], np.int32)


def top(tables: Iterable[Times]) -> Timestamp | None:
    """The least time at or after all of some tables; None when there are none."""
    least_after: Timestamp | None = None
    for table in tables:
        if len(table) > LONG:
            highest: Timestamp = tuple(np.array(table).max(axis=0).tolist())
        else:
            highest = table[0] if len(table) == 1 else reduce(join, table)
        least_after = highest if least_after is None else join(least_after, highest)
    return least_after


def time_table(times: Times) -> Ints:
    """Times in the form that kernels take: their join, then each time."""
    return addressed_table(times)[0]


def addressed_table(times: Times) -> tuple[Ints, int]:
    """`time_table` and its address. NumPy takes as long to tell the address as to build a short table."""
    return _short_table(times) if len(times) <= LONG else _make_table(times)


def _make_table(times: Times) -> tuple[Ints, int]:
    table = np.empty((len(times) + 1, len(times[0])), np.int64)
    table[1:] = times
    table[0] = times[0] if len(times) == 1 else table[1:].max(axis=0)
    return table, table.__array_interface__["data"][0]


_short_table = lru_cache(maxsize=1024)(_make_table)  # many batches have the same time


def reaches(frontier: Antichain, time: Timestamp) -> bool:
    """`frontier.less_equal(time)`, for times whose depth is known to be right."""
    for element in frontier.elements:  # noqa: SIM110 - a generator would cost three times as much
        if less_equal(element, time):
            return True
    return False
