"""Table: the solution of a delta iteration by supersteps, with one row a key, changed in place.

The rows that a round accepts come back for the next one, and take the place of the rows with their keys. Whoever joins
the solution by its key looks rows up here (`joins.ProbeRound`), and `Touched` gives the rows of the keys that a delta
has. So a superstep costs the rows of its workset and delta, and not those of the solution. Laws:

- **One row a key.** What comes has one row for each key; it replaces the row that the key had.
- **Between rounds.** Rows are replaced when a round begins, before anybody reads the table in this round.
- **Gone at the end.** The table has the rows of one run of the loop. They leave at the end, and are kept outside.

Cost: a lookup for each row that comes; rows are merged in pieces that double, so each is moved a logarithmic number of
times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from riverrun.operators.arrange import changes_of, state_schema
from riverrun.operators.rounds.gather import (
    BEGINNING,
    RoundActor,
    StandingRows,
    batch_of,
)
from riverrun.plan.operator import Actor, Context, Operator, PlacedInput, Placement, hold
from riverrun.progress import Antichain, Timestamp
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.keys import Keys
from riverrun.state.view import View

ROWS, LAST, MARKS = range(3)
"""The inputs of `InPlace`: what a round begins with; what the last round accepts; the mark that it was the last."""


@dataclass(frozen=True)
class InPlace(Operator):
    """The solution, by its key. The output has all rows, when the loop ends."""

    key: tuple[str, ...]
    kind: ClassVar[str] = "table"
    kernels: ClassVar[tuple[str, ...]] = ("searching.look_up",)

    @property
    def adds_up(self) -> bool:
        return True

    def describe(self) -> str:
        return f"the solution, a row for each {', '.join(self.key)}, replaced in place"

    def identity(self) -> str:
        return f"table by {', '.join(self.key)}"

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        finite = [each.keys for each in inputs[:MARKS] if each.keys is not None]
        return set.intersection(*finite) if finite else None

    def start(self, context: Context) -> SolutionTable:
        return SolutionTable(context, self)


class SolutionTable(StandingRows):
    """The rows of a solution on a worker."""

    in_place: ClassVar[bool] = True

    def __init__(self, context: Context, operator: InPlace) -> None:
        super().__init__(context)
        columns = self.node.schemas[0]
        self.schema = state_schema(columns, operator.key)
        places = {name: at for at, name in enumerate(columns.names)}
        self._positions = [places[field.name] for field in self.schema.columns]
        self._physical = range(len(columns))
        self._held: dict[Timestamp, list[Changes]] = {}
        self._ends: set[Timestamp] = set()
        self._requested: set[Timestamp] = set()
        self._batches: list[Batch] = []

    def receive(self, port: int, changes: Changes) -> None:
        if port == MARKS:
            self._ends.update(changes.times)
            for time in changes.times:
                self._request(time)
        else:
            hold(self._held, changes, self._request)

    def _request(self, time: Timestamp) -> None:
        if time not in self._requested:
            self._requested.add(time)
            self.context.request(time)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        self._requested.remove(time)
        if not time[-1]:
            self._batches.clear()
        pieces = self._held.pop(time, None)
        if pieces is not None:
            self._replace(Changes.concat(pieces), time)
        if time in self._ends:
            self._ends.remove(time)
            for rows in self.standing(time):
                self.context.push(rows, 0)

    def _replace(self, changes: Changes, time: Timestamp) -> None:
        """Put rows in the place of those with their keys."""
        changes = changes.with_columns([changes.columns[at] for at in self._positions])
        batch = batch_of(self.schema, changes, self._physical, time)
        if not len(batch):
            return
        if self._batches:
            old = self.view(time).lookup(Keys.of_batch(batch), time[:1])
            if len(old):
                gone = Changes(
                    tuple(old.canonicals(self._physical)), len(old), (time,), None, 0, -old.counts
                )
                both = Changes.concat([changes, gone])
                batch = batch_of(self.schema, both, self._physical, time)
        batches = self._batches
        batches.append(batch)
        while len(batches) > 1 and 2 * len(batches[-1]) > len(batches[-2]):
            pair = Changes.concat([changes_of(batches.pop(), time) for _ in range(2)])
            batches.append(batch_of(self.schema, pair, self._physical, time))

    def view(self, time: Timestamp) -> View:
        batches = tuple([batch for batch in self._batches if len(batch)])
        return View("", self.schema, batches, BEGINNING, Antichain([(time[0] + 1,)]))

    def boundary(self, epoch: int) -> None:
        self._batches.clear()


@dataclass(frozen=True)
class Touched(Operator):
    """The rows of a table (input 1) whose keys a round has among gathered rows (input 0)."""

    kind: ClassVar[str] = "touched"
    kernels: ClassVar[tuple[str, ...]] = ("searching.look_up",)
    reads_arrangements: ClassVar[bool] = True

    def describe(self) -> str:
        return "the rows of the solution that the delta touches"

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        return inputs[1].keys

    def start(self, context: Context) -> Toucher:
        return Toucher(context)


class Toucher(Actor):
    """The keys of a round on a worker, until the round is whole."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        gathered, table = context.sources
        assert isinstance(gathered, RoundActor)
        assert isinstance(table, StandingRows)
        self._table = table
        places = table.schema.positions
        names = self.node.schemas[0].names
        self._order = [places[name] for name in names]
        gathered.rows.readers.append(self._announced)
        self._came: dict[Timestamp, Batch] = {}

    def _announced(self, batch: Batch, time: Timestamp) -> None:
        self.context.arrive(0, time)
        self._came[time] = batch
        self.context.request(time)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        keys = Keys.of_batch(self._came.pop(time))
        rows = self._table.view(time).lookup(keys, time[:1])
        if len(rows):
            columns = tuple(rows.canonicals(self._order))
            self.context.push(Changes(columns, len(rows), (time,), None, 0, rows.counts), 0)
