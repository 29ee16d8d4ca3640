"""The shared spread: a loop in which a best value spreads along edges, run on the arrays of all workers.

The front end puts these nodes in the place of a loop whose shape it knows (`frontends.collections.shared_spreads`),
where the loop is to run on all workers. The edges are arranged by the key of their source, the rows of the solution and
of the workset by their key. `SharedSpreading` says what the workers write each other; here is who writes when:

- `Stage` takes the changes of an epoch, and finds what is lost by them.
- `FindLosses`, in a loop of its own, takes letters of what is lost, and finds what is lost by that.
- `BringBack` is run when no such letter can come any more: it brings back what was lost.
- `SendValues` is in a second loop. With *supersteps* it is run when all letters of the round before are there: so a
  round ends on all workers before the next one begins, and the round counts the messages on the way. With *microsteps*
  it is run as soon as there is something to do: it sends on some of its values, best first, and looks what has come.
  There the round only counts how often letters were sent on.
- `GiveValues` is run when no letter of the epoch can come any more: by progress tracking, like every other node. It
  gives the net change, and keeps the result as its state.

Letters travel as rows do, by an exchange that reads who they go to (`Post`), and at times of the two loops. Laws:

- **Oracle.** As of each epoch, the rows that `GiveValues` has given are the result of the loop run from scratch.
- **Derived.** The arrays follow from the arrangements. The first epoch after a start takes all rows, on all workers,
  and what comes out is compared with the saved result: so any number of workers may go on with it.

Cost: as `shared_spreading`; an epoch in which something is lost anywhere, or nothing, costs about five hops between
workers besides those of the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from riverrun.operators.iterations.array_loop import GivesResult, TakesRows
from riverrun.operators.iterations.messages import Message
from riverrun.operators.iterations.shared_spreading import Letters, SharedSpreading, addressees
from riverrun.operators.iterations.spread import EDGES, SOLUTION, SpreadLoop
from riverrun.operators.iterations.spreading import Settled
from riverrun.plan.loop_figures import RoundFigures
from riverrun.plan.operator import (
    Actor,
    Columns,
    Context,
    Exchanging,
    Operator,
    PlacedInput,
    by_time,
    hold,
)
from riverrun.progress import Antichain, Timestamp
from riverrun.state.changes import Changes
from riverrun.state.columns import Ints, as_array, as_column
from riverrun.state.shards import Shards

SIGN = pa.schema([pa.field("sign", pa.bool_())])
"""The columns of a row that only says: there is something to do."""
_SIGN = (as_column(np.ones(1, bool)),)
LETTERS, SIGNS = range(2)
"""The outputs of `Stage`, `FindLosses`, `BringBack` and `SendValues`."""
ANSWERED = 2
"""The round in which the answers are there to what was asked before the first one."""
NEVER = 1 << 62


def letter_schema(keys: Sequence[pa.Field]) -> pa.Schema:
    """The columns of letters about keys of these types."""
    named = [pa.field(f"key{at}", each.type) for at, each in enumerate(keys)]
    return pa.schema([*named, *[pa.field(name, pa.int64()) for name in ("about", "word", "hops")]])


@dataclass(frozen=True)
class Stage(Operator):
    """Takes the changes of an epoch; the inputs are those of a `SpreadLoop`."""

    loop: SpreadLoop
    kind: ClassVar[str] = "stage"
    kernels: ClassVar[tuple[str, ...]] = (
        *(each for each in SpreadLoop.kernels if not each.endswith(".settle")),
        "iterations.shared_spreading.empty_outbox",
        "iterations.shared_spreading.hear",
        "iterations.shared_spreading.lose",
        "iterations.shared_spreading.turn",
        "iterations.shared_spreading.work",
        "iterations.spreading.resolve_doubts",
    )
    reads_arrangements: ClassVar[bool] = True

    def describe(self) -> str:
        return f"{self.loop.describe()}, on all workers"

    def identity(self) -> str:
        return f"{self.loop.identity()}, on all workers"

    def start(self, context: Context) -> Staging:
        return Staging(context, self.loop)


class Staging(TakesRows):
    """The arrays of a worker, for all nodes of the loop."""

    def __init__(self, context: Context, loop: SpreadLoop) -> None:
        super().__init__(context)
        self._width = loop.key
        *keys, value = self.kinds[SOLUTION]
        self.spreading = SharedSpreading(
            keys,
            value,
            Message(loop.message),
            own=context.index,
            shards=context.shards,
            best="greatest" if loop.greatest else "least",
            missing="add" if loop.adds_keys else "drop",
            order="superstep" if loop.supersteps else "best",
            patience=loop.patience,
        )
        self.supersteps = loop.supersteps
        self.is_turning = False
        """Whether `BringBack` is to be run in this epoch, and was not yet."""
        self.asks = False
        """Whether this worker waits for values that it has asked for. Without them it would send on many values that
        are not the best."""
        self.began = -1
        """The first epoch of these arrays, in which `SendValues` waits for the news of all workers before anything
        else; -1 afterwards."""
        self.first = -1
        """The first epoch of these arrays, if its supersteps begin one round later, with the news of all workers."""

    def stage(self, port: int, columns: Sequence[pa.Array], diffs: Ints) -> None:
        spreading, width = self.spreading, self._width
        if port == EDGES:
            weights = columns[2 * width] if len(columns) > 2 * width else None
            spreading.change_edges(columns[:width], columns[width : 2 * width], weights, diffs)
        elif port == SOLUTION:
            spreading.change_solution(columns[:width], columns[width], diffs)
        else:
            spreading.change_workset(columns[:width], columns[width], diffs)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        self.take(time, upper)
        send(self.context, self.spreading.lose(), time)
        give_sign(self.context, time)


def send(context: Context, written: Sequence[Letters], time: Timestamp) -> None:
    """Send letters at a time."""
    for letters in written:
        context.push(Changes.of(letters, time), LETTERS)


def give_sign(context: Context, time: Timestamp) -> None:
    """Say at a time that there is something to do."""
    context.push(Changes.of(_SIGN, time), SIGNS)


@dataclass(frozen=True)
class _OfStage:
    """A node of the loop that works on the arrays of `Stage`, the node with the number `stage`."""

    stage: int

    def renumbered(self, places: Mapping[int, int]) -> Any:
        return replace(self, stage=places[self.stage])


class _Writing(Actor):
    """An actor that works on the arrays of its worker."""

    def __init__(self, context: Context, stage: int) -> None:
        super().__init__(context)
        staging = context.actors[stage]
        assert isinstance(staging, Staging)
        self.staging = staging
        self.spreading = staging.spreading
        self._held: dict[Timestamp, list[Changes]] = {}
        self._signed = -1
        """The last epoch in which the node behind this one got a sign."""

    def receive(self, port: int, changes: Changes) -> None:
        hold(self._held, changes, self.context.request)

    def _sign(self, time: Timestamp) -> None:
        if self._signed != time[0]:
            self._signed = time[0]
            give_sign(self.context, time)


@dataclass(frozen=True)
class FindLosses(_OfStage, Operator):
    """Takes letters of what is lost."""

    kind: ClassVar[str] = "losses"
    is_part_of_loop: ClassVar[bool] = True

    def describe(self) -> str:
        return "find the values that came by values which are lost"

    def start(self, context: Context) -> Losing:
        return Losing(context, self.stage)


class Losing(_Writing):
    """Takes letters of what is lost, on a worker."""

    waits = False

    def run(self, time: Timestamp, upper: Antichain) -> None:
        for changes in self._held.pop(time):
            send(self.context, self.spreading.hear_losses(changes.columns), time)
        if self.spreading.is_new or self.spreading.has_lost:
            self._sign(time)


@dataclass(frozen=True)
class BringBack(_OfStage, Operator):
    """Brings back what is lost, and begins to spread what is new."""

    kind: ClassVar[str] = "turn"

    def describe(self) -> str:
        return "bring lost values back to their start"

    def start(self, context: Context) -> BringingBack:
        return BringingBack(context, self.stage)


class BringingBack(_Writing):
    """Brings back what is lost, on a worker."""

    def receive(self, port: int, changes: Changes) -> None:
        self.staging.is_turning = True
        super().receive(port, changes)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        del self._held[time]
        staging, spreading = self.staging, self.spreading
        staging.is_turning = False
        if not staging.has_taken:
            staging.take(time, upper)
        begins = spreading.is_new
        letters = spreading.turn()
        alone = self.context.workers == 1
        if begins and not alone:
            staging.began = staging.first = time[0]
            letters.append(spreading.wake())
        else:
            staging.asks = bool(letters) and not staging.supersteps
            letters += spreading.work(0, only_letters=staging.asks)
            if spreading.is_busy or staging.asks:
                letters.append(spreading.wake())
        send(self.context, letters, time)
        give_sign(self.context, time)


@dataclass(frozen=True)
class SendValues(_OfStage, Operator):
    """Takes letters of values, and sends values on."""

    supersteps: bool
    kind: ClassVar[str] = "spread"
    is_part_of_loop: ClassVar[bool] = True

    def describe(self) -> str:
        return "send values on, " + (
            "round by round (supersteps)"
            if self.supersteps
            else "best first, as they come (microsteps)"
        )

    def identity(self) -> str:
        return "send values on"

    def start(self, context: Context) -> Spreads:
        return Spreads(context, self.stage)


class Spreads(_Writing):
    """Takes and sends letters of values, on a worker."""

    def __init__(self, context: Context, stage: int) -> None:
        super().__init__(context, stage)
        self._next: Timestamp | None = None
        """The time at which this node asked to be run by itself."""

    @property
    def waits(self) -> bool:  # type: ignore[override]
        staging = self.staging
        if staging.supersteps or staging.is_turning or staging.asks or staging.began >= 0:
            return True
        return self.spreading.is_hasty

    def receive(self, port: int, changes: Changes) -> None:
        for time, piece in by_time(changes):
            if time not in self._held and time != self._next:
                self.context.request(time)
            self._held.setdefault(time, []).append(piece)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        if self._next == time:
            self._next = None
        staging, spreading = self.staging, self.spreading
        staging.began = -1
        if time[1] >= ANSWERED:
            staging.asks = False
        for changes in self._held.pop(time, ()):
            spreading.hear(changes.columns)
        superstep = time[1] - (time[0] == staging.first)
        send(self.context, spreading.work(superstep, only_letters=staging.asks), time)
        following = (time[0], time[1] + 1)
        if (
            (spreading.is_busy or staging.asks)
            and self._next is None
            and following not in self._held
        ):
            self._next = following
            self.context.request(following)
        self._sign(time)

    def boundary(self, epoch: int) -> None:
        self.staging.began = -1
        self.staging.asks = False


@dataclass(frozen=True)
class GiveValues(_OfStage, Operator):
    """Gives the net change of an epoch, when nothing of it can come any more."""

    loop: SpreadLoop
    kind: ClassVar[str] = "settle"
    keeps_state: ClassVar[bool] = True
    gives_content: ClassVar[bool] = True
    runs_loop: ClassVar[bool] = True

    def describe(self) -> str:
        return "the values, when none can get better"

    def identity(self) -> str:
        return f"the values of: {self.loop.identity()}, on all workers"

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> set[Columns]:
        return {tuple(range(self.loop.key))}

    def start(self, context: Context) -> GivingValues:
        return GivingValues(context, self)


class GivingValues(GivesResult):
    """The values of a worker's keys."""

    def __init__(self, context: Context, operator: GiveValues) -> None:
        super().__init__(context)
        staging = context.actors[operator.stage]
        assert isinstance(staging, Staging)
        self._spreading = staging.spreading
        self._held: dict[Timestamp, list[Changes]] = {}
        self._last: Settled | None = None
        self._letters = self._sent = 0

    @property
    def state_key(self) -> tuple[str, ...]:
        operator = self.node.operator
        assert isinstance(operator, GiveValues)
        return tuple(self.node.schemas[0].names[: operator.loop.key])

    def receive(self, port: int, changes: Changes) -> None:
        hold(self._held, changes, self.context.request)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        del self._held[time]
        spreading = self._spreading
        self._last = spreading.settle()
        self._sent, self._letters = spreading.letters - self._letters, spreading.letters
        self.give([self._last.result()], time, upper)

    def measured(self) -> Sequence[RoundFigures]:
        return () if self._last is None else self._last.history

    def figures(self) -> dict[str, dict[str, int]]:
        last = self._last
        if last is None:
            return {}
        figures = {"messages": last.messages, "touched": last.touched, "letters": self._sent}
        return {self.node.name: figures}


@dataclass(frozen=True)
class Post(Exchanging):
    """Carries letters to whom they go; `about` is the position of the column that says so."""

    about: int
    kind: ClassVar[str] = "post"

    def describe(self) -> str:
        return "exchange letters"

    def dispatch(self, changes: Changes, shards: Shards, turn: int) -> list[Changes | None]:
        """The letters for each worker."""
        if shards.workers == 1:
            return [changes]
        to = addressees(as_array(changes.columns[self.about]))
        if len(to) and (to == to[0]).all():
            return [changes if at == to[0] else None for at in range(shards.workers)]
        rows = [np.flatnonzero(to == at) for at in range(shards.workers)]
        return [changes.take(each) if len(each) else None for each in rows]
