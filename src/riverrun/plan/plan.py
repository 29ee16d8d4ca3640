"""A plan: a whole program as data, before anything runs: nodes, the edges between them, and the scopes around them.

Every front end builds a plan (with `PlanBuilder`), and the engine knows nothing else of a program. Each node holds an
*operator* (`operator.Operator`), which says what is done with the rows that arrive at the node. A node has one output
port for each schema in its `schemas`, and stands in a *scope*: the root, or a loop inside another scope. The times at a
node have one coordinate for the epoch and one for each loop around the node.

Laws:

- **One scope.** An edge connects nodes of one scope. Rows enter a loop, go around it and leave it through nodes that do
  nothing else (``Enter``, ``Feedback``, ``Leave``).
- **Cycles advance.** Every cycle of edges goes through the feedback of a loop that contains the whole cycle. So no row
  comes back at or before the time at which it set out (as `progress.topology` demands and verifies).
- **Stable names.** A node that keeps state has the same name whenever the same program is built: a checkpoint finds the
  states of a node by the node's name.

A node is *deterministic* when its result depends neither on how rows were cut into batches nor on the order in which
they arrived (the *cuts invisible* law of ARCHITECTURE). Operators that are not deterministic say so, and the plan
knows the nodes that hold them and all nodes behind those (`Plan.arrival_dependent`).

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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa

from riverrun.errors import PlanError, users_line
from riverrun.plan.identity import ProgramCode, walking
from riverrun.plan.operator import Operator, Role
from riverrun.progress import Topology, TopologyBuilder
from riverrun.progress.topology import NodePorts
from riverrun.rows.values import show
from riverrun.state.types import type_text

OperatorKind = TypeVar("OperatorKind", bound=Operator)
MANY_ORIGINS = 16
BY_ROUNDS = ":rounds"
"""What the scope of a loop by rounds has behind the name of the loop."""
FROM = " <- "
"""In a fingerprint, this stands between what a node is and the names of the nodes it takes from. No name contains
it."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The root, or a loop. `depth` is the number of coordinates of the times in this scope."""

    number: int
    name: str
    parent: Scope | None = None

    depth: int = field(init=False, compare=False, repr=False)
    path: str = field(init=False, compare=False, repr=False)
    """The names of the loops around this scope, then its own name, each followed by a slash; empty for the root."""

    def __post_init__(self) -> None:
        parent = self.parent
        object.__setattr__(self, "depth", 1 if parent is None else parent.depth + 1)
        object.__setattr__(self, "path", "" if parent is None else f"{parent.path}{self.name}/")

    @property
    def called(self) -> str:
        """The name of the loop, for people: also of one that was written a second time, by rounds."""
        return self.name.removesuffix(BY_ROUNDS)

    def is_inside(self, other: Scope) -> bool:
        """Whether this scope is `other`, or a loop inside `other`."""
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
    """One step of a program, with the line of the user's program in which the step was written."""

    number: int
    name: str
    operator: Operator
    scope: Scope
    inputs: tuple[Port, ...]
    schemas: tuple[pa.Schema, ...]
    line: str
    named: bool = True
    """Whether the user chose the name. Otherwise the name is the kind of the operator and a number."""
    written: str | None = None
    """The name, in the program as it was written, of a node with the same rows in its state, where the optimizer put
    this node in that node's place."""

    @property
    def depth(self) -> int:
        """How many coordinates the times at the node's outputs have."""
        return self.scope.depth

    def __repr__(self) -> str:
        return f"<Node {self.name!r}: {self.operator.describe()}>"


@dataclass(frozen=True)
class Shortcut:
    """A way to the rows that a loop gives, which does without the loop."""

    port: Port
    """Where the rows are given."""
    also: tuple[Port, ...] = ()
    """Where further rows are given, in the order of `Choice.also`."""
    over: str = "one"
    """Which workers do the work: ``one`` or ``all``."""
    loops: tuple[Scope, ...] = ()
    """Loops of its own."""
    edges: Port | None = None
    """The rows that most of the work is about."""

    @property
    def ports(self) -> tuple[Port, ...]:
        """All ports where rows are given."""
        return (self.port, *self.also)


@dataclass(frozen=True)
class Choice:
    """Several ways to the same rows: a loop, and others that give what the loop gives."""

    loop: Scope
    leave: Port
    """Where the rows leave the loop."""
    ways: tuple[Shortcut, ...]
    """The other ways; the loop itself is for those who look into it."""
    over: str = "auto"
    """Which workers the program asks for: ``one``, ``all``, or ``auto`` for those that cost less."""
    also: tuple[Port, ...] = ()
    """Where further rows leave the loop."""
    must: str = ""
    """Why the loop must not run as it is written, in words; empty if it may."""

    @property
    def leaves(self) -> tuple[Port, ...]:
        """All ports where rows leave the loop."""
        return (self.leave, *self.also)

    def ends(self, way: Shortcut) -> dict[Port, Port]:
        """All ports where rows leave the loop, each with the port where they are given by another way."""
        return dict(zip(self.leaves, way.ports, strict=True))


@dataclass(frozen=True)
class Reason:
    """Why the optimizer has changed a plan, for people."""

    kind: str
    """One word for the rewrite."""
    nodes: tuple[str, ...]
    """The names of the nodes that are as they are since the rewrite."""
    text: str
    """What was done, and why it may be done."""
    instead: str
    """What was not chosen, and what that would have cost."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A whole program. Build it with `PlanBuilder`."""

    name: str
    nodes: tuple[Node, ...]
    scopes: tuple[Scope, ...]
    choices: tuple[Choice, ...] = ()
    """Where the program can take one of two ways. The optimizer takes one (`plan.optimizer`)."""
    differential: Mapping[int, str] = field(default_factory=dict)
    """Why a loop, by the number of its scope, has no other way than its nodes."""
    by_rounds: Mapping[int, str] = field(default_factory=dict)
    """Of a loop by rounds, by the number of its scope, how long it goes on, and why it is by rounds."""
    reasons: tuple[Reason, ...] = ()
    """What the optimizer has changed."""
    expected: Mapping[int, int] = field(default_factory=dict)
    """How many rows the user expects at a node, by its number, before the optimizer has moved nodes."""
    written: Plan | None = field(default=None, repr=False)
    """The plan as it was before the optimizer moved or left out states of it; None where that is this plan. The
    identities of a program are those of this plan."""

    @cached_property
    def consumers(self) -> dict[Port, list[tuple[Node, int]]]:
        """For each output, the nodes that take from it, each with the index of the input that does."""
        consumers: dict[Port, list[tuple[Node, int]]] = {}
        for node in self.nodes:
            for at, port in enumerate(node.inputs):
                consumers.setdefault(port, []).append((node, at))
        return consumers

    @cached_property
    def inputs(self) -> dict[str, Node]:
        """The nodes at which rows come in from outside, by the name that users know the input by."""
        return self._public(Role.INPUT)

    @cached_property
    def outputs(self) -> dict[str, Node]:
        """The nodes whose results can be read, by the name that users know the output by."""
        return self._public(Role.OUTPUT)

    @cached_property
    def states(self) -> dict[str, Node]:
        """The shared states outside of all loops, by the name that users know the state by."""
        return {name: node for name, node in self._public(Role.STATE).items() if node.depth == 1}

    @cached_property
    def readable(self) -> dict[str, Node]:
        """The nodes whose rows can be read from outside, by name: the outputs, and the shared states outside of all
        loops. The rows of an output lie in the arrangement that the node's only input gives, those of a state in the
        arrangement of the node itself (`arranged`)."""
        return {**self.states, **self.outputs}

    def arranged(self, node: Node) -> Node:
        """The node that keeps the rows of a readable node, under its own name."""
        return self.nodes[node.inputs[0].node] if node.operator.role is Role.OUTPUT else node

    @cached_property
    def probes(self) -> dict[str, Node]:
        """The nodes whose frontier a run can tell, by the name that users know the probe by."""
        return self._public(Role.PROBE)

    def _public(self, role: Role) -> dict[str, Node]:
        return {
            node.operator.public_name: node for node in self.nodes if node.operator.role is role
        }

    @cached_property
    def clock(self) -> Node | None:
        """The node that gives a row for each epoch, if the program has such a node."""
        clocks = [node for node in self.nodes if node.operator.role is Role.CLOCK]
        return clocks[0] if clocks else None

    @cached_property
    def by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @property
    def ports(self) -> tuple[NodePorts | None, ...]:
        """For each node, in order, its ports in `topology`; None for a node that time passes unchanged (not
        tracked)."""
        return self._topology_and_ports[1]

    @property
    def topology(self) -> Topology:
        """The plan as progress tracking sees it. Building the topology checks the law *cycles advance*."""
        return self._topology_and_ports[0]

    @cached_property
    def _topology_and_ports(self) -> tuple[Topology, tuple[NodePorts | None, ...]]:
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
        """The tracked outputs from which the rows that leave `port` come, through nodes that are not tracked."""
        origins = self._origins.get(port.node)
        return frozenset({port}) if origins is None else origins

    def _is_tracked(self, node: Node) -> bool:
        """Whether progress is tracked at a node: its operator says so, or the ways from very many outputs meet
        there."""
        return node.number not in self._origins

    @cached_property
    def _origins(self) -> dict[int, frozenset[Port]]:
        """For each node that is not tracked, the tracked outputs from which its rows come.

        A node at which the ways from more than `MANY_ORIGINS` outputs meet is tracked although its operator need not
        be. Otherwise the topology would have an arc from each of those outputs to each place behind the node: as many
        as the square of the plan's size.
        """
        origins: dict[int, frozenset[Port]] = {}
        tracked = {node.number for node in self.nodes if node.operator.tracked}
        for node in self.nodes:
            waiting = [node.number]
            while waiting:
                at = waiting[-1]
                sources = () if at in tracked or at in origins else self.nodes[at].inputs
                missing = [
                    p.node for p in sources if p.node not in tracked and p.node not in origins
                ]
                if missing:
                    waiting += missing
                    continue
                waiting.pop()
                if at in tracked or at in origins:
                    continue
                by_input = {
                    origins[p.node] if p.node in origins else frozenset({p}) for p in sources
                }
                union = by_input.pop() if len(by_input) == 1 else frozenset[Port]().union(*by_input)
                if len(union) > MANY_ORIGINS and self.nodes[at].operator.may_be_tracked:
                    tracked.add(at)
                else:
                    origins[at] = union
        return origins

    @cached_property
    def sources(self) -> list[int]:
        """The output ports, as numbered in `topology`, at which rows come into the plan."""
        return [
            ports.outputs[0]
            for node, ports in zip(self.nodes, self.ports, strict=True)
            if ports is not None and not node.inputs and not node.operator.is_feedback
        ]

    def _input_depth(self, node: Node) -> int:
        return node.depth + node.operator.steps_out

    @cached_property
    def in_reading_order(self) -> list[Node]:
        """The nodes in their order, except that a node comes after those whose arrangements it reads."""
        placed: set[int] = set()
        order: list[Node] = []
        for first in self.nodes:
            waiting = [first]
            while waiting:
                node = waiting.pop()
                if node.number in placed:
                    continue
                missing = [
                    self.nodes[port.node]
                    for at, port in enumerate(node.inputs)
                    if node.operator.reads(at) and port.node not in placed
                ]
                if missing:
                    waiting += [node, *missing]
                    continue
                placed.add(node.number)
                order.append(node)
        return order

    @cached_property
    def cycles(self) -> list[list[int]]:
        """The strongly connected components of the plan: lists of nodes that lead to each other, most of length one.

        A component comes after every other component that leads to it. Tarjan's algorithm, walking from nodes to their
        inputs, with a stack of our own in place of recursion.
        """
        components: list[list[int]] = []
        index: dict[int, int] = {}
        least: dict[int, int] = {}
        pending: dict[int, None] = {}  # an ordered set: nodes visited that are in no component yet
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
                        components.append(sorted(together))
        return components

    @cached_property
    def arrival_dependent(self) -> frozenset[int]:
        """The nodes whose results may depend on how rows arrive: those not deterministic, and all nodes behind them."""
        dependent = {node.number for node in self.nodes if not node.operator.deterministic}
        waiting = list(dependent)
        while waiting:
            number = waiting.pop()
            for output in range(len(self.nodes[number].schemas)):
                for node, _ in self.consumers.get(Port(number, output), []):
                    if node.number not in dependent:
                        dependent.add(node.number)
                        waiting.append(node.number)
        return frozenset(dependent)

    @property
    def fingerprint(self) -> dict[str, str]:
        """For each node, by name, a text of what the node is. A program is compared with a checkpoint by these
        texts."""
        fingerprint, _ = self._identities
        return fingerprint

    @property
    def code(self) -> ProgramCode:
        """The user's functions in the program, and the functions and values that they read."""
        _, code = self._identities
        return code

    @cached_property
    def _identities(self) -> tuple[dict[str, str], ProgramCode]:
        if self.written is not None:
            return self.written._identities
        fingerprint = {}
        with walking() as walk:
            for node in self.nodes:
                columns = "; ".join(
                    ", ".join(f"{field.name}: {type_text(field.type)}" for field in schema)
                    for schema in node.schemas
                )
                sources = ", ".join(self.nodes[port.node].name for port in node.inputs)
                origin = f"{FROM}{sources}" if sources else ""
                fingerprint[node.name] = f"{node.operator.identity()} ({columns}){origin}"
        return fingerprint, walk.program_code


@dataclass
class PlanBuilder:
    """Collects the nodes of a plan. A mistake in a node raises when the node is added, with the user's line."""

    name: str
    nodes: list[Node] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=lambda: [Scope(0, "")])
    choices: list[Choice] = field(default_factory=list)
    differential: dict[int, str] = field(default_factory=dict)
    """Why a loop, by the number of its scope, has no other way than its nodes."""
    by_rounds: dict[int, str] = field(default_factory=dict)
    """Of a loop by rounds, by the number of its scope, how long it goes on, and why it is by rounds."""
    expected: dict[int, int] = field(default_factory=dict)
    """How many rows the user expects at a node, by its number."""
    shared: dict[Any, Any] = field(default_factory=dict)
    """Nodes that front ends add once and use again, such as arrangements and rows that entered a loop, by their own
    keys."""
    _open: dict[int, Node] = field(default_factory=dict)  # feedbacks without an input so far
    _names: set[str] = field(default_factory=set)  # of nodes; and of loops, with a slash at the end
    _numbers: dict[str, int] = field(
        default_factory=dict
    )  # by prefix, the last number of a name made here

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
        """Forget all that was added inside the ``with`` block when the block raises: the builder is as it was
        before."""
        nodes, scopes, choices = list(self.nodes), len(self.scopes), len(self.choices)
        shared, waiting = dict(self.shared), dict(self._open)
        names, numbers = set(self._names), dict(self._numbers)
        try:
            yield
        except BaseException:
            del self.scopes[scopes:]
            del self.choices[choices:]
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
        """Add a node and return its first output. A node without a name is called by its operator's kind and a
        number."""
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
        """Give a node one more input, fed by `source`; with `operator`, also replace the operator of the node."""
        node = self.nodes[to.node]
        if self.nodes[source.node].scope is not node.scope:
            raise self._scope_error(node.operator, source, users_line())
        self.nodes[node.number] = replace(
            node, inputs=(*node.inputs, source), operator=operator or node.operator
        )

    def lead_elsewhere(self, old: Port, new: Port, arranged: Port | None, below: int) -> None:
        """Let the nodes with numbers `below` that take from `old` take from `new`; those that read the arrangement of
        `old` read that of `arranged`."""
        for node in self.nodes[:below]:
            if old in node.inputs:
                inputs = [
                    port if port != old else (arranged or new) if node.operator.reads(at) else new
                    for at, port in enumerate(node.inputs)
                ]
                self.nodes[node.number] = replace(node, inputs=tuple(inputs))

    def operator_at(self, port: Port, kind: type[OperatorKind]) -> OperatorKind:
        """The operator of a node, for callers who added that node and know of which class its operator is."""
        operator = self.nodes[port.node].operator
        assert isinstance(operator, kind)
        return operator

    def build(self) -> Plan:
        """Check the whole plan and return it."""
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
        plan = Plan(
            self.name,
            tuple(self.nodes),
            tuple(self.scopes),
            tuple(self.choices),
            dict(self.differential),
            dict(self.by_rounds),
            expected=dict(self.expected),
        )
        _ = plan.topology
        for node in plan.nodes:
            node.operator.check(plan, node)
        return plan

    def _name(self, operator: Operator, scope: Scope, name: str | None) -> str:
        if name is not None:
            for part in str(name).split(":"):
                check_name(part)  # derived names have a colon, which no name of a user has
            self.check_free(name, scope)
            return f"{scope.path}{name}"
        return self._numbered(f"{scope.path}{operator.kind}")

    def _numbered(self, kind: str, behind: str = "") -> str:
        """The first free name of the form ``kind-number``; `behind` is put behind it when names are looked up."""
        number = self._numbers.get(kind, 0) + 1
        while f"{kind}-{number}{behind}" in self._names:
            number += 1
        self._numbers[kind] = number
        return f"{kind}-{number}"

    def check_free(self, name: str, scope: Scope) -> None:
        """Raise if a node of the scope already has the name."""
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
    """Refuse a name that is not text. Other rules do not hold here: names derived from others have a colon in them."""
    if name is not None and not isinstance(name, str):
        check_name(name)


def check_name(name: object) -> None:
    """Refuse a text that cannot be the name of a node. Names of nodes become part of the names of files."""
    if isinstance(name, str) and 0 < len(name) <= 100:
        allowed = all(c.isalnum() or c in "-_. ()" for c in name)
        if allowed and name.strip() == name and not name.startswith("."):
            return
    raise PlanError(
        "plan.name",
        f"cannot name a node {show(name)}: a name is 1 to 100 letters, digits, '-', '_', '.', spaces or parentheses",
        hint="for instance 'edges' or 'by-user'",
        name=name,
    )
