"""The worker by itself: what it takes, what it drops, what it keeps."""

from __future__ import annotations

from typing import Any

import pytest

from riverrun.engine.messages import (
    COORDINATOR,
    ORIGIN,
    PINNED,
    STORAGE,
    Announce,
    Begin,
    Broken,
    Completed,
    Data,
    Failed,
    Feed,
    JoinRun,
    LeaveRun,
    NotReady,
    Outcome,
    Published,
    Read,
    Ready,
    Write,
    Wrote,
)
from riverrun.engine.worker import Worker
from riverrun.errors import CheckpointError, OperatorFailed, TransportError
from riverrun.state.shards import END, Shards
from tests.chaos.programs import CountingInstance, rows_of

HALF = Shards.even(2)
WHOLE = Shards.even(1)
LOST = TransportError("storage.unreachable", "lost", hint="")


def begin(
    execution: int, epoch: int = 0, source: int = ORIGIN, index: int = 0, shards: Shards = HALF
) -> Begin:
    return Begin(execution, epoch, source, index, shards, (1, 2)[: shards.workers])


@pytest.fixture
def worker() -> Worker:
    """Worker 1 of two, in execution 5, at epoch 0."""
    worker = Worker(1, CountingInstance)
    worker.receive(COORDINATOR, begin(5))
    assert worker.take() == [(COORDINATOR, JoinRun()), (COORDINATOR, Ready(5))]
    worker.receive(2, Data(5, 0, ("hello", 0, None)))
    while worker.work():
        pass
    worker.take()
    return worker


def finish(worker: Worker, execution: int, epoch: int, number: int) -> list[Any]:
    """Feed an epoch, say that the peer has sent nothing, and work; what goes to the coordinator."""
    worker.receive(COORDINATOR, Feed(execution, epoch, rows_of([1, 2, 3])))
    worker.receive(2, Data(execution, number, ("sent", epoch, 0)))
    while worker.work():
        pass
    return [message for to, message in worker.take() if to == COORDINATOR]


def test_an_epoch_is_done_and_pinned(worker: Worker) -> None:
    assert finish(worker, 5, 0, 1) == [Completed(5, 1)]
    assert worker.pinned == [0, 1]
    assert finish(worker, 5, 1, 2) == [Completed(5, 2)]
    assert worker.pinned == [1, 2]


def test_older_messages_are_dropped_and_newer_ones_held(worker: Worker) -> None:
    worker.receive(2, Data(4, 1, ("rows", 0, [(1, 1)])))
    worker.receive(COORDINATOR, Feed(4, 0, {}))
    worker.receive(2, Data(6, 0, ("hello", 0, None)))
    worker.receive(2, Data(6, 1, ("sent", 0, 0)))
    assert worker.instance is not None
    assert not worker.work()
    worker.receive(COORDINATOR, begin(6))
    worker.take()
    worker.receive(COORDINATOR, Feed(6, 0, {}))
    while worker.work():
        pass
    assert (COORDINATOR, Completed(6, 1)) in worker.take()


def test_everything_may_be_repeated(worker: Worker) -> None:
    for _ in range(2):
        worker.receive(COORDINATOR, begin(5))
        worker.receive(COORDINATOR, Feed(5, 0, rows_of([1, 2, 3])))
        worker.receive(2, Data(5, 1, ("sent", 0, 0)))
    while worker.work():
        pass
    sent = worker.take()
    assert sent.count((COORDINATOR, Completed(5, 1))) == 1
    for _ in range(2):
        worker.receive(COORDINATOR, Announce(5, 1, 1, 1))
        worker.receive(COORDINATOR, Published(1))
    assert len(worker.take()) == 1


def test_after_a_gap_nothing_more_is_taken_from_that_peer(worker: Worker) -> None:
    worker.receive(2, Data(5, 2, ("sent", 0, 0)))
    worker.receive(2, Data(5, 1, ("sent", 0, 0)))
    worker.receive(2, Data(5, 3, ("sent", 0, 0)))
    assert worker.take() == [(COORDINATOR, Broken(5, 2))]
    assert not worker.work()
    worker.receive(COORDINATOR, begin(6))
    worker.take()
    worker.receive(2, Data(6, 0, ("hello", 0, None)))
    assert finish(worker, 6, 0, 1) == [Completed(6, 1)]


def test_a_lost_connection_is_reported_whatever_the_execution(worker: Worker) -> None:
    worker.disconnected(2)
    worker.disconnected(2)
    worker.disconnected(9)
    assert [type(message) for _, message in worker.take()] == [Broken] * 3


def test_a_failure_ends_the_execution_and_the_next_one_goes_on(worker: Worker) -> None:
    worker.receive(COORDINATOR, Feed(5, 0, {}))
    worker.receive(2, Data(5, 1, ("rows", 0, [(-1, 1)])))
    worker.receive(2, Data(5, 2, ("sent", 0, 1)))
    while worker.work():
        pass
    (failed,) = [message for to, message in worker.take() if to == COORDINATOR]
    assert isinstance(failed, Failed)
    assert (failed.execution, failed.epoch, failed.error.code) == (5, 0, "operator.poison")
    worker.receive(2, Data(5, 3, ("rows", 0, [])))
    assert worker.take() == []
    worker.receive(COORDINATOR, begin(6, 0, PINNED))
    assert worker.take() == [(COORDINATOR, Ready(6))]


def test_what_is_no_error_of_ours_is_wrapped() -> None:
    class Raises(CountingInstance):
        def feed(self, epoch: int, inputs: Any) -> None:
            raise ZeroDivisionError("one over none")

    worker = Worker(1, Raises)
    worker.receive(COORDINATOR, begin(1, shards=WHOLE))
    worker.receive(COORDINATOR, Feed(1, 0, {}))
    error = worker.take()[-1][1].error
    assert isinstance(error, OperatorFailed)
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_an_instance_that_cannot_be_made_is_reported() -> None:
    worker = Worker(1, lambda *_: 1 // 0)  # type: ignore[arg-type, return-value]
    worker.receive(COORDINATOR, begin(1))
    failed = worker.take()[-1][1]
    assert (failed.execution, failed.epoch) == (1, None)


def test_pins_are_kept_as_long_as_somebody_may_ask(worker: Worker) -> None:
    for epoch in range(3):
        finish(worker, 5, epoch, epoch + 1)
    worker.receive(COORDINATOR, Announce(5, 1, 1, 3))
    for epoch in range(3, 6):
        finish(worker, 5, epoch, epoch + 1)
    assert worker.pinned == [3, 5, 6]  # being written; the boundary that all know; the last one
    worker.receive(COORDINATOR, Published(3))
    worker.receive(COORDINATOR, Announce(5, 2, 2, 6))
    finish(worker, 5, 6, 7)
    assert worker.pinned == [3, 6, 7]
    worker.receive(COORDINATOR, Published(6))
    assert worker.pinned == [6, 7]
    worker.receive(COORDINATOR, begin(6, 6, PINNED))
    assert worker.pinned == [6]


def test_it_writes_its_pin_and_says_what_came_of_it(worker: Worker) -> None:
    finish(worker, 5, 0, 1)
    worker.receive(COORDINATOR, Announce(5, 7, 1, 1))
    ((to, write),) = worker.take()
    assert to == STORAGE
    assert isinstance(write, Write)
    assert (write.attempt, write.number, write.ranges) == (7, 1, ((0, END // 2),))
    worker.receive(STORAGE, Outcome(write, error=LOST))
    assert worker.take() == [(COORDINATOR, Wrote(7, None, LOST))]
    worker.receive(COORDINATOR, Announce(4, 8, 1, 1))  # of an execution before
    assert worker.take() == []


def test_it_reads_only_what_it_does_not_have(worker: Worker) -> None:
    finish(worker, 5, 0, 1)
    quarter = Shards((0, END // 4, END), (0, 1), 2)
    worker.receive(COORDINATOR, begin(6, 1, 3, shards=quarter))
    assert worker.take() == [(COORDINATOR, Ready(6))]  # less than before: nothing to read
    worker.receive(COORDINATOR, begin(7, 1, 3, shards=WHOLE))
    ((to, read),) = worker.take()
    assert (to, read) == (STORAGE, Read(7, 3, ((END // 4, END),)))
    assert worker.instance is None
    worker.receive(COORDINATOR, begin(8, 1, 3, index=1))  # and now something else altogether
    assert worker.take() == [(STORAGE, Read(8, 3, ((END // 2, END),)))]
    worker.receive(STORAGE, Outcome(read, error=LOST))  # the answer to the other one
    assert worker.take() == []


def test_reads_are_tried_again_until_they_are_refused(worker: Worker) -> None:
    worker = Worker(1, CountingInstance)
    worker.receive(COORDINATOR, begin(1, 4, 2))
    worker.take()
    read = Read(1, 2, ((0, END // 2),))
    for _ in range(20):
        worker.receive(STORAGE, Outcome(read, error=LOST))
        assert worker.take() == [(COORDINATOR, NotReady(1, LOST)), (STORAGE, read)]
    missing = CheckpointError("checkpoint.missing", "gone", hint="")
    worker.receive(COORDINATOR, begin(2, 4, 2))
    assert worker.take() == []  # it is at it
    worker.receive(STORAGE, Outcome(read, error=missing))
    assert worker.take() == [(COORDINATOR, NotReady(2, missing))]
    worker.receive(COORDINATOR, begin(3, 4, 2))
    assert worker.take() == [(STORAGE, Read(3, 2, ((0, END // 2),)))]


def test_what_is_being_read_serves_whoever_begins_again(worker: Worker) -> None:
    finish(worker, 5, 0, 1)
    states = worker.instance.pin() if worker.instance is not None else {}
    worker = Worker(1, CountingInstance)
    for execution in (6, 7, 8):
        worker.receive(COORDINATOR, begin(execution, 1, 3))
    read = Read(6, 3, ((0, END // 2),))
    assert [message for to, message in worker.take() if to == STORAGE] == [read]
    worker.receive(STORAGE, Outcome(read, [states]))
    assert worker.take() == [(COORDINATOR, Ready(8))]
    # Once it has started, nothing that was read before counts: another storage may use the number.
    worker.receive(COORDINATOR, begin(9, 2, 3))
    assert worker.take() == [(STORAGE, Read(9, 3, ((0, END // 2),)))]
    worker.receive(STORAGE, Outcome(read, [states]))
    assert worker.take() == []
    assert worker.instance is None
    # What nobody lacks when it comes is forgotten, and read again by who does.
    worker.receive(COORDINATOR, begin(10, 2, PINNED))
    worker.receive(STORAGE, Outcome(Read(9, 3, ((0, END // 2),)), [states]))
    worker.take()
    worker.receive(COORDINATOR, begin(11, 2, 3))
    assert worker.take() == [(STORAGE, Read(11, 3, ((0, END // 2),)))]


def test_a_pin_that_is_not_there_is_an_error(worker: Worker) -> None:
    worker.receive(COORDINATOR, begin(6, 3, PINNED))
    ((_, answer),) = worker.take()
    assert answer.error.code == "run.not_pinned"


def test_one_that_has_left_says_nothing(worker: Worker) -> None:
    worker.receive(COORDINATOR, LeaveRun())
    worker.receive(COORDINATOR, Feed(5, 0, {}))
    worker.receive(COORDINATOR, begin(6))
    worker.disconnected(2)
    worker.tick()
    assert not worker.work()
    assert worker.take() == []
    assert worker.pinned == []


def test_a_checkpoint_of_the_very_start_has_all_states_or_is_none(worker: Worker) -> None:
    worker.receive(COORDINATOR, Announce(5, 1, 1, 0))
    ((_, write),) = worker.take()
    assert isinstance(write, Write)
    assert write.states.keys() == CountingInstance(0, HALF, 0, None).pin().keys() != set()
    worker.receive(2, Data(5, 1, 7))  # no message that the instance knows: it raises
    worker.work()
    ((_, failed),) = worker.take()
    assert isinstance(failed, Failed)
    worker.receive(COORDINATOR, Announce(5, 2, 2, 0))
    ((to, wrote),) = worker.take()
    assert (to, wrote.attempt, wrote.part) == (COORDINATOR, 2, None)
    assert wrote.error is not None
    assert wrote.error.code == "checkpoint.not_begun"
    worker.receive(COORDINATOR, begin(6))
    worker.receive(COORDINATOR, Announce(6, 3, 2, 0))
    assert [type(message) for _, message in worker.take()] == [Ready, Write]
