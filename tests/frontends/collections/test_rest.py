"""Loops come to rest with any number of workers: rows that cancel are added up before they go back."""

from __future__ import annotations

import random
from collections import Counter

import polars as pl
import pytest

import riverrun as rr
from riverrun.operators.exchange import Exchange
from riverrun.plan.placement import staying
from tests.frontends.collections.checking import (
    Comparison,
    Rows,
    build,
    check,
    feed,
    from_scratch,
)
from tests.frontends.collections.random_loops import SCHEMA, draw_sum, rests
from tests.soaking import draws, first_seed

EDGES = {"edges": SCHEMA}
src, dst = pl.col("src"), pl.col("dst")


def exchanged(x):
    """The row with the greatest partner leaves its place and comes back to it: nothing changes."""
    return x.concat(x.group_by("src").top(1, by="dst").negate(), top_by_dst(x))


def top_by_dst(x):
    return x.group_by("dst").top(1, by="src").select("src", "dst")


def matching(source):
    """Rows of which each `src` and each `dst` has one."""
    node = source.randrange(8)
    return node, 100 + node


RESTFUL = {
    "one_loop": lambda edges: edges.distinct().iterate(exchanged, patience=20),
    "nested": lambda edges: edges.distinct().iterate(
        lambda x: exchanged(x).iterate(exchanged, patience=20), patience=20
    ),
    "inside_another": lambda edges: edges.distinct().iterate(
        lambda x: x.iterate(exchanged, patience=20).concat(edges).distinct(), patience=20
    ),
    "with_a_limit": lambda edges: edges.distinct().iterate(exchanged, rounds=4),
    "by_priority": lambda edges: edges.distinct().iterate(
        lambda x, seeds: exchanged(seeds.concat(x, x.distinct().negate())), at="src", patience=40
    ),
}


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("name", RESTFUL)
def test_a_loop_at_rest_with_one_worker_is_at_rest_with_several(name, workers):
    for seed in range(2):
        make = {"edges": matching}
        check(RESTFUL[name], EDGES, seed=seed, make=make, workers=workers, epochs=3)


def by_hand(edges, flow):
    """A loop made by hand, whose variable goes around with what is put in and taken out beside it."""
    loop = flow.loop(name="by-hand")
    first = loop.enter(edges)
    back = loop.feedback(SCHEMA)
    x = first.concat(back)
    left = x.filter(src > 0).select(src=src - 1, dst=dst - 1)
    back.connect(left.concat(x.group_by("src").top(1, by="dst").negate(), top_by_dst(x)))
    return loop.leave(x)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_loops_made_by_hand_come_to_rest_too(workers):
    flow = rr.Dataflow("by-hand")
    edges = flow.input("edges", SCHEMA)
    flow.output("result", by_hand(edges, flow))
    rows = [(node, 100 + node) for node in range(5)]
    with flow.run(workers=workers) as run:
        run.insert("edges", rows)
        run.commit()
        assert run.read("result").rows() == sorted(
            (n, 100 + n) for m, _ in rows for n in range(m + 1)
        )
        run.delete("edges", rows[1:])
        run.commit()
        assert run.read("result").rows() == rows[:1]


def drawn_input(source):
    """Four epochs of changes to few different rows, and the rows that are there after each."""
    rows = Rows(lambda s: (s.randrange(3), s.randrange(3)))
    changes, there = [], []
    for _ in range(4):
        changes.append(rows.epoch(source, 4))
        there.append(list(rows.there.elements()))
    return changes, there


def compare_with_the_judge(program, changes, there, workers, said):
    flow = build(program, EDGES)
    comparison = Comparison(f"{said}, workers={workers}: {program}")
    with flow.run(workers=workers) as run:
        for some, rows in zip(changes, there, strict=True):
            feed(run, "edges", some)
            expected = from_scratch(program, EDGES, {"edges": Counter(rows)})
            run.commit()
            comparison.compare(run, expected)


def test_random_loops_of_differences_come_to_rest():
    """Loops that the judge sees come to rest do so with one worker and with several, and give what it gives."""
    first = first_seed()
    for seed in range(first, first + draws(16, sample=150, soak=800)):
        source = random.Random(seed)
        changes, there = drawn_input(source)
        program = draw_sum(source, depth=1 + seed % 2)
        while not rests(program, there):
            program = draw_sum(source, depth=1 + seed % 2)
        for workers in (1, source.choice((2, 3, 4))):
            compare_with_the_judge(program, changes, there, workers, f"seed={seed}")


# -- where rows lie beside their equals already, nothing travels


def moving_by_row(program):
    """How many exchanges by row a program has, and how many of them move rows."""
    plan = build(program, EDGES).plan
    stay = staying(plan)
    by_row = [
        node.number
        for node in plan.nodes
        if isinstance(node.operator, Exchange) and node.operator.route == "row"
    ]
    return len(by_row), sum(number not in stay for number in by_row)


def by_src(edges):
    return edges.group_by("src").agg(dst=rr.max("dst"))


def by_dst(edges):
    return edges.group_by("dst").agg(src=rr.max("src"))


lowered = {"src": "src", "dst": pl.max_horizontal(dst - 1, pl.lit(0))}


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        # the body's result passes a group: it needs no adding up
        (lambda edges: edges.iterate(lambda x: x.concat(edges).distinct()), (0, 0)),
        # rows of an input lie anywhere, and what cancels meets by row
        (lambda edges: edges.iterate(lambda x: x.select(**lowered)), (1, 1)),
        (lambda edges: edges.iterate(exchanged), (1, 1)),
        # rows that a group has placed stay there while they keep its key
        (lambda edges: edges.distinct().iterate(lambda x: x.filter(src > 1)), (1, 0)),
        (lambda edges: by_src(edges).iterate(lambda x: x.select(**lowered)), (1, 0)),
        (lambda edges: by_src(edges).iterate(lambda x: x.inspect().select(**lowered)), (1, 0)),
        (lambda edges: by_dst(edges).iterate(lambda x: x.select(src="src", dst=dst // 2)), (1, 1)),
        # a loop behind another one, or in it, does not move them again
        (lambda edges: edges.iterate(lambda x: x.filter(src > 1)).iterate(lambda x: x.filter(src > 2)), (2, 1)),
        (lambda edges: edges.iterate(lambda x: x.iterate(lambda y: y.filter(src > 1)).filter(src > 2)), (1, 1)),
    ],
)  # fmt: skip
def test_rows_travel_only_where_equal_ones_may_lie_apart(program, expected):
    assert moving_by_row(program) == expected


def test_rows_that_cancel_move_no_watermark():
    """What a negation takes out within an epoch was never there: rows expire by those that were."""
    for workers in (1, 2, 3):
        flow = rr.Dataflow("negated")
        rows = flow.input("rows", {"at": pl.Int64})
        some = rows.concat(rows.filter(pl.col("at") > 50).negate())
        flow.output("result", some.expire("at", after=10))
        with flow.run(workers=workers) as run:
            run.insert("rows", [(1,), (2,), (99,)])
            run.commit()
            assert run.read("result").rows() == [(1,), (2,)]
