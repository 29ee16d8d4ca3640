"""Rows that come to one place by many ways: the work grows with the program, not with the ways (*ways meet*)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import riverrun as rr
from riverrun.engine import wiring

DEPTHS = {
    "taken back": lambda c, level: c.concat(c.negate(), c),
    "filtered": lambda c, level: c.concat(c.filter(pl.col("k") >= 0)),
    "computed": lambda c, level: c.concat(c.select(pl.col("k") + level * (level < 3))),
}
Step = Callable[[rr.Collection, int], rr.Collection]


@pytest.mark.parametrize("step", DEPTHS.values(), ids=DEPTHS)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_chain_of_concats_costs_a_step_for_each_of_them(step: Step, workers: int) -> None:
    flow = rr.Dataflow("ways")
    rows, seen = flow.input("rows", {"k": pl.Int64}), Counter[str]()
    for level in range(50):
        rows = step(rows, level)
        if level % 10 == 9:
            rows = rows.inspect(lambda batch: seen.update(rows=batch.num_rows))
    flow.output("counts", rows.group_by("k").count())
    with flow.run(workers=workers) as run:
        run.insert("rows", [(1,)])
        run.commit()
        assert seen["rows"] <= 5 * 10 * wiring.WAYS
        (only, *others) = sorted(run.read("counts").rows())
        if step is DEPTHS["taken back"]:
            assert (only, others) == ((1, 1), [])
        else:
            assert sum(count for _, count in (only, *others)) == 2**50
        run.delete("rows", [(1,)])
        run.commit()
        assert run.read("counts").rows() == []


def test_few_ways_are_left_as_they_are() -> None:
    flow = rr.Dataflow("ways")
    rows, seen = flow.input("rows", {"k": pl.Int64}), list[list[int]]()
    for _ in range(3):
        rows = rows.concat(rows.filter(pl.col("k") > 0))
    rows = rows.inspect(lambda batch: seen.append(batch["diff"].to_pylist()))
    flow.output("counts", rows.group_by("k").count())
    with flow.run() as run:
        run.insert("rows", [(1,)])
        run.commit()
        assert seen == [[1]] * 8


@given(st.data())
def test_meeting_points_change_no_result(data: st.DataObject) -> None:
    """Programs of concats at random, with few and with many ways on the way to a meeting point."""
    ways, workers = (
        data.draw(st.sampled_from([1, 2, wiring.WAYS])),
        data.draw(st.sampled_from([1, 2])),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wiring, "WAYS", ways)
        flow = rr.Dataflow("ways")
        nodes = [flow.input("a", {"k": pl.Int64}), flow.input("b", {"k": pl.Int64})]
        a, b = Counter({1: 1, 2: 2}), Counter({2: 1, 3: 1})
        models = [a, b]
        for _ in range(data.draw(st.integers(1, 8))):
            (x, y) = (data.draw(st.integers(0, len(nodes) - 1)) for _ in range(2))
            match data.draw(st.sampled_from(["concat", "negate", "filter", "shift", "distinct"])):
                case "concat":
                    nodes.append(nodes[x].concat(nodes[y], nodes[x]))
                    models.append(_sum((models[x], 2), (models[y], 1)))
                case "negate":
                    nodes.append(nodes[x].concat(nodes[y].negate()))
                    models.append(_sum((models[x], 1), (models[y], -1)))
                case "filter":
                    nodes.append(nodes[x].concat(nodes[x].filter(pl.col("k") > 1)))
                    kept = Counter({k: n for k, n in models[x].items() if k > 1})
                    models.append(_sum((models[x], 1), (kept, 1)))
                case "shift":
                    nodes.append(nodes[y].concat(nodes[x].select(pl.col("k") + 1)))
                    moved = Counter({k + 1: n for k, n in models[x].items()})
                    models.append(_sum((models[y], 1), (moved, 1)))
                case _:
                    nodes.append(nodes[x].distinct().concat(nodes[y]))
                    once = Counter({k: 1 for k, n in models[x].items() if n > 0})
                    models.append(_sum((once, 1), (models[y], 1)))
        got = Counter[int]()

        def add(batch: pa.RecordBatch) -> None:
            for row in batch.to_pylist():
                got[row["k"]] += row["diff"]

        flow.output("last", nodes[-1].inspect(add))
        with flow.run(workers=workers) as run:
            run.insert("a", [(1,), (2,), (2,)])
            run.insert("b", [(2,), (3,)])
            run.commit()
        assert {k: n for k, n in got.items() if n} == dict(models[-1])


def _sum(*parts: tuple[Counter[int], int]) -> Counter[int]:
    total = Counter[int]()
    for counter, times in parts:
        for key, count in counter.items():
            total[key] += times * count
    return Counter({key: count for key, count in total.items() if count})


def test_what_is_there_too_often_at_a_meeting_point_is_refused() -> None:
    flow = rr.Dataflow("ways")
    rows = flow.input("rows", {"k": pl.Int64})
    for _ in range(70):
        rows = rows.concat(rows.filter(pl.col("k") > 0))
    flow.output("out", rows)
    with flow.run() as run:
        run.insert("rows", pa.table({"k": [1]}))
        with pytest.raises(rr.OperatorFailed) as refused:
            run.commit()
    assert refused.value.code == "operator.overflow"
    assert "test_ways.py" in str(refused.value)
