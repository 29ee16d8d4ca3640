"""FTRL on shared state against the same steps one after the other (`sequential`)."""

from __future__ import annotations

import gzip

import numpy as np
import polars as pl
import pytest

import riverrun as rr
from riverrun.algorithms.learning.ftrl import ftrl
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
            (
                at,
                int(numbers[at // size]),
                int(label),
                list(map(int, chosen)),
                list(map(float, values)),
            )
        )
    return examples


def program(**options):
    flow = rr.Dataflow("learning")
    model = ftrl(flow, flow.input("examples", KINDS), **{**RATES, **options})
    asked = flow.input(
        "asked", {"id": pl.Int64, "features": pl.List(pl.Int64), "values": pl.List(pl.Float64)}
    )
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
        assert run.status()["states"]["model:training/model"]["pending"] == 0


@pytest.mark.parametrize(
    ("options", "lag"),
    [
        ({"mode": "ssp", "bound": 0}, 1),
        ({"mode": "ssp", "bound": 1}, 2),
        ({"mode": "ssp", "bound": 3}, 4),
        ({"mode": "asp"}, None),
    ],
)
@pytest.mark.parametrize("workers", [1, 3])
def test_stale_modes_are_sequential_with_parameters_as_stale_as_they_may_be(options, lag, workers):
    seed = workers * 100 + (lag or 0)
    examples = made(seed, batches=12, size=15)
    expected = Sequential(**RATES, trainers=2)
    with program(trainers=2, **options).run(workers=workers, seed=seed) as run:
        for epoch in cut(examples, [5, 1, 4]):
            run.insert("examples", epoch)
            run.commit()
            expected.train(epoch, lag)
            assert parameters(run) == expected.parameters(), f"seed {seed}"
        bound = options.get("bound", 5)
        # Feature 0 is in every example, so what was seen of it is all that was there.
        given = seen(run)
        assert given.pop(0) is None
        assert all(batch - 1 - bound <= (last or 0) < batch for batch, last in given.items())
        if lag != 1:
            assert any((last or 0) < batch - 1 for batch, last in given.items())


def libsvm(path, count):
    rows = []
    with gzip.open(path, "rt") as lines:
        for at, line in zip(range(count), lines, strict=False):
            label, *pairs = line.split()
            features = [0, *(int(pair.split(":")[0]) for pair in pairs)]
            rows.append((at, at // 100, int(label), features, [1.0] * len(features)))
    return rows


@pytest.mark.parametrize(
    ("train", "test"), [("a9a.gz", "a9a.t.gz"), ("agaricus.txt.train.gz", "agaricus.txt.test.gz")]
)
def test_stale_modes_learn_real_data_nearly_as_well(ctr, train, test):
    """Of 6,000 examples in epochs of 8 mini-batches; the bound is 0.05 of log loss on what was not trained on."""
    examples, held_out = libsvm(ctr / train, 6_000), libsvm(ctr / test, 1_000)
    rates = {"alpha": 0.1, "beta": 1.0, "l1": 1.0, "l2": 1.0}
    expected = Sequential(**rates)
    expected.train(examples)
    goal = _loss([expected.chance(example[3]) for example in held_out], held_out)
    assert goal < 0.4
    for options in ({"mode": "bsp"}, {"mode": "ssp", "bound": 2}, {"mode": "asp"}):
        with program(**rates, **options, trainers=2).run(workers=2) as run:
            for epoch in cut(examples, [8]):
                run.insert("examples", epoch)
                run.commit()
            run.insert("asked", [(at, features, values) for at, _, _, features, values in held_out])
            run.commit()
            rows = sorted(run.read("chances").to_arrow().to_pylist(), key=lambda row: row["id"])
            reached = _loss([row["chance"] for row in rows], held_out)
        assert reached < goal + (0.001 if options["mode"] == "bsp" else 0.05), options


def _loss(chances, examples):
    labels = np.array([example[2] for example in examples])
    chances = np.clip(chances, 1e-12, 1 - 1e-12)
    return -np.mean(labels * np.log(chances) + (1 - labels) * np.log(1 - chances))


def test_predictions_have_the_parameters_of_their_epoch_and_keep_them():
    examples = made(5)
    expected = Sequential(**RATES)
    with program().run(workers=2) as run:
        answers = {}
        for at, epoch in enumerate(cut(examples, [2])):
            features, values = [0, 3, 7 + at, 999], [1.0, 0.5, -2.0, 3.0]
            # What is trained in the same epoch is not known yet.
            answers[at] = expected.chance(features, values)
            run.insert("asked", [(at, features, values)])
            run.insert("examples", epoch)
            run.commit()
            expected.train(epoch)
        run.insert("asked", [(90, [], []), (91, None, [1.0]), (92, [1, 2], [1.0]), (93, [1], None)])
        run.commit()
        found = {row["id"]: row["chance"] for row in run.read("chances").to_arrow().to_pylist()}
    assert found.pop(90) == 0.5
    assert [found.pop(at) for at in (91, 92, 93)] == [None] * 3
    assert found == {at: pytest.approx(chance, rel=1e-12) for at, chance in answers.items()}


@pytest.mark.parametrize("mode", ["bsp", "asp"])
def test_rows_that_cannot_be_learned_are_told_and_leave_the_others_alone(mode):
    examples = made(6, batches=4)
    expected = Sequential(**RATES)
    wrong = [
        ((1000, None, 1, [1], [1.0]), "its mini-batch has no number from 0 on"),
        ((1001, -3, 1, [1], [1.0]), "its mini-batch has no number from 0 on"),
        ((None, 1, 1, [1], [1.0]), "it has no id"),
        ((1002, 1, 2, [1], [1.0]), "its label is neither 0 nor 1"),
        ((1003, 1, None, [1], [1.0]), "its label is neither 0 nor 1"),
        ((1004, 1, 1, None, [1.0]), "a feature is null"),
        ((1005, 1, 1, [1, None], [1.0, 1.0]), "a feature is null"),
        ((1006, 1, 1, [1, 2], [1.0]), "it has not a value for each feature"),
        ((1007, 1, 1, [1, 2], None), "it has not a value for each feature"),
        ((1008, 1, 1, [1, 2], [1.0, float("nan")]), "a value is not a finite number"),
        (
            (1009, 77, 1, [1, 2], [1.0, None]),
            "a value is not a finite number",
        ),  # a whole mini-batch
    ]
    early, later = examples[:60], examples[60:]
    with program(mode=mode).run(workers=2) as run:
        run.insert("examples", [*early, *(row for row, _ in wrong)])
        run.commit()
        expected.train(early, 1 if mode == "bsp" else None)
        assert rejected(run) == {row[0]: reason for row, reason in wrong}
        # One comes and goes in an epoch, one comes twice, one is of a mini-batch that was trained, one was learned,
        # and a mini-batch is deleted whole before it was there.
        late, gone, twice = (2000, 1, 1, [1], [1.0]), (2001, 2, 1, [1], [1.0]), later[0]
        lost = [(2002, 9, 1, [1], [1.0]), (2003, 9, 0, [2], [1.0])]
        run.insert("examples", [*later, late, gone, twice, *lost])
        run.delete("examples", [gone, examples[0], *lost])
        run.commit()
        expected.train([*later, twice], 1 if mode == "bsp" else None)
        assert parameters(run) == expected.parameters()
        told = rejected(run)
        assert told.pop(2000) == "its mini-batch is late"
        assert told.pop(examples[0][0]) == "it was deleted after its epoch"
        # What was wrong, and goes, is not told any more; and learning goes on behind the mini-batch that is not there.
        run.delete("examples", [row for row, _ in wrong])
        more = made(7, batches=12)[-60:]
        run.insert("examples", more)
        run.commit()
        expected.train(more, 1 if mode == "bsp" else None)
        assert parameters(run) == expected.parameters()
        assert rejected(run).keys() == {2000, examples[0][0]}
        assert run.status()["states"]["model:training/model"]["pending"] == 0
        assert run.events("late") == []


def rejected(run):
    return {row["id"]: row["reason"] for row in run.read("rejected").to_arrow().to_pylist()}


@pytest.mark.parametrize("mode", ["bsp", "ssp"])
def test_resuming_in_the_middle_of_training_is_never_stopping(tmp_path, mode):
    examples = made(8, batches=9)
    epochs = list(cut(examples, [2, 1]))
    with program(mode=mode, trainers=2).run(workers=2) as run:
        for epoch in epochs:
            run.insert("examples", epoch)
            run.commit()
        whole = parameters(run), losses(run)
    for at, workers in enumerate([1, 3, 2, 1, 4, 2]):
        # Every other time the last epoch is in the log only.
        with program(mode=mode, trainers=2).run(
            workers=workers, checkpoint=tmp_path, every=2
        ) as run:
            run.insert("examples", epochs[at])
            run.commit()
            found = parameters(run), losses(run)
    assert found == whole


def test_features_may_be_words_and_values_left_out():
    flow = rr.Dataflow("words")
    kinds = {"id": pl.UInt16, "batch": pl.Int8, "label": pl.Float32, "features": pl.List(pl.String)}
    model = ftrl(flow, flow.input("examples", kinds), l1=0.0, trainers=2)
    flow.output("parameters", model.parameters)
    flow.output("chances", model.predict(flow.input("asked", {"features": pl.List(pl.String)})))
    rows = [(at, at // 4, at % 2, ["all", "odd" if at % 2 else "even"]) for at in range(40)]
    rows += [(1000, 3, 1, [])]
    expected = Sequential(l1=0.0, trainers=2)
    expected.train([(*row, [1.0] * len(row[3])) for row in rows])
    with flow.run(workers=2) as run:
        run.insert("examples", rows)
        run.commit()
        assert parameters(run) == expected.parameters()
        run.insert("asked", [(["all", "odd"],), (["all", "even"],)])
        run.commit()
        chances = sorted(row["chance"] for row in run.read("chances").to_arrow().to_pylist())
    assert chances == pytest.approx([expected.chance(["all", word]) for word in ("even", "odd")])
    assert chances[0] < 0.45 < 0.55 < chances[1]


def test_what_depends_on_arrival_is_marked():
    def marked(name, **options):
        text = program(**options).explain()
        (line,) = (line for line in text.splitlines() if f"output '{name}'" in line)
        return "depends on arrival" in line

    assert [marked("parameters", mode=mode) for mode in ("bsp", "ssp", "asp")] == [
        False,
        True,
        True,
    ]
    assert marked("chances", mode="bsp")
    assert not marked("rejected", mode="asp")


@pytest.mark.parametrize(
    ("kinds", "options", "message"),
    [
        (
            {"label": pl.String},
            {},
            "its column 'label' has to be numbers, 0 or 1, and it is String",
        ),
        (
            {"features": pl.Int64},
            {},
            "its column 'features' has to be lists of whole numbers or strings",
        ),
        ({"features": pl.List(pl.Float64)}, {}, "and it is List\\(Float64\\)"),
        ({"values": pl.List(pl.String)}, {}, "its column 'values' has to be lists of numbers"),
        ({"batch": None}, {}, "its column 'batch' has to be whole numbers, and there is none"),
        ({}, {"mode": "SSP"}, "cannot learn in mode 'SSP'"),
        ({}, {"mode": "ssp", "bound": -1}, "bound=-1"),
        ({}, {"trainers": 0}, "trainers=0"),
        ({}, {"alpha": 0.0}, "alpha=0.0"),
        ({}, {"l1": float("nan")}, "l1=nan"),
        ({}, {"beta": 0.0, "l2": 0.0}, "beta=0.0"),
    ],
)
def test_what_makes_no_sense_is_refused_while_building(kinds, options, message):
    flow = rr.Dataflow("wrong")
    columns = {name: kind for name, kind in {**KINDS, **kinds}.items() if kind is not None}
    with pytest.raises(rr.PlanError, match=message):
        ftrl(flow, flow.input("examples", columns), **options)
