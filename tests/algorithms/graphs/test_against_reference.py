"""Every algorithm, on graphs that change at random, against a reference of a few lines."""

from __future__ import annotations

import pytest

from riverrun import graphs
from tests.algorithms import reference
from tests.algorithms.changing import CASES, check

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-workers-seed-{case[1]}")


@cases
@pytest.mark.parametrize("prioritised", [None, False])
def test_components(case, prioritised):
    check(
        lambda edges, nodes, _: graphs.components(edges, nodes, prioritised=prioritised),
        lambda graph: reference.components(graph.everyone, graph.links),
        case,
    )


@cases
def test_strongly_connected_components(case):
    check(
        lambda edges, nodes, _: graphs.strongly_connected_components(edges, nodes),
        lambda graph: reference.strongly_connected_components(graph.everyone, graph.links),
        case,
    )


@cases
def test_bfs(case):
    check(
        lambda edges, _, sources: graphs.bfs(edges, sources),
        lambda graph: reference.bfs(graph.links, {node for (node,) in graph.sources}),
        case,
    )


@cases
@pytest.mark.parametrize("weight", [int, lambda n: n / 7], ids=["whole", "float"])
def test_shortest_paths(case, weight):
    check(
        lambda edges, _, sources: graphs.shortest_paths(edges, sources),
        lambda graph: reference.shortest_paths(graph.weights, {node for (node,) in graph.sources}),
        case,
        weight=weight,
    )


@cases
def test_pagerank(case):
    check(
        lambda edges, nodes, _: graphs.pagerank(edges, nodes, rounds=7, damping=0.8),
        lambda graph: reference.pagerank(graph.everyone, graph.links, 7, 0.8),
        case,
        near=1e-9,
    )


@cases
@pytest.mark.parametrize("mode", ["differential", "rounds"])
def test_label_propagation(case, mode):
    check(
        lambda edges, nodes, _: graphs.label_propagation(edges, nodes, rounds=4, mode=mode),
        lambda graph: reference.label_propagation(graph.everyone, graph.links, 4),
        case,
    )


@cases
def test_triangles(case):
    check(
        lambda edges, _, __: graphs.triangles(edges),
        lambda graph: reference.triangles(graph.everyone, graph.links),
        case,
    )


@cases
def test_triangle_counts(case):
    check(
        lambda edges, nodes, _: graphs.triangle_counts(edges, nodes),
        lambda graph: reference.triangle_counts(graph.everyone, graph.links),
        case,
    )


@cases
@pytest.mark.parametrize("directed", [True, False])
def test_clustering_coefficient(case, directed):
    def expected(graph):
        links = graph.links if directed else reference.both_ways(graph.links)
        return reference.clustering_coefficient(graph.everyone, links)

    check(
        lambda edges, nodes, _: graphs.clustering_coefficient(edges, nodes, directed=directed),
        expected,
        case,
    )


@cases
@pytest.mark.parametrize("k", [2, 3])
def test_k_core(case, k):
    check(
        lambda edges, _, __: graphs.k_core(edges, k),
        lambda graph: reference.k_core(graph.everyone, graph.links, k),
        case,
    )
