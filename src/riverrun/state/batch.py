"""A batch: the changes of a state between two frontiers, sorted, in blocks.

A change is (key, value, time, diff). The rows of a batch are its changes, sorted by key and added up: no two rows agree
in key, value and time, and no diff is zero. A batch never changes once it is built. `spine` keeps the batches of a
state as a chain; `merge` makes one batch of two neighbours. Three frontiers describe a batch. Laws:

- **Between lower and upper.** A batch holds exactly the changes whose time is at or after `lower` and not at or after
  `upper`. In a chain, the `upper` of a batch is the `lower` of the next one.
- **Readable from since.** Times before `since` may have been advanced to `since`, so a batch can be read as of the
  times at or after `since` only.

>>> import pyarrow as pa
>>> from riverrun.progress import Antichain
>>> schema = Schema.of({"word": pa.string()}, {"n": pa.int64()})
>>> rows = pa.table({"word": ["sea", "sea", "sky"], "n": [1, 1, 2]})
>>> batch = Batch.build(
...     schema, rows, time=(0,), diffs=[1, 1, 1], lower=Antichain([(0,)]), upper=Antichain([(1,)])
... )
>>> len(batch)
2

Cost: building sorts by hash (see `kernels.sorting`), 20 to 40 ns a row; slicing by hashes copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from riverrun.cached import cached_property
from riverrun.errors import SchemaError, TimeViolation
from riverrun.progress import Antichain, Timestamp
from riverrun.progress.timestamp import as_timestamp, check_depth
from riverrun.state.block import (
    NO_CODES,
    NO_DIFFS,
    Block,
    BlockWriter,
    pack_difference,
    pack_rows,
)
from riverrun.state.buffers import empty
from riverrun.state.changes import Changes
from riverrun.state.columns import Ints, column_table, node_table
from riverrun.state.counted import counted
from riverrun.state.kernels import layout, sorting, values
from riverrun.state.schema import FULL_MASK, Rows, Schema
from riverrun.state.times import codes_in, frontier_at_depth, reaches, top

if TYPE_CHECKING:
    from riverrun.state.keys import Keys
    from riverrun.state.view import Selection


NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """Sorted changes at times in [lower, upper), readable as of times from `since` on."""

    schema: Schema
    blocks: tuple[Block, ...]
    lower: Antichain
    upper: Antichain
    since: Antichain

    @cached_property
    def rows(self) -> int:
        """How many changes the batch holds."""
        return sum(len(block) for block in self.blocks)

    def __len__(self) -> int:
        return self.rows

    @cached_property
    def top(self) -> Timestamp | None:
        """The least time at or after the times of all changes; None when there are no changes."""
        if len(self.blocks) == 1 and len(self.blocks[0].times) == 1:
            return self.blocks[0].times[0]
        return top({id(block.times): block.times for block in self.blocks}.values())

    @cached_property
    def descriptors(self) -> Ints:
        """The descriptors of the blocks, by which kernels know them: one row for each block."""
        if len(self.blocks) == 1:
            return self.blocks[0].descriptor.reshape(1, layout.BLOCK_FIELDS)
        rows = [block.descriptor for block in self.blocks]
        return np.array(rows, np.int64).reshape(len(rows), layout.BLOCK_FIELDS)

    @cached_property
    def tables(self) -> Ints:
        """The address of each block's table of nodes."""
        return self.descriptors[:, layout.NODES].copy()

    @cached_property
    def hashes_suffice(self) -> bool:
        """Whether equal hashes are equal keys in every block."""
        return not self.blocks or (
            self.schema.invertible and all(block.hashes_suffice for block in self.blocks)
        )

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.blocks)

    def __repr__(self) -> str:
        return f"<Batch of {self.rows} changes from {self.lower} up to {self.upper}, since {self.since}>"

    def with_frontiers(self, lower: Antichain, upper: Antichain) -> Batch:
        """The same changes between other frontiers."""
        batch = object.__new__(Batch)
        batch.__dict__.update(self.__dict__)  # cached properties depend on the blocks alone
        batch.__dict__.update(lower=lower, upper=upper)
        return batch

    def at_depth(self, depth: int) -> Batch:
        """The same changes at times of `depth` coordinates (`View.at_depth`)."""
        return Batch(
            self.schema,
            tuple([block.at_depth(depth) for block in self.blocks]),
            frontier_at_depth(self.lower, depth),
            frontier_at_depth(self.upper, depth),
            frontier_at_depth(self.since, depth),
        )

    def slice(self, low: int, high: int) -> Batch:
        """The changes whose key hash is in [low, high); either end may lie outside of [0, 2**64)."""
        low, high = max(low, 0), min(high, 1 << 64)
        if low >= high:
            return replace(self, blocks=())
        pieces = (block.slice(low, high) for block in self.blocks)
        return replace(self, blocks=tuple(block for block in pieces if block is not None))

    @classmethod
    def of(
        cls,
        schema: Schema,
        changes: Changes,
        positions: Sequence[int],
        lower: Antichain,
        upper: Antichain,
    ) -> Batch:
        """Sort and add up changes: column i of the schema's physical order is `changes.columns[positions[i]]`.

        Times are in [lower, upper). That the columns have the types of the schema is not checked: `build`, which
        checks, costs several times as much for the few rows that a round of a loop has.
        """
        times = changes.times
        rows = changes.rows
        if rows == 0:
            return cls(schema, (), lower, upper, lower)
        for time in times:
            if not reaches(lower, time) or reaches(upper, time):
                raise _outside_batch(time, lower, upper, "build a batch")
        columns = changes.columns
        arrays = [columns[at] for at in positions]
        codes = NO_CODES if changes.codes is None else changes.codes
        diffs = NO_DIFFS if changes.diffs is None else changes.diffs
        blocks = sort_into_blocks(schema, arrays, rows, times, codes, changes.diff, diffs)
        return cls(schema, blocks, lower, upper, _minimum(len(times[0])))

    @classmethod
    def difference(
        cls,
        schema: Schema,
        keys: Keys,
        queries: Ints,
        new_values: Sequence[pa.Array],
        old: Selection,
        time: Timestamp,
        lower: Antichain,
        upper: Antichain,
    ) -> Batch | None:
        """The changes that replace the old rows of some keys by new rows, all at one time.

        A key has at most one new row: row i of `new_values` holds the values of key number queries[i], and `queries`
        ascend. `old` are the rows of the same keys in a state of this schema. Nothing is sorted, so the keys have to be
        in the order of a batch; None when they are not.
        """
        if not reaches(lower, time) or reaches(upper, time):
            raise _outside_batch(time, lower, upper, "build a batch")
        picked = keys if len(queries) == len(keys) else keys.take(queries)
        values = column_table(
            new_values
        )  # a state without a declared order has no descending columns
        nodes = np.concatenate((picked.nodes, values)) if len(values) else picked.nodes
        assert old.queries is not None
        rows = old.queries, old.names, old.counts
        blocks = pack_difference(
            schema, keys.nodes, len(keys), nodes, queries, old.view.descriptors, rows, time
        )
        if blocks is None:
            return None
        return cls(schema, blocks, lower, upper, _minimum(len(time)))

    @classmethod
    def build(
        cls,
        schema: Schema,
        rows: Rows,
        *,
        time: Timestamp | Sequence[Timestamp],
        diffs: int | Sequence[int] | Ints = 1,
        lower: Antichain,
        upper: Antichain,
        attempt: str = "build a batch",
    ) -> Batch:
        """Sort and add up `rows`. `time` and `diffs` are either one for all rows, or one for each row."""
        arrays = schema.conform(rows, attempt)
        count = rows.num_rows
        table, codes = _encode_times(time, count, lower, upper, attempt)
        diff, many = _encode_diffs(diffs, count, attempt)
        blocks = sort_into_blocks(schema, arrays, count, table, codes, diff, many)
        since = _minimum(len(table[0])) if table else lower  # no time was advanced yet
        return cls(schema, blocks, lower, upper, since)


def hash_key(schema: Schema, nodes: Ints, rows: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The key hash of each row of a table of nodes whose first columns are the key."""
    hashes = empty(rows, np.uint64)
    values.hash_rows(nodes.ctypes.data, schema.key_end, rows, hashes)
    if schema.hash_mask != FULL_MASK:
        hashes &= np.uint64(schema.hash_mask)
    return hashes


def sort_into_blocks(
    schema: Schema,
    arrays: list[pa.Array],
    rows: int,
    table: tuple[Timestamp, ...],
    codes: np.ndarray[Any, np.dtype[np.int32]],
    diff: int,
    diffs: Ints,
) -> tuple[Block, ...]:
    """Sort unsorted columns, add up equal changes, and write them into blocks.

    The time of a row is `table[code]`; without codes all rows have the first time. `diff` is the diff of all rows
    where there are no `diffs`.
    """
    if rows == 0:
        return ()
    packed = pack_rows(schema, arrays, rows, table, codes, diff, diffs)
    if packed is not None:
        return packed
    nodes = node_table(arrays, schema.descending)
    hashes = hash_key(schema, nodes, rows)
    address, end = nodes.ctypes.data, len(nodes)
    # Where equal hashes are equal keys, the order inside a hash starts with the first value column.
    first = 1 if schema.invertible and arrays[0].null_count == 0 else 0
    words = empty(0 if first == end else rows, np.uint64)
    words_decide = True  # the words tell rows of one key apart, without a look at the columns
    if first < end:
        size = int(nodes[first, layout.SIZE])
        words_decide = sorting.order_words(address, first, rows, words) and first + size == end
    columns = (words_decide, address, first, end)
    chosen, count = NO_ROWS, rows
    if not sorting.mostly_distinct(hashes, words, codes):
        sums = empty(rows, np.int64)
        with counted:
            chosen = sorting.add_up_equal(hashes, words, *columns, codes, diffs, diff, sums)
        diffs, count = sums, len(chosen)
    scratch = empty(4 * count, np.uint64)
    keys, words, names = sorting.sort_rows(hashes, chosen, words, *columns, codes, scratch)
    out_codes, out_diffs = empty(count, np.int32), empty(count, np.int64)
    with counted:
        rows_left = sorting.consolidate(
            keys, words, names, *columns, diffs, diff, out_codes, out_diffs
        )
    names, words = names[:rows_left], words[:rows_left]
    if words_decide and first == 1 < end and sorting.plain_words(address, first, words):
        # The words are the cells of the only value column, and lie in order already.
        nodes[first, layout.DATA], nodes[first, layout.ORIGIN] = words.ctypes.data, 0
        names = np.arange(rows_left)
    writer = BlockWriter(schema, table, rows_left)
    return writer.append_all(
        np.array([address]), names, keys[:rows_left], out_codes[:rows_left], out_diffs[:rows_left]
    )


def _encode_times(
    time: Any,
    rows: int,
    lower: Antichain,
    upper: Antichain,
    attempt: str,
) -> tuple[tuple[Timestamp, ...], np.ndarray[Any, np.dtype[np.int32]]]:
    """The table of times, and the code of each row's time; no codes where there is one time."""
    is_one = not isinstance(time, Sequence) or (
        isinstance(time, tuple) and not (time and isinstance(time[0], tuple))
    )
    each = tuple(as_timestamp(some, attempt) for some in ([time] if is_one else time))
    if not is_one and len(each) != rows:
        raise SchemaError(
            "schema.length",
            f"cannot {attempt}: {len(each)} times for {rows} rows",
            hint="give one time, or one for each row",
            times=len(each),
            rows=rows,
        )
    table = tuple(sorted(set(each)))
    depth = len(next(iter((*lower, *upper)), table[0] if table else ()))
    check_depth(table, depth, attempt)
    for at in table:
        if not lower.less_equal(at) or upper.less_equal(at):
            raise _outside_batch(at, lower, upper, attempt)
    return table, codes_in(each, table) if len(table) > 1 else NO_CODES


def _outside_batch(
    time: Timestamp, lower: Antichain, upper: Antichain, attempt: str
) -> TimeViolation:
    return TimeViolation(
        "time.outside_batch",
        f"cannot {attempt}: a change at {time} is outside the batch, which is from {lower} up to {upper}",
        hint="a change belongs to the batch between whose frontiers its time lies",
        time=time,
    )


@lru_cache(maxsize=64)
def _minimum(depth: int) -> Antichain:
    return Antichain.minimum(depth)


def _encode_diffs(diffs: int | Sequence[int] | Ints, rows: int, attempt: str) -> tuple[int, Ints]:
    if isinstance(diffs, int | np.integer) and -(1 << 63) <= diffs < 1 << 63:
        return int(diffs), NO_DIFFS
    many = np.asarray(diffs)
    if rows == many.size == 0:
        return 1, NO_DIFFS
    fits = many.dtype.kind in "iu" and many.shape == (rows,)
    if not fits or (many.dtype == np.uint64 and many.max() > np.iinfo(np.int64).max):
        raise SchemaError(
            "schema.diffs",
            f"cannot {attempt}: diffs are {many.dtype} of shape {many.shape} for {rows} rows; they are 64-bit "
            "signed integers",
            hint="give one integer, or one for each row, below 2**63",
            diffs=str(many.dtype),
            rows=rows,
        )
    return 0, np.ascontiguousarray(many, np.int64)
