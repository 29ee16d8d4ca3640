"""What can still arrive where, by brute force: follow every message wherever it can go.

Nothing here uses summaries, frontiers or orders of the code under test: a graph is a list of plain
steps, a time is a tuple, and a message moves one arc at a time.
"""

from __future__ import annotations

from collections.abc import Iterable

from riverrun.progress import Antichain, Location, Timestamp
from tests.strategies import Graph, take_step

Place = tuple[Location, Timestamp]


def at_or_before(a: Timestamp, b: Timestamp) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True))


def everything(graph: Graph, places: Iterable[Place], largest: int) -> set[Place]:
    """All (location, time) that can be reached through coordinates of at most ``largest``."""
    seen = set(places)
    queue = list(seen)
    for location, time in queue:
        for target, step in graph.steps.get(location, ()):
            place = target, take_step(step, time)
            if max(place[1]) <= largest and place not in seen:
                seen.add(place)
                queue.append(place)
    return seen


def earliest(graph: Graph, places: Iterable[Place]) -> list[Antichain]:
    """The frontier of every location.

    A place at or after one that was seen at the same location is not followed: a step keeps the
    order, so all that it leads to is at or after something seen as well. That also ends the walk,
    without a bound. (``test_reachability`` compares it with ``everything``.)
    """
    seen: list[list[Timestamp]] = [[] for _ in graph.depths]
    queue = list(places)
    for location, time in queue:
        here = seen[location]
        if not any(at_or_before(other, time) for other in here):
            here[:] = [other for other in here if not at_or_before(time, other)]
            here.append(time)
            for target, step in graph.steps.get(location, ()):
                queue.append((target, take_step(step, time)))
    return [Antichain(here) for here in seen]
