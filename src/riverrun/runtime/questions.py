"""Questions: what the driver asks all workers of an execution, and the rows that the workers lend in answer.

`remote.RemoteCluster` uses this module, from any thread. Rows are not part of an answer: a worker *lends* them, that
is, keeps them under a number, a *loan*, until the loan is released (`network.lending`). Laws:

- **Of one execution.** All answers to a question are of workers of one execution: where a worker is lost meanwhile, all
  workers are asked again.
- **Given back.** A loan is released when not all workers have answered, when the caller was interrupted, and when no
  portion refers to the loan any more. The garbage collector may notice the last of these in the middle of anything, so
  it only puts the number of the loan into a queue; the clock of the cluster then tells the worker.

Cost: a question takes some 0.2 ms for each worker.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from riverrun import interrupts
from riverrun.engine.reading import Portion
from riverrun.errors import TransportError
from riverrun.retry import persist
from riverrun.runtime.network.client import QuestionLine, worker_gone
from riverrun.runtime.network.connection import Credentials
from riverrun.runtime.network.lending import ArgumentFor, Lender
from riverrun.state.shards import Shards


@dataclass(frozen=True, slots=True)
class Audience:
    """Whom a question goes to: the workers of an execution, by index."""

    execution: int
    shards: Shards
    lines: Sequence[QuestionLine | None]
    """For each worker the line on which it is asked; None for a worker that was just lost."""


class Questions:
    """Asks all workers of a run."""

    def __init__(
        self,
        credentials: Credentials,
        audience: Callable[[], Audience],
        execution: Callable[[], int],
        gone: Callable[[str], bool],
    ) -> None:
        """`audience` waits until all workers are there, and returns them. `execution` returns the number of the present
        execution. `gone` tells whether no worker is at an address any more."""
        self._audience = audience
        self._execution = execution
        self._released: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self._lender = Lender(credentials, self.ask_all, self._release, gone)

    def borrow(self, question: str, name: str, epoch: int) -> list[Portion]:
        """Each worker's part of an output ("read"), or of what an epoch changed in the output ("changes")."""
        return self._lender.borrow(question, name, epoch)

    def ask_all(
        self, question: str, argument: Any = None, argument_for: ArgumentFor | None = None
    ) -> list[tuple[str, Any]]:
        """Ask all workers of one execution; return the address and the answer of each.

        All workers get the same `argument`, or each its own from `argument_for`. Where a worker is lost meanwhile, all
        are asked again.
        """
        with interrupts.deferred():
            return persist(
                lambda: self._ask_each(question, argument, argument_for),
                f"ask the workers for {question}",
            )

    def released(self) -> Iterator[tuple[str, int]]:
        """The loans that no portion refers to any more, by address and number; each is given once."""
        while not self._released.empty():
            yield self._released.get()

    def _ask_each(
        self, question: str, argument: Any, argument_for: ArgumentFor | None
    ) -> list[tuple[str, Any]]:
        audience = self._audience()
        arguments = [
            argument if argument_for is None else argument_for(audience.shards, index)
            for index in range(len(audience.lines))
        ]
        answers: list[tuple[str, Any]] = []
        try:
            for line, each in zip(audience.lines, arguments, strict=True):
                if line is None:
                    raise worker_gone("an address that is forgotten")
                if argument_for is None or each is not None:
                    give_back = partial(self._give_back_one, question, line.address)
                    answers.append((line.address, line.ask(question, each, give_back)))
            if self._execution() != audience.execution:
                raise began_again(f"use answers to {question}")
        except BaseException:
            self._give_back(question, answers)
            raise
        return answers

    def _give_back_one(self, question: str, address: str, answer: Any) -> None:
        self._give_back(question, [(address, answer)])

    def _give_back(self, question: str, answers: list[tuple[str, Any]]) -> None:
        """Release all loans in these answers: without the answers of all workers they are of no use."""
        if question in ("read", "changes"):
            for address, (leases, _) in answers:
                for lease in leases:
                    self._release(address, lease)

    def _release(self, address: str, lease: int) -> None:
        """Queue a loan to be given back. The garbage collector may call this anywhere, so nothing else is done here."""
        self._released.put((address, lease))


def began_again(what: str) -> TransportError:
    """The error of a caller that needs all workers, while these go back to a checkpoint."""
    return TransportError(
        "transport.not_ready", f"cannot {what}: the run is beginning again", hint="ask again"
    )
