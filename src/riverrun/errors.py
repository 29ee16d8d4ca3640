"""The exception tree: every error Riverrun raises on purpose.

::

    RiverrunError
    ├── PlanError          a program that cannot run, found while it is being built
    ├── SchemaError        rows that do not fit the declared columns
    ├── TimeViolation      a time before what was promised, or outside what is kept
    ├── OperatorFailed     a user's function raised; the cause is kept
    ├── CheckpointError    a checkpoint that is missing, incompatible or corrupt
    └── TransportError     a peer could not be reached (the only kind that is retried)

A message says what was attempted, with which values, which rule forbids it, and ends with a hint.
Besides the message an error carries

- ``code``: a stable word for programs (``"schema.column_missing"``), never reworded,
- ``fields``: the values in the message, as a dict,
- ``hint``: what to do next,
- ``story``: the events that concern it, oldest first.

All of it survives pickling, since errors cross process borders.

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
from collections.abc import Sequence
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
    "users_line",
]

_PACKAGE = str(Path(__file__).resolve().parent)
SHOWN = 100
"""So many characters of a source line are shown."""


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
    """The program cannot run as written; found while it is being built. ``line`` is the user's own."""

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
    """A time before what was promised, or outside what is kept."""


class OperatorFailed(RiverrunError):
    """A user's function raised; ``__cause__`` is the original exception."""


class CheckpointError(RiverrunError):
    """A checkpoint that is missing, incompatible or corrupt."""


class TransportError(RiverrunError):
    """A peer could not be reached; the only kind of error that is retried."""


class BadMessage(Exception):
    """What another process sent is no message of ours. It never reaches a user: whoever receives it closes the
    connection, and the sender counts as lost.
    """


def users_line() -> str:
    """The innermost line of the program that is not ours: ``file.py:12: source``, cut where it is long.

    Empty where there is none: in a thread, or in a process, that runs nothing but us.
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


_OURS_TOO = {"threading", "concurrent", "polars", "pyspark", "py4j"}
"""Packages that run us: what they do is nobody's program."""


def _is_users(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    if file.startswith(_PACKAGE):
        return file.startswith(f"{_PACKAGE}/algorithms")
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _OURS_TOO
