"""What is refused, and in which words: arguments that cannot be meant, values that Python cannot hold, null nodes."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr
from riverrun.graphs import (
    bfs,
    clustering_coefficient,
    components,
    cycles,
    k_core,
    label_propagation,
    nodes_of,
    pagerank,
    shortest_paths,
    strongly_connected_components,
    triangle_counts,
    triangles,
    undirected,
)
from riverrun.run.options import RunOptions, as_bytes, check_on, run_options
from riverrun.runtime.carriers import carrier_of

HOUR = 3_600_000_000
YEAR_10000 = 253_402_300_800_000_000
"""The start of the year 10000 in UTC, in microseconds."""


def started(flow: rr.Dataflow | None = None) -> Any:
    if flow is None:
        flow = rr.Dataflow("refusals")
        flow.output("a", flow.input("a", {"k": pl.Int64}))
    return flow.run()


# ---- timeouts

TIMEOUTS = ["x", "5", True, -1, -0.5, math.nan, [1], dt.timedelta(seconds=1)]


@pytest.mark.parametrize("timeout", TIMEOUTS, ids=repr)
def test_a_timeout_is_a_number_of_seconds(timeout: Any) -> None:
    with started() as run:
        sink = run.for_each_epoch("a", lambda changes, epoch: None)
        for call in (
            lambda: run.await_termination(timeout),
            lambda: sink.wait(timeout=timeout),
            lambda: sink.close(timeout=timeout),
        ):
            with pytest.raises(
                rr.PlanError, match="that is a number of seconds from 0 on"
            ) as caught:
                call()
            assert caught.value.code == "plan.run"
            assert "timeout=" in caught.value.message
        assert run.await_termination(0) is False
        assert run.await_termination(0.01) is False
        sink.close(timeout=0)


@pytest.mark.parametrize("given", [*TIMEOUTS, 0, None], ids=repr)
def test_a_run_has_a_timeout_above_0(given: Any) -> None:
    flow = rr.Dataflow("refusals")
    flow.output("a", flow.input("a", {"k": pl.Int64}))
    with pytest.raises(rr.PlanError, match=r"timeout=.*: that is a number of seconds above 0"):
        flow.run(timeout=given)
    with pytest.raises(rr.PlanError, match="silence=nan: that is a number of seconds from 2 on"):
        flow.run(silence=math.nan)


@pytest.mark.parametrize(
    ("given", "said", "hint"),
    [
        (
            {"max_workers": 2},
            'max_workers= is how far balance="grow" may grow',
            "leave max_workers= out",
        ),
        ({"balance": "grow"}, "said up to how many", "give max_workers="),
        (
            {"balance": "grow", "max_workers": 2},
            "there are 3 workers from the start",
            "max_workers=3",
        ),
    ],
)
def test_growing_says_up_to_how_many(given: dict[str, Any], said: str, hint: str) -> None:
    flow = rr.Dataflow("refusals")
    flow.output("a", flow.input("a", {"k": pl.Int64}))
    spark = {"on": "spark", "checkpoint": "/nowhere/at/all"} if "balance" in given else {}
    with pytest.raises(rr.PlanError, match=re.escape(said)) as caught:
        flow.run(workers=3, **spark, **given)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("workers", [257, 5000, 10**9])
def test_workers_in_one_process_are_bounded(workers: int) -> None:
    with pytest.raises(
        rr.PlanError, match=f"workers={workers} in this process: 256 is the most"
    ) as caught:
        a_flow("refusals").run(workers=workers)
    assert 'on="processes"' in (caught.value.hint or "")
    check_on(RunOptions(workers=256), carrier_of(None), 256)
    check_on(
        RunOptions(workers=workers), carrier_of("spark"), workers
    )  # the session's slots bound it
    with (
        a_flow("refusals").run() as run,
        pytest.raises(rr.PlanError, match=r"scale to workers=.* 256 is the most"),
    ):
        run.scale(workers)


@pytest.mark.parametrize("given", [1, 10, 512, 16384, (64 << 10) - 1, "10", "63k"])
def test_a_budget_of_memory_without_its_unit_is_refused(given: Any) -> None:
    with pytest.raises(rr.PlanError, match=r"bytes, and a worker needs at least 65536") as caught:
        a_flow("refusals").run(memory=given)
    assert "memory='512m'" in (caught.value.hint or "")
    assert as_bytes("64k") == as_bytes(64 << 10) == 64 << 10


@pytest.mark.parametrize(
    "given", [{"silence": 5}, {"recovery": rr.options.Recovery(silence=5)}], ids=str
)
def test_workers_in_one_process_cannot_be_silent(given: dict[str, Any]) -> None:
    with pytest.raises(
        rr.PlanError, match="silence=5 in this process: a worker that is no"
    ) as caught:
        a_flow("refusals").run(workers=2, **given)
    assert 'on="processes"' in (caught.value.hint or "")
    for on in ("processes", "spark"):
        options = run_options({"silence": 5}, workers=2, on=on)
        check_on(options, carrier_of(on), 2)


MISPLACED: list[tuple[dict[str, Any], str]] = [
    ({"path": "kept"}, "checkpoint='kept'"),
    ({"path": "kept", "checkpoint": "kept"}, "checkpoint='kept'"),
    ({"path": "kept", "every": 10}, "checkpoint='kept'"),
    ({"policy": "spread"}, "recovery='spread'"),
    ({"policy": "replace", "recovery": "spread"}, "recovery='replace'"),
    ({"policy": 3, "recovery": rr.options.Recovery("spread")}, "recovery=3"),
]


@pytest.mark.parametrize(("given", "hint"), MISPLACED, ids=str)
def test_first_fields_have_no_short_form(given: dict[str, Any], hint: str) -> None:
    """An option is said in one way: `path` and `policy` are what checkpoint= and recovery= take."""
    with pytest.raises(rr.PlanError, match="there is no such option") as caught:
        a_flow("refusals").run(**given)
    assert hint in (caught.value.hint or "")


WRONG_OPTIONS: dict[str, Any] = {
    "checkpoint": lambda: rr.options.Checkpoint("kept", retain=0),
    "flag": lambda: rr.options.Checkpoint("kept", rebuild="x"),  # type: ignore[arg-type]
    "recovery": lambda: rr.options.Recovery("other"),  # type: ignore[arg-type]
    "silence": lambda: rr.options.Recovery(silence=1),
    "replaced": lambda: dataclasses.replace(rr.options.Recovery(), silence=1),
    "by a run": lambda: a_flow("refusals").run(silence=1),
}


def a_flow(name: str) -> rr.Dataflow:
    flow = rr.Dataflow(name)
    flow.output("b", flow.input("a", {"k": pl.Int64}))
    return flow


@pytest.mark.parametrize("wrong", WRONG_OPTIONS)
def test_a_refused_option_names_the_line_of_the_user(wrong: str) -> None:
    """The `__init__` of a dataclass is generated: its code is in a file called <string>, and is no line of the user."""
    with pytest.raises(rr.PlanError) as caught:
        WRONG_OPTIONS[wrong]()
    line = caught.value.fields["line"]
    assert line.startswith("test_refusals.py:")
    assert ": lambda: " in line


# ---- programs


def test_concat_of_a_list_in_a_list() -> None:
    rows = rr.Dataflow("refusals").input("a", {"k": pl.Int64})
    for nested in ([rows, [rows]], ([[rows]],), [[rows], rows]):
        with pytest.raises(rr.PlanError, match="a list is not a collection") as caught:
            rows.concat(nested)
        assert caught.value.code == "plan.concat"
        assert "one list is enough" in (caught.value.hint or "")
    with pytest.raises(rr.PlanError, match="None is not a collection"):
        rows.concat([None])
    assert rows.concat([rows, rows], rows).columns == ["k"]


@pytest.mark.parametrize("name", [None, 3, ["a"]])
def test_a_name_of_a_state_is_text(name: Any) -> None:
    rows = rr.Dataflow("refusals").input("a", {"k": pl.Int64})
    with pytest.raises(rr.PlanError, match="is not a name"):
        rows.group_by("k").named(name)


@pytest.mark.parametrize(
    "kind", [pl.Unknown, pl.Unknown(), pl.List(pl.Unknown), pl.Struct({"a": pl.Unknown})]
)
def test_unknown_is_no_type(kind: Any) -> None:
    with pytest.raises(rr.SchemaError, match="'k' is declared as Unknown") as caught:
        rr.Dataflow("refusals").input("a", {"k": kind})
    assert caught.value.code == "schema.type_unsupported"


# ---- values that Python cannot hold

BEYOND = {
    "zone": pl.Series([YEAR_10000 - HOUR], dtype=pl.Int64).cast(pl.Datetime("us", "Asia/Tokyo")),
    "plain": pl.Series([YEAR_10000], dtype=pl.Int64).cast(pl.Datetime("us")),
    "millis": pl.Series([YEAR_10000 // 1000], dtype=pl.Int64).cast(pl.Datetime("ms")),
    "date": pl.Series([3_000_000], dtype=pl.Int32).cast(pl.Date),
    "list": pl.Series([[YEAR_10000]], dtype=pl.List(pl.Int64)).cast(pl.List(pl.Datetime("us"))),
}


@pytest.mark.parametrize("kind", BEYOND)
def test_values_beyond_pythons_are_read_as_arrow(kind: str) -> None:
    values = BEYOND[kind]
    flow = rr.Dataflow("refusals")
    flow.output("out", flow.input("in", {"n": pl.Int64, "t": values.dtype}))
    with started(flow) as run:
        run.insert("in", pl.DataFrame({"n": [1], "t": values}))
        run.commit()
        result = run.read("out")
        assert result.to_polars()["t"].equals(values)
        assert result.to_arrow().num_rows == 1
        assert result["n"] == [1]
        for read in (result.rows, result.to_dicts, lambda: result["t"], lambda: list(result)):
            with pytest.raises(
                rr.SchemaError, match=r"column 't'.*beyond what Python's type holds"
            ) as caught:
                read()
            assert caught.value.code == "schema.not_python"
            assert "to_arrow() and to_polars()" in (caught.value.hint or "")
        run.delete("in", result.to_arrow())
        run.delete("in", result.to_arrow())
        run.commit()
        with pytest.raises(rr.OperatorFailed, match="is there -1 times"):
            run.read("out").rows()


def test_an_insert_of_the_last_hour_of_9999() -> None:
    flow = rr.Dataflow("refusals")
    flow.output("out", flow.input("in", {"t": pl.Datetime("us", "Asia/Tokyo")}))
    last = dt.datetime(9999, 12, 31, 23, tzinfo=dt.UTC)
    with started(flow) as run:
        run.insert("in", [(last,)])
        run.commit()
        assert run.read("out").to_arrow()["t"].cast(pa.int64()).to_pylist() == [YEAR_10000 - HOUR]
        with pytest.raises(rr.SchemaError, match="beyond what Python's type holds"):
            run.read("out").rows()
        run.insert("in", [(last - dt.timedelta(hours=9),)])
        run.delete("in", [(last,)])
        run.commit()
        assert [row[0].astimezone(dt.UTC) for row in run.read("out").rows()] == [
            last - dt.timedelta(hours=9)
        ]


# ---- Delta tables


def test_delta_options_are_text(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    with started() as run:
        for given in ("x", ["a"], 3, {"a": 1}, {1: "a"}):
            with pytest.raises(rr.PlanError, match=r"storage_options=.*a dict from text to text"):
                run.write_delta("a", tmp_path / "table", storage_options=given)
        assert not (tmp_path / "table").exists()
        run.write_delta("a", tmp_path / "table", storage_options={}).close()


def test_delta_names_differ_in_more_than_case(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    flow = rr.Dataflow("refusals")
    rows = flow.input("a", {"k": pl.Int64})
    flow.output("two", rows.select(A="k", a="k"))
    flow.output("diff", rows.select(Diff="k"))
    flow.output("fields", rows.select(s=pl.struct(pl.col("k").alias("X"), pl.col("k").alias("x"))))
    with started(flow) as run:
        for output, said in (
            ("two", "'A' and 'a'"),
            ("fields", "'X' and 'x'"),
        ):
            with pytest.raises(rr.SchemaError, match=said) as caught:
                run.write_delta(output, tmp_path / output)
            assert caught.value.code == "sink.schema"
            assert "differ in case only" in caught.value.message
            assert not (tmp_path / output).exists()
        run.write_delta(
            "diff", tmp_path / "changes"
        ).close()  # its columns are Diff, diff_ and epoch


# ---- cycles

EDGES = {"src": pl.String, "dst": pl.String, "time": pl.Int64}


def test_cycles_take_spans_or_lengths() -> None:
    flow = rr.Dataflow("refusals")
    edges = flow.input("edges", EDGES)
    with pytest.raises(rr.PlanError, match="spans says the lengths too"):
        cycles(flow, edges, spans={3: 10}, lengths=(4,))
    with pytest.raises(rr.PlanError, match="lengths 4: that is not a list") as caught:
        cycles(flow, edges, span=10, lengths=4)  # type: ignore[arg-type]
    assert "lengths=(4,)" in (caught.value.hint or "")
    with pytest.raises(rr.PlanError, match="lengths is empty"):
        cycles(flow, edges, span=10, lengths=())
    for given in ((2,), (3, "4"), (True, 3), (3.0,)):
        with pytest.raises(rr.PlanError, match="3 nodes at least"):
            cycles(flow, edges, span=10, lengths=given)
    with pytest.raises(rr.PlanError, match=r"within .*column 'time' is Int64") as caught:
        cycles(flow, edges, span=dt.timedelta(days=1))
    assert "whole number" in (caught.value.hint or "")
    times = flow.input("times", {**EDGES, "time": pl.Datetime("us")})
    with pytest.raises(rr.PlanError, match="within 5: column 'time' is Datetime"):
        cycles(flow, times, spans={3: 5})


# ---- null nodes

GRAPHS: dict[str, Any] = {
    "bfs": bfs,
    "shortest_paths": shortest_paths,
    "components": components,
    "strongly_connected_components": strongly_connected_components,
    "triangles": lambda edges, nodes: triangles(edges),
    "triangle_counts": triangle_counts,
    "clustering_coefficient": clustering_coefficient,
    "k_core": lambda edges, nodes: k_core(edges, 1),
    "pagerank": pagerank,
    "label_propagation": label_propagation,
    "nodes_of": nodes_of,
    "undirected": lambda edges, nodes: undirected(edges),
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", [pl.Int64, pl.String], ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_a_node_is_never_null(name: str, kind: Any, workers: int) -> None:
    a, b = ("a", "b") if kind == pl.String else (1, 2)
    flow = rr.Dataflow("refusals")
    edges = flow.input("edges", {"src": kind, "dst": kind, "weight": pl.Int64})
    nodes = flow.input("nodes", {"node": kind})
    flow.output("out", GRAPHS[name](edges, nodes))
    takes_nodes = name not in ("triangles", "k_core", "undirected")
    with flow.run(workers=workers) as run:
        run.insert("edges", [(a, b, 1)])
        run.insert("nodes", [(a,)])
        run.commit()
        before = run.read("out").rows()
        for row, column in (((a, None, 1), "dst"), ((None, b, 1), "src")):
            run.insert("edges", [row])
            with pytest.raises(rr.OperatorFailed, match=f"have null in '{column}'") as caught:
                run.commit()
            assert caught.value.code == "schema.null_node"
            assert f"of {name}:" in caught.value.message
            assert f"pl.col('{column}').is_not_null()" in (caught.value.hint or "")
        if takes_nodes:
            run.insert("nodes", [(None,)])
            with pytest.raises(rr.OperatorFailed, match="have null in 'node'"):
                run.commit()
        run.insert("edges", [(a, None, 1)])
        run.delete("edges", [(a, None, 1)])
        run.commit()  # it was never there
        assert run.read("out").rows() == before


def test_a_node_of_a_cycle_is_never_null() -> None:
    flow = rr.Dataflow("refusals")
    flow.output("out", cycles(flow, flow.input("edges", EDGES), span=10))
    with started(flow) as run:
        for row, column in ((("a", None, 1), "dst"), ((None, "a", 1), "src")):
            run.insert("edges", [row])
            with pytest.raises(rr.OperatorFailed, match=f"have null in '{column}'"):
                run.commit()
        run.insert("edges", [("a", "b", 1), ("b", "c", 2), ("c", "a", 3)])
        run.commit()
        assert run.read("out").rows() == [(3, "c", "a", 3, ["a", "b", "c"])]


# ---- words


def test_a_rule_is_a_function() -> None:
    for make, said, hint in (
        (rr.rules.compact, "cannot make a rule of compaction with None", "lambda entries, horizon"),
        (rr.rules.update, "cannot make a rule of updates with None", "lambda entries, updates"),
        (lambda given: rr.rules.fetch(given, {"v": int}), "a rule of fetches", "lambda values"),
    ):
        with pytest.raises(rr.PlanError, match=said) as caught:
            make(None)  # type: ignore[no-untyped-call]
        assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("bound", ["at", "since"])
def test_a_fetch_names_the_column_that_does_not_fit(bound: str) -> None:
    flow = rr.Dataflow("refusals")
    state = flow.state("s", key={"k": pl.Int64}, value={"v": pl.Int64}, time={"t": pl.Int64})
    asked = flow.input("asked", {"k": pl.Int64, "when": pl.Int64, "text": pl.String})
    with pytest.raises(
        rr.PlanError, match=rf"{bound}='text' is large_string, and the times"
    ) as caught:
        asked.fetch(state, key="k", rule=rr.rules.within, **{"at": "when", bound: "text"})
    assert "__" not in caught.value.message.partition(": ")[2]


@pytest.mark.parametrize("kind", [pl.String, pl.Enum(["a"]), pl.List(pl.Int64)], ids=str)
@pytest.mark.parametrize("aggregate", ["sum", "mean"])
def test_text_is_not_added_up(kind: Any, aggregate: str) -> None:
    rows = rr.Dataflow("refusals").input("a", {"k": pl.Int64, "price": kind})
    with pytest.raises(
        rr.PlanError, match=rf"into 'total': {aggregate}\(price\) adds up"
    ) as caught:
        rows.group_by("k").agg(total=getattr(rr, aggregate)("price"))
    assert caught.value.code == "plan.type"
    assert "cast(pl.Float64)" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("kind", "said", "hint"),
    [
        (pl.Decimal(39, 2), "a decimal has 1 to 38 digits", "pl.Decimal(38, 2)"),
        (pl.List(pl.Decimal(39, 2)), "a decimal has 1 to 38 digits", "pl.Decimal(38, 2)"),
        (pl.Datetime("us", "Mars/Olympus"), "no time zone is called 'Mars/Olympus'", "UTC"),
        (pl.Datetime("us", "Europe/Berln"), "no time zone", "did you mean 'Europe/Berlin'?"),
    ],
    ids=str,
)
def test_a_type_says_which_rule_it_breaks(kind: Any, said: str, hint: str) -> None:
    with pytest.raises(rr.SchemaError, match=said) as caught:
        rr.Dataflow("refusals").input("a", {"k": kind})
    assert hint in (caught.value.hint or "")


def inserted(kind: Any, value: Any) -> list[Any]:
    flow = rr.Dataflow("refusals")
    flow.output("out", flow.input("in", {"v": kind}))
    with started(flow) as run:
        run.insert("in", [(value,)])
        run.commit()
        return [row[0] for row in run.read("out").rows()]


@pytest.mark.parametrize(
    "kind",
    [pl.Datetime("us"), pl.Datetime("ms"), pl.Datetime("us", "UTC"), pl.Date, pl.Duration("ms")],
    ids=str,
)
def test_no_time_of_pandas_is_null(kind: Any) -> None:
    pandas = pytest.importorskip("pandas")
    assert inserted(kind, pandas.NaT) == [None]
    assert inserted(pl.List(kind), [pandas.NaT]) == [[None]]
    with pytest.raises(rr.SchemaError, match="NaTType"):
        inserted(pl.Int64, pandas.NaT)


def test_values_that_do_not_fit_say_why() -> None:
    pair = pl.Struct({"p": pl.Int32, "q": pl.String})
    with pytest.raises(rr.SchemaError, match="of its field 'p', it is out of range"):
        inserted(pair, {"p": 1 << 31, "q": ""})
    with pytest.raises(rr.SchemaError, match=r"of its item 256, it is out of range"):
        inserted(pl.List(pl.UInt8), [1, 256])
    for value in ("NaN", "Infinity", "-Infinity", "sNaN"):
        with pytest.raises(rr.SchemaError, match="no NaN and no infinity"):
            inserted(pl.Decimal(6, 2), Decimal(value))
    assert inserted(pair, {"p": 1, "q": "a"}) == [{"p": 1, "q": "a"}]


def test_places_are_said_as_they_were_given(tmp_path: Path) -> None:
    flow = rr.Dataflow("refusals")
    flow.output("a", flow.input("a", {"k": pl.Int64}))
    with flow.run(checkpoint=tmp_path) as run:
        with pytest.raises(
            rr.CheckpointError, match=f"cannot use {re.escape(str(tmp_path))}"
        ) as used:
            flow.run(checkpoint=tmp_path)
        assert "Storage(" not in str(used.value)
        with pytest.raises(rr.RiverrunError, match="cannot keep files at s4://") as caught:
            run.write_parquet("a", "s4://x/y")
        assert "checkpoints" not in caught.value.message


def test_inspecting_without_times() -> None:
    seen: list[Any] = []
    flow = rr.Dataflow("refusals")
    rows = flow.input("a", {"k": pl.Int64})
    flow.output("b", rows.inspect(seen.append, times=False).inspect(seen.append))
    with started(flow) as run:
        run.insert("a", [(1,), (2,)])
        run.commit()
    assert [batch.schema.names for batch in seen] == [["k"], ["k", "time", "diff"]]
    assert seen[1].column("time").to_pylist() == [[0], [0]]
    with pytest.raises(rr.PlanError, match="times='no'"):
        rows.inspect(times="no")  # type: ignore[arg-type]
