"""The laws of commands, for rows of this process and for the partitions of a DataFrame."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pyarrow as pa
import pytest

from riverrun.errors import SchemaError
from riverrun.rows.commands import (
    DELETED,
    FRAME,
    NUMBERS,
    PARTITION,
    SEQUENCE,
    InputRows,
    commands_schema,
    partition_numbers,
)
from tests.soaking import seeds

CITIES = pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string()), ("at", pa.int32())])
KEYED = InputRows(CITIES, ("id",))
BAG = InputRows(CITIES)
ATTEMPT = "delete from 'cities'"


def test_commands_are_fed_in_the_columns_that_are_declared() -> None:
    rows = KEYED.conform([(1, "Oslo", None)], "insert into 'cities'")
    fed = KEYED.fed(rows, first=5)
    assert fed.schema.names == [*commands_schema(CITIES).names, "diff"]
    assert fed.to_pylist() == [
        {"id": 1, "name": "Oslo", "at": None, SEQUENCE: 5, DELETED: False, "diff": 1}
    ]
    assert [field.nullable for field in commands_schema(CITIES)] == [True] * 5


@pytest.mark.parametrize("count", [1, 64, 65, 1000])
@pytest.mark.parametrize("delete", [False, True])
def test_rows_without_a_key_are_fed_with_their_sign(count: int, delete: bool) -> None:
    rows = BAG.conform([(n, None, n) for n in range(count)], ATTEMPT)
    fed = BAG.fed(rows, delete=delete, first=9)
    assert fed.schema.names == ["id", "name", "at", "diff"]
    assert fed.column("diff").to_pylist() == [-1 if delete else 1] * count
    assert fed.column("diff").type == pa.int64()


@pytest.mark.parametrize(
    "deletions",
    [
        [3, 4],
        [(3,), (4,)],
        [{"id": 3}, {"id": 4}],
        [(3, "x", 1), (4, None, None)],
        pa.record_batch({"id": [3, 4]}),
        pa.record_batch({"id": [3, 4], "name": ["x", "y"], "at": pa.array([1, 2], pa.int32())}),
        iter([3, 4]),
    ],
    ids=["values", "tuples", "dicts", "rows", "key frame", "whole frame", "iterator"],
)
def test_a_deletion_is_of_keys_alone(deletions: Any) -> None:
    fed = KEYED.fed(KEYED.deletion(deletions, ATTEMPT), delete=True, first=0)
    assert fed.schema.types == [
        *BAG.conform([], "").schema.types,
        pa.int64(),
        pa.bool_(),
        pa.int64(),
    ]
    assert [tuple(row.values()) for row in fed.to_pylist()] == [
        (3, None, None, 0, True, 1),
        (4, None, None, 1, True, 1),
    ]


@pytest.mark.parametrize(
    ("deletions", "code"),
    [
        ([(None,)], "schema.null_key"),
        ([(None, "x", 1)], "schema.null_key"),
        (pa.record_batch({"id": pa.array([None], pa.int64())}), "schema.null_key"),
        (["Oslo"], "schema.value"),
        ([(1, "Oslo")], "schema.ragged"),
        ([(1, "Oslo", "north")], "schema.value"),
        (pa.record_batch({"id": ["1"]}), "schema.type_mismatch"),
        (pa.record_batch({"id": [1], "name": [1], "at": [None]}), "schema.type_mismatch"),
        (pa.record_batch({"name": ["Oslo"]}), "schema.column_missing"),
    ],
)  # fmt: skip
def test_a_deletion_is_refused_for_what_is_wrong_with_it(deletions: Any, code: str) -> None:
    with pytest.raises(SchemaError) as refusal:
        KEYED.deletion(deletions, ATTEMPT)
    assert refusal.value.code == code
    assert refusal.value.message.startswith(f"cannot {ATTEMPT}: ")


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(5, soak=200))
def test_no_two_numbers(seed: int) -> None:
    """Numbers of partitions, of DataFrames and of what comes before and after them do not meet."""
    random_ = random.Random(seed)
    ranges: list[range] = []
    following = 0
    for _ in range(30):
        if random_.random() < 0.5:
            count = random_.randrange(1, 5)
            ranges.append(range(following, following + count))
            following += count
            continue
        last = FRAME // PARTITION - 1
        for partition in sorted({0, last, *random_.sample(range(last), 3)}):
            numbers = partition_numbers(following, partition)
            assert len(numbers) == PARTITION
            ranges.append(numbers)
        assert not partition_numbers(following, last + 1)
        following += FRAME
    ordered = sorted(ranges, key=lambda each: each.start)
    for one, other in itertools.pairwise(ordered):
        assert one.stop <= other.start
    assert ordered[0].start >= 0
    assert ordered[-1].stop <= NUMBERS
