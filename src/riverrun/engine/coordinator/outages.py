"""Outages: for a while the storage does not do something, and people are told so.

The coordinator has one `Outage` for writing the log and one for reading what a lost worker had. During an outage
nothing is given up, unless the user has set `storage_timeout`: a failed instruction is sent to the storage again, and
the run goes on with all that does not need the storage. The cluster delivers a failure only after a pause (`retry`,
which also says which errors are outages). Sans I/O: the time comes in as an argument, and each text for people goes out
as a `Notice`. Laws:

- **Reminders.** People are told when an outage begins, again every 10 s, and when it is over, if they were told of it.
- **Begins with the first failure.** `since` is the time of the first failure that no success has followed. A storage
  that hangs neither fails nor succeeds: its outage begins, at the time of the request, once 10 s have passed without an
  answer.

>>> outage = Outage("the log cannot be written", "commits wait")
>>> lost = TransportError("storage.unreachable", "cannot create log/7: no space left", hint="")
>>> outage.failed(lost, now=100.0).text
'the log cannot be written: cannot create log/7: no space left; commits wait'
>>> (
...     outage.failed(lost, now=100.1),
...     outage.remind(105.0, ""),
...     outage.remind(110.0, "1 epoch waits").text,
... )
(None, None, 'the log cannot be written for 10 s: cannot create log/7: no space left; 1 epoch waits')
>>> outage.over(112.0).text, outage.over(113.0)
('it is over after 12 s: the log cannot be written', None)
"""

from __future__ import annotations

import logging
from typing import Any

from riverrun import retry
from riverrun.engine.messages import Notice
from riverrun.errors import RiverrunError, TransportError
from riverrun.retry import times


class Outage:
    """One thing that the storage may fail to do; `since` is None while the storage does it."""

    def __init__(self, what: str, then: str) -> None:
        """`what` is a sentence for people that names the failure, `then` one that names its consequence."""
        self.since: float | None = None
        self.error: RiverrunError | None = None
        self.failures = 0
        """How often the storage has failed since; a storage that hangs never fails."""
        self._what = what
        self._then = then
        self._said_at: float | None = None

    def failed(self, error: RiverrunError, now: float | None) -> Notice | None:
        """The storage has failed, and is asked again; what to tell people, at the first failure."""
        first, self.error = self.error is None, error
        self.failures += 1
        if self.since is None:
            self.since = now
        if not first:
            return None
        self._said_at = now
        return Notice(logging.WARNING, f"{self._what}: {error.message}; {self._then}")

    def silent(self, since: float, now: float) -> Notice | None:
        """The storage was asked at `since` and has not answered; what to tell people, if it is time to."""
        if self.since is None and now - since >= retry.REMIND:
            self.since = since
        return self.remind(now, self._then)

    def remind(self, now: float, waiting: str) -> Notice | None:
        """What to tell people about an outage that goes on, if it is time to; `waiting` says what waits for it."""
        if self.since is None or (self._said_at is not None and now - self._said_at < retry.REMIND):
            return None
        self._said_at = now
        why = "the storage does not answer" if self.error is None else self.error.message
        return Notice(
            logging.WARNING, f"{self._what} for {now - self.since:.0f} s: {why}; {waiting}"
        )

    def over(self, now: float | None) -> Notice | None:
        """The storage has done it; what to tell people, if they know of the outage."""
        since, said = self.since, self.error is not None or self._said_at is not None
        self.since = self.error = self._said_at = None
        self.failures = 0
        if not said:
            return None
        took = "" if since is None or now is None else f" after {now - since:.0f} s"
        return Notice(logging.INFO, f"it is over{took}: {self._what}")

    def behind(self, now: float | None) -> float | None:
        """For how many seconds the outage has gone on; None where there is none."""
        return None if self.since is None or now is None else now - self.since

    def status(self, now: float | None) -> dict[str, Any]:
        """For how many seconds the outage has gone on, and its last error; both None where nothing is wrong."""
        error = self.error
        return {"behind": self.behind(now), "error": None if error is None else error.message}

    def timeout_error(
        self, storage_timeout: float | None, now: float, what: str
    ) -> TransportError | None:
        """The error that ends the run, when the outage has lasted longer than `storage_timeout`; otherwise None."""
        behind = self.behind(now)
        if storage_timeout is None or behind is None or behind < storage_timeout:
            return None
        why = "it does not answer" if self.error is None else self.error.message
        error = TransportError(
            "storage.timeout",
            f"cannot {what}: the storage has failed for {behind:.1f} s, tried {times(self.failures or 1)}, and "
            f"storage_timeout={storage_timeout:g}: {why}",
            hint="nothing that was committed is lost: mend the storage, and start the run again on the same path; rows "
            "of a commit that did not return may be in the log or not, which run.epoch tells then",
            seconds=behind,
            tries=self.failures or 1,
        )
        error.__cause__ = self.error
        return error
