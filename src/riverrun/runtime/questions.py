"""Questions: what all workers of an execution are asked, and the rows that they lend in answer.

Used by `remote.RemoteCluster`, from any thread. Laws:

- **Of one execution.** Answers are of workers of one execution, all of them or none: where a worker is lost meanwhile,
  all are asked again.
- **Given back.** What a worker has lent is given back when not all of them have answered, when whoever asked was
  interrupted, and when nobody has it any more. The garbage collector may notice that in the middle of anything: it puts
  a number into a queue, and the clock of the cluster tells the worker.

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
from riverrun.runtime.network.client import Line, given_up
from riverrun.runtime.network.connection import Security
from riverrun.runtime.network.lending import Lender, Part
from riverrun.state.shards import Shards


@dataclass(frozen=True, slots=True)
class Audience:
    """Whom a question goes to: the workers of an execution, by index."""

    execution: int
    shards: Shards
    lines: Sequence[Line | None]
    """None for one that was just lost."""


class Questions:
    """Asks the workers of a run."""

    def __init__(
        self,
        security: Security,
        audience: Callable[[], Audience],
        execution: Callable[[], int],
        gone: Callable[[str], bool],
    ) -> None:
        """`audience` waits until all workers are there; `execution` is the number of the present one; `gone` tells
        whether no worker is at an address any more."""
        self._audience = audience
        self._execution = execution
        self._released: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self._lender = Lender(security, self.ask_all, self._release, gone)

    def borrow(self, question: str, name: str, epoch: int) -> list[Portion]:
        """Each worker's part of an output ("read") or of what an epoch changed in it ("changes")."""
        return self._lender.borrow(question, name, epoch)

    def ask_all(
        self, question: str, argument: Any = None, of: Part | None = None
    ) -> list[tuple[str, Any]]:
        """Ask all workers of one execution, each for what `of` gives, if it is given; where one is lost, all again."""
        with interrupts.deferred():
            return persist(
                lambda: self._ask_each(question, argument, of), f"ask the workers for {question}"
            )

    def released(self) -> Iterator[tuple[str, int]]:
        """The loans that nobody has any more, by address and number; each is told once."""
        while not self._released.empty():
            yield self._released.get()

    def _ask_each(self, question: str, argument: Any, of: Part | None) -> list[tuple[str, Any]]:
        audience = self._audience()
        arguments = [
            argument if of is None else of(audience.shards, index)
            for index in range(len(audience.lines))
        ]
        answers: list[tuple[str, Any]] = []
        try:
            for line, each in zip(audience.lines, arguments, strict=True):
                if line is None:
                    raise given_up("an address that is forgotten")
                if of is None or each is not None:
                    back = partial(self._give_back_one, question, line.address)
                    answers.append((line.address, line.ask(question, each, back)))
            if self._execution() != audience.execution:
                raise began_again(f"use answers to {question}")
        except BaseException:
            self._give_back(question, answers)
            raise
        return answers

    def _give_back_one(self, question: str, address: str, answer: Any) -> None:
        self._give_back(question, [(address, answer)])

    def _give_back(self, question: str, answers: list[tuple[str, Any]]) -> None:
        """What some workers lent is of no use where not all did."""
        if question in ("read", "changes"):
            for address, (leases, _) in answers:
                for lease in leases:
                    self._release(address, lease)

    def _release(self, address: str, lease: int) -> None:
        """A portion is not needed any more. The garbage collector may call this anywhere: nothing is done here."""
        self._released.put((address, lease))


def began_again(what: str) -> TransportError:
    """The error of one who needs workers that stand still while they go back."""
    return TransportError(
        "transport.not_ready", f"cannot {what}: the run is beginning again", hint="ask again"
    )
