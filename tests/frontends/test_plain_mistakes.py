"""Mistakes of the first hour: a program does what its user means where that is clear, else the error helps."""

from __future__ import annotations

import copy
import datetime
import pickle

import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr
from riverrun.errors import SHOWN, users_line
from tests.frontends.collections.checking import check

SCHEMA = {"k": pl.String, "v": pl.Int64, "day": pl.Date}
ROWS = {"rows": {"a": pl.Int64, "b": pl.String}}
DAY = datetime.date(2024, 1, 1)
k, v = pl.col("k"), pl.col("v")


def rows_of(flow=None):
    return (flow or rr.Dataflow("mistakes")).input("rows", SCHEMA)


# -- conditions


@pytest.mark.parametrize("seed", range(3))
def test_filter_by_values(seed):
    def program(rows):
        if isinstance(rows, rr.Collection):
            return {
                "one": rows.filter(a=2),
                "text": rows.filter(b="a"),
                "both": rows.filter(pl.col("a") > 0, b="b", a=1),
                "column": rows.filter(a=pl.col("b").str.len_bytes().cast(pl.Int64)),
                "listed": rows.filter([pl.col("a") > 0, pl.col("b") == "a"]),
            }
        a, b = pl.col("a"), pl.col("b")
        return {
            "one": rows.filter(a == 2),
            "text": rows.filter(b == "a"),
            "both": rows.filter((a > 0) & (b == "b") & (a == 1)),
            "column": rows.filter(a == b.str.len_bytes().cast(pl.Int64)),
            "listed": rows.filter((a > 0) & (b == "a")),
        }

    check(program, ROWS, seed=seed)


FILTERS = {
    "nothing": (lambda rows: rows.filter(), "no condition is given"),
    "none": (lambda rows: rows.filter(k=None), 'pl.col("k").is_null()'),
    "list": (lambda rows: rows.filter(k=["a", "b"]), 'pl.col("k").is_in('),
    "set": (lambda rows: rows.filter(v={1, 2}), 'pl.col("v").is_in('),
    "unknown": (lambda rows: rows.filter(vv=2), "did you mean 'v'?"),
    "type": (lambda rows: rows.filter(v="a"), "cannot filter 'rows'"),
    "object": (lambda rows: rows.filter(v=object()), "not a value of a column"),
    "string": (lambda rows: rows.filter("v > 1"), "not a Polars expression"),
    "function": (lambda rows: rows.filter(lambda row: row["v"] > 1), "not a Polars expression"),
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_that_is_refused(name):
    give, words = FILTERS[name]
    with pytest.raises(rr.PlanError) as refused:
        give(rows_of())
    assert words in str(refused.value)
    assert refused.value.hint


# -- aggregates

AGGREGATES = {
    "sum_of_list": (lambda g: g.agg(x=rr.sum(["v"])), "not in a list: 'v'"),
    "sum_of_sum": (lambda g: g.agg(x=rr.sum(rr.max("v"))), "an aggregate already"),
    "last_without_by": (lambda g: g.agg(x=rr.last("v")), 'rr.last("price", by="day")'),
    "string_operand": (lambda g: g.agg(x=rr.sum("v") / "v"), "no aggregate and no number"),
    "list_operand": (lambda g: g.agg(x=rr.sum("v") - [1]), "no aggregate and no number"),
    "text_arithmetic": (lambda g: g.agg(x=rr.max("day") * rr.max("day")), "cannot aggregate 'rows'"),
    "python_and": (lambda g: g.agg(x=(rr.count() > 1) and rr.sum("v")), "combine conditions by &"),
    "python_if": (lambda g: g.agg(x=1 if rr.count() > 1 else 2), "it is a description"),
    "unknown_inside": (lambda g: g.agg(x=rr.sum("w") / rr.count()), "'w' does not exist"),
    "two_of_a_name": (lambda g: g.agg(rr.sum("v"), rr.max("v") / 2), "two columns called 'v'"),
    "two_of_an_alias": (lambda g: g.agg(rr.sum("v").alias("x"), x=rr.max("v")), "two columns called 'x'"),
    "alias_of_the_key": (lambda g: g.agg(rr.sum("v").alias("k")), "a column of the key"),
    "directions": (lambda g: g.top(1, by=["v", "day"], descending=[True]), "2 columns with 1 directions"),
    "top_without_by": (lambda g: g.top(1), "top(1, by='score')"),
    "rename_swapped": (lambda g: g.collection.rename(v="value"), 'rename({"v": "value"})'),
    "direction": (lambda g: g.top(1, by="v", descending="no"), "True or False"),
    "direction_number": (lambda g: g.top(1, by="v", descending=[0]), "True or False"),
    "all_by_nothing": (lambda g: g.collection.group_by().agg(), "no column would be left"),
}  # fmt: skip


@pytest.mark.parametrize("name", AGGREGATES)
def test_an_aggregate_that_is_refused(name):
    give, words = AGGREGATES[name]
    with pytest.raises(rr.PlanError) as refused:
        give(rows_of().group_by("k"))
    assert words in str(refused.value)
    assert refused.value.hint


OF_POLARS = {
    "method": lambda rows: rr.sum("v").rolling_mean(3),
    "namespace": lambda rows: rr.max("day").dt.year(),
    "when": lambda rows: pl.when(rr.count() > 1).then(1),
    "function": lambda rows: pl.max_horizontal(rr.sum("v"), rr.count()),
    "select": lambda rows: rows.select(x=rr.sum("v")),
    "filter": lambda rows: rows.filter(rr.count() > 1),
    "top": lambda rows: rows.group_by("k").top(1, by=rr.sum("v")),
    "group_by": lambda rows: rows.group_by(x=rr.sum("v")),
    "meta": lambda rows: rr.sum("v").meta.output_name(),
}


@pytest.mark.parametrize("name", OF_POLARS)
def test_an_aggregate_is_no_expression_of_polars(name):
    with pytest.raises(rr.PlanError, match="aggregate") as refused:
        OF_POLARS[name](rows_of())
    assert refused.value.hint
    assert "At: test_plain_mistakes.py" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("avg", "rr.mean"),
        ("n_unique", "rr.count_distinct"),
        ("median", "pl.col(name).median()"),
        ("len", "rr.count()"),
    ],
)
def test_what_is_looked_for_elsewhere(name, hint):
    with pytest.raises(AttributeError) as refused:
        getattr(rr, name)
    assert hint in str(refused.value)


def test_aggregates_are_told_as_they_are_written():
    assert str(rr.last("v", by=["day", "k"])) == "last(v by day, k)"
    assert str((rr.sum("v") / rr.count()).round(2)) == "(sum(v) / count()).round(2)"
    assert str(-rr.count("v") * 2) == "((-count(v)) * 2)"


def test_aggregates_can_be_copied():
    aggregate = rr.last("v", by=["day", "k"]).alias("x")
    for again in (
        copy.copy(aggregate),
        copy.deepcopy(aggregate),
        pickle.loads(pickle.dumps(aggregate)),
    ):
        assert (str(again), again.called) == (str(aggregate), "x")
    assert str(copy.copy(rr.sum("v") / 2)) == "(sum(v) / 2)"


def test_the_same_aggregate_is_kept_once():
    flow = rr.Dataflow("once")
    aggregated = (
        rows_of(flow)
        .group_by("k")
        .agg(s=rr.sum("v"), q=rr.sum("v") / rr.count(), p=rr.sum("v") * rr.count())
    )
    flow.output("made", aggregated)
    assert flow.explain().count("sum(v)") <= 2


# -- functions of groups, and of rows


@pytest.mark.parametrize("seed", range(3))
def test_apply_takes_frames(seed):
    def program(rows):
        def of_groups(function, **more):
            return rows.group_by("b").apply(
                function, {"n": pl.Int64, "t": pl.String}, many=True, **more
            )

        if isinstance(rows, rr.Collection):
            return {
                "polars": of_groups(lambda g: g.select(n="a", t="b")),
                "lazy": of_groups(lambda g: g.lazy().select(n="a", t="b")),
                "arrow": of_groups(lambda g: g.select(n="a", t="b").to_arrow()),
                "batch": of_groups(
                    lambda g: g.select(n="a", t="b").to_arrow().combine_chunks().to_batches()[0]
                ),
                "some": of_groups(
                    lambda g: g.select(n="a", t="b") if g["b"][0] else g.select("a", "b").rows()
                ),
                "none": of_groups(lambda g: g.select(n="a", t="b").clear()),
            }
        applied = {
            name: of_groups(lambda g: g.select("a", "b").rows())
            for name in ("polars", "lazy", "arrow", "batch", "some")
        }
        return applied | {"none": of_groups(lambda g: [])}

    check(program, ROWS, seed=seed)


def test_apply_takes_frames_of_pandas():
    flow = rr.Dataflow("pandas")
    rows = flow.input("rows", {"k": pl.String, "v": pl.Int64})
    flow.output(
        "made",
        rows.group_by("k").apply(
            lambda g: g.select("v").to_pandas() * 2, {"v": pl.Int64}, many=True
        ),
    )
    with flow.run() as run:
        run.insert("rows", [("a", 1), ("a", 2), ("b", 3)])
        run.commit()
        assert run.read("made").rows() == [("a", 2), ("a", 4), ("b", 6)]


def test_flat_map_takes_frames():
    flow = rr.Dataflow("frames")
    rows = flow.input("rows", {"v": pl.Int64})
    flow.output(
        "made",
        rows.flat_map(lambda row: pl.DataFrame({"w": [row["v"]] * row["v"]}), {"w": pl.Int64}),
    )
    with flow.run() as run:
        run.insert("rows", [(2,), (0,), (1,)])
        run.commit()
        assert run.read("made").rows() == [(1,), (2,), (2,)]


@pytest.mark.parametrize(
    ("function", "many", "words"),
    [
        (lambda g: g.select("v"), False, "many=True"),
        (lambda g: g.select(w="v"), True, "'v' is missing"),
        (lambda g: pa.table({"v": ["a"]}), True, "'v'"),
    ],
)
def test_a_frame_that_is_refused(function, many, words):
    flow = rr.Dataflow("frames")
    rows = flow.input("rows", {"k": pl.String, "v": pl.Int64})
    flow.output("made", rows.group_by("k").apply(function, {"v": pl.Int64}, many=many))
    with flow.run() as run:
        run.insert("rows", [("a", 1)])
        with pytest.raises(rr.OperatorFailed) as refused:
            run.commit()
        assert words in str(refused.value)
        assert "give a frame" not in str(refused.value)


# -- keys without values


@pytest.mark.parametrize("act", ["insert", "upsert", "delete"])
@pytest.mark.parametrize(
    "inserted",
    [
        [(1, "a"), (None, "b")],
        [{"k": None, "t": "b"}],
        pl.DataFrame({"k": [None, 1], "t": ["a", "b"]}),
        pa.table({"k": pa.array([None], pa.int64()), "t": ["a"]}),
    ],
    ids=["tuples", "dicts", "polars", "arrow"],
)
def test_a_null_in_a_key(act, inserted):
    flow = rr.Dataflow("keyed")
    flow.output("made", flow.input("rows", {"k": pl.Int64, "t": pl.String}, key="k"))
    with flow.run() as run:
        with pytest.raises(rr.SchemaError) as refused:
            getattr(run, act)("rows", inserted)
        assert refused.value.code == "schema.null_key"
        assert "a key has no nulls" in str(refused.value)
        assert "nullable" not in str(refused.value), "no declaration lets a key be null"
        run.insert("rows", [(1, None)])  # elsewhere nulls are fine
        run.commit()
        assert run.read("made").rows() == [(1, None)]


# -- what is said


def test_a_long_line_is_cut():
    rows = rows_of()
    with pytest.raises(rr.PlanError) as refused:
        rows.select("no such column", "and more of them, so that this line is longer than anybody wants to read in an error")  # noqa: E501  # fmt: skip
    (line,) = [line for line in str(refused.value).splitlines() if line.startswith("At: ")]
    assert line.endswith(" ...")
    assert len(line) < SHOWN + 60
    assert 'rows.select("no such column"' in line
    short = users_line()
    assert short.endswith(": short = users_line()")


def test_epochs_have_one_meaning():
    flow = rr.Dataflow("epochs")
    flow.output("made", rows_of(flow))
    with flow.run() as run:
        assert run.epoch is run.status()["epoch"] is None
        assert run.status()["next"] == 0
        for number in range(3):
            run.insert("rows", [("a", number, DAY)])
            epoch = run.commit().epoch
            status = run.status()
            assert epoch == run.epoch == status["epoch"] == run.read("made").epoch == number
            assert run.completed == status["completed"] == status["next"] == number + 1


def test_the_epoch_of_a_checkpoint_is_the_last_that_it_holds(tmp_path):
    flow = rr.Dataflow("epochs")
    flow.output("made", rows_of(flow))
    with flow.run(checkpoint=tmp_path, every=None) as run:
        assert run.status()["checkpoint"]["epoch"] is None
        for number in range(2):
            run.insert("rows", [("a", number, DAY)])
            run.commit()
            run.checkpoint()
            assert run.status()["checkpoint"]["epoch"] == run.epoch == number
            assert run.events("checkpoint")[-1]["epoch"] == number
    assert rr.read_checkpoint(tmp_path).epoch == 1


# -- spellings of before

FORMER = {
    "iterate": (lambda rows: rows.iterate(lambda r: r, limit=3), "rounds="),
    "feedback": (
        lambda rows: rr.Dataflow("loop").loop().feedback({"k": pl.Int64}, limit=3),
        "rounds=",
    ),
}


@pytest.mark.parametrize("name", FORMER)
def test_a_spelling_of_before_is_refused_with_that_of_today(name):
    call, words = FORMER[name]
    with pytest.raises(TypeError, match=r"has no argument .*=\nHint: ") as refused:
        call(rows_of())
    assert words in str(refused.value).partition("Hint: ")[2]


@pytest.mark.parametrize("rounds", [-1, 1.5, True, "3"], ids=repr)
def test_rounds_are_a_whole_number(rounds):
    for call in (
        lambda: rows_of().iterate(lambda r: r, rounds=rounds),
        lambda: rr.Dataflow("loop").loop().feedback({"k": pl.Int64}, rounds=rounds),
    ):
        with pytest.raises(rr.PlanError, match=r"rounds=.* a whole number from 0 on") as refused:
            call()
        assert refused.value.hint
