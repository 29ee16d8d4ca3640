"""How much a suite draws, and from which seeds: fixed seeds where it must pass every time, random seeds in a soak.

`make test`, which newcomers run, has fixed seeds: a test that passed once passes again. `make soak` runs the long
suites (the markers ``soak`` and ``sampled``), and those of `make test` that draw (``drawn`` and ``hypothesis``) once
more, longer, all from a random seed, which the header names; ``make soak SEED=N`` repeats it. ``make soak
SOAK=sample``, which `.ci/run` calls, runs a part of each long suite from fixed seeds.

A suite with the marker ``soak`` is not in `make test`. A suite with the marker ``sampled`` is in `make test` with a few
draws, or with some of its cases (`some`); the sample of `.ci/run` has more draws, and `make soak` has all.

>>> draws(3, sample=20, soak=1000) in (3, 20, 1000)
True

Some suites must have seen certain events (a kill, a refusal, a cycle of each length) to have tested anything. `Shown`
counts the events, and gives the suite further turns until there were enough, up to a limit, so that no suite fails by
bad luck.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

Case = TypeVar("Case")
SOAK = os.environ.get("SOAK", "")  # "" in make test, "sample" in .ci/run, "all" in make soak
if SOAK == "all":  # said to the processes that test beside this one, which inherit it
    os.environ.setdefault("SEED", str(random.SystemRandom().randrange(1 << 30)))


def draws(test: int, *, sample: int | None = None, soak: int) -> int:
    """How often to draw: `test` in `make test`, `sample` in the sample of `.ci/run`, `soak` in `make soak`."""
    if SOAK == "all":
        return soak
    if SOAK == "sample" and sample is not None:
        return sample
    return test


def some(cases: Iterable[Case], few: int) -> list[Case]:
    """`few` of the cases in `make test`, the first among them; all of them in a soak, and in its sample.

    >>> some("abcdefg", 3) in (["a", "c", "e"], list("abcdefg"))
    True
    """
    every = list(cases)
    return every if SOAK else every[:: max(len(every) // few, 1)][:few]


def first_seed(fixed: int = 1) -> int:
    """The seed that a suite starts from: `fixed`, or in a soak a random seed, or that of ``SEED=``. Prints the seed."""
    seed = int(os.environ.get("SEED", fixed))
    # pytest shows it when the test fails
    print(f"SEED={seed} SOAK={SOAK or 'no'}", file=sys.stderr)
    return seed


def seeds(test: int, *, sample: int | None = None, soak: int, fixed: int = 0) -> range:
    """One seed for each draw, counted up from the first seed."""
    first = first_seed(fixed)
    return range(first, first + draws(test, sample=sample, soak=soak))


class Shown(dict[str, int]):
    """Events that a suite must have seen to have tested anything: how often each has happened, and how often it must.

    >>> shown = Shown(sevens=1)
    >>> for turn in shown.turns(2):  # two turns, and further ones until there was a seven
    ...     shown["sevens"] += turn == 7
    >>> turn, shown
    (7, {'sevens': 1})
    >>> for turn in Shown(sevens=1).turns(2, limit=3):
    ...     pass
    Traceback (most recent call last):
        ...
    AssertionError: too little was shown in 6 turns: {'sevens': 0}, and not {'sevens': 1}
    """

    def __init__(self, **least: int) -> None:
        super().__init__(dict.fromkeys(least, 0))
        self._least = least

    def is_enough(self) -> bool:
        return all(self[what] >= least for what, least in self._least.items())

    def turns(self, count: int, *, limit: int = 4) -> Iterator[int]:
        """`count` turns, and further turns until enough was shown: at most `limit` times `count`."""
        for turn in range(limit * count):
            if turn >= count and self.is_enough():
                return
            yield turn
        if not self.is_enough():
            raise AssertionError(
                f"too little was shown in {limit * count} turns: {self}, and not {self._least}"
            )

    def seeds(
        self, test: int, *, sample: int | None = None, soak: int, fixed: int = 0, limit: int = 4
    ) -> Iterator[int]:
        """The seeds of `seeds`, and following seeds until enough was shown."""
        some = seeds(test, sample=sample, soak=soak, fixed=fixed)
        return (some.start + turn for turn in self.turns(len(some), limit=limit))
