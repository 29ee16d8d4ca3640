"""The rows gathered for each input of a run since the last commit.

A run has a `RunInput` for each of its inputs. Rows of most kinds lie in it; rows of a DataFrame of Spark are at workers
already, and the `RunInput` has the *parcels* that name them. Laws:

- **Atomic addition.** Rows are added by one append, which needs no turn and no lock. So an interrupted caller has
  added all rows or none, and a caller who inserts while another thread commits does not wait: the rows are in the next
  epoch.
- **Order of addition.** For an input with a key the rows are commands, of which the last one for a key counts
  (`rows.commands`). They get their numbers in the order in which they were added, from the thread that has the run's
  turn. Rows that are added while an epoch is being made stay for the next epoch.
- **Net rows.** For an input without a key, rows that `insert` and `delete` gave in one epoch are added up before they
  are used: a row that was inserted and deleted equally often goes to no worker, and to no function of the user's. Rows
  of Spark's DataFrames are not added up, since they lie at workers.

Cost: nothing where an epoch only inserts or only deletes. Where an epoch does both, its rows are hashed, and rows
with a hash in common are sorted. 100,000 rows each way take 20 ms (two integers) or 34 ms (an integer and a string)
where none cancel, and 110 or 180 ms where all do.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from riverrun.engine.messages import Parcel
from riverrun.errors import RiverrunError
from riverrun.plan.plan import Node, Plan, Port
from riverrun.rows.commands import FRAME, NUMBERS, InputRows
from riverrun.rows.records import canonical_columns
from riverrun.run.turn import Turn
from riverrun.runtime.frames import Frames, Target
from riverrun.state.changes import Changes, hash_rows
from riverrun.state.columns import as_array, as_column
from riverrun.state.schema import declared_column

FEW = 2000  # rows, below which sets of Python are quicker
NARROW = 8  # columns up to which Arrow copies a batch quicker by joining it to nothing than by writing and reading it


class RunInput:
    """The gathered rows of an input. Rows for an input with a key are commands, numbered in the order of their
    addition."""

    def __init__(self, node: Node, plan: Plan) -> None:
        operator = node.operator
        self.name = operator.public_name
        schema, key = node.schemas[0], tuple(operator.upsert_key)
        if key:  # commands may have nulls where rows may not
            ((exchange, _),) = plan.consumers[Port(node.number)]
            ((keyed, _),) = plan.consumers[Port(exchange.number)]
            schema = keyed.schemas[0]
        self.form = InputRows(schema, key)
        self._added: deque[tuple[pa.RecordBatch, int]] = deque()
        """Rows and their diff, as they were added; not numbered yet."""
        self._pieces: list[tuple[pa.RecordBatch | None, int, int]] = []
        """Rows, their diff, and the number after their last one; without rows, numbers set aside for a DataFrame."""
        self._parcels: list[Parcel] = []
        self._reserved: set[int] = set()
        """The first numbers of DataFrames that are on their way. Each change to the set is one instruction."""

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which rows replace each other; none where they do not."""
        return self.form.key

    @property
    def rows(self) -> int:
        """How many rows there are. Any thread may ask."""
        rows = 0
        for batch, _ in self._added.copy():
            rows += batch.num_rows
        for piece, _, _ in self._pieces:
            if piece is not None:
                rows += piece.num_rows
        for parcel in self._parcels:
            rows += parcel.rows
        return rows

    @property
    def _sequence(self) -> int:
        """The number of the next command."""
        return self._pieces[-1][2] if self._pieces else 0

    def add(self, rows: Any, what: str) -> None:
        """Add rows of any kind, to be inserted or, where `what` begins with "delete", deleted. Any thread may add at
        any time, without the run's turn."""
        delete, attempt = _is_deletion(what), f"{what} {self.name!r}"
        # Signals are not put off: rows may come from a generator without an end, and adding them is one instruction.
        batch = self.form.deletion(rows, attempt) if delete else self.form.conform(rows, attempt)
        batch = _owned(rows, batch)
        if batch.num_rows:
            self._added.append((batch, -1 if delete else 1))

    def upload(self, frames: Frames, frame: Any, what: str, turn: Turn) -> None:
        """Have the tasks of a DataFrame engine hand the rows of its DataFrame to workers."""
        with turn:
            sequence = self.reserve()
        parcels: list[Parcel] = []
        try:
            parcels = frames.upload(frame, self.target(what, sequence))
            with turn:
                self.add_parcels(sequence, parcels)
        except BaseException:
            self.give_up(sequence)
            frames.let_go(parcels)
            raise

    def target(self, what: str, sequence: int = 0) -> Target:
        """This input as the target of a DataFrame, for which the numbers from `sequence` on were set aside."""
        return Target(self.form, _is_deletion(what), f"{what} {self.name!r}", sequence)

    def _number_added(self) -> None:
        """Number the rows that were added so far, in the order of their addition."""
        while self._added:
            batch, diff = self._added.popleft()
            self._pieces.append((batch, diff, self._sequence + batch.num_rows))

    def reserve(self) -> int:
        """Set numbers aside for the commands of a DataFrame; return the first."""
        self._number_added()
        first = self._sequence
        if self.key and first + 2 * FRAME > NUMBERS:  # rows that come after it need some too
            raise RiverrunError(
                "run.commands",
                f"cannot take one more DataFrame into {self.name!r}: its commands cannot be numbered in this epoch",
                hint="commit: every epoch has all of them",
                input=self.name,
            )
        self._pieces.append((None, 0, first + FRAME))
        self._reserved.add(first)
        return first

    def give_up(self, first: int) -> None:
        """The DataFrame for which the numbers from `first` on were set aside does not come. Needs no turn."""
        self._reserved.discard(first)

    def add_parcels(self, first: int, parcels: list[Parcel]) -> None:
        """Add the rows of a DataFrame, which workers have, and for which the numbers from `first` on were set aside."""
        self._reserved.discard(first)
        self._parcels += parcels

    def gathered(self) -> tuple[pa.RecordBatch | None, tuple[Parcel, ...]]:
        """All rows since the last commit: the rows that lie here, with `diff` as their last column, and the parcels of
        the rows at workers."""
        self._number_added()
        parcels = tuple(self._parcels)
        batches = []
        for batch, diff, following in self._pieces:
            if batch is not None:
                first = following - batch.num_rows
                batches.append(self.form.fed(batch, delete=diff < 0, first=first))
        if not batches:
            return None, parcels
        gathered = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        if len(batches) > 1 and not self.key:
            signs = {diff for batch, diff, _ in self._pieces if batch is not None}
            gathered = self._net(gathered) if len(signs) > 1 else gathered
        return (gathered if gathered.num_rows else None), parcels

    def _net(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are left when equal ones are added up; the batch as it is, where no two rows cancel."""
        columns = canonical_columns(batch, self.form.schema)
        diffs = as_array(batch.column(batch.num_columns - 1))
        alike = _alike(hash_rows(columns, batch.num_rows), diffs > 0)
        if not alike.any():
            return batch
        met = Changes(columns, batch.num_rows, ((0,),), None, 0, diffs).filter(alike).consolidate()
        others = as_column(np.flatnonzero(~alike))
        kinds = batch.schema.types
        rows = [
            column if column.type == kind else declared_column(column, field).cast(kind)
            for column, field, kind in zip(met.columns, self.form.schema, kinds[:-1], strict=True)
        ]
        left = pa.record_batch([*rows, as_column(met.diff_array())], schema=batch.schema)
        return pa.concat_batches([batch.take(others), left])

    def clear(self) -> list[Parcel]:
        """Forget all rows; return their parcels, which are named here no more."""
        self._number_added()
        return self.drop()

    def drop(self) -> list[Parcel]:
        """Forget the rows that have numbers, which an epoch was made of; return their parcels, which are named here no
        more."""
        dropped, self._parcels = self._parcels, []
        # Numbers matter within an epoch only. Numbers set aside for a DataFrame count in the epoch that gets its rows.
        self._pieces = [(None, 0, self._sequence)] if self._reserved else []
        return dropped


def _is_deletion(what: str) -> bool:
    return what.startswith("delete")


def _owned(rows: Any, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, copied where its memory belongs to the caller, who may change the frame or array afterwards."""
    if isinstance(rows, list | tuple | pl.DataFrame | pl.LazyFrame) or not batch.num_rows:
        return batch
    if batch.num_columns <= NARROW:  # costs half as much
        return pa.concat_batches([batch, batch.slice(0, 0)])
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)


def _alike(
    hashes: np.ndarray[Any, np.dtype[np.uint64]], inserted: np.ndarray[Any, np.dtype[np.bool_]]
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows may cancel: their hash is that of an inserted row and of a deleted one. Whether they do cancel, only
    their values can tell."""
    if len(hashes) < FEW:
        both = set(hashes[inserted].tolist()) & set(hashes[~inserted].tolist())
        return np.array([each in both for each in hashes.tolist()], np.bool_)
    every = pl.Series(hashes)
    added, taken = every.filter(inserted), every.filter(~inserted)
    both_ways = taken.filter(taken.is_in(added.implode()))
    return every.is_in(both_ways.implode()).to_numpy()
