"""The coordinator by itself: what it waits for, what it drops, where it goes back to."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from riverrun.engine.coordinator.checkpointing import CheckpointSaver
from riverrun.engine.coordinator.coordinator import Coordinator
from riverrun.engine.coordinator.epochs import QUERIES, OpenEpoch, OpenEpochs
from riverrun.engine.coordinator.phases import Phase
from riverrun.engine.messages import (
    CLIENT,
    ORIGIN,
    PINNED,
    STORAGE,
    SUPERVISOR,
    Announce,
    AppendRecord,
    Begin,
    Broken,
    Closed,
    Completed,
    Failed,
    Feed,
    Heartbeat,
    JoinRun,
    LeaveRun,
    Logged,
    Notice,
    NotReady,
    Outcome,
    Publish,
    Published,
    Ready,
    Recall,
    Refused,
    Reported,
    Saved,
    Scaled,
    Start,
    Stop,
    Survey,
    SurveyResult,
    Wrote,
)
from riverrun.errors import CheckpointError, OperatorFailed, RiverrunError, TransportError
from riverrun.state.shards import END, Shards
from riverrun.storage.checkpoint import StatePart
from riverrun.storage.takeover import Opening, PendingEpoch

POISON = OperatorFailed("operator.poison", "poison", hint="")
LOST = TransportError("storage.unreachable", "lost", hint="")
NEW = Opening(owner=0, number=0, epoch=0, start=0, top=0, next=1, pending=())


class Bench:
    """A coordinator, and workers that answer at once unless told otherwise."""

    def __init__(self, workers: int = 2, opening: Opening | None = NEW, **options: Any) -> None:
        self.coordinator = Coordinator(workers, opening=opening, **options)
        self.log: list[tuple[int, Any]] = []
        self.turn()
        self.join()
        self.ready()

    def turn(self) -> list[tuple[int, Any]]:
        out = self.coordinator.take()
        self.log += out
        return out

    def tell(self, sender: int, message: Any) -> list[tuple[int, Any]]:
        self.coordinator.receive(sender, message)
        return self.turn()

    def join(self) -> None:
        for member in list(self.coordinator.members):
            self.tell(member, JoinRun())

    def ready(self) -> None:
        for member in list(self.coordinator.members):
            self.tell(member, Ready(self.coordinator.execution))

    def complete(self) -> list[tuple[int, Any]]:
        coordinator, out = self.coordinator, []
        for member in list(coordinator.members):
            out += self.tell(member, Completed(coordinator.execution, coordinator.released))
        return out

    def submit(self, inputs: Any = None, answer: bool = True) -> list[tuple[int, Any]]:
        self.coordinator.submit(inputs or {})
        out = self.turn()
        for to, message in list(out):
            if answer and to == STORAGE:
                out += self.tell(STORAGE, Outcome(message))
        return out

    def write(self, base: int = 0) -> list[tuple[int, Any]]:
        """All members write their parts."""
        attempt = self.coordinator.saver.attempt
        assert attempt is not None
        out = []
        for member in attempt.members:
            out += self.tell(member, Wrote(attempt.id, StatePart(attempt.number, base, {})))
        return out

    def publish(self, base: int = 0) -> list[tuple[int, Any]]:
        ((_, publish),) = of(self.write(base), Publish)
        return self.tell(STORAGE, Outcome(publish))


def of(out: list[tuple[int, Any]], *kinds: type) -> list[tuple[int, Any]]:
    return [(to, message) for to, message in out if isinstance(message, kinds)]


def test_it_gathers_then_begins_then_feeds() -> None:
    coordinator = Coordinator(2)
    assert coordinator.take() == [(SUPERVISOR, Start(1)), (SUPERVISOR, Start(2))]
    coordinator.submit({"a": pa.record_batch({"n": [1, 2, 3]})})
    coordinator.receive(1, JoinRun())
    assert coordinator.take() == []
    coordinator.receive(2, JoinRun())
    shards = Shards.even(2)
    assert coordinator.take() == [
        (1, Begin(1, 0, ORIGIN, 0, shards, (1, 2))),
        (2, Begin(1, 0, ORIGIN, 1, shards, (1, 2))),
    ]
    coordinator.receive(1, Ready(1))
    assert coordinator.take() == []
    coordinator.receive(2, Ready(1))
    feeds = coordinator.take()
    assert [(to, feed.epoch, feed.inputs["a"].num_rows) for to, feed in feeds] == [
        (1, 0, 1),
        (2, 0, 2),
    ]


def test_an_epoch_is_released_when_logged_and_when_the_one_before_is_complete() -> None:
    bench = Bench()
    ((_, append),) = bench.submit(answer=False)
    assert isinstance(append, AppendRecord)
    assert bench.submit(answer=False) == []  # one at a time
    out = bench.tell(STORAGE, Outcome(append))
    assert of(out, Logged) == [(CLIENT, Logged(0))]
    assert len(of(out, Feed)) == 2
    ((_, second),) = of(out, AppendRecord)
    assert of(bench.tell(STORAGE, Outcome(second)), Feed) == []
    out = bench.complete()
    assert of(out, Reported) == [(CLIENT, Reported(0))]
    assert [feed.epoch for _, feed in of(out, Feed)] == [1, 1]


def test_appends_are_tried_again_and_a_foreign_record_ends_the_run() -> None:
    bench = Bench()
    ((_, append),) = bench.submit(answer=False)
    assert of(bench.tell(STORAGE, Outcome(append, error=LOST)), AppendRecord) == [(STORAGE, append)]
    taken = CheckpointError("log.taken", "taken", hint="")
    out = bench.tell(STORAGE, Outcome(append, error=taken))
    assert (CLIENT, Closed(taken)) in out
    assert of(out, LeaveRun) == [(1, LeaveRun()), (2, LeaveRun())]
    with pytest.raises(RiverrunError, match="closed"):
        bench.coordinator.submit({})


def test_a_storage_that_stays_away_is_waited_for_and_said() -> None:
    bench = Bench()
    bench.coordinator.tick(100.0)
    bench.submit()
    ((_, append),) = bench.submit({"a": pa.record_batch({"n": [1, 2]})}, answer=False)
    said = []
    for second in range(35):
        bench.coordinator.tick(100.0 + second)
        said += of(bench.turn(), Notice)
        out = bench.tell(STORAGE, Outcome(append, error=LOST))
        assert of(out, AppendRecord) == [(STORAGE, append)]
        said += of(out, Notice)
        if second == 5:  # what is in the log is worked on meanwhile
            bench.complete()
            assert bench.coordinator.completed == 1
    status = bench.coordinator.status()["log"]
    assert status == {"lag": 1, "bytes": 16, "behind": 34.0, "error": "lost"}
    assert [notice.level for _, notice in said] == [logging.WARNING] * 4
    out = bench.tell(STORAGE, Outcome(append))
    assert [notice.level for _, notice in of(out, Notice)] == [logging.INFO]
    assert of(out, Logged) == [(CLIENT, Logged(1))]
    assert len(of(out, Feed)) == 2
    assert bench.coordinator.status()["log"] == {
        "lag": 0, "bytes": 0, "behind": None, "error": None,
    }  # fmt: skip


@pytest.mark.parametrize("hangs", [False, True])
def test_patience_has_an_end(hangs: bool) -> None:
    bench = Bench(storage_timeout=5.0)
    bench.coordinator.tick(100.0)
    ((_, append),) = bench.submit(answer=False)
    for second in (0.0, 3.0, 4.9):
        if not hangs:
            bench.tell(STORAGE, Outcome(append, error=LOST))
        bench.coordinator.tick(100.0 + second)
        assert bench.coordinator.error is None
    bench.coordinator.tick(105.0)
    error = bench.coordinator.error
    assert isinstance(error, TransportError)
    assert error.code == "storage.timeout"
    assert "epoch 0" in error.message


def test_a_storage_that_does_not_answer_is_said() -> None:
    bench = Bench()
    bench.coordinator.tick(100.0)
    bench.submit(answer=False)
    bench.coordinator.tick(100.5)
    assert bench.coordinator.status()["log"]["behind"] is None
    bench.coordinator.tick(103.0)
    assert bench.coordinator.status()["log"]["behind"] == 3.0
    assert of(bench.turn(), Notice) == []
    bench.coordinator.tick(110.0)
    ((_, notice),) = of(bench.turn(), Notice)
    assert "for 10 s: the storage does not answer" in notice.text


def test_a_permission_that_is_gone_for_a_while_is_an_outage_and_a_defect_is_none() -> None:
    for code, ends in (("checkpoint.refused", False), ("checkpoint.raised", True)):
        bench = Bench()
        ((_, append),) = bench.submit(answer=False)
        bench.tell(STORAGE, Outcome(append, error=CheckpointError(code, "no", hint="")))
        assert (bench.coordinator.phase is Phase.CLOSED) == ends


def test_workers_that_cannot_read_are_waited_for() -> None:
    bench = Bench(every=1, storage_timeout=60.0)
    bench.coordinator.tick(100.0)
    bench.submit()
    bench.complete()
    bench.publish()
    bench.coordinator.lost(1)
    bench.turn()
    bench.join()
    assert len(of(bench.tell(3, NotReady(2, LOST)), Notice)) == 1
    bench.coordinator.tick(120.0)
    assert bench.coordinator.status()["recovery"] == {"behind": 20.0, "error": "lost"}
    bench.ready()
    assert bench.coordinator.phase is Phase.RUNNING
    assert bench.coordinator.status()["recovery"] == {"behind": None, "error": None}
    bench.coordinator.lost(2)
    bench.turn()
    bench.join()
    bench.tell(4, NotReady(3, LOST))
    bench.coordinator.tick(180.0)
    assert bench.coordinator.error is not None
    assert bench.coordinator.error.code == "storage.timeout"


def test_a_checkpoint_that_failed_comes_about_when_nothing_else_happens() -> None:
    for every in (1, timedelta(hours=1)):
        bench = Bench(every=every)
        bench.coordinator.tick(0.0)
        bench.submit()
        bench.complete()
        bench.coordinator.tick(1.0)
        bench.coordinator.tick(3601.0)
        now = 3601.0
        for _ in range(8):
            attempt = bench.coordinator.saver.attempt
            assert attempt is not None
            bench.tell(1, Wrote(attempt.id, None, LOST))
            assert bench.coordinator.saver.attempt is None
            for _ in range(31):
                now += 1.0
                bench.coordinator.tick(now)
                if bench.coordinator.saver.attempt is not None:
                    break
        assert bench.coordinator.status()["checkpoint"]["behind"] > 3601
        bench.publish()
        bench.coordinator.tick(now + 2)
        assert bench.coordinator.saver.epoch == 1
        assert bench.coordinator.status()["checkpoint"]["behind"] == 2


def test_a_refused_epoch_is_logged_before_anybody_knows() -> None:
    bench = Bench()
    bench.submit()
    bench.submit()
    out = bench.tell(1, Failed(1, 0, POISON))
    assert [type(message) for _, message in out] == [AppendRecord]
    assert bench.tell(2, Failed(1, 0, POISON)) == []  # it is known
    assert bench.tell(2, Completed(1, 1)) == []
    out = bench.tell(STORAGE, Outcome(out[0][1]))
    assert out[0] == (CLIENT, Refused(0, POISON))
    assert [(b.execution, b.epoch, b.source) for _, b in of(out, Begin)] == [(2, 0, PINNED)] * 2
    bench.ready()
    assert [feed.inputs for _, feed in of(bench.log, Feed)][-2:] == [{}, {}]
    assert of(bench.complete(), Reported) == []  # its end is no news
    assert of(bench.complete(), Reported) == [(CLIENT, Reported(1))]


def test_the_number_of_the_last_epoch_is_used_again_once_the_refusal_is_logged() -> None:
    bench = Bench()
    bench.submit()
    ((_, append),) = bench.tell(1, Failed(1, 0, POISON))
    assert bench.coordinator.next == 1
    bench.tell(STORAGE, Outcome(append))
    assert bench.coordinator.next == 0


def test_a_member_lost_while_a_refusal_is_logged() -> None:
    bench = Bench()
    bench.submit()
    bench.submit()
    ((_, append),) = bench.tell(1, Failed(1, 0, POISON))
    bench.coordinator.lost(2)
    bench.turn()
    bench.join()
    bench.ready()
    assert of(bench.log, Feed)[-1][1].execution == 1  # nothing is fed before the log knows
    out = bench.tell(STORAGE, Outcome(append))
    assert of(out, Refused)
    assert [feed.inputs for _, feed in of(out, Feed)] == [{}, {}]


def test_an_epoch_that_was_reported_cannot_be_refused() -> None:
    bench = Bench()
    bench.submit()
    bench.complete()
    bench.coordinator.lost(1)
    bench.turn()
    bench.join()
    bench.ready()
    assert bench.coordinator.released == 1
    bench.tell(2, Failed(2, 0, POISON))
    error = bench.coordinator.error
    assert error is not None
    assert error.code == "run.not_repeatable"
    assert error.__cause__ is POISON


def test_nor_one_that_the_owner_before_reported() -> None:
    pending = (PendingEpoch(1, {}), PendingEpoch(2, {}))
    opening = Opening(4, 0, 0, 0, 0, 5, pending, reported=1)
    bench = Bench(1, opening)
    bench.tell(1, Failed(1, 0, POISON))
    assert bench.coordinator.error is not None
    bench = Bench(1, opening)
    bench.complete()
    bench.tell(1, Failed(1, 1, POISON))
    assert bench.coordinator.phase is Phase.REFUSING


def test_failures_with_nothing_under_way_do_not_go_on_for_ever() -> None:
    bench = Bench()
    bench.submit()
    bench.complete()
    for _ in range(2):
        bench.tell(1, Failed(bench.coordinator.execution, 0, POISON))
        assert bench.coordinator.phase is Phase.STARTING
        bench.ready()
    bench.tell(1, Failed(bench.coordinator.execution, 0, POISON))
    assert bench.coordinator.error is POISON


def test_an_instance_that_cannot_be_made_ends_the_run() -> None:
    bench = Bench()
    bench.tell(1, Failed(1, None, POISON))
    assert bench.coordinator.error is POISON


def test_what_is_of_another_execution_or_of_a_stranger_is_dropped() -> None:
    bench = Bench()
    bench.submit()
    bench.tell(1, Completed(0, 1))
    bench.tell(2, Completed(1, 1))
    assert bench.coordinator.completed == 0
    assert bench.tell(9, Completed(1, 1)) == [(9, LeaveRun())]
    assert bench.tell(9, JoinRun()) == [(9, LeaveRun())]
    assert bench.coordinator.completed == 0


def test_a_lost_worker_is_replaced_from_the_checkpoint() -> None:
    bench = Bench(every=2)
    for _ in range(4):
        bench.submit()
        bench.complete()
        if bench.coordinator.completed == 2:
            bench.publish()
    bench.coordinator.lost(1)
    out = bench.turn()
    assert (1, LeaveRun()) in out
    assert (SUPERVISOR, Stop(1)) in out
    assert (SUPERVISOR, Start(3)) in out
    assert bench.tell(1, Completed(1, 5)) == [(1, LeaveRun())]
    out = bench.tell(3, JoinRun())
    assert [(to, b.epoch, b.source, b.index, b.peers) for to, b in of(out, Begin)] == [
        (3, 2, 1, 0, (3, 2)),
        (2, 2, 1, 1, (3, 2)),
    ]
    bench.ready()
    assert bench.coordinator.reported == 4
    assert of(bench.complete() + bench.complete(), Reported) == []
    bench.submit()
    assert of(bench.complete(), Reported) == [(CLIENT, Reported(4))]


def test_or_its_range_is_spread() -> None:
    bench = Bench(3, policy="spread")
    bench.coordinator.lost(2)
    out = bench.turn()
    assert [(to, b.index, b.shards, b.peers) for to, b in of(out, Begin)] == [
        (1, 0, Shards.even(2), (1, 3)),
        (3, 1, Shards.even(2), (1, 3)),
    ]


def test_what_makes_up_for_a_loss_lets_the_epochs_that_wait_go_first() -> None:
    bench = Bench(3, policy="spread")
    for _ in range(2):
        bench.submit()
        bench.complete()
    bench.coordinator.lost(2)
    out = bench.turn()
    bench.submit()  # somebody waits for it
    assert of(out, Start) == []
    assert len(of(out, Begin)) == 2
    bench.ready()
    for _ in range(2):
        assert of(bench.complete(), Start) == []
    out = bench.complete()
    assert of(out, Reported) == [(CLIENT, Reported(2))]
    assert of(out, Start) == [(SUPERVISOR, Start(4))]
    bench.submit()
    bench.submit()
    bench.tell(4, JoinRun())
    assert of(bench.complete(), Announce) == []
    bench.submit()  # it comes after the newcomer
    out = bench.complete()
    assert [(to, a.epoch) for to, a in of(out, Announce)] == [(1, 5), (3, 5)]
    assert of(out, Feed) == []
    assert [to for to, _ in of(bench.publish(), Begin)] == [1, 3, 4]
    bench.ready()
    assert bench.coordinator.members == [1, 3, 4]
    assert of(bench.complete(), Reported) == [(CLIENT, Reported(5))]


def test_and_does_not_wait_for_epochs_that_nobody_works_on() -> None:
    bench = Bench(3, policy="spread")
    bench.submit()
    bench.complete()
    bench.coordinator.allow(1)
    bench.submit()
    bench.coordinator.lost(2)
    bench.turn()
    bench.ready()
    assert of(bench.complete(), Start) == [(SUPERVISOR, Start(4))]
    assert of(bench.tell(4, JoinRun()), Announce) != []


def test_nor_holds_them_up_while_checkpoints_fail() -> None:
    bench = Bench(3, policy="spread")
    for _ in range(2):
        bench.submit()
        bench.complete()
    bench.coordinator.lost(2)
    bench.turn()
    bench.ready()
    for _ in range(2):
        bench.complete()
    bench.tell(4, JoinRun())
    for epoch in range(2, 5):
        bench.submit()
        attempt = bench.coordinator.saver.attempt
        assert attempt is not None
        assert attempt.epoch == epoch
        out = bench.tell(attempt.members[0], Wrote(attempt.id, None, LOST))
        assert [(to, feed.epoch) for to, feed in of(out, Feed)] == [(1, epoch), (3, epoch)]
        assert [to for to, _ in of(bench.complete(), Announce)] == [1, 3]
    assert [to for to, _ in of(bench.publish(), Begin)] == [1, 3, 4]


def test_one_that_somebody_asked_for_is_called_at_once() -> None:
    bench = Bench(2, policy="spread")
    bench.submit()
    bench.coordinator.scale(3)
    assert of(bench.turn(), Start) == [(SUPERVISOR, Start(3))]
    bench.coordinator.lost(3)
    assert of(bench.turn(), Start) == [(SUPERVISOR, Start(4))]


def test_silence_is_death_after_a_deadline() -> None:
    bench = Bench(deadline=3)
    for _ in range(4):
        bench.tell(2, Heartbeat())
        bench.coordinator.tick()
        assert bench.coordinator.members == [1, 2] or bench.coordinator.members == [3, 2]
    assert bench.coordinator.members == [3, 2]
    assert bench.coordinator.phase is Phase.GATHERING


def test_a_broken_connection_begins_again_where_all_are() -> None:
    bench = Bench()
    bench.submit()
    bench.complete()
    bench.submit()
    out = bench.tell(1, Broken(1, 2))
    assert [(b.execution, b.epoch, b.source) for _, b in of(out, Begin)] == [(2, 1, PINNED)] * 2
    out = bench.tell(2, Broken(1, 1))  # of the execution before: something of this one may be lost
    assert [(b.execution, b.epoch, b.source) for _, b in of(out, Begin)] == [(3, 1, PINNED)] * 2


def test_a_checkpoint_is_published_when_all_parts_are_there() -> None:
    bench = Bench(every=1)
    bench.submit()
    out = bench.complete()
    assert [(to, a.number, a.epoch) for to, a in of(out, Announce)] == [(1, 1, 1), (2, 1, 1)]
    part = StatePart(1, 0, {})
    assert bench.tell(1, Wrote(1, part)) == []
    assert bench.tell(1, Wrote(1, part)) == []
    assert bench.tell(2, Wrote(0, part)) == []
    assert bench.tell(3, Wrote(1, part)) == [(3, LeaveRun())]
    ((to, publish),) = bench.tell(2, Wrote(1, part))
    assert to == STORAGE
    assert publish.about["epoch"] == 1
    assert publish.about["position"] == 2
    assert publish.about["shards"] == [["0", 0], [f"{END // 2:x}", 1]]
    out = bench.tell(STORAGE, Outcome(publish))
    assert of(out, Saved) == [(CLIENT, Saved(1, 1))]
    assert of(out, Published) == [(1, Published(1)), (2, Published(1))]


def test_epochs_go_on_while_it_is_written_and_a_failure_is_made_up_for() -> None:
    bench = Bench(every=1)
    bench.submit()
    bench.complete()
    bench.submit()
    bench.complete()
    assert bench.coordinator.reported == 2
    out = bench.tell(1, Wrote(1, None, LOST))
    assert of(out, Saved) == [(CLIENT, Saved(1, 1, LOST))]
    assert bench.coordinator.status()["checkpoint"]["failures"] == 1
    assert bench.tell(2, Wrote(1, StatePart(1, 0, {}))) == []
    for _ in range(3):
        bench.submit()
        bench.complete()
    assert [a.attempt for _, a in of(bench.log, Announce)] == [1, 1, 2, 2]


def test_a_checkpoint_survives_a_refusal_and_not_a_loss() -> None:
    bench = Bench(every=1)
    bench.submit()
    bench.complete()
    bench.submit()
    ((_, append),) = bench.tell(1, Failed(1, 1, POISON))
    bench.tell(STORAGE, Outcome(append))
    bench.ready()
    assert of(bench.publish(), Saved) == [(CLIENT, Saved(1, 1))]
    bench.submit()
    bench.complete()
    assert bench.coordinator.saver.attempt is not None
    bench.coordinator.lost(2)
    assert bench.coordinator.saver.attempt is None


def test_a_publish_whose_answer_was_lost_is_repeated() -> None:
    bench = Bench(every=1)
    bench.submit()
    bench.complete()
    ((_, publish),) = of(bench.write(), Publish)
    assert bench.tell(STORAGE, Outcome(publish, error=LOST)) == [(STORAGE, publish)]


def overtaken(owner: int, epoch: int, position: int) -> tuple[Bench, list[tuple[int, Any]]]:
    """Somebody else has published number 1; the survey that follows finds it."""
    opening = Opening(5, 0, 0, 0, 0, 6, tuple(PendingEpoch(at, {}) for at in range(1, 5)))
    bench = Bench(1, opening, every=1)
    bench.complete()
    ((_, publish),) = of(bench.write(), Publish)
    conflict = CheckpointError("checkpoint.conflict", "conflict", hint="")
    bench.tell(STORAGE, Outcome(publish, error=conflict))
    bench.coordinator.checkpoint()
    bench.turn()
    bench.complete()
    assert (STORAGE, Survey()) in bench.log
    about = {"owner": owner, "epoch": epoch, "position": position}
    return bench, bench.tell(STORAGE, Outcome(Survey(), SurveyResult(1, about, 1)))


def test_a_checkpoint_of_the_owner_before_changes_the_numbers() -> None:
    bench, out = overtaken(owner=0, epoch=1, position=1)
    assert bench.coordinator.error is None
    assert out == []  # an epoch is under way: at the next boundary
    assert [a.number for _, a in of(bench.complete(), Announce)] == [2]


def test_a_checkpoint_that_was_asked_for_is_tried_again_behind_that_of_the_owner_before() -> None:
    bench = Bench()
    bench.submit()
    bench.complete()
    bench.coordinator.checkpoint()
    bench.turn()
    ((_, publish),) = of(bench.write(), Publish)
    conflict = CheckpointError("checkpoint.conflict", "conflict", hint="")
    assert bench.tell(STORAGE, Outcome(publish, error=conflict)) == [(STORAGE, Survey())]
    survey = SurveyResult(1, {"owner": 0, "epoch": 0, "position": 0}, 1)
    assert of(bench.tell(STORAGE, Outcome(Survey(), survey)), Announce)
    ((_, publish),) = of(bench.write(base=1), Publish)
    assert publish.number == 2
    saved = of(bench.tell(STORAGE, Outcome(publish)), Saved)
    assert saved == of(bench.log, Saved) == [(CLIENT, Saved(2, 1))]


def test_no_checkpoint_covers_less_of_the_log_than_the_one_before() -> None:
    bench, out = overtaken(owner=0, epoch=4, position=5)
    assert out == []
    assert bench.coordinator.saver.number == 0  # and it is ahead of us: we do not go there
    assert of(bench.complete(), Announce) == []
    assert [(a.number, a.epoch) for _, a in of(bench.complete(), Announce)] == [(2, 4)]


def test_a_checkpoint_of_a_later_owner_ends_the_run() -> None:
    bench, _ = overtaken(owner=7, epoch=1, position=9)
    assert bench.coordinator.error is not None
    assert bench.coordinator.error.code == "checkpoint.taken_over"


def test_scaling_waits_for_the_boundary_and_its_checkpoint() -> None:
    bench = Bench()
    bench.submit()
    bench.coordinator.scale(3)
    bench.submit()
    out = bench.complete()
    assert len(of(out, Feed)) == 2  # until the new one is there, epochs go on
    assert of(bench.log, Start)[-1] == (SUPERVISOR, Start(3))
    bench.tell(3, JoinRun())
    bench.submit()
    out = bench.complete()
    assert of(out, Feed) == []
    assert len(of(out, Announce)) == 2
    out = bench.publish()
    assert [(b.epoch, b.source, b.shards) for _, b in of(out, Begin)] == [
        (2, 1, Shards.even(2).resized(3))
    ] * 3
    bench.ready()
    assert of(bench.log, Scaled) == [(CLIENT, Scaled(3))]
    assert len(of(bench.log, Feed)[-3:]) == 3
    bench.complete()
    bench.coordinator.scale(1)
    bench.turn()
    out = bench.publish(base=1)
    assert of(out, Stop) == [(SUPERVISOR, Stop(2)), (SUPERVISOR, Stop(3))]


def test_states_that_cannot_be_read_end_the_run() -> None:
    bench = Bench(every=1)
    bench.submit()
    bench.complete()
    bench.publish()
    bench.coordinator.lost(1)
    bench.turn()
    bench.join()
    missing = CheckpointError("checkpoint.missing", "gone", hint="")
    bench.tell(3, NotReady(1, missing))
    assert bench.coordinator.error is None  # that was another execution
    bench.tell(3, NotReady(2, missing))
    assert bench.coordinator.error is missing


def test_by_time() -> None:
    saver = CheckpointSaver(every=timedelta(seconds=10))
    assert not saver.is_due(1, None)
    assert not saver.is_due(1, 100.0)
    assert not saver.is_due(2, 109.0)
    assert saver.is_due(2, 110.0)
    assert not CheckpointSaver(every=timedelta(seconds=0)).is_due(0, 1.0)  # nothing has happened


def test_rows_that_do_not_fit_are_read_from_the_log_again() -> None:
    coordinator = Coordinator(1, opening=Opening(0, 0, 0, 0, 0, 1, ()), keep=0)
    rows = {"n": pa.record_batch({"n": [1, 2, 3]})}
    coordinator.submit(rows)
    for message in JoinRun(), Ready(1):
        coordinator.receive(1, message)
    (append,) = [message for to, message in coordinator.take() if to == STORAGE]
    coordinator.receive(STORAGE, Outcome(append))
    coordinator.receive(1, Completed(1, 1))
    coordinator.take()
    coordinator.lost(1)
    coordinator.receive(2, JoinRun())
    coordinator.receive(2, Ready(2))
    asked = [(to, message) for to, message in coordinator.take() if type(message) is Recall]
    assert asked == [(STORAGE, Recall(append.position))]
    lost = TransportError("storage.unreachable", "gone", hint="")
    coordinator.receive(STORAGE, Outcome(Recall(append.position), error=lost))
    assert of(coordinator.take(), Recall) == [(STORAGE, Recall(append.position))]  # once more
    coordinator.receive(STORAGE, Outcome(Recall(append.position), rows))
    ((to, feed),) = of(coordinator.take(), Feed)
    assert (to, feed.inputs) == (2, rows)


def test_rows_that_a_run_did_not_bring_along_are_read_when_it_is_their_turn() -> None:
    rows = {"n": pa.record_batch({"n": [1, 2, 3]})}
    pending = tuple(PendingEpoch(at, {}, dropped=True, names=("n",)) for at in (1, 2, 3))
    coordinator = Coordinator(1, opening=Opening(4, 0, 0, 0, 0, 5, pending), keep=0)
    fed: list[Feed] = []
    for message in JoinRun(), Ready(1):
        coordinator.receive(1, message)
    for epoch in range(3):
        ((_, recall),) = of(coordinator.take(), Recall)
        assert recall.position == epoch + 1
        coordinator.receive(STORAGE, Outcome(recall, {**rows, "other": rows["n"]}))
        fed += [feed for _, feed in of(coordinator.take(), Feed)]
        coordinator.receive(1, Completed(1, epoch + 1))
        assert sum(bool(entry.inputs) for entry in coordinator._epochs._entries.values()) == 0
    assert [(feed.epoch, feed.inputs) for feed in fed] == [(epoch, rows) for epoch in range(3)]


def test_of_rows_that_were_recalled_and_not_done_one_epoch_at_a_time_is_kept() -> None:
    rows = {"n": pa.record_batch({"n": [1, 2, 3]})}
    epochs = OpenEpochs(0, keep=0)
    for epoch in range(4):
        epochs.add(epoch, OpenEpoch(epoch + 1, rows))
        epochs.drop_rows(epoch)
    for position in (4, 3, 1):  # the run went back again and again
        epochs.recalled(position, rows)
        there = [epoch for epoch in range(4) if epochs[epoch].inputs]
        assert there == [position - 1]
        assert [epochs[epoch].dropped for epoch in range(4)] == [e not in there for e in range(4)]
    epochs.recalled(4, rows)
    assert epochs[3].inputs == rows


def test_the_last_batch_of_each_query_of_a_stream_is_known() -> None:
    epochs = OpenEpochs(0)
    batches = [("one", 0), ("one", 1), ("two", 0), ("one", 2), ("refused", 0)]
    for epoch, (query, number) in enumerate(batches):
        epochs.add(epoch, OpenEpoch(epoch, {}, offsets={"s": [query, number]}))
    epochs[4].refuse()
    known = {"s": [["two", 0], ["one", 2]]}
    assert epochs.offsets_before(2) == {"s": [["one", 1]]}
    for floor in range(6):  # whether these epochs are open or not
        epochs.forget(floor)
        assert epochs.offsets_before(5) == known
    for at in range(QUERIES - 1):
        epochs.add(5 + at, OpenEpoch(5 + at, {}, offsets={"s": [f"query {at}", 7]}))
    offsets = epochs.offsets_before(100)["s"]
    assert (len(offsets), offsets[0], offsets[-1][1]) == (QUERIES, ["one", 2], 7)
    assert epochs.offsets_before(5) == known


def test_offsets_of_a_checkpoint_of_an_earlier_version_count() -> None:
    assert OpenEpochs(0, {"s": ["one", 3]}).offsets_before(0) == {"s": [["one", 3]]}
    assert OpenEpochs(0, {"s": [["one", 3], ["two", 0]]}).offsets_before(0) == {
        "s": [["one", 3], ["two", 0]]
    }
