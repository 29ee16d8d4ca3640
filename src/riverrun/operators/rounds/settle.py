"""Settle: the result of a loop by rounds, kept outside of the loop as a state like any other.

The loop gives its whole result when it has run, and a mark. `Settle` compares the result with the one before, keeps
what differs, and sends that on. So checkpoints, histories, moved shards and changed programs see one arrangement. Law:

- **Net change.** What is sent in an epoch is the difference of two results, added up: nothing where they are equal.

Cost: sorting the result, in each epoch in which the loop runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from riverrun.operators.arrange import changes_of, state_schema
from riverrun.operators.iterations.array_loop import content_of
from riverrun.plan.operator import (
    Arranged,
    Arrangement,
    Context,
    Operator,
    PlacedInput,
    Placement,
    hold,
    so_far,
)
from riverrun.progress import Antichain, Timestamp
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes

RESULT, MARKS = range(2)
"""The inputs."""


@dataclass(frozen=True)
class Settle(Operator):
    """The last result of a loop, arranged by a key."""

    key: tuple[str, ...]
    kind: ClassVar[str] = "settle"
    keeps_state: ClassVar[bool] = True
    gives_content: ClassVar[bool] = True

    def describe(self) -> str:
        return f"keep the result of the loop by {', '.join(self.key) or 'nothing'}"

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        return inputs[RESULT].keys

    def start(self, context: Context) -> Settler:
        return Settler(context, self)


class Settler(Arranged):
    """The result on a worker."""

    def __init__(self, context: Context, operator: Settle) -> None:
        super().__init__(context)
        columns = self.node.schemas[0]
        self._schema = state_schema(columns, operator.key)
        places = {name: at for at, name in enumerate(columns.names)}
        self._positions = [places[field.name] for field in self._schema.columns]
        self._order = [self._schema.positions[name] for name in columns.names]
        self.arrangement = Arrangement(context.spine(self._schema))
        self._held: dict[Timestamp, list[Changes]] = {}
        self._marked: set[Timestamp] = set()

    def receive(self, port: int, changes: Changes) -> None:
        if port == RESULT:
            hold(self._held, changes, self._mark)
        else:
            for time in changes.times:
                self._mark(time)

    def _mark(self, time: Timestamp) -> None:
        if time not in self._marked:
            self._marked.add(time)
            self.context.request(time)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        self._marked.remove(time)
        pieces = self._held.pop(time, [])
        for rows in content_of(so_far(self.arrangement.spine, upper), time):
            pieces.append(rows.with_columns([rows.columns[at] for at in self._order]).negate())
        if not pieces:
            return
        changes = Changes.concat(pieces)
        lower = self.arrangement.spine.upper
        batch = Batch.of(self._schema, changes, self._positions, lower, upper)
        if not len(batch):
            return
        self.arrangement.append(batch, time)
        if self.context.has_consumers:
            added = changes_of(batch, time)
            self.context.push(added.with_columns([added.columns[at] for at in self._order]), 0)
