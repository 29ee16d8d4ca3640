"""The timely front end: operators that users write as classes, and loops that they connect by hand.

A :class:`Vertex` handles rows as they arrive, and is notified when a time is complete. State that a vertex keeps across
epochs is declared as tables. ``flow.vertex`` adds a vertex to a dataflow; its inputs and outputs are collections, so
vertices and methods of collections mix freely. A :class:`Loop` has an entry (`enter`), a way back (`feedback`) and a
way out (`leave`).

>>> import polars as pl, riverrun as rr
>>> class Longest(rr.Vertex):
...     "The longest word of each epoch, once that is complete."
...
...     def start(self):
...         self.best = {}
...
...     def on_recv(self, port, rows, time):
...         if time not in self.best:
...             self.notify_at(time)
...         words = [self.best.get(time, ""), *rows["word"]]
...         self.best[time] = max(words, key=lambda word: (len(word), word))
...
...     def on_notify(self, time):
...         self.send([{"epoch": time[0], "word": self.best.pop(time)}])
>>> flow = rr.Dataflow("words")
>>> words = flow.input("words", {"word": pl.String})
>>> longest = flow.vertex(
...     Longest,
...     {"words": words},
...     {"epoch": pl.Int64, "word": pl.String},
...     routes={"words": rr.TO_ONE},
... )
>>> flow.output("longest", longest)
>>> with flow.run(workers=2) as run:
...     run.insert("words", [("a",), ("heap",), ("of",)])
...     run.commit()
...     run.read("longest").rows()
<Commit of epoch 0: done>
[(0, 'heap')]
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import polars as pl
import pyarrow as pa

from riverrun.attributes import formerly
from riverrun.errors import PlanError, SchemaError, users_line
from riverrun.frontends.arguments import is_count, not_a_collection
from riverrun.frontends.collection import Collection
from riverrun.frontends.collections.loops import passes_no_state, takes_rows_back
from riverrun.frontends.collections.rows import deepest
from riverrun.frontends.collections.widening import widened
from riverrun.frontends.shared.state import INT64, SWEEP, State, add_state
from riverrun.operators.exchange import Exchange
from riverrun.operators.loops import Feedback, Leave
from riverrun.operators.vertex import Table, VertexLink, VertexOperator
from riverrun.plan.plan import PlanBuilder, Port, Scope
from riverrun.progress import Timestamp
from riverrun.rows.column_names import checked_columns, is_list
from riverrun.rows.schemas import as_schema
from riverrun.rows.values import show
from riverrun.state import Schema
from riverrun.state.types import common_type, share_layout


@dataclass(frozen=True)
class Route:
    """How rows travel to the workers where no key decides: to all, to any, or to one."""

    way: str


TO_ALL = Route("all")
TO_ANY = Route("any")
TO_ONE = Route("one")


class Vertex:
    """An operator that a user writes as a class.

    Each worker makes a vertex of its own, and a new one whenever an execution begins: after a failure, a vertex starts
    from its tables, with fresh attributes. So what has to last longer than an epoch belongs into a table. Attributes
    are for what is gone by the end of the epoch, such as rows that wait for a notification.
    """

    deterministic = False
    """Set it to True where results depend neither on how rows are cut nor on the order in which they arrive."""

    _link: VertexLink

    def bind(self, link: VertexLink) -> None:
        """Connect to the engine, which calls this method once, before `start`."""
        self._link = link
        self.start()

    def start(self) -> None:
        """Called once, when the tables hold their state and before any row arrives."""

    def on_recv(self, port: str, rows: pl.DataFrame, time: Timestamp) -> None:
        """Called when `rows` of one `time` have arrived at the input `port`.

        The frame has one column more than the input, `diff`: 1 as a rule, and -1 for a row that is deleted.
        """
        raise PlanError(
            "plan.vertex",
            f"cannot give rows to {type(self).__name__}: it has no method on_recv",
            hint="def on_recv(self, port, rows, time): ...",
        )

    def on_notify(self, time: Timestamp) -> None:
        """Called when `time` is complete: no row at or before it can arrive any more."""

    def send(self, rows: Any, time: Timestamp | None = None, output: str | None = None) -> None:
        """Send `rows` from the `output` of that name, at a `time`.

        The `output` may be left out where there is only one. Without a `time`, rows are sent at the time that is being
        handled; another time is a later round of the same epoch. A Polars frame may have a column `diff`, which says
        how often each row comes (or goes, where it is negative).
        """
        self._link.send(rows, time, output)

    def notify_at(self, time: Timestamp) -> None:
        """Ask for a call of ``on_notify`` when `time` is complete.

        The `time` is the one that is being handled, or a later round of the same epoch.
        """
        self._link.notify_at(time)

    def table(self, name: str) -> Table:
        """The table that was declared under this `name`.

        ``read(keys)`` gives the rows with these keys and ``scan()`` all rows of this worker, as Polars frames;
        ``write(rows)`` puts each row in place of the row with the same key, and ``delete(keys)`` takes rows out.
        """
        tables = self._link.tables
        if name not in tables:
            raise PlanError(
                "plan.vertex",
                f"cannot take table {show(name)} of {type(self).__name__}: declared are: {', '.join(tables) or 'none'}",
                hint="flow.vertex(..., tables={'name': ({'key': pl.Int64}, {'value': pl.Int64})})",
            )
        return tables[name]

    @property
    def worker(self) -> int:
        """The number of this worker."""
        return self._link.worker

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return self._link.workers


def add_vertex(
    builder: PlanBuilder,
    make: Callable[[], Vertex],
    inputs: Mapping[str, Collection],
    outputs: Any,
    routes: Mapping[str, Any] | None,
    tables: Mapping[str, tuple[Any, Any]] | None,
    name: str | None,
) -> Any:
    """See `Dataflow.vertex`."""
    line = users_line()
    _check_mapping(inputs, "inputs", "{'rows': collection}")
    if routes is not None:
        _check_mapping(routes, "routes", "{'rows': 'column'}")
    if tables is not None:
        _check_mapping(tables, "tables", _TABLES)
        for table, columns in tables.items():
            _check_table(table, columns)
    if not inputs or not _is_callable(make):
        raise PlanError(
            "plan.vertex",
            f"cannot add a vertex at {line}: give a class of vertices, and at least one input",
            hint="flow.vertex(MyVertex, {'rows': collection}, {'column': pl.Int64})",
            line=line,
        )
    if inspect.isclass(make) and issubclass(make, Vertex) and make.on_recv is Vertex.on_recv:
        raise PlanError(
            "plan.vertex",
            f"cannot add a vertex at {line}: {make.__name__} has no method on_recv",
            hint="def on_recv(self, port, rows, time): ...",
            line=line,
        )
    for port, collection in inputs.items():
        if not isinstance(collection, Collection):
            raise not_a_collection("plan.vertex", f"connect input {port!r} of a vertex", collection)
    scope = deepest(*inputs.values())
    several = (
        isinstance(outputs, Mapping)
        and bool(outputs)
        and all(isinstance(value, Mapping | pa.Schema) for value in outputs.values())
    )
    declared = outputs if several else {"out": outputs}
    schemas = _output_schemas(declared, several)
    for port in routes or {}:
        if port not in inputs:
            raise PlanError(
                "plan.port",
                f"cannot route {port!r} at {line}: the inputs are: {', '.join(inputs)}",
                hint="routes={'input': 'column'}",
                line=line,
            )
    ports = []
    for port, collection in inputs.items():
        entered = collection._into(scope)
        ports.append(_routed(entered, (routes or {}).get(port), port, line)._port)
    table_schemas = {
        table: Schema.of(
            as_schema(key, f"declare the key of table {table!r}"),
            as_schema(value, f"declare the rows of table {table!r}"),
        )
        for table, (key, value) in (tables or {}).items()
    }
    ways = [(routes or {}).get(port) for port in inputs]
    central = all(isinstance(way, Route) and way == TO_ONE for way in ways)
    if not central:
        for table, schema in table_schemas.items():
            _check_met(table, schema, inputs, routes or {}, line)
    operator = VertexOperator(
        make,
        tuple(inputs),
        tuple(collection.schema for collection in inputs.values()),
        tuple(schemas),
        table_schemas,
        getattr(make, "__qualname__", type(make).__name__),
        not getattr(make, "deterministic", False),
        central=central,
    )
    node = builder.add(operator, ports, list(schemas.values()), scope=scope, name=name).node
    collections = {output: Collection(builder, Port(node, at)) for at, output in enumerate(schemas)}
    return collections if several else collections["out"]


def _output_schemas(declared: Mapping[str, Any], several: bool) -> dict[str, pa.Schema]:
    try:
        return {o: as_schema(s, f"declare output {o!r} of a vertex") for o, s in declared.items()}
    except SchemaError as error:
        one = next(iter(declared.values()))
        texts = [k for k, v in one.items() if _is_phrase(v)] if isinstance(one, Mapping) else []
        if several or not texts:
            raise
        name = texts[0]
        raise SchemaError(
            error.code,
            f"{error.message}. A mapping of names to text is one output, with these columns",
            hint=f"several outputs have a mapping each: {{{name!r}: {{'n': 'long'}}}}; text for all columns of one "
            "output stands alone: 'n long, word string'",
            **error.fields,
        ) from error


def _is_phrase(value: Any) -> bool:
    """Whether a value is text of several words, as columns are and the name of a type is not."""
    return isinstance(value, str) and len(value.split()) > 1


_TABLES = "{'counts': ({'word': pl.String}, {'n': pl.Int64})}"


def _check_mapping(argument: Any, option: str, form: str) -> None:
    if not isinstance(argument, Mapping):
        raise PlanError(
            "plan.vertex",
            f"cannot add a vertex with {option}={show(argument)}: that is a mapping, by name",
            hint=f"{option}={form}",
        )


def _check_table(name: str, columns: Any) -> None:
    if not isinstance(columns, tuple | list) or len(columns) != 2:
        raise PlanError(
            "plan.vertex",
            f"cannot keep table {name!r} of {show(columns)}: a table is its key and its other columns",
            hint=f"tables={_TABLES}",
        )


def _check_met(
    table: str,
    schema: Schema,
    inputs: Mapping[str, Collection],
    routes: Mapping[str, Any],
    line: str,
) -> None:
    """Refuse a table whose keys could be on a worker that does not own them."""
    key_types = [field.type for field in schema.key]
    for port, route in routes.items():
        if not isinstance(route, Route):
            key = _route_key(inputs[port], route, port, line)
            routed_types = [inputs[port].schema.field(column).type for column in key]
            if len(routed_types) == len(key_types) and all(
                map(share_layout, routed_types, key_types)
            ):
                return
    raise PlanError(
        "plan.table",
        f"cannot keep table {table!r} at {line}: its key is {', '.join(schema.key.names)}, and no input is routed by "
        "such columns; a table is split among workers by its key, so rows of one key have to meet there",
        hint="routes={'input': 'column'} with the columns of the key, or rr.TO_ONE for all inputs",
        line=line,
    )


def _is_callable(value: object) -> bool:
    return callable(value)


def _routed(collection: Collection, route: Any, port: str, line: str) -> Collection:
    if route is None:
        return collection
    if isinstance(route, Route):
        return collection._add(Exchange(route.way), [collection], collection.schema)
    return collection._exchanged(_route_key(collection, route, port, line))


def _route_key(collection: Collection, route: Any, port: str, line: str) -> tuple[str, ...]:
    """The columns by which a route sends rows."""
    if not isinstance(route, str | pl.Expr) and not is_list(route):
        raise PlanError(
            "plan.route",
            f"cannot route {port!r} by {show(route)} at {line}",
            hint="a route is a column, several columns, rr.TO_ALL, rr.TO_ANY or rr.TO_ONE",
            line=line,
        )
    return checked_columns(route, collection.columns, f"route {port!r} of {collection._name}")


class Loop:
    """A loop made by hand: rows enter, go back to its start, and leave.

    Inside a loop, timestamps have one more coordinate at their end, the round. Rows enter at round 0; whenever they go
    back, the round grows by one.
    """

    def __init__(self, builder: PlanBuilder, parent: Scope, name: str | None) -> None:
        self._builder = builder
        self._parent = parent
        self.scope = builder.loop(parent, name)

    def enter(self, collection: Collection) -> Collection:
        """The rows of a `collection` from outside, at round 0."""
        if not isinstance(collection, Collection):
            raise not_a_collection("plan.loop", "enter a loop", collection)
        return collection._into(self.scope)

    @formerly(limit="rounds=, as in iterate(rounds=)")
    def feedback(self, schema: Any, rounds: int | None = None) -> Back:
        """The rows that come back from the round before: a collection with the columns of `schema`.

        The rows that go back are named later, when they have been computed: ``back.connect(collection)``. With
        `rounds`, rows go back at most so many times.
        """
        columns = as_schema(schema, "declare what goes back in a loop")
        if rounds is not None and not is_count(rounds, 0):
            raise PlanError(
                "plan.rounds",
                f"cannot go back with rounds={show(rounds)}: that is a whole number from 0 on",
                hint="leave it out to go on until nothing comes back",
            )
        port = self._builder.add(Feedback(rounds), [], [columns], scope=self.scope)
        return Back(self._builder, port)

    def state(
        self,
        name: str,
        key: Any,
        value: Any,
        *,
        time: Any = INT64,
        start: Any = None,
        compact: Any = None,
        compaction: str = "lazy",
        sweep: int = SWEEP,
        accelerate: bool = True,
        replies_first: bool = True,
    ) -> State:
        """A state inside the loop, for programs in which fetches from a state lead to updates of the same state.

        All arguments (`name`, `key`, `value`, `time`, `start`, `compact`, `compaction`, `sweep`, `accelerate`,
        `replies_first`) are those of `Dataflow.state`.

        Updates and reports of progress that come from a fetch of the state go back to the state by themselves, one
        round later. A fetch that waits is answered in the round in which the updates that it waits for are in.
        """
        return add_state(
            Collection, self._builder, self.scope, name, key, value, time, start, compact, compaction,
            sweep, accelerate, replies_first,
        )  # fmt: skip

    def leave(self, collection: Collection) -> Collection:
        """The rows of a `collection` inside the loop, outside of it: as they are after the last round.

        The changes of all rounds are added up, without their rounds.
        """
        if not isinstance(collection, Collection):
            raise not_a_collection("plan.loop", "leave a loop", collection)
        port = self._builder.add(
            Leave(), [collection._into(self.scope)._port], [collection.schema], scope=self._parent
        )
        return Collection(self._builder, port)


class Back(Collection):
    """The rows that come back to the start of a loop: the result of `Loop.feedback`."""

    def connect(self, collection: Collection) -> Self:
        """Say which rows go back: those of `collection`.

        A row and its deletion that go around together would go around for ever. So equal rows are added up before they
        go back, as in ``iterate``, where some way around the loop keeps no state and something in the loop takes rows
        back (a negation, a group). Rows that go through a vertex go back as the vertex sends them.
        """
        if not isinstance(collection, Collection):
            raise not_a_collection("plan.loop", "go back in a loop", collection)
        fits_here = self.columns == collection.columns and all(
            share_layout(common_type(mine.type, its.type) or pa.null(), mine.type)
            for mine, its in zip(self.schema, collection.schema, strict=True)
        )
        if not fits_here:
            raise PlanError(
                "plan.columns_differ",
                f"cannot go back with {collection!r}: the loop declared {self!r}",
                hint="select the declared columns",
            )
        collection = widened(collection, {field.name: field.type for field in self.schema})
        nodes, end = self._builder.nodes, collection._port.node
        cancels = takes_rows_back(nodes, end, self.scope)
        if cancels and passes_no_state(nodes, end, self._port.node, by_hand=True):
            collection = collection._added_up_by_row()
        self._builder.close(self._port, collection._port)
        return self

    def _at(self, port: Port, keyed: tuple[str, ...] | None = None) -> Any:
        """What is made of these rows is a plain collection, which cannot be connected."""
        return Collection(self._builder, port, keyed)
