"""Checkpoints as DataFrames, with no run alive: as of each epoch they hold, what the run gave."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import riverrun as rr
from riverrun.spark import source as source_module
from riverrun.state import block as block_module
from riverrun.storage import Checkpoints
from riverrun.storage import reader as stored_module
from tests.spark.programs import Rows, change, counting, looping, upserting
from tests.storage.saving import make_blocks_small
from tests.storage.test_damage import damage


def source(spark: SparkSession, **options: Any) -> Any:
    return spark.read.format("riverrun").options(**options)


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.collect()), key=repr)


def nested() -> rr.Dataflow:
    """Chains of pairs, and in every round of that a loop that counts down."""
    flow = rr.Dataflow("nested")
    a = flow.input("a", {"k": pl.Int64, "v": pl.Int64})

    def down(found: rr.Collection) -> rr.Collection:
        less = found.filter(pl.col("v") > 0).select("k", v=pl.col("v") - 1)
        return less.concat(found).distinct()

    def outer(found: rr.Collection) -> rr.Collection:
        lower = found.iterate(down)
        moved = lower.join(a, left_on="v", right_on="k").select("k", v="v_right")
        return moved.concat(a.distinct()).distinct()

    flow.output("out", a.distinct().iterate(outer))
    return flow


def reached(rows: Rows) -> list[tuple[int, int]]:
    """What `nested` gives, by going on until nothing is new."""
    start = set(rows["a"])
    found = set(start)
    while True:
        lower = {(k, w) for k, v in found for w in (range(v + 1) if v > 0 else (v,))}
        after = {(k, w) for k, v in lower for other, w in start if other == v} | start
        if after == found:
            return sorted(found)
        found = after


def lived(flow: rr.Dataflow, path: Path, seed: int, oracle: Any, on: Any = None) -> list[list[Any]]:
    """Some epochs with random inserts and deletes, each with a checkpoint; the output as of each."""
    rng = random.Random(seed)
    known: Rows = {}
    program = type("Some", (), {"flow": flow, "keyed": oracle[1]})()
    as_of = []
    with flow.run(workers=2, on=on, checkpoint=path, every=None, history=2) as run:
        for _ in range(4):
            change(run, program, known, rng, 12)
            run.commit()
            run.checkpoint()
            as_of.append(run.read("out").rows())
            assert as_of[-1] == sorted(oracle[0](known)), f"seed {seed}"
        assert run.read("out", epoch=2).rows() == as_of[2]
    return as_of


PROGRAMS = {"counting": counting, "looping": looping, "upserting": upserting, "nested": nested}


def made(name: str) -> tuple[rr.Dataflow, Any]:
    program: Any = PROGRAMS[name]()
    if name == "nested":
        return program, (reached, False)
    return program.flow, (program.oracle, program.keyed)


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_epoch_that_is_held_reads_as_it_was(
    spark: SparkSession, name: str, tmp_path: Path
) -> None:
    flow, oracle = made(name)
    as_of = lived(flow, tmp_path / "a b", 5, oracle)
    path = str(tmp_path / "a b")
    assert rows_of(source(spark).load(path)) == sorted(as_of[3], key=repr)
    for epoch in (1, 2, 3):
        frame = source(spark, epoch=epoch, name="out").load(path)
        assert rows_of(frame) == sorted(as_of[epoch], key=repr)
        assert rr.read_checkpoint(path, epoch=epoch).rows() == as_of[epoch]
    assert rows_of(source(spark, number=3).load(path)) == sorted(as_of[2], key=repr)
    assert rows_of(source(spark, checkpoint=path).load("out")) == sorted(as_of[3], key=repr)
    with pytest.raises(PySparkException, match="checkpoint 3: epochs 1 to 2; checkpoint 4: epoch"):
        source(spark, epoch=0).load(path)


def test_a_run_on_spark_is_read_while_it_is_alive_and_later(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The source of a run takes the place of the one that Spark finds by itself, and reads paths too."""
    program, known, rng = counting(), Rows(), random.Random(6)
    path = str(tmp_path)
    lived(*made("upserting")[:1], tmp_path / "other", 7, made("upserting")[1])
    assert source(spark).load(f"{path}/other").columns == [
        "k",
        "v",
    ]  # the static one is known by now
    with program.flow.run(on=spark, workers=2, checkpoint=tmp_path / "run", every=None) as run:
        change(run, program, known, rng, 30)
        run.commit()
        run.checkpoint()
        before = run.read("out").rows()
        change(run, program, known, rng, 30)
        run.commit()
        after = run.read("out").rows()
        assert before != after
        assert rows_of(source(spark).load("out")) == sorted(after, key=repr)
        assert rows_of(source(spark).load(f"{path}/run")) == sorted(before, key=repr)
        assert rows_of(run.read("out").to_spark()) == sorted(after, key=repr)
    assert rows_of(source(spark).load(f"{path}/run")) == sorted(before, key=repr)
    with pytest.raises(PySparkException, match="those alive are: none"):
        source(spark).load("out")


def test_columns_filters_and_partitions(spark: SparkSession, tmp_path: Path) -> None:
    flow, oracle = made("counting")
    rows = lived(flow, tmp_path, 8, oracle)[-1]
    path = str(tmp_path)
    frame = source(spark).load(path)
    assert frame.dtypes == [("k", "bigint"), ("n", "bigint"), ("total", "bigint")]
    assert frame.rdd.getNumPartitions() == 2  # one for each share
    for condition in ("k > 5", "n = 2 and total < 0", "k in (1, 2, 3)", "k is null", "k + n > 10"):
        expected = [r for r in rows if _holds(condition, r)]
        assert rows_of(frame.where(condition)) == sorted(expected, key=repr), condition
    assert frame.where("n > 1").union(frame).count() == len([r for r in rows if r[1] > 1]) + len(
        rows
    )
    taken = source(spark, pushFilters="true").load(path).where("k > 5")
    assert rows_of(taken) == sorted([r for r in rows if r[0] > 5], key=repr)
    plan = taken._jdf.queryExecution().executedPlan().toString()
    assert "Filter" not in plan.replace("RuntimeFilters", "")  # the tasks do it
    assert rows_of(frame.select("total", "k")) == sorted([(t, k) for k, _, t in rows], key=repr)
    chosen = source(spark, columns="total,k").load(path)
    assert rows_of(chosen) == sorted([(t, k) for k, _, t in rows], key=repr)
    assert frame.count() == len(rows)


def _holds(condition: str, row: tuple[Any, ...]) -> bool:
    k, n, total = row
    given = condition.replace(" = ", " == ").replace("is null", "is None")
    return bool(eval(given, {"k": k, "n": n, "total": total}))


def test_a_state_has_its_rows_and_how_often(spark: SparkSession, tmp_path: Path) -> None:
    flow = rr.Dataflow("doubles")
    flow.output("out", flow.input("a", {"k": pl.Int64}).filter(pl.col("k") > 0))
    with flow.run(workers=2, checkpoint=tmp_path, every=None) as run:
        run.insert("a", [(1,), (1,), (2,), (-1,)])
        run.commit()
        run.checkpoint()
    path = str(tmp_path)
    assert rows_of(source(spark).load(path)) == [(1,), (1,), (2,)]
    found = source(spark, name="out:result").load(path)
    assert found.columns == ["k", "count"]
    assert rows_of(found) == [(1, 2), (2, 1)]


def test_what_is_damaged_is_named(spark: SparkSession, tmp_path: Path) -> None:
    flow, oracle = made("counting")
    as_of = lived(flow, tmp_path, 9, oracle)
    checkpoints, path = Checkpoints(tmp_path), str(tmp_path)
    newest = checkpoints.load(4)
    state = newest.about["outputs"]["out"]["state"]
    own = [b.file.name for s in newest.states[state] for b in s.blocks]
    name = sorted(set(own) - set(checkpoints.load(3).files))[0]
    damage(checkpoints.storage, name, "middle byte flipped")
    with pytest.raises(PySparkException, match=name) as caught:
        source(spark).load(path).collect()
    assert "--verify says which checkpoint is whole" in str(caught.value)
    with pytest.raises(rr.CheckpointError, match=name):
        rr.read_checkpoint(path).rows()
    assert rows_of(source(spark, number=3).load(path)) == sorted(as_of[2], key=repr)


def test_what_cannot_be_read_is_said(spark: SparkSession, tmp_path: Path) -> None:
    flow = rr.Dataflow("two")
    a = flow.input("a", {"k": pl.Int64})
    flow.output("some", a)
    flow.output("more", a.distinct())
    with flow.run(checkpoint=tmp_path, every=None) as run:
        run.insert("a", [(1,)])
        run.commit()
        run.checkpoint()
    path = str(tmp_path)
    for asked, words in (
        (lambda: source(spark).load(path), "it has: more, some"),
        (lambda: source(spark, name="mroe").load(path), "there are: more, some"),
        (
            lambda: source(spark, output="some").load(path),
            r"did you mean \.option\(\"name\", \.\.\.\)",
        ),
        (lambda: source(spark, name="some", number=9).load(path), "there are: 1"),
        (lambda: source(spark, name="some", epoch="x").load(path), "the number of an epoch"),
        (lambda: source(spark, name="some", changes="true").load(path), "they hold results"),
        (
            lambda: source(spark, state="some").load(path),
            r"did you mean \.option\(\"name\", \.\.\.\)",
        ),
        (lambda: source(spark).load(f"{path}/no"), "there is nothing at"),
        (lambda: source(spark).load("some"), "read by their path"),
    ):
        with pytest.raises(PySparkException, match=words):
            asked().collect()
    stream = spark.readStream.format("riverrun").option("name", "some").load(path)
    query = stream.writeStream.format("noop").start()
    with pytest.raises(PySparkException, match="they do not change"):
        query.processAllAvailable()
    assert not (tmp_path / "no").exists()


def test_many_rows_are_cut_between_blocks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_blocks_small(monkeypatch)
    monkeypatch.setattr(block_module, "BLOCK_ROWS", 512)
    flow = rr.Dataflow("many")
    flow.output("out", flow.input("a", {"k": pl.Int64}))
    with flow.run(workers=2, checkpoint=tmp_path, every=None) as run:
        run.insert("a", pl.DataFrame({"k": range(10_000)}))
        run.commit()
        run.checkpoint()
    checkpoints = stored_module.look_into(tmp_path)
    stored = stored_module.choose(checkpoints)
    cuts = stored.cuts(rows=1_000)
    assert 6 <= len(cuts) <= 20
    sizes = [stored.open(checkpoints, *cut)[0].to_batch((0,)).num_rows for cut in cuts]
    assert sum(sizes) == 10_000
    assert max(sizes) < 3_000


def test_a_plain_session_finds_it_by_itself(printed: dict[str, str], sessions_folder: Path) -> None:
    """Nothing is imported or registered, and conditions are left to Spark, as its settings say."""
    rows = rr.read_checkpoint(sessions_folder / "stored").rows()
    assert rows
    assert printed["plain"].strip() == str([row for row in rows if row[0] >= 3])


def test_a_spark_that_keeps_the_static_source(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some versions refuse to have it replaced: runs are then read under another name."""
    monkeypatch.setattr(source_module, "_registered", source_module.FORMAT)
    register = type(spark.dataSource).register

    def refusing(self: Any, given: Any) -> None:
        if given.name() == source_module.FORMAT:
            raise PySparkException("[DATA_SOURCE_ALREADY_EXISTS] Data source 'riverrun' exists")
        register(self, given)

    monkeypatch.setattr(type(spark.dataSource), "register", refusing)
    program, known = counting(), Rows()
    with program.flow.run(on=spark, workers=2) as run:
        change(run, program, known, random.Random(1), 20)
        run.commit()
        expected = sorted(program.oracle(known), key=repr)
        assert rows_of(run.read("out").to_spark()) == expected
        assert rows_of(spark.read.format(source_module.LIVE).load("out")) == expected
