"""The eight laws of operators: what each demands, the error of a broken one, and the outcome of a check.

`checking` is what users call, and `trials` tries the laws; both take these words from here.

========== ========================================================================================
law        what the law demands, and how it is tried
========== ========================================================================================
progress   when the input lets a time pass, so does the operator: no epoch hangs, notifications come
silence    no actor sends before the time that it handles, and none receives rows at a time that
           counts as complete
oracle     at every epoch the result is that of a computation from scratch
split      the same results, however the rows of an epoch are cut into batches: one by one, by threes
order      the same results, in whatever order the rows and batches of an epoch arrive
compaction the same results, however far states are compacted and however long the history is; also
           when all epochs are read at the end
resume     after being restored at any epoch, from a checkpoint or the log, or after a loss or a
           failure on the way, the program goes on as if it had never stopped
rescale    one to four workers, also when the number changes on the way, give the same results
========== ========================================================================================

The laws are tried in this order. The first broken one is raised as :class:`LawBroken`, with the law, the seed, the
smallest script that breaks the law, and the rows that differ. Rows are compared exactly, as bags; floats too.

Programs whose results are *arrival-dependent* (``Plan.arrival_dependent``: a vertex that is not declared deterministic,
rows sent to any worker) are exempt from oracle, split, order and rescale. With an oracle they are not exempt, since an
oracle says that results are determined after all. `Checked` names the laws that were tried, and the exempt ones.

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
"""The laws that hold only for results that do not depend on arrival."""


class LawBroken(AssertionError):
    """A law was broken: its name, the seed, and the smallest script that breaks it."""

    def __init__(
        self, law: str, seed: int | None, script: Sequence[Item], way: PlayOptions, difference: str
    ) -> None:
        self.law = law
        self.seed = seed
        self.script = list(script)
        self.way = way
        self.difference = difference
        origin = "with the script that was given" if seed is None else f"with seed={seed}"
        arguments = f", {way}" if str(way) else ""
        super().__init__(
            f"the law of {law} is broken: {LAWS[law]}\n"
            f"found {origin}; the smallest script that shows it:\n"
            f"play(flow, {shown(script)}{arguments})\n{difference}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return LawBroken, (self.law, self.seed, self.script, self.way, self.difference)


@dataclass(frozen=True)
class Checked:
    """The outcome of a check: the laws tried, the laws that the program is exempt from, why, and how many scripts."""

    laws: tuple[str, ...]
    """The names of the laws that were tried, and kept."""
    exempt: tuple[str, ...]
    """The names of the laws that were not tried."""
    why: str
    """Why the program is exempt from these; empty where it is exempt from none."""
    scripts: int
    """How many scripts were played."""

    def __str__(self) -> str:
        without = f"; exempt from {', '.join(self.exempt)}: {self.why}" if self.exempt else ""
        return f"kept {', '.join(self.laws)} in {self.scripts} scripts{without}"
