"""Placements: on which worker the rows of a plan lie, as far as the plan itself says so.

The rows of an output are *placed by a key* when each lies on the worker that owns the hash of some of its columns: the
key. A *placement* is the set of keys by which an output is placed: none (``set()``), some, or, where no row ever comes,
all of them (`None`). The engine asks which exchanges move nothing (`staying`); `plan.diff` asks from which workers rows
came, when it plans how states are rebuilt (`placements`). Laws:

- **Placement.** What `placements` says of an output holds for every row that leaves the output, on every worker, at
  every time, while the exchanges in `staying` are left out.
- **Left out.** An exchange may be left out when its input is placed by every key by which its output is said to be
  placed, and by one key at least. What the nodes behind the exchange rely on then holds for the rows that come to it.
- **Equal rows meet.** Behind an exchange by row (``Exchange("row")``) equal rows lie on one worker. An exchange by row
  either *passes* rows on, and its output has the placement of its input, some key; or it *moves* rows by all of their
  columns, and is in all respects an exchange by that key.
- **Few moves.** Exchanges by row in one loop are made to move one at a time: the first whose input has no key, then the
  first whose input still has none. So rows that one exchange has placed are not moved again by the next. (After
  `ONE_BY_ONE` exchanges, all that still have to move do so at once.)

Why the law of placement holds. Once it is settled which exchanges by row move, each operator has a rule
(`Operator.placement`): the keys of its output, given those of its inputs. Placements are ordered by inclusion, with
`None` as the greatest. Two things are true of each rule:

- *It is sound*: if the rows that came so far lie as the placements of the inputs say, a row that is made of them lies
  as the rule says. That holds for an exchange that is left out by the law of that name.
- *It is monotone*: fewer keys of an input never give more keys of the output. `None` therefore counts as all keys in
  every rule: a join with a side to which no row comes makes no pair, so its result is placed by all keys as well.

The placements of a loop are the greatest ones that agree with the rules. Every solution of the rules is true, by
induction over the rows in the order in which they are made: before the first row nothing is wrong, and each rule is
sound. The greatest solution says the most. `_settle` finds it from above: all placements start as `None`, and each
step replaces one of them with what its rule gives. By monotony a placement is at no time less than its rule gives, so
each step strikes out keys and none comes back. `None` becomes a finite set once, a finite set loses each key
once: so `_settle` ends.

Which exchanges by row move is settled around that: while one that passes rows on has an input with no key, `_place`
lets it move as well, and settles anew. An exchange that moves does so for good: the keys that its input has may be
there only because it moves (a loop brings its rows back to it). So `_place` ends, after as many turns as there are
exchanges by row at most.

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

from riverrun.plan.operator import PlacedInput, Placement
from riverrun.plan.plan import Node, Plan, Port

ONE_BY_ONE = 16


def staying(plan: Plan) -> frozenset[int]:
    """The exchanges to which every row comes on the worker where it belongs: its input is split by the same key.

    The result of a group is where the group is, and a pair is where its two rows are. So a loop whose rows pass a group
    and are then joined by the group's key has one exchange less, and one hop less in each round.
    """
    placed = placements(plan)
    return frozenset(node.number for node in plan.nodes if _may_be_left_out(node, placed))


def placements(plan: Plan) -> dict[Port, Placement]:
    """For each output the keys by which its rows are placed: lists of columns."""
    placed: dict[Port, Placement] = {}
    for together in plan.cycles:
        _place(plan, together, placed)
    return placed


def _place(plan: Plan, together: Collection[int], placed: dict[Port, Placement]) -> None:
    """Find the placements of nodes that lead to each other; the placements of all nodes before them are known."""
    by_row = [at for at in together if _is_by_row(plan.nodes[at])]
    moving: set[int] = set()
    while True:
        _settle(plan, together, placed, moving)
        needed = [
            at for at in by_row if at not in moving and placed[plan.nodes[at].inputs[0]] == set()
        ]
        if not needed:
            return
        moving.update(needed[:1] if len(moving) < ONE_BY_ONE else needed)


def _settle(
    plan: Plan, together: Collection[int], placed: dict[Port, Placement], moving: set[int]
) -> None:
    """Strike out keys until all placements agree with the rules; exchanges by row move where they are `moving`."""
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
    exchange = node.operator.as_exchange
    return exchange is not None and exchange.may_pass


def _may_be_left_out(node: Node, placed: Mapping[Port, Placement]) -> bool:
    """Whether a node is an exchange that moves nothing (the law "left out")."""
    exchange = node.operator.as_exchange
    if exchange is None or not exchange.goes_by_content:
        return False
    came, promised = placed[node.inputs[0]], placed[Port(node.number)]
    if came is None:
        return True
    return promised is not None and bool(came) and promised <= came


def _placed(
    plan: Plan, node: Node, placed: Mapping[Port, Placement], moving: Collection[int]
) -> Placement:
    """The rule of a node: by which keys its first output is placed, given those of its inputs. Sound and monotone."""
    if node.number not in moving and _is_by_row(node):
        return placed[node.inputs[0]]
    if not node.schemas:
        return set()
    inputs = [
        PlacedInput(placed[port], plan.nodes[port.node].schemas[port.output])
        for port in node.inputs
    ]
    return node.operator.placement(inputs, node.schemas[0])
