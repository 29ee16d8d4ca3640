"""Stored outputs: what checkpoints say of a plan's outputs, and rows read from checkpoints alone.

Laws: those of `reading`; the portions of all `cuts` together are the output, or the state, as of an
epoch. What is damaged is named, with how to find a checkpoint that is whole.

Cost: a portion opens its range of hashes when rows are asked for, and lets go of it afterwards. On a
local disk files are mapped; otherwise they are in memory meanwhile.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from riverrun.engine.reading import Portion, ViewPortion
from riverrun.errors import CheckpointError
from riverrun.plan.plan import Plan
from riverrun.rows.conditions import Where
from riverrun.rows.records import narrowed
from riverrun.state.types import shown_schema
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.reader import StoredState
from riverrun.version import __version__


def said_of(plan: Plan) -> dict[str, Any]:
    """What every checkpoint of a run says about its program: JSON."""
    outputs = {
        name: {
            "state": plan.nodes[node.inputs[0].node].name,
            "columns": node.schemas[0].names,
            "schema": base64.b64encode(node.schemas[0].serialize()).decode(),
        }
        for name, node in plan.outputs.items()
    }
    return {"riverrun": __version__, "program": plan.name, "outputs": outputs}


class StoredPortion(Portion):
    """The rows of a stored output, or of a state with how often each is there, in a range of hashes."""

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
            counted = [*piece.to_batch().columns, pa.array(piece.counts)]
            yield narrowed(pa.record_batch(counted, schema=self.schema), columns, where)


def portions(checkpoints: Checkpoints, stored: StoredState) -> list[StoredPortion]:
    """All of it."""
    return [StoredPortion(checkpoints, stored, low, high) for low, high in stored.cuts()]


def _explained(error: CheckpointError, number: int) -> CheckpointError:
    """The same error, for one who reads with no run alive."""
    if "file" not in error.fields:
        return error
    return CheckpointError(
        error.code,
        f"cannot read checkpoint {number}: {error.message}",
        hint="riverrun checkpoints PATH --verify says which checkpoint is whole: give its number to read that one; "
        "where a run is alive, it may have collected this one: read again",
        **{**error.fields, "number": number},
    )
