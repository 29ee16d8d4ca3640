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

from riverrun.engine.operators.arrange import Consolidate
from riverrun.engine.operators.linear import PATIENCE, Delay, Feedback, Leave
from riverrun.engine.plan import Node
from riverrun.errors import PlanError, users_line
from riverrun.frontends.collection import Collection
from riverrun.frontends.expressions import compile_columns
from riverrun.frontends.given import check_callable, function_name, is_count, kind_told


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
    schema = pa.schema([field.with_nullable(True) for field in start.schema])
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
    rounds = None
    if at is not None:
        rounds = compile_columns(
            schema, {"round": at}, f"let the rows of {start._name} into a loop"
        )
        if not pa.types.is_integer(rounds.schema.field(0).type):
            raise PlanError(
                "plan.type",
                f"cannot enter a loop at {at} ({line}): it is {rounds.schema.field(0).type}, not a whole number",
                hint="cast it: .cast(pl.Int64)",
            )
    with builder.whole_or_not():
        return _closed(start, body, schema, limit, rounds, name, patience, line)


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
    schema: pa.Schema,
    limit: int | None,
    rounds: Any,
    name: str | None,
    patience: int,
    line: str,
) -> Collection:
    """The loop, once all that was asked for makes sense."""
    builder = start._builder
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
            f"cannot iterate ({line}): the body gave {kind_told(result)}, not a collection, so nothing leads "
            "to the next round",
            hint="return the collection that the next round starts with",
            line=line,
        )
    if not loop.is_inside(result.scope) or result.columns != start.columns:
        if sorted(result.columns) != sorted(start.columns):
            raise _other_columns(start, result, line)
        result = result.select(*start.columns)
    if [f.type for f in result.schema] != [f.type for f in schema]:
        raise _other_columns(start, result, line)
    result = result._into(loop)
    if _passes_no_state(builder.nodes, result._port.node, back._port.node):
        # Nothing on the way adds up what cancels, and it would go around for ever.
        result = result._add(Consolidate(), [result], schema)
    builder.close(back._port, result._port)
    port = builder.add(Leave(), [result._port], [schema], scope=start.scope)
    return Collection(builder, port)


def _passes_no_state(nodes: Sequence[Node], end: int, start: int) -> bool:
    """Whether a way from node `start` to node `end` meets nothing that adds changes up."""
    seen, waiting = {end}, [end]
    while waiting:
        number = waiting.pop()
        if number == start:
            return True
        operator = nodes[number].operator
        if operator.adds_up or isinstance(operator, Consolidate):
            continue
        fresh = {port.node for port in nodes[number].inputs} - seen
        seen |= fresh
        waiting += fresh
    return False


def _other_columns(start: Collection, result: Collection, line: str) -> PlanError:
    def told(collection: Collection) -> str:
        return ", ".join(f"{field.name}: {field.type}" for field in collection.schema)

    return PlanError(
        "plan.columns_differ",
        f"cannot iterate ({line}): the loop starts with {told(start)} and its body gives {told(result)}",
        hint="select the same columns, of the same types, at the end of the body",
        line=line,
    )
