"""Rules of a shared state: what an update makes of the entries of its key, and what compaction leaves of old entries.

`store` calls the rules; users choose rules, or write them, as `rr.rules` (which has the rules of fetches too:
`fetch_rules`). An *entry* of a state is a row `key, time, value`, whose time is a time of the data, the value of a
column. How far a state has come is said by two such times (`marks`): no update at a time before U counts any more, and
no fetch at a time before F is answered any more; F is never after U.

An update rule gets the *requests* of an epoch (the rows of a stream that updates the state) and the entries of their
keys. A compaction rule gets all entries of some keys, and a *horizon*, which is F as it was at the last boundary
between epochs. Both return changes: the entries to add and those to take out. Laws:

- **Nothing before U.** No update rule changes an entry at a time before U. A ready-made rule changes entries only at
  times that its requests have, and `store` drops requests before U. A user's function may change the entries of its
  keys at any time from U on; its changes at earlier times are refused (``state.updated_final``).
- **Nothing from the horizon on.** No compaction rule changes an entry at or after the horizon. A user's function that
  does is refused (``state.compacted_too_much``).
- **Unseen.** A fetch at or after the horizon gets the answer that it would get without compaction, on two conditions.
  The compaction rule `serves` the rule of the fetch (of a user's function only the user can know this). And where the
  compaction rule `limits` that rule, the fetch does not reach back before the horizon by more than the `margin`, a span
  in which old entries are kept as they are.
- **No order.** The changes are a function of the rows, not of the order in which the rows came: the rows of an epoch
  have no order.

Cost: ready-made rules are kernels and NumPy; those of a user are functions of Polars frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pyarrow as pa

from riverrun.errors import SchemaError, TimeViolation
from riverrun.interrupts import exposed
from riverrun.operators.expire import ticks_of
from riverrun.plan.identity import code_of
from riverrun.plan.operator import failed_function
from riverrun.progress import Antichain, Timestamp
from riverrun.rows.convert import as_table
from riverrun.rows.records import as_record_batch, canonical_columns
from riverrun.state import Schema
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.columns import Ints, as_array, as_column, column_table
from riverrun.state.kernels import packing
from riverrun.state.keys import Keys
from riverrun.state.sums import limbs, total
from riverrun.state.view import Selection, View

_EVER = Antichain([(0,)])
_SOON = Antichain([(1,)])
_NOW = (0,)


@dataclass(frozen=True)
class Entries:
    """The state that a rule works on: its columns in physical order, its rows, and its progress."""

    schema: Schema
    """Key, then time, then value; ordered by time."""
    view: View
    as_of: Timestamp
    time: Timestamp
    """The engine's time of the changes that a rule makes."""
    final: int | None = None
    """U: values before this time are changed by compaction only."""
    latest: int | None = None
    """A time after which there is no value; None where no such time is known."""

    @property
    def at(self) -> int:
        """The position of the time column."""
        return len(self.schema.key)

    @property
    def columns(self) -> pa.Schema:
        """All columns in physical order, as they were declared."""
        return pa.schema(self.schema.columns)

    def to_changes(self, columns: Sequence[pa.Array], diffs: Ints | int) -> Changes:
        """Rows as changes to the state."""
        rows = len(columns[0])
        if isinstance(diffs, int):
            return Changes(tuple(columns), rows, (self.time,), None, diffs, None)
        return Changes(tuple(columns), rows, (self.time,), None, 0, diffs)

    def removed(self, rows: Selection, chosen: Ints | None = None) -> Changes:
        """The changes that take rows out of the state, all of `rows` or those at the positions `chosen`."""
        columns = rows.canonicals(range(len(self.schema.columns)))
        gone = self.to_changes(columns, -rows.counts)
        return gone if chosen is None else gone.take(chosen)


class UpdateRule:
    """How requests, rows of an epoch with diffs, change the entries of their keys."""

    name: ClassVar[str]
    asks_latest: ClassVar[bool] = False
    """Whether the rule is quicker when it knows a time after which there is no value (`Entries.latest`)."""

    def identity(self) -> str:
        return self.name

    def apply(self, requests: Changes, entries: Entries) -> Changes | None:
        raise NotImplementedError


@dataclass(frozen=True)
class Append(UpdateRule):
    """Each request adds a value at its time; a deletion takes that value back, if it is there."""

    name: ClassVar[str] = "append"

    def apply(self, requests: Changes, entries: Entries) -> Changes | None:
        if (requests.diff if requests.diffs is None else requests.diffs.min()) > 0:
            return requests
        sums = requests.consolidate()
        diffs = sums.diff_array()
        taken = np.flatnonzero(diffs < 0)
        if len(taken):
            diffs = diffs.copy()
            diffs[taken] = -np.minimum(-diffs[taken], _how_often(sums.take(taken), entries))
        return entries.to_changes(sums.columns, diffs).filter(diffs != 0)


def _how_often(rows: Changes, entries: Entries) -> Ints:
    """How often each of these rows is in the state; no two of them are equal."""
    fields, at, positions = entries.schema.columns, entries.at, tuple(range(len(rows.columns)))
    under = Schema.of(pa.schema(fields[: at + 1]), pa.schema(fields[at + 1 :]))
    asked = Batch.of(under, rows.map_times(lambda _: _NOW), positions, _EVER, _SOON)
    keys = Keys.of_batch(asked)  # one for each key and time
    who, when = Keys(keys.columns[:at], len(keys)), keys.columns[at]
    at_times = entries.view.between(who, entries.as_of, when, when)
    counts = np.zeros(rows.rows, np.int64)
    if len(at_times):
        whole = Schema.of(pa.schema(fields), pa.schema([]))
        there = entries.removed(at_times).negate().map_times(lambda _: _NOW)
        batch = Batch.of(whole, there, positions, _EVER, _SOON)
        view = View("entries", whole, (batch,), batch.since, batch.upper)
        matched = view.lookup(Keys(rows.columns, rows.rows), _NOW)
        counts[_of(matched)] = np.maximum(matched.counts, 0)
    return counts


@dataclass(frozen=True)
class Add(Append):
    """Increments. A fetch adds them up (`Total`), so their order does not show."""

    name: ClassVar[str] = "add"


@dataclass(frozen=True)
class Replace(UpdateRule):
    """The value at a time is the last one that came; of several in one epoch the greatest."""

    name: ClassVar[str] = "replace"
    asks_latest: ClassVar[bool] = True

    def apply(self, requests: Changes, entries: Entries) -> Changes | None:
        if self._nothing_replaced(requests, entries):
            return entries.to_changes(requests.columns, 1)
        schema, at = entries.schema, entries.at
        fields = schema.columns
        under = _by_key_and_time(schema)
        positions = tuple(range(len(fields)))
        batch = Batch.of(under, requests.map_times(lambda _: _NOW), positions, _EVER, _SOON)
        if not len(batch):
            return None
        view = View("requests", under, (batch,), batch.since, batch.upper)
        keys = Keys.of_batch(batch)
        put = view.last(keys, _NOW, 1)
        pieces = []
        if len(put):
            pieces.append(entries.to_changes(put.canonicals(positions), 1))
        who = Keys(keys.columns[:at], len(keys))
        when = keys.columns[at]
        old = entries.view.between(who, entries.as_of, when, when)
        if len(old):
            replaced = np.zeros(len(keys), np.bool_)
            replaced[_of(put)] = True
            gone = replaced[_of(old)]
            if (
                not gone.all()
            ):  # where no value is put, a deletion takes out the value that it names
                gone |= _are_in(old, batch, entries, positions)
            if gone.any():
                pieces.append(entries.removed(old, np.flatnonzero(gone)))
        return Changes.concat(pieces) if pieces else None

    def _nothing_replaced(self, requests: Changes, entries: Entries) -> bool:
        """Whether no request replaces a value: all are insertions, later than every value in the state, and no two
        of them have one key and time."""
        if requests.diffs is not None or requests.diff < 0 or entries.latest is None:
            return False
        at = entries.at
        if ticks_of(requests.columns[at]).min() <= entries.latest:
            return False
        table = column_table(requests.columns[: at + 1])
        once = packing.distinct_rows(table, requests.rows, entries.schema.hash_word)
        return len(once) == requests.rows


@lru_cache
def _by_key_and_time(schema: Schema) -> Schema:
    """The schema under which a value is replaced: key and time together are its key."""
    cut = len(schema.key) + 1
    return Schema.of(pa.schema(schema.columns[:cut]), pa.schema(schema.columns[cut:]))


def _of(selection: Selection) -> Ints:
    assert selection.queries is not None
    return selection.queries


def _are_in(
    old: Selection, batch: Batch, entries: Entries, positions: tuple[int, ...]
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of the old rows some request deletes."""
    whole = Schema.of(pa.schema(entries.schema.columns), pa.schema([]))
    view = View("requests", batch.schema, (batch,), batch.since, batch.upper)
    listed = list(view.scan(_NOW))
    rows = Changes.concat(
        [
            Changes(tuple(p.canonicals(positions)), len(p), (_NOW,), None, 0, p.counts)
            for p in listed
        ]
    )
    asked = Batch.of(whole, rows, positions, _EVER, _SOON)
    deletes = View("requests", whole, (asked,), asked.since, asked.upper)
    named = old.canonicals(positions)
    matched = deletes.lookup(Keys(named, len(old)), _NOW)
    gone = np.zeros(len(old), np.bool_)
    gone[_of(matched)[matched.counts < 0]] = True
    return gone


@dataclass(frozen=True)
class UpdateFunction(UpdateRule):
    """A user's function: of two frames, the entries of the keys with requests and the requests, it gives the new
    entries of these keys."""

    function: Callable[[pl.DataFrame, pl.DataFrame], Any]
    name: ClassVar[str] = "function"

    def identity(self) -> str:
        return f"function {code_of(self.function)}"

    def apply(self, requests: Changes, entries: Entries) -> Changes | None:
        schema, width = entries.schema, range(len(entries.schema.columns))
        batch = Batch.of(schema, requests.map_times(lambda _: _NOW), tuple(width), _EVER, _SOON)
        if not len(batch):
            return None
        view = View("requests", schema, (batch,), batch.since, batch.upper)
        keys = Keys.of_batch(batch)
        asked = list(view.scan(_NOW))
        if any((piece.counts < 0).any() for piece in asked):
            raise SchemaError(
                "state.rule_deletes",
                "cannot take updates back: what a function made of them is not known any more",
                hint="insert what undoes them; rr.rules.replace, rr.rules.append and rr.rules.add take deletions",
            )
        frame = pl.concat([_frame(entries.columns, piece) for piece in asked])
        old = entries.view.lookup(keys, entries.as_of)
        new_entries = called(self.function, "the update rule", _frame(entries.columns, old), frame)
        fresh = _converted(new_entries, entries, "an update rule", view)
        changes = _difference(entries, fresh, old)
        if changes is not None and entries.final is not None:
            ticks = ticks_of(changes.columns[entries.at])
            if (ticks < entries.final).any():
                kind = entries.schema.columns[entries.at].type
                raise TimeViolation(
                    "state.updated_final",
                    f"the update rule changed values at {as_time(int(ticks.min()), kind)}, which are final: updates "
                    f"have come to {as_time(entries.final, kind)}",
                    hint="give back the rows before that as they are; what is not needed any more goes by compact=",
                )
        return changes


class CompactRule:
    """What is left of entries before a horizon: values before it, as far as later fetches need them."""

    name: ClassVar[str]
    margin: int = 0
    """How far before the horizon values are kept as they are."""
    sees_all: ClassVar[bool] = False
    """Whether the rule looks at values from the horizon on as well."""

    def identity(self) -> str:
        return self.name

    def serves(self, rule: str, bounded: bool) -> bool:
        """Whether fetches by a rule get the answers that they would get without compaction.

        `bounded` says whether the fetches have a lower bound.
        """
        return bounded

    def limits(self, rule: str) -> bool:
        """Whether fetches by a rule, with a lower bound, must not reach back before the horizon less the margin."""
        return True

    def apply(self, candidates: Selection, horizon: int, entries: Entries) -> Changes | None:
        """The changes that compact these rows: all rows of some keys, in order."""
        raise NotImplementedError


@dataclass(frozen=True)
class KeepLatest(CompactRule):
    """Of each key, the latest value before the horizon, and all from the horizon on."""

    name: ClassVar[str] = "keep latest"

    def serves(self, rule: str, bounded: bool) -> bool:
        return bounded or rule == "latest"

    def limits(self, rule: str) -> bool:
        return rule != "latest"

    def apply(self, candidates: Selection, horizon: int, entries: Entries) -> Changes | None:
        queries = _of(candidates)
        past = ticks_of(candidates.canonical(entries.at)) < horizon
        # If the next row has the same key and is before the horizon too, this row is not the latest.
        gone = np.flatnonzero(past[:-1] & past[1:] & (queries[:-1] == queries[1:]))
        return entries.removed(candidates, gone) if len(gone) else None


@dataclass(frozen=True)
class DropBefore(CompactRule):
    """Drops all values before the horizon less a span."""

    margin: int = 0
    name: ClassVar[str] = "drop before"

    def identity(self) -> str:
        return f"{self.name} {self.margin}"

    def apply(self, candidates: Selection, horizon: int, entries: Entries) -> Changes | None:
        gone = np.flatnonzero(ticks_of(candidates.canonical(entries.at)) < horizon - self.margin)
        return entries.removed(candidates, gone) if len(gone) else None


@dataclass(frozen=True)
class Fold(CompactRule):
    """Of each key, adds up the increments before the horizon, at the latest of their times.

    An exact sum of floats may need several values: these add up to exactly the sum of the values that they replace.
    """

    name: ClassVar[str] = "fold"

    def serves(self, rule: str, bounded: bool) -> bool:
        return bounded or rule == "total"

    def apply(self, candidates: Selection, horizon: int, entries: Entries) -> Changes | None:
        queries = _of(candidates)
        past = ticks_of(candidates.canonical(entries.at)) < horizon
        sizes = np.bincount(queries[past], minlength=int(queries[-1]) + 1 if len(queries) else 0)
        chosen = np.flatnonzero(past & (sizes[queries] > 1))
        return self._folded(candidates, chosen, entries) if len(chosen) else None

    def _folded(self, candidates: Selection, chosen: Ints, entries: Entries) -> Changes | None:
        queries, gone = _of(candidates), entries.removed(candidates, chosen)
        owners, counts = queries[chosen], candidates.counts[chosen]
        last = np.flatnonzero(np.append(owners[1:] != owners[:-1], True))
        ranks = np.cumsum(np.append(0, owners[1:] != owners[:-1]))
        values = range(entries.at + 1, len(entries.schema.columns))
        parts = [added_up(gone.columns[at], counts, ranks, len(last)) for at in values]
        whole = np.logical_and.reduce([_is_storable(part[0]) for part in parts])
        # Increments without a storable sum stay as they are: with later ones they may add up to a number.
        if not whole.all():
            summable = chosen[whole[ranks]]
            return self._folded(candidates, summable, entries) if len(summable) else None
        pieces = [gone]
        for level in range(max(len(part) for part in parts)):
            columns = list(gone.take(last).columns[: entries.at + 1])
            blank = True
            for at, part in enumerate(parts, entries.at + 1):
                kind = gone.columns[at].type
                if level < len(part):
                    sums = part[level]
                    if sums.dtype == object:  # all of them fit 64 bits, as `whole` says
                        sums = sums.astype(np.int64)
                    columns.append(as_column(sums).cast(kind))
                    blank = False
                else:
                    columns.append(as_column(np.zeros(len(last))).cast(kind))
            if not blank:
                pieces.append(entries.to_changes(columns, 1))
        added = Changes.concat(pieces).consolidate()
        return added if added.rows else None


def _is_storable(sums: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which sums a state can hold: finite floats, and integers of 64 bits."""
    if sums.dtype != object:
        finite: np.ndarray[Any, np.dtype[np.bool_]] = np.isfinite(sums)
        return finite
    return np.array([-(1 << 63) <= each < 1 << 63 for each in sums.tolist()], np.bool_)


def added_up(column: pa.Array, counts: Ints, ranks: Ints, keys: int) -> list[np.ndarray[Any, Any]]:
    """The exact sums of a column by rank: for floats several arrays, if it takes several to be exact.

    Where a sum of integers may not fit 64 bits, the sums are Python's integers.
    """
    if pa.types.is_integer(column.type):
        values = as_array(column.fill_null(0).cast(pa.int64()))
        most = np.abs(values.astype(np.float64)) * np.abs(counts.astype(np.float64))
        if most.sum() < 2.0**62:
            whole = np.zeros(keys, np.int64)
            np.add.at(whole, ranks, values * counts)
            return [whole]
        sums_by_rank = [0] * keys
        for rank, value, count in zip(
            ranks.tolist(), values.tolist(), counts.tolist(), strict=True
        ):
            sums_by_rank[rank] += value * count
        return [np.array(sums_by_rank, object)]
    values = as_array(column.cast(pa.float64()).fill_null(0.0))
    levels: list[np.ndarray[Any, Any]] = []
    owners, left, times = ranks, values, counts
    while True:
        rows, slots, amounts = limbs(left, None, times)
        order = np.argsort(owners[rows], kind="stable")
        sums = total(owners[rows][order], slots[order], amounts[order], keys)
        levels.append(sums)
        if not np.isfinite(sums).all() or not sums.any():
            return levels[:-1] if len(levels) > 1 and not sums.any() else levels
        # The next level has the error of the sums so far: all values, less the sums.
        owners = np.concatenate([owners, np.arange(keys)])
        left = np.concatenate([left, sums])
        times = np.concatenate([times, np.full(keys, -1)])


@dataclass(frozen=True)
class CompactFunction(CompactRule):
    """A user's function: of a frame of entries and the horizon, it gives the entries that are left."""

    function: Callable[[pl.DataFrame, Any], Any]
    name: ClassVar[str] = "function"
    sees_all: ClassVar[bool] = True

    def identity(self) -> str:
        return f"function {code_of(self.function)}"

    def serves(self, rule: str, bounded: bool) -> bool:
        return True  # only the user can know

    def limits(self, rule: str) -> bool:
        return False

    def apply(self, candidates: Selection, horizon: int, entries: Entries) -> Changes | None:
        frame = _frame(entries.columns, candidates)
        field = entries.schema.columns[entries.at]
        bound = as_time(horizon, field.type)
        new_entries = called(self.function, "the compaction rule", frame, bound)
        rows = entries.removed(candidates).negate().map_times(lambda _: _NOW)
        width = tuple(range(len(entries.schema.columns)))
        batch = Batch.of(entries.schema, rows, width, _EVER, _SOON)
        asked = View("entries", entries.schema, (batch,), batch.since, batch.upper)
        fresh = _converted(new_entries, entries, "a compaction rule", asked)
        changes = _difference(entries, fresh, candidates)
        if changes is not None:
            ticks = ticks_of(changes.columns[entries.at])
            if (ticks >= horizon).any():
                after = as_time(int(ticks[ticks >= horizon][0]), field.type)
                raise TimeViolation(
                    "state.compacted_too_much",
                    f"the compaction rule changed values at {after}, and may change those before {bound} only",
                    hint="return the rows from the horizon on as they are",
                )
        return changes


def as_time(ticks: int, kind: pa.DataType) -> Any:
    """A time as people write it; as a number where Python has no date for it."""
    if pa.types.is_integer(kind):
        return ticks
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    try:
        return pa.array([ticks], width).cast(kind)[0].as_py()
    except (pa.ArrowException, OverflowError, ValueError):
        return ticks


def _frame(columns: pa.Schema, rows: Selection) -> pl.DataFrame:
    """Rows of a state as a frame, each row as often as it is there."""
    batch = as_record_batch(columns, rows.canonicals(range(len(columns))), len(rows))
    frame = pl.DataFrame(pl.from_arrow(batch))
    if len(rows) and (rows.counts != 1).any():
        repeated = np.repeat(np.arange(len(rows)), np.maximum(rows.counts, 0))
        frame = frame[repeated]
    return frame


def called(function: Callable[..., Any], what: str, *arguments: Any) -> Any:
    """Call a user's function; its failure names the function."""
    try:
        return exposed(function, *arguments)
    except Exception as error:
        name = getattr(function, "__qualname__", None) or type(function).__name__
        raise failed_function(error, f"{what} {name}") from error


def _converted(new_entries: Any, entries: Entries, what: str, asked: View) -> Changes:
    """The rows that a user's rule gave; refused if one has no time, or a key that the rule was not asked about."""
    columns = entries.columns
    batch = as_table(new_entries, columns, f"take what {what} gave")
    if not batch.num_rows:
        blank = tuple(pa.nulls(0, kind) for kind in entries.schema.canonical)
        return Changes(blank, 0, (entries.time,), None, 1, None)
    fresh = entries.to_changes(canonical_columns(batch, columns), 1)
    at = entries.at
    if fresh.columns[at].null_count:
        raise SchemaError(
            "state.rule_time",
            f"{what} gave {fresh.columns[at].null_count} rows without a time: {columns.names[at]!r} is null there",
            hint="a value of a state is at a time",
        )
    matched = asked.lookup(Keys(fresh.columns[:at], fresh.rows), _NOW)
    known = np.zeros(fresh.rows, np.bool_)
    known[_of(matched)] = True
    if not known.all():
        row = int(np.flatnonzero(~known)[0])
        key = {columns.names[k]: batch.column(k)[row].as_py() for k in range(at)}
        raise SchemaError(
            "state.rule_key",
            f"{what} gave rows of the key {key}, which it was not asked about",
            hint="give rows of the keys in the frames only; another stream may update the others",
        )
    return fresh


def _difference(entries: Entries, fresh: Changes, old: Selection) -> Changes | None:
    """The changes that lead from the old rows to the fresh ones."""
    changes = Changes.concat([fresh, entries.removed(old)] if len(old) else [fresh])
    if not changes.rows:
        return None
    added = changes.consolidate()
    return added if added.rows else None
