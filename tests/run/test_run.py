"""Runs: commits, reads of the past, changes, waiting, closing, resuming."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import time
from collections import Counter

import polars as pl
import pytest

import riverrun as rr
from tests.frontends.collections.checking import (
    Comparison,
    Rows,
    any_row,
    build,
    feed,
    from_scratch,
)
from tests.frontends.collections.reference import counted
from tests.soaking import seeds

SCHEMAS = {"rows": {"a": pl.Int64, "x": pl.Int64}}


def program(rows):
    """State of every kind: rows, sums, orders, joins, a loop."""
    pairs = rows.join(rows.rename({"a": "b", "x": "y"}), left_on="x", right_on="b").select(
        "a", x="y"
    )
    return {
        "all": rows,
        "sums": rows.group_by("a").agg(s=rr.sum("x"), n=rr.count(), m=rr.max("x")),
        "top": rows.group_by("a").top(2, by="x"),
        "pairs": pairs,
        "reached": rows.iterate(
            lambda found: (
                found.join(rows.rename({"a": "b", "x": "y"}), left_on="x", right_on="b")
                .select("a", x="y")
                .concat(rows)
                .distinct()
            )
        ),
    }


class Playing:
    """A run that is fed random rows, and what it should have come to at each epoch."""

    def __init__(self, seed):
        self.source = random.Random(seed)
        self.rows = Rows(any_row(SCHEMAS["rows"]))
        self.past = []

    def step(self, run, **options):
        feed(run, "rows", self.rows.epoch(self.source, 5))
        self.past.append(from_scratch(program, SCHEMAS, {"rows": self.rows.there}))
        return run.commit(**options)

    def check(self, run, epoch=None, said=""):
        at = len(self.past) - 1 if epoch is None else epoch
        for name, bag in self.past[at].items():
            found = counted(run.read(name, epoch=epoch).rows())
            assert found == bag.rows, f"{said} {name} as of epoch {at}"


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("history", [1, 2, 4])
def test_the_past_can_be_read_as_far_as_history_goes(history, workers):
    playing = Playing(history)
    with build(program, SCHEMAS).run(workers=workers, history=history) as run:
        for epoch in range(8):
            playing.step(run)
            oldest = max(epoch - history + 1, 0)
            for old in range(oldest, epoch + 1):
                playing.check(run, old)
                sums = Counter()
                for *row, diff in run.changes("pairs", old).rows():
                    sums[tuple(row)] += diff
                before = playing.past[old - 1]["pairs"].rows if old else Counter()
                expected = Counter(playing.past[old]["pairs"].rows)
                expected.subtract(before)
                assert {r: n for r, n in sums.items() if n} == {
                    r: n for r, n in expected.items() if n
                }
            if oldest:
                for ask in (run.read, run.changes):
                    with pytest.raises(rr.TimeViolation) as told:
                        ask("all", oldest - 1)
                    assert told.value.code == "time.compacted"
                    assert "history=" in told.value.hint
            for ask in (run.read, run.changes):
                with pytest.raises(rr.TimeViolation) as told:
                    ask("all", epoch + 1)
                assert told.value.code == "time.not_complete"
            with pytest.raises(rr.TimeViolation):
                run.read("all", -1)


def test_nothing_is_complete_before_the_first_commit():
    with build(program, SCHEMAS).run() as run:
        assert run.epoch is None
        assert run.completed == 0
        run.insert("rows", [(1, 2)])
        for ask in (run.read, run.changes):
            with pytest.raises(rr.TimeViolation, match="no epoch is complete"):
                ask("all")
        assert run.commit().epoch == 0
        assert run.epoch == 0


def test_what_was_read_stays_as_it_is():
    with build(program, SCHEMAS).run() as run:
        run.insert("rows", [(1, 2)])
        run.commit()
        early, changed = run.read("all"), run.changes("all")
        for _ in range(6):
            run.insert("rows", [(3, 4)])
            run.commit()
        assert early.rows() == [(1, 2)]
        assert early.epoch == changed.epoch == 0
        assert changed.rows() == [(1, 2, 1)]


@pytest.mark.parametrize("workers", [1, 2])
def test_commits_that_are_not_waited_for(workers):
    playing = Playing(5)
    with build(program, SCHEMAS).run(workers=workers, history=10) as run:
        commits = [playing.step(run, wait=False) for _ in range(5)]
        assert [commit.epoch for commit in commits] == list(range(5))
        commits[2].wait()
        assert [commit.done for commit in commits[:3]] == [True] * 3
        assert not commits[4].done
        assert "under way" in repr(commits[4])
        playing.check(run, 2)
        commits[4].wait()
        assert "done" in repr(commits[4])
        for epoch in range(5):
            playing.check(run, epoch)
        commits[0].wait()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_among_commits_that_are_not_waited_for(workers):
    """The epoch that fails is refused; those committed after it take its place, or are refused too."""

    def function(row):
        if row["a"] == 13:
            raise ValueError("unlucky")
        return [row]

    flow = build(lambda rows: rows.flat_map(function, SCHEMAS["rows"]), SCHEMAS)
    with flow.run(workers=workers, history=9) as run:
        commits = []
        for number in (1, 13, 2):
            run.insert("rows", [(number, 0)])
            commits.append(run.commit(wait=False))
        commits[0].wait()
        assert run.read("result").rows() == [(1, 0)]
        with pytest.raises(rr.OperatorFailed, match="unlucky"):
            commits[1].wait()
        failed = False
        try:
            commits[2].wait()
        except rr.RiverrunError:
            failed = True
        run.insert("rows", [(3, 0)])
        run.commit()
        expected = [(1, 0), (3, 0)] if failed else [(1, 0), (2, 0), (3, 0)]
        assert run.read("result").rows() == expected


def test_rollback_and_status():
    with build(program, SCHEMAS).run(workers=2) as run:
        run.insert("rows", [(1, 2), (3, 4)])
        assert run.status()["waiting_rows"] == {"rows": 2}
        run.rollback()
        assert run.status()["waiting_rows"] == {"rows": 0}
        run.commit()
        assert run.read("all").rows() == []
        run.insert("rows", [(1, 2)])
        run.commit()
        status = run.status()
        assert status["states"]["all:result"]["rows"] == 1
        assert not status["closed"]
    assert run.status()["closed"]


def test_a_closed_run_says_so():
    flow = build(program, SCHEMAS)
    with flow.run() as run:
        run.insert("rows", [(1, 2)])
        run.commit()
    run.close()
    assert "closed" in repr(run)
    for ask in (
        lambda: run.insert("rows", [(1, 2)]),
        lambda: run.delete("rows", [(1, 2)]),
        run.commit,
        lambda: run.read("all"),
        lambda: run.changes("all"),
        lambda: run.scale(2),
        run.checkpoint,
    ):
        with pytest.raises(rr.RiverrunError, match="closed"):
            ask()


def test_an_error_inside_the_block_closes_it_and_is_raised():
    with pytest.raises(KeyError, match="mine"), build(program, SCHEMAS).run() as run:
        raise KeyError("mine")
    assert run.status()["closed"]


def test_two_runs_of_one_flow_know_nothing_of_each_other():
    flow = build(program, SCHEMAS)
    one, two = Playing(1), Playing(2)
    with flow.run() as first, flow.run(workers=3) as second:
        for _ in range(4):
            one.step(first)
            two.step(second)
            two.step(second)
            one.check(first)
            two.check(second)


@pytest.mark.parametrize("given", [0, -1, 1.5, True, "2"])
def test_counts_are_counts(given):
    flow = build(program, SCHEMAS)
    for option in ("workers", "history"):
        with pytest.raises(rr.PlanError, match=option):
            flow.run(**{option: given})


def test_results_in_every_form():
    with build(program, SCHEMAS).run() as run:
        run.insert("rows", [(1, 2), (1, 2), (None, 3)])
        run.commit()
        result = run.read("all")
        assert result.rows() == [(1, 2), (1, 2), (None, 3)]
        assert len(result) == 3
        assert counted(result.to_polars().rows()) == counted(result.rows())
        assert result.to_arrow().num_rows == len(result.to_pandas()) == 3
        assert sorted(result["x"]) == [2, 2, 3]
        assert {"a": None, "x": 3} in result.to_dicts() == list(result)
        assert pl.DataFrame(result).height == 3
        assert "3 rows" in repr(result)


# -- what survives


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(4, soak=16))
def test_closed_and_resumed_with_another_number_of_workers(seed, tmp_path):
    flow, playing = build(program, SCHEMAS), Playing(seed)
    draw = random.Random(seed)
    for life in range(4):
        workers = draw.randint(1, 4)
        said = f"seed {seed}, life {life}, workers {workers}"
        turns = draw.choice([None, seed])
        with flow.run(
            workers=workers, checkpoint=tmp_path, every=draw.choice([1, 2, None]), seed=turns
        ) as run:
            if playing.past:
                assert run.epoch == len(playing.past) - 1, said
                playing.check(run, said=said)
                with pytest.raises(rr.TimeViolation):
                    run.read("all", epoch=len(playing.past))
            comparison = Comparison(said)
            for _ in range(draw.randint(1, 3)):
                playing.step(run)
                playing.check(run, said=said)
                for name, bag in playing.past[-1].items():
                    before = playing.past[-2][name].rows if len(playing.past) > 1 else Counter()
                    comparison.added_up[name] = Counter(before)
                    assert bag.rows is not before
                comparison.compare(run, playing.past[-1])
            if draw.random() < 0.4:
                run.checkpoint()
            if draw.random() < 0.4:
                run.insert("rows", [(9, 9)])  # given, never committed


def test_commits_that_nobody_waited_for_survive(tmp_path):
    flow, playing = build(program, SCHEMAS), Playing(8)
    with flow.run(checkpoint=tmp_path) as run:
        playing.step(run)
        playing.step(run, wait=False)
        playing.step(run, wait=False)
    with flow.run(workers=2, checkpoint=tmp_path) as run:
        assert run.epoch == 2
        playing.check(run)


def test_a_refused_epoch_is_not_there_after_a_resume(tmp_path):
    def function(row):
        if row["a"] == 13:
            raise ValueError("unlucky")
        return [row]

    flow = build(lambda rows: rows.flat_map(function, SCHEMAS["rows"]), SCHEMAS)
    with flow.run(checkpoint=tmp_path) as run:
        run.insert("rows", [(1, 0)])
        run.commit()
        run.insert("rows", [(13, 0), (2, 0)])
        with pytest.raises(rr.OperatorFailed):
            run.commit()
        run.insert("rows", [(3, 0)])
        run.commit()
        run.insert("rows", [(13, 1)])
        with pytest.raises(rr.OperatorFailed):
            run.commit()
    for workers in (2, 1):
        with flow.run(workers=workers, checkpoint=tmp_path) as run:
            assert run.read("result").rows() == [(1, 0), (3, 0)]


def test_a_changed_program_is_refused_with_the_differences(tmp_path):
    flow = build(program, SCHEMAS)
    with flow.run(checkpoint=tmp_path) as run:
        run.insert("rows", [(1, 2)])
        run.commit()
        run.checkpoint()

    def other(rows):
        return program(rows) | {"sums": rows.group_by("a").agg(s=rr.min("x"))}

    def more(rows):
        return program(rows) | {"kinds": rows.select("x").distinct(name="kinds")}

    for changed, named in ((other, "reduce"), (more, "kinds")):
        with pytest.raises(rr.CheckpointError) as told:
            build(changed, SCHEMAS).run(checkpoint=tmp_path)
        assert named in str(told.value)
    with flow.run(checkpoint=tmp_path) as run:
        assert run.read("all").rows() == [(1, 2)]


KILLED = """
    import os, sys, random
    from tests.run.test_run import SCHEMAS, program
    from tests.frontends.collections.checking import build
    path, workers, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    source = random.Random(seed)
    with build(program, SCHEMAS).run(workers=workers, checkpoint=path, every=2) as run:
        first = 0 if run.epoch is None else run.epoch + 1
        for epoch in range(first, 1000):
            draw = random.Random(epoch)
            run.insert("rows", [(draw.randrange(6), draw.randrange(6)) for _ in range(4)])
            if epoch:
                draw = random.Random(epoch - 1)
                run.delete("rows", [(draw.randrange(6), draw.randrange(6)) for _ in range(2)])
            run.commit()
            print(epoch, flush=True)
"""


def rows_at(epoch):
    """The rows that the killed program has at an epoch."""
    there = Counter()
    for number in range(epoch + 1):
        draw = random.Random(number)
        there.update((draw.randrange(6), draw.randrange(6)) for _ in range(4))
        if number:
            draw = random.Random(number - 1)
            there.subtract((draw.randrange(6), draw.randrange(6)) for _ in range(2))
    return there


def test_killed_and_resumed(tmp_path):
    """kill -9, three times, in the middle of things; then what was said to be committed is there."""
    flow, last = build(program, SCHEMAS), -1
    for life, workers in enumerate((2, 1, 3)):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), str(workers), str(life)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        said = last
        for line in child.stdout:
            said = int(line)
            if said >= last + 4 + life:
                break
        time.sleep(0.003 * life)
        child.kill()  # SIGKILL
        rest = child.stdout.read().split()
        child.wait()
        child.stdout.close()
        committed = int(rest[-1]) if rest else said
        with flow.run(workers=3 - life, checkpoint=tmp_path) as run:
            assert run.epoch is not None
            # One more may be in the log: accepted, and killed before that could be said.
            assert committed <= run.epoch <= committed + 1
            last = run.epoch
            expected = from_scratch(program, SCHEMAS, {"rows": rows_at(last)})
            for name, bag in expected.items():
                assert counted(run.read(name).rows()) == bag.rows, (life, name)


def test_commands_of_an_epoch_have_numbers_of_their_own():
    flow = rr.Dataflow("numbered")
    flow.output("out", flow.input("a", {"k": pl.Int64, "v": pl.Int64}, key="k"))
    with flow.run() as run:
        run_input = run._inputs["a"]
        firsts = [run_input.reserve() for _ in range(2047)]
        with pytest.raises(rr.RiverrunError, match="cannot be numbered") as caught:
            run_input.reserve()
        assert caught.value.code == "run.commands"
        assert len(set(firsts)) == 2047
        run.upsert("a", [(1, 1), (1, 2)])  # after them there are still some
        for first in firsts:
            run_input.give_up(first)
        run.commit()
        assert run.read("out").rows() == [(1, 2)]
        assert run_input.reserve() == 0
        run_input.give_up(0)
