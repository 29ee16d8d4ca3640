"""Small words of messages and docs: articles, bounds, what to give, where nulls are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.errors import with_article


def test_articles() -> None:
    words = ["int", "object", "str", "uint8", "DataFrame", "Expr"]
    assert [with_article(word).partition(" ")[0] for word in words] == [
        "an",
        "an",
        "a",
        "a",
        "a",
        "an",
    ]
    flow = rr.Dataflow("words")
    rows = flow.input("rows", {"k": pl.Int64})
    wrong: list[Callable[[], Any]] = [
        lambda: flow.output("o", 3),  # type: ignore[arg-type]
        lambda: rows.join(3, on="k"),  # type: ignore[arg-type]
        lambda: rr.graphs.components(3),  # type: ignore[arg-type]
    ]
    for refused in wrong:
        with pytest.raises(rr.PlanError, match="an int"):
            refused()


def test_the_bounds_of_top() -> None:
    groups = rr.Dataflow("words").input("rows", {"k": pl.Int64, "v": pl.Int64}).group_by("k")
    for k in (0, 10**20, True):
        with pytest.raises(rr.PlanError, match=r"from 1 on, below 2\*\*62"):
            groups.top(k, by="v")


@pytest.mark.parametrize("answer", [None, 3])
def test_a_function_of_a_group_that_gives_no_rows(answer: Any) -> None:
    flow = rr.Dataflow("words")
    rows = flow.input("rows", {"k": pl.Int64})
    flow.output("o", rows.group_by("k").apply(lambda group: answer, {"x": pl.Int64}, many=True))
    with flow.run() as run:
        run.insert("rows", [(1,)])
        with pytest.raises(rr.OperatorFailed) as refused:
            run.commit()
    assert refused.value.code == "schema.rows"
    assert f"gave {answer}" in str(refused.value)
    assert "give a list or a frame" in str(refused.value)


def test_last_passes_over_rows_whose_order_is_null() -> None:
    flow = rr.Dataflow("words")
    rows = flow.input("rows", {"k": pl.Int64, "l": pl.Int64, "f": pl.Int64})
    found = rows.group_by("k").agg(first=rr.first("l", by="f"), last=rr.last("l", by="f"))
    flow.output("o", found)
    with flow.run() as run:
        run.insert("rows", [(1, 1, 4), (1, 2, 5), (1, 3, None), (2, 7, None), (2, 8, None)])
        run.commit()
        assert run.read("o").rows() == [(1, 1, 2), (2, 7, 7)]
