"""The wire: values as bytes, and back, without ever running what comes in.

Law: what `unpack` makes is plain values, and instances of the dataclasses in `_OURS`; bytes that
name anything else, or that nobody of us packed, are refused with `BadFrame`.

An error arrives with its message, hint and fields; what caused it arrives with its traceback, as
text, and, where it is one of Python's own, with its class.

This module is light: the processes in which Spark plans queries import it, and little else.

>>> unpack(pack({"rows": [1, 2]}))
{'rows': [1, 2]}
>>> import os, pickle
>>> unpack(pickle.dumps(os.system))
Traceback (most recent call last):
    ...
riverrun.engine.wire.BadFrame: a frame names posix.system, which no message has
"""

from __future__ import annotations

import builtins
import importlib
import io
import pickle
import traceback
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from riverrun import errors
from riverrun.errors import RiverrunError

_TRACE = 20_000  # characters of a traceback that travel

_PLAIN: dict[tuple[str, str], Callable[..., Any]] = {
    (kind.__module__, kind.__qualname__): kind
    for kind in (
        date, datetime, time, timedelta, timezone, ZoneInfo, Decimal,
        set, frozenset, bytearray, slice, range, bool, int, float, str, bytes,
    )
}  # fmt: skip
_MESSAGES = """
    Announce Append Begin Broken Closed Collect Completed Data Failed Feed Found Heartbeat Join Leave Logged NotReady
    Outcome Parcel Publish Published Read Ready Refused Reported Saved Scaled Start Stop Survey Write Wrote
"""
_OURS: dict[str, frozenset[str]] = {
    "riverrun.engine.messages": frozenset(_MESSAGES.split()),
    "riverrun.engine.where": frozenset({"Where"}),
    "riverrun.progress.frontier": frozenset({"Antichain"}),
    "riverrun.state.checkpoint": frozenset({"Part"}),
    "riverrun.state.manifest": frozenset(
        {"BatchEntry", "BlockEntry", "Manifest", "Share", "StoredFile"}
    ),
    "riverrun.state.schema": frozenset({"Order", "Schema"}),
    "riverrun.state.shards": frozenset({"Shards"}),
}


def _of_numpy(value: Any) -> tuple[Any, ...]:
    plain = value.item()
    return type(plain), (plain,)


def _read_schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


_PLAIN[__name__, _read_schema.__name__] = _read_schema
REDUCED: dict[type, Any] = {
    ZoneInfo: lambda zone: (ZoneInfo, (zone.key,)),
    pa.Schema: lambda schema: (_read_schema, (schema.serialize().to_pybytes(),)),
    **dict.fromkeys([np.dtype(code).type for code in "?bBhHiIlLqQefdSU"], _of_numpy),
}
"""What pickles by way of a function, or of NumPy's own classes, and is a plain value nonetheless."""


class BadFrame(Exception):
    """Bytes that are no message of ours."""


class _Pickler(pickle.Pickler):
    dispatch_table = REDUCED


class _Unpickler(pickle.Unpickler):
    """Knows the classes of messages, and no others ."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PLAIN:
            if module not in _OURS or name not in _OURS[module]:
                raise BadFrame(f"a frame names {module}.{name}, which no message has")
            return getattr(importlib.import_module(module), name)
        return _PLAIN[module, name]


def pack(value: Any) -> bytes:
    """Plain values, and the dataclasses that messages are made of."""
    out = io.BytesIO()
    _Pickler(out, 5).dump(value)
    return out.getvalue()


def unpack(data: Any) -> Any:
    """The value again; `BadFrame` for what nobody of us packed."""
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except BadFrame:
        raise
    except Exception as error:
        raise BadFrame(f"a frame cannot be read: {type(error).__name__}: {error}") from error


class RemoteTraceback(Exception):
    """Where it happened, on another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}" if self.args else ""


def describe(error: BaseException) -> dict[str, Any]:
    """An error as plain values."""
    cause = error.__cause__
    try:
        said = str(error)[:_TRACE]
    except Exception as unsaid:  # a user's own class may do anything
        said = f"(its text raises {type(unsaid).__name__})"
    about: dict[str, Any] = {"kind": type(error).__name__, "said": said}
    if isinstance(error, RiverrunError):
        fields = {key: _plain(value) for key, value in error.fields.items()}
        about |= {
            "code": error.code,
            "message": error.message,
            "hint": error.hint,
            "fields": fields,
        }
        about["story"] = error.story
        about["cause"] = None if cause is None else describe(cause)
    else:
        lines = "".join(traceback.format_exception(error))
        about["trace"] = lines[-_TRACE:]
    return about


def revive(about: Mapping[str, Any]) -> BaseException:
    """The error again, as far as it can be."""
    if "code" in about:
        kind = getattr(errors, about["kind"], RiverrunError)
        if not (isinstance(kind, type) and issubclass(kind, RiverrunError)):
            kind = RiverrunError
        error: BaseException = kind(
            about["code"],
            about["message"],
            hint=about["hint"],
            story=about["story"],
            **about["fields"],
        )
        if about["cause"] is not None:
            error.__cause__ = revive(about["cause"])
        return error
    builtin = getattr(builtins, about["kind"], None)
    if isinstance(builtin, type) and issubclass(builtin, Exception):
        try:
            error = builtin(about["said"])
        except TypeError:
            error = RuntimeError(f"{about['kind']}: {about['said']}")
    else:
        error = RuntimeError(f"{about['kind']}: {about['said']}")
    error.__cause__ = RemoteTraceback(about["trace"])
    return error


_SCALARS = (bool, int, float, str, bytes, Decimal, date, timedelta)  # subclasses may be anything


def _plain(value: Any) -> Any:
    """A value that may stand in a head; others as text."""
    kind = type(value)
    if value is None or kind in _SCALARS or kind in REDUCED:
        return value
    if kind is datetime or kind is time:
        return value if type(value.tzinfo) in (type(None), timezone, ZoneInfo) else repr(value)
    if kind in (tuple, list):
        return kind(map(_plain, value))
    if kind is dict:
        return {_key(key): _plain(inner) for key, inner in value.items()}
    try:
        return repr(value)
    except Exception as error:
        return f"<{kind.__name__}, whose text raises {type(error).__name__}>"


def _key(value: Any) -> Any:
    found = _plain(value)
    return found if found.__hash__ is not None else repr(found)
