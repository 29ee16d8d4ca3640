"""Joins of a round: the pairs of the rows of one round, or of these and of an arrangement from outside of the loop.

A `ProbeRound` looks up the rows of the round in rows that stay where they are: an arrangement, which is the same in all
rounds, or the solution of a delta iteration (`table`).
A `MatchRound` pairs the rows of a round with each other. Both make pairs as `operators.join` does. Laws:

- **Null meets nothing.** As in every join.
- **Only the round.** The pairs of a round are made of the rows of the round; none is left for the next.

Cost: for each row of the round, the rows of the other side with its key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

import pyarrow as pa

from riverrun.operators.rounds.gather import RoundActor, StandingRows, at_round, view_of
from riverrun.plan.operator import (
    Actor,
    Context,
    Operator,
    PlacedInput,
    Placement,
)
from riverrun.progress import Antichain, Timestamp
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.schema import Schema
from riverrun.state.view import View


class Pairs(Protocol):
    """A join."""

    def pairs(
        self, batch: Batch, view: View, side: int, needed: Sequence[int] | None
    ) -> Iterator[Changes]:
        """The pairs of a batch, which is of this side (0: left, 1: right), with a view of the other side."""
        ...

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement: ...

    def describe(self) -> str: ...

    def identity(self) -> str: ...


@dataclass(frozen=True)
class JoinRound(Operator):
    """A join in a round."""

    join: Pairs
    kernels: ClassVar[tuple[str, ...]] = (
        "matching.find_matches",
        "matching.list_matches",
        "matching.mark_codes",
        "packing.list_keys",
    )
    reads_arrangements: ClassVar[bool] = True
    may_be_tracked: ClassVar[bool] = False
    needs_all_inputs: ClassVar[bool] = True
    may_cancel: ClassVar[bool] = True

    def identity(self) -> str:
        return f"in the round: {self.join.identity()}"

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        return self.join.placement(inputs, schema)


@dataclass(frozen=True)
class ProbeRound(JoinRound):
    """Pairs the rows of a round, which come to the input `varying`, with rows that stand where they are."""

    varying: int = 0
    waits: bool = False
    """Whether the rows that stand are not the same in all rounds: then they are read when the round is whole."""
    kind: ClassVar[str] = "probe"
    reads_outside: ClassVar[bool] = True

    @property
    def tracked(self) -> bool:  # type: ignore[override]
        return self.waits

    def describe(self) -> str:
        what = "the solution" if self.waits else "an arrangement that stays"
        return f"{self.join.describe()}: the rows of the round, in {what}"

    def start(self, context: Context) -> Prober:
        return Prober(context, self)


class Prober(Actor):
    """A probe on a worker."""

    def __init__(self, context: Context, operator: ProbeRound) -> None:
        super().__init__(context)
        rows, standing = context.sources[operator.varying], context.sources[1 - operator.varying]
        assert isinstance(rows, RoundActor)
        assert isinstance(standing, StandingRows)
        self._operator = operator
        self._standing = standing
        self._came: dict[Timestamp, Batch] = {}
        rows.rows.readers.append(self._announced if operator.waits else self._probe)

    def _announced(self, batch: Batch, time: Timestamp) -> None:
        self.context.arrive(self._operator.varying, time)
        self._came[time] = batch
        self.context.request(time)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        self._probe(self._came.pop(time), time)

    def _probe(self, batch: Batch, time: Timestamp) -> None:
        view, operator = self._standing.view(time), self._operator
        for pairs in operator.join.pairs(batch, view, operator.varying, self.context.needed):
            self.context.push(at_round(pairs, time), 0)


@dataclass(frozen=True)
class MatchRound(JoinRound):
    """Pairs the rows of a round with rows of the same round."""

    kind: ClassVar[str] = "match"
    tracked: ClassVar[bool] = True

    def describe(self) -> str:
        return f"{self.join.describe()}, of the rows of the round"

    def start(self, context: Context) -> Matcher:
        return Matcher(context, self)


class Matcher(Actor):
    """A match on a worker, and the batches of the round that came so far."""

    def __init__(self, context: Context, operator: MatchRound) -> None:
        super().__init__(context)
        self._join = operator.join
        self._schemas: list[Schema] = []
        for port, source in enumerate(context.sources):
            assert isinstance(source, RoundActor)
            self._schemas.append(source.rows.schema)
            source.rows.readers.append(partial(self._announced, port))
        self._came: dict[Timestamp, dict[int, Batch]] = {}

    def _announced(self, port: int, batch: Batch, time: Timestamp) -> None:
        self.context.arrive(port, time)
        if time not in self._came:
            self._came[time] = {}
            self.context.request(time)
        self._came[time][port] = batch

    def run(self, time: Timestamp, upper: Antichain) -> None:
        came = self._came.pop(time)
        if len(came) == 2:
            view = view_of(self._schemas[1], came[1], time)
            for pairs in self._join.pairs(came[0], view, 0, self.context.needed):
                self.context.push(at_round(pairs, time), 0)
