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

from riverrun.errors import OperatorFailed, PlanError, TimeViolation
from riverrun.operators.expire import ticks_of
from riverrun.operators.shared.fetch_rules import Answer, Asked, FetchRule
from riverrun.operators.shared.marks import MarkProgress, Progressing
from riverrun.operators.shared.rules import CompactRule, as_time
from riverrun.operators.shared.store import Storing, note_late
from riverrun.operators.shared.waiting import Rounds, WaitingBlock, WaitingRequests
from riverrun.operators.sources import Input
from riverrun.plan.operator import Actor, Arranged, Context, Operator, by_time, so_far
from riverrun.plan.plan import Node, Plan
from riverrun.progress import Antichain, Timestamp
from riverrun.rows.records import canonical_columns
from riverrun.state import Schema
from riverrun.state.changes import Changes, Mask
from riverrun.state.columns import Ints, take_columns
from riverrun.state.keys import Keys
from riverrun.state.types import empty_batch
from riverrun.state.view import View, deferred

ROUND = "__round{}__"
_FIRST, _LAST = -(1 << 63), (1 << 63) - 1
_STATE, _PROGRESS = 1, 2  # the inputs behind requests


@dataclass(frozen=True)
class Bounds:
    """The columns of a request with its bounds, whether the bounds themselves count, and the time it waits for."""

    since: int | None
    until: int | None
    closed: tuple[bool, bool] = (True, True)
    wait: int | None = None
    """None where a request is answered at once."""
    past: bool = True
    """Whether U has to pass the time of `wait`, or only to come to it."""

    @property
    def used(self) -> tuple[int, ...]:
        """All columns of a request that are times."""
        return tuple({at: None for at in (self.since, self.until, self.wait) if at is not None})


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
        schema = store.arrangement.spine.schema
        self._positions = tuple(schema.positions[name] for name in operator.columns)
        self._held: dict[Timestamp, list[Changes]] = {}
        self._pending = WaitingRequests(self._waiting_for, self._needs)
        self._answered: list[Changes] = []
        """The uncommitted requests that were answered in this epoch, in a loop that the state is not in."""
        self._progress: Progressing | None = None
        if operator.progress is not None:
            progress = context.actors[operator.progress]
            assert isinstance(progress, Progressing)
            self._progress = progress
        names = operator.requests.names
        self._order = [*operator.key, *(at for at in range(len(names)) if at not in operator.key)]
        rounds = [pa.field(ROUND.format(at), pa.int64()) for at in range(self._loops)]
        fields = [operator.requests.field(at).with_nullable(True) for at in self._order]
        cut = len(operator.key)
        self._saved = Schema.of(pa.schema(fields[:cut]), pa.schema([*fields[cut:], *rounds]))
        # In a loop, the reports of a round may be known before all updates of that round are in.
        timed = operator.progress is not None and self._depth == 1
        self._early = operator.early and operator.committed and timed
        if operator.progress is not None:
            self._restore(context)
        if operator.compact is not None and isinstance(store, Storing):
            store.needs.append(self._needing)

    @property
    def _loops(self) -> int:
        """How many loops this fetch is in that the state is not in."""
        return self.node.depth - self._depth

    def _inside(self, time: Timestamp, rounds: Rounds) -> Timestamp:
        """A time of the state, with the rounds of the loops that only the fetch is in."""
        return (*time, *(rounds or (0,) * self._loops))

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

    def _answer_early(self, requests: Changes, time: Timestamp) -> Changes:
        """Answer requests that need not wait for the end of the epoch, and return the others.

        Values before U, as U was before the epoch, are final.
        """
        assert self._progress is not None
        when = time[: self._depth]
        known = self._progress.before(when)
        update = known.update
        if update is None or any(
            requests.columns[at].null_count for at in self._operator.bounds.used
        ):
            return requests
        waits = self._waits(requests)
        if waits is None or waits.min() >= update:
            return requests
        ready = waits < update
        compact = self._operator.compact
        if compact is not None and known.fetch is not None:  # `run` sees to requests out of reach
            ready &= ~self._late(requests, known.fetch)
            ready &= ~self._beyond(compact, requests, known.fetch)
        if not ready.any():
            return requests
        self._answer(requests.filter(ready), *self._view(when))
        return requests.filter(~ready)

    def _moved(self, time: Timestamp) -> None:
        """U has moved, or F: have the requests answered that U has passed."""
        assert self._progress is not None
        update = self._progress.at(time).update
        if update is not None:
            for rounds in self._pending.passed(update):
                self._at_time(self._inside(time, rounds))

    def run(self, time: Timestamp, upper: Antichain) -> None:
        pieces = self._held.pop(time)
        when, rounds = time[: self._depth], time[self._depth :]
        if self._progress is not None:
            known = self._progress.at(when)
            if pieces:
                pieces = self._ready(Changes.concat(pieces), when, rounds, known.update)
                for later in self._progress.after(when):  # which came before these requests waited
                    self._moved(later.time)
            if known.update is not None:
                waited = self._pending.take(rounds, known.update)
                if (
                    waited
                ):  # a deletion may cancel a request that U passes now (deletions take back)
                    pieces = _net([*(piece for piece in pieces if piece.rows), *waited], time)
        if not pieces:
            return
        requests = Changes.concat([piece.map_times(lambda _: time) for piece in pieces])
        if requests.rows:
            if self._progress is None or not self._operator.committed:
                requests = self._checked_final(requests)
            view, as_of = self._view(when)
            self._answer(requests, view, as_of)

    def _checked_final(self, requests: Changes) -> Changes:
        """Uncommitted requests; refused if one takes back an answer of an earlier epoch (given answers stay)."""
        if self._loops:  # all requests of an epoch are answered alike, whatever their round
            self._answered.append(requests.map_times(lambda _: (0,) * self.node.depth))
        if (requests.diff if requests.diffs is None else requests.diffs.min()) > 0:
            return requests
        sums = (Changes.concat(self._answered) if self._loops else requests).consolidate()
        if sums.rows and (sums.diff_array() < 0).any():
            count = -int(np.minimum(sums.diff_array(), 0).sum())
            what = "requests" if self._operator.many else "rows"
            raise OperatorFailed(
                "state.answer_kept",
                f"cannot take back {count} {what} of {self._operator.stream} that had their answers from "
                f"{self._operator.state!r} in another epoch: what an uncommitted fetch found then is not known "
                "any more",
                hint="keep such rows, or read committed: then answers depend on the time of a row alone; a join keeps "
                "up with both sides",
                state=self._operator.state,
            )
        return requests

    def _view(self, when: Timestamp) -> tuple[View, Timestamp]:
        if isinstance(self._store, Storing):
            return self._store.view(when)
        epoch = when[0]
        spine = self._store.arrangement.spine
        return so_far(spine, Antichain.boundary(epoch + 1)), (epoch,)

    def _ready(
        self, requests: Changes, when: Timestamp, rounds: Rounds, update: int | None
    ) -> list[Changes]:
        """The requests that can be answered now; the others are put to wait."""
        if requests.diffs is not None or requests.diff < 0:
            # A request that comes and goes in one epoch was never there: not checked (deletions take back).
            requests = requests.consolidate()
        self._check_times(requests)
        if self._operator.compact is not None:
            requests = self._taken_back(self._operator.compact, requests, when, rounds)
            requests = self._in_time(self._operator.compact, requests, when)
        waits = self._waits(requests)
        if waits is None or not requests.rows:
            return [requests]
        if update is None:
            self._pending.add(rounds, requests)
            return []
        ready = waits < update
        if ready.all():
            return [requests]
        later = np.flatnonzero(~ready)
        self._pending.add(rounds, requests.take(later))
        return [requests.filter(ready)] if ready.any() else []

    def _waits(self, requests: Changes) -> Ints | None:
        """The time that U has to pass, for each request; None where none waits."""
        bounds = self._operator.bounds
        if bounds.wait is None:
            return None
        ticks = ticks_of(requests.columns[bounds.wait])
        return ticks if bounds.past else np.maximum(ticks, _FIRST + 1) - 1

    def _waiting_for(self, requests: Changes) -> Ints:
        waits = self._waits(requests)
        assert waits is not None
        return waits

    def _check_times(self, requests: Changes) -> None:
        for at in self._operator.bounds.used:
            times = requests.columns[at]
            if times.null_count:
                raise OperatorFailed(
                    "state.time_null",
                    f"cannot fetch from {self._operator.state!r} for {self._operator.stream}: {times.null_count} of "
                    f"{requests.rows} requests have no time in {self._operator.called(at)!r}",
                    hint="filter them out, or fill in a time",
                    state=self._operator.state,
                )

    def _needs(self, requests: Changes) -> Ints | None:
        """From which time on each request needs values told apart (within reach); None: no request needs any."""
        compact, bounds = self._operator.compact, self._operator.bounds
        if compact is None or not requests.rows:
            return None
        needed = []
        if bounds.until is not None and not self._operator.committed:
            needed.append(ticks_of(requests.columns[bounds.until]))
        if bounds.since is not None and compact.limits(self._operator.rule.name):
            first = ticks_of(requests.columns[bounds.since])
            needed.append(np.minimum(first, _LAST - compact.margin) + compact.margin)
        return np.minimum.reduce(needed) if needed else None

    def _needing(self, horizon: int) -> Changes | None:
        """The keys of waiting requests that need values before a horizon told apart."""
        waiting = self._pending.needing(horizon)
        if waiting is None:
            return None
        return waiting.with_columns(tuple(waiting.columns[at] for at in self._operator.key))

    def _late(self, requests: Changes, horizon: int) -> Mask:
        until = self._operator.bounds.until
        if until is None:
            return np.zeros(requests.rows, np.bool_)
        return ticks_of(requests.columns[until]) < horizon

    def _beyond(self, compact: CompactRule, requests: Changes, horizon: int) -> Mask:
        """Which requests reach back further than values are kept."""
        since = self._operator.bounds.since
        if since is None or not compact.limits(self._operator.rule.name):
            return np.zeros(requests.rows, np.bool_)
        return ticks_of(requests.columns[since]) < horizon - compact.margin

    def _taken_back(
        self, compact: CompactRule, requests: Changes, when: Timestamp, rounds: Rounds
    ) -> Changes:
        """Requests without deletions of requests that wait: such deletions are never late (deletions take back)."""
        assert self._progress is not None
        horizon = self._progress.before(when).fetch
        if horizon is None or not len(self._pending) or self._operator.bounds.wait is None:
            return requests
        if (requests.diff if requests.diffs is None else requests.diffs.min()) > 0:
            return requests

        def judged(some: Changes) -> Mask:
            return self._late(some, horizon) | self._beyond(compact, some, horizon)

        old = judged(requests) & (requests.diff_array() < 0)
        if not old.any():
            return requests
        left, rest = self._pending.cancel(rounds, requests.filter(old)), requests.filter(~old)
        if left is None:
            return rest
        old = judged(left)
        if not old.all():  # deletions that waited for what they delete go on to wait
            self._pending.add(rounds, left.filter(~old))
        return Changes.concat([rest, left.filter(old)])

    def _in_time(self, compact: CompactRule, requests: Changes, when: Timestamp) -> Changes:
        """The requests that are not late; refused if one of them reaches back too far (within reach)."""
        assert self._progress is not None
        horizon = self._progress.before(when).fetch
        bounds, state = self._operator.bounds, self._operator.state
        if horizon is None:
            return requests
        late = self._late(requests, horizon)
        if late.any():
            gone, requests = requests.filter(late), requests.filter(~late)
            if self._operator.many:
                self._send_late(gone)
            note_late(self.context, gone, state=state, stream=self._operator.stream, what="fetch")
        beyond = self._beyond(compact, requests, horizon)
        if beyond.any():
            assert bounds.since is not None
            times = requests.columns[bounds.since]
            reach = max(horizon - compact.margin, _FIRST)
            raise TimeViolation(
                "state.reaches_back",
                f"cannot fetch from {state!r} since {as_time(int(ticks_of(times).min()), times.type)}: its compaction "
                f"({compact.name}) keeps all values from {as_time(reach, times.type)} on only, now that fetches have "
                f"come to {as_time(horizon, times.type)}",
                hint="fetch a shorter range, or keep more: rr.rules.drop_before(span) with the longest range there is",
                state=state,
            )
        return requests

    def _answer(self, requests: Changes, view: View, as_of: Timestamp) -> None:
        operator, bounds = self._operator, self._operator.bounds
        keys = Keys([requests.columns[at] for at in operator.key], requests.rows)
        asked = Asked(
            view,
            as_of,
            keys,
            None if bounds.since is None else requests.columns[bounds.since],
            None if bounds.until is None else requests.columns[bounds.until],
            bounds.closed,
        )
        answer = operator.rule.answer(asked, self._positions)
        if len(answer.queries):
            self._send(requests, answer)
        if not operator.inner and not (
            operator.rule.single and len(answer.queries) == requests.rows
        ):
            self._send_blank(requests, answer.queries)

    def _send(self, requests: Changes, answer: Answer) -> None:
        """Send records on with their answers."""
        queries, columns, counts = answer
        record = requests.columns[: self._operator.width]
        once = len(queries) == requests.rows and (np.diff(queries) > 0).all()
        if not once:
            record = tuple(take_columns(record, queries))
        diffs = requests.diffs
        if diffs is not None:
            diffs = diffs if once else diffs[queries]
        if counts is not None:
            diffs = counts * (requests.diff if diffs is None else diffs)
        answered = (*record, *columns)
        sent = Changes(answered, len(queries), requests.times, None, requests.diff, diffs)
        self.context.push(sent, 0)

    def _send_blank(self, requests: Changes, answered: Ints) -> None:
        """Send the records without an answer on, with nulls in its columns."""
        missing = np.ones(requests.rows, np.bool_)
        missing[answered] = False
        if not missing.any():
            return
        rest = requests.filter(missing)
        schema, width = self.node.schemas[0], self._operator.width
        kinds = [canonical.type for canonical in _nulls(schema, width)]
        blank = tuple(pa.nulls(rest.rows, kind) for kind in kinds)
        self.context.push(rest.with_columns((*rest.columns[:width], *blank)), 0)

    def _send_late(self, requests: Changes) -> None:
        """Reply to late requests: a negative place, and no values."""
        *ids, places = requests.columns[: self._operator.width]
        places = pa.array(-1 - np.asarray(places))
        self._send_blank(requests.with_columns((*ids, places)), np.zeros(0, np.int64))

    def boundary(self, epoch: int) -> None:
        self._answered.clear()

    def figures(self) -> dict[str, dict[str, Any]]:
        return (
            {}
            if self._progress is None
            else {self._store.node.name: {"pending": len(self._pending)}}
        )

    def saved(self, epoch: int) -> dict[str, View]:
        if self._progress is None:
            return {}
        blocks, depth = self._pending.blocks(), self.node.depth
        time = (epoch - 1, *(0,) * (depth - 1))
        order, loops = self._order, self._loops

        def laid_out(block: WaitingBlock) -> Changes:
            changes = block.changes.map_times(lambda _: time)
            rounds = [pa.array(np.full(changes.rows, each)) for each in block.rounds[:loops]]
            return changes.with_columns((*(changes.columns[at] for at in order), *rounds))

        def make() -> Changes | None:
            return Changes.concat([laid_out(block) for block in blocks]) if blocks else None

        name = self.node.name
        return {name: deferred(name, self._saved, epoch, depth, make)}

    def _restore(self, context: Context) -> None:
        saved = context.restored(self._saved)
        if saved is None or not saved.num_rows:
            return
        counts = np.asarray(saved.column(saved.num_columns - 1))
        rows = saved.select(list(range(saved.num_columns - 1)))
        fields = pa.schema([*self._saved.key, *self._saved.value])
        laid = canonical_columns(rows, fields)
        columns: list[Any] = [None] * len(self._order)
        for at, column in zip(self._order, laid, strict=False):
            columns[at] = column
        changes = Changes(tuple(columns), rows.num_rows, ((0,) * self.node.depth,), None, 0, counts)
        rounds = [np.asarray(column) for column in laid[len(self._order) :]]
        groups: dict[Rounds, list[int]] = {}
        if rounds:
            for row, each in enumerate(zip(*(column.tolist() for column in rounds), strict=True)):
                groups.setdefault(each, []).append(row)
        else:
            groups[()] = []
        for each, chosen in groups.items():
            some = changes.take(np.array(chosen)) if chosen else changes
            self._pending.add(each, some)


def _net(pieces: list[Changes], time: Timestamp) -> list[Changes]:
    """The requests less those that were deleted while they waited: a checkpoint would not have those either."""
    if all((p.diff if p.diffs is None else p.diffs.min()) > 0 for p in pieces):
        return pieces
    return [Changes.concat([piece.map_times(lambda _: time) for piece in pieces]).consolidate()]


def _nulls(schema: pa.Schema, width: int) -> list[pa.Array]:
    """An empty column in canonical layout for each column behind the record."""
    rest = pa.schema(list(list(schema)[width:]))
    return list(canonical_columns(empty_batch(rest), rest))
