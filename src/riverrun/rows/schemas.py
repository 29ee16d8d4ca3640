"""Columns as users declare them, in any of the languages that have schemas, as one Arrow schema.

Inputs, states, vertices (``flow.vertex``) and functions of users declare columns; `as_schema` reads

- an Arrow schema, a Polars schema, a Spark ``StructType``;
- a frame, of which only the schema counts;
- a mapping from names to types, or a list of pairs of a name and a type. A type is one of Arrow, Polars, NumPy or
  Python, or the name of a type: ``"long"``, ``"timestamp[us, UTC]"``;
- text: ``"src long, dst long"`` (read by `spellings`);
- a class with annotations: a dataclass, NamedTuple, TypedDict, model of pydantic, or class of attrs.

A column that is declared twice is refused, and so is a type that states cannot hold. The table of `types` has the types
and their names. ``pl.Enum``, and an ordered categorical of pandas whose categories are text, is text with an order of
its own. Columns may be null unless their declaration says otherwise; in a class, a column may be null where its
annotation has ``| None``.

An annotation with a type of its own means that type: ``Annotated[int, pl.Int32]`` or ``Annotated[int, "int32"]``; other
things in ``Annotated`` are ignored. An alias, ``type UserId = int``, means what it stands for. A key that a TypedDict
need not have (``NotRequired``, ``total=False``) is a column that may be null, and a dict may leave the key out.

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

import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from typing import Any, NoReturn

import numpy as np
import polars as pl
import pyarrow as pa

from riverrun.errors import SchemaError
from riverrun.rows.spellings import is_type_text, nearest_type, parse_columns, parse_type
from riverrun.rows.types import (
    BY_NAME,
    DIGITS,
    POLARS,
    PYTHON,
    UnknownParameters,
    is_zone,
    unknown_zone,
)
from riverrun.rows.values import as_optional, declared_names, show
from riverrun.state.schema import Schema
from riverrun.state.types import EnumType, declared_type, has_enums

__all__ = ["arrow_type", "as_schema"]


def as_schema(declaration: Any, attempt: str) -> pa.Schema:
    """The Arrow schema that a declaration means; `attempt` is the purpose, for errors: "declare input 'edges'"."""
    try:
        schema = _DeclarationReader(attempt).schema(declaration)
    except RecursionError as error:
        raise SchemaError(
            "schema.malformed",
            f"cannot {attempt}: {declaration!r} contains itself, and a column has a fixed depth",
            hint="make the inner part a column of keys, or keep it as text",
            given=repr(declaration),
        ) from error
    seen: set[str] = set()
    for field in schema:
        if field.name in seen:
            raise SchemaError(
                "schema.column_twice",
                f"cannot {attempt}: column {show(field.name)} is declared twice: a name is one column",
                hint="rename one of the two",
                column=field.name,
            )
        seen.add(field.name)
        Schema.of({field.name: field.type}, {})  # refuses types that states cannot hold
    return schema


class _DeclarationReader:
    """Reads one declaration of columns, in any form."""

    def __init__(self, attempt: str) -> None:
        self.attempt = attempt

    def schema(self, declaration: Any) -> pa.Schema:
        if isinstance(declaration, pa.Schema):
            return self._of_arrow(declaration)
        if isinstance(declaration, str):
            return self._of_arrow(parse_columns(declaration, self.attempt))
        if isinstance(declaration, Mapping):
            return pa.schema([self._field(name, kind, True) for name, kind in declaration.items()])
        if isinstance(declaration, list | tuple) and all(map(_is_pair, declaration)):
            return pa.schema([self._field(each[0], each[1], True) for each in declaration])
        if isinstance(declaration, type):
            return self._class_schema(declaration)
        if isinstance(declaration, pl.DataFrame | pl.LazyFrame):
            return self.schema(declaration.collect_schema())
        if hasattr(declaration, "fields") and hasattr(declaration, "jsonValue"):
            return pa.schema(
                [self._spark_field(each) for each in declaration.jsonValue()["fields"]]
            )
        module = type(declaration).__module__.partition(".")[0]
        if module == "pandas" and hasattr(declaration, "columns"):
            schema = pa.Schema.from_pandas(declaration, preserve_index=False)
            enums = {name: _pandas_enum(column) for name, column in declaration.items()}
            return self._of_arrow(
                pa.schema([f.with_type(enums.get(f.name) or f.type) for f in schema])
            )
        inner = getattr(declaration, "schema", None)
        if isinstance(inner, pa.Schema) or (module == "pyspark" and inner is not None):
            return self.schema(inner)
        if hasattr(declaration, "__arrow_c_schema__"):
            return self._of_arrow(pa.schema(declaration))
        if hasattr(declaration, "__arrow_c_stream__"):
            return self._of_arrow(pa.RecordBatchReader.from_stream(declaration).schema)
        raise SchemaError(
            "schema.malformed",
            f"cannot {self.attempt}: columns cannot be declared as {declaration!r}",
            hint='give names and types, {"src": pl.Int64}, or text as Spark has it, "src long, dst long", '
            "or an Arrow, Polars or Spark schema, a frame, or a class with annotations",
            given=repr(declaration),
        )

    def _of_arrow(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([self._arrow_field(field) for field in schema])

    def _arrow_field(self, field: pa.Field) -> pa.Field:
        kind = declared_type(field)
        self._check_order(field.name, kind)
        return field.with_type(kind).remove_metadata() if has_enums(kind) else field

    def _check_order(self, name: str, kind: pa.DataType) -> None:
        """Refuse an ordered dictionary type: the type does not say in which order its values are."""
        if pa.types.is_nested(kind):
            for at in range(kind.num_fields):
                self._check_order(name, kind.field(at).type)
        elif pa.types.is_dictionary(kind) and kind.ordered:
            raise SchemaError(
                "schema.type_unsupported",
                f"cannot {self.attempt}: column {show(name)} is declared as {kind}: its values have an order, and the "
                "type does not say which",
                hint='pl.Enum(["low", "mid", "high"]) says the values and their order; without ordered=True they are '
                "in the order of their text",
                column=name,
                declared=str(kind),
            )

    def _field(self, name: Any, declared: Any, nullable: bool) -> pa.Field:
        if not isinstance(name, str):
            raise SchemaError(
                "schema.malformed",
                f"cannot {self.attempt}: a column is named {show(name)}, and names are strings",
                hint="name every column with a string",
                given=repr(name),
            )
        if isinstance(declared, pa.Field):
            return self._arrow_field(declared.with_name(name))
        if isinstance(declared, str):
            field = parse_type(declared, name, self.attempt)
            return self._arrow_field(field.with_nullable(nullable and field.nullable))
        inner, optional = _without_none(declared)
        exact = self._annotated_type(name, inner)
        kind = self._type(name, inner) if exact is None else exact
        return pa.field(name, kind, nullable or optional or pa.types.is_null(kind))

    def _annotated_type(self, name: str, declared: Any) -> pa.DataType | None:
        """The type that stands in ``Annotated[...]`` beside another type; None where none does."""
        if typing.get_origin(declared) is not typing.Annotated:
            return None
        for each in typing.get_args(declared)[1:]:
            if isinstance(each, str) and is_type_text(each):
                return self._arrow_field(parse_type(each, name, self.attempt)).type
            if isinstance(each, pa.DataType | pl.DataType | np.dtype) or (
                isinstance(each, type) and issubclass(each, pl.DataType | np.generic)
            ):
                return self._type(name, each)
        return None

    def _type(self, name: str, declared: Any) -> pa.DataType:
        if isinstance(declared, pa.DataType):
            return self._arrow_field(pa.field(name, declared)).type
        if isinstance(declared, pl.DataType) or (
            isinstance(declared, type) and issubclass(declared, pl.DataType)
        ):
            return self._polars_type(name, declared)
        known = PYTHON.get(declared) if isinstance(declared, type) else None
        if known is not None:
            return known
        if hasattr(declared, "__supertype__"):
            return self._type(name, declared.__supertype__)
        meant = _aliased(declared)
        if meant is not declared:
            return self._type(name, meant)
        origin, arguments = typing.get_origin(declared), typing.get_args(declared)
        if origin is typing.Annotated:
            exact = self._annotated_type(name, declared)
            return self._type(name, arguments[0]) if exact is None else exact
        if origin is typing.Literal and len({type(each) for each in arguments}) == 1:
            return self._type(name, type(arguments[0]))
        if (origin in (list, Sequence) and len(arguments) == 1) or (
            origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis
        ):
            inner, optional = _without_none(arguments[0])
            return pa.list_(pa.field("item", self._type(name, inner), optional))
        if isinstance(declared, np.dtype) or (
            isinstance(declared, type) and issubclass(declared, np.generic)
        ):
            return self._numpy_type(name, declared)
        if isinstance(declared, type) and _has_fields(declared):
            return pa.struct(list(self._class_schema(declared)))
        if hasattr(declared, "jsonValue"):
            return self._spark_type(name, declared.jsonValue())
        self._refuse(name, declared)

    def _class_schema(self, row_class: type) -> pa.Schema:
        if not _has_fields(row_class):
            rule, hint = _lacking(row_class)
            raise SchemaError(
                "schema.malformed",
                f"cannot {self.attempt}: {row_class.__name__} is {rule}",
                hint=hint,
                given=row_class.__name__,
            )
        try:
            annotations = _annotations(row_class)
        except NameError as error:
            raise SchemaError(
                "schema.malformed",
                f"cannot {self.attempt}: an annotation of {row_class.__name__} is not known where that is defined: "
                f"{error}",
                hint="define what annotations name at the top of the module, or leave out `from __future__ import "
                "annotations`",
                given=row_class.__name__,
            ) from error
        untyped = [name for name in getattr(row_class, "_fields", ()) if name not in annotations]
        if untyped:
            raise SchemaError(
                "schema.malformed",
                f"cannot {self.attempt}: {row_class.__name__} is a namedtuple whose fields have no types",
                hint=f"typing.NamedTuple has types: class {row_class.__name__}(NamedTuple): {untyped[0]}: int",
                given=row_class.__name__,
            )
        fields = []
        for name, annotation in annotations.items():
            kind, required = _without_required(annotation)
            if name in getattr(row_class, "__optional_keys__", ()) and required is None:
                required = False
            field = self._field(name, kind, False)
            fields.append(as_optional(field) if required is False else field)
        return pa.schema(fields)

    def _polars_type(self, name: str, declared: Any) -> pa.DataType:
        if declared == pl.Object:
            self._refuse(name, declared)
        self._check_parameters(name, declared)
        try:
            return arrow_type(declared)
        except (
            pl.exceptions.PolarsError,
            pl.exceptions.PanicException,
            pa.ArrowException,
        ) as error:
            self._refuse(name, declared, error)
        except (TypeError, ValueError) as error:
            self._refuse(name, declared, error)

    def _check_parameters(self, name: str, declared: Any) -> None:
        """Refuse a Polars class that needs parameters and has none: pl.List without the type of its items."""
        if declared == pl.Unknown:
            raise SchemaError(
                "schema.type_unsupported",
                f"cannot {self.attempt}: column {show(name)} is declared as Unknown, which Polars says of columns "
                "whose type is yet to be found out",
                hint="say the type: pl.Int64, for instance; pl.Null is that of a column of nulls",
                column=name,
                declared="Unknown",
            )
        entry = POLARS.get(declared) if isinstance(declared, type) else None
        if entry is not None and entry.family in ("enum", "list", "struct"):
            raise SchemaError(
                "schema.type_unsupported",
                f"cannot {self.attempt}: column {show(name)} is declared as {declared}, which does not say of what",
                hint=f"for instance {entry.polars}",
                column=name,
                declared=str(declared),
            )
        inner = getattr(declared, "inner", None)
        if inner is not None:
            self._check_parameters(name, inner)
        for field in getattr(declared, "fields", ()) if isinstance(declared, pl.Struct) else ():
            self._check_parameters(name, field.dtype)

    def _numpy_type(self, name: str, declared: Any) -> pa.DataType:
        dtype = np.dtype(declared)
        if dtype.kind in "US":
            return pa.string() if dtype.kind == "U" else pa.binary()
        try:
            return pa.from_numpy_dtype(dtype)
        except pa.ArrowException as error:
            self._refuse(name, declared, error)

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
        self, name: str, declared: Any, cause: BaseException | None = None, hint: str = ""
    ) -> NoReturn:
        shown = declared.__name__ if isinstance(declared, type) else str(declared)
        rule = _broken_rule(declared)
        if rule is not None:
            raise SchemaError(
                "schema.type_unsupported",
                f"cannot {self.attempt}: column {show(name)} is declared as {shown}: {rule}",
                hint=rule.hint,
                column=name,
                declared=shown,
            ) from cause
        hint = hint or _class_hint(declared)
        close = get_close_matches(shown.lower(), BY_NAME, n=1)
        nearest = f"did you mean {close[0]!r}? " if close and close[0] != "decimal" else ""
        raise SchemaError(
            "schema.type_unsupported",
            f"cannot {self.attempt}: column {show(name)} is declared as {shown}, which is no type of columns",
            hint=hint
            or f'{nearest}give an Arrow type (pyarrow.int64()), a Polars type (pl.Int64), a name ("long") or a Python '
            "type (int, float, str, bool, bytes, datetime.*, list[...]); a decimal needs its digits: "
            "pyarrow.decimal128(12, 2)",
            column=name,
            declared=shown,
        ) from cause


def _broken_rule(declared: Any) -> UnknownParameters | None:
    """The rule that the parameters of a Polars type break; None where the parameters are not at fault."""
    while getattr(declared, "inner", None) is not None:
        declared = declared.inner
    digits = getattr(declared, "precision", None)
    if isinstance(declared, pl.Decimal) and isinstance(digits, int) and not 1 <= digits <= DIGITS:
        return UnknownParameters(
            f"a decimal has 1 to {DIGITS} digits",
            f"pl.Decimal({DIGITS}, {declared.scale}), or pl.Float64 where digits may be lost",
        )
    zone = getattr(declared, "time_zone", None)
    if isinstance(declared, pl.Datetime) and zone is not None and not is_zone(zone):
        return unknown_zone(zone)
    return None


def _is_pair(value: Any) -> bool:
    """Whether a value is a pair of a name and a type, as Polars, Arrow and NumPy list columns."""
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)


def arrow_type(polars_type: Any) -> pa.DataType:
    """The column type that a Polars type declares."""
    return declared_type(pl.DataFrame(schema={"": polars_type}).to_arrow().schema.field(0))


def _pandas_enum(column: Any) -> EnumType | None:
    """The enum type of a pandas column that is an ordered categorical of text; None for other columns."""
    dtype = column.dtype
    if not getattr(dtype, "ordered", False):
        return None
    categories = list(dtype.categories)
    return EnumType(categories) if all(isinstance(each, str) for each in categories) else None


def _has_fields(row_class: type) -> bool:
    """Whether a class is a dataclass, a NamedTuple, a TypedDict, a model of pydantic or a class of attrs."""
    is_named_tuple = issubclass(row_class, tuple) and hasattr(row_class, "_fields")
    return is_named_tuple or typing.is_typeddict(row_class) or declared_names(row_class) is not None


def _lacking(row_class: type) -> tuple[str, str]:
    """Why a class declares no columns, and what to write."""
    if issubclass(row_class, Enum):
        return (
            "an enum: the values of one column, and no row",
            f'{{"column": {_as_enum(row_class)}}}',
        )
    if inspect.get_annotations(row_class):
        return (
            "a class with annotations, and no dataclass: its rows could not be made",
            f"make it a dataclass: @dataclasses.dataclass above class {row_class.__name__}",
        )
    return (
        "a class without declared fields",
        "make it a dataclass, a NamedTuple, a TypedDict, or a model of pydantic",
    )


def _class_hint(declared: Any) -> str:
    """What to write in place of a class of the user's that is no type of columns; empty for other things."""
    if not isinstance(declared, type):
        return ""
    if issubclass(declared, Enum):
        return _enum_hint(declared)
    if declared.__module__ != "builtins" and inspect.get_annotations(declared):
        return f"make it a dataclass: @dataclasses.dataclass above class {declared.__name__}"
    return ""


_LONGEST_ENUM = 200


def _as_enum(kind: type[Enum]) -> str:
    """The enum of Polars that has the values of an enum of Python, or its names where the values are no text."""
    each = "value" if all(isinstance(member.value, str) for member in kind) else "name"
    text = f"pl.Enum({[getattr(member, each) for member in kind]!r})"
    return (
        text if len(text) <= _LONGEST_ENUM else f"pl.Enum([one.{each} for one in {kind.__name__}])"
    )


def _enum_hint(kind: type[Enum]) -> str:
    members = list(kind)
    if not members:
        return f"{kind.__name__} has no members"
    first = f"{kind.__name__}.{members[0].name}"
    if all(isinstance(member, str) for member in members):
        return f"{_as_enum(kind)}; rows have {first} or its text"
    if all(isinstance(member.value, str) for member in members):
        return f"{_as_enum(kind)}; rows have {first}.value"
    if all(isinstance(member, int) for member in members):
        return f"int, and rows have {first} or its number; or {_as_enum(kind)}, and rows have {first}.name"
    return f"{_as_enum(kind)}; rows have {first}.name"


def _annotations(row_class: type) -> dict[str, Any]:
    """The annotations of the declared fields of a class."""
    names = declared_names(row_class)
    return {
        name: hint
        for name, hint in typing.get_type_hints(row_class, include_extras=True).items()
        if names is None or name in names
    }


_REQUIRED = {"Required": True, "NotRequired": False, "ReadOnly": None}
"""What an item of a TypedDict says of its key, by the name of the qualifier, which may be that of typing_extensions."""


def _without_required(annotation: Any) -> tuple[Any, bool | None]:
    """The annotation of an item without its qualifiers, and whether its key is there; None where they do not say."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        inner, required = _without_required(arguments[0])
        return typing.Annotated[(inner, *arguments[1:])], required
    said = getattr(origin, "_name", None)
    if said not in _REQUIRED:
        return annotation, None
    inner, required = _without_required(arguments[0])
    return inner, required if _REQUIRED[said] is None else _REQUIRED[said]


def _aliased(declared: Any) -> Any:
    """What an alias stands for (``type UserId = int``, of Python 3.12); anything else itself."""
    origin = typing.get_origin(declared)
    if hasattr(origin, "__value__"):  # of an alias with parameters
        return _aliased(origin.__value__[typing.get_args(declared)])
    if origin is None and hasattr(declared, "__value__"):
        return _aliased(declared.__value__)
    return declared


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """An annotation without its ``| None``, and whether it had one."""
    annotation = _aliased(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        inner, optional = _without_none(arguments[0])
        return (typing.Annotated[(inner, *arguments[1:])] if optional else annotation), optional
    if origin is typing.Literal and None in arguments and len(set(arguments)) > 1:
        return typing.Literal[tuple(each for each in arguments if each is not None)], True
    if origin not in (typing.Union, types.UnionType):
        return annotation, annotation is None
    others = [each for each in arguments if each is not type(None)]
    optional = len(others) < len(arguments)
    if len(others) != 1:
        return typing.Union[tuple(others)], optional  # noqa: UP007
    inner, inside = _without_none(others[0])
    return inner, optional or inside
