"""Types of columns: how values are kept, which types widen to which, and enums, whose order is their own.

A column has a *declared* type, written by the user; a *canonical* type, the only layout in which states store such
values; and a *shown* type, for the Arrow, pandas and Polars rows that users get. For most types the three are the
same. A canonical type has no dictionaries, and 64-bit offsets. An enum is stored as its code, and shown as an ordered
dictionary. The names of types, and the types of Python, Polars, Spark and Delta that they stand for, are in the table
of `rows.types`, which has an entry for every type with a canonical layout. Laws:

- **Storage.** Order and equality of a declared type are those of its canonical type in the kernels (`kernels.values`).
  Enums keep the law because a code is the position of a category, so the order of codes is the declared order.
- **Widening.** `common_type` of two types holds every value of both exactly, and keeps their order and equality. Where
  there is no such type it gives None; the caller then refuses, and names the cast to write.

>>> level = EnumType(["low", "mid", "high"])
>>> print(level, canonical(level), shown_type(pa.field("level", level)).type)
enum<'low', 'mid', 'high'> uint8 dictionary<values=large_string, indices=uint8, ordered=1>
>>> encode(pa.array(["high", None, "low"]), level).to_pylist()
[2, None, 0]
>>> print(common_type(pa.uint32(), pa.int32()), common_type(pa.uint64(), pa.int64()))
int64 None

Cost: some microseconds for a question about types; encoding text as codes is one hash lookup a row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riverrun.errors import SchemaError, show
from riverrun.state.columns import as_column
from riverrun.state.kernels.layout import MAX_DEPTH

_T = pa.types
_POLARS_KEY = b"_PL_ENUM_VALUES2"
"""Where Polars writes the categories of an enum into the metadata of a field, and looks for them."""
_UNITS = ("s", "ms", "us", "ns")
_SHOWN = 6
_FEW = 16  # values up to which looking them up in Python is quicker than in Arrow


class EnumType(pa.ExtensionType):  # type: ignore[misc]
    """Text of which every value is one of some categories; the order of the categories is the order of the values."""

    def __init__(self, categories: Iterable[str]) -> None:
        self.categories = tuple(categories)
        count = len(self.categories)
        width = pa.uint8() if count <= 0xFF else pa.uint16() if count <= 0xFFFF else pa.uint32()
        super().__init__(width, "riverrun.enum")

    def __arrow_ext_serialize__(self) -> bytes:
        return json.dumps(self.categories).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> EnumType:
        enum = _described(serialized)
        if not enum.storage_type.equals(storage_type):
            raise ValueError("the codes of an enum are as wide as its categories need")
        return enum

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EnumType) and other.categories == self.categories

    def __ne__(self, other: object) -> bool:  # Arrow's own would not look at the categories
        return not self == other

    def __hash__(self) -> int:
        return hash(self.categories)

    def __str__(self) -> str:
        listed = ", ".join(map(repr, self.categories[:_SHOWN]))
        if len(self.categories) > _SHOWN:
            digest = hashlib.sha256(self.__arrow_ext_serialize__()).hexdigest()[:12]
            listed += f", ... {len(self.categories)} in all, {digest}"
        return f"enum<{listed}>"

    def __repr__(self) -> str:
        return str(self)

    @cached_property
    def values(self) -> pa.Array:
        """The categories as an Arrow array; the code of one is its position."""
        return pa.array(self.categories, pa.large_string())

    @cached_property
    def codes(self) -> dict[str | None, int | None]:
        """The code of each category, and of null."""
        return {None: None, **{category: code for code, category in enumerate(self.categories)}}


@lru_cache(maxsize=256)
def _described(serialized: bytes) -> EnumType:
    """The enum of a description. Cached, as Arrow asks again for each type that Python no longer refers to."""
    categories = json.loads(serialized)
    if not isinstance(categories, list) or not all(isinstance(c, str) for c in categories):
        raise ValueError("an enum is described by a list of strings")
    if len(set(categories)) < len(categories):
        raise ValueError("an enum has each category once")
    return EnumType(categories)


def _register() -> None:
    try:
        pa.register_extension_type(EnumType([]))
    except pa.ArrowKeyError:  # this module was loaded before, from another place
        pa.unregister_extension_type("riverrun.enum")
        pa.register_extension_type(EnumType([]))


_register()


def has_enums(kind: pa.DataType) -> bool:
    """Whether a type is an enum, or has one inside."""
    if _T.is_struct(kind):
        return any(has_enums(field.type) for field in kind)
    return has_enums(kind.value_type) if _is_list(kind) else isinstance(kind, EnumType)


def has_dictionaries(kind: pa.DataType) -> bool:
    """Whether a type of Arrow's is a dictionary, or has one inside."""
    if _T.is_struct(kind):
        return any(has_dictionaries(field.type) for field in kind)
    return has_dictionaries(kind.value_type) if _is_list(kind) else bool(_T.is_dictionary(kind))


def type_text(kind: pa.DataType) -> str:
    """A text that differs for different types, enums inside lists and structs included."""
    if not _T.is_nested(kind) or not has_enums(kind):
        return str(kind)
    inner = ", ".join(f"{f.name}: {type_text(f.type)}" for f in _fields(kind))
    return f"{'struct' if _T.is_struct(kind) else 'list'}<{inner}>"


def _fields(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(at) for at in range(kind.num_fields)]


# -- how values are kept


def canonical(kind: Any, name: str = "", depth: int = 0) -> pa.DataType:
    """The one layout in which values of a type are stored; a `SchemaError` for a type that states cannot hold."""
    if not isinstance(kind, pa.DataType):
        raise SchemaError(
            "schema.type_unknown",
            f"cannot declare column {show(name)} as {kind!r}: that is not an Arrow type",
            hint="give an Arrow type, for instance pyarrow.int64()",
            column=name,
        )
    if depth >= MAX_DEPTH and _T.is_nested(kind):
        raise SchemaError(
            "schema.too_deep",
            f"cannot declare column {show(name)}: its lists and structs are nested more than {MAX_DEPTH} deep",
            hint="flatten it, or keep the inner part as binary",
            column=name,
        )
    if isinstance(kind, EnumType):
        return kind.storage_type
    if _T.is_dictionary(kind):
        return canonical(kind.value_type, name, depth)
    if _is_text(kind):
        return pa.large_string()
    if _T.is_binary(kind) or _T.is_large_binary(kind) or _T.is_binary_view(kind):
        return pa.large_binary()
    if _is_list(kind):
        return pa.large_list(canonical(kind.value_type, name, depth + 1))
    if _T.is_struct(kind):
        return pa.struct([pa.field(f.name, canonical(f.type, name, depth + 1)) for f in kind])
    if (
        _T.is_integer(kind)
        or _T.is_floating(kind)
        or _T.is_boolean(kind)
        or _T.is_decimal(kind)
        or _T.is_fixed_size_binary(kind)
        or _T.is_null(kind)
        or (_T.is_temporal(kind) and not _T.is_interval(kind))
    ):
        return kind
    raise SchemaError(
        "schema.type_unsupported",
        f"cannot declare column {show(name)} as {kind}: states hold integers, floats, booleans, strings, binary, "
        "enums, dates, times, timestamps, durations, decimals, lists, structs and nulls",
        hint="turn it into one of these, for instance a map into a list of structs",
        column=name,
        declared=str(kind),
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(_T.is_string(kind) or _T.is_large_string(kind) or _T.is_string_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(_T.is_list(kind) or _T.is_large_list(kind) or _T.is_fixed_size_list(kind))


def spelled(kind: pa.DataType) -> pa.DataType:
    """The canonical layout of a type, but with enums as text: the form in which users give and get values."""
    if isinstance(kind, EnumType):
        return pa.large_string()
    if has_enums(kind):
        if _T.is_struct(kind):
            return pa.struct([pa.field(f.name, spelled(f.type)) for f in kind])
        return pa.large_list(spelled(kind.value_type))
    return canonical(kind)


class NoCategory(Exception):
    """Text that is no category of an enum."""

    def __init__(self, value: str, enum: EnumType) -> None:
        super().__init__(f"{value!r} is not one of its categories")
        self.value = value
        self.enum = enum


def encode(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column whose enums are text, or Arrow's dictionaries of text, in the canonical layout.

    Text that is no category raises `NoCategory`.
    """
    if isinstance(kind, EnumType):
        return _encode_text(column, kind)
    if not has_enums(kind):
        target = canonical(kind)
        return column if column.type.equals(target) else column.cast(target)
    text = spelled(kind)
    return _with_codes(column if column.type.equals(text) else column.cast(text), kind)


def _encode_text(column: pa.Array, enum: EnumType) -> pa.Array:
    if _T.is_dictionary(column.type):
        values = column.dictionary.cast(pa.large_string())
        codes = pc.index_in(values, enum.values).cast(enum.storage_type)
        if codes.null_count > values.null_count:  # values to which no row refers may be anything
            strange = pc.and_(codes.is_null(), values.is_valid()).take(column.indices)
            if pc.any(strange).as_py():
                raise _stranger(column.cast(pa.large_string()), enum)
        return codes.take(column.indices)
    if len(column) <= _FEW:
        try:
            return pa.array([enum.codes[text] for text in column.to_pylist()], enum.storage_type)
        except KeyError as error:
            raise NoCategory(error.args[0], enum) from None
    text = column if _T.is_large_string(column.type) else column.cast(pa.large_string())
    codes = pc.index_in(text, enum.values)
    if codes.null_count > text.null_count:
        raise _stranger(text, enum)
    return codes.cast(enum.storage_type)


def _stranger(text: pa.Array, enum: EnumType) -> NoCategory:
    strangers = text.filter(pc.and_(text.is_valid(), pc.invert(pc.is_in(text, enum.values))))
    return NoCategory(strangers[0].as_py(), enum)


def _with_codes(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column in the spelled layout, with codes in place of the text of enums."""
    if isinstance(kind, EnumType):
        return _encode_text(column, kind)
    if not has_enums(kind):
        return column
    return _rebuilt(column, kind, canonical(kind), _with_codes)


def spell(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column in the canonical layout of `kind`, with every enum as text."""
    if isinstance(kind, EnumType):
        return kind.values.take(column)
    if not has_enums(kind):
        return column
    return _rebuilt(column, kind, spelled(kind), spell)


def _rebuilt(
    column: pa.Array,
    kind: pa.DataType,
    target: pa.DataType,
    change: Callable[[pa.Array, pa.DataType], pa.Array],
) -> pa.Array:
    """A list or struct with other children. Cells under a null are no values, and are left out."""
    mask = column.is_null() if column.null_count else None
    if _T.is_struct(kind):
        children = [change(c, f.type) for c, f in zip(column.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)
    values = change(column.flatten(), kind.value_type)
    lengths = pc.list_value_length(column).fill_null(0)
    offsets = pa.concat_arrays([as_column(np.zeros(1, np.int64)), pc.cumulative_sum(lengths)])
    return pa.LargeListArray.from_arrays(offsets, values, type=target, mask=mask)


# -- what people are shown


def shown_type(field: pa.Field) -> pa.Field:
    """A field as Arrow has it: an enum is an ordered dictionary, with metadata by which Polars knows the enum again."""
    kind = field.type
    if isinstance(kind, EnumType):
        code = pa.dictionary(kind.storage_type, pa.large_string(), ordered=True)
        return field.with_type(code).with_metadata({_POLARS_KEY: _for_polars(kind.categories)})
    if not has_enums(kind):
        return field
    if _T.is_struct(kind):
        return field.with_type(pa.struct([shown_type(inner) for inner in kind]))
    inner = shown_type(kind.value_field)
    if _T.is_fixed_size_list(kind):
        return field.with_type(pa.list_(inner, kind.list_size))
    return field.with_type(pa.large_list(inner) if _T.is_large_list(kind) else pa.list_(inner))


def shown_schema(schema: pa.Schema) -> pa.Schema:
    """A schema as Arrow, pandas and Polars are given it."""
    if not any(has_enums(kind) for kind in schema.types):
        return schema
    return pa.schema([shown_type(field) for field in schema])


def declared_type(field: pa.Field) -> pa.DataType:
    """The type that a field of Arrow's declares: the inverse of `shown_type`."""
    kind = field.type
    written = (field.metadata or {}).get(_POLARS_KEY)
    if _T.is_dictionary(kind) and written is not None:
        return EnumType(_from_polars(written))
    if _T.is_struct(kind):
        fields = [inner.with_type(declared_type(inner)) for inner in kind]
        return pa.struct(fields) if any(has_enums(f.type) for f in fields) else kind
    if _is_list(kind):
        item = kind.value_field.with_type(declared_type(kind.value_field))
        if not has_enums(item.type):
            return kind
        if _T.is_fixed_size_list(kind):
            return pa.list_(item, kind.list_size)
        return pa.large_list(item) if _T.is_large_list(kind) else pa.list_(item)
    return kind


def declared_schema(schema: pa.Schema) -> pa.Schema:
    """The schema that `shown_schema` shows."""
    return pa.schema(
        [
            field.with_type(kind).remove_metadata() if has_enums(kind) else field
            for field, kind in ((field, declared_type(field)) for field in schema)
        ],
        schema.metadata,
    )


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without rows, in the shown types."""
    shown = shown_schema(schema)
    return pa.record_batch([pa.nulls(0, field.type) for field in shown], schema=shown)


def _for_polars(categories: Sequence[str]) -> bytes:
    written = [category.encode() for category in categories]
    return b"".join(b"%d;%b" % (len(each), each) for each in written)


def _from_polars(written: bytes) -> list[str]:
    categories, at = [], 0
    while at < len(written):
        start = written.index(b";", at) + 1
        size = int(written[at : start - 1])
        at = start + size
        categories.append(written[start:at].decode())
    return categories


# -- what widens to what


def fits(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether every value of type `source` is a value of the declared type `target`.

    Times of a coarser unit fit a finer unit; times beyond the range of the finer unit are refused, one by one, by the
    cast.
    """
    if _T.is_null(source):
        return True
    if has_enums(source) or has_enums(target):
        return _enums_fit(source, target)
    try:
        source, target = canonical(source), canonical(target)
    except SchemaError:
        return False
    if source.equals(target):
        return True
    if _T.is_integer(source) and _T.is_integer(target):
        if _T.is_signed_integer(source) == _T.is_signed_integer(target):
            return bool(source.bit_width <= target.bit_width)
        return bool(_T.is_signed_integer(target) and source.bit_width < target.bit_width)
    if _T.is_floating(source) and _T.is_floating(target):
        return bool(source.bit_width <= target.bit_width)
    if _T.is_decimal(source) and _T.is_decimal(target):
        return bool(
            source.scale <= target.scale
            and source.precision - source.scale <= target.precision - target.scale
        )
    if _T.is_timestamp(source) and _T.is_timestamp(
        target
    ):  # an instant; the zone is how it is shown
        return bool(source.tz) == bool(target.tz) and _is_coarser(source, target)
    if (_T.is_duration(source) and _T.is_duration(target)) or (
        _T.is_time(source) and _T.is_time(target)
    ):
        return _is_coarser(source, target)
    if _T.is_date32(source) and _T.is_date64(target):
        return True
    if _T.is_fixed_size_binary(source) and _T.is_large_binary(target):
        return True
    if _T.is_large_list(source) and _T.is_large_list(target):
        return fits(source.value_type, target.value_type)
    if _T.is_struct(source) and _T.is_struct(target):
        return [f.name for f in source] == [f.name for f in target] and all(
            fits(f.type, g.type) for f, g in zip(source, target, strict=True)
        )
    return False


def share_layout(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether two types have one canonical layout with one meaning, so that their columns meet without a cast."""
    if not canonical(left).equals(canonical(right)) or _lengths(left) != _lengths(right):
        return False
    enums = has_enums(left) or has_enums(right)
    return not enums or (fits(left, right) and fits(right, left))


def _lengths(kind: pa.DataType) -> tuple[int, ...]:
    """The fixed lengths of the lists in a type; -1 for a list of any length."""
    if _T.is_struct(kind):
        return tuple(length for field in kind for length in _lengths(field.type))
    if not _is_list(kind):
        return ()
    length = kind.list_size if _T.is_fixed_size_list(kind) else -1
    return (length, *_lengths(kind.value_type))


def _is_coarser(source: pa.DataType, target: pa.DataType) -> bool:
    return _UNITS.index(source.unit) <= _UNITS.index(target.unit)


def _enums_fit(source: pa.DataType, target: pa.DataType) -> bool:
    if isinstance(source, EnumType) and isinstance(target, EnumType):
        rest = iter(target.categories)
        return all(category in rest for category in source.categories)
    if _is_list(source) and _is_list(target):
        return fits(source.value_type, target.value_type)
    if _T.is_struct(source) and _T.is_struct(target):
        return [f.name for f in source] == [f.name for f in target] and all(
            fits(f.type, g.type) for f, g in zip(source, target, strict=True)
        )
    return False


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type that holds all values of both, in their order; None where there is none (the widening law)."""
    if left.equals(right):
        return left
    if _T.is_null(left) or _T.is_null(right):
        return right if _T.is_null(left) else left
    if isinstance(left, EnumType) or isinstance(right, EnumType):
        return right if fits(left, right) else left if fits(right, left) else None
    if _is_list(left) and _is_list(right):
        inner = common_type(left.value_type, right.value_type)
        return None if inner is None else pa.large_list(inner)
    if _T.is_struct(left) and _T.is_struct(right):
        return _common_struct(left, right)
    try:
        plain, other = canonical(left), canonical(right)
    except SchemaError:
        return None
    if plain.equals(other):
        return plain if _T.is_dictionary(left) else left
    return _common_leaf(plain, other)


def _common_struct(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if [f.name for f in left] != [f.name for f in right]:
        return None
    fields = []
    for mine, its in zip(left, right, strict=True):
        kind = common_type(mine.type, its.type)
        if kind is None:
            return None
        fields.append(pa.field(mine.name, kind, mine.nullable or its.nullable))
    return pa.struct(fields)


def _common_leaf(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if _T.is_integer(left) and _T.is_integer(right):
        return _common_integer(left, right)
    if _T.is_floating(left) and _T.is_floating(right):
        return left if left.bit_width > right.bit_width else right
    if _T.is_decimal(left) and _T.is_decimal(right):
        return _common_decimal(left, right)
    if _T.is_timestamp(left) and _T.is_timestamp(right):
        unit = _common_unit(left, right)
        if unit is None or bool(left.tz) != bool(right.tz):
            return None
        return pa.timestamp(unit, left.tz)
    if _T.is_duration(left) and _T.is_duration(right):
        unit = _common_unit(left, right)
        return None if unit is None else pa.duration(unit)
    if _T.is_time(left) and _T.is_time(right):  # a day is short enough for any unit
        return right if _is_coarser(left, right) else left
    if _T.is_date(left) and _T.is_date(right):
        return pa.date64()
    if _is_bytes(left) and _is_bytes(right):
        return pa.large_binary()
    return None


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(_T.is_fixed_size_binary(kind) or _T.is_large_binary(kind))


def _common_integer(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if _T.is_signed_integer(left) == _T.is_signed_integer(right):
        return left if left.bit_width > right.bit_width else right
    signed, unsigned = (left, right) if _T.is_signed_integer(left) else (right, left)
    for kind in (pa.int16(), pa.int32(), pa.int64()):
        if kind.bit_width >= signed.bit_width and kind.bit_width > unsigned.bit_width:
            return kind
    return None


def _common_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    scale = max(left.scale, right.scale)
    precision = scale + max(left.precision - left.scale, right.precision - right.scale)
    width = max(left.bit_width, right.bit_width)
    for bits, digits, make in (
        (32, 9, pa.decimal32),
        (64, 18, pa.decimal64),
        (128, 38, pa.decimal128),
    ):
        if bits >= width and precision <= digits:
            return make(precision, scale)
    return pa.decimal256(precision, scale) if width == 256 and precision <= 76 else None


def _common_unit(left: pa.DataType, right: pa.DataType) -> str | None:
    """The finer of two units. Nanoseconds end in the year 2262, and stay alone; years 1 to 9999 exist in the others."""
    if left.unit == right.unit:
        return str(left.unit)
    if "ns" in (left.unit, right.unit):
        return None
    return str(right.unit if _is_coarser(left, right) else left.unit)


def widen(column: pa.Array, source: pa.DataType, target: pa.DataType) -> pa.Array:
    """A column in the canonical layout of `source`, brought to that of `target`, which holds all values of both types.

    A time beyond the range of a finer unit is an ``ArrowInvalid``.
    """
    if has_enums(source) or has_enums(target):
        return encode(spell(column, source), target)
    wanted = canonical(target)
    return column if column.type.equals(wanted) else column.cast(wanted)
