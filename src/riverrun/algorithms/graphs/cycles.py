"""Cycles in a graph whose edges have times: for each new edge, the cycles that it closes.

Users find it as `rr.graphs.cycles`. Edges are in a shared state twice, under `src` and under `dst`, and each new edge
reads that state as of its own time. Simple paths are followed from the two nodes of the new edge towards each other,
hop by hop in a loop: ahead from `dst`, back from `src`. Where two such halves meet, they make a cycle. The halves that
go back are a state too, in which the halves that go ahead are looked up. So a cycle of 5 nodes takes paths of 2 hops,
not of 4. With the messages of a college in a window of a week, that is 1.3 (10 edges an epoch) to 1.6 (100) times as
many edges in a second of CPU as paths from `dst` alone with a lookup of the last edge.

Laws, for a new edge (src, dst, time) of time T:

- **Closed cycles.** The new edge closes a cycle of length n when there are n pairwise different nodes src, dst, ...
  such that an edge leads from each to the next and from the last to the first, and all of these edges but the new one
  have times in [T - span, T), where `span` is the span of length n. So the window has its first time in it, and not T.
  Where edges have a time from which on they are not there any more (the column ``end=``), an edge counts only if that
  time is after T; an edge for which that time is not after its own `time` never counts.
- **Equal times.** Edges of equal time do not see each other. So a cycle belongs to its latest edge; if several of its
  edges are latest, the cycle is not in the result. Where that matters, give edges different times.
- **Cycles of nodes.** A cycle is a list of nodes, not of edges: several edges from one node to another in the window
  make no more cycles than one. A cycle is in the result once for each edge that closes it; an edge that is given twice
  closes its cycles twice. Self loops close nothing, and are on no cycle; but their times count for lateness.
- **Late edges.** Edges may come in any order, as long as none is more than `late` behind the greatest time before its
  epoch; edges later than that never count (``run.events("late")``). The cycles of a new edge come out when every edge
  that can be in its window has come: in its own epoch where `late` is 0, else when a time of T + late was seen. How
  edges are cut into epochs changes no cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import reduce
from operator import add, and_, or_
from typing import Any

import polars as pl

import riverrun as rr
from riverrun.algorithms.graphs.graph import _dtype, check_columns, of_collections

EDGE = ("src", "dst", "time")
LENGTHS = [3, 4, 5]
NEVER = (1 << 63) - 1
"""The end of an edge that does not end."""


@of_collections
def cycles(
    flow: rr.Dataflow,
    edges: rr.Collection,
    span: int | timedelta | None = None,
    *,
    lengths: Iterable[int] | None = None,
    spans: Mapping[int, int | timedelta] | None = None,
    end: str | pl.Expr | None = None,
    late: int | timedelta = 0,
    name: str = "cycles",
) -> rr.Collection:
    """The cycles that each edge closes within `span` before it. Rows: time, src, dst, length, nodes.

    `edges` has columns `src`, `dst` and `time`, a whole number or a point in time, none of them null. The column
    `nodes` of the result lists the nodes of the cycle in its direction, from the least node on, so a cycle looks the
    same whichever edge closes it. `lengths` are 3, 4 and 5 unless given. ``spans={3: ..., 4: ...}``, in place of `span`
    and `lengths`, gives each length a span of its own, over one state. `end` names a column of the type of `time`, from
    whose time on an edge is not there any more; null is never. Edges may come up to `late` behind the greatest time so
    far; edges that come later are dropped and counted in ``run.events("late")``. `flow` is the dataflow of `edges`, and
    `name` the prefix for the names of states and steps; two calls in one flow have different prefixes.

    Edges are only added: an edge cannot be deleted, and cycles in the result stay.

    Cost: a lookup for each simple path of up to half the greatest length from either end inside the window; with
    several spans, for each span, up to half the greatest length with that span. One state holds the edges of the
    greatest span, by either end, and some more; another the path halves of the last epochs.

    >>> flow = rr.Dataflow("payments")
    >>> paid = flow.input("paid", {"src": pl.String, "dst": pl.String, "time": pl.Int64})
    >>> flow.output("rings", cycles(flow, paid, span=10))
    >>> with flow.run() as run:
    ...     run.insert("paid", [("b", "c", 1), ("c", "a", 2), ("a", "b", 8), ("a", "b", 12)])
    ...     _ = run.commit()
    ...     run.read("rings").rows()
    [(8, 'a', 'b', 3, ['a', 'b', 'c'])]
    """
    queries = _queries(span, lengths, spans)
    longest = max(each for _, some in queries for each in some)
    hops, greatest = longest // 2, max(within for within, _ in queries)
    if {"src", "dst"} <= set(edges.columns) and _dtype(edges, "src") != _dtype(edges, "dst"):
        raise rr.PlanError(
            "plan.nodes",
            f"cannot look for cycles: 'src' is {_dtype(edges, 'src')} and 'dst' is {_dtype(edges, 'dst')}, and both "
            "are nodes",
            hint='cast one of them: edges.with_columns(dst=pl.col("dst").cast(pl.Int64))',
        )
    for within, _ in queries:
        _check_span(edges, within)
    seen = edges.select(*EDGE, **({} if end is None else {"end": _end(edges, end)}))
    new = seen.filter(pl.col("src") != pl.col("dst"))
    node, time = _dtype(new, "src"), _dtype(new, "time")
    ends = {} if end is None else {"end": "end"}
    if end is not None:
        new = new.filter(pl.col("end") > pl.col("time").cast(pl.Int64))

    # One state for both directions: the nodes after a node, and the nodes before it.
    graph = flow.state(
        f"{name} graph", {"here": node, "ahead": pl.Boolean}, {"next": node, **dict.fromkeys(ends, pl.Int64)},
        time=time, compact=rr.rules.drop_before(greatest),
    )  # fmt: skip
    sides = [
        new.select("time", here=here, ahead=pl.lit(ahead), next=there, **ends)
        for here, ahead, there in (("src", True, "dst"), ("dst", False, "src"))
    ]
    sides[0].concat(sides[1]).update(graph, rule=rr.rules.append, progress=False)
    for side in ("update", "fetch"):
        seen.progress(graph, side, at="time", late=late)

    # A path is a stack of nodes, the last node first; where the path is shorter than the stack, the other end of the
    # new edge fills the rest. A path belongs to a query (one of the spans), and has a count of the hops that are left.
    stack = [f"n{at}" for at in range(hops + 1)]
    path = [*EDGE, "since", "ahead", "query"]
    starts = [
        new.select(
            *EDGE, since=_since(time, within), ahead=pl.lit(ahead), query=pl.lit(query, pl.Int64),
            left=pl.lit(max(some) // 2, pl.Int64), n0=one, **dict.fromkeys(stack[1:], other),
        )
        for query, (within, some) in enumerate(queries)
        for one, ahead, other in (("dst", True, "src"), ("src", False, "dst"))
    ]  # fmt: skip
    first = starts[0].concat(*starts[1:])
    loop = flow.loop(name=name)
    back = loop.feedback(first.schema, rounds=hops)
    paths = loop.enter(first).concat(back)
    there = paths.fetch(
        graph, key=["n0", "ahead"], since="since", at="time", closed="left", how="inner", name=f"{name} hop",
        rule=rr.rules.distinct if end is None else _lasting(node),
    )  # fmt: skip
    fresh = [pl.col("next") != pl.col(each) for each in ("src", "dst", *stack[1:-1])]
    if end is not None:
        fresh.append(pl.col("end") > pl.col("time").cast(pl.Int64))
    moved = {"n0": "next", **dict(zip(stack[1:], stack, strict=False))}
    longer = there.filter(reduce(and_, fresh)).select(*path, left=pl.col("left") - 1, **moved)
    back.connect(longer.filter(pl.col("left") > 0))
    path_halves = loop.leave(longer)

    behind = [f"b{at}" for at in range(1, hops + 1)]
    halves = flow.state(
        f"{name} halves",
        {"src": node, "dst": node, "of": time, "query": pl.Int64, "meet": node},
        dict.fromkeys(behind, node),
        time=time, compact=rr.rules.drop_before(0 * greatest), compaction="active",
    )  # fmt: skip
    met_by = [*EDGE, "query", "n0"]
    path_halves.filter(~pl.col("ahead")).update(
        halves, key=met_by, value=stack[1:], rule=rr.rules.append, progress=False
    )
    for side in ("update", "fetch"):
        seen.progress(halves, side, at="time", late=late)
    # In the epoch that answers an edge, all halves of the edge are there; halves of other edges may still come at T.
    met = path_halves.filter(pl.col("ahead")).fetch_uncommitted(
        halves, key=met_by, since="time", at="time", wait="since",
        rule=rr.rules.distinct, how="inner", progress=False, name=f"{name} met",
    )  # fmt: skip
    return _cycles_of(met, stack, behind, [some for _, some in queries])


def _check_span(edges: rr.Collection, within: Any) -> None:
    """Refuse a span that is not the difference of two times of the column's type."""
    kind = _dtype(edges, "time") if "time" in edges.columns else None
    if kind is not None and (kind.is_integer() or kind.is_temporal()):
        is_timedelta = isinstance(within, timedelta)
        if is_timedelta == kind.is_integer():
            raise rr.PlanError(
                "plan.span",
                f"cannot look for cycles within {within!r}: column 'time' is {kind}",
                hint="give a whole number, in the units of the times: span=48"
                if is_timedelta
                else "give a timedelta: span=timedelta(hours=48)",
                column="time",
            )


def _end(edges: rr.Collection, end: Any) -> pl.Expr:
    """The end of each edge as a number; an edge without an end has the greatest number."""
    is_column = isinstance(end, pl.Expr) and end.meta.is_column()
    column = end.meta.output_name() if is_column else end
    if not isinstance(column, str):
        raise rr.PlanError(
            "plan.end",
            f"cannot let edges end at {str(end) if isinstance(end, pl.Expr) else end!r}: that is not the name of one "
            "column",
            hint='name the column whose times they are: end="end"; a time that is computed is made a column first, by '
            "with_columns",
        )
    check_columns(edges, column)
    if _dtype(edges, column) != _dtype(edges, "time"):
        there = ", ".join(f"{each}: {_dtype(edges, each)}" for each in edges.columns)
        raise rr.PlanError(
            "plan.end",
            f"cannot let edges end at {column!r}: that is not a column of the type of 'time'; there are {there}",
            hint="name such a column, end=...; a null in it is an edge that does not end",
        )
    return pl.col(column).cast(pl.Int64).fill_null(NEVER)


def _since(kind: pl.DataType, within: Any) -> pl.Expr:
    """The start of the window before each edge: the edge's time less a span, or the first time of the type if that is
    later."""
    time = pl.col("time")
    if not kind.is_integer():
        physical = pl.Int32 if kind == pl.Date else pl.Int64
        first = pl.lit(-(1 << (31 if kind == pl.Date else 63)), physical).cast(kind)
        return pl.when(time < first + within).then(first).otherwise(time - within)
    bits = 8 if kind == pl.Int8 else 16 if kind == pl.Int16 else 32 if kind == pl.Int32 else 64
    least = -(1 << (bits - 1))
    if bits < 64:
        start = time.cast(pl.Int64) - min(within, 1 << bits)
        return pl.when(start < least).then(pl.lit(least, pl.Int64)).otherwise(start).cast(kind)
    return pl.when(time < least + within).then(pl.lit(least, pl.Int64)).otherwise(time - within)


def _lasting(node: pl.DataType) -> Any:
    """The fetch rule that gives the nodes that edges lead to, each once, with the last end of the edges to it."""
    return rr.rules.fetch(
        lambda values: values.group_by("request", "next", maintain_order=True).agg(
            pl.col("end").max()
        ),
        {"next": node, "end": pl.Int64},
    )


def _cycles_of(
    met: rr.Collection, ahead: list[str], behind: list[str], wanted: list[list[int]]
) -> rr.Collection:
    """The cycles made of pairs of halves that meet: pairs with a length that their query wants and with no node in both
    halves. Each cycle is made of one pair only."""

    def different(columns: list[str], end: str) -> pl.Expr:
        return reduce(add, [(pl.col(each) != pl.col(end)).cast(pl.Int64) for each in columns])

    # src is on no path ahead, and dst on no path back: in these stacks they are filling only.
    met = met.with_columns(here=different(ahead, "src"), there=different(behind, "dst"))
    met = met.with_columns(length=pl.col("here") + pl.col("there"))
    even = (pl.col("here") == pl.col("there")) | (pl.col("here") == pl.col("there") + 1)
    asked = [
        (pl.col("query") == query) & (pl.col("length") == each)
        for query, some in enumerate(wanted)
        for each in some
    ]
    right = [even, reduce(or_, asked)]
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


def _queries(span: Any, lengths: Any, spans: Any) -> list[tuple[Any, list[int]]]:
    """Each span that is asked for, with the lengths that have the span."""
    if (span is None) == (spans is None):
        raise rr.PlanError(
            "plan.spans",
            f"cannot look for cycles with span={span!r} and spans={spans!r}: one of them is given",
            hint="span=48 for all lengths, or spans={3: 48, 4: 24, 5: 12}",
        )
    if spans is not None and lengths is not None:
        raise rr.PlanError(
            "plan.spans",
            f"cannot look for cycles with spans={spans!r} and lengths={lengths!r}: spans says the lengths too",
            hint="leave lengths out, and give each length its span: spans={3: 48, 4: 24, 5: 12}",
        )
    for within in [span] if spans is None else list(getattr(spans, "values", list)()):
        if isinstance(within, timedelta):
            is_span = within > timedelta(0)
        else:
            is_span = isinstance(within, int) and not isinstance(within, bool) and within > 0
        if not is_span:
            raise rr.PlanError(
                "plan.spans",
                f"cannot look for cycles within {within!r}: a span is a whole number above 0, or a timedelta",
                hint="for instance span=48, or span=timedelta(hours=48)",
            )
    if spans is None:
        return [(span, LENGTHS if lengths is None else _checked(lengths))]
    if not isinstance(spans, Mapping) or not spans:
        raise rr.PlanError(
            "plan.spans",
            f"cannot look for cycles with spans={spans!r}: it says the span of each length",
            hint="for instance spans={3: 48, 4: 24, 5: 12}",
        )
    by_span: dict[Any, list[int]] = {}
    for length in _checked(spans):
        by_span.setdefault(spans[length], []).append(length)
    return list(by_span.items())


def _checked(lengths: Any) -> list[int]:
    """The lengths that are asked for, each once, the least first."""
    if isinstance(lengths, str) or not isinstance(lengths, Iterable):
        raise rr.PlanError(
            "plan.lengths",
            f"cannot look for cycles of lengths {lengths!r}: that is not a list of lengths",
            hint=f"for one length, lengths=({lengths!r},)"
            if isinstance(lengths, int) and not isinstance(lengths, bool) and lengths >= 3
            else "give whole numbers from 3 on: lengths=(3, 4, 5)",
        )
    wanted = list(lengths)
    if len(set(map(repr, wanted))) < len(wanted):
        raise rr.PlanError(
            "plan.lengths",
            f"cannot look for cycles of lengths {wanted!r}: a length is given twice",
            hint="give each length once: lengths=(3, 4, 5)",
        )
    if not all(
        isinstance(each, int) and not isinstance(each, bool) and each >= 3 for each in wanted
    ):
        raise rr.PlanError(
            "plan.lengths",
            f"cannot look for cycles of lengths {wanted!r}: a cycle has 3 nodes at least",
            hint="give whole numbers from 3 on: lengths=(3, 4, 5)",
        )
    if not wanted:
        raise rr.PlanError(
            "plan.lengths",
            "cannot look for cycles of no length: lengths is empty",
            hint="give whole numbers from 3 on: lengths=(3, 4, 5)",
        )
    return sorted(set(wanted))
