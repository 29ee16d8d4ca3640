"""For programs of peers that run loops: what their answers are checked against, and how long their rounds take."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from processor import processor_seconds

CORES = 2


def graph_of(path: str) -> tuple[np.ndarray, np.ndarray, int]:
    """The ends of the edges of a graph in a file of NumPy, and how many nodes there are."""
    with np.load(path) as file:
        src, dst = file["src"], file["dst"]
    return src, dst, int(max(src.max(), dst.max())) + 1


def ranks_after(src: np.ndarray, dst: np.ndarray, nodes: int, rounds: int) -> np.ndarray:
    """PageRank, from 1 for each node; what nodes without edges would pass on is lost."""
    degrees, ranks = np.maximum(np.bincount(src, minlength=nodes), 1), np.ones(nodes)
    for _ in range(rounds):
        ranks = 0.15 + 0.85 * np.bincount(dst, weights=(ranks / degrees)[src], minlength=nodes)
    return ranks


def labels_after(src: np.ndarray, dst: np.ndarray, nodes: int, rounds: int) -> np.ndarray:
    """The least number within so many steps of each node, along edges in both directions."""
    labels = np.arange(nodes)
    for _ in range(rounds):
        heard = labels.copy()
        np.minimum.at(heard, src, labels[dst])
        np.minimum.at(heard, dst, labels[src])
        if np.array_equal(heard, labels):
            break
        labels = heard
    return labels


def check_ranks(ids: np.ndarray, ranks: np.ndarray, known: np.ndarray) -> None:
    """The ranks of some nodes, up to the order in which floats are added. Nodes without edges may be left out."""
    assert len(np.unique(ids)) == len(ids)
    left_out = np.delete(known, ids)
    assert np.array_equal(left_out, np.full(len(left_out), 0.15))
    np.testing.assert_allclose(ranks, known[ids], rtol=1e-9)


def measure(run: Callable[[int], object], rounds: int, fewer: int) -> dict[str, float]:
    """What a round takes: over a whole run of the loop, and as the difference of a longer and a shorter run; by the
    clock, and of the processor. The loop has run once before."""
    run(fewer)
    taken = {}
    for many in (fewer, rounds):
        used, begin = processor_seconds(), time.perf_counter()
        run(many)
        taken[many] = time.perf_counter() - begin, processor_seconds() - used
    figures = {}
    for name, more, less in zip(("wall", "cpu"), taken[rounds], taken[fewer], strict=True):
        figures[f"commit_{name}_ms"] = round(more / rounds * 1e3, 2)
        if more > less:  # otherwise the graph is so small that the difference is noise
            figures[f"round_{name}_ms"] = round((more - less) / (rounds - fewer) * 1e3, 2)
    return figures
