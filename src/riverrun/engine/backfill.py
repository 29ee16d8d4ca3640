"""Backfill: states that a checkpoint does not have are built from the states that it has.

Used by `instance`, when a changed program goes on from a checkpoint (`coordinator.resume`). A checkpoint of epoch e has
all changes before e. States that the checkpoint has are *kept*, and complete up to e (their `upper` is e). States that
the checkpoint does not have are *fresh*, and begin empty. The run goes back one epoch further, to e - 1, and runs
"epoch e - 1" once more: without rows, but with the *content* of the kept states as of e - 1, as if all of it had come
in that epoch. The content goes only to nodes that are fresh, and to nodes on the way to them
(`plan.diff.BackfillRoutes`). When this epoch is complete, the run stands at boundary e like any other run. Where a
fresh state would need the rows of an input, which are gone, `plan.diff` finds no route, and no backfill begins. Laws:

- **Content is enough.** As of an epoch, the changes that a node gives add up to a function of the changes that it took
  up to then, added up (the *from content* law of operators). So as of e - 1, and from then on, a fresh state is what it
  would be had the program run from the start. Earlier epochs cannot be told apart in it, and reading them is refused.
- **Nothing twice.** Kept states take nothing in during that epoch, since they have it already: content on its way to
  other nodes is dropped where it would enter a kept state.
- **Pairs once.** A join pairs the content of both sides once: the content of one side is announced to the join, as an
  arrangement announces a new batch, and the join looks up the other side. Where both sides are kept, the backfill
  announces the whole content of one of them. Where one side is fresh, that side announces its content by itself.
- **Read before the boundary.** Times before a boundary may have been advanced to the boundary, so kept states are
  readable from e on. While epoch e - 1 is run, their readers find a copy of the content, at e - 1, in place of the
  state.
- **Within the budget.** That copy is made a block at a time. Where memory is limited, as much of the copy stays in
  memory as of any other state; the rest is in temporary files. For a fresh state the backfill is like an epoch with as
  many rows.

A `Beginning` brings an instance to its first boundary: a `Backfill`, or, where no state is fresh, `Straight`.

Cost: the content of the states that are read is copied once and announced once. A kept state that no fresh state is
made from costs nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from riverrun.plan.diff import BackfillRoutes, states_of
from riverrun.plan.operator import Actor, Arranged, Role, present
from riverrun.progress import Antichain
from riverrun.state import Spine
from riverrun.state.batch import Batch
from riverrun.state.block import BLOCK_ROWS, Block, resident_bytes
from riverrun.state.changes import Changes
from riverrun.state.spine import spill_blocks
from riverrun.state.view import SCAN_ROWS, View

if TYPE_CHECKING:
    from riverrun.engine.coordinator.resume import Resume
    from riverrun.plan.plan import Plan, Port

Push = Callable[[Changes], None]
Take = Callable[[Changes], Changes | None]


class Beginning(ABC):
    """How an instance comes to its first boundary. From epoch `first` on, its outputs can be read."""

    first: int
    giving: tuple[Port, ...] = ()
    """The outputs at which changes come in before that boundary, besides the sources."""

    def start(self, actors: Mapping[int, Actor]) -> None:
        """Bring each actor, by the number of its node, to the boundary at which it begins."""
        for actor in actors.values():
            self.bring(actor)

    @abstractmethod
    def bring(self, actor: Actor) -> None:
        """Bring an actor, or the tap of a state, to the boundary at which it begins."""

    def gate(self, number: int, take: Take) -> Take:
        """The function that takes changes which arrive at a node, in place of `take`."""
        return take

    def content(self, push: Callable[[Port], Push]) -> Iterator[None] | None:
        """Push the content that comes in before all rows, a piece at each step; None where there is no content."""
        return None

    def finish(self) -> None:  # noqa: B027 (most have nothing to do)
        """The boundary is reached."""


class Straight(Beginning):
    """All states are there, as of the boundary `epoch`."""

    def __init__(self, epoch: int) -> None:
        self.first = epoch

    def bring(self, actor: Actor) -> None:
        if self.first:
            actor.boundary(self.first)


def beginning_of(
    plan: Plan,
    epoch: int,
    states: Mapping[str, View] | None,
    resume: Resume | None,
    spill: Mapping[str, Any],
) -> Beginning:
    """How an instance with these states begins at `epoch`; `resume` says which other states are built anew then."""
    if resume is None or states is None or resume.epoch != epoch or not resume.routes.fresh:
        return Straight(epoch)
    restored = [node.number for node in plan.nodes if states.keys() & set(states_of(node))]
    return Backfill(resume.routes, epoch, frozenset(restored), spill)


class Backfill(Beginning):
    """The backfill of one instance, in epoch `epoch`; `restored` are the nodes whose states are kept.

    `spill` is the budget of a state and the directory for the blocks beyond it, as `Spine` takes them.
    """

    def __init__(
        self,
        routes: BackfillRoutes,
        epoch: int,
        restored: frozenset[int],
        spill: Mapping[str, Any] | None = None,
    ) -> None:
        self.epoch = epoch
        self.first = epoch + 1
        self.giving = routes.giving
        self._actors: Mapping[int, Actor] = {}
        self._spill = spill or {}
        self._routes = routes
        self._restored = restored
        self._real: dict[int, Spine] = {}
        self._contents: dict[int, Batch] = {}

    def gate(self, number: int, take: Take) -> Take:
        """The function that takes changes which arrive at a node: a closed node drops content (nothing twice)."""
        if number in self._routes.open:
            return take
        epoch = self.epoch

        def gated(changes: Changes) -> Changes | None:
            return take(changes) if changes.times[0][0] > epoch else None

        return gated

    def start(self, actors: Mapping[int, Actor]) -> None:
        self._actors = actors
        super().start(actors)

    def bring(self, actor: Actor) -> None:
        """Bring an actor to its boundary: e where its state is kept, e - 1 where it is fresh (content is enough)."""
        node = actor.node
        is_output = node.operator.role is Role.OUTPUT
        if (node.inputs[0].node if is_output else node.number) in self._restored:
            actor.boundary(self.first)
        else:
            actor.begin(self.epoch)

    def content(self, push: Callable[[Port], Push]) -> Iterator[None]:
        actors, routes, time = self._actors, self._routes, (self.epoch,)
        for number in routes.read:
            self._stand_in(actors[number])
            yield
        for number in routes.pushes:
            names = actors[number].node.schemas[0].names
            for changes in self._content(_spine(actors[number]), names):
                actors[number].context.push(changes, 0)
                yield
        for number, port in routes.copies:
            onward = push(port)
            for changes in self._content(
                _spine(actors[number]), actors[number].node.schemas[0].names
            ):
                onward(changes)
                yield
        for number, at in routes.announces:
            reader = actors[number]
            batch = self._contents[reader.node.inputs[at].node]
            if len(batch):
                reader.announced(at, batch, time)
            yield

    def finish(self) -> None:
        """The epoch is complete: readers find the states again in place of the copies."""
        for number, spine in self._real.items():
            actor = self._actors[number]
            assert isinstance(actor, Arranged)
            actor.arrangement.spine = spine
        self._real.clear()
        self._contents.clear()

    def _stand_in(self, actor: Actor) -> None:
        """Have readers of an arrangement find a copy of its content at this epoch (read before the boundary)."""
        assert isinstance(actor, Arranged)
        spine = actor.arrangement.spine
        schema, upper = spine.schema, Antichain([(self.epoch + 1,)])
        names, positions = [column.name for column in schema.columns], range(len(schema.columns))
        batch = Batch(schema, (), Antichain([(0,)]), upper, Antichain([(0,)]))
        for piece in self._content(spine, names, BLOCK_ROWS):
            # A piece has whole keys, in the order of hashes, so its blocks come after those of earlier pieces.
            copied = Batch.of(schema, piece, positions, batch.lower, upper)
            batch = replace(batch, blocks=self._bounded((*batch.blocks, *copied.blocks)))
        batches = (batch,) if batch.blocks else ()
        view = View(spine.name, schema, batches, Antichain([(self.epoch,)]), upper)
        number = actor.node.number
        self._real[number], self._contents[number] = spine, batch
        actor.arrangement.spine = Spine.from_view(view, **self._spill)

    def _bounded(self, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        """The same blocks; those beyond the budget are in files (within the budget)."""
        if not self._spill:
            return blocks
        excess = resident_bytes(blocks) - self._spill["budget"]
        return spill_blocks(blocks, self._spill["directory"], excess)[0]

    def _content(self, spine: Spine, names: list[str], rows: int = SCAN_ROWS) -> Iterator[Changes]:
        """The content of a kept state at this epoch, columns in the order of `names`, about `rows` rows a piece."""
        view, now = present(spine)
        places = view.schema.positions
        positions = [places[name] for name in names]
        for piece in view.scan(now, rows):
            columns = tuple(piece.canonical(at) for at in positions)
            yield Changes(columns, len(piece), ((self.epoch,),), None, 0, piece.counts)


def _spine(actor: Actor) -> Spine:
    """The state with all changes that an actor has given."""
    if isinstance(actor, Arranged):
        return actor.arrangement.spine
    spine: Spine = actor.context.states[actor.node.name]
    return spine
