"""Schema: the key columns and value columns of a state, and the declared order of the rows of a key.

Every state has a schema. `Schema.conform` checks rows and brings them to the layout in which states store rows;
`declared_column` gives a column back in the type that the user declared. Laws:

- **Physical order.** Columns are stored in this order: the key, the columns of the declared order, the other values.
  Rows are compared in the order of the columns, so the rows of a key are in the declared order.
- **One layout for one meaning.** Arrow has several encodings of the same values (dictionary, large, view, chunks). Rows
  are brought to one encoding before anything else sees them (`types`): strings, binary and lists with 64-bit offsets,
  dictionaries decoded, enums as codes. On the way out they get their declared types again.
- **Exact fit.** A column is taken when every value of its type is exactly a value of the declared type (`types.fits`):
  the same type in any encoding, a narrower integer or float, a decimal with fewer digits, a time in a coarser unit, or
  all nulls; and text for an enum when each value is one of its categories. Nothing is rounded, truncated or parsed.

>>> import pyarrow as pa
>>> schema = Schema.of(
...     {"node": pa.int64()},
...     {"name": pa.string(), "score": pa.float64()},
...     order=[Order("score", descending=True)],
... )
>>> [field.name for field in schema.columns]
['node', 'score', 'name']
>>> schema.conform(pa.table({"node": [1]}), "append to 'ranks'")
Traceback (most recent call last):
    ...
riverrun.errors.SchemaError: cannot append to 'ranks': column 'name' is missing; the rows have: node
Hint: give every column: node, name, score
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riverrun.cached import cached_property
from riverrun.errors import SchemaError, listed, show
from riverrun.state.columns import Ints, flat_template, node_count
from riverrun.state.types import (
    EnumType,
    NoCategory,
    canonical,
    encode,
    fits,
    has_enums,
    shown_type,
    spelled,
    type_text,
)

Rows: TypeAlias = pa.Table | pa.RecordBatch

FULL_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Order:
    """A value column by which the rows of one key are ordered; nulls come last either way."""

    column: str
    descending: bool = False


@dataclass(frozen=True)
class Schema:
    """The columns of a state. Build it with `Schema.of`."""

    key: pa.Schema
    value: pa.Schema
    order: tuple[Order, ...] = ()
    hash_mask: int = FULL_MASK
    """Bits of the hash that are used. Fewer bits make keys collide, which only tests ask for."""
    everywhere: bool = False
    """Whether every worker has all rows of the state, rather than the rows whose hashes it owns. Such a state is saved
    once all the same: each worker writes the rows whose hashes it owns, and reads all rows when it begins."""

    @classmethod
    def of(
        cls,
        key: pa.Schema | Mapping[str, pa.DataType],
        value: pa.Schema | Mapping[str, pa.DataType],
        order: str | Order | Iterable[str | Order] = (),
        hash_mask: int = FULL_MASK,
        *,
        everywhere: bool = False,
    ) -> Schema:
        listed = [order] if isinstance(order, str | Order) else order
        orders = tuple(Order(o) if isinstance(o, str) else o for o in listed)
        for each in orders:
            if not isinstance(each, Order):
                raise SchemaError(
                    "schema.order_malformed",
                    f"cannot order rows by {each!r}: an order is the name of a column, or an Order",
                    hint='for instance order=["time"] or order=[Order("score", descending=True)]',
                )
        schema = cls(_as_schema(key), _as_schema(value), orders, hash_mask, everywhere)
        schema._check()
        return schema

    def _check(self) -> None:
        names = Counter([*self.key.names, *self.value.names])
        for name, times in names.items():
            if times > 1:
                raise SchemaError(
                    "schema.column_twice",
                    f"cannot declare a state with column {name!r} twice: a name is one column",
                    hint="rename one of the two",
                    column=name,
                )
        for order in self.order:
            if [o.column for o in self.order].count(order.column) > 1:
                raise SchemaError(
                    "schema.order_twice",
                    f"cannot order rows by {order.column!r} twice: the second time decides nothing",
                    hint="name each column of the order once",
                    column=order.column,
                )
            if order.column not in self.value.names:
                raise SchemaError(
                    "schema.order_unknown",
                    f"cannot order rows by {order.column!r}: it is not a value column; "
                    f"the value columns are: {listed(self.value.names) or 'none'}",
                    hint="order by a value column",
                    column=order.column,
                )
        for field in [*self.key, *self.value]:
            canonical(field.type, field.name)

    @cached_property
    def columns(self) -> tuple[pa.Field, ...]:
        """All columns as declared, in physical order."""
        ordered = {order.column: self.value.field(order.column) for order in self.order}
        rest = [field for field in self.value if field.name not in ordered]
        return (*self.key, *ordered.values(), *rest)

    @cached_property
    def canonical(self) -> tuple[pa.DataType, ...]:
        """The type in which each column is stored, in physical order."""
        return tuple(canonical(field.type, field.name) for field in self.columns)

    @cached_property
    def positions(self) -> dict[str, int]:
        """Where each column is in physical order."""
        return {field.name: at for at, field in enumerate(self.columns)}

    @cached_property
    def descending(self) -> tuple[bool, ...]:
        """Per column, in physical order, whether the declared order runs from large to small."""
        directions = {order.column: order.descending for order in self.order}
        return tuple(directions.get(field.name, False) for field in self.columns)

    @cached_property
    def invertible(self) -> bool:
        """Whether the key is a single signed integer, which can be recovered from its hash (`kernels.values`)."""
        if len(self.key) != 1 or self.hash_mask != FULL_MASK:
            return False
        kind = self.key.field(0).type
        return bool(pa.types.is_signed_integer(kind) or pa.types.is_temporal(kind))

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The node (`kernels.layout`) at which each column starts, in physical order, and the end of the last one."""
        starts = [0]
        for kind in self.canonical:
            starts.append(starts[-1] + node_count(kind))
        return tuple(starts)

    @cached_property
    def key_end(self) -> int:
        """The node at which the value columns start."""
        return self.starts[len(self.key)]

    @cached_property
    def hash_word(self) -> np.uint64:
        """The bits of the hash that are used, as kernels take them."""
        return np.uint64(self.hash_mask)

    @cached_property
    def flat(self) -> Ints | None:
        """The template for tables of nodes of these columns (`columns.flat_table`); None with lists or structs."""
        return flat_template(self.canonical, self.descending)

    @cached_property
    def flat_key(self) -> Ints | None:
        """The template for tables of nodes of the key columns alone; None with lists or structs."""
        keys = len(self.key)
        return flat_template(self.canonical[:keys], self.descending[:keys])

    def conform(self, rows: Rows, attempt: str) -> list[pa.Array]:
        """The columns of `rows` in physical order and canonical layout, or a `SchemaError`."""
        names = _names(rows, attempt)
        if len(names) != len(self.columns) or len(set(names)) != len(names):
            self._refuse_names(names, attempt)
        arrays = []
        for field, target in zip(self.columns, self.canonical, strict=True):
            if field.name not in names:
                self._refuse_names(names, attempt)
            arrays.append(conform_column(rows.column(field.name), field, target, attempt))
        return arrays

    def conform_key(self, rows: Rows, attempt: str) -> list[pa.Array]:
        """The key columns of `rows`, as `conform` gives them; other columns of `rows` are not looked at."""
        names = _names(rows, attempt)
        counts = Counter(names)
        arrays = []
        for field, target in zip(self.key, self.canonical, strict=False):
            if counts[field.name] != 1:
                self._refuse_names(names, attempt, self.key.names)
            arrays.append(conform_column(rows.column(field.name), field, target, attempt))
        return arrays

    def _refuse_names(
        self, names: list[str], attempt: str, expected: list[str] | None = None
    ) -> None:
        expected = expected or [*self.key.names, *self.value.names]
        have = listed(names) or "no columns"
        for name in expected:
            if name not in names:
                raise SchemaError(
                    "schema.column_missing",
                    f"cannot {attempt}: column {show(name)} is missing; the rows have: {have}",
                    hint=f"give every column: {listed(expected)}",
                    column=name,
                )
        extra = next((n for n in names if n not in expected or names.count(n) > 1), None)
        raise SchemaError(
            "schema.column_unknown",
            f"cannot {attempt}: column {show(extra)} is not declared, or stands twice; the rows have: {have}",
            hint=f"select the declared columns: {listed([*self.key.names, *self.value.names])}",
            column=extra,
        )


def free_name(
    name: str, taken: Iterable[str], *, any_case: bool = False, add: str = "_", before: bool = False
) -> str:
    """A name for one more column: `name`, followed by as few underscores as make it differ from all other names.

    With `any_case` names that differ in case only are the same, as they are for Spark. `add` is put behind the name in
    place of an underscore, or `before` it.

    >>> free_name("diff", ["Diff", "diff_"]), free_name("diff", ["Diff", "diff_"], any_case=True)
    ('diff', 'diff__')
    >>> free_name("v", ["v", "v_right"], add="_right"), free_name("by", ["by"], before=True)
    ('v_right_right', '_by')
    """
    others = {each.lower() if any_case else each for each in taken}
    while (name.lower() if any_case else name) in others:
        name = add + name if before else name + add
    return name


def free_prefix(taken: Iterable[str]) -> str:
    """The fewest underscores with which no name starts. With them in front, any name differs from all these names.

    >>> free_prefix(["_a", "b__"])
    '__'
    """
    names = list(taken)
    prefix = "_"
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    return prefix


def _names(rows: Rows, attempt: str) -> list[str]:
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return list(rows.schema.names)
    raise SchemaError(
        "schema.not_a_table",
        f"cannot {attempt}: the rows are {type(rows).__name__}, not an Arrow table or record batch",
        hint="pyarrow.table(...) makes one of a dict of columns, pyarrow.Table.from_pandas of a frame",
        given=type(rows).__name__,
    )


def conform_column(
    column: pa.Array | pa.ChunkedArray, field: pa.Field, target: pa.DataType, attempt: str
) -> pa.Array:
    """One column in its canonical layout, in one chunk."""
    if not column.type.equals(target):
        text = spelled(field.type)
        if not fits(column.type, text):
            raise SchemaError(
                "schema.type_mismatch",
                f"cannot {attempt}: column {show(field.name)} is {column.type}, declared as {type_text(field.type)}, "
                "and not every such value fits",
                hint=f"cast it first, to {type_text(field.type)}, and decide what becomes of values that do not fit",
                column=field.name,
                given=str(column.type),
                declared=type_text(field.type),
            )
        try:
            column = _encoded(column, field.type, target)
        except NoCategory as error:
            raise SchemaError(
                "schema.value",
                f"cannot {attempt}: column {show(field.name)} has {error.value!r}, declared as "
                f"{type_text(field.type)}: {error}",
                hint="give values of the enum, or declare it with this category too",
                column=field.name,
                value=error.value,
                declared=type_text(field.type),
            ) from None
        except pa.ArrowException as error:
            raise SchemaError(
                "schema.cast",
                f"cannot {attempt}: column {show(field.name)} is {column.type} and could not be made "
                f"{field.type}: {error}",
                hint="cast it first, to the declared type",
                column=field.name,
            ) from error
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    _check_inner_nulls(column, field.type, field.name, attempt)
    wrong = wrong_length(column, field.type)
    if wrong is not None:
        raise SchemaError(
            "schema.value",
            f"cannot {attempt}: column {show(field.name)} has {wrong}, declared as {type_text(field.type)}",
            hint="give lists of the declared length, or declare lists of any length: pl.List",
            column=field.name,
            declared=type_text(field.type),
        )
    if not field.nullable and column.null_count:
        raise SchemaError(
            "schema.null",
            f"cannot {attempt}: column {show(field.name)} has {column.null_count} nulls and is declared without",
            hint="drop or fill the nulls, or declare the column nullable",
            column=field.name,
        )
    return column


def wrong_length(column: pa.Array, kind: pa.DataType) -> str | None:
    """A description of the first list in a canonical column whose length is not the declared one; None without one.

    >>> wrong_length(pa.array([[1, 2], None, [3]]), pa.list_(pa.int64(), 2))
    'a list of 1 values in place of 2'
    """
    t = pa.types
    if t.is_dictionary(kind) or not t.is_nested(kind):
        return None
    if t.is_struct(kind):
        children = zip(column.flatten(), kind, strict=True)
        wrong = (wrong_length(child, field.type) for child, field in children)
        return next((each for each in wrong if each is not None), None)
    if t.is_fixed_size_list(kind):
        lengths = pc.list_value_length(column)
        others = lengths.filter(
            pc.not_equal(lengths, kind.list_size), null_selection_behavior="drop"
        )
        if len(others):
            return f"a list of {others[0].as_py()} values in place of {kind.list_size}"
    return wrong_length(column.flatten(), kind.value_type)


def _encoded(
    column: pa.Array | pa.ChunkedArray, kind: pa.DataType, target: pa.DataType
) -> pa.Array | pa.ChunkedArray:
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([encode(chunk, kind) for chunk in column.chunks], target)
    return encode(column, kind)


def _check_inner_nulls(column: pa.Array, kind: pa.DataType, name: str, attempt: str) -> None:
    """Refuse nulls inside lists and structs where the declared type has none."""
    t = pa.types
    if t.is_dictionary(kind) or not t.is_nested(kind):
        return
    if t.is_struct(kind):
        inner = list(zip(column.flatten(), kind, strict=True))
        valid = column.is_valid()
        inner = [(child.filter(valid), field) for child, field in inner]
    else:
        inner = [(column.flatten(), kind.value_field)]
    for child, field in inner:
        if not field.nullable and child.null_count:
            raise SchemaError(
                "schema.null",
                f"cannot {attempt}: column {name!r} has {child.null_count} nulls in {field.name!r}, "
                "which is declared without",
                hint="drop or fill the nulls, or declare the field nullable",
                column=name,
            )
        _check_inner_nulls(child, field.type, name, attempt)


def _as_schema(columns: pa.Schema | Mapping[str, pa.DataType]) -> pa.Schema:
    if isinstance(columns, pa.Schema):
        return columns
    if not isinstance(columns, Mapping):
        raise SchemaError(
            "schema.malformed",
            f"cannot declare columns as {columns!r}: they are an Arrow schema, or a mapping from names to types",
            hint='for instance {"name": pyarrow.string()}',
        )
    for name, kind in columns.items():
        canonical(kind, name)
    return pa.schema(list(columns.items()))


def declared_column(column: pa.Array, field: pa.Field) -> pa.Array:
    """A column in the type its user declared, as it is shown (`types.shown_type`); it starts at the first row of its
    buffers."""
    return _declare(column, field.type, field.name)


def _declare(column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    t = pa.types
    if column.type.equals(kind):
        return column
    if isinstance(kind, EnumType):
        return pa.DictionaryArray.from_arrays(column, kind.values, ordered=True)
    if t.is_dictionary(kind):
        encoded = _declare(column, kind.value_type, name)
        if t.is_string_view(kind.value_type) or t.is_binary_view(kind.value_type):
            encoded = column  # Arrow has no dictionaries of views yet
        encoded = encoded.dictionary_encode()
        signed = int(t.is_signed_integer(kind.index_type))
        if len(encoded.dictionary) > 1 << (kind.index_type.bit_width - signed):
            raise SchemaError(
                "schema.dictionary_full",
                f"cannot give column {show(name)} as {kind}: it has {len(encoded.dictionary)} different values",
                hint="declare it with wider codes, or as its values",
                column=name,
                values=len(encoded.dictionary),
            )
        codes = encoded.indices.cast(kind.index_type)
        values = encoded.dictionary.cast(kind.value_type)
        return pa.DictionaryArray.from_arrays(codes, values, ordered=kind.ordered)
    valid = column.buffers()[0] if column.null_count else None
    if t.is_struct(kind):
        children = [
            _declare(column.field(at), kind.field(at).type, name) for at in range(kind.num_fields)
        ]
        return pa.Array.from_buffers(
            _shown(kind), len(column), [valid], column.null_count, column.offset, children
        )
    if t.is_large_list(column.type) and not column.type.value_type.equals(kind.value_type):
        values = _declare(column.values, kind.value_type, name)
        buffers = [valid, column.buffers()[1]]
        kind = _shown(kind)
        wide = pa.large_list(kind.value_field)
        column = pa.Array.from_buffers(
            wide, len(column), buffers, column.null_count, column.offset, [values]
        )
    return column.cast(kind)


def _shown(kind: pa.DataType) -> pa.DataType:
    return shown_type(pa.field("", kind)).type if has_enums(kind) else kind
