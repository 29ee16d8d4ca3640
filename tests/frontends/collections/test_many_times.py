"""Rows that are there very often, by short programs: refused where 64 bits cannot count them."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

import riverrun as rr
from riverrun.errors import OperatorFailed

Grow = Callable[[rr.Collection], rr.Collection]


def _positive(rows: rr.Collection) -> rr.Collection:
    return rows.filter(pl.col("k") > 0)


def _refusal(rows: Grow, workers: int = 1) -> OperatorFailed:
    flow = rr.Dataflow("often")
    flow.output("out", rows(flow.input("rows", {"k": pl.Int64})))
    with flow.run(workers=workers) as run:
        run.insert("rows", [(1,)])
        with pytest.raises(OperatorFailed) as refused:
            run.commit()
    assert refused.value.code == "operator.overflow"
    return refused.value


def test_a_loop_that_doubles_a_row_for_ever_does_not_come_to_rest() -> None:
    refused = _refusal(lambda c: c.iterate(lambda x: x.concat(_positive(x))))
    assert "2**63 - 1 times at the most" in str(refused)
    assert "test_many_times.py" in str(refused)


def test_rows_that_are_doubled_too_often_do_not_vanish() -> None:
    def grow(rows: rr.Collection) -> rr.Collection:
        for _ in range(64):
            rows = rows.concat(_positive(rows)).consolidate()
        return rows

    _refusal(grow)


def test_counts_of_several_epochs_do_not_wrap() -> None:
    flow = rr.Dataflow("often")
    rows = flow.input("rows", {"k": pl.Int64})
    for _ in range(61):
        rows = rows.concat(rows)
    flow.output("counts", rows.group_by("k").count())
    flow.output("groups", rows.group_by("k").agg(n=rr.count(), v=rr.sum("k")))
    with flow.run() as run:
        for epoch in range(1, 4):
            run.insert("rows", [(1,)])
            run.commit()
            assert run.read("counts").rows() == [(1, epoch * 2**61)]
            assert run.read("groups").rows() == [(1, epoch * 2**61, epoch * 2**61)]
        run.insert("rows", [(1,)])
        with pytest.raises(OperatorFailed) as refused:
            run.commit()
        assert refused.value.code == "operator.overflow"
        assert run.read("counts").rows() == [(1, 3 * 2**61)]
        run.delete("rows", [(1,)])
        run.commit()
        assert run.read("counts").rows() == [(1, 2 * 2**61)]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("added_up", [True, False])
def test_rows_are_taken_back_as_often_as_they_can_be_there(workers: int, added_up: bool) -> None:
    def grow(rows: rr.Collection) -> rr.Collection:
        rows = rows.negate()
        for _ in range(63):  # -2**63 has no opposite
            rows = rows.concat(_positive(rows))
            rows = rows.consolidate() if added_up else rows
        return rows.negate()

    refused = _refusal(grow, workers)
    assert "2**63 - 1 times at the most" in str(refused)
    assert "OverflowError" not in str(refused)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_row_can_be_taken_back_as_often_as_it_can_be_there(workers: int) -> None:
    flow = rr.Dataflow("often")
    rows = each = flow.input("rows", {"k": pl.Int64})
    for _ in range(62):  # 2**63 - 1 is the sum of the powers of two before
        each = each.concat(each)
        rows = rows.concat(each)
    flow.output("counts", rows.negate().consolidate().negate().group_by("k").count())
    with flow.run(workers=workers) as run:
        run.insert("rows", [(1,), (2,)])
        run.commit()
        assert sorted(run.read("counts").rows()) == [(1, 2**63 - 1), (2, 2**63 - 1)]
