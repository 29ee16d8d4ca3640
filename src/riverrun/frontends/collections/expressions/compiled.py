"""The compiled forms of expressions: a `Projection` makes columns, a `Predicate` chooses rows.

The operators of ``select``, ``with_columns`` and ``filter`` hold these forms. When an expression is compiled, the
cheapest way to its result is chosen from four, once and for batches of every size:

- a column that the expression only names or renames is passed on as it is;
- a constant is worked out once, and repeated for each row;
- a simple expression becomes a few NumPy calls (`direct`);
- every other expression goes to Polars. For each batch one call of Polars computes all such results of a projection.

An expression that is not row-wise is refused (`rowwise`).

>>> schema = pa.schema({"a": pa.int64(), "b": pa.int64()})
>>> projection = compile_columns(schema, {"b": "b", "next": pl.col("a") + 1}, "select from 'rows'")
>>> [each.to_pylist() for each in projection.apply([pa.array([1, 2]), pa.array([3, 4])], 2)]
[[3, 4], [2, 3]]

Cost: the package says what each way costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from riverrun.errors import PlanError, SchemaError
from riverrun.frontends.collections.expressions.direct import direct
from riverrun.frontends.collections.expressions.rowwise import check, check_steady
from riverrun.frontends.collections.expressions.tree import Node, kind_of, read, too_deep
from riverrun.interrupts import exposed
from riverrun.plan.identity import left_out
from riverrun.rows.column_names import unknown_column
from riverrun.rows.schemas import arrow_type
from riverrun.rows.values import listed, show
from riverrun.state.columns import as_column
from riverrun.state.schema import declared_column
from riverrun.state.types import canonical, encode, has_enums, shown_type

__all__ = [
    "Predicate",
    "Projection",
    "canonical",
    "check_expressions",
    "compile_columns",
    "compile_filter",
]

Mask: TypeAlias = npt.NDArray[np.bool_]
Maker: TypeAlias = Callable[[Sequence[pa.Array], int], pa.Array]

_TWICE = as_column(np.zeros(2, np.int64))
_STRINGS = "name one of the columns; a string is always the name of a column, pl.lit(...) a value"

# Polars raises all of these; a panic is not even an Exception.
_FAILURES = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    pa.ArrowException,
    TypeError,
    ValueError,
)


class Projection:
    """Columns made of columns, row by row. Build it with `compile_columns`."""

    schema: pa.Schema
    """The columns of the results. A column that is only picked keeps its declared type."""
    sources: tuple[int, ...] | None
    """The picked column of each result, if every result is a picked column; else None."""
    picked: tuple[int | None, ...]
    """For each result, the column that it picks, or None for a computed result."""
    used: tuple[int, ...]
    """The columns that the expressions look at. For any other column `apply` may be called with None."""

    def __init__(
        self, arguments: tuple[Any, ...], parts: Sequence[_Part], schema: pa.Schema
    ) -> None:
        self._arguments = arguments
        self.schema = pa.schema([part.field for part in parts])
        self.used = tuple(sorted({at for part in parts for at in part.used}))
        self.picked = tuple(part.source for part in parts)
        sources = tuple(source for source in self.picked if source is not None)
        self.sources = sources if len(sources) == len(parts) else None
        self._makers = [part.make for part in parts]
        self._polars = _Select([part for part in parts if part.make is None], schema)
        self._empty = tuple(pa.nulls(0, canonical(f.type, f.name)) for f in self.schema)

    def apply(self, columns: Sequence[pa.Array], rows: int) -> tuple[pa.Array, ...]:
        """The results for columns of `rows` rows each."""
        if self.sources is not None:
            return tuple([columns[at] for at in self.sources])
        if not rows:
            return self._empty
        if not self._polars.parts:
            return tuple([make(columns, rows) for make in self._makers if make])
        computed = iter(self._polars.arrays(columns, rows))
        return tuple([make(columns, rows) if make else next(computed) for make in self._makers])

    @property
    def exactly(self) -> str:
        """A word, for the identity of a plan, of what the printed text of the expressions leaves out."""
        return left_out(each for each in self._arguments[1].values() if isinstance(each, pl.Expr))

    @property
    def told(self) -> str:
        """The expressions in words that tell different ones apart."""
        given = self._arguments[1].items()
        text = ", ".join(f"{name}={' '.join(str(value).split())}" for name, value in given)
        return f"{text} {self.exactly}".strip()

    def __reduce__(self) -> tuple[Any, ...]:
        return compile_columns, self._arguments


class Predicate:
    """A condition on a row. Build it with `compile_filter`."""

    used: tuple[int, ...]
    """The columns that the condition looks at. For any other column `mask` may be called with None."""

    def __init__(self, arguments: tuple[Any, ...], part: _Part, schema: pa.Schema) -> None:
        self._arguments = arguments
        self.used = part.used
        self._mask = part.mask
        self._polars = _Select([part], schema)

    def mask(self, columns: Sequence[pa.Array], rows: int) -> Mask:
        """For which of `rows` rows the condition is true: not false, not null."""
        if not rows:
            return np.zeros(0, np.bool_)
        if self._mask:
            return self._mask(columns, rows)
        return self._polars.mask(columns, rows)

    @property
    def exactly(self) -> str:
        """A word, for the identity of a plan, of what the printed text of the condition leaves out."""
        return left_out(each for each in [self._arguments[1]] if isinstance(each, pl.Expr))

    def __reduce__(self) -> tuple[Any, ...]:
        return compile_filter, self._arguments


@dataclass(frozen=True, slots=True)
class _Part:
    """One result: the column it picks, the functions that compute it, or neither, and then Polars computes it."""

    field: pa.Field
    expression: pl.Expr
    used: tuple[int, ...]
    source: int | None = None
    make: Maker | None = None
    mask: Callable[[Sequence[pa.Array], int], Mask] | None = None


class _Select:
    """The results that are left to Polars, in one call."""

    def __init__(self, parts: Sequence[_Part], schema: pa.Schema) -> None:
        self.parts = parts
        self._used = sorted({at for part in parts for at in part.used})
        self._names = [schema.field(at).name for at in self._used]
        self._enums = _Shown([schema.field(at) for at in self._used])
        self._expressions = [part.expression.alias(str(at)) for at, part in enumerate(parts)]
        self._fields = [part.field for part in parts]
        self._kinds = [canonical(part.field.type, part.field.name) for part in parts]

    def _computed(self, columns: Sequence[pa.Array], rows: int) -> list[pl.Series]:
        used = [columns[at] for at in self._used]
        if rows > 1:
            return self._selected(used).get_columns()
        # Polars takes a column of one row for a scalar, and computes x / 3.7 in another way than for several rows: the
        # last digit differs. So a single row is computed twice over, as two rows.
        try:
            return self._selected([column.take(_TWICE) for column in used]).head(1).get_columns()
        except pl.exceptions.PolarsError as error:
            refused = error
        self._selected(used)  # fails too, with a message about one row
        raise refused

    def _selected(self, used: Sequence[pa.Array]) -> pl.DataFrame:
        if self._enums.some:
            batch = self._enums.batch(used)
        else:
            batch = pa.RecordBatch.from_arrays(used, self._names)
        frame = pl.DataFrame(batch)  # a third of what from_arrow costs
        return exposed(frame.select, self._expressions)

    def arrays(self, columns: Sequence[pa.Array], rows: int) -> list[pa.Array]:
        arrays = [series.to_arrow() for series in self._computed(columns, rows)]
        return [
            array if array.type.equals(kind) else encode(array, field.type)
            for array, kind, field in zip(arrays, self._kinds, self._fields, strict=True)
        ]

    def mask(self, columns: Sequence[pa.Array], rows: int) -> Mask:
        [series] = self._computed(columns, rows)
        if series.null_count():
            series = series.fill_null(False)
        return series.to_numpy()


class _Shown:
    """Converts canonical columns for Polars where enums are among them: codes become enums, the rest stays."""

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self.some = any(has_enums(field.type) for field in fields)
        self._fields = fields
        self._schema = pa.schema(
            [
                shown_type(f) if has_enums(f.type) else pa.field(f.name, canonical(f.type, f.name))
                for f in fields
            ]
        )

    def batch(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        shown = [
            declared_column(column, field) if has_enums(field.type) else column
            for column, field in zip(columns, self._fields, strict=True)
        ]
        return pa.RecordBatch.from_arrays(shown, schema=self._schema)


def compile_columns(schema: pa.Schema, expressions: Mapping[str, Any], what: str) -> Projection:
    """The projection that makes columns of those of `schema`, each from a name, a Polars expression or a literal.

    `what` is the attempt, for errors: "select from 'edges'".
    """
    building = _Building(schema, what)
    parts = [building.part(name, expression) for name, expression in expressions.items()]
    return Projection((schema, dict(expressions), what), parts, schema)


def check_expressions(schema: pa.Schema, expressions: Iterable[tuple[str, Any]], what: str) -> None:
    """Refuse expressions that `compile_columns` would refuse. Here a name may have several expressions.

    Cost: that of checking the expressions; the schema is looked at once.
    """
    building = _Building(schema, what)
    for name, expression in expressions:
        building.part(name, expression)


def compile_filter(schema: pa.Schema, predicate: pl.Expr | bool, what: str) -> Predicate:
    """The predicate of a condition on the columns of `schema`."""
    if not isinstance(predicate, pl.Expr | bool):
        raise PlanError(
            "plan.expression",
            f"cannot {what}: the condition is {predicate!r}, not a Polars expression",
            hint='for instance pl.col("age") > 17',
            given=repr(predicate),
        )
    part = _Building(schema, what).part(None, predicate)
    kind = part.field.type
    if not pa.types.is_boolean(kind) and not pa.types.is_null(kind):
        raise PlanError(
            "plan.expression",
            f"cannot {what}: the condition is {kind}, not true or false",
            hint='compare it with something, for instance pl.col("count") > 0',
            given=str(kind),
        )
    return Predicate((schema, predicate, what), part, schema)


class _Building:
    def __init__(self, schema: pa.Schema, what: str) -> None:
        self.schema = schema
        self.what = what
        self.kinds = tuple(canonical(field.type, field.name) for field in schema)
        self.computed = tuple(
            # Only Polars knows how enums compare. A struct stands for them, a type that `direct` leaves to Polars.
            pa.struct([]) if has_enums(field.type) else kind
            for field, kind in zip(schema, self.kinds, strict=True)
        )
        self.positions = {field.name: at for at, field in enumerate(schema)}

    def part(self, name: str | None, column: Any) -> _Part:
        expression = self._expression(name, column)
        try:
            return self._compiled(name, expression)
        except RecursionError:
            raise too_deep(expression) from None

    def _compiled(self, name: str | None, expression: pl.Expr) -> _Part:
        tree = read(expression)
        source = _picked(tree)
        if source is not None:
            at = self._position(source, name)
            field = self.schema.field(at)
            if name is not None:
                return _Part(field.with_name(name), expression, (at,), at, partial(_pick, at))
        facts = check(tree, self.schema, self.what, name)
        named = {self._position(each, name) for each in sorted(facts.columns)}
        used = tuple(range(len(self.kinds))) if facts.selects else tuple(sorted(named))
        kind, result = self._try(expression, used, name)
        field = pa.field(name or "condition", kind)
        if not used:
            return self._constant(expression, field, result, name)
        step = None if facts.selects else direct(tree, self.positions, self.computed)
        if step is None or step.kind != field.type:
            check_steady(tree, self.schema, self.what, name)
            return _Part(field, expression, used)
        return _Part(
            field,
            expression,
            used,
            make=lambda columns, rows: step.array(columns),
            mask=lambda columns, rows: step.mask(columns),
        )

    def _expression(self, name: str | None, column: Any) -> pl.Expr:
        if isinstance(column, pl.Expr):
            return column
        if isinstance(column, str):
            if column not in self.positions:
                raise unknown_column(list(self.positions), column, self.what, None, _STRINGS)
            return pl.col(column)
        if (
            isinstance(column, int)
            and not isinstance(column, bool)
            and -(1 << 63) <= column < 1 << 63
        ):
            return pl.lit(column, pl.Int64)
        if _may_name_columns(column):
            raise PlanError(
                "plan.column",
                f"cannot {self.what}: {_subject(name)} is given as {show(column)}, which may be names or a value",
                hint="a list that is a value is pl.lit([...]); of several columns, an expression makes one: "
                'pl.concat_list("a", "b"), pl.struct("a", "b")',
                column=name,
            )
        try:
            return pl.lit(column)
        except _FAILURES as error:
            raise self._refusal(name, error) from error

    def _position(self, column: str, name: str | None) -> int:
        if column not in self.positions:
            user = None if column == name else _subject(name)
            raise unknown_column(list(self.positions), column, self.what, user)
        return self.positions[column]

    def _try(
        self, expression: pl.Expr, used: tuple[int, ...], name: str | None
    ) -> tuple[pa.DataType, pa.Array]:
        """The type of a result, and the result for a frame without rows: empty, or the one value of a constant."""
        try:
            empty = [pa.nulls(0, self.kinds[at]) for at in used]
            shown = _Shown([self.schema.field(at) for at in used])
            frame = pl.DataFrame(shown.batch(empty)).select(expression)
            if frame.width != 1:
                raise PlanError(
                    "plan.expression",
                    f"cannot {self.what}: {_subject(name)} is made of {frame.width} columns, "
                    f"not one: {listed(frame.columns) or 'none'}",
                    hint="write one expression for each column",
                    column=name,
                )
            if frame.dtypes[0] == pl.Object:
                raise self._refusal(name, "its values are Python objects (object)")
            kind = arrow_type(frame.dtypes[0])
            if not has_enums(kind):
                kind = canonical(kind, name or "condition")
            return kind, encode(frame.to_series().to_arrow(), kind)
        except SchemaError as error:
            raise self._refusal(name, error.message, error.hint) from error
        except _FAILURES as error:
            raise self._refusal(name, error) from error

    def _constant(
        self, expression: pl.Expr, field: pa.Field, result: pa.Array, name: str | None
    ) -> _Part:
        if len(result) != 1:
            raise self._refusal(name, f"a constant is one value, this is {len(result)}")
        flag = result[0].as_py() is True
        return _Part(
            field,
            expression,
            (),
            make=partial(_repeat, result),
            mask=lambda columns, rows: np.full(rows, flag),
        )

    def _refusal(self, name: str | None, reason: object, hint: str | None = None) -> PlanError:
        text = str(reason).strip() or type(reason).__name__
        return PlanError(
            "plan.expression",
            f"cannot {self.what}: {_subject(name)} cannot be made: {text}",
            hint=hint or f"the columns are: {_listed(self.schema)}",
            column=name,
            reason=text,
        )


def _may_name_columns(value: Any) -> bool:
    """Whether a value for a new column is a list that its user could have meant as names of columns."""
    return isinstance(value, list | tuple) and (
        not value or any(isinstance(each, str | pl.Expr) for each in value)
    )


def _subject(name: str | None) -> str:
    return "the condition" if name is None else f"column {show(name)}"


def _listed(schema: pa.Schema) -> str:
    return listed(f"{field.name} ({field.type})" for field in schema) or "none"


def _picked(tree: Node) -> str | None:
    """The column that an expression only picks or renames; None for an expression that computes."""
    kind, parts = kind_of(tree)
    while kind in ("Alias", "KeepName", "RenameAlias"):
        inner = parts[0] if kind == "Alias" else parts["expr"] if kind == "RenameAlias" else parts
        kind, parts = kind_of(inner)
    return parts if kind == "Column" else None


def _pick(at: int, columns: Sequence[pa.Array], rows: int) -> pa.Array:
    return columns[at]


def _repeat(value: pa.Array, columns: Sequence[pa.Array], rows: int) -> pa.Array:
    if pa.types.is_null(value.type):
        return pa.nulls(rows)
    return pa.repeat(value[0], rows)
