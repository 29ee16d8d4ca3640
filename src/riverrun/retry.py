"""Retry: which failures are tried again, after how long, until when, and what is logged meanwhile.

This is the one policy for all retries: uploads of rows, readers of results, workers that store parcels, sinks, leases,
the log. A caller that may block calls `persist`. A caller that may not block keeps a `Tries`, to which it passes the
time, or asks `pause` after how many seconds to try again. Laws:

- **Outages only.** `is_outage` is the one definition of a failure that trying again can mend: a process or a storage
  cannot be reached for now, or a storage refuses access for now (rights are mended while a run goes on). Every other
  error is raised at once, unchanged.
- **A deadline, not a count.** An act is tried again until it has failed for `deadline` seconds in a row, however often
  that is. The last try is made at the deadline.
- **Apart.** Pauses grow from 50 ms to 2 s, and each is drawn between half of that and all of it, so that callers that
  failed together do not try again together.
- **Logged.** Nothing is logged in the first 3 seconds. Then there is a warning, another one every 10 seconds, and a
  line when the act has succeeded.
- **Accounted for.** The error at the deadline says for how many seconds and how often the act was tried; its cause is
  the error of the last try. The error at the deadline is no outage itself, so no caller tries again for another
  `deadline` seconds.

>>> tries = Tries("read 'counts'", deadline=5.0, chance=lambda: 1.0)
>>> lost = TransportError("transport.unreachable", "worker 2 does not answer", hint="wait")
>>> [tries.failed(lost, now) for now in (100.0, 100.2, 104.0)]
[0.05, 0.1, 0.2]
>>> tries.notice(104.0)
"cannot read 'counts' for 4 s, tried 3 times: worker 2 does not answer; it is tried again for 1 s more"
>>> tries.failed(lost, 105.0)
Traceback (most recent call last):
riverrun.errors.TransportError: cannot read 'counts': tried 4 times in 5.0 s: worker 2 does not answer
Hint: wait

Cost: nothing while nothing fails.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from typing import TypeVar

from riverrun import interrupts
from riverrun.errors import CheckpointError, RiverrunError, TransportError

DEADLINE = 300.0
"""Seconds that an act may fail in a row, by default."""
SOON = 10.0
"""Seconds that an act may fail at the start of a run, where a user waits and nothing is lost."""
QUIET = 3.0  # seconds in which nothing is logged
REMIND = 10.0  # seconds between warnings
DELAYS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 2.0)
"""Seconds before the next try, at most: after the first failure, after the second, and so on."""

FINAL = frozenset(
    {
        "retry.deadline",
        "run.address",
        "run.losing",
        "run.no_newcomer",
        "run.not_ready",
        "run.versions",
        "sink.unreachable",
        "spark.stopped",
        "storage.timeout",
        "transport.parcel_lost",
        "transport.question",
        "transport.token",
    }
)
"""Codes of a `TransportError` that is no outage: the act was tried for long enough already, or was refused."""

_CHANCE = random.Random()  # not the shared source of `random`, which the user may have seeded
_LOG = logging.getLogger(__name__)
T = TypeVar("T")


def is_outage(error: BaseException) -> bool:
    """Whether an act that failed with this error may succeed later: a process or a storage cannot be reached, or the
    storage refuses access for now (rights and credentials are mended while a run goes on)."""
    if isinstance(error, TransportError):
        return error.code not in FINAL
    return isinstance(error, CheckpointError) and error.code == "checkpoint.refused"


def pause(failures: int, chance: Callable[[], float] = _CHANCE.random) -> float:
    """How many seconds to wait after so many failures in a row; 0 after none."""
    if not failures:
        return 0.0
    return DELAYS[min(failures, len(DELAYS)) - 1] * (1 + chance()) / 2


class Tries:
    """The tries of one act. Sans I/O: nothing here waits, and callers pass the time."""

    def __init__(
        self,
        what: str,
        *,
        deadline: float | None = None,
        code: str = "retry.deadline",
        chance: Callable[[], float] = _CHANCE.random,
    ) -> None:
        """`what` completes "cannot ..."; `deadline` is in seconds, by default `DEADLINE`, `math.inf` for no end; the
        error at the deadline has that `code`, one of `FINAL`."""
        self.what = what
        self.failures = 0
        self.since: float | None = None
        """When the present row of failures began; None after a success."""
        self.error: RiverrunError | None = None
        self._deadline = DEADLINE if deadline is None else deadline
        self._code = code
        self._chance = chance
        self._said: float | None = None

    def failed(self, error: BaseException, now: float) -> float:
        """How many seconds to wait before the next try. Raises `error` if it is no outage, and the error that accounts
        for all tries at the deadline."""
        if not is_outage(error):
            raise error
        assert isinstance(error, RiverrunError)
        self.failures += 1
        self.error = error
        if self.since is None:
            self.since = now
        left = self.since + self._deadline - now
        if left <= 0:
            raise self._exhausted(error, now) from error
        return min(pause(self.failures, self._chance), left)

    def notice(self, now: float) -> str | None:
        """The warning to log while the act fails; None while it is not time for one."""
        since = self.since
        if since is None or self.error is None or now - since < QUIET:
            return None
        if self._said is not None and now - self._said < REMIND:
            return None
        self._said = now
        left = since + self._deadline - now
        until = "" if math.isinf(left) else f" for {max(left, 0):.0f} s more"
        return (
            f"cannot {self.what} for {now - since:.0f} s, tried {times(self.failures)}: {self.error.message}; it is "
            f"tried again{until}"
        )

    def succeeded(self, now: float) -> str | None:
        """Note that the act has succeeded; return the line to log, if a warning was logged before."""
        since, said, failures = self.since, self._said, self.failures
        self.failures, self.since, self.error, self._said = 0, None, None, None
        if said is None or since is None:
            return None
        return f"could {self.what} after {now - since:.0f} s, at try {failures + 1}"

    def _exhausted(self, error: RiverrunError, now: float) -> TransportError:
        assert self.since is not None
        seconds = now - self.since
        return TransportError(
            self._code,
            f"cannot {self.what}: tried {times(self.failures)} in {seconds:.1f} s: {error.message}",
            hint=error.hint,
            story=error.story,
            seconds=seconds,
            tries=self.failures,
            last=error.code,
        )


def persist(
    act: Callable[[], T],
    what: str,
    *,
    deadline: float | None = None,
    code: str = "retry.deadline",
    wait: Callable[[float], object] = interrupts.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """The result of `act`, which is tried again in outages; `what` and `deadline` as for `Tries`.

    `wait` pauses; where it returns True, as `Event.wait` does, the result is not wanted any more, and the last error is
    raised.

    >>> import itertools
    >>> answers = iter([TransportError("storage.unreachable", "away", hint=""), "here"])
    >>> def act():
    ...     if isinstance(answer := next(answers), TransportError):
    ...         raise answer
    ...     return answer
    >>> persist(act, "read it", wait=lambda seconds: None)
    'here'
    """
    tries = Tries(what, deadline=deadline, code=code)
    while True:
        try:
            result = act()
        except RiverrunError as error:
            seconds = tries.failed(error, clock())
            say(tries, clock())
            if wait(seconds) is True:
                raise
        else:
            notice = tries.succeeded(clock())
            if notice is not None:
                _LOG.info("%s", notice)
            return result


def say(tries: Tries, now: float) -> None:
    """Log the warning that is due while an act fails, if any."""
    notice = tries.notice(now)
    if notice is not None:
        _LOG.warning("%s", notice)


def times(count: int) -> str:
    """How often something was tried, in words."""
    return "once" if count == 1 else f"{count} times"
