"""Reach: the bounds of a request, the time that it waits for, and whether the state still has what it asks for.

Used by `fetch`. A request has bounds on the time of the data, in columns of its own. A state with a compaction rule
tells values apart only from some time on, which moves with F, the time that fetches have come to (`marks`). Laws:

- **Late.** A request whose upper bound is before F is late.
- **Beyond.** Where the rule of the fetch needs values told apart, a request whose lower bound is more than the margin
  of the compaction rule before F is beyond reach.
- **Kept for those that wait.** `needs` says from which time on a request needs values told apart, so that compaction
  leaves these alone while the request waits.

Without a compaction rule, or before fetches have come anywhere, every request is within reach.

Cost: some comparisons of NumPy arrays for each batch of requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from riverrun.errors import OperatorFailed, TimeViolation
from riverrun.operators.expire import ticks_of
from riverrun.operators.shared.rules import CompactRule, as_time
from riverrun.state.changes import Changes, Mask
from riverrun.state.columns import Ints

_FIRST, _LAST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True)
class Bounds:
    """The columns of a request with its bounds, whether the bounds themselves count, and the time it waits for."""

    since: int | None
    until: int | None
    closed: tuple[bool, bool] = (True, True)
    wait: int | None = None
    """None where a request is answered at once."""
    past: bool = True
    """Whether U has to pass the time of `wait`, or only to come to it."""

    @property
    def used(self) -> tuple[int, ...]:
        """All columns of a request that are times."""
        return tuple({at: None for at in (self.since, self.until, self.wait) if at is not None})

    def waits(self, requests: Changes) -> Ints:
        """The time that U has to pass, for each request; only where requests wait."""
        assert self.wait is not None
        ticks = ticks_of(requests.columns[self.wait])
        return ticks if self.past else np.maximum(ticks, _FIRST + 1) - 1

    def have_nulls(self, requests: Changes) -> bool:
        """Whether a time of a request is missing."""
        return any(requests.columns[at].null_count for at in self.used)

    def check(self, requests: Changes, names: dict[int, str], state: str, stream: str) -> None:
        """Refuse requests without a time; `names` are those of the columns, as users know them."""
        for at in self.used:
            times = requests.columns[at]
            if times.null_count:
                raise OperatorFailed(
                    "state.time_null",
                    f"cannot fetch from {state!r} for {stream}: {times.null_count} of "
                    f"{requests.rows} requests have no time in {names[at]!r}",
                    hint="filter them out, or fill in a time",
                    state=state,
                )


class Reach:
    """Which requests of one fetch are within reach."""

    def __init__(
        self, bounds: Bounds, compact: CompactRule | None, rule: str, *, committed: bool
    ) -> None:
        """`rule` is the name of the fetch's rule."""
        self._bounds = bounds
        self._compact = compact
        self._needs_apart = compact is not None and compact.limits(rule)
        self._committed = committed

    def is_limited(self, horizon: int | None) -> bool:
        """Whether a request can be out of reach, where fetches have come to `horizon`."""
        return self._compact is not None and horizon is not None

    def late(self, requests: Changes, horizon: int) -> Mask:
        """Which requests are late."""
        until = self._bounds.until
        if until is None:
            return np.zeros(requests.rows, np.bool_)
        return ticks_of(requests.columns[until]) < horizon

    def beyond(self, requests: Changes, horizon: int) -> Mask:
        """Which requests reach back further than values are kept."""
        since = self._bounds.since
        if since is None or self._compact is None or not self._needs_apart:
            return np.zeros(requests.rows, np.bool_)
        return ticks_of(requests.columns[since]) < horizon - self._compact.margin

    def out(self, requests: Changes, horizon: int) -> Mask:
        """Which requests are late, or reach back too far."""
        return self.late(requests, horizon) | self.beyond(requests, horizon)

    def check(self, requests: Changes, horizon: int, state: str) -> None:
        """Refuse requests that reach back too far."""
        if not self.beyond(requests, horizon).any():
            return
        compact, since = self._compact, self._bounds.since
        assert compact is not None
        assert since is not None
        times = requests.columns[since]
        reach = max(horizon - compact.margin, _FIRST)
        raise TimeViolation(
            "state.reaches_back",
            f"cannot fetch from {state!r} since {as_time(int(ticks_of(times).min()), times.type)}: its compaction "
            f"({compact.name}) keeps all values from {as_time(reach, times.type)} on only, now that fetches have "
            f"come to {as_time(horizon, times.type)}",
            hint="fetch a shorter range, or keep more: rr.rules.drop_before(span) with the longest range there is",
            state=state,
        )

    def needs(self, requests: Changes) -> Ints | None:
        """From which time on each request needs values told apart; None: no request needs any."""
        compact, bounds = self._compact, self._bounds
        if compact is None or not requests.rows:
            return None
        needed = []
        if bounds.until is not None and not self._committed:
            needed.append(ticks_of(requests.columns[bounds.until]))
        if bounds.since is not None and self._needs_apart:
            first = ticks_of(requests.columns[bounds.since])
            needed.append(np.minimum(first, _LAST - compact.margin) + compact.margin)
        return np.minimum.reduce(needed) if needed else None
