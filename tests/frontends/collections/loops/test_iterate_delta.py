"""Delta iterations: against the same loop computed from scratch, and against loops that do the same as a whole."""

from __future__ import annotations

import random

import polars as pl
import pytest

import riverrun as rr
from tests.frontends.collections.checking import build, check, feed
from tests.frontends.collections.reference import Body
from tests.soaking import seeds

EDGES = {"edges": {"src": pl.Int64, "dst": pl.Int64, "w": pl.Int64}}
LEAST = rr.loops.least("label")


def small(nodes=6, weights=4):
    return {
        "edges": lambda source: (
            source.randrange(nodes),
            source.randrange(nodes),
            source.randrange(weights),
        )
    }


def both_ways(edges):
    return edges.concat(edges.select(src="dst", dst="src", w="w"))


def own_labels(edges):
    return both_ways(edges).select(node="src", label="src").distinct()


def sent(labels, edges):
    return labels.join(edges, left_on="node", right_on="src").select(node="dst", label="label")


def components(edges):
    both, start = both_ways(edges), own_labels(edges)
    send = lambda labels: sent(labels, both)  # noqa: E731
    return start.iterate_delta(send(start), key="node", send=send, better=LEAST)


def components_by_step(edges):
    both, start = both_ways(edges), own_labels(edges)

    def step(labels, heard):
        least = heard.group_by("node").agg(label=rr.min("label"))
        known = least.join(labels, on="node", suffix="_now")
        return known.filter(pl.col("label") < pl.col("label_now")).select("node", "label")

    body = Body(step, lambda delta: sent(delta, both))
    return start.iterate_delta(sent(start, both), key="node", body=body)


def components_by_body(edges):
    """The delta is a reduce whose own arrangement the next workset reads; not all of its rows are accepted."""
    both, start = both_ways(edges), own_labels(edges)
    body = Body(
        lambda labels, heard: heard.group_by("node").agg(label=rr.min("label")),
        lambda delta: sent(delta, both),
    )
    return start.iterate_delta(sent(start, both), key="node", body=body, better=LEAST)


def distances(edges):
    start = (
        edges.filter(pl.col("src") == 0).select(node="src", label=pl.lit(0, pl.Int64)).distinct()
    )

    def send(near):
        there = near.join(edges, left_on="node", right_on="src")
        return there.select(node="dst", label=pl.col("label") + pl.col("w"))

    return start.iterate_delta(send(start), key="node", send=send, better=LEAST, missing="add")


def widest(edges):
    """Widest paths from node 0, with the node before on the way: ties are broken by the other column."""
    start = (
        edges.filter(pl.col("src") == 0)
        .select(node="src", width=pl.lit(9, pl.Int64), via="src")
        .distinct()
    )

    def send(near):
        there = near.join(edges, left_on="node", right_on="src")
        return there.select(
            node="dst", width=pl.min_horizontal(pl.col("width"), pl.col("w")), via="node"
        )

    best = rr.loops.greatest("width")
    return start.iterate_delta(send(start), key="node", send=send, better=best, missing="add")


def closure(edges):
    """All pairs that a path joins, with its length in edges: keyed by two columns, growing."""
    start = edges.select("src", "dst", hops=pl.lit(1, pl.Int64)).distinct()

    def send(pairs):
        longer = pairs.join(edges, left_on="dst", right_on="src", suffix="_2")
        return longer.select("src", dst="dst_2", hops=pl.col("hops") + 1)

    return start.iterate_delta(
        send(start), key=["src", "dst"], send=send, better=rr.loops.least("hops"), missing="add"
    )


def by_two_columns(edges):
    """A key of a text and a number, so that columns are not kept in the order in which they are written."""
    named = edges.select(
        a=pl.col("src").cast(pl.String), b="w", c=pl.col("dst").cast(pl.String), d=pl.col("w") % 2
    )
    start = named.select("a", "b", far=pl.lit(0, pl.Int64)).filter(pl.col("a") == "0").distinct()

    def send(near):
        there = near.join(named, on=["a", "b"])
        return there.select(a="c", b="d", far=pl.col("far") + 1)

    least = rr.loops.least("far")
    return start.iterate_delta(send(start), key=["a", "b"], send=send, better=least, missing="add")


def by_pairs(edges):
    """Components of pairs, whose sources and targets have two columns each."""
    steps = edges.select(a="src", b=pl.col("w") % 2, c="dst", d=pl.col("src") % 2)
    start = steps.select("a", "b", label=pl.col("a") * 2 + pl.col("b")).distinct()

    def send(labels):
        return labels.join(steps, on=["a", "b"]).select(a="c", b="d", label="label")

    return start.iterate_delta(send(start), key=["a", "b"], send=send, better=LEAST, missing="add")


def by_expression(edges):
    """The label furthest from 3 wins."""
    both, start = both_ways(edges), own_labels(edges)
    send = lambda labels: sent(labels, both)  # noqa: E731
    better = rr.loops.greatest((pl.col("label") - 3).abs())
    return start.iterate_delta(send(start), key="node", send=send, better=better)


def few_rounds(edges):
    both, start = both_ways(edges), own_labels(edges)
    send = lambda labels: sent(labels, both)  # noqa: E731
    return start.iterate_delta(send(start), key="node", send=send, better=LEAST, rounds=2)


def replacing(edges):
    """Without an order of rows: each node takes the label of the least node that leads to it, three times."""
    start = own_labels(edges)
    least = edges.group_by("dst").agg(src=rr.min("src"))

    def step(labels, heard):
        found = least.join(labels, left_on="src", right_on="node")
        return found.select(node="dst", label="label").semi_join(heard, on="node")

    body = Body(step, lambda delta: delta.select("node").distinct())
    return start.iterate_delta(start.select("node"), key="node", body=body, rounds=3)


def inside_a_loop(edges):
    """Edges between different components of what is left are taken out, in a loop around the delta iteration."""

    def cut(rows):
        labels = components(rows)
        far = rows.join(labels, left_on="src", right_on="node").join(
            labels, left_on="dst", right_on="node", suffix="_2"
        )
        return far.filter(pl.col("src") != pl.col("label")).select("src", "dst", "w").distinct()

    return edges.iterate(cut, rounds=3)


PROGRAMS = [
    components,
    components_by_step,
    components_by_body,
    distances,
    widest,
    closure,
    by_two_columns,
    by_pairs,
    by_expression,
    few_rounds,
    replacing,
    inside_a_loop,
]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("seed", seeds(4, soak=200))
def test_equals_the_loop_from_scratch(program, seed):
    check(program, EDGES, seed=seed, make=small(), scale=seed % 2 == 1)


def test_a_delta_iteration_and_a_loop_over_everything_agree():
    def whole(edges):
        both, start = both_ways(edges), own_labels(edges)
        return start.iterate(
            lambda labels: (
                sent(labels, both).concat(start).group_by("node").agg(label=rr.min("label"))
            )
        )

    flow = build(
        lambda edges: {
            "delta": components(edges),
            "body": components_by_step(edges),
            "whole": whole(edges),
        },
        EDGES,
    )
    source = random.Random(7)
    make = small(30, 2)["edges"]
    with flow.run(workers=2) as run:
        there = []
        for _ in range(8):
            new = [make(source) for _ in range(12)]
            old = source.sample(there, min(len(there), 9))
            there = [row for row in there if row not in old] + new
            feed(run, "edges", [(row, 1) for row in new])
            feed(run, "edges", [(row, -1) for row in set(old)])
            there = [row for row in there if row not in old]
            run.commit()
            assert run.read("delta").rows() == run.read("whole").rows() == run.read("body").rows()


# -- mistakes


def flow_of(program, schemas=EDGES):
    return build(program, schemas)


def refused(program, code, *words):
    with pytest.raises(rr.RiverrunError) as caught:
        flow_of(program)
    said = str(caught.value)
    assert caught.value.code == code, said
    for word in words:
        assert word in said, said


def labels_and(edges, **options):
    start = own_labels(edges)
    return start.iterate_delta(**{"workset": sent(start, edges), "key": "node", **options})


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"workset": [1], "send": lambda r: r}, "plan.workset", ("a list",)),
        ({"key": "nod", "send": lambda r: r}, "plan.column_unknown", ("mean 'node'",)),
        ({"key": [], "send": lambda r: r}, "plan.column", ()),
        ({}, "plan.loop_body", ("nothing to do",)),
        ({"body": lambda s, w: (s, w), "send": lambda r: r}, "plan.loop_body", ("both",)),
        ({"body": lambda s: s}, "plan.loop_body", ("two arguments",)),
        ({"send": lambda a, b: a}, "plan.loop_body", ("one argument",)),
        ({"send": 3}, "plan.function", ("3",)),
        ({"send": lambda r: None}, "plan.loop_body", ("None", "the next workset")),
        ({"body": lambda s, w: w}, "plan.loop_body", ("the delta and the next workset",)),
        ({"body": lambda s, w: (w, 3)}, "plan.loop_body", ("int", "the delta and")),
        ({"send": lambda r: r, "better": "label"}, "plan.better", ("rr.loops.least",)),
        (
            {"send": lambda r: r, "better": rr.loops.least("lable")},
            "plan.column_unknown",
            ("'label'",),
        ),
        ({"send": lambda r: r, "missing": "keep"}, "plan.missing", ("dropped or added",)),
        ({"send": lambda r: r, "rounds": -1}, "plan.rounds", ("-1",)),
        ({"send": lambda r: r, "patience": 0}, "plan.patience", ("0",)),
        ({"send": lambda r: r.select("node")}, "plan.columns_differ", ("node: int64, label",)),
        (
            {"body": lambda s, w: (s.select("node"), w)},
            "plan.columns_differ",
            ("cannot iterate_delta",),
        ),
        (
            {"send": lambda r: r.select("node", label=pl.col("label").cast(pl.String))},
            "plan.columns_differ",
            ("string",),
        ),
    ],
)
def test_mistakes_are_refused_while_the_program_is_built(options, code, words):
    refused(lambda edges: labels_and(edges, **options), code, *words)


def test_a_refused_loop_leaves_nothing_behind():
    flow = rr.Dataflow("f")
    edges = flow.input("edges", EDGES["edges"])
    nodes = len(flow._builder.nodes)
    start = own_labels(edges)
    between = len(flow._builder.nodes)
    with pytest.raises(rr.PlanError):
        start.iterate_delta(start, key="node", send=lambda rows: None)
    assert len(flow._builder.nodes) == between > nodes


def test_two_rows_for_a_key_are_refused_and_the_next_epoch_goes_on():
    rows = {"rows": {"k": pl.String, "v": pl.Int64}, "new": {"k": pl.String, "v": pl.Int64}}

    def program(rows, new):
        body = Body(lambda solution, workset: workset, lambda delta: delta.filter(pl.lit(False)))
        return rows.iterate_delta(new, key="k", body=body)

    for workers in (1, 3):
        with build(program, rows).run(workers=workers) as run:
            run.insert("rows", [("a", 1), ("b", 2)])
            run.insert("new", [("a", 5), ("a", 5), ("z", 1)])
            run.commit()
            assert run.read("result").rows() == [("a", 5), ("b", 2)]
            run.insert("new", [("b", 7), ("b", 8)])
            with pytest.raises(rr.OperatorFailed) as caught:
                run.commit()
            assert caught.value.code == "operator.two_rows"
            assert "'b'" in str(caught.value)
            assert "better=" in str(caught.value)
            run.insert("rows", [("a", 9)])
            with pytest.raises(rr.OperatorFailed, match="the solution of iterate_delta has two"):
                run.commit()
            run.insert("new", [("b", 7)])
            run.commit()
            assert run.read("result").rows() == [("a", 5), ("b", 7)]


def test_a_loop_that_never_rests_says_what_changes():
    def longer(edges):
        start = edges.select(node="src", label="w").distinct()

        def send(near):
            there = near.join(edges, left_on="node", right_on="src")
            return there.select(node="dst", label=pl.col("label") - 1)

        return start.iterate_delta(send(start), key="node", send=send, better=LEAST, patience=20)

    with flow_of(longer).run() as run:
        run.insert("edges", [(1, 2, 0), (2, 3, 0)])
        run.insert("edges", [(2, 1, 0)])
        with pytest.raises(rr.OperatorFailed) as caught:
            run.commit()
        assert caught.value.code == "operator.diverges"
        run.insert("edges", [(1, 2, 5)])
        run.commit()
        assert run.read("result").rows()


def test_columns_are_widened_and_keys_may_be_of_any_type():
    def program(edges):
        narrow = edges.select(node=pl.col("src").cast(pl.String), label=pl.col("src").cast(pl.Int8))
        start = narrow.distinct()
        both = edges.select(a=pl.col("src").cast(pl.String), b=pl.col("dst").cast(pl.String), w="w")

        def send(near):
            there = near.join(both, left_on="node", right_on="a")
            return there.select(node="b", label=pl.col("label").cast(pl.Int64) + pl.col("w"))

        return start.iterate_delta(send(start), key="node", send=send, better=LEAST, missing="add")

    flow = flow_of(program)
    assert flow.schema("result").field("label").type == "int64"
    check(program, EDGES, seed=3, make=small())


def test_zero_rounds_are_the_start():
    check(lambda edges: labels_and(edges, send=lambda r: r, rounds=0), EDGES, seed=5, make=small())
