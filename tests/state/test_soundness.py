"""Rows that must not be looked at are refused, whatever is wrong with them; sound ones pass as they are."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from riverrun.state.soundness import (
    WEIGHTLESS,
    UnsoundRows,
    check_codes,
    check_rows,
    read_body,
    read_stream,
)
from tests.soaking import draws, first_seed


def stream(batch: pa.RecordBatch, compression: str | None = None) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def words(values: list[Any]) -> pa.Buffer:
    return pa.py_buffer(np.array(values, np.int64))


def one(array: pa.Array, nullable: bool = True) -> pa.RecordBatch:
    schema = pa.schema([pa.field("c", array.type, nullable)])
    return pa.RecordBatch.from_arrays([array], schema=schema)


SOUND = {
    "numbers": pa.array([1, None, 3]),
    "text": pa.array(["tea", None, "ä"]),
    "view": pa.array(["tea", None, "a text that is not short"], pa.string_view()),
    "lists": pa.array([[1, 2], None, []]),
    "fixed": pa.array([[1, 2], None], pa.list_(pa.int64(), 2)),
    "structs": pa.array([{"a": 1, "b": "x"}, None]),
    "maps": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
    "codes": pa.array(["a", "b", None]).dictionary_encode(),
    "decimals": pa.array([Decimal("1.50"), None]),
    "days": pa.array([date(2026, 1, 1), None]),
    "instants": pa.array([datetime(2026, 1, 1), None]),
    "nothing": pa.nulls(5),
    "empty": pa.array([], pa.string()),
    "bits": pa.array([True, False, None]),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_rows_pass_as_they_are(name: str) -> None:
    batch = one(SOUND[name])
    assert check_rows(batch) is batch
    (read,) = read_stream(stream(batch))
    assert read.equals(batch)
    if name != "codes":  # the values of codes travel in a message of their own
        assert read_body(batch.serialize(), batch.schema).equals(batch)


def test_a_list_without_nulls_inside_may_span_some_under_a_null() -> None:
    kind = pa.list_(pa.field("item", pa.int64(), nullable=False))
    values = pa.array([1, None, 3])
    spans = pa.Array.from_buffers(
        kind,
        3,
        [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 1, 2, 3], np.int32))],
        children=[values],
    )
    check_rows(one(spans))


def offsets(values: list[int], text: bytes = b"teaink") -> pa.Array:
    return pa.Array.from_buffers(
        pa.large_string(), len(values) - 1, [None, words(values), pa.py_buffer(text)]
    )


def unchecked(ends: list[int]) -> pa.RecordBatch:
    """A batch whose offsets Arrow's reader has not looked at, as a peer may send it."""
    data = stream(one(offsets([0, 3, 6]))).to_pybytes()
    was = np.array([0, 3, 6], np.int64).tobytes()
    assert data.count(was) == 1
    data = data.replace(was, np.array(ends, np.int64).tobytes())
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_next_batch()


@pytest.mark.parametrize(
    "ends", [[0, 3, 5000], [0, 5000, 6], [0, 4, 3], [-8, 3, 6], [0, 3, 1 << 62]]
)
def test_an_offset_outside_of_its_buffer_is_refused(ends: list[int]) -> None:
    batch = unchecked(ends)
    with pytest.raises(UnsoundRows, match="column 'c'"):
        check_rows(batch)
    with pytest.raises(UnsoundRows):
        check_rows(pa.Table.from_batches([batch]))


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(UnsoundRows, match="UTF"):
        check_rows(one(offsets([0, 3, 6], b"te\xff\xfeab")))


def test_a_code_outside_of_its_dictionary_is_refused() -> None:
    codes = pa.DictionaryArray.from_arrays(
        pa.array([0, 9], pa.int32()), pa.array(["a"]), safe=False
    )
    with pytest.raises(UnsoundRows):
        check_rows(one(codes))


def test_a_count_of_nulls_that_is_not_that_of_the_bitmap_is_refused() -> None:
    wrong = pa.Array.from_buffers(
        pa.int64(), 3, [pa.py_buffer(b"\x05"), words([1, 2, 3])], null_count=2
    )
    with pytest.raises(UnsoundRows):
        check_rows(one(wrong))


def test_nulls_where_none_are_declared_are_refused_at_any_depth() -> None:
    with pytest.raises(UnsoundRows, match="1 nulls"):
        check_rows(one(pa.array([1, None]), nullable=False))
    inner = pa.StructArray.from_arrays(
        [pa.array([1, None])], fields=[pa.field("a", pa.int64(), nullable=False)]
    )
    with pytest.raises(UnsoundRows, match="'a'"):
        check_rows(one(inner))
    with pytest.raises(UnsoundRows, match="'a'"):
        check_rows(one(pa.LargeListArray.from_arrays(pa.array([0, 2]), inner)))


def test_what_takes_no_space_is_bounded() -> None:
    many = WEIGHTLESS + 1
    nulls = pa.Array.from_buffers(pa.null(), many, [None])
    with pytest.raises(UnsoundRows, match="no space"):
        check_rows(one(nulls))
    bare = pa.Array.from_buffers(pa.struct([]), many, [None])
    with pytest.raises(UnsoundRows, match="no space"):
        check_rows(one(bare))
    with pytest.raises(UnsoundRows, match="without a column"):
        check_rows(pa.RecordBatch.from_struct_array(bare))
    spanned = pa.LargeListArray.from_arrays(pa.array([0, many]), nulls)
    with pytest.raises(UnsoundRows, match="no space"):
        check_rows(one(spanned))
    check_rows(one(pa.nulls(WEIGHTLESS)))


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_rows_are_refused_before_they_grow(compression: str) -> None:
    batch = one(pa.array(["a" * 1000] * 100))
    before = pa.total_allocated_bytes()
    with pytest.raises(UnsoundRows, match="compressed"):
        read_stream(stream(batch, compression))
    with pytest.raises(UnsoundRows, match="compressed"):
        read_body(_message(batch, compression), batch.schema)
    assert pa.total_allocated_bytes() - before < 50_000
    coded = one(pa.array(["a" * 1000] * 100).dictionary_encode())
    with pytest.raises(UnsoundRows, match="compressed"):
        read_stream(stream(coded, compression))


def _message(batch: pa.RecordBatch, compression: str) -> pa.Buffer:
    """The message of a batch alone, without that of its schema."""
    for message in pa.ipc.MessageReader.open_stream(stream(batch, compression)):
        if message.type == "record batch":
            return message.serialize()
    raise AssertionError("no batch")


@pytest.mark.parametrize(
    "array",
    [
        pa.RunEndEncodedArray.from_arrays(pa.array([1 << 30], pa.int64()), pa.array(["x"])),
        pa.UnionArray.from_dense(
            pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])]
        ),
        pa.array([[1]], pa.list_view(pa.int64())),
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16], pa.binary(16))),
        pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
    ],
    ids=["runs", "union", "list view", "extension", "interval"],
)
def test_kinds_that_rows_do_not_have_are_refused(array: pa.Array) -> None:
    batch = one(array)
    with pytest.raises(UnsoundRows, match="no values of type"):
        check_rows(batch)
    with pytest.raises(UnsoundRows):
        read_stream(stream(batch))


def test_kinds_that_pyarrow_has_no_name_for_are_refused() -> None:
    """Arrow reads intervals of months, which PyArrow has no class for: their column cannot even be asked for."""
    data = stream(one(pa.array([(1, 2, 3)], pa.month_day_nano_interval()))).to_pybytes()
    unit, months, found = 2, 0, 0
    for at, byte in enumerate(data):
        if byte != unit:
            continue
        changed = pa.py_buffer(data[:at] + bytes([months]) + data[at + 1 :])
        try:
            kinds = pa.ipc.open_stream(changed).schema.types
        except (pa.ArrowException, OSError):
            continue
        if [str(kind) for kind in kinds] == ["month_interval"]:
            found += 1
            with pytest.raises(UnsoundRows, match="no values of type month_interval"):
                read_stream(changed)
    assert found


def test_a_buffer_between_words_is_refused() -> None:
    shifted = pa.py_buffer(b"\0" + np.array([1, 2], np.int64).tobytes()).slice(1)
    if shifted.address % 8 == 0:  # Python may put bytes anywhere
        shifted = pa.py_buffer(b"\0\0" + np.array([1, 2], np.int64).tobytes()).slice(2)
    with pytest.raises(UnsoundRows, match="word"):
        check_rows(one(pa.Array.from_buffers(pa.int64(), 2, [None, shifted])))


def test_codes_are_positions_in_their_table() -> None:
    check_codes(None, 1, 5)
    check_codes(np.array([0, 1], np.uint8), 2, 2)
    for codes, count, rows in [
        (None, 2, 1),
        (np.array([0, 2], np.uint8), 2, 2),
        (np.array([0], np.uint8), 1, 2),
        (np.array([-1], np.int8), 1, 1),
        (np.array([[0]], np.uint8), 1, 1),
    ]:
        with pytest.raises(UnsoundRows):
            check_codes(codes, count, rows)


def test_a_name_that_is_no_text_is_refused() -> None:
    for batch in (one(pa.array([1])), one(pa.array([{"q": 1}]))):
        data = stream(batch).to_pybytes()
        for name in (b"c", b"q"):
            where = data.find(name + b"\0\0\0")
            if where < 0:
                continue
            damaged = data[:where] + b"\xd8" + data[where + 1 :]
            with pytest.raises(UnsoundRows):
                read_stream(pa.py_buffer(damaged))


def test_damaged_bytes_are_refused_or_sound() -> None:
    """Whatever bytes are changed, what is read can be looked at: all of it is, value by value."""
    seed = first_seed(11)
    random_bytes = random.Random(seed)
    batch = pa.record_batch(
        {name: array.slice(0, 2) for name, array in SOUND.items() if len(array) > 1}
    )
    good = stream(batch).to_pybytes()
    refused = 0
    for _ in range(draws(2_000, sample=20_000, soak=100_000)):
        data = bytearray(good)
        for _ in range(random_bytes.randint(1, 3)):
            data[random_bytes.randrange(len(data))] = random_bytes.randrange(256)
        try:
            for read in read_stream(pa.py_buffer(bytes(data))):
                for column in read.columns:
                    for at in range(min(len(column), 10)):
                        # Some instants, zones and decimals Python does not have.
                        with suppress(ArithmeticError, ValueError, LookupError):
                            str(column[at])
        except UnsoundRows:
            refused += 1
    assert refused > 100, f"SEED={seed}"
