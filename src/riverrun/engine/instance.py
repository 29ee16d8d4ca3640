"""An instance: one worker's share of a running plan. Its actors, their state, and what is under way.

Sans-I/O: rows and messages in (`feed`, `receive`), bounded steps (`work`), messages out (`take`). It
is made anew for each execution, from the states that a boundary or a checkpoint has, so whatever was
under way before is gone with the old one.

It puts together what stands apart: which actor is run next (`schedule`), who takes what an actor sends (`wiring`), and
how the states come to the boundary at which it begins (`backfill`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from riverrun.engine.backfill import Beginning, beginning_of
from riverrun.engine.coordinator.resume import Resume
from riverrun.engine.loop_rounds import LoopRound, add_up
from riverrun.engine.reading import ChangesPortion, ViewPortion
from riverrun.engine.schedule import schedule_of
from riverrun.engine.wiring import RoutedChanges, Wiring
from riverrun.errors import BadMessage, RiverrunError
from riverrun.forks import finalize
from riverrun.interrupts import is_due
from riverrun.operators.arrange import Tap
from riverrun.operators.loops import Returning
from riverrun.operators.sources import Source
from riverrun.plan.operator import Actor, Arranged, Context, Role, located
from riverrun.plan.plan import Node, Plan, Port
from riverrun.progress import Antichain
from riverrun.progress.reachability import ProgressChange
from riverrun.rows.records import canonical_columns
from riverrun.state import Spine
from riverrun.state.changes import Changes
from riverrun.state.schema import Schema
from riverrun.state.shards import Range, Shards
from riverrun.state.view import View
from riverrun.storage.scratch import Scratch

ActorKind = TypeVar("ActorKind", bound=Actor)
ALONE = Shards.even(1)
PIECE = 1 << 17  # rows
STEPS = 64  # actors run in one call of `work`


class ProgressNews(tuple[ProgressChange, ...]):
    """A message between workers: what the sender has done to pointstamps, as one."""

    __slots__ = ()


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
        self._peers = [peer for peer in range(shards.workers) if peer != index]
        spill: dict[str, Any] = {}
        if memory is not None:
            keeping = sum(node.operator.keeps_state for node in plan.nodes)
            scratch = Scratch()
            finalize(self, scratch.close)
            spill = {"budget": memory // max(keeping, 1), "directory": scratch.path}
        beginning = beginning_of(plan, epoch, states, resume, spill)
        self._beginning: Beginning | None = beginning
        """What brings this instance to its first boundary, until it is there."""
        self._schedule = schedule_of(plan, epoch, index, shards.workers, beginning.giving)
        self._states = {
            name: Spine.from_view(view, **spill) for name, view in (states or {}).items()
        }
        self._notes: list[dict[str, Any]] = []
        self._actors: dict[int, Actor] = {}
        self._start_actors(shards, history, beginning.first, spill)
        self._wiring = Wiring(plan, index, shards, self._schedule, self._actors, beginning.gate)
        self._sources = {name: self._actor(node, Source) for name, node in plan.inputs.items()}
        self._clock = None if plan.clock is None else self._actor(plan.clock, Source)
        self.outputs = {name: self._actor(node, Tap) for name, node in plan.outputs.items()}
        self._returning = [
            self._actor(node, Returning) for node in plan.nodes if node.operator.is_feedback
        ]
        self._expected: dict[int, tuple[tuple[pa.DataType, ...], int]] = {}
        """Of each exchange that others have sent to, the types of its columns, and how deep its times are."""
        self._scope = plan.scopes[0]
        """The loop of the actor that was run last."""
        self._fed: deque[tuple[str, pa.RecordBatch]] = deque()
        self._feeding: int | None = None
        self._boundary = epoch
        beginning.start(self._actors)
        self._content = beginning.content(self._wiring.push)

    def _start_actors(
        self, shards: Shards, history: int, first: int, spill: Mapping[str, Any]
    ) -> None:
        """Start what is alive of each node, those before it first; what comes out of it leads nowhere yet."""
        for node in self.plan.nodes:
            if not node.operator.has_actor:
                continue
            read = node.inputs if node.operator.reads_arrangements else ()
            sources = [self._actors[port.node] for port in read]
            context = Context(
                node, self.index, shards, self._states, sources, history, first, spill, self._actors
            )
            context.note = self._note
            self._actors[node.number] = node.operator.start(context)

    def _actor(self, node: Node, kind: type[ActorKind]) -> ActorKind:
        """The actor of a node, which is of the kind that belongs to its role."""
        actor = self._actors[node.number]
        assert isinstance(actor, kind)
        return actor

    @property
    def completed(self) -> int:
        """All epochs below are complete, as far as is known here."""
        return self._boundary

    @property
    def doing(self) -> str | None:
        """The node whose code runs. Any thread may ask."""
        return self._wiring.doing

    @property
    def calls(self) -> int:
        """How often the code of a node was called. Any thread may ask."""
        return self._wiring.calls

    def feed(self, epoch: int, inputs: Mapping[str, pa.RecordBatch]) -> None:
        """This worker's rows of an epoch; their last column is `diff`.

        Many rows are fed piece by piece, in `work`: what one piece sends travels while the next is worked on.
        """
        for name, batch in inputs.items():
            rows = batch.num_rows
            step = PIECE if self._schedule.has_peers else max(rows, 1)
            if 0 < rows <= step:
                self._fed.append((name, batch))
                continue
            for start in range(0, rows, step):
                self._fed.append((name, batch.slice(start, step)))
        self._feeding = epoch
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
        if self._clock is not None and self.index == 0:
            self._clock.feed(Changes.of([pa.array([epoch])], (epoch,)))
        self._schedule.close(epoch)
        self._settle()

    def receive(self, sender: int, payload: object) -> None:
        """A message from another worker."""
        if isinstance(payload, ProgressNews):
            self._schedule.apply(payload)
            return
        if not isinstance(payload, RoutedChanges):
            raise BadMessage(f"a worker has no business to send a {type(payload).__name__}")
        number, changes = payload
        self._check_expected(number, changes)
        ports = self.plan.ports[number]
        assert ports is not None
        self._schedule.takes(ports.inputs[0], changes.times)
        self._wiring.push(Port(number))(changes)
        self._settle()

    def _check_expected(self, number: int, changes: Changes) -> None:
        """Refuse what no worker of this plan sends: kernels read columns as the plan says that they are."""
        expected = self._expected.get(number)
        if expected is None:
            nodes = self.plan.nodes
            if number >= len(nodes) or nodes[number].operator.role is not Role.EXCHANGE:
                raise BadMessage(f"nothing is sent to node {number}")
            node = nodes[number]
            kinds = Schema(pa.schema([]), node.schemas[0]).canonical
            expected = self._expected[number] = kinds, node.depth
        kinds, depth = expected
        found = tuple([column.type for column in changes.columns])
        if found != kinds or len(changes.times[0]) != depth:
            raise BadMessage(
                f"rows of {found} at {changes.times[0]} are not what node {number} has"
            )

    def work(self) -> bool:
        """Run a few actors whose turn it is; whether there was one."""
        schedule, wiring = self._schedule, self._wiring
        if self._feeding is not None:
            self._feed_on()
            return True
        for step in range(STEPS):
            turn = schedule.next()
            if turn is None:
                return step > 0
            actor, time, upper = turn
            wiring.doing = actor.node.name
            self._scope = actor.node.scope
            wiring.calls += 1
            try:
                actor.run(time, upper)
            except RiverrunError as error:
                raise located(actor.node, error) from error.__cause__
            except Exception as error:
                raise located(actor.node, error) from error
            wiring.doing = None
            schedule.ran(actor, time)
            schedule.settle()
            if self._tell() or is_due():
                return True  # the others can go on with it meanwhile; or somebody wants to end it
        return True

    def take(self) -> list[tuple[int, object]]:
        """The messages for other workers, in order."""
        self._tell()
        wiring = self._wiring
        outgoing, wiring.outgoing = wiring.outgoing, []
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
        news = self._schedule.tell()
        if news:
            self._wiring.outgoing += [(peer, ProgressNews(news)) for peer in self._peers]
        if self._schedule.completed > self._boundary:
            self._complete()
        return bool(news)

    def _settle(self) -> None:
        self._schedule.settle()
        if self._schedule.completed > self._boundary:
            self._complete()

    def _complete(self) -> None:
        self._boundary = self._schedule.completed
        if self._beginning is not None:
            self._beginning.finish()
            self._beginning = None
        for actor in self._actors.values():
            actor.boundary(self._boundary)

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
        node = self.plan.probes[name]
        ports = self.plan.ports[node.number]
        assert ports is not None
        return self._schedule.frontier(ports.inputs[0])

    @property
    def touched(self) -> int:
        """How many changes were made to arrangements so far: the measure of work. Any thread may ask."""
        return sum(
            actor.arrangement.rows
            for actor in self._actors.values()
            if isinstance(actor, Arranged) and actor.node.operator.keeps_state
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


__all__ = ["Arranged", "Instance", "ProgressNews", "RoutedChanges"]
