"""What is sent and held in one round of `pulling`: rows by slot, and parts in the forms that kernels take.

Laws:

- **Nothing where there is nothing.** Words and nulls of a slot without a row are 0, so two rounds are compared word by
  word. A part that is null or not sent is, in the form for a kernel, one that changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from riverrun.operators.aggregates import sum_out_of_range
from riverrun.operators.iterations.pull_loop import Columns
from riverrun.operators.iterations.words import Array, Flags, Ints, cells_of, rising
from riverrun.state.kernels.iterations import pulling

NO_FLOATS = np.zeros(0)
NO_INTS = np.zeros(0, np.int64)
_T = pa.types


@dataclass
class RoundRows:
    """The rows of one round, by slot. Where no row is present, words and nulls are 0."""

    present: Flags
    words: list[Ints]
    nulls: list[Flags | None]
    chosen: Ints | None = None
    """The slots of the rows; None where every slot has a row."""
    rows: int = 0

    @staticmethod
    def empty(kinds: int) -> RoundRows:
        no_flags = np.zeros(0, np.uint8)
        return RoundRows(no_flags, [NO_INTS] * kinds, [None] * kinds, NO_INTS, 0)

    def grown(self, slots: int) -> RoundRows:
        """The same rows among `slots` slots."""
        missing = slots - len(self.present)
        if not missing:
            return self
        chosen = self.chosen
        if chosen is None:
            chosen = np.arange(len(self.present))
        flags = np.zeros(missing, np.uint8)
        return RoundRows(
            np.concatenate([self.present, flags]),
            [np.concatenate([words, np.zeros(missing, np.int64)]) for words in self.words],
            [None if n is None else np.concatenate([n, flags]) for n in self.nulls],
            chosen,
            self.rows,
        )

    def place(self, present: Flags) -> None:
        """Take the rows that are present."""
        self.present = present
        self.rows = int(np.count_nonzero(present))
        self.chosen = None if self.rows == len(present) else np.flatnonzero(present)


@dataclass
class SentParts:
    """One part column, by source or by edge: its cells, 0 where nothing is sent; and 1 where one is null."""

    cells: Array
    nulls: Flags | None
    span: Array | None = None
    """The greatest and the least size of floats, if they are known (`kernels.iterations.pulling.widen`)."""


@dataclass
class PoolRows:
    """Rows of a pool: those of all targets, or of a chunk of them."""

    start: Ints
    count: Ints
    source: Any
    times: Ints
    first: int = 0
    last: int = 0


class GatheredCells:
    """Columns that are computed chunk by chunk, as cells by place."""

    def __init__(self, kinds: Sequence[pa.DataType], places: int) -> None:
        self._kinds = kinds
        self._places = places
        self._cells: list[Array | None] = [None] * len(kinds)
        self._nulls: list[Flags | None] = [None] * len(kinds)

    def put(self, rows: Any, columns: Columns) -> None:
        for at, (column, kind) in enumerate(zip(columns, self._kinds, strict=True)):
            if column.type != kind:
                column = column.cast(kind)
            cells, nulls = cells_of(column)
            place = self._cells[at]
            if place is None:
                place = self._cells[at] = np.zeros(self._places, cells.dtype)
            place[rows] = cells
            if nulls is not None:
                mask = self._nulls[at]
                if mask is None:
                    mask = self._nulls[at] = np.zeros(self._places, np.uint8)
                mask[rows] = nulls

    def sent(self) -> list[SentParts]:
        result = []
        for cells, nulls, kind in zip(self._cells, self._nulls, self._kinds, strict=True):
            if cells is None:
                cells = cells_of(pa.nulls(0, kind))[0]
                cells = np.zeros(self._places, cells.dtype)
            result.append(SentParts(cells, nulls))
        return result


def no_span() -> Array:
    """The span of no floats."""
    return np.array([0.0, np.inf])


def combinable(sent: SentParts, how: int, active: Flags | None) -> tuple[Array, Array]:
    """Parts in the form that the kernels take, where a part that is null or not sent changes nothing."""
    cells, nulls = sent.cells, sent.nulls
    if how == pulling.SUMMING:
        if cells.dtype.kind != "f":
            cells = cells.astype(np.int64, copy=False)
        else:
            cells = cells.astype(np.float64, copy=False)
        if nulls is not None:
            cells = np.where(nulls != 0, cells.dtype.type(0), cells)
        if cells.dtype != np.float64:
            return cells, no_span()
        span = sent.span
        if span is None:
            span = no_span()
            pulling.widen(cells, span)
        return cells, span
    words = rising(cells, how)
    if active is not None:
        words[active == 0] = pulling.NEVER
    if nulls is not None:
        words[nulls != 0] = pulling.NEVER
    return words, no_span()


def check_sum(
    target: int, pool: tuple[Any, ...], others: tuple[Any, ...], kind: pa.DataType
) -> None:
    """Refuse a sum of integers that its type cannot hold."""
    start, count, source, times, parts = pool
    extra_start, extra_count, extra_times, extras, own = others
    total = 0
    for begin, size, by, n in (
        (start[target], count[target], source, times),
        (extra_start[target], extra_count[target], None, extra_times),
    ):
        places = slice(int(begin), int(begin + size))
        cells = parts[by[places]] if by is not None else extras[places]
        repeats = n[places].tolist() if len(n) else [1] * int(size)
        total += sum(a * b for a, b in zip(cells.tolist(), repeats, strict=True))
    if len(own):
        total += int(own[target])
    least, most = (0, 1 << 64) if _T.is_unsigned_integer(kind) else (-(1 << 63), 1 << 63)
    if not least <= total < most:
        form = "duration" if _T.is_duration(kind) else "int"
        raise sum_out_of_range(total, form, kind)


def chunks_of(chosen: Ints | None, places: int, size: int) -> Iterator[Any]:
    """Some places at a time: slices where all are chosen, else their numbers."""
    total = places if chosen is None else len(chosen)
    for begin in range(0, total, size):
        end = min(begin + size, total)
        yield slice(begin, end) if chosen is None else chosen[begin:end]


def size_of(rows: Any) -> int:
    """How many places a chunk has."""
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def numbers_of(rows: Any) -> Ints:
    """The places of a chunk, one by one."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
