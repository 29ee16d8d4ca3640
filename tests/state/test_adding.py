"""Sums of diffs: exact while they fit, else refused (the no silent overflow law of `kernels.adding`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import riverrun as rr
from riverrun.errors import OperatorFailed
from riverrun.progress import Antichain
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.keys import Keys
from riverrun.state.merge import Merger, fold
from riverrun.state.schema import Schema
from riverrun.state.view import View
from tests.state.checks import set_sizes

MOST = (1 << 63) - 1
BIG = st.sampled_from([MOST, MOST - 1, -MOST, 1 << 62, -(1 << 62), 1 << 61, 1, -1, 2])
COLUMNS: dict[str, Callable[[list[int]], pa.Array]] = {
    "integers": lambda keys: pa.array(keys, pa.int64()),
    "strings": lambda keys: pa.array([f"key {key}" for key in keys], pa.large_string()),
}


def _schema(kind: str, values: bool) -> Schema:
    column = COLUMNS[kind]([]).type
    return Schema.of({"k": pa.int64()}, {"v": column}) if values else Schema.of({"k": column}, {})


def _changes(kind: str, values: bool, rows: list[tuple[int, int]], time: int) -> Changes:
    keys = [key for key, _ in rows]
    columns = [COLUMNS[kind](keys)]
    if values:
        columns.insert(0, pa.array([0] * len(rows), pa.int64()))
    return Changes(
        tuple(columns), len(rows), ((time,),), None, 0, np.array([d for _, d in rows], np.int64)
    )


def _batch(kind: str, values: bool, rows: list[tuple[int, int]], time: int) -> Batch:
    changes = _changes(kind, values, rows, time)
    at, after = Antichain([(time,)]), Antichain([(time + 1,)])
    return Batch.of(_schema(kind, values), changes, range(len(changes.columns)), at, after)


def _sums(rows: list[tuple[int, int]]) -> dict[int, int]:
    sums: dict[int, int] = {}
    for key, diff in rows:
        sums[key] = sums.get(key, 0) + diff
    return {key: total for key, total in sums.items() if total}


def _fits(rows: list[tuple[int, int]]) -> bool:
    return all(-MOST <= total <= MOST for total in _sums(rows).values())


def _same(made: Callable[[], Any], rows: list[tuple[int, int]]) -> None:
    """`made` gives as many sums of the rows as there are, sorted; or refuses exactly when one does not fit."""
    try:
        diffs = sorted(int(diff) for diff in made())
    except OperatorFailed as refused:
        assert refused.code == "operator.overflow"  # noqa: PT017  (it may well not be refused)
        assert not _fits(rows)
    else:
        assert diffs == sorted(_sums(rows).values())


def _read(*batches: Batch) -> list[int]:
    """The counts of the rows of some batches, one after the other, as of a time after all of them."""
    since = Antichain([(0,)])
    view = View("batches", batches[0].schema, batches, since, Antichain())
    return [count for piece in view.scan((9,)) for count in piece.counts.tolist()]


def _looked_up(*batches: Batch) -> list[int]:
    """The same by their keys."""
    since = Antichain([(0,)])
    view = View("batches", batches[0].schema, batches, since, Antichain())
    asked = Keys.union(batches[0].schema, [Keys.of_batch(batch) for batch in batches])
    counts: list[int] = view.lookup(asked, (9,)).counts.tolist()
    return counts


def _merged(a: Batch, b: Batch) -> Batch:
    """Both batches, with equal changes of both times added up."""
    merger = Merger(a, b, Antichain([(5,)]))
    while merger.remaining:
        merger.work(1 << 20)
    return merger.result()


ROWS = st.lists(st.tuples(st.integers(0, 2), BIG), max_size=8)
SIZES = st.sampled_from([None, 0])
"""The most bytes of a small block, which is made by other kernels than a large one: as usual, or none."""


@given(st.sampled_from(sorted(COLUMNS)), ROWS, st.booleans(), SIZES)
def test_equal_changes_are_added_up_exactly_or_refused_in_whatever_order(
    kind: str, rows: list[tuple[int, int]], values: bool, packed: int | None
) -> None:
    _same(lambda: _changes(kind, values, rows, 0).consolidate().diff_array(), rows)
    many = [(key, diff) for key, diff in rows for _ in range(3)]
    _same(lambda: _changes(kind, values, many, 0).consolidate().diff_array(), many)
    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, packed=packed)
        _same(lambda: _read(_batch(kind, values, rows, 0)), rows)
        _same(lambda: _read(_batch(kind, values, many, 0)), many)


@given(st.sampled_from(sorted(COLUMNS)), ROWS, ROWS, st.booleans(), SIZES)
def test_batches_are_merged_and_read_exactly_or_refused(
    kind: str,
    earlier: list[tuple[int, int]],
    later: list[tuple[int, int]],
    values: bool,
    packed: int | None,
) -> None:
    if not (_fits(earlier) and _fits(later)):
        return
    both = earlier + later
    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, packed=packed)
        a, b = _batch(kind, values, earlier, 0), _batch(kind, values, later, 1)
        if not len(a) or not len(b):
            return
        _same(lambda: _read(_merged(a, b)), both)
        _same(lambda: _read(fold([a, b], Antichain([(5,)]))), both)
        _same(lambda: _read(a, b), both)
        _same(lambda: _looked_up(a, b), both)
        times = Batch.of(
            a.schema,
            Changes.concat([_changes(kind, values, earlier, 0), _changes(kind, values, later, 1)]),
            range(len(a.schema.columns)),
            a.lower,
            b.upper,
        )
        _same(lambda: _read(times), both)
        _same(lambda: _read(_merged(times, _batch(kind, values, [], 2))), both)


def test_the_first_rows_of_a_group_are_counted_however_often_they_are_there() -> None:
    flow = rr.Dataflow("often")
    rows = flow.input("rows", {"g": pl.Int64, "v": pl.Int64})
    for _ in range(62):
        rows = rows.concat(rows)
    flow.output("top", rows.group_by("g").top(3, by="v"))
    many = rows.group_by("g").top(3 * 2**60, by="v")
    flow.output("many", many.group_by("v").count())
    with flow.run() as run:
        run.insert("rows", [(1, 1), (1, 2), (1, 3), (1, 4)])
        run.commit()
        assert run.read("top").rows() == [(1, 4)] * 3
        assert run.read("many").rows() == [(4, 3 * 2**60)]
