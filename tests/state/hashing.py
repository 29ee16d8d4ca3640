"""The hash, version 1, once more: in plain Python, from the docstring of `kernels.values` alone."""

from __future__ import annotations

import struct
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from riverrun.state.schema import Schema
from tests.oracle import NAN, Row

WORD = (1 << 64) - 1
EXACT = Context(prec=100)


def mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & WORD
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & WORD
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & WORD
    return x ^ x >> 31


def combine(h: int, g: int) -> int:
    return mix((h * 0x9FB21C651E98DF25 + g) & WORD)


def hash_float(value: float) -> int:
    if value is NAN:
        bits = 0x7FF8 << 48
    else:
        [bits] = struct.unpack("<Q", struct.pack("<d", value or 0.0))
    return mix(bits ^ 0xF10A7F10A7F10A70)


def hash_bytes(value: bytes) -> int:
    h = len(value) ^ 0x5374723153747231
    for at in range(0, len(value), 8):
        word = int.from_bytes(value[at : at + 8], "little")
        h ^= word * 0xC2B2AE3D27D4EB4F & WORD
        h = (h << 29 | h >> 35) & WORD
        h = h * 0x9FB21C651E98DF25 & WORD
    return mix(h)


def hash_decimal(value: Decimal, kind: pa.DataType) -> int:
    unscaled = int(value.scaleb(kind.scale, EXACT))
    if -(1 << 63) <= unscaled < 1 << 63:
        return mix(unscaled & WORD)
    h = 0xDEC1DEC1DEC1DEC1
    words = 1
    while not -(1 << 64 * words - 1) <= unscaled < 1 << 64 * words - 1:
        words += 1
    for word in range(words):
        h = combine(h, unscaled >> 64 * word & WORD)
    return h


def hash_cell(value: Any, kind: pa.DataType) -> int:
    t = pa.types
    if value is None:
        return 0x6E756C6C6E756C6C
    if t.is_dictionary(kind):
        return hash_cell(value, kind.value_type)
    if t.is_floating(kind):
        return hash_float(value)
    if t.is_decimal(kind):
        return hash_decimal(value, kind)
    if isinstance(value, str | bytes):
        return hash_bytes(value.encode() if isinstance(value, str) else value)
    if t.is_struct(kind):
        h = 0x5374727563745374
        for cell, field in zip(value, kind, strict=True):
            h = combine(h, hash_cell(cell, field.type))
        return h
    if isinstance(value, tuple):
        h = len(value) ^ 0x4C6973744C697374
        for cell in value:
            h = combine(h, hash_cell(cell, kind.value_type))
        return h
    return mix(int(value) & WORD)


def hash_key(key: Row, kinds: list[pa.DataType]) -> int:
    if len(key) == 0:
        return 0
    if len(key) == 1:
        return hash_cell(key[0], kinds[0])
    h = 0x4B65794B65794B65
    for cell, kind in zip(key, kinds, strict=True):
        h = combine(h, hash_cell(cell, kind))
    return h


def hash_in(schema: Schema, key: Row) -> int:
    """The hash of a key as a state of this schema has it."""
    return hash_key(key, [field.type for field in schema.key]) & schema.hash_mask
