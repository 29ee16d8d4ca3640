"""Reduce: the result of each group, maintained as rows come and go.

Every aggregation of a group is a reduce. `Grouper` here says when which groups are evaluated; the parts of a `Reduce`
(`operators.aggregates`, `operators.groups`) compute the results from arrangements. The groups of two collections
(`operators.co_group`) have a `Grouper` as well. The result for a key at time t is a function of the key's rows as of
t. A change can alter the result at its own time, and at the *joins* of its time with the times of the key's other
changes: a row of (epoch 1, round 3) meets one of (epoch 0, round 7) first at (1, 7). So when a key is evaluated at t,
it is noted for evaluation at join(s, t) for every time s of its history that is not at or before t. Joins of more times
come up in the same way, when the first join is evaluated. Law:

- **Oracle.** As of every time, the changes sent add up to the function of the changes received.

*Why:* Suppose they differ for a key, and let t be the first such time in the order in which times are run. If no new
change of the key is at or before t, the input as of t is what it was before this epoch, and so is the output.
Otherwise let u be the join of the times of all the key's changes at or before t; at least one of these is new. Then u
is at or before t, the input as of u is the input as of t, and the key was evaluated at u, by the above, step by step;
so the output as of u is right. Between u and t the old output changes only at times that are such joins too. QED.

Cost: for each group touched one read: of all its rows, of the first rows, or of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from riverrun.operators.aggregates import (
    Evaluated,
    GroupPart,
    Ints,
    counted_changes,
    evaluate_parts,
    take_keys,
)
from riverrun.operators.arrange import changes_of, diffs_of, state_schema
from riverrun.operators.kept import describe_kept, row_placement
from riverrun.operators.rounds.groups import GroupRound
from riverrun.operators.unkept import UnkeptCounter
from riverrun.plan.operator import (
    Actor,
    Arranged,
    Arrangement,
    Context,
    Operator,
    PlacedInput,
    Placement,
    so_far,
)
from riverrun.progress import Antichain, Timestamp, less_equal
from riverrun.state import Order, Schema
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.keys import Keys
from riverrun.state.view import Selection, View


@dataclass(frozen=True)
class Reduce(Operator):
    """One or several result rows for each group. The inputs are arrangements by `key`, one for each part."""

    key: tuple[str, ...]
    parts: tuple[GroupPart, ...]
    text: str = ""
    is_kept: bool = True
    """Whether the result is kept, as an arrangement. Otherwise it is sent only (`operators.unkept`)."""
    kind: ClassVar[str] = "reduce"
    kernels: ClassVar[tuple[str, ...]] = (
        "searching.look_up",
        "differing.pack_difference",
        "packing.unite_keys",
        "next_times.find_later",
        "next_times.group_later",
    )
    reads_arrangements: ClassVar[bool] = True

    @property
    def keeps_state(self) -> bool:  # type: ignore[override]
        return self.is_kept

    @property
    def gives_content(self) -> bool:  # type: ignore[override]
        return self.is_kept

    @property
    def adds_up(self) -> bool:
        return True

    @property
    def arranged_by(self) -> tuple[tuple[str, ...], tuple[Order, ...]] | None:
        return (self.key, ()) if self.is_kept else None

    @property
    def keeps(self) -> tuple[str, ...]:
        """The columns that are kept besides the key: those of the only part, a user's function."""
        return self.parts[0].keeps if len(self.parts) == 1 else ()

    def describe(self) -> str:
        return self._said() + describe_kept(self.keeps)

    def _said(self) -> str:
        return self.text or f"reduce by {', '.join(self.key) or 'nothing'}"

    def identity(self) -> str:
        codes = [part.code for part in self.parts if part.code]
        return " ".join([self._said(), *codes])

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        """By the key of the groups, where the input of every part is: a group's result is where its rows are. Where a
        function keeps columns, also by the keys in these."""
        if all(each.keys is None for each in inputs):
            return None  # no rows come, so there are no groups
        for each in inputs:
            key = tuple([each.position(name) for name in self.key])
            if each.keys is not None and key not in each.keys:
                return set()
        placed: Placement = {tuple([schema.get_field_index(name) for name in self.key])}
        if self.keeps:
            placed = row_placement(inputs[0], (*self.key, *self.keeps), schema)
        return placed

    @property
    def arity(self) -> int:
        """How many arrangements the groups are read from: one for each part."""
        return len(self.parts)

    def state(self, columns: pa.Schema) -> Schema:
        """The schema of the arrangement of results with these columns."""
        return state_schema(columns, self.key)

    def evaluate(
        self, views: Sequence[View], keys: Keys, time: Timestamp, schema: pa.Schema
    ) -> Evaluated:
        """The results of the keys as of a time, from a view of each input."""
        return evaluate_parts(self.parts, views, keys, time)

    def in_round(self, varying: Sequence[bool]) -> Operator:
        return GroupRound(self)

    def without_state(self) -> Reduce | None:
        is_count = len(self.parts) == 1 and self.parts[0].is_count
        return replace(self, is_kept=False) if is_count and self.is_kept else None

    def start(self, context: Context) -> Actor:
        if self.is_kept:
            return Reducer(context, self)
        return UnkeptCounter(context, len(self.parts[0].schema))


class Grouper(Arranged):
    """The results of groups on a worker: their arrangement, and by time the keys to be evaluated.

    The inputs are arrangements whose keys have the layout of `key`, the key of the result.
    """

    def __init__(self, context: Context, key: tuple[str, ...]) -> None:
        super().__init__(context)
        self._inputs: list[Arrangement] = []
        for source in context.sources:
            assert isinstance(source, Arranged)
            self._inputs.append(source.arrangement)
        self._schema = state_schema(self.node.schemas[0], key)
        self._widths = range(len(key), len(self._schema.columns))
        self._positions = tuple(range(len(self._schema.columns)))
        self.arrangement = Arrangement(context.spine(self._schema))
        self._touched: dict[Timestamp, list[Keys]] = {}
        self._distinct = list({id(each): each for each in self._inputs}.values())
        for arrangement in self._distinct:
            port = self._inputs.index(arrangement)
            arrangement.readers.append(partial(self.announced, port))

    def evaluate(self, views: Sequence[View], keys: Keys, time: Timestamp) -> Evaluated:
        """The results of the keys as of a time, from a view of each input."""
        raise NotImplementedError

    def announced(self, port: int, batch: Batch, time: Timestamp) -> None:
        """A batch was appended to one of the arrangements at the inputs."""
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
        self._renew(keys, time, upper)

    def _renew(self, keys: Keys, time: Timestamp, upper: Antichain) -> None:
        """Bring the results of some keys up to date as of a time."""
        spine = self.arrangement.spine
        views = [so_far(each.spine, upper) for each in self._inputs]
        queries, new_columns, counts = self.evaluate(views, keys, time)
        old = so_far(spine, upper).lookup(keys, time)
        batch = None
        if counts is None:
            batch = Batch.difference(
                self._schema, keys, queries, new_columns, old, time, spine.upper, upper
            )
        if batch is None:
            changes = self._difference(keys, time, queries, new_columns, counts, old)
            if changes is not None:
                batch = Batch.of(self._schema, changes, self._positions, spine.upper, upper)
        if batch is not None and len(batch):
            self.arrangement.append(batch, time)
            if self.context.has_consumers:
                self.context.push(changes_of(batch, time), 0)
        for arrangement in self._distinct:
            self._look_ahead(arrangement, keys, time)

    def _difference(
        self,
        keys: Keys,
        time: Timestamp,
        queries: Ints,
        new_columns: tuple[pa.Array, ...],
        counts: Ints | None,
        old: Selection,
    ) -> Changes | None:
        """The changes from the old results to the new ones. A row in both may be among them, once with each sign."""
        before, taken = old.queries, old.counts
        assert before is not None
        columns = tuple([old.canonical(at) for at in self._widths])
        pieces = []
        if len(queries):
            whole = take_keys(keys, queries, counts is None) + new_columns
            diff, diffs = (1, None) if counts is None else (0, counts)
            pieces.append(Changes(whole, len(queries), (time,), None, diff, diffs))
        if len(before):
            # Where changes of two times meet first, a key may have several old rows, of either sign.
            whole = keys.take(before).columns + columns
            pieces.append(Changes(whole, len(before), (time,), None, 0, -taken))
        if not pieces:
            return None
        return pieces[0] if len(pieces) == 1 else Changes.concat(pieces)

    def _look_ahead(self, arrangement: Arrangement, keys: Keys, time: Timestamp) -> None:
        """Note the keys for the joins of this time with the other times of their history.

        Of two such joins of a key of which one is after the other, only the earlier one is noted: when the key is
        evaluated there, the later one comes up again.
        """
        groups = arrangement.spine.view().later(keys, time)
        if len(groups) == 1:
            ((later, queries),) = groups
            self._touch(later, keys if len(queries) == len(keys) else keys.take(queries))
            return
        noted: list[tuple[Timestamp, np.ndarray[Any, np.dtype[np.bool_]]]] = []
        for later, queries in groups:
            for earlier, covered in noted:
                if less_equal(earlier, later):
                    queries = queries[~covered[queries]]
            if not len(queries):
                continue
            if noted and len(time) <= 2:  # one round after the other: one mark is enough
                noted[0][1][queries] = True
            else:
                mark = np.zeros(len(keys), np.bool_)
                mark[queries] = True
                noted.append((later, mark))
            self._touch(later, keys.take(queries))


class Reducer(Grouper):
    """A reduce on a worker."""

    def __init__(self, context: Context, operator: Reduce) -> None:
        super().__init__(context, operator.key)
        self._operator = operator
        # Outside loops, the former count is the present count less the diffs that came: no need to look it up.
        (only, *others) = operator.parts
        self._counts = not others and only.is_count and self.node.depth == 1
        self._came: dict[Timestamp, Ints] = {}

    def announced(self, port: int, batch: Batch, time: Timestamp) -> None:
        if self._counts:
            self._came[time] = diffs_of(batch)
        super().announced(port, batch, time)

    def evaluate(self, views: Sequence[View], keys: Keys, time: Timestamp) -> Evaluated:
        return self._operator.evaluate(views, keys, time, self.node.schemas[0])

    def _renew(self, keys: Keys, time: Timestamp, upper: Antichain) -> None:
        if self._counts:
            view, came = so_far(self._inputs[0].spine, upper), self._came.pop(time)
            self._append(counted_changes(view, keys, came, time, len(self._widths)), time, upper)
        else:
            super()._renew(keys, time, upper)

    def _append(self, changes: Changes | None, time: Timestamp, upper: Antichain) -> None:
        if changes is None:
            return
        lower = self.arrangement.spine.upper
        batch = Batch.of(self._schema, changes, self._positions, lower, upper)
        if len(batch):
            self.arrangement.append(batch, time)
            if self.context.has_consumers:
                self.context.push(changes_of(batch, time), 0)
