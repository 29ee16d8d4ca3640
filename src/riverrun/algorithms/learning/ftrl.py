"""Online learning: a logistic regression by FTRL-proximal, trained while it is asked for predictions.

Users find it as `rr.learning.ftrl`. The parameters are a shared state, whose key is the feature, and whose time is the
number of the mini-batch. A mini-batch fetches the parameters of its features, all at once, and sends gradients back. A
prediction fetches the parameters that are there when it is asked for, and does not change when parameters change later.
For each feature the state has `z` and `n`, from which the weight of the feature is computed. A mini-batch with gradient
g changes `z` and `n` by the step of FTRL-proximal, with a learning rate for each feature, L1 and L2:

    weight = 0 if abs(z) <= l1 else (sign(z) * l1 - z) / ((beta + sqrt(n)) / alpha + l2)
    z += g - (sqrt(n + g * g) - sqrt(n)) / alpha * weight,   n += g * g

A mini-batch is dealt out to `trainers`, which work side by side, and whose gradients are added up. The `mode` says
which updates the parameters contain that are fetched for mini-batch i. Laws:

- **bsp**, bulk synchronous: the updates of all mini-batches before i, and no others. So the result is that of the same
  steps one after the other, for every number of workers.
- **ssp**, stale synchronous: at least the updates of all but the last `bound` mini-batches before i.
- **asp**, asynchronous: the updates that are there when the mini-batch is fetched for.
- **Once, in order.** In every mode each gradient counts once, and mini-batches are applied in the order of their
  numbers. What was learned from an example stays when the example is deleted later (`minibatches`).

Training is a loop. In modes ssp and asp, mini-batches that come in one epoch are trained together, ``bound + 1`` or all
at a time, which takes fewer rounds of the loop. Their parameters then depend on how mini-batches were cut into epochs,
and ``flow.explain()`` marks that. Mini-batches in epochs of their own are trained one after the other in any mode.

**Floats.** Gradients of one trainer are added in the order of the ids of its examples. Gradients of several trainers
are added in the order of their values, the least first. So the same numbers come out to the last bit whatever the
workers and the order of arrival; with one trainer they are, to the bit, those of a sequential program that goes through
the examples in that order.

In the example nine examples make three mini-batches, whose losses are read: the number of the mini-batch, how many
examples it has, and their mean loss. Of the three rows with a chance, the last one has a feature that nobody has seen.

>>> flow = rr.Dataflow("clicks")
>>> kinds = {"id": pl.Int64, "features": pl.List(pl.String)}
>>> seen = flow.input("seen", {**kinds, "batch": pl.Int64, "label": pl.Int64})
>>> model = ftrl(flow, seen, l1=0.0)
>>> flow.output("losses", model.losses)
>>> flow.output("chances", model.predict(flow.input("asked", kinds)))
>>> with flow.run() as run:
...     run.insert("seen", [(n, ["red", f"user {n}"], n // 3, n % 2) for n in range(9)])
...     _ = run.commit()
...     run.insert("asked", [(1, ["user 1"]), (2, ["user 2"]), (3, ["user 99"])])
...     _ = run.commit()
...     [(batch, count, round(loss, 3)) for batch, count, loss, _ in run.read("losses").rows()]
...     [(number, round(chance, 3)) for number, _, chance in run.read("chances").rows()]
[(0, 3, 0.693), (1, 3, 0.698), (2, 3, 0.693)]
[(1, 0.508), (2, 0.492), (3, 0.5)]

Cost: a mini-batch takes one round of the loop and part of the next. A mini-batch of 1,000 examples with 14 features
each takes some 20 ms of a processor when it comes alone, and half of that in one epoch with others. The gradient is 1
ms of the 20; the rest is to check the examples, put them together, send them around and keep the outputs, in many steps
that cost as much for few rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

import riverrun as rr
from riverrun.algorithms.graphs.graph import of_collections
from riverrun.algorithms.learning.minibatches import (
    as_lists,
    assembled,
    checked,
    flat,
    lengths,
    ranked,
)

Floats = np.ndarray[Any, np.dtype[np.float64]]
_TRAINED = {
    "batch": pl.Int64,
    "features": pl.List(pl.Int64),
    "gradients": pl.List(pl.Float64),
    "examples": pl.Int64,
    "loss": pl.Float64,
    "seen": pl.Int64,
}


@dataclass(frozen=True)
class Step:
    """FTRL-proximal: how weights follow from z and n, and how a gradient changes these."""

    alpha: float
    beta: float
    l1: float
    l2: float

    def weights(self, z: Floats, n: Floats) -> Floats:
        shrunk = np.sign(z) * self.l1 - z
        rate = (self.beta + np.sqrt(n)) / self.alpha + self.l2
        return np.where(np.abs(z) <= self.l1, 0.0, shrunk / rate)

    def moved(self, z: Floats, n: Floats, gradient: Floats) -> tuple[Floats, Floats]:
        squared = n + gradient * gradient
        rate = (np.sqrt(squared) - np.sqrt(n)) / self.alpha
        return z + (gradient - rate * self.weights(z, n)), squared


@dataclass(frozen=True)
class Model:
    """The results of learning, as collections that are kept up to date."""

    parameters: rr.Collection
    """Rows: feature, the last mini-batch that changed the feature's weight (`batch`), z, n, weight."""
    losses: rr.Collection
    """Rows: batch, the number of its examples, their mean log loss before they were learned, and the last mini-batch
    whose update is in all parameters used for the batch (`seen`; null for none)."""
    rejected: rr.Collection
    """Examples that were not learned, each with the reason."""
    state: rr.State
    _predict: Callable[[rr.Collection], rr.Collection]

    def predict(self, asked: rr.Collection) -> rr.Collection:
        """The rows of `asked`, with a new column: the `chance` that the label of the row is 1.

        `asked` has `features`, and `values` unless all values are 1. Each row is answered once, with the parameters of
        the moment at which it comes, also while mini-batches are being trained.
        """
        return self._predict(asked)


@of_collections
def ftrl(
    flow: rr.Dataflow,
    examples: rr.Collection,
    *,
    mode: Literal["bsp", "ssp", "asp"] = "bsp",
    bound: int = 1,
    trainers: int = 1,
    alpha: float = 0.1,
    beta: float = 1.0,
    l1: float = 1.0,
    l2: float = 1.0,
    name: str = "model",
) -> Model:
    """Learn from `examples` as they come, a collection in the dataflow `flow`.

    Rows have `id`, `batch`, `label` (0 or 1, or a boolean), `features` and `values`. `batch` is the number of the
    mini-batch, which only grows; `features` is a list of whole numbers or strings, and `values` a list of numbers, left
    out where all are 1. A feature that every example has is the intercept.

    `trainers` share a mini-batch. `mode` says which updates are in the parameters for a mini-batch: with "bsp" the
    updates of all mini-batches before it, with "ssp" of all but the last `bound`, with "asp" the updates that are
    there. `alpha` and `beta` make the learning rate of a feature, `l1` and `l2` draw its weight to 0. `name` is the
    prefix for the names of states and steps.
    """
    kinds = _check(examples, mode, bound, trainers, alpha=alpha, beta=beta, l1=l1, l2=l2)
    step = Step(alpha, beta, l1, l2)
    rows = checked(examples, trainers)
    good = rows.filter(pl.col("reason").is_null())
    lag = {"bsp": 1, "ssp": bound + 1, "asp": None}[mode]
    parts, rejected = assembled(flow, good, lag, name)

    loop = flow.loop(name=f"{name}:training")
    state = loop.state(
        name,
        key={"feature": kinds["features"].inner},
        value={"z": pl.Float64, "n": pl.Float64},
        time={"batch": pl.Int64},
        start=0,
        compact=rr.rules.keep_latest,
    )
    asked = loop.enter(parts)
    wanted: dict[str, Any] = {"key": "features", "time": "seen", "name": f"{name}:pull"}
    if mode == "bsp":
        fetched = asked.fetch(state, at="after", **wanted)
    else:
        asked.progress(state, "fetch", at="after", late=0)
        wait = "after" if mode == "ssp" else None
        fetched = asked.fetch_uncommitted(state, wait=wait, **wanted)
    trained_columns = {**_TRAINED, "features": kinds["features"]}
    trained = fetched.map_batches(lambda frame: _trained(frame, step), trained_columns)
    # In an update, z is the gradient.
    pushed = {"z": "gradients", "n": pl.lit(0.0)}
    rule = rr.rules.update(lambda entries, updates: _stepped(entries, updates, step))
    trained.update(state, key="features", value=pushed, rule=rule, progress=False)
    trained.progress(state, "update", at=pl.col("batch") + 1, late=0)

    losses = (
        loop.leave(trained.select("batch", "examples", "loss", "seen"))
        .filter(pl.col("examples") > 0)
        .group_by("batch")
        .agg(examples=rr.sum("examples"), loss=rr.sum("loss"), seen=rr.max("seen"))
        .select("batch", "examples", loss=pl.col("loss") / pl.col("examples"), seen="seen")
    )
    # Of two entries of a feature the older one is about to be compacted.
    newest = {name: pl.col(name).sort_by("batch").last() for name in ("batch", "z", "n")}
    entries = loop.leave(state.entries()).group_by("feature").agg(**newest)
    parameters = entries.map_batches(
        lambda frame: _weighed(frame, step),
        {"feature": kinds["features"].inner, "batch": pl.Int64, "z": pl.Float64, "n": pl.Float64, "weight": pl.Float64},
    )  # fmt: skip
    wrong = rows.filter(pl.col("reason").is_not_null()).select(*rejected.columns)

    def predict(asked: rr.Collection) -> rr.Collection:
        looked_up = asked.fetch_uncommitted(state, key="features", suffix="_of_model")
        z, n = looked_up.columns[-2:]
        columns = {**_kinds(asked), "chance": pl.Float64}
        return loop.leave(
            looked_up.map_batches(lambda frame: _scored(frame, z, n, step, list(columns)), columns)
        )

    return Model(parameters, losses, rejected.concat(wrong), state, predict)


def _trained(frame: pl.DataFrame, step: Step) -> pl.DataFrame:
    """The gradients and losses of parts of mini-batches, all at once; `frame` has the parts with the parameters of
    their features."""
    widths = lengths(frame["features"])
    weights = step.weights(*(_numbers(frame[name]) for name in ("z", "n")))
    labels, counts = flat(frame["labels"]).to_numpy(), lengths(frame["labels"])
    sizes, values = flat(frame["sizes"]).to_numpy(), flat(frame["values"]).to_numpy()
    many = lengths(frame["values"])
    features = flat(frame["ranks"]).to_numpy() + np.repeat(np.cumsum(widths) - widths, many)
    of = np.repeat(np.arange(len(labels)), sizes)
    margins = _sums(of, weights[features] * values, len(labels))
    wrong = 1.0 / (1.0 + np.exp(-margins)) - labels
    gradients = _sums(features, wrong[of] * values, len(weights))
    losses = np.logaddexp(0.0, margins) - labels * margins
    parts = np.repeat(np.arange(len(frame)), counts)
    pushed = frame["features"].list.drop_nulls()
    there = flat(frame["features"]).is_not_null().to_numpy()
    return frame.select(
        "batch",
        features=pushed,
        gradients=as_lists(gradients[there], lengths(pushed)),
        examples=pl.Series(counts, dtype=pl.Int64),
        loss=pl.Series(_sums(parts, losses, len(frame))),
        seen=pl.col("seen").list.max(),
    )


def _stepped(entries: pl.DataFrame, updates: pl.DataFrame, step: Step) -> pl.DataFrame:
    """The entries, and for each feature with a gradient one more: its entry of its last mini-batch."""
    both = pl.concat([entries["feature"], updates["feature"]])
    features, ranks = ranked(both)
    old, new = ranks[: len(entries)], ranks[len(entries) :]
    z, n, last = np.zeros(len(features)), np.zeros(len(features)), np.full(len(features), -1)
    order = np.lexsort(
        (entries["batch"].to_numpy(), old)
    )  # so that the last entry of each feature wins
    for column, name in ((z, "z"), (n, "n")):
        column[old[order]] = entries[name].to_numpy()[order]
    batches, gradients = updates["batch"].to_numpy(), updates["z"].to_numpy()
    for batch in np.unique(batches):
        here = np.flatnonzero(batches == batch)
        here = here[np.argsort(gradients[here], kind="stable")]
        summed = _sums(new[here], gradients[here], len(features))
        touched = np.unique(new[here])
        z[touched], n[touched] = step.moved(z[touched], n[touched], summed[touched])
        last[touched] = batch
    fresh = pl.DataFrame({"feature": features, "batch": last, "z": z, "n": n})
    return pl.concat([entries, fresh])


def _weighed(frame: pl.DataFrame, step: Step) -> pl.DataFrame:
    """Features with their z and n, and the weight that follows from these."""
    weights = step.weights(frame["z"].to_numpy(), frame["n"].to_numpy())
    return frame.with_columns(weight=pl.Series(weights))


def _scored(frame: pl.DataFrame, z: str, n: str, step: Step, columns: list[str]) -> pl.DataFrame:
    """The chance of each row; null where the row has not one value for each feature."""
    weights = step.weights(_numbers(frame[z]), _numbers(frame[n]))
    sizes = lengths(frame["features"].fill_null([]))
    of = np.repeat(np.arange(len(frame)), sizes)
    fits = frame["features"].is_not_null()
    if "values" in frame.columns:
        fits &= (frame["values"].list.len() == frame["features"].list.len()).fill_null(False)
        fitting = fits.to_numpy()[of]
        weights, of = weights[fitting], of[fitting]
        weights = weights * flat(frame["values"].filter(fits)).cast(pl.Float64).to_numpy()
    margins = _sums(of, weights, len(frame))
    chances = pl.DataFrame({"fits": fits, "chance": 1.0 / (1.0 + np.exp(-margins))})
    chance = chances.select(pl.when("fits").then("chance"))["chance"]
    return frame.with_columns(chance=chance).select(columns)


def _sums(of: Any, values: Floats, count: int) -> Floats:
    """For each number below `count`, the sum of the values that `of` gives this number, added from first to last."""
    return np.bincount(of, values, count).astype(np.float64, copy=False)


def _numbers(lists: pl.Series) -> Floats:
    return flat(lists).fill_null(0.0).to_numpy()


def _kinds(rows: rr.Collection) -> dict[str, Any]:
    return dict(rows.polars_schema)


def _check(
    examples: rr.Collection, mode: str, bound: int, trainers: int, **rates: float
) -> dict[str, Any]:
    """The types of the columns of `examples`; refuse columns and arguments that make no sense."""
    kinds = _kinds(examples)
    wanted: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "id": ("whole numbers", lambda kind: kind.is_integer()),
        "batch": ("whole numbers", lambda kind: kind.is_integer()),
        "label": ("numbers, 0 or 1", lambda kind: kind.is_numeric() or kind == pl.Boolean),
        "features": ("lists of whole numbers or strings", _is_list_of(_names)),
        "values": ("lists of numbers", _is_list_of(lambda kind: kind.is_numeric())),
    }
    for column, (description, fits) in wanted.items():
        if column not in kinds and column == "values":
            continue
        if column not in kinds or not fits(kinds[column]):
            there = f"it is {kinds[column]}" if column in kinds else "there is none"
            raise rr.PlanError(
                "learning.column",
                f"cannot learn from {examples!r}: its column {column!r} has to be {description}, and {there}",
                hint='select and cast what is there: select("id", label=pl.col("click").cast(pl.Int8), ...)',
                column=column,
            )
    if mode not in ("bsp", "ssp", "asp"):
        raise rr.PlanError(
            "learning.mode", f"cannot learn in mode {mode!r}", hint="it is one of bsp, ssp, asp"
        )
    for option, count, least in (("bound", bound, 0), ("trainers", trainers, 1)):
        if type(count) is not int or count < least:
            raise rr.PlanError(
                "learning.count",
                f"cannot learn with {option}={count!r}",
                hint=f"give a whole number from {least} on",
            )
    for option, rate in rates.items():
        if not (rate >= 0 and np.isfinite(rate)) or (option == "alpha" and rate == 0):
            raise rr.PlanError(
                "learning.rate",
                f"cannot learn with {option}={rate!r}",
                hint="rates are finite and not negative, and alpha is not 0",
            )
    if rates["beta"] == rates["l2"] == 0:
        raise rr.PlanError(
            "learning.rate",
            "cannot learn with beta=0.0 and l2=0.0: the first step would be divided by 0",
            hint="leave one of them as it is",
        )
    return kinds


def _names(kind: Any) -> bool:
    return bool(kind.is_integer() or kind == pl.String)


def _is_list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda kind: isinstance(kind, pl.List) and fits(kind.inner)
