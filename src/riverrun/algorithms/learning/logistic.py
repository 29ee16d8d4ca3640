"""Logistic regression by gradient descent over all examples, kept up to date while examples come and go.

Users find it as `rr.learning.logistic_regression`. Where `ftrl` sees each example once, in the order of its arrival,
this is a fit: weights start at 0, and each round takes one step against the gradient of the mean log loss over all
examples that there are. So an example that is deleted, or corrected, leaves no trace in the weights: the result is
always that of the fit from scratch.

Gradients are exact sums, rounded once, so the result depends neither on the order of the examples nor on the number of
workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

import riverrun as rr
from riverrun.algorithms.graphs.graph import check_columns, of_collections
from riverrun.algorithms.learning.numbers import OnlyNumbers, added, check_numbers, fit_mode

INTERCEPT = "intercept"


@dataclass(frozen=True)
class Regression:
    """A fitted logistic regression: weights that are kept up to date."""

    weights: rr.Collection
    """One row, while there are examples: intercept, and the weight of each column."""

    def predict(self, asked: rr.Collection) -> rr.Collection:
        """The rows of `asked`, with a new column: the `chance` that the label of the row is 1, by the weights of now.

        `asked` has the columns of the fit. The chances change with the weights.
        """
        columns = [name for name in self.weights.columns if name != INTERCEPT]
        check_numbers(asked, columns, "a logistic regression")
        inner = {f"weight of {name}": name for name in self.weights.columns}
        weighted = asked.join(self.weights.select(**inner), how="cross")
        terms = [pl.col(name) * pl.col(f"weight of {name}") for name in columns]
        chance = _chance(added([pl.col(f"weight of {INTERCEPT}"), *terms]))
        return weighted.with_columns(chance=chance).select(*asked.columns, "chance")


@of_collections
def logistic_regression(
    examples: rr.Collection,
    columns: Sequence[str],
    *,
    label: str = "label",
    rounds: int = 100,
    rate: float = 1.0,
    l2: float = 0.0,
    decimals: int | None = None,
) -> Regression:
    """The weights of `columns` by which the `label` of `examples` is predicted best, after `rounds` of descent.

    `label` names a column with 0 and 1, or booleans; `columns` are numbers. None of them is null or infinite: an epoch
    with such a value is refused (``schema.number``). A round moves the weights by `rate` times the gradient of the mean
    log loss; `l2` draws all weights but the intercept to 0. Numbers of about the same size, around 0, take the fewest
    rounds.

    With `decimals`, weights are rounded to that many decimals in each round, so that a change of few of many examples
    may go no further.

    Cost: a round looks at all examples, also after a change, since weights change with every example. The examples are
    on one worker.

    >>> flow = rr.Dataflow("exams")
    >>> exams = flow.input("exams", {"hours": pl.Float64, "label": pl.Int64})
    >>> fit = logistic_regression(exams, ["hours"], rounds=200)
    >>> flow.output("weights", fit.weights)
    >>> flow.output("chances", fit.predict(flow.input("asked", {"hours": pl.Float64})))
    >>> with flow.run() as run:
    ...     run.insert("exams", [(-2.0, 0), (-1.0, 0), (-0.5, 1), (0.5, 0), (1.0, 1), (2.0, 1)])
    ...     run.insert("asked", [(-1.0,), (0.0,), (1.0,)])
    ...     _ = run.commit()
    ...     [(hours, round(chance, 2)) for hours, chance in run.read("chances").rows()]
    [(-1.0, 0.21), (0.0, 0.5), (1.0, 0.79)]
    """
    columns = [columns] if isinstance(columns, str) else list(columns)
    check_numbers(examples, columns, "a logistic regression")
    _check_label(examples, label, columns)
    check = OnlyNumbers("a logistic regression", tuple(columns), label)
    width = range(len(columns))
    known = examples.inspect(check, times=False).select(
        y=pl.col(label).cast(pl.Float64),
        **{f"x{at}": pl.col(name).cast(pl.Float64) for at, name in enumerate(columns)},
    )
    start = (
        known.group_by()
        .agg(n=rr.count())
        .select(b=pl.lit(0.0), **{f"w{at}": pl.lit(0.0) for at in width})
    )
    chance = _chance(added([pl.col("b"), *[pl.col(f"w{at}") * pl.col(f"x{at}") for at in width]]))

    def rounded(weight: pl.Expr) -> pl.Expr:
        return weight if decimals is None else weight.round(decimals)

    def descend(weights: rr.Collection) -> rr.Collection:
        off = known.join(weights, how="cross").with_columns(off=chance - pl.col("y"))
        slope = off.group_by().agg(
            n=rr.count(),
            gb=rr.sum("off"),
            **{f"g{at}": rr.sum(pl.col("off") * pl.col(f"x{at}")) for at in width},
        )
        mean = {at: pl.col(f"g{at}") / pl.col("n") for at in ("b", *width)}
        moved = {
            f"w{at}": rounded(pl.col(f"w{at}") - rate * (mean[at] + l2 * pl.col(f"w{at}")))
            for at in width
        }
        return slope.join(weights, how="cross").select(
            b=rounded(pl.col("b") - rate * mean["b"]), **moved
        )

    named = {INTERCEPT: "b", **{name: f"w{at}" for at, name in enumerate(columns)}}
    return Regression(
        start.iterate(descend, rounds=rounds, mode=fit_mode(decimals, known)).select(**named)
    )


def _chance(score: pl.Expr) -> pl.Expr:
    return 1.0 / (1.0 + (-score).exp())


def _check_label(examples: rr.Collection, label: Any, columns: Sequence[str]) -> None:
    check_columns(examples, label)
    kind = examples.polars_schema[label]
    if kind != pl.Boolean and not (kind.is_numeric() and not kind.is_decimal()):
        raise rr.PlanError(
            "plan.type",
            f"cannot fit a logistic regression to {label!r}: that is {kind}, and a label is 0 or 1",
            hint=f"compute it: with_columns({label}=pl.col({label!r}) == ...)",
            column=label,
        )
    for name in (label, INTERCEPT):
        if name in columns:
            raise rr.PlanError(
                "plan.algorithm",
                f"cannot fit a logistic regression by {name!r}: that is "
                + ("the label" if name == label else "what the weight without a column is called"),
                hint="leave it out of columns=, or rename the column",
            )
