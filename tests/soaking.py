"""How much a suite draws, and from which seeds: fixed ones where it must pass every time, random ones in a soak.

`make test`, which newcomers run, has fixed seeds: what passed once passes again. `make soak` runs the long suites (the
markers ``soak`` and ``sampled``), and those of `make test` that draw (``drawn`` and ``hypothesis``) once more, longer,
all from a random seed, which the header names; ``make soak SEED=N`` repeats it. ``make soak SOAK=sample``, which
`.ci/run` calls, runs a part of each long suite from fixed seeds.

A suite with the marker ``soak`` is not in `make test`. A suite with the marker ``sampled`` is, with a few draws; the
sample of `.ci/run` has more of them, and `make soak` has all.

>>> draws(3, sample=20, soak=1000) in (3, 20, 1000)
True
"""

from __future__ import annotations

import os
import random

SOAK = os.environ.get("SOAK", "")  # "" in make test, "sample" in .ci/run, "all" in make soak
if SOAK == "all":  # said to the processes that test beside this one, which inherit it
    os.environ.setdefault("SEED", str(random.SystemRandom().randrange(1 << 30)))


def draws(test: int, *, sample: int | None = None, soak: int) -> int:
    """How often to draw: in `make test`, in the sample that `.ci/run` takes, and in `make soak`."""
    if SOAK == "all":
        return soak
    if SOAK == "sample" and sample is not None:
        return sample
    return test


def first_seed(fixed: int = 1) -> int:
    """The seed that a suite starts from: a fixed one, in a soak a random one; ``SEED=`` says another. It is printed."""
    seed = int(os.environ.get("SEED", fixed))
    print(f"SEED={seed} SOAK={SOAK or 'no'}")  # pytest shows it when the test fails
    return seed


def seeds(test: int, *, sample: int | None = None, soak: int, fixed: int = 0) -> range:
    """As many seeds as there are draws, from the first one on."""
    first = first_seed(fixed)
    return range(first, first + draws(test, sample=sample, soak=soak))
