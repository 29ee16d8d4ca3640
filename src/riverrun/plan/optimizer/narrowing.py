"""Narrowing: columns that nobody reads are dropped before rows travel, and before they are kept.

A join keeps all columns of both sides, although the steps behind it often pick a few. Where every reader of an
arrangement says which columns it looks at, the others are dropped before the exchange in front of the arrangement: less
travels, and less is kept. Laws:

- **Same rows.** What a reader gives in the columns that are looked at is the same, as often.
- **Nothing stored.** What a checkpoint keeps of a join serves a program that was changed to pick other columns; a
  narrowed state would not. So only plans of runs without a checkpoint path are narrowed (`run.run`).

A key, and the columns by which rows are ordered within a key, stay.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import pyarrow as pa

from riverrun.plan.operator import Exchanging, Linear
from riverrun.plan.optimizer.draft import Draft
from riverrun.plan.plan import Node, Plan, Port, Reason


def narrowed(plan: Plan) -> Plan:
    """The plan in which arrangements have no columns that nobody reads."""
    draft = Draft(plan)
    for node in plan.nodes:
        narrowing = _narrowing(plan, node)
        if narrowing is not None:
            _narrow(draft, narrowing)
    return draft.plan()


@dataclass(frozen=True, slots=True)
class _Narrowing:
    """An arrangement with columns that nobody reads."""

    exchange: Node
    index: Node
    seen_by: tuple[Node, ...]
    """Nodes by which loops see the arrangement, which have its columns."""
    positions: tuple[int, ...]
    """The columns that stay."""
    pick: Linear
    exchange_of_picked: Exchanging


def _narrowing(plan: Plan, index: Node) -> _Narrowing | None:
    """What can be dropped before an arrangement; None for nothing."""
    by = index.operator.arranged_by
    if index.operator.copied_by is None or by is None or index.named:
        return None
    exchange = plan.nodes[index.inputs[0].node]
    by_content = exchange.operator.as_exchange
    if by_content is None or len(plan.consumers[Port(exchange.number)]) > 1:
        return None
    seen_by: list[Node] = []
    read = _columns_read(plan, index, seen_by)
    if read is None:
        return None
    stay = {*by[0], *(order.column for order in by[1]), *read}
    names = index.schemas[0].names
    positions = tuple([at for at, name in enumerate(names) if name in stay]) or (0,)
    made = (
        None if len(positions) == len(names) else by_content.of_picked(positions, index.schemas[0])
    )
    if made is None:
        return None
    return _Narrowing(exchange, index, tuple(seen_by), positions, *made)


def _columns_read(plan: Plan, index: Node, seen_by: list[Node]) -> set[str] | None:
    """The columns of an arrangement that its readers look at; None where one of them does not say."""
    read: set[str] = set()
    for reader, at in plan.consumers.get(Port(index.number), []):
        if not reader.operator.reads(at):
            return None
        columns: Collection[str] | None
        if reader.operator.passes_arrangement:
            seen_by.append(reader)
            columns = _columns_read(plan, reader, seen_by)
        else:
            columns = reader.operator.columns_read(at, _columns_taken(plan, reader))
        if columns is None:
            return None
        read.update(columns)
    return read


def _columns_taken(plan: Plan, node: Node) -> set[int] | None:
    """The columns of a node's only output that are looked at; None where a taker looks at all."""
    taken: set[int] = set()
    for taker, at in plan.consumers.get(Port(node.number), []):
        linear = taker.operator.as_linear
        used = None if linear is None or taker.operator.reads(at) else linear.used
        if used is None:
            return None
        taken.update(used)
    return taken


def _narrow(draft: Draft, narrowing: _Narrowing) -> None:
    """Pick the columns that stay, before the exchange."""
    exchange, index = draft.nodes[narrowing.exchange.number], draft.nodes[narrowing.index.number]
    columns = index.schemas[0]
    fewer = (pa.schema([columns.field(at) for at in narrowing.positions]),)
    name = draft.free_name(exchange.scope, narrowing.pick.kind)
    picked = replace(exchange, name=name, operator=narrowing.pick, schemas=fewer)
    port = draft.put_before(exchange.number, picked)
    draft.put(
        replace(exchange, operator=narrowing.exchange_of_picked, inputs=(port,), schemas=fewer)
    )
    for node in (index, *(draft.nodes[each.number] for each in narrowing.seen_by)):
        draft.put(replace(node, schemas=fewer))
    dropped = len(columns) - len(narrowing.positions)
    more = f"{dropped} column{'s' * (dropped > 1)} more"
    draft.say(
        Reason(
            "narrowed",
            (index.name,),
            f"keeps {', '.join(fewer[0].names)}: what else there is, nobody reads",
            f"{more}, as in a run with a checkpoint path, which may go on with other columns",
        )
    )
