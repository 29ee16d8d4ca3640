"""Loops by rounds: against the loop computed from scratch, and against the differential loop, to the last bit."""

from __future__ import annotations

import random
from dataclasses import dataclass

import polars as pl
import pytest

import riverrun as rr
from tests.frontends.collections.checking import build, check, feed
from tests.frontends.collections.loops import test_iterate_delta as deltas
from tests.frontends.collections.random_loops import TERMS, Sum, draw_sum, rests
from tests.frontends.collections.reference import Bag, Body, iterate_together
from tests.soaking import seeds

EDGES = {"edges": {"src": pl.Int64, "dst": pl.Int64, "w": pl.Int64}}
TWO = {**EDGES, "roots": {"node": pl.Int64, "label": pl.Int64}}


def small(nodes=6, weights=4):
    return {
        "edges": lambda source: (
            source.randrange(nodes),
            source.randrange(nodes),
            source.randrange(weights),
        ),
        "roots": lambda source: (source.randrange(nodes), source.randrange(weights)),
    }


def both_ways(edges):
    return edges.concat(edges.select(src="dst", dst="src", w="w"))


def own_labels(edges):
    return both_ways(edges).select(node="src", label="src").distinct()


def sent(labels, edges):
    return labels.join(edges, left_on="node", right_on="src").select(node="dst", label="label")


# -- programs: each takes the options of `iterate` besides its rows


def components(edges, **how):
    both, start = both_ways(edges), own_labels(edges)
    return start.iterate(
        lambda labels: sent(labels, both).concat(start).group_by("node").agg(label=rr.min("label")),
        **how,
    )


def reachable(edges, roots, **how):
    """A start that has no group, constants put in each round, and a distinct at the end."""
    start = roots.select("node")

    def step(nodes):
        onward = nodes.join(edges, left_on="node", right_on="src").select(node="dst")
        return onward.concat(start).distinct()

    return start.iterate(step, **how)


def ranks(edges, roots, **how):
    """Sums of floats, and a filter that reads what changes."""
    degrees = edges.group_by("src").agg(n=rr.count())
    shares = edges.join(degrees, on="src")
    base = both_ways(edges).select(node="src").distinct().with_columns(part=pl.lit(0.15))

    def flow(ranks):
        parts = ranks.filter(pl.col("rank") > 0.2).join(shares, left_on="node", right_on="src")
        parts = parts.select(node="dst", part=0.85 * (pl.col("rank") / pl.col("n")))
        return parts.concat(base).group_by("node").agg(rank=rr.sum("part"), n=rr.count())

    start = base.select("node", rank="part", n=pl.lit(1, pl.Int64))
    return start.iterate(flow, **{"rounds": 5, **how})


def every_join(edges, roots, **how):
    """Joins of all kinds, of the rows of a round with each other and with rows from outside."""
    start = roots.distinct()

    def step(now):
        left = now.join(edges, left_on="node", right_on="src", how="left")
        left = left.select("node", label=pl.max_horizontal(pl.col("label"), pl.col("w")))
        right = edges.join(now, left_on="dst", right_on="node", how="right").select(
            "node", label=pl.col("label").clip(0, 5)
        )
        itself = now.join(now, left_on="label", right_on="node", suffix="_2")
        itself = itself.select("node", label="label_2")
        full = now.join(roots, on="node", how="full", suffix="_2")
        full = full.select("node", label=pl.col("label_2").fill_null(0))
        kept = now.semi_join(roots, on="label").concat(
            now.anti_join(edges, left_on="node", right_on="dst")
        )
        return (
            left.concat(right, itself, full, kept).distinct().filter(pl.col("node").is_not_null())
        )

    return start.iterate(step, **{"rounds": 4, **how})


def grouped(edges, roots, **how):
    """Groups of every kind: several parts, Polars, Python, the first rows, and a co-group with rows from outside."""
    start = roots.distinct()

    def step(now):
        sums = now.group_by("node").agg(
            rr.count("label").alias("n"), least=rr.min("label"), middle=pl.col("label").median()
        )
        label = (pl.col("least") + pl.col("n")) % 5
        one = sums.select("node", label=label)
        two = now.group_by("label").top(2, by="node").select("node", "label")
        three = now.group_by("node").apply(
            lambda frame: {"label": int(frame["label"].fill_null(0).sum()) % 3}, {"label": pl.Int64}
        )
        four = now.co_group(edges.select(node="src", w="w"), "node", met, {"label": pl.Int64})
        five = now.co_group(
            edges.select(node="dst", w="w"), "node", met, {"label": pl.Int64}, inner=True
        )
        return one.concat(two, three, four, five).distinct()

    return start.iterate(step, **{"rounds": 4, **how})


def met(key, left, right):
    return [((len(left) + 2 * len(right)) % 4,)]


def constants_inside(edges, roots, **how):
    """What the body makes of constants alone moves out of the loop: a group, a join, an arrangement shared with it."""
    start = roots.distinct()

    def step(now):
        least = edges.filter(pl.col("w") > 0).group_by("src").agg(dst=rr.min("dst"))
        twice = least.join(edges, on="src", suffix="_2").select("src", dst="dst_2")
        onward = now.join(least.concat(twice).distinct(), left_on="node", right_on="src")
        return onward.select(node="dst", label="label").concat(start).distinct()

    return start.iterate(step, **how)


def rows_that_vanish(edges, roots, **how):
    """A loop that ends with no rows."""
    start = roots.distinct()
    return start.iterate(
        lambda now: now.select("node", label=pl.col("label") - 1).filter(pl.col("label") >= 0),
        **how,
    )


def several_times(edges, roots, **how):
    """Rows that are there several times, and rows that are taken out, over rounds that differ on each worker."""

    def step(now):
        more = now.join(edges, left_on="node", right_on="src").select(node="dst", label="w")
        return now.concat(more, now.filter(pl.col("label") > 1).negate())

    return roots.iterate(step, **{"rounds": 3, **how})


def swapped(edges, roots, **how):
    """A body that never comes to rest, with columns in another order."""
    start = roots.distinct()
    return start.iterate(lambda now: now.select(label="node", node="label"), **{"rounds": 5, **how})


PROGRAMS = {
    components: EDGES,
    reachable: TWO,
    ranks: TWO,
    every_join: TWO,
    grouped: TWO,
    constants_inside: TWO,
    rows_that_vanish: TWO,
    several_times: TWO,
    swapped: TWO,
}
LABELS = {each.__name__: each for each in PROGRAMS}


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("seed", seeds(3, soak=200))
def test_equals_the_loop_from_scratch(name, seed):
    program = LABELS[name]
    check(
        lambda **rows: program(**rows, mode="rounds"),
        PROGRAMS[program],
        seed=seed,
        make=small(),
        scale=seed % 2 == 1,
    )


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_rounds_and_differential_agree_to_the_last_bit(name, workers):
    program, schemas = LABELS[name], PROGRAMS[LABELS[name]]
    flow = build(
        lambda **rows: {
            "rounds": program(**rows, mode="rounds"),
            "differential": program(**rows, mode="differential"),
        },
        schemas,
    )
    source, make = random.Random(f"{name} {workers}"), small(9)
    with flow.run(workers=workers) as run:
        there = {each: [] for each in schemas}
        for _ in range(6):
            for each in schemas:
                new = [make[each](source) for _ in range(source.randrange(6))] * 2
                old = source.sample(there[each], min(len(there[each]), source.randrange(6)))
                feed(run, each, [(row, 1) for row in new] + [(row, -1) for row in old])
                there[each] += new
                for row in old:
                    there[each].remove(row)
            run.commit()
            assert run.read("rounds").rows() == run.read("differential").rows()
            assert sorted(run.changes("rounds").rows(), key=repr) == sorted(
                run.changes("differential").rows(), key=repr
            )


@dataclass(frozen=True)
class Rounds(Sum):
    """A random loop, run by rounds by the engine."""

    def around(self, start, other, patience):
        if isinstance(start, Bag):
            return super().around(start, other, patience)
        return super().around(_ByRounds(start), other, patience)


class _ByRounds:
    """A start whose `iterate` is by rounds."""

    def __init__(self, start):
        self.start = start

    def iterate(self, body, **how):
        return self.start.iterate(body, mode="rounds", **how)


PAIRS = {"edges": {"src": pl.Int64, "dst": pl.Int64}}


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(12, soak=2_000))
def test_random_bodies_that_take_rows_back(seed):
    source = random.Random(seed)
    while True:
        drawn = draw_sum(source)
        program = Rounds(drawn.terms, None, drawn.rounds, drawn.patience)
        if "x.inspect" in str(program):
            continue
        rows = [[(source.randrange(4), source.randrange(4)) for _ in range(5)] for _ in range(4)]
        epochs = [rows[0], rows[0] + rows[1], rows[1] + rows[2], rows[2][:2], rows[3] * 2]
        if rests(program, epochs):
            break
    flow = build(program, PAIRS)
    for workers in (1, 2, 3):
        there = []
        with flow.run(workers=workers, seed=seed) as run:
            for epoch in epochs:
                feed(run, "edges", [(row, -1) for row in there] + [(row, 1) for row in epoch])
                there = epoch
                run.commit()
                expected = program(Bag.of(PAIRS["edges"], [(row, 1) for row in there]))
                found = Bag.of(PAIRS["edges"], [(row, 1) for row in run.read("result").rows()])
                assert found.rows == expected.rows, (str(program), workers)


def test_the_terms_that_are_drawn_are_known():
    assert "x.inspect" in TERMS


# -- when it runs


def test_an_epoch_that_changes_no_input_of_the_loop_does_not_run_it():
    calls = []

    def seen(frame):
        calls.append(len(frame))
        return frame

    def program(edges, roots):
        start = roots.select("node").distinct()
        loop = start.iterate(
            lambda now: now.map_batches(seen, {"node": pl.Int64}), mode="rounds", rounds=2
        )
        return {"loop": loop, "edges": edges}

    with build(program, TWO).run() as run:
        run.insert("roots", [(1, 1)])
        run.commit()
        ran = len(calls)
        assert ran
        run.insert("edges", [(1, 2, 3)])
        run.commit()
        run.insert("roots", [(1, 5)])  # the start stays as it is
        run.commit()
        assert len(calls) == ran
        run.insert("roots", [(2, 5)])
        run.commit()
        assert len(calls) == 2 * ran


def test_states_inside_of_the_loop_are_gone_and_the_result_is_one_state():
    flow = build(lambda **rows: components(**rows, mode="rounds"), EDGES)
    loops = [node for node in flow.plan.nodes if node.depth == 2]
    assert loops
    assert not any(node.operator.keeps_state for node in loops)
    assert "loop loop-1, until nothing changes; by rounds, mode='rounds'" in flow.explain()
    assert [node.name for node in flow.plan.nodes if node.operator.kind == "settle"] == [
        "loop-1:result"
    ]


# -- until


def until_total(edges, **how):
    """A test of the user's own: until the number of rows stays the same."""

    def moved(before, after):
        return after.count().join(before.count(), on="count", how="anti")

    start = edges.select(node="src", label="dst").distinct()
    return start.iterate(
        lambda now: now.concat(
            now.join(edges, left_on="label", right_on="src").select(node="node", label="dst")
        ).distinct(),
        until=moved,
        **how,
    )


def until_by_body(edges, **how):
    """A body that says itself when it ends: when no label is above 2 any more."""
    start = edges.select(node="src", label="w").distinct()

    def step(now):
        lower = now.select("node", label=pl.max_horizontal(pl.col("label") - 1, pl.lit(0)))
        lower = lower.distinct()
        return lower, lower.filter(pl.col("label") > 1)

    return start.iterate(step, **how)


def until_close(edges, **how):
    base = both_ways(edges).select(node="src").distinct().with_columns(part=pl.lit(1.0))
    shares = edges.join(edges.group_by("src").agg(n=rr.count()), on="src")

    def flow(ranks):
        parts = ranks.join(shares, left_on="node", right_on="src")
        parts = parts.select(node="dst", part=0.5 * (pl.col("rank") / pl.col("n")))
        return parts.concat(base).group_by("node").agg(rank=rr.sum("part"))

    start = base.select("node", rank="part")
    return start.iterate(flow, until=rr.loops.tolerance("rank", 0.05), key="node", **how)


def until_close_whole_numbers(edges, **how):
    """Keys come and go meanwhile, a key has several rows, and values may be null."""
    start = edges.select(node="src", label="w")

    def step(now):
        onward = now.join(edges, left_on="node", right_on="src")
        onward = onward.select(node="dst", label=pl.col("label") // 2)
        none = pl.when(pl.col("label") > 0).then(pl.col("label"))
        return onward.concat(now.select("node", label=none)).distinct()

    return start.iterate(
        step, until=rr.loops.tolerance("label", 1), key="node", **{"rounds": 7, **how}
    )


@pytest.mark.parametrize(
    "program", [until_total, until_by_body, until_close, until_close_whole_numbers]
)
@pytest.mark.parametrize("mode", ["auto", "rounds"])
@pytest.mark.parametrize("seed", seeds(2, soak=200))
def test_until_equals_the_loop_from_scratch(program, mode, seed):
    check(
        lambda edges: program(edges, mode=mode),
        EDGES,
        seed=seed,
        make=small(),
        scale=seed % 2 == 0,
    )


@pytest.mark.parametrize("program", [until_total, until_by_body, until_close])
def test_until_with_a_bound(program):
    check(lambda edges: program(edges, rounds=2), EDGES, seed=4, make=small())


@pytest.mark.parametrize("workers", [1, 2])
def test_arrays_and_rounds_stop_at_the_same_round(workers):
    flow = build(
        lambda edges: {
            "arrays": until_close(edges, mode="arrays"),
            "rounds": until_close(edges, mode="rounds"),
            "auto": until_close(edges),
        },
        EDGES,
    )
    assert flow.explain().count("pull parts") == 2
    source, make = random.Random(11), small(20)["edges"]
    with flow.run(workers=workers) as run:
        for _ in range(5):
            feed(run, "edges", [(make(source), 1) for _ in range(15)])
            run.commit()
            rows = run.read("rounds").rows()
            assert rows == run.read("arrays").rows() == run.read("auto").rows()


def test_unchanged_is_what_happens_without_until():
    check(
        lambda edges: {
            "arrays": components(edges, until=rr.loops.unchanged),
            "differential": components(edges, until=rr.loops.unchanged, mode="differential"),
            "rounds": components(edges, until=rr.loops.unchanged, mode="rounds", key="node"),
        },
        EDGES,
        seed=2,
        make=small(),
    )


# -- several solutions


def together(start, body, **how):
    make = iterate_together if isinstance(next(iter(start.values())), Bag) else rr.loops.iterate
    return make(start, body, **how)


def hubs(edges, **how):
    """Hubs and authorities, in whole numbers: each is made of the other."""
    nodes = both_ways(edges).select(node="src").distinct()
    one = nodes.with_columns(score=pl.lit(1, pl.Int64))

    def step(now):
        def along(scores, here, there):
            parts = now[scores].join(edges, left_on="node", right_on=here)
            parts = parts.select(node=there, part=pl.col("score") % 7)
            return parts.group_by("node").agg(score=rr.sum("part"))

        return {
            "hubs": along("authorities", "dst", "src"),
            "authorities": along("hubs", "src", "dst"),
        }

    found = together({"hubs": one, "authorities": one}, step, **{"rounds": 4, **how})
    return {"hubs": found["hubs"], "authorities": found["authorities"]}


def odd_and_even(edges, **how):
    """Nodes at an odd and at an even distance from node 0, until neither set grows."""
    zero = edges.filter(pl.col("src") == 0).select(node="src").distinct()
    none = zero.filter(pl.col("node") < 0)

    def step(now):
        def next_of(rows, more):
            onward = rows.join(edges, left_on="node", right_on="src").select(node="dst")
            return onward.concat(more).distinct()

        return {"odd": next_of(now["even"], now["odd"]), "even": next_of(now["odd"], now["even"])}

    return together({"odd": none, "even": zero}, step, **how)


@pytest.mark.parametrize("program", [hubs, odd_and_even])
@pytest.mark.parametrize("mode", ["rounds", "differential", "auto"])
@pytest.mark.parametrize("seed", seeds(2, soak=200))
def test_several_solutions(program, mode, seed):
    check(
        lambda edges: program(edges, mode=mode), EDGES, seed=seed, make=small(), scale=seed % 2 == 0
    )


def test_several_solutions_until():
    def moved(before, after):
        more = after["odd"].concat(after["even"]).count("n")
        return more.join(before["odd"].concat(before["even"]).count("n"), on="n", how="anti")

    def until(edges):
        return odd_and_even(edges, until=moved)

    check(until, EDGES, seed=3, make=small(), workers=2)


# -- mistakes


def refused(program, code, *words, schemas=TWO):
    with pytest.raises(rr.RiverrunError) as caught:
        build(program, schemas)
    said = str(caught.value)
    assert caught.value.code == code, said
    for word in ("test_rounds.py:", *words):
        assert word in said, said


def longer(roots, **how):
    """A loop that never rests."""
    return roots.iterate(lambda now: now.select("node", label=pl.col("label") + 1), **how)


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ({"mode": "round"}, "plan.mode", ("mode='rounds'",)),
        ({"mode": ["rounds"]}, "plan.mode", ("on arrays or by rounds or differentially",)),
        ({"maintain": "restarts"}, "plan.maintain", ("maintain='restart'",)),
        ({"maintain": "restart", "mode": "differential"}, "plan.maintain", ("one of the two",)),
        ({"maintain": "differential", "mode": "rounds"}, "plan.maintain", ("keeps the changes",)),
        ({"expect": 0}, "plan.expect", ("rounds= limits it",)),
        ({"expect": "many"}, "plan.expect", ("'many'",)),
        ({"until": 3}, "plan.until", ("until 3", "rr.loops.unchanged")),
        ({"until": "unchanged"}, "plan.until", ("rr.loops.unchanged",)),
        ({"until": lambda rows: rows}, "plan.loop_body", ("two arguments", "before, after")),
        ({"until": lambda a, b: 3}, "plan.until", ("an int, not a collection",)),
        ({"until": lambda a, b: a, "mode": "differential"}, "plan.until", ("no last round",)),
        ({"until": lambda a, b: a, "maintain": "differential"}, "plan.until", ("last round",)),
        ({"until": lambda a, b: a, "at": "label"}, "plan.until", ("at=",)),
        ({"until": rr.loops.tolerance("label", 1)}, "plan.until", ('key="node"',)),
        ({"until": rr.loops.tolerance("labels", 1), "key": "node"}, "plan.column_unknown", ()),
        ({"until": rr.loops.tolerance("node", 1), "key": "node"}, "plan.until", ("of the key",)),
        ({"key": "nod"}, "plan.column_unknown", ("mean 'node'",)),
        ({"at": "label", "mode": "rounds"}, "plan.no_rounds", ("enter it by priority",)),
        ({"at": "label", "maintain": "restart"}, "plan.no_rounds", ("by priority",)),
    ],
)
def test_mistakes_are_refused_while_the_program_is_built(how, code, words):
    def program(edges, roots):
        if "at" in how:
            return roots.iterate(lambda now, entered: entered, **how)
        return longer(roots, **how)

    refused(program, code, *words)


@pytest.mark.parametrize("most", [-1, float("nan"), "1", None, True])
def test_a_tolerance_is_a_number(most):
    with pytest.raises(rr.PlanError) as caught:
        rr.loops.tolerance("rank", most)
    assert caught.value.code == "plan.until"


def test_a_tolerance_of_text_is_refused():
    def program(edges, roots):
        texts = roots.select("node", label=pl.col("label").cast(pl.String))
        return texts.iterate(lambda t: t, until=rr.loops.tolerance("label", 1), key="node")

    refused(program, "plan.until", "string", "a number that moves")


def test_a_body_that_says_when_it_ends():
    refused(
        lambda edges, roots: roots.iterate(lambda now: (now, now), until=lambda a, b: a),
        "plan.until",
        "its body says when it ends",
    )
    refused(lambda edges, roots: roots.iterate(lambda now: (now, 3)), "plan.loop_open", "an int")
    refused(
        lambda edges, roots: roots.iterate(lambda now: (now, now), mode="differential"),
        "plan.until",
        "no last round",
    )


def test_until_inside_another_loop_is_refused_with_a_hint():
    refused(
        lambda edges, roots: roots.iterate(lambda rows: longer(rows, until=lambda a, b: b)),
        "plan.until",
        "inside another loop",
        "or after rounds=",
    )
    refused(
        lambda edges, roots: roots.iterate(lambda rows: longer(rows, mode="rounds", rounds=3)),
        "plan.no_rounds",
        "it is inside another loop",
    )


def test_a_body_with_a_loop_in_it_runs_differentially():
    def outer(edges, **how):
        return own_labels(edges).iterate(
            lambda rows: (
                sent(rows, edges)
                .concat(rows)
                .distinct()
                .iterate(
                    lambda inner: inner.select("node", label=pl.col("label") // 2).distinct(),
                    rounds=2,
                )
            ),
            **{"rounds": 3, **how},
        )

    refused(
        lambda edges: outer(edges, mode="rounds"),
        "plan.no_rounds",
        "is inside of it",
        schemas=EDGES,
    )
    flow = build(lambda edges: outer(edges, expect=100), EDGES)
    assert "differential, not on arrays" in flow.explain()
    assert "not by rounds: the loop 'loop-1' is inside of it" in flow.explain()
    check(lambda edges: outer(edges, expect=100), EDGES, seed=3, make=small())


def test_a_loop_that_is_looked_into_is_not_run_by_rounds():
    def program(edges, roots):
        return roots.iterate(lambda now: now.inspect(print).distinct(), mode="rounds")

    refused(program, "plan.no_rounds", "looked at inside of it")
    leaked = []

    def leaking(now):
        leaked.append(now)
        return now.distinct()

    flow = rr.Dataflow("leak")
    roots = flow.input("roots", TWO["roots"])
    flow.output("result", roots.iterate(leaking, mode="rounds"))
    leaked[0].inspect(print)
    with pytest.raises(rr.PlanError) as caught:
        _ = flow.plan
    assert caught.value.code == "plan.loop_seen"


def test_nothing_is_left_of_rounds_that_are_not_taken():
    """Somebody looks into the loop, which may run as its nodes: so the same loop by rounds goes, and all of it."""

    def nodes(**how):
        kept = []

        def leaking(now):
            kept.append(now)
            return now.distinct()

        flow = rr.Dataflow("leak")
        roots = flow.input("roots", TWO["roots"])
        flow.output("result", roots.iterate(leaking, **how))
        kept[0].inspect(print)
        return sorted(node.operator.describe() for node in flow.plan.nodes)

    assert nodes(expect=900) == nodes()


def test_which_way_a_loop_takes_by_itself():
    def way(**how):
        text = build(lambda **rows: reachable(**rows, **how), TWO).explain()
        (line,) = [line for line in text.splitlines() if " loop loop-1" in line]
        return line.partition("loop-1, ")[2]

    assert way().startswith("until nothing changes; differential, not on arrays")
    assert way(expect=20).startswith("until nothing changes; differential, not on arrays")
    assert way(expect=500) == "until nothing changes; by rounds, since 500 rounds are expected"
    assert way(maintain="restart") == "until nothing changes; by rounds, maintain='restart'"
    assert way(maintain="differential").endswith("differential, maintain='differential'")
    assert way(rounds=9, until=lambda a, b: b) == (
        "until what its program gives for that is empty, at most 9 rounds; by rounds, since which round is the last "
        "depends on the rows"
    )
    close = rr.loops.tolerance("node", 2)
    text = build(
        lambda roots, edges: longer(roots, until=rr.loops.tolerance("label", 2), key="node"), TWO
    ).explain()
    assert repr(close) == "tolerance('node', 2.0)"
    assert "until no label of a node moves by more than 2.0; by rounds" in text


def test_several_solutions_are_checked():
    def loop(body, start=None, **how):
        def program(edges, roots):
            given = {"a": roots, "b": roots} if start is None else start
            return rr.loops.iterate(given, body, **how)["a"]

        return program

    refused(loop(lambda now: now, start=[1]), "plan.loop_start", "no dict of collections")
    refused(loop(lambda now: now, start={}), "plan.loop_start", "no dict of collections")
    refused(loop(lambda now: now, start={"a": 3}), "plan.loop_start", "the loop of 'a'")
    refused(loop(lambda now: {"a": now["a"]}), "plan.loop_body", "starts with a, b", "gave a")
    refused(loop(lambda now: now["a"]), "plan.loop_body", "a Collection")
    refused(loop(lambda now: {**now, "a": 3}), "plan.loop_open", "an int")
    refused(loop(lambda: 3), "plan.loop_body", "one argument")
    refused(
        loop(lambda now: {**now, "b": now["b"].select("node")}),
        "plan.columns_differ",
        "label: int64",
    )
    refused(
        loop(lambda now: now, until=rr.loops.tolerance("label", 1)),
        "plan.until",
        "of which of them",
    )
    refused(loop(lambda now: now, mode="arrays"), "plan.no_arrays", "several collections")
    wide = rr.Dataflow("wide")
    narrow = wide.input("narrow", {"n": pl.Int8})
    found = rr.loops.iterate(
        {"a": narrow, "b": narrow},
        lambda now: {"a": now["b"], "b": now["a"].select(n=pl.col("n").cast(pl.Int64))},
        rounds=3,
    )
    assert [found[each].schema.field("n").type for each in "ab"] == ["int64", "int64"]
    assert rr.loops.iterate({"a": narrow}, lambda now: now, rounds=0)["a"] is narrow


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"mode": "rounds"}, "still changes after 20 rounds"),
        ({"until": lambda before, after: after}, "still goes on after 20 rounds; 2 rows are left"),
        ({"until": rr.loops.tolerance("label", 0), "key": "node"}, "still changes after 20 rounds"),
    ],
)
def test_a_loop_that_never_rests_says_what_changes_and_the_next_epoch_goes_on(workers, how, said):
    def program(edges, roots):
        return longer(roots.filter(pl.col("label") > 0), patience=20, name="up", **how)

    with build(program, TWO).run(workers=workers) as run:
        run.insert("roots", [(1, 0)])
        run.commit()
        run.insert("roots", [(1, 1), (2, 7)])
        with pytest.raises(rr.OperatorFailed) as caught:
            run.commit()
        text = str(caught.value)
        assert caught.value.code == "operator.diverges"
        assert "the loop 'up' (test_rounds.py:" in text
        assert said in text or workers > 1, text
        assert "'label': " in text
        run.insert("roots", [(5, 0)])
        run.commit()
        assert run.read("result").rows() == []


def test_an_error_in_a_round_names_the_step_and_its_line_and_the_next_epoch_goes_on():
    def program(edges, roots):
        def step(now):
            return now.flat_map(lambda row: [(row["node"], 6 // row["label"])], TWO["roots"])

        return roots.iterate(step, rounds=3, mode="rounds")

    with build(program, TWO).run(workers=2) as run:
        run.insert("roots", [(1, 2)])
        run.commit()
        assert run.read("result").rows() == [(1, 3)]
        run.insert("roots", [(2, 0)])
        with pytest.raises(rr.OperatorFailed, match=r"flat map by .*ZeroDivisionError") as caught:
            run.commit()
        assert caught.value.fields["line"].startswith("test_rounds.py:")
        assert "flat_map" in caught.value.fields["line"]
        run.insert("roots", [(3, 1)])
        run.commit()
        assert run.read("result").rows() == [(1, 3), (3, 6)]


def test_floats_with_nan_come_to_rest():
    def program(edges, roots):
        values = roots.select("node", label=pl.col("label") / pl.col("label"))
        return values.iterate(lambda now: now.distinct(), mode="rounds", patience=5)

    with build(program, TWO).run() as run:
        run.insert("roots", [(1, 0), (2, 3), (1, 0)])
        run.commit()
        assert [(node, label == label) for node, label in run.read("result").rows()] == [
            (1, False),
            (2, True),
        ]


def test_a_step_is_ready_for_texts_and_nested_values():
    schema = {"edges": {"src": pl.String, "dst": pl.String, "via": pl.List(pl.Int64)}}

    def program(edges, mode="rounds"):
        start = edges.select(node="src", via="via").distinct()

        def step(now):
            onward = now.join(edges, left_on="node", right_on="src", suffix="_2")
            return onward.select(node="dst", via="via_2").concat(now).distinct()

        return start.iterate(step, mode=mode)

    flow = build(
        lambda edges: {each: program(edges, each) for each in ("rounds", "differential")}, schema
    )
    for workers in (1, 2):
        with flow.run(workers=workers) as run:
            run.insert("edges", [("a", "b", [1, 2]), ("b", "c", []), ("c", "a", None)])
            run.commit()
            assert run.read("rounds").rows() == run.read("differential").rows() != []
            run.delete("edges", [("b", "c", [])])
            run.commit()
            assert run.read("rounds").rows() == run.read("differential").rows()


# -- supersteps


def of_the_whole_solution(edges):
    """A body that needs all rows of the solution: in a group, in a join by another column, in one with itself."""
    start = own_labels(edges)

    def step(labels, heard):
        sizes = labels.group_by("label").agg(size=rr.count())
        few = sizes.filter(pl.col("size") < 4).select("label")
        itself = labels.join(labels, left_on="label", right_on="node", suffix="_2")
        nearer = itself.select("node", label="label_2")
        known = heard.join(labels, on="node", suffix="_now")
        lower = known.filter(pl.col("label") < pl.col("label_now")).select("node", "label")
        return lower.concat(nearer).semi_join(few, on="label")

    body = Body(step, lambda delta: sent(delta, edges))
    return start.iterate_delta(
        sent(start, edges), key="node", body=body, better=rr.loops.least("label"), rounds=6
    )


def of_keys_alone(edges):
    """A solution of nothing but keys."""
    start = edges.filter(pl.col("src") == 0).select(node="src").distinct()

    def send(found):
        return found.join(edges, left_on="node", right_on="src").select(node="dst")

    return start.iterate_delta(send(start), key="node", send=send, missing="add")


DELTAS = {each.__name__: each for each in deltas.PROGRAMS if each is not deltas.inside_a_loop}
DELTAS |= {each.__name__: each for each in (of_the_whole_solution, of_keys_alone)}


@pytest.mark.parametrize("name", DELTAS)
@pytest.mark.parametrize("seed", seeds(2, soak=200))
def test_supersteps_equal_the_loop_from_scratch(name, seed, monkeypatch):
    """The programs of `test_iterate_delta`, each of which leaves `mode` out."""
    by_delta = rr.Collection.iterate_delta

    def by_superstep(self, *given, **how):
        return by_delta(self, *given, **how, mode="superstep", maintain="restart")

    monkeypatch.setattr(rr.Collection, "iterate_delta", by_superstep)
    text = build(DELTAS[name], EDGES).explain()
    assert "by rounds, mode='superstep'" in text
    assert "replaced in place" in text
    whole = [line for line in text.splitlines() if line.endswith("all rows from outside")]
    assert bool(whole) == (name in ("of_the_whole_solution", "replacing"))
    check(DELTAS[name], EDGES, seed=seed, make=small(), scale=seed % 2 == 1)


def test_how_a_delta_iteration_is_run_is_checked():
    def loop(**how):
        def program(edges, roots):
            send = lambda labels: sent(labels, edges)  # noqa: E731
            return roots.iterate_delta(send(roots), key="node", send=send, **how)

        return program

    refused(loop(mode="rounds"), "plan.mode", "in supersteps, in microsteps, or differentially")
    refused(loop(mode="superstep", maintain="differential"), "plan.maintain", "one of the two")
    refused(loop(maintain="now"), "plan.maintain", "'now'")
    refused(loop(expect=-1), "plan.expect", "-1")
    least = rr.loops.least("label")
    assert "spread the least" in build(loop(better=least), TWO).explain()
    restarting = build(loop(better=least, maintain="restart"), TWO).explain()
    assert "; by rounds, maintain='restart'" in restarting
    assert "; by rounds, since 900 rounds are expected" in build(loop(expect=900), TWO).explain()
