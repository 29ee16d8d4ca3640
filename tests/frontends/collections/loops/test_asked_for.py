"""What is asked for by ``mode=``, ``spread_over=`` and ``maintain=`` is taken, or refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import polars as pl
import pytest

import riverrun as rr

INT, c = pl.Int64, pl.col
EDGES = {"src": INT, "dst": INT, "w": INT}
ROWS = {"node": INT, "far": INT}
LEAST = rr.loops.least("far")


def near(rows: Any, edges: Any) -> Any:
    joined = rows.join(edges, left_on="node", right_on="src")
    return joined.select(node="dst", far=c("far") + c("w"))


def spreading(rows: Any, edges: Any, start: Any) -> Any:
    return start.concat(near(rows, edges)).group_by("node").agg(far=rr.min("far"))


def pulling(rows: Any, edges: Any, start: Any) -> Any:
    return near(rows, edges).concat(start).group_by("node").agg(far=rr.sum("far"))


def other(rows: Any, edges: Any, start: Any) -> Any:
    return rows.concat(near(rows, edges)).filter(c("far") < 9).distinct()


def sending(rows: Any, edges: Any) -> Any:
    return near(rows, edges)


def sending_twice(rows: Any, edges: Any) -> Any:
    return near(near(rows, edges), edges)


def grouping(rows: Any, edges: Any) -> Any:
    return near(rows, edges).group_by("node").agg(far=rr.min("far"))


Loop = Callable[..., Any]


def bulk(step: Loop) -> Loop:
    def program(edges: Any, rows: Any, seen: list[Any], **options: Any) -> Any:
        start = rows.group_by("node").agg(far=rr.min("far"))

        def body(now: Any, *entered: Any) -> Any:
            seen.append(now)
            return step(now, edges, start)

        return start.iterate(body, **options)

    return program


def delta(send: Loop) -> Loop:
    def program(edges: Any, rows: Any, seen: list[Any], **options: Any) -> Any:
        def sent(accepted: Any) -> Any:
            seen.append(accepted)
            return send(accepted, edges)

        return rows.iterate_delta(
            send(rows, edges), key="node", send=sent, better=LEAST, missing="add", **options
        )

    return program


def by_body(edges: Any, rows: Any, seen: list[Any], **options: Any) -> Any:
    def body(solution: Any, workset: Any) -> Any:
        seen.append(solution)
        return workset, near(workset, edges)

    return rows.iterate_delta(
        near(rows, edges), key="node", body=body, better=LEAST, missing="add", **options
    )


LOOPS: dict[str, tuple[Loop, tuple[str, ...]]] = {
    "spreading": (bulk(spreading), ("arrays", "rounds", "differential")),
    "pulling": (bulk(pulling), ("arrays", "rounds", "differential")),
    "other": (bulk(other), ("arrays", "rounds", "differential")),
    "sending": (delta(sending), ("microstep", "superstep", "differential")),
    "sending twice": (delta(sending_twice), ("microstep", "superstep", "differential")),
    "grouping": (delta(grouping), ("microstep", "superstep", "differential")),
    "by body": (by_body, ("microstep", "superstep", "differential")),
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "three rounds": {"rounds": 3},
    "long": {"expect": 500},
    "within": {"until": rr.loops.tolerance("far", 1), "rounds": 9, "key": "node"},
    "until": {"until": lambda before, after: after, "rounds": 9},
    "at": {"at": "far"},
}
PLACES = ("alone", "inside", "seen", "seen while built")


def flow_of(loop: str, place: str, options: dict[str, Any]) -> rr.Dataflow:
    program, _ = LOOPS[loop]
    flow = rr.Dataflow("loop")
    edges, rows = flow.input("edges", EDGES), flow.input("rows", ROWS)
    seen: list[Any] = []
    if place == "seen while built":

        class Looking(list[Any]):
            def append(self, rows: Any) -> None:
                rows.inspect(print)

        seen = Looking()
    if place == "inside":
        result = rows.iterate(
            lambda now: program(edges, now, seen, **options), rounds=2, name="around"
        )
    else:
        result = program(edges, rows, seen, **options)
    flow.output("result", result)
    if place == "seen":
        seen[0].inspect(print)
    return flow


def way_of(flow: rr.Dataflow, place: str) -> str:
    """How the loop of a plan runs: on arrays, on one worker or on all; in microsteps; by rounds; differentially."""
    plan = flow.plan
    kinds = {node.operator.kind for node in plan.nodes}
    if "stage" in kinds:
        return "arrays, all"
    if kinds & {"spread", "pull"}:
        return "arrays, one"
    if "microsteps" in kinds:
        return "microsteps"
    scopes = {node.scope.number for node in plan.nodes if node.scope.depth > 1}
    if scopes & plan.by_rounds.keys():
        return "rounds"
    assert len(scopes) == (2 if place == "inside" else 1)
    return "differential"


TAKEN = {
    "arrays": ("arrays, one", "arrays, all"),
    "rounds": ("rounds",),
    "differential": ("differential",),
    "superstep": ("arrays, one", "arrays, all", "rounds"),
    "microstep": ("arrays, one", "arrays, all", "microsteps"),
}
"""The ways that a mode asks for."""


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_asked_for_is_taken_or_refused(loop: str, place: str) -> None:
    taken = refused = 0
    codes = set()
    _, modes = LOOPS[loop]
    for mode, over, maintain, case in product(
        ("auto", *modes), ("auto", "one", "all"), ("auto", "restart", "differential"), CASES
    ):
        options = {"mode": mode, "spread_over": over, "maintain": maintain, **CASES[case]}
        if modes[0] == "microstep" and {"until", "at", "key"} & {*CASES[case]}:
            continue
        try:
            way = way_of(flow_of(loop, place, options), place)
        except rr.PlanError as refusal:
            codes.add(refusal.code)
            refused += 1
            continue
        taken += 1
        said = (options, way)
        if mode != "auto":
            assert way in TAKEN[mode], said
        if over != "auto":
            assert way in ({"one": ("arrays, one", "microsteps"), "all": ("arrays, all",)}[over]), (
                said
            )
        if maintain == "differential":
            assert way == "differential", said
        if maintain == "restart":
            assert way in ("rounds", "arrays, one"), said
            assert "spread the" not in flow_of(loop, place, options).explain(), said
        if "until" in options:
            assert way != "differential", said
        if place.startswith("seen"):
            assert way == "differential", said
    assert taken
    assert refused
    assert codes <= {
        "plan.no_arrays", "plan.no_rounds", "plan.loop_seen", "plan.maintain", "plan.until", "plan.microstep",
        "plan.loop_inside", "plan.loop_body",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("loop", "place", "options", "code", "words"),
    [
        ("other", "alone", {"mode": "arrays"}, "plan.no_arrays", ("on arrays", "aggregates of each group")),
        ("other", "alone", {"spread_over": "one"}, "plan.no_arrays", ("over 'one'", "aggregates of each group")),
        ("pulling", "alone", {"spread_over": "all"}, "plan.no_arrays", ("over 'all'", "one worker")),
        ("grouping", "alone", {"mode": "microstep"}, "plan.microstep", ("many rows at a time", "M1")),
        ("by body", "inside", {"mode": "microstep"}, "plan.no_arrays", ("in microsteps", "inside another loop")),
        ("by body", "inside", {"mode": "superstep"}, "plan.no_rounds", ("inside another loop", "not on arrays")),
        ("spreading", "seen while built", {"mode": "arrays"}, "plan.no_arrays", ("looked at inside",)),
        ("spreading", "seen", {"mode": "arrays"}, "plan.loop_seen", ("inspect-1", "mode='arrays' is asked for")),
        ("spreading", "seen", {"spread_over": "all"}, "plan.loop_seen", ("spread_over='all' is asked for",)),
        ("sending", "seen", {"mode": "microstep"}, "plan.loop_seen", ("mode='microstep' is asked for",)),
        ("sending", "seen", {"mode": "superstep"}, "plan.loop_seen", ("mode='superstep' is asked for",)),
        ("pulling", "seen", {"maintain": "restart"}, "plan.loop_seen", ("maintain='restart' is asked for",)),
        ("other", "seen", {"mode": "rounds"}, "plan.loop_seen", ("mode='rounds' is asked for",)),
        ("other", "seen", CASES["until"], "plan.loop_seen", ("the last depends on the rows",)),
    ],
)  # fmt: skip
def test_a_refusal_names_what_misses(
    loop: str, place: str, options: dict[str, Any], code: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(rr.PlanError) as caught:
        _ = flow_of(loop, place, options).plan
    said = str(caught.value)
    assert caught.value.code == code, said
    for word in (*words, "test_asked_for.py:"):
        assert word in said, said


@pytest.mark.parametrize("loop", ["spreading", "sending", "pulling"])
def test_explain_says_who_looks_into_a_loop_that_arrays_would_have_run(loop: str) -> None:
    shown = flow_of(loop, "seen", {}).explain()
    assert "differential, as 'loop-1/inspect-1' (test_asked_for.py:" in shown, shown
