"""The beginning of a loop by rounds: when it runs, and the rows that it takes from outside.

`Stir` watches the inputs of the loop, and sends a mark in an epoch in which one of them changes. The mark comes to all
workers, and `OpenLoop` makes it one: the loop runs. `Bring` lets nodes of the loop read an arrangement from outside,
and `Pour` gives the content of such an arrangement as rows of a round. Laws:

- **As of the epoch.** A round begins on a worker after all changes of the epoch to the inputs of the loop have come to
  that worker: `OpenLoop` is behind `Stir`, and `Stir` is behind all inputs.
- **Once a round.** `Pour` gives the whole content in each round of which it gets the mark.

Cost: `Pour` reads the whole content in each round; the others do a few microseconds of work in an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import pyarrow as pa

from riverrun.operators.rounds.gather import StandingRows
from riverrun.plan.operator import (
    Actor,
    Arranged,
    Context,
    Operator,
    PlacedInput,
    Placement,
    so_far,
)
from riverrun.progress import Antichain, Summary, Timestamp
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.columns import as_column
from riverrun.state.view import View

MARKS = pa.schema({"mark": pa.int64()})
"""The columns of marks: what is said is that there is one."""
_MARK = (as_column(np.ones(1, np.int64)),)


def mark_at(time: Timestamp) -> Changes:
    """A mark at a time."""
    return Changes(_MARK, 1, (time,), None, 1, None)


@dataclass(frozen=True)
class Stir(Operator):
    """A mark in each epoch in which one of some arrangements changes."""

    kind: ClassVar[str] = "stir"
    reads_arrangements: ClassVar[bool] = True

    def describe(self) -> str:
        return "a mark where an input of the loop has changed"

    def start(self, context: Context) -> Stirred:
        return Stirred(context)


class Stirred(Actor):
    """A watch on a worker."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._changed: set[Timestamp] = set()
        for port, source in enumerate(context.sources):
            assert isinstance(source, Arranged)
            source.arrangement.readers.append(partial(self.announced, port))

    def announced(self, port: int, batch: Batch, time: Timestamp) -> None:
        self.context.arrive(port, time)
        if time not in self._changed:
            self._changed.add(time)
            self.context.request(time)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        self._changed.remove(time)
        self.context.push(mark_at(time), 0)


@dataclass(frozen=True)
class OpenLoop(Operator):
    """One mark for all marks of an epoch."""

    kind: ClassVar[str] = "open"

    def describe(self) -> str:
        return "begin the loop anew"

    def start(self, context: Context) -> Opener:
        return Opener(context)


class Opener(Actor):
    """The marks of an epoch, on a worker."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._marked: set[Timestamp] = set()

    def receive(self, port: int, changes: Changes) -> None:
        for time in changes.times:
            if time not in self._marked:
                self._marked.add(time)
                self.context.request(time)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        self._marked.remove(time)
        self.context.push(mark_at(time), 0)


@dataclass(frozen=True)
class Bring(Operator):
    """An arrangement from outside, to be read inside of a loop."""

    kind: ClassVar[str] = "bring"
    same_rows: ClassVar[bool] = True
    steps_out: ClassVar[int] = -1
    reads_arrangements: ClassVar[bool] = True

    def summary(self, depth: int) -> Summary:
        return Summary.enter(depth)

    def describe(self) -> str:
        return "an arrangement from outside"

    def announced(self, arrangements: object) -> Sequence[int]:
        return ()

    def start(self, context: Context) -> Brought:
        return Brought(context)


class Brought(StandingRows):
    """The arrangement, on a worker."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        (source,) = context.sources
        assert isinstance(source, Arranged)
        self._arrangement = source.arrangement
        self.schema = source.arrangement.spine.schema

    def view(self, time: Timestamp) -> View:
        return so_far(self._arrangement.spine, Antichain([(time[0] + 1,)]))


@dataclass(frozen=True)
class Pour(Operator):
    """The rows that stand at input 1, in each round of which a mark comes (input 0); or in the first only."""

    first: bool = False
    kind: ClassVar[str] = "pour"

    def reads(self, at: int) -> bool:
        return at == 1

    def describe(self) -> str:
        return "all rows from outside" + (", in the first round" if self.first else "")

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        return inputs[1].keys

    def start(self, context: Context) -> Pourer:
        return Pourer(context, self)


class Pourer(Actor):
    """A pour on a worker, and the rounds of which it has the mark."""

    def __init__(self, context: Context, operator: Pour) -> None:
        super().__init__(context)
        (source,) = context.sources
        assert isinstance(source, StandingRows)
        self._first = operator.first
        self._source = source
        places = source.schema.positions
        self._positions = [places[name] for name in self.node.schemas[0].names]
        self._marked: set[Timestamp] = set()

    def receive(self, port: int, changes: Changes) -> None:
        for time in changes.times:
            if time not in self._marked and not (self._first and time[-1]):
                self._marked.add(time)
                self.context.request(time)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        self._marked.remove(time)
        view = self._source.view(time)
        for rows in view.scan(time[:1]) if view.batches else ():
            columns = tuple(rows.canonicals(self._positions))
            self.context.push(Changes(columns, len(rows), (time,), None, 0, rows.counts), 0)
