"""Shapes of large plans: each is a function of a size, and makes a dataflow of about that many nodes or columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

import riverrun as rr

v = pl.col("v")
KIND = {"v": pl.Int64}


def flow_of(body: Callable[[Any], Any]) -> rr.Dataflow:
    flow = rr.Dataflow("large")
    flow.output("o", body(flow.input("c", KIND)))
    return flow


def chain(size: int) -> rr.Dataflow:
    """One step after the other."""

    def body(c: Any) -> Any:
        for _ in range(size):
            c = c.with_columns(v=v + 1)
        return c

    return flow_of(body)


def nested_concat(size: int) -> rr.Dataflow:
    """Each collection is used twice by the next: as many ways through the plan as 2 to the power of its length."""

    def body(c: Any) -> Any:
        for _ in range(size // 2):
            c = c.concat(c.filter(v > 10**6))
        return c

    return flow_of(body)


def groups(size: int) -> rr.Dataflow:
    """One group after the other: arrangements, exchanges, reductions."""

    def body(c: Any) -> Any:
        for _ in range(size // 5):
            c = c.group_by("v").agg(n=rr.count()).select("v")
        return c

    return flow_of(body)


def fan(size: int) -> rr.Dataflow:
    """Out to many, and together again; and that to many once more."""

    def body(c: Any) -> Any:
        parts = [c.filter(v > at) for at in range(size // 2)]
        whole = parts[0].concat(*parts[1:])
        ends = [whole.filter(v < at) for at in range(size // 2)]
        return ends[0].concat(*ends[1:])

    return flow_of(body)


def many_to_many(size: int) -> rr.Dataflow:
    """Many groups together, and that into many groups: the ways between them are the square of their number."""

    def body(c: Any) -> Any:
        first = [c.filter(v > at).distinct() for at in range(size // 10)]
        whole = first[0].concat(*first[1:])
        ends = [whole.filter(v < at).distinct() for at in range(size // 10)]
        return ends[0].concat(*ends[1:])

    return flow_of(body)


def loops(size: int) -> rr.Dataflow:
    """One loop after the other."""

    def body(c: Any) -> Any:
        for _ in range(size // 8):
            c = c.iterate(lambda x: x.filter(v > 0))
        return c

    return flow_of(body)


def long_loop(size: int) -> rr.Dataflow:
    """One loop around a long body."""

    def body(c: Any) -> Any:
        def around(x: Any) -> Any:
            for at in range(size):
                x = x.filter(v > -at)
            return x.concat(c).distinct()

        return c.iterate(around)

    return flow_of(body)


def ports(size: int) -> rr.Dataflow:
    """Many inputs and outputs."""
    flow = rr.Dataflow("large")
    for at in range(size // 4):
        flow.output("o" if at == 0 else f"o{at}", flow.input("c" if at == 0 else f"c{at}", KIND))
    return flow


def deep(size: int) -> rr.Dataflow:
    """Loops inside loops; what they do in rounds grows with their number, so nothing is fed to them."""

    def nested(depth: int) -> Callable[[Any], Any]:
        return lambda x: x.iterate(nested(depth - 1)) if depth else x.distinct()

    return flow_of(lambda c: c.iterate(nested(size // 12)))


def wide(size: int) -> rr.Dataflow:
    """Many columns."""
    flow = rr.Dataflow("large")
    flow.output("o", flow.input("c", {f"c{at}": pl.Int64 for at in range(size)}))
    return flow


SHAPES: dict[str, Callable[[int], rr.Dataflow]] = {
    each.__name__: each
    for each in (
        chain, nested_concat, groups, fan, many_to_many, loops, long_loop, ports, deep, wide,
    )
}  # fmt: skip
