"""Stops: who says that a loop by rounds goes on, by a vote for another round.

`Compare` votes where the rows that a round gives differ from those that it began with; or, with a tolerance, where they
are not close to them. `Ballot` votes where any row comes to it: it stands behind whatever a program says that must be
empty. A vote is a mark; it comes to all workers (`again`). Laws:

- **Equal rows meet.** The rows at both inputs of `Compare` lie so that equal rows are on one worker, and with a
  tolerance rows of one key. So what each worker sees of a difference adds up to the whole of it.
- **Zero has no sign.** Rows are equal as in states: NaN equals NaN, null equals null.
- **Patience.** In round `patience`, a vote is the error ``operator.diverges`` instead, which shows some of the rows.

Cost: sorting the rows of a round, and comparing them in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from riverrun.operators.loops import diverges
from riverrun.operators.rounds.beginning import mark_at, rounds_marked
from riverrun.plan.operator import Actor, Context, Operator, PlacedInput, Placement, hold
from riverrun.progress import Antichain, Timestamp
from riverrun.state.changes import Changes
from riverrun.state.columns import as_column

AFTER, BEFORE, ROUNDS = range(3)
"""The inputs of `Compare`: what the round gives, what the first round began with, and the marks of the rounds."""


@dataclass(frozen=True)
class Closeness:
    """Rows are close if they have the same keys, as often, and no value of a column differs by more than a bound."""

    key: tuple[str, ...]
    column: str
    most: float

    def __str__(self) -> str:
        return f"no {self.column} of a {', '.join(self.key)} moves by more than {self.most!r}"


@dataclass(frozen=True)
class Compare(Operator):
    """Votes for another round where a round changes rows; passes on the rows of the round, added up.

    The first output are the rows, the second the votes."""

    patience: int | None
    """None where another limit ends the loop."""
    closeness: Closeness | None = None
    kind: ClassVar[str] = "compare"

    @property
    def adds_up(self) -> bool:
        return True

    def describe(self) -> str:
        return f"go on until {self.closeness or 'nothing changes'}"

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        return inputs[AFTER].keys

    def start(self, context: Context) -> Comparer:
        return Comparer(context, self)


class Comparer(Actor):
    """The rows of the last round, on a worker."""

    def __init__(self, context: Context, operator: Compare) -> None:
        super().__init__(context)
        self._operator = operator
        self._held: tuple[dict[Timestamp, list[Changes]], ...] = ({}, {})
        self._requested: set[Timestamp] = set()
        self._before: Changes | None = None
        """What the round before has given."""

    def receive(self, port: int, changes: Changes) -> None:
        if port == ROUNDS:
            for time in rounds_marked(changes):
                self._request(time)
        else:
            hold(self._held[port], changes, self._request)

    def _request(self, time: Timestamp) -> None:
        if time not in self._requested:
            self._requested.add(time)
            self.context.request(time)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        self._requested.remove(time)
        after = _added(self._held[AFTER].pop(time, None))
        # In the first round, or the one at which a saved loop begins, there is no round before.
        start = self._held[BEFORE].pop(time, None)
        before = _added(start) if start or not time[-1] else self._before
        self._before = after
        if after is not None:
            self.context.push(after, 0)
        if self._is_at_rest(before, after):
            return
        patience = self._operator.patience
        if patience is not None and time[-1] + 1 >= patience:
            pieces = [] if after is None else [after]
            if before is not None:
                pieces.append(replace(before, times=(time,)).negate())
            raise diverges(self.node, Changes.concat(pieces).consolidate(), patience)
        self.context.push(mark_at(time, self.context.saves.asked), 1)

    def _is_at_rest(self, before: Changes | None, after: Changes | None) -> bool:
        if before is None or after is None:
            return before is after
        closeness = self._operator.closeness
        if before.rows != after.rows:
            return False
        if closeness is None:
            return _are_equal(before, after, range(len(after.columns)))
        names = self.node.schemas[0].names
        return _are_close(
            before,
            after,
            [names.index(one) for one in closeness.key],
            names.index(closeness.column),
            closeness.most,
        )

    def boundary(self, epoch: int) -> None:
        self._before = None


def _added(pieces: list[Changes] | None) -> Changes | None:
    """The sum of some pieces; None for no rows."""
    if not pieces:
        return None
    added = Changes.concat(pieces).consolidate()
    return added if added.rows else None


def _are_equal(before: Changes, after: Changes, places: Sequence[int]) -> bool:
    """Whether rows that were added up, as many on both sides, are the same in some of their columns, in order."""
    if not np.array_equal(before.diff_array(), after.diff_array()):
        return False
    return all(_same_cells(before.columns[at], after.columns[at]) for at in places)


def _same_cells(before: pa.Array, after: pa.Array) -> bool:
    if before.equals(after):
        return True
    if not _may_have_nan(after.type):
        return False
    # Arrow takes no NaN for equal to another: rows are equal when their difference adds up to nothing.
    numbers = as_column(np.arange(len(after)))
    pieces = [
        Changes((numbers, column), len(after), ((0,),), None, diff, None)
        for column, diff in ((before, 1), (after, -1))
    ]
    return not Changes.concat(pieces).consolidate().rows


def _may_have_nan(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_nested(kind))


def _are_close(before: Changes, after: Changes, key: list[int], at: int, most: float) -> bool:
    """Whether rows, as many on both sides, have the same keys, and values in column `at` that differ by `most`."""
    before, after = (_by_key(rows, key, at) for rows in (before, after))
    if not _are_equal(before, after, range(len(key))):
        return False
    old, new = before.columns[-1], after.columns[-1]
    if not old.is_valid().equals(new.is_valid()):
        return False
    if old.null_count:
        valid = old.is_valid()
        old, new = old.filter(valid), new.filter(valid)
    was, now = _doubles(old), _doubles(new)
    with np.errstate(invalid="ignore", over="ignore"):
        close = np.abs(now - was) <= most
    same = (was == now) | (np.isnan(was) & np.isnan(now))
    return bool((close | same).all())


def _by_key(rows: Changes, key: list[int], at: int) -> Changes:
    """The columns of the key and column `at`, in the order of these."""
    columns = [rows.columns[place] for place in (*key, at)]
    return rows.with_columns(columns).consolidate()


def _doubles(column: pa.Array) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.asarray(column).astype(np.float64)


@dataclass(frozen=True)
class Ballot(Operator):
    """Votes for another round where a round has rows. Equal rows lie on one worker, added up."""

    patience: int | None
    columns: pa.Schema = field(repr=False)
    """Of the rows that come."""
    are_changes: bool = False
    """Whether the rows are those that a round has changed, and not such as a program names."""
    kind: ClassVar[str] = "ballot"

    def describe(self) -> str:
        return "go on until there are no such rows"

    def identity(self) -> str:
        return "ballot"

    def start(self, context: Context) -> Voter:
        return Voter(context, self)


class Voter(Actor):
    """The rows of rounds that are not whole, on a worker."""

    def __init__(self, context: Context, operator: Ballot) -> None:
        super().__init__(context)
        self._operator = operator
        self._held: dict[Timestamp, list[Changes]] = {}

    def receive(self, port: int, changes: Changes) -> None:
        hold(self._held, changes, self.context.request)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        rows = _added(self._held.pop(time))
        if rows is None:
            return
        patience = self._operator.patience
        if patience is not None and time[-1] + 1 >= patience:
            operator = self._operator
            raise diverges(self.node, rows, patience, operator.columns, operator.are_changes)
        self.context.push(mark_at(time, self.context.saves.asked), 0)
