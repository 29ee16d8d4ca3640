"""Inlets: the rows that an input was given since the last commit, here or already at workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from riverrun.engine.messages import Parcel
from riverrun.engine.operators.linear import Input
from riverrun.engine.operators.upsert import DELETED, FRAME, SEQUENCE
from riverrun.engine.plan import Node, Plan, Port
from riverrun.errors import RiverrunError, SchemaError
from riverrun.run.rows import as_table

NUMBERS = 1 << 63
"""How many numbers there are in an epoch."""


@dataclass(frozen=True)
class Conform:
    """Brings rows to the declared columns of an input (`rows.as_table`); a null in its key is refused as such."""

    key: tuple[str, ...]

    def __call__(self, given: Any, schema: pa.Schema, attempt: str) -> pa.RecordBatch:
        try:
            return as_table(given, schema, attempt)
        except SchemaError as error:
            if error.code != "schema.null" or error.fields.get("column") not in self.key:
                raise
            column, row = error.fields["column"], error.fields.get("row")
            named = {**error.fields, "key": self.key}
            where = "there is a null" if row is None else f"row {row} has None"
            key = "which is the key: a key has no nulls"
            if len(self.key) > 1:
                key = f"which is part of the key ({', '.join(self.key)}): a key has no nulls"
            raise SchemaError(
                "schema.null_key",
                f"cannot {attempt}: {where} in column {column!r}, {key}",
                hint="leave these rows out, or give the column a value that stands for nothing; an input without a key "
                "takes nulls",
                **named,
            ) from None


class Inlet:
    """An input. For one with a key, commands are numbered in the order in which they were given."""

    def __init__(self, node: Node, plan: Plan) -> None:
        operator = node.operator
        assert isinstance(operator, Input)
        self.name = operator.name
        self.key = operator.key
        self.conform = Conform(self.key)
        self.schema = node.schemas[0]
        if self.key:  # commands may have nulls where rows may not
            ((moved, _),) = plan.consumers[Port(node.number)]
            ((kept, _),) = plan.consumers[Port(moved.number)]
            self.schema = kept.schemas[0]
        self._pieces: list[tuple[pa.RecordBatch, int, int]] = []
        self._parcels: list[Parcel] = []
        self._sequence = 0
        self._reserved = 0
        self.rows = 0

    def add(self, batch: pa.RecordBatch, diff: int) -> None:
        """Rows, to be inserted (1) or deleted (-1)."""
        if batch.num_rows:
            self._pieces.append((batch, diff, self._sequence))
            self._sequence += batch.num_rows
            self.rows += batch.num_rows

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
        self._sequence += FRAME
        self._reserved += 1
        return first

    def give_up(self) -> None:
        """The DataFrame for which numbers were set aside does not come."""
        self._reserved -= 1

    def add_parcels(self, parcels: list[Parcel]) -> None:
        """Rows that workers have: those of a DataFrame for which numbers were set aside."""
        self._reserved -= 1
        self._parcels += parcels
        self.rows += sum(parcel.rows for parcel in parcels)

    def gathered(self) -> tuple[pa.RecordBatch | None, tuple[Parcel, ...]]:
        """All rows since the last commit: those here, with `diff` as their last column, and those at workers."""
        pieces, parcels = self._pieces, tuple(self._parcels)
        if not pieces:
            return None, parcels
        batches = []
        for batch, diff, sequence in pieces:
            columns, names = list(batch.columns), list(batch.schema.names)
            if self.key:
                count = batch.num_rows
                columns.append(pa.array(np.arange(sequence, sequence + count)))
                columns.append(pa.repeat(diff < 0, count))
                names += [SEQUENCE, DELETED]
                diff = 1
            columns.append(pa.array(np.full(batch.num_rows, diff)))
            batches.append(pa.record_batch(columns, names=[*names, "diff"]))
        return (batches[0] if len(batches) == 1 else pa.concat_batches(batches)), parcels

    def drop(self) -> list[Parcel]:
        """Forget them; the parcels that nobody names now."""
        dropped, self._parcels = self._parcels, []
        self._pieces, self.rows = [], 0
        if not self._reserved:  # numbers matter within an epoch only
            self._sequence = 0
        return dropped
