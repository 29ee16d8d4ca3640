"""Unkept: the actor of a count that keeps no result, for plans in which nobody reads the result as an arrangement.

A `Reduce` keeps its results for two purposes: others read them (joins, groups by the same key, outputs), and the
reduce itself looks up which result a group had before. A count needs no look-up for that, nor does `distinct`: before
an epoch, a group had as many rows as now, less the diffs that came. So where nobody else reads the result, the
optimizer has the reduce not keep it (`plan.optimizer.unread`). Laws:

- **Same changes.** The changes given are those of the reduce that keeps its result, at the same times.
- **Outside of loops.** There an epoch is one time, and all that came before it adds up to what was there before. (In a
  loop it does not: changes of several rounds meet.)

(For sums, minima and tops this was tried as well: it takes a second evaluation in place of a look-up, which costs 20 to
50 % more for an epoch that touches many groups.)

Cost: one look-up for each group touched; no state.
"""

from __future__ import annotations

from riverrun.operators.aggregates import Ints, counted_changes
from riverrun.operators.arrange import diffs_of
from riverrun.plan.operator import Actor, Arranged, Context, so_far
from riverrun.progress import Antichain, Timestamp
from riverrun.state.batch import Batch
from riverrun.state.keys import Keys


class UnkeptCounter(Actor):
    """A count on a worker, whose result has `width` columns besides the key: the count in each, if any."""

    def __init__(self, context: Context, width: int) -> None:
        super().__init__(context)
        (source,) = context.sources
        assert isinstance(source, Arranged)
        self._input = source.arrangement
        self._width = width
        self._came: dict[Timestamp, tuple[Keys, Ints]] = {}
        self._input.readers.append(self._on_batch)

    def _on_batch(self, batch: Batch, time: Timestamp) -> None:
        self.announced(0, batch, time)

    def announced(self, port: int, batch: Batch, time: Timestamp) -> None:
        """The only batch of a time came to the arrangement at the input; or its content, in a backfill."""
        self.context.arrive(port, time)
        self._came[time] = Keys.of_batch(batch), diffs_of(batch)
        self.context.request(time)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        keys, diffs = self._came.pop(time)
        view = so_far(self._input.spine, upper)
        changes = counted_changes(view, keys, diffs, time, self._width)
        if changes is not None:
            self.context.push(changes, 0)
