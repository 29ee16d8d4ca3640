"""The answers of the demo, computed from scratch in plain Python: what Riverrun's are checked against."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

Edges = Iterable[tuple[int, int]]


def answers(published: set[int], dependencies: Edges, top: int) -> dict[str, list[tuple[Any, ...]]]:
    """Every output of the demo's program, as sorted rows."""
    live = [(src, dst) for src, dst in dependencies if src in published and dst in published]
    broken = reached(
        {dst for _, dst in dependencies} - published, ((dst, src) for src, dst in dependencies)
    )
    needed = Counter(dst for _, dst in live)
    most = sorted(needed.items(), key=lambda item: (-item[1], item[0]))[:top]
    cycles = Counter(strong_components(live).values())
    return {
        "broken": sorted((node,) for node in broken & published),
        "islands": sorted(Counter(weak_components(published, live).values()).items()),
        "cycles": sorted((node, size) for node, size in cycles.items() if size > 1),
        "most_needed": sorted(most),
    }


def reached(start: set[int], edges: Edges) -> set[int]:
    """All nodes that edges lead to from the start nodes, and these."""
    following = outgoing(edges)
    reached_nodes, asked = set(start), list(start)
    while asked:
        for node in following.get(asked.pop(), ()):
            if node not in reached_nodes:
                reached_nodes.add(node)
                asked.append(node)
    return reached_nodes


def weak_components(nodes: Iterable[int], edges: Edges) -> dict[int, int]:
    """For each node the least node that it is connected with, in either direction (union-find)."""
    parent = {node: node for node in nodes}

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    for src, dst in edges:
        one, other = sorted((root(src), root(dst)))
        parent[other] = one
    return {node: root(node) for node in parent}


def strong_components(edges: Edges) -> dict[int, int]:
    """For each node the least node of its strongly connected component (Tarjan's algorithm, without recursion)."""
    following = outgoing(edges)
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    component: dict[int, int] = {}
    stack: list[int] = []
    for first in following:
        if first in index:
            continue
        index[first] = low[first] = len(index)
        stack.append(first)
        path = [(first, iter(following[first]))]
        while path:
            node, rest = path[-1]
            for other in rest:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    path.append((other, iter(following.get(other, ()))))
                    break
                if other not in component:
                    low[node] = min(low[node], index[other])
            else:
                path.pop()
                if path:
                    above = path[-1][0]
                    low[above] = min(low[above], low[node])
                if low[node] == index[node]:
                    members = [stack.pop()]
                    while members[-1] != node:
                        members.append(stack.pop())
                    component |= dict.fromkeys(members, min(members))
    return component


def outgoing(edges: Edges) -> Mapping[int, list[int]]:
    """Where the edges of each node lead."""
    following: dict[int, list[int]] = defaultdict(list)
    for src, dst in edges:
        following[src].append(dst)
    return following
