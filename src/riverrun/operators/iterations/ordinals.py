"""Ordinals: values without a fixed width as words, which have the order of the values.

`spreading` takes an `Ordinals` in place of `messages.Words` for text, binary and decimals. Such values are copied along
edges and never computed with, so a word need not tell what a value is: it has to be less if the value is less. Each
value that comes gets a *label*, a whole number between the labels of its neighbours. Laws:

- **Order.** Of two values that came, the less one has the lesser label; equal values have one label. (For the greatest,
  words have all bits flipped, as in `messages`.)
- **There and back.** ``write(*read(column))`` is the column.
- **Moved.** A label stays as it is until no number is free where a value comes. Then all values get new labels, and
  whoever keeps words is told (`moved`).

>>> ordinals = Ordinals(pa.large_string(), greatest=False, moved=lambda words: None)
>>> words, ranks = ordinals.read(pa.array(["mill", "lake", None, "nave"], pa.large_string()))
>>> bool(words[1] < words[0] < words[3] < words[2]), ordinals.write(words, ranks).to_pylist()
(True, ['mill', 'lake', None, 'nave'])

Cost: for a value that came before 100 ns; for a new one some 50 microseconds, and 200 for all that come at once. New
labels for all values cost 0.3 microseconds each, with the words that are kept: when as many came as a sixteenth of
those that there were; or after 40 at least that came one by one, each between the same two (names that count up in the
middle of others). A value is never given up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from riverrun.errors import PlanError
from riverrun.operators.iterations.messages import Message, Ranks
from riverrun.operators.iterations.slots import Slots
from riverrun.state.columns import Ints, as_column
from riverrun.state.kernels.iterations import messages as kernels

_FEW = 1024
_BY_HAND = 24
_STEP = 1 << 40  # between neighbours that get labels at once, where there is room for it
_END = 1 << 62  # labels are less, and greater than its opposite
_T = pa.types

Moves = Callable[[Ints], None]
"""Puts new words in the place of old ones, in an array."""


def has_ordinals(kind: pa.DataType) -> bool:
    """Whether values of a canonical type get labels."""
    return bool(
        _T.is_large_string(kind)
        or _T.is_large_binary(kind)
        or _T.is_fixed_size_binary(kind)
        or _T.is_decimal(kind)
    )


class Ordinals:
    """Turns columns of values into words and back. `moved` is called when values have got new words."""

    form, low, high = kernels.WHOLE, 0, 0

    def __init__(
        self, kind: pa.DataType, *, greatest: bool, moved: Callable[[Moves], None]
    ) -> None:
        self.kind = self.weight_kind = kind
        self.flip = -1 if greatest else 0
        self._moved = moved
        self._values = Slots([kind])
        self._labels = np.zeros(0, np.int64)
        """By the slot of a value; of null it means nothing."""
        self._base: Any = pl.from_arrow(pa.nulls(0, kind))
        """Values in their order; those that came lately are in `_late`."""
        self._base_labels = np.zeros(0, np.int64)
        self._base_slots = np.zeros(0, np.int32)
        self._late: list[Any] = []
        self._late_labels = np.zeros(0, np.int64)
        self._late_slots = np.zeros(0, np.int32)

    def operation(self, message: Message) -> int:
        """The number of an operation: values are copied, and nothing else."""
        if message.operation != "copy":
            raise PlanError(
                "iteration.message",
                f"cannot {message.operation!r} values of type {self.kind} and a weight",
                hint="values without a fixed width can only be copied",
                operation=message.operation,
                type=str(self.kind),
            )
        return kernels.COPY

    def read(self, column: pa.Array, *, plain: bool = False) -> tuple[Ints, Ranks]:
        """The words and ranks of values."""
        slots = self._values.find([column], len(column))
        known = len(self._labels)
        if len(self._values) > known:
            self._labels = np.append(self._labels, np.zeros(len(self._values) - known, np.int64))
            self._add(np.arange(known, len(self._values), dtype=np.int32))
        words = self._labels[slots] ^ np.int64(self.flip)
        ranks = np.zeros(len(column), np.int8)
        if column.null_count:
            null = column.is_null().to_numpy(zero_copy_only=False)
            words[null], ranks[null] = kernels.WORST, kernels.NULL
        return words, ranks

    def write(self, words: Ints, ranks: Ranks) -> pa.Array:
        """The values of words; null where the rank is not that of a value."""
        there = ranks == kernels.VALUE
        slots = np.zeros(len(words), np.int32)
        slots[there] = self._slots_of(words[there] ^ np.int64(self.flip))
        if there.all():
            return self._values.columns(slots)[0]
        if not there.any():
            return pa.nulls(len(words), self.kind)
        return self._values.columns(slots)[0].take(as_column(np.arange(len(words)), there))

    def shown(self, word: int) -> Any:
        """The value of a word, for people."""
        return self.write(np.array([word]), np.zeros(1, np.int8))[0].as_py()

    def _slots_of(self, labels: Ints) -> Any:
        if not len(self._late_labels):
            return self._base_slots[np.searchsorted(self._base_labels, labels)]
        places = np.searchsorted(self._late_labels, labels)
        places = np.minimum(places, len(self._late_labels) - 1)
        slots = self._late_slots[places]
        rest = self._late_labels[places] != labels
        slots[rest] = self._base_slots[np.searchsorted(self._base_labels, labels[rest])]
        return slots

    # -- new values

    def _add(self, slots: Any) -> None:
        """Give labels to values that are new."""
        (column,) = self._values.columns(slots)
        if column.null_count:
            slots = slots[column.is_valid().to_numpy(zero_copy_only=False)]
            (column,) = self._values.columns(slots)
        if not len(slots):
            return
        is_much = len(slots) + len(self._late) > _FEW + len(self._base) // 16
        if is_much or not self._fits(column, slots):
            self._renew(pl.from_arrow(column), slots)

    def _fits(self, column: pa.Array, slots: Any) -> bool:
        """Give labels to a few values, between those of their neighbours; whether there was room."""
        if len(slots) <= _BY_HAND:  # a call of Polars costs as much as 30 values
            listed = column.to_pylist()
            order: Any = sorted(range(len(listed)), key=listed.__getitem__)
            listed = [listed[at] for at in order]
            among_base = [bisect_left(self._base, value) for value in listed]
        else:
            fresh: Any = pl.from_arrow(column)
            order = fresh.arg_sort().to_numpy()
            fresh = fresh.gather(order)
            listed, among_base = fresh.to_list(), self._base.search_sorted(fresh).to_list()
        slots = slots[order]
        places = [bisect_left(self._late, value) for value in listed]
        ends = [self._neighbours(*each) for each in zip(among_base, places, strict=True)]
        labels: list[int] = []
        for (low, high), group in groupby(ends):
            made = _between(low, high, sum(1 for _ in group))
            if made is None:
                return False
            labels += made
        self._labels[slots] = labels
        self._late_labels = np.insert(self._late_labels, places, labels)
        self._late_slots = np.insert(self._late_slots, places, slots)
        for place, value in zip(reversed(places), reversed(listed), strict=True):
            self._late.insert(place, value)
        return True

    def _neighbours(self, base: int, late: int) -> tuple[int, int]:
        """The labels around a place among the values of both kinds; the ends of all labels where there is none."""
        low, high = -_END, _END
        for labels, at in ((self._base_labels, base), (self._late_labels, late)):
            low = max(low, int(labels[at - 1])) if at > 0 else low
            high = min(high, int(labels[at])) if at < len(labels) else high
        return low, high

    def _renew(self, fresh: Any, slots: Any) -> None:
        """Give labels to some new values, and new labels to all others."""
        late = pl.Series(self._late, dtype=self._base.dtype)
        values = pl.concat([each.rename("") for each in (self._base, late, fresh)])
        every = np.concatenate([self._base_slots, self._late_slots, slots])
        order = values.arg_sort().to_numpy()
        count = len(self._base) + len(self._late)
        was = order[order < count]  # those that have labels, in their order
        old = np.concatenate([self._base_labels, self._late_labels])[was]
        self._base, self._base_slots = values.gather(order), every[order]
        step = min(_STEP, _END // (len(every) + 1))
        self._base_labels = np.arange(len(every)) * np.int64(step)
        self._labels[self._base_slots] = self._base_labels
        new = self._labels[every[was]]
        self._late, self._late_labels = [], np.zeros(0, np.int64)
        self._late_slots = np.zeros(0, np.int32)
        if len(old) and not np.array_equal(old, new):
            self._moved(_Moves(old, new, self.flip))


class _Moves:
    """Puts new words in the place of old ones. Other numbers, which stand for no value, stay."""

    def __init__(self, old: Ints, new: Ints, flip: int) -> None:
        self._old, self._new, self._flip = old, new, np.int64(flip)

    def __call__(self, words: Ints) -> None:
        labels = words ^ self._flip
        places = np.minimum(np.searchsorted(self._old, labels), len(self._old) - 1)
        known = self._old[places] == labels
        words[known] = self._new[places[known]] ^ self._flip


def _between(low: int, high: int, count: int) -> Sequence[int] | None:
    """So many labels between two others, evenly; None if there is no room for them."""
    step = (high - low) // (count + 1)
    if step == 0:
        return None
    if low == -_END and high < _END:
        step = min(step, _STEP)
        return range(high - count * step, high, step)
    step = min(step, _STEP) if high == _END and low > -_END else step
    return range(low + step, low + (count + 1) * step, step)
