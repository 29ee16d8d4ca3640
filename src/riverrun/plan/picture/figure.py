"""A figure: the content of a drawing of a plan. It has boxes, arrows between boxes, and texts for both.

`svg` and `dot` draw it. `plan.explain`, which writes a line for each node, takes from here the order of the lines
(`in_order`), the chains of nodes that are one pass (`fused`), and texts. A plan has more nodes than a person wants to
look at, so in a figure some share a box or have none:

- a chain of linear operators is one box, since it is one pass over the rows;
- an exchange is an arrow: rows travel between workers along it;
- the nodes with which every loop starts (rows of the first round, then rows that came back) are one box.

Laws:

- **Each node once.** Every node is in one box, or on the arrows that pass it.
- **Arrows are edges.** An arrow connects boxes whose nodes are connected in the plan.
- **Returns.** The arrows back to the start of a loop, and no others, are marked `returns`.
- **Same program, same figure.** Everything here depends on the plan alone.

>>> import pyarrow as pa
>>> from riverrun.operators.sources import Input
>>> from riverrun.operators.linear import Negate
>>> from riverrun.plan.plan import PlanBuilder
>>> builder, columns = PlanBuilder("stock"), pa.schema({"item": pa.string()})
>>> items = builder.add(Input("items"), [], [columns], name="items")
>>> twice = builder.add(Negate(), [builder.add(Negate(), [items], [columns])], [columns])
>>> [[node.name for node in box.nodes] for box in Figure(builder.build()).boxes]
[['items'], ['negate-1', 'negate-2']]

Cost: linear in nodes and edges; `in_order`, the topological order of the nodes, adds a logarithm.
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
    """Nodes that are drawn as one box. `role` says how."""

    number: int
    nodes: tuple[Node, ...]
    role: str
    """input, output, state, round (the start of a loop), enter, leave, linear, or other."""

    @property
    def scope(self) -> Scope:
        return self.nodes[-1].scope

    @property
    def steps(self) -> list[str]:
        """The steps done in the box, for people."""
        if self.role == "round" and len(self.nodes) > 1:
            rest = self.nodes[len(_START) :]
            return ["what entered, then what came back", *map(description_of, rest)]
        return [description_of(node) for node in self.nodes]


@dataclass(frozen=True)
class Arrow:
    """An arrow from box to box, with the exchanges that rows pass on the way."""

    source: int
    target: int
    exchanges: tuple[Node, ...] = ()
    returns: bool = False
    """Whether the arrow goes back to the start of a loop."""
    reads: bool = False
    """Whether the target reads the arrangement of the source, rather than takes changes."""


@dataclass(frozen=True, eq=False)
class Figure:
    """The boxes and arrows of a plan."""

    plan: Plan

    @cached_property
    def boxes(self) -> tuple[Box, ...]:
        """The boxes, in the order in which their first nodes stand in the plan."""
        plan, grouped = self.plan, dict[int, list[Node]]()
        for chain in fused(plan, crossing=False):
            for node in chain:
                grouped[node.number] = chain
        for chain in [group for node in plan.nodes if (group := self._start_of_loop(node))]:
            tail = grouped.get(chain[-1].number, [chain[-1]])
            whole = chain[:-1] + tail
            for node in whole:
                grouped[node.number] = whole
        boxes: list[Box] = []
        seen: set[int] = set()
        for node in plan.nodes:
            if node.number in seen or self._is_arrow(node):
                continue
            nodes = grouped.get(node.number, [node])
            seen.update(one.number for one in nodes)
            boxes.append(Box(len(boxes), tuple(nodes), _role(nodes)))
        return tuple(boxes)

    @cached_property
    def arrows(self) -> tuple[Arrow, ...]:
        """The arrows, in the order of their targets. Equal arrows are one."""
        at = {node.number: box.number for box in self.boxes for node in box.nodes}
        arrows: dict[Arrow, None] = {}
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
                    arrows[arrow] = None
        return tuple(arrows)

    @cached_property
    def readers(self) -> dict[int, tuple[Node, ...]]:
        """For each node whose arrangement is read, by number: the nodes that read it."""
        nodes_by_source: dict[int, list[Node]] = {}
        for node in self.plan.nodes:
            if node.operator.reads_arrangements:
                for number in dict.fromkeys(port.node for port in node.inputs):
                    nodes_by_source.setdefault(number, []).append(node)
        return {number: tuple(readers) for number, readers in nodes_by_source.items()}

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
        """The nodes that make the rows with which a round starts; none where the feedback is used in another way.

        These rows are: rows that entered, in the first round only, and rows that came back.
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
    """The only consumer of `node`; None where several nodes take its output, or one node at several inputs."""
    outputs = [Port(node.number, output) for output in range(len(node.schemas))]
    takers = [taker for port in outputs for taker, _ in plan.consumers.get(port, [])]
    return takers[0] if len(takers) == 1 else None


def _consumers(plan: Plan, node: Node) -> list[Node]:
    outputs = [Port(node.number, output) for output in range(len(node.schemas))]
    return list(
        dict.fromkeys(taker for port in outputs for taker, _ in plan.consumers.get(port, []))
    )


def in_order(plan: Plan) -> list[Node]:
    """The nodes in topological order: feedback first in its loop, loops and fused chains in one piece.

    Among the nodes that could come next, nodes of the same loop go first, then nodes of a loop inside, then the node
    that was written first. A loop is in one piece unless nodes outside lie between two of its parts.
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
    """The text of the user's line at which a node was added; empty where it is not known."""
    return one_line(node.line.partition(": ")[2])


def short_name(node: Node) -> str:
    """The name of a node inside its loop."""
    return one_line(node.name.removeprefix(node.scope.path))


def description_of(node: Node) -> str:
    """The work of a node's operator, on one line."""
    return one_line(node.operator.describe())
