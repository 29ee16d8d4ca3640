"""Inlets: the rows that an input was given since the last commit, here or already at workers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from riverrun.engine.messages import Parcel
from riverrun.engine.operators.linear import Input
from riverrun.engine.operators.upsert import DELETED, FRAME, SEQUENCE
from riverrun.engine.plan import Node, Plan, Port
from riverrun.errors import RiverrunError

NUMBERS = 1 << 63
"""How many numbers there are in an epoch."""


class Inlet:
    """An input. For one with a key, commands are numbered in the order in which they were given.

    Law: rows are added by one append to a list. So a caller who is interrupted has added all of them or none.
    """

    def __init__(self, node: Node, plan: Plan) -> None:
        operator = node.operator
        assert isinstance(operator, Input)
        self.name = operator.name
        self.key = operator.key
        self.schema = node.schemas[0]
        if self.key:  # commands may have nulls where rows may not
            ((moved, _),) = plan.consumers[Port(node.number)]
            ((kept, _),) = plan.consumers[Port(moved.number)]
            self.schema = kept.schemas[0]
        self._pieces: list[tuple[pa.RecordBatch | None, int, int]] = []
        """Rows, their diff, and the number after the last of them; without rows, numbers for a DataFrame."""
        self._parcels: list[Parcel] = []
        self._reserved = 0

    @property
    def rows(self) -> int:
        """How many rows there are."""
        here = sum(0 if batch is None else batch.num_rows for batch, _, _ in self._pieces)
        return here + sum(parcel.rows for parcel in self._parcels)

    @property
    def _sequence(self) -> int:
        """The number of the next command."""
        return self._pieces[-1][2] if self._pieces else 0

    def add(self, batch: pa.RecordBatch, diff: int) -> None:
        """Rows, to be inserted (1) or deleted (-1)."""
        if batch.num_rows:
            self._pieces.append((batch, diff, self._sequence + batch.num_rows))

    def reserve(self) -> int:
        """The number of the first command of a DataFrame."""
        first = self._sequence
        if self.key and first + 2 * FRAME > NUMBERS:  # rows that come after it need some too
            raise RiverrunError(
                "run.commands",
                f"cannot take one more DataFrame into {self.name!r}: its commands cannot be numbered in this epoch",
                hint="commit: every epoch has all of them",
                input=self.name,
            )
        self._pieces.append((None, 0, first + FRAME))
        self._reserved += 1
        return first

    def give_up(self) -> None:
        """The DataFrame for which numbers were set aside does not come."""
        self._reserved -= 1

    def add_parcels(self, parcels: list[Parcel]) -> None:
        """Rows that workers have: those of a DataFrame for which numbers were set aside."""
        self._reserved -= 1
        self._parcels += parcels

    def gathered(self) -> tuple[pa.RecordBatch | None, tuple[Parcel, ...]]:
        """All rows since the last commit: those here, with `diff` as their last column, and those at workers."""
        parcels = tuple(self._parcels)
        batches = []
        for batch, diff, following in self._pieces:
            if batch is None:
                continue
            columns, names = list(batch.columns), list(batch.schema.names)
            if self.key:
                count = batch.num_rows
                columns.append(pa.array(np.arange(following - count, following)))
                columns.append(pa.repeat(diff < 0, count))
                names += [SEQUENCE, DELETED]
                diff = 1
            columns.append(pa.array(np.full(batch.num_rows, diff)))
            batches.append(pa.record_batch(columns, names=[*names, "diff"]))
        if not batches:
            return None, parcels
        return (batches[0] if len(batches) == 1 else pa.concat_batches(batches)), parcels

    def drop(self) -> list[Parcel]:
        """Forget them; the parcels that nobody names now."""
        dropped, self._parcels = self._parcels, []
        # Numbers matter within an epoch only; those that were set aside are of the epoch that their rows come in.
        self._pieces = [(None, 0, self._sequence)] if self._reserved else []
        return dropped
