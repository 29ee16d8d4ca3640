"""Rows of users, in any form, as one batch of the declared columns.

`as_table` reads the rows of inputs (`commands`), of the user's functions and vertices, and of Spark's tasks.

===========================================  =====================================================
form                                         read as
===========================================  =====================================================
Arrow table, batch, reader or stream         its columns, by name
Polars DataFrame or LazyFrame                its columns, by name; a lazy frame is collected
pandas DataFrame                             its columns, by name; the index is dropped, NaN is null
NumPy structured array                       its fields, by name
dict of columns                              columns, by name: lists, arrays, series
dict, tuple, dataclass, NamedTuple           one row
list or iterator of single rows              rows; a plain tuple goes by the declared order
===========================================  =====================================================

Laws:

- **Canonical batch.** The batch has the declared columns in the declared order, in the canonical layout of states
  (`riverrun.state.schema`), so the next reader of the batch converts nothing.
- **Exact columns.** Rows have every declared column and no other, but for a dict that is a row: it may leave out what
  a TypedDict declares as ``NotRequired``, which is then null. A typed column fits if every value of its type is
  exactly a value of the declared type; a Python value fits if it is exactly a value of the declared type (`values`).
- **No guessing for pandas.** pandas turns integers into floats when some are missing; a float column of pandas is
  refused where integers are declared. Its datetimes may have any unit, if no value is finer than the declared unit.

>>> import pyarrow as pa
>>> edges = as_schema({"src": int, "dst": int}, "declare input 'edges'")
>>> as_table([(1, 2), (2, 3)], edges, "insert into 'edges'").to_pylist()
[{'src': 1, 'dst': 2}, {'src': 2, 'dst': 3}]
>>> as_table({"src": 1, "dst": 2}, edges, "insert into 'edges'").num_rows
1
>>> as_table([(1, 2), (3,)], edges, "insert into 'edges'")
Traceback (most recent call last):
    ...
riverrun.errors.SchemaError: cannot insert into 'edges': row 1 has 1 values, and there are 2 columns: src, dst
Hint: give every row a value for each column, None where there is none

Cost: about 10 microseconds for one row of a few columns. A frame with the canonical layout is not copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import polars as pl
import pyarrow as pa

from riverrun.errors import SchemaError, with_article
from riverrun.rows.schemas import as_schema
from riverrun.rows.values import ValueConverter, fields_of, is_optional, listed, show
from riverrun.state.schema import Schema, conform_column
from riverrun.state.types import fits, has_enums, spelled, type_text

__all__ = ["as_schema", "as_table", "is_spark_frame"]


def is_spark_frame(value: Any) -> bool:
    """Whether a value is a DataFrame of Spark. Does not import pyspark."""
    return type(value).__module__.startswith("pyspark.sql") and hasattr(value, "mapInArrow")


def as_table(rows: Any, schema: pa.Schema, attempt: str) -> pa.RecordBatch:
    """Rows as one batch; `attempt` is the purpose, for errors: "insert into 'edges'"."""
    known = _KNOWN.get(id(schema))
    if known is None or known.schema is not schema:
        known = _remember(schema)
    return known.read(rows, attempt)


class _Declared:
    """A declared schema, with the converters and layouts that reading its rows needs."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.names = list(schema.names)
        self.converters = [ValueConverter.of(field) for field in schema]
        self.state = Schema.of(pa.schema([]), schema)
        self.enums = [field for field in schema if has_enums(field.type)]
        self.optional = {field.name: None for field in schema if is_optional(field)}
        self.canonical = pa.schema(
            [
                pa.field(f.name, each.kind, f.nullable)
                for f, each in zip(schema, self.converters, strict=True)
            ]
        )

    def read(self, rows: Any, attempt: str) -> pa.RecordBatch:
        if isinstance(rows, tuple | dict):
            return self._row_or_columns(rows, attempt)
        if isinstance(rows, pa.RecordBatch | pa.Table):
            return self._frame(rows, attempt)
        if isinstance(rows, list):
            return self._rows(rows, attempt)
        return self._other(rows, attempt)

    def _batch(self, arrays: Sequence[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(arrays, schema=self.canonical)

    def _frame(self, frame: pa.Table | pa.RecordBatch, attempt: str) -> pa.RecordBatch:
        for field in self.enums:
            if frame.schema.names.count(field.name) == 1:
                _check_spelled(frame.schema.field(field.name).type, field, attempt)
        return self._batch(self.state.conform(frame, attempt))

    def _other(self, rows: Any, attempt: str) -> pa.RecordBatch:
        if isinstance(rows, pl.LazyFrame):
            rows = rows.collect()
        if isinstance(rows, pl.DataFrame):
            return self._frame(rows.to_arrow(), attempt)
        if isinstance(rows, pa.RecordBatchReader):
            return self._frame(rows.read_all(), attempt)
        module = type(rows).__module__.partition(".")[0]
        if module == "pandas" and hasattr(rows, "columns"):
            return self._columns(_pandas_columns(rows), attempt)
        if hasattr(rows, "__arrow_c_stream__") and module != "pandas" and not _is_column(rows):
            return self._frame(pa.table(rows), attempt)
        if isinstance(rows, np.ndarray) and rows.dtype.names:
            flat = rows.reshape(-1)
            return self._columns({name: flat[name] for name in rows.dtype.names}, attempt)
        named = fields_of(rows)
        if named is not None:
            read = self._row_or_columns if isinstance(rows, Mapping) else self._mapping
            return read(named, attempt)
        if (
            isinstance(rows, Iterable)
            and module not in ("numpy", "pandas", "polars", "pyarrow", "pyspark")
            and not isinstance(rows, str | bytes | set | frozenset)
        ):
            return self._rows(list(rows), attempt)
        self._refuse(rows, attempt)

    def _refuse(self, refused: Any, attempt: str, row: int | None = None) -> NoReturn:
        where = "the rows are" if row is None else f"row {row} is"
        raise SchemaError(
            "schema.not_rows",
            f"cannot {attempt}: {where} {show(refused)}, {with_article(type(refused).__name__)}; "
            "the columns are: "
            f"{listed(self.names)}",
            hint="give a frame, a dict of columns, a list of rows (dicts, tuples, dataclasses), or one row"
            if row is None
            else "a list of rows has a tuple, a dict or a dataclass for each row; one row is a list too: [row]",
            given=type(refused).__name__,
        )

    def _refuse_mixed(self, first: Any, other: Any, attempt: str, row: int) -> NoReturn:
        raise SchemaError(
            "schema.not_rows",
            f"cannot {attempt}: row 0 is {with_article(type(first).__name__)} and row {row} is "
            f"{with_article(type(other).__name__)}, and rows by position cannot mix with rows by name",
            hint=f"give all rows as tuples, in the order of the columns ({listed(self.names)}), or all as dicts",
            row=row,
        )

    def _row_or_columns(self, row_or_columns: Any, attempt: str) -> pa.RecordBatch:
        if isinstance(row_or_columns, tuple):
            named = fields_of(row_or_columns)
            return (
                self._tuple(row_or_columns, attempt)
                if named is None
                else self._mapping(named, attempt)
            )
        if self._holds_columns(row_or_columns, attempt):
            return self._columns(row_or_columns, attempt)
        return self._mapping(row_or_columns, attempt)

    def _tuple(self, row: Sequence[Any], attempt: str) -> pa.RecordBatch:
        if len(row) != len(self.converters):
            return self._batch(self._tuples([row], attempt))  # raises: the row has the wrong length
        return self._batch(
            [self.converters[at].one(value, attempt) for at, value in enumerate(row)]
        )

    def _mapping(self, row: Mapping[str, Any], attempt: str) -> pa.RecordBatch:
        if self.optional:
            row = {**self.optional, **row}
        if len(row) != len(self.converters):
            self._check_names(list(row), attempt, 0)
        try:
            values = [row[name] for name in self.names]
        except KeyError:
            self._check_names(list(row), attempt, 0)
            raise
        return self._tuple(values, attempt)

    def _holds_columns(self, mapping: Mapping[str, Any], attempt: str) -> bool:
        """Whether a mapping holds columns; if not, it is one row.

        Columns that are not declared as lists decide: their values are lists in a mapping of columns. Where all columns
        are declared as lists, a typed column decides by its type, else the items inside: lists inside mean columns,
        other items mean one row. With no items inside, or with lists of lists, both readings are possible, and the
        mapping is refused.
        """
        verdicts: dict[str, bool] = {}
        for name, converter in zip(self.names, self.converters, strict=True):
            value = mapping.get(name)
            if not _is_column(value):
                verdicts[name] = False
                break
            if not pa.types.is_large_list(converter.kind):
                verdicts[name] = True
        if len(set(verdicts.values())) > 1:
            return self._refuse_mixture(mapping, attempt)
        if verdicts:
            return next(iter(verdicts.values()))
        if any(_holds_lists(mapping[name]) for name in self.names):
            return True
        inside = [item for name in self.names for item in mapping[name] if item is not None]
        of_lists = any(
            pa.types.is_nested(converter.kind.value_type) for converter in self.converters
        )
        lists = {_is_column(item) for item in inside}
        if len(lists) == 1 and not of_lists:
            return lists.pop()
        raise SchemaError(
            "schema.ambiguous",
            f"cannot {attempt}: all columns are lists ({listed(self.names)}), so a dict of lists could be "
            "one row or a dict of columns",
            hint="give one row in a list, [{...}]; give columns as a frame, or as Polars or Arrow columns of lists",
        )

    def _refuse_mixture(self, mapping: Mapping[str, Any], attempt: str) -> NoReturn:
        columns = [name for name, value in mapping.items() if _is_column(value)]
        single = next(name for name in self.names if not _is_column(mapping.get(name)))
        self._check_names(list(mapping), attempt)
        raise SchemaError(
            "schema.value",
            f"cannot {attempt}: {columns[0]!r} is given as a column and {single!r} as one value, "
            f"{show(mapping.get(single))}; a dict holds columns or is one row",
            hint="give every column as a list, or every value alone",
            column=single,
        )

    def _check_names(self, names: Sequence[Any], attempt: str, row: int | None = None) -> None:
        where = "the rows have" if row is None else f"row {row} has"
        have = listed(names) or "no columns"
        for name in self.names:
            if name not in names:
                raise SchemaError(
                    "schema.column_missing",
                    f"cannot {attempt}: column {show(name)} is missing; {where}: {have}",
                    hint=f"give every column: {listed(self.names)}",
                    column=name,
                    row=row,
                )
        for at, name in enumerate(names):
            if name not in self.names or names.index(name) != at:
                raise SchemaError(
                    "schema.column_unknown",
                    f"cannot {attempt}: column {show(name)} is not declared, or stands twice; {where}: {have}",
                    hint=f"give the declared columns: {listed(self.names)}",
                    column=name,
                    row=row,
                )

    def _columns(self, columns: Mapping[str, Any], attempt: str) -> pa.RecordBatch:
        self._check_names(list(columns), attempt)
        arrays = []
        for converter in self.converters:
            array = _array(columns[converter.field.name], converter, attempt)
            arrays.append(array)
            if len(array) != len(arrays[0]):
                raise SchemaError(
                    "schema.ragged",
                    f"cannot {attempt}: column {converter.field.name!r} has {len(array)} rows, and "
                    f"{self.names[0]!r} has {len(arrays[0])}",
                    hint="give columns of one length",
                    column=converter.field.name,
                )
        return self._batch(arrays)

    def _rows(self, rows: list[Any], attempt: str) -> pa.RecordBatch:
        if not rows:
            return self._batch([pa.nulls(0, each.kind) for each in self.converters])
        kind = type(rows[0])
        if kind is tuple or kind is list:
            if len(rows) == 1:
                return self._tuple(rows[0], attempt)
            return self._batch(self._tuples(rows, attempt))
        if kind is dict:
            if len(rows) == 1:
                return self._mapping(rows[0], attempt)
            return self._batch(self._mappings(rows, attempt))
        named = []
        for at, row in enumerate(rows):
            fields = fields_of(row)
            if fields is None:
                if at and isinstance(row, tuple | list):
                    self._refuse_mixed(rows[0], row, attempt, at)
                self._refuse(row, attempt, at)
            named.append(fields)
        return self._batch(self._mappings(named, attempt))

    def _tuples(self, rows: Sequence[Any], attempt: str) -> list[pa.Array]:
        width = len(self.names)
        for at, row in enumerate(rows):
            if not isinstance(row, tuple | list):
                if fields_of(row) is not None:
                    self._refuse_mixed(rows[0], row, attempt, at)
                self._refuse(row, attempt, at)
            if len(row) != width:
                raise SchemaError(
                    "schema.ragged",
                    f"cannot {attempt}: row {at} has {len(row)} values, and there are {width} columns: "
                    f"{listed(self.names)}",
                    hint="give every row a value for each column, None where there is none",
                    row=at,
                    values=len(row),
                    columns=width,
                )
        return [
            converter.array([row[at] for row in rows], attempt)
            for at, converter in enumerate(self.converters)
        ]

    def _mappings(self, rows: Sequence[Any], attempt: str) -> list[pa.Array]:
        width = len(self.names)
        for at, row in enumerate(rows):
            if not isinstance(row, Mapping):
                if isinstance(row, tuple | list):
                    self._refuse_mixed(rows[0], row, attempt, at)
                self._refuse(row, attempt, at)
            if len(row) != width and not self.optional:
                self._check_names(list(row), attempt, at)
        if self.optional:
            rows = [{**self.optional, **row} for row in rows]
            for at, row in enumerate(rows):
                if len(row) != width:
                    self._check_names(list(row), attempt, at)
        try:
            columns = [[row[name] for row in rows] for name in self.names]
        except KeyError:
            for at, row in enumerate(rows):
                self._check_names(list(row), attempt, at)
            raise
        return [
            converter.array(column, attempt)
            for converter, column in zip(self.converters, columns, strict=True)
        ]


# Keyed by the id of the schema: hashing a schema costs as much as reading a row. The value holds the schema, so that no
# other schema gets its id.
_KNOWN: dict[int, _Declared] = {}
_MOST_KNOWN = 256


def _remember(schema: pa.Schema) -> _Declared:
    while len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.pop(next(iter(_KNOWN)), None)
    known = _KNOWN[id(schema)] = _Declared(schema)
    return known


def _is_column(value: Any) -> bool:
    return isinstance(
        value, list | tuple | range | np.ndarray | pa.Array | pa.ChunkedArray | pl.Series
    ) or _is_pandas_column(value)


def _holds_lists(column: Any) -> bool:
    """Whether the type of a column says that its values are lists."""
    if isinstance(column, pl.Series):
        return isinstance(column.dtype, pl.List | pl.Array)
    return isinstance(column, pa.Array | pa.ChunkedArray) and pa.types.is_nested(column.type)


def _is_pandas_column(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "dtype")


def _array(column: Any, converter: ValueConverter, attempt: str) -> pa.Array:
    """One column of a mapping, in any form."""
    if _is_pandas_column(column):
        return _from_pandas(column, converter, attempt)
    if isinstance(column, pl.Series):
        column = column.to_arrow()
    elif isinstance(column, np.ndarray):
        if column.dtype.kind == "O" or column.ndim != 1:
            return converter.array(list(column), attempt)
        column = pa.array(column)
    elif not isinstance(column, pa.Array | pa.ChunkedArray):
        return converter.array(list(column), attempt)
    if converter.text is not converter.kind:
        _check_spelled(column.type, converter.field, attempt)
    return conform_column(column, converter.field, converter.kind, attempt)


def _check_spelled(kind: pa.DataType, field: pa.Field, attempt: str) -> None:
    """Refuse codes of an enum from a user: only the engine takes codes, users give the values as text."""
    if not fits(kind, spelled(field.type)):
        raise SchemaError(
            "schema.type_mismatch",
            f"cannot {attempt}: column {show(field.name)} is {kind}, declared as {type_text(field.type)}, whose values "
            "are text",
            hint="give the values of an enum as text, or as a Polars column of the enum",
            column=field.name,
            given=str(kind),
            declared=type_text(field.type),
        )


def _pandas_columns(frame: Any) -> dict[Any, Any]:
    columns = dict(frame.items())
    if len(columns) == frame.shape[1]:
        return columns
    # A name that stands twice: keep both, so that the check of names refuses it.
    return _Twice((name, frame.iloc[:, at]) for at, name in enumerate(frame.columns))


class _Twice(dict[Any, Any]):
    def __init__(self, items: Iterable[tuple[Any, Any]]) -> None:
        self._listed = list(items)
        super().__init__(self._listed)

    def __iter__(self) -> Any:
        return (name for name, _ in self._listed)


def _from_pandas(series: Any, converter: ValueConverter, attempt: str) -> pa.Array:
    if series.dtype == object:
        return converter.array(list(series), attempt, pandas=True)
    array = pa.array(series, from_pandas=True)
    t = pa.types
    if t.is_floating(array.type) and t.is_integer(converter.kind):
        raise SchemaError(
            "schema.type_mismatch",
            f"cannot {attempt}: column {converter.field.name!r} is {array.type}, declared as {converter.field.type}; "
            "pandas turns integers into floats when some are missing",
            hint=f'frame["{converter.field.name}"].astype("Int64") has missing integers',
            column=converter.field.name,
            given=str(array.type),
            declared=str(converter.field.type),
        )
    same_zone = t.is_timestamp(array.type) and getattr(converter.kind, "tz", "") == array.type.tz
    if same_zone or (t.is_duration(array.type) and t.is_duration(converter.kind)):
        with suppress(pa.ArrowInvalid):  # finer than declared: the check below says so
            array = array.cast(converter.kind)
    if converter.text is not converter.kind:
        _check_spelled(array.type, converter.field, attempt)
    return conform_column(array, converter.field, converter.kind, attempt)
