"""Adaptive PageRank: within its stated bound of the limit of PageRank, whatever comes and goes."""

from __future__ import annotations

import random

import numpy as np
import polars as pl
import pytest

import riverrun as rr
from riverrun.graphs import adaptive_pagerank
from tests.algorithms.changing import changes

ROUNDING = 1e-12


def limit(nodes, links, damping=0.85):
    """The limit of PageRank, from a system of linear equations."""
    names = sorted(nodes)
    at = {name: number for number, name in enumerate(names)}
    n = len(names)
    follow = np.zeros((n, n))
    for src, dst in links:
        follow[at[dst], at[src]] = 1.0
    degree = follow.sum(axis=0)
    follow = np.where(degree > 0, follow / np.where(degree > 0, degree, 1.0), 1.0 / max(n, 1))
    found = np.linalg.solve(np.eye(n) - damping * follow, np.full(n, (1 - damping) / max(n, 1)))
    return dict(zip(names, found.tolist(), strict=True))


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(("tolerance", "kind"), [(1e-2, pl.String), (1e-7, pl.Int64)])
def test_within_the_tolerance_of_the_limit(workers, tolerance, kind):
    flow = rr.Dataflow("ranks")
    edges = flow.input("edges", {"src": kind, "dst": kind, "weight": pl.Int64})
    nodes = flow.input("nodes", {"node": kind})
    for name, normalised in (("ranks", True), ("plain", False)):
        ranks = adaptive_pagerank(edges, nodes, tolerance=tolerance, normalised=normalised)
        flow.output(name, ranks)
    with flow.run(workers=workers, seed=workers) as run:
        for graph, commands in changes(30 + workers, kind):
            for name in ("edges", "nodes"):
                run.insert(name, commands[name][0])
                run.delete(name, commands[name][1])
            run.commit()
            exact = limit(graph.everyone, graph.links)
            found = dict(run.read("ranks").rows())
            plain = dict(run.read("plain").rows())
            assert found.keys() == plain.keys() == exact.keys()
            off = sum(abs(found[node] - exact[node]) for node in exact)
            assert off <= tolerance + ROUNDING
            total = sum(plain.values())
            assert total >= len(exact) * (1 - tolerance)
            assert found == pytest.approx({n: rank / total for n, rank in plain.items()}, abs=1e-12)


def test_the_bound_is_not_far_from_the_truth():
    """With a large tolerance ranks are off, so the test above could fail."""
    found, exact = _random_ranks(0.2)
    assert 1e-4 < sum(abs(found[node] - exact[node]) for node in exact) <= 0.2


def test_the_same_bits_for_every_number_of_workers():
    assert len({tuple(_random_ranks(1e-4, workers)[0].items()) for workers in (1, 2, 3, 4)}) == 1


def _random_ranks(tolerance, workers=1):
    chance = random.Random(9)
    edges = [(chance.randrange(60), chance.randrange(60)) for _ in range(200)]
    flow = rr.Dataflow("ranks")
    given = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    flow.output("ranks", adaptive_pagerank(given, tolerance=tolerance))
    with flow.run(workers=workers, seed=workers) as run:
        for half in (edges[:90], edges[90:]):
            run.insert("edges", half)
            run.commit()
        found = dict(run.read("ranks").rows())
    return found, limit({end for edge in edges for end in edge}, set(edges))


def test_a_change_reaches_the_nodes_that_hear_of_it_alone():
    """Two parts of a graph: a change in one leaves the plain ranks of the other."""
    flow = rr.Dataflow("ranks")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    flow.output("ranks", adaptive_pagerank(edges, normalised=False))
    chance = random.Random(4)
    parts = [
        [(p + chance.randrange(30), p + chance.randrange(30)) for _ in range(90)] for p in (0, 100)
    ]
    with flow.run() as run:
        run.insert("edges", parts[0] + parts[1])
        run.commit()
        run.insert("edges", [(3, 31)])
        run.commit()
        changed = {row[0] for row in run.changes("ranks").rows()}
    assert changed
    assert max(changed) < 100


@pytest.mark.parametrize(
    "wrong",
    [{"damping": 1}, {"damping": 2.0}, {"tolerance": 0}, {"tolerance": 1}, {"tolerance": "small"}],
)
def test_what_has_no_bound_is_refused(wrong):
    edges = rr.Dataflow("ranks").input("edges", {"src": pl.Int64, "dst": pl.Int64})
    with pytest.raises(rr.PlanError) as refused:
        adaptive_pagerank(edges, **wrong)
    assert refused.value.code == "plan.algorithm"
