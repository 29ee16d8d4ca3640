"""The spread operator: a loop in which a best value spreads along edges, run on arrays in one node.

The front end puts this operator in the place of a loop whose shape it knows (`frontends.collections.shapes`). Its
inputs are arrangements by no key, so all rows are on one worker: the edges, the solution at the start, and perhaps a
workset. Its output is the result of the loop: one row for each key. An epoch is one call: `Spreading` runs the loop to
its end, from where the epoch before left it. Laws:

- **Oracle.** As of each epoch, the output is the result of the loop run from scratch.
- **Derived.** Slots, adjacency and values in memory follow from states: the arrangements at the inputs, and the node's
  own, which has the value of each key and its depth. An actor that starts with states builds them at its first epoch.

Cost: `Spreading` says what a change costs. The first epoch after a start also reads all states once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import pyarrow as pa

from riverrun.operators.arrange import changes_of, state_schema
from riverrun.operators.iterations.spreading import Message, Settled, Spreading
from riverrun.plan.operator import Arranged, Arrangement, Context, Operator, so_far
from riverrun.progress import Antichain, Timestamp
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.view import View

DEPTH = "depth:"
"""The column of the state for depths. No column of a user's is called so: names of ours have a colon."""

EDGES, SOLUTION, WORKSET = range(3)
"""The inputs."""


@dataclass(frozen=True)
class SpreadLoop(Operator):
    """The best value of each key. The edges have the sources' key, the targets' key, and the weight, if the message is
    not a copy; the other inputs have the key and the value."""

    key: int
    """How many columns the key has."""
    message: str
    """``copy``, ``add``, ``min`` or ``max``: what is sent along an edge, made of the value and the weight."""
    greatest: bool
    """Whether the greatest value is the best, or the least."""
    adds_keys: bool
    """Whether a message adds a key that the solution does not have."""
    patience: int
    kind: ClassVar[str] = "spread"
    kernels: ClassVar[tuple[str, ...]] = (
        "iterations.edges.build_lists",
        "iterations.edges.fill_edges",
        "iterations.edges.list_edges",
        "iterations.edges.tally",
        "iterations.messages.is_forbidden",
        "iterations.messages.is_improving",
        "iterations.messages.read_words",
        "iterations.messages.write_words",
        "iterations.slots.fill_table",
        "iterations.slots.find_rows",
        "iterations.slots.find_words",
        "iterations.slots.has_nulls",
        "iterations.spreading.forget",
        "iterations.spreading.list_changes",
        "iterations.spreading.put_values",
        "iterations.spreading.roll_back",
        "iterations.spreading.settle",
        "iterations.starts.change_starts",
        "iterations.starts.fill_rows",
    )
    keeps_state: ClassVar[bool] = True
    reads_arrangements: ClassVar[bool] = True
    gives_content: ClassVar[bool] = True

    def describe(self) -> str:
        best = "greatest" if self.greatest else "least"
        sent = {"copy": "the value", "add": "value + weight"}.get(
            self.message, f"{self.message} of value and weight"
        )
        return f"spread the {best} value along edges, which carry {sent}"

    def identity(self) -> str:
        keys = "keys are added" if self.adds_keys else "keys are those of the solution"
        return f"{self.describe()}, by {self.key} columns; {keys}"

    def start(self, context: Context) -> Spreader:
        return Spreader(context, self)


class Spreader(Arranged):
    """A spread on a worker: values that live over all epochs, and the state from which they can be made anew."""

    def __init__(self, context: Context, operator: SpreadLoop) -> None:
        super().__init__(context)
        self._operator = operator
        columns = self.node.schemas[0]
        self._kinds = [field.type for field in columns]
        self._schema = state_schema(columns.append(pa.field(DEPTH, pa.int64())), ())
        self._positions = tuple([self._schema.positions[name] for name in (*columns.names, DEPTH)])
        self.arrangement = Arrangement(context.spine(self._schema))
        self._inputs: list[Arrangement] = []
        self._orders: list[list[int]] = []
        for port, (source, at) in enumerate(zip(context.sources, self.node.inputs, strict=True)):
            assert isinstance(source, Arranged)
            arrangement = source.arrangement
            names = source.node.schemas[at.output].names
            self._inputs.append(arrangement)
            self._orders.append([arrangement.spine.schema.positions[name] for name in names])
            arrangement.readers.append(partial(self.announced, port))
        self._spreading: Spreading | None = None
        self._came: dict[Timestamp, list[tuple[int, Changes]]] = {}
        self._last: Settled | None = None

    def announced(self, port: int, batch: Batch, time: Timestamp) -> None:
        self.context.arrive(port, time)
        if time not in self._came:
            self._came[time] = []
            self.context.request(time)
        self._came[time].append((port, changes_of(batch, time)))

    def run(self, time: Timestamp, upper: Antichain) -> None:
        came = self._came.pop(time)
        old: list[Changes] = []
        if self._spreading is None:
            self._spreading, old = self._resumed(came, time, upper)
        for port, changes in came:
            self._stage(self._spreading, port, changes, 1)
        settled = self._spreading.converge()
        self._last = settled
        columns, diffs = settled.saved()
        saved = [Changes(tuple(columns), len(diffs), (time,), None, 0, diffs)] if len(diffs) else []
        if old:
            added = Changes.concat([*saved, *old]).consolidate()
            saved = [added] if added.rows else []
        if not saved:
            return
        (changes,) = saved
        batch = self._batch(changes, upper)
        if len(batch):
            self.arrangement.append(batch, time)
        given = changes.with_columns(changes.columns[:-1])
        if settled.changed < len(diffs) or old:
            given = given.consolidate()  # rows of which only the depth differs are no changes
        if given.rows and self.context.has_consumers:
            self.context.push(given, 0)

    def figures(self) -> dict[str, dict[str, int]]:
        last = self._last
        if last is None:
            return {}
        figures = {"rounds": last.rounds, "messages": last.messages, "touched": last.touched}
        return {self.node.name: figures}

    def _batch(self, changes: Changes, upper: Antichain) -> Batch:
        order = sorted(range(len(self._positions)), key=self._positions.__getitem__)
        return Batch.of(self._schema, changes, tuple(order), self.arrangement.spine.upper, upper)

    def _resumed(
        self, came: Sequence[tuple[int, Changes]], time: Timestamp, upper: Antichain
    ) -> tuple[Spreading, list[Changes]]:
        """The values as of before this time, made of states; and rows to be taken back, where states do not tell what
        they are made of, as the inputs are built anew."""
        operator, kinds = self._operator, self._kinds
        spreading = Spreading(
            kinds[:-1],
            kinds[-1],
            Message(operator.message),
            best="greatest" if operator.greatest else "least",
            missing="add" if operator.adds_keys else "drop",
            patience=operator.patience,
        )
        before = 0
        for port, arrangement in enumerate(self._inputs):
            order = self._orders[port]
            for rows in content_of(so_far(arrangement.spine, upper), time):
                columns = tuple([rows.columns[at] for at in order])
                self._stage(spreading, port, rows.with_columns(columns), 1, ordered=True)
                before += rows.rows
        for port, changes in came:
            self._stage(spreading, port, changes, -1)
            before -= changes.rows
        kept = list(content_of(so_far(self.arrangement.spine, upper), time))
        if not kept:
            return spreading, []
        content = Changes.concat(kept)
        if not before:
            return spreading, [content.negate()]
        *keys, values, depths = [content.columns[at] for at in self._positions]
        spreading.restore(keys, values, np.asarray(depths, np.int64))
        return spreading, []

    def _stage(
        self, spreading: Spreading, port: int, changes: Changes, sign: int, ordered: bool = False
    ) -> None:
        columns: Sequence[pa.Array] = changes.columns
        if not ordered:
            columns = [columns[at] for at in self._orders[port]]
        diffs = sign * changes.diff_array()
        width = self._operator.key
        if port == EDGES:
            weights = columns[2 * width] if len(columns) > 2 * width else None
            spreading.change_edges(columns[:width], columns[width : 2 * width], weights, diffs)
        elif port == SOLUTION:
            spreading.change_solution(columns[:width], columns[width], diffs)
        else:
            spreading.change_workset(columns[:width], columns[width], diffs)


def content_of(view: View, time: Timestamp) -> Iterable[Changes]:
    """The rows of a state as of a time, with the columns in physical order."""
    width = range(len(view.schema.columns))
    for rows in view.scan(time) if view.batches else ():
        columns = tuple([rows.canonical(at) for at in width])
        yield Changes(columns, len(rows), (time,), None, 0, rows.counts)
