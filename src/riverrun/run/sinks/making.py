"""Making sinks: a sink begins at a boundary, with the epochs that are complete, and no epoch is left out.

A `Run` has one `SinkMaker`, which all its sinks come from. Laws:

- **From one boundary on.** The epochs that are complete when a sink begins are given to it at once, and the next ones
  at their own boundaries: no epoch becomes complete in between.
- **One sink a place.** Of the sinks of a run that keep files or tables, no two write to one place, and no place is
  inside another.
- **Somebody has it.** A sink whose caller was interrupted before getting it is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from riverrun.errors import PlanError, TimeViolation
from riverrun.interrupts import check, deferred
from riverrun.run.pacing import Pacing
from riverrun.run.result import Result
from riverrun.run.sinks.destination import Destination, Kept
from riverrun.run.sinks.queue import EpochChanges, Sink, SinkQueues, content
from riverrun.run.turn import Turn
from riverrun.runtime.carried import CarriedRun


class SinkMaker:
    """Makes the sinks of one run."""

    def __init__(
        self,
        cluster: CarriedRun,
        sinks: SinkQueues,
        pacing: Pacing,
        turn: Turn,
        read: Callable[[str, int], Result],
        changes: Callable[[str, int], Result],
        check_open: Callable[[str], None],
    ) -> None:
        """`read` gives an output as of an epoch, `changes` what an epoch changed in it; `check_open` refuses an attempt
        when the run is closed."""
        self._cluster = cluster
        self._sinks = sinks
        self._pacing = pacing
        self._turn = turn
        self._read = read
        self._changes = changes
        self._check_open = check_open
        self._kept = set[str]()
        """The places of files or tables that sinks of this run were begun for, as they are shown."""

    def make(self, output: str, place: Destination, start: int | str = "all") -> Sink:
        """Have a new sink write an output to a place."""
        sink: Sink | None = None

        def forsake() -> (
            None
        ):  # interrupted: the caller does not get the sink, so it is closed here
            if sink is not None:
                sink.close(timeout=0.0)

        try:
            try:
                with deferred():
                    try:
                        sink = self._begin(output, place, start)
                        check()
                    except BaseException:
                        forsake()
                        raise
                    return sink
            except BaseException:  # a signal that came after the check
                with deferred():
                    forsake()
                raise
        except BaseException:  # a second signal, that came before the sink was closed
            with deferred():
                forsake()
            raise

    def _begin(self, output: str, place: Destination, start: int | str) -> Sink:
        with self._turn:
            self._check_open(f"follow {output!r}")
            if isinstance(place, Kept):
                self._check_alone(output, place)
                self._kept.add(place.shown)
            with self._pacing.at_boundary():
                return self._attach(output, place, start)

    def _check_alone(self, output: str, place: Kept) -> None:
        """Refuse a place that a sink of this run writes to already, or that is inside such a place or around it."""
        mine = _place(place.shown)
        for other in self._sinks.status(self._cluster.completed):
            written = other["place"]
            if other["error"] is not None:
                continue
            theirs = _place(written)
            if written in self._kept and theirs != mine and _are_nested(theirs, mine):
                raise PlanError(
                    "sink.nested",
                    f"cannot write {output!r} to {place.shown}: a sink of this run writes {other['name']!r} to "
                    f"{written}, and one of these directories is inside the other, so who reads the outer one would "
                    "take the files of both for its own",
                    hint='give each sink a directory beside the others: "results/first", "results/second"',
                )
            if theirs == mine:
                raise PlanError(
                    "sink.taken",
                    f"cannot write {output!r} to {place.shown}: a sink of this run writes {other['name']!r} there",
                    hint="give each sink a directory or table of its own, or close the other one first",
                )

    def _attach(self, output: str, place: Destination, start: int | str) -> Sink:
        self._pacing.hand_out()
        completed = self._cluster.completed
        first = place.first(start, completed)
        try:
            past = [
                EpochChanges(output, self._changes(output, epoch).to_arrow(), epoch)
                for epoch in range(first, completed)
            ]
        except TimeViolation:
            if not place.is_whole_welcome(start):
                raise
            whole = content(self._read(output, completed - 1))
            past = [EpochChanges(output, whole, completed - 1, first, whole=True)]
        sink = Sink(
            output,
            place.shown,
            place.write,
            epoch=place.epoch,
            first=first,
            alive=lambda: not self._cluster.closed,
            forget=self._sinks.forget,
            stop=getattr(place, "stop", None),
        )
        for changes in past:
            sink.give(changes)
        self._pacing.follow(sink, completed)
        return sink


def _place(shown: str) -> str:
    return shown if "://" in shown else str(Path(shown).resolve())


def _are_nested(one: str, other: str) -> bool:
    """Whether one of two places is inside the other."""
    one, other = (f"{each.rstrip('/')}/" for each in (one, other))
    return one.startswith(other) or other.startswith(one)
