"""Watching the storage: since when it fails to write the log or to read states, who is told, and when the run ends.

A part of the coordinator, sans I/O: the time comes in by `clock`, and each text for people goes out as a `Notice` to
the client. The log writer has the `Outage` of the log; the `Outage` of reading is here. Law:

- **Outages are waited out.** Nothing is given up while the storage fails, unless it fails for longer than
  `storage_timeout` seconds: then `watch` returns the error that is to end the run.

>>> watch = StorageWatch(LogWriter(0, 0), 5.0, lambda to, message: print(message.text))
>>> lost = TransportError("storage.unreachable", "no route", hint="")
>>> watch.watch(10.0), watch.read_failed(lost)
what a worker lost cannot be read from the storage: no route; it is tried again
(None, None)
>>> watch.watch(12.0), watch.watch(16.0).code
(None, 'storage.timeout')

Cost: two comparisons a tick.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from riverrun.engine.coordinator.log_writer import LogWriter
from riverrun.engine.coordinator.outages import Outage
from riverrun.engine.messages import CLIENT, Notice
from riverrun.errors import RiverrunError, TransportError


class StorageWatch:
    """What the storage fails to do for the coordinator, and for how long."""

    def __init__(
        self, log: LogWriter, storage_timeout: float | None, send: Callable[[int, Any], None]
    ) -> None:
        self._log = log
        self._reads = Outage(
            "what a worker lost cannot be read from the storage", "it is tried again"
        )
        self._storage_timeout = storage_timeout
        self._send = send
        self._now: float | None = None

    def clock(self, now: float) -> None:
        """What time it is, in seconds."""
        self._now = self._log.now = now

    def watch(self, now: float) -> TransportError | None:
        """It is `now`: tell people of outages; return the error that ends the run when one has gone on for too long."""
        self.clock(now)
        self._say(self._log.remind(now))
        self._say(self._reads.remind(now, "it is tried again"))
        error = self._log.timeout_error(self._storage_timeout, now)
        return error or self._reads.timeout_error(
            self._storage_timeout, now, "go back to a checkpoint"
        )

    def append_failed(self, error: RiverrunError) -> None:
        """A record could not be appended to the log."""
        self._say(self._log.outage.failed(error, self._now))

    def appended(self) -> None:
        """A record was appended to the log."""
        self._say(self._log.outage.over(self._now))

    def read_failed(self, error: RiverrunError) -> None:
        """States, or the rows of an epoch, could not be read."""
        self._say(self._reads.failed(error, self._now))

    def read(self) -> None:
        """All that had to be read was read."""
        if self._reads.error is not None:
            self._say(self._reads.over(self._now))

    def status(self) -> dict[str, Any]:
        """For how many seconds reading has failed, and its last error; both None where nothing is wrong."""
        return self._reads.status(self._now)

    def _say(self, notice: Notice | None) -> None:
        if notice is not None:
            self._send(CLIENT, notice)
