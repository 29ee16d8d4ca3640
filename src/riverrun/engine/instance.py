"""An instance: one worker's share of a running plan. Its actors, their state, and what is under way.

Sans-I/O: rows and messages in (`feed`, `receive`), bounded steps (`work`), messages out (`take`). It
is made anew for each execution, from the states that a boundary or a checkpoint has, so whatever was
under way before is gone with the old one.

Chains of linear operators are compiled into one call after the other, from the output of an actor to
the inputs of the next ones; between workers, an exchange sends the pieces that belong to others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from riverrun.engine.backfill import Backfill
from riverrun.engine.comparing import states_of
from riverrun.engine.long_loops import LoopRound, add_up
from riverrun.engine.operator import Actor, Arranged, Context, Linear, located
from riverrun.engine.operators.arrange import Output, Tap
from riverrun.engine.operators.exchange import Exchange
from riverrun.engine.operators.linear import (
    CLOCK,
    Input,
    Probe,
    Returning,
    Source,
    canonical_columns,
)
from riverrun.engine.plan import Node, Plan, Port
from riverrun.engine.reading import ChangesPortion, ViewPortion
from riverrun.engine.resuming import Resume
from riverrun.engine.scheduling import Alone, Together
from riverrun.engine.wire import BadFrame
from riverrun.errors import RiverrunError
from riverrun.forks import finalize
from riverrun.interrupts import is_due
from riverrun.progress import Antichain
from riverrun.progress.reachability import ProgressChange
from riverrun.state import Spine
from riverrun.state.changes import Changes
from riverrun.state.schema import Schema
from riverrun.state.scratch import Scratch
from riverrun.state.shards import Range, Shards
from riverrun.state.view import View

Push = Callable[[Changes], None]
Take = Callable[[Changes], Changes | None]
ALONE = Shards.even(1)
PIECE = 1 << 17  # rows
STEPS = 64  # actors run in one call of `work`
WORTH = 0.8  # where a greater part of the rows is left, adding them up costs more than sending them
LOOKS = 16


class Data(tuple[int, Changes]):
    """A message between workers: changes for the exchange with a number."""

    __slots__ = ()


class Told(tuple[ProgressChange, ...]):
    """A message between workers: what the sender has done to pointstamps, as one."""

    __slots__ = ()


class _Taker:
    """Who takes changes from a port: what it makes of them, and who takes that."""

    __slots__ = ("onward", "take")

    def __init__(self, take: Take, onward: list[_Taker]) -> None:
        self.take = take
        self.onward = onward


class Instance:
    """A plan on worker `index`, which owns what `shards` say, from `epoch` on."""

    def __init__(
        self,
        plan: Plan,
        index: int = 0,
        shards: Shards = ALONE,
        epoch: int = 0,
        states: Mapping[str, View] | None = None,
        *,
        history: int = 1,
        memory: int | None = None,
        resume: Resume | None = None,
    ) -> None:
        """`memory` is how many bytes of state stay in memory; the rest is in files. `resume` is what of the states of
        another program is built anew, where these are those of its epoch."""
        self.plan = plan
        self.index = index
        self._shards = shards
        workers = shards.workers
        self._outgoing: list[tuple[int, object]] = []
        spill: dict[str, Any] = {}
        if memory is not None:
            kept = sum(node.operator.keeps_state for node in plan.nodes)
            scratch = Scratch()
            finalize(self, scratch.close)
            spill = {"budget": memory // max(kept, 1), "directory": scratch.path}
        self._backfill: Backfill | None = None
        self._content: Iterator[None] | None = None
        giving: tuple[Port, ...] = ()
        fresh = resume is not None and resume.epoch == epoch and resume.flow.fresh
        if resume is not None and states is not None and fresh:
            given = [n.number for n in plan.nodes if states.keys() & set(states_of(n))]
            self._backfill = Backfill(resume.flow, epoch, frozenset(given), spill)
            giving = resume.flow.giving
        self._schedule = (
            Alone(plan, epoch) if workers == 1 else Together(plan, epoch, index, workers, giving)
        )
        self._states = {
            name: Spine.from_view(view, **spill) for name, view in (states or {}).items()
        }
        self._actors: dict[int, Actor] = {}
        self._pushes: dict[Port, Push] = {}
        self._onward: dict[Port, list[_Taker]] = {}
        self._pushed: list[tuple[Sequence[_Taker], Changes]] | None = None
        """While changes are led through takers: what these send besides."""
        self._expected: dict[int, tuple[tuple[pa.DataType, ...], int]] = {}
        """Of each exchange that others have sent to, the types of its columns, and how deep its times are."""
        self._turns = 0
        self._notes: list[dict[str, Any]] = []
        self._scope = plan.scopes[0]
        """The loop of the actor that was run last."""
        self.doing: str | None = None
        """The node whose code runs; any thread may look."""
        self.calls = 0
        self._fed: deque[tuple[str, pa.RecordBatch]] = deque()
        self._feeding: int | None = None
        self._added: dict[int, tuple[float, int]] = {}
        """Of an exchange, which part of the rows was left lately, and how often they were not added up since."""
        self._boundary = epoch
        for node in plan.nodes:
            if isinstance(node.operator, Linear | Exchange):
                continue
            sources = []
            if node.operator.reads_arrangements:
                sources = [self._actors[port.node] for port in node.inputs]
            first = epoch if self._backfill is None else epoch + 1
            context = Context(
                node, index, shards, self._states, sources, history, first, spill, self._actors
            )
            context.note = self._note
            self._actors[node.number] = node.operator.start(context)
        self._wire()
        for actor in self._actors.values():
            self._connect(actor)
        self._returning = [a for a in self._actors.values() if isinstance(a, Returning)]
        self._sources = {
            actor.node.operator.name: actor
            for actor in self._actors.values()
            if isinstance(actor, Source) and isinstance(actor.node.operator, Input)
        }
        self.outputs = {
            actor.node.operator.name: actor
            for actor in self._actors.values()
            if isinstance(actor, Tap) and isinstance(actor.node.operator, Output)
        }
        self.probes = {
            node.operator.name: node for node in plan.nodes if isinstance(node.operator, Probe)
        }
        if self._backfill is not None:
            self._backfill.start(self._actors)
        elif epoch:
            for actor in self._actors.values():
                actor.boundary(epoch)

    @property
    def completed(self) -> int:
        """All epochs below are complete, as far as is known here."""
        return self._boundary

    def feed(self, epoch: int, inputs: Mapping[str, pa.RecordBatch]) -> None:
        """This worker's rows of an epoch; their last column is `diff`.

        Many rows are fed piece by piece, in `work`: what one piece sends travels while the next is worked on.
        """
        for name, batch in inputs.items():
            rows = batch.num_rows
            step = PIECE if isinstance(self._schedule, Together) else max(rows, 1)
            if 0 < rows <= step:
                self._fed.append((name, batch))
                continue
            for start in range(0, rows, step):
                self._fed.append((name, batch.slice(start, step)))
        self._feeding = epoch
        if self._backfill is not None and epoch == self._backfill.epoch:
            self._content = self._backfill.pieces(self._actors, self._push)
        self._feed_on()

    def _feed_on(self) -> None:
        """Take in the next piece; after the last one there is no more of the epoch."""
        epoch = self._feeding
        assert epoch is not None
        if self._content is not None:
            if next(self._content, self) is not self:
                self._settle()
                return
            self._content = None
        while self._fed:
            name, batch = self._fed.popleft()
            source = self._sources[name]
            self._guarded(source.node, partial(source.feed, _as_changes(source.node, batch, epoch)))
            if self._fed and batch.num_rows >= PIECE:
                self._settle()
                return
        self._feeding = None
        if CLOCK in self._sources and self.index == 0:
            self._sources[CLOCK].feed(Changes.of([pa.array([epoch])], (epoch,)))
        self._schedule.close(epoch)
        self._settle()

    def receive(self, sender: int, payload: object) -> None:
        """A message from another worker."""
        assert isinstance(self._schedule, Together)
        if isinstance(payload, Told):
            self._schedule.apply(payload)
            return
        if not isinstance(payload, Data):
            raise BadFrame(f"a worker has no business to send a {type(payload).__name__}")
        number, changes = payload
        self._check_expected(number, changes)
        ports = self.plan.ports[number]
        assert ports is not None
        self._schedule.takes(ports.inputs[0], changes.times)
        self._push(Port(number))(changes)
        self._settle()

    def _check_expected(self, number: int, changes: Changes) -> None:
        """Refuse what no worker of this plan sends: kernels read columns as the plan says that they are."""
        expected = self._expected.get(number)
        if expected is None:
            nodes = self.plan.nodes
            if number >= len(nodes) or not isinstance(nodes[number].operator, Exchange):
                raise BadFrame(f"nothing is sent to node {number}")
            node = nodes[number]
            kinds = Schema(pa.schema([]), node.schemas[0]).canonical
            expected = self._expected[number] = kinds, node.depth
        kinds, depth = expected
        found = tuple([column.type for column in changes.columns])
        if found != kinds or len(changes.times[0]) != depth:
            raise BadFrame(f"rows of {found} at {changes.times[0]} are not what node {number} has")

    def work(self) -> bool:
        """Run a few actors whose turn it is; whether there was one."""
        schedule = self._schedule
        if self._feeding is not None:
            self._feed_on()
            return True
        for step in range(STEPS):
            turn = schedule.next()
            if turn is None:
                return step > 0
            actor, time, upper = turn
            self.doing = actor.node.name
            self._scope = actor.node.scope
            self.calls += 1
            try:
                actor.run(time, upper)
            except RiverrunError as error:
                raise located(actor.node, error) from error.__cause__
            except Exception as error:
                raise located(actor.node, error) from error
            self.doing = None
            schedule.ran(actor, time)
            self._settle()
            if self._tell() or is_due():
                return True  # the others can go on with it meanwhile; or somebody wants to end it
        return True

    def take(self) -> list[tuple[int, object]]:
        """The messages for other workers, in order."""
        self._tell()
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def pin(self) -> dict[str, View]:
        """The states at the boundary, which nothing that comes after will change."""
        views = {name: spine.view() for name, spine in self._states.items()}
        for actor in self._actors.values():
            views.update(actor.saved(self._boundary))
        return views

    def notes(self) -> tuple[dict[str, Any], ...]:
        """What there is to be told to who watches the run, since it was asked for last."""
        noted, self._notes = self._notes, []
        return tuple(noted)

    def _note(self, kind: str, **fields: Any) -> None:
        self._notes.append({"kind": kind, **fields})

    def _tell(self) -> bool:
        """Put what the others should know now behind the rows that they get; whether there is any."""
        schedule = self._schedule
        if not isinstance(schedule, Together):
            return False
        told = schedule.tell()
        if told:
            peers = range(self._shards.workers)
            self._outgoing += [(peer, Told(told)) for peer in peers if peer != self.index]
        if schedule.completed > self._boundary:
            self._complete()
        return bool(told)

    def _settle(self) -> None:
        self._schedule.settle()
        if self._schedule.completed > self._boundary:
            self._complete()

    def _complete(self) -> None:
        self._boundary = self._schedule.completed
        if self._backfill is not None:
            self._backfill.finish(self._actors)
        for actor in self._actors.values():
            actor.boundary(self._boundary)

    def _connect(self, actor: Actor) -> None:
        node, context = actor.node, actor.context
        context.request = partial(self._schedule.request, actor)
        pushes = [self._push(Port(node.number, at)) for at in range(len(node.schemas))]
        context.has_consumers = any(
            self._takers(Port(node.number, at)) for at in range(len(pushes))
        )
        context.needed = self._needed(node)
        schedule, ports = self._schedule, self.plan.ports[node.number]
        if isinstance(schedule, Together) and ports is not None:
            context.arrive = lambda port, time: schedule.passes(ports.inputs[port], (time,))
        if len(pushes) == 1:
            (only,) = pushes
            context.push = lambda changes, output: only(changes)
        else:
            context.push = lambda changes, output: pushes[output](changes)

    def _takers(self, port: Port) -> list[tuple[Node, int]]:
        """Who takes changes from a port, rather than batches of its arrangement."""
        found = self.plan.consumers.get(port, [])
        return [(node, at) for node, at in found if not node.operator.reads(at)]

    def _needed(self, node: Node) -> Sequence[int] | None:
        """Which columns of what a node sends are looked at, if that is known."""
        used: set[int] = set()
        for output in range(len(node.schemas)):
            for taker, _ in self._takers(Port(node.number, output)):
                mine = taker.operator.used if isinstance(taker.operator, Linear) else None
                if mine is None:
                    return None
                used.update(mine)
        return sorted(used)

    def _push(self, port: Port) -> Push:
        """What is done with changes that leave a port."""
        if port not in self._pushes:
            self._pushes[port] = partial(self._drive, self._onward[port])
        return self._pushes[port]

    def _drive(self, takers: Sequence[_Taker], changes: Changes) -> None:
        """Lead changes through all takers, and what these make of them through theirs, one after the other.

        A stack of our own in place of calls within calls: chains of operators are as long as people write them.
        Whoever sends while it takes (a vertex) is led on when it has taken.
        """
        pushed = self._pushed
        if pushed is not None:
            pushed.append((takers, changes))
            return
        pushed = self._pushed = []
        stack = [(taker, changes) for taker in reversed(takers)]
        try:
            while stack:
                taker, given = stack.pop()
                while True:
                    made = taker.take(given)
                    if pushed:
                        for onward, more in reversed(pushed):
                            stack += [(each, more) for each in reversed(onward)]
                        pushed.clear()
                    if made is None or not made.rows or not taker.onward:
                        break
                    for each in taker.onward[:0:-1]:
                        stack.append((each, made))
                    taker, given = taker.onward[0], made
        finally:
            self._pushed = None

    def _wire(self) -> None:
        """Find out, for each port, who takes what leaves it."""
        alone = isinstance(self._schedule, Alone)
        for node in self.plan.nodes:
            for output in range(len(node.schemas)):
                self._onward[Port(node.number, output)] = []
        for port, takers in self._onward.items():
            waiting = list(reversed(self._takers(port)))
            while waiting:
                node, at = waiting.pop()
                if alone and isinstance(node.operator, Exchange):  # where it leads to
                    waiting += reversed(self._takers(Port(node.number)))
                else:
                    takers.append(self._taker(node, at))

    def _taker(self, node: Node, at: int) -> _Taker:
        """What is done with changes that arrive at an input."""
        onward = self._onward[Port(node.number)] if node.schemas else []
        take = self._take(node, at)
        if self._backfill is not None:
            take = self._backfill.gate(node.number, take)
        is_passed = isinstance(node.operator, Linear | Exchange)
        return _Taker(take, onward if is_passed else [])

    def _take(self, node: Node, at: int) -> Take:
        operator, ports, schedule = node.operator, self.plan.ports[node.number], self._schedule
        location = None if ports is None else ports.inputs[at]
        together = schedule if isinstance(schedule, Together) else None
        if isinstance(operator, Exchange):
            assert together is not None
            if node.number not in together.staying:
                return partial(self._exchange, node)

            def stay(changes: Changes) -> Changes:
                assert location is not None
                together.passes(location, changes.times)
                return changes

            return stay
        if isinstance(operator, Linear):
            apply = operator.apply

            def linear(changes: Changes) -> Changes | None:
                if together is not None and location is not None:
                    together.passes(location, changes.times)
                outer, self.doing = self.doing, node.name
                self.calls += 1
                try:
                    made = apply(changes)
                except Exception as error:
                    raise located(node, error) from error
                self.doing = outer
                return made

            return linear
        receive = self._actors[node.number].receive
        if together is None:
            return partial(receive, at)

        def arrive(changes: Changes) -> None:
            assert location is not None
            assert together is not None
            together.passes(location, changes.times)
            receive(at, changes)

        return arrive

    def _exchange(self, node: Node, changes: Changes) -> Changes | None:
        """Send what belongs to others, and give what stays."""
        operator, ports = node.operator, self.plan.ports[node.number]
        assert isinstance(operator, Exchange)
        assert isinstance(self._schedule, Together)
        assert ports is not None
        self._turns += 1
        mine = None
        pieces = operator.dispatch(changes, self._shards, self._turns + self.index)
        for peer, piece in enumerate(pieces):
            if piece is None or piece.rows == 0:
                continue
            if peer == self.index:
                self._schedule.passes(ports.inputs[0], piece.times)
                mine = piece
                continue
            if operator.combine:
                piece = self._added_up(node.number, piece)
            if piece.rows:
                self._schedule.sends(ports.inputs[0], peer, piece.times)
                self._outgoing.append((peer, Data((node.number, piece))))
        return mine

    def _added_up(self, number: int, piece: Changes) -> Changes:
        """Equal rows added up before they travel, at an exchange where that was worth it lately."""
        left, passed = self._added.get(number, (0.0, 0))
        if left > WORTH and passed < LOOKS:
            self._added[number] = left, passed + 1
            return piece
        added = piece.consolidate()
        self._added[number] = (left + added.rows / piece.rows) / 2, 0
        return added

    def _guarded(self, node: Node, function: Callable[[], None]) -> None:
        try:
            function()
        except RiverrunError as error:
            raise located(node, error) from error.__cause__

    def read(self, name: str, epoch: int, ranges: Sequence[Range] | None = None) -> ViewPortion:
        """Its part of an output as of an epoch that is kept; of that, the rows in these ranges of hashes."""
        tap = self.outputs[name]
        view, at = tap.view_as_of(epoch)
        return ViewPortion(name, tap.node.schemas[0], view, at, ranges)

    def changes(
        self, name: str, epoch: int, ranges: Sequence[Range] | None = None
    ) -> ChangesPortion:
        """Its part of what an epoch changed in an output; of that, the rows in these ranges of hashes."""
        tap = self.outputs[name]
        return ChangesPortion(tap.node.schemas[0], tap.changes(epoch, ranges))

    def frontier(self, name: str) -> Antichain:
        """The times that can still come to a probe, as far as is known here."""
        node = self.probes[name]
        ports = self.plan.ports[node.number]
        assert ports is not None
        return self._schedule.frontier(ports.inputs[0])

    @property
    def touched(self) -> int:
        """How many changes were made to arrangements so far: the measure of work. Any thread may ask."""
        return sum(
            actor.arrangement.rows
            for actor in self._actors.values()
            if isinstance(actor, Arranged) and not isinstance(actor, Tap)
        )

    def loops(self) -> list[LoopRound]:
        """The loops that are going here. Any thread may ask."""
        rounds, scope = [], self._scope
        for actor in self._returning:
            going = actor.going
            if going is not None and scope.is_inside(actor.node.scope):
                time, rows = going
                rounds.append(LoopRound(actor.loop, actor.node.line, time, rows))
        return add_up(rounds)

    def arrangements(self) -> dict[str, Spine]:
        """Every state on this worker, by name."""
        return dict(self._states)

    def stats(self) -> dict[str, Any]:
        """How large each state is here."""
        found: dict[str, dict[str, Any]] = {
            name: {"rows": len(spine), "bytes": spine.nbytes}
            for name, spine in self._states.items()
        }
        for actor in self._actors.values():
            for name, figures in actor.figures().items():
                for what, figure in figures.items():
                    known = found.setdefault(name, {}).get(what)
                    found[name][what] = figure if known is None else known + figure
        return found


@dataclass(frozen=True)
class Maker:
    """Makes the instances of a plan; travels to where workers are."""

    plan: Plan
    history: int = 1
    memory: int | None = None
    resume: Resume | None = None

    def __call__(
        self, index: int, shards: Shards, epoch: int, states: Mapping[str, View] | None
    ) -> Instance:
        return Instance(
            self.plan,
            index,
            shards,
            epoch,
            states,
            history=self.history,
            memory=self.memory,
            resume=self.resume,
        )

    def translate(self, number: int, states: Mapping[str, View]) -> Mapping[str, View]:
        """The states that a checkpoint has, under the names that they have in this plan."""
        return states if self.resume is None else self.resume.translate(number, states)

    def resuming(self, resume: Resume) -> Maker:
        """One that makes instances that know how to go on from the states of another program."""
        return replace(self, resume=resume)


def _as_changes(node: Node, batch: pa.RecordBatch, epoch: int) -> Changes:
    """Rows that were fed, as changes."""
    columns = canonical_columns(batch, node.schemas[0])  # by position: a column may be called diff
    diffs = np.asarray(batch.column(batch.num_columns - 1))
    if len(diffs) == 1 or (diffs == diffs[0]).all():
        return Changes(columns, batch.num_rows, ((epoch,),), None, int(diffs[0]), None)
    return Changes(columns, batch.num_rows, ((epoch,),), None, 0, diffs)


__all__ = ["Arranged", "Data", "Instance", "Told"]
