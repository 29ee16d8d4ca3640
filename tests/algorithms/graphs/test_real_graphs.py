"""Figures of public graphs, also after a slice of the edges went and came back."""

from __future__ import annotations

import gzip
from collections import Counter

import polars as pl
import pytest

import riverrun as rr
from riverrun import graphs


def load(path):
    with gzip.open(path, "rt") as lines:
        rows = [tuple(map(int, line.split()[:2])) for line in lines if not line.startswith("#")]
    return pl.DataFrame(rows, schema={"src": pl.Int64, "dst": pl.Int64}, orient="row")


def parts(result):
    """How many components there are, and how large the largest is."""
    sizes = Counter(result["component"])
    return len(sizes), max(sizes.values())


def total(result):
    return result["count"][0]


VOTES = "wiki-Vote.txt.gz"
FRIENDS = "facebook_combined.txt.gz"


@pytest.mark.parametrize(
    ("file", "algorithm", "figure", "expected"),
    [
        (VOTES, graphs.components, parts, (24, 7066)),
        (VOTES, graphs.strongly_connected_components, parts, (5816, 1300)),
        (VOTES, lambda edges: graphs.triangles(edges).count(), total, 608_389),
        (FRIENDS, graphs.components, parts, (1, 4039)),
        (FRIENDS, lambda edges: graphs.triangles(edges).count(), total, 1_612_010),
    ],
    ids=["weak", "strong", "triangles", "weak-friends", "triangles-friends"],
)
def test_known_figures(graphs, file, algorithm, figure, expected):
    edges = load(graphs / file)
    slice_ = edges[10_000:12_000]
    flow = rr.Dataflow("real")
    flow.output("found", algorithm(flow.input("edges", edges)))
    with flow.run(workers=2) as run:
        run.insert("edges", edges)
        run.commit()
        first = run.read("found").rows()
        assert figure(run.read("found")) == expected
        run.delete("edges", slice_)
        run.commit()
        assert run.read("found").rows() != first
        run.insert("edges", slice_)
        run.commit()
        assert run.read("found").rows() == first
