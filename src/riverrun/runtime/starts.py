"""Starts: the processes that were started for workers, and which worker each of them has become.

Used by `remote.RemoteCluster`, under its lock. A process is started with a *ticket*, which says nothing about who it
will be: the first that asks is granted the incarnation that has waited longest. Laws:

- **Granted once.** An incarnation is granted to one process. So a process that was started twice gets another
  incarnation, or none.
- **Bounded.** After `STARTS` processes in a row that ended before they were anybody, while somebody was waited for, it
  is enough. Before that each is followed by another one. An incarnation that is granted ends the row.

>>> class Silent:
...     def start(self, ticket):
...         print("start", ticket)
>>> starts = Starts(Silent())
>>> starts.call(7)
start 1
>>> starts.ended(1), starts.is_short, starts.try_again()
(None, True, True)
>>> starts.call_again()
start 2
>>> starts.grant(2), starts.grant(2), starts.who(2), starts.tickets_of(7)
(7, None, 7, [2])
>>> starts.ended(2), starts.is_short
(7, False)

Cost: nothing besides the process.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

STARTS = 3  # processes that may end before they were anybody, in a row


class Starter(Protocol):
    """Starts a process."""

    def start(self, ticket: int) -> None:
        """Start one under a ticket; does not wait."""


class Starts:
    """The processes that a launcher has started."""

    def __init__(self, launcher: Starter) -> None:
        self._launcher = launcher
        self._ungranted: deque[int] = deque()
        self._tickets: dict[int, int | None] = {}
        """Of each process that lives, who it is."""
        self._last_ticket = 0
        self._false_starts = 0

    def __len__(self) -> int:
        """How many processes live."""
        return len(self._tickets)

    def __repr__(self) -> str:
        return f"<Starts: not granted {list(self._ungranted)}, processes {self._tickets}>"

    @property
    def ungranted(self) -> tuple[int, ...]:
        """Those whom no process is yet."""
        return tuple(self._ungranted)

    @property
    def is_short(self) -> bool:
        """Whether fewer processes are on their way than are waited for."""
        return len(self._ungranted) > sum(who is None for who in self._tickets.values())

    def call(self, incarnation: int) -> None:
        """Start a process for an incarnation."""
        self._ungranted.append(incarnation)
        self.call_again()

    def call_again(self) -> None:
        """Start a process in place of one that ended before it was anybody."""
        self._last_ticket += 1
        self._tickets[self._last_ticket] = None
        self._launcher.start(self._last_ticket)

    def call_off(self, incarnation: int) -> None:
        """Nobody is to be this incarnation any more."""
        if incarnation in self._ungranted:
            self._ungranted.remove(incarnation)

    def grant(self, ticket: int) -> int | None:
        """Who the process with a ticket is from now on; None if nobody is waited for."""
        if not self._ungranted:
            return None
        self._false_starts = 0
        incarnation = self._tickets[ticket] = self._ungranted.popleft()
        return incarnation

    def who(self, ticket: int) -> int | None:
        """Who a process is; None if it is nobody, or over."""
        return self._tickets.get(ticket)

    def tickets_of(self, incarnation: int) -> list[int]:
        """The processes that an incarnation was granted to: one, or none any more."""
        return [ticket for ticket, who in self._tickets.items() if who == incarnation]

    def ended(self, ticket: int) -> int | None:
        """A process is over: who it was."""
        return self._tickets.pop(ticket, None)

    def try_again(self) -> bool:
        """A process ended before it was anybody: whether another one is to be started in its place."""
        self._false_starts += 1
        if self._false_starts < STARTS:
            return True
        self._false_starts = 0
        return False
