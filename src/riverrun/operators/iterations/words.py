"""Columns of fixed width as words of 64 bits, which is how `pulling` keeps values and constants.

Two cells of one type are equal in a state exactly when their words are: floats have one zero and one NaN. Nulls have
the word 0 and a mask of their own. Laws:

- **There and back.** ``from_words(*to_words(column), column.type)`` is the column, up to the sign of zero and the bits
  of NaN.

>>> words, nulls = to_words(pa.array([1.5, None, -0.0]))
>>> from_words(words, nulls, pa.float64()).to_pylist()
[1.5, None, 0.0]

Cost: nothing to copy where a type has 64 bits and is no float; a pass over the column otherwise.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from riverrun.state.columns import as_array
from riverrun.state.kernels.iterations import pulling

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Flags: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Array: TypeAlias = np.ndarray[Any, Any]
FLOAT64 = pa.float64()
_T = pa.types


def has_words(kind: pa.DataType) -> bool:
    """Whether the cells of a type are words: numbers, truth values, dates, times and durations."""
    return bool(
        _T.is_integer(kind)
        or _T.is_float32(kind)
        or _T.is_float64(kind)
        or _T.is_boolean(kind)
        or (_T.is_temporal(kind) and not _T.is_interval(kind))
    )


def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """The type of NumPy with the same cells; bytes for truth values, integers for times."""
    if _T.is_boolean(kind):
        return np.dtype(np.uint8)
    if _T.is_floating(kind):
        return np.dtype(f"f{kind.bit_width // 8}")
    sign = "u" if _T.is_unsigned_integer(kind) else "i"
    return np.dtype(f"{sign}{kind.bit_width // 8}")


def cells_of(column: pa.Array) -> tuple[Array, Flags | None]:
    """The cells of a column, and 1 where there is a null; anything lies under a null."""
    kind, nulls = column.type, None
    if column.null_count:
        nulls = as_array(column.is_null()).view(np.uint8)
    if _T.is_null(kind):
        return np.zeros(len(column), np.int64), np.ones(len(column), np.uint8)
    if _T.is_boolean(kind):
        filled = column.fill_null(False) if column.null_count else column
        return as_array(filled).view(np.uint8), nulls
    dtype = dtype_of(kind)
    data = column.buffers()[1]
    if data is None or not len(column):
        return np.zeros(len(column), dtype), nulls
    return np.frombuffer(data, dtype, len(column), column.offset * dtype.itemsize), nulls


def column_of(cells: Array, nulls: Flags | None, kind: pa.DataType) -> pa.Array:
    """The column of some cells: the inverse of `cells_of`."""
    count = 0 if nulls is None else int(np.count_nonzero(nulls))
    valid = None
    if count:
        valid = pa.py_buffer(np.packbits(nulls == 0, bitorder="little"))
    if _T.is_boolean(kind):
        data = pa.py_buffer(np.packbits(cells != 0, bitorder="little"))
    else:
        data = pa.py_buffer(np.ascontiguousarray(cells))
    return pa.Array.from_buffers(kind, len(cells), [valid, data], count)


def words_of_cells(cells: Array, nulls: Flags | None) -> Ints:
    """The words of cells; may share memory with them."""
    if cells.dtype == np.float64:
        cells = np.array(cells)
        pulling.plain_floats(cells)
        words = cells.view(np.int64)
    elif cells.dtype == np.float32:
        cells = cells + np.float32(0)
        cells[np.isnan(cells)] = np.nan
        words = cells.view(np.int32).astype(np.int64)
    elif cells.dtype == np.uint64:
        words = cells.view(np.int64)
    else:
        words = cells.astype(np.int64, copy=False)
    if nulls is not None and nulls.any():
        words = np.where(nulls != 0, np.int64(0), words)
    return words


def cells_of_words(words: Ints, kind: pa.DataType) -> Array:
    """The inverse of `words_of_cells`."""
    dtype = dtype_of(kind)
    if dtype == np.float64 or dtype == np.uint64:
        return words.view(dtype)
    if dtype == np.float32:
        return words.astype(np.int32).view(np.float32)
    return words.astype(dtype, copy=False)


def to_words(column: pa.Array) -> tuple[Ints, Flags | None]:
    """The words of a column, and 1 where there is a null."""
    cells, nulls = cells_of(column)
    return words_of_cells(cells, nulls), nulls


def from_words(words: Ints, nulls: Flags | None, kind: pa.DataType) -> pa.Array:
    """The inverse of `to_words`."""
    return column_of(cells_of_words(words, kind), nulls, kind)


def rising(cells: Array, how: int) -> Ints:
    """Words whose order as integers is that of the cells in a state; the opposite order for `pulling.GREATEST`."""
    out = np.empty(len(cells), np.int64)
    if cells.dtype.kind == "f":
        pulling.order_floats(cells.astype(np.float64, copy=False), how, out)
        return out
    if cells.dtype == np.uint64:
        words = cells.view(np.int64) ^ np.int64(-(1 << 63))
    else:
        words = cells.astype(np.int64)
    return ~words if how == pulling.GREATEST else words


def cells_of_rising(words: Ints, how: int, kind: pa.DataType) -> Array:
    """The inverse of `rising`."""
    dtype = dtype_of(kind)
    if dtype.kind == "f":
        out = np.empty(len(words))
        pulling.floats_of_order(words, how, out)
        with np.errstate(invalid="ignore", over="ignore"):
            return out.astype(dtype, copy=False)
    if how == pulling.GREATEST:
        words = ~words
    if dtype == np.uint64:
        return (words ^ np.int64(-(1 << 63))).view(np.uint64)
    return words.astype(dtype)
