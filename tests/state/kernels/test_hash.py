"""The hash is part of every checkpoint: golden values, a second implementation, one per meaning."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.state.batch import hash_key as compiled_hash_key
from riverrun.state.columns import node_table
from riverrun.state.kernels import values
from riverrun.state.schema import Schema
from tests.drawn_rows import TYPES, cells, disguises, to_arrow
from tests.oracle import NAN, Row
from tests.state import hashing

INF = float("inf")
POINT = pa.struct([("x", pa.int64()), ("y", pa.string())])

GOLDEN: list[tuple[Row, list[pa.DataType], int]] = [
    ((None,), [pa.int64()], 0x6E756C6C6E756C6C),
    ((None,), [pa.null()], 0x6E756C6C6E756C6C),
    ((0,), [pa.int64()], 0xE220A8397B1DCDAF),
    ((1,), [pa.int8()], 0x910A2DEC89025CC1),
    ((-1,), [pa.int16()], 0xE4D971771B652C20),
    ((2**63 - 1,), [pa.int64()], 0x2A67D7552E039EA7),
    ((2**64 - 1,), [pa.uint64()], 0xE4D971771B652C20),
    ((True,), [pa.bool_()], 0x910A2DEC89025CC1),
    ((0.0,), [pa.float64()], 0x2C02BC2D255524A3),
    ((-0.0,), [pa.float32()], 0x2C02BC2D255524A3),
    ((1.5,), [pa.float16()], 0xE95F67BCB4B29CB6),
    ((NAN,), [pa.float32()], 0x31C68F33DC30250B),
    ((-INF,), [pa.float64()], 0xDC825551F17599A1),
    (("",), [pa.string()], 0x37EFB39B78A1EEEB),
    (("a",), [pa.string()], 0xCE0574A719FBD452),
    (("riverrun",), [pa.large_string()], 0x50263613CA652926),
    (("riverrun, past Eve and Adam's",), [pa.string_view()], 0x0EA8FD7A37DA6914),
    ((b"\x00\xff",), [pa.binary()], 0x4151BA7684F330F0),
    ((b"abc",), [pa.binary(3)], 0xBA70F4320865283E),
    ((18000,), [pa.date32()], 0x0F0BD3144D03B5CA),
    ((86400000,), [pa.date64()], 0xA10C907DF09C06A6),
    ((1,), [pa.timestamp("ns")], 0x910A2DEC89025CC1),
    ((3600,), [pa.time32("s")], 0x42115E611C6F7E70),
    ((1,), [pa.time64("ns")], 0x910A2DEC89025CC1),
    ((-5,), [pa.duration("us")], 0x16B1CBA95FC60262),
    ((Decimal("-12.34"),), [pa.decimal32(9, 2)], 0x68AA60FAF2696D8C),
    ((Decimal("12.34"),), [pa.decimal128(38, 2)], 0xBB0CF61B2F181CDB),
    ((Decimal(2**64),), [pa.decimal128(38, 0)], 0x85B88B7CE0AA132C),
    ((Decimal(-(2**70)),), [pa.decimal256(76, 0)], 0xC74D0DF54F01E5C4),
    (((),), [pa.list_(pa.int64())], 0x4C6973744C697374),
    (((1, None, 3),), [pa.list_(pa.int64())], 0x0FFD946CF0798133),
    ((((), ("a",)),), [pa.list_(pa.list_(pa.string()))], 0xA415434DFD2D35FE),
    (((1, "a"),), [POINT], 0xBD2B489E9A284B59),
    (((None, None),), [POINT], 0x6828EEC44EF451C7),
    ((), [], 0),
    ((1, "a"), [pa.int64(), pa.string()], 0x72CFD44EE2DD1E2C),
    ((None, None, None), [pa.null(), pa.int64(), pa.string()], 0x016D0085C3AFB5B2),
]  # fmt: skip


def hashes(columns: list[Any], declared: list[pa.DataType], rows: int) -> list[int]:
    """The hash of each row, by the kernels."""
    schema = Schema.of({f"k{at}": kind for at, kind in enumerate(declared)}, {})
    table = pa.table({"": pa.nulls(rows)} | {f"k{at}": c for at, c in enumerate(columns)})
    arrays = schema.conform_key(table, "hash")
    nodes = node_table(arrays, [False] * len(arrays))
    return compiled_hash_key(schema, nodes, rows).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("key", "kinds", "expected"), GOLDEN)
def test_golden_values_never_change(key: Row, kinds: list[pa.DataType], expected: int) -> None:
    columns = [to_arrow([cell], kind) for cell, kind in zip(key, kinds, strict=True)]
    assert hashes(columns, kinds, 1) == [expected]
    assert hashing.hash_key(key, kinds) == expected


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=12)
@given(data=st.data())
def test_every_encoding_has_the_documented_hash(name: str, data: st.DataObject) -> None:
    kind = TYPES[name]
    column = data.draw(st.lists(cells(kind), min_size=1, max_size=6))
    expected = [hashing.hash_key((cell,), [kind]) for cell in column]
    assert hashes([data.draw(disguises(column, kind))], [kind], len(column)) == expected
    pair = [kind, pa.int64()]
    expected = [hashing.hash_key((cell, at), pair) for at, cell in enumerate(column)]
    column_pair = [data.draw(disguises(column, kind)), pa.array(range(len(column)))]
    assert hashes(column_pair, pair, len(column)) == expected


@given(st.integers(-128, 127))
def test_the_width_of_an_integer_does_not_show(n: int) -> None:
    signed = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.timestamp("s"), pa.date32()]
    unsigned = [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()] if n >= 0 else []
    assert len({hashes([to_arrow([n], k)], [k], 1)[0] for k in signed + unsigned}) == 1


@given(st.floats(width=16, allow_nan=False))
def test_the_width_of_a_float_does_not_show(x: float) -> None:
    kinds = [pa.float16(), pa.float32(), pa.float64()]
    assert len({hashes([to_arrow([x], k)], [k], 1)[0] for k in kinds}) == 1


@given(st.floats(width=32, allow_nan=False))
def test_the_width_of_a_float_does_not_show_in_subnormals(x: float) -> None:
    kinds = [pa.float32(), pa.float64()]
    assert len({hashes([to_arrow([x], k)], [k], 1)[0] for k in kinds}) == 1


@pytest.mark.parametrize(
    "n", [0, 1, -1, 10**9 - 1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**30]
)
def test_the_width_of_a_decimal_does_not_show(n: int) -> None:
    kinds = [pa.decimal32(9, 0), pa.decimal64(18, 0), pa.decimal128(38, 0), pa.decimal256(76, 0)]
    fitting = [k for k in kinds if abs(n) < 10**k.precision]
    assert len({hashes([to_arrow([Decimal(n)], k)], [k], 1)[0] for k in fitting}) == 1


@pytest.mark.parametrize(
    ("width", "payloads"),
    [
        (2, [0x7E00, 0x7C01, 0xFE00, 0xFFFF]),
        (4, [0x7FC00000, 0x7F800001, 0xFFC00000, 0xFFFFFFFF]),
        (8, [0x7FF8 << 48, (0x7FF0 << 48) + 1, 0xFFF8 << 48, 2**64 - 1]),
    ],
)
def test_nans_are_one(width: int, payloads: list[int]) -> None:
    code = {2: "H", 4: "I", 8: "Q"}[width]
    cells_of = pa.py_buffer(struct.pack(f"<{len(payloads)}{code}", *payloads))
    kind = {2: pa.float16(), 4: pa.float32(), 8: pa.float64()}[width]
    array = pa.Array.from_buffers(kind, len(payloads), [None, cells_of])
    assert set(hashes([array], [kind], len(payloads))) == {0x31C68F33DC30250B}


@given(st.integers(0, 2**64 - 1))
def test_unmix_is_the_inverse_of_mix(x: int) -> None:
    mixed = int(values.mix(np.uint64(x)))
    assert mixed == hashing.mix(x)
    assert int(values.unmix(np.uint64(mixed))) == x


FAMILIES: dict[str, Callable[[int], Any]] = {
    "counting": lambda n: n,
    "thousands": lambda n: n * 1000,
    "high bits": lambda n: n << 40,
    "floats": float,
    "words": str,
    "dates": lambda n: f"2024-01-01T00:00:{n:06}",
    "lists": lambda n: [n],
    "structs": lambda n: {"a": n, "b": 0},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_top_bits_are_uniform(family: str) -> None:
    """Lookup interpolates and workers get ranges: 64 buckets must be about equally full."""
    rows = 1 << 15
    column = pa.array([FAMILIES[family](n) for n in range(rows)])
    words = np.array(hashes([column], [column.type], rows), np.uint64)
    assert len(set(words.tolist())) == rows
    for shift in (58, 29, 0):  # the top, the middle, the bottom
        counts = np.bincount(
            ((words >> np.uint64(shift)) & np.uint64(63)).astype(int), minlength=64
        )
        expected = rows / 64
        chi_squared = float(((counts - expected) ** 2 / expected).sum())
        assert chi_squared < 150  # 63 degrees of freedom: chance gives this once in a billion
