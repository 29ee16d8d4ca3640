"""Shapes: what each message looks like as bytes, derived from the annotations of its class.

Every class that travels between processes has a *tag*, a number of its own that never changes meaning, and a *shape*: a
msgspec struct with one place for each field, whose type is that of the field, with bounds. A message is written as its
tag and its fields, in MessagePack. One decoder, which knows all shapes, reads all of them. `fragments` makes heads of
these bytes. Laws:

- **Typed.** Bytes become a message when each field has the type that its class says, within bounds: numbers of 64 bits
  (of 65 in records, where the end of all hashes stands), texts and bytes of `TEXT`, containers of `ITEMS`. Everything
  else is refused with `BadMessage`, unknown tags too.
- **Constructed only.** Decoding calls classes of the registry below with checked fields, and has no other effect.
- **Whole.** A field whose annotation this module does not know is an error when the module is imported, so a message
  cannot be forgotten in part.

>>> from riverrun.engine.messages import Completed
>>> read(write(Completed(execution=3, epoch=7)))
Completed(execution=3, epoch=7, notes=(), rounds=())
>>> read(b"\\x91\\x7f")
Traceback (most recent call last):
    ...
riverrun.errors.BadMessage: a fragment cannot be read: ValidationError: Invalid value 127 - at `$[0]`

Cost: 1 to 2 microseconds for a message of a few numbers.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, Union

import msgspec
import pyarrow as pa
from msgspec import Meta

from riverrun.engine import messages
from riverrun.engine.loop_rounds import LoopRound
from riverrun.errors import BadMessage, RiverrunError
from riverrun.progress import Antichain
from riverrun.runtime.codec import plain
from riverrun.state.shards import END, Shards

HEAD = 16 << 20
"""The most bytes of a message besides its rows."""
TEXT = 1 << 20
ITEMS = 1 << 20
TIMES = 1024  # of a frontier
_TAGS: dict[int, type] = {
    1: messages.Begin,
    2: messages.Announce,
    3: messages.Published,
    4: messages.LeaveRun,
    5: messages.JoinRun,
    6: messages.Heartbeat,
    7: messages.Ready,
    8: messages.Completed,
    9: messages.Failed,
    10: messages.NotReady,
    11: messages.Broken,
    12: messages.Wrote,
    13: messages.Credit,
    14: messages.Beat,
    15: messages.Kernels,
    16: messages.Peers,
    17: messages.Release,
    18: messages.Forget,
    21: messages.Loops,
    22: messages.SaveRounds,
    23: messages.RoundWritten,
    24: messages.NotSaved,
}
TRAVELLING = frozenset(_TAGS.values()) | {messages.Data, messages.Feed}
"""The classes of messages that travel between processes; all others stay in theirs."""

plain.add_record(16, messages.Parcel, str, int, int, str | None, str)

Text = Annotated[str, Meta(max_length=TEXT)]
Octets = Annotated[bytes, Meta(max_length=TEXT)]
Wide = int | Annotated[bytes, Meta(min_length=9, max_length=9)]
Time = Annotated[tuple[int, ...], Meta(max_length=64)]


@dataclass(frozen=True, slots=True)
class PlainData:
    """`Data` with a payload that is neither rows nor progress, as test instances send it."""

    execution: int
    number: int
    payload: Any


@dataclass(frozen=True, slots=True)
class FeedEnd:
    """The end of a feed: its inputs have come before."""

    execution: int
    epoch: int
    parcels: Mapping[str, tuple[messages.Parcel, ...]]
    saved: tuple[messages.SavedShare, ...]


class Form(NamedTuple):
    """How one type is written: the type that msgspec sees, and what leads there and back; None for as it is."""

    kind: Any
    lower: Callable[[Any], Any] | None = None
    lift: Callable[[Any], Any] | None = None


class ProgressHead(msgspec.Struct, array_like=True, tag=30, forbid_unknown_fields=True, gc=False):
    """The changes that a worker has made to the counts of pointstamps."""

    execution: int
    number: int
    changes: Annotated[tuple[tuple[int, Time, int], ...], Meta(max_length=ITEMS)]


class RowsHead(msgspec.Struct, array_like=True, tag=31, forbid_unknown_fields=True, gc=False):
    """The description of the rows whose last piece is in this fragment."""

    execution: int
    number: int
    node: Annotated[int, Meta(ge=0)]
    rows: Annotated[int, Meta(ge=0)]
    times: Annotated[tuple[Time, ...], Meta(min_length=1, max_length=ITEMS)]
    diff: int
    has_codes: bool
    has_diffs: bool


class InputHead(msgspec.Struct, array_like=True, tag=32, forbid_unknown_fields=True, gc=False):
    """The input of the rows whose last piece is in this fragment."""

    name: Text
    columns: Annotated[tuple[Text, ...], Meta(max_length=ITEMS)]


class Piece(msgspec.Struct, array_like=True, tag=33, forbid_unknown_fields=True, gc=False):
    """A piece of rows; the last piece has their description."""

    schema: int | None
    """The number of the columns; None where there are none."""
    definition: Octets | None
    """The columns themselves, if their number is new."""
    about: RowsHead | InputHead | None


def write(message: Any) -> bytes:
    """The bytes of a message of the registry."""
    shape = _SHAPES[type(message)]
    return _encode(shape.lower(message))


def read(data: Any) -> Any:
    """The message, or one of the heads above; `BadMessage` for what is neither."""
    size = len(data) if type(data) is bytes else memoryview(data).nbytes
    if size > HEAD:
        raise BadMessage(f"a fragment has a head of {size} bytes; {HEAD} at most can be")
    try:
        struct_or_head = _decode(data)
        lift = _LIFTING.get(type(struct_or_head))
        return struct_or_head if lift is None else lift(struct_or_head)
    except BadMessage:
        raise
    except Exception as error:
        raise BadMessage(f"a fragment cannot be read: {type(error).__name__}: {error}") from error


def write_head(head: msgspec.Struct) -> bytes:
    """The bytes of one of the heads above."""
    return _encode(head)


# ---- forms


def _form(hint: Any, *, record: bool = False) -> Form:
    """The form of a field; in a record, integers may be as large as the end of all hashes."""
    simple = _SIMPLE.get(hint) if isinstance(hint, type) else None
    if hint is int and record:
        return Form(Wide, _lower_wide, _lift_wide)
    if simple is not None:
        return simple
    if hint is Any:
        return Form(Any, plain.lower, plain.lift)
    if isinstance(hint, type) and is_dataclass(hint):
        return _records(hint).nested
    if isinstance(hint, type) and hasattr(hint, "_fields"):
        return _named(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _optional(arguments, record=record)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _sequence(_form(arguments[0], record=record))
    if origin is tuple:
        return _fixed([_form(each, record=record) for each in arguments])
    if origin in (dict, Mapping) and arguments == (str, Any):
        return Form(Any, plain.lower, _lift_fields)
    if origin in (dict, Mapping):
        return _mapping(*(_form(each, record=record) for each in arguments))
    raise TypeError(f"no form for {hint}")


def _optional(arguments: tuple[Any, ...], *, record: bool) -> Form:
    (inner,) = [_form(each, record=record) for each in arguments if each is not type(None)]
    return Form(inner.kind | None, _unless_none(inner.lower), _unless_none(inner.lift))


def _unless_none(function: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if function is None:
        return None
    return lambda value: None if value is None else function(value)


def _sequence(inner: Form) -> Form:
    lower, lift = inner.lower, inner.lift
    return Form(
        Annotated[tuple[inner.kind, ...], Meta(max_length=ITEMS)],  # type: ignore[name-defined]
        None if lower is None else lambda value: value and tuple(map(lower, value)),
        None if lift is None else lambda value: value and tuple(map(lift, value)),
    )


def _fixed(parts: list[Form]) -> Form:
    kind: Any = tuple.__class_getitem__(tuple([part.kind for part in parts]))

    def through(at: int) -> Callable[[Any], Any]:
        functions = [part[at] or (lambda value: value) for part in parts]
        return lambda value: tuple(
            [each(inner) for each, inner in zip(functions, value, strict=True)]
        )

    return Form(kind, through(1), through(2))


def _named(kind: Any) -> Form:
    """A tuple whose fields have names."""
    form = _fixed([_form(hint) for hint in typing.get_type_hints(kind).values()])
    lift = form.lift
    assert lift is not None
    return Form(form.kind, form.lower, lambda value: kind(*lift(value)))


def _mapping(key: Form, inner: Form) -> Form:
    lower, lift = inner.lower or (lambda value: value), inner.lift or (lambda value: value)
    return Form(
        Annotated[dict[key.kind, inner.kind], Meta(max_length=ITEMS)],  # type: ignore[name-defined]
        lambda value: {name: lower(each) for name, each in value.items()},
        lambda value: {name: lift(each) for name, each in value.items()},
    )


def _lower_wide(value: int) -> Any:
    return value if value < END else value.to_bytes(9, "little")


def _lift_wide(value: Any) -> int:
    if type(value) is not bytes:
        return int(value)
    if int.from_bytes(value, "little") != END:
        raise BadMessage("a fragment has a number beyond all hashes")
    return END


def _lift_fields(value: Any) -> dict[str, Any]:
    fields = plain.lift(value)
    if type(fields) is not dict or not all(type(key) is str for key in fields):
        raise BadMessage("a fragment has fields that are none")
    return fields


def _lift_schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def _lift_error(value: Any) -> RiverrunError:
    error = plain.revive(plain.lift(value))
    if not isinstance(error, RiverrunError):
        raise BadMessage("a fragment has an error that is none of ours")
    return error


_SIMPLE: dict[Any, Form] = {
    int: Form(int),
    float: Form(float),
    bool: Form(bool),
    str: Form(Text),
    bytes: Form(Octets),
    Antichain: Form(
        Annotated[tuple[Time, ...], Meta(max_length=TIMES)],
        lambda value: value.elements,
        lambda value: Antichain(list(value)),
    ),
    pa.Schema: Form(Octets, lambda schema: schema.serialize().to_pybytes(), _lift_schema),
    RiverrunError: Form(Any, lambda error: plain.lower(plain.describe(error)), _lift_error),
}


class _Shape:
    """The struct of a class, and the way there and back."""

    def __init__(self, kind: type, tag: int | None) -> None:
        hints = typing.get_type_hints(kind)
        names = [each.name for each in fields(kind)]
        forms = [_form(hints[name], record=tag is None) for name in names]
        self.kind = kind
        self.struct = msgspec.defstruct(
            kind.__name__,
            [(name, form.kind) for name, form in zip(names, forms, strict=True)],
            array_like=True,
            tag=tag,
            forbid_unknown_fields=True,
            gc=False,
        )
        self._values = _values_of(names)
        self._lowering = [(at, each.lower) for at, each in enumerate(forms) if each.lower]
        self._lifting = [(at, each.lift) for at, each in enumerate(forms) if each.lift]
        self._check = _CHECKS.get(kind)
        self.nested = Form(self.struct, self.lower, self.lift)

    def lower(self, value: Any) -> Any:
        values = self._values(value)
        if self._lowering:
            values = list(values)
            for at, lower in self._lowering:
                values[at] = lower(values[at])
        return self.struct(*values)

    def lift(self, struct: Any) -> Any:
        values = msgspec.structs.astuple(struct)
        if self._lifting:
            listed = list(values)
            for at, lift in self._lifting:
                listed[at] = lift(listed[at])
            values = tuple(listed)
        message = self.kind(*values)
        if self._check is not None:
            self._check(message)
        return message


def _values_of(names: list[str]) -> Callable[[Any], Any]:
    if not names:
        return lambda value: ()
    if len(names) == 1:
        only = attrgetter(names[0])
        return lambda value: (only(value),)
    return attrgetter(*names)


def _check_shards(shards: Shards) -> None:
    bounds, owners = shards.bounds, shards.owners
    whole = bounds[:1] == (0,) and bounds[-1:] == (END,) and len(bounds) == len(owners) + 1
    if not whole or any(a >= b for a, b in pairwise(bounds)):
        raise BadMessage("a fragment has shards that are not all hashes, each once")
    if shards.workers < 1 or not all(0 <= owner < shards.workers for owner in owners):
        raise BadMessage("a fragment has shards of nobody")


def _check_round(loop_round: LoopRound) -> None:
    if len(loop_round.time) < 2:
        raise BadMessage("a fragment has a round of no loop")


_CHECKS: dict[type, Callable[[Any], None]] = {Shards: _check_shards, LoopRound: _check_round}
_RECORDS: dict[type, _Shape] = {}


def _records(kind: type) -> _Shape:
    if kind not in _RECORDS:
        _RECORDS[kind] = _Shape(kind, None)
    return _RECORDS[kind]


_SHAPES = {kind: _Shape(kind, tag) for tag, kind in {**_TAGS, 19: PlainData, 20: FeedEnd}.items()}
_HEADS = (ProgressHead, RowsHead, InputHead, Piece)
_LIFTING: dict[type, Callable[[Any], Any]] = {
    **{shape.struct: shape.lift for shape in _SHAPES.values()},
}
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(
    Union[(*(shape.struct for shape in _SHAPES.values()), *_HEADS)]
).decode
