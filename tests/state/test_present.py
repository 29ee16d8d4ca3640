"""States in which a key has at most one row: upserts, made of first rows, present rows and differences."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from riverrun.progress import Antichain
from riverrun.state import Order, Schema, Spine
from riverrun.state.batch import Batch
from riverrun.state.columns import take_columns
from riverrun.state.keys import Keys
from riverrun.state.schema import FULL_MASK, conform_column
from tests.state.checks import check_block, set_sizes

SEQUENCE = pa.schema([("s", pa.int64())])


def cells(kind: pa.DataType, numbers: list[int]) -> pa.Array:
    plain = [f"{number:b}" for number in numbers] if kind == pa.string() else numbers
    field = pa.field("c", kind)
    canonical = Schema.of({"c": kind}, {}).canonical[0]
    return conform_column(pa.array(plain).cast(kind), field, canonical, "test")


@pytest.mark.parametrize("mask", [FULL_MASK, 0xF << 60, 0])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.int32()])
@pytest.mark.parametrize("value", [pa.int64(), pa.string()])
@pytest.mark.parametrize("block", [None, 5])
def test_upserts_are_those_of_a_dict(
    mask: int, kind: pa.DataType, value: pa.DataType, block: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    set_sizes(monkeypatch, block=block, chunk=block, packed=block, fold=(2, 2) if block else None)
    source = random.Random(f"{mask} {kind} {value} {block}")
    schema = Schema.of({"k": kind}, {"v": value}, (), mask)
    commands = Schema.of(schema.key, SEQUENCE, Order("s", descending=True), mask)
    spine, model = Spine("rows", schema), dict[int, int]()
    for epoch in range(40):
        size = source.choice([1, 3, 20, 300])
        numbers = [source.randrange(200) for _ in range(size)]
        values = [source.randrange(3) for _ in range(size)]
        order = source.sample(range(size), size)
        column = cells(kind, numbers)
        keys, chosen = Keys.first_rows(commands, [column, pa.array(order)], size)
        last = {numbers[at]: at for at in sorted(range(size), key=order.__getitem__)}
        assert sorted(chosen.tolist()) == sorted(last.values())
        assert keys.columns[0] == column.take(pa.array(chosen))
        put = np.flatnonzero([source.random() < 0.8 for _ in chosen])
        new_values = take_columns([cells(value, values)], chosen[put])
        upper = Antichain([(epoch + 1,)])
        old = spine.view().present(keys)
        if epoch:
            same = spine.lookup(keys, (epoch - 1,))
            assert old.queries is not None
            assert same.queries is not None
            assert old.queries.tolist() == same.queries.tolist()
            assert old.counts.tolist() == same.counts.tolist()
            assert [old.canonical(at) for at in (0, 1)] == [same.canonical(at) for at in (0, 1)]
        batch = Batch.difference(schema, keys, put, new_values, old, (epoch,), spine.upper, upper)
        assert batch is not None
        spine.append(batch)
        put_rows = set(chosen[put].tolist())
        for number, at in last.items():
            model.pop(number, None)
            if at in put_rows:
                model[number] = values[at]
        if source.random() < 0.7:  # otherwise batches hold several times
            spine.advance_since(Antichain([(epoch,)]))
        contents = spine.to_batch((epoch,))
        pairs = zip(*(contents.column(name).to_pylist() for name in "kv"), strict=True)
        expected = (cells(kind, list(model)), cells(value, list(model.values())))
        assert sorted(pairs) == sorted(zip(*(c.to_pylist() for c in expected), strict=True))
        for each in spine.view().batches:
            for piece in each.blocks:
                check_block(piece, each.lower)


def test_values_of_one_word_merge_to_what_other_values_do() -> None:
    """The words are in the last column, after one that is the same everywhere: these rows merge the general way."""
    rng, spines = np.random.default_rng(3), []
    for value in ({"v": pa.int64()}, {"same": pa.int64(), "v": pa.int64()}):
        spines.append(Spine("rows", Schema.of({"k": pa.int64()}, value)))
    for epoch in range(12):
        keys, cells = rng.integers(0, 3000, 4000), rng.integers(-2, 2, 4000)
        diffs = rng.choice([-1, 1, 2, 300, -(2**40)] if epoch % 3 == 0 else [-1, 1], 4000)
        for spine in spines:
            columns = {"k": keys, "same": np.zeros(4000, np.int64), "v": cells}
            names = [field.name for field in spine.schema.columns]
            spine.insert(pa.table(columns).select(names), (epoch,), diffs)
            spine.advance_since(Antichain([(epoch,)]))
        if epoch % 4 == 3:
            for spine in spines:
                spine.compact()
        plain, other = (spine.to_batch((epoch,)) for spine in spines)
        assert plain == other.drop_columns(["same"])
