"""Array loops: the actor of a node that runs a whole loop on arrays, whatever the loop does.

The actors of two nodes are subclasses: `spread`, where a best value spreads along edges, and `pull`, where every key
pulls parts along its edges in each round. The inputs of such a node are arrangements by no key, so all rows are on one
worker. An epoch is one call of `run`: the actor hands the changes at the inputs to the arrays (`stage`), has the loop
run to its end (`converge`), and sends the net change of the result. Laws:

- **Derived.** All that the arrays hold follows from the arrangements at the inputs, so the only state of the node is
  the result of the loop. The first time that an actor is run, it takes all rows at the inputs, and sends the difference
  between its result and its state. So the result is the same whichever states were kept, and which were built anew.
- **Once.** Each change at an input is handed over once.

Cost: the first run of an actor, after a start or after an epoch that was refused, takes all rows, and reads the state.
The subclasses say what a later run costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from riverrun.operators.arrange import changes_of, state_schema
from riverrun.plan.loop_figures import RoundFigures
from riverrun.plan.operator import Actor, Arranged, Arrangement, Context, so_far
from riverrun.progress import Antichain, Timestamp
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.columns import Ints
from riverrun.state.types import canonical
from riverrun.state.view import View


class TakesRows(Actor):
    """An actor that hands the rows of the arrangements at its inputs on to arrays (`stage`)."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._inputs: list[tuple[Arrangement, list[int]]] = []
        self.kinds: list[list[pa.DataType]] = []
        """The canonical types of the columns of each input."""
        for port, (source, at) in enumerate(zip(context.sources, self.node.inputs, strict=True)):
            assert isinstance(source, Arranged)
            arrangement, schema = source.arrangement, source.node.schemas[at.output]
            places = arrangement.spine.schema.positions
            self._inputs.append((arrangement, [places[name] for name in schema.names]))
            self.kinds.append([canonical(each.type, each.name) for each in schema])
            arrangement.readers.append(partial(self.announced, port))
        self._came: dict[Timestamp, list[tuple[int, Changes]]] = {}
        self.has_taken = False
        """Whether rows were taken: from then on, changes only."""

    def stage(self, port: int, columns: Sequence[pa.Array], diffs: Ints) -> None:
        """Take changes at an input."""
        raise NotImplementedError

    def announced(self, port: int, batch: Batch, time: Timestamp) -> None:
        self.context.arrive(port, time)
        if time not in self._came:
            self._came[time] = []
            self.context.request(time)
        self._came[time].append((port, changes_of(batch, time)))

    def take(self, time: Timestamp, upper: Antichain) -> None:
        """Stage the changes of a time; the first time, all rows that there are."""
        came = self._came.pop(time, [])
        is_first, self.has_taken = not self.has_taken, True
        for port, changes in self._all(time, upper) if is_first else came:
            columns = [changes.columns[at] for at in self._inputs[port][1]]
            self.stage(port, columns, np.asarray(changes.diff_array(), np.int64))

    def _all(self, time: Timestamp, upper: Antichain) -> Iterator[tuple[int, Changes]]:
        """All rows at the inputs as of a time."""
        for port, (arrangement, _) in enumerate(self._inputs):
            every = list(content_of(so_far(arrangement.spine, upper), time))
            if every:
                yield port, Changes.concat(every)


class GivesResult(Arranged):
    """An actor whose state is what a loop on arrays has for its keys."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        columns = self.node.schemas[0]
        self._schema = state_schema(columns, self.state_key)
        self._order = [self._schema.positions[name] for name in columns.names]
        self.arrangement = Arrangement(context.spine(self._schema))
        self._has_given = False
        self._rounds: list[RoundFigures] = []
        """What the rounds did that were not told yet."""

    @property
    def state_key(self) -> tuple[str, ...]:
        """The key of the state."""
        return ()

    def measured(self) -> Sequence[RoundFigures]:
        """What the rounds of the last run did, in their order. Called once, after it."""
        raise NotImplementedError

    def rounds(self) -> Sequence[RoundFigures]:
        told, self._rounds = self._rounds, []
        return told

    def give(
        self, parts: Sequence[tuple[Sequence[pa.Array], Ints]], time: Timestamp, upper: Antichain
    ) -> None:
        """Give what a result differs by from the last one: columns, and diffs. The first time, all of the result."""
        is_first, self._has_given = not self._has_given, True
        given = [
            Changes(tuple(columns), len(diffs), (time,), None, 0, diffs)
            for columns, diffs in parts
            if len(diffs)
        ]
        self._rounds += self.measured()
        if is_first:
            for rows in content_of(so_far(self.arrangement.spine, upper), time):
                given.append(rows.with_columns([rows.columns[at] for at in self._order]).negate())
        if not given:
            return
        changes = given[0] if len(given) == 1 else Changes.concat(given)
        order = sorted(range(len(self._order)), key=self._order.__getitem__)
        batch = Batch.of(self._schema, changes, order, self.arrangement.spine.upper, upper)
        if not len(batch):
            return
        self.arrangement.append(batch, time)
        if self.context.has_consumers:
            added = changes_of(batch, time)
            self.context.push(added.with_columns([added.columns[at] for at in self._order]), 0)


class ArrayLoop(TakesRows, GivesResult):
    """A loop on arrays. A subclass takes changes (`stage`), and runs the loop (`converge`)."""

    def converge(self) -> list[tuple[Sequence[pa.Array], Ints]]:
        """Run the loop, and give what the result differs by from that of the last run: columns, and diffs. The first
        run gives all rows."""
        raise NotImplementedError

    def run(self, time: Timestamp, upper: Antichain) -> None:
        self.take(time, upper)
        self.give(self.converge(), time, upper)


def content_of(view: View, time: Timestamp) -> Iterator[Changes]:
    """The rows of a state as of a time, with the columns in physical order."""
    width = range(len(view.schema.columns))
    for rows in view.scan(time) if view.batches else ():
        columns = tuple([rows.canonical(at) for at in width])
        yield Changes(columns, len(rows), (time,), None, 0, rows.counts)
