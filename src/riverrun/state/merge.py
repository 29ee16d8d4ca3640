"""Merging two adjacent batches a bounded step at a time.

A spine, the chain of the batches of one state, merges neighbours with a `Merger`, or at once with `fold` where they are
small. A `Merger` reads two batches from the least hash to the greatest, and writes one batch. There, times have been
advanced to `since` (the frontier before which times need not be told apart any more: `spine`), and changes that are
then equal are added up. Laws:

- **Merging is invisible.** As of every time at or after `since`, the result has the rows that the inputs have. The
  inputs do not change, and readers see them until the result is whole.
- **Bounded step.** `work` handles at most `fuel` rows, and then the rest of the group it is at. A group is the changes
  of one key and value; each batch has at most one of them for each time. So the step depends on `fuel` and on how many
  times the batches have, not on how many rows.

Memory: the inputs and the result, that is at most twice the rows being merged. The inputs are freed when the result is
whole and no reader holds them.
Cost: 8 ns a row of two int64 columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from riverrun.progress import Antichain
from riverrun.state.batch import Batch, sort_into_blocks
from riverrun.state.block import CHUNK_ROWS, NO_CODES, Block, BlockWriter, pack_blocks, pack_merged
from riverrun.state.buffers import empty
from riverrun.state.columns import ColumnWriter
from riverrun.state.counted import counted
from riverrun.state.kernels import gathering, layout, merging
from riverrun.state.times import Codes, Times, advance, codes_in, union

_NOTHING = np.zeros(layout.BLOCK_FIELDS, np.int64)  # the descriptor of no rows
_NO_MAP = np.zeros(1, np.int32)


class Merger:
    """Merges `a` and the batch after it, `b`."""

    def __init__(self, a: Batch, b: Batch, since: Antichain) -> None:
        self.a, self.b = a, b
        self.since = since
        self.remaining = len(a) + len(b)
        """Rows not read yet: the fuel needed to finish."""
        self.blocks: list[Block] = []
        """The blocks of the result that are complete."""
        tables = {id(block.times): block.times for block in (*a.blocks, *b.blocks)}
        self._times = union(*(advance(table, since) for table in tables.values()))
        self._maps: dict[int, tuple[Times, Codes]] = {}
        """By the id of a table of times: the table, held so that no other object gets its id, and the new codes."""
        blocks = (*a.blocks, *b.blocks)
        self._nodes = len(blocks[0].nodes)
        self._first = 1 if all(block.hashes_suffice for block in blocks) else 0
        self._written = 0
        self._writer = BlockWriter(a.schema, self._times, self.remaining)
        self._left = _Cursor(a.blocks)
        self._right = _Cursor(b.blocks)
        codes = len(self._times)
        self._group = np.zeros((3, codes), np.int64)
        room = min(CHUNK_ROWS, self.remaining) + codes
        self._rows, self._diffs = empty(room, np.int64), empty(room, np.int64)
        self._hashes, self._codes = empty(room, np.uint64), empty(room, np.int32)

    def __len__(self) -> int:
        return len(self.a) + len(self.b)

    def work(self, fuel: int) -> int:
        """Read up to `fuel` rows; return the fuel left over."""
        while fuel > 0 and self.remaining:
            left, right = self._left, self._right
            i, j, count = self._merge_words(min(fuel, CHUNK_ROWS))
            words_merged = i + j > left.row + right.row
            if not words_merged:
                i, j, count = self._merge(min(fuel, CHUNK_ROWS))
            handled = (i - left.row) + (j - right.row)
            fuel -= handled
            self.remaining -= handled
            self._written += count
            # As many of the rows to come will cancel as did so far.
            share = self._written / (len(self) - self.remaining)
            self._writer.expect(count + int(self.remaining * share * 1.1))
            if words_merged:
                self._writer.append_reserved(self._diffs[:count])
            elif count:
                nodes = [left.descriptor[layout.NODES], right.descriptor[layout.NODES]]
                # A side without rows has no table; nothing names it, but every table is asked for its nulls.
                tables = np.array([node or nodes[0] or nodes[1] for node in nodes])
                self.blocks += self._writer.append(
                    tables, self._rows[:count], self._hashes[:count], self._codes[:count],
                    self._diffs[:count],
                )  # fmt: skip
            left.advance(i)
            right.advance(j)
        if not self.remaining:
            self.blocks += self._writer.finish()
        return fuel

    def _merge(self, fuel: int) -> tuple[int, int, int]:
        """Name the next rows of the result. Returns how far both sides have been read, and how many rows were named."""
        left, right = self._left, self._right
        with counted:
            return merging.merge_step(
                (left.descriptor, left.row, left.is_last, self._map(left.block)),
                (right.descriptor, right.row, right.is_last, self._map(right.block)),
                self._first, self._nodes, fuel, self._group,
                (self._rows, self._hashes, self._codes, self._diffs),
            )  # fmt: skip

    def _merge_words(self, fuel: int) -> tuple[int, int, int]:
        """`_merge` for rows that are a hash and one word, which are written to their place at once. Reads nothing of
        blocks with other rows."""
        left, right = self._left, self._right
        place = (
            None if left.block is None or right.block is None else self._writer.reserve_words(fuel)
        )
        if place is None:
            return left.row, right.row, 0
        return merging.merge_words(
            left.descriptor, left.row, right.descriptor, right.row, self._first, self._nodes, fuel,
            *place, self._diffs,
        )  # fmt: skip

    def replace_input(self, old: Batch, fresh: Batch) -> None:
        """Go on with the same rows in other memory: an input was spilled."""
        if old is self.a:
            self.a = fresh
            self._left.replace(fresh.blocks)
        else:
            self.b = fresh
            self._right.replace(fresh.blocks)

    def result(self) -> Batch:
        """The merged batch, once nothing remains."""
        return Batch(self.a.schema, tuple(self.blocks), self.a.lower, self.b.upper, self.since)

    def _map(self, block: Block | None) -> Codes:
        if block is None:
            return _NO_MAP
        known = self._maps.get(id(block.times))
        if known is not None:
            return known[1]
        codes = codes_in(advance(block.times, self.since), self._times)
        self._maps[id(block.times)] = block.times, codes
        return codes


def fold(batches: Sequence[Batch], since: Antichain) -> Batch:
    """Merge a few small adjacent batches at once; more than two by sorting their rows again."""
    schema, blocks = batches[0].schema, [block for batch in batches for block in batch.blocks]
    tables = [advance(block.times, since) for block in blocks]
    times = union(*tables)
    if len(blocks) == 2:
        packed = pack_merged(schema, blocks[0], blocks[1], tables, times)
    else:
        packed = pack_blocks(schema, blocks, tables, times)
    if packed is not None:
        return Batch(schema, packed, batches[0].lower, batches[-1].upper, since)
    maps = np.concatenate([codes_in(table, times) for table in tables])
    bases = np.cumsum([0, *(len(table) for table in tables)])
    rows = sum(len(batch) for batch in batches)
    written = np.empty((3, rows), np.int64)
    descriptors = np.stack([block.descriptor for block in blocks])
    gathering.list_rows_of_blocks(descriptors, maps, bases, written)
    nodes = np.ascontiguousarray(descriptors[:, layout.NODES])
    writers = [ColumnWriter(kind, rows) for kind in schema.canonical]
    for writer, start in zip(writers, schema.starts, strict=False):
        writer.append(nodes, start, written[0])
    arrays = [writer.finish() for writer in writers]
    codes = written[1].astype(np.int32) if len(times) > 1 else NO_CODES
    folded = sort_into_blocks(schema, arrays, rows, times, codes, 0, written[2])
    return Batch(schema, folded, batches[0].lower, batches[-1].upper, since)


class _Cursor:
    """A place in the blocks of a batch."""

    __slots__ = ("_at", "_blocks", "block", "descriptor", "is_last", "row")

    def __init__(self, blocks: tuple[Block, ...]) -> None:
        self._blocks = blocks
        self._at = -1
        self._next()

    def _next(self) -> None:
        self._at = min(self._at + 1, len(self._blocks))
        self.is_last = self._at >= len(self._blocks) - 1
        self.block = self._blocks[self._at] if self._at < len(self._blocks) else None
        self.descriptor = _NOTHING if self.block is None else self.block.descriptor
        self.row = 0 if self.block is None else self.block.start

    def replace(self, blocks: tuple[Block, ...]) -> None:
        """The same blocks in other memory."""
        self._blocks = blocks
        if self.block is not None:
            self.block = blocks[self._at]
            self.descriptor = self.block.descriptor

    def advance(self, row: int) -> None:
        self.row = row
        if self.block is not None and row == self.block.stop:
            self._next()
