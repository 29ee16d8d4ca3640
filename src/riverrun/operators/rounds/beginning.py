"""The beginning of a loop by rounds: when it runs, and the rows that it takes from outside.

`Stir` watches the inputs of the loop, and sends a mark in an epoch in which one of them changes. The mark comes to all
workers, and `OpenLoop` makes it one: the loop runs. `Bring` lets nodes of the loop read an arrangement from outside,
and `Pour` gives the content of such an arrangement as rows of a round. A loop that was saved between two rounds
(`plan.saved_rounds`) begins at the later of them: the mark of its beginning names that round, and the saved rows take
the place of the start. Laws:

- **As of the epoch.** A round begins on a worker after all changes of the epoch to the inputs of the loop have come to
  that worker: `OpenLoop` is behind `Stir`, and `Stir` is behind all inputs.
- **Once a round.** `Pour` gives the whole content in each round of which it gets the mark.
- **As saved.** A loop that begins at a saved round does nothing in earlier rounds, and gets in that round what it would
  have had there.

Cost: `Pour` reads the whole content in each round; the others do a few microseconds of work in an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
from riverrun.plan.saved_rounds import STANDING
from riverrun.progress import Antichain, Summary, Timestamp
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.columns import as_column
from riverrun.state.view import View

MARKS = pa.schema({"mark": pa.int64()})
"""The columns of marks: what is said is that there is one, and mostly nothing else. The mark with which a loop begins
has the number of its first round, from 1 on, and a vote the number of a request to save the round, plus 1."""
_MARK = (as_column(np.ones(1, np.int64)),)


def mark_at(time: Timestamp, number: int = 0) -> Changes:
    """A mark at a time, which has a number."""
    column = _MARK if not number else (as_column(np.array([number + 1])),)
    return Changes(column, 1, (time,), None, 1, None)


def number_of(marks: Changes) -> int:
    """The greatest number that some marks have."""
    return int(np.asarray(marks.columns[0]).max()) - 1 if marks.rows else 0


def rounds_marked(marks: Changes) -> Iterator[Timestamp]:
    """The rounds that begin with some marks: those of their times; or a later one where a loop begins at that."""
    for time in marks.times:
        first = 0 if time[-1] else number_of(marks)
        yield (*time[:-1], first) if first else time


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
    """One mark for all marks of an epoch, for the loop with this path."""

    loop: str = ""
    kind: ClassVar[str] = "open"

    def describe(self) -> str:
        return "begin the loop anew"

    def start(self, context: Context) -> Opener:
        return Opener(context, self)


class Opener(Actor):
    """The marks of an epoch, on a worker."""

    def __init__(self, context: Context, operator: OpenLoop) -> None:
        super().__init__(context)
        self._loop = operator.loop
        self._marked: set[Timestamp] = set()

    def receive(self, port: int, changes: Changes) -> None:
        for time in changes.times:
            if time not in self._marked:
                self._marked.add(time)
                self.context.request(time)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        self._marked.remove(time)
        saved = self.context.saves.brought(self._loop, time[0])
        self.context.push(mark_at(time, 0 if saved is None else saved.round), 0)


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
    variable: int = field(default=0, compare=False)
    """With `first`: which variable of the loop begins with these rows."""
    key: tuple[int, ...] | None = field(default=None, compare=False)
    """With `first`: the columns by which rows of the variable are placed, where rounds place them; None where that is
    not known. Rows with which a saved round begins are placed by these columns, and by no others."""
    kind: ClassVar[str] = "pour"

    def reads(self, at: int) -> bool:
        return at == 1

    def describe(self) -> str:
        return "all rows from outside" + (", in the first round" if self.first else "")

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        keys = inputs[1].keys
        if not self.first or keys is None:
            return keys
        return set() if self.key is None else keys & {self.key}

    def start(self, context: Context) -> Pourer:
        return Pourer(context, self)


class Pourer(Actor):
    """A pour on a worker, and the rounds of which it has the mark."""

    def __init__(self, context: Context, operator: Pour) -> None:
        super().__init__(context)
        (source,) = context.sources
        assert isinstance(source, StandingRows)
        self._first, self._variable = operator.first, operator.variable
        everything = tuple(range(len(self.node.schemas[0])))
        self._key = everything if operator.key is None else operator.key
        self._source = source
        self._marked: set[Timestamp] = set()

    def receive(self, port: int, changes: Changes) -> None:
        if self._first:
            self._take_first(changes)
            return
        for time in rounds_marked(changes):
            self._mark(time)

    def _take_first(self, marks: Changes) -> None:
        for time in marks.times:
            if not time[-1]:
                saved = self.context.saves.brought(self.node.scope.path, time[0])
                self._mark(time if saved is None else (*time[:-1], saved.first))

    def _mark(self, time: Timestamp) -> None:
        if time not in self._marked:
            self._marked.add(time)
            self.context.request(time)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        self._marked.remove(time)
        if self._first and self._go_on(time):
            return
        for rows in self._source.standing(time):
            self.context.push(rows, 0)

    def _go_on(self, time: Timestamp) -> bool:
        """Give the rows with which a saved round begins, if the loop begins at one."""
        saves, loop = self.context.saves, self.node.scope.path
        saved = saves.brought(loop, time[0])
        if saved is None:
            return False
        parts = [(str(self._variable), (*time[:-1], saved.round))]
        if not self._variable:
            parts.append((STANDING, (*time[:-1], saved.first)))
        for part, at in parts:
            changes = saved.changes(part, at)
            if changes is not None and not saved.is_own:
                changes = changes.partition(self._key, self.context.shards)[self.context.index]
            if changes is not None:
                self.context.push(changes, 0)
        return True
