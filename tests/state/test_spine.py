"""Spines at work: neither cuts nor order show, bounded work, many rows, and corners found by reading the code."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.progress import Antichain
from riverrun.state import spine as spine_module
from riverrun.state.batch import Batch
from riverrun.state.merge import Merger
from riverrun.state.schema import FULL_MASK, Order, Schema
from riverrun.state.spine import Spine
from riverrun.state.view import View
from tests.drawn_rows import TYPES, cells, disguises, to_arrow, to_plain
from tests.oracle import NAN
from tests.soaking import first_seed
from tests.state.checks import (
    NEVER_FOLD,
    block_rows,
    check_changes,
    check_ends,
    check_laws,
    check_lookup,
    check_scan,
    keys_with_hashes,
    reference_for,
    set_sizes,
)
from tests.state.hashing import hash_in

INTS = Schema.of({"k": pa.int64()}, {"v": pa.int64()})


def at(*times: int) -> Antichain:
    return Antichain([(time,) for time in times])


def ints(keys: Any, values: Any) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array(values, pa.int64())})


@pytest.fixture
def seed() -> Iterator[int]:
    return first_seed()


@pytest.fixture
def little_fuel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges start at once and stay under way as long as can be."""
    set_sizes(monkeypatch, fuel=0, fold=NEVER_FOLD)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    set_sizes(monkeypatch, block=100, chunk=30)


# Every type, as key and as value


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=8)
@given(data=st.data())
def test_every_type_is_key_and_ordered_value(name: str, data: st.DataObject) -> None:
    kind = TYPES[name]
    descending = data.draw(st.booleans())
    mask = data.draw(st.sampled_from([FULL_MASK, 1]))
    schema = Schema.of({"k": kind}, {"w": pa.bool_(), "v": kind}, [Order("v", descending)], mask)
    keys = data.draw(st.lists(cells(kind), min_size=1, max_size=3))
    values = data.draw(st.lists(cells(kind), min_size=1, max_size=6))
    change = st.tuples(
        st.sampled_from(keys), st.sampled_from(values), st.booleans(), st.sampled_from([1, 1, -1])
    )
    spine, reference = Spine(name, schema), reference_for(schema)
    for epoch in range(3):
        changes = data.draw(st.lists(change, max_size=8))
        table = pa.table(
            {
                "k": data.draw(disguises([k for k, *_ in changes], kind)),
                "v": data.draw(disguises([v for _, v, *_ in changes], kind)),
                "w": [w for _, _, w, _ in changes] or pa.array([], pa.bool_()),
            }
        )
        spine.insert(table, (epoch,), [d for *_, d in changes] or 1)
        reference.insert(((k,), (w, v), (epoch,), d) for k, v, w, d in changes)
    queries = [(key,) for key in [*keys, *values[:1], *keys]]
    for _ in range(2):
        check_laws(spine)
        view = spine.view()
        for t in (1,), (2,):
            check_lookup(view, reference, queries, t)
            check_ends(view, reference, queries, t, 2, values)
            check_scan(view, reference, t, 2)
        check_changes(view, reference, queries, [(1,), (2,)])
        spine.advance_since(at(1))
        spine.compact()


# Neither cuts nor order of rows show


@settings(max_examples=60)
@given(data=st.data())
def test_neither_cuts_nor_order_of_rows_change_anything(data: st.DataObject) -> None:
    """Changes in other batches and in other order; once compacted, the very same rows."""
    schema = Schema.of(
        {"k": pa.string()}, {"v": pa.int32()}, hash_mask=data.draw(st.sampled_from([FULL_MASK, 3]))
    )
    change = st.tuples(
        st.integers(0, 5),
        st.sampled_from(["a", "b", "c", None]),
        st.integers(0, 3),
        st.sampled_from([1, -1, 2]),
    )
    changes = data.draw(st.lists(change, max_size=30))
    spines = []
    for _ in range(2):
        spine, start = Spine("cut", schema), 0
        cuts = [*sorted(data.draw(st.sets(st.integers(1, 5)))), 6]
        for stop in cuts:
            rows = data.draw(st.permutations([c for c in changes if start <= c[0] < stop]))
            table = pa.table(
                {
                    "k": pa.array([k for _, k, _, _ in rows], pa.string()),
                    "v": pa.array([v for _, _, v, _ in rows], pa.int32()),
                }
            )
            spine.append(
                Batch.build(
                    schema,
                    table,
                    time=[(t,) for t, *_ in rows],
                    diffs=[d for *_, d in rows] if rows else 1,
                    lower=at(start),
                    upper=at(stop),
                )
            )
            spine.work(data.draw(st.integers(0, 20)))
            start = stop
        spines.append(spine)
    for t in range(6):
        a, b = (Counter(map(str, s.to_batch((t,)).to_pylist())) for s in spines)
        assert a == b
    since = at(data.draw(st.integers(0, 6)))
    contents = []
    for spine in spines:
        spine.advance_since(since)
        spine.compact()
        contents.append(
            [
                (h, k, v, block.times[code], diff)
                for block in spine.view().blocks
                for h, k, v, code, diff in block_rows(block)
            ]
        )
    assert contents[0] == contents[1]


def test_compaction_forgets_what_no_reader_can_tell_apart() -> None:
    spine = Spine("forget", INTS)
    for epoch in range(10):
        spine.insert(ints([1, 1], [epoch, epoch - 1]), (epoch,), [1, -1] if epoch else [1, 1])
    spine.compact()
    assert len(spine) > 10
    spine.advance_since(at(9))
    spine.compact()
    [block] = spine.view().blocks
    assert block.times == ((9,),)
    assert [row[1:] for row in block_rows(block)] == [((1,), (-1,), 0, 1), ((1,), (9,), 0, 1)]


# Bounded work


class Meter:
    """Counts the rows that merges handle, and the rows that are sorted again with others."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.merged = self.folded = 0
        work, fold = Merger.work, spine_module.fold

        def measured_work(merger: Merger, fuel: int) -> int:
            before = merger.remaining
            left = work(merger, fuel)
            self.merged += before - merger.remaining
            return left

        def measured_fold(batches: Sequence[Batch], since: Antichain) -> Batch:
            self.folded += sum(map(len, batches))
            return fold(batches, since)

        patch.setattr(Merger, "work", measured_work)
        patch.setattr(spine_module, "fold", measured_fold)


SIZES = {
    "ones": lambda rng: 1,
    "anything": lambda rng: rng.choice([0, 1, 1, 2, 5, 20, 100]),
    "powers": lambda rng: 1 << rng.randrange(9),
    "rarely large": lambda rng: 2000 if rng.random() < 0.01 else rng.randrange(4),
    "first large": lambda rng: 3,
    "shrinking": lambda rng: max(1, int(200 * rng.random() ** 4)),
}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("least", "fold"), [(0, NEVER_FOLD), (16, NEVER_FOLD), (16, (20, 4))])
def test_an_append_does_bounded_work_and_batches_stay_few(
    sizes: str, least: int, fold: tuple[int, int], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_sizes(monkeypatch, fuel=least, fold=fold)
    meter, rng = Meter(monkeypatch), random.Random(seed)
    spine, rows = Spine("metered", INTS), 0
    for epoch in range(400):
        count = 5000 if sizes == "first large" and epoch == 0 else SIZES[sizes](rng)
        keys = [rng.randrange(2**62) for _ in range(count)]
        entries = len(spine.view().batches) + 1
        meter.merged = meter.folded = 0
        spine.insert(ints(keys, keys), (epoch,))
        rows += count
        # What was saved up, the fuel, and a group.
        assert meter.merged <= 2 * least + least + count * (4 + 2 * entries) + 2
        assert meter.folded <= max(0, 6 * fold[0] * fold[1])  # sorted into one, and merged at once
        batches = len(spine.view().batches)
        most = 2 * math.log2(max(rows, 1)) + 4 + fold[1]
        assert batches <= most, f"{batches} batches of {rows} rows"
    assert len(spine) == rows


def test_work_goes_on_by_the_row_until_all_is_done(
    little_fuel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverrun.state.spine.FOLD_ROWS", 0)  # no batch is small
    spine = Spine("by the row", INTS)
    for epoch in range(30):
        spine.insert(ints(range(epoch, epoch + 9), range(9)), (epoch,))
    steps = 0
    while spine.work(1) <= 0:
        steps += 1
        assert steps < 30 * 9 * 20
    assert spine.work(1) == 1  # nothing is left to do, and the fuel is given back
    *settled, _newest = (len(batch) for batch in spine.view().batches)
    assert len(settled) > 1
    assert all(a >= 2 * b for a, b in itertools.pairwise(settled))


# Many rows


@pytest.mark.parametrize(
    ("mask", "distinct"),
    [
        (FULL_MASK, 10**6),
        (FULL_MASK, 500),
        (FULL_MASK, 3),
        (0xFF, 5000),
        (0, 40),
        (0x7FF << 53, 5000),
    ],
)
@pytest.mark.parametrize("kind", ["int64", "string"])
def test_many_rows_against_a_counter(
    mask: int, distinct: int, kind: str, seed: int, small_blocks: None, little_fuel: None
) -> None:
    rng = np.random.default_rng(seed)
    key_type = TYPES[kind]
    schema = Schema.of({"k": key_type}, {"v": pa.int64()}, ["v"], mask)
    spine = Spine("many", schema)
    versions: list[Counter[Any]] = []
    here: Counter[Any] = Counter()
    sizes = [9000 if mask == FULL_MASK else 1500, 300, 40, 700, 100, 1]
    for epoch, rows in enumerate(sizes):
        numbers = rng.integers(0, distinct, rows).tolist()
        keys = [str(n) for n in numbers] if kind == "string" else numbers
        values = rng.integers(0, 3, rows).tolist()
        diffs = rng.choice([1, 1, -1], rows).tolist()
        spine.insert(pa.table({"k": keys, "v": values}), (epoch,), diffs)
        for key, value, diff in zip(keys, values, diffs, strict=True):
            here[key, value] += diff
        versions.append(Counter({row: n for row, n in here.items() if n}))
    for since in (0, 3, 5):
        spine.advance_since(at(since))
        if since:
            spine.compact()
        for epoch in range(since, len(sizes)):
            got = spine.to_batch((epoch,)).to_pydict()
            rows_got = dict(zip(zip(got["k"], got["v"], strict=True), got["count"], strict=True))
            assert rows_got == versions[epoch]
            asked = [*dict.fromkeys(key for key, _ in versions[epoch])][:3000]
            absent = ["no such key"] if kind == "string" else [-5]
            selection = spine.lookup(pa.array(asked + absent, key_type), (epoch,))
            there = zip(
                selection.column("k").to_pylist(),
                selection.column("v").to_pylist(),
                selection.counts,
                strict=True,
            )
            chosen = set(asked)
            assert {(k, v): n for k, v, n in there} == {
                row: n for row, n in versions[epoch].items() if row[0] in chosen
            }
        hashes = [block.words[block.start : block.stop] for block in spine.view().blocks]
        if since and mask == FULL_MASK:
            assert (np.diff(np.concatenate(hashes).astype(object)) >= 0).all()


def test_slices_share_memory_and_cover_everything(seed: int, small_blocks: None) -> None:
    rng = random.Random(seed)
    spine = Spine("sliced", INTS)
    for epoch in range(4):
        spine.insert(ints([rng.randrange(10**9) for _ in range(500)], range(500)), (epoch,))
    view = spine.view()
    stored = sorted(int(h) for b in view.blocks for h in b.words)
    cuts = sorted({0, 2**64, *rng.sample(stored, 5), *(h + 1 for h in rng.sample(stored, 5))})
    total: Counter[Any] = Counter()
    for low, high in itertools.pairwise(cuts):
        batches = tuple(batch.slice(low, high) for batch in view.batches)
        part = replace(view, batches=batches)
        owners = {block.uid: block for block in view.blocks}
        for block in part.blocks:
            assert (
                block.hashes.buffers()[1].address == owners[block.uid].hashes.buffers()[1].address
            )
        for row in part.to_batch((3,)).to_pylist():
            assert low <= hash_in(INTS, (row["k"],)) < high
            total[row["k"], row["v"]] += row["count"]
    assert total == Counter({(r["k"], r["v"]): r["count"] for r in view.to_batch((3,)).to_pylist()})


# Corners


def test_reads_of_one_view_do_not_disturb_each_other() -> None:
    """A scan that is under way goes on as of its time, whatever else is read meanwhile."""
    spine = Spine("side by side", INTS)
    spine.append(
        Batch.build(
            INTS,
            ints(range(200), range(200)),
            time=[(n % 10,) for n in range(200)],
            lower=at(0),
            upper=at(10),
        )
    )
    view = spine.view()
    scans = [view.scan((t,), rows=1) for t in range(10)]
    counts = [0] * 10
    for _ in range(200):
        for t, scan in enumerate(scans):
            counts[t] += len(next(scan, ()))
            view.lookup(pa.array([1]), ((t + 5) % 10,))
            [np.full(10, 1, np.uint8) for _ in range(5)]  # memory that was given up is used again
    assert counts == [20 * (t + 1) for t in range(10)]


def test_a_null_key_and_the_integer_with_its_hash_are_two_keys() -> None:
    """The null's hash is the hash of some integer too, whose key column is not even stored."""
    [twin] = keys_with_hashes([0x6E756C6C6E756C6C])
    assert hash_in(INTS, (twin,)) == hash_in(INTS, (None,))
    spine, reference = Spine("twins", INTS), reference_for(INTS)
    keys = [(twin,), (None,), (twin + 1,)]
    for epoch, (key,) in enumerate([(twin,), (None,), (twin,), (None,)]):
        spine.insert(ints([key], [epoch % 2]), (epoch,))
        reference.insert([((key,), (epoch % 2,), (epoch,), 1)])
        for t in range(epoch + 1):
            check_lookup(spine.view(), reference, keys, (t,))
            check_scan(spine.view(), reference, (t,), 1)
    spine.advance_since(at(3))
    spine.compact()
    check_laws(spine)
    check_lookup(spine.view(), reference, keys, (3,))


def two_batches() -> View:
    """Of times 0 and 5, apart."""
    spine = Spine("two", INTS)
    spine.insert(ints([1, 2, 3, 4], [0] * 4), (0,))
    spine.insert(ints([5], [0]), (5,))
    view = spine.view()
    assert len(view.batches) == 2
    return view


def test_a_state_cut_to_nothing_can_be_compacted(little_fuel: None) -> None:
    view = two_batches()
    spine = Spine.from_view(replace(view, batches=tuple(b.slice(0, 1) for b in view.batches)))
    spine.compact()
    assert len(spine) == 0
    assert spine.to_batch((5,)).num_rows == 0
    check_laws(spine)
    spine.insert(ints([1], [1]), (6,))
    assert spine.to_batch((6,)).num_rows == 1


def test_a_state_cut_to_nothing_can_go_on() -> None:
    view = two_batches()
    spine = Spine.from_view(replace(view, batches=tuple(b.slice(0, 1) for b in view.batches)))
    spine.insert(ints(range(1000), range(1000)), (6,))
    check_laws(spine)
    assert spine.to_batch((6,)).num_rows == 1000
    assert spine.to_batch((5,)).num_rows == 0


def test_a_part_of_a_view_is_a_view_of_its_own() -> None:
    """What a view remembers about its batches is not said of others."""
    view = two_batches()
    assert view.to_batch((0,)).num_rows == 4
    later = replace(view, batches=view.batches[1:])
    assert later.to_batch((0,)).num_rows == 0
    assert later.to_batch((5,)).num_rows == 1


def test_batches_that_cancel_to_nothing_are_no_burden(little_fuel: None) -> None:
    spine = Spine("cancel", INTS)
    for epoch in range(40):
        spine.insert(ints([1, 2, 3], [0] * 3), (epoch,), 1 if epoch % 2 == 0 else -1)
        spine.advance_since(at(epoch))
        spine.work(100)
        check_laws(spine)
    spine.compact()
    assert len(spine) == 0
    assert spine.to_batch((39,)).num_rows == 0
    assert len(spine.view().batches) <= 1


def test_a_state_that_is_complete_can_be_read_for_ever() -> None:
    spine = Spine("closed", INTS)
    spine.insert(ints([1], [1]), (0,))
    spine.advance_upper(Antichain())
    assert spine.to_batch((10**6,)).num_rows == 1
    spine.advance_since(Antichain())
    spine.compact()
    check_laws(spine)


def test_an_empty_state_reads_as_nothing() -> None:
    spine = Spine("empty", INTS)
    assert len(spine) == 0
    spine.compact()
    spine.advance_upper(at(3))
    view = spine.view()
    assert len(view.lookup(pa.array([1, 2]), (2,))) == 0
    assert view.lookup(pa.array([1]), (2,)).column("v").equals(pa.array([], pa.int64()))
    assert len(view.changes(pa.array([1]))) == 0
    assert len(view.last(pa.array([1]), (2,))) == 0
    assert list(view.scan((2,))) == []
    assert view.to_batch((2,)).schema.names == ["k", "v", "count"]
    assert len(view.lookup(pa.array([], pa.int64()), (2,))) == 0


def test_an_insert_of_no_rows_and_no_diffs_moves_the_upper() -> None:
    spine = Spine("no rows", INTS)
    spine.insert(ints([], []), (0,), [])
    assert spine.upper == at(1)


def test_keys_come_as_arrays_chunks_and_numpy() -> None:
    spine = Spine("keys", INTS)
    spine.insert(ints([1, 2, 3], [4, 5, 6]), (0,))
    for keys in (
        pa.array([3, 1]),
        pa.array([3, 1], pa.int8()),
        pa.array([9, 3, 1, 9])[1:3],
        pa.chunked_array([[3], [], [1]]),
        pa.chunked_array([], pa.int64()),
        np.array([3, 1]),
        pa.table({"v": [0, 0], "k": [3, 1]}),
        pa.record_batch({"k": [3, 1]}),
        pa.array([3, 1]).dictionary_encode(),
    ):
        got = spine.lookup(keys, (0,)).column("v").to_pylist()
        assert got == ([6, 4] if len(keys) else [])


def test_zero_has_no_sign_and_nans_are_one_when_they_come_back() -> None:
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        spine = Spine("floats", Schema.of({"k": kind}, {"v": pa.list_(kind)}))
        column = to_arrow([-0.0, 0.0, NAN], kind)
        lists = pa.ListArray.from_arrays([0, 1, 2, 3], column)
        spine.insert(pa.table({"k": column, "v": lists}), (0,))
        got = spine.to_batch((0,))
        assert sorted(got.column("count").to_pylist()) == [1, 2]
        cells_got = [cell for cell in got.column("k").to_pylist() if not math.isnan(cell)]
        assert [math.copysign(1, cell) for cell in cells_got] == [1.0]
        assert to_plain(spine.lookup(to_arrow([NAN], kind), (0,)).column("v")) == [(NAN,)]


def test_a_column_may_be_called_count() -> None:
    spine = Spine("count", Schema.of({"k": pa.int64()}, {"count": pa.int64()}))
    spine.insert(pa.table({"k": [1], "count": [7]}), (0,))
    got = spine.to_batch((0,))
    assert len(set(got.schema.names)) == 3


def test_a_hold_keeps_versions_apart_until_it_goes() -> None:
    spine = Spine("held", INTS)
    for epoch in range(6):
        spine.insert(ints([1], [epoch]), (epoch,))
    with spine.hold(at(2)) as hold:
        spine.advance_since(at(5))
        assert spine.since == at(2)
        spine.compact()
        assert [spine.to_batch((t,)).num_rows for t in range(2, 6)] == [3, 4, 5, 6]
        hold.advance(at(4))
        assert spine.since == at(4)
    assert spine.since == at(5)
    hold.release()
    hold.advance(at(5))
    assert spine.since == at(5)


def test_a_view_is_not_disturbed(little_fuel: None) -> None:
    spine = Spine("pinned", INTS)
    views: list[tuple[View, list[dict[str, int]]]] = []
    for epoch in range(50):
        spine.insert(ints([epoch % 7, epoch % 5], [epoch, 0]), (epoch,))
        views.append((spine.view(), spine.view().to_batch((epoch,)).to_pylist()))
        spine.advance_since(at(epoch))
    spine.compact()
    for epoch, (view, rows) in enumerate(views):
        assert sorted(map(str, view.to_batch((epoch,)).to_pylist())) == sorted(map(str, rows))


def test_diffs_of_every_size_add_up() -> None:
    spine, reference = Spine("diffs", INTS), reference_for(INTS)
    sizes = [1, -1, 127, 128, -129, 2**15, -(2**31), 2**40, -(2**62)]
    for epoch, diff in enumerate(sizes):
        spine.insert(ints([1, 2], [0, 0]), (epoch,), [diff, 1])
        reference.insert([((1,), (0,), (epoch,), diff), ((2,), (0,), (epoch,), 1)])
    spine.compact()
    check_laws(spine)
    for t in range(len(sizes)):
        check_lookup(spine.view(), reference, [(1,), (2,)], (t,))


def test_more_than_256_times_in_one_block() -> None:
    spine, reference = Spine("times", INTS), reference_for(INTS)
    table = ints([n % 3 for n in range(600)], [n % 2 for n in range(600)])
    times = [(n,) for n in range(600)]
    spine.append(Batch.build(INTS, table, time=times, lower=at(0), upper=at(600)))
    reference.insert(((n % 3,), (n % 2,), (n,), 1) for n in range(600))
    for since in (0, 300, 598):
        spine.advance_since(at(since))
        spine.compact()
        check_laws(spine)
        for t in (300, 597, 598, 599):
            if t >= since:
                check_lookup(spine.view(), reference, [(0,), (1,), (2,)], (t,))


def test_a_last_read_up_to_a_bound_is_an_as_of_join() -> None:
    """Prices by symbol and the application's own time; a trade asks for the latest before it."""
    schema = Schema.of(
        {"symbol": pa.string()}, {"at": pa.timestamp("us"), "price": pa.float64()}, ["at"]
    )
    spine = Spine("prices", schema)
    when = to_arrow([10, 20, 30, None], pa.timestamp("us"))
    rows = pa.table({"symbol": ["x"] * 4, "at": when, "price": [1.0, 2.0, 3.0, 9.0]})
    spine.insert(rows, (0,))
    asked = to_arrow([5, 10, 25, 30, 99, None], pa.timestamp("us"))
    symbols = pa.array(["x"] * 6)
    view = spine.view()
    got = view.last(symbols, (0,), at=asked)
    assert got.queries.tolist() == [1, 2, 3, 4, 5]  # type: ignore[union-attr]
    assert got.column("price").to_pylist() == [1.0, 2.0, 3.0, 3.0, 9.0]
    got = view.last(symbols, (0,), at=asked, closed=False)
    assert got.queries.tolist() == [2, 3, 4, 5]  # type: ignore[union-attr]
    assert got.column("price").to_pylist() == [2.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize("lag", [0, 1, 2, 50])
def test_batches_wait_for_a_since_that_is_about_to_pass_them(lag: int) -> None:
    """What is merged has one time then; where `since` is far behind, merging goes on all the same."""
    spine = Spine("waiting", INTS)
    for epoch in range(40):
        spine.insert(ints(range(epoch, epoch + 500), range(500)), (epoch,))
        spine.advance_since(Antichain([(max(epoch - lag, 0),)]))
        batches = spine.view().batches
        assert len(batches) <= 2 * math.log2(500 * 40) + 4
        if lag <= 2:
            assert all(len(block.times) == 1 for batch in batches for block in batch.blocks)
