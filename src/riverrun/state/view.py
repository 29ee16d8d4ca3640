"""A view: the batches of a state at one moment, for reading.

Operators, results and checkpoints read states through views (`Spine.view` gives one). A read is as of a time t at or
after `since` and before `upper`. It adds up the diffs of each (key, value) over the times at or before t, and gives the
rows whose sum is not 0, as a `Selection`: for each row its query and count, and columns that are gathered when asked
for. The reads:

- `lookup`: all values of some keys;
- `first` and `last`: at most k live values of each key from either end of the declared order: min,
  max, top-k; with `at`, only values whose first order column comes at or before a bound: the as-of
  read of an application's own time;
- `between`: the live values of some keys between two bounds on that column;
- `changes`: the changes of some keys with their times, not added up;
- `later`: the times after a given time at which some keys change;
- `scan`: everything, in the order of hashes, in pieces of bounded size.

Laws:

- **Immutable.** A view never changes, so no later change disturbs its reader.
- **Merging is invisible.** The rows of a read do not depend on how far batches were merged or compacted.
- **Null is a key.** Null keys are equal to each other, as in grouping. A join, in which they match nothing, leaves them
  out itself.

Cost: per key and batch, two or three cache misses (`kernels.searching`); nothing depends on the size
of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from riverrun.cached import cached_property
from riverrun.errors import SchemaError, TimeViolation
from riverrun.progress import Antichain, Timestamp
from riverrun.progress.timestamp import as_timestamp, check_depth
from riverrun.state.batch import Batch
from riverrun.state.block import Block
from riverrun.state.changes import Changes
from riverrun.state.columns import (
    Ints,
    as_column,
    column_table,
    gather_column,
    gather_columns,
    node_table,
    word_table,
)
from riverrun.state.counted import counted
from riverrun.state.kernels import (
    bounding,
    layout,
    next_times,
    presence,
    scanning,
    searching,
)
from riverrun.state.keys import Keys
from riverrun.state.schema import Rows, Schema, conform_column, declared_column, free_name
from riverrun.state.times import Times, codes_in, frontier_at_depth, reaches, union
from riverrun.state.types import empty_batch

Asked: TypeAlias = Keys | Rows | pa.Array | pa.ChunkedArray | np.ndarray[Any, Any]
"""The keys of a query: `Keys` are taken as they are, anything else is checked and brought to one layout."""

SCAN_ROWS = 1 << 16
_ALL = np.iinfo(np.int64).max
_INT64 = pa.int64()
_STAIRS = np.arange(65)
_NO_BLOCKS = np.zeros((0, layout.BLOCK_FIELDS), np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class Selection:
    """The rows that a read gives."""

    view: View
    names: Ints
    """The rows, as kernels name them."""
    queries: Ints | None
    """Which query each row answers; None for a scan."""
    counts: Ints
    """How often the row is there as of the time of the read; for changes, the diff."""
    times: Times = ()
    """For changes: the table of times."""
    codes: Ints | None = None
    """For changes: the time of each row, as its number in `times`."""

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"<Selection of {len(self)} rows of {self.view.name!r}>"

    def column(self, name: str) -> pa.Array:
        """One column of the rows, key or value, as it was declared."""
        schema = self.view.schema
        index = schema.positions.get(name)
        if index is None:
            raise SchemaError(
                "schema.column_unknown",
                f"cannot read column {name!r} of {self.view.name!r}: the columns are: "
                f"{', '.join(schema.positions)}",
                hint="check the spelling, or declare the column",
                column=name,
            )
        return declared_column(self.canonical(index), schema.columns[index])

    def canonical(self, index: int) -> pa.Array:
        """The column at `index` of the physical order, in the canonical layout."""
        schema = self.view.schema
        return gather_column(
            self.view.tables, schema.starts[index], self.names, schema.canonical[index]
        )

    def canonicals(self, indices: Sequence[int]) -> list[pa.Array]:
        """The columns at some indices of the physical order, in the canonical layout."""
        schema = self.view.schema
        return gather_columns(
            self.view.tables, self.names, schema.starts, schema.canonical, indices
        )

    def repeated(self) -> Selection:
        """The same rows, each as often as it is there; no count is negative."""
        names = np.repeat(self.names, self.counts)
        queries = None if self.queries is None else np.repeat(self.queries, self.counts)
        return Selection(self.view, names, queries, np.ones(len(names), np.int64))

    def to_batch(self) -> pa.RecordBatch:
        """All columns, key first."""
        schema = self.view.schema
        names = [*schema.key.names, *schema.value.names]
        columns = {"": pa.nulls(len(self))} | {name: self.column(name) for name in names}
        return pa.record_batch(columns).select(names)  # of no columns too, it knows its rows


class _BatchTables:
    """The tables by which kernels know a list of batches. Views of the same batches share them."""

    __slots__ = ("batches", "descriptors", "exact", "runs", "times")

    def __init__(self, batches: tuple[Batch, ...]) -> None:
        self.batches = batches
        counts = [len(batch.blocks) for batch in batches]
        if len(counts) < len(_STAIRS) and counts.count(1) == len(counts):
            self.runs = _STAIRS[: len(counts) + 1]
        else:
            self.runs = np.array([*accumulate(counts, initial=0)], np.int64)
        self.descriptors = _NO_BLOCKS
        if batches:
            self.descriptors = np.concatenate([batch.descriptors for batch in batches])
        self.exact = False not in [batch.hashes_suffice for batch in batches]
        self.times: tuple[Ints, Times] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class View:
    """The batches of a state at one moment."""

    name: str
    schema: Schema
    batches: tuple[Batch, ...]
    since: Antichain
    upper: Antichain

    def __repr__(self) -> str:
        rows = sum(map(len, self.batches))
        return f"<View of {self.name!r}: {rows} changes, readable from {self.since} up to {self.upper}>"

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(block for batch in self.batches for block in batch.blocks)

    @cached_property
    def _parts(self) -> _BatchTables:
        return _BatchTables(self.batches)

    @property
    def runs(self) -> Ints:
        """Where the blocks of each batch start in `blocks`, and where the blocks of the last batch end."""
        return self._parts.runs

    @property
    def descriptors(self) -> Ints:
        """The descriptors of the blocks, by which kernels know them: one row for each block."""
        return self._parts.descriptors

    @cached_property
    def tables(self) -> Ints:
        """The address of each block's table of nodes."""
        return self.descriptors[:, layout.NODES].copy()

    @property
    def exact(self) -> bool:
        """Whether equal hashes are equal keys in every block."""
        return self._parts.exact

    def slice(self, low: int, high: int) -> View:
        """The same state of the keys whose hash is in [low, high)."""
        batches = tuple(batch.slice(low, high) for batch in self.batches)
        return View(self.name, self.schema, batches, self.since, self.upper)

    def at_depth(self, depth: int) -> View:
        """The same state at times of `depth` coordinates, as it is seen from inside of a loop, or from outside.

        Rows that were there before a loop begins are there in round 0 of it. So what is read as of time t is what is
        read, at the other depth, as of t with rounds 0 added or left out. Rounds are left out only of a state all of
        whose changes are in round 0.

        >>> from riverrun.state.spine import Spine
        >>> edges = Spine("edges", Schema.of({"src": pa.int64()}, {"dst": pa.int64()}))
        >>> edges.insert(pa.table({"src": [1, 2], "dst": [2, 3]}), time=(4,))
        >>> inside = edges.view().at_depth(2)
        >>> inside.lookup(pa.array([2]), as_of=(4, 7)).column("dst").to_pylist()
        [3]

        Cost: some microseconds for each batch and block; nothing per row, as blocks have their times in a table.
        """
        return View(
            self.name,
            self.schema,
            tuple([batch.at_depth(depth) for batch in self.batches]),
            frontier_at_depth(self.since, depth),
            frontier_at_depth(self.upper, depth),
        )

    def with_frontiers(self, since: Antichain, upper: Antichain) -> View:
        """The same batches between other frontiers."""
        _ = self._parts  # made once for both
        view = object.__new__(View)
        view.__dict__.update(self.__dict__)
        view.__dict__.update(since=since, upper=upper)
        return view

    def lookup(self, keys: Asked, as_of: Timestamp) -> Selection:
        """Every value of each key, with how often it is there."""
        return self._look_up(keys, as_of, _ALL, False, False)

    def present(self, keys: Keys) -> Selection:
        """The row of each key as of the greatest time, in a state in which a key never has more than one row."""
        nodes, rows, exact, _alive = self._asked(keys)
        parts, schema = self._parts, self.schema
        with counted:
            written, count = presence.find_present(
                parts.descriptors,
                parts.runs,
                nodes,
                rows,
                schema.hash_word,
                exact,
                schema.starts[-1],
            )
        return Selection(self, written[1, :count], written[0, :count], written[2, :count])

    def first(
        self, keys: Asked, as_of: Timestamp, k: int = 1, *, skip_null: bool = False
    ) -> Selection:
        """At most `k` live values of each key, from the start of the declared order.

        A value is live when it is there at least once; one that is there twice counts as one of the `k`.
        """
        return self._look_up(keys, as_of, self._check_k(k), False, skip_null)

    def last(
        self,
        keys: Asked,
        as_of: Timestamp,
        k: int = 1,
        *,
        at: pa.Array | None = None,
        closed: bool = True,
        skip_null: bool = False,
    ) -> Selection:
        """At most `k` live values of each key, from the end of the declared order backwards.

        `at` gives, per key, a bound on the first order column: only values that come before it
        count (or, `closed`, at it).
        """
        limit = self._check_k(k)
        if at is None:
            return self._look_up(keys, as_of, limit, True, skip_null)
        return self._bounded(keys, as_of, None, at, (True, closed), True, limit)

    def between(
        self,
        keys: Asked,
        as_of: Timestamp,
        since: pa.Array | None = None,
        until: pa.Array | None = None,
        *,
        closed: tuple[bool, bool] = (True, True),
    ) -> Selection:
        """Every live value of each key whose first order column lies between two bounds, in declared order.

        Bounds are given per key; without one, that end is open to all. `closed` says of each end whether
        values at the bound count.
        """
        return self._bounded(keys, as_of, since, until, closed, False, _ALL)

    def latest(
        self, keys: Asked, as_of: Timestamp, at: pa.Array, *, closed: bool = True
    ) -> tuple[Ints, int]:
        """For each key the name of the row that `last` would give, or -1; and how many keys have a row."""
        nodes, rows, exact, _alive = self._asked(keys)
        until, _held = self._bound(at, rows)
        names, schema, parts = np.empty(rows, np.int64), self.schema, self._parts
        with counted:
            count = bounding.find_last(
                parts.descriptors, parts.runs, nodes, rows, schema.hash_word, exact, self._check_time(as_of),
                schema.starts[-1], until, closed, schema.starts[len(schema.key)], names,
            )  # fmt: skip
        return names, count

    def _bounded(
        self,
        keys: Asked,
        as_of: Timestamp,
        since: pa.Array | None,
        until: pa.Array | None,
        closed: tuple[bool, bool],
        backward: bool,
        limit: int,
    ) -> Selection:
        nodes, rows, exact, _alive = self._asked(keys)
        low, _low = self._bound(since, rows)
        high, _high = self._bound(until, rows)
        schema, parts = self.schema, self._parts
        with counted:
            written, count = bounding.find_between(
                parts.descriptors, parts.runs, nodes, rows, schema.hash_word, exact, self._check_time(as_of),
                schema.starts[-1], low, closed[0], high, closed[1], schema.starts[len(schema.key)],
                backward, limit,
            )  # fmt: skip
        return Selection(self, written[1, :count], written[0, :count], written[2, :count])

    def changes(self, keys: Asked) -> Selection:
        """All changes of each key at their times. Times before `since` may have been advanced to `since`."""
        nodes, rows, exact, _alive = self._asked(keys)
        places, total = self._search(nodes, rows, exact)
        bases, times = self._times
        written = np.empty((4, total), np.int64)
        searching.list_changes(self.descriptors, bases, places, written)
        return Selection(self, written[1], written[0], written[2], times, written[3])

    def later(self, keys: Keys, time: Timestamp) -> list[tuple[Timestamp, Ints]]:
        """The times after `time` at which the values of some keys may change.

        These are the joins of `time` with every time s of a change of a key, where s is not at or before `time`. Each
        comes with the numbers of the keys that have such a change, ascending.
        """
        parts = self._parts
        who, which, joins = next_times.find_later(
            parts.descriptors, parts.runs, keys.nodes, keys.rows, self.schema.hash_word,
            parts.exact and not keys.nullable, np.array(time, np.int64),
        )  # fmt: skip
        if len(joins) <= 1:
            return [(tuple(joins[0].tolist()), who)] if len(joins) else []
        joined = tuple(map(tuple, joins.tolist()))
        table = union(joined)
        queries, starts = next_times.group_later(who, which, codes_in(joined, table), len(table))
        cuts = starts.tolist()
        return [(some, queries[cuts[code] : cuts[code + 1]]) for code, some in enumerate(table)]

    def scan(
        self, as_of: Timestamp, rows: int = SCAN_ROWS, *, start: int = 0
    ) -> Iterator[Selection]:
        """All rows from the hash `start` on, in the order of hashes, in pieces of about `rows` rows and whole keys."""
        visible, flags = searching.flag_visible(self.descriptors, self._check_time(as_of))
        positions = np.empty((len(self.batches), 2), np.int64)
        scanning.seek(self.descriptors, self.runs, np.uint64(start), positions)
        while True:
            names, counts = np.empty(rows, np.int64), np.empty(rows, np.int64)
            with counted:
                count = scanning.scan(
                    self.descriptors,
                    self.runs,
                    visible,
                    flags,
                    self.schema.starts[-1],
                    positions,
                    names,
                    counts,
                )
            if count < 0:  # one hash has more rows than the piece: make room for it
                rows = -count
            elif count == 0:
                if all(positions[:, 0] >= self.runs[1:]):
                    return
            else:
                yield Selection(self, names[:count], None, counts[:count])

    def to_batch(self, as_of: Timestamp) -> pa.RecordBatch:
        """All rows as of a time. A last column `count` says how often each row is there.

        The last column is called `count_` where a column of the state is called `count`.
        """
        names = [*self.schema.key.names, *self.schema.value.names]
        names.append(free_name("count", names))
        types = [column.type for column in [*self.schema.key, *self.schema.value]]
        schema = pa.schema(list(zip(names, [*types, pa.int64()], strict=True)))
        pieces = [
            pa.record_batch([*piece.to_batch().columns, as_column(piece.counts)], schema=schema)
            for piece in self.scan(as_of)
        ]
        return _concat(pieces, schema)

    def check_readable(self, as_of: Timestamp) -> None:
        """Refuse a time that is not in [since, upper)."""
        for frontier in (self.since, self.upper):
            for time in frontier:
                check_depth([as_of], len(time), f"read {self.name!r}")
        if self.since.less_equal(as_of) and not self.upper.less_equal(as_of):
            return
        past = not self.since.less_equal(as_of)
        raise TimeViolation(
            "time.compacted" if past else "time.not_complete",
            f"cannot read {self.name!r} as of {as_of}: it can be read from {self.since} "
            f"up to, not including, {self.upper}",
            hint="hold the times you want to read back to, before they are compacted"
            if past
            else "wait until the time is complete: advance the upper past it",
            name=self.name,
            as_of=as_of,
        )

    def _asked(self, keys: Asked) -> tuple[Ints, int, bool, object]:
        """The table of nodes of some keys, their number, whether equal hashes are equal keys, and an owner of memory.

        The table is valid only as long as the caller holds a reference to the owner.
        """
        if isinstance(keys, Keys):
            return keys.nodes, keys.rows, self.exact and not keys.nullable, keys
        if isinstance(keys, np.ndarray) and self._takes_words(keys):
            return word_table(keys), len(keys), self.exact, keys
        arrays = self._key_arrays(keys, f"look up keys in {self.name!r}")
        rows = len(arrays[0]) if arrays else len(keys)
        nodes = node_table(arrays, self.schema.descending[: len(arrays)])
        exact = self.exact and all(array.null_count == 0 for array in arrays)
        return nodes, rows, exact, arrays

    def _search(self, nodes: Ints, rows: int, exact: bool) -> tuple[Ints, int]:
        """Where each key is in each batch (`kernels.searching.find`), and how many rows that are."""
        places = np.empty((3, rows, len(self.batches)), np.int64)
        mask = self.schema.hash_word
        return places, searching.find(self.descriptors, self.runs, nodes, mask, exact, places)

    def _takes_words(self, keys: np.ndarray[Any, Any]) -> bool:
        """Whether kernels can read this array as the key column, without any check or conversion."""
        schema = self.schema
        return bool(
            type(keys) is np.ndarray  # a masked array has nulls
            and keys.dtype == np.int64
            and keys.ndim == 1
            and keys.flags.c_contiguous
            and len(schema.key) == 1
            and schema.canonical[0] == _INT64
        )

    def _key_arrays(self, keys: Asked, attempt: str) -> list[pa.Array]:
        if isinstance(keys, pa.Table | pa.RecordBatch):
            return self.schema.conform_key(keys, attempt)
        if len(self.schema.key) != 1:
            raise SchemaError(
                "schema.key_columns",
                f"cannot {attempt} with one array: the key has {len(self.schema.key)} columns: "
                f"{', '.join(self.schema.key.names)}",
                hint="give a table with these columns",
                columns=self.schema.key.names,
            )
        array = keys
        if not isinstance(keys, pa.Array | pa.ChunkedArray):
            if not isinstance(keys, np.ndarray):
                raise SchemaError(
                    "schema.keys",
                    f"cannot {attempt}: the keys are {type(keys).__name__}, not a table or an array",
                    hint="give a NumPy or Arrow array, or a table with the key columns",
                    given=type(keys).__name__,
                )
            try:
                array = pa.array(keys)
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise SchemaError(
                    "schema.keys",
                    f"cannot {attempt}: the NumPy array of {keys.dtype} is no Arrow column: {error}",
                    hint="give an array of one dimension and one type",
                    given=str(keys.dtype),
                ) from error
        return [conform_column(array, self.schema.key.field(0), self.schema.canonical[0], attempt)]

    def _bound(self, at: pa.Array | None, rows: int) -> tuple[int, object]:
        """The address of the table of bounds, 0 for none, and the owners of its memory, to be held while it is used."""
        if at is None:
            return 0, None
        key = len(self.schema.key)
        if not self.schema.order:
            raise SchemaError(
                "schema.no_order",
                f"cannot read {self.name!r} up to a bound: its rows have no declared order inside a key",
                hint="declare the state with order=[column]",
                name=self.name,
            )
        column = self.schema.columns[key]
        if not isinstance(at, pa.Array | pa.ChunkedArray):
            at = pa.array(at)
        attempt = f"read {self.name!r} up to a bound"
        array = conform_column(at, column, self.schema.canonical[key], attempt)
        if len(array) != rows:
            raise SchemaError(
                "schema.length",
                f"cannot {attempt}: {len(array)} bounds for {rows} keys",
                hint="give one bound for each key",
                bounds=len(array),
                keys=rows,
            )
        nodes = column_table([array])
        return nodes.ctypes.data, (array, nodes)

    def _look_up(
        self, keys: Asked, as_of: Timestamp, limit: int, backward: bool, skip_null: bool
    ) -> Selection:
        """The values of each key: all of them, or at most `limit` of the live ones."""
        nodes, rows, exact, _alive = self._asked(keys)
        parts, schema = self._parts, self.schema
        end = schema.starts[-1]
        with counted:
            written, count = searching.look_up(
                parts.descriptors, parts.runs, nodes, rows, schema.hash_word, exact,
                self._check_time(as_of), end, backward, limit, limit != _ALL,
                skip_null and schema.key_end < end,
            )  # fmt: skip
        return Selection(self, written[1, :count], written[0, :count], written[2, :count])

    def _check_k(self, k: int) -> int:
        """The number of values of each key to read; refused if it is no whole number from 0 on."""
        if not hasattr(k, "__index__") or k < 0:
            raise SchemaError(
                "schema.k",
                f"cannot read {k!r} values of each key of {self.name!r}",
                hint="k is how many values of each key are read at most: an integer from 0 on",
            )
        return min(int(k), _ALL - 1)

    def _check_time(self, as_of: Timestamp) -> Ints:
        """A time in the form that kernels take; refused if the state cannot be read as of it."""
        if not self._is_readable(as_of):
            as_of = as_timestamp(as_of, f"read {self.name!r}")
            self.check_readable(as_of)
        return np.array([min(coordinate, _ALL) for coordinate in as_of], np.int64)

    def _is_readable(self, as_of: Timestamp) -> bool:
        """Whether `as_of` is a time in [since, upper). `check_readable` also says why not."""
        if type(as_of) is not tuple:
            return False
        for coordinate in as_of:
            if coordinate.__class__ is not int:
                return False
        depth = len(as_of)
        for element in (*self.since.elements, *self.upper.elements):
            if len(element) != depth:
                return False
        return reaches(self.since, as_of) and not reaches(self.upper, as_of)

    @property
    def _times(self) -> tuple[Ints, Times]:
        """Where the table of times of each block begins, and these tables one after the other."""
        parts = self._parts
        if parts.times is not None:
            return parts.times
        bases = np.zeros(len(self.blocks), np.int64)
        times: list[Timestamp] = []
        known: dict[int, int] = {}
        for at, block in enumerate(self.blocks):
            if id(block.times) not in known:
                known[id(block.times)] = len(times)
                times += block.times
            bases[at] = known[id(block.times)]
        parts.times = bases, tuple(times)
        return parts.times


def _concat(pieces: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if not pieces:
        return empty_batch(schema)
    return pa.concat_batches(pieces)


class Deferred(View):
    """A view of rows that an actor holds in a form of its own. Its one batch is built when the view is first read.

    An actor that holds rows in memory, in whichever order suits it, gives such a view at every boundary. Most of these
    views are never read: only a checkpoint, or another worker, reads one. Law **same rows**: `make` gives the same
    rows whenever it is called; nothing that it refers to may change.
    """

    make: Callable[[], Changes | None]

    @cached_property
    def batches(self) -> tuple[Batch, ...]:
        """The one batch, built on first use."""
        changes = self.make()
        lower = Antichain([(0,) * len(next(iter(self.upper)))])
        if changes is None:
            return (Batch(self.schema, (), lower, self.upper, lower),)
        positions = tuple(range(len(self.schema.columns)))
        return (Batch.of(self.schema, changes, positions, lower, self.upper),)


def deferred(
    name: str, schema: Schema, epoch: int, depth: int, make: Callable[[], Changes | None]
) -> View:
    """A view, as of the boundary before `epoch`, of what `make` gives: changes at times before it, in physical order.

    None stands for no rows.

    >>> schema = Schema.of({"k": pa.int64()}, {"v": pa.int64()})
    >>> deferred("waiting", schema, 3, 1, lambda: Changes.of([pa.array([7]), pa.array([1])], (2,)))
    <View of 'waiting': 1 changes, readable from {(3,)} up to {(3,)}>

    Cost: a microsecond, and sorting the rows when the view is looked into.
    """
    upper = Antichain.boundary(epoch, depth)
    view = object.__new__(Deferred)
    view.__dict__.update(name=name, schema=schema, since=upper, upper=upper, make=make)
    return view


def join_views(views: list[View]) -> View:
    """One view of a state out of the views that several workers have of it: disjoint hash ranges, the same `upper`.

    Each worker merges its batches at its own pace, so the chains end at the same frontier and are cut differently
    before it. Laws:

    - **All changes.** The joined view holds the changes of all views, and is readable as of every time at which all the
      views are readable.
    - **One chain.** Batches are adjacent, the blocks of each batch ascend by hash, and no hash is in two blocks. Where
      the chains were cut differently, a frontier between two joined batches is taken from one chain; a change of
      another chain may then stand in the batch before or after the batch that its time belongs to. That is sound:
      reading looks at the times of changes only, and merging adds up equal changes.

    Batches of different views become one by listing the blocks of all: the oldest with the oldest, the next with the
    next, since chains shrink alike from old to new. A batch without rows, such as slicing leaves, gives its times to
    its neighbour. Cost: nothing per row; some microseconds for each block.

    >>> from riverrun.state.spine import Spine
    >>> spine = Spine("sums", Schema.of({"n": pa.int64()}, {"sum": pa.int64()}))
    >>> spine.insert(pa.table({"n": range(100), "sum": range(100)}), time=(0,))
    >>> view, half = spine.view(), 1 << 63
    >>> low = replace(view, batches=tuple(batch.slice(0, half) for batch in view.batches))
    >>> high = replace(view, batches=tuple(batch.slice(half, 2 * half) for batch in view.batches))
    >>> join_views([high, low]).to_batch(as_of=(0,)) == view.to_batch(as_of=(0,))
    True
    """
    first, *others = views
    for view in others:
        for what, ours, theirs in (
            ("name", first.name, view.name),
            ("schema", first.schema, view.schema),
            ("upper", first.upper, view.upper),
        ):
            if ours != theirs:
                raise ValueError(f"views that are joined have one {what}, not {ours} and {theirs}")
    chains = [_close_gaps(list(view.batches)) for view in views if any(view.batches)]
    longest = max(chains, key=len, default=[])
    lower = reduce(Antichain.meet, (chain[0].lower for chain in chains)) if chains else first.upper
    batches = []
    for at, like in enumerate(longest):
        level = [chain[at] for chain in chains if at < len(chain)]
        batches.append(replace(_stack(level), lower=lower, upper=like.upper))
        lower = like.upper
    since = reduce(Antichain.join, (view.since for view in views))
    return View(first.name, first.schema, tuple(batches), since, first.upper)


def _close_gaps(chain: list[Batch]) -> list[Batch]:
    """The same chain with the times of batches without rows given to their neighbours."""
    closed = chain[:1]
    for batch in chain[1:]:
        if len(batch) == 0:
            closed[-1] = replace(closed[-1], upper=batch.upper)
        elif len(closed[-1]) == 0:
            closed[-1] = replace(batch, lower=closed[-1].lower)
        else:
            closed.append(batch)
    return closed


def _stack(batches: list[Batch]) -> Batch:
    """One batch with the blocks of batches of disjoint ranges of hashes."""
    blocks = sorted((block for batch in batches for block in batch.blocks), key=lambda b: b.first)
    for a, b in pairwise(blocks):
        if b.first <= a.last:
            raise ValueError(f"views that are joined share no hash; two have {b.first:#x}")
    since = reduce(Antichain.join, (batch.since for batch in batches))
    return replace(batches[0], blocks=tuple(blocks), since=since)
