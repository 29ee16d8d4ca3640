"""Health: what workers say of themselves with every sign of life, and what follows from it.

A worker that is silent is presumed dead (`Roster.silent`). One that gives signs of life and is in
the same call of somebody's code for long is *slow*, not dead: that is reported, and waited for. A
worker that is busy for much longer than the others is a straggler (`balancing`): that is reported
too, and where the user allows it shares move, or a worker is added.

>>> health = Health(Events())
>>> health.beat(7, touched=100, busy=12.0, doing="parse", seconds=12.0, now=0.0)
>>> health.about(7)
{'busy': None, 'doing': 'parse', 'for': 12.0}
>>> [(event["kind"], event["node"]) for event in health.events.list()]
[('slow code', 'parse')]
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from riverrun.engine.events import Events
from riverrun.runtime.health.balance import Balancer, Slow

SLOW = 10.0  # seconds in one call, after which it is said; and again whenever that has doubled
AGAIN = 30.0  # seconds until the same straggler is named again
_LOG = logging.getLogger(__name__)

Balance: TypeAlias = Literal["report", "move", "grow"]
"""What is done about a straggler: it is reported; besides, shares move away from it; or a worker is added."""


@dataclass(slots=True)
class _Sign:
    """The last sign of life."""

    touched: int
    doing: str | None
    seconds: float
    said: float = SLOW


class Health:
    """Follows the signs of life of workers."""

    def __init__(self, events: Events, balance: Balance = "report", most: int = 0) -> None:
        self.events = events
        self.balance = balance
        self.most = most
        """The number of workers to which "grow" may grow."""
        self._signs: dict[int, _Sign] = {}
        self._balancer = Balancer()
        self._named = -AGAIN

    def beat(
        self, member: int, touched: int, busy: float, doing: str | None, seconds: float, now: float
    ) -> None:
        """A sign of life: how much was done, for how long it was busy, and what it is in, since when."""
        before = self._signs.get(member)
        said = SLOW
        if before is not None and before.doing == doing and seconds >= before.seconds:
            said = before.said
        if doing is not None and seconds >= said:
            said = seconds * 2
            self.events.record("slow code", member=member, node=doing, seconds=round(seconds, 1))
            _LOG.warning(
                "worker %d has been in %r for %.0f s: it lives, and is waited for",
                member,
                doing,
                seconds,
            )
        self._signs[member] = _Sign(touched, doing, seconds, said)
        self._balancer.observe(member, busy, now, touched)

    def forget(self, member: int) -> None:
        """A worker is gone."""
        self._signs.pop(member, None)

    def changed(self) -> None:
        """Workers or shares are others now."""
        self._balancer.forget()

    @property
    def touched(self) -> int:
        """How many changes all workers have made."""
        return sum(sign.touched for sign in self._signs.values())

    def about(self, member: int) -> dict[str, Any]:
        """Which part of the time a worker is busy, and what it is in, for how many seconds."""
        sign, busy = self._signs.get(member), self._balancer.busy(member)
        slow = sign is not None and sign.doing is not None and sign.seconds >= 1
        return {
            "busy": None if busy is None else round(busy, 3),
            "doing": sign.doing if sign is not None and slow else None,
            "for": sign.seconds if sign is not None and slow else 0.0,
        }

    def straggler(self, members: Sequence[int], shares: Sequence[float], now: float) -> Slow | None:
        """A straggler about whom something is to be done; all are reported."""
        slow = self._balancer.look(members, shares, now)
        if slow is None:
            return None
        if now - self._named >= AGAIN or self.balance != "report":
            self._named = now
            self.events.record(
                "slow worker",
                worker=slow.index,
                busy=round(slow.busy, 2),
                others=round(slow.others, 2),
                in_vain=slow.in_vain,
            )
            _LOG.warning(
                "worker %d is busy %.0f %% of the time, the others %.0f %%%s",
                slow.index, slow.busy * 100, slow.others * 100,
                ": other shares have not helped" if slow.in_vain else "",
            )  # fmt: skip
        if self.balance == "report" or slow.in_vain:
            return None
        if self.balance == "grow" and len(members) >= self.most:
            return None
        self._balancer.moved(slow)
        return slow
