"""Loops that look like loops on arrays, and are not quite: with ``mode="auto"`` all give what they give otherwise."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr

INT, c, INF = pl.Int64, pl.col, float("inf")
EDGES = {"src": INT, "dst": INT, "w": INT}
NODES = {"node": INT, "d": INT}
CHAIN = ((1, 2, 1), (2, 3, 1), (3, 4, 1))


def joined(rows, edges):
    return rows.join(edges, left_on="node", right_on="src")


def further(pairs):
    return pairs.select(node="dst", d=c("d") + c("w"))


def least(send, own=None, best=rr.min):
    """A loop that takes the best of the rows of the round and of those that are sent."""

    def program(edges, nodes, mode):
        def body(rows):
            kept = rows if own is None else own(nodes)
            return kept.concat(send(rows, edges, nodes)).group_by("node").agg(d=best("d"))

        return nodes.iterate(body, mode=mode)

    return program


def delta(workset, send=lambda rows, edges: further(joined(rows, edges)), **options):
    def program(edges, nodes, mode):
        better = rr.loops.least("d")
        return nodes.iterate_delta(
            workset(edges, nodes),
            key="node",
            send=lambda rows: send(rows, edges),
            better=better,
            mode=mode,
            **options,
        )

    return program


@dataclass(frozen=True)
class Case:
    program: Callable[..., Any]
    edges: tuple[Any, ...] = CHAIN
    nodes: tuple[Any, ...] = ((1, 0),)
    edge_schema: Any = field(default_factory=lambda: EDGES)
    node_schema: Any = field(default_factory=lambda: NODES)


def top_by_two(edges, nodes, mode):
    def body(rows):
        own = rows.select("node", a=pl.lit(5, INT), b="d")
        sent = joined(rows, edges).select(node="dst", a="w", b="d")
        best = own.concat(sent).group_by("node").top(1, by=["a", "b"], descending=False)
        return best.select("node", d="b")

    return nodes.iterate(body, mode=mode)


def joined_twice(rows, edges, nodes):
    both = rows.select(x="node", y="node", d="d")
    return both.join(edges, left_on=["x", "y"], right_on=["src", "w"]).select(node="dst", d="d")


def key_given_twice(edges, nodes, mode):
    start = nodes.select(a="node", b="node", v="d")

    def body(rows):
        sent = rows.join(edges, left_on="a", right_on="src")
        moved = sent.select(a="dst", b="w", v="v")
        best = rows.concat(moved).group_by("a", "b").agg(v=rr.min("v"))
        return best.select(a="a", b="a", v="v")

    return start.iterate(body, mode=mode, rounds=3)


ENUM = pl.Enum(["b", "a"])
NOT_NULL = pa.schema(
    [
        pa.field("src", pa.int64()),
        pa.field("dst", pa.int64()),
        pa.field("w", pa.int64(), nullable=False),
    ]
)
NODES_NOT_NULL = pa.schema(
    [pa.field("node", pa.int64()), pa.field("d", pa.int64(), nullable=False)]
)
FLOAT_EDGES, FLOAT_NODES = {**EDGES, "w": pl.Float64}, {"node": INT, "d": pl.Float64}

CASES = {
    "a workset that is the solution": Case(
        delta(lambda edges, nodes: nodes), nodes=((1, 0), (2, 99))
    ),
    "an empty workset": Case(delta(lambda edges, nodes: nodes.filter(c("d") > 50))),
    "a workset along other edges": Case(
        delta(
            lambda edges, nodes: further(joined(nodes, edges.filter(c("src") > 1))), missing="add"
        )
    ),
    "a null key in the workset": Case(
        delta(lambda edges, nodes: further(joined(nodes, edges))),
        edges=((1, None, 2),),
        nodes=((1, 0), (None, 50)),
    ),
    "columns by type": Case(
        least(lambda r, e, n: further(joined(r, e).filter(pl.sum_horizontal(c(INT)) > 5))),
        nodes=((1, 4),),
    ),
    "columns by name, all of them": Case(
        least(lambda r, e, n: further(joined(r, e).filter(pl.all_horizontal(c("d", "w") < 3))))
    ),
    "a literal of a type of its own": Case(
        least(
            lambda r, e, n: (
                joined(r, e)
                .with_columns(x=pl.lit(100))
                .select(node="dst", d=c("d") + c("w") * c("x"))
            )
        ),
        edges=((1, 2, 2),),
        edge_schema={**EDGES, "w": pl.Int8},
    ),
    "the best row by two columns": Case(top_by_two, nodes=((1, 9), (2, 3))),
    "the key joined twice": Case(least(joined_twice), edges=((1, 2, 1), (1, 3, 2))),
    "the key given twice": Case(key_given_twice),
    "rows that cancel rows of the start": Case(
        least(
            lambda r, e, n: further(joined(r, e)).concat(n.filter(c("node") == 3).negate()),
            own=lambda nodes: nodes,
        ),
        edges=((1, 2, 1),),
        nodes=((1, 0), (3, 0)),
    ),
    "names of fields": Case(
        least(
            lambda r, e, n: (
                joined(r, e)
                .rename({"w": "v", "v": "w"})
                .select(node="dst", d=c("d") + pl.struct("v", "w").struct.field("v"))
            )
        ),
        edges=((1, 2, 1, 100),),
        edge_schema={**EDGES, "v": INT},
    ),
    "a field under another name": Case(
        least(
            lambda r, e, n: further(
                joined(r, e).with_columns(q="w").filter(pl.struct("q").struct.field("q") > 0)
            )
        )
    ),
    "keys of an enum": Case(
        least(lambda r, e, n: further(joined(r, e))),
        edges=(("a", "b", 1),),
        nodes=(("a", 0),),
        edge_schema={"src": ENUM, "dst": ENUM, "w": INT},
        node_schema={"node": ENUM, "d": INT},
    ),
    "a Python function": Case(
        least(
            lambda r, e, n: further(
                joined(r, e).filter(c("w").map_elements(partial(operator.lt, 0), pl.Boolean))
            )
        )
    ),
    "an infinite literal": Case(least(lambda r, e, n: further(joined(r, e).filter(c("w") < INF)))),
    "a condition that is no expression": Case(
        least(lambda r, e, n: further(joined(r, e).filter(True)))
    ),
    "a cast that fails elsewhere": Case(
        least(lambda r, e, n: joined(r, e).select(node="dst", d=c("d") + c("w").cast(INT))),
        edges=((1, 2, "1"), (9, 9, "x")),
        edge_schema={**EDGES, "w": pl.String},
    ),
    "the greatest of infinite floats": Case(
        least(lambda r, e, n: further(joined(r, e)), best=rr.max),
        edges=((1, 2, INF), (2, 1, 0.0)),
        nodes=((1, -INF), (2, 0.0)),
        edge_schema=FLOAT_EDGES,
        node_schema=FLOAT_NODES,
    ),
    "the smaller of two, and a null": Case(
        least(
            lambda r, e, n: (
                joined(r, e)
                .select(node="dst", d=pl.min_horizontal("d", "w"))
                .concat(e.select(node="src", d=pl.when(c("src") != 7).then(c("w"))))
            )
        ),
        edges=((1, 2, 3), (7, 8, 4)),
        nodes=((1, 5),),
        edge_schema=NOT_NULL,
        node_schema=NODES_NOT_NULL,
    ),
    "one group of all": Case(
        lambda edges, nodes, mode: nodes.select("d").iterate(
            lambda rows: (
                rows.concat(
                    rows.join(edges.select("w"), how="cross").select(
                        d=pl.max_horizontal(c("d"), c("w"))
                    )
                )
                .group_by()
                .agg(d=rr.min("d"))
            ),
            mode=mode,
        ),
        nodes=((1, 4),),
    ),
}


def answer(case: Case, mode: str, workers: int) -> list[Any]:
    flow = rr.Dataflow("look-alike")
    edges, nodes = flow.input("edges", case.edge_schema), flow.input("nodes", case.node_schema)
    flow.output("result", case.program(edges, nodes, mode))
    answers = []
    with flow.run(workers=workers) as run:
        run.insert("edges", list(case.edges))
        run.insert("nodes", list(case.nodes))
        run.commit()
        answers.append(repr(run.read("result").rows()))
        run.delete("edges", [case.edges[0]])
        run.commit()
        answers.append(repr(run.read("result").rows()))
    return answers


@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_that_of_the_differential_loop(name: str) -> None:
    case = CASES[name]
    assert answer(case, "auto", 1) == answer(case, "differential", 2)


def test_a_body_that_doubles_is_refused_soon() -> None:
    flow = rr.Dataflow("doubling")
    nodes = flow.input("nodes", NODES)

    def body(rows: rr.Collection) -> rr.Collection:
        for _ in range(16):
            rows = rows.concat(rows.rename({"d": "q"}).rename({"q": "d"}))
        return rows.group_by("node").agg(d=rr.min("d"))

    nodes.iterate(body)
    assert "more than 32" in flow._builder.differential[1]


def test_rows_that_are_looked_at_later_are_rows_of_a_loop() -> None:
    flow = rr.Dataflow("seen")
    edges, nodes = flow.input("edges", EDGES), flow.input("nodes", NODES)
    held, seen = [], []

    def body(rows: rr.Collection) -> rr.Collection:
        held.append(rows)
        return rows.concat(further(joined(rows, edges))).group_by("node").agg(d=rr.min("d"))

    flow.output("result", nodes.iterate(body))
    held[0].inspect(lambda rows: seen.append(rows.num_rows))
    with flow.run() as run:
        run.insert("edges", list(CHAIN))
        run.insert("nodes", [(1, 0)])
        run.commit()
        assert run.read("result").rows() == [(1, 0), (2, 1), (3, 2), (4, 3)]
    assert seen
