"""Enums from the outside: declared in any way, given in any form, read in any form, kept by checkpoints and files."""

from __future__ import annotations

from typing import Any

import deltalake
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pytest

import riverrun as rr
from riverrun.engine.instance import Maker
from riverrun.rows.convert import as_table
from riverrun.rows.schemas import as_schema
from riverrun.rows.types import in_spark
from riverrun.runtime.remote import RemoteCluster
from riverrun.spark.source import plainer
from riverrun.state.types import (
    EnumType,
    NoCategory,
    canonical,
    declared_schema,
    encode,
    shown_schema,
    spell,
    type_text,
)
from riverrun.testing import check_operator
from riverrun.testing.draws import small
from tests.runtime.launchers import Processes, Threads

LEVELS = ["low", "mid", "high"]
LEVEL = pl.Enum(LEVELS)
SCHEMA = {"n": pl.Int64, "e": LEVEL, "l": pl.List(LEVEL)}
ROWS = [(1, "low", ["high"]), (2, "high", ["mid", None]), (3, "mid", None), (4, None, [])]
ODD = ["ä;1", "", "3;x", "'", ", ", "\N{SNOWMAN}", "low"]


def program(levels: Any = LEVEL, inner: Any = LEVEL) -> rr.Dataflow:
    flow = rr.Dataflow("levels")
    rows = flow.input("rows", {"n": pl.Int64, "e": levels, "l": pl.List(inner)})
    flow.output("rows", rows)
    flow.output(
        "most", rows.group_by().agg(e=rr.max("e"), l=rr.max("l"), last=rr.last("n", by="e"))
    )
    return flow


@pytest.mark.parametrize("categories", [LEVELS, ODD, [], [str(n) for n in range(70_000)]], ids=len)
def test_polars_and_arrow_know_the_enum_again(categories: list[str]) -> None:
    kind = pl.Enum(categories)
    schema = as_schema({"e": kind, "l": pl.List(kind), "s": pl.Struct({"e": kind})}, "test")
    assert schema.field("e").type == EnumType(categories)
    shown = shown_schema(schema)
    frame = pl.DataFrame(shown.empty_table())
    assert frame.schema == {"e": kind, "l": pl.List(kind), "s": pl.Struct({"e": kind})}
    assert declared_schema(shown) == schema
    assert as_schema(shown, "test") == schema
    assert as_schema(frame.to_arrow().schema, "test") == schema
    assert as_schema(frame, "test") == schema
    assert pa.ipc.read_schema(schema.serialize()) == schema
    assert shown.types == frame.to_arrow().schema.types


def test_another_order_is_another_type() -> None:
    one, other = EnumType(LEVELS), EnumType(LEVELS[::-1])
    assert one != other
    assert pa.list_(one) != pa.list_(other)
    assert type_text(pa.list_(one)) != type_text(pa.list_(other))
    many = [str(n) for n in range(100)]
    assert str(EnumType(many)) != str(EnumType([*many[:-2], many[-1], many[-2]]))
    assert str(EnumType(["a, b"])) != str(EnumType(["a", "b"]))


def test_an_enum_that_was_made_up_is_refused() -> None:
    for written in (b"7", b'["a", 1]', b'["a", "a"]', b"[", b"\xff"):
        field = pa.field("x", pa.uint8(), metadata={
            "ARROW:extension:name": "riverrun.enum", "ARROW:extension:metadata": written,
        })  # fmt: skip
        with pytest.raises((ValueError, pa.ArrowException)):
            str(pa.ipc.read_schema(pa.schema([field]).serialize()).field(0).type)


def test_what_lies_under_a_null_is_no_value() -> None:
    kind = pa.struct([pa.field("e", EnumType(LEVELS)), pa.field("l", pa.list_(EnumType(LEVELS)))])
    text = pa.struct([("e", pa.string()), ("l", pa.list_(pa.string()))])
    rows = [{"e": "low", "l": ["mid"]}, {"e": "no", "l": ["such"]}, {"e": None, "l": [None]}]
    array = pa.array([{"e": "x", "l": ["y"]}, *rows], text)
    hidden = pa.StructArray.from_arrays(
        array.flatten(), names=["e", "l"], mask=pa.array([True, False, True, False])
    )
    codes = encode(hidden.slice(1), kind)
    codes.validate(full=True)
    assert codes.type == canonical(kind)
    assert spell(codes, kind).to_pylist() == [rows[0], None, rows[2]]
    assert spell(codes.slice(1), kind).to_pylist() == [None, rows[2]]
    with pytest.raises(NoCategory, match="'no'"):
        encode(array.slice(2), kind)


FORMS = {
    "tuples": ROWS,
    "dicts": [dict(zip(SCHEMA, row, strict=True)) for row in ROWS],
    "columns": {name: [row[at] for row in ROWS] for at, name in enumerate(SCHEMA)},
    "polars": pl.DataFrame(ROWS, SCHEMA, orient="row"),
    "polars text": pl.DataFrame(
        ROWS, {"n": pl.Int64, "e": pl.String, "l": pl.List(pl.String)}, orient="row"
    ),
    "arrow": pl.DataFrame(ROWS, SCHEMA, orient="row").to_arrow(),
    "another order": pl.DataFrame(
        ROWS, {**SCHEMA, "e": pl.Enum([*LEVELS[::-1], "more"])}, orient="row"
    ),
    "categorical": pl.DataFrame(ROWS, {**SCHEMA, "e": pl.Categorical}, orient="row"),
    "pandas": pd.DataFrame(
        {"n": [1, 2, 3, 4], "e": pd.Categorical([r[1] for r in ROWS]), "l": [r[2] for r in ROWS]}
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_any_form(form: str) -> None:
    schema = as_schema(SCHEMA, "test")
    codes = as_table(FORMS[form], schema, "test")
    assert codes.column(1).to_pylist() == [0, 2, 1, None]
    assert codes.column(2).to_pylist() == [[2], [1, None], None, []]


@pytest.mark.parametrize(
    "rows",
    [
        [(1, "none such", [])],
        [(1, "low", ["none such"])],
        [(1, 0, [])],
        pa.table({"n": [1], "e": pa.array([0], pa.uint8()), "l": pa.array([[]], pa.list_(pa.string()))}),
        pa.table({"n": [1], "e": ["low"], "l": pa.array([[0]], pa.large_list(pa.uint8()))}),
        pl.DataFrame({"n": [1], "e": ["none such"], "l": [["low"]]}),
        {"n": [1], "e": pa.array([0], pa.uint8()), "l": [[]]},
    ],
    ids=range(7),
)  # fmt: skip
def test_what_is_no_category_is_refused_by_name(rows: Any) -> None:
    with pytest.raises(rr.SchemaError) as caught:
        as_table(rows, as_schema(SCHEMA, "test"), "insert into 'rows'")
    assert caught.value.code in ("schema.value", "schema.type_mismatch")
    assert "enum<'low', 'mid', 'high'>" in caught.value.message


def test_an_order_that_nobody_said_is_refused() -> None:
    ordered = pa.dictionary(pa.int32(), pa.string(), ordered=True)
    for kind in (ordered, pa.list_(ordered), pa.struct([("x", ordered)])):
        for declaration in ({"e": kind}, pa.schema({"e": kind})):
            with pytest.raises(rr.SchemaError, match="does not say which") as caught:
                as_schema(declaration, "declare input 'rows'")
            assert "pl.Enum" in (caught.value.hint or "")
    frame = pd.DataFrame({"e": pd.Categorical(["mid"], LEVELS, ordered=True)})
    assert as_schema(frame, "test").field("e").type == EnumType(LEVELS)


def test_results_have_the_enum_in_every_form(tmp_path: Any) -> None:
    with program().run(workers=2) as run:
        run.insert("rows", ROWS)
        run.commit()
        assert run.read("most").rows() == [("high", ["high"], 2)]
        result = run.read("rows")
        assert result.rows() == ROWS
        assert result["e"].count("high") == 1
        assert result.to_polars().schema == SCHEMA
        assert pl.DataFrame(result).schema == SCHEMA
        assert result.schema == run.schema("rows")
        kind = result.to_arrow().schema.field("e").type
        assert pa.types.is_dictionary(kind)
        assert kind.ordered
        assert list(result.to_pandas()["e"].dtype.categories) == LEVELS
        assert result.to_pandas()["e"].max() == "high"
        plain = plainer(result.to_arrow().combine_chunks().to_batches()[0])
        assert plain.schema.types == [pa.int64(), pa.string(), pa.list_(pa.string())]
        assert in_spark(kind) == pa.string()
        changes = run.changes("rows").to_polars()
        assert changes.schema == {**SCHEMA, "diff": pl.Int64}
        run.delete("rows", result.to_arrow())
        run.commit()
        assert run.read("rows").rows() == []
        assert run.read("rows").to_polars().schema == SCHEMA


def test_functions_see_and_give_values() -> None:
    flow = rr.Dataflow("levels")
    rows = flow.input("rows", SCHEMA)
    up = {"low": "mid", "mid": "high", "high": "high", None: "low"}
    flow.output("mapped", rows.flat_map(lambda row: [(up[row["e"]],)], {"e": LEVEL}))
    flow.output(
        "batches", rows.map_batches(lambda frame: frame.select(pl.col("e").fill_null("low")), {"e": LEVEL})
    )  # fmt: skip
    flow.output("applied", rows.group_by().apply(lambda frame: frame["e"].max(), {"e": LEVEL}))
    flow.output("grown", rows.select("e").iterate(
        lambda x: x.concat(x.flat_map(lambda row: [(up[row["e"]],)], {"e": LEVEL})).distinct()
    ))  # fmt: skip
    flow.output("cast", rows.select(e=pl.col("e").cast(pl.String).cast(pl.Enum(LEVELS[::-1]))))
    flow.output("above", rows.filter(pl.col("e") > "low").select("n"))
    state = flow.state("seen", key={"e": LEVEL}, value={"n": pl.Int64})
    rows.filter(pl.col("e").is_not_null()).update(state, time=pl.col("n"))
    flow.output("fetched", rows.select("n", "e").fetch(state, at="n"))
    with flow.run(workers=2) as run:
        run.insert("rows", ROWS)
        run.commit()
        run.insert("rows", [(9, "low", [])])
        run.commit()
        assert run.read("mapped").rows()[:2] == [("low",), ("mid",)]
        assert run.read("batches").to_polars().schema == {"e": LEVEL}
        assert run.read("applied").rows() == [("high",)]
        assert run.read("grown").rows() == [("low",), ("mid",), ("high",), (None,)]
        assert run.read("cast").to_polars().schema == {"e": pl.Enum(LEVELS[::-1])}
        assert run.read("cast").rows()[0] == ("high",)
        assert run.read("above").rows() == [(2,), (3,)]
        fetched = [(1, "low", 1), (2, "high", 2), (3, "mid", 3), (4, None, None)]
        assert run.read("fetched").rows()[:4] == fetched


def test_a_keyed_input_with_an_enum_as_key() -> None:
    flow = rr.Dataflow("levels")
    flow.output("rows", flow.input("rows", {"e": LEVEL, "n": pl.Int64}, key="e"))
    with flow.run(workers=3) as run:
        run.upsert("rows", [("high", 1), ("low", 2)])
        run.upsert("rows", pl.DataFrame({"e": ["mid", "low"], "n": [3, 4]}))
        run.commit()
        assert run.read("rows").rows() == [("low", 4), ("mid", 3), ("high", 1)]
        run.delete("rows", [{"e": "low"}])
        run.delete("rows", pl.DataFrame({"e": ["mid"]}, schema={"e": LEVEL}))
        run.commit()
        assert run.read("rows").rows() == [("high", 1)]


def test_checkpoints_keep_the_enum_and_another_one_is_another_program(tmp_path: Any) -> None:
    path = tmp_path / "kept"
    with program().run(checkpoint=path, workers=2) as run:
        run.insert("rows", ROWS[:2])
        run.commit()
        run.checkpoint()
        run.insert("rows", ROWS[2:])  # these are in the log only
        run.commit()
    with program().run(checkpoint=path, workers=3) as run:
        assert run.read("rows").rows() == ROWS
        assert run.read("most").rows() == [("high", ["high"], 2)]
        assert run.read("rows").to_polars().schema == SCHEMA
        run.checkpoint()
    stored = rr.read_checkpoint(path, "rows")
    assert stored.to_polars().schema == SCHEMA
    assert stored.rows() == ROWS
    other = pl.Enum([*LEVELS[::-1]])
    for changed in (program(levels=other), program(inner=other), program(levels=pl.String)):
        with pytest.raises(rr.CheckpointError) as caught:
            changed.run(checkpoint=path)
        assert caught.value.code == "checkpoint.incompatible"
        assert "rows" in str(caught.value)


def test_a_log_alone_tells_enums_apart(tmp_path: Any) -> None:
    path = tmp_path / "kept"
    with program().run(checkpoint=path, every=None) as run:
        run.insert("rows", ROWS)
        run.commit()
    with pytest.raises(rr.CheckpointError) as caught:
        program(levels=pl.Enum(["high", "mid", "low"])).run(checkpoint=path, rebuild=True)
    assert caught.value.code == "checkpoint.incompatible"
    with program().run(checkpoint=path) as run:
        assert run.read("rows").rows() == ROWS


def test_files_and_tables_have_the_values(tmp_path: Any) -> None:
    flow = rr.Dataflow("levels")
    rows = flow.input("rows", {"n": pl.Int64, "e": LEVEL})
    flow.output("rows", rows)
    flow.output("counts", rows.group_by("e").count())
    with flow.run() as run:
        run.write_parquet("rows", tmp_path / "parquet")
        run.write_delta("rows", tmp_path / "delta")
        run.write_delta("counts", tmp_path / "mirror", mode="mirror", key="e")
        run.write_delta("counts", tmp_path / "anew", mode="mirror")
        run.insert("rows", [(n, e) for n, e, _ in ROWS if e])
        run.commit()
        run.delete("rows", [(1, "low")])
        run.insert("rows", [(5, "high")])
        run.commit()
    wanted = [(2, "high"), (3, "mid"), (5, "high")]
    for table in (
        pl.read_parquet(tmp_path / "parquet" / "*.parquet"),
        pl.DataFrame(deltalake.DeltaTable(tmp_path / "delta").to_pyarrow_table()),
    ):
        left = table.group_by("n", "e").agg(pl.col("diff").sum()).filter(pl.col("diff") != 0)
        assert sorted((n, str(e)) for n, e, _ in left.rows()) == wanted
    assert pl.read_parquet(tmp_path / "parquet" / "*.parquet").schema["e"] == LEVEL
    for name in ("mirror", "anew"):
        stored = deltalake.DeltaTable(tmp_path / name).to_pyarrow_table()
        assert stored.schema.field("e").type in (pa.string(), pa.large_string())
        assert sorted(stored.to_pylist(), key=str) == [
            {"e": "high", "count": 2},
            {"e": "mid", "count": 1},
        ]


def test_conditions_that_come_from_spark_are_about_text() -> None:
    """Spark has strings, so its order is that of text; the filter must say what Spark would."""
    from riverrun.rows.conditions import Where

    schema = shown_schema(pa.schema({"e": EnumType(LEVELS)}))
    batch = pa.record_batch([encode_dictionary(["low", "mid", None, "high"])], schema=schema)
    for relation, value, wanted in (
        ("=", "mid", ["mid"]),
        (">", "low", ["mid"]),
        ("<=", "low", ["low", "high"]),
        ("in", ["low", "none"], ["low"]),
        ("starts with", "m", ["mid"]),
        ("same", None, [None]),
    ):
        selected = batch.filter(Where("e", relation, value).mask(batch)).column(0)
        assert pc.cast(selected, pa.string()).to_pylist() == wanted, relation


def encode_dictionary(values: list[str | None]) -> pa.Array:
    codes = encode(pa.array(values), EnumType(LEVELS))
    return pa.DictionaryArray.from_arrays(codes, EnumType(LEVELS).values, ordered=True)


@pytest.mark.parametrize("many", [1, 50])
def test_nulls_among_the_values_of_a_dictionary_are_nulls(many: int) -> None:
    values = pa.array(["low", None, "none", "high"])
    indices = pa.array([0, 1, None, 3] * many, pa.int32())
    dictionary = pa.DictionaryArray.from_arrays(indices, values)
    assert encode(dictionary, EnumType(LEVELS)).to_pylist() == [0, None, None, 2] * many
    used = pa.DictionaryArray.from_arrays(pa.array([1, 2, None] * many, pa.int32()), values)
    with pytest.raises(NoCategory, match="'none'"):
        encode(used, EnumType(LEVELS))


def test_rows_whose_dictionary_has_a_null_are_taken_in() -> None:
    flow = rr.Dataflow("levels")
    flow.output("out", flow.input("in", {"e": LEVEL}))
    column = pa.DictionaryArray.from_arrays([0, 1, 0], pa.array(["mid", None]))
    with flow.run() as run:
        run.insert("in", pa.table({"e": column}))
        run.commit()
        assert sorted(run.read("out").rows(), key=str) == [("mid",), ("mid",), (None,)]


class Highest(rr.Vertex):
    """Keeps the highest level that it has seen of each kind, in a table with enums in its key and its value."""

    deterministic = True

    def start(self) -> None:
        self.waiting: dict[Any, list[pl.DataFrame]] = {}

    def on_recv(self, port: str, rows: pl.DataFrame, time: Any) -> None:
        if time not in self.waiting:
            self.waiting[time] = []
            self.notify_at(time)
        self.waiting[time].append(rows)

    def on_notify(self, time: Any) -> None:
        rows = pl.concat(self.waiting.pop(time))
        known = self.table("highest").read(rows.select("kind").unique())
        seen = pl.concat([rows.select("kind", "level"), known.select("kind", "level")])
        highest = seen.group_by("kind").agg(pl.col("level").max()).sort("kind")
        self.table("highest").write(highest)
        self.send(highest)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_vertex_has_tables_of_enums(workers: int) -> None:
    kinds = pl.Enum(["tea", "ink"])
    flow = rr.Dataflow("levels")
    rows = flow.input("rows", {"kind": kinds, "level": LEVEL})
    answered = flow.vertex(
        Highest,
        inputs={"rows": rows},
        outputs={"kind": kinds, "level": LEVEL},
        routes={"rows": "kind"},
        tables={"highest": ({"kind": kinds}, {"level": LEVEL})},
    )
    flow.output("found", answered)
    with flow.run(workers=workers) as run:
        run.insert("rows", [("ink", "mid"), ("tea", "high"), ("ink", "low")])
        run.commit()
        assert run.read("found").rows() == [("tea", "high"), ("ink", "mid")]
        run.insert("rows", [("ink", "low"), ("tea", "low")])
        run.commit()
        assert run.changes("found").rows() == [("tea", "high", 1), ("ink", "mid", 1)]


@pytest.mark.parametrize(
    ("kind", "declared"), [(Processes, LEVEL), (Threads, LEVEL), (Threads, pl.Categorical)]
)
def test_workers_elsewhere_have_the_enum_also_those_without_rows(kind: Any, declared: Any) -> None:
    flow = rr.Dataflow("levels")
    rows = flow.input("rows", {"n": pl.Int64, "e": declared, "l": pl.List(declared)})
    flow.output("most", rows.group_by("n").agg(e=rr.max("e"), l=rr.max("l")))
    schema = rows.schema
    inserted = as_table(
        [(1, "low", ["high"]), (1, "high", ["low"]), (1, "mid", None)], schema, "test"
    )
    batch = pa.record_batch(
        [*inserted.columns, pa.array([1, 1, 1])], names=[*inserted.schema.names, "diff"]
    )
    wanted = (1, "high", ["high"]) if declared is LEVEL else (1, "mid", ["low"])
    with RemoteCluster(kind(Maker(flow.plan, 3)), 3, timeout=60, plan=flow.plan) as cluster:
        epoch = cluster.submit({"rows": batch})
        cluster.wait(epoch)
        portions = cluster.read("most", epoch)
        read_rows = [row for p in portions for b in p.batches() for row in pl.DataFrame(b).rows()]
        assert read_rows == [wanted]
        for portion in portions:
            for one in portion.batches(["e"]):
                assert pl.DataFrame(one).schema["e"] == declared


def test_rows_of_enums_are_drawn_for_tests() -> None:
    assert small(EnumType(LEVELS), "e") == LEVELS
    assert small(pa.list_(EnumType(LEVELS)), "l")[1] == ["low"]
    assert small(pa.dictionary(pa.int8(), pa.string()), "c")


def test_programs_of_enums_and_wider_types_keep_the_laws() -> None:
    def program(rows: rr.Collection, others: rr.Collection) -> rr.Collection:
        both = rows.concat(others)
        met = both.join(others.rename({"n": "m"}), left_on="n", right_on="m", suffix="_2")
        return met.group_by("e").agg(best=rr.max("e_2"), last=rr.last("n", by="e_2"), k=rr.count())

    check_operator(
        program,
        {
            "rows": {"n": pl.Int64, "e": LEVEL},
            "others": {"n": pl.UInt8, "e": pl.Enum(["low", "high"])},
        },
        rounds=1,
    )


def test_a_filter_by_what_is_no_category_is_refused() -> None:
    rows = rr.Dataflow("levels").input("rows", {"level": LEVEL})
    with pytest.raises(rr.PlanError, match="level='zzz' is no category") as caught:
        rows.filter(level="zzz")
    assert "'low'" in str(caught.value.hint)
    assert rows.filter(level="low").columns == ["level"]
