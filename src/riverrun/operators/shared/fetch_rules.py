"""Fetch rules: how the answer to a request is made of the values that it finds.

Used by `fetch`; users know these rules as `rr.rules.latest`, `within`, `distinct`, `total` and `rr.rules.fetch`. A
request has a key and bounds on time, and finds the values of its key within those bounds, in the order of time. A rule
answers many requests at once: it gives columns, and for each row of them the request that this row answers. Law:

- **Same request, same answer.** An answer depends on the request and on the values within its bounds, and on nothing
  else.

Cost: per request one search in the state (`fetch`); per value that is found some ns, or what a user's function takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from riverrun.errors import OperatorFailed, SchemaError
from riverrun.operators.shared.rules import added_up, called
from riverrun.plan.identity import code_of
from riverrun.progress import Timestamp
from riverrun.rows.convert import as_table
from riverrun.rows.records import as_record_batch, canonical_columns
from riverrun.state.columns import Ints, as_array, as_column, column_table, take_columns
from riverrun.state.kernels import packing
from riverrun.state.keys import Keys
from riverrun.state.view import Selection, View

REQUEST = "request"


@dataclass(frozen=True)
class Asked:
    """Some requests, and the state that they ask."""

    view: View
    as_of: Timestamp
    keys: Keys
    since: pa.Array | None
    until: pa.Array | None
    closed: tuple[bool, bool]

    def between(self) -> Selection:
        """The values in the bounds of each request."""
        return self.view.between(self.keys, self.as_of, self.since, self.until, closed=self.closed)


class Answer(NamedTuple):
    """Columns; the request that each row answers, ascending; and how often each row is there (None: once)."""

    queries: Ints
    columns: tuple[pa.Array, ...]
    counts: Ints | None = None


class FetchRule:
    """How answers are made of the values that requests find."""

    name: ClassVar[str]
    single: ClassVar[bool] = True
    """Whether a request has one answer at most."""
    timed: ClassVar[bool] = False
    """Whether an answer always has the times of its values, also where the user asks for none."""

    def identity(self) -> str:
        return self.name

    def gives(self, time: pa.Field | None, value: pa.Schema) -> pa.Schema:
        """The columns of an answer. `time` is the column for times that the user asks for; None: asks for none."""
        return pa.schema([*([] if time is None else [time]), *value])

    def answer(self, asked: Asked, positions: tuple[int, ...]) -> Answer:
        """The answers; `positions` are the columns of the state that are asked for."""
        raise NotImplementedError


@dataclass(frozen=True)
class Latest(FetchRule):
    """The latest value in the bounds; of several values at the latest time, the greatest."""

    name: ClassVar[str] = "latest"

    def answer(self, asked: Asked, positions: tuple[int, ...]) -> Answer:
        view = asked.view
        if asked.until is None:
            newest = view.last(asked.keys, asked.as_of, 1)
            queries, names = newest.queries, newest.names
            assert queries is not None
        else:
            names, count = view.latest(asked.keys, asked.as_of, asked.until, closed=asked.closed[1])
            queries = np.arange(len(names)) if count == len(names) else np.flatnonzero(names >= 0)
            names = names if count == len(names) else names[queries]
        if asked.since is not None:
            (times,) = gathered(view, names, (len(view.schema.key),))
            compare = pc.greater_equal if asked.closed[0] else pc.greater
            since = asked.since.take(as_column(queries))
            is_in_bounds = as_array(compare(times, since))
            queries, names = queries[is_in_bounds], names[is_in_bounds]
        return Answer(queries, gathered(view, names, positions))


def gathered(view: View, names: Ints, positions: tuple[int, ...]) -> tuple[pa.Array, ...]:
    """Columns of some rows of a state, by the names of the rows in a view."""
    return tuple(Selection(view, names, None, names).canonicals(positions))


@dataclass(frozen=True)
class Within(FetchRule):
    """All values in the bounds, each with its time."""

    name: ClassVar[str] = "within"
    single: ClassVar[bool] = False
    timed: ClassVar[bool] = True

    def answer(self, asked: Asked, positions: tuple[int, ...]) -> Answer:
        in_bounds = asked.between()
        assert in_bounds.queries is not None
        return Answer(in_bounds.queries, tuple(in_bounds.canonicals(positions)), in_bounds.counts)


@dataclass(frozen=True)
class Distinct(FetchRule):
    """The different values in the bounds, each once, whatever their times."""

    name: ClassVar[str] = "distinct"
    single: ClassVar[bool] = False

    def gives(self, time: pa.Field | None, value: pa.Schema) -> pa.Schema:
        if time is not None:
            raise SchemaError(
                "state.distinct_time",
                "cannot give the time of a distinct value: it may be there at several times",
                hint="leave out time=, or fetch rr.rules.within",
            )
        return value

    def answer(self, asked: Asked, positions: tuple[int, ...]) -> Answer:
        in_bounds = asked.between()
        queries = in_bounds.queries
        assert queries is not None
        columns = tuple(in_bounds.canonicals(positions))
        if len(in_bounds) > 1 or (in_bounds.counts <= 0).any():
            there = np.flatnonzero(in_bounds.counts > 0)
            queries, columns = queries[there], take_columns(columns, there)
            table = column_table([as_column(queries), *columns])
            # Distinct rows come in the order of their hashes, and answers have to be in the order of requests.
            once = np.sort(packing.distinct_rows(table, len(there), asked.view.schema.hash_word))
            if len(once) < len(there):
                queries, columns = queries[once], take_columns(columns, once)
        return Answer(queries, columns)


@dataclass(frozen=True)
class Total(FetchRule):
    """The sum of the increments in the bounds, column by column. Sums of floats are exact and rounded once.

    Sums of integers are exact; one that does not fit 64 bits refuses the epoch.
    """

    name: ClassVar[str] = "total"

    def gives(self, time: pa.Field | None, value: pa.Schema) -> pa.Schema:
        if time is not None:
            raise SchemaError(
                "state.total_time",
                "cannot give the time of a total: it is made of values of several times",
                hint="leave out time=, or fetch rr.rules.latest",
            )
        for field in value:
            if not (pa.types.is_integer(field.type) or pa.types.is_floating(field.type)):
                raise SchemaError(
                    "state.total_type",
                    f"cannot add up {field.name!r}: it is {field.type}, not a number",
                    hint="fetch rr.rules.latest or rr.rules.within",
                )
            if pa.types.is_uint64(field.type):
                raise SchemaError(
                    "state.total_type",
                    f"cannot add up {field.name!r}: it is {field.type}, and sums are Int64",
                    hint="declare it as pl.Int64 in the state",
                )
        return pa.schema([field.with_type(_sum_type(field.type)) for field in value])

    def answer(self, asked: Asked, positions: tuple[int, ...]) -> Answer:
        in_bounds = asked.between()
        assert in_bounds.queries is not None
        if not len(in_bounds):
            kinds = [_sum_type(column.type) for column in in_bounds.canonicals(positions)]
            return Answer(in_bounds.queries, tuple(pa.nulls(0, kind) for kind in kinds))
        changed = np.append(True, in_bounds.queries[1:] != in_bounds.queries[:-1])
        ranks, firsts = np.cumsum(changed) - 1, np.flatnonzero(changed)
        columns = []
        for column in in_bounds.canonicals(positions):
            sums = added_up(column, in_bounds.counts, ranks, len(firsts))[0]
            for value in sums.tolist() if sums.dtype == object else ():
                if not -(1 << 63) <= value < 1 << 63:
                    raise OperatorFailed(
                        "operator.overflow",
                        f"a total of integers is {value}, which does not fit 64 bits",
                        hint="declare the value as pl.Float64 in the state, or fetch a shorter range",
                        sum=value,
                    )
            whole = sums.astype(np.int64) if sums.dtype == object else sums
            columns.append(as_column(whole).cast(_sum_type(column.type)))
        return Answer(in_bounds.queries[firsts], tuple(columns))


def _sum_type(kind: pa.DataType) -> pa.DataType:
    """The widest type for a sum, since a sum may be more than the type of its values can hold."""
    return pa.int64() if pa.types.is_integer(kind) else pa.float64()


@dataclass(frozen=True)
class Collected(FetchRule):
    """The answers of another rule as lists, one answer for each request: for records with several requests."""

    rule: FetchRule
    name: ClassVar[str] = "collected"

    def identity(self) -> str:
        return f"lists of {self.rule.identity()}"

    def gives(self, time: pa.Field | None, value: pa.Schema) -> pa.Schema:
        return pa.schema(
            [pa.field(f.name, pa.large_list(f.type)) for f in self.rule.gives(time, value)]
        )

    def answer(self, asked: Asked, positions: tuple[int, ...]) -> Answer:
        queries, columns, counts = self.rule.answer(asked, positions)
        if counts is not None and len(counts) and (counts != 1).any():
            rows = np.repeat(np.arange(len(queries)), counts)
            queries = queries[rows]
            columns = tuple(column.take(as_column(rows)) for column in columns)
        everyone = len(asked.keys)
        offsets = as_column(np.searchsorted(queries, np.arange(everyone + 1)))
        lists = tuple(pa.LargeListArray.from_arrays(offsets, column) for column in columns)
        return Answer(np.arange(everyone), lists)


@dataclass(frozen=True)
class FetchFunction(FetchRule):
    """A user's function of a frame. The frame has the values in the bounds of all requests, each with the number of
    its request; the function gives a frame with such numbers and the columns that were declared."""

    function: Callable[[pl.DataFrame], Any]
    schema: pa.Schema
    name: ClassVar[str] = "function"
    single: ClassVar[bool] = False
    timed: ClassVar[bool] = True

    def identity(self) -> str:
        return f"function {code_of(self.function)}"

    def gives(self, time: pa.Field | None, value: pa.Schema) -> pa.Schema:
        return self.schema

    def _called(self, frame: pl.DataFrame) -> Any:
        try:
            return called(self.function, "the fetch rule", frame)
        except OperatorFailed as error:
            error.hint = (
                "mend the rule and run again; or, if it fails for a row that has waited since an earlier epoch, delete "
                "that row in an epoch of its own"
            )
            raise

    def answer(self, asked: Asked, positions: tuple[int, ...]) -> Answer:
        in_bounds = asked.between()
        assert in_bounds.queries is not None
        fields = pa.schema([asked.view.schema.columns[at] for at in positions])
        batch = as_record_batch(fields, in_bounds.canonicals(positions), len(in_bounds))
        rows = np.repeat(np.arange(len(in_bounds)), np.maximum(in_bounds.counts, 0))
        frame = pl.DataFrame(pl.from_arrow(batch))[rows]
        frame = frame.insert_column(0, pl.Series(REQUEST, in_bounds.queries[rows], pl.Int64))
        answers = self._called(frame)
        expected = pa.schema([pa.field(REQUEST, pa.int64()), *self.schema])
        answer_rows = as_table(answers, expected, "take the rows of a fetch rule")
        if not answer_rows.num_rows:
            return Answer(
                np.zeros(0, np.int64), tuple(canonical_columns(answer_rows, expected)[1:])
            )
        columns = canonical_columns(answer_rows, expected)
        numbers = columns[0]
        if numbers.null_count or not np.isin(as_array(numbers), in_bounds.queries).all():
            raise SchemaError(
                "state.rule_request",
                f"the fetch rule gave rows with a {REQUEST!r} that was not among those it was given",
                hint=f"keep the column {REQUEST!r}: it says which request a row answers",
            )
        order = np.argsort(as_array(numbers), kind="stable")
        ordered = tuple(column.take(as_column(order)) for column in columns)
        return Answer(as_array(ordered[0]), ordered[1:])
