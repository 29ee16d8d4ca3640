"""The identity of operators with a user's function: the text in a checkpoint, word for word.

A checkpoint is resumed only by operators of the same identity. So the words below never change: a change of one makes
all checkpoints with that operator incompatible. The code of a function is in them as the word of `code_of`.
"""

from __future__ import annotations

from typing import Any

import cloudpickle
import polars as pl

import riverrun as rr
from riverrun.operators.shared.fetch import Fetch
from riverrun.operators.shared.gather import FunctionRequests
from riverrun.plan.identity import code_of
from riverrun.plan.plan import Plan


def per_batch(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


def per_row(row: dict[str, Any]) -> list[Any]:
    return [row]


def per_group(frame: pl.DataFrame) -> dict[str, Any]:
    return {"n": frame.height}


def update(entries: pl.DataFrame, updates: pl.DataFrame) -> pl.DataFrame:
    return updates


def leave(entries: pl.DataFrame, horizon: int) -> pl.DataFrame:
    return entries


def answer(values: pl.DataFrame) -> pl.DataFrame:
    return values.select("request", w="v")


def ask(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"k": row["k"]}]


class Through(rr.Vertex):
    def on_recv(self, port: str, rows: pl.DataFrame, time: Any) -> None:
        self.send(rows)


def program() -> Plan:
    flow = rr.Dataflow("identities")
    rows = flow.input("rows", {"k": pl.Int64, "t": pl.Int64, "v": pl.Int64})
    keyed = flow.input("keyed", {"k": pl.Int64, "v": pl.Int64}, key="k")
    state = flow.state("s", {"k": pl.Int64}, {"v": pl.Int64}, compact=rr.rules.compact(leave))
    vertex = flow.vertex(
        Through,
        {"in": rows},
        rows.schema,
        tables={"seen": ({"k": pl.Int64}, {"v": pl.Int64})},
        routes={"in": "k"},
        name="vertex",
    )
    outputs = {
        "batches": rows.map_batches(per_batch, rows.schema),
        "flat": rows.flat_map(per_row, rows.schema),
        "groups": rows.group_by("k").apply(per_group, {"n": pl.Int64}),
        "medians": rows.group_by("k").agg(m=pl.col("v").median()),
        "updates": rows.update(state, key="k", time="t", value="v", rule=rr.rules.update(update)),
        "fetches": rows.fetch(state, key="k", at="t", rule=rr.rules.fetch(answer, {"w": pl.Int64})),
        "requests": rows.select("k", "t").fetch(state, at="t", requests=ask),
        "vertices": vertex,
        "upserts": keyed,
    }
    for name, collection in outputs.items():
        flow.output(name, collection)
    return flow.plan


def identities(plan: Plan) -> set[str]:
    return {node.operator.identity() for node in plan.nodes}


def test_the_words_of_operators_with_functions() -> None:
    plan = program()
    bounds = "Bounds(since=None, until=1, closed=(True, True), wait=1, past=True)"
    expected = {
        f"map batches by per_batch {code_of(per_batch)}",
        f"apply per_group to each k {code_of(per_group)}",
        'group by k: m = col("v").median()',
        f"state 's' by k and time, function ['function {code_of(update)}'] function {code_of(leave)}",
        f"fetch function from 's' (0,) {bounds} 3 ('time', 'v') False function {code_of(answer)}",
        f"requests of a function {code_of(ask)}",
        f"records, numbered {code_of(ask)}",
        "gather replies from 's'",
        f"vertex Through {code_of(Through)} seen: "
        "['pyarrow.Field<k: int64>', 'pyarrow.Field<v: int64>']",
        "upsert by k",
        "input 'keyed' keyed by k",
    }
    assert expected - identities(plan) == set()
    flat = [each for each in identities(plan) if each.startswith("flat map by per_row ")]
    assert len(flat) == 1


def test_operators_that_were_shipped_have_the_same_identity() -> None:
    plan = program()
    shipped = cloudpickle.loads(cloudpickle.dumps([node.operator for node in plan.nodes]))
    assert [each.identity() for each in shipped] == [n.operator.identity() for n in plan.nodes]


def test_what_is_shipped_of_a_rule_is_its_function() -> None:
    """An operator ships the user's function alone, without the conversion of rows."""
    for node in program().nodes:
        operator = node.operator
        holders = [operator, getattr(operator, "rule", None), *getattr(operator, "parts", ())]
        for holder in holders:
            held = getattr(holder, "__dict__", {})
            assert not any(name in held for name in ("convert", "conform")), held
    assert any(isinstance(n.operator, Fetch | FunctionRequests) for n in program().nodes)
