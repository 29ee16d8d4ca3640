"""Store: a state that any number of streams update, and any number of streams fetch from, by key and by time.

Behind `flow.state`. The rows of a state are `key, time, value`, an arrangement like any other, in which the rows of a
key are in the order of their time, which is a time of the data. Laws:

- **Updates first.** At a time t of the engine all updates at t are applied before any fetch at t, stream by stream, in
  the order in which the streams were declared.
- **Late updates drop.** An update whose time is before U, as U was before t, is *late*: it is dropped and counted. So
  values before U are final.
- **Unseen compaction.** Compaction changes nothing that a fetch at or after F could see, nor anything that a fetch
  which waits needs (`rules`): keys that such a fetch needs more of are left alone. Compaction works on the keys that
  are updated, and now and then on some others (`sweep`). An *active* state compacts all keys whenever there is
  progress.
- **Epochs decide.** Which entries compaction leaves is a function of the epochs: the keys of a sweep depend on how
  often there was progress, not on who owns the keys. So an epoch that is done again, on other workers, leaves the same
  entries, and results that were read stay true.

In a loop, a round sees the changes of the rounds before it; in the spine they are all of one epoch.

Cost: updates cost as much as in any arrangement; compaction a lookup of the keys that are updated; a sweep is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from riverrun.errors import OperatorFailed, PlanError
from riverrun.operators.arrange import changes_of, state_schema
from riverrun.operators.expire import ticks_of
from riverrun.operators.shared.marks import Progressing
from riverrun.operators.shared.rules import CompactRule, Entries, UpdateFunction, UpdateRule
from riverrun.operators.shared.sweep import PLACES, Sweep, distinct_keys
from riverrun.plan.operator import (
    Arranged,
    Arrangement,
    Context,
    Operator,
    Role,
    by_time,
    settle,
)
from riverrun.plan.plan import Node, Plan
from riverrun.progress import Antichain, Timestamp
from riverrun.state import Order, Schema
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.keys import Keys
from riverrun.state.view import View

_NOW = (0,)
_FIRST = -(1 << 63)
PERIOD = 4  # a turn of the sweep comes with every so many moves of progress
SWEPT = ":swept"  # the saved places of the sweep are named by the node, and this behind it


@dataclass(frozen=True)
class Updater:
    """A stream that updates a state: its name for people, and the rule of its updates."""

    name: str
    rule: UpdateRule


@dataclass(frozen=True)
class Store(Operator):
    """Keeps a state. Its inputs are updates; before them comes the state's progress, if it `hears_progress`."""

    state: str
    key: tuple[str, ...]
    time: str
    progress: int
    updaters: tuple[Updater, ...] = ()
    compact: CompactRule | None = None
    active: bool = False
    sweep: int = 4096
    """How many rows a turn of the sweep looks at, at the most."""
    hears_progress: bool = True
    kind: ClassVar[str] = "state"
    role = Role.STATE
    kernels: ClassVar[tuple[str, ...]] = (
        "searching.look_up",
        "bounding.find_between",
        "packing.unite_keys",
        "packing.distinct_rows",
        "searching.hash_keys",
        "values.mix",
        "values.unmix",
    )
    keeps_state: ClassVar[bool] = True
    gives_content: ClassVar[bool] = True

    @property
    def public_name(self) -> str:
        return self.state

    @property
    def time_column(self) -> str:
        return self.time

    @property
    def from_content(self) -> bool:
        return False  # late updates are not in it

    @property
    def suffixes(self) -> tuple[str, ...]:
        return ("", SWEPT) if self.compact is not None else ("",)

    def describe(self) -> str:
        text = f"state {self.state!r} by {', '.join(self.key)} and {self.time}"
        return text + (f", {self.compact.name}" if self.compact else "")

    def identity(self) -> str:
        rules = [updater.rule.identity() for updater in self.updaters]
        compact = None if self.compact is None else self.compact.identity()
        return f"{self.describe()} {rules} {compact}"

    def with_updater(self, updater: Updater) -> Store:
        return replace(self, updaters=(*self.updaters, updater))

    def renumbered(self, places: Mapping[int, int]) -> Store:
        return replace(self, progress=places[self.progress])

    def check(self, plan: Plan, node: Node) -> None:
        if not self.updaters:
            raise PlanError(
                "state.no_updater",
                f"cannot build {plan.name!r}: nothing updates state {self.state!r} ({node.line}), so it would be empty "
                "for ever",
                hint="stream.update(state, ...)",
                state=self.state,
                line=node.line,
            )

    def start(self, context: Context) -> Storing:
        return Storing(context, self)


class Storing(Arranged):
    """A state on a worker: the entries with hashes that the worker owns."""

    def __init__(self, context: Context, operator: Store) -> None:
        super().__init__(context)
        self._operator = operator
        self.schema = state_schema(self.node.schemas[0], operator.key, (Order(operator.time),))
        self.arrangement = Arrangement(context.spine(self.schema))
        progress = context.actors[operator.progress]
        assert isinstance(progress, Progressing)
        self.progress = progress
        self._first = int(operator.hears_progress)
        self._positions = tuple(range(len(self.schema.columns)))
        self._at = len(operator.key)
        self._held: dict[Timestamp, dict[int, list[Changes]]] = {}
        self._fresh: list[tuple[Timestamp, Batch]] = []
        """In a loop: the changes of the rounds of this epoch so far."""
        self._moved: set[Timestamp] = set()
        """Times at which there was progress."""
        self._sweep: Sweep | None = None
        if operator.compact is not None:
            ranges, left = context.shards.of(context.index), context.restored(PLACES, SWEPT)
            self._sweep = Sweep(ranges, operator.sweep, left)
        self._swept: int | None = None
        """The horizon up to which all entries are compacted; None where some were spared, or none were yet."""
        self._runs = 0
        self.needs: list[Callable[[int], Changes | None]] = []
        """Functions of the fetches: given a horizon, the keys whose values before it a waiting request needs."""
        self._horizon: int | None = None
        """The time before which values may be compacted: F at the last boundary."""
        self._spared: View | None = None
        """The keys that are left alone, since a request that waited at the last boundary needs them."""
        self._latest: int | None = None
        """A time after which there is no value; None until a rule asks for it (`asks_latest`)."""

    def receive(self, port: int, changes: Changes) -> None:
        if port < self._first:  # U or F has moved: there may be something to compact
            if self._operator.compact is not None:
                self._at_time(changes.times[0])
                self._moved.add(changes.times[0])
            return
        for time, piece in by_time(changes):
            rows = piece.with_columns(piece.columns[: len(self._positions)])
            self._at_time(time).setdefault(port - self._first, []).append(rows)

    def _at_time(self, time: Timestamp) -> dict[int, list[Changes]]:
        if time not in self._held:
            self._held[time] = {}
            self.context.request(time)
        return self._held[time]

    def run(self, time: Timestamp, upper: Antichain) -> None:
        held = self._held.pop(time)
        moved = time in self._moved
        self._moved.discard(time)
        known = self.progress.before(time)
        pieces: list[Changes] = []
        for port in sorted(held):
            changes = self._in_time(port, Changes.concat(held[port]), known.update, time)
            if changes.rows:
                rule = self._operator.updaters[port].rule
                if rule.asks_latest and self._latest is None:
                    self._latest = self._greatest(time, pieces)
                changed = rule.apply(changes, self._entries(time, pieces))
                if changed is not None and changed.rows:
                    pieces.append(changed)
                    if self._latest is not None:
                        last = int(ticks_of(changed.columns[self._at]).max())
                        self._latest = max(self._latest, last)
        if self._operator.compact is not None:
            self._compact(self._operator.compact, pieces, time, moved)
        if pieces:
            self._append(Changes.concat(pieces), time, upper)

    def _greatest(self, time: Timestamp, pieces: list[Changes]) -> int:
        """The greatest time at which there is, or was, a value, restored values included."""
        greatest = _FIRST
        for block in self.view(time, pieces)[0].blocks:
            times = block.columns[self._at]
            assert times is not None  # only a key can be left out
            ticks = ticks_of(times.slice(block.start, len(block)))
            greatest = max(greatest, int(ticks.max()))
        return greatest

    def _in_time(self, port: int, changes: Changes, update: int | None, time: Timestamp) -> Changes:
        """The updates that are not late (the late-updates-drop law)."""
        updater = self._operator.updaters[port]
        if changes.columns[self._at].null_count and changes.diffs is not None:
            changes = changes.consolidate()  # an update that comes and goes at once is none
        times = changes.columns[self._at]
        if times.null_count:
            raise OperatorFailed(
                "state.time_null",
                f"cannot update {self._operator.state!r} from {updater.name}: {times.null_count} of {changes.rows} "
                f"updates have no time",
                hint=f"filter(pl.col({self._operator.time!r}).is_not_null()) before the update",
                state=self._operator.state,
            )
        if update is None or not changes.rows:
            return changes
        ticks = ticks_of(times)
        if ticks.min() >= update:
            return changes
        gone = changes.filter(ticks < update)
        note_late(
            self.context, gone, state=self._operator.state, stream=updater.name, what="update"
        )
        return changes.filter(ticks >= update)

    def _append(self, changes: Changes, time: Timestamp, upper: Antichain) -> None:
        spine = self.arrangement.spine
        if self.node.depth == 1:
            batch = Batch.of(self.schema, changes, self._positions, spine.upper, upper)
            if len(batch):
                self.arrangement.append(batch, time)
        else:
            batch = self._batch(changes)
            if len(batch):
                self._fresh.append((time, batch))
        if len(batch) and self.context.has_consumers:
            self.context.push(changes_of(batch, time), 0)

    def _batch(self, changes: Changes) -> Batch:
        """Changes of one epoch as a batch that stands beside the spine."""
        epoch, depth = changes.times[0][0], self.node.depth
        lower, upper = Antichain.boundary(epoch, depth), Antichain.boundary(epoch + 1, depth)
        flat = changes.map_times(lambda time: (time[0], *(0,) * (depth - 1)))
        return Batch.of(self.schema, flat, self._positions, lower, upper)

    def view(self, time: Timestamp, pieces: list[Changes] | None = None) -> tuple[View, Timestamp]:
        """The state with all changes up to a time and some pieces besides, and the time as of which to read it."""
        spine, epoch, depth = self.arrangement.spine, time[0], self.node.depth
        view = spine.view()
        beside = [batch for at, batch in self._fresh if at <= time]
        beside += [self._batch(piece) for piece in pieces or ()]
        if beside:
            batches = (*view.batches, *beside)
            view = View(view.name, view.schema, batches, view.since, view.upper)
        upper = Antichain.boundary(epoch + 1, depth)
        return view.with_frontiers(view.since, upper), (epoch, *(0,) * (depth - 1))

    def _entries(self, time: Timestamp, pieces: list[Changes]) -> Entries:
        view, as_of = self.view(time, pieces)
        update = self.progress.before(time).update
        return Entries(self.schema, view, as_of, time, update, self._latest)

    def _compact(
        self, rule: CompactRule, pieces: list[Changes], time: Timestamp, moved: bool
    ) -> None:
        """Compact the updated keys, and those of the sweep (unseen compaction); add the changes to the pieces."""
        horizon = self._horizon
        if horizon is None:
            return
        # Updated values are at U or after it, so not before the horizon.
        entries = self._entries(time, pieces if rule.sees_all else [])
        chosen = [self._keys(piece) for piece in pieces]
        chosen += self._passed(entries, horizon, time, moved)
        if chosen:
            keys = self._not_spared(Keys.union(self.schema, chosen))
            candidates = entries.view.lookup(keys, entries.as_of)
            if len(candidates):
                compacted = rule.apply(candidates, horizon, entries)
                if compacted is not None:
                    pieces.append(compacted)

    def _keys(self, piece: Changes) -> Keys:
        return distinct_keys(piece.columns[: self._at], piece.rows, self.schema)

    def _passed(self, entries: Entries, horizon: int, time: Timestamp, moved: bool) -> list[Keys]:
        """The keys to compact now although nothing updated them (the epochs-decide law)."""
        operator = self._operator
        if operator.hears_progress:
            if not moved:
                return []
            moves = self.progress.before(time).moves
        elif (
            self._is_seen
        ):  # a worker runs only when it has updates: a sweep would show whose they are
            return []
        else:
            self._runs += 1
            moves = self._runs
        assert self._sweep is not None
        if operator.active:
            done = self._swept == horizon
            self._swept = horizon if self._spared is None else None
            return [] if done else self._all(entries)
        if moves % PERIOD:
            return []
        return self._sweep.turn(moves // PERIOD, entries.view, entries.as_of)

    def _all(self, entries: Entries) -> list[Keys]:
        limit = max(len(self.arrangement.spine), 1)
        return [
            distinct_keys(piece.canonicals(range(self._at)), len(piece), self.schema)
            for piece in entries.view.scan(entries.as_of, limit)
        ]

    def saved(self, epoch: int) -> dict[str, View]:
        if self._sweep is None:
            return {}
        name = self.node.name + SWEPT
        return {name: self._sweep.saved(name, epoch, self.node.depth)}

    @property
    def _is_seen(self) -> bool:
        """Whether anything besides fetches sees entries, so that it shows which ones compaction leaves."""
        rules = [updater.rule for updater in self._operator.updaters]
        return self.context.has_consumers or any(isinstance(it, UpdateFunction) for it in rules)

    def _not_spared(self, keys: Keys) -> Keys:
        if self._spared is None or not len(keys):
            return keys
        matched = self._spared.lookup(keys, _NOW)
        assert matched.queries is not None
        left = np.ones(len(keys), np.bool_)
        left[matched.queries] = False
        return keys if left.all() else keys.take(np.flatnonzero(left))

    def boundary(self, epoch: int) -> None:
        spine = self.arrangement.spine
        if self._fresh:
            depth = self.node.depth
            fresh, self._fresh = self._fresh, []
            time = (epoch - 1, *(0,) * (depth - 1))
            changes = Changes.concat([changes_of(batch, time) for _, batch in fresh])
            if spine.upper != Antichain.boundary(epoch - 1, depth):
                spine.advance_upper(Antichain.boundary(epoch - 1, depth))
            upper = Antichain.boundary(epoch, depth)
            spine.append(Batch.of(self.schema, changes, self._positions, spine.upper, upper))
        settle(spine, epoch, self.node.depth)
        self._horizon = horizon = self.progress.last.fetch
        needed = [] if horizon is None else [each(horizon) for each in self.needs]
        self._spared = self._as_keys([keys for keys in needed if keys is not None])

    def _as_keys(self, pieces: list[Changes]) -> View | None:
        """A view of these keys, to look others up in."""
        if not pieces:
            return None
        schema = Schema.of(self.schema.key, pa.schema([]), hash_mask=self.schema.hash_mask)
        rows = Changes.concat([piece.map_times(lambda _: _NOW) for piece in pieces])
        batch = Batch.of(schema, rows, tuple(range(self._at)), Antichain([(0,)]), Antichain([(1,)]))
        return View("spared", schema, (batch,), batch.since, batch.upper)


def note_late(context: Context, changes: Changes, **fields: str) -> None:
    """Note rows that came late, less those that were deleted in the epoch in which they came."""
    sums = changes.consolidate()
    if sums.rows:
        context.note("late", **fields, rows=int(np.abs(sums.diff_array()).sum()))
