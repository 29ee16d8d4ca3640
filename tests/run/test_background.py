"""Runs whose epochs go on by themselves, as on Spark: workers are threads, behind Arrow Flight."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.run.inputs import RunInput
from tests.runtime.launchers import Launched, Threads


def refuse(rows: pl.DataFrame) -> pl.DataFrame:
    if (rows["k"] == 13).any():
        raise ValueError("13 is refused")
    return rows


def program() -> rr.Dataflow:
    flow = rr.Dataflow("background")
    rows = flow.input("rows", {"k": pl.Int64})
    flow.output("out", rows.map_batches(refuse, rows.schema).group_by("k").count())
    return flow


@pytest.fixture
def run() -> Iterator[rr.Run]:
    with program().run(workers=2, on=Launched(Threads)) as started:
        yield started


def test_a_refused_epoch_is_told_to_whoever_committed_it(run: rr.Run) -> None:
    run.insert("rows", [(13,)])
    refused = run.commit(wait=False)
    time.sleep(0.3)  # it is refused meanwhile
    run.insert("rows", [(1,)])
    accepted = run.commit()
    assert accepted.epoch != refused.epoch
    with pytest.raises(rr.OperatorFailed, match="13 is refused"):
        refused.wait()
    assert run.read("out").rows() == [(1, 1)]


def test_changes_are_whole_while_epochs_go_on(run: rr.Run) -> None:
    run.insert("rows", [(k,) for k in range(20, 40)])
    run.commit()
    for _ in range(60):
        run.insert("rows", [(k,) for k in range(20, 40)])
        run.commit(wait=False)
        changes = run.changes("out")
        assert len(changes) == (40 if changes.epoch else 20)
        assert len(run.read("out")) == 20


def test_rows_that_were_not_accepted_stay(run: rr.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> int:
        raise KeyboardInterrupt

    run.insert("rows", [(1,)])
    with monkeypatch.context() as patch:
        patch.setattr(run._cluster, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.commit()
    run.commit()
    assert run.read("out").rows() == [(1, 1)]


def test_commands_keep_their_order_across_a_commit_during_an_upload() -> None:
    flow = rr.Dataflow("keyed")
    flow.output("out", flow.input("rows", {"id": pl.Int64, "v": pl.Int64}, key="id"))
    run_input = RunInput(flow.plan.nodes[0], flow.plan)
    first = run_input.reserve()  # a DataFrame is on its way,
    run_input.drop()  # somebody else commits,
    run_input.add_parcels(first, [])  # it arrives,
    assert run_input.reserve() > first  # and what is given after it comes after it
