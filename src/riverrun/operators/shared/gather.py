"""Gather: records that made several requests go on when all their replies are there.

A record is told by 128 bits of hash of its columns, which go with its requests in place of the record; it
waits where that hash belongs, and so do its replies. Laws:

1. A record goes on once, with its replies in the order of its requests, at the time at which the last of
   them is there; nothing waits for the records before it.
2. A record of which a request is late goes no further. Where a request of a deletion is late, the answer stays; but
   a record that waits is taken back whatever the time: of equal ones the last that came in time, and only where none
   did, one that goes no further anyway. No late record takes the place of one that was taken back.
3. Equal records are one that is there several times: each request has as many replies. A deletion takes back.
4. An uncommitted reply depends on when it was given, so equal records of several epochs may go on with different
   replies. Of equal records the older is never answered after the younger, and all that is answered at one time is
   answered alike: so the first has the first reply to each of its requests, the second the second (`complete`).
   Replies that wait say when they were given.
5. What waits is state, part of a checkpoint; a record and its deletion, where both wait, are none.

Cost: some 300 ns a reply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riverrun.errors import OperatorFailed, SchemaError
from riverrun.operators.linear import list_parents
from riverrun.operators.shared.complete import Whole, find_whole
from riverrun.operators.shared.rules import called
from riverrun.plan.identity import code_of
from riverrun.plan.operator import Actor, Context, Linear, Operator, by_time
from riverrun.progress import Antichain, Timestamp
from riverrun.rows.convert import as_table
from riverrun.rows.records import as_record_batch, canonical_columns
from riverrun.state import Schema
from riverrun.state.changes import Changes
from riverrun.state.columns import column_table
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
    """Two hashes of each row, each of which says nothing about the other."""
    salt = pa.array(np.full(rows, _SALT))
    made = []
    for listed in ((*columns, salt), (salt, *reversed(columns))):
        hashes = searching.hash_keys(column_table(listed), rows, _MASK)
        made.append(pa.array(hashes.view(np.int64)))
    return made[0], made[1]


@dataclass(frozen=True)
class Requesting(Linear):
    """Makes requests of records; or, with `records`, numbers the records themselves."""

    records: bool = field(default=False, kw_only=True)
    kind: ClassVar[str] = "requests"


@dataclass(frozen=True)
class ListRequests(Requesting):
    """A request for each element of a list column: ids, place, how many there are, key, and the bounds.

    `taken` are the columns of the record that are bounds. With `records`, the records themselves: ids, how many
    requests they made, and their columns.
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
    """The place of each request among those of its record, which stand together."""
    starts = np.flatnonzero(np.append(True, parents[1:] != parents[:-1]))
    sizes = np.diff(np.append(starts, len(parents)))
    return pa.array(np.arange(len(parents)) - np.repeat(starts, sizes))


@dataclass(frozen=True)
class Requests:
    """A user's request function; a request has the bounds of the record where it names none itself."""

    function: Callable[[dict[str, Any]], Any]
    bounds: tuple[tuple[str, str], ...]
    """What a bound is called in a request, and in the record."""
    shown: tuple[str, ...]
    """The columns of the record that the function sees."""

    def __call__(self, row: dict[str, Any]) -> Any:
        made = self.function({name: row[name] for name in self.shown})
        if isinstance(made, str | bytes | dict) or not isinstance(made, Iterable):
            return made
        given = {name: row[column] for name, column in self.bounds}
        return [{**given, **each} if isinstance(each, dict) else each for each in made]


@dataclass(frozen=True)
class FunctionRequests(Requesting):
    """The same, of a user's function of a record, a dict, that gives a list of requests: dicts of keys and bounds."""

    function: Requests
    given: pa.Schema
    made: pa.Schema
    """Key and bounds of a request."""

    def describe(self) -> str:
        return "records, numbered" if self.records else "requests of a function"

    def identity(self) -> str:
        return f"{self.describe()} {code_of(self.function.function)}"

    def apply(self, changes: Changes) -> Changes | None:
        a, b = _ids(changes.columns, changes.rows)
        rows = as_record_batch(self.given, changes.columns, changes.rows).to_pylist()
        asked = [self._asked(row) for row in rows]
        sizes = np.array([len(each) for each in asked], np.int64)
        if self.records:
            return changes.with_columns((a, b, pa.array(sizes), *changes.columns))
        flat = [request for each in asked for request in each]
        if not flat:
            return None
        batch = as_table(flat, self.made, "take the requests of a record")
        parents = np.repeat(np.arange(changes.rows), sizes)
        spread = changes.with_columns((a, b)).take(parents)
        columns = canonical_columns(batch, self.made)
        return spread.with_columns((*spread.columns, _places(parents), *columns))

    def _asked(self, row: dict[str, Any]) -> list[Any]:
        made = called(self.function, "the request function", row)
        if isinstance(made, str | bytes | dict) or not isinstance(made, Iterable):
            raise SchemaError(
                "state.requests",
                f"the request function gave {made!r} for the row {row!r}, not a list of requests",
                hint="give a list of dicts with the columns of the key; [] for no request",
            )
        return list(made)


@dataclass(frozen=True)
class Gather(Operator):
    """Records (its first input: ids, how many requests, columns) and replies (ids, place, values)."""

    state: str
    depth: int
    """How many coordinates times have where the state is."""
    records: pa.Schema
    replies: pa.Schema
    early: bool = True
    """Whether a record goes on when its replies are there, or with the epoch."""
    committed: bool = True
    """Whether replies depend on the request alone, or on when they were given too (law 4)."""
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
    """Records and replies that wait, by round where they are in a loop that the state is not in."""

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
            Schema.of(IDS, pa.schema([*(f.with_nullable(True) for f in list(given)[2:]), *loops]))
            for given in self._held_as
        )
        # Which of equal records an uncommitted reply belongs to is known when the epoch has all it brings.
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
        whole = find_whole(records, replies, self._stamps)
        if whole.unclear:
            self._refuse(whole.unclear)
        if len(whole.rows):
            self._send(records, replies, whole)
        left = (
            _with_diffs(records.take(whole.records_left), whole.record_diffs),
            _with_diffs(replies.take(whole.replies_left), whole.reply_diffs),
        )
        if left[0].rows or left[1].rows:
            self._waiting[rounds] = left

    def _stamped(self, replies: Changes, time: Timestamp) -> Changes:
        """Replies that say when they were given: as of which time of the state."""
        stamps = [pa.array(np.full(replies.rows, each)) for each in time[: self._stamps]]
        return replies.with_columns((*replies.columns[:3], *stamps, *replies.columns[3:]))

    def _refuse(self, count: int) -> None:
        raise OperatorFailed(
            "state.answer_kept",
            f"cannot gather replies from {self._operator.state!r}: {count} records that wait for some of their replies "
            "were taken back at a round of a loop, and given at the same round in another epoch, with other replies: "
            "what an uncommitted fetch found then is not known any more",
            hint="read committed: then answers depend on the time of a row alone; or fetch outside the loop",
            state=self._operator.state,
        )

    def _none(self, port: int, time: Timestamp) -> Changes:
        given = self._held_as[port]
        return Changes(canonical_columns(empty_batch(given), given), 0, (time,), None, 1, None)

    def _send(self, records: Changes, replies: Changes, whole: Whole) -> None:
        chosen = records.take(whole.rows)
        offsets = pa.array(np.append(0, np.cumsum(whole.sizes)))
        values = replies.take(whole.replies).columns[3 + self._stamps :]
        lists = tuple(pa.LargeListArray.from_arrays(offsets, column) for column in values)
        columns = (*chosen.columns[3:], *lists)
        self.context.push(Changes(columns, chosen.rows, chosen.times, None, 0, whole.diffs), 0)

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
                    extra = [pa.array(np.full(piece.rows, each)) for each in rounds[:loops]]
                    if piece.rows:
                        pieces.append(piece.with_columns((*piece.columns, *extra)))
                return Changes.concat(pieces) if pieces else None

            name = self.node.name + suffix
            views[name] = deferred(name, self._saved[port], epoch, depth, make)
        return views

    def _restore(self, context: Context) -> None:
        time = (0,) * self.node.depth
        found: dict[tuple[int, ...], list[Changes]] = {}
        for port, suffix in enumerate((RECORDS, REPLIES)):
            schema = self._saved[port]
            saved = context.restored(schema, suffix)
            if saved is None or not saved.num_rows:
                continue
            counts = np.asarray(saved.column(saved.num_columns - 1))
            fields = pa.schema([*schema.key, *schema.value])
            columns = canonical_columns(saved.select(list(range(saved.num_columns - 1))), fields)
            cut = len(columns) - self._loops
            whole = Changes(columns[:cut], saved.num_rows, (time,), None, 0, counts)
            rounds = list(zip(*(column.to_pylist() for column in columns[cut:]), strict=True))
            groups: dict[tuple[int, ...], list[int]] = {}
            for row in range(whole.rows):
                groups.setdefault(rounds[row] if rounds else (), []).append(row)
            for each, rows in groups.items():
                both = found.setdefault(each, [self._none(0, time), self._none(1, time)])
                both[port] = whole.take(np.array(rows))
        self._waiting = {each: (both[0], both[1]) for each, both in found.items()}


def _with_diffs(changes: Changes, diffs: np.ndarray[Any, Any]) -> Changes:
    return Changes(changes.columns, changes.rows, changes.times, changes.codes, 0, diffs)
