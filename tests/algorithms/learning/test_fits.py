"""k-means and logistic regression, after each of many random changes, against NumPy from scratch."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import polars as pl
import pytest

import riverrun as rr
from riverrun.learning import k_means, logistic_regression

EPOCHS = 8


def changing_rows(seed, draw, size):
    """Epoch after epoch, rows that come and go, and the bag of rows that are there."""
    chance = random.Random(seed)
    bag = Counter()
    for epoch in range(EPOCHS):
        there = sorted(bag.elements())
        gone = chance.sample(there, chance.choice((0, 1, len(there) // 2)) if there else 0)
        if epoch == EPOCHS - 2:
            gone = there
        new = [] if epoch == EPOCHS - 2 else [draw(chance) for _ in range(chance.choice((1, size)))]
        if new and chance.random() < 0.5:
            new.append(new[0])
        bag.subtract(gone)
        bag.update(new)
        bag = +bag
        yield sorted(bag.elements()), new, gone


def nearest_of(points, centres):
    """The cluster of each point; `centres` are (cluster, place) in the order of clusters."""
    places = np.array([place for _, place in centres])
    distances = ((points[:, None, :] - places[None, :, :]) ** 2).sum(axis=2)
    return np.array([centres[at][0] for at in distances.argmin(axis=1)])


def lloyd(points, centres, rounds, decimals):
    centres = sorted(centres)
    for _ in range(rounds):
        if not len(points):
            return centres
        clusters = nearest_of(points, centres)
        moved = []
        for cluster, place in centres:
            mine = points[clusters == cluster]
            mean = tuple(mine.mean(axis=0)) if len(mine) else place
            if decimals is not None and len(mine):
                mean = tuple(np.round(mean, decimals))
            moved.append((cluster, mean))
        if np.allclose([p for _, p in moved], [p for _, p in centres], atol=1e-12, rtol=0):
            return moved
        centres = moved
    return centres


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(("rounds", "decimals"), [(100, None), (2, None), (100, 2)])
def test_k_means(workers, rounds, decimals):
    starts = [(1, (0.0, 0.0)), (2, (5.0, 0.5)), (3, (0.1, 6.0)), (4, (90.0, 90.0))]

    def draw(chance):
        middle = chance.choice([(0, 0), (5, 0), (0, 5), (9, 9)])
        return tuple(round(at + chance.gauss(0, 1), 3) for at in middle)

    flow = rr.Dataflow("k-means")
    points = flow.input("points", {"x": pl.Float64, "y": pl.Float64})
    centres = flow.input("starts", {"cluster": pl.Int64, "x": pl.Float64, "y": pl.Float64})
    clusters = k_means(points, centres, rounds=rounds, decimals=decimals)
    flow.output("centres", clusters.centres)
    flow.output("assigned", clusters.assign(points))
    with flow.run(workers=workers, seed=workers) as run:
        run.insert("starts", [(cluster, *place) for cluster, place in starts])
        for rows, new, gone in changing_rows(workers + 50, draw, 40):
            run.insert("points", new)
            run.delete("points", gone)
            run.commit()
            given = np.array(rows).reshape(-1, 2)
            expected = lloyd(given, starts, rounds, decimals)
            found = run.read("centres").rows()
            assert [row[0] for row in found] == [cluster for cluster, _ in expected]
            wanted = np.array([place for _, place in expected])
            np.testing.assert_allclose([row[1:] for row in found], wanted, atol=1e-9)
            assigned = run.read("assigned").rows()
            assert [row[:2] for row in assigned] == rows
            if rows:
                of_points = nearest_of(given, [(row[0], row[1:]) for row in found])
                assert [row[2] for row in assigned] == of_points.tolist()


def descended(rows, rounds, rate, l2, decimals):
    """Intercept and weights, by gradient descent in NumPy."""
    x = np.array([row[:2] for row in rows])
    y = np.array([row[2] for row in rows], float)
    bias, weights = 0.0, np.zeros(2)
    for _ in range(rounds):
        off = 1 / (1 + np.exp(-(x @ weights + bias))) - y
        bias = bias - rate * off.mean()
        weights = weights - rate * (x.T @ off / len(y) + l2 * weights)
        if decimals is not None:
            bias, weights = np.round(bias, decimals), np.round(weights, decimals)
    return [bias, *weights]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(
    ("rate", "l2", "decimals", "kind"),
    [(1.0, 0.0, None, pl.Int64), (0.3, 0.1, None, pl.Boolean), (0.5, 0.01, 3, pl.Int64)],
)
def test_logistic_regression(workers, rate, l2, decimals, kind):
    def draw(chance):
        x, y = round(chance.gauss(0, 1), 2), round(chance.gauss(0, 1), 2)
        return x, y, (bool if kind == pl.Boolean else int)(x - y + chance.gauss(0, 0.5) > 0)

    flow = rr.Dataflow("fit")
    examples = flow.input("examples", {"x": pl.Float64, "y": pl.Float64, "won": kind})
    fit = logistic_regression(
        examples, ["x", "y"], label="won", rounds=15, rate=rate, l2=l2, decimals=decimals
    )
    flow.output("weights", fit.weights)
    flow.output("chances", fit.predict(flow.input("asked", {"x": pl.Float64, "y": pl.Float64})))
    asked = [(0.0, 0.0), (1.0, -2.0)]
    with flow.run(workers=workers, seed=workers) as run:
        run.insert("asked", asked)
        for rows, new, gone in changing_rows(workers + 70, draw, 30):
            run.insert("examples", new)
            run.delete("examples", gone)
            run.commit()
            found = run.read("weights").rows()
            if not rows:
                assert found == run.read("chances").rows() == []
                continue
            expected = descended(rows, 15, rate, l2, decimals)
            np.testing.assert_allclose(found, [expected], rtol=1e-9, atol=1e-12)
            bias, *weights = found[0]
            chances = 1 / (1 + np.exp(-(np.array(asked) @ weights + bias)))
            np.testing.assert_allclose(
                [row[2] for row in run.read("chances").rows()], chances, rtol=1e-12
            )


def test_fits_are_the_same_to_the_last_bit_for_every_number_of_workers():
    chance = random.Random(2)
    rows = [(chance.gauss(0, 1), chance.gauss(0, 1), chance.randrange(2)) for _ in range(60)]
    found = set()
    for workers in (1, 2, 3, 4):
        flow = rr.Dataflow("fits")
        given = flow.input("rows", {"x": pl.Float64, "y": pl.Float64, "label": pl.Int64})
        starts = (
            given.filter(label=1).group_by(cluster=pl.col("x") > 0).agg(rr.min("x"), rr.max("y"))
        )
        flow.output("weights", logistic_regression(given, ["x", "y"], rounds=9).weights)
        flow.output("centres", k_means(given, starts, rounds=9).centres)
        with flow.run(workers=workers, seed=workers) as run:
            for part in (rows[:35], rows[35:]):
                run.insert("rows", part)
                run.commit()
            found.add((*run.read("weights").rows(), *run.read("centres").rows()))
    assert len(found) == 1


KINDS = {"x": pl.Float64, "name": pl.String, "label": pl.Int64, "intercept": pl.Float64}
WRONG = {
    "a missing column": (lambda r, c: k_means(r.drop("x"), c), "plan.column_unknown", "'x'"),
    "no cluster": (lambda r, c: k_means(r, r), "plan.column_unknown", "'cluster'"),
    "no number": (lambda r, c: k_means(r, c.with_columns(name=pl.lit("a"))), "plan.type", "'name'"),
    "no columns": (lambda r, c: k_means(r, c.select("cluster")), "plan.algorithm", "by no columns"),
    "no rows": (lambda r, c: k_means([1], c), "plan.algorithm", "a list as points of k_means"),
    "text": (lambda r, c: logistic_regression(r, ["name"]), "plan.type", "'name'"),
    "no label": (lambda r, c: logistic_regression(c, ["x"]), "plan.column_unknown", "'label'"),
    "a label of text": (
        lambda r, c: logistic_regression(r, ["x"], label="name"), "plan.type", "a label is 0 or 1"
    ),
    "the label as a column": (
        lambda r, c: logistic_regression(r, ["label"]), "plan.algorithm", "that is the label"
    ),
    "an intercept": (
        lambda r, c: logistic_regression(r, ["intercept"]), "plan.algorithm", "without a column"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "code", "words"), WRONG.values(), ids=WRONG)
def test_wrong_fits_are_refused_in_the_users_words(wrong, code, words):
    flow = rr.Dataflow("fits")
    rows, starts = (
        flow.input("rows", KINDS),
        flow.input("starts", {"cluster": pl.Int64, "x": pl.Float64}),
    )
    with pytest.raises(rr.PlanError) as refused:
        wrong(rows, starts)
    assert refused.value.code == code, refused.value
    assert words in str(refused.value)
    assert refused.value.fields["line"].startswith("test_fits.py:")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ((None, "a", 1, 0.0), "'x' is no finite number"),
        ((float("nan"), "a", 1, 0.0), "'x' is no finite number"),
        ((float("-inf"), "a", 1, 0.0), "'x' is no finite number"),
        ((1.0, "a", 2, 0.0), "'label' is neither 0 nor 1, for instance 2"),
        ((1.0, "a", None, 0.0), "'label' is neither 0 nor 1"),
    ],
)
def test_an_epoch_with_a_wrong_number_is_refused_and_the_next_goes_on(row, words):
    flow = rr.Dataflow("fits")
    rows = flow.input("rows", KINDS)
    flow.output("weights", logistic_regression(rows, ["x"], rounds=1).weights)
    with flow.run() as run:
        run.insert("rows", [(1.0, "a", 1, 0.0)])
        run.commit()
        before = run.read("weights").rows()
        run.insert("rows", [(2.0, "b", 0, 0.0), row])
        with pytest.raises(rr.RiverrunError, match=words):
            run.commit()
        run.commit()
        assert run.read("weights").rows() == before
