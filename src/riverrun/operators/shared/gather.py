"""Gather: records that made several requests go on when all their replies are there.

Behind `fetch` with a list of keys or with `requests=`. `Requesting` makes the requests, which travel to the state and
are answered there (`fetch`), while the record waits here. Record and replies meet by the *ids* of the record, 128 bits
of hash of its columns, which travel with its requests in place of the record: both go to the worker that owns the hash.
Laws:

- **Once, when complete.** A record goes on once, with its replies in the order of its requests, at the time at which
  the last reply is there. It waits for no other record.
- **Late goes no further.** A record with a late request goes no further. Where a request of a deletion is late, an
  answer that was given stays. A record that still waits is taken back whatever the time. Among equal records that is
  the last of those that came in time; only where none came in time, one that goes no further anyway. No late record
  takes the place of a record that was taken back.
- **Equal records count.** Equal records are one record that is there several times: each of its requests has as many
  replies. A deletion takes one away.
- **First come, first reply.** An uncommitted reply depends on when it was given, so equal records of several epochs
  may go on with different replies. The older of two equal records is never answered after the younger, and whatever is
  answered at one time is answered alike. So the first of them has the first reply to each of its requests, the second
  the second (`complete`). To that end uncommitted replies say when they were given. (Front ends refuse such requests
  in a loop that the state is not in, where a round may take back a record that another round gave, with other replies.)
- **Waiting is state.** Records and replies that wait are part of a checkpoint. Where a record and its deletion both
  wait, neither is there.

Cost: some 300 ns a reply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riverrun.errors import SchemaError
from riverrun.operators.linear import list_parents
from riverrun.operators.shared.complete import CompleteRecords, find_complete
from riverrun.operators.shared.rules import called
from riverrun.plan.identity import code_of
from riverrun.plan.operator import Actor, Context, Linear, Operator, by_time
from riverrun.progress import Antichain, Timestamp
from riverrun.rows.convert import as_table
from riverrun.rows.records import as_record_batch, canonical_columns
from riverrun.state import Schema
from riverrun.state.changes import Changes
from riverrun.state.columns import as_array, as_column, column_table
from riverrun.state.kernels import searching
from riverrun.state.schema import FULL_MASK
from riverrun.state.types import empty_batch
from riverrun.state.view import View, deferred

IDS = pa.schema({"__id_a__": pa.int64(), "__id_b__": pa.int64()})
COUNT = pa.field("__requests__", pa.int64())
PLACE = pa.field("__place__", pa.int64())
RECORDS, REPLIES = ":records", ":replies"
_MASK = np.uint64(FULL_MASK)
_SALT = 0x9E3779B97F4A7C15 - (1 << 64)


def _ids(columns: tuple[pa.Array, ...], rows: int) -> tuple[pa.Array, pa.Array]:
    """Two independent hashes of each row."""
    salt = as_column(np.full(rows, _SALT))
    ids = []
    for listed in ((*columns, salt), (salt, *reversed(columns))):
        hashes = searching.hash_keys(column_table(listed), rows, _MASK)
        ids.append(as_column(hashes.view(np.int64)))
    return ids[0], ids[1]


@dataclass(frozen=True)
class Requesting(Linear):
    """Makes requests of records. With `records`, gives the records themselves, with ids and numbers of requests."""

    records: bool = field(default=False, kw_only=True)
    kind: ClassVar[str] = "requests"


@dataclass(frozen=True)
class ListRequests(Requesting):
    """A request for each element of a list column: ids, place, key, and the bounds.

    `taken` are the columns of the record that are bounds. With `records`, the records themselves: ids, how many
    requests they make, and their columns.
    """

    key: int
    taken: tuple[int, ...]

    def describe(self) -> str:
        return "records, numbered" if self.records else "a request for each key"

    def identity(self) -> str:
        return f"{self.describe()} {self.key} {self.taken}"

    def apply(self, changes: Changes) -> Changes | None:
        lists = changes.columns[self.key]
        a, b = _ids(changes.columns, changes.rows)
        sizes = pc.list_value_length(lists).fill_null(0).cast(pa.int64())
        if self.records:
            return changes.with_columns((a, b, sizes, *changes.columns))
        parents = list_parents(lists)
        if not len(parents):
            return None
        keys = pc.list_flatten(lists)
        spread = changes.with_columns((a, b, *(changes.columns[at] for at in self.taken)))
        spread = spread.take(parents)
        places = _places(parents)
        ids, bounds = spread.columns[:2], spread.columns[2:]
        return spread.with_columns((*ids, places, keys, *bounds))


def _places(parents: np.ndarray[Any, Any]) -> pa.Array:
    """The place of each request among the requests of its record; these are consecutive rows."""
    starts = np.flatnonzero(np.append(True, parents[1:] != parents[:-1]))
    sizes = np.diff(np.append(starts, len(parents)))
    return as_column(np.arange(len(parents)) - np.repeat(starts, sizes))


@dataclass(frozen=True)
class Requests:
    """A user's request function. A request that names no bound itself has the bound of its record."""

    function: Callable[[dict[str, Any]], Any]
    bounds: tuple[tuple[str, str], ...]
    """The name of each bound in a request, and the column of the record with its default."""
    shown: tuple[str, ...]
    """The columns of the record that the function sees."""

    def __call__(self, row: dict[str, Any]) -> Any:
        requests = self.function({name: row[name] for name in self.shown})
        if isinstance(requests, str | bytes | dict) or not isinstance(requests, Iterable):
            return requests
        defaults = {name: row[column] for name, column in self.bounds}
        return [{**defaults, **each} if isinstance(each, dict) else each for each in requests]


@dataclass(frozen=True)
class FunctionRequests(Requesting):
    """Requests of a user's function: of a record, a dict, it gives a list of requests, dicts of keys and bounds."""

    function: Requests
    record_schema: pa.Schema
    request_schema: pa.Schema
    """The columns of a request: its key and its bounds."""

    def describe(self) -> str:
        return "records, numbered" if self.records else "requests of a function"

    def identity(self) -> str:
        return f"{self.describe()} {code_of(self.function.function)}"

    def apply(self, changes: Changes) -> Changes | None:
        a, b = _ids(changes.columns, changes.rows)
        rows = as_record_batch(self.record_schema, changes.columns, changes.rows).to_pylist()
        asked = [self._asked(row) for row in rows]
        sizes = np.array([len(each) for each in asked], np.int64)
        if self.records:
            return changes.with_columns((a, b, as_column(sizes), *changes.columns))
        flat = [request for each in asked for request in each]
        if not flat:
            return None
        batch = as_table(flat, self.request_schema, "take the requests of a record")
        parents = np.repeat(np.arange(changes.rows), sizes)
        spread = changes.with_columns((a, b)).take(parents)
        columns = canonical_columns(batch, self.request_schema)
        return spread.with_columns((*spread.columns, _places(parents), *columns))

    def _asked(self, row: dict[str, Any]) -> list[Any]:
        requests = called(self.function, "the request function", row)
        if isinstance(requests, str | bytes | dict) or not isinstance(requests, Iterable):
            raise SchemaError(
                "state.requests",
                f"the request function gave {requests!r} for the row {row!r}, not a list of requests",
                hint="give a list of dicts with the columns of the key; [] for no request",
            )
        return list(requests)


@dataclass(frozen=True)
class Gather(Operator):
    """Records (its first input: ids, how many requests, columns) and replies (ids, place, values)."""

    state: str
    depth: int
    """How many coordinates times have in the scope of the state."""
    records: pa.Schema
    replies: pa.Schema
    early: bool = True
    """Whether a record goes on as soon as its replies are there, or together with its epoch."""
    committed: bool = True
    """Whether replies depend on the request alone, or also on when they were given (first come, first reply)."""
    kind: ClassVar[str] = "gather"
    keeps_state: ClassVar[bool] = True
    may_cancel: ClassVar[bool] = True

    def describe(self) -> str:
        return f"gather replies from {self.state!r}"

    def identity(self) -> str:
        return self.describe() + (
            "" if self.committed else ", in the order in which they were given"
        )

    @property
    def from_content(self) -> bool:
        return False

    @property
    def suffixes(self) -> tuple[str, ...]:
        return RECORDS, REPLIES

    @property
    def adds_up(self) -> bool:
        return False

    def start(self, context: Context) -> Gathering:
        return Gathering(context, self)


class Gathering(Actor):
    """Records and replies that wait, grouped by the rounds of the loops that the state is not in."""

    def __init__(self, context: Context, operator: Gather) -> None:
        super().__init__(context)
        self._operator = operator
        self._held: dict[Timestamp, tuple[list[Changes], list[Changes]]] = {}
        self._waiting: dict[tuple[int, ...], tuple[Changes, Changes]] = {}
        loops = [
            pa.field(f"__round{at}__", pa.int64()) for at in range(self.node.depth - operator.depth)
        ]
        self._loops = len(loops)
        self._stamps = 0 if operator.committed else operator.depth
        """How many columns of a reply say when it was given."""
        stamps = [pa.field(f"__given{at}__", pa.int64()) for at in range(self._stamps)]
        ids_place, values = list(operator.replies)[:3], list(operator.replies)[3:]
        self._held_as = operator.records, pa.schema([*ids_place, *stamps, *values])
        self._saved = tuple(
            Schema.of(IDS, pa.schema([*(f.with_nullable(True) for f in list(fields)[2:]), *loops]))
            for fields in self._held_as
        )
        # Which of several equal records an uncommitted reply belongs to is known only at the end of the epoch.
        self.waits = not (operator.early and operator.committed)
        self._restore(context)

    def receive(self, port: int, changes: Changes) -> None:
        for time, piece in by_time(changes):
            if time not in self._held:
                self._held[time] = ([], [])
                self.context.request(time)
            self._held[time][port].append(piece)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        held, rounds = self._held.pop(time), time[self._operator.depth :]
        waiting = self._waiting.pop(rounds, None)
        both = []
        for port, fresh in enumerate(held):
            pieces = [piece.map_times(lambda _: time) for piece in fresh]
            if port and self._stamps:
                pieces = [self._stamped(piece, time) for piece in pieces]
            if waiting is not None and waiting[port].rows:
                pieces.insert(0, waiting[port].map_times(lambda _: time))
            both.append(Changes.concat(pieces) if pieces else self._none(port, time))
        records, replies = both
        complete = find_complete(records, replies, self._stamps)
        if len(complete.rows):
            self._send(records, replies, complete)
        left = (
            _with_diffs(records.take(complete.records_left), complete.record_diffs),
            _with_diffs(replies.take(complete.replies_left), complete.reply_diffs),
        )
        if left[0].rows or left[1].rows:
            self._waiting[rounds] = left

    def _stamped(self, replies: Changes, time: Timestamp) -> Changes:
        """Replies with columns for the time at which they were given, a time of the state."""
        stamps = [as_column(np.full(replies.rows, each)) for each in time[: self._stamps]]
        return replies.with_columns((*replies.columns[:3], *stamps, *replies.columns[3:]))

    def _none(self, port: int, time: Timestamp) -> Changes:
        fields = self._held_as[port]
        return Changes(canonical_columns(empty_batch(fields), fields), 0, (time,), None, 1, None)

    def _send(self, records: Changes, replies: Changes, complete: CompleteRecords) -> None:
        chosen = records.take(complete.rows)
        offsets = as_column(np.append(0, np.cumsum(complete.sizes)))
        values = replies.take(complete.replies).columns[3 + self._stamps :]
        lists = tuple(pa.LargeListArray.from_arrays(offsets, column) for column in values)
        columns = (*chosen.columns[3:], *lists)
        self.context.push(Changes(columns, chosen.rows, chosen.times, None, 0, complete.diffs), 0)

    def saved(self, epoch: int) -> dict[str, View]:
        depth, loops = self.node.depth, self._loops
        time = (epoch - 1, *(0,) * (depth - 1))
        waiting = dict(self._waiting)
        views = {}
        for port, suffix in enumerate((RECORDS, REPLIES)):

            def make(port: int = port) -> Changes | None:
                pieces = []
                for rounds, both in waiting.items():
                    piece = both[port].map_times(lambda _: time)
                    extra = [as_column(np.full(piece.rows, each)) for each in rounds[:loops]]
                    if piece.rows:
                        pieces.append(piece.with_columns((*piece.columns, *extra)))
                return Changes.concat(pieces) if pieces else None

            name = self.node.name + suffix
            views[name] = deferred(name, self._saved[port], epoch, depth, make)
        return views

    def _restore(self, context: Context) -> None:
        time = (0,) * self.node.depth
        by_rounds: dict[tuple[int, ...], list[Changes]] = {}
        for port, suffix in enumerate((RECORDS, REPLIES)):
            schema = self._saved[port]
            saved = context.restored(schema, suffix)
            if saved is None or not saved.num_rows:
                continue
            counts = as_array(saved.column(saved.num_columns - 1))
            fields = pa.schema([*schema.key, *schema.value])
            columns = canonical_columns(saved.select(list(range(saved.num_columns - 1))), fields)
            cut = len(columns) - self._loops
            complete = Changes(columns[:cut], saved.num_rows, (time,), None, 0, counts)
            rounds = list(zip(*(column.to_pylist() for column in columns[cut:]), strict=True))
            groups: dict[tuple[int, ...], list[int]] = {}
            for row in range(complete.rows):
                groups.setdefault(rounds[row] if rounds else (), []).append(row)
            for each, rows in groups.items():
                both = by_rounds.setdefault(each, [self._none(0, time), self._none(1, time)])
                both[port] = complete.take(np.array(rows))
        self._waiting = {each: (both[0], both[1]) for each, both in by_rounds.items()}


def _with_diffs(changes: Changes, diffs: np.ndarray[Any, Any]) -> Changes:
    return Changes(changes.columns, changes.rows, changes.times, changes.codes, 0, diffs)
