"""Cycles in a graph whose edges have times: each new edge tells which cycles it closes.

Edges are kept in shared states, and each edge asks them as of its own time: simple paths from its end are followed
hop by hop in a loop, and a path is a cycle when an edge leads from its last node back to where the new edge
came from. That last step is a lookup of the pair, so for cycles of length n paths are followed n - 2 hops only.

Laws, for an edge (src, dst, time) of time T:

1. It closes a cycle of length n when there are n pairwise different nodes src, dst, ... such that an edge leads from
   each to the next and from the last to the first, and all of these but the new one have times in [T - span, T). The
   window is closed at its start and open at its end.
2. So edges of equal time do not see each other. A cycle is told by its latest edge; if several are latest, by none.
   Where that matters, give times that tell edges apart.
3. Nodes make a cycle, not edges: of several edges from one node to another in the window one is enough, and the cycle
   is there once for each edge that closes it. An edge that is given twice closes its cycles twice. Self loops are
   no edges: they close nothing, and are on no cycle.
4. Edges come in any order, as long as none is more than `late` behind the greatest time before its epoch; those that
   are later count nowhere (``run.events("late")``). An edge is answered when every edge that can be in its window has
   come: in its own epoch where `late` is 0, else when a time of T + late was seen. How edges are cut into epochs
   changes no cycle.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from functools import reduce
from operator import add, and_, or_
from typing import Any

import polars as pl

import riverrun as rr
from riverrun.algorithms.graph import _dtype


def cycles(
    flow: rr.Dataflow,
    edges: rr.Collection,
    span: int | timedelta,
    *,
    lengths: Iterable[int] = (3, 4, 5),
    late: int | timedelta = 0,
    name: str = "cycles",
) -> rr.Collection:
    """The cycles that each edge closes within `span` before it. Rows: time, src, dst, length, nodes.

    `edges` has columns `src`, `dst` and `time`, a whole number or a point in time, none of them null. `nodes` are those
    of the cycle in its direction, from the least one on, so a cycle looks the same whichever edge closes it.
    `name` is the prefix of what the states and steps are called; two in one flow have different ones.

    Edges only come: one that is deleted takes back the cycles that it closed, not those that it is on.

    Cost: two lookups for each simple path of up to max(lengths) - 2 hops from `dst` inside the window: what comes next,
    and whether it closes. Each of two states holds the edges of the last `span`, and some more.

    >>> flow = rr.Dataflow("payments")
    >>> paid = flow.input("paid", {"src": pl.String, "dst": pl.String, "time": pl.Int64})
    >>> flow.output("rings", cycles(flow, paid, span=10))
    >>> with flow.run() as run:
    ...     run.insert("paid", [("b", "c", 1), ("c", "a", 2), ("a", "b", 8), ("a", "b", 12)])
    ...     _ = run.commit()
    ...     run.read("rings").rows()
    [(8, 'a', 'b', 3, ['a', 'b', 'c'])]
    """
    wanted = _checked(lengths)
    hops = wanted[-1] - 2
    node, time = _dtype(edges, "src"), _dtype(edges, "time")
    states: dict[str, Any] = {"time": time, "compact": rr.drop_before(span)}
    after = flow.state(f"{name}.after", key={"src": node}, value={"next": node}, **states)
    pairs = flow.state(f"{name}.pairs", key={"src": node, "dst": node}, value={}, **states)

    new = edges.select("src", "dst", "time").filter(pl.col("src") != pl.col("dst"))
    new.update(after, value="dst", rule=rr.append, late=late)
    new.update(pairs, rule=rr.append, late=late)
    for state in (after, pairs):
        new.progress(state, "fetch", at="time", late=late)

    # A path is a stack of nodes, the last one first. Where it is shorter, src fills the rest: it is on no path.
    stack = [f"n{at}" for at in range(hops + 1)]
    window: dict[str, Any] = {
        "since": "since",
        "at": "time",
        "closed": "left",
        "how": "inner",
        "progress": False,
    }
    start = new.select(
        "src", "time", since=pl.col("time") - span, n0="dst", **dict.fromkeys(stack[1:], "src")
    )
    paths = start
    if hops:
        loop = flow.loop(name=name)
        back = loop.feedback(start.schema, limit=hops)
        here = loop.enter(start).concat(back)
        there = here.fetch(after, key="n0", rule=rr.distinct, name=f"{name}.hop", **window)
        fresh = [pl.col("next") != pl.col(each) for each in ("src", *stack[1:])]
        moved = dict(zip(stack[1:], stack, strict=False))
        longer = there.filter(reduce(and_, fresh)).select(
            "src", "time", "since", n0="next", **moved
        )
        back.connect(longer)
        paths = loop.leave(longer) if wanted[0] > 2 else start.concat(loop.leave(longer))

    length = reduce(add, [(pl.col(each) != pl.col("src")).cast(pl.Int64) for each in stack]) + 1
    found = paths.with_columns(length=length)
    if len(wanted) < hops + 1 - (wanted[0] > 2):
        found = found.filter(reduce(or_, [pl.col("length") == each for each in wanted]))
    closed = found.fetch(pairs, key=["n0", "src"], name=f"{name}.close", **window)
    ordered = pl.concat_list("src", *reversed(stack)).list.tail(pl.col("length"))
    turned = closed.with_columns(nodes=ordered).with_columns(
        dst=pl.col("nodes").list.get(1),
        nodes=pl.col("nodes")
        .list.concat("nodes")
        .list.slice(pl.col("nodes").list.arg_min(), pl.col("length")),
    )
    return turned.select("time", "src", "dst", "length", "nodes")


def _checked(lengths: Iterable[Any]) -> list[int]:
    wanted = sorted(set(lengths))
    if not wanted or not all(isinstance(each, int) and each >= 2 for each in wanted):
        raise rr.PlanError(
            "plan.lengths",
            f"cannot look for cycles of lengths {lengths!r}: a cycle has 2 nodes at least",
            hint="give whole numbers from 2 on: lengths=(3, 4, 5)",
        )
    return wanted
