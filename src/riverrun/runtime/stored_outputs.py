"""Stored outputs: what a checkpoint says of the outputs and shared states of a run, and their rows, read from a
checkpoint while no run is alive.

A run writes what `describe_outputs` returns into each of its checkpoints. `storage.reader` finds a state in a
checkpoint, and cuts the state into ranges of hashes (`StoredState.cuts`); a `StoredPortion` has the rows of one range.
`run.checkpoints` takes all `portions`, and in `spark.checkpoints` each task makes the portion that the task reads. A
portion may also be of a state that is neither output nor shared: then a last column says how often each row is there.
The laws of `engine.reading` hold, and:

- **Whole.** The portions of all cuts together are the output, or the state, as of the epoch of the `StoredState`.
- **Damage is named.** Where a file is damaged, the error names the file, and says how to find a checkpoint that is
  whole.

Cost: a portion opens its range of hashes when its rows are asked for, and lets go of the range afterwards. Files on a
local disk are mapped; those of other storages are in memory meanwhile.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from riverrun.engine.reading import Portion, ViewPortion
from riverrun.errors import CheckpointError
from riverrun.plan.plan import Node, Plan
from riverrun.rows.conditions import Where
from riverrun.rows.records import narrowed
from riverrun.state.columns import as_column
from riverrun.state.types import shown_schema
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.reader import StoredState
from riverrun.version import __version__


def describe_outputs(plan: Plan) -> dict[str, Any]:
    """What every checkpoint of a run says about the run's program, outputs and shared states, as JSON."""

    def described(readable: Mapping[str, Node]) -> dict[str, Any]:
        return {
            name: {
                "state": plan.arranged(node).name,
                "columns": node.schemas[0].names,
                "schema": base64.b64encode(node.schemas[0].serialize()).decode(),
            }
            for name, node in readable.items()
        }

    about = {"outputs": described(plan.outputs), "shared": described(plan.states)}
    return {"riverrun": __version__, "program": plan.name, **about}


class StoredPortion(Portion):
    """The rows of what is stored under a name, in a range of hashes; or of any state that a run keeps, with how often
    each row is there."""

    def __init__(self, checkpoints: Checkpoints, stored: StoredState, low: int, high: int) -> None:
        self.schema = shown_schema(stored.columns)
        self._checkpoints = checkpoints
        self._stored = stored
        self._range = low, high

    def batches(
        self, columns: Sequence[str] | None = None, where: Sequence[Where] = ()
    ) -> Iterator[pa.RecordBatch]:
        stored = self._stored
        try:
            view, time = stored.open(self._checkpoints, *self._range)
        except CheckpointError as error:
            raise _explained(error, stored.number) from error
        if stored.output is not None:
            yield from ViewPortion(stored.output, stored.columns, view, time[0]).batches(
                columns, where
            )
            return
        for piece in view.scan(time) if view.batches else ():
            counted = [*piece.to_batch().columns, as_column(piece.counts)]
            yield narrowed(pa.record_batch(counted, schema=self.schema), columns, where)


def portions(checkpoints: Checkpoints, stored: StoredState) -> list[StoredPortion]:
    """The portions of a stored output or state: together they have all of its rows."""
    return [StoredPortion(checkpoints, stored, low, high) for low, high in stored.cuts()]


def _explained(error: CheckpointError, number: int) -> CheckpointError:
    """The same error, with a hint for somebody who reads while no run is alive."""
    if "file" not in error.fields:
        return error
    return CheckpointError(
        error.code,
        f"cannot read checkpoint {number}: {error.message}",
        hint="riverrun checkpoints PATH --verify says which checkpoint is whole: give its number to read that one; "
        "where a run is alive, it may have collected this one: read again",
        **{**error.fields, "number": number},
    )
