"""The spread operator: a loop in which a best value spreads along edges, run on arrays in one node.

The front end puts this operator in the place of a loop whose shape it knows (`frontends.collections.shapes`). Its
inputs are arrangements by no key, so all rows are on one worker: the edges, the solution at the start, and perhaps a
workset. Its output is the result of the loop: one row for each key. An epoch is one call: `Spreading` runs the loop to
its end, from where the epoch before left it. Law:

- **Oracle.** As of each epoch, the output is the result of the loop run from scratch.

Cost: `spreading` says what a change costs. The first epoch after a start spreads all values again (`array_loop`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from riverrun.operators.iterations.array_loop import ArrayLoop
from riverrun.operators.iterations.spreading import Message, Settled, Spreading
from riverrun.plan.loop_figures import RoundFigures
from riverrun.plan.operator import Context, Operator
from riverrun.state.columns import Ints

EDGES, SOLUTION, WORKSET = range(3)
"""The inputs."""


@dataclass(frozen=True)
class SpreadLoop(Operator):
    """The best value of each key. The edges have the sources' key, the targets' key, and the weight, if the message is
    not a copy; the other inputs have the key and the value."""

    key: int
    """How many columns the key has."""
    message: str
    """``copy``, ``add``, ``min`` or ``max``: what is sent along an edge, made of the value and the weight."""
    greatest: bool
    """Whether the greatest value is the best, or the least."""
    adds_keys: bool
    """Whether a message adds a key that the solution does not have."""
    patience: int
    supersteps: bool = False
    """Whether values are sent round by round, or the best ones first. The result is the same."""
    kind: ClassVar[str] = "spread"
    kernels: ClassVar[tuple[str, ...]] = (
        "iterations.edges.build_lists",
        "iterations.edges.fill_edges",
        "iterations.edges.list_edges",
        "iterations.edges.tally",
        "iterations.messages.is_forbidden",
        "iterations.messages.is_improving",
        "iterations.messages.read_words",
        "iterations.messages.write_words",
        "iterations.slots.fill_table",
        "iterations.slots.find_rows",
        "iterations.slots.find_words",
        "iterations.slots.has_nulls",
        "iterations.spreading.forget",
        "iterations.spreading.list_changes",
        "iterations.spreading.put_values",
        "iterations.spreading.roll_back",
        "iterations.spreading.settle",
        "iterations.starts.change_starts",
        "iterations.starts.fill_rows",
    )
    keeps_state: ClassVar[bool] = True
    reads_arrangements: ClassVar[bool] = True
    gives_content: ClassVar[bool] = True
    runs_loop: ClassVar[bool] = True

    def describe(self) -> str:
        order = "round by round (supersteps)" if self.supersteps else "best first (microsteps)"
        return f"{self._what()}; {order}"

    def _what(self) -> str:
        best = "greatest" if self.greatest else "least"
        sent = {"copy": "the value", "add": "value + weight"}.get(
            self.message, f"{self.message} of value and weight"
        )
        return f"spread the {best} value along edges, which carry {sent}"

    def identity(self) -> str:
        keys = "keys are added" if self.adds_keys else "keys are those of the solution"
        return f"{self._what()}, by {self.key} columns; {keys}"

    def start(self, context: Context) -> Spreader:
        return Spreader(context, self)


class Spreader(ArrayLoop):
    """A spread on a worker: values that live over all epochs."""

    def __init__(self, context: Context, operator: SpreadLoop) -> None:
        super().__init__(context)
        self._width = operator.key
        *keys, value = self.kinds[SOLUTION]
        self._spreading = Spreading(
            keys,
            value,
            Message(operator.message),
            best="greatest" if operator.greatest else "least",
            missing="add" if operator.adds_keys else "drop",
            order="superstep" if operator.supersteps else "best",
            patience=operator.patience,
        )
        self._last: Settled | None = None

    def stage(self, port: int, columns: Sequence[pa.Array], diffs: Ints) -> None:
        spreading, width = self._spreading, self._width
        if port == EDGES:
            weights = columns[2 * width] if len(columns) > 2 * width else None
            spreading.change_edges(columns[:width], columns[width : 2 * width], weights, diffs)
        elif port == SOLUTION:
            spreading.change_solution(columns[:width], columns[width], diffs)
        else:
            spreading.change_workset(columns[:width], columns[width], diffs)

    def converge(self) -> list[tuple[Sequence[pa.Array], Ints]]:
        self._last = self._spreading.converge()
        return [self._last.result()]

    def measured(self) -> Sequence[RoundFigures]:
        return () if self._last is None else self._last.history

    def figures(self) -> dict[str, dict[str, int]]:
        last = self._last
        if last is None:
            return {}
        figures = {"rounds": last.rounds, "messages": last.messages, "touched": last.touched}
        return {self.node.name: figures}
