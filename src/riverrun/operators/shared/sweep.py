"""Sweep: going through all keys of a state, a bounded number of rows at a time.

Used by `store` to compact keys that nobody touches. All hashes are cut into *cells* of one size (`state.shards`). A
turn goes through the next `SPAN` cells, and looks at no more than its share of rows in each of them. Where a cell has
more rows, the next turn that comes to this cell goes on where the last one ended. Laws:

- **Bounded.** A turn looks at no more than `rows` rows, or at one row in each cell where that is more. Beyond that it
  looks at the other rows with the hash of the last row of a cell, since a key is looked at as a whole.
- **No owner.** The keys of a turn depend on the number of the turn and on the rows in the cells. They do not depend on
  who owns the cells, nor on how rows are cut into batches. Places at which cells were left are part of a checkpoint.
- **Complete.** A state in which no cell has more than its share of rows is gone through in `CELLS / SPAN` turns.

Cost: 100 to 200 microseconds a turn, as much for each cell that has more than its share, and 100 ns a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from riverrun.progress import Timestamp
from riverrun.state import Schema
from riverrun.state.changes import Changes
from riverrun.state.columns import as_array, as_column, column_table
from riverrun.state.kernels import packing, searching
from riverrun.state.kernels.values import mix, unmix
from riverrun.state.keys import Keys
from riverrun.state.shards import CELL, CELLS, Range, intersect
from riverrun.state.view import View, deferred

SPAN = 16  # cells that a turn goes through
PLACES = Schema.of({"place": pa.int64()}, {})
"""Places at which cells were left, as numbers with these hashes: so the owner of a cell saves its place."""
_ROWS = 256  # the least number of rows to scan in one go


class Sweep:
    """The sweep of a worker, through the cells that it owns."""

    def __init__(self, ranges: Sequence[Range], rows: int, saved: pa.RecordBatch | None) -> None:
        self._ranges = ranges
        self._share = max(rows // SPAN, 1)
        self._left: dict[int, int] = {}
        """For each cell that was left in the middle, the hash to go on from."""
        if saved is not None:
            for place in as_array(saved.column(0)).view(np.uint64):
                self._leave(int(mix(place)))

    def turn(self, number: int, view: View, as_of: Timestamp) -> list[Keys]:
        """The keys to look at in a turn."""
        low = number * SPAN % CELLS * CELL
        keys: list[Keys] = []
        for at, stop in intersect([(low, low + SPAN * CELL)], self._ranges):
            while at < stop:
                at = self._walk(view, as_of, at, stop, keys)
        return keys

    def _leave(self, place: int) -> None:
        self._left[place // CELL] = place

    def _walk(self, view: View, as_of: Timestamp, start: int, stop: int, keys: list[Keys]) -> int:
        """Add the keys of some cells, up to the first cell with more than its share, and say where to go on."""
        here, counted = start // CELL, 0
        place = self._left.pop(here, start)
        if place != start:  # a cell that was left in the middle is walked alone
            stop = min((here + 1) * CELL, stop)
        else:
            cells_behind = range(here + 1, -(-stop // CELL))
            stop = next((cell * CELL for cell in cells_behind if cell in self._left), stop)
        for columns, hashes in _pieces(view, as_of, place, max(self._share, _ROWS)):
            rows = int(np.searchsorted(hashes, np.uint64(stop - 1), "right"))
            if not rows:
                break
            more = rows == len(hashes)
            cells = hashes[:rows] // np.uint64(CELL)
            firsts = np.flatnonzero(np.append(True, cells[1:] != cells[:-1]))
            if cells[0] == here:
                firsts[0] -= (
                    counted  # rows of this cell in earlier pieces count as if they were in this one
                )
            sizes = np.diff(np.append(firsts, rows))
            full = np.flatnonzero(sizes >= self._share)
            if len(full):
                last = hashes[firsts[full[0]] + self._share - 1]
                rows, more = int(np.searchsorted(hashes, last, "right")), False
                stop = min((int(last) // CELL + 1) * CELL, stop)
                if int(last) + 1 < stop:
                    self._leave(int(last) + 1)
            keys.append(distinct_keys(columns, rows, view.schema))
            if not more:
                break
            here, counted = int(cells[-1]), int(sizes[-1])
        return stop

    def saved(self, name: str, epoch: int, depth: int) -> View:
        """The places at which cells were left, as a view for a checkpoint."""
        places = tuple(self._left.values())
        time = (epoch - 1, *(0,) * (depth - 1))

        def make() -> Changes | None:
            numbers = np.array([unmix(place) for place in np.array(places, np.uint64)], np.uint64)
            return Changes.of([as_column(numbers.view(np.int64))], time) if places else None

        return deferred(name, PLACES, epoch, depth, make)


def _pieces(
    view: View, as_of: Timestamp, start: int, rows: int
) -> Iterator[tuple[list[pa.Array], np.ndarray[Any, np.dtype[np.uint64]]]]:
    """The keys of rows from a hash on, as columns, and their hashes, some rows at a time."""
    schema = view.schema
    for piece in view.scan(as_of, rows, start=start):
        columns = piece.canonicals(range(len(schema.key)))
        yield columns, searching.hash_keys(column_table(columns), len(piece), schema.hash_word)


def distinct_keys(columns: Sequence[pa.Array], rows: int, schema: Schema) -> Keys:
    """The distinct keys among the first `rows` keys."""
    chosen = packing.distinct_rows(column_table(columns), rows, schema.hash_word)
    return Keys(columns, rows).take(chosen)
