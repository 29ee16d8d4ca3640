"""Again: where a loop by rounds leads back to its start, or out.

The rows that a round gives for the variables of the loop come here, the votes for another round (`stops`), and the
mark of the round. When the round is whole, and no vote can come any more, every worker decides: with a vote, rows and
mark go to the next round; without one, or after `limit` rounds, they leave the loop. Laws:

- **All alike.** A vote comes to all workers, before any of them can decide on its round. So all decide alike.
- **Feedback closes the cycle.** As `operators.loops.Feedback` does: everything that is sent is of the next round. What
  leaves the loop has no round any more.

Cost: nothing per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from riverrun.operators.loops import GoingAround
from riverrun.operators.rounds.beginning import mark_at
from riverrun.plan.operator import Context, Operator, PlacedInput, Placement, Role
from riverrun.progress import Antichain, Summary, Timestamp
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

    def receive(self, port: int, changes: Changes) -> None:
        for time in changes.times:
            if time not in self._came:
                self._came[time] = [[] for _ in range(self._variables + 2)]
                self.context.request(time)
            piece = changes.at(time)
            if piece is not None:
                self._came[time][port].append(piece)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        *variables, votes, _ = self._came.pop(time)
        self.going = time, sum(piece.rows for pieces in variables for piece in pieces)
        following = (*time[:-1], time[-1] + 1)
        goes_on = votes and (self._limit is None or following[-1] < self._limit)
        first = 0 if goes_on else self._variables + 1
        for at, pieces in enumerate(variables, first):
            for piece in pieces:
                self.context.push(piece.map_times(lambda _: following), at)
        self.context.push(mark_at(following), first + self._variables)
