"""Fetching: records that ask a state for values, and go on with the answers (`Collection.fetch`).

A record with one request travels itself, to where its key is; one with several stays behind and sends its
requests, and the replies gather with it (`engine.operators.shared.gather`). Columns that are key and bounds already
are used as they are: nothing is made, or sent, twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from riverrun.errors import PlanError, SchemaError, users_line
from riverrun.frontends.arguments import as_ticks, check_callable, is_one_of, kind_told
from riverrun.frontends.collections.collection import Collection
from riverrun.frontends.collections.expressions import compile_columns
from riverrun.frontends.collections.widening import widened
from riverrun.frontends.shared.rules import Span
from riverrun.frontends.shared.state import (
    ArrangedState,
    Columns,
    State,
    by_column,
    check_idle,
    check_state,
    check_types,
    no_choice,
    reported_by,
    time_column,
    wanted_columns,
)
from riverrun.operators.shared.fetch import Bounds, Fetch
from riverrun.operators.shared.fetch_rules import (
    REQUEST,
    Collected,
    FetchFunction,
    FetchRule,
)
from riverrun.operators.shared.gather import (
    COUNT,
    IDS,
    PLACE,
    FunctionRequests,
    Gather,
    ListRequests,
    Requesting,
    Requests,
)
from riverrun.operators.shared.marks import MARKS, Marks, Reporter
from riverrun.plan.plan import Port
from riverrun.rows.column_names import check_suffix, new_name
from riverrun.rows.types import family
from riverrun.rows.values import show
from riverrun.run.options import check_flag
from riverrun.state.schema import free_name
from riverrun.state.types import are_kept_alike

_ENDS = {
    "both": (True, True),
    "left": (True, False),
    "right": (False, True),
    "none": (False, False),
}
_AT, _SINCE, _WAIT, _BY = "__at__", "__since__", "__wait__", "__by__"
_GIVEN = {_AT: "at", _SINCE: "since", _WAIT: "wait"}
"""What the bounds are called in requests of a function."""


@dataclass(frozen=True)
class Asking:
    """What a fetch was given, brought to one form."""

    state: State | ArrangedState
    key: Columns
    at: Any
    since: Any
    wait: Any
    rule: FetchRule
    committed: bool
    closed: tuple[bool, bool]
    inner: bool
    time: str | None
    late: Span
    by: str | None
    idle: int | None
    progress: bool | None
    requests: Callable[[dict[str, Any]], Any] | None
    name: str | None
    suffix: str
    line: str
    attempt: str
    stream: str
    """What the stream is called while it runs."""


def fetch(stream: Collection, state: Any, **given: Any) -> Collection:
    """See `Collection.fetch`."""
    line = users_line()
    if not isinstance(state, State | ArrangedState):
        check_state(state, "fetch from")
    for option, choices in (
        ("read", ("committed", "uncommitted")),
        ("closed", tuple(_ENDS)),
        ("how", ("left", "inner")),
    ):
        if not is_one_of(given[option], choices):
            raise no_choice(
                "fetch from", given[option], choices, f"{state.name!r} ({option}=)", line
            )
    if not isinstance(given["rule"], FetchRule):
        raise PlanError(
            "state.rule",
            f"cannot fetch from {state.name!r} at {line} by {kind_told(given['rule'])}",
            hint="rr.rules.latest, rr.rules.within, rr.rules.distinct, rr.rules.total, or "
            "rr.rules.fetch(function, schema)",
            line=line,
        )
    taken = REQUEST in state.value.names
    if isinstance(given["rule"], FetchFunction) and taken:
        raise PlanError(
            "state.column",
            f"cannot fetch from {state.name!r} at {line} by a function: it has a column {REQUEST!r}, which is what the "
            "number of a request is called there",
            hint="rename that column of the state",
            line=line,
        )
    check_idle(given["idle"], line)
    if given["progress"] is not None:
        check_flag(given["progress"], "progress")
    attempt = f"fetch from {state.name!r} for {stream._name}"
    for bound in ("at", "since", "wait"):
        given[bound] = time_column(given[bound], stream, attempt)
    if given["time"] is not None:
        new_name(given["time"], f"{attempt} with time=")
    check_suffix(given["suffix"], attempt)
    asking = Asking(
        state,
        given["key"],
        given["at"],
        given["since"],
        given["wait"],
        given["rule"],
        given["read"] == "committed",
        _ENDS[given["closed"]],
        given["how"] == "inner",
        given["time"],
        given["late"],
        given["by"],
        given["idle"],
        given["progress"],
        given["requests"],
        given["name"],
        given["suffix"],
        line,
        attempt,
        stream._told,
    )
    if (
        stream._builder
        is not (state.collection if isinstance(state, ArrangedState) else state)._builder
    ):
        raise PlanError(
            "plan.two_flows",
            f"cannot {asking.attempt}: they belong to two dataflows",
            hint="build both on one Dataflow",
        )
    with stream._builder.whole_or_not():
        if isinstance(state, ArrangedState):
            return _fetch_arranged(stream, asking, state)
        _check_bounds(asking, state)
        scope = state.scope if state.scope.is_inside(stream.scope) else stream.scope
        here = stream._into(scope)
        listed = _list_column(here, asking, state)
        if asking.requests is not None or listed is not None:
            return _fetch_many(here, asking, state, listed)
        return _fetch_one(here, asking, state)


def _check_bounds(asking: Asking, state: State) -> None:
    if asking.wait is not None and asking.committed:
        raise PlanError(
            "state.wait",
            f"cannot {asking.attempt} at {asking.line} with wait=: a committed fetch waits for the end of its range",
            hint='read="uncommitted" with wait=, or leave it out',
            line=asking.line,
        )
    compact = state.compact
    if compact is not None and not compact.serves(asking.rule.name, asking.since is not None):
        raise PlanError(
            "state.compaction",
            f"cannot {asking.attempt} at {asking.line} by {asking.rule.name}: compaction ({compact.name}) would show "
            "in the answers, which need older values than it keeps",
            hint="bound the fetch from below, since=...; rr.rules.keep_latest goes with rr.rules.latest, and "
            "rr.rules.fold with rr.rules.total",
            line=asking.line,
        )
    if asking.at is None and asking.requests is None and asking.committed:
        raise PlanError(
            "state.at",
            f"cannot {asking.attempt} at {asking.line}: it says no time",
            hint='at="column"; or read="uncommitted" for what is there at the moment',
            line=asking.line,
        )


def _list_column(stream: Collection, asking: Asking, state: State) -> str | None:
    """The list column that is the key, if there is one."""
    key: Any = asking.key
    if isinstance(key, Mapping) and len(key) == 1:
        (key,) = key.values()
    if isinstance(key, list | tuple) and len(key) == 1:
        (key,) = key
    if not isinstance(key, str) or len(state.key) != 1 or key not in stream.columns:
        return None
    return key if family(stream.schema.field(key).type) == "list" else None


def _placed(
    stream: Collection, wanted: dict[str, Any], needed: pa.Schema, asking: Asking
) -> tuple[Collection, dict[str, str]]:
    """The stream with what is wanted as columns, and what each of them is called there.

    Columns that are there already, in the type that is needed, are taken as they are, so that nothing has to be made
    or sent twice.
    """
    compiled = compile_columns(stream.schema, wanted, asking.attempt)
    said = {bound: f"{_GIVEN[bound]}={show(wanted[bound])}" for bound in _GIVEN if bound in wanted}
    check_types(compiled.schema, needed, asking.attempt, asking.line, said)
    names, extra, taken = {}, {}, list(stream.columns)
    for name, given in wanted.items():
        kind = compiled.schema.field(name).type
        if (
            isinstance(given, str)
            and given in stream.columns
            and are_kept_alike(kind, needed.field(name).type)
        ):
            names[name] = given
        else:
            names[name] = free_name(f"__{name.strip('_')}__", taken)
            taken.append(names[name])
            extra[names[name]] = given
    if not extra:
        return stream, names
    kinds = {names[name]: needed.field(name).type for name in wanted if names[name] in extra}
    return widened(stream.with_columns(**extra), kinds), names


def _bounds_wanted(asking: Asking, state: State) -> tuple[dict[str, Any], pa.Schema]:
    wanted = {_AT: asking.at, _SINCE: asking.since, _WAIT: asking.wait}
    wanted = {name: given for name, given in wanted.items() if given is not None}
    return wanted, pa.schema([pa.field(name, state.time.type) for name in wanted])


def _answer_schema(
    stream: Collection, asking: Asking, rule: FetchRule, time: pa.Field | None, value: pa.Schema
) -> tuple[pa.Schema, tuple[str, ...]]:
    """The columns of answers, none of which is called like one of the record; and those of the state behind them."""
    shown = None
    if time is not None and (asking.rule.timed or asking.time is not None):
        shown = time if asking.time is None else pa.field(asking.time, time.type)
    made: list[pa.Field] = []
    try:
        given = rule.gives(shown, value)
    except SchemaError as error:
        raise PlanError(
            error.code,
            f"cannot {asking.attempt} at {asking.line}: {error.message}",
            hint=error.hint,
            line=asking.line,
        ) from None
    for field in given:
        taken_names = [*stream.columns, *(each.name for each in made)]
        if not asking.suffix and field.name in taken_names:
            raise PlanError(
                "plan.column_twice",
                f"cannot {asking.attempt} at {asking.line}: two columns are called {field.name!r}, and the suffix is "
                "empty",
                hint='give one: suffix="_right"; or select other names',
                line=asking.line,
                column=field.name,
            )
        name = free_name(field.name, taken_names, add=asking.suffix)
        made.append(pa.field(name, field.type))
    taken = [] if shown is None or time is None else [time.name]
    return pa.schema(made), (*taken, *value.names)


def _fetch_one(stream: Collection, asking: Asking, state: State) -> Collection:
    """One request for each record: the record itself travels."""
    keys = wanted_columns(asking.key, state.key, stream, asking.attempt, "the key")
    bounds, needed = _bounds_wanted(asking, state)
    by = by_column(asking.by, stream, asking.line)
    requests, names = _placed(stream, {**keys, **bounds}, pa.schema([*state.key, *needed]), asking)
    moved = requests._exchanged(tuple(names[name] for name in state.key.names))
    made, taken = _answer_schema(stream, asking, asking.rule, state.time, state.value)
    answered = _add_fetch(
        moved, asking, state, names, len(stream.columns), asking.rule, taken,
        pa.schema([*stream.schema, *made]),
    )  # fmt: skip
    if _AT in names:
        column = moved.columns.index(names[_AT])
        source = None if not by else moved.columns.index(by[_BY])
        _report_fetch(requests, moved, column, source, asking, state)
    return answered


def _add_fetch(
    moved: Collection,
    asking: Asking,
    state: State,
    names: Mapping[str, str],
    width: int,
    rule: FetchRule,
    taken: tuple[str, ...],
    schema: pa.Schema,
) -> Collection:
    at = moved.columns.index
    place = {bound: at(names[bound]) for bound in (_SINCE, _AT, _WAIT) if bound in names}
    waits = place.get(_AT) if asking.committed else place.get(_WAIT, place.get(_SINCE))
    past = asking.closed[1] if asking.committed else True
    bounds = Bounds(place.get(_SINCE), place.get(_AT), asking.closed, waits, past)
    operator = Fetch(
        state=state.name,
        given=moved.schema,
        key=tuple(at(names[name]) for name in state.key.names),
        bounds=bounds,
        width=width,
        rule=rule,
        columns=taken,
        store=state._store.node,
        progress=state._progress.node,
        inner=asking.inner,
        committed=asking.committed,
        early=state.replies_first,
        many=moved.columns[: len(IDS)] == IDS.names,
        compact=state.compact,
        stream=asking.stream,
    )
    builder = state._builder
    sides = [
        Collection(builder, port)._into(moved.scope)._port
        for port in (state._store, state._progress)
    ]
    port = builder.add(operator, [moved._port, *sides], [schema], name=asking.name)
    return Collection(builder, port)


def _report_fetch(
    rows: Collection,
    moved: Collection,
    column: int,
    by: int | None,
    asking: Asking,
    state: State,
) -> None:
    """Have a fetch report its own progress, where it can."""
    possible = moved.scope is state.scope and not state._is_behind(moved)
    if asking.progress is False or (asking.progress is None and not possible):
        return
    if not possible:
        raise PlanError(
            "state.progress",
            f"cannot report the progress of a fetch from {state.name!r} at {asking.line} by itself: its records come "
            "from another fetch of the state, or go around a loop",
            hint='report it from the stream before that: stream.progress(state, "fetch", at=...)',
            line=asking.line,
        )
    behind = as_ticks(asking.late, state.time, "how late fetches may come", least=0)
    seen = reported_by(rows, moved)
    told = seen._add(Marks(column, behind, by), [seen], MARKS)
    state._report(told, Reporter(asking.stream, "fetch", False, asking.idle))


def _fetch_many(stream: Collection, asking: Asking, state: State, column: str | None) -> Collection:
    """Several requests for each record: they travel without it, and it goes on when all replies are there."""
    if asking.inner:
        raise PlanError(
            "state.how",
            f"cannot {asking.attempt} at {asking.line} with how='inner': a record with several requests goes on with "
            "lists of replies, null where there is none",
            hint="leave out how=, and filter afterwards",
            line=asking.line,
        )
    bounds, needed = _bounds_wanted(asking, state)
    base, names = _placed(stream, bounds, needed, asking)
    if column is None:
        requested = {each: _GIVEN[each] for each in bounds}
        if asking.committed:  # each request says its own, or has that of the fetch
            requested[_AT] = _GIVEN[_AT]
        kinds = [pa.field(name, state.time.type) for name in requested.values()]
        made = pa.schema([*state.key, *kinds])
        assert asking.requests is not None
        check_callable(asking.requests, "fetch")
        given = tuple((_GIVEN[each], names[each]) for each in bounds)
        function = Requests(asking.requests, given, tuple(stream.columns))
        ask: Requesting = FunctionRequests(function, base.schema, made)
    else:
        kind = base.schema.field(column).type.value_type
        check_types(
            pa.schema([pa.field(state.key.names[0], kind)]), state.key, asking.attempt, asking.line
        )
        if not are_kept_alike(kind, state.key.field(0).type):
            wider = free_name(f"__{column}__", base.columns)
            base = widened(
                base.with_columns(**{wider: column}),
                {wider: pa.large_list(state.key.field(0).type)},
            )
            column = wider
        taken = tuple(base.columns.index(names[each]) for each in bounds)
        ask = ListRequests(base.columns.index(column), taken)
        made = pa.schema([*state.key, *needed])
        requested = {each: each for each in bounds}
    asked = base._add(ask, [base], pa.schema([*IDS, PLACE, *made]))
    records_schema = pa.schema([*IDS, COUNT, *base.schema])
    records = base._add(dataclasses.replace(ask, records=True), [base], records_schema)
    moved = asked._exchanged(tuple(state.key.names))
    rule = asking.rule if asking.rule.single else Collected(asking.rule)
    shown, columns = _answer_schema(base, asking, rule, state.time, state.value)
    places = {**{name: name for name in state.key.names}, **requested}
    replies_schema = pa.schema([*IDS, PLACE, *shown])
    replies = _add_fetch(moved, asking, state, places, 3, rule, columns, replies_schema)
    ids = tuple(IDS.names)
    gathered = pa.schema([*base.schema, *(pa.field(f.name, pa.large_list(f.type)) for f in shown)])
    gather = Gather(
        state.name, state.scope.depth, records_schema, replies_schema, state.replies_first, asking.committed,
    )  # fmt: skip
    both = [records._exchanged(ids), replies._exchanged(ids)]
    whole = records._add(gather, both, gathered, asking.name and f"{asking.name}:gather")
    if _AT in requested:
        by = None
        if asking.by is not None:
            raise PlanError(
                "state.by",
                f"cannot tell sources apart in a fetch of several keys at {asking.line}",
                hint='report by source explicitly: stream.progress(state, "fetch", at=..., by=...)',
                line=asking.line,
            )
        _report_fetch(asked, moved, moved.columns.index(requested[_AT]), by, asking, state)
    if len(base.columns) != len(stream.columns):
        return whole.drop([name for name in base.columns if name not in stream.columns])
    return whole


def _fetch_arranged(stream: Collection, asking: Asking, state: ArrangedState) -> Collection:
    """From a collection, as of the epoch."""
    for option in ("at", "since", "wait", "by", "idle", "time", "requests", "progress"):
        if getattr(asking, option) is not None:
            raise PlanError(
                "state.at",
                f"cannot {asking.attempt} at {asking.line} with {option}=: a collection has no times but epochs, and "
                "is read as of that of the record",
                hint="leave it out; or keep a state with times: flow.state(...)",
                line=asking.line,
            )
    if stream.scope is not stream._builder.root:
        raise PlanError(
            "plan.in_loop",
            f"cannot {asking.attempt} at {asking.line} inside a loop: join it there",
            hint="stream.join(collection, ...)",
            line=asking.line,
        )
    keys = wanted_columns(asking.key, state.key, stream, asking.attempt, "the key")
    requests, names = _placed(stream, keys, state.key, asking)
    moved = requests._exchanged(tuple(names[name] for name in state.key.names))
    made, taken = _answer_schema(stream, asking, asking.rule, None, state.value)
    port = state.collection._port
    operator = Fetch(
        state=state.name,
        given=moved.schema,
        key=tuple(moved.columns.index(names[name]) for name in state.key.names),
        bounds=Bounds(None, None),
        width=len(stream.columns),
        rule=asking.rule,
        columns=taken,
        store=port.node,
        progress=None,
        inner=asking.inner,
        stream=asking.stream,
    )
    schema = pa.schema([*stream.schema, *made])
    node = stream._builder.add(operator, [moved._port, port], [schema], name=asking.name)
    return Collection(stream._builder, Port(node.node))
