"""Keys of any type as numbers, and columns of any type as words.

>>> numbers = Numbering([pa.large_string()])
>>> numbers.place([pa.array(["b", None, "a", "b"], pa.large_string())]).tolist(), len(numbers)
([0, 1, 2, 0], 3)
>>> numbers.columns(np.array([2, 1]))[0].to_pylist()
['a', None]

Cost: 20 to 50 ns a key, most of it for the memory that a look-up in a large table waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from riverrun.operators.iterations.compressed import Compressed
from riverrun.operators.iterations.pull_loop import Columns
from riverrun.operators.iterations.words import Flags, Ints, from_words, has_words, to_words
from riverrun.state.columns import as_column, column_table, take_columns
from riverrun.state.kernels.iterations import compressing


class Places(Protocol):
    """Slots of keys: numbers from 0 on, in the order in which keys first came."""

    def __len__(self) -> int: ...

    def place(self, columns: Columns) -> np.ndarray[Any, np.dtype[np.int32]]:
        """The slot of each key; a new one for a new key."""
        ...

    def columns(self, slots: Ints) -> tuple[pa.Array, ...]:
        """The keys in some slots."""
        ...


class Numbering:
    """Numbers keys of any types, in the order in which they first come."""

    def __init__(self, kinds: Sequence[pa.DataType]) -> None:
        self._kinds = tuple(kinds)
        self._known = tuple(pa.nulls(0, kind) for kind in kinds)
        self._hashes = np.zeros(0, np.uint64)
        self._table = np.full(16, -1, np.int32)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def place(self, columns: Columns) -> np.ndarray[Any, np.dtype[np.int32]]:
        rows = len(columns[0])
        slots = np.empty(rows, np.int32)
        for begin in range(
            0, rows, 1 << 20
        ):  # so that room is made for keys that are new, not for all rows
            chunk = [column.slice(begin, 1 << 20) for column in columns]
            self._place(chunk, slots[begin : begin + (1 << 20)])
        return slots

    def _place(self, columns: Columns, slots: Any) -> None:
        rows, first = len(slots), self._count
        if len(self._hashes) < first + rows:
            more = np.zeros(max(first + rows, 2 * first) - len(self._hashes), np.uint64)
            self._hashes = np.concatenate([self._hashes, more])
        size = len(self._table)
        while size < 2 * (first + rows):
            size *= 2
        if size > len(self._table):
            self._table = np.full(size, -1, np.int32)
            compressing.fill_table(self._hashes, first, self._table)
        asked, known = column_table(columns), column_table(self._known)
        fresh, count = compressing.place_rows(
            asked, rows, known, first, self._hashes, self._table, slots
        )
        if count:
            taken = take_columns(columns, fresh, exact=False)
            self._known = tuple(
                pa.concat_arrays(pair) for pair in zip(self._known, taken, strict=True)
            )
            self._count += int(count)

    def columns(self, slots: Ints) -> tuple[pa.Array, ...]:
        chosen = as_column(slots)
        return tuple(column.take(chosen) for column in self._known)


class ColumnWords:
    """The words of columns of any types: other types than those of fixed width have the number of their value."""

    def __init__(self, kinds: Sequence[pa.DataType]) -> None:
        self.kinds = tuple(kinds)
        self._named = [None if has_words(kind) else Numbering([kind]) for kind in kinds]

    def words(self, columns: Columns, rows: int, held: Compressed) -> Ints:
        """The words of some rows, and widen `held` when there are nulls for the first time."""
        out = np.zeros((held.words.shape[0], rows), np.int64)
        nulls = np.zeros(rows, np.int64)
        for at, (column, named) in enumerate(zip(columns, self._named, strict=True)):
            if named is not None:
                out[at] = named.place([column])
                continue
            out[at], mask = to_words(column)
            if mask is not None:
                nulls |= mask.astype(np.int64) << at
        if nulls.any():
            if held.words.shape[0] == len(self.kinds):
                held.widen()
                out = np.concatenate([out, np.zeros((1, rows), np.int64)])
            out[-1] = nulls
        return out

    def nulls(self, words: Ints, at: int) -> Flags | None:
        """Which cells of column `at` are null."""
        if words.shape[0] == len(self.kinds) or self._named[at] is not None:
            return None
        mask: Flags = ((words[-1] >> at) & 1).astype(np.uint8)
        return mask if mask.any() else None

    def column(self, words: Ints, at: int) -> pa.Array:
        named = self._named[at]
        if named is not None:
            return named.columns(words[at])[0]
        return from_words(words[at], self.nulls(words, at), self.kinds[at])
