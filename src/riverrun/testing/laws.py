"""The eight laws of operators, and the check that a program keeps them.

========== ========================================================================================
law        what it says, and how it is tried
========== ========================================================================================
progress   when the input lets a time pass, so does the operator: no epoch hangs, notifications come
silence    nothing is sent before the time that is handled, nor at a time that was told complete
oracle     at every epoch the result is that of a computation from scratch
split      how the rows of an epoch are cut into batches does not show: one by one, by threes
order      nor does the order in which rows and batches of one epoch arrive
compaction nor does how far states are compacted, nor how much history is kept, also in re-reading
resume     restored at any epoch, from a checkpoint or the log, or after a loss or a failure on the
           way, it goes on as if it had never stopped
rescale    one to four workers, and another number in between, give the same
========== ========================================================================================

They are tried in this order, and the first that is broken is raised, as :class:`LawBroken`: the law, the
seed, the smallest script that shows it, the rows that differ. Rows are compared exactly, as bags;
floats too.

What is *arrival-dependent* (``Plan.arrival_dependent``: a vertex that does not say it is deterministic,
rows sent to any worker) is exempt from oracle, split, order and rescale, unless there is an oracle: whoever
has one says that results are determined after all. `Checked` names the laws that were tried, and
those that were not.

Cost: some fifteen runs of a few epochs for each round, 0.1 to 1 s for most operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from riverrun.testing.playing import PlayOptions
from riverrun.testing.script import Item, shown

LAWS: dict[str, str] = {
    "progress": "when the input lets a time pass, the operator lets it pass",
    "silence": "nothing is sent before the time that is handled",
    "oracle": "at every epoch the result is that of a computation from scratch",
    "split": "how the rows of an epoch are cut into batches changes no result",
    "order": "the order in which rows of one epoch arrive changes no result",
    "compaction": "how far states are compacted changes no result",
    "resume": "restored at any epoch, it goes on as if it had never stopped",
    "rescale": "the number of workers changes no result",
}
FOR_DETERMINED = frozenset({"oracle", "split", "order", "rescale"})
"""Those that hold for what does not depend on arrival."""


class LawBroken(AssertionError):
    """A law was broken: which one, with which seed, and the smallest script that shows it."""

    def __init__(
        self, law: str, seed: int | None, script: Sequence[Item], way: PlayOptions, difference: str
    ) -> None:
        self.law = law
        self.seed = seed
        self.script = list(script)
        self.way = way
        self.difference = difference
        found = "with the script that was given" if seed is None else f"with seed={seed}"
        arguments = f", {way}" if str(way) else ""
        super().__init__(
            f"the law of {law} is broken: {LAWS[law]}\n"
            f"found {found}; the smallest script that shows it:\n"
            f"play(flow, {shown(script)}{arguments})\n{difference}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return LawBroken, (self.law, self.seed, self.script, self.way, self.difference)


@dataclass(frozen=True)
class Checked:
    """What was tried: the laws, those that the program is exempt from and why, and the scripts."""

    laws: tuple[str, ...]
    exempt: tuple[str, ...]
    why: str
    scripts: int

    def __str__(self) -> str:
        without = f"; exempt from {', '.join(self.exempt)}: {self.why}" if self.exempt else ""
        return f"kept {', '.join(self.laws)} in {self.scripts} scripts{without}"
