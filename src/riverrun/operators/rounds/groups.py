"""Groups of a round: what a reduce or a co-group gives for the groups of one round, and nothing else.

The functions are those of `operators.reduce` and `operators.co_group`, so results are equal to the last bit. Law:

- **From scratch.** Every key that has rows in the round is evaluated, on the rows of the round alone.

Cost: the rows of the round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from riverrun.operators.aggregates import Evaluated
from riverrun.operators.rounds.gather import RoundActor, RoundBatches, view_of
from riverrun.plan.operator import Context, Operator, PlacedInput, Placement
from riverrun.progress import Antichain, Timestamp
from riverrun.state import Schema
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.columns import Ints, as_column
from riverrun.state.keys import Keys
from riverrun.state.view import View


class Evaluates(Protocol):
    """An operator on groups."""

    @property
    def arity(self) -> int:
        """From how many arrangements the groups are read."""
        ...

    def evaluate(
        self, views: Sequence[View], keys: Keys, time: Timestamp, schema: pa.Schema
    ) -> Evaluated:
        """The results of the keys as of a time, from a view of each input; they have the columns of `schema`."""
        ...

    def state(self, columns: pa.Schema) -> Schema: ...

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement: ...

    def describe(self) -> str: ...

    def identity(self) -> str: ...


@dataclass(frozen=True)
class GroupRound(Operator):
    """The results of all groups of a round. The inputs are gathered rows."""

    groups: Evaluates
    kind: ClassVar[str] = "group"
    kernels: ClassVar[tuple[str, ...]] = ("searching.look_up", "packing.unite_keys")
    reads_arrangements: ClassVar[bool] = True
    may_be_tracked: ClassVar[bool] = False

    @property
    def tracked(self) -> bool:  # type: ignore[override]
        """With one input, results are sent as soon as the batch of the round is announced."""
        return self.groups.arity > 1

    @property
    def adds_up(self) -> bool:
        return True

    def describe(self) -> str:
        return f"{self.groups.describe()}, of the rows of the round"

    def identity(self) -> str:
        return f"in the round: {self.groups.identity()}"

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        return self.groups.placement(inputs, schema)

    def start(self, context: Context) -> RoundGrouper:
        return RoundGrouper(context, self.groups)


class RoundGrouper(RoundActor):
    """The groups of a round, on a worker."""

    def __init__(self, context: Context, groups: Evaluates) -> None:
        super().__init__(context)
        self._groups = groups
        self._inputs: list[Schema] = []
        columns = self.node.schemas[0]
        self.rows = RoundBatches(groups.state(columns))
        self._positions = range(len(columns))
        for port, source in enumerate(context.sources):
            assert isinstance(source, RoundActor)
            self._inputs.append(source.rows.schema)
            source.rows.readers.append(partial(self._announced, port))
        self._came: dict[Timestamp, list[Batch | None]] = {}

    def _announced(self, port: int, batch: Batch, time: Timestamp) -> None:
        if len(self._inputs) == 1:
            self._give([batch], time)
            return
        self.context.arrive(port, time)
        if time not in self._came:
            self._came[time] = [None] * len(self._inputs)
            self.context.request(time)
        self._came[time][port] = batch

    def run(self, time: Timestamp, upper: Antichain) -> None:
        self._give(self._came.pop(time), time)

    def _give(self, batches: Sequence[Batch | None], time: Timestamp) -> None:
        epoch, schema = time[:1], self.node.schemas[0]
        views = [
            view_of(kind, batch, time) for kind, batch in zip(self._inputs, batches, strict=True)
        ]
        pieces = [Keys.of_batch(batch) for batch in batches if batch is not None]
        keys = pieces[0] if len(pieces) == 1 else Keys.union(self.rows.schema, pieces)
        queries, columns, counts = self._groups.evaluate(views, keys, epoch, schema)
        if not len(queries):
            return
        whole = (*_named(keys, queries, counts), *columns)
        diff, diffs = (1, None) if counts is None else (0, counts)
        changes = Changes(whole, len(queries), (time,), None, diff, diffs)
        if self.rows.readers:
            self.rows.announce(changes, self._positions, time)
        if self.context.has_consumers:
            self.context.push(changes, 0)


def _named(keys: Keys, queries: Ints, counts: Any) -> tuple[pa.Array, ...]:
    """The key columns for some queries."""
    if len(queries) == len(keys) and (counts is None or _are_all(queries)):
        return keys.columns
    if counts is None:
        return keys.take(queries).columns
    indices = as_column(queries)
    return tuple([column.take(indices) for column in keys.columns])


def _are_all(queries: Ints) -> bool:
    return bool((queries == np.arange(len(queries))).all())
