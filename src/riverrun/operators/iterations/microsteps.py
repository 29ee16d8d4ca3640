"""Microsteps of any step: rows of a delta iteration are taken a few at a time, and what they send is taken at once.

The front end puts this node in the place of a delta iteration that asks for microsteps, and whose step works row by
row, where arrays do not know the step (`frontends.collections.microsteps`). All rows are on one worker. The *step* is
the nodes that the user's function made: from the rows that were accepted, it makes messages, with the operators of
these nodes. Laws:

- **One row a key.** A message takes the place of the row of its key if it is better; without an order of rows, if it
  differs.
- **Accepted rows.** Messages are made of rows that were accepted, of each as soon as its turn has come.
- **Better.** Which of two rows is better is what the state of the differential loop would say (`Ranking`).
- **Rest.** The loop ends when no message is left. After `patience` turns it is refused.

The result may depend on the order in which rows are taken (so the operator is not deterministic): where messages of a
better row may be worse, or where nothing says which row is better. An epoch that changes something runs the loop again
from the start.

Cost: for each turn some milliseconds, and what Polars takes for the rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import ClassVar, Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from riverrun.errors import OperatorFailed
from riverrun.operators.arrange import state_schema
from riverrun.operators.iterations.array_loop import ArrayLoop
from riverrun.operators.rounds.gather import batch_of, view_of
from riverrun.plan.loop_figures import RoundFigures
from riverrun.plan.operator import Context, Operator
from riverrun.rows.values import show
from riverrun.state import Order
from riverrun.state.changes import Changes
from riverrun.state.columns import Ints, as_column, take_columns
from riverrun.state.keys import Keys

TURN = 1024  # rows
ACCEPTED = -1
"""In place of the number of a node: the rows that were accepted."""
_TIME = (0,)


@dataclass(frozen=True)
class StepNode:
    """A node of a step. `inputs` are numbers of nodes of the step; `ACCEPTED`; or below that, -2 less the number of an
    input of the loop."""

    operator: Operator
    inputs: tuple[int, ...]
    on: tuple[tuple[int, ...], ...] = ()
    """Of a node that pairs rows: the positions of the key, for each side."""
    picked: tuple[tuple[int, int], ...] = ()
    """Of a node that pairs rows: for each column of a pair its side, and its position there."""


class Measures(Protocol):
    """Computes the columns that rows are ordered by (`frontends.collections.expressions.Projection`)."""

    schema: pa.Schema

    def apply(self, columns: Sequence[pa.Array], rows: int) -> tuple[pa.Array, ...]: ...

    @property
    def exactly(self) -> str: ...


@dataclass(frozen=True, eq=False)
class Ranking:
    """An order of the rows of one key, by columns that are computed of each row: nulls last, as in a state."""

    measures: Measures
    descending: tuple[bool, ...]

    def best(self, columns: Sequence[pa.Array], schema: pa.Schema, key: Sequence[str]) -> Ints:
        """The numbers of the best rows, one for each key. Among equal rows it is the first."""
        places = [schema.get_field_index(name) for name in key]
        rows, measures = len(columns[0]), self.measures.schema
        keys = [schema.field(place).with_name(f"key {at}") for at, place in enumerate(places)]
        fields = pa.schema([*keys, *measures, pa.field("row", pa.int64())])
        order = [Order(*each) for each in zip(measures.names, self.descending, strict=True)]
        kept = state_schema(fields, tuple([each.name for each in keys]), (*order, Order("row")))
        made = [columns[place] for place in places]
        made += [*self.measures.apply(columns, rows), as_column(np.arange(rows))]
        changes = Changes(tuple(made), rows, (_TIME,), None, 1, None)
        positions = [fields.get_field_index(field.name) for field in kept.columns]
        batch = batch_of(kept, changes, positions, _TIME)
        first = view_of(kept, batch, _TIME).first(Keys.of_batch(batch), _TIME, 1)
        return np.sort(first.canonical(kept.positions["row"]).to_numpy())


@dataclass(frozen=True, eq=False)
class MicroLoop(Operator):
    """A delta iteration in microsteps. The inputs are rows from outside that the step takes, then the solution, then
    the workset."""

    step: tuple[StepNode, ...]
    key: tuple[str, ...]
    ranking: Ranking | None
    """Which row of a key is the best; None if every row takes the place of another one."""
    order: str
    """The order in words."""
    adds_keys: bool
    patience: int
    broken: str
    """The condition by which the result depends on the order of work, in words."""
    kind: ClassVar[str] = "microsteps"
    deterministic = False
    keeps_state: ClassVar[bool] = True
    reads_arrangements: ClassVar[bool] = True
    gives_content: ClassVar[bool] = True
    runs_loop: ClassVar[bool] = True

    def describe(self) -> str:
        return f"take rows in microsteps, {self.order}; {self.broken}"

    def identity(self) -> str:
        step = "; ".join(f"{each.operator.identity()} {each.inputs}" for each in self.step)
        keys = "keys are added" if self.adds_keys else "keys are those of the solution"
        order = self.order
        if self.ranking is not None and self.ranking.measures.exactly:
            order = f"{order} {self.ranking.measures.exactly}"
        return f"microsteps by {', '.join(self.key)}, {order}; {keys}: {step}"

    def start(self, context: Context) -> Microsteps:
        return Microsteps(context, self)


class Microsteps(ArrayLoop):
    """The rows of a loop in microsteps, on a worker."""

    def __init__(self, context: Context, operator: MicroLoop) -> None:
        super().__init__(context)
        self._operator = operator
        self._rows: list[list[Changes]] = [[] for _ in self.kinds]
        self._names: list[str] = self.node.schemas[0].names
        self._last: pl.DataFrame | None = None
        self._work = RoundFigures((), 0, 0, 0.0, 0)
        """What the last run did: rows accepted, rows sent."""

    def stage(self, port: int, columns: Sequence[pa.Array], diffs: Ints) -> None:
        staged = Changes(tuple(columns), len(diffs), (_TIME,), None, 0, diffs)
        whole = Changes.concat([*self._rows[port], staged]).consolidate()
        self._rows[port] = [whole] if whole.rows else []

    def converge(self) -> list[tuple[Sequence[pa.Array], Ints]]:
        result = self._run()
        parts: list[tuple[Sequence[pa.Array], Ints]] = []
        for frame, sign in ((self._last, -1), (result, 1)):
            if frame is not None and frame.height:
                columns = [self._arrow(frame, at) for at in range(frame.width)]
                parts.append((columns, np.full(frame.height, sign, np.int64)))
        self._last = result
        return parts

    def measured(self) -> Sequence[RoundFigures]:
        return (self._work,) if self._work.touched or self._work.messages else ()

    def _arrow(self, frame: pl.DataFrame, at: int) -> pa.Array:
        column = frame.to_series(at).to_arrow()
        return column.cast(self.kinds[-2][at])

    def _there(self, port: int) -> Changes | None:
        """The rows at an input that are there, each once."""
        rows = self._rows[port]
        if not rows:
            return None
        kept = np.flatnonzero(rows[0].diff_array() > 0)
        return Changes(tuple(take_columns(rows[0].columns, kept)), len(kept), (_TIME,), None, 1, None)  # fmt: skip

    def _frame(self, rows: Changes | None) -> pl.DataFrame:
        columns = (
            [pa.nulls(0, kind) for kind in self.kinds[-2]] if rows is None else list(rows.columns)
        )
        arrays = zip(self._names, columns, strict=True)
        return pl.DataFrame({name: pl.from_arrow(column) for name, column in arrays})

    # -- the loop

    def _run(self) -> pl.DataFrame:
        operator, key = self._operator, list(self._operator.key)
        constants = [self._there(port) for port in range(len(self._rows) - 2)]
        solution = self._frame(self._there(len(self._rows) - 2))
        if operator.ranking is not None:
            solution = self._best(solution)
        elif solution.select(key).is_duplicated().any():
            two = solution.filter(solution.select(key).is_duplicated()).sort(key).head(2).rows()
            raise OperatorFailed(
                "operator.two_rows",
                f"the solution of iterate_delta has two different rows for one key: {show(two[0])} and {show(two[1])}",
                hint="say which one is better: better=rr.loops.least(...); or give one row for each key",
                rows=two,
            )
        waiting = deque([self._frame(self._there(len(self._rows) - 1))])
        turns = touched = messages_sent = 0
        began = perf_counter()
        while waiting:
            messages = waiting.popleft()
            if messages.height > TURN:
                waiting.appendleft(messages[TURN:])
                messages = messages[:TURN]
            solution, accepted = self._taken(solution, messages)
            if not accepted.height:
                continue
            turns += 1
            if turns > operator.patience:
                raise self._endless(accepted, turns)
            touched += accepted.height
            sent = self._sent(accepted, constants)
            if sent is not None and sent.rows:
                messages_sent += sent.rows
                waiting.append(self._frame(sent))
        self._work = RoundFigures((), touched, messages_sent, perf_counter() - began, 0)
        return solution

    def _best(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The best row of each key."""
        ranking = self._operator.ranking
        if ranking is None or rows.height < 2:
            return rows
        columns = [self._arrow(rows, at) for at in range(rows.width)]
        return rows[ranking.best(columns, self.node.schemas[0], self._operator.key)]

    def _taken(
        self, solution: pl.DataFrame, messages: pl.DataFrame
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The solution with some messages, and those that were accepted."""
        operator, key = self._operator, list(self._operator.key)
        if not operator.adds_keys:
            messages = messages.join(solution, on=key, how="semi", nulls_equal=True)
        if operator.ranking is not None:
            present = solution.join(messages, on=key, how="semi", nulls_equal=True)
            messages = self._best(pl.concat([present, messages]))
        else:
            messages = messages.unique(key, keep="last", maintain_order=True)
        accepted = messages.join(solution, on=self._names, how="anti", nulls_equal=True)
        kept = solution.join(accepted, on=key, how="anti", nulls_equal=True)
        return pl.concat([kept, accepted]), accepted

    def _sent(self, accepted: pl.DataFrame, constants: Sequence[Changes | None]) -> Changes | None:
        """What the step makes of rows that were accepted."""
        columns = tuple(self._arrow(accepted, at) for at in range(accepted.width))
        rows: Changes | None = Changes(columns, accepted.height, (_TIME,), None, 1, None)
        made: list[Changes | None] = []
        for node in self._operator.step:
            sides = [
                rows if at == ACCEPTED else made[at] if at >= 0 else constants[-2 - at]
                for at in node.inputs
            ]
            made.append(_paired(node, sides) if node.on else _passed(node, sides))
        return made[-1] if made else rows

    def _endless(self, accepted: pl.DataFrame, turns: int) -> OperatorFailed:
        shown = accepted.head(5).rows(named=True)
        loop = self.node.name.partition(":")[0]
        return OperatorFailed(
            "operator.diverges",
            f"the loop {loop!r} ({self.node.line}) still changes after {turns - 1} turns, for instance {show(shown)}",
            hint="make the step reach a fixed point: say which row is better, so that rows cannot go back; or give it "
            "more patience=",
            rows=shown,
        )


def _passed(node: StepNode, sides: Sequence[Changes | None]) -> Changes | None:
    """The rows that a linear node makes; other nodes pass their rows on."""
    linear = node.operator.as_linear
    made = [
        side if linear is None else linear.apply(side)
        for side in sides
        if side is not None and side.rows
    ]
    kept = [each for each in made if each is not None and each.rows]
    return Changes.concat(kept) if kept else None


def _paired(node: StepNode, sides: Sequence[Changes | None]) -> Changes | None:
    """The pairs of rows with equal keys."""
    left, right = sides
    if left is None or right is None or not left.rows or not right.rows:
        return None
    frames = []
    for name, side, on in zip(("left", "right"), (left, right), node.on, strict=True):
        keys = {f"key{at}": pl.from_arrow(side.columns[place]) for at, place in enumerate(on)}
        frames.append(pl.DataFrame({**keys, name: np.arange(side.rows)}))
    names = [f"key{at}" for at in range(len(node.on[0]))]
    if names:
        pairs = frames[0].join(frames[1], on=names)
    else:
        pairs = frames[0].join(frames[1], how="cross")
    rows = [pairs[name].to_numpy() for name in ("left", "right")]
    columns = tuple(
        take_columns([(left, right)[side].columns[place]], rows[side])[0]
        for side, place in node.picked
    )
    return Changes(columns, pairs.height, (_TIME,), None, 1, None) if pairs.height else None
