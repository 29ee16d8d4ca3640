"""Expiry: rows leave by themselves when a mark passes them.

`expire` and `late=` of collections build it from these operators. A *mark* is a number that only grows: the greatest
time seen in a column so far (less what may come late), or the epoch itself. Each row has a *due*: the mark at which
the row leaves. Laws:

- **Up to its due.** As of epoch e the output is the rows received up to e whose due is after the mark of e. A row that
  is past due when it comes is never in the output, and deleting a row that has left changes nothing. A row whose due
  lies beyond the end of 64 bits never leaves, even when the mark is at that end.
- **Marks are determined.** The mark of e depends on which rows came up to e, not on their order inside an epoch.
  Deleting a row does not take the mark back. So the output is deterministic.
- **Counted.** A row that is inserted and never in the output is counted in the events of the run: as ``late`` where its
  due has passed, as ``no time`` where its time is null. A row that is deleted in the epoch in which it came is not
  counted.

Rows are stored under their due, and the hash of the due decides their worker; so the rows that leave are looked up, not
searched for. Every worker needs the mark, also after a restart: a mark is sent as one row for each of `SHARDS` numbers,
exchanged by number, and each worker stores the rows that it gets.

Cost: the rows are stored once more; a row is written when it comes and when it leaves.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from riverrun.plan.operator import (
    Actor,
    Context,
    Linear,
    Operator,
    by_time,
    present,
    settle,
    so_far,
)
from riverrun.progress import Antichain, Timestamp
from riverrun.state import Schema, Spine
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.columns import as_array, as_column
from riverrun.state.kernels.values import unmix
from riverrun.state.keys import Keys
from riverrun.state.schema import free_name

SHARDS = 256
Ticks = np.ndarray[tuple[int], np.dtype[np.int64]]
DUE = "__due__"
NO_DUE = np.int64(-(1 << 63))
"""The due of a row whose time is null. Such a row is never in the output, and is counted by the `Expirer`."""
END = np.int64((1 << 63) - 1)
"""The end of all times: the due of the rows that are due then, and of the rows that would be due later."""
MARKED = ":marks"
MARKS = pa.schema({"shard": pa.int64(), "mark": pa.int64()})
_TICKS = pa.int64()


def due_name(columns: pa.Schema) -> str:
    """A name for the column of dues that none of these columns has."""
    return free_name(DUE, columns.names)


@dataclass(frozen=True)
class Due(Linear):
    """Adds the due of each row as the first column: the row's time plus `span`, or its epoch plus `span`."""

    column: int | None
    span: int
    kind: ClassVar[str] = "due"

    def describe(self) -> str:
        return f"due {self.span} epochs later" if self.column is None else f"due {self.span} later"

    def identity(self) -> str:
        return self.describe() + ("" if self.column is None else f" than column {self.column}")

    @property
    def from_content(self) -> bool:
        return self.column is not None

    def apply(self, changes: Changes) -> Changes | None:
        if self.column is None:
            epochs = np.array([time[0] for time in changes.times])
            codes = np.zeros(changes.rows, np.int64) if changes.codes is None else changes.codes
            return changes.with_columns((as_column(epochs[codes] + self.span), *changes.columns))
        times = changes.columns[self.column]
        if times.null_count:
            dues = np.full(changes.rows, NO_DUE)
            valid = as_array(times.is_valid())
            dues[valid] = self._after(ticks_of(times.drop_null()))
            return changes.with_columns((as_column(dues), *changes.columns))
        return changes.with_columns((as_column(self._after(ticks_of(times))), *changes.columns))

    def _after(self, ticks: Ticks) -> Ticks:
        """Each time plus the span; the end of all times where the sum would be later."""
        return np.minimum(ticks, END - np.int64(self.span)) + np.int64(self.span)


def ticks_of(times: pa.Array) -> Ticks:
    """A column of times as integers, in its own unit."""
    kind = times.type
    if kind == _TICKS:
        return as_array(times)
    if kind.bit_width == 32:
        times = times.cast(pa.int32())
    return as_array(times.cast(_TICKS))


@dataclass(frozen=True)
class LatestTick(Linear):
    """The greatest time of a batch of insertions, as one row; `late` is taken off."""

    column: int
    late: int
    kind: ClassVar[str] = "latest"

    def describe(self) -> str:
        return "latest time" + (f", less {self.late}" if self.late else "")

    def identity(self) -> str:
        return f"{self.describe()}, of column {self.column}"

    @property
    def from_content(self) -> bool:
        return False  # deleting the latest row does not take its time back

    @property
    def used(self) -> list[int]:
        return [self.column]

    def apply(self, changes: Changes) -> Changes | None:
        inserted = changes.diff_array() > 0
        times = changes.columns[self.column].filter(as_column(inserted)).drop_null()
        if not len(times):
            return None
        mark = max(int(ticks_of(times).max()) - self.late, int(NO_DUE))
        return Changes((as_column(np.array([mark])),), 1, changes.times[-1:], None, 1, None)


@dataclass(frozen=True)
class Spread(Linear):
    """Turns a mark into one row for each shard, so that it comes to every worker."""

    kind: ClassVar[str] = "spread"

    def apply(self, changes: Changes) -> Changes:
        mark = max(changes.columns[0].to_pylist())
        return spread(mark, changes.times[-1])


@cache
def _shards() -> pa.Array:
    """Numbers whose hashes lie at even distances, so that each of up to `SHARDS` workers owns one."""
    hashes: list[Any] = [np.uint64(at * ((1 << 64) // SHARDS)) for at in range(SHARDS)]
    return as_column(np.array([unmix(one) for one in hashes], np.uint64).view(np.int64))


def spread(mark: int, time: Timestamp) -> Changes:
    """The rows that bring a mark to every worker."""
    column = as_column(np.full(SHARDS, mark))
    return Changes((_shards(), column), SHARDS, (time,), None, 1, None)


@dataclass(frozen=True)
class Watermark(Operator):
    """The greatest mark so far. All marks come to one worker, which sends the greatest to all workers when it grows."""

    kind: ClassVar[str] = "watermark"
    kernels: ClassVar[tuple[str, ...]] = ("values.unmix",)
    keeps_state: ClassVar[bool] = True

    @property
    def from_content(self) -> bool:
        return False

    def start(self, context: Context) -> Watermarker:
        return Watermarker(context)


class _OwnSpine:
    """A spine that one actor alone writes and reads; its columns are those of the changes, in order."""

    def __init__(self, context: Context, schema: Schema, suffix: str = "") -> None:
        self.spine: Spine = context.spine(schema, suffix)
        self.depth = context.node.depth
        self._positions = tuple(range(len(schema.columns)))

    def append(self, changes: Changes, upper: Antichain) -> None:
        spine = self.spine
        spine.append(Batch.of(spine.schema, changes, self._positions, spine.upper, upper))


class Watermarker(Actor):
    """The watermark, on the worker to which all marks come."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        schema = Schema.of({}, {"mark": pa.int64()})
        self._marks = _OwnSpine(context, schema)
        view, now = present(self._marks.spine)
        self._mark = max((row["mark"] for row in view.to_batch(now).to_pylist()), default=None)
        self._held: dict[Timestamp, int] = {}

    def receive(self, port: int, changes: Changes) -> None:
        mark = max(changes.columns[0].to_pylist())
        (time,) = changes.times[-1:]
        if time not in self._held:
            self.context.request(time)
        self._held[time] = max(mark, self._held.get(time, mark))

    def run(self, time: Timestamp, upper: Antichain) -> None:
        mark = self._held.pop(time)
        if self._mark is not None and mark <= self._mark:
            return
        marks, diffs = [mark], [1]
        if self._mark is not None:
            marks, diffs = [mark, self._mark], [1, -1]
        self._mark = mark
        column = as_column(np.array(marks))
        self._marks.append(Changes((column,), len(marks), (time,), None, 0, np.array(diffs)), upper)
        self.context.push(spread(mark, time), 0)

    def boundary(self, epoch: int) -> None:
        settle(self._marks.spine, epoch, self.node.depth)


@dataclass(frozen=True)
class Expire(Operator):
    """Passes rows on until their due, which is their first column. The second input has the marks."""

    stream: str = ""
    """The name of the rows in events."""
    column: int | None = None
    """The position of the time column; None where rows leave by epochs."""
    span: int = 0
    """How long after its time a row leaves."""
    kind: ClassVar[str] = "expire"
    kernels: ClassVar[tuple[str, ...]] = ("searching.look_up",)
    keeps_state: ClassVar[bool] = True
    gives_content: ClassVar[bool] = True

    @property
    def from_content(self) -> bool:
        return False

    @property
    def suffixes(self) -> tuple[str, ...]:
        return "", MARKED

    def start(self, context: Context) -> Expirer:
        return Expirer(context)


class Expirer(Actor):
    """The rows that have not left, by due."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        columns = self.node.schemas[0]
        self._schema = Schema.of({due_name(columns): pa.int64()}, columns)
        self._rows = _OwnSpine(context, self._schema)
        self._marks = _OwnSpine(
            context, Schema.of({"shard": pa.int64()}, {"mark": pa.int64()}), MARKED
        )
        self._mark: int | None = None
        self._dues: list[int] = []
        self._known: set[int] = set()
        self._held: dict[Timestamp, tuple[list[Changes], list[Changes]]] = {}
        marks, now = present(self._marks.spine)
        self._mark = max(marks.to_batch(now).column("mark").to_pylist(), default=None)
        view, now = present(self._rows.spine)
        for piece in view.scan(now):
            self._know(np.unique(as_array(piece.canonical(0))).tolist())

    def _know(self, dues: list[int]) -> None:
        fresh = [due for due in dues if due not in self._known]
        if fresh:
            self._known.update(fresh)
            self._dues = sorted([*self._dues, *fresh])

    def receive(self, port: int, changes: Changes) -> None:
        for time, piece in by_time(changes):
            if time not in self._held:
                self._held[time] = ([], [])
                self.context.request(time)
            self._held[time][port].append(piece)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        rows, marks = self._held.pop(time)
        if marks:
            self._pass(Changes.concat(marks), time, upper)
        pieces = []
        if rows:
            arrived = self._counted(Changes.concat(rows))
            if arrived.rows:
                pieces.append(arrived)
                self._know(np.unique(as_array(arrived.columns[0])).tolist())
        leaving = 0 if self._mark is None else bisect_right(self._dues, self._mark)
        if leaving:
            gone, self._dues = self._dues[:leaving], self._dues[leaving:]
            self._known.difference_update(gone)
            keys = Keys((as_column(np.array(gone, np.int64)),), len(gone))
            selection = so_far(self._rows.spine, upper).lookup(keys, time)
            if len(selection):
                columns = tuple(selection.canonical(at) for at in range(len(self._schema.columns)))
                left = Changes(columns, len(selection), (time,), None, 0, -selection.counts)
                past = self._past(left)
                if past.any():
                    pieces.append(left if past.all() else left.filter(past))
        if pieces:
            changes = Changes.concat(pieces)
            self._rows.append(changes, upper)
            self.context.push(changes.with_columns(changes.columns[1:]), 0)

    def _counted(self, arrived: Changes) -> Changes:
        """The rows that enter the output; the others are counted in the events (the counted law)."""
        dues = as_array(arrived.columns[0])
        timeless = dues == NO_DUE
        if timeless.any():
            self._note("no time", arrived.filter(timeless))
            arrived, dues = arrived.filter(~timeless), dues[~timeless]
        if self._mark is None:
            return arrived
        late = self._past(arrived)
        if not late.any():
            return arrived
        self._note("late", arrived.filter(late))
        return arrived.filter(~late)

    def _past(self, rows: Changes) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which rows the mark has passed. All of them have a time."""
        assert self._mark is not None
        operator, dues = self.node.operator, as_array(rows.columns[0])
        assert isinstance(operator, Expire)
        past: np.ndarray[Any, np.dtype[np.bool_]] = dues <= self._mark
        if self._mark == END and operator.column is not None:
            ticks = ticks_of(rows.columns[operator.column + 1])
            past &= ticks <= END - np.int64(operator.span)
        return past

    def _note(self, kind: str, changes: Changes) -> None:
        operator = self.node.operator
        assert isinstance(operator, Expire)
        inserted = np.maximum(changes.consolidate().diff_array(), 0).sum()
        if inserted:
            self.context.note(kind, what="expire", stream=operator.stream, rows=int(inserted))

    def _pass(self, marks: Changes, time: Timestamp, upper: Antichain) -> None:
        """Let the greatest of the marks take the place of the former mark, for each shard of this worker."""
        mark = max(marks.columns[1].to_pylist())
        if self._mark is not None and mark <= self._mark:
            return
        shards = marks.columns[0].unique()
        fresh = Changes(
            (shards, as_column(np.full(len(shards), mark))), len(shards), (time,), None, 1, None
        )
        pieces = [fresh]
        old = so_far(self._marks.spine, upper).lookup(Keys((shards,), len(shards)), time)
        if len(old):
            columns = (old.canonical(0), old.canonical(1))
            pieces.append(Changes(columns, len(old), (time,), None, 0, -old.counts))
        self._marks.append(Changes.concat(pieces), upper)
        self._mark = mark

    def boundary(self, epoch: int) -> None:
        settle(self._rows.spine, epoch, self.node.depth)
        settle(self._marks.spine, epoch, self.node.depth)
