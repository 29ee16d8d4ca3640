"""Comparing: what of a checkpoint a program can go on with, and what it has to build anew.

A checkpoint holds states, and says of the program that wrote it what each node was (its *fingerprint*)
and, as one word for each node, all that led to it (its *lineage*). A program is compared with that. Laws:

1. **Same lineage, same state.** A state is kept when some node of the old program, with states of the same
   kind, had the lineage that its node has now: it then holds what the node would have made. Names do not
   matter for that, so nodes without a name of their own may be numbered in another way than before.
   Where results depend on arrival, two nodes of one lineage may hold different rows: there the name counts.
2. **Lineage.** The word of a node covers what it is (`Operator.identity`), its columns, and the words of the
   nodes it takes from, in order. In a loop, it covers the loop as it is seen from the node, round before round.
   What lets all rows pass, to show them or to be asked for progress, is left out.
3. **Blank.** What has seen nothing yet is empty, and needs no state: what lies behind new inputs only, and
   joins with that. But a state that the checkpoint has under its name, and that nobody else has kept, is
   not emptied without a word: it counts as one to be built anew, of nothing.
4. **Whole loops.** The states of a loop have rounds, which belong together: if one is not kept, or if
   something outside has to be built from the inside of a loop, none of the loop (the outermost one) is.
5. **From content.** A state is built anew from what stands before it: from the content of kept states, through
   nodes that keep nothing, and from other states that are built anew. That is right where a node's result is a
   function of content (`Operator.from_content`); and it is possible where no way leads back to an input, whose
   rows are gone. A kept arrangement of just what has left a node ends the way too (`Flow.copies`).

>>> import polars as pl, riverrun as rr
>>> def program(least):
...     flow = rr.Dataflow("stock")
...     items = flow.input("items", {"item": pl.String, "left": pl.Int64}, key="item")
...     flow.output("few", items.filter(pl.col("left") < least))
...     return flow.plan
>>> old = program(5)
>>> states = frozenset(name for node in old.nodes for name in states_of(node))
>>> print(compare(program(7), StoredProgram(3, old.fingerprint, states, old.lineage)))
changed: 'filter-1'
    was: filter [left < 5] (item: large_string, left: int64) <- items:rows
    is:  filter [left < 7] (item: large_string, left: int64) <- items:rows
kept: 'items:rows'
not kept: 'few:result', because of 'filter-1'

Cost: some ten microseconds for each node; for those of a loop, times the rounds that it takes to tell them apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from riverrun.plan.operator import Role
from riverrun.plan.plan import FROM, Node, Plan, Port, Scope


@dataclass(frozen=True, slots=True)
class StoredProgram:
    """What is known of a checkpoint and the program that wrote it."""

    epoch: int
    fingerprint: Mapping[str, str]
    states: frozenset[str]
    lineage: Mapping[str, str] | None = None
    """None in checkpoints that do not say it: their states are kept by the very same program only, which keeps them
    whatever words it has now."""
    code: Mapping[str, str] | None = None
    """Of each function, and what it read, a word for what it was (`identity.Program.words`)."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A node that is not as it was: changed, or new (it `was` nothing), or gone (it is nothing `now`)."""

    name: str
    was: str | None
    now: str | None
    why: str | None = None
    """Which function is not what it was."""

    def __str__(self) -> str:
        if self.was is None:
            return f"new: {self.name!r}: {self.now}"
        if self.now is None:
            return f"gone: {self.name!r}: {self.was}"
        why = f"\n    as {self.why}" if self.why else ""
        return f"changed: {self.name!r}\n    was: {self.was}\n    is:  {self.now}{why}"


@dataclass(frozen=True)
class Flow:
    """Where content comes from and goes to, when states are built anew. Nodes are told by their numbers."""

    fresh: frozenset[int] = frozenset()
    """The nodes whose states are built anew."""
    open: frozenset[int] = frozenset()
    """The nodes that take content in: the fresh ones, and those on the way to them."""
    pushes: tuple[int, ...] = ()
    """Nodes whose states are kept, and which send their content."""
    copies: tuple[tuple[int, Port], ...] = ()
    """Kept arrangements that hold what has left a port, and whose content is sent from there."""
    announces: tuple[tuple[int, int], ...] = ()
    """Open nodes that are told of the content of a kept arrangement, and at which input (`Operator.announced`)."""
    read: tuple[int, ...] = ()
    """Kept arrangements that are read meanwhile."""
    inputs: tuple[str, ...] = ()
    """Inputs from which all rows would have to come again."""
    stuck: tuple[tuple[str, str], ...] = ()
    """Nodes that cannot be built from content, or give none, and why."""

    @property
    def giving(self) -> tuple[Port, ...]:
        """The outputs at which content comes in."""
        ports = [*map(Port, self.pushes), *map(Port, self.read), *(port for _, port in self.copies)]
        return tuple(dict.fromkeys(ports))


@dataclass(frozen=True, slots=True)
class _Ways:
    """The ways back from what is built anew, in the order in which they were gone."""

    met: dict[int, bool] = field(default_factory=dict)
    """Nodes, and whether a way ends there, as their states are kept."""
    copies: dict[Port, int] = field(default_factory=dict)
    """Outputs at the end of which there is a kept arrangement."""
    inputs: set[str] = field(default_factory=set)
    """Inputs at the end, whose rows would have to come again."""
    loops: dict[Scope, None] = field(default_factory=dict)
    """Loops that the ways have entered."""

    @property
    def sources(self) -> set[int]:
        """The nodes whose states are kept."""
        return {at for at, is_end in self.met.items() if is_end}

    @property
    def through(self) -> set[int]:
        """The nodes on the way, which keep nothing."""
        return {at for at, is_end in self.met.items() if not is_end}


@dataclass(frozen=True)
class Comparison:
    """A program, and what it can have of a checkpoint."""

    differences: tuple[Difference, ...]
    keep: Mapping[str, str]
    """Of each state that is kept, the name that it has in the checkpoint."""
    rebuild: Mapping[str, str]
    """Of each state that has to be built anew, why."""
    dropped: tuple[str, ...]
    """States of the checkpoint that nobody needs."""
    flow: Flow = field(repr=False)

    @property
    def fresh(self) -> frozenset[int]:
        return self.flow.fresh

    @property
    def sources(self) -> frozenset[int]:
        """The nodes whose content what is fresh is built from."""
        return frozenset({*self.flow.pushes, *self.flow.read, *(at for at, _ in self.flow.copies)})

    @property
    def is_straight(self) -> bool:
        """Whether all states that are needed are there."""
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
    """Find out what of a checkpoint a program can go on with."""
    return _Comparing(plan, stored).result()


def _own(said: str) -> str:
    """What a fingerprint says of a node itself, without where it takes from."""
    return said.rsplit(FROM, 1)[0]


class _Comparing:
    """The work of `compare`."""

    def __init__(self, plan: Plan, stored: StoredProgram) -> None:
        self.plan = plan
        self.stored = stored
        self.same = dict(stored.fingerprint) == plan.fingerprint
        self.known: dict[str, list[str]] = {}
        """The nodes of the old program, by lineage."""
        for name, word in (plan.lineage if self.same else stored.lineage or {}).items():
            self.known.setdefault(word, []).append(name)
        self.keep: dict[int, dict[str, str]] = {}
        for node in plan.nodes:
            found = self._found(node)
            if found is not None:
                self.keep[node.number] = found
        self.blank = _blank(plan, stored)
        self.why: dict[int, str] = {}

    def result(self) -> Comparison:
        lost = self.stored.states.difference(*(found.values() for found in self.keep.values()))
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
        flow = self._route(fresh, ways)
        keep = {
            name: old
            for number, found in self.keep.items()
            if number not in fresh
            for name, old in found.items()
        }
        rebuild = {
            name: self.why.get(number) or self._cause(number)
            for number in sorted(fresh)
            for name in states_of(self.plan.nodes[number])
        }
        dropped = sorted(self.stored.states.difference(keep.values()))
        return Comparison(tuple(self.differences), keep, rebuild, tuple(dropped), flow)

    def _found(self, node: Node) -> dict[str, str] | None:
        """The states of the checkpoint that are those of a node (law 1)."""
        if not node.operator.suffixes:
            return None
        names = self.known.get(self.plan.lineage[node.name], [])
        if node.name in names:
            names = [node.name]
        elif node.number in self.plan.arrival_dependent and len(names) > 1:
            return None
        for name in names:
            found = {f"{node.name}{s}": f"{name}{s}" for s in node.operator.suffixes}
            if self.stored.states.issuperset(found.values()):
                return found
        return None

    # ---- what differs

    def _is_known(self, node: Node) -> bool:
        while node.operator.passes_all:
            (port,) = node.inputs
            node = self.plan.nodes[port.node]
        return self.plan.lineage[node.name] in self.known

    @cached_property
    def differences(self) -> list[Difference]:
        """What is different in itself, not only behind something that is."""
        plan, was, now = self.plan, self.stored.fingerprint, self.plan.fingerprint
        words = set(plan.lineage.values())
        old = {} if self.same else self.stored.lineage or {}
        # Those that go on, be it under another name, are not what one of their old name was.
        moved = {name for name, word in old.items() if word in words}
        found, related = [], set()
        for node in plan.nodes:
            if node.operator.passes_all or self._is_known(node):
                continue
            said = None if node.name in moved else was.get(node.name)
            if said is not None:
                related.add(node.name)
                sources = [self.plan.nodes[port.node] for port in node.inputs]
                if _own(said) == _own(now[node.name]) and not all(map(self._is_known, sources)):
                    continue
                if said == now[node.name]:
                    continue
            found.append(Difference(node.name, said, now[node.name], self._why_changed(node)))
        gone = [name for name in was if name not in moved and name not in related]
        if self.same:
            gone = []
        found += [Difference(name, was[name], None) for name in gone if not _is_shown(was[name])]
        # How rows travel follows from the rest; it is said where there is nothing else to say.
        told = [each for each in found if not Role.EXCHANGE.begins(each.now or each.was or "")]
        return told or found

    def _why_changed(self, node: Node) -> str | None:
        """Which function of a node, or which of those that it calls, is not what it was."""
        said, code = self.plan.fingerprint[node.name], self.stored.code
        return None if code is None else self.plan.code.reason(_own(said), code)

    def _cause(self, number: int) -> str:
        """The first nodes, on the way to this one, that are not as they were."""
        names = [self.plan.nodes[at].name for at in sorted(self._causes[number])]
        new = [difference.name for difference in self.differences if difference.was is None]
        if not names or (names == [self.plan.nodes[number].name] and names[0] in new):
            return "which the checkpoint does not have"
        return f"because of {', '.join(map(repr, names))}"

    @cached_property
    def _causes(self) -> dict[int, frozenset[int]]:
        """Of each node, those that differ first on the ways to it: behind none of them is another that does."""
        plan = self.plan
        differ = {difference.name for difference in self.differences}
        found: dict[int, frozenset[int]] = {}
        for together in plan.cycles:
            before = {
                found[port.node]
                for at in together
                for port in plan.nodes[at].inputs
                if port.node in found
            }
            causes = before.pop() if len(before) == 1 else frozenset[int]().union(*before)
            causes = causes or frozenset(at for at in together if plan.nodes[at].name in differ)
            found.update(dict.fromkeys(together, causes))
        return found

    # ---- what is built anew

    def _with_loops(self, fresh: set[int]) -> set[int]:
        """All states of the loops of which one is fresh, and what reads a fresh arrangement (law 4)."""
        found: set[int] = set()
        loops = {self._loops[self.plan.nodes[at].scope.number] for at in fresh} - {None}
        for loop in loops:
            assert loop is not None
            found |= self._in_loop(loop, f"as the loop {loop.name!r} is built anew as a whole")
        for node in self.plan.nodes:
            operator = node.operator
            # What keeps a state of the batches that it reads was told of some of them already.
            reads = operator.reads_arrangements and bool(operator.suffixes)
            if reads and node.number not in self.blank and node.number not in fresh:
                for port in node.inputs:
                    if port.node in fresh:
                        found.add(node.number)
                        self.why[node.number] = f"as {self.plan.nodes[port.node].name!r} is not"
        return found

    @cached_property
    def _loops(self) -> dict[int, Scope | None]:
        """Of each scope, by number, the loop around all others that it is in; None outside."""
        found: dict[int, Scope | None] = {}
        for scope in self.plan.scopes:  # a loop comes after the one that it is in
            parent = scope.parent
            around = None if parent is None else found[parent.number]
            found[scope.number] = None if parent is None else around or scope
        return found

    @cached_property
    def _states_in_loops(self) -> dict[int, list[int]]:
        """The nodes with states in each outermost loop, by its number."""
        found: dict[int, list[int]] = {}
        for node in self.plan.nodes:
            loop = self._loops[node.scope.number]
            if loop is not None and node.operator.suffixes and node.number not in self.blank:
                found.setdefault(loop.number, []).append(node.number)
        return found

    def _in_loop(self, loop: Scope, why: str) -> set[int]:
        found = set(self._states_in_loops.get(loop.number, ()))
        for number in found:
            if number in self.keep:
                self.why.setdefault(number, why)
        return found

    def _settle(self, fresh: set[int]) -> tuple[set[int], _Ways]:
        """All that has to be built anew with what is fresh (law 4), and the ways back from there."""
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
        """Go back from what is fresh, through nodes that keep nothing, to what gives content or cannot."""
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

    def _route(self, fresh: set[int], ways: _Ways) -> Flow:
        """Who gives what to whom (law 5)."""
        nodes = self.plan.nodes
        taken, sources = fresh | ways.through, ways.sources
        announces: list[tuple[int, int]] = []
        read: set[int] = set()
        for node in (nodes[at] for at in sorted(taken)):
            if node.operator.reads_arrangements:
                kept = {n: port.node for n, port in enumerate(node.inputs) if port.node in sources}
                announces += [(node.number, n) for n in node.operator.announced(kept)]
                read.update(kept.values())
        return Flow(
            fresh=frozenset(fresh),
            open=frozenset(taken),
            pushes=tuple(at for at in sorted(sources) if self._is_pushed(at, taken)),
            copies=tuple((at, port) for port, at in ways.copies.items()),
            announces=tuple(announces),
            read=tuple(sorted(read)),
            inputs=tuple(sorted(ways.inputs)),
            stuck=tuple(self._stuck(fresh, ways).items()),
        )

    def _is_pushed(self, at: int, taken: set[int]) -> bool:
        """Whether some node takes the content of a state as changes."""
        return any(
            taker.number in taken and not taker.operator.reads(input_)
            for taker, input_ in self.plan.consumers.get(Port(at), [])
        )

    def _stuck(self, fresh: set[int], ways: _Ways) -> dict[str, str]:
        """The nodes that cannot be built from content, or give none, and why."""
        found = {}
        built = dict.fromkeys(sorted(fresh - self.blank), False)
        for at, is_end in (*built.items(), *ways.met.items()):
            node = self.plan.nodes[at]
            if is_end and not node.operator.gives_content:
                found[node.name] = "what it has given is not kept"
            elif not is_end and not node.operator.from_content:
                found[node.name] = _why_stuck(node)
        return found

    def _copy(self, port: Port, fresh: set[int]) -> int | None:
        """A kept arrangement of what leaves a port: there is no need to go further back."""
        names = self.plan.nodes[port.node].schemas[port.output].names
        for node in self._takers(port):
            kept = node.number in self.keep and node.number not in fresh
            by = node.operator.copied_by
            if kept and by is not None:
                # Rows have to leave from where they would have left.
                places = {name: at for at, name in enumerate(names)}
                key = tuple([places[name] for name in by])
                placed = self._placements[port]
                if placed is not None and placed <= {key}:
                    return node.number
        return None

    def _takers(self, port: Port) -> Iterator[Node]:
        """Those who take what leaves a port as it is."""
        for node, _ in self.plan.consumers.get(port, []):
            if node.operator.role is Role.EXCHANGE:
                if node.operator.deterministic:
                    yield from self._takers(Port(node.number))
            else:
                yield node

    @cached_property
    def _placements(self) -> Mapping[Port, set[tuple[int, ...]] | None]:
        from riverrun.plan.placement import placements

        return placements(self.plan)


def _why_stuck(node: Node) -> str:
    operator = node.operator
    if operator.role is Role.CLOCK:
        return "it has a row for each epoch"
    if not operator.deterministic:
        return "its results depend on the order of arrival"
    return "its results depend on how rows came, epoch by epoch"


def _is_shown(said: str) -> bool:
    """Whether a node was there for people only."""
    return Role.INSPECT.begins(said) or Role.PROBE.begins(said)


def _blank(plan: Plan, stored: StoredProgram) -> frozenset[int]:
    """The nodes that have seen nothing as of the checkpoint (law 3)."""
    blank = {node.number for node in plan.nodes}
    if stored.epoch == 0:
        return frozenset(blank)
    before = 0
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


# ---- lineage


def lineages(plan: Plan) -> dict[str, str]:
    """By name, the word of each node (law 2)."""
    words: dict[int, str] = {}
    own = {node.number: _own(plan.fingerprint[node.name]) for node in plan.nodes}
    passed: dict[Port, Port] = {}
    sources = {
        node.number: [_passed(plan, port, passed) for port in node.inputs] for node in plan.nodes
    }
    for together in plan.cycles:
        at = together[0]
        if len(together) > 1 or any(port.node == at for port in sources[at]):
            words |= _words_around(plan, together, own, sources, words)
        else:
            words[at] = _word(own[at], sources[at], words)
    return {node.name: words[node.number] for node in plan.nodes}


def _word(own: str, sources: Sequence[Port], words: Mapping[int, str]) -> str:
    froms = [f"{words[port.node]}.{port.output}" for port in sources]
    return hashlib.sha256(f"{own}{FROM}{froms}".encode()).hexdigest()[:16]


def _words_around(
    plan: Plan,
    together: Sequence[int],
    own: Mapping[int, str],
    sources: Mapping[int, Sequence[Port]],
    outside: Mapping[int, str],
) -> dict[int, str]:
    """The words of nodes that lead to each other, around the feedbacks of loops.

    Every node is told by what it is and what leads to it, a round of the loop further back each time, until that tells
    no more nodes apart than before. *Why that is enough:* nodes whose words agree then, in two programs in which the
    same words occur, have the same nodes before them, and these again: both give the same in every round.
    """
    inside = set(together)
    back = {at for at in together if plan.nodes[at].operator.is_feedback}
    order, done = [at for at in together if at in back], set(back)
    for start in together:
        waiting = [start]
        while waiting:
            at = waiting[-1]
            missing = [
                port.node
                for port in sources[at]
                if port.node in inside and port.node not in done and at not in done
            ]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if at not in done:
                done.add(at)
                order.append(at)
    known: Mapping[int, str] = dict.fromkeys(inside, "around")
    told = 0
    while True:
        words: dict[int, str] = {}
        before = _Either(outside, known)
        now = _Either(outside, words)
        for at in order:
            words[at] = _word(own[at], sources[at], before if at in back else now)
        known = words
        if len(set(words.values())) == told:
            break
        told = len(set(words.values()))
    around = hashlib.sha256(" ".join(sorted(set(words.values()))).encode()).hexdigest()[:16]
    return {
        at: hashlib.sha256(f"{word} {around}".encode()).hexdigest()[:16]
        for at, word in words.items()
    }


class _Either(dict[int, str]):
    """The words of two mappings, without copying them; the second is asked first."""

    def __init__(self, outside: Mapping[int, str], inside: Mapping[int, str]) -> None:
        super().__init__()
        self._outside, self._inside = outside, inside

    def __missing__(self, at: int) -> str:
        return self._inside[at] if at in self._inside else self._outside[at]


def _passed(plan: Plan, port: Port, known: dict[Port, Port]) -> Port:
    """Where rows come from, behind nodes that let all pass."""
    way = []
    while port not in known and plan.nodes[port.node].operator.passes_all:
        way.append(port)
        (port,) = plan.nodes[port.node].inputs
    port = known.get(port, port)
    known.update(dict.fromkeys(way, port))
    return port
