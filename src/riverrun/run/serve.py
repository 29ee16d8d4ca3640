"""Serving: how a run on Spark answers its data source "riverrun".

A `Run` has one `Serving`; tasks and streams of Spark ask it through the endpoint of the driver. It serves results and
streams of changes:

- *Results are lent.* Workers hold an opened result under a number, until `LENT` newer results were opened. A task
  whose worker is lost asks here which worker lends the rows now (`runtime.network.lending`).
- *Changes are fed.* Each stream has a feed of its own. From the stream's first question on, the feed keeps the changes
  of every epoch, until the stream says that it has them; a feed whose stream is silent for `SILENT` seconds is given
  up. Where a stream lags, commits wait for it. A stream that stops, and starts again before its feed is given up, gets
  the changes that came meanwhile.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Condition, Lock
from typing import Any, Protocol

import pyarrow as pa

from riverrun.engine.reading import Portion
from riverrun.errors import RiverrunError, TimeViolation
from riverrun.rows.records import narrowed
from riverrun.run.result import Result
from riverrun.run.sinks.destination import Destination
from riverrun.run.sinks.function import Function
from riverrun.run.sinks.queue import EpochChanges, Sink
from riverrun.runtime.network.lending import Borrowed, Loan
from riverrun.state.schema import free_name

LENT = 256
SILENT = 60.0
MOST = 256 << 20
HANDOVER = 5.0  # seconds that a feed waits for the feed whose changes it takes over


class ServedRun(Protocol):
    """What a run has for other processes."""

    def read(self, name: str, epoch: int | None = None) -> Result: ...

    def changes(self, name: str, epoch: int | None = None) -> Result: ...

    def schema(self, name: str) -> pa.Schema: ...


class Serving:
    """Answers the questions about one run. Many threads may ask."""

    def __init__(self, run: ServedRun, follow: Callable[[str, Destination], Sink]) -> None:
        """`follow` begins a sink of the run."""
        self._run = run
        self._begin_sink = follow
        self._lent: OrderedDict[str, Sequence[Portion]] = OrderedDict()
        self._feeds: dict[str, _StreamedOutput] = {}
        self._lock = Lock()
        self._number = 0

    def questions(self) -> dict[str, Any]:
        """The questions that can be asked, by name, each with the function that answers."""
        return {
            "schema": self._schema,
            "open": self._open,
            "renew": self._renew,
            "gone": self._gone,
            "follow": self._follow,
            "passed": self._passed,
        }

    def lend(self, result: Result) -> str:
        """Keep a result, and return the number by which tasks ask for it."""
        with self._lock:
            self._number += 1
            name = str(self._number)
            self._lent[name] = result.portions
            while len(self._lent) > LENT:
                self._lent.popitem(last=False)
            return name

    def _result(self, asked: Mapping[str, Any]) -> Result:
        output, epoch = asked["output"], asked["epoch"]
        read = self._run.changes if asked["changes"] else self._run.read
        return read(output, epoch)

    def _schema(self, asked: Mapping[str, Any]) -> bytes:
        if asked["lent"] is not None:
            schema = self._portions(asked["lent"])[0].schema
        else:
            schema = self._run.schema(asked["output"])
            if asked["changes"]:
                schema = of_changes(schema)
        serialized: bytes = schema.serialize().to_pybytes()
        return serialized

    def _open(self, asked: Mapping[str, Any]) -> list[Any]:
        """For each portion: the lenders, by address and number; a column that is the same for all rows, or None; and
        what a task says when a lender is lost."""
        name, added = asked["lent"], None
        if name is None:
            result = self._result(asked)
            name = self.lend(result)
            if asked["changes"]:
                added = of_changes(self._run.schema(asked["output"])).names[-1], result.epoch
        return [
            (_lenders(each.loans), added, (name, at, each.ordered, each.what))
            for at, each in enumerate(self._portions(name))
            if isinstance(each, Borrowed)
        ]

    def _renew(self, asked: Mapping[str, Any]) -> list[tuple[str, int]]:
        """The lenders of the rows, now that a lender is lost."""
        return _lenders(self._borrowed(asked).renew(asked["lease"]))

    def _gone(self, asked: Mapping[str, Any]) -> bool:
        """Whether a lender was given up: a lender that is stopped, or cut off, cannot say so itself."""
        return self._borrowed(asked).gone(asked["address"])

    def _borrowed(self, asked: Mapping[str, Any]) -> Borrowed:
        portion = self._portions(asked["lent"])[asked["portion"]]
        assert isinstance(portion, Borrowed)
        return portion

    def _portions(self, name: str) -> Sequence[Portion]:
        with self._lock:
            portions = self._lent.get(name)
        if portions is None:
            raise TimeViolation(
                "time.compacted",
                f"cannot read result {name}: {LENT} others were read since",
                hint="read it again",
            )
        return portions

    # ---- streams of changes

    def _follow(self, asked: Mapping[str, Any]) -> int:
        name, output, start = asked["feed"], asked["output"], asked["start"]
        with self._lock:
            for gone in [each for each, feed in self._feeds.items() if feed.abandoned]:
                self._feeds.pop(gone).close()
            feed = self._feeds.get(name)
            others = [
                each
                for each in self._feeds.values()
                if each.output == output and each.covers(start)
            ]
        if feed is None or not feed.covers(start):
            if feed is not None:
                feed.close()
            feed = _StreamedOutput(
                self._run.schema(output), self._begin_sink, output, start, others
            )
            with self._lock:
                self._feeds[name] = feed
        feed.heard()
        return feed.end

    def _passed(self, asked: Mapping[str, Any]) -> None:
        feed = self._feeds.get(asked["feed"])
        if feed is not None:
            feed.passed(asked["end"])

    def rows(self, ticket: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The changes that a feed keeps, from one epoch up to another, which is not included."""
        (_, name, start, end), columns, where = ticket
        feed = self._feeds.get(name)
        if feed is None:
            raise TimeViolation(
                "time.compacted",
                f"cannot give changes from epoch {start} on: nobody took them for {SILENT:.0f} s",
                hint="start the query again",
            )
        schema = feed.schema
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        batches = feed.batches(start, end)
        return schema, (narrowed(batch, columns, where) for batch in batches)

    def close(self) -> None:
        with self._lock:
            feeds = list(self._feeds.values())
        for feed in feeds:
            feed.close()


def _lenders(loans: Sequence[Loan]) -> list[tuple[str, int]]:
    return [(loan.address, loan.lease) for loan in loans]


def of_changes(columns: pa.Schema) -> pa.Schema:
    """The columns of changes, as Spark sees them: those of the output, the diff and the epoch."""
    columns = columns.append(pa.field(free_name("diff", columns.names, any_case=True), pa.int64()))
    return columns.append(pa.field(free_name("epoch", columns.names, any_case=True), pa.int64()))


class _StreamedOutput(Function):
    """The changes of an output since a stream began to follow it: the destination of a sink of the run."""

    def __init__(
        self,
        schema: pa.Schema,
        follow: Callable[[str, Destination], Sink],
        output: str,
        start: int,
        others: Sequence[_StreamedOutput],
    ) -> None:
        """`others` are feeds of the same output that have all changes since `start`, which the run may not have any
        more."""
        super().__init__(self._take, "", output)
        self.output = output
        self.schema = of_changes(schema)
        self._start = start
        self._tables_by_epoch: dict[int, pa.Table] = {}
        self._lump = -1  # the epoch as of which all rows were given at once
        self._bytes = 0
        self._heard = time.monotonic()
        self._changed = Condition()
        self._over = False
        self.end = start
        self._from: int | str = "all"
        self._others = others
        self._sink: Sink | None = None
        self._sink = follow(output, self)
        self._others = ()
        self._sink.wait()

    def first(self, start: int | str, completed: int) -> int:
        """At the boundary at which the sink begins: take over what another feed has; the epoch after that."""
        for other in self._others[:1]:
            with suppress(RiverrunError):
                if other._sink is not None:
                    other._sink.wait(timeout=HANDOVER)
                self._take_over(other)
        self._from = self.end or "all"
        first = super().first(self._from, completed)
        self.end = max(self.end, completed) if completed else 0
        return first

    def is_whole_welcome(self, start: int | str) -> bool:
        return self._from == "all"

    @property
    def abandoned(self) -> bool:
        """Whether no stream asks for the feed any more."""
        is_over = self._sink is not None and not self._sink.active
        return time.monotonic() - self._heard > SILENT or is_over

    def covers(self, start: int) -> bool:
        """Whether the feed has all changes from an epoch on."""
        return start == self._start or start > max(self._start, self._lump)

    def heard(self) -> None:
        """Note a sign of life of the stream."""
        self._heard = time.monotonic()

    def _take_over(self, other: _StreamedOutput) -> None:
        with other._changed:
            self._tables_by_epoch = {
                epoch: table
                for epoch, table in other._tables_by_epoch.items()
                if epoch >= self._start
            }
            self._lump, self.end = other._lump, max(other.end, self._start)
        self._bytes = sum(table.nbytes for table in self._tables_by_epoch.values())

    def _take(self, changes: EpochChanges, epoch: int) -> None:
        """In the thread of the sink: keep the changes of an epoch; wait while the feed keeps too much."""
        table = changes.to_arrow()
        with self._changed:
            self._changed.wait_for(
                lambda: self._over or self.abandoned or self._bytes < MOST, timeout=SILENT
            )
            if self._over or self.abandoned:
                raise TimeoutError("the stream does not take its changes any more")
            if table.num_rows:
                self._tables_by_epoch[epoch] = table
                self._bytes += table.nbytes
            if changes.from_epoch < epoch:
                self._lump = epoch
            self.end = max(self.end, epoch + 1)

    def passed(self, end: int) -> None:
        """The stream has all epochs below `end`."""
        with self._changed:
            self._heard = time.monotonic()
            for epoch in [each for each in self._tables_by_epoch if each < end]:
                self._bytes -= self._tables_by_epoch.pop(epoch).nbytes
            self._start = max(self._start, end)
            self._changed.notify_all()

    def batches(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        with self._changed:
            self._heard = time.monotonic()
            tables = [
                (epoch, table)
                for epoch, table in self._tables_by_epoch.items()
                if start <= epoch < end
            ]
        for epoch, table in tables:
            for batch in table.to_batches():
                epochs = pa.repeat(pa.scalar(epoch, pa.int64()), batch.num_rows)
                yield pa.record_batch([*batch.columns, epochs], schema=self.schema)

    def close(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        if self._sink is not None:
            self._sink.close(timeout=1.0)
