"""Inputs with a key: the last command of each key counts."""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple

import polars as pl
import pytest

import riverrun as rr
from tests.frontends.collections.checking import build
from tests.frontends.collections.reference import counted
from tests.soaking import seeds


def keyed(program, schema, key):
    flow = rr.Dataflow("keyed")
    for name, collection in program(flow.input("rows", schema, key=key)).items():
        flow.output(name, collection)
    return flow


SCHEMA = {"id": pl.Int64, "part": pl.String, "v": pl.Int64}


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(12, soak=48))
@pytest.mark.parametrize("key", ["id", "part", ("part", "id")])
def test_the_last_command_counts(key, seed):
    """Against a dict; several commands for a key in one epoch, deletes by key and by row, rescaling."""
    source = random.Random(seed)
    names = [key] if isinstance(key, str) else list(key)
    places = [list(SCHEMA).index(name) for name in names]

    def program(rows):
        return {
            "rows": rows,
            "sums": rows.group_by("part").agg(s=rr.sum("v"), n=rr.count()),
            "pairs": rows.join(rows, on=names, how="left"),
            "high": rows.filter(pl.col("v") > 1),
        }

    flow = keyed(program, SCHEMA, key)
    model: dict[tuple, tuple] = {}
    with flow.run(workers=source.choice([1, 2, 3]), seed=source.choice([None, seed])) as run:
        for epoch in range(6):
            for _ in range(source.randrange(8)):
                row = (source.randrange(3), source.choice("ab"), source.randrange(4))
                key_values = tuple(row[at] for at in places)
                if source.random() < 0.6:
                    (run.upsert if source.random() < 0.5 else run.insert)("rows", [row])
                    model[key_values] = row
                else:
                    run.delete("rows", [row if source.random() < 0.5 else key_values])
                    model.pop(key_values, None)
            run.commit()
            said = f"seed {seed}, epoch {epoch}"
            assert counted(run.read("rows").rows()) == counted(model.values()), said
            assert counted(run.read("high").rows()) == counted(
                r for r in model.values() if r[2] > 1
            )
            sums, counts = Counter(), Counter()
            for _, part, v in model.values():
                sums[part] += v
                counts[part] += 1
            assert run.read("sums").rows() == sorted((p, sums[p], counts[p]) for p in counts), said
            assert len(run.read("pairs")) == len(model), said
            if source.random() < 0.3:
                run.scale(source.randint(1, 4))


def test_what_did_not_change_is_no_change():
    flow = keyed(lambda rows: {"rows": rows}, SCHEMA, "id")
    with flow.run() as run:
        run.upsert("rows", [(1, "a", 1), (2, "b", 2)])
        run.commit()
        run.upsert("rows", [(1, "a", 1), (2, "b", 3)])
        run.commit()
        assert run.changes("rows").rows() == [(2, "b", 2, -1), (2, "b", 3, 1)]
        run.delete("rows", [(3,)])
        run.commit()
        assert run.changes("rows").rows() == []


def test_commands_go_on_after_a_resume(tmp_path):
    """Sequence numbers start again after a resume; what is kept is older than any command."""
    flow = keyed(lambda rows: {"rows": rows}, SCHEMA, "id")
    with flow.run(workers=2, checkpoint=tmp_path) as run:
        for v in range(5):
            run.upsert("rows", [(1, "a", v), (2, "b", v)])
        run.commit()
    with flow.run(workers=3, checkpoint=tmp_path) as run:
        assert run.read("rows").rows() == [(1, "a", 4), (2, "b", 4)]
        run.upsert("rows", [(1, "a", 10)])
        run.delete("rows", [(2,)])
        run.commit()
        assert run.read("rows").rows() == [(1, "a", 10)]


def test_what_may_not_be_null_is_not():
    class Sale(NamedTuple):
        id: int | None
        item: str
        price: float | None

    flow = keyed(lambda rows: {"rows": rows, "pairs": rows.join(rows, on="id")}, Sale, "id")
    with flow.run() as run:
        for row in ((None, "sail", 1.0), (1, None, 1.0)):
            with pytest.raises(rr.SchemaError, match="null"):
                run.upsert("rows", [row])
        with pytest.raises(rr.SchemaError):
            run.delete("rows", [(None,)])
        run.upsert("rows", [(1, "sail", None)])
        run.commit()
        assert run.read("rows").rows() == [(1, "sail", None)]
        assert run.changes("rows").rows() == [(1, "sail", None, 1)]
        run.delete("rows", [(1,)])
        run.commit()
        assert run.read("rows").rows() == []


def test_upsert_needs_a_key():
    flow = build(lambda rows: rows, {"rows": SCHEMA})
    with flow.run() as run:
        with pytest.raises(rr.SchemaError, match="without a key"):
            run.upsert("rows", [(1, "a", 1)])
        run.insert("rows", [(1, "a", 1)])
        run.commit()
        assert run.read("result").rows() == [(1, "a", 1)]


def test_keys_are_columns_and_names_of_ours_are_not():
    flow = rr.Dataflow("keyed")
    with pytest.raises(rr.PlanError, match="'nope'"):
        flow.input("rows", SCHEMA, key="nope")
    with pytest.raises(rr.PlanError, match="__sequence__"):
        flow.input("rows", {"__sequence__": pl.Int64, "id": pl.Int64}, key="id")
    flow.input("rows", SCHEMA, key="id")
