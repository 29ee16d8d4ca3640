"""Loads and stores at addresses: how one compiled kernel serves every schema.

A Numba function is compiled anew for each combination of array types in its arguments. Rows have any number of columns
of any type, so kernels take *addresses* of Arrow buffers instead, from small tables of integers (`layout`), and load
from them with the functions of this module. The caller holds the buffers during the call. Law:

- **Inside buffers.** A kernel reads only inside the buffers that a table describes, and writes only into buffers
  that the caller allocated for it. Nothing here checks bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from riverrun.state.kernels.compiling import kernel


def _loader(bits: int, signed: bool) -> Any:
    result = types.int64 if signed or bits < 64 else types.uint64

    @intrinsic  # type: ignore[untyped-decorator]
    def load(typing_context: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            cell = ir.IntType(bits)
            value = builder.load(builder.inttoptr(arguments[0], cell.as_pointer()))
            if bits == 64:
                return value
            extend = builder.sext if signed else builder.zext
            return extend(value, ir.IntType(64))

        return result(types.int64), codegen

    return load


def _storer(bits: int) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            cell = ir.IntType(bits)
            value = arguments[1] if bits == 64 else builder.trunc(arguments[1], cell)
            builder.store(value, builder.inttoptr(arguments[0], cell.as_pointer()))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return store


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(typing_context: Any, address: Any) -> Any:
    """Have the processor load a cache line ahead of its use; harmless whatever the address."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, small = ir.IntType(8).as_pointer(), ir.IntType(32)
        hint = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [pointer, small, small, small]),
            "llvm.prefetch.p0",
        )
        target = builder.inttoptr(arguments[0], pointer)
        builder.call(hint, [target, small(0), small(3), small(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


load_i8 = _loader(8, signed=True)
load_i16 = _loader(16, signed=True)
load_i32 = _loader(32, signed=True)
load_i64 = _loader(64, signed=True)
load_u8 = _loader(8, signed=False)
load_u16 = _loader(16, signed=False)
load_u32 = _loader(32, signed=False)
load_u64 = _loader(64, signed=False)
store_8 = _storer(8)
store_16 = _storer(16)
store_32 = _storer(32)
store_64 = _storer(64)


@kernel
def load_int(address: int, width: int, row: int) -> int:
    """The signed integer of `width` bytes in cell `row`."""
    if width == 8:
        return load_i64(address + row * 8)
    if width == 4:
        return load_i32(address + row * 4)
    if width == 1:
        return load_i8(address + row)
    return load_i16(address + row * 2)


@kernel
def load_uint(address: int, width: int, row: int) -> int:
    """The unsigned integer of `width` (1, 2 or 4) bytes in cell `row`; width 0 is a column of zeros."""
    if width == 0:
        return np.int64(0)
    if width == 1:
        return load_u8(address + row)
    if width == 2:
        return load_u16(address + row * 2)
    return load_u32(address + row * 4)


@kernel
def store_int(address: int, width: int, row: int, value: int) -> None:
    """Write the low `width` bytes of `value` to cell `row`."""
    if width == 8:
        store_64(address + row * 8, value)
    elif width == 4:
        store_32(address + row * 4, value)
    elif width == 1:
        store_8(address + row, value)
    else:
        store_16(address + row * 2, value)


@kernel
def load_tail(address: int, size: int) -> int:
    """Up to 7 bytes as a little-endian word, padded with zeros."""
    word, at = np.uint64(0), 0
    if size & 4:
        word = np.uint64(load_u32(address))
        at = 4
    if size & 2:
        word |= np.uint64(load_u16(address + at)) << np.uint64(8 * at)
        at += 2
    if size & 1:
        word |= np.uint64(load_u8(address + at)) << np.uint64(8 * at)
    return word


@kernel
def swap_bytes(word: int) -> int:
    """The bytes of a word in the opposite order."""
    low, wide = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
    word = ((word >> np.uint64(8)) & low) | ((word & low) << np.uint64(8))
    word = ((word >> np.uint64(16)) & wide) | ((word & wide) << np.uint64(16))
    return (word >> np.uint64(32)) | (word << np.uint64(32))


@kernel
def bit(address: int, row: int) -> int:
    """Bit `row` of a bitmap, least significant first, as Arrow has them."""
    return (load_u8(address + (row >> 3)) >> (row & 7)) & 1


@kernel
def set_bit(address: int, row: int, value: int) -> None:
    """Set or clear bit `row` of a bitmap."""
    cell = address + (row >> 3)
    mask = np.int64(1) << (row & 7)
    old = load_u8(cell)
    store_8(cell, (old | mask) if value else (old & ~mask))


@kernel
def copy_bytes(target: int, source: int, size: int) -> None:
    """Copy `size` bytes between buffers that do not overlap."""
    whole = size & ~7
    for at in range(0, whole, 8):
        store_64(target + at, load_i64(source + at))
    for at in range(whole, size):
        store_8(target + at, load_u8(source + at))
