"""Linear operators that change the shape of rows: null columns, wider types, list elements, windows over a time column.

They are linear as those of `operators.linear` are: each change by itself, no state. All but `Pad` refuse epochs:
`Widen` where a value is beyond the wider type, `Unfold` where the lists of a row have different lengths, `Windows`
where a window starts before the first value of the column's type, `Fits` where a computation left its type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riverrun.errors import OperatorFailed, SchemaError
from riverrun.operators.expire import Ticks, ticks_of
from riverrun.operators.linear import list_parents
from riverrun.plan.operator import Linear
from riverrun.state.changes import Changes
from riverrun.state.columns import as_array, as_column
from riverrun.state.types import type_text, widen


@dataclass(frozen=True)
class Pad(Linear):
    """Picks columns by position and adds columns of nulls: brings the sides of an outer join to one shape."""

    columns: tuple[int | pa.DataType, ...]
    kind: ClassVar[str] = "pad"

    def describe(self) -> str:
        return "fill with nulls"

    def identity(self) -> str:
        return f"columns {', '.join(map(str, self.columns))}"

    def apply(self, changes: Changes) -> Changes:
        return changes.with_columns(
            tuple(
                [
                    changes.columns[at] if isinstance(at, int) else pa.nulls(changes.rows, at)
                    for at in self.columns
                ]
            )
        )


@dataclass(frozen=True)
class Widen(Linear):
    """Casts some columns to wider types (`state.types.common_type`), so that equal values of two types meet."""

    columns: tuple[tuple[int, pa.DataType, pa.DataType], ...]
    """Of each column that changes: its position, its type, and the wider type."""
    names: tuple[str, ...]
    kind: ClassVar[str] = "widen"
    known_by_input: ClassVar[bool] = True

    def describe(self) -> str:
        widenings = [f"{self.names[at]} to {type_text(wide)}" for at, _, wide in self.columns]
        return f"widen {', '.join(widenings)}"

    def identity(self) -> str:
        changed = [f"{at} {type_text(a)} to {type_text(b)}" for at, a, b in self.columns]
        return f"widen columns {', '.join(changed)}"

    def apply(self, changes: Changes) -> Changes:
        columns = list(changes.columns)
        for at, narrow, wide in self.columns:
            try:
                columns[at] = widen(columns[at], narrow, wide)
            except pa.ArrowInvalid as error:
                raise OperatorFailed(
                    "operator.range",
                    f"cannot make column {self.names[at]!r} {type_text(wide)}, which it meets: it is {narrow}, and has "
                    f"a value that is beyond: {error}",
                    hint="cast it before, and decide what becomes of values that do not fit",
                    column=self.names[at],
                ) from error
        return changes.with_columns(columns)


@dataclass(frozen=True)
class Unfold(Linear):
    """A row for each element of some list columns, whose lists are equally long; the other columns are repeated."""

    lists: tuple[int, ...]
    kind: ClassVar[str] = "unfold"

    def identity(self) -> str:
        return f"{self.describe()} {self.lists}"

    def apply(self, changes: Changes) -> Changes | None:
        first = changes.columns[self.lists[0]]
        sizes = pc.list_value_length(first).fill_null(0)
        for at in self.lists[1:]:
            if not pc.list_value_length(changes.columns[at]).fill_null(0).equals(sizes):
                raise SchemaError(
                    "schema.lists_differ",
                    "cannot make rows of lists of different lengths",
                    hint="each row needs as many elements in every list column",
                )
        parents = list_parents(first)
        if not len(parents):
            return None
        there = [at for at in range(len(changes.columns)) if at not in self.lists]
        spread = changes.with_columns([changes.columns[at] for at in there]).take(parents)
        columns = dict(zip(there, spread.columns, strict=True))
        columns |= {at: pc.list_flatten(changes.columns[at]) for at in self.lists}
        return spread.with_columns([columns[at] for at in range(len(changes.columns))])


@dataclass(frozen=True)
class Windows(Linear):
    """Each row once for every window that its time lies in, with the window's start as one more column.

    A window starts at `offset` plus a multiple of `step` and lasts `size`, all in the units of the column; its end is
    excluded. A row whose time is null is in no window. A window may end after the last value of the column's type; a
    row in a window that starts before the first value refuses its epoch.
    """

    column: int
    size: int
    step: int
    offset: int = 0
    kind: ClassVar[str] = "windows"

    def describe(self) -> str:
        moved = f" from {self.offset}" if self.offset else ""
        return f"windows of {self.size} every {self.step}{moved}"

    def identity(self) -> str:
        return f"{self.describe()} of column {self.column}"

    def apply(self, changes: Changes) -> Changes | None:
        times = changes.columns[self.column]
        kind = times.type
        rows = np.arange(changes.rows)
        if times.null_count:
            rows = np.flatnonzero(as_array(times.is_valid()))
            times = times.drop_null()
        ticks = ticks_of(times)
        first = _first_tick(kind)
        # How far the start of the latest window lies before each time, and how far the type reaches back from there.
        behind = ((ticks % self.step - self.offset % self.step) % self.step).astype(np.uint64)
        room = ticks.view(np.uint64) - np.int64(first).view(np.uint64)
        owners, starts = [], []
        for back in range(-(-self.size // self.step)):
            depth = behind + np.uint64(back * self.step)
            inside = depth < self.size
            if (depth[inside] > room[inside]).any():
                raise self._before_all(ticks, depth, inside & (depth > room), kind)
            owners.append(rows[inside])
            starts.append((ticks.view(np.uint64) - depth).view(np.int64)[inside])
        chosen, start = np.concatenate(owners), np.concatenate(starts)
        if not len(chosen):
            return None
        taken = changes.take(chosen)
        wide = pa.int32() if kind.bit_width == 32 else pa.int64()
        column = as_column(start).cast(wide).cast(kind)
        return taken.with_columns((*taken.columns, column))

    def _before_all(
        self,
        ticks: Ticks,
        depth: np.ndarray[Any, np.dtype[np.uint64]],
        beyond: np.ndarray[Any, np.dtype[np.bool_]],
        kind: pa.DataType,
    ) -> OperatorFailed:
        """The refusal of a window that starts before the least value of the column's type."""
        at = int(np.flatnonzero(beyond)[0])
        # Further windows of this row start earlier still: the message names the earliest.
        last = (self.size - 1 - int(depth[at])) // self.step
        start = int(ticks[at]) - int(depth[at]) - max(last, 0) * self.step
        return OperatorFailed(
            "operator.overflow",
            f"a row with the time {int(ticks[at])} is in a window that starts at {start}, and "
            f"{type_text(kind)} begins at {_first_tick(kind)}",
            hint="cast the column to a wider type before, or filter out rows that are so early",
            time=int(ticks[at]),
            start=start,
        )


def _first_tick(kind: pa.DataType) -> int:
    """The least value of a type of times, in its own unit."""
    return 0 if pa.types.is_time(kind) else -(1 << (kind.bit_width - 1))


@dataclass(frozen=True)
class Fits(Linear):
    """Refuses rows in which a computation left its type; drops the columns that say so.

    Each of the last columns is true in the rows in which a computation left its type. An inserted row with a true one
    refuses its epoch.
    """

    overflow_texts: tuple[str, ...]
    """The error text of each of the last columns."""
    hint: str
    names: tuple[str, ...]
    """The names of the other columns, for showing a row that is refused; empty for a column that is not shown."""
    kind: ClassVar[str] = "fits"

    def describe(self) -> str:
        return "check that results fit their types"

    def identity(self) -> str:
        return f"{self.describe()}: {', '.join(self.overflow_texts)}"

    def apply(self, changes: Changes) -> Changes:
        width = len(changes.columns) - len(self.overflow_texts)
        diffs: Any = None
        for text, column in zip(self.overflow_texts, changes.columns[width:], strict=True):
            if not pc.any(column).as_py():
                continue
            diffs = changes.diff_array() if diffs is None else diffs
            flags = as_array(column.fill_null(False)) & (diffs > 0)
            if flags.any():
                at = int(np.flatnonzero(flags)[0])
                row = {
                    name: one[at].as_py()
                    for name, one in zip(self.names, changes.columns[:width], strict=True)
                    if name
                }
                of = f", for {row}" if row else ""
                raise OperatorFailed("operator.overflow", f"{text}{of}", hint=self.hint, row=row)
        return changes.with_columns(changes.columns[:width])
