"""Rows given by users, in any form, as one batch of the declared columns.

===========================================  =====================================================
given                                        read as
===========================================  =====================================================
Arrow table, batch, reader or stream         its columns, by name
Polars DataFrame or LazyFrame                its columns, by name; a lazy frame is collected
pandas DataFrame                             its columns, by name; the index is dropped, NaN is null
NumPy structured array                       its fields, by name
dict of columns                              columns, by name: lists, arrays, series
dict, tuple, dataclass, NamedTuple           one row
list or iterator of those                    rows; a plain tuple goes by the declared order
===========================================  =====================================================

1. The batch has the declared columns in the declared order, in the state layer's canonical layout
   (`riverrun.state.schema`), so whatever takes it next converts nothing.
2. Every declared column is given and no other. A column of typed values fits when every value of
   its type is exactly a value of the declared one; a Python value fits when it is one (`values`).
3. pandas keeps missing integers as floats; such a column is refused where integers are declared.
   Its datetimes may have any unit, as long as no value is finer than the declared one.

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

Cost: about 10 microseconds for one row of a few columns. Frames are not copied where their layout
is the canonical one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import polars as pl
import pyarrow as pa

from riverrun.errors import SchemaError
from riverrun.rows.schemas import as_schema
from riverrun.rows.values import CellConverter, fields_of, show
from riverrun.state.schema import Schema, conform_column
from riverrun.state.types import fits, has_enums, spelled, type_text

__all__ = ["as_schema", "as_table", "is_spark_frame"]


def is_spark_frame(given: Any) -> bool:
    """Whether this is a DataFrame of Spark, told without importing it."""
    return type(given).__module__.startswith("pyspark.sql") and hasattr(given, "mapInArrow")


def as_table(given: Any, schema: pa.Schema, attempt: str) -> pa.RecordBatch:
    """The rows of `given` as one batch; `attempt` says what for: "insert into 'edges'"."""
    known = _KNOWN.get(id(schema))
    if known is None or known.schema is not schema:
        known = _remember(schema)
    return known.read(given, attempt)


class _Declared:
    """A schema, and what reading rows of it takes."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.names = list(schema.names)
        self.cells = [CellConverter.of(field) for field in schema]
        self.state = Schema.of(pa.schema([]), schema)
        self.enums = [field for field in schema if has_enums(field.type)]
        self.canonical = pa.schema(
            [
                pa.field(f.name, each.kind, f.nullable)
                for f, each in zip(schema, self.cells, strict=True)
            ]
        )

    def read(self, given: Any, attempt: str) -> pa.RecordBatch:
        if isinstance(given, tuple | dict):
            return self._row_or_columns(given, attempt)
        if isinstance(given, pa.RecordBatch | pa.Table):
            return self._frame(given, attempt)
        if isinstance(given, list):
            return self._rows(given, attempt)
        return self._other(given, attempt)

    def _batch(self, arrays: Sequence[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(arrays, schema=self.canonical)

    def _frame(self, frame: pa.Table | pa.RecordBatch, attempt: str) -> pa.RecordBatch:
        for field in self.enums:
            if frame.schema.names.count(field.name) == 1:
                _check_spelled(frame.schema.field(field.name).type, field, attempt)
        return self._batch(self.state.conform(frame, attempt))

    def _other(self, given: Any, attempt: str) -> pa.RecordBatch:
        if isinstance(given, pl.LazyFrame):
            given = given.collect()
        if isinstance(given, pl.DataFrame):
            return self._frame(given.to_arrow(), attempt)
        if isinstance(given, pa.RecordBatchReader):
            return self._frame(given.read_all(), attempt)
        module = type(given).__module__.partition(".")[0]
        if module == "pandas" and hasattr(given, "columns"):
            return self._columns(_pandas_columns(given), attempt)
        if hasattr(given, "__arrow_c_stream__") and module != "pandas" and not _is_column(given):
            return self._frame(pa.table(given), attempt)
        if isinstance(given, np.ndarray) and given.dtype.names:
            flat = given.reshape(-1)
            return self._columns({name: flat[name] for name in given.dtype.names}, attempt)
        named = fields_of(given)
        if named is not None:
            read = self._row_or_columns if isinstance(given, Mapping) else self._mapping
            return read(named, attempt)
        if (
            isinstance(given, Iterable)
            and module not in ("numpy", "pandas", "polars", "pyarrow", "pyspark")
            and not isinstance(given, str | bytes | set | frozenset)
        ):
            return self._rows(list(given), attempt)
        self._refuse(given, attempt)

    def _refuse(self, given: Any, attempt: str, row: int | None = None) -> NoReturn:
        where = "the rows are" if row is None else f"row {row} is"
        raise SchemaError(
            "schema.not_rows",
            f"cannot {attempt}: {where} {show(given)}, a {type(given).__name__}; the columns are: "
            f"{', '.join(self.names)}",
            hint="give a frame, a dict of columns, a list of rows (dicts, tuples, dataclasses), or one row",
            given=type(given).__name__,
        )

    def _row_or_columns(self, given: Any, attempt: str) -> pa.RecordBatch:
        if isinstance(given, tuple):
            named = fields_of(given)
            return self._tuple(given, attempt) if named is None else self._mapping(named, attempt)
        if self._holds_columns(given, attempt):
            return self._columns(given, attempt)
        return self._mapping(given, attempt)

    def _tuple(self, row: Sequence[Any], attempt: str) -> pa.RecordBatch:
        if len(row) != len(self.cells):
            return self._batch(self._tuples([row], attempt))  # which refuses it
        return self._batch([self.cells[at].one(value, attempt) for at, value in enumerate(row)])

    def _mapping(self, row: Mapping[str, Any], attempt: str) -> pa.RecordBatch:
        if len(row) != len(self.cells):
            self._check_names(list(row), attempt, 0)
        try:
            values = [row[name] for name in self.names]
        except KeyError:
            self._check_names(list(row), attempt, 0)
            raise
        return self._tuple(values, attempt)

    def _holds_columns(self, given: Mapping[str, Any], attempt: str) -> bool:
        """Whether a mapping is columns, not one row. Values of a column of lists look like columns, and the other
        columns decide. Where there are no others, the type of a typed column tells, or the values inside: lists are
        in columns, others in a row. Where there is nothing inside, or lists of lists are declared, both could be meant,
        and the dict is refused."""
        verdicts: dict[str, bool] = {}
        for name, cells in zip(self.names, self.cells, strict=True):
            value = given.get(name)
            if not _is_column(value):
                verdicts[name] = False
                break
            if not pa.types.is_large_list(cells.kind):
                verdicts[name] = True
        if len(set(verdicts.values())) > 1:
            return self._refuse_mixture(given, attempt)
        if verdicts:
            return next(iter(verdicts.values()))
        if any(_holds_lists(given[name]) for name in self.names):
            return True
        inside = [item for name in self.names for item in given[name] if item is not None]
        of_lists = any(pa.types.is_nested(cells.kind.value_type) for cells in self.cells)
        lists = {_is_column(item) for item in inside}
        if len(lists) == 1 and not of_lists:
            return lists.pop()
        raise SchemaError(
            "schema.ambiguous",
            f"cannot {attempt}: all columns are lists ({', '.join(self.names)}), so a dict of lists could be "
            "one row or a dict of columns",
            hint="give one row in a list, [{...}]; give columns as a frame, or as Polars or Arrow columns of lists",
        )

    def _refuse_mixture(self, given: Mapping[str, Any], attempt: str) -> NoReturn:
        columns = [name for name, value in given.items() if _is_column(value)]
        single = next(name for name in self.names if not _is_column(given.get(name)))
        self._check_names(list(given), attempt)
        raise SchemaError(
            "schema.value",
            f"cannot {attempt}: {columns[0]!r} is given as a column and {single!r} as one value, "
            f"{show(given.get(single))}; a dict holds columns or is one row",
            hint="give every column as a list, or every value alone",
            column=single,
        )

    def _check_names(self, names: Sequence[Any], attempt: str, row: int | None = None) -> None:
        where = "the rows have" if row is None else f"row {row} has"
        have = ", ".join(map(str, names)) or "no columns"
        for name in self.names:
            if name not in names:
                raise SchemaError(
                    "schema.column_missing",
                    f"cannot {attempt}: column {name!r} is missing; {where}: {have}",
                    hint=f"give every column: {', '.join(self.names)}",
                    column=name,
                    row=row,
                )
        for at, name in enumerate(names):
            if name not in self.names or names.index(name) != at:
                raise SchemaError(
                    "schema.column_unknown",
                    f"cannot {attempt}: column {name!r} is not declared, or stands twice; {where}: {have}",
                    hint=f"give the declared columns: {', '.join(self.names)}",
                    column=name,
                    row=row,
                )

    def _columns(self, given: Mapping[str, Any], attempt: str) -> pa.RecordBatch:
        self._check_names(list(given), attempt)
        arrays = []
        for cells in self.cells:
            array = _array(given[cells.field.name], cells, attempt)
            arrays.append(array)
            if len(array) != len(arrays[0]):
                raise SchemaError(
                    "schema.ragged",
                    f"cannot {attempt}: column {cells.field.name!r} has {len(array)} rows, and "
                    f"{self.names[0]!r} has {len(arrays[0])}",
                    hint="give columns of one length",
                    column=cells.field.name,
                )
        return self._batch(arrays)

    def _rows(self, rows: list[Any], attempt: str) -> pa.RecordBatch:
        if not rows:
            return self._batch([pa.array([], each.kind) for each in self.cells])
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
                self._refuse(row, attempt, at)
            named.append(fields)
        return self._batch(self._mappings(named, attempt))

    def _tuples(self, rows: Sequence[Any], attempt: str) -> list[pa.Array]:
        width = len(self.names)
        for at, row in enumerate(rows):
            if not isinstance(row, tuple | list):
                self._refuse(row, attempt, at)
            if len(row) != width:
                raise SchemaError(
                    "schema.ragged",
                    f"cannot {attempt}: row {at} has {len(row)} values, and there are {width} columns: "
                    f"{', '.join(self.names)}",
                    hint="give every row a value for each column, None where there is none",
                    row=at,
                    values=len(row),
                    columns=width,
                )
        return [
            cells.array([row[at] for row in rows], attempt) for at, cells in enumerate(self.cells)
        ]

    def _mappings(self, rows: Sequence[Mapping[str, Any]], attempt: str) -> list[pa.Array]:
        width = len(self.names)
        for at, row in enumerate(rows):
            if not isinstance(row, Mapping):
                self._refuse(row, attempt, at)
            if len(row) != width:
                self._check_names(list(row), attempt, at)
        try:
            columns = [[row[name] for row in rows] for name in self.names]
        except KeyError:
            for at, row in enumerate(rows):
                self._check_names(list(row), attempt, at)
            raise
        return [
            cells.array(column, attempt) for cells, column in zip(self.cells, columns, strict=True)
        ]


# By identity, since hashing a schema costs as much as reading a row; holding it keeps its id.
_KNOWN: dict[int, _Declared] = {}
_KEPT = 256


def _remember(schema: pa.Schema) -> _Declared:
    while len(_KNOWN) >= _KEPT:
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


def _array(given: Any, cells: CellConverter, attempt: str) -> pa.Array:
    """One column, however it is given."""
    if _is_pandas_column(given):
        return _from_pandas(given, cells, attempt)
    if isinstance(given, pl.Series):
        given = given.to_arrow()
    elif isinstance(given, np.ndarray):
        if given.dtype.kind == "O" or given.ndim != 1:
            return cells.array(list(given), attempt)
        given = pa.array(given)
    elif not isinstance(given, pa.Array | pa.ChunkedArray):
        return cells.array(list(given), attempt)
    if cells.text is not cells.kind:
        _check_spelled(given.type, cells.field, attempt)
    return conform_column(given, cells.field, cells.kind, attempt)


def _check_spelled(given: pa.DataType, field: pa.Field, attempt: str) -> None:
    """Refuse the codes of an enum where its values belong: only the engine takes those."""
    if not fits(given, spelled(field.type)):
        raise SchemaError(
            "schema.type_mismatch",
            f"cannot {attempt}: column {field.name!r} is {given}, declared as {type_text(field.type)}, whose values "
            "are text",
            hint="give the values of an enum as text, or as a Polars column of the enum",
            column=field.name,
            given=str(given),
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


def _from_pandas(series: Any, cells: CellConverter, attempt: str) -> pa.Array:
    if series.dtype == object:
        return cells.array(list(series), attempt, pandas=True)
    array = pa.array(series, from_pandas=True)
    t = pa.types
    if t.is_floating(array.type) and t.is_integer(cells.kind):
        raise SchemaError(
            "schema.type_mismatch",
            f"cannot {attempt}: column {cells.field.name!r} is {array.type}, declared as {cells.field.type}; "
            "pandas turns integers into floats when some are missing",
            hint=f'frame["{cells.field.name}"].astype("Int64") has missing integers',
            column=cells.field.name,
            given=str(array.type),
            declared=str(cells.field.type),
        )
    same_zone = t.is_timestamp(array.type) and getattr(cells.kind, "tz", "") == array.type.tz
    if same_zone or (t.is_duration(array.type) and t.is_duration(cells.kind)):
        with suppress(pa.ArrowInvalid):  # finer than declared: the check below says so
            array = array.cast(cells.kind)
    if cells.text is not cells.kind:
        _check_spelled(array.type, cells.field, attempt)
    return conform_column(array, cells.field, cells.kind, attempt)
