"""Loops: fixed points, limits, priorities, nesting, all against the program run from scratch."""

from __future__ import annotations

import random

import polars as pl
import pytest

import riverrun as rr
from tests.frontends.collections.checking import build, check
from tests.soaking import seeds

EDGES = {"edges": {"src": pl.Int64, "dst": pl.Int64}}
src, dst = pl.col("src"), pl.col("dst")


def small(nodes):
    return {"edges": lambda source: (source.randrange(nodes), source.randrange(nodes))}


def check_graph(program, seed, nodes=7, most=7, **options):
    check(program, EDGES, seed=seed, make=small(nodes), most=most, **options)


def step(rows, edges):
    """Rows that go one edge further."""
    return rows.join(edges, left_on="dst", right_on="src", suffix="_2").select("src", dst="dst_2")


def reachable(edges):
    return edges.iterate(lambda reached: step(reached, edges).concat(edges).distinct())


def smallest(start, edges):
    """The least label that reaches each node along edges."""
    return start.iterate(
        lambda labels: (
            labels.join(edges, left_on="node", right_on="src")
            .select(node="dst", label="label")
            .concat(start)
            .group_by("node")
            .agg(label=rr.min("label"))
        )
    )


def components(edges):
    both = edges.concat(edges.select(src="dst", dst="src"))
    return smallest(both.select(node="src", label="src").distinct(), both)


def components_by_priority(edges):
    both = edges.concat(edges.select(src="dst", dst="src"))
    nodes = both.select(node="src", label="src").distinct()
    return nodes.iterate(
        lambda labels, seeds: (
            labels.join(both, left_on="node", right_on="src")
            .select(node="dst", label="label")
            .concat(seeds)
            .group_by("node")
            .agg(label=rr.min("label"))
        ),
        at=pl.col("label") // 2,
    )


def strong_components(edges):
    """Edges inside strongly connected components: a loop around two loops."""

    def between_equals(edges):
        start = edges.select(node="src", label="src").distinct()
        labels = smallest(start, edges)
        both = edges.join(labels, left_on="src", right_on="node")
        both = both.join(labels, left_on="dst", right_on="node")
        return both.filter(pl.col("label") == pl.col("label_right")).select(src="dst", dst="src")

    return edges.distinct().iterate(lambda remaining: between_equals(between_equals(remaining)))


def three_deep(edges):
    """Three loops, each using the rows of the ones around it."""

    def outer(a):
        def middle(b):
            def inner(c):
                return step(c, edges).concat(b).filter(src <= dst).distinct()

            raised = b.iterate(inner).select("src", dst=pl.min_horizontal(dst + 1, pl.lit(3)))
            return raised.concat(a, b).distinct()

        return a.iterate(middle).concat(edges.select(src="dst", dst="src")).distinct()

    return edges.distinct().iterate(outer, rounds=3)


def three_deep_not_monotone(edges):
    """Three loops that put rows in and take rows out again as rounds go on."""

    def outer(a):
        def middle(b):
            def inner(c):
                return step(c, edges).anti_join(a, on=["src", "dst"]).concat(b).distinct()

            return b.iterate(inner, rounds=3).anti_join(a.select("src"), on="src").concat(edges)

        return a.iterate(middle, rounds=2).select(src="dst", dst="src").distinct()

    return edges.distinct().iterate(outer, rounds=3)


def mutual(edges):
    """An inner loop whose body joins with the variable of the outer one."""
    return edges.distinct().iterate(
        lambda outer: (
            outer.select(src="dst", dst="dst")
            .distinct()
            .iterate(lambda inner: step(inner, outer).concat(inner).distinct())
            .concat(outer)
            .distinct()
        )
    )


def down(column):
    return pl.max_horizontal(column - 1, pl.lit(0))


def to_zero_in_two(edges):
    """Nothing in it keeps state, one loop inside the other."""
    return edges.iterate(
        lambda rows: rows.iterate(lambda r: r.select(src=down(src), dst="dst")).select(
            src="dst", dst="src"
        ),
        rounds=3,
    )


FIXED_POINTS = {
    "reachable": reachable,
    "components": components,
    "components_by_priority": components_by_priority,
    "mutual": mutual,
    "to_zero_in_two": to_zero_in_two,
    "itself": lambda edges: edges.iterate(lambda rows: rows),
    "twice_itself": lambda edges: edges.iterate(lambda rows: rows.iterate(lambda r: r)),
    "to_zero": lambda edges: edges.iterate(lambda rows: rows.select(src=down(src), dst="dst")),
    "to_nothing": lambda edges: edges.iterate(
        lambda rows: rows.filter(src > 0).select(src=src - 1, dst="dst")
    ),
    "a_filter": lambda edges: edges.iterate(lambda rows: rows.filter(src > 2)),
    "not_its_variable": lambda edges: edges.iterate(lambda rows: edges.filter(src > 2)),
    "from_nothing": lambda edges: edges.filter(src < 0).iterate(
        lambda rows: rows.concat(edges).distinct()
    ),
    "other_order": lambda edges: edges.iterate(lambda r: r.concat(edges).distinct().select("dst", "src")),
    "consolidated": lambda edges: edges.iterate(
        lambda rows: rows.select(src=down(src), dst="dst").consolidate()
    ),
    "semi_joined": lambda edges: edges.distinct().iterate(
        lambda rows: rows.semi_join(rows.select("dst"), left_on="src", right_on="dst")
    ),
    "topped": lambda edges: edges.iterate(
        lambda rows: step(rows, edges).concat(edges).distinct().group_by("src").top(2, by="dst"),
        rounds=6,
    ),
    "applied": lambda edges: edges.iterate(
        lambda rows: (
            step(rows, edges)
            .concat(edges)
            .group_by("src")
            .apply(lambda group: group["dst"].max(), {"dst": pl.Int64})
        ),
        rounds=6,
    ),
    "two_loops_in_a_row": lambda edges: components(edges).rename({"node": "src", "label": "dst"}).iterate(
        lambda rows: step(rows, edges).concat(rows).distinct()
    ),
    "two_results": lambda edges: {"all": reachable(edges), "labels": components(edges)},
}  # fmt: skip


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(4, soak=16))
@pytest.mark.parametrize("name", FIXED_POINTS)
def test_fixed_points(name, seed):
    check_graph(FIXED_POINTS[name], seed)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(4, soak=16))
@pytest.mark.parametrize("program", [strong_components, three_deep, three_deep_not_monotone])
def test_nested_loops(program, seed):
    check_graph(program, seed, nodes=4, most=4, epochs=4)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7])
def test_limits(limit, workers):
    def walks(edges):
        return edges.iterate(lambda rows: step(rows, edges), rounds=limit)

    def limited(edges):
        return edges.iterate(lambda rows: step(rows, edges).concat(rows).distinct(), rounds=limit)

    def sums(edges):
        return edges.iterate(
            lambda rows: rows.concat(edges).group_by("src").agg(dst=rr.sum(dst % 5)), rounds=limit
        )

    for seed in range(2):
        check_graph(walks, seed, nodes=4, most=4, workers=workers)
        check_graph(limited, seed, workers=workers)
        check_graph(sums, seed, workers=workers)


@pytest.mark.parametrize("limit", [None, 1, 2, 5])
def test_limits_and_priorities(limit):
    def limited(edges):
        return edges.iterate(
            lambda rows, seeds: step(rows, edges).concat(seeds).distinct(), at="src", rounds=limit
        )

    def without_seeds(edges):  # what the body leaves out is not there
        return edges.iterate(
            lambda rows, seeds: seeds.filter(dst > 1).concat(step(rows, seeds)).distinct(),
            at=src * 2,
            rounds=limit,
        )

    for seed in range(4):
        check_graph(limited, seed)
        check_graph(without_seeds, seed)


def test_priorities_in_a_nested_loop():
    def labels(edges):
        return edges.distinct().iterate(
            lambda outer: (
                outer.iterate(
                    lambda rows, seeds: step(rows, outer).concat(seeds).distinct(), at="dst"
                )
                .filter(src != dst)
                .concat(edges)
                .distinct()
            ),
            rounds=2,
        )

    for seed in range(4):
        check_graph(labels, seed, nodes=5, most=5)


@pytest.mark.parametrize("workers", [1, 3])
def test_long_chains_grow_shrink_and_break(workers):
    flow = build(components, EDGES)
    with flow.run(workers=workers) as run:
        edges = [(n, n + 1) for n in range(40)]
        run.insert("edges", edges)
        run.commit()
        assert run.read("result").rows() == [(n, 0) for n in range(41)]
        run.delete("edges", edges[19:20])
        run.commit()
        assert run.read("result").rows() == [(n, 0 if n < 20 else 20) for n in range(41)]
        run.insert("edges", [edges[19], (40, 0)])
        run.delete("edges", edges[5:6])
        run.commit()
        assert run.read("result").rows() == [(n, 0) for n in range(41)]
        run.delete("edges", [*edges[:5], *edges[6:], (40, 0)])
        run.commit()
        assert run.read("result").rows() == []


def test_rescaled_between_epochs():
    for seed in range(3):
        check_graph(reachable, seed, scale=True, workers=2)
        check_graph(strong_components, seed, nodes=4, most=4, scale=True)


def test_a_body_that_fails_leaves_the_flow_as_it_was():
    flow = rr.Dataflow("again")
    edges = flow.input("edges", EDGES["edges"])
    with pytest.raises(ZeroDivisionError):
        edges.iterate(lambda rows: edges.iterate(lambda inner: rows.concat(inner, 1 // 0)))
    with pytest.raises(rr.PlanError):
        edges.iterate(lambda rows: rows.select("src"), name="found")
    flow.output("found", edges.iterate(lambda rows: rows.distinct(), name="found"))
    with flow.run() as run:
        run.insert("edges", [(1, 2), (1, 2)])
        run.commit()
        assert run.read("found").rows() == [(1, 2)]


# -- random loops


def growing(draw, rows, scope):
    """Rows of a finite set, more of them the more there are."""
    other = draw.choice(scope)
    kind = draw.randrange(7)
    if kind == 0:
        return step(rows, other)
    if kind == 1:
        return rows.select(src="dst", dst="src")
    if kind == 2:
        return rows.concat(other)
    if kind == 3:
        return rows.semi_join(other, on="src").select(src=(src + 1) % 4, dst="dst")
    if kind == 4:
        return rows.concat(rows.group_by("src").agg(dst=rr.max("dst")))
    if kind == 5:
        return rows.filter(src != dst).concat(other.filter(dst < 2))
    return rows.join(other, on="dst", suffix="_2").select("src", dst="src_2").distinct()


def changing(draw, rows, scope):
    """Rows of a finite set, that come and go as others do."""
    other = draw.choice(scope)
    kind = draw.randrange(8)
    if kind == 0:
        return step(rows, other).distinct()
    if kind == 1:
        return rows.anti_join(other, left_on="src", right_on="dst").concat(scope[0]).distinct()
    if kind == 2:
        return rows.concat(other).group_by("src").agg(dst=rr.count()).select("src", dst=dst % 4)
    if kind == 3:
        return rows.concat(other.select(src=(dst + 1) % 4, dst="src")).distinct()
    if kind == 4:
        return rows.concat(step(rows, scope[0])).group_by("src").agg(dst=rr.min("dst"))
    if kind == 5:
        return rows.concat(other).group_by("dst").top(1, by="src").select(src="dst", dst="src")
    if kind == 6:
        return rows.join(other, on="src", how="left", suffix="_2").select(
            src="dst", dst=pl.coalesce("dst_2", "src")
        )
    return rows.group_by("src").agg(dst=rr.sum((src + dst) % 3)).select("src", dst=dst % 4)


def random_loop(source, depth, limits=False):
    """A program of nested loops, which all come to rest, or have a limit of a few rounds."""
    shape = source.getrandbits(32)

    def program(edges):
        return around(random.Random(shape), edges.distinct(), [edges], depth).distinct()

    def around(draw, rows, scope, depth):
        inner, limit = draw.getrandbits(32), draw.randint(2, 3) if limits else None

        def body(variable):  # the same in every round
            draw = random.Random(inner)
            around_it = [*scope, variable]
            inside = variable
            for _ in range(draw.randint(1, 2)):
                inside = (changing if limits else growing)(draw, inside, around_it)
            if depth > 1 and draw.random() < 0.8:
                inside = around(draw, inside, around_it, depth - 1)
            if limits:
                return changing(draw, inside, around_it).distinct()
            return inside.concat(rows, variable).distinct()

        return rows.iterate(body, rounds=limit)

    return program


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(12, soak=48))
def test_random_nested_loops(seed):
    program = random_loop(random.Random(seed), depth=1 + seed % 3)
    check_graph(program, seed, nodes=4, most=3, epochs=4)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(14, soak=56))
def test_random_nested_loops_that_do_not_come_to_rest(seed):
    """What a loop with a limit gives depends on every round, so none may be wrong for a while."""
    program = random_loop(random.Random(seed), depth=2 + seed % 2, limits=True)
    check_graph(program, seed, nodes=3, most=4, epochs=5)
