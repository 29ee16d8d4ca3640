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

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from riverrun.engine.operator import Operator
from riverrun.engine.operators.arrange import Consolidate
from riverrun.engine.operators.linear import PATIENCE, Delay, Feedback, Leave, Negate
from riverrun.engine.plan import Node, Scope
from riverrun.errors import PlanError, users_line
from riverrun.frontends.collection import Collection
from riverrun.frontends.expressions import compile_columns
from riverrun.frontends.given import check_callable, is_count, kind_told


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
    if passes_no_state(builder.nodes, result._port.node, back._port.node):
        # Nothing on the way adds up what cancels, and it would go around for ever. What cancels may lie on
        # different workers: a row where the loop's variable has it, its negation where a group is.
        result = result._added_up_by_row()
    builder.close(back._port, result._port)
    port = builder.add(Leave(), [result._port], [schema], scope=start.scope)
    return Collection(builder, port)


def passes_no_state(
    nodes: Sequence[Node], end: int, start: int, passed: tuple[type[Operator], ...] = ()
) -> bool:
    """Whether a way from node `start` to node `end` meets nothing that adds changes up, nor what is `passed` over."""
    seen, waiting, loop = {end}, [end], nodes[start].scope
    while waiting:
        number = waiting.pop()
        if number == start:
            return True
        operator = nodes[number].operator
        if operator.adds_up or isinstance(operator, (Consolidate, *passed)):
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
        if isinstance(node.operator, Negate) or node.operator.adds_up:
            return True
        sources = {port.node for port in node.inputs if nodes[port.node].scope.is_inside(loop)}
        waiting += sources - seen
        seen |= sources
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
