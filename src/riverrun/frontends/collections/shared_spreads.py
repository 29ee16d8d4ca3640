"""Shared spreads: the nodes of a loop in which a best value spreads on all workers.

`shapes` calls `on_all_workers` for a loop whose shape it has found. The nodes are those of
`operators.iterations.shared_spread`: two small loops, one for what is lost and one for what is sent on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from riverrun.operators.iterations.shared_spread import (
    LETTERS,
    NEVER,
    SIGN,
    SIGNS,
    BringBack,
    FindLosses,
    GiveValues,
    Post,
    SendValues,
    Stage,
    letter_schema,
)
from riverrun.operators.iterations.spread import SpreadLoop
from riverrun.operators.linear import Concat
from riverrun.operators.loops import Enter, Feedback, Leave
from riverrun.plan.operator import Operator
from riverrun.plan.plan import PlanBuilder, Port, Scope

if TYPE_CHECKING:
    from riverrun.frontends.collection import Collection


def on_all_workers(
    loop: SpreadLoop, sides: list[Collection], result: pa.Schema, name: str
) -> tuple[Collection, tuple[Scope, ...]]:
    """The result of a loop whose inputs are `sides`, with the key at the front of their columns; and the loops that
    its nodes are in. `name` is that of the loop."""
    solution = sides[1]
    builder, scope = solution._builder, solution.scope
    arranged = [side._arranged(tuple(side.columns[: loop.key]))._port for side in sides]
    letters = letter_schema(list(result)[: loop.key])
    stage = builder.add(Stage(loop), arranged, [letters, SIGN], scope=scope)
    number = stage.node
    before = len(builder.scopes)
    lost = _loop(builder, scope, f"{name}:losses", stage, letters, lambda: FindLosses(number))
    turn = builder.add(BringBack(number), [Port(number, SIGNS), lost], [letters, SIGN], scope=scope)
    spread = _loop(
        builder, scope, f"{name}:spread", turn, letters, lambda: SendValues(number, loop.supersteps)
    )
    settled = builder.add(
        GiveValues(number, loop), [Port(turn.node, SIGNS), spread], [result], scope=scope, name=f"{name}:shared"
    )  # fmt: skip
    return solution._at(settled), tuple(builder.scopes[before:])


def _loop(
    builder: PlanBuilder,
    scope: Scope,
    name: str,
    source: Port,
    letters: pa.Schema,
    operator: Callable[[], Operator],
) -> Port:
    """A loop around one node, which letters of `source` enter; where its signs leave it."""
    loop = builder.loop(scope, name)
    entered = builder.add(Enter(), [Port(source.node, LETTERS)], [letters], scope=loop)
    back = builder.add(Feedback(None, NEVER), [], [letters], scope=loop)
    node = builder.add(operator(), [back], [letters, SIGN], scope=loop)
    both = builder.add(Concat(), [entered, Port(node.node, LETTERS)], [letters], scope=loop)
    posted = builder.add(Post(len(letters) - 3), [both], [letters], scope=loop)
    builder.close(back, posted)
    return builder.add(Leave(), [Port(node.node, SIGNS)], [SIGN], scope=scope)
