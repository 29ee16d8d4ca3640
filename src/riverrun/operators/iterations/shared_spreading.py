"""Shared spreading: values that spread along edges, where each worker has the keys of its own hashes.

`shared_spread` keeps one `SharedSpreading` on each worker. A worker has the edges from its keys, and the rows that its
keys start with. Workers write each other *letters*: columns with a key, what the letter is `about`, a value as a word
(`messages`), and how many messages the value is away from one that was there before. An epoch has these steps:

1. Changes are staged, as in `spreading`. `lose` finds the values that are lost by them, and `hear_losses` those that
   are lost by letters, until there is no such letter any more.
2. `turn` brings lost values back to what they start with. It asks the workers that have sent a value for a key which
   has lost its value to send theirs again.
3. `work` sends values on, and `hear` takes letters, until nothing is left to do. A letter has the best value that this
   worker has for a key of another one: values that were better than no other are never sent.
4. `settle` gives the net change of the epoch.

Laws:

- **Oracle.** After each epoch the values of all workers are those of one `Spreading` with all rows, whatever the order
  of work and of letters within a step.
- **Lost before turned.** `turn` is called when no worker has a letter of losses any more. What is lost is lost by its
  parents (`state.kernels.iterations.shared_spreading`), so a deletion costs the values that came by it.

>>> from riverrun.state.shards import Shards
>>> one = SharedSpreading([pa.int64()], pa.int64(), Message("copy"), own=0, shards=Shards.even(1))
>>> one.change_solution([pa.array([1, 2])], pa.array([1, 2]), np.ones(2, np.int64))
>>> one.change_edges([pa.array([1])], [pa.array([2])], None, np.ones(1, np.int64))
>>> one.lose(), one.turn(), one.work()
([], [], [])
>>> one.settle().rows()
[((1,), 1, 1), ((2,), 1, 1)]

Cost: as `spreading`; a letter costs some 100 ns on each side.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from riverrun.errors import OperatorFailed, PlanError
from riverrun.operators.iterations.adjacency import NO_EDGES, NO_ENDS
from riverrun.operators.iterations.messages import Message
from riverrun.operators.iterations.ordinals import has_ordinals
from riverrun.operators.iterations.slots import Numbers, grown
from riverrun.operators.iterations.spreading import Settled, Spreading, _joined, _own
from riverrun.plan.loop_figures import RoundFigures
from riverrun.rows.values import show
from riverrun.state.changes import split_rows
from riverrun.state.columns import Ints, as_array, int64_column, take_columns
from riverrun.state.kernels.iterations import cells as at
from riverrun.state.kernels.iterations import messages as words_of
from riverrun.state.kernels.iterations import shared_spreading as kernels
from riverrun.state.kernels.iterations import spreading as plain
from riverrun.state.shards import Shards

Letters = tuple[pa.Array, ...]
"""Columns: those of the key, what a letter is about (`written`), a word, and a number of messages."""

KIND_BITS, WORKER_BITS = 3, 21
NO_SLOTS = np.zeros(0, np.int32)
NO_INTS = np.zeros(0, np.int64)
EVERYTHING = 1 << 62
LEAST_QUANTUM, FIRST_QUANTUM, MOST_QUANTUM = 256, 1 << 12, 1 << 14
"""How many slots send their values before letters are looked at. Where values are lost, there are many that are not the
best, until it is known what others have: so it is few at first."""


def written(kinds: Any, sender: int, to: Any) -> Any:
    """What letters of some kinds are about."""
    return kinds | (sender << KIND_BITS) | (to << (KIND_BITS + WORKER_BITS))


def addressees(about: Ints) -> Ints:
    """The workers that letters go to."""
    return about >> (KIND_BITS + WORKER_BITS)


class SharedSpreading(Spreading):
    """The values of the keys that worker `own` of `shards` owns. The other arguments are those of `Spreading`."""

    def __init__(
        self,
        keys: Sequence[pa.DataType],
        value: pa.DataType,
        message: Message,
        *,
        own: int,
        shards: Shards,
        best: str = "least",
        missing: str = "drop",
        order: str = "best",
        patience: int = 100_000,
    ) -> None:
        if has_ordinals(value):
            raise PlanError(
                "iteration.type",
                f"cannot spread values of type {value} over several workers: each would number them in its own way",
                hint="spread them on one worker",
                type=str(value),
            )
        super().__init__(
            keys, value, message, best=best, missing=missing, order=order, patience=patience
        )
        self._worker = own
        self._shards = shards
        self._peers = [peer for peer in range(shards.workers) if peer != own]
        self._links = np.empty((kernels.LINK_FIELDS, 0), np.int32)
        self._report = np.zeros(kernels.SHARED_REPORT_FIELDS, np.int64)
        self._superstep = order == "superstep"
        self._told = (0, False)
        self._caps: dict[int, int] = {}
        """For each peer, a number of slots that it has not more than."""
        self._quantum = FIRST_QUANTUM
        self.is_hasty = False
        """Whether much of what was heard lately was better than what is known here: then it is better to wait for more
        than to send on."""
        self.letters = 0
        """How many letters were written so far."""
        self._supersteps: list[RoundFigures] = []
        """What each superstep of this epoch did on this worker."""
        self._began = self._noted = 0.0
        """When this epoch began, and when its last superstep was noted."""

    @property
    def is_new(self) -> bool:
        """Whether no epoch was turned yet."""
        return self._empty

    @property
    def has_lost(self) -> bool:
        """Whether values are lost in this epoch."""
        return bool(self._open and self._report[plain.TRIMMED])

    @property
    def is_busy(self) -> bool:
        """Whether there is something to send."""
        return bool(self._report[plain.QUEUED] or self._report[kernels.SENT])

    def _begin(self) -> None:
        if self._open:
            return
        super()._begin()
        self.is_hasty = False
        self._supersteps = []
        self._began = self._noted = perf_counter()
        self._report[:] = 0
        self._report[plain.LOWEST] = 0 if self._superstep else plain.QUEUES

    def _reserve(self) -> None:
        before = self._known
        super()._reserve()
        count = self._known
        if count == before:
            return
        if self._links.shape[1] < self._room:
            self._links = grown(self._links, self._room, before)
        slots = np.arange(before, count, dtype=np.int32)
        owners = self._owners(self._slots.columns(slots), count - before)
        self._links[kernels.PARENT, before:count] = kernels.NO_PARENT
        self._links[kernels.OWNER, before:count] = owners
        self._links[kernels.HEARD, before:count] = 0
        outposts = slots[owners != self._worker]
        self._values[:, outposts] = words_of.WORST
        self._flags[at.RANK, outposts] = words_of.ABSENT
        self._flags[at.START_RANK, outposts] = words_of.ABSENT

    def _owners(self, keys: Sequence[pa.Array], rows: int) -> Numbers:
        owners = np.zeros(rows, np.int32)
        if self._shards.workers > 1:
            order, starts = split_rows(keys, rows, self._shards)
            for worker in range(self._shards.workers):
                owners[order[starts[worker] : starts[worker + 1]]] = worker
        return owners

    # -- what is lost

    def lose(self) -> list[Letters]:
        """Find what is lost by the changes that were staged; letters about that, and news of this worker."""
        self._ready()
        letters = self._news()
        if self._empty:
            return letters
        gone = _joined([change.gone for change in self._changes], NO_ENDS)
        started = self._scratch[plain.STARTED_SLOTS, : self._started]
        return letters + self._lost(started, gone, NO_SLOTS, NO_INTS, NO_INTS)

    def hear_losses(self, letters: Letters) -> list[Letters]:
        """Take letters about losses, and news of others; letters about what is lost by that."""
        self._ready()
        *keys, about, words, _ = letters
        kinds, senders = _kinds_and_senders(about)
        is_news = kinds >= kernels.NEWS
        if is_news.any():
            news = as_array(words)[is_news]
            for sender, word in zip(senders[is_news].tolist(), news.tolist(), strict=True):
                if sender != self._worker:
                    self._caps[sender] = word >> 1
                    self._closes_over |= bool(word & 1)
            kept = np.flatnonzero(~is_news)
            if not len(kept):
                return []
            keys, kinds, senders = [*take_columns(keys, kept)], kinds[kept], senders[kept]
        if self._empty:
            return []
        self._closes_over |= bool((kinds == kernels.REACHED).any())
        slots = self._found(keys, len(kinds))
        return self._lost(NO_SLOTS, NO_ENDS, slots, kinds, senders)

    _closes_over = False
    """Whether the closure rule holds; from then on for good."""

    def _ready(self) -> None:
        self._begin()
        self._reserve()
        self._graph.reserve(self._known)
        improving = self._graph.improving > 0 or self._always_improving or self._starts.turning > 0
        self._closes_over |= improving and not self._one_to_one
        how = self._how
        how[plain.RULE] = plain.CLOSURE if self._closes_over else plain.BY_VALUE
        how[plain.SLOTS] = self._known
        limit = sum(self._caps.values()) + (1 << self._known.bit_length())
        how[plain.MOST_HOPS] = limit if self._one_to_one else 1 << 30

    def _found(self, keys: Sequence[pa.Array], rows: int) -> Numbers:
        slots = self._slots.find(keys, rows)
        self._reserve()
        self._graph.reserve(self._known)
        return slots

    def _news(self) -> list[Letters]:
        """News for all other workers, where something differs from what they were told."""
        now = 1 << self._known.bit_length(), self._closes_over
        if now == self._told or not self._peers:
            return []
        self._told = now
        return [self._news_to(self._peers, now[0] << 1 | now[1])]

    def wake(self) -> Letters:
        """A letter of this worker to itself, which says nothing."""
        return self._news_to([self._worker], 0)

    def _news_to(self, workers: Sequence[int], word: int) -> Letters:
        count = len(workers)
        keys = [pa.nulls(count, kind) for kind in self._slots.kinds]
        about = written(kernels.NEWS, self._worker, np.array(workers, np.int64))
        words = int64_column(np.full(count, word, np.int64))
        return (*keys, int64_column(about), words, int64_column(np.zeros(count, np.int64)))

    def _lost(
        self, started: Numbers, gone: Ints, heard: Numbers, kinds: Ints, senders: Ints
    ) -> list[Letters]:
        report, scratch, graph = self._report, self._scratch, self._graph
        before = int(report[plain.TRIMMED])
        kernels.lose(
            self._values, self._flags, graph.lists, graph.ends, graph.weights, self._links, started, gone,
            heard, kinds, senders, scratch, self._how, report,
        )  # fmt: skip
        lost = scratch[kernels.LOST_SLOTS, before : int(report[plain.TRIMMED])]
        owners = self._links[kernels.OWNER, lost]
        away = owners != self._worker
        if not away.any():
            return []
        kind = kernels.REACHED if self._closes_over else kernels.LOST
        slots, to = lost[away], owners[away].astype(np.int64)
        nothing = np.zeros(len(slots), np.int64)
        return [self._letters(slots, nothing + kind, to, nothing, nothing)]

    def _letters(self, slots: Numbers, kinds: Ints, to: Ints, words: Ints, hops: Ints) -> Letters:
        self.letters += len(slots)
        about = written(kinds, self._worker, to)
        keys = self._slots.columns(np.ascontiguousarray(slots))
        return (*keys, int64_column(about), int64_column(words), int64_column(hops))

    # -- what is sent on

    def turn(self) -> list[Letters]:
        """Bring back what was lost, and begin to send on what is new; questions to other workers."""
        self._ready()
        anew, self._empty = self._empty, False
        graph, scratch = self._graph, self._scratch
        kernels.turn(
            self._worker, anew, self._values, self._cells, self._flags, graph.lists, graph.ends, graph.weights,
            graph.edges, graph.edge_weights, self._links, scratch[plain.STARTED_SLOTS, : self._started],
            _joined([change.fresh for change in self._changes], NO_EDGES),
            self._queues, scratch, self._how, self._report,
        )  # fmt: skip
        self._quantum = FIRST_QUANTUM if anew else LEAST_QUANTUM
        if anew:
            return self._news()
        lost = scratch[kernels.LOST_SLOTS, : int(self._report[plain.TRIMMED])]
        lost = lost[self._links[kernels.OWNER, lost] == self._worker]
        lost = lost[self._flags[at.RANK, lost] != words_of.CLOSED]
        heard = self._links[kernels.HEARD, lost]
        letters = []
        for peer in self._peers:
            asked = lost[heard & np.int32(1 << peer % kernels.MASKS) != 0]
            if len(asked):
                nothing = np.zeros(len(asked), np.int64)
                letters.append(
                    self._letters(asked, nothing + kernels.ASK, nothing + peer, nothing, nothing)
                )
        self.is_hasty = bool(letters)
        return letters

    def hear(self, letters: Letters) -> None:
        """Take values that other workers sent, and their questions."""
        self._begin()
        *keys, about, words, hops = letters
        kinds, senders = _kinds_and_senders(about)
        is_other = kinds >= kernels.NEWS
        if (
            is_other.any()
        ):  # of workers that begin together with this one; or only to wake this worker
            self.hear_losses(letters)
            kept = np.flatnonzero(~is_other)
            if not len(kept):
                return
            *keys, words, hops = take_columns([*keys, words, hops], kept)
            kinds, senders = kinds[kept], senders[kept]
        slots = self._found(keys, len(kinds))
        self._ready()
        taken = kernels.hear(
            self._worker, slots, kinds, senders, _own(as_array(words)), _own(as_array(hops)), self._values,
            self._cells, self._flags, self._links, self._queues, self._scratch, self._how, self._report,
        )  # fmt: skip
        if taken < 0:
            raise self._endless()
        self._adapt(taken, len(kinds))

    def _adapt(self, taken: int, heard: int) -> None:
        """Send on less at a time where much of what is heard is better than what is known here, and more otherwise."""
        if 4 * taken > heard:
            self._quantum = max(self._quantum >> 1, LEAST_QUANTUM)
            self.is_hasty = True
        elif 16 * taken < heard:
            self._quantum = min(self._quantum << 1, MOST_QUANTUM)
            self.is_hasty = False

    def work(self, superstep: int = 0, *, only_letters: bool = False) -> list[Letters]:
        """Send some values on: with peers, those of one round, or the best of them; letters about values.

        `superstep` is the number of the round. With `only_letters`, values that are to be sent on within this worker
        wait.
        """
        self._begin()
        graph, report = self._graph, self._report
        while report[plain.QUEUED] and not only_letters:
            senders, before = int(report[plain.QUEUED]), int(report[plain.MESSAGES])
            quantum = EVERYTHING if self._superstep or not self._peers else self._quantum
            status = kernels.work(
                self._worker, quantum, self._values, self._cells, self._flags, graph.lists, graph.ends,
                graph.weights, self._links, self._queues, self._scratch, self._how, report,
            )  # fmt: skip
            if status != plain.DONE:
                raise self._failure(status)
            if self._superstep:
                self._note(superstep, senders, int(report[plain.MESSAGES]) - before)
                superstep += 1
            if self._peers:
                break
        count = int(report[kernels.SENT])
        if not count:
            return []
        slots = np.empty(count, np.int32)
        words, kinds, hops = np.empty((3, count), np.int64)
        kernels.empty_outbox(
            self._values, self._cells, self._flags, self._scratch, slots, words, kinds, hops, report
        )
        to = self._links[kernels.OWNER, slots].astype(np.int64)
        return [self._letters(slots, kinds, to, words, hops)]

    def settle(self) -> Settled:
        """The net change of this epoch, which is over."""
        self._begin()
        report = self._report
        graph = self._graph
        if report[plain.DOUBTS]:
            status = plain.resolve_doubts(
                self._values, self._flags, graph.lists, graph.ends, graph.weights, self._scratch,
                self._how, report,
            )  # fmt: skip
            if status != plain.DONE:
                raise self._failure(status)
        self._touched = int(report[plain.TOUCHES])
        touched = self._scratch[plain.TOUCHED_SLOTS, : self._touched]
        own = touched[self._links[kernels.OWNER, touched] == self._worker]
        settled = self._settled_of(own, self._told_rounds(len(own)))
        self._open = False
        return settled

    def _note(self, superstep: int, senders: int, messages: int) -> None:
        """Note what a superstep did, with the time since the one before: also that in which it waited for others."""
        before, self._noted = self._noted, perf_counter()
        figures = RoundFigures((superstep,), senders, messages, self._noted - before)
        self._supersteps.append(figures)

    def _told_rounds(self, touched: int) -> list[RoundFigures]:
        """What this epoch did here: a row for each superstep, the first with what new edges carried before it; or
        one row of all work in the order of values."""
        messages = int(self._report[plain.MESSAGES])
        if not self._superstep:
            whole = RoundFigures((), touched, messages, perf_counter() - self._began, 0)
            return [whole] if touched or messages else []
        rounds = self._supersteps
        before = messages - sum(each.messages for each in rounds)
        if not before:
            return rounds
        if rounds and rounds[0].at == (0,):
            return [rounds[0]._replace(messages=rounds[0].messages + before), *rounds[1:]]
        return [RoundFigures((0,), 0, before, 0.0), *rounds]

    def _endless(self) -> OperatorFailed:
        slot = int(self._report[plain.SLOT])
        key, value = self._shown(slot), self._shown_value(slot)
        return OperatorFailed(
            "operator.diverges",
            f"the value of {show(key)} gets better without end: it is {show(value)} now, after more changes in one "
            "epoch than the loop has patience for",
            hint="look for a cycle of edges along which values get better; or allow more changes with patience",
            key=key,
            value=value,
        )


def _kinds_and_senders(about: pa.Array) -> tuple[Ints, Ints]:
    words = as_array(about)
    kinds = words & ((1 << KIND_BITS) - 1)
    senders = (words >> KIND_BITS) & ((1 << WORKER_BITS) - 1)
    return kinds, senders
