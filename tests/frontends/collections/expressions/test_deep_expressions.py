"""Expressions that are nested deeply: they work, or are refused with a way out; never a bare RecursionError."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_

import polars as pl
import pytest

import riverrun as rr


def _sum(terms: int) -> pl.Expr:
    return reduce(lambda total, term: total + term, range(1, terms), pl.col("v"))


def _nested(terms: int) -> pl.Expr:
    otherwise = pl.lit(-1, pl.Int64)
    for term in range(terms):
        otherwise = pl.when(pl.col("v") == term).then(term).otherwise(otherwise)
    return otherwise


def _chained(terms: int) -> pl.Expr:
    chain = pl.when(pl.col("v") == 0).then(0).when(pl.col("v") == 1).then(1)
    for term in range(2, terms):
        chain = chain.when(pl.col("v") == term).then(term)
    return chain.otherwise(-1)


COMPUTED = {"sum": _sum, "nested": _nested, "chained": _chained}


@pytest.mark.parametrize("made", COMPUTED.values(), ids=COMPUTED)
def test_a_column_of_many_terms(made: Callable[[int], pl.Expr]) -> None:
    flow = rr.Dataflow("deep")
    rows = flow.input("rows", {"v": pl.Int64})
    for terms in (700, 3000):
        with pytest.raises(rr.PlanError, match="nested so deeply") as refused:
            rows.select(x=made(terms))
        assert refused.value.code == "plan.too_deep"
        assert "is_in(" in str(refused.value)
        assert "test_deep_expressions.py" in str(refused.value)
    flow.output("some", rows.select(x=made(200)))
    with flow.run() as run:
        run.insert("rows", [(1,)])
        run.commit()
        assert run.read("some").rows() == pl.DataFrame({"v": [1]}).select(made(200)).rows()


def test_a_condition_of_many_terms() -> None:
    flow = rr.Dataflow("deep")
    rows = flow.input("rows", {"v": pl.Int64})
    with pytest.raises(rr.PlanError) as refused:
        rows.filter(reduce(or_, [pl.col("v") == term for term in range(700)]))
    assert refused.value.code == "plan.too_deep"
    with pytest.raises(rr.PlanError) as refused:
        rows.group_by(pl.col("v") % 2).agg(x=_sum(700).max())
    assert refused.value.code == "plan.too_deep"
    flow.output("some", rows.filter(pl.col("v").is_in(list(range(700)))))
    with flow.run() as run:
        run.insert("rows", [(1,), (800,)])
        run.commit()
        assert run.read("some").rows() == [(1,)]
