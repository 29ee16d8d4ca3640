"""`rr.graphs.Graph`: nodes with values, edges, and the steps between them."""

from __future__ import annotations

import random
import re
from collections import Counter
from datetime import date
from pathlib import Path

import polars as pl
import pytest

import riverrun as rr
from riverrun.graphs import Graph
from riverrun.testing import once
from tests.algorithms import reference
from tests.algorithms.changing import CASES, check

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-workers-seed-{case[1]}")
EDGES = {"src": pl.Int64, "dst": pl.Int64, "weight": pl.Float64}


def components(edges, nodes=None, _=None):
    graph = Graph(nodes, edges).undirected().with_values(label="node")
    return graph.iterate(lambda g: g.aggregate(g.join(), also=g.nodes, label=rr.min("label")))


def distances(edges, _, sources):
    graph = Graph(None, edges)
    start = sources.select("node", distance=pl.lit(0, edges.polars_schema["weight"])).distinct()

    def step(near):
        sent = near.join().select("dst", distance=pl.col("distance") + pl.col("weight"))
        return near.aggregate(sent, also=near.nodes, distance=rr.min("distance"))

    return graph.iterate(step, start=start)


def ranks(edges, nodes, _=None):
    graph = Graph(nodes, edges).with_out_degrees()
    base = graph.nodes.select("node", part=pl.lit(0.15))

    def step(graph):
        sent = graph.join().select("dst", part=0.85 * pl.col("rank") / pl.col("out_degree"))
        return graph.aggregate(sent, also=base, rank=rr.sum("part"))

    return graph.with_values(rank=pl.lit(1.0)).iterate(step, rounds=6)


def ranks_of(graph):
    """The ranks of a bag of edges in a few lines."""
    pairs = Counter({})
    for (src, dst, _), times in graph.edges.items():
        pairs[src, dst] += times
    degree = Counter()
    for (src, _), times in pairs.items():
        degree[src] += times
    rank = dict.fromkeys(graph.everyone, 1.0)
    for _ in range(6):
        heard = dict.fromkeys(rank, 0.15)
        for (src, dst), times in pairs.items():
            heard[dst] += times * 0.85 * rank[src] / degree[src]
        rank = heard
    return rank


@cases
def test_components(case):
    check(components, lambda g: reference.components(g.everyone, g.links), case)


@cases
@pytest.mark.parametrize("weight", [int, lambda n: n / 4], ids=["whole", "float"])
def test_distances(case, weight):
    check(
        distances,
        lambda g: reference.shortest_paths(g.weights, {node for (node,) in g.sources}),
        case,
        weight=weight,
    )


@cases
def test_ranks(case):
    check(ranks, ranks_of, case, near=1e-12)


@pytest.mark.parametrize(
    ("program", "way"), [(components, "spread"), (distances, "spread"), (ranks, "pull")]
)
def test_steps_along_edges_run_on_arrays(program, way):
    flow = rr.Dataflow("arrays")
    edges, nodes = flow.input("edges", EDGES), flow.input("nodes", {"node": pl.Int64})
    flow.output("found", program(edges, nodes, nodes))
    assert f":{way} " in flow.explain()
    assert "differential" not in flow.explain()


def test_pagerank_is_nine_lines_and_runs_on_arrays():
    """The program of docs/graphs.md, as it stands there."""
    page = (Path(__file__).parents[2] / "docs" / "graphs.md").read_text()
    (program,) = re.findall(r"```python\n(def pagerank\(.*?)```", page, re.DOTALL)
    assert len([line for line in program.splitlines() if line.strip()]) == 9
    names: dict = {"pl": pl, "rr": rr}
    exec(program, names)
    flow = rr.Dataflow("nine")
    edges, nodes = flow.input("edges", EDGES), flow.input("nodes", {"node": pl.Int64})
    flow.output("ranks", names["pagerank"](nodes, edges))
    assert ":pull " in flow.explain()
    assert "differential" not in flow.explain()
    with flow.run() as run:
        run.insert("nodes", [(9,)])
        run.insert("edges", [(1, 2, 0.0), (2, 1, 0.0), (1, 1, 0.0)])
        run.commit()
        found = dict(run.read("ranks").rows())
    assert found[9] == 0.15
    assert found[1] == pytest.approx(0.15 + 0.85 * (found[1] / 2 + found[2]), abs=0.1)
    assert found[1] > found[2] > found[9]


@cases
@pytest.mark.parametrize("which", ["out_degrees", "in_degrees", "degrees"])
def test_degrees(case, which):
    def expected(graph):
        counts = dict.fromkeys(graph.everyone, 0)
        for (src, dst, _), times in graph.edges.items():
            counts[src] += times * (which != "in_degrees")
            counts[dst] += times * (which != "out_degrees")
        return counts

    check(lambda e, n, _: getattr(Graph(n, e), which)(), expected, case)


def test_every_node_once_and_values_before_none():
    rows = {
        "edges": [{"src": 1, "dst": 2}, {"src": 2, "dst": 3}, {"src": 1, "dst": 2}],
        "nodes": [
            {"node": 1, "a": None, "b": "x"},
            {"node": 3, "a": 5, "b": None},
            {"node": 3, "a": 4, "b": "y"},
            {"node": 9, "a": None, "b": None},
        ],
    }
    found = once(lambda edges, nodes: Graph(nodes, edges).nodes, **rows).rows()
    assert found == [(1, None, "x"), (2, None, None), (3, 4, "y"), (9, None, None)]


@pytest.mark.parametrize(
    ("kind", "node"),
    [
        (pl.String, lambda n: "node" * n),
        (pl.Date, lambda n: date(2024, 2, 1 + n)),
        (pl.UInt8, lambda n: 250 + n),
        (pl.Boolean, lambda n: n % 2 == 0),
        (pl.Float64, lambda n: n / 3),
    ],
    ids=lambda given: "" if callable(given) and not isinstance(given, type) else str(given),
)
@pytest.mark.parametrize("program", [components, ranks])
def test_nodes_of_any_type(program, kind, node):
    pairs = [(1, 2), (2, 3), (4, 4), (5, 4)]
    named = pl.DataFrame(
        [(node(a), node(b)) for a, b in pairs], {"src": kind, "dst": kind}, orient="row"
    )
    names = sorted({*named["src"], *named["dst"]})
    number = {name: at for at, name in enumerate(names)}
    plain = [{"src": number[a], "dst": number[b]} for a, b in named.rows()]
    found = once(lambda edges: program(edges, None), edges=named).rows()
    numbered = once(lambda edges: program(edges, None), edges=plain).rows()
    of_nodes = program is components
    assert found == [(names[a], names[b] if of_nodes else b) for a, b in numbered]


def test_a_value_called_as_a_column_of_the_edges_gets_the_suffix():
    edges, nodes = [{"src": 1, "dst": 2, "w": 7}], [{"node": 1, "w": 3}, {"node": 2, "w": 4}]
    for by, expected in (("src", 3), ("dst", 4)):
        rows = once(
            lambda edges, nodes, by=by: Graph(nodes, edges).join(by), edges=edges, nodes=nodes
        )
        assert rows.to_dicts() == [{"src": 1, "dst": 2, "w": 7, "w_node": expected}]


def test_a_join_makes_the_edges_of_another_graph():
    """How far each friend is in years: the ages of both ends, from two joins."""

    def years(edges, ages):
        graph = Graph(ages, edges)
        both = graph.with_edges(graph.join("src")).join("dst", suffix="_friend")
        return both.select("src", "dst", years=(pl.col("age") - pl.col("age_friend")).abs())

    rows = once(
        years,
        edges=[{"src": "ann", "dst": "bob"}, {"src": "bob", "dst": "eve"}],
        ages=[{"node": "ann", "age": 40}, {"node": "bob", "age": 50}, {"node": "eve", "age": 55}],
    )
    assert rows.rows() == [("ann", "bob", 10), ("bob", "eve", 5)]


def test_reverse_and_undirected():
    edges = [{"src": 1, "dst": 2, "w": 5}, {"src": 3, "dst": 3, "w": 6}]
    back = once(lambda edges: Graph(None, edges).reverse().edges, edges=edges)
    assert back.rows() == [(2, 1, 5), (3, 3, 6)]
    both = once(lambda edges: Graph(None, edges).undirected().edges, edges=edges)
    assert both.rows() == [(1, 2, 5), (2, 1, 5), (3, 3, 6), (3, 3, 6)]


def test_ranks_are_the_same_to_the_last_bit_for_every_number_of_workers():
    chance = random.Random(5)
    edges = [(chance.randrange(40), chance.randrange(40), 1.0) for _ in range(150)]
    found = []
    for workers in (1, 2, 3, 4):
        flow = rr.Dataflow("ranks")
        flow.output("ranks", ranks(flow.input("edges", EDGES), None))
        with flow.run(workers=workers, seed=workers) as run:
            run.insert("edges", edges[:100])
            run.commit()
            run.delete("edges", edges[20:30])
            run.insert("edges", edges[100:])
            run.commit()
            found.append(run.read("ranks").rows())
    assert found[0] == found[1] == found[2] == found[3] != []


WRONG = {
    "no dst": (lambda p, w: Graph(None, w), "plan.column_unknown", "'who': column 'src'"),
    "no node": (lambda p, w: Graph(p, p), "plan.column_unknown", "'paid': column 'node'"),
    "no edges": (lambda p, w: Graph(w, None), "plan.algorithm", "a NoneType as edges of Graph"),
    "edges first": (lambda p, w: Graph([1], p), "plan.algorithm", "a list as nodes of Graph"),
    "no such end": (lambda p, w: Graph(w, p).join("to"), "plan.end_of_edge", "by 'to'"),
    "no such value": (lambda p, w: Graph(w, p).with_values("ag"), "plan.column_unknown", "'age'"),
    "rows without the end": (
        lambda p, w: Graph(w, p).aggregate(w, n=rr.count()), "plan.column_unknown", "'dst'"
    ),
    "rows that are none": (
        lambda p, w: Graph(w, p).aggregate("dst", n=rr.count()), "plan.algorithm", "as rows of Graph.aggregate"
    ),
    "more rows without a node": (
        lambda p, w: Graph(w, p).aggregate(p, also=p, n=rr.count()), "plan.column_unknown", "'node'"
    ),
    "a start without a node": (
        lambda p, w: Graph(w, p).iterate(lambda g: g.nodes, start=p), "plan.column_unknown", "'node'"
    ),
    "a step of two": (
        lambda p, w: Graph(w, p).iterate(lambda a, b: a), "plan.loop_body", "does not take one argument"
    ),
    "no step": (lambda p, w: Graph(w, p).iterate(7), "plan.function", "7"),
    "a step that gives a graph": (
        lambda p, w: Graph(w, p).iterate(lambda g: g), "plan.loop_open", "not a collection"
    ),
    "other edges without ends": (
        lambda p, w: Graph(w, p).with_edges(w), "plan.column_unknown", "'src'"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "code", "words"), WRONG.values(), ids=WRONG)
def test_wrong_graphs_are_refused_in_the_users_words(wrong, code, words):
    flow = rr.Dataflow("graph")
    paid = flow.input("paid", {"src": pl.Int64, "dst": pl.Int64})
    who = flow.input("who", {"node": pl.Int64, "age": pl.Int64})
    with pytest.raises(rr.PlanError) as refused:
        wrong(paid, who)
    assert refused.value.code == code, refused.value
    assert words in str(refused.value)
    assert refused.value.fields["line"].startswith("test_graph_values.py:")


def test_a_null_node_refuses_the_epoch():
    flow = rr.Dataflow("graph")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    flow.output("degrees", Graph(None, edges).degrees())
    with flow.run() as run:
        run.insert("edges", [(1, None)])
        with pytest.raises(
            rr.RiverrunError, match="edges of Graph: 1 of 1 rows have null in 'dst'"
        ):
            run.commit()
