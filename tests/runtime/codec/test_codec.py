"""Messages as bytes, and back."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pickle
import random
import resource
import sys
import tempfile
import time
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import UTC, date, datetime, timedelta, timezone
from datetime import time as datetime_time
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.engine import messages
from riverrun.engine.instance import ProgressNews
from riverrun.engine.loop_rounds import LoopRound
from riverrun.engine.messages import Data, Failed, Feed, Parcel, Wrote
from riverrun.engine.wiring import RoutedChanges as Rows
from riverrun.errors import BadMessage, CheckpointError, OperatorFailed, PlanError, RiverrunError
from riverrun.progress import Antichain
from riverrun.rows.conditions import Where
from riverrun.runtime.codec import fragments, plain, shapes
from riverrun.runtime.codec.fragments import Decoder, Encoder
from riverrun.runtime.codec.plain import describe, pack, revive, unpack
from riverrun.state import Schema as StateSchema
from riverrun.state import Spine
from riverrun.state.changes import Changes
from riverrun.state.shards import END, Shards
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.manifest import BlockEntry, StoredFile
from tests.chaos.programs import Counting, CountingInstance, rows_of
from tests.drawn_rows import TYPES, cells, to_arrow, to_plain
from tests.soaking import SOAK, draws

CANONICAL = {
    name: kind
    for name, kind in TYPES.items()
    if "dictionary" not in str(kind) and "view" not in str(kind)
}
small = st.integers(-3, 1 << 40)
times = st.integers(1, 3).flatmap(
    lambda depth: st.lists(
        st.tuples(*[st.integers(0, 5)] * depth), min_size=1, max_size=4, unique=True
    ).map(lambda drawn: tuple(sorted(drawn)))
)
plain_values = st.recursive(
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
    st.dictionaries(st.sampled_from(["node", "worker", "row"]), plain_values),
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
    drawn_times = draw(times)
    codes = diffs = None
    if len(drawn_times) > 1:
        codes = np.array(
            [draw(st.integers(0, len(drawn_times) - 1)) for _ in range(rows)], np.uint32
        )
    if draw(st.booleans()):
        diffs = np.array(draw(st.lists(small, min_size=rows, max_size=rows)), np.int64)
    return Changes(tuple(columns), rows, drawn_times, codes, draw(small), diffs)


@st.composite
def feeds(draw: st.DrawFn) -> Feed:
    inputs = {}
    for name in draw(st.lists(st.text(max_size=3), max_size=3, unique=True)):
        rows = draw(changes().filter(lambda changes: changes.columns))
        names = draw(
            st.lists(st.text(max_size=3), min_size=len(rows.columns), max_size=len(rows.columns))
        )
        inputs[name] = pa.record_batch(list(rows.columns), names=names)
    listed = st.dictionaries(st.text(max_size=3), st.lists(parcels, max_size=2).map(tuple))
    saved = of_type(tuple[messages.SavedShare, ...])
    return Feed(draw(small), draw(small), inputs, draw(listed), draw(saved))


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that a field of a message has; a type that is not known here is an error."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in BY_TYPE:
        return BY_TYPE[hint]
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(of_type, arguments))
    if origin is tuple and arguments[1:] == (...,):
        return st.lists(of_type(arguments[0]), max_size=3).map(tuple)
    if origin in (dict, Mapping):
        key, value = map(of_type, arguments)
        return st.dictionaries(key, value, max_size=3)
    if dataclasses.is_dataclass(hint):
        return message_of(hint)
    if hasattr(hint, "_fields"):  # a tuple whose fields have names
        return st.builds(hint, *map(of_type, typing.get_type_hints(hint).values()))
    raise TypeError(f"no values of {hint}")


def message_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any message of a class, whatever its fields."""
    hints = typing.get_type_hints(kind)
    return st.builds(kind, *[of_type(hints[each.name]) for each in fields(kind)])


BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int: small,
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=5),
    type(None): st.none(),
    Any: plain_values,
    RiverrunError: errors,
    Shards: st.builds(Shards.even, st.integers(1, 4)),
    LoopRound: st.builds(
        LoopRound,
        st.text(),
        st.text(),
        st.tuples(small, small) | st.tuples(small, small, small),
        small,
    ),
    Antichain: times.map(Antichain),
    Parcel: parcels,
    StateSchema: st.sampled_from(
        [
            StateSchema.of({"k": pa.string()}, {"v": pa.float64()}, order=["v"]),
            StateSchema.of({}, {"a": pa.list_(pa.int32())}, everywhere=True),
        ]
    ),
    BlockEntry: st.builds(
        BlockEntry,
        st.builds(StoredFile, st.text(max_size=5), small, st.text(max_size=5)),
        small,
        st.integers(0, END),
        st.integers(0, END),
    ),
}
ON_THE_WIRE = sorted(shapes.TRAVELLING - {Data, Feed}, key=lambda kind: kind.__name__)
everything = st.one_of(
    *map(message_of, ON_THE_WIRE),
    feeds(),
    st.builds(Data, small, small, changes().map(lambda rows: Rows((7, rows)))),
    st.builds(
        Data,
        small,
        small,
        st.lists(st.tuples(small, times.map(lambda t: t[0]), small), max_size=3).map(ProgressNews),
    ),
    st.builds(Data, small, small, plain_values),
)


def same(received: Any, sent: Any) -> None:
    assert type(received) is type(sent)
    if isinstance(sent, Data) and isinstance(sent.payload, Rows):
        assert type(received.payload) is Rows
        assert (received.execution, received.number) == (sent.execution, sent.number)
        assert received.payload[0] == sent.payload[0]
        same_changes(received.payload[1], sent.payload[1])
    elif isinstance(sent, Data):
        assert type(received.payload) is type(sent.payload)
        assert received == sent
    elif isinstance(sent, Feed):
        assert (received.execution, received.epoch) == (sent.execution, sent.epoch)
        assert received.parcels == sent.parcels
        assert list(received.inputs) == list(sent.inputs)
        for name, batch in sent.inputs.items():
            assert received.inputs[name].schema.names == batch.schema.names
            same_columns(received.inputs[name].columns, batch.columns)
    elif getattr(sent, "error", None) is not None:
        assert replace(received, error=None) == replace(sent, error=None)
        same_errors(received.error, sent.error)
    else:
        assert received == sent


def same_changes(received: Changes, sent: Changes) -> None:
    assert (received.rows, received.times, received.diff) == (sent.rows, sent.times, sent.diff)
    same_columns(received.columns, sent.columns)
    for got, original in ((received.codes, sent.codes), (received.diffs, sent.diffs)):
        assert (got is None) == (original is None)
        if got is not None and original is not None:
            assert got.dtype == original.dtype
            assert got.tolist() == original.tolist()


def same_columns(received: Sequence[pa.Array], sent: Sequence[pa.Array]) -> None:
    assert [column.type for column in received] == [column.type for column in sent]
    for column, original in zip(received, sent, strict=True):
        column.validate(full=True)
        assert to_plain(column) == to_plain(original)


def same_errors(received: Any, sent: RiverrunError) -> None:
    assert type(received) is type(sent)
    for name in ("code", "message", "hint", "story", "fields"):
        assert getattr(received, name) == getattr(sent, name)
    assert str(received) == str(sent)


def carried(fragments: list[fragments.Fragment], decoder: Decoder) -> list[Any]:
    """What comes out at the other end; bodies lie at odd addresses, as the wire may have them."""
    out = []
    for fragment in fragments:
        body = fragment.body
        if body is not None:
            body = pa.py_buffer(b"x" + body.to_pybytes()).slice(1)
        message = decoder.decode(fragment.head, body)
        if message is not None:
            out.append(message)
    return out


@given(st.lists(everything, max_size=4), st.sampled_from([1, 64, 1000, 1 << 22]))
def test_every_message_comes_back_whatever_came_before(sent: list[Any], piece: int) -> None:
    encoder, decoder, out = Encoder(), Decoder(), []
    before, fragments.PIECE = fragments.PIECE, piece
    try:
        for message in sent:
            got = carried(encoder.encode(message), decoder)
            assert len(got) == 1
            out += got
    finally:
        fragments.PIECE = before
    for received, wanted in zip(out, sent, strict=True):
        same(received, wanted)


def test_every_class_that_travels_is_tried() -> None:
    def_kinds = {
        value
        for value in vars(messages).values()
        if isinstance(value, type)
        and value.__module__ == messages.__name__
        and hasattr(value, "__dataclass_fields__")
    }
    at_home = {
        "Logged", "Reported", "Refused", "Saved", "Scaled", "Closed", "Notice", "Start", "Stop", "AppendRecord",
        "Recall", "Acknowledge",
        "Write", "Publish", "Collect", "Survey", "SurveyResult", "Read", "Outcome",
        "WriteRound", "PublishRound", "ReadRounds", "ForgetRounds", "LoopSaved",
    }  # fmt: skip
    tried = {kind.__name__ for kind in shapes.TRAVELLING} | {"Parcel", "SavedShare"}
    assert {kind.__name__ for kind in def_kinds} == at_home | tried


@pytest.mark.parametrize("name", sorted(CANONICAL))
def test_a_column_of_every_type_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = CANONICAL[name]
    monkeypatch.setattr(fragments, "PIECE", 40)
    column = pa.nulls(23, kind)
    rows = Changes((column, pa.array(range(23))), 23, ((1, 2),), None, 1, None)
    encoded = Encoder().encode(Data(1, 0, Rows((3, rows))))
    assert len(encoded) > 2
    (received,) = carried(encoded, Decoder())
    same_changes(received.payload[1], rows)


def test_pieces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "PIECE", 10_000)
    words = pa.array([f"{at:050}" for at in range(5000)])
    rows = Changes((words,), 5000, ((0,),), None, 1, None)
    encoded = Encoder().encode(Data(1, 0, Rows((3, rows))))
    assert 20 < len(encoded) < 60
    assert max(fragment.size for fragment in encoded) < 15_000
    (received,) = carried(encoded, Decoder())
    same_changes(received.payload[1], rows)


def test_a_slice_takes_the_room_of_a_slice() -> None:
    words = pa.array([f"{at:050}" for at in range(5000)]).slice(700, 10)
    rows = Changes((words, pa.array([True] * 5000).slice(3, 10)), 10, ((0,),), None, 1, None)
    (fragment,) = Encoder().encode(Data(1, 0, Rows((3, rows))))
    assert fragment.size < 3000
    (received,) = carried([fragment], Decoder())
    same_changes(received.payload[1], rows)


def test_columns_are_said_once() -> None:
    encoder = Encoder()
    rows = Changes.of([pa.array(["a"]), pa.array([1])], (0,))
    first, second = (encoder.encode(Data(1, at, Rows((3, rows))))[0] for at in range(2))
    assert len(second.head) < len(first.head) - 100
    with pytest.raises(BadMessage):  # it belongs to another stream
        Decoder().decode(second.head, second.body)


def test_a_feed_has_its_own_inputs_only() -> None:
    encoder, decoder = Encoder(), Decoder()
    for sent in (
        Feed(1, 0, rows_of([1])),
        Feed(1, 1, {"other": rows_of([2])["rows"]}),
        Feed(1, 2, {}),
    ):
        (received,) = carried(encoder.encode(sent), decoder)
        same(received, sent)


def test_a_part_of_a_checkpoint_comes_back() -> None:
    checkpoints = Checkpoints("memory:///")
    instance = CountingInstance(0, Shards.even(1), 0, None)
    instance.feed(0, rows_of(range(50)))
    while instance.work():
        pass
    part = checkpoints.write(instance.pin(), 1)
    (received,) = carried(Encoder().encode(Wrote(4, part)), Decoder())
    assert received == Wrote(4, part)
    schema = StateSchema.of({"k": pa.string()}, {"v": pa.float64()}, order=["v"])
    ordered = Spine("ordered", schema)
    ordered.insert(pa.record_batch({"k": ["a", "b"], "v": [1.0, 2.0]}), (0,))
    part = checkpoints.write({"ordered": ordered.view()}, 1)
    (received,) = carried(Encoder().encode(Wrote(4, part)), Decoder())
    assert received == Wrote(4, part)
    assert received.part.shares["ordered"][0].schema.order == schema.order


# ---- nothing but messages


TRACE = Path(tempfile.gettempdir()) / f"riverrun-was-here-{os.getpid()}"


class Evil:
    def __reduce__(self) -> Any:
        return os.system, (f"touch {TRACE}",)


@pytest.mark.parametrize(
    "value",
    [Evil(), Counting(), [1], messages.Ready(1), "text"],
    ids=lambda value: type(value).__name__,
)
def test_pickles_are_refused(value: Any) -> None:
    for head in (pickle.dumps(value, protocol) for protocol in (0, 2, 4, 5)):
        with pytest.raises(BadMessage):
            Decoder().decode(head)
        with suppress(BadMessage):  # a byte may be a number
            assert type(unpack(head)) is int
    assert not TRACE.exists()


def rewriting(module: str, name: str, attribute: str, value: Any) -> bytes:
    """A pickle that sets an attribute of a class, by BUILD with a state of slots."""
    state = pickle._dumps((None, {attribute: value}), 2)[2:-1]  # type: ignore[attr-defined]
    where = pickle.GLOBAL + f"{module}\n{name}\n".encode()
    return bytes(pickle.PROTO + b"\x05" + where + state + pickle.BUILD + b".")


def hashing(depth: int) -> bytes:
    """A pickle of a key whose hash takes 2**depth steps."""
    pairs = b"".join(b"q%ch%c\x86" % (at, at) for at in range(depth))
    return b"\x80\x05})" + pairs + b"Ns."


TAKING = b"\x80\x05cbuiltins\nbytearray\n\x8a\x06" + (2 << 30).to_bytes(6, "little") + b"\x85R."


@pytest.mark.parametrize(
    "data",
    [
        rewriting("riverrun.state.shards", "Shards", "even", 1),
        rewriting("riverrun.engine.messages", "Completed", "pwned", 1),
        hashing(40),
        TAKING,
    ],
    ids=["class", "message", "hash", "memory"],
)
def test_what_pickles_could_do(data: bytes) -> None:
    """Fragments that rewrote classes, hashed for ever, or took 2 GB, when heads were pickles."""
    start, held, before = time.process_time(), maximum_memory(), state_of_the_package()
    for read in (lambda: Decoder().decode(data), lambda: unpack(data)):
        with pytest.raises(BadMessage):
            read()
    assert time.process_time() - start < 20
    assert maximum_memory() - held < 64 << 20
    assert state_of_the_package() == before


def maximum_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def state_of_the_package() -> dict[Any, Any]:
    """All that classes and modules of ours, and the few of Python's that values are of, hold."""
    held: dict[Any, Any] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "riverrun":
            held[name] = dict(vars(module))
            for value in list(vars(module).values()):
                if isinstance(value, type):
                    held[value] = dict(vars(value))
                elif isinstance(value, types.FunctionType):
                    held[value] = (value.__code__, value.__defaults__, dict(vars(value)))
    return {
        key: value
        if isinstance(value, tuple)
        else {inner: id(each) for inner, each in value.items()}
        for key, value in held.items()
    }


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_changed() -> Iterator[None]:
    """Whatever is decoded in this file leaves classes and globals as they were."""
    before = state_of_the_package()
    yield
    now = state_of_the_package()
    assert {key: now[key] for key in before} == before


@settings(max_examples=draws(30, sample=300, soak=1500), derandomize=SOAK != "all")
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_plain(data: bytes) -> None:
    before = state_of_the_package()
    with suppress(BadMessage):
        unpack(data)
    with suppress(BadMessage):
        Decoder().decode(data, pa.py_buffer(data))
    assert state_of_the_package() == before


def mutated(data: bytes, source: random.Random, other: bytes) -> bytes:
    """Bytes that were ours: flipped, cut, doubled, or spliced with others."""
    head = bytearray(data)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(head) + 1)
        match source.randrange(5):
            case 0 if head:
                head[at % len(head)] ^= 1 << source.randrange(8)
            case 1 if head:
                head[at % len(head)] = source.choice([0, 0x7F, 0x80, 0xC0, 0xDD, 0xDF, 0xFF])
            case 2:
                del head[at:]
            case 3:
                head[at:at] = head[source.randrange(len(head) + 1) :]
            case 4:
                head[at:] = other[source.randrange(len(other) + 1) :]
    return bytes(head)


@settings(max_examples=draws(150, sample=1500, soak=10_000), derandomize=SOAK != "all")
@given(everything, everything, st.randoms(use_true_random=False))
def test_damaged_fragments_raise_nothing_else(
    message: Any, other: Any, source: random.Random
) -> None:
    """And what is read in spite of it is sound: kernels may look at it."""
    decoder, others = Decoder(), Encoder().encode(other)
    for fragment in Encoder().encode(message):
        head, body = fragment.head, fragment.body
        if body is None or source.random() < 0.5:
            head = mutated(head, source, source.choice(others).head)
        if body is not None and source.random() < 0.7:
            spare = source.choice(others).body or pa.py_buffer(b"12345678")
            body = pa.py_buffer(mutated(body.to_pybytes(), source, spare.to_pybytes()))
        with suppress(BadMessage):
            decoded = decoder.decode(head, body)
            if isinstance(decoded, Data) and isinstance(decoded.payload, Rows):
                _, decoded_rows = decoded.payload
                assert decoded_rows.rows < 1 << 30
                for column in decoded_rows.columns:
                    assert len(column) == decoded_rows.rows
                    column.validate(full=True)
                assert (
                    decoded_rows.codes is None
                    or not len(decoded_rows.codes)
                    or max(decoded_rows.codes) < len(decoded_rows.times)
                )


def rows_head(**changed: Any) -> bytes:
    fields = {"execution": 1, "number": 0, "node": 3, "rows": 3, "times": ((0,), (1,)), "diff": 1,
              "has_codes": True, "has_diffs": True}  # fmt: skip
    about = shapes.RowsHead(**{**fields, **changed})  # type: ignore[arg-type]
    definition = WHOLE.schema.serialize().to_pybytes()
    return shapes.write_head(shapes.Piece(0, definition, about))


WHOLE = pa.record_batch(
    {
        "a": pa.array(["a", "b", "c"]),
        "codes": pa.array([0, 1, 0], pa.int32()),
        "diffs": pa.array([1, 1, -1]),
    }
)


def test_whole_changes_are_taken() -> None:
    decoded_rows = Decoder().decode(rows_head(), WHOLE.serialize())
    assert decoded_rows.payload[1].rows == 3


@pytest.mark.parametrize(
    "changed",
    [
        {"rows": 4},
        {"rows": 1 << 50},
        {"times": ((0,),)},
        {"times": ((1,), (0,))},
        {"times": ((0,), (0,))},
        {"times": ((0,), (1, 2))},
        {"times": ((-1,), (0,))},
        {"has_codes": False},
        {"has_diffs": False},
        {"node": -1},
        {"times": ()},
    ],
    ids=str,
)
def test_changes_that_are_none_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        Decoder().decode(rows_head(**changed), WHOLE.serialize())


@pytest.mark.parametrize("codes", [[0, 2, 0], [0, -1, 0], [0, 1 << 30, 0]])
def test_a_code_of_no_time_is_refused(codes: list[int]) -> None:
    """A kernel would read behind the table of times."""
    batch = WHOLE.set_column(1, "codes", pa.array(codes, pa.int32()))
    with pytest.raises(BadMessage, match="a time that it does not name"):
        Decoder().decode(rows_head(), batch.serialize())


def test_an_offset_that_points_elsewhere_is_refused() -> None:
    """Neighbouring memory would become a text of a result."""
    data = bytearray(WHOLE.serialize().to_pybytes())
    was = np.array([0, 1, 2, 3], np.int32).tobytes()
    assert data.count(was) == 1
    at = data.index(was)
    data[at : at + 16] = np.array([0, 1, 2, 5000], np.int32).tobytes()
    with pytest.raises(BadMessage, match="out of bounds"):
        Decoder().decode(rows_head(), pa.py_buffer(bytes(data)))


def test_rows_that_take_no_space_are_few() -> None:
    about = shapes.RowsHead(1, 0, 3, 1 << 40, ((0,),), 1, False, False)
    with pytest.raises(BadMessage):
        Decoder().decode(shapes.write_head(shapes.Piece(None, None, about)))


def test_columns_are_defined_in_order_and_once() -> None:
    definition = WHOLE.schema.serialize().to_pybytes()
    for number in (1, -1, 1 << 40):
        with pytest.raises(BadMessage):
            Decoder().decode(
                shapes.write_head(shapes.Piece(number, definition, None)), WHOLE.serialize()
            )


# ---- bounds


def test_long_values_are_refused_before_they_are_read() -> None:
    with pytest.raises(BadMessage, match="is more than"):
        unpack(b"\xc0" * (plain.MOST + 1))
    with pytest.raises(BadMessage, match="at most can be"):
        shapes.read(b"\xc0" * (shapes.HEAD + 1))


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x92\x00" * 1_000_000 + b"\xc0",
        b"\x91" * 3_000_000,
        b"\xdc\xff\xff\x02" + b"\xcf\x1f\xff\xff\xff\xff\xff\xff\xff\xc0" * 32767,
        pack("x" * 1_000_000)[:-1],
    ],
    ids=["array", "map", "bytes", "deep", "deeper", "keys", "cut"],
)
def test_bombs(data: bytes) -> None:
    start, held = time.process_time(), maximum_memory()
    for read in (lambda: Decoder().decode(data), lambda: unpack(data)):
        with pytest.raises(BadMessage):
            read()
    assert time.process_time() - start < 20
    assert maximum_memory() - held < 256 << 20


def test_keys_that_collide_are_few() -> None:
    """Integers can be chosen to have one hash: n of them take n * n steps."""
    prime = (1 << 61) - 1
    listed = [plain._DICT, *itertools.chain(*((at * prime, None) for at in range(1, 5000)))]
    data = msgspec.msgpack.encode(
        [each if each is None or each < 1 << 64 else 0 for each in listed]
    )
    with pytest.raises(BadMessage, match=r"keys|integer|twice"):
        unpack(data)
    with pytest.raises(BadMessage, match="at most can be"):
        unpack(pack(dict.fromkeys(range(5000))))
    assert len(unpack(pack({str(at): None for at in range(5000)}))) == 5000


def test_what_is_nested_too_deep_is_said_where_it_is_sent() -> None:
    deep: list[Any] = []
    for _ in range(plain.DEPTH + 1):
        deep = [deep]
    with pytest.raises(ValueError, match="deep"):
        pack(deep)
    error = OperatorFailed("a", "b", row=deep)  # an error travels, whatever it has
    assert isinstance(revive(unpack(pack(describe(error)))), OperatorFailed)
    endless: list[Any] = []
    endless.append(endless)
    error = OperatorFailed("a", "b", row=endless, large=1 << 100_000, text="x" * 10_000_000)
    assert isinstance(revive(unpack(pack(describe(error)))), OperatorFailed)


@pytest.mark.parametrize(
    "about",
    [
        {"kind": "OperatorFailed", "said": "", "code": 1, "message": "", "hint": None,
         "fields": {}, "story": (), "cause": None},
        {"kind": "RiverrunError", "said": "", "code": "a", "message": "b", "hint": None,
         "fields": {"code": "other"}, "story": (), "cause": None},
        {"kind": "OperatorFailed", "said": ""},
        {"kind": [], "said": "", "trace": ""},
        [], None, 5, "text", {},
    ],
    ids=str,
)  # fmt: skip
def test_what_describes_no_error(about: Any) -> None:
    with pytest.raises(BadMessage):
        revive(about)


@pytest.mark.parametrize("kind", ["SystemExit", "os", "users_line", "Path", "object", "__import__"])
def test_an_error_has_a_class_of_the_tree_or_of_python(kind: str) -> None:
    ours = {"code": "a", "message": "b", "hint": None, "fields": {}, "story": (), "cause": None}
    assert type(revive({"kind": kind, "said": "", **ours})) is RiverrunError
    assert type(revive({"kind": kind, "said": "", "trace": ""})) is RuntimeError


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
        {"a": {1, 2}, "b": frozenset({3}), "c": b"x"},
        {1: (2, [3]), (4, 5): None, 1.5: -(1 << 90)},
        "\udcff and \ud800",
        datetime(2020, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Rome")),
        datetime_time(1, 2, 3, 4, tzinfo=timezone(timedelta(hours=1, microseconds=1))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_come_back(value: Any) -> None:
    received = unpack(pack(value))
    assert received == value
    assert type(received) is type(value)


@pytest.mark.parametrize("value", [np.int64(3), np.float64(0.5), np.str_("a"), np.bool_(True)])
def test_numbers_of_numpy_come_back_as_plain_ones(value: Any) -> None:
    received = unpack(pack(Where("a", "=", value)))
    assert received.value == value
    assert type(received.value) is type(value.item())


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
    (received,) = carried(Encoder().encode(Failed(1, 2, raised())), Decoder())
    same_errors(received.error, raised())
    cause = received.error.__cause__
    assert type(cause) is ZeroDivisionError
    assert str(cause) == "by nothing"
    assert 'raise ZeroDivisionError("by nothing")' in str(cause.__cause__)


def test_causes_of_ours_nest() -> None:
    outer = CheckpointError("run.not_repeatable", "again", hint="h", epoch=3)
    outer.__cause__ = raised()
    received = revive(unpack(pack(describe(outer))))
    same_errors(received, outer)
    same_errors(received.__cause__, raised())
    assert type(received.__cause__.__cause__) is ZeroDivisionError  # type: ignore[union-attr]


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
    received = revive(unpack(pack(describe(error))))
    assert type(received) is kind
    assert said in str(received)


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
    received = revive(unpack(pack(describe(error))))
    assert isinstance(received, OperatorFailed)
    assert received.fields.keys() == {"row"}


def test_a_plan_error_keeps_its_line() -> None:
    error = PlanError("a", "b", line="user.py:3: x")
    received = revive(describe(error))
    same_errors(received, error)
