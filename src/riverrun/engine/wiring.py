"""Wiring: how changes go from the outputs of a plan to the nodes that take them, on one worker.

An instance makes one `Wiring`, of its actors and its schedule. Chains of linear operators are compiled into calls one
after the other, from an output of an actor to the inputs of the next actors. At an exchange, pieces that belong to
other workers go to `outgoing`. Laws:

- **Every taker once.** Changes that leave an output come to every input that takes changes from this output, once, in
  the order of nodes. Inputs that read an arrangement get nothing this way.
- **Seamless.** An exchange that moves no rows, and whose input nobody watches, is no step at all: its takers take from
  the output that leads to the exchange.
- **Told before taken.** Where the schedule watches a port, it hears of the times of changes before these are taken.
- **No recursion.** Changes are led along by a stack of our own, so chains may be as long as people write them.
- **Ways meet.** Changes of one batch come to a node by at most `WAYS` ways one by one. A concat at which more ways end
  is a *meeting point*: it waits until the batch has come by all of them, and goes on with the sum. (A chain of n times
  ``c = c.concat(c.filter(...))`` has 2**n ways.)

Cost: takers are looked up once, when an instance begins; then each batch costs one call for each node that it passes,
and at a meeting point 60 ns for each row that has come there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from riverrun.engine.schedule import Schedule
from riverrun.errors import RiverrunError
from riverrun.plan.operator import Actor, Linear, Role, located
from riverrun.plan.plan import Node, Plan, Port
from riverrun.progress import Timestamp
from riverrun.state.changes import Changes
from riverrun.state.shards import Shards

Push = Callable[[Changes], None]
Take = Callable[[Changes], Changes | None]
Gate = Callable[[int, Take], Take]
Watch = Callable[[Iterable[Timestamp]], None]
WORTH = 0.8  # where a greater part of the rows is left, adding rows up costs more than sending them
WAYS = 8  # from so many ways on, by which changes of one batch can come to a concat, they are added up there
LOOKS = 16  # batches that are not added up at such an exchange, before one is again


class RoutedChanges(tuple[int, Changes]):
    """A message between workers: changes for the exchange with a number."""

    __slots__ = ()


class _Taker:
    """A node that takes changes from an output: `take` gives its own changes, `onward` are the takers of these.

    A meeting point has its number as `meeting`; other nodes have None.
    """

    __slots__ = ("meeting", "onward", "take", "watch")

    def __init__(
        self, take: Take, onward: list[_Taker], meeting: int | None, watch: Watch | None
    ) -> None:
        self.take = take
        self.onward = onward
        self.meeting = meeting
        self.watch = watch


@dataclass(frozen=True, slots=True)
class _Crossing:
    """An exchange at which rows may go to other workers."""

    number: int
    location: int
    """The port of its input, where progress is tracked."""
    dispatch: Callable[[Changes, Shards, int], Sequence[Changes | None]]
    adds_before: bool
    watch: Watch | None


class Wiring:
    """How changes go through a plan on worker `index`; `shards` say which worker owns which hashes.

    `gate` may wrap the function with which a node takes changes (`engine.backfill`).
    """

    def __init__(
        self,
        plan: Plan,
        index: int,
        shards: Shards,
        schedule: Schedule,
        actors: Mapping[int, Actor],
        gate: Gate,
    ) -> None:
        self.plan = plan
        self.index = index
        self.shards = shards
        self.outgoing: list[tuple[int, object]] = []
        """The messages for other workers, in order: the instance takes the list away to send them."""
        self.doing: str | None = None
        """The node whose code runs; any thread may look."""
        self.calls = 0
        """How often the code of a node was called."""
        self._schedule = schedule
        self._actors = actors
        self._gate = gate
        self._pushed: list[tuple[Sequence[_Taker], Changes]] | None = None
        """While changes are led through takers: the changes that takers send themselves meanwhile."""
        self._turns = 0
        self._added: dict[int, tuple[float, int]] = {}
        """For each exchange, the part of the rows that adding up left lately, and how many batches were not added up
        since."""
        self._meetings = _meeting_points(plan)
        self._onward: dict[Port, list[_Taker]] = {
            Port(node.number, output): []
            for node in plan.nodes
            for output in range(len(node.schemas))
        }
        for port, takers in self._onward.items():
            takers += self._takers(port)
        self._pushes = {port: partial(self._drive, takers) for port, takers in self._onward.items()}
        for actor in actors.values():
            self._connect(actor)

    def push(self, port: Port) -> Push:
        """The function that leads changes from an output to their takers."""
        return self._pushes[port]

    # -- once, when an instance begins

    def _connect(self, actor: Actor) -> None:
        """Connect the context of an actor: to send changes, and to request times."""
        node, context = actor.node, actor.context
        context.request = partial(self._schedule.request, actor)
        ports = [Port(node.number, at) for at in range(len(node.schemas))]
        context.has_consumers = any(self._inputs_at(port) for port in ports)
        context.needed = self._needed(ports)
        inputs_watched = [self._watcher(node, at) for at in range(len(node.inputs))]
        watchers = [
            each for each in inputs_watched if each is not None
        ]  # for all inputs, or for none
        if watchers:
            context.arrive = lambda at, time: watchers[at]((time,))
        pushes = [self._pushes[port] for port in ports]
        if len(pushes) == 1:
            (only,) = pushes
            context.push = lambda changes, output: only(changes)
        else:
            context.push = lambda changes, output: pushes[output](changes)

    def _inputs_at(self, port: Port) -> list[tuple[Node, int]]:
        """The inputs that take changes from an output, rather than batches of its arrangement."""
        readers = self.plan.consumers.get(port, [])
        return [(node, at) for node, at in readers if not node.operator.reads(at)]

    def _needed(self, ports: Iterable[Port]) -> Sequence[int] | None:
        """The columns of a node's outputs that its takers look at; None where that is not known."""
        used: set[int] = set()
        for port in ports:
            for node, _ in self._inputs_at(port):
                linear = node.operator.as_linear
                if linear is None or linear.used is None:
                    return None
                used.update(linear.used)
        return sorted(used)

    def _takers(self, port: Port) -> list[_Taker]:
        """The takers of an output (*every taker once*, *seamless*)."""
        takers = []
        waiting = self._inputs_at(port)[::-1]
        while waiting:
            node, at = waiting.pop()
            if self._is_seamless(node, at):
                waiting += reversed(self._inputs_at(Port(node.number)))
            else:
                takers.append(self._taker(node, at))
        return takers

    def _is_seamless(self, node: Node, at: int) -> bool:
        return (
            node.operator.as_exchange is not None
            and not self._schedule.crosses(node.number)
            and self._watcher(node, at) is None
        )

    def _watcher(self, node: Node, at: int) -> Watch | None:
        """The schedule's function that is to hear of changes which come to an input, if any."""
        ports = self.plan.ports[node.number]
        return None if ports is None else self._schedule.watcher(ports.inputs[at])

    def _taker(self, node: Node, at: int) -> _Taker:
        """The taker at an input, and the takers behind it."""
        take = self._gate(node.number, self._take(node, at))
        passed = [] if node.operator.has_actor else self._onward[Port(node.number)]
        meeting = node.number if node.number in self._meetings else None
        return _Taker(take, passed, meeting, self._watcher(node, at))

    def _take(self, node: Node, at: int) -> Take:
        operator, watch = node.operator, self._watcher(node, at)
        linear, exchange = operator.as_linear, operator.as_exchange
        if linear is not None:
            return self._apply(node, linear, watch)
        if exchange is not None and self._schedule.crosses(node.number):
            ports = self.plan.ports[node.number]
            assert ports is not None
            location, combines = ports.inputs[at], exchange.adds_before
            crossing = _Crossing(node.number, location, exchange.dispatch, combines, watch)
            return partial(self._exchange, crossing)
        if exchange is not None:

            def stay(changes: Changes) -> Changes:
                assert watch is not None  # otherwise the exchange is seamless
                watch(changes.times)
                return changes

            return stay
        receive = self._actors[node.number].receive
        if watch is None:
            return partial(receive, at)

        def arrive(changes: Changes) -> None:
            watch(changes.times)
            receive(at, changes)

        return arrive

    def _apply(self, node: Node, linear: Linear, watch: Watch | None) -> Take:
        apply = linear.apply

        def applied(changes: Changes) -> Changes | None:
            if watch is not None:
                watch(changes.times)
            outer, self.doing = self.doing, node.name
            self.calls += 1
            try:
                result = apply(changes)
            except Exception as error:
                raise located(node, error) from error
            self.doing = outer
            return result

        return applied

    # -- for every batch

    def _drive(self, takers: Sequence[_Taker], changes: Changes) -> None:
        """Lead changes through all takers, and the changes that these give through their takers (*no recursion*).

        Changes that a node sends while it takes others, as a vertex may, are led on when it has taken these.
        """
        pushed = self._pushed
        if pushed is not None:
            pushed.append((takers, changes))
            return
        pushed = self._pushed = []
        stack = [(taker, changes) for taker in reversed(takers)]
        waiting: dict[int, tuple[_Taker, list[Changes]]] = {}
        """By meeting point, what has come there of this batch (*ways meet*)."""
        try:
            while stack or waiting:
                if stack:
                    taker, arrived = stack.pop()
                    if taker.meeting is not None:
                        if taker.watch is not None:
                            taker.watch(arrived.times)
                        waiting.setdefault(taker.meeting, (taker, []))[1].append(arrived)
                        continue
                else:  # no way is left to the first of them: nodes come after the nodes that they take from
                    taker, pieces = waiting.pop(min(waiting))
                    arrived = pieces[0]
                    if len(pieces) > 1:
                        arrived = self._met(taker, pieces)
                        if not arrived.rows:
                            continue
                while True:
                    result = taker.take(arrived)
                    if pushed:
                        for onward, more in reversed(pushed):
                            stack += [(each, more) for each in reversed(onward)]
                        pushed.clear()
                    if result is None or not result.rows or not taker.onward:
                        break
                    for each in taker.onward[:0:-1]:
                        stack.append((each, result))
                    taker, arrived = taker.onward[0], result
                    if taker.meeting is not None:
                        stack.append((taker, arrived))
                        break
        finally:
            self._pushed = None

    def _met(self, taker: _Taker, pieces: Sequence[Changes]) -> Changes:
        """The sum of what came to a meeting point."""
        assert taker.meeting is not None
        try:
            return Changes.concat(pieces).consolidate()
        except RiverrunError as error:
            raise located(self.plan.nodes[taker.meeting], error) from error

    def _exchange(self, crossing: _Crossing, changes: Changes) -> Changes | None:
        """Send the rows of other workers on their way, and return the rows that stay."""
        self._turns += 1
        mine = None
        pieces = crossing.dispatch(changes, self.shards, self._turns + self.index)
        for peer, piece in enumerate(pieces):
            if piece is None or piece.rows == 0:
                continue
            if peer == self.index:
                if crossing.watch is not None:
                    crossing.watch(piece.times)
                mine = piece
                continue
            if crossing.adds_before:
                piece = self._added_up(crossing.number, piece)
            if piece.rows:
                self._schedule.sends(crossing.location, peer, piece.times)
                self.outgoing.append((peer, RoutedChanges((crossing.number, piece))))
        return mine

    def _added_up(self, number: int, piece: Changes) -> Changes:
        """A piece with equal rows added up before they travel, at an exchange where that was worth it lately."""
        left, passed = self._added.get(number, (0.0, 0))
        if left > WORTH and passed < LOOKS:
            self._added[number] = left, passed + 1
            return piece
        added = piece.consolidate()
        self._added[number] = (left + added.rows / piece.rows) / 2, 0
        return added


def _meeting_points(plan: Plan) -> frozenset[int]:
    """The concats at which changes are added up (*ways meet*), by their numbers.

    Ways are counted from actors, and from meeting points, whatever batch takes them: so there are at least as many as
    for any one batch.
    """
    ways = [1] * len(plan.nodes)
    meetings = set()
    for node in plan.nodes:
        if node.operator.has_actor:
            continue
        ways[node.number] = sum([ways[port.node] for port in node.inputs])
        if ways[node.number] > WAYS and node.operator.role is Role.CONCAT:
            ways[node.number] = 1
            meetings.add(node.number)
    return frozenset(meetings)
