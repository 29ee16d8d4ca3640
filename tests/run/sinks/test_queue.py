"""Following an output: every epoch, in order, once; back-pressure; failures; closing; the past."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter

import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr
from riverrun import retry
from riverrun.run.sinks.queue import EpochChanges, Sink, SinkQueues
from riverrun.state.schema import free_name
from tests.frontends.collections.checking import Rows, any_row, build, feed
from tests.frontends.collections.reference import counted

SCHEMAS = {"rows": {"a": pl.Int64, "x": pl.Int64}}
SOON = 20.0


def unlucky(row):
    if row["a"] == 13:
        raise ValueError("unlucky")
    return [row]


def program(rows):
    return rows.flat_map(unlucky, SCHEMAS["rows"])


def fed(run, *numbers, **options):
    for number in numbers:
        run.insert("rows", [(number, 0)])
        run.commit(**options)


class Seen:
    """What a function was called with."""

    def __init__(self):
        self.calls = []
        self.threads = set()

    def __call__(self, changes, epoch):
        assert changes.epoch == epoch
        self.calls.append((epoch, changes.from_epoch, changes.rows()))
        self.threads.add(threading.current_thread())

    @property
    def epochs(self):
        return [epoch for epoch, _, _ in self.calls]

    def added_up(self):
        sums = Counter()
        for _, _, rows in self.calls:
            for *row, diff in rows:
                sums[next(iter(counted([row])))] += diff
        return {row: count for row, count in sums.items() if count}


@pytest.mark.parametrize("seed", range(20))
def test_every_epoch_in_order_once_whoever_waits(seed):
    """Epochs waited for or not, refused ones, empty ones: the changes given add up to the result."""
    print(f"seed {seed}")
    draw = random.Random(seed)
    rows, seen = Rows(any_row(SCHEMAS["rows"])), Seen()
    turns = draw.choice([None, seed])
    with build(program, SCHEMAS).run(workers=draw.randint(1, 3), seed=turns) as run:
        sink = run.for_each_epoch("result", seen)
        sink._most_epochs = draw.choice([1, 3, 64])
        waiting = []
        for _ in range(25):
            if draw.random() < 0.2:
                run.insert("rows", [(13, 1), (2, 2)])
                commit = run.commit(wait=False)
                waiting.append((commit, True))
            else:
                feed(run, "rows", rows.epoch(draw, 5))
                waiting.append((run.commit(wait=False), False))
            if draw.random() < 0.4:
                for commit, _ in draw.sample(waiting, draw.randint(0, len(waiting))):
                    try:
                        commit.wait()
                    except rr.RiverrunError as error:
                        assert "unlucky" in str(error)  # noqa: PT017
            if draw.random() < 0.1:
                run.scale(draw.randint(1, 3))
        fed(run, 7)
        rows.there[(7, 0)] += 1
        sink.wait(timeout=SOON)
        assert seen.epochs == list(range(run.completed))
        assert sink.epoch == run.epoch
        found = counted(run.read("result").rows())
        assert seen.added_up() == found == counted(rows.there.elements())
        assert len(seen.threads) == 1
        assert threading.current_thread() not in seen.threads


def test_a_refused_epoch_that_keeps_its_number_is_given_as_it_was_run():
    """With a clock it changes something all the same: it is seen at its own boundary."""
    flow = rr.Dataflow("ticking")
    rows = flow.input("rows", SCHEMAS["rows"])
    flow.output("bad", rows.flat_map(unlucky, SCHEMAS["rows"]))
    flow.output("clock", flow.clock())
    seen = Seen()
    with flow.run() as run:
        run.for_each_epoch("clock", seen)
        fed(run, 1, 13, 2, 3, wait=False)
        fed(run, 4)
        run.read("clock")
    assert seen.epochs == [0, 1, 2, 3, 4]
    assert seen.added_up() == counted(run_rows(flow, 5))


def run_rows(flow, epochs):
    with flow.run() as run:
        for _ in range(epochs):
            run.commit()
        return run.read("clock").rows()


def test_epochs_that_are_interrupted():
    """Ctrl-C while an epoch is worked on refuses it; those after it are seen all the same."""

    def function(row):
        if row["a"] == 13:
            raise KeyboardInterrupt
        return [row]

    seen = Seen()
    flow = build(lambda rows: rows.flat_map(function, SCHEMAS["rows"]), SCHEMAS)
    with flow.run() as run:
        sink = run.for_each_epoch("result", seen)
        fed(run, 1, 13, 2, wait=False)
        for _ in range(3):
            with contextlib.suppress(KeyboardInterrupt, rr.OperatorFailed):
                fed(run, 3)
            run.scale(2)
        assert sink.wait(timeout=SOON).epoch == run.epoch
        assert seen.epochs == list(range(run.completed))
        assert seen.added_up() == counted(run.read("result").rows())
        assert seen.added_up()[3, 0] == 2  # the first of the three commits was interrupted too


def test_the_past_comes_first():
    with build(program, SCHEMAS).run(history=2) as run:
        early = Seen()
        run.for_each_epoch("result", early)
        fed(run, 1, 1, 2)
        run.delete("rows", [(2, 0)])
        run.commit()
        every, now, some = Seen(), Seen(), Seen()
        run.for_each_epoch("result", every)
        assert run.for_each_epoch("result", now, start="now").epoch is None
        run.for_each_epoch("result", some, start=2)
        with pytest.raises(rr.TimeViolation) as told:
            run.for_each_epoch("result", Seen(), start=0)
        assert told.value.code == "time.compacted"
        for bad in ("al", -1, 5, True, None):
            with pytest.raises(rr.PlanError, match="start="):
                run.for_each_epoch("result", Seen(), start=bad)
        assert len(run.status()["sinks"]) == 4
        assert [each["lag"] for each in run.status()["sinks"]][2] == 0
        fed(run, 3)
    assert early.epochs == [0, 1, 2, 3, 4]
    assert every.calls == [(3, 0, [(1, 0, 2)]), (4, 4, [(3, 0, 1)])]
    assert now.calls == [(4, 4, [(3, 0, 1)])]
    assert some.calls == [(2, 2, [(2, 0, 1)]), (3, 3, [(2, 0, -1)]), (4, 4, [(3, 0, 1)])]


def test_what_is_short_enough_comes_epoch_by_epoch():
    with build(program, SCHEMAS).run(history=3) as run:
        fed(run, 1, 2)
        seen = Seen()
        run.for_each_epoch("result", seen)
    assert seen.calls == [(0, 0, [(1, 0, 1)]), (1, 1, [(2, 0, 1)])]


def test_a_commit_waits_for_a_sink_that_is_far_behind():
    gate, seen = threading.Event(), Seen()

    def slow(changes, epoch):
        gate.wait(SOON)
        seen(changes, epoch)

    with build(program, SCHEMAS).run() as run:
        sink = run.for_each_epoch("result", slow)
        sink._most_epochs = 2
        fed(run, 1, 2)
        assert run.status()["sinks"][0]["lag"] == 2
        done = threading.Event()
        thread = threading.Thread(target=lambda: (fed(run, 3), done.set()))
        thread.start()
        assert not done.wait(0.3)
        assert run.completed == 2
        assert run.status()["waiting_rows"] == {"rows": 1}  # the run can be used meanwhile
        gate.set()
        assert done.wait(SOON)
        thread.join()
        sink.wait(
            timeout=SOON
        )  # otherwise the third epoch may stand at the gate that is closed now
        sink._most_epochs, sink._most_bytes = 64, 1
        gate.clear()
        fed(run, 4)
        thread = threading.Thread(target=lambda: fed(run, 5))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        gate.set()
        thread.join(SOON)
    assert seen.epochs == [0, 1, 2, 3, 4]


def test_epochs_that_were_not_waited_for_are_bounded_too():
    most, behind = 3, []
    with build(program, SCHEMAS).run() as run:
        sink = run.for_each_epoch("result", lambda changes, epoch: time.sleep(0.002))
        sink._most_epochs = most
        give = sink.give
        sink.give = lambda changes: (give(changes), behind.append(len(sink._queue)))
        fed(run, *range(20, 40), wait=False)
        fed(run, 40)
        sink.wait(timeout=SOON)
    assert len(behind) == 21
    assert max(behind) <= most


def test_a_function_may_use_the_run():
    """Also while a commit waits for it, and while the run is closed."""
    found = []
    with build(program, SCHEMAS).run() as run:

        def function(changes, epoch):
            time.sleep(0.01)
            found.append(len(run.read("result")) >= epoch + 1)
            if epoch == 3:
                run.insert("rows", [(50, 0)])
                run.commit()

        sink = run.for_each_epoch("result", function)
        sink._most_epochs = 1
        fed(run, *range(20, 28))
    assert found == [True] * 9
    assert sink.epoch == 8


def test_a_function_that_fails_stops_its_sink_and_nothing_else():
    other = Seen()

    def function(changes, epoch):
        if epoch == 2:
            raise KeyError("mine")

    with build(program, SCHEMAS).run() as run:
        sink = run.for_each_epoch("result", function)
        run.for_each_epoch("result", other)
        fed(run, 1, 2, 3, 4, 5)
        with pytest.raises(rr.OperatorFailed, match="epoch 2 of 'result'") as told:
            sink.wait(timeout=SOON)
        assert told.value.code == "sink.function"
        assert told.value.fields["epoch"] == 2
        assert isinstance(told.value.__cause__, KeyError)
        assert sink.error is told.value
        assert sink.wait(1).epoch == 1  # what is written is written
        status = run.status()["sinks"]
        assert status[0]["epoch"] == 1
        assert status[0]["lag"] == 3
        assert "KeyError" in status[0]["error"]
        assert status[1]["error"] is None
        assert "failed" in repr(sink)
        sink.close()
        assert len(run.status()["sinks"]) == 1
    assert other.epochs == [0, 1, 2, 3, 4]


def test_a_failure_that_nobody_asked_about_is_told_on_closing():
    def function(changes, epoch):
        raise SystemExit(3)

    run = build(program, SCHEMAS).run()
    run.for_each_epoch("result", function)
    fed(run, 1)
    with pytest.warns(RuntimeWarning, match="SystemExit"):
        run.close()
    run.close()  # said once


def test_closing_lets_sinks_finish():
    seen = Seen()

    def slow(changes, epoch):
        time.sleep(0.05)
        seen(changes, epoch)

    with build(program, SCHEMAS).run() as run:
        sink = run.for_each_epoch("result", slow)
        fed(run, 1, 2, 3, 4)
        run.insert("rows", [(5, 0)])
        run.commit(wait=False)  # accepted, and not complete
    assert seen.epochs == [0, 1, 2, 3]
    assert sink.wait().epoch == 3
    assert "closed" in repr(sink)
    with pytest.raises(rr.RiverrunError, match="over before that epoch") as told:
        sink.wait(4)
    assert told.value.code == "sink.never"


def test_a_sink_that_takes_too_long_is_left_and_says_what_is_missing():
    gate = threading.Event()
    with build(program, SCHEMAS).run() as run:
        sink = run.for_each_epoch("result", lambda changes, epoch: gate.wait(SOON))
        fed(run, 1, 2, 3)
        with pytest.raises(rr.RiverrunError, match="waited") as told:
            sink.wait(timeout=0.05)
        assert told.value.code == "sink.late"
        began = time.monotonic()
        with pytest.warns(RuntimeWarning, match="from 0 to 2"):
            sink.close(timeout=0.1)
        assert time.monotonic() - began < SOON
        assert sink.error.code == "sink.unfinished"
        assert sink.error.fields["epochs"] == [0, 1, 2]
        gate.set()
        fed(run, 4)  # nobody follows any more


def test_a_closed_sink_hears_no_more():
    seen = Seen()
    with build(program, SCHEMAS).run() as run:
        with run.for_each_epoch("result", seen) as sink:
            fed(run, 1)
        fed(run, 2, 3, wait=False)
        fed(run, 4)
        assert run.status()["sinks"] == []
    assert seen.epochs == [0]
    assert sink.epoch == 0


def test_a_sink_outlives_a_run_that_dies():
    gate, seen = threading.Event(), Seen()

    def slow(changes, epoch):
        gate.wait(SOON)
        seen(changes, epoch)

    run = build(program, SCHEMAS).run()
    sink = run.for_each_epoch("result", slow)
    fed(run, 1, 2)
    run._cluster.kill(0)  # not durable: that is the end
    run._cluster.poll()
    with pytest.raises(rr.RiverrunError):
        fed(run, 3)
    gate.set()
    assert sink.wait(timeout=SOON).epoch == 1
    assert seen.added_up() == {(1, 0): 1, (2, 0): 1}
    with pytest.raises(rr.RiverrunError) as told:
        sink.wait(2, timeout=SOON)
    assert told.value.code == "sink.never"  # and not late: no epoch will come any more
    run.close()


def test_workers_that_are_lost_and_replaced(tmp_path):
    seen = Seen()
    with build(program, SCHEMAS).run(workers=2, checkpoint=tmp_path, every=2) as run:
        sink = run.for_each_epoch("result", seen)
        for number in range(20, 30):
            fed(run, number)
            if number % 3 == 0:
                run._cluster.kill(number % 2)
            if number == 24:
                late = Seen()
                run.for_each_epoch("result", late)
        sink.wait(timeout=SOON)
        assert seen.epochs == list(range(10))
    assert seen.added_up() == late.added_up() == {(n, 0): 1 for n in range(20, 30)}


def test_threads_that_commit_at_once():
    seen = Seen()
    with build(program, SCHEMAS).run() as run:
        sink = run.for_each_epoch("result", seen)
        sink._most_epochs = 2
        threads = [
            threading.Thread(target=lambda n=n: fed(run, *range(n, n + 10), wait=bool(n % 200)))
            for n in (100, 200, 300)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
        run.commit()
        sink.wait(timeout=SOON)
        assert seen.epochs == list(range(run.completed))
        assert len(seen.added_up()) == 30


def test_waiting_for_oneself_is_refused():
    with build(program, SCHEMAS).run() as run:
        sink = run.for_each_epoch("result", lambda changes, epoch: sink.wait(epoch))
        fed(run, 1)
        with pytest.raises(rr.RiverrunError, match="wait for itself"):
            sink.wait(timeout=SOON)


def test_what_cannot_be_followed():
    with build(program, SCHEMAS).run() as run:
        with pytest.raises(rr.PlanError, match="outputs are: result"):
            run.for_each_epoch("results", print)
        with pytest.raises(rr.PlanError, match="not a function"):
            run.for_each_epoch("result", 3)
    with pytest.raises(rr.RiverrunError, match="closed"):
        run.for_each_epoch("result", print)


def test_an_epoch_that_cannot_be_told_ends_the_sink():
    """Never in silence; here somebody asks the cluster behind the run's back."""
    with build(program, SCHEMAS).run() as run:
        sink = run.for_each_epoch("result", Seen())
        fed(run, 1)
        for number in (2, 3, 4):
            run.insert("rows", [(number, 0)])
            epoch = run.commit(wait=False).epoch
        run._cluster.wait(epoch)
        run.commit()
        with pytest.raises(rr.TimeViolation):
            sink.wait(epoch, timeout=SOON)


def test_workers_that_cannot_be_reached_for_a_while(monkeypatch):
    monkeypatch.setattr(retry, "DELAYS", (0.001, 0.001))
    monkeypatch.setattr(retry, "DEADLINE", 0.2)
    seen, failures = Seen(), iter([True, True, False, False])

    def changes(output, epoch):
        if next(failures, True):
            raise rr.TransportError("test.lost", "lost")
        return EpochChanges(output, pa.table({"a": [epoch], "diff": [1]}), epoch)

    sinks = SinkQueues()
    sink = Sink("out", "there", lambda changes: seen(changes, changes.epoch))
    sinks.add(sink, 0)
    sinks.hand_out(2, changes)
    assert sink.wait(timeout=SOON).epoch == 1
    sinks.hand_out(3, changes)
    with pytest.raises(rr.TransportError, match="lost"):
        sink.wait(timeout=SOON)
    assert seen.calls == [(0, 0, [(0, 1)]), (1, 1, [(1, 1)])]


def test_free_names():
    assert free_name("diff", []) == "diff"
    assert free_name("diff", ["Diff", "diff_"], any_case=True) == "diff__"
    assert free_name("Diff", ["diff"], any_case=True) == "Diff_"
    assert free_name("diff", ["Diff", "diff_"]) == "diff"
    assert free_name("diff", ["diff", "diff_"]) == "diff__"


def test_a_sink_alone():
    table = pa.table({"a": [1], "diff": [1]})
    got = []
    sink = Sink("a", "b", lambda changes: got.append(changes.epoch), epoch=4)
    assert sink.wait().epoch == 4
    assert sink.status(7)["lag"] == 2
    for epoch in (5, 6):
        sink.give(EpochChanges("a", table, epoch))
    assert sink.wait(timeout=SOON).epoch == 6
    assert got == [5, 6]
    assert sink.status(7) == {"name": "a", "place": "b", "epoch": 6, "lag": 0, "error": None}
    sink.close()


@pytest.mark.filterwarnings("ignore:the sink of")
def test_a_sink_that_writes_its_last_epoch_while_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is told of a sink that was too slow is told of one moment."""
    writing, go_on = threading.Event(), threading.Event()

    def write(_: EpochChanges) -> None:
        writing.set()
        go_on.wait()

    sink = Sink("words", "a list", write)
    sink.give(EpochChanges("words", pa.table({"word": ["sea"], "diff": [1]}), 0))
    writing.wait()
    unfinished = sink._unfinished

    def after_the_write() -> rr.RiverrunError:
        go_on.set()
        sink._thread.join(0.5)
        return unfinished()

    monkeypatch.setattr(sink, "_unfinished", after_the_write)
    sink.close(timeout=0.0)
    sink._thread.join(60)
    assert not sink._thread.is_alive()
    assert sink.error is not None
    assert sink.error.fields["epochs"] == [0]
