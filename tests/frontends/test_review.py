"""Faults that a review found: each program here lost rows, hung, or was refused without reason."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

import riverrun as rr
from riverrun.operators.expire import spread
from riverrun.plan.identity import code_of
from riverrun.state.shards import Shards


def test_a_logged_epoch_that_fails_on_resuming_is_not_lost(tmp_path):
    down = False

    def call(row):
        if down and row["n"] == 2:
            raise OSError("service is down")
        return [row]

    flow = rr.Dataflow("service")
    flow.output("out", flow.input("rows", {"n": pl.Int64}).flat_map(call, {"n": pl.Int64}))
    with flow.run(checkpoint=tmp_path, every=None) as run:
        for n in (1, 2):
            run.insert("rows", [(n,)])
            run.commit()
    down = True
    with pytest.raises(rr.CheckpointError) as caught:
        flow.run(checkpoint=tmp_path)
    assert caught.value.code == "run.not_repeatable"
    assert "service is down" in str(caught.value)
    down = False
    with flow.run(checkpoint=tmp_path) as run:
        assert run.read("out").rows() == [(1,), (2,)]


def test_a_failing_epoch_can_be_dropped_on_purpose(tmp_path):
    down = False

    def call(row):
        if down and row["n"] == 2:
            raise OSError("service is down")
        return [row]

    flow = rr.Dataflow("service")
    flow.output("out", flow.input("rows", {"n": pl.Int64}).flat_map(call, {"n": pl.Int64}))
    with flow.run(checkpoint=tmp_path, every=None) as run:
        for n in (1, 2):
            run.insert("rows", [(n,)])
            run.commit()
    down = True
    with flow.run(checkpoint=tmp_path, skip_failing=True) as run:
        assert run.read("out").rows() == [(1,)]


def test_code_has_the_same_word_in_every_process():
    program = (
        "from riverrun.plan.identity import code_of\n"
        "print(code_of(lambda r: r['n'] in {'a', 'b', 'c', 'd'}))"
    )
    words = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(words) == 1


def test_code_tells_functions_apart():
    class Adds:
        def __call__(self, row):
            return row + 1

    class Takes:
        def __call__(self, row):
            return row - 1

    words = [code_of(lambda r: r + 1), code_of(lambda r: r + 2), code_of(Adds()), code_of(Takes())]
    assert len(set(words)) == 4
    assert code_of(Adds) != code_of(Takes)


def test_long_literals_are_part_of_a_program():
    def fingerprint(last):
        flow = rr.Dataflow("long")
        rows = flow.input("rows", {"n": pl.Int64})
        wanted = [*range(98), last, 500]
        flow.output("out", rows.filter(pl.col("n").is_in(wanted)).select(m=pl.col("n") + 1))
        return flow.plan.fingerprint

    assert fingerprint(99) == fingerprint(99)
    assert fingerprint(99) != fingerprint(98)


class Counts(rr.Vertex):
    deterministic = True

    def on_recv(self, port, rows, time):
        table = self.table("counts")
        for key, more in rows.group_by("k").agg(pl.col("diff").sum()).iter_rows():
            known = table.read([(key,)])
            before = known["count"][0] if len(known) else 0
            table.write([(key, before + more)])
            self.send([{"k": key, "count": before + more}])


def counting(route):
    flow = rr.Dataflow("counting")
    rows = flow.input("rows", {"k": pl.Int64})
    counted = flow.vertex(
        Counts,
        {"rows": rows},
        {"k": pl.Int64, "count": pl.Int64},
        routes=route and {"rows": route},
        tables={"counts": ({"k": pl.Int64}, {"count": pl.Int64})},
    )
    flow.output("counts", counted)
    return flow


@pytest.mark.parametrize("route", ["k", rr.TO_ONE])
def test_a_table_is_whole_after_rescaling_and_resuming(tmp_path, route):
    rows = [(n,) for n in range(8)]
    expected = []
    with counting(route).run(workers=2, checkpoint=tmp_path) as run:
        for workers in (2, 3, 1, 2):
            run.scale(workers)
            run.insert("rows", rows)
            run.commit()
            expected += [(n, run.completed) for n in range(8)]
            assert run.read("counts").rows() == sorted(expected)
        run.checkpoint()
    with counting(route).run(workers=3, checkpoint=tmp_path) as run:
        run.insert("rows", rows)
        run.commit()
        assert [row[:2] for row in run.changes("counts").rows()] == [(n, 5) for n in range(8)]


@pytest.mark.parametrize("route", [None, rr.TO_ALL, rr.TO_ANY])
def test_a_table_needs_a_route_by_its_key(route):
    with pytest.raises(rr.PlanError) as caught:
        counting(route)
    assert caught.value.code == "plan.table"
    assert "test_review.py" in str(caught.value)


def test_a_vertex_in_a_loop_comes_to_rest():
    class Pass(rr.Vertex):
        deterministic = True

        def on_recv(self, port, rows, time):
            self.send(rows)

    flow = rr.Dataflow("rest")
    rows = flow.input("rows", {"n": pl.Int64})
    flow.output(
        "out", rows.iterate(lambda c: flow.vertex(Pass, {"c": c}, {"n": pl.Int64}), patience=20)
    )
    with flow.run() as run:
        run.insert("rows", [(1,), (2,)])
        run.commit()
        assert run.read("out").rows() == [(1,), (2,)]


def test_patience_counts_rounds_that_ran():
    flow = rr.Dataflow("late")
    rows = flow.input("rows", {"n": pl.Int64})
    flow.output(
        "out",
        rows.iterate(lambda current, entered: current.concat(entered).distinct(), at=pl.col("n")),
    )
    with flow.run() as run:
        run.insert("rows", [(3,), (10_000_000,)])
        run.commit()
        assert run.read("out").rows() == [(3,), (10_000_000,)]


def test_every_worker_knows_the_mark():
    shards = spread(7, (0,))
    for workers in (1, 2, 3, 46, 64, 100, 255, 256):
        pieces = shards.partition([0], Shards.even(workers))
        assert all(piece is not None and piece.rows for piece in pieces), workers


def test_exploding_long_lists_takes_time_in_proportion():
    flow = rr.Dataflow("lists")
    rows = flow.input("rows", {"k": pl.Int64, "items": pl.List(pl.Int64), "z": pl.String})
    flow.output("items", rows.explode("items"))
    with flow.run() as run:
        run.insert("rows", [(1, list(range(20_000)), "z"), (2, [], "y"), (3, None, "x")])
        run.commit()
        frame = run.read("items").to_polars()
        assert frame.columns == ["k", "items", "z"]
        assert sorted(frame["items"]) == list(range(20_000))
        assert set(frame["z"]) == {"z"}


def test_names_that_we_derive_are_nobodys():
    flow = rr.Dataflow("names")
    users = flow.input("users", {"id": pl.Int64, "clock": pl.Int64}, key="id")
    clock = flow.input("clock", {"n": pl.Int64})
    flow.output("users of id", users.filter(pl.col("id") > 0))
    flow.output("clock of n", clock.expire(epochs=2))
    with flow.run() as run:
        run.upsert("users", [(1, 2)])
        run.insert("clock", [(1,)])
        run.commit()
        run.commit()
        run.commit()
        assert (run.read("users of id").rows(), run.read("clock of n").rows()) == ([(1, 2)], [])


def test_columns_called_diff_and_time():
    class Echo(rr.Vertex):
        deterministic = True

        def on_recv(self, port, rows, time):
            assert rows.columns == ["diff", "time", "diff_"]
            self.send(rows)

    seen = []
    flow = rr.Dataflow("columns")
    rows = flow.input("rows", {"diff": pl.Int64, "time": pl.Int64}).inspect(seen.append)
    flow.output("out", flow.vertex(Echo, {"rows": rows}, {"diff": pl.Int64, "time": pl.Int64}))
    with flow.run() as run:
        run.insert("rows", [(5, 6)])
        run.commit()
        run.delete("rows", [(5, 6)])
        run.insert("rows", [(7, 8)])
        run.commit()
        assert run.read("out").rows() == [(7, 8)]
    assert seen[0].to_pylist() == [{"diff": 5, "time": 6, "time_": [0], "diff_": 1}]


def test_rows_of_a_generator_are_deleted():
    flow = rr.Dataflow("keyed")
    flow.output("out", flow.input("rows", {"id": pl.Int64, "v": pl.Int64}, key="id"))
    with flow.run() as run:
        run.upsert("rows", [(1, 1), (2, 2)])
        run.commit()
        run.delete("rows", (row for row in [(1, 1)]))
        run.commit()
        assert run.read("out").rows() == [(2, 2)]


def test_a_refusal_names_the_row_and_its_count():
    flow = rr.Dataflow("worst")
    flow.output("out", flow.input("rows", {"n": pl.Int64}, checked=True))
    with flow.run() as run:
        run.delete("rows", [(1,), (2,), (2,), (2,)])
        with pytest.raises(rr.OperatorFailed) as caught:
            run.commit()
        assert caught.value.fields["row"] == {"n": 2}
        assert caught.value.fields["count"] == -3


def test_instances_of_another_number_of_workers_are_let_go():
    flow = rr.Dataflow("gone")
    flow.output("out", flow.input("rows", {"n": pl.Int64}))
    with flow.run() as run:
        run.insert("rows", [(n,) for n in np.arange(9).tolist()])
        run.commit()
        run.scale(3)
        run.scale(1)
        assert len(run._cluster.instances) == 1
