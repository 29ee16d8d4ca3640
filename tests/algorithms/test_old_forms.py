"""Algorithms that run on arrays give what their differential forms give, after every epoch of random changes."""

from __future__ import annotations

import polars as pl
import pytest

import riverrun as rr
from riverrun import graphs
from tests.algorithms import old_forms
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


@pytest.mark.parametrize("name", ON_ARRAYS)
def test_which_algorithms_run_on_arrays(name):
    flow = rr.Dataflow("arrays")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64, "weight": pl.Float64})
    nodes, sources = flow.input("nodes", {"node": pl.Int64}), flow.input("sources", {"node": pl.Int64})  # fmt: skip
    adaptive = graphs.adaptive_pagerank(edges, nodes)
    flow.output("found", NEW[name](edges, nodes, sources) if name in NEW else adaptive)
    assert f":{ON_ARRAYS[name]} " in flow.explain()
    assert "differential" not in flow.explain()
