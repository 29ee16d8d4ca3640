"""Saved rounds: what an instance and the loops in it say to each other, so that a long loop can go on after a loss.

Between two rounds a loop by rounds is described by the rows with which the next round begins, and by the solution that
it changes in place. Where a run asks for it (`RoundSaves.asked`), every worker hands out its part of these rows, as
`SavedRows`, between the same two rounds. When the same epoch is done again, the instance is given such rows before it
is fed (`RoundSaves.bring`), and the loop begins with them, at the round that they are for.

Who uses it: operators of loops, by `Context.saves`; the engine's instance and worker; `storage.saved_rounds` keeps the
rows. Laws:

- **Same boundary.** All workers hand out the rows of a loop before the same round, or none does.
- **Same places.** Where the shards are what they were, a worker gets the rows back that it has handed out. Otherwise
  each row goes to the worker that owns the hash of the columns by which the loop places its rows.
- **Fits or refused.** Rows that are not those of a loop of this plan, in their number and types, are refused before
  anything is fed.

Cost: nothing while nobody asks, besides a comparison in each round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from riverrun.errors import CheckpointError
from riverrun.progress import Timestamp
from riverrun.state.changes import Changes
from riverrun.state.columns import as_column

STANDING = "standing"
"""Of the parts of saved rows, the solution of the loop, as of the round before; the others are called by number."""


@dataclass(frozen=True, slots=True)
class SavedRows:
    """A worker's part of the rows of a loop before a round; or the parts of all workers together."""

    loop: str
    """The path of the loop's scope."""
    epoch: int
    round: int
    """The round that begins with these rows."""
    asked: int
    """The number of the request that these rows answer."""
    is_own: bool
    """Whether these are the rows that the worker has handed out itself; otherwise those of all workers, of which it
    takes the ones that it owns."""
    parts: Mapping[str, Sequence[pa.RecordBatch]]
    """For each variable of the loop, by number, its rows; and those of `STANDING`. The last column is the diff."""

    @property
    def first(self) -> int:
        """The first round that gets some of the rows: a solution stands in the round before, if there is one."""
        return self.round - 1 if STANDING in self.parts else self.round

    def changes(self, part: str, time: Timestamp) -> Changes | None:
        """The rows of a part as changes at a time; None for no rows."""
        pieces = [
            Changes(tuple(batch.columns[:-1]), batch.num_rows, (time,), None, 0, _diffs(batch))
            for batch in self.parts.get(part, ())
            if batch.num_rows
        ]
        return Changes.concat(pieces) if pieces else None


class SavesRounds(Protocol):
    """The end of a loop that can be saved."""

    @property
    def saved_types(self) -> Mapping[str, Sequence[pa.DataType]]:
        """For each part of the saved rows, the types of its columns, without the diff."""
        ...


class RoundSaves:
    """The saved rounds of the loops of one instance."""

    def __init__(self) -> None:
        self.asked = 0
        """The number of the last request to save; 0 where there was none."""
        self.loops: dict[str, SavesRounds] = {}
        """The loops that can be saved, by the path of their scope."""
        self._taken: list[SavedRows] = []
        self._brought: dict[str, SavedRows] = {}

    def give(self, rows: SavedRows) -> None:
        """Hand out the rows of a loop."""
        self._taken.append(rows)

    def take(self, asked: int) -> list[SavedRows]:
        """What was handed out since the last call, for requests up to that number."""
        taken = [rows for rows in self._taken if rows.asked <= asked]
        self._taken = [rows for rows in self._taken if rows.asked > asked]
        return taken

    def bring(self, saved: Sequence[SavedRows]) -> None:
        """Have loops of the next epoch begin with saved rows (*fits or refused*)."""
        for rows in saved:
            loop = self.loops.get(rows.loop)
            if loop is None:
                raise _no_fit(rows, "there is no such loop")
            if rows.round < 1:
                raise _no_fit(rows, f"no loop is saved before round {rows.round}")
            types = loop.saved_types
            if rows.parts.keys() - types.keys():
                raise _no_fit(rows, f"it has no rows for {', '.join(sorted(rows.parts))}")
            for part, batches in rows.parts.items():
                expected = [*types[part], pa.int64()]
                for batch in batches:
                    if batch.schema.types != expected or batch.columns[-1].null_count:
                        raise _no_fit(rows, f"the rows of {part} are {batch.schema.types}")
        self._brought = {rows.loop: rows for rows in saved}

    def brought(self, loop: str, epoch: int) -> SavedRows | None:
        """The rows with which a loop begins in an epoch, if it does not begin at its start."""
        rows = self._brought.get(loop)
        return rows if rows is not None and rows.epoch == epoch else None

    def end(self) -> None:
        """The epoch is over: what was asked, handed out and brought for it is of no use any more."""
        self.asked = 0
        self._taken.clear()
        self._brought.clear()


def batch_of_changes(changes: Changes) -> pa.RecordBatch:
    """The rows of changes of one time, and their diffs behind them."""
    columns = [*changes.columns, as_column(changes.diff_array())]
    return pa.RecordBatch.from_arrays(columns, names=[str(at) for at in range(len(columns))])


def _diffs(batch: pa.RecordBatch) -> np.ndarray:
    diffs: np.ndarray = np.asarray(batch.columns[-1])
    return diffs


def _no_fit(rows: SavedRows, why: str) -> CheckpointError:
    return CheckpointError(
        "checkpoint.other_loop",
        f"cannot go on in round {rows.round} of the loop {rows.loop.rstrip('/')!r}: {why}",
        hint="the loop begins at its first round: nothing is lost but time",
        loop=rows.loop,
    )
