"""Real graphs, and two made ones beside them: the ends of their edges as arrays, each node a number from 0 on.

`placement`, `microsteps`, `real_components`, `shortest_paths` and `iterations` read them. The files are in the folder
`graphs` of the folder that RIVERRUN_DATA names, or of `shared/data` beside the repository; a graph whose file is not
there is left out, and `missing` says so among the peers of a line. BENCH_REAL=0 leaves all of them out, BENCH_REAL=2
takes the first two that a benchmark asks for.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from bench.measure import scale

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
DATA = Path(
    os.environ.get("RIVERRUN_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data"
)
DIRECTED = {  # graph -> whether its edges have a direction
    "npm-deps-2016": True,
    "wiki-Vote": True,
    "soc-Epinions1-undirected": False,
    "facebook_combined": False,
    "gt-email-Enron": False,
    "road-usroads": False,
}
ROADS, TRUST, VOTES, PACKAGES = (
    "road-usroads",
    "soc-Epinions1-undirected",
    "wiki-Vote",
    "npm-deps-2016",
)


def wanted(names: Sequence[str] = tuple(DIRECTED)) -> list[str]:
    """As many of these graphs as BENCH_REAL says, the first ones; by default all."""
    return list(names)[: scale("real", len(names))]


def is_there(name: str) -> bool:
    return _file(name).exists()


def missing(names: Sequence[str] = tuple(DIRECTED)) -> dict[str, dict[str, str]]:
    """For each graph that is wanted and not there: that it was skipped."""
    return {name: {"skipped": "no such file"} for name in wanted(names) if not is_there(name)}


def real_graphs(names: Sequence[str] = tuple(DIRECTED)) -> Iterator[tuple[str, Ints, Ints]]:
    """The graphs that are wanted and there: the name of each, and the ends of its edges, each edge once."""
    for name in wanted(names):
        if is_there(name):
            yield name, *loaded(name)


def loaded(name: str) -> tuple[Ints, Ints]:
    """The ends of the edges of a graph, each edge as the file has it."""
    with gzip.open(_file(name), "rt") as lines:
        ends = np.loadtxt(lines, np.int64, comments="#", usecols=(0, 1))
    _, numbers = np.unique(ends, return_inverse=True)
    src, dst = np.ascontiguousarray(numbers.reshape(-1, 2).T)
    return src, dst


def _file(name: str) -> Path:
    return DATA / "graphs" / f"{name}.txt.gz"


def random_graph(nodes: int, edges: int, seed: int = 0) -> tuple[Ints, Ints]:
    """Edges whose ends are drawn."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, nodes, edges), rng.integers(0, nodes, edges)


def permuted_path(nodes: int) -> tuple[Ints, Ints]:
    """A path whose nodes are in random order."""
    order = np.random.default_rng(0).permutation(nodes)
    return order[:-1], order[1:]


def number_of_nodes(src: Ints, dst: Ints) -> int:
    return int(max(src.max(), dst.max())) + 1


def both_ways(src: Ints, dst: Ints) -> tuple[Ints, Ints]:
    """Every edge in both directions."""
    return np.concatenate([src, dst]), np.concatenate([dst, src])
