"""Joins of every kind, against the program run from scratch."""

from __future__ import annotations

import polars as pl
import pytest

import riverrun as rr
from tests.frontends.collections.checking import build, check
from tests.soaking import seeds

LEFT = {"k": pl.Int64, "l": pl.String, "v": pl.Int64}
RIGHT = {"k": pl.Int64, "m": pl.String, "v": pl.Int64}
BOTH = {"left": LEFT, "right": RIGHT}
HOW = ["inner", "left", "right", "full", "semi", "anti"]


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(5, soak=20))
@pytest.mark.parametrize("how", HOW)
def test_on_one_column(how, seed):
    check(lambda left, right: left.join(right, on="k", how=how), BOTH, seed=seed, most=10)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(4, soak=16))
@pytest.mark.parametrize("how", HOW)
def test_on_columns_of_other_names(how, seed):
    def program(left, right):
        return left.join(
            right, left_on=["l", "v"], right_on=["m", "k"], how=how, suffix="_of_right"
        )

    check(program, BOTH, seed=seed, most=12)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(4, soak=16))
@pytest.mark.parametrize("how", HOW)
def test_on_all_columns(how, seed):
    def program(left, right):
        return left.select("k", "v").join(right.select("v", "k"), on=["k", "v"], how=how)

    check(program, BOTH, seed=seed, most=12)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(4, soak=16))
@pytest.mark.parametrize("how", HOW)
def test_with_itself(how, seed):
    def program(left):
        return {
            "same": left.join(left, on="k", how=how),
            "other": left.join(left, left_on="k", right_on="v", how=how),
            "part": left.join(left.filter(pl.col("v") > 1), on=["k", "l"], how=how),
            "kinds": left.distinct().join(left.distinct(), on="k", how=how),
        }

    check(program, {"left": LEFT}, seed=seed)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(6, soak=24))
def test_cross(seed):
    def program(left, right):
        return {
            "both": left.join(right, how="cross"),
            "itself": left.select("l").join(left.select("l"), how="cross"),
        }

    check(program, BOTH, seed=seed, most=5)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(6, soak=24))
def test_two_joins_on_one_arrangement(seed):
    def program(left, right):
        first = left.join(right, on="k")
        return {
            "first": first,
            "second": left.join(right.select("k", w="v"), on="k", how="left"),
            "third": first.join(right, on="k", suffix="_3"),
            "grouped": right.group_by("k").agg(n=rr.count()).join(left, on="k"),
            "upon_grouped": right.group_by("k").agg(n=rr.sum("v")).join(
                left.group_by("k").agg(m=rr.max("v")), on="k", how="full"
            ),
        }  # fmt: skip

    check(program, BOTH, seed=seed, most=6, scale=seed % 2 == 0)


def test_an_arrangement_is_shared():
    flow = build(
        lambda left, right: {
            "p": left.join(right, on="k"),
            "q": left.join(right, on="k", suffix="_q"),
        },
        BOTH,
    )
    arranged = [
        n for n in flow.plan.nodes if n.operator.kind == "arrange" and n.operator.key == ("k",)
    ]
    assert len(arranged) == 2


@pytest.mark.parametrize("how", HOW)
def test_floats_match_as_numbers(how):
    schemas = {"left": {"f": pl.Float64, "p": pl.Int64}, "right": {"f": pl.Float64, "q": pl.Int64}}
    values = [0.0, -0.0, float("nan"), float("inf"), 1.5, None]
    make = dict.fromkeys(schemas, lambda source: (source.choice(values), source.randrange(2)))
    for seed in range(3):
        check(lambda left, right: left.join(right, on="f", how=how), schemas, seed=seed, make=make)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("mine", "its"),
    [(pl.Int32, pl.Int64), (pl.Int64, pl.Int8), (pl.UInt16, pl.Int32), (pl.Float32, pl.Float64)],
)
def test_keys_of_different_types(mine, its, how):
    schemas = {"left": {"k": mine, "p": pl.Int64}, "right": {"k": its, "q": pl.Int64}}
    make = dict.fromkeys(
        schemas, lambda source: (source.choice([0, 1, 2, None]), source.randrange(2))
    )
    for seed in range(2):
        check(lambda left, right: left.join(right, on="k", how=how), schemas, seed=seed, make=make)


@pytest.mark.parametrize("how", ["semi", "anti"])
def test_semi_and_anti_keep_the_columns_as_they_are(how):
    def program(left, right):
        return left.join(right, on="k", how=how)

    flow = build(program, {"left": {"k": pl.Int32, "v": pl.Int64}, "right": {"k": pl.Int64}})
    assert flow.schema("result").field("k").type == "int32"


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("workers", [1, 3])
def test_many_duplicates(how, workers):
    flow = build(lambda left, right: left.join(right, on="k", how=how).count("n"), BOTH)
    with flow.run(workers=workers) as run:
        run.insert("left", [(1, "x", 5)] * 30 + [(2, "x", 5)] * 3 + [(None, "x", 5)] * 2)
        run.insert("right", [(1, "y", 6)] * 20 + [(3, "y", 6)] * 4 + [(None, "y", 6)])
        run.commit()
        pairs, left, right = 600, 5, 5
        expected = {
            "inner": pairs, "left": pairs + left, "right": pairs + right,
            "full": pairs + left + right, "semi": 30, "anti": left,
        }  # fmt: skip
        assert run.read("result").rows() == [(expected[how],)]
        run.delete("right", [(1, "y", 6)] * 19)
        run.commit()
        assert run.read("result").rows() == [
            ({"inner": 30, "left": 35, "right": 35, "full": 40, "semi": 30, "anti": 5}[how],)
        ]
        run.delete("right", [(1, "y", 6)])
        run.commit()
        left_alone = {"inner": None, "left": 35, "right": 5, "full": 40, "semi": None, "anti": 35}[
            how
        ]
        assert run.read("result").rows() == ([] if left_alone is None else [(left_alone,)])


def test_a_join_with_a_collection_from_outside_a_loop():
    def program(left, right):
        return left.select("k", "v").iterate(
            lambda rows: (
                rows.join(right, on="k", how="left", suffix="_r")
                .select("k", v=pl.coalesce("v_r", "v"))
                .distinct()
            ),
            rounds=3,
        )

    for seed in range(4):
        check(program, BOTH, seed=seed)


MOST = (1 << 63) - 1


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, MOST),
        (MOST, 1),
        (3, MOST // 3),
        (1 << 32, 1 << 31),
        (3, MOST // 3 + 1),
        (MOST, MOST),
        (2, 1 << 62),
    ],
)
def test_pairs_are_there_as_often_as_fits_64_bits(left: int, right: int, deleted: bool) -> None:
    """Of rows that are there `left` and `right` times there are so many pairs, or the epoch is refused."""
    flow = rr.Dataflow("often")
    a, b = flow.input("a", {"k": pl.Int64}), flow.input("b", {"k": pl.Int64})
    one = a.negate() if deleted else a
    flow.output("o", _often(one, left).join(_often(b, right), on="k"))
    with flow.run() as run:
        run.insert("a", [(1,)])
        run.insert("b", [(1,), (2,)])
        if left * right <= MOST:
            run.commit()
            sign = -1 if deleted else 1
            assert run.changes("o").rows() == [(1, sign * left * right)]
        else:
            with pytest.raises(rr.OperatorFailed, match="does not fit 64 bits") as refused:
                run.commit()
            assert refused.value.code == "operator.overflow"
            assert refused.value.hint


def _often(rows: rr.Collection, times: int) -> rr.Collection:
    """Every row so many times: made of doublings."""
    repeated, power = None, rows
    while times:
        if times % 2:
            repeated = power if repeated is None else repeated.concat(power)
        times //= 2
        if times:
            power = power.concat(power)
    assert repeated is not None
    return repeated
