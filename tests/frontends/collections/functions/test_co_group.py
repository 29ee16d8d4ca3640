"""Co-groups: a function of two groups under one key, against the program run from scratch."""

from __future__ import annotations

import random
from collections import Counter

import polars as pl
import pytest

import riverrun as rr
from tests.frontends.collections.checking import build, check
from tests.soaking import seeds

LEFT = {"k": pl.Int64, "l": pl.String, "v": pl.Int64}
RIGHT = {"k": pl.Int64, "m": pl.String, "v": pl.Int64}
BOTH = {"left": LEFT, "right": RIGHT}
TEXTS = {"key": pl.String, "mine": pl.String, "its": pl.String}


def as_text(key, left, right):
    """All that a function sees: the key, the columns, and the rows in their order."""
    return [(repr(key), repr((left.columns, left.rows())), repr((right.columns, right.rows())))]


def products(key, left, right):
    """A row for each pair: the multiplicities of both sides count."""
    return [(v, w) for v in left["v"] for w in right["v"]]


def as_frame(key, left, right):
    return pl.concat([left.select("v"), right.select("v")])


def as_dicts(key, left, right):
    return ({"n": n, "v": v} for n, v in enumerate(left["v"]))


def by_turns(key, left, right):
    """Now a frame, now a list, now nothing."""
    number = left.height + right.height
    return [as_frame(key, left, right), [(number,)], []][number % 3]


FUNCTIONS = {
    "text": (as_text, TEXTS),
    "products": (products, {"x": pl.Int64, "y": pl.Int64}),
    "dicts": (as_dicts, {"v": pl.Int64, "n": pl.Int64}),
    "none": (lambda key, left, right: [], {"n": pl.Int64}),
    "equal": (lambda key, left, right: [(1,)] * right.height, {"one": pl.Int64}),
}


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(4, soak=16))
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_on_one_column(name, inner, seed):
    function, schema = FUNCTIONS[name]
    check(
        lambda left, right: left.co_group(right, "k", function, schema, inner=inner),
        BOTH,
        seed=seed,
        most=12,
        scale=seed % 2 == 0,
    )


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(4, soak=16))
@pytest.mark.parametrize("inner", [False, True])
def test_on_columns_of_other_names(inner, seed):
    def program(left, right):
        return left.co_group(
            right, None, as_text, TEXTS, left_on=["l", "v"], right_on=["m", "k"], inner=inner
        )

    check(program, BOTH, seed=seed, most=12)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(4, soak=16))
def test_with_itself(seed):
    def program(left):
        return {
            "same": left.co_group(left, "k", as_text, TEXTS),
            "other": left.co_group(left, None, as_text, TEXTS, left_on="k", right_on="v"),
            "part": left.co_group(left.filter(pl.col("v") > 1), ["k", "l"], as_text, TEXTS),
            "twice": left.concat(left).co_group(left.distinct(), "k", as_text, TEXTS, inner=True),
        }

    check(program, {"left": LEFT}, seed=seed)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(4, soak=16))
def test_upon_other_steps_and_under_them(seed):
    def program(left, right):
        met = left.co_group(right, "k", products, {"x": pl.Int64, "y": pl.Int64})
        return {
            "counted": met.group_by("k").agg(n=rr.count(), s=rr.sum("x")),
            "joined": met.join(left.group_by("k").agg(n=rr.count()), on="k"),
            "again": met.co_group(right, "k", as_text, TEXTS),
            "of groups": left.group_by("k").count().co_group(
                right.group_by("k").agg(m=rr.max("v")), "k", as_text, TEXTS
            ),
            "negated": left.concat(left.filter(pl.col("v") > 1).negate()).co_group(
                right, "k", as_text, TEXTS
            ),
        }  # fmt: skip

    check(program, BOTH, seed=seed, most=6)


@pytest.mark.parametrize(
    ("mine", "its"), [(pl.Int32, pl.Int64), (pl.Int64, pl.Int8), (pl.Float32, pl.Float64)]
)
def test_keys_of_different_types(mine, its):
    schemas = {"left": {"k": mine, "p": pl.Int64}, "right": {"k": its, "q": pl.Int64}}
    make = dict.fromkeys(
        schemas, lambda source: (source.choice([0, 1, 2, None]), source.randrange(2))
    )
    counts = {"n": pl.Int64, "m": pl.Int64}

    def heights(key, left, right):
        return [(left.height, right.height)]

    def program(left, right):
        return left.co_group(right, "k", heights, counts)

    for seed in range(3):
        check(program, schemas, seed=seed, make=make)


def test_floats_of_a_key_are_one_where_they_are_equal():
    schemas = {"left": {"f": pl.Float64, "p": pl.Int64}, "right": {"f": pl.Float64, "q": pl.Int64}}
    values = [0.0, -0.0, float("nan"), float("inf"), None]
    make = dict.fromkeys(schemas, lambda source: (source.choice(values), source.randrange(2)))

    def program(left, right):
        return left.co_group(
            right, "f", lambda key, a, b: [(a.height, b.height)], {"n": pl.Int64, "m": pl.Int64}
        )

    for seed in range(4):
        check(program, schemas, seed=seed, make=make)


# -- in loops


def merged(key, labels, heard):
    """The least label of a node, its own or one that it has heard."""
    return [(min([*labels["label"], *heard["label"]]),)]


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(6, soak=24))
def test_components_by_co_groups(seed):
    """Labels spread along edges that come and go: both sides of the co-group change in every round."""

    def components(edges):
        both = edges.concat(edges.select(src="dst", dst="src"))
        nodes = both.select(node="src").distinct().select("node", label="node")

        def step(labels):
            heard = labels.join(both, left_on="node", right_on="src").select(
                node="dst", label="label"
            )
            return labels.co_group(heard.distinct(), "node", merged, {"label": pl.Int64})

        return nodes.iterate(step)

    check(
        components,
        {"edges": {"src": pl.Int64, "dst": pl.Int64}},
        seed=seed,
        make={"edges": lambda source: (source.randrange(9), source.randrange(9))},
        most=8,
        scale=True,
    )


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(4, soak=16))
def test_in_a_loop_inside_a_loop(seed):
    def both(key, left, right):
        return [(v,) for v in {*left["b"], *right["b"]} if v is not None and v < 5]

    def program(rows):
        def inner(now):
            grown = now.co_group(rows, "a", both, {"b": pl.Int64})
            more = grown.co_group(
                now, None, both, {"c": pl.Int64}, left_on="b", right_on="a", inner=True
            )
            return more.select(a="b", b="c").concat(grown).distinct()

        def outer(now):
            return now.iterate(inner, rounds=3).co_group(now, "a", both, {"b": pl.Int64})

        return rows.filter(pl.col("b") < 5).distinct().iterate(outer, rounds=3)

    schema = {"rows": {"a": pl.Int64, "b": pl.Int64}}
    make = {"rows": lambda source: (source.randrange(5), source.randrange(7))}
    check(program, schema, seed=seed, make=make, most=6)


# -- what it costs


def test_arrangements_are_shared():
    def program(left, right):
        return {
            "joined": left.join(right, on="k"),
            "met": left.co_group(right, "k", as_text, TEXTS),
            "grouped": right.group_by("k").apply(lambda g: g.height, {"n": pl.Int64}),
            "again": right.co_group(left, "k", as_text, TEXTS, inner=True),
        }

    flow = build(program, BOTH)
    arranged = [
        n for n in flow.plan.nodes if n.operator.kind == "arrange" and n.operator.key == ("k",)
    ]
    assert len([n for n in arranged if n.schemas[0].names in ([*LEFT], [*RIGHT])]) == 2
    assert "co-group on k by as_text" in flow.explain()
    assert "inner co-group on k by as_text" in flow.explain()
    assert "co-group on k" in flow.to_svg()
    assert "co-group on k" in flow.to_dot()


def test_a_result_is_arranged_by_its_key_already():
    def program(left, right):
        met = left.co_group(right, "k", as_text, TEXTS)
        return {"joined": met.join(left, on="k")}

    plan = build(program, BOTH).plan
    (met,) = [n for n in plan.nodes if n.operator.kind == "co-group"]
    (joined,) = [n for n in plan.nodes if n.operator.kind == "join"]
    assert met.number in [port.node for port in joined.inputs]


def test_only_touched_keys_are_called_for():
    called = []

    def remember(key, left, right):
        called.append(key)
        return [(left.height, right.height)]

    flow = build(
        lambda left, right: left.co_group(right, "k", remember, {"n": pl.Int64, "m": pl.Int64}),
        BOTH,
    )
    with flow.run() as run:
        run.insert("left", [(k, "x", 0) for k in range(100)])
        run.commit()
        assert sorted(called) == [(k,) for k in range(100)]
        called.clear()
        run.insert("right", [(7, "y", 1)])
        run.delete("left", [(8, "x", 0)])
        run.insert("left", [(9, "x", 1)])
        run.delete("left", [(9, "x", 1)])
        run.commit()
        assert called == [(7,)]  # the rows of 8 are gone, those of 9 as before
        assert run.changes("result").rows() == [(7, 1, 0, -1), (7, 1, 1, 1), (8, 1, 0, -1)]


# -- a run that goes on


@pytest.mark.parametrize("inner", [False, True])
def test_it_resumes_with_another_number_of_workers(inner, tmp_path):
    source = random.Random(3)
    flow = build(lambda left, right: left.co_group(right, "k", as_text, TEXTS, inner=inner), BOTH)
    there = {"left": Counter(), "right": Counter()}
    for turn, workers in enumerate([1, 3, 2, 4]):
        with flow.run(workers=workers, checkpoint=tmp_path) as run:
            for _ in range(2):
                for name, rows in there.items():
                    new = [
                        (source.randrange(6), source.choice("ab"), source.randrange(3))
                        for _ in range(5)
                    ]
                    old = source.sample(sorted(rows.elements()), min(3, rows.total()))
                    run.insert(name, new)
                    run.delete(name, old)
                    rows.update(new)
                    rows.subtract(old)
                run.commit()
            with flow.run() as fresh:
                for name, rows in there.items():
                    fresh.insert(name, list(rows.elements()))
                fresh.commit()
                assert run.read("result").rows() == fresh.read("result").rows(), turn


def test_a_changed_function_is_called_anew(tmp_path):
    def program(times):
        return lambda left, right: left.co_group(
            right,
            "k",
            lambda key, a, b: [(a.height * times, b.height)],
            {"n": pl.Int64, "m": pl.Int64},
        )

    with build(program(1), BOTH).run(checkpoint=tmp_path) as run:
        run.insert("left", [(1, "x", 1), (1, "x", 1)])
        run.insert("right", [(2, "y", 1)])
        run.commit()
        assert run.read("result").rows() == [(1, 2, 0), (2, 0, 1)]
    with build(program(10), BOTH).run(workers=2, checkpoint=tmp_path) as run:
        assert run.read("result").rows() == [(1, 20, 0), (2, 0, 1)]


def test_an_error_names_the_function_the_group_and_the_line():
    def fails(key, left, right):
        raise KeyError("no such thing")

    flow = build(lambda left, right: left.co_group(right, ["k", "v"], fails, TEXTS), BOTH)
    with flow.run() as run:
        run.insert("right", [(1, "y", 5)])
        with pytest.raises(rr.OperatorFailed) as raised:
            run.commit()
    assert raised.value.code == "operator.failed"
    assert raised.value.fields["group"] == (1, 5)
    assert isinstance(raised.value.__cause__, KeyError)
    assert "fails of the group (1, 5) failed: KeyError" in str(raised.value)
    assert "test_co_group.py" in str(raised.value)
