"""Groups: the rows of a collection that agree in a key, and what they amount to.

``agg`` takes aggregates of ours (`frontends.aggregates`), any Polars aggregation, and gives one row a
group; ``top`` gives the first rows of each group, ``apply`` what a Python function makes of it. Each
aggregate is kept in the state that suits it (`engine.operators.aggregates`), all of them read by one
reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from riverrun.errors import PlanError
from riverrun.frontends.arguments import (
    check_callable,
    function_name,
    is_count,
    output_name,
)
from riverrun.frontends.collections import aggregates
from riverrun.frontends.collections.aggregates import Aggregate, Expression, Value
from riverrun.frontends.collections.arithmetic import Arithmetic
from riverrun.frontends.collections.collection import Collection, told
from riverrun.frontends.collections.expressions import check_expressions, compile_columns
from riverrun.frontends.collections.expressions.tree import read, selects
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

_HINT = 'for instance agg(n=rr.count(), total=rr.sum("price"), middle=pl.col("price").median())'

_WIDER = "compute with floats: rr.max(...).cast(pl.Float64) * 4"


@dataclass(frozen=True)
class Grouped:
    """A collection and the columns whose values make its groups."""

    collection: Collection
    key: tuple[str, ...]
    name: str | None = None
    added: tuple[str, ...] = ()
    """The columns of the key that the grouping itself added: selectors in aggregations do not see them."""

    def named(self, name: str) -> Grouped:
        """The same, with a `name` for the state that is kept of it, by which a changed program finds it again."""
        return replace(
            self, name=new_name(name, f"name the state of a group of {self.collection._name}")
        )

    @classmethod
    def of(cls, collection: Collection, key: Mapping[str, Any]) -> Grouped:
        there, attempt = collection.columns, f"group {collection._name}"
        chosen = {
            name: one_column(value, there, attempt, expressions=True) for name, value in key.items()
        }
        made = {
            name: value
            for name, value in chosen.items()
            if not isinstance(value, str) or value != name
        }
        if made:
            collection = collection.with_columns(**made)
        return cls(collection, tuple(key), added=tuple(name for name in made if name not in there))

    def agg(self, *aggregates: Any, **named: Any) -> Collection:
        """One row a group: its key, and these aggregates.

        `aggregates` are of Riverrun (``rr.sum``), of Polars (``pl.col("x").median()``), or computed with both; `named`
        are called as their arguments are.

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
            return self.collection.select(*self.key).distinct(name=self.name)
        building = _Building(self, dict(wanted))
        return building.reduce(self.name)

    def count(self, name: str = "count") -> Collection:
        """How many rows each group has; `name` is that of the column for it."""
        check_count_name(self.collection, name)
        return self.agg(**{name: Aggregate("count")})

    def top(
        self, k: int, by: Any = None, *, descending: bool | Sequence[bool] = True
    ) -> Collection:
        """The first `k` rows of each group in the order of `by`, the largest first unless told otherwise.

        `by` is a column or expression, or several; rows that agree in it are ordered by their other columns.
        `descending` is for all of them, or a list with one for each. Nulls come last either way.

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
        if by is None:
            raise PlanError(
                "plan.column",
                f"cannot take the top {k} rows of each group of {whole._name}: rows have no order of their own",
                hint=f"say by which column: top({k}, by='score'), or by=['day', 'hour']",
            )
        given = checked_columns(
            by, whole.columns, f"order the groups of {whole._name}", expressions=True
        )
        directions = _directions(descending, len(given))
        collection, listed = self._ordered_by(given)
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

    def _ordered_by(self, by: Sequence[Any]) -> tuple[Collection, list[str]]:
        """The collection, with the expressions among `by` as columns of their own, and the names of all."""
        collection, listed = self.collection, []
        made: dict[str, pl.Expr] = {}
        for one in by:
            if isinstance(one, pl.Expr):
                compile_columns(
                    collection.schema, {"by": one}, f"order the groups of {collection._name}"
                )
                name = free_name(f"by_{len(made)}", collection.columns, before=True)
                made[name] = one
                listed.append(name)
            else:
                listed.append(one)
        return collection.with_columns(**made) if made else collection, listed

    def apply(
        self,
        function: Callable[[pl.DataFrame], Any],
        schema: Any,
        *,
        many: bool = False,
    ) -> Collection:
        """What a Python `function` makes of the rows of each group, a Polars frame with all columns.

        It gives a value, a dict, or with `many` any number of rows: a list of them, or a frame; `schema` says which
        columns. It must depend on nothing but the rows, which come in the order of their values.
        """
        check_callable(function, "apply")
        check_flag(many, "many")
        made = as_schema(schema, "declare what a function of a group gives")
        collection = self.collection
        self._check_new(made.names)
        arranged = collection._arranged(self.key)
        given = self._given(collection.schema)
        part = PythonGroups(
            0, made, tuple(given.names), given, function, many, len(self.key),
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
                    f"cannot put an aggregate into {name!r}: that is a column of the key",
                    hint="give it another name",
                    column=name,
                )


def check_count_name(collection: Collection, name: Any) -> None:
    """Refuse a name for a count of rows that is probably meant as the column to count."""
    new_name(name, f"count the rows of {collection._name}")
    if name != "count" and name in collection.columns:
        raise PlanError(
            "plan.count",
            f"cannot count the rows of {collection._name} into {name!r}: that is a column, and count(name) takes the "
            "name of its result",
            hint=f'the rows where it is not null: agg(n=rr.count("{name}")); all rows: count(), or count("n")',
            column=name,
        )


def _directions(descending: Any, columns: int) -> list[bool]:
    """For each column of an order, whether it is descending."""
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
    """What an aggregate given by position is called: as it was named, or after the first column that it is of."""
    if not isinstance(aggregate, Value):
        return output_name(aggregate, "aggregate")
    if aggregate.called is not None:
        return aggregate.called
    if isinstance(aggregate, Expression):
        return _name_of(aggregate.aggregates()[0])
    assert isinstance(aggregate, Aggregate)
    if len(aggregate.columns) != 1:
        return str(aggregate.kind)
    (column,) = aggregate.columns
    return column if isinstance(column, str) else output_name(column, "aggregate")


def _is_no_amount(kind: pa.DataType) -> bool:
    """Whether values are of a type that is never added up."""
    return family(kind) in ("text", "enum", "binary", "list", "struct")


def _aggregated_twice(name: str) -> PlanError:
    return PlanError(
        "plan.column_twice",
        f"cannot aggregate into two columns called {name!r}",
        hint="name them apart: agg(low=rr.min('x'), high=rr.max('x'))",
        column=name,
    )


def _no_aggregate(name: str | None, given: object) -> PlanError:
    return PlanError(
        "plan.aggregate",
        f"cannot aggregate {'' if name is None else f'into {name!r} '}by {show(given)}: it is no aggregate of ours and "
        "no Polars aggregation",
        hint=f"{_HINT}; a Python function of a group goes to group_by(...).apply(function, schema)",
    )


@dataclass
class _Building:
    """The parts of one reduce, while they are collected."""

    grouped: Grouped
    wanted: dict[str, Any]
    """What is kept, by column: aggregates of ours and of Polars."""
    parts: list[GroupPart] = field(default_factory=list)
    inputs: list[Collection] = field(default_factory=list)
    made: list[pa.Field] = field(default_factory=list)

    def reduce(self, name: str | None) -> Collection:
        collection, key = self.grouped.collection, self.grouped.key
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
        text = f"group by {', '.join(key) or 'nothing'}: " + ", ".join(
            f"{column} = {aggregate}" for column, aggregate in self.wanted.items()
        )
        operator = Reduce(key, tuple(self.parts), text)
        found = collection._reduced(operator, self.inputs, pa.schema([*keys, *self.made]), name)
        made, overflows = self._computed(found, results)
        attempt = f"aggregate {collection._name}"
        if not overflows:
            return found._project({**{one: one for one in key}, **made}, attempt)
        names: dict[str, str] = {}
        flags: dict[str, pl.Expr] = {}
        for column, flag in overflows.items():
            name = free_name(f"{column} overflows", [*key, *made, *names])
            names[name] = f"{column} = {results[column][0]} does not fit 64 bits"
            flags[name] = flag
        checked = found._project({**{one: one for one in key}, **made, **flags}, attempt)
        return checked._fitting(names, _WIDER, shown=key)

    def _computed(
        self, found: Collection, results: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, pl.Expr]]:
        """Columns of the result as Polars expressions, and where those that are computed leave their types."""
        computed: dict[str, Any] = {}
        overflows: dict[str, pl.Expr] = {}
        groups: pl.DataFrame | None = None
        for name, result in results.items():
            if isinstance(result, str):
                computed[name] = result
                continue
            aggregate, column = result
            if groups is None:
                groups = pl.DataFrame(pl.from_arrow(empty_batch(found.schema)))
            arithmetic = Arithmetic(groups)
            try:
                computed[name] = arithmetic.made(aggregate, column)
            except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
                raise PlanError(
                    "plan.aggregate",
                    f"cannot compute {aggregate} for column {name!r}: {error}",
                    hint='for instance (rr.sum("price") / rr.count()).round(2)',
                    column=name,
                ) from error
            if arithmetic.overflows:
                overflows[name] = pl.any_horizontal(*arithmetic.overflows)
        return computed, overflows

    def _results(self) -> dict[str, Any]:
        """What the columns of the result are made of: a column, or an expression and where each aggregate of it is.

        The aggregates inside of expressions get columns of their own.
        """
        results: dict[str, Any] = {}
        wanted, self.wanted = self.wanted, {}
        computed = any(isinstance(each, Expression) for each in wanted.values())
        columns: dict[Any, str] = {}
        for name, aggregate in wanted.items():
            if not isinstance(aggregate, Expression):
                self.wanted[name] = aggregate
                if computed:
                    columns.setdefault(_identity(aggregate), name)
        taken = {*self.grouped.key, *wanted}
        for name, aggregate in wanted.items():
            results[name] = name
            if isinstance(aggregate, Expression):
                for inner in aggregate.aggregates():
                    if _identity(inner) not in columns:
                        column = free_name(told(inner), [*taken])
                        taken.add(column)
                        self.wanted[column] = inner
                        columns[_identity(inner)] = column
                results[name] = (aggregate, lambda inner: columns[_identity(inner)])
        return results

    def _check(self) -> None:
        """Refuse what cannot be made, under the names that the user gave."""
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
        """What no column of the key starts with: names of our own do."""
        return free_prefix(self.grouped.key)

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
            if form is None and _is_no_amount(kind):
                raise PlanError(
                    "plan.type",
                    f"cannot aggregate {collection._name} into {column!r}: {aggregate} adds up "
                    f"{type_text(kind)}, which is not a number",
                    hint=f"cast it: rr.{aggregate.kind}({exprs[column]}.cast(pl.Float64)); rr.count, rr.min and rr.max "
                    "take any type",
                    column=column,
                )
            if form is None:  # whatever else Polars can add up, over the whole group
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
        key = self.grouped.key
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
        self.made += fields

    def _ordered(self, column: str, aggregate: Aggregate) -> None:
        key = self.grouped.key
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
        made = pa.field(column, source.schema.field(inner).type)
        part = FirstRows(len(self.inputs), pa.schema([made]), (inner,))
        self._add_part(part, arranged, [made])

    def _distinct(self, column: str, aggregate: Aggregate) -> None:
        made = [pa.field(column, pa.int64())]
        if len(aggregate.columns) == 1:
            source, _ = self._source(aggregate.column, column)
        else:
            # First whether all of them are there, which is what is counted; then what has to differ.
            listed = {
                f"{self._free}{at}": _as_expression(expression)
                for at, expression in enumerate(aggregate.columns)
            }
            there = pl.all_horizontal(*(each.is_not_null() for each in listed.values()))
            valid = pl.when(there).then(True)
            source = self.grouped.collection.select(
                *self.grouped.key, **{f"{self._free}valid": valid}, **listed
            )
        self._add_sums(
            source.distinct(),
            [Amount(len(self.grouped.key), "valid")],
            [("valid", 0, 0)],
            made,
            {},
        )

    def _polars(self) -> None:
        """Whatever else: Polars, over whole groups."""
        collection, key = self.grouped.collection, self.grouped.key
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
            # What a selector stands for depends on the columns that there are: they are the user's, in their order.
            shown = [
                one for one in collection.columns if one in roots or one not in self.grouped.added
            ]
            hidden = tuple(one for one in shown if one in key)
            source = collection._project(
                {one: one for one in dict.fromkeys((*key, *shown))}, attempt
            )
        else:
            needed = [one for one in collection.columns if one in roots and one not in key]
            shown = [*key, *needed]
            source = collection._project({one: one for one in shown}, attempt)
        given = pa.schema([source.schema.field(one) for one in shown])
        frame = pl.DataFrame(pl.from_arrow(empty_batch(given)))
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
        made = as_schema(result.select(*mine).schema, "aggregate")
        part = PolarsGroups(
            len(self.inputs),
            made,
            tuple(shown),
            given,
            tuple(mine.values()),
            hidden,
        )
        self._add_part(part, source._arranged(key), list(made))


_FORMS: dict[Family, str] = {
    "integer": "int",
    "boolean": "int",
    "duration": "duration",
    "decimal": "decimal",
    "float": "float",
}
"""As what values are added up."""


def _form(kind: pa.DataType) -> str | None:
    if pa.types.is_unsigned_integer(kind):
        return "uint"
    what = family(kind)
    if what == "decimal" and kind.bit_width > 128:
        return None
    return _FORMS.get(what)


def _sum_type(kind: pa.DataType, form: str) -> pa.DataType:
    """What sums of a type are: 64 bits, or as many digits as a decimal has at most."""
    if form == "decimal":
        return pa.decimal128(38, kind.scale)
    sums = {"int": pa.int64(), "uint": pa.uint64(), "float": pa.float64(), "duration": kind}
    return sums[form]


def _as_expression(column: Any) -> pl.Expr:
    return pl.col(column) if isinstance(column, str) else column


def _identity(aggregate: Any) -> Any:
    """What is equal for two aggregates that are the same: those are kept once."""
    if not isinstance(aggregate, Aggregate):
        return aggregate.meta.serialize()
    return (
        aggregate.kind,
        tuple(_as_expression(each).meta.serialize() for each in aggregate.columns),
        tuple(_as_expression(each).meta.serialize() for each in aggregate.order),
    )
