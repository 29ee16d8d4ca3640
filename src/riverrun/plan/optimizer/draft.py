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
        self._order = [node.number for node in plan.nodes]
        self.nodes = {node.number: node for node in plan.nodes}
        """The nodes by their number in the draft."""
        self._names = {node.name for node in plan.nodes}
        if plan.written is not None:
            self._names.update(node.name for node in plan.written.nodes)
        self._reasons = list(plan.reasons)

    def put(self, node: Node) -> None:
        """Put a node in the place of the node with its number."""
        self.nodes[node.number] = node

    def put_before(self, number: int, node: Node) -> Port:
        """Put a new node before another one, and return its first output."""
        new = max(self.nodes, default=-1) + 1
        self.nodes[new] = replace(node, number=new)
        self._order.insert(self._order.index(number), new)
        return Port(new)

    def free_name(self, scope: Scope, kind: str) -> str:
        """A name of the form ``kind-number``, inside a scope, that no node has."""
        number = 1
        while f"{scope.path}{kind}-{number}" in self._names:
            number += 1
        name = f"{scope.path}{kind}-{number}"
        self._names.add(name)
        return name

    def takers(self, port: Port) -> list[tuple[Node, int]]:
        """The nodes that take from an output, each with the index of the input that does."""
        return [
            (node, at)
            for node in self.nodes.values()
            for at, each in enumerate(node.inputs)
            if each == port
        ]

    def leave_out(self, number: int) -> None:
        """Leave a node out if no other node takes from it, and then those before it from which no other takes."""
        waiting = [number]
        while waiting:
            node = self.nodes[waiting.pop()]
            kept = node.operator.public_name or node.operator.passes_all or node.operator.is_users
            if kept or any(self.takers(Port(node.number, at)) for at in range(len(node.schemas))):
                continue
            del self.nodes[node.number]
            self._order.remove(node.number)
            waiting += [port.node for port in node.inputs if port.node in self.nodes]

    def say(self, reason: Reason) -> None:
        """Note why the plan is changed."""
        self._reasons.append(reason)

    def plan(self) -> Plan:
        """The plan as it is now."""
        places = {number: at for at, number in enumerate(self._order)}
        nodes = tuple([_moved(self.nodes[number], places) for number in self._order])
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
