"""An outage: the storage does not do something for a while, and what is said about it.

Nothing is given up because of one, unless `patience` says so: whoever carries instructions tries again, after the
pauses of `retry`, which also says what an outage is; the run goes on with all that does not need the storage. Sans I/O:
time comes in, and what is to be said goes out as a `Notice`. Laws:

1. **Said.** Once when it begins, again every 10 s, and once when it is over.
2. **Since.** `since` is when the first of the failures was that no success has followed; a storage that hangs, so that
   nothing fails and nothing succeeds, begins an outage when it has not answered for 10 s.

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
    """One thing that the storage may fail to do; `since` is None while it does it."""

    def __init__(self, what: str, then: str) -> None:
        self.since: float | None = None
        self.error: RiverrunError | None = None
        self.failures = 0
        """How often it failed since; a storage that hangs fails never."""
        self._what = what
        self._then = then
        self._said: float | None = None

    def failed(self, error: RiverrunError, now: float | None) -> Notice | None:
        """It failed, and is tried again."""
        first, self.error = self.error is None, error
        self.failures += 1
        if self.since is None:
            self.since = now
        if not first:
            return None
        self._said = now
        return Notice(logging.WARNING, f"{self._what}: {error.message}; {self._then}")

    def silent(self, since: float, now: float) -> Notice | None:
        """It was asked for at `since`, and has not been answered."""
        if self.since is None and now - since >= retry.REMIND:
            self.since = since
        return self.remind(now, self._then)

    def remind(self, now: float, waiting: str) -> Notice | None:
        """What is to be said, if it is time to."""
        if self.since is None or (self._said is not None and now - self._said < retry.REMIND):
            return None
        self._said = now
        why = "the storage does not answer" if self.error is None else self.error.message
        return Notice(
            logging.WARNING, f"{self._what} for {now - self.since:.0f} s: {why}; {waiting}"
        )

    def over(self, now: float | None) -> Notice | None:
        """It was done."""
        since, said = self.since, self.error is not None or self._said is not None
        self.since = self.error = self._said = None
        self.failures = 0
        if not said:
            return None
        took = "" if since is None or now is None else f" after {now - since:.0f} s"
        return Notice(logging.INFO, f"it is over{took}: {self._what}")

    def behind(self, now: float | None) -> float | None:
        """For how many seconds it has gone on."""
        return None if self.since is None or now is None else now - self.since

    def status(self, now: float | None) -> dict[str, Any]:
        """For how long, and why; None where nothing is wrong."""
        error = self.error
        return {"behind": self.behind(now), "error": None if error is None else error.message}

    def given_up(self, patience: float | None, now: float, what: str) -> TransportError | None:
        """The end of the run, when it has gone on for longer than anybody wants to wait."""
        behind = self.behind(now)
        if patience is None or behind is None or behind < patience:
            return None
        why = "it does not answer" if self.error is None else self.error.message
        error = TransportError(
            "storage.patience",
            f"cannot {what}: the storage has failed for {behind:.1f} s, tried {times(self.failures or 1)}, and "
            f"patience={patience:g}: {why}",
            hint="nothing that was committed is lost: mend the storage, and start the run again on the same path; rows "
            "of a commit that did not return may be in the log or not, which run.epoch tells then",
            seconds=behind,
            tries=self.failures or 1,
        )
        error.__cause__ = self.error
        return error
