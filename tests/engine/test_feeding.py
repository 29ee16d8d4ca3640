"""Rows of an epoch that are fed piece by piece give what they give at once; so do rows that are added up or not."""

from __future__ import annotations

import random

import polars as pl
import pytest

import riverrun as rr
from riverrun.algorithms.graphs.components import components
from riverrun.engine import instance, wiring
from riverrun.engine.coordinator.shares import routes_of
from tests.soaking import first_seed


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("worth", [-1.0, 2.0])
def test_pieces_change_nothing(workers: int, worth: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "PIECE", 3)
    monkeypatch.setattr(wiring, "WORTH", worth)
    flow = rr.Dataflow("pieces")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    others = flow.input("others", {"src": pl.Int64})
    flow.output("components", components(edges))
    flow.output("counts", edges.select(src="src").concat(others).group_by("src").count())
    flow.output("clock", flow.clock().group_by().count())
    seed = first_seed()
    source, present = random.Random(seed), []
    given: list[int] = []
    with flow.run(workers=workers, seed=seed) as run:
        for epoch in range(6):
            added = [(source.randrange(20), source.randrange(20)) for _ in range(17)]
            gone = source.sample(present, len(present) // 2)
            more = [source.randrange(20) for _ in range(11)]
            run.insert("edges", added)
            run.delete("edges", gone) if gone else None
            run.insert("others", [(each,) for each in more])
            run.commit()
            given += more
            for edge in gone:
                present.remove(edge)
            present += added
            starts = [src for src, _ in present] + given
            assert run.read("counts").rows() == sorted(
                (each, starts.count(each)) for each in set(starts)
            )
            assert run.read("components").rows() == labels(present)
            assert run.read("clock").rows() == [(epoch + 1,)]


def test_rows_are_routed_by_the_one_key_that_they_are_exchanged_by() -> None:
    """What reports their times does not mind where they are; other work may, and two keys do."""
    flow = rr.Dataflow("routes")
    moves = flow.input("moves", {"ad": pl.Int64, "time": pl.Int64, "campaign": pl.Int64})
    pairs = flow.input("pairs", {"a": pl.Int64, "b": pl.Int64})
    flow.input("unused", {"a": pl.Int64})
    state = flow.state("state", key={"ad": pl.Int64}, value={"campaign": pl.Int64})
    moves.update(state)
    busy = flow.input("busy", {"a": pl.Int64})
    flow.output("busy by a", busy.group_by("a").count())
    flow.output("busier", busy.map_batches(lambda batch: batch, {"a": pl.Int64}))
    flow.output("by a", pairs.group_by("a").count())
    flow.output("by b", pairs.group_by("b").agg(most=rr.max("a")))
    takers = [node.operator for node, _ in flow.plan.consumers[moves._port]]
    assert len(takers) == 2
    assert {name: route.columns for name, route in routes_of(flow.plan).items()} == {"moves": (0,)}


def labels(edges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    least = {node: node for edge in edges for node in edge}
    for _ in least:
        for src, dst in edges:
            least[src] = least[dst] = min(least[src], least[dst])
    return sorted(least.items())
