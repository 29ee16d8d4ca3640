"""Kept columns: promises that hold change nothing, and those that are broken refuse the epoch."""

from __future__ import annotations

import datetime
import pickle
from decimal import Decimal

import polars as pl
import pytest

import riverrun as rr
from tests.frontends.collections.checking import build, check
from tests.soaking import seeds

SCHEMA = {"k": pl.Int64, "s": pl.String, "f": pl.Float64}
ROWS = {"rows": SCHEMA}
COUNT = {"n": pl.Int64}

KEEPING = {
    "flat_map": lambda rows: rows.flat_map(
        lambda row: [{**row, "n": n} for n in range((row["k"] or 0) % 3)], SCHEMA | COUNT, keeps=["f", "k", "s"]
    ),
    "flat_map_in_another_order": lambda rows: rows.flat_map(
        lambda row: [(1, row["f"], row["k"])], {"n": pl.Int64, "f": pl.Float64, "k": pl.Int64}, keeps="k"
    ),
    "map_batches": lambda rows: rows.map_batches(
        lambda frame: frame.select("f", "k", n=pl.lit(1, pl.Int64)),
        {"f": pl.Float64, "k": pl.Int64, "n": pl.Int64}, keeps=["k", "f"],
    ),
    "apply": lambda rows: rows.group_by("k").apply(
        lambda group: group["s"].min(), {"s": pl.String}, keeps=["s", "k"]
    ),
    "apply_many": lambda rows: rows.group_by("s").apply(
        lambda group: group.select("k", "f").rows(), {"k": pl.Int64, "f": pl.Float64}, many=True, keeps=["k", "f"],
    ),
    "apply_to_all": lambda rows: rows.group_by().apply(
        lambda group: group["k"].max(), {"k": pl.Int64}, keeps="k"
    ),
    "co_group": lambda rows: rows.co_group(
        rows.select("k", s="s", f="f"), "k", lambda key, a, b: b.select("f", "s").rows(),
        {"f": pl.Float64, "s": pl.String}, keeps=["s", "f", "k"],
    ),
    "co_group_of_one_side": lambda rows: rows.co_group(
        rows.select(t="s", g="f"), None, lambda key, a, b: a.select("f").rows(),
        {"f": pl.Float64}, left_on="s", right_on="t", keeps="f",
    ),
}  # fmt: skip


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(4, soak=16))
@pytest.mark.parametrize("name", KEEPING)
def test_a_promise_that_holds_changes_nothing(name, seed):
    """NaN, nulls, and rows that are there several times."""
    check(KEEPING[name], ROWS, seed=seed, most=12, scale=seed % 2 == 0)


KINDS = {
    "int": (pl.Int64, 1, 2),
    "float": (pl.Float64, float("nan"), 2.0),
    "text": (pl.String, "a", None),
    "null": (pl.Int64, None, 0),
    "date": (pl.Date, datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)),
    "decimal": (pl.Decimal(10, 2), Decimal("1.25"), Decimal("1.26")),
    "enum": (pl.Enum(["x", "y"]), "x", "y"),
    "bytes": (pl.Binary, b"a", b""),
    "boolean": (pl.Boolean, True, False),
    "list": (pl.List(pl.Int64), [1, 2], [1]),
    "struct": (pl.Struct({"a": pl.Int64}), {"a": 1}, {"a": 2}),
    "time": (pl.Datetime("us", "UTC"), datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), None),
}
BREAKING = {
    "flat_map": lambda rows, schema, other: rows.flat_map(
        lambda row: [(row["n"], row["x"] if row["n"] < 5 else other)], schema, keeps="x"
    ),
    "map_batches": lambda rows, schema, other: rows.map_batches(
        lambda frame: {"n": frame["n"].to_list(), "x": [
            x if n < 5 else other for n, x in zip(frame["n"], frame["x"].to_list(), strict=True)
        ]}, schema, keeps=["n", "x"],
    ),
    "apply": lambda rows, schema, other: rows.group_by("n").apply(
        lambda group: {"x": group["x"].to_list()[0] if group["n"][0] < 5 else other},
        {"x": schema["x"]}, keeps="x",
    ),
    "co_group": lambda rows, schema, other: rows.co_group(
        rows, "n", lambda key, a, b: [{"x": a["x"].to_list()[0] if key[0] < 5 else other}],
        {"x": schema["x"]}, keeps="x",
    ),
}  # fmt: skip


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("method", BREAKING)
@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_promise_refuses_the_epoch(kind, method, workers):
    """The error has the function, the column and the values; what came before is there, what comes after is taken."""
    type_, value, other = KINDS[kind]
    schema = {"n": pl.Int64, "x": type_}
    flow = build(lambda rows: BREAKING[method](rows, schema, other), {"rows": schema})
    with flow.run(workers=workers) as run:
        run.insert("rows", [(n, value) for n in range(5)])
        run.commit()
        before = repr(run.read("result").rows())
        run.insert("rows", [(7, value)])
        with pytest.raises(rr.OperatorFailed) as raised:
            run.commit()
        error = raised.value
        assert error.code == "operator.keeps"
        assert error.fields["column"] == "x"
        assert "lambda" in error.fields["function"]
        assert error.fields["given"] == other
        assert "promises to keep 'x'" in error.message
        assert "keeps=" in error.hint
        assert "test_kept.py" in str(error)
        assert pickle.loads(pickle.dumps(error)).message == error.message
        assert repr(run.read("result").rows()) == before
        run.insert("rows", [(3, value)])
        run.commit()


def test_columns_are_kept_together():
    """Each column occurs in the group, and no row has both."""
    schema = {"k": pl.Int64, "x": pl.Int64, "y": pl.Int64}
    columns = {"x": pl.Int64, "y": pl.Int64}

    def crossed(group):
        return [(group["x"].min(), group["y"].min())]

    def program(rows):
        return rows.group_by("k").apply(crossed, columns, many=True, keeps=["x", "y"])

    with build(program, {"rows": schema}).run() as run:
        run.insert("rows", [(1, 1, 1), (1, 2, 2)])
        run.commit()
        run.insert("rows", [(2, 1, 8), (2, 7, 3)])
        with pytest.raises(rr.OperatorFailed) as raised:
            run.commit()
    assert raised.value.fields["column"] == "x, y"
    assert raised.value.fields["group"] == (2,)
    assert raised.value.fields["given"] == (1, 3)
    assert (
        "crossed promises to keep 'x' and 'y', and made a row with x = 1 and y = 3 for the group (2,), where no row "
        "has them together"
    ) in raised.value.message


def test_a_row_of_another_group_does_not_count():
    schema = {"k": pl.Int64, "x": pl.Int64}

    def program(rows):
        return rows.group_by("k").apply(lambda group: 5, {"x": pl.Int64}, keeps="x")

    with build(program, {"rows": schema}).run() as run:
        run.insert("rows", [(1, 5), (2, 6)])
        with pytest.raises(rr.OperatorFailed, match="'x'"):
            run.commit()
        run.insert("rows", [(1, 5), (2, 6), (2, 5)])
        run.commit()
        assert run.read("result").rows() == [(1, 5), (2, 5)]


def test_a_row_of_the_side_that_has_all_kept_columns_counts_and_no_other():
    left, right = {"k": pl.Int64, "x": pl.Int64, "y": pl.Int64}, {"k": pl.Int64, "x": pl.Int64}
    columns = {"x": pl.Int64, "y": pl.Int64}

    def program(left, right):
        return left.co_group(
            right, "k", lambda key, a, b: [(b["x"].max() or 0, 1)], columns, keeps=["x", "y"]
        )

    with build(program, {"left": left, "right": right}).run() as run:
        run.insert("left", [(1, 5, 1), (1, 6, 1)])
        run.insert("right", [(1, 5), (1, 6)])
        run.commit()
        assert run.read("result").rows() == [(1, 6, 1)]
        run.insert("right", [(1, 9)])
        with pytest.raises(rr.OperatorFailed, match="x = 9"):
            run.commit()
        run.insert("right", [(3, 5)])
        with pytest.raises(rr.OperatorFailed, match=r"group \(3,\)"):
            run.commit()


def test_a_row_that_is_taken_back_keeps_as_well():
    """The promise is asked of deletions too: of the same row the function makes the same."""

    def halves(row):
        return [(row["k"], row["k"] // 2)]

    schema = {"k": pl.Int64, "h": pl.Int64}
    flow = build(lambda rows: rows.flat_map(halves, schema, keeps="k"), {"rows": {"k": pl.Int64}})
    with flow.run(workers=2) as run:
        run.insert("rows", [(k,) for k in range(9)])
        run.commit()
        run.delete("rows", [(k,) for k in range(1, 9)])
        run.commit()
        assert run.read("result").rows() == [(0, 0)]


def same(row):
    return [row]


def test_a_promise_is_shown_and_is_no_part_of_the_identity(tmp_path):
    """A program that promises more goes on from the checkpoint of one that promised less."""

    def program(*keeps):
        return build(
            lambda rows: rows.flat_map(same, SCHEMA, keeps=keeps)
            .group_by("k").apply(lambda g: g["s"].min(), {"s": pl.String}, keeps=[k for k in keeps if k != "f"])
            .co_group(rows, "k", lambda key, a, b: b.select("s").rows(), {"s": pl.String}, keeps=keeps),
            ROWS,
        )  # fmt: skip

    before, after = program(), program("k", "s")
    assert before.plan.fingerprint == after.plan.fingerprint
    assert "same, keeps k, s" in after.explain()
    assert "to each k, keeps s" in after.explain()
    assert "lambda>, keeps s" in after.explain()
    with before.run(checkpoint=tmp_path) as run:
        run.insert("rows", [(1, "a", 0.5), (2, "b", 0.5)])
        run.commit()
        run.checkpoint()
    with after.run(workers=2, checkpoint=tmp_path) as run:
        assert run.read("result").rows() == [(1, "a"), (2, "b")]
        run.insert("rows", [(1, "0", 0.5)])
        run.commit()
        assert run.read("result").rows() == [(1, "0"), (1, "a"), (2, "b")]
