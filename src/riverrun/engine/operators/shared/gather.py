"""Gather: records that made several requests go on when all their replies are there.

A record is told by 128 bits of hash of its columns, which go with its requests in place of the record; it
waits where that hash belongs, and so do its replies. Laws:

1. A record goes on once, with its replies in the order of its requests, at the time at which the last of
   them is there; nothing waits for the records before it.
2. A record of which a request is late goes no further. Where a request of a deletion is late, the answer stays; but
   a record that waits is taken back whatever the time.
3. Equal records are one that is there several times: each request has as many replies. A deletion takes back.
4. What waits is state, part of a checkpoint; a record and its deletion, where both wait, are none.

Cost: some 300 ns a reply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riverrun.engine.operator import Actor, Context, Linear, Operator, by_time, code_of
from riverrun.engine.operators.linear import as_record_batch, canonical_columns, list_parents
from riverrun.engine.operators.shared.rules import Convert, called
from riverrun.errors import SchemaError
from riverrun.progress import Antichain, Timestamp
from riverrun.state import Schema
from riverrun.state.changes import Changes
from riverrun.state.columns import column_table
from riverrun.state.deferred import deferred
from riverrun.state.kernels import searching
from riverrun.state.schema import FULL_MASK
from riverrun.state.view import View

IDS = pa.schema({"__id_a__": pa.int64(), "__id_b__": pa.int64()})
COUNT = pa.field("__requests__", pa.int64())
PLACE = pa.field("__place__", pa.int64())
RECORDS, REPLIES = ":records", ":replies"
Rows = np.ndarray[Any, Any]
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
    convert: Convert

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
        batch = self.convert(flat, self.made, "take the requests of a record")
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
    kind: ClassVar[str] = "gather"
    keeps_state: ClassVar[bool] = True

    def describe(self) -> str:
        return f"gather replies from {self.state!r}"

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
        self._saved = tuple(
            Schema.of(IDS, pa.schema([*(f.with_nullable(True) for f in list(given)[2:]), *loops]))
            for given in (operator.records, operator.replies)
        )
        self.waits = not operator.early
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
            if waiting is not None and waiting[port].rows:
                pieces.insert(0, waiting[port].map_times(lambda _: time))
            both.append(Changes.concat(pieces) if pieces else self._none(port, time))
        records, replies = both
        whole = _whole(records, replies)
        if len(whole.rows):
            self._send(records, replies, whole)
        left = (
            _with_diffs(records.take(whole.records_left), whole.record_diffs),
            _with_diffs(replies.take(whole.replies_left), whole.reply_diffs),
        )
        if left[0].rows or left[1].rows:
            self._waiting[rounds] = left

    def _none(self, port: int, time: Timestamp) -> Changes:
        given = (self._operator.records, self._operator.replies)[port]
        empty = pa.record_batch([pa.array([], field.type) for field in given], schema=given)
        return Changes(canonical_columns(empty, given), 0, (time,), None, 1, None)

    def _send(self, records: Changes, replies: Changes, whole: _Whole) -> None:
        chosen = records.take(whole.rows)
        offsets = pa.array(np.append(0, np.cumsum(whole.sizes)))
        values = replies.take(whole.replies).columns[3:]
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


@dataclass(frozen=True)
class _Whole:
    """Which records have all their replies, and what is left, added up."""

    rows: Rows
    sizes: Rows
    diffs: Rows
    replies: Rows
    """Their replies, in the order of records and places."""
    records_left: Rows
    record_diffs: Rows
    replies_left: Rows
    reply_diffs: Rows


def _whole(records: Changes, replies: Changes) -> _Whole:
    asked, cut = [np.asarray(column) for column in records.columns[:3]], records.rows
    given = [np.asarray(column) for column in replies.columns[:3]]
    groups = _grouped(*(np.concatenate(pair) for pair in zip(asked[:2], given[:2], strict=True)))
    count = int(groups.max()) + 1 if len(groups) else 0
    of_record, of_reply = groups[:cut], groups[cut:]
    first = np.full(count, -1)
    first[of_record[::-1]] = np.arange(cut)[::-1]
    diffs = np.zeros(count, np.int64)
    np.add.at(diffs, of_record, records.diff_array())
    # Equal replies to one request stand together, those that say that it is late behind the others.
    late, places = given[2] < 0, np.where(given[2] < 0, -1 - given[2], given[2])
    order = np.lexsort((late, places, of_reply))
    group, place, late = of_reply[order], places[order], late[order]
    starts = np.flatnonzero(_differ(group, place, late))
    sums = np.add.reduceat(replies.diff_array()[order], starts) if len(starts) else starts
    group, place, late, reply = group[starts], place[starts], late[starts], order[starts]
    # A request has its replies when there are as many, of either kind, as there are records.
    pairs = np.flatnonzero(_differ(group, place))
    both = np.add.reduceat(sums, pairs) if len(pairs) else pairs
    owner = group[pairs]
    there = np.bincount(owner[both == diffs[owner]], minlength=count)
    known = first >= 0
    needed = np.full(count, -1)
    needed[known] = asked[2][first[known]]
    done = (diffs != 0) & (there == needed)
    # Of equal records some may have come in time, some not: those with a late request go no further.
    dropped = np.zeros(count, np.int64)
    sign = np.sign(diffs)
    np.maximum.at(dropped, group[late], (sums * sign[group])[late])
    copies = diffs - sign * dropped
    sent = np.flatnonzero(done & (copies != 0))
    sent = sent[np.argsort(first[sent])]
    rank = np.full(count, -1)
    rank[sent] = np.arange(len(sent))
    taken = np.flatnonzero(~late & (rank[group] >= 0) & (sums != 0))
    taken = taken[np.lexsort((place[taken], rank[group[taken]]))]
    # Records that were deleted while they waited are gone when so many replies of theirs are, too.
    uneven = np.bincount(owner[both != 0], minlength=count)
    gone = done | ((diffs == 0) & (uneven == 0))
    waiting = np.flatnonzero(known & (diffs != 0) & ~done)
    kept = np.flatnonzero(~gone[group] & (sums != 0))
    return _Whole(
        first[sent], needed[sent], copies[sent], reply[taken],
        first[waiting], diffs[waiting], reply[kept], sums[kept],
    )  # fmt: skip


def _differ(*columns: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows are not like the one before."""
    fresh = np.ones(len(columns[0]), np.bool_)
    if len(fresh):
        fresh[1:] = False
        for column in columns:
            fresh[1:] |= column[1:] != column[:-1]
    return fresh


def _with_diffs(changes: Changes, diffs: Rows) -> Changes:
    return Changes(changes.columns, changes.rows, changes.times, changes.codes, 0, diffs)


def _grouped(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The number of the group of each row: rows with the same ids are one."""
    order = np.lexsort((b, a))
    fresh = np.append(False, (a[order][1:] != a[order][:-1]) | (b[order][1:] != b[order][:-1]))
    groups = np.empty(len(order), np.int64)
    groups[order] = np.cumsum(fresh[: len(order)])
    return groups
