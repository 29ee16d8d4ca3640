"""Slots: a small number for each key, so that all else about a key lies in arrays.

`spreading` has one `Slots` for the keys of its solution and of both ends of its edges. Laws:

- **One slot a key.** Equal keys have equal slots, and different keys different ones; keys are compared exactly, as
  states compare them. Null is a key like any other.
- **Dense.** Slots are 0, 1, 2, ... in the order in which keys were first looked up. A slot is never given up.

>>> import pyarrow as pa
>>> slots = Slots([pa.large_string(), pa.int64()])
>>> slots.find([pa.array(["a", "b", "a"], pa.large_string()), pa.array([1, 1, 1])], 3).tolist()
[0, 1, 0]
>>> slots.columns(np.array([1], np.int32))[0].to_pylist()
['b']

Cost: 5 to 20 ns for a key of one integer column, 100 ns for other keys; some microseconds a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from riverrun.state.changes import hash_rows
from riverrun.state.columns import (
    Ints,
    cell_width,
    column_table,
    gather_columns,
    kind_of,
    node_count,
    take_columns,
)
from riverrun.state.kernels import layout
from riverrun.state.kernels.iterations import slots as kernels

Numbers = np.ndarray[Any, np.dtype[np.int32]]

_LEAST = 64
_STEP = 4096
_NO_WORDS = np.zeros(0, np.int64)
_NO_HASHES = np.zeros(0, np.uint64)


class Slots:
    """Numbers for keys of some canonical types."""

    def __init__(self, kinds: Sequence[pa.DataType]) -> None:
        self.kinds = tuple(kinds)
        self._is_words = len(self.kinds) == 1 and kind_of(self.kinds[0]) in (
            layout.INT,
            layout.UINT,
        )
        self._counts = np.array([0, -1])  # slots, and the slot of null
        self._table = np.full(2 * _LEAST, -1, np.int32)
        self._keys = np.zeros(_LEAST if self._is_words else 0, np.int64)
        self._hashes = np.zeros(0 if self._is_words else _LEAST, np.uint64)
        self._names = np.zeros(0 if self._is_words else _LEAST, np.int64)
        self._pieces: list[tuple[tuple[pa.Array, ...], Ints, int]] = []
        """Columns of keys, their table of nodes, and the number of rows: slots in order."""
        self._starts = [0]
        for kind in self.kinds:
            self._starts.append(self._starts[-1] + node_count(kind))

    def __len__(self) -> int:
        return int(self._counts[0])

    def __repr__(self) -> str:
        return f"<Slots: {len(self)}>"

    def find(self, columns: Sequence[pa.Array], rows: int) -> Numbers:
        """The slot of each row; keys that are new get new slots."""
        out = np.empty(rows, np.int32)
        if not rows:
            return out
        if not columns:
            self._counts[0] = 1
            out[:] = 0
            return out
        nodes = column_table(columns)
        before = len(self)
        if not self._is_words:
            hashes = hash_rows(columns, rows)
            tables = self._tables([*(piece[1] for piece in self._pieces), nodes])
        stop = 0
        while stop < rows:  # a large batch has each key several times as a rule
            first, stop = stop, min(rows, stop + max(_STEP, len(self)))
            self._reserve(len(self) + stop - first)
            if self._is_words:
                kernels.find_words(nodes, first, stop, self._table, self._keys, self._counts, out)
            else:
                kernels.find_rows(
                    nodes, first, stop, hashes, self._table, self._hashes, self._names, tables,
                    self._counts, out,
                )  # fmt: skip
        if self._is_words:
            return out
        if len(self) > before:
            self._add_piece(columns, before)
        return out

    def columns(self, slots: Numbers) -> tuple[pa.Array, ...]:
        """The keys of some slots."""
        if not self.kinds:
            return ()
        if not self._is_words:
            tables = self._tables([piece[1] for piece in self._pieces])
            if not len(slots):
                return tuple(pa.nulls(0, kind) for kind in self.kinds)
            return tuple(
                gather_columns(
                    tables, self._names[slots], self._starts, self.kinds, range(len(self.kinds))
                )
            )
        (kind,) = self.kinds
        words = self._keys[slots]
        valid, nulls = None, 0
        if self._counts[1] >= 0:
            mask = slots != self._counts[1]
            nulls = len(mask) - int(mask.sum())
            valid = pa.py_buffer(np.packbits(mask, bitorder="little")) if nulls else None
        width = cell_width(kind)
        cells = words if width == 8 else words.astype(f"i{width}")
        return (pa.Array.from_buffers(kind, len(slots), [valid, pa.py_buffer(cells)], nulls),)

    def _reserve(self, count: int) -> None:
        """Have room for so many slots, with less than half of the table in use."""
        room = len(self._keys) if self._is_words else len(self._hashes)
        if count > room:
            room = max(count, 2 * room)
            if self._is_words:
                self._keys = grown(self._keys, room, len(self))
            else:
                self._hashes = grown(self._hashes, room, len(self))
                self._names = grown(self._names, room, len(self))
        if 2 * count > len(self._table):
            size = 1 << (2 * count - 1).bit_length()
            self._table = np.empty(size, np.int32)
            kernels.fill_table(
                self._table,
                self._keys if self._is_words else _NO_WORDS,
                _NO_HASHES if self._is_words else self._hashes,
                len(self),
                int(self._counts[1]),
            )

    @staticmethod
    def _tables(nodes: Sequence[Ints]) -> Ints:
        return np.array([each.ctypes.data for each in nodes], np.int64)

    def _add_piece(self, columns: Sequence[pa.Array], before: int) -> None:
        """Keep the keys of the slots from `before` on, which are named as rows of `columns` so far.

        A piece is merged with the one before while that is not twice as large: so there are few, and each key is
        copied a logarithmic number of times.
        """
        names = self._names[before : len(self)]
        piece = take_columns(columns, names & layout.ROW_MASK, exact=False)
        rows = len(names)
        while self._pieces and self._pieces[-1][2] < 2 * rows:
            other, _, count = self._pieces.pop()
            piece = tuple(map(pa.concat_arrays, zip(other, piece, strict=True)))
            rows += count
        number = len(self._pieces) << layout.ROW_BITS
        self._names[len(self) - rows : len(self)] = number + np.arange(rows)
        self._pieces.append((piece, column_table(piece), rows))
        assert all(a[2] >= b[2] for a, b in pairwise(self._pieces))


def grown(
    array: np.ndarray[Any, Any], room: int, used: int, rest: int | None = None
) -> np.ndarray[Any, Any]:
    """A copy of the first `used` cells along the last axis, with room for more, which have any content or `rest`."""
    larger = np.empty((*array.shape[:-1], room), array.dtype)
    larger[..., :used] = array[..., :used]
    if rest is not None:
        larger[..., used:] = rest
    return larger
