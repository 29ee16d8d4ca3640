"""Again: where a loop by rounds leads back to its start, or out.

The rows that a round gives for the variables of the loop come here, the votes for another round (`stops`), and the
mark of the round. When the round is whole, and no vote can come any more, every worker decides: with a vote, rows and
mark go to the next round; without one, or after `limit` rounds, they leave the loop. Where a vote asks for it, each
worker also hands out what the next round begins with (`plan.saved_rounds`). Laws:

- **All alike.** A vote comes to all workers, before any of them can decide on its round. So all decide alike.
- **Saved alike.** A request to save that comes with a vote comes to all workers, like the vote. So all of them save
  before the same round.
- **Feedback closes the cycle.** As `operators.loops.Feedback` does: everything that is sent is of the next round. What
  leaves the loop has no round any more.

Cost: nothing per row, except in a round that is saved: a copy of the rows, and of the solution that stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from riverrun.operators.loops import GoingAround
from riverrun.operators.rounds.beginning import mark_at, number_of, rounds_marked
from riverrun.operators.rounds.gather import StandingRows
from riverrun.plan.operator import Context, Operator, PlacedInput, Placement, Role
from riverrun.plan.saved_rounds import STANDING, SavedRows, batch_of_changes
from riverrun.progress import Antichain, Summary, Timestamp
from riverrun.state import Schema
from riverrun.state.changes import Changes


@dataclass(frozen=True)
class Again(Operator):
    """Leads the rows of `variables` variables to the next round, or out of the loop.

    The inputs are a variable each, then votes, then marks. The outputs are: the variables of the next round, and its
    mark; the variables as they leave, and a mark that they do.
    """

    variables: int
    limit: int | None
    kind: ClassVar[str] = "again"
    role = Role.FEEDBACK
    saves_rounds: ClassVar[bool] = True

    @property
    def round_limit(self) -> int | None:
        return self.limit

    def summary(self, depth: int) -> Summary:
        return Summary.feedback(depth)

    def describe(self) -> str:
        most = "" if self.limit is None else f", at most {self.limit} rounds"
        return f"another round after a vote, or out of the loop{most}"

    def identity(self) -> str:
        most = "" if self.limit is None else f", at most {self.limit} rounds"
        return f"again{most}"

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        return inputs[0].keys if inputs else None

    def outputs(self, schemas: Sequence[pa.Schema], marks: pa.Schema) -> list[pa.Schema]:
        """The columns of all outputs, from those of the variables."""
        return [*schemas, marks, *schemas, marks]

    def start(self, context: Context) -> Deciding:
        return Deciding(context, self)


class Deciding(GoingAround):
    """The rows, votes and marks of rounds that are not whole, on a worker."""

    def __init__(self, context: Context, operator: Again) -> None:
        super().__init__(context)
        self._variables, self._limit = operator.variables, operator.limit
        self._came: dict[Timestamp, list[list[Changes]]] = {}
        self._saved = 0
        """The request to save that was answered last."""
        self.context.saves.loops[self.node.scope.path] = self

    @property
    def saved_types(self) -> Mapping[str, Sequence[pa.DataType]]:
        schemas = self.node.schemas[: self._variables]
        types = {
            str(at): Schema(pa.schema([]), schema).canonical for at, schema in enumerate(schemas)
        }
        return types if self._table is None else {**types, STANDING: types["0"]}

    @property
    def _table(self) -> StandingRows | None:
        """The solution of the loop, if it has one that is changed in place."""
        for actor in self.context.actors.values():
            here = actor.node.scope.path == self.node.scope.path
            if here and isinstance(actor, StandingRows) and actor.in_place:
                return actor
        return None

    def receive(self, port: int, changes: Changes) -> None:
        if port == self._variables + 1:
            for time in rounds_marked(changes):
                self._pieces(time)
            return
        for time in changes.times:
            pieces = self._pieces(time)
            piece = changes.at(time)
            if piece is not None:
                pieces[port].append(piece)

    def _pieces(self, time: Timestamp) -> list[list[Changes]]:
        """What has come at a time, by input."""
        if time not in self._came:
            self._came[time] = [[] for _ in range(self._variables + 1)]
            self.context.request(time)
        return self._came[time]

    def run(self, time: Timestamp, upper: Antichain) -> None:
        *variables, votes = self._came.pop(time)
        self.going = time, sum(piece.rows for pieces in variables for piece in pieces)
        following = (*time[:-1], time[-1] + 1)
        goes_on = votes and (self._limit is None or following[-1] < self._limit)
        if goes_on:
            asked = max(map(number_of, votes))
            if asked > self._saved:
                self._saved = asked
                self._save(variables, time, following, asked)
        first = 0 if goes_on else self._variables + 1
        for at, pieces in enumerate(variables, first):
            for piece in pieces:
                self.context.push(piece.map_times(lambda _: following), at)
        self.context.push(mark_at(following), first + self._variables)

    def _save(
        self,
        variables: Sequence[Sequence[Changes]],
        time: Timestamp,
        following: Timestamp,
        asked: int,
    ) -> None:
        """Hand out what the next round begins with."""
        parts = {
            str(at): [batch_of_changes(piece) for piece in pieces]
            for at, pieces in enumerate(variables)
        }
        if self._table is not None:
            parts[STANDING] = [batch_of_changes(piece) for piece in self._table.standing(time)]
        loop, (epoch, *_) = self.node.scope.path, time
        self.context.saves.give(SavedRows(loop, epoch, following[-1], asked, True, parts))
