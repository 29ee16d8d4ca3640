"""Operators that keep nothing: each change by itself, f(a + b) = f(a) + f(b).

They say nothing about time (but for entering and leaving loops), so chains of them are one call
after the other over whole columns. Renaming, dropping and picking columns moves no data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riverrun.engine.operator import Actor, Context, Linear, Operator, code_of, hold
from riverrun.errors import OperatorFailed
from riverrun.interrupts import exposed
from riverrun.progress import Antichain, Summary, Timestamp
from riverrun.state import Schema
from riverrun.state.changes import Changes
from riverrun.state.schema import conform_column, declared_column, free_name
from riverrun.state.types import shown_schema

Columns = Sequence[pa.Array]
CLOCK = "__clock__"
"""The input that has a row for each epoch, which nobody has to feed."""

PATIENCE = 100_000  # rounds; some ten seconds for a loop that adds a row in each
_KNOWN: dict[int, tuple[pa.Schema, tuple[pa.DataType, ...], pa.Schema]] = {}
"""Canonical types, and the schema that is shown, by the identity of a schema, which is kept so that no other takes its
place."""
_KEPT = 1024


class Projects(Protocol):
    """Columns made of columns (`frontends.expressions.Projection`)."""

    schema: pa.Schema
    sources: tuple[int, ...] | None
    picked: tuple[int | None, ...]
    used: tuple[int, ...]

    def apply(self, columns: Columns, rows: int) -> tuple[pa.Array, ...]: ...


class Decides(Protocol):
    """A yes or no for each row (`frontends.expressions.Predicate`)."""

    used: tuple[int, ...]

    def mask(self, columns: Columns, rows: int) -> np.ndarray[Any, np.dtype[np.bool_]]: ...


@dataclass(frozen=True)
class Input(Operator):
    """Where rows come in. `key` names the columns by which they are upserted, if any."""

    name: str
    key: tuple[str, ...] = ()
    kind: ClassVar[str] = "input"

    def describe(self) -> str:
        return f"input {self.name!r}" + (f" keyed by {', '.join(self.key)}" if self.key else "")

    @property
    def from_content(self) -> bool:
        return self.name != CLOCK

    def start(self, context: Context) -> Source:
        return Source(context)


class Source(Actor):
    """An input on a worker: it is fed, and sends on at once."""

    def feed(self, changes: Changes) -> None:
        self.context.push(changes, 0)


@dataclass(frozen=True)
class Project(Linear):
    """New columns, each made of the columns of the same row."""

    projection: Projects
    text: str = ""
    kind: ClassVar[str] = "select"

    @property
    def used(self) -> Sequence[int] | None:
        return self.projection.used

    def describe(self) -> str:
        return f"select {self.text or ', '.join(self.projection.schema.names) or 'no columns'}"

    def identity(self) -> str:
        return f"{self.describe()}{_exactly(self.projection)}"

    def apply(self, changes: Changes) -> Changes:
        sources = self.projection.sources
        if sources is not None:
            columns = changes.columns
            return changes.with_columns(tuple([columns[at] for at in sources]))
        return changes.with_columns(self.projection.apply(changes.columns, changes.rows))


@dataclass(frozen=True)
class Filter(Linear):
    """The rows for which something holds."""

    predicate: Decides
    text: str = ""
    kind: ClassVar[str] = "filter"

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
    given: pa.Schema
    schema: pa.Schema
    convert: Callable[[Any, pa.Schema, str], pa.RecordBatch]
    text: str = ""
    code: Callable[..., Any] | None = None
    """The user's own function, where `function` is one around it."""
    kind: ClassVar[str] = "map"

    def describe(self) -> str:
        return f"map batches by {self.text}"

    def identity(self) -> str:
        return f"{self.describe()} {code_of(self.code)}"

    def apply(self, changes: Changes) -> Changes:
        given = as_record_batch(self.given, changes.columns, changes.rows)
        made = self.convert(
            exposed(self.function, given), self.schema, "take what a function of batches gave"
        )
        if made.num_rows != changes.rows:
            raise OperatorFailed(
                "operator.length",
                f"the function {self.text} was given {changes.rows} rows and gave {made.num_rows}: "
                "a function of batches gives one row for each row, in the same order",
                hint="use flat_map for functions that give more or fewer rows",
            )
        return changes.with_columns(canonical_columns(made, self.schema))


@dataclass(frozen=True)
class FlatMap(Linear):
    """A user's function of one row that gives any number of rows."""

    function: Callable[[dict[str, Any]], Iterable[Any]]
    given: pa.Schema
    schema: pa.Schema
    convert: Callable[[Any, pa.Schema, str], pa.RecordBatch]
    text: str = ""
    kind: ClassVar[str] = "flat-map"

    def describe(self) -> str:
        return f"flat map by {self.text}"

    def identity(self) -> str:
        return f"{self.describe()} {code_of(self.function)}"

    def apply(self, changes: Changes) -> Changes | None:
        given = as_record_batch(self.given, changes.columns, changes.rows)
        counts, rows = exposed(self._call, given.to_pylist())
        if not rows:
            return None
        batch = self.convert(rows, self.schema, "take what a function of rows gave")
        repeated = changes.with_columns(()).take(np.repeat(np.arange(changes.rows), counts))
        return repeated.with_columns(canonical_columns(batch, self.schema))

    def _call(self, given: Sequence[dict[str, Any]]) -> tuple[list[int], list[Any]]:
        """How many rows each of them gives, and all these rows."""
        rows: list[Any] = []
        counts: list[int] = []
        for row in given:
            made = list(self.function(row))
            counts.append(len(made))
            rows += made
        return counts, rows


def list_parents(lists: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The row that each element of `lists.flatten()` comes from. A null list has none, whatever lies under it."""
    sizes = np.asarray(pc.list_value_length(lists).fill_null(0), np.int64)
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

    def apply(self, changes: Changes) -> Changes:
        return changes


@dataclass(frozen=True)
class Negate(Linear):
    """Every diff with the other sign."""

    kind: ClassVar[str] = "negate"

    def apply(self, changes: Changes) -> Changes:
        return changes.negate()


@dataclass(frozen=True)
class Inspect(Linear):
    """Shows what passes to a function of the user's: rows, times and diffs. Changes nothing."""

    function: Callable[[pa.RecordBatch], None]
    given: pa.Schema
    times: bool = True
    """Whether the function is given times and diffs too."""
    kind: ClassVar[str] = "inspect"
    passes_all: ClassVar[bool] = True

    def apply(self, changes: Changes) -> Changes:
        if self.times:
            rows = with_times(self.given, changes)
        else:
            rows = as_record_batch(self.given, changes.columns, changes.rows)
        exposed(self.function, rows)
        return changes


@dataclass(frozen=True)
class Probe(Linear):
    """A place at which one can ask which times can still come. Changes nothing."""

    name: str
    kind: ClassVar[str] = "probe"
    passes_all: ClassVar[bool] = True
    tracked: ClassVar[bool] = True

    def describe(self) -> str:
        return f"probe {self.name!r}"

    def apply(self, changes: Changes) -> Changes:
        return changes


@dataclass(frozen=True)
class Enter(Linear):
    """Into a loop: at round 0, or each row at a round of its own."""

    at: Projects | None = None
    limit: int | None = None
    kind: ClassVar[str] = "enter"
    steps_out: ClassVar[int] = -1
    tracked: ClassVar[bool] = True

    def summary(self, depth: int) -> Summary:
        return Summary.enter(depth)

    def describe(self) -> str:
        return "enter" if self.at is None else "enter by priority"

    def identity(self) -> str:
        if self.at is None:
            return "enter"
        below = "" if self.limit is None else f", below {self.limit}"
        return f"enter by priority{_exactly(self.at)}{below}"

    def apply(self, changes: Changes) -> Changes:
        if self.at is None:
            return changes.map_times(lambda time: (*time, 0))
        (column,) = self.at.apply(changes.columns, changes.rows)
        if column.null_count:
            raise _no_round(None)
        rounds = np.asarray(column.cast(pa.int64()))
        if len(rounds) and rounds.min() < 0:
            raise _no_round(int(rounds.min()))
        if self.limit is not None:
            rounds = np.minimum(rounds, self.limit - 1)
        codes = np.zeros(changes.rows, np.int64) if changes.codes is None else changes.codes
        distinct, ranks = np.unique(rounds, return_inverse=True)
        mixed = codes.astype(np.int64) * len(distinct) + ranks
        used, codes = np.unique(mixed, return_inverse=True)
        times = tuple(
            (*changes.times[which // len(distinct)], int(distinct[which % len(distinct)]))
            for which in used.tolist()
        )
        return Changes(
            changes.columns,
            changes.rows,
            times,
            codes.astype(np.int32),
            changes.diff,
            changes.diffs,
        )


def _no_round(given: int | None) -> OperatorFailed:
    return OperatorFailed(
        "operator.round",
        f"cannot enter a loop at round {given}: a row's round is a whole number from 0 on",
        hint="clip the expression, and fill its nulls",
        round=given,
    )


@dataclass(frozen=True)
class Leave(Linear):
    """Out of a loop: rounds are forgotten, so all rounds add up to what the last one has."""

    kind: ClassVar[str] = "leave"
    steps_out: ClassVar[int] = 1
    tracked: ClassVar[bool] = True

    def summary(self, depth: int) -> Summary:
        return Summary.leave(depth)

    def apply(self, changes: Changes) -> Changes:
        return changes.map_times(lambda time: time[:-1])


@dataclass(frozen=True)
class Delay(Linear):
    """To the next round, without going back; to no round from `limit` on."""

    limit: int | None = None
    kind: ClassVar[str] = "delay"
    tracked: ClassVar[bool] = True

    def identity(self) -> str:
        return "delay" if self.limit is None else f"delay, below {self.limit}"

    def summary(self, depth: int) -> Summary:
        return Summary.feedback(depth)

    def apply(self, changes: Changes) -> Changes | None:
        kept: Changes | None = changes
        if self.limit is not None:
            last = self.limit - 1
            kept = changes.split(lambda time: time[-1] < last)[0]
        return None if kept is None else kept.map_times(lambda time: (*time[:-1], time[-1] + 1))


@dataclass(frozen=True)
class Feedback(Operator):
    """Back to the start of a loop, at the next round; after `limit` rounds nothing goes back.

    A loop without a limit that goes on for `patience` rounds is taken to diverge.
    """

    limit: int | None = None
    patience: int = PATIENCE
    kind: ClassVar[str] = "feedback"
    is_feedback: ClassVar[bool] = True

    def summary(self, depth: int) -> Summary:
        return Summary.feedback(depth)

    def describe(self) -> str:
        return "feedback" if self.limit is None else f"feedback, at most {self.limit} rounds"

    def start(self, context: Context) -> Returning:
        return Returning(context)


class Returning(Actor):
    """A feedback on a worker: it holds what is to go back until its turn."""

    waits = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert isinstance(self.node.operator, Feedback)
        self._operator = self.node.operator
        self._held: dict[Timestamp, list[Changes]] = {}
        self._rounds: dict[Timestamp, int] = {}
        self.loop = self.node.scope.path.rstrip("/")
        """What people know the loop by."""
        self.going: tuple[Timestamp, int] | None = None
        """The last time at which rows came to go back, in this epoch, and how many here. Any thread may look."""

    def receive(self, port: int, changes: Changes) -> None:
        hold(self._held, changes, self.context.request)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        pieces = self._held.pop(time)
        self.going = time, sum([piece.rows for piece in pieces])
        limit, following = self._operator.limit, time[-1] + 1
        if limit is not None and following >= limit:
            return
        rounds = self._rounds[time[:-1]] = self._rounds.get(time[:-1], 0) + 1
        if limit is None and rounds >= self._operator.patience:
            added = Changes.concat(pieces).consolidate()
            if not added.rows:
                return
            raise self._diverges(added, rounds)
        returned = (*time[:-1], following)
        for piece in pieces:
            self.context.push(
                Changes(piece.columns, piece.rows, (returned,), None, piece.diff, piece.diffs), 0
            )

    def boundary(self, epoch: int) -> None:
        self._rounds.clear()
        self.going = None

    def _diverges(self, changes: Changes, rounds: int) -> OperatorFailed:
        few = changes.take(np.arange(min(5, changes.rows)))
        shown = python_rows(with_times(self.node.schemas[0], few))
        return OperatorFailed(
            "operator.diverges",
            f"the loop {self.loop!r} ({self.node.line}) still changes after "
            f"{rounds} rounds; {changes.rows} rows changed in the last one, for instance "
            f"{[{k: v for k, v in row.items() if k != 'time'} for row in shown]}",
            hint="make the body reach a fixed point, or give iterate a limit of rounds, or more patience",
            node=self.node.name,
            loop=self.loop,
            line=self.node.line,
            rounds=rounds,
            rows=shown,
        )


def _exactly(compiled: object) -> str:
    """What compiled expressions say, where their text leaves something out; they know that themselves."""
    exactly: str = getattr(compiled, "exactly", "")
    return f" {exactly}" if exactly else ""


def as_record_batch(schema: pa.Schema, columns: Columns, rows: int) -> pa.RecordBatch:
    """Canonical columns as their user declared them, and as they are shown."""
    if not len(schema):
        return pa.record_batch({"": pa.nulls(rows)}).select([])
    declared = [declared_column(c, f) for c, f in zip(columns, schema, strict=True)]
    return pa.record_batch(declared, schema=_known(schema)[2])


def _known(schema: pa.Schema) -> tuple[pa.Schema, tuple[pa.DataType, ...], pa.Schema]:
    known = _KNOWN.get(id(schema))
    if known is None or known[0] is not schema:
        while len(_KNOWN) >= _KEPT:
            _KNOWN.pop(next(iter(_KNOWN)), None)
        known = schema, Schema.of({}, schema).canonical, shown_schema(schema)
        _KNOWN[id(schema)] = known
    return known


def canonical_columns(batch: pa.RecordBatch, schema: pa.Schema) -> tuple[pa.Array, ...]:
    """The columns of rows as the engine keeps them."""
    return tuple(
        [
            conform_column(batch.column(at), field, kind, "take rows in")
            for at, (field, kind) in enumerate(zip(schema, _known(schema)[1], strict=True))
        ]
    )


def with_times(schema: pa.Schema, changes: Changes) -> pa.RecordBatch:
    """Changes as rows with two more columns, `time` (a list of integers) and `diff`."""
    batch = as_record_batch(schema, changes.columns, changes.rows)
    codes = np.zeros(changes.rows, np.int64) if changes.codes is None else changes.codes
    times = pa.array([list(time) for time in changes.times], pa.list_(pa.int64()))
    columns: Mapping[str, Any] = {
        **{field.name: batch.column(at) for at, field in enumerate(schema)},
        free_name("time", schema.names): times.take(pa.array(codes)),
        free_name("diff", schema.names): pa.array(changes.diff_array()),
    }
    return pa.record_batch(columns)


def python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows to be shown in an error; a column that Python cannot hold (dates after the year 9999) as text."""
    columns: list[list[Any]] = []
    for column in batch.columns:
        try:
            columns.append(column.to_pylist())
        except (OverflowError, ValueError):
            texts = [
                column.slice(at, 1).to_string(skip_new_lines=True) for at in range(len(column))
            ]
            columns.append([text.removeprefix("[").removesuffix("]").strip() for text in texts])
    names = batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
