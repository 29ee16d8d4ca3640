"""Adding diffs: a sum that does not fit 64 bits is refused, and never wraps.

`sorting`, `merging`, `searching`, `presence` and the kernels of iterations add up diffs with the functions of this
module. Law:

- **No silent overflow.** For a sum of diffs that is not between -(2**63 - 1) and 2**63 - 1, a kernel raises `Beyond`,
  which `state.counted` makes an error of Riverrun's. So rows that are there too often never vanish, nor turn into rows
  that are taken back; and every sum has an opposite.

`sorting.consolidate` counts how often a sum wraps upwards and downwards (`wraps`), since the order in which the changes
of one time come must not matter. Elsewhere diffs are added up in the order of their times, where a sum that leaves
64 bits on the way stands for a time at which the row was there too often.

Cost: three instructions for a sum of two diffs. Loops without branches gather signs with `leaves` and look at them
once, in `refuse`; the hottest ones ask before whether all diffs are small.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.compiling import kernel

SMALL = 1 << 31
LEAST = -(1 << 63)


class Beyond(Exception):
    """A sum of diffs does not fit."""


@kernel
def is_small(diff: int) -> bool:
    """Whether 2**31 such diffs, more than a batch can have, add up to 62 bits at the most."""
    return -SMALL <= diff <= SMALL


@kernel
def wraps(one: int, other: int) -> int:
    """How often 2**64 has to be added to the sum of two diffs for the exact sum: 1, 0 or -1 times."""
    total = one + other
    if (one ^ total) & (other ^ total) >= 0:
        return np.int64(0)
    return np.int64(1) if one > 0 else np.int64(-1)


@kernel
def leaves(one: int, other: int) -> int:
    """Negative where the sum of two diffs does not fit."""
    total = one + other
    least = total & -total  # negative for -2**63 only
    return ((one ^ total) & (other ^ total)) | least


@kernel
def refuse(sign: int) -> None:
    """Raise the error of a sum that does not fit, where `sign`, the answers of `leaves` or-ed together, is negative."""
    if sign < 0:
        raise Beyond


@kernel
def added(one: int, other: int) -> int:
    """The sum of two diffs, which has to fit (*no silent overflow*)."""
    refuse(leaves(one, other))
    return one + other
