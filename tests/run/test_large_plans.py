"""Large plans: what is done with a plan before its first answer takes steps near to linear in its size."""

from __future__ import annotations

import pickle
import sys
import time

import cloudpickle
import polars as pl
import pytest

import riverrun as rr
from riverrun.plan.diff import StoredProgram, compare, states_of
from riverrun.plan.lineage import lineage_of
from tests.run.shapes import SHAPES, chain, many_to_many, nested_concat, wide
from tests.soaking import draws

SIZE = 96
MOST = 6.5  # times as many steps for a plan four times as large; for a square it would be 16


def steps(act):
    """How many calls of Python functions, and of functions in C, something takes. The same on every machine."""
    count = 0

    def seen(frame, event, argument):
        nonlocal count
        if event in ("call", "c_call"):
            count += 1

    sys.setprofile(seen)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def look_at(flow):
    """What is done with a plan before it runs, and when a checkpoint is resumed by another program."""
    plan = flow.plan
    states = frozenset(name for node in plan.nodes for name in states_of(node))
    lineage = {name: f"{word[:-1]}x" for name, word in lineage_of(plan).items()}
    fingerprint = {name: f"other {said}" for name, said in plan.fingerprint.items()}
    str(compare(plan, StoredProgram(3, fingerprint, states, lineage)))
    str(compare(plan, StoredProgram(3, plan.fingerprint, states, lineage_of(plan))))
    flow.explain()
    flow._repr_svg_()
    pickle.loads(cloudpickle.dumps(plan))


def rows_for(name, size):
    return [] if name == "deep" else [tuple(range(size))] if name == "wide" else [(1,)]


def run_once(flow, name, size, workers):
    with flow.run(workers=workers) as run:
        run.insert("c", rows_for(name, size))
        run.commit()
        return run.read("o").rows()


@pytest.mark.parametrize("name", SHAPES)
def test_steps_grow_with_the_size_of_the_plan(name):
    shape = SHAPES[name]
    for workers in (1, 2):
        run_once(shape(24), name, 24, workers)  # what is done once in a process
    look_at(shape(24))
    taken = []
    for size in (SIZE, 4 * SIZE):
        built = []
        figures = {"build": steps(lambda size=size, built=built: built.append(shape(size)))}
        flow = built[0]
        figures["look"] = steps(lambda flow=flow: look_at(flow))
        for workers in (1, 2):
            figures[f"run with {workers}"] = steps(
                lambda size=size, flow=flow, workers=workers: run_once(flow, name, size, workers)
            )
        taken.append(figures)
    ratios = {what: round(taken[1][what] / taken[0][what], 2) for what in taken[0]}
    print(name, taken, ratios)
    for what, ratio in ratios.items():
        assert ratio <= MOST, (what, ratios)


LIMITS = {n: [n, {"of": n}] for n in range(50)}


def limited(n):
    return LIMITS.get(n, above(n))


def above(n):
    return n and limited(n - 1)


def test_steps_to_tell_functions_grow_with_their_number():
    """What they all call is looked at once."""

    def functions(size):
        flow = rr.Dataflow("functions")
        rows = flow.input("c", {"v": pl.Int64})
        for at in range(size):
            rows = rows.flat_map(
                lambda row, at=at: [{"v": limited(row["v"]) + at}], {"v": pl.Int64}
            )
        flow.output("o", rows)
        return flow

    functions(24).plan.fingerprint  # noqa: B018
    taken = []
    for size in (SIZE, 4 * SIZE):
        plan = functions(size).plan
        taken.append(steps(lambda plan=plan: plan.fingerprint))
    print(taken)
    assert taken[1] <= 4.4 * taken[0]


def test_time_grows_with_the_number_of_columns():
    """What is quadratic inside one call of C does not show in steps."""

    def least(size):
        found = []
        for _ in range(3):
            began = time.process_time()
            run_once(wide(size), "wide", size, 1)
            found.append(time.process_time() - began)
        return min(found)

    run_once(wide(100), "wide", 100, 1)
    small, large = least(1_000), least(4_000)
    assert large < 9 * small + 0.5, (small, large)


BY_COLUMNS = {
    "rename": lambda c: c.rename({name: f"{name}_new" for name in c.columns}),
    "select": lambda c: c.select(*c.columns),
    "drop": lambda c: c.drop(*c.columns[1:]),
    "with_columns": lambda c: c.with_columns(**{f"{n}_new": pl.col(n) for n in c.columns}),
    "group_by": lambda c: c.group_by(c.columns[1:]).count(),
    "distinct": lambda c: c.distinct(c.columns[1:]),
    "agg": lambda c: c.group_by("c0").agg([rr.sum(name) for name in c.columns[1:]]),
    "agg of Polars": lambda c: c.group_by("c0").agg([pl.col(n).sum() for n in c.columns[1:]]),
    "top": lambda c: c.group_by("c0").top(1, by=c.columns[1:]),
    "join": lambda c: c.join(c, on=c.columns[1:]),
}


@pytest.mark.parametrize("name", BY_COLUMNS)
def test_naming_many_columns_takes_time_near_to_linear(name):
    def least(size):
        columns = rr.Dataflow("many").input("c", {f"c{at}": pl.Int64 for at in range(size)})
        found = []
        for _ in range(2):
            began = time.process_time()
            BY_COLUMNS[name](columns)
            found.append(time.process_time() - began)
        return min(found)

    least(50)
    small, large = least(500), least(2_000)
    print(name, small, large)
    assert large < 7 * small + 0.15, (small, large)


def test_long_chains_and_nested_concats_start_and_answer():
    size = draws(1_500, sample=5_000, soak=5_000)
    for workers in (1, 2):
        assert run_once(chain(size), "chain", size, workers) == [(size + 1,)]
    assert run_once(nested_concat(size), "nested_concat", size, 2) == [(1,)]
    assert run_once(many_to_many(size), "many_to_many", size, 2) == [(1,)] * (size // 10 - 2)
