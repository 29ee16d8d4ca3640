"""Odd values for arguments that name no columns: taken only where a table here says so, else refused with our error.

`test_column_arguments` draws those that name columns.
"""

from __future__ import annotations

import datetime

import polars as pl
import pytest

import riverrun as rr
from riverrun import graphs as al

SCHEMA = {"a": pl.Int64, "b": pl.String, "l": pl.List(pl.Int64)}


class Silent(rr.Vertex):
    def on_recv(self, port, rows, time):
        pass


EDGES = {"src": pl.Int64, "dst": pl.Int64}
COLUMNS = {"key": {"a": pl.Int64}, "value": {"b": pl.String}}

ODD = {
    "true": True, "minus": -1, "zero": 0, "float": 1.5, "text": "x", "none": None, "list": [], "object": object(),
    "bytes": b"x", "dict": {}, "class": int, "expression": pl.col("a"), "no_time": datetime.timedelta(0),
    "back": datetime.timedelta(days=-1), "nan": float("nan"), "huge": 10**30,
}  # fmt: skip


class Written:
    """A dataflow with an input and a state."""

    def __init__(self):
        self.flow = rr.Dataflow("odd")
        self.rows = self.flow.input("rows", SCHEMA)

    @property
    def edges(self):
        return self.flow.input("edges", EDGES)

    @property
    def state(self):
        return self.flow.state("kept", **COLUMNS)


# What is given, and which of the odd values are taken.
ARGUMENTS = {
    "Dataflow.name": (lambda w, o: rr.Dataflow(o), "text"),
    "input.name": (lambda w, o: w.flow.input(o, SCHEMA), "text"),
    "input.checked": (lambda w, o: w.flow.input("z", SCHEMA, checked=o), "true"),
    "output.name": (lambda w, o: w.flow.output(o, w.rows), "text"),
    "output.collection": (lambda w, o: w.flow.output("z", o), ""),
    "map_batches.function": (lambda w, o: w.rows.map_batches(o, SCHEMA), "class"),
    "inspect.function": (lambda w, o: w.rows.inspect(o), "none class"),
    "concat": (lambda w, o: w.rows.concat(o), "list"),
    "windows.size": (lambda w, o: w.rows.windows("a", o), ""),
    "windows.step": (lambda w, o: w.rows.windows("a", 5, o), "none"),
    "windows.offset": (lambda w, o: w.rows.windows("a", 5, offset=o), "minus zero"),
    "expire.after": (lambda w, o: w.rows.expire("a", o), ""),
    "expire.late": (lambda w, o: w.rows.expire("a", 5, late=o), "zero"),
    "expire.epochs": (lambda w, o: w.rows.expire(epochs=o), ""),
    "expire.name": (lambda w, o: w.rows.expire("a", 5, name=o), "text none"),
    "distinct.name": (lambda w, o: w.rows.distinct(name=o), "text none"),
    "distinct_of_some.name": (lambda w, o: w.rows.distinct("a", name=o), "text none"),
    "named.name": (lambda w, o: w.rows.group_by("a").named(o).count(), "text"),
    "top.k": (lambda w, o: w.rows.group_by("a").top(o, by="b"), ""),
    "top.descending": (lambda w, o: w.rows.group_by("a").top(1, by="b", descending=o), "true"),
    "apply.function": (lambda w, o: w.rows.group_by("a").apply(o, {"z": pl.Int64}), "class"),
    "apply.many": (lambda w, o: w.rows.group_by("a").apply(len, {"z": pl.Int64}, many=o), "true"),
    "agg.aggregates": (lambda w, o: w.rows.group_by("b").agg(o), "list expression"),
    "agg.named": (lambda w, o: w.rows.group_by("b").agg(x=o), "expression"),
    "join.other": (lambda w, o: w.rows.join(o, on="a"), ""),
    "join.how": (lambda w, o: w.rows.join(w.rows, on="a", how=o), ""),
    "co_group.other": (lambda w, o: w.rows.co_group(o, "a", len, {"z": pl.Int64}), ""),
    "co_group.function": (lambda w, o: w.rows.co_group(w.rows, "a", o, {"z": pl.Int64}), "class"),
    "co_group.inner": (
        lambda w, o: w.rows.co_group(w.rows, "a", len, {"z": pl.Int64}, inner=o),
        "true",
    ),
    "co_group.name": (
        lambda w, o: w.rows.co_group(w.rows, "a", len, {"z": pl.Int64}, name=o),
        "text none",
    ),
    "iterate.rounds": (lambda w, o: w.rows.iterate(lambda r: r, rounds=o), "zero none"),
    "iterate.patience": (lambda w, o: w.rows.iterate(lambda r: r, patience=o), ""),
    "iterate.name": (lambda w, o: w.rows.iterate(lambda r: r, name=o), "text none"),
    "state.name": (lambda w, o: w.flow.state(o, **COLUMNS), "text"),
    "state.key": (lambda w, o: w.flow.state("s", key=o, value={"b": pl.String}), ""),
    "state.time": (lambda w, o: w.flow.state("s", **COLUMNS, time=o), "class"),
    "state.start": (lambda w, o: w.flow.state("s", **COLUMNS, start=o), "minus zero none"),
    "state.compact": (lambda w, o: w.flow.state("s", **COLUMNS, compact=o), "none"),
    "state.compaction": (lambda w, o: w.flow.state("s", **COLUMNS, compaction=o), ""),
    "state.sweep": (lambda w, o: w.flow.state("s", **COLUMNS, sweep=o), ""),
    "state.accelerate": (lambda w, o: w.flow.state("s", **COLUMNS, accelerate=o), "true"),
    "state.replies_first": (lambda w, o: w.flow.state("s", **COLUMNS, replies_first=o), "true"),
    "update.state": (lambda w, o: w.rows.update(o), ""),
    "update.rule": (lambda w, o: w.rows.update(w.state, time="a", rule=o), ""),
    "update.late": (lambda w, o: w.rows.update(w.state, time="a", late=o), "zero"),
    "update.idle": (lambda w, o: w.rows.update(w.state, time="a", idle=o), "none"),
    "update.progress": (lambda w, o: w.rows.update(w.state, time="a", progress=o), "true"),
    "fetch.state": (lambda w, o: w.rows.fetch(o, key="a", at="a"), ""),
    "fetch.rule": (lambda w, o: w.rows.fetch(w.state, key="a", at="a", rule=o), ""),
    "lookup.other": (lambda w, o: w.rows.lookup(o, "a"), ""),
    "lookup.rule": (lambda w, o: w.rows.lookup(w.rows, "a", rule=o), ""),
    "lookup.how": (lambda w, o: w.rows.lookup(w.rows, "a", how=o), ""),
    "lookup.suffix": (lambda w, o: w.rows.lookup(w.rows, "a", suffix=o), "text"),
    "fetch.closed": (lambda w, o: w.rows.fetch(w.state, key="a", at="a", closed=o), ""),
    "fetch.how": (lambda w, o: w.rows.fetch(w.state, key="a", at="a", how=o), ""),
    "fetch.late": (lambda w, o: w.rows.fetch(w.state, key="a", at="a", late=o), "zero"),
    "fetch.idle": (lambda w, o: w.rows.fetch(w.state, key="a", at="a", idle=o), "none"),
    "fetch.progress": (
        lambda w, o: w.rows.fetch(w.state, key="a", at="a", progress=o),
        "true none",
    ),
    "fetch.requests": (
        lambda w, o: w.rows.fetch(w.state, at="a", key="a", requests=o),
        "none class",
    ),
    "fetch.time": (lambda w, o: w.rows.fetch(w.state, key="a", at="a", time=o), "text none empty"),
    "fetch.suffix": (lambda w, o: w.rows.fetch(w.state, key="a", at="a", suffix=o), "text"),
    "fetch.name": (lambda w, o: w.rows.fetch(w.state, key="a", at="a", name=o), "text none"),
    "progress.state": (lambda w, o: w.rows.progress(o, "update", "a"), ""),
    "progress.side": (lambda w, o: w.rows.progress(w.state, o, "a"), ""),
    "progress.late": (lambda w, o: w.rows.progress(w.state, "update", "a", late=o), "zero none"),
    "progress.idle": (lambda w, o: w.rows.progress(w.state, "update", "a", idle=o), "none"),
    "join.suffix": (lambda w, o: w.rows.join(w.rows, on="a", suffix=o), "text"),
    "loop.around": (lambda w, o: w.flow.loop(o), "none"),
    "loop.name": (lambda w, o: w.flow.loop(name=o), "text none"),
    "loop.feedback.limit": (lambda w, o: w.flow.loop().feedback(SCHEMA, o), "zero none"),
    "loop.enter": (lambda w, o: w.flow.loop().enter(o), ""),
    "loop.leave": (lambda w, o: w.flow.loop().leave(o), ""),
    "loop.connect": (lambda w, o: w.flow.loop().feedback(SCHEMA).connect(o), ""),
    "vertex.inputs": (lambda w, o: w.flow.vertex(Silent, o, SCHEMA), ""),
    "vertex.input": (lambda w, o: w.flow.vertex(Silent, {"in": o}, SCHEMA), ""),
    "vertex.routes": (
        lambda w, o: w.flow.vertex(Silent, {"in": w.rows}, SCHEMA, routes=o),
        "none dict",
    ),
    "vertex.tables": (
        lambda w, o: w.flow.vertex(Silent, {"in": w.rows}, SCHEMA, tables=o),
        "none dict",
    ),
    "vertex.table": (
        lambda w, o: w.flow.vertex(Silent, {"in": w.rows}, SCHEMA, tables={"t": o}),
        "",
    ),
    "vertex.name": (
        lambda w, o: w.flow.vertex(Silent, {"in": w.rows}, SCHEMA, name=o),
        "text none",
    ),
    "drop_before": (
        lambda w, o: w.flow.state("s", **COLUMNS, compact=rr.rules.drop_before(o)),
        "zero",
    ),
    "update_rule": (lambda w, o: rr.rules.update(o), "class"),
    "fetch_rule": (lambda w, o: rr.rules.fetch(o, SCHEMA), "class"),
    "compaction": (lambda w, o: rr.rules.compact(o), "class"),
    "components.edges": (lambda w, o: al.components(o), ""),
    "components.nodes": (lambda w, o: al.components(w.edges, o), "none"),
    "bfs.sources": (lambda w, o: al.bfs(w.edges, o), ""),
    "pagerank.rounds": (lambda w, o: al.pagerank(w.edges, rounds=o), "zero none"),
    "pagerank.damping": (lambda w, o: al.pagerank(w.edges, damping=o), "zero"),
    "k_core.k": (lambda w, o: al.k_core(w.edges, o), "zero huge"),
    "round": (lambda w, o: w.rows.group_by("b").agg(x=rr.mean("a").round(o)), "true zero"),
    "cast": (lambda w, o: w.rows.group_by("b").agg(x=rr.mean("a").cast(o)), "class"),
}


def refusal(give, argument):
    """Our error, if there is one; any other is a defect, and rises."""
    try:
        give(Written(), argument)
    except rr.RiverrunError as error:
        return error
    return None


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_odd_argument(name):
    give, taken = ARGUMENTS[name]
    for odd, argument in ODD.items():
        refused = refusal(give, argument)
        assert (refused is None) == (odd in taken.split()), (name, odd, str(refused))
        assert refused is None or refused.hint, (name, odd, str(refused))


def test_odd_names_of_inputs_and_outputs():
    flow = rr.Dataflow("odd")
    flow.output("made", flow.input("rows", SCHEMA))
    with flow.run() as run:
        run.commit()
        giving = [lambda o, act=act: act(o, []) for act in (run.insert, run.delete, run.upsert)]
        reading = [run.read, run.changes, run.schema, flow.schema]
        for act in [*giving, *reading]:
            for odd, argument in ODD.items():
                with pytest.raises(rr.RiverrunError) as refused:
                    act(argument)
                assert refused.value.hint, odd
