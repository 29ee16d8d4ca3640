"""Bulk loops over arrays: in each round every target pulls what its sources send, and combines it.

A `PullLoop` says what a loop does; a `Pulling` holds its rows and runs it, once an epoch. The loop has at most one row
for a key. In each round each edge whose source has a row sends a *part*, a row-wise function of the values of the row
and the constants of the edge; extra rows send the parts that they have; and, where the loop says so, each row sends a
part to its own key. The parts of a key are combined (sum, min, max, count), and a row-wise function finishes the row.
A key has a row in the next round exactly when it got a part. `algorithms` has the like: PageRank, sums along paths.
Laws:

- **As the differential loop.** The rows after each round are those of `iterate` with the same body, bit for bit: sums
  of floats are exact and rounded once, an integer sum that leaves its type is refused, nulls are left out, floats have
  one zero and one NaN, an edge or an extra row that is there m times counts m times.
- **As from scratch.** The rows of an epoch depend on the net edges, extra rows and start rows alone, not on how these
  came.
- **Undone.** `undo` takes back all changes since `settle`, whether a run succeeded, raised, or did not begin.
- **Refused.** A start with two rows for one key, or an edge or row that is there a negative number of times, is no
  loop for arrays: `SeveralRows` and `BelowZero` say so, and the differential loop can take over.

Memory: 4 bytes an edge, 8 for each constant, 40 a key; besides, a round takes some arrays of the keys, and the parts of
`CHUNK` edges, or of the longest row.

Cost: where the constants of an edge are a function of its source (a degree, say), parts are computed by source; then a
round costs about as much as adding a number at random for each edge. Otherwise parts are computed by edge, in chunks.

>>> import pyarrow.compute as pc
>>> from riverrun.operators.iterations.pull_loop import Combine, PullLoop
>>> half = PullLoop(
...     keys=(pa.int64(),),
...     values=(pa.float64(),),
...     parts=(pa.float64(),),
...     message=lambda columns, rows: [pc.divide(columns[0], 2.0)],
...     combine=(Combine("sum", 0),),
... )
>>> loop = Pulling(half)
>>> loop.change_edges([pa.array([1, 1, 2])], [pa.array([2, 3, 3])], [], np.ones(3, np.int64))
>>> loop.change_start([pa.array([1, 2])], [pa.array([8.0, 4.0])], np.ones(2, np.int64))
>>> loop.run(rounds=1).rounds, [column.to_pylist() for column in loop.rows()]
(1, [[2, 3], [4.0, 6.0]])
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from riverrun.errors import OperatorFailed
from riverrun.operators.iterations.compressed import Compressed, EdgeChanges, net_changes
from riverrun.operators.iterations.numbering import ColumnWords, Numbering, Places
from riverrun.operators.iterations.parts import (
    NO_FLOATS,
    NO_INTS,
    GatheredCells,
    PoolRows,
    RoundRows,
    SentParts,
    check_sum,
    chunks_of,
    combinable,
    no_span,
    numbers_of,
    size_of,
)
from riverrun.operators.iterations.pull_loop import (
    Columns,
    Formula,
    NetRows,
    Pulled,
    PullLoop,
    Round,
    SeveralRows,
    Tolerance,
)
from riverrun.operators.iterations.words import (
    FLOAT64,
    Array,
    Flags,
    Ints,
    cells_of_rising,
    cells_of_words,
    column_of,
    from_words,
    words_of_cells,
)
from riverrun.operators.loops import PATIENCE
from riverrun.state.kernels.iterations import compressing, pulling

_HOWS = {"sum": pulling.SUMMING, "min": pulling.LEAST, "max": pulling.GREATEST}


@dataclass(frozen=True)
class _Chunk:
    """Targets [first, last), their edges counted from the first one, and whether these lie in turn in the pool."""

    first: int
    last: int
    size: int
    start: Ints
    count: Ints
    in_turn: bool


@dataclass
class _Extras:
    """The extra rows of an epoch: how many each target has, and their parts by place in the pool."""

    total: Ints
    sent: list[SentParts]
    ready: dict[int, tuple[Array, Array]] = field(default_factory=dict)
    """By number of a combined column: the parts in the form that its kernel takes, and their span."""


class Pulling:
    """Runs a `PullLoop`, once an epoch: take changes, `run`, read `net` or `rows`, then `settle` or `undo`."""

    CHUNK: ClassVar[int] = 1 << 16
    """Rows for which a function is called at once."""

    def __init__(self, loop: PullLoop, places: Places | None = None) -> None:
        refusal = loop.refusal()
        assert refusal is None, refusal
        self.loop = loop
        self.places: Places = Numbering(loop.keys) if places is None else places
        self.edges = Compressed(len(loop.constants))
        self._constants = ColumnWords(loop.constants)
        self._extra = Compressed(len(loop.parts))
        self._extra_parts = ColumnWords(loop.parts)
        self._start = Compressed(len(loop.values))
        self._values = ColumnWords(loop.values)
        self._journal: list[tuple[Compressed, EdgeChanges]] = []
        self._sending: Ints = np.zeros(0, np.int64)
        """How many edges leave each slot."""
        self._of_source: Ints = np.zeros((len(loop.constants), 0), np.int64)
        self._seen: Flags = np.zeros(0, np.uint8)
        self._marked: Flags = np.zeros(0, np.uint8)
        """Sources whose edges may disagree about their constants."""
        self._agreed = True
        self._before = RoundRows.empty(len(loop.values))
        self._now = self._before
        self._mapped: tuple[Any, ...] | None = None
        self._messages = 0
        """How many parts are sent along edges in a round."""

    # -- changes

    def change_edges(
        self, sources: Columns, targets: Columns, constants: Columns, diffs: Ints
    ) -> None:
        """Add changes of the constant edges: the keys of both ends, the constants, and the diffs."""
        s, t = self.places.place(sources), self.places.place(targets)
        words = self._constants.words(constants, len(diffs), self.edges)
        self._apply(self.edges, net_changes(t, s, words, diffs, len(self.places)))

    def change_extras(self, keys: Columns, parts: Columns, diffs: Ints) -> None:
        """Add changes of the extra rows: their keys, their parts, and the diffs."""
        self._change_rows(self._extra, self._extra_parts, keys, parts, diffs)

    def change_start(self, keys: Columns, values: Columns, diffs: Ints) -> None:
        """Add changes of the rows with which the loop starts."""
        self._change_rows(self._start, self._values, keys, values, diffs)

    def _change_rows(
        self, held: Compressed, form: ColumnWords, keys: Columns, columns: Columns, diffs: Ints
    ) -> None:
        slots = self.places.place(keys)
        words = form.words(columns, len(diffs), held)
        none = np.zeros(len(slots), np.uint32)
        self._apply(held, net_changes(slots, none, words, diffs, len(self.places)))

    def _apply(self, held: Compressed, changes: EdgeChanges) -> None:
        held.apply(changes, len(self.places))
        self._journal.append((held, changes))
        if held is self.edges:
            self._note_edges(changes)

    def _note_edges(self, changes: EdgeChanges) -> None:
        """Keep the number of edges of each source; mark sources whose edges may no longer agree."""
        slots = len(self.places)
        more = slots - len(self._sending)
        if more:
            self._sending = np.concatenate([self._sending, np.zeros(more, np.int64)])
            self._seen = np.concatenate([self._seen, np.zeros(more, np.uint8)])
            self._marked = np.concatenate([self._marked, np.zeros(more, np.uint8)])
            zeros = np.zeros((self._of_source.shape[0], more), np.int64)
            self._of_source = np.concatenate([self._of_source, zeros], axis=1)
        if len(changes) * 8 > slots:
            net = np.bincount(changes.sources, changes.diffs, minlength=slots)
            self._sending += net.astype(np.int64)
        else:
            np.add.at(self._sending, changes.sources, changes.diffs)
        kinds = self.edges.words.shape[0]
        if self._of_source.shape[0] < kinds:
            zeros = np.zeros((1, slots), np.int64)
            self._of_source = np.concatenate([self._of_source, zeros])
        if not kinds:
            return
        came = np.flatnonzero(changes.diffs > 0)
        sources = changes.sources[came]
        strange = self._seen[sources] == 0
        for kind in range(kinds):
            words = changes.words[kind, came] if kind < changes.words.shape[0] else 0
            strange |= self._of_source[kind, sources] != words
        self._marked[sources[strange]] = 1

    def _agree(self) -> bool:
        """Whether the constants are a function of the source, which `_of_source` then holds."""
        edges = self.edges
        if not edges.words.shape[0]:
            return True
        if not self._agreed:
            self._marked[:] = 1
        if self._marked.any():
            self._seen[self._marked != 0] = 0
            self._agreed = bool(
                compressing.agree_by_source(
                    edges.start,
                    edges.count,
                    edges.source,
                    edges.words,
                    self._marked,
                    self._seen,
                    self._of_source,
                )
            )
            if self._agreed:
                self._marked[:] = 0
        return self._agreed

    # -- epochs

    def undo(self) -> None:
        """Take back all changes since `settle`, and the result of the run, if there was one."""
        journal, self._journal = self._journal, []
        for held, changes in reversed(journal):
            back = changes.negated()
            held.apply(back, len(self.places))
            if held is self.edges:
                self._note_edges(back)
        self._now = self._before

    def settle(self) -> None:
        """The epoch is done: its rows are those that the next `net` compares with."""
        self._journal.clear()
        self._before = self._now

    def rows(self) -> tuple[pa.Array, ...]:
        """The rows of the last run: columns of the key, then values."""
        return self._columns(self._now, None)

    def net(self) -> NetRows:
        """The rows in which the last run differs from the last epoch."""
        slots = len(self.places)
        old, new = self._before.grown(slots), self._now.grown(slots)
        marks, _ = self._differences(old, new)
        differ = np.flatnonzero(marks)
        return NetRows(
            self._columns(old, differ[old.present[differ] != 0]),
            self._columns(new, differ[new.present[differ] != 0]),
        )

    def _columns(self, state: RoundRows, slots: Ints | None) -> tuple[pa.Array, ...]:
        """The rows in some slots, or all rows."""
        if slots is None:
            slots = np.arange(len(state.present)) if state.chosen is None else state.chosen
        return (*self.places.columns(slots), *self._value_columns(state, slots))

    def _value_columns(self, state: RoundRows, slots: Any) -> list[pa.Array]:
        return [
            from_words(words[slots], None if nulls is None else nulls[slots], kind)
            for words, nulls, kind in zip(state.words, state.nulls, self.loop.values, strict=True)
        ]

    def _differences(self, old: RoundRows, new: RoundRows) -> tuple[Flags, int]:
        """Mark the slots whose rows differ, and count them."""
        marks: Flags = np.zeros(len(old.present), np.uint8)
        if old.present is not new.present:
            marks |= old.present != new.present
        count = int(np.count_nonzero(marks)) if not old.words else 0
        for a, b in zip(old.nulls, new.nulls, strict=True):
            if a is not None or b is not None:
                marks |= (0 if a is None else a) != (0 if b is None else b)
        for before, after in zip(old.words, new.words, strict=True):
            count = int(pulling.count_differences(before, after, marks))
        return marks, count

    # -- a run

    def run(
        self,
        *,
        rounds: int | None = None,
        unchanged: bool = False,
        within: Tolerance | None = None,
        patience: int = PATIENCE,
    ) -> Pulled:
        """Run the loop from its start: `rounds` rounds, or until a stop, whichever comes first.

        It stops at a round that equals the one before (`unchanged`), or is `within` a tolerance of it. Without a limit,
        a loop that comes to no stop in `patience` rounds is an error.
        """
        state = self._first()
        history: list[Round] = []
        stopped = False
        self._prepare()
        try:
            while not stopped and (rounds is None or len(history) < rounds):
                if rounds is None and len(history) >= patience:
                    raise _diverges(patience)
                begun = time.perf_counter()
                after, unsure = self._round(state)
                _, changed = self._differences(state, after)
                stopped = (unchanged and not changed) or (
                    within is not None and self._is_within(within, state, after)
                )
                state = after
                spent = (time.perf_counter() - begun) * 1e3
                history.append(Round(changed, spent, unsure, self._messages))
        finally:
            self._mapped = None
        self._now = state
        return Pulled(len(history), stopped, tuple(history))

    def _first(self) -> RoundRows:
        """The rows with which the loop starts."""
        start, slots = self._start, len(self.places)
        start.grow(slots)
        if start.size and (int(start.count.max()) > 1 or (len(start.times) and self._twice())):
            raise SeveralRows
        state = RoundRows(np.zeros(0, np.uint8), [], [])
        state.place((start.count > 0).astype(np.uint8))
        chosen = np.arange(slots) if state.chosen is None else state.chosen
        words = np.ascontiguousarray(start.words[:, start.start[chosen]])
        for at in range(len(self.loop.values)):
            mask = self._values.nulls(words, at)
            state.words.append(_scattered(words[at], chosen, slots))
            state.nulls.append(None if mask is None else _scattered(mask, chosen, slots))
        return state

    def _twice(self) -> bool:
        start = self._start
        there = start.count > 0
        return bool((start.times[start.start[there]] > 1).any())

    def _prepare(self) -> None:
        """What stays the same in all rounds of a run."""
        slots = len(self.places)
        self.edges.grow(slots)
        self._extra.grow(slots)
        if len(self._sending) < slots:
            self._note_edges(_no_changes(self.edges))
        self._by_source = self._agree()
        extra = self._extra
        total = np.zeros(slots, np.int64)
        every = np.ones(1, np.uint8)
        if extra.size:
            pulling.count_parts(
                extra.start,
                extra.count,
                np.zeros(len(extra.source), np.uint32),
                extra.times,
                every,
                total,
            )
        sent = [
            SentParts(
                cells_of_words(extra.words[at], kind), self._extra_parts.nulls(extra.words, at)
            )
            for at, kind in enumerate(self.loop.parts)
        ]
        self._extras = _Extras(total, sent)
        self._weights: Array | None = None
        formula = self.loop.formula
        if formula is not None and self._formula_fits(formula):
            at = formula.constant
            if at is None:
                self._weights = NO_FLOATS
            else:
                words = self._of_source if self._by_source else self.edges.words
                kind = self.loop.constants[at]
                self._weights = cells_of_words(words[at], kind).astype(np.float64, copy=False)
        self._chunks = None if self._by_source else self._cut()
        longest = max((chunk.size for chunk in self._chunks or ()), default=0)
        self._turn = np.arange(longest, dtype=np.uint32)
        self._parts = np.empty(slots if self._by_source else longest)
        self._unsure = np.empty(slots, np.int64)

    def _formula_fits(self, formula: Formula) -> bool:
        words = self._of_source if self._by_source else self.edges.words
        return formula.constant is None or self._constants.nulls(words, formula.constant) is None

    def _cut(self) -> list[_Chunk]:
        """Targets in turn, with about `CHUNK` edges at a time; a target with more is alone."""
        edges = self.edges
        ends = np.cumsum(edges.count)
        chunks, first, done = [], 0, 0
        while first < len(ends):
            last = max(int(np.searchsorted(ends, done + self.CHUNK, side="right")), first + 1)
            count = edges.count[first:last]
            in_turn = bool(compressing.is_in_turn(edges.start, edges.count, first, last))
            size, start = int(ends[last - 1]) - done, ends[first:last] - count - done
            chunks.append(_Chunk(first, last, size, start, count, in_turn))
            first, done = last, done + size
        return chunks

    def _round(self, state: RoundRows) -> tuple[RoundRows, int]:
        """The rows of the next round; and how many sums of floats were not sure at first."""
        loop, slots = self.loop, len(self.places)
        active, sources, present, chosen = self._reached(state)
        unsure = 0
        combined: list[Array] = []
        counts: list[Ints | None] = []
        for combine in loop.combine:
            kind = loop.kind_of(combine)
            dtype = np.float64 if kind == FLOAT64 and combine.how == "sum" else np.int64
            combined.append(np.zeros(slots, dtype))
            counts.append(None)
        own = None if loop.own is None else self._own_parts(state)
        edges = self.edges
        whole = PoolRows(edges.start, edges.count, edges.source, edges.times, 0, slots)
        if self._by_source:
            sent = self._sent_by_source(state, active, sources)
            unsure += self._combine(whole, sent, active, own, combined, counts)
        else:
            for chunk in self._chunks or ():
                part, sent, flags = self._sent_by_edge(state, active, chunk)
                unsure += self._combine(part, sent, flags, own, combined, counts)
        after = RoundRows(present, [], [], chosen[0], chosen[1])
        self._finish(after, combined, counts)
        return after, unsure

    def _reached(
        self, state: RoundRows
    ) -> tuple[Flags, Ints | None, Flags, tuple[Ints | None, int]]:
        """Which slots send, which slots these are (None: all); which have a row in the next round, and which these are.

        A round with the same rows as the last one gets the same answers.
        """
        if self._mapped is not None and self._mapped[0] is state.present:
            answer: tuple[Any, ...] = self._mapped[1]
            return answer
        edges = self.edges
        active = (state.present != 0) & (self._sending > 0)
        sending = int(np.count_nonzero(active))
        sources = None if sending == len(active) else np.flatnonzero(active)
        flags: Flags = active.view(np.uint8)
        totals = self._extras.total.copy()
        if self.loop.own is not None:
            totals += state.present
        missing = (state.present == 0) & (self._sending > 0)
        if len(edges.times) or missing.any():
            pulling.count_parts(edges.start, edges.count, edges.source, edges.times, flags, totals)
        else:
            totals += edges.count
        self._totals = totals
        self._messages = int(
            self._sending.sum() if sources is None else self._sending[sources].sum()
        )
        after = RoundRows(np.zeros(0, np.uint8), [], [])
        after.place((totals > 0).view(np.uint8))
        if np.array_equal(after.present, state.present):
            after.present, after.chosen = state.present, state.chosen
        answer = (flags, sources, after.present, (after.chosen, after.rows))
        self._mapped = (state.present, answer)
        return answer

    def _sent_by_source(
        self, state: RoundRows, active: Flags, sources: Ints | None
    ) -> list[SentParts]:
        """The parts of each source."""
        loop, slots, formula = self.loop, len(self.places), self.loop.formula
        values = self._formula_values(state)
        if values is not None:
            assert formula is not None
            weights = self._weights if self._weights is not None and len(self._weights) else values
            out = self._parts
            span = no_span()
            pulling.shape_sources(
                formula.number, formula.factor, values, weights, active, out, span
            )
            return [SentParts(out, None, span)]
        results = GatheredCells(loop.parts, slots)
        for rows in chunks_of(sources, slots, self.CHUNK):
            columns = self._value_columns(state, rows)
            words = np.ascontiguousarray(self._of_source[:, rows])
            columns += [self._constants.column(words, at) for at in range(len(loop.constants))]
            results.put(rows, loop.message(columns, len(columns[0]) if columns else size_of(rows)))
        return results.sent()

    def _formula_values(self, state: RoundRows) -> Any:
        """The values that the formula takes, as doubles; None where it does not apply."""
        formula = self.loop.formula
        if formula is None or self._weights is None or state.nulls[formula.value] is not None:
            return None
        kind = self.loop.values[formula.value]
        return cells_of_words(state.words[formula.value], kind).astype(np.float64, copy=False)

    def _sent_by_edge(
        self, state: RoundRows, active: Flags, chunk: _Chunk
    ) -> tuple[PoolRows, list[SentParts], Flags]:
        """The parts of each edge of a chunk, as rows of a pool of their own."""
        loop, edges, formula = self.loop, self.edges, self.loop.formula
        first, last, size = chunk.first, chunk.last, chunk.size
        values = self._formula_values(state)
        bare = values is not None and all(each.how in ("sum", "count") for each in loop.combine)
        places: Any = None
        if not bare or len(edges.times):
            places = self._places_of(chunk)
        part = PoolRows(
            chunk.start,
            chunk.count,
            self._turn[:size],
            edges.times[places] if len(edges.times) else edges.times,
            first,
            last,
        )
        flags = active if bare else active[edges.source[places]]
        if values is not None:
            assert formula is not None
            out = self._parts[:size]
            span = no_span()
            pulling.shape_edges(
                formula.number,
                formula.factor,
                values,
                values if self._weights is None else self._weights,
                edges.start,
                edges.count,
                edges.source,
                active,
                first,
                last,
                out,
                span,
            )
            return part, [SentParts(out, None, span)], flags
        sources = edges.source[places]
        results = GatheredCells(loop.parts, size)
        sending = None if flags.all() else np.flatnonzero(flags)
        for rows in chunks_of(sending, size, self.CHUNK):
            columns = self._value_columns(state, sources[rows])
            words = edges.words[:, places][:, rows]
            columns += [self._constants.column(words, at) for at in range(len(loop.constants))]
            results.put(rows, loop.message(columns, size_of(rows)))
        return part, results.sent(), flags

    def _places_of(self, chunk: _Chunk) -> Any:
        """Where in the pool the edges of a chunk are."""
        edges = self.edges
        if chunk.in_turn:
            begin = int(edges.start[chunk.first])
            return slice(begin, begin + chunk.size)
        places = np.empty(chunk.size, np.int64)
        pulling.list_places(edges.start, edges.count, chunk.first, chunk.last, places)
        return places

    def _own_parts(self, state: RoundRows) -> list[SentParts]:
        assert self.loop.own is not None
        slots = len(self.places)
        results = GatheredCells(self.loop.parts, slots)
        for rows in chunks_of(state.chosen, slots, self.CHUNK):
            results.put(rows, self.loop.own(self._value_columns(state, rows), size_of(rows)))
        sent = results.sent()
        absent = None if state.chosen is None else (state.present == 0)
        for each in sent:
            if absent is not None:
                # An absent row sends nothing, as a null does, except that it is not counted.
                nulls = np.zeros(slots, np.uint8) if each.nulls is None else each.nulls
                each.nulls = (nulls != 0) | absent
                each.nulls = each.nulls.view(np.uint8)
        return sent

    def _combine(
        self,
        rows: PoolRows,
        sent: list[SentParts],
        active: Flags,
        own: list[SentParts] | None,
        combined: list[Array],
        counts: list[Ints | None],
    ) -> int:
        """Combine the parts of some targets; return how many sums of floats were not sure at first."""
        unsure, first, last = 0, rows.first, rows.last
        mine = slice(first, last)
        extra = self._extra
        more = (extra.start[mine], extra.count[mine])
        for number, combine in enumerate(self.loop.combine):
            out = combined[number][mine]
            if combine.how == "count":
                out[:] = self._totals[mine]
                continue
            part = sent[combine.part]
            extras = self._extras.sent[combine.part]
            owned = None if own is None else own[combine.part]
            some_null = part.nulls is not None or extras.nulls is not None or owned is not None
            if combine.how == "valid" or (combine.how != "sum" and some_null):
                valid = self._count_valid(rows, part, active, extras, owned)
                if combine.how == "valid":
                    out[:] = valid
                    continue
                known = counts[number]
                if known is None:
                    known = counts[number] = self._totals.copy()
                known[mine] = valid
            elif combine.how != "sum" and counts[number] is not None:
                counts[number][mine] = self._totals[mine]  # type: ignore[index]
            how = _HOWS[combine.how]
            parts, span = combinable(part, how, active)
            if number not in self._extras.ready:
                self._extras.ready[number] = combinable(extras, how, None)
            extra_parts, extra_span = self._extras.ready[number]
            own_parts, own_span = none_of(parts), extra_span
            if owned is not None:
                own_parts, own_span = combinable(owned, how, None)
                own_parts = own_parts[mine]
            if combine.how != "sum":
                pulling.least(
                    rows.start, rows.count, rows.source, parts, *more, extra_parts, own_parts, out
                )
                continue
            listed = self._unsure
            pool = (rows.start, rows.count, rows.source, rows.times, parts)
            others = (*more, extra.times, extra_parts, own_parts)
            if parts.dtype == np.float64:
                spans = np.array([span, extra_span, own_span])
                whole = np.array([spans[:, 0].max(), spans[:, 1].min()])
                repeated = self.edges.several[mine]
                size = pulling.sum_floats(
                    *pool[:4], repeated, *pool[4:], *others, whole, out, listed
                )
                if size:
                    pulling.sum_surely(listed[:size], *pool, *others, out)
                unsure += int(size)
            else:
                size = pulling.sum_ints(*pool, *others, out, listed)
                kind = self.loop.kind_of(combine)
                for target in listed[:size].tolist():
                    check_sum(target, pool, others, kind)
        return unsure

    def _count_valid(
        self,
        rows: PoolRows,
        part: SentParts,
        active: Flags,
        extras: SentParts,
        owned: SentParts | None,
    ) -> Ints:
        """How many parts of each target are not null."""
        valid = np.zeros(rows.last - rows.first, np.int64)
        flags = active if part.nulls is None else active & (part.nulls == 0)
        pulling.count_parts(
            rows.start, rows.count, rows.source, rows.times, flags.view(np.uint8), valid
        )
        extra = self._extra
        mine = slice(rows.first, rows.last)
        if extras.nulls is None:
            valid += self._extras.total[mine]
        else:
            pulling.count_parts(
                extra.start[mine],
                extra.count[mine],
                np.arange(len(extra.source), dtype=np.uint32),
                extra.times,
                (extras.nulls == 0).view(np.uint8),
                valid,
            )
        if owned is not None:
            valid += 1 if owned.nulls is None else (owned.nulls[mine] == 0)
        return valid

    def _finish(self, after: RoundRows, combined: list[Array], counts: list[Ints | None]) -> None:
        """The values of the next round, from the combined columns."""
        loop, slots = self.loop, len(self.places)
        cells: list[Array] = []
        masks: list[Flags | None] = []
        kinds = [loop.kind_of(combine) for combine in loop.combine]
        for each, known, combine, kind in zip(combined, counts, loop.combine, kinds, strict=True):
            if combine.how in ("min", "max"):
                each = cells_of_rising(each, _HOWS[combine.how], kind)
            cells.append(each)
            masks.append(None if known is None else (known == 0).view(np.uint8))
        if loop.finish is None:
            for each, mask in zip(cells, masks, strict=True):
                words = (
                    each.view(np.int64) if each.dtype.itemsize == 8 else words_of_cells(each, None)
                )
                gone = None if after.chosen is None else after.present == 0
                if mask is not None and not mask.any():
                    mask = None
                if mask is not None:
                    words = np.where(mask != 0, np.int64(0), words)
                    if gone is not None:
                        mask = (mask.view(np.bool_) & ~gone).view(np.uint8)
                if gone is not None:
                    words[gone] = 0
                after.words.append(words)
                after.nulls.append(mask)
            return
        results = GatheredCells(loop.values, slots)
        for rows in chunks_of(after.chosen, slots, self.CHUNK):
            columns: list[pa.Array] = []
            if loop.finish_keys:
                columns += self.places.columns(numbers_of(rows))
            for each, mask, kind in zip(cells, masks, kinds, strict=True):
                columns.append(column_of(each[rows], None if mask is None else mask[rows], kind))
            results.put(rows, loop.finish(columns, size_of(rows)))
        for sent in results.sent():
            after.words.append(words_of_cells(sent.cells, sent.nulls))
            after.nulls.append(sent.nulls)

    def _is_within(self, within: Tolerance, old: RoundRows, new: RoundRows) -> bool:
        """Whether two rounds have the same keys, and values of a column that differ by little enough."""
        if old.present is not new.present and not np.array_equal(old.present, new.present):
            return False
        at = within.column
        for a, b in [(old.nulls[at], new.nulls[at])]:
            if a is not None or b is not None:
                zero = np.zeros(len(old.present), np.uint8)
                if ((zero if a is None else a) != (zero if b is None else b)).any():
                    return False
        if not len(old.present):
            return True
        kind = self.loop.values[at]
        differ = old.words[at] != new.words[at]
        before = cells_of_words(old.words[at][differ], kind).astype(np.float64)
        after = cells_of_words(new.words[at][differ], kind).astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            return bool((np.abs(after - before) <= within.tolerance).all())


def _no_changes(held: Compressed) -> EdgeChanges:
    none = np.zeros(0, np.uint32)
    return EdgeChanges(none, none, held.no_words(0), NO_INTS)


def none_of(parts: Array) -> Array:
    return NO_FLOATS if parts.dtype == np.float64 else NO_INTS


def _scattered(cells: Array, chosen: Ints, slots: int) -> Array:
    out = np.zeros(slots, cells.dtype)
    out[chosen] = cells
    return out


def _diverges(patience: int) -> OperatorFailed:
    return OperatorFailed(
        "operator.diverges",
        f"a loop still changes after {patience} rounds, and nothing says when it should stop",
        hint="give it rounds=..., or more patience",
        patience=patience,
    )


__all__ = ["Pulling"]
