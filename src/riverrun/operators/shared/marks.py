"""Marks: how far the updates to a state, and the fetches from it, have come, in times of the data.

Each state has one `MarkProgress`, which its store and its fetches ask. It keeps two numbers, both of a time that is a
column of the data. *Update progress* U: no update at a time before U will count any more, so values before U are final.
*Fetch progress* F: no fetch at a time before F will be answered any more, so values before F need not be told apart.
Each number is the least of the marks that its *reporters* have reported. A reporter is a stream: either its times lag
behind its greatest time by no more than a given span, or it reports its progress explicitly. Laws:

- **No way back.** U and F never go back, and F is never after U.
- **Everywhere alike.** As of a time t of the engine, U and F depend on the reports at times up to t, not on the order
  of these reports, nor on the worker to which they came. Every worker hears all reports, and has the same numbers.
- **Slowest counts.** Of a reporter with several sources, the least mark counts. A source or a reporter that was silent
  for as many epochs as its `idle=` allows does not count, while others do.
- **Saved once.** U, F and the marks behind them are part of a checkpoint, written once. Every worker of the next
  execution has all of them, whatever the number of workers.

U and F are values of the state, like its rows. The `upper` and `since` of its spine are about epochs instead.

Cost: microseconds for each report; one small message to every worker for each batch of a stream.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riverrun.errors import OperatorFailed
from riverrun.operators.arrange import Consolidate
from riverrun.operators.expire import ticks_of
from riverrun.plan.operator import Actor, Context, Linear, Operator, by_time
from riverrun.progress import Antichain, Timestamp
from riverrun.state import Schema
from riverrun.state.changes import Changes
from riverrun.state.columns import as_column
from riverrun.state.view import View, deferred

Side = Literal["update", "fetch", "clock"]
_SIDES = {"update": "updates", "fetch": "fetches", "clock": "ticks"}
MARKS = pa.schema({"source": pa.large_string(), "mark": pa.int64()})
MOVED = pa.schema({"update": pa.int64(), "fetch": pa.int64()})
PROGRESS = ":progress"  # the node is named by the state, and this behind it
_SAVED = Schema.of(
    {"reporter": pa.int64(), "source": pa.large_string()},
    {"mark": pa.int64(), "seen": pa.int64()},
    everywhere=True,
)
_FIRST = -(1 << 63)
_U, _F, _MOVES = -1, -2, -3
"""Numbers in place of a reporter's in a checkpoint: of U, of F, and of how often these have moved."""


@dataclass(frozen=True)
class Marks(Linear):
    """The marks of a stream: the greatest time of each batch and source, less the span by which rows may be late."""

    column: int
    late: int = 0
    by: int | None = None
    kind: ClassVar[str] = "marks"

    @property
    def dealt_by(self) -> None:
        return None

    def describe(self) -> str:
        return "greatest time" + (f", less {self.late}" if self.late else "")

    def identity(self) -> str:
        by = "" if self.by is None else f" of each source in column {self.by}"
        return f"{self.describe()}, of column {self.column}{by}"

    @property
    def from_content(self) -> bool:
        return False  # deleting the latest row does not take its time back

    @property
    def used(self) -> list[int]:
        return [self.column] if self.by is None else [self.column, self.by]

    def apply(self, changes: Changes) -> Changes | None:
        marks_by_time = [self._of(piece) for _, piece in by_time(changes)]
        marks = [each for each in marks_by_time if each is not None]
        return Changes.concat(marks) if marks else None

    def _of(self, changes: Changes) -> Changes | None:
        """The marks of one time."""
        times = changes.columns[self.column]
        sources = None if self.by is None else changes.columns[self.by]
        counts = times.is_valid() if times.null_count else None
        if changes.diffs is not None or changes.diff < 0:
            inserted = as_column(changes.diff_array() > 0)
            counts = inserted if counts is None else pc.and_(counts, inserted)
        if counts is not None:
            times = times.filter(counts)
            sources = None if sources is None else sources.filter(counts)
        if not len(times):
            return None
        ticks = ticks_of(times)
        if sources is None:
            named, marks = [""], [int(ticks.max())]
        else:
            table = pa.table({"source": sources.cast(pa.large_string()), "tick": as_column(ticks)})
            table = table.group_by("source").aggregate([("tick", "max")])
            named = table["source"].to_pylist()
            marks = table["tick_max"].to_pylist()
        least = [max(mark - self.late, _FIRST) for mark in marks]
        columns = (pa.array(named, pa.large_string()), pa.array(least, pa.int64()))
        return Changes(columns, len(marks), changes.times, None, 1, None)


@dataclass(frozen=True)
class Applied(Linear):
    """Replies to updates: a state says that it made changes, without the changes."""

    kind: ClassVar[str] = "replies"

    def apply(self, changes: Changes) -> Changes | None:
        return None


@dataclass(frozen=True)
class Await(Consolidate):
    """Holds marks back until the state has replied to the updates before them (the second input).

    Without this operator marks travel beside the updates and arrive as soon as these: that is update progress
    acceleration. A state whose progress operator does not stand right behind its updates needs the replies. Where the
    progress operator does stand there, the replies cost two more hops for the same result.
    """

    kind: ClassVar[str] = "await replies"


@dataclass(frozen=True)
class Reporter:
    """A reporter: its name for people, its side, and after how many silent epochs it does not count any more.

    A reporter that `says` its progress explicitly must not take a report back; the others report greatest times.
    """

    name: str
    side: Side
    says: bool = False
    idle: int | None = None


@dataclass(frozen=True)
class MarkProgress(Operator):
    """U and F of a state. Input i has the marks of reporter i, sent to all workers; one reporter may be the clock.

    On every worker, the output has a row whenever U or F moves.
    """

    state: str
    reporters: tuple[Reporter, ...] = ()
    begins: int | None = None
    """U before anything is reported."""
    kind: ClassVar[str] = "progress"
    common_figures: ClassVar[frozenset[str]] = frozenset({"update", "fetch"})
    keeps_state: ClassVar[bool] = True

    def describe(self) -> str:
        named = ", ".join(f"{_SIDES[each.side]} of {each.name}" for each in self.reporters)
        return f"progress of {self.state!r}: {named or 'nobody reports'}"

    def identity(self) -> str:
        # The inputs say who reports: names of reporters do not count.
        reports = [(each.side, each.says, each.idle) for each in self.reporters]
        return f"progress of {self.state!r}: {reports} {self.begins}"

    @property
    def from_content(self) -> bool:
        return False

    def with_reporter(self, reporter: Reporter) -> MarkProgress:
        return replace(self, reporters=(*self.reporters, reporter))

    def start(self, context: Context) -> Progressing:
        return Progressing(context, self)


@dataclass(frozen=True, slots=True)
class _SourceMark:
    """The mark that a source has reported, and the epoch of its last report."""

    value: int
    seen: int


@dataclass(frozen=True, slots=True)
class Known:
    """U and F, from a time on; None: nothing is known yet."""

    time: Timestamp
    update: int | None
    fetch: int | None
    moves: int = 0
    """How often U or F has moved: the same number on every worker, and after any loss."""


class Progressing(Actor):
    """U and F on a worker: the same numbers on every one."""

    def __init__(self, context: Context, operator: MarkProgress) -> None:
        super().__init__(context)
        self._operator = operator
        self._marks: list[dict[str, _SourceMark]] = [{} for _ in operator.reporters]
        self._held: dict[Timestamp, list[tuple[int, Changes]]] = {}
        self._log = [self._restored(context)]

    def at(self, time: Timestamp) -> Known:
        """U and F as of a time, with all reports at times up to it."""
        return next(known for known in reversed(self._log) if known.time <= time)

    def after(self, time: Timestamp) -> list[Known]:
        """U and F as of later times, as far as known: in a loop, progress may be rounds ahead."""
        return [known for known in self._log if known.time > time]

    def before(self, time: Timestamp) -> Known:
        """U and F before a time."""
        return next(known for known in reversed(self._log) if known.time < time)

    @property
    def last(self) -> Known:
        """U and F by now."""
        return self._log[-1]

    def receive(self, port: int, changes: Changes) -> None:
        for time, piece in by_time(changes):
            if time not in self._held:
                self._held[time] = []
                self.context.request(time)
            self._held[time].append((port, piece))

    def run(self, time: Timestamp, upper: Antichain) -> None:
        reported: dict[tuple[int, str], int] = {}
        for port, changes in self._held.pop(time):
            if self._operator.reporters[port].side != "clock":
                sources, marks = (column.to_pylist() for column in changes.columns)
                for source, mark in zip(sources, marks, strict=True):
                    reported[port, source] = max(mark, reported.get((port, source), mark))
        for (port, source), mark in reported.items():
            self._report(port, source, mark, time[0])
        last = self._log[-1]
        update = _later(last.update, self._least("update", time[0]))
        fetch = self._least("fetch", time[0])
        if fetch is not None:
            fetch = None if update is None else min(fetch, update)
        fetch = _later(last.fetch, fetch)
        if (update, fetch) != (last.update, last.fetch):
            self._log.append(Known(time, update, fetch, last.moves + 1))
            columns = [
                as_column(np.array([mark or 0]), np.array([mark is not None]))
                for mark in (update, fetch)
            ]
            self.context.push(Changes.of(columns, time), 0)

    def _report(self, port: int, source: str, mark: int, epoch: int) -> None:
        marks, reporter = self._marks[port], self._operator.reporters[port]
        known = marks.get(source)
        if known is not None and mark < known.value:
            if reporter.says:
                whose = f" for source {source!r}" if source else ""
                raise OperatorFailed(
                    "progress.went_back",
                    f"progress of {self._operator.state!r} went back: {reporter.name} reported {mark}{whose} after "
                    f"{known.value}, which promised that nothing before {known.value} would come",
                    hint="report the least time that can still come; it only grows",
                    state=self._operator.state,
                    reported=mark,
                    before=known.value,
                )
            mark = known.value
        marks[source] = _SourceMark(mark, epoch)

    def _least(self, side: Side, epoch: int) -> int | None:
        """The least mark of one side (the slowest-counts law)."""
        active: list[int] = []
        idle: list[int] = []
        for reporter, marks in zip(self._operator.reporters, self._marks, strict=True):
            if reporter.side != side:
                continue
            limit = reporter.idle
            for mark in marks.values():
                is_idle = limit is not None and epoch - mark.seen >= limit
                (idle if is_idle else active).append(mark.value)
            if not marks and (limit is None or epoch + 1 < limit):
                return None  # this reporter has not reported yet, and still may
        return min(active or idle, default=None)

    def boundary(self, epoch: int) -> None:
        del self._log[:-1]

    def figures(self) -> dict[str, dict[str, Any]]:
        known = self._log[-1]
        # Not the name in the operator: inside a loop the node's name has more than that.
        name = self.node.name.removesuffix(PROGRESS)
        return {name: {"update": known.update, "fetch": known.fetch, "pending": 0}}

    def saved(self, epoch: int) -> dict[str, View]:
        known = self._log[-1]
        rows = [
            (number, source, mark.value, mark.seen)
            for number, marks in enumerate(self._marks)
            for source, mark in marks.items()
        ]
        rows += [
            (number, "", value, 0)
            for number, value in ((_U, known.update), (_F, known.fetch), (_MOVES, known.moves))
            if value is not None
        ]
        time = (epoch - 1, *(0,) * (self.node.depth - 1))

        def make() -> Changes | None:
            if epoch == 0:
                return None  # no reports yet
            columns = zip(*rows, strict=True)
            fields = zip(columns, _SAVED.columns, strict=True)
            return Changes.of([pa.array(column, field.type) for column, field in fields], time)

        name = self.node.name
        return {name: deferred(name, _SAVED, epoch, self.node.depth, make)}

    def _restored(self, context: Context) -> Known:
        saved = context.restored(_SAVED)
        values: dict[int, int | None] = {_U: self._operator.begins}
        for row in [] if saved is None else saved.to_pylist():
            number = row["reporter"]
            if number < 0:
                values[number] = row["mark"]
            else:
                self._marks[number][row["source"]] = _SourceMark(row["mark"], row["seen"])
        return Known((-1,), values[_U], values.get(_F), values.get(_MOVES) or 0)


def _later(one: int | None, other: int | None) -> int | None:
    """The greater of two, either of which may be unknown."""
    if one is None or other is None:
        return one if other is None else other
    return max(one, other)
