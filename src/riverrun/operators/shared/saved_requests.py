"""Saved requests: the requests that wait at a boundary, as a state in a checkpoint, and back.

Used by `fetch`, one `SavedRequests` for each fetch and worker. Law:

- **Same requests.** What `restored` gives waits as what `view` was given has waited: the same rows, as often, at the
  same rounds of the loops that only the fetch is in.

Cost: the rows are laid out when a checkpoint is written, and not before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from riverrun.operators.shared.waiting import Rounds, WaitingBlock
from riverrun.rows.records import canonical_columns
from riverrun.state import Schema
from riverrun.state.changes import Changes
from riverrun.state.columns import as_array, as_column
from riverrun.state.view import View, deferred

ROUND = "__round{}__"


class SavedRequests:
    """How the waiting requests of a fetch are laid out: the columns of the key first, and the rounds last."""

    def __init__(
        self, name: str, requests: pa.Schema, key: tuple[int, ...], *, depth: int, loops: int
    ) -> None:
        """`depth` is how many coordinates the times of the fetch have; of these, `loops` are rounds of loops that its
        state is not in."""
        self._name = name
        self._depth, self._loops = depth, loops
        self._order = [*key, *(at for at in range(len(requests)) if at not in key)]
        rounds = [pa.field(ROUND.format(at), pa.int64()) for at in range(loops)]
        fields = [requests.field(at).with_nullable(True) for at in self._order]
        cut = len(key)
        self.schema = Schema.of(pa.schema(fields[:cut]), pa.schema([*fields[cut:], *rounds]))

    def view(self, blocks: Sequence[WaitingBlock], epoch: int) -> View:
        """The requests of some blocks as a state, at the boundary before an epoch."""
        time = (epoch - 1, *(0,) * (self._depth - 1))

        def laid_out(block: WaitingBlock) -> Changes:
            changes = block.changes.map_times(lambda _: time)
            rounds = [
                as_column(np.full(changes.rows, each)) for each in block.rounds[: self._loops]
            ]
            return changes.with_columns((*(changes.columns[at] for at in self._order), *rounds))

        def make() -> Changes | None:
            return Changes.concat([laid_out(block) for block in blocks]) if blocks else None

        return deferred(self._name, self.schema, epoch, self._depth, make)

    def restored(self, saved: pa.RecordBatch) -> Iterator[tuple[Rounds, Changes]]:
        """The requests of each round, from the rows of a checkpoint, the last column of which says how often each is
        there."""
        counts = as_array(saved.column(saved.num_columns - 1))
        rows = saved.select(list(range(saved.num_columns - 1)))
        laid = canonical_columns(rows, pa.schema([*self.schema.key, *self.schema.value]))
        columns: list[Any] = [None] * len(self._order)
        for at, column in zip(self._order, laid, strict=False):
            columns[at] = column
        changes = Changes(tuple(columns), rows.num_rows, ((0,) * self._depth,), None, 0, counts)
        if not self._loops:
            yield (), changes
            return
        groups: dict[Rounds, list[int]] = {}
        rounds = (as_array(column).tolist() for column in laid[len(self._order) :])
        for row, each in enumerate(zip(*rounds, strict=True)):
            groups.setdefault(each, []).append(row)
        for each, chosen in groups.items():
            yield each, changes.take(np.array(chosen))
