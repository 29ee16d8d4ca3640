"""The validation graphs of LDBC Graphalytics, and the answers that come with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun import graphs

FAR = {"BFS": 9223372036854775807, "SSSP": float("inf")}
"""What LDBC writes for a node that is not reached; with us it has no row."""

LIMIT = {"test-pr-directed": 40}
"""Of this graph the answer is the limit of the ranks, not the 14th round as the settings say (off by 1e-6)."""

ROUNDED = {"test-pr-undirected": 1e-7}
"""Of this graph the answer is that of the round asked for, but for rounding; LDBC allows 1e-4."""

CASES = [
    (f"{prefix}-{kind}", name)
    for kind in ("directed", "undirected")
    for prefix, names in (
        ("example", ("BFS", "CDLP", "LCC", "PR", "SSSP", "WCC")),
        *(
            (f"test-{name.lower()}", (name,))
            for name in ("BFS", "CDLP", "LCC", "PR", "SSSP", "WCC")
        ),
    )
    for name in names
]


def settings(folder: Path, graph: str) -> dict[str, str]:
    lines = (folder / f"{graph}.properties").read_text().splitlines()
    pairs = [line.split("=", 1) for line in lines if "=" in line and not line.startswith("#")]
    return {key.strip().removeprefix(f"graph.{graph}."): value.strip() for key, value in pairs}


def rows(path: Path, *kinds: Any) -> list[tuple[Any, ...]]:
    lines = [line.split() for line in path.read_text().splitlines() if line.strip()]
    return [tuple(kind(cell) for kind, cell in zip(kinds, line, strict=False)) for line in lines]


def algorithm(
    name: str, graph: str, given: dict[str, str], inputs: dict[str, rr.Collection]
) -> rr.Collection:
    edges, nodes, sources = inputs["edges"], inputs["nodes"], inputs["sources"]
    directed = given["directed"] == "true"
    if not directed and name in ("BFS", "SSSP", "PR"):
        edges = graphs.undirected(edges)
    if name == "BFS":
        return graphs.bfs(edges, sources)
    if name == "SSSP":
        return graphs.shortest_paths(edges, sources)
    if name == "WCC":
        return graphs.components(edges, nodes)
    if name == "CDLP":
        rounds = int(given["cdlp.max-iterations"])
        return graphs.label_propagation(edges, nodes, rounds=rounds)
    if name == "LCC":
        return graphs.clustering_coefficient(edges, nodes, directed=directed)
    rounds, damping = (
        LIMIT.get(graph, int(given["pr.num-iterations"])),
        float(given["pr.damping-factor"]),
    )
    return graphs.pagerank(edges, nodes, rounds=rounds, damping=damping)


@pytest.mark.parametrize(("graph", "name"), CASES)
def test_answers_of_ldbc(ldbc, graph, name):
    given = settings(ldbc, graph)
    flow = rr.Dataflow("ldbc")
    weighted = {"weight": pl.Float64} if name == "SSSP" else {}
    inputs = {
        "edges": flow.input("edges", {"src": pl.Int64, "dst": pl.Int64, **weighted}),
        "nodes": flow.input("nodes", {"node": pl.Int64}),
        "sources": flow.input("sources", {"node": pl.Int64}),
    }
    flow.output("found", algorithm(name, graph, given, inputs))
    edges = rows(ldbc / f"{graph}.e", int, int, *([float] if weighted else []))
    with flow.run(workers=2, seed=1) as run:
        run.insert("nodes", rows(ldbc / f"{graph}.v", int))
        run.insert("sources", [(int(given.get(f"{name.lower()}.source-vertex", 0)),)])
        for half in (edges[::2], edges[1::2]):
            run.insert("edges", half)
            run.commit()
        found = dict(run.read("found").rows())
    expected = dict(rows(ldbc / f"{graph}-{name}", int, str))
    if name == "WCC":
        assert same_parts(found, expected)
    elif name in ("BFS", "CDLP"):
        whole = {node: int(value) for node, value in expected.items()}
        assert found == {node: value for node, value in whole.items() if value != FAR.get(name)}
    else:
        exact = {node: float(value) for node, value in expected.items()}
        assert found == pytest.approx(
            {node: value for node, value in exact.items() if value != FAR.get(name)},
            rel=ROUNDED.get(graph, 1e-9),
            abs=1e-12,
        )


def same_parts(one: dict[int, Any], other: dict[int, Any]) -> bool:
    """Whether two labellings cut the nodes into the same parts; LDBC leaves the labels free."""
    pairs = {(one[node], other[node]) for node in one}
    return one.keys() == other.keys() and len(pairs) == len({a for a, _ in pairs}) == len(
        {b for _, b in pairs}
    )
