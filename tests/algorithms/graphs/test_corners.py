"""What the docstrings promise of self loops, repeated edges, lone nodes, types, and exactness."""

from __future__ import annotations

import random
from datetime import date

import polars as pl
import pytest

import riverrun as rr
from riverrun import graphs as al
from tests.algorithms import reference

OF_NODES = ("node", "component", "label", "a", "b", "c")


def answer(algorithm, edges, nodes=(), kind=pl.Int64, sources=(), weights=False):
    """The columns and rows that an algorithm of edges, nodes and sources gives for one graph."""
    flow = rr.Dataflow("once")
    columns = {"src": kind, "dst": kind} | ({"weight": pl.Float64} if weights else {})
    inputs = [
        flow.input("edges", columns),
        flow.input("nodes", {"node": kind}),
        flow.input("sources", {"node": kind}),
    ]
    flow.output("found", algorithm(*inputs))
    with flow.run() as run:
        run.insert("edges", list(edges))
        run.insert("nodes", [(node,) for node in nodes])
        run.insert("sources", [(node,) for node in sources])
        run.commit()
        return flow.schema("found").names, run.read("found").rows()


def once(*given, **more):
    return answer(*given, **more)[1]


ALGORITHMS = {
    "components": lambda e, n, s: al.components(e, n),
    "plain components": lambda e, n, s: al.components(e, n, prioritised=False),
    "strong components": lambda e, n, s: al.strongly_connected_components(e, n),
    "bfs": lambda e, n, s: al.bfs(e, s),
    "pagerank": lambda e, n, s: al.pagerank(e, n, rounds=5),
    "labels": lambda e, n, s: al.label_propagation(e, n, rounds=3),
    "triangles": lambda e, n, s: al.triangles(e),
    "triangle counts": lambda e, n, s: al.triangle_counts(e, n),
    "clustering": lambda e, n, s: al.clustering_coefficient(e, n),
    "undirected clustering": lambda e, n, s: al.clustering_coefficient(e, n, directed=False),
    "core": lambda e, n, s: al.k_core(e, 2),
}
each = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
EDGES = [(1, 2), (2, 3), (3, 1), (3, 4), (4, 5), (5, 4), (6, 1), (2, 5)]


@each
def test_a_repeated_edge_counts_once(algorithm):
    plain = once(algorithm, EDGES, [9], sources=[1])
    assert once(algorithm, EDGES + EDGES[:5] + EDGES[:2], [9, 9, 1], sources=[1, 1]) == plain


@each
def test_only_pagerank_sees_a_self_loop(algorithm):
    plain = once(algorithm, EDGES, [9], sources=[1])
    looped = once(algorithm, [*EDGES, (1, 1), (5, 5), (9, 9)], [9], sources=[1])
    assert (looped == plain) == (algorithm is not ALGORITHMS["pagerank"])


def test_a_self_loop_is_an_edge_to_pagerank():
    edges = {*EDGES, (1, 1), (5, 5)}
    found = dict(once(ALGORITHMS["pagerank"], edges))
    assert found == pytest.approx(reference.pagerank(set(range(1, 7)), edges, 5, 0.85), abs=1e-12)


@each
def test_an_empty_graph_gives_nothing(algorithm):
    assert once(algorithm, []) == []


def test_nodes_without_edges():
    lone = [7, 8]
    found = {name: once(algorithm, [(1, 2)], lone) for name, algorithm in ALGORITHMS.items()}
    assert found["components"] == found["plain components"] == [(1, 1), (2, 1), (7, 7), (8, 8)]
    assert found["strong components"] == [(1, 1), (2, 2), (7, 7), (8, 8)]
    assert found["labels"] == [(1, 2), (2, 1), (7, 7), (8, 8)]  # after an odd number of rounds
    assert found["triangle counts"] == [(1, 0), (2, 0), (7, 0), (8, 0)]
    assert found["clustering"] == [(1, 0.0), (2, 0.0), (7, 0.0), (8, 0.0)]
    ranks = dict(found["pagerank"])
    assert ranks[1] == ranks[7] == ranks[8]
    assert sum(ranks.values()) == pytest.approx(1)


def test_a_source_without_edges_and_a_node_that_no_source_reaches():
    assert once(ALGORITHMS["bfs"], [(1, 2)], sources=[2, 9]) == [(2, 0), (9, 0)]


def test_edges_of_no_weight_may_lie_on_a_cycle():
    edges = [(1, 2, 0.0), (2, 1, 0.0), (2, 3, 0.5), (2, 3, 0.25)]
    found = once(lambda e, n, s: al.shortest_paths(e, s), edges, sources=[1], weights=True)
    assert found == [(1, 0.0), (2, 0.0), (3, 0.25)]


def test_directions_of_clustering():
    edges = [(1, 2), (2, 3), (3, 2), (1, 3)]
    assert dict(once(ALGORITHMS["clustering"], edges)) == {1: 1.0, 2: 0.5, 3: 0.5}
    assert dict(once(ALGORITHMS["undirected clustering"], edges)) == {1: 1.0, 2: 1.0, 3: 1.0}


@pytest.mark.parametrize(
    ("kind", "node"),
    [
        (pl.Int8, lambda n: n - 3),
        (pl.UInt64, lambda n: 2**63 + n),
        (pl.Float64, lambda n: n / 2),
        (pl.String, lambda n: "node" * n),
        (pl.Date, lambda n: date(2024, 2, 26 + n // 3) if n % 3 == 0 else date(1960, 1, n)),
        (pl.Boolean, lambda n: n % 2 == 0),
        (pl.Binary, lambda n: bytes([0, n])),
    ],
    ids=lambda given: "" if callable(given) and not isinstance(given, type) else str(given),
)
@each
def test_nodes_of_any_type_with_an_order(algorithm, kind, node):
    names = {n: node(n) for n in range(1, 10)}
    edges = {(names[src], names[dst]) for src, dst in EDGES}
    columns, found = answer(algorithm, edges, [names[9]], kind, sources=[names[1]])
    ordered = sorted(set(names.values()))
    number = {name: at for at, name in enumerate(ordered)}
    numbered = once(
        algorithm,
        {(number[src], number[dst]) for src, dst in edges},
        [number[names[9]]],
        sources=[number[names[1]]],
    )
    assert found == [
        tuple(
            ordered[value] if column in OF_NODES else value
            for column, value in zip(columns, row, strict=True)
        )
        for row in numbered
    ]


def test_an_algorithm_twice_in_one_flow():
    flow = rr.Dataflow("twice")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    flow.output("all", al.components(edges))
    flow.output("some", al.components(edges.filter(pl.col("src") > 1)))
    flow.output("strong", al.strongly_connected_components(edges))
    with flow.run() as run:
        run.insert("edges", [(1, 2), (2, 3)])
        run.commit()
        assert run.read("all")["component"] == [1, 1, 1]
        assert run.read("some").rows() == [(2, 2), (3, 2)]


def test_what_cannot_be_is_refused():
    flow = rr.Dataflow("refused")
    edges = flow.input("edges", {"src": pl.String, "dst": pl.String, "weight": pl.String})
    sources = flow.input("sources", {"node": pl.String})
    with pytest.raises(rr.PlanError, match="not whole numbers"):
        al.components(edges, prioritised=True)
    with pytest.raises(rr.PlanError, match="not numbers"):
        al.shortest_paths(edges, sources)


@pytest.mark.parametrize("decimals", [None, 6])
def test_ranks_are_the_same_to_the_last_bit_however_the_graph_came_about(decimals):
    chance = random.Random(7)
    edges = [(chance.randrange(30), chance.randrange(30)) for _ in range(90)]

    def ranks(e, n, s):
        return al.pagerank(e, rounds=8, decimals=decimals)

    flow = rr.Dataflow("ranks")
    flow.output("ranks", ranks(flow.input("edges", {"src": pl.Int64, "dst": pl.Int64}), None, None))
    with flow.run(workers=3, seed=7) as run:
        there: list[tuple[int, int]] = []
        for epoch in range(6):
            new = edges[epoch * 15 : epoch * 15 + 15]
            gone = chance.sample(there, len(there) // 4)
            run.insert("edges", new)
            run.delete("edges", gone)
            run.commit()
            for edge in gone:
                there.remove(edge)
            there += new
            assert run.read("ranks").rows() == once(ranks, there), f"epoch {epoch}, seed 7"
    exact = reference.pagerank({n for e in there for n in e}, set(there), 8, 0.85)
    off = [abs(rank - exact[node]) for node, rank in once(ranks, there)]
    if decimals is None:
        assert max(off) <= 1e-12
    else:
        assert 0 < sum(off) / len(off) <= 10**-decimals / (1 - 0.85)


def test_strong_components_that_hang_behind_each_other():
    """Chains of cycles and single nodes in any order of names: the outer loop needs several rounds."""
    chance = random.Random(3)
    flow = rr.Dataflow("chains")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    flow.output("found", al.strongly_connected_components(edges))
    with flow.run(workers=2, seed=3) as run:
        before: list[tuple[int, int]] = []
        for epoch in range(10):
            names = chance.sample(range(14), 14)
            links, last = [], None
            while names:
                ring = [names.pop() for _ in range(min(len(names), chance.choice((1, 1, 2, 3))))]
                links += zip(ring, ring[1:] + ring[:1], strict=True)
                links += [] if last is None else [(last, ring[-1])]
                last = ring[0]
            run.delete("edges", before)
            run.insert("edges", links)
            run.commit()
            before = links
            nodes = {end for link in links for end in link}
            expected = reference.strongly_connected_components(nodes, set(links))
            assert dict(run.read("found").rows()) == expected, f"epoch {epoch}, seed 3: {links}"
