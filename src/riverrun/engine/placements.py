"""Placements: on which worker the rows of a plan lie, as far as the plan itself says so.

The rows of an output are *placed by a key* when each lies on the worker that owns the hash of some of its columns: the
key. An output may be placed by several keys, or by none (``set()``). Whoever schedules a plan asks which exchanges move
nothing (`staying`), and whoever rebuilds a state asks where rows would have come from. Laws:

- **Placement.** What `placements` says of an output holds for every row that leaves it, on every worker, at every time.
  Around loops it holds by induction over rounds: the analysis begins with all that could be so and strikes out what
  does not follow.
- **Equal rows meet.** Behind an exchange by row (``Exchange("row")``) equal rows lie on one worker. Such an exchange
  moves rows by all of their columns, and only where its input is placed by no key: rows that are placed by any key lie
  beside their equals already.
- **Fewest moves.** Of the exchanges by row in one loop, the first moves, and then those that still need to; so a loop
  whose rows are placed by what another loop did does not move them again (up to `ONE_BY_ONE` of them in a loop).

>>> import polars as pl, riverrun as rr
>>> flow = rr.Dataflow("graph")
>>> edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
>>> degrees = edges.group_by("src").count()
>>> placements(flow._builder.build())[degrees._port]
{(0,)}

Cost: some microseconds for each node outside of loops; for those of a loop, times how often keys are struck out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

import pyarrow as pa

from riverrun.engine.operators.arrange import Arrange, Consolidate
from riverrun.engine.operators.exchange import Exchange
from riverrun.engine.operators.join import Join
from riverrun.engine.operators.linear import (
    Concat,
    Delay,
    Enter,
    Feedback,
    Filter,
    Inspect,
    Leave,
    Negate,
    Probe,
    Project,
)
from riverrun.engine.operators.reduce import Reduce
from riverrun.engine.plan import Node, Plan, Port

Columns = tuple[int, ...]
Placement = set[Columns] | None  # None: nothing is struck out yet
ONE_BY_ONE = 16
_UNMOVED = (
    Arrange, Concat, Consolidate, Delay, Enter, Feedback, Filter, Inspect, Leave, Negate, Probe,
)  # fmt: skip
"""Operators whose results are made of single rows, with the same columns."""


def staying(plan: Plan) -> frozenset[int]:
    """The exchanges that find every row where it belongs: what comes is split by the same key already.

    A group's result is where the group is, and a pair where both rows are; so a loop that goes around
    through a group and is joined by its key has one exchange less, and takes one hop less in each round.
    """
    placed = placements(plan)
    return frozenset(
        node.number
        for node in plan.nodes
        if isinstance(node.operator, Exchange) and _stays(node, placed)
    )


def placements(plan: Plan) -> dict[Port, Placement]:
    """For each output the keys by which its rows are placed: lists of columns."""
    placed: dict[Port, Placement] = {}
    for together in plan.cycles:
        _place(plan, together, placed)
    return placed


def _place(plan: Plan, together: Collection[int], placed: dict[Port, Placement]) -> None:
    """Find the placements of nodes that lead to each other, once those of all that leads to them are known."""
    by_row = [at for at in together if _is_by_row(plan.nodes[at])]
    moving: set[int] = set()
    while True:
        _settle(plan, together, placed, moving)
        needed = [at for at in by_row if at not in moving and not _stays(plan.nodes[at], placed)]
        if not needed:
            return
        moving.update(needed[:1] if len(moving) < ONE_BY_ONE else needed)


def _settle(
    plan: Plan, together: Collection[int], placed: dict[Port, Placement], moving: set[int]
) -> None:
    """Strike out what does not follow, until all of it does; exchanges by row move where they are `moving`."""
    for at in together:
        for output in range(len(plan.nodes[at].schemas)):
            placed[Port(at, output)] = None if output == 0 else set()
    inside = set(together)
    waiting, queued = deque(together), set(together)
    while waiting:
        at = waiting.popleft()
        queued.discard(at)
        keys = _placed(plan, plan.nodes[at], placed, moving)
        port = Port(at)
        if not plan.nodes[at].schemas or keys == placed[port]:
            continue
        placed[port] = keys
        for taker, _ in plan.consumers.get(port, []):
            if taker.number in inside and taker.number not in queued:
                queued.add(taker.number)
                waiting.append(taker.number)


def _is_by_row(node: Node) -> bool:
    return isinstance(node.operator, Exchange) and node.operator.route == "row"


def _stays(node: Node, placed: Mapping[Port, Placement]) -> bool:
    """Whether an exchange finds every row where it belongs."""
    operator = node.operator
    assert isinstance(operator, Exchange)
    if operator.route not in ("key", "row"):
        return False
    keys = placed[node.inputs[0]]
    if operator.route == "row":
        return keys is None or bool(keys)  # None: no row ever comes
    return operator.columns in (keys or ())


def _placed(
    plan: Plan, node: Node, placed: Mapping[Port, Placement], moving: Collection[int]
) -> Placement:
    """The keys by which what a node gives is placed."""
    operator, given = node.operator, [placed.get(port) for port in node.inputs]
    if isinstance(operator, Exchange):
        if operator.route == "row" and node.number not in moving:
            return given[0]
        return {operator.columns} if operator.route in ("key", "row") else set()
    known = [keys for keys in given if keys is not None]
    if isinstance(operator, _UNMOVED):
        return set.intersection(*known) if known else None
    if isinstance(operator, Join):
        positions = [_places(plan.nodes[port.node].schemas[port.output]) for port in node.inputs]
        where = {
            (side, positions[side][name]): at for at, (side, name) in enumerate(operator.columns)
        }
        kept = [
            tuple(where.get((side, column)) for column in key)
            for side, keys in enumerate(given)
            for key in keys or ()
        ]
    elif isinstance(operator, Reduce) and len(known) == len(given):
        places = [_places(plan.nodes[port.node].schemas[port.output]) for port in node.inputs]
        keys = [tuple([each[name] for name in operator.key]) for each in places]
        is_placed = all(key in there for key, there in zip(keys, known, strict=True))
        own = _places(node.schemas[0])
        kept = [tuple([own[name] for name in operator.key])] if is_placed else []
    elif isinstance(operator, Project):
        picked = enumerate(operator.projection.picked)
        origin = {source: at for at, source in reversed(list(picked)) if source is not None}
        kept = [tuple(map(origin.get, key)) for keys in known for key in keys]
    else:
        return set()
    return {tuple(at for at in key if at is not None) for key in kept if None not in key}


def _places(schema: pa.Schema) -> dict[str, int]:
    return {name: at for at, name in enumerate(schema.names)}
