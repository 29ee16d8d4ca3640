"""Retry: which failures are tried again, after how long, until when, and what is said meanwhile.

The one policy for all who try again: tasks that hand rows in, readers of results, workers that store what
they were handed, sinks, leases, the owner of a log. A caller that may block calls `persist`. A caller
that may not block keeps a `Tries`, to which the time comes in, or asks `pause` after how many seconds to
try again. Laws:

- **Outages only.** `is_outage` is the one definition of what trying again can mend: a process or a storage
  that cannot be reached for now. Every other error is raised at once, as it is.
- **A deadline, not a count.** An act is tried again until it has failed for `deadline` seconds in a row,
  however often that is. The last try is made at the deadline.
- **Apart.** Pauses grow from 50 ms to 2 s, and each is drawn between half of that and all of it: those
  who failed together do not come back together.
- **Said.** Nothing is said in the first 3 seconds. Then there is a warning, another one every 10 seconds,
  and a line when the act has succeeded.
- **Accounted for.** The last error says for how many seconds and how often was tried; its cause is the
  error of the last try. It is no outage itself, so that nobody tries for another `deadline` seconds.

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
"""Seconds that an act may fail in a row, where the caller knows no better."""
SOON = 10.0
"""The same for an act at the start of a run, where somebody waits and nothing is lost."""
QUIET = 3.0  # seconds in which nothing is said
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
"""Codes of a `TransportError` that trying again cannot mend: somebody has tried for long enough, or was refused."""

_CHANCE = random.Random()  # of its own: the one that all share may have been seeded by the user
_LOG = logging.getLogger(__name__)
T = TypeVar("T")


def is_outage(error: BaseException) -> bool:
    """Whether an act that failed so may succeed later: a process or a storage cannot be reached, or the storage does
    not let us in for now (rights and credentials are mended while a run goes on)."""
    if isinstance(error, TransportError):
        return error.code not in FINAL
    return isinstance(error, CheckpointError) and error.code == "checkpoint.refused"


def pause(failures: int, chance: Callable[[], float] = _CHANCE.random) -> float:
    """How many seconds to wait after so many failures in a row; none after none."""
    if not failures:
        return 0.0
    return DELAYS[min(failures, len(DELAYS)) - 1] * (1 + chance()) / 2


class Tries:
    """The tries of one act. Sans I/O: it waits for nobody, and is told the time."""

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
        """When the first of the failures was that no success has followed."""
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
            raise self._given_up(error, now) from error
        return min(pause(self.failures, self._chance), left)

    def notice(self, now: float) -> str | None:
        """What is to be said while it fails, if it is time to."""
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
        """The act is done: what is to be said to those who heard that it failed."""
        since, said, failures = self.since, self._said, self.failures
        self.failures, self.since, self.error, self._said = 0, None, None, None
        if said is None or since is None:
            return None
        return f"could {self.what} after {now - since:.0f} s, at try {failures + 1}"

    def _given_up(self, error: RiverrunError, now: float) -> TransportError:
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
    """What `act` gives, tried again in outages; `what` and `deadline` as for `Tries`.

    `wait` pauses; where it gives True, as `Event.wait` does, nobody wants the result any more, and the last
    error is raised.

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
            told = tries.succeeded(clock())
            if told is not None:
                _LOG.info("%s", told)
            return result


def say(tries: Tries, now: float) -> None:
    """Log what is to be said while an act fails."""
    told = tries.notice(now)
    if told is not None:
        _LOG.warning("%s", told)


def times(count: int) -> str:
    """How often something was tried, in words."""
    return "once" if count == 1 else f"{count} times"
