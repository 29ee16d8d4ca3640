"""Starts: the processes that were started for workers, and which worker each of them has become.

`remote.RemoteCluster` uses this module, under its lock. A process is started with a *ticket*, a number that does not
say which worker the process will be. A process that asks the rendezvous is granted the incarnation that has waited
longest for a process. Laws:

- **Granted once.** An incarnation is granted to one process. So where a launcher starts a process twice, the second one
  gets another incarnation, or none.
- **Bounded.** While an incarnation waits for a process, a process that ends before it was granted an incarnation is
  followed by another start. After `STARTS` such processes in a row, `try_again` says that it is enough. A grant ends
  the row.

In the example incarnation 7 waits for a process. The first one ends too early, the second one is granted incarnation 7.

>>> class Printing:
...     def start(self, ticket):
...         print("start", ticket)
>>> starts = Starts(Printing())
>>> starts.call(7)
start 1
>>> starts.ended(1), starts.is_short, starts.try_again()
(None, True, True)
>>> starts.call_again()
start 2
>>> starts.grant(2), starts.grant(2), starts.incarnation_of(2), starts.tickets_of(7)
(7, None, 7, [2])
>>> starts.ended(2), starts.is_short
(7, False)

Cost: nothing besides the process.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

STARTS = 3  # processes in a row that end before they were granted an incarnation


class Starter(Protocol):
    """Starts processes, and ends them."""

    def start(self, ticket: int) -> None:
        """Start a process with a ticket, without waiting for it."""

    def stop(self, ticket: int) -> None:
        """End the process with a ticket, without waiting for that."""


class Starts:
    """The processes that a launcher has started."""

    def __init__(self, launcher: Starter) -> None:
        self._launcher = launcher
        self._ungranted: deque[int] = deque()
        self._tickets: dict[int, int | None] = {}
        """For the ticket of each process that lives, the incarnation granted to the process, if any."""
        self._last_ticket = 0
        self._false_starts = 0

    def __len__(self) -> int:
        """How many processes live."""
        return len(self._tickets)

    def __repr__(self) -> str:
        return f"<Starts: not granted {list(self._ungranted)}, processes {self._tickets}>"

    @property
    def ungranted(self) -> tuple[int, ...]:
        """The incarnations that still wait for a process."""
        return tuple(self._ungranted)

    @property
    def is_short(self) -> bool:
        """Whether fewer processes are on their way than incarnations wait for one."""
        return len(self._ungranted) > sum(who is None for who in self._tickets.values())

    def call(self, incarnation: int) -> None:
        """Start a process for an incarnation."""
        self._ungranted.append(incarnation)
        self.call_again()

    def call_again(self) -> None:
        """Start a process in place of one that ended before it was granted an incarnation."""
        self._last_ticket += 1
        self._tickets[self._last_ticket] = None
        self._launcher.start(self._last_ticket)

    def stop(self, ticket: int) -> None:
        """End a process that is not needed any more."""
        self._launcher.stop(ticket)

    def call_off(self, incarnation: int) -> None:
        """Have an incarnation wait for a process no longer."""
        if incarnation in self._ungranted:
            self._ungranted.remove(incarnation)

    def grant(self, ticket: int) -> int | None:
        """Grant an incarnation to the process with a ticket, and return it; None if no incarnation waits."""
        if not self._ungranted:
            return None
        self._false_starts = 0
        incarnation = self._tickets[ticket] = self._ungranted.popleft()
        return incarnation

    def incarnation_of(self, ticket: int) -> int | None:
        """The incarnation of the process with a ticket; None if the process was granted none, or has ended."""
        return self._tickets.get(ticket)

    def tickets_of(self, incarnation: int) -> list[int]:
        """The tickets of the living processes that an incarnation was granted to: one, or none any more."""
        return [ticket for ticket, who in self._tickets.items() if who == incarnation]

    def ended(self, ticket: int) -> int | None:
        """Note that a process has ended; return the incarnation that it had been granted, if any."""
        return self._tickets.pop(ticket, None)

    def try_again(self) -> bool:
        """After a process ended without an incarnation: whether to start another one in its place."""
        self._false_starts += 1
        if self._false_starts < STARTS:
            return True
        self._false_starts = 0
        return False
