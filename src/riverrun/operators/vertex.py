"""Vertex: a user's own operator, in the terms of timely dataflow.

Users subclass `frontends.timely.Vertex`; here is the operator in the plan, and the actor that calls the user's
object. The actor hands rows over as they arrive (``on_recv``) and, for a time that the vertex asked for
(``notify_at``), says that the time is complete (``on_notify``). Laws:

- **Silence.** While a vertex handles time t, it may send rows and ask for notifications at t or at a later round of
  the same epoch. Anything earlier is refused.
- **Own epoch.** Sending to a later epoch, or asking to be notified in one, is refused. Rows that have to wait for a
  later epoch are put into a table.
- **Notification.** ``on_notify`` is called at t when no row at or before t can arrive any more, on any worker.
- **Declared state.** State that is to outlive an epoch is in tables (`Table`), each from keys to rows. A row that was
  written is read from then on, on the same worker, and becomes part of the state at the end of the epoch.

Cost: a call for each batch and time; a table is read and written row by row, in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from riverrun.errors import SchemaError, TimeViolation, show
from riverrun.interrupts import deferred, exposed, uninterrupted
from riverrun.plan.identity import code_of
from riverrun.plan.operator import (
    Actor,
    Context,
    Operator,
    by_time,
    located,
    present,
    settle,
)
from riverrun.progress import Antichain, Timestamp, less_equal
from riverrun.rows.convert import as_table
from riverrun.rows.records import as_record_batch, canonical_columns
from riverrun.state import Schema
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.schema import free_name
from riverrun.state.types import encode, spelled

DIFF = "diff"


class Handles(Protocol):
    """The user's object, as the actor calls it (`frontends.timely.Vertex`)."""

    def bind(self, link: VertexLink) -> None: ...
    def on_recv(self, port: str, rows: pl.DataFrame, time: Timestamp) -> None: ...
    def on_notify(self, time: Timestamp) -> None: ...


@dataclass(frozen=True)
class VertexOperator(Operator):
    """Runs the user's vertex: `make` is called once on each worker."""

    make: Callable[[], Handles]
    ports: tuple[str, ...]
    input_schemas: tuple[pa.Schema, ...]
    outputs: tuple[str, ...]
    tables: Mapping[str, Schema] = field(hash=False)
    central: bool = field(kw_only=True, default=False)
    """Whether all rows come to one worker, so that its tables are whole there, whatever their keys."""
    text: str = ""
    arrives: bool = True
    """Whether results may depend on the order of arrival."""
    kind: ClassVar[str] = "vertex"
    kernels: ClassVar[tuple[str, ...]] = ("searching.look_up",)
    keeps_state: ClassVar[bool] = True
    is_users: ClassVar[bool] = True

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        return not self.arrives

    def describe(self) -> str:
        return f"vertex {self.text}"

    def identity(self) -> str:
        tables = "; ".join(f"{n}: {list(map(str, t.columns))}" for n, t in self.tables.items())
        return f"{self.describe()} {code_of(self.make)} {tables}".rstrip()

    @property
    def adds_up(self) -> bool:
        return False

    @property
    def from_content(self) -> bool:
        return False  # the vertex sees times, and each change as it comes

    @property
    def suffixes(self) -> tuple[str, ...]:
        return tuple(f":{name}" for name in self.tables)

    def start(self, context: Context) -> VertexActor:
        return VertexActor(context, self)


class VertexLink:
    """How a vertex reaches the engine. An interrupt (Ctrl-C) waits until the engine has done its part."""

    def __init__(self, actor: VertexActor, tables: Mapping[str, Table]) -> None:
        self._actor = actor
        self.tables = tables
        self.worker = actor.context.index
        self.workers = actor.context.workers

    def send(self, rows: Any, time: Timestamp | None, output: str | None) -> None:
        with deferred():
            self._actor.send(rows, time, output)

    def notify_at(self, time: Timestamp) -> None:
        with deferred():
            self._actor.notify_at(time)


class VertexActor(Actor):
    """A vertex on a worker."""

    def __init__(self, context: Context, operator: VertexOperator) -> None:
        super().__init__(context)
        self._operator = operator
        self._tables = {
            name: Table(context, name, schema, operator.central)
            for name, schema in operator.tables.items()
        }
        self._diffs = [free_name(DIFF, schema.names) for schema in operator.input_schemas]
        self._now: Timestamp | None = None
        self._asked: set[Timestamp] = set()
        self._vertex = exposed(operator.make)
        try:
            exposed(self._vertex.bind, VertexLink(self, self._tables))
        except Exception as error:
            raise located(self.node, error) from error

    def receive(self, port: int, changes: Changes) -> None:
        for time, piece in by_time(changes):
            rows = as_record_batch(self._operator.input_schemas[port], piece.columns, piece.rows)
            frame = pl.DataFrame(pl.from_arrow(rows)).with_columns(
                pl.Series(self._diffs[port], piece.diff_array(), pl.Int64)
            )
            name = self._operator.ports[port]
            self._handle(time, partial(self._vertex.on_recv, name, frame, time))

    def run(self, time: Timestamp, upper: Antichain) -> None:
        self._asked.discard(time)
        self._handle(time, partial(self._vertex.on_notify, time))

    def _handle(self, time: Timestamp, function: Callable[[], None]) -> None:
        before, self._now = self._now, time
        try:
            exposed(function)
        except Exception as error:
            raise located(self.node, error) from error
        finally:
            self._now = before

    def send(self, rows: Any, time: Timestamp | None, output: str | None) -> None:
        """Send rows from an output. A column `diff` says how often each row is sent; without it, once."""
        outputs = self._operator.outputs
        time = self._allowed(time, "send")
        if output is None and len(outputs) == 1:
            (output,) = outputs
        if output not in outputs:
            raise SchemaError(
                "schema.output",
                f"cannot send to output {output!r} of {self.node.name!r}: it has: {', '.join(outputs)}",
                hint="send(rows, output=name)",
            )
        number = outputs.index(output)
        schema = self.node.schemas[number]
        diffs: np.ndarray[Any, Any] | None = None
        extra = free_name(DIFF, schema.names)
        if isinstance(rows, pl.DataFrame) and extra in rows.columns:
            diffs = rows[extra].to_numpy().astype(np.int64)
            rows = rows.drop(extra)
        batch = as_table(rows, schema, f"send from {self.node.name!r}")
        if batch.num_rows:
            changes = Changes(
                canonical_columns(batch, schema), batch.num_rows, (time,), None, 1, diffs
            )
            # Rows may share memory with the rows from which they were made. In a loop such chains would grow: copy.
            self.context.push(changes.take(np.arange(batch.num_rows)), number)

    def notify_at(self, time: Timestamp) -> None:
        """Ask for a notification."""
        allowed = self._allowed(time, "be notified")
        if allowed not in self._asked:
            self._asked.add(allowed)
            self.context.request(allowed)

    def _allowed(self, time: Any, what: str) -> Timestamp:
        now = self._now
        if now is None:
            raise TimeViolation(
                "time.not_held",
                f"cannot {what} at {time}: {self.node.name!r} ({self.node.line}) handles nothing at the moment",
                hint="send from on_recv or on_notify",
                node=self.node.name,
            )
        if time is None:
            return now
        if not isinstance(time, tuple) or not all(type(each) is int for each in time):
            raise TimeViolation(
                "time.no_time",
                f"cannot {what} at {show(time)} while handling {now} in {self.node.name!r} ({self.node.line}): "
                "a time is a tuple of whole numbers, the epoch and the round of each loop",
                hint=f"send at {now}, or later in every coordinate",
                node=self.node.name,
                line=self.node.line,
            )
        if len(time) != len(now) or not less_equal(now, time):
            raise TimeViolation(
                "time.went_back",
                f"cannot {what} at {time} while handling {now} in {self.node.name!r} ({self.node.line}): "
                "time does not go back",
                hint=f"send at {now}, or later in every coordinate",
                node=self.node.name,
                line=self.node.line,
                time=time,
            )
        if time[0] != now[0]:
            raise TimeViolation(
                "time.later_epoch",
                f"cannot {what} at {time} while handling {now} in {self.node.name!r} ({self.node.line}): what an "
                "epoch causes belongs to it, so that every boundary between epochs can be returned to",
                hint="keep the rows in a table until that epoch comes; flow.clock() has a row in every epoch",
                node=self.node.name,
                line=self.node.line,
                time=time,
            )
        return time

    def boundary(self, epoch: int) -> None:
        for table in self._tables.values():
            table.settle(epoch)


class Table:
    """State of a vertex: a row for each key. Rows that were written wait beside the spine until the epoch ends.

    A table is split among workers by its key. A `central` table is stored under the key of no columns, whose
    hash is 0, so that it stays on the worker to which ``TO_ONE`` brings the rows.
    """

    def __init__(self, context: Context, name: str, schema: Schema, central: bool) -> None:
        self.name = name
        self._depth = context.node.depth
        self._key = schema.key
        self._columns = pa.schema([*schema.key, *schema.value])
        self._width = len(schema.key)
        spine_schema = Schema.of(pa.schema([]), self._columns) if central else schema
        self._spine = context.spine(spine_schema, f":{name}")
        self._written: dict[Any, tuple[tuple[Any, ...], tuple[Any, ...] | None]] = {}
        """By the comparable form of a key (`_alike`): the key, and the row written under it, None where deleted."""
        self._whole: dict[Any, tuple[Any, ...]] | None = None
        """All rows of a central table by key. In its spine they cannot be looked up: all lie under one key."""
        if central:
            view, now = present(self._spine)
            rows = [row for piece in view.scan(now) for row in _tuples(piece.to_batch())]
            self._whole = {self._key_of(row): row for row in rows}

    @uninterrupted
    def read(self, keys: Any) -> pl.DataFrame:
        """The rows of some keys. A key without a row is left out."""
        wanted = self._as_tuples(keys, self._key, "read from")
        rows_by_key = {self._key_of(row): row for row in self._stored_rows(wanted)}
        for key in map(self._key_of, wanted):
            if key in self._written:
                _, row = self._written[key]
                if row is None:
                    rows_by_key.pop(key, None)
                else:
                    rows_by_key[key] = row
        return self._frame(rows_by_key.values())

    @uninterrupted
    def write(self, rows: Any) -> None:
        """Put rows in place of those with the same key."""
        for row in self._as_tuples(rows, self._columns, "write to"):
            self._written[self._key_of(row)] = row[: self._width], row

    @uninterrupted
    def delete(self, keys: Any) -> None:
        """Remove the rows of some keys."""
        for key in self._as_tuples(keys, self._key, "delete from"):
            self._written[self._key_of(key)] = key, None

    @uninterrupted
    def scan(self) -> pl.DataFrame:
        """All rows."""
        rows_by_key: dict[Any, tuple[Any, ...]] = {}
        view, now = present(self._spine)
        for piece in view.scan(now):
            for row in _tuples(piece.to_batch()):
                rows_by_key[self._key_of(row)] = row
        for key, (_, written) in self._written.items():
            if written is None:
                rows_by_key.pop(key, None)
            else:
                rows_by_key[key] = written
        return self._frame(rows_by_key.values())

    def settle(self, epoch: int) -> None:
        """Make the rows that were written part of the state."""
        if self._written:
            self._flush(epoch)
        settle(self._spine, epoch, self._depth)

    def _flush(self, epoch: int) -> None:
        time = (epoch - 1,) + (0,) * (self._depth - 1)
        upper = Antichain.boundary(epoch, self._depth)
        written, self._written = self._written, {}
        old = self._stored_rows([key for key, _ in written.values()])
        pieces = []
        fresh = [row for _, row in written.values() if row is not None]
        for rows, diff in ((fresh, 1), (old, -1)):
            if rows:
                columns = _canonical(rows, self._columns)
                pieces.append(Changes(columns, len(rows), (time,), None, diff, None))
        if self._whole is not None:
            for key, (_, row) in written.items():
                if row is None:
                    self._whole.pop(key, None)
                else:
                    self._whole[key] = row
        if pieces:
            changes = Changes.concat(pieces)
            positions = tuple(range(len(self._columns)))
            schema = self._spine.schema
            self._spine.append(Batch.of(schema, changes, positions, self._spine.upper, upper))

    def _stored_rows(self, keys: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        if self._whole is not None:
            wanted = set(map(self._key_of, keys))
            return [row for key, row in self._whole.items() if key in wanted]
        view, now = present(self._spine)
        columns = pa.record_batch(list(_canonical(keys, self._key)), names=self._key.names)
        return _tuples(view.lookup(columns, now).to_batch())

    def _as_tuples(self, rows: Any, schema: pa.Schema, attempt: str) -> list[tuple[Any, ...]]:
        batch = as_table(rows, schema, f"{attempt} {self.name!r}")
        return _tuples(as_record_batch(schema, batch.columns, batch.num_rows))

    def _key_of(self, row: tuple[Any, ...]) -> Any:
        """The comparable form of a row's key: equal in Python where states hold the keys for equal."""
        return _alike(row[: self._width])

    def _frame(self, rows: Iterable[tuple[Any, ...]]) -> pl.DataFrame:
        listed = list(rows)
        columns = _canonical(listed, self._columns)
        return pl.DataFrame(pl.from_arrow(as_record_batch(self._columns, columns, len(listed))))


def _canonical(rows: list[tuple[Any, ...]], schema: pa.Schema) -> tuple[pa.Array, ...]:
    """Rows of Python values as columns in the layout of states."""
    columns = []
    for at, kind in enumerate(schema.types):
        columns.append(encode(pa.array([row[at] for row in rows], spelled(kind)), kind))
    return tuple(columns)


_NAN = object()


def _alike(value: Any) -> Any:
    """A hashable value that is equal for equal values of a state: NaN equals NaN, lists and structs are values too."""
    if isinstance(value, tuple | list):
        return tuple(map(_alike, value))
    if isinstance(value, dict):
        return tuple((name, _alike(inner)) for name, inner in value.items())
    return _NAN if isinstance(value, float) and value != value else value


def _tuples(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
