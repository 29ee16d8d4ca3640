"""Store: a state that any number of streams update, and any number fetch from, by key and by time.

Its rows are `key, time, value`: an arrangement like any other, in which the rows of a key are in the
order of the application's own time. Laws:

1. At a time t of the engine all updates at t are applied, stream by stream in the order in which they
   were declared, before anybody fetches at t.
2. An update whose time is before U, as it was before t, is *late*: it is dropped, and counted. So what is
   before U is final.
3. Compaction changes nothing that a fetch at or after F could see, nor one that waits (`rules`). It works on the
   keys that are touched, and now and then, in passing, on some others (`sweeping`); or, *actively*, on all of them
   whenever there is progress. Keys that a fetch which waits needs more of are left alone.
4. What it leaves is a function of the epochs: which keys a sweep goes through depends on how often there was progress,
   not on who has them. So an epoch that is done again, on other workers, leaves the same entries, and what was
   told of them stays true.

In a loop, a round sees what the rounds before it did; to the spine it is all one epoch.

Cost: of updates, as of any arrangement; compaction, a lookup of the keys that are touched; a sweep is bounded.
"""

from __future__ import annotations

from collections.abc import Callable
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
from riverrun.plan.operator import Arranged, Arrangement, Context, Operator, by_time, settle
from riverrun.plan.plan import Node, Plan
from riverrun.progress import Antichain, Timestamp
from riverrun.state import Order, Schema
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.keys import Keys
from riverrun.state.view import View

_NOW = (0,)
_FIRST = -(1 << 63)
PERIOD = 4  # every so many moves of progress it is the sweep's turn
SWEPT = ":swept"  # behind the name of the node, the name of what is kept of the sweep


@dataclass(frozen=True)
class Updater:
    """A stream that updates a state: its name, for people, and what its updates do."""

    name: str
    rule: UpdateRule


@dataclass(frozen=True)
class Store(Operator):
    """Keeps a state. Where it is `told` of its progress, that is its first input; the others are updates."""

    state: str
    key: tuple[str, ...]
    time: str
    progress: int
    updaters: tuple[Updater, ...] = ()
    compact: CompactRule | None = None
    active: bool = False
    sweep: int = 4096
    """How many rows a turn of the sweep looks at, at the most."""
    told: bool = True
    kind: ClassVar[str] = "state"
    keeps_state: ClassVar[bool] = True
    gives_content: ClassVar[bool] = True

    @property
    def time_column(self) -> str:
        return self.time

    @property
    def from_content(self) -> bool:
        return False  # what came late counts no more

    @property
    def suffixes(self) -> tuple[str, ...]:
        return ("", SWEPT) if self.compact is not None else ("",)

    def describe(self) -> str:
        told = f"state {self.state!r} by {', '.join(self.key)} and {self.time}"
        return told + (f", {self.compact.name}" if self.compact else "")

    def identity(self) -> str:
        rules = [updater.rule.identity() for updater in self.updaters]
        compact = None if self.compact is None else self.compact.identity()
        return f"{self.describe()} {rules} {compact}"

    def with_updater(self, updater: Updater) -> Store:
        return replace(self, updaters=(*self.updaters, updater))

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
    """A state on a worker."""

    def __init__(self, context: Context, operator: Store) -> None:
        super().__init__(context)
        self._operator = operator
        self.schema = state_schema(self.node.schemas[0], operator.key, (Order(operator.time),))
        self.arrangement = Arrangement(context.spine(self.schema))
        progress = context.actors[operator.progress]
        assert isinstance(progress, Progressing)
        self.progress = progress
        self._first = int(operator.told)
        self._positions = tuple(range(len(self.schema.columns)))
        self._at = len(operator.key)
        self._held: dict[Timestamp, dict[int, list[Changes]]] = {}
        self._fresh: list[tuple[Timestamp, Batch]] = []
        """In a loop: what the rounds of this epoch have changed so far."""
        self._moved: set[Timestamp] = set()
        """Times at which there was progress."""
        self._sweep: Sweep | None = None
        if operator.compact is not None:
            ranges, left = context.shards.of(context.index), context.restored(PLACES, SWEPT)
            self._sweep = Sweep(ranges, operator.sweep, left)
        self._swept: int | None = None
        """The horizon up to which all entries are compacted, where that is so."""
        self._runs = 0
        self.needs: list[Callable[[int], Changes | None]] = []
        """Of fetches that wait: the keys of those that need values before a horizon told apart."""
        self._horizon: int | None = None
        """Before which values may be compacted: F at the last boundary."""
        self._spared: View | None = None
        """The keys that are left alone, since something that waited at the last boundary needs them."""
        self._latest: int | None = None
        """A time after which there is no value; None until a rule asks for it, which needs it to be quick."""

    def receive(self, port: int, changes: Changes) -> None:
        if port < self._first:  # progress was made: there may be something to compact
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
                made = rule.apply(changes, self._entries(time, pieces))
                if made is not None and made.rows:
                    pieces.append(made)
                    if self._latest is not None:
                        last = int(ticks_of(made.columns[self._at]).max())
                        self._latest = max(self._latest, last)
        if self._operator.compact is not None:
            self._compact(self._operator.compact, pieces, time, moved)
        if pieces:
            self._append(Changes.concat(pieces), time, upper)

    def _greatest(self, time: Timestamp, pieces: list[Changes]) -> int:
        """The greatest time at which there is, or was, a value: after a restart it is in what was restored."""
        greatest = _FIRST
        for block in self.view(time, pieces)[0].blocks:
            times = block.columns[self._at]
            assert times is not None  # only a key can be left out
            ticks = ticks_of(times.slice(block.start, len(block)))
            greatest = max(greatest, int(ticks.max()))
        return greatest

    def _in_time(self, port: int, changes: Changes, update: int | None, time: Timestamp) -> Changes:
        """The requests that are not late (law 2)."""
        updater = self._operator.updaters[port]
        if changes.columns[self._at].null_count and changes.diffs is not None:
            changes = changes.consolidate()  # what comes and goes at once is none
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
        """The state with all that was done up to a time, and pieces besides, and the time as of which to read it."""
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
        """Compact the keys that were touched, and go on with the sweep (law 3); what that changes is one more piece."""
        horizon = self._horizon
        if horizon is None:
            return
        # What was updated is at U or after it, so not before the horizon.
        entries = self._entries(time, pieces if rule.sees_all else [])
        chosen = [self._keys(piece) for piece in pieces]
        chosen += self._passed(entries, horizon, time, moved)
        if chosen:
            keys = self._not_spared(Keys.union(self.schema, chosen))
            found = entries.view.lookup(keys, entries.as_of)
            if len(found):
                made = rule.apply(found, horizon, entries)
                if made is not None:
                    pieces.append(made)

    def _keys(self, piece: Changes) -> Keys:
        return distinct_keys(piece.columns[: self._at], piece.rows, self.schema)

    def _passed(self, entries: Entries, horizon: int, time: Timestamp, moved: bool) -> list[Keys]:
        """The keys that are to be looked at now though nobody touched them (law 4)."""
        operator = self._operator
        if operator.told:
            if not moved:
                return []
            moves = self.progress.before(time).moves
        elif self._is_seen:  # progress comes after the updates, and only to who has some
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
        """Whether anybody could tell which of the entries that no fetch will find are left."""
        rules = [updater.rule for updater in self._operator.updaters]
        return self.context.has_consumers or any(isinstance(it, UpdateFunction) for it in rules)

    def _not_spared(self, keys: Keys) -> Keys:
        if self._spared is None or not len(keys):
            return keys
        found = self._spared.lookup(keys, _NOW)
        assert found.queries is not None
        left = np.ones(len(keys), np.bool_)
        left[found.queries] = False
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
        """Keys to look up in."""
        if not pieces:
            return None
        schema = Schema.of(self.schema.key, pa.schema([]), hash_mask=self.schema.hash_mask)
        rows = Changes.concat([piece.map_times(lambda _: _NOW) for piece in pieces])
        batch = Batch.of(schema, rows, tuple(range(self._at)), Antichain([(0,)]), Antichain([(1,)]))
        return View("spared", schema, (batch,), batch.since, batch.upper)


def note_late(context: Context, changes: Changes, **fields: str) -> None:
    """Tell of rows that came late: those that are deleted as soon as they come are none."""
    sums = changes.consolidate()
    if sums.rows:
        context.note("late", **fields, rows=int(np.abs(sums.diff_array()).sum()))
