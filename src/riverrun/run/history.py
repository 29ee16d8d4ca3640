"""History: results as of the epochs that a run keeps.

A `Run` has one `History`, to which every read goes. Laws:

- **Of one epoch.** A result is as of one epoch that is complete on all workers, also where epochs go on while it is
  read.
- **Kept or refused.** The last `epochs` complete epochs can be read. Of another one the error says why: it is not
  complete, or not kept any more, or no epoch at all.

Cost: that of one question to all workers; rows are fetched when the result is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from riverrun.engine.reading import Portion
from riverrun.errors import TimeViolation
from riverrun.rows.values import show
from riverrun.run.result import Result
from riverrun.runtime.carried import CarriedRun

TRIES = (
    3  # reads of the last epoch while epochs go on; after these, epochs are held up for the read
)


class History:
    """Reads the outputs of one run."""

    def __init__(self, cluster: CarriedRun, epochs: int, lend: Callable[[Result], str]) -> None:
        """`lend` keeps a result for other processes, and returns the number by which they ask for it."""
        self._cluster = cluster
        self._epochs = epochs
        self._lend = lend

    def read(self, name: str, asked: int | None) -> Result:
        """The rows of an output as of the epoch `asked`; None is the last one."""
        return self._at(asked, f"read {name!r}", name, self._cluster.read)

    def changes(self, name: str, asked: int | None) -> Result:
        """The changes of the epoch `asked` to an output; None is the last one."""
        return self._at(asked, f"tell the changes of {name!r}", name, self._cluster.changes)

    def _at(
        self,
        asked: int | None,
        what: str,
        name: str,
        read: Callable[[str, int], Sequence[Portion]],
    ) -> Result:
        for _ in range(TRIES):
            epoch = self._epoch(asked, what)
            try:
                return self._as_result(name, read(name, epoch), epoch)
            except TimeViolation:
                if asked is not None:
                    raise
        with self._cluster.still():
            epoch = self._epoch(asked, what)
            return self._as_result(name, read(name, epoch), epoch)

    def _as_result(self, name: str, portions: Sequence[Portion], epoch: int) -> Result:
        result = Result.of(name, portions[0].schema, portions, epoch)
        if self._cluster.frames is not None:
            result.lent = self._lent
        return result

    def _lent(self, result: Result) -> Any:
        assert self._cluster.frames is not None
        return self._cluster.frames.of_lent(self._lend(result))

    def _epoch(self, asked: int | None, what: str) -> int:
        """The epoch to read."""
        last = self._cluster.completed - 1
        if last < 0:
            raise TimeViolation(
                "time.not_complete",
                f"cannot {what}: no epoch is complete yet",
                hint="insert rows and commit() first",
            )
        if asked is None:
            return last
        if asked.__class__ is not int or asked < 0:
            raise TimeViolation(
                "time.epoch",
                f"cannot {what} as of epoch {show(asked)}: an epoch is a whole number from 0 on",
                hint=f"the last complete one is {last}; leave it out for that one",
                epoch=asked,
            )
        if asked > last:
            raise TimeViolation(
                "time.not_complete",
                f"cannot {what} as of epoch {asked!r}: the last complete one is {last}",
                hint="commit() returns when its epoch is complete",
                epoch=asked,
            )
        if asked <= last - self._epochs:
            raise TimeViolation(
                "time.compacted",
                f"cannot {what} as of epoch {asked}: only the last {self._epochs} of {last + 1} are kept",
                hint=f"run with a longer history: flow.run(history={last - asked + 1})",
                epoch=asked,
            )
        return asked
