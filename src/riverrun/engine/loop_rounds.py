"""Long loops: warnings about loops that an epoch does not come out of, before anybody has to ask.

Every worker knows the round of each of its loops (`Instance.loops`). A run in this process asks its workers about once
a second; workers in other processes report their rounds with their signs of life. A `LongLoops` adds up the reports of
the workers, logs a warning and records an event, both with the round and with how many rows still change. (The
``rounds`` of an event begin with those of the loops around the loop; its own round is the last.) Laws:

- **Early.** People are warned of a loop that has been in one epoch for `FIRST` seconds, by name and with the user's
  line, and again every `AGAIN` seconds while the rounds of the loop go on. While a loop stays in one round there is no
  further warning here: `health` reports a single call that takes long.
- **All workers.** The round is the latest round of any worker; the rows are all rows that change in it, on all workers.
- **One name.** A warning names a loop, and the user's line, as the error of a loop that diverges does.

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

FIRST = 10.0  # seconds in a loop before the first warning
AGAIN = 30.0  # seconds between two warnings
LOOK = 1.0  # seconds between two looks of a worker at its loops
HINT = (
    "if it should have come to rest by now, its body does not reach a fixed point: iterate(rounds=...) stops it "
    "with a result, iterate(patience=...) says after how many it is an error"
)
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoopRound:
    """A loop that is under way: its time, and how many rows change at that time."""

    loop: str
    line: str
    time: Timestamp
    rows: int

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds of the loops around this loop, outermost first, and its own round."""
        return self.time[1:]

    def __str__(self) -> str:
        rounds = "/".join(f"{number:,}" for number in self.rounds)
        return f"loop {self.loop!r}: round {rounds}, {self.rows:,} rows change"


def add_up(rounds: Iterable[LoopRound]) -> list[LoopRound]:
    """Add up reports of several workers, or of several ways back of one loop: the latest time, and all its rows."""
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
    """A loop in an epoch: when it began, when the last warning was, and the time of the loop at that warning."""

    epoch: int
    since: float
    said: float | None = None
    at: Timestamp = ()


class LongLoops:
    """Follows the loops of a run. One thread at a time may call `hear` and `forget`, any thread the others."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self._reported: Mapping[int, list[LoopRound]] = {}
        self._watched: dict[str, _Watched] = {}
        self._now = 0.0

    def hear(self, member: int, rounds: Iterable[LoopRound], now: float) -> None:
        """Take the report of a worker about its loops, and warn of loops if it is time to."""
        self._reported = {**self._reported, member: list(rounds)}
        self._look(now)

    def forget(self, member: int) -> None:
        """A worker is gone."""
        self._reported = {
            other: rounds for other, rounds in self._reported.items() if other != member
        }

    def going(self, completed: int = 0) -> list[LoopRound]:
        """The loops under way, all workers added up; the loop with most rounds first.

        Epochs below `completed` are over, whatever the last reports say of them.
        """
        rounds = add_up(each for reported in self._reported.values() for each in reported)
        rounds = [each for each in rounds if each.time[0] >= completed]
        return sorted(rounds, key=lambda each: each.rounds[-1:], reverse=True)

    def status(self, completed: int = 0) -> list[dict[str, Any]]:
        """The loops under way, for people."""
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
