"""Join: pairs of changes with equal keys, from two arrangements.

All joins of collections use it. The diff of a pair is the product of the diffs of its two changes. Its time is the join
of their times: the first time at which both are there. So the pairs add up to the join of the sums of both sides. Laws:

- **Each pair once.** A batch of one side meets all batches that the other side has announced so far. So a pair is sent
  once, when the later one of its two changes is announced.
- **No state.** A join waits for nothing and stores nothing; the state is in the two arrangements.
- **Null meets nothing.** A row with a null in its key has no pair, as in SQL.

Cost: for each change of a batch, the rows of the other side with its key; not the size of either state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from riverrun.operators.rounds.joins import MatchRound, ProbeRound
from riverrun.plan.operator import (
    Actor,
    Arranged,
    Columns,
    Context,
    Operator,
    PlacedInput,
    Placement,
    moved_keys,
)
from riverrun.progress import Timestamp
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.columns import as_array
from riverrun.state.kernels import layout
from riverrun.state.matching import match
from riverrun.state.view import View


@dataclass(frozen=True)
class Join(Operator):
    """Pairs rows of two arrangements with equal keys. `columns` are the columns of a pair, each as side and name."""

    columns: tuple[tuple[int, str], ...]
    on: tuple[tuple[str, str], ...] = ()
    """The columns that are equal in a pair, for people."""
    kind: ClassVar[str] = "join"
    kernels: ClassVar[tuple[str, ...]] = (
        "matching.find_matches",
        "matching.list_matches",
        "matching.mark_codes",
        "packing.list_keys",
    )
    reads_arrangements: ClassVar[bool] = True
    tracked: ClassVar[bool] = False
    may_be_tracked: ClassVar[bool] = False
    needs_all_inputs: ClassVar[bool] = True
    may_cancel: ClassVar[bool] = True

    @property
    def pair_columns(self) -> Sequence[tuple[int, str]]:
        return self.columns

    def describe(self) -> str:
        if not self.on:
            return "join all pairs"
        return "join on " + ", ".join(a if a == b else f"{a} = {b}" for a, b in self.on)

    def identity(self) -> str:
        columns = ", ".join(f"{'right' if side else 'left'} {name}" for side, name in self.columns)
        return f"{self.describe()}: {columns}"

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        """By the keys of both sides: a pair is where its two rows are."""
        keys: set[Columns] = set()
        for side, each in enumerate(inputs):
            if each.keys is None:
                return None  # no row comes to this side, so there are no pairs
            origin = {
                each.position(name): at
                for at, (which, name) in enumerate(self.columns)
                if which == side
            }
            keys |= moved_keys(each.keys, origin)
        return keys

    def columns_read(self, at: int, taken: Collection[int] | None) -> Collection[str] | None:
        if taken is None:
            return None
        return {name for side, name in map(self.columns.__getitem__, taken) if side == at}

    def announced(self, arrangements: Mapping[int, int]) -> Sequence[int]:
        """The left side only, where both are there: its content then meets all content of the right side."""
        return (0,) if len(arrangements) == 2 else ()

    def pairs(
        self, batch: Batch, view: View, side: int, needed: Sequence[int] | None
    ) -> Iterator[Changes]:
        """The pairs of a batch, which is of this side (0: left, 1: right), with a view of the other side.

        `needed` are the numbers of the columns of a pair that somebody looks at; None: all."""
        if not view.batches:
            return
        nullable = _null_keys(batch)
        if needed is None:
            needed = range(len(self.columns))
        places = view.schema.positions, batch.schema.positions
        picked = [
            (which != side, places[which == side][name])
            for which, name in map(self.columns.__getitem__, needed)
        ]
        for pairs in match(batch, view):
            columns: list[pa.Array | None] = [None] * len(self.columns)
            for at, column in zip(needed, pairs.columns(picked), strict=True):
                columns[at] = column
            changes = Changes(tuple(columns), pairs.rows, pairs.times, pairs.codes, 0, pairs.diffs)
            if nullable:
                valid = [as_array(pairs.left(at).is_valid()) for at in nullable]
                chosen = np.flatnonzero(np.logical_and.reduce(valid))
                changes = _take(changes, chosen)
            if changes.rows:
                yield changes

    def in_round(self, varying: Sequence[bool]) -> Operator:
        return MatchRound(self) if all(varying) else ProbeRound(self, varying.index(True))

    def start(self, context: Context) -> Joiner:
        return Joiner(context, self)


class Joiner(Actor):
    """A join on a worker."""

    def __init__(self, context: Context, operator: Join) -> None:
        super().__init__(context)
        left, right = context.sources
        assert isinstance(left, Arranged)
        assert isinstance(right, Arranged)
        self._sides = (left.arrangement, right.arrangement)
        self._operator = operator
        self._itself = self._sides[0] is self._sides[1]
        if self._itself:
            self._sides[0].keeps_before = True
        self._sides[0].readers.append(self._left)
        self._sides[1].readers.append(self._right)

    def _left(self, batch: Batch, time: Timestamp) -> None:
        other = self._sides[1]
        view = other.before if self._itself else other.spine.view()
        assert view is not None
        self._meet(batch, view, 0)

    def _right(self, batch: Batch, time: Timestamp) -> None:
        self._meet(batch, self._sides[0].spine.view(), 1)

    def announced(self, port: int, batch: Batch, time: Timestamp) -> None:
        """Pair a batch with the whole content of one side with the content of the other side."""
        self._meet(batch, self._sides[1 - port].spine.view(), port)

    def _meet(self, batch: Batch, view: View, side: int) -> None:
        for pairs in self._operator.pairs(batch, view, side, self.context.needed):
            self.context.push(pairs, 0)


def _null_keys(batch: Batch) -> list[int]:
    """The key columns in which some row of the batch is null; such a row matches nothing."""
    starts, kinds = batch.schema.starts, batch.schema.canonical
    return [
        at
        for at in range(len(batch.schema.key))
        if pa.types.is_null(kinds[at])
        or any(block.nodes[starts[at], layout.VALID] for block in batch.blocks)
    ]


def _take(changes: Changes, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Changes:
    """Some rows of changes, in which the columns that nobody looks at are None."""
    there = [at for at, column in enumerate(changes.columns) if column is not None]
    taken = changes.with_columns([changes.columns[at] for at in there]).take(rows)
    columns: list[pa.Array | None] = [None] * len(changes.columns)
    for at, column in zip(there, taken.columns, strict=True):
        columns[at] = column
    return taken.with_columns(columns)
