"""What of a checkpoint a program keeps: by lineage, not by name; and what the rest is built from."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.plan.diff import Comparison, StoredProgram, compare, states_of
from riverrun.plan.identity import code_of
from riverrun.plan.lineage import lineage_of
from riverrun.plan.plan import Plan

Build = Callable[[rr.Dataflow], None]


def plan_of(build: Build, as_written: bool = False) -> Plan:
    """The plan of a program; `as_written`, without the optimizer's rewrites."""
    flow = rr.Dataflow("compared")
    build(flow)
    return flow.plan.written or flow.plan if as_written else flow.plan


def stored(plan: Plan, epoch: int = 3, lineage: bool = True) -> StoredProgram:
    states = frozenset(name for node in plan.nodes for name in states_of(node))
    return StoredProgram(epoch, plan.fingerprint, states, lineage_of(plan) if lineage else None)


def compared(old: Build, new: Build, as_written: bool = False, **options: Any) -> Comparison:
    return compare(plan_of(new, as_written), stored(plan_of(old, as_written), **options))


def edges_of(flow: rr.Dataflow) -> rr.Collection:
    return flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})


def degrees(flow: rr.Dataflow) -> None:
    flow.output("degrees", edges_of(flow).group_by("src").count())


def names_of(plan: Plan, numbers: Any) -> set[str]:
    return {plan.nodes[number].name for number in numbers}


def test_the_same_program_keeps_all() -> None:
    for lineage in (True, False):
        found = compared(degrees, degrees, lineage=lineage)
        assert found.is_straight
        assert not found.differences
        assert not found.dropped
        assert found.keep == {name: name for name in stored(plan_of(degrees)).states}


def test_states_are_found_under_other_names() -> None:
    def more(flow: rr.Dataflow) -> None:
        others = flow.input("others", {"k": pl.Int64})
        flow.output("counted", others.filter(pl.col("k") > 1).group_by("k").count())
        degrees(flow)

    found = compared(degrees, more)
    assert found.is_straight  # what is made of a new input is empty
    assert found.keep == {"arrange-2": "arrange-1", "reduce-2": "reduce-1"}
    assert {d.name for d in found.differences if d.was is None} >= {"others", "filter-1"}
    assert all(d.was is None for d in found.differences)


def test_what_only_shows_rows_makes_no_difference() -> None:
    def shown(flow: rr.Dataflow) -> None:
        edges = edges_of(flow).inspect(lambda rows: None).probe("edges")
        flow.output("degrees", edges.group_by("src").count())

    for old, new in ((degrees, shown), (shown, degrees)):
        found = compared(old, new)
        assert found.is_straight
        assert not found.differences


def test_an_output_that_is_gone_is_dropped() -> None:
    def more(flow: rr.Dataflow) -> None:
        edges = edges_of(flow)
        flow.output("degrees", edges.group_by("src").count())
        flow.output("edges", edges)

    found = compared(more, degrees)
    assert found.is_straight
    assert found.dropped == ("edges:result",)
    assert [d.name for d in found.differences] == ["edges:result", "edges:output"]
    assert all(d.now is None for d in found.differences)


def loop(least: int, behind: bool = False, edges_kept: bool = True) -> Build:
    def build(flow: rr.Dataflow) -> None:
        edges = edges_of(flow)
        if edges_kept:
            flow.output("edges", edges)
        found = edges.filter(pl.col("src") > 0)

        def step(rows: rr.Collection) -> rr.Collection:
            on = rows.join(edges, left_on="dst", right_on="src", suffix="_on")
            on = on.filter(pl.col("dst_on") >= least)
            return on.select("src", dst="dst_on").concat(rows).distinct()

        reach = found.iterate(step)
        flow.output("reach", reach)
        if behind:
            flow.output("sizes", reach.group_by("src").count())

    return build


def test_a_loop_is_kept_or_built_anew_as_a_whole() -> None:
    found = compared(loop(0), loop(1), as_written=True)
    plan = plan_of(loop(1), as_written=True)
    inside = {name for name in stored(plan).states if name.startswith("loop-1/")}
    assert inside
    assert inside < set(found.rebuild)
    assert set(found.keep) == {"edges:result"}
    assert not found.routes.inputs
    assert not found.routes.stuck
    assert found.rebuild["reach:result"] == "because of 'loop-1/filter-1'"
    assert names_of(plan, found.sources) == {"edges:result"}  # a copy of the rows of the input
    assert {found.rebuild[name] for name in inside} == {
        "because of 'loop-1/filter-1'",
        "as the loop 'loop-1' is built anew as a whole",  # what edges are, inside, is as it was
    }
    found = compared(loop(0, edges_kept=False), loop(1, edges_kept=False), as_written=True)
    assert found.routes.inputs == ("edges",)


def test_what_was_moved_out_of_a_loop_is_kept_when_the_loop_is_built_anew() -> None:
    found = compared(loop(0, edges_kept=False), loop(1, edges_kept=False))
    assert set(found.keep) == {"arrange-1"}
    assert {name.partition("/")[0] for name in found.rebuild} == {"loop-1", "reach:result"}
    assert not found.routes.inputs  # the arrangement has all edges
    assert not found.routes.stuck


def test_what_is_behind_a_loop_is_built_from_the_result() -> None:
    found = compared(loop(0), loop(0, behind=True))
    plan = plan_of(loop(0, behind=True))
    assert not any(name.startswith("loop-1/") for name in found.rebuild)
    assert names_of(plan, found.sources) == {"reach:result"}

    def unkept(behind: bool) -> Build:  # what leaves the loop is changed before it is kept
        def build(flow: rr.Dataflow) -> None:
            edges = edges_of(flow)
            flow.output("edges", edges)
            reach = edges.iterate(lambda rows: rows.concat(edges).distinct())
            flow.output("few", reach.filter(pl.col("src") > 1))
            if behind:
                flow.output("sizes", reach.group_by("src").count())

        return build

    found = compared(unkept(False), unkept(True))
    whys = {found.rebuild[name] for name in found.rebuild if name.startswith("loop-1/")}
    assert whys == {"as something new is made of what is inside the loop"}
    assert "few:result" in found.keep
    assert not found.routes.inputs


def test_of_a_join_of_two_kept_sides_one_is_announced() -> None:
    def build(more: bool) -> Build:
        def program(flow: rr.Dataflow) -> None:
            names = flow.input("names", {"k": pl.Int64, "name": pl.String}, key="k")
            sales = flow.input("sales", {"k": pl.Int64, "v": pl.Int64})
            pairs = sales.join(names, "k")
            flow.output("some", pairs.filter(pl.col("v") > 1))
            if more:
                flow.output("by-name", pairs.group_by("name").agg(total=rr.sum("v")))

        return program

    found, plan = compared(build(False), build(True)), plan_of(build(True))
    assert [(plan.nodes[at].name, side) for at, side in found.routes.announces] == [("join-1", 0)]
    assert names_of(plan, found.routes.read) == {"names:rows", "arrange-1"}
    assert not found.routes.pushes
    assert not found.routes.inputs


def test_a_kept_copy_of_what_leaves_a_node_is_enough() -> None:
    def build(more: bool) -> Build:
        def program(flow: rr.Dataflow) -> None:
            some = edges_of(flow).filter(pl.col("dst") > 1)
            flow.output("some", some)
            if more:
                flow.output("degrees", some.group_by("src").count())

        return program

    found, plan = compared(build(False), build(True)), plan_of(build(True))
    assert names_of(plan, found.sources) == {"some:result"}
    assert names_of(plan, [port.node for _, port in found.routes.copies]) == {"filter-1"}
    assert not found.routes.inputs


def test_results_that_depend_on_how_rows_came_cannot_be_built() -> None:
    class Echo(rr.Vertex):
        def on_recv(self, port: str, rows: pl.DataFrame, time: Any) -> None:
            self.send(rows)

    def build(least: int) -> Build:
        def program(flow: rr.Dataflow) -> None:
            items = flow.input("items", {"k": pl.Int64, "at": pl.Int64}, key="k")
            some = items.filter(pl.col("k") > least)
            flow.output("recent", some.expire("at", after=3, name="recent-rows"))
            echo = flow.vertex(Echo, {"rows": some}, {"k": pl.Int64, "at": pl.Int64}, name="echo")
            flow.output("echo", echo)
            flow.output("ticks", some.expire(epochs=2))

        return program

    found = compared(build(0), build(1))
    assert not found.routes.inputs
    assert dict(found.routes.stuck) == {
        "recent-rows": "its results depend on how rows came, epoch by epoch",
        "recent-rows:watermark": "its results depend on how rows came, epoch by epoch",
        "latest-1": "its results depend on how rows came, epoch by epoch",
        "expire-1": "its results depend on how rows came, epoch by epoch",
        "due-2": "its results depend on how rows came, epoch by epoch",
        "clock:ticks": "it has a row for each epoch",
        "echo": "its results depend on the order of arrival",
    }


@pytest.mark.parametrize("many", [False, True])
def test_what_a_fetch_has_answered_is_not_in_what_waits(many: bool) -> None:
    """The states of a fetch are the requests that wait: nothing can be built of them."""

    def build(more: bool) -> Build:
        def program(flow: rr.Dataflow) -> None:
            moves = flow.input("moves", {"ad": pl.Int64, "time": pl.Int64, "place": pl.String})
            key = pl.List(pl.Int64) if many else pl.Int64
            views = flow.input("views", {"ad": key, "at": pl.Int64})
            state = flow.state("places", key={"ad": pl.Int64}, value={"place": pl.String})
            moves.update(state)
            seen = views.fetch(state, key="ad", at="at", name="seen")
            flow.output("seen", seen.group_by("at").count())
            if more:
                flow.output("late", seen.filter(pl.col("at") > 9).group_by("at").count())

        return program

    found = compared(build(False), build(True))
    why = {"seen:gather" if many else "seen": "what it has given is not kept"}
    assert dict(found.routes.stuck) == why


def test_an_input_under_another_name_does_not_empty_its_results_silently() -> None:
    def renamed(flow: rr.Dataflow) -> None:
        links = flow.input("links", {"src": pl.Int64, "dst": pl.Int64})
        flow.output("degrees", links.group_by("src").count())

    found = compared(degrees, renamed)
    assert set(found.rebuild) == {"arrange-1", "reduce-1"}
    assert {d.name: (d.was is None, d.now is None) for d in found.differences} == {
        "links": (True, False),
        "edges": (False, True),
    }
    assert compared(degrees, renamed, epoch=0).is_straight  # nothing was there


def test_without_lineage_only_the_same_program_keeps_states() -> None:
    def more(flow: rr.Dataflow) -> None:
        degrees(flow)
        flow.output("sums", flow.inputs["edges"].group_by("dst").count())

    found = compared(degrees, more, lineage=False)
    assert not found.keep
    assert found.routes.inputs == ("edges",)


def test_wiring_is_part_of_a_lineage() -> None:
    def build(swapped: bool) -> Build:
        def program(flow: rr.Dataflow) -> None:
            a = flow.input("a", {"k": pl.Int64}).filter(pl.col("k") > 1)
            b = flow.input("b", {"k": pl.Int64}).filter(pl.col("k") > 1)
            flow.output("rows", (b if swapped else a).group_by("k").count())

        return program

    old, new = plan_of(build(False)), plan_of(build(True))
    assert lineage_of(old)["reduce-1"] != lineage_of(new)["reduce-1"]
    assert compare(new, stored(old)).rebuild["reduce-1"] == "because of 'amounts-1'"


# ---- functions


def adder(n: Any) -> Callable[[int], Any]:
    return lambda m: m + n


class Adds:
    least = 0

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, m: int) -> int:
        return m + self.n


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (adder(1), adder(2)),
        (adder((1, {"a": [1]})), adder((1, {"a": [2]}))),
        (adder(adder(1)), adder(adder(2))),
        (lambda m, n=1: m + n, lambda m, n=2: m + n),
        (lambda m, *, n=1: m + n, lambda m, *, n=2: m + n),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (functools.partial(max, key=adder(1)), functools.partial(max, key=adder(2))),
        (Adds(1), Adds(2)),
        (type("A", (), {"least": 1}), type("A", (), {"least": 2})),
        (type("A", (type("B", (), {"least": 1}),), {}), type("A", (type("B", (), {"least": 2}),), {})),
        (lambda m: m in {1, 2}, lambda m: m in {1, 3}),
    ],
)  # fmt: skip
def test_what_a_function_closes_over_is_part_of_it(one: Any, other: Any) -> None:
    assert code_of(one) != code_of(other)
    assert code_of(one) == code_of(one)


def test_equal_functions_are_equal_wherever_they_are_made() -> None:
    assert code_of(adder(1)) == code_of(adder(1))
    assert code_of(adder(object())) == code_of(adder(object()))  # by type: addresses do not count

    def again(n: int) -> int:
        return again(n - 1) if n else n

    assert code_of(again) == code_of(again)
    program = """
from riverrun.plan.identity import code_of
def close(n, s):
    return lambda m: m + n if m in {"a", "b", "c", "d"} else s
print(code_of(close(3, frozenset("abcdefgh"))))
"""
    words = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env
        ).stdout
        for env in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"})
    }
    assert len(words) == 1
