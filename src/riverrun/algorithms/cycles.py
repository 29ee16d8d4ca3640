"""Cycles in a graph whose edges have times: each new edge tells which cycles it closes.

Edges are kept in a shared state, by either end, and each edge asks it as of its own time. Simple paths are followed
from its two ends towards each other, hop by hop in a loop: ahead from `dst`, back from `src`. Where two halves meet
they are a cycle; those of one side are a state too, in which those of the other are looked up. So a cycle of 5 nodes
takes paths of 2 hops, not of 4. With the messages of a college in a window of a week, that is 1.3 (10 edges an epoch)
to 1.6 (100) times as many edges in a second of CPU as paths from one end with a lookup of the last edge.

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

EDGE = ("src", "dst", "time")


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

    Edges only come: what was told stays, and an edge cannot be deleted.

    Cost: a lookup for each simple path of up to half the greatest length from either end inside the window. A state
    holds the edges of the last `span`, by either end, and some more; another the halves of those of the last epochs.

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
    hops = wanted[-1] // 2
    new = edges.select(*EDGE).filter(pl.col("src") != pl.col("dst"))
    node, time = _dtype(new, "src"), _dtype(new, "time")

    # One state for both directions: what comes after a node, and what comes before it.
    graph = flow.state(
        f"{name} graph", {"here": node, "ahead": pl.Boolean}, {"next": node}, time=time,
        compact=rr.drop_before(span),
    )  # fmt: skip
    ends = [
        new.select("time", here=here, ahead=pl.lit(ahead), next=there)
        for here, ahead, there in (("src", True, "dst"), ("dst", False, "src"))
    ]
    ends[0].concat(ends[1]).update(graph, rule=rr.append, late=late)
    new.progress(graph, "fetch", at="time", late=late)

    # A path is a stack of nodes, the last one first; where it is shorter, the other end of the edge fills the rest.
    stack = [f"n{at}" for at in range(hops + 1)]
    starts = [
        new.select(
            *EDGE, since=pl.col("time") - span, ahead=pl.lit(ahead), n0=end, **dict.fromkeys(stack[1:], other)
        )
        for end, ahead, other in (("dst", True, "src"), ("src", False, "dst"))
    ]  # fmt: skip
    first = starts[0].concat(starts[1])
    loop = flow.loop(name=name)
    back = loop.feedback(first.schema, limit=hops)
    paths = loop.enter(first).concat(back)
    there = paths.fetch(
        graph, key=["n0", "ahead"], since="since", at="time", closed="left", rule=rr.distinct, how="inner",
        name=f"{name} hop",
    )  # fmt: skip
    fresh = [pl.col("next") != pl.col(each) for each in ("src", "dst", *stack[1:-1])]
    moved = {"n0": "next", **dict(zip(stack[1:], stack, strict=False))}
    longer = there.filter(reduce(and_, fresh)).select(*EDGE, "since", "ahead", **moved)
    back.connect(longer)
    found = loop.leave(longer)

    behind = [f"b{at}" for at in range(1, hops + 1)]
    halves = flow.state(
        f"{name} halves", {"src": node, "dst": node, "of": time, "meet": node}, dict.fromkeys(behind, node),
        time=time, compact=rr.drop_before(0 * span), compaction="active",
    )  # fmt: skip
    found.filter(~pl.col("ahead")).update(
        halves, key=[*EDGE, "n0"], value=stack[1:], rule=rr.append, progress=False
    )
    for side in ("update", "fetch"):
        new.progress(halves, side, at="time", late=late)
    # All halves of an edge are there in the epoch that answers it, though others may come at the same time T.
    met = found.filter(pl.col("ahead")).fetch(
        halves, key=[*EDGE, "n0"], since="time", at="time", wait="since", read="uncommitted",
        rule=rr.distinct, how="inner", progress=False, name=f"{name} met",
    )  # fmt: skip
    return _told(met, stack, behind, wanted)


def _told(
    met: rr.Collection, ahead: list[str], behind: list[str], wanted: list[int]
) -> rr.Collection:
    """Of two halves that meet, those that are a cycle, each in one way."""

    def different(columns: list[str], end: str) -> pl.Expr:
        return reduce(add, [(pl.col(each) != pl.col(end)).cast(pl.Int64) for each in columns])

    # src is on no path ahead and dst on no path back: where they stand there they fill the stack.
    met = met.with_columns(here=different(ahead, "src"), there=different(behind, "dst"))
    met = met.with_columns(length=pl.col("here") + pl.col("there"))
    even = (pl.col("here") == pl.col("there")) | (pl.col("here") == pl.col("there") + 1)
    right = [even, reduce(or_, [pl.col("length") == each for each in wanted])]
    for one in ahead[1:-1]:
        same = reduce(or_, [pl.col(one) == pl.col(other) for other in behind[:-1]])
        right.append(~same | (pl.col(one) == pl.col("dst")) | (pl.col(one) == pl.col("src")))
    nodes = pl.concat_list("src").list.concat(
        [
            pl.concat_list(*reversed(ahead)).list.tail(pl.col("here")),
            pl.concat_list(*behind).list.head(pl.col("there") - 1),
        ]
    )
    twice, least = pl.col("nodes").list.concat("nodes"), pl.col("nodes").list.arg_min()
    return (
        met.filter(reduce(and_, right))
        .with_columns(nodes=nodes)
        .select("time", "src", "dst", "length", nodes=twice.list.slice(least, pl.col("length")))
    )


def _checked(lengths: Any) -> list[int]:
    wanted = sorted(set(lengths)) if isinstance(lengths, Iterable) else []
    if not wanted or not all(isinstance(each, int) and each >= 3 for each in wanted):
        raise rr.PlanError(
            "plan.lengths",
            f"cannot look for cycles of lengths {lengths!r}: a cycle has 3 nodes at least",
            hint="give whole numbers from 3 on: lengths=(3, 4, 5)",
        )
    return wanted
