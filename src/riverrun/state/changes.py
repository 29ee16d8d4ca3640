"""Changes on their way between operators: columns, times and diffs, in no order.

Inputs, operators and exchanges pass `Changes` on. A state takes them in as a `batch`: sorted, added up, and never
changed afterwards. Columns are in the canonical layout of `schema`, one chunk each, which nothing here checks. Laws:

- **Table of times.** `times` is sorted, without repetition and never empty; each of them is the time of some row,
  unless there are no rows. `codes` is None exactly when there is one time.
- **Immutable.** No method alters the changes that it is called on; its result may share their memory.
- **Order kept.** Rows keep their order, except in `partition`, which keeps it within each part, and in `consolidate`.

>>> import pyarrow as pa
>>> changes = Changes.of([pa.array([3, 1, 3]), pa.array([5, 6, 5])], (0, 1))
>>> changes.consolidate().diff_array().tolist()
[1, 2]
>>> changes.map_times(lambda time: time[:1]).times
((0,),)
>>> [None if part is None else part.rows for part in changes.partition([0], Shards.even(2))]
[2, 1]

Cost: a few microseconds a call and column, and nothing per row in Python. Gathering is 2 to 3 ns a cell, adding up 60
ns a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from riverrun.progress import Timestamp
from riverrun.state.block import NO_CODES, NO_DIFFS
from riverrun.state.columns import Ints, column_table, take_columns
from riverrun.state.counted import counted, too_often
from riverrun.state.kernels import sorting, values
from riverrun.state.kernels.adding import LEAST
from riverrun.state.shards import Shards
from riverrun.state.times import Codes, Times, codes_in, union

Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Changes:
    """Unsorted changes: of row i the values in `columns`, a time and a diff."""

    columns: tuple[pa.Array, ...]
    """In the collection's own order of columns."""
    rows: int
    times: Times
    codes: Codes | None
    """The time of each row, as its number in `times`; None: every row at times[0]."""
    diff: int
    """The diff of every row, where `diffs` is None."""
    diffs: Ints | None

    @staticmethod
    def of(columns: Sequence[pa.Array], time: Timestamp, diff: int = 1) -> Changes:
        """Rows of one time and one diff, in one column at least."""
        return Changes(tuple(columns), len(columns[0]), (time,), None, diff, None)

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self.times[:3])) + (", ..." if len(self.times) > 3 else "")
        return f"<Changes: {self.rows} rows at {shown}>"

    @property
    def single(self) -> bool:
        """Whether there is one time."""
        return self.codes is None

    def diff_array(self) -> Ints:
        """The diff of each row."""
        return np.full(self.rows, self.diff, np.int64) if self.diffs is None else self.diffs

    def take(self, rows: Ints) -> Changes:
        """The rows with these numbers, in this order."""
        columns = take_columns(self.columns, rows) if self.columns else ()
        diffs = None if self.diffs is None else self.diffs[rows]
        if self.codes is None:
            return Changes(columns, len(rows), self.times, None, self.diff, diffs)
        times, codes = _trim(self.times, self.codes[rows])
        return Changes(columns, len(rows), times, codes, self.diff, diffs)

    def filter(self, mask: Mask) -> Changes:
        """The rows where `mask` is true."""
        rows = mask.nonzero()[0]
        return self if len(rows) == self.rows else self.take(rows)

    def with_columns(self, columns: Sequence[pa.Array]) -> Changes:
        """The same changes with other columns."""
        return Changes(tuple(columns), self.rows, self.times, self.codes, self.diff, self.diffs)

    def negate(self) -> Changes:
        """The changes that cancel these. A diff of -2**63, which no sum gives, has no opposite and is refused."""
        least = self.diff if self.diffs is None else self.diffs.min(initial=0)
        if least == LEAST:
            raise too_often()
        diffs = None if self.diffs is None else -self.diffs
        return Changes(self.columns, self.rows, self.times, self.codes, -self.diff, diffs)

    def repeat(self, times: int) -> Changes:
        """The same changes with each diff multiplied by `times`; the products have to fit 64 bits."""
        diffs = None if self.diffs is None else self.diffs * times
        return Changes(self.columns, self.rows, self.times, self.codes, self.diff * times, diffs)

    def map_times(self, function: Callable[[Timestamp], Timestamp]) -> Changes:
        """The same changes at other times: time t becomes `function(t)`."""
        if self.codes is None:
            times: Times = (function(self.times[0]),)
            return Changes(self.columns, self.rows, times, None, self.diff, self.diffs)
        mapped = tuple(map(function, self.times))
        times = union(mapped)
        codes = None if len(times) == 1 else codes_in(mapped, times)[self.codes]
        return Changes(self.columns, self.rows, times, codes, self.diff, self.diffs)

    def at(self, time: Timestamp) -> Changes | None:
        """The changes of exactly one time; None when there are none."""
        if self.codes is None or time not in self.times:
            return self if self.rows and self.times[0] == time else None
        rows = (self.codes == self.times.index(time)).nonzero()[0]
        if not len(rows):
            return None
        columns = take_columns(self.columns, rows) if self.columns else ()
        diffs = None if self.diffs is None else self.diffs[rows]
        return Changes(columns, len(rows), (time,), None, self.diff, diffs)

    def split(self, done: Callable[[Timestamp], bool]) -> tuple[Changes | None, Changes | None]:
        """The changes at the times for which `done` is true, and the others; None in place of no rows."""
        if self.rows == 0:
            return None, None
        flags = [done(time) for time in self.times]
        if self.codes is None or all(flags) or not any(flags):
            return (self, None) if flags[0] else (None, self)
        mask = np.array(flags, np.bool_)[self.codes]
        return self.take(mask.nonzero()[0]), self.take((~mask).nonzero()[0])

    @staticmethod
    def concat(pieces: Sequence[Changes]) -> Changes:
        """The changes of all pieces, one at least, one after the other."""
        if len(pieces) > 1:  # a piece without rows may have a time that no row has
            pieces = [piece for piece in pieces if piece.rows] or pieces[:1]
        first = pieces[0]
        if len(pieces) == 1:
            return first
        rows = sum(piece.rows for piece in pieces)
        columns = tuple(map(pa.concat_arrays, zip(*(p.columns for p in pieces), strict=True)))
        diffs = None
        if any(piece.diffs is not None or piece.diff != first.diff for piece in pieces):
            diffs = np.concatenate([piece.diff_array() for piece in pieces])
        times, codes = first.times, None
        if any(piece.times != times for piece in pieces):
            times = union(*(piece.times for piece in pieces))
        if len(times) > 1:
            codes = np.concatenate([_codes_of(piece, times) for piece in pieces])
        return Changes(columns, rows, times, codes, first.diff, diffs)

    def partition(self, positions: Sequence[int], shards: Shards) -> list[Changes | None]:
        """The changes of each worker: a row goes to the worker that owns the hash of its columns at `positions`.

        A state hashes its keys the same way. Where there are no positions, the hash is 0.
        """
        if shards.workers == 1:
            return [self if self.rows else None]
        order, starts = split_rows([self.columns[at] for at in positions], self.rows, shards)
        sizes = [b - a for a, b in pairwise(starts)]
        if max(sizes) == self.rows:
            return [self if size and self.rows else None for size in sizes]
        ordered = self.take(order)
        return [
            ordered._slice(start, size) if size else None
            for start, size in zip(starts, sizes, strict=False)
        ]

    def _slice(self, start: int, size: int) -> Changes:
        columns = tuple(column.slice(start, size) for column in self.columns)
        stop = start + size
        diffs = None if self.diffs is None else self.diffs[start:stop]
        if self.codes is None:
            return Changes(columns, size, self.times, None, self.diff, diffs)
        times, codes = _trim(self.times, self.codes[start:stop])
        return Changes(columns, size, times, codes, self.diff, diffs)

    def consolidate(self) -> Changes:
        """Changes with equal columns and times added up, without zeros, sorted by columns and times."""
        table = column_table(self.columns)
        with counted:
            rows, codes, diffs, alike = sorting.sort_plainly(
                table, self.rows, NO_CODES if self.codes is None else self.codes,
                NO_DIFFS if self.diffs is None else self.diffs, self.diff,
            )  # fmt: skip
        count = len(rows)
        columns = take_columns(self.columns, rows, exact=False) if self.columns else ()
        diff = int(diffs[0]) if count else self.diff
        many = None if alike else diffs
        if self.codes is None:
            return Changes(columns, count, self.times, None, diff, many)
        times, used_codes = _trim(self.times, codes)
        return Changes(columns, count, times, used_codes, diff, many)


def hash_rows(columns: Sequence[pa.Array], rows: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """A hash of all columns for each row; equal rows have equal hashes."""
    table = column_table(columns)
    hashes = np.empty(rows, np.uint64)
    values.hash_rows(table.ctypes.data, len(table), rows, hashes)
    return hashes


def split_rows(columns: Sequence[pa.Array], rows: int, shards: Shards) -> tuple[Ints, list[int]]:
    """Row numbers grouped by the worker that owns the hash of their columns, and where each worker's numbers start.

    Within a worker's group the numbers ascend.
    """
    inner, owners = _cuts(shards)
    order, places = sorting.split_by_hash(
        column_table(columns), rows, inner, owners, shards.workers
    )
    return order, places.tolist()


def _codes_of(piece: Changes, times: Times) -> Codes:
    """The codes of the piece's rows in `times`, a table that contains the times of the piece."""
    if piece.codes is None:
        return np.full(piece.rows, times.index(piece.times[0]), np.int32)
    if piece.times is times or piece.times == times:
        return piece.codes
    return codes_in(piece.times, times)[piece.codes]


def _trim(times: Times, codes: Codes) -> tuple[Times, Codes | None]:
    """The times that some code names, and the codes in that shorter table."""
    if len(codes) == 0:
        return times[:1], None
    used = np.bincount(codes, minlength=len(times)) > 0
    if used.all():
        return times, codes
    used_times = tuple(times[code] for code in used.nonzero()[0])
    if len(used_times) == 1:
        return used_times, None
    return used_times, (np.cumsum(used, dtype=np.int32) - np.int32(1))[codes]


@lru_cache(maxsize=256)
def _cuts(
    shards: Shards,
) -> tuple[np.ndarray[Any, np.dtype[np.uint64]], np.ndarray[Any, np.dtype[np.int64]]]:
    """The cuts between shards, and the owners of the shards, as the kernel takes them."""
    return np.array(shards.bounds[1:-1], np.uint64), np.array(shards.owners, np.int64)
