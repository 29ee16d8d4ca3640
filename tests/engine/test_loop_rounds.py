"""Loops that are still going are said: by name, with their round, and with the rows that change in it."""

from __future__ import annotations

import logging
import sys
import time
from threading import Thread

import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr
from riverrun.engine import loop_rounds
from riverrun.engine.events import Events
from riverrun.engine.instance import Maker
from riverrun.engine.loop_rounds import AGAIN, FIRST, LongLoops, LoopRound
from riverrun.engine.messages import Loops
from riverrun.errors import BadMessage
from riverrun.run import progress_line
from riverrun.runtime import local, worker_process
from riverrun.runtime.codec import shapes
from riverrun.runtime.remote import RemoteCluster
from tests.runtime.launchers import Threads


def reach(round_, rows=2, epoch=0):
    return LoopRound("reach", "app.py:3", (epoch, round_), rows)


def said(loops):
    return [(event["rounds"], event["rows"]) for event in loops.events.list("long loop")]


def test_a_loop_is_said_after_a_while_and_again_while_its_rounds_go_on(caplog):
    loops = LongLoops(Events())
    seconds = 0.0
    for seconds in range(int(FIRST)):
        loops.hear(1, [reach(seconds)], seconds)
    assert said(loops) == []
    loops.hear(1, [reach(500)], FIRST)
    assert said(loops) == [([500], 2)]
    loops.hear(1, [reach(600)], FIRST + AGAIN / 2)
    loops.hear(1, [reach(500)], FIRST + AGAIN)  # it is where it was: one call takes long
    assert said(loops) == [([500], 2)]
    loops.hear(1, [reach(700)], FIRST + AGAIN)
    assert said(loops) == [([500], 2), ([700], 2)]
    assert caplog.messages[0] == (
        "the loop 'reach' (app.py:3) is still going after 10 s, in epoch 0: in round 500, 2 rows change. "
        f"Hint: {loop_rounds.HINT}"
    )


def test_another_epoch_and_a_loop_that_came_to_rest_begin_anew():
    loops = LongLoops(Events())
    for number, seconds in enumerate((0, FIRST - 1, FIRST + 1, 2 * FIRST)):
        loops.hear(1, [reach(number, epoch=number // 2)], seconds)
    assert said(loops) == []
    loops.hear(1, [], 2 * FIRST)
    loops.hear(1, [reach(9)], 4 * FIRST)
    assert said(loops) == []


def test_what_workers_say_is_added_up():
    loops = LongLoops(Events())
    inner = LoopRound("outer/inner", "app.py:7", (3, 5, 40), 1)
    loops.hear(1, [reach(7, epoch=3), inner], 0.0)
    loops.hear(2, [reach(7, rows=3, epoch=3)], 0.0)
    loops.hear(3, [reach(6, rows=99, epoch=3)], 0.0)
    assert list(map(str, loops.going())) == [
        "loop 'outer/inner': round 5/40, 1 rows change",
        "loop 'reach': round 7, 5 rows change",
    ]
    assert [each["rounds"] for each in loops.status()] == [[5, 40], [7]]
    assert loops.going(completed=4) == []
    loops.forget(2)
    assert loops.going()[1].rows == 2


def test_what_is_no_round_of_a_loop_is_refused():
    for at in ((), (3,)):
        with pytest.raises(BadMessage, match="a round of no loop"):
            shapes.read(shapes.write(Loops((LoopRound("a", "app.py:7", at, 1),))))
    said = Loops((reach(7, rows=3, epoch=3),))
    assert shapes.read(shapes.write(said)) == said


def restless(patience=400):
    """A loop whose one row grows for ever."""
    flow = rr.Dataflow("restless")
    numbers = flow.input("numbers", {"n": pl.Int64})
    grown = numbers.iterate(
        lambda rows: rows.select(n=pl.col("n") + 1).concat(numbers).group_by().agg(n=rr.max("n")),
        name="growing",
        patience=patience,
    )
    flow.output("grown", grown)
    return flow


@pytest.fixture
def eager(monkeypatch):
    """Loops are looked at all the time, and said at once."""
    monkeypatch.setattr(loop_rounds, "FIRST", 0.0)
    monkeypatch.setattr(loop_rounds, "AGAIN", 0.01)
    monkeypatch.setattr(local, "LOOK", 0.0)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_loop_that_diverges_is_said_long_before_the_error(workers, eager, caplog):
    with caplog.at_level(logging.WARNING), restless().run(workers=workers) as run:
        run.insert("numbers", [(1,), (2,)])
        with pytest.raises(
            rr.OperatorFailed, match=r"the loop 'growing' .* still changes after"
        ) as caught:
            run.commit()
        events = run.events("long loop")
        assert run.status()["loops"] == []  # the epoch was refused
    assert events
    assert all(event["loop"] == caught.value.fields["loop"] == "growing" for event in events)
    assert all(event["line"] == caught.value.fields["line"] for event in events)
    assert events[0]["rounds"][0] < events[-1]["rounds"][0] < caught.value.fields["rounds"]
    assert 0 < events[-1]["rows"] <= 2 * workers
    assert any("the loop 'growing'" in message for message in caplog.messages)


def test_workers_elsewhere_say_it_with_their_signs_of_life(eager, monkeypatch):
    monkeypatch.setattr(worker_process, "BEAT", 0.02)
    maker = Maker(restless(patience=3_000).plan)
    with RemoteCluster(Threads(maker), 2, timeout=30) as cluster:
        rows = pa.record_batch({"n": pa.array([1, 2]), "diff": pa.array([1, 1])})
        with pytest.raises(rr.OperatorFailed, match="'growing'"):
            cluster.wait(cluster.submit({"numbers": rows}))
        events = cluster.events.list("long loop")
        assert [event["loop"] for event in events][:1] == ["growing"]
        assert events[0]["rounds"][0] < events[-1]["rounds"][0]
        deadline = time.monotonic() + 10
        while cluster.status()["loops"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_status_and_the_progress_line_name_the_loop(eager, monkeypatch, capsys):
    monkeypatch.setattr(progress_line, "DELAY", 0.0)
    monkeypatch.setattr(progress_line, "EVERY", 0.01)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with restless(patience=2_000).run() as run:
        run.insert("numbers", [(1,)])
        seen = []

        def look():
            while not seen or not seen[-1]:
                seen.append(run._cluster.status()["loops"])

        watcher = Thread(target=look, daemon=True)
        watcher.start()
        with pytest.raises(rr.OperatorFailed):
            run.commit()
        watcher.join(10)
    assert seen[-1][0]["loop"] == "growing"
    assert seen[-1][0]["epoch"] == 0
    assert "loop 'growing': round" in capsys.readouterr().err
