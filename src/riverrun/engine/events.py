"""Events: what has happened to a run, newest last, for people and for programs that watch the run.

Users read them by `run.events`. An event has a kind, a time of the wall clock, and fields. A run remembers its last
`CAPACITY` events. Kinds: ``lost`` (a worker), ``recovered``, ``scaled``, ``slow worker``, ``slow code``,
``long loop``, ``moved`` (shares), ``checkpoint``, ``loop saved`` (between two rounds), ``loop resumed``, ``trouble``,
``refused`` (an epoch), ``late`` (rows of a stream that a state or an expiry dropped; one event for each stream, with
the number of all its rows so far), ``no time`` (rows that expire and have no time to expire by, likewise).

>>> events = Events()
>>> _ = events.record("lost", worker=1, why="killed")
>>> [(event["kind"], event["worker"]) for event in events.list()]
[('lost', 1)]
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

CAPACITY = 1000
KINDS = (
    "lost",
    "recovered",
    "scaled",
    "slow worker",
    "slow code",
    "long loop",
    "moved",
    "checkpoint",
    "loop saved",
    "loop resumed",
    "trouble",
    "refused",
    "late",
    "no time",
)


class Events:
    """The last events of a run. Threads may share it."""

    def __init__(self) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=CAPACITY)

    def record(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Record an event, and return it: fields can be added when more is known."""
        event = {"kind": kind, "at": time.time(), **fields}
        self._events.append(event)
        return event

    def add(self, kind: str, rows: int, **fields: Any) -> None:
        """Record an event about a number of rows; it absorbs an earlier event with the same kind and other fields."""
        for event in self._events:
            if event["kind"] == kind and all(event.get(name) == fields[name] for name in fields):
                self._events.remove(event)
                self.record(kind, rows=event["rows"] + rows, **fields)
                return
        self.record(kind, rows=rows, **fields)

    def list(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The events, or those of one kind, oldest first."""
        return [dict(event) for event in list(self._events) if kind in (None, event["kind"])]
