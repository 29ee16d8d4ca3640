"""A plan: what a program is, before anything runs. Nodes, edges between them, scopes around them.

Every front end builds one, and the engine knows nothing else of a program. A node holds an
*operator* (`operator.Operator`): what is done with the rows that arrive. It has one output for each
list of columns in `schemas`, and stands in a *scope*: the root, or a loop inside another scope. The
times at a node have one coordinate for the epoch and one for each loop around it.

Laws:

1. An edge connects nodes of one scope. A loop is entered, gone around and left through nodes that do
   just that (``Enter``, ``Feedback``, ``Leave``).
2. Every cycle goes through the feedback of a loop that all of it is in, so no row comes back at or
   before the time at which it set out (law 2 of ``progress.topology``).
3. A node that keeps state has a name that is the same whenever the same program is built: a
   checkpoint finds its states by it.

A node is *deterministic* when its result does not depend on how rows were cut and in which order
they arrived (law 4 of DESIGN); others are marked, and so is all that lies behind them.

>>> from riverrun.operators.sources import Input
>>> from riverrun.operators.linear import Negate
>>> import pyarrow as pa
>>> builder = PlanBuilder("stock")
>>> columns = pa.schema({"item": pa.string()})
>>> items = builder.add(Input("items"), [], [columns], name="items")
>>> gone = builder.add(Negate(), [items], [columns])
>>> plan = builder.build()
>>> [node.name for node in plan.nodes]
['items', 'negate-1']
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa

from riverrun.errors import PlanError, users_line
from riverrun.plan.identity import Program, walking
from riverrun.plan.operator import Operator, Role
from riverrun.progress import Topology, TopologyBuilder
from riverrun.progress.topology import NodePorts
from riverrun.state.types import type_text

OperatorKind = TypeVar("OperatorKind", bound=Operator)
MANY_ORIGINS = 16
FROM = " <- "
"""In a fingerprint, between what a node is and the names of the nodes it takes from: in no name is such a sign."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The root, or a loop. `depth` is how many coordinates times have here."""

    number: int
    name: str
    parent: Scope | None = None

    depth: int = field(init=False, compare=False, repr=False)
    path: str = field(init=False, compare=False, repr=False)
    """The names of the loops around it and its own, each with a slash behind it; empty for the root."""

    def __post_init__(self) -> None:
        parent = self.parent
        object.__setattr__(self, "depth", 1 if parent is None else parent.depth + 1)
        object.__setattr__(self, "path", "" if parent is None else f"{parent.path}{self.name}/")

    def is_inside(self, other: Scope) -> bool:
        """Whether this is `other`, or a loop in it."""
        scope: Scope | None = self
        while scope is not None and scope.depth >= other.depth:
            if scope.number == other.number:
                return True
            scope = scope.parent
        return False


@dataclass(frozen=True, slots=True)
class Port:
    """An output of a node: where an edge starts."""

    node: int
    output: int = 0


@dataclass(frozen=True, eq=False)
class Node:
    """One step of a program, and the line of the program it was written in."""

    number: int
    name: str
    operator: Operator
    scope: Scope
    inputs: tuple[Port, ...]
    schemas: tuple[pa.Schema, ...]
    line: str
    named: bool = True
    """Whether its name was given, or made of what it does and a number."""

    @property
    def depth(self) -> int:
        """How many coordinates the times of what it gives have."""
        return self.scope.depth

    def __repr__(self) -> str:
        return f"<Node {self.name!r}: {self.operator.describe()}>"


@dataclass(frozen=True, eq=False)
class Plan:
    """A whole program. Build it with `PlanBuilder`."""

    name: str
    nodes: tuple[Node, ...]
    scopes: tuple[Scope, ...]

    @cached_property
    def consumers(self) -> dict[Port, list[tuple[Node, int]]]:
        """Who takes what an output gives, and as which of its inputs."""
        found: dict[Port, list[tuple[Node, int]]] = {}
        for node in self.nodes:
            for at, port in enumerate(node.inputs):
                found.setdefault(port, []).append((node, at))
        return found

    @cached_property
    def inputs(self) -> dict[str, Node]:
        """The nodes at which rows are put in, by what people call the input."""
        return self._public(Role.INPUT)

    @cached_property
    def outputs(self) -> dict[str, Node]:
        """The nodes whose results can be read, by what people call the output."""
        return self._public(Role.OUTPUT)

    @cached_property
    def probes(self) -> dict[str, Node]:
        """The nodes at which one can ask which times can still come, by what people call the probe."""
        return self._public(Role.PROBE)

    def _public(self, role: Role) -> dict[str, Node]:
        found = [node for node in self.nodes if node.operator.role is role]
        return {node.operator.public_name: node for node in found}

    @cached_property
    def clock(self) -> Node | None:
        """The node that gives a row for each epoch, if there is one."""
        found = [node for node in self.nodes if node.operator.role is Role.CLOCK]
        return found[0] if found else None

    @cached_property
    def by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @property
    def ports(self) -> tuple[NodePorts | None, ...]:
        """Where each node is in `topology`, in the order of nodes; None where time just passes."""
        return self._built[1]

    @property
    def topology(self) -> Topology:
        """The plan as progress tracking sees it; building it checks law 2."""
        return self._built[0]

    @cached_property
    def _built(self) -> tuple[Topology, tuple[NodePorts | None, ...]]:
        builder = TopologyBuilder()
        ports: list[NodePorts | None] = []
        for node in self.nodes:
            if not self._is_tracked(node):
                ports.append(None)
                continue
            depths = [self._input_depth(node) for _ in node.inputs]
            summary = node.operator.summary(depths[0]) if depths else None
            pairs = [(i, o) for i in range(len(depths)) for o in range(len(node.schemas))]
            ports.append(
                builder.node(
                    node.name,
                    inputs=depths,
                    outputs=[node.depth] * len(node.schemas),
                    summaries={} if summary is None else dict.fromkeys(pairs, summary),
                )
            )
        for node in self.nodes:
            here = ports[node.number]
            if here is not None:
                for at, port in enumerate(node.inputs):
                    for source in self.origins(port):
                        there = ports[source.node]
                        assert there is not None
                        builder.edge(there.outputs[source.output], here.inputs[at])
        return builder.build(), tuple(ports)

    def origins(self, port: Port) -> frozenset[Port]:
        """The tracked outputs from which what leaves `port` comes, through nodes that time just passes."""
        found = self._origins.get(port.node)
        return frozenset({port}) if found is None else found

    def _is_tracked(self, node: Node) -> bool:
        """Whether progress is tracked at a node: as its operator says, or since very many ways meet at it."""
        return node.number not in self._origins

    @cached_property
    def _origins(self) -> dict[int, frozenset[Port]]:
        """Of each node that is not tracked, where what it gives comes from.

        A node at which the ways from more than `MANY_ORIGINS` outputs meet is tracked: otherwise each of them
        would be an arc to each place that the rows go to from there, which is the square of the plan's size.
        """
        found: dict[int, frozenset[Port]] = {}
        tracked = {node.number for node in self.nodes if node.operator.tracked}
        for node in self.nodes:
            waiting = [node.number]
            while waiting:
                at = waiting[-1]
                sources = () if at in tracked or at in found else self.nodes[at].inputs
                missing = [p.node for p in sources if p.node not in tracked and p.node not in found]
                if missing:
                    waiting += missing
                    continue
                waiting.pop()
                if at in tracked or at in found:
                    continue
                each = {found[p.node] if p.node in found else frozenset({p}) for p in sources}
                whole = each.pop() if len(each) == 1 else frozenset[Port]().union(*each)
                if len(whole) > MANY_ORIGINS and self.nodes[at].operator.may_be_tracked:
                    tracked.add(at)
                else:
                    found[at] = whole
        return found

    @cached_property
    def sources(self) -> list[int]:
        """The ports of `topology` at which rows come in."""
        return [
            ports.outputs[0]
            for node, ports in zip(self.nodes, self.ports, strict=True)
            if ports is not None and not node.inputs and not node.operator.is_feedback
        ]

    def _input_depth(self, node: Node) -> int:
        return node.depth + node.operator.steps_out

    @cached_property
    def cycles(self) -> list[list[int]]:
        """The nodes, those that lead to each other together, each after all that leads to it from elsewhere.

        Strongly connected components, as Tarjan finds them, walked along inputs with a stack of our own.
        """
        found: list[list[int]] = []
        index: dict[int, int] = {}
        least: dict[int, int] = {}
        pending: dict[int, None] = {}  # an ordered set: what is in no component yet
        for root in range(len(self.nodes)):
            if root in index:
                continue
            index[root] = least[root] = len(index)
            pending[root] = None
            walk = [(root, iter(self.nodes[root].inputs))]
            while walk:
                at, inputs = walk[-1]
                for port in inputs:
                    before = port.node
                    if before not in index:
                        index[before] = least[before] = len(index)
                        pending[before] = None
                        walk.append((before, iter(self.nodes[before].inputs)))
                        break
                    if before in pending:
                        least[at] = min(least[at], index[before])
                else:
                    walk.pop()
                    if walk:
                        least[walk[-1][0]] = min(least[walk[-1][0]], least[at])
                    if least[at] == index[at]:
                        together: list[int] = []
                        while not together or together[-1] != at:
                            together.append(pending.popitem()[0])
                        found.append(sorted(together))
        return found

    @cached_property
    def arrival_dependent(self) -> frozenset[int]:
        """The nodes whose results may depend on arrival: those marked, and all behind them."""
        found = {node.number for node in self.nodes if not node.operator.deterministic}
        waiting = list(found)
        while waiting:
            number = waiting.pop()
            for output in range(len(self.nodes[number].schemas)):
                for node, _ in self.consumers.get(Port(number, output), []):
                    if node.number not in found:
                        found.add(node.number)
                        waiting.append(node.number)
        return frozenset(found)

    @property
    def fingerprint(self) -> dict[str, str]:
        """By name, what each node is: what the program that wrote a checkpoint is compared with."""
        found, _ = self._identities
        return found

    @property
    def code(self) -> Program:
        """The user's functions in it, and what they read."""
        _, program = self._identities
        return program

    @cached_property
    def _identities(self) -> tuple[dict[str, str], Program]:
        found = {}
        with walking() as walk:
            for node in self.nodes:
                columns = "; ".join(
                    ", ".join(f"{field.name}: {type_text(field.type)}" for field in schema)
                    for schema in node.schemas
                )
                sources = ", ".join(self.nodes[port.node].name for port in node.inputs)
                origin = f"{FROM}{sources}" if sources else ""
                found[node.name] = f"{node.operator.identity()} ({columns}){origin}"
        return found, walk.program

    @cached_property
    def lineage(self) -> dict[str, str]:
        """By name, a word for what each node gives: what it is, and all that leads to it. No names are in it but those
        of inputs, so what gives the same in two programs has the same word, whatever it is called.
        """
        from riverrun.plan.diff import lineages

        return lineages(self)


@dataclass
class PlanBuilder:
    """Collects nodes. What is wrong with one is said when it is added, with the user's line."""

    name: str
    nodes: list[Node] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=lambda: [Scope(0, "")])
    shared: dict[Any, Any] = field(default_factory=dict)
    """What front ends have made once and use again: arrangements, rows that entered a loop."""
    _open: dict[int, Node] = field(default_factory=dict)  # feedbacks that nothing leads to yet
    _names: set[str] = field(
        default_factory=set
    )  # of nodes and, with a slash behind them, of loops
    _numbers: dict[str, int] = field(default_factory=dict)  # the last ones of names that we make

    @property
    def root(self) -> Scope:
        return self.scopes[0]

    def loop(self, parent: Scope, name: str | None = None) -> Scope:
        """A new loop inside `parent`."""
        _check_text(name)
        if name is None:
            name = self._numbered(f"{parent.path}loop", "/").removeprefix(parent.path)
        elif f"{parent.path}{name}/" in self._names:
            raise self._name_taken(f"{parent.path}{name}")
        scope = Scope(len(self.scopes), name, parent)
        self.scopes.append(scope)
        self._names.add(scope.path)
        return scope

    @contextmanager
    def whole_or_not(self) -> Iterator[None]:
        """What is added inside is forgotten when something raises: a program goes on as if it were not written."""
        nodes, scopes = list(self.nodes), len(self.scopes)
        shared, waiting = dict(self.shared), dict(self._open)
        names, numbers = set(self._names), dict(self._numbers)
        try:
            yield
        except BaseException:
            del self.scopes[scopes:]
            self.nodes[:] = nodes
            self.shared, self._open = shared, waiting
            self._names, self._numbers = names, numbers
            raise

    def add(
        self,
        operator: Operator,
        inputs: Sequence[Port],
        schemas: Iterable[pa.Schema],
        *,
        scope: Scope | None = None,
        name: str | None = None,
    ) -> Port:
        """Add a node; return its first output. Without a name it is called after what it does."""
        line = users_line()
        _check_text(name)
        if scope is None:
            scope = self.nodes[inputs[0].node].scope if inputs else self.root
        for port in inputs:
            source = self.nodes[port.node].scope
            expected = scope
            if operator.steps_out < 0:  # enters `scope` from its parent
                assert scope.parent is not None
                expected = scope.parent
            elif operator.steps_out > 0:
                if source.parent is not scope:
                    raise self._scope_error(operator, port, line)
                continue
            if source is not expected:
                raise self._scope_error(operator, port, line)
        node = Node(
            len(self.nodes),
            self._name(operator, scope, name),
            operator,
            scope,
            tuple(inputs),
            tuple(schemas),
            line,
            name is not None,
        )
        self.nodes.append(node)
        self._names.add(node.name)
        if operator.is_feedback and not inputs:
            self._open[node.number] = node
        return Port(node.number)

    def close(self, feedback: Port, source: Port) -> None:
        """Lead `source` into a feedback that was added without an input."""
        self.lead(source, feedback)
        del self._open[feedback.node]

    def lead(self, source: Port, to: Port, operator: Operator | None = None) -> None:
        """Lead `source` into one more input of a node, which may be another operator with it."""
        node = self.nodes[to.node]
        if self.nodes[source.node].scope is not node.scope:
            raise self._scope_error(node.operator, source, users_line())
        self.nodes[node.number] = replace(
            node, inputs=(*node.inputs, source), operator=operator or node.operator
        )

    def operator_at(self, port: Port, kind: type[OperatorKind]) -> OperatorKind:
        """The operator of a node, for whoever added that node and knows of which kind it is."""
        operator = self.nodes[port.node].operator
        assert isinstance(operator, kind)
        return operator

    def build(self) -> Plan:
        """Check the whole and return it."""
        for node in self._open.values():
            raise PlanError(
                "plan.loop_open",
                f"cannot build {self.name!r}: the loop {node.scope.path.rstrip('/')!r}, at {node.line}, "
                "has no feedback: nothing leads back to its start",
                hint="give it the collection that the next round starts with: back.connect(collection) for what "
                "loop.feedback(...) gave, or as what the body of iterate returns",
                node=node.name,
                line=node.line,
            )
        plan = Plan(self.name, tuple(self.nodes), tuple(self.scopes))
        _ = plan.topology
        for node in plan.nodes:
            node.operator.check(plan, node)
        return plan

    def _name(self, operator: Operator, scope: Scope, name: str | None) -> str:
        if name is not None:
            for part in str(name).split(":"):
                check_name(part)  # what we derive from a name has a colon, which no name has
            self.check_free(name, scope)
            return f"{scope.path}{name}"
        return self._numbered(f"{scope.path}{operator.kind}")

    def _numbered(self, kind: str, behind: str = "") -> str:
        """The first name of a kind that is free: with a number."""
        number = self._numbers.get(kind, 0) + 1
        while f"{kind}-{number}{behind}" in self._names:
            number += 1
        self._numbers[kind] = number
        return f"{kind}-{number}"

    def check_free(self, name: str, scope: Scope) -> None:
        """Refuse a name that a node has."""
        full = f"{scope.path}{name}"
        if full in self._names:
            raise self._name_taken(full)

    def _name_taken(self, name: str) -> PlanError:
        return PlanError(
            "plan.name_taken",
            f"cannot add {name!r} to {self.name!r} twice: a name is one node",
            hint="give one of them another name",
            name=name,
        )

    def _scope_error(self, operator: Operator, port: Port, line: str) -> PlanError:
        source = self.nodes[port.node]
        return PlanError(
            "plan.scope",
            f"cannot use {source.name!r} ({source.line}) in {operator.kind} at {line}: it belongs to "
            f"the loop {source.scope.path.rstrip('/') or 'outside all loops'!r}, which is not around this place",
            hint="what a loop makes leaves it as the result of iterate; use that",
            node=source.name,
            line=line,
        )


def _check_text(name: object) -> None:
    """Refuse a name that is not even text; names that are made of others may have a colon in them."""
    if name is not None and not isinstance(name, str):
        check_name(name)


def check_name(name: object) -> None:
    """Refuse what cannot be the name of a node: it becomes part of the names of files."""
    if isinstance(name, str) and 0 < len(name) <= 100:
        allowed = all(c.isalnum() or c in "-_. ()" for c in name)
        if allowed and name.strip() == name and not name.startswith("."):
            return
    raise PlanError(
        "plan.name",
        f"cannot name a node {name!r}: a name is 1 to 100 letters, digits, '-', '_', '.', spaces or parentheses",
        hint="for instance 'edges' or 'by-user'",
        name=name,
    )
