"""Join: pairs of changes with equal keys, from two arrangements.

A pair's diff is the product of both and its time the join of both (the first time at which both are
there), so the pairs add up to the join of what the two sides add up to. Each side's batch meets all
that the other side has announced so far; hence every pair is made once, when the later of the two
is announced. It waits for nothing and keeps nothing: the state is the arrangements'.

Cost: what a batch brings, times the rows it meets (law 7 of DESIGN).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from riverrun.engine.operator import Actor, Arranged, Context, Operator
from riverrun.progress import Timestamp
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.matching import match
from riverrun.state.view import View


@dataclass(frozen=True)
class Join(Operator):
    """Pairs rows of two arrangements with equal keys. `columns` are those of a pair: side and name."""

    columns: tuple[tuple[int, str], ...]
    on: tuple[tuple[str, str], ...] = ()
    """The columns that are equal in a pair, for people."""
    kind: ClassVar[str] = "join"
    reads_arrangements: ClassVar[bool] = True
    tracked: ClassVar[bool] = False

    def describe(self) -> str:
        if not self.on:
            return "join all pairs"
        return "join on " + ", ".join(a if a == b else f"{a} = {b}" for a, b in self.on)

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
        schemas = [side.spine.schema for side in self._sides]
        self._columns = [(side, schemas[side].positions[name]) for side, name in operator.columns]
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

    def _meet(self, batch: Batch, view: View, side: int) -> None:
        if not view.batches:
            return
        needed = self.context.needed
        for pairs in match(batch, view):
            columns: list[pa.Array | None] = []
            for at, (which, index) in enumerate(self._columns):
                if needed is not None and at not in needed:
                    columns.append(None)
                elif which == side:
                    columns.append(pairs.left(index))
                else:
                    columns.append(pairs.right(index))
            self.context.push(
                Changes(tuple(columns), pairs.rows, pairs.times, pairs.codes, 0, pairs.diffs), 0
            )
