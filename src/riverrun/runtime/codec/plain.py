"""Plain values as bytes, and back. Bytes are data: reading them gives values of the kinds named here, and does no more.

Questions, answers and errors travel between processes as plain values: None, booleans, numbers, texts, bytes, dates and
times, lists, tuples, sets and dicts of these, a condition on rows (`Where`), a frontier, and the dataclasses that
`add_record` adds. `pack` writes a value and `unpack` reads it. (Messages have types of their own, in `shapes`.) Both
are MessagePack, written and read by msgspec; a value of any kind but None, booleans, numbers, texts and bytes is a list
that begins with the number of its kind. Laws:

- **Round trip.** ``unpack(pack(value)) == value`` for every value within the bounds, and every value keeps its type: a
  tuple stays a tuple. Only NumPy's scalars arrive as Python's numbers, texts and booleans.
- **Closed.** `unpack` refuses bytes of any other form with `BadMessage`: what is no MessagePack, maps and extensions, a
  list that does not begin with the number of a known kind, or goes on in a way that the kind does not have. Values are
  made by the code of their kinds only; nothing in the bytes names a class or a function.
- **Bounded.** `unpack` refuses more than `MOST` bytes before it looks at them, a value that is nested deeper than
  `DEPTH`, a dict with more than `KEYS` keys unless all of them are texts, and a set with `KEYS` elements or more, since
  such keys and elements can be chosen to collide. Reading n bytes takes at most about 64 n bytes of memory, and time in
  proportion to n.
- **Known classes of errors.** `describe` makes a plain value of an error, and `revive` an error of that. The class is
  looked up by its name among those of `errors` and Python's own exceptions, and nowhere else; an error of another class
  arrives as a `RiverrunError` or a `RuntimeError`. An error of ours arrives with its code, message, hint, fields and
  story, and with its cause, which is described in the same way. Any other error arrives with its text, and with its
  traceback, as text, for a cause.

This module is light: the processes in which Spark plans queries import it, and little else of Riverrun.

>>> unpack(pack({"rows": [1, 2], "time": (3, 4)}))
{'rows': [1, 2], 'time': (3, 4)}
>>> import os, pickle
>>> unpack(pickle.dumps(os.system))
Traceback (most recent call last):
    ...
riverrun.errors.BadMessage: a fragment cannot be read: ...

Cost: about a microsecond, and half of one for each value inside.
"""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from types import UnionType
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import numpy as np

from riverrun import errors
from riverrun.errors import BadMessage, RiverrunError
from riverrun.progress import Antichain
from riverrun.rows.conditions import Where

MOST = 4 << 20
"""The most bytes of one value."""
DEPTH = 48
KEYS = 4096
_DIGITS = 4096  # bytes of an integer, characters of a decimal
_EXPONENT = 100_000
_TRACE = 20_000  # characters of a traceback that travel
_CAUSES = 8

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def pack(value: Any) -> bytes:
    """A plain value as bytes."""
    return _encode(lower(value))


def unpack(data: Any, most: int = MOST) -> Any:
    """The value of some bytes; `BadMessage` for bytes that no `pack` has made."""
    size = memoryview(data).nbytes
    if size > most:
        raise BadMessage(f"a fragment of {size} bytes is more than {most}")
    try:
        return lift(_decode(data))
    except BadMessage:
        raise
    except Exception as error:
        raise BadMessage(f"a fragment cannot be read: {type(error).__name__}: {error}") from error


# ---- values in MessagePack; a kind that MessagePack lacks is a list that begins with the number of the kind


def lower(value: Any, depth: int = 0) -> Any:
    """A value in terms of the kinds of MessagePack."""
    kind = type(value)
    if value is None or kind is bool or kind is float or kind is bytes:
        return value
    if kind is int:
        if -(1 << 63) <= value < 1 << 64:
            return value
        return [_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)]
    if kind is str:
        if value.isascii() or not _has_surrogates(value):
            return value
        return [_ODD_TEXT, value.encode("utf-8", "surrogatepass")]
    lowering = _LOWERING.get(kind)
    if lowering is None:
        raise TypeError(f"a {kind.__name__} is no value that travels: {str(value)[:80]}")
    if depth >= DEPTH:
        raise ValueError(f"a value that is nested more than {DEPTH} deep does not travel")
    lowered: list[Any] = lowering(value, depth + 1)
    return lowered


def lift(value: Any, depth: int = 0) -> Any:
    """The value of such terms."""
    kind = type(value)
    if kind is not list:
        if kind is dict or kind is tuple:
            raise BadMessage("a fragment has a map where values are")
        if kind is msgspec.msgpack.Ext or kind is datetime:
            raise BadMessage("a fragment has an extension where values are")
        return value
    if depth >= DEPTH:
        raise BadMessage(f"a fragment is nested more than {DEPTH} deep")
    number = value[0] if value else None
    lifting = _LIFTING.get(number) if type(number) is int else None
    if lifting is None:
        raise BadMessage(f"a fragment names kind {str(number)[:40]!r}, which no value has")
    return lifting(value, depth + 1)


def _has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _lift_all(listed: list[Any], depth: int) -> list[Any]:
    return [lift(each, depth) for each in listed[1:]]


def _lift_dict(listed: list[Any], depth: int) -> dict[Any, Any]:
    items = _lift_all(listed, depth)
    keys = items[::2]
    if len(items) % 2:
        raise BadMessage("a fragment has a key without a value")
    if len(keys) > KEYS and not all(type(key) is str for key in keys):
        raise BadMessage(
            f"a fragment has {len(keys)} keys that are no texts; {KEYS} at most can be"
        )
    entries = dict(zip(keys, items[1::2], strict=True))
    if len(entries) != len(keys):
        raise BadMessage("a fragment has a key twice")
    return entries


def _lift_set(listed: list[Any], depth: int) -> list[Any]:
    if len(listed) > KEYS:
        raise BadMessage(f"a fragment has a set of {len(listed)}; {KEYS} at most can be")
    return _lift_all(listed, depth)


def _lift_integer(listed: list[Any], depth: int) -> int:
    _, data = listed
    if type(data) is not bytes or len(data) > _DIGITS:
        raise BadMessage("a fragment has an integer that is too long")
    return int.from_bytes(data, "little", signed=True)


def _lift_decimal(listed: list[Any], depth: int) -> Decimal:
    _, text = listed
    if type(text) is not str or len(text) > _DIGITS:
        raise BadMessage("a fragment has a decimal that is too long")
    number = Decimal(text)
    if number.is_finite() and abs(number.adjusted()) > _EXPONENT:
        raise BadMessage("a fragment has a decimal that is too large")
    return number


def _zone_name(zone: tzinfo | None) -> Any:
    """A zone as None, its name, or its distance from UTC."""
    if zone is None:
        return None
    if type(zone) is ZoneInfo and zone.key is not None:
        return zone.key
    if type(zone) is timezone:
        return zone.utcoffset(None).total_seconds()
    raise TypeError(f"the zone {zone!r} does not travel")


def _zone(name: Any) -> tzinfo | None:
    if name is None:
        return None
    if type(name) is float:
        return timezone(timedelta(seconds=name))
    if type(name) is not str or len(name) > 255:
        raise BadMessage("a fragment has a time zone that is none")
    return ZoneInfo(name)


def _lower_moment(number: int) -> Callable[[Any, int], list[Any]]:
    def lowering(value: Any, depth: int) -> list[Any]:
        plain = value.replace(tzinfo=None, fold=0).isoformat()
        return [number, plain, value.fold, _zone_name(value.tzinfo)]

    return lowering


def _lift_moment(kind: type[datetime] | type[time]) -> Callable[[list[Any], int], Any]:
    def lifting(listed: list[Any], depth: int) -> Any:
        _, text, fold, zone = listed
        return kind.fromisoformat(text).replace(tzinfo=_zone(zone), fold=fold)

    return lifting


def _lift_where(listed: list[Any], depth: int) -> Where:
    column, relation, value, negated = _lift_all(listed, depth)
    if type(column) is not str or type(relation) is not str or type(negated) is not bool:
        raise BadMessage("a fragment has a condition that is none")
    return Where(column, relation, value, negated)


def _lift_antichain(listed: list[Any], depth: int) -> Antichain:
    times = _lift_all(listed, depth)
    if len(times) > KEYS // 4 or not all(type(each) is tuple for each in times):
        raise BadMessage("a fragment has a frontier that is none")
    return Antichain(times)


(
    _LIST, _TUPLE, _DICT, _SET, _FROZEN, _INTEGER, _DECIMAL, _ODD_TEXT, _DATE, _DATETIME, _TIME, _SPAN,
    _WHERE, _ANTICHAIN,
) = range(14)  # fmt: skip

_LOWERING: dict[type, Callable[[Any, int], list[Any]]] = {
    list: lambda value, depth: [_LIST, *[lower(each, depth) for each in value]],
    tuple: lambda value, depth: [_TUPLE, *[lower(each, depth) for each in value]],
    dict: lambda value, depth: [
        _DICT,
        *[lower(part, depth) for item in value.items() for part in item],
    ],
    set: lambda value, depth: [_SET, *[lower(each, depth) for each in value]],
    frozenset: lambda value, depth: [_FROZEN, *[lower(each, depth) for each in value]],
    Decimal: lambda value, depth: [_DECIMAL, str(value)],
    date: lambda value, depth: [_DATE, value.isoformat()],
    datetime: _lower_moment(_DATETIME),
    time: _lower_moment(_TIME),
    timedelta: lambda value, depth: [_SPAN, value.days, value.seconds, value.microseconds],
    Where: lambda value, depth: [
        _WHERE,
        value.column,
        value.relation,
        lower(value.value, depth),
        value.negated,
    ],
    Antichain: lambda value, depth: [_ANTICHAIN, *[lower(each, depth) for each in value]],
    **dict.fromkeys(
        [np.dtype(code).type for code in "?bBhHiIlLqQefdSU"],
        lambda value, depth: lower(value.item(), depth),
    ),
}
_LIFTING: dict[int, Callable[[list[Any], int], Any]] = dict(enumerate((
    _lift_all,
    lambda listed, depth: tuple(_lift_all(listed, depth)),
    _lift_dict,
    lambda listed, depth: set(_lift_set(listed, depth)),
    lambda listed, depth: frozenset(_lift_set(listed, depth)),
    _lift_integer,
    _lift_decimal,
    lambda listed, depth: listed[1].decode("utf-8", "surrogatepass"),
    lambda listed, depth: date.fromisoformat(listed[1]),
    _lift_moment(datetime),
    _lift_moment(time),
    lambda listed, depth: timedelta(*listed[1:4]),
    _lift_where,
    _lift_antichain,
)))  # fmt: skip


def add_record(number: int, kind: type, *types: type | UnionType) -> None:
    """Let a dataclass travel as a value: its fields, each checked to have its type."""

    def lowering(value: Any, depth: int) -> list[Any]:
        return [number, *[lower(getattr(value, each.name), depth) for each in fields(kind)]]

    def lifting(listed: list[Any], depth: int) -> Any:
        values = _lift_all(listed, depth)
        if len(values) != len(types) or not all(map(isinstance, values, types)):
            raise BadMessage(f"a fragment has a {kind.__name__} that is none")
        return kind(*values)

    _LOWERING[kind], _LIFTING[number] = lowering, lifting


# ---- errors


_OURS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, RiverrunError)
}
_PYTHONS = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception)
}
_OWN = frozenset({"code", "message", "hint", "story", "self"})


class RemoteTraceback(Exception):
    """The traceback of an error in another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}" if self.args else ""


def describe(error: BaseException, causes: int = _CAUSES) -> dict[str, Any]:
    """An error as plain values."""
    cause = error.__cause__
    try:
        said = str(error)[:_TRACE]
    except Exception as unsaid:  # the class is a user's, and may do anything
        said = f"(its text raises {type(unsaid).__name__})"
    about: dict[str, Any] = {"kind": type(error).__name__, "said": said}
    if isinstance(error, RiverrunError):
        fields = {key: _plain(value) for key, value in error.fields.items()}
        about |= {
            "code": error.code,
            "message": error.message,
            "hint": error.hint,
            "fields": fields,
            "story": tuple(map(str, error.story)),
        }
        about["cause"] = None if cause is None or not causes else describe(cause, causes - 1)
    else:
        lines = "".join(traceback.format_exception(error))
        about["trace"] = lines[-_TRACE:]
    return about


def revive(about: Mapping[str, Any]) -> BaseException:
    """The error of a description, as far as it can be made again; `BadMessage` where there is none."""
    try:
        return _revive(about)
    except BadMessage:
        raise
    except Exception as error:
        raise BadMessage(
            f"a fragment describes no error: {type(error).__name__}: {error}"
        ) from error


def _revive(about: Mapping[str, Any]) -> BaseException:
    kind, said = about["kind"], about["said"]
    if "code" in about:
        code, message, hint, story = (about[key] for key in ("code", "message", "hint", "story"))
        texts = [code, message, *([] if hint is None else [hint]), *story]
        if not all(type(text) is str for text in texts) or _OWN & about["fields"].keys():
            raise BadMessage("a fragment describes no error of ours")
        error: BaseException = _OURS.get(kind, RiverrunError)(
            code, message, hint=hint, story=story, **about["fields"]
        )
        if about["cause"] is not None:
            error.__cause__ = _revive(about["cause"])
        return error
    builtin = _PYTHONS.get(kind)
    try:
        error = RuntimeError(f"{kind}: {said}") if builtin is None else builtin(said)
    except TypeError:
        error = RuntimeError(f"{kind}: {said}")
    error.__cause__ = RemoteTraceback(str(about["trace"]))
    return error


_SCALARS = (bool, int, float, str, bytes, Decimal, date, timedelta)  # subclasses may be anything


def _plain(value: Any, depth: int = 0) -> Any:
    """The value, if it may travel; otherwise its text."""
    kind = type(value)
    if kind in (str, bytes) and len(value) > _TRACE:
        return value[:_TRACE]
    if (kind is int and value.bit_length() >= 8 * _DIGITS) or kind is Decimal:
        return _plain_decimal(value) if kind is Decimal else _text(value)
    if value is None or kind in _SCALARS:
        return value
    if kind in _LOWERING and isinstance(value, np.generic):
        return value.item()
    if kind is datetime or kind is time:
        return value if type(value.tzinfo) in (type(None), timezone, ZoneInfo) else _text(value)
    if depth < DEPTH // 2:
        if kind in (tuple, list):
            return kind([_plain(inner, depth + 1) for inner in value])
        if kind is dict and len(value) <= KEYS:
            return {_key(key, depth): _plain(inner, depth + 1) for key, inner in value.items()}
    return _text(value)


def _plain_decimal(value: Decimal) -> Any:
    fits = not value.is_finite() or abs(value.adjusted()) <= _EXPONENT
    return value if fits and len(str(value)) <= _DIGITS else _text(value)


def _text(value: Any) -> str:
    try:
        return repr(value)[:_TRACE]
    except Exception as error:
        return f"<{type(value).__name__}, whose text raises {type(error).__name__}>"


def _key(value: Any, depth: int) -> Any:
    plain = _plain(value, depth + 1)
    return plain if plain.__hash__ is not None and type(plain) is not tuple else _text(plain)
