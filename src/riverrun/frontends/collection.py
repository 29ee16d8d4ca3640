"""Collections: rows that change over time, and the methods that make new collections of them.

A :class:`Collection` is a description: it has columns but no rows, and nothing happens until its dataflow runs. Each
method adds nodes to the plan and returns a new collection. A collection is a bag: a row can be there several times.
Columns have names and types; expressions are Polars expressions that look at one row at a time. Law:

- **Oracle.** At each epoch, the rows of a collection are the rows that its program gives when run from scratch on the
  input rows of that epoch (the *oracle* law of ARCHITECTURE). Insertions and deletions are both carried through.

Cost: a method costs nothing before the run. In an epoch, only the rows that changes touch are computed again.

>>> import polars as pl, riverrun as rr
>>> flow = rr.Dataflow("shop")
>>> sales = flow.input("sales", {"item": pl.String, "price": pl.Float64})
>>> dear = (
...     sales.filter(pl.col("price") > 5).group_by("item").agg(n=rr.count(), paid=rr.sum("price"))
... )
>>> dear
<Collection of item: large_string, n: int64, paid: double>
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import polars as pl
import pyarrow as pa

from riverrun.attributes import formerly, missing_attribute
from riverrun.errors import PlanError, users_line
from riverrun.frontends.arguments import (
    MOST,
    RowsOf,
    as_ticks,
    by_one_mapping,
    check_callable,
    function_name,
    is_count,
    is_time,
    named_columns,
    not_a_collection,
    type_in_words,
)
from riverrun.frontends.collections.best import Better
from riverrun.frontends.collections.co_groups import co_group
from riverrun.frontends.collections.delta import iterate_delta
from riverrun.frontends.collections.derivation import Filtered, Unique, United, noted
from riverrun.frontends.collections.expressions import compile_filter
from riverrun.frontends.collections.groups import Grouped
from riverrun.frontends.collections.joins import join
from riverrun.frontends.collections.kept import kept_columns
from riverrun.frontends.collections.loops import iterate
from riverrun.frontends.collections.rows import Rows, clock_port, deepest, one_line
from riverrun.frontends.collections.stopping import Until
from riverrun.frontends.collections.widening import common_kind, widened
from riverrun.frontends.elsewhere import COLLECTION
from riverrun.frontends.shared.fetch import fetch, lookup
from riverrun.frontends.shared.state import State, progress, update
from riverrun.operators.aggregates import Present
from riverrun.operators.arrange import Consolidate
from riverrun.operators.exchange import Exchange
from riverrun.operators.expire import (
    MARKS,
    Due,
    Expire,
    LatestTick,
    Spread,
    Watermark,
    due_name,
)
from riverrun.operators.linear import (
    Concat,
    Explode,
    Filter,
    FlatMap,
    Inspect,
    MapBatches,
    Negate,
    Probe,
    Repeat,
)
from riverrun.operators.loops import PATIENCE
from riverrun.operators.reduce import Reduce
from riverrun.operators.reshape import Fits, Windows
from riverrun.operators.shared.fetch_rules import FetchRule
from riverrun.operators.shared.fetch_rules import Latest as LatestValue
from riverrun.operators.shared.rules import Replace, UpdateRule
from riverrun.plan.plan import PlanBuilder
from riverrun.rows.column_names import checked_columns, flat, is_list, new_name, one_column
from riverrun.rows.schemas import as_schema
from riverrun.rows.values import listed, show
from riverrun.run.options import check_flag
from riverrun.state.types import EnumType, type_text

Column = str | pl.Expr
REPLACE = Replace()
LATEST = LatestValue()


class Collection(Rows):
    """Rows that change, in a dataflow that is being written. Methods make new collections of it."""

    def __repr__(self) -> str:
        shown = listed(f"{field.name}: {type_text(field.type)}" for field in self.schema)
        return f"<Collection of {shown or 'no columns'}>"

    if not TYPE_CHECKING:  # a checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            elsewhere = COLLECTION
            if not name.startswith("_") and name not in COLLECTION and name in self.columns:
                elsewhere = {name: f"in expressions the column is pl.col({name!r})"}
            raise missing_attribute(self, "collection", name, elsewhere)

    def __getitem__(self, key: object) -> NoReturn:
        raise TypeError(
            f"cannot take {key!r} of a collection: it is a description and has no rows yet\n"
            'Hint: select("a", "b") takes columns, filter(pl.col("a") > 1) rows; in expressions a column is pl.col("a")'
        )

    def __len__(self) -> NoReturn:
        raise TypeError(
            "cannot take the length of a collection: it is a description and has no rows yet\n"
            "Hint: count() is a collection of one row, with their number; len(run.read(output)) is a number"
        )

    def __bool__(self) -> NoReturn:
        raise PlanError(
            "plan.collection",
            f"cannot tell whether {self._name} is true: a collection is a description and has no rows yet",
            hint="compare an optional collection with None: `if rows is not None`; rows that are there once there are "
            "some of another collection are a semi_join",
        )

    # -- each row by itself

    def select(self, *columns: Column | Iterable[Column], **named: Any) -> Collection:
        """The same rows with these columns and no others.

        `columns` are names of columns, or expressions of the columns of the same row; an expression may name its result
        by ``alias``. `named` are columns or expressions too, and the argument's name is the name of the result.

        >>> import polars as pl, riverrun as rr
        >>> edges = rr.Dataflow("g").input("edges", {"src": pl.Int64, "dst": pl.Int64})
        >>> edges.select("dst", back="src", sum=pl.col("src") + pl.col("dst")).columns
        ['dst', 'back', 'sum']
        """
        attempt = f"select from {self._name}"
        wanted = named_columns(columns, named, self.columns, "select", attempt)
        if not wanted:
            raise _no_columns(attempt, self.columns)
        return self._project(wanted, attempt)

    def with_columns(self, *columns: Column | Iterable[Column], **named: Any) -> Collection:
        """The same rows with all their columns and more; a new column replaces the column with the same name.

        `columns` and `named` are as in `select`.
        """
        attempt = f"add columns to {self._name}"
        wanted: dict[str, Any] = {name: name for name in self.columns}
        wanted |= named_columns(columns, named, self.columns, "compute", attempt)
        return self._project(wanted, attempt)

    @by_one_mapping
    def rename(self, names: Mapping[str, str], /) -> Collection:
        """The same rows with some columns under new names; `names` maps old names to new ones, as in Polars.

        >>> import polars as pl, riverrun as rr
        >>> edges = rr.Dataflow("g").input("edges", {"src": pl.Int64, "dst": pl.Int64})
        >>> edges.rename({"src": "start"}).columns
        ['start', 'dst']
        """
        attempt, pairs = f"rename columns of {self._name}", list(names.items())
        checked = checked_columns([old for old, _ in pairs], self.columns, attempt, least=0)
        new_names = {
            old: new_name(new, attempt) for old, (_, new) in zip(checked, pairs, strict=True)
        }
        sources: dict[str, str] = {}
        for column in self.columns:
            name = new_names.get(column, column)
            if name in sources:
                raise PlanError(
                    "plan.column_twice",
                    f"cannot {attempt}: two would be called {show(name)}",
                    hint="give each name once",
                    column=name,
                )
            sources[name] = column
        return self._project(sources, attempt)

    def drop(self, *columns: str | Iterable[str]) -> Collection:
        """The same rows without some columns; `columns` are their names."""
        attempt = f"drop columns of {self._name}"
        dropped = {*checked_columns(list(flat(columns)), self.columns, attempt, least=0)}
        remaining = {name: name for name in self.columns if name not in dropped}
        if not remaining:
            raise _no_columns(attempt, self.columns)
        return self._project(remaining, attempt)

    def filter(self, *predicates: pl.Expr | bool | Iterable[pl.Expr], **equal: Any) -> Collection:
        """The rows for which all conditions are true.

        `predicates` are expressions. `equal` gives columns and the values that they have to have: ``filter(k=2)`` is
        ``filter(pl.col("k") == 2)``. As in Polars, a string in `equal` is a value and no column, and a row in which the
        column is null is left out. Nothing equals None, so ``filter(k=None)`` is refused: write
        ``filter(pl.col("k").is_null())``.

        >>> import polars as pl, riverrun as rr
        >>> from riverrun.testing import once
        >>> rows = [{"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": None, "v": 2}]
        >>> once(lambda rows: rows.filter(pl.col("v") > 1, k="b"), rows=rows).rows()
        [('b', 2)]
        """
        attempt = f"filter {self._name}"
        conditions: list[Any] = list(flat(predicates))
        for column, value in equal.items():
            one_column(column, self.columns, attempt)
            kind = self.schema.field(column).type
            if isinstance(kind, EnumType) and isinstance(value, str) and value not in kind.codes:
                raise PlanError(
                    "plan.expression",
                    f"cannot {attempt}: {column}={show(value)} is no category of {type_text(kind)}, so it would keep "
                    "no row",
                    hint=f"its categories: {', '.join(map(show, kind.categories[:9]))}",
                    column=column,
                )
            conditions.append(pl.col(column) == _compared(column, value, attempt))
        if not conditions:
            raise PlanError(
                "plan.expression",
                f"cannot {attempt}: no condition is given",
                hint='for instance filter(pl.col("age") > 17), or filter(name="ann")',
            )
        if len(conditions) > 1:
            for each in conditions:
                compile_filter(self.schema, each, attempt)
        predicate = conditions[0]
        for other in conditions[1:]:
            predicate = predicate & other
        compiled = compile_filter(self.schema, predicate, attempt)
        filtered = self._add(Filter(compiled, one_line(predicate)), [self], self.schema)
        return noted(filtered, Filtered(self, predicate))

    def map_batches(
        self,
        function: Callable[[pl.DataFrame], Any],
        schema: Any,
        *,
        keeps: str | Iterable[str] = (),
    ) -> Collection:
        """The rows that a `function` of whole frames makes: one row for each row, in the same order.

        `function` takes a Polars frame and gives a frame, whose columns `schema` declares. How rows are cut into frames
        is not defined, so what the function makes of a row must not depend on the rows beside it.

        `keeps` names columns that the function promises to leave as they are: row by row, each is the same in the frame
        taken and in the frame given. An epoch in which a row breaks the promise is refused (``operator.keeps``). Rows
        that lie with the workers of these columns then lie there still, so a step behind that needs them there moves
        none.
        """
        check_callable(function, "map_batches")
        result_schema = as_schema(schema, "declare what a function of batches gives")
        operator = MapBatches(
            _over_frames(function),
            self.schema,
            result_schema,
            function_name(function),
            function,
            kept_columns(keeps, self, result_schema, "map_batches"),
        )
        return self._add(operator, [self], result_schema)

    def flat_map(
        self,
        function: Callable[[dict[str, Any]], Any],
        schema: Any,
        *,
        keeps: str | Iterable[str] = (),
    ) -> Collection:
        """The rows that a `function` makes of each row: none, one, or several.

        `function` takes a row as a dict, and gives a list of rows, dicts or tuples. `schema` declares their columns.

        `keeps` names columns that the function promises to leave as they are, in each of the rows that it makes of a
        row. An epoch in which a row breaks the promise is refused (``operator.keeps``). Rows that lie with the workers
        of these columns then lie there still, so a step behind that needs them there moves none.

        >>> import polars as pl, riverrun as rr
        >>> from riverrun.testing import once
        >>> def halves(row):
        ...     return [(row["k"], row["v"] // 2), (row["k"], row["v"] - row["v"] // 2)]
        >>> columns = {"k": pl.String, "v": pl.Int64}
        >>> rows = [{"k": "a", "v": 5}]
        >>> once(lambda rows: rows.flat_map(halves, columns, keeps="k"), rows=rows).rows()
        [('a', 2), ('a', 3)]
        """
        check_callable(function, "flat_map")
        result_schema = as_schema(schema, "declare what a function of rows gives")
        kept = kept_columns(keeps, self, result_schema, "flat_map")
        operator = FlatMap(
            RowsOf(function), self.schema, result_schema, function_name(function), kept
        )
        return self._add(operator, [self], result_schema)

    def explode(self, column: str) -> Collection:
        """One row for each element of a list `column`; an empty or null list gives none."""
        column = one_column(column, self.columns, f"explode {self._name}")
        field = self.schema.field(column)
        kinds = pa.types
        if not (
            kinds.is_list(field.type)
            or kinds.is_large_list(field.type)
            or kinds.is_fixed_size_list(field.type)
        ):
            raise PlanError(
                "plan.type",
                f"cannot explode {show(column)} of {self._name}: it is {field.type}, not a list",
                hint="split a string first: with_columns(words=pl.col('text').str.split(' '))",
                column=column,
            )
        at = self.columns.index(column)
        result_schema = self.schema.set(at, pa.field(column, field.type.value_type))
        return self._add(Explode(at), [self], result_schema)

    def concat(self, *others: Collection | Iterable[Collection]) -> Collection:
        """The rows of this collection and of all `others` together: a union that keeps duplicates.

        All of them have the same columns, in any order; types are widened. Giving a collection k times costs no more
        than giving it once: its rows are there k times as often. A row that would be there 2**63 times or more is
        refused (``operator.overflow``).
        """
        all_others: list[Any] = list(flat(others))
        for (
            other
        ) in others:  # flat() finds nothing in a frame without columns, so frames are refused here
            is_frame = (
                hasattr(other, "columns") or hasattr(other, "schema") or hasattr(other, "dtype")
            )
            if not isinstance(other, Collection) and (is_frame or not is_list(other)):
                raise not_a_collection("plan.concat", f"concat {self._name}", other)
        for other in all_others:  # lists inside lists are refused here
            if not isinstance(other, Collection):
                raise not_a_collection("plan.concat", f"concat {self._name}", other)
        scope = deepest(self, *all_others)
        fields = {field.name: field for field in self.schema}
        repeated = {self._port: 1}
        distinct = [self]
        for other in all_others:
            if sorted(other.columns) != sorted(self.columns):
                raise PlanError(
                    "plan.columns_differ",
                    f"cannot concat {self._name} and {other._name}: their columns are "
                    f"{listed(self.columns)} and {listed(other.columns)}",
                    hint="select the same columns on both sides",
                )
            if other.columns != self.columns:
                other = other.select(*self.columns)
            attempt = f"concat {self._name} and {other._name}"
            for theirs in other.schema:
                mine = fields[theirs.name]
                words = (
                    f"cannot {attempt}: column {theirs.name!r} is ",
                    " in one and ",
                    " in the other",
                )
                kind = common_kind(mine, theirs, words)
                fields[theirs.name] = mine.with_type(kind).with_nullable(
                    mine.nullable or theirs.nullable
                )
            if other._port in repeated:
                repeated[other._port] += 1
            else:
                repeated[other._port] = 1
                distinct.append(other)
        common_fields = [fields[name] for name in self.columns]
        kinds = {field.name: field.type for field in common_fields}
        parts = [
            widened(part._into(scope)._repeated(repeated[part._port]), kinds) for part in distinct
        ]
        if len(parts) == 1 and all_others:
            return parts[0]
        return noted(self._add(Concat(), parts, pa.schema(common_fields)), United(parts))

    def _repeated(self, times: int) -> Collection:
        """Every row, `times` as often."""
        return self if times == 1 else self._add(Repeat(times), [self], self.schema)

    def negate(self) -> Collection:
        """Every row with the opposite count: ``a.concat(b.negate())`` is `a` without the rows of `b`."""
        return self._add(Negate(), [self], self.schema)

    def consolidate(self) -> Collection:
        """The same rows, where equal rows of an epoch are added up: a row that comes and goes in an epoch is
        dropped."""
        moved = self._exchanged(tuple(self.columns), combine=True)
        return moved._add(Consolidate(), [moved], self.schema)

    def inspect(
        self, function: Callable[[pa.RecordBatch], None] | None = None, *, times: bool = True
    ) -> Collection:
        """The same rows, each of which is also shown to a `function` as it passes.

        `function` is called with Arrow record batches: the columns of the rows, `time` and `diff`. Without a function,
        rows are printed. With ``times=False``, batches come without `time` and `diff`, which is quicker. An exception
        of the function refuses the epoch.
        """
        check_flag(times, "times")
        if function is None:
            function = _show
        check_callable(function, "inspect")
        return self._add(Inspect(function, self.schema, times), [self], self.schema)

    def probe(self, name: str) -> Collection:
        """The same rows, and a probe called `name`: ``run.frontier(name)`` tells which times can still arrive here."""
        name = new_name(name, f"put a probe behind {self._name}")
        if ("probe", name) in self._builder.shared:
            raise PlanError(
                "plan.name_taken",
                f"cannot put two probes called {show(name)} into {self._builder.name!r}",
                hint="give another name",
                name=name,
            )
        probed = self._add(Probe(name), [self], self.schema)
        self._builder.shared["probe", name] = probed
        return probed

    # -- windows

    def windows(
        self,
        column: str,
        size: int | timedelta,
        step: int | timedelta | None = None,
        *,
        offset: int | timedelta = 0,
        into: str = "window",
    ) -> Collection:
        """Each row once for every window that its time lies in, with the start of the window.

        `column` has the times. Windows start at the multiples of `step` and last for `size`. Without a `step`, each
        window starts where the one before ends (tumbling); with a `step` smaller than `size`, windows overlap
        (sliding). `offset` moves all starts. `into` names the new column, for the start of the window. A window may end
        after the last value of the column's type; a row in a window that starts before the first value is an error
        (``operator.overflow``).

        Times count from the start of 1970 in UTC, also where timestamps have a time zone. That day was a Thursday, so
        windows of a week start on Thursdays; ``offset=timedelta(days=4)`` moves them to Mondays. For windows of a
        calendar, such as months, or days of a time zone, group: ``group_by(day=pl.col("at").dt.truncate("1d"))``.

        >>> import polars as pl, riverrun as rr
        >>> clicks = rr.Dataflow("g").input("clicks", {"at": pl.Int64, "user": pl.String})
        >>> clicks.windows("at", size=60, step=20).columns
        ['at', 'user', 'window']
        """
        at = self._time_column(column, "make windows")
        new_name(into, f"put the start of windows of {self._name} into a column")
        ticks = as_ticks(size, self.schema.field(at), "the size of a window", most=MOST)
        every = (
            ticks
            if step is None
            else as_ticks(step, self.schema.field(at), "the step of windows", most=MOST)
        )
        shift = as_ticks(
            offset, self.schema.field(at), "the offset of windows", least=None, most=MOST
        )
        if into in self.columns:
            raise PlanError(
                "plan.column_twice",
                f"cannot put the start of windows into {into!r}: {self._name} has such a column",
                hint="name another one: into=...",
                column=into,
            )
        result_schema = self.schema.append(pa.field(into, self.schema.field(at).type))
        return self._add(Windows(at, ticks, every, shift % every), [self], result_schema)

    def expire(
        self,
        column: str | None = None,
        after: int | timedelta | None = None,
        *,
        epochs: int | None = None,
        late: int | timedelta = 0,
        name: str | None = None,
    ) -> Collection:
        """The rows that are not too old: rows leave by themselves.

        By time, ``expire("at", after=span)``: a row leaves when the watermark reaches the sum of its time and `after`.
        The watermark is the greatest time in `column` so far, also of the same epoch, less `late`. The column has whole
        numbers, dates or times. A row that is too old when it comes is never there, and counted in
        ``run.events("late")``. A row without a time is never there either, and counted in ``run.events("no time")``. A
        row whose time and `after` add up to more than 64 bits hold never leaves.

        By epochs, ``expire(epochs=n)``: what was inserted or deleted in an epoch is undone `epochs` epochs later. So a
        row that is deleted when it has left already is there -1 times until then, also behind an input with
        ``checked=True``.

        `name` is what the step is called.
        """
        line = users_line()
        if self.scope is not self._builder.root:
            raise PlanError(
                "plan.in_loop",
                f"cannot expire rows inside a loop ({line})",
                hint="expire the rows before they enter the loop",
                line=line,
            )
        if epochs is not None and column is None and (after is not None or late != 0):
            raise PlanError(
                "plan.expire",
                f"cannot expire rows of {self._name} ({line}) by epochs= and by after= or late=: these are of the "
                "times of a column",
                hint='expire("at", after=3600, late=60) by the times of a column, or expire(epochs=10)',
                line=line,
            )
        if (column is None) == (epochs is None) or (column is not None and after is None):
            raise PlanError(
                "plan.expire",
                f"cannot expire rows of {self._name} ({line}): say after which time of which column, or after how "
                "many epochs",
                hint='expire("at", after=3600) or expire(epochs=10)',
                line=line,
            )
        due = due_name(self.schema)
        due_schema = pa.schema([pa.field(due, pa.int64()), *self.schema])
        if epochs is not None:
            if not is_count(epochs):
                raise PlanError(
                    "plan.expire",
                    f"cannot expire rows after {epochs!r} epochs ({line})",
                    hint="give a whole number from 1 on",
                )
            at, span = None, epochs
            dues = self._add(Due(None, epochs), [self], due_schema)
            ticks = clock(self._builder)
            marks = ticks._add(Spread(), [ticks], MARKS)
        else:
            assert column is not None
            assert after is not None
            at = self._time_column(column, "expire rows")
            field = self.schema.field(at)
            span = as_ticks(after, field, "the time after which rows leave")
            behind = as_ticks(late, field, "how late rows may come", least=0)
            dues = self._add(Due(at, span), [self], due_schema)
            seen = self if self._is_added_up() else self.consolidate()
            latest = seen._add(LatestTick(at, behind), [seen], pa.schema({"mark": pa.int64()}))
            gathered = latest._add(Exchange("one"), [latest], latest.schema)
            marked = None if name is None else f"{name}:watermark"
            marks = gathered._add(Watermark(), [gathered], MARKS, marked)
        rows = dues._exchanged((due,))
        marks_by_shard = marks._exchanged(("shard",))
        return self._add(
            Expire(self._stream_name, at, span), [rows, marks_by_shard], self.schema, name
        )

    def _fitting(self, overflows: Mapping[str, str], hint: str, shown: Sequence[str]) -> Collection:
        """The rows without their last columns, each of which is true where a computation has left its type.

        A row in which one of the last columns is true refuses its epoch. `overflows` has the message for each of the
        last columns, and `shown` the other columns that the message shows of such a row.
        """
        remaining = [column for column in self.columns if column not in overflows]
        assert self.columns == [*remaining, *overflows]
        result_schema = pa.schema([self.schema.field(column) for column in remaining])
        names = tuple(column if column in shown else "" for column in remaining)
        return self._add(Fits(tuple(overflows.values()), hint, names), [self], result_schema)

    # -- whole collections and groups

    def distinct(self, *columns: str | Iterable[str], name: str | None = None) -> Collection:
        """Each row once, however often it is there; or one row for each value of some `columns`.

        Of the rows that agree in `columns`, the least stays: the rest of the columns are compared one after the other.
        `name` is what the step is called, which keeps state.

        >>> import polars as pl, riverrun as rr
        >>> from riverrun.testing import once
        >>> rows = [{"k": 1, "v": "b"}, {"k": 1, "v": "a"}, {"k": 2, "v": "c"}, {"k": 2, "v": "c"}]
        >>> sorted(once(lambda rows: rows.distinct("k"), rows=rows).rows())
        [(1, 'a'), (2, 'c')]
        """
        if columns:
            attempt = f"take distinct rows of {self._name}"
            chosen = checked_columns(list(flat(columns)), self.columns, attempt)
            if len(chosen) < len(self.columns):
                grouped = self.group_by(*chosen)
                rest = [each for each in self.columns if each not in chosen]
                named = grouped if name is None else grouped.named(name)
                return named.top(1, by=rest, descending=False)
        key = tuple(self.columns)
        arranged = self._arranged(key, combine=True)
        operator = Reduce(key, (Present(),), "distinct")
        return noted(self._reduced(operator, [arranged], self.schema, name), Unique(key))

    def group_by(self, *columns: Column | Iterable[Column], **named: Any) -> Grouped:
        """The rows in groups: those that agree in some columns or expressions are one group.

        `columns` and `named` are as in `select`; without any, all rows are one group. Null is a value like any other.
        Aggregates see the columns of the rows: a key that is computed under the name of a column, as in
        ``group_by(pl.col("shop") % 2)``, is shown in the result alone.
        """
        attempt = f"group {self._name}"
        return Grouped.of(self, named_columns(columns, named, self.columns, "group by", attempt))

    def count(self, name: str = "count") -> Collection:
        """One row with the number of rows, in a column called `name`; no row while there are none."""
        return self.group_by().count(name)

    def count_distinct(self, *columns: Column | Iterable[Column]) -> Collection:
        """One row with the number of different rows, or of different combinations of some `columns`.

        Null is a value like any other here; ``rr.count_distinct``, of a group, leaves nulls out.
        """
        if not columns:
            return self.distinct().count()
        attempt = f"count different values of {self._name}"
        return (
            self.select(
                checked_columns(list(flat(columns)), self.columns, attempt, expressions=True)
            )
            .distinct()
            .count()
        )

    def join(
        self,
        other: Collection,
        on: str | Sequence[str] | None = None,
        *,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        how: str = "inner",
        suffix: str = "_right",
    ) -> Collection:
        """Pairs of a row of this collection and a row of the `other` collection with equal keys.

        The key is `on`, one column or several that both collections have; or `left_on` in this collection and
        `right_on` in the other. Null keys match nothing.

        `how` is one of

        - ``inner``: the pairs;
        - ``left``, ``right``, ``full``: also the rows of this collection, of the other, or of both that have no
          partner, filled with nulls;
        - ``semi``: the rows of this collection that have a partner; ``anti``: those that have none;
        - ``cross``: all pairs, without a key.

        The result has the columns of this collection, and then those of the other without its key; a column of the
        other gets the `suffix` where its name is taken. A right join has the columns of this collection without its
        key, and then all columns of the other. In a full join, the key is that of the side that has the row. Semi and
        anti joins have the columns of this collection.

        >>> import polars as pl, riverrun as rr
        >>> flow = rr.Dataflow("g")
        >>> sales = flow.input("sales", {"shop": pl.Int64, "paid": pl.Float64})
        >>> shops = flow.input("shops", {"id": pl.Int64, "city": pl.String})
        >>> sales.join(shops, left_on="shop", right_on="id").columns
        ['shop', 'paid', 'city']
        >>> sales.join(shops, left_on="shop", right_on="id", how="right").columns
        ['paid', 'id', 'city']
        """
        return join(self, other, on, left_on, right_on, how, suffix)

    def semi_join(
        self,
        other: Collection,
        on: str | Sequence[str] | None = None,
        *,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
    ) -> Collection:
        """The rows that have a partner in the `other` collection: ``join(..., how="semi")``.

        `on`, `left_on` and `right_on` are as in `join`.
        """
        return self.join(other, on, left_on=left_on, right_on=right_on, how="semi")

    def anti_join(
        self,
        other: Collection,
        on: str | Sequence[str] | None = None,
        *,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
    ) -> Collection:
        """The rows that have no partner in the `other` collection: ``join(..., how="anti")``.

        `on`, `left_on` and `right_on` are as in `join`.
        """
        return self.join(other, on, left_on=left_on, right_on=right_on, how="anti")

    def co_group(
        self,
        other: Collection,
        on: str | Sequence[str] | None = None,
        function: Callable[[tuple[Any, ...], pl.DataFrame, pl.DataFrame], Any] | None = None,
        schema: Any = None,
        *,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        inner: bool = False,
        keeps: str | Iterable[str] = (),
        name: str | None = None,
    ) -> Collection:
        """The rows that a `function` makes of the two groups that this and the `other` collection have under one key.

        `on`, `left_on` and `right_on` are as in `join`, but null is a key like any other, as in `group_by`. The
        function is called for each key that either collection has; with `inner`, for each that both have. It takes the
        key as a tuple, and the rows of this and of the other collection as Polars frames: with all columns, those of
        the key first, in the order of their values, each row as often as it is there. A side without rows is an empty
        frame. The function gives any number of rows, as a list or a frame; `schema` declares their columns. The result
        has the columns of the key, under the names that they have here, and then those of `schema`. It must depend on
        nothing but the key and the rows. `name` is what the step is called, which keeps state.

        `keeps` names columns of `schema` that the function promises to leave as they are: in all of them together, each
        row that it gives equals a row of its group, of a side that has all of these columns. An epoch in which a row
        breaks the promise is refused (``operator.keeps``). The key is always kept.

        >>> import polars as pl, riverrun as rr
        >>> from riverrun.testing import once
        >>> def unpaid(key, orders, payments):
        ...     missing = orders["price"].sum() - payments["paid"].sum()
        ...     return [(missing,)] if missing > 0 else []
        >>> owed = once(
        ...     lambda orders, payments: orders.co_group(
        ...         payments, "user", unpaid, {"owes": pl.Int64}
        ...     ),
        ...     orders=[
        ...         {"user": "ann", "price": 5},
        ...         {"user": "ann", "price": 2},
        ...         {"user": "bob", "price": 1},
        ...     ],
        ...     payments=[{"user": "ann", "paid": 7}, {"user": "eve", "paid": 3}],
        ... )
        >>> owed.rows()
        [('bob', 1)]
        """
        return co_group(self, other, on, function, schema, left_on, right_on, inner, keeps, name)

    # -- states with times of their own

    def update(
        self,
        state: State,
        *,
        key: Any = None,
        time: Any = None,
        value: Any = None,
        rule: UpdateRule = REPLACE,
        late: int | timedelta = 0,
        by: str | None = None,
        idle: int | None = None,
        progress: bool = True,
    ) -> Collection:
        """Update a `state` (`Dataflow.state`) with these rows; returns these rows.

        `key`, `time` and `value` say which columns or expressions stand for the columns of the state. `key` and `value`
        are one, several in the order of the state's columns, or a mapping by their names. What is left out is taken
        from the columns with the same names. A row with lists in place of values makes an update for each element.

        `rule` says what an update does: ``rr.rules.replace`` replaces the value at its time, ``rr.rules.append`` adds a
        value beside the others, ``rr.rules.add`` adds an increment, and ``rr.rules.update(function)`` calls a function.

        The stream reports its progress to the state: its greatest time so far, less `late`, which is how far an update
        may come behind it. Updates that come later still are dropped and counted (``run.events("late")``). `by` names a
        column that tells sources apart: then each source has a greatest time of its own, and the least of them counts.
        A source that is silent for `idle` epochs does not count. With ``progress=False``, the stream reports nothing:
        use the method `progress` for that.
        """
        return update(
            self, state, key=key, time=time, value=value, rule=rule, late=late, by=by, idle=idle,
            progress=progress,
        )  # fmt: skip

    @formerly(
        read="fetch(...) is committed; to see what there is, fetch_uncommitted(...)",
        wait="fetch(...) waits for all updates up to at=; fetch_uncommitted(..., wait=...) waits for fewer",
    )
    def fetch(
        self,
        state: State,
        *,
        key: Any = None,
        at: Any = None,
        since: Any = None,
        requests: Callable[[dict[str, Any]], Any] | None = None,
        rule: FetchRule = LATEST,
        closed: str = "both",
        how: str = "left",
        time: str | None = None,
        late: int | timedelta = 0,
        by: str | None = None,
        idle: int | None = None,
        progress: bool | None = None,
        name: str | None = None,
        suffix: str = "_right",
    ) -> Collection:
        """These rows, each with the answer of a `state` to it, given when all updates that count for the row are in.

        *What is looked up.* The values of the `key` at times from `since` up to `at`. Whether values at the two bounds
        count is `closed`: "both", "left", "right" or "none". The `rule` makes an answer of them: ``rr.rules.latest``
        takes the latest value, ``rr.rules.within`` all of them (a row for each, with its time), ``rr.rules.distinct``
        all that differ, ``rr.rules.total`` the sum of increments, and ``rr.rules.fetch(function, schema)`` calls a
        function. `time` names a column for the time of the value. Columns of the answer get the `suffix` where a name
        is taken. A row without an answer has nulls; with `how` "inner" instead of "left", the row is left out. `name`
        is what the step is called.

        *When.* A row waits until all updates up to `at` are in, so that its answer never changes (the answer is
        *committed*). When the row is deleted, its answer is taken back. `fetch_uncommitted` does not wait; `lookup`
        asks a collection.

        *Several requests.* A `key` that is a list makes a request for each element. `requests` is a function of a row
        that gives a list of requests: dicts of the key, and of those of `at` and `since` that the fetch has. The
        function has to give the same requests for the same row. The row goes on when all replies are there; the
        columns of the answer are lists then.

        *Progress.* For the sake of compaction, the fetch reports its own progress, with `late`, `by` and `idle` as in
        `update`, unless `progress` is False. A fetch in a loop, or behind another fetch of the same state, cannot
        report: report from a stream before it (`progress`), or nothing is compacted.
        """
        return fetch(
            self, state, committed=True, key=key, at=at, since=since, wait=None, rule=rule, closed=closed, how=how,
            time=time, late=late, by=by, idle=idle, progress=progress, requests=requests, name=name, suffix=suffix,
        )  # fmt: skip

    def fetch_uncommitted(
        self,
        state: State,
        *,
        key: Any = None,
        at: Any = None,
        since: Any = None,
        wait: Any = None,
        requests: Callable[[dict[str, Any]], Any] | None = None,
        rule: FetchRule = LATEST,
        closed: str = "both",
        how: str = "left",
        time: str | None = None,
        late: int | timedelta = 0,
        by: str | None = None,
        idle: int | None = None,
        progress: bool | None = None,
        name: str | None = None,
        suffix: str = "_right",
    ) -> Collection:
        """These rows, each with the answer that a `state` has for it at the moment.

        A row waits for the updates up to the time `wait`; without `wait`, for those up to `since`; with neither, for
        none. Then the row sees what is there, which later updates may still change. The other arguments (`key`, `at`,
        `rule`, `closed`, `how`, `time`, `late`, `by`, `idle`, `progress`, `requests`, `name`, `suffix`) are those of
        `fetch`.

        The answer stays as it was given: an epoch that deletes a row whose answer was given in an earlier epoch is
        refused. A function of `requests` may say `wait` for each request, too.
        """
        return fetch(
            self, state, committed=False, key=key, at=at, since=since, wait=wait, rule=rule, closed=closed, how=how,
            time=time, late=late, by=by, idle=idle, progress=progress, requests=requests, name=name, suffix=suffix,
        )  # fmt: skip

    def lookup(
        self,
        other: Collection,
        on: str | Sequence[str] | None = None,
        *,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        rule: FetchRule = LATEST,
        how: str = "left",
        name: str | None = None,
        suffix: str = "_right",
    ) -> Collection:
        """These rows, each with what the `other` collection has for its key as of the epoch in which the row comes.

        A row keeps the answer that it was given, whatever becomes of the `other` collection later. An epoch that
        deletes a row whose answer was given in an earlier epoch is refused, since that answer is not known any more.
        For an answer that is kept up to date, use `join`.

        `on`, `left_on`, `right_on` and `suffix` are as in `join`. Where several rows of the other collection have the
        key, the `rule` makes an answer of them, as in `fetch`: ``rr.rules.latest`` takes the last in column order,
        ``rr.rules.within`` gives a row for each. A row without an answer has nulls; with `how` "inner", it is left out.
        `name` is what the step is called.

        >>> import polars as pl, riverrun as rr
        >>> flow = rr.Dataflow("shop")
        >>> prices = flow.input("prices", {"item": pl.String, "price": pl.Float64}, key="item")
        >>> orders = flow.input("orders", {"order": pl.Int64, "item": pl.String})
        >>> flow.output("charged", orders.lookup(prices, "item"))
        >>> with flow.run() as run:
        ...     run.upsert("prices", [("rope", 5.0)])
        ...     run.insert("orders", [(1, "rope")])
        ...     run.commit()
        ...     run.upsert("prices", [("rope", 6.0)])
        ...     run.insert("orders", [(2, "rope")])
        ...     run.commit()
        ...     run.read("charged").rows()
        <Commit of epoch 0: done>
        <Commit of epoch 1: done>
        [(1, 'rope', 5.0), (2, 'rope', 6.0)]
        """
        return lookup(self, other, on, left_on, right_on, rule, how, name, suffix)

    def progress(
        self,
        state: State,
        side: str,
        at: Any,
        *,
        late: int | timedelta | None = None,
        by: str | None = None,
        idle: int | None = None,
    ) -> Collection:
        """Report to a `state` that no more updates, or fetches, will come at times before `at`; returns these rows.

        `side` is "update" or "fetch". `at` is a column or expression that only grows. With `late`, it need not: then
        the greatest value so far counts, less `late`. `by` names a column that tells sources apart: then `at` grows
        within each source, and the least of them counts. A source that is silent for `idle` epochs does not count.
        """
        return progress(self, state, side, at, late, by, idle)

    # -- loops

    @formerly(limit="rounds=, the number of rounds after which the loop stops")
    def iterate(
        self,
        body: Callable[..., Any],
        *,
        rounds: int | None = None,
        until: Until = None,
        at: pl.Expr | str | None = None,
        key: str | Sequence[str] | None = None,
        mode: str = "auto",
        spread_over: str = "auto",
        maintain: str = "auto",
        expect: int | None = None,
        name: str | None = None,
        patience: int = PATIENCE,
    ) -> Collection:
        """The result of applying `body` again and again, starting with these rows, until nothing changes any more.

        `body` is a function that takes the collection of one round and returns that of the next, with the same columns.
        It may use any collection from outside, and contain other loops. With `rounds`, it is applied at most so many
        times. A loop without `rounds` that still changes after `patience` rounds is an error. `name` is what the loop
        is called.

        With `until`, the loop ends earlier: ``rr.loops.tolerance("rank", 1e-9)`` ends it when no row of a `key` comes
        or goes, and no rank moves by more; a function of the collections before and after a round ends it when the rows
        that it gives are none; ``rr.loops.unchanged`` is what happens without `until`. `body` may also say so itself:
        it returns a pair, the next round and a collection, and the loop ends when that is empty.

        `mode` says how the loop is run: on ``arrays``, if it spreads a best value along edges or pulls parts along them
        (sums, as in PageRank); by ``rounds``, each computed from scratch; or by ``differential`` dataflow, which keeps
        the changes of every round. ``auto`` takes arrays where it can, rounds where the loop is stopped by `until`, is
        to ``restart`` (`maintain`) or has many rounds (`expect`, about how many there are), and differential dataflow
        otherwise: a change then costs what differs by it. By rounds, and on arrays that pull, the loop runs again in
        each epoch in which one of its inputs changes. On arrays, a loop that spreads runs on ``one`` worker or on
        ``all``, as `spread_over` says; ``auto`` takes what costs less, if it is known how many rows the inputs have
        (`expect` of `flow.input`). The result is the same in every mode.

        With `at`, a column or an expression, the loop starts empty, and each of these rows enters it at the round that
        `at` gives for it. Then `body` takes a second argument, the rows that have entered so far, and has to put them
        into its result. That saves work where the order matters: when small labels enter first, most rows never hear of
        a label that will not stay.

        >>> import polars as pl, riverrun as rr
        >>> from riverrun.testing import once
        >>> def doubled(numbers):
        ...     return numbers.concat(numbers.select(n=pl.col("n") * 2).filter(n=6)).distinct()
        >>> once(lambda numbers: numbers.iterate(doubled), numbers=[{"n": 3}]).rows()
        [(3,), (6,)]
        """
        return iterate(
            self, body, rounds=rounds, until=until, at=at, key=key, mode=mode, spread_over=spread_over,
            maintain=maintain, expect=expect, name=name, patience=patience,
        )  # fmt: skip

    def iterate_delta(
        self,
        workset: Collection,
        *,
        key: str | Sequence[str],
        body: Callable[..., tuple[Collection, Collection]] | None = None,
        send: Callable[..., Collection] | None = None,
        better: Better | pl.Expr | Sequence[pl.Expr] | None = None,
        missing: str = "drop",
        rounds: int | None = None,
        mode: str = "auto",
        spread_over: str = "auto",
        maintain: str = "auto",
        expect: int | None = None,
        name: str | None = None,
        patience: int = PATIENCE,
    ) -> Collection:
        """These rows, one for each `key`, improved round by round by rows that take their place, until none does.

        These rows are the *solution* at the start, and `workset` has the rows that the first round works on. A round
        costs what it changes, where one of `iterate` may have to look at everything. Give one of two functions:

        - ``body(solution, workset)`` returns the delta, which are rows to take the place of rows of the solution, and
          the workset of the next round. Where it makes the workset of its delta, it gets the rows that were accepted.
        - ``send(accepted)`` returns the next workset; the delta is the workset itself. The workset has the columns of
          the solution: messages to keys.

        A row of the delta takes the place of the row with its key if it is `better`: ``rr.loops.least("distance")`` or
        ``rr.loops.greatest("width")``, of columns or expressions; an expression alone, or a list of them, is the same
        as `least` of them. Other columns decide between equally good rows, the smaller first. Without
        `better`, a row takes the place of every other row, and two different rows for one key are an error. A row whose
        key is not in the solution is dropped; with ``missing="add"`` it comes in.

        With `rounds`, there are at most so many rounds. A loop without `rounds` that still changes after `patience`
        rounds is an error. `spread_over`, `maintain` and `expect` are as in `iterate`. `name` is what the loop is
        called.

        `mode` says how the loop is run; the result is the same. In a ``superstep`` all messages of a round are there
        before the next one begins: on arrays, if a best value spreads along edges, and otherwise by rounds, as in
        `iterate`. In ``microstep`` there are no rounds, and the best rows are worked on first, on arrays too. By
        ``differential`` dataflow every loop runs. ``auto`` takes microsteps on arrays where it can, and otherwise what
        `iterate` takes.

        >>> import polars as pl, riverrun as rr
        >>> from riverrun.testing import once
        >>> def distances(roads):
        ...     start = roads.filter(src=1).select(node="src", distance=pl.lit(0)).distinct()
        ...
        ...     def send(near):
        ...         there = near.join(roads, left_on="node", right_on="src")
        ...         return there.select(node="dst", distance=pl.col("distance") + pl.col("length"))
        ...
        ...     least = rr.loops.least("distance")
        ...     return start.iterate_delta(
        ...         send(start), key="node", send=send, better=least, missing="add"
        ...     )
        >>> roads = [
        ...     {"src": 1, "dst": 2, "length": 9},
        ...     {"src": 1, "dst": 3, "length": 2},
        ...     {"src": 3, "dst": 2, "length": 4},
        ... ]
        >>> sorted(once(distances, roads=roads).rows())
        [(1, 0), (2, 6), (3, 2)]
        """
        return iterate_delta(
            self, workset, key, body, send, better, missing, rounds, mode, spread_over, maintain, expect, name, patience
        )  # fmt: skip

    # -- inside

    def _time_column(self, argument: Any, what: str) -> int:
        column = one_column(argument, self.columns, f"{what} of {self._name}")
        kind = self.schema.field(column).type
        if not is_time(kind):
            raise PlanError(
                "plan.type",
                f"cannot {what} by {show(column)} of {self._name}: it is {kind}, not a time or a whole number",
                hint="cast it: with_columns(at=pl.col('at').cast(pl.Int64))",
                column=column,
            )
        return self.columns.index(column)


def clock(builder: PlanBuilder) -> Collection:
    """The clock of a dataflow: a collection with one row for each epoch. A dataflow has one at most."""
    return Collection(builder, clock_port(builder))


def _no_columns(attempt: str, columns: Sequence[str]) -> PlanError:
    return PlanError(
        "plan.column",
        f"cannot {attempt}: no column would be left; there are: {listed(columns) or 'none'}",
        hint="keep one at least; how many rows there are is count()",
    )


def _compared(column: str, value: Any, attempt: str) -> Any:
    """The Polars expression to compare a column with, for a value of `filter(column=value)`."""
    if isinstance(value, pl.Expr):
        return value
    if value is None:
        raise PlanError(
            "plan.expression",
            f"cannot {attempt}: nothing equals None, so {column}=None would keep no row",
            hint=f'filter(pl.col("{column}").is_null())',
            column=column,
        )
    if is_list(value) or isinstance(value, set | frozenset):
        raise PlanError(
            "plan.expression",
            f"cannot {attempt}: {column}={show(value)} is several values, and a column has one in each row",
            hint=f'filter(pl.col("{column}").is_in([...])); a value that is a list is pl.lit([...])',
            column=column,
        )
    try:
        return pl.lit(value)
    except TypeError as error:
        raise PlanError(
            "plan.expression",
            f"cannot {attempt}: {column}={show(value)} is {type_in_words(value)}, not a value of a column",
            hint="give a number, a string, a date, or a Polars expression",
            column=column,
        ) from error


def _over_frames(function: Callable[[pl.DataFrame], Any]) -> Callable[[pa.RecordBatch], Any]:
    return lambda batch: function(pl.DataFrame(pl.from_arrow(batch)))


def _show(rows: pa.RecordBatch) -> None:
    for row in rows.to_pylist():
        print(row)  # noqa: T201
