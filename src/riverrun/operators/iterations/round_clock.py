"""The round clock: how long the supersteps of a spread take, and what they send.

`spreading` has one for each epoch. A kernel has no clock, so the kernel of supersteps pauses at the end of a round that
has sent enough, and the caller looks at its clock. The time of rounds without a pause between them is shared out by
what they sent. Work in order of values has no rounds, and gives one row.

Law:

- **All of it.** Messages and seconds of the rounds add up to those of the epoch. What was sent before the first round,
  along new edges and to keys that lost their value, counts for the first round.

>>> history = np.array([[3, 1, 0], [6, 2, 0]])
>>> report = np.zeros(kernels.REPORT_FIELDS, np.int64)
>>> clock = RoundClock(history, report)
>>> report[kernels.MESSAGES], report[kernels.ROUNDS] = 9, 2
>>> clock.look()
>>> [(each.at, each.touched, each.messages) for each in clock.rounds()]
[((0,), 3, 7), ((1,), 1, 2)]
"""

from __future__ import annotations

from time import perf_counter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from riverrun.plan.loop_figures import MOST, RoundFigures
from riverrun.state.columns import Ints
from riverrun.state.kernels.iterations import spreading as kernels

Floats: TypeAlias = npt.NDArray[np.float64]


class RoundClock:
    """Measures the rounds of one epoch. `history` and `report` are those of the kernel."""

    def __init__(self, history: Ints, report: Ints) -> None:
        self._history = history
        self._report = report
        self._looks: list[tuple[Ints, Ints, Floats]] = []
        """For the rounds up to each look: slots, messages, seconds."""
        self._seen = 0
        self._last = self._began = perf_counter()

    def look(self) -> None:
        """Look at the clock: the kernel has paused, or is done."""
        now = perf_counter()
        seconds, self._last = now - self._last, now
        rounds = int(self._report[kernels.ROUNDS])
        if not self._history.size or rounds == self._seen:
            return
        senders, sent = self._history[:, : rounds - self._seen].copy()
        if not self._seen:
            sent[0] += self._report[kernels.MESSAGES] - sent.sum()
        shares = (senders + sent).astype(np.float64)
        self._looks.append((senders, sent, shares * (seconds / shares.sum())))
        self._seen = rounds

    def rounds(self) -> list[RoundFigures]:
        """What was done, if anything was, round by round."""
        report = self._report
        if not self._looks:
            touched, messages = int(report[kernels.TOUCHES]), int(report[kernels.MESSAGES])
            whole = RoundFigures((), touched, messages, self._last - self._began, 0)
            return [whole] if touched or messages else []
        senders, sent, seconds = (np.concatenate(parts) for parts in zip(*self._looks, strict=True))
        rounds = [
            RoundFigures((number,), int(senders[number]), int(sent[number]), float(seconds[number]))
            for number in range(min(len(sent), MOST))
        ]
        if len(sent) > MOST:
            touched, messages = int(senders[MOST:].sum()), int(sent[MOST:].sum())
            spent = float(seconds[MOST:].sum())
            rounds.append(RoundFigures((), touched, messages, spent, len(sent) - MOST))
        return rounds
