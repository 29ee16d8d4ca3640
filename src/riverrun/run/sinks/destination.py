"""Destinations: the places that sinks write an output to, and the base class of destinations that are files or tables.

A `Sink` (`queue`) follows the run and has its `Destination` write each epoch, whole or not at all. There are three
destinations: a function of the user's (`function`), a folder of Parquet files (`parquet`), a Delta table (`delta`).
Folders and tables are `Kept`: they know their last epoch, and can be read back. Laws for `Kept`:

- **The sum is the result.** The sum of the diffs up to an epoch is the result as of that epoch. A mirror is the result
  as of the last epoch that changed it.
- **Each epoch once.** Rows and their epoch are written in one atomic step: the epoch is in the name of the file, or in
  the transaction of the commit. An epoch that is there already is not written again, whichever process died in between.
- **Nothing is left out.** When the run has gone on, and the epochs that the destination lacks can no longer be read one
  by one, the content of the destination is read back, and its difference to the result is written as one epoch, with
  `riverrun.from_epoch` in the metadata saying since when. So the sum is the result again.
- **One owner.** Files of another run, output or schema are refused, and so is a destination that is ahead of the run.
  Of two sinks that write to one place, the second to write an epoch fails.
- **Read back as written.** A sink counts an epoch as written only if the place holds what a sink of this output wrote.
  A Parquet file carries a checksum of its labels and rows (`riverrun.checksum`), and its epoch both in its name and in
  its labels; the last commit to a Delta table carries the epoch of its transaction. A file where these disagree is
  refused as damaged, by its name. (The files and the log of a Delta table have no checksums: Delta's format has none.)

Epochs that changed nothing leave no trace. Writing is tried again when the disk or the network fails (`retry`).

Cost: for each epoch that changes something, a file or a commit: with few rows on local disk 1 ms for a file, 13 ms for
appending to Delta. A mirror without a key is read and written as a whole. Where epochs were left out, the whole content
is read back; that also happens when the last epochs before a restart changed nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Event
from typing import Protocol
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from riverrun.errors import RiverrunError, SchemaError, TransportError
from riverrun.retry import persist
from riverrun.run.sinks.queue import EpochChanges, added_up
from riverrun.state.schema import free_name


class Destination(Protocol):
    """A place that a sink writes an output to. `shown` is its name for people, `epoch` the last epoch that it has."""

    shown: str
    epoch: int | None

    def first(self, start: int | str, completed: int) -> int:
        """The first epoch that the destination is to be given, of a run with `completed` complete epochs."""

    def is_whole_welcome(self, start: int | str) -> bool:
        """Whether the destination takes all rows as one epoch, where past epochs cannot be read one by one."""

    def write(self, changes: EpochChanges) -> None:
        """Write the changes of an epoch."""


class Kept:
    """A destination that keeps changes under their epoch, and can be read back."""

    retried: tuple[type[Exception], ...] = (OSError, TransportError)

    def __init__(
        self, shown: str, flow: str, output: str, schema: pa.Schema, run: str = ""
    ) -> None:
        """`run` is the identity of the run: runs that do not continue each other have different ones."""
        self.shown = shown
        self.epoch: int | None = None
        self.output = output
        self.schema = schema
        self.identity = {"riverrun.flow": flow, "riverrun.output": output, "riverrun.run": run}
        diff = free_name("diff", schema.names, any_case=True)
        self.changed = schema.append(pa.field(diff, pa.int64()))
        """The columns of changes: those of the output, and the diff."""
        self.stamped = self.changed.append(
            pa.field(free_name("epoch", self.changed.names, any_case=True), pa.int64())
        )
        """The columns of stored changes: those of changes, and the epoch."""
        self._writer = uuid4().hex
        self._over = Event()

    def first(self, start: int | str, completed: int) -> int:
        """The epoch after the last one that the destination has."""
        if self.epoch is None:
            return 0
        if self.epoch >= completed:
            raise RiverrunError(
                "sink.ahead",
                f"cannot write {self.output!r} to {self.shown}: it has epoch {self.epoch} already, and the run has "
                f"completed {completed} epochs",
                hint="resume the run that wrote it, with the same checkpoint= path, or write to a new place",
                epoch=self.epoch,
            )
        return self.epoch + 1

    def is_whole_welcome(self, start: int | str) -> bool:
        """Always: the rows that are there already are taken off (the nothing-is-left-out law)."""
        return True

    def write(self, changes: EpochChanges) -> None:
        """Store the changes of an epoch; try again after failures of the disk, the network or the store."""
        tried = False

        def store() -> None:
            nonlocal tried
            again, tried = tried, True
            try:
                self._store(changes, again=again)
            except self.retried as error:
                away = _away(error)
                raise away from (None if away is error else error)
            except (pa.ArrowException, ValueError) as error:
                raise SchemaError(
                    "sink.rows",
                    f"cannot write epoch {changes.epoch} of {self.output!r} to {self.shown}: {error}",
                    hint="cast the column it names to a type that the files can hold",
                    epoch=changes.epoch,
                ) from error

        what = f"write epoch {changes.epoch} of {self.output!r} to {self.shown}"
        try:
            persist(store, what, code="sink.unreachable", wait=self._over.wait)
        except TransportError as error:
            last = error.__cause__
            raise error from ((last and last.__cause__) or last)  # what the disk or the store said
        self.epoch = changes.epoch

    def stop(self) -> None:
        """End the retries of `write`."""
        self._over.set()

    def content(self) -> pa.Table:
        """All changes that the destination has, in the columns of `changed`."""
        raise NotImplementedError

    def _store(self, changes: EpochChanges, again: bool) -> None:
        raise NotImplementedError

    def _table(self, changes: EpochChanges) -> pa.Table:
        """The changes to write for an epoch, or for several at once (the nothing-is-left-out law)."""
        table = pa.table(changes.to_arrow().columns, schema=self.changed)
        if not changes.whole or self.epoch is None:
            return table
        stored = self.content()
        negated = pc.negate(stored.column(stored.num_columns - 1))
        stored = stored.set_column(
            stored.num_columns - 1, stored.field(stored.num_columns - 1), negated
        )
        return self._added_up(table, stored)

    def _added_up(self, *tables: pa.Table) -> pa.Table:
        return added_up(self.schema, self.changed, *tables)

    def _labels(self, changes: EpochChanges) -> dict[str, str]:
        return {
            **self.identity,
            "riverrun.epoch": str(changes.epoch),
            "riverrun.from_epoch": str(changes.from_epoch),
            "riverrun.writer": self._writer,
        }

    def _check_identity(self, labels: Mapping[str, str], what: str) -> None:
        theirs = {name: labels.get(name) for name in self.identity}
        if theirs != self.identity:
            raise self._foreign(
                f"{what} says {_listed(theirs)}, and this is {_listed(self.identity)}"
            )

    def _foreign(self, why: str) -> RiverrunError:
        return RiverrunError(
            "sink.foreign",
            f"cannot write {self.output!r} to {self.shown}: {why}",
            hint="a place belongs to one output of one run, with one schema: write to a new one, or resume the run "
            "that wrote it, with the same checkpoint= path",
            output=self.output,
        )

    def _damaged(self, what: str, why: object) -> RiverrunError:
        return RiverrunError(
            "sink.damaged",
            f"cannot write {self.output!r} to {self.shown}: {what} is damaged: {why}",
            hint="put a copy of the file back; or write to a new place, where a sink begins with the whole result",
            output=self.output,
            damaged=what,
        )

    def _taken(self, epoch: int) -> RiverrunError:
        return RiverrunError(
            "sink.taken",
            f"cannot write epoch {epoch} of {self.output!r} to {self.shown}: somebody else has written it",
            hint="one sink writes to a place at a time: is another run of this flow alive?",
            epoch=epoch,
        )


def _away(error: Exception) -> TransportError:
    """A failure of the disk, the network or the store as an error that is tried again."""
    if isinstance(error, TransportError):
        return error
    return TransportError(
        "storage.unreachable",
        f"{type(error).__name__}: {error}",
        hint="check the disk, the network and the store; a resumed run makes up for what is missing",
    )


def _listed(fields: Mapping[str, str | None]) -> str:
    shown = {name.removeprefix("riverrun."): value for name, value in fields.items()}
    return ", ".join(f"{name} {value!r}" for name, value in shown.items())


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table in the types of a schema with the same columns."""
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.table(columns, schema=schema)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
