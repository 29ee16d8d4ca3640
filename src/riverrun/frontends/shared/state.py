"""Shared state: values by key and by the application's own time, which many streams update and fetch from.

``flow.state`` declares a state. ``stream.update``, ``stream.fetch`` and ``stream.progress`` are steps like any other. A
fetch at a time t waits until every update up to t is in. Then it sees exactly these updates and no later ones, whatever
the order in which they arrived:

>>> import polars as pl, riverrun as rr
>>> flow = rr.Dataflow("ads")
>>> moves = flow.input("moves", {"ad": pl.Int64, "time": pl.Int64, "campaign": pl.String})
>>> views = flow.input("views", {"ad": pl.Int64, "at": pl.Int64})
>>> state = flow.state("campaigns", key={"ad": pl.Int64}, value={"campaign": pl.String})
>>> _ = moves.update(state)
>>> flow.output("seen", views.fetch(state, key="ad", at="at"))
>>> with flow.run() as run:
...     run.insert("moves", [(1, 10, "spring"), (1, 20, "summer")])
...     run.insert("views", [(1, 15), (1, 30)])
...     run.commit()
...     run.read("seen").rows()  # until 20 is passed: the view at 30 waits
...     run.insert("moves", [(2, 40, "autumn")])
...     run.commit()
...     run.read("seen").rows()
<Commit of epoch 0: done>
[(1, 15, 'spring')]
<Commit of epoch 1: done>
[(1, 15, 'spring'), (1, 30, 'summer')]

This module adds to the plan what `Dataflow.state`, `Collection.update` and `Collection.progress` declare; fetches are
in `frontends.shared.fetch`. A state is two nodes of the plan: one keeps its progress, U and F
(`operators.shared.marks`), the other its entries (`operators.shared.store`). An update leads into both nodes, and a
fetch reads both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from riverrun.attributes import missing_attribute
from riverrun.errors import PlanError, users_line
from riverrun.frontends.arguments import (
    as_ticks,
    is_count,
    is_one_of,
    is_time,
    type_in_words,
)
from riverrun.frontends.collections.expressions import compile_columns
from riverrun.frontends.collections.rows import Rows, clock_port
from riverrun.frontends.collections.widening import widened
from riverrun.frontends.elsewhere import STATE
from riverrun.frontends.names import step_of
from riverrun.frontends.shared.rules import Span, drop_before
from riverrun.operators.exchange import Exchange
from riverrun.operators.expire import ticks_of
from riverrun.operators.loops import PATIENCE, Feedback
from riverrun.operators.reshape import Unfold
from riverrun.operators.shared.marks import (
    MARKS,
    MOVED,
    PROGRESS,
    Applied,
    Await,
    MarkProgress,
    Marks,
    Reporter,
)
from riverrun.operators.shared.rules import (
    Add,
    CompactRule,
    DropBefore,
    Fold,
    UpdateRule,
)
from riverrun.operators.shared.store import Store, Updater
from riverrun.plan.plan import PlanBuilder, Scope, check_name
from riverrun.rows.column_names import is_list, one_column
from riverrun.rows.schemas import as_schema
from riverrun.rows.types import family
from riverrun.run.options import check_flag
from riverrun.state.types import common_type, share_layout, type_text

if TYPE_CHECKING:
    from riverrun.frontends.collection import Collection

Columns = str | Sequence[str] | Mapping[str, Any] | None
INT64 = pl.Int64
SWEEP = 4096
_BY = "__by__"


class State:
    """A state in a dataflow that is being written. `Dataflow.state` and `Loop.state` make it."""

    def __init__(
        self,
        collection: type[Collection],
        builder: PlanBuilder,
        scope: Scope,
        name: str,
        key: pa.Schema,
        value: pa.Schema,
        time: pa.Field,
        start: int | None,
        compact: CompactRule | None,
        active: bool,
        sweep: int,
        accelerate: bool,
        replies_first: bool,
    ) -> None:
        self.name = name
        self.key = key
        self.value = value
        self.time = time
        self.compact = compact
        self._collection = collection
        self._builder = builder
        self.scope = scope
        self._accelerated = accelerate
        self.replies_first = replies_first
        self._progress = builder.add(
            MarkProgress(name, begins=start), [], [MOVED], scope=scope, name=name + PROGRESS
        )
        inputs = [self._progress] if accelerate else []
        if not accelerate and scope is not builder.root:
            # A round may not begin before the reports of all earlier rounds are known.
            inputs = [builder.add(Feedback(None, PATIENCE), [], [MOVED], scope=scope)]
            builder.close(inputs[0], self._progress)
        operator = Store(
            name, tuple(key.names), time.name, self._progress.node, (), compact, active, sweep, bool(inputs)
        )  # fmt: skip
        self._store = builder.add(operator, inputs, [self.schema], scope=scope, name=name)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the entries: key, time and value."""
        return pa.schema([*self.key, self.time, *self.value])

    if not TYPE_CHECKING:  # a checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, "state", name, STATE)

    def __repr__(self) -> str:
        shown = ", ".join(f"{field.name}: {field.type}" for field in self.schema)
        return f"<State {self.name!r} of {shown}>"

    def entries(self) -> Collection:
        """The entries as a collection: rows of key, time and value. A row goes when compaction takes its entry out."""
        keyed = tuple(self.key.names) if self.scope is self._builder.root else None
        return self._collection(self._builder, self._store, keyed)

    # -- inside

    def _is_behind(self, stream: Collection) -> bool:
        """Whether the rows of a stream come from a fetch of this state."""
        nodes = self._builder.nodes
        seen, waiting = {stream._port.node}, [stream._port.node]
        while waiting:
            number = waiting.pop()
            if number in (self._store.node, self._progress.node):
                return True
            fresh = {port.node for port in nodes[number].inputs} - seen
            seen |= fresh
            waiting += fresh
        return False

    def _returned(self, stream: Collection, what: str) -> Collection:
        """A stream in the scope of the state. If its rows come from the state itself, they arrive a round later."""
        stream = self._here(stream, what)
        if not self._is_behind(stream):
            return stream
        if self.scope is self._builder.root:
            line = users_line()
            raise PlanError(
                "state.cycle",
                f"cannot {what} {self.name!r} at {line} with rows that come from a fetch of it: the state would have "
                "to be complete before it is",
                hint="declare the state inside a loop, loop = flow.loop(); loop.state(...): there the rows come back "
                "to it a round later",
                line=line,
            )
        back = self._builder.add(Feedback(None, PATIENCE), [], [stream.schema], scope=self.scope)
        self._builder.close(back, stream._port)
        return stream._at(back)

    def _here(self, stream: Collection, what: str) -> Collection:
        if stream._builder is not self._builder:
            raise PlanError(
                "plan.two_flows",
                f"cannot {what} {self.name!r} with {stream._name}: they belong to two dataflows",
                hint="build both on one Dataflow",
            )
        if self.scope.is_inside(stream.scope):
            return stream._into(self.scope)
        line = users_line()
        raise PlanError(
            "plan.scope",
            f"cannot {what} {self.name!r} at {line} with {stream._name}: it is in the loop "
            f"{stream.scope.path.rstrip('/')!r}, and the state is not",
            hint="declare the state in the loop, loop.state(...), or lead the rows out of it first",
            line=line,
        )

    def _report(self, marks: Collection, reporter: Reporter) -> None:
        """Have the marks of a reporter count for U or F, on every worker."""
        builder = self._builder
        everywhere = marks._add(Exchange("all"), [marks], MARKS)
        self._lead(everywhere, reporter)
        if reporter.idle is not None and not self._has_clock:
            clock = marks._at(clock_port(builder))._into(self.scope)
            ticks = clock.select(source=pl.lit(""), mark="epoch")
            ticks = ticks._add(Exchange("all"), [ticks], MARKS)
            self._lead(ticks, Reporter("clock", "clock"))

    @property
    def _has_clock(self) -> bool:
        return any(each.side == "clock" for each in self._progress_operator.reporters)

    @property
    def _progress_operator(self) -> MarkProgress:
        return self._builder.operator_at(self._progress, MarkProgress)

    def _lead(self, marks: Collection, reporter: Reporter) -> None:
        operator = self._progress_operator.with_reporter(reporter)
        self._builder.lead(marks._port, self._progress, operator)


def add_state(
    collection: type[Collection],
    builder: PlanBuilder,
    scope: Scope,
    name: str,
    key: Any,
    value: Any,
    time: Any,
    start: Any,
    compact: Any,
    compaction: str,
    sweep: int,
    accelerate: bool,
    replies_first: bool,
) -> State:
    """Check the arguments of `Dataflow.state` and `Loop.state`, and make the state.

    `collection` is the class `Collection`, which is built on this module.
    """
    check_name(name)
    builder.check_free(name, scope)
    line = users_line()
    keys = as_schema(key, f"declare the key of state {name!r}")
    values = as_schema(value, f"declare the values of state {name!r}")
    if isinstance(time, Mapping) and len(time) != 1:
        raise PlanError(
            "state.time",
            f"cannot declare state {name!r} at {line} with {len(time)} times: a value is at one time",
            hint='time={"at": pl.Datetime("us")}, or a type alone for a column called "time"',
            line=line,
        )
    times = as_schema(time if isinstance(time, Mapping) else {"time": time}, "declare a time")
    field = times.field(0)
    kind = field.type
    if not is_time(kind):
        raise PlanError(
            "state.time",
            f"cannot declare state {name!r} at {line} with times of {kind}: that is not a time or a whole number",
            hint="pl.Int64, pl.Datetime or pl.Date",
            line=line,
        )
    names = [*keys.names, field.name, *values.names]
    for each in names:
        if names.count(each) > 1:
            raise PlanError(
                "plan.column_twice",
                f"cannot declare state {name!r} at {line} with two columns called {each!r}",
                hint='name the time otherwise: time={"at": pl.Int64}'
                if each == field.name
                else "key, time and value have different names",
                column=each,
            )
    if scope.depth > 2:
        raise PlanError(
            "state.nested",
            f"cannot declare state {name!r} at {line} in a loop inside a loop: its rounds have no order in which "
            "updates could be applied one after the other",
            hint="declare it in the outer loop, or outside; a fetch may stand in a loop that its state is not in",
            line=line,
        )
    if not len(keys):
        raise PlanError(
            "state.key",
            f"cannot declare state {name!r} at {line} without a key",
            hint='key={"id": pl.Int64}',
            line=line,
        )
    if not is_one_of(compaction, ("lazy", "active")):
        raise no_choice("compact", compaction, ("lazy", "active"), f"state {name!r}", line)
    check_flag(accelerate, "accelerate")
    check_flag(replies_first, "replies_first")
    if not is_count(sweep):
        raise PlanError(
            "state.sweep",
            f"cannot look at {sweep!r} rows of state {name!r} at a time ({line})",
            hint="sweep= is how many rows a turn of the sweep looks at: a whole number from 1 on",
        )
    return State(
        collection,
        builder,
        scope,
        name,
        pa.schema([f.with_nullable(True) for f in keys]),
        pa.schema([f.with_nullable(True) for f in values]),
        field,
        _start_ticks(start, field, name, line),
        _compact_rule(compact, field, values, name, line),
        compaction == "active",
        sweep,
        accelerate,
        replies_first,
    )


def _start_ticks(start: Any, time: pa.Field, name: str, line: str) -> int | None:
    if start is None:
        return None
    try:
        ticks = pa.array([start], time.type)
        if ticks[0].as_py() != start:
            raise ValueError(f"{start!r} would be {ticks[0].as_py()!r}")
        return int(ticks_of(ticks)[0])
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise PlanError(
            "state.start",
            f"cannot start state {name!r} at {line} from {start!r}: its times are {time.type}",
            hint="give a time of that type, before which there is nothing",
            line=line,
        ) from error


def _compact_rule(
    rule: Any, time: pa.Field, values: pa.Schema, name: str, line: str
) -> CompactRule | None:
    if isinstance(rule, drop_before):
        return DropBefore(as_ticks(rule.span, time, "the span of a compaction", least=0))
    if rule is None or isinstance(rule, CompactRule):
        if isinstance(rule, Fold):
            _check_numbers(values, f"fold the values of state {name!r}", line, widest=True)
        return rule
    raise PlanError(
        "state.rule",
        f"cannot compact state {name!r} at {line} by {type_in_words(rule)}",
        hint="rr.rules.keep_latest, rr.rules.fold, rr.rules.drop_before(span) or rr.rules.compact(function)",
        line=line,
    )


def _check_numbers(values: pa.Schema, what: str, line: str, widest: bool = False) -> None:
    for field in values:
        if widest and field.type not in (pa.int64(), pa.float64()):
            raise PlanError(
                "state.type",
                f"cannot {what} at {line}: {field.name!r} is {field.type}, which may not hold a sum",
                hint="declare it as pl.Int64 or pl.Float64",
                column=field.name,
                line=line,
            )
        if family(field.type) not in ("integer", "float"):
            raise PlanError(
                "state.type",
                f"cannot {what} at {line}: {field.name!r} is {field.type}, not a number",
                hint="keep numbers in a state that is added up",
                column=field.name,
                line=line,
            )


def no_choice(what: str, value: object, choices: Sequence[str], where: str, line: str) -> PlanError:
    """The refusal of a value that is not among the choices of an option."""
    return PlanError(
        "state.option",
        f"cannot {what} {where} at {line} with {value!r}: it is one of {', '.join(choices)}",
        hint=f"for instance {choices[0]!r}",
        line=line,
    )


def check_state(state: Any, what: str) -> None:
    """Refuse a value that is not a state."""
    if not isinstance(state, State):
        line = users_line()
        raise PlanError(
            "state.state",
            f"cannot {what} {type_in_words(state)} at {line}: that is not a state",
            hint="in a collection, rows are looked up: stream.lookup(collection, on=...)"
            if isinstance(state, Rows)
            else "state = flow.state(name, key={...}, value={...})",
            line=line,
        )


def wanted_columns(
    columns: Columns, needed: pa.Schema, stream: Collection, what: str, whose: str
) -> dict[str, Any]:
    """For each column of a state, the column or expression of a stream that stands for it."""
    line = users_line()
    if columns is None:
        by_name: dict[str, Any] = {name: name for name in needed.names}
    elif isinstance(columns, Mapping):
        by_name = dict(columns)
    else:
        listed = list(columns) if is_list(columns) else [columns]
        if len(listed) != len(needed):
            raise PlanError(
                "state.columns",
                f"cannot {what} at {line}: {whose} has {len(needed)} columns ({', '.join(needed.names)}), and "
                f"{len(listed)} are given",
                hint="give them in that order, or by name: {"
                + f'"{needed.names[0] if needed.names else "a"}": ...'
                + "}",
                line=line,
            )
        by_name = dict(zip(needed.names, listed, strict=True))
    if set(by_name) != set(needed.names):
        raise PlanError(
            "state.columns",
            f"cannot {what} at {line}: {whose} is {', '.join(needed.names)}, and what is given is for "
            f"{', '.join(map(str, by_name)) or 'nothing'}",
            hint="give each of them once",
            line=line,
        )
    wanted: dict[str, Any] = {}
    for name in needed.names:
        wanted[name] = one = by_name[name]
        if isinstance(one, str | pl.Expr) or is_list(one):
            wanted[name] = one_column(one, stream.columns, what, expressions=True)
    return wanted


def time_column(time: Any, stream: Collection, attempt: str) -> Any:
    """A time of a user: a column, an expression, a constant or None. A list is refused."""
    if time is None or not (isinstance(time, str | pl.Expr) or is_list(time)):
        return time
    return one_column(time, stream.columns, attempt, expressions=True)


def check_types(
    columns: pa.Schema,
    needed: pa.Schema,
    what: str,
    line: str,
    spellings: Mapping[str, str] | None = None,
) -> None:
    """Refuse columns whose types cannot be widened to those of a state (`collections.widening`).

    `spellings` has the user's words for columns whose names are ours: at='when'.
    """
    for field in needed:
        column_type = columns.field(field.name).type
        kind = common_type(field.type, column_type)
        if kind is None or not share_layout(kind, field.type):
            name = (spellings or {}).get(field.name)
            raise PlanError(
                "state.type",
                f"cannot {what} at {line}: {name} is {type_text(column_type)}, and the times of the state are "
                f"{type_text(field.type)}"
                if name is not None
                else f"cannot {what} at {line}: {field.name!r} is {type_text(field.type)} in the state, and "
                f"{type_text(column_type)} here",
                hint="cast it: pl.col(...).cast(...)"
                if kind is None
                else f"cast it: pl.col(...).cast(...); or let the state have {type_text(kind)}, which holds both",
                column=field.name,
                line=line,
            )


def check_idle(idle: int | None, line: str) -> None:
    """Refuse an `idle` that is no number of epochs."""
    if idle is not None and not is_count(idle):
        raise PlanError(
            "state.idle",
            f"cannot leave out a stream after {idle!r} silent epochs ({line})",
            hint="give a whole number of epochs from 1 on",
            line=line,
        )


def by_column(by: str | None, stream: Collection, line: str) -> dict[str, Any]:
    """The column that tells sources apart, under a name of ours; empty where there is no such column."""
    if by is None:
        return {}
    by = one_column(by, stream.columns, f"tell sources apart in {stream._name}")
    kind = stream.schema.field(by).type
    if family(kind) not in ("integer", "text"):
        raise PlanError(
            "state.by",
            f"cannot tell sources apart by {by!r} at {line}: it is {kind}",
            hint="a column of whole numbers or strings",
            line=line,
        )
    return {_BY: by}


def update(
    stream: Collection,
    state: Any,
    *,
    key: Columns,
    time: Any,
    value: Columns,
    rule: Any,
    late: Span,
    by: str | None,
    idle: int | None,
    progress: bool,
) -> Collection:
    """See `Collection.update`."""
    line, what = users_line(), "update"
    check_state(state, what)
    if not isinstance(rule, UpdateRule):
        raise PlanError(
            "state.rule",
            f"cannot update {state.name!r} at {line} by {type_in_words(rule)}",
            hint="rr.rules.replace, rr.rules.add, rr.rules.append or rr.rules.update(function)",
            line=line,
        )
    check_flag(progress, "progress")
    if isinstance(rule, Add):
        _check_numbers(state.value, f"add to {state.name!r}", line)
    check_idle(idle, line)
    attempt = f"update {state.name!r} with {stream._name}"
    time = time_column(time, stream, attempt)
    _check_key_has_time(stream, state, time, line)
    keys = wanted_columns(key, state.key, stream, attempt, "the key")
    values = wanted_columns(value, state.value, stream, attempt, "the value")
    times = {state.time.name: state.time.name if time is None else time}
    wanted = {**keys, **times, **values, **by_column(by, stream, line)}
    projection = compile_columns(stream.schema, wanted, attempt)
    lists = _lists(projection.schema, state)
    fields = [
        field.with_type(field.type.value_type) if at in lists else field
        for at, field in enumerate(projection.schema)
    ]
    check_types(pa.schema(fields), state.schema, attempt, line)
    builder = state._builder
    with builder.whole_or_not():
        rows = stream._project(wanted, attempt)
        if lists:
            rows = rows._add(Unfold(lists), [rows], pa.schema(fields))
        rows = widened(rows, {field.name: field.type for field in state.schema})
        rows = state._returned(rows, what)
        moved = rows._exchanged(tuple(state.key.names))
        operator = builder.operator_at(state._store, Store)
        updater = Updater(stream._stream_name, rule)
        builder.lead(moved._port, state._store, operator.with_updater(updater))
        if progress:
            behind = as_ticks(late, state.time, "how late updates may come", least=0)
            at = len(state.key)
            marks = Marks(at, behind, None if by is None else len(state.schema))
            seen = reported_by(rows, moved)
            reports = seen._add(marks, [seen], MARKS)
            if not state._accelerated:
                reports = _awaited(reports, state)
            state._report(reports, Reporter(stream._stream_name, "update", False, idle))
    return stream


def reported_by(rows: Collection, moved: Collection) -> Collection:
    """The rows from which a stream reports its progress.

    As a rule these are the `rows` before they travel, so that marks travel beside the rows and not behind them. Where
    rows may be added and taken out again within an epoch, the rows that have `moved` are added up first and report.
    """
    return rows if rows._is_added_up() else moved._added_up()


def _check_key_has_time(stream: Collection, state: State, time: Any, line: str) -> None:
    """Refuse a keyed input whose key lacks the time: a row with a new time would take back the value at the old one."""
    key = step_of(stream._builder.nodes, stream._port).operator.upsert_key
    column = state.time.name if time is None else time
    roots = column.meta.root_names() if isinstance(column, pl.Expr) else [column]
    if key and not (roots and set(roots) <= set(key)):
        raise PlanError(
            "state.keyed_input",
            f"cannot update {state.name!r} with {stream._name} at {line}: its key is {', '.join(key)}, so a "
            "row takes the one before it back, and with it the value at its time",
            hint=f"leave out key= of the input, or let {' and '.join(map(repr, roots)) or 'the time'} be part of it: "
            "then a value is corrected at its time",
            line=line,
        )


def _lists(columns: pa.Schema, state: State) -> tuple[int, ...]:
    """Positions of the columns that are lists where the state has single values: each element is an update."""
    return tuple(
        at
        for at, field in enumerate(state.schema)
        if family(columns.field(at).type) == "list" and family(field.type) != "list"
    )


def _awaited(marks: Collection, state: State) -> Collection:
    """Marks, held back until the state has replied to the updates before them."""
    store = marks._at(state._store)
    replies = store._add(Applied(), [store], MARKS)
    replies = replies._add(Exchange("all"), [replies], MARKS)
    return marks._add(Await(), [marks, replies], MARKS)


def progress(
    stream: Collection,
    state: Any,
    side: Any,
    at: Any,
    late: Span | None,
    by: str | None,
    idle: int | None,
) -> Collection:
    """See `Collection.progress`."""
    line = users_line()
    check_state(state, "report progress to")
    if not is_one_of(side, ("update", "fetch")):
        raise no_choice("report progress to", side, ("update", "fetch"), repr(state.name), line)
    check_idle(idle, line)
    attempt = f"report progress to {state.name!r} from {stream._name}"
    if at is None:
        raise PlanError(
            "state.at",
            f"cannot {attempt}: at= says up to which time there is no more to come, and is None",
            hint='at="time", a column of the stream that only grows',
            line=line,
        )
    wanted = {state.time.name: time_column(at, stream, attempt), **by_column(by, stream, line)}
    projection = compile_columns(stream.schema, wanted, attempt)
    check_types(projection.schema, pa.schema([state.time]), attempt, line)
    with state._builder.whole_or_not():
        projected = widened(stream._project(wanted, attempt), {state.time.name: state.time.type})
        rows = state._returned(projected, "report progress to")
        behind = as_ticks(
            0 if late is None else late, state.time, "how late rows may come", least=0
        )
        seen = rows if rows._is_added_up() else rows.consolidate()
        reports = seen._add(Marks(0, behind, None if by is None else 1), [seen], MARKS)
        if side == "update" and not state._accelerated:
            reports = _awaited(reports, state)
        state._report(reports, Reporter(stream._stream_name, side, late is None, idle))
    return stream
