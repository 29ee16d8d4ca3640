"""Loops that pull parts along edges: on arrays as differentially, bit for bit, and as from scratch."""

from __future__ import annotations

import random
import struct
from collections import Counter

import polars as pl
import pytest

import riverrun as rr
from riverrun.frontends.collections.derivation import has_one_row
from tests.frontends.collections.checking import Rows, build, check, feed
from tests.soaking import seeds

EDGES = {"edges": {"src": pl.Int64, "dst": pl.Int64, "w": pl.Int64}}


def small(nodes=6, weights=4):
    def node(source):
        return None if source.random() < 0.06 else source.randrange(nodes)

    def weight(source):
        return None if source.random() < 0.06 else source.randrange(weights)

    return {"edges": lambda source: (node(source), node(source), weight(source))}


def nodes_of(edges):
    return edges.select(node="src").concat(edges.select(node="dst")).distinct()


def shares_of(edges):
    return edges.join(edges.group_by("src").agg(degree=rr.count()), on="src")


def pull(ranks, shares, part, *more):
    sent = ranks.join(shares, left_on="node", right_on="src").select(node="dst", part=part)
    return sent.concat(*more) if more else sent


RANK, DEGREE, W = pl.col("rank"), pl.col("degree"), pl.col("w")
FLOW = 0.85 * (RANK / DEGREE)


def with_base(edges, **options):
    shares, nodes = shares_of(edges), nodes_of(edges)
    base = nodes.select("node", part=pl.lit(0.15))
    return nodes.select("node", rank=pl.lit(1.0)).iterate(
        lambda ranks: pull(ranks, shares, FLOW, base).group_by("node").agg(rank=rr.sum("part")),
        rounds=4,
        **options,
    )


def finished(edges, **options):
    """The base is added behind the sum, by a float that JSON does not give back to Polars; rows without edges go."""
    shares = shares_of(edges)

    def body(ranks):
        sums = pull(ranks, shares, RANK / DEGREE).group_by("node").agg(total=rr.sum("part"))
        return sums.select("node", rank=(1 - 0.85) + 0.85 * pl.col("total"))

    return nodes_of(edges).select("node", rank=pl.lit(1.0)).iterate(body, rounds=4, **options)


def weighted(edges, **options):
    strength = edges.group_by("src").agg(all=rr.sum(W + 1))
    shares = edges.join(strength, on="src").select(
        "src", "dst", share=(W + 1).cast(pl.Float64) / pl.col("all")
    )
    nodes = nodes_of(edges)
    base = nodes.select("node", part=pl.lit(0.1))

    def body(ranks):
        sent = pull(ranks, shares, RANK * pl.col("share"), base)
        return sent.group_by("node").agg(rank=rr.sum("part"))

    return nodes.select("node", rank=pl.lit(0.5)).iterate(body, rounds=5, **options)


def personalised(edges, **options):
    """Only some nodes have a base; ranks are there where they have come to."""
    shares = shares_of(edges)
    seeds_ = nodes_of(edges).filter(pl.col("node") < 2)
    base = seeds_.select("node", part=pl.lit(0.25))
    return seeds_.select("node", rank=pl.lit(1.0)).iterate(
        lambda ranks: (
            pull(ranks, shares, (0.3 * RANK) / DEGREE, base)
            .group_by("node")
            .agg(rank=rr.sum("part"))
        ),
        rounds=5,
        **options,
    )


def scaled(edges, **options):
    """Ranks are whole numbers."""
    shares, nodes = shares_of(edges), nodes_of(edges)
    base = nodes.select("node", part=pl.lit(150_000))
    return nodes.select("node", rank=pl.lit(1_000_000, pl.Int64)).iterate(
        lambda ranks: (
            pull(ranks, shares, (RANK * 85) // (DEGREE * 100), base.with_columns(part=pl.col("part").cast(pl.Int64)))
            .group_by("node")
            .agg(rank=rr.sum("part"))
        ),
        rounds=6,
        **options,
    )  # fmt: skip


def undirected(edges, **options):
    """Two joins that send the same along other edges."""
    links = edges.select("src", "dst")
    degrees = (
        links.concat(links.select(src="dst", dst="src")).group_by("src").agg(degree=rr.count())
    )
    there = links.join(degrees, on="src")
    back = links.select(src="dst", dst="src").join(degrees, on="src")

    def body(ranks):
        both = pull(ranks, there, FLOW).concat(pull(ranks, back, FLOW))
        return both.group_by("node").agg(rank=rr.sum("part"))

    return degrees.select(node="src", rank=pl.lit(1.0)).iterate(body, rounds=3, **options)


def own_rows(edges, **options):
    """Half of a rank stays."""
    shares, nodes = shares_of(edges), nodes_of(edges)

    def body(ranks):
        sent = pull(ranks, shares, FLOW).concat(ranks.select("node", part=RANK * 0.5))
        return sent.group_by("node").agg(rank=rr.sum("part"))

    return nodes.select("node", rank=pl.lit(1.0)).iterate(body, rounds=4, **options)


def several(edges, **options):
    """Two values; least and greatest, counts of parts and of rows, and a key in the last step."""
    shares, nodes = shares_of(edges), nodes_of(edges)
    start = nodes.select("node", rank=pl.col("node") * 1.5, seen=pl.lit(0, pl.Int64))

    def body(rows):
        sent = rows.join(shares, left_on="node", right_on="src").select(
            node="dst", part=(RANK - W).abs(), seen=pl.col("seen") + W
        )
        sums = sent.group_by("node").agg(
            low=rr.min("part"), high=rr.max(pl.col("part") * 2), n=rr.count(), m=rr.count("seen")
        )
        return sums.select(
            "node", rank=pl.col("low") + pl.col("high"), seen=pl.col("n") - pl.col("m") + pl.col("node")
        )  # fmt: skip

    return start.iterate(body, rounds=4, **options)


def least(edges, **options):
    """A message that is no spread: it may get better by being sent."""
    start = edges.group_by("src").agg(rank=rr.min("w")).select(node="src", rank="rank")

    def body(ranks):
        sent = pull(ranks, edges, (RANK * 3 + W) % 7, start.select("node", part="rank"))
        return sent.group_by("node").agg(rank=rr.min("part"))

    return start.iterate(body, rounds=5, **options)


def greatest(edges, **options):
    start = edges.group_by("src").agg(rank=rr.max("w")).select(node="src", rank="rank")

    def body(ranks):
        sent = pull(ranks, edges.filter(W > 0), RANK - W, ranks.select("node", part="rank"))
        return sent.group_by("node").agg(rank=rr.max("part"))

    return start.iterate(body, rounds=3, **options)


def counted(edges, **options):
    """Walks, counted by the rows that come."""
    start = nodes_of(edges).select("node", rank=pl.lit(1, pl.Int64))

    def body(ranks):
        sent = ranks.join(edges, left_on="node", right_on="src").select(node="dst")
        return sent.group_by("node").agg(rank=rr.count())

    return start.iterate(body, rounds=3, **options)


def until_rest(edges, **options):
    """Depths in the graph of edges to greater nodes, until nothing changes."""
    down = edges.filter(pl.col("src") < pl.col("dst"))
    start = nodes_of(edges).select("node", rank=pl.lit(0, pl.Int64))

    def body(ranks):
        sent = pull(ranks, down, RANK * 2 + 1, start.select("node", part="rank"))
        return sent.group_by("node").agg(rank=rr.sum("part"))

    return start.iterate(body, **options)


def by_two(edges, **options):
    """The key is a string and a number."""
    wide = edges.select(
        a=pl.col("src").cast(pl.String), b=W, c=pl.col("dst").cast(pl.String), d=W % 2
    )
    start = wide.select("a", "b").distinct().select("a", "b", rank=pl.lit(1.0))
    base = start.select("a", "b", part=pl.lit(0.5))

    def body(ranks):
        sent = ranks.join(wide, on=["a", "b"]).select(a="c", b="d", part=RANK / 2)
        return sent.concat(base).group_by("a", "b").agg(rank=rr.sum("part"))

    return start.iterate(body, rounds=4, **options)


def null_ranks(edges, **options):
    shares = shares_of(edges)
    start = edges.group_by("src").agg(rank=rr.max("w")).select(node="src", rank=W_RANK)

    def body(ranks):
        sent = pull(ranks, shares, FLOW + 0.1)
        return sent.group_by("node").agg(rank=rr.min("part"))

    return start.iterate(body, rounds=3, **options)


W_RANK = pl.col("rank") / 2


def narrow(edges, **options):
    """Types are widened on the way, and literals keep the types that their columns had."""
    start = edges.select(node=pl.col("src").cast(pl.Int32)).distinct()
    start = start.select("node", rank=pl.lit(3, pl.Int8))
    thin = edges.select(
        pl.col("src").cast(pl.Int32), pl.col("dst").cast(pl.Int32), w=W.cast(pl.Int8)
    )

    def body(ranks):
        near = ranks.with_columns(two=pl.lit(100)).join(thin, left_on="node", right_on="src")
        sent = near.with_columns(x=RANK + W).select(
            node="dst", part=(pl.col("x") + pl.col("two")) % 50
        )
        return sent.group_by("node").agg(rank=rr.max("part"))  # fmt: skip

    return start.iterate(body, rounds=3, **options)


def singles(edges, **options):
    """Floats of 32 bits."""
    start = nodes_of(edges).select("node", rank=pl.lit(1.0, pl.Float32))

    def body(ranks):
        sent = pull(ranks, edges, RANK / 2 + W.cast(pl.Float32))
        return (
            sent.group_by("node").agg(rank=rr.sum("part")).with_columns(rank=RANK.cast(pl.Float32))
        )

    return start.iterate(body, rounds=3, **options)  # fmt: skip


def other_types(edges, **options):
    """Dates, durations and truth values."""
    day, span = pl.lit(0).cast(pl.Date), pl.duration(hours=pl.col("node"))
    start = nodes_of(edges).select(
        "node", day=day, span=span, odd=pl.col("node") % 2 == 1, size=pl.col("node").cast(pl.UInt8)
    )

    def body(rows):
        sent = rows.join(edges, left_on="node", right_on="src").select(
            node="dst",
            day=pl.col("day") + pl.duration(days=W),
            span=pl.col("span") * 2,
            odd=pl.col("odd") & (W > 1),
            size=pl.col("size") // 2,
        )
        sums = sent.group_by("node").agg(
            day=rr.max("day"), span=rr.sum("span"), odd=rr.min("odd"), size=rr.sum("size")
        )
        return sums.with_columns(size=pl.col("size").cast(pl.UInt8))

    return start.iterate(body, rounds=3, **options)


def by_float(edges, **options):
    """Keys are floats, among them two zeros and NaN."""
    odd = [0.0, -0.0, float("nan"), 1.5, -1.5, float("inf")]

    def key(name):
        made = pl.lit(None, pl.Float64)
        for at, value in enumerate(odd):
            made = pl.when(pl.col(name) == at).then(pl.lit(value)).otherwise(made)
        return made

    links = edges.select(src=key("src"), dst=key("dst"), w="w")
    start = nodes_of(links).select("node", rank=pl.lit(1.0))

    def body(ranks):
        sent = pull(ranks, links, RANK / 2 - W)
        return (
            sent.concat(start.select("node", part="rank")).group_by("node").agg(rank=rr.sum("part"))
        )

    return start.iterate(body, rounds=3, **options)  # fmt: skip


def by_words(edges, **options):
    """Constants that are no numbers, an expression that is long, and a constant of the loop's own."""
    words = edges.select("src", "dst", word=pl.concat_str(pl.lit("w"), W.cast(pl.String)))
    start = nodes_of(edges).select("node", rank=pl.lit(2.0))

    def body(ranks):
        near = ranks.with_columns(by=pl.lit(1 / 3)).join(words, left_on="node", right_on="src")
        long = near.with_columns(length=pl.col("word").str.len_chars() * 0.1234567890123456789)
        sent = long.filter(pl.col("length") > 0.2).select(
            node="dst",
            part=pl.when(pl.col("word") == "w1")
            .then(RANK * pl.col("by"))
            .otherwise((RANK + pl.col("length")).sqrt()),
        )
        return sent.group_by("node").agg(rank=rr.sum(pl.col("part") * 0.30000000000000004))

    return start.iterate(body, rounds=4, **options)


PROGRAMS = [
    other_types,
    by_float,
    by_words,
    with_base,
    finished,
    weighted,
    personalised,
    scaled,
    undirected,
    own_rows,
    several,
    least,
    greatest,
    counted,
    until_rest,
    by_two,
    null_ranks,
    narrow,
    singles,
]


def is_pull(flow):
    return any(node.operator.kind == "pull" for node in flow.plan.nodes)


def exactly(rows):
    return Counter(
        tuple(struct.pack(">d", cell) if isinstance(cell, float) else cell for cell in row)
        for row in rows
    )


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("seed", seeds(1, soak=100))
def test_arrays_give_the_bits_of_the_differential_loop(program, seed, tmp_path):
    source = random.Random(seed)
    modes = ("arrays", "differential")
    schemas = EDGES
    flow = build(
        lambda edges: {mode: program(edges, mode=mode) for mode in modes}, schemas, name="pulls"
    )
    rows = Rows(small()["edges"])
    path = str(tmp_path / "kept")
    for life in range(3):
        with flow.run(workers=source.randint(1, 4), checkpoint=path) as run:
            for _ in range(3):
                feed(run, "edges", rows.epoch(source, 8))
                run.commit()
                mine, theirs = [exactly(run.read(mode).rows()) for mode in modes]
                assert mine == theirs, (seed, life, run.epoch)
                changed = Counter()
                for mode, sign in zip(modes, (1, -1), strict=True):
                    for *row, diff in run.changes(mode).rows():
                        (key,) = exactly([row])
                        changed[key] += sign * diff
                assert not any(changed.values()), (seed, life, run.epoch)
                if source.random() < 0.3:
                    run.scale(source.randint(1, 4))
                    assert exactly(run.read("arrays").rows()) == theirs
    assert is_pull(flow)


@pytest.mark.parametrize("program", [with_base, own_rows, counted, by_two, until_rest, undirected])
@pytest.mark.parametrize("seed", seeds(2, soak=100))
def test_equals_the_loop_from_scratch(program, seed):
    check(program, EDGES, seed=seed, make=small(), scale=seed % 2 == 1)


def test_zero_rounds_are_the_start():
    def program(edges):
        start = nodes_of(edges).select("node", rank=pl.lit(1.0))
        return start.iterate(lambda ranks: ranks, rounds=0)

    check(program, EDGES, seed=3, make=small())


# -- what does not fit


def body_of(part=FLOW, before=None, agg=None, start=None, **options):
    def program(edges):
        shares = shares_of(edges)
        rows = nodes_of(edges).select("node", rank=pl.lit(1.0)) if start is None else start(edges)

        def body(ranks):
            sent = pull(ranks if before is None else before(ranks, edges), shares, part)
            if agg is not None:
                return agg(sent)
            return sent.group_by("node").agg(rank=rr.sum("part"))

        return rows.iterate(body, **{"rounds": 3, **options})

    return program


def repeated(edges):
    return edges.select(node="src", rank=pl.lit(1.0))


def chosen(sent):
    return sent.filter(pl.col("part") > 1).group_by("node").agg(rank=rr.sum("part"))


def by_part(sent):
    return sent.group_by(node=pl.col("part").cast(pl.Int64)).agg(rank=rr.sum("part"))


def as_decimals(sent):
    parts = sent.select("node", part=pl.col("part").cast(pl.Decimal(20, 2)))
    sums = parts.group_by("node").agg(rank=rr.sum("part"))
    return sums.with_columns(rank=RANK.cast(pl.Float64))


def joined_twice(ranks, edges):
    return ranks.join(edges.select("src").distinct(), left_on="node", right_on="src")


NOT = [
    (body_of(start=repeated), "the rows at the start may have several rows for one key"),
    (body_of(before=lambda ranks, _: ranks.filter(RANK > 1)), "rows of the round are filtered"),
    (body_of(agg=chosen), "filtered by a value that changes"),
    (
        body_of(agg=lambda sent: sent.group_by("node").agg(rank=pl.col("part").median())),
        "no sum, min, max or count",
    ),
    (
        body_of(agg=lambda sent: sent.select("node", rank="part").distinct("node")),
        "does not end with aggregates",
    ),
    (body_of(agg=lambda sent: sent.select("node", rank="part")), "does not end with aggregates"),
    (body_of(before=joined_twice), "more than one collection"),
    (
        body_of(before=lambda ranks, _: ranks.join(ranks, on="node").select("node", "rank")),
        "two collections that change",
    ),
    (
        body_of(before=lambda ranks, _: ranks.select(node=pl.col("node") + 1, rank="rank")),
        "which is not the key",
    ),
    (
        body_of(part=RANK.map_elements(lambda x: x, return_dtype=pl.Float64)),
        "a Python function is called",
    ),
    (body_of(agg=by_part), "target of a message is computed"),
    (body_of(agg=as_decimals), "a sum of decimal"),
]


@pytest.mark.parametrize(("program", "reason"), NOT)
def test_what_does_not_fit_is_said(program, reason):
    flow = build(program, EDGES)
    assert not is_pull(flow)
    assert reason in flow.explain()


def test_rows_that_enter_by_priority_do_not_fit():
    def program(edges):
        start = nodes_of(edges).select("node", rank=pl.lit(1.0))
        return start.iterate(lambda _, entered: entered, at=pl.lit(0, pl.Int64), rounds=3)

    assert "rows enter it by priority" in build(program, EDGES).explain()


def test_arrays_that_are_asked_for_and_do_not_fit_are_refused():
    with pytest.raises(rr.PlanError, match="several rows for one key") as caught:
        build(body_of(start=repeated, mode="arrays"), EDGES)
    assert caught.value.code == "plan.no_arrays"


def test_rows_that_are_owed_are_refused_and_the_next_epoch_goes_on():
    for workers in (1, 3):
        with build(lambda edges: counted(edges, mode="arrays"), EDGES).run(workers=workers) as run:
            for number in range(2):
                run.insert("edges", [(1, 2, number), (2, 1, number)])
                run.commit()
                assert run.read("result").rows() == [(1, number + 1), (2, number + 1)]
                run.delete("edges", [(5, 6, 0)])
                with pytest.raises(rr.OperatorFailed) as caught:
                    run.commit()
                assert caught.value.code == "operator.negative"
            run.insert("edges", [(3, 1, 7)])
            run.commit()
            assert run.read("result").rows() == [(1, 2), (2, 2)]


def test_a_loop_that_never_rests_is_refused_and_the_next_epoch_goes_on():
    def program(edges):
        start = nodes_of(edges).select("node", rank=pl.lit(1, pl.Int64))

        def body(ranks):
            sent = pull(ranks, edges, RANK + W, start.select("node", part="rank"))
            return sent.group_by("node").agg(rank=rr.sum("part"))

        return start.iterate(body, mode="arrays", patience=20)

    with build(program, EDGES).run() as run:
        run.insert("edges", [(1, 2, 0)])
        run.commit()
        before = run.read("result").rows()
        run.insert("edges", [(2, 1, 0)])
        with pytest.raises(rr.OperatorFailed) as caught:
            run.commit()
        assert caught.value.code == "operator.diverges"
        run.insert("edges", [(3, 1, 0)])
        run.commit()
        assert run.read("result").rows() == [(1, 2), (2, 3), (3, 1)] != before


# -- keys that are unique


def test_what_has_one_row_for_a_key():
    flow = rr.Dataflow("f")
    edges = flow.input("edges", EDGES["edges"])
    names = flow.input("names", {"id": pl.Int64, "name": pl.String}, key="id")
    counts = edges.group_by("src", "dst").agg(n=rr.count())
    assert not has_one_row(edges, edges.columns)
    assert has_one_row(names, ["id"])
    assert has_one_row(names, ["name", "id"])
    assert not has_one_row(names, ["name"])
    assert has_one_row(edges.distinct(), ["src", "dst", "w"])
    assert not has_one_row(edges.distinct(), ["src", "dst"])
    assert has_one_row(edges.distinct("src"), ["src"])
    assert has_one_row(counts.filter(pl.col("n") > 1), ["src", "dst"])
    assert not has_one_row(counts, ["src"])
    assert has_one_row(counts.select(a="src", b=pl.col("dst"), c="n"), ["a", "b"])
    assert not has_one_row(counts.select(a="src", b=pl.col("dst") // 2), ["a", "b"])
    named = edges.distinct("src").join(names, left_on="dst", right_on="id")
    assert has_one_row(named, ["src"])
    assert not has_one_row(named, ["dst"])
    assert not has_one_row(edges.join(names, left_on="dst", right_on="id"), ["src", "dst", "w"])
    assert not has_one_row(edges.distinct("src").join(edges, on="src"), ["src"])
    assert has_one_row(edges.distinct("src").join(names, left_on="src", right_on="id"), ["src"])
    assert not has_one_row(names.concat(names), ["id"])
    assert has_one_row(names.join(names.count("n"), how="cross"), ["id"])
