"""Drafts: a plan while a rewrite changes it.

A rewrite replaces nodes, puts new ones before others, and leaves some out. Meanwhile nodes keep their numbers, and new
nodes have numbers from the end on; `Draft.plan` numbers all nodes anew, in their order. Law:

- **Order.** Nodes stand in the order in which they stood, and a new node where it was put.

>>> from riverrun.plan.plan import PlanBuilder
>>> draft = Draft(PlanBuilder("nothing").build())
>>> draft.plan().nodes
()
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from riverrun.plan.plan import Node, Plan, Port, Reason, Scope


class Draft:
    """A plan that is being changed."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.nodes = {node.number: node for node in plan.nodes}
        """The nodes by their number in the draft."""
        self._before: dict[int, list[int]] = {}
        """The new nodes that were put before a node."""
        self._takers: dict[int, dict[int, None]] = {}
        """The nodes that take from a node, in the order in which they came to do so."""
        for node in plan.nodes:
            self._take(node)
        self._next = len(plan.nodes)
        self._names = {node.name for node in plan.nodes}
        if plan.written is not None:
            self._names.update(node.name for node in plan.written.nodes)
        self._numbers: dict[str, int] = {}
        self._reasons = list(plan.reasons)

    def put(self, node: Node) -> None:
        """Put a node in the place of the node with its number."""
        self._let_go(self.nodes[node.number])
        self.nodes[node.number] = node
        self._take(node)

    def put_before(self, number: int, node: Node) -> Port:
        """Put a new node before another one, and return its first output."""
        new, self._next = self._next, self._next + 1
        self.nodes[new] = replace(node, number=new)
        self._take(self.nodes[new])
        self._before.setdefault(number, []).append(new)
        return Port(new)

    def free_name(self, scope: Scope, kind: str) -> str:
        """A name of the form ``kind-number``, inside a scope, that no node has."""
        prefix = f"{scope.path}{kind}"
        number = self._numbers.get(prefix, 0) + 1
        while f"{prefix}-{number}" in self._names:
            number += 1
        self._numbers[prefix] = number
        self._names.add(f"{prefix}-{number}")
        return f"{prefix}-{number}"

    def takers(self, port: Port) -> list[tuple[Node, int]]:
        """The nodes that take from an output, each with the index of the input that does."""
        return [
            (self.nodes[number], at)
            for number in self._takers.get(port.node, ())
            for at, each in enumerate(self.nodes[number].inputs)
            if each == port
        ]

    def leave_out(self, number: int) -> None:
        """Leave a node out if no other node takes from it, and then those before it from which no other takes."""
        waiting = [number]
        while waiting:
            node = self.nodes.get(waiting.pop())
            if node is None or self._takers.get(node.number):
                continue
            operator = node.operator
            if operator.public_name or operator.passes_all or operator.is_users:
                continue
            self._let_go(node)
            del self.nodes[node.number]
            waiting += [port.node for port in node.inputs]

    def _take(self, node: Node) -> None:
        for port in node.inputs:
            self._takers.setdefault(port.node, {})[node.number] = None

    def _let_go(self, node: Node) -> None:
        for port in node.inputs:
            self._takers[port.node].pop(node.number, None)

    def say(self, reason: Reason) -> None:
        """Note why the plan is changed."""
        self._reasons.append(reason)

    def plan(self) -> Plan:
        """The plan as it is now. Who changed it has said why."""
        if not self._before and len(self.nodes) == len(self._plan.nodes):
            if len(self._reasons) == len(self._plan.reasons):
                return self._plan
            nodes = tuple([self.nodes[number] for number in range(len(self.nodes))])
            return replace(self._plan, nodes=nodes, reasons=_gathered(self._reasons))
        order = []
        for node in self._plan.nodes:
            order += [new for new in self._before.get(node.number, ()) if new in self.nodes]
            if node.number in self.nodes:
                order.append(node.number)
        places = {number: at for at, number in enumerate(order)}
        nodes = tuple([_moved(self.nodes[number], places) for number in order])
        return replace(self._plan, nodes=nodes, reasons=_gathered(self._reasons))


def _moved(node: Node, places: Mapping[int, int]) -> Node:
    inputs = tuple([Port(places[port.node], port.output) for port in node.inputs])
    operator = node.operator.renumbered(places)
    return replace(node, number=places[node.number], operator=operator, inputs=inputs)


def _gathered(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """The reasons, those with the same words as one."""
    together: dict[tuple[str, str, str], Reason] = {}
    for reason in reasons:
        words = (reason.kind, reason.text, reason.instead)
        known = together.get(words)
        nodes = reason.nodes if known is None else (*known.nodes, *reason.nodes)
        together[words] = replace(reason, nodes=nodes)
    return tuple(together.values())
