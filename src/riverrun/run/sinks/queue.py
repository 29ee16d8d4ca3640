"""Following an output: what each epoch changed in it, handed on in order, once, by a thread of its own.

A `Sink` has a queue of epochs that are complete and not written, and a thread that writes them one
after the other. The run fills the queue (`Followers`) at each boundary. Laws:

1. **In order, once.** A sink is given every epoch from the one it starts at, each at its own
   boundary, also when several were committed without waiting; a refused epoch is never given.
2. **Its own.** What is in the queue depends on the run no more: the sink goes on when the run is
   closed or dies. A sink that fails stops, and keeps its error; the run goes on.
3. **Bounded.** Where a sink is behind by `most_epochs` or `most_bytes`, the run waits for it before
   it takes another epoch; it waits without the run's lock, so what is written may use the run.
4. **Nothing is left out in silence.** When an epoch cannot be told to a sink, the sink fails. When the
   past cannot be told epoch by epoch, it is told as one: `from_epoch` says since when.

>>> import pyarrow as pa
>>> table = pa.table({"word": ["sea"], "diff": [1]})
>>> seen = []
>>> with Sink(
...     "words", "a list", lambda changes: seen.append((changes.epoch, len(changes)))
... ) as sink:
...     sink.give(Followed("words", table, 0))
...     sink.give(Followed("words", table, 1))
...     sink.wait()
<Sink of 'words' to a list: epoch 1>
>>> seen, sink
([(0, 1), (1, 1)], <Sink of 'words' to a list: epoch 1, closed>)

Cost: what a sink is given is held in memory until it is written; 0.15 ms for each epoch besides.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from threading import Condition, Thread, current_thread
from time import monotonic
from typing import Any, Self

import numpy as np
import pyarrow as pa

from riverrun import interrupts
from riverrun.errors import OperatorFailed, PlanError, RiverrunError
from riverrun.forks import ProcessMark
from riverrun.retry import persist
from riverrun.rows.records import as_record_batch, canonical_columns
from riverrun.run.options import check_timeout
from riverrun.run.result import Result
from riverrun.state.changes import Changes
from riverrun.state.schema import free_name
from riverrun.state.types import declared_schema

MOST_EPOCHS = 64
MOST_BYTES = 256 << 20
LOOK = 0.5
"""Seconds after which whoever waits for a sink looks whether the run is still there."""
FINISH = 30.0
"""Seconds that a closing sink has for what it was given."""


class Followed(Result):
    """What the epochs from `from_epoch` to `epoch` changed in an output: one epoch, as a rule."""

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
    """The rows of a result, each once, with how often it is there as a last column."""
    rows, schema = result.to_arrow(), result.schema
    ones = pa.array(np.ones(rows.num_rows, np.int64))
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
    made = [*rows.columns, pa.array(total.diff_array())]
    return pa.Table.from_batches([pa.record_batch(made, schema=whole)])


class Sink:
    """What follows an output of a run: made by its ``for_each_epoch``, ``write_parquet``, ``write_delta``."""

    def __init__(
        self,
        output: str,
        place: str,
        write: Callable[[Followed], None],
        *,
        epoch: int | None = None,
        first: int = 0,
        alive: Callable[[], bool] = lambda: True,
        forget: Callable[[Sink], None] | None = None,
        stop: Callable[[], None] | None = None,
    ) -> None:
        """`epoch` is the last one that is written already; `first` the first to come, where there is none.

        `alive` tells whether the run is; `stop` has `write` try no more.
        """
        self.output = output
        self.place = place
        self.most_epochs = MOST_EPOCHS
        self.most_bytes = MOST_BYTES
        self._write = write
        self._alive = alive
        self._forget = forget
        self._stop = stop
        self._first = first
        self._epoch = epoch
        self._given = epoch
        self._error: RiverrunError | None = None
        self._told = False  # whether anybody has seen the error
        self._closing = False
        self._queue: deque[Followed] = deque()
        self._bytes = 0
        self._mark = ProcessMark()
        self._changed = Condition()
        self._thread = Thread(target=self._work, name=f"riverrun-sink-{output}", daemon=True)
        self._thread.start()

    # -- for people

    @property
    def name(self) -> str:
        """What it is called in ``run.status()``."""
        return f"{self.output} to {self.place}"

    @property
    def epoch(self) -> int | None:
        """The last epoch that is written; None before the first."""
        return self._epoch

    @property
    def error(self) -> RiverrunError | None:
        """Why it stopped; None while it has not failed."""
        self._told = self._told or self._error is not None
        return self._error

    def wait(self, epoch: int | None = None, timeout: float | None = None) -> Self:
        """Return when an `epoch` is written, by default the last complete one; raise why it cannot be.

        It waits for `timeout` seconds at the most; without one, as long as it takes.
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
            asked = self._given if epoch is None else epoch
            interrupts.wait_for(
                self._changed, lambda: self._has(asked) or self._error or self._over(), timeout
            )
            if self._error is not None and not (epoch is not None and self._has(asked)):
                self._told = True
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
                f"and the last one given to it is {self._given}",
                hint="wait longer, or look at run.status()['sinks']",
                epoch=asked,
            )

    def close(self, timeout: float = FINISH) -> None:
        """Write what is complete by now, and follow no more. What takes longer than `timeout` seconds is left."""
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
        return f"<Sink of {self.output!r} to {self.place}: {', '.join(words)}>"

    # -- for the run

    @property
    def active(self) -> bool:
        """Whether it wants to hear of more epochs."""
        return self._error is None and not self._closing

    def give(self, changes: Followed) -> None:
        """Have an epoch written, after those before it."""
        size = changes.to_arrow().nbytes
        with self._changed:
            if self.active:
                self._queue.append(changes)
                self._bytes += size
                self._given = changes.epoch
                self._changed.notify_all()

    def fail(self, error: RiverrunError) -> None:
        """Stop here, for good."""
        with self._changed:
            self._error = self._error or error
            self._queue.clear()
            self._bytes = 0
            self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Return when it may be given another epoch (law 3)."""
        if current_thread() is not self._thread:
            with interrupts.deferred(), self._changed:
                interrupts.wait_for(self._changed, lambda: not self.active or self._has_room())

    def status(self, completed: int) -> dict[str, Any]:
        """Where it stands, for ``run.status()``."""
        done = self._first if self._epoch is None else self._epoch + 1
        error = self._error
        return {
            "name": self.name,
            "output": self.output,
            "epoch": self._epoch,
            "lag": max(completed - done, 0),
            "error": None if error is None else error.message,
        }

    def _has_room(self) -> bool:
        return not self._queue or (
            len(self._queue) < self.most_epochs and self._bytes < self.most_bytes
        )

    def _has(self, epoch: int | None) -> bool:
        return epoch is None or (self._epoch is not None and self._epoch >= epoch)

    def _over(self) -> bool:
        """Whether no epoch will come any more."""
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
        if self._error is not None and not self._told:
            self._told = True
            warnings.warn(str(self._error), RuntimeWarning, stacklevel=4)

    def _unfinished(self) -> RiverrunError:
        epochs = [changes.epoch for changes in self._queue]
        return RiverrunError(
            "sink.unfinished",
            f"the sink of {self.output!r} to {self.place} was closed with {len(epochs)} epochs unwritten, from "
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

    def _next(self) -> Followed | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing or self._error)
            return self._queue[0] if self._queue and self._error is None else None

    def _wrapped(self, error: BaseException, changes: Followed) -> RiverrunError:
        if isinstance(error, RiverrunError):
            return error
        wrapped = OperatorFailed(
            "sink.failed",
            f"cannot write epoch {changes.epoch} of {self.output!r} to {self.place}: "
            f"{type(error).__name__}: {error}",
            hint="the cause has the traceback; the run goes on without this sink",
            epoch=changes.epoch,
        )
        wrapped.__cause__ = error
        return wrapped


class Followers:
    """The sinks of one run, and the next epoch that they are to be given."""

    def __init__(self) -> None:
        self.next = 0
        self._sinks: list[Sink] = []

    def __bool__(self) -> bool:
        return any(sink.active for sink in self._sinks)

    def add(self, sink: Sink, completed: int) -> None:
        """Follow from here on; the others have been given all that is complete."""
        self._sinks.append(sink)
        self.next = completed

    def forget(self, sink: Sink) -> None:
        """Give it no more."""
        self._sinks = [each for each in self._sinks if each is not sink]

    def hand_out(self, completed: int, changes: Callable[[str, int], Result]) -> None:
        """Give each complete epoch to all that follow, once."""
        sinks = [sink for sink in self._sinks if sink.active]
        if not sinks:
            self.next = completed
        while self.next < completed:
            epoch = self.next
            told: dict[str, Followed | RiverrunError] = {}
            for output in dict.fromkeys(sink.output for sink in sinks):
                try:
                    told[output] = _fetched(output, epoch, changes)
                except RiverrunError as error:
                    told[output] = error
            for sink in sinks:  # all of them at once: whoever is interrupted is so before (law 1)
                given = told[sink.output]
                if isinstance(given, Followed):
                    sink.give(given)
                else:  # law 4
                    sink.fail(given)
            self.next = epoch + 1

    def wait_for_room(self) -> None:
        """Return when each may be given another epoch."""
        for sink in list(self._sinks):
            sink.wait_for_room()

    def finish(self, timeout: float = FINISH) -> None:
        """Let all of them write what they were given, in `timeout` seconds together."""
        deadline = monotonic() + timeout
        with ExitStack() as ending:  # each of them, also where the warning of another one is raised
            for sink in reversed(self._sinks):
                ending.callback(sink._finish, deadline)

    def status(self, completed: int) -> list[dict[str, Any]]:
        """Where each stands."""
        return [sink.status(completed) for sink in self._sinks]


def _fetched(output: str, epoch: int, changes: Callable[[str, int], Result]) -> Followed:
    """What an epoch changed, from wherever workers are: one that was lost is replaced meanwhile."""
    what = f"tell what epoch {epoch} changed in {output!r}"
    return Followed(output, persist(lambda: changes(output, epoch).to_arrow(), what), epoch)
