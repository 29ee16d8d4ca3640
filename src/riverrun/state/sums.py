"""Exact sums of floats, stored as rows of a state.

Sums and means of floats use it (`operators.aggregates`). Adding doubles rounds: after a value is deleted the former sum
does not come back, and the order of arrival shows. Adding integers has neither fault. So a double, which is an integer
multiple of 2**-1074, is split into *limbs*: its digits of 32 bits, of which at most three, in a row, are not zero. Each
limb becomes a row `(slot, amount)` with amount = digit * diff, and a state adds amounts up as it adds up diffs. `total`
turns the sums of the slots into a double, rounding once. Laws:

- **Nearest.** `total` gives the double nearest to the exact sum of value * diff, ties to even, whatever the order, and
  however often values came and went; infinity where the sum is too large.
- **Counted specials.** Not-a-number and the infinities have slots of their own, in which they are counted. Any NaN, or
  both infinities, give NaN; one infinity gives itself. When they are deleted, the sum is finite again.
- **Plain zero.** No rows give 0.0; zero has no sign.

Amounts are below 2**40, so a sum is exact as long as one key has in one slot fewer than 2**23 rows of diffs near 256,
or 2**31 rows of diff 1. Greater diffs are multiplied out beforehand and count as 1.

>>> import numpy as np
>>> values = np.array([1e16, 1.0, -1e16])
>>> rows, slots, amounts = limbs(values, None, np.ones(3, np.int64))
>>> total(np.zeros(len(rows), np.int64), slots, amounts, 1).tolist(), float(values.sum())
([1.0], 0.0)

Cost: 10 to 20 ns a value to split, 30 to 60 ns a query to total.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riverrun.state.columns import Ints
from riverrun.state.kernels import sums

NAN_SLOT = sums.NAN_SLOT
POSITIVE_SLOT = sums.POSITIVE_SLOT
NEGATIVE_SLOT = sums.NEGATIVE_SLOT

Floats = np.ndarray[Any, np.dtype[np.float64]]
Slots = np.ndarray[Any, np.dtype[np.int16]]
_ALL_VALID = np.zeros(0, np.bool_)


def limbs(
    values: Floats, valid: np.ndarray[Any, np.dtype[np.bool_]] | None, diffs: Ints
) -> tuple[Ints, Slots, Ints]:
    """The limbs of some values: for each limb the number of its row, its slot, and its amount (digit times diff).

    Rows that are not `valid` have no limbs, nor has zero.
    """
    words = np.ascontiguousarray(values, np.float64).view(np.int64)
    rows, slots, amounts = sums.split_floats(words, _ALL_VALID if valid is None else valid, diffs)
    return rows, slots, amounts


def total(queries: Ints, slots: Slots, amounts: Ints, count: int) -> Floats:
    """The sum of each of `count` queries; `queries`, which ascend, has the query of each limb."""
    out = np.empty(count, np.int64)
    sums.add_digits(queries, slots, amounts, out)
    return out.view(np.float64)
