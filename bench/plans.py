"""Large plans: seconds of CPU to build, to look at, to start, to commit a row and to read it, for plans of ten shapes.

Each shape (chains, nested concats, groups, fans, loops, many inputs and outputs, many columns) has about 5,000 nodes or
10,000 columns, and a quarter of that; the growth is how many times as long the larger one takes: 4 is linear.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench.measure import at_most, ratio, scale
from riverrun.plan.lineage import lineage_of
from tests.run.shapes import SHAPES

SMALLER = {"deep": 40}  # times have a coordinate for each loop around: the square of this is stored
WIDER = 2


def measure(name: str, size: int, workers: int) -> dict[str, float]:
    """What a shape of one size takes."""
    taken: dict[str, float] = {}

    def timed(what: str, act: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = act()
        taken[what] = time.process_time() - began
        return result

    flow = timed("build", lambda: SHAPES[name](size))
    plan = timed("plan", lambda: flow.plan)
    timed("lineage", lambda: lineage_of(plan))
    timed("explain", flow.explain)
    run = timed("start", lambda: flow.run(workers=workers))
    row = tuple(range(size)) if name == "wide" else (1,)
    with run:
        run.insert("c", [] if name == "deep" else [row])
        timed("commit", run.commit)
        timed("read", lambda: run.read("o").rows())
    return taken


def main() -> dict[str, Any]:
    nodes, workers = scale("nodes", 5_000), scale("workers", 1)
    figures: dict[str, Any] = {}
    growths = []
    for name in SHAPES:
        size = nodes * WIDER if name == "wide" else nodes // SMALLER.get(name, 1)
        measure(name, 24, workers)  # what is done once in a process
        small, large = measure(name, size // 4, workers), measure(name, size, workers)
        growth = round(sum(large.values()) / sum(small.values()), 2)
        growths.append(growth)
        seconds = {what: round(each, 3) for what, each in large.items()}
        figures[name] = {"size": size, "seconds": seconds, "growth": growth}
    return {
        "nodes": nodes,
        "workers": workers,
        "shapes": figures,
        "asked": {"growth": at_most(max(growths), 6)},
        "peers": {},
        "ratios": {"linear_to_growth": ratio(4, max(growths))},
    }
