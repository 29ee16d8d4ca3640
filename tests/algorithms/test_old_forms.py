"""Algorithms that run on arrays give what their differential forms give, after every epoch of random changes."""

from __future__ import annotations

import random
from collections import Counter

import polars as pl
import pytest

import riverrun as rr
from riverrun import graphs
from tests.algorithms import old_forms, reference
from tests.algorithms.changing import changes

NEW = {
    "components": lambda e, n, s: graphs.components(e, n),
    "bfs": lambda e, n, s: graphs.bfs(e, s),
    "shortest_paths": lambda e, n, s: graphs.shortest_paths(e, s),
    "pagerank": lambda e, n, s: graphs.pagerank(e, n, rounds=7),
}
ON_ARRAYS = {
    "components": "spread",
    "bfs": "spread",
    "shortest_paths": "spread",
    "pagerank": "pull",
    "adaptive_pagerank": "pull",
}


@pytest.mark.parametrize(("workers", "kind"), [(1, pl.Int64), (2, pl.String), (3, pl.Int64)])
@pytest.mark.parametrize("name", NEW)
def test_the_new_form_gives_the_rows_of_the_old_one(name, workers, kind):
    flow = rr.Dataflow("both")
    edges = flow.input("edges", {"src": kind, "dst": kind, "weight": pl.Float64})
    nodes = flow.input("nodes", {"node": kind})
    sources = flow.input("sources", {"node": kind})
    flow.output("new", NEW[name](edges, nodes, sources))
    flow.output("old", getattr(old_forms, name)(edges, nodes, sources))
    with flow.run(workers=workers, seed=workers) as run:
        for _, commands in changes(20 + workers, kind, lambda n: n / 7):
            for rows, (new, gone) in commands.items():
                run.insert(rows, new)
                run.delete(rows, gone)
            run.commit()
            new, old = run.read("new").rows(), run.read("old").rows()
            if name == "pagerank":
                assert dict(new) == pytest.approx(dict(old), abs=1e-14), run.epoch
            else:
                assert new == old, run.epoch


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_whole_distances_where_now_and_then_a_path_might_not_fit(workers):
    """Distances in whole numbers leave arrays while a weight is so large that some path is longer than 64 bits."""
    chance, most = random.Random(workers), (1 << 63) - 1
    flow = rr.Dataflow("whole")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64, "weight": pl.Int64})
    sources = flow.input("sources", {"node": pl.Int64})
    flow.output("found", graphs.shortest_paths(edges, sources))
    ring = [(node, (node + 1) % 9, 5) for node in range(9)]
    large, there = [(0, 1, most), (1, 5, most), (3, 0, most - 2)], []
    with flow.run(workers=workers, seed=workers) as run:
        run.insert("sources", [(0,)])
        run.insert("edges", ring)
        for epoch in range(8):
            gone = chance.sample(there, len(there) // 3)
            new = [(*chance.choices(range(9), k=2), chance.randrange(9)) for _ in range(4)]
            there = list((Counter(there) - Counter(gone)).elements()) + new
            run.insert("edges", new + (large if epoch in (2, 5) else []))
            run.delete("edges", gone + (large if epoch in (4, 6) else []))
            run.commit()
            now = ring + there + (large if epoch in (2, 3, 5) else [])
            least = {(a, b): min(w for c, d, w in now if (a, b) == (c, d)) for a, b, _ in now}
            assert dict(run.read("found").rows()) == reference.shortest_paths(least, {0}), epoch


@pytest.mark.parametrize("name", ON_ARRAYS)
def test_which_algorithms_run_on_arrays(name):
    flow = rr.Dataflow("arrays")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64, "weight": pl.Float64})
    nodes, sources = flow.input("nodes", {"node": pl.Int64}), flow.input("sources", {"node": pl.Int64})  # fmt: skip
    adaptive = graphs.adaptive_pagerank(edges, nodes)
    flow.output("found", NEW[name](edges, nodes, sources) if name in NEW else adaptive)
    assert f":{ON_ARRAYS[name]} " in flow.explain()
    assert "differential" not in flow.explain()
