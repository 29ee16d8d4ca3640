"""Fetching: records ask a state, or another collection, for values, and go on with the answers.

There are three ways to ask: `Collection.fetch` waits for all updates of a state that count, `fetch_uncommitted` takes
what the state has, and `lookup` takes what another collection has as of the epoch.

A *record* is a row of the stream that fetches; a *request* has a key and bounds on time. A record with one request
travels to the worker that owns the key, and goes on from there with the answer. A record with several requests stays
where it is: the requests travel alone, and the replies are gathered with the record (`operators.shared.gather`).

Cost: columns that already are a key or a bound are used as they are, so nothing is computed or sent twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from riverrun.errors import PlanError, SchemaError, users_line
from riverrun.frontends.arguments import (
    as_ticks,
    check_callable,
    is_one_of,
    not_a_collection,
    type_in_words,
)
from riverrun.frontends.collections.expressions import compile_columns
from riverrun.frontends.collections.joins import key_columns
from riverrun.frontends.collections.rows import Rows
from riverrun.frontends.collections.widening import widened
from riverrun.frontends.shared.rules import Span
from riverrun.frontends.shared.state import (
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
from riverrun.operators.shared.fetch import Fetch
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
from riverrun.operators.shared.reach import Bounds
from riverrun.plan.plan import Port
from riverrun.rows.column_names import check_suffix, new_name
from riverrun.rows.types import family
from riverrun.rows.values import show
from riverrun.run.options import check_flag
from riverrun.state.schema import free_name
from riverrun.state.types import share_layout

if TYPE_CHECKING:
    from riverrun.frontends.collection import Collection

_ENDS = {
    "both": (True, True),
    "left": (True, False),
    "right": (False, True),
    "none": (False, False),
}
_AT, _SINCE, _WAIT, _BY = "__at__", "__since__", "__wait__", "__by__"
_BOUND_NAMES = {_AT: "at", _SINCE: "since", _WAIT: "wait"}
"""The names of the bounds for users: as arguments of `fetch`, and in the requests of a user's function."""


@dataclass(frozen=True)
class FetchOptions:
    """The arguments of one fetch, checked and brought to one form."""

    state: State | None
    """None: another collection is asked (`lookup`)."""
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
    """The name of the stream in events and messages while the program runs."""


def fetch(stream: Collection, state: Any, *, committed: bool, **arguments: Any) -> Collection:
    """See `Collection.fetch`, and `Collection.fetch_uncommitted` where it is not `committed`."""
    line = users_line()
    check_state(state, "fetch from")
    for option, choices in (
        ("closed", tuple(_ENDS)),
        ("how", ("left", "inner")),
    ):
        if not is_one_of(arguments[option], choices):
            raise no_choice(
                "fetch from", arguments[option], choices, f"{state.name!r} ({option}=)", line
            )
    _check_rule(arguments["rule"], state.name, state.value, line)
    check_idle(arguments["idle"], line)
    if arguments["progress"] is not None:
        check_flag(arguments["progress"], "progress")
    attempt = f"fetch from {state.name!r} for {stream._name}"
    for bound in ("at", "since", "wait"):
        arguments[bound] = time_column(arguments[bound], stream, attempt)
    if arguments["time"] is not None:
        new_name(arguments["time"], f"{attempt} with time=")
    check_suffix(arguments["suffix"], attempt)
    options = FetchOptions(
        state,
        arguments["key"],
        arguments["at"],
        arguments["since"],
        arguments["wait"],
        arguments["rule"],
        committed,
        _ENDS[arguments["closed"]],
        arguments["how"] == "inner",
        arguments["time"],
        arguments["late"],
        arguments["by"],
        arguments["idle"],
        arguments["progress"],
        arguments["requests"],
        arguments["name"],
        arguments["suffix"],
        line,
        attempt,
        stream._stream_name,
    )
    if stream._builder is not state._builder:
        raise _two_flows(options.attempt)
    with stream._builder.whole_or_not():
        _check_bounds(options, state)
        scope = state.scope if state.scope.is_inside(stream.scope) else stream.scope
        here = stream._into(scope)
        listed = _list_column(here, options, state)
        if options.requests is not None or listed is not None:
            return _fetch_many(here, options, state, listed)
        return _fetch_one(here, options, state)


def _check_rule(rule: Any, name: str, value: pa.Schema, line: str) -> None:
    """Refuse a value that is no rule for a fetch, and a function that would get two columns of one name."""
    if not isinstance(rule, FetchRule):
        raise PlanError(
            "state.rule",
            f"cannot fetch from {name!r} at {line} by {type_in_words(rule)}",
            hint="rr.rules.latest, rr.rules.within, rr.rules.distinct, rr.rules.total, or "
            "rr.rules.fetch(function, schema)",
            line=line,
        )
    if isinstance(rule, FetchFunction) and REQUEST in value.names:
        raise PlanError(
            "state.column",
            f"cannot fetch from {name!r} at {line} by a function: it has a column {REQUEST!r}, which is what the "
            "number of a request is called there",
            hint="rename that column of the state",
            line=line,
        )


def _two_flows(attempt: str) -> PlanError:
    return PlanError(
        "plan.two_flows",
        f"cannot {attempt}: they belong to two dataflows",
        hint="build both on one Dataflow",
    )


def _check_bounds(options: FetchOptions, state: State) -> None:
    compact = state.compact
    if compact is not None and not compact.serves(options.rule.name, options.since is not None):
        raise PlanError(
            "state.compaction",
            f"cannot {options.attempt} at {options.line} by {options.rule.name}: compaction ({compact.name}) would "
            "show in the answers, which need older values than it keeps",
            hint="bound the fetch from below, since=...; rr.rules.keep_latest goes with rr.rules.latest, and "
            "rr.rules.fold with rr.rules.total",
            line=options.line,
        )
    if options.at is None and options.requests is None and options.committed:
        raise PlanError(
            "state.at",
            f"cannot {options.attempt} at {options.line}: it says no time",
            hint='at="column"; or fetch_uncommitted(...) for what is there at the moment',
            line=options.line,
        )


def _list_column(stream: Collection, options: FetchOptions, state: State) -> str | None:
    """The column given as the key, if it is a column of lists: then each element is a request. Else None."""
    key: Any = options.key
    if isinstance(key, Mapping) and len(key) == 1:
        (key,) = key.values()
    if isinstance(key, list | tuple) and len(key) == 1:
        (key,) = key
    if not isinstance(key, str) or len(state.key) != 1 or key not in stream.columns:
        return None
    return key if family(stream.schema.field(key).type) == "list" else None


def _placed(
    stream: Collection, wanted: dict[str, Any], needed: pa.Schema, options: FetchOptions
) -> tuple[Collection, dict[str, str]]:
    """The stream with all the `wanted` keys and bounds as columns, and the name of each of these columns.

    A column that the stream already has, in the needed type, is used as it is.
    """
    compiled = compile_columns(stream.schema, wanted, options.attempt)
    spellings = {
        bound: f"{_BOUND_NAMES[bound]}={show(wanted[bound])}"
        for bound in _BOUND_NAMES
        if bound in wanted
    }
    check_types(compiled.schema, needed, options.attempt, options.line, spellings)
    names, added, taken = {}, {}, list(stream.columns)
    for name, column in wanted.items():
        kind = compiled.schema.field(name).type
        if (
            isinstance(column, str)
            and column in stream.columns
            and share_layout(kind, needed.field(name).type)
        ):
            names[name] = column
        else:
            names[name] = free_name(f"__{name.strip('_')}__", taken)
            taken.append(names[name])
            added[names[name]] = column
    if not added:
        return stream, names
    kinds = {names[name]: needed.field(name).type for name in wanted if names[name] in added}
    return widened(stream.with_columns(**added), kinds), names


def _bounds_wanted(options: FetchOptions, state: State) -> tuple[dict[str, Any], pa.Schema]:
    wanted = {_AT: options.at, _SINCE: options.since, _WAIT: options.wait}
    wanted = {name: bound for name, bound in wanted.items() if bound is not None}
    return wanted, pa.schema([pa.field(name, state.time.type) for name in wanted])


def _answer_schema(
    stream: Collection,
    options: FetchOptions,
    rule: FetchRule,
    time: pa.Field | None,
    value: pa.Schema,
) -> tuple[pa.Schema, tuple[str, ...]]:
    """The columns of answers, under names that the record does not have; and the columns of the state behind them."""
    time_field = None
    if time is not None and (options.rule.timed or options.time is not None):
        time_field = time if options.time is None else pa.field(options.time, time.type)
    fields: list[pa.Field] = []
    try:
        columns = rule.gives(time_field, value)
    except SchemaError as error:
        raise PlanError(
            error.code,
            f"cannot {options.attempt} at {options.line}: {error.message}",
            hint=error.hint,
            line=options.line,
        ) from None
    for field in columns:
        taken_names = [*stream.columns, *(each.name for each in fields)]
        if not options.suffix and field.name in taken_names:
            raise PlanError(
                "plan.column_twice",
                f"cannot {options.attempt} at {options.line}: two columns are called {field.name!r}, and the suffix is "
                "empty",
                hint='give one: suffix="_right"; or select other names',
                line=options.line,
                column=field.name,
            )
        name = free_name(field.name, taken_names, add=options.suffix)
        fields.append(pa.field(name, field.type))
    taken = [] if time_field is None or time is None else [time.name]
    return pa.schema(fields), (*taken, *value.names)


def _fetch_one(stream: Collection, options: FetchOptions, state: State) -> Collection:
    """A fetch with one request for each record: the record itself travels."""
    keys = wanted_columns(options.key, state.key, stream, options.attempt, "the key")
    bounds, needed = _bounds_wanted(options, state)
    by = by_column(options.by, stream, options.line)
    requests, names = _placed(stream, {**keys, **bounds}, pa.schema([*state.key, *needed]), options)
    moved = requests._exchanged(tuple(names[name] for name in state.key.names))
    answer, state_columns = _answer_schema(stream, options, options.rule, state.time, state.value)
    answered = _add_fetch(
        moved, options, state, names, len(stream.columns), options.rule, state_columns,
        pa.schema([*stream.schema, *answer]),
    )  # fmt: skip
    if _AT in names:
        column = moved.columns.index(names[_AT])
        source = None if not by else moved.columns.index(by[_BY])
        _report_fetch(requests, moved, column, source, options, state)
    return answered


def _add_fetch(
    moved: Collection,
    options: FetchOptions,
    state: State,
    names: Mapping[str, str],
    width: int,
    rule: FetchRule,
    state_columns: tuple[str, ...],
    schema: pa.Schema,
) -> Collection:
    at = moved.columns.index
    place = {bound: at(names[bound]) for bound in (_SINCE, _AT, _WAIT) if bound in names}
    waits = place.get(_AT) if options.committed else place.get(_WAIT, place.get(_SINCE))
    past = options.closed[1] if options.committed else True
    bounds = Bounds(place.get(_SINCE), place.get(_AT), options.closed, waits, past)
    operator = Fetch(
        state=state.name,
        requests=moved.schema,
        key=tuple(at(names[name]) for name in state.key.names),
        bounds=bounds,
        width=width,
        rule=rule,
        columns=state_columns,
        store=state._store.node,
        progress=state._progress.node,
        inner=options.inner,
        committed=options.committed,
        early=state.replies_first,
        many=moved.columns[: len(IDS)] == IDS.names,
        compact=state.compact,
        stream=options.stream,
    )
    builder = state._builder
    sides = [moved._at(port)._into(moved.scope)._port for port in (state._store, state._progress)]
    port = builder.add(operator, [moved._port, *sides], [schema], name=options.name)
    return moved._at(port)


def _report_fetch(
    rows: Collection,
    moved: Collection,
    column: int,
    by: int | None,
    options: FetchOptions,
    state: State,
) -> None:
    """Have a fetch report its own progress, where that is possible."""
    possible = moved.scope is state.scope and not state._is_behind(moved)
    if options.progress is False or (options.progress is None and not possible):
        return
    if not possible:
        raise PlanError(
            "state.progress",
            f"cannot report the progress of a fetch from {state.name!r} at {options.line} by itself: its records come "
            "from another fetch of the state, or go around a loop",
            hint='report it from the stream before that: stream.progress(state, "fetch", at=...)',
            line=options.line,
        )
    behind = as_ticks(options.late, state.time, "how late fetches may come", least=0)
    seen = reported_by(rows, moved)
    reports = seen._add(Marks(column, behind, by), [seen], MARKS)
    state._report(reports, Reporter(options.stream, "fetch", False, options.idle))


def _fetch_many(
    stream: Collection, options: FetchOptions, state: State, column: str | None
) -> Collection:
    """A fetch with several requests for each record: the requests travel, and the record waits for all replies."""
    if options.inner:
        raise PlanError(
            "state.how",
            f"cannot {options.attempt} at {options.line} with how='inner': a record with several requests goes on with "
            "lists of replies, null where there is none",
            hint="leave out how=, and filter afterwards",
            line=options.line,
        )
    if not options.committed and stream.scope.depth > state.scope.depth:
        raise PlanError(
            "state.loop",
            f"cannot {options.attempt} at {options.line}: a row makes several uncommitted requests in a loop that the "
            "state is not in; where a round takes back what another round gave, it would not be known which of equal "
            "rows found what",
            hint="fetch(...), whose answers depend on the time of a row alone; or one request a row, and a group_by "
            "behind them; or a state in the loop, loop.state(...)",
            line=options.line,
        )
    bounds, needed = _bounds_wanted(options, state)
    base, names = _placed(stream, bounds, needed, options)
    if column is None:
        requested = {each: _BOUND_NAMES[each] for each in bounds}
        if options.committed:  # each request has its own time, or else the time of the fetch
            requested[_AT] = _BOUND_NAMES[_AT]
        kinds = [pa.field(name, state.time.type) for name in requested.values()]
        request_schema = pa.schema([*state.key, *kinds])
        assert options.requests is not None
        check_callable(options.requests, "fetch")
        bound_columns = tuple((_BOUND_NAMES[each], names[each]) for each in bounds)
        function = Requests(options.requests, bound_columns, tuple(stream.columns))
        make_requests: Requesting = FunctionRequests(function, base.schema, request_schema)
    else:
        kind = base.schema.field(column).type.value_type
        check_types(
            pa.schema([pa.field(state.key.names[0], kind)]),
            state.key,
            options.attempt,
            options.line,
        )
        if not share_layout(kind, state.key.field(0).type):
            wider = free_name(f"__{column}__", base.columns)
            base = widened(
                base.with_columns(**{wider: column}),
                {wider: pa.large_list(state.key.field(0).type)},
            )
            column = wider
        bound_places = tuple(base.columns.index(names[each]) for each in bounds)
        make_requests = ListRequests(base.columns.index(column), bound_places)
        request_schema = pa.schema([*state.key, *needed])
        requested = {each: each for each in bounds}
    requests = base._add(make_requests, [base], pa.schema([*IDS, PLACE, *request_schema]))
    records_schema = pa.schema([*IDS, COUNT, *base.schema])
    records = base._add(dataclasses.replace(make_requests, records=True), [base], records_schema)
    moved = requests._exchanged(tuple(state.key.names))
    rule = options.rule if options.rule.single else Collected(options.rule)
    reply_fields, columns = _answer_schema(base, options, rule, state.time, state.value)
    places = {**{name: name for name in state.key.names}, **requested}
    replies_schema = pa.schema([*IDS, PLACE, *reply_fields])
    replies = _add_fetch(moved, options, state, places, 3, rule, columns, replies_schema)
    ids = tuple(IDS.names)
    gathered = pa.schema(
        [*base.schema, *(pa.field(f.name, pa.large_list(f.type)) for f in reply_fields)]
    )
    gather = Gather(
        state.name, state.scope.depth, records_schema, replies_schema, state.replies_first, options.committed,
    )  # fmt: skip
    sides = [records._exchanged(ids), replies._exchanged(ids)]
    answered = records._add(gather, sides, gathered, options.name and f"{options.name}:gather")
    if _AT in requested:
        by = None
        if options.by is not None:
            raise PlanError(
                "state.by",
                f"cannot tell sources apart in a fetch of several keys at {options.line}",
                hint='report by source explicitly: stream.progress(state, "fetch", at=..., by=...)',
                line=options.line,
            )
        _report_fetch(requests, moved, moved.columns.index(requested[_AT]), by, options, state)
    if len(base.columns) != len(stream.columns):
        return answered.drop([name for name in base.columns if name not in stream.columns])
    return answered


def lookup(
    stream: Collection,
    other: Any,
    on: Any,
    left_on: Any,
    right_on: Any,
    rule: Any,
    how: Any,
    name: str | None,
    suffix: Any,
) -> Collection:
    """See `Collection.lookup`."""
    line = users_line()
    if not isinstance(other, Rows):
        raise not_a_collection("plan.lookup", f"look up rows of {stream._name}", other)
    asked = other._name.strip("'")
    attempt = f"look up rows of {stream._name} in {asked!r}"
    if stream._builder is not other._builder:
        raise _two_flows(attempt)
    if not is_one_of(how, ("left", "inner")):
        raise no_choice("look up", how, ("left", "inner"), f"in {asked!r} (how=)", line)
    check_suffix(suffix, attempt)
    for collection in (stream, other):
        if collection.scope is not collection._builder.root:
            raise PlanError(
                "plan.in_loop",
                f"cannot {attempt} at {line}: {collection._name} is inside a loop, which has no epochs but rounds",
                hint="join there: stream.join(collection, ...)",
                line=line,
            )
    left_key, right_key = key_columns(stream, other, on, left_on, right_on, attempt)
    key = pa.schema([other.schema.field(column) for column in right_key])
    value = pa.schema([field for field in other.schema if field.name not in right_key])
    _check_rule(rule, asked, value, line)
    options = FetchOptions(
        None, None, None, None, None, rule, True, _ENDS["both"], how == "inner", None, 0, None, None, None, None,
        name, suffix, line, attempt, stream._stream_name,
    )  # fmt: skip
    with stream._builder.whole_or_not():
        arranged = other._arranged(right_key)
        keys = dict(zip(right_key, left_key, strict=True))
        requests, names = _placed(stream, keys, key, options)
        moved = requests._exchanged(tuple(names[column] for column in right_key))
        answer, columns = _answer_schema(stream, options, rule, None, value)
        port = arranged._port
        operator = Fetch(
            state=asked,
            requests=moved.schema,
            key=tuple(moved.columns.index(names[column]) for column in right_key),
            bounds=Bounds(None, None),
            width=len(stream.columns),
            rule=rule,
            columns=columns,
            store=port.node,
            progress=None,
            inner=options.inner,
            stream=options.stream,
        )
        schema = pa.schema([*stream.schema, *answer])
        node = stream._builder.add(operator, [moved._port, port], [schema], name=name)
    return stream._at(Port(node.node))
