"""Fixed points: loops inside a dataflow, to any depth.

`Collection.iterate` comes here. ``start.iterate(body)`` applies ``body`` again and again, from the rows of `start`,
until nothing changes any more, or `rounds` times. The body takes the collection of one round and gives the collection
of the next round. It may use any collection from outside, which is the same in all rounds. Inside a loop, times have
one more coordinate, the round. Laws:

- **Fixed point.** As of each epoch, the result is that of the loop run from scratch over the rows of the epoch (the
  *oracle* law of ARCHITECTURE). Rows may also be deleted: the loop keeps the changes of every round, not only the last
  rows.
- **Rest.** Rows that the body adds and takes back in one round add up to nothing before they go back, on whichever
  workers they lie. So a loop comes to rest with every number of workers, or with none (*cuts invisible*).
- **Types of the start.** The result of the body has the columns of `start`. Narrower types are widened. For wider types
  the loop is built anew from a `start` widened to these types, so the body is called again.
- **Patience.** A loop without `rounds` that still changes after `patience` rounds is an error, which shows some rows
  that change.

**Priority.** With ``at``, the loop starts empty, and each row of `start` enters at the round that the expression ``at``
gives. The body then takes two arguments: the collection of the round, and the rows of `start` that have entered so far,
which the body has to put into its result. If, for instance, small labels enter first, most nodes never see a label that
is replaced later.

Cost: a change of the input costs as much as the rounds and rows that differ by it. Adding up before a round costs an
exchange, unless the rows lie with their group already.

>>> import riverrun as rr
>>> from riverrun.testing import once
>>> def doubled(numbers):
...     return numbers.concat(numbers.select(n=pl.col("n") * 2).filter(pl.col("n") < 20)).distinct()
>>> import polars as pl
>>> sorted(once(lambda numbers: numbers.iterate(doubled), numbers=[{"n": 3}])["n"])
[3, 6, 12]
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from riverrun.errors import PlanError, users_line
from riverrun.frontends.arguments import (
    check_callable,
    function_name,
    is_count,
    is_one_of,
    type_in_words,
)
from riverrun.frontends.collections.expressions import Projection, compile_columns
from riverrun.frontends.collections.pull_shapes import pull_of_body, pull_on_arrays
from riverrun.frontends.collections.rows import Rows
from riverrun.frontends.collections.shapes import offer_arrays, on_arrays, spread_of_body
from riverrun.frontends.collections.tracing import NoShape
from riverrun.frontends.collections.widening import widened
from riverrun.operators.loops import PATIENCE, Delay, Feedback, Leave
from riverrun.plan.plan import Node, Port, Scope, Shortcut
from riverrun.rows.values import listed, show
from riverrun.state.types import common_type, share_layout, type_text

if TYPE_CHECKING:
    from riverrun.frontends.collection import Collection


def iterate(
    start: Collection,
    body: Callable[..., Collection],
    *,
    rounds: int | None = None,
    at: Any = None,
    mode: str = "auto",
    spread_over: str = "auto",
    name: str | None = None,
    patience: int = PATIENCE,
) -> Collection:
    """See `Collection.iterate`."""
    builder, line = start._builder, users_line()
    check_callable(body, "iterate")
    taken = "the rows of the round" + ("" if at is None else " and those that have entered")
    spelling = "iterate(lambda rows: ...); with at=, iterate(lambda rows, entered: ..., at=...)"
    check_arguments(body, 1 if at is None else 2, "iterate", taken, spelling, line)
    check_limits("iterate", rounds, patience, line)
    check_mode("iterate", mode, line)
    check_over("iterate", spread_over, line)
    if rounds == 0:
        return start
    for _ in range(WIDENINGS):
        entering = None if at is None else _entering(start, at, line)
        try:
            with builder.whole_or_not():
                return _closed(
                    start, body, rounds, entering, mode, spread_over, name, patience, line
                )
        except Wider as wider:
            refusal = wider.refusal
            start = widened(start, wider.kinds)
    raise refusal


WIDENINGS = 4
"""How often a loop is built anew for wider columns; after that, the types are taken to grow for ever."""


def check_mode(method: str, mode: Any, line: str) -> None:
    """Refuse a way to run a loop that there is not."""
    if not is_one_of(mode, MODES):
        raise PlanError(
            "plan.mode",
            f"cannot {method} with mode={show(mode)} ({line}): a loop is run on arrays or differentially",
            hint="mode='auto' (the default) takes arrays where the loop has a shape that they know; the others are "
            "mode='arrays' and mode='differential'",
        )


MODES = ("auto", "arrays", "differential")
OVER = ("auto", "one", "all")


def check_over(method: str, over: Any, line: str) -> None:
    """Refuse workers that a loop cannot be spread over."""
    if not is_one_of(over, OVER):
        raise PlanError(
            "plan.spread_over",
            f"cannot {method} with spread_over={show(over)} ({line}): a loop on arrays runs on one worker or on all",
            hint="spread_over='auto' (the default) takes what costs less, by the sizes that inputs expect; the others "
            "are spread_over='one' and spread_over='all'",
        )


def check_limits(method: str, rounds: Any, patience: Any, line: str) -> None:
    """Refuse limits of a loop that are no numbers of rounds."""
    if rounds is not None and not is_count(rounds, 0):
        raise PlanError(
            "plan.rounds",
            f"cannot {method} with rounds={show(rounds)} ({line}): that is a whole number from 0 on",
            hint="leave it out to go on until nothing changes",
        )
    if not is_count(patience):
        raise PlanError(
            "plan.patience",
            f"cannot {method} with patience={patience!r} ({line}): that is a whole number of rounds from 1 on",
            hint=f"leave it out for {PATIENCE:,} rounds",
        )


class Wider(Exception):
    """The body gives wider columns than `start`, with which the loop starts. So the loop is to be built anew, from a
    start with the types `kinds`."""

    def __init__(self, start: Rows, kinds: dict[str, pa.DataType], refusal: PlanError) -> None:
        super().__init__()
        self.start = start
        self.kinds = kinds
        self.refusal = refusal


def _entering(start: Collection, at: Any, line: str) -> Projection:
    """The projection that computes the round at which a row of `start` enters."""
    entering = compile_columns(
        start.schema, {"round": at}, f"let the rows of {start._name} into a loop"
    )
    kind = entering.schema.field(0).type
    if not pa.types.is_integer(kind):
        raise PlanError(
            "plan.type",
            f"cannot enter a loop at {at} ({line}): it is {kind}, not a whole number",
            hint="cast it: .cast(pl.Int64)",
        )
    return entering


def check_arguments(
    body: Callable[..., Any], count: int, method: str, arguments: str, spelling: str, line: str
) -> None:
    """Refuse a function of a round that cannot be called with `count` arguments, which are `arguments`."""
    try:
        inspect.signature(body).bind(*range(count))
    except TypeError:
        raise PlanError(
            "plan.loop_body",
            f"cannot {method} {function_name(body)} ({line}): it is called with {arguments}, and does not take "
            f"{'one argument' if count == 1 else 'two arguments'}",
            hint=spelling,
            line=line,
        ) from None
    except ValueError:  # a builtin, whose parameters Python does not know
        return


def _closed(
    start: Collection,
    body: Callable[..., Collection],
    rounds: int | None,
    entering: Any,
    mode: str,
    over: str,
    name: str | None,
    patience: int,
    line: str,
) -> Collection:
    """Build the loop, from checked arguments."""
    builder = start._builder
    loop = builder.loop(start.scope, name)
    rows = Variable.entering(start, loop, rounds, patience, entering)
    result = body(rows.inside) if entering is None else body(rows.inside, rows.entered)
    if not isinstance(result, Rows):
        raise PlanError(
            "plan.loop_open",
            f"cannot iterate ({line}): the body gave {type_in_words(result)}, not a collection, so nothing leads "
            "to the next round",
            hint="return the collection that the next round starts with",
            line=line,
        )
    closed = rows.close(result, "iterate", line)
    left = closed.leave()

    def fast(at_loop: str) -> list[Shortcut]:
        if entering is not None:
            raise NoShape("rows enter it by priority")
        try:
            if rounds is not None:
                raise NoShape("it has a number of rounds", is_other=True)
            with builder.whole_or_not():
                shape = spread_of_body(start, rows.inside, result)
                return on_arrays(shape, patience, at_loop, over)
        except NoShape as reason:
            no_spread = reason
        try:
            pull = pull_of_body(start, rows.inside, closed.given)
            if mode == "auto" and not pull.adds_up:
                # Sums change everywhere in every round, so a loop that runs them all again is faster, as a rule. The
                # least or greatest of few rounds changes in few places.
                raise NoShape("its rounds add nothing up, and a change may reach few of its rows")
            if over == "all":
                raise NoShape("its rounds add up or run again from the start, on one worker")
            return [Shortcut(pull_on_arrays(pull, rounds, patience, at_loop)._port)]
        except NoShape as no_pull:
            raise (no_pull if no_spread.is_other else no_spread) from None

    offer_arrays(fast, loop, left, mode, over, line)
    return left


@dataclass(frozen=True)
class Variable:
    """Rows of a loop that every round makes anew: `start` in the first round, then what the round before gave."""

    start: Collection
    loop: Scope
    entered: Collection
    """The rows of `start` inside the loop: in the first round, or each from the round on at which it enters."""
    inside: Collection
    """The rows of a round."""
    back: Port
    """The feedback that leads to the next round."""

    @classmethod
    def entering(
        cls,
        start: Collection,
        loop: Scope,
        rounds: int | None,
        patience: int,
        at: Projection | None = None,
    ) -> Variable:
        """A variable that starts as the rows of `start`. With `at`, it starts empty, and rows enter by priority: they
        are in `entered` only."""
        builder = start._builder
        schema = pa.schema([field.with_nullable(True) for field in start.schema])
        entered = start._into(loop, at, rounds)
        back = start._at(builder.add(Feedback(rounds, patience), [], [schema], scope=loop))
        inside = back
        if at is None:
            # The rows of `start` are those of the first round only: from the next on, the body's result.
            delayed = entered._add(Delay(rounds), [entered], schema)
            inside = entered.concat(delayed.negate(), back)
        return cls(start, loop, entered, inside, back._port)

    def fitting(self, result: Collection, method: str, line: str) -> Collection:
        """What a body gave for the next round, in the columns and types of `start`, inside the loop."""
        if not self.loop.is_inside(result.scope) or result.columns != self.start.columns:
            if sorted(result.columns) != sorted(self.start.columns):
                raise _other_columns(self.start, result, method, line)
            result = result.select(*self.start.columns)
        result = widened(result, _kinds_of_next(self.start, result, method, line))
        return result._into(self.loop)

    def close(self, result: Collection, method: str, line: str) -> ClosedVariable:
        """Lead `result` to the next round."""
        builder = self.start._builder
        given = result = self.fitting(result, method, line)
        if passes_no_state(builder.nodes, result._port.node, self.back.node):
            # A row and its negation would go around for ever, since nothing on the way adds them up. They may lie on
            # different workers: the row with the rows of the round, its negation where its group is.
            result = result._added_up_by_row()
        builder.close(self.back, result._port)
        return ClosedVariable(self, given, result)


@dataclass(frozen=True)
class ClosedVariable:
    """A variable with the rows that lead to its next round."""

    variable: Variable
    given: Collection
    """What the body gave, in the columns and types of the start."""
    next: Collection

    def leave(self) -> Collection:
        """The rows of the last round, outside of the loop."""
        start = self.variable.start
        schema = pa.schema([field.with_nullable(True) for field in start.schema])
        port = start._builder.add(Leave(), [self.next._port], [schema], scope=start.scope)
        return start._at(port)


def _kinds_of_next(
    start: Collection, result: Collection, method: str, line: str
) -> dict[str, pa.DataType]:
    """The types of the next round: those of `start`. Raises `_Wider` if the body gives values that these do not
    hold."""
    kinds: dict[str, pa.DataType] = {}
    for mine, its in zip(start.schema, result.schema, strict=True):
        kind = common_type(mine.type, its.type)
        if kind is None:
            raise _other_columns(start, result, method, line)
        kinds[mine.name] = kind
    if not all(share_layout(start.schema.field(name).type, kind) for name, kind in kinds.items()):
        raise Wider(start, kinds, _other_columns(start, result, method, line))
    return kinds


def passes_no_state(nodes: Sequence[Node], end: int, start: int, *, by_hand: bool = False) -> bool:
    """Whether some way from node `start` to node `end` has no node that adds changes up. In a loop made `by_hand`,
    nodes that run a function of the user's end a way too."""
    seen, waiting, loop = {end}, [end], nodes[start].scope
    while waiting:
        number = waiting.pop()
        if number == start:
            return True
        operator = nodes[number].operator
        if operator.adds_up or (by_hand and operator.is_users):
            continue
        sources = {port.node for port in nodes[number].inputs} - seen
        seen |= sources
        waiting += [source for source in sources if nodes[source].scope.is_inside(loop)]
    return False


def takes_rows_back(nodes: Sequence[Node], end: int, loop: Scope) -> bool:
    """Whether a node on a way to `end`, inside `loop`, can give a row with a negative diff for one with a positive."""
    seen, waiting = {end}, [end]
    while waiting:
        node = nodes[waiting.pop()]
        if node.operator.takes_back:
            return True
        sources = {port.node for port in node.inputs if nodes[port.node].scope.is_inside(loop)}
        waiting += sources - seen
        seen |= sources
    return False


def _other_columns(start: Collection, result: Collection, method: str, line: str) -> PlanError:
    def described(collection: Collection) -> str:
        return listed(f"{field.name}: {type_text(field.type)}" for field in collection.schema)

    return PlanError(
        "plan.columns_differ",
        f"cannot {method} ({line}): the loop starts with {described(start)} and its body gives {described(result)}",
        hint="select the same columns, of the same types, at the end of the body",
        line=line,
    )
