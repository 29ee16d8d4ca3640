"""Borrowed rows: query results that stay with the workers for as long as something in this process refers to them.

`questions` borrows the rows of an output from all workers. Each worker keeps its part of the rows under a number, a
*loan*. A `Borrowed` portion stands for one loan: the rows of an output, or the changes of an epoch to the output, in
the ranges of hashes that the worker owned (`state.shards`). When that worker is lost, or gives its shards away and
leaves, the portion is *renewed*: the workers that own those ranges by then, one or several, lend the same ranges as of
the same epoch, under new loans. Laws:

- **The same rows.** A portion gives the same rows each time it is read, whichever workers lend the rows.
- **The epoch or an error.** A loan holds its epoch, but a renewed loan can be had only while the workers keep the
  epoch: ``history=`` of `Dataflow.run` says how many they keep. Otherwise renewing fails with `time.compacted`. Rows of
  another epoch are never given instead.
- **Given back.** A worker keeps a loan until no portion in this process refers to the loan any more. Then `questions`
  has the worker told, and the worker lets go of the rows.

Cost: borrowing, and renewing too, is one question to each worker that has some of the rows (`questions` says what a
question costs). Rows travel when a portion is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from riverrun.engine.reading import Portion
from riverrun.errors import TimeViolation
from riverrun.forks import ProcessMark, finalize
from riverrun.interrupts import held
from riverrun.rows.conditions import Where
from riverrun.rows.records import as_shown
from riverrun.runtime.network.client import Asker, fetch_loans, watched
from riverrun.runtime.network.connection import Credentials
from riverrun.state.shards import Range, Shards


class Loan:
    """Rows that one worker lends under a number; `release` is called when no portion refers to the loan any more."""

    def __init__(
        self,
        address: str,
        lease: int,
        ranges: Sequence[Range],
        release: Callable[[str, int], None],
    ) -> None:
        self.address = address
        self.lease = lease
        self.ranges = ranges
        finalize(self, release, address, lease)


ArgumentFor: TypeAlias = Callable[[Shards, int], Any]
"""The argument of a question to a worker, by the shards and the worker's index; None where it is not asked."""


class Ask(Protocol):
    """Asks all workers of one execution, and tries again until all workers of an execution have answered."""

    def __call__(self, question: str, *, argument_for: ArgumentFor) -> list[tuple[str, Any]]:
        """The address of each worker that was asked, and its answer."""


class Lender:
    """Has workers lend rows."""

    def __init__(
        self,
        credentials: Credentials,
        ask: Ask,
        release: Callable[[str, int], None],
        gone: Callable[[str], bool],
    ) -> None:
        """`release` is called with the address and number of a loan that no portion refers to any more; `gone` tells
        whether no worker is at an address any more."""
        self.credentials = credentials
        self.gone = gone
        self._ask = ask
        self._release = release

    def borrow(self, question: str, name: str, epoch: int) -> list[Portion]:
        """Each worker's part of an output ("read"), or of its changes in an epoch ("changes")."""
        ranges: dict[int, Sequence[Range]] = {}

        def whole(shards: Shards, index: int) -> Any:
            ranges[index] = shards.of(index)
            return name, epoch, [None]

        answers = self._ask(question, argument_for=whole)
        loans = [  # all loans first, so that a failure from here on gives all of them back
            Loan(address, leases[0], ranges[index], self._release)
            for index, (address, (leases, _)) in enumerate(answers)
        ]
        return [
            Borrowed(self, question, name, epoch, schema, loan)
            for (_, (_, schema)), loan in zip(answers, loans, strict=True)
        ]

    def lend(self, question: str, name: str, epoch: int, ranges: Sequence[Range]) -> list[Loan]:
        """Loans of the rows in some ranges, from the workers that own them now, in the order of hashes."""
        runs: dict[int, list[list[Range]]] = {}

        def part(shards: Shards, index: int) -> Any:
            if index == 0:  # a new try: another execution may have other shards
                runs.clear()
                runs.update(shards.runs(ranges))
            if index not in runs:
                return None
            return name, epoch, [[(low, high - 1) for low, high in run] for run in runs[index]]

        answers = self._ask(question, argument_for=part)
        loans = [
            Loan(address, lease, run, self._release)
            for (address, (leases, _)), index in zip(answers, sorted(runs), strict=True)
            for lease, run in zip(leases, runs[index], strict=True)
        ]
        return sorted(loans, key=lambda loan: loan.ranges[0])


class Borrowed(Portion):
    """Some ranges of hashes of an output, or of its changes, as of an epoch."""

    def __init__(
        self, lender: Lender, question: str, name: str, epoch: int, schema: bytes, loan: Loan
    ) -> None:
        """`question` is "read" or "changes"."""
        self.schema = pa.ipc.read_schema(pa.py_buffer(schema))
        self.ordered = question == "read"
        self.what = f"{question} {name!r} as of epoch {epoch}"
        self._lender = lender
        self._mark = ProcessMark()
        self._asked = question, name, epoch
        self._lock = Lock()
        self._first = loan
        self._renewed: dict[int, list[Loan]] = {}
        """For each lost loan, by its number, the loans in place of it."""

    @property
    def loans(self) -> list[Loan]:
        """The loans that have the rows now, in the order of hashes."""
        return self._in_place_of(self._first)

    def gone(self, address: str) -> bool:
        """Whether no worker is at an address any more."""
        return self._lender.gone(address)

    def _in_place_of(self, loan: Loan) -> list[Loan]:
        if loan.lease not in self._renewed:
            return [loan]
        return [each for new in self._renewed[loan.lease] for each in self._in_place_of(new)]

    def renew(self, lease: int) -> list[Loan]:
        """The loans in place of a lost one. Readers that have lost the same loan get the same new ones."""
        with held(self._lock):  # its holder asks workers, which may take as long as a recovery
            for loan in self.loans:
                if loan.lease == lease:
                    self._renewed[lease] = self._lent_again(loan)
            return [each for new in self._renewed.get(lease, ()) for each in self._in_place_of(new)]

    def _lent_again(self, loan: Loan) -> list[Loan]:
        question, name, epoch = self._asked
        try:
            return self._lender.lend(question, name, epoch, loan.ranges)
        except TimeViolation as error:
            raise TimeViolation(
                "time.compacted",
                f"cannot go on to {self.what}: the worker that held the rows was lost, and the run has gone on since: "
                f"{error.message}",
                hint="read it again, as of a later epoch; with flow.run(history=) more of them are kept, so that what "
                "is being read survives the loss of a worker while epochs go on",
                epoch=epoch,
            ) from error

    def batches(
        self, columns: Sequence[str] | None = None, where: Sequence[Where] = ()
    ) -> Iterator[pa.RecordBatch]:
        self._mark.check("read rows", f"what is lent to {self.what}")
        schema = self.schema
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])

        def fetch(loan: Loan) -> Iterator[pa.RecordBatch]:
            asker = Asker(loan.address, self._lender.credentials)
            try:
                rows = asker.rows((loan.lease, columns, tuple(where)))
                for batch in watched(loan.address, rows, lambda: self.gone(loan.address)):
                    yield as_shown(schema, batch)
            finally:
                asker.close()

        def renew(loan: Loan) -> list[Loan]:
            return self.renew(loan.lease)

        yield from fetch_loans(self.loans, fetch, renew, self.what, ordered=self.ordered)
