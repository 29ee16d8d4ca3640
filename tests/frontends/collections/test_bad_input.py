"""Errors name the node and the user's line; a run with a refused epoch stays as it was."""

from __future__ import annotations

import pickle

import polars as pl
import pytest

import riverrun as rr
from tests.frontends.collections.checking import build

ROWS = {"rows": {"a": pl.Int64, "b": pl.String}}
a, b = pl.col("a"), pl.col("b")


def rows():
    return rr.Dataflow("bad").input("rows", ROWS["rows"])


# -- found while the program is built


UNKNOWN_COLUMN = {
    "select": lambda rows: rows.select("aa"),
    "select_expression": lambda rows: rows.select(c=pl.col("aa") + 1),
    "with_columns": lambda rows: rows.with_columns(c=pl.col("aa")),
    "filter": lambda rows: rows.filter(pl.col("aa") > 1),
    "rename": lambda rows: rows.rename({"aa": "c"}),
    "drop": lambda rows: rows.drop("aa"),
    "explode": lambda rows: rows.explode("aa"),
    "windows": lambda rows: rows.windows("aa", 5),
    "expire": lambda rows: rows.expire("aa", after=5),
    "group_by": lambda rows: rows.group_by("aa").count(),
    "sum": lambda rows: rows.group_by("b").agg(s=rr.sum("aa")),
    "min": lambda rows: rows.group_by("b").agg(s=rr.min("aa")),
    "first": lambda rows: rows.group_by("b").agg(s=rr.first("a", by="aa")),
    "count_distinct": lambda rows: rows.group_by("b").agg(s=rr.count_distinct("aa")),
    "polars": lambda rows: rows.group_by("b").agg(s=pl.col("aa").median()),
    "top": lambda rows: rows.group_by("b").top(1, by="aa"),
    "join": lambda rows: rows.join(rows, on="aa"),
    "join_right": lambda rows: rows.join(rows, left_on="a", right_on="aa"),
    "co_group": lambda rows: rows.co_group(rows, "aa", len, {"n": pl.Int64}),
    "co_group_keeps": lambda rows: rows.co_group(rows, "a", len, {"b": pl.String}, keeps="aa"),
    "flat_map_keeps": lambda rows: rows.flat_map(list, {"a": pl.Int64}, keeps="aa"),
    "map_batches_keeps": lambda rows: rows.map_batches(len, {"a": pl.Int64}, keeps=["a", "aa"]),
    "apply_keeps": lambda rows: rows.group_by("a").apply(len, {"n": pl.Int64}, keeps="aa"),
    "at": lambda rows: rows.iterate(lambda r, s: s, at="aa"),
    "count_distinct_of_all": lambda rows: rows.count_distinct("aa"),
}


@pytest.mark.parametrize("name", UNKNOWN_COLUMN)
def test_a_wrong_column(name):
    with pytest.raises(rr.PlanError) as raised:
        UNKNOWN_COLUMN[name](rows())
    message = str(raised.value)
    assert "'aa'" in message
    assert "a, b" in message or "a: " in message or "'a'" in message, "it says what there is"
    assert raised.value.hint
    assert "test_bad_input.py" in message, "it names the user's line"


ACROSS_ROWS = {
    "cum_sum": lambda rows: rows.select(c=a.cum_sum()),
    "mean": lambda rows: rows.with_columns(c=a - a.mean()),
    "shift": lambda rows: rows.filter(a > a.shift(1)),
    "over": lambda rows: rows.select(c=a.sum().over("b")),
    "rank": lambda rows: rows.group_by(k=a.rank()).count(),
    "sort": lambda rows: rows.group_by("b").agg(s=rr.sum(a.sort())),
    "unique": lambda rows: rows.select(c=a.unique()),
}


@pytest.mark.parametrize("name", ACROSS_ROWS)
def test_an_expression_that_looks_across_rows(name):
    with pytest.raises(rr.PlanError) as raised:
        ACROSS_ROWS[name](rows())
    assert "'rows'" in str(raised.value)
    assert "test_bad_input.py" in str(raised.value)
    assert raised.value.hint


UNFIT = {
    "types_of_concat": lambda rows: rows.concat(rows.with_columns(a=a.cast(pl.Float64))),
    "columns_of_concat": lambda rows: rows.concat(rows.select("a")),
    "types_of_join": lambda rows: rows.join(rows, left_on="a", right_on="b"),
    "number_of_keys": lambda rows: rows.join(rows, left_on=["a", "b"], right_on=["a"]),
    "no_key": lambda rows: rows.join(rows),
    "cross_with_key": lambda rows: rows.join(rows, on="a", how="cross"),
    "no_such_join": lambda rows: rows.join(rows, on="a", how="outer"),
    "no_collection": lambda rows: rows.join([(1, 2)], on="a"),
    "same_name_twice": lambda rows: rows.with_columns(b_right=a).join(rows, on="a"),
    "explode_no_list": lambda rows: rows.explode("a"),
    "windows_over_strings": lambda rows: rows.windows("b", 5),
    "windows_of_nothing": lambda rows: rows.windows("a", 0),
    "windows_into_a_column": lambda rows: rows.windows("a", 5, into="b"),
    "expire_never": lambda rows: rows.expire("a"),
    "expire_both": lambda rows: rows.expire("a", after=1, epochs=2),
    "expire_no_epochs": lambda rows: rows.expire(epochs=0),
    "top_none": lambda rows: rows.group_by("a").top(0, by="b"),
    "no_aggregate": lambda rows: rows.group_by("a").agg(s="b"),
    "aggregate_into_key": lambda rows: rows.group_by("a").agg(a=rr.count()),
    "two_of_a_name": lambda rows: rows.group_by("b").agg(rr.sum("a"), rr.max("a")),
    "sum_of_strings": lambda rows: rows.group_by("a").agg(s=rr.sum("b")),
    "no_function": lambda rows: rows.flat_map("split", {"w": pl.String}),
    "arithmetic_of_strings": lambda rows: rows.select(c=b / 2),
    "filter_of_a_number": lambda rows: rows.filter(a + 1),
    "round_of_strings": lambda rows: rows.iterate(lambda r, s: s, at="b"),
    "negative_rounds": lambda rows: rows.iterate(lambda r: r, rounds=-1),
    "no_patience": lambda rows: rows.iterate(lambda r: r, patience=0),
    "body_with_other_columns": lambda rows: rows.iterate(lambda r: r.select("a")),
    "body_with_other_types": lambda rows: rows.iterate(lambda r: r.select(a="b", b="a")),
    "loop_without_feedback": lambda rows: rows.iterate(lambda r: None),
    "expire_in_a_loop": lambda rows: rows.iterate(lambda r: r.expire(epochs=2)),
    "co_group_of_two_types": lambda rows: rows.co_group(
        rows, None, len, {"n": pl.Int64}, left_on="a", right_on="b"
    ),
    "co_group_no_key": lambda rows: rows.co_group(rows, function=len, schema={"n": pl.Int64}),
    "co_group_no_function": lambda rows: rows.co_group(rows, "a", schema={"n": pl.Int64}),
    "co_group_into_key": lambda rows: rows.co_group(rows, "a", len, {"a": pl.Int64}),
    "co_group_two_flows": lambda rows: rows.co_group(
        rr.Dataflow("other").input("rows", ROWS["rows"]), "a", len, {"n": pl.Int64}
    ),
    "co_group_keeps_another_type": lambda rows: rows.co_group(
        rows, "b", len, {"a": pl.Int32}, keeps="a"
    ),
    "co_group_keeps_of_both": lambda rows: rows.with_columns(c=a).co_group(
        rows.with_columns(d=a), "a", len, {"c": pl.Int64, "d": pl.Int64}, keeps=["c", "d"]
    ),
    "keeps_another_type": lambda rows: rows.flat_map(list, {"a": pl.Int32}, keeps="a"),
    "keeps_what_is_not_given": lambda rows: rows.flat_map(list, {"a": pl.Int64}, keeps="b"),
    "keeps_what_was_not_there": lambda rows: rows.flat_map(list, {"c": pl.Int64}, keeps="c"),
    "keeps_an_expression": lambda rows: rows.map_batches(list, ROWS["rows"], keeps=a + 1),
    "two_flows": lambda rows: rows.concat(rr.Dataflow("other").input("rows", ROWS["rows"])),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit(name):
    with pytest.raises(rr.PlanError) as raised:
        UNFIT[name](rows())
    assert raised.value.hint
    assert "test_bad_input.py" in str(raised.value), "it names the user's line"


def test_what_belongs_to_a_loop_stays_in_it():
    flow = rr.Dataflow("scopes")
    start = flow.input("rows", ROWS["rows"])
    leaked = []

    def body(inner):
        leaked.append(inner.distinct())
        return leaked[0]

    start.iterate(body, name="inside")
    for use in (
        lambda: flow.output("leaked", leaked[0]),
        lambda: flow.output("joined", leaked[0].join(start, on="a")),
        lambda: start.iterate(lambda other: other.concat(leaked[0])),
        lambda: start.iterate(lambda other: leaked[0]),
    ):
        with pytest.raises(rr.PlanError) as raised:
            use()
        assert raised.value.code == "plan.scope"
        assert "inside" in str(raised.value)
    flow.output("fine", start)


def test_a_dataflow_without_outputs_does_not_run():
    with pytest.raises(rr.PlanError, match="no output"):
        rr.Dataflow("none").run()


# -- found while it runs


def fails_at(number):
    def function(row):
        if row["a"] == number:
            raise ValueError("not this one")
        return [row]

    return function


def group_fails_at(number):
    def function(group):
        if number in group["a"].to_list():
            raise ZeroDivisionError("not this group")
        return group.height

    return function


def two_fail_at(number):
    def function(key, left, right):
        if number in left["a"].to_list():
            raise ZeroDivisionError("not these two")
        return [(left.height,)]

    return function


_round = pl.when(a == 100).then(-1).otherwise(a)


def diverges(rows):
    return rows.select("a").iterate(
        lambda r: r.concat(r.filter(a >= 100).select(a=a + 1)).distinct(), patience=50
    )


def diverges_without_state(rows):
    return rows.select("a").iterate(
        lambda r: r.select(a=pl.when(a >= 100).then(a + 1).otherwise(a)), patience=50
    )


def diverges_inside(rows):
    return rows.select("a").iterate(diverges, rounds=2)


WHILE_RUNNING = {
    "flat_map": (lambda rows: rows.flat_map(fails_at(100), ROWS["rows"]), "not this one"),
    "map_batches": (
        lambda rows: rows.map_batches(
            lambda frame: frame.with_columns(a=pl.Series([1 // (v - 100) * 0 + v for v in frame["a"]])),
            ROWS["rows"],
        ),
        "ZeroDivisionError",
    ),
    "map_batches_length": (
        lambda rows: rows.map_batches(lambda frame: frame.filter(a != 100), ROWS["rows"]),
        "gave",
    ),
    "map_batches_type": (
        lambda rows: rows.map_batches(
            lambda frame: frame if 100 not in frame["a"] else frame.with_columns(a=b), ROWS["rows"]
        ),
        "'a'",
    ),
    "apply": (
        lambda rows: rows.group_by("b").apply(group_fails_at(100), {"n": pl.Int64}),
        "not this group",
    ),
    "apply_type": (
        lambda rows: rows.group_by("b").apply(
            lambda g: "many" if 100 in g["a"] else g.height, {"n": pl.Int64}
        ),
        "'many'",
    ),
    "co_group": (
        lambda rows: rows.co_group(rows, "b", two_fail_at(100), {"n": pl.Int64}),
        "the function two_fail_at.<locals>.function of the group ('x',) failed: ZeroDivisionError",
    ),
    "co_group_in_a_loop": (
        lambda rows: rows.iterate(
            lambda r: r.co_group(rows, "b", two_fail_at(100), {"a": pl.Int64})
            .select("a", "b").concat(rows).distinct(), rounds=2
        ),
        "not these two",
    ),
    "co_group_gives_a_dict": (
        lambda rows: rows.co_group(
            rows, "b", lambda k, x, y: {"n": 1} if 100 in x["a"] else [{"n": 1}], {"n": pl.Int64}
        ),
        "gave a dict for the group ('x',), not a list of rows",
    ),
    "co_group_gives_nothing": (
        lambda rows: rows.co_group(
            rows, "b", lambda k, x, y: None if 100 in x["a"] else [], {"n": pl.Int64}
        ),
        "not a list of rows",
    ),
    "co_group_type": (
        lambda rows: rows.co_group(
            rows, "b", lambda k, x, y: [("many" if 100 in x["a"] else 1,)], {"n": pl.Int64}
        ),
        "'many'",
    ),
    "co_group_keeps": (
        lambda rows: rows.co_group(
            rows, "b", lambda k, x, y: [(101 if 100 in x["a"] else x["a"][0],)], {"a": pl.Int64}, keeps="a"
        ),
        "promises to keep 'a', and made a row with a = 101 for the group ('x',), where no row has that",
    ),
    "apply_keeps": (
        lambda rows: rows.group_by("b").apply(
            lambda g: 101 if 100 in g["a"] else g["a"][0], {"a": pl.Int64}, keeps="a"
        ),
        "promises to keep 'a', and made a row with a = 101 for the group ('x',), where no row has that",
    ),
    "flat_map_keeps": (
        lambda rows: rows.flat_map(
            lambda row: [row, {**row, "a": row["a"] // 100 + row["a"]}], ROWS["rows"], keeps=["b", "a"]
        ),
        "promises to keep 'a', and made a row where it is 101 of a row where it is 100",
    ),
    "map_batches_keeps": (
        lambda rows: rows.map_batches(
            lambda frame: frame.with_columns(b=pl.when(a == 100).then(pl.lit("w")).otherwise(b)), ROWS["rows"],
            keeps="b",
        ),
        "promises to keep 'b', and made a row where it is 'w' of a row where it is 'x'",
    ),
    "flat_map_type": (
        lambda rows: rows.flat_map(
            lambda row: [("x" if row["a"] == 100 else 1, "y")], ROWS["rows"]
        ),
        "'x'",
    ),
    "inspect": (
        lambda rows: rows.inspect(
            lambda batch: [1 // (v - 100) for v in batch["a"].to_pylist()]
        ).distinct(),
        "ZeroDivisionError",
    ),
    "in_a_loop": (
        lambda rows: rows.iterate(
            lambda r: r.flat_map(fails_at(100), ROWS["rows"]).concat(rows).distinct()
        ),
        "not this one",
    ),
    "round": (
        lambda rows: rows.iterate(lambda r, seeds: r.concat(seeds).distinct(), at=_round),
        "round",
    ),
    "diverges": (diverges, "50 rounds"),
    "diverges_without_state": (diverges_without_state, "50 rounds"),
    "diverges_inside": (diverges_inside, "50 rounds"),
    "overflow": (
        lambda rows: rows.group_by("b").agg(s=rr.sum(a * 2**56), n=rr.count()),
        "64 bits",
    ),
}  # fmt: skip


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", WHILE_RUNNING)
def test_an_epoch_that_fails_is_refused_whole(name, workers):
    """The failing epoch leaves nothing behind: what comes after is as if it had not been committed."""
    program, text = WHILE_RUNNING[name]

    def both(rows):
        return {"result": program(rows), "all": rows, "counts": rows.group_by("b").count()}

    good = [[(n, "xyz"[n % 3]) for n in range(6)], [(2, "z"), (3, "w")], [(1, "x")]]
    flow = build(both, ROWS)
    with flow.run(workers=workers) as run, flow.run() as untouched:
        for epoch, fresh in enumerate(good):
            run.insert("rows", fresh)
            untouched.insert("rows", fresh)
            if epoch == 2:
                run.delete("rows", good[1])
                untouched.delete("rows", good[1])
            run.commit()
            untouched.commit()
            before = {each: run.read(each).rows() for each in flow.outputs}
            assert before == {each: untouched.read(each).rows() for each in flow.outputs}
            run.insert("rows", [(100, "x"), (100, "x"), (7, "q")])
            run.delete("rows", good[0][:2])
            with pytest.raises(rr.OperatorFailed) as raised:
                run.commit()
            message = str(raised.value)
            assert text in message
            assert "test_bad_input.py" in message, "it names the user's line"
            assert raised.value.fields["node"] in flow.plan.by_name
            assert pickle.loads(pickle.dumps(raised.value)).message == raised.value.message
            assert {each: run.read(each).rows() for each in flow.outputs} == before
            assert run.epoch == untouched.epoch == epoch
        run.insert("rows", [(7, "q")])
        untouched.insert("rows", [(7, "q")])
        run.commit()
        untouched.commit()
        for each in flow.outputs:
            assert run.read(each).rows() == untouched.read(each).rows()
            assert run.changes(each).rows() == untouched.changes(each).rows()


def test_a_diverging_loop_shows_the_rows_that_still_change():
    flow = build(diverges, ROWS)
    with flow.run() as run:
        run.insert("rows", [(100, "x"), (1, "y")])
        with pytest.raises(rr.OperatorFailed) as raised:
            run.commit()
        assert raised.value.code == "operator.diverges"
        assert {"a": 150, "diff": 1} in [
            {name: row[name] for name in ("a", "diff")} for row in raised.value.fields["rows"]
        ]
        assert "150" in raised.value.message
        assert "loop-1" in raised.value.message
        assert "patience" in raised.value.hint


def test_a_loop_of_many_rounds_does_not_diverge():
    flow = build(
        lambda rows: rows.select("a").iterate(
            lambda r: r.concat(r.filter(a < 300).select(a=a + 1)).distinct(), patience=301
        ),
        ROWS,
    )
    with flow.run() as run:
        run.insert("rows", [(0, "x")])
        run.commit()
        assert len(run.read("result")) == 301


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_that_do_not_fit_are_not_taken(workers):
    flow = build(lambda rows: rows, ROWS)
    with flow.run(workers=workers) as run:
        run.insert("rows", [(1, "x")])
        for misfits, named in (
            ([("1", "x")], "'a'"),
            ([(1.5, "x")], "'a'"),
            ([(1, 2)], "'b'"),
            ([(2**63, "x")], "'a'"),
            ([(1,)], "columns"),
            ([{"a": 1, "c": "x"}], "'b'"),
            (pl.DataFrame({"a": [1.5], "b": ["x"]}), "'a'"),
            (pl.DataFrame({"a": [1]}), "'b'"),
            (7, "rows"),
        ):
            for verb in (run.insert, run.delete):
                with pytest.raises(rr.SchemaError) as raised:
                    verb("rows", misfits)
                assert named in str(raised.value)
                assert "'rows'" in str(raised.value), "it names the input"
        with pytest.raises(rr.PlanError, match="rows"):
            run.insert("rowz", [(1, "x")])
        with pytest.raises(rr.PlanError, match="result"):
            run.read("rowz")
        run.commit()
        assert run.read("result").rows() == [(1, "x")]
