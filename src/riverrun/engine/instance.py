"""The instance: one worker's share of a running plan, with its actors, their states, and all work under way.

An *actor* is the living part of a node on one worker: the node's state, and the changes that wait there for their time
to be complete. Linear operators and exchanges have no actor. A `worker` makes an instance at the start of each
*execution*: when the run starts, and again after a loss, a refused epoch or a move of shards. An instance starts from
the states at a *boundary* between two epochs, pinned in memory or read from a checkpoint; all work that was under way
is gone with the old instance. Sans I/O: rows and messages go in (`feed`, `receive`), work is done in bounded steps
(`work`), messages come out (`take`).

An instance consists of a `schedule`, which says which actor is run next; of a `wiring`, which leads changes from an
actor, through linear operators and exchanges, to the actors that take them; and of a beginning (`backfill`): where a
changed program goes on from a checkpoint, it builds the states that the checkpoint lacks; otherwise it does nothing.
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
from riverrun.engine.round_meter import RoundMeter
from riverrun.engine.schedule import schedule_of
from riverrun.engine.wiring import RoutedChanges, Wiring
from riverrun.errors import BadMessage, RiverrunError
from riverrun.forks import finalize
from riverrun.interrupts import is_due
from riverrun.operators.arrange import Tap
from riverrun.operators.loops import GoingAround
from riverrun.operators.sources import Source
from riverrun.plan.loop_figures import LoopFigures
from riverrun.plan.operator import Actor, Arranged, Context, Role, located
from riverrun.plan.plan import Node, Plan, Port
from riverrun.plan.saved_rounds import RoundSaves
from riverrun.progress import Antichain
from riverrun.progress.reachability import ProgressChange
from riverrun.rows.records import canonical_columns
from riverrun.state import Spine
from riverrun.state.changes import Changes
from riverrun.state.columns import as_array, as_column
from riverrun.state.schema import Schema
from riverrun.state.shards import Range, Shards
from riverrun.state.view import View
from riverrun.storage.scratch import Scratch

ActorKind = TypeVar("ActorKind", bound=Actor)
ALONE = Shards.even(1)
PIECE = 1 << 17  # rows
STEPS = 64  # actors run in one call of `work`


class ProgressNews(tuple[ProgressChange, ...]):
    """A message between workers: changes of the sender to pointstamps, which belong together."""

    __slots__ = ()


class Instance:
    """A plan on worker `index`, which owns the hashes that `shards` give to this index, from `epoch` on."""

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
        """`memory` is how many bytes of state stay in memory; the rest is in files. `resume` says which states are
        built anew, where `states` are those of another program at the epoch of `resume`."""
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
        """How this instance comes to its first boundary; None once it is there."""
        self._schedule = schedule_of(plan, epoch, index, shards.workers, beginning.giving)
        self._states = {
            name: Spine.from_view(view, **spill) for name, view in (states or {}).items()
        }
        self._notes: list[dict[str, Any]] = []
        self.saves = RoundSaves()
        """What loops give to be saved, and where they begin again."""
        self._actors: dict[int, Actor] = {}
        self.taps: dict[str, Tap] = {}
        """What can be read, by name."""
        self._start_actors(shards, history, beginning.first, spill)
        self._wiring = Wiring(plan, index, shards, self._schedule, self._actors, beginning.gate)
        self._sources = {name: self._actor(node, Source) for name, node in plan.inputs.items()}
        self._clock = None if plan.clock is None else self._actor(plan.clock, Source)
        self.taps.update((name, self._actor(node, Tap)) for name, node in plan.outputs.items())
        self._returning = [
            self._actor(node, GoingAround) for node in plan.nodes if node.operator.is_feedback
        ]
        self._meter = RoundMeter(plan, self._actors)
        self._expected: dict[int, tuple[tuple[pa.DataType, ...], int]] = {}
        """For each exchange that a peer has sent to, the types of its columns, and the depth of its times."""
        self._scope = plan.scopes[0]
        """The scope of the actor that was run last."""
        self._fed: deque[tuple[str, pa.RecordBatch]] = deque()
        self._feeding: int | None = None
        self._boundary = epoch
        beginning.start(self._actors)
        for tap in self._taps_of_states:
            beginning.bring(tap)
        self._content = beginning.content(self._wiring.push)

    def _start_actors(
        self, shards: Shards, history: int, first: int, spill: Mapping[str, Any]
    ) -> None:
        """Start the actors, after those whose arrangements they read, and the taps of shared states. Outputs are not
        connected yet."""
        for node in self.plan.in_reading_order:
            if not node.operator.has_actor:
                continue
            sources = [
                self._actors[port.node]
                for at, port in enumerate(node.inputs)
                if node.operator.reads(at) and self.plan.nodes[port.node].operator.has_actor
            ]
            context = Context(
                node, self.index, shards, self._states, sources, history, first, spill, self._actors
            )
            context.note = self._note
            context.saves = self.saves
            self._actors[node.number] = node.operator.start(context)
        for name, node in self.plan.states.items():
            keeper = [self._actors[node.number]]
            self.taps[name] = Tap(
                Context(node, self.index, shards, self._states, keeper, history, first)
            )
        self._taps_of_states = list(self.taps.values())

    def _actor(self, node: Node, kind: type[ActorKind]) -> ActorKind:
        """The actor of a node, of the class that belongs to the role of the node."""
        actor = self._actors[node.number]
        assert isinstance(actor, kind)
        return actor

    @property
    def completed(self) -> int:
        """All epochs below this one are complete, as far as is known here."""
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

        Many rows are fed piece by piece, in `work`: messages of one piece travel while the next piece is worked on.
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
        self._meter.begin()
        self._feed_on()

    def _feed_on(self) -> None:
        """Take in the next piece of content or rows; after the last piece, close the epoch."""
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
            self._clock.feed(Changes.of([as_column(np.array([epoch]))], (epoch,)))
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
        """Refuse changes that no worker of this plan sends: kernels trust columns to have the types of the plan."""
        expected = self._expected.get(number)
        if expected is None:
            nodes = self.plan.nodes
            if number >= len(nodes) or nodes[number].operator.role is not Role.EXCHANGE:
                raise BadMessage(f"nothing is sent to node {number}")
            node = nodes[number]
            kinds = Schema(pa.schema([]), node.schemas[0]).canonical
            expected = self._expected[number] = kinds, node.depth
        kinds, depth = expected
        types = tuple([column.type for column in changes.columns])
        if types != kinds or len(changes.times[0]) != depth:
            raise BadMessage(
                f"rows of {types} at {changes.times[0]} are not what node {number} has"
            )

    def work(self) -> bool:
        """Run a few actors, or feed a piece; return whether there was anything to do."""
        schedule, wiring, meter = self._schedule, self._wiring, self._meter
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
            if meter.follows:
                meter.ran(actor, time)
            schedule.settle()
            if self._tell() or is_due() or actor.node.operator.saves_rounds:
                # Peers can go on with the news meanwhile; or an interrupt is due; or a round is over that may be saved.
                return True
        return True

    def take(self) -> list[tuple[int, object]]:
        """The messages for other workers, in order."""
        self._tell()
        wiring = self._wiring
        outgoing, wiring.outgoing = wiring.outgoing, []
        return outgoing

    def pin(self) -> dict[str, View]:
        """The states at the boundary; later work does not change these views."""
        views = {name: spine.view() for name, spine in self._states.items()}
        for actor in self._actors.values():
            views.update(actor.saved(self._boundary))
        return views

    def notes(self) -> tuple[dict[str, Any], ...]:
        """The notes for people who watch the run, since the last call."""
        noted, self._notes = self._notes, []
        return tuple(noted)

    def rounds(self) -> tuple[LoopFigures, ...]:
        """What the rounds of loops did since the last call."""
        return self._meter.take()

    def _note(self, kind: str, **fields: Any) -> None:
        self._notes.append({"kind": kind, **fields})

    def _tell(self) -> bool:
        """Put news of progress for the peers behind the rows that they get; return whether there was any."""
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
        self.saves.end()
        for actor in self._actors.values():
            actor.boundary(self._boundary)
        for tap in self._taps_of_states:
            tap.boundary(self._boundary)

    def _guarded(self, node: Node, function: Callable[[], None]) -> None:
        try:
            function()
        except RiverrunError as error:
            raise located(node, error) from error.__cause__

    def read(self, name: str, epoch: int, ranges: Sequence[Range] | None = None) -> ViewPortion:
        """This worker's part of an output or state as of an epoch; with `ranges`, the rows in these ranges."""
        tap = self.taps[name]
        view, at = tap.view_as_of(epoch)
        return ViewPortion(name, tap.node.schemas[0], view, at, ranges)

    def changes(
        self, name: str, epoch: int, ranges: Sequence[Range] | None = None
    ) -> ChangesPortion:
        """This worker's part of the changes of an epoch to an output or state; with `ranges`, those in these ranges."""
        tap = self.taps[name]
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
        """The loops under way on this worker. Any thread may ask."""
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
        """How large each state is on this worker, and other figures of it."""
        sizes: dict[str, dict[str, Any]] = {
            name: {"rows": len(spine), "bytes": spine.nbytes}
            for name, spine in self._states.items()
        }
        for actor in self._actors.values():
            for name, figures in actor.figures().items():
                for what, figure in figures.items():
                    known = sizes.setdefault(name, {}).get(what)
                    sizes[name][what] = figure if known is None else known + figure
        return sizes


@dataclass(frozen=True)
class Maker:
    """Makes the instances of a plan; it is sent to the processes of workers."""

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
        """The states of a checkpoint under the names that they have in this plan."""
        return states if self.resume is None else self.resume.translate(number, states)

    def resuming(self, resume: Resume) -> Maker:
        """A maker of instances that go on from the states of another program."""
        return replace(self, resume=resume)


def _as_changes(node: Node, batch: pa.RecordBatch, epoch: int) -> Changes:
    """Rows of an epoch as changes."""
    columns = canonical_columns(batch, node.schemas[0])  # by position: a column may be called diff
    diffs = as_array(batch.column(batch.num_columns - 1))
    if len(diffs) == 1 or (diffs == diffs[0]).all():
        return Changes(columns, batch.num_rows, ((epoch,),), None, int(diffs[0]), None)
    return Changes(columns, batch.num_rows, ((epoch,),), None, 0, diffs)


__all__ = ["Arranged", "Instance", "ProgressNews", "RoutedChanges"]
