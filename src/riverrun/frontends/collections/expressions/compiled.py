"""The compiled forms: a `Projection` makes columns, a `Predicate` picks rows.

Each result is made in the cheapest way there is for it: picked, repeated from a constant, computed
directly (`direct`), or left to Polars, all of those in one call.
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
from riverrun.frontends.collections.expressions.tree import Node, kind_of, read
from riverrun.interrupts import exposed
from riverrun.plan.identity import left_out
from riverrun.rows.column_names import unknown_column
from riverrun.rows.schemas import arrow_type
from riverrun.rows.values import show
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

_TWICE = pa.array([0, 0])
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
    """The results: a column that is only picked keeps its declared type."""
    sources: tuple[int, ...] | None
    """When every result is just a column: which one."""
    picked: tuple[int | None, ...]
    """Of each result, the column that it just is, if any."""
    used: tuple[int, ...]
    """The columns that are looked at; of the others any value, even None, may be given."""

    def __init__(self, given: tuple[Any, ...], parts: Sequence[_Part], schema: pa.Schema) -> None:
        self._given = given
        self.schema = pa.schema([part.field for part in parts])
        self.used = tuple(sorted({at for part in parts for at in part.used}))
        self.picked = tuple(part.source for part in parts)
        sources = tuple(source for source in self.picked if source is not None)
        self.sources = sources if len(sources) == len(parts) else None
        self._makers = [part.make for part in parts]
        self._polars = _Select([part for part in parts if part.make is None], schema)
        self._empty = tuple(pa.array([], canonical(f.type, f.name)) for f in self.schema)

    def apply(self, columns: Sequence[pa.Array], rows: int) -> tuple[pa.Array, ...]:
        """The results for columns of `rows` rows each."""
        if self.sources is not None:
            return tuple([columns[at] for at in self.sources])
        if not rows:
            return self._empty
        if not self._polars.parts:
            return tuple([make(columns, rows) for make in self._makers if make])
        made = iter(self._polars.arrays(columns, rows))
        return tuple([make(columns, rows) if make else next(made) for make in self._makers])

    @property
    def exactly(self) -> str:
        """A word for what the text of the expressions leaves out."""
        return left_out(each for each in self._given[1].values() if isinstance(each, pl.Expr))

    def __reduce__(self) -> tuple[Any, ...]:
        return compile_columns, self._given


class Predicate:
    """A condition on a row. Build it with `compile_filter`."""

    used: tuple[int, ...]
    """The columns that are looked at; of the others any value, even None, may be given."""

    def __init__(self, given: tuple[Any, ...], part: _Part, schema: pa.Schema) -> None:
        self._given = given
        self.used = part.used
        self._mask = part.mask
        self._polars = _Select([part], schema)

    def mask(self, columns: Sequence[pa.Array], rows: int) -> Mask:
        """Which of `rows` rows the condition holds for; where it is null it does not."""
        if not rows:
            return np.zeros(0, np.bool_)
        if self._mask:
            return self._mask(columns, rows)
        return self._polars.mask(columns, rows)

    @property
    def exactly(self) -> str:
        """A word for what the text of the condition leaves out."""
        return left_out(each for each in [self._given[1]] if isinstance(each, pl.Expr))

    def __reduce__(self) -> tuple[Any, ...]:
        return compile_filter, self._given


@dataclass(frozen=True, slots=True)
class _Part:
    """One result: how it is made, or that Polars makes it."""

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

    def _made(self, columns: Sequence[pa.Array], rows: int) -> list[pl.Series]:
        used = [columns[at] for at in self._used]
        if rows > 1:
            return self._selected(used).get_columns()
        # Polars takes a column of one row for a scalar, and computes x / 3.7 in another way than
        # it does among other rows: the last digit differs.
        try:
            return self._selected([column.take(_TWICE) for column in used]).head(1).get_columns()
        except pl.exceptions.PolarsError as error:
            refused = error
        self._selected(used)  # fails too, and speaks of one row
        raise refused

    def _selected(self, used: Sequence[pa.Array]) -> pl.DataFrame:
        if self._enums.some:
            batch = self._enums.batch(used)
        else:
            batch = pa.RecordBatch.from_arrays(used, self._names)
        frame = pl.DataFrame(batch)  # a third of what from_arrow costs
        return exposed(frame.select, self._expressions)

    def arrays(self, columns: Sequence[pa.Array], rows: int) -> list[pa.Array]:
        made = [series.to_arrow() for series in self._made(columns, rows)]
        return [
            array if array.type.equals(kind) else encode(array, field.type)
            for array, kind, field in zip(made, self._kinds, self._fields, strict=True)
        ]

    def mask(self, columns: Sequence[pa.Array], rows: int) -> Mask:
        [series] = self._made(columns, rows)
        if series.null_count():
            series = series.fill_null(False)
        return series.to_numpy()


class _Shown:
    """Columns as Polars is to see them where enums are among them: those as enums, the others as they are kept."""

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
    """Columns made of the columns of `schema`: by name, by a Polars expression, or a literal.

    `what` says what is attempted, for errors: "select from 'edges'".
    """
    building = _Building(schema, what)
    parts = [building.part(name, given) for name, given in expressions.items()]
    return Projection((schema, dict(expressions), what), parts, schema)


def check_expressions(schema: pa.Schema, expressions: Iterable[tuple[str, Any]], what: str) -> None:
    """Refuse what `compile_columns` would refuse; several expressions may be for one name.

    Cost: that of the expressions and of one look at the schema, however many expressions there are.
    """
    building = _Building(schema, what)
    for name, given in expressions:
        building.part(name, given)


def compile_filter(schema: pa.Schema, predicate: pl.Expr | bool, what: str) -> Predicate:
    """A condition on the columns of `schema`."""
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
            # Only Polars knows how enums compare: what is computed directly takes them for an unknown type.
            pa.struct([]) if has_enums(field.type) else kind
            for field, kind in zip(schema, self.kinds, strict=True)
        )
        self.positions = {field.name: at for at, field in enumerate(schema)}

    def part(self, name: str | None, given: Any) -> _Part:
        expression = self._expression(name, given)
        tree = read(expression)
        source = _picked(tree)
        if source is not None:
            at = self._position(source, name)
            field = self.schema.field(at)
            if name is not None:
                return _Part(field.with_name(name), expression, (at,), at, partial(_pick, at))
        found = check(tree, self.schema, self.what, name)
        named = {self._position(each, name) for each in sorted(found.columns)}
        used = tuple(range(len(self.kinds))) if found.selects else tuple(sorted(named))
        kind, result = self._try(expression, used, name)
        field = pa.field(name or "condition", kind)
        if not used:
            return self._constant(expression, field, result, name)
        step = None if found.selects else direct(tree, self.positions, self.computed)
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

    def _expression(self, name: str | None, given: Any) -> pl.Expr:
        if isinstance(given, pl.Expr):
            return given
        if isinstance(given, str):
            if given not in self.positions:
                raise unknown_column(list(self.positions), given, self.what, None, _STRINGS)
            return pl.col(given)
        if isinstance(given, int) and not isinstance(given, bool) and -(1 << 63) <= given < 1 << 63:
            return pl.lit(given, pl.Int64)
        if _may_name_columns(given):
            raise PlanError(
                "plan.column",
                f"cannot {self.what}: {_subject(name)} is given as {show(given)}, which may be names or a value",
                hint="a list that is a value is pl.lit([...]); of several columns, an expression makes one: "
                'pl.concat_list("a", "b"), pl.struct("a", "b")',
                column=name,
            )
        try:
            return pl.lit(given)
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
        """The type of the result, and the result on no rows, or the one row of a constant, in the canonical layout."""
        try:
            empty = [pa.array([], self.kinds[at]) for at in used]
            shown = _Shown([self.schema.field(at) for at in used])
            made = pl.DataFrame(shown.batch(empty)).select(expression)
            if made.width != 1:
                raise PlanError(
                    "plan.expression",
                    f"cannot {self.what}: {_subject(name)} is made of {made.width} columns, "
                    f"not one: {', '.join(made.columns) or 'none'}",
                    hint="write one expression for each column",
                    column=name,
                )
            kind = arrow_type(made.dtypes[0])
            if not has_enums(kind):
                kind = canonical(kind, name or "condition")
            return kind, encode(made.to_series().to_arrow(), kind)
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


def _may_name_columns(given: Any) -> bool:
    """Whether a list, where a column is made, could have been meant as names of columns."""
    return isinstance(given, list | tuple) and (
        not given or any(isinstance(each, str | pl.Expr) for each in given)
    )


def _subject(name: str | None) -> str:
    return "the condition" if name is None else f"column {name!r}"


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema) or "none"


def _picked(tree: Node) -> str | None:
    """The column that an expression only picks, under whatever name."""
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
