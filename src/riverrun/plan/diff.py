"""Diff: which states of a checkpoint a program can go on with, and which states it has to build anew.

When a run resumes, `engine.coordinator.resume` calls `compare` with the plan of the program and with the checkpoint's
description of the program that wrote it: the names of the states; for each node a text of the node itself (the
*fingerprint*); and for each node one word for the node and all nodes that led to it (`plan.lineage`). The result is a
`Comparison`: which states are kept, which are built anew and why, and by which routes content comes to the latter.

Laws:

- **Same lineage, same state.** A state is kept when some node of the old program, with states of the same kind, had the
  lineage that its node has now: that state holds what the node would have made. A lineage is that of the program as it
  was written. So a program that was not changed finds its states whatever the optimizer makes of it: a state that it
  moved out of a loop, or into one, is the state of the node in whose place it stands, and a state that it left out is
  dropped. Names do not matter, so nodes without a
  name of their own may be numbered in another way than before. Only where results depend on arrival may two nodes of
  one lineage hold different rows: there the name has to be the same, if several nodes had that lineage.
- **Blank.** A node that has seen no row yet is *blank*: its state is empty and need not be in the checkpoint. Blank are
  the nodes behind new inputs only, and joins with such nodes. But if the checkpoint has a state under the blank node's
  name, and no other node has kept that state, the node's state counts as one to be built anew (of nothing), so that
  nothing is emptied without a word.
- **Whole loops.** The states of a loop have rounds, which belong together. If one state of a loop is not kept, or if
  something outside has to be built from the inside of a loop, then no state of the outermost loop around is kept.
- **From content.** A state is built anew from what stands before it: from the content of kept states, through nodes
  that keep nothing, and from other states that are built anew. That is right where the result of each node on the way
  is a function of content (`Operator.from_content`). It is possible where no way leads back to an input, whose rows are
  gone. A way also ends at a node all of whose given rows are in some kept arrangement (`BackfillRoutes.copies`).

>>> import polars as pl, riverrun as rr
>>> def program(least):
...     flow = rr.Dataflow("stock")
...     items = flow.input("items", {"item": pl.String, "left": pl.Int64}, key="item")
...     flow.output("few", items.filter(pl.col("left") < least))
...     return flow.plan
>>> old = program(5)
>>> states = frozenset(name for node in old.nodes for name in states_of(node))
>>> print(compare(program(7), StoredProgram(3, old.fingerprint, states, lineage_of(old))))
changed: 'filter-1'
    was: filter [left < 5] (item: large_string, left: int64) <- items:rows
    is:  filter [left < 7] (item: large_string, left: int64) <- items:rows
kept: 'items:rows'
not kept: 'few:result', because of 'filter-1'

Cost: some ten microseconds for each node; for the nodes of a loop, times the rounds that it takes to tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from riverrun.plan.lineage import lineage_of, without_sources
from riverrun.plan.operator import Role
from riverrun.plan.placement import placements
from riverrun.plan.plan import Node, Plan, Port, Scope


@dataclass(frozen=True, slots=True)
class StoredProgram:
    """A checkpoint's description of its states and of the program that wrote it."""

    epoch: int
    """The checkpoint is of the boundary before this epoch."""
    fingerprint: Mapping[str, str]
    """For each node, by name, a text of what the node was (`Plan.fingerprint`)."""
    states: frozenset[str]
    """The names of the states."""
    lineage: Mapping[str, str] | None = None
    """For each node, by name, its word (`plan.lineage`). None in checkpoints that do not say it: then states are kept
    only by a program of the very same fingerprint, which keeps them whatever words it has now."""
    code: Mapping[str, str] | None = None
    """For each function of the program, and for what the functions read, a word (`identity.ProgramCode.words`)."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A node that is not as it was: changed, new (`was` is None), or gone (`now` is None)."""

    name: str
    was: str | None
    now: str | None
    why: str | None = None
    """Which function of the node has changed, if one has."""

    def __str__(self) -> str:
        if self.was is None:
            return f"new: {self.name!r}: {self.now}"
        if self.now is None:
            return f"gone: {self.name!r}: {self.was}"
        why = f"\n    as {self.why}" if self.why else ""
        return f"changed: {self.name!r}\n    was: {self.was}\n    is:  {self.now}{why}"


@dataclass(frozen=True)
class BackfillRoutes:
    """Where content comes from and goes to when states are built anew (`engine.backfill`). Nodes are given by
    number."""

    fresh: frozenset[int] = frozenset()
    """The nodes whose states are built anew."""
    open: frozenset[int] = frozenset()
    """The nodes that take content: the fresh nodes, and those on the way to them."""
    pushes: tuple[int, ...] = ()
    """Nodes whose states are kept, and which send the content of these states as changes."""
    copies: tuple[tuple[int, Port], ...] = ()
    """Nodes with a kept arrangement of all rows that have left a port, each with the port: the content leaves from
    there."""
    announces: tuple[tuple[int, int], ...] = ()
    """Open nodes to which the content of a kept arrangement is announced, each with the input
    (`Operator.announced`)."""
    read: tuple[int, ...] = ()
    """Nodes with kept arrangements that open nodes read during the backfill."""
    inputs: tuple[str, ...] = ()
    """Inputs from which all rows would have to come again; if there are any, no backfill is possible."""
    stuck: tuple[tuple[str, str], ...] = ()
    """Names of nodes that cannot be built from content, or give none, each with the reason; if any, no backfill."""

    @property
    def giving(self) -> tuple[Port, ...]:
        """The outputs at which content comes in."""
        ports = [*map(Port, self.pushes), *map(Port, self.read), *(port for _, port in self.copies)]
        return tuple(dict.fromkeys(ports))


@dataclass(frozen=True, slots=True)
class _Ways:
    """The ways back from the nodes that are built anew, in the order in which they were walked."""

    met: dict[int, bool] = field(default_factory=dict)
    """The nodes met; for each, whether the way ends there since its states are kept."""
    copies: dict[Port, int] = field(default_factory=dict)
    """Ports at which a way ends since a kept arrangement has all their rows, each with the node of the arrangement."""
    inputs: set[str] = field(default_factory=set)
    """Inputs at which a way ends; their rows would have to come again."""
    loops: dict[Scope, None] = field(default_factory=dict)
    """Loops that the ways have entered."""

    @property
    def sources(self) -> set[int]:
        """The nodes whose states are kept."""
        return {at for at, is_end in self.met.items() if is_end}

    @property
    def through(self) -> set[int]:
        """The nodes on the ways, which keep nothing."""
        return {at for at, is_end in self.met.items() if not is_end}


@dataclass(frozen=True)
class Comparison:
    """What a program can have of a checkpoint, and what it has to build anew."""

    differences: tuple[Difference, ...]
    keep: Mapping[str, str]
    """For each state that is kept, by its name in the program: its name in the checkpoint."""
    rebuild: Mapping[str, str]
    """For each state that has to be built anew: why."""
    dropped: tuple[str, ...]
    """States of the checkpoint that the program does not need."""
    routes: BackfillRoutes = field(repr=False)
    only_left_out: bool = False
    """Whether all states that have to be built anew are of nodes that the old program had: the optimizer left them out,
    and the program that wrote the checkpoint would have them as they will be."""

    @property
    def fresh(self) -> frozenset[int]:
        """The nodes whose states are built anew."""
        return self.routes.fresh

    @property
    def sources(self) -> frozenset[int]:
        """The nodes from whose content the fresh states are built."""
        routes = self.routes
        return frozenset({*routes.pushes, *routes.read, *(at for at, _ in routes.copies)})

    @property
    def is_straight(self) -> bool:
        """Whether all states that the program needs are in the checkpoint."""
        return not self.fresh

    def __str__(self) -> str:
        lines = [str(difference) for difference in self.differences]
        if self.keep:
            lines.append(f"kept: {', '.join(map(repr, self.keep))}")
        lines += [f"not kept: {name!r}, {why}" for name, why in self.rebuild.items()]
        return "\n".join(lines)


def states_of(node: Node) -> tuple[str, ...]:
    """The names of the states of a node."""
    return tuple(f"{node.name}{suffix}" for suffix in node.operator.suffixes)


def compare(plan: Plan, stored: StoredProgram) -> Comparison:
    """Find out which states of a checkpoint a program can go on with, and how it can build the others anew."""
    return _Comparing(plan, stored).result()


class _Comparing:
    """The work of `compare`."""

    def __init__(self, plan: Plan, stored: StoredProgram) -> None:
        self.plan = plan
        self.written = plan.written or plan
        """The plan in which what differs is told: as the user wrote it."""
        self.stored = stored
        self.words = lineage_of(plan)
        """For each node, by name, its word."""
        self.same = dict(stored.fingerprint) == plan.fingerprint
        """Whether the program is the very one that wrote the checkpoint."""
        self.old_names: dict[str, list[str]] = {}
        """The names of the nodes of the old program, by the word of their lineage."""
        for name, word in (self.words if self.same else stored.lineage or {}).items():
            self.old_names.setdefault(word, []).append(name)
        self.keep: dict[int, dict[str, str]] = {}
        """For each node whose states are in the checkpoint: the names of its states, each with its old name."""
        for node in plan.nodes:
            old_states = self._old_states(node)
            if old_states is not None:
                self.keep[node.number] = old_states
        self.blank = _blank(plan, stored)
        self.why: dict[int, str] = {}
        """Why a node is built anew although its states are in the checkpoint."""

    def result(self) -> Comparison:
        lost = self.stored.states.difference(*(names.values() for names in self.keep.values()))
        if self.stored.epoch == 0:
            lost = frozenset()
        fresh = {
            node.number
            for node in self.plan.nodes
            if node.operator.suffixes
            and node.number not in self.keep
            and (node.number not in self.blank or lost.intersection(states_of(node)))
        }
        fresh, ways = self._settle(fresh)
        routes = self._route(fresh, ways)
        keep = {
            name: old
            for number, names in self.keep.items()
            if number not in fresh
            for name, old in names.items()
        }
        rebuild = {
            name: self.why.get(number) or self._cause(number)
            for number in sorted(fresh)
            for name in states_of(self.plan.nodes[number])
        }
        dropped = sorted(self.stored.states.difference(keep.values()))
        known = all(self.words[self.plan.nodes[at].name] in self.old_names for at in fresh)
        return Comparison(tuple(self.differences), keep, rebuild, tuple(dropped), routes, known)

    def _old_states(self, node: Node) -> dict[str, str] | None:
        """The names of a node's states, each with the name in the checkpoint (the law *same lineage, same state*).

        None where the checkpoint does not have them.
        """
        if not node.operator.suffixes:
            return None
        there = []
        words = [self.words[node.name]]
        if node.written is not None:
            words.append(self.words[node.written])  # where the state was not moved, as it is now
        for name in (name for word in words for name in self.old_names.get(word, ())):
            old_states = {f"{node.name}{s}": f"{name}{s}" for s in node.operator.suffixes}
            if self.stored.states.issuperset(old_states.values()):
                if name == node.name:
                    return old_states
                there.append(old_states)
        if not there or (node.number in self.plan.arrival_dependent and len(there) > 1):
            return None
        return there[0]

    # ---- what differs

    def _is_known(self, node: Node) -> bool:
        """Whether the old program had a node of this lineage."""
        while node.operator.passes_all:
            (port,) = node.inputs
            node = self.written.nodes[port.node]
        return self.words[node.name] in self.old_names

    @cached_property
    def differences(self) -> list[Difference]:
        """The nodes that differ by themselves, not only since they stand behind a node that differs."""
        plan, was, now = self.written, self.stored.fingerprint, self.plan.fingerprint
        words = set(self.words.values())
        old = {} if self.same else self.stored.lineage or {}
        # The old node of such a name goes on in this program, if under another name. So a new node that has its old
        # name is not a changed form of it.
        moved = {name for name, word in old.items() if word in words}
        differences, related = [], set()
        for node in plan.nodes:
            if node.operator.passes_all or self._is_known(node):
                continue
            before, after = None if node.name in moved else was.get(node.name), now[node.name]
            if before is not None:
                related.add(node.name)
                sources = [plan.nodes[port.node] for port in node.inputs]
                is_same = without_sources(before) == without_sources(after)
                if is_same and not all(map(self._is_known, sources)):
                    continue
                if before == after:
                    continue
            differences.append(Difference(node.name, before, after, self._why_changed(node)))
        gone = [name for name in was if name not in moved and name not in related]
        if self.same:
            gone = []
        differences += [
            Difference(name, was[name], None) for name in gone if not _is_for_people(was[name])
        ]
        # How rows travel follows from the rest: exchanges are named only where nothing else differs.
        telling = [
            each for each in differences if not Role.EXCHANGE.begins(each.now or each.was or "")
        ]
        return telling or differences

    def _why_changed(self, node: Node) -> str | None:
        """Which function of a node, or which function that it calls, has changed; None if none is known to have."""
        fingerprint, old_code = self.plan.fingerprint[node.name], self.stored.code
        if old_code is None:
            return None
        return self.plan.code.reason(without_sources(fingerprint), old_code)

    def _cause(self, number: int) -> str:
        """Why a state is not kept, for people: the first nodes on the ways to its node that differ."""
        names = [self.plan.nodes[at].name for at in sorted(self._causes[number])]
        new = [difference.name for difference in self.differences if difference.was is None]
        if not names or (names == [self.plan.nodes[number].name] and names[0] in new):
            return "which the checkpoint does not have"
        return f"because of {', '.join(map(repr, names))}"

    @cached_property
    def _causes(self) -> dict[int, frozenset[int]]:
        """For each node, the first nodes that differ on the ways to it: no other differing node leads to one of
        them."""
        plan = self.plan
        differ = {difference.name for difference in self.differences}
        causes_of: dict[int, frozenset[int]] = {}
        for together in plan.cycles:
            before = {
                causes_of[port.node]
                for at in together
                for port in plan.nodes[at].inputs
                if port.node in causes_of
            }
            causes = before.pop() if len(before) == 1 else frozenset[int]().union(*before)
            causes = causes or frozenset(at for at in together if plan.nodes[at].name in differ)
            causes_of.update(dict.fromkeys(together, causes))
        return causes_of

    # ---- what is built anew

    def _with_loops(self, fresh: set[int]) -> set[int]:
        """The nodes that are built anew since others are: by the *whole loops* law, and as readers of fresh
        arrangements."""
        more: set[int] = set()
        loops = {self._loops[self.plan.nodes[at].scope.number] for at in fresh} - {None}
        for loop in loops:
            assert loop is not None
            more |= self._in_loop(loop, f"as the loop {loop.name!r} is built anew as a whole")
        for node in self.plan.nodes:
            operator = node.operator
            # A node that keeps a state of the batches that it reads has had some of these batches already.
            reads = operator.reads_arrangements and bool(operator.suffixes)
            if reads and node.number not in self.blank and node.number not in fresh:
                for port in node.inputs:
                    if port.node in fresh:
                        more.add(node.number)
                        self.why[node.number] = f"as {self.plan.nodes[port.node].name!r} is not"
        return more

    @cached_property
    def _loops(self) -> dict[int, Scope | None]:
        """For each scope, by number, the outermost loop that it is in; None for the root."""
        outermost: dict[int, Scope | None] = {}
        for scope in self.plan.scopes:  # a loop comes after the scope around it
            parent = scope.parent
            around = None if parent is None else outermost[parent.number]
            outermost[scope.number] = None if parent is None else around or scope
        return outermost

    @cached_property
    def _states_in_loops(self) -> dict[int, list[int]]:
        """For each outermost loop, by number, the nodes in it that have states and are not blank."""
        nodes_by_loop: dict[int, list[int]] = {}
        for node in self.plan.nodes:
            loop = self._loops[node.scope.number]
            if loop is not None and node.operator.suffixes and node.number not in self.blank:
                nodes_by_loop.setdefault(loop.number, []).append(node.number)
        return nodes_by_loop

    def _in_loop(self, loop: Scope, why: str) -> set[int]:
        """The nodes with states in a loop; for those whose states would have been kept, note why they are not."""
        inside = set(self._states_in_loops.get(loop.number, ()))
        for number in inside:
            if number in self.keep:
                self.why.setdefault(number, why)
        return inside

    def _settle(self, fresh: set[int]) -> tuple[set[int], _Ways]:
        """All nodes that have to be built anew if these are (the *whole loops* law), and the ways back from them."""
        fresh = set(fresh)
        while True:
            fresh |= self._with_loops(fresh)
            ways = self._ways_back(fresh)
            for loop in ways.loops:
                inside = self._in_loop(loop, "as something new is made of what is inside the loop")
                if not inside <= fresh:
                    fresh |= inside
                    break
            else:
                return fresh, ways

    def _ways_back(self, fresh: set[int]) -> _Ways:
        """Walk back from the fresh nodes, through nodes that keep nothing, to kept states, copies and inputs."""
        plan, ways = self.plan, _Ways()
        loops = {self._loops[plan.nodes[at].scope.number] for at in fresh}
        seen: set[Port] = set()
        waiting = [port for at in sorted(fresh) for port in plan.nodes[at].inputs]
        while waiting:
            port = waiting.pop()
            node = plan.nodes[port.node]
            if port in seen or node.number in self.blank or node.number in fresh:
                continue
            seen.add(port)
            loop = self._loops[node.scope.number]
            if loop is not None and loop not in loops:
                ways.loops[loop] = None
            if node.operator.suffixes:
                ways.met[node.number] = True
            elif (copy := self._copy(port, fresh)) is not None:
                ways.copies[port] = copy
            elif node.operator.role is Role.INPUT:
                ways.inputs.add(node.operator.public_name)
            else:
                ways.met[node.number] = False
                waiting += node.inputs
        return ways

    def _route(self, fresh: set[int], ways: _Ways) -> BackfillRoutes:
        """Which nodes give content to which others (the *from content* law)."""
        nodes = self.plan.nodes
        open_, sources = fresh | ways.through, ways.sources
        announces: list[tuple[int, int]] = []
        read: set[int] = set()
        for node in (nodes[at] for at in sorted(open_)):
            if node.operator.reads_arrangements:
                arrangements = {
                    n: port.node for n, port in enumerate(node.inputs) if port.node in sources
                }
                announces += [(node.number, n) for n in node.operator.announced(arrangements)]
                read.update(arrangements.values())
        return BackfillRoutes(
            fresh=frozenset(fresh),
            open=frozenset(open_),
            pushes=tuple(at for at in sorted(sources) if self._is_pushed(at, open_)),
            copies=tuple((at, port) for port, at in ways.copies.items()),
            announces=tuple(announces),
            read=tuple(sorted(read)),
            inputs=tuple(sorted(ways.inputs)),
            stuck=tuple(self._stuck(fresh, ways).items()),
        )

    def _is_pushed(self, at: int, open_: set[int]) -> bool:
        """Whether some open node takes the content of a node's state as changes."""
        return any(
            taker.number in open_ and not taker.operator.reads(input_)
            for taker, input_ in self.plan.consumers.get(Port(at), [])
        )

    def _stuck(self, fresh: set[int], ways: _Ways) -> dict[str, str]:
        """The names of nodes that cannot be built from content, or give none, each with the reason."""
        reasons = {}
        built = dict.fromkeys(sorted(fresh - self.blank), False)
        for at, is_end in (*built.items(), *ways.met.items()):
            node = self.plan.nodes[at]
            if is_end and not node.operator.gives_content:
                reasons[node.name] = "what it has given is not kept"
            elif not is_end and not node.operator.from_content:
                reasons[node.name] = _why_stuck(node)
        return reasons

    def _copy(self, port: Port, fresh: set[int]) -> int | None:
        """The node of a kept arrangement that has all rows that left a port, if there is one: a way back can end
        there."""
        names = self.plan.nodes[port.node].schemas[port.output].names
        for node in self._takers(port):
            survives = node.number in self.keep and node.number not in fresh
            by = node.operator.copied_by
            if survives and by is not None:
                # Each row has to leave from the worker from which it would have left the port.
                places = {name: at for at, name in enumerate(names)}
                key = tuple([places[name] for name in by])
                placed = self._placements[port]
                if placed is not None and placed <= {key}:
                    return node.number
        return None

    def _takers(self, port: Port) -> Iterator[Node]:
        """The nodes that take the rows of a port as they left it, directly or behind exchanges."""
        for node, _ in self.plan.consumers.get(port, []):
            if node.operator.role is Role.EXCHANGE:
                if node.operator.deterministic:
                    yield from self._takers(Port(node.number))
            else:
                yield node

    @cached_property
    def _placements(self) -> Mapping[Port, set[tuple[int, ...]] | None]:
        return placements(self.plan)


def _why_stuck(node: Node) -> str:
    operator = node.operator
    if operator.role is Role.CLOCK:
        return "it has a row for each epoch"
    if not operator.deterministic:
        return "its results depend on the order of arrival"
    return "its results depend on how rows came, epoch by epoch"


def _is_for_people(fingerprint: str) -> bool:
    """Whether a node of the old program was there for people only."""
    return Role.INSPECT.begins(fingerprint) or Role.PROBE.begins(fingerprint)


def _blank(plan: Plan, stored: StoredProgram) -> frozenset[int]:
    """The nodes that had seen no row as of the checkpoint (the *blank* law)."""
    blank = {node.number for node in plan.nodes}
    if stored.epoch == 0:
        return frozenset(blank)
    before = 0  # how many were blank in the last pass
    while before != len(blank):
        before = len(blank)
        for node in plan.nodes:
            inputs = [port.node in blank for port in node.inputs]
            if node.operator.role.is_source:
                new = node.name not in stored.fingerprint
                empty = new and node.operator.role is not Role.CLOCK
            elif node.operator.needs_all_inputs:
                empty = any(inputs)
            else:
                empty = all(inputs)
            if not empty:
                blank.discard(node.number)
    return frozenset(blank)
