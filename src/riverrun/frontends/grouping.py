"""Groups: the rows of a collection that agree in a key, and what they amount to.

``agg`` takes aggregates of ours (`frontends.aggregates`), any Polars aggregation, and gives one row a
group; ``top`` gives the first rows of each group, ``apply`` what a Python function makes of it. Each
aggregate is kept in the state that suits it (`engine.operators.aggregates`), all of them read by one
reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from riverrun.engine.operators.aggregates import (
    SLOT,
    Amount,
    Amounts,
    FirstRows,
    Part,
    Sums,
)
from riverrun.engine.operators.groups import PolarsGroups, PythonGroups, group_name
from riverrun.engine.operators.reduce import Reduce
from riverrun.errors import PlanError
from riverrun.frontends import aggregates
from riverrun.frontends.aggregates import Aggregate
from riverrun.frontends.collection import Collection, told
from riverrun.frontends.expressions import compile_columns
from riverrun.frontends.given import (
    check_callable,
    flat,
    function_name,
    is_count,
    named_columns,
    output_name,
)
from riverrun.run.rows import as_schema, as_table
from riverrun.state import Order
from riverrun.state.types import empty_batch

_HINT = 'for instance agg(n=rr.count(), total=rr.sum("price"), middle=pl.col("price").median())'


@dataclass(frozen=True)
class Grouped:
    """A collection and the columns whose values make its groups."""

    collection: Collection
    key: tuple[str, ...]
    name: str | None = None

    def named(self, name: str) -> Grouped:
        """The same, with a name for the state that is kept of it."""
        return replace(self, name=name)

    @classmethod
    def of(cls, collection: Collection, key: Mapping[str, Any]) -> Grouped:
        made = {
            name: value
            for name, value in key.items()
            if not isinstance(value, str) or value != name
        }
        collection._check_columns([name for name in key if name not in made], "group by columns of")
        if made:
            collection = collection.with_columns(**made)
        return cls(collection, tuple(key))

    def agg(self, *aggregates: Any, **named: Any) -> Collection:
        """One row a group: its key, and these aggregates.

        >>> import polars as pl, riverrun as rr
        >>> sales = rr.Dataflow("s").input("sales", {"item": pl.String, "price": pl.Float64})
        >>> sales.group_by("item").agg(rr.count(), rr.sum("price"), best=rr.max("price")).columns
        ['item', 'count', 'price', 'best']
        """
        wanted = self._wanted(aggregates, named)
        if not wanted:
            return self.collection.select(*self.key).distinct(self.name)
        building = _Building(self, wanted)
        return building.reduce(self.name)

    def count(self, name: str = "count") -> Collection:
        """How many rows each group has."""
        return self.agg(**{name: Aggregate("count")})

    def top(self, k: int, by: Any, *, descending: bool = True) -> Collection:
        """The first `k` rows of each group in the order of `by`, the largest first unless told otherwise.

        `by` is a column or expression, or several; rows that agree in it are ordered by their other columns.

        >>> import polars as pl, riverrun as rr
        >>> sales = rr.Dataflow("s").input("sales", {"item": pl.String, "price": pl.Float64})
        >>> sales.group_by("item").top(3, by=pl.col("price").abs()).columns
        ['item', 'price']
        """
        if not is_count(k):
            raise PlanError(
                "plan.k",
                f"cannot take the top {k!r} rows of a group: that is a whole number from 1 on",
                hint="for instance top(3, by='score')",
            )
        whole = self.collection
        given = list(flat([by]))
        collection, listed = self._ordered_by(given)
        inside = [column for column in listed if column not in self.key]
        order = tuple(Order(column, descending) for column in inside)
        arranged = collection._arranged(self.key, order)
        values = pa.schema([f for f in collection.schema if f.name not in self.key])
        part = FirstRows(0, values, tuple(values.names), k)
        keys = pa.schema([collection.schema.field(column) for column in self.key])
        schema = pa.schema([*keys, *values])
        text = f"top {k} by {', '.join(map(told, given))} of each {', '.join(self.key) or 'group'}"
        found = collection._reduced(Reduce(self.key, (part,), text), [arranged], schema, self.name)
        return found.select(*whole.columns)

    if not TYPE_CHECKING:  # a checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            message = f"groups have no attribute {name!r}"
            if name in aggregates.__all__ and name != "Aggregate":
                message += f'\nHint: agg(total=rr.{name}("column"))'
            elif not name.startswith("_"):
                message += f"\nHint: {_HINT}"
            raise AttributeError(message, name=name, obj=self)

    def _ordered_by(self, by: list[Any]) -> tuple[Collection, list[str]]:
        """The collection, with the expressions among `by` as columns of their own, and the names of all."""
        collection, listed = self.collection, []
        made: dict[str, pl.Expr] = {}
        for one in by:
            if isinstance(one, pl.Expr) and one.meta.is_column():
                one = one.meta.output_name()
            if isinstance(one, pl.Expr):
                compile_columns(
                    collection.schema, {"by": one}, f"order the groups of {collection._name}"
                )
                name = f"by_{len(made)}"
                while name in collection.columns:
                    name = f"_{name}"
                made[name] = one
                listed.append(name)
            else:
                collection._check_columns([one], "order the groups of")
                listed.append(one)
        return collection.with_columns(**made) if made else collection, listed

    def apply(
        self,
        function: Callable[[pl.DataFrame], Any],
        schema: Any,
        *,
        many: bool = False,
    ) -> Collection:
        """What a Python function makes of the rows of each group, a Polars frame with all columns.

        It gives a value, a dict, or with `many` any number of rows; `schema` says which columns. It
        must depend on nothing but the rows, which come in the order of their values.
        """
        check_callable(function, "apply")
        made = as_schema(schema, "declare what a function of a group gives")
        collection = self.collection
        self._check_new(made.names)
        arranged = collection._arranged(self.key)
        given = self._given(collection.schema)
        part = PythonGroups(
            0, made, tuple(given.names), given, function, as_table, many, len(self.key),
            function_name(function),
        )  # fmt: skip
        keys = [collection.schema.field(column) for column in self.key]
        text = f"apply {function_name(function)} to each {', '.join(self.key) or 'group'}"
        return collection._reduced(
            Reduce(self.key, (part,), text), [arranged], pa.schema([*keys, *made]), self.name
        )

    def _given(self, schema: pa.Schema) -> pa.Schema:
        keys = [schema.field(column) for column in self.key]
        return pa.schema([*keys, *(f for f in schema if f.name not in self.key)])

    def _wanted(self, aggregates: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        wanted: dict[str, Any] = {}
        for aggregate in flat(aggregates):
            if isinstance(aggregate, Aggregate):
                column = aggregate.column
                if column is None:
                    name = aggregate.kind
                else:
                    (name,) = named_columns([column], {}, "aggregate")
            elif isinstance(aggregate, pl.Expr):
                name = output_name(aggregate, "aggregate")
            else:
                raise _no_aggregate(None, aggregate)
            if name in wanted:
                raise PlanError(
                    "plan.column_twice",
                    f"cannot aggregate into two columns called {name!r}",
                    hint="name them apart: agg(low=rr.min('x'), high=rr.max('x'))",
                    column=name,
                )
            wanted[name] = aggregate
        for name, aggregate in named.items():
            if not isinstance(aggregate, Aggregate | pl.Expr):
                raise _no_aggregate(name, aggregate)
            wanted[name] = aggregate
        self._check_new(wanted)
        return wanted

    def _check_new(self, names: Any) -> None:
        for name in names:
            if name in self.key:
                raise PlanError(
                    "plan.column_twice",
                    f"cannot put an aggregate into {name!r}: that is a column of the key",
                    hint="give it another name",
                    column=name,
                )


def _no_aggregate(name: str | None, given: object) -> PlanError:
    return PlanError(
        "plan.aggregate",
        f"cannot aggregate {'' if name is None else f'into {name!r} '}by {given!r}: it is no aggregate of ours and no "
        "Polars aggregation",
        hint=f"{_HINT}; a Python function of a group goes to group_by(...).apply(function, schema)",
    )


@dataclass
class _Building:
    """The parts of one reduce, while they are collected."""

    grouped: Grouped
    wanted: dict[str, Any]
    parts: list[Part] = field(default_factory=list)
    inputs: list[Collection] = field(default_factory=list)
    made: list[pa.Field] = field(default_factory=list)

    def reduce(self, name: str | None) -> Collection:
        key = self.grouped.key
        self._linear()
        for column, aggregate in self.wanted.items():
            if isinstance(aggregate, Aggregate):
                self._check(column, aggregate)
                if aggregate.kind in ("min", "max", "first", "last"):
                    self._ordered(column, aggregate)
                elif aggregate.kind == "count_distinct":
                    self._distinct(column, aggregate)
        self._polars()
        collection = self.grouped.collection
        keys = [collection.schema.field(one) for one in key]
        text = f"group by {', '.join(key) or 'nothing'}: " + ", ".join(
            f"{column} = {_told(aggregate)}" for column, aggregate in self.wanted.items()
        )
        operator = Reduce(key, tuple(self.parts), text)
        found = collection._reduced(operator, self.inputs, pa.schema([*keys, *self.made]), name)
        return found.select(*key, *self.wanted)

    def _check(self, column: str, aggregate: Aggregate) -> None:
        """Refuse what cannot be made, under the names that the user gave."""
        collection = self.grouped.collection
        made = {column: aggregate.column, f"{column}, by": aggregate.by}
        given = {name: expression for name, expression in made.items() if expression is not None}
        compile_columns(collection.schema, given, f"aggregate {collection._name}")

    @property
    def _free(self) -> str:
        """What no column of the key starts with: names of our own do."""
        free = "_"
        while any(column.startswith(free) for column in self.grouped.key):
            free += "_"
        return free

    def _source(self, expression: Any, column: str) -> tuple[Collection, str]:
        """The collection with the key and one more column."""
        collection, key = self.grouped.collection, self.grouped.key
        if isinstance(expression, str) and expression not in key:
            return collection.select(*key, expression), expression
        inner = f"{self._free}{column}"
        return collection.select(
            *key, **{inner: pl.col(expression) if isinstance(expression, str) else expression}
        ), inner

    def _linear(self) -> None:
        """Counts, sums and means, all in one state."""
        collection, key = self.grouped.collection, self.grouped.key
        mine = {
            column: aggregate
            for column, aggregate in self.wanted.items()
            if isinstance(aggregate, Aggregate) and aggregate.kind in ("count", "sum", "mean")
        }
        free = self._free
        exprs = {
            column: pl.col(a.column) if isinstance(a.column, str) else a.column
            for column, a in mine.items()
            if a.kind != "count"
        }
        for aggregate in mine.values():
            if aggregate.kind != "count" and isinstance(aggregate.column, str):
                collection._check_columns([aggregate.column], "aggregate")
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
        for column, aggregate in mine.items():
            if aggregate.kind == "count":
                results.append(("count", 0, 0))
                fields.append(pa.field(column, pa.int64()))
                continue
            kind = types.field(column).type
            form = _form(kind)
            if form is None:  # decimals, durations: Polars adds them up, over the whole group
                expression = exprs[column]
                self.wanted[column] = (
                    expression.sum() if aggregate.kind == "sum" else expression.mean()
                )
                continue
            used[f"{free}{column}"] = exprs[column]
            amounts.append(Amount(at, form))
            if aggregate.kind == "sum":
                results.append((form, len(amounts) - 1, 0))
                sums = {"int": pa.int64(), "uint": pa.uint64(), "float": pa.float64()}
                fields.append(pa.field(column, sums[form]))
            else:
                amounts.append(Amount(at, "valid"))
                results.append((f"mean-{form}", len(amounts) - 2, len(amounts) - 1))
                fields.append(pa.field(column, pa.float64()))
            at += 1
        if results:
            source = collection.select(*key, **used)
            self._add_sums(source, amounts, results, fields)

    def _add_sums(
        self,
        source: Collection,
        amounts: list[Amount],
        results: list[tuple[str, int, int]],
        fields: list[pa.Field],
    ) -> None:
        key = self.grouped.key
        operator = Amounts(tuple(range(len(key))), tuple(amounts))
        columns = [source.schema.field(one) for one in key]
        if amounts:
            columns.append(pa.field(f"{self._free}{SLOT}", pa.int32()))
        stream = source._add(operator, [source], pa.schema(columns))
        part = Sums(len(self.inputs), pa.schema(fields), tuple(results), bool(amounts))
        self._add_part(part, stream._arranged(key, combine=True), fields)

    def _add_part(self, part: Part, arranged: Collection, fields: Sequence[pa.Field]) -> None:
        self.parts.append(part)
        self.inputs.append(arranged)
        self.made += fields

    def _ordered(self, column: str, aggregate: Aggregate) -> None:
        key = self.grouped.key
        descending = aggregate.kind in ("max", "last")
        source, inner = self._source(aggregate.column, column)
        by = inner
        if aggregate.by is not None:
            expression = aggregate.by
            by = f"{self._free}by_{column}"
            whole = self.grouped.collection
            value = (
                pl.col(aggregate.column) if isinstance(aggregate.column, str) else aggregate.column
            )
            order = pl.col(expression) if isinstance(expression, str) else expression
            inner = f"{self._free}{column}"
            source = whole.select(*key, **{by: order, inner: value})
        arranged = source._arranged(key, (Order(by, descending),))
        made = pa.field(column, source.schema.field(inner).type)
        part = FirstRows(len(self.inputs), pa.schema([made]), (inner,))
        self._add_part(part, arranged, [made])

    def _distinct(self, column: str, aggregate: Aggregate) -> None:
        source, _ = self._source(aggregate.column, column)
        made = [pa.field(column, pa.int64())]
        self._add_sums(
            source.distinct(), [Amount(len(self.grouped.key), "valid")], [("valid", 0, 0)], made
        )

    def _polars(self) -> None:
        """Whatever else: Polars, over whole groups."""
        collection, key = self.grouped.collection, self.grouped.key
        mine = {
            column: aggregate.alias(column)
            for column, aggregate in self.wanted.items()
            if isinstance(aggregate, pl.Expr)
        }
        if not mine:
            return
        roots = {root for expression in mine.values() for root in expression.meta.root_names()}
        collection._check_columns(sorted(roots), "aggregate")
        needed = [one for one in collection.columns if one in roots and one not in key]
        source = collection.select(*key, *needed)
        frame = pl.DataFrame(pl.from_arrow(empty_batch(source.schema)))
        try:
            found = frame.group_by(pl.lit(0).alias(group_name(frame, mine))).agg(*mine.values())
        except pl.exceptions.PolarsError as error:
            raise PlanError(
                "plan.expression",
                f"cannot aggregate {collection._name}: {error}",
                hint=_HINT,
            ) from error
        made = as_schema(found.select(*mine).schema, "aggregate")
        part = PolarsGroups(
            len(self.inputs),
            made,
            tuple(source.columns),
            source.schema,
            tuple(mine.values()),
            as_table,
        )
        self._add_part(part, source._arranged(key), list(made))


def _form(kind: pa.DataType) -> str | None:
    if pa.types.is_unsigned_integer(kind):
        return "uint"
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "int"
    return "float" if pa.types.is_floating(kind) else None


def _told(aggregate: Any) -> str:
    if not isinstance(aggregate, Aggregate):
        return str(aggregate)
    by = "" if aggregate.by is None else f" by {aggregate.by}"
    return f"{aggregate.kind}({'' if aggregate.column is None else aggregate.column}{by})"
