"""Pregel programs against a machine of a few lines that runs every vertex in every superstep."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import polars as pl
import pytest

import riverrun as rr
from riverrun.graphs import Graph, pregel
from riverrun.testing import once
from tests.algorithms import reference
from tests.algorithms.changing import CASES, check

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-workers-seed-{case[1]}")


def supersteps(start, edges, vertex, send, combine, rounds):
    """The values of the nodes: `send(value, edge)` makes a message or None, `vertex(value, heard, all values)` the next
    value of a node that has heard something, or None."""
    values = dict(start)
    for _ in range(rounds):
        heard = defaultdict(list)
        for edge in edges:
            message = send(values[edge[0]], edge)
            if message is not None:
                heard[edge[1]].append(message)
        after = {
            node: vertex(value, combine(heard[node]) if heard[node] else None, values)
            for node, value in values.items()
        }
        if after == values:
            break
        values = after
    return values


def bag(graph):
    return list(graph.edges.elements())


# -- paths, until nothing changes


def distances(edges, nodes, sources, **options):
    start = sources.distinct().select("node", far=pl.lit(0, pl.Int64))
    start = start.concat(nodes.select("node", far=pl.lit(None, pl.Int64)))
    return pregel(
        Graph(start, edges),
        vertex={"far": pl.min_horizontal("far", "heard")},
        send={"far": pl.col("far") + pl.col("weight")},
        combine={"heard": rr.min("far")},
        **options,
    )


@cases
@pytest.mark.parametrize("mode", ["differential", "arrays"])
def test_distances(case, mode):
    def expected(graph):
        sources = {node for (node,) in graph.sources}
        found = reference.shortest_paths(graph.weights, sources)
        return dict.fromkeys(graph.everyone | sources) | found

    check(lambda *rows: distances(*rows, mode=mode), expected, case)


# -- ranks, for a number of rounds


def ranks(edges, nodes, _, **options):
    return pregel(
        Graph(nodes, edges).with_out_degrees().with_values(rank=pl.lit(1.0)),
        vertex={"rank": 0.15 + 0.85 * pl.col("heard").fill_null(0.0)},
        send={"part": pl.col("rank") / pl.col("out_degree")},
        combine={"heard": rr.sum("part")},
        rounds=5,
        **options,
    )


@cases
def test_ranks(case):
    def expected(graph):
        edges = bag(graph)
        degree = defaultdict(int)
        for src, _, _ in edges:
            degree[src] += 1
        return {
            node: float(rank)
            for node, rank in supersteps(
                dict.fromkeys(graph.everyone, Fraction(1)),
                edges,
                lambda value, heard, _: Fraction(15, 100) + Fraction(85, 100) * (heard or 0),
                lambda value, edge: value / degree[edge[0]],
                sum,
                5,
            ).items()
        }

    check(ranks, expected, case, near=1e-12)


def test_programs_that_add_up_run_on_arrays():
    flow = rr.Dataflow("arrays")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64, "weight": pl.Int64})
    nodes = flow.input("nodes", {"node": pl.Int64})
    flow.output("ranks", ranks(edges, nodes, None, mode="arrays", name="ranks"))
    flow.output("far", distances(edges, nodes, nodes))
    explained = flow.explain()
    assert "ranks:pull " in explained
    assert "its rounds add nothing up" in explained


# -- a function of frames, several messages of an edge, aggregators, kept values


def votes(edges, nodes, sources, vertex):
    """Every node counts what it hears from nodes of a greater score, and loses a point for every ten of all scores."""
    start = nodes.concat(sources).distinct().select("node", name="node", score=pl.lit(3, pl.Int64))
    return pregel(
        Graph(start, edges).with_values(
            name=pl.col("name").cast(pl.String), score=pl.col("score").fill_null(1)
        ),
        vertex,
        send={
            "gift": pl.when(pl.col("weight") % 2 == 0).then(pl.col("score") % 3),
            "marked": pl.col("weight"),
        },
        combine={"gifts": rr.sum("gift"), "most": rr.max("marked"), "n": rr.count("gift")},
        aggregators={"total": rr.sum("score"), "all": rr.count()},
        rounds=4,
    )


AS_EXPRESSIONS = {
    "score": pl.col("gifts").fill_null(0)
    + pl.col("n")
    + pl.col("most").fill_null(-1) % 2
    + (pl.col("total") // pl.col("all").cast(pl.Int64))
    + pl.col("score") % 2
}


def as_frames(frame):
    return frame.select("node", "name", score=AS_EXPRESSIONS["score"])


@cases
@pytest.mark.parametrize("vertex", [AS_EXPRESSIONS, as_frames], ids=["expressions", "frames"])
def test_aggregators_kept_values_and_functions(case, vertex):
    def expected(graph):
        everyone = graph.everyone | {node for (node,) in graph.sources}
        listed = {node for (node,) in graph.nodes} | {node for (node,) in graph.sources}

        def step(score, heard, scores):
            gifts, n, most = heard or (0, 0, -1)
            return gifts + n + most % 2 + sum(scores.values()) // len(scores) + score % 2

        def combined(heard):
            gifts = [score % 3 for score, weight in heard if weight % 2 == 0]
            return sum(gifts), len(gifts), max(weight for _, weight in heard)

        scores = supersteps(
            {node: 3 if node in listed else 1 for node in everyone},
            bag(graph),
            step,
            lambda score, edge: (score, edge[2]),
            combined,
            4,
        )
        return [
            (node, str(node) if node in listed else None, score) for node, score in scores.items()
        ]

    check(lambda e, n, s: votes(e, n, s, vertex), expected, case)


def test_what_is_null_is_not_sent_and_a_program_without_messages_ends():
    found = once(
        lambda edges: pregel(
            Graph(None, edges).with_values(seen=pl.lit(0, pl.Int64)),
            vertex={"seen": pl.col("n")},
            send={"one": pl.when(pl.col("src") > 1).then(1)},
            combine={"n": rr.count("one")},
            patience=3,
        ),
        edges=[{"src": 1, "dst": 2}, {"src": 2, "dst": 3}],
    )
    assert found.rows() == [(1, 0), (2, 0), (3, 1)]


@pytest.mark.parametrize(
    "values",
    [[True, False, None], ["x", "y", None], [[1, 2], [], None], [1.5, float("nan"), None]],
    ids=["flags", "text", "lists", "floats"],
)
def test_values_of_any_type_are_kept(values):
    nodes = pl.DataFrame({"node": [1, 2, 3], "kept": values, "n": [0, 0, 0]})
    edges = pl.DataFrame({"src": [1, 2], "dst": [2, 3]})
    found = once(
        lambda edges, nodes: pregel(
            Graph(nodes, edges),
            vertex={"n": pl.col("n") + pl.col("heard")},
            send={"one": pl.lit(1)},
            combine={"heard": rr.count("one")},
            rounds=2,
        ),
        edges=edges,
        nodes=nodes,
    )
    assert found.to_polars().sort("node")["n"].to_list() == [0, 2, 2]
    assert str(found.to_polars().sort("node")["kept"].to_list()) == str(values)


PLAIN = {"vertex": {"age": "heard"}, "send": {"a": "age"}, "combine": {"heard": rr.max("a")}}
WRONG = {
    "no graph": ({}, lambda w, p: p, "plan.algorithm", "as graph of pregel"),
    "no values": ({}, lambda w, p: Graph(None, p), "plan.pregel", "have no values"),
    "nothing sent": ({"send": {}}, Graph, "plan.pregel", "send has no columns"),
    "sent as a list": ({"send": ["age"]}, Graph, "plan.pregel", "send is a list"),
    "rows counted": ({"combine": {"n": rr.count()}}, Graph, "plan.pregel", "into 'n'"),
    "the first": ({"combine": {"n": rr.first("a", by="a")}}, Graph, "plan.pregel", "into 'n'"),
    "by Polars": ({"combine": {"n": pl.col("a").median()}}, Graph, "plan.pregel", "into 'n'"),
    "a name twice": ({"combine": {"age": rr.max("a")}}, Graph, "plan.pregel", "'age' has the name"),
    "an aggregator's name": (
        {"aggregators": {"heard": rr.max("age")}}, Graph, "plan.pregel", "'heard' has the name"
    ),
    "another value": ({"vertex": {"size": "heard"}}, Graph, "plan.pregel", "computes 'size'"),
    "no vertex": ({"vertex": 3}, Graph, "plan.pregel", "vertex is an int"),
    "an end in a message": ({"send": {"dst": "age"}}, Graph, "plan.pregel", "column 'dst'"),
    "no such value sent": ({"send": {"a": "aeg"}}, Graph, "plan.column_unknown", "'aeg'"),
    "no such message": ({"combine": {"n": rr.max("b")}}, Graph, "plan.column_unknown", "'b'"),
    "no such column": ({"vertex": {"age": pl.col("hared")}}, Graph, "plan.column_unknown", "hared"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "graph", "code", "words"), WRONG.values(), ids=WRONG)
def test_wrong_programs_are_refused_in_the_users_words(given, graph, code, words):
    flow = rr.Dataflow("graph")
    paid = flow.input("paid", {"src": pl.Int64, "dst": pl.Int64})
    who = flow.input("who", {"node": pl.Int64, "age": pl.Int64})
    with pytest.raises(rr.PlanError) as refused:
        pregel(graph(who, paid), **(PLAIN | given))
    assert refused.value.code == code, refused.value
    assert words in str(refused.value)
    assert refused.value.fields["line"].startswith("test_pregel.py:")
