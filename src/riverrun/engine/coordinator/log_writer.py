"""The log writer: records on their way to the log, one at a time.

The coordinator's part of the log, sans I/O. The coordinator adds a record for each submitted epoch and for each
refusal, and sends the storage the records that the log writer hands out. The log writer also says what people are told
of records that wait (`remind`, `status`), and makes the error that ends the run when a record has waited for longer
than `storage_timeout`. Laws:

- **In order.** The storage has one record at a time, and gets the next record when the one before is known to be in the
  log. So a record is in the log only if all records before it are.
- **Outages are waited out.** After an error that is an outage (`retry.is_outage`), the coordinator sends the storage
  the same record again, at the same position, until the record is in the log or `storage_timeout` is over. Where only
  the answer was lost, appending the record again does nothing (the *repeatable* law of `storage.log`). Any other error
  ends the run: somebody else's record is at the position, or there is a defect.
- **Never withdrawn.** A record that waits stays in the queue, also when whoever waited for the record has given up.

>>> log = LogWriter(position=1, owner=0)
>>> first, second = (log.add({"kind": "epoch", "epoch": epoch}, {}) for epoch in (0, 1))
>>> first.position, second, log.waiting
(1, None, 2)
>>> log.done().position, log.durable
(2, 2)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from riverrun.engine.coordinator.outages import Outage
from riverrun.engine.messages import AppendRecord, Inputs, Notice
from riverrun.errors import TransportError

SLOW_ANSWER = 1.0  # seconds: `status` tells of an answer that takes longer


class LogWriter:
    """The records that are to be appended to the log, oldest first."""

    def __init__(self, position: int, owner: int) -> None:
        """`position` is that of the first record to come; every record names the `owner` of the log."""
        self.position = position
        """The position of the next record that is added."""
        self.durable = position
        """Records below this position are in the log."""
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
        """How many of the records that are not in the log are epochs."""
        return sum(record.header["kind"] == "epoch" for record in self._queue)

    def add(self, header: Mapping[str, Any], inputs: Inputs) -> AppendRecord | None:
        """Queue a record, and return the record that the storage is to get now, if any."""
        record = AppendRecord(self.position, {**header, "owner": self._owner}, inputs)
        self._queue.append(record)
        self.position += 1
        return self._hand_out() if len(self._queue) == 1 else None

    def is_next(self, record: AppendRecord) -> bool:
        """Whether this is the record that the storage has."""
        return bool(self._queue) and self._queue[0].position == record.position

    def done(self) -> AppendRecord | None:
        """The record that the storage had is in the log; return the next one that it is to get, if any."""
        self.durable = self._queue.popleft().position + 1
        return self._hand_out() if self._queue else None

    def _hand_out(self) -> AppendRecord:
        self._begun = self.now
        return self._queue[0]

    def remind(self, now: float) -> Notice | None:
        """What to tell people about records that wait, if it is time to."""
        if not self._queue or self._begun is None:
            return None
        if self.outage.since is None:
            return self.outage.silent(self._begun, now)
        return self.outage.remind(now, self._waiting_text())

    def timeout_error(self, storage_timeout: float | None, now: float) -> TransportError | None:
        """The error that ends the run, when a record has waited for longer than `storage_timeout`; otherwise None."""
        if not self._queue:
            return None
        if storage_timeout is not None and self.outage.since is None and self._begun is not None:
            if now - self._begun < max(storage_timeout, SLOW_ANSWER):
                return None
            self.outage.since = self._begun  # the storage hangs
        return self.outage.timeout_error(
            storage_timeout, now, f"log epoch {self._queue[0].header['epoch']}"
        )

    def status(self) -> dict[str, Any]:
        """How far the log is behind what was submitted."""
        behind, error = self.outage.behind(self.now), self.outage.error
        if behind is None and self._queue and self._begun is not None and self.now is not None:
            behind = self.now - self._begun if self.now - self._begun >= SLOW_ANSWER else None
        return {
            "lag": self.epochs,
            "bytes": self._bytes(),
            "behind": behind,
            "error": None if error is None else error.message,
        }

    def _bytes(self) -> int:
        return sum(batch.nbytes for record in self._queue for batch in record.inputs.values())

    def _waiting_text(self) -> str:
        count = len(self._queue)
        return f"{count} {'record waits' if count == 1 else 'records wait'}, {self._bytes()} bytes"
