"""The pull operator: a loop in which every key pulls parts along its edges in each round, run on arrays in one node.

The front end puts this operator in the place of a loop whose shape it knows (`frontends.collections.pull_shapes`). Its
inputs are arrangements by no key, so all rows are on one worker: the edges, the rows at the start, and perhaps extra
rows. In each round every edge brings its target a *part*, made of its own constants and the values of its source, and
every extra row brings its key the same parts again. The parts of a key are combined (their sum, the least, the
greatest, or how many), and an expression may finish the row. The output is the rows of the last round: one for each
key. An epoch is one call: `Pulling` runs the loop again from its start, over the edges and rows that there are. Law:

- **Oracle.** As of each epoch, the output is the result of the loop run from scratch.

Cost: an epoch in which anything changes costs all rounds over all edges (`pulling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa

from riverrun.errors import OperatorFailed
from riverrun.operators.iterations.array_loop import ArrayLoop
from riverrun.operators.iterations.compressed import BelowZero
from riverrun.operators.iterations.pull_loop import (
    Columns,
    Combine,
    Formula,
    Pulled,
    PullLoop,
    Tolerance,
)
from riverrun.operators.iterations.pulling import Pulling
from riverrun.operators.iterations.words import Ints
from riverrun.plan.loop_figures import RoundFigures
from riverrun.plan.operator import Context, Operator
from riverrun.state.types import canonical

EDGES, START, EXTRAS = range(3)
"""The inputs."""


class Computes(Protocol):
    """Computes columns from columns, row by row (`frontends.collections.expressions.Projection`)."""

    schema: pa.Schema

    def apply(self, columns: Columns, rows: int) -> tuple[pa.Array, ...]: ...

    @property
    def told(self) -> str:
        """The expressions in words that tell different ones apart."""
        ...


@dataclass(frozen=True)
class PullRounds(Operator):
    """All keys pull parts, round by round. The edges have the sources' key, the targets' key, and constants; the rows
    at the start have the key and the values, and extra rows the key and parts."""

    key: int
    """How many columns the key has."""
    message: Computes
    """The parts that are sent along an edge, of the values and the constants."""
    combine: tuple[Combine, ...]
    own: Computes | None
    """The parts that a row sends to its own key, of its values."""
    finish: Computes | None
    """The values of the next round; None where they are the combined columns."""
    finish_keys: bool
    """Whether `finish` takes the columns of the key before the combined columns."""
    formula: Formula | None
    rounds: int | None
    """How many rounds there are; None to go on until nothing changes."""
    patience: int
    within: Tolerance | None = None
    """When there are rounds enough, besides that nothing changes."""
    kind: ClassVar[str] = "pull"
    kernels: ClassVar[tuple[str, ...]] = (
        "iterations.compressing.agree_by_source",
        "iterations.compressing.fill_table",
        "iterations.compressing.is_in_turn",
        "iterations.compressing.list_edges",
        "iterations.compressing.merge_rows",
        "iterations.compressing.place_rows",
        "iterations.compressing.sort_edges",
        "iterations.pulling.count_differences",
        "iterations.pulling.count_parts",
        "iterations.pulling.floats_of_order",
        "iterations.pulling.least",
        "iterations.pulling.list_places",
        "iterations.pulling.order_floats",
        "iterations.pulling.plain_floats",
        "iterations.pulling.shape_edges",
        "iterations.pulling.shape_sources",
        "iterations.pulling.sum_floats",
        "iterations.pulling.sum_ints",
        "iterations.pulling.sum_surely",
        "iterations.pulling.widen",
    )
    keeps_state: ClassVar[bool] = True
    reads_arrangements: ClassVar[bool] = True
    gives_content: ClassVar[bool] = True
    runs_loop: ClassVar[bool] = True

    def describe(self) -> str:
        combined = ", ".join(_told(each) for each in self.combine)
        rounds = "until nothing changes" if self.rounds is None else f"{self.rounds} rounds"
        if self.within is not None:
            most = "" if self.rounds is None else f"at most {rounds}, "
            rounds = f"{most}until value {self.within.column} moves by no more than {self.within.tolerance!r}"
        return f"pull parts along edges, and take {combined}; {rounds}"

    def identity(self) -> str:
        told = [f"{self.describe()}, by {self.key} columns", f"send {self.message.told}"]
        if self.own is not None:
            told.append(f"keep {self.own.told}")
        if self.finish is not None:
            told.append(f"finish {self.finish.told}")
        return "; ".join(told)

    def start(self, context: Context) -> Puller:
        return Puller(context, self)

    def loop(self, columns: Sequence[pa.DataType], constants: Sequence[pa.DataType]) -> PullLoop:
        """The loop on arrays, from the canonical types of its result and of the constants of its edges."""
        return PullLoop(
            keys=tuple(columns[: self.key]),
            values=tuple(columns[self.key :]),
            parts=tuple([canonical(each.type, each.name) for each in self.message.schema]),
            message=self.message.apply,
            combine=self.combine,
            constants=tuple(constants),
            finish=None if self.finish is None else self.finish.apply,
            finish_keys=self.finish_keys,
            own=None if self.own is None else self.own.apply,
            formula=self.formula,
        )


def _told(combine: Combine) -> str:
    if combine.how == "count":
        return "their number"
    if combine.how == "valid":
        return f"how many of part {combine.part} are not null"
    return f"the {combine.how} of part {combine.part}"


class Puller(ArrayLoop):
    """A pull on a worker: edges and rows that live over all epochs."""

    def __init__(self, context: Context, operator: PullRounds) -> None:
        super().__init__(context)
        self._operator = operator
        columns = [canonical(each.type, each.name) for each in self.node.schemas[0]]
        self._pulling = Pulling(operator.loop(columns, self.kinds[EDGES][2 * operator.key :]))
        self._last: Pulled | None = None

    def stage(self, port: int, columns: Sequence[pa.Array], diffs: Ints) -> None:
        pulling, width = self._pulling, self._operator.key
        keys, rest = columns[:width], columns[width:]
        try:
            if port == EDGES:
                pulling.change_edges(keys, rest[:width], rest[width:], diffs)
            elif port == START:
                pulling.change_start(keys, rest, diffs)
            else:
                pulling.change_extras(keys, rest, diffs)
        except BelowZero:
            what = ("an edge", "a row at the start", "a row that is put in each round")[port]
            raise OperatorFailed(
                "operator.negative",
                f"a loop on arrays takes rows that are there; {what} would be there less than no times",
                hint="delete only rows that were inserted; mode='differential' takes rows that are owed",
            ) from None

    def converge(self) -> list[tuple[Sequence[pa.Array], Ints]]:
        operator, pulling = self._operator, self._pulling
        self._last = pulling.run(
            rounds=operator.rounds,
            unchanged=True,
            within=operator.within,
            patience=operator.patience,
        )
        net = pulling.net()
        pulling.settle()
        return [
            (columns, np.full(len(columns[0]), diff, np.int64))
            for columns, diff in ((net.new, 1), (net.old, -1))
        ]

    def measured(self) -> Sequence[RoundFigures]:
        history = () if self._last is None else self._last.history
        return [
            RoundFigures((number,), each.changed, each.messages, each.milliseconds / 1e3)
            for number, each in enumerate(history)
        ]

    def figures(self) -> dict[str, dict[str, int]]:
        last = self._last
        if last is None:
            return {}
        changed = sum(each.changed for each in last.history)
        return {self.node.name: {"rounds": last.rounds, "changed": changed}}
