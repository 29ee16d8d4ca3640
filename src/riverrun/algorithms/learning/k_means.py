"""k-means: points in clusters around centres, each of which is the mean of its points.

Users find it as `rr.learning.k_means`. It is Lloyd's algorithm as a loop of collections: every point goes to the
nearest centre, every centre goes to the mean of its points, until no centre moves. Points may come and go in every
epoch; the result is always that of the algorithm from scratch, over the points that there are, from the same starts.

Means are exact sums, rounded once and divided, so the result does not depend on the order of the points, nor on the
number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

import riverrun as rr
from riverrun.algorithms.graphs.graph import check_columns, of_collections
from riverrun.algorithms.learning.numbers import OnlyNumbers, added, check_numbers, fit_mode


@dataclass(frozen=True)
class Clusters:
    """The result of k-means: centres that are kept up to date."""

    centres: rr.Collection
    """Rows: cluster, and the centre's place in each of the columns."""

    def assign(self, points: rr.Collection) -> rr.Collection:
        """The `points`, each with the `cluster` of the nearest centre; of equally near ones, the least cluster."""
        columns = [name for name in self.centres.columns if name != "cluster"]
        check_numbers(points, columns, "clusters")
        points = points.inspect(OnlyNumbers("clusters", tuple(columns)), times=False)
        names = [f"x{at}" for at in range(len(columns))]
        centres = self.centres.select(
            "cluster", **{f"c{at}": name for at, name in enumerate(columns)}
        )
        nearest = _nearest(_places(points, columns), centres, len(columns))
        placed = points.with_columns(
            **{f"at {name}": _float(column) for name, column in zip(names, columns, strict=True)}
        )
        found = placed.join(
            nearest.select(*names, "cluster"),
            left_on=[f"at {name}" for name in names],
            right_on=names,
        )
        return found.select(*points.columns, "cluster")


@of_collections
def k_means(
    points: rr.Collection,
    centres: rr.Collection,
    *,
    rounds: int | None = 100,
    decimals: int | None = None,
) -> Clusters:
    """Clusters of `points`, around the `centres` that they start with, moved to the means of their points.

    `centres` has a column `cluster` that tells them apart, and columns of numbers; `points` has these columns too, and
    perhaps others. Numbers are neither null nor infinite: an epoch with such a number is refused (``schema.number``). A
    cluster that no point is nearest to keeps its centre. The loop ends when no centre moves, or after `rounds`.

    With `decimals`, centres are rounded to that many decimals in each round, so that a change too small to move a
    rounded centre goes no further.

    Cost: each round looks at the distance of every different point to every centre, and so does each round after a
    change; with `decimals`, only where a change moves a rounded centre. All pairs of points and centres are on one
    worker.

    >>> flow = rr.Dataflow("towns")
    >>> towns = flow.input("towns", {"name": pl.String, "x": pl.Float64, "y": pl.Float64})
    >>> starts = flow.input("starts", {"cluster": pl.Int64, "x": pl.Float64, "y": pl.Float64})
    >>> clusters = k_means(towns, starts)
    >>> flow.output("centres", clusters.centres)
    >>> flow.output("assigned", clusters.assign(towns).select("name", "cluster"))
    >>> with flow.run() as run:
    ...     run.insert("starts", [(1, 0.0, 0.0), (2, 1.0, 0.0)])
    ...     run.insert("towns", [("a", 0.0, 1.0), ("b", 0.0, 3.0), ("c", 8.0, 0.0)])
    ...     _ = run.commit()
    ...     run.read("centres").rows()
    ...     run.read("assigned").rows()
    [(1, 0.0, 2.0), (2, 8.0, 0.0)]
    [('a', 1), ('b', 1), ('c', 2)]
    """
    check_columns(centres, "cluster")
    columns = [name for name in centres.columns if name != "cluster"]
    for rows in (centres, points):
        check_numbers(rows, columns, "k-means")
    check = OnlyNumbers("k-means", tuple(columns))
    places = _places(points.inspect(check, times=False), columns)
    starts = centres.inspect(check, times=False).select(
        "cluster", **{f"c{at}": _float(name) for at, name in enumerate(columns)}
    )

    def step(centres: rr.Collection) -> rr.Collection:
        nearest = _nearest(places, centres, len(columns))
        means = nearest.group_by("cluster").agg(
            **{
                f"c{at}": rr.sum(pl.col(f"x{at}") * pl.col("times")) / rr.sum("times")
                for at in range(len(columns))
            }
        )
        if decimals is not None:
            means = means.with_columns(
                **{f"c{at}": pl.col(f"c{at}").round(decimals) for at in range(len(columns))}
            )
        return means.concat(centres.anti_join(means, on="cluster"))

    starts = starts.distinct("cluster")
    moved = starts.iterate(step, rounds=rounds, mode=fit_mode(decimals, places, starts))
    return Clusters(moved.select("cluster", **{name: f"c{at}" for at, name in enumerate(columns)}))


def _float(column: str) -> pl.Expr:
    # -0.0 is the same place as 0.0, and a key like any other.
    return pl.col(column).cast(pl.Float64) + 0.0


def _places(points: rr.Collection, columns: Sequence[str]) -> rr.Collection:
    """The different places of points, and how many points are there. Rows: x0, x1, ..., times."""
    wide = points.select(**{f"x{at}": _float(name) for at, name in enumerate(columns)})
    return wide.group_by(*wide.columns).count("times")


def _nearest(places: rr.Collection, centres: rr.Collection, dimensions: int) -> rr.Collection:
    """Each place with its nearest centre. Rows: x0, ..., times, cluster, c0, ..., distance."""
    squares = [(pl.col(f"x{at}") - pl.col(f"c{at}")).pow(2) for at in range(dimensions)]
    pairs = places.join(centres, how="cross").with_columns(distance=added(squares))
    by_place = pairs.group_by(*[f"x{at}" for at in range(dimensions)])
    return by_place.top(1, by=["distance", "cluster"], descending=False)
