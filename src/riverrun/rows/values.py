"""Python values as values of a column: exactly, or not at all.

`ValueConverter` makes columns of one declared field; `rows.convert` has a converter for each declared column. Laws:

- **Same meaning.** A value becomes the value of the column that means the same. Nothing is truncated, parsed or
  guessed: ``1.0`` is no int, ``True`` is no number, a datetime is no date. An int is taken for a float where a float
  of the same value exists, and a str for the category of an enum with that text. Scalars of NumPy and Arrow count as
  the Python values they hold. NaT is null in a column of times; in rows of pandas NaN and NA are null too.
- **One rounding.** A Python float is rounded to the nearest value of a column declared float32 or float16, and refused
  if it is beyond the finite values of that type. Nothing else is rounded.
- **Named refusals.** A refusal names the row, the column, the value, and the reason.

>>> import pyarrow as pa
>>> numbers = ValueConverter.of(pa.field("n", pa.int64()))
>>> numbers.array([1, None, 3], "insert into 'numbers'").to_pylist()
[1, None, 3]
>>> numbers.array([1, "2"], "insert into 'numbers'")
Traceback (most recent call last):
    ...
riverrun.errors.SchemaError: cannot insert into 'numbers': row 1 has '2' in column 'n', declared as int64: it is a str
Hint: give an int or None

Cost: Arrow's conversion, and one pass over the classes of the values. Lists and structs are converted value by value in
Python, and so are columns of types for which Arrow would round or cut a value.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from riverrun.errors import SchemaError, listed, show, with_article
from riverrun.rows.types import FAMILIES, Family, family
from riverrun.state.schema import Schema, wrong_length
from riverrun.state.types import EnumType, NoCategory, encode, has_enums, spelled, type_text

__all__ = ["ValueConverter", "fields_of", "listed", "show"]

_FAILURES = (pa.ArrowException, ArithmeticError, UnicodeError, TypeError, ValueError)
_NONE = type(None)


_OFFSETS = struct.Struct("=qq").pack
_PACKED: dict[pa.DataType, tuple[type, Callable[[Any], bytes]]] = {
    pa.int64(): (int, struct.Struct("=q").pack),
    pa.int32(): (int, struct.Struct("=i").pack),
    pa.float64(): (float, struct.Struct("=d").pack),
    pa.large_string(): (str, str.encode),
}


class _Misfit(Exception):
    """A value is not one of the declared type; the text is the reason."""


@dataclass(frozen=True, slots=True)
class ValueConverter:
    """Makes columns of one declared field. Build it with `ValueConverter.of`."""

    field: pa.Field
    kind: pa.DataType
    """The canonical layout (`riverrun.state.schema`), that of the columns made here."""
    text: pa.DataType
    """The canonical layout with enums as text, as Python has them."""
    declared: pa.DataType
    """The type of the field. Holding it saves Arrow from building an enum type anew at each access."""
    plain: frozenset[type]
    """The Python classes whose every value Arrow either converts exactly or refuses."""
    packed: tuple[type, Callable[[Any], bytes]] | None
    """A Python class whose values become bytes of a column in one call, and that call."""
    incomplete: bool
    """Whether dicts inside the values may leave out names."""

    @classmethod
    def of(cls, field: pa.Field) -> ValueConverter:
        kind = Schema.of({field.name: field.type}, {}).canonical[0]
        text = spelled(field.type) if has_enums(field.type) else kind
        plain = _plain(text)
        packed = _PACKED.get(kind) if text is kind else None
        plain = plain | {_NONE} if field.nullable else plain
        return cls(field, kind, text, field.type, plain, packed, _has_optional(field.type))

    def one(self, value: Any, attempt: str) -> pa.Array:
        """A column of this one value, at a third of what Arrow takes for a list of one."""
        if self.packed is None or type(value) is not self.packed[0]:
            return self.array([value], attempt)
        try:
            data = self.packed[1](value)
        except (struct.error, UnicodeError):
            return self.array([value], attempt)
        if self.packed[0] is str:
            buffers = [None, pa.py_buffer(_OFFSETS(0, len(data))), pa.py_buffer(data)]
        else:
            buffers = [None, pa.py_buffer(data)]
        return pa.Array.from_buffers(self.kind, 1, buffers, 0)

    def array(
        self, values: Sequence[Any], attempt: str, *, first: int = 0, pandas: bool = False
    ) -> pa.Array:
        """A column of these values. `first` is the number of the first row, for errors. With `pandas`, NaN, NaT and NA
        are nulls too."""
        try:
            if not pandas and self.plain.issuperset(map(type, values)):
                return self._converted(values)
            return self._converted([self._exact(value, pandas) for value in values])
        except (_Misfit, NoCategory, *_FAILURES):
            return self._slowly(values, attempt, first, pandas)

    def _converted(self, values: Sequence[Any]) -> pa.Array:
        column = pa.array(values, self.text)
        if pa.types.is_nested(self.text):
            wrong = wrong_length(column, self.declared)
            if wrong is not None:
                raise _Misfit(f"there is {wrong}")
        return column if self.text is self.kind else encode(column, self.declared)

    def _exact(self, value: Any, pandas: bool) -> Any:
        is_no_time = type(value).__name__ == "NaTType" and pa.types.is_temporal(self.text)
        if is_no_time or (pandas and _is_missing(value)):
            value = None
        if value is None:
            if not self.field.nullable:
                raise _Misfit("the column is declared without nulls")
            return None
        return _exact(_completed(value, self.declared) if self.incomplete else value, self.text)

    def _slowly(self, values: Sequence[Any], attempt: str, first: int, pandas: bool) -> pa.Array:
        """Convert value by value, to name the value that is refused."""
        for at, value in enumerate(values):
            try:
                self._converted([self._exact(value, pandas)])
            except (_Misfit, NoCategory) as misfit:
                self._refuse(first + at, value, str(misfit), attempt, misfit)
            except _FAILURES as failure:
                self._refuse(
                    first + at, value, _reason(failure, self.text, value), attempt, failure
                )
        return self._converted([self._exact(value, pandas) for value in values])

    def _refuse(
        self, row: int, value: Any, reason: str, attempt: str, cause: Exception
    ) -> NoReturn:
        missing = value is None and not self.field.nullable
        inside, item, kind = _first_misfit(value, self.text)
        if inside and not reason.startswith("of its "):
            reason = f"{inside}{reason}"
        is_wide = _is_integer(item) and family(kind) == "integer"
        expected = _bounds(kind) if is_wide else _expected(kind)
        if inside:
            expected = f"{_expected(self.text)} in which each value is {expected}"
        expected += " or None" if self.field.nullable else ""
        if is_wide:
            expected += "; or declare a type with more digits, such as pl.Decimal(38, 0)"
        if isinstance(self.field.type, EnumType) and isinstance(value, str):
            expected = "one of them, or declare the enum with this category too"
        raise SchemaError(
            "schema.null" if missing else "schema.value",
            f"cannot {attempt}: row {row} has {show(value)} in column {show(self.field.name)}, "
            f"declared as {type_text(self.field.type)}: {reason}",
            hint="give a value, or declare the column nullable" if missing else f"give {expected}",
            row=row,
            column=self.field.name,
            value=show(value),
            declared=type_text(self.field.type),
        ) from cause


def fields_of(row: Any) -> Mapping[str, Any] | None:
    """The values of a row by name, if the row is a mapping, a dataclass, a NamedTuple or a NumPy record; else None."""
    if isinstance(row, Mapping):
        return row
    if isinstance(row, tuple):
        names = getattr(row, "_fields", None)
        return None if names is None else dict(zip(names, row, strict=True))
    names = declared_names(type(row))
    if names is not None:
        return {name: getattr(row, name) for name in names}
    if isinstance(row, np.void) and row.dtype.names:
        return {name: row[name] for name in row.dtype.names}
    return None


_MAY_LACK = b"riverrun.may_lack"


def as_optional(field: pa.Field) -> pa.Field:
    """A field that may be null, and whose name a dict of values may leave out."""
    return field.with_nullable(True).with_metadata({**(field.metadata or {}), _MAY_LACK: b""})


def is_optional(field: pa.Field) -> bool:
    """Whether a dict of values may leave out the name of a field."""
    return _MAY_LACK in (field.metadata or ())


def _has_optional(kind: pa.DataType) -> bool:
    """Whether dicts inside values of a type may leave out names."""
    if pa.types.is_struct(kind):
        return any(is_optional(field) or _has_optional(field.type) for field in kind)
    return _is_list(kind) and _has_optional(kind.value_type)


def without_optional(schema: pa.Schema) -> pa.Schema:
    """A schema of which no name may be left out: that of results."""
    if not any(is_optional(field) or _has_optional(field.type) for field in schema):
        return schema
    return pa.schema([_required(field) for field in schema])


def _required(field: pa.Field) -> pa.Field:
    kind = field.type
    if _has_optional(kind):
        if pa.types.is_struct(kind):
            kind = pa.struct([_required(each) for each in kind])
        elif pa.types.is_fixed_size_list(kind):
            kind = pa.list_(_required(kind.value_field), kind.list_size)
        else:
            make = pa.large_list if pa.types.is_large_list(kind) else pa.list_
            kind = make(_required(kind.value_field))
    kept = {key: value for key, value in (field.metadata or {}).items() if key != _MAY_LACK}
    return field.with_type(kind).with_metadata(kept or None)


def _completed(value: Any, kind: pa.DataType) -> Any:
    """A value whose dicts have None under the names that they left out."""
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        missing = {f.name: None for f in kind if is_optional(f) and f.name not in value}
        inside = {f.name: f.type for f in kind if _has_optional(f.type) and f.name in value}
        return {
            **value,
            **missing,
            **{name: _completed(value[name], inner) for name, inner in inside.items()},
        }
    if _is_list(kind) and isinstance(value, list | tuple):
        return [_completed(each, kind.value_type) for each in value]
    return value


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_nested(kind) and not pa.types.is_struct(kind)


def declared_names(kind: type) -> list[str] | None:
    """The fields that a dataclass, a model of pydantic or a class of attrs declares; None for other classes."""
    if dataclasses.is_dataclass(kind):
        return [each.name for each in dataclasses.fields(kind)]
    models = getattr(kind, "model_fields", None)  # pydantic's fields by name
    if isinstance(models, Mapping) and hasattr(kind, "model_validate"):
        return list(models)
    listed = getattr(kind, "__attrs_attrs__", None)
    return None if listed is None else [each.name for each in listed]


def _plain(kind: pa.DataType) -> frozenset[type]:
    """The classes whose every instance Arrow either converts exactly or refuses."""
    if pa.types.is_float64(kind):
        return frozenset({float, int})
    if pa.types.is_duration(kind) and kind.unit in ("us", "ns"):  # others would be cut
        return frozenset({datetime.timedelta})
    return FAMILIES[family(kind)].exact


def _is_missing(value: Any) -> bool:
    kind = type(value)
    if kind.__module__.startswith("pandas."):
        return kind.__name__ in ("NAType", "NaTType")
    return isinstance(value, float) and value != value


def _exact(value: Any, kind: pa.DataType) -> Any:
    """The value that Arrow turns into exactly this value of a column."""
    if value is None or (type(value).__name__ == "NaTType" and pa.types.is_temporal(kind)):
        return None  # NaT is what pandas has for no time
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    what = family(kind)
    if what not in ("list", "struct", "timestamp"):
        if isinstance(value, np.datetime64 | np.timedelta64):
            value = _time_of_numpy(value, kind)
        elif isinstance(value, np.generic):
            value = value.item()
    read = _EXACT_VALUES.get(what)
    return _only(value, *FAMILIES[what].taken) if read is None else read(value, kind)


def _duration(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, pa.Scalar):
        return value
    return _whole(_only(value, datetime.timedelta), kind.unit, value)


def _decimal(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, decimal.Decimal) and not value.is_finite():
        raise _Misfit("a decimal column has no NaN and no infinity")
    return _only(value, *FAMILIES["decimal"].taken)


def _date(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, datetime.datetime):
        raise _Misfit("it is a datetime, not a date")
    return _only(value, datetime.date)


def _binary(value: Any, kind: pa.DataType) -> Any:
    return bytes(_only(value, *FAMILIES["binary"].taken))


def _null(value: Any, kind: pa.DataType) -> Any:
    raise _Misfit("the column holds nulls only")


def _only(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise _Misfit(f"it is {with_article(type(value).__name__)}")
    return value


def _float(value: Any, kind: pa.DataType) -> Any:
    value = _only(value, float, int)
    if pa.types.is_float64(kind):
        return value
    narrow = np.float32 if pa.types.is_float32(kind) else np.float16
    with np.errstate(over="ignore"):
        near = float(narrow(value))
    if isinstance(value, int) and near != value:
        raise _Misfit(
            f"no {kind} has exactly this value; the nearest is {near!r}, and float(...) takes it"
        )
    if math.isinf(near) and not math.isinf(value):
        raise _Misfit(f"it is beyond all numbers of {kind}")
    return near


def _time_of_numpy(value: np.datetime64 | np.timedelta64, kind: pa.DataType) -> Any:
    """A NumPy time as a Python time; a duration in nanoseconds, which Python does not have, as an Arrow scalar."""
    item = value.item()
    if not isinstance(item, int):  # NumPy gives an int where Python has no class for the time
        return item
    is_span = isinstance(value, np.timedelta64) and np.datetime_data(value.dtype)[0] == "ns"
    if not is_span or not pa.types.is_duration(kind):
        raise _Misfit(f"it is {with_article(str(value.dtype))}")
    try:
        return pa.scalar(value).cast(kind)
    except pa.ArrowException as error:
        raise _Misfit(f"it is finer than {kind.unit}") from error


def _moment(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, np.datetime64):
        unit = np.datetime_data(value.dtype)[0]
        if unit in ("h", "m"):
            value = value.astype("datetime64[s]")
        elif unit not in ("s", "ms", "us", "ns", "generic"):
            raise _Misfit(f"it is {with_article(str(value.dtype))}, and no instant")
        scalar = pa.scalar(value)
        if kind.tz is not None:
            raise _Misfit("it has no time zone, and the column has")
        try:
            return scalar.cast(kind)
        except pa.ArrowException as error:
            raise _Misfit(f"it is finer than {kind.unit}") from error
    value = _only(value, datetime.datetime)
    if (value.tzinfo is None) != (kind.tz is None):
        has, lacks = ("the column", "it") if value.tzinfo is None else ("it", "the column")
        raise _Misfit(f"{has} has a time zone, and {lacks} has none")
    if getattr(value, "nanosecond", 0) and kind.unit != "ns":
        raise _Misfit(f"it is finer than {kind.unit}")
    return _fine(value, value.microsecond, kind.unit)


def _time(value: Any, kind: pa.DataType) -> Any:
    value = _only(value, datetime.time)
    if value.tzinfo is not None:
        raise _Misfit("it has a time zone, and the column has none")
    return _fine(value, value.microsecond, kind.unit)


def _whole(value: datetime.timedelta, unit: str, original: Any) -> Any:
    if getattr(original, "nanoseconds", 0) and unit != "ns":
        raise _Misfit(f"it is finer than {unit}")
    return _fine(value, value.microseconds, unit)


def _fine(value: Any, microseconds: int, unit: str) -> Any:
    if (unit == "s" and microseconds) or (unit == "ms" and microseconds % 1000):
        raise _Misfit(f"it is finer than {unit}")
    return value


def _list(value: Any, kind: pa.DataType) -> Any:
    inner = kind.value_type
    if isinstance(value, np.ndarray) and value.dtype.kind in "mM":
        value = list(value)  # nanoseconds would become plain numbers
    elif isinstance(value, np.ndarray | pa.Array):
        value = value.tolist()
    items = _only(value, *FAMILIES["list"].taken)
    if _plain(inner).issuperset(map(type, items)):
        return items
    return [_exact(item, inner) for item in items]


def _struct(value: Any, kind: pa.DataType) -> dict[str, Any]:
    named = fields_of(value)
    if named is None:
        raise _Misfit(f"it is {with_article(type(value).__name__)}")
    names = [field.name for field in kind]
    for name in names:
        if name not in named:
            raise _Misfit(f"its field {show(name)} is missing")
    for name in named:
        if name not in names:
            raise _Misfit(f"its field {show(name)} is not declared")
    return {field.name: _exact(named[field.name], field.type) for field in kind}


_EXACT_VALUES: dict[Family, Callable[[Any, pa.DataType], Any]] = {
    "null": _null,
    "float": _float,
    "decimal": _decimal,
    "binary": _binary,
    "date": _date,
    "time": _time,
    "timestamp": _moment,
    "duration": _duration,
    "list": _list,
    "struct": _struct,
}
"""Conversions of the families for which the class of a value does not decide alone."""


def _reason(failure: Exception, kind: pa.DataType, value: Any) -> str:
    what = family(kind)
    named = (fields_of(value) or {}) if what == "struct" else {}
    for field in kind if named else ():
        try:
            pa.array([_exact(named[field.name], field.type)], field.type)
        except _FAILURES as its:
            return f"of its field {field.name!r}, {_reason(its, field.type, named[field.name])}"
    if what == "list":
        for item in value:
            try:
                pa.array([_exact(item, kind.value_type)], kind.value_type)
            except _FAILURES as its:
                return f"of its item {show(item)}, {_reason(its, kind.value_type, item)}"
    if what == "integer":
        return "it is out of range"
    if what == "float":
        return "no float has exactly this value"
    if what == "text":
        return "it cannot be written as UTF-8"
    if what == "decimal" and "NaN" in str(failure):
        return "a decimal column has no NaN and no infinity"
    if what == "decimal":
        return f"the type has {kind.precision - kind.scale} digits before the point and {kind.scale} behind it"
    return str(failure).split("\n")[0]


def _first_misfit(value: Any, kind: pa.DataType) -> tuple[str, Any, pa.DataType]:
    """The first value inside a list or a struct that cannot be taken: where it is in words, the value, and its type.
    Otherwise the value itself, which is nowhere inside."""
    inner: list[tuple[str, Any, pa.DataType]] = []
    if family(kind) == "list" and isinstance(value, list | tuple):
        inner = [(f"of its item {show(item)}, ", item, kind.value_type) for item in value]
    elif family(kind) == "struct" and isinstance(value, Mapping):
        inner = [
            (f"of its field {field.name!r}, ", value[field.name], field.type)
            for field in kind
            if field.name in value
        ]
    for where, item, its in inner:
        try:
            pa.array([_exact(item, its)], its)
        except (_Misfit, *_FAILURES):
            _, deepest, its_kind = _first_misfit(item, its)
            return where, deepest, its_kind
    return "", value, kind


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _bounds(kind: pa.DataType) -> str:
    bits = kind.bit_width
    if pa.types.is_unsigned_integer(kind):
        return f"an int from 0 to 2**{bits} - 1"
    return f"an int from -2**{bits - 1} to 2**{bits - 1} - 1"


def _expected(kind: pa.DataType) -> str:
    text = FAMILIES[family(kind)].expected
    if pa.types.is_timestamp(kind):
        return f"{text} with a time zone" if kind.tz else f"{text} without a time zone"
    return f"{text} of the declared length" if pa.types.is_fixed_size_binary(kind) else text
