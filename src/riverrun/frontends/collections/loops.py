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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from riverrun.errors import PlanError, users_line
from riverrun.frontends.arguments import (
    check_callable,
    function_name,
    is_count,
    is_one_of,
    not_a_collection,
    type_in_words,
)
from riverrun.frontends.collections.executors import choose
from riverrun.frontends.collections.expressions import Projection, compile_columns
from riverrun.frontends.collections.pull_shapes import pull_of_body, pull_on_arrays
from riverrun.frontends.collections.rounds import LoopEnd
from riverrun.frontends.collections.rows import Rows, deepest
from riverrun.frontends.collections.shapes import on_arrays, spread_of_body
from riverrun.frontends.collections.stopping import LittleMoved, Unchanged, Until, check_until
from riverrun.frontends.collections.tracing import NoShape
from riverrun.frontends.collections.widening import widened
from riverrun.operators.loops import PATIENCE, Delay, Feedback, Leave
from riverrun.plan.plan import Node, Port, Scope, Shortcut
from riverrun.rows.column_names import checked_columns, new_name
from riverrun.rows.values import listed, show
from riverrun.state.types import common_type, share_layout, type_text

if TYPE_CHECKING:
    from riverrun.frontends.collection import Collection


def iterate(
    start: Collection,
    body: Callable[..., Any],
    *,
    rounds: int | None = None,
    until: Until = None,
    at: Any = None,
    key: str | Sequence[str] | None = None,
    mode: str = "auto",
    maintain: str = "auto",
    expect: int | None = None,
    spread_over: str = "auto",
    name: str | None = None,
    patience: int = PATIENCE,
) -> Collection:
    """See `Collection.iterate`."""
    line = users_line()
    check_callable(body, "iterate")
    taken = "the rows of the round" + ("" if at is None else " and those that have entered")
    spelling = "iterate(lambda rows: ...); with at=, iterate(lambda rows, entered: ..., at=...)"
    check_arguments(body, 1 if at is None else 2, "iterate", taken, spelling, line)
    way = Way(rounds, until, at, key, mode, spread_over, maintain, expect, name, patience, line)
    way.check("iterate", [start])
    if rounds == 0:
        return start

    def step(inside: Sequence[Collection], entered: Collection) -> tuple[list[Any], list[Any]]:
        given = body(*inside) if at is None else body(*inside, entered)
        following, proceed = _with_proceed(given)
        return [following], proceed

    (result,) = _widening([start], step, way)
    return result


def iterate_together(
    start: Mapping[str, Collection],
    body: Callable[[dict[str, Collection]], Any],
    *,
    rounds: int | None = None,
    until: Until = None,
    mode: str = "auto",
    maintain: str = "auto",
    expect: int | None = None,
    name: str | None = None,
    patience: int = PATIENCE,
) -> dict[str, Collection]:
    """Several collections that make each other, round by round, until none of them changes any more.

    `start` maps names to collections, with which the first round begins. `body` takes such a dict with the collections
    of a round, and returns the dict of the next. The result is the dict of the last round. A function as `until` takes
    the dicts before and after a round, and the loop ends when the rows that it gives are none; `body` may also return a
    pair, the dict of the next round and a collection, and the loop ends when that is empty. `rounds`, `mode`,
    `maintain`, `expect`, `name` and `patience` are those of `Collection.iterate`.

    For instance, in a game whoever cannot move has lost, and a move to where the other loses wins:

    >>> import polars as pl, riverrun as rr
    >>> from riverrun.testing import once
    >>> def game(moves):
    ...     def step(now):
    ...         good = moves.join(now["lost"], left_on="dst", right_on="node").select(node="src")
    ...         won = good.distinct()
    ...         open_ = moves.anti_join(won, left_on="dst", right_on="node").select(node="src")
    ...         lost = nodes.anti_join(open_, on="node")
    ...         return {"won": won, "lost": lost}
    ...
    ...     nodes = moves.select(node="src").concat(moves.select(node="dst")).distinct()
    ...     empty = nodes.filter(False)
    ...     return rr.loops.iterate({"won": empty, "lost": empty}, step)["won"]
    >>> sorted(once(game, moves=[{"src": 1, "dst": 2}, {"src": 2, "dst": 3}])["node"])
    [2]
    """
    line = users_line()
    check_callable(body, "iterate", parameters="now")
    names, starts = _named_starts(start, line)
    check_arguments(
        body, 1, "iterate", "the collections of the round", "iterate(start, lambda now: ...)", line
    )
    way = Way(rounds, until, None, None, mode, "auto", maintain, expect, name, patience, line)
    way.check("iterate", starts)
    if rounds == 0:
        return dict(start)
    scope = deepest(*starts)

    def step(inside: Sequence[Collection], entered: Collection) -> tuple[list[Any], list[Any]]:
        following, proceed = _with_proceed(body(dict(zip(names, inside, strict=True))))
        if not isinstance(following, Mapping) or {*following} != {*names}:
            shown = (
                listed(following) if isinstance(following, Mapping) else type_in_words(following)
            )
            raise PlanError(
                "plan.loop_body",
                f"cannot iterate ({line}): the loop starts with {listed(names)}, and its body gave "
                f"{shown or 'nothing'}",
                hint="return a dict with the same names: the collections of the next round",
                line=line,
            )
        return [following[each] for each in names], proceed

    results = _widening([each._into(scope) for each in starts], step, way, names)
    return dict(zip(names, results, strict=True))


def _named_starts(start: Any, line: str) -> tuple[list[str], list[Collection]]:
    """The names and the collections of several solutions."""
    if not isinstance(start, Mapping) or not start:
        raise PlanError(
            "plan.loop_start",
            f"cannot iterate ({line}): {show(start)} is no dict of collections",
            hint='rr.loops.iterate({"ranks": ranks, "left": left}, body); of one collection, ranks.iterate(body)',
        )
    for name, each in start.items():
        new_name(name, "iterate several collections")
        if not isinstance(each, Rows):
            raise not_a_collection("plan.loop_start", f"start the loop of {name!r}", each)
    return list(start), list(start.values())


Step = Callable[[Sequence["Collection"], "Collection"], tuple[list[Any], list[Any]]]
"""Gives what a body gives for the variables of a loop, and in a list for which rows there is to be another round, if it
says so; of the variables inside of the loop, and of the rows that entered."""


def _with_proceed(given: Any) -> tuple[Any, list[Any]]:
    """What a body gave: the next round; and, in a list, the rows for which there is to be one, if it gave these."""
    if isinstance(given, tuple | list) and len(given) == 2:
        return given[0], [given[1]]
    return given, []


def _widening(
    starts: list[Collection], step: Step, way: Way, names: Sequence[str] | None = None
) -> list[Collection]:
    """Build a loop, if need be anew from starts with wider types."""
    builder = starts[0]._builder
    for _ in range(WIDENINGS):
        try:
            with builder.whole_or_not():
                return _closed(starts, step, way, names)
        except Wider as wider:
            refusal, kinds = wider.refusal, wider.kinds
            starts = [widened(each, kinds) if each is wider.start else each for each in starts]
    raise refusal


@dataclass(frozen=True)
class Way:
    """How a loop is to be run: the arguments of the methods that make loops, unchecked at first."""

    rounds: Any
    until: Any
    at: Any
    key: Any
    mode: Any
    spread_over: Any
    maintain: Any
    expect: Any
    name: Any
    patience: Any
    line: str

    def check(self, method: str, starts: Sequence[Collection]) -> None:
        """Refuse arguments that are wrong, or do not go together."""
        line = self.line
        check_limits(method, self.rounds, self.patience, line)
        check_mode(method, self.mode, line)
        check_over(method, self.spread_over, line)
        check_upkeep(method, self.mode, self.maintain, self.expect, line)
        check_until(self.until, line)
        if self.key is not None:
            checked_columns(self.key, starts[0].columns, f"{method} {starts[0]._name}")
        if self.until is not None and self.at is not None:
            raise self._refusal(
                f"iterate until {show(self.until)}, with at=",
                "rows that enter by priority end a loop by themselves",
                "leave out at=, or until=",
            )
        if self.is_stopped:
            self.check_stopped(show(self.until), starts)

    def check_stopped(self, what: str, starts: Sequence[Collection]) -> None:
        """Refuse to end a loop by `what`, in words, where that cannot be."""
        if self.mode == "differential" or self.maintain == "differential":
            raise self._refusal(
                f"iterate until {what}, differentially",
                "which round is the last depends on the rows, and a differential loop has no last round",
                "leave out mode= and maintain=: the loop runs by rounds",
            )
        if any(start.scope.depth > 1 for start in starts):
            raise self._refusal(
                f"iterate until {what}, inside another loop",
                "an inner loop is run for all rounds of the outer one together, so it has no last round",
                "inside a loop a loop may end when nothing changes, or after rounds=",
            )

    def _refusal(self, attempt: str, rule: str, hint: str) -> PlanError:
        return PlanError("plan.until", f"cannot {attempt} ({self.line}): {rule}", hint=hint)

    @property
    def is_stopped(self) -> bool:
        """Whether the loop may end although something still changes, other than by a number of rounds."""
        return not (self.until is None or isinstance(self.until, Unchanged))

    def stop(self, given: Sequence[Collection], proceed: Collection | None) -> LoopEnd:
        """When the loop ends; `given` is what its body gives."""
        key = (
            checked_columns(self.key, given[0].columns, "iterate") if self.key is not None else None
        )
        if isinstance(self.until, LittleMoved):
            if len(given) > 1:
                raise self._refusal(
                    f"iterate several collections until {self.until!r}",
                    "that does not say of which of them",
                    "until=lambda before, after: ..., with the rows that still move",
                )
            return LoopEnd(self.until.closeness(given[0], self.key, self.line), None, key)
        return LoopEnd(None, proceed, key)


WIDENINGS = 4
"""How often a loop is built anew for wider columns; after that, the types are taken to grow for ever."""


def check_mode(method: str, mode: Any, line: str) -> None:
    """Refuse a way to run a loop that there is not."""
    if not is_one_of(mode, MODES):
        raise PlanError(
            "plan.mode",
            f"cannot {method} with mode={show(mode)} ({line}): a loop is run on arrays or by rounds or differentially",
            hint="mode='auto' (the default) takes what fits best; the others are mode='arrays' and mode='rounds' and "
            "mode='differential'",
        )


OVER = ("auto", "one", "all")
MODES = ("auto", "arrays", "rounds", "differential")
UPKEEP = ("auto", "restart", "differential")
RESTARTING = ("arrays", "rounds", "superstep", "microstep")


def check_over(method: str, over: Any, line: str) -> None:
    """Refuse workers that a loop cannot be spread over."""
    if not is_one_of(over, OVER):
        raise PlanError(
            "plan.spread_over",
            f"cannot {method} with spread_over={show(over)} ({line}): a loop on arrays runs on one worker or on all",
            hint="spread_over='auto' (the default) takes what costs less, by the sizes that inputs expect; the others "
            "are spread_over='one' and spread_over='all'",
        )


def check_upkeep(method: str, mode: str, maintain: Any, expect: Any, line: str) -> None:
    """Refuse a way to keep a result up to date that there is not, or that does not go with the mode."""
    if not is_one_of(maintain, UPKEEP):
        raise PlanError(
            "plan.maintain",
            f"cannot {method} with maintain={show(maintain)} ({line}): when an input changes, a loop runs again from "
            "its start, or the change goes through its rounds",
            hint="maintain='restart' or maintain='differential'; leave it out for what fits the loop",
        )
    if (maintain == "differential" and mode in RESTARTING) or (
        maintain == "restart" and mode == "differential"
    ):
        raise PlanError(
            "plan.maintain",
            f"cannot {method} with mode={mode!r} and maintain={maintain!r} ({line}): a differential loop keeps the "
            "changes of all rounds, so that a change goes through them; all others keep the result alone",
            hint="give one of the two",
        )
    if expect is not None and not is_count(expect):
        raise PlanError(
            "plan.expect",
            f"cannot {method} with expect={show(expect)} ({line}): that is about how many rounds there are, from 1 on",
            hint="it changes how the loop is run, never its result; rounds= limits it",
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
    starts: list[Collection], step: Step, way: Way, names: Sequence[str] | None
) -> list[Collection]:
    """Build the loop, from checked arguments."""
    builder, line, rounds, patience = starts[0]._builder, way.line, way.rounds, way.patience
    entering = None if way.at is None else _entering(starts[0], way.at, line)
    loop = builder.loop(starts[0].scope, way.name)
    variables = [Variable.entering(start, loop, rounds, patience, entering) for start in starts]
    inside = [each.inside for each in variables]
    results, proceeding = step(inside, variables[0].entered)
    for given in (*results, *proceeding):
        if not isinstance(given, Rows):
            raise _nothing_given(given, line)
    if proceeding:
        if way.is_stopped:
            raise PlanError(
                "plan.until",
                f"cannot iterate until {show(way.until)} ({line}): its body says when it ends, by the rows that it "
                "returns behind those of the next round",
                hint="leave out until=, or return the next round alone",
            )
        way.check_stopped("its body says so", starts)
    closed = [
        each.close(result, "iterate", line) for each, result in zip(variables, results, strict=True)
    ]
    if callable(way.until):
        after = [each.given for each in closed]
        proceeding = [_proceeding(way.until, inside, after, names, line)]
    proceed = proceeding[0]._into(loop)._added_up_by_row() if proceeding else None
    stop = way.stop([each.given for each in closed], proceed)
    left = [each.leave() for each in closed]

    def on_arrays_(at_loop: str) -> list[Shortcut]:
        return _on_arrays(closed, results, way, stop, at_loop)

    return choose(closed, left, way, stop, on_arrays_)


def _nothing_given(given: Any, line: str) -> PlanError:
    return PlanError(
        "plan.loop_open",
        f"cannot iterate ({line}): the body gave {type_in_words(given)}, not a collection, so nothing leads "
        "to the next round",
        hint="return the collection that the next round starts with",
        line=line,
    )


def _proceeding(
    until: Callable[[Any, Any], Any],
    before: Sequence[Collection],
    after: Sequence[Collection],
    names: Sequence[str] | None,
    line: str,
) -> Rows:
    """The rows of which none is left when a loop ends by a function of the rows before and after a round."""
    spelling = "until=lambda before, after: ..."
    check_arguments(until, 2, "iterate until", "the rows before and after a round", spelling, line)
    if names is None:
        given = until(before[0], after[0])
    else:
        given = until(*[dict(zip(names, each, strict=True)) for each in (before, after)])
    if not isinstance(given, Rows):
        raise PlanError(
            "plan.until",
            f"cannot iterate until {function_name(until)} ({line}): it gave {type_in_words(given)}, not a collection",
            hint="give the rows that still change: the loop ends when there are none",
            line=line,
        )
    return given


def _on_arrays(
    closed: Sequence[ClosedVariable], results: Sequence[Any], way: Way, stop: LoopEnd, at_loop: str
) -> list[Shortcut]:
    """The ways to run the loop on arrays."""
    if way.at is not None:
        raise NoShape("rows enter it by priority")
    if len(closed) > 1:
        raise NoShape("it makes several collections")
    if stop.proceed is not None:
        raise NoShape("it ends when rows that its program gives are none")
    start, inside = closed[0].variable.start, closed[0].variable.inside
    try:
        if way.rounds is not None:
            raise NoShape("it has a number of rounds", is_other=True)
        if stop.closeness is not None or way.maintain == "restart":
            raise NoShape("it runs from its start in each epoch", is_other=True)
        with start._builder.whole_or_not():
            shape = spread_of_body(start, inside, results[0])
            return on_arrays(shape, way.patience, at_loop, way.spread_over)
    except NoShape as reason:
        no_spread = reason
    try:
        pull = pull_of_body(start, inside, closed[0].given)
        restarts = stop.closeness is not None or way.maintain == "restart"
        if way.mode == "auto" and not pull.adds_up and not restarts:
            # Sums change everywhere in every round, so a loop that runs them all again is faster, as a rule. The
            # least or greatest of few rounds changes in few places.
            raise NoShape("its rounds add nothing up, and a change may reach few of its rows")
        if way.spread_over == "all":
            raise NoShape("its rounds add up or run again from the start, on one worker")
        pulled = pull_on_arrays(pull, way.rounds, way.patience, at_loop, stop.closeness)
        return [Shortcut(pulled._port)]
    except NoShape as no_pull:
        raise (no_pull if no_spread.is_other else no_spread) from None


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
