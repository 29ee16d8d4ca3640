"""Scripts, how they are played, and the one-line harness."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr
from riverrun.errors import SchemaError
from riverrun.testing import (
    CHECKPOINT,
    COMMIT,
    CRASH,
    KILL,
    REFUSE,
    SCALE,
    Draw,
    check_dataflow,
    delete,
    each_epoch,
    insert,
    once,
    play,
    upsert,
)
from riverrun.testing.draws import draw_script
from riverrun.testing.script import Change, accumulated, grouped, shown, single_rows
from riverrun.testing.shrinking import shrink

WORDS = [{"word": "sea"}, {"word": "sky"}, {"word": "sea"}]


def counts(words: rr.Collection) -> rr.Collection:
    return words.group_by("word").count()


@pytest.mark.parametrize(
    "rows",
    [
        WORDS,
        pl.DataFrame(WORDS),
        pd.DataFrame(WORDS),
        pa.Table.from_pylist(WORDS),
        {"word": ["sea", "sky", "sea"]},
    ],
    ids=["dicts", "polars", "pandas", "arrow", "columns"],
)
def test_once_takes_rows_in_any_form(rows: Any) -> None:
    assert once(counts, words=rows).rows() == [("sea", 2), ("sky", 1)]


def test_once_takes_no_rows_where_the_columns_are_known() -> None:
    assert once(counts, words=pl.DataFrame(WORDS).head(0)).rows() == []
    with pytest.raises(SchemaError, match="do not say what their columns are"):
        once(counts, words=[])
    with pytest.raises(SchemaError, match="do not say what their columns are"):
        once(counts, words=[("sea",)])


def test_once_refuses_what_is_no_collection() -> None:
    with pytest.raises(rr.PlanError, match="it gave 3, not a collection"):
        once(lambda words: 3, words=WORDS)


SCRIPT = [
    insert("words", WORDS),
    COMMIT,
    insert("words", [{"word": "ice"}]),
    delete("words", [{"word": "sky"}]),
    COMMIT,
    COMMIT,
    delete("words", [{"word": "sea"}]),
    COMMIT,
]
EXPECTED = [
    [("sea", 2), ("sky", 1)],
    [("ice", 1), ("sea", 2)],
    [("ice", 1), ("sea", 2)],
    [("ice", 1), ("sea", 1)],
]


def test_each_epoch() -> None:
    found = each_epoch(counts, SCRIPT, words={"word": str})
    assert [result.rows() for result in found] == EXPECTED
    assert [result.epoch for result in found] == [0, 1, 2, 3]


MARKED = [
    [KILL],
    [KILL(1), KILL(0)],
    [CRASH],
    [CRASH(3)],
    [CHECKPOINT, CRASH(1)],
    [SCALE(3)],
    [REFUSE],
    [REFUSE, KILL, CRASH],
    [CHECKPOINT, SCALE(1), KILL, CHECKPOINT],
]


@pytest.mark.parametrize("marks", MARKED, ids=str)
@pytest.mark.parametrize("at", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("seed", [None, 5])
def test_marks_change_no_result(marks: list[Any], at: int, seed: int | None) -> None:
    flow = rr.Dataflow("words")
    flow.output("counts", counts(flow.input("words", {"word": pl.String})))
    script = [*SCRIPT[:at], *marks, *SCRIPT[at:]]
    found = play(flow, script, workers=2, seed=seed)
    assert [results["counts"].rows() for results in found] == EXPECTED


def test_a_crash_leaves_what_a_directory_has(tmp_path: Path) -> None:
    flow = rr.Dataflow("words")
    flow.output("counts", counts(flow.input("words", {"word": pl.String})))
    play(flow, [*SCRIPT[:5], CHECKPOINT], checkpoint=tmp_path)
    with flow.run(checkpoint=tmp_path) as run:
        assert run.epoch == 1
        assert run.read("counts").rows() == EXPECTED[1]


def test_marks_strike_in_the_midst_of_an_epoch() -> None:
    """A side effect shows that the epoch was begun twice."""
    for mark in (KILL, CRASH, REFUSE):
        seen: list[int] = []
        flow = rr.Dataflow("words")
        words = flow.input("words", {"word": pl.String}).inspect(
            lambda rows, seen=seen: seen.append(rows.num_rows)
        )
        flow.output("counts", counts(words))
        play(flow, [insert("words", WORDS), mark, COMMIT], seed=1)
        assert sum(seen) == 2 * len(WORDS), mark


def test_cuts_are_seen_by_the_program() -> None:
    def sizes(**way: Any) -> list[Any]:
        seen: list[Any] = []
        flow = rr.Dataflow("words")
        words = flow.input("words", {"word": pl.String}).inspect(
            lambda rows: seen.append(rows["word"].to_pylist())
        )
        flow.output("counts", counts(words))
        play(flow, [insert("words", [(c,) for c in "abcde"]), COMMIT], **way)
        return seen

    assert sizes() == [list("abcde")]
    assert sizes(cut=2) == [["a", "b"], ["c", "d"], ["e"]]
    (shuffled,) = sizes(shuffle=1)
    assert shuffled != list("abcde")
    assert sorted(shuffled) == list("abcde")
    assert sizes(shuffle=1, cut=1) == sizes(shuffle=1, cut=1)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ([3], "cannot play 3: a script holds changes and marks"),
        ([SCALE], "cannot play SCALE without the number"),
    ],
)
def test_a_malformed_script_is_refused(script: Any, message: str) -> None:
    flow = rr.Dataflow("words")
    flow.output("counts", counts(flow.input("words", {"word": pl.String})))
    with pytest.raises(rr.PlanError, match=message):
        play(flow, script)


def test_a_script_shows_the_python_that_makes_it() -> None:
    script = [*SCRIPT, KILL(2), CRASH, upsert("words", WORDS)]
    assert eval(shown(script)) == script  # the names are those imported here


def test_random_scripts_repeat_cancel_and_come_back() -> None:
    draw = {"n": Draw({"n": int}, values={"n": [1, 2]})}
    scripts = [draw_script(draw, seed, epochs=6) for seed in range(20)]
    assert scripts == [draw_script(draw, seed, epochs=6) for seed in range(20)]
    bags = [[bag["n"] for bag in accumulated(script) if "n" in bag] for script in scripts]
    assert any(bag.count({"n": 1}) > 1 for epochs in bags for bag in epochs)
    assert any(before and not after for epochs in bags for before, after in pairwise(epochs))
    kinds = {item.kind for script in scripts for item in script if isinstance(item, Change)}
    assert kinds == {"insert", "delete"}
    keyed = draw_script({"n": Draw({"k": int, "v": int}, key="k")}, 1)
    assert {item.kind for item in keyed if isinstance(item, Change)} == {"upsert", "delete"}
    appended = draw_script({"n": Draw({"n": int}, deletes=False)}, 1, epochs=20)
    assert {item.kind for item in appended if isinstance(item, Change)} == {"insert"}


def test_shrinking_ends_at_a_smallest_script() -> None:
    script = draw_script({"n": {"n": int}}, 4, epochs=8)

    def fails(some: list[Any]) -> bool:
        last = accumulated(some)[-1].get("n", [])
        return len(last) >= 2 and KILL in some

    assert fails([*script, KILL, insert("n", [{"n": 1}, {"n": 2}]), COMMIT])
    small = shrink([*script, KILL, insert("n", [{"n": 1}, {"n": 2}]), COMMIT], fails)
    assert len(single_rows(small)) == 4
    assert grouped(single_rows(small)) == small


def test_check_dataflow_takes_programs_in_several_forms() -> None:
    def build() -> rr.Dataflow:
        flow = rr.Dataflow("shop")
        prices = flow.input("prices", {"item": pl.String, "price": pl.Float64}, key="item")
        sales = flow.input("sales", {"item": pl.String, "pieces": pl.Int64})
        flow.output(
            "paid",
            sales.join(prices, on="item")
            .group_by("item")
            .agg(paid=rr.sum(pl.col("price") * pl.col("pieces"))),
        )
        flow.output("sold", sales.group_by("item").agg(pieces=rr.sum("pieces")))
        return flow

    def oracle(prices: list[Any], sales: list[Any]) -> dict[str, Any]:
        price = {row["item"]: row["price"] for row in prices}
        sold: dict[str, int] = {}
        for row in sales:
            sold[row["item"]] = sold.get(row["item"], 0) + row["pieces"]
        paid = [(item, price[item] * n) for item, n in sold.items() if item in price]
        return {"paid": paid, "sold": sold.items()}

    examples = [{"item": "tea", "pieces": 2}, {"item": "salt", "pieces": 1}]
    drawn = {"prices": Draw(values={"item": ["tea", "salt"], "price": [0.5, 2.0]})}
    assert check_dataflow(build, drawn, oracle=oracle, rounds=2).scripts == 2
    assert check_dataflow(build(), {"sales": examples}, rounds=1).exempt == ()
    with pytest.raises(rr.PlanError, match="cannot draw rows of 'sale'"):
        check_dataflow(build, {"sale": examples})
    with pytest.raises(rr.PlanError, match="it is no dataflow"):
        check_dataflow(lambda: 3)  # type: ignore[arg-type,return-value]
