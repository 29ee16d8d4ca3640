"""Following an output: the changes of each epoch, handed to a sink in order, once, and written by the sink's thread.

Users get a `Sink` from ``run.for_each_epoch``, ``write_parquet`` and ``write_delta``. It has a queue of complete
epochs, and a thread that writes the queue, one epoch after the other, by calling a `Destination`. The run fills the
queues of its sinks (`SinkQueues`) at each boundary between epochs. Laws:

- **In order, once.** A sink is given every epoch from its first one on, each at that epoch's own boundary, also when
  several were committed without waiting. A refused epoch is never given.
- **Independence.** The queue does not depend on the run: the sink goes on when the run is closed or dies. A sink that
  fails stops, and keeps its error; the run goes on.
- **Bounded.** Where a sink is behind by `MOST_EPOCHS` or `MOST_BYTES`, the run waits for the sink before it takes
  another epoch. The run waits without its lock, so the function that writes may use the run.
- **No silent gaps.** When the changes of an epoch cannot be read, the sink fails. When past epochs cannot be read one
  by one, the sink gets all their changes as one epoch, and `from_epoch` says since when.

>>> import pyarrow as pa
>>> table = pa.table({"word": ["sea"], "diff": [1]})
>>> seen = []
>>> with Sink(
...     "words", "a list", lambda changes: seen.append((changes.epoch, len(changes)))
... ) as sink:
...     sink.give(EpochChanges("words", table, 0))
...     sink.give(EpochChanges("words", table, 1))
...     sink.wait()
<Sink of 'words' to a list: epoch 1>
>>> seen, sink
([(0, 1), (1, 1)], <Sink of 'words' to a list: epoch 1, closed>)

Cost: memory for the changes that are not written yet, and 0.15 ms for each epoch.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from threading import Condition, Thread, current_thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from riverrun import interrupts
from riverrun.attributes import missing_attribute
from riverrun.errors import OperatorFailed, PlanError, RiverrunError
from riverrun.forks import ProcessMark
from riverrun.retry import persist
from riverrun.rows.records import as_record_batch, canonical_columns
from riverrun.run.options import check_timeout
from riverrun.run.result import Result
from riverrun.state.changes import Changes
from riverrun.state.columns import as_column
from riverrun.state.schema import free_name
from riverrun.state.types import declared_schema

MOST_EPOCHS = 64
MOST_BYTES = 256 << 20
FINISH = 30.0
"""Seconds that a closing sink has for writing its queue."""


class EpochChanges(Result):
    """The changes of the epochs from `from_epoch` to `epoch` in an output; as a rule these are one epoch."""

    def __init__(
        self,
        name: str,
        table: pa.Table,
        epoch: int,
        from_epoch: int | None = None,
        *,
        whole: bool = False,
    ) -> None:
        super().__init__(name, epoch, table.schema, lambda: table)
        self.from_epoch = epoch if from_epoch is None else from_epoch
        self.whole = whole
        """Whether these are all rows as of `epoch`, whatever `from_epoch` says."""


def content(result: Result) -> pa.Table:
    """The rows of a result, each once, with a last column that says how often the row is there."""
    rows, schema = result.to_arrow(), result.schema
    ones = as_column(np.ones(rows.num_rows, np.int64))
    whole = schema.append(pa.field(free_name("diff", schema.names, any_case=True), pa.int64()))
    return added_up(schema, whole, pa.table([*rows.columns, ones], schema=whole))


def added_up(schema: pa.Schema, whole: pa.Schema, *tables: pa.Table) -> pa.Table:
    """Tables of rows and a last column of diffs as one, equal rows added up, as the engine does it."""
    pieces, schema = [], declared_schema(schema)
    for batch in (b for table in tables for b in table.combine_chunks().to_batches()):
        columns = canonical_columns(batch, schema)
        diffs = np.array(batch.column(len(schema)), np.int64)
        pieces.append(Changes(columns, batch.num_rows, ((0,),), None, 0, diffs))
    if not pieces:
        return whole.empty_table()
    total = Changes.concat(pieces).consolidate()
    rows = as_record_batch(schema, total.columns, total.rows)
    with_diffs = [*rows.columns, as_column(total.diff_array())]
    return pa.Table.from_batches([pa.record_batch(with_diffs, schema=whole)])


class Sink:
    """Follows an output of a run: made by ``run.for_each_epoch``, ``run.write_parquet`` and ``run.write_delta``."""

    def __init__(
        self,
        name: str,
        place: str,
        write: Callable[[EpochChanges], None],
        *,
        epoch: int | None = None,
        first: int = 0,
        alive: Callable[[], bool] = lambda: True,
        forget: Callable[[Sink], None] | None = None,
        stop: Callable[[], None] | None = None,
    ) -> None:
        """`epoch` is the last epoch that is written already; where there is none, `first` is the first to come.

        `alive` tells whether the run is alive, `forget` takes the sink off the run's list, and `stop` ends the retries
        of `write`.
        """
        self._name = name
        self._place = place
        self._most_epochs = MOST_EPOCHS
        self._most_bytes = MOST_BYTES
        self._write = write
        self._alive = alive
        self._forget = forget
        self._stop = stop
        self._first = first
        self._epoch = epoch
        self._last_queued = epoch
        self._error: RiverrunError | None = None
        self._is_error_seen = False
        self._closing = False
        self._queue: deque[EpochChanges] = deque()
        self._bytes = 0
        self._mark = ProcessMark()
        self._changed = Condition()
        self._thread = Thread(target=self._work, name=f"riverrun-sink-{name}", daemon=True)
        self._thread.start()

    # -- for people

    @property
    def name(self) -> str:
        """The name of the output or state that the sink follows."""
        return self._name

    @property
    def place(self) -> str:
        """Where the sink writes to, as ``run.status()`` shows it."""
        return self._place

    @property
    def epoch(self) -> int | None:
        """The last epoch that is written; None before the first one is."""
        return self._epoch

    @property
    def error(self) -> RiverrunError | None:
        """The error that stopped the sink; None while the sink has not failed."""
        self._is_error_seen = self._is_error_seen or self._error is not None
        return self._error

    def wait(self, epoch: int | None = None, timeout: float | None = None) -> Self:
        """Return when an `epoch` is written, by default the last complete one; raise the error, where it cannot be.

        The call waits for `timeout` seconds at the most; without a timeout, for as long as it takes.
        """
        self._mark.check("wait", repr(self))
        if current_thread() is self._thread:
            raise RiverrunError(
                "sink.itself",
                f"cannot wait for {self!r} in the function that it calls: it would wait for itself",
                hint="wait in the thread that commits",
            )
        if epoch is not None and type(epoch) is not int:
            raise PlanError(
                "sink.epoch",
                f"cannot wait for epoch {epoch!r} in {self!r}: an epoch is a whole number",
                hint="leave it out for the last complete one, or give the number that commit() gave: commit.epoch",
            )
        if timeout is not None:
            hint = "leave it out to wait for as long as it takes"
            check_timeout(timeout, f"wait for {self!r} with", hint=hint)
        with interrupts.deferred(), self._changed:
            asked = self._last_queued if epoch is None else epoch
            interrupts.wait_for(
                self._changed, lambda: self._has(asked) or self._error or self._over(), timeout
            )
            if self._error is not None and not (epoch is not None and self._has(asked)):
                self._is_error_seen = True
                raise self._error
            if self._has(asked):
                return self
            if self._over():
                raise RiverrunError(
                    "sink.never",
                    f"cannot wait for epoch {asked} in {self!r}: it or the run was over before that epoch was complete",
                    hint="wait for epochs that were committed before",
                    epoch=asked,
                )
            raise RiverrunError(
                "sink.late",
                f"waited {timeout} s for epoch {asked} in {self!r}: {len(self._queue)} epochs are to be written, "
                f"and the last one given to it is {self._last_queued}",
                hint="wait longer, or look at run.status()['sinks']",
                epoch=asked,
            )

    def close(self, timeout: float = FINISH) -> None:
        """Write the epochs that are complete by now, and follow no more. Epochs that are not written after `timeout`
        seconds are left out, with a warning."""
        check_timeout(
            timeout, f"close {self!r} with", hint="it is how long the last epochs may take"
        )
        if self._mark.is_ours:
            with interrupts.deferred():
                if self._forget is not None:
                    self._forget(self)
                self._finish(monotonic() + timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        words = ["nothing written yet" if self._epoch is None else f"epoch {self._epoch}"]
        if self._queue:
            words.append(f"{len(self._queue)} to write")
        if self._error is not None:
            words.append(f"failed: {self._error.message}")
        elif self._closing:
            words.append("closed")
        return f"<Sink of {self.name!r} to {self.place}: {', '.join(words)}>"

    if not TYPE_CHECKING:  # a checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, "sink", name, {"output": "sink.name"})

    # -- for the run

    @property
    def active(self) -> bool:
        """Whether the sink is to be given more epochs: it has not failed, and is not closing."""
        return self._error is None and not self._closing

    def give(self, changes: EpochChanges) -> None:
        """Put the changes of an epoch into the queue."""
        size = changes.to_arrow().nbytes
        with self._changed:
            if self.active:
                self._queue.append(changes)
                self._bytes += size
                self._last_queued = changes.epoch
                self._changed.notify_all()

    def fail(self, error: RiverrunError) -> None:
        """Stop writing for good, with this error."""
        with self._changed:
            self._error = self._error or error
            self._queue.clear()
            self._bytes = 0
            self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Return when the queue has room for another epoch (the bounded law)."""
        if current_thread() is not self._thread:
            with interrupts.deferred(), self._changed:
                interrupts.wait_for(self._changed, lambda: not self.active or self._has_room())

    def status(self, completed: int) -> dict[str, Any]:
        """Where the sink stands, for ``run.status()``."""
        done = self._first if self._epoch is None else self._epoch + 1
        error = self._error
        return {
            "name": self.name,
            "place": self.place,
            "epoch": self._epoch,
            "lag": max(completed - done, 0),
            "error": None if error is None else error.message,
        }

    def _has_room(self) -> bool:
        return not self._queue or (
            len(self._queue) < self._most_epochs and self._bytes < self._most_bytes
        )

    def _has(self, epoch: int | None) -> bool:
        return epoch is None or (self._epoch is not None and self._epoch >= epoch)

    def _over(self) -> bool:
        """Whether the queue is empty for good."""
        return not self._queue and (self._closing or not self._alive())

    def _finish(self, deadline: float) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if current_thread() is self._thread:
            return
        interrupts.join(self._thread, max(deadline - monotonic(), 0))
        with self._changed:  # the thread may be about to be done
            is_late = bool(self._thread.is_alive() and self._queue)
            if is_late:
                self.fail(self._unfinished())
        if is_late and self._stop is not None:
            self._stop()
        if self._error is not None and not self._is_error_seen:
            self._is_error_seen = True
            warnings.warn(str(self._error), RuntimeWarning, stacklevel=4)

    def _unfinished(self) -> RiverrunError:
        epochs = [changes.epoch for changes in self._queue]
        return RiverrunError(
            "sink.unfinished",
            f"the sink of {self.name!r} to {self.place} was closed with {len(epochs)} epochs unwritten, from "
            f"{epochs[0]} to {epochs[-1]}: they took too long, or it was interrupted",
            hint="sink.wait() before closing. A sink to files makes up for it when a run that was resumed "
            "(checkpoint=) writes to the same place",
            epochs=epochs,
        )

    # -- the thread

    def _work(self) -> None:
        while (changes := self._next()) is not None:
            try:
                self._write(changes)
            except BaseException as error:
                self.fail(self._wrapped(error, changes))
                return
            with self._changed:
                self._epoch = changes.epoch
                if self._error is None:
                    self._queue.popleft()
                    self._bytes -= changes.to_arrow().nbytes
                self._changed.notify_all()

    def _next(self) -> EpochChanges | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing or self._error)
            return self._queue[0] if self._queue and self._error is None else None

    def _wrapped(self, error: BaseException, changes: EpochChanges) -> RiverrunError:
        if isinstance(error, RiverrunError):
            return error
        wrapped = OperatorFailed(
            "sink.failed",
            f"cannot write epoch {changes.epoch} of {self.name!r} to {self.place}: "
            f"{type(error).__name__}: {error}",
            hint="the cause has the traceback; the run goes on without this sink",
            epoch=changes.epoch,
        )
        wrapped.__cause__ = error
        return wrapped


class SinkQueues:
    """The sinks of one run, and `next`, the next epoch that they are to be given."""

    def __init__(self) -> None:
        self.next = 0
        self._sinks: list[Sink] = []

    def __bool__(self) -> bool:
        return any(sink.active for sink in self._sinks)

    def add(self, sink: Sink, completed: int) -> None:
        """Have a sink follow from the epoch `completed` on; the other sinks have been given all earlier epochs."""
        self._sinks.append(sink)
        self.next = completed

    def forget(self, sink: Sink) -> None:
        """Give a sink no more epochs."""
        self._sinks = [each for each in self._sinks if each is not sink]

    def hand_out(self, completed: int, changes: Callable[[str, int], Result]) -> None:
        """Give the changes of each complete epoch to all active sinks, once."""
        sinks = [sink for sink in self._sinks if sink.active]
        if not sinks:
            self.next = completed
        while self.next < completed:
            epoch = self.next
            outcomes: dict[str, EpochChanges | RiverrunError] = {}
            for output in dict.fromkeys(sink.name for sink in sinks):
                try:
                    outcomes[output] = _fetched(output, epoch, changes)
                except RiverrunError as error:
                    outcomes[output] = error
            # All changes are read before any sink is given some: an interrupt while reading leaves no sink ahead of
            # another (the in-order law).
            for sink in sinks:
                outcome = outcomes[sink.name]
                if isinstance(outcome, EpochChanges):
                    sink.give(outcome)
                else:  # the no-silent-gaps law
                    sink.fail(outcome)
            self.next = epoch + 1

    def wait_for_room(self) -> None:
        """Return when each sink has room for another epoch."""
        for sink in list(self._sinks):
            sink.wait_for_room()

    def finish(self, timeout: float = FINISH) -> None:
        """Let all sinks write their queues, in `timeout` seconds together."""
        deadline = monotonic() + timeout
        with (
            ExitStack() as ending
        ):  # each sink is finished, even where the warning of another one is raised
            for sink in reversed(self._sinks):
                ending.callback(sink._finish, deadline)

    def status(self, completed: int) -> list[dict[str, Any]]:
        """Where each sink stands."""
        return [sink.status(completed) for sink in self._sinks]


def _fetched(output: str, epoch: int, changes: Callable[[str, int], Result]) -> EpochChanges:
    """The changes of an epoch, read from the workers; tried again while a lost worker is replaced."""
    what = f"tell what epoch {epoch} changed in {output!r}"
    return EpochChanges(output, persist(lambda: changes(output, epoch).to_arrow(), what), epoch)
