"""Inlets: the rows that an input was given since the last commit, here or already at workers.

Laws:

- **Atomic addition.** Rows are added by one append, which needs no turn and no lock. So a caller who is interrupted has
  added all or none, and one who inserts while another thread commits does not wait: these rows are in the next epoch.
- **Order of addition.** Whoever has the run's turn numbers what was added, in the order in which that was done. Rows
  that are added while an epoch is being made of others stay for the next one.
- **Net rows.** What `insert` and `delete` gave in one epoch is added up before anybody sees it: a row that was inserted
  and deleted as often is not given to the workers, and no function of the user's is called on it. DataFrames of
  Spark are where their tasks have put them, and are not added up.

Cost: nothing where an epoch only inserts or only deletes. Where it does both, its rows are hashed, and those with
a hash in common are sorted. 100,000 rows each way take 20 ms (two integers) or 34 ms (an integer and a string) where
none cancel, and 110 or 180 ms where all do.
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
from riverrun.state.changes import Changes, hash_rows
from riverrun.state.schema import declared_column

FEW = 2000  # rows, below which sets of Python are quicker


class Inlet:
    """An input. For one with a key, commands are numbered in the order in which they were given."""

    def __init__(self, node: Node, plan: Plan) -> None:
        operator = node.operator
        self.name = operator.public_name
        schema, key = node.schemas[0], tuple(operator.upsert_key)
        if key:  # commands may have nulls where rows may not
            ((moved, _),) = plan.consumers[Port(node.number)]
            ((kept, _),) = plan.consumers[Port(moved.number)]
            schema = kept.schemas[0]
        self.form = InputRows(schema, key)
        self._added: deque[tuple[pa.RecordBatch, int]] = deque()
        """Rows and their diff, as they were given; not numbered yet."""
        self._pieces: list[tuple[pa.RecordBatch | None, int, int]] = []
        """Rows, their diff, and the number after the last of them; without rows, numbers for a DataFrame."""
        self._parcels: list[Parcel] = []
        self._reserved: set[int] = set()
        """The first numbers of DataFrames that are on their way. One change to it is one instruction."""

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

    def add(self, batch: pa.RecordBatch, diff: int) -> None:
        """Rows, to be inserted (1) or deleted (-1). Needs no turn: any thread may add, and none waits for a commit."""
        if batch.num_rows:
            self._added.append((batch, diff))

    def _number_added(self) -> None:
        """Number what was added so far, in the order in which that was done."""
        while self._added:
            batch, diff = self._added.popleft()
            self._pieces.append((batch, diff, self._sequence + batch.num_rows))

    def reserve(self) -> int:
        """The number of the first command of a DataFrame."""
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
        """Rows that workers have: those of a DataFrame for which the numbers from `first` on were set aside."""
        self._reserved.discard(first)
        self._parcels += parcels

    def gathered(self) -> tuple[pa.RecordBatch | None, tuple[Parcel, ...]]:
        """All rows since the last commit: those here, with `diff` as their last column, and those at workers."""
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
        """The rows that are left when all are added up; as they came, where no two cancel."""
        columns = canonical_columns(batch, self.form.schema)
        diffs = np.asarray(batch.column(batch.num_columns - 1))
        alike = _alike(hash_rows(columns, batch.num_rows), diffs > 0)
        if not alike.any():
            return batch
        met = Changes(columns, batch.num_rows, ((0,),), None, 0, diffs).filter(alike).consolidate()
        others = pa.array(np.flatnonzero(~alike))
        kinds = batch.schema.types
        rows = [
            column if column.type == kind else declared_column(column, field).cast(kind)
            for column, field, kind in zip(met.columns, self.form.schema, kinds[:-1], strict=True)
        ]
        left = pa.record_batch([*rows, pa.array(met.diff_array())], schema=batch.schema)
        return pa.concat_batches([batch.take(others), left])

    def clear(self) -> list[Parcel]:
        """Forget all rows; the parcels that nobody names now."""
        self._number_added()
        return self.drop()

    def drop(self) -> list[Parcel]:
        """Forget the rows that were gathered; the parcels that nobody names now."""
        dropped, self._parcels = self._parcels, []
        # Numbers matter within an epoch only; those that were set aside are of the epoch that their rows come in.
        self._pieces = [(None, 0, self._sequence)] if self._reserved else []
        return dropped


def _alike(
    hashes: np.ndarray[Any, np.dtype[np.uint64]], inserted: np.ndarray[Any, np.dtype[np.bool_]]
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows may cancel, since rows of both kinds have their hash; whether they do, their values tell."""
    if len(hashes) < FEW:
        both = set(hashes[inserted].tolist()) & set(hashes[~inserted].tolist())
        return np.array([each in both for each in hashes.tolist()], np.bool_)
    every = pl.Series(hashes)
    added, taken = every.filter(inserted), every.filter(~inserted)
    both_ways = taken.filter(taken.is_in(added.implode()))
    return every.is_in(both_ways.implode()).to_numpy()
