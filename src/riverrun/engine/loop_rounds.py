"""Long loops: which loop an epoch is in, at which round, and how much still changes; said before anybody has to ask.

Every worker knows the round of each of its loops (`Instance.loops`). A run in this process asks its workers about once
a second; other workers say it with their signs of life. A `LongLoops` adds up what the workers say, logs a warning and
records an event. Laws:

- **Early.** A loop that is in one epoch for `FIRST` seconds is said, by name and with the user's line, and again every
  `AGAIN` seconds while its rounds go on; not while they do not (one call that takes long is said by `health`).
- **All workers.** The round is the latest that any worker is in; the rows are those that change in it, on all workers.
- **One name.** What is said here and what the error of a loop that diverges says has the same name and line.

>>> from riverrun.engine.events import Events
>>> loops = LongLoops(Events())
>>> for second, round_ in enumerate((900, 2_000), start=0):
...     loops.hear(1, [LoopRound("reach", "app.py:3", (0, round_), 2)], now=second * FIRST)
>>> [(event["loop"], event["rounds"], event["rows"]) for event in loops.events.list("long loop")]
[('reach', [2000], 2)]

Cost: microseconds for each loop, once a second.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from riverrun.engine.events import Events
from riverrun.progress import Timestamp

FIRST = 10.0  # seconds in a loop, after which it is said
AGAIN = 30.0  # seconds until it is said again
LOOK = 1.0  # seconds after which whoever works looks at the loops
HINT = (
    "if it should have come to rest by now, its body does not reach a fixed point: iterate(limit=...) bounds its "
    "rounds, iterate(patience=...) says after how many it is an error"
)
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoopRound:
    """A loop that is going: the time that it is at, and how many rows change there."""

    loop: str
    line: str
    time: Timestamp
    rows: int

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds of the loops around it, outermost first, and its own."""
        return self.time[1:]

    def __str__(self) -> str:
        rounds = "/".join(f"{number:,}" for number in self.rounds)
        return f"loop {self.loop!r}: round {rounds}, {self.rows:,} rows change"


def add_up(rounds: Iterable[LoopRound]) -> list[LoopRound]:
    """What several workers, or several ways back of one loop, say: of each loop the latest time, and its rows."""
    latest: dict[str, LoopRound] = {}
    for each in rounds:
        known = latest.get(each.loop)
        if known is None or each.time > known.time:
            latest[each.loop] = each
        elif each.time == known.time:
            latest[each.loop] = LoopRound(each.loop, known.line, known.time, known.rows + each.rows)
    return list(latest.values())


@dataclass(slots=True)
class _Watched:
    """A loop in an epoch: since when it goes, when it was said, and at which time it was then."""

    epoch: int
    since: float
    said: float | None = None
    at: Timestamp = ()


class LongLoops:
    """Follows the loops of a run. One thread at a time may call it; any may look at `going` and `status`."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self._told: Mapping[int, list[LoopRound]] = {}
        self._watched: dict[str, _Watched] = {}
        self._now = 0.0

    def hear(self, member: int, rounds: Iterable[LoopRound], now: float) -> None:
        """What a worker says of its loops; and say what is to be said."""
        self._told = {**self._told, member: list(rounds)}
        self._look(now)

    def forget(self, member: int) -> None:
        """A worker is gone."""
        self._told = {other: told for other, told in self._told.items() if other != member}

    def going(self, completed: int = 0) -> list[LoopRound]:
        """The loops that are going, all workers added up; the one with most rounds first.

        Epochs below `completed` are over, whatever was heard of them last.
        """
        told = add_up(each for rounds in self._told.values() for each in rounds)
        told = [each for each in told if each.time[0] >= completed]
        return sorted(told, key=lambda each: each.rounds[-1:], reverse=True)

    def status(self, completed: int = 0) -> list[dict[str, Any]]:
        """The loops that are going, for people."""
        watched = self._watched
        return [
            {
                "loop": each.loop,
                "line": each.line,
                "epoch": each.time[0],
                "rounds": list(each.rounds),
                "rows": each.rows,
                "seconds": round(self._now - watched[each.loop].since, 1)
                if each.loop in watched
                else 0.0,
            }
            for each in self.going(completed)
        ]

    def _look(self, now: float) -> None:
        self._now = now
        going = {each.loop: each for each in self.going()}
        for gone in self._watched.keys() - going.keys():
            del self._watched[gone]
        for loop, each in going.items():
            watched = self._watched.get(loop)
            if watched is None or watched.epoch != each.time[0]:
                self._watched[loop] = _Watched(each.time[0], now)
                continue
            due = watched.since + FIRST if watched.said is None else watched.said + AGAIN
            if now >= due and each.time > watched.at:
                watched.said, watched.at = now, each.time
                self._say(each, now - watched.since)

    def _say(self, each: LoopRound, seconds: float) -> None:
        rounds = "/".join(f"{number:,}" for number in each.rounds)
        self.events.record(
            "long loop",
            loop=each.loop,
            line=each.line,
            epoch=each.time[0],
            rounds=list(each.rounds),
            rows=each.rows,
            seconds=round(seconds, 1),
        )
        _LOG.warning(
            "the loop %r (%s) is still going after %.0f s, in epoch %d: in round %s, %s rows change. Hint: %s",
            each.loop, each.line, seconds, each.time[0], rounds, f"{each.rows:,}", HINT,
        )  # fmt: skip
