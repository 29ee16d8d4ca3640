"""Mini-batches: examples that come row by row, put together into the parts that trainers work on.

`ftrl` learns from these parts. An example has an `id`, a `label` that is 0 or 1, its `features` and their `values`, and
the number of its mini-batch, `batch`. A mini-batch is the examples of one number in one epoch. Laws:

- **Growing numbers.** Mini-batches are trained in the order of their numbers. A mini-batch whose number is not greater
  than all numbers trained in earlier epochs is *late*, and its examples are rejected. Numbers may have gaps.
- **Dealt by id.** A mini-batch is dealt out to its trainers by ``id % trainers``, and each trainer takes its examples
  in the order of their ids. So neither the order of arrival nor the number of workers changes a result.
- **No unlearning.** An example that is deleted in the epoch in which it came has no effect. A later deletion is
  rejected: what was learned from the example stays.
- **Faults stay with their rows.** A row that cannot be learned is rejected with a reason; other rows are learned.

Cost: some 100 ns for each feature of an example, most of it to find the distinct features.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

import riverrun as rr

FIRST = -1
"""The mini-batch before the first."""
_KEY = {"which": pl.Int64}
_COLUMNS = ("batch", "part", "id", "label", "features", "values")


def checked(examples: rr.Collection, trainers: int) -> rr.Collection:
    """The examples, each with the part that it goes to, and with the `reason` why it cannot be learned, or null."""
    kinds = examples.polars_schema
    columns: dict[str, Any] = {
        "batch": pl.Int64,
        "part": pl.Int64,
        "id": pl.Int64,
        "label": pl.Float64,
        "features": kinds["features"],
        "values": pl.List(pl.Float64),
    }
    present = {name: kind for name, kind in columns.items() if name in kinds}

    def check(rows: pl.DataFrame) -> pl.DataFrame:
        rows = rows.select(
            *(pl.col(name).cast(kind) for name, kind in present.items()),
            (pl.col("id") % trainers).cast(pl.Int64).alias("part"),
        )
        if "values" not in present:
            one = pl.element().is_null().cast(pl.Float64) * 0 + 1
            rows = rows.with_columns(values=pl.col("features").list.eval(one))
        reason = pl.lit(None, pl.String) if _is_well(rows) else _REASON
        return rows.select(*columns, reason=reason)

    return examples.map_batches(check, {**columns, "reason": pl.String})


def _is_well(rows: pl.DataFrame) -> bool:
    """Whether all rows can be learned, as is usual; found out quickly."""
    features, values = flat(rows["features"]), flat(rows["values"])
    return bool(
        not any(rows.null_count().row(0))
        and not features.null_count()
        and not values.null_count()
        and rows["batch"].min() >= 0  # type: ignore[operator]
        and rows["label"].is_in([0.0, 1.0]).all()
        and (rows["features"].list.len() == rows["values"].list.len()).all()
        and np.isfinite(values.to_numpy()).all()
    )


_FINITE = pl.element().is_not_null() & pl.element().is_finite()
_REASON = (
    pl.when(pl.col("batch").is_null() | (pl.col("batch") < 0))
    .then(pl.lit("its mini-batch has no number from 0 on"))
    .when(pl.col("id").is_null())
    .then(pl.lit("it has no id"))
    .when(pl.col("label").is_null() | ~pl.col("label").is_in([0.0, 1.0]))
    .then(pl.lit("its label is neither 0 nor 1"))
    .when(
        pl.col("features").is_null()
        | ~pl.col("features").list.eval(pl.element().is_not_null()).list.all()
    )
    .then(pl.lit("a feature is null"))
    .when(
        pl.col("values").is_null() | (pl.col("values").list.len() != pl.col("features").list.len())
    )
    .then(pl.lit("it has not a value for each feature"))
    .when(~pl.col("values").list.eval(_FINITE).list.all())
    .then(pl.lit("a value is not a finite number"))
)


def assembled(
    flow: rr.Dataflow, examples: rr.Collection, lag: int | None, name: str
) -> tuple[rr.Collection, rr.Collection]:
    """The parts of mini-batches, and the rejected examples. `examples` are `checked`, and have no reason for rejection.

    A part has lists. `features` has the distinct features of the part (one null, where there are none). The other lists
    have the examples one behind the other: for each example the number of its features (`sizes`), the places of these
    in `features` (`ranks`), their `values`, and the label. A part may be trained once the mini-batch `after` was
    trained: the one `lag` places before it, or, if `lag` is None, the last of earlier epochs.
    """
    examples = examples.consolidate()
    numbers = flow.vertex(
        Ordering(lag),
        {"examples": examples.select("batch")},
        {"batch": pl.Int64, "after": pl.Int64},
        routes={"examples": rr.TO_ONE},
        tables={"trained": (_KEY, {"last": pl.Int64})},
        name=f"{name}:order",
    )
    rows = examples.select(*_COLUMNS)
    kinds = rows.polars_schema
    parts = {
        "batch": pl.Int64,
        "after": pl.Int64,
        "part": pl.Int64,
        "features": kinds["features"],
        "ranks": pl.List(pl.Int32),
        "sizes": pl.List(pl.Int32),
        "values": pl.List(pl.Float64),
        "labels": pl.List(pl.Float64),
    }
    assembling = flow.vertex(
        Assembling,
        {"examples": rows, "numbers": numbers},
        {"parts": parts, "rejected": {**kinds, "reason": pl.String}},
        routes={"examples": ("batch", "part"), "numbers": rr.TO_ALL},
        name=f"{name}:parts",
    )
    return assembling["parts"], assembling["rejected"]


@dataclass(frozen=True)
class Ordering:
    """Makes the vertex that puts the mini-batches of an epoch in order."""

    lag: int | None
    deterministic = True

    def __call__(self) -> rr.Vertex:
        return _BatchOrder(self.lag)


class _BatchOrder(rr.Vertex):
    """The numbers of an epoch's mini-batches, each with the number after which it may be trained; null for a late
    one."""

    def __init__(self, lag: int | None) -> None:
        self._lag = lag
        self._seen: dict[Any, set[int]] = {}

    def on_recv(self, port: str, rows: pl.DataFrame, time: Any) -> None:
        if time not in self._seen:
            self._seen[time] = set()
            self.notify_at(time)
        self._seen[time].update(rows.filter(pl.col("diff") > 0)["batch"].unique())

    def on_notify(self, time: Any) -> None:
        table = self.table("trained")
        known = table.read([{"which": 0}])
        last = known["last"][0] if len(known) else FIRST
        numbers = sorted(self._seen.pop(time))
        fresh = [number for number in numbers if number > last]
        before = [last] * len(fresh) if self._lag is None else [last] * self._lag + fresh
        after: dict[int, int | None] = dict(zip(fresh, before, strict=False))
        if numbers:
            self.send([{"batch": each, "after": after.get(each)} for each in numbers])
        if fresh:
            table.write([{"which": 0, "last": fresh[-1]}])


class Assembling(rr.Vertex):
    """Puts the parts of an epoch's mini-batches together when all examples of the epoch are there."""

    deterministic = True

    def start(self) -> None:
        self._held: dict[Any, dict[str, list[pl.DataFrame]]] = {}

    def on_recv(self, port: str, rows: pl.DataFrame, time: Any) -> None:
        if time not in self._held:
            self._held[time] = {"examples": [], "numbers": []}
            self.notify_at(time)
        self._held[time][port].append(rows)

    def on_notify(self, time: Any) -> None:
        held = self._held.pop(time)
        if not held["examples"]:
            return
        rows = pl.concat(held["examples"])
        numbers = [frame.select("batch", "after").rows() for frame in held["numbers"]]
        after: dict[int, int | None] = dict(row for some in numbers for row in some)
        wanted = {(batch, part) for batch, part in _pairs(rows) if after.get(batch) is not None}
        if (
            None in after.values() or (rows["diff"] != 1).any()
        ):  # as a rule there is nothing to sort out
            rows, wanted = self._sorted_out(rows, after)
        if wanted:
            self.send(_parts(_in_order(rows), sorted(wanted), after), output="parts")

    def _sorted_out(
        self, rows: pl.DataFrame, after: dict[int, int | None]
    ) -> tuple[pl.DataFrame, set[tuple[int, int]]]:
        """Reject rows that are late or deleted; return the rows to learn, and the parts into which any were
        inserted."""
        late = pl.col("batch").is_in([number for number, last in after.items() if last is None])
        there = pl.col("diff") > 0
        inserted = set(_pairs(rows.filter(there & ~late)))
        rows = rows.group_by(_COLUMNS).agg(pl.col("diff").sum())
        gone = rows.filter(pl.col("diff") < 0).with_columns(-pl.col("diff"))
        self._reject(gone, "it was deleted after its epoch")
        self._reject(rows.filter(there & late), "its mini-batch is late")
        rows = rows.filter(there & ~late)
        return rows[np.repeat(np.arange(len(rows)), rows["diff"].to_numpy())], inserted

    def _reject(self, rows: pl.DataFrame, reason: str) -> None:
        if len(rows):
            rejected = rows.select(*_COLUMNS, pl.lit(reason).alias("reason"), "diff")
            self.send(rejected, output="rejected")


def _pairs(rows: pl.DataFrame) -> list[tuple[int, int]]:
    """The parts that rows belong to."""
    pairs = np.column_stack([rows["batch"].to_numpy(), rows["part"].to_numpy()])
    return [(int(batch), int(part)) for batch, part in np.unique(pairs, axis=0)]


def _in_order(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows part by part, in the order of ids; rows with equal ids in the order of all their columns."""
    numbers = [rows[name].to_numpy() for name in ("id", "part", "batch")]
    order = np.lexsort(numbers)
    same = np.ones(max(len(rows) - 1, 0), np.bool_)
    for column in numbers:
        same &= column[order][1:] == column[order][:-1]
    return rows.sort(_COLUMNS) if same.any() else rows[order]


def _parts(
    rows: pl.DataFrame, listed: list[tuple[int, int]], after: dict[int, int | None]
) -> pl.DataFrame:
    """A row for each part that is `listed`; `rows` are in order. A part may have no examples any more."""
    counts = Counter(zip(rows["batch"].to_list(), rows["part"].to_list(), strict=True))
    examples = np.array([counts[key] for key in listed], np.int64)
    sizes = lengths(rows["features"])
    ends = np.append(0, np.cumsum(sizes))[np.append(0, np.cumsum(examples))]
    features = flat(rows["features"])
    distinct, ranks = [], []
    for start, end in pairwise(ends):
        different, places = ranked(features[start:end])
        # A part without features asks for the feature null, which has no parameters: without any request it would not
        # wait for its turn.
        distinct.append(different if len(different) else pl.Series([None], dtype=features.dtype))
        ranks.append(places)
    columns = {
        "batch": [batch for batch, _ in listed],
        "after": [after[batch] for batch, _ in listed],
        "part": [part for _, part in listed],
        "features": as_lists(pl.concat(distinct), [len(each) for each in distinct]),
        "ranks": as_lists(np.concatenate(ranks).astype(np.int32), np.diff(ends)),
        "sizes": as_lists(sizes.astype(np.int32), examples),
        "values": as_lists(flat(rows["values"]), np.diff(ends)),
        "labels": as_lists(rows["label"], examples),
    }
    return pl.DataFrame(columns)


def ranked(features: pl.Series) -> tuple[pl.Series, np.ndarray[Any, np.dtype[np.int64]]]:
    """The distinct features, in order, and for each feature its place among them."""
    if features.dtype.is_numeric():
        different, places = np.unique(features.to_numpy(), return_inverse=True)
        return pl.Series(different, dtype=features.dtype), places
    return features.unique().sort(), features.rank("dense").to_numpy().astype(np.int64) - 1


def lengths(lists: pl.Series) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The length of each list."""
    return lists.list.len().cast(pl.Int64).to_numpy()


def flat(lists: pl.Series) -> pl.Series:
    """The elements of lists, one behind the other; an empty list and a null have no elements."""
    return lists.explode(empty_as_null=False, keep_nulls=False)


def as_lists(values: Any, sizes: Any) -> pl.Series:
    """A column of lists, of which the first has the first `sizes[0]` values, and so on."""
    series = values if isinstance(values, pl.Series) else pl.Series(values)
    ends = np.append(0, np.cumsum(sizes))
    pieces = [series[start:end] for start, end in pairwise(ends)]
    return pl.Series(pieces, dtype=pl.List(series.dtype))
