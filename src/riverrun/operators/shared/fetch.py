"""Fetch: records ask a state for values, by key and by time, and go on with the values that the state had.

The operator behind `fetch`, `fetch_uncommitted` and `lookup` of collections. Two kinds of time meet here. A *time of
the data* is the value of a column, a day for instance; the values of a state lie at times of the data (`store`). A
*time of the engine* is an epoch, with a round for each loop around the operator. Two times of the data say how far a
state has come (`marks`): no update at a time before U counts any more, and no fetch at a time before F is answered any
more. U has *passed* a time that is before U.

A *request* is a record with a key, and with bounds on the time of the data. A request travels to the worker that owns
the key, waits there until U has passed a time, and goes on from there with the answer. Laws:

- **Final answers.** A committed fetch of the values up to a time T is answered when U has passed T, or, where the
  values at T itself are not asked for, when U has come to T. So the answer has every update up to T that will ever
  count, and no update after T. An uncommitted fetch waits for an earlier time: the one given by ``wait=``, or else the
  start of its range. An uncommitted fetch that has neither does not wait.
- **Epochs go on.** A request that waits does not hold back its epoch: the request is state, and part of a checkpoint.
  The request is answered at the time of the engine at which U passes, from the state as of that time, updates of that
  time included.
- **No queue.** A request is answered as soon as U has passed its time, whatever other requests still wait.
- **Deletions take back.** A committed answer is a function of the request and of the updates that count, not of the
  moment at which it was given. So when a request is deleted, its answer is worked out again and taken back. A request
  that is deleted before it was answered has no answer, whether it is deleted in the epoch in which it came, while it
  waits (also after a restart from a checkpoint), or in the epoch in which U passes its time. A request that comes and
  goes in one epoch is not checked for mistakes either.
- **Within reach.** Where the state has a compaction rule, a fetch whose upper bound is before F is *late*: it is
  dropped and counted (``run.events("late")``). F is taken as it was before the fetch came. A deletion of an answered
  request can be late too; then the answer stays. A fetch whose lower bound reaches back further than the compaction
  rule keeps values is refused, and its epoch with it. A request that waits keeps compaction away from the values that
  it needs.
- **Given answers stay.** An uncommitted answer, and that of a lookup, depends on when it was given, and is not kept. So
  an epoch that deletes a request which had such an answer in an earlier epoch is refused.

The state may be in the scope of the fetch, that is, in the same loops, or in a scope around that. For a fetch in a loop
that the state is not in, U moves with the epochs only: the fetch reads the state as of the epoch, and a request that
waited is answered in the epoch in which U passes its time, at the round of the loop at which the request came. A
`lookup` asks any other arrangement (the indexed rows of a collection) in place of a state. Such a fetch has no progress
(`Fetch.progress` is None), and every request is answered at once, as of its epoch.

Cost: a lookup, 100 to 300 ns, for each request; gathering the values that were found, and the columns of the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from riverrun.errors import PlanError
from riverrun.operators.shared.answers import Answering, GivenAnswers, has_deletions
from riverrun.operators.shared.fetch_rules import FetchRule
from riverrun.operators.shared.marks import MarkProgress, Progressing
from riverrun.operators.shared.reach import Bounds, Reach
from riverrun.operators.shared.rules import CompactRule
from riverrun.operators.shared.saved_requests import SavedRequests
from riverrun.operators.shared.store import Storing, note_late
from riverrun.operators.shared.waiting import Rounds, WaitingRequests
from riverrun.operators.sources import Input
from riverrun.plan.operator import Actor, Arranged, Context, Operator, by_time, so_far
from riverrun.plan.plan import Node, Plan
from riverrun.progress import Antichain, Timestamp
from riverrun.state.changes import Changes
from riverrun.state.view import View

_STATE, _PROGRESS = 1, 2  # the inputs behind requests


@dataclass(frozen=True)
class Fetch(Operator):
    """Answers requests: the first `width` columns of a request are the record, which goes on with the answer."""

    state: str
    requests: pa.Schema
    """The columns of requests."""
    key: tuple[int, ...]
    bounds: Bounds
    width: int
    rule: FetchRule
    columns: tuple[str, ...]
    """The columns of the state that the rule reads."""
    store: int
    progress: int | None
    inner: bool = False
    committed: bool = True
    early: bool = True
    """Whether a request is answered when it comes, if U has passed its time, or together with its epoch."""
    many: bool = False
    """Whether records have several requests each: then a late request has a reply that says so."""
    compact: CompactRule | None = None
    stream: str = ""
    kind: ClassVar[str] = "fetch"
    kernels: ClassVar[tuple[str, ...]] = (
        "searching.look_up",
        "bounding.find_last",
        "bounding.find_between",
        "packing.distinct_rows",
        "searching.hash_keys",
    )
    keeps_state: ClassVar[bool] = True
    may_cancel: ClassVar[bool] = True

    def reads(self, at: int) -> bool:
        return at == _STATE

    def called(self, at: int) -> str:
        """A column of requests by the name that users know; a column the front end added has the name of its bound."""
        name: str = self.requests.names[at]
        return name.strip("_") if name.startswith("__") else name

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        """Uncommitted answers show how rows were cut into epochs: they have what is there at the time of answering."""
        return self.committed

    @property
    def from_content(self) -> bool:
        return False  # a later update changes no answer that was given

    @property
    def suffixes(self) -> tuple[str, ...]:
        return ("",) if self.progress is not None else ()

    def describe(self) -> str:
        how = "" if self.progress is None or self.committed else "uncommitted "
        return f"fetch {how}{self.rule.name} from {self.state!r}"

    def identity(self) -> str:
        return (
            f"{self.describe()} {self.key} {self.bounds} {self.width} {self.columns} {self.inner} "
            f"{self.rule.identity()}"
        )

    @property
    def adds_up(self) -> bool:
        return False

    def renumbered(self, places: Mapping[int, int]) -> Fetch:
        progress = None if self.progress is None else places[self.progress]
        return replace(self, store=places[self.store], progress=progress)

    def check(self, plan: Plan, node: Node) -> None:
        if self.progress is None or self.bounds.wait is None:
            return
        progress = plan.nodes[self.progress].operator
        assert isinstance(progress, MarkProgress)
        if not any(reporter.side == "update" for reporter in progress.reporters):
            raise PlanError(
                "state.no_progress",
                f"cannot build {plan.name!r}: a fetch from {self.state!r} ({node.line}) waits for the progress of "
                "updates, and nothing reports any, so it would wait for ever",
                hint='leave out progress=False of an update, or report it: stream.progress(state, "update", at=...)',
                state=self.state,
                line=node.line,
            )
        sources = plan.nodes[self.progress].inputs
        reported = [
            port.node
            for port, reporter in zip(sources, progress.reporters, strict=True)
            if reporter.side == "update"
        ]
        if progress.begins is None and not any(self._begins(plan, at) for at in reported):
            raise PlanError(
                "state.no_start",
                f"cannot build {plan.name!r}: a fetch from {self.state!r} ({node.line}) waits for updates that come "
                "from its own answers, so neither would ever begin",
                hint="say from which time on there are updates: state(..., start=0)",
                state=self.state,
                line=node.line,
            )

    def _begins(self, plan: Plan, number: int) -> bool:
        """Whether rows can come to a node on a way without any fetch that waits for the progress of this state."""
        seen, waiting = {number, self.store, self.progress}, [number]
        while waiting:
            node = plan.nodes[waiting.pop()]
            operator = node.operator
            if isinstance(operator, Input):
                return True
            same = isinstance(operator, Fetch) and operator.progress == self.progress
            if same and operator.bounds.wait is not None:  # type: ignore[attr-defined]
                continue
            fresh = {port.node for port in node.inputs} - seen
            seen |= fresh
            waiting += fresh
        return False

    def start(self, context: Context) -> Fetching:
        return Fetching(context, self)


class Fetching(Actor):
    """A fetch on a worker: the requests of times that have not run yet, and the requests that wait for U."""

    def __init__(self, context: Context, operator: Fetch) -> None:
        super().__init__(context)
        self._operator = operator
        store = context.actors[operator.store]
        assert isinstance(store, Arranged)
        self._store = store
        self._depth = store.node.depth
        """How many coordinates times have where the state is."""
        depth, loops = self.node.depth, self._loops
        columns = store.arrangement.spine.schema.positions
        positions = [columns[name] for name in operator.columns]
        self._held: dict[Timestamp, list[Changes]] = {}
        self._reach = Reach(
            operator.bounds, operator.compact, operator.rule.name, committed=operator.committed
        )
        self._waiting = WaitingRequests(operator.bounds.waits, self._reach.needs)
        self._answering = Answering(context, operator, positions, self.node.schemas[0])
        self._given: GivenAnswers | None = None
        """Of uncommitted requests and of lookups."""
        if operator.progress is None or not operator.committed:
            self._given = GivenAnswers(operator, depth=depth, together=bool(loops))
        self._saved = SavedRequests(
            self.node.name, operator.requests, operator.key, depth=depth, loops=loops
        )
        self._progress: Progressing | None = None
        if operator.progress is not None:
            progress = context.actors[operator.progress]
            assert isinstance(progress, Progressing)
            self._progress = progress
            self._restore(context)
        # In a loop, the reports of a round may be known before all updates of that round are in.
        timed = operator.progress is not None and self._depth == 1
        self._early = operator.early and operator.committed and timed
        if operator.compact is not None and isinstance(store, Storing):
            store.needs.append(self._needing)

    @property
    def _loops(self) -> int:
        """How many loops this fetch is in that the state is not in."""
        return self.node.depth - self._depth

    def _inside(self, time: Timestamp, rounds: Rounds) -> Timestamp:
        """A time of the state, with the rounds of the loops that only the fetch is in."""
        return (*time, *(rounds or (0,) * self._loops))

    # ---- requests that come, and the times at which they are answered

    def receive(self, port: int, changes: Changes) -> None:
        if port == _PROGRESS:
            self._moved(changes.times[0][: self._depth])
            return
        for time, piece in by_time(changes):
            rest = self._answer_early(piece, time) if self._early else piece
            if rest.rows:
                self._at_time(time).append(rest)

    def _at_time(self, time: Timestamp) -> list[Changes]:
        if time not in self._held:
            self._held[time] = []
            self.context.request(time)
        return self._held[time]

    def _moved(self, time: Timestamp) -> None:
        """U has moved, or F: have the requests answered that U has passed."""
        assert self._progress is not None
        update = self._progress.at(time).update
        if update is not None:
            for rounds in self._waiting.passed(update):
                self._at_time(self._inside(time, rounds))

    def _answer_early(self, requests: Changes, time: Timestamp) -> Changes:
        """Answer requests that need not wait for the end of the epoch, and return the others.

        Values before U, as U was before the epoch, are final.
        """
        assert self._progress is not None
        when, bounds = time[: self._depth], self._operator.bounds
        known = self._progress.before(when)
        update, horizon = known.update, known.fetch
        if update is None or bounds.wait is None or bounds.have_nulls(requests):
            return requests
        ready = bounds.waits(requests) < update
        if horizon is not None and ready.any() and self._reach.is_limited(horizon):
            ready &= ~self._reach.out(requests, horizon)  # `run` sees to requests out of reach
        if not ready.any():
            return requests
        self._answering.answer(requests.filter(ready), *self._view(when))
        return requests.filter(~ready)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        pieces = self._held.pop(time)
        when = time[: self._depth]
        if self._progress is not None:
            pieces = self._passed_by(self._progress, pieces, time)
        if not pieces:
            return
        requests = Changes.concat([piece.map_times(lambda _: time) for piece in pieces])
        if requests.rows:
            if self._given is not None:
                self._given.check(requests)
            self._answering.answer(requests, *self._view(when))

    def _passed_by(
        self, progress: Progressing, pieces: list[Changes], time: Timestamp
    ) -> list[Changes]:
        """The requests that U has passed: of those that came at this time, and of those that waited."""
        when, rounds = time[: self._depth], time[self._depth :]
        update = progress.at(when).update
        if pieces:
            pieces = self._ready(Changes.concat(pieces), when, rounds, update)
            for later in progress.after(when):  # which came before these requests waited
                self._moved(later.time)
        waited = [] if update is None else self._waiting.take(rounds, update)
        if waited:  # a deletion may cancel a request that U passes now (deletions take back)
            pieces = _net([*(piece for piece in pieces if piece.rows), *waited], time)
        return pieces

    def _view(self, when: Timestamp) -> tuple[View, Timestamp]:
        if isinstance(self._store, Storing):
            return self._store.view(when)
        epoch = when[0]
        spine = self._store.arrangement.spine
        return so_far(spine, Antichain.boundary(epoch + 1)), (epoch,)

    # ---- requests that wait

    def _ready(
        self, requests: Changes, when: Timestamp, rounds: Rounds, update: int | None
    ) -> list[Changes]:
        """The requests that can be answered now; the others are put to wait."""
        operator, bounds = self._operator, self._operator.bounds
        if requests.diffs is not None or requests.diff < 0:
            # A request that comes and goes in one epoch was never there: not checked (deletions take back).
            requests = requests.consolidate()
        names = {at: operator.called(at) for at in bounds.used}
        bounds.check(requests, names, operator.state, operator.stream)
        assert self._progress is not None
        horizon = self._progress.before(when).fetch
        if horizon is not None and self._reach.is_limited(horizon):
            requests = self._taken_back(requests, horizon, rounds)
            requests = self._in_time(requests, horizon)
        if bounds.wait is None or not requests.rows:
            return [requests]
        if update is None:
            self._waiting.add(rounds, requests)
            return []
        ready = bounds.waits(requests) < update
        if ready.all():
            return [requests]
        self._waiting.add(rounds, requests.take(np.flatnonzero(~ready)))
        return [requests.filter(ready)] if ready.any() else []

    def _taken_back(self, requests: Changes, horizon: int, rounds: Rounds) -> Changes:
        """Requests without deletions of requests that wait: such deletions are never late (deletions take back)."""
        waits = len(self._waiting) and self._operator.bounds.wait is not None
        if not waits or not has_deletions(requests):
            return requests
        old = self._reach.out(requests, horizon) & (requests.diff_array() < 0)
        if not old.any():
            return requests
        left, rest = self._waiting.cancel(rounds, requests.filter(old)), requests.filter(~old)
        if left is None:
            return rest
        old = self._reach.out(left, horizon)
        if not old.all():  # deletions that waited for what they delete go on to wait
            self._waiting.add(rounds, left.filter(~old))
        return Changes.concat([rest, left.filter(old)])

    def _in_time(self, requests: Changes, horizon: int) -> Changes:
        """The requests that are not late; refused if one of them reaches back too far (within reach)."""
        operator = self._operator
        late = self._reach.late(requests, horizon)
        if late.any():
            gone, requests = requests.filter(late), requests.filter(~late)
            if operator.many:
                self._answering.reply_late(gone)
            note_late(
                self.context, gone, state=operator.state, stream=operator.stream, what="fetch"
            )
        self._reach.check(requests, horizon, operator.state)
        return requests

    def _needing(self, horizon: int) -> Changes | None:
        """The keys of waiting requests that need values before a horizon told apart."""
        waiting = self._waiting.needing(horizon)
        if waiting is None:
            return None
        return waiting.with_columns(tuple(waiting.columns[at] for at in self._operator.key))

    # ---- boundaries

    def boundary(self, epoch: int) -> None:
        if self._given is not None:
            self._given.clear()

    def figures(self) -> dict[str, dict[str, Any]]:
        if self._progress is None:
            return {}
        return {self._store.node.name: {"pending": len(self._waiting)}}

    def saved(self, epoch: int) -> dict[str, View]:
        if self._progress is None:
            return {}
        return {self.node.name: self._saved.view(self._waiting.blocks(), epoch)}

    def _restore(self, context: Context) -> None:
        saved = context.restored(self._saved.schema)
        if saved is not None and saved.num_rows:
            for rounds, requests in self._saved.restored(saved):
                self._waiting.add(rounds, requests)


def _net(pieces: list[Changes], time: Timestamp) -> list[Changes]:
    """The requests less those that were deleted while they waited: a checkpoint would not have those either."""
    if not any(map(has_deletions, pieces)):
        return pieces
    return [Changes.concat([piece.map_times(lambda _: time) for piece in pieces]).consolidate()]
