"""The only row: a part of a reduce for collections that have one row for each key.

A delta iteration without an order of rows (`frontends.collections.delta`) keeps a solution with one row for each key,
in which rows of the delta take the place of other rows. Law:

- **One row a key.** Two different rows for one key refuse the epoch. A row that is there several times is one row.

Cost: the first two rows of each group that was touched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from riverrun.errors import OperatorFailed
from riverrun.operators.aggregates import Evaluated, GroupPart, queries_of
from riverrun.progress import Timestamp
from riverrun.rows.values import show
from riverrun.state.columns import as_array, as_column
from riverrun.state.keys import Keys
from riverrun.state.view import View


@dataclass(frozen=True)
class OnlyRow(GroupPart):
    """The only row of each group.

    With `mark`, a column of truth values by which the arrangement is ordered, true first, a group may also have one
    marked and one unmarked row. Then the result is the marked row, and its mark says whether it differs from the other.
    """

    input: int
    schema: pa.Schema
    mark: str | None
    what: str
    """What the rows are, for the error."""

    def evaluate(self, view: View, keys: Keys, time: Timestamp) -> Evaluated:
        selection = view.first(keys, time, 2)
        queries = queries_of(selection)
        columns = [selection.canonical(view.schema.positions[name]) for name in self.schema.names]
        is_first = np.ones(len(queries), np.bool_)
        is_first[1:] = queries[1:] != queries[:-1]
        firsts = np.flatnonzero(is_first)
        seconds = np.flatnonzero(~is_first)
        if len(seconds):
            columns = self._replaced(columns, keys, queries, seconds)
        if len(firsts) < len(queries):
            columns = [column.take(as_column(firsts)) for column in columns]
        return queries[firsts], tuple(columns), None

    def _replaced(
        self,
        columns: list[pa.Array],
        keys: Keys,
        queries: np.ndarray[tuple[int], np.dtype[np.int64]],
        seconds: np.ndarray[tuple[int], np.dtype[np.int64]],
    ) -> list[pa.Array]:
        """The columns, where the marks of rows that differ in nothing from the second row of their group are gone."""
        if self.mark is None:
            raise self._two_rows(columns, keys, queries, int(seconds[0]))
        at = self.schema.names.index(self.mark)
        marks = as_array(columns[at]).copy()
        both = seconds[marks[seconds]]
        if len(both):
            raise self._two_rows(columns, keys, queries, int(both[0]))
        unmarked = seconds[~marks[seconds - 1]]
        if len(unmarked):
            raise self._two_rows(columns, keys, queries, int(unmarked[0]))
        values = pl.DataFrame(
            {str(place): pl.from_arrow(each) for place, each in enumerate(columns) if place != at}
        )
        if values.width:
            old, new = values[seconds], values[seconds - 1]
            same = [old[name].eq_missing(new[name]).to_numpy() for name in values.columns]
            equal = np.logical_and.reduce(same)
        else:
            equal = np.ones(len(seconds), np.bool_)
        marks[seconds[equal] - 1] = False
        columns[at] = as_column(marks)
        return columns

    def _two_rows(
        self,
        columns: list[pa.Array],
        keys: Keys,
        queries: np.ndarray[tuple[int], np.dtype[np.int64]],
        second: int,
    ) -> OperatorFailed:
        key = [column[int(queries[second])].as_py() for column in keys.columns]
        rows = [
            {
                name: column[at].as_py()
                for name, column in zip(self.schema.names, columns, strict=True)
                if name != self.mark
            }
            for at in (second - 1, second)
        ]
        shown = key[0] if len(key) == 1 else tuple(key)
        return OperatorFailed(
            "operator.two_rows",
            f"{self.what} has two different rows for the key {show(shown)}: {rows[0]} and {rows[1]}",
            hint="say which one is better: better=rr.loops.least(...); or give one row for each key",
            key=shown,
            rows=rows,
        )
