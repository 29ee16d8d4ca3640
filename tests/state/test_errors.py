"""What is refused, and how: every error has a code, fields and a hint, and survives pickling."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from riverrun.errors import RiverrunError, SchemaError, TimeViolation
from riverrun.progress import Antichain
from riverrun.state.batch import Batch
from riverrun.state.schema import Order, Schema
from riverrun.state.spine import Spine
from tests.drawn_rows import TYPES

STRICT = Schema.of(
    pa.schema([pa.field("k", pa.int64(), nullable=False)]),
    pa.schema([pa.field("v", pa.string(), nullable=False), pa.field("w", pa.int16())]),
)
ORDERED = Schema.of({"a": pa.int64(), "b": pa.string()}, {"n": pa.int32()}, ["n"])


def rows(**columns: Any) -> pa.Table:
    return pa.table({"k": [1], "v": ["x"], "w": pa.array([1], pa.int16())} | columns)


def at(*times: int) -> Antichain:
    return Antichain([(time,) for time in times])


def strict() -> Spine:
    """Complete up to 4, readable from 2."""
    spine = Spine("strict", STRICT)
    spine.insert(rows(), (0,))
    spine.insert(rows(), (3,))
    spine.advance_since(at(2))
    return spine


def ordered() -> Spine:
    spine = Spine("ordered", ORDERED)
    spine.insert(pa.table({"a": [1], "b": ["x"], "n": pa.array([1], pa.int32())}), (0,))
    return spine


def build(**arguments: Any) -> Batch:
    call: dict[str, Any] = {"time": (0,), "lower": at(0), "upper": at(5)} | arguments
    return Batch.build(STRICT, rows(), **call)


def deep(levels: int) -> pa.DataType:
    kind: pa.DataType = pa.int64()
    for _ in range(levels):
        kind = pa.list_(kind)
    return kind


KEYS = pa.table({"a": [1], "b": ["x"]})
INT = pa.int64()

REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    # Columns
    "a column twice": ("schema.column_twice", lambda: Schema.of({"a": INT}, {"a": INT})),
    "a key twice": (
        "schema.column_twice",
        lambda: Schema.of(pa.schema([("a", INT), ("a", INT)]), {}),
    ),
    "order by a key": ("schema.order_unknown", lambda: Schema.of({"a": INT}, {"b": INT}, ["a"])),
    "order by nothing": ("schema.order_unknown", lambda: Schema.of({"a": INT}, {}, ["b"])),
    "a missing column": (
        "schema.column_missing",
        lambda: strict().insert(rows().drop(["v"]), (4,)),
    ),
    "an unknown column": ("schema.column_unknown", lambda: strict().insert(rows(z=[1]), (4,))),
    "a misspelt column": (
        "schema.column_missing",
        lambda: strict().insert(rows().rename_columns(["k", "V", "w"]), (4,)),
    ),
    "a column given twice": (
        "schema.column_unknown",
        lambda: strict().insert(rows().append_column("w", rows()["w"]), (4,)),
    ),
    "a missing key": ("schema.column_missing", lambda: ordered().lookup(KEYS.drop(["b"]), (0,))),
    "a column nobody declared": (
        "schema.column_unknown",
        lambda: ordered().lookup(KEYS, (0,)).column("z"),
    ),
    "one array for two keys": (
        "schema.key_columns",
        lambda: ordered().lookup(pa.array([1]), (0,)),
    ),
    # Types
    "text for a number": ("schema.type_mismatch", lambda: strict().insert(rows(k=["1"]), (4,))),
    "a wider integer": ("schema.type_mismatch", lambda: strict().insert(rows(w=[1]), (4,))),
    "unsigned of one width": (
        "schema.type_mismatch",
        lambda: strict().insert(rows(w=pa.array([1], pa.uint16())), (4,)),
    ),
    "a float for an integer": (
        "schema.type_mismatch",
        lambda: strict().insert(rows(k=[1.0]), (4,)),
    ),
    "bytes for text": ("schema.type_mismatch", lambda: strict().insert(rows(v=[b"x"]), (4,))),
    "a map for text": (
        "schema.type_mismatch",
        lambda: strict().insert(rows(v=pa.array([[]], pa.map_(INT, INT))), (4,)),
    ),
    "a key of another type": (
        "schema.type_mismatch",
        lambda: strict().lookup(pa.array(["1"]), (3,)),
    ),
    "a map": ("schema.type_unsupported", lambda: Schema.of({"a": pa.map_(INT, INT)}, {})),
    "a union": (
        "schema.type_unsupported",
        lambda: Schema.of({}, {"a": pa.dense_union([pa.field("x", INT)])}),
    ),
    "an interval": (
        "schema.type_unsupported",
        lambda: Schema.of({}, {"a": pa.month_day_nano_interval()}),
    ),
    "a run-end encoding": (
        "schema.type_unsupported",
        lambda: Schema.of({}, {"a": pa.run_end_encoded(pa.int32(), INT)}),
    ),
    "a map inside": (
        "schema.type_unsupported",
        lambda: Schema.of({}, {"a": pa.list_(pa.struct([("m", pa.map_(INT, INT))]))}),
    ),
    "lists too deep": ("schema.too_deep", lambda: Schema.of({}, {"a": deep(17)})),
    # Nulls
    "a null key": (
        "schema.null",
        lambda: strict().insert(rows(k=pa.array([None], INT)), (4,)),
    ),
    "a null value": ("schema.null", lambda: strict().insert(rows(v=pa.nulls(1)), (4,))),
    # Lengths
    "too many times": ("schema.length", lambda: build(time=[(0,), (1,)])),
    "too few times": ("schema.length", lambda: build(time=[])),
    "too many diffs": ("schema.diffs", lambda: build(diffs=[1, 1])),
    "fractions as diffs": ("schema.diffs", lambda: build(diffs=[0.5])),
    "bounds without an order": (
        "schema.no_order",
        lambda: strict().view().last(pa.array([1]), (3,), at=pa.array(["x"])),
    ),
    "too many bounds": (
        "schema.length",
        lambda: ordered().view().last(KEYS, (0,), at=pa.array([1, 2], pa.int32())),
    ),
    "a bound of another type": (
        "schema.type_mismatch",
        lambda: ordered().view().last(KEYS, (0,), at=pa.array(["x"])),
    ),
    # Times
    "a change before the batch": ("time.outside_batch", lambda: build(time=(0,), lower=at(1))),
    "a change after the batch": ("time.outside_batch", lambda: build(time=(5,))),
    "one of the changes after": (
        "time.outside_batch",
        lambda: Batch.build(
            STRICT,
            pa.concat_tables([rows(), rows()]),
            time=[(0,), (7,)],
            lower=at(0),
            upper=at(5),
        ),
    ),
    "a read before since": ("time.compacted", lambda: strict().lookup(pa.array([1]), (1,))),
    "a read at the upper": ("time.not_complete", lambda: strict().lookup(pa.array([1]), (4,))),
    "a read past the upper": ("time.not_complete", lambda: strict().lookup(pa.array([1]), (9,))),
    "a scan before since": ("time.compacted", lambda: list(strict().scan((1,)))),
    "a scan at the upper": ("time.not_complete", lambda: strict().to_batch((4,))),
    "first before since": ("time.compacted", lambda: strict().view().first(pa.array([1]), (0,))),
    "last at the upper": ("time.not_complete", lambda: strict().view().last(pa.array([1]), (4,))),
    "an upper that goes back": ("time.went_back", lambda: strict().advance_upper(at(3))),
    "an insert into the past": (
        "time.went_back",
        lambda: strict().insert(rows(), (1,)),
    ),
    "a batch after a gap": (
        "time.not_adjacent",
        lambda: strict().append(build(time=(5,), lower=at(5), upper=at(6))),
    ),
    "a batch of before": (
        "time.not_adjacent",
        lambda: strict().append(build(time=(3,), lower=at(3), upper=at(6))),
    ),
    "since past upper": ("time.since_past_upper", lambda: strict().advance_since(at(5))),
    "since that goes back": ("time.went_back", lambda: strict().advance_since(at(1))),
    "a hold before since": ("time.went_back", lambda: strict().hold(at(1))),
    "a hold that goes back": ("time.went_back", lambda: strict().hold(at(3)).advance(at(2))),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused(what: str) -> None:
    code, attempt = REFUSED[what]
    with pytest.raises(RiverrunError) as caught:
        attempt()
    error = caught.value
    assert type(error) is (TimeViolation if code.startswith("time.") else SchemaError)
    assert error.code == code
    assert error.hint
    assert error.fields
    assert str(error) == f"{error.message}\nHint: {error.hint}"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (again.code, again.fields, str(again)) == (error.code, error.fields, str(error))
    assert (again.message, again.hint, again.story) == (error.message, error.hint, error.story)


def test_a_message_names_the_state_and_what_was_given() -> None:
    with pytest.raises(TimeViolation, match=r"'strict' as of \(1,\)"):
        strict().lookup(pa.array([1]), (1,))
    with pytest.raises(SchemaError, match=r"'strict': column 'v' is missing; the rows have: k, w"):
        strict().insert(rows().drop(["v"]), (4,))


def test_a_refused_insert_changes_nothing() -> None:
    spine = strict()
    before = (spine.upper, spine.since, len(spine), spine.view())
    for broken in (rows(k=["1"]), rows(v=pa.nulls(1)), rows().drop(["w"])):
        with pytest.raises(SchemaError):
            spine.insert(broken, (4,))
    with pytest.raises(TimeViolation):
        spine.insert(rows(), (4,), upper=at(3))
    with pytest.raises(SchemaError):
        spine.insert(rows(), (4,), [1, 2])
    assert (spine.upper, spine.since, len(spine), spine.view()) == before


@pytest.mark.parametrize("wrong", [(), (4, 0)])
def test_times_of_another_depth_are_refused(wrong: tuple[int, ...]) -> None:
    spine = strict()
    for attempt in (
        lambda: spine.insert(rows(), wrong, upper=at(9)),
        lambda: spine.lookup(pa.array([1]), wrong),
        lambda: list(spine.scan(wrong)),
        lambda: spine.advance_upper(Antichain([wrong])),
        lambda: spine.hold(Antichain([wrong])),
    ):
        with pytest.raises(TimeViolation):
            attempt()


def test_an_order_names_a_column_once() -> None:
    with pytest.raises(SchemaError):
        Schema.of({}, {"n": pa.int64()}, ["n", Order("n", True)])


@pytest.mark.parametrize("k", [-1, -100])
def test_a_negative_number_of_values_is_refused(k: int) -> None:
    with pytest.raises((RiverrunError, ValueError)):
        ordered().view().first(KEYS, (0,), k)


def test_a_budget_without_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="budget"):
        Spine("x", STRICT, budget=1)
    with pytest.raises(ValueError, match="budget"):
        Spine("x", STRICT, directory=tmp_path)


@pytest.mark.parametrize("name", TYPES)
def test_every_type_is_declared_and_nulls_fit_it(name: str) -> None:
    spine = Spine("nulls", Schema.of({"k": TYPES[name]}, {"v": TYPES[name]}))
    spine.insert(pa.table({"k": pa.nulls(2), "v": pa.nulls(2)}), (0,))
    got = spine.to_batch((0,))
    assert got.schema.field("k").type.equals(TYPES[name])
    assert got.to_pylist() == [{"k": None, "v": None, "count": 2}]


def test_lists_may_be_sixteen_deep() -> None:
    kind = deep(16)
    value: Any = 7
    for _ in range(16):
        value = [value]
    spine = Spine("deep", Schema.of({"k": kind}, {}))
    spine.insert(pa.table({"k": pa.array([value, None, value], kind)}), (0,))
    assert spine.lookup(pa.array([value], kind), (0,)).counts.tolist() == [2]


@pytest.mark.parametrize(
    "kind",
    [
        pa.dictionary(pa.int8(), pa.int64()),
        pa.dictionary(pa.int8(), pa.binary(2)),
        pa.dictionary(pa.int32(), pa.timestamp("us")),
        pa.dictionary(pa.int32(), pa.string_view()),
        pa.struct([pa.field("x", pa.int64(), nullable=False)]),
        pa.list_(pa.field("element", pa.string(), nullable=False)),
    ],
    ids=str,
)
def test_what_can_be_declared_comes_back_as_declared(kind: pa.DataType) -> None:
    spine = Spine("declared", Schema.of({}, {"v": kind}))
    spine.insert(pa.table({"v": pa.nulls(1)}), (0,))
    assert spine.to_batch((0,)).column("v").type.equals(kind)


def test_a_dictionary_with_narrow_codes_holds_more_values_than_codes() -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    spine = Spine("declared", Schema.of({}, {"v": kind}))
    spine.insert(pa.table({"v": [str(n) for n in range(300)]}), (0,))
    with suppress(SchemaError):  # also an answer; an error of Arrow's is none
        assert spine.to_batch((0,)).num_rows == 300
