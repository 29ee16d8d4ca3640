"""FTRL on shared state against the same steps one after the other (`sequential`)."""

from __future__ import annotations

import gzip

import numpy as np
import polars as pl
import pytest

import riverrun as rr
from riverrun.algorithms import ftrl
from tests.algorithms.sequential import Sequential

KINDS = {
    "id": pl.Int64,
    "batch": pl.Int64,
    "label": pl.Int64,
    "features": pl.List(pl.Int64),
    "values": pl.List(pl.Float64),
}
RATES = {"alpha": 0.3, "beta": 0.5, "l1": 0.2, "l2": 0.1}


def made(seed, batches=8, size=30, features=40, gaps=False):
    """Examples of a logistic model, several in a mini-batch, of very different values."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=features)
    numbers = np.cumsum(rng.integers(1, 4, batches)) if gaps else np.arange(batches)
    examples = []
    for at in range(batches * size):
        chosen = [0, *rng.choice(np.arange(1, features), rng.integers(0, 8), replace=False)]
        values = [1.0, *(rng.normal(size=len(chosen) - 1) * 10.0 ** rng.integers(-3, 2))]
        label = rng.random() < 1 / (1 + np.exp(-np.dot(true[chosen], values)))
        examples.append(
            (at, int(numbers[at // size]), int(label), list(map(int, chosen)), list(map(float, values)))
        )
    return examples


def program(**options):
    flow = rr.Dataflow("learning")
    model = ftrl(flow, flow.input("examples", KINDS), **{**RATES, **options})
    asked = flow.input("asked", {"id": pl.Int64, "features": pl.List(pl.Int64), "values": pl.List(pl.Float64)})
    flow.output("parameters", model.parameters)
    flow.output("losses", model.losses)
    flow.output("rejected", model.rejected)
    flow.output("chances", model.predict(asked))
    return flow


def parameters(run):
    rows = run.read("parameters").to_arrow().to_pylist()
    return {row["feature"]: (row["batch"], row["z"], row["n"]) for row in rows}


def losses(run):
    rows = run.read("losses").to_arrow().to_pylist()
    return {row["batch"]: (row["examples"], row["loss"]) for row in rows}


def seen(run):
    return {row["batch"]: row["seen"] for row in run.read("losses").to_arrow().to_pylist()}


def cut(examples, sizes):
    """The examples in epochs of as many mini-batches as `sizes` says, in turn."""
    numbers = sorted({example[1] for example in examples})
    at, turn = 0, 0
    while at < len(numbers):
        some = set(numbers[at : at + sizes[turn % len(sizes)]])
        yield [example for example in examples if example[1] in some]
        at += len(some)
        turn += 1


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("trainers", [1, 3])
def test_bsp_is_sequential_to_the_last_bit_at_every_iteration(workers, trainers):
    seed = workers * 10 + trainers
    examples = made(seed, gaps=True)
    expected = Sequential(**RATES, trainers=trainers)
    shuffled = np.random.default_rng(seed).permutation(len(examples))
    with program(trainers=trainers).run(workers=workers, seed=seed) as run:
        for epoch in cut([examples[at] for at in shuffled], [1, 3, 1, 2]):
            run.insert("examples", epoch)
            run.commit()
            expected.train(epoch)
            assert parameters(run) == expected.parameters(), f"seed {seed}"
        found = losses(run)
        assert found.keys() == expected.losses.keys()
        for batch, (count, loss) in expected.losses.items():
            assert found[batch] == (count, pytest.approx(loss, rel=1e-12)), f"seed {seed}"
        assert run.status()["states"]["model"]["pending"] == 0
