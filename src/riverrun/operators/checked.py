"""Checked rows: an input from which only rows that are there can be deleted.

A collection counts rows. Deleting a row that is not there leaves a count of -1, which a later insertion brings back
to 0; until then results mean nothing. `CheckRows` keeps the rows of an input. Law:

- **No debts.** An epoch after which a row would be there fewer than 0 times is refused as a whole.

Cost: the rows are stored once more, arranged by all their columns; a change costs one lookup.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from riverrun.errors import OperatorFailed
from riverrun.operators.aggregates import queries_of
from riverrun.operators.arrange import changes_of, state_schema
from riverrun.plan.operator import Arranged, Arrangement, Context, Operator, hold, so_far
from riverrun.progress import Antichain, Timestamp
from riverrun.rows.records import as_record_batch, python_rows
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.keys import Keys


@dataclass(frozen=True)
class CheckRows(Operator):
    """Passes rows on, unless a count would fall below zero. Its rows are arranged by all columns."""

    name: str
    kind: ClassVar[str] = "check"
    kernels: ClassVar[tuple[str, ...]] = ("searching.look_up",)
    keeps_state: ClassVar[bool] = True
    gives_content: ClassVar[bool] = True
    known_by_input: ClassVar[bool] = True

    def describe(self) -> str:
        return f"check what is deleted from {self.name!r}"

    def start(self, context: Context) -> Checker:
        return Checker(context, self)


class Checker(Arranged):
    """The rows that are there."""

    def __init__(self, context: Context, operator: CheckRows) -> None:
        super().__init__(context)
        columns = self.node.schemas[0]
        self._name = operator.name
        self._schema = state_schema(columns, tuple(columns.names))
        self._positions = tuple(range(len(columns)))
        self.arrangement = Arrangement(context.spine(self._schema))
        self._held: dict[Timestamp, list[Changes]] = {}

    def receive(self, port: int, changes: Changes) -> None:
        hold(self._held, changes, self.context.request)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        spine = self.arrangement.spine
        changes = Changes.concat(self._held.pop(time))
        batch = Batch.of(self._schema, changes, self._positions, spine.upper, upper)
        if not len(batch):
            return
        passed = changes_of(batch, time)  # each row once, in the order of the keys
        selection = so_far(spine, upper).lookup(Keys.of_batch(batch), time)
        counts = passed.diff_array().copy()
        counts[queries_of(selection)] += selection.counts
        if (counts < 0).any():
            worst = passed.take(np.array([counts.argmin()]))
            rows = python_rows(as_record_batch(self.node.schemas[0], worst.columns, 1))
            raise OperatorFailed(
                "operator.negative",
                f"cannot delete {rows[0]} from {self._name!r}: it is not there so often; it would be there "
                f"{counts.min()} times",
                hint="delete only rows that were inserted, with the same values in all columns",
                row=rows[0],
                count=int(counts.min()),
            )
        self.arrangement.append(batch, time)
        if self.context.has_consumers:
            self.context.push(passed, 0)
