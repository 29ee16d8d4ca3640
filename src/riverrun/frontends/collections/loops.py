"""Fixed points: loops inside a dataflow, to any depth.

``start.iterate(body)`` is what the rows come to when ``body`` is applied again and again, from `start`,
until nothing changes any more, or `limit` times. The body is given the collection of the round and
gives that of the next; it may use any collection from outside, which is the same in all rounds.

A change of the input changes few rounds as a rule, and only those are looked at: the loop keeps what
each round changed, not only where it ended, so rows can be deleted too (law 5 of DESIGN).

**Priority.** With ``at``, the loop starts with nothing, and a row of `start` joins it at the round that
an expression gives. The body takes two arguments then: the collection of the round, and the rows of
`start` that have joined by then, which it has to put into its result. Small labels first, for
instance, so that most nodes never hear of a label that will not stay.

**Types.** What the body gives has the columns of `start`. Where it gives narrower types they are widened; where it
gives wider ones, a loop that starts with those is built in place of the first, so the body is called again.

**Rest.** What a body puts in and takes out again adds up to nothing before it goes back, whichever workers the rows
lie on: a loop comes to rest with any number of workers, or with none (law 4 of DESIGN). Rows that lie where their group
is lie beside their equals already; others travel to meet them, which costs an exchange in each round.

**Rounds.** Inside a loop times have one coordinate more. A loop without a limit that still changes after
`patience` rounds is an error that shows rows that do.

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
from typing import Any

import pyarrow as pa

from riverrun.errors import PlanError, users_line
from riverrun.frontends.arguments import check_callable, function_name, is_count, type_in_words
from riverrun.frontends.collections.collection import Collection
from riverrun.frontends.collections.expressions import Projection, compile_columns
from riverrun.frontends.collections.widening import widened
from riverrun.operators.loops import PATIENCE, Delay, Feedback, Leave
from riverrun.plan.plan import Node, Scope
from riverrun.state.types import common_type, share_layout, type_text


def iterate(
    start: Collection,
    body: Callable[..., Collection],
    *,
    limit: int | None = None,
    at: Any = None,
    name: str | None = None,
    patience: int = PATIENCE,
) -> Collection:
    """See the module."""
    builder, line = start._builder, users_line()
    check_callable(body, "iterate")
    _check_arguments(body, 1 if at is None else 2, line)
    if limit is not None and not is_count(limit, 0):
        raise PlanError(
            "plan.limit",
            f"cannot iterate {limit!r} rounds ({line}): a limit is a whole number from 0 on",
            hint="leave it out to go on until nothing changes",
        )
    if not is_count(patience):
        raise PlanError(
            "plan.patience",
            f"cannot iterate with patience={patience!r} ({line}): that is a whole number of rounds from 1 on",
            hint=f"leave it out for {PATIENCE:,} rounds",
        )
    if limit == 0:
        return start
    for _ in range(_WIDENINGS):
        rounds = None if at is None else _rounds(start, at, line)
        try:
            with builder.whole_or_not():
                return _closed(start, body, limit, rounds, name, patience, line)
        except _Wider as wider:
            refusal = wider.refusal
            start = widened(start, wider.kinds)
    raise refusal


_WIDENINGS = 4
"""How often a body may ask for wider columns than it was given, before its types are taken to grow for ever."""


class _Wider(Exception):
    """A body gives wider columns than the loop starts with: it is built again, from a start that has those."""

    def __init__(self, kinds: dict[str, pa.DataType], refusal: PlanError) -> None:
        super().__init__()
        self.kinds = kinds
        self.refusal = refusal


def _rounds(start: Collection, at: Any, line: str) -> Projection:
    """The round at which each row of `start` enters."""
    rounds = compile_columns(
        start.schema, {"round": at}, f"let the rows of {start._name} into a loop"
    )
    kind = rounds.schema.field(0).type
    if not pa.types.is_integer(kind):
        raise PlanError(
            "plan.type",
            f"cannot enter a loop at {at} ({line}): it is {kind}, not a whole number",
            hint="cast it: .cast(pl.Int64)",
        )
    return rounds


def _check_arguments(body: Callable[..., Collection], count: int, line: str) -> None:
    """Refuse a body that cannot be called with what a loop gives it."""
    try:
        inspect.signature(body).bind(*range(count))
    except TypeError:
        given = "the rows of the round" + (" and those that have entered" if count == 2 else "")
        raise PlanError(
            "plan.loop_body",
            f"cannot iterate {function_name(body)} ({line}): it is called with {given}, and does not take "
            f"{'one argument' if count == 1 else 'two arguments'}",
            hint="iterate(lambda rows: ...); with at=, iterate(lambda rows, entered: ..., at=...)",
            line=line,
        ) from None
    except ValueError:  # a builtin, which does not tell
        return


def _closed(
    start: Collection,
    body: Callable[..., Collection],
    limit: int | None,
    rounds: Any,
    name: str | None,
    patience: int,
    line: str,
) -> Collection:
    """The loop, once all that was asked for makes sense."""
    builder = start._builder
    schema = pa.schema([field.with_nullable(True) for field in start.schema])
    loop = builder.loop(start.scope, name)
    entered = start._into(loop, rounds, limit)
    back = Collection(builder, builder.add(Feedback(limit, patience), [], [schema], scope=loop))
    if rounds is not None:
        result = body(back, entered)
    else:
        # The rows of `start` are those of the first round only: from the next on, the body's result.
        delayed = entered._add(Delay(limit), [entered], schema)
        result = body(entered.concat(delayed.negate(), back))
    if not isinstance(result, Collection):
        raise PlanError(
            "plan.loop_open",
            f"cannot iterate ({line}): the body gave {type_in_words(result)}, not a collection, so nothing leads "
            "to the next round",
            hint="return the collection that the next round starts with",
            line=line,
        )
    if not loop.is_inside(result.scope) or result.columns != start.columns:
        if sorted(result.columns) != sorted(start.columns):
            raise _other_columns(start, result, line)
        result = result.select(*start.columns)
    result = widened(result, _kinds_of_next(start, result, line))
    result = result._into(loop)
    if passes_no_state(builder.nodes, result._port.node, back._port.node):
        # Nothing on the way adds up what cancels, and it would go around for ever. What cancels may lie on
        # different workers: a row where the loop's variable has it, its negation where a group is.
        result = result._added_up_by_row()
    builder.close(back._port, result._port)
    port = builder.add(Leave(), [result._port], [schema], scope=start.scope)
    return Collection(builder, port)


def _kinds_of_next(start: Collection, result: Collection, line: str) -> dict[str, pa.DataType]:
    """The types of the next round: those of `start`, where they hold what the body gives."""
    kinds: dict[str, pa.DataType] = {}
    for mine, its in zip(start.schema, result.schema, strict=True):
        kind = common_type(mine.type, its.type)
        if kind is None:
            raise _other_columns(start, result, line)
        kinds[mine.name] = kind
    if not all(share_layout(start.schema.field(name).type, kind) for name, kind in kinds.items()):
        raise _Wider(kinds, _other_columns(start, result, line))
    return kinds


def passes_no_state(nodes: Sequence[Node], end: int, start: int, *, by_hand: bool = False) -> bool:
    """Whether a way from node `start` to node `end` meets nothing that adds changes up; nor, in a loop that is made
    `by_hand`, what a function of the user's sends."""
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
    """Whether a node on a way to `end`, inside `loop`, can give a row with a negative sign for one with a positive."""
    seen, waiting = {end}, [end]
    while waiting:
        node = nodes[waiting.pop()]
        if node.operator.takes_back:
            return True
        sources = {port.node for port in node.inputs if nodes[port.node].scope.is_inside(loop)}
        waiting += sources - seen
        seen |= sources
    return False


def _other_columns(start: Collection, result: Collection, line: str) -> PlanError:
    def told(collection: Collection) -> str:
        return ", ".join(f"{field.name}: {type_text(field.type)}" for field in collection.schema)

    return PlanError(
        "plan.columns_differ",
        f"cannot iterate ({line}): the loop starts with {told(start)} and its body gives {told(result)}",
        hint="select the same columns, of the same types, at the end of the body",
        line=line,
    )
