"""Spreading: the best value of each key, where values spread along edges; kept up to date as its inputs change.

Components by their least label, shortest and widest paths, and reachability are of this kind. A loop actor keeps one
`Spreading` over all epochs. It stages the net changes of an epoch (`change_edges`, `change_solution`,
`change_workset`), and then takes the net change of the result from `converge`.

The value of a key is the best of its rows in the solution, its rows in the workset, and the messages along the edges
to it; that is, the least fixed point of this. A message is made of the value of the source and the weight of the edge
(`messages`); values without a fixed width are only copied (`ordinals`). Rows and edges are multisets, and are there
while the sum of their diffs is above 0. A null value is worse than every other one, and has null messages. An edge
whose source has a null in its key sends nothing, as in a join.

Laws:

- **Oracle.** After each epoch the values are the fixed point for all changes so far, whatever the order of work, and
  however the changes were cut into epochs and calls.
- **Support.** A value that is no start value is the message of a value that *precedes* it (`state.kernels.iterations`),
  so that chains of supports end at start values.
- **Undone.** After `undo` the next epoch gives what it would have given if the last one had not been.
- **Restored.** Values and depths that `converge` gave, with the rows and edges as of then, make the same state again.
- **No wrong answer.** Where a message leaves its type, where weights turn the order of values round, or where a value
  goes on getting better around a cycle, the epoch is refused with an error that names the key and the values.

>>> nodes = pa.array([1, 2, 3])
>>> spreading = Spreading([pa.int64()], pa.int64(), Message("copy"))
>>> spreading.change_solution([nodes], nodes, np.ones(3, np.int64))
>>> spreading.change_edges([pa.array([1, 2])], [pa.array([2, 3])], None, np.ones(2, np.int64))
>>> spreading.converge().rows()
[((1,), 1, 1), ((2,), 1, 1), ((3,), 1, 1)]
>>> spreading.change_edges([pa.array([1])], [pa.array([2])], None, np.array([-1]))
>>> spreading.converge().rows()
[((2,), 1, -1), ((2,), 2, 1), ((3,), 1, -1), ((3,), 2, 1)]

Cost: an insertion costs the keys that change, and their edges. A deletion costs the keys whose value came by it, and
their edges in both directions; where messages may be better than values and equal for different values (a minimum
with a weight, floats with weights below 0), everything that can be reached from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from riverrun.errors import OperatorFailed, PlanError
from riverrun.operators.iterations.adjacency import (
    NO_EDGES,
    NO_ENDS,
    NO_WEIGHTS,
    Adjacency,
    EdgeChange,
)
from riverrun.operators.iterations.messages import Message, Ranks, Words
from riverrun.operators.iterations.ordinals import Moves, Ordinals, has_ordinals
from riverrun.operators.iterations.round_clock import RoundClock
from riverrun.operators.iterations.slots import Numbers, Slots, grown
from riverrun.operators.iterations.starts import StartValues
from riverrun.plan.loop_figures import RoundFigures
from riverrun.rows.values import show
from riverrun.state.columns import Ints, column_table, int64_column, take_columns
from riverrun.state.kernels.iterations import cells as at
from riverrun.state.kernels.iterations import messages as words_of
from riverrun.state.kernels.iterations import slots as slot_kernels
from riverrun.state.kernels.iterations import spreading as kernels
from riverrun.state.kernels.iterations.starts import SOLUTION, WORKSET

__all__ = ["Message", "Settled", "Spreading"]

_LEAST = 64
_ROUNDS = 4096  # rounds at most from one look at the clock to the next
_PATIENCE = 100_000
_NO_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class Settled:
    """What an epoch changed: rows that went (diff -1) and came (1).

    A key whose value differs has up to two rows among the first `changed` ones: the old value, if it had one, and the
    new one, if it has one. All rows are the change of a saved state of keys, values and depths: those after the first
    `changed` rows have another depth only.
    """

    keys: tuple[pa.Array, ...]
    values: pa.Array
    depths: Ints
    diffs: Ints
    changed: int
    messages: int
    """How many messages were sent."""
    touched: int
    """How many keys had another value or depth for a moment at least."""
    trimmed: int
    """How many keys went back to their start values."""
    rounds: int
    """Rounds of supersteps; 1 for all work in order of values, 0 for none."""
    deepest: int
    """The greatest depth that a value got in this epoch."""
    history: tuple[RoundFigures, ...] = ()
    """What each superstep did; of work in order of values, all of it at once."""

    def result(self) -> tuple[tuple[pa.Array, ...], Ints]:
        """The net change of the result: columns of keys and values, and diffs."""
        columns = tuple(column.slice(0, self.changed) for column in (*self.keys, self.values))
        return columns, self.diffs[: self.changed]

    def saved(self) -> tuple[tuple[pa.Array, ...], Ints]:
        """The net change of a saved state: columns of keys, values and depths, and diffs."""
        return (*self.keys, self.values, int64_column(self.depths)), self.diffs

    def rows(self) -> list[tuple[tuple[Any, ...], Any, int]]:
        """The net change of the result as Python values, sorted: key, value and diff."""
        columns, diffs = self.result()
        *keys, values = (column.to_pylist() for column in columns)
        rows = zip(zip(*keys, strict=True), values, diffs.tolist(), strict=True)
        return sorted(rows, key=lambda row: (repr(row[0]), row[2]))


class Spreading:
    """Values that spread along edges. `keys` and `value` are canonical Arrow types.

    `best` is ``least`` or ``greatest``. With `missing` = ``drop`` a key is there if the solution has it, with ``add``
    also if a row of the workset or a message reaches it. With `order` = ``best`` better values are sent first, with
    ``superstep`` round by round. A key whose value gets better more than `patience` times in an epoch is an error;
    so is, among integers, a value that has gone around a cycle and come back better.
    """

    def __init__(
        self,
        keys: Sequence[pa.DataType],
        value: pa.DataType,
        message: Message,
        *,
        best: str = "least",
        missing: str = "drop",
        order: str = "best",
        patience: int = _PATIENCE,
    ) -> None:
        for name, given, known in (
            ("best", best, ("least", "greatest")),
            ("missing", missing, ("drop", "add")),
            ("order", order, ("best", "superstep")),
        ):
            if given not in known:
                raise PlanError(
                    "plan.iteration",
                    f"cannot spread values with {name}={given!r}",
                    hint=f"{name} is {known[0]!r} or {known[1]!r}",
                    given=given,
                )
        self._message = message
        greatest = best == "greatest"
        self._words: Words | Ordinals = (
            Ordinals(value, greatest=greatest, moved=self._move)
            if has_ordinals(value)
            else Words(value, greatest=greatest)
        )
        operation = self._words.operation(message)
        self._plain = operation in (words_of.ADD, words_of.MULTIPLY)
        self._one_to_one = operation == words_of.COPY or (
            operation == words_of.ADD and self._words.form < words_of.DOUBLE
        )
        self._closes = missing == "drop"
        self._slots = Slots(keys)
        self._graph = Adjacency(weighted=message.is_weighted)
        self._starts = StartValues(closes=self._closes)
        self._room = 0
        self._known = 0  # slots that the arrays have been cleared for
        self._values = np.empty((at.WORD_FIELDS, 0), np.int64)
        self._cells = np.empty((at.CELL_FIELDS, 0), np.int32)
        self._flags = np.empty((at.FLAG_FIELDS, 0), np.int8)
        self._scratch = np.empty((kernels.SCRATCH_FIELDS, 0), np.int32)
        self._queues = np.full((2, kernels.QUEUES), -1, np.int32)
        self._report = np.zeros(kernels.REPORT_FIELDS, np.int64)
        rounds = _ROUNDS if order == "superstep" else 0
        self._history = np.zeros((kernels.HISTORY_FIELDS, rounds), np.int64)
        how = self._how = np.zeros(kernels.HOW_FIELDS, np.int64)
        how[: kernels.CONSTANT] = (
            operation, self._words.form, self._words.flip, self._words.low, self._words.high,
        )  # fmt: skip
        how[kernels.SUPERSTEP] = order == "superstep"
        how[kernels.PATIENCE] = patience
        self._always_improving = False
        if message.is_weighted:
            self._weight_kind = self._words.weight_kind if self._plain else value
        else:
            self._take_constant(operation)
        self._rule = self._rule_before = kernels.BY_VALUE
        self._empty = self._empty_before = True
        self._failed = False
        self._open = False  # an epoch has begun, and is not settled
        self._edge_journal: list[tuple[Numbers, Numbers, Ints, Ints]] = []
        self._start_journal: list[tuple[Numbers, Ints, Ranks, Ints, int]] = []
        self._changes: list[EdgeChange] = []
        self._started = 0
        self._touched = 0

    def __len__(self) -> int:
        """How many keys have a value, or null."""
        ranks = self._flags[at.RANK, : self._known]
        return int(((ranks == words_of.VALUE) | (ranks == words_of.NULL)).sum())

    def __repr__(self) -> str:
        return f"<Spreading: {len(self)} keys, {len(self._graph)} edges>"

    def _take_constant(self, operation: int) -> None:
        """Keep the weight that all edges have."""
        if operation == words_of.COPY:
            return
        constant = pa.array(
            [self._message.constant], self._words.weight_kind if self._plain else self._words.kind
        )
        words, ranks = self._words.read(constant, plain=self._plain)
        form, flip = self._words.form, self._words.flip
        word = int(words[0])
        if ranks[0] != words_of.VALUE or words_of.is_forbidden(operation, form, word):
            raise PlanError(
                "plan.iteration",
                f"cannot {self._message.operation} {show(self._message.constant)} to values that spread",
                hint="null is no weight, and a factor below 0 would turn the order of values round",
                weight=self._message.constant,
            )
        self._how[kernels.CONSTANT] = word
        self._always_improving = bool(words_of.is_improving(operation, form, flip, word))

    # -- changes of an epoch

    def change_edges(
        self,
        sources: Sequence[pa.Array],
        targets: Sequence[pa.Array],
        weights: pa.Array | None,
        diffs: Ints,
    ) -> None:
        """Add diffs to the counts of edges: the columns of their sources, of their targets, and their weights."""
        self._begin()
        rows = len(diffs)
        if rows and sources:
            nodes = column_table(sources)
            if any(column.null_count for column in sources):
                null = np.empty(rows, np.bool_)
                slot_kernels.has_nulls(nodes, rows, null)
                kept = (~null).nonzero()[0]
                sources, targets = take_columns(sources, kept), take_columns(targets, kept)
                weights = None if weights is None else take_columns([weights], kept)[0]
                diffs, rows = diffs[kept], len(kept)
        if not rows:
            return
        self._failed = True
        source_slots = self._slots.find(sources, rows)
        target_slots = self._slots.find(targets, rows)
        words = NO_WEIGHTS
        if self._message.is_weighted:
            assert weights is not None
            if not weights.type.equals(self._weight_kind):
                weights = weights.cast(self._weight_kind)
            words, ranks = self._words.read(weights, plain=self._plain)
            if weights.null_count:
                null = ranks != words_of.VALUE
                np.invert(target_slots, out=target_slots, where=null)
                words[null] = 0
        self._reserve()
        staged = (source_slots, target_slots, words, _own(diffs))
        self._edge_journal.append(staged)
        change = self._graph.change(self._known, *staged, 1, self._how)
        self._changes.append(change)
        if change.forbidden is not None:
            source, target, word = change.forbidden
            raise OperatorFailed(
                "operator.not_monotone",
                f"cannot spread values along the edge from {self._shown(source)} to {self._shown(target)}: its weight "
                f"is {show(self._shown_weight(word))}",
                hint="a factor below 0 turns the order of values round; factors are 0 or more",
                key=self._shown(source),
                target=self._shown(target),
                weight=self._shown_weight(word),
            )
        self._failed = False

    def change_solution(self, keys: Sequence[pa.Array], values: pa.Array, diffs: Ints) -> None:
        """Add diffs to the counts of rows of the solution."""
        self._change_starts(keys, values, diffs, SOLUTION)

    def change_workset(self, keys: Sequence[pa.Array], values: pa.Array, diffs: Ints) -> None:
        """Add diffs to the counts of rows of the workset."""
        self._change_starts(keys, values, diffs, WORKSET)

    def _change_starts(
        self, keys: Sequence[pa.Array], values: pa.Array, diffs: Ints, side: int
    ) -> None:
        self._begin()
        if not len(diffs):
            return
        self._failed = True
        slots = self._slots.find(keys, len(diffs))
        words, ranks = self._words.read(values)
        self._reserve()
        staged = (slots, words, ranks, _own(diffs), side)
        self._start_journal.append(staged)
        self._started = self._starts.change(staged, 1, self._arrays(), self._started, self._how)
        self._failed = False

    def _move(self, moves: Moves) -> None:
        """Take new words for values without a fixed width (`ordinals`), whose order is that of the old ones."""
        values = self._values[:, : self._known]
        for field in range(len(values)):
            moves(values[field])
        self._starts.move(moves)
        for _, words, *_ in self._start_journal:
            moves(words)

    def _arrays(self) -> tuple[Any, Any, Any, Any]:
        return self._values, self._cells, self._flags, self._scratch[kernels.STARTED_SLOTS]

    def _begin(self) -> None:
        """Begin an epoch: the last one can no longer be undone."""
        if self._failed:
            raise RuntimeError("the last epoch failed, and has to be undone")
        if self._open:
            return
        self._open = True
        self._forget()
        self._rule_before, self._empty_before = self._rule, self._empty

    def _forget(self) -> None:
        if self._touched or self._started:
            kernels.forget(
                self._flags,
                self._scratch[kernels.TOUCHED_SLOTS, : self._touched],
                self._scratch[kernels.STARTED_SLOTS, : self._started],
            )
        self._touched = self._started = 0
        self._edge_journal.clear()
        self._start_journal.clear()
        self._changes.clear()

    def _reserve(self) -> None:
        """Have room in all arrays for the slots that there are."""
        count, known = len(self._slots), self._known
        if count == known:
            return
        if count > self._room:
            self._room = max(count + count // 8, 2 * self._room, _LEAST)
            self._values = grown(self._values, self._room, known)
            self._cells = grown(self._cells, self._room, known)
            self._flags = grown(self._flags, self._room, known)
            self._scratch = grown(self._scratch, self._room, known)
        word, rank = (
            (words_of.BEST, words_of.CLOSED) if self._closes else (words_of.WORST, words_of.ABSENT)
        )
        self._values[:, known:count] = word
        self._cells[:, known:count] = 0
        self._cells[at.BUCKET, known:count] = -1
        self._cells[at.FIRST_ROW, known:count] = -1
        self._flags[:, known:count] = 0
        self._flags[at.RANK, known:count] = rank
        self._flags[at.START_RANK, known:count] = rank
        self._known = count

    # -- the fixed point

    def converge(self) -> Settled:
        """Work out the values for all changes so far, and give the net change of this epoch."""
        self._begin()
        self._failed = True
        self._reserve()
        self._graph.reserve(self._known)
        how, report = self._how, self._report
        report[:] = 0
        how[kernels.SLOTS] = self._known
        how[kernels.MOST_HOPS] = self._known if self._one_to_one else _NO_LIMIT
        restart = self._choose_rule()
        how[kernels.RULE], how[kernels.RESTART] = self._rule, restart
        self._empty = False
        graph, scratch, clock = self._graph, self._scratch, RoundClock(self._history, report)
        status = kernels.PAUSED
        while status == kernels.PAUSED:
            status = kernels.settle(
                self._values, self._cells, self._flags, graph.lists, graph.ends, graph.weights, graph.edges,
                graph.edge_weights, scratch[kernels.STARTED_SLOTS, : self._started],
                _joined([change.gone for change in self._changes], NO_ENDS),
                _joined([change.fresh for change in self._changes], NO_EDGES),
                self._queues, scratch, how, report, self._history,
            )  # fmt: skip
            clock.look()
        self._touched = int(report[kernels.TOUCHES])
        if status != kernels.DONE:
            raise self._failure(status)
        slots = self._scratch[kernels.TOUCHED_SLOTS, : self._touched]
        settled = self._settled_of(slots, clock.rounds())
        self._failed = self._open = False
        return settled

    def _choose_rule(self) -> bool:
        """Choose the rule of trimming for the weights that there are; whether to begin anew.

        Beginning anew is needed where depths are not what the new rule takes them for. Supports by depth are supports
        by value too, where no message is better than its value; but not the other way round.
        """
        improving = self._graph.improving > 0 or self._always_improving or self._starts.turning > 0
        before = self._rule
        if not improving:
            self._rule = kernels.BY_VALUE
        else:
            self._rule = kernels.BY_DEPTH if self._one_to_one else kernels.CLOSURE
        if self._one_to_one and before == kernels.BY_DEPTH:
            self._rule = kernels.BY_DEPTH
        if self._empty:
            return True
        return before != self._rule and self._rule != kernels.CLOSURE

    def _settled_of(self, slots_touched: Numbers, history: Sequence[RoundFigures]) -> Settled:
        """The net change of some slots that were touched in this epoch, of which `history` is the work."""
        report = self._report
        touched = len(slots_touched)
        numbers = np.empty((4, 2 * touched), np.int64)
        words, ranks = np.empty(2 * touched, np.int64), np.empty(2 * touched, np.int8)
        changed, count = 0, 0
        if touched:
            changed = kernels.list_changes(
                self._values, self._cells, self._flags, slots_touched, numbers, words, ranks
            )
            count = int(numbers[3, 0])
        slots = numbers[0, :count].astype(np.int32)
        return Settled(
            self._slots.columns(slots),
            self._words.write(words[:count], ranks[:count]),
            numbers[1, :count],
            numbers[2, :count],
            changed,
            int(report[kernels.MESSAGES]),
            touched,
            int(report[kernels.TRIMMED]),
            int(report[kernels.ROUNDS]),
            int(report[kernels.DEEPEST]),
            tuple(history),
        )

    # -- putting back, and rebuilding

    def undo(self) -> None:
        """Put everything back to the epoch before the last one, which failed, or is to be forgotten.

        May be called once after a failure, or after `converge` until the next epoch begins.
        """
        kernels.roll_back(
            self._values, self._cells, self._flags,
            self._scratch[kernels.TOUCHED_SLOTS, : self._touched], self._queues, self._known,
        )  # fmt: skip
        while self._edge_journal:
            self._graph.change(self._known, *self._edge_journal.pop(), -1, self._how)
        while self._start_journal:
            self._started = self._starts.change(
                self._start_journal.pop(), -1, self._arrays(), self._started, self._how
            )
        self._rule, self._empty = self._rule_before, self._empty_before
        self._forget()
        self._failed = self._open = False

    def restore(self, keys: Sequence[pa.Array], values: pa.Array, depths: Ints) -> None:
        """Take values and depths of a saved state, in place of `converge`, after all rows and edges were given."""
        self._begin()
        slots = self._slots.find(keys, len(depths))
        words, ranks = self._words.read(values)
        self._reserve()
        self._graph.reserve(self._known)
        self._choose_rule()
        self._empty = False
        kernels.put_values(
            slots, words, ranks, _own(depths), self._values, self._cells, self._flags
        )  # fmt: skip
        self._forget()
        self._rule_before, self._empty_before = self._rule, False
        self._open = False

    # -- errors

    def _failure(self, status: int) -> OperatorFailed:
        report = self._report
        slot, other, weight = (
            int(report[each]) for each in (kernels.SLOT, kernels.OTHER, kernels.WEIGHT)
        )
        fields = {"key": self._shown(slot), "value": self._shown_value(slot)}
        if status == kernels.DIVERGES:
            fields["source"] = self._shown(other)
            return OperatorFailed(
                "operator.diverges",
                f"the value of {show(fields['key'])} gets better without end: it is {show(fields['value'])} now, "
                f"by a message of {show(fields['source'])}, after more changes in one epoch than the loop has "
                "patience for",
                hint="look for a cycle of edges along which values get better; or allow more changes with patience",
                **fields,
            )
        fields |= {"target": self._shown(other), "weight": self._shown_weight(weight)}
        return OperatorFailed(
            "operator.overflow",
            f"cannot {self._message.operation} {show(fields['weight'])} to the value {show(fields['value'])} of "
            f"{show(fields['key'])}, for a message to {show(fields['target'])}: the result is no {self._words.kind}",
            hint="give the values a wider type, or leave out the rows that they start from",
            **fields,
        )

    def _shown(self, slot: int) -> Any:
        key = tuple(column[0].as_py() for column in self._slots.columns(np.array([slot], np.int32)))
        return key[0] if len(key) == 1 else key

    def _shown_value(self, slot: int) -> Any:
        if self._flags[at.RANK, slot] != words_of.VALUE:
            return None
        return self._words.shown(int(self._values[at.CURRENT, slot]))

    def _shown_weight(self, word: int) -> Any:
        if not self._message.is_weighted:
            return self._message.constant
        if not self._plain:
            return self._words.shown(word)
        if self._words.form >= words_of.DOUBLE:
            return float(np.int64(word).view(np.float64))
        return word % (1 << 64) if self._words.form == words_of.UNSIGNED else word


def _own(integers: Ints) -> Ints:
    """Integers as kernels take them: arrays of Arrow may be read-only, which is another type for Numba."""
    own = np.ascontiguousarray(integers, np.int64)
    return own if own.flags.writeable else own.copy()


def _joined(parts: list[Any], nothing: Any) -> Any:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else nothing
