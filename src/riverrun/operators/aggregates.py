"""Aggregates: the parts of a reduce, each of which computes some columns of a group's result.

A reduce (`operators.reduce`) asks each of its parts for the results of some keys as of a time; a part reads one
arrangement for them. There are three kinds, by cost:

- **Linear** (`Sums`): counts, sums and means are stored as *amounts*: rows of (key, slot) whose diff is the amount
  itself. The spine adds amounts up, so a change costs the same however large its group. `Present` (distinct) is the
  case in which only the count matters.
- **Ordered** (`FirstRows`): min, max, first, last and the first k rows are the first live rows of a group in an
  arrangement with that order. They cost the rows that are given.
- **Whole** (`operators.groups`): every other aggregate reads all rows of the groups that were touched.

Laws:

- **Exact sums.** Numbers are split in digits of 32 bits (floats by `state.sums`), and adding digits is exact. So a sum
  does not depend on the order of arrival, and deleting an inserted row gives the old value back.
- **Range of sums.** A sum that its type cannot hold (64 bits for integers and durations, 38 digits for decimals) is an
  error, never another number. A mean is computed from the exact sum, however large.
- **Nulls.** Sums, means, min and max leave nulls out. Of no values the sum is 0; mean, min and max are null. NaN is the
  greatest float, and all NaN are one value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from riverrun.errors import OperatorFailed
from riverrun.plan.operator import Linear, PlacedInput, Placement, moved_keys
from riverrun.progress import Timestamp
from riverrun.state.changes import Changes
from riverrun.state.columns import as_array, as_column, int64_column, take_columns
from riverrun.state.keys import Keys
from riverrun.state.sums import limbs, total
from riverrun.state.view import Selection, View

Ints = np.ndarray[Any, np.dtype[np.int64]]
Evaluated = tuple[Ints, tuple[pa.Array, ...], Ints | None]
"""For each row of a result: the number of its key, the columns, and how often the row is there. None in place of the
last: each row is there once, and no key has two rows."""

SLOT = "slot"
_DIGIT = np.int64(32)
_MASK = (1 << 32) - 1
_MANY = 1 << 31  # a digit times a diff from here on may leave 64 bits
_PRECISION = 38  # digits of a decimal
_BASE = 256  # slots of one column
_ZERO = 8  # where a column's own slots start to count: those of NaN and infinities are below 0


def queries_of(selection: Selection) -> Ints:
    """For each row that was looked up, the number of the key that it belongs to."""
    assert selection.queries is not None
    return selection.queries


class GroupPart:
    """Computes some columns of a group's result from input number `input` of a reduce."""

    input: int
    schema: pa.Schema
    """The columns that the part computes."""

    keeps: tuple[str, ...] = ()
    """The columns that a user's function promises to keep besides the key (`operators.kept`)."""

    @property
    def is_count(self) -> bool:
        """Whether all columns are the number of rows in the group, or there are no columns."""
        return False

    @property
    def code(self) -> str:
        """The text that stands for the user's code of this part in the identity of the reduce; empty without code."""
        return ""

    def evaluate(self, view: View, keys: Keys, time: Timestamp) -> Evaluated:
        raise NotImplementedError


def evaluate_parts(
    parts: Sequence[GroupPart], views: Sequence[View], keys: Keys, time: Timestamp
) -> Evaluated:
    """The results of some keys as of a time, of all parts together; each part has a view of its own."""
    results = [part.evaluate(view, keys, time) for part, view in zip(parts, views, strict=True)]
    queries, columns, counts = results[0]
    for other in results[1:]:
        columns = (*columns, *_align(queries, other))
    return queries, columns, counts


def counted_changes(
    view: View, keys: Keys, came: Ints, time: Timestamp, width: int
) -> Changes | None:
    """The changes of the counts of some keys, from the diffs that came for each key.

    A result has the key and `width` columns, each of them the count. Of width 0, the result only says which keys are
    there.
    """
    selection = view.lookup(keys, time)
    now = np.zeros(len(keys), np.int64)
    now[queries_of(selection)] = selection.counts
    before = now - came
    is_there, was_there = now > 0, before > 0
    if not width:
        is_there, was_there = is_there & ~was_there, was_there & ~is_there
    there, were = is_there.nonzero()[0], was_there.nonzero()[0]
    rows = len(there) + len(were)
    if not rows:
        return None
    if len(there) == rows or len(were) == rows:
        chosen, counts, diff = (there, now, 1) if len(there) else (were, before, -1)
        column = int64_column(counts[chosen])
        columns = take_keys(keys, chosen, True) + (column,) * width
        return Changes(columns, rows, (time,), None, diff, None)
    if len(there) == len(were) == len(keys):
        named = tuple([pa.concat_arrays([key, key]) for key in keys.columns])
        column = int64_column(np.concatenate((now, before)))
    else:
        named = take_columns(keys.columns, np.concatenate((there, were)))
        column = int64_column(np.concatenate((now[there], before[were])))
    diffs = np.ones(rows, np.int64)
    diffs[len(there) :] = -1
    columns = tuple(named) + (column,) * width
    return Changes(columns, rows, (time,), None, 0, diffs)


def take_keys(keys: Keys, queries: Ints, once: bool) -> tuple[pa.Array, ...]:
    """The key columns for some queries, each of them `once` or not."""
    if once and len(queries) == len(keys):
        return keys.columns
    return keys.take(queries).columns


def _align(queries: Ints, other: Evaluated) -> tuple[pa.Array, ...]:
    """The columns of another part for the same keys; null where it gives nothing."""
    other_queries, columns, _ = other
    if len(other_queries) == len(queries) and (other_queries == queries).all():
        return columns
    where = np.searchsorted(other_queries, queries)
    where = np.minimum(where, max(len(other_queries) - 1, 0))
    missing = (
        np.ones(len(queries), bool) if not len(other_queries) else other_queries[where] != queries
    )
    return tuple(column.take(as_column(where, ~missing)) for column in columns)


@dataclass(frozen=True)
class Present(GroupPart):
    """Says which keys have a row: distinct."""

    input: int = 0

    @property
    def is_count(self) -> bool:
        return True

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([])

    def evaluate(self, view: View, keys: Keys, time: Timestamp) -> Evaluated:
        selection = view.lookup(keys, time)
        queries, live = queries_of(selection), selection.counts > 0
        return (queries if live.all() else queries[live]), (), None


@dataclass(frozen=True)
class Amount:
    """One linear quantity: its column, and how its numbers are stored."""

    column: int
    form: str
    """``valid`` (rows that are not null), ``int``, ``uint``, ``duration``, ``decimal`` or ``float``."""


@dataclass(frozen=True)
class Amounts(Linear):
    """Turns each row into the amounts that the row adds to the sums of its group."""

    key: tuple[int, ...]
    amounts: tuple[Amount, ...]
    kind: ClassVar[str] = "amounts"
    kernels: ClassVar[tuple[str, ...]] = (
        "sums.split_floats",
        "sums.add_digits",
    )

    def describe(self) -> str:
        return "amounts to add up" if self.amounts else "keys to count"

    def identity(self) -> str:
        amounts = ", ".join(f"{amount.form} of column {amount.column}" for amount in self.amounts)
        return f"{self.describe()} {amounts} by columns {self.key}"

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        """The keys in the columns of the key, which stay as they are."""
        keys = inputs[0].keys
        if keys is None:
            return None
        return moved_keys(keys, {position: at for at, position in enumerate(self.key)})

    @property
    def used(self) -> Sequence[int]:
        return sorted({*self.key, *(amount.column for amount in self.amounts)})

    def apply(self, changes: Changes) -> Changes:
        key = tuple([changes.columns[at] for at in self.key])
        if not self.amounts:
            return changes.with_columns(key)
        diffs = changes.diff_array()
        rows = [np.arange(changes.rows, dtype=np.int64)]
        slots = [np.zeros(changes.rows, np.int32)]
        sums = [diffs]
        for number, amount in enumerate(self.amounts, 1):
            for row, slot, value in _split(changes.columns[amount.column], amount.form, diffs):
                rows.append(row)
                slots.append(slot.astype(np.int32) + np.int32(number * _BASE + _ZERO))
                sums.append(value)
        chosen = np.concatenate(rows)
        taken = changes.with_columns(key).take(chosen)
        slot = as_column(np.concatenate(slots))
        return Changes(
            (*taken.columns, slot), len(chosen), taken.times, taken.codes, 0, np.concatenate(sums)
        )


def _split(column: pa.Array, form: str, diffs: Ints) -> list[tuple[Ints, Any, Ints]]:
    """Rows, slots and amounts of one column."""
    valid = None
    if column.null_count:
        valid = as_array(column.is_valid())
    if form == "valid":
        rows = np.arange(len(column)) if valid is None else np.flatnonzero(valid)
        return [(rows, np.zeros(len(rows), np.int32), diffs[rows])]
    if form == "float":
        values = as_array(column).astype(np.float64, copy=False)
        return [limbs(values, valid, diffs)]
    there = None
    if valid is not None:
        there, column, diffs = np.flatnonzero(valid), column.drop_null(), diffs[valid]
    many = len(diffs) > 0 and max(int(diffs.max()), -int(diffs.min())) >= _MANY
    digits = _product_digits(column, form, diffs) if many else _digits(column, form)
    parts = []
    for slot, digit in enumerate(digits):
        rows = np.flatnonzero(digit)
        if len(rows):
            amounts = digit[rows] if many else digit[rows] * diffs[rows]
            slots = np.full(len(rows), slot, np.int32)
            parts.append((rows if there is None else there[rows], slots, amounts))
    return parts


def _digits(column: pa.Array, form: str) -> list[Ints]:
    """The digits of 32 bits of each number, the lowest first; their size is below 2**31, except for ``uint``."""
    if form == "uint":
        naturals = as_array(column.cast(pa.uint64()))
        low = (naturals & np.uint64(_MASK)).astype(np.int64)
        return [low, (naturals >> np.uint64(32)).astype(np.int64)]
    if form != "decimal":
        numbers = as_array(column.cast(pa.int64()))
        low = ((numbers + (1 << 31)) & _MASK) - (1 << 31)
        return [low, (numbers >> _DIGIT) + (low < 0)]
    words = _decimal_words(column)
    digits = [
        words[:, 0] & _MASK,
        (words[:, 0] >> _DIGIT) & _MASK,
        words[:, 1] & _MASK,
        words[:, 1] >> _DIGIT,
    ]
    for at in range(
        3
    ):  # a digit from 2**31 on becomes negative, and the next one more: -1 is one digit, not four
        above = digits[at] >= 1 << 31
        digits[at] = digits[at] - (above.astype(np.int64) << _DIGIT)
        digits[at + 1] = digits[at + 1] + above
    return digits


def _product_digits(column: pa.Array, form: str, diffs: Ints) -> list[Ints]:
    """The digits of each number times its diff, where a digit times a diff would leave 64 bits."""
    products = [n * d for n, d in zip(_numbers(column, form), diffs.tolist(), strict=True)]
    digits = []
    while any(products):
        low = [((n + (1 << 31)) & _MASK) - (1 << 31) for n in products]
        products = [(n - digit) >> 32 for n, digit in zip(products, low, strict=True)]
        digits.append(np.array(low, np.int64))
    return digits


def _numbers(column: pa.Array, form: str) -> list[int]:
    """The numbers as Python's; of decimals the unscaled ones."""
    if form == "decimal":
        low_high = _decimal_words(column).tolist()
        return [(high << 64) + (low & ((1 << 64) - 1)) for low, high in low_high]
    numbers: list[int] = column.cast(pa.uint64() if form == "uint" else pa.int64()).to_pylist()
    return numbers


def _decimal_words(column: pa.Array) -> Ints:
    """Of each decimal its unscaled number, as two words of 64 bits, the lower one first."""
    wide = column.cast(pa.decimal128(_PRECISION, column.type.scale))
    data = wide.buffers()[1]
    words = np.zeros(0, np.int64) if data is None else np.frombuffer(data, np.int64)
    return words[2 * wide.offset : 2 * (wide.offset + len(wide))].reshape(-1, 2)


@dataclass(frozen=True)
class Sums(GroupPart):
    """Counts, sums and means. `results` says how each column is computed: its form, and from which amounts."""

    input: int
    schema: pa.Schema
    results: tuple[tuple[str, int, int], ...]
    """(``count``, 0, 0), (``valid``, amount, 0), (form, amount, 0) for a sum, or (``mean-`` and the form, amount,
    amount of ``valid``)."""
    slots: bool = True
    """Whether amounts have slots; without slots the only amount is the count."""
    scales: Mapping[int, int] = field(default_factory=dict)
    """Of amounts that are decimals, how many digits are behind the point."""

    @property
    def is_count(self) -> bool:
        return not self.slots

    def evaluate(self, view: View, keys: Keys, time: Timestamp) -> Evaluated:
        selection = view.lookup(keys, time)
        queries, counts = queries_of(selection), selection.counts
        if not self.slots:
            live = counts > 0
            if not live.all():
                queries, counts = queries[live], counts[live]
            return queries, tuple([as_column(counts) for _ in self.results]), None
        slots = as_array(selection.canonical(len(view.schema.key)))
        rows = np.zeros(len(keys), np.int64)
        of_rows = slots == 0
        rows[queries[of_rows]] = counts[of_rows]
        present = np.flatnonzero(rows > 0)
        columns = []
        numbers = slots // _BASE
        for what, amount, valid in self.results:
            if what == "count":
                columns.append(as_column(rows[present]))
                continue
            mine = numbers == amount + 1
            q, c = queries[mine], counts[mine]
            s = slots[mine] - ((amount + 1) * _BASE + _ZERO)
            form = what.removeprefix("mean-")
            if form == "valid":
                sums = np.zeros(len(keys), np.int64)
                sums[q] = c
                columns.append(as_column(sums[present]))
                continue
            kind = self.schema.field(len(columns)).type
            if form == "float":
                values: Any = total(q, s.astype(np.int16), c, len(keys))[present]
            else:
                values = _totals(q, s, c, len(keys), present)
            if what != form:
                of = numbers == valid + 1
                known = np.zeros(len(keys), np.int64)
                known[queries[of]] = counts[of]
                columns.append(
                    _means(values, known[present], form, kind, self.scales.get(amount, 0))
                )
            elif form == "float":
                columns.append(as_column(values))
            else:
                columns.append(_sums(values, form, kind))
        return present, tuple(columns), None


def _totals(queries: Ints, slots: Any, counts: Ints, keys: int, present: Ints) -> Ints | list[int]:
    """Exact sums of digits: Python's integers where one of the sums may leave 62 bits."""
    low, high = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
    low[queries[slots == 0]] = counts[slots == 0]
    high[queries[slots == 1]] = counts[slots == 1]
    low, high = low[present], high[present]
    least, most = -(1 << 29), 1 << 29
    if not (slots > 1).any() and (
        len(high) == 0
        or (
            least < high.min()
            and high.max() < most
            and low.min() > -(1 << 61)
            and low.max() < 1 << 61
        )
    ):
        sums: Ints = low + (high << _DIGIT)
        return sums
    totals = [0] * keys
    for query, slot, count in zip(queries.tolist(), slots.tolist(), counts.tolist(), strict=True):
        totals[query] += count << (32 * slot)
    return [totals[key] for key in present.tolist()]


def _sums(totals: Ints | list[int], form: str, kind: pa.DataType) -> pa.Array:
    """A column of sums; an error where a sum leaves the type (the range-of-sums law)."""
    if form == "decimal":
        bound = 10**_PRECISION
        least, most = 1 - bound, bound
    else:
        least, most = (0, 1 << 64) if form == "uint" else (-(1 << 63), 1 << 63)
    if isinstance(totals, list) or form == "uint":
        for value in totals if isinstance(totals, list) else totals.tolist():
            if not least <= value < most:
                raise sum_out_of_range(value, form, kind)
    if form == "decimal":
        if isinstance(totals, list):
            data = b"".join([value.to_bytes(16, "little", signed=True) for value in totals])
        else:
            data = np.stack([totals, totals >> np.int64(63)], axis=1).tobytes()
        return pa.Array.from_buffers(kind, len(totals), [None, pa.py_buffer(data)])
    return as_column(np.array(totals, np.uint64 if form == "uint" else np.int64)).cast(kind)


def sum_out_of_range(value: int, form: str, kind: pa.DataType) -> OperatorFailed:
    """The refusal of a sum that its type cannot hold."""
    what, holds = {
        "decimal": ("decimals", f"{_PRECISION} digits"),
        "duration": ("durations", "64 bits"),
    }.get(form, ("integers", "64 bits"))
    shown = str(value)
    if form == "decimal" and kind.scale > 0:
        digits = str(abs(value)).zfill(kind.scale + 1)
        shown = f"{'-' if value < 0 else ''}{digits[: -kind.scale]}.{digits[-kind.scale :]}"
    elif form == "duration":
        shown = f"{value} {kind.unit}"
    hint = "sum a float or a decimal: rr.sum(pl.col(...).cast(pl.Float64))"
    if form == "duration":
        hint = (
            "sum a coarser unit, or floats: rr.sum(pl.col(...).dt.total_seconds(fractional=True))"
        )
    elif form == "decimal":
        hint = "sum a decimal of fewer decimal places, or a float: rr.sum(pl.col(...).cast(pl.Float64))"
    return OperatorFailed(
        "operator.overflow",
        f"a sum of {what} is {shown}, which does not fit {holds}",
        hint=hint,
        sum=value,
    )


def _means(totals: Any, known: Ints, form: str, kind: pa.DataType, scale: int) -> pa.Array:
    """Each sum divided by the number of its values; null where there are none. A mean of durations is cut to whole
    units."""
    if form == "float":
        with np.errstate(divide="ignore", invalid="ignore"):
            return as_column(totals / known, known > 0)
    if form in ("int", "uint"):
        # Every sum is rounded to a double and then divided, a Python integer too: so the last digit of a key's mean
        # does not depend on other keys.
        values = np.array([float(each) for each in totals]) if isinstance(totals, list) else totals
        with np.errstate(divide="ignore", invalid="ignore"):
            return as_column(values / known, known > 0)
    listed = totals if isinstance(totals, list) else totals.tolist()
    pairs = list(zip(listed, known.tolist(), strict=True))
    if form == "duration":
        cut = [None if n <= 0 else (abs(v) // n) * (1 if v >= 0 else -1) for v, n in pairs]
        return pa.array(cut, pa.int64()).cast(kind)
    return pa.array([None if n <= 0 else v / (n * 10**scale) for v, n in pairs], pa.float64())


@dataclass(frozen=True)
class FirstRows(GroupPart):
    """The first `k` rows of a group in the declared order of the arrangement."""

    input: int
    schema: pa.Schema
    columns: tuple[str, ...]
    k: int = 1

    def evaluate(self, view: View, keys: Keys, time: Timestamp) -> Evaluated:
        selection = view.first(keys, time, self.k)
        queries, counts = queries_of(selection), selection.counts
        if self.k > 1 and len(queries):
            # A row that is there three times is three of the k; one that is there more than k times is k of them, so
            # that sums of counts stay small.
            counts = np.minimum(counts, self.k)
            exact = counts if self.k < _MANY else counts.astype(object)
            before = np.cumsum(exact) - exact
            starts = np.flatnonzero(np.r_[True, queries[1:] != queries[:-1]])
            lengths = np.diff(np.r_[starts, len(queries)])
            ahead = before - np.repeat(before[starts], lengths)
            counts = np.minimum(counts, np.maximum(self.k - ahead, 0)).astype(np.int64)
            live = counts > 0
            columns = [selection.canonical(view.schema.positions[name]) for name in self.columns]
            if not live.all():
                columns = [column.filter(as_column(live)) for column in columns]
                queries, counts = queries[live], counts[live]
            return queries, tuple(columns), counts
        positions = view.schema.positions
        chosen = [positions[name] for name in self.columns]
        return queries, tuple(selection.canonicals(chosen)), None
