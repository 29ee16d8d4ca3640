"""Messages as bytes, and back."""

from __future__ import annotations

import os
import pickle
import random
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.engine import codec, messages
from riverrun.engine.codec import Decoder, Encoder
from riverrun.engine.instance import Data as Rows
from riverrun.engine.instance import Told
from riverrun.engine.messages import Data, Failed, Feed, NotReady, Parcel, Wrote
from riverrun.engine.where import Where
from riverrun.engine.wire import BadFrame, describe, pack, revive, unpack
from riverrun.errors import CheckpointError, OperatorFailed, PlanError, RiverrunError
from riverrun.progress import Antichain
from riverrun.state import Schema as StateSchema
from riverrun.state import Spine
from riverrun.state.changes import Changes
from riverrun.state.checkpoint import Checkpoints, Part
from riverrun.state.shards import Shards
from tests.chaos.programs import Counting, CountingInstance, rows_of
from tests.rows import TYPES, cells, to_arrow, to_plain

CANONICAL = {
    name: kind
    for name, kind in TYPES.items()
    if "dictionary" not in str(kind) and "view" not in str(kind)
}
small = st.integers(-3, 1 << 40)
times = st.integers(1, 3).flatmap(
    lambda depth: st.lists(
        st.tuples(*[st.integers(0, 5)] * depth), min_size=1, max_size=4, unique=True
    ).map(lambda found: tuple(sorted(found)))
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
parcels = st.builds(Parcel, st.text(), small, small, st.none() | st.text(), st.text())
errors = st.builds(
    lambda code, said, hint, story, data: OperatorFailed(
        code, said, hint=hint, story=story, **data
    ),
    st.text(max_size=5), st.text(max_size=9), st.none() | st.text(max_size=9),
    st.lists(st.text(max_size=5), max_size=2).map(tuple),
    st.dictionaries(st.sampled_from(["node", "worker", "row"]), plain),
)  # fmt: skip


@st.composite
def changes(draw: st.DrawFn) -> Changes:
    """Columns of any canonical type, cut out of longer ones; several times and diffs."""
    kinds = draw(st.lists(st.sampled_from(sorted(CANONICAL)), max_size=3))
    rows, before, after = draw(st.integers(0, 6)), draw(st.integers(0, 3)), draw(st.integers(0, 3))
    size = before + rows + after
    columns = [
        to_arrow(draw(st.lists(cells(CANONICAL[kind]), min_size=size, max_size=size)), CANONICAL[kind])
        .slice(before, rows)
        for kind in kinds
    ]  # fmt: skip
    found = draw(times)
    codes = diffs = None
    if len(found) > 1:
        codes = np.array([draw(st.integers(0, len(found) - 1)) for _ in range(rows)], np.uint32)
    if draw(st.booleans()):
        diffs = np.array(draw(st.lists(small, min_size=rows, max_size=rows)), np.int64)
    return Changes(tuple(columns), rows, found, codes, draw(small), diffs)


@st.composite
def feeds(draw: st.DrawFn) -> Feed:
    inputs = {}
    for name in draw(st.lists(st.text(max_size=3), max_size=3, unique=True)):
        made = draw(changes().filter(lambda changes: changes.columns))
        names = draw(
            st.lists(st.text(max_size=3), min_size=len(made.columns), max_size=len(made.columns))
        )
        inputs[name] = pa.record_batch(list(made.columns), names=names)
    listed = st.dictionaries(st.text(max_size=3), st.lists(parcels, max_size=2).map(tuple))
    return Feed(draw(small), draw(small), inputs, draw(listed))


def message_of(kind: type) -> st.SearchStrategy[Any]:
    """Any message of a class whose fields are plain."""
    by_type = {
        "int": small,
        "int | None": st.none() | small,
        "tuple[int, ...]": st.lists(small, max_size=4).map(tuple),
        "tuple[dict[str, Any], ...]": st.lists(
            st.dictionaries(st.text(max_size=3), st.none() | small | st.text(max_size=3)),
            max_size=2,
        ).map(tuple),
        "Shards": st.builds(Shards.even, st.integers(1, 4)),
        "RiverrunError": errors,
        "RiverrunError | None": st.none() | errors,
        "Part | None": st.none() | st.builds(Part, small, small, st.just({})),
    }
    return st.builds(kind, **{each.name: by_type[str(each.type)] for each in fields(kind)})


ON_THE_WIRE = (
    messages.Begin, messages.Announce, messages.Published, messages.Leave, messages.Join,
    messages.Heartbeat, messages.Ready, messages.Completed, Failed, NotReady, messages.Broken, Wrote,
)  # fmt: skip
everything = st.one_of(
    *map(message_of, ON_THE_WIRE),
    feeds(),
    st.builds(Data, small, small, changes().map(lambda made: Rows((7, made)))),
    st.builds(
        Data,
        small,
        small,
        st.lists(st.tuples(small, times.map(lambda t: t[0]), small), max_size=3).map(Told),
    ),
    st.builds(Data, small, small, plain),
    st.lists(plain, max_size=3),
)


def same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, Data) and isinstance(wanted.payload, Rows):
        assert type(found.payload) is Rows
        assert (found.execution, found.number) == (wanted.execution, wanted.number)
        assert found.payload[0] == wanted.payload[0]
        same_changes(found.payload[1], wanted.payload[1])
    elif isinstance(wanted, Data):
        assert type(found.payload) is type(wanted.payload)
        assert found == wanted
    elif isinstance(wanted, Feed):
        assert (found.execution, found.epoch) == (wanted.execution, wanted.epoch)
        assert found.parcels == wanted.parcels
        assert list(found.inputs) == list(wanted.inputs)
        for name, batch in wanted.inputs.items():
            assert found.inputs[name].schema.names == batch.schema.names
            same_columns(found.inputs[name].columns, batch.columns)
    elif getattr(wanted, "error", None) is not None:
        assert replace(found, error=None) == replace(wanted, error=None)
        same_errors(found.error, wanted.error)
    else:
        assert found == wanted


def same_changes(found: Changes, wanted: Changes) -> None:
    assert (found.rows, found.times, found.diff) == (wanted.rows, wanted.times, wanted.diff)
    same_columns(found.columns, wanted.columns)
    for got, given_ in ((found.codes, wanted.codes), (found.diffs, wanted.diffs)):
        assert (got is None) == (given_ is None)
        if got is not None and given_ is not None:
            assert got.dtype == given_.dtype
            assert got.tolist() == given_.tolist()


def same_columns(found: Sequence[pa.Array], wanted: Sequence[pa.Array]) -> None:
    assert [column.type for column in found] == [column.type for column in wanted]
    for column, original in zip(found, wanted, strict=True):
        column.validate(full=True)
        assert to_plain(column) == to_plain(original)


def same_errors(found: Any, wanted: RiverrunError) -> None:
    assert type(found) is type(wanted)
    for name in ("code", "message", "hint", "story", "fields"):
        assert getattr(found, name) == getattr(wanted, name)
    assert str(found) == str(wanted)


def carried(frames: list[codec.Frame], decoder: Decoder) -> list[Any]:
    """What comes out at the other end; bodies lie at odd addresses, as the wire may have them."""
    out = []
    for frame in frames:
        body = frame.body
        if body is not None:
            body = pa.py_buffer(b"x" + body.to_pybytes()).slice(1)
        message = decoder.decode(frame.head, body)
        if message is not None:
            out.append(message)
    return out


@given(st.lists(everything, max_size=4), st.sampled_from([1, 64, 1000, 1 << 22]))
def test_every_message_comes_back_whatever_came_before(sent: list[Any], piece: int) -> None:
    encoder, decoder, out = Encoder(), Decoder(), []
    before, codec.PIECE = codec.PIECE, piece
    try:
        for message in sent:
            got = carried(encoder.encode(message), decoder)
            assert len(got) == 1
            out += got
    finally:
        codec.PIECE = before
    for found, wanted in zip(out, sent, strict=True):
        same(found, wanted)


def test_every_class_that_travels_is_tried() -> None:
    def_kinds = {
        value
        for value in vars(messages).values()
        if isinstance(value, type)
        and value.__module__ == messages.__name__
        and hasattr(value, "__dataclass_fields__")
    }
    at_home = {
        "Logged", "Reported", "Refused", "Saved", "Scaled", "Closed", "Notice", "Start", "Stop", "Append",
        "Recall", "Acknowledge",
        "Write", "Publish", "Collect", "Survey", "Found", "Read", "Outcome",
    }  # fmt: skip
    tried = {kind.__name__ for kind in ON_THE_WIRE} | {"Data", "Feed", "Parcel"}
    assert {kind.__name__ for kind in def_kinds} == at_home | tried


@pytest.mark.parametrize("name", sorted(CANONICAL))
def test_a_column_of_every_type_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = CANONICAL[name]
    monkeypatch.setattr(codec, "PIECE", 40)
    column = pa.nulls(23, kind)
    made = Changes((column, pa.array(range(23))), 23, ((1, 2),), None, 1, None)
    frames = Encoder().encode(Data(1, 0, Rows((3, made))))
    assert len(frames) > 2
    (found,) = carried(frames, Decoder())
    same_changes(found.payload[1], made)


def test_pieces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "PIECE", 10_000)
    words = pa.array([f"{at:050}" for at in range(5000)])
    made = Changes((words,), 5000, ((0,),), None, 1, None)
    frames = Encoder().encode(Data(1, 0, Rows((3, made))))
    assert 20 < len(frames) < 60
    assert max(frame.size for frame in frames) < 15_000
    (found,) = carried(frames, Decoder())
    same_changes(found.payload[1], made)


def test_a_slice_takes_the_room_of_a_slice() -> None:
    words = pa.array([f"{at:050}" for at in range(5000)]).slice(700, 10)
    made = Changes((words, pa.array([True] * 5000).slice(3, 10)), 10, ((0,),), None, 1, None)
    (frame,) = Encoder().encode(Data(1, 0, Rows((3, made))))
    assert frame.size < 3000
    (found,) = carried([frame], Decoder())
    same_changes(found.payload[1], made)


def test_columns_are_said_once() -> None:
    encoder = Encoder()
    made = Changes.of([pa.array(["a"]), pa.array([1])], (0,))
    first, second = (encoder.encode(Data(1, at, Rows((3, made))))[0] for at in range(2))
    assert len(second.head) < len(first.head) - 100
    with pytest.raises(BadFrame):  # it belongs to another stream
        Decoder().decode(second.head, second.body)


def test_a_feed_has_its_own_inputs_only() -> None:
    encoder, decoder = Encoder(), Decoder()
    for sent in (
        Feed(1, 0, rows_of([1])),
        Feed(1, 1, {"other": rows_of([2])["rows"]}),
        Feed(1, 2, {}),
    ):
        (found,) = carried(encoder.encode(sent), decoder)
        same(found, sent)


def test_a_part_of_a_checkpoint_comes_back() -> None:
    checkpoints = Checkpoints("memory:///")
    instance = CountingInstance(0, Shards.even(1), 0, None)
    instance.feed(0, rows_of(range(50)))
    while instance.work():
        pass
    part = checkpoints.write(instance.pin(), 1)
    (found,) = carried(Encoder().encode(Wrote(4, part)), Decoder())
    assert found == Wrote(4, part)
    schema = StateSchema.of({"k": pa.string()}, {"v": pa.float64()}, order=["v"])
    ordered = Spine("ordered", schema)
    ordered.insert(pa.record_batch({"k": ["a", "b"], "v": [1.0, 2.0]}), (0,))
    part = checkpoints.write({"ordered": ordered.view()}, 1)
    (found,) = carried(Encoder().encode(Wrote(4, part)), Decoder())
    assert found == Wrote(4, part)
    assert found.part.shares["ordered"][0].schema.order == schema.order


# ---- nothing but messages


TRACE = Path(tempfile.gettempdir()) / f"riverrun-was-here-{os.getpid()}"


class Evil:
    def __reduce__(self) -> Any:
        return os.system, (f"touch {TRACE}",)


class Quiet:
    """Pickles as a call of a function that a message has no business with."""

    def __init__(self, function: Any, *given: Any) -> None:
        self.call = function, given

    def __reduce__(self) -> Any:
        return self.call


def reached(*_: Any) -> None:
    raise AssertionError("it was executed")


@pytest.mark.parametrize(
    "value",
    [
        Evil(),
        Quiet(reached),
        Quiet(getattr, "a", "upper"),
        Quiet(eval, "1 + 1"),
        Quiet(__import__, "os"),
        Counting(),
        np.array([3.0]),
        [Quiet(print, "x")],
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_classes_are_refused(value: Any) -> None:
    for head in (pickle.dumps(value, protocol) for protocol in (0, 2, 4, 5)):
        with pytest.raises(BadFrame, match="names"):
            Decoder().decode(head)
    assert not TRACE.exists()


@given(st.binary(max_size=60))
def test_random_bytes_are_refused_or_plain(data: bytes) -> None:
    with suppress(BadFrame):
        unpack(data)


@given(everything, st.randoms(use_true_random=False))
def test_damaged_frames_raise_nothing_else(message: Any, source: random.Random) -> None:
    decoder = Decoder()
    for frame in Encoder().encode(message):
        head = bytearray(frame.head)
        for _ in range(source.randint(1, 4)):
            head[source.randrange(len(head))] = source.randrange(256)
        with suppress(BadFrame, RiverrunError):
            decoder.decode(bytes(head[: source.randint(0, len(head))]), frame.body)


@pytest.mark.parametrize(
    "value",
    [(), (1, 2), ("rows", 1), (True, 5, None, None), (True, 0, b"no schema", ("input", "a", [])),
     ("error", 3, {}), ("error", messages.Ready(1), {"code": "x"}), (True, None, None, None)],
)  # fmt: skip
def test_other_shapes_are_refused(value: Any) -> None:
    with pytest.raises(BadFrame):
        Decoder().decode(pack(value), pa.py_buffer(b"12345678"))


# ---- values that stand in heads


@pytest.mark.parametrize(
    "value",
    [
        Antichain([(1, 2), (0, 3)]),
        Where("a", "in", (1, 2), True),
        Where("a", ">", date(2020, 1, 1)),
        Where("a", ">", datetime(2020, 1, 1, tzinfo=UTC)),
        Where("a", ">", datetime(2020, 1, 1, tzinfo=ZoneInfo("Europe/Rome"))),
        Where("a", "=", Decimal("1.5")),
        Where("a", "<", timedelta(hours=1)),
        {"a": {1, 2}, "b": frozenset({3}), "c": bytearray(b"x")},
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_come_back(value: Any) -> None:
    found = unpack(pack(value))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("value", [np.int64(3), np.float64(0.5), np.str_("a"), np.bool_(True)])
def test_numbers_of_numpy_come_back_as_plain_ones(value: Any) -> None:
    found = unpack(pack(Where("a", "=", value)))
    assert found.value == value
    assert type(found.value) is type(value.item())


# ---- errors


def raised() -> OperatorFailed:
    def inner() -> None:
        raise ZeroDivisionError("by nothing")

    try:
        inner()
    except ZeroDivisionError as error:
        failed = OperatorFailed(
            "operator.failed", "it failed", hint="mend it", node="map-1", worker=2
        )
        failed.__cause__ = error
        return failed


def test_a_cause_arrives_with_its_class_and_traceback() -> None:
    (found,) = carried(Encoder().encode(Failed(1, 2, raised())), Decoder())
    same_errors(found.error, raised())
    cause = found.error.__cause__
    assert type(cause) is ZeroDivisionError
    assert str(cause) == "by nothing"
    assert 'raise ZeroDivisionError("by nothing")' in str(cause.__cause__)


def test_causes_of_ours_nest() -> None:
    outer = CheckpointError("run.not_repeatable", "again", hint="h", epoch=3)
    outer.__cause__ = raised()
    found = revive(unpack(pack(describe(outer))))
    same_errors(found, outer)
    same_errors(found.__cause__, raised())
    assert type(found.__cause__.__cause__) is ZeroDivisionError  # type: ignore[union-attr]


class Odd(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(a, b)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (Odd(1, 2), RuntimeError, "Odd: (1, 2)"),
        (KeyError("k"), KeyError, "k"),
        (UnicodeDecodeError("utf8", b"x", 0, 1, "bad"), RuntimeError, "UnicodeDecodeError"),
        (KeyboardInterrupt("stop"), RuntimeError, "KeyboardInterrupt: stop"),
        (ExceptionGroup("several", [ValueError("a")]), RuntimeError, "several"),
        (Mute(), RuntimeError, "Mute"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_a_user_raises(error: BaseException, kind: type, said: str) -> None:
    found = revive(unpack(pack(describe(error))))
    assert type(found) is kind
    assert said in str(found)


def test_a_long_traceback_is_cut() -> None:
    about = describe(ValueError("x" * 1_000_000))
    assert len(about["trace"]) <= 20_000
    assert len(pack(about)) < 100_000


@pytest.mark.parametrize(
    "value",
    [
        np.float64(1.5), np.str_("a"), np.bytes_(b"a"), np.int32(1), object(), {"a": [np.float64(1)]},
        datetime(2020, 1, 1, tzinfo=ZoneInfo("Europe/Rome")), (1, [2, {3: None}]), {1, 2}, range(3),
        Counting(), lambda: None,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_field_of_any_kind_travels(value: Any) -> None:
    """At worst as text: an error that cannot be read would be taken for garbage."""
    error = OperatorFailed("a", "b", row=value)
    found = revive(unpack(pack(describe(error))))
    assert isinstance(found, OperatorFailed)
    assert found.fields.keys() == {"row"}


def test_a_plan_error_keeps_its_line() -> None:
    error = PlanError("a", "b", line="user.py:3: x")
    found = revive(describe(error))
    same_errors(found, error)
