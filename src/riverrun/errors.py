"""The exception tree: every error Riverrun raises on purpose.

::

    RiverrunError
    ├── PlanError          a program that cannot run; raised while it is built
    ├── SchemaError        rows that do not fit the declared columns
    ├── TimeViolation      a time before a promised frontier, or outside the epochs that can be read
    ├── OperatorFailed     a user's function raised; ``__cause__`` has its exception
    ├── CheckpointError    a checkpoint that is missing, incompatible or corrupt
    └── TransportError     a process or a storage could not be reached

A message says what was attempted, with which values, and which rule forbids it; it ends with a hint. Besides the
message an error carries

- ``code``: a stable word for programs (``"schema.column_missing"``), never reworded,
- ``fields``: the values in the message, as a dict,
- ``hint``: what to do next,
- ``story``: the events that led to the error, oldest first.

All of this survives pickling, since errors cross process borders. `retry` says which errors are tried again.

>>> error = SchemaError(
...     "schema.column_missing",
...     "cannot append to 'edges': column 'dst' is missing; the rows have: src",
...     hint="add the column, or declare the state without it",
...     column="dst",
... )
>>> print(error)
cannot append to 'edges': column 'dst' is missing; the rows have: src
Hint: add the column, or declare the state without it
>>> error.code, error.fields["column"]
('schema.column_missing', 'dst')
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = [
    "CheckpointError",
    "OperatorFailed",
    "PlanError",
    "RiverrunError",
    "SchemaError",
    "TimeViolation",
    "TransportError",
    "listed",
    "show",
    "users_line",
    "with_article",
]

_PACKAGE = str(Path(__file__).resolve().parent)
SHOWN = 100
"""The most characters of a source line that are shown."""


class RiverrunError(Exception):
    """The root of the tree: catch this to catch everything Riverrun raises on purpose."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        story: Sequence[str] = (),
        **fields: Any,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.story = tuple(story)
        self.fields = fields

    def __str__(self) -> str:
        lines = [self.message]
        if self.fields.get("line") and self.fields["line"] not in self.message:
            lines.append(f"At: {self.fields['line']}")
        if self.hint:
            lines.append(f"Hint: {self.hint}")
        if self.story:
            lines.append("What led here:")
            lines.extend(f"  {line}" for line in self.story)
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.code, self.message, self.hint, self.story, self.fields)


def _rebuild(
    kind: type[RiverrunError],
    code: str,
    message: str,
    hint: str | None,
    story: Sequence[str],
    fields: dict[str, Any],
) -> RiverrunError:
    return kind(code, message, hint=hint, story=story, **fields)


class PlanError(RiverrunError):
    """The program cannot run as written; raised while it is built. ``line`` is the user's own line."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        story: Sequence[str] = (),
        **fields: Any,
    ) -> None:
        fields.setdefault("line", users_line())
        super().__init__(code, message, hint=hint, story=story, **fields)


class SchemaError(RiverrunError):
    """Rows that do not fit the declared columns."""


class TimeViolation(RiverrunError):
    """A time before a promised frontier, or outside the epochs that can be read."""


class OperatorFailed(RiverrunError):
    """A user's function raised; ``__cause__`` is the original exception."""


class CheckpointError(RiverrunError):
    """A checkpoint that is missing, incompatible or corrupt."""


class TransportError(RiverrunError):
    """A process or a storage could not be reached; tried again, unless its code is final (`retry`)."""


class BadMessage(Exception):
    """Bytes of another process are no message of ours. Never reaches a user: the receiver closes the connection, and
    the sender counts as lost.
    """


def show(value: Any) -> str:
    """A value as an error shows it: its repr, cut when that is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def with_article(noun: str) -> str:
    """A noun, such as the name of a class, with the article that is spoken before it.

    >>> with_article("int"), with_article("str"), with_article("uint8")
    ('an int', 'a str', 'a uint8')
    """
    return f"{'an' if noun[:1] in set('aeioAEIO') else 'a'} {noun}"


def listed(names: Iterable[Any], most: int = 40) -> str:
    """Names as an error lists them: the first ones, each cut as a value is, and how many there are besides.

    >>> listed(["a", "b", "c"], most=2)
    'a, b, and 1 more'
    """
    each = [str(name) for name in names]
    shown = [
        name if len(name) <= 80 else f"{name[:60]}... ({len(name)} characters)"
        for name in each[:most]
    ]
    return ", ".join(shown) + (f", and {len(each) - most:,} more" if len(each) > most else "")


def users_line() -> str:
    """The innermost line of the user's program on the stack: ``file.py:12: source``, cut where it is long.

    Empty in a thread, or in a process, that runs no code of the user's.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_users(frame):
        frame = frame.f_back
    if frame is None:
        return ""
    file, line = frame.f_code.co_filename, frame.f_lineno
    source = linecache.getline(file, line).strip()
    if len(source) > SHOWN:
        source = f"{source[:SHOWN].rstrip()} ..."
    shown = Path(file).name if not file.startswith("<") else file
    return f"{shown}:{line}" + (f": {source}" if source else "")


_OURS_TOO = {"threading", "concurrent", "dataclasses", "polars", "pyspark", "py4j"}
"""Packages that call this one: their lines are not the user's."""
_GENERATED = "<string>"
"""The file of functions without one, such as the `__init__` of a dataclass. In a module of ours they are ours."""


def _is_users(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    if file.startswith(_PACKAGE):
        return False
    module = str(frame.f_globals.get("__name__", ""))
    if file == _GENERATED and module.startswith("riverrun."):
        return False
    return module.partition(".")[0] not in _OURS_TOO
