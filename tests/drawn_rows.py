"""Rows for tests: every Arrow type a state can hold, plain values of it, and ways to encode them.

`to_arrow` and `to_plain` go between the plain values of `tests.oracle` and Arrow. Dates, times,
timestamps and durations are plain integers here: every bit has to come back.
`disguise` makes an array of the same values that looks as different as Arrow allows.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from tests.oracle import NAN, Row

_T = pa.types
_DAY = 86_400

LEAVES: dict[str, pa.DataType] = {
    **{str(t): t for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{str(t): t for t in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    **{str(t): t for t in (pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.null())},
    **{str(t): t for t in (pa.string(), pa.large_string(), pa.string_view())},
    **{str(t): t for t in (pa.binary(), pa.large_binary(), pa.binary_view())},
    "fixed_binary_3": pa.binary(3),
    "fixed_binary_9": pa.binary(9),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "dictionary_large": pa.dictionary(pa.int8(), pa.large_string()),
    "date32": pa.date32(),
    "date64": pa.date64(),
    **{f"time32_{u}": pa.time32(u) for u in ("s", "ms")},
    **{f"time64_{u}": pa.time64(u) for u in ("us", "ns")},
    **{f"timestamp_{u}": pa.timestamp(u) for u in ("s", "ms", "us", "ns")},
    **{f"timestamp_{u}_tz": pa.timestamp(u, "Europe/Rome") for u in ("s", "ms", "us", "ns")},
    **{f"duration_{u}": pa.duration(u) for u in ("s", "ms", "us", "ns")},
    "decimal32": pa.decimal32(9, 2),
    "decimal64": pa.decimal64(18, 4),
    "decimal128": pa.decimal128(38, 10),
    "decimal256": pa.decimal256(76, 5),
    "decimal128_0": pa.decimal128(20, 0),
}

NESTED: dict[str, pa.DataType] = {
    "list": pa.list_(pa.int64()),
    "large_list": pa.large_list(pa.float32()),
    "list_of_bool": pa.list_(pa.bool_()),
    "list_of_list": pa.list_(pa.large_list(pa.string())),
    "list_of_struct": pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())])),
    "list_of_dictionary": pa.list_(pa.dictionary(pa.int32(), pa.string())),
    "list_of_null": pa.list_(pa.null()),
    "fixed_list": pa.list_(pa.int16(), 2),
    "struct": pa.struct([("x", pa.int64()), ("y", pa.string())]),
    "struct_of_struct": pa.struct(
        [("s", pa.struct([("f", pa.float64()), ("b", pa.bool_())])), ("t", pa.timestamp("ns"))]
    ),
    "struct_of_list": pa.struct([("l", pa.list_(pa.decimal128(12, 3))), ("n", pa.null())]),
    "struct_of_dictionary": pa.struct([("d", pa.dictionary(pa.int8(), pa.string()))]),
    "empty_struct": pa.struct([]),
}

TYPES = LEAVES | NESTED


def _is_list(kind: pa.DataType) -> bool:
    return _T.is_list(kind) or _T.is_large_list(kind) or _T.is_fixed_size_list(kind)


def _storage(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def to_arrow(cells: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """An array of plain values. Null lists and structs have values underneath, which must not show."""
    cells = list(cells)
    if _T.is_temporal(kind):
        return pa.array(cells, _storage(kind)).view(kind)
    if _T.is_float16(kind):
        filled = np.array([0 if cell is None else cell for cell in cells], np.float16)
        return pa.array(filled, mask=np.array([cell is None for cell in cells], bool))
    if _T.is_dictionary(kind):
        words = sorted({cell for cell in cells if cell is not None}, reverse=True)
        indices = [None if cell is None else words.index(cell) for cell in cells]
        return pa.DictionaryArray.from_arrays(
            pa.array(indices, kind.index_type), pa.array(words, kind.value_type)
        )
    if _T.is_struct(kind):
        nulls = pa.array([cell is None for cell in cells], pa.bool_())
        some = next((cell for cell in cells if cell is not None), (None,) * kind.num_fields)
        filled = [some if cell is None else cell for cell in cells]
        if kind.num_fields == 0:
            return pa.array([None if cell is None else {} for cell in cells], kind)
        children = [
            to_arrow([cell[at] for cell in filled], kind.field(at).type)
            for at in range(kind.num_fields)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=nulls)
    if _is_list(kind):
        nulls = pa.array([cell is None for cell in cells], pa.bool_())
        some = next((cell for cell in cells if cell is not None), ())
        if _T.is_fixed_size_list(kind):
            some = some or (None,) * kind.list_size
        filled = [some if cell is None else cell for cell in cells]
        child = to_arrow([cell for row in filled for cell in row], kind.value_type)
        if _T.is_fixed_size_list(kind):
            return pa.FixedSizeListArray.from_arrays(child, type=kind, mask=nulls)
        offsets = np.cumsum([0, *map(len, filled)])
        if _T.is_list(kind):
            return pa.ListArray.from_arrays(offsets.astype(np.int32), child, kind, mask=nulls)
        return pa.LargeListArray.from_arrays(offsets, child, kind, mask=nulls)
    return pa.array(cells, kind)


def to_plain(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The plain values of an array."""
    if isinstance(array, pa.ChunkedArray):
        return [cell for chunk in array.chunks for cell in to_plain(chunk)]
    kind = array.type
    if _T.is_dictionary(kind):
        words, indices = to_plain(array.dictionary), array.indices.to_pylist()
        return [None if at is None else words[at] for at in indices]
    if _T.is_temporal(kind):
        return array.view(_storage(kind)).to_pylist()  # type: ignore[no-any-return]
    valid = array.is_valid().to_pylist()
    if _T.is_struct(kind):
        fields = [to_plain(array.field(at)) for at in range(kind.num_fields)]
        return [
            tuple(cells[at] for cells in fields) if here else None for at, here in enumerate(valid)
        ]
    if _T.is_fixed_size_list(kind):
        child, size = to_plain(array.values), kind.list_size
        starts = [(array.offset + at) * size for at in range(len(array))]
        return [
            tuple(child[start : start + size]) if here else None
            for start, here in zip(starts, valid, strict=True)
        ]
    if _is_list(kind):
        child, offsets = to_plain(array.values), array.offsets.to_pylist()
        return [
            tuple(child[offsets[at] : offsets[at + 1]]) if here else None
            for at, here in enumerate(valid)
        ]
    return [one_nan(cell) for cell in array.to_pylist()]


def one_nan(cell: Any) -> Any:
    if isinstance(cell, float | np.floating):
        return NAN if math.isnan(cell) else float(cell) + 0.0
    return cell


def plain_rows(rows: pa.RecordBatch | pa.Table, names: Sequence[str]) -> list[Row]:
    """The rows as tuples of the named columns."""
    if not names:
        return [()] * rows.num_rows
    return list(zip(*(to_plain(rows.column(name)) for name in names), strict=True))


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    bits = kind.bit_width
    if _T.is_unsigned_integer(kind):
        return 0, (1 << bits) - 1
    if _T.is_time(kind):
        return 0, _DAY * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit] - 1
    return -(1 << bits - 1), (1 << bits - 1) - 1


FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    1.5,
    math.inf,
    -math.inf,
    NAN,
    5e-324,
    -5e-324,
    2.2250738585072014e-308,
)
FLOATS_32 = (1e-45, -1e-45, 1.1754943508222875e-38, 3.4028234663852886e38)
FLOATS_16 = (6e-08, -6e-08, 6.104e-05, 65504.0)


def _floats(width: int) -> st.SearchStrategy[Any]:
    special = [*FLOATS, *FLOATS_32, *FLOATS_16]
    code = {16: "e", 32: "f", 64: "d"}[width]

    def rounded(value: float) -> float:
        if value is NAN or math.isinf(value):
            return value
        try:
            return float(struct.unpack(code, struct.pack(code, value))[0])
        except OverflowError:
            return math.inf

    anything = st.floats(width=width, allow_nan=False)  # type: ignore[arg-type]
    return st.sampled_from([rounded(value) for value in special]) | anything


def cells(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Plain values of a type, with nulls, and with extreme values more often than by chance."""
    return st.none() | _present(kind)


def _present(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if _T.is_null(kind):
        return st.none()
    if _T.is_dictionary(kind):
        return _present(kind.value_type)
    if _T.is_boolean(kind):
        return st.booleans()
    if _T.is_integer(kind) or (_T.is_temporal(kind) and not _T.is_date64(kind)):
        low, high = _bounds(kind)
        few = sorted({low, low + 1, max(low, -1), 0, 1, 2, high - 1, high})
        return st.sampled_from(few) | st.integers(low, high)
    if _T.is_date64(kind):
        return st.integers(-(10**6), 10**6).map(lambda day: day * _DAY * 1000)
    if _T.is_floating(kind):
        return _floats(kind.bit_width)
    if _T.is_decimal(kind):
        most = 10**kind.precision - 1
        edges = [
            e for e in (2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 2**128) if abs(e) <= most
        ]
        exact = Context(prec=100)
        unscaled = st.sampled_from([0, 1, -1, most, -most, *edges]) | st.integers(-most, most)
        return unscaled.map(lambda n: Decimal(n).scaleb(-kind.scale, exact))
    if _T.is_fixed_size_binary(kind):
        size = kind.byte_width
        return st.binary(min_size=size, max_size=size)
    if _T.is_struct(kind):
        return st.tuples(*(cells(field.type) for field in kind))
    if _T.is_fixed_size_list(kind):
        return st.tuples(*[cells(kind.value_type)] * kind.list_size)
    if _is_list(kind):
        return st.lists(cells(kind.value_type), max_size=3).map(tuple)
    words = st.sampled_from(
        ["", "a", "b", "ab", "abcdefgh", "abcdefghi", "abcdefgi", "ÿ", "\U0001f600z"]
    )
    text = words | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    if _T.is_string(kind) or _T.is_large_string(kind) or _T.is_string_view(kind):
        return text
    return text.map(str.encode) | st.binary(max_size=20)


def arrow_types() -> st.SearchStrategy[pa.DataType]:
    return st.sampled_from(list(LEAVES.values())) | st.sampled_from(list(NESTED.values()))


def encodings(kind: pa.DataType) -> list[pa.DataType]:
    """Other types whose arrays a state that declares `kind` takes for values of `kind`."""
    if _T.is_dictionary(kind):
        return encodings(kind.value_type)
    if _T.is_string(kind) or _T.is_large_string(kind) or _T.is_string_view(kind):
        plain = [pa.string(), pa.large_string(), pa.string_view()]
        return [
            *plain,
            pa.dictionary(pa.int16(), pa.string()),
            pa.dictionary(pa.uint8(), pa.large_string()),
        ]
    if _T.is_binary(kind) or _T.is_large_binary(kind) or _T.is_binary_view(kind):
        return [
            pa.binary(),
            pa.large_binary(),
            pa.binary_view(),
            pa.dictionary(pa.int8(), pa.binary()),
        ]
    if _T.is_fixed_size_list(kind):
        return [kind]
    if _is_list(kind):
        inner = encodings(kind.value_type)
        return [pa.list_(k) for k in inner] + [pa.large_list(k) for k in inner]
    if _T.is_struct(kind):
        fields = [(f.name, encodings(f.type)) for f in kind]
        most = max((len(options) for _, options in fields), default=1)
        return [pa.struct([(name, o[i % len(o)]) for name, o in fields]) for i in range(most)]
    return [kind]


def narrower(kind: pa.DataType, values: Sequence[Any]) -> list[pa.DataType]:
    """Smaller types that hold just these values."""
    if all(value is None for value in values):
        return [pa.null()]
    some = [value for value in values if value is not None]
    if _T.is_integer(kind):
        options = [t for t in LEAVES.values() if _T.is_integer(t) and t.bit_width < kind.bit_width]
        if _T.is_unsigned_integer(kind):
            options = [t for t in options if _T.is_unsigned_integer(t)]
        return [t for t in options if all(_bounds(t)[0] <= v <= _bounds(t)[1] for v in some)]
    return []


@st.composite
def disguises(draw: st.DrawFn, values: Sequence[Any], kind: pa.DataType) -> Any:
    """The values as an array in some encoding: sliced, chunked, narrow, as a dictionary."""
    disguise = draw(st.sampled_from([kind, *encodings(kind), *narrower(kind, values)]))
    front, back = draw(st.integers(0, 9)), draw(st.integers(0, 2))
    junk = list(values[:1]) or [None]
    array = to_arrow(junk * front + list(values) + junk * back, disguise).slice(front, len(values))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(values)))
        pieces = [array.slice(0, at), to_arrow(values[at:], disguise)]
        return pa.chunked_array(pieces, disguise)
    return array
