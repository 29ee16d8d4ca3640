"""Loops: rows enter a loop, go around in it, and leave it.

Inside a loop a time has one coordinate more, the round. `Enter` appends the round: 0, or for entering by priority a
number that an expression computes for each row. `Feedback` and `Delay` lead to the next round, and drop rows that would
come to the `limit`; `Leave` removes the round. All changes that left, of whichever round, add up to the content of the
last round. Laws:

- **Feedback closes a cycle.** Only `Feedback` leads back to the start of a cycle; a plan with another cycle is refused.
- **Patience.** A loop without a limit that still changes after `patience` rounds fails with the error
  ``operator.diverges``. Rows that cancel each other are no change.

Cost: nothing per row, except that entering by priority computes a round for each row. Only `Feedback` waits, until the
time of the changes is complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from riverrun.errors import OperatorFailed
from riverrun.operators.enter_index import EnterIndex
from riverrun.operators.linear import Projects, _exactly
from riverrun.plan.loop_figures import name_of
from riverrun.plan.operator import Actor, Context, Linear, Operator, Role, hold
from riverrun.plan.plan import Node
from riverrun.progress import Antichain, Summary, Timestamp
from riverrun.rows.records import python_rows, with_times
from riverrun.state.changes import Changes
from riverrun.state.columns import as_array

PATIENCE = 100_000  # rounds; some ten seconds for a loop that adds a row in each


@dataclass(frozen=True)
class Enter(Linear):
    """Brings rows into a loop: at round 0, or each row at the round that `at` computes for it."""

    at: Projects | None = None
    limit: int | None = None
    kind: ClassVar[str] = "enter"
    same_rows: ClassVar[bool] = True
    steps_out: ClassVar[int] = -1
    tracked: ClassVar[bool] = True

    def summary(self, depth: int) -> Summary:
        return Summary.enter(depth)

    def describe(self) -> str:
        return "enter" if self.at is None else "enter by priority"

    def identity(self) -> str:
        if self.at is None:
            return "enter"
        below = "" if self.limit is None else f", below {self.limit}"
        return f"enter by priority{_exactly(self.at)}{below}"

    def over_arrangement(self) -> EnterIndex | None:
        return EnterIndex() if self.at is None else None

    def apply(self, changes: Changes) -> Changes:
        if self.at is None:
            return changes.map_times(lambda time: (*time, 0))
        (column,) = self.at.apply(changes.columns, changes.rows)
        if column.null_count:
            raise _no_round(None)
        rounds = as_array(column.cast(pa.int64()))
        if len(rounds) and rounds.min() < 0:
            raise _no_round(int(rounds.min()))
        if self.limit is not None:
            rounds = np.minimum(rounds, self.limit - 1)
        codes = np.zeros(changes.rows, np.int64) if changes.codes is None else changes.codes
        distinct, ranks = np.unique(rounds, return_inverse=True)
        mixed = codes.astype(np.int64) * len(distinct) + ranks
        used, codes = np.unique(mixed, return_inverse=True)
        times = tuple(
            (*changes.times[which // len(distinct)], int(distinct[which % len(distinct)]))
            for which in used.tolist()
        )
        return Changes(
            changes.columns,
            changes.rows,
            times,
            codes.astype(np.int32),
            changes.diff,
            changes.diffs,
        )


def _no_round(number: int | None) -> OperatorFailed:
    return OperatorFailed(
        "operator.round",
        f"cannot enter a loop at round {number}: a row's round is a whole number from 0 on",
        hint="clip the expression, and fill its nulls",
        round=number,
    )


@dataclass(frozen=True)
class Leave(Linear):
    """Brings rows out of a loop, without rounds. So the changes of all rounds add up to the last round's content."""

    kind: ClassVar[str] = "leave"
    same_rows: ClassVar[bool] = True
    may_cancel: ClassVar[bool] = True
    steps_out: ClassVar[int] = 1
    tracked: ClassVar[bool] = True

    def summary(self, depth: int) -> Summary:
        return Summary.leave(depth)

    def apply(self, changes: Changes) -> Changes:
        return changes.map_times(lambda time: time[:-1])


@dataclass(frozen=True)
class Delay(Linear):
    """Brings rows to the next round, without leading back; drops rows that would come to round `limit` or later."""

    limit: int | None = None
    kind: ClassVar[str] = "delay"
    role = Role.DELAY
    same_rows: ClassVar[bool] = True
    tracked: ClassVar[bool] = True

    def identity(self) -> str:
        return "delay" if self.limit is None else f"delay, below {self.limit}"

    def summary(self, depth: int) -> Summary:
        return Summary.feedback(depth)

    def apply(self, changes: Changes) -> Changes | None:
        going_on: Changes | None = changes
        if self.limit is not None:
            last = self.limit - 1
            going_on = changes.split(lambda time: time[-1] < last)[0]
        return (
            None
            if going_on is None
            else going_on.map_times(lambda time: (*time[:-1], time[-1] + 1))
        )


@dataclass(frozen=True)
class Feedback(Operator):
    """Leads rows back to the start of a loop, at the next round. After `limit` rounds nothing is led back.

    A loop without a limit that goes on for `patience` rounds is taken to diverge (the patience law).
    """

    limit: int | None = None
    patience: int = PATIENCE
    kind: ClassVar[str] = "feedback"
    role = Role.FEEDBACK
    same_rows: ClassVar[bool] = True

    @property
    def round_limit(self) -> int | None:
        return self.limit

    def summary(self, depth: int) -> Summary:
        return Summary.feedback(depth)

    def describe(self) -> str:
        return "feedback" if self.limit is None else f"feedback, at most {self.limit} rounds"

    def start(self, context: Context) -> Returning:
        return Returning(context)


class GoingAround(Actor):
    """What leads rows to the next round of a loop, on a worker."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.loop = loop_name(self.node)
        """The name of the loop in messages."""
        self.going: tuple[Timestamp, int] | None = None
        """The last time in this epoch at which rows were to be led back, and how many on this worker. Any thread may
        read it."""

    def boundary(self, epoch: int) -> None:
        self.going = None


class Returning(GoingAround):
    """A feedback on a worker. Holds rows until their time is complete, then leads them back."""

    waits = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert isinstance(self.node.operator, Feedback)
        self._operator = self.node.operator
        self._held: dict[Timestamp, list[Changes]] = {}
        self._rounds: dict[Timestamp, int] = {}

    def receive(self, port: int, changes: Changes) -> None:
        hold(self._held, changes, self.context.request)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        pieces = self._held.pop(time)
        self.going = time, sum([piece.rows for piece in pieces])
        limit, following = self._operator.limit, time[-1] + 1
        if limit is not None and following >= limit:
            return
        rounds = self._rounds[time[:-1]] = self._rounds.get(time[:-1], 0) + 1
        if limit is None and rounds >= self._operator.patience:
            added = Changes.concat(pieces).consolidate()
            if not added.rows:
                return
            raise diverges(self.node, added, rounds)
        returned = (*time[:-1], following)
        for piece in pieces:
            self.context.push(
                Changes(piece.columns, piece.rows, (returned,), None, piece.diff, piece.diffs), 0
            )

    def boundary(self, epoch: int) -> None:
        super().boundary(epoch)
        self._rounds.clear()


def loop_name(node: Node) -> str:
    """The name of the loop that a node is in, for people."""
    return name_of(node.scope)


def diverges(
    node: Node,
    changes: Changes,
    rounds: int,
    schema: pa.Schema | None = None,
    are_changes: bool = True,
) -> OperatorFailed:
    """The error of a loop that goes on for too long. `changes` are rows that have changed in the last round; or, unless
    they `are_changes`, rows for which the program has the loop go on. They have the columns of the node, or `schema`.
    """
    few = changes.take(np.arange(min(5, changes.rows)))
    loop = loop_name(node)
    if are_changes:
        what = f"still changes after {rounds} rounds; {changes.rows} rows changed in the last one"
        hint = "make the body reach a fixed point; or stop it with a result, by rounds=; or give it more patience="
    else:
        what = f"still goes on after {rounds} rounds; {changes.rows} rows are left, where none should be at its end"
        hint = "make these rows become none; or stop it with a result, by rounds=; or give it more patience="
    shown = [
        {name: value for name, value in row.items() if name != "time"}
        for row in python_rows(with_times(node.schemas[0] if schema is None else schema, few))
    ]
    return OperatorFailed(
        "operator.diverges",
        f"the loop {loop!r} ({node.line}) {what}, for instance {shown}",
        hint=hint,
        node=node.name,
        loop=loop,
        line=node.line,
        rounds=rounds,
        rows=shown,
    )
