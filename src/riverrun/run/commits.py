"""Commits: epochs made of the rows that a run has gathered, and waited for.

A `Run` has one `Commits`, and users get a `Commit` from ``run.commit()``. Laws:

- **Whole epochs.** All rows that are gathered when `commit` has its turn are one epoch, or stay gathered.
- **Settled interrupt.** When an interrupt leaves `commit` or `wait`, the rows are still *gathered*, or their epoch is
  *complete*, or the epoch is *refused* and its rows are dropped. Where the storage does not answer in time, or a second
  interrupt cuts the wait for the storage short, the epoch is *accepted* and done later, or *refusing*: its refusal is
  on the way to the log. A note of the exception says which of these holds, and so does `status`.
- **Room without the turn.** A thread waits for a sink that is far behind, and for a storage that is away, without
  having the turn: the function of a sink may use the run, and others want to read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from riverrun.errors import listed
from riverrun.interrupts import Interrupt, check, is_interrupt
from riverrun.run.inputs import RunInput
from riverrun.run.pacing import Pacing
from riverrun.run.sinks.queue import SinkQueues
from riverrun.run.turn import Turn, whole
from riverrun.runtime.carried import CarriedRun, Standing


class Commit:
    """An epoch that was committed."""

    __slots__ = ("_commits", "_rows", "epoch")

    def __init__(self, commits: Commits, epoch: int, rows: int) -> None:
        self._commits = commits
        self._rows = rows
        self.epoch = epoch

    @property
    def done(self) -> bool:
        """Whether the results of the epoch are complete."""
        return self._commits.has(self.epoch)

    def wait(self) -> Self:
        """Return when the results of the epoch are complete; if the epoch failed, raise its error."""
        self._commits.wait(self.epoch, self._rows)
        return self

    def __repr__(self) -> str:
        return f"<Commit of epoch {self.epoch}: {'done' if self.done else 'under way'}>"


@dataclass(slots=True)
class _Committing:
    """A call of `commit` or `Commit.wait`."""

    before: int
    """How many epochs were complete when the call began."""
    epoch: int | None = None
    """The epoch that is waited for; None as long as no epoch was made."""
    rows: int = 0
    told: frozenset[int] = frozenset()
    """Refused epochs of which the notes of calls before this one have told."""


class Commits:
    """Makes the epochs of one run, and waits for them."""

    def __init__(
        self,
        cluster: CarriedRun,
        inputs: Mapping[str, RunInput],
        sinks: SinkQueues,
        pacing: Pacing,
        turn: Turn,
        check_open: Callable[[str], None],
        check_outside: Callable[[str], None],
    ) -> None:
        """`check_open` refuses an attempt when the run is closed, `check_outside` one from a function of the run."""
        self._cluster = cluster
        self._inputs = inputs
        self._sinks = sinks
        self._pacing = pacing
        self._turn = turn
        self._check_open = check_open
        self._check_outside = check_outside
        self._last: _Committing | None = None
        self._told: frozenset[int] = frozenset()

    def has(self, epoch: int) -> bool:
        """Whether the results of an epoch are complete."""
        return self._cluster.completed > epoch

    def commit(self, wait: bool) -> Commit:
        """In a call that is `whole`: make an epoch of the rows that are gathered; with `wait`, return when it is
        complete."""
        self._check_outside("commit")
        this = self._last = _Committing(self._cluster.completed, told=self._told)
        try:
            self._make(this, wait)
            check()
        except BaseException as error:
            if is_interrupt(error):
                self._settle(this, error, refuse=wait)
            raise
        assert this.epoch is not None
        return Commit(self, this.epoch, this.rows)

    def _make(self, this: _Committing, wait: bool) -> None:
        self._sinks.wait_for_room()
        with self._turn:
            self._check_open("commit")
            rows = self._gathered
            alone = not self._cluster.goes_on
            epoch = self._submit()
            this.epoch, this.rows = epoch, rows
            if alone:
                self._cluster.await_log(epoch)
            done = alone and (not wait or self._pacing.advance(epoch, rows))
        if not alone:
            self._cluster.await_log(epoch)
            done = not wait
        if not done:
            self.complete(epoch, rows)

    @property
    def _gathered(self) -> int:
        return sum(run_input.rows for run_input in self._inputs.values())

    def _submit(self) -> int:
        """Make an epoch of the gathered rows; rows that are not accepted stay gathered."""
        inputs, parcels = {}, {}
        for name, run_input in self._inputs.items():
            batch, handed_in = run_input.gathered()
            if batch is not None:
                inputs[name] = batch
            if handed_in:
                parcels[name] = handed_in
        before = self._cluster.epoch
        try:
            return self._cluster.submit(inputs, parcels=parcels, logged=False)
        finally:
            if self._cluster.epoch > before:
                for run_input in self._inputs.values():
                    run_input.drop()

    def wait(self, epoch: int, rows: int) -> None:
        """For `Commit.wait`."""
        self._check_outside(f"wait for epoch {epoch}")
        self._await(epoch, rows)

    @whole
    def _await(self, epoch: int, rows: int) -> None:
        this = self._last = _Committing(self._cluster.completed, epoch, rows, self._told)
        try:
            self.complete(epoch, rows)
            check()
        except BaseException as error:
            if is_interrupt(error):
                self._settle(this, error, refuse=True)
            raise

    @whole
    def complete(self, epoch: int, rows: int = 0) -> None:
        """Return when an epoch is complete, and handed out to all sinks; raise its error, if the epoch failed."""
        while not self._advance(epoch, rows):
            self._sinks.wait_for_room()

    def _advance(self, epoch: int, rows: int) -> bool:
        with self._turn:
            return self._pacing.advance(epoch, rows)

    # -- interrupts

    def _settle(self, this: _Committing, error: BaseException, *, refuse: bool) -> None:
        """Before an interrupt goes on to the user, settle the epoch, and note the outcome on the exception
        (the settled-interrupt law)."""
        if this.epoch is not None and refuse:
            self._cluster.settle_interrupt(this.epoch, error)
        raised = error.error if isinstance(error, Interrupt) else error
        raised.add_note(self._settled(this))

    def _settled(self, this: _Committing) -> str:
        """What has become of the rows of an interrupted call, in words."""
        epoch, rows = this.epoch, _count(this.rows)
        if epoch is None:
            return (
                f"no epoch was made: {_count(self._gathered)} still gathered, for the next commit()"
            )
        note = {
            Standing.COMPLETE: f"epoch {epoch} is complete: its {rows} in the results",
            Standing.REFUSED: f"epoch {epoch} was refused: its {rows} dropped",
            Standing.REFUSING: f"epoch {epoch} is refused: its {rows} dropped here, and the log is not told yet; a run "
            "that is resumed before it is has the epoch",
            Standing.ACCEPTED: f"epoch {epoch} is accepted and not complete: its {rows} not to be inserted again, the "
            "next call that waits does the epoch",
        }[self._cluster.standing(epoch)]
        others = self._others(this)
        self._told = frozenset(
            {each for each in self._told if each >= self._cluster.completed} | {epoch, *others}
        )
        if others:
            note += f"; {_also_refused(others)}"
        return note

    def _others(self, this: _Committing) -> list[int]:
        """The other epochs that were under way when a call was interrupted, and were refused with its own epoch."""
        if this.epoch is None:
            return []
        refused = self._cluster.refused_by_interrupt(this.before, this.epoch)
        return [epoch for epoch in refused if epoch not in this.told]

    def status(self) -> dict[str, Any] | None:
        """What became of the last call that made an epoch or waited for one; None before the first."""
        this = self._last
        if this is None:
            return None
        outcome = "gathered" if this.epoch is None else self._cluster.standing(this.epoch).value
        return {
            "epoch": this.epoch,
            "rows": this.rows,
            "outcome": outcome,
            "others": self._others(this),
        }


def _also_refused(epochs: list[int]) -> str:
    """
    >>> _also_refused([1])
    'epoch 1, which was under way, was refused too'
    >>> _also_refused([0, 1])
    'epochs 0, 1, which were under way, were refused too'
    """
    if len(epochs) == 1:
        return f"epoch {epochs[0]}, which was under way, was refused too"
    return f"epochs {listed(epochs)}, which were under way, were refused too"


def _count(rows: int) -> str:
    return "1 row is" if rows == 1 else f"{rows:,} rows are"
