"""GatherRound: the rows of one round, sorted by a key for whoever reads them in this round.

In a loop by rounds it takes the place of an arrangement (`operators.arrange`): it holds rows until the round is whole,
announces them as one batch, and forgets them. `groups` and `joins` read such batches. Law:

- **One batch a round.** All rows of a round are in one batch, added up.

Cost: sorting the rows of the round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import pyarrow as pa

from riverrun.plan.operator import Actor, Context, Operator, hold
from riverrun.progress import Antichain, Timestamp
from riverrun.state import Schema
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.view import View

BEGINNING = Antichain([(0,)])


class Keeps(Protocol):
    """An operator that keeps an arrangement of its own."""

    def state(self, columns: pa.Schema) -> Schema:
        """The schema of the arrangement of rows with these columns."""
        ...

    def describe(self) -> str: ...

    def identity(self) -> str: ...


class RoundBatches:
    """The rows of a round, as a batch that is announced to all readers."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.rows = 0
        """How many rows were announced so far."""
        self.readers: list[Callable[[Batch, Timestamp], None]] = []

    def announce(self, changes: Changes, positions: Sequence[int], time: Timestamp) -> None:
        """Announce the rows of round `time`; column i of the schema is `changes.columns[positions[i]]`."""
        batch = batch_of(self.schema, changes, positions, time)
        self.rows += len(batch)
        if len(batch):
            for reader in self.readers:
                reader(batch, time)


def batch_of(schema: Schema, changes: Changes, positions: Sequence[int], time: Timestamp) -> Batch:
    """The rows of a round as a batch of the epoch: so they can be read beside arrangements from outside of the loop."""
    epoch = time[:1]
    at_epoch = Changes(changes.columns, changes.rows, (epoch,), None, changes.diff, changes.diffs)
    return Batch.of(schema, at_epoch, positions, BEGINNING, Antichain([(epoch[0] + 1,)]))


def view_of(schema: Schema, batch: Batch | None, time: Timestamp) -> View:
    """The rows of a round as a state that can be read as of the epoch; without a batch, no rows."""
    batches = () if batch is None else (batch,)
    return View("", schema, batches, BEGINNING, Antichain([(time[0] + 1,)]))


class StandingRows(Actor):
    """An actor with rows that stay where they are, and are read as of a round."""

    schema: Schema
    in_place: ClassVar[bool] = False
    """Whether rounds change the rows: then what stands is saved with a round (`standing`)."""

    def view(self, time: Timestamp) -> View:
        """The rows in a round, to be read as of its epoch."""
        raise NotImplementedError

    def standing(self, time: Timestamp) -> Iterator[Changes]:
        """All rows in a round, in the order of the node's columns."""
        view = self.view(time)
        places = self.schema.positions
        order = [places[name] for name in self.node.schemas[0].names]
        for rows in view.scan(time[:1]) if view.batches else ():
            columns = tuple(rows.canonicals(order))
            yield Changes(columns, len(rows), (time,), None, 0, rows.counts)


class RoundActor(Actor):
    """An actor whose rows of a round others may read as a batch."""

    rows: RoundBatches


@dataclass(frozen=True)
class GatherRound(Operator):
    """The rows of each round, in the order of the arrangement that `keeper` would keep."""

    keeper: Keeps
    kind: ClassVar[str] = "gather"
    same_rows: ClassVar[bool] = True

    @property
    def adds_up(self) -> bool:
        return True

    def describe(self) -> str:
        return f"the rows of the round, for: {self.keeper.describe()}"

    def identity(self) -> str:
        return f"gather for {self.keeper.identity()}"

    def start(self, context: Context) -> Gatherer:
        return Gatherer(context, self)


class Gatherer(RoundActor):
    """The rows of rounds that are not whole, on a worker."""

    def __init__(self, context: Context, operator: GatherRound) -> None:
        super().__init__(context)
        columns = self.node.schemas[0]
        schema = operator.keeper.state(columns)
        places = {name: at for at, name in enumerate(columns.names)}
        self._positions = [places[field.name] for field in schema.columns]
        self.rows = RoundBatches(schema)
        self._held: dict[Timestamp, list[Changes]] = {}

    def receive(self, port: int, changes: Changes) -> None:
        hold(self._held, changes, self.context.request)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        changes = Changes.concat(self._held.pop(time))
        self.rows.announce(changes, self._positions, time)
        if self.context.has_consumers:
            self.context.push(changes, 0)


def at_round(changes: Changes, time: Timestamp) -> Changes:
    """The same changes, all at the time of a round."""
    return replace(changes, times=(time,), codes=None)
