"""What rounds did: noted by each worker, added up over workers, and kept within bounds."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.engine import round_history, round_meter
from riverrun.engine.round_history import RoundHistory
from riverrun.operators.loops import Returning
from riverrun.plan import loop_figures
from riverrun.plan.loop_figures import LoopFigures, RoundFigures, add_up, loops_of, shortened
from tests.engine.test_loop_rounds import restless


@dataclass
class Clock:
    """A clock that goes on by a second whenever somebody looks."""

    now: float = 0.0
    looks: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_rounds_of_workers_are_added_up_and_the_slowest_counts():
    draw = random.Random(7)
    workers, rows = 3, 5
    drawn = [
        [RoundFigures((at,), draw.randrange(9), draw.randrange(9), draw.random()) for at in range(rows)]
        for _ in range(workers)
    ]  # fmt: skip
    # A worker that has nothing to do in a round does not tell of it.
    told = [LoopFigures("a", tuple(each[number:])) for number, each in enumerate(drawn)]
    (added,) = add_up(told)
    for at, each in enumerate(added.rounds):
        parts = [drawn[worker][at] for worker in range(workers) if at >= worker]
        assert each.at == (at,)
        assert each.touched == sum(part.touched for part in parts)
        assert each.messages == sum(part.messages for part in parts)
        assert each.seconds == max(part.seconds for part in parts)
    assert len(added.rounds) == rows
    assert [each.loop for each in add_up([*told, LoopFigures("b", ())])] == ["a", "b"]


def test_rows_that_are_no_single_round_come_last():
    one = LoopFigures("a", (RoundFigures((0,), 1, 1, 0.5), RoundFigures((), 3, 3, 0.5, 4)))
    two = LoopFigures("a", (RoundFigures((1,), 1, 1, 0.5), RoundFigures((), 1, 2, 0.75, 3)))
    (both,) = add_up([one, two])
    assert [each.at for each in both.rounds] == [(0,), (1,), ()]
    assert both.rounds[-1] == RoundFigures((), 4, 5, 0.75, 4)


def test_many_rounds_are_shortened(monkeypatch):
    monkeypatch.setattr(loop_figures, "MOST", 3)
    rounds = [RoundFigures((at,), at, 1, 0.5) for at in range(6)]
    assert shortened(rounds[:3]) == tuple(rounds[:3])
    assert shortened(rounds) == (*rounds[:3], RoundFigures((), 12, 3, 1.5, 3))
    assert shortened(shortened(rounds)) == shortened(rounds)


def test_the_history_is_bounded(monkeypatch):
    monkeypatch.setattr(round_history, "EPOCHS", 4)
    monkeypatch.setattr(round_history, "ROWS", 6)
    history, rounds = RoundHistory(), [RoundFigures((at,), 1, 1, 0.0) for at in range(9)]
    assert (history.of("a"), history.last("a")) == ((), None)
    for epoch in range(9):
        history.add(epoch, [LoopFigures("a", tuple(rounds[:1]))])
    assert [epoch for epoch, _ in history.of("a")] == [5, 6, 7, 8]
    before = history.of("a")
    history.add(9, [LoopFigures("a", tuple(rounds[:4]))])
    assert [epoch for epoch, _ in history.of("a")] == [7, 8, 9]
    history.add(10, [LoopFigures("a", tuple(rounds)), LoopFigures("b", tuple(rounds[:1]))])
    assert [epoch for epoch, _ in history.of("a")] == [10]
    assert history.last("a") == (10, tuple(rounds))
    assert [epoch for epoch, _ in before] == [5, 6, 7, 8]
    history.add(11, [LoopFigures("a", tuple(rounds[:2]))])
    assert [epoch for epoch, _ in history.of("a")] == [11]
    assert [epoch for epoch, _ in history.of("b")] == [10]


def grown_to_20():
    flow = rr.Dataflow("long")
    numbers = flow.input("numbers", {"n": pl.Int64})

    def grow(rows):
        more = rows.select(n=pl.min_horizontal(pl.col("n") + 1, 20))
        return more.concat(numbers).distinct()

    flow.output("grown", numbers.iterate(grow, name="growing"))
    with flow.run() as run:
        run.insert("numbers", [(1,)])
        run.commit()
        return run.rounds("growing").to_polars()


def test_later_rounds_of_a_very_long_loop_are_one_row(monkeypatch):
    whole = grown_to_20()
    monkeypatch.setattr(round_meter, "MOST", 5)
    frame = grown_to_20()
    assert whole["round"].to_list() == list(range(20))
    assert frame["round"].to_list() == [0, 1, 2, 3, 4, None]
    assert frame["rounds"].to_list() == [1, 1, 1, 1, 1, 15]
    for column in ("touched", "messages"):
        assert frame[column][:5].to_list() == whole[column][:5].to_list()
        assert frame[column].sum() == whole[column].sum()


def test_time_is_shared_out_by_turns(monkeypatch):
    """With a clock that goes on by 1 at each look, rounds take as long as the loop has turns."""
    clock: Any = Clock()
    monkeypatch.setattr(round_meter, "perf_counter", clock)
    turns: list[int] = []
    run_of_feedback = Returning.run

    def counted(self, time, upper):
        turns.append(time[1])
        run_of_feedback(self, time, upper)

    monkeypatch.setattr(Returning, "run", counted)
    flow = rr.Dataflow("turns")
    numbers = flow.input("numbers", {"n": pl.Int64})
    loop = flow.loop(name="turns")
    entered, back = loop.enter(numbers), loop.feedback({"n": pl.Int64}, rounds=4)
    back.connect(entered.concat(back).select(n=pl.col("n") + 1))
    flow.output("n", loop.leave(back))
    with flow.run() as run:
        run.insert("numbers", [(1,), (30,)])
        run.commit()
        frame = run.rounds("turns").to_polars()
    assert turns == frame["round"].to_list() == [0, 1, 2, 3]
    assert frame["ms"].to_list() == [1000.0] * 4
    assert frame["messages"].to_list() == [2] * 4


def test_a_plan_knows_its_loops_by_name():
    flow = rr.Dataflow("loops")
    rows = flow.input("rows", {"n": pl.Int64})

    def inner(each):
        return each.filter(pl.col("n") > 1).distinct()

    flow.output("a", rows.iterate(lambda each: each.iterate(inner, name="in/side"), name="outer"))
    flow.output("b", rows.iterate(inner))
    assert loops_of(flow.plan) == {
        "loop-1": (),
        "outer": (),
        "outer/in/side": ("outer",),
    }
    assert loops_of(restless().plan) == {"growing": ()}


@pytest.mark.parametrize("workers", [1, 3])
def test_a_refused_epoch_leaves_no_figures(workers):
    with restless(patience=50).run(workers=workers) as run:
        run.insert("numbers", [(1,)])
        with pytest.raises(rr.OperatorFailed):
            run.commit()
        assert len(run.rounds("growing")) == 0
        run.commit()
        assert len(run.rounds("growing")) == 0
