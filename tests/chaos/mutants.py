"""Mutants: faults in the protocol and in shared state, made on purpose. The simulation must notice each of them.

Some faults are not here, since a second defence hides them from the simulation. If newer messages are dropped instead
of held, the gap is noticed and all workers begin again. Messages of a zombie have the number of an older execution too.
A part of another attempt is refused by the manifest, whose shares must end at one frontier. A checkpoint that is
published after it was given up is noticed by the conflict at the next checkpoint. A checkpoint that covers less of the
log than the one before (`CheckpointSaver.covers`) needs two owners that retain one checkpoint each, and three losses in
the right order: `tests/engine/coordinator/test_coordinator.py` has that case. What is saved of a loop is deleted when
its epoch is over, so it is hardly ever there for another epoch.

    python -m tests.chaos.mutants            # how many seeds each one survives
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

from riverrun.engine import messages as m
from riverrun.engine.coordinator import shares as dealing
from riverrun.engine.coordinator.checkpointing import CheckpointSaver
from riverrun.engine.coordinator.coordinator import Coordinator
from riverrun.engine.coordinator.round_saving import RoundSaver
from riverrun.engine.worker import Worker
from riverrun.errors import TransportError
from riverrun.operators.arrange import Consolidator
from riverrun.operators.shared import fetch, marks
from riverrun.operators.shared.fetch import Fetching
from riverrun.operators.shared.gather import REPLIES, Gathering
from riverrun.operators.shared.marks import Progressing
from riverrun.operators.shared.store import Storing
from riverrun.runtime import storage_calls
from riverrun.state.changes import Changes
from riverrun.state.view import View, deferred
from riverrun.storage import log, takeover
from riverrun.storage.log import Log
from tests.chaos.flows import FLOWS
from tests.chaos.simulation import Simulation

Mutant = Callable[[], contextlib.AbstractContextManager[Any]]
MUTANTS: dict[str, Mutant] = {}
UNFIT = (AttributeError, NameError, TypeError)
PROGRAMS: dict[str, str] = {}
"""Those that only some program could notice, and which; the others are of the protocol, and `Counting` does."""


def mutant(break_it: Callable[[], contextlib.AbstractContextManager[Any]]) -> Mutant:
    MUTANTS[break_it.__name__] = break_it
    return break_it


def mutant_of(program: str) -> Callable[[Mutant], Mutant]:
    def note(break_it: Mutant) -> Mutant:
        PROGRAMS[break_it.__name__] = program  # type: ignore[attr-defined]
        return mutant(break_it)

    return note


def replaced(owner: Any, name: str, function: Any) -> contextlib.AbstractContextManager[Any]:
    return mock.patch.object(owner, name, function)


@mutant
def old_messages_are_taken() -> Any:
    original = Worker._on_data

    def on_data(self: Worker, sender: int, message: m.Data) -> None:
        index = self._indices.get(sender)
        if self.instance is not None and index is not None and message.execution < self.execution:
            self.instance.receive(index, message.payload)
        else:
            original(self, sender, message)

    return replaced(Worker, "_on_data", on_data)


@mutant
def gaps_are_ignored() -> Any:
    original = Worker._on_data

    def on_data(self: Worker, sender: int, message: m.Data) -> None:
        index = self._indices.get(sender)
        if index is not None and message.execution == self.execution:
            self._expected[index] = message.number
        original(self, sender, message)

    return replaced(Worker, "_on_data", on_data)


@mutant
def completions_of_other_executions_count() -> Any:
    original = Coordinator._is_late

    def is_late(self: Coordinator, message: Any) -> bool:
        if isinstance(message, m.Completed):
            message = m.Completed(self.execution, message.epoch)
        return original(self, message)

    return replaced(Coordinator, "_is_late", is_late)


@mutant
def an_epoch_is_complete_when_one_worker_says_so() -> Any:
    original = Coordinator._on_completed

    def on_completed(self: Coordinator, sender: int, message: m.Completed) -> None:
        if message.execution == self.execution:
            self._waiting.clear()
        original(self, sender, message)

    return replaced(Coordinator, "_on_completed", on_completed)


@mutant
def execution_starts_when_one_is_ready() -> Any:
    original = Coordinator._on_ready

    def on_ready(self: Coordinator, sender: int, message: m.Ready) -> None:
        if message.execution == self.execution:
            self._waiting.clear()
        original(self, sender, message)

    return replaced(Coordinator, "_on_ready", on_ready)


@mutant
def epochs_are_released_before_they_are_logged() -> Any:
    original = Coordinator._advance

    def advance(self: Coordinator) -> None:
        durable, self.log.durable = self.log.durable, 1 << 60
        original(self)
        self.log.durable = durable

    return replaced(Coordinator, "_advance", advance)


@mutant
def failed_appends_count_as_done() -> Any:
    original = Coordinator._on_appended

    def on_appended(self: Coordinator, append: m.AppendRecord, error: Any) -> None:
        original(self, append, None if isinstance(error, TransportError) else error)

    return replaced(Coordinator, "_on_appended", on_appended)


@mutant
def refusals_are_not_logged() -> Any:
    original = Coordinator._append

    def append(self: Coordinator, header: Any, inputs: Any = None) -> None:
        if header["kind"] == "refused":
            self._refused(header["epoch"])
        else:
            original(self, header, inputs)

    return replaced(Coordinator, "_append", append)


@mutant
def the_newest_pin_is_gone_back_to() -> Any:
    original = Worker._on_begin

    def on_begin(self: Worker, sender: int, message: m.Begin) -> None:
        newer = [epoch for epoch in self._pins if epoch > message.epoch]
        if newer and message.execution > self.execution:
            self._pins[message.epoch] = self._pins[max(newer)]
        original(self, sender, message)

    return replaced(Worker, "_on_begin", on_begin)


@mutant
def instances_survive_a_new_execution() -> Any:
    original = Worker._start

    def start(self: Worker, begin: m.Begin, states: Any) -> None:
        old = getattr(self, "last", None)
        if old is not None and old.completed == begin.epoch and old._shards == begin.shards:
            make, self._make = self._make, lambda *_: old
            original(self, begin, states)
            self._make = make
        else:
            original(self, begin, states)
        self.last = self.instance  # type: ignore[attr-defined]

    return replaced(Worker, "_start", start)


@mutant
def only_one_pin_is_kept() -> Any:
    original = Worker._complete

    def complete(self: Worker, instance: Any) -> None:
        original(self, instance)
        self._pins = {max(self._pins): self._pins[max(self._pins)]}

    return replaced(Worker, "_complete", complete)


@mutant
def ranges_are_not_cut() -> Any:
    return replaced(View, "slice", lambda view, low, high: view)


@mutant
def lost_messages_are_not_told() -> Any:
    return replaced(Coordinator, "_on_broken", lambda self, sender, message: None)


@mutant
def epochs_are_reported_again() -> Any:
    original = Coordinator._begin

    def begin(self: Coordinator, epoch: int, source: int) -> None:
        original(self, epoch, source)
        self.reported = min(self.reported, epoch)

    return replaced(Coordinator, "_begin", begin)


@mutant
def attempts_wait_for_the_dead() -> Any:
    return replaced(CheckpointSaver, "lost", lambda self, member: None)


@mutant
def checkpoints_claim_to_cover_more() -> Any:
    original = Coordinator._on_wrote

    def on_wrote(self: Coordinator, sender: int, message: m.Wrote) -> None:
        about = self.publisher._about

        def claim(*arguments: Any) -> dict[str, Any]:
            return {**about(*arguments), "position": self.log.position}

        with replaced(self.publisher, "_about", claim):
            original(self, sender, message)

    return replaced(Coordinator, "_on_wrote", on_wrote)


@mutant
def the_log_is_collected_to_the_newest_checkpoint() -> Any:
    def collect(checkpoints: Any, some_log: Log, instruction: m.Collect) -> None:
        checkpoints.collect(instruction.retain)
        manifest = checkpoints.latest()
        some_log.collect(int(manifest.about["position"]) + 1)

    return replaced(storage_calls, "_collect", collect)


@mutant
def everybody_may_append() -> Any:
    original = Log.create

    def create(self: Log, position: int, data: bytes) -> bool:
        original(self, position, data)
        return True

    return replaced(Log, "create", create)


@mutant
def owners_are_forgotten() -> Any:
    original = Log.collect

    def collect(self: Log, floor: int) -> Any:
        gone = original(self, floor)
        self.storage.delete([log.record_name(at) for at in self.positions() if at < floor])
        return gone

    return replaced(Log, "collect", collect)


@mutant
def taking_over_leaves_no_record() -> Any:
    def create(self: Any, position: int, record: bytes) -> bool:
        self._log.own(position)
        return True

    return replaced(takeover._PathOwner, "_create", create)


@mutant
def who_was_put_out_collects() -> Any:
    return replaced(Log, "has_successor", lambda self, positions=None: False)


@mutant
def what_was_looked_at_first_is_gone_on_from() -> Any:
    original = takeover._StartChoice.newest

    def newest(self: Any) -> Any:
        if getattr(self, "looked_at", None) is None:
            self.looked_at = original(self)
        return self.looked_at

    return replaced(takeover._StartChoice, "newest", newest)


@mutant
def promises_wait_for_a_checkpoint() -> Any:
    original = takeover.encode_record

    def encode(record: Any) -> bytes:
        header = {key: word for key, word in record.header.items() if key != "kept"}
        return original(replace(record, header=header))

    return replaced(takeover, "encode_record", encode)


@mutant
def whatever_was_logged_counts_as_acknowledged() -> Any:
    original = Coordinator.__init__

    def init(self: Coordinator, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self.refusals.acknowledged_before = self.next

    return replaced(Coordinator, "__init__", init)


@mutant
def published_checkpoints_are_not_surveyed() -> Any:
    original = CheckpointSaver.is_due

    def is_due(self: CheckpointSaver, completed: int, now: float | None) -> bool:
        self.unsure = False
        return original(self, completed, now)

    return replaced(CheckpointSaver, "is_due", is_due)


@mutant
def rows_are_fed_twice() -> Any:
    def shares(inputs: Any, shards: Any, routes: Any) -> Any:
        return [
            {
                name: batch.slice(batch.num_rows * index // shards.workers)
                for name, batch in inputs.items()
            }
            for index in range(shards.workers)
        ]

    return replaced(dealing, "shares_of", shares)


def _nothing(view: View) -> View:
    """A view of the same, without a row."""
    ((epoch, *rounds),) = view.upper
    return deferred(view.name, view.schema, epoch, 1 + len(rounds), lambda: None)


@mutant_of("hops")
def fetches_that_wait_are_not_saved() -> Any:
    original = Fetching.saved

    def saved(self: Fetching, epoch: int) -> Any:
        return {name: _nothing(view) for name, view in original(self, epoch).items()}

    return replaced(Fetching, "saved", saved)


@mutant_of("hops")
def fetches_wait_at_the_first_round_after_a_loss() -> Any:
    original = Fetching._restore

    def restore(self: Fetching, context: Any) -> None:
        original(self, context)
        self._waiting._blocks = [
            replace(block, rounds=(0,) * len(block.rounds)) for block in self._waiting.blocks()
        ]

    return replaced(Fetching, "_restore", restore)


@mutant_of("gathered")
def replies_that_wait_are_not_saved() -> Any:
    original = Gathering.saved

    def saved(self: Gathering, epoch: int) -> Any:
        views = original(self, epoch)
        return {n: _nothing(view) if n.endswith(REPLIES) else view for n, view in views.items()}

    return replaced(Gathering, "saved", saved)


@mutant_of("asof")
def who_begins_is_given_the_marks_it_owns() -> Any:
    return replaced(marks, "_SAVED", replace(marks._SAVED, everywhere=False))


@mutant_of("sources")
def what_sources_reported_is_forgotten() -> Any:
    original = Progressing._restored

    def restored(self: Progressing, context: Any) -> Any:
        known = original(self, context)
        self._marks = [{} for _ in self._marks]
        return known

    return replaced(Progressing, "_restored", restored)


@mutant_of("chained")
def fetches_that_were_deleted_while_they_waited_report() -> Any:
    """Either of the two that leave them out would do for what is reported: `test_sharing` has the first alone."""

    def run(self: Consolidator, time: Any, upper: Any) -> None:
        self.context.push(Changes.concat(self._held.pop(time)), 0)

    broken = contextlib.ExitStack()
    broken.enter_context(replaced(fetch, "_net", lambda pieces, time: pieces))
    broken.enter_context(replaced(Consolidator, "run", run))
    return broken


@mutant_of("kept")
def every_worker_sweeps_when_it_has_updates() -> Any:
    original = Storing._passed
    return replaced(
        Storing, "_passed", lambda self, *arguments: original(self, *arguments[:-1], True)
    )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Torn records are expected here, and not worth a warning each."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@mutant_of("long walks")
def saved_rows_stay_where_they_were() -> Any:
    original = RoundSaver.share

    def share(self: RoundSaver, index: int) -> Any:
        saved = self._saved
        assert saved is not None or not original(self, index)
        return tuple(
            replace(
                each,
                is_own=True,
                files=(*saved.loops[each.loop].workers, *((),) * 9)[index],
            )
            for each in original(self, index)
            if saved is not None
        )

    return replaced(RoundSaver, "share", share)


@mutant_of("long walks")
def parts_of_some_workers_are_enough() -> Any:
    original = RoundSaver.wrote

    def wrote(self: RoundSaver, sender: int, message: m.RoundWritten) -> None:
        if self._current is not None:
            for other in self._current.members:
                original(self, other, message if other == sender else replace(message, files=()))

    return replaced(RoundSaver, "wrote", wrote)


NOTICED_BY = {
    "saved_rows_stay_where_they_were": 28,
    "parts_of_some_workers_are_enough": 101,
    "gaps_are_ignored": 11,
    "completions_of_other_executions_count": 59,
    "refusals_are_not_logged": 33,
    "lost_messages_are_not_told": 51,
    "attempts_wait_for_the_dead": 37,
    "owners_are_forgotten": 68,
    "who_was_put_out_collects": 125,
    "what_was_looked_at_first_is_gone_on_from": 38,
    "promises_wait_for_a_checkpoint": 11,
    "published_checkpoints_are_not_surveyed": 18,
    "who_begins_is_given_the_marks_it_owns": 5,
    "fetches_that_were_deleted_while_they_waited_report": 8,
    "every_worker_sweeps_when_it_has_updates": 15,
}
"""The first seed that notices a mutant, where it is a late one: a short test begins with that seed. A change of the
simulation may move the seed; then the test searches from the start, and takes longer. (``main`` prints the seeds.)"""


def noticed(name: str, seeds: Iterable[int]) -> tuple[int, str] | None:
    """The first seed that notices, and what it says; the same seed has nothing to say where nothing is broken."""
    program = FLOWS[PROGRAMS[name]]() if name in PROGRAMS else None
    said = None
    with MUTANTS[name](), quiet():
        for seed in seeds:
            try:
                Simulation(seed, program).run()
            except UNFIT:
                raise  # the mutant does not fit what it breaks
            except Exception as error:
                if any(f" {kind.__name__}: " in str(error) for kind in UNFIT):
                    raise  # nor where a worker stopped by it
                said = seed, f"{type(error).__name__}: {str(error)[:90]}"
                break
    if said is not None:
        with quiet():
            Simulation(said[0], program).run()
    return said


def main(arguments: list[str]) -> None:
    for name in arguments or MUTANTS:
        notice = noticed(name, range(300))
        print(
            f"{name:60}",
            "NOT NOTICED" if notice is None else f"{notice[0]:4} {notice[1]}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
