"""Groups: the rows of a collection that agree in a key, and results computed for each group.

`Collection.group_by` makes a `Grouped`. Its ``agg`` gives one row for each group: aggregates of ours
(`collections.aggregates`) and any Polars aggregation. ``top`` gives the first rows of each group, and ``apply`` the
results of a Python function of a group.

Cost: each aggregate is kept in the kind of state in which a change costs least (`operators.aggregates`), and one reduce
reads all these states. Polars aggregations and Python functions see the whole group again whenever the group changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from riverrun.attributes import missing_attribute
from riverrun.errors import PlanError
from riverrun.frontends.arguments import (
    check_callable,
    function_name,
    is_count,
    output_name,
)
from riverrun.frontends.collections.aggregates import Aggregate, Expression, Value
from riverrun.frontends.collections.arithmetic import Arithmetic
from riverrun.frontends.collections.derivation import Aggregated, Best, noted
from riverrun.frontends.collections.expressions import check_expressions, compile_columns
from riverrun.frontends.collections.expressions.tree import kind_of, read, selects
from riverrun.frontends.collections.kept import kept_columns
from riverrun.frontends.collections.rows import one_line
from riverrun.frontends.elsewhere import GROUPS
from riverrun.operators.aggregates import SLOT, Amount, Amounts, FirstRows, GroupPart, Sums
from riverrun.operators.groups import PolarsGroups, PythonGroups, group_name, grouped
from riverrun.operators.reduce import Reduce
from riverrun.rows.column_names import checked_columns, flat, is_list, new_name, one_column
from riverrun.rows.schemas import as_schema
from riverrun.rows.types import Family, family
from riverrun.rows.values import show
from riverrun.run.options import check_flag
from riverrun.state import Order
from riverrun.state.schema import free_name, free_prefix
from riverrun.state.types import empty_batch, type_text

if TYPE_CHECKING:
    from riverrun.frontends.collection import Collection

_HINT = 'for instance agg(n=rr.count(), total=rr.sum("price"), middle=pl.col("price").median())'

_WIDER = (
    "compute with floats: rr.max(...).cast(pl.Float64) - rr.min(...).cast(pl.Float64), for instance"
)
_ONE_EACH = 'write an aggregation for each column: agg(a=pl.col("a").sum(), b=pl.col("b").sum())'


@dataclass(frozen=True)
class Grouped:
    """The groups of a collection: rows with equal values in the columns of the key are one group."""

    collection: Collection
    key: tuple[str, ...]
    """The columns of the key as results show them."""
    places: tuple[str, ...]
    """For each column of the key, its column in the collection. A key that is computed under the name of a column lies
    in a column of another name, so that aggregates of that name see the column of the user's rows."""
    name: str | None = None
    added: tuple[str, ...] = ()
    """Columns of the collection that ``group_by`` computed: selectors in aggregations do not see them."""

    def named(self, name: str) -> Grouped:
        """The same groups, with a `name` for the step that keeps their state. A changed program finds the state by that
        name."""
        return replace(
            self, name=new_name(name, f"name the state of a group of {self.collection._name}")
        )

    @classmethod
    def of(cls, collection: Collection, key: Mapping[str, Any]) -> Grouped:
        columns, attempt = collection.columns, f"group {collection._name}"
        chosen = {
            name: one_column(value, columns, attempt, expressions=True)
            for name, value in key.items()
        }
        computed: dict[str, Any] = {}
        places: list[str] = []
        for name, value in chosen.items():
            place = name
            if not isinstance(value, str) or value != name:
                if name in columns:
                    place = free_name(f"key {name}", [*columns, *chosen, *places])
                computed[place] = value
            places.append(place)
        if computed:
            collection = collection.with_columns(**computed)
        return cls(collection, tuple(key), tuple(places), added=tuple(computed))

    def agg(self, *aggregates: Any, **named: Any) -> Collection:
        """One row for each group: the columns of its key, and some aggregates.

        `aggregates` are those of Riverrun (``rr.sum("x")``), aggregations of Polars (``pl.col("x").median()``), or
        expressions of both. The name of a result is that of ``alias``, or else that of the first aggregated column.
        `named` are aggregates too, and the argument's name is the name of the result.

        >>> import polars as pl, riverrun as rr
        >>> sales = rr.Dataflow("s").input("sales", {"item": pl.String, "price": pl.Float64})
        >>> sales.group_by("item").agg(rr.count(), rr.sum("price"), best=rr.max("price")).columns
        ['item', 'count', 'price', 'best']
        """
        wanted = self._wanted(aggregates, named)
        if not wanted and not self.key:
            raise PlanError(
                "plan.aggregate",
                f"cannot aggregate all rows of {self.collection._name} by nothing: no column would be left",
                hint=_HINT,
            )
        if not wanted:
            keys = dict(zip(self.key, self.places, strict=True))
            return self.collection.select(**keys).distinct(name=self.name)
        builder = _ReduceBuilder(self, dict(wanted))
        return builder.reduce(self.name)

    def count(self, name: str = "count") -> Collection:
        """One row for each group, with the number of its rows in a column called `name`."""
        check_count_name(self.collection, name)
        return self.agg(**{name: Aggregate("count")})

    def top(
        self, k: int, by: Any = None, *, descending: bool | Sequence[bool] = True
    ) -> Collection:
        """The first `k` rows of each group in the order of `by`: the largest first, unless `descending` is False.

        `by` is a column or an expression, or several. Rows that agree in `by` are ordered by their other columns.
        `descending` is one value for all of `by`, or a list with a value for each. Nulls come last either way.

        >>> import polars as pl, riverrun as rr
        >>> sales = rr.Dataflow("s").input("sales", {"item": pl.String, "price": pl.Float64})
        >>> sales.group_by("item").top(3, by=pl.col("price").abs()).columns
        ['item', 'price']
        """
        if not is_count(k):
            raise PlanError(
                "plan.k",
                f"cannot take the top {show(k)} rows of a group: that is a whole number from 1 on, below 2**62",
                hint="for instance top(3, by='score')",
            )
        collection_ = self.collection
        self._check_apart(f"take the top {k} rows of each group of {collection_._name}")
        if by is None:
            raise PlanError(
                "plan.column",
                f"cannot take the top {k} rows of each group of {collection_._name}: rows have no order of their own",
                hint=f"say by which column: top({k}, by='score'), or by=['day', 'hour']",
            )
        order_columns = checked_columns(
            by, collection_.columns, f"order the groups of {collection_._name}", expressions=True
        )
        directions = _directions(descending, len(order_columns))
        collection, listed = self._ordered_by(order_columns)
        order = tuple(
            Order(column, down)
            for column, down in zip(listed, directions, strict=True)
            if column not in self.key
        )
        arranged = collection._arranged(self.key, order)
        values = pa.schema([f for f in collection.schema if f.name not in self.key])
        part = FirstRows(0, values, tuple(values.names), k)
        keys = pa.schema([collection.schema.field(column) for column in self.key])
        schema = pa.schema([*keys, *values])
        text = f"top {k} by {', '.join(map(one_line, order_columns))} of each {', '.join(self.key) or 'group'}"
        first_rows = collection._reduced(
            Reduce(self.key, (part,), text), [arranged], schema, self.name
        )
        rest = [column for column in collection_.columns if column not in self.key]
        if k == 1 and len(set(directions)) == 1 and listed[: len(rest)] == rest:
            best = {column: column for column in rest}
            noted(first_rows, Best(collection_, self.key, best, directions[0], whole=True))
        return first_rows.select(*collection_.columns)

    if not TYPE_CHECKING:  # a checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            otherwise = _HINT
            collection = vars(self).get("collection")  # not there yet while a copy is made
            if hasattr(type(collection), name) and name not in GROUPS:
                otherwise = f"groups are no rows yet: agg(...).{name}(...), or count(), top(...), apply(...) before it"
            raise missing_attribute(self, "group", name, GROUPS, otherwise)

    def _ordered_by(self, by: Sequence[Any]) -> tuple[Collection, list[str]]:
        """The collection with a new column for each expression in `by`, and the names of all columns to order by."""
        collection, listed = self.collection, []
        computed: dict[str, pl.Expr] = {}
        for column in by:
            if isinstance(column, pl.Expr):
                compile_columns(
                    collection.schema, {"by": column}, f"order the groups of {collection._name}"
                )
                name = free_name(f"by_{len(computed)}", collection.columns, before=True)
                computed[name] = column
                listed.append(name)
            else:
                listed.append(column)
        return collection.with_columns(**computed) if computed else collection, listed

    def apply(
        self,
        function: Callable[[pl.DataFrame], Any],
        schema: Any,
        *,
        many: bool = False,
        keeps: str | Iterable[str] = (),
    ) -> Collection:
        """The results of a Python `function` of the rows of each group, beside the columns of the key.

        `function` takes the rows as a Polars frame with all columns, in the order of their values. It gives a value or
        a dict for the group; with `many`, any number of rows, as a list or a frame. `schema` declares the columns of
        the result. The result must depend on nothing but the rows.

        `keeps` names columns that the function promises to leave as they are: in all of them together, each row that it
        gives equals a row of the group. An epoch in which a row breaks the promise is refused (``operator.keeps``). The
        key is always kept.
        """
        check_callable(function, "apply")
        check_flag(many, "many")
        result_schema = as_schema(schema, "declare what a function of a group gives")
        collection = self.collection
        self._check_new(result_schema.names)
        self._check_apart(f"apply a function to each group of {collection._name}")
        arranged = collection._arranged(self.key)
        group_schema = self._group_schema(collection.schema)
        part = PythonGroups(
            0, result_schema, tuple(group_schema.names), group_schema, function, many, len(self.key),
            function_name(function), kept_columns(keeps, collection, result_schema, "apply", self.key),
        )  # fmt: skip
        keys = [collection.schema.field(column) for column in self.key]
        text = f"apply {function_name(function)} to each {', '.join(self.key) or 'group'}"
        return collection._reduced(
            Reduce(self.key, (part,), text),
            [arranged],
            pa.schema([*keys, *result_schema]),
            self.name,
        )

    def _group_schema(self, schema: pa.Schema) -> pa.Schema:
        keys = [schema.field(column) for column in self.key]
        return pa.schema([*keys, *(f for f in schema if f.name not in self.key)])

    def _wanted(self, aggregates: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        wanted: dict[str, Any] = {}
        for aggregate in flat(aggregates):
            if not isinstance(aggregate, Value | pl.Expr):
                raise _no_aggregate(None, aggregate)
            name = _name_of(aggregate)
            if name in wanted:
                raise _aggregated_twice(name)
            wanted[name] = aggregate
        for name, aggregate in named.items():
            if not isinstance(aggregate, Value | pl.Expr):
                raise _no_aggregate(name, aggregate)
            if name in wanted:
                raise _aggregated_twice(name)
            wanted[name] = aggregate
        self._check_new(wanted)
        return wanted

    def _check_new(self, names: Any) -> None:
        for name in names:
            if name in self.key:
                raise PlanError(
                    "plan.column_twice",
                    f"cannot put an aggregate into {show(name)}: that is a column of the key",
                    hint="give it another name",
                    column=name,
                )

    def _check_apart(self, attempt: str) -> None:
        """Refuse a computed key with the name of a column, where rows would have both under one name."""
        for name, place in zip(self.key, self.places, strict=True):
            if name != place:
                raise PlanError(
                    "plan.column_twice",
                    f"cannot {attempt}: the key {show(name)} is computed, and the rows have a column {show(name)} of "
                    "their own",
                    hint=f"give the key a name of its own: group_by({name}_key=...)"
                    if name.isidentifier()
                    else 'give the key a name of its own: .alias("key")',
                    column=name,
                )


def check_count_name(collection: Collection, name: Any) -> None:
    """Refuse a name for the number of rows that is a column: the user probably means to count that column."""
    new_name(name, f"count the rows of {collection._name}")
    if name != "count" and name in collection.columns:
        raise PlanError(
            "plan.count",
            f"cannot count the rows of {collection._name} into {show(name)}: that is a column, and count(name) takes "
            "the name of its result",
            hint=f'the rows where it is not null: agg(n=rr.count("{name}")); all rows: count(), or count("n")',
            column=name,
        )


def _directions(descending: Any, columns: int) -> list[bool]:
    """Whether the order is descending, for each of its columns."""
    listed = list(descending) if is_list(descending) else [descending] * columns
    if not all(isinstance(each, bool) for each in listed):
        raise PlanError(
            "plan.descending",
            f"cannot order the rows of a group with descending={show(descending)}: that is True or False, or a list of "
            "them",
            hint="top(3, by=['day', 'hour'], descending=[True, False])",
        )
    if len(listed) != columns:
        raise PlanError(
            "plan.descending",
            f"cannot order the rows of a group by {columns} columns with {len(listed)} directions: "
            f"descending={show(descending)}",
            hint="give one for each column of by=, or one for all",
        )
    return listed


def _name_of(aggregate: Any) -> str:
    """The name of an aggregate given by position: its alias, or else the name of the first aggregated column."""
    if not isinstance(aggregate, Value):
        return output_name(aggregate, "aggregate", _ONE_EACH)
    if aggregate.called is not None:
        return aggregate.called
    if isinstance(aggregate, Expression):
        return _name_of(aggregate.aggregates()[0])
    assert isinstance(aggregate, Aggregate)
    if len(aggregate.columns) != 1:
        return str(aggregate.kind)
    (column,) = aggregate.columns
    return column if isinstance(column, str) else output_name(column, "aggregate", _ONE_EACH)


def _is_no_amount(kind: pa.DataType) -> bool:
    """Whether values of a type can never be added up."""
    return family(kind) in ("text", "enum", "binary", "list", "struct")


def _number_of(aggregate: Aggregate, kind: pa.DataType) -> str:
    """How values that cannot be added up become numbers, as a hint; nothing where there is no one way."""
    what = family(kind)
    is_of_numbers = what == "list" and family(kind.value_type) in ("integer", "float", "decimal")
    if what not in ("text", "enum") and not is_of_numbers:
        return ""
    of = aggregate.column
    text = f'pl.col("{of}")' if isinstance(of, str) else "(...)"
    if isinstance(of, pl.Expr) and of.meta.is_column():
        text = f'pl.col("{of.meta.output_name()}")'
    if what == "enum":  # Polars has no cast of an enum to a float
        return (
            f"its text as a number: rr.{aggregate.kind}({text}.cast(pl.String).cast(pl.Float64)), its place in the "
            f"enum: rr.{aggregate.kind}({text}.to_physical()); "
        )
    if what == "list":
        return f"a number of each list: rr.{aggregate.kind}({text}.list.sum().cast(pl.Float64)); "
    return f"cast it: rr.{aggregate.kind}({text}.cast(pl.Float64)); "


def _aggregated_twice(name: str) -> PlanError:
    return PlanError(
        "plan.column_twice",
        f"cannot aggregate into two columns called {show(name)}",
        hint="name them apart: agg(low=rr.min('x'), high=rr.max('x'))",
        column=name,
    )


def _no_aggregate(name: str | None, value: object) -> PlanError:
    return PlanError(
        "plan.aggregate",
        f"cannot aggregate {'' if name is None else f'into {show(name)} '}by {show(value)}: it is no aggregate of "
        "ours and no Polars aggregation",
        hint=f"{_HINT}; a Python function of a group goes to group_by(...).apply(function, schema)",
    )


@dataclass
class _ReduceBuilder:
    """Builds the reduce of one ``agg``: collects its parts, their inputs, and the columns of its result."""

    grouped: Grouped
    wanted: dict[str, Any]
    """The aggregates that the reduce keeps, of ours and of Polars, by column."""
    parts: list[GroupPart] = field(default_factory=list)
    inputs: list[Collection] = field(default_factory=list)
    result_fields: list[pa.Field] = field(default_factory=list)

    def reduce(self, name: str | None) -> Collection:
        collection, key = self.grouped.collection, self.grouped.places
        shown = dict(zip(self.grouped.key, key, strict=True))
        results = self._results()
        self._check()
        self._linear()
        for column, aggregate in self.wanted.items():
            if isinstance(aggregate, Aggregate):
                if aggregate.kind in ("min", "max", "first", "last"):
                    self._ordered(column, aggregate)
                elif aggregate.kind == "count_distinct":
                    self._distinct(column, aggregate)
        self._polars()
        keys = [collection.schema.field(one) for one in key]
        text = f"group by {', '.join(shown) or 'nothing'}: " + ", ".join(
            f"{column} = {aggregate}" for column, aggregate in self.wanted.items()
        )
        operator = Reduce(key, tuple(self.parts), text)
        reduced = collection._reduced(
            operator, self.inputs, pa.schema([*keys, *self.result_fields]), name
        )
        wanted = {
            column: _kind_and_column(each, reduced.schema.field(column).type)
            for column, each in self.wanted.items()
        }
        noted(reduced, Aggregated(collection, key, wanted))
        columns, overflows = self._computed(reduced, results)
        attempt = f"aggregate {collection._name}"
        if not overflows:
            return reduced._project({**shown, **columns}, attempt)
        names: dict[str, str] = {}
        flags: dict[str, pl.Expr] = {}
        for column, flag in overflows.items():
            name = free_name(f"{column} overflows", [*shown, *columns, *names])
            names[name] = f"{column} = {results[column][0]} does not fit its type"
            flags[name] = flag
        checked = reduced._project({**shown, **columns, **flags}, attempt)
        return checked._fitting(names, _WIDER, shown=tuple(shown))

    def _computed(
        self, reduced: Collection, results: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, pl.Expr]]:
        """The columns of the result as Polars expressions; and the overflow of each column that may leave its type."""
        computed: dict[str, Any] = {}
        overflows: dict[str, pl.Expr] = {}
        groups: pl.DataFrame | None = None
        for name, result in results.items():
            if isinstance(result, str):
                computed[name] = result
                continue
            aggregate, column = result
            if groups is None:
                groups = pl.DataFrame(pl.from_arrow(empty_batch(reduced.schema)))
            arithmetic = Arithmetic(groups)
            try:
                computed[name] = arithmetic.to_polars(aggregate, column)
            except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
                raise PlanError(
                    "plan.aggregate",
                    f"cannot compute {aggregate} for column {show(name)}: {error}",
                    hint='for instance (rr.sum("price") / rr.count()).round(2)',
                    column=name,
                ) from error
            if arithmetic.overflows:
                overflows[name] = pl.any_horizontal(*arithmetic.overflows)
        return computed, overflows

    def _results(self) -> dict[str, Any]:
        """For each column of the result, its source.

        The source of an aggregate is a column of the reduce. The source of an expression of aggregates, which is
        computed behind the reduce, is the expression and a function that gives the column of each aggregate in it.
        These aggregates get columns of their own in the reduce; equal aggregates share a column.
        """
        results: dict[str, Any] = {}
        wanted, self.wanted = self.wanted, {}
        computed = any(isinstance(each, Expression) for each in wanted.values())
        columns: dict[Any, str] = {}
        places = self.grouped.places
        taken = {*places, *wanted}
        for name, aggregate in wanted.items():
            if not isinstance(aggregate, Expression):
                column = free_name(name, taken) if name in places else name
                taken.add(column)
                self.wanted[column] = aggregate
                results[name] = column
                if computed:
                    columns.setdefault(_identity(aggregate), column)
        for name, aggregate in wanted.items():
            if isinstance(aggregate, Expression):
                for inner in aggregate.aggregates():
                    if _identity(inner) not in columns:
                        column = free_name(one_line(inner), [*taken])
                        taken.add(column)
                        self.wanted[column] = inner
                        columns[_identity(inner)] = column
                results[name] = (aggregate, lambda inner: columns[_identity(inner)])
        return {name: results[name] for name in wanted}

    def _check(self) -> None:
        """Refuse aggregates that cannot be computed, in messages with the names that the user gave."""
        collection = self.grouped.collection
        attempt, columns = f"aggregate {collection._name}", collection.columns

        def expressions() -> Iterator[tuple[str, Any]]:
            for column, aggregate in self.wanted.items():
                if not isinstance(aggregate, Aggregate):
                    continue
                for listed in (aggregate.columns, aggregate.order):
                    checked_columns(list(listed), columns, attempt, least=0, expressions=True)
                for at, one in enumerate(aggregate.columns):
                    yield column if not at else f"{column}, {at}", one
                for at, one in enumerate(aggregate.order):
                    yield f"{column}, by {at or ''}".strip(), one

        check_expressions(collection.schema, expressions(), attempt)

    @property
    def _free(self) -> str:
        """A prefix that no column of the key starts with, for names of our own."""
        return free_prefix(self.grouped.places)

    def _source(self, expression: Any, column: str) -> tuple[Collection, str]:
        """The collection with the key and one more column, and the name of that column."""
        collection, key = self.grouped.collection, self.grouped.places
        if isinstance(expression, str) and expression not in key:
            return collection.select(*key, expression), expression
        inner = f"{self._free}{column}"
        return collection.select(
            *key, **{inner: pl.col(expression) if isinstance(expression, str) else expression}
        ), inner

    def _linear(self) -> None:
        """Add the part for all counts, sums and means: they share one state."""
        collection, key = self.grouped.collection, self.grouped.places
        mine = {
            column: aggregate
            for column, aggregate in self.wanted.items()
            if isinstance(aggregate, Aggregate) and aggregate.kind in ("count", "sum", "mean")
        }
        free = self._free
        exprs = {
            column: _as_expression(a.column) for column, a in mine.items() if a.column is not None
        }
        types = (
            compile_columns(collection.schema, exprs, f"aggregate {collection._name}").schema
            if exprs
            else pa.schema([])
        )
        amounts: list[Amount] = []
        results: list[tuple[str, int, int]] = []
        fields: list[pa.Field] = []
        at = len(key)
        used: dict[str, Any] = {}
        scales: dict[int, int] = {}
        for column, aggregate in mine.items():
            if aggregate.column is None:
                results.append(("count", 0, 0))
                fields.append(pa.field(column, pa.int64()))
                continue
            if aggregate.kind == "count":
                used[f"{free}{column}"] = exprs[column]
                amounts.append(Amount(at, "valid"))
                results.append(("valid", len(amounts) - 1, 0))
                fields.append(pa.field(column, pa.int64()))
                at += 1
                continue
            kind = types.field(column).type
            form = _form(kind)
            is_moment = family(kind) in ("date", "time", "timestamp")
            if form is None and (_is_no_amount(kind) or (is_moment and aggregate.kind == "sum")):
                what = "a point in time" if is_moment else "not a number"
                others = "rr.mean takes it; " if is_moment else _number_of(aggregate, kind)
                raise PlanError(
                    "plan.type",
                    f"cannot aggregate {collection._name} into {show(column)}: {aggregate} adds up "
                    f"{type_text(kind)}, which is {what}",
                    hint=f"{others}rr.count, rr.min and rr.max take any type",
                    column=column,
                )
            if form is None:  # other types that Polars can add up are added up over the whole group
                expression = exprs[column]
                self.wanted[column] = (
                    expression.sum() if aggregate.kind == "sum" else expression.mean()
                )
                continue
            used[f"{free}{column}"] = exprs[column]
            amounts.append(Amount(at, form))
            if aggregate.kind == "sum":
                results.append((form, len(amounts) - 1, 0))
                fields.append(pa.field(column, _sum_type(kind, form)))
            else:
                amounts.append(Amount(at, "valid"))
                results.append((f"mean-{form}", len(amounts) - 2, len(amounts) - 1))
                fields.append(pa.field(column, kind if form == "duration" else pa.float64()))
            if form == "decimal":
                scales[amounts.index(Amount(at, form))] = kind.scale
            at += 1
        if results:
            source = collection._project(
                {**{one: one for one in key}, **used}, f"aggregate {collection._name}"
            )
            self._add_sums(source, amounts, results, fields, scales)

    def _add_sums(
        self,
        source: Collection,
        amounts: list[Amount],
        results: list[tuple[str, int, int]],
        fields: list[pa.Field],
        scales: Mapping[int, int],
    ) -> None:
        key = self.grouped.places
        operator = Amounts(tuple(range(len(key))), tuple(amounts))
        columns = [source.schema.field(one) for one in key]
        if amounts:
            columns.append(pa.field(f"{self._free}{SLOT}", pa.int32()))
        stream = source._add(operator, [source], pa.schema(columns))
        part = Sums(len(self.inputs), pa.schema(fields), tuple(results), bool(amounts), scales)
        self._add_part(part, stream._arranged(key, combine=True), fields)

    def _add_part(self, part: GroupPart, arranged: Collection, fields: Sequence[pa.Field]) -> None:
        self.parts.append(part)
        self.inputs.append(arranged)
        self.result_fields += fields

    def _ordered(self, column: str, aggregate: Aggregate) -> None:
        key = self.grouped.places
        descending = aggregate.kind in ("max", "last")
        source, inner = self._source(aggregate.column, column)
        order = [inner]
        if aggregate.order:
            by = {
                f"{self._free}by_{at or ''}{column}": _as_expression(expression)
                for at, expression in enumerate(aggregate.order)
            }
            inner, order = f"{self._free}{column}", list(by)
            source = self.grouped.collection.select(
                *key, **by, **{inner: _as_expression(aggregate.column)}
            )
        arranged = source._arranged(key, tuple(Order(each, descending) for each in order))
        result_field = pa.field(column, source.schema.field(inner).type)
        part = FirstRows(len(self.inputs), pa.schema([result_field]), (inner,))
        self._add_part(part, arranged, [result_field])

    def _distinct(self, column: str, aggregate: Aggregate) -> None:
        result_fields = [pa.field(column, pa.int64())]
        if len(aggregate.columns) == 1:
            source, _ = self._source(aggregate.column, column)
        else:
            # The first column, which is null where any column is, is counted; the others tell rows apart.
            listed = {
                f"{self._free}{at}": _as_expression(expression)
                for at, expression in enumerate(aggregate.columns)
            }
            there = pl.all_horizontal(*(each.is_not_null() for each in listed.values()))
            valid = pl.when(there).then(True)
            source = self.grouped.collection.select(
                *self.grouped.places, **{f"{self._free}valid": valid}, **listed
            )
        self._add_sums(
            source.distinct(),
            [Amount(len(self.grouped.places), "valid")],
            [("valid", 0, 0)],
            result_fields,
            {},
        )

    def _polars(self) -> None:
        """Add the part for all aggregations of Polars: they see whole groups."""
        collection, key = self.grouped.collection, self.grouped.places
        mine = {
            column: aggregate.alias(column)
            for column, aggregate in self.wanted.items()
            if not isinstance(aggregate, Value)
        }
        if not mine:
            return
        attempt = f"aggregate {collection._name}"
        roots = {root for expression in mine.values() for root in expression.meta.root_names()}
        checked_columns(sorted(roots), collection.columns, attempt, least=0)
        hidden: tuple[str, ...] = ()
        if any(selects(read(expression)) for expression in mine.values()):
            # A selector picks among the columns that it is shown, so it is shown all of the user's, in their order.
            shown = [
                one for one in collection.columns if one in roots or one not in self.grouped.added
            ]
            hidden = tuple(one for one in shown if one in self.grouped.key)
            source = collection._project(
                {one: one for one in dict.fromkeys((*key, *shown))}, attempt
            )
        else:
            needed_columns = [one for one in collection.columns if one in roots and one not in key]
            shown = [*key, *needed_columns]
            source = collection._project({one: one for one in shown}, attempt)
        group_schema = pa.schema([source.schema.field(one) for one in shown])
        frame = pl.DataFrame(pl.from_arrow(empty_batch(group_schema)))
        try:
            group = group_name(frame, mine)
            result = grouped(frame, hidden, group, np.zeros(0)).agg(*mine.values())
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise PlanError(
                "plan.expression",
                f"cannot {attempt}: {error}",
                hint="a selector that stands for several columns makes several: give each a name of its own"
                if isinstance(error, pl.exceptions.DuplicateError)
                else _HINT,
            ) from error
        for column, expression in mine.items():
            if column not in result.columns:
                raise PlanError(
                    "plan.expression",
                    f"cannot {attempt} into {show(column)}: the selector in {expression} stands for no column",
                    hint="as in Polars, selectors leave out the columns of the key; name the column: pl.col(...)",
                    column=column,
                )
        result_schema = as_schema(result.select(*mine).schema, "aggregate")
        part = PolarsGroups(
            len(self.inputs),
            result_schema,
            tuple(shown),
            group_schema,
            tuple(mine.values()),
            hidden,
        )
        self._add_part(part, source._arranged(key), list(result_schema))


_FORMS: dict[Family, str] = {
    "integer": "int",
    "boolean": "int",
    "duration": "duration",
    "decimal": "decimal",
    "float": "float",
}
"""The form in which values of a family of types are added up (`operators.aggregates.Amount`)."""


def _form(kind: pa.DataType) -> str | None:
    if pa.types.is_unsigned_integer(kind):
        return "uint"
    what = family(kind)
    if what == "decimal" and kind.bit_width > 128:
        return None
    return _FORMS.get(what)


def _sum_type(kind: pa.DataType, form: str) -> pa.DataType:
    """The type of sums of values of a type: 64 bits wide, or a decimal of 38 digits."""
    if form == "decimal":
        return pa.decimal128(38, kind.scale)
    sums = {"int": pa.int64(), "uint": pa.uint64(), "float": pa.float64(), "duration": kind}
    return sums[form]


def _as_expression(column: Any) -> pl.Expr:
    return pl.col(column) if isinstance(column, str) else column


def _kind_and_column(aggregate: Any, result: pa.DataType) -> tuple[str, Any]:
    """The kind of an aggregate and what it is of, for `Aggregated`.

    The least and the greatest of Polars are ours, but for floats: of these Polars passes over NaN.
    """
    if isinstance(aggregate, Aggregate) and aggregate.kind in ("sum", "min", "max", "count"):
        return aggregate.kind, aggregate.column
    if isinstance(aggregate, Value) or pa.types.is_floating(result):
        return "other", None
    kind, parts = kind_of(read(aggregate))
    if kind == "Alias":
        kind, parts = kind_of(parts[0])
    if kind != "Agg":
        return "other", None
    kind, parts = kind_of(parts)
    of = parts.get("input") if isinstance(parts, dict) else None
    if kind not in ("Min", "Max") or not isinstance(of, dict) or "Column" not in of:
        return "other", None
    return kind.lower(), of["Column"]


def _identity(aggregate: Any) -> Any:
    """A value that is equal for equal aggregates, of which the reduce keeps one."""
    if not isinstance(aggregate, Aggregate):
        return aggregate.meta.serialize()
    return (
        aggregate.kind,
        tuple(_as_expression(each).meta.serialize() for each in aggregate.columns),
        tuple(_as_expression(each).meta.serialize() for each in aggregate.order),
    )
