"""Matching: every pair of a change of a batch and a change of a view with the same key.

This is the inner loop of a join (`operators.join`). The diff of a pair is the product of both diffs. The time of a pair
is the least time at or after both times: of each coordinate the greater one. Laws:

- **Each pair once.** Every pair with exactly equal keys comes once. Hashes decide where to look, never whether keys are
  equal.
- **Null is a key.** Null keys are equal to each other here. (In a join nulls match nothing: `operators.join` leaves out
  the pairs with a null key.)
- **Bounded pieces.** `match` gives the pairs in pieces of at most `rows` pairs. Keys come in the order of the batch.
- **No silent overflow.** A product of diffs that does not fit 64 bits is an error, ``operator.overflow``.

In the example a batch of boats that arrive meets a view of their owners. The `left` columns of a pair are those of the
batch, the `right` ones those of the view; number 0 is the key of each.

>>> import pyarrow as pa
>>> from riverrun.progress import Antichain
>>> from riverrun.state.changes import Changes
>>> from riverrun.state.schema import Schema
>>> from riverrun.state.spine import Spine
>>> owners = Spine("owners", Schema.of({"boat": pa.int64()}, {"owner": pa.large_string()}))
>>> owners.insert(pa.table({"boat": [1, 2, 2], "owner": ["Ann", "Bo", "Cy"]}), time=(0,))
>>> schema = Schema.of({"boat": pa.int64()}, {"port": pa.int64()})
>>> arrivals = Changes.of([pa.array([2, 3]), pa.array([70, 80])], (1,))
>>> lower, upper = Antichain([(0,)]), Antichain([(2,)])
>>> batch = Batch.of(schema, arrivals, [0, 1], lower, upper)  # of columns 0 and 1
>>> [pairs] = match(batch, owners.view())
>>> pairs.left(1).to_pylist(), pairs.right(1).to_pylist(), pairs.times
([70, 70], ['Bo', 'Cy'], ((1,),))

Cost: some 10 microseconds, a lookup for each key of the batch, and for each pair 5 ns and what its columns cost to
gather. Where the batch has one time, and all times of the view are at or before it, no times have to be worked out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from riverrun.errors import OperatorFailed
from riverrun.progress import Timestamp, less_equal
from riverrun.progress.timestamp import join
from riverrun.state.batch import Batch
from riverrun.state.columns import Ints, gather_column, gather_pairs
from riverrun.state.kernels import matching
from riverrun.state.schema import FULL_MASK, Schema
from riverrun.state.times import Codes, Times, codes_in, union
from riverrun.state.view import View

LOOKED_UP = 1 << 16  # rows of the batch that are looked up at once
MARKED = 1 << 22  # pairs of times up to which those that occur are marked rather than sorted out
_NO_BASES = np.zeros(1 << 10, np.int64)


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Matches:
    """Some pairs. Columns are gathered when asked for."""

    rows: int
    times: Times
    """The times that occur, sorted."""
    codes: Codes | None
    """The time of each pair, as its number in `times`; None where there is one."""
    diffs: Ints
    _batch: Batch
    _view: View
    _left: Ints
    _right: Ints

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        return f"<Matches: {self.rows} pairs with {self._view.name!r}>"

    def left(self, index: int) -> pa.Array:
        """The column of the batch at `index` of its physical order, in canonical layout."""
        return _gather(self._batch.schema, self._batch.tables, self._left, index)

    def right(self, index: int) -> pa.Array:
        """The column of the view at `index` of its physical order, in canonical layout."""
        return _gather(self._view.schema, self._view.tables, self._right, index)

    def columns(self, chosen: Sequence[tuple[bool, int]]) -> list[pa.Array]:
        """Some columns, each of the batch or (True) of the view, at an index of the physical order there."""
        schemas = self._batch.schema, self._view.schema
        return gather_pairs(
            (self._batch.tables, self._left),
            (self._view.tables, self._right),
            np.array([right for right, _ in chosen], np.int64),
            np.array([schemas[right].starts[index] for right, index in chosen], np.int64),
            [schemas[right].canonical[index] for right, index in chosen],
        )


def _gather(schema: Schema, tables: Ints, rows: Ints, index: int) -> pa.Array:
    return gather_column(tables, schema.starts[index], rows, schema.canonical[index])


def match(batch: Batch, view: View, rows: int = 1 << 20) -> Iterator[Matches]:
    """The pairs of `batch` and `view`, in pieces of at most `rows`."""
    if not batch.blocks or not len(view.tables):
        return
    left, right = batch.schema, view.schema
    # Stored hashes of the batch serve as the view's when they have all bits, or the same bits as those of the view.
    stored = left.hash_mask in (FULL_MASK, right.hash_mask)
    time = _one_time(batch, view)
    bases, stride = _NO_BASES, 0
    if time is None:
        bases, table = view._times
        stride = len(table)
    elif len(view.tables) > len(bases):
        bases = np.zeros(len(view.tables), np.int64)
    for at, block in enumerate(batch.blocks):
        row = block.start
        while row < block.stop:
            stop = matching.cut_rows(block.descriptor, row, block.stop, LOOKED_UP, left.key_end)
            starts, places, pairs = matching.find_matches(
                block.descriptor, row, stop, left.key_end, stored, right.hash_word,
                view.descriptors, view.runs, view.exact,
            )  # fmt: skip
            row = stop
            position = np.array([0, 0, -1, 0, 0])
            while pairs > 0:
                room = min(rows, pairs)
                pairs -= room
                rows_and_diffs, codes = matching.list_matches(
                    block.descriptor, at, starts, places, view.descriptors, bases, stride,
                    position, room,
                )  # fmt: skip
                if position[-1]:
                    raise OperatorFailed(
                        "operator.overflow",
                        f"a row of {view.name!r} and one that meets it are there so often that the pair would be there "
                        "2**63 times or more, which does not fit 64 bits",
                        hint="a row can be there 2**63 - 1 times at the most: join fewer copies, or count with a "
                        "column",
                    )
                times: Times = () if time is None else (time,)
                joined = None
                if time is None:
                    times, joined = _join_times(block.times, table, codes)
                yield Matches(
                    room,
                    times,
                    joined,
                    rows_and_diffs[2],
                    batch,
                    view,
                    rows_and_diffs[0],
                    rows_and_diffs[1],
                )


def _one_time(batch: Batch, view: View) -> Timestamp | None:
    """The time of all pairs: the only time of the batch, if all changes of the view are at or before this time."""
    time = batch.blocks[0].times[0]
    if any(block.times != (time,) for block in batch.blocks):
        return None
    for other in view.batches:
        if other.top is not None and not less_equal(other.top, time):
            return None
    return time


def _join_times(left: Times, right: Times, codes: Ints) -> tuple[Times, Codes | None]:
    """The table of the joins of pairs of times, and the code of each pair in it. `codes` name the pairs of times."""
    count = len(left) * len(right)
    places: np.ndarray[Any, np.dtype[np.int64]]
    if count <= MARKED:
        used = matching.mark_codes(codes, count).nonzero()[0]
        numbers = np.empty(count, np.int64)
        numbers[used] = np.arange(len(used))
        places = numbers[codes]
    else:
        used, places = np.unique(codes, return_inverse=True)
    stride = len(right)
    joined = tuple(join(left[code // stride], right[code % stride]) for code in used.tolist())
    times = union(joined)
    return times, None if len(times) == 1 else codes_in(joined, times)[places]
