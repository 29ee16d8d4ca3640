"""Columns as users declare them, in any of the languages that have schemas.

Taken are an Arrow schema; a mapping from names to Arrow, Polars, NumPy or Python types or their names
(``"long"``, ``"timestamp[us, UTC]"``), or pairs of the two in a list; columns as text
(``"src long, dst long"``, `spellings`); a Polars schema; a frame, for its own schema; a Spark
``StructType``; a dataclass, NamedTuple, TypedDict, model of pydantic or class of attrs, for its
annotations. ``pl.Enum``, and an ordered categorical of pandas, is text with an order of its own. A class
says which columns may be null: those with ``| None``. The other forms allow nulls unless they say
otherwise. Which types and names there are, the table says (`types`).

>>> import datetime, polars as pl
>>> from typing import NamedTuple
>>> as_schema({"src": pl.Int64, "name": str, "when": datetime.date}, "declare input 'edges'")
src: int64
name: string
when: date32[day]
>>> as_schema("src long, dst long not null", "declare input 'edges'")
src: int64
dst: int64 not null
>>> class Sale(NamedTuple):
...     item: str
...     price: float | None
>>> print(as_schema(Sale, "declare input 'sales'"))
item: string not null
price: double
>>> as_schema({"price": complex}, "declare input 'sales'")
Traceback (most recent call last):
    ...
riverrun.errors.SchemaError: cannot declare input 'sales': column 'price' is declared as complex, ...
Hint: give an Arrow type (pyarrow.int64()), a Polars type (pl.Int64), a name ("long") or a Python type (int, ...
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

import numpy as np
import polars as pl
import pyarrow as pa

from riverrun.errors import SchemaError
from riverrun.rows.spellings import nearest_type, parse_columns, parse_type
from riverrun.rows.types import (
    BY_NAME,
    DIGITS,
    POLARS,
    PYTHON,
    UnknownParameters,
    is_zone,
    unknown_zone,
)
from riverrun.rows.values import declared_names
from riverrun.state.schema import Schema
from riverrun.state.types import EnumType, declared_type, has_enums

__all__ = ["arrow_type", "as_schema"]


def as_schema(given: Any, attempt: str) -> pa.Schema:
    """The Arrow schema that `given` declares; `attempt` says what for: "declare input 'edges'"."""
    schema = _Reader(attempt).schema(given)
    seen: set[str] = set()
    for field in schema:
        if field.name in seen:
            raise SchemaError(
                "schema.column_twice",
                f"cannot {attempt}: column {field.name!r} is declared twice: a name is one column",
                hint="rename one of the two",
                column=field.name,
            )
        seen.add(field.name)
        Schema.of({field.name: field.type}, {})  # refuses types that states cannot hold
    return schema


class _Reader:
    def __init__(self, attempt: str) -> None:
        self.attempt = attempt

    def schema(self, given: Any) -> pa.Schema:
        if isinstance(given, pa.Schema):
            return self._of_arrow(given)
        if isinstance(given, str):
            return self._of_arrow(parse_columns(given, self.attempt))
        if isinstance(given, Mapping):
            return pa.schema([self._field(name, kind, True) for name, kind in given.items()])
        if isinstance(given, list | tuple) and all(map(_is_pair, given)):
            return pa.schema([self._field(each[0], each[1], True) for each in given])
        if isinstance(given, type):
            return self._class_schema(given)
        if isinstance(given, pl.DataFrame | pl.LazyFrame):
            return self.schema(given.collect_schema())
        if hasattr(given, "fields") and hasattr(given, "jsonValue"):
            return pa.schema([self._spark_field(each) for each in given.jsonValue()["fields"]])
        module = type(given).__module__.partition(".")[0]
        if module == "pandas" and hasattr(given, "columns"):
            schema = pa.Schema.from_pandas(given, preserve_index=False)
            enums = {name: _pandas_enum(column) for name, column in given.items()}
            return self._of_arrow(
                pa.schema([f.with_type(enums.get(f.name) or f.type) for f in schema])
            )
        inner = getattr(given, "schema", None)
        if isinstance(inner, pa.Schema) or (module == "pyspark" and inner is not None):
            return self.schema(inner)
        if hasattr(given, "__arrow_c_schema__"):
            return self._of_arrow(pa.schema(given))
        if hasattr(given, "__arrow_c_stream__"):
            return self._of_arrow(pa.RecordBatchReader.from_stream(given).schema)
        raise SchemaError(
            "schema.malformed",
            f"cannot {self.attempt}: columns cannot be declared as {given!r}",
            hint='give names and types, {"src": pl.Int64}, or text as Spark has it, "src long, dst long", '
            "or an Arrow, Polars or Spark schema, a frame, or a class with annotations",
            given=repr(given),
        )

    def _of_arrow(self, given: pa.Schema) -> pa.Schema:
        return pa.schema([self._arrow_field(field) for field in given])

    def _arrow_field(self, field: pa.Field) -> pa.Field:
        kind = declared_type(field)
        self._check_order(field.name, kind)
        return field.with_type(kind).remove_metadata() if has_enums(kind) else field

    def _check_order(self, name: str, kind: pa.DataType) -> None:
        """Refuse a dictionary that has an order and does not say which."""
        if pa.types.is_nested(kind):
            for at in range(kind.num_fields):
                self._check_order(name, kind.field(at).type)
        elif pa.types.is_dictionary(kind) and kind.ordered:
            raise SchemaError(
                "schema.type_unsupported",
                f"cannot {self.attempt}: column {name!r} is declared as {kind}: its values have an order, and the type "
                "does not say which",
                hint='pl.Enum(["low", "mid", "high"]) says the values and their order; without ordered=True they are '
                "in the order of their text",
                column=name,
                declared=str(kind),
            )

    def _field(self, name: Any, given: Any, nullable: bool) -> pa.Field:
        if not isinstance(name, str):
            raise SchemaError(
                "schema.malformed",
                f"cannot {self.attempt}: a column is named {name!r}, and names are strings",
                hint="name every column with a string",
                given=repr(name),
            )
        if isinstance(given, pa.Field):
            return self._arrow_field(given.with_name(name))
        if isinstance(given, str):
            field = parse_type(given, name, self.attempt)
            return self._arrow_field(field.with_nullable(nullable and field.nullable))
        inner, optional = _without_none(given)
        kind = self._type(name, inner)
        return pa.field(name, kind, nullable or optional or pa.types.is_null(kind))

    def _type(self, name: str, given: Any) -> pa.DataType:
        if isinstance(given, pa.DataType):
            return self._arrow_field(pa.field(name, given)).type
        if isinstance(given, pl.DataType) or (
            isinstance(given, type) and issubclass(given, pl.DataType)
        ):
            return self._polars_type(name, given)
        known = PYTHON.get(given) if isinstance(given, type) else None
        if known is not None:
            return known
        if hasattr(given, "__supertype__"):
            return self._type(name, given.__supertype__)
        origin, arguments = typing.get_origin(given), typing.get_args(given)
        if origin is typing.Annotated:
            exact = [each for each in arguments[1:] if isinstance(each, pa.DataType)]
            return exact[0] if exact else self._type(name, arguments[0])
        if origin is typing.Literal and len({type(each) for each in arguments}) == 1:
            return self._type(name, type(arguments[0]))
        if (origin in (list, Sequence) and len(arguments) == 1) or (
            origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis
        ):
            inner, optional = _without_none(arguments[0])
            return pa.list_(pa.field("item", self._type(name, inner), optional))
        if isinstance(given, np.dtype) or (
            isinstance(given, type) and issubclass(given, np.generic)
        ):
            return self._numpy_type(name, given)
        if isinstance(given, type) and _has_fields(given):
            return pa.struct(list(self._class_schema(given)))
        if hasattr(given, "jsonValue"):
            return self._spark_type(name, given.jsonValue())
        self._refuse(name, given)

    def _class_schema(self, given: type) -> pa.Schema:
        if not _has_fields(given):
            raise SchemaError(
                "schema.malformed",
                f"cannot {self.attempt}: {given.__name__} is a class without declared fields",
                hint="make it a dataclass, a NamedTuple, a TypedDict, or a model of pydantic",
                given=given.__name__,
            )
        try:
            annotations = _annotations(given)
        except NameError as error:
            raise SchemaError(
                "schema.malformed",
                f"cannot {self.attempt}: an annotation of {given.__name__} is not known where that is defined: {error}",
                hint="define what annotations name at the top of the module, or leave out `from __future__ import "
                "annotations`",
                given=given.__name__,
            ) from error
        return pa.schema([self._field(name, kind, False) for name, kind in annotations.items()])

    def _polars_type(self, name: str, given: Any) -> pa.DataType:
        if given == pl.Object:
            self._refuse(name, given)
        self._check_parameters(name, given)
        try:
            return arrow_type(given)
        except (
            pl.exceptions.PolarsError,
            pl.exceptions.PanicException,
            pa.ArrowException,
        ) as error:
            self._refuse(name, given, error)
        except (TypeError, ValueError) as error:
            self._refuse(name, given, error)

    def _check_parameters(self, name: str, given: Any) -> None:
        """Refuse a type of Polars that is only the kind of one: of which values, it does not say."""
        if given == pl.Unknown:
            raise SchemaError(
                "schema.type_unsupported",
                f"cannot {self.attempt}: column {name!r} is declared as Unknown, which Polars says of columns whose "
                "type is yet to be found out",
                hint="say the type: pl.Int64, for instance; pl.Null is that of a column of nulls",
                column=name,
                declared="Unknown",
            )
        entry = POLARS.get(given) if isinstance(given, type) else None
        if entry is not None and entry.family in ("enum", "list", "struct"):
            raise SchemaError(
                "schema.type_unsupported",
                f"cannot {self.attempt}: column {name!r} is declared as {given}, which does not say of what",
                hint=f"for instance {entry.polars}",
                column=name,
                declared=str(given),
            )
        inner = getattr(given, "inner", None)
        if inner is not None:
            self._check_parameters(name, inner)
        for field in getattr(given, "fields", ()) if isinstance(given, pl.Struct) else ():
            self._check_parameters(name, field.dtype)

    def _numpy_type(self, name: str, given: Any) -> pa.DataType:
        dtype = np.dtype(given)
        if dtype.kind in "US":
            return pa.string() if dtype.kind == "U" else pa.binary()
        try:
            return pa.from_numpy_dtype(dtype)
        except pa.ArrowException as error:
            self._refuse(name, given, error)

    def _spark_field(self, written: Mapping[str, Any]) -> pa.Field:
        kind = self._spark_type(written["name"], written["type"])
        nullable = bool(written.get("nullable", True)) or pa.types.is_null(kind)
        return pa.field(written["name"], kind, nullable)

    def _spark_type(self, name: str, written: Any) -> pa.DataType:
        """A type as Spark writes it in JSON."""
        if isinstance(written, str):
            return parse_type(written, name, self.attempt).type
        if written["type"] == "array":
            inner = self._spark_type(name, written["elementType"])
            return pa.list_(pa.field("item", inner, bool(written.get("containsNull", True))))
        if written["type"] == "struct":
            return pa.struct([self._spark_field(each) for each in written["fields"]])
        self._refuse(name, written, hint=nearest_type(str(written["type"])))

    def _refuse(
        self, name: str, given: Any, cause: BaseException | None = None, hint: str = ""
    ) -> NoReturn:
        shown = given.__name__ if isinstance(given, type) else str(given)
        rule = _broken_rule(given)
        if rule is not None:
            raise SchemaError(
                "schema.type_unsupported",
                f"cannot {self.attempt}: column {name!r} is declared as {shown}: {rule}",
                hint=rule.hint,
                column=name,
                declared=shown,
            ) from cause
        close = get_close_matches(shown.lower(), BY_NAME, n=1)
        nearest = f"did you mean {close[0]!r}? " if close and close[0] != "decimal" else ""
        raise SchemaError(
            "schema.type_unsupported",
            f"cannot {self.attempt}: column {name!r} is declared as {shown}, which is no type of columns",
            hint=hint
            or f'{nearest}give an Arrow type (pyarrow.int64()), a Polars type (pl.Int64), a name ("long") or a Python '
            "type (int, float, str, bool, bytes, datetime.*, list[...]); a decimal needs its digits: "
            "pyarrow.decimal128(12, 2)",
            column=name,
            declared=shown,
        ) from cause


def _broken_rule(given: Any) -> UnknownParameters | None:
    """Which rule the parameters of a type of Polars break; None where the type itself is none of ours."""
    while getattr(given, "inner", None) is not None:
        given = given.inner
    digits = getattr(given, "precision", None)
    if isinstance(given, pl.Decimal) and isinstance(digits, int) and not 1 <= digits <= DIGITS:
        return UnknownParameters(
            f"a decimal has 1 to {DIGITS} digits",
            f"pl.Decimal({DIGITS}, {given.scale}), or pl.Float64 where digits may be lost",
        )
    zone = getattr(given, "time_zone", None)
    if isinstance(given, pl.Datetime) and zone is not None and not is_zone(zone):
        return unknown_zone(zone)
    return None


def _is_pair(given: Any) -> bool:
    """Whether it is a column as Polars, Arrow and dtypes of NumPy list them: a name and a type."""
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str)


def arrow_type(given: Any) -> pa.DataType:
    """The type of ours for a type of Polars."""
    return declared_type(pl.DataFrame(schema={"": given}).to_arrow().schema.field(0))


def _pandas_enum(column: Any) -> EnumType | None:
    """The enum that an ordered categorical of pandas is, if its categories are text."""
    dtype = column.dtype
    if not getattr(dtype, "ordered", False):
        return None
    categories = list(dtype.categories)
    return EnumType(categories) if all(isinstance(each, str) for each in categories) else None


def _has_fields(given: type) -> bool:
    """Whether it is a dataclass, a NamedTuple, a TypedDict, a model of pydantic or a class of attrs."""
    is_named_tuple = issubclass(given, tuple) and hasattr(given, "_fields")
    return is_named_tuple or typing.is_typeddict(given) or declared_names(given) is not None


def _annotations(given: type) -> dict[str, Any]:
    """The annotations of the declared fields of a class."""
    names = declared_names(given)
    return {
        name: _without_required(hint)
        for name, hint in typing.get_type_hints(given, include_extras=True).items()
        if names is None or name in names
    }


def _without_required(hint: Any) -> Any:
    required = typing.get_origin(hint) in (typing.Required, typing.NotRequired)
    return typing.get_args(hint)[0] if required else hint


def _without_none(given: Any) -> tuple[Any, bool]:
    """A type, and whether None was allowed beside it."""
    if typing.get_origin(given) not in (typing.Union, types.UnionType):
        return given, given is None
    others = [each for each in typing.get_args(given) if each is not type(None)]
    optional = len(others) < len(typing.get_args(given))
    return (others[0] if len(others) == 1 else typing.Union[tuple(others)]), optional  # noqa: UP007
