"""Rows are ours once they are given, threads take turns, and what is asked of a run is checked."""

from __future__ import annotations

import threading
from datetime import timedelta

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr


def echo(name="echo", limit=None):
    flow = rr.Dataflow(name)
    rows = flow.input("rows", {"k": pl.Int64, "v": pl.Float64})
    flow.output("out", rows if limit is None else rows.filter(pl.col("k") < limit))
    return flow


def test_a_frame_may_change_after_it_was_inserted():
    frame = pd.DataFrame({"k": [1], "v": [0.0]})
    array = np.array([5.0])
    with echo().run() as run:
        for n in range(3):
            frame.loc[0, "v"] = float(n)
            run.insert("rows", frame)
        run.insert("rows", pa.table({"k": pa.array([2]), "v": pa.array(array)}))
        run.insert("rows", {"k": np.array([3]), "v": array})
        array[0] = 7.0
        commit = run.commit(wait=False)
        frame.loc[0, "v"] = 9.0
        commit.wait()
        assert run.read("out").rows() == [(1, 0.0), (1, 1.0), (1, 2.0), (2, 5.0), (3, 5.0)]


def test_threads_take_turns():
    with echo().run() as run:

        def work(thread):
            for n in range(8):
                run.insert("rows", [(thread, float(n))])
                run.commit()
                assert (thread, float(n)) in run.read("out").rows()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(run.read("out")) == 24


def test_rows_that_are_given_while_others_are_committed_are_in_exactly_one_epoch():
    """Neither lost nor taken twice, and the rows of one thread in the order in which it gave them."""
    flow = rr.Dataflow("together")
    rows = flow.input("rows", {"thread": pl.Int64, "n": pl.Int64})
    last = flow.input("last", {"thread": pl.Int64, "n": pl.Int64}, key="thread")
    flow.output("counts", rows.group_by("thread").agg(rows=rr.count(), n=rr.sum("n")))
    flow.output("last", last)
    threads, each = 3, 400
    with flow.run(history=1) as run:

        def give(thread: int) -> None:
            for n in range(each):
                run.insert("rows", [(thread, n)])
                run.upsert("last", [(thread, n)])
                if n % 7 == 0:
                    run.delete("last", [(thread, n)])
                    run.upsert("last", [(thread, n)])

        givers = [threading.Thread(target=give, args=(n,)) for n in range(threads)]
        for giver in givers:
            giver.start()
        while any(giver.is_alive() for giver in givers):
            run.commit()
        for giver in givers:
            giver.join()
        run.commit()
        total = sum(range(each))
        assert run.read("counts").rows() == [(n, each, total) for n in range(threads)]
        assert run.read("last").rows() == [(n, each - 1) for n in range(threads)]
        assert run.status()["waiting_rows"] == {"rows": 0, "last": 0}


@pytest.mark.parametrize("every", ["30s", 1.5, 0, -1, True, timedelta(0)])
def test_the_distance_of_checkpoints_is_checked(every):
    with pytest.raises(rr.PlanError) as caught:
        echo().run(every=every)
    assert caught.value.code == "plan.run"


@pytest.mark.parametrize("asked", ["0", 1.5, True, -1, 7])
def test_an_epoch_is_a_number(asked):
    with echo().run() as run:
        run.commit()
        with pytest.raises(rr.TimeViolation):
            run.read("out", epoch=asked)


def test_changes_are_known_after_a_new_start_within_history(tmp_path):
    with echo().run(checkpoint=tmp_path, history=3) as run:
        for n in range(4):
            run.insert("rows", [(n, 0.0)])
            if n == 3:
                run.delete("rows", [(1, 0.0)])
            run.commit()
        run.scale(3)
        assert run.changes("out").rows() == [(1, 0.0, -1), (3, 0.0, 1)]
        assert run.changes("out", 2).rows() == [(2, 0.0, 1)]
        with pytest.raises(rr.TimeViolation):
            run.changes("out", 1)
    with echo().run(checkpoint=tmp_path, history=3, workers=2) as run:
        assert run.changes("out").rows() == [(1, 0.0, -1), (3, 0.0, 1)]


@pytest.mark.parametrize("logged", [True, False])
def test_another_program_is_refused_with_what_differs(tmp_path, logged):
    with echo(limit=10).run(checkpoint=tmp_path, every=None) as run:
        run.insert("rows", [(1, 0.0)])
        run.commit()
        if not logged:
            run.checkpoint()
            run.insert("rows", [(2, 0.0)])
            run.commit()

    def renamed():
        flow = rr.Dataflow("echo")
        rows = flow.input("others", {"k": pl.Int64, "v": pl.Float64})
        flow.output("out", rows.filter(pl.col("k") < 10))
        return flow

    changes = [(echo(limit=15), "[k < 15]"), (renamed(), "others"), (echo(), "filter-1")]
    if logged:  # a log has rows of inputs, whatever is made of them
        changes = [(renamed(), "the input 'rows'")]
    for changed, told in changes:
        with pytest.raises(rr.CheckpointError) as caught:
            changed.run(checkpoint=tmp_path)
        assert caught.value.code == "checkpoint.incompatible"
        assert told in str(caught.value)
    with echo(limit=10).run(checkpoint=tmp_path) as run:
        assert len(run.read("out")) == 2 - logged


def test_another_function_is_another_program(tmp_path):
    def build(function):
        flow = rr.Dataflow("mapped")
        rows = flow.input("rows", {"n": pl.Int64})
        flow.output("out", rows.flat_map(function, {"n": pl.Int64}))
        return flow

    with build(lambda row: [(row["n"] + 1,)]).run(checkpoint=tmp_path) as run:
        run.insert("rows", [(1,)])
        run.commit()
        run.checkpoint()
    with pytest.raises(rr.CheckpointError):
        build(lambda row: [(row["n"] + 2,)]).run(checkpoint=tmp_path)
    with build(lambda row: [(row["n"] + 1,)]).run(checkpoint=tmp_path) as run:
        assert run.read("out").rows() == [(2,)]


def test_keys_are_deleted_by_value():
    flow = rr.Dataflow("keyed")
    flow.output("out", flow.input("rows", {"id": pl.Int64, "v": pl.String}, key="id"))
    with flow.run() as run:
        run.upsert("rows", [(n, "x") for n in range(5)])
        run.commit()
        run.delete("rows", [0])
        run.delete("rows", [(1,)])
        run.delete("rows", [{"id": 2}])
        run.delete("rows", [(3, "whatever")])
        run.commit()
        assert run.read("out").rows() == [(4, "x")]
        with pytest.raises(rr.SchemaError) as caught:
            run.delete("rows", ["four"])
        assert "id" in str(caught.value)
