"""Events: what has happened to a run, newest last, for people and for programs that watch it.

An event has a kind, the wall clock, and fields. The last `KEPT` are kept. Kinds: ``started``, ``lost`` (a worker),
``recovered``, ``scaled``, ``slow worker``, ``slow code``, ``long loop``, ``moved`` (shares), ``checkpoint``,
``trouble``, ``refused`` (an epoch), ``closed``, ``late`` (rows of a stream that a state or an expiry dropped; one
event for each stream, with how many in all), ``no time`` (rows that expire and have no time to expire by, likewise).

>>> events = Events()
>>> _ = events.record("lost", worker=1, why="killed")
>>> [(event["kind"], event["worker"]) for event in events.list()]
[('lost', 1)]
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

KEPT = 1000
KINDS = (
    "started",
    "lost",
    "recovered",
    "scaled",
    "slow worker",
    "slow code",
    "long loop",
    "moved",
    "checkpoint",
    "trouble",
    "refused",
    "closed",
    "late",
    "no time",
)


class Events:
    """The last events of a run. Threads may share it."""

    def __init__(self) -> None:
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def record(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Something has happened. The event can be added to when more is known of it."""
        event = {"kind": kind, "at": time.time(), **fields}
        self._kept.append(event)
        return event

    def add(self, kind: str, rows: int, **fields: Any) -> None:
        """Something has happened to some rows: one event for all that agree in the other fields."""
        for event in self._kept:
            if event["kind"] == kind and all(event.get(name) == fields[name] for name in fields):
                self._kept.remove(event)
                self.record(kind, rows=event["rows"] + rows, **fields)
                return
        self.record(kind, rows=rows, **fields)

    def list(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What has happened, oldest first."""
        return [dict(event) for event in list(self._kept) if kind in (None, event["kind"])]
