"""Signs of life: what workers say of themselves, and what follows from it.

A run on other processes has one `Health`, which takes in every sign of life of every worker. A worker that is silent is
presumed dead: that is for `Membership.silent`. A worker that gives signs of life and has been in the same call of
somebody's code for long is *slow*, not dead: it is reported, and waited for. A worker that is busy for much longer than
the others is a straggler (`balance`): it is reported too, and where the user allows it shares move away from it, or a
worker is added (`oversight`).

In the example nothing is known yet of how busy the worker is: that is a part of the time, and takes signs over some
seconds (`balance`).

>>> health = Health(Events())
>>> health.beat(7, touched=100, busy=12.0, doing="parse", seconds=12.0, now=0.0)
>>> health.about(7)
{'busy': None, 'doing': 'parse', 'for': 12.0}
>>> [(event["kind"], event["node"]) for event in health.events.list()]
[('slow code', 'parse')]

Cost: a few operations for each sign of life.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from riverrun.engine.events import Events
from riverrun.runtime.health.balance import Balancer, Straggler

SLOW_CALL = 10.0  # seconds; a longer call is reported, and again whenever its time has doubled
REPEAT = 30.0  # seconds until a straggler is reported again
_LOG = logging.getLogger(__name__)

Balance: TypeAlias = Literal["report", "move", "grow"]
"""What is done about a straggler: it is reported; with "move" shares move away from it besides; with "grow" a worker is
added."""


@dataclass(slots=True)
class _Sign:
    """The last sign of life of a worker: how many changes it made, the node it is in, and for how many seconds."""

    touched: int
    doing: str | None
    seconds: float
    report_at: float = SLOW_CALL
    """The call is reported when it takes so many seconds."""


class Health:
    """Follows the signs of life of workers, by their incarnations."""

    def __init__(self, events: Events, balance: Balance = "report", most: int = 0) -> None:
        """Reports are recorded in `events`."""
        self.events = events
        self.balance = balance
        self.most = most
        """The greatest number of workers that "grow" may bring the run to."""
        self._signs: dict[int, _Sign] = {}
        self._balancer = Balancer()
        self._reported_at = -REPEAT

    def beat(
        self, member: int, touched: int, busy: float, doing: str | None, seconds: float, now: float
    ) -> None:
        """Take in a sign of life of a worker.

        The worker has made `touched` changes in this execution, was busy for so many seconds since it began, and has
        been in a call of the node `doing`, if any, for `seconds`.
        """
        before = self._signs.get(member)
        report_at = SLOW_CALL
        if before is not None and before.doing == doing and seconds >= before.seconds:
            report_at = before.report_at
        if doing is not None and seconds >= report_at:
            report_at = seconds * 2
            self.events.record("slow code", member=member, node=doing, seconds=round(seconds, 1))
            _LOG.warning(
                "worker %d has been in %r for %.0f s: it lives, and is waited for",
                member,
                doing,
                seconds,
            )
        self._signs[member] = _Sign(touched, doing, seconds, report_at)
        self._balancer.observe(member, busy, now, touched)

    def forget(self, member: int) -> None:
        """A worker is gone: forget its last sign of life."""
        self._signs.pop(member, None)

    def changed(self) -> None:
        """Workers or shares have changed: forget how busy each was."""
        self._balancer.forget()

    @property
    def touched(self) -> int:
        """How many changes all workers have made in this execution, by their last signs."""
        return sum(sign.touched for sign in self._signs.values())

    def about(self, member: int) -> dict[str, Any]:
        """For which part of the time a worker is busy, and the node whose call it is in, for how many seconds."""
        sign, busy = self._signs.get(member), self._balancer.busy(member)
        slow = sign is not None and sign.doing is not None and sign.seconds >= 1
        return {
            "busy": None if busy is None else round(busy, 3),
            "doing": sign.doing if sign is not None and slow else None,
            "for": sign.seconds if sign is not None and slow else 0.0,
        }

    def straggler(
        self, members: Sequence[int], shares: Sequence[float], now: float
    ) -> Straggler | None:
        """Report the straggler, if there is one, and return it if something is to be done about it."""
        straggler = self._balancer.look(members, shares, now)
        if straggler is None:
            return None
        if now - self._reported_at >= REPEAT or self.balance != "report":
            self._reported_at = now
            self.events.record(
                "slow worker",
                worker=straggler.index,
                busy=round(straggler.busy, 2),
                others=round(straggler.others, 2),
                in_vain=straggler.in_vain,
            )
            _LOG.warning(
                "worker %d is busy %.0f %% of the time, the others %.0f %%%s",
                straggler.index, straggler.busy * 100, straggler.others * 100,
                ": other shares have not helped" if straggler.in_vain else "",
            )  # fmt: skip
        if self.balance == "report" or straggler.in_vain:
            return None
        if self.balance == "grow" and len(members) >= self.most:
            return None
        self._balancer.moved(straggler)
        return straggler
