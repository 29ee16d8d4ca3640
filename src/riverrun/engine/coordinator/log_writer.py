"""Appending: the records on their way to the log, one at a time, for as long as it takes.

The coordinator's part of the log, sans I/O. Laws:

1. **In order.** One record is with the storage at a time, the next one when that is known to be there;
   so a record is in the log only if all before it are.
2. **An outage is no end.** A record that could not be appended is handed to the storage again, the same
   at the same position, which does nothing where only the answer was lost (law 3 of `state.log`). What is no
   outage (`retry.is_outage`) ends the run: somebody else's record at the position, and a defect.
3. **It keeps its number.** A record that waits is never withdrawn, whoever stopped waiting for it.

>>> appender = Appender(position=1, owner=0)
>>> first, second = (appender.add({"kind": "epoch", "epoch": epoch}, {}) for epoch in (0, 1))
>>> first.position, second, appender.waiting
(1, None, 2)
>>> appender.done().position, appender.durable
(2, 2)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from riverrun.engine.coordinator.outages import Outage
from riverrun.engine.messages import AppendRecord, Inputs, Notice
from riverrun.errors import TransportError

SLOW = 1.0  # seconds without an answer, from which on `status` tells


class Appender:
    """What is to be appended to the log."""

    def __init__(self, position: int, owner: int) -> None:
        self.position = position
        """That of the next record."""
        self.durable = position
        """Records below are in the log."""
        self.outage = Outage(
            "the log cannot be written",
            "commits wait until it can be, what is in the log is worked on",
        )
        self.now: float | None = None
        self._owner = owner
        self._queue: deque[AppendRecord] = deque()
        self._begun: float | None = None

    @property
    def waiting(self) -> int:
        """How many records are not in the log."""
        return len(self._queue)

    @property
    def epochs(self) -> int:
        """How many of them are epochs."""
        return sum(append.header["kind"] == "epoch" for append in self._queue)

    def add(self, header: Mapping[str, Any], inputs: Inputs) -> AppendRecord | None:
        """Queue a record; what to give to the storage now."""
        append = AppendRecord(self.position, {**header, "owner": self._owner}, inputs)
        self._queue.append(append)
        self.position += 1
        return self._hand_out() if len(self._queue) == 1 else None

    def is_next(self, append: AppendRecord) -> bool:
        """Whether an answer is about the record that is with the storage."""
        return bool(self._queue) and self._queue[0].position == append.position

    def done(self) -> AppendRecord | None:
        """The record is in the log; what to give to the storage next."""
        self.durable = self._queue.popleft().position + 1
        return self._hand_out() if self._queue else None

    def _hand_out(self) -> AppendRecord:
        self._begun = self.now
        return self._queue[0]

    def remind(self, now: float) -> Notice | None:
        """What is to be said about records that wait."""
        if not self._queue or self._begun is None:
            return None
        if self.outage.since is None:
            return self.outage.silent(self._begun, now)
        return self.outage.remind(now, self._told())

    def given_up(self, patience: float | None, now: float) -> TransportError | None:
        """The end of the run, when nobody wants to wait any longer."""
        if not self._queue:
            return None
        if patience is not None and self.outage.since is None and self._begun is not None:
            if now - self._begun < max(patience, SLOW):
                return None
            self.outage.since = self._begun  # it hangs
        return self.outage.given_up(patience, now, f"log epoch {self._queue[0].header['epoch']}")

    def status(self) -> dict[str, Any]:
        """How far the log is behind what was submitted."""
        behind, error = self.outage.behind(self.now), self.outage.error
        if behind is None and self._queue and self._begun is not None and self.now is not None:
            behind = self.now - self._begun if self.now - self._begun >= SLOW else None
        return {
            "lag": self.epochs,
            "bytes": self._bytes(),
            "behind": behind,
            "error": None if error is None else error.message,
        }

    def _bytes(self) -> int:
        return sum(batch.nbytes for append in self._queue for batch in append.inputs.values())

    def _told(self) -> str:
        count = len(self._queue)
        return f"{count} {'record waits' if count == 1 else 'records wait'}, {self._bytes()} bytes"
