"""Unkept: the actor of a reduce that keeps no result, for plans in which nobody reads the result as an arrangement.

A `Reduce` keeps its results for two purposes: others read them (joins, groups by the same key, outputs), and the
reduce itself looks up which result a group had before. Where nobody else reads them, the optimizer has the reduce not
keep them (`plan.optimizer.unread`). Then the former result of a group is computed once more, from the input as it was
before the epoch. So the rows of the result are kept nowhere twice. Laws:

- **Same changes.** The changes given are those of the reduce, at the same times.
- **Outside of loops.** There an epoch is one time, and all that was given before adds up to the results before the
  epoch. (In a loop it does not: changes of several rounds meet.) So an unkept reduce stands outside of loops.
- **Content is new.** In a backfill the content of an input is announced as a whole, and there is no former result.

Cost: a count looks each group up once. Other results are computed twice for each group touched, the second time in
place of a look-up and of an append to a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from riverrun.operators.aggregates import (
    GroupPart,
    Ints,
    Present,
    Sums,
    counted_changes,
    evaluate_parts,
    take_keys,
)
from riverrun.operators.arrange import diffs_of
from riverrun.plan.operator import Actor, Arranged, Arrangement, Context, so_far
from riverrun.progress import Antichain, Timestamp
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.keys import Keys
from riverrun.state.view import View


@dataclass(slots=True)
class _Touched:
    """What came to the groups in an epoch."""

    keys: list[Keys]
    before: dict[int, View | None]
    """By input, the arrangement without the batch of this epoch; None where the batch is all that there is."""
    diffs: Ints | None = None
    """Of a count: by how much each row of the only batch counts."""


class UnkeptReducer(Actor):
    """A reduce that keeps no result, on a worker."""

    def __init__(self, context: Context, parts: Sequence[GroupPart]) -> None:
        super().__init__(context)
        self._parts = parts
        self._inputs: list[Arrangement] = []
        for source in context.sources:
            assert isinstance(source, Arranged)
            self._inputs.append(source.arrangement)
        (only, *others) = parts
        self._counts = not others and (
            isinstance(only, Present) or (isinstance(only, Sums) and not only.slots)
        )
        self._schema = self._inputs[0].spine.schema
        self._touched: dict[Timestamp, _Touched] = {}
        self._distinct = list({id(each): each for each in self._inputs}.values())
        for arrangement in self._distinct:
            port = self._inputs.index(arrangement)
            arrangement.keeps_before = arrangement.keeps_before or not self._counts
            arrangement.readers.append(partial(self._came, port))

    def _came(self, port: int, batch: Batch, time: Timestamp) -> None:
        """A batch was appended to the arrangement at an input."""
        self._take(port, batch, time, self._inputs[port].before)

    def announced(self, port: int, batch: Batch, time: Timestamp) -> None:
        """The content of the arrangement at an input (*content is new*)."""
        self._take(port, batch, time, None)

    def _take(self, port: int, batch: Batch, time: Timestamp, before: View | None) -> None:
        self.context.arrive(port, time)
        touched = self._touched.get(time)
        if touched is None:
            touched = self._touched[time] = _Touched([], {})
            self.context.request(time)
        touched.keys.append(Keys.of_batch(batch))
        touched.before[id(self._inputs[port])] = before
        if self._counts:
            touched.diffs = diffs_of(batch)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        touched = self._touched.pop(time)
        pieces = touched.keys
        keys = pieces[0] if len(pieces) == 1 else Keys.union(self._schema, pieces)
        if touched.diffs is not None:
            view = so_far(self._inputs[0].spine, upper)
            width = len(self._parts[0].schema)
            changes = counted_changes(view, keys, touched.diffs, time, width)
        else:
            changes = self._difference(keys, touched.before, time, upper)
        if changes is not None and changes.rows:
            self.context.push(changes, 0)

    def _difference(
        self, keys: Keys, before: dict[int, View | None], time: Timestamp, upper: Antichain
    ) -> Changes | None:
        """The changes from the former results of some keys to the new ones."""
        now = [so_far(each.spine, upper) for each in self._inputs]
        pieces = [self._results(now, keys, time, 1)]
        former = []
        for each, view in zip(self._inputs, now, strict=True):
            one = before.get(id(each), view)
            if one is None:
                break
            former.append(one.with_frontiers(one.since, upper))
        else:
            pieces.append(self._results(former, keys, time, -1))
        rows = [piece for piece in pieces if piece is not None]
        if not rows:
            return None
        return rows[0] if len(rows) == 1 else Changes.concat(rows).consolidate()

    def _results(
        self, views: Sequence[View], keys: Keys, time: Timestamp, sign: int
    ) -> Changes | None:
        """The results of some keys, as changes of one sign."""
        queries, columns, counts = evaluate_parts(self._parts, views, keys, time)
        if not len(queries):
            return None
        columns = take_keys(keys, queries, counts is None) + columns
        if counts is None:
            return Changes(columns, len(queries), (time,), None, sign, None)
        return Changes(columns, len(queries), (time,), None, 0, sign * np.asarray(counts, np.int64))
