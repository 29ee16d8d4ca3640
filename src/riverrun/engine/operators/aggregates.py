"""What a group amounts to: the parts of a reduce.

A part reads one arrangement and says, for some keys as of a time, what rows they give. Three ways:

- **Linear** (`Sums`): counts, sums and means are kept as *amounts*, rows of (key, slot) whose diff is
  the amount itself, so the spine adds them up and a change costs the same however large its group.
  Integers are split in two digits of 32 bits and floats in several (`state.sums`), so that adding
  is exact: sums do not depend on the order of arrival, and deleting what was inserted gives the old
  value back. Where an integer sum leaves 64 bits, it is said.
- **Ordered** (`FirstRows`): min, max, first, last and the first k are the first live rows of a group in
  an arrangement that is ordered so.
- **Whole** (`operators.groups`): anything else sees all rows of the groups that were touched.

Nulls: sums, means, min and max leave them out; the sum of nothing is 0, the mean, min and max of
nothing are null. NaN is the greatest float, and one value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from riverrun.engine.operator import Linear
from riverrun.errors import OperatorFailed
from riverrun.progress import Timestamp
from riverrun.state.changes import Changes
from riverrun.state.keys import Keys
from riverrun.state.sums import limbs, total
from riverrun.state.view import Selection, View

Ints = np.ndarray[Any, np.dtype[np.int64]]
Evaluated = tuple[Ints, tuple[pa.Array, ...], Ints | None]
"""Per row: which key, the columns, and how often it is there. None: once, and no key has two rows."""

SLOT = "slot"
_DIGIT = np.int64(32)
_BASE = 256  # slots of one column
_ZERO = 8  # where a column's own slots start to count: those of NaN and infinities are below 0


def asked(found: Selection) -> Ints:
    """Which key each row that was looked up belongs to."""
    assert found.queries is not None
    return found.queries


class Part:
    """Reads input number `input` of a reduce."""

    input: int
    schema: pa.Schema
    """The columns it gives."""

    @property
    def code(self) -> str:
        """A word for the code of the user's function in it, if there is one."""
        return ""

    def evaluate(self, view: View, keys: Keys, time: Timestamp) -> Evaluated:
        raise NotImplementedError


@dataclass(frozen=True)
class Present(Part):
    """A key is there when some row is: distinct."""

    input: int = 0

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([])

    def evaluate(self, view: View, keys: Keys, time: Timestamp) -> Evaluated:
        found = view.lookup(keys, time)
        queries, live = asked(found), found.counts > 0
        return (queries if live.all() else queries[live]), (), None


@dataclass(frozen=True)
class Amount:
    """One linear quantity: of which column, and how it is kept."""

    column: int
    form: str
    """``valid`` (rows that are not null), ``int``, ``uint`` or ``float``."""


@dataclass(frozen=True)
class Amounts(Linear):
    """Rows become the amounts they add to the sums of their group."""

    key: tuple[int, ...]
    amounts: tuple[Amount, ...]
    kind: ClassVar[str] = "amounts"

    def describe(self) -> str:
        return "amounts to add up" if self.amounts else "keys to count"

    def identity(self) -> str:
        amounts = ", ".join(f"{amount.form} of column {amount.column}" for amount in self.amounts)
        return f"{self.describe()} {amounts} by columns {self.key}"

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
        slot = pa.array(np.concatenate(slots))
        return Changes(
            (*taken.columns, slot), len(chosen), taken.times, taken.codes, 0, np.concatenate(sums)
        )


def _split(column: pa.Array, form: str, diffs: Ints) -> list[tuple[Ints, Any, Ints]]:
    """Rows, slots and amounts of one column."""
    valid = None
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
    if form == "valid":
        rows = np.arange(len(column)) if valid is None else np.flatnonzero(valid)
        return [(rows, np.zeros(len(rows), np.int32), diffs[rows])]
    if form == "float":
        if column.null_count:
            column = column.fill_null(0.0)
        values = np.asarray(column).astype(np.float64, copy=False)
        return [limbs(values, valid, diffs)]
    kind = pa.uint64() if form == "uint" else pa.int64()
    if column.null_count:
        column = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
    numbers = np.asarray(column.cast(kind))
    if form == "uint":
        low, high = (
            (numbers & np.uint64(0xFFFFFFFF)).astype(np.int64),
            (numbers >> np.uint64(32)).astype(np.int64),
        )
    else:
        low = ((numbers + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
        high = (numbers >> _DIGIT) + (low < 0)
    found = []
    for slot, digits in enumerate((low, high)):
        rows = np.flatnonzero(digits)
        if len(rows):
            found.append((rows, np.full(len(rows), slot, np.int32), digits[rows] * diffs[rows]))
    return found


@dataclass(frozen=True)
class Sums(Part):
    """Counts, sums and means. `results` says how each column is made: what, and of which amounts."""

    input: int
    schema: pa.Schema
    results: tuple[tuple[str, int, int], ...]
    """(``count``, 0, 0), (``valid``, amount, 0), (``int`` | ``uint`` | ``float``, amount, 0) or
    (``mean-int`` | ``mean-uint`` | ``mean-float``, amount, amount of ``valid``)."""
    slots: bool = True
    """Whether there are slots; with none the only amount is the count."""

    def evaluate(self, view: View, keys: Keys, time: Timestamp) -> Evaluated:
        found = view.lookup(keys, time)
        queries, counts = asked(found), found.counts
        if not self.slots:
            live = counts > 0
            if not live.all():
                queries, counts = queries[live], counts[live]
            return queries, tuple([pa.array(counts) for _ in self.results]), None
        slots = np.asarray(found.canonical(len(view.schema.key)))
        rows = np.zeros(len(keys), np.int64)
        of_rows = slots == 0
        rows[queries[of_rows]] = counts[of_rows]
        present = np.flatnonzero(rows > 0)
        made = []
        numbers = slots // _BASE
        for what, amount, valid in self.results:
            if what == "count":
                made.append(pa.array(rows[present]))
                continue
            mine = numbers == amount + 1
            q, c = queries[mine], counts[mine]
            s = slots[mine] - ((amount + 1) * _BASE + _ZERO)
            form = what.removeprefix("mean-")
            if form == "valid":
                sums = np.zeros(len(keys), np.int64)
                sums[q] = c
                made.append(pa.array(sums[present]))
                continue
            if form == "float":
                values = total(q, s.astype(np.int16), c, len(keys))[present]
            else:
                values = _whole(q, s, c, len(keys), present, form, exact=what == form)
            if what != form:
                of = numbers == valid + 1
                known = np.zeros(len(keys), np.int64)
                known[queries[of]] = counts[of]
                known = known[present]
                with np.errstate(divide="ignore", invalid="ignore"):
                    made.append(pa.array(values / known, mask=known <= 0))
            else:
                made.append(pa.array(values))
        return present, tuple(made), None


def _whole(
    queries: Ints, slots: Any, counts: Ints, keys: int, present: Ints, form: str, exact: bool
) -> np.ndarray[Any, Any]:
    """Integer sums of two digits; said where they do not fit."""
    low, high = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
    low[queries[slots == 0]] = counts[slots == 0]
    high[queries[slots == 1]] = counts[slots == 1]
    low, high = low[present], high[present]
    if not exact:
        return low.astype(np.float64) + high.astype(np.float64) * 2.0**32
    if len(high) == 0 or (abs(high).max() < 1 << 30 and abs(low).max() < 1 << 62):
        return (low + (high << _DIGIT)).astype(np.uint64 if form == "uint" else np.int64)
    sums = [(h << 32) + n for h, n in zip(high.tolist(), low.tolist(), strict=True)]
    least, most = (0, 1 << 64) if form == "uint" else (-(1 << 63), 1 << 63)
    for value in sums:
        if not least <= value < most:
            raise OperatorFailed(
                "operator.overflow",
                f"a sum of integers is {value}, which does not fit 64 bits",
                hint="sum a float or a decimal: rr.sum(pl.col(...).cast(pl.Float64))",
                sum=value,
            )
    return np.array(sums, np.uint64 if form == "uint" else np.int64)


@dataclass(frozen=True)
class FirstRows(Part):
    """The first `k` rows of a group in the declared order of the arrangement."""

    input: int
    schema: pa.Schema
    columns: tuple[str, ...]
    k: int = 1

    def evaluate(self, view: View, keys: Keys, time: Timestamp) -> Evaluated:
        found = view.first(keys, time, self.k)
        queries, counts = asked(found), found.counts
        if self.k > 1 and len(queries):
            # A row that is there three times is three of the k.
            before = np.cumsum(counts) - counts
            starts = np.flatnonzero(np.r_[True, queries[1:] != queries[:-1]])
            lengths = np.diff(np.r_[starts, len(queries)])
            ahead = before - np.repeat(before[starts], lengths)
            counts = np.minimum(counts, self.k - ahead)
            kept = counts > 0
            columns = [found.canonical(view.schema.positions[name]) for name in self.columns]
            if not kept.all():
                columns = [column.filter(pa.array(kept)) for column in columns]
                queries, counts = queries[kept], counts[kept]
            return queries, tuple(columns), counts
        positions = view.schema.positions
        chosen = [positions[name] for name in self.columns]
        return queries, tuple(found.canonicals(chosen)), None
