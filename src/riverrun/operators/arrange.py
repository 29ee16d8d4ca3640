"""Arrange: changes become a spine, sorted by key, that any number of nodes read.

Joins, reduces and outputs read arrangements. Changes wait until their time is complete and are then appended to the
spine as one batch, which is announced to all readers. Here too: `Consolidate`, which waits likewise, adds up equal rows
and keeps nothing; and `Output`, which keeps an arrangement readable as of the last epochs (``history=`` of the run says
how many). Laws:

- **One batch a time.** All changes of one time are in one batch, so a reader never sees a part of a time.
- **Shared.** Two readers of a collection by the same key read one spine: the plan has one node for both.

Cost: sorting what comes (`state.batch`), merging in the background (`state.spine`), and the memory of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np
import pyarrow as pa

from riverrun.errors import TimeViolation
from riverrun.operators.rounds.gather import GatherRound
from riverrun.plan.operator import (
    Actor,
    Arranged,
    Arrangement,
    Context,
    Operator,
    Role,
    hold,
    present,
)
from riverrun.progress import Antichain, Timestamp
from riverrun.rows.records import as_record_batch
from riverrun.state import Order, Schema
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.columns import Ints, as_column
from riverrun.state.kernels.gathering import list_rows_of_blocks
from riverrun.state.shards import Range
from riverrun.state.view import Selection, View


def state_schema(columns: pa.Schema, key: tuple[str, ...], order: tuple[Order, ...] = ()) -> Schema:
    """The schema of a state of rows with these columns."""
    keys = set(key)
    return Schema.of(
        pa.schema([columns.field(name) for name in key]),
        pa.schema([field for field in columns if field.name not in keys]),
        order,
    )


@dataclass(frozen=True)
class Arrange(Operator):
    """Keeps its input sorted by `key`, and within a key by `order`."""

    key: tuple[str, ...]
    order: tuple[Order, ...] = ()
    kind: ClassVar[str] = "arrange"
    keeps_state: ClassVar[bool] = True
    same_rows: ClassVar[bool] = True
    gives_content: ClassVar[bool] = True

    @property
    def copied_by(self) -> tuple[str, ...]:
        return self.key

    @property
    def arranged_by(self) -> tuple[tuple[str, ...], tuple[Order, ...]]:
        return self.key, self.order

    @property
    def by_row(self) -> bool:
        return True

    def describe(self) -> str:
        by = ", ".join(self.key) or "nothing"
        order = ", ".join(f"{o.column}{' descending' * o.descending}" for o in self.order)
        return f"arrange by {by}" + (f", ordered by {order}" if order else "")

    def state(self, columns: pa.Schema) -> Schema:
        """The schema of the arrangement of rows with these columns."""
        return state_schema(columns, self.key, self.order)

    def in_round(self, varying: Sequence[bool]) -> Operator:
        return GatherRound(self)

    def start(self, context: Context) -> Arranger:
        return Arranger(context, self)


class Arranger(Arranged):
    """An arrangement on a worker, and the changes whose time is not complete."""

    def __init__(self, context: Context, operator: Arrange) -> None:
        super().__init__(context)
        columns = self.node.schemas[0]
        schema = operator.state(columns)
        self.arrangement = Arrangement(context.spine(schema))
        self._schema = schema
        places = {name: at for at, name in enumerate(columns.names)}
        self._positions = tuple(places[field.name] for field in schema.columns)
        self._held: dict[Timestamp, list[Changes]] = {}

    def receive(self, port: int, changes: Changes) -> None:
        hold(self._held, changes, self.context.request)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        pieces = self._held.pop(time)
        changes = pieces[0] if len(pieces) == 1 else Changes.concat(pieces)
        lower = self.arrangement.spine.upper
        batch = Batch.of(self._schema, changes, self._positions, lower, upper)
        self.arrangement.append(batch, time)


@dataclass(frozen=True)
class Consolidate(Operator):
    """Adds up equal rows of one time. Rows that cancel each other go no further. Keeps nothing."""

    kind: ClassVar[str] = "consolidate"
    same_rows: ClassVar[bool] = True

    @property
    def adds_up(self) -> bool:
        return True

    @property
    def adds_rows_up(self) -> bool:
        return True

    @property
    def takes_back(self) -> bool:
        return False

    def in_round(self, varying: Sequence[bool]) -> Operator:
        return self

    def start(self, context: Context) -> Consolidator:
        return Consolidator(context)


class Consolidator(Actor):
    """The changes whose time is not complete."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._held: dict[Timestamp, list[Changes]] = {}

    def receive(self, port: int, changes: Changes) -> None:
        hold(self._held, changes, self.context.request)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        added = Changes.concat(self._held.pop(time)).consolidate()
        if added.rows:
            self.context.push(added, 0)


@dataclass(frozen=True)
class Output(Operator):
    """A result that can be read, as of the last epochs, and whose changes can be asked for."""

    name: str
    kind: ClassVar[str] = "output"
    role = Role.OUTPUT
    reads_arrangements: ClassVar[bool] = True
    tracked: ClassVar[bool] = False
    may_be_tracked: ClassVar[bool] = False

    @property
    def public_name(self) -> str:
        return self.name

    def describe(self) -> str:
        return f"output {self.name!r}"

    def start(self, context: Context) -> Tap:
        return Tap(context)


class Tap(Arranged):
    """What can be read by a name, on a worker, an output or a shared state: keeps the last epochs readable.

    The tap of an output is the actor of the output's node. A shared state has a tap beside its own actor.

    **The beginning is readable.** An execution that begins at boundary e can read its outputs as of e - 1, whatever was
    compacted before. An arrangement without an output may have had all times advanced to e, but its content at the
    boundary is still the content as of e - 1. The view at the boundary is held for as long as `history` asks for e - 1.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        (source,) = context.sources
        assert isinstance(source, Arranged)
        self.arrangement = source.arrangement
        self._history = context.history
        spine = self.arrangement.spine
        self._hold = spine.hold()
        self._beginning: tuple[int, View] | None = None
        """The epoch before the first and the view to read it from, where the arrangement cannot tell that epoch."""
        begin = Antichain.boundary(context.epoch)
        if context.epoch and spine.upper == begin and self._hold.frontier == begin:
            self._beginning = context.epoch - 1, present(spine)[0]
        self._recent: dict[int, list[Batch]] = {}
        self._first = context.epoch
        self._oldest = context.epoch
        """The first epoch of this execution whose batches are still in `_recent`."""
        self.arrangement.readers.append(self._on_batch)

    def _on_batch(self, batch: Batch, time: Timestamp) -> None:
        self._recent.setdefault(time[0], []).append(batch)

    def begin(self, epoch: int) -> None:
        """Show results from this epoch on. Those of earlier epochs are unknown."""
        if epoch:
            self._hold.advance(Antichain.boundary(epoch))

    def boundary(self, epoch: int) -> None:
        oldest = max(epoch - self._history, 0)
        if self._beginning is not None and self._beginning[0] < oldest:
            self._beginning = None
        for old in [e for e in self._recent if e < oldest]:
            del self._recent[old]
        self._oldest = max(self._oldest, oldest)
        wanted = Antichain.boundary(oldest)
        if self._hold.frontier != wanted and self._hold.frontier.dominates(wanted):
            self._hold.advance(wanted)

    @property
    def oldest(self) -> int:
        """The first epoch that can be read."""
        if self._beginning is not None:
            return self._beginning[0]
        ((epoch, *_),) = self._hold.frontier
        return epoch

    def check_readable(self, epoch: int) -> None:
        """Refuse an epoch that is older than all readable ones."""
        if epoch < self.oldest:
            raise TimeViolation(
                "time.compacted",
                f"cannot read {self.node.operator.public_name!r} as of epoch {epoch}: only those from {self.oldest} on "
                "are kept",
                hint="run with a longer history=; an output that was added can be read from the epoch before it was",
                epoch=epoch,
            )

    def view(self) -> View:
        """The present result, to be read as of the epochs that the arrangement can tell apart (see `view_as_of`)."""
        return self.arrangement.spine.view()

    def view_as_of(self, epoch: int) -> tuple[View, int]:
        """The view that has the result of an epoch, and the epoch as of which to read that view."""
        self.check_readable(epoch)
        if self._beginning is not None and epoch == self._beginning[0]:
            return self._beginning[1], epoch + 1
        return self.arrangement.spine.view(), epoch

    def changes(self, epoch: int, ranges: Sequence[Range] | None = None) -> list[pa.RecordBatch]:
        """What changed in an epoch, in some ranges of hashes or in all, as rows with a last column `diff`."""
        columns = self.node.schemas[0]
        if epoch < self._first:
            pieces = self._difference(epoch, ranges)
        elif epoch < self._oldest:
            self.check_readable(epoch)
            pieces = self._difference(epoch, ranges)
        else:
            batches = self._recent.get(epoch, [])
            if ranges is not None:
                batches = [batch.slice(*each) for batch in batches for each in ranges]
            pieces = [changes_of(batch, (epoch,)) for batch in batches if len(batch)]
        places = self.arrangement.spine.schema.positions
        positions = [places[name] for name in columns.names]
        shown = []
        for piece in pieces:
            ordered = [piece.columns[at] for at in positions]
            rows = as_record_batch(columns, ordered, piece.rows)
            diff = as_column(piece.diff_array())
            shown.append(pa.record_batch([*rows.columns, diff], names=[*columns.names, "diff"]))
        return shown

    def _difference(self, epoch: int, ranges: Sequence[Range] | None) -> list[Changes]:
        """The changes of an epoch before this execution: its rows, less the rows of the epoch before."""
        if epoch and epoch <= self.oldest:
            raise TimeViolation(
                "time.compacted",
                f"cannot tell the changes of {self.node.operator.public_name!r} in epoch {epoch}: the run has started "
                f"anew since, with results from epoch {self.oldest} on: changes are told from the next epoch on",
                hint="a run with a longer history= keeps more, from its next checkpoint on",
                epoch=epoch,
            )
        whole, pieces = self.arrangement.spine.view(), []
        width = range(len(whole.schema.columns))
        views = [whole] if ranges is None else [whole.slice(*each) for each in ranges]
        times = [(at, sign) for at, sign in ((epoch, 1), (epoch - 1, -1)) if at >= 0]
        for view, (at, sign) in product(views, times):
            for rows in view.scan((at,)) if view.batches else ():
                columns = tuple(rows.canonical(index) for index in width)
                pieces.append(Changes(columns, len(rows), ((epoch,),), None, 0, sign * rows.counts))
        if not pieces:
            return []
        added = Changes.concat(pieces).consolidate()
        return [added] if added.rows else []


def changes_of(batch: Batch, time: Timestamp) -> Changes:
    """The changes of a batch, all at one time, with the columns in physical order."""
    names, diffs = _listed(batch)
    view = View("", batch.schema, (batch,), batch.since, batch.upper)
    rows = Selection(view, names, None, diffs)
    columns = tuple(rows.canonicals(range(len(batch.schema.columns))))
    return Changes(columns, len(batch), (time,), None, 0, diffs)


def diffs_of(batch: Batch) -> Ints:
    """The diffs of the changes of a batch, in its order."""
    if len(batch.blocks) == 1 and batch.blocks[0].diffs is None:
        return np.full(len(batch), batch.blocks[0].diff, np.int64)
    return _listed(batch)[1]


def _listed(batch: Batch) -> tuple[Ints, Ints]:
    """The names and the diffs of the changes of a batch."""
    written = np.empty((3, len(batch)), np.int64)
    zeros = np.zeros(max(len(batch.blocks), 1), np.int64)
    list_rows_of_blocks(batch.descriptors, zeros, zeros, written)
    return written[0], written[2]
