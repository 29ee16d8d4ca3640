"""Microsteps: which steps of a delta iteration may work on one row at a time, with no rounds.

`delta` asks this for ``mode="microstep"``. A step takes rows of the solution (S) and of the workset (W), and gives the
delta (D) and the next workset. In microsteps, rows are taken one by one, in any order, and each finds the solution as
the rows before it have left it. The conditions, of which the first four are checked on the nodes of the step:

- **M1.** Every node works on each row by itself. (Groups, and what takes rows back, do not.)
- **M2.** A join has one side that changes in the loop, and no more.
- **M3.** The next workset is made of the delta, and of the solution and the workset only by way of it.
- **M4.** A row of the delta has the key of the row of the solution that it was made of, and is joined by that key: so a
  key needs its own row only, which is where the key is.
- **M5.** Of two different rows of a key one is better.
- **M6.** A better row sends messages that are no worse.

A step that breaks one of the first four is refused: it has no meaning in microsteps. With the last two the result does
not depend on the order of work; a step for which that is not certain runs in microsteps only if the program asks for
them (`micro_loop`), and its node says that it depends on arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from riverrun.errors import PlanError
from riverrun.frontends.collections.best import Better
from riverrun.frontends.collections.derivation import (
    Entered,
    Filtered,
    Paired,
    Projected,
    Subset,
    United,
    derivation_of,
)
from riverrun.frontends.collections.expressions import compile_columns
from riverrun.frontends.collections.expressions.tree import kind_of, read
from riverrun.frontends.collections.rows import Rows
from riverrun.frontends.collections.tracing import NoShape
from riverrun.operators.iterations.microsteps import ACCEPTED, MicroLoop, Ranking, StepNode
from riverrun.operators.linear import Concat
from riverrun.plan.plan import Node, Port, Scope

if TYPE_CHECKING:
    from riverrun.frontends.collection import Collection

SOLUTION, WORKSET = "solution", "workset"
_Origins = dict[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class DeltaStep:
    """A step that was written: the rows that it takes, and those that it gives."""

    taken: dict[Port, str]
    """The rows that change from round to round, each with what it is: `SOLUTION` or `WORKSET`."""
    delta: Rows
    following: Rows
    """The next workset."""
    loop: Scope


@dataclass(frozen=True)
class BrokenCondition:
    """A condition that a step does not meet, and the node that breaks it."""

    condition: str
    node: Node
    why: str
    hint: str

    def error(self, line: str) -> PlanError:
        node = self.node
        return PlanError(
            "plan.microstep",
            f"cannot iterate_delta in microsteps ({line}): {node.operator.describe()} ({node.name!r}, {node.line}) "
            f"{self.why} ({self.condition})",
            hint=self.hint,
            condition=self.condition,
            node=node.name,
            line=node.line,
        )


def check_microsteps(step: DeltaStep, key: Sequence[str], line: str) -> None:
    """Refuse a step that breaks one of the conditions M1 to M4."""
    broken = first_broken(step, key)
    if broken is not None:
        raise broken.error(line)


def first_broken(step: DeltaStep, key: Sequence[str]) -> BrokenCondition | None:
    """The first of the conditions M1 to M4 that a step breaks."""
    to_delta = _StepWalk(step, [step.delta._port], {})
    onward = _StepWalk(step, [step.following._port], {step.delta._port: "delta"})
    for number in sorted({*to_delta.nodes, *onward.nodes}):
        broken = _by_row(step, number, to_delta.changing | onward.changing)
        if broken is not None:
            return broken
    for number, _ in sorted(onward.reached):
        node = onward.at(number)
        return BrokenCondition(
            "M3",
            node,
            "leads the solution or the workset to the next workset past the delta",
            "make the next workset of the delta alone: return delta, send(delta)",
        )
    if any(what == SOLUTION for _, what in to_delta.reached):
        return _KeyOrigins(step, key).broken()
    return None


class _StepWalk:
    """The nodes of a step that lead to some ports, from rows that change in the loop."""

    def __init__(self, step: DeltaStep, ports: Iterable[Port], stops: dict[Port, str]) -> None:
        self._all = step.delta._builder.nodes
        self.nodes: set[int] = set()
        self.reached: set[tuple[int, str]] = set()
        """Nodes that take rows which change, each with what they take."""
        self.changing: set[int] = set()
        """The nodes whose rows change from round to round."""
        waiting, ends = [port for port in ports if port not in stops], set()
        for port in waiting:
            if port in step.taken:
                self.reached.add((port.node, step.taken[port]))
        waiting = [port for port in waiting if port not in step.taken]
        while waiting:
            number = waiting.pop().node
            if number in self.nodes:
                continue
            self.nodes.add(number)
            for port in self._all[number].inputs:
                if port in stops:
                    ends.add(number)
                elif port in step.taken:
                    self.reached.add((number, step.taken[port]))
                    ends.add(number)
                elif self._all[port.node].scope.is_inside(step.loop):
                    waiting.append(port)
        self._spread(ends)

    def at(self, number: int) -> Node:
        return self._all[number]

    def _spread(self, ends: set[int]) -> None:
        """Find the nodes that rows which change lead to."""
        self.changing = set(ends)
        while True:
            more = {
                number
                for number in self.nodes - self.changing
                if any(port.node in self.changing for port in self._all[number].inputs)
            }
            if not more:
                break
            self.changing |= more
        self.nodes &= self.changing


def _by_row(step: DeltaStep, number: int, changing: set[int]) -> BrokenCondition | None:
    """How a node breaks M1 or M2."""
    nodes = step.delta._builder.nodes
    node = nodes[number]
    operator = node.operator
    if operator.pair_columns is not None:
        if all(port in step.taken or port.node in changing for port in node.inputs):
            if _is_with_solution(step, node):
                return None
            return BrokenCondition(
                "M2",
                node,
                "joins two collections that change in the loop",
                "join with rows from outside of the loop; or use mode='differential'",
            )
        return None
    if operator.by_row:
        return None
    return BrokenCondition(
        "M1",
        node,
        "works on many rows at a time",
        "let better= decide between rows of a key, in place of a group; or use mode='differential'",
    )


def _is_with_solution(step: DeltaStep, node: Node) -> bool:
    """Whether one side of a join is made of the solution alone, which in microsteps is looked up and is no stream of
    rows, and the other side of the workset alone."""
    sides = [_made_of(step, port) for port in node.inputs]
    return {SOLUTION} in sides and {WORKSET} in sides


def _made_of(step: DeltaStep, port: Port) -> set[str]:
    """Which of the rows that change some rows are made of."""
    nodes = step.delta._builder.nodes
    found, seen, waiting = set(), {port}, [port]
    while waiting:
        port = waiting.pop()
        if port in step.taken:
            found.add(step.taken[port])
        elif nodes[port.node].scope.is_inside(step.loop):
            sources = {*nodes[port.node].inputs} - seen
            seen |= sources
            waiting += sources
    return found


class _KeyOrigins:
    """Follows the key of the solution to the delta."""

    def __init__(self, step: DeltaStep, key: Sequence[str]) -> None:
        self._step = step
        self._key = tuple(key)
        self._bad: BrokenCondition | None = None

    def broken(self) -> BrokenCondition | None:
        """How the step breaks M4."""
        origins = self._of(self._step.delta)
        if self._bad is not None:
            return self._bad
        for name in self._key:
            if (SOLUTION, name) not in origins.get(name, frozenset()):
                return self._breaks(self._step.delta, f"does not keep the key {name!r}")
        return None

    def _breaks(self, rows: Rows, why: str) -> BrokenCondition:
        node = rows._builder.nodes[rows._port.node]
        hint = "give each row of the delta the key of the row of the solution that it was joined with, unchanged"
        return BrokenCondition("M4", node, why, hint)

    def _of(self, rows: Rows) -> _Origins:
        """For each column, the columns of the solution and of the workset whose value it has."""
        what = self._step.taken.get(rows._port)
        if what is not None:
            return {name: frozenset({(what, name)}) for name in rows.columns}
        made = derivation_of(rows)
        if isinstance(made, Projected):
            inner = self._of(made.source)
            return {name: inner.get(_picked(value), frozenset()) for name, value in made.wanted.items()}  # fmt: skip
        if isinstance(made, Filtered | Subset | Entered):
            return self._of(made.source)
        if isinstance(made, United):
            parts = [self._of(part) for part in made.parts]
            return {
                name: frozenset.intersection(*[part.get(name, frozenset()) for part in parts])
                for name in rows.columns
            }
        if isinstance(made, Paired):
            return self._paired(rows, made)
        return {}

    def _paired(self, rows: Rows, made: Paired) -> _Origins:
        sides = (self._of(made.left), self._of(made.right))
        keys = (made.left_key, made.right_key)
        wanted = {(SOLUTION, name) for name in self._key}
        for side, columns in zip(sides, keys, strict=True):
            from_solution = any(
                what == SOLUTION for origins in side.values() for what, _ in origins
            )
            joined = {each for name in columns for each in side.get(name, frozenset())}
            if from_solution and not wanted <= joined and self._bad is None:
                self._bad = self._breaks(
                    rows, f"joins rows of the solution by {', '.join(columns)}, not by their key"
                )
        equal = {}
        for mine, its in zip(*keys, strict=True):
            both = sides[0].get(mine, frozenset()) | sides[1].get(its, frozenset())
            equal[0, mine] = equal[1, its] = both
        return {
            name: equal.get((side, inner), sides[side].get(inner, frozenset()))
            for name, (side, inner) in made.names.items()
        }


def _picked(value: Any) -> str:
    """The column that a name or an expression picks as it is; empty if there is none."""
    if not isinstance(value, pl.Expr):
        return value if isinstance(value, str) else ""
    kind, parts = kind_of(read(value))
    if kind == "Alias":
        kind, parts = kind_of(parts[0])
    return parts if kind == "Column" else ""


# -- steps that arrays do not know


def micro_loop(
    step: DeltaStep,
    solution: Collection,
    workset: Collection,
    key: tuple[str, ...],
    better: Better | None,
    adds_keys: bool,
    patience: int,
    why: NoShape,
    loop: str,
) -> Collection:
    """The result of a delta iteration that sends messages, from one node that runs it in microsteps.

    `why` says why arrays do not know the step. Raises a `NoShape` where the step has nodes that cannot be taken out of
    the loop.
    """
    accepted = step.delta
    nodes, outside = _taken_out(step, accepted._port)
    columns = solution.columns
    by, descending = ([], []) if better is None else better.order(columns, key)
    measures = {f"by {at}": each for at, each in enumerate(by)}
    ranking = None
    if by:
        ranking = Ranking(
            compile_columns(solution.schema, measures, "order the rows of a key"), tuple(descending)
        )
    if better is None:
        broken = "M5 is broken: nothing says which of two rows is better"
    else:
        broken = f"M6 is not certain: {why}"
    operator = MicroLoop(
        nodes,
        key,
        ranking,
        "every row takes the place of another" if better is None else better.text,
        adds_keys,
        patience,
        broken,
    )
    sides: list[Rows] = [*outside, solution, workset.select(*columns)]
    result = pa.schema([each.with_nullable(True) for each in solution.schema])
    arranged = [side._arranged(()) for side in sides]
    return solution._add(operator, arranged, result, f"{loop}:microsteps")


def _taken_out(step: DeltaStep, accepted: Port) -> tuple[tuple[StepNode, ...], list[Rows]]:
    """The nodes of a step, and the rows from outside that they take."""
    every = step.following._builder.nodes
    numbers, waiting = set(), [step.following._port]
    while waiting:
        port = waiting.pop()
        node = every[port.node]
        if port == accepted or port.node in numbers or not node.scope.is_inside(step.loop):
            continue
        numbers.add(port.node)
        if node.operator.steps_out >= 0:
            waiting += node.inputs
        if not node.operator.by_row and node.operator.pair_columns is None:
            raise NoShape(
                f"rows from outside are worked on inside of the loop, by {node.operator.describe()}; do that before it"
            )
    made: list[StepNode] = []
    places: dict[int, int] = {}
    outside: list[Rows] = []
    for number in sorted(numbers):
        node = every[number]
        inputs = []
        for port in node.inputs:
            if port == accepted:
                inputs.append(ACCEPTED)
            elif port.node in places:
                inputs.append(places[port.node])
            else:
                inputs.append(-2 - len(outside))
                outside.append(step.delta._at(port))
        places[number] = len(made)
        if node.operator.pair_columns is not None:
            made.append(_pairing(node, [every[port.node] for port in node.inputs], inputs))
        else:
            operator = node.operator if node.operator.steps_out >= 0 else Concat()
            made.append(StepNode(operator, tuple(inputs)))
    return tuple(made), outside


def _pairing(node: Node, sides: Sequence[Node], inputs: Sequence[int]) -> StepNode:
    """A join, with the positions of its columns."""
    schemas = [side.schemas[0] for side in sides]
    on = []
    for side, schema in zip(sides, schemas, strict=True):
        key = side.operator.copied_by
        assert key is not None
        on.append(tuple([schema.get_field_index(name) for name in key]))
    pairs = node.operator.pair_columns
    assert pairs is not None
    picked = tuple([(side, schemas[side].get_field_index(name)) for side, name in pairs])
    return StepNode(node.operator, tuple(inputs), tuple(on), picked)
