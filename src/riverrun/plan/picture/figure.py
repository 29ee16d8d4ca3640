"""A figure: what a drawing of a plan shows. Boxes, arrows between them, and what is said of them.

A plan has more nodes than a person wants to look at, so some are drawn as something else:

- a chain of linear operators is one box, since it is one pass over the rows (`fused`);
- an exchange is an arrow: rows travel between workers along it;
- the nodes with which every loop starts (rows of the first round, then what came back) are one box.

Laws: every node is in one box or on the arrows that pass it; an arrow connects boxes whose nodes are
connected in the plan; what goes back to the start of a loop, and only that, is marked `returns`.
Everything here depends on the plan alone, so a drawing of the same program is the same text.

>>> import pyarrow as pa
>>> from riverrun.operators.sources import Input
>>> from riverrun.operators.linear import Negate
>>> from riverrun.plan.plan import PlanBuilder
>>> builder, columns = PlanBuilder("stock"), pa.schema({"item": pa.string()})
>>> items = builder.add(Input("items"), [], [columns], name="items")
>>> twice = builder.add(Negate(), [builder.add(Negate(), [items], [columns])], [columns])
>>> [[node.name for node in box.nodes] for box in Figure(builder.build()).boxes]
[['items'], ['negate-1', 'negate-2']]

Cost: linear in nodes and edges; `in_order` adds a logarithm.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from riverrun.plan.operator import Role
from riverrun.plan.plan import Node, Plan, Port, Scope

_START = (Role.FEEDBACK, Role.DELAY, Role.NEGATE, Role.CONCAT)  # with which `iterate` starts a loop


@dataclass(frozen=True, eq=False)
class Box:
    """Nodes that are drawn as one. `role` says how."""

    number: int
    nodes: tuple[Node, ...]
    role: str
    """input, output, state, round (the start of a loop), enter, leave, linear, or other."""

    @property
    def scope(self) -> Scope:
        return self.nodes[-1].scope

    @property
    def steps(self) -> list[str]:
        """What is done in it, step by step, for people."""
        if self.role == "round" and len(self.nodes) > 1:
            rest = self.nodes[len(_START) :]
            return ["what entered, then what came back", *map(told, rest)]
        return [told(node) for node in self.nodes]


@dataclass(frozen=True)
class Arrow:
    """From a box to a box, and the exchanges that rows pass on it."""

    source: int
    target: int
    exchanges: tuple[Node, ...] = ()
    returns: bool = False
    """Whether it goes back to the start of a loop."""
    reads: bool = False
    """Whether the target reads the source's arrangement, rather than take changes from it."""


@dataclass(frozen=True, eq=False)
class Figure:
    """What a plan looks like."""

    plan: Plan

    @cached_property
    def boxes(self) -> tuple[Box, ...]:
        """The boxes, in the order of the first of their nodes that is in the plan."""
        plan, grouped = self.plan, dict[int, list[Node]]()
        for chain in fused(plan, crossing=False):
            for node in chain:
                grouped[node.number] = chain
        for chain in [group for node in plan.nodes if (group := self._start_of_loop(node))]:
            tail = grouped.get(chain[-1].number, [chain[-1]])
            whole = chain[:-1] + tail
            for node in whole:
                grouped[node.number] = whole
        made: list[Box] = []
        seen: set[int] = set()
        for node in plan.nodes:
            if node.number in seen or self._is_arrow(node):
                continue
            nodes = grouped.get(node.number, [node])
            seen.update(one.number for one in nodes)
            made.append(Box(len(made), tuple(nodes), _role(nodes)))
        return tuple(made)

    @cached_property
    def arrows(self) -> tuple[Arrow, ...]:
        """The arrows, by target; several between two boxes that say the same are one."""
        at = {node.number: box.number for box in self.boxes for node in box.nodes}
        found: dict[Arrow, None] = {}
        for box in self.boxes:
            inside = {node.number for node in box.nodes}
            for node in box.nodes:
                for input_, port in enumerate(node.inputs):
                    source, exchanges = self._origin(port)
                    returns = node.operator.is_feedback
                    if source.number in inside and not returns:
                        continue
                    reads = node.operator.reads(input_)
                    arrow = Arrow(at[source.number], box.number, exchanges, returns, reads)
                    found[arrow] = None
        return tuple(found)

    @cached_property
    def readers(self) -> dict[int, tuple[Node, ...]]:
        """By number of a node that keeps an arrangement: who reads it, if anybody does."""
        found: dict[int, list[Node]] = {}
        for node in self.plan.nodes:
            if node.operator.reads_arrangements:
                for number in dict.fromkeys(port.node for port in node.inputs):
                    found.setdefault(number, []).append(node)
        return {number: tuple(readers) for number, readers in found.items()}

    def rounds(self, scope: Scope) -> str:
        """How long a loop goes on, for people."""
        limits = [
            node.operator.round_limit
            for node in self.plan.nodes
            if node.scope is scope and node.operator.is_feedback
        ]
        known = [limit for limit in limits if limit is not None]
        if not known or len(known) < len(limits):
            return "until nothing changes"
        return f"at most {max(known)} round{'s' * (max(known) != 1)}"

    def _is_arrow(self, node: Node) -> bool:
        consumers = self.plan.consumers.get(Port(node.number), [])
        return node.operator.role is Role.EXCHANGE and bool(consumers)

    def _origin(self, port: Port) -> tuple[Node, tuple[Node, ...]]:
        """Where rows that leave a port come from, and the exchanges between."""
        passed: list[Node] = []
        node = self.plan.nodes[port.node]
        while self._is_arrow(node):
            passed.append(node)
            node = self.plan.nodes[node.inputs[0].node]
        return node, tuple(reversed(passed))

    def _start_of_loop(self, feedback: Node) -> list[Node]:
        """The nodes that make what a round starts with, if that is what they do.

        That is: what entered, less the same from the next round on, and what came back.
        """
        concat = self._only_consumer(feedback) if feedback.operator.is_feedback else None
        if concat is None:
            return []
        for port in concat.inputs:
            negate = self.plan.nodes[port.node]
            if negate.inputs and self._only_consumer(negate) is concat:
                delay = self.plan.nodes[negate.inputs[0].node]
                start = [feedback, delay, negate, concat]
                if (
                    tuple([node.operator.role for node in start]) == _START
                    and self._only_consumer(delay) is negate
                    and delay.inputs[0] in concat.inputs
                ):
                    return start
        return []

    def _only_consumer(self, node: Node) -> Node | None:
        return _only_consumer(self.plan, node)


def fused(plan: Plan, *, crossing: bool = True) -> list[list[Node]]:
    """The chains of two or more linear operators of one scope: one pass over the rows each.

    Without `crossing`, entering or leaving a loop is no part of a chain.
    """

    def fits(node: Node) -> bool:
        operator = node.operator
        return operator.as_linear is not None and (crossing or operator.steps_out == 0)

    after: dict[int, Node] = {}
    for node in plan.nodes:
        follower = _only_consumer(plan, node)
        if follower is None or follower.scope is not node.scope or len(follower.inputs) > 1:
            continue
        if fits(node) and fits(follower):
            after[node.number] = follower
    followers = {node.number for node in after.values()}
    heads = [n for n in plan.nodes if n.number in after and n.number not in followers]
    return [list(_chain(head, after)) for head in heads]


def _chain(head: Node, after: dict[int, Node]) -> Iterator[Node]:
    yield head
    while head.number in after:
        head = after[head.number]
        yield head


def _only_consumer(plan: Plan, node: Node) -> Node | None:
    """Who takes all that a node gives, if that is one node and one of its inputs."""
    outputs = [Port(node.number, output) for output in range(len(node.schemas))]
    found = [taker for port in outputs for taker, _ in plan.consumers.get(port, [])]
    return found[0] if len(found) == 1 else None


def _consumers(plan: Plan, node: Node) -> list[Node]:
    outputs = [Port(node.number, output) for output in range(len(node.schemas))]
    return list(
        dict.fromkeys(taker for port in outputs for taker, _ in plan.consumers.get(port, []))
    )


def in_order(plan: Plan) -> list[Node]:
    """The nodes in topological order: feedback first in its loop, loops and fused chains in one piece.

    Among those that could come next, one of the same loop does, then one of a loop inside, then the
    one that was written first. A loop is in one piece unless something outside lies between two
    parts of it.
    """
    after = {
        chain[at].number: chain[at + 1] for chain in fused(plan) for at in range(len(chain) - 1)
    }
    missing = {
        node.number: 0 if node.operator.is_feedback else len({port.node for port in node.inputs})
        for node in plan.nodes
    }
    ready: dict[int, list[int]] = {scope.number: [] for scope in plan.scopes}
    for node in plan.nodes:
        if not missing[node.number]:
            ready[node.scope.number].append(node.number)
    order: list[Node] = []
    scope = plan.scopes[0]
    while len(order) < len(plan.nodes):
        waiting = [one for one in plan.scopes if ready[one.number]]

        def nearness(one: Scope, here: Scope = scope) -> tuple[bool, bool, int, int]:
            inside = one.is_inside(here)
            return (
                one is not here,
                not inside,
                one.depth * (1 if inside else -1),
                ready[one.number][0],
            )

        chosen: Node | None = plan.nodes[heapq.heappop(ready[min(waiting, key=nearness).number])]
        while chosen is not None:
            order.append(chosen)
            scope = chosen.scope
            follower = after.get(chosen.number)
            for taker in _consumers(plan, chosen):
                if not taker.operator.is_feedback:
                    missing[taker.number] -= 1
                    if not missing[taker.number] and taker is not follower:
                        heapq.heappush(ready[taker.scope.number], taker.number)
            chosen = follower
    return order


def _role(nodes: list[Node]) -> str:
    operator = nodes[0].operator
    if operator.is_feedback:
        return "round"
    if operator.steps_out:
        return "enter" if operator.steps_out < 0 else "leave"
    if operator.role.is_source:
        return "input"
    if operator.role is Role.OUTPUT:
        return "output"
    if operator.keeps_state:
        return "state"
    return "other" if operator.as_linear is None else "linear"


def one_line(text: str, length: int | None = None) -> str:
    """Text of the user's that is safe to show: no line breaks, no control characters, not too long.

    >>> one_line("a\\n  b\\x00", 80), one_line("strawberries", 6)
    ('a b�', 'straw…')
    """
    joined = " ".join(text.split())
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in joined)
    if length is not None and len(shown) > length:
        return shown[: length - 1].rstrip() + "…"
    return shown


def place_of(node: Node) -> str:
    """The file and line a node was written in."""
    return one_line(node.line.partition(": ")[0])


def source_of(node: Node) -> str:
    """What the user wrote there; empty when that is not known."""
    return one_line(node.line.partition(": ")[2])


def short_name(node: Node) -> str:
    """The name of a node inside its loop."""
    return one_line(node.name.removeprefix(node.scope.path))


def told(node: Node) -> str:
    """What a node does, on one line."""
    return one_line(node.operator.describe())
