"""The upsert operator: rows that replace the row with the same key.

Every input with a key is followed by an exchange by key, and then by this operator. The operator takes commands
(`rows.commands`): each command puts a row or deletes the row of a key, and has a number, unique within its epoch. The
operator gives changes: the old row of a key removed, the new row added, nothing where both are equal. The rows are
arranged by key. Law:

- **Last command.** Of the commands for a key up to epoch e, the last is the one with the greatest number in the latest
  epoch. As of e, the key has the row that this command puts, or no row if the command is a deletion. So neither the
  batches that the commands of an epoch are cut into nor their order of arrival shows (the laws *last counts* and *no
  two numbers* of `rows.commands`).

Cost: sorting the commands of an epoch by key, and one lookup for each key among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from riverrun.operators.arrange import changes_of, state_schema
from riverrun.plan.operator import Arranged, Arrangement, Context, Operator, hold
from riverrun.progress import Antichain, Timestamp
from riverrun.rows.commands import DELETED, LAST_FIRST, SEQUENCE, commands_schema
from riverrun.state import Order, Schema
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.columns import as_array, as_column, take_columns
from riverrun.state.keys import Keys


@dataclass(frozen=True)
class Upsert(Operator):
    """The last row of each key. The input are commands, exchanged by key."""

    key: tuple[str, ...]
    kind: ClassVar[str] = "upsert"
    kernels: ClassVar[tuple[str, ...]] = (
        "presence.find_present",
        "packing.leading_rows",
        "differing.pack_difference",
    )
    keeps_state: ClassVar[bool] = True
    gives_content: ClassVar[bool] = True
    known_by_input: ClassVar[bool] = True

    def describe(self) -> str:
        return f"upsert by {', '.join(self.key)}"

    @property
    def arranged_by(self) -> tuple[tuple[str, ...], tuple[Order, ...]]:
        return self.key, ()

    @property
    def from_content(self) -> bool:
        return False  # commands do not add up

    def start(self, context: Context) -> Upserter:
        return Upserter(context, self)


class Upserter(Arranged):
    """The rows on a worker, and the commands whose epoch is not complete."""

    def __init__(self, context: Context, operator: Upsert) -> None:
        super().__init__(context)
        columns = self.node.schemas[0]
        self._schema = state_schema(columns, operator.key)
        self.arrangement = Arrangement(context.spine(self._schema))
        command_columns = commands_schema(columns)
        key = pa.schema([command_columns.field(name) for name in operator.key])
        sequence = pa.schema([command_columns.field(SEQUENCE)])
        self._commands = Schema.of(key, sequence, LAST_FIRST)
        places = {name: at for at, name in enumerate(command_columns.names)}
        self._asked = [places[field.name] for field in self._commands.columns]
        width = len(operator.key)
        self._value_places = [places[field.name] for field in self._schema.columns[width:]]
        self._deleted = places[DELETED]
        self._held: dict[Timestamp, list[Changes]] = {}

    def receive(self, port: int, changes: Changes) -> None:
        hold(self._held, changes, self.context.request)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        spine = self.arrangement.spine
        commands = Changes.concat(self._held.pop(time))
        asked = [commands.columns[at] for at in self._asked]
        keys, last = Keys.first_rows(self._commands, asked, commands.rows)
        put = np.arange(len(last))
        deleted = commands.columns[self._deleted]
        if deleted.true_count:
            put = np.flatnonzero(~as_array(deleted.take(as_column(last))))
            last = last[put]
        values = (
            take_columns([commands.columns[at] for at in self._value_places], last)
            if self._value_places
            else ()
        )
        old = spine.view().present(keys)
        batch = Batch.difference(self._schema, keys, put, values, old, time, spine.upper, upper)
        assert batch is not None  # the keys are in order
        if not len(batch):
            return
        self.arrangement.append(batch, time)
        if self.context.has_consumers:
            sent = changes_of(batch, time)
            places = self._schema.positions
            order = [places[name] for name in self.node.schemas[0].names]
            self.context.push(sent.with_columns(tuple(sent.columns[at] for at in order)), 0)
