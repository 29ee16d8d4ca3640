"""Reduce: what each group amounts to, kept up to date.

The result for a key at time t is a function of the key's rows as of t. Changes can alter it at
their own times, and at the *joins* of their times with those of the key's other changes: a row that
comes at (epoch 1, round 3) meets one of (epoch 0, round 7) at (1, 7) first. So when a key is
evaluated at t, it is noted for evaluation at join(s, t) for every time s of its history that is not
at or before t. Joins of more times come up in the same way, when the first join is evaluated.

Law: as of every time, the changes sent add up to the function of the changes received (law 5 of
DESIGN). *Why:* let t be the least time, in the order in which times are run, at which they differ
for a key. As of t the input is what it was without this epoch's changes, unless some of those are at
or before t; let u be the join of all of the key's changes at or before t of which at least one is
new. The input as of u is that as of t, u is at or before t, and the key was evaluated at u, by the
above, step by step; so output as of u is right. Between u and t neither input nor the old output
changes but at times that are joins of such too. QED.

Cost: the groups touched: one read each, of all rows, of the first ones, or of a sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import pyarrow as pa

from riverrun.engine.operator import Arranged, Arrangement, Context, Operator, so_far
from riverrun.engine.operators.aggregates import Evaluated, Ints, Part
from riverrun.engine.operators.arrange import changes_of, state_schema
from riverrun.progress import Antichain, Timestamp
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.keys import Keys


@dataclass(frozen=True)
class Reduce(Operator):
    """One result a group, or several rows. Its inputs are arrangements by `key`, one for each part."""

    key: tuple[str, ...]
    parts: tuple[Part, ...]
    text: str = ""
    kind: ClassVar[str] = "reduce"
    keeps_state: ClassVar[bool] = True
    reads_arrangements: ClassVar[bool] = True

    def describe(self) -> str:
        return self.text or f"reduce by {', '.join(self.key) or 'nothing'}"

    def start(self, context: Context) -> Reducer:
        return Reducer(context, self)


class Reducer(Arranged):
    """A reduce on a worker: its results, and the keys to be looked at, by time."""

    def __init__(self, context: Context, operator: Reduce) -> None:
        super().__init__(context)
        self._parts = operator.parts
        self._inputs: list[Arrangement] = []
        for source in context.sources:
            assert isinstance(source, Arranged)
            self._inputs.append(source.arrangement)
        self._schema = state_schema(self.node.schemas[0], operator.key)
        self._widths = range(len(operator.key), len(self._schema.columns))
        self._positions = tuple(range(len(self._schema.columns)))
        self.arrangement = Arrangement(context.spine(self._schema))
        self._touched: dict[Timestamp, list[Keys]] = {}
        self._distinct = list({id(each): each for each in self._inputs}.values())
        for arrangement in self._distinct:
            port = self._inputs.index(arrangement)
            arrangement.readers.append(partial(self._announced, port))

    def _announced(self, port: int, batch: Batch, time: Timestamp) -> None:
        self.context.arrive(port, time)
        self._touch(time, Keys.of_batch(batch))

    def _touch(self, time: Timestamp, keys: Keys) -> None:
        if time in self._touched:
            self._touched[time].append(keys)
        else:
            self._touched[time] = [keys]
            self.context.request(time)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        pieces = self._touched.pop(time)
        keys = pieces[0] if len(pieces) == 1 else Keys.union(self._schema, pieces)
        spine = self.arrangement.spine
        fresh = self._evaluate(keys, time, upper)
        old = so_far(spine, upper).lookup(keys, time)
        parts = []
        if fresh.rows:
            parts.append(fresh)
        if len(old):
            columns = _pick(keys, old.queries) + tuple(old.canonical(at) for at in self._widths)
            parts.append(Changes(columns, len(old), (time,), None, 0, -old.counts))
        if parts:
            changes = parts[0] if len(parts) == 1 else Changes.concat(parts)
            batch = Batch.of(self._schema, changes, self._positions, spine.upper, upper)
            if len(batch):
                self.arrangement.append(batch, time)
                if self.context.has_consumers:
                    self.context.push(changes_of(batch, time), 0)
        for arrangement in self._distinct:
            for later, queries in arrangement.spine.view().later(keys, time):
                self._touch(later, keys.take(queries))

    def _evaluate(self, keys: Keys, time: Timestamp, upper: Antichain) -> Changes:
        """What the keys amount to as of a time."""
        results = [
            part.evaluate(so_far(self._inputs[at].spine, upper), keys, time)
            for at, part in enumerate(self._parts)
        ]
        queries, columns, counts = results[0]
        for other in results[1:]:
            columns = (*columns, *_align(queries, other))
        whole = _pick(keys, queries) + columns
        if counts is None:
            return Changes(whole, len(queries), (time,), None, 1, None)
        return Changes(whole, len(queries), (time,), None, 0, counts)


def _pick(keys: Keys, queries: Ints) -> tuple[pa.Array, ...]:
    """The key columns for some queries."""
    if len(queries) == len(keys) and (len(queries) == 0 or _is_range(queries)):
        return keys.columns
    return keys.take(queries).columns


def _is_range(queries: Ints) -> bool:
    return bool(queries[0] == 0 and queries[-1] == len(queries) - 1 and (np.diff(queries) == 1).all())


def _align(queries: Ints, other: Evaluated) -> tuple[pa.Array, ...]:
    """The columns of another part for the same keys; null where it gives nothing."""
    found, columns, _ = other
    if len(found) == len(queries) and (found == queries).all():
        return columns
    where = np.searchsorted(found, queries)
    where = np.minimum(where, max(len(found) - 1, 0))
    missing = np.ones(len(queries), bool) if not len(found) else found[where] != queries
    return tuple(column.take(pa.array(where, mask=missing)) for column in columns)

