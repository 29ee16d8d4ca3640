"""Hints for names that people bring along: each is true. A program for each hint does what the hint says."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from itertools import chain
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.frontends.elsewhere import COLLECTION, DATAFLOW, GROUPS, STATE

SCHEMA = {"k": pl.String, "v": pl.Int64, "at": pl.Int64}
LEFT = [("a", 1, 1), ("a", 5, 2), ("b", 2, 1), ("b", 2, 1)]
RIGHT = [("a", 1, 1)]
ALL = ["k", "v", "at"]
v, at = pl.col("v"), pl.col("at")

Program = Callable[[rr.Collection, rr.Collection], rr.Collection]


def result(program: Program, left: Any = LEFT, right: Any = RIGHT) -> list[Any]:
    flow = rr.Dataflow("hints")
    flow.output("o", program(flow.input("left", SCHEMA), flow.input("right", SCHEMA)))
    with flow.run() as run:
        run.insert("left", left)
        run.insert("right", right)
        run.commit()
        return run.read("o").rows()


def asof(left: rr.Collection, right: rr.Collection) -> rr.Collection:
    state = rr.Dataflow.state(  # of the flow that the collections belong to
        flow_of(left), "s", key={"k": pl.String}, value={"v": pl.Int64}
    )
    left.update(state, time="at")
    return right.select("k", "at").fetch(state, at="at", rule=rr.rules.latest)


def flow_of(collection: rr.Collection) -> rr.Dataflow:
    flow = rr.Dataflow("hints")
    flow._builder = collection._builder
    return flow


def numbered(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.sort("at", "v").with_row_index().select("index", "v")


NUMBERED = {"index": pl.UInt32, "v": pl.Int64}
SHIFTED = {"at": pl.Int64, "before": pl.Int64}


def shifted(group: pl.DataFrame) -> pl.DataFrame:
    return group.sort("at").select("at", before=pl.col("v").shift())


def sides(left: rr.Collection, right: rr.Collection) -> rr.Collection:
    return left.co_group(
        right, "k", lambda key, mine, its: [(mine.height + its.height,)], {"n": pl.Int64}
    )


def counted(collection: rr.Collection) -> rr.Collection:
    return collection.count()


DISTINCT = sorted(set(LEFT))

# By a name with the hint: a program that the hint describes, and its rows.
COLLECTIONS: dict[str, tuple[Program, list[Any]]] = {
    "as_state": (lambda x, y: x.lookup(y, on=ALL, how="inner"), RIGHT),
    "sort": (lambda x, _: x.group_by("k").top(1, by="v"), [("a", 5, 2), ("b", 2, 1)]),
    "limit": (lambda x, _: x.group_by().top(1, by="v"), [("a", 5, 2)]),
    "top_k": (lambda x, _: x.group_by().top(2, by="v"), [("a", 5, 2), ("b", 2, 1)]),
    "first": (lambda x, _: x.group_by().agg(rr.first("v", by="at")), [(1,)]),
    "len": (lambda x, _: x.count(), [(4,)]),
    "n_unique": (lambda x, _: x.count_distinct("k"), [(2,)]),
    "value_counts": (lambda x, _: x.group_by("k").count(), [("a", 2), ("b", 2)]),
    "unique": (lambda x, _: x.distinct(), DISTINCT),
    "where": (lambda x, _: x.filter(v > 4), [("a", 5, 2)]),
    "union": (lambda x, y: x.concat(y), sorted(LEFT + RIGHT)),
    "connect": (lambda x, y: x.concat(y).join(y.select("k"), "k").count(), [(3,)]),
    "merge": (lambda x, y: x.join(y.select("k"), "k"), LEFT[:2]),
    "crossJoin": (lambda x, y: x.join(y, how="cross").count(), [(4,)]),
    "join_asof": (asof, [("a", 1, 1)]),
    "intersect": (lambda x, y: x.distinct().semi_join(y, on=ALL), RIGHT),
    "subtract": (lambda x, y: x.distinct().anti_join(y, on=ALL), [("a", 5, 2), ("b", 2, 1)]),
    "exceptAll": (lambda x, y: x.concat(y.negate()), LEFT[1:]),
    "cogroup": (sides, [("a", 3), ("b", 2)]),
    "agg": (lambda x, _: x.group_by().agg(n=rr.count()), [(4,)]),
    "sum": (lambda x, _: x.group_by().agg(rr.sum("v")), [(10,)]),
    "reduceByKey": (lambda x, _: x.group_by("k").agg(total=rr.sum("v")), [("a", 6), ("b", 4)]),
    "groupBy": (lambda x, _: x.group_by("k").count(), [("a", 2), ("b", 2)]),
    "applyInPandas": (
        lambda x, _: x.group_by("k").apply(lambda g: g.select("v"), {"v": pl.Int64}, many=True),
        [("a", 1), ("a", 5), ("b", 2), ("b", 2)],
    ),
    "apply": (
        lambda x, _: x.flat_map(lambda row: [{"w": row["v"] + 1}], {"w": pl.Int64}),
        [(2,), (3,), (3,), (6,)],
    ),
    "fill_null": (lambda x, _: x.with_columns(v=v.fill_null(0)), LEFT),
    "drop_nulls": (lambda x, _: x.filter(v.is_not_null()), LEFT),
    "pivot": (
        lambda x, _: x.group_by("k").agg(one=v.filter(at == 1).sum()),
        [("a", 1), ("b", 4)],
    ),
    "window": (lambda x, _: x.windows("at", 2, 2).group_by("window").count(), [(0, 3), (2, 1)]),
    "session_window": (
        lambda x, _: x.group_by("k").apply(shifted, SHIFTED, many=True),
        [("a", 1, None), ("a", 2, 1), ("b", 1, 2), ("b", 1, None)],
    ),
    "withWatermark": (lambda x, _: x.expire("at", after=1, late=1).count(), [(4,)]),
    "map": (
        lambda x, _: x.map_batches(lambda f: f.select("v"), {"v": pl.Int64}),
        [(1,), (2,), (2,), (5,)],
    ),
    "map_rows": (lambda x, _: x.flat_map(lambda row: [(row["v"],)] * 0, {"v": pl.Int64}), []),
    "mapInPandas": (
        lambda x, _: x.map_batches(lambda f: f.to_pandas()[["v"]], {"v": pl.Int64}),
        [(1,), (2,), (2,), (5,)],
    ),
    "process": (lambda x, _: flow_of(x).vertex(Same, {"rows": x}, {"v": pl.Int64}), [(10,)]),
    "pipe": (lambda x, _: counted(x), [(4,)]),
    "withColumn": (lambda x, _: x.with_columns(v=v + 1).select("v").distinct().count(), [(3,)]),
    "toDF": (lambda x, _: x.select(value="v").group_by().agg(rr.max("value")), [(5,)]),
    "withColumnRenamed": (lambda x, _: x.rename({"v": "w"}).group_by().agg(rr.max("w")), [(5,)]),
    "selectExpr": (lambda x, _: x.select(pl.sql_expr("v + 1 AS w")).distinct(), [(2,), (3,), (6,)]),
    "cast": (lambda x, _: x.select(v=pl.col("v").cast(pl.Int32)).distinct(), [(1,), (2,), (5,)]),
    "explode_outer": (
        lambda x, _: (
            x.select("k", a=pl.when(v > 1).then(pl.concat_list("v", "v")).otherwise(pl.lit([])))
            .with_columns(a=pl.when(v_of("a").list.len() > 0).then("a").otherwise([None]))
            .explode("a")
        ),
        [("a", 5), ("a", 5), ("a", None), ("b", 2), ("b", 2), ("b", 2), ("b", 2)],
    ),
    "shift": (
        lambda x, _: x.group_by("k").apply(shifted, SHIFTED, many=True),
        [("a", 1, None), ("a", 2, 1), ("b", 1, 2), ("b", 1, None)],
    ),
    "over": (
        lambda x, _: x.join(x.group_by("k").agg(total=rr.sum("v")), "k"),
        [("a", 1, 1, 6), ("a", 5, 2, 6), ("b", 2, 1, 4), ("b", 2, 1, 4)],
    ),
    "with_row_index": (
        lambda x, _: x.group_by().apply(numbered, NUMBERED, many=True),
        [(0, 1), (1, 2), (2, 2), (3, 5)],
    ),
    "cache": (lambda x, _: x.distinct().concat(x.distinct()).count(), [(6,)]),
}


def v_of(column: str) -> pl.Expr:
    return pl.col(column)


class Same(rr.Vertex):
    """Sends the sum of `v` of the rows that come."""

    def on_recv(self, port: str, rows: pl.DataFrame, time: Any) -> None:
        self.send([{"v": rows["v"].sum()}])


def with_run(
    say: Callable[[rr.Dataflow, rr.Run, Any], Any], **options: Any
) -> Callable[[Any], Any]:
    """A check of a hint that is about a run; the check gets a folder."""

    def check(folder: Any) -> Any:
        flow = rr.Dataflow("hints")
        rows = flow.input("rows", SCHEMA)
        flow.input("keyed", SCHEMA, key="k")
        flow.output("rows", rows)
        given = {name: str(folder) if each == "path" else each for name, each in options.items()}
        with flow.run(**given) as run:
            run.insert("rows", LEFT)
            run.commit()
            return say(flow, run, folder)

    return check


def written(flow: rr.Dataflow, run: rr.Run, folder: Any) -> Any:
    seen: list[int] = []
    sinks = [
        run.for_each_epoch("rows", lambda changes, epoch: seen.append(epoch)),
        run.write_parquet("rows", folder / "parquet"),
        run.write_delta("rows", folder / "delta"),
    ]
    for sink in sinks:
        sink.close()
    return seen == [0] and (folder / "parquet").exists() and (folder / "delta").exists()


def fed(flow: rr.Dataflow, run: rr.Run, folder: Any) -> Any:
    run.upsert("keyed", [("a", 1, 1)])
    run.delete("rows", LEFT[:1])
    run.commit()
    return run.read("rows").rows() == LEFT[1:]


def is_described(flow: rr.Dataflow, run: rr.Run, folder: Any) -> Any:
    assert list(flow.inputs["rows"].schema.names) == list(flow.inputs["rows"].polars_schema)
    assert flow.schema("rows").names == ALL
    return "input" in flow.explain() and "<svg" in flow.to_svg() and flow.to_dot()


def streams(flow: rr.Dataflow, run: rr.Run, folder: Any) -> Any:
    with pytest.raises(
        rr.PlanError, match=r"Spark|stream"
    ):  # needs a session: tests/spark/test_streams.py
        run.stream("rows", LEFT)
    return True


readable = with_run(lambda flow, run, _: run.read("rows").rows() == LEFT)

RUNS: dict[str, Callable[[Any], Any]] = {
    "repartition": with_run(lambda flow, run, _: run.read("rows").rows() == LEFT, workers=4),
    "checkpoint": with_run(lambda flow, run, _: run.checkpoint() >= 0, checkpoint="path"),
    "dtypes": with_run(is_described),
    "explain": with_run(is_described),
    "write": with_run(written),
    "insert": with_run(fed),
    "collect": readable,
}

GROUPED: dict[str, tuple[Callable[[rr.Grouped], rr.Collection], list[Any]]] = {
    "applyInPandas": (
        lambda g: g.apply(lambda rows: rows.select("v"), {"v": pl.Int64}, many=True),
        [("a", 1), ("a", 5), ("b", 2), ("b", 2)],
    ),
    "top_k": (lambda g: g.top(1, by="v"), [("a", 5, 2), ("b", 2, 1)]),
    "bottom_k": (lambda g: g.top(1, by="v", descending=False), [("a", 1, 1), ("b", 2, 1)]),
    "first": (
        lambda g: g.agg(x=rr.first("v", by="at"), y=rr.last("v", by="at")),
        [("a", 1, 5), ("b", 2, 2)],
    ),
    "len": (lambda g: g.count(), [("a", 2), ("b", 2)]),
    "n_unique": (lambda g: g.agg(n=rr.count_distinct("v")), [("a", 2), ("b", 1)]),
    "sum": (lambda g: g.agg(total=rr.sum("v")), [("a", 6), ("b", 4)]),
    "mean": (lambda g: g.agg(total=rr.mean("v")), [("a", 3.0), ("b", 2.0)]),
    "min": (lambda g: g.agg(total=rr.min("v")), [("a", 1), ("b", 2)]),
    "max": (lambda g: g.agg(total=rr.max("v")), [("a", 5), ("b", 2)]),
    "avg": (lambda g: g.agg(average=rr.mean("v")), [("a", 3.0), ("b", 2.0)]),
    "median": (lambda g: g.agg(x=v.median()), [("a", 3.0), ("b", 2.0)]),
    "std": (lambda g: g.agg(x=v.std().round(1)), [("a", 2.8), ("b", 0.0)]),
    "var": (lambda g: g.agg(x=v.var()), [("a", 8.0), ("b", 0.0)]),
    "product": (lambda g: g.agg(x=v.product()), [("a", 5), ("b", 4)]),
    "quantile": (lambda g: g.agg(x=v.quantile(0.9)), [("a", 5.0), ("b", 2.0)]),
    "collect_list": (lambda g: g.agg(all=v), [("a", [1, 5]), ("b", [2, 2])]),
    "aggregate": (lambda g: g.agg(n=rr.count()), [("a", 2), ("b", 2)]),
    "having": (lambda g: g.agg(n=rr.count()).filter(pl.col("n") > 1), [("a", 2), ("b", 2)]),
    "shift": (
        lambda g: g.apply(shifted, SHIFTED, many=True),
        [("a", 1, None), ("a", 2, 1), ("b", 1, 2), ("b", 1, None)],
    ),
    "pivot": (lambda g: g.agg(a=v.filter(at == 1).sum()), [("a", 1), ("b", 4)]),
    "cogroup": (lambda g: sides(g.collection, g.collection), [("a", 4), ("b", 4)]),
}

FLOWS: dict[str, Callable[[Any], Any]] = {
    "read": readable,
    "start": with_run(fed),
    "source": readable,
    "readStream": with_run(streams),
    "sink": with_run(written),
    "add_output": readable,
    "to_png": with_run(is_described),
    "checkpoint": with_run(lambda flow, run, _: run.checkpoint() >= 0, checkpoint="path"),
    "iterate": with_run(
        lambda flow, run, _: flow.loop() and flow.inputs["rows"].iterate(lambda x: x.distinct())
    ),
    "columns": with_run(is_described),
}


def in_state(_: Any) -> Any:
    flow = rr.Dataflow("hints")
    stream, asked = flow.input("left", SCHEMA), flow.input("right", SCHEMA)
    state = flow.state("s", key={"k": pl.String}, value={"v": pl.Int64})
    stream.update(state, key="k", time="at", value="v")
    asked = asked.select("k", "at").progress(state, "update", at="at")
    flow.output("entries", state.entries())
    flow.output("there", asked.fetch_uncommitted(state, key="k"))
    flow.output("as_of", asked.fetch(state, key="k", at="at"))
    with flow.run() as run:
        run.insert("left", LEFT[:2])
        run.insert("right", [("a", 0, 2)])
        run.commit()
        run.insert("left", [("c", 7, 9)])
        run.insert("right", [("c", 0, 9)])
        run.commit()
        assert state.schema.names == ["k", "time", "v"]
        assert run.read("entries").rows() == [("a", 1, 1), ("a", 2, 5), ("c", 9, 7)]
        assert run.read("as_of").rows() == [("a", 2, 5)]
        assert [row[:2] for row in run.read("there").rows()] == [("a", 2), ("c", 9)]
    return True


STATES = dict.fromkeys(
    ("fetch", "fetch_uncommitted", "update", "read", "progress", "columns"), in_state
)

TABLES: dict[str, tuple[dict[str, str], set[str]]] = {
    "collection": (COLLECTION, {*COLLECTIONS, *RUNS}),
    "groups": (GROUPS, set(GROUPED)),
    "dataflow": (DATAFLOW, set(FLOWS)),
    "state": (STATE, set(STATES)),
}


@pytest.mark.parametrize("table", TABLES)
def test_every_hint_has_a_program(table: str) -> None:
    hints, programs = TABLES[table]
    assert programs <= set(hints)
    tried = {hints[name] for name in programs}
    assert {name: hint for name, hint in hints.items() if hint not in tried} == {}


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_hint_for_a_collection_is_true(name: str) -> None:
    program, rows = COLLECTIONS[name]
    assert result(program) == rows


@pytest.mark.parametrize("name", GROUPED)
def test_a_hint_for_groups_is_true(name: str) -> None:
    program, rows = GROUPED[name]
    assert result(lambda left, _: program(left.group_by("k"))) == rows


@pytest.mark.parametrize(
    "check", dict.fromkeys([*RUNS.values(), *FLOWS.values(), *STATES.values()])
)
def test_a_hint_of_a_flow_is_true(check: Callable[[Any], Any], tmp_path: Any) -> None:
    made = check(tmp_path)
    assert made is not None
    assert made is not False


def things() -> dict[str, Any]:
    flow = rr.Dataflow("hints")
    rows = flow.input("rows", SCHEMA)
    state = flow.state("s", key={"k": pl.String}, value={"v": pl.Int64})
    return {"collection": rows, "groups": rows.group_by("k"), "dataflow": flow, "state": state}


@pytest.mark.parametrize("table", TABLES)
def test_a_name_of_elsewhere_has_its_hint(table: str) -> None:
    thing, (hints, _) = things()[table], TABLES[table]
    for name, hint in hints.items():
        assert not hasattr(thing, name)
        with pytest.raises(AttributeError) as raised:
            getattr(thing, name)
        assert str(raised.value).endswith(f" has no attribute {name!r}\nHint: {hint}")


@pytest.mark.parametrize("table", TABLES)
def test_hints_call_what_exists(table: str) -> None:
    known = set(
        chain(
            *(
                dir(each)
                for each in (
                    rr.Collection,
                    rr.Grouped,
                    rr.Dataflow,
                    rr.Run,
                    rr.State,
                    rr.Result,
                    rr.rules,
                )
            ),
            *(dir(each) for each in (rr, pl, pl.Expr, pl.DataFrame, pl.col("a").list)),
            dir(pl.when(True)),
            dir(pl.when(True).then(1)),
            ["function"],
        )
    )
    for hint in TABLES[table][0].values():
        for word in re.findall(r"(\w+)\(", hint):
            assert word in known, hint


@pytest.mark.parametrize(
    ("table", "name", "words"),
    [
        ("collection", "intersect", "semi_join"),
        ("collection", "insert", "run.insert(name, rows)"),
        ("collection", "filtr", "did you mean 'filter'?"),
        ("collection", "jion", "did you mean 'join'?"),
        ("collection", "groupBy", "Hint: group_by(...)"),
        ("groups", "coutn", "did you mean 'count'?"),
        ("groups", "join", "agg(...).join(...)"),
        ("groups", "v", "agg(n=rr.count()"),
        ("dataflow", "commit", "that is of a run: run = flow.run(), and run.commit"),
        ("dataflow", "filter", "that is of a collection: flow.input(name, schema).filter"),
        ("dataflow", "inptu", "did you mean 'input'?"),
        ("state", "entires", "did you mean 'entries'?"),
    ],
)
def test_slips_and_names_of_neighbours(table: str, name: str, words: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(words)):
        getattr(things()[table], name)


@pytest.mark.parametrize("name", ["zzz", "process_all", "inspector_general", "connected"])
def test_a_name_that_is_far_from_all_others_has_no_guess(name: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(things()["collection"], name)
    assert "did you mean" not in str(raised.value)


@pytest.mark.parametrize("table", TABLES)
def test_a_thing_with_hints_is_an_object_as_others_are(table: str) -> None:
    thing = things()[table]
    assert not hasattr(thing, "nothing_of_the_kind")
    assert not hasattr(thing, "__arrow_c_stream__")
    assert repr(copy.copy(thing)) == repr(thing)
