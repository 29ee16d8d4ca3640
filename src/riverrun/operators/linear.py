"""Linear operators: select, filter, map, flat map, explode, concat, negate, repeat, inspect, probe.

A linear operator takes each change by itself, so f(a + b) = f(a) + f(b), and keeps nothing. It leaves times as they
are (those of `operators.loops`, which enter and leave loops, do not). So the engine runs a chain of linear operators
as one function call after the other, with no waiting between them.

Cost: per batch a call over whole columns. Renaming, dropping and picking columns moves no data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riverrun.errors import OperatorFailed
from riverrun.interrupts import exposed
from riverrun.operators.kept import check_each_row, describe_kept, row_placement
from riverrun.plan.identity import code_of
from riverrun.plan.operator import Linear, PlacedInput, Placement, Role, moved_keys
from riverrun.rows.convert import as_table
from riverrun.rows.records import Columns, as_record_batch, canonical_columns, with_times
from riverrun.state.changes import Changes
from riverrun.state.columns import as_array

MOST = (1 << 63) - 1
"""The most often that a row can be there."""


class Projects(Protocol):
    """Computes columns from columns (`frontends.collections.expressions.Projection`)."""

    @property
    def schema(self) -> pa.Schema: ...
    @property
    def sources(self) -> tuple[int, ...] | None: ...
    @property
    def picked(self) -> tuple[int | None, ...]: ...
    @property
    def used(self) -> tuple[int, ...]: ...

    def apply(self, columns: Columns, rows: int) -> tuple[pa.Array, ...]: ...


@dataclass(frozen=True)
class PickedColumns:
    """Some of the columns, as they are: a projection without expressions."""

    schema: pa.Schema
    sources: tuple[int, ...]

    @property
    def picked(self) -> tuple[int | None, ...]:
        return self.sources

    @property
    def used(self) -> tuple[int, ...]:
        return self.sources

    def apply(self, columns: Columns, rows: int) -> tuple[pa.Array, ...]:
        return tuple([columns[at] for at in self.sources])


class Decides(Protocol):
    """Decides yes or no for each row (`frontends.collections.expressions.Predicate`)."""

    used: tuple[int, ...]

    def mask(self, columns: Columns, rows: int) -> np.ndarray[Any, np.dtype[np.bool_]]: ...


@dataclass(frozen=True)
class Project(Linear):
    """New columns, each computed from the columns of the same row."""

    projection: Projects
    text: str = ""
    kind: ClassVar[str] = "select"

    @property
    def used(self) -> Sequence[int] | None:
        return self.projection.used

    @property
    def picked(self) -> Sequence[int | None]:
        return self.projection.picked

    def describe(self) -> str:
        return f"select {self.text or ', '.join(self.projection.schema.names) or 'no columns'}"

    def identity(self) -> str:
        return f"{self.describe()}{_exactly(self.projection)}"

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        """The keys whose columns are all picked unchanged, at the new positions of those columns."""
        keys = inputs[0].keys
        if keys is None:
            return None
        picked = reversed(list(enumerate(self.projection.picked)))
        origin = {source: at for at, source in picked if source is not None}
        return moved_keys(keys, origin)

    def apply(self, changes: Changes) -> Changes:
        sources = self.projection.sources
        if sources is not None:
            columns = changes.columns
            return changes.with_columns(tuple([columns[at] for at in sources]))
        return changes.with_columns(self.projection.apply(changes.columns, changes.rows))


@dataclass(frozen=True)
class Filter(Linear):
    """The rows for which a predicate is true."""

    predicate: Decides
    text: str = ""
    kind: ClassVar[str] = "filter"
    same_rows: ClassVar[bool] = True

    def describe(self) -> str:
        return f"filter {self.text}"

    def identity(self) -> str:
        return f"{self.describe()}{_exactly(self.predicate)}"

    def apply(self, changes: Changes) -> Changes | None:
        mask = self.predicate.mask(changes.columns, changes.rows)
        if mask.all():
            return changes
        return changes.filter(mask) if mask.any() else None


@dataclass(frozen=True)
class MapBatches(Linear):
    """A user's function of whole batches that gives as many rows, in the same order."""

    function: Callable[[pa.RecordBatch], Any]
    input_schema: pa.Schema
    schema: pa.Schema
    text: str = ""
    code: Callable[..., Any] | None = None
    """The user's own function, where `function` wraps it."""
    keeps: tuple[str, ...] = ()
    """The columns that the function promises to keep (`operators.kept`)."""
    kind: ClassVar[str] = "map"

    def describe(self) -> str:
        return f"map batches by {self.text}{describe_kept(self.keeps)}"

    def identity(self) -> str:
        return f"map batches by {self.text} {code_of(self.code)}"

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        return row_placement(inputs[0], self.keeps, schema)

    def apply(self, changes: Changes) -> Changes:
        batch = as_record_batch(self.input_schema, changes.columns, changes.rows)
        mapped = as_table(
            exposed(self.function, batch), self.schema, "take what a function of batches gave"
        )
        if mapped.num_rows != changes.rows:
            raise OperatorFailed(
                "operator.length",
                f"the function {self.text} was given {changes.rows} rows and gave {mapped.num_rows}: "
                "a function of batches gives one row for each row, in the same order",
                hint="use flat_map for functions that give more or fewer rows",
            )
        given = canonical_columns(mapped, self.schema)
        taken = self.input_schema, changes.columns
        check_each_row(self.text, self.keeps, taken, (self.schema, given))
        return changes.with_columns(given)


@dataclass(frozen=True)
class FlatMap(Linear):
    """A user's function of one row that gives any number of rows."""

    function: Callable[[dict[str, Any]], Iterable[Any]]
    input_schema: pa.Schema
    schema: pa.Schema
    text: str = ""
    keeps: tuple[str, ...] = ()
    """The columns that the function promises to keep (`operators.kept`)."""
    kind: ClassVar[str] = "flat-map"

    def describe(self) -> str:
        return f"flat map by {self.text}{describe_kept(self.keeps)}"

    def identity(self) -> str:
        return f"flat map by {self.text} {code_of(self.function)}"

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        return row_placement(inputs[0], self.keeps, schema)

    def apply(self, changes: Changes) -> Changes | None:
        arrived = as_record_batch(self.input_schema, changes.columns, changes.rows)
        counts, rows = exposed(self._call, arrived.to_pylist())
        if not rows:
            return None
        batch = as_table(rows, self.schema, "take what a function of rows gave")
        origins = np.repeat(np.arange(changes.rows), counts)
        given = canonical_columns(batch, self.schema)
        taken = self.input_schema, changes.columns
        check_each_row(self.text, self.keeps, taken, (self.schema, given), origins)
        return changes.with_columns(()).take(origins).with_columns(given)

    def _call(self, rows_in: Sequence[dict[str, Any]]) -> tuple[list[int], list[Any]]:
        """How many rows the function gave for each row, and all those rows."""
        rows_out: list[Any] = []
        counts: list[int] = []
        for row in rows_in:
            answer = list(self.function(row))
            counts.append(len(answer))
            rows_out += answer
        return counts, rows_out


def list_parents(lists: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The row that each element of `lists.flatten()` comes from. A null list has none, whatever lies under it."""
    sizes = as_array(pc.list_value_length(lists).fill_null(0))
    return np.repeat(np.arange(len(lists)), sizes)


@dataclass(frozen=True)
class Explode(Linear):
    """One row for each element of a list column; an empty or null list gives none."""

    column: int
    kind: ClassVar[str] = "explode"

    def identity(self) -> str:
        return f"explode column {self.column}"

    def apply(self, changes: Changes) -> Changes | None:
        lists = changes.columns[self.column]
        rows = list_parents(lists)
        if not len(rows):
            return None
        rest = [column for at, column in enumerate(changes.columns) if at != self.column]
        taken = changes.with_columns(rest).take(
            rows
        )  # without the lists, which would be copied again and again
        columns = list(taken.columns)
        columns.insert(self.column, lists.flatten())
        return taken.with_columns(tuple(columns))


@dataclass(frozen=True)
class Concat(Linear):
    """The changes of several nodes together."""

    kind: ClassVar[str] = "concat"
    role = Role.CONCAT
    same_rows: ClassVar[bool] = True

    def apply(self, changes: Changes) -> Changes:
        return changes


@dataclass(frozen=True)
class Negate(Linear):
    """Every diff with the other sign."""

    kind: ClassVar[str] = "negate"
    role = Role.NEGATE
    same_rows: ClassVar[bool] = True
    may_cancel: ClassVar[bool] = True

    @property
    def takes_back(self) -> bool:
        return True

    def apply(self, changes: Changes) -> Changes:
        return changes.negate()


@dataclass(frozen=True)
class Repeat(Linear):
    """Every row several times: the diff of each change times a number."""

    times: int
    kind: ClassVar[str] = "repeat"
    same_rows: ClassVar[bool] = True

    def describe(self) -> str:
        return f"repeat {self.times} times"

    def apply(self, changes: Changes) -> Changes:
        diffs = changes.diff_array()
        most = MOST // self.times
        if len(diffs) and not -most <= int(diffs.min()) <= int(diffs.max()) <= most:
            at = int(np.argmax((diffs > most) | (diffs < -most)))
            raise OperatorFailed(
                "operator.overflow",
                f"a row is there {int(diffs[at]):,} times, and {self.times} times that does not fit 64 bits",
                hint="a row can be there 2**63 - 1 times at the most: put a collection together with itself less "
                "often, or count with a column",
            )
        return changes.repeat(self.times)


@dataclass(frozen=True)
class Inspect(Linear):
    """Shows what passes to a function of the user's: rows, times and diffs. Changes nothing."""

    function: Callable[[pa.RecordBatch], None]
    input_schema: pa.Schema
    times: bool = True
    """Whether the function is given times and diffs too."""
    kind: ClassVar[str] = "inspect"
    role = Role.INSPECT
    known_by_input: ClassVar[bool] = True
    same_rows: ClassVar[bool] = True

    def apply(self, changes: Changes) -> Changes:
        if self.times:
            rows = with_times(self.input_schema, changes)
        else:
            rows = as_record_batch(self.input_schema, changes.columns, changes.rows)
        exposed(self.function, rows)
        return changes


@dataclass(frozen=True)
class Probe(Linear):
    """A named place whose frontier a run can tell: which times can still come there. Changes nothing."""

    name: str
    kind: ClassVar[str] = "probe"
    role = Role.PROBE
    same_rows: ClassVar[bool] = True
    tracked: ClassVar[bool] = True

    @property
    def public_name(self) -> str:
        return self.name

    def describe(self) -> str:
        return f"probe {self.name!r}"

    def apply(self, changes: Changes) -> Changes:
        return changes


def _exactly(compiled: object) -> str:
    """The addition that compiled expressions have for the identity where their text leaves something out."""
    exactly: str = getattr(compiled, "exactly", "")
    return f" {exactly}" if exactly else ""
