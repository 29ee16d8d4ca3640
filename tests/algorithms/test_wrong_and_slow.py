"""What was wrong or slow in loops over graphs once, as bounds on rows, keys and messages: never on time."""

from __future__ import annotations

import random

import polars as pl
import pytest

import riverrun as rr
from riverrun import graphs
from riverrun.graphs import Graph

EDGES = {"src": pl.Int64, "dst": pl.Int64, "weight": pl.Float64}


def spread(run):
    """The figures of the only spread in a run, for the last epoch."""
    (found,) = [state for name, state in run.status()["states"].items() if name.endswith(":spread")]
    return found


# -- a loop whose result depended on the number of workers


def coloured(edges, nodes, _):
    """A greedy colouring by rounds of a loop with a negation: who has the least name among its uncoloured neighbours
    leaves the loop's rows, and comes back to them with a colour."""
    links = graphs.undirected(edges.select("src", "dst").filter(pl.col("src") != pl.col("dst")))
    start = graphs.nodes_of(edges, nodes).select("node", round=pl.lit(0, pl.Int64))

    def step(rows):
        waiting = rows.filter(round=0).select("node")
        near = links.semi_join(waiting, left_on="src", right_on="node")
        greater = near.filter(pl.col("src") < pl.col("dst")).select(node="dst")
        free = waiting.anti_join(greater, on="node")
        done = free.select("node", round=pl.lit(1, pl.Int64))
        return rows.concat(free.select("node", round=pl.lit(0, pl.Int64)).negate(), done)

    return start.iterate(step, patience=100)


def pregel_ranks(edges, nodes, _):
    return graphs.pregel(
        Graph(nodes, edges).with_out_degrees().with_values(rank=pl.lit(1.0)),
        vertex={"rank": 0.1 + 0.9 * pl.col("heard").fill_null(0.0) / pl.col("total").sqrt()},
        send={"part": pl.col("rank") / pl.col("out_degree")},
        combine={"heard": rr.sum("part")},
        aggregators={"total": rr.sum("rank")},
        rounds=6,
    )


PROGRAMS = {
    "components": lambda e, n, s: graphs.components(e, n),
    "strong components": lambda e, n, s: graphs.strongly_connected_components(e, n),
    "paths": lambda e, n, s: graphs.shortest_paths(e, s),
    "ranks": lambda e, n, s: graphs.pagerank(e, n, rounds=6),
    "rounded ranks": lambda e, n, s: graphs.pagerank(e, n, rounds=6, decimals=4),
    "adaptive ranks": lambda e, n, s: graphs.adaptive_pagerank(e, n, tolerance=1e-3),
    "labels": lambda e, n, s: graphs.label_propagation(e, n, rounds=5),
    "core": lambda e, n, s: graphs.k_core(e, 3),
    "a vertex": pregel_ranks,
    "colours": coloured,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_result_depends_on_the_number_of_workers(name):
    chance = random.Random(name)
    edges = [(chance.randrange(40), chance.randrange(40), chance.random()) for _ in range(120)]
    found = []
    for workers in (1, 2, 3, 4):
        flow = rr.Dataflow("workers")
        given = flow.input("edges", EDGES)
        nodes, sources = (flow.input(each, {"node": pl.Int64}) for each in ("nodes", "sources"))
        flow.output("found", PROGRAMS[name](given, nodes, sources))
        with flow.run(workers=workers, seed=workers) as run:
            run.insert("nodes", [(99,)])
            run.insert("sources", [(1,), (2,)])
            run.insert("edges", edges[:90])
            run.commit()
            first = run.read("found").rows()
            run.delete("edges", edges[10:40])
            run.insert("edges", edges[90:])
            run.commit()
            found.append((first, run.read("found").rows()))
    assert found[0][1]
    assert found[1:] == found[:1] * 3


# -- components of a path in order, which did not end


@pytest.mark.parametrize("plain", [False, True], ids=["components", "a loop of one's own"])
@pytest.mark.parametrize("workers", [1, 2])
def test_components_of_a_path_in_order_take_a_few_messages_an_edge(plain, workers):
    length = 2000

    def own(edges):
        graph = Graph(None, edges).undirected().with_values(label="node")
        return graph.iterate(lambda g: g.aggregate(g.join(), also=g.nodes, label=rr.min("label")))

    flow = rr.Dataflow("path")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    flow.output("found", own(edges) if plain else graphs.components(edges))
    with flow.run(workers=workers) as run:
        run.insert("edges", [(node, node + 1) for node in range(length)])
        run.commit()
        assert {label for _, label in run.read("found").rows()} == {0}
        assert spread(run)["messages"] <= 4 * length
        assert spread(run)["touched"] <= 2 * length
        run.delete("edges", [(length // 2, length // 2 + 1)])
        run.commit()
        assert {label for _, label in run.read("found").rows()} == {0, length // 2 + 1}
        assert spread(run)["messages"] <= 4 * length
        run.insert("edges", [(length, 0)])
        run.commit()
        assert {label for _, label in run.read("found").rows()} == {0}
        assert spread(run)["messages"] <= 4 * length


# -- one changed edge of shortest paths, which took as long as many


def test_a_changed_edge_of_shortest_paths_touches_few_keys():
    chance, size = random.Random(1), 5000
    edges = [
        (chance.randrange(size), chance.randrange(size), chance.randrange(1, 100) / 1.0)
        for _ in range(4 * size)
    ]
    flow = rr.Dataflow("paths")
    given, sources = flow.input("edges", EDGES), flow.input("sources", {"node": pl.Int64})
    flow.output("found", graphs.shortest_paths(given, sources))
    touched, messages = [], []
    with flow.run() as run:
        run.insert("sources", [(0,)])
        run.insert("edges", edges)
        run.commit()
        reached = len(run.read("found").rows())
        for edge in chance.sample(edges, 60):
            run.delete("edges", [edge])
            run.insert("edges", [(edge[0], chance.randrange(size), edge[2])])
            run.commit()
            changed = {row[0] for row in run.changes("found").rows()}
            assert len(changed) <= spread(run)["touched"]
            touched.append(spread(run)["touched"])
            messages.append(spread(run)["messages"])
    assert reached > size * 0.9
    assert sorted(touched)[len(touched) // 2] <= 3
    assert max(touched) <= size / 10
    assert sum(messages) / len(messages) <= len(edges) / 100
