"""Loops by rounds: the nodes of a loop, written once more, so that each round is computed from scratch.

A loop is written as differential nodes first (`collections.loops`, `collections.delta`). `ByRounds` writes it a second
time, in a scope beside the first: nodes whose rows differ from round to round become the operators that do the same on
one round alone (`Operator.in_round`, `operators.rounds`), and what is the same in all rounds moves out of the loop. The
plan notes a choice of the two, and the optimizer drops one. Laws:

- **Same rows.** As of each epoch the result is that of the differential loop, to the last bit. (A loop that ends by
  `until` has no differential form; its nodes there are a description only.)
- **Nothing constant inside.** Arrangements that no round changes stand outside, and are shared with the rest of the
  program.
- **Why not.** A body that cannot run by rounds raises `NoRounds`, in words.

Cost: linear in the nodes of the body, when the program is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from riverrun.frontends.collections.derivation import Entered, derivation_of, key_of
from riverrun.frontends.collections.rows import Rows
from riverrun.operators.arrange import Arrange
from riverrun.operators.exchange import Exchange
from riverrun.operators.linear import Concat
from riverrun.operators.loops import Enter, Leave
from riverrun.operators.rounds.again import Again
from riverrun.operators.rounds.beginning import MARKS, Bring, OpenLoop, Pour, Stir
from riverrun.operators.rounds.gather import GatherRound
from riverrun.operators.rounds.settle import Settle
from riverrun.operators.rounds.stops import Ballot, Closeness, Compare
from riverrun.operators.rounds.table import InPlace, Touched
from riverrun.plan.operator import Operator
from riverrun.plan.plan import BY_ROUNDS, Node, PlanBuilder, Port, Scope

if TYPE_CHECKING:
    from riverrun.frontends.collection import Collection
    from riverrun.frontends.collections.loops import ClosedVariable


class NoRounds(Exception):
    """Why a loop cannot run by rounds, in words that finish the sentence "not by rounds, since ..."."""


@dataclass(frozen=True)
class Solution:
    """The first variable of a delta iteration: a row for each key, which the rows of a delta replace.

    The nodes of the differential loop look at all of its rows in each round. By rounds it is a table, and a round looks
    at the rows that it touches.
    """

    key: tuple[str, ...]
    marked: Collection
    """The rows of the solution, marked as old, before they are put together with those of the delta."""
    proposed: Collection
    """The rows of the delta, marked as new."""
    accepted: Collection
    """The rows of the delta that are in the next solution."""


@dataclass(frozen=True)
class LoopEnd:
    """When a loop ends, besides a number of rounds: when nothing changes, unless there is something else here."""

    closeness: Closeness | None = None
    proceed: Collection | None = None
    """Rows of the loop of which none is left at its end."""
    key: tuple[str, ...] | None = None
    """Columns by which the rows of the first variable are to lie together; None where that is not said."""

    @property
    def text(self) -> str:
        if self.proceed is not None:
            return "until what its program gives for that is empty"
        return f"until {self.closeness or 'nothing changes'}"


class ByRounds:
    """A loop by rounds that is being written, from the same loop in differential nodes."""

    def __init__(
        self,
        variables: Sequence[ClosedVariable],
        stop: LoopEnd,
        rounds: int | None,
        patience: int,
        solution: Solution | None = None,
    ) -> None:
        """With `solution`, that is the first variable."""
        self._variables = variables
        self._solution = solution
        self._table: Port | None = None
        """Where the rows of the solution stand."""
        self._stop = stop
        self._rounds = rounds
        self._patience = patience if rounds is None else None
        start = variables[0].variable.start
        self._builder: PlanBuilder = start._builder
        self._loop: Scope = variables[0].variable.loop
        self._any = start
        """A collection of the plan, to make others of."""
        self._check()
        parent = self._loop.parent
        assert parent is not None
        self._outside = parent
        self.scope = self._builder.loop(parent, f"{self._loop.name}{BY_ROUNDS}")
        self._varying = self._find_varying()
        self._inside: dict[Port, Port] = {}
        """For ports of the differential loop whose rows vary, the ports here."""
        self._hoisted: dict[Port, Rows] = {}
        """For other ports of the differential loop, the rows outside of all loops."""
        self._brought: dict[Port, Port] = {}
        self._poured: dict[tuple[Port, bool], Port] = {}

    def _check(self) -> None:
        """Refuse a loop that does not stand alone, or into which somebody looks."""
        if self._loop.depth > 2:
            raise NoRounds("it is inside another loop")
        for scope in self._builder.scopes:
            if scope is not self._loop and scope.is_inside(self._loop):
                raise NoRounds(f"the loop {scope.name!r} is inside of it")
        for node in self._builder.nodes:
            operator = node.operator
            if node.scope is self._loop and (operator.public_name or operator.passes_all):
                raise NoRounds(f"rows are looked at inside of it, by {operator.describe()}")

    def _find_varying(self) -> set[int]:
        """The nodes of the differential loop whose rows differ from round to round."""
        takers: dict[int, list[int]] = {}
        for node in self._builder.nodes:
            if node.scope is self._loop:
                for port in node.inputs:
                    takers.setdefault(port.node, []).append(node.number)
        waiting = [each.variable.inside._port.node for each in self._variables]
        varying = set(waiting)
        while waiting:
            for taker in takers.get(waiting.pop(), ()):
                if taker not in varying:
                    varying.add(taker)
                    waiting.append(taker)
        return varying

    def build(self, results: int) -> list[Collection]:
        """Write the loop; give the results of the first so many variables."""
        builder, count = self._builder, len(self._variables)
        schemas = [each.next.schema for each in self._variables]
        again = Again(count, self._rounds)
        back = builder.add(again, [], again.outputs(schemas, MARKS), scope=self.scope)
        stir = builder.add(Stir(), [], [MARKS], scope=self._outside)
        told = builder.add(Exchange("all"), [stir], [MARKS])
        opened = builder.add(OpenLoop(), [told], [MARKS])
        entered = builder.add(Enter(), [opened], [MARKS], scope=self.scope)
        returned = Port(back.node, count)
        self._marks = builder.add(Concat(), [entered, returned], [MARKS])
        keys = [self._key(at, each) for at, each in enumerate(self._variables)]
        starts = []
        for at, (each, key) in enumerate(zip(self._variables, keys, strict=True)):
            start = self._start(each.variable.start, key)
            starts.append(start)
            begun = builder.add(Concat(), [start, Port(back.node, at)], [schemas[at]])
            if at == 0 and self._solution is not None:
                self._table = self._tabled(begun, back, self._solution)
            else:
                self._inside[each.variable.inside._port] = begun
        rows: list[Port] = []
        votes: list[Port] = []
        if self._solution is not None:
            self._touch(self._solution)
        for start, each, key in zip(starts, self._variables, keys, strict=True):
            if not rows and self._solution is not None:
                rows.append(self._copied(self._solution.accepted._port))
                votes.append(self._balloted(rows[0], are_changes=True))
                continue
            following = self._copied(each.next._port)
            if self._stop.proceed is None:
                following, vote = self._compared(start, following, key)
                votes.append(vote)
            rows.append(following)
        if self._stop.proceed is not None:
            proceed = self._copied_or_poured(self._stop.proceed._port)
            votes.append(self._balloted(proceed))
        vote = votes[0] if len(votes) == 1 else builder.add(Concat(), votes, [MARKS])
        vote = builder.add(Exchange("all"), [vote], [MARKS])
        builder.close(back, rows[0])
        for port in (*rows[1:], vote, self._marks):
            builder.lead(port, back)
        for arranged in self._brought:
            builder.lead(arranged, stir)
        return [
            self._settled(back, at, each, key)
            for at, (each, key) in enumerate(zip(self._variables, keys, strict=True))
            if at < results
        ]

    # -- what comes in, and what goes out

    def _key(self, at: int, closed: ClosedVariable) -> tuple[str, ...] | None:
        """Columns by which the rows of a round lie together when they are made; None where there are none."""
        if self._stop.closeness is not None:
            return self._stop.closeness.key
        return self._stop.key if at == 0 and self._stop.key else key_of(closed.given)

    def _start(self, start: Collection, key: tuple[str, ...] | None) -> Port:
        """The rows of the first round, in that round."""
        if key is None:
            return self._pour(start, first=True)
        return self._pour(start._arranged(key), first=True)

    def _compared(
        self, start: Port, following: Port, key: tuple[str, ...] | None
    ) -> tuple[Port, Port]:
        """The rows of a round, and the vote for another where they differ from those that it began with."""
        builder = self._builder
        schema = builder.nodes[following.node].schemas[following.output]
        names = key or tuple(schema.names)
        places = tuple([schema.names.index(name) for name in names])
        route = Exchange("row", places, names, combine=True)
        if key is not None:
            route = Exchange("key", places, names, combine=True)
        moved = [builder.add(route, [port], [schema]) for port in (following, start)]
        compare = Compare(self._patience, self._stop.closeness)
        port = builder.add(compare, [*moved, self._marks], [schema, MARKS])
        return port, Port(port.node, 1)

    def _balloted(self, rows: Port, *, are_changes: bool = False) -> Port:
        """The vote for another round where some rows are there."""
        schema = self._builder.nodes[rows.node].schemas[rows.output]
        ballot = Ballot(self._patience, schema, are_changes)
        return self._builder.add(ballot, [rows], [MARKS])

    def _settled(
        self, back: Port, at: int, closed: ClosedVariable, key: tuple[str, ...] | None
    ) -> Collection:
        """The result of the loop, outside of it."""
        builder, count = self._builder, len(self._variables)
        schema = closed.next.schema
        key = tuple(schema.names) if key is None else key
        rows = Port(back.node, count + 1 + at)
        if at == 0 and self._table is not None:
            rows = self._table
        left, mark = (
            builder.add(Leave(), [port], [kind], scope=self._outside)
            for port, kind in ((rows, schema), (Port(back.node, 2 * count + 1), MARKS))
        )
        moved = self._any._at(left)._exchanged(key)
        name = f"{self._loop.path.rstrip('/')}:result{f'-{at + 1}' * (at > 0)}"
        port = builder.add(Settle(key), [moved._port, mark], [schema], name=name)
        return self._any._at(port, key)

    # -- the solution of a delta iteration

    def _tabled(self, begun: Port, back: Port, solution: Solution) -> Port:
        """The table of the solution, from the rows with which a round begins: at first all of them, then those that the
        round before has accepted."""
        builder, count = self._builder, len(self._variables)
        schema = builder.nodes[begun.node].schemas[0]
        last, ends = Port(back.node, count + 1), Port(back.node, 2 * count + 1)
        moved = [self._any._at(port)._exchanged(solution.key)._port for port in (begun, last)]
        return builder.add(InPlace(solution.key), [*moved, ends], [schema])

    def _touch(self, solution: Solution) -> None:
        """Let the delta be put together with the rows of the solution that it touches, instead of with all."""
        assert self._table is not None
        builder, nodes = self._builder, self._builder.nodes
        proposed = self._any._at(self._copied(solution.proposed._port))
        moved = proposed._exchanged(solution.key)._port
        gather = GatherRound(Arrange(solution.key))
        gathered = builder.add(gather, [moved], [proposed.schema])
        schema = nodes[self._table.node].schemas[0]
        touched = builder.add(Touched(), [gathered, self._table], [schema])
        marking = nodes[solution.marked._port.node]
        self._inside[solution.marked._port] = builder.add(
            marking.operator, [touched], marking.schemas
        )

    def _is_table(self, port: Port) -> bool:
        """Whether a port of the differential loop is the solution, arranged by its key."""
        if self._solution is None:
            return False
        inside = self._variables[0].variable.inside._port
        return bool(self._shared_arrangement(port) == (inside, self._solution.key, ()))

    def _standing(self, node: Node) -> int | None:
        """The input at which a node of a round can read the table of the solution, if there is one."""
        tables = [
            at
            for at, port in enumerate(node.inputs)
            if node.operator.reads(at) and self._is_table(port)
        ]
        varying = [at not in tables and self._varies(port) for at, port in enumerate(node.inputs)]
        if len(tables) != 1 or not any(varying):
            return None
        operator = node.operator.in_round(varying)
        return tables[0] if operator is not None and operator.reads_outside else None

    # -- the body

    def _copied_or_poured(self, port: Port) -> Port:
        """The rows of a port of the differential loop, in each round."""
        if self._varies(port):
            return self._copied(port)
        return self._pour(self._hoist(port))

    def _varies(self, port: Port) -> bool:
        return port.node in self._varying

    def _copied(self, wanted: Port) -> Port:
        """What takes the place of a port whose rows vary: with all nodes that lead to it."""
        waiting = [wanted]
        while waiting:
            port = waiting[-1]
            if port in self._inside:
                waiting.pop()
                continue
            node = self._builder.nodes[port.node]
            if self._table is not None and port == self._variables[0].variable.inside._port:
                # Here all rows of the solution are needed, and not only those of some keys.
                schema = node.schemas[port.output]
                self._inside[port] = self._builder.add(Pour(), [self._marks, self._table], [schema])
                continue
            standing = self._standing(node)
            missing = [
                each
                for at, each in enumerate(node.inputs)
                if self._varies(each) and each not in self._inside and at != standing
            ]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            copy = self._copy(node)
            for output in range(len(node.schemas)):
                self._inside[Port(node.number, output)] = Port(copy.node, output)
        return self._inside[wanted]

    def _copy(self, node: Node) -> Port:
        """The node that does in a round what a node of the differential loop does."""
        standing = self._standing(node)
        varying = [at != standing and self._varies(port) for at, port in enumerate(node.inputs)]
        operator: Any = node.operator.in_round(varying)
        if standing is not None:
            operator = replace(operator, waits=True)
        if operator is None:
            raise NoRounds(f"nothing does in one round alone what {node.operator.describe()} does")
        inputs = []
        for at, port in enumerate(node.inputs):
            if at == standing:
                assert self._table is not None
                inputs.append(self._table)
            elif varying[at]:
                inputs.append(self._inside[port])
            elif not operator.reads(at):
                inputs.append(self._pour(self._hoist(port)))
            elif operator.reads_outside:
                inputs.append(self._bring(self._hoist(port)._port))
            else:
                inputs.append(self._gathered(port))
        return self._added(operator, inputs, node, self.scope)

    def _added(self, operator: Operator, inputs: Sequence[Port], node: Node, scope: Scope) -> Port:
        """A node in the place of `node`, with the line of it in the user's program."""
        name = node.name.removeprefix(self._loop.path) if node.named else None
        if name is not None and scope is not self.scope:
            name = f"{self._loop.path.rstrip('/')}:{name}"
        port = self._builder.add(operator, inputs, node.schemas, scope=scope, name=name)
        nodes = self._builder.nodes
        nodes[port.node] = replace(nodes[port.node], line=node.line)
        return port

    def _hoist(self, wanted: Port) -> Rows:
        """What takes the place of a port whose rows are the same in all rounds, outside of the loop."""
        waiting = [wanted]
        while waiting:
            port = waiting[-1]
            node = self._builder.nodes[port.node]
            if port in self._hoisted:
                waiting.pop()
            elif node.operator.steps_out < 0:
                made = derivation_of(self._any._at(port))
                outer = made.source if isinstance(made, Entered) else None
                self._hoisted[port] = self._any._at(node.inputs[0]) if outer is None else outer
            else:
                shared = self._shared_arrangement(port)
                needed = node.inputs if shared is None else [shared[0]]
                missing = [each for each in needed if each not in self._hoisted]
                if missing:
                    waiting += missing
                    continue
                self._move_out(node, port, shared)
        return self._hoisted[wanted]

    def _move_out(self, node: Node, port: Port, shared: Any) -> None:
        if shared is not None:
            source, key, order = shared
            self._hoisted[port] = self._hoisted[source]._arranged(key, order)
            return
        inputs = [self._hoisted[each]._port for each in node.inputs]
        moved = self._added(node.operator, inputs, node, self._outside)
        for output in range(len(node.schemas)):
            self._hoisted[Port(node.number, output)] = self._any._at(Port(moved.node, output))

    def _shared_arrangement(self, port: Port) -> Any:
        """The rows, key and order of an arrangement that other steps may share; None for other nodes."""
        for key, made in self._builder.shared.items():
            if key[0] == "arrange" and made._port == port:
                return key[1:]
        return None

    # -- rows from outside

    def _arranged(self, rows: Rows) -> Port:
        """An arrangement of rows outside of the loop: one that is there already, if there is."""
        builder, port = self._builder, rows._port
        if rows._keyed is not None:
            return port
        for node in builder.nodes:
            if any(each == port and node.operator.reads(at) for at, each in enumerate(node.inputs)):
                return port
        for key, made in builder.shared.items():
            if key[0] == "arrange" and key[1] == port:
                found: Port = made._port
                return found
        return rows._arranged(tuple(rows.columns))._port

    def _bring(self, arranged: Port) -> Port:
        """An arrangement from outside, to be read inside."""
        if arranged not in self._brought:
            schema = self._builder.nodes[arranged.node].schemas[arranged.output]
            self._brought[arranged] = self._builder.add(
                Bring(), [arranged], [schema], scope=self.scope
            )
        return self._brought[arranged]

    def _pour(self, rows: Rows, first: bool = False) -> Port:
        """Rows from outside of the loop, in each round, or in the `first` one."""
        arranged = self._arranged(rows)
        if (arranged, first) not in self._poured:
            brought = self._bring(arranged)
            schema = self._builder.nodes[brought.node].schemas[0]
            self._poured[arranged, first] = self._builder.add(
                Pour(first), [self._marks, brought], [schema]
            )
        return self._poured[arranged, first]

    def _gathered(self, port: Port) -> Port:
        """The rows of an arrangement of the differential loop that no round changes, gathered in each round."""
        keeper: Any = self._builder.nodes[port.node].operator
        poured = self._pour(self._hoist(port))
        schema = self._builder.nodes[poured.node].schemas[0]
        return self._builder.add(GatherRound(keeper), [poured], [schema])
