"""A view: a state as it stands, for reading. Immutable, so a reader is never disturbed by what comes after.

Reads are as of a time t with `since` <= t and t before `upper` (law 3: for such t the answer does
not depend on merging or compaction). A read adds up the diffs of each (key, value) over the times
at or before t and gives what does not cancel.

- `lookup`: all values of some keys;
- `first` and `last`: at most k live values of each key from either end of the declared order: min,
  max, top-k; with `at`, only values whose first order column comes at or before a bound: the as-of
  read of an application's own time;
- `changes`: the changes of some keys with their times, not added up;
- `later`: the times after one given at which some keys change;
- `scan`: everything, in the order of hashes, in pieces of bounded size.

Null keys are equal to each other here, as in grouping; a join that wants them to match nothing
leaves them out. A read gives a `Selection`: which query, which count, and columns that are gathered
when asked for.

Cost: per key and run, two or three cache misses (`kernels.searching`); nothing depends on the size
of the state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from riverrun.errors import SchemaError, TimeViolation
from riverrun.progress import Antichain, Timestamp, less_equal
from riverrun.progress.timestamp import as_timestamp, check_depth, join
from riverrun.state.batch import Batch
from riverrun.state.block import Block
from riverrun.state.columns import Ints, gather_column, node_table, word_table
from riverrun.state.kernels import layout, searching
from riverrun.state.keys import Keys
from riverrun.state.schema import Rows, Schema, conform_column, declared_column
from riverrun.state.times import Flags, Times, reaches, union, visible

Asked: TypeAlias = Keys | Rows | pa.Array | pa.ChunkedArray | np.ndarray[Any, Any]
"""The keys of a query: `Keys` are taken as they are, anything else is checked and brought to one layout."""

SCAN_ROWS = 1 << 16
_ALL = np.iinfo(np.int64).max
_INT64 = pa.int64()
_STAIRS = np.arange(65)
_SHARED = ("blocks", "runs", "descriptors", "tables", "exact", "_times")
"""What depends on the batches of a view alone."""


@dataclass(frozen=True, eq=False, repr=False)
class Selection:
    """Rows found by a read."""

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
        """The column at `index` of the physical order, in the layout it is kept in."""
        schema = self.view.schema
        return gather_column(
            self.view.tables, schema.starts[index], self.names, schema.canonical[index]
        )

    def to_batch(self) -> pa.RecordBatch:
        """All columns, key first."""
        schema = self.view.schema
        names = [*schema.key.names, *schema.value.names]
        columns = {"": pa.nulls(len(self))} | {name: self.column(name) for name in names}
        return pa.record_batch(columns).select(names)  # of no columns too, it knows its rows


@dataclass(frozen=True, eq=False)
class _Visible:
    """What is visible at a time. Whoever uses the addresses keeps this alive."""

    as_of: Timestamp
    addresses: Ints
    """Per block, where its flags are, one for each code; 0 when all is visible."""
    flags: dict[int, Flags | None]


@dataclass(frozen=True, eq=False, repr=False)
class View:
    """The batches of a state at one moment."""

    name: str
    schema: Schema
    batches: tuple[Batch, ...]
    since: Antichain
    upper: Antichain
    _remembered: dict[str, _Visible] = field(default_factory=dict, init=False, repr=False)
    """What is visible at the time of the last read, since reads tend to be as of one time."""

    def __repr__(self) -> str:
        rows = sum(map(len, self.batches))
        return f"<View of {self.name!r}: {rows} changes, readable from {self.since} up to {self.upper}>"

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(block for batch in self.batches for block in batch.blocks)

    @cached_property
    def runs(self) -> Ints:
        """Where each batch's blocks start in `blocks`, and where the last one's end."""
        for batch in self.batches:
            if len(batch.blocks) != 1:
                break
        else:
            if len(self.batches) < len(_STAIRS):
                return _STAIRS[: len(self.batches) + 1]
        counts = (len(batch.blocks) for batch in self.batches)
        return np.array([*accumulate(counts, initial=0)], np.int64)

    @cached_property
    def descriptors(self) -> Ints:
        if not self.batches:
            return np.zeros((0, layout.BLOCK_FIELDS), np.int64)
        return np.concatenate([batch.descriptors for batch in self.batches])

    @cached_property
    def tables(self) -> Ints:
        """The address of each block's table of nodes."""
        return self.descriptors[:, layout.NODES].copy()

    @cached_property
    def exact(self) -> bool:
        """Whether equal hashes are equal keys in every block."""
        return all(batch.inverts for batch in self.batches)

    def slice(self, low: int, high: int) -> View:
        """The same state of the keys whose hash is in [low, high)."""
        return replace(self, batches=tuple(batch.slice(low, high) for batch in self.batches))

    def moved(self, since: Antichain, upper: Antichain) -> View:
        """The same batches between other frontiers."""
        view = View(self.name, self.schema, self.batches, since, upper)
        for made in _SHARED:
            if made in self.__dict__:
                view.__dict__[made] = self.__dict__[made]
        return view

    def lookup(self, keys: Asked, as_of: Timestamp) -> Selection:
        """Every value of each key, with how often it is there."""
        places, total = self._find(keys)
        return self._add_up(places, total, as_of)

    def first(
        self, keys: Asked, as_of: Timestamp, k: int = 1, *, skip_null: bool = False
    ) -> Selection:
        """At most `k` live values of each key, from the start of the declared order.

        A value is live when it is there at least once; one that is there twice counts as one of the `k`.
        """
        places, total = self._find(keys)
        return self._add_up(places, total, as_of, k, skip_null=skip_null)

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
        places, total = self._find(keys)
        if at is not None:
            self._bound(at, closed, places)
        return self._add_up(places, total, as_of, k, backward=True, skip_null=skip_null)

    def changes(self, keys: Asked) -> Selection:
        """Every change of each key that is kept, at its time; times before `since` may have been advanced to it."""
        places, total = self._find(keys)
        bases, times = self._times
        written = np.empty((4, total), np.int64)
        searching.list_changes(self.descriptors, bases, places, written)
        return Selection(self, written[1], written[0], written[2], times, written[3])

    def later(self, keys: Keys, time: Timestamp) -> list[tuple[Timestamp, Ints]]:
        """When the values of some keys may change after `time`.

        For every change of a key at a time s that is not at or before `time`, the join of s and
        `time`: each of these times, with the numbers of the keys that have it, ascending.
        """
        batches = [b for b in self.batches if b.top is not None and not less_equal(b.top, time)]
        if not batches:
            return []
        if len(batches) < len(self.batches):
            part = View(self.name, self.schema, tuple(batches), self.since, self.upper)
            return part.later(keys, time)
        bases, times = self._times
        joined = [None if less_equal(some, time) else join(some, time) for some in times]
        table = union(tuple(some for some in joined if some is not None))
        where: dict[Timestamp | None, int] = {some: code for code, some in enumerate(table)}
        codes = np.array([where.get(some, -1) for some in joined], np.int64)
        places, total = self._find(keys)
        if total == 0:
            return []
        queries, starts = searching.list_later(
            self.descriptors, bases, codes, len(table), places, total
        )
        cuts = starts.tolist()
        return [
            (some, queries[cuts[code] : cuts[code + 1]])
            for code, some in enumerate(table)
            if cuts[code] < cuts[code + 1]
        ]

    def scan(self, as_of: Timestamp, rows: int = SCAN_ROWS) -> Iterator[Selection]:
        """Everything, in the order of hashes, about `rows` rows a piece."""
        seen = self._visible(as_of)
        positions = np.zeros((len(self.batches), 2), np.int64)
        for run, batch in enumerate(self.batches):
            positions[run] = self.runs[run], batch.blocks[0].start if batch.blocks else 0
        while True:
            names, counts = np.empty(rows, np.int64), np.empty(rows, np.int64)
            count = searching.scan(
                self.descriptors,
                self.runs,
                seen.addresses,
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
        """Everything as of a time; a last column `count` says how often each row is there.

        It is called `count_` where a column is called `count` already.
        """
        names = [*self.schema.key.names, *self.schema.value.names]
        count = "count"
        while count in names:
            count += "_"
        names.append(count)
        types = [column.type for column in [*self.schema.key, *self.schema.value]]
        schema = pa.schema(list(zip(names, [*types, pa.int64()], strict=True)))
        pieces = [
            pa.record_batch([*piece.to_batch().columns, pa.array(piece.counts)], schema=schema)
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

    def _find(self, keys: Asked) -> tuple[Ints, int]:
        """Where each key is in each run (see `searching.find`), and how many rows that are."""
        if isinstance(keys, Keys):
            return self._search(keys.nodes, keys.rows, self.exact and not keys.nullable)
        if isinstance(keys, np.ndarray) and self._takes_words(keys):
            return self._search(word_table(keys), len(keys), self.exact)
        arrays = self._key_arrays(keys, f"look up keys in {self.name!r}")
        rows = len(arrays[0]) if arrays else len(keys)
        nodes = node_table(arrays, self.schema.descending[: len(arrays)])
        exact = self.exact and all(array.null_count == 0 for array in arrays)
        return self._search(nodes, rows, exact)

    def _search(self, nodes: Ints, rows: int, exact: bool) -> tuple[Ints, int]:
        places = np.empty((3, rows, len(self.batches)), np.int64)
        mask = self.schema.hash_word
        return places, searching.find(self.descriptors, self.runs, nodes, mask, exact, places)

    def _takes_words(self, keys: np.ndarray[Any, Any]) -> bool:
        """Whether these keys are the key column as kernels see it, with nothing to be checked."""
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

    def _bound(self, at: pa.Array, closed: bool, places: Ints) -> None:
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
        if len(array) != places.shape[1]:
            raise SchemaError(
                "schema.length",
                f"cannot {attempt}: {len(array)} bounds for {places.shape[1]} keys",
                hint="give one bound for each key",
                bounds=len(array),
                keys=places.shape[1],
            )
        nodes = node_table([array], [False])
        searching.bound_ranges(
            self.descriptors, nodes.ctypes.data, self.schema.starts[key], closed, places
        )

    def _add_up(
        self,
        places: Ints,
        total: int,
        as_of: Timestamp,
        limit: int | None = None,
        backward: bool = False,
        skip_null: bool = False,
    ) -> Selection:
        seen = self._visible(as_of)
        if limit is not None:
            if not hasattr(limit, "__index__") or limit < 0:
                raise SchemaError(
                    "schema.k",
                    f"cannot read {limit!r} values of each key of {self.name!r}",
                    hint="k is how many values of each key are read at most: an integer from 0 on",
                )
            limit = min(int(limit), total)
        room = total if limit is None else min(total, limit * places.shape[1])
        written = np.empty((3, room), np.int64)
        key_end, end = self.schema.key_end, self.schema.starts[-1]
        count = searching.add_up(
            self.descriptors, seen.addresses, places, key_end, end, backward,
            _ALL if limit is None else limit, limit is not None, skip_null and key_end < end,
            written,
        )  # fmt: skip
        return Selection(self, written[1, :count], written[0, :count], written[2, :count])

    def _visible(self, as_of: Timestamp) -> _Visible:
        """What is visible at a time; refuses what cannot be read."""
        remembered = self._remembered.get("visible")
        # (1.0,) equals (1,), and is no time.
        if (
            remembered is not None
            and remembered.as_of == as_of
            and all(coordinate.__class__ is int for coordinate in as_of)
        ):
            return remembered
        if not self._is_readable(as_of):
            as_of = as_timestamp(as_of, f"read {self.name!r}")
            self.check_readable(as_of)
        addresses = np.zeros(len(self.descriptors), np.int64)
        flags: dict[int, Flags | None] = {}  # blocks share tables, and a long one takes a while
        base = 0
        for batch in self.batches:
            if batch.top is not None and not less_equal(batch.top, as_of):
                for at, block in enumerate(batch.blocks, base):
                    if id(block.times) not in flags:
                        flags[id(block.times)] = visible(block.times, as_of)
                    found = flags[id(block.times)]
                    if found is not None:
                        addresses[at] = found.ctypes.data
            base += len(batch.blocks)
        self._remembered["visible"] = fresh = _Visible(as_of, addresses, flags)
        return fresh

    def _is_readable(self, as_of: Timestamp) -> bool:
        """Whether `as_of` is a time in [since, upper), without a reason where it is not."""
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

    @cached_property
    def _times(self) -> tuple[Ints, Times]:
        """All blocks' tables of times, one after the other, and where each block's begins."""
        bases = np.zeros(len(self.blocks), np.int64)
        times: list[Timestamp] = []
        known: dict[int, int] = {}
        for at, block in enumerate(self.blocks):
            if id(block.times) not in known:
                known[id(block.times)] = len(times)
                times += block.times
            bases[at] = known[id(block.times)]
        return bases, tuple(times)


def _concat(pieces: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if not pieces:
        return pa.record_batch([pa.array([], column.type) for column in schema], schema=schema)
    return pa.concat_batches(pieces)
