"""The algorithms from scratch, in a few lines each, to compare the library's answers with.

A graph is a set of nodes and a set of edges, pairs (src, dst). Every function gives a dict of nodes.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations
from typing import Any

Node = Any
Edges = set[tuple[Node, Node]]


def closure(nodes: set[Node], edges: Edges) -> dict[Node, set[Node]]:
    """What each node reaches, itself included."""
    reached = {node: {node} for node in nodes}
    for node in nodes:
        todo = [node]
        while todo:
            here = todo.pop()
            new = {dst for src, dst in edges if src == here} - reached[node]
            reached[node] |= new
            todo += new
    return reached


def both_ways(edges: Edges) -> Edges:
    return edges | {(dst, src) for src, dst in edges}


def components(nodes: set[Node], edges: Edges) -> dict[Node, Node]:
    return {node: min(reached) for node, reached in closure(nodes, both_ways(edges)).items()}


def strongly_connected_components(nodes: set[Node], edges: Edges) -> dict[Node, Node]:
    reached = closure(nodes, edges)
    return {node: min(other for other in reached[node] if node in reached[other]) for node in nodes}


def shortest_paths(
    weights: dict[tuple[Node, Node], float], sources: set[Node]
) -> dict[Node, float]:
    """Bellman and Ford's, with the least weight of each edge."""
    distances = dict.fromkeys(sources, 0)
    changed = True
    while changed:
        changed = False
        for (src, dst), weight in weights.items():
            if src in distances and distances[src] + weight < distances.get(dst, float("inf")):
                distances[dst] = distances[src] + weight
                changed = True
    return distances


def bfs(edges: Edges, sources: set[Node]) -> dict[Node, int]:
    return shortest_paths(dict.fromkeys(edges, 1), sources)  # type: ignore[return-value]


def pagerank(nodes: set[Node], edges: Edges, rounds: int, damping: float) -> dict[Node, float]:
    """In exact fractions, so that the only rounding is the library's."""
    share, keep = Fraction(1, max(len(nodes), 1)), Fraction(damping)
    degree = Counter(src for src, _ in edges)
    ranks = dict.fromkeys(nodes, share)
    for _ in range(rounds):
        idle = sum(ranks[node] for node in nodes if not degree[node])
        received = dict.fromkeys(nodes, Fraction(0))
        for src, dst in edges:
            received[dst] += ranks[src] / degree[src]
        ranks = {
            node: (1 - keep) * share + keep * (received[node] + idle * share) for node in nodes
        }
        ranks = {node: Fraction(float(rank)) for node, rank in ranks.items()}
    return {node: float(rank) for node, rank in ranks.items()}


def label_propagation(nodes: set[Node], edges: Edges, rounds: int) -> dict[Node, Node]:
    labels = {node: node for node in nodes}
    for _ in range(rounds):
        heard: dict[Node, Counter[Node]] = {node: Counter() for node in nodes}
        for src, dst in edges:
            if src != dst:
                heard[src][labels[dst]] += 1
                heard[dst][labels[src]] += 1
        labels = {
            node: min((-n, label) for label, n in heard[node].items())[1]
            if heard[node]
            else labels[node]
            for node in nodes
        }
    return labels


def neighbours(nodes: set[Node], edges: Edges) -> dict[Node, set[Node]]:
    pairs = {(src, dst) for src, dst in both_ways(edges) if src != dst}
    return {node: {dst for src, dst in pairs if src == node} for node in nodes}


def triangles(nodes: set[Node], edges: Edges) -> list[tuple[Node, Node, Node]]:
    near = neighbours(nodes, edges)
    return [
        (a, b, c)
        for a, b, c in combinations(sorted(nodes), 3)
        if b in near[a] and c in near[a] and c in near[b]
    ]


def triangle_counts(nodes: set[Node], edges: Edges) -> dict[Node, int]:
    all_triangles = triangles(nodes, edges)
    return {node: sum(node in triangle for triangle in all_triangles) for node in nodes}


def clustering_coefficient(nodes: set[Node], edges: Edges) -> dict[Node, float]:
    near = neighbours(nodes, edges)
    return {
        node: sum(src != dst and src in around and dst in around for src, dst in edges)
        / max(len(around) * (len(around) - 1), 1)
        for node, around in near.items()
    }


def k_core(nodes: set[Node], edges: Edges, k: int) -> dict[Node, int]:
    near = neighbours(nodes, edges)
    while gone := {node for node, around in near.items() if len(around) < k}:
        near = {node: around - gone for node, around in near.items() if node not in gone}
    return {node: len(around) for node, around in near.items()}
